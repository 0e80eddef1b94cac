"""Covariances of two bases under an elliptical density, computed in float64.

Polynomials to degree 2 have closed forms with each other and with Gaussian functions. Other pairs
are integrated by quadrature after their values at the center are subtracted. Gaussian functions too
narrow for quadrature are integrated as the Gaussian function that is their product. Pairs for which
two rules differ are refused.
"""

from typing import Any, NamedTuple, Protocol

import torch
from torch import Size, Tensor
from torch.distributions import MultivariateNormal

from .._numerics.gaussian_contour import gaussians_and_slopes, gaussians_by_pairs
from .._numerics.validation import require
from ..bases import Basis, Fourier, GaussianRBF, Polynomial, Product, Stack
from ._generators import Generator, TruncatedPower
from ._line.symmetric import wave_differences

__all__ = ["Gaussians", "elliptical_covariance", "exponent_of_ball", "gaussians_of"]

# Orders of two rules by dimension, and beyond three dimensions.
_ORDERS = {1: (96, 144), 2: (96, 144), 3: (48, 72)}
_QUASI_RANDOM_ORDERS = (64, 128)
# Of normal densities up to three dimensions: nodes per axis of a lattice, and its half-width.
_LATTICE = {1: 512, 2: 160, 3: 72}
_EXTENT = 8.5
# By how much the rules may differ, relative to the covariance; with quasi-random directions; and
# relative to the covariance of proportional functions.
_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
_QUASI_RANDOM = 1e-2
_ROUNDING = 1e-14


class _Elliptical(Protocol):
    """A density with ellipsoidal level sets, of u = scale_tril^-1 (t - loc)."""

    loc: Tensor
    scale_tril: Tensor
    _validate_args: bool

    @property
    def batch_shape(self) -> Size: ...

    @property
    def generator(self) -> Generator: ...

    def quadrature(self, order: int = 64) -> tuple[Tensor, Tensor]: ...


def elliptical_covariance(p: Any, phi: Basis, psi: Basis) -> Tensor:
    r"""Return the covariance of $\phi$ and $\psi$ under p, (*batch, M, N), in the dtype of p.

    Args:
        p: A normal density or a beta-Gaussian, of vectors.
        phi: M functions.
        psi: N functions.

    Raises:
        ValueError: Functions without a closed form that vary too fast for quadrature.
    """
    exact = p._map(lambda x, event: x.double(), p.batch_shape)
    return _covariance(exact, phi, psi, p.loc.dtype).to(p.loc.dtype)


def _covariance(p: _Elliptical, phi: Basis, psi: Basis, dtype: torch.dtype) -> Tensor:
    """Return the covariance (*batch, M, N) by a rule for the two bases, in float64.

    Args:
        p: The density in float64.
        phi: M functions.
        psi: N functions.
        dtype: In which the result is used, by which quadrature has a tolerance.
    """
    if isinstance(phi, Stack):
        return torch.cat([_covariance(p, basis, psi, dtype) for basis in phi.bases], -2)
    if isinstance(psi, Stack):
        return torch.cat([_covariance(p, phi, basis, dtype) for basis in psi.bases], -1)
    if isinstance(psi, Polynomial) and psi.degree <= 2 and not isinstance(phi, Polynomial):
        return _covariance(p, psi, phi, dtype).mT
    if isinstance(phi, Polynomial) and phi.degree <= 2:
        if isinstance(psi, Polynomial) and psi.degree <= 2:
            return _polynomials(p, phi, psi)
        if (gaussians := gaussians_of(psi)) is not None:
            return _polynomials_and_gaussians(p, phi, gaussians)
    return _by_quadrature(p, phi, psi, dtype)


class Gaussians(NamedTuple):
    """Normalized Gaussian functions of vectors."""

    centers: Tensor  # (N, D)
    spread: Tensor  # Standard deviations (N,) or covariances (N, D, D)


def gaussians_of(basis: Basis) -> Gaussians | None:
    """Return the Gaussian functions of a basis; None for others."""
    if isinstance(basis, Product):
        factors = [f for f in basis.bases if isinstance(f, GaussianRBF) and f.widths is not None]
        if len(factors) < len(basis.bases):
            return None
        # The product of univariate Gaussian functions has a diagonal covariance.
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


# Polynomials to degree 2


def _polynomials(p: _Elliptical, phi: Polynomial, psi: Polynomial) -> Tensor:
    """Return the covariance of polynomials to degree 2, (*batch, M, N)."""
    # With c = E[u_1^2] and e = E[u_1^2 u_2^2], the covariance of forms u'Fu/2 and u'Gu/2 is
    # e tr(FG)/2 + (e - c^2) tr(F) tr(G)/4, of linear forms c f'g. Odd moments are 0.
    second, fourth, excess = (x[..., None, None] for x in p.generator.moments())
    (f, f2), (g, g2) = (_slope_and_curvature(p, basis) for basis in (phi, psi))
    curved = f2.flatten(-2) @ g2.flatten(-2).mT
    outer = _trace(f2).unsqueeze(-1) * _trace(g2).unsqueeze(-2)
    return second * (f @ g.mT) + fourth * curved / 2 + excess * outer / 4


