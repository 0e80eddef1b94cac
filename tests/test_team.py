"""Loops on the threads that torch runs on."""

import multiprocessing
import os
import threading
import time

import pytest
import torch

from sparsefam.numerics import team
from sparsefam.numerics.team import by_threads

PARTS = list(range(40))


def squares() -> list[int]:
    return by_threads(lambda part: part * part, PARTS, 3)


@pytest.fixture(params=[True, False], ids=["openmp", "pool"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if not request.param:
        monkeypatch.setattr(team, "_in_openmp", lambda: None)
    elif team._in_openmp() is None:
        pytest.skip("torch has no GNU OpenMP here")
    return bool(request.param)


@pytest.mark.usefixtures("threads")
def test_parts_are_done_once_and_in_order() -> None:
    done: list[int] = []
    assert by_threads(lambda part: done.append(part) or part * part, PARTS, 3) == [
        part * part for part in PARTS
    ]
    assert sorted(done) == PARTS


@pytest.mark.usefixtures("threads")
def test_parts_are_done_at_once() -> None:
    """Each waits for the other, which one thread could not."""
    both = threading.Barrier(2, timeout=20)
    assert sorted(by_threads(lambda _: both.wait(), [0, 1], 2)) == [0, 1]


@pytest.mark.usefixtures("threads")
def test_errors_are_raised_here() -> None:
    def work(part: int) -> int:
        if part == 7:
            raise KeyError(part)
        return part

    with pytest.raises(KeyError, match="7"):
        by_threads(work, PARTS, 3)
    assert squares()[3] == 9


def _in_child(answer: "multiprocessing.Queue[list[int]]") -> None:
    answer.put(squares())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_forks_do_not_wait_for_threads_that_are_gone() -> None:
    large = torch.rand(600, 600)
    large @ large
    assert len(squares()) == len(PARTS)
    context = multiprocessing.get_context("fork")
    answer: multiprocessing.Queue[list[int]] = context.Queue()
    child = context.Process(target=_in_child, args=(answer,))
    child.start()
    assert answer.get(timeout=20) == [part * part for part in PARTS]
    child.join(20)
    assert child.exitcode == 0


def test_the_same_threads_serve_again() -> None:
    """As torch's do; those of a pool would be others each time."""
    if team._in_openmp() is None:
        pytest.skip("torch has no GNU OpenMP here")
    before = {thread.ident for thread in threading.enumerate()}
    seen: set[int] = set()

    def work(_: int) -> None:
        seen.add(threading.get_ident())
        time.sleep(0.001)

    for _ in range(3):
        by_threads(work, PARTS, 2)
    assert len(seen) == 2
    assert threading.get_ident() in seen
    assert len(seen & before) == 1
