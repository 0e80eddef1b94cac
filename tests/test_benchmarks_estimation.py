"""The densities that estimates are compared on, their errors, and what is said of them."""

import numpy as np
import pytest
from scipy.stats import kstest

from benchmarks.density_estimation import Outcome, Trial, medians, trial
from benchmarks.estimation_aims import AIMS, verdicts
from benchmarks.estimation_laws import DENSITIES, GRID, SEPARATED, Errors, Law, errors
from benchmarks.estimation_methods import METHODS, OURS


@pytest.mark.parametrize("law", DENSITIES.values(), ids=DENSITIES.keys())
def test_draws_follow_the_density(law: Law) -> None:
    draws = law.draw(4000, np.random.default_rng(0))
    fine = np.linspace(0, 1, 20001)
    middle = (fine[1:] + fine[:-1]) / 2
    below = np.concatenate([[0.0], np.cumsum(law.at(middle)) / 20000])
    assert below[-1] == pytest.approx(1, abs=1e-3)
    assert kstest(draws, lambda t: np.interp(t, fine, below)).pvalue > 1e-3
    assert law.inside(draws).all()


def test_separated_densities_have_gaps() -> None:
    inside = {name: law.inside(GRID).astype(int) for name, law in DENSITIES.items()}
    runs = {name: (np.diff(found) == 1).sum() for name, found in inside.items()}
    assert {name for name, count in runs.items() if count > 1} == set(SEPARATED)
    assert len(SEPARATED) == 5 and min(runs.values()) == 1


def test_errors_are_those_of_a_shifted_uniform() -> None:
    law = DENSITIES["uniform"]
    due = np.where((GRID >= 0.1) & (GRID <= 1.1), 1.0, 0.0)
    assert errors(law, due)._replace(hellinger=0) == pytest.approx((0.2, 0, 0.1), abs=1e-3)
    assert errors(law, due).hellinger ** 2 == pytest.approx(0.1, abs=1e-3)
    assert errors(law, law.at(GRID)) == (0, 0, 0)


def test_every_method_is_a_density() -> None:
    x = DENSITIES["two parabolas"].draw(60, np.random.default_rng(0))
    for name, fit in METHODS.items():
        found = fit(x)(GRID)
        assert found.sum() * (GRID[1] - GRID[0]) == pytest.approx(1, abs=0.01), name
        assert found.min() >= 0


def test_trials_are_of_the_sample_that_they_name(monkeypatch: pytest.MonkeyPatch) -> None:
    law = DENSITIES["ramp"]
    monkeypatch.setattr(
        "benchmarks.density_estimation.METHODS",
        {OURS: lambda x: lambda t: np.full(t.shape, x.mean())},
    )
    mean = law.draw(50, np.random.default_rng(3)).mean()
    expected = errors(law, np.full(GRID.shape, mean))
    assert trial(Trial(50, "ramp", 3)).errors == {OURS: expected}


def test_medians_are_of_each_error() -> None:
    outcomes = [
        Outcome({name: Errors(k, 10 - k, k % 2) for name in METHODS}, 0.0) for k in range(5)
    ]
    assert medians(outcomes) == dict.fromkeys(METHODS, Errors(2, 8, 0))


def test_verdicts_count_and_name_the_worst() -> None:
    rivals = {"wide": Errors(2.0, 2.0, 0.5), "narrow": Errors(1.0, 1.0, 0.1)}
    good, bad = Errors(0.9, 0.9, 0.01), Errors(1.5, 1.1, 0.04)
    every = {7: {name: {OURS: good, **rivals} for name in DENSITIES}}
    assert [verdicts(aim, every)[7] for aim in AIMS] == [
        "20 of 20",
        "18 of 18",
        "18 of 18",
        "10 of 10",
    ]
    every[7]["ramp"] = every[7]["skewed pair"] = {OURS: bad, **rivals}
    each, best, outside, _ = (verdicts(aim, every)[7] for aim in AIMS)
    assert each == "18 of 20; 1.5 times too large: skewed pair (squared, narrow)"
    assert best.startswith("16 of 18; 1.2 times too large: ramp (squared")  # 1.5 / 1.2
    assert outside.startswith("16 of 18; 4.0 times too large: ramp (narrow")