def _polynomials_and_gaussians(p: _Elliptical, phi: Polynomial, gaussians: Gaussians) -> Tensor:
    r"""Return the covariance (*batch, M, N) from derivatives of other expectations $E_+$.

    Their density has the next larger exponent, m + 1.

    $$E[u\,\psi] = c\,E_+[\nabla\psi], \qquad
        E[u u^\top \psi] - E[u u^\top] E[\psi] = 2 c\,G - 2 c^2 \operatorname{tr}(G)\,I$$

    with $c = E[u_1^2]$ and $G = L^\top (\partial E_+[\psi]/\partial A)\,L$, $A = L L^\top$. For a
    normal density $E_+ = E$, and the last term is absent.
    """
    m = exponent_of_ball(p)
    m = None if m is None else m + 1
    # Derivatives of E_+[psi] in loc (*batch, N, D) and in A (*batch, N, D, D).
    _, by_loc, by_ball = gaussians_and_slopes((p.loc, p.scale_tril, *gaussians), m)
    factor = p.scale_tril.unsqueeze(-3)
    slope, bend = by_loc @ p.scale_tril, factor.mT @ by_ball @ factor
    f, f2 = _slope_and_curvature(p, phi)
    second = p.generator.moments()[0][..., None, None]
    covariance = f @ slope.mT + f2.flatten(-2) @ bend.flatten(-2).mT
    if isinstance(p.generator, TruncatedPower):
        covariance = covariance - second * _trace(f2).unsqueeze(-1) * _trace(bend).unsqueeze(-2)
    return second * covariance


def exponent_of_ball(p: _Elliptical) -> Tensor | float | None:
    """Return the exponent m of a beta-Gaussian, a number if alpha is one; None for a normal."""
    return getattr(p.generator, "exponent", None)


def _slope_and_curvature(p: _Elliptical, basis: Polynomial) -> tuple[Tensor, Tensor]:
    """Return gradients in u (*batch, N, D) and Hessians (*batch, N, D, D) at the center.

    They and a constant determine the monomials, whose degree is at most 2.
    """
    # The Hessian in t of a monomial t^k of degree 2 is k k' - diag(k).
    powers = torch.as_tensor(basis.exponents).to(p.loc)
    hessian = powers.unsqueeze(-1) * powers.unsqueeze(-2) - powers.diag_embed()
    linear = (powers.sum(-1, keepdim=True) == 1) * powers
    curvature = hessian * (powers.sum(-1) == 2)[:, None, None]
    slope = linear + (curvature @ p.loc[..., None, :, None]).squeeze(-1)
    factor = p.scale_tril.unsqueeze(-3)
    return slope @ p.scale_tril, factor.mT @ curvature @ factor


def _trace(matrices: Tensor) -> Tensor:
    """Return traces (...) of matrices (..., D, D)."""
    return matrices.diagonal(dim1=-2, dim2=-1).sum(-1)


# Quadrature


def _by_quadrature(p: _Elliptical, phi: Basis, psi: Basis, dtype: torch.dtype) -> Tensor:
    """Return the covariance (*batch, M, N) of any bases by a fine rule, checked by a rough one.

    Args:
        p: The density in float64.
        phi: M functions.
        psi: N functions.
        dtype: As for `_covariance`.

    Raises:
        ValueError: Rules that differ too much, where arguments are validated.
    """
    dim = p.loc.shape[-1]
    (rough, _), (covariance, bound) = (_integrate(p, phi, psi, fine) for fine in (False, True))
    error = _norm(covariance - rough)
    gaussians = [gaussians_of(basis) for basis in (phi, psi)]
    if gaussians[0] is not None and gaussians[1] is not None:
        # E[phi psi'] - E[phi] E[psi]' has the rounding errors of its terms, which may be far larger
        # than the difference: it is taken only where quadrature is worse.
        product, means = _gaussian_product(p, gaussians[0], gaussians[1])
        rounding = _ROUNDING * _norm(means)
        if dim not in _ORDERS:  # all directions may miss a narrow function
            error = _QUASI_RANDOM * _norm(product - means)
        is_narrow = rounding < error
        covariance = torch.where(is_narrow[..., None, None], product - means, covariance)
        error = torch.where(is_narrow, rounding, error)
    if p._validate_args:
        size = _norm(covariance)
        tolerance = _TOLERANCE[dtype] if dim in _ORDERS else _QUASI_RANDOM
        require(
            error <= tolerance * size + _ROUNDING * bound,
            "phi and psi",
            f"smooth enough for quadrature with a relative error of {tolerance} (`expect` of a "
            "callable takes an order)",
            error / size.clamp_min(torch.finfo(size.dtype).tiny),
        )
    return covariance


def _norm(matrices: Tensor) -> Tensor:
    """Return Frobenius norms (*batch) of matrices (*batch, M, N), without gradients."""
    return torch.linalg.matrix_norm(matrices.detach())


