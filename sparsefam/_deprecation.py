"""Old names of renamed objects, kept for one minor release."""

import sys
import warnings
from collections.abc import Callable
from typing import Any

__all__ = ["renamed"]


def renamed(module: str, **names: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module, which finds renamed objects by their old names.

    A name warns when it is looked up. Unlike a class under `typing_extensions.deprecated`, it is
    the new class, warns once and not in every copy, and compiles.

    Args:
        module: Name of the module.
        **names: The new name of each old name.
    """

    def find(name: str) -> Any:
        """Return the object of an old name, with a warning."""
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        message = f"{module}.{name} is deprecated: use {module}.{names[name]}"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[module], names[name])

    return find
