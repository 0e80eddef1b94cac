r"""Deformed exponentials of scores on panels: their normaliser, their weights, their derivatives.

$p = [1 + \epsilon(f - A)]_+^{1/\epsilon}$ has mass 1 for one $A$, which is found by Newton's method
on a norm, as `levels` says. No derivative goes through the steps:
$dA = \int p^{2-\alpha}\,df / \int p^{2-\alpha}$ (Prop. 2 of the kernel paper).
"""

from typing import Any

import torch
from torch import Tensor

from .levels import level_step, nearby_level
from .panel_rows import Weighed, is_for_loops, weigh
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

# An error of the mass that falls no more is rounding's if it is below this.
_STALLED = 0.1
# Units of rounding by which a mass may be wrong in float32.
_CLOSE = 8
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
    found: tuple[Tensor, ...] = _Normalized.apply(f, measure, eps)
    return found


def _solve(f: Tensor, measure: Tensor, of: Power) -> Weighed:
    if is_for_loops(f, measure, of):
        return weigh(f, measure, of, normalized=True)
    # Next to its top, where a density is, a score less its top keeps all its digits.
    top = f.flatten(0, 1).amax(0)
    found = _solved(f - top, measure, of)
    return found._replace(level=found.level + top)


def _solved(f: Tensor, measure: Tensor, of: Power) -> Weighed:
    if of.is_exponential:
        level = torch.logsumexp(f.flatten(0, 1) + measure.reshape(-1, 1).log(), 0)
        return _followed(_at(level, f, measure, of), of)
    level = nearby_level(f, measure, of)
    if f.numel() and not (f.is_cuda or torch.compiler.is_compiling()):
        return _followed(_settled(level, f, measure, of, None), of)
    found = _at(level, f, measure, of)
    for _ in range(3 if f.dtype == torch.float64 else 2):
        found = _at(found.level + _step(found, of), f, measure, of)
    return _followed(found, of)


def _at(level: Tensor, f: Tensor, measure: Tensor, of: Power) -> Weighed:
    weights, lowered = find_weights(f - level, measure, of, "power lowered")
    return Weighed(level, weights, lowered, sum_panels(weights))


def _step(found: Weighed, of: Power) -> Tensor:
    return level_step(found.mass, sum_panels(found.lowered), of.eps)


def _followed(found: Weighed, of: Power) -> Weighed:
    """After a last step, so small that the weights follow it along their derivative."""
    step = _step(found, of)
    weights = torch.addcmul(found.weights, step, found.lowered, value=-1)
    return found._replace(level=found.level + step, weights=weights)


def _settled(
    level: Tensor, f: Tensor, measure: Tensor, of: Power, before: Tensor | None, depth: int = 0
) -> Weighed:
    """Weights where the mass is 1 to rounding: rows that are not there yet take further steps.

    Args:
        level: Where to begin (R,).
        f: Scores (m, G, R).
        measure: Weights of the rule (m, G, 1).
        of: The power.
        before: The mass (R,) a step before.
        depth: How many steps there have been.
    """
    found = _at(level, f, measure, of)
    error = (found.mass - 1).abs()
    eps = torch.finfo(f.dtype).eps
    close = eps * measure.numel() ** 0.5
    if f.dtype == torch.float32:
        close = _CLOSE * eps
    open_ = error > close
    if before is not None:
        # Rounding leaves steps that no longer help; but from masses below 1, which are convex in
        # the level, a step may go far beyond.
        beyond = (before < 1) & (found.mass > 1)
        open_ &= (error < (before - 1).abs()) | (error >= _STALLED) | beyond
    rows = open_.nonzero().squeeze(-1)
    if not len(rows) or depth == _MOST_STEPS:
        return found
    at = (level + _step(found, of))[rows]
    part = of._replace(eps=of.eps[rows]) if isinstance(of.eps, Tensor) else of
    some = f if len(rows) == len(level) else f.index_select(-1, rows)
    next_ = _settled(at, some, measure, part, found.mass[rows], depth + 1)
    better = (next_.mass - 1).abs() <= error[rows]
    if len(rows) == len(level) and bool(better.all()):
        return next_
    rows = rows[better]
    for old, new in zip(found, next_, strict=True):
        old.index_copy_(-1, rows, new[..., better])
    return found


class _Normalized(torch.autograd.Function):
    """The normaliser, the weights of p and those of its escort."""

    @staticmethod
    def forward(f: Tensor, measure: Tensor, eps: Tensor | float) -> tuple[Tensor, ...]:
        return tuple(_solve(f, measure, Power(eps)))

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
        # What A follows is what keeps the mass at 1. Sums come before products: less is rounded.
        drift = 0.0 if grad is None else -sum_panels(escort * grad)
        found, by_eps = None, None
        if above is not None:
            found = second_weights(f - level, measure, of) * above
            drift = drift - sum_panels(found)
        if by_level is not None:
            drift = drift + by_level
        drift = drift / sum_panels(escort)
        direct = drift if grad is None else grad + drift
        found = escort * direct if found is None else torch.addcmul(found, escort, direct)
        if ctx.needs_input_grad[2]:
            by_eps = power_slopes(f - level, measure, of, direct, above)
        return found, None, by_eps
