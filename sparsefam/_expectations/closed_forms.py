"""Closed forms of E_p[psi], registered by the types of p and psi.

A closed form takes densities (*batch) and a basis of N functions, and returns (*batch, N).
"""

import math

import torch
from torch import Tensor

from .._choice import register_expect
from .._numerics.ellipsoid import elliptical_moments, radial_characteristic
from .._numerics.special import characteristic
from ..bases import BSpline, Fourier, Polynomial
from ..distributions import (
    BetaGaussian,
    Laplace,
    MultivariateBetaGaussian,
    MultivariateNormal,
    Normal,
    SymmetricDistribution,
    Triangular,
)
from ..distributions._line.symmetric import WAVE_ORDER, require_resolved, support_rule

__all__: list[str] = []


def _damped_waves(angles: Tensor, amplitudes: Tensor) -> Tensor:
    """Return E[cos wt], then E[sin wt], for densities that are symmetric about m, (*batch, 2 K).

    By the addition theorem they are cos wm and sin wm times E[cos w(t - m)], as E[sin w(t - m)] is
    0.

    Args:
        angles: w m (*batch, K).
        amplitudes: E[cos w(t - m)], the characteristic function around m (*batch, K).
    """
    return torch.cat([angles.cos() * amplitudes, angles.sin() * amplitudes], -1)


@register_expect(SymmetricDistribution, Polynomial)
def _symmetric_polynomial(p: SymmetricDistribution, psi: Polynomial) -> Tensor:
    # The binomial formula for E[(loc + scale x)^k]. Odd moments of x are zero, and terms with even
    # moments have one sign: nothing cancels.
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
        """Return the expectations under densities in float64."""
        nodes, _, weights = support_rule(p, psi.knots[:-1], psi.knots[1:], order=40)
        # Integrals over each of I intervals between knots, (I, *batch, d + 1).
        near = (weights.unsqueeze(-1) * psi.nonzero(nodes)[1]).sum(0)
        # Function j is number d - k of the d + 1 that are not zero on interval j + k.
        terms = [near[k : k + len(psi), ..., psi.degree - k] for k in range(psi.degree + 1)]
        return torch.stack(terms).sum(0).movedim(0, -1)

    return p._in_float64(integrate, p._node_count(40) * len(psi.knots) * (psi.degree + 1))


@register_expect(SymmetricDistribution, Fourier)
def _symmetric_fourier(p: SymmetricDistribution, psi: Fourier) -> Tensor:
    def amplitudes(p: SymmetricDistribution) -> Tensor:
        """Return E[cos w(t - loc)] (*batch, K) by quadrature."""
        nodes, weights = p.quadrature(WAVE_ORDER)
        require_resolved(psi, nodes, WAVE_ORDER)
        waves = torch.cos((nodes - p.loc).unsqueeze(-1) * psi.frequencies)
        return (weights.unsqueeze(-1) * waves).sum(0)

    count = p._node_count(WAVE_ORDER) * len(psi.frequencies)
    return _fourier(p, psi, p._in_blocks(amplitudes, count))


@register_expect(BetaGaussian, Fourier)
def _beta_gaussian_fourier(p: BetaGaussian, psi: Fourier) -> Tensor:
    # The characteristic function of (1 - x^2)^m is a Bessel function of order m + 1/2: Poisson's
    # integral, DLMF 10.9.4.
    rho = p.scale.unsqueeze(-1) * psi.frequencies
    return _fourier(p, psi, characteristic(rho, p.generator.m.unsqueeze(-1) + 0.5))


@register_expect(Triangular, Fourier)
def _triangular_fourier(p: Triangular, psi: Fourier) -> Tensor:
    # A triangle is the convolution of two uniform densities, each as long as its half-width.
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
    """Return expectations (*batch, 2 K) from the characteristic function around loc (*batch, K)."""
    return _damped_waves(p.loc.unsqueeze(-1) * psi.frequencies, amplitudes)


_Elliptical = MultivariateBetaGaussian | MultivariateNormal


@register_expect(MultivariateBetaGaussian, Fourier)
def _multivariate_beta_gaussian_fourier(p: MultivariateBetaGaussian, psi: Fourier) -> Tensor:
    # The projection of a ball's (1 - |x|^2)^m on a line is (1 - x^2)^(m + (D - 1)/2).
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
    """Return expectations (*batch, 2 K) from the characteristic function around loc (*batch, K)."""
    return _damped_waves((p.loc.unsqueeze(-2) * psi.frequencies).sum(-1), amplitudes)


@register_expect(MultivariateBetaGaussian, Polynomial)
def _multivariate_beta_gaussian_polynomial(p: MultivariateBetaGaussian, psi: Polynomial) -> Tensor:
    # By parts, with x (1 - |x|^2)^m = -grad (1 - |x|^2)^(m + 1) / (2 m + 2) and the ratio of the
    # integrals of both powers: E_m[x_i f] = E_(m + 1)[df/dx_i] / (2 m + D + 2), m growing by 1.
    levels = torch.arange(psi.degree // 2, dtype=p.loc.dtype, device=p.loc.device)
    first = 2 * p.generator.m.unsqueeze(-1) + (p.loc.shape[-1] + 2)
    return _elliptical_polynomial(p, psi, 1 / (first + 2 * levels))


@register_expect(MultivariateNormal, Polynomial)
def _multivariate_normal_polynomial(p: MultivariateNormal, psi: Polynomial) -> Tensor:
    # Stein's identity, E[x_i f] = E[df/dx_i] for a standard normal x.
    return _elliptical_polynomial(p, psi, p.loc.new_ones(*p.batch_shape, psi.degree // 2))


def _elliptical_polynomial(p: _Elliptical, psi: Polynomial, factors: Tensor) -> Tensor:
    """Return expectations (*batch, N), from the factors c_0, c_1, ... of `elliptical_moments`."""
    # In float64: a moment may be in float32's range although the moments it is made of are not.
    loc, factor, factors = (x.double() for x in (p.loc, p.scale_tril, factors))
    spread = (factor.unsqueeze(-2) * factor.unsqueeze(-3)).sum(-1)
    return elliptical_moments(loc, spread, factors, psi.exponents, psi.lowered).to(p.loc.dtype)
