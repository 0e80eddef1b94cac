"""Fenchel-Young losses: against scipy's quadrature, entmax's losses, likelihoods and moments."""

from collections.abc import Callable
from typing import Any, NamedTuple

import entmax
import pytest
import torch
from battery import DOUBLE, double, number
from cases_kernel import bell
from refusals import refused
from scipy.integrate import quad
from scipy.stats import beta
from torch import Tensor
from torch.distributions import Beta, Categorical, Distribution

import sparsefam as sf
from sparsefam.losses import ClassificationHead, RegressionHead, fenchel_young

LOC, WIDTH = double(0.3, -0.5), double(0.5, 1.25)
QUADRATIC = sf.scores.Quadratic(LOC, WIDTH)
VECTORS = sf.scores.MultivariateQuadratic(LOC, torch.eye(2, dtype=DOUBLE))
KERNEL = sf.scores.KernelExpansion(
    double(3.0, -4.0, 1.0, 5.0), torch.linspace(0, 1, 4).double(), bell(0.1)
)
CATEGORIES = sf.scores.Finite(double(0.3, 1.5, -1.0))


@pytest.mark.parametrize("alpha", [1.5, 2.0, 3.0])
def test_categories_as_entmax_has_them(alpha: float) -> None:
    z = 3 * torch.randn(7, 5, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
    y = torch.arange(7) % 5
    mine, theirs = z.clone().requires_grad_(), z.clone().requires_grad_()
    found = fenchel_young(sf.scores.Finite(mine), y, alpha, reduction="none")
    due = entmax.entmax_bisect_loss(theirs, y, alpha)
    torch.testing.assert_close(found, due, rtol=1e-10, atol=1e-11)
    slopes = [torch.autograd.grad(x.sum(), z)[0] for x, z in ((found, mine), (due, theirs))]
    torch.testing.assert_close(*slopes, rtol=1e-9, atol=1e-10)


def test_targets_that_are_distributions_of_categories() -> None:
    z = double(0.3, -0.2, 1.0)
    probs = double(0.25, 0.0, 0.75)
    for q in (Categorical(probs), sf.SparseCategorical(probs)):
        found = fenchel_young(sf.scores.Finite(z), q, 1.0)
        due = (probs * (probs.clamp_min(1e-300).log() - z.log_softmax(-1))).sum()
        torch.testing.assert_close(found, due)


@pytest.mark.parametrize(
    ("score", "target"),
    [
        (sf.scores.Finite(double(0.3, -0.2, -torch.inf)), Categorical(double(0.25, 0.0, 0.75))),
        (KERNEL, sf.Normal(number(0.5), number(0.1))),
        (KERNEL, sf.TruncatedParabola(number(0.9), number(0.2))),
    ],
)
def test_mass_where_the_score_excludes_it_costs_infinitely_much(
    score: sf.scores.Score, target: Distribution
) -> None:
    assert fenchel_young(score, target, 2.0) == torch.inf


def test_densities_that_are_infinite_at_an_end() -> None:
    """Beta(0.9, 0.9) against scipy, in u with t = u^10 next to 0, where the integrand is smooth."""
    score, q = sf.scores.Quadratic(number(0.5), number(0.5)), beta(0.9, 0.9)
    p = sf.rpm(score, 1.5)
    conjugate = (p.log_normalizer - 0.5 * p.tsallis_entropy()).item()

    def cost(u: float) -> float:
        t = u**10
        density = float(q.pdf(t))
        f = -0.5 * ((t - 0.5) / 0.5) ** 2
        return 10 * u**9 * density * ((density**0.5 - 1) / 0.75 - f)

    due = conjugate + 2 * quad(cost, 0, 0.5**0.1, epsabs=1e-12)[0]
    found = fenchel_young(score, Beta(number(0.9), number(0.9)), 1.5)
    assert found.item() == pytest.approx(due, abs=1e-6)


@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_small_losses_of_categories_keep_their_digits(shift: float) -> None:
    z = torch.tensor([12.0, 0.0, 1.0]) + shift
    due = torch.nn.functional.cross_entropy(z.double(), torch.tensor(0)).item()
    for kind in (torch.uint8, torch.int16, torch.int64):
        found = fenchel_young(sf.scores.Finite(z), torch.tensor(0, dtype=kind), 1.0).item()
        assert found == pytest.approx(due, rel=0.01)


def test_weights_and_reductions() -> None:
    score, t = QUADRATIC, double(-1.0, 0.5, 2.0).unsqueeze(-1)
    losses = fenchel_young(score, t, 2.0, reduction="none")
    assert losses.shape == (3, 2)
    weight = double(0.0, 1.0, 3.0).unsqueeze(-1)
    due = (losses[1] + 3 * losses[2]).sum() / 8
    torch.testing.assert_close(fenchel_young(score, t, 2.0, weight=weight), due)
    total = fenchel_young(score, t, 2.0, reduction="sum")
    torch.testing.assert_close(total, losses.sum())
    weighted = fenchel_young(score, t, 2.0, weight=weight, reduction="sum")
    torch.testing.assert_close(weighted, 8 * due)


def test_heads_are_linear_layers_before_a_score() -> None:
    x, y, labels = torch.randn(5, 3), torch.randn(5), torch.arange(5) % 4
    numbers, classes = RegressionHead(3, 1.5), ClassificationHead(3, 4)
    loc, width = numbers.linear(x).unbind(-1)
    score = sf.scores.Quadratic(loc, torch.nn.functional.softplus(width) + 1e-6)
    torch.testing.assert_close(numbers(x).loc, loc)
    torch.testing.assert_close(numbers(x).scale, sf.rpm(score, 1.5).scale)
    torch.testing.assert_close(numbers.loss(x, y), fenchel_young(score, y, 1.5))
    scores = classes.linear(x)
    torch.testing.assert_close(classes(x).probs, entmax.sparsemax(scores))
    due = fenchel_young(sf.scores.Finite(scores), labels, 2.0)
    torch.testing.assert_close(classes.loss(x, labels), due)


def call_with(target: object, **changes: Any) -> Callable[[], object]:
    """A call with one of its arguments changed."""
    given = {"score": QUADRATIC, "alpha": 2.0, "target": target} | changes
    return lambda: fenchel_young(**given)


test_bad_arguments_are_named = refused(
    [
        (call_with(LOC, score=torch.zeros(3)), "score must be one of sparsefam.scores"),
        (call_with(LOC, alpha=0.5), "alpha must be at least 1"),
        (call_with(torch.zeros(3)), "target must broadcast with batch shape"),
        (call_with(torch.tensor(torch.inf)), "target must be finite"),
        (call_with(1.0), "target must be a tensor of samples or a distribution"),
        (call_with(Categorical(torch.ones(3))), "target must be a density for Quadratic"),
        (call_with(sf.MultivariateNormal(torch.zeros(2), torch.eye(2))), "target must have event"),
        (call_with(LOC, weight=torch.tensor(-1.0)), "weight must be finite, at least 0"),
        (call_with(LOC, reduction="max"), "reduction must be"),
        (call_with(torch.tensor([0, 3]), score=CATEGORIES), "target must be categories 0 to 2"),
        (call_with(Categorical(torch.ones(4)), score=CATEGORIES), "must be .* of 3 categories"),
        (call_with(double(0.5, 1.5), score=KERNEL), "target must be inside the support of the bas"),
        (call_with(torch.zeros(3), score=VECTORS), "target must broadcast"),
        (lambda: RegressionHead(2, alpha=0.5), "alpha must be finite, at least 1, got 0.5"),
        (lambda: RegressionHead(0), "in_features must be at least 1, got 0"),
        (
            lambda: RegressionHead(3).loss(torch.zeros(5, 3), torch.zeros(5, 1)),
            r"target must end in the batch \(5,\)",
        ),
        (lambda: ClassificationHead(2, 0), "num_classes must be at least 1, got 0"),
    ]
)


# Every score, by sums over fine grids
def line(low: float, high: float) -> tuple[Tensor, float]:
    """Middles of many short cells, and their length."""
    cell = (high - low) / 100_000
    return low + cell * (torch.arange(100_000, dtype=DOUBLE) + 0.5), cell


def plane(reach: float) -> tuple[Tensor, float]:
    t = torch.linspace(-reach, reach, 701, dtype=DOUBLE)
    return torch.cartesian_prod(t, t), float(t[1] - t[0]) ** 2


class Case(NamedTuple):
    """A score of some parameters, where it is summed, samples with weights, and a density."""

    score: Callable[..., sf.scores.Score]
    parameters: tuple[Tensor, ...]
    grid: tuple[Tensor, float]
    samples: Tensor
    target: Distribution
    tolerance: float = 1e-6


SAMPLES = double(-3.0, 0.25, 0.5, 1.5)
INSIDE = double(0.1, 0.25, 0.5, 1.0)
NUMBERS = (SAMPLES, sf.TruncatedParabola(number(0.25), number(0.75)))
MIXED = (double(-1.0, 2.0), double(0.75, 0.5))
CASES = {
    "quadratic": Case(sf.scores.Quadratic, (number(0.3), number(0.5)), line(-4, 4), *NUMBERS),
    "absolute": Case(
        sf.scores.AbsoluteDeviation, (number(0.3), number(0.5)), line(-20, 20), *NUMBERS
    ),
    "location-scale": Case(
        lambda loc, scale: sf.scores.LocationScale(loc, scale, lambda x: x**4 / 4),
        (number(0.3), number(0.8)),
        line(-4, 4),
        *NUMBERS,
    ),
    "mixture": Case(
        lambda logits, loc: sf.scores.LogDensity(sf.Mixture(logits, sf.Normal(loc, MIXED[1]))),
        (double(0.5, 0.0), MIXED[0]),
        line(-12, 12),
        *NUMBERS,
    ),
    "kernel": Case(
        lambda w: sf.scores.KernelExpansion(w, torch.linspace(0, 1, 4).double(), bell(0.1)),
        (double(3.0, -4.0, 1.0, 5.0),),
        line(0, 1),
        INSIDE,
        sf.TruncatedParabola(number(0.5), number(0.25)),
    ),
    "vectors": Case(
        lambda loc, tril: sf.scores.MultivariateQuadratic(loc, tril.tril()),
        (double(0.3, -0.2), torch.tensor([[0.6, 0.0], [0.3, 0.5]], dtype=DOUBLE)),
        plane(6),
        torch.tensor([[0.0, 0.0], [2.0, -1.0], [0.5, 0.5], [1.0, 1.0]], dtype=DOUBLE),
        sf.TruncatedParaboloid(double(0.25, 0.0), 0.75 * torch.eye(2, dtype=DOUBLE)),
        1e-4,
    ),
}
CASE_ALPHAS = {"location-scale": [2.0], "mixture": [1.0], "kernel": [1.0, 1.5, 2.0]}
CASE_PAIRS = [(name, a) for name in CASES for a in CASE_ALPHAS.get(name, [1.0, 1.5])]


def omega(p: Tensor, alpha: float) -> Tensor:
    if alpha == 1:
        return torch.special.xlogy(p, p)
    return (p**alpha - p) / (alpha * (alpha - 1))


@pytest.mark.parametrize(("name", "alpha"), CASE_PAIRS)
def test_value_and_gradient(name: str, alpha: float) -> None:
    """Omega*(f) - mean f, or + Omega(q) - E_q[f]; and the means of f's own gradient."""
    case = CASES[name]
    parameters = [a.clone().requires_grad_() for a in case.parameters]
    score, (t, cell) = case.score(*parameters), case.grid
    weight, f = double(1.0, 2.0, 0.0, 0.5), case.score(*parameters)(t)
    p = sf.rpm(score, alpha).log_prob(t).exp().detach()
    q = case.target.log_prob(t).exp()
    conjugate = cell * (p * f - omega(p, alpha)).sum()
    at_samples = (weight * score(case.samples)).sum() / weight.sum()
    at_density = cell * (q * f - omega(q, alpha)).sum()
    for target, weights, known in (
        (case.samples, weight, at_samples),
        (case.target, None, at_density),
    ):
        found = fenchel_young(score, target, alpha, weight=weights)
        due = conjugate - known
        assert found.item() == pytest.approx(due.item(), abs=case.tolerance)
        slopes = [torch.autograd.grad(x, parameters, retain_graph=True) for x in (found, due)]
        torch.testing.assert_close(*slopes, rtol=case.tolerance, atol=case.tolerance * 10)


# Kernel mean embeddings
DENSITIES: dict[str, Any] = {
    "truncated": lambda: sf.Truncated(sf.Normal(LOC, WIDTH), -0.5, 2.0),
    "mixture": lambda: sf.Mixture(double(0.3, 0.1), sf.BetaGaussian(LOC, WIDTH, 1.5)),
    "plane": lambda: sf.TruncatedParaboloid(double(0.3, -0.5), torch.eye(2, dtype=DOUBLE)),
}


@pytest.mark.parametrize(
    ("name", "width"), [("truncated", 0.05), ("mixture", 0.4), ("plane", 0.05)]
)
def test_mmd_is_the_double_integral(name: str, width: float) -> None:
    """On grids: midpoints of a line, and twice as many as ours of the plane."""
    p = DENSITIES[name]()
    x = torch.randn(7, *p.event_shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    if p.event_shape:
        width = 4 * width
        t, mass = p.quadrature(100)
    else:
        t = torch.linspace(-9, 9, 7201, dtype=DOUBLE)  # jumps are between points
        t = ((t[1:] + t[:-1]) / 2).reshape(-1, *(1,) * len(p.batch_shape))
        mass = p.prob(t)
        t, mass = t.expand(mass.shape), mass / mass.sum(0)
    found = sf.losses.mmd(p, x, width)
    for i in range(p.batch_shape.numel()):
        at = t.reshape(len(t), -1, max(1, p.event_shape.numel()))[:, i]
        weights = torch.cat([mass.reshape(len(mass), -1)[:, i], x.new_full((7,), -1 / 7)])
        points = torch.cat([at, x.reshape(7, -1)]) / width
        gram = torch.exp(-0.5 * torch.cdist(points, points).square())
        due = weights @ gram @ weights
        assert found.reshape(-1)[i] == pytest.approx(float(due), abs=2e-6)


@pytest.mark.parametrize("name", ["truncated", "plane"])
def test_mmd_takes_samples_of_each_density(name: str) -> None:
    p = DENSITIES[name]().expand((2,))
    x = torch.randn(5, 2, *p.event_shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    due = torch.stack([sf.losses.mmd(p[i], x[:, i], 0.4) for i in range(2)])
    torch.testing.assert_close(sf.losses.mmd(p, x, 0.4), due, rtol=0, atol=1e-12)


def test_mmd_keeps_its_digits_far_from_zero() -> None:
    x = torch.tensor([0.125, 0.375, 0.75])
    near, far = (
        sf.losses.mmd(sf.TruncatedParabola(loc + 0.5, 0.5), x + loc, 0.125) for loc in (0.0, 128.0)
    )
    torch.testing.assert_close(far, near, rtol=2e-4, atol=0)


def test_mmd_has_gradients_off_the_support() -> None:
    x = double(-3.0, 0.4, 2.5)

    def loss(loc: Tensor, scale: Tensor, alpha: Tensor) -> Tensor:
        return sf.losses.mmd(sf.BetaGaussian(loc, scale, alpha), x, 0.3, order=48)

    parts = [number(v).requires_grad_() for v in (0.3, 0.8, 1.7)]
    assert torch.autograd.gradcheck(loss, parts)


test_bad_arguments_of_mmd_are_named = refused(
    [
        ((torch.distributions.Normal(0.0, 1.0), double(0.1), 0.3), "p must be a density"),
        ((sf.Normal(0.0, 1.0), torch.randn(3, 2), 0.3), r"samples must be .*\(n, \*\(\)\)"),
        ((sf.Normal(0.0, 1.0), double(0.1, torch.inf), 0.3), "samples must be finite"),
        ((sf.Normal(0.0, 1.0), double(0.1), 0.0), "width must be positive and finite, got 0"),
        ((sf.Normal(0.0, 1.0), double(0.1), 1e-4), "width must be at least 0.002 of the extent"),
    ],
    of=lambda arguments: sf.losses.mmd(*arguments),
)
