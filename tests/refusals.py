"""Calls that must be refused, with what the errors say."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def refused(
    rows: Iterable[tuple[Any, ...]],
    of: Callable[..., object] = lambda call: call(),
    **options: Any,
) -> Any:
    """A test that each row but its end, given to `of`, raises a ValueError which the end matches.

    By default a row is a call and the pattern of what is said.
    """

    @pytest.mark.parametrize("row", list(rows), **options)
    def test(row: tuple[Any, ...]) -> None:
        *arguments, message = row
        with pytest.raises(ValueError, match=message):
            of(*arguments)

    return test
