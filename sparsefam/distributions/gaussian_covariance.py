"""Covariances of Gaussian functions of vectors under an elliptical density, in float64."""

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..bases import Basis, Fourier, GaussianRBF, Product
from ..numerics.ball import gaussians_under_ball, gaussians_under_normal
from ..numerics.validation import require
from ..numerics.wide import mixture, tilted, wide_gaussians
from .beta_gaussian import PowerLaw

if TYPE_CHECKING:
    from .elliptical import EllipticalDistribution

__all__ = [
    "Gaussians",
    "expected_gaussians",
    "gaussian_covariance",
    "gaussians_of",
    "waves_of_gaussians",
]


# What a difference of expectations loses, and what share of the covariance that may be.
_ROUNDING = 1e-14
_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-8}


class Gaussians(NamedTuple):
    """Normalised Gaussian functions of vectors.

    Attributes:
        centers: (N, D).
        spread: Standard deviations (N,) or covariances (N, D, D).
    """

    centers: Tensor
    spread: Tensor


def gaussians_of(basis: Basis, like: Tensor | None = None) -> Gaussians | None:
    """The Gaussian functions that a basis consists of, if it does; in the dtype of a tensor."""
    found = _parameters(basis)
    return found if found is None or like is None else Gaussians(*(x.to(like) for x in found))


def _parameters(basis: Basis) -> Gaussians | None:
    if isinstance(basis, Product):
        factors = [f for f in basis.bases if isinstance(f, GaussianRBF) and f.widths is not None]
        if len(factors) < len(basis.bases):
            return None
        # A product of Gaussian functions is one of diagonal covariance.
        widths = [f.widths.expand_as(f.centers) for f in factors if f.widths is not None]
        spread = _combinations(widths).square().diag_embed()
        return Gaussians(_combinations([f.centers for f in factors]), spread)
    if not isinstance(basis, GaussianRBF) or not basis.event_shape:
        return None
    if basis.covariance is None:
        return Gaussians(basis.centers, torch.as_tensor(basis.widths).expand(len(basis)))
    return Gaussians(basis.centers, basis.covariance.expand(len(basis), -1, -1))


def _combinations(columns: list[Tensor]) -> Tensor:
    """One entry of each column in every way, (N, D), the last column's changing fastest."""
    return torch.stack(torch.meshgrid(*columns, indexing="ij"), -1).flatten(0, -2)


def expected_gaussians(p: "EllipticalDistribution", hills: Gaussians) -> Tensor:
    """Expectations (*batch, N)."""
    if not isinstance(p, PowerLaw):
        return gaussians_under_normal(p.loc, p.scale_tril, *hills)
    exponent = p._exponent if p._fixed_exponent is None else p._fixed_exponent
    return gaussians_under_ball(p.loc, p.scale_tril, *hills, exponent)


def gaussian_covariance(
    p: "EllipticalDistribution", first: Gaussians, second: Gaussians, dtype: torch.dtype
) -> Tensor:
    r"""Covariances (*batch, M, N) from products, or without a difference where both are wide.

    $$N(t; a, S)\,N(t; b, T) = N(a; b, S + T)\,N(t; a + S (S + T)^{-1} (b - a), S (S + T)^{-1} T)$$

    Raises:
        ValueError: Functions of which one is much narrower than the density and the other so much
            wider that the difference loses the digits of this dtype.
    """
    height, products = _products(first, second)
    joint = height * expected_gaussians(p, products).unflatten(-1, height.shape)
    means = [expected_gaussians(p, hills) for hills in (first, second)]
    apart = means[0].unsqueeze(-1) * means[1].unsqueeze(-2)
    exponent = p._exponent if isinstance(p, PowerLaw) else None
    law = mixture(exponent, p.loc.shape[-1], p.alpha)
    one, two = (tilted(p.loc, p.scale_tril, *hills, law) for hills in (first, second))
    wide = one.wide.unsqueeze(-1) & two.wide.unsqueeze(-2)
    found = torch.where(wide, wide_gaussians(one, two, law), joint - apart)
    if p._validate_args:
        lost = _ROUNDING * torch.where(wide, 0.0, joint + apart).detach()
        error, size = (torch.linalg.matrix_norm(x.detach()) for x in (lost, found))
        rule = "of more similar widths, or both wide against the density"
        require(
            error <= _TOLERANCE[dtype] * size,
            "phi and psi",
            rule,
            f"a relative error of {error / size}",
        )
    return found


