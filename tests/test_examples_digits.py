"""The third stage of the tour: questions about canvases of digits."""

from collections.abc import Callable
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.patches import Rectangle
from scipy.stats import norm
from sklearn.datasets import load_digits
from torch import Tensor

import sparsefam as sf
from examples.canvases import CANVAS, DIGIT, Canvases, load_canvases, split_digits
from examples.digit_pictures import draw_aims
from examples.digits import MEAN, READERS, blind_limit, verdict
from examples.look import Look
from examples.readers import CELLS, Continuous, Discrete, aim_of
from examples.training import Run, train

ATTENTIVE = [name for name in READERS if name != MEAN]
FAMILIES = {"Gaussian": sf.MultivariateNormal, "paraboloid": sf.TruncatedParaboloid}


@pytest.fixture(scope="module")
def data() -> tuple[Canvases, Canvases]:
    return load_canvases(64, 0)


@pytest.fixture(scope="module")
def held_out(data: tuple[Canvases, Canvases]) -> Canvases:
    return data[1]


def test_the_digits_are_split_without_overlap() -> None:
    parts = split_digits(torch.Generator().manual_seed(0))
    assert [len(classes) for _, classes in parts] == [1200, 597]
    whole = load_digits()
    expected = sorted(
        (*image.ravel(), c) for image, c in zip(whole.images, whole.target, strict=True)
    )
    found = [
        (*(16 * image).reshape(-1).tolist(), int(c))
        for images, classes in parts
        for image, c in zip(images, classes, strict=True)
    ]
    assert sorted(found) == expected


def test_a_canvas_is_four_digits_of_its_part(data: tuple[Canvases, Canvases]) -> None:
    parts = split_digits(torch.Generator().manual_seed(0))
    for canvases, (images, classes) in zip(data, parts, strict=True):
        for canvas, labels, corners in zip(
            canvases.images, canvases.labels, canvases.corners, strict=True
        ):
            rest = canvas.clone()
            for question, (x, y) in enumerate(corners.tolist()):
                # inside its quadrant: left or right, top or bottom
                assert x // 14 == (x + 7) // 14 == question % 2
                assert y // 14 == (y + 7) // 14 == question // 2
                place = (slice(y, y + DIGIT), slice(x, x + DIGIT))
                same = (images == canvas[place]).all(-1).all(-1)
                assert labels[question] in classes[same]
                rest[place] = 0
            assert not rest.any()


