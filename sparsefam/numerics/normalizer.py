r"""Deformed exponentials of scores on panels: their normaliser, their weights, their derivatives.

$p = [1 + \epsilon(f - A)]_+^{1/\epsilon}$ has mass 1 for one $A$. The norm
$\|[1 + \epsilon(f - A)]_+\|_{1/\epsilon}$ is convex and decreasing in $A$ (Minkowski), so Newton's
method on it rises to the root from any lower bound and never passes it. No derivative goes through
the steps: $dA = \int p^{2-\alpha}\,df / \int p^{2-\alpha}$ (Prop. 2 of the kernel paper).
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .deformed import expm1_ratio
from .truncated import Power
from .weights import find_weights

__all__ = ["effective_weights", "log_integrals", "normalized_weights"]

# A step after which the error is that of the rule's own weights, so that effective ones come next.
_NEAR = 1e-3


def normalized_weights(f: Tensor, measure: Tensor, eps: Tensor | float) -> tuple[Tensor, ...]:
    r"""$A$ (R,) with mass 1, and the weights of $p$ and of $p^{2-\alpha}$, (m, G, R).

    Differentiable in f, twice where eps is a number, and in a tensor eps.

    Args:
        f: Scores at the nodes of panels, (m, G, R).
        measure: The rule's own weights, times a base density, (m, G, 1).
        eps: alpha - 1 in (0, 1], a number or (R,).
    """
    found: tuple[Tensor, ...] = _Normalized.apply(f, measure, eps)
    return found


def effective_weights(
    x: Tensor, measure: Tensor, of: Power, upper: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""Weights (m, *columns) of $[1 + \epsilon x]_+^k$ and of $[1 + \epsilon x]_+^{k-1}$.

    Differentiable as `normalized_weights`; in eps only at order 0, and only the former.

    Args:
        x: Values at the nodes of panels, (m, *columns).
        measure: The rule's own weights, times a base density, which broadcast against x.
        of: The power, its eps a number or (columns,).
        upper: Where each panel ends (*columns), from -1 to 1, without a derivative; default 1.
    """
    found: tuple[Tensor, Tensor] = _Effective.apply(x, measure, of.eps, upper, of.ratio, of.order)
    return found


def log_integrals(x: Tensor, measure: Tensor, of: Power) -> Tensor:
    r"""$\int [1 + \epsilon x]_+^k \log(1 + \epsilon x)/\epsilon$ (R,), differentiable once."""
    found: Tensor = _LogIntegral.apply(x, measure, of.eps, of.ratio, of.order)
    return found


def _total(w: Tensor) -> Tensor:
    """Sums over all panels (R,)."""
    return w.flatten(0, -2).sum(0)


def _solve(f: Tensor, measure: Tensor, of: Power) -> Tensor:
    """The normaliser (R,): by the rule's own weights, then by effective ones."""
    share = measure.reshape(1, -1)
    if of.is_exponential:
        return torch.logsumexp(f.flatten(0, 1) + share.T.log(), 0)
    level = _lower_bound(f, measure, of.eps)
    single = f.dtype == torch.float32
    looks = not (f.is_cuda or torch.compiler.is_compiling())
    for _ in range(6 if single else 8):
        mass, rate = (share @ v.flatten(0, 1) for v in of.pair(f - level))
        step = _step(mass[0], rate[0], of.eps)
        level = level + step
        if looks and step.amax() < _NEAR:
            break
    for _ in range(1 if single else 3):
        mass, rate = find_weights(f - level, measure, of, "power lowered")
        level = level + _step(_total(mass), _total(rate), of.eps)
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


def _fold(count: int, dims: tuple[Any, ...], x: Tensor, measure: Tensor, *rest: Any) -> list[Any]:
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


