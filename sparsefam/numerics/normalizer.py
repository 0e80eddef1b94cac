r"""Deformed exponentials of scores on panels: their normaliser, their weights, their derivatives.

$p = [1 + \epsilon(f - A)]_+^{1/\epsilon}$ has mass 1 for one $A$. The norm
$\|[1 + \epsilon(f - A)]_+\|_{1/\epsilon}$ is convex and decreasing in $A$ (Minkowski), so Newton's
method on it rises to the root from any lower bound and never passes it. No derivative goes through
the steps: $dA = \int p^{2-\alpha}\,df / \int p^{2-\alpha}$ (Prop. 2 of the kernel paper).
"""

import math
from typing import Any

import torch
from torch import Tensor

from .deformed import expm1_ratio
from .power_integrals import (
    fold_rows,
    power_slopes,
    save_power,
    saved_power,
    second_weights,
    sum_panels,
    unfold_rows,
)
from .truncated import Power
from .weights import find_weights

__all__ = ["normalized_weights"]

# A step after which the error is that of the rule's own weights, so that effective ones come next.
_NEAR = 1e-3
# An error of the mass that falls no more is rounding's if it is below this.
_STALLED = 0.1
# Steps after the first effective weights, at most.
_MOST_STEPS = 30


def normalized_weights(f: Tensor, measure: Tensor, eps: Tensor | float) -> tuple[Tensor, ...]:
    r"""$A$ (R,) with mass 1, weights of $p$ and of $p^{2-\alpha}$ (m, G, R), and the mass (R,).

    Differentiable in f, twice where eps is a number, and in a tensor eps. The mass, which has no
    derivative, tells what rounding left: it is far from 1 where scores are too large for the dtype.

    Args:
        f: Scores at the nodes of panels, (m, G, R).
        measure: The rule's own weights, times a base density, (m, G, 1).
        eps: alpha - 1 in [0, 1], a number or (R,).
    """
    # Next to its top, where a density is, a score less its top keeps all its digits.
    top = f.detach().flatten(0, 1).amax(0)
    level, w, lowered, mass = _Normalized.apply(f - top, measure, eps)
    return level + top, w, lowered, mass


def _solve(f: Tensor, measure: Tensor, of: Power) -> tuple[Tensor, ...]:
    """The normaliser (R,), the weights of the power and of the lowered one, and the mass (R,)."""
    level = _nearly(f, measure, of)
    weights, lowered = find_weights(f - level, measure, of, "power lowered")
    looks = f.numel() > 0 and not (f.is_cuda or torch.compiler.is_compiling())
    close = torch.finfo(f.dtype).eps * measure.numel() ** 0.5
    rows, best, before = None, math.inf, (level, weights, lowered)
    # Where values are not looked at; the exponential's normaliser is exact by now.
    blind = 0 if of.is_exponential else 3 if f.dtype == torch.float64 else 2
    for _ in range(_MOST_STEPS if looks else blind):
        mass = sum_panels(weights)
        if looks:
            error = (mass - 1).abs()
            worst = float(error.amax())
            if worst < _STALLED and worst >= best:
                # Rounding leaves steps that no longer help.
                level, weights, lowered = before
                break
            if worst <= close:
                break
            best, rows, before = worst, _few(error > close), (level, weights, lowered)
        step = _step(mass, sum_panels(lowered), of.eps)
        level, weights, lowered = _moved(level, step, weights, lowered, f, measure, of, rows)
    mass = sum_panels(weights)
    # The last step is so small that the weights follow it along their derivative.
    step = _step(mass, sum_panels(lowered), of.eps)
    return level + step, weights - step * lowered, lowered, mass


def _few(rows: Tensor) -> Tensor | None:
    """The indices of rows (R,) for which something is left to do; None if these are many."""
    found = rows.nonzero().squeeze(-1)
    return None if 2 * len(found) > len(rows) else found


