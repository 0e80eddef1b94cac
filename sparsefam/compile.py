"""Compile the loops of large workloads: `python -m sparsefam.compile`.

numba keeps compiled code in `__pycache__` beside the modules or, if that is read-only, in the
user's cache directory; the environment variable NUMBA_CACHE_DIR names another folder. If you run
this once, after installing or while building a container, no later process has to compile.
"""

import time

import torch

from .attention.context import contexts
from .bases import GaussianRBF
from .distributions import TruncatedParabola, TruncatedParaboloid
from .numerics import compiled

__all__ = ["main"]


def main() -> None:
    """Compile all loops, or load them from the cache, and print how long that took.

    Raises:
        RuntimeError: numba is missing, or SPARSEFAM_COMPILE=0 switches compiling off.
    """
    if not compiled.enough_work(2 * compiled.LEAST_PAIRS):
        raise RuntimeError("there is nothing to compile: numba is missing, or SPARSEFAM_COMPILE=0")
    start = time.perf_counter()
    print("Compiling, about 15 s the first time ...", flush=True)
    loc = torch.zeros(1, 1, 512, requires_grad=True)
    basis = GaussianRBF.grid(2, 1.0)
    contexts(TruncatedParabola(loc, 0.5), basis, torch.ones(1, 2, 1, 1)).sum().backward()
    TruncatedParabola(loc, 0.5).expect(basis).sum().backward()
    plane = TruncatedParaboloid(torch.zeros(1, 2), torch.eye(2))
    plane.expect(GaussianRBF.grid(4, 1.0, ndim=2))
    print(f"Compiled loops are ready after {time.perf_counter() - start:.1f} s.")


if __name__ == "__main__":
    main()
