"""Densities from much narrower to much wider than the basis functions, and errors on them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import sparsefam as sf

from .families import Family
from .reference import half_width, integrals, score_scale
from .rivals import closed_form_around_zero, trapezoid_on_shared_grid

__all__ = [
    "QUANTITIES",
    "Case",
    "cases",
    "errors",
    "exact",
    "fixed_grid",
    "norm_error",
    "ours",
    "today",
]

QUANTITIES = ("value", "∂ loc", "∂ scale", "∂ σ or b")


@dataclass(frozen=True)
class Case:
    """A density and basis functions around it, all in float32: the same numbers in every dtype.

    Attributes:
        ratio: scale / width.
        loc: Centre of the density.
        scale: Half-width of its support.
        centers: Centers of the basis functions.
        width: Their common width.
    """

    ratio: float
    loc: Tensor
    scale: Tensor
    centers: Tensor
    width: Tensor

    def basis(self, dtype: torch.dtype = torch.float32) -> sf.bases.GaussianRBF:
        """The basis functions."""
        return sf.bases.GaussianRBF(self.centers.to(dtype), self.width.to(dtype))


def cases(ratios: Sequence[float], loc: float, width: float) -> list[Case]:
    """For each ratio, centers up to 40 widths away, all over the support, and at its two ends."""
    found = []
    for ratio in ratios:
        scale = ratio * width
        ends = torch.tensor([-3.0, -1.6, -0.7, 0.1, 0.9, 1.8, 3.0]).double() * width
        centers = torch.cat(
            [
                loc + width * torch.linspace(-40, 40, 21).double(),
                loc + scale * torch.linspace(-1.3, 1.3, 25).double(),
                loc - scale + ends,
                loc + scale + ends,
            ]
        )
        numbers = (torch.tensor(loc), torch.tensor(scale))
        found.append(Case(ratio, *numbers, centers.float(), torch.tensor(width)))
    return found


def exact(family: Family, case: Case, scale: Tensor | None = None) -> Tensor:
    """E_p[psi] and its derivatives in loc and scale, (3, N), by mpmath."""
    loc, width = case.loc.item(), case.width.item()
    half = (case.scale if scale is None else scale).item()
    rows = [integrals(family, loc, half, c, width) for c in case.centers.tolist()]
    return torch.tensor(rows, dtype=torch.float64).T


def norm_error(found: Tensor, truth: Tensor) -> Tensor:
    """Relative error in the 2-norm over the last axis; infinite where it is not a number."""
    error: Tensor = (found.double() - truth).norm(dim=-1) / truth.norm(dim=-1)
    return torch.where(error.isnan(), math.inf, error)


def errors(family: Family, case: Case, dtype: torch.dtype) -> list[float]:
    """Of the value and of the derivatives in loc, scale, and sigma (or b) where that has a meaning.

    The derivative in sigma is judged at the scale that the rounded sigma gave: at scale / width
    = 1e4 the last bit of a float32 scale moves the ends of the support by 1e-3 widths.
    """
    found, _ = _measured(family.build, case, case.scale, dtype)
    out: list[float] = norm_error(found, exact(family, case)).tolist()
    if family.exponent > 0:
        sigma = torch.tensor(score_scale(family, case.scale.item()))
        found, scale = _measured(family.from_score, case, sigma, dtype)
        truth = exact(family, case, scale)[2] * half_width(family, sigma.item())[1]
        out.append(norm_error(found[2], truth).item())
    return out


def _measured(
    build: Callable[[Tensor, Tensor], sf.SymmetricDistribution],
    case: Case,
    size: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """E_p[psi] and its derivatives in loc and `size`, (3, N), by sparsefam; and p's scale."""
    loc, size = (x.to(dtype).requires_grad_() for x in (case.loc, size))
    p = build(loc, size)
    value = p.expect(case.basis(dtype))
    # One by one, as users do: gradients of a batch would take another way.
    slopes = [torch.autograd.grad(x, (loc, size), retain_graph=True) for x in value]
    found = [value.detach(), *(torch.stack(x) for x in zip(*slopes, strict=True))]
    return torch.stack(found), p.scale.detach()


def ours(family: Family, case: Case) -> float:
    """Error of the value in float32."""
    found = family.build(case.loc, case.scale).expect(case.basis())
    return norm_error(found, exact(family, case)[0]).item()


def today(family: Family, case: Case) -> float:
    """Error of the value by the closed form in use today, in float32."""
    found = closed_form_around_zero(family, case.loc, case.scale, case.basis())
    return norm_error(found, exact(family, case)[0]).item()


def fixed_grid(family: Family, case: Case, points: int = 1000) -> float:
    """Error of the value by the trapezoid rule on a grid over all centers, in float32."""
    low, high = case.centers.aminmax()
    grid = torch.linspace(low.item(), high.item(), points)
    p = family.build(case.loc.unsqueeze(0), case.scale.unsqueeze(0))
    found = trapezoid_on_shared_grid(p, grid, case.basis())[0]
    return norm_error(found, exact(family, case)[0]).item()
