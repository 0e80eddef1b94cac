"""Covariances of waves under an elliptical density."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..bases import Fourier
from ..numerics.ellipsoid import radial_characteristic
from ..numerics.wide import mixture, wide_waves
from .beta_gaussian import PowerLaw

if TYPE_CHECKING:
    from .elliptical import EllipticalDistribution

__all__ = ["wave_covariance"]


def wave_covariance(p: "EllipticalDistribution", phi: Fourier, psi: Fourier) -> Tensor:
    r"""Covariances (*batch, 2 M, 2 N) from $2 \cos a \cos b = \cos(a - b) + \cos(a + b)$ and so on.

    With $\varphi$ for the characteristic function of u and $v = L^\top w$, all that is needed is
    $\varphi(v \mp w) - \varphi(v)\,\varphi(w)$, which slow waves have without a difference.
    """
    (x, a), (y, b) = (_whitened(p, basis) for basis in (phi, psi))
    means = _damping(p, x).unsqueeze(-1) * _damping(p, y).unsqueeze(-2)
    pairs = x.unsqueeze(-2), y.unsqueeze(-3)
    law = mixture(p._exponent if isinstance(p, PowerLaw) else None, p.loc.shape[-1], p.alpha)
    *slow, both = wide_waves(x, y, law)
    minus, plus = (
        torch.where(both, near, _damping(p, pairs[0] + sign * pairs[1]) - means)
        for sign, near in zip((-1, 1), slow, strict=True)
    )
    less, more = a.unsqueeze(-1) - b.unsqueeze(-2), a.unsqueeze(-1) + b.unsqueeze(-2)
    cosines = torch.cat(
        [less.cos() * minus + more.cos() * plus, more.sin() * plus - less.sin() * minus], -1
    )
    sines = torch.cat(
        [more.sin() * plus + less.sin() * minus, less.cos() * minus - more.cos() * plus], -1
    )
    return 0.5 * torch.cat([cosines, sines], -2)


def _whitened(p: "EllipticalDistribution", basis: Fourier) -> tuple[Tensor, Tensor]:
    """Frequencies for u (*batch, K, D), and phases at the centre (*batch, K)."""
    frequencies = basis.frequencies.to(p.loc)
    return frequencies @ p.scale_tril, (frequencies @ p.loc.unsqueeze(-1)).squeeze(-1)


def _damping(p: "EllipticalDistribution", frequencies: Tensor) -> Tensor:
    """The characteristic function of u."""
    square = frequencies.square().sum(-1)
    if not isinstance(p, PowerLaw):
        return torch.exp(-0.5 * square)
    nu = p._exponent + p.loc.shape[-1] / 2
    return radial_characteristic(square, nu.reshape(*nu.shape, *(1,) * (square.dim() - nu.dim())))
