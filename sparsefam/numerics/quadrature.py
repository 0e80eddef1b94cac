"""Gauss rules, cached per order, dtype and device; nodes come from scipy."""

from functools import cache

import numpy as np
import scipy  # loads its submodules lazily, which keeps `import sparsefam` quick
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["constant", "gauss_legendre", "smooth_unit_rule"]


def constant(numbers: NDArray[np.float64], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a tensor that may be cached, independent of the active mode or transform.

    Made under inference mode it could never enter an autograd graph later, and made inside a
    transform of torch.func it would stay that transform's own.
    """
    with torch.inference_mode(False), torch._C._DisableFuncTorch():
        return torch.tensor(numbers, dtype=dtype, device=device)


@cache
def _cached(order: int, smooth: bool, dtype: torch.dtype, device: torch.device) -> Tensor:
    x, w = scipy.special.roots_legendre(order)
    if smooth:
        y, w = (x + 1) / 2, w / 2
        x, w = y**3 * (10 + y * (6 * y - 15)), 30 * w * (y * (1 - y)) ** 2
        x = np.minimum(x, 1 - torch.finfo(dtype).eps)
    return constant(np.stack([x, w]), dtype, device)


@torch.library.custom_op("sparsefam::gauss_rule", mutates_args=())
def _opaque(order: int, smooth: bool, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the rule by one custom operator, as a compiled graph cannot trace into scipy."""
    return _cached(order, smooth, dtype, device).clone()


@_opaque.register_fake
def _(order: int, smooth: bool, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(2, order, dtype=dtype, device=device)


def _rule(order: int, smooth: bool, like: Tensor) -> tuple[Tensor, Tensor]:
    find = _opaque if torch.compiler.is_compiling() else _cached
    nodes, weights = find(order, smooth, like.dtype, like.device).unbind()
    return nodes, weights


def gauss_legendre(order: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights (order,) on [-1, 1], exact to degree 2 order - 1."""
    return _rule(order, False, like)


def smooth_unit_rule(order: int, like: Tensor) -> tuple[Tensor, Tensor]:
    r"""Nodes and weights (order,) on [0, 1) that tolerate $|x|^m$ behaviour at both ends.

    Gauss-Legendre after $x = y^3(10 - 15y + 6y^2)$, which turns an endpoint power $m$ into
    $3m + 2$ and so restores fast convergence where a sparse density meets its edge.
    """
    return _rule(order, True, like)
