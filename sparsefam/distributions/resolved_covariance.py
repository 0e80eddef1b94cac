"""Covariances by quadrature, refused where two rules do not agree."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..bases import Basis
from ..numerics.validation import require
from .beta_gaussian import PowerLaw

if TYPE_CHECKING:
    from .elliptical import EllipticalDistribution

__all__ = ["resolved_covariance"]

# Orders of the two rules by the number of dimensions; those of a product rule grow fast.
_ORDERS = {1: (96, 144), 2: (96, 144), 3: (48, 72)}
_MANY = (64, 128)
# Of a normal density: nodes per axis of a lattice, and how far it reaches.
_LATTICE = {1: 256, 2: 96, 3: 48}
_REACH = 8.5
# What the rules may differ by, as a share of the covariance and of what it might be at most.
_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
_ROUNDING = 1e-14


def resolved_covariance(
    p: "EllipticalDistribution", phi: Basis, psi: Basis, dtype: torch.dtype
) -> Tensor:
    """Covariance (*batch, M, N) under a density in float64.

    Args:
        p: The density.
        phi: Functions (M).
        psi: Functions (N).
        dtype: In which the result is asked for.

    Raises:
        ValueError: The rules differ by more than this dtype should tell.
    """
    (rough, _), (fine, scale) = (_integrate(p, phi, psi, fine) for fine in (False, True))
    if p._validate_args:
        error, size = ((x.detach()).flatten(-2).norm(dim=-1) for x in (fine - rough, fine))
        fits = error <= _TOLERANCE[dtype] * size + _ROUNDING * scale
        rule = (
            "smooth enough for quadrature over the density; polynomials to degree 2, GaussianRBF "
            "and Fourier have closed forms, and `expect` of a callable takes an order"
        )
        worst = (error / size.clamp_min(torch.finfo(size.dtype).tiny)).amax()
        names = f"{type(phi).__name__} and {type(psi).__name__} (relative error {worst:.1e})"
        require(fits, "phi and psi", rule, names)
    return fine


def _integrate(
    p: "EllipticalDistribution", phi: Basis, psi: Basis, fine: bool
) -> tuple[Tensor, Tensor]:
    """Covariance, and the norm (*batch) that it would have if all functions were proportional."""
    t, weights = _rule(p, fine)
    f, g = (
        values - (weights.unsqueeze(-1) * values).sum(0)
        for values in (phi(t).to(t.dtype), psi(t).to(t.dtype))
    )
    found = torch.einsum("q...,q...m,q...n->...mn", weights, f, g)
    sizes = [(weights.unsqueeze(-1) * x.detach().square()).sum((0, -1)) for x in (f, g)]
    return found, (sizes[0] * sizes[1]).sqrt()


def _rule(p: "EllipticalDistribution", fine: bool) -> tuple[Tensor, Tensor]:
    """Nodes (Q, *batch, D) and weights (Q, *batch)."""
    dim = p.loc.shape[-1]
    if isinstance(p, PowerLaw) or dim not in _LATTICE:
        return p.quadrature(_ORDERS.get(dim, _MANY)[fine])
    # Gauss rules put few of their nodes where a normal density has its mass.
    points, step = _LATTICE[dim], 2 * _REACH / _LATTICE[dim]
    index = torch.arange(points, dtype=p.loc.dtype, device=p.loc.device)
    axis = step * (index + (0.25 if fine else 0.75)) - _REACH
    u = torch.cartesian_prod(*[axis] * dim).reshape(-1, dim)
    weights = torch.softmax(-0.5 * u.square().sum(-1), 0)
    steps = (u @ p.scale_tril.mT).movedim(-2, 0)
    shape = (len(u), *(1,) * len(p.batch_shape))
    return p.loc + steps, weights.reshape(shape).expand(len(u), *p.batch_shape)
