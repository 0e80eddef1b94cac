"""Closed forms of E_p[psi], registered by the types of p and psi."""

import math
from typing import Any, cast

import torch
from torch import Tensor

from ._dispatch import register_expect
from ._numerics.ellipsoid import elliptical_moments, radial_characteristic
from ._numerics.gaussian_ball import gaussians_under_ball
from ._numerics.special import characteristic
from .bases import Basis, BSpline, Fourier, GaussianRBF, Polynomial, Product, Stack
from .distributions import (
    BetaGaussian,
    KernelDistribution,
    Laplace,
    MultivariateBetaGaussian,
    MultivariateNormal,
    Normal,
    SparseDistribution,
    SymmetricDistribution,
    Triangular,
    Truncated,
)
from .distributions._covariance import exponent_of_ball, gaussians_of
from .distributions._line.gaussians import gaussian_means
from .distributions._line.symmetric import WAVE_ORDER, require_resolved, support_rule

__all__: list[str] = []


@register_expect(SparseDistribution, Stack)
@register_expect(KernelDistribution, Stack)  # whose rule for any basis would be nearer
def _stack_expectation(p: SparseDistribution, psi: Stack) -> Tensor:
    """Concatenate the expectations of several bases."""
    return torch.cat([p.expect(basis) for basis in psi.bases], -1)


def _damped_waves(angles: Tensor, amplitudes: Tensor) -> Tensor:
    """Multiply Fourier functions at the centre by the characteristic function around it."""
    return torch.cat([angles.cos() * amplitudes, angles.sin() * amplitudes], -1)


@register_expect(SymmetricDistribution, GaussianRBF)
def _symmetric_gaussian(p: SymmetricDistribution, psi: GaussianRBF) -> Tensor:
    return gaussian_means(p, psi)


@register_expect(Normal, GaussianRBF)
def _normal_gaussian(p: Normal, psi: GaussianRBF) -> Tensor:
    # The product of two Gaussians integrates to a Gaussian of their difference.
    widths = _widths(psi)
    scale = widths * (1 + (p.scale.unsqueeze(-1) / widths).square()).sqrt()  # ONNX has no hypot
    z = (p.loc.unsqueeze(-1) - psi.centers) / scale
    return torch.exp(-0.5 * z * z) / (scale * math.sqrt(2 * math.pi))


@register_expect(Truncated, GaussianRBF)
def _truncated_gaussian(p: Truncated, psi: GaussianRBF) -> Any:
    law = p._law
    if law is None or law.name != "normal" or law.exponential:
        return NotImplemented
    means = law.gaussian_means(*p._ends(), psi.centers.double(), _widths(psi).double())
    return means.to(p._like.dtype)


@register_expect(SymmetricDistribution, Polynomial)
def _symmetric_polynomial(p: SymmetricDistribution, psi: Polynomial) -> Tensor:
    # Even central moments only, so all terms of E[(loc + scale x)^k] have one sign.
    powers = []
    for k in range(len(psi)):
        terms = [
            math.comb(k, j) * p.loc ** (k - j) * p.scale**j * p.generator.moment(j)
            for j in range(0, k + 1, 2)
        ]
        powers.append(torch.stack(terms).sum(0))
    return torch.stack(powers, -1)


@register_expect(SymmetricDistribution, BSpline)
def _symmetric_spline(p: SymmetricDistribution, psi: BSpline) -> Tensor:
    # A polynomial times the density between knots: exact where the density is a polynomial.
    def integrate(p: SymmetricDistribution) -> Tensor:
        nodes, _, weights = support_rule(p, psi.knots[:-1], psi.knots[1:], order=40)
        near = (weights.unsqueeze(-1) * psi.nonzero(nodes)[1]).sum(0)
        # Function j is number d - k of the d + 1 that are not zero on interval j + k.
        terms = [near[k : k + len(psi), ..., psi.degree - k] for k in range(psi.degree + 1)]
        return torch.stack(terms).sum(0).movedim(0, -1)

    return p._in_float64(integrate, p._node_count(40) * len(psi.knots) * (psi.degree + 1))


@register_expect(SymmetricDistribution, Fourier)
def _symmetric_fourier(p: SymmetricDistribution, psi: Fourier) -> Tensor:
    def amplitudes(p: SymmetricDistribution) -> Tensor:
        nodes, weights = p.quadrature(WAVE_ORDER)
        require_resolved(psi, nodes, WAVE_ORDER)
        waves = torch.cos((nodes - p.loc).unsqueeze(-1) * psi.frequencies)
        return (weights.unsqueeze(-1) * waves).sum(0)

    count = p._node_count(WAVE_ORDER) * len(psi.frequencies)
    return _fourier(p, psi, p._in_blocks(amplitudes, count))


