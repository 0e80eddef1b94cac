"""The KL divergence of densities of vectors."""

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Independent

from ..numerics.sphere import direction_rule
from .adoption import intervals_of
from .divergence_ellipsoids import cross_entropy_of_ellipsoids
from .divergence_line import cross_entropy, kl_on_line
from .divergence_nesting import ellipsoids_of, lies_beyond, lies_inside
from .divergence_normals import coordinates
from .elliptical import EllipticalDistribution
from .kernel_family import KernelDistribution
from .kernel_mesh import KernelMesh
from .mixture import Mixture
from .multivariate import MultivariateBetaGaussian
from .multivariate_normal import MultivariateNormal
from .symmetric import SymmetricDistribution

__all__ = ["kl_of_vectors"]

# Orders of the rules by dimension: for ellipsoids, and for products of numbers.
_ORDERS = {1: 200, 2: 120, 3: 48}
_PRODUCT_ORDERS = {1: 64, 2: 32, 3: 20}
# Nodes on each axis where a kernel family's own weights do not serve.
_FINE = 256
# Directions in which edges of supports are looked at, and how far inside at least.
_EDGES, _INSIDE = 96, 1e-9


def kl_of_vectors(p: Any, q: Any, eps: float) -> Tensor:
    r"""$E_p[\log p - \log q]$ of float64 densities of vectors, infinite unless nested (*batch)."""
    p = p.expand(torch.broadcast_shapes(p.batch_shape, q.batch_shape))
    if all(isinstance(x, EllipticalDistribution) and x.event_shape[0] == 1 for x in (p, q)):
        return kl_on_line(coordinates(p), coordinates(q), eps).squeeze(-1)
    if isinstance(p, KernelDistribution) and not isinstance(q, MultivariateNormal):
        return torch.where(lies_beyond(p, q, eps), math.inf, _kl_of_kernels(p, q))
    if isinstance(p, Mixture):
        return _at_nodes(p, q, p.log_prob, eps)
    cross = _cross_entropy(p, q, eps)
    finite = cross.isfinite()
    return torch.where(finite, torch.where(finite, cross, 0.0) - p.entropy(), math.inf)


def _cross_entropy(p: Any, q: Any, eps: float) -> Tensor:
    """By moments, by marginals, by rules made for the purpose, or else at the nodes of p's rule."""
    if isinstance(q, MultivariateNormal):
        return _normal_cross_entropy(p, q)
    if isinstance(q, MultivariateBetaGaussian):
        if isinstance(p, MultivariateBetaGaussian):
            return cross_entropy_of_ellipsoids(p, q, eps)
        if isinstance(p, MultivariateNormal) or _is_unbounded(p):
            shape = torch.broadcast_shapes(p.batch_shape, q.batch_shape)
            return q.loc.new_full(shape, math.inf)
    if isinstance(q, Independent) and isinstance(p, EllipticalDistribution):
        return cross_entropy(coordinates(p), q.base_dist, eps).sum(-1)
    return _at_nodes(p, q, lambda nodes: torch.zeros_like(nodes[..., 0]), eps)


def _at_nodes(p: Any, q: Any, log: Callable[[Tensor], Tensor], eps: float) -> Tensor:
    """Mean of a function less log q at the nodes of p's rule, infinite where p reaches beyond q."""
    nodes, weights = _rule(p)
    log_q = q.log_prob(nodes)
    missed = ((weights > 0) & (log_q == -math.inf)).any(0)
    edge = _edge(p, max(_INSIDE, 64 * eps))
    if edge is not None:
        missed = missed | ((q.log_prob(edge) == -math.inf) & ~edge.isnan().any(-1)).any(0)
    if (shapes := lies_inside(p, q, eps)) is not None:
        inside, decided = shapes
        missed = ~inside & (missed | decided)
    ratio = log(nodes) - log_q
    value = (weights * torch.where(ratio.isfinite(), ratio, 0.0)).sum(0)
    return torch.where(missed | lies_beyond(p, q, eps), math.inf, value)


def _normal_cross_entropy(p: Any, q: MultivariateNormal) -> Tensor:
    """A logarithm that is a quadratic takes two moments."""
    independent = isinstance(p, Independent)
    covariance = p.variance.diag_embed() if independent else p.covariance_matrix
    factor, offset = q.scale_tril, (p.mean - q.loc).unsqueeze(-1)
    scatter = covariance + offset @ offset.mT
    half = torch.linalg.solve_triangular(factor, scatter, upper=False)
    whole = torch.linalg.solve_triangular(factor, half.mT, upper=False)
    spread = whole.diagonal(dim1=-2, dim2=-1).sum(-1)
    found: Tensor = 0.5 * (spread + q.event_shape[0] * math.log(2 * math.pi)) + q._log_det()
    return found


