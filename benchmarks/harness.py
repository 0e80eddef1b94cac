"""Timing, memory and tables for all benchmarks.

Everything that is timed is a case of `benchmarks.cases` that runs in a `Worker`, a process with its
own number of threads and its own checkout of the package, so that no method shares caches or memory
with another. Workers take turns, so that other work on the machine affects all of them alike.
"""

import argparse
import contextlib
import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from benchmarks.allocation import allocated_megabytes

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
# A name in `benchmarks.cases.CASES` and keyword arguments.
Case = tuple[str, Mapping[str, Any]]
# A visit to a worker takes about this many seconds. The pause lets spinning threads go to sleep.
_VISIT, _PAUSE = 0.2, 0.02


class Worker:
    """A process that runs cases.

    Args:
        threads: Number of threads, by `OMP_NUM_THREADS` and `torch.set_num_threads`.
        checkout: Folder whose `sparsefam` is imported; this repository's if None. The cases are
            always those of this repository.
    """

    def __init__(self, threads: int = 1, checkout: Path | None = None) -> None:
        # The package comes from the checkout, `benchmarks` from here.
        code = (
            f"import sys; sys.path[0] = {str(checkout or ROOT)!r}; import sparsefam; "
            f"sys.path[0] = {str(ROOT)!r}; from benchmarks.harness import _serve; _serve({threads})"
        )
        # Releases before 0.13 compile loops: at the first call, so that the steady state is timed.
        environment = {"SPARSEFAM_COMPILE": "1", **os.environ, "OMP_NUM_THREADS": str(threads)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def load(self, case: Case) -> "Worker":
        """Take a case from now on and call it, which compiles loops."""
        self._ask("load", case)
        (self._first,) = self._ask("seconds", 1)
        return self

    def visit(self) -> list[float]:
        """Return the wall times of as many calls as fill a visit."""
        return self._ask("seconds", max(1, min(200, round(_VISIT / self._first))))

    def megabytes(self) -> float:
        """Return the most that torch allocates at once during a call."""
        return self._ask("megabytes", None)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def _ask(self, *request: Any) -> Any:
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(request), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of {request} ended, see its message above")
        return json.loads(line)


def _serve(threads: int) -> None:
    """Answer the requests of a `Worker` until the input ends."""
    from .cases import CASES

    torch.set_num_threads(threads)
    answers, sys.stdout = sys.stdout, sys.stderr  # what a call prints is not an answer
    call: Callable[[], object] = lambda: None  # noqa: E731
    for line in sys.stdin:
        request, value = json.loads(line)
        answer: Any = None
        if request == "load":
            name, settings = value
            call = CASES[name](**settings)
            call()
        elif request == "seconds":
            answer = [_timed(call) for _ in range(value)]
        else:
            answer = allocated_megabytes(call)
        print(json.dumps(answer), file=answers, flush=True)


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def alternate(
    workers: Mapping[str, Worker], budget: float = 1.0, rounds: int = 3
) -> dict[str, list[float]]:
    """Return the median wall time of a call of each worker in each round, visited in turn.

    Args:
        workers: The workers by name.
        budget: Seconds for each worker after which no new round begins.
        rounds: The smallest number of rounds.
    """
    seconds: dict[str, list[float]] = {name: [] for name in workers}
    end = time.perf_counter() + budget * len(workers)
    while min(map(len, seconds.values())) < rounds or time.perf_counter() < end:
        for name, worker in workers.items():
            time.sleep(_PAUSE)
            seconds[name].append(statistics.median(worker.visit()))
    return seconds


class Cost(NamedTuple):
    """Median seconds of a call, and the megabytes that torch allocates at its peak."""

    seconds: float
    megabytes: float


def costs(rows: Sequence[Mapping[str, Case]], threads: int) -> list[dict[str, Cost]]:
    """Measure the cases of each row; the cases of a name share a process."""
    out = []
    with contextlib.ExitStack() as stack:
        names = dict.fromkeys(name for row in rows for name in row)
        workers = {name: stack.enter_context(Worker(threads)) for name in names}
        for row in rows:
            seconds = alternate({name: workers[name].load(case) for name, case in row.items()})
            medians = {name: statistics.median(x) for name, x in seconds.items()}
            out.append({k: Cost(x, workers[k].megabytes()) for k, x in medians.items()})
    return out


def ratio(seconds: Sequence[float], others: Sequence[float]) -> float:
    """Return the median of the ratios round by round."""
    return statistics.median(a / b for a, b in zip(seconds, others, strict=True))


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """Keep another process busy, on one core."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


def each_in_processes(
    function: Callable[[Any], Any], items: Sequence[Any], jobs: int
) -> Iterator[Any]:
    """Yield a function of each item, by processes of one thread each, or here if `jobs` is 1.

    A terminal shows progress.
    The processes are spawned, since forked ones would share the locks of torch's threads.
    """
    if jobs == 1:
        yield from map(function, tqdm(items, disable=None))
        return
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    os.environ.update(dict.fromkeys(names, "1"))
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        yield from tqdm(pool.map(function, items), total=len(items), disable=None)


def in_processes(function: Callable[[Any], Any], items: Sequence[Any], jobs: int) -> list[Any]:
    """Return the list of what `each_in_processes` yields."""
    return list(each_in_processes(function, items, jobs))


def relative_error(result: Tensor, expected: Tensor) -> Tensor:
    """Return the relative error in the 2-norm over the last axis; infinite where it is NaN."""
    error: Tensor = (result.double() - expected).norm(dim=-1) / expected.norm(dim=-1)
    return torch.where(error.isnan(), math.inf, error)


class Table(NamedTuple):
    """Rows of text under a header and a title; the first column names the row.

    `failures` says which limits are exceeded.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    failures: Sequence[str] = ()

    def markdown(self) -> str:
        """Return the table as Markdown."""
        lines = [self.header, [":--", *["--:"] * (len(self.header) - 1)], *self.rows]
        return f"{self.title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def show(self) -> None:
        """Print the table with aligned columns."""
        print(f"\n{self.title}\n")
        widths = [max(map(len, column)) for column in zip(self.header, *self.rows, strict=True)]
        for first, *rest in (self.header, *self.rows):
            cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
            print("  ".join([first.ljust(widths[0]), *cells]).rstrip(), flush=True)


def show_and_write(
    section: str,
    command: str,
    tables: Sequence[Table],
    write: bool,
    page: str = "benchmarks.md",
) -> None:
    """Print tables and, if asked, put them between the two marks of a section in docs/.

    Raises:
        ValueError: The page does not have exactly one such section.
    """
    for table in tables:
        table.show()
    if not write:
        return
    path = DOCS / page
    machine = (
        f"`{command}`, one run on a {os.cpu_count()}-core machine, torch "
        f"{torch.__version__.split('+')[0]} CPU, {date.today().isoformat()}."
    )
    begin, end = f"<!-- {section}: made by {command} -->", f"<!-- {section}: end -->"
    body = "\n\n".join([begin, *(table.markdown() for table in tables), machine, end])
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.S)
    text, count = pattern.subn(lambda _: body, path.read_text(encoding="utf-8"))
    if count != 1:
        raise ValueError(f"{page} must have one section {begin} ... {end}, got {count}")
    path.write_text(text, encoding="utf-8")


def parser(text: str | None, write: bool = False, only: bool = False) -> argparse.ArgumentParser:
    """Return a parser of command lines with the options that several benchmarks share."""
    options = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if write:
        options.add_argument("--write", action="store_true", help="update the pages of docs/")
    if only:
        text = "rows whose name contains one of these"
        options.add_argument("--only", nargs="+", metavar="TEXT", default=[""], help=text)
    return options


def run(
    name: str,
    sections: Mapping[str, Callable[[], Sequence[Table]]],
    write: bool,
    page: str = "benchmarks.md",
) -> int:
    """Make the tables of each section of a page; return 1 if a limit is exceeded.

    Args:
        name: The module of the command.
        sections: What makes the tables, by the section's name.
        write: Whether to update the page.
        page: In docs/.
    """
    failures: list[str] = []
    for section, make in sections.items():
        tables = make()
        show_and_write(section, f"python -m benchmarks.{name} --write", tables, write, page)
        failures += [failure for table in tables for failure in table.failures]
    for failure in failures:
        print(f"limit exceeded: {failure}")
    return int(bool(failures))