def _moved(
    level: Tensor,
    step: Tensor,
    weights: Tensor,
    lowered: Tensor,
    f: Tensor,
    measure: Tensor,
    of: Power,
    rows: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """A level and the weights there after a step, of all rows or of some."""
    if rows is None:
        level = level + step
        weights, lowered = find_weights(f - level, measure, of, "power lowered")
        return level, weights, lowered
    level = level.index_add(0, rows, step[rows])
    part = of._replace(eps=of.eps[rows]) if isinstance(of.eps, Tensor) else of
    here, below = find_weights(f[..., rows] - level[rows], measure, part, "power lowered")
    return level, weights.index_copy(-1, rows, here), lowered.index_copy(-1, rows, below)


def _nearly(f: Tensor, measure: Tensor, of: Power) -> Tensor:
    """The normaliser (R,) by the rule's own weights."""
    share = measure.reshape(1, -1)
    if of.is_exponential:
        return torch.logsumexp(f.flatten(0, 1) + share.T.log(), 0)
    level = _lower_bound(f, measure, of.eps)
    looks = f.numel() > 0 and not (f.is_cuda or torch.compiler.is_compiling())
    for _ in range(6 if f.dtype == torch.float32 else 8):
        mass, rate = (share @ v.flatten(0, 1) for v in of.pair(f - level))
        step = _step(mass[0], rate[0], of.eps)
        level = level + step
        if looks and step.amax() < _NEAR:
            break
    return level


def _step(mass: Tensor, rate: Tensor, eps: Tensor | float) -> Tensor:
    log = mass.log()
    return log * expm1_ratio(eps * log) * torch.exp((1 - eps) * log) / rate


def _lower_bound(f: Tensor, measure: Tensor, eps: Tensor | float) -> Tensor:
    """The best of Jensen's bounds over all nodes, each panel, each node: mass is at least 1 there.

    On a set S, A >= E_S[f] - log_{2 - alpha}(1 / Q(S)).
    """

    def bound(mean: Tensor, share: Tensor) -> Tensor:
        log = -share.clamp_min(torch.finfo(f.dtype).tiny).log()
        return mean - log * expm1_ratio(eps * log)

    by_panel = measure.sum(0)
    sums = (f * measure).sum(0)
    whole = bound(sums.sum(0) / measure.sum(), measure.sum())
    panels = bound(sums / by_panel.clamp_min(torch.finfo(f.dtype).tiny), by_panel).amax(0)
    nodes = bound(f, measure).flatten(0, 1).amax(0)
    return torch.maximum(whole, torch.maximum(panels, nodes))


class _Normalized(torch.autograd.Function):
    """The normaliser, the weights of p and those of its escort."""

    @staticmethod
    def forward(f: Tensor, measure: Tensor, eps: Tensor | float) -> tuple[Tensor, ...]:
        return _solve(f, measure, Power(eps))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        f, measure, eps = inputs
        level, _, escort, mass = output
        ctx.mark_non_differentiable(mass)
        save_power(ctx, eps, f, measure, escort, level)

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *inputs: Any) -> Any:
        found = _Normalized.apply(*fold_rows(info.batch_size, dims, *inputs))
        return unfold_rows(found, info.batch_size)

    @staticmethod
    def backward(
        ctx: Any, by_level: Tensor | None, grad: Tensor | None, above: Tensor | None, *_: Any
    ) -> tuple[Any, ...]:
        f, measure, escort, level, of = saved_power(ctx, Power(1.0))
        if torch.compiler.is_compiling() and isinstance(of.eps, Tensor) and above is not None:
            # A compiled graph has zeros where nothing is asked for.
            rule = "in compiled graphs, escorts have no derivative where alpha is a tensor"
            torch._assert_async(torch._is_all_true(above == 0), rule)
            above = None
        x = f - level
        mass = sum_panels(escort)
        # d/df at fixed A first, and then what A follows: the mass stays 1.
        found = torch.zeros_like(x) if grad is None else escort * grad
        if above is not None:
            found = found + second_weights(x, measure, of) * above
        drift = -sum_panels(found)
        if by_level is not None:
            drift = drift + by_level
        found = found + escort * (drift / mass)
        by_eps = None
        if ctx.needs_input_grad[2]:
            direct = drift / mass if grad is None else grad + drift / mass
            by_eps = power_slopes(x, measure, of, direct, above)
        return found, None, by_eps
