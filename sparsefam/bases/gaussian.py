"""Gaussian radial basis functions."""

import math
from typing import cast

import torch
from torch import Size, Tensor

from ..numerics.arguments import cholesky_factor, require, require_integer
from ..numerics.smoothing import unseen
from .arguments import (
    Values,
    check_locations,
    check_rows,
    common_dtype,
    floating,
    store,
)
from .base import Basis

__all__ = ["GaussianRBF"]

_SQRT_TWO_PI = math.sqrt(2 * math.pi)
# Where an infinite location is put by the functions of full covariance: products of two stay finite
# in float64.
_FAR = 1e100


class GaussianRBF(Basis):
    r"""Gaussian radial basis functions, each a normalised density.

    $$\psi_j(t) = \mathcal N(t; \mu_j, s_j^2 I) \quad\text{or}\quad
        \psi_j(t) = \mathcal N(t; \mu_j, \Sigma_j)$$

    Args:
        centers: Centers $\mu_j$, shape (N,), or (N, D) for locations of D coordinates.
        widths: Standard deviations $s_j > 0$: one for all, or shape (N,).
        covariance: For centers (N, D) instead of widths, the covariance matrices $\Sigma_j$: one
            for all, (D, D), or shape (N, D, D).

    An `nn.Parameter` stays a parameter and is learned; anything else becomes a buffer. Only the
    initial values are checked: keep learned widths positive, and learned covariances positive
    definite, with `torch.nn.utils.parametrize`. A covariance that ceases to be gives NaN.

    Attributes:
        centers: The centers.
        widths: The widths, or None.
        covariance: The covariance matrices, or None.

    Raises:
        ValueError: If a center is not finite, a width not finite and positive, a covariance matrix
            not symmetric and positive definite, a shape wrong, or if there are both widths and a
            covariance, or neither.

    References:
        Martins et al. (2020), Sparse and Continuous Attention, section 3. arXiv:2006.07214

    Examples:
        >>> GaussianRBF([0.0, 1.0], 0.5)(torch.tensor(0.0))
        tensor([0.7979, 0.1080])
        >>> GaussianRBF([[0.0, 0.0], [1.0, 1.0]], 0.5)(torch.zeros(2))
        tensor([0.6366, 0.0117])
    """

    centers: Tensor
    widths: Tensor | None
    covariance: Tensor | None

    def __init__(
        self, centers: Values, widths: Values | None = None, covariance: Values | None = None
    ) -> None:
        super().__init__()
        if (widths is None) == (covariance is None):
            given = "neither" if widths is None else "both"
            raise ValueError(f"give either widths or covariance, got {given}")
        dtype = common_dtype(centers, widths, covariance)
        centers = floating("centers", centers, dtype)
        check_rows("centers", centers)
        store(self, "centers", centers)
        for name, values, check in (
            ("widths", widths, _check_widths),
            ("covariance", covariance, _check_covariance),
        ):
            value = None if values is None else check(floating(name, values, dtype), centers)
            store(self, name, value)

    @classmethod
    def grid(
        cls,
        n: int,
        widths: Values,
        ndim: int = 1,
        low: float = 0.0,
        high: float = 1.0,
    ) -> "GaussianRBF":
        """Spreads n functions evenly: every width gets the same centers, from low to high.

        Args:
            n: Number of functions in all: a number of centers for each axis, to the power `ndim`,
                times the number of widths.
            widths: One width, or several: the first n / len(widths) functions have the first.
            ndim: Number of coordinates of a location; 1 for numbers.
            low: First center, on every axis.
            high: Last center. A single center per width and axis is put in the middle.

        Returns:
            The basis; the last coordinate of the centers changes fastest.

        Raises:
            ValueError: If no whole number of centers per axis gives n, ndim is not positive, or low
                is not below high.
        """
        require_integer("ndim", ndim, 1)
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"low must be below high, both finite, got low={low}, high={high}")
        each = floating("widths", widths, common_dtype(widths)).reshape(-1)
        count = round((n / max(len(each), 1)) ** (1 / ndim)) if n > 0 else 0
        if not count or count**ndim * len(each) != n:
            raise ValueError(
                f"n must be a positive integer to the power ndim={ndim} times "
                f"len(widths)={len(each)}, got {n}"
            )
        first = low if count > 1 else (low + high) / 2
        axis = torch.linspace(first, high, count, dtype=each.dtype, device=each.device)
        centers = torch.cartesian_prod(*[axis] * ndim)
        repeats = (len(each), *(1,) * (ndim > 1))
        return cls(centers.repeat(repeats), each.repeat_interleave(len(centers)))

    def __len__(self) -> int:
        return len(self.centers)

    @property
    def event_shape(self) -> Size:
        return self.centers.shape[1:]

    @property
    def reach(self) -> tuple[Tensor, Tensor] | None:
        if self.event_shape or self.widths is None:
            return None
        far = unseen(self.centers) * self.widths
        return self.centers - far, self.centers + far

    def forward(self, t: Tensor) -> Tensor:
        check_locations(t, self.event_shape)
        return self.own(t.unsqueeze(t.ndim - len(self.event_shape)))

    def own(self, t: Tensor) -> Tensor:
        check_locations(t, self.event_shape)
        if self.widths is None:
            return _full(t, self.centers, cast(Tensor, self.covariance))
        return _isotropic(t, self.centers, self.widths)


