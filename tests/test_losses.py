"""Fenchel-Young losses: against scipy's quadrature, entmax's losses, likelihoods and moments."""

import math

import entmax
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import beta
from torch import Tensor
from torch.distributions import Beta, Categorical, Distribution, Gamma, kl_divergence

import sparsefam as sf
from sparsefam.losses import (
    ClassificationHead,
    FenchelYoungLoss,
    RegressionHead,
    fenchel_young,
)

DOUBLE = torch.float64
ALPHAS = [1.0, 1.25, 1.5, 2.0, 3.0]
every_alpha = pytest.mark.parametrize("alpha", ALPHAS)


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=DOUBLE)


def hills(x: Tensor, y: Tensor) -> Tensor:
    return torch.exp(-(x - y.mT).square() / 0.02)


LOC, WIDTH = double(0.3, -0.5), double(0.5, 1.25)
SCORES: dict[str, sf.scores.Score] = {
    "quadratic": sf.scores.Quadratic(LOC, WIDTH),
    "absolute": sf.scores.AbsoluteDeviation(LOC, WIDTH),
    "vectors": sf.scores.MultivariateQuadratic(
        LOC, torch.tensor([[1.0, 0.0], [0.5, 0.75]], dtype=DOUBLE)
    ),
    "kernel": sf.scores.KernelExpansion(
        double(3.0, -4.0, 1.0, 5.0), torch.linspace(0, 1, 4).double(), hills
    ),
    "finite": sf.scores.Finite(torch.stack([double(0.3, 1.5, -1.0), double(0.0, 0.25, 0.5)])),
}
PAIRS = [(n, a) for n in SCORES for a in ALPHAS if n != "kernel" or a <= 2]
every_pair = pytest.mark.parametrize(("name", "alpha"), PAIRS)


@every_pair
def test_the_loss_of_the_prediction_map_is_zero(name: str, alpha: float) -> None:
    score = SCORES[name]
    found = fenchel_young(score, sf.rpm(score, alpha), alpha, reduction="none")
    torch.testing.assert_close(found, torch.zeros_like(found), rtol=0, atol=1e-13)


TARGETS: list[Distribution] = [
    sf.TruncatedParabola(double(0.25), double(0.75)),
    sf.Triangular(double(2.0), double(0.5)),
    sf.Laplace(double(0.0), double(0.5)),
    Gamma(double(2.0), double(3.0)),
]


def regularizer(density: float, alpha: float) -> float:
    """What is integrated to Omega."""
    if density == 0:
        return 0.0
    if alpha == 1:
        return float(density * np.log(density))
    return float((density**alpha - density) / (alpha * (alpha - 1)))


def by_quadrature(score: sf.scores.Score, q: Distribution, p: Distribution, alpha: float) -> float:
    """Omega*(f) + Omega(q) - E_q[f] from its definition, with Omega*(f) = E_p[f] - Omega(p)."""

    def part(law: Distribution, t: float) -> float:
        at = torch.tensor(t, dtype=DOUBLE)
        density = float(law.log_prob(at).exp())
        return regularizer(density, alpha) - density * float(score(at))

    totals = []
    for law in (q, p):
        low, high, kinks = range_of(law)
        totals.append(quad(lambda t, law=law: part(law, t), low, high, points=kinks, limit=400)[0])
    return totals[0] - totals[1]


def range_of(law: Distribution) -> tuple[float, float, list[float]]:
    if isinstance(law, Gamma):
        return 1e-300, 20.0, [0.1, 0.6, 2.0]
    center = float(law.loc)  # type: ignore[attr-defined]
    reach = 25.0
    if isinstance(law, sf.SymmetricDistribution) and not isinstance(law, sf.Laplace | sf.Normal):
        reach = float(law.scale)
    return center - reach, center + reach, [0.125 * k for k in range(-15, 20)]


@every_alpha
@pytest.mark.parametrize("kind", ["quadratic", "absolute"])
def test_densities_against_quadrature(kind: str, alpha: float) -> None:
    make = sf.scores.Quadratic if kind == "quadratic" else sf.scores.AbsoluteDeviation
    score = make(double(0.25), double(0.75))
    p = sf.rpm(score, alpha)
    for q in TARGETS:
        due = by_quadrature(score, q, p, alpha)
        assert fenchel_young(score, q, alpha).item() == pytest.approx(due, rel=1e-8, abs=1e-8)
        assert due > 0


