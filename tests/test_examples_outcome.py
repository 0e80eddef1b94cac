"""What the tour says and draws of a comparison of mechanisms."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba

from examples.comparison import (
    LOGISTIC,
    NONE,
    Comparison,
    Task,
    builders,
    intervals_read,
    value_basis,
)
from examples.look import Look
from examples.mechanisms import Attention, Examples
from examples.outcome import (
    bumps,
    heads_picture,
    interval_counts,
    order,
    outcome,
    results,
    verdict,
)
from examples.page import Table
from examples.recordings import Recordings, load_recordings, observe
from examples.series_pictures import draw_accuracy, draw_attention
from examples.training import Run

PLAIN = {LOGISTIC: 0.92, NONE: 0.91}
NAMES = list(builders(2, 2))[1:]


@pytest.fixture(scope="module")
def few() -> Examples:
    observed = observe(load_recordings("OSULeaf")[1], 0.1, torch.Generator().manual_seed(0))
    return Examples.fit(observed, value_basis(), 10.0)[torch.arange(0, 240, 60)]


@pytest.fixture(scope="module")
def model() -> Attention:
    torch.manual_seed(0)
    made = builders(6, 3)["kernel sparsemax"]()
    assert isinstance(made, Attention)
    made.query.weight.data *= 8
    return made


def _runs(accuracy: dict[str, float]) -> dict[str, list[Run]]:
    return {name: [Run(x, 1.0, 1234), Run(x, 3.0, 1234)] for name, x in accuracy.items()}


def _comparison(runs: dict[str, list[Run]], test: Examples, **models: Attention) -> Comparison:
    task = Task("OSULeaf", 6, 0.1, 3, 7, 1e-3, 2)
    named = {name.replace("_", " "): model for name, model in models.items()}
    return Comparison(task, runs, named, test, Recordings([], test.labels), {100.0: 0.2}, 100.0)


def test_the_verdict_follows_the_numbers() -> None:
    behind = verdict(_runs(PLAIN | {"Gaussian": 0.7, "kernel softmax": 0.75}))
    assert "beats every mechanism" in behind
    assert "logistic regression 92.0\u00a0%, kernel softmax 75.0\u00a0%" in behind
    ahead = verdict(_runs(PLAIN | {"Gaussian": 0.95, "kernel softmax": 0.75}))
    assert "beats every mechanism" not in ahead
    assert "logistic regression 92.0\u00a0%, Gaussian 95.0\u00a0%), and in 2 of 2 seeds" in ahead
    mixed = _runs(PLAIN | {"Gaussian": 0.95})
    mixed["Gaussian"][0] = Run(0.919, 1.0, 1)
    assert "in 1 of 2 seeds" in verdict(mixed)


def test_densities_are_compared_by_their_bumps() -> None:
    said = bumps(_runs(PLAIN | {name: 0.5 + i / 100 for i, name in enumerate(NAMES)}))
    assert "52.0 and 53.0\u00a0% (Gaussian, truncated parabola)" in said
    assert "eight Gaussians in 54.0\u00a0%" in said
    assert "kernel in 55.0 and 56.0\u00a0% (softmax, sparsemax)" in said


def test_the_order_of_the_paper_is_looked_up_seed_by_seed() -> None:
    runs = _runs(PLAIN | {name: 0.5 + i / 100 for i, name in enumerate(NAMES)})
    assert "in 2 of 2 seeds both densities of one bump are behind the mixture" in order(runs)
    assert "in 2 the mixture is behind both kernels" in order(runs)
    # a tie, then one of the two kernels behind
    runs["truncated parabola"][0] = Run(0.54, 1.0, 1)
    runs["kernel softmax"][1] = Run(0.525, 1.0, 1)
    said = order(runs)
    assert "in 1 of 2 seeds both densities of one bump are behind the mixture" in said
    assert "in 1 the mixture is behind both kernels" in said
    assert "in 1 both densities of one bump are behind both kernels" in said


def test_the_table_has_means_over_seeds(few: Examples) -> None:
    runs = _runs(PLAIN | dict.fromkeys(NAMES, 0.5))
    runs["kernel sparsemax"] = [Run(0.5, 1.0, 56, 0.25, 2.0), Run(0.6, 2.0, 56, 0.35, 3.0)]
    found = _comparison(runs, few)
    (table,) = (part for part in outcome(found, "some") if isinstance(part, Table))
    rows = {row[0]: row[1:] for row in table.rows}
    assert list(rows) == list(runs)
    assert rows[NONE] == ["91.0 ± 0.0", "1\u00a0234", "2.0", "–", "–"]
    assert rows["kernel sparsemax"] == ["55.0 ± 7.1", "56", "1.5", "30", "2.5"]
    assert "7 epochs" in table.caption and "3 heads" in table.caption
    (last,) = (m for m in results(found)["methods"] if m["name"] == "kernel sparsemax")
    assert (last["heads"], last["read"], last["intervals"]) == pytest.approx((3, 0.3, 2.5))


def test_intervals_are_counted(few: Examples, model: Attention) -> None:
    with torch.no_grad():
        counts = intervals_read(model.attend(few))
    assert counts is not None and counts.max() > 2
    said = interval_counts(_comparison({}, few, kernel_sparsemax=model))
    assert f"{counts.double().mean():.1f} intervals on average, {counts.max()} at most" in said
    assert f"more than one in {100 * (counts > 1).double().mean():.0f}\u00a0%" in said


@pytest.mark.parametrize("narrow", [False, True])
def test_the_picture_has_a_bar_for_every_interval(
    few: Examples, model: Attention, narrow: bool
) -> None:
    views = {"all": model.attend, "two": lambda example: model.attend(example, [0, 2])}
    figure = draw_attention(Look(narrow=narrow), views, few, "species")
    columns = 1 if narrow else len(few)
    panels = [ax for ax in figure.axes if any(line.get_gid() == "density" for line in ax.lines)]
    assert len(panels) == 2 * columns
    with torch.no_grad():
        counts = intervals_read(model.attend(few))
    assert counts is not None
    for place, ax in enumerate(panels):
        row, column = divmod(place, columns)
        expected = counts[column][[0, 2] if row else [0, 1, 2]]
        bars = [line.get_gid() for line in ax.lines if "support" in (line.get_gid() or "")]
        assert [bars.count(f"support {i}") for i in range(len(expected))] == expected.tolist()
        title = ax.get_title(loc="left")
        name = ("all", "two")[row]
        wide = f"species {int(few.labels[column]) + 1}" if row == 0 else ""
        assert title.strip() == (name if narrow else wide)
    plt.close(figure)


@pytest.mark.parametrize("look", [Look(), Look(dark=True, narrow=True)])
def test_the_first_head_is_drawn_in_every_example(
    few: Examples, model: Attention, look: Look
) -> None:
    names = ("Gaussian mixture", "kernel softmax", "kernel sparsemax")
    mixture = builders(6, 3)["Gaussian mixture"]()
    assert isinstance(mixture, Attention)
    with torch.no_grad():
        mixture.query.bias.view(3, 8, 3)[..., 1] = -20.0  # so narrow that float32 has zeros
        assert (mixture.attend(few, [0]).prob(torch.tensor(0.999)) == 0).all()
    models = {"Gaussian_mixture": mixture, "kernel_softmax": model, "kernel_sparsemax": model}
    with look.applied():
        figure = heads_picture(_comparison({}, few, **models), "some", "species", "").draw(look)
    panels = [ax for ax in figure.axes if ax.get_title(loc="left")]
    assert [ax.get_title(loc="left") for ax in panels] == list(names[-1:] if look.narrow else names)
    (image,) = panels[-1].images
    rows = image.get_array()
    assert rows.shape == (len(few), 600)
    t = (torch.arange(600) + 0.5) / 600
    with torch.no_grad():
        due = model.attend(few, [0]).prob(t.reshape(-1, 1, 1)).squeeze(-1).T
    np.testing.assert_array_equal(rows, due[few.labels.argsort(stable=True)])
    # nothing but an exact zero has the colour of the background
    painted = _painted(panels[-1], look)
    assert look.narrow or _painted(panels[0], look).all()
    np.testing.assert_array_equal(painted, np.asarray(rows) > 0)
    assert 0 < painted.mean() < 1
    counts = few.labels.bincount()
    lines = [line.get_ydata()[0] for line in panels[-1].lines]
    assert lines == counts.cumsum(0)[:-1].tolist()
    plt.close(figure)


def _painted(ax: Axes, look: Look) -> np.ndarray:
    """Where the image of a panel has another colour than the background."""
    (image,) = ax.images
    colors = image.to_rgba(image.get_array())
    return ~np.isclose(colors, np.array(to_rgba(look.background)), atol=1e-6).all(-1)


def test_accuracies_are_dots_and_their_mean_a_bar() -> None:
    runs = {"one": [Run(0.5, 1.0, 1), Run(0.7, 1.0, 1)], "two": [Run(0.9, 1.0, 1)]}
    figure = draw_accuracy(Look(), runs)
    (ax,) = figure.axes
    dots, means = ax.lines[::2], ax.lines[1::2]
    np.testing.assert_allclose(dots[0].get_xdata(), [50, 70], rtol=1e-6)
    assert [float(np.mean(line.get_xdata())) for line in means] == pytest.approx([60, 90])
    assert [float(np.mean(line.get_ydata())) for line in dots] == [0, 1]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["one", "two"]
    plt.close(figure)
