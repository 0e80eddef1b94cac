"""Draws from a fitted density, as scikit-learn has them."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from ..distributions import SparseDistribution
from .arguments import count

__all__ = ["Floats", "drawn"]

Floats = NDArray[np.float64]


def drawn(density: SparseDistribution, n_samples: int, random_state: Any) -> Floats:
    """Draws (n_samples, D), which leave torch's own random numbers alone.

    Raises:
        ValueError: A number of draws that is not one.
    """
    size = count("n_samples", n_samples)
    seed = check_random_state(random_state).randint(2**31 - 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        draws = density.sample((size,))
    found: Floats = draws.reshape(size, *(density.event_shape or (1,))).numpy()
    return found
