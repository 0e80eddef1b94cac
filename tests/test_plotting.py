"""Pictures show what the distributions say: every line, bar and stem is checked as data."""

import math
import sys
from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from scipy.integrate import trapezoid
from torch import Tensor
from torch.distributions import constraints

import sparsefam as sf
from sparsefam.plotting import plot_attention, plot_density

DENSITIES = {
    "normal": sf.Normal(0.3, 2.0),
    "laplace": sf.Laplace(torch.tensor([0.0, 1.0]), torch.tensor([0.5, 2.0])),
    "parabola": sf.TruncatedParabola(torch.tensor([[0.0, 2.0], [3.0, -1.0]]), 0.7),
    "steep": sf.BetaGaussian(100.0, 0.5, 4.0),
    "uniform": sf.BetaGaussian(-1.0, 2.0, math.inf),
    "beta-laplace": sf.BetaLaplace.from_b(0.0, 1e-3, 1.5),
    "triangular": sf.Triangular(0.0, 1e3),
    "location-scale": sf.LocationScale(0.0, 1.0, lambda x: x**4 / 12),
}


class Islands(sf.SparseDistribution):
    """Uniform on islands (batch, K, 2), of which NaN are none; islands have equal mass."""

    arg_constraints = {}

    def __init__(self, intervals: Tensor) -> None:
        self.intervals = intervals
        self.alpha = torch.full(intervals.shape[:1], math.inf)
        super().__init__(intervals.shape[:1], validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        support = constraints.Constraint()
        support.intervals = self.intervals
        return support

    def log_prob(self, value: Tensor) -> Tensor:
        low, high = self.intervals.unbind(-1)
        inside = (value.unsqueeze(-1) >= low) & (value.unsqueeze(-1) <= high)
        count = (~low.isnan()).sum(-1)
        return torch.where(inside, 1 / (high - low), 0.0).sum(-1).div(count).log()


@pytest.fixture
def ax() -> Iterator[Axes]:
    figure, ax = plt.subplots()
    yield ax
    plt.close(figure)


def lines(ax: Axes, gid: str) -> list[Line2D]:
    return [line for line in ax.lines if (line.get_gid() or "").startswith(gid)]


def data(line: Line2D) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)


def bars(ax: Axes) -> list[list[float]]:
    return [list(line.get_xdata()) for line in lines(ax, "support") if len(line.get_xdata()) == 2]


def arrows(ax: Axes) -> list[str]:
    return [line.get_marker() for line in lines(ax, "support") if line.get_marker() in ("<", ">")]


def probs(p: sf.SparseDistribution, t: np.ndarray) -> np.ndarray:
    """Densities (elements, points)."""
    grid = torch.tensor(t, dtype=p.mean.dtype).reshape(-1, *(1,) * len(p.batch_shape))
    return p.prob(grid.expand(-1, *p.batch_shape)).reshape(len(t), -1).T.numpy()


@pytest.mark.parametrize("name", DENSITIES)
def test_lines_are_the_density_and_bars_the_support(ax: Axes, name: str) -> None:
    p = DENSITIES[name]
    assert plot_density(p, ax) is ax
    drawn, intervals = lines(ax, "density"), p.support.intervals.reshape(-1, 2).tolist()
    assert len(drawn) == len(intervals) == p.batch_shape.numel()
    assert len(bars(ax)) == len(drawn)
    for i, (low, high) in enumerate(intervals):
        t, height = data(drawn[i])
        assert np.all(np.diff(t) >= 0)
        assert height.max() == pytest.approx(float(p.prob(p.mode).reshape(-1)[i]), rel=1e-3)
        assert trapezoid(height, t) == pytest.approx(1, abs=2e-3)
        rim = 1e-4 * (t[-1] - t[0])
        away = (abs(t - low) > rim) & (abs(t - high) > rim)
        expected = probs(p, t[away])[i]
        np.testing.assert_allclose(height[away], expected, rtol=1e-3, atol=1e-4 * height.max())
        if math.isfinite(low):
            assert bars(ax)[i] == pytest.approx([low, high])
            assert t[0] < low < high < t[-1] and height[0] == height[-1] == 0
            assert np.isin([low, high], t).all()
        else:
            assert p.cdf(torch.tensor(t[-1])).reshape(-1)[i] > 0.999
            assert bars(ax)[i] == pytest.approx([t[0], t[-1]])
    assert arrows(ax) == ["<", ">"] * (len(drawn) if math.isinf(intervals[0][0]) else 0)


def test_jumps_are_upright(ax: Axes) -> None:
    plot_density(sf.BetaGaussian(1.0, 2.0, math.inf), ax)
    t, height = data(lines(ax, "density")[0])
    rising = np.flatnonzero(np.diff(height))
    assert len(rising) == 2
    assert np.diff(t)[rising].max() < 1e-4
    assert set(height) == {0.0, 0.25}


