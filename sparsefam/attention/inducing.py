"""Inducing points in a box, and the kernel and the base density that go with them."""

from functools import cache

import numpy as np
import torch
from pyro.contrib.gp.kernels import RBF
from torch import Size, Tensor
from torch.distributions import Distribution, Uniform

from ..kernels import Kernel
from ..numerics.quadrature import constant
from ..numerics.validation import is_count
from .arguments import Box

__all__ = ["ends", "gaussian", "locations", "uniform"]

# The default kernel's length scale, times the distance between inducing points.
_LENGTH = 2.0


def locations(given: Tensor | int, box: Box) -> Tensor:
    """Inducing points (I,) or (I, D), on a grid with points on the edges if only I is given.

    Raises:
        ValueError: Another shape, points outside the box, or a number that is no positive integer
            to the power D.
    """
    ndim = len(box)
    if isinstance(given, Tensor):
        return _checked(given, box)
    count = round(given ** (1 / ndim)) if is_count(given) else 0
    if not count or count**ndim != given:
        raise ValueError(
            f"inducing_points must be a tensor, or a positive integer to the power ndim={ndim}, "
            f"got {given!r}"
        )
    sides = [(low if count > 1 else (low + high) / 2, high) for low, high in box]
    return torch.cartesian_prod(
        *(torch.linspace(*side, count, dtype=torch.float64) for side in sides)
    )


def _checked(points: Tensor, box: Box) -> Tensor:
    ndim = len(box)
    shapes = [Size([len(points), ndim])] if points.dim() else []
    if ndim == 1 and points.dim():
        shapes.append(Size([len(points)]))
    if not points.numel() or points.shape not in shapes or not points.is_floating_point():
        raise ValueError(
            f"inducing_points must be floating of shape (I, {ndim}){' or (I,)' * (ndim == 1)}, "
            f"got {points.dtype} of shape {tuple(points.shape)}"
        )
    low, high = ends(box, points)
    rows = points.reshape(-1, ndim)
    if not ((rows >= low) & (rows <= high)).all():
        raise ValueError(f"inducing_points must be in the domain {box}, got {points}")
    return points.detach()


@cache
def _kept(box: Box, dtype: torch.dtype, device: torch.device) -> Tensor:
    return constant(np.array(box).T, dtype, device)


def ends(box: Box, like: Tensor) -> tuple[Tensor, Tensor]:
    """The ends of the domain (D,), rounded like inducing points."""
    if torch.compiler.is_compiling():
        low, high = like.new_tensor(box).T.unbind()
    else:
        low, high = _kept(box, like.dtype, like.device).unbind()
    return low, high


def gaussian(count: int, box: Box) -> Kernel:
    """A Gaussian kernel as wide as two steps between `count` inducing points, constant."""
    steps = max(round(count ** (1 / len(box))) - 1, 1)
    lengths = torch.tensor([_LENGTH * (high - low) / steps for low, high in box])
    kernel: Kernel = RBF(len(box), lengthscale=lengths.squeeze()).requires_grad_(False)
    return kernel


def uniform(low: Tensor, high: Tensor) -> Distribution | list[Distribution]:
    """The uniform density between ends (D,)."""
    sides: list[Distribution] = [
        Uniform(*ends, validate_args=False) for ends in zip(low, high, strict=True)
    ]
    return sides[0] if len(sides) == 1 else sides