@every_alpha
def test_the_gradient_is_a_difference_of_moments(alpha: float) -> None:
    """In f = a t + b t^2 the gradient is the mean of (t, t^2) under p less that of the samples."""
    a, b = double(0.6, -1.0).requires_grad_(), double(-2.0, -0.25).requires_grad_()
    score = sf.scores.Quadratic(-a / (2 * b), (-1 / (2 * b)).sqrt())
    t = double(-3.0, 0.1, 0.4, 5.0).unsqueeze(-1)
    found = torch.autograd.grad(fenchel_young(score, t, alpha, reduction="sum") / 4, (a, b))
    spread = variance(alpha) * score.sigma.detach() ** (4 / (alpha + 1))
    due = (score.loc - t.mean(), score.loc.square() + spread - t.square().mean())
    for slope, moment in zip(found, due, strict=True):
        torch.testing.assert_close(slope, moment.detach(), rtol=1e-9, atol=1e-10)


def variance(alpha: float) -> float:
    """Of ((alpha - 1) (R^2 - t^2)/2)^m, m = 1/(alpha - 1), with R such that the mass is 1."""
    if alpha == 1:
        return 1.0
    m = 1 / (alpha - 1)
    mass = ((alpha - 1) / 2) ** m * math.sqrt(math.pi) * math.gamma(m + 1) / math.gamma(m + 1.5)
    radius: float = mass ** (-1 / (2 * m + 1))
    return radius**2 / (2 * m + 3)


@every_alpha
@given(shift=st.floats(-3, 3), stretch=st.floats(0.1, 4))
def test_no_density_has_a_negative_loss(alpha: float, shift: float, stretch: float) -> None:
    score = sf.scores.Quadratic(double(0.25), double(0.75))
    q = sf.TruncatedParabola(double(shift), double(stretch))
    assert fenchel_young(score, q, alpha).item() >= -1e-12


@every_alpha
@given(st.lists(st.floats(-3, 3), min_size=12, max_size=12))
def test_the_loss_is_convex_in_the_score(alpha: float, numbers: list[float]) -> None:
    """Between two rows of finite scores."""
    first, second = torch.tensor(numbers, dtype=DOUBLE).reshape(2, 6)
    middle = (first + second) / 2
    y = torch.tensor(2)
    values = [fenchel_young(sf.scores.Finite(z), y, alpha) for z in (first, middle, second)]
    assert values[1] <= (values[0] + values[2]) / 2 + 1e-12