def _isotropic(t: Tensor, centers: Tensor, widths: Tensor) -> Tensor:
    """Densities with one width on every axis."""
    if centers.ndim == 1:
        return torch.exp(-0.5 * ((t - centers) / widths).square()) / (widths * _SQRT_TWO_PI)
    square = ((t - centers) / widths.unsqueeze(-1)).square().mean(-1)
    # The power last: that of a width alone may leave float32's range in many dimensions.
    return (torch.exp(-0.5 * square) / (widths * _SQRT_TWO_PI)) ** centers.shape[-1]


def _full(t: Tensor, centers: Tensor, covariance: Tensor) -> Tensor:
    """Densities with a covariance matrix, in float64 inside.

    A factor of condition number 1e3 amplifies the rounding of `t - centers` as much.
    """
    dtype = torch.promote_types(t.dtype, centers.dtype)
    factor, failed = torch.linalg.cholesky_ex(covariance.double())
    factor = factor.masked_fill((failed > 0)[..., None, None], math.nan)
    offset = (t.double() - centers.double()).clamp(-_FAR, _FAR)
    # All locations are right-hand sides of one system per function.
    columns = offset.reshape(-1, *centers.shape).movedim(0, -1)
    z = torch.linalg.solve_triangular(factor, columns, upper=False)
    log_peak = -(factor.diagonal(dim1=-2, dim2=-1) * _SQRT_TWO_PI).log().sum(-1)
    values = torch.exp(log_peak.unsqueeze(-1) - 0.5 * z.square().sum(-2))
    return values.mT.reshape(offset.shape[:-1]).to(dtype)


def _check_widths(widths: Tensor, centers: Tensor) -> Tensor:
    require(widths.isfinite() & (widths > 0), "widths", "finite and positive", widths)
    if widths.shape not in (torch.Size(), centers.shape[:1]):
        shape = tuple(widths.shape)
        raise ValueError(f"widths must be one number or ({len(centers)},), got shape {shape}")
    return widths


def _check_covariance(covariance: Tensor, centers: Tensor) -> Tensor:
    if centers.ndim != 2:
        shape = tuple(centers.shape)
        raise ValueError(f"centers must have shape (N, D) with a covariance, got shape {shape}")
    n, d = centers.shape
    if covariance.shape not in ((d, d), (n, d, d)):
        shape = tuple(covariance.shape)
        raise ValueError(f"covariance must have shape {(d, d)} or {(n, d, d)}, got shape {shape}")
    cholesky_factor("covariance", covariance.detach())
    return covariance