def _is_unbounded(p: Any) -> bool:
    """Whether no density of a batch of products has a bounded support."""
    if not isinstance(p, Independent):
        return False
    return bool(intervals_of(p.base_dist).isinf().any(-1).any(-1).any(-1).all())


def _rule(p: Any) -> tuple[Tensor, Tensor]:
    """Nodes (Q, *batch, D) and weights (Q, *batch) of p."""
    dim = p.event_shape[0]
    if not isinstance(p, Independent):
        nodes, weights = p.quadrature(_ORDERS.get(dim, 64))
        return nodes, weights
    if dim not in _PRODUCT_ORDERS:
        raise NotImplementedError(
            f"no rule is known for products of more than {max(_PRODUCT_ORDERS)} numbers, got {dim}"
        )
    nodes, weights = p.base_dist.quadrature(_PRODUCT_ORDERS[dim])
    places = torch.cartesian_prod(*[torch.arange(len(nodes), device=nodes.device)] * dim)
    places = places.reshape(-1, dim)
    columns = range(dim)
    found = torch.stack([nodes[places[:, d], ..., d] for d in columns], -1)
    return found, torch.stack([weights[places[:, d], ..., d] for d in columns]).prod(0)


def _edge(p: Any, gap: float) -> Tensor | None:
    """Points (K, *batch, D) just inside the edge of p's support, if its shape is known.

    Some are NaN where a mixture has fewer components.
    """
    dim = p.event_shape[0]
    if (found := ellipsoids_of(p)) is not None:
        directions = direction_rule(dim, _EDGES, found.loc)[0] * (1 - gap)
        steps = (directions @ found.scale_tril.mT).movedim(-2, 0)
        edge: Tensor = (found.loc + steps).detach()
        return edge.movedim(-2, 1).flatten(0, 1)
    if isinstance(p, Independent):
        ends = intervals_of(p.base_dist).detach()  # (*batch, D, J, 2)
        low, high = ends[..., 0, 0], ends[..., -1, 1]
        if not bool((low.isfinite() & high.isfinite()).all()):
            return None
        signs = torch.tensor(list(product((-1.0, 1.0), repeat=dim))).to(low)
        signs = signs.reshape(-1, *(1,) * (low.dim() - 1), dim)
        corners: Tensor = (low + high) / 2 + (1 - gap) * signs * (high - low) / 2
        return corners
    return None


def _kl_of_kernels(p: KernelDistribution, q: Any) -> Tensor:
    """With p's own weights where q is positive at all nodes, else with plain ones."""
    panels = _cut(p.panels, q)
    nodes, log_p, log_q = _logs_at(panels, p, q)
    weights = p._weights_on(panels).to(p.weights).reshape(nodes.shape[0], *p.batch_shape)
    outside = log_q == -math.inf
    value = -(weights * torch.where(outside, 0.0, log_q)).sum(0) - p.entropy()
    missed = (outside & (log_p > -math.inf)).any(0)
    beyond = (outside & (weights != 0)).any(0) & ~missed
    if beyond.any():
        value = torch.where(beyond, _plain_kl(p, q, panels.with_order(_FINE)), value)
    return torch.where(missed, math.inf, value)


def _plain_kl(p: KernelDistribution, q: Any, panels: KernelMesh) -> Tensor:
    """With weights for smooth functions: the edges of a kernel family are not."""
    nodes, log_p, log_q = _logs_at(panels, p, q)
    both = log_p.isfinite() & log_q.isfinite()
    base = panels.base.log_density(panels.nodes)
    rule = panels.measure.flatten() * torch.exp(-base)
    density = torch.exp(log_p) * rule.reshape(-1, *(1,) * (log_p.dim() - 1))
    ratio = torch.where(both, log_p, 0.0) - torch.where(both, log_q, 0.0)
    found: Tensor = (density * ratio).sum(0) / density.sum(0)
    return found


def _logs_at(panels: KernelMesh, p: Any, q: Any) -> tuple[Tensor, Tensor, Tensor]:
    nodes = panels.nodes.reshape(len(panels.nodes), *(1,) * len(p.batch_shape), -1)
    logs = torch.broadcast_tensors(p.log_prob(nodes), q.log_prob(nodes))
    return nodes, *logs


def _cut(panels: KernelMesh, q: Any) -> KernelMesh:
    """Panels that end where a product has kinks along an axis."""
    if not isinstance(q, Independent) or not isinstance(q.base_dist, SymmetricDistribution):
        return panels
    kinks = q.base_dist.loc.detach()
    axes = [axis.cut(kinks[..., d].flatten()) for d, axis in enumerate(panels.axes)]
    return KernelMesh.of_axes(axes, panels.base, panels.tolerance)
