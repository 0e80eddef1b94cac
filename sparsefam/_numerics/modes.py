"""The modes in which torch runs a function, and the work that each of them permits.

Compiled and exported graphs have no values. Transforms of `torch.func` hide them, a trace of
`torch.jit` would record the branch that they take, and a device has to be waited for. No other
module asks torch for these, or for a private name.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes

__all__ = [
    "branches_allowed",
    "compiled",
    "compiled_by_dynamo",
    "exported",
    "forward_mode_depth",
    "in_forward_mode",
    "is_batched_by_autograd",
    "may_be_differentiated",
    "may_have_tangent",
    "outside_modes",
    "recording",
    "sizes_are_symbols",
    "traced",
    "values_are_readable",
    "values_exist",
    "vmapped",
]

_PLAIN = (Tensor, nn.Parameter)
_Kind = torch._C._functorch.TransformType


# Permissions


def branches_allowed(*tensors: Tensor) -> bool:
    """Return whether Python may branch on values, and call an operation block by block.

    So it is outside compiled graphs and transforms of `torch.func`. On a device branching waits,
    and a trace of `torch.jit` records the branch that was taken.
    """
    return values_exist(*tensors) and not torch._C._functorch.get_interpreter_stack()


def values_are_readable(*tensors: Tensor) -> bool:
    """Return whether Python may look at values to leave out work, or to do it in place.

    So it is with plain tensors on the CPU, where nothing waits for them, unless a transform, a
    trace or forward mode follows their operations.
    """
    if not branches_allowed() or traced():
        return False
    plain = all(type(x) in _PLAIN and x.is_cpu for x in tensors)
    return plain and not may_have_tangent(*tensors)


def values_exist(*tensors: Tensor) -> bool:
    """Return whether values can be checked: not in compiled graphs and on the meta device."""
    return not compiled() and not any(x.is_meta for x in tensors)


def sizes_are_symbols() -> bool:
    """Return whether sizes of tensors may be other objects than numbers."""
    return compiled() or traced()


# Graphs


def compiled() -> bool:
    """Return whether torch.compile or torch.export makes a graph."""
    return torch.compiler.is_compiling()


def compiled_by_dynamo() -> bool:
    """Return whether a graph is made from the bytecode, which an export need not be."""
    return torch.compiler.is_dynamo_compiling()


def exported() -> bool:
    """Return whether torch.export makes a graph, which serves other sizes, too."""
    return torch.compiler.is_exporting()


def traced() -> bool:
    """Return whether torch.jit traces, as for `JitTrace_ELBO` and `jit_compile` of Pyro."""
    return torch._C._get_tracing_state() is not None


# Derivatives


def may_be_differentiated(*tensors: Tensor) -> bool:
    """Return whether somebody may ask for derivatives in tensors, now or when a graph is called."""
    if not branches_allowed() or traced():
        return True
    recorded = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    return recorded or may_have_tangent(*tensors)


def in_forward_mode() -> bool:
    """Return whether anything is differentiated in forward mode."""
    return forward_ad._current_level >= 0


def may_have_tangent(*tensors: Tensor) -> bool:
    """Return whether forward mode may differentiate in one of some tensors."""
    if not in_forward_mode():
        return False
    try:
        return any(forward_ad.unpack_dual(x).tangent is not None for x in tensors)
    except RuntimeError:  # within torch.func.vmap
        return True


def forward_mode_depth() -> int:
    """Return how many transforms of `torch.func` differentiate in forward mode."""
    return _levels().count(_Kind.Jvp)


def vmapped() -> bool:
    """Return whether `torch.func.vmap` hides the values of a batch."""
    return _Kind.Vmap in _levels()


def _levels() -> list[_Kind]:
    """Return the kinds of the active transforms of `torch.func`, the outermost first."""
    return [level.key() for level in torch._C._functorch.get_interpreter_stack() or []]


def is_batched_by_autograd(x: Tensor) -> bool:
    """Return whether `torch.autograd.grad` holds several gradients in one tensor."""
    return torch._C._functorch.is_legacy_batchedtensor(x)


# Modes switched off


@contextmanager
def outside_modes() -> Iterator[None]:
    """Leave all modes and transforms, so that tensors made in the block may be cached."""
    with torch.inference_mode(False), _disable_current_modes(), torch._C._DisableFuncTorch():
        yield


@contextmanager
def recording() -> Iterator[None]:
    """Let operations record derivatives within a custom operator, where torch prevents it."""
    # `custom_op` excludes the keys by which autograd records operations and views: guards include
    # them again.
    keys = torch._C.DispatchKey.AutogradFunctionality, torch._C.DispatchKey.ADInplaceOrView
    first, second = (torch._C._SetExcludeDispatchKeyGuard(key, False) for key in keys)
    with first, second, torch.enable_grad():
        yield
