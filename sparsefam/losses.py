r"""Fenchel-Young losses of scores, last layers that are trained with them, and a kernel loss."""

import math
from collections.abc import Callable
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution
from torch.nn.functional import softplus

from ._numerics.deformed import log_beta
from ._numerics.quadrature import line_integral
from ._numerics.validation import (
    as_number,
    as_tensors,
    broadcast_shapes,
    require,
    require_integer,
    require_tensor,
)
from ._prediction_map import rpm
from .distributions import SparseCategorical, SparseDistribution
from .distributions._kernel.base_measure import Base
from .distributions._torch_adapter import to_float64
from .distributions.kernel_family import KernelDistribution
from .scores import AbsoluteDeviation, Finite, LocationScale, LogDensity, Quadratic, Score

__all__ = ["ClassificationHead", "RegressionHead", "conjugate", "fenchel_young", "mmd"]

Reduction = Literal["mean", "sum", "none"]

# The inverse softplus of 1, with which the sigma of a head starts; and the least sigma.
_FIRST_WIDTH, _LEAST_SIGMA = math.log(math.expm1(1)), 1e-6
# Pairs of samples whose kernel is evaluated at a time.
_PAIRS = 1 << 22
# The default order of quadrature in `mmd` is so many times the extent of the density over the width
# of the kernel, within two limits: neighboring nodes are then closer than a width.
_ORDER_PER_WIDTH, _LEAST_ORDER, _MOST_ORDER = 4, 32, 2048


