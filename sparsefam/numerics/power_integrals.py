r"""Integrals of truncated powers of scores on panels, and their derivatives."""

from typing import Any

import torch
from torch import Tensor

from .panel_rows import is_for_loops, weigh
from .truncated import Power
from .validation import REFUSAL
from .weights import find_weights

__all__ = [
    "effective_weights",
    "fold_rows",
    "log_integrals",
    "partial_masses",
    "power_slopes",
    "save_power",
    "saved_power",
    "second_weights",
    "sum_panels",
    "unfold_rows",
]


def effective_weights(x: Tensor, measure: Tensor, of: Power) -> tuple[Tensor, Tensor]:
    r"""Weights (m, G, R) of $[1 + \epsilon x]_+^k$ and of $[1 + \epsilon x]_+^{k-1}$.

    Differentiable as `normalized_weights`; in eps only at order 0, and only the former.

    Args:
        x: Values at the nodes of panels, (m, G, R).
        measure: The rule's own weights, times a base density, (m, G, 1).
        of: The power, its eps a number or (R,).
    """
    found: tuple[Tensor, Tensor] = _Effective.apply(x, measure, of.eps, of.ratio, of.order)
    return found


def partial_masses(x: Tensor, measure: Tensor, of: Power, upper: Tensor) -> Tensor:
    r"""$\int_{-1}^{upper} [1 + \epsilon x]_+^k$ over n panels, (n,), differentiable once in x, eps.

    Args:
        x: Values at the nodes of panels, (m, n).
        measure: The rule's own weights, times a base density, (m, n).
        of: The power, its eps a number or (n,).
        upper: Where each integral ends (n,), from -1 to 1; without a derivative here.
    """
    found: Tensor = _Partial.apply(x, measure, of.eps, upper, of.ratio, of.order)
    return found


def log_integrals(x: Tensor, measure: Tensor, of: Power) -> Tensor:
    r"""$\int [1 + \epsilon x]_+^k \log(1 + \epsilon x)/\epsilon$ (R,), differentiable once."""
    found: Tensor = _LogIntegral.apply(x, measure, of.eps, of.ratio, of.order)
    return found


def sum_panels(w: Tensor) -> Tensor:
    """Sums over all panels (R,)."""
    return w.flatten(0, -2).sum(0)


def fold_rows(
    count: int, dims: tuple[Any, ...], x: Tensor, measure: Tensor, *rest: Any
) -> list[Any]:
    """Arguments of rows, with the dimension that vmap adds among the rows."""

    def lift(value: Tensor, dim: int | None) -> Tensor:
        if dim is None:
            value = value.unsqueeze(-2).expand(*value.shape[:-1], count, -1)
        else:
            value = value.movedim(dim, -2)
        return value.flatten(-2)

    # What belongs to panels alone is shared; else it has rows, as x.
    if measure.shape[-1] > 1 or dims[1] is not None:
        measure = lift(measure, dims[1])
    others = [
        lift(value, dim) if isinstance(value, Tensor) else value
        for value, dim in zip(rest, dims[2:], strict=True)
    ]
    return [lift(x, dims[0]), measure, *others]


