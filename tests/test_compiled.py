"""When compiled loops take over, what is said while they compile, and their threads."""

import multiprocessing
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from sparsefam import TruncatedParabola
from sparsefam.attention.context import contexts
from sparsefam.bases import GaussianRBF
from sparsefam.numerics import compiled
from sparsefam.numerics.threads import map_threads, one_thread


def test_loops_take_over_after_enough_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_setting", "")
    monkeypatch.setattr(compiled, "_pairs_done", 0)
    monkeypatch.setattr(compiled, "LEAST_PAIRS", 100)
    assert [compiled.enough_work(n) for n in (60, 40, 1, 1)] == [False, False, True, True]
    monkeypatch.setattr(compiled, "_has_numba", lambda: False)
    assert not compiled.enough_work(1000)


@pytest.mark.parametrize(("setting", "expected"), [("0", False), ("1", True)])
def test_the_environment_decides(setting: str, expected: bool) -> None:
    code = "from sparsefam.numerics import compiled; print(compiled.enough_work(1))"
    environment = {**os.environ, "SPARSEFAM_COMPILE": setting}
    run = [sys.executable, "-c", code]
    result = subprocess.run(run, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == str(expected)


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)


@pytest.mark.usefixtures("two_threads")
def test_threads_work_at_once_and_in_order() -> None:
    barrier = threading.Barrier(2, timeout=10)  # broken if one waits for the other
    assert map_threads(lambda x: (barrier.wait() >= 0, x), range(4)) == [
        (True, x) for x in range(4)
    ]


def test_one_thread_while_any_function_needs_it() -> None:
    barrier, seen, before = threading.Barrier(2, timeout=10), [], torch.get_num_threads()
    torch.set_num_threads(2)

    @one_thread()
    def work(x: int) -> None:
        barrier.wait()  # both are inside
        with one_thread():
            seen.append(torch.get_num_threads())
        seen.append(torch.get_num_threads())
        raise ValueError

    worker = threading.Thread(target=pytest.raises, args=(ValueError, work, 0))
    worker.start()
    with pytest.raises(ValueError):
        work(1)
    worker.join()
    assert seen == [1] * 4 and torch.get_num_threads() == 2
    with ThreadPoolExecutor(1) as pool:  # a new thread has what was set last
        assert pool.submit(torch.get_num_threads).result() == 2
    torch.set_num_threads(before)


def _in_child() -> None:
    assert map_threads(abs, [-1, -2]) == [1, 2]


@pytest.mark.usefixtures("two_threads")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own() -> None:
    _in_child()
    child = multiprocessing.get_context("fork").Process(target=_in_child)
    child.start()
    child.join(30)
    alive = child.is_alive()
    child.kill()
    assert not alive
    assert child.exitcode == 0


# Plain contexts count their pairs once.
@pytest.mark.parametrize(("what", "times"), [("contexts", 1)])
def test_checkpoints_survive_the_take_over(
    what: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loops take over between the forward pass and its repetition by `torch.utils.checkpoint`."""
    basis = GaussianRBF.grid(8, 0.3)
    # One support is too far from all functions for the shared contour.
    loc = torch.cat([torch.linspace(0, 1, 299), torch.tensor([9.0])]).requires_grad_()
    coefficients = torch.ones(1, 8, 1, 2)

    def function(loc: torch.Tensor) -> torch.Tensor:
        p = TruncatedParabola(loc[None, None], 0.2)
        return p.expect(basis) if what == "expectations" else contexts(p, basis, coefficients)

    monkeypatch.setattr(compiled, "_setting", "0")
    (expected,) = torch.autograd.grad(function(loc).square().sum(), loc)
    monkeypatch.setattr(compiled, "_setting", "")
    monkeypatch.setattr(compiled, "_pairs_done", 0)
    monkeypatch.setattr(compiled, "LEAST_PAIRS", times * 300 * 8)
    value = checkpoint(function, loc, use_reentrant=False)
    assert not compiled.enough_work(0)
    (found,) = torch.autograd.grad(value.square().sum(), loc)
    assert compiled.enough_work(0)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