def test_at_one_it_is_likelihood() -> None:
    t = double(-1.0, 0.2, 0.9)
    for name in ("quadratic", "absolute"):
        score = SCORES[name]
        found = fenchel_young(score, t.unsqueeze(-1), 1.0, reduction="none")
        torch.testing.assert_close(found, -sf.rpm(score, 1.0).log_prob(t.unsqueeze(-1)))
    p = sf.rpm(SCORES["kernel"], 1.0)
    mixture = sf.Mixture(double(0.0), Beta(double(2.0), double(3.0)))
    found = fenchel_young(SCORES["kernel"], Beta(double(2.0).squeeze(), double(3.0).squeeze()), 1.0)
    torch.testing.assert_close(found, kl_divergence(mixture, p), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("alpha", ALPHAS[1:])
def test_categories_as_entmax_has_them(alpha: float) -> None:
    z = 3 * torch.randn(7, 5, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
    y = torch.arange(7) % 5
    mine, theirs = z.clone().requires_grad_(), z.clone().requires_grad_()
    found = fenchel_young(sf.scores.Finite(mine), y, alpha, reduction="none")
    due = entmax.entmax_bisect_loss(theirs, y, alpha)
    torch.testing.assert_close(found, due, rtol=1e-10, atol=1e-11)
    slopes = [torch.autograd.grad(x.sum(), z)[0] for x, z in ((found, mine), (due, theirs))]
    torch.testing.assert_close(*slopes, rtol=1e-9, atol=1e-10)


def test_laws_of_categories() -> None:
    z = double(0.3, -0.2, 1.0)
    probs = double(0.25, 0.0, 0.75)
    for q in (Categorical(probs), sf.SparseCategorical(probs)):
        found = fenchel_young(sf.scores.Finite(z), q, 1.0)
        due = (probs * (probs.clamp_min(1e-300).log() - z.log_softmax(-1))).sum()
        torch.testing.assert_close(found, due)
    excluded = sf.scores.Finite(double(0.3, -0.2, -torch.inf))
    assert fenchel_young(excluded, Categorical(probs), 2.0) == torch.inf


def test_mass_where_the_base_has_none_costs_infinitely_much() -> None:
    for q in (sf.Normal(double(0.5), double(0.1)), sf.TruncatedParabola(double(0.9), double(0.2))):
        assert fenchel_young(SCORES["kernel"], q, 2.0) == torch.inf


@every_alpha
def test_off_the_support_there_is_a_way_back(alpha: float) -> None:
    loc = torch.tensor(0.0, requires_grad=True)
    far = fenchel_young(sf.scores.Quadratic(loc, 0.1), torch.tensor(50.0), alpha)
    assert torch.autograd.grad(far, loc)[0].item() == pytest.approx(-50 / 0.01, rel=1e-5)


def test_densities_that_are_infinite_at_an_end() -> None:
    """Beta(0.9, 0.9) against scipy, in u with t = u^10 next to 0, where the integrand is smooth."""
    score = sf.scores.Quadratic(double(0.5).squeeze(), double(0.5).squeeze())
    q = beta(0.9, 0.9)
    p = sf.rpm(score, 1.5)
    conjugate = (p.log_normalizer - 0.5 * p.tsallis_entropy()).item()

    def cost(u: float) -> float:
        t = u**10
        density = float(q.pdf(t))
        f = -0.5 * ((t - 0.5) / 0.5) ** 2
        return 10 * u**9 * density * ((density**0.5 - 1) / 0.75 - f)

    due = conjugate + 2 * quad(cost, 0, 0.5**0.1, epsabs=1e-12)[0]
    found = fenchel_young(score, Beta(double(0.9).squeeze(), double(0.9).squeeze()), 1.5)
    assert found.item() == pytest.approx(due, abs=1e-6)


@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_small_losses_of_categories_keep_their_digits(shift: float) -> None:
    z = torch.tensor([12.0, 0.0, 1.0]) + shift
    due = torch.nn.functional.cross_entropy(z.double(), torch.tensor(0)).item()
    for kind in (torch.uint8, torch.int16, torch.int64):
        found = fenchel_young(sf.scores.Finite(z), torch.tensor(0, dtype=kind), 1.0).item()
        assert found == pytest.approx(due, rel=0.01)


def test_targets_of_a_head_do_not_broadcast() -> None:
    with pytest.raises(ValueError, match=r"target must end in the batch \(5,\)"):
        RegressionHead(3).loss(torch.zeros(5, 3), torch.zeros(5, 1))


def test_weights_and_reductions() -> None:
    score, t = SCORES["quadratic"], double(-1.0, 0.5, 2.0).unsqueeze(-1)
    losses = fenchel_young(score, t, 2.0, reduction="none")
    assert losses.shape == (3, 2)
    weight = double(0.0, 1.0, 3.0).unsqueeze(-1)
    due = (losses[1] + 3 * losses[2]).sum() / 8
    torch.testing.assert_close(fenchel_young(score, t, 2.0, weight=weight), due)
    module = FenchelYoungLoss(2.0, reduction="sum")
    torch.testing.assert_close(module(score, t), losses.sum())
    torch.testing.assert_close(module(score, t, weight), 8 * due)


@every_alpha
def test_float32_keeps_its_digits(alpha: float) -> None:
    for width in (1e-4, 1.0, 1e4):
        values = []
        for dtype in (torch.float32, DOUBLE):
            loc = torch.tensor(0.25, dtype=dtype)
            score = sf.scores.Quadratic(loc, torch.tensor(width).to(dtype))
            t = loc + torch.tensor([-2.0, 0.5, 7.0]).to(dtype) * torch.tensor(width).to(dtype)
            values.append(fenchel_young(score, t, alpha, reduction="none").double())
        rounding = 4e-7 * (values[1].abs() + 0.25 / width)
        assert ((values[0] - values[1]).abs() <= rounding).all()


def test_derivatives_twice_compiled_and_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    t = double(-0.3, 0.4, 2.0)

    def loss(loc: Tensor, sigma: Tensor) -> Tensor:
        return fenchel_young(sf.scores.Quadratic(loc, sigma), t, 2.0)

    at = (double(0.25).squeeze().requires_grad_(), double(0.75).squeeze().requires_grad_())
    assert torch.autograd.gradcheck(loss, at)
    assert torch.autograd.gradgradcheck(loss, at)
    monkeypatch.setattr(Distribution, "_validate_args", False)  # as compiling would
    whole = torch.compile(loss, fullgraph=True, backend="eager")
    torch.testing.assert_close(whole(*at), loss(*at))
    rows = torch.func.vmap(loss)(LOC, WIDTH)
    each = torch.stack([loss(a, b) for a, b in zip(LOC, WIDTH, strict=True)])
    torch.testing.assert_close(rows, each)


def test_a_head_learns_moments_and_an_interval() -> None:
    """Noise that is bounded by x: the mean, variance and support of each row are known."""
    torch.manual_seed(0)
    x = torch.rand(4000, 1) + 0.5
    noise = sf.TruncatedParabola(0.0, 1.0).sample((4000,))
    y = 2 * x.squeeze(-1) + 0.5 * noise
    head = RegressionHead(1, alpha=2.0)
    train(head, x, y)
    p = head(torch.tensor([[0.6], [1.4]]))
    # Two parameters a row from 4000 draws: a tenth of the half-width is five standard errors.
    torch.testing.assert_close(p.mean.detach(), torch.tensor([1.2, 2.8]), rtol=0, atol=0.05)
    torch.testing.assert_close(p.scale.detach(), torch.full((2,), 0.5), rtol=0, atol=0.05)
    inside = (y >= head(x).support.intervals[:, 0, 0]) & (y <= head(x).support.intervals[:, 0, 1])
    assert inside.float().mean() > 0.97


def train(head: RegressionHead | ClassificationHead, x: Tensor, y: Tensor) -> None:
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = head.loss(x, y)
        value.backward()
        return value

    optimizer.step(closure)


def test_a_head_excludes_classes() -> None:
    x = torch.tensor([[-1.0], [0.0], [1.0]]).repeat_interleave(50, 0)
    y = torch.tensor([0, 1, 2]).repeat_interleave(50)
    torch.manual_seed(0)
    head = ClassificationHead(1, 3)
    train(head, x, y)
    probs = head(torch.tensor([[-1.0], [1.0]])).probs.detach()
    assert probs[0, 2] == 0
    assert probs[1, 0] == 0
    assert (probs[0, 0], probs[1, 2]) == pytest.approx((1, 1), abs=0.02)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"score": torch.zeros(3)}, "score must be one of sparsefam.scores"),
        ({"alpha": 0.5}, "alpha must be at least 1"),
        ({"alpha": torch.inf}, "alpha must be finite"),
        ({"target": torch.zeros(3)}, "target must broadcast with batch shape"),
        ({"target": torch.tensor(torch.nan)}, "target must be finite"),
        ({"target": 1.0}, "target must be a tensor of samples or a distribution"),
        ({"target": Categorical(torch.ones(3))}, "target must be a density for Quadratic"),
        ({"target": sf.MultivariateNormal(torch.zeros(2), torch.eye(2))}, "target must have event"),
        ({"weight": torch.tensor(-1.0)}, "weight must be finite, at least 0"),
        ({"weight": torch.zeros(2)}, "weight must be positive somewhere"),
        ({"weight": torch.ones(3)}, "weight must broadcast"),
        ({"reduction": "max"}, "reduction must be"),
    ],
)
def test_bad_arguments(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"score": SCORES["quadratic"], "target": double(0.0)}
    with pytest.raises(ValueError, match=message):
        fenchel_young(**{**arguments, **change})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "target", "message"),
    [
        ("finite", torch.zeros(2), "target must be integers"),
        ("finite", torch.tensor([0, 3]), "target must be categories 0 to 2"),
        ("finite", Categorical(torch.ones(4)), "target must be a law of 3 categories"),
        ("kernel", double(0.5, 1.5), "target must be inside the support of the base"),
        ("vectors", torch.zeros(3), "target must broadcast"),
    ],
)
def test_targets_of_another_kind(name: str, target: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fenchel_young(SCORES[name], target, 2.0)
