"""Follow the tensors of a run of a model that may be others in the next run."""

import sys
from numbers import Number
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import Self

__all__ = ["Flow", "Followed"]

# Operations that take only the shape and the dtype of a tensor.
_LIKE = "empty_like", "full_like", "ones_like", "zeros_like"
_NEW = "new_empty", "new_full", "new_ones", "new_zeros"
_SHAPES = {getattr(torch.ops.aten, name) for name in (*_LIKE, *_NEW)}
# These packages read values to raise errors, but compute by tensors.
_CHECKS = ("pyro.", "sparsefam.", "torch.distributions.")


class Flow(Messenger):
    """Follows values of sampled sites and parameters, and other inputs, through a run of a model.

    Args:
        inputs: Arguments of the model, whose tensors may be others in the next run. Numbers are
            taken for fixed. With objects that may hold tensors, all may depend.
    """

    def __init__(self, inputs: Any) -> None:
        super().__init__()
        self._followed, self._names = Followed(), set[str]()
        self._followed.add(inputs)
        kinds = Tensor, Number, str, type(None)
        self._followed.is_read = not all(isinstance(x, kinds) for x in tree_leaves(inputs))

    def __enter__(self) -> Self:
        self._followed.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._followed.__exit__(*exception)

    def reaches(self, tensors: list[Tensor]) -> bool:
        """Return whether any of the tensors depends on an input, or requires a gradient."""
        learned = any(x.requires_grad for x in tensors)
        return learned or self._followed.is_read or self._followed.reaches(tensors)

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        # The model's own observations are data; outer handlers may still make it observed.
        if not msg["is_observed"]:
            self._names.add(msg["name"])

    def _pyro_post_sample(self, msg: dict[str, Any]) -> None:
        if msg["name"] in self._names:
            self._followed.add(msg["value"])

    def _pyro_post_param(self, msg: dict[str, Any]) -> None:
        self._followed.add(msg["value"])


class Followed(TorchDispatchMode):
    """Follows tensors: whatever an operation on them returns depends on them.

    That includes operations without a derivative, such as comparisons and indices. If a number is
    read, by `item`, `bool` and the like, all that comes after may depend. Arrays of numpy are not
    followed.

    Attributes:
        is_read: Whether a number was read, other than to check it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_read = False
        self._memory: dict[int, Any] = {}  # kept, so that no other memory gets the same number

    def add(self, values: Any) -> None:
        """Follow the tensors in a nested structure."""
        for x in tree_leaves(values):
            if isinstance(x, Tensor):
                storage = x.untyped_storage()
                self._memory[storage._cdata] = storage

    def reaches(self, values: Any) -> bool:
        """Return whether any tensor in a nested structure depends on those that are followed."""
        return any(
            isinstance(x, Tensor) and x.untyped_storage()._cdata in self._memory
            for x in tree_leaves(values)
        )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket not in _SHAPES and self.reaches((args, kwargs)):
            self.add(result)
            if not all(isinstance(x, Tensor) for x in tree_leaves(result)):
                # A number was read: by the model, unless the caller outside torch is a check.
                frame: Any = sys._getframe(1)
                while frame.f_globals["__name__"].startswith(("torch._", "torch.utils.")):
                    frame = frame.f_back
                self.is_read |= not frame.f_globals["__name__"].startswith(_CHECKS)
        return result
