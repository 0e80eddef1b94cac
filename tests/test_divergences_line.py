"""KL divergences of numbers: every pair of laws against quadrature with known densities."""

import math
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import pyro
import pyro.distributions as pyro_distributions
import pytest
import torch
from cases_kernel import POINTS, kernel_density, rbf
from laws import LAWS, NARROW, divergence
from pyro.infer import TraceMeanField_ELBO
from scipy.special import digamma
from torch import Tensor
from torch import distributions as td
from torch.distributions import kl_divergence

import sparsefam as sf
from sparsefam import (
    BetaGaussian,
    BetaLaplace,
    Laplace,
    LocationScale,
    Mixture,
    Normal,
    SparseCategorical,
    Triangular,
    TruncatedParabola,
)

SINGLE, DOUBLE = torch.float32, torch.float64


# What is asked of in single precision.
FEW = ("biweight", "uniform", "normal", "kernel-1.5", "unlike", "torch-laplace", "torch-uniform")


def paired(name: str, others: Iterable[str]) -> list[str]:
    """The others that are ours, or all where the named law is."""
    return [other for other in others if LAWS[name].is_ours or LAWS[other].is_ours]


@pytest.mark.parametrize("name", LAWS)
def test_every_pair_is_the_integral(name: str) -> None:
    p = LAWS[name]
    for other in paired(name, LAWS):
        q = LAWS[other]
        found = kl_divergence(p.made(DOUBLE), q.made(DOUBLE)).item()
        assert found == pytest.approx(divergence(p, q), abs=1e-10, rel=1e-10), other


@pytest.mark.parametrize("name", FEW)
def test_every_pair_in_single_precision(name: str) -> None:
    p = LAWS[name]
    for other in paired(name, FEW):
        q = LAWS[other]
        found = kl_divergence(p.made(SINGLE), q.made(SINGLE))
        assert found.dtype == SINGLE
        assert found.item() == pytest.approx(divergence(p, q), rel=5e-7, abs=1e-9), other


def test_a_logarithm_that_bends_between_cuts() -> None:
    for name in ("normal", "uniform", "parabola", "torch-laplace"):
        p = LAWS[name]
        found = kl_divergence(p.made(DOUBLE), NARROW.made(DOUBLE)).item()
        assert found == pytest.approx(divergence(p, NARROW), rel=1e-10), name


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(
    ("one", "two"), [(2.0, 1.5), (1.5, 3.0), (math.inf, 2.0), (math.inf, 1.05), (1.1, math.inf)]
)
def test_on_one_support_it_has_a_closed_form(order: int, one: float, two: float) -> None:
    cls = BetaGaussian if order == 2 else BetaLaplace
    loc, scale = torch.tensor([[0.3, -2.0], [1.7, 0.25]], dtype=DOUBLE)
    p, q = cls(loc, scale, one), cls(loc, scale, two)
    m, n = (1 / (alpha - 1) for alpha in (one, two))
    mean_log = digamma(m + 1) - digamma(m + 1 + 1 / order)
    expected = p._log_constant() - q._log_constant() + (m - n) * mean_log
    torch.testing.assert_close(kl_divergence(p, q), expected, rtol=1e-11, atol=1e-11)