def _unfolded(found: tuple[Tensor, ...], count: int) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Rows with the dimension of vmap before them, and where it is."""
    parts = tuple(w.unflatten(-1, (count, -1)) for w in found)
    return parts, tuple(w.dim() - 2 for w in parts)


class _Effective(torch.autograd.Function):
    """Weights of a power and of the lowered power; the latter is the derivative of the former."""

    @staticmethod
    def forward(
        x: Tensor,
        measure: Tensor,
        eps: Tensor | float,
        upper: Tensor | None,
        ratio: float,
        order: int,
    ) -> tuple[Tensor, Tensor]:
        w, lowered = find_weights(x, measure, Power(eps, ratio, order), "power lowered", upper)
        return w, lowered

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, measure, eps, upper, ctx.ratio, ctx.order = inputs
        ctx.bounded = upper is not None
        ends = (upper,) if ctx.bounded else ()
        _save(ctx, eps, x, measure, output[1], *ends)

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *inputs: Any) -> Any:
        found = _Effective.apply(*_fold(info.batch_size, dims, *inputs))
        return _unfolded(found, info.batch_size)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, above: Tensor | None) -> tuple[Any, ...]:
        saved = _saved(ctx, Power(1.0, ctx.ratio, ctx.order))
        (x, measure, lowered), of = saved[:3], saved[-1]
        upper = saved[3] if ctx.bounded else None
        found, by_eps = None, None
        if grad is not None:
            found = of.factor * (lowered * grad)
            if ctx.needs_input_grad[2]:
                by_eps = _slopes(x, measure, of, grad, above, upper)
        if above is not None:
            second = _second(x, measure, of, upper) * above
            found = second if found is None else found + second
        return found, None, by_eps, None, None, None


class _LogIntegral(torch.autograd.Function):
    """Integrals of a power times its logarithm."""

    @staticmethod
    def forward(
        x: Tensor, measure: Tensor, eps: Tensor | float, ratio: float, order: int
    ) -> Tensor:
        (found,) = find_weights(x, measure, Power(eps, ratio, order), "log")
        return _total(found)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, measure, eps, ctx.ratio, ctx.order = inputs
        _save(ctx, eps, x, measure)

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *inputs: Any) -> Any:
        found = _LogIntegral.apply(*_fold(info.batch_size, dims, *inputs))
        return found.unflatten(0, (info.batch_size, -1)), 0

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        if grad is None:
            return (None,) * 5
        x, measure, of = _saved(ctx, Power(1.0, ctx.ratio, ctx.order))
        (by_x,) = find_weights(x, measure, of, "log_lowered")
        by_eps = None
        if ctx.needs_input_grad[2]:
            (slopes,) = find_weights(x, measure, of, "log_slope")
            by_eps = grad * _total(slopes)
        return grad * by_x, None, by_eps, None, None


class _Normalized(torch.autograd.Function):
    """The normaliser, the weights of p and those of its escort."""

    @staticmethod
    def forward(f: Tensor, measure: Tensor, eps: Tensor | float) -> tuple[Tensor, ...]:
        of = Power(eps)
        level = _solve(f, measure, of)
        w, lowered = find_weights(f - level, measure, of, "power lowered")
        return level, w, lowered

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        f, measure, eps = inputs
        _save(ctx, eps, f, measure, output[2], output[0])

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *inputs: Any) -> Any:
        found = _Normalized.apply(*_fold(info.batch_size, dims, *inputs))
        return _unfolded(found, info.batch_size)

    @staticmethod
    def backward(
        ctx: Any, by_level: Tensor | None, grad: Tensor | None, above: Tensor | None
    ) -> tuple[Any, ...]:
        f, measure, escort, level, of = _saved(ctx, Power(1.0))
        x = f - level
        total = _total(escort)
        # d/df at fixed A first, and then what A follows: the mass stays 1.
        found = torch.zeros_like(f) if grad is None else escort * grad
        if above is not None:
            found = found + _second(x, measure, of) * above
        drift = -_total(found)
        if by_level is not None:
            drift = drift + by_level
        found = found + escort * (drift / total)
        by_eps = None
        if ctx.needs_input_grad[2]:
            direct = drift / total if grad is None else grad + drift / total
            by_eps = _slopes(x, measure, of, direct, above)
        return found, None, by_eps


def _save(ctx: Any, eps: Tensor | float, *tensors: Tensor) -> None:
    ctx.set_materialize_grads(False)
    ctx.number = None if isinstance(eps, Tensor) else eps
    ctx.save_for_backward(*tensors, *([eps] if isinstance(eps, Tensor) else []))


def _saved(ctx: Any, of: Power) -> tuple[Any, ...]:
    if ctx.number is not None:
        return (*ctx.saved_tensors, of._replace(eps=ctx.number))
    return (*ctx.saved_tensors[:-1], of._replace(eps=ctx.saved_tensors[-1]))


def _second(x: Tensor, measure: Tensor, of: Power, upper: Tensor | None = None) -> Tensor:
    """Derivative in x of the weights of the lowered power."""
    if isinstance(of.eps, Tensor):
        raise RuntimeError("second derivatives need alpha to be a number, not a tensor")
    lowered = of.lowered()
    return lowered.factor * effective_weights(x, measure, lowered, upper)[1]


def _slopes(
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
    (slopes,) = find_weights(x, measure, of, "slope", upper)
    return _total(grad * slopes)