@register_expect(BetaGaussian, Fourier)
def _beta_gaussian_fourier(p: BetaGaussian, psi: Fourier) -> Tensor:
    rho = p.scale.unsqueeze(-1) * psi.frequencies
    return _fourier(p, psi, characteristic(rho, p.generator.m.unsqueeze(-1) + 0.5))


@register_expect(Triangular, Fourier)
def _triangular_fourier(p: Triangular, psi: Fourier) -> Tensor:
    rho = p.scale.unsqueeze(-1) * psi.frequencies
    return _fourier(p, psi, torch.sinc(rho / (2 * math.pi)).square())


@register_expect(Normal, Fourier)
def _normal_fourier(p: Normal, psi: Fourier) -> Tensor:
    rho = p.scale.unsqueeze(-1) * psi.frequencies
    return _fourier(p, psi, torch.exp(-0.5 * rho * rho))


@register_expect(Laplace, Fourier)
def _laplace_fourier(p: Laplace, psi: Fourier) -> Tensor:
    rho = p.scale.unsqueeze(-1) * psi.frequencies
    return _fourier(p, psi, 1 / (1 + rho * rho))


def _fourier(p: SymmetricDistribution, psi: Fourier, amplitudes: Tensor) -> Tensor:
    return _damped_waves(p.loc.unsqueeze(-1) * psi.frequencies, amplitudes)


def _widths(psi: GaussianRBF) -> Tensor:
    """Return the widths of a basis of numbers, which has no covariance."""
    return cast(Tensor, psi.widths)


_Elliptical = MultivariateBetaGaussian | MultivariateNormal


@register_expect(MultivariateBetaGaussian, GaussianRBF)
@register_expect(MultivariateNormal, GaussianRBF)
@register_expect(MultivariateBetaGaussian, Product)
@register_expect(MultivariateNormal, Product)
def _elliptical_gaussian(p: _Elliptical, psi: GaussianRBF | Product) -> Any:
    gaussians = gaussians_of(psi)
    if gaussians is None:
        return NotImplemented
    return gaussians_under_ball(p.loc, p.scale_tril, *gaussians, exponent_of_ball(p))


@register_expect(MultivariateBetaGaussian, Fourier)
def _multivariate_beta_gaussian_fourier(p: MultivariateBetaGaussian, psi: Fourier) -> Tensor:
    nu = p.generator.m.unsqueeze(-1) + p.loc.shape[-1] / 2
    return _elliptical_fourier(p, psi, radial_characteristic(_whitened_square(p, psi), nu))


@register_expect(MultivariateNormal, Fourier)
def _multivariate_normal_fourier(p: MultivariateNormal, psi: Fourier) -> Tensor:
    return _elliptical_fourier(p, psi, torch.exp(-0.5 * _whitened_square(p, psi)))


def _whitened_square(p: _Elliptical, psi: Fourier) -> Tensor:
    """Return the squared lengths of the whitened frequencies, (*batch, K)."""
    whitened = (p.scale_tril.unsqueeze(-3) * psi.frequencies.unsqueeze(-1)).sum(-2)
    return whitened.square().sum(-1)


def _elliptical_fourier(p: _Elliptical, psi: Fourier, amplitudes: Tensor) -> Tensor:
    return _damped_waves((p.loc.unsqueeze(-2) * psi.frequencies).sum(-1), amplitudes)


@register_expect(MultivariateBetaGaussian, Polynomial)
def _multivariate_beta_gaussian_polynomial(p: MultivariateBetaGaussian, psi: Polynomial) -> Tensor:
    levels = torch.arange(psi.degree // 2, dtype=p.loc.dtype, device=p.loc.device)
    first = 2 * p.generator.m.unsqueeze(-1) + (p.loc.shape[-1] + 2)
    return _elliptical_polynomial(p, psi, 1 / (first + 2 * levels))


@register_expect(MultivariateNormal, Polynomial)
def _multivariate_normal_polynomial(p: MultivariateNormal, psi: Polynomial) -> Tensor:
    return _elliptical_polynomial(p, psi, p.loc.new_ones(*p.batch_shape, psi.degree // 2))


def _elliptical_polynomial(p: _Elliptical, psi: Polynomial, factors: Tensor) -> Tensor:
    # In float64: a moment may be in float32's range although the moments it is made of are not.
    loc, factor, factors = (x.double() for x in (p.loc, p.scale_tril, factors))
    spread = (factor.unsqueeze(-2) * factor.unsqueeze(-3)).sum(-1)
    return elliptical_moments(loc, spread, factors, psi.exponents, psi.lowered).to(p.loc.dtype)


@register_expect(KernelDistribution, Basis)
def _kernel_basis(p: KernelDistribution, psi: Basis) -> Tensor:
    return p.basis_means(psi)
