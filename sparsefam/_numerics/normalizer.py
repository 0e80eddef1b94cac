r"""The normalizer A of a deformed exponential of scores on a mesh, and its derivatives.

$p = [1 + \epsilon(f - A)]_+^{1/\epsilon}$ has mass 1 for one $A$. The norm
$\|[1 + \epsilon(f - A)]_+\|_{1/\epsilon}$ is convex and decreasing in $A$ (Minkowski's inequality),
so Newton's method on it increases from any lower bound to the root. The first steps use the
quadrature rule, the last ones the weights of `truncated_power`. No derivative goes through the
steps: $dA = \int p^{2-\alpha}\,df / \int p^{2-\alpha}$ (Martins et al., 2020, eq. 8).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .cells import power_weights, rough_masses
from .deformed import Power
from .modes import compiled
from .operators import NO_FORWARD_MODE, Changes, differentiable, operator
from .truncated_power import (
    lowered_derivative,
    power_slopes,
    split_epsilon,
    sum_nodes,
    vmap_rows,
)

__all__ = ["lower_bound", "newton_from_below", "normalized_weights"]

# A step of Newton's method with the quadrature rule alone after which its own error dominates.
_NEAR = 1e-3
# The number of such steps where values are not read.
_INITIAL_STEPS = {torch.float32: 6, torch.float64: 8}
# The error of a mass from which one step along derivatives leaves rounding.
_CLOSE = {torch.float32: 2e-6, torch.float64: 5e-14}
# Numbers of a block of rows: its arrays fit into a processor's cache.
_ELEMENTS = 2**20
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
    solution: tuple[Tensor, ...] = _normalized(f, measure, *split_epsilon(eps))
    return solution


def newton_step(mass: Tensor, rate: Tensor, eps: Tensor | float) -> Tensor:
    """Return Newton's step (R,) to a mass of 1, from the mass and minus its derivative.

    It is a step of the norm N = mass^eps, whose derivative is eps mass^(eps - 1) times the mass's:
    (N - 1) / -N'. At eps = 0 this is Newton's step of the logarithm.
    """
    if not isinstance(eps, Tensor) and eps == 1:
        return (mass - 1) / rate
    log = mass.log()
    if not isinstance(eps, Tensor) and eps == 0:
        return log * mass / rate
    return torch.expm1(eps * log) * torch.exp((1 - eps) * log) / (eps * rate)


def newton_from_below(
    sums: Callable[[Tensor], tuple[Tensor, Tensor]],
    A: Tensor,
    eps: Tensor | float,
    steps: int,
    close: float,
    readable: bool,
) -> Tensor:
    r"""Return A up to the square of `close`, by Newton's method from a lower bound.

    The norm is convex, so each tangent gives a lower bound wherever it touches. The first step goes
    on to the root of the power $c\,(1 - \epsilon A)^k$ with the same mass and derivative, which
    may be beyond. Each number stops on its own, whatever the others do.

    Args:
        sums: The mass and minus its derivative, as functions of A.
        A: The lower bounds, for scores whose maximum is 0.
        eps: alpha - 1 in (0, 1].
        steps: The greatest number of steps.
        close: The last step's greatest size. 0, for eps = 1 on atoms, where the mass is piecewise
            linear: until A stays, so that the last call of `sums` was at the number returned.
        readable: Whether values can be read, to leave out steps that change nothing.
    """
    mass, rate = sums(A)
    low = A + newton_step(mass, rate, eps)
    # With k = rate (1 - eps A) / (eps mass), the norm mass^(1/k) of c (1 - eps A)^k is linear in A,
    # and Newton's step for it, with 1/k in place of eps, goes to the root.
    A = torch.fmax(low, A + newton_step(mass, rate, eps * mass / (rate * (1 - eps * A))))
    active = torch.ones_like(A, dtype=torch.bool)
    for _ in range(steps):
        mass, rate = sums(A)
        step = newton_step(mass, rate, eps)
        low = torch.fmax(low, A + step)
        if not close:
            if readable and torch.equal(low, A):
                break
            A = low
            continue
        A = torch.where(active, low, A)
        active = active & ~(step.abs() <= close)  # also where a step is NaN
        if readable and not bool(active.any()):
            break
    return A


def _initial_normalizer(f: Tensor, measure: Tensor, power: Power) -> Tensor:
    """Return A (R,) up to the error of the quadrature rule, for scores (m, G, R).

    Arguments are as for `_solve_rows`.
    """
    flat_measure, scores = measure.reshape(1, -1), f.flatten(0, 1)

    def sums(A: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mass at A and minus its derivative, both (R,)."""
        mass, rate = ((flat_measure @ v)[0] for v in power.pair(scores - A))
        return mass, rate

    A, steps = lower_bound(f, measure, power.eps), _INITIAL_STEPS.get(f.dtype, 8)
    return newton_from_below(sums, A, power.eps, steps, _NEAR, f.is_cpu)


