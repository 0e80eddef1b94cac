"""Calls that must be refused, with what the errors say."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def refused(calls: Iterable[tuple[Callable[[], object], str]], **options: Any) -> Any:
    """A test that each call raises a ValueError which a pattern matches."""

    @pytest.mark.parametrize(("call", "message"), list(calls), **options)
    def test(call: Callable[[], object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            call()

    return test
