"""Plots show what the distributions say: every line, bar, stem and contour is checked as data."""

import math
import sys
from collections.abc import Callable, Iterator

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.collections import Collection
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from scipy.integrate import trapezoid
from torch import Tensor

import sparsefam as sf
from sparsefam.plotting import plot_attention, plot_attention_map, plot_density

DENSITIES = {
    "normal": sf.Normal(0.3, 2.0),
    "laplace": sf.Laplace(torch.tensor([0.0, 1.0]), torch.tensor([0.5, 2.0])),
    "parabola": sf.TruncatedParabola(torch.tensor([[0.0, 2.0], [3.0, -1.0]]), 0.7),
    "steep": sf.BetaGaussian(100.0, 0.5, 4.0),
    "uniform": sf.BetaGaussian(-1.0, 2.0, math.inf),
    "beta-laplace": sf.BetaLaplace.from_b(0.0, 1e-3, 1.5),
}


@pytest.fixture
def ax() -> Iterator[Axes]:
    figure, ax = plt.subplots(figsize=(3, 3), dpi=100)
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


def test_zero_between_islands_and_no_bar_for_padding(ax: Axes) -> None:
    """Of a batch with two intervals and one, which is padded with NaN."""
    p = sf.Mixture(torch.zeros(2), sf.TruncatedParabola(torch.tensor([[0.0, 3.0], [1, 2]]), 1.0))
    plot_density(p, ax)
    assert bars(ax) == [[-1, 1], [2, 4], [0, 3]]
    first = data(lines(ax, "density")[0])
    assert not first[1][(first[0] > 1) & (first[0] < 2)].any()
    assert np.interp([0.0, 3.0], *first) == pytest.approx([0.375, 0.375], rel=1e-3)


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


def test_data_are_marks_below_the_support(ax: Axes) -> None:
    seen = np.array([[0.5], [1.2], [5.0]])
    plot_density(sf.TruncatedParabola(1.0, 0.5), ax, data=seen)
    (rug,) = lines(ax, "rug")
    t, level = data(rug)
    np.testing.assert_array_equal(t, seen[:, 0])
    assert 0 < level[0] == level[1] < lines(ax, "support")[0].get_ydata()[0]
    assert ax.get_xlim()[0] < 0.5 and ax.get_xlim()[1] > 5.0


def test_missing_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"sparsefam\[plot\]"):
        plot_density(sf.Normal(0.0, 1.0))


POSITIONS = torch.tensor([0.1, 0.2, 0.5, 0.9])
WEIGHTS = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.0, 0.25, 0.0, 0.75]])
HEADS = sf.TruncatedParaboloid(torch.tensor([[0.8, 0.2], [0.2, 0.9]]), 0.15 * torch.eye(2))


@pytest.mark.parametrize("weights", [WEIGHTS, sf.SparseCategorical(WEIGHTS)])
def test_stems_where_weights_are_positive(ax: Axes, weights: Tensor | sf.SparseCategorical) -> None:
    assert plot_attention(weights, POSITIONS, ax=ax) is ax
    heads = [data(line) for line in lines(ax, "density")]
    for (t, height), row in zip(heads, WEIGHTS, strict=True):
        np.testing.assert_array_equal(t, POSITIONS[row > 0].double())
        np.testing.assert_array_equal(height, row[row > 0].double())
    marked = [list(line.get_xdata()) for line in lines(ax, "support")]
    assert marked == [list(t) for t, _ in heads]
    tokens = ["one", "two", "three", "four"]
    plot_attention(weights, POSITIONS, tokens=tokens, ax=ax)
    assert [label.get_text() for label in ax.get_xticklabels()] == tokens
    assert list(ax.get_xticks()) == pytest.approx(POSITIONS.tolist())


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
    assert ax.get_xlim() == (0, 1)


def test_an_example_of_a_batch(ax: Axes) -> None:
    p = sf.TruncatedParabola(torch.rand(3, 2, 4), 0.25)
    plot_attention(p, example=(1, slice(None), -1), ax=ax, view=(0.0, 1.0))
    curves = [data(line) for line in lines(ax, "density")]
    for head, (t, height) in enumerate(curves):
        np.testing.assert_allclose(height, probs(p[1, head, 3], t)[0], atol=1e-3)
    assert len(curves) == 2


# In the plane
LOC = torch.tensor([[0.0, 0.0], [2.5, 0.5], [-1.0, 2.0]])
SCALE = torch.tensor(
    [[[1.0, 0.0], [0.6, 0.5]], [[0.5, 0.0], [-0.4, 0.8]], [[1.0, 0.0], [0.0, 0.3]]]
)
ELLIPSES = {
    "paraboloid": sf.TruncatedParaboloid(LOC, SCALE),
    "single": sf.TruncatedParaboloid(LOC[1].double(), SCALE[1].double()),
    "smooth": sf.MultivariateBetaGaussian(LOC.reshape(3, 1, 2), SCALE.reshape(3, 1, 2, 2), 1.25),
    "steep": sf.MultivariateBetaGaussian(LOC[0], SCALE[0], 4.0),
    "uniform": sf.MultivariateBetaGaussian(LOC[0] + 100, 0.1 * SCALE[0], math.inf),
    "learned": sf.TruncatedParaboloid(LOC.clone().requires_grad_(), SCALE),
}
SOLID = sf.TruncatedParaboloid(torch.zeros(3), torch.eye(3))


