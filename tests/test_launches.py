"""How many operators hot paths launch, and how much they write: numbers without noise."""

import pytest

from benchmarks.ceilings import launches, operations

OPERATIONS = operations()
# Operators, and megabytes that they write, a twentieth above what they were when last looked at.
LIMITS = {
    "expectations, alpha 2": (385, 96.0),
    "expectations, alpha 1.7": (4060, 503.0),
    "expectations in the plane": (7, 0.03),  # the rest is numpy's
    "ridge regression, 128 functions": (340, 136.0),
    "log_prob": (21, 61.0),
    "rsample": (22, 86.0),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_launches_and_writes(name: str) -> None:
    found = launches(OPERATIONS[name].run)
    count, written = LIMITS[name]
    assert 0 < found.count <= count, found.names
    assert 0 < found.written <= written * 1e6
