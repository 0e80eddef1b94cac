"""Which tensors of a run of a model are computed from what may change in the next run."""

import sys
from numbers import Number
from typing import Any

from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import Self

__all__ = ["Flow"]

# These packages read values to raise errors; what they compute, they compute by tensors.
_CHECKS = ("pyro.", "sparsefam.", "torch.distributions.")


class Flow(Messenger):
    """Follows values of sampled sites and parameters, and other inputs, through a run of a model.

    Whatever an operation on them returns depends on them, also where there is no derivative, as of
    comparisons and indices. If the model reads one as a number, by `item`, `bool` and the like, all
    that comes after may depend. Arrays of numpy are not followed.

    Args:
        inputs: Arguments of the model, whose tensors may be others in the next run. Numbers are
            taken for fixed. With objects that may hold tensors, all may depend.
    """

    def __init__(self, inputs: Any) -> None:
        super().__init__()
        self._mode, self._names = _Mode(), set[str]()
        self._mode.add(inputs)
        known = Tensor, Number, str, type(None)
        self._mode.is_read = not all(isinstance(x, known) for x in tree_leaves(inputs))

    def __enter__(self) -> Self:
        self._mode.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._mode.__exit__(*exception)

    def reaches(self, tensors: list[Tensor]) -> bool:
        """Return whether any of the tensors depends on an input."""
        return self._mode.is_read or any(map(self._mode.has, tensors))

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        # The model's own observations are data; outer handlers may still make it observed.
        if not msg["is_observed"]:
            self._names.add(msg["name"])

    def _pyro_post_sample(self, msg: dict[str, Any]) -> None:
        if msg["name"] in self._names:
            self._mode.add(msg["value"])

    def _pyro_post_param(self, msg: dict[str, Any]) -> None:
        self._mode.add(msg["value"])


class _Mode(TorchDispatchMode):
    """Marks the memory of results of operations on marked tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.is_read = False
        self._marked: dict[int, Any] = {}  # kept, so that no other memory gets the same number

    def add(self, values: Any) -> None:
        for x in tree_leaves(values):
            if isinstance(x, Tensor):
                storage = x.untyped_storage()
                self._marked[storage._cdata] = storage

    def has(self, x: Tensor) -> bool:
        return x.requires_grad or x.untyped_storage()._cdata in self._marked

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(isinstance(x, Tensor) and self.has(x) for x in tree_leaves((args, kwargs))):
            self.add(result)
            if not all(isinstance(x, Tensor) for x in tree_leaves(result)):
                self.is_read |= not _reader().startswith(_CHECKS)
        return result


def _reader() -> str:
    """Return the module of the Python code that reads a value."""
    frame: Any = sys._getframe(2)
    while (name := frame.f_globals["__name__"]).startswith(("torch._", "torch.utils.")):
        frame = frame.f_back
    return name
