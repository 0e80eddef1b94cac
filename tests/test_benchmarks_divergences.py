"""How exact divergences are: what `make accuracy` prints of them, and that it can fail."""

import math
from dataclasses import replace

import pytest

from benchmarks.divergence_accuracy import (
    Ball,
    Question,
    divergence_errors,
    divergence_failures,
    divergence_table,
    error,
    exact,
    questions,
)

PLANE = [q for q in questions() if 2 in q.dimensions and not q.name.endswith("mixture")]


@pytest.mark.parametrize("question", PLANE, ids=lambda q: q.name)
def test_limits_hold_in_the_plane(question: Question) -> None:
    some = replace(question, dimensions=(2,), pairs=question.pairs[-2:])
    assert error(some) <= question.limit


@pytest.mark.slow
def test_limits_hold() -> None:
    assert divergence_failures(divergence_errors()) == []


def test_the_reference_is_exact() -> None:
    one, two = Ball(0.0, 1.0, 2.0), Ball(3.0, 0.5, 2.0)
    # Half the integral of a squared difference, of disjoint disks: 4/(3 pi r^2) each.
    expected = 0.5 * 5 * 4 / (3 * math.pi)
    assert exact("Bregman", 2.0, [one], [two], 2) == pytest.approx(expected, rel=1e-13)
    assert exact("Tsallis", 0.5, [one], [two], 2) == pytest.approx(2, rel=1e-13)
    # Of uniform ones the logarithm of the volumes' ratio; of normals the distance.
    for dim in (1, 2, 3, 6):
        inner, outer = Ball(0.1, 0.5, math.inf), Ball(0.0, 1.0, math.inf)
        found = exact("KL", 1.0, [inner], [outer], dim)
        assert found == pytest.approx(dim * math.log(2), rel=1e-12)
        normals = Ball(0.0, 1.0, 1.0), Ball(0.5, 1.0, 1.0)
        found = exact("KL", 1.0, [normals[0]], [normals[1]], dim)
        assert found == pytest.approx(0.125, rel=1e-9)


def test_what_is_above_its_limit_is_told() -> None:
    question = questions()[0]
    assert divergence_failures([(question, 1e-13)]) == []
    for bad in (1.0, math.nan, math.inf):
        (line,) = divergence_failures([(question, bad)])
        assert line.startswith("KL 1, one in the other in (1, 2, 3)")
    assert divergence_table([(question, 1e-13)]).rows[0][2:] == ["1.0e-13", "1e-12"]
