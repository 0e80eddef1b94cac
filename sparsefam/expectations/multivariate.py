"""Closed forms for elliptical densities in D dimensions."""

from typing import Any

import torch
from torch import Tensor

from ..bases import Fourier, GaussianRBF, Polynomial, Product
from ..dispatch import register_expect
from ..distributions import MultivariateBetaGaussian, MultivariateNormal
from ..distributions.covariance import gaussians_of
from ..distributions.exponents import PowerLaw
from ..numerics.gaussian_ball import gaussians_under_ball, gaussians_under_normal
from ..numerics.elliptical import elliptical_moments, radial_characteristic
from .shared import damped_waves

__all__: list[str] = []

_Elliptical = MultivariateBetaGaussian | MultivariateNormal


@register_expect(MultivariateBetaGaussian, GaussianRBF)
@register_expect(MultivariateNormal, GaussianRBF)
@register_expect(MultivariateBetaGaussian, Product)
@register_expect(MultivariateNormal, Product)
def _gaussian(p: _Elliptical, psi: GaussianRBF | Product) -> Any:
    gaussians = gaussians_of(psi)
    if gaussians is None:
        return NotImplemented
    if not isinstance(p, PowerLaw):
        return gaussians_under_normal(p.loc, p.scale_tril, *gaussians)
    exponent = p._exponent if p._fixed_exponent is None else p._fixed_exponent
    return gaussians_under_ball(p.loc, p.scale_tril, *gaussians, exponent)


@register_expect(MultivariateBetaGaussian, Fourier)
def _beta_gaussian_fourier(p: MultivariateBetaGaussian, psi: Fourier) -> Tensor:
    nu = p._exponent.unsqueeze(-1) + p.loc.shape[-1] / 2
    return _fourier(p, psi, radial_characteristic(_square(p, psi), nu))


@register_expect(MultivariateNormal, Fourier)
def _normal_fourier(p: MultivariateNormal, psi: Fourier) -> Tensor:
    return _fourier(p, psi, torch.exp(-0.5 * _square(p, psi)))


def _square(p: _Elliptical, psi: Fourier) -> Tensor:
    """Squared lengths of the whitened frequencies, (*batch, K)."""
    whitened = (p.scale_tril.unsqueeze(-3) * psi.frequencies.unsqueeze(-1)).sum(-2)
    return whitened.square().sum(-1)


def _fourier(p: _Elliptical, psi: Fourier, amplitudes: Tensor) -> Tensor:
    return damped_waves((p.loc.unsqueeze(-2) * psi.frequencies).sum(-1), amplitudes)


@register_expect(MultivariateBetaGaussian, Polynomial)
def _beta_gaussian_polynomial(p: MultivariateBetaGaussian, psi: Polynomial) -> Tensor:
    levels = torch.arange(psi.degree // 2, dtype=p.loc.dtype, device=p.loc.device)
    first = 2 * p._exponent.unsqueeze(-1) + (p.loc.shape[-1] + 2)
    return _polynomial(p, psi, 1 / (first + 2 * levels))


@register_expect(MultivariateNormal, Polynomial)
def _normal_polynomial(p: MultivariateNormal, psi: Polynomial) -> Tensor:
    return _polynomial(p, psi, p.loc.new_ones(*p.batch_shape, psi.degree // 2))


def _polynomial(p: _Elliptical, psi: Polynomial, factors: Tensor) -> Tensor:
    # In float64: a moment may be in the range of float32 where those that it is made of are not.
    loc, factor, factors = (x.double() for x in (p.loc, p.scale_tril, factors))
    spread = (factor.unsqueeze(-2) * factor.unsqueeze(-3)).sum(-1)
    return elliptical_moments(loc, spread, factors, psi.exponents, psi.lowered).to(p.loc.dtype)