def collection(ax: Axes, gid: str) -> list[Collection]:
    return [found for found in ax.collections if found.get_gid() == gid]


def vertices(found: Collection) -> np.ndarray:
    """Points of the lines, or on the edges of the areas, that were drawn."""
    paths = found.get_paths()
    return np.concatenate([line for path in paths for line in path.to_polygons(closed_only=False)])


def standardized(p: sf.SparseDistribution, i: int, t: np.ndarray) -> np.ndarray:
    """Distances from the center of element i, in units of its scale."""
    loc = p.loc.detach().reshape(-1, 2)[i].double().numpy()
    scale = p.scale_tril.detach().reshape(-1, 2, 2)[i].double().numpy()
    return np.linalg.norm(np.linalg.solve(scale, (t - loc).T), axis=0)


# Densities
@pytest.mark.parametrize("name", ELLIPSES)
def test_outlines_are_the_supports_and_contours_levels(ax: Axes, name: str) -> None:
    p = ELLIPSES[name]
    assert plot_density(p, ax) is ax
    outlines, contours = collection(ax, "support"), collection(ax, "density")
    count = p.batch_shape.numel()
    assert (len(outlines), len(contours)) == (count, 8 * count)
    alpha = float(p.alpha.flatten()[0])
    for i, outline in enumerate(outlines):
        assert outline.get_linestyle()[0][1] is None
        np.testing.assert_allclose(standardized(p, i, vertices(outline)), 1, atol=0.04)
        for k, contour in enumerate(contours[8 * i : 8 * i + 8]):
            size = math.sqrt(1 - (k / 8) ** (alpha - 1))
            np.testing.assert_allclose(standardized(p, i, vertices(contour)), size, atol=0.04)
            np.testing.assert_array_equal(
                contour.get_facecolor()[0][:3], outline.get_edgecolor()[0][:3]
            )


def test_views_labels_and_colors(ax: Axes) -> None:
    plot_density(ELLIPSES["single"], ax, label="a", color="red", view=((0.0, 4.0), (-1.0, 2.0)))
    assert (ax.get_xlim(), ax.get_ylim()) == ((0, 4), (-1, 2))
    ELLIPSES["paraboloid"].plot(ax, label=["b", "c", "d"], view=(-2.0, 5.0))
    assert (ax.get_xlim(), ax.get_ylim()) == ((-2, 5), (-2, 5))
    assert ax.get_legend_handles_labels()[1] == ["a", "b", "c", "d"]
    edges = [tuple(outline.get_edgecolor()[0][:3]) for outline in collection(ax, "support")]
    assert edges[0] == to_rgb("red") and len(set(edges)) == 4


# Contours that are no ellipses
ISLANDS = sf.TruncatedParaboloid(LOC[:2].double(), SCALE[:2].double())
DOTS = torch.tensor([[0.0, 0.1], [2.5, 0.5], [4.5, 1.0]])


def test_contours_of_islands_are_ellipses_around_each(ax: Axes) -> None:
    p = sf.Mixture(torch.tensor([0.5, 0.0], dtype=torch.float64), ISLANDS)
    assert plot_density(p, ax, label="a", color="red", data=DOTS) is ax
    (outline,) = collection(ax, "support")
    rims = vertices(outline)
    distance = np.stack([standardized(ISLANDS, i, rims) for i in range(2)])
    np.testing.assert_allclose(distance.min(0), 1, atol=0.05)
    assert set(distance.argmin(0)) == {0, 1}
    top = float(p.prob(torch.stack([*ISLANDS.loc])).max())
    contours = collection(ax, "density")
    assert len(contours) == 8
    for k, contour in enumerate(contours):
        heights = p.prob(torch.from_numpy(vertices(contour))) / top
        np.testing.assert_allclose(heights, k / 8, atol=0.03)
    (dots,) = (line for line in ax.lines if line.get_gid() == "data")
    np.testing.assert_array_equal(np.stack(dots.get_data(), -1), DOTS)


# Attention over images
def image(rows: int = 4, columns: int = 6) -> Tensor:
    """Colors in which red grows to the right and green grows downwards."""
    red = torch.linspace(0, 1, columns).expand(rows, columns)
    green = torch.linspace(0, 1, rows).unsqueeze(-1).expand(rows, columns)
    return torch.stack([red, green, torch.zeros(rows, columns)])


WIDE = ((0.0, 3.0), (-1.0, 1.0))