def test_every_place_is_taken(data: tuple[Canvases, Canvases]) -> None:
    jitter = (load_canvases(400, 0)[0].corners % (CANVAS // 2)).reshape(-1, 2)
    for axis in jitter.T:
        assert axis.unique().tolist() == list(range(7))


def test_canvases_follow_the_seed() -> None:
    first, again, other = (load_canvases(40, seed)[1].images for seed in (0, 0, 1))
    assert len(first) == 15
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_boxes_hold_the_digits(held_out: Canvases) -> None:
    low, high = (CANVAS * corner for corner in held_out.boxes())
    outer, end = (CANVAS * corner for corner in Canvases.quadrants())
    assert ((outer <= low) & (high <= end)).all() and (high - low == DIGIT).all()
    assert outer.tolist() == [[0, 0], [14, 0], [0, 14], [14, 14]] and (end - outer == 14).all()


def _at_cell(canvases: Canvases) -> Tensor:
    """Index (B, 4) of the cell that has the middle of each digit in it."""
    column, row = ((canvases.corners + DIGIT // 2) // 2).unbind(-1)
    return CELLS * row + column


def test_aim_of_weights(held_out: Canvases) -> None:
    right = torch.nn.functional.one_hot(_at_cell(held_out), CELLS**2).float()
    aim = aim_of(sf.SparseCategorical(probs=right), held_out)
    assert (aim.quadrant, aim.digit, aim.read) == pytest.approx((1, 1, 1 / CELLS**2))
    aim = aim_of(sf.SparseCategorical(probs=right.flip(1)), held_out)
    assert (aim.quadrant, aim.digit) == (0, 0)
    # 16 cells have their centre in a digit, wherever that is
    even = torch.full_like(right, 1 / CELLS**2)
    aim = aim_of(sf.SparseCategorical(probs=even), held_out)
    assert (aim.quadrant, aim.digit, aim.read) == pytest.approx((1 / 4, 16 / CELLS**2, 1))


def test_aim_of_densities(held_out: Canvases) -> None:
    low, high = held_out.boxes()
    middle, radius = (low + high) / 2, 0.49 * DIGIT / CANVAS
    scale = radius * torch.eye(2)
    aim = aim_of(sf.TruncatedParaboloid(middle, scale), held_out)
    assert (aim.quadrant, aim.digit) == pytest.approx((1, 1))
    ticks = (np.arange(CELLS) + 0.5) / CELLS
    offsets = np.stack(np.meshgrid(ticks, ticks), -1) - middle[..., None, None, :].numpy()
    assert aim.read == pytest.approx(((offsets**2).sum(-1) <= radius**2).mean())
    aim = aim_of(sf.TruncatedParaboloid(middle.flip(1), scale), held_out)
    assert (aim.quadrant, aim.digit) == (0, 0)
    aim = aim_of(sf.MultivariateNormal(middle, scale_tril=2 * scale), held_out)
    ends = norm.cdf(torch.stack([(x - middle) / (2 * radius) for x in Canvases.quadrants()]))
    assert aim.quadrant == pytest.approx(np.prod(ends[1] - ends[0], -1).mean(), abs=0.012)
    assert aim.digit == pytest.approx((2 * norm.cdf(0.25 / 0.49) - 1) ** 2, abs=0.012)
    assert aim.read == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_densities_have_the_moments_of_the_weights(family: str, held_out: Canvases) -> None:
    model = Continuous(FAMILIES[family])
    with torch.no_grad():
        features = model.features(held_out)
        weights, density = model.weigh(features).probs[3, 2], model.attend(features)
    cells = model.cells.double().numpy()
    weights = weights.double().numpy()
    np.testing.assert_allclose(density.mean[3, 2], weights @ cells, rtol=1e-5)
    expected = np.cov(cells.T, aweights=weights, ddof=0) + np.eye(2) / (12 * CELLS**2)
    np.testing.assert_allclose(density.covariance_matrix[3, 2], expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", READERS)
def test_reading_a_plane_gives_its_height_at_the_mean(name: str) -> None:
    model = READERS[name]()
    places = Discrete().cells
    slopes = torch.randn(2, 32)
    features = (1 + places @ slopes).expand(3, -1, -1)
    mean = torch.full((3, 4, 2), 0.5)
    if isinstance(model, Discrete):
        mean = 0.35 + 0.3 * torch.rand(3, 4, 2)
        spread = -0.5 * (places - mean.unsqueeze(-2)).square().sum(-1) / 0.07**2
        weights = sf.SparseCategorical(probs=spread.softmax(-1))
        model.weigh = lambda _: weights
        mean = weights.probs @ places
    with torch.no_grad():
        found = model.read(features)
    # the ridge regression keeps a plane only nearly
    torch.testing.assert_close(found, 1 + mean @ slopes, atol=0.02, rtol=0)


@pytest.mark.parametrize("name", READERS)
def test_examples_do_not_mix(name: str, held_out: Canvases) -> None:
    model = READERS[name]().eval()
    with torch.no_grad():
        together, alone = model(held_out), model(held_out[torch.tensor([5])])
    assert together.shape == (len(held_out), 10, 4)
    torch.testing.assert_close(together[5:6], alone, atol=1e-5, rtol=1e-4)


def test_rates_rise_and_fall(
    data: tuple[Canvases, Canvases], monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float] = []
    step = torch.optim.Adam.step

    def watched(self: torch.optim.Adam, closure: Callable[[], float] | None = None) -> float | None:
        rates.append(self.param_groups[0]["lr"])
        return step(self, closure)

    monkeypatch.setattr(torch.optim.Adam, "step", watched)
    model = READERS[MEAN]()
    train(model, data, 5, torch.Generator().manual_seed(0), lambda *_: None, 0.02)
    assert len(rates) == 10 and max(rates) == rates[2] == pytest.approx(0.02)
    assert rates[:3] == sorted(rates[:3]) and rates[2:] == sorted(rates[2:], reverse=True)
    rates.clear()
    train(model, data, 1, torch.Generator().manual_seed(0), lambda *_: None)
    assert rates == [1e-3] * 2


def test_models_are_tested_as_they_will_be_used(data: tuple[Canvases, Canvases]) -> None:
    model = READERS[MEAN]()
    run = train(model, data, 1, torch.Generator().manual_seed(0), lambda *_: None, 0.01)
    assert not model.training
    with torch.no_grad():
        answers = model(data[1]).argmax(1)
    assert run.accuracy == pytest.approx((answers == data[1].labels).float().mean().item())


@pytest.mark.parametrize("name", READERS)
def test_training_is_repeatable(name: str, data: tuple[Canvases, Canvases]) -> None:
    weights = []
    for _ in range(2):
        torch.manual_seed(1)
        model = READERS[name]()
        train(model, data, 2, torch.Generator().manual_seed(1), lambda *_: None, 0.01)
        weights.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    assert torch.equal(*weights)


def test_attention_learns_where_to_look() -> None:
    data = load_canvases(800, 0)
    torch.manual_seed(0)
    model = READERS["truncated paraboloid (α = 2)"]()
    run = train(model, data, 3, torch.Generator().manual_seed(0), lambda *_: None, 0.01)
    with torch.no_grad():
        aim = aim_of(model.attend(model.features(data[1])), data[1])
    assert run.accuracy > blind_limit(data[1].labels) + 0.1
    assert aim.quadrant > 0.6 and aim.read < 0.4


def test_blind_limit() -> None:
    rows = torch.tensor([[1, 2, 3, 4], [1, 1, 2, 3], [7, 8, 7, 8], [5, 9, 5, 5], [0, 0, 0, 0]])
    shares = [blind_limit(row.unsqueeze(0)) for row in rows]
    assert shares == [0.25, 0.5, 0.5, 0.75, 1.0]
    assert blind_limit(rows) == pytest.approx(sum(shares) / 5)
    # four digits of ten, all equally likely
    every = torch.cartesian_prod(*[torch.arange(10)] * 4)
    assert blind_limit(every) == pytest.approx(0.3835)


def test_the_verdict_on_digits_follows_the_numbers() -> None:
    labels = torch.tensor([[1, 1, 2, 3]])

    def said(mean: float, *others: float) -> str:
        accuracy = dict(zip(READERS, (mean, *others), strict=True))
        return verdict({name: [Run(x, 1.0, 10)] * 2 for name, x in accuracy.items()}, labels)

    learned = said(0.37, 0.98, 0.975, 0.97)
    assert "attention is needed" in learned and "less than two points apart" in learned
    assert "97.0\u00a0% (truncated paraboloid (α = 2)) to 98.0\u00a0% (discrete soft" in learned
    assert "right at most 50\u00a0%" in learned
    assert "best of the mechanisms in this run: Gaussian" in said(0.37, 0.9, 0.975, 0.97)
    assert "attention is needed" not in said(0.37, 0.98, 0.975, 0.38)


@pytest.mark.parametrize("narrow", [False, True])
def test_the_picture_shows_answers_digits_and_supports(narrow: bool, held_out: Canvases) -> None:
    models = {name: READERS[name]().eval() for name in ATTENTIVE}
    canvases = held_out[torch.arange(4)]
    with torch.no_grad():
        answers = {name: model(canvases).argmax(1) for name, model in models.items()}
    # the discrete mechanism is right throughout, and so are others where they agree with it
    canvases = replace(canvases, labels=answers["discrete softmax"])
    figure = draw_aims(Look(narrow=narrow), models, canvases)
    panels = np.array(figure.axes).reshape(3, -1)
    assert panels.shape[1] == (2 if narrow else 4)
    for name, row in zip(models, panels, strict=True):
        for i, ax in enumerate(row):
            assert ax.get_title(loc="left") == _title(answers[name][i], canvases.labels[i])
            frames = [p.get_xy() for p in ax.patches if type(p) is Rectangle and not p.get_fill()]
            np.testing.assert_allclose(frames, canvases.corners[i] / CANVAS, rtol=1e-6)
            ellipses = [p for p in ax.patches if p.get_gid() == "support"]
            with torch.no_grad():
                attention = models[name].attend(models[name].features(canvases[torch.tensor([i])]))
            assert len(ellipses) == (0 if name == "discrete softmax" else 4)
            for ellipse, mean in zip(ellipses, getattr(attention, "loc", [[]])[0], strict=False):
                np.testing.assert_allclose(ellipse.get_center(), mean, rtol=1e-5)
    plt.close(figure)


def _title(answers: Tensor, labels: Tensor) -> str:
    pairs = zip(answers.tolist(), labels.tolist(), strict=True)
    return "  ".join(str(a) if a == right else f"{a} ({right})" for a, right in pairs)
