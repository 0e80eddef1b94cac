"""What an object holds, and copies of it: torch 2.11 traces neither `vars` nor `copy.copy`."""

from typing import Any, TypeVar

import torch

__all__ = ["attributes", "attributes_set", "copied"]

_Object = TypeVar("_Object")

_LISTED = torch.__version__ >= "2.12"


def attributes(p: object) -> dict[str, Any]:
    """Attributes of an object by name; in graphs of torch 2.11 those that `__init__` sets."""
    held = vars(p)
    if _LISTED or not torch.compiler.is_compiling():
        return dict(held)
    return {name: held[name] for name in attributes_set(type(p)) if name in held}


def copied(p: _Object) -> _Object:
    """A shallow copy."""
    new = type(p).__new__(type(p))
    for name, value in attributes(p).items():
        vars(new)[name] = value
    return new


def attributes_set(kind: type) -> tuple[str, ...]:
    """Names in the code of a class's `__init__` and its parents', among them all that it sets."""
    makers = (vars(c).get("__init__") for c in kind.__mro__)
    codes = (getattr(maker, "__code__", None) for maker in makers)
    return tuple({name: None for code in codes if code for name in code.co_names})


# What torch.compiler.assume_constant_result does, which would import the compiler.
attributes_set.__dict__["_dynamo_marked_constant"] = True