def _products(first: Gaussians, second: Gaussians) -> tuple[Tensor, Gaussians]:
    """Products of all pairs: what multiplies them (M, N), and Gaussian functions (M N)."""
    dim = first.centers.shape[-1]
    gaps = second.centers - first.centers.unsqueeze(1)
    if first.spread.dim() == second.spread.dim() == 1:
        sides = first.spread.unsqueeze(1), second.spread
        total = torch.hypot(*sides)
        share = (sides[0] / total).square().unsqueeze(-1)
        log_height = -0.5 * (gaps / total.unsqueeze(-1)).square().sum(-1) - dim * total.log()
        moved, spread = share * gaps, sides[0] / total * sides[1]
    else:
        left, right = (_matrices(hills.spread, dim) for hills in (first, second))
        factor = torch.linalg.cholesky_ex(left.unsqueeze(1) + right)[0]
        left, right = left.unsqueeze(1).expand_as(factor), right.expand_as(factor)
        sides, others, y = (
            torch.linalg.solve_triangular(factor, x, upper=False)
            for x in (left, right, gaps.unsqueeze(-1))
        )
        log_height = -0.5 * y.square().sum((-2, -1))
        log_height = log_height - factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        moved, spread = (sides.mT @ y).squeeze(-1), sides.mT @ others
        spread = (0.5 * (spread + spread.mT)).flatten(0, 1)
    centers = (first.centers.unsqueeze(1) + moved).flatten(0, 1)
    height = torch.exp(log_height - 0.5 * dim * math.log(2 * math.pi))
    return height, Gaussians(centers, spread.flatten() if spread.dim() == 2 else spread)


def _matrices(spread: Tensor, dim: int) -> Tensor:
    if spread.dim() > 1:
        return spread
    return spread.square().unsqueeze(-1).expand(*spread.shape, dim).diag_embed()


def waves_of_gaussians(p: "EllipticalDistribution", waves: Fourier, hills: Gaussians) -> Tensor:
    r"""Covariances (*batch, 2 K, N) of waves and Gaussian functions under a normal density.

    The normal density times a Gaussian is one of mean $\mu + A (A + S)^{-1} (c - \mu)$ and
    covariance $A - A (A + S)^{-1} A$, whose waves are compared with those of the density.
    """
    centers, spread = hills
    frequencies = waves.frequencies.to(p.loc)
    spread, ball = _matrices(spread, p.loc.shape[-1]), p.scale_tril @ p.scale_tril.mT
    factor = torch.linalg.cholesky_ex(spread + ball.unsqueeze(-3))[0]
    gaps, sides = (centers - p.loc.unsqueeze(-2)).unsqueeze(-1), ball @ frequencies.mT
    y = torch.linalg.solve_triangular(factor, gaps, upper=False)
    z = torch.linalg.solve_triangular(
        factor, sides.unsqueeze(-3).expand(*factor.shape[:-1], -1), upper=False
    )
    # Both (*batch, K, N): by how much the wave turns more, and is damped less.
    turn, gain = (z.mT @ y).squeeze(-1).mT, 0.5 * z.square().sum(-2).mT
    angle = (frequencies @ p.loc.unsqueeze(-1)).squeeze(-1).unsqueeze(-1)
    size = torch.exp(-0.5 * (frequencies @ p.scale_tril).square().sum(-1)).unsqueeze(-1)
    # exp(gain) cos(angle + turn) - cos(angle), and so for the sine.
    half = 2 * torch.sin(0.5 * turn)
    middle = angle + 0.5 * turn
    change = [-half * middle.sin(), half * middle.cos()]
    more = torch.expm1(gain)
    rows = [
        size * (more * wave + moved)
        for wave, moved in zip(((angle + turn).cos(), (angle + turn).sin()), change, strict=True)
    ]
    return torch.cat(rows, -2) * expected_gaussians(p, Gaussians(centers, spread)).unsqueeze(-2)
