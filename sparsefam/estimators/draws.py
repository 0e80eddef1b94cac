"""Draws from a fitted density, as scikit-learn has them."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from ..distributions import SparseDistribution

__all__ = ["Floats", "drawn"]

Floats = NDArray[np.float64]


def drawn(density: SparseDistribution, count: int, random_state: Any) -> Floats:
    """Draws (count, D), which leave torch's own random numbers alone."""
    seed = check_random_state(random_state).randint(2**31 - 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        draws = density.sample((count,))
    found: Floats = draws.reshape(count, -1).numpy()
    return found
