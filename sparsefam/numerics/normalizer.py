r"""The normaliser A of a deformed exponential of scores on a mesh, and its derivatives.

$p = [1 + \epsilon(f - A)]_+^{1/\epsilon}$ has mass 1 for one $A$. The norm
$\|[1 + \epsilon(f - A)]_+\|_{1/\epsilon}$ is convex and decreasing in $A$ (Minkowski's inequality),
so Newton's method on it increases from any lower bound to the root. Steps use the quadrature rule
first and the weights of `truncated_power` at the end. No derivative goes through the steps:
$dA = \int p^{2-\alpha}\,df / \int p^{2-\alpha}$ (Prop. 2 of the kernel paper).
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from .truncated_power import (
    Power,
    fold_rows,
    lowered_derivative,
    power_slopes,
    power_sums,
    power_weights,
    sum_nodes,
    unfold_rows,
)

__all__ = ["initial_normalizer", "newton_step", "normalized_weights"]

# A step of Newton's method with the quadrature rule alone after which its own error dominates.
_NEAR = 1e-3
# The number of such steps where values are not read.
_INITIAL_STEPS = {torch.float32: 6, torch.float64: 8}
# An error of the mass that no longer falls is rounding if it is below this.
_STALLED = 0.1
# The error of a mass from which one more step leaves rounding.
_CLOSE = {torch.float32: 1e-4, torch.float64: 1e-7}
# Steps after the final weights, in rows where these tell that A is not accurate.
_MOST_CORRECTIONS = 3
# The greatest number of steps with weights of cut subintervals; the number on a GPU.
_MOST_STEPS = 30
_STEPS = {torch.float32: 2, torch.float64: 3}


def normalized_weights(f: Tensor, measure: Tensor, eps: Tensor | float) -> tuple[Tensor, ...]:
    r"""Return $A$ (R,), weights of $p$ and of $p^{2-\alpha}$ (m, G, R), and the mass (R,).

    Differentiable in f, twice if eps is a number, and in a tensor eps. The mass, which has no
    derivative, differs from 1 by rounding, and by much if scores are too large for the dtype.

    Args:
        f: Scores at the nodes of a mesh (m, G, R).
        measure: Quadrature weights times a base density (m, G, 1).
        eps: alpha - 1 in [0, 1], a number or (R,).
    """
    found: tuple[Tensor, ...] = _Normalized.apply(f, measure, eps)
    return found


def newton_step(mass: Tensor, rate: Tensor, eps: Tensor | float) -> Tensor:
    """Return Newton's step (R,) to a mass of 1, from the mass and minus its derivative."""
    if not isinstance(eps, Tensor) and eps == 1:
        return (mass - 1) / rate
    log = mass.log()
    if not isinstance(eps, Tensor) and eps == 0:
        return log * mass / rate
    return torch.expm1(eps * log) * torch.exp((1 - eps) * log) / (eps * rate)


def initial_normalizer(f: Tensor, measure: Tensor, power: Power) -> Tensor:
    """Return A (R,) up to the error of the quadrature rule, for scores (m, G, R)."""
    reads_values = f.numel() and not f.is_cuda
    share, scores = measure.reshape(1, -1), f.flatten(0, 1)
    A = _lower_bound(f, measure, power.eps)
    rows, part, current = None, scores, A
    for _ in range(_INITIAL_STEPS.get(f.dtype, 8)):
        mass, rate = ((share @ v)[0] for v in power.pair(part - current))
        step = newton_step(mass, rate, power.eps)
        current = current + step
        if not reads_values:
            continue
        A = current if rows is None else A.index_copy(0, rows, current)
        left = (step.abs() >= _NEAR).nonzero().squeeze(-1)
        if not len(left):
            break
        if 2 * len(left) <= len(current):
            rows = left if rows is None else rows[left]
            part, current, power = part[:, left], current[left], power.take(left)
    return A if reads_values else current


def _lower_bound(f: Tensor, measure: Tensor, eps: Tensor | float) -> Tensor:
    """Return the greatest of Jensen's lower bounds over all nodes, each subinterval and each node.

    For a set S of mass Q(S), A >= E_S[f] - log_{2 - alpha}(1 / Q(S)).
    """
    bound = partial(_jensen, eps=eps)
    by_cell = measure.sum(0)
    sums = (f * measure).sum(0)
    whole = bound(sums.sum(0) / measure.sum(), measure.sum())
    cells = bound(sums / by_cell.clamp_min(torch.finfo(f.dtype).tiny), by_cell).amax(0)
    nodes = bound(f, measure).flatten(0, 1).amax(0)
    return torch.maximum(whole, torch.maximum(cells, nodes))


def _jensen(mean: Tensor, share: Tensor, eps: Tensor | float) -> Tensor:
    log = -share.clamp_min(torch.finfo(share.dtype).tiny).log()
    return mean - torch.expm1(eps * log) / eps


def _solve(f: Tensor, measure: Tensor, power: Power) -> list[Tensor]:
    """Return A (R,), weights of p and of its escort (m, G, R), and the mass (R,)."""
    # Close to its maximum, where the density is, a score minus its maximum keeps all its digits.
    top = f.flatten(0, 1).amax(0)
    f = f - top
    if power.is_exponential:
        A = torch.logsumexp(f.flatten(0, 1) + measure.reshape(-1, 1).log(), 0)
    else:
        A = _newton(initial_normalizer(f, measure, power), f, measure, power)
    weights, escort = power_weights(f - A, measure, power, ("power", "lowered"))
    mass = sum_nodes(weights)
    if not (power.is_exponential or f.is_cuda):
        _correct((A, weights, escort, mass), f, measure, power)
    # The last step is so small that the weights follow it along their derivative.
    step = newton_step(mass, sum_nodes(escort), power.eps)
    weights = torch.addcmul(weights, step, escort, value=-1)
    return [A + step + top, weights, escort.clone() if escort is weights else escort, mass]


