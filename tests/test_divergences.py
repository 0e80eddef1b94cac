"""KL divergences of vectors: exact cases, draws, and when they are infinite."""

import math

import pytest
import torch
from scipy.integrate import quad
from scipy.special import digamma
from torch import Tensor
from torch.distributions import kl_divergence
from vectors import DOUBLE, SINGLE, centre, factor, member

from sparsefam import MultivariateBetaGaussian, MultivariateNormal, TruncatedParaboloid

DRAWS = 20_000


def inside(p: MultivariateBetaGaussian, alpha: float) -> MultivariateBetaGaussian:
    """A density of another centre and shape, whose support holds p's with little to spare."""
    dim = p.event_shape[0]
    loc, tril = p.loc + 0.1, factor(dim, seed=2.0)
    inverse = torch.linalg.inv(tril)
    size = torch.linalg.matrix_norm(inverse @ p.scale_tril, 2) + (inverse @ (p.loc - loc)).norm()
    return MultivariateBetaGaussian(loc, 1.3 * size * tril, alpha)


def by_draws(
    p: MultivariateBetaGaussian, q: torch.distributions.Distribution
) -> tuple[float, float]:
    """The mean log ratio over draws of p, and its standard error."""
    t = p.sample((DRAWS,))
    ratio = p.log_prob(t) - q.log_prob(t)
    return ratio.mean().item(), ratio.std().item() / DRAWS**0.5


@pytest.mark.parametrize("alpha", [1.05, 1.5, 2.0, math.inf])
@pytest.mark.parametrize("dim", [1, 2, 3, 8, 16])
def test_against_normals(dim: int, alpha: float) -> None:
    p = member(dim, alpha)
    q = MultivariateNormal(p.loc + 0.3, scale_tril=0.8 * factor(dim, seed=1.0))
    found = kl_divergence(p, q)
    # log q is a quadratic, whose expectation the rule integrates exactly.
    nodes, weights = p.quadrature(4)
    expected = -p.entropy() - weights @ q.log_prob(nodes)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    mean, error = by_draws(p, q)
    assert abs(found.item() - mean) < 5 * error
    torchs = torch.distributions.MultivariateNormal(q.loc, scale_tril=q.scale_tril)
    torch.testing.assert_close(kl_divergence(p, torchs), found)
    assert kl_divergence(q, p) == kl_divergence(torchs, p) == math.inf


@pytest.mark.parametrize(("one", "two"), [(2.0, 2.0), (2.0, 1.3), (1.5, 3.0), (3.0, 2.0)])
@pytest.mark.parametrize("dim", [1, 2, 3, 5, 16])
def test_on_one_support_the_whole_edge_is_resolved(dim: int, one: float, two: float) -> None:
    p, q = member(dim, one), member(dim, two)
    m, n = 1 / (one - 1), 1 / (two - 1)
    mean_log = digamma(m + 1) - digamma(m + 1 + dim / 2)
    expected = (p._log_constant() - q._log_constant()).item() + (m - n) * mean_log
    assert kl_divergence(p, q).item() == pytest.approx(expected, abs=1e-12)


def test_a_uniform_density_on_one_support() -> None:
    for dim in (1, 2, 3, 6):
        p, q = member(dim, math.inf), member(dim, 2.0)
        expected = (p._log_constant() - q._log_constant()).item()
        expected -= digamma(1) - digamma(1 + dim / 2)
        assert kl_divergence(p, q).item() == pytest.approx(expected, abs=1e-11)
        assert kl_divergence(q, p).item() == pytest.approx(
            (p.entropy() - q.entropy()).item(), abs=1e-12
        )


@pytest.mark.parametrize(
    ("one", "two"), [(2.0, 1.5), (1.05, 2.0), (math.inf, 2.0), (2.0, math.inf)]
)
@pytest.mark.parametrize("dim", [1, 2, 3, 5, 16])
def test_inside_another_support(dim: int, one: float, two: float) -> None:
    p = member(dim, one)
    q = inside(p, two)
    found = kl_divergence(p, q).item()
    mean, error = by_draws(p, q)
    assert abs(found - mean) < 5 * error + 1e-12
    if dim <= 3:  # log q is smooth on all of p's support
        nodes, weights = p.quadrature(96)
        expected = (-p.entropy() - weights @ q.log_prob(nodes)).item()
        assert found == pytest.approx(expected, abs=1e-10)


def test_on_the_line_touching_an_end() -> None:
    # p on [-1, 1], q on [-3, 1]: the logarithm of q is singular at one point of p's edge.
    p = TruncatedParaboloid(torch.zeros(1).double(), torch.eye(1).double())
    q = TruncatedParaboloid(-torch.ones(1).double(), 2 * torch.eye(1).double())

    def integrand(x: float) -> float:
        one, two = 0.75 * (1 - x * x), 0.375 * (1 - x) * (3 + x) / 4
        return one * math.log(one / two)

    expected = quad(integrand, -1, 1, epsabs=0, epsrel=1e-12)[0]
    assert kl_divergence(p, q).item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("dim", [2, 3, 6])
