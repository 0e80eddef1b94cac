r"""What scores lose to the data: $\Omega_\alpha(q) - E_q[f]$ of samples and of densities q."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution

from ..distributions import SparseCategorical, SparseDistribution
from ..distributions.kernel_family import KernelDistribution
from ..distributions.torch_adapter import cuts_of, to_float64
from ..numerics.deformed import log_beta
from ..numerics.quadrature import line_integral
from ..numerics.validation import attributes, copied, require
from ..scores import AbsoluteDeviation, Finite, LocationScale, LogDensity, Score

__all__ = ["loss_of"]


def loss_of(target: object, score: Score, p: SparseDistribution) -> Tensor:
    r"""$\Omega_\alpha(q) - E_q[f]$ of a target q; of a sample t in a continuous domain $-f(t)$.

    Args:
        target: Locations (*S, *batch, *event), or a density.
        score: The score f.
        p: Its prediction map.
    """
    # Not functools.singledispatch, which torch 2.6 cannot compile.
    if isinstance(target, Tensor):
        return _of_samples(target, score, p)
    if isinstance(target, Distribution):
        return _of_density(target, score, p)
    raise ValueError(f"target must be a tensor of samples or a distribution, got {target!r}")


def _of_samples(target: Tensor, score: Score, p: SparseDistribution) -> Tensor:
    _require_fitting(target, p)
    if isinstance(score, Finite):
        return -_scores_of(score, target)
    if isinstance(p, KernelDistribution):
        located = target if p.event_shape else target.unsqueeze(-1)
        p.panels.base.require_inside("target", located)
    return -score(target)


def _of_density(target: Distribution, score: Score, p: SparseDistribution) -> Tensor:
    if isinstance(score, Finite):
        return _of_categories(target, score, p)
    _require_density(target, score, p)
    shape = torch.broadcast_shapes(target.batch_shape, p.batch_shape)
    q, f = to_float64(target).expand(shape), _doubled(score)
    alpha, relative = p.alpha.double(), _log_base(p)

    def cost(t: Tensor) -> Tensor:
        """Per mass of q."""
        base = relative(t)
        log = q.log_prob(t) - base
        ratio = torch.exp(torch.where(log.isinf(), 0.0, log))
        found = log_beta(ratio, 2 - alpha) / alpha - f(t)
        # Beyond the base it is infinite, but where rounding puts a node on the edge of q.
        beyond = torch.where((base == -math.inf) & (log > 0), math.inf, 0.0)
        return torch.where(log.isinf(), beyond, found)

    def mass(t: Tensor, costs: Tensor) -> Tensor:
        """That of q, which may be infinite on an edge where nothing is to be paid."""
        return torch.where(costs == 0, 0.0, q.prob(t)) * costs

    if p.event_shape:
        found: Tensor = q.expect(cost)
    else:
        found = line_integral(lambda t: mass(t, cost(t)), _with_kinks(cuts_of(q), f))
    return found.to(p.alpha.dtype)


def _require_density(target: Distribution, score: Score, p: SparseDistribution) -> None:
    if isinstance(target, SparseCategorical | Categorical):
        raise ValueError(f"target must be a density for {type(score).__name__}, got {target!r}")
    if target.event_shape != p.event_shape:
        raise ValueError(
            f"target must have event shape {tuple(p.event_shape)}, got {tuple(target.event_shape)}"
        )


def _of_categories(target: Any, score: Finite, p: SparseDistribution) -> Tensor:
    size = score.scores.shape[-1]
    discrete = isinstance(target, SparseCategorical | Categorical)
    if not discrete or target.probs.shape[-1] != size:
        raise ValueError(f"target must be a law of {size} categories, got {target!r}")
    q = SparseCategorical(target.probs, p.alpha, validate_args=False)
    # A category that the score excludes and the target has costs infinitely much.
    return -q.tsallis_entropy() - (q.probs * score.scores.masked_fill(q.probs == 0, 0.0)).sum(-1)


def _scores_of(score: Finite, target: Tensor) -> Tensor:
    shape = torch.broadcast_shapes(target.shape, score.scores.shape[:-1])
    table = score.scores.expand(*shape, -1)
    return table.gather(-1, target.long().expand(shape).unsqueeze(-1)).squeeze(-1)


def _require_fitting(target: Tensor, p: SparseDistribution) -> None:
    event = tuple(p.event_shape)
    fits = target.shape[target.dim() - len(event) :] == p.event_shape
    try:
        torch.broadcast_shapes(target.shape[: target.dim() - len(event)], p.batch_shape)
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"target must broadcast with batch shape {tuple(p.batch_shape)} and end in event shape "
            f"{event}, got shape {tuple(target.shape)}"
        )
    if not isinstance(p, SparseCategorical):
        require(torch.isfinite(target), "target", "finite", target)
        return
    if target.is_floating_point():
        raise ValueError(f"target must be integers, the categories, got {target.dtype}")
    last = p.probs.shape[-1] - 1
    require((target >= 0) & (target <= last), "target", f"categories 0 to {last}", target)


def _doubled(score: Score) -> Score:
    new = copied(score)
    for name, value in attributes(score).items():
        if isinstance(value, Tensor):
            setattr(new, name, value.double())
    if isinstance(new, LogDensity):
        new.density = to_float64(new.density)
    return new


def _log_base(p: Any) -> Any:
    """The log density relative to which entropies are, at locations; 0 where there is no base."""
    if not isinstance(p, KernelDistribution):
        return lambda t: t.new_zeros(())
    log_density = p.panels.base.log_density
    return log_density if p.event_shape else lambda t: log_density(t.unsqueeze(-1))


def _with_kinks(cuts: Tensor, score: Score) -> Tensor:
    if not isinstance(score, AbsoluteDeviation | LocationScale):
        return cuts
    kink = score.loc.double().expand(cuts.shape[:-1]).unsqueeze(-1)
    return torch.cat([cuts, kink.clamp(cuts.amin(-1, True), cuts.amax(-1, True))], -1)