def fenchel_young(
    score: Score,
    target: Tensor | Distribution,
    alpha: Tensor | float = 2.0,
    *,
    base: Base = None,
    weight: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Return the Fenchel-Young loss of a score for samples or for a density.

    $$L_\alpha(f; q) = \Omega^*_\alpha(f) + \Omega_\alpha(q) - E_q[f],\qquad
      \nabla_\theta L_\alpha = E_p[\nabla_\theta f] - E_q[\nabla_\theta f]$$

    It is convex in the score, nonnegative for a density q, and 0 only if q is the prediction map p
    of the score. For a sample t the term $\Omega_\alpha(q)$, infinite in a continuous domain, is
    left out: $\Omega^*_\alpha(f) - f(t)$. At alpha = 1 that is $-\log p(t)$; above, it stays finite
    and has gradients where p(t) is 0 and a likelihood has none.

    Args:
        score: The score f (*batch).
        target: Samples (*S, *batch, *event), integer categories for a `Finite` score; or a density
            whose batch broadcasts with the score's.
        alpha: Entropic index, at least 1 and finite.
        base: Base density of an expansion in kernels or a basis, as for `rpm`; entropies are
            relative to it.
        weight: Nonnegative weights of the samples, broadcast against the losses.
        reduction: "mean" (weighted), "sum" or "none".

    Returns:
        A number, or for "none" the losses (*S, *batch) of samples, (*batch) of densities.

    Raises:
        ValueError: An argument that `rpm` refuses; `alpha` infinite; a target of another shape or
            kind, not finite, or outside of the base's support; weights that are negative, not
            finite or all zero; another reduction.

    References:
        Blondel, Martins and Niculae (2020), Learning with Fenchel-Young losses. JMLR 21.
        Martins et al. (2020), Sparse and Continuous Attention Mechanisms, Def. 1.

    Examples:
        >>> import sparsefam as sf
        >>> score = sf.scores.Quadratic(torch.tensor(0.0), sigma=1.0)
        >>> fenchel_young(score, torch.tensor([0.5, 3.0]), alpha=2.0)  # 3.0 is off the support
        tensor(2.4194)
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
    if not isinstance(score, Score):
        raise ValueError(f"score must be one of sparsefam.scores, got {score!r}")
    if isinstance(score, Finite):
        # Subtracting a constant does not change the loss, and avoids cancellation.
        score = Finite(score.scores - score.scores.detach().amax(-1, keepdim=True))
    p = rpm(score, alpha, base)
    require(torch.isfinite(p.alpha), "alpha", "finite", alpha)
    if isinstance(target, Tensor):
        losses = conjugate(score, p) - _score_of_samples(target, score, p)
    elif isinstance(target, Distribution):
        losses = conjugate(score, p) + _term_of_density(target, score, p)
    else:
        raise ValueError(f"target must be a tensor of samples or a distribution, got {target!r}")
    return _reduced(losses, weight, reduction)


def conjugate(score: Score, p: SparseDistribution) -> Tensor:
    r"""Return $\Omega^*_\alpha(f) = \max_p E_p[f] - \Omega_\alpha(p)$, (*batch).

    It equals $A_\alpha + (\alpha - 1)\,\Omega_\alpha(p)$, because $p^{\alpha - 1} = 1 + (\alpha -
    1)(f - A_\alpha)$ on the support. Its derivative along a change of the score is the mean of that
    change.

    Args:
        score: The score f.
        p: Its prediction map, as `rpm` returns it.

    References:
        Martins et al. (2020), Sparse and Continuous Attention Mechanisms, eq. 25 (App. B.2).
    """
    if isinstance(score, Finite):
        return _mean_score(cast(SparseCategorical, p).probs, score) + p.tsallis_entropy()
    # E_p[f] = A + alpha Omega(p), so E_p[f] - Omega(p) is A + (alpha - 1) Omega(p). The Tsallis
    # entropy is -Omega(p).
    return p.log_normalizer - (p.alpha - 1) * p.tsallis_entropy()


def mmd(
    p: SparseDistribution, samples: Tensor, width: Tensor | float, order: int | None = None
) -> Tensor:
    r"""Return the squared maximum mean discrepancy of a density and samples (*batch).

    $$\|\mu_p - \mu_n\|^2 = E_p[k(s, t)] - \frac2n \sum_i E_p[k(t, x_i)]
      + \frac1{n^2} \sum_{ij} k(x_i, x_j), \qquad k(s, t) = e^{-|s - t|^2/(2 w^2)}$$

    The kernel mean embedding $\mu_p = E_p[k(t, \cdot)]$ is exact: nothing is sampled from p, so
    that the loss has no variance. It is finite, with gradients, also off the support. With one
    sample for each density it is the kernel score, a proper loss of regressions.

    Args:
        p: The density (*batch) of numbers or vectors.
        samples: Samples (n, *event) for all densities, or (n, *batch, *event) for each of them.
        width: Standard deviation w of the Gaussian kernel, a number.
        order: As in `p.quadrature`, for the first term. Default: enough for nodes to be closer than
            w, which reads values; give it in compiled graphs and transforms.

    Raises:
        ValueError: `samples` of another shape or not finite; `width` not positive and finite, or so
            narrow that thousands of nodes are too few; `order` out of range; or no density of this
            package.

    References:
        Gretton et al. (2012), A Kernel Two-Sample Test. JMLR 13, lemma 6.

    Examples:
        >>> import sparsefam as sf
        >>> mmd(sf.TruncatedParabola(0.0, 1.0), torch.tensor([-0.5, 0.1, 0.4]), width=0.5)
        tensor(0.0088)
    """
    if not isinstance(p, SparseDistribution) or p.has_enumerate_support:
        raise ValueError(f"p must be a density of sparsefam, got {p!r}")
    shape = samples.shape[1:] if isinstance(samples, Tensor) and samples.dim() else None
    shapes = (p.event_shape, p.batch_shape + p.event_shape)
    if shape not in shapes or not len(samples) or not samples.is_floating_point():
        rule = " or ".join(f"(n, *{tuple(x)})" for x in dict.fromkeys(shapes))
        raise ValueError(f"samples must be a floating tensor {rule}, got {samples!r}")
    require(samples.isfinite(), "samples", "finite", samples)
    width = as_tensors(width=width)["width"].to(p._like)
    require(width.isfinite() & (width > 0), "width", "positive and finite", width)
    nodes, weights = p.quadrature(_order_for(p, width) if order is None else order)
    # Nodes t (*batch, Q, D) and samples x (*batch, n, D), in units of the kernel's width.
    t, x = (y if p.event_shape else y.unsqueeze(-1) for y in (nodes, samples.to(p._like)))
    t, x = t.movedim(0, -2) / width, x.movedim(0, -2) / width
    weights, count = weights.movedim(0, -1).unsqueeze(-1), len(samples)
    # The squared norm of mu_p - mu_n, multiplied out: Gretton et al. (2012), lemma 6.
    within_density = (weights * _mean_kernel(t, t, weights)).sum((-1, -2))
    between = _mean_kernel(x, t, weights).mean((-1, -2))
    within_samples = _mean_kernel(x, x, x.new_full((count, 1), 1 / count)).mean((-1, -2))
    return within_density - 2 * between + within_samples


def _mean_kernel(x: Tensor, t: Tensor, weights: Tensor) -> Tensor:
    """Return sum_m w_m exp(-|x - t_m|^2 / 2), the mean of Gaussian kernels of width 1 at each x.

    Args:
        x: Locations (*batch, N, D).
        t: Centers of the kernels (*batch, M, D).
        weights: Their weights w (*batch, M, 1), or (M, 1) for all densities.

    Returns:
        The means (*batch, N, 1).
    """
    means = []
    for y in x.split(max(1, _PAIRS // weights.numel()), -2):
        # By differences: products of matrices would lose the digits of far locations.
        distance = torch.cdist(y, t, compute_mode="donot_use_mm_for_euclid_dist")
        means.append(torch.exp(-0.5 * distance.square()) @ weights)
    return torch.cat(means, -2)


@torch.no_grad()
def _order_for(p: SparseDistribution, width: Tensor) -> int:
    """Return an order of quadrature whose nodes resolve Gaussian kernels of a width.

    The widest density of the batch determines it, since one order serves all.
    """
    # The outermost nodes (*batch[, D]) show the extent of a density, with an infinite support, too.
    low, high = p.quadrature(_LEAST_ORDER)[0].aminmax(dim=0)
    order = math.ceil(_ORDER_PER_WIDTH * float(((high - low) / width).max()))
    rule = f"at least {_ORDER_PER_WIDTH / _MOST_ORDER:.1g} of the extent of the density"
    require(torch.tensor(order <= _MOST_ORDER), "width", rule, width)
    return max(_LEAST_ORDER, order)


def _mean_score(probs: Tensor, score: Finite) -> Tensor:
    """Return E[f] under probabilities (*batch, K), where zero times -inf is zero."""
    return (probs * score.scores.masked_fill(probs == 0, 0.0)).sum(-1)


def _reduced(losses: Tensor, weight: Tensor | None, reduction: Reduction) -> Tensor:
    """Return the weighted mean or sum of losses (...), or for "none" the weighted losses (...).

    Weights broadcast against the losses; the mean is the sum over the total weight.
    """
    if weight is None:
        return losses if reduction == "none" else cast(Tensor, getattr(losses, reduction)())
    require_tensor("weight", weight)
    require(torch.isfinite(weight) & (weight >= 0), "weight", "finite, at least 0", weight)
    require((weight > 0).any(), "weight", "positive somewhere", weight)
    try:
        losses, weight = torch.broadcast_tensors(losses, weight)
    except RuntimeError:
        shape = tuple(losses.shape)
        got = f"got shape {tuple(weight.shape)}"
        raise ValueError(f"weight must broadcast with losses {shape}, {got}") from None
    # A sample of weight 0 is ignored even if its loss is infinite.
    weighted = torch.where(weight > 0, weight * losses, 0.0)
    if reduction == "none":
        return weighted
    return weighted.sum() / (weight.sum() if reduction == "mean" else 1)


def _score_of_samples(target: Tensor, score: Score, p: SparseDistribution) -> Tensor:
    """Return the scores f(t) (*S, *batch) of samples t (*S, *batch, *event), which are checked.

    The density p is the prediction map of f: samples must be in the support of its base.
    """
    if isinstance(score, Finite):
        return _scores_of_categories(score, target, p)
    p._validate_sample(target, "target")
    require(torch.isfinite(target), "target", "finite", target)
    if isinstance(p, KernelDistribution):
        located = target if p.event_shape else target.unsqueeze(-1)
        p.mesh.base.require_inside("target", located)
    return score(target)


def _scores_of_categories(score: Finite, target: Tensor, p: SparseDistribution) -> Tensor:
    """Return the entries f_t (*S, *batch) of scores (*batch, K) at categories t (*S, *batch).

    The distribution p of the categories checks their shape.
    """
    if target.is_floating_point():
        raise ValueError(f"target must be integers, the categories, got {target.dtype}")
    target = target.long()
    p._validate_sample(target, "target")
    last = score.scores.shape[-1] - 1
    require((target >= 0) & (target <= last), "target", f"categories 0 to {last}", target)
    shape = broadcast_shapes(target.shape, score.scores.shape[:-1])
    table = score.scores.expand(*shape, -1)
    return table.gather(-1, target.expand(shape).unsqueeze(-1)).squeeze(-1)


def _term_of_density(target: Distribution, score: Score, p: SparseDistribution) -> Tensor:
    r"""Return $\Omega_\alpha(q) - E_q[f]$, (*batch), of a density or categorical distribution q.

    Args:
        target: The distribution q.
        score: The score f.
        p: Its prediction map, which has alpha and the base.
    """
    categorical = target if isinstance(target, (SparseCategorical, Categorical)) else None
    if isinstance(score, Finite):
        size = score.scores.shape[-1]
        if categorical is None or categorical.probs.shape[-1] != size:
            raise ValueError(f"target must be a distribution of {size} categories, got {target!r}")
        q = SparseCategorical(categorical.probs, p.alpha, validate_args=False)
        return -q.tsallis_entropy() - _mean_score(q.probs, score)
    if categorical is not None:
        raise ValueError(f"target must be a density for {type(score).__name__}, got {target!r}")
    if target.event_shape != p.event_shape:
        raise ValueError(
            f"target must have event shape {tuple(p.event_shape)}, got {tuple(target.event_shape)}"
        )
    shape = broadcast_shapes(target.batch_shape, p.batch_shape)
    density = to_float64(target).expand(shape)
    f = LogDensity(to_float64(score.density)) if isinstance(score, LogDensity) else score
    alpha, log_base = p.alpha.double(), _log_base(p)

    def cost(t: Tensor) -> Tensor:
        """Return the integrand over q: log_{2 - alpha}(q / base) / alpha - f."""
        log_reference = log_base(t)
        log_ratio = density.log_prob(t) - log_reference
        ratio = torch.exp(torch.where(log_ratio.isinf(), 0.0, log_ratio))
        # Omega(q) = E_q[log_{2 - alpha}(q / base)] / alpha.
        finite = log_beta(ratio, 2 - alpha) / alpha - f(t)
        # Infinite off the base's support, unless rounding puts a node on the edge of q.
        off_base = torch.where((log_reference == -math.inf) & (log_ratio > 0), math.inf, 0.0)
        return torch.where(log_ratio.isinf(), off_base, finite)

    def integrand(t: Tensor) -> Tensor:
        """Return the density q times the cost."""
        costs = cost(t)
        # The density q may be infinite at an edge where the cost is zero.
        return torch.where(costs == 0, 0.0, density.prob(t)) * costs

    if p.event_shape:
        integral: Tensor = density.expect(cost)
    else:
        integral = line_integral(integrand, _with_kinks(density._cuts(), f))
    return integral.to(p._like.dtype)


def _log_base(p: SparseDistribution) -> Callable[[Tensor], Tensor]:
    """Return the log density of the base as a function of locations; 0 if there is no base.

    Entropies of kernel densities are relative to their base.
    """
    if not isinstance(p, KernelDistribution):
        return lambda t: t.new_zeros(())
    log_density = p.mesh.base.log_density
    return log_density if p.event_shape else lambda t: log_density(t.unsqueeze(-1))


def _with_kinks(cuts: Tensor, score: Score) -> Tensor:
    """Return the ends (*batch, J) of the pieces of an integral, and the kink of a score if any."""
    if not isinstance(score, (AbsoluteDeviation, LocationScale)):
        return cuts
    # Quadrature is exact to rounding only on pieces where the score is smooth. A kink outside of
    # the outermost ends is moved onto one, where it adds an empty piece.
    kink = score.loc.double().expand(cuts.shape[:-1]).unsqueeze(-1)
    return torch.cat([cuts, kink.clamp(cuts.amin(-1, True), cuts.amax(-1, True))], -1)


def checked_alpha(alpha: float) -> float:
    """Return an entropic index; raise ValueError unless it is finite and at least 1."""
    if isinstance(alpha, Tensor):
        require(torch.isfinite(alpha) & (alpha >= 1), "alpha", "finite, at least 1", alpha)
    elif not 1 <= as_number(alpha) < math.inf:
        raise ValueError(f"alpha must be finite, at least 1, got {alpha!r}")
    return alpha


class _Head(nn.Module):
    """Map features to densities: a linear layer for the parameters of a score, and then `rpm`.

    Args:
        in_features: Number of features.
        out_features: Number of parameters of the score.
        alpha: Entropic index, at least 1 and finite.
    """

    def __init__(self, in_features: int, out_features: int, alpha: float) -> None:
        super().__init__()
        require_integer("in_features", in_features, 1)
        self.alpha = checked_alpha(alpha)
        self.linear = nn.Linear(in_features, out_features)

    def score(self, features: Tensor) -> Score:
        """Return the scores (*batch) of features (*batch, in_features)."""
        raise NotImplementedError

    def forward(self, features: Tensor) -> SparseDistribution:
        """Return the densities (*batch) of features (*batch, in_features)."""
        return rpm(self.score(features), self.alpha)

    def loss(self, features: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the mean Fenchel-Young loss of targets (*batch); see `fenchel_young`.

        Raises:
            ValueError: Targets of another batch, which would broadcast to a table.
        """
        batch = features.shape[:-1]
        if target.shape[target.dim() - len(batch) :] != batch:
            got = tuple(target.shape)
            raise ValueError(f"target must end in the batch {tuple(batch)}, got shape {got}")
        return fenchel_young(self.score(features), target, self.alpha, weight=weight)


class RegressionHead(_Head):
    r"""Map features to a density of one number: at alpha = 2 a truncated parabola.

    A linear layer gives the location and the width. The support bounds the targets that can
    occur, and the loss matches mean and variance to the targets, at every alpha.

    Args:
        in_features: Number of features.
        alpha: Entropic index, at least 1 and finite.

    Raises:
        ValueError: `in_features` is not a positive integer; `alpha` is below 1 or infinite.

    References:
        Blondel, Martins and Niculae (2020), Learning with Fenchel-Young losses. JMLR 21.

    Examples:
        >>> head = RegressionHead(3)
        >>> density = head(torch.zeros(5, 3))
        >>> density.support.intervals.shape  # lower and upper ends
        torch.Size([5, 1, 2])
    """

    def __init__(self, in_features: int, alpha: float = 2.0) -> None:
        super().__init__(in_features, 2, alpha)
        with torch.no_grad():
            # Near the mean 0 and the deviation 1 of standardized targets.
            self.linear.bias.copy_(torch.tensor([0.0, _FIRST_WIDTH]))

    def score(self, features: Tensor) -> Quadratic:
        """Return the scores (*batch) of features (*batch, in_features)."""
        loc, width = self.linear(features).unbind(-1)
        return Quadratic(loc, softplus(width) + _LEAST_SIGMA)


class ClassificationHead(_Head):
    """Map features to sparse probabilities of classes: softmax at alpha = 1, sparsemax at 2.

    Args:
        in_features: Number of features.
        num_classes: Number of classes.
        alpha: Entropic index, at least 1 and finite.

    Raises:
        ValueError: `in_features` or `num_classes` is not a positive integer; `alpha` is below 1 or
            infinite.

    References:
        Martins and Astudillo (2016), From Softmax to Sparsemax.
    """

    def __init__(self, in_features: int, num_classes: int, alpha: float = 2.0) -> None:
        require_integer("num_classes", num_classes, 1)
        super().__init__(in_features, num_classes, alpha)

    def score(self, features: Tensor) -> Finite:
        """Return the scores (*batch, num_classes) of features (*batch, in_features)."""
        return Finite(self.linear(features))
