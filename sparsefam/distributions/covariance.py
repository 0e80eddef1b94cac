"""Covariances of two bases under an elliptical density, computed in float64.

Polynomials to degree 2 have closed forms. Other pairs are integrated by two rules, and refused if
these differ.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..bases import Basis, Polynomial, Stack
from ..numerics.validation import require
from .beta_gaussian import PowerLaw

if TYPE_CHECKING:
    from .elliptical import EllipticalDistribution

__all__ = ["elliptical_covariance"]

# Orders of two rules by dimension, and beyond three dimensions.
_ORDERS = {1: (512, 768), 2: (192, 288), 3: (48, 72)}
_QUASI_RANDOM_ORDERS = (64, 128)
# Of normal densities up to three dimensions: nodes per axis of a lattice, and its half-width.
_LATTICE = {1: 512, 2: 160, 3: 72}
_EXTENT = 8.5
# By how much the rules may differ, relative to the covariance; with quasi-random directions; and
# relative to the covariance of proportional functions.
_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
_QUASI_RANDOM = 1e-2
_ROUNDING = 1e-14


def elliptical_covariance(p: "EllipticalDistribution", phi: Basis, psi: Basis) -> Tensor:
    r"""Return the covariance of $\phi$ and $\psi$ under p, (*batch, M, N).

    Raises:
        ValueError: Functions without a closed form that vary too fast for quadrature.
    """
    exact: Any = p._with_parameters(p.batch_shape, lambda x, event: x.double())
    return _covariance(exact, phi, psi, p.loc.dtype).to(p.loc.dtype)


def _covariance(p: "EllipticalDistribution", phi: Basis, psi: Basis, dtype: torch.dtype) -> Tensor:
    if isinstance(phi, Stack):
        return torch.cat([_covariance(p, basis, psi, dtype) for basis in phi.bases], -2)
    if isinstance(psi, Stack):
        return torch.cat([_covariance(p, phi, basis, dtype) for basis in psi.bases], -1)
    if isinstance(phi, Polynomial) and isinstance(psi, Polynomial):
        if max(phi.degree, psi.degree) <= 2:
            return _polynomials(p, phi, psi)
    return _by_quadrature(p, phi, psi, dtype)


def _polynomials(p: "EllipticalDistribution", phi: Polynomial, psi: Polynomial) -> Tensor:
    second, fourth, excess = (x[..., None, None] for x in p._moments())
    (f, f2), (g, g2) = (_slope_and_curvature(p, basis) for basis in (phi, psi))
    curved = f2.flatten(-2) @ g2.flatten(-2).mT
    outer = _trace(f2).unsqueeze(-1) * _trace(g2).unsqueeze(-2)
    return second * (f @ g.mT) + fourth * curved / 2 + excess * outer / 4


def _slope_and_curvature(p: "EllipticalDistribution", basis: Polynomial) -> tuple[Tensor, Tensor]:
    """Return derivatives in u at the centre of monomials to degree 2, (*batch, N, D[, D])."""
    powers = torch.as_tensor(basis.exponents).to(p.loc)
    hessian = powers.unsqueeze(-1) * powers.unsqueeze(-2) - powers.diag_embed()
    linear = (powers.sum(-1, keepdim=True) == 1) * powers
    curvature = hessian * (powers.sum(-1) == 2)[:, None, None]
    slope = linear + (curvature @ p.loc[..., None, :, None]).squeeze(-1)
    factor = p.scale_tril.unsqueeze(-3)
    return slope @ p.scale_tril, factor.mT @ curvature @ factor


def _trace(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=-2, dim2=-1).sum(-1)


def _by_quadrature(
    p: "EllipticalDistribution", phi: Basis, psi: Basis, dtype: torch.dtype
) -> Tensor:
    dim = p.loc.shape[-1]
    (rough, _), (covariance, most) = (_integrate(p, phi, psi, fine) for fine in (False, True))
    if p._validate_args:
        error, size = _norm(covariance - rough), _norm(covariance)
        tolerance = _TOLERANCE[dtype] if dim in _ORDERS else _QUASI_RANDOM
        require(
            error <= tolerance * size + _ROUNDING * most,
            "phi and psi",
            f"smooth enough for quadrature with a relative error of {tolerance} (`expect` of a "
            "callable takes an order)",
            error / size.clamp_min(torch.finfo(size.dtype).tiny),
        )
    return covariance


def _norm(matrices: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.matrix_norm(matrices.detach())
    return norm


def _integrate(
    p: "EllipticalDistribution", phi: Basis, psi: Basis, fine: bool
) -> tuple[Tensor, Tensor]:
    """Return the covariance, and its norm (*batch) if all functions were proportional."""
    nodes, weights = _rule(p, fine)
    values = (basis(nodes).to(nodes.dtype) for basis in (phi, psi))
    f, g = (x - (weights.unsqueeze(-1) * x).sum(0) for x in values)
    covariance = torch.einsum("q...,q...m,q...n->...mn", weights, f, g)
    sizes = [(weights.unsqueeze(-1) * x.detach().square()).sum((0, -1)) for x in (f, g)]
    return covariance, (sizes[0] * sizes[1]).sqrt()


def _rule(p: "EllipticalDistribution", fine: bool) -> tuple[Tensor, Tensor]:
    """Return nodes (Q, *batch, D) and weights (Q, *batch)."""
    dim = p.loc.shape[-1]
    if isinstance(p, PowerLaw) or dim not in _LATTICE:
        return p.quadrature(_ORDERS.get(dim, _QUASI_RANDOM_ORDERS)[fine])
    # The trapezoidal rule needs fewer nodes for a normal density than Gauss rules.
    points, width = _LATTICE[dim], 2 * _EXTENT / _LATTICE[dim]
    index = torch.arange(points, dtype=p.loc.dtype, device=p.loc.device)
    axis = width * (index + (0.25 if fine else 0.75)) - _EXTENT
    u = torch.cartesian_prod(*[axis] * dim).reshape(-1, dim)
    nodes = p.loc + (u @ p.scale_tril.mT).movedim(-2, 0)
    weights = torch.softmax(-0.5 * u.square().sum(-1), 0).reshape(-1, *(1,) * len(p.batch_shape))
    return nodes, weights.expand(nodes.shape[:-1])