def _gaussian_product(p: _Elliptical, phi: Gaussians, psi: Gaussians) -> tuple[Tensor, Tensor]:
    r"""Return $E[\phi\psi^\top]$ and $E[\phi] E[\psi]^\top$, (*batch, M, N)."""
    (a, first), (b, second) = _normals(phi), _normals(psi)
    total = first.unsqueeze(1) + second
    # N(t; a, A) N(t; b, B) = N(a; b, A + B) N(t; c, C), C = A (A + B)^-1 B.
    gain = torch.linalg.solve(total, first.unsqueeze(1)).mT  # A (A + B)^-1
    gap = b - a.unsqueeze(1)
    centers = a.unsqueeze(1) + (gain @ gap.unsqueeze(-1)).squeeze(-1)
    covariances = gain @ second
    covariances = 0.5 * (covariances + covariances.mT)
    overlap = MultivariateNormal(torch.zeros_like(gap), total, validate_args=False).log_prob(gap)
    products = _means(p, Gaussians(centers.flatten(0, 1), covariances.flatten(0, 1)))
    products = overlap.exp() * products.unflatten(-1, overlap.shape)
    return products, _means(p, phi).unsqueeze(-1) * _means(p, psi).unsqueeze(-2)


def _normals(gaussians: Gaussians) -> tuple[Tensor, Tensor]:
    """Return centers (N, D) and covariance matrices (N, D, D) in float64."""
    centers, spread = (x.double() for x in gaussians)
    if spread.dim() == 1:
        spread = spread.square().unsqueeze(-1).expand_as(centers).diag_embed()
    return centers, spread


def _means(p: _Elliptical, gaussians: Gaussians) -> Tensor:
    """Return expectations (*batch, N) of Gaussian functions."""
    return gaussians_by_pairs((p.loc, p.scale_tril, *gaussians), exponent_of_ball(p))


def _integrate(p: _Elliptical, phi: Basis, psi: Basis, fine: bool) -> tuple[Tensor, Tensor]:
    """Return the covariance (*batch, M, N) by a rule, and a bound of its norm (*batch).

    The bound, by the Cauchy-Schwarz inequality, is the norm if all functions were proportional.
    """
    steps, weights = _rule(p, fine)
    f, g = (_differences(p, basis, steps) for basis in (phi, psi))
    f, g = (x - (weights.unsqueeze(-1) * x).sum(0) for x in (f, g))
    covariance = torch.einsum("q...,q...m,q...n->...mn", weights, f, g)
    sizes = [(weights.unsqueeze(-1) * x.detach().square()).sum((0, -1)) for x in (f, g)]
    return covariance, (sizes[0] * sizes[1]).sqrt()


def _rule(p: Any, fine: bool) -> tuple[Tensor, Tensor]:
    """Return nodes less the center (Q, *batch, D), and weights (Q, *batch), of one of two rules."""
    dim = p.loc.shape[-1]
    if isinstance(p.generator, TruncatedPower) or dim not in _LATTICE:
        centered = p._replace(loc=torch.zeros_like(p.loc))
        return centered.quadrature(_ORDERS.get(dim, _QUASI_RANDOM_ORDERS)[fine])
    # The trapezoidal rule needs fewer nodes for a normal density than Gauss rules.
    # The two rules are lattices that are shifted by half of the spacing.
    points, width = _LATTICE[dim], 2 * _EXTENT / _LATTICE[dim]
    index = torch.arange(points, dtype=p.loc.dtype, device=p.loc.device)
    axis = width * (index + (0.25 if fine else 0.75)) - _EXTENT
    u = torch.cartesian_prod(*[axis] * dim).reshape(-1, dim)
    steps = (u @ p.scale_tril.mT).movedim(-2, 0)
    weights = torch.softmax(-0.5 * u.square().sum(-1), 0).reshape(-1, *(1,) * len(p.batch_shape))
    return steps, weights.expand(steps.shape[:-1])


def _differences(p: _Elliptical, psi: Basis, steps: Tensor) -> Tensor:
    r"""Return $\psi(loc + s) - \psi(loc)$ at steps s (Q, *batch, D), (Q, *batch, N).

    Accurate also for slow waves and for Gaussian functions much wider than the density.
    """
    if isinstance(psi, Fourier):
        frequencies = psi.frequencies.to(p.loc)
        return wave_differences(p.loc @ frequencies.mT, steps @ frequencies.mT)
    values, first = psi(p.loc + steps).to(steps.dtype), psi(p.loc).to(steps.dtype)
    differences: Tensor = values - first
    if (gaussians := gaussians_of(psi)) is None:
        return differences
    # log psi(loc + s) - log psi(loc) = -s' S^-1 (loc + s/2 - c)
    centers, covariances = _normals(gaussians)
    offset = (p.loc + 0.5 * steps).unsqueeze(-2) - centers
    log_ratio = torch.einsum("...d,nde,...ne->...n", -steps, covariances.inverse(), offset)
    near = log_ratio.abs() < 1
    small = torch.expm1(torch.where(near, log_ratio, 0.0))
    return torch.where(near, first * small, differences)
