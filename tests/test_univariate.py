"""Univariate densities: parametrizations, limits, quantiles, memory, extreme scales, arguments."""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from battery import SINGLE
from cases import DOUBLE, every_dtype
from refusals import refused
from torch import Tensor

import sparsefam as sf
from benchmarks.allocation import allocated_megabytes
from sparsefam.bases import BSpline, Fourier, GaussianRBF, Indicator, Polynomial

# Parametrizations
LOC = torch.tensor([[0.25], [-1.0]], dtype=DOUBLE)
WIDTH = torch.tensor([0.01, 0.5, 20.0], dtype=DOUBLE)


@pytest.mark.parametrize("alpha", [1.1, 1.8, 3.0])
def test_score_scales_and_moments_come_back(alpha: float) -> None:
    scales = (
        sf.BetaGaussian.from_sigma(LOC, WIDTH, alpha).sigma,
        sf.BetaLaplace.from_b(LOC, WIDTH, alpha).b,
    )
    for back in scales:
        torch.testing.assert_close(back, WIDTH.expand(2, 3), rtol=1e-12, atol=0)
    for kind, index in itertools.product((sf.BetaGaussian, sf.BetaLaplace), (alpha, math.inf)):
        p = kind.from_moments(LOC, WIDTH, index)
        torch.testing.assert_close(p.mean, LOC.expand(2, 3), rtol=0, atol=0)
        torch.testing.assert_close(p.variance, WIDTH.expand(2, 3), rtol=1e-13, atol=0)


def test_classes_of_fixed_alpha_inherit_their_parametrizations() -> None:
    p, q = sf.TruncatedParabola.from_canonical(LOC, -WIDTH), sf.Triangular.from_moments(LOC, WIDTH)
    assert torch.equal(p.scale, sf.BetaGaussian.from_canonical(LOC, -WIDTH, alpha=2.0).scale)
    assert torch.equal(q.scale, sf.BetaLaplace.from_moments(LOC, WIDTH, alpha=2.0).scale)
    torch.testing.assert_close(p.sigma, (2 * WIDTH).rsqrt().expand(2, 3), rtol=1e-12, atol=0)
    torch.testing.assert_close(p.loc, LOC / (2 * WIDTH), rtol=1e-12, atol=0)
    assert type(p.expand((4, 2, 3))) is sf.TruncatedParabola
    with pytest.raises(TypeError):
        sf.TruncatedParabola.from_sigma(0.0, 1.0, 2.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda *x: sf.BetaGaussian.from_sigma(*x).scale,
        lambda *x: sf.BetaLaplace.from_moments(*x).scale,
        lambda *x: sf.BetaGaussian(*x).sigma,
        lambda *x: sf.BetaLaplace(*x).b,
        lambda first, second, alpha: sf.BetaGaussian.from_canonical(first, -second, alpha).scale,
    ],
)
def test_gradients_of_parametrizations(make: Callable[..., Tensor]) -> None:
    leaves = [torch.tensor(v, dtype=DOUBLE, requires_grad=True) for v in (0.25, 0.5, 1.7)]
    assert torch.autograd.gradcheck(make, leaves)
    assert torch.autograd.gradgradcheck(make, leaves)


FROM_BOUNDS: dict[str, Callable[[Any, Any], sf.SparseDistribution]] = {
    "parabola": sf.TruncatedParabola.from_bounds,
    "learned": lambda low, high: sf.BetaGaussian.from_bounds(low, high, torch.tensor(1.3)),
    "uniform": lambda low, high: sf.BetaLaplace.from_bounds(low, high, alpha=math.inf),
    "triangular": sf.Triangular.from_bounds,
    "location-scale": lambda low, high: sf.LocationScale.from_bounds(low, high, torch.square),
}