def test_zero_between_islands_and_no_bar_for_padding(ax: Axes) -> None:
    nan = math.nan
    islands = torch.tensor([[[0.0, 1.0], [3.0, 4.0]], [[1.0, 2.0], [nan, nan]]])
    plot_density(Islands(islands), ax)
    assert bars(ax) == [[0, 1], [3, 4], [1, 2]]
    first, second = (data(line) for line in lines(ax, "density"))
    between = (first[0] > 1) & (first[0] < 3)
    assert not first[1][between].any() and np.interp(2.0, *first) == 0
    assert np.interp([0.5, 3.5], *first) == pytest.approx([0.5, 0.5])
    assert np.interp([1.5, 3.5], *second) == pytest.approx([1.0, 0.0])
    assert len({line.get_ydata()[0] for line in lines(ax, "support")}) == 2


def test_escort_is_the_dashed_line(ax: Axes) -> None:
    p = sf.BetaGaussian(0.0, 1.0, 1.5)
    plot_density(p, ax, escort=True)
    solid, dashed = lines(ax, "density")
    assert (solid.get_linestyle(), dashed.get_linestyle()) == ("-", "--")
    t, height = data(dashed)
    inside = abs(t) < 0.999
    np.testing.assert_allclose(height[inside], probs(p.escort(), t[inside])[0], rtol=1e-4)
    assert len(bars(ax)) == 1


def test_a_view_cuts_without_inventing_an_edge(ax: Axes) -> None:
    plot_density(sf.TruncatedParabola(0.0, 1.0), ax, view=(-2.0, 0.0))
    t, height = data(lines(ax, "density")[0])
    assert ax.get_xlim() == (-2, 0) == (t[0], t[-1])
    assert height[-1] == pytest.approx(0.75)
    assert bars(ax) == [[-1, 0]]
    assert arrows(ax) == [">"]


def test_drawing_again_adds_rows_below_zero(ax: Axes) -> None:
    for loc in (0.0, 3.0):
        plot_density(sf.TruncatedParabola(loc, 1.0), ax)
    plot_density(sf.TruncatedParabola(torch.arange(4.0), 0.1), ax)
    levels = [line.get_ydata()[0] for line in lines(ax, "support")]
    low, high = ax.get_ylim()
    assert len(set(levels)) == 6
    assert 0 < min(levels) and max(levels) < -low / (high - low)
    assert high > 7.5 and min(ax.get_yticks()) == 0


def test_the_method_draws(ax: Axes) -> None:
    assert sf.Normal(0.0, 1.0).plot(ax, label="n") is ax
    assert lines(ax, "density")[0].get_label() == "n"


def test_data_are_marks_below_the_support(ax: Axes) -> None:
    seen = np.array([[0.5], [1.2], [5.0]])
    plot_density(sf.TruncatedParabola(1.0, 0.5), ax, data=seen)
    (rug,) = lines(ax, "rug")
    t, level = data(rug)
    np.testing.assert_array_equal(t, seen[:, 0])
    assert rug.get_marker() == "|" and rug.get_linestyle() == "None"
    low, high = ax.get_ylim()
    supports = [line.get_ydata()[0] for line in lines(ax, "support")]
    assert 0 < level[0] == level[1] < min(supports) < -low / (high - low)
    assert ax.get_xlim()[0] < 0.5 and ax.get_xlim()[1] > 5.0
    plot_density(sf.TruncatedParabola(3.0, 0.5), ax, data=torch.tensor([3.0]))
    levels = [line.get_ydata()[0] for line in lines(ax, "support") + lines(ax, "rug")]
    assert len(set(levels)) == 4


