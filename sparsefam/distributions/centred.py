"""Functions less their mean, for covariances: with the digits that a plain difference loses."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..bases import Basis, Fourier, Polynomial

if TYPE_CHECKING:
    from .symmetric import SymmetricDistribution

__all__ = ["centred", "units_of"]


def centred(p: "SymmetricDistribution", psi: Basis, t: Tensor, x: Tensor) -> Tensor:
    r"""$\psi(t) - E_p[\psi]$ in the units of `units_of`, (..., *batch, N).

    Args:
        p: The density.
        psi: A basis.
        t: Locations (..., *batch).
        x: The same locations as $(t - loc)/scale$; t may have lost their digits.
    """
    if isinstance(psi, Polynomial):
        return _centred_powers(p, psi, x)
    if isinstance(psi, Fourier):
        return _centred_waves(p, psi, x)
    values: Tensor = psi(t)
    return values - p.expect(psi)


def _unit(p: "SymmetricDistribution") -> Tensor:
    return torch.maximum(p.loc.abs(), p.scale).detach()


def units_of(p: "SymmetricDistribution", psi: Basis, first: Tensor) -> Tensor:
    """What `centred` leaves out of each function times `first` (*batch): a constant (*batch, N).

    A power of t is centred in powers of the larger of loc and scale, as those of t itself may
    overflow where its covariance does not.
    """
    step = _unit(p) if isinstance(psi, Polynomial) else torch.ones_like(first)
    # One factor after the other: what overflows without the first may not overflow with it.
    return torch.stack([first, *[step] * (len(psi) - 1)], -1).cumprod(-1)


def _centred_powers(p: "SymmetricDistribution", psi: Polynomial, x: Tensor) -> Tensor:
    # (loc + scale x)^k is the sum over j of k!/j!(k-j)! loc^(k-j) (scale x)^j.
    degree, unit = len(psi) - 1, _unit(p)
    loc, scale = p.loc / unit, p.scale / unit
    terms = [torch.zeros_like(x)]
    for j in range(1, degree + 1):
        moment = 0.0 if j % 2 else p._standard_moment(j)
        terms.append(scale**j * (x**j - moment))
    values = [
        torch.stack([math.comb(k, j) * loc ** (k - j) * terms[j] for j in range(k + 1)]).sum(0)
        for k in range(degree + 1)
    ]
    return torch.stack(values, -1)


def _centred_waves(p: "SymmetricDistribution", psi: Fourier, x: Tensor) -> Tensor:
    # cos(a + b) - E[cos(a + b)] with a = w loc and b = w scale x, and so for the sine.
    turn, angle = (y.unsqueeze(-1) * psi.frequencies for y in (p.scale, p.loc))
    phase, cos, sin = x.unsqueeze(-1) * turn, angle.cos(), angle.sin()
    dip = _one_less_cosine(phase) - _mean_dip(p, turn, cos, sin, p.expect(psi))
    return torch.cat([-cos * dip - sin * phase.sin(), cos * phase.sin() - sin * dip], -1)


def _one_less_cosine(phase: Tensor) -> Tensor:
    return 2 * (0.5 * phase).sin().square()


def _mean_dip(
    p: "SymmetricDistribution", turn: Tensor, cos: Tensor, sin: Tensor, means: Tensor
) -> Tensor:
    """E[1 - cos(turn x)], of which the mean of the cosine keeps few digits where it is small."""
    nodes, weights = (y.unsqueeze(-1) for y in p._standard_rule(64))
    small = turn.abs() < 1
    direct = (weights * _one_less_cosine(nodes * torch.where(small, turn, 0.0))).sum(0)
    of_cos, of_sin = means.chunk(2, -1)
    return torch.where(small, direct, 1 - cos * of_cos - sin * of_sin)