@pytest.mark.parametrize("make", FROM_BOUNDS.values(), ids=FROM_BOUNDS)
def test_the_support_is_between_the_bounds(make: Callable[[Any, Any], Any]) -> None:
    low, high = LOC.clone().requires_grad_(), (LOC + WIDTH).requires_grad_()
    p = make(low, high)
    expected = torch.stack([low.expand(2, 3), high], -1).unsqueeze(-2)
    torch.testing.assert_close(p.support.intervals, expected, rtol=1e-14, atol=1e-14)
    slopes = torch.autograd.grad(
        p.support.intervals[..., 0, 1].sum() + 2 * p.mean.sum(), [low, high]
    )
    torch.testing.assert_close(slopes, (torch.full_like(low, 3.0), torch.full_like(high, 2.0)))


INDICES: list[Any] = [-1, (..., 2), (slice(1, None), ..., slice(None, None, 2)), ()]
INDICES += [(None, 0, ..., None), (slice(None), torch.tensor([[2, 0]])), ([1, 0], None, [2, 2])]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_a_batch_is_indexed_like_a_tensor(index: Any) -> None:
    p = sf.BetaGaussian(LOC, WIDTH, 1.5)
    q, vectors = p[index], sf.MultivariateNormal(torch.ones(2, 3, 4), torch.eye(4))[index]
    rows = torch.arange(6).reshape(2, 3)[index]
    assert q.batch_shape == vectors.batch_shape == rows.shape
    assert torch.equal(q.scale, WIDTH.expand(2, 3).flatten()[rows])
    assert torch.equal(q.loc, LOC.expand(2, 3).flatten()[rows])
    assert (vectors.event_shape, vectors.loc.shape) == ((4,), (*rows.shape, 4))


def test_parts_of_a_batch_map() -> None:
    def evaluate(loc: Tensor) -> Tensor:
        p = sf.TruncatedParabola.from_bounds(loc - WIDTH, loc + WIDTH, validate_args=False)
        mixed = sf.Mixture(torch.zeros(3), p, validate_args=False)
        return p[:, 1:].log_prob(LOC) + p.detach()[..., 0, None].variance + mixed[0].mean

    many = torch.stack([LOC, LOC + 1])
    torch.testing.assert_close(torch.vmap(evaluate)(many), torch.stack([evaluate(x) for x in many]))


def test_detach_reaches_the_parameters_of_g() -> None:
    class Square(torch.nn.PReLU):  # linear on the positive numbers
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).square()

    p = sf.LocationScale(LOC, WIDTH, g := Square(dtype=DOUBLE))
    # Each has a graph of its own.
    first, second = (torch.autograd.grad(p.entropy().sum(), g.weight)[0] for _ in range(2))
    assert torch.equal(first, second)
    assert p.entropy().requires_grad
    q = p.detach()
    assert torch.equal(p.entropy(), q.entropy())
    assert not q.entropy().requires_grad
    assert not q.log_prob(q.mean).requires_grad


def test_the_uniform_has_no_score_scale() -> None:
    scale = torch.tensor([0.2, 3.0])
    assert sf.BetaGaussian(0.0, scale, math.inf).sigma.tolist() == [0.0, math.inf]
    assert sf.BetaLaplace(0.0, scale, math.inf).b.tolist() == [0.0, math.inf]


# Quantiles
def test_quantiles_have_gradients_in_parameters_of_g() -> None:
    g, q = torch.tensor(1.1, dtype=DOUBLE, requires_grad=True), torch.tensor([0.13, 0.5, 0.9, 1.0])

    def quantiles(g: Tensor) -> Tensor:
        return sf.LocationScale(0.2, 1.3, lambda v: torch.cosh(g * v)).icdf(q.double())

    assert torch.autograd.gradcheck(quantiles, g)


