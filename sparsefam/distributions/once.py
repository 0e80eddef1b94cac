"""Attributes that are computed when first asked for."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

__all__ = ["once"]

_Value = TypeVar("_Value")


class once(Generic[_Value]):  # noqa: N801
    """Decorator: a property whose value is kept.

    `functools.cached_property` holds a lock in Python up to 3.11, which compiled graphs refuse.
    """

    def __init__(self, function: Callable[[Any], _Value]) -> None:
        self._function, self.__doc__ = function, function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> _Value:
        if instance is None:
            return self  # type: ignore[return-value]
        value = self._function(instance)
        instance.__dict__[self._name] = value
        return value
