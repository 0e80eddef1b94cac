r"""Differentiable quadrature weights of truncated powers $[1 + \epsilon x]_+^k$ on a mesh.

`cells` computes the weights. The derivative of a weight in the value x of its node is the weight of
the power with its exponent less by one, so derivatives are weights, too.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .cells import power_weights
from .deformed import Power
from .operators import (
    NO_FORWARD_MODE,
    NO_SECOND_DERIVATIVE,
    Changes,
    differentiable,
    operator,
)

__all__ = [
    "integrals",
    "lowered_derivative",
    "power_slopes",
    "split_epsilon",
    "sum_nodes",
    "vmap_rows",
]

# The integral of [1 + eps x]_+^(k - n) exists for k - n > -1. If k - n = -1 it is that of a delta.
NO_HIGHER_DERIVATIVE = (
    "derivatives of expectations exist up to the order k + 1, where k is the exponent "
    "1/(alpha - 1) of a density, or beta/(alpha - 1) of its escort"
)
# Functions whose weights are derivatives: in x, "lowered" multiplied by `Power.factor`, and
# "log_lowered" as it is; and in eps.
_BY_X = {"power": "lowered", "log": "log_lowered"}
_BY_EPS = {"power": "slope", "log": "log_slope"}


def integrals(
    x: Tensor,
    measure: Tensor,
    power: Power,
    names: tuple[str, ...] = ("power", "lowered"),
) -> tuple[Tensor, ...]:
    """Compute differentiable weights (m, *columns) of functions of 1 + eps x.

    Weights of "power" are differentiable in x as often as that makes sense if eps is a number, and
    once in x and a tensor eps; weights of "log" once. A derivative in eps exists at order 0 only.

    Args:
        x: Values at the nodes of subintervals (m, *columns), the last axis for the rows of a batch.
        measure: Quadrature weights times a base density, which broadcast against x.
        power: The power, its eps a number or (R,), which broadcasts against the columns.
        names: Names of `deformed.FUNCTIONS`.
    """
    eps, number = split_epsilon(power.eps)
    weights: tuple[Tensor, ...] = _differentiable_weights(
        x, measure, eps, number, power.ratio, power.order, " ".join(names)
    )
    return weights


def split_epsilon(eps: Tensor | float) -> tuple[Tensor | None, float]:
    """Return epsilon as an operator takes it: a tensor, or None and a number."""
    return (eps, 0.0) if isinstance(eps, Tensor) else (None, float(eps))


def sum_nodes(w: Tensor) -> Tensor:
    """Sum weights (m, G, R) over all nodes (R,)."""
    return w.flatten(0, -2).sum(0)


def _weights(
    x: Tensor,
    measure: Tensor,
    eps: Tensor | None,
    number: float,
    ratio: float,
    order: int,
    names: str,
) -> list[Tensor]:
    """Compute `power_weights` from the arguments of an operator, names in one string."""
    power = Power(number if eps is None else eps, ratio, order)
    return [*power_weights(x, measure, power, tuple(names.split()))]


def _like_weights(x: Tensor, *arguments: Any) -> list[Tensor]:
    """Return empty tensors of the shapes of `_weights`, one for each name."""
    return [torch.empty_like(x).contiguous() for _ in arguments[-1].split()]


def _keep(inputs: tuple[object, ...], weights: tuple[Tensor, ...]) -> tuple[object, ...]:
    """Return the arguments of `_weights`, and weights of "lowered" for derivatives of "power"."""
    return *inputs, weights[1] if inputs[-1] == "power lowered" else None


def _pull_back(kept: Any, grads: Changes, needed: Sequence[bool]) -> Changes:
    """Return the gradients in x and eps, sums over the functions whose weights were computed.

    `grads` are gradients in the weights of each function. For the kept objects see `_keep`.
    """
    x, measure, eps, number, ratio, order, names, lowered = kept
    power = Power(number if eps is None else eps, ratio, order)
    by_x, by_eps = None, None
    for name, grad in zip(names.split(), grads, strict=True):
        if grad is None:
            continue
        rate = _rate(name, x, measure, power, lowered)
        by_x = rate * grad if by_x is None else torch.addcmul(by_x, rate, grad)
        if needed[2]:
            slope = power_slopes(x, measure, power, name, grad)
            by_eps = slope if by_eps is None else by_eps + slope
    return by_x, None, by_eps


def _push_forward(kept: Any, changes: Changes) -> tuple[Tensor, ...]:
    """Return the changes of the weights from changes of x."""
    x, measure, eps, number, ratio, order, names, lowered = kept
    if eps is not None:
        raise NotImplementedError(NO_FORWARD_MODE)
    power = Power(number, ratio, order)
    return tuple(_rate(name, x, measure, power, lowered) * changes[0] for name in names.split())


def _rate(name: str, x: Tensor, measure: Tensor, power: Power, lowered: Tensor | None) -> Tensor:
    """Return the derivative (m, *columns) in x of the weights of a function.

    Args:
        name: Of the function, "power", "lowered" or "log".
        x: Values at the nodes (m, *columns).
        measure: Quadrature weights times a base density, which broadcast against x.
        power: The power.
        lowered: The weights of "lowered", if they have been computed.
    """
    if name == "lowered":
        return lowered_derivative(x, measure, power)
    if name not in _BY_X:
        raise RuntimeError(NO_SECOND_DERIVATIVE)
    if name == "power" and lowered is not None:
        return _scaled(lowered, power)
    (rate,) = integrals(x, measure, power, (_BY_X[name],))
    return _scaled(rate, power) if name == "power" else rate


def _scaled(lowered: Tensor, power: Power) -> Tensor:
    """Return the derivative of a power, its factor times the lowered power."""
    # At order 0 and ratio 1 the factor is 1.
    return power.factor * lowered if power.order or power.ratio != 1 else lowered


def lowered_derivative(x: Tensor, measure: Tensor, power: Power) -> Tensor:
    """Return the derivative in x of the weights of the power with its exponent less by one.

    Raises:
        RuntimeError: eps is a tensor, or there is no such derivative.
    """
    if isinstance(power.eps, Tensor):
        raise RuntimeError("second derivatives need alpha to be a number, not a tensor")
    lowered = power.lowered()
    if lowered.exponent < 0:
        raise RuntimeError(NO_HIGHER_DERIVATIVE)
    return lowered.factor * integrals(x, measure, lowered)[1]


def power_slopes(x: Tensor, measure: Tensor, power: Power, name: str, grad: Tensor) -> Tensor:
    """Return the gradient in eps (R,), given the gradient in the weights of a function.

    Args:
        x: Values at the nodes (m, G, R).
        measure: Quadrature weights times a base density, which broadcast against x.
        power: The power, its eps a number or (R,).
        name: Of the function, "power" or "log".
        grad: The gradient in its weights (m, G, R).
    """
    if name not in _BY_EPS or power.order:
        raise RuntimeError("only first derivatives of a density, not of its escort, exist in alpha")
    (slopes,) = integrals(x, measure, power, (_BY_EPS[name],))
    return sum_nodes(grad * slopes)


def vmap_rows(
    function: Callable[..., tuple[Tensor, ...]],
    info: Any,
    dims: tuple[int | None, ...],
    x: Tensor,
    measure: Tensor,
    *arguments: object,
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Apply a function with the axis that vmap adds among the rows, the last axis.

    Return its results, and in which of their axes vmap finds its axis.

    Args:
        function: From x, measure and further arguments to tensors whose last axis is for rows.
        info: From torch; it has the size of the axis.
        dims: In which axis each argument has it, or None.
        x: Values at the nodes (m, *columns), with that axis.
        measure: Quadrature weights times a base density, which broadcast against x.
        arguments: Tensors whose last axis is for rows, and other objects.
    """
    count = info.batch_size

    def fold(value: Any, dim: int | None) -> Any:
        """Put the axis before the rows, and make one axis of both."""
        if not isinstance(value, Tensor):
            return value
        if dim is None:
            value = value.unsqueeze(-2).expand(*value.shape[:-1], count, -1)
        else:
            value = value.movedim(dim, -2)
        return value.flatten(-2)

    # A measure with one column is shared by all rows.
    if measure.shape[-1] > 1 or dims[1] is not None:
        measure = fold(measure, dims[1])
    folded = [fold(value, dim) for value, dim in zip(arguments, dims[2:], strict=True)]
    weights = [w.unflatten(-1, (count, -1)) for w in function(fold(x, dims[0]), measure, *folded)]
    return tuple(weights), tuple(w.dim() - 2 for w in weights)


# One operation in a compiled graph, since which subintervals are cut depends on the data; its first
# call imports the compiler.
_differentiable_weights = differentiable(
    operator("power_weights", _weights, _like_weights),
    _pull_back,
    _keep,
    _push_forward,
    vmap_rows,
)
