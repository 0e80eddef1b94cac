"""How much memory a method for kernel families needs at its peak."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

from .kernel_workload import METHODS, KernelDensity, kernel_workload
from .memory import resident_megabytes

__all__ = ["kernel_megabytes"]


def kernel_megabytes(density: KernelDensity, method: str, threads: int) -> float:
    """As `memory.peak_megabytes`: of one call in a fresh process, above that of a tiny call."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_measure, density, method, threads).result()


def _measure(density: KernelDensity, method: str, threads: int) -> float:
    torch.set_num_threads(threads)
    work, tiny = kernel_workload(), kernel_workload(batch=1, heads=2)
    METHODS[method](density, tiny)
    before = resident_megabytes()
    METHODS[method](density, work)
    return resident_megabytes() - before
