"""Measurements with gaps and bounds: what is held out, what is drawn, what the tutorial says."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from scipy.stats import gaussian_kde, norm

import sparsefam as sf
from examples import estimation, estimation_fits
from examples.estimation_fits import Case, check, load
from examples.look import Look

PAGE = Path(__file__).parents[1] / "docs" / "tutorials" / "estimation.md"


def test_measurements_are_none_where_nothing_is() -> None:
    cases = load()
    assert [case.data.shape for case in cases] == [(150, 1), (556, 1), (150, 2)]
    for case in cases:
        first = case.data[:, 0]
        assert not ((case.empty[0] < first) & (first < case.empty[1])).any()
        low, high = np.array(case.view).T
        assert (case.data > low).all() and (case.data < high).all()
    below = cases[0].data < cases[0].empty[0]
    assert below.sum() == 50  # the flowers of one species


def test_checks_of_a_uniform_density(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uniform up to the largest of the data that it is fitted to."""

    def uniform(case: Case) -> estimation_fits.Density:
        return lambda data: lambda t: ((t >= 0) & (t <= data.max()))[:, 0] / data.max()

    monkeypatch.setitem(estimation_fits.METHODS, "uniform", uniform)
    case = Case("two numbers", np.array([[2.0], [4.0]]), ((-1.0, 5.0),), (1.0, 2.0))
    found = check(case, "uniform", 2)
    # fitted to 4, and to 2, which misses 4
    assert found.empty == pytest.approx((0.25 + 0.5) / 2, abs=1e-3)
    assert found.missed == 0.5
    assert found.score == pytest.approx((0.25 - 0.5 + 0.5) / 2, abs=1e-3)
    with pytest.raises(ValueError, match="folds must be at least 2, got 1"):
        check(case, "uniform", 1)


def test_tuned_widths_make_what_is_held_out_likely() -> None:
    data = np.random.default_rng(0).normal(size=(60, 1))
    case = Case("normal", data, ((-5.0, 5.0),), (4.0, 5.0))
    tuned = estimation_fits.METHODS["gaussian_kde, tuned"](case)
    folds = np.arange(60) % 5

    def likelihood(factor: float) -> float:
        total = 0.0
        for k in range(5):
            rest, held = data[folds != k], data[folds == k]
            width = factor * rest.std(ddof=1)
            total += np.log(norm(rest.T, width).pdf(held).mean(1) + 1e-300).sum()
        return total

    best = max(np.geomspace(0.03, 1.0, 12), key=likelihood)
    expected = norm(data.T, best * data.std(ddof=1)).pdf(0.3).mean()
    assert tuned(data)(np.array([[0.3]])) == pytest.approx(expected)


def test_pictures_show_both_estimates_and_the_data() -> None:
    cases = load()
    line = sf.Mixture(torch.zeros(2), sf.TruncatedParabola(torch.tensor([1.5, 5.0]), 0.5))
    plane = sf.TruncatedParaboloid(torch.tensor([4.0, 1.0]), torch.eye(2))
    with Look().applied():
        figure = estimation._draw(Look(), cases, [line, line, plane])
    for ax, case in zip(figure.axes[:2], cases, strict=False):
        lines = {gid.split()[0]: line for line in ax.lines if (gid := line.get_gid())}
        t, height = lines["smooth"].get_data()
        np.testing.assert_allclose(height, gaussian_kde(case.data.T)(t))
        np.testing.assert_array_equal(lines["rug"].get_xdata(), case.data[:, 0])
        assert ax.get_xlabel() == case.name
    (dots,) = (line for line in figure.axes[2].lines if line.get_gid() == "data")
    np.testing.assert_array_equal(np.stack(dots.get_data(), -1), cases[2].data)
    (smooth,) = (c for c in figure.axes[2].collections if c.get_gid() == "smooth")
    spots = np.concatenate([path.vertices for path in smooth.get_paths()])
    levels = gaussian_kde(cases[2].data.T)(spots[::20].T) / smooth.levels[-1] * 0.5
    assert (abs(levels[:, None] - [0.02, 0.25, 0.5]).min(1) < 0.01).all()
    plt.close(figure)


def test_rows_of_the_tutorial_are_those_of_the_checks() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for case in load()[:2]:
        for method in ("gaussian_kde", "gaussian_kde, tuned"):
            row = [case.name, method, *estimation._cells(check(case, method, 5))]
            assert f"| {' | '.join(row)} |" in text


def test_the_bound_is_where_the_density_begins() -> None:
    case = load()[1]
    model = estimation_fits.sparse(Case(**{**vars(case), "bandwidth": (0.04,)}), case.data[:200])
    assert model.support_[0, 0] == 0.0
    assert model.density_.prob(torch.tensor([-1e-9, 1e-9]).double()).gt(0).tolist() == [False, True]