def unfold_rows(
    found: tuple[Tensor, ...], count: int
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Rows with the dimension of vmap before them, and where it is."""
    parts = tuple(w.unflatten(-1, (count, -1)) for w in found)
    return parts, tuple(w.dim() - 2 for w in parts)


class _Effective(torch.autograd.Function):
    """Weights of a power and of the lowered power; the latter is the derivative of the former."""

    @staticmethod
    def forward(
        x: Tensor, measure: Tensor, eps: Tensor | float, ratio: float, order: int
    ) -> tuple[Tensor, Tensor]:
        of = Power(eps, ratio, order)
        if is_for_loops(x, measure, of):
            return weigh(x, measure, of, normalized=False)[1:3]
        w, lowered = find_weights(x, measure, of, "power lowered")
        return w, lowered

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, measure, eps, ctx.ratio, ctx.order = inputs
        save_power(ctx, eps, x, measure, output[1])

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *inputs: Any) -> Any:
        found = _Effective.apply(*fold_rows(info.batch_size, dims, *inputs))
        return unfold_rows(found, info.batch_size)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, above: Tensor | None) -> tuple[Any, ...]:
        x, measure, lowered, of = saved_power(ctx, Power(1.0, ctx.ratio, ctx.order))
        found, by_eps = None, None
        if grad is not None:
            found = lowered * grad
            if of.order or of.ratio != 1:
                found = of.factor * found
            if ctx.needs_input_grad[2]:
                by_eps = power_slopes(x, measure, of, grad, above)
        if above is not None:
            second = second_weights(x, measure, of) * above
            found = second if found is None else found + second
        return found, None, by_eps, None, None


class _Partial(torch.autograd.Function):
    """Masses of parts of panels."""

    @staticmethod
    def forward(
        x: Tensor, measure: Tensor, eps: Tensor | float, upper: Tensor, ratio: float, order: int
    ) -> Tensor:
        (found,) = find_weights(x, measure, Power(eps, ratio, order), "power", upper)
        return found.sum(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, measure, eps, upper, ctx.ratio, ctx.order = inputs
        save_power(ctx, eps, x, measure, upper)

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *inputs: Any) -> Any:
        found = _Partial.apply(*fold_rows(info.batch_size, dims, *inputs))
        return found.unflatten(0, (info.batch_size, -1)), 0

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        if grad is None:
            return (None,) * 6
        x, measure, upper, of = saved_power(ctx, Power(1.0, ctx.ratio, ctx.order))
        (lowered,) = _weights(x, measure, of, "lowered", upper)
        by_eps = None
        if ctx.needs_input_grad[2]:
            by_eps = power_slopes(x, measure, of, grad, None, upper)
        return of.factor * (lowered * grad), None, by_eps, None, None, None


class _LogIntegral(torch.autograd.Function):
    """Integrals of a power times its logarithm."""

    @staticmethod
    def forward(
        x: Tensor, measure: Tensor, eps: Tensor | float, ratio: float, order: int
    ) -> Tensor:
        (found,) = find_weights(x, measure, Power(eps, ratio, order), "log")
        return sum_panels(found)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, measure, eps, ctx.ratio, ctx.order = inputs
        save_power(ctx, eps, x, measure)

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *inputs: Any) -> Any:
        found = _LogIntegral.apply(*fold_rows(info.batch_size, dims, *inputs))
        return found.unflatten(0, (info.batch_size, -1)), 0

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        if grad is None:
            return (None,) * 5
        x, measure, of = saved_power(ctx, Power(1.0, ctx.ratio, ctx.order))
        (by_x,) = _weights(x, measure, of, "log_lowered")
        by_eps = None
        if ctx.needs_input_grad[2]:
            (slopes,) = _weights(x, measure, of, "log_slope")
            by_eps = grad * sum_panels(slopes)
        return grad * by_x, None, by_eps, None, None


class _Weights(torch.autograd.Function):
    """What a derivative needs: weights without one of their own, which vmap passes through."""

    @staticmethod
    def forward(
        x: Tensor,
        measure: Tensor,
        eps: Tensor | float,
        upper: Tensor | None,
        ratio: float,
        order: int,
        names: str,
    ) -> tuple[Tensor, ...]:
        return tuple(find_weights(x, measure, Power(eps, ratio, order), names, upper))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Nothing is kept."""

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *inputs: Any) -> Any:
        found = _Weights.apply(*fold_rows(info.batch_size, dims, *inputs))
        return unfold_rows(found, info.batch_size)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise RuntimeError(REFUSAL)


def _weights(
    x: Tensor, measure: Tensor, of: Power, names: str, upper: Tensor | None = None
) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = _Weights.apply(x, measure, of.eps, upper, of.ratio, of.order, names)
    return found


def save_power(ctx: Any, eps: Tensor | float, *tensors: Tensor) -> None:
    """Keep eps, a number or a tensor, and tensors for the derivative."""
    ctx.set_materialize_grads(False)
    ctx.number = None if isinstance(eps, Tensor) else eps
    ctx.save_for_backward(*tensors, *([eps] if isinstance(eps, Tensor) else []))


def saved_power(ctx: Any, of: Power) -> tuple[Any, ...]:
    """The tensors, and the power with the eps that was kept."""
    *tensors, eps = saved = ctx.saved_tensors
    if ctx.number is not None:
        return (*saved, of._replace(eps=ctx.number))
    return (*tensors, of._replace(eps=eps))


def second_weights(x: Tensor, measure: Tensor, of: Power) -> Tensor:
    """Derivative in x of the weights of the lowered power."""
    if isinstance(of.eps, Tensor):
        raise RuntimeError("second derivatives need alpha to be a number, not a tensor")
    lowered = of.lowered()
    return lowered.factor * effective_weights(x, measure, lowered)[1]


def power_slopes(
    x: Tensor,
    measure: Tensor,
    of: Power,
    grad: Tensor,
    above: Tensor | None,
    upper: Tensor | None = None,
) -> Tensor:
    """Gradient in eps (R,)."""
    if above is not None or of.order:
        raise RuntimeError("only first derivatives of a density, not of its escort, exist in alpha")
    (slopes,) = _weights(x, measure, of, "slope", upper)
    return sum_panels(grad * slopes)