def test_batches_broadcast() -> None:
    loc = torch.tensor([[0.0], [0.5], [4.0]], dtype=DOUBLE)
    logits = torch.zeros(2, dtype=DOUBLE)
    weights = torch.tensor([[1.0, -2.0, 3.0, 0.0, 1.0], [2.0, 0.0, 0.0, 1.0, 1.0]], dtype=DOUBLE)
    points = torch.tensor(POINTS, dtype=DOUBLE)
    scale = torch.tensor([1.0, 2.0], dtype=DOUBLE)
    made: list[Callable[[Tensor, Tensor, Tensor], Any]] = [
        lambda loc, scale, w: TruncatedParabola(loc, scale),
        lambda loc, scale, w: td.Uniform(loc - scale, loc + scale),
        lambda loc, scale, w: Mixture(
            logits, Normal(loc[..., None], scale[..., None] * (1 + logits))
        ),
        lambda loc, scale, w: kernel_density(w, points, rbf, None, 2.0),
        lambda loc, scale, w: kernel_density(
            w, points, rbf, td.Laplace(loc[0, 0] if loc.dim() else 0.0, 1.0), 1.0
        ),
    ]
    for one, two in product(made[:1] + made[2:], made):
        found = kl_divergence(one(loc, scale, weights), two(0 * loc, 3 * scale, weights))
        assert found.shape[-1] == 2
        found = found.expand(3, 2)
        i, j = 1, 1
        p = one(loc[i, 0], scale[j], weights[j])
        q = two(0 * loc[i, 0], 3 * scale[j], weights[j])
        torch.testing.assert_close(found[i, j], kl_divergence(p, q), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scale", [2.0**-90, 1.0, 2.0**90])
@pytest.mark.parametrize("loc", [0.0, 2.0**26])
def test_far_away_and_of_any_size(loc: float, scale: float) -> None:
    p, q = TruncatedParabola, Triangular
    one = torch.ones((), dtype=DOUBLE)
    expected = kl_divergence(p(0 * one, one), q(0.25 * one, 2 * one))
    found = kl_divergence(
        p(loc * scale * one, scale * one), q((loc + 0.25) * scale * one, 2 * scale)
    )
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)


def test_nesting_is_decided_to_rounding_of_the_parameters() -> None:
    for dtype, small in ((SINGLE, 1e-5), (DOUBLE, 1e-13)):
        low, high = torch.tensor([-0.4, 0.6], dtype=dtype)
        q = TruncatedParabola(torch.tensor(0.1, dtype=dtype), torch.tensor(0.5, dtype=dtype))
        assert kl_divergence(td.Uniform(low, high), q).isfinite()
        assert kl_divergence(td.Uniform(low - small, high), q) == math.inf
        assert kl_divergence(td.Uniform(low, high + small), q) == math.inf
        assert kl_divergence(td.Uniform(low + small, high), q).isfinite()


def test_gaps_of_a_union_count() -> None:
    two = torch.tensor([0.0, 3.0], dtype=DOUBLE)
    q = Mixture(torch.zeros(2, dtype=DOUBLE), TruncatedParabola(two, 1.0))
    for loc, finite in ((0.0, True), (3.0, True), (1.5, False), (0.51, False)):
        assert (
            kl_divergence(Triangular(torch.tensor(loc, dtype=DOUBLE), 0.5), q).isfinite() == finite
        )
    assert kl_divergence(q, TruncatedParabola(torch.tensor(1.5, dtype=DOUBLE), 2.5)).isfinite()
    # Supports that touch are one.
    touching = Mixture(torch.zeros(2, dtype=DOUBLE), BetaGaussian(two, 1.5, math.inf))
    assert kl_divergence(Triangular(torch.tensor(1.5, dtype=DOUBLE), 0.5), touching).isfinite()


def test_infinite_where_tails_are_too_heavy() -> None:
    one = torch.ones(1, dtype=DOUBLE)
    heavy = Mixture(0 * one, [td.Cauchy(0 * one[0], one[0])])
    wide = Mixture(0 * one, [td.Cauchy(0 * one[0], 2 * one[0])])
    assert kl_divergence(heavy, Normal(0 * one, one)) == math.inf
    assert kl_divergence(heavy, Laplace(0 * one, one)) == math.inf
    # log((a + b)^2/(4 a b)) of two Cauchy laws: Chyzak and Nielsen (2019).
    assert kl_divergence(heavy, wide).item() == pytest.approx(math.log(9 / 8), abs=1e-9)