def test_categories_have_no_data(ax: Axes) -> None:
    with pytest.raises(ValueError, match="data must be None for categories"):
        sf.SparseCategorical(torch.tensor([0.5, 0.5])).plot(ax, data=[0.0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": [[0.0, 1.0]]}, r"data must be finite, of shape \(n,\) or \(n, 1\), got .*1, 2"),
        ({"data": [1j]}, r"data must be numbers, got \[1j\]"),
        ({"data": "ab"}, "data must be numbers, got 'ab'"),
        ({"data": 3.0}, r"data must be finite, of shape .*, got shape \(\)"),
        ({"data": [0.0, math.inf]}, "data must be finite"),
        ({"limit": 1}, "p must have at most limit=1 batch elements, got 2"),
        ({"limit": None}, "limit must be a positive integer, got None"),
        ({"label": 3}, "label must be one name or 2 of them, got 3"),
        ({"label": [3, 4]}, r"label must be one name or 2 of them, got \[3, 4\]"),
        ({"points": 1}, "points must be an integer, at least 2, got 1"),
        ({"label": ["a"]}, "label must be one name or 2 of them"),
        ({"view": (1.0, 1.0)}, "view must be two finite numbers that increase, got"),
        ({"view": (0.0, math.inf)}, "view must be two finite numbers that increase, got"),
    ],
)
def test_bad_options(ax: Axes, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plot_density(sf.Normal(torch.zeros(2), torch.ones(2)), ax, **options)


@pytest.mark.parametrize("p", [None, "p", torch.distributions.Normal(0.0, 1.0)])
def test_only_densities_of_the_package(ax: Axes, p: object) -> None:
    with pytest.raises(ValueError, match="p must be a distribution of sparsefam, got"):
        plot_density(p, ax)
    with pytest.raises(ValueError, match="attention must be a distribution or a tensor, got"):
        plot_attention(p, POSITIONS, ax=ax)


def test_missing_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"sparsefam\[examples\]"):
        plot_density(sf.Normal(0.0, 1.0))


POSITIONS = torch.tensor([0.1, 0.2, 0.5, 0.9])
WEIGHTS = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.0, 0.25, 0.0, 0.75]])


@pytest.mark.parametrize("weights", [WEIGHTS, sf.SparseCategorical(WEIGHTS)])
def test_stems_where_weights_are_positive(ax: Axes, weights: Tensor | sf.SparseCategorical) -> None:
    assert plot_attention(weights, POSITIONS, ax=ax) is ax
    heads = [data(line) for line in lines(ax, "density")]
    for (t, height), row in zip(heads, WEIGHTS, strict=True):
        np.testing.assert_array_equal(t, POSITIONS[row > 0].double())
        np.testing.assert_array_equal(height, row[row > 0].double())
    marked = [list(line.get_xdata()) for line in lines(ax, "support")]
    assert marked == [list(t) for t, _ in heads]
    tops = [path.vertices[:, 1].max() for stems in ax.collections for path in stems.get_paths()]
    assert tops == [0.5, 0.5, 0.25, 0.75]


def test_categories_are_drawn_at_their_numbers(ax: Axes) -> None:
    sf.SparseCategorical(torch.tensor([0.0, 0.4, 0.6])).plot(ax)
    t, height = data(lines(ax, "density")[0])
    np.testing.assert_allclose((t, height), ([1, 2], [0.4, 0.6]), rtol=1e-6)


def test_a_series_is_drawn_above_attention(ax: Axes) -> None:
    values = torch.tensor([3.0, -1.0, 2.0, 0.0])
    p = sf.TruncatedParabola(torch.tensor([0.3, 0.6]), 0.2)
    plot_attention(p, POSITIONS, values, value_function=torch.cos, ax=ax, view=(0.0, 1.0))
    twin = next(other for other in ax.figure.axes if other is not ax)
    (points,), (curve,) = lines(twin, "observations"), lines(twin, "value")
    np.testing.assert_array_equal(data(points), (POSITIONS.double(), values.double()))
    t, height = data(curve)
    assert (t[0], t[-1]) == pytest.approx((0.1, 0.9))
    np.testing.assert_allclose(height, np.cos(t), rtol=1e-5)
    # the highest density ends below where the lowest value begins
    peak = max(data(line)[1].max() for line in lines(ax, "density"))
    share = [(y - a) / (b - a) for y, (a, b) in ((peak, ax.get_ylim()), (-1, twin.get_ylim()))]
    assert 0.4 < share[0] < share[1] < 0.7
    assert ax.get_xlim() == (0, 1)


def test_tokens_are_written_at_their_positions(ax: Axes) -> None:
    tokens = ["one", "two", "three", "four"]
    plot_attention(WEIGHTS, POSITIONS, tokens=tokens, ax=ax)
    assert [label.get_text() for label in ax.get_xticklabels()] == tokens
    assert list(ax.get_xticks()) == pytest.approx(POSITIONS.tolist())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((WEIGHTS[:, :3], POSITIONS), r"attention must have shape \(..., 4\), got \(2, 3\)"),
        ((WEIGHTS, POSITIONS.reshape(2, 2)), r"positions must have shape \(L >= 1,\)"),
        ((WEIGHTS[:, :0], POSITIONS[:0]), r"positions must have shape \(L >= 1,\)"),
        ((WEIGHTS, POSITIONS, torch.zeros(3)), "values must have length 4"),
        ((torch.ones(11, 4) / 4, POSITIONS), "attention must have at most limit=10"),
    ],
)
def test_bad_attention(ax: Axes, arguments: tuple[Tensor, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plot_attention(*arguments, ax=ax)
