"""Mechanisms of the tour on irregular series: where they start, what they read, how they learn."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import sparsefam as sf
from examples.comparison import NONE, builders, intervals_read, share_read, value_basis
from examples.mechanisms import Attention, Examples
from examples.recordings import Observations, load_recordings, observe
from examples.training import logistic_regression, train

CLASSES, HEADS = 9, 4
BASIS = value_basis()
MODELS = builders(CLASSES, HEADS)
ATTENTIVE = [name for name in MODELS if name != NONE]
DENSE = [name for name in ATTENTIVE if "discrete" not in name]
KERNELS = ["kernel softmax", "kernel sparsemax"]


@pytest.fixture(scope="module")
def observed() -> Observations:
    test = load_recordings("JapaneseVowels")[1]
    return observe(test, 0.3, torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def data() -> tuple[Examples, Examples]:
    generator = torch.Generator().manual_seed(0)
    fit, test = (
        Examples.fit(observe(part, 0.3, generator), BASIS, 100.0)
        for part in load_recordings("JapaneseVowels")
    )
    return fit, test


@pytest.fixture
def few(data: tuple[Examples, Examples]) -> Examples:
    return data[1][torch.arange(0, 370, 40)]


def _attention(name: str, examples: Examples, wider: float = 1.0) -> sf.SparseDistribution:
    model = MODELS[name]()
    assert isinstance(model, Attention)
    with torch.no_grad():
        model.query.weight *= wider
        return model.attend(examples)


@pytest.mark.parametrize("name", MODELS)
def test_padding_does_not_leak(observed: Observations, name: str) -> None:
    index = int(observed.mask.sum(-1).argmin())
    length = int(observed.mask[index].sum())
    assert length < observed.mask.shape[1]
    junk = torch.where(observed.mask, 0.0, 1e6)
    padded = replace(observed, positions=observed.positions + junk, values=observed.values - junk)
    alone = Observations(
        observed.positions[index, None, :length],
        observed.values[index, None, :length],
        observed.mask[index, None, :length],
        observed.labels[index, None],
    )
    model = MODELS[name]()
    rows = [model(Examples.fit(x, BASIS, 100.0))[i] for x, i in ((padded, index), (alone, 0))]
    torch.testing.assert_close(*rows, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "width"),
    # The same score: sigma = 0.1 is the spread of a softmax; a sparsemax over many points is
    # narrow.
    [
        ("discrete softmax", 0.1),
        ("discrete sparsemax", 0.03),
        ("Gaussian", 0.1),
        ("truncated parabola", 0.11),
    ],
)
def test_heads_start_spread_over_the_domain(few: Examples, name: str, width: float) -> None:
    attention = _attention(name, few, wider=0)
    if isinstance(attention, sf.SparseCategorical):
        t = few.positions.unsqueeze(1)
        mean = (attention.probs * t).sum(-1)
        spread = (attention.probs * (t - mean.unsqueeze(-1)).square()).sum(-1).sqrt()
    else:
        mean, spread = attention.mean, attention.stddev
    expected = torch.tensor([0.125, 0.375, 0.625, 0.875])
    tolerance = 0.06 if "discrete" in name else 1e-5
    torch.testing.assert_close(mean.mean(0), expected, atol=tolerance, rtol=0)
    assert spread.mean().item() == pytest.approx(width, rel=0.2)


def test_bumps_of_a_mixture_start_spread_in_every_head(few: Examples) -> None:
    attention = _attention("Gaussian mixture", few, wider=0)
    bumps = (torch.arange(8) + (torch.arange(4)[:, None] + 0.5) / 4) / 8
    t = torch.linspace(0, 1, 33)
    expected = torch.distributions.Normal(bumps, 0.051).log_prob(t[:, None, None]).exp().mean(-1)
    for density in attention.prob(t.reshape(-1, 1, 1)).unbind(1):
        torch.testing.assert_close(density, expected, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_start_apart_near_the_uniform_density(few: Examples, name: str) -> None:
    uniform = _attention(name, few, wider=0).prob(torch.linspace(0.01, 0.99, 50).reshape(-1, 1, 1))
    assert uniform.std(0).max() < 0.4
    started = _attention(name, few).prob(torch.linspace(0.01, 0.99, 50).reshape(-1, 1, 1))
    assert 0.25 < started.std(0).mean() < 1


@pytest.mark.parametrize("name", KERNELS)
def test_scores_of_kernels_are_sums_of_bumps(few: Examples, name: str) -> None:
    torch.manual_seed(3)
    model = MODELS[name]()
    assert isinstance(model, Attention)
    queries = torch.randn(1, HEADS, 64)
    attention = model.weigh(queries, few)
    points = torch.linspace(0, 1, 64)
    t = torch.linspace(0, 1, 41)
    kernel = (-0.5 * ((t.unsqueeze(-1) - points) / 0.03).square()).exp()
    score = kernel @ queries[0].T
    density = attention.prob(t.reshape(-1, 1, 1)).squeeze(1)
    alive = density > 0
    assert alive.all() == (name == "kernel softmax")
    normalized = density.log() if name == "kernel softmax" else density
    # what is left is the normaliser: one number for each head
    for column in range(HEADS):
        rest = (normalized - score)[alive[:, column], column]
        torch.testing.assert_close(rest, rest.mean().expand_as(rest), atol=2e-4, rtol=0)


@pytest.mark.parametrize("name", DENSE)
def test_heads_read_the_expected_value_function(few: Examples, name: str) -> None:
    model = MODELS[name]()
    assert isinstance(model, Attention)
    t = torch.linspace(-1, 2, 12001)
    with torch.no_grad():
        attention = model.attend(few)
        found = model.context(attention, few)
        value = (BASIS(t) @ few.coefficients).squeeze(-1)
        density = attention.prob(t.reshape(-1, 1, 1)).permute(1, 2, 0)
    expected = torch.trapezoid(density * value.unsqueeze(1), t)
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", ATTENTIVE)
def test_some_heads_are_a_part_of_all(few: Examples, name: str) -> None:
    model = MODELS[name]()
    assert isinstance(model, Attention)
    with torch.no_grad():
        every, some = model.attend(few), model.attend(few, [1, 3])
    assert some.batch_shape == (len(few), 2)
    if isinstance(every, sf.SparseCategorical) and isinstance(some, sf.SparseCategorical):
        torch.testing.assert_close(some.probs, every.probs[:, [1, 3]])
        return
    t = torch.linspace(0.1, 0.9, 9).reshape(-1, 1, 1)
    torch.testing.assert_close(some.prob(t), every.prob(t)[..., [1, 3]], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ATTENTIVE)
def test_share_read(few: Examples, name: str) -> None:
    attention = _attention(name, few, wider=8)
    shares = [
        _density(attention, few, row)[:, few.mask[row]].gt(0).float().mean()
        for row in range(len(few))
    ]
    found = share_read(attention, few)
    assert found == pytest.approx(float(sum(shares) / len(shares)))
    # a kernel's bumps, made high, leave gaps; a softmax over points may underflow to zero
    sparse = name in ("discrete sparsemax", "truncated parabola", "kernel sparsemax")
    assert 0.02 < found < 0.9 if sparse else found > 0.9


def _density(attention: sf.SparseDistribution, examples: Examples, row: int) -> Tensor:
    if isinstance(attention, sf.SparseCategorical):
        return attention.probs[row]
    grid = examples.positions[row].reshape(-1, 1, 1)
    return attention.prob(grid)[:, row].T


def test_intervals_read(few: Examples) -> None:
    attention = _attention("kernel sparsemax", few, wider=8)
    found = intervals_read(attention)
    assert found is not None
    alive = attention.prob(torch.linspace(0, 1, 20001).reshape(-1, 1, 1)) > 0
    starts = alive[0].int() + (alive[1:] & ~alive[:-1]).sum(0)
    assert torch.equal(found, starts)
    assert found.min() >= 1 and found.double().mean() > 3
    for name, expected in {
        "truncated parabola": 1,
        "kernel softmax": 1,
        "Gaussian mixture": 1,
    }.items():
        counts = intervals_read(_attention(name, few))
        assert counts is not None and counts.shape == (len(few), HEADS)
        assert (counts == expected).all()
    assert intervals_read(_attention("discrete sparsemax", few)) is None


@pytest.mark.parametrize(
    ("name", "drop"), [("truncated parabola", 0.01), ("kernel sparsemax", 0.05), (NONE, 0.2)]
)
def test_training_is_repeatable_and_learns(
    data: tuple[Examples, Examples], name: str, drop: float
) -> None:
    outcomes = []
    for _ in range(2):
        torch.manual_seed(1)
        losses: list[float] = []
        model = MODELS[name]()
        generator = torch.Generator().manual_seed(1)
        run = train(model, data, 4, generator, lambda _, loss, seen=losses: seen.append(loss))
        outcomes.append((run.accuracy, losses))
    assert outcomes[0] == outcomes[1]
    losses = outcomes[0][1]
    assert len(losses) == 4 and losses[-1] < losses[0] - drop


def test_the_learning_rate_is_the_one_asked_for(
    data: tuple[Examples, Examples], monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float] = []
    step = torch.optim.Adam.step

    def watched(self: torch.optim.Adam, closure: None = None) -> None:
        rates.append(self.param_groups[0]["lr"])
        step(self, closure)

    monkeypatch.setattr(torch.optim.Adam, "step", watched)
    model = MODELS[NONE]()
    train(model, data, 1, torch.Generator().manual_seed(0), lambda *_: None, rate=3e-4)
    assert rates == [3e-4] * 9


@pytest.mark.parametrize(
    ("name", "each"),
    # from 256 features and a bias: what a head is made of
    [
        ("discrete softmax", 17),
        ("truncated parabola", 2),
        ("Gaussian mixture", 24),
        ("kernel sparsemax", 64),
    ],
)
def test_parameters_are_those_that_are_trained(
    data: tuple[Examples, Examples], name: str, each: int
) -> None:
    part = data[0][torch.arange(2)]
    encoder = 6 * 4 + 248 * 256 + 256 + 257 * 256
    classifier = (HEADS + 1) * CLASSES
    run = train(MODELS[name](), (part, part), 1, torch.Generator(), lambda *_: None)
    assert run.parameters == encoder + 257 * HEADS * each + classifier
    assert logistic_regression(data).parameters == 129 * CLASSES


@pytest.mark.parametrize("name", KERNELS)
def test_the_kernel_is_not_trained(data: tuple[Examples, Examples], name: str) -> None:
    model = MODELS[name]()
    fixed = [p for p in model.parameters() if not p.requires_grad]
    before = [p.clone() for p in fixed]
    train(model, data, 1, torch.Generator().manual_seed(0), lambda *_: None)
    assert len(fixed) == 2
    assert all(torch.equal(*pair) for pair in zip(before, fixed, strict=True))


def test_logistic_regression_is_the_usual_one(data: tuple[Examples, Examples]) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    # few examples, where the strength of the penalty shows
    fit, test = data[0][torch.arange(0, 270, 10)], data[1]
    center, spread = fit.grid.mean(0), fit.grid.std(0)
    usual = linear_model.LogisticRegression(C=1.0, max_iter=2000)
    usual.fit(((fit.grid - center) / spread).numpy(), fit.labels.numpy())
    score = usual.score(((test.grid - center) / spread).numpy(), test.labels.numpy())
    # one recording of 370 may fall on the other side
    assert logistic_regression((fit, test)).accuracy == pytest.approx(score, abs=1.1 / 370)
