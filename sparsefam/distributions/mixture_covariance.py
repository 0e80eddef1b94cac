"""Covariances of bases under mixtures: those within the components, and that between them."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..bases import Basis, Polynomial, Stack
from ..numerics.validation import copied
from .univariate import SymmetricDistribution

if TYPE_CHECKING:
    from .mixture import Mixture

__all__ = ["mixture_covariance"]


def mixture_covariance(p: "Mixture", phi: Basis, psi: Basis) -> Tensor:
    r"""$\sum_k \pi_k \mathrm{Cov}_k + \sum_k \pi_k (m_k - m)(n_k - n)'$, (*batch, M, N).

    Both terms are sums of what is already centred; $E[\phi\psi'] - E[\phi]E[\psi]'$ would cancel.
    """
    weights = p.probs.unsqueeze(-1)
    within = p.parts.ask(lambda q: q.generalized_covariance(phi, psi, 1.0), rank=2)
    f, g = (torch.where(weights > 0, _deviations(p, basis), 0.0) for basis in (phi, psi))
    return p._weighed(within, 2) + (weights * f).mT @ g


def _deviations(p: "Mixture", psi: Basis) -> Tensor:
    """What the components' expectations (*batch, K, N) differ from the mixture's by."""
    if isinstance(psi, Stack):
        return torch.cat([_deviations(p, basis) for basis in psi.bases], -1)
    if isinstance(psi, Polynomial) and all(
        isinstance(q, SymmetricDistribution) for q in p.parts.parts
    ):
        return _deviations_of_powers(p, psi)
    return _centred(p, p.parts.ask(lambda q: q.expect(psi), rank=1))


def _centred(p: "Mixture", means: Tensor) -> Tensor:
    return means - p._weighed(means, 1).unsqueeze(-2)


def _deviations_of_powers(p: "Mixture", psi: Polynomial) -> Tensor:
    """From powers of t - c with c the mean: those of t are large and alike where c is far off.

    (c + s)^k is the sum over j of k!/j!(k-j)! c^(k-j) s^j.
    """
    centre = p.mean

    def moved(q: SymmetricDistribution) -> Tensor:
        q = copied(q)
        q.loc = q.loc - (centre.unsqueeze(-1) if p.parts.batched else centre)
        return q.expect(psi)

    powers = _centred(p, p.parts.ask(moved, rank=1))
    degree, centre = len(psi) - 1, centre.unsqueeze(-1)
    terms = [
        [math.comb(k, j) * centre ** (k - j) * powers[..., j] for j in range(k + 1)]
        for k in range(degree + 1)
    ]
    return torch.stack([torch.stack(row).sum(0) for row in terms], -1)