def lower_bound(f: Tensor, measure: Tensor, eps: Tensor | float) -> Tensor:
    """Return the greatest of Jensen's lower bounds over all nodes, subintervals and their maxima.

    For a set S of mass Q(S), A >= E_S[f] - log_{2 - alpha}(1 / Q(S)): the mass of S is at most 1,
    and at least Q(S) times the power at the mean of f, as the power is convex for alpha <= 2.
    """
    bound = partial(_jensen, eps=eps)
    by_cell = measure.sum(0)
    sums = (f * measure).sum(0)
    whole = bound(sums.sum(0) / measure.sum(), measure.sum())
    cells = bound(sums / by_cell.clamp_min(torch.finfo(f.dtype).tiny), by_cell).amax(0)
    # A subinterval's highest node has at least the smallest measure of its nodes.
    nodes = bound(f.amax(0), measure.amin(0)).amax(0)
    return torch.maximum(whole, torch.maximum(cells, nodes))


def _jensen(mean: Tensor, mass: Tensor, eps: Tensor | float) -> Tensor:
    """Return the bound of `lower_bound` by one set, given the mean of f on it and its mass."""
    log = -mass.clamp_min(torch.finfo(mass.dtype).tiny).log()
    return mean - torch.expm1(eps * log) / eps


class _Solution(NamedTuple):
    """A (R,), weights of p and of its escort (m, G, R), and the mass (R,)."""

    A: Tensor
    weights: Tensor
    escort: Tensor
    mass: Tensor

    @classmethod
    def at(cls, A: Tensor, f: Tensor, measure: Tensor, power: Power) -> "_Solution":
        """Compute weights and masses at some A (R,), for scores f (m, G, R)."""
        weights, escort = power_weights(f - A, measure, power, ("power", "lowered"))
        return cls(A, weights, escort, sum_nodes(weights))

    def step(self, eps: Tensor | float) -> Tensor:
        """Return Newton's step (R,)."""
        return newton_step(self.mass, sum_nodes(self.escort), eps)


def _solve(f: Tensor, measure: Tensor, eps: Tensor | None, number: float) -> list[Tensor]:
    """Return A (R,), weights of p and of its escort (m, G, R), and the mass (R,).

    Args:
        f: Scores (m, G, R).
        measure: Quadrature weights times a base density (m, G, 1).
        eps: alpha - 1 (R,), or None if it is a number.
        number: alpha - 1 if eps is None.
    """
    power, rows = Power(number if eps is None else eps), f.shape[-1]
    A, mass = f.new_empty(rows), f.new_empty(rows)
    weights, escort = (f.new_empty(f.shape) for _ in range(2))
    for block in _row_blocks(f):
        block_power = power if eps is None else Power(eps[block])
        solution = _solve_rows(f[..., block], measure, block_power)
        for whole, x in zip((A, weights, escort, mass), solution, strict=True):
            whole[..., block] = x
    return [A, weights, escort, mass]


