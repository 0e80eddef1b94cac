"""Covariances of two bases under an elliptical density, computed in float64.

Polynomials to degree 2 have closed forms with each other, with Gaussian functions and with waves.
All other pairs are integrated by quadrature of functions from which their value at the centre is
subtracted, and refused where two rules differ. Gaussian functions that are too narrow for it take
the expectation of their product, which is a Gaussian function, less the product of expectations.
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from ..bases import Basis, Fourier, GaussianRBF, Polynomial, Product, Stack
from ..numerics.ellipsoid import radial_characteristic
from ..numerics.gaussian_ball import (
    gaussian_slopes_under_ball,
    gaussian_slopes_under_normal,
    gaussians_under_ball,
    gaussians_under_normal,
)
from ..numerics.validation import require
from .beta_gaussian import PowerLaw

if TYPE_CHECKING:
    from .elliptical import EllipticalDistribution

__all__ = ["Gaussians", "elliptical_covariance", "gaussians_of"]

# Orders of the two rules by dimension; those of a product rule grow fast.
_ORDERS = {1: (96, 144), 2: (96, 144), 3: (48, 72)}
_MANY = (64, 128)
# Of a normal density: nodes per axis of a lattice, and how far it extends.
_LATTICE = {1: 512, 2: 160, 3: 48}
_EXTENT = 8.5
# By how much the rules may differ, relative to the covariance; with quasi-random directions, in
# more than three dimensions; and relative to what the covariance could be at most.
_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
_QUASI_RANDOM = 1e-2
_ROUNDING = 1e-14


def elliptical_covariance(p: "EllipticalDistribution", phi: Basis, psi: Basis) -> Tensor:
    r"""Return the covariance of $\phi$ and $\psi$ under p, (*batch, M, N).

    Raises:
        ValueError: Functions without a closed form that vary too fast for quadrature.
    """
    exact = p.expand(p.batch_shape)
    for name in ("loc", "scale_tril", "alpha"):
        setattr(exact, name, getattr(p, name).double())
    return _covariance(exact, phi, psi, p.loc.dtype).to(p.loc.dtype)


def _covariance(p: "EllipticalDistribution", phi: Basis, psi: Basis, dtype: torch.dtype) -> Tensor:
    if isinstance(phi, Stack):
        return torch.cat([_covariance(p, basis, psi, dtype) for basis in phi.bases], -2)
    if isinstance(psi, Stack):
        return torch.cat([_covariance(p, phi, basis, dtype) for basis in psi.bases], -1)
    if isinstance(psi, Polynomial) and psi.degree <= 2 and not isinstance(phi, Polynomial):
        return _covariance(p, psi, phi, dtype).mT
    if isinstance(phi, Polynomial) and phi.degree <= 2:
        if isinstance(psi, Polynomial) and psi.degree <= 2:
            return _polynomials(p, phi, psi)
        if (gaussians := gaussians_of(psi, p.loc)) is not None:
            return _with_polynomial(p, phi, *_gaussian_slopes(p, gaussians))
        if isinstance(psi, Fourier):
            return _with_polynomial(p, phi, *_wave_slopes(p, psi))
    return _by_quadrature(p, phi, psi, dtype)


class Gaussians(NamedTuple):
    """Normalised Gaussian functions of vectors.

    Attributes:
        centers: (N, D).
        spread: Standard deviations (N,) or covariances (N, D, D).
    """

    centers: Tensor
    spread: Tensor


def gaussians_of(basis: Basis, like: Tensor | None = None) -> Gaussians | None:
    """Return the Gaussian functions of which a basis consists, None for others."""
    found = _parameters(basis)
    return found if found is None or like is None else Gaussians(*(x.to(like) for x in found))


def _parameters(basis: Basis) -> Gaussians | None:
    if isinstance(basis, Product):
        factors = [f for f in basis.bases if isinstance(f, GaussianRBF) and f.widths is not None]
        if len(factors) < len(basis.bases):
            return None
        # A product of Gaussian functions is one of diagonal covariance.
        widths = [f.widths.expand_as(f.centers) for f in factors if f.widths is not None]
        spread = _combinations(widths).square().diag_embed()
        return Gaussians(_combinations([f.centers for f in factors]), spread)
    if not isinstance(basis, GaussianRBF) or not basis.event_shape:
        return None
    if basis.covariance is None:
        return Gaussians(basis.centers, torch.as_tensor(basis.widths).expand(len(basis)))
    return Gaussians(basis.centers, basis.covariance.expand(len(basis), -1, -1))


def _combinations(columns: list[Tensor]) -> Tensor:
    """Combine one entry of each column in every way, (N, D), the last changing fastest."""
    return torch.stack(torch.meshgrid(*columns, indexing="ij"), -1).flatten(0, -2)


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


def _gaussian_slopes(p: "EllipticalDistribution", gaussians: Gaussians) -> tuple[Tensor, Tensor]:
    """Return the two derivatives for `_with_polynomial` of Gaussian functions."""
    if isinstance(p, PowerLaw):
        m = p._exponent if p._fixed_exponent is None else p._fixed_exponent
        by_loc, by_ball = gaussian_slopes_under_ball(p.loc, p.scale_tril, *gaussians, m + 1)
    else:
        by_loc, by_ball = gaussian_slopes_under_normal(p.loc, p.scale_tril, *gaussians)
    factor = p.scale_tril.unsqueeze(-3)
    return by_loc @ p.scale_tril, factor.mT @ by_ball @ factor


def _wave_slopes(p: "EllipticalDistribution", psi: Fourier) -> tuple[Tensor, Tensor]:
    """Return the two derivatives for `_with_polynomial` of cosines, then sines."""
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


# Quadrature


def _by_quadrature(
    p: "EllipticalDistribution", phi: Basis, psi: Basis, dtype: torch.dtype
) -> Tensor:
    (rough, _), (fine, most) = (_integrate(p, phi, psi, fine) for fine in (False, True))
    error, size = (x.detach().flatten(-2).norm(dim=-1) for x in (fine - rough, fine))
    gaussians = [gaussians_of(basis, p.loc) for basis in (phi, psi)]
    if gaussians[0] is not None and gaussians[1] is not None:
        product, means = _gaussian_product(p, gaussians[0], gaussians[1])
        rounding = _ROUNDING * means.detach().flatten(-2).norm(dim=-1)
        if p.loc.shape[-1] not in _ORDERS:  # directions may all miss a narrow function
            error = _QUASI_RANDOM * (product - means).detach().flatten(-2).norm(dim=-1)
        is_narrow = rounding < error
        fine = torch.where(is_narrow[..., None, None], product - means, fine)
        error = torch.where(is_narrow, rounding, error)
        size = fine.detach().flatten(-2).norm(dim=-1)
    if p._validate_args:
        tolerance = _TOLERANCE[dtype] if p.loc.shape[-1] in _ORDERS else _QUASI_RANDOM
        worst = (error / size.clamp_min(torch.finfo(size.dtype).tiny)).amax()
        require(
            error <= tolerance * size + _ROUNDING * most,
            "phi and psi",
            "smooth enough for quadrature over the density; only polynomials to degree 2 have "
            "closed forms, and `expect` of a callable takes an order",
            f"{type(phi).__name__} and {type(psi).__name__} (relative error {worst:.1e})",
        )
    return fine


def _gaussian_product(
    p: "EllipticalDistribution", phi: Gaussians, psi: Gaussians
) -> tuple[Tensor, Tensor]:
    r"""Return $E[\phi\psi^\top]$ and $E[\phi] E[\psi]^\top$, (*batch, M, N)."""
    (a, first), (b, second) = ((x.centers, _matrices(x)) for x in (phi, psi))
    total = first.unsqueeze(1) + second
    # N(t; a, A) N(t; b, B) = N(a; b, A + B) N(t; c, C), C = A (A + B)^-1 B.
    share = torch.linalg.solve(total, first.unsqueeze(1)).mT  # A (A + B)^-1
    gap = b - a.unsqueeze(1)
    centers = a.unsqueeze(1) + (share @ gap.unsqueeze(-1)).squeeze(-1)
    covariances = share @ second
    covariances = 0.5 * (covariances + covariances.mT)
    overlap = MultivariateNormal(torch.zeros_like(gap), total, validate_args=False).log_prob(gap)
    products = _means(p, Gaussians(centers.flatten(0, 1), covariances.flatten(0, 1)))
    products = overlap.exp() * products.unflatten(-1, overlap.shape)
    return products, _means(p, phi).unsqueeze(-1) * _means(p, psi).unsqueeze(-2)


def _matrices(gaussians: Gaussians) -> Tensor:
    spread, unit = gaussians.spread, torch.eye(gaussians.centers.shape[-1]).to(gaussians.centers)
    return spread if spread.dim() > 1 else spread.square()[:, None, None] * unit


def _means(p: "EllipticalDistribution", gaussians: Gaussians) -> Tensor:
    if not isinstance(p, PowerLaw):
        return gaussians_under_normal(p.loc, p.scale_tril, *gaussians)
    m = p._exponent if p._fixed_exponent is None else p._fixed_exponent
    return gaussians_under_ball(p.loc, p.scale_tril, *gaussians, m)


def _integrate(
    p: "EllipticalDistribution", phi: Basis, psi: Basis, fine: bool
) -> tuple[Tensor, Tensor]:
    """Return the covariance, and its norm (*batch) if all functions were proportional."""
    steps, weights = _steps(p, fine)
    f, g = (_differences(p, basis, steps) for basis in (phi, psi))
    f, g = (x - (weights.unsqueeze(-1) * x).sum(0) for x in (f, g))
    found = torch.einsum("q...,q...m,q...n->...mn", weights, f, g)
    sizes = [(weights.unsqueeze(-1) * x.detach().square()).sum((0, -1)) for x in (f, g)]
    return found, (sizes[0] * sizes[1]).sqrt()


def _steps(p: "EllipticalDistribution", fine: bool) -> tuple[Tensor, Tensor]:
    """Return nodes less the centre (Q, *batch, D), and weights (Q, *batch)."""
    dim = p.loc.shape[-1]
    if isinstance(p, PowerLaw) or dim not in _LATTICE:
        centred = p.expand(p.batch_shape)
        centred.loc = torch.zeros_like(p.loc)
        return centred.quadrature(_ORDERS.get(dim, _MANY)[fine])
    # Gauss rules put few of their nodes where a normal density has its mass.
    points, width = _LATTICE[dim], 2 * _EXTENT / _LATTICE[dim]
    index = torch.arange(points, dtype=p.loc.dtype, device=p.loc.device)
    axis = width * (index + (0.25 if fine else 0.75)) - _EXTENT
    u = torch.cartesian_prod(*[axis] * dim).reshape(-1, dim)
    weights = torch.softmax(-0.5 * u.square().sum(-1), 0)
    steps = (u @ p.scale_tril.mT).movedim(-2, 0)
    shape = (len(u), *(1,) * len(p.batch_shape))
    return steps, weights.reshape(shape).expand(len(u), *p.batch_shape)


def _differences(p: "EllipticalDistribution", psi: Basis, steps: Tensor) -> Tensor:
    r"""Return $\psi(loc + s) - \psi(loc)$ at steps s (Q, *batch, D), (Q, *batch, N).

    Gaussian functions much wider than the density, and slow waves, keep their digits.
    """
    if isinstance(psi, Fourier):
        frequencies = psi.frequencies.to(p.loc)
        half = 0.5 * (steps @ frequencies.mT)
        middle = (p.loc @ frequencies.mT) + half
        chord = 2 * half.sin()
        return torch.cat([-chord * middle.sin(), chord * middle.cos()], -1)
    values, first = psi(p.loc + steps).to(steps.dtype), psi(p.loc).to(steps.dtype)
    if (gaussians := gaussians_of(psi, p.loc)) is None:
        differences: Tensor = values - first
        return differences
    log_ratio = _log_ratio(p, gaussians, steps)
    near = log_ratio.abs() < 1
    small = torch.expm1(torch.where(near, log_ratio, 0.0))
    found: Tensor = torch.where(near, first * small, values - first)
    return found


def _log_ratio(p: "EllipticalDistribution", gaussians: Gaussians, steps: Tensor) -> Tensor:
    r"""Return $\log\psi(loc + s) - \log\psi(loc) = -s^\top S^{-1} (loc + s/2 - c)$."""
    centers, spread = gaussians
    s, offset = steps.unsqueeze(-2), (p.loc + 0.5 * steps).unsqueeze(-2) - centers
    if spread.dim() == 1:
        found: Tensor = -(s * offset).sum(-1) / spread.square()
        return found
    found = torch.einsum("...nd,nde,...ne->...n", -s.expand_as(offset), spread.inverse(), offset)
    return found
