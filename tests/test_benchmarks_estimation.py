"""The densities that estimates are compared on, and their errors."""

import numpy as np
import pytest
from scipy.stats import kstest

from benchmarks.density_estimation import DENSITIES, GRID, METHODS, Law, errors


@pytest.mark.parametrize("law", DENSITIES.values(), ids=DENSITIES.keys())
def test_draws_follow_the_density(law: Law) -> None:
    draws = law.draw(4000, np.random.default_rng(0))
    fine = np.linspace(0, 1, 20001)
    middle = (fine[1:] + fine[:-1]) / 2
    below = np.concatenate([[0.0], np.cumsum(law.at(middle)) / 20000])
    assert below[-1] == pytest.approx(1, abs=1e-3)
    assert kstest(draws, lambda t: np.interp(t, fine, below)).pvalue > 1e-3
    assert law.inside(draws).all()


def test_errors_are_those_of_a_shifted_uniform() -> None:
    law = DENSITIES["uniform"]
    due = np.where((GRID >= 0.1) & (GRID <= 1.1), 1.0, 0.0)
    squared, hellinger, outside = errors(law, due)
    assert (squared, hellinger**2, outside) == pytest.approx((0.2, 0.1, 0.1), abs=1e-3)
    assert errors(law, law.at(GRID)) == (0, 0, 0)


def test_every_method_is_a_density() -> None:
    x = DENSITIES["two parabolas"].draw(60, np.random.default_rng(0))
    for fit in METHODS.values():
        assert fit(x)(GRID).sum() * (GRID[1] - GRID[0]) == pytest.approx(1, abs=0.01)
