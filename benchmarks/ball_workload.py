"""Ellipsoids on the unit cube times Gaussian basis functions, and ways to their expectations."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import sparsefam as sf

from .polar import polar_rule, polar_rule_by_hand

__all__ = ["METHODS", "REGIMES", "BallWorkload", "Method", "Regime", "ball_workload", "in_plane"]

BATCH, FUNCTIONS = 64, 100


@dataclass(frozen=True)
class Regime:
    """What supports and basis functions are like.

    Attributes:
        text: For a table.
        width: Of the basis functions.
        half_axes: Of the supports, drawn evenly on a log scale.
    """

    text: str
    width: float
    half_axes: tuple[float, float]


# The first is the setting of the paper's visual question answering.
REGIMES = {
    "narrow": Regime("half-axes 0.1 to 0.5, variance 0.001", math.sqrt(1e-3), (0.1, 0.5)),
    "wide": Regime("half-axes 0.1 to 0.5, width 0.1", 0.1, (0.1, 0.5)),
    "large": Regime("half-axes 0.5 to 2, variance 0.001", math.sqrt(1e-3), (0.5, 2.0)),
}


@dataclass(frozen=True)
class BallWorkload:
    """Densities, basis functions, and the gradient that comes from above.

    Attributes:
        loc: Centres (batch, D).
        scale_tril: Of the supports (batch, D, D).
        psi: The basis.
        upstream: d loss / d E_p[psi], (batch, N).
    """

    loc: Tensor
    scale_tril: Tensor
    psi: sf.bases.GaussianRBF
    upstream: Tensor

    def double(self) -> "BallWorkload":
        """The same numbers in float64."""
        psi = sf.bases.GaussianRBF(self.psi.centers.double(), self.psi.widths.double())
        loc, scale_tril = self.loc.double(), self.scale_tril.double()
        return BallWorkload(loc, scale_tril, psi, self.upstream.double())


def in_plane(regime: Regime) -> BallWorkload:
    """Supports turned in any direction, and basis functions on a 10 x 10 grid."""
    grid = sf.bases.GaussianRBF.grid(FUNCTIONS, regime.width, ndim=2)
    psi = sf.bases.GaussianRBF(grid.centers, regime.width)  # one width, as the polar rule takes it
    return _on(psi, BATCH, regime.half_axes)


def ball_workload(dim: int, batch: int, functions: int) -> BallWorkload:
    """The same with basis functions of width 0.1 anywhere in the unit cube."""
    centers = torch.rand(functions, dim, generator=torch.Generator().manual_seed(1))
    return _on(sf.bases.GaussianRBF(centers, 0.1), batch, (0.1, 0.5))


def _on(psi: sf.bases.GaussianRBF, batch: int, half_axes: tuple[float, float]) -> BallWorkload:
    draw = torch.Generator().manual_seed(0)
    dim = psi.centers.shape[-1]
    low, high = half_axes
    axes = low * (high / low) ** torch.rand(batch, dim, generator=draw)
    turns = torch.linalg.qr(torch.randn(batch, dim, dim, generator=draw))[0]
    upper = torch.linalg.qr((turns * axes.unsqueeze(-2)).mT)[1]
    scale_tril = upper.mT * upper.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    loc = torch.rand(batch, dim, generator=draw)
    return BallWorkload(loc, scale_tril, psi, torch.randn(batch, len(psi), generator=draw))


def by_expect(work: BallWorkload) -> tuple[Tensor, ...]:
    """By sparsefam: E_p[psi], and gradients in loc and scale_tril, whose lower part counts."""

    def expect(loc: Tensor, scale_tril: Tensor) -> Tensor:
        return sf.TruncatedParaboloid(loc, scale_tril).expect(work.psi)

    return _with_gradients(work, expect)


def by_polar(work: BallWorkload) -> tuple[Tensor, ...]:
    """By the polar rule and autograd."""
    return _by_rule(polar_rule, work)


def by_polar_by_hand(work: BallWorkload) -> tuple[Tensor, ...]:
    """By the polar rule and its own gradient."""
    return _by_rule(polar_rule_by_hand, work)


def _by_rule(rule: Callable[..., Tensor], work: BallWorkload) -> tuple[Tensor, ...]:
    def expect(loc: Tensor, scale_tril: Tensor) -> Tensor:
        return rule(loc, scale_tril, work.psi.centers, work.psi.widths)

    return _with_gradients(work, expect)


def _with_gradients(
    work: BallWorkload, expect: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, ...]:
    loc, tril = (x.detach().requires_grad_() for x in (work.loc, work.scale_tril))
    value = expect(loc, tril)
    return value.detach(), *torch.autograd.grad(value, (loc, tril), work.upstream)


Method = Callable[[BallWorkload], tuple[Tensor, ...]]
METHODS: dict[str, Method] = {
    "sparsefam": by_expect,
    "polar rule": by_polar,
    "polar rule, gradient by hand": by_polar_by_hand,
}
