"""Run functions in several processes, as the ranks of one group."""

import multiprocessing
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

Result = TypeVar("Result")


def on_ranks(count: int, work: Callable[[int], Result]) -> list[Result]:
    """Run `work` in one process for each rank, with gloo, and return the results by rank.

    The processes are forked from a server that has only imported the package: a fork of a process
    whose autograd has run cannot differentiate.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sparsefam", "torch.distributed.fsdp"])
    with tempfile.TemporaryDirectory() as folder:
        run = partial(_as_rank, work, count, str(Path(folder) / "store"))
        with ProcessPoolExecutor(count, mp_context=context) as pool:
            tasks = [pool.submit(run, rank) for rank in range(count)]
            # The first failure is the cause of the others.
            for task in as_completed(tasks):
                task.result()
            return [task.result() for task in tasks]


def _as_rank(work: Callable[[int], Result], count: int, store: str, rank: int) -> Result:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
    try:
        return work(rank)
    finally:
        dist.destroy_process_group()
