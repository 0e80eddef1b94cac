r"""Covariances of two bases under an elliptical density: right, or refused.

In closed form between polynomials to degree 2, Gaussian functions and waves, but for Gaussian
functions with waves under a density that ends. The rest is integrated by two rules, and refused
where they differ. Everything is float64 inside, whatever the density's dtype.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..bases import Basis, Fourier, Polynomial, Stack
from ..numerics.ball import gaussian_slopes_under_ball, gaussian_slopes_under_normal
from ..numerics.ellipsoid import radial_characteristic
from .beta_gaussian import PowerLaw
from .gaussian_covariance import Gaussians, gaussian_covariance, gaussians_of, waves_of_gaussians
from .resolved_covariance import resolved_covariance
from .wave_covariance import wave_covariance

if TYPE_CHECKING:
    from .elliptical import EllipticalDistribution

__all__ = ["elliptical_covariance"]


def elliptical_covariance(p: "EllipticalDistribution", phi: Basis, psi: Basis) -> Tensor:
    r"""Covariance of $\phi$ and $\psi$ under p, (*batch, M, N).

    Raises:
        ValueError: Functions without a closed form that vary too fast for quadrature.
    """
    exact = p.expand(p.batch_shape)
    for name in ("loc", "scale_tril", "alpha"):
        setattr(exact, name, getattr(p, name).double())
    return _covariance(exact, phi, psi, p.loc.dtype).to(p.loc.dtype)


def _covariance(p: "EllipticalDistribution", phi: Basis, psi: Basis, dtype: torch.dtype) -> Tensor:
    for basis, other, dim in ((phi, psi, -2), (psi, phi, -1)):
        if isinstance(basis, Stack):
            pairs = [(b, other) if dim == -2 else (other, b) for b in basis.bases]
            return torch.cat([_covariance(p, *pair, dtype) for pair in pairs], dim)
    found = _closed(p, phi, psi, dtype)
    if found is None:
        turned = _closed(p, psi, phi, dtype)
        found = None if turned is None else turned.mT
    return resolved_covariance(p, phi, psi, dtype) if found is None else found


def _closed(
    p: "EllipticalDistribution", phi: Basis, psi: Basis, dtype: torch.dtype
) -> Tensor | None:
    """In closed form, where there is one for these two in this order."""
    hills, others = (gaussians_of(basis, p.loc) for basis in (psi, phi))
    if isinstance(phi, Polynomial) and phi.degree <= 2:
        if isinstance(psi, Polynomial) and psi.degree <= 2:
            return _polynomials(p, phi, psi)
        if hills is not None:
            return _with_polynomial(p, phi, *_gaussian_slopes(p, hills))
        if isinstance(psi, Fourier):
            return _with_polynomial(p, phi, *_wave_slopes(p, psi))
    if isinstance(phi, Fourier) and isinstance(psi, Fourier):
        return wave_covariance(p, phi, psi)
    if isinstance(phi, Fourier) and hills is not None and not isinstance(p, PowerLaw):
        return waves_of_gaussians(p, phi, hills)
    if hills is not None and others is not None:
        return gaussian_covariance(p, others, hills, dtype)
    return None


# Polynomials to degree 2 are a slope and a curvature in u at the centre: nothing large cancels.


def _polynomials(p: "EllipticalDistribution", phi: Polynomial, psi: Polynomial) -> Tensor:
    second, fourth, excess = (x[..., None, None] for x in p._moments())
    (f, f2), (g, g2) = (_slope_and_curvature(p, basis) for basis in (phi, psi))
    curved = f2.flatten(-2) @ g2.flatten(-2).mT
    outer = _trace(f2).unsqueeze(-1) * _trace(g2).unsqueeze(-2)
    return second * (f @ g.mT) + fourth * curved / 2 + excess * outer / 4


def _with_polynomial(
    p: "EllipticalDistribution", phi: Polynomial, slope: Tensor, bend: Tensor
) -> Tensor:
    r"""From derivatives of expectations under the density of the next exponent, $E_+$.

    $$E[u\,\psi] = c\,E_+[\nabla\psi], \qquad
        E[u u^\top \psi] - E[u u^\top] E[\psi] = 2 c\,G - 2 c^2 \operatorname{tr}(G)\,I$$

    with $c = E[u_1^2]$ and $G = L^\top (\partial E_+[\psi]/\partial A)\,L$, $A = L L^\top$. A
    normal density is its own next one and lacks the last term.

    Args:
        p: The density.
        phi: The polynomials.
        slope: $E_+[\nabla\psi]$ in u, (*batch, N, D).
        bend: G, (*batch, N, D, D).
    """
    f, f2 = _slope_and_curvature(p, phi)
    second = p._moments()[0][..., None, None]
    found = f @ slope.mT + f2.flatten(-2) @ bend.flatten(-2).mT
    if isinstance(p, PowerLaw):
        found = found - second * _trace(f2).unsqueeze(-1) * _trace(bend).unsqueeze(-2)
    return second * found


def _slope_and_curvature(p: "EllipticalDistribution", basis: Polynomial) -> tuple[Tensor, Tensor]:
    """Derivatives in u at the centre of monomials up to degree 2, (*batch, N, D[, D])."""
    powers = torch.as_tensor(basis.exponents).to(p.loc)
    hessian = powers.unsqueeze(-1) * powers.unsqueeze(-2) - powers.diag_embed()
    linear = (powers.sum(-1, keepdim=True) == 1) * powers
    curvature = hessian * (powers.sum(-1) == 2)[:, None, None]
    slope = linear + (curvature @ p.loc[..., None, :, None]).squeeze(-1)
    factor = p.scale_tril.unsqueeze(-3)
    return slope @ p.scale_tril, factor.mT @ curvature @ factor


def _gaussian_slopes(p: "EllipticalDistribution", hills: Gaussians) -> tuple[Tensor, Tensor]:
    """What `_with_polynomial` asks of Gaussian functions."""
    if isinstance(p, PowerLaw):
        m = p._exponent if p._fixed_exponent is None else p._fixed_exponent
        by_loc, by_ball = gaussian_slopes_under_ball(p.loc, p.scale_tril, *hills, m + 1)
    else:
        by_loc, by_ball = gaussian_slopes_under_normal(p.loc, p.scale_tril, *hills)
    factor = p.scale_tril.unsqueeze(-3)
    return by_loc @ p.scale_tril, factor.mT @ by_ball @ factor


def _wave_slopes(p: "EllipticalDistribution", psi: Fourier) -> tuple[Tensor, Tensor]:
    """What `_with_polynomial` asks of waves: cosines, then sines."""
    frequencies = psi.frequencies.to(p.loc)
    v = frequencies @ p.scale_tril
    square, angle = v.square().sum(-1), (frequencies @ p.loc.unsqueeze(-1)).squeeze(-1)
    if isinstance(p, PowerLaw):
        nu = (p._exponent + p.loc.shape[-1] / 2).unsqueeze(-1)
        first, second = (radial_characteristic(square, nu + k) for k in (1, 2))
        second = second / (2 * nu + 4)
    else:
        first = second = torch.exp(-0.5 * square)
    slopes = [x.unsqueeze(-1) * v for x in (-angle.sin() * first, angle.cos() * first)]
    outer = -0.5 * v.unsqueeze(-1) * v.unsqueeze(-2)
    bends = [(x * second)[..., None, None] * outer for x in (angle.cos(), angle.sin())]
    return torch.cat(slopes, -2), torch.cat(bends, -3)


def _trace(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=-2, dim2=-1).sum(-1)