def _newton(A: Tensor, f: Tensor, measure: Tensor, power: Power) -> Tensor:
    """Take Newton steps from A (R,) until the next would be as small as rounding."""
    if not f.numel():
        return A
    if f.is_cuda:
        for _ in range(_STEPS.get(f.dtype, 3)):
            A = A + newton_step(*power_sums(f - A, measure, power), power.eps)
        return A
    # Newton's method squares the error.
    close = _CLOSE.get(f.dtype, 1e-3)
    found, rows = A.clone(), torch.arange(len(A))
    least, before = torch.full_like(A, torch.inf), torch.ones_like(A)
    for _ in range(_MOST_STEPS):
        mass, rate = power_sums(f - A, measure, power)
        A, error = A + newton_step(mass, rate, power.eps), (mass - 1).abs()
        better = error < least
        found[rows] = torch.where(better, A, found[rows])
        # Stop where rounding keeps steps from helping; but a step from a mass below 1, where the
        # mass is convex, may go far beyond the root.
        beyond = (before < 1) & (mass > 1)
        going = (error > close) & (better | (error >= _STALLED) | beyond)
        left = going.nonzero().squeeze(-1)
        if not len(left):
            break
        if len(left) < len(rows):
            f, power = f.index_select(-1, left), power.take(left)
        rows, A, before = rows[left], A[left], mass[left]
        least = torch.minimum(least, error)[left]
    return found


def _correct(
    solution: tuple[Tensor, Tensor, Tensor, Tensor], f: Tensor, measure: Tensor, power: Power
) -> None:
    """Take further steps in rows whose mass is not close to 1, changing A, weights and mass.

    These are few: rough roots of nearly tangent scores are less accurate than others.
    """
    A, weights, escort, mass = solution
    for _ in range(_MOST_CORRECTIONS):
        rows = ((mass - 1).abs() > _CLOSE.get(f.dtype, 1e-3)).nonzero().squeeze(-1)
        if not len(rows):
            return
        own = power.take(rows)
        step = newton_step(mass[rows], sum_nodes(escort[..., rows]), own.eps)
        level = A[rows] + step
        parts = power_weights(f[..., rows] - level, measure, own, ("power", "lowered"))
        changed = (level, *parts, sum_nodes(parts[0]))
        for old, new in zip(solution, changed, strict=True):
            old.index_copy_(-1, rows, new)


# torch 2.6 infers no schema from `list`.
@torch.library.custom_op(
    "sparsefam::normalized_weights",
    mutates_args=(),
    schema="(Tensor f, Tensor measure, Tensor? eps, float number) -> Tensor[]",
)
def _solve_op(f: Tensor, measure: Tensor, eps: Tensor | None, number: float) -> list[Tensor]:
    """Solve as one operation in a compiled graph, since the steps depend on the data."""
    return [x.contiguous() for x in _solve(f, measure, Power(number if eps is None else eps))]


@_solve_op.register_fake
def _(f: Tensor, measure: Tensor, eps: Tensor | None, number: float) -> list[Tensor]:
    like = torch.empty_like(f).contiguous()
    return [f.new_empty(f.shape[-1]), like, torch.empty_like(like), f.new_empty(f.shape[-1])]


class _Normalized(torch.autograd.Function):
    """The normaliser, the weights of p and of its escort, and the mass."""

    @staticmethod
    def forward(f: Tensor, measure: Tensor, eps: Tensor | float) -> tuple[Tensor, ...]:
        if torch.compiler.is_compiling():
            number = 0.0 if isinstance(eps, Tensor) else float(eps)
            found = _solve_op(f, measure, eps if isinstance(eps, Tensor) else None, number)
            return tuple(found)
        return tuple(_solve(f, measure, Power(eps)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        f, measure, eps = inputs
        A, _, escort, mass = output
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(mass)
        ctx.number = None if isinstance(eps, Tensor) else eps
        ctx.save_for_backward(f, measure, escort, A, eps if isinstance(eps, Tensor) else None)

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *inputs: Any) -> Any:
        found = _Normalized.apply(*fold_rows(info.batch_size, dims, *inputs))
        return unfold_rows(found, info.batch_size)

    @staticmethod
    def backward(
        ctx: Any, by_A: Tensor | None, grad: Tensor | None, above: Tensor | None, *_: Any
    ) -> tuple[Any, ...]:
        f, measure, escort, A, eps = ctx.saved_tensors
        power = Power(ctx.number if eps is None else eps)
        if torch.compiler.is_compiling() and eps is not None and above is not None:
            # In a compiled graph a gradient that is not needed is zero, not None.
            rule = "in compiled graphs, escorts have no derivative where alpha is a tensor"
            torch._assert_async(torch._is_all_true(above == 0), rule)
            above = None
        # A moves so that the mass stays 1. Summing before multiplying rounds less.
        drift = 0.0 if grad is None else -sum_nodes(escort * grad)
        found, by_eps = None, None
        if above is not None:
            found = lowered_derivative(f - A, measure, power) * above
            drift = drift - sum_nodes(found)
        if by_A is not None:
            drift = drift + by_A
        drift = drift / sum_nodes(escort)
        direct = drift if grad is None else grad + drift
        found = escort * direct if found is None else torch.addcmul(found, escort, direct)
        if ctx.needs_input_grad[2]:
            name = "power" if above is None else "lowered"
            by_eps = power_slopes(f - A, measure, power, name, direct)
        return found, None, by_eps
