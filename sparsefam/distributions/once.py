"""Attributes that are computed when first asked for."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

__all__ = ["once"]

_Value = TypeVar("_Value")


class once(Generic[_Value]):  # noqa: N801
    """Decorator: a property whose value is kept.

    A value first asked for where no gradients are recorded has none, and is kept apart, as
    `name_detached`: it serves only until gradients are asked for.

    `functools.cached_property` holds a lock in Python up to 3.11, which compiled graphs refuse.
    """

    def __init__(self, function: Callable[[Any], _Value]) -> None:
        self._function, self.__doc__ = function, function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> _Value:
        if instance is None:
            return self  # type: ignore[return-value]
        kept = instance.__dict__
        name = self._name if torch.is_grad_enabled() else f"{self._name}_detached"
        if name not in kept:
            kept[name] = self._function(instance)
        found: _Value = kept[name]
        return found
