"""4096 densities times 128 Gaussian basis functions, and three ways to their expectations."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import sparsefam as sf

from .families import ANY_ALPHA, CLOSED, Family
from .rivals import trapezoid_on_shared_grid, trapezoid_on_supports

__all__ = ["FAMILIES", "METHODS", "REGIMES", "Workload", "by_expect", "workload"]

DENSITIES, FUNCTIONS, POINTS, WIDTH = 4096, 128, 1000, 0.02
# The parabola first; alpha = 1.7 has no closed form.
FAMILIES = (CLOSED[2], CLOSED[1], CLOSED[0], CLOSED[4], ANY_ALPHA[2])
# Half-widths of the supports, drawn evenly on a log scale; the basis functions have WIDTH.
REGIMES = {"wide": (0.1, 0.5), "mixed": (0.002, 0.5), "narrow": (0.0002, 0.02)}
# Densities at a time for the trapezoid rule on supports. On a quiet machine 4 to 64 take the same
# time and 128 twice as long; on a busy one small tensors wait for their threads.
_CHUNK = 32


@dataclass(frozen=True)
class Workload:
    """Densities on [0, 1], basis functions over it, and the gradient that comes from above.

    Attributes:
        loc: Centres (batch,).
        scale: Half-widths (batch,).
        psi: The basis.
        upstream: d loss / d E_p[psi], (batch, N).
    """

    loc: Tensor
    scale: Tensor
    psi: sf.bases.GaussianRBF
    upstream: Tensor

    def double(self) -> "Workload":
        """The same numbers in float64."""
        psi = sf.bases.GaussianRBF(self.psi.centers.double(), self.psi.widths.double())
        return Workload(self.loc.double(), self.scale.double(), psi, self.upstream.double())


def workload(regime: str, densities: int = DENSITIES) -> Workload:
    """Supports of a regime, all inside [0, 1] so that a grid over it misses nothing."""
    draw = torch.Generator().manual_seed(0)
    low, high = (math.log(x) for x in REGIMES[regime])
    scale = torch.exp(low + (high - low) * torch.rand(densities, generator=draw))
    loc = scale + (1 - 2 * scale) * torch.rand(densities, generator=draw)
    upstream = torch.randn(densities, FUNCTIONS, generator=draw)
    return Workload(loc, scale, sf.bases.GaussianRBF.grid(FUNCTIONS, WIDTH), upstream)


def by_expect(family: Family, work: Workload) -> tuple[Tensor, ...]:
    """By sparsefam: E_p[psi], and the gradients in loc and scale."""
    loc, scale = _leaves(work)
    value = family.build(loc, scale).expect(work.psi)
    return value.detach(), *torch.autograd.grad(value, (loc, scale), work.upstream)


def on_supports(family: Family, work: Workload) -> tuple[Tensor, ...]:
    """By the trapezoid rule on the support of each density, some densities at a time."""
    # Into tensors made beforehand: results kept between large temporary ones would hold on to
    # their memory, gigabytes in all.
    value = torch.empty_like(work.upstream)
    slopes = torch.empty_like(work.loc), torch.empty_like(work.scale)
    for first in range(0, len(work.loc), _CHUNK):
        rows = slice(first, first + _CHUNK)
        loc, scale = (x[rows].detach().requires_grad_() for x in (work.loc, work.scale))
        part = trapezoid_on_supports(family, loc, scale, work.psi, POINTS)
        value[rows] = part.detach()
        grads = torch.autograd.grad(part, (loc, scale), work.upstream[rows])
        for slope, grad in zip(slopes, grads, strict=True):
            slope[rows] = grad
    return value, *slopes


def on_shared_grid(family: Family, work: Workload) -> tuple[Tensor, ...]:
    """By the trapezoid rule on one grid over [0, 1]."""
    loc, scale = _leaves(work)
    grid = torch.linspace(0, 1, POINTS, dtype=loc.dtype)
    value = trapezoid_on_shared_grid(family.build(loc, scale), grid, work.psi)
    return value.detach(), *torch.autograd.grad(value, (loc, scale), work.upstream)


def _leaves(work: Workload) -> tuple[Tensor, Tensor]:
    return work.loc.detach().requires_grad_(), work.scale.detach().requires_grad_()


Method = Callable[[Family, Workload], tuple[Tensor, ...]]
METHODS: dict[str, Method] = {
    "sparsefam": by_expect,
    "trapezoid on supports": on_supports,
    "trapezoid on one grid": on_shared_grid,
}
