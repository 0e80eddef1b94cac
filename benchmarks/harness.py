"""Timing, memory and tables for all benchmarks.

`alternate` times calls in this process. `Worker` runs one case in a process of its own, with its
own number of threads and its own checkout of the package, and `alternate_workers` times several of
them in turn, so that whatever else runs on the machine affects all of them alike.
"""

import argparse
import contextlib
import ctypes
import gc
import json
import math
import os
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import profile

__all__ = [
    "DOCS",
    "ROOT",
    "Table",
    "Worker",
    "allocated_megabytes",
    "alternate",
    "alternate_workers",
    "busy",
    "fresh_megabytes",
    "parser",
    "ratio",
    "relative_error",
    "write_section",
]

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
# A visit to a worker takes at least this many seconds, and the threads that spin after it have gone
# to sleep before the next worker is asked.
_VISIT, _PAUSE = 0.2, 0.02


def alternate(
    calls: Mapping[str, Callable[[], object]],
    budget: float = 0.4,
    rounds: int = 3,
    clock: Callable[[], float] = time.thread_time,
) -> dict[str, float]:
    """Return the median seconds of each call, one of each in turn, after a warm-up call of each.

    Args:
        calls: The calls by name.
        budget: Seconds of wall time after which no new round begins.
        rounds: The smallest number of rounds.
        clock: `time.thread_time` for the processor time of this thread, which needs one thread;
            `time.perf_counter` for wall time.
    """
    for call in calls.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + budget
    while min(len(x) for x in seconds.values()) < rounds or time.perf_counter() < end:
        for name, call in calls.items():
            start = clock()
            call()
            seconds[name].append(clock() - start)
    return {name: statistics.median(x) for name, x in seconds.items()}


class Worker:
    """A case in a fresh process.

    Args:
        case: A name in `benchmarks.cases.CASES`.
        settings: Keyword arguments of the case.
        threads: Number of threads, by `OMP_NUM_THREADS` and `torch.set_num_threads`.
        checkout: Folder whose `sparsefam` is imported; this repository's if None. The cases are
            always those of this repository.
    """

    def __init__(
        self,
        case: str,
        settings: Mapping[str, Any] | None = None,
        threads: int = 1,
        checkout: Path | None = None,
    ) -> None:
        # The package comes from the checkout, `benchmarks` from here, whichever the checkout has.
        code = (
            f"import sys; sys.path[0] = {str(checkout or ROOT)!r}; import sparsefam; "
            f"sys.path[0] = {str(ROOT)!r}; from benchmarks.harness import _serve; _serve()"
        )
        # Loops compiled from the first call on: what is timed is the steady state.
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "SPARSEFAM_COMPILE": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        try:
            self._first = self._ask(case=case, settings=dict(settings or {}), threads=threads)
        except RuntimeError:
            self.close()
            raise

    def seconds(self, calls: int = 1) -> list[float]:
        """Return the wall time of each of some calls."""
        answer: list[float] = self._ask(calls=calls)
        return answer

    def visit(self) -> list[float]:
        """Return the wall times of as many calls as fill a visit."""
        return self.seconds(max(1, min(200, round(_VISIT / self._first))))

    def megabytes(self) -> float:
        """Return by how much one call raises the resident memory of the process at its peak."""
        answer: float = self._ask(memory=True)
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, **request: Any) -> Any:
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the process has no pipes")
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of {request} ended, see its message above")
        return json.loads(line)


def _serve() -> None:
    """Answer the requests of a `Worker` until the input ends."""
    from .cases import CASES

    answers, sys.stdout = sys.stdout, sys.stderr  # whatever a call prints is no answer
    call: Callable[[], object] = lambda: None  # noqa: E731
    for line in sys.stdin:
        request = json.loads(line)
        answer: Any
        if "case" in request:
            torch.set_num_threads(request["threads"])
            call = CASES[request["case"]](**request["settings"])
            call()  # compiles what is compiled
            answer = min(_timed(call, 1 if request["settings"].get("length", 0) > 2**14 else 2))
        elif "memory" in request:
            answer = _peak_megabytes(call)
        else:
            answer = _timed(call, request["calls"])
        print(json.dumps(answer), file=answers, flush=True)


def _timed(call: Callable[[], object], calls: int) -> list[float]:
    seconds = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds


def alternate_workers(
    workers: Mapping[str, Worker], budget: float = 3.0, rounds: int = 3
) -> dict[str, list[float]]:
    """Return the median wall time of a call of each worker in each round, visited in turn.

    Args:
        workers: The workers by name.
        budget: Seconds for each worker after which no new round begins.
        rounds: The smallest number of rounds.
    """
    seconds: dict[str, list[float]] = {name: [] for name in workers}
    end = time.perf_counter() + budget * len(workers)
    count = 0
    while count < rounds or time.perf_counter() < end:
        for name, worker in workers.items():
            time.sleep(_PAUSE)
            seconds[name].append(statistics.median(worker.visit()))
        count += 1
    return seconds


def ratio(seconds: Sequence[float], others: Sequence[float]) -> float:
    """Return the median of the ratios round by round."""
    return statistics.median(a / b for a, b in zip(seconds, others, strict=True))


@contextlib.contextmanager
def busy(processes: int = 1) -> Iterator[None]:
    """Keep this many other processes busy, on one core each."""
    code = "while True: pass"
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def fresh_megabytes(
    case: str, settings: Mapping[str, Any], threads: int = 1, checkout: Path | None = None
) -> float:
    """Return the peak resident memory that one call adds in a fresh process, after a warm-up."""
    with Worker(case, settings, threads, checkout) as worker:
        return worker.megabytes()


def _peak_megabytes(call: Callable[[], object]) -> float:
    """Return how far the resident memory rises above what it was before the call.

    On Linux, free memory is given back first and the peak is reset. Elsewhere the peak of the
    process's life is read, which the warm-up call has already raised: the result is then a lower
    bound.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    kept = call()
    peak = _status("VmHWM")
    del kept
    return max(0.0, peak - before)


def _status(key: str) -> float:
    """Return an entry of /proc/self/status, or the peak of the process's life, in megabytes."""
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
    match = re.search(rf"{key}:\s+(\d+) kB", text)
    return 1024 * int(match[1]) / 1e6 if match else math.nan


def relative_error(result: Tensor, expected: Tensor) -> Tensor:
    """Return the relative error in the 2-norm over the last axis; infinite where it is NaN."""
    error: Tensor = (result.double() - expected).norm(dim=-1) / expected.norm(dim=-1)
    return torch.where(error.isnan(), math.inf, error)


@dataclass(frozen=True)
class Table:
    """Rows of text under a header and a title; the first column names the row."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """Return the table as Markdown."""
        lines = [self.header, [":--", *["--:"] * (len(self.header) - 1)], *self.rows]
        return f"{self.title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def show(self) -> None:
        """Print the table with aligned columns."""
        lines = [self.header, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.header))]
        print(f"\n{self.title}\n")
        for line in lines:
            first, *rest = (x.rjust(width) for x, width in zip(line, widths, strict=True))
            print("  ".join([line[0].ljust(len(first)), *rest]).rstrip())
        sys.stdout.flush()


def write_section(name: str, command: str, parts: Iterable[str], page: str) -> None:
    """Replace what stands between the two marks of a section in a page of docs/."""
    path = DOCS / page
    machine = (
        f"`{command}`, one run on a {os.cpu_count()}-core machine, torch "
        f"{torch.__version__.split('+')[0]} CPU, {date.today().isoformat()}."
    )
    begin, end = f"<!-- {name}: made by {command} -->", f"<!-- {name}: end -->"
    body = "\n\n".join([begin, machine, *parts, end])
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.S)
    text, count = pattern.subn(lambda _: body, path.read_text(encoding="utf-8"))
    if count != 1:
        raise ValueError(f"{page} must have one section {begin} ... {end}, got {count}")
    path.write_text(text, encoding="utf-8")


def allocated_megabytes(call: Callable[[], object]) -> float:
    """Return the most that torch allocates at once during a call, besides what the call returns.

    This is the account of torch's allocator, exact where the resident memory of a process shows
    nothing; it does not see what numpy and numba allocate.
    """
    with profile(profile_memory=True) as record:
        kept = call()
    events = record.profiler.kineto_results.events()  # type: ignore[union-attr]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    del kept
    return (peak - live) / 1e6


def parser(text: str | None, write: bool = False) -> argparse.ArgumentParser:
    """Return a parser of command lines with the options that several benchmarks share."""
    found = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if write:
        found.add_argument("--write", action="store_true", help="update the pages of docs/")
    return found