GRADIENTS: dict[str, tuple[Callable[..., Tensor], tuple[Any, ...]]] = {
    "powers": (
        lambda a, b, c, d: kl_divergence(BetaGaussian(a, b, c), BetaLaplace(0.1 * a, 3 * b, d)),
        (0.2, 1.0, 1.7, 2.5),
    ),
    "one support": (
        lambda a, b, c, d: kl_divergence(BetaGaussian(a, b, c), BetaGaussian(a, b, d)),
        (0.2, 1.0, 1.7, 2.5),
    ),
    "uniform": (
        lambda a, b, c, d: kl_divergence(td.Uniform(a, b), BetaLaplace(0.3, c, d)),
        (-0.2, 1.0, 2.0, 1.3),
    ),
    "in uniform": (
        lambda a, b, c: kl_divergence(Triangular(a, b), td.Uniform(-c, 2 * c)),
        (0.2, 1.0, 2.0),
    ),
    "laplace": (
        lambda a, b, c, d: kl_divergence(Triangular(a, b), Laplace(c, d)),
        (0.2, 1.0, 0.4, 0.75),
    ),
    "normal": (
        lambda a, b, c: kl_divergence(
            LocationScale(a, b, lambda x: x**3 / 6 + x**2 / 4), td.Normal(c, 1.0)
        ),
        (0.2, 1.0, 0.4),
    ),
    "mixtures": (
        lambda a, b, c: kl_divergence(
            Mixture(a, TruncatedParabola(b, c)), Mixture(-a, Triangular(b, 2 * c))
        ),
        ([0.1, 0.4], [0.3, 1.7], [1.0, 0.5]),
    ),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_those_of_the_integral(name: str) -> None:
    function, numbers = GRADIENTS[name]
    leaves = [torch.tensor(x, dtype=DOUBLE, requires_grad=True) for x in numbers]
    assert function(*leaves).isfinite()
    assert torch.autograd.gradcheck(function, leaves, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_gradients_in_weights_of_kernel_families(alpha: float) -> None:
    points = torch.tensor(POINTS, dtype=DOUBLE)

    def found(one: Tensor, two: Tensor) -> Tensor:
        p = kernel_density(one, points, rbf, None, alpha)
        # Its escort jumps at edges that move with the weights.
        p = p.escort() if alpha == 2 else p
        return kl_divergence(p, kernel_density(two, points, rbf, None, 1.0))

    leaves = [
        torch.tensor(x, dtype=DOUBLE, requires_grad=True)
        for x in ([-4.0, 1.5, 2.5, 1.0, -3.5], [1.0, -1.0, 2.0, 0.0, 1.0])
    ]
    assert torch.autograd.gradcheck(found, leaves, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("name", [name for name in LAWS if LAWS[name].is_ours])
def test_an_infinite_divergence_has_zero_gradients(name: str) -> None:
    p = LAWS[name].made(DOUBLE)
    loc = torch.tensor(3.0, dtype=DOUBLE, requires_grad=True)
    found = kl_divergence(p, Triangular(loc, 0.5))
    assert found == math.inf
    (slope,) = torch.autograd.grad(found, loc)
    assert slope == 0
    found = kl_divergence(Laplace(loc, 1.0), BetaGaussian(loc, 2.0, 1.5))
    (slope,) = torch.autograd.grad(found, loc)
    assert (found.item(), slope.item()) == (math.inf, 0.0)


class _Own(TruncatedParabola):
    """A user's subclass."""


def test_types_are_never_ambiguous() -> None:
    # A warning of torch's about ambiguous pairs would be an error here.
    one = torch.ones((), dtype=DOUBLE)
    dense = [Normal(0 * one, one), Laplace(0 * one, one), _Own(0 * one, one)]
    theirs = [
        *(td.Normal(0 * one, one), td.Laplace(0 * one, one), td.Uniform(-one, one)),
        *(
            pyro_distributions.Normal(0 * one, one),
            pyro_distributions.Laplace(0 * one, one),
            pyro_distributions.Uniform(-one, one),
        ),
    ]
    for p, q in [*product(dense, dense + theirs), *product(theirs, dense)]:
        assert not kl_divergence(p, q).isnan()
    for p, q in product(dense[:2] + theirs[:2] + theirs[3:5], repeat=2):
        if type(p).__name__ == type(q).__name__:
            assert kl_divergence(p, q) == 0
    # The half-normal and others keep the closed forms that torch has with a normal.
    assert kl_divergence(td.Gamma(one, one), dense[0]) == kl_divergence(
        td.Gamma(one, one), theirs[0]
    )
    point = pyro_distributions.Delta(0.25 * one)
    for q in dense:
        assert kl_divergence(point, q) == -q.log_prob(0.25 * one)


def test_independent_ones_add_up() -> None:
    loc = torch.tensor([[0.0, 0.5, 1.0], [0.25, 0.0, 0.75]], dtype=DOUBLE)
    p, q = TruncatedParabola(loc, 1.0), Normal(0 * loc, 2.0)
    for other in (q, td.Normal(0 * loc, 2.0)):
        found = kl_divergence(p.to_event(1), td.Independent(other, 1))
        torch.testing.assert_close(found, kl_divergence(p, q).sum(-1))


def test_under_transforms() -> None:
    loc = torch.tensor([-0.5, 0.0, 0.25], dtype=DOUBLE)

    def found(loc: Tensor) -> Tensor:
        p = Mixture(
            torch.zeros(2, dtype=DOUBLE), TruncatedParabola(torch.stack([loc, -loc], -1), 1.0)
        )
        value: Tensor = kl_divergence(p, Laplace(0.1, 1.0))
        return value

    leaf = loc.clone().requires_grad_()
    expected = found(leaf)
    (slopes,) = torch.autograd.grad(expected.sum(), leaf)
    torch.testing.assert_close(torch.func.vmap(found)(loc), expected.detach(), rtol=1e-10, atol=0)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(found))(loc), slopes)
    torch.testing.assert_close(torch.func.grad(found)(loc[0]), slopes[0])


@pytest.mark.slow
def test_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    # Torch cannot trace its own validation of distributions, and so switches it off itself.
    monkeypatch.setattr(td.Distribution, "_validate_args", False)

    def found(loc: Tensor, scale: Tensor) -> Tensor:
        value: Tensor = kl_divergence(TruncatedParabola(loc, scale), Laplace(0.1, 1.0))
        return value + sf.tsallis_divergence(td.Uniform(loc, loc + scale), Normal(loc, 1.0), 0.5)

    loc = torch.tensor([-0.5, 0.0, 0.25], dtype=DOUBLE)
    # Torch finds the rule for a pair of types outside of graphs only, the first time.
    expected = found(loc, loc.exp())
    compiled = torch.compile(found, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(loc, loc.exp()), expected, rtol=1e-10, atol=0)


def test_pyro_takes_it_for_the_mean_field_bound() -> None:
    loc = torch.tensor(0.3, dtype=DOUBLE)
    p, q = TruncatedParabola(loc, 0.5), Normal(0 * loc, 1.0)

    def model() -> None:
        z = pyro.sample("z", q)
        pyro.sample("x", Normal(0 * z, 1.0), obs=loc)

    def guide() -> None:
        pyro.sample("z", p)

    loss = TraceMeanField_ELBO().loss(model, guide)
    expected = kl_divergence(p, q) - Normal(0 * loc, 1.0).log_prob(loc)
    assert loss == pytest.approx(expected.item(), abs=1e-12)  # no draw is in it


def test_categories() -> None:
    p = SparseCategorical(torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]], dtype=DOUBLE))
    q = torch.tensor([0.25, 0.75, 0.0], dtype=DOUBLE)
    half = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    for other in (SparseCategorical(q), td.Categorical(probs=q)):
        found = kl_divergence(p, other)
        assert found[0].item() == pytest.approx(half, abs=1e-14)
        assert found[1] == math.inf
    assert kl_divergence(td.Categorical(probs=q), p)[0].item() == pytest.approx(
        0.25 * math.log(0.5) + 0.75 * math.log(1.5), abs=1e-14
    )
    with pytest.raises(ValueError, match="as many categories, got 3 and 2"):
        kl_divergence(p, SparseCategorical(torch.ones(2)))
    with pytest.raises(ValueError, match="q must be a categorical distribution"):
        kl_divergence(p, Normal(0.0, 1.0))