def test_touching_in_a_point(dim: int) -> None:
    e = torch.eye(dim, dtype=DOUBLE)
    p, q = TruncatedParaboloid(e[0], e), TruncatedParaboloid(0 * e[0], 2 * e)
    found = kl_divergence(p, q).item()
    # Integrated over the plane through the two centres' line: t = (1 + r cos, r sin).
    power = dim - 2

    def ring(r: float) -> float:
        def log_gap(a: float) -> float:
            return math.sin(a) ** power * math.log(1 - (1 + 2 * r * math.cos(a) + r * r) / 4)

        mass = quad(lambda a: math.sin(a) ** power, 0, math.pi)[0]
        return quad(log_gap, 0, math.pi, epsabs=1e-11, limit=200)[0] / mass

    top = quad(lambda r: r ** (dim - 1) * (1 - r * r) * ring(r), 0, 1, epsabs=1e-9)[0]
    mean_log = top / quad(lambda r: r ** (dim - 1) * (1 - r * r), 0, 1)[0]
    expected = (-p.entropy() - q._peak_log_prob()).item() - mean_log
    # Beyond three dimensions directions are quasi-random.
    assert found == pytest.approx(expected, abs=2e-8 if dim <= 3 else 2e-4)


@pytest.mark.parametrize("dim", [1, 2, 3, 7])
def test_infinite_as_soon_as_an_edge_is_crossed(dim: int) -> None:
    p = member(dim, 2.0)
    wide = member(dim, 1.5)
    for size, finite in ((1 + 1e-9, True), (1.0, True), (1 - 1e-9, False)):
        q = MultivariateBetaGaussian(wide.loc, size * wide.scale_tril, 1.5)
        assert kl_divergence(p, q).isfinite().item() == finite
        assert (
            kl_divergence(p, MultivariateBetaGaussian(q.loc, q.scale_tril, math.inf)).isfinite()
            == finite
        )
    half = MultivariateBetaGaussian(p.loc, 0.5 * p.scale_tril, 2.0)
    edge = p.loc + 0.5 * p.scale_tril[:, 0]
    for shift, finite in ((1 - 1e-9, True), (1 + 1e-9, False)):
        moved = MultivariateBetaGaussian(p.loc + shift * (edge - p.loc), half.scale_tril, 2.0)
        assert kl_divergence(moved, p).isfinite().item() == finite


def test_batches_broadcast_and_keep_dtype() -> None:
    loc = torch.stack([centre(2, SINGLE), centre(2, SINGLE) + 0.05])[:, None]
    p = MultivariateBetaGaussian(loc, 0.2 * factor(2, SINGLE), torch.tensor([1.5, 2.0, 3.0]))
    q = MultivariateBetaGaussian(centre(2, SINGLE), 2 * factor(2, SINGLE), 1.7)
    found = kl_divergence(p, q)
    assert (found.shape, found.dtype) == ((2, 3), SINGLE)
    for i in range(2):
        for j, alpha in enumerate((1.5, 2.0, 3.0)):
            one = MultivariateBetaGaussian(
                loc[i, 0].double(), 0.2 * factor(2, SINGLE).double(), alpha
            )
            other = MultivariateBetaGaussian(q.loc.double(), q.scale_tril.double(), 1.7)
            assert found[i, j].item() == pytest.approx(kl_divergence(one, other).item(), rel=2e-6)
    swapped = kl_divergence(q, p)
    assert swapped.shape == (2, 3)
    assert swapped.isinf().all()


def test_gradients_are_those_of_the_integral() -> None:
    def divergence(loc: Tensor, scale: Tensor, one: Tensor, two: Tensor) -> Tensor:
        p = MultivariateBetaGaussian(loc, scale.tril(), one)
        q = MultivariateBetaGaussian(0.5 * loc, 3 * scale.tril().flip(0, 1).mT.clone(), two)
        return kl_divergence(p, q)

    leaves = [
        torch.tensor([0.1, -0.2], dtype=DOUBLE, requires_grad=True),
        torch.tensor([[0.5, 0.0], [0.1, 0.6]], dtype=DOUBLE, requires_grad=True),
        torch.tensor(1.7, dtype=DOUBLE, requires_grad=True),
        torch.tensor(2.5, dtype=DOUBLE, requires_grad=True),
    ]
    assert divergence(*leaves).isfinite()
    assert torch.autograd.gradcheck(divergence, leaves)


def test_an_infinite_divergence_has_finite_gradients() -> None:
    loc = torch.zeros(2, requires_grad=True)
    p = TruncatedParaboloid(loc, torch.eye(2))
    q = TruncatedParaboloid(torch.tensor([0.5, 0.0]), torch.eye(2))
    found = kl_divergence(p, q)
    assert found == math.inf
    (slope,) = torch.autograd.grad(found, loc)
    assert not slope.any()


def test_other_event_shapes_are_refused() -> None:
    for q in (member(3), member(3, 1.0)):
        with pytest.raises(ValueError, match=r"one event shape, got \(2,\) and \(3,\)"):
            kl_divergence(member(2), q)
