"""Other ways to the same expectation: what is in use today, and fixed grids."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

import sparsefam as sf

from .families import Family

__all__ = ["closed_form_around_zero", "trapezoid_on_shared_grid", "trapezoid_on_supports"]


def closed_form_around_zero(
    family: Family, loc: Tensor, scale: Tensor, psi: sf.bases.GaussianRBF
) -> Tensor:
    r"""The closed form as published: the density expanded in powers of t, not of t - loc.

    $\int_l^u t^k N(t)\,dt$ comes from $\int N = (\mathrm{erf}(v/\sqrt2) -
    \mathrm{erf}(u/\sqrt2))/2$ and, for k > 0, by parts. Eq. 52 of the paper lacks the 1/2.

    References:
        Martins et al. (2020), Sparse and Continuous Attention Mechanisms, App. G.
    """
    m = int(family.exponent)
    constant = math.gamma(m + 1 + 1 / family.order) / math.gamma(m + 1)
    constant *= family.order / (2 * math.gamma(1 / family.order))
    x = [-loc / scale, 1 / scale]  # x = (t - loc)/scale, ascending in t
    if family.order == 2:
        square = _product(x, x)
        pieces = [(loc - scale, loc + scale, [1 - square[0], -square[1], -square[2]])]
    else:
        pieces = [
            (loc - scale, loc, [1 + x[0], x[1]]),
            (loc, loc + scale, [1 - x[0], -x[1]]),
        ]
    total = torch.zeros_like(psi.centers)
    for low, high, base in pieces:
        density = [constant / scale]
        for _ in range(m):
            density = _product(density, base)
        powers = _powers_of_t(low, high, psi, len(density))
        total = total + sum(a * power for a, power in zip(density, powers, strict=True))
    return total


def _product(a: Sequence[Tensor], b: Sequence[Tensor]) -> list[Tensor]:
    """Of two polynomials."""
    out = [torch.zeros_like(a[0])] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            out[i + j] = out[i + j] + x * y
    return out


def _powers_of_t(low: Tensor, high: Tensor, psi: sf.bases.GaussianRBF, count: int) -> list[Tensor]:
    r"""$\int_l^u t^k N(t; c, w^2)\,dt$ for k below `count`."""
    c, variance = psi.centers, psi.widths**2
    ends = [(t - c) / (psi.widths * math.sqrt(2)) for t in (low, high)]
    at_low, at_high = psi(low), psi(high)
    found = [(torch.erf(ends[1]) - torch.erf(ends[0])) / 2]
    for k in range(1, count):
        edges = high ** (k - 1) * at_high - low ** (k - 1) * at_low
        before = (k - 1) * found[k - 2] if k > 1 else 0
        found.append(c * found[k - 1] + variance * (before - edges))
    return found


def trapezoid_on_supports(
    family: Family, loc: Tensor, scale: Tensor, psi: sf.bases.GaussianRBF, points: int
) -> Tensor:
    """E_p[psi] (batch, N) by the trapezoid rule over the support loc -+ scale of each density.

    The density at the nodes is that of the family's standard member, the same for all. What costs
    is a tensor (batch, points, N): hand it no more densities than fit the memory.
    """
    # log_prob takes the ends of the support for outside, which a density may not vanish towards.
    x = torch.linspace(-1, 1, points, dtype=loc.dtype) * (1 - torch.finfo(loc.dtype).eps)
    standard = family.build(torch.zeros_like(loc[0]), torch.ones_like(loc[0]))
    weights = _trapezoid(standard.prob(x), 2 / (points - 1))
    z = (loc.unsqueeze(-1) + scale.unsqueeze(-1) * x).unsqueeze(-1) - psi.centers
    z = z * (math.sqrt(0.5) / psi.widths)
    return weights @ torch.exp(-z.square()) / (psi.widths * math.sqrt(2 * math.pi))


def trapezoid_on_shared_grid(
    p: sf.SparseDistribution, grid: Tensor, psi: sf.bases.GaussianRBF
) -> Tensor:
    """E_p[psi] (batch, N) by the trapezoid rule on one even grid for all: a matrix product."""
    weights = _trapezoid(p.prob(grid.unsqueeze(-1)), (grid[1] - grid[0]).item())
    values: Tensor = psi(grid)
    return weights.T @ values


def _trapezoid(density: Tensor, step: float) -> Tensor:
    """Weights (points, ...) of an integral against the density, by its values at the nodes."""
    ends = torch.ones(len(density), dtype=density.dtype)
    ends[0] = ends[-1] = 0.5
    return density * (step * ends).reshape(-1, *(1,) * (density.dim() - 1))