def test_cells_are_as_opaque_as_their_weights(ax: Axes) -> None:
    weights = torch.tensor([[[0.0, 0.1, 0.4], [0.5, 0.0, 0.0]], [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]])
    plot_attention_map(weights, image(), ax=ax, domain=WIDE, label=["a", "b"])
    cells = [shown for shown in ax.images if shown.get_gid() == "density"]
    for shown, head in zip(cells, weights, strict=True):
        rgba = np.asarray(shown.get_array())
        np.testing.assert_allclose(rgba[..., 3], 0.8 * head / head.max(), rtol=1e-6)
        assert shown.get_extent() == ax.images[0].get_extent() == [0, 3, 1, -1]
    first, second = (np.asarray(shown.get_array())[0, 0, :3] for shown in cells)
    assert not np.allclose(first, second)
    # Up in the picture is towards smaller second coordinates.
    assert ax.transData.transform((0, -0.5))[1] > ax.transData.transform((0, 0.5))[1]
    assert ax.get_legend_handles_labels()[1] == ["a", "b"]


@pytest.mark.parametrize("shape", [(5, 7), (1, 5, 7), (4, 5, 7)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.uint8])
def test_images_are_taken_channels_first(
    ax: Axes, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    levels = torch.rand(shape, dtype=torch.float64)
    picture = levels if dtype == torch.float64 else (255 * levels).to(dtype)
    plot_attention_map(HEADS, picture, ax=ax)
    shown = np.asarray(ax.images[0].get_array())
    kept = picture.squeeze(0) if shape[0] == 1 else picture
    np.testing.assert_array_equal(shown, kept.movedim(0, -1) if kept.dim() == 3 else kept)


# Errors
PAIR = sf.Normal(torch.zeros(2), torch.ones(2))
GRAY = torch.zeros(5, 7)


def density(p: sf.SparseDistribution = PAIR, **options: object) -> Callable[[Axes], object]:
    return lambda ax: plot_density(p, ax, **options)


def series(*arguments: object, **options: object) -> Callable[[Axes], object]:
    return lambda ax: plot_attention(*arguments, ax=ax, **options)


def over(picture: Tensor, attention: object = HEADS, **options: object) -> Callable[[Axes], object]:
    return lambda ax: plot_attention_map(attention, picture, ax=ax, **options)


@pytest.mark.parametrize(
    ("plot", "message"),
    [
        (density(data=[[0.0, 1.0]]), r"data must be finite, of shape \(n,\) or \(n, 1\), got .*1,"),
        (density(data=[1j]), r"data must be numbers, got \[1j\]"),
        (density(data=[0.0, math.inf]), "data must be finite"),
        (density(limit=1), "p must have at most limit=1 batch elements, got 2"),
        (density(label=[3, 4]), r"label must be one name or 2 of them, got \[3, 4\]"),
        (density(points=1), "points must be at least 2, got 1"),
        (density(view=(0.0, math.inf)), "view must be two finite numbers that increase, got"),
        (density(HEADS, escort=True), "escort must be False .* got True"),
        (density(HEADS, view=(1.0, 0.0)), "view must be two finite .* or 2 such pairs, got"),
        (density(HEADS[0], data=[[0.0, math.nan]]), r"data must be finite, of shape \(n, 2\), got"),
        (density(SOLID), r"p must have one or two dimensions, got .* \(3,\)"),
        (series(WEIGHTS[:, :3], POSITIONS), r"attention must have shape \(..., 4\), got \(2, 3\)"),
        (series(WEIGHTS, POSITIONS.reshape(2, 2)), r"positions must have shape \(L >= 1,\)"),
        (series(WEIGHTS), "positions must have shape"),
        (series(WEIGHTS, POSITIONS, example=5), "example must be an index of the batch, got 5"),
        (series(PAIR, POSITIONS, example=5), "example must be an index of the batch, got 5"),
        (series(torch.distributions.Normal(0, 1), POSITIONS), "attention must be a distribution"),
        (series(WEIGHTS, POSITIONS, torch.zeros(3)), "values must have length 4"),
        (series(torch.ones(11, 4) / 4, POSITIONS), "attention must have at most limit=10"),
        (series(HEADS, POSITIONS), r"attention must have one dimension, .* \(2,\)"),
        (over(torch.zeros(5)), r"image must have shape \(H, W\) or .*got \(5,\)"),
        (over(torch.zeros(5, 7, 3)), r"image must have .*got \(5, 7, 3\)"),
        (over(GRAY, domain=(1.0, 0.0)), "domain must be .*got"),
        (over(GRAY, torch.ones(4) / 4), r"attention must .*\(..., rows, columns\), got \(4,\)"),
        (over(GRAY, sf.Normal(0.0, 1.0)), r"attention must have two dimensions, .* \(\)"),
    ],
)
def test_bad_arguments_are_named(ax: Axes, plot: Callable[[Axes], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plot(ax)
