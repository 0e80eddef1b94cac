"""The public names and their signatures, as tests/signatures.txt lists them.

`python -m tests.signatures` writes that file anew. A member is listed with the class that defines
it, and not again with listed classes that inherit it. Types are left to mypy and to the site.
"""

import functools
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

from tests.test_docs import public_names

FILE = Path(__file__).with_suffix(".txt")


class Name(str):
    """A default that is printed by its name: the repr of a function has an address."""

    __repr__ = str.__str__


def signature(function: Any) -> str:
    """The parameters with their defaults."""
    parameters = []
    for x in inspect.signature(function).parameters.values():
        default = Name(x.default.__name__) if inspect.isfunction(x.default) else x.default
        parameters.append(x.replace(annotation=x.empty, default=default))
    return str(inspect.Signature(parameters))


def is_ours(cls: type) -> bool:
    return cls.__module__.startswith("sparsefam")


def members(cls: type, listed: set[type]) -> Iterator[str]:
    """The public methods and properties of a class and of its bases that are not listed."""
    inherited = {x for base in cls.__mro__[1:] if base in listed for x in base.__mro__}
    found: dict[str, Any] = {}
    for base in reversed([x for x in cls.__mro__ if is_ours(x) and x not in inherited]):
        found |= vars(base)
    for name in sorted(name for name in found if not name.startswith("_")):
        value = getattr(found[name], "__func__", found[name])
        if isinstance(value, FunctionType):
            yield f"    {name}{signature(value)}"
        elif isinstance(value, (property, functools.cached_property)):
            yield f"    {name}"


def lines() -> Iterator[str]:
    names = list(public_names())
    listed = {value for _, value in names if inspect.isclass(value)}
    first: dict[int, str] = {}
    for path, value in names:
        if (place := first.setdefault(id(value), path)) != path:
            yield f"{path}: {place}"
        elif inspect.isclass(value):
            makers = (x for x in value.__mro__ if {"__init__", "__new__"} & vars(x).keys())
            yield path + (signature(value) if is_ours(next(makers)) else "")
            yield from members(value, listed)
        else:
            yield path + (signature(value) if inspect.isfunction(value) else "")


def text() -> str:
    return "".join(f"{line}\n" for line in lines())


if __name__ == "__main__":
    FILE.write_text(text())