def _row_blocks(f: Tensor) -> list[slice]:
    """Divide the rows of scores (m, G, R) into blocks; on a device, and in a graph, one block."""
    if not f.is_cpu or compiled():
        return [slice(None)]
    rows = f.shape[-1]
    step = max(1, _ELEMENTS * rows // max(1, f.numel()))
    return [slice(first, min(first + step, rows)) for first in range(0, max(1, rows), step)]


def _solve_rows(f: Tensor, measure: Tensor, power: Power) -> _Solution:
    """Return the solution for a block of rows, by Newton steps from a lower bound.

    Args:
        f: Scores (m, G, R).
        measure: Quadrature weights times a base density (m, G, 1).
        power: The power of the density, its eps a number or (R,).
    """
    # Close to its maximum, where the density is, a score minus its maximum keeps all its digits.
    top = f.amax((0, 1))
    f = f - top
    if power.is_exponential:
        A = torch.logsumexp(f.flatten(0, 1) + measure.reshape(-1, 1).log(), 0)
        solution = _Solution.at(A, f, measure, power)
    else:
        A = _initial_normalizer(f, measure, power)
        A = A + newton_step(*rough_masses(f - A, measure, power), power.eps)
        solution = _newton(A, f, measure, power)
    # The last step is so small that the weights follow it along their derivative.
    step = solution.step(power.eps)
    solution.weights.addcmul_(step, solution.escort, value=-1)
    return solution._replace(A=solution.A + step + top)


def _newton(A: Tensor, f: Tensor, measure: Tensor, power: Power) -> _Solution:
    """Take Newton steps from A (R,) until masses are 1 up to `_CLOSE` or rounding.

    Return for each row the solution whose mass is nearest to 1. On a device the number of steps is
    fixed, and the last solution is returned. Other arguments are as for `_solve_rows`.
    """
    best = current = _Solution.at(A, f, measure, power)
    if not f.is_cpu:
        for _ in range(_STEPS.get(f.dtype, 3)):
            best = _Solution.at(best.A + best.step(power.eps), f, measure, power)
        return best
    close, rows = _CLOSE.get(f.dtype, 1e-3), torch.arange(len(A), device=A.device)
    going = (best.mass - 1).abs() > close
    for _ in range(_MOST_STEPS):
        active = going.nonzero().squeeze(-1)
        if not len(active):
            break
        A, before = current.A + current.step(power.eps), current.mass
        # Rows that are done stay in the arrays until they are half of them: copies cost time, too.
        if 2 * len(active) <= len(rows):
            rows, A, before, power = rows[active], A[active], before[active], power.take(active)
            f = f.index_select(-1, active)
        current = _Solution.at(A, f, measure, power)
        error = (current.mass - 1).abs()
        better = error < (best.mass[rows] - 1).abs()
        if len(rows) == len(best.A) and bool(better.all()):
            best = current
        else:
            kept = better.nonzero().squeeze(-1)
            for whole, update in zip(best, current, strict=True):
                whole.index_copy_(-1, rows[kept], update.index_select(-1, kept))
        # Stop where rounding keeps steps from helping; but a step from a mass below 1, where the
        # mass is convex, may go far beyond the root. Writing to `best` may have changed `before`,
        # but only in rows that are better, where it does not count.
        going = (error > close) & (better | (before < 1) & (current.mass > 1))
    return best


def _like_solution(f: Tensor, *_: object) -> list[Tensor]:
    """Return empty tensors of the shapes of `_solve`, for scores (m, G, R)."""
    like = torch.empty_like(f).contiguous()
    return [f.new_empty(f.shape[-1]), like, torch.empty_like(like), f.new_empty(f.shape[-1])]


def _keep(inputs: tuple[object, ...], solution: tuple[Tensor, ...]) -> tuple[object, ...]:
    """Return what derivatives need: the arguments of `_solve`, A, and weights of the escort."""
    A, _, escort, _ = solution
    return *inputs, A, escort


def _pull_back(kept: Any, grads: Changes, needed: Sequence[bool]) -> Changes:
    """Return the gradients in f and a tensor eps, in blocks of rows; see `_keep`."""
    f, measure, eps, number, A, escort = kept
    # Gradients in A, in the weights of p, and in the weights of its escort.
    by_A, grad, above, _ = grads
    if compiled() and eps is not None and above is not None:
        # In a compiled graph a gradient that is not needed is zero, not None.
        rule = "in compiled graphs, escorts have no derivative where alpha is a tensor"
        torch._assert_async(torch._is_all_true(above == 0), rule)
        above = None
    by_block = []
    for block in _row_blocks(f):
        given = [None if x is None else x[..., block] for x in (by_A, grad, above)]
        rows = f[..., block], escort[..., block], A[block]
        power = Power(number if eps is None else eps[block])
        by_block.append(_pull_back_rows(given, *rows, measure, power, needed[2]))
    gradients = [x[0] if len(x) == 1 else torch.cat(x, -1) for x in zip(*by_block, strict=True)]
    return gradients[0], None, gradients[1] if len(gradients) > 1 else None


def _pull_back_rows(
    given: list[Tensor | None],
    f: Tensor,
    escort: Tensor,
    A: Tensor,
    measure: Tensor,
    power: Power,
    needs_eps: bool,
) -> list[Tensor]:
    """Return the gradient in f (m, G, R), and if needed in eps (R,), for a block of rows.

    Args:
        given: Gradients in A (R,), in the weights and in the escort (m, G, R), or None for 0.
        f: Scores (m, G, R).
        escort: Weights of the escort (m, G, R).
        A: The normalizers (R,).
        measure: Quadrature weights times a base density (m, G, 1).
        power: The power of the density.
        needs_eps: Whether the gradient in eps is needed.
    """
    by_A, grad, above = given
    # A moves so that the mass stays 1: dA is the mean of df with weights p^(2 - alpha), the escort.
    # Summing before multiplying rounds less.
    drift = 0.0 if grad is None else -sum_nodes(escort * grad)
    by_f = None
    if above is not None:
        by_f = lowered_derivative(f - A, measure, power) * above
        drift = drift - sum_nodes(by_f)
    if by_A is not None:
        drift = drift + by_A
    drift = drift / sum_nodes(escort)
    direct = drift if grad is None else grad + drift
    by_f = escort * direct if by_f is None else torch.addcmul(by_f, escort, direct)
    if not needs_eps:
        return [by_f]
    name = "power" if above is None else "lowered"
    return [by_f, power_slopes(f - A, measure, power, name, direct)]


def _push_forward(kept: Any, changes: Changes) -> tuple[Tensor | None, ...]:
    """Return the changes of A, the weights and the escort, from changes of f."""
    f, measure, eps, number, A, escort = kept
    if eps is not None:
        raise NotImplementedError(NO_FORWARD_MODE)
    by_f = changes[0]
    # The change of A keeps the mass at 1, see `_pull_back_rows`.
    by_A = sum_nodes(escort * by_f) / sum_nodes(escort)
    offset, power = by_f - by_A, Power(number)
    lowered = lowered_derivative(f - A, measure, power)
    return by_A, escort * offset, lowered * offset, None


_normalized = differentiable(
    operator("normalized_weights", _solve, _like_solution),
    _pull_back,
    _keep,
    _push_forward,
    vmap_rows,
    constants=(3,),
)
