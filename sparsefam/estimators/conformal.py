"""Supports that contain a new observation with a given probability, by split conformal sets."""

import math
from typing import Any

import torch
from sklearn.utils import check_random_state
from torch import Tensor
from torch.distributions import Uniform

from ..distributions import KernelDeformedExp, Mixture
from ..distributions.base_measure import UniformOn, uniform_box
from ..kernels import kernel_matrix
from ..numerics.truncated_power import Power, integrals, sum_nodes
from ..supports import IntervalUnion
from .data import as_events, is_real
from .truncation import restricted

__all__ = ["split", "widened"]

# The least number of observations that are left for the fit which the others calibrate.
_FITTED = 20
# Rounding of products with 1 - coverage, and of ends, relative to the farthest distance.
_ROUNDING, _END = 1e-9, 1e-12
# A level is lowered by the first of these shares of its distance to the maximum that exceeds the
# error of the integral from which it is made. The last one leaves nothing out.
_SLACKS = (1e-4, 1e-3, 1e-2, 1.0)


def split(x: Tensor, coverage: Any, random_state: Any) -> tuple[Tensor, Tensor]:
    """Return the observations that calibrate a support, half or as many as it takes, and others."""
    if not is_real(coverage) or not 0 < coverage < 1:
        raise ValueError(f"coverage must be a number between 0 and 1, or None, got {coverage!r}")
    n, least = len(x), math.ceil(1 / (1 - coverage) - 1 - _ROUNDING)
    if n < least + _FITTED:
        raise ValueError(
            f"coverage={coverage:g} takes at least {least + _FITTED} observations, {least} of them "
            f"held out of the fit, got {n}"
        )
    order = torch.from_numpy(check_random_state(random_state).permutation(n))
    held, rest = x[order].tensor_split([max(n // 2, least)])
    if (rest == rest[0]).all(0).any():
        raise ValueError(
            f"X must have no constant column among the {len(rest)} observations that "
            f"coverage={coverage:g} leaves for a fit, got {rest.amin(0).tolist()} to "
            f"{rest.amax(0).tolist()}"
        )
    return held, rest


def widened(
    outer: Any, inner: Any, held: Tensor, rest: Tensor, coverage: float, limits: Tensor
) -> Mixture:
    r"""Widen the support of an estimate until it contains a new observation with a probability.

    The estimator `outer` is fitted to all observations, `inner` to the `rest` that are not among
    the m that are `held` (m, D). These are ranked by their distance to the support of `inner`; in
    several dimensions, or under a base that is not uniform, by a kernel density estimate from the
    rest. A new observation is exchangeable with them, so that it is further away than the one of
    rank $\lfloor (m + 1)(1 - coverage) \rfloor$ from the farthest with a probability of at most
    1 - coverage. All that is nearer is the new support, within known `limits` (D, 2).

    It stays a density as a mixture of the estimate, cut to the support if that consists of
    intervals, and of a density that is positive everywhere on the support, with the share of the
    `held` that `inner` misses.

    References:
        Lei, Robins and Wasserman (2013), Distribution-Free Prediction Sets. JASA 108, sec. 3.2.
        Papadopoulos et al. (2002), Inductive Confidence Machines for Regression. ECML.
    """
    rank = min(len(held), math.floor((len(held) + 1) * (1 - coverage) + _ROUNDING))
    missed = torch.isneginf(inner.density_.log_prob(as_events(held))).sum()
    share = (missed + 1) / (len(held) + 2)
    logits = torch.stack([1 - share, share]).log().to(held)
    p: KernelDeformedExp = outer._whole
    whole = p.mesh.base.factors[0]
    if held.shape[1] > 1 or not isinstance(whole, Uniform):
        return Mixture(logits, [outer.density_, _level_set(inner, held, rest, rank, limits)])
    intervals = _around(inner, held, rank, coverage).clamp(*limits[0].tolist())
    flat = _uniform(p, UniformOn(intervals, Uniform(intervals[0, 0], intervals[-1, 1])))
    inside = intervals.clamp(whole.low, whole.high)
    cut = restricted(p, inside[inside[:, 0] < inside[:, 1]])
    return Mixture(logits, [cut, flat])


def _around(inner: Any, held: Tensor, rank: int, coverage: float) -> Tensor:
    """Widen the support of a fit (J, 2) by the distance that is exceeded by `rank` of those held.

    Intervals with the least mass are left out as far as the others have the coverage.
    """
    order = (-inner.support_mass_).argsort()
    count = int((inner.support_mass_[order].cumsum() < coverage).sum()) + 1
    kept = torch.from_numpy(inner.support_[order[:count]])
    distance = torch.maximum(kept[:, 0] - held, held - kept[:, 1]).clamp_min(0).amin(-1)
    radius = distance.sort(descending=True).values[rank - 1]
    # An end may be an observation with ties, which rounding must not leave outside.
    radius = radius + _END * (kept.abs().amax() + radius)
    merged = IntervalUnion.merged(kept + radius * kept.new_tensor([-1.0, 1.0])).intervals
    return merged[~merged[:, 0].isnan()]


def _level_set(
    inner: Any, held: Tensor, rest: Tensor, rank: int, limits: Tensor
) -> KernelDeformedExp:
    r"""Return a density on $\{g \ge \tau\}$, with the level $\tau$ of the given rank.

    g is a sum of the fitted kernels, each observation counted at the nearest inducing point: unlike
    the fitted score it has no maxima far from all data. Where so many of those held are outside of
    the box of the fit, the density is uniform on a larger box.
    """
    p: KernelDeformedExp = inner._whole
    low, high = held.new_tensor([p.mesh.base.bounds(d) for d in range(held.shape[1])]).T
    side = high - low
    beyond = torch.maximum(low - held, held - high).clamp_min(0) / side
    farthest = beyond.amax(-1)
    reach = farthest.sort(descending=True).values[rank - 1]
    if reach > 0:
        reach = reach + _END * (low.abs().maximum(high.abs()) / side + reach)
        low = torch.maximum(low - reach * side, limits[:, 0])
        high = torch.minimum(high + reach * side, limits[:, 1])
        return _uniform(p, uniform_box(low, high))
    points = p.inducing_points.reshape(-1, held.shape[1])
    nearest = kernel_matrix(p.kernel, rest, points).argmax(-1)
    shares = torch.bincount(nearest, minlength=len(points)).to(held) / len(rest)
    values = kernel_matrix(p.kernel, held, points) @ shares
    level = torch.where(farthest > 0, -torch.inf, values).sort().values[rank - 1]
    top = (kernel_matrix(p.kernel, points, points) @ shares).amax()
    for slack in _SLACKS:
        lowered = level - slack * (top - level)
        found = _above(p, shares, lowered, top - lowered)
        inside = found.log_prob(as_events(held)).isfinite().sum()
        if inside > len(held) - rank:
            break
    return found


def _above(p: KernelDeformedExp, shares: Tensor, level: Tensor, unit: Tensor) -> KernelDeformedExp:
    r"""Return $[g - \tau]_+^{1/(\alpha - 1)} q_0$, normalised, at about the given level."""
    eps = float(p.alpha) - 1
    nodes = p.mesh.nodes
    g = shares @ kernel_matrix(p.kernel, p.inducing_points.reshape(-1, nodes.shape[1]), nodes)
    relative = ((g - level) / unit).reshape(*p.mesh.measure.shape, 1)
    mass = sum_nodes(integrals((relative - 1) / eps, p._measure(p.mesh), Power(eps))[0])
    factor = mass**-eps / (eps * unit)
    return KernelDeformedExp(
        factor * shares, p.inducing_points, p.kernel, p.base, 1 + eps, tolerance=p.mesh.tolerance
    )


def _uniform(p: KernelDeformedExp, base: Any) -> KernelDeformedExp:
    """Return a base as a member of the family of p."""
    centre = [base.mean] if isinstance(base, UniformOn) else [[factor.mean for factor in base]]
    points = p.weights.new_tensor(centre)
    zero, alpha = p.weights.new_zeros(1), float(p.alpha)
    linear = torch.inner
    return KernelDeformedExp(zero, points, linear, base, alpha, tolerance=p.mesh.tolerance)
