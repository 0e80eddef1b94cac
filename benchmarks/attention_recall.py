"""What N basis functions lose: how well one value of a sequence is recalled."""

import math

import torch
from torch import Tensor

import sparsefam as sf
from sparsefam.attention import RidgeRegression
from sparsefam.bases import GaussianRBF

__all__ = ["discrete_recall", "recall_error", "signal", "sparse_recall"]

_FUNCTIONS, _CHANNELS, _KEY = 128, 32, 64
# So sharp that nearly all of softmax's weight is on the key that is asked for.
_SHARPNESS = 8.0


def signal(length: int, waves: int | None) -> Tensor:
    """Values (1, length, channels): sums of so many waves over the sequence, or noise."""
    draw = torch.Generator().manual_seed(0)
    if waves is None:
        return torch.randn(1, length, _CHANNELS, generator=draw)
    angles = math.pi * _places(length).unsqueeze(-1) * torch.arange(1, waves + 1)
    found = angles.cos() @ torch.randn(waves, _CHANNELS, generator=draw)
    return (found / found.std()).unsqueeze(0)


def sparse_recall(values: Tensor) -> Tensor:
    """Each value read back by a density on its own place, as narrow as the distance of two."""
    length = values.shape[1]
    basis = GaussianRBF.grid(_FUNCTIONS, 1.5 / _FUNCTIONS)
    function = RidgeRegression(basis, 1e-2).fit(_places(length), values)
    density = sf.TruncatedParabola(_places(length).unsqueeze(0), 1 / length)
    return function.expect(density)


def discrete_recall(values: Tensor) -> Tensor:
    """Each value read back by softmax, queries being the values' random keys."""
    draw = torch.Generator().manual_seed(1)
    keys = torch.randn(1, values.shape[1], _KEY, generator=draw)
    keys = keys * math.sqrt(_KEY) / keys.norm(dim=-1, keepdim=True)
    return torch.nn.functional.scaled_dot_product_attention(_SHARPNESS * keys, keys, values)


def recall_error(found: Tensor, values: Tensor) -> float:
    """Root mean square, relative to that of the values."""
    return float((found - values).norm() / values.norm())


def _places(length: int) -> Tensor:
    return (torch.arange(length) + 0.5) / length
