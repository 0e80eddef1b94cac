"""Functions with rules of their own for derivatives, and operators of compiled graphs.

Compiled graphs call a function that branches on values, or takes many steps, as one operator. They
trace no rules of forward mode, which a twin without such a rule spares them.
"""

from collections.abc import Callable, Sequence
from functools import partial, wraps
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from .modes import compiled, forward_mode_depth, may_be_differentiated

__all__ = [
    "Changes",
    "NO_FORWARD_MODE",
    "NO_SECOND_DERIVATIVE",
    "differentiable",
    "differentiable_once",
    "operator",
    "without_derivative",
]

NO_SECOND_DERIVATIVE = (
    "only first derivatives exist in alpha, and of entropies, divergences, cdf, icdf, samples and "
    "cross-validated penalties"
)
# The message where alpha is a tensor.
NO_FORWARD_MODE = (
    "forward mode (torch.func.jvp, jacfwd, hessian) needs alpha to be a number in kernel families: "
    "use reverse mode (torch.func.grad, jacrev)"
)

# Changes of arguments, or gradients in results. None is zero.
Changes = Sequence[Any]


def operator(name: str, function: Callable[..., Any], like: Callable[..., Any]) -> Any:
    """Return a function that is one operator in compiled graphs.

    Args:
        name: Of the operator in the namespace `sparsefam`.
        function: From tensors, numbers and lists, as annotated, to a tensor or a list of tensors,
            which share no memory with each other or with the arguments.
        like: From the same arguments to empty tensors of the shapes and dtypes of the results,
            whose memory is contiguous.
    """

    # Graphs rely on results being laid out in memory as the tensors of `like`.
    @wraps(function)
    def contiguous(*inputs: Any) -> Any:
        results = function(*inputs)
        return (
            results.contiguous()
            if isinstance(results, Tensor)
            else [x.contiguous() for x in results]
        )

    torch.library.custom_op(f"sparsefam::{name}", contiguous, mutates_args=()).register_fake(like)
    # Graphs cannot hold the object that `custom_op` returns.
    registered = getattr(torch.ops.sparsefam, name).default

    @wraps(function)
    def call(*inputs: Any) -> Any:
        return (registered if compiled() else function)(*inputs)

    return call


def differentiable(
    function: Callable[..., Any],
    pull_back: Callable[[Any, Changes, Sequence[bool]], Changes],
    keep: Callable[[Any, Any], tuple[Any, ...]],
    push_forward: Callable[[Any, Changes], Any] | None = None,
    vmap: Callable[..., Any] | None = None,
    constants: Sequence[int] = (),
) -> Callable[..., Any]:
    """Return a function whose derivatives are given.

    Args:
        function: From tensors and other arguments to a tensor, or a sequence of them.
        pull_back: From the kept objects, gradients in the results, and whether each argument needs
            one, to the gradients in the arguments; the last ones may be left out. It is
            differentiated for second derivatives.
        keep: From arguments and results, a tuple each, to the objects that the rules need.
        push_forward: From the kept objects and changes of the arguments to changes of the results.
            It cannot be differentiated by forward mode: torch would leave out its own tangents,
            without an error.
        vmap: As the method of `torch.autograd.Function`, with the function itself before the other
            arguments. By default operations are batched.
        constants: Results without derivatives.
    """

    class Function(torch.autograd.Function):
        """The function with its rule of reverse mode, in the form in which torch takes it."""

        generate_vmap_rule = vmap is None

        @staticmethod
        def forward(*inputs: Any) -> Any:
            results = function(*inputs)
            return results if isinstance(results, Tensor) else tuple(results)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            outputs = (output,) if isinstance(output, Tensor) else output
            # Rules get None, not zeros, where a gradient or a change is zero.
            ctx.set_materialize_grads(False)
            if constants:
                ctx.mark_non_differentiable(*[outputs[i] for i in constants])
            kept = keep(inputs, outputs)
            tensors = [x if isinstance(x, Tensor) else None for x in kept]
            ctx.others = [None if isinstance(x, Tensor) else x for x in kept]
            ctx.save_for_backward(*tensors)
            ctx.save_for_forward(*tensors)

        @staticmethod
        def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
            needed = ctx.needs_input_grad
            if all(x is None for x in grads):
                return (None,) * len(needed)
            results = pull_back(_kept(ctx), grads, needed)
            return (*results, *[None] * (len(needed) - len(results)))

    # torch asks for it in each call, and making it takes longer than a short function.
    Function.forward.__signature__ = signature(function)  # type: ignore[attr-defined]

    class WithForwardMode(Function):
        """The function with a rule of forward mode, which compiled graphs cannot trace."""

        @staticmethod
        def jvp(ctx: Any, *changes: Tensor | None) -> Any:
            if forward_mode_depth() > 1:
                raise NotImplementedError(
                    "forward mode within forward mode (jacfwd of jacfwd) is not supported: "
                    "use torch.func.hessian, or jacfwd of jacrev"
                )
            return push_forward(_kept(ctx), changes)  # type: ignore[misc]

    eager = Function if push_forward is None else WithForwardMode

    def call(*inputs: Any) -> Any:
        # `apply` takes long even where no derivative is wanted.
        if not may_be_differentiated(*[x for x in inputs if isinstance(x, Tensor)]):
            return Function.forward(*inputs)
        return (Function if compiled() else eager).apply(*inputs)

    if vmap is not None:
        Function.vmap = staticmethod(partial(vmap, call))  # type: ignore[method-assign]
    return call


def _kept(ctx: Any) -> list[Any]:
    """Return what `keep` returned, of which torch saves only tensors."""
    pairs = zip(ctx.saved_tensors, ctx.others, strict=True)
    return [other if tensor is None else tensor for tensor, other in pairs]


# Derivatives that do not exist


def _refuse(*_: Any) -> Any:
    """Raise RuntimeError, in place of a derivative."""
    raise RuntimeError(NO_SECOND_DERIVATIVE)


# x, which must be differentiated neither in x nor in y.
_stopped = differentiable(
    lambda x, y: x.clone(), _refuse, lambda inputs, outputs: (), push_forward=_refuse
)
_once = differentiable(
    lambda x: x.clone(),
    # Constant gradients are refused, too.
    lambda kept, grads, _: (_stopped(grads[0], *kept),),
    lambda inputs, outputs: inputs,
    push_forward=lambda _, changes: _stopped(changes[0], changes[0]),
)


def without_derivative(x: Tensor) -> Tensor:
    """Return the same numbers; differentiating them raises RuntimeError."""
    stopped: Tensor = _stopped(x, x)
    return stopped


def differentiable_once(x: Tensor) -> Tensor:
    """Return the same numbers; differentiating their first derivatives raises RuntimeError."""
    once: Tensor = _once(x)
    return once