# Memory
@pytest.mark.parametrize(
    ("make", "psi"),
    [
        (lambda loc, scale: sf.BetaLaplace(loc, scale, 1.7), GaussianRBF.grid(3, 0.2)),
        (lambda loc, scale: sf.LocationScale(loc, scale, torch.cosh), Fourier([1.0, 3.0])),
        (sf.Laplace, BSpline([0.0, 0.2, 0.5, 0.9, 1.0], 1)),
    ],
)
def test_blocks_do_not_change_expectations(
    make: Any, psi: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loc = torch.linspace(-0.5, 1.5, 6, dtype=DOUBLE).reshape(2, 3).requires_grad_()
    scale = torch.tensor([0.1, 0.5, 2.0], dtype=DOUBLE, requires_grad=True)
    psi = psi.double()

    def results() -> list[Tensor]:
        values = make(loc, scale).expect(psi)
        slopes = torch.autograd.grad(values.square().sum(), (loc, scale))
        with torch.no_grad():
            covariance = make(loc, scale).generalized_covariance(psi, psi, 1.0)
            return [values, *slopes, make(loc, scale).expect(psi), covariance]

    expected = results()
    monkeypatch.setattr("sparsefam.distributions.base._BLOCK_SIZE", 4096)
    torch.testing.assert_close(results(), expected)


def test_location_scale_works_in_inference_mode() -> None:
    with torch.inference_mode():
        p = sf.LocationScale(torch.zeros(3), 1.0, lambda x: x**3 / 6)
        found = p.log_prob(torch.tensor(0.1))
    torch.testing.assert_close(
        found, sf.TruncatedParabola.from_sigma(torch.zeros(3), 1.0).log_prob(torch.tensor(0.1))
    )


def test_memory_of_quadrature_is_bounded() -> None:
    count = 1 << 14
    loc, scale = torch.rand(count, requires_grad=True), torch.rand(count) + 0.1
    p, psi = sf.BetaLaplace(loc, scale, 1.7), GaussianRBF.grid(16, 0.1)
    # It grows with the batch unless the rule works in blocks.
    assert allocated_megabytes(lambda: p.expect(psi).sum().backward()) < 300


# Arguments
P = sf.TruncatedParabola(0.0, 1.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused_by_name(dtype: torch.dtype) -> None:
    half, vector = torch.tensor(0.5, dtype=dtype), torch.zeros(2, dtype=dtype)
    for make in (
        lambda: sf.Normal(half, 1.0),
        lambda: sf.BetaGaussian(0.0, half, 1.5),
        lambda: sf.TruncatedParabola.from_sigma(half, 1.0),
        lambda: sf.TruncatedParaboloid(vector, torch.eye(2, dtype=dtype)),
        lambda: sf.scores.Quadratic(half, 1.0),
    ):
        with pytest.raises(ValueError, match=f"loc.* must be of dtype float32 .* got {dtype}"):
            make()


test_bad_arguments_are_named = refused(
    [
        (lambda: P.generalized_covariance(torch.cos, Polynomial(1)), "phi must be a basis"),
        (lambda: sf.LocationScale(0.0, 1.0, lambda x: x.sum()), "g must be a callable on tensors"),
        (lambda: sf.scores.LocationScale(0.0, 1.0, None), "g must be a callable on tensors"),
        (lambda: sf.TruncatedParabola(10**400, 1.0), "loc must be in the range of torch.float32,"),
        (lambda: sf.BetaGaussian(0.0, 1.0, 10**400), "alpha must be in the range of torch.float32"),
        (lambda: sf.scores.Quadratic(0.0, 10**400), "sigma must be in the range of torch.float32"),
        (lambda: sf.BetaGaussian.from_sigma(0.0, 1.0, 1.0), "alpha must be greater than 1, got .*"),
        (lambda: sf.BetaGaussian.from_sigma(0.0, 0.0, 2.0), "sigma must be positive .*got .*0"),
        (lambda: sf.BetaLaplace.from_b(0.0, -1.0, 1.5), "b must be positive and finite, got .*-1"),
        (lambda: sf.BetaGaussian.from_moments(0.0, 0.0, 1.5), "variance must be positive .*got .*"),
        (lambda: sf.TruncatedParabola.from_bounds(1.0, 1.0), "low must be .*'low'.*1.*'high'.*1"),
        (lambda: sf.Triangular.from_bounds(1.0, math.inf), "low must be below high, and both fini"),
        (
            lambda: sf.LocationScale.from_bounds(torch.tensor([0.0, 2.0]), 1.0, torch.square),
            r"low must be below high.*low.*tensor\(\[0., 2.\]\)",
        ),
        (lambda: sf.Normal.from_bounds(0.0, 1.0), "from_bounds must be that of a bounded .*Normal"),
        (lambda: sf.TruncatedParabola.from_canonical(0.0, 0.0), "theta2 must be negative .*got .*"),
    ]
)


# The limit alpha -> 1
LIMITS = {
    "gaussian": (sf.BetaGaussian.from_sigma, sf.Normal),
    "laplace": (sf.BetaLaplace.from_b, sf.Laplace),
}
every_limit = pytest.mark.parametrize("name", LIMITS)
SHARES = torch.linspace(-3, 3, 41).unsqueeze(-1)


def locations(p: sf.SparseDistribution) -> Tensor:
    """Return locations within three score scales of loc, for the parameters of `difference`."""
    return p.loc + p.loc.new_tensor([0.5, 2.0]) * SHARES.to(p.loc.dtype)


QUANTITIES: dict[str, Callable[[sf.SparseDistribution], Tensor]] = {
    "log_prob": lambda p: p.log_prob(locations(p)),
    "cdf": lambda p: p.cdf(locations(p)),
    "icdf": lambda p: p.icdf(p.loc.new_tensor([[0.01], [0.4]])),
    "variance": lambda p: p.variance,
    "entropy": lambda p: p.entropy(),
    "tsallis_entropy": lambda p: p.tsallis_entropy(),
    "log_normalizer": lambda p: p.log_normalizer,
    "rbf": lambda p: p.expect(GaussianRBF(torch.linspace(-2, 2, 9, dtype=p.loc.dtype), 0.5)),
    "waves": lambda p: p.expect(Fourier(p.loc.new_tensor([0.5, 2.0]))),
}


def difference(name: str, quantity: str, alpha: Tensor | float, dtype: torch.dtype) -> float:
    """Return the largest difference to the limit, relative to the limit if that is above one."""
    family, limit = LIMITS[name]
    loc, width = torch.tensor([[0.25, -0.5], [0.5, 2.0]], dtype=dtype)
    value, goal = (
        QUANTITIES[quantity](p).double() for p in (family(loc, width, alpha), limit(loc, width))
    )
    return (value - goal).abs().max().item() / max(1, goal.abs().max().item())


@pytest.mark.parametrize("kind", ["number", "tensor"])
@pytest.mark.parametrize("quantity", QUANTITIES)
@every_limit
def test_the_distance_to_the_limit_is_linear_in_alpha(name: str, quantity: str, kind: str) -> None:
    rate = difference(name, quantity, 1 + 1e-4, DOUBLE) / 1e-4
    for dtype, noise in ((DOUBLE, 1e-9), (SINGLE, 1e-5)):
        for step in (1e-3, 1e-5, 1e-6):
            index = torch.tensor(1.0, dtype=dtype) + step
            alpha = 1 + step if kind == "number" else index
            gap = float(index.double()) - 1
            distance = difference(name, quantity, alpha, dtype)
            assert abs(distance - rate * gap) < 0.05 * rate * gap + noise


@every_dtype
@every_limit
def test_gradients_next_to_the_limit(name: str, dtype: torch.dtype) -> None:
    family, _ = LIMITS[name]
    leaves = [torch.tensor(v, dtype=dtype, requires_grad=True) for v in (0.25, 0.5, 1 + 1e-6)]
    for quantity, function in QUANTITIES.items():
        value = function(family(*leaves)).sum()
        grads = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
        assert all(g.isfinite() for g in grads), quantity
    for alpha in (1 + 1e-6, 1.01, 1.5, 7.0, 1e3):
        width = torch.tensor([1e-3, 0.5, 40.0])
        p = family(0.0, width, alpha)
        back = p.sigma if name == "gaussian" else p.b
        # The half-width is a power of it whose exponent vanishes as alpha grows.
        condition = 1 + (alpha - 1) / (2 if name == "gaussian" else 1)
        torch.testing.assert_close(back, width, rtol=2e-6 * condition, atol=0)


# Half-widths far from everything else
WIDTHS: dict[str, Callable[..., sf.SymmetricDistribution]] = {
    "parabola": sf.TruncatedParabola,
    "gaussian-1.3": partial(sf.BetaGaussian, alpha=1.3),
    "laplace-1.7": partial(sf.BetaLaplace, alpha=1.7),
    "location-scale": partial(sf.LocationScale, g=lambda x: x**4 / 4 + x**2 / 3),
    "normal": sf.Normal,
    "laplace": sf.Laplace,
}
every_width = pytest.mark.parametrize("make", WIDTHS.values(), ids=WIDTHS)


def placed(make: Callable[..., Any], loc: float, scale: float, dtype: torch.dtype) -> Any:
    """With parameters in float32, whatever the dtype."""
    return make(*torch.tensor([loc, scale]).to(dtype))


@every_dtype
@every_width
def test_covariances_of_powers_and_waves_of_narrow_densities(
    make: Callable[..., sf.SymmetricDistribution], dtype: torch.dtype
) -> None:
    for loc, scale in itertools.product((0.0, 0.1875, -100.0), (1e-9, 1e-5, 1e-2, 1.0, 1e3)):
        p, wide = placed(make, loc, scale, dtype), placed(make, loc, scale, DOUBLE)
        v, center = wide.variance, wide.loc
        fourth = wide.scale**4 * wide.generator.moment(4) - v**2
        zero = torch.zeros_like(v)
        expected = [[zero] * 3, [zero, v, 2 * center * v], [zero, 2 * center * v]]
        expected[2].append(fourth + 4 * center**2 * v)
        value = p.generalized_covariance(Polynomial(2), Polynomial(2), 1.0).double()
        for i, j in itertools.product(range(3), repeat=2):
            size = (expected[i][i] * expected[j][j]).sqrt()
            limit = 1e-12 if dtype == DOUBLE else 2e-6
            assert (value[i, j] - expected[i][j]).abs() <= limit * size
        if scale > 1e-5:
            continue
        # Up to the variance relative to 1 waves are linear.
        waves = p.generalized_covariance(Fourier(torch.tensor([2.0]).to(dtype)), Polynomial(1), 1.0)
        linear = torch.stack([-2 * (2 * center).sin() * v, 2 * (2 * center).cos() * v])
        limit = 1e-9 if dtype == DOUBLE else 2e-6
        assert (waves[:, 1].double() - linear).norm() <= limit * linear.norm()


@every_dtype
@every_width
def test_narrow_densities_see_values_and_sides_of_jumps(
    make: Callable[..., sf.SymmetricDistribution], dtype: torch.dtype
) -> None:
    edges = torch.tensor([-1.0, 0.3125, 2.0], dtype=dtype)
    knots = torch.tensor([-1, -1, -1, 0, 0.5, 2, 2, 2], dtype=dtype)
    limit = 2e-6 if dtype == SINGLE else 1e-11
    for scale in (1e-3, 1e-5, 1e-7, 1e-9, 1e-30):
        on_edge = placed(make, 0.3125, scale, dtype)
        halves = torch.full((2,), 0.5, dtype=dtype)
        torch.testing.assert_close(on_edge.expect(Indicator(edges)), halves, rtol=limit, atol=0)
        spline = BSpline(knots, 2)
        value = on_edge.expect(spline)
        assert (value.sum() - 1).abs() < limit
        # Within the variance times half of the second derivative.
        distance = (value - spline(on_edge.loc)).abs().max()
        assert distance <= 10 * on_edge.variance + limit
