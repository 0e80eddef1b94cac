"""Whether supports of vectors are nested, as far as their shapes tell."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Independent

from .adoption import intervals_of
from .divergence_ellipsoids import Ellipsoids, ellipsoid_in
from .foreign import ForeignDistribution
from .kernel_family import KernelDistribution
from .mixture import Mixture
from .multivariate import MultivariateBetaGaussian
from .multivariate_normal import MultivariateNormal
from .widened import widened

__all__ = ["ellipsoids_of", "lies_beyond", "lies_inside"]

# By how many rounding errors ends may miss each other that are meant to be one.
_ULPS = 8


def lies_beyond(p: Any, q: Any, eps: float) -> Tensor:
    """Whether p's support cannot lie in q's (*batch): it reaches beyond a box around that."""
    inner, outer = _box(p, True).detach(), _box(q, False).detach()
    sizes = [torch.where(x.isfinite(), x, 0.0).abs().amax((-2, -1)) for x in (inner, outer)]
    slack = (_ULPS * eps * torch.maximum(*sizes)).unsqueeze(-1)
    low, high = inner[..., 0] < outer[..., 0] - slack, inner[..., 1] > outer[..., 1] + slack
    beyond: Tensor = (low | high).any(-1)
    return beyond


def lies_inside(p: Any, q: Any, eps: float) -> tuple[Tensor, Tensor] | None:
    """Whether the ellipsoids of p each lie in one of q's (*batch), and whether that decides.

    It does where q has but one. None unless the supports are ellipsoids or unions of some.
    """
    inner, outer = ellipsoids_of(p), ellipsoids_of(q)
    if inner is None or outer is None:
        return None
    (inner, known), (outer, present) = _filled(inner), _filled(outer)
    one = Ellipsoids(inner.loc.unsqueeze(-2), inner.scale_tril.unsqueeze(-3))
    two = Ellipsoids(outer.loc.unsqueeze(-3), outer.scale_tril.unsqueeze(-4))
    inside = (ellipsoid_in(one, two, eps) & present.unsqueeze(-2)).any(-1)
    return (inside | ~known).all(-1), present.sum(-1) == 1


def ellipsoids_of(p: Any) -> Ellipsoids | None:
    """Those whose union is the support (*batch, K), NaN where there are fewer; None of others."""
    if isinstance(p, MultivariateBetaGaussian):
        return Ellipsoids(p.loc.unsqueeze(-2), p.scale_tril.unsqueeze(-3))
    parts = p.parts.parts if isinstance(p, Mixture) else []
    if not parts or not all(isinstance(part, MultivariateBetaGaussian) for part in parts):
        return None
    present = p.logits > -math.inf
    return Ellipsoids(
        p.parts.rows(lambda part: part.loc.unsqueeze(-2), present),
        p.parts.rows(lambda part: part.scale_tril.unsqueeze(-3), present),
    )


def _filled(balls: Ellipsoids) -> tuple[Ellipsoids, Tensor]:
    """With unit balls in place of NaN, and which are none of these (*batch, K)."""
    present = ~balls.loc.isnan().any(-1)
    unit = torch.eye(balls.loc.shape[-1]).to(balls.loc)
    loc = torch.where(present.unsqueeze(-1), balls.loc, 0.0)
    return Ellipsoids(loc, torch.where(present[..., None, None], balls.scale_tril, unit)), present


def _box(p: Any, tight: bool) -> Tensor:
    """Ends (*batch, D, 2) of a box around a support.

    Args:
        p: The density.
        tight: Whether the support must touch all sides of it: where that is not known it is empty.
    """
    if isinstance(p, Independent):
        return _around(intervals_of(p.base_dist), -1)
    if isinstance(p, ForeignDistribution) and isinstance(p.base, Independent):
        return _box(widened(p.base), tight)
    shape = p.batch_shape + p.event_shape + (2,)
    whole: Tensor = p.alpha.new_tensor([-math.inf, math.inf]).expand(shape)
    if isinstance(p, MultivariateNormal):
        return whole
    if isinstance(p, MultivariateBetaGaussian):
        reach = torch.linalg.vector_norm(p.scale_tril, dim=-1)
        return torch.stack([p.loc - reach, p.loc + reach], -1)
    if isinstance(p, Mixture):
        boxes = p.parts.rows(lambda part: _box(part, tight).unsqueeze(-3), p.logits > -math.inf)
        return _around(boxes, -2)
    if isinstance(p, KernelDistribution):
        base = p.panels.base
        ends = whole.new_tensor([base.bounds(axis) for axis in range(base.dim)])
        known = (p.alpha == 1)[..., None, None] | (not tight)
        return torch.where(known, ends, -whole)
    return -whole if tight else whole


def _around(ends: Tensor, dim: int) -> Tensor:
    """What holds all intervals along a dimension of ends (..., 2), NaN where there are fewer."""
    low, high = ends.unbind(-1)
    low = torch.where(low.isnan(), math.inf, low).amin(dim)
    return torch.stack([low, torch.where(high.isnan(), -math.inf, high).amax(dim)], -1)
