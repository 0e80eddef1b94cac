"""Modules that find things before a compiled graph asks, which could not."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torch import Tensor, nn
from typing_extensions import Self

__all__ = ["Prepared"]


class Prepared(nn.Module):
    """Calls `prepare` whenever parameters may have changed other than by training."""

    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_post_hook(_prepare)

    def prepare(self) -> None:
        """Finds what depends on parameters and can be kept, if they are not as they were."""
        raise NotImplementedError

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        # What `to_empty` leaves has yet to be filled.
        with suppress(ValueError):
            self.prepare()
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.prepare()


def _prepare(module: nn.Module, _: object) -> None:
    """After a state was loaded; a function, as it travels with copies of the module."""
    if isinstance(module, Prepared):
        module.prepare()
