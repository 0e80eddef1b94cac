"""Densities of numbers: parametrisations, limits, quantiles, memory, dtypes and arguments."""

import itertools
import math
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from cases import DOUBLE, every_dtype
from torch import Tensor

import sparsefam as sf
from sparsefam import (
    BetaGaussian,
    BetaLaplace,
    Laplace,
    LocationScale,
    Normal,
    SparseDistribution,
    SymmetricDistribution,
    Triangular,
    TruncatedParabola,
)
from sparsefam.bases import Basis, BSpline, Fourier, GaussianRBF, Indicator, Polynomial


@pytest.mark.parametrize("alpha", [math.inf, torch.tensor(math.inf), 1e6, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_quantiles_of_tiny_probabilities_are_numbers(alpha: Any, dtype: torch.dtype) -> None:
    q = torch.tensor([0.0, 1e-30, 1e-17, 1e-8, 1e-7, 0.5, 1.0], dtype=dtype)
    found = sf.BetaGaussian(torch.tensor(0.0, dtype=dtype), 1.0, alpha).icdf(q)
    assert bool((found.abs() <= 1).all())
    assert found[5] == 0
    torch.testing.assert_close(found[[0, 1, -1]], torch.tensor([-1.0, -1.0, 1.0], dtype=dtype))


def test_quantiles_have_gradients_in_parameters_of_g() -> None:
    g, q = torch.tensor(1.1, dtype=DOUBLE, requires_grad=True), torch.tensor([0.13, 0.5, 0.9, 1.0])

    def quantiles(g: Tensor) -> Tensor:
        return sf.LocationScale(0.2, 1.3, lambda v: torch.cosh(g * v)).icdf(q.double())

    assert torch.autograd.gradcheck(quantiles, g)


class _LogProb(torch.nn.Module):
    def forward(self, loc: Tensor, scale: Tensor) -> Tensor:
        return sf.LocationScale(loc, scale, torch.cosh, validate_args=False).log_prob(loc)


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_location_scale_family_has_numbers(strict: bool) -> None:
    inputs = torch.tensor([0.2, 0.5]), torch.tensor([0.9, 0.3])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        program = torch.export.export(_LogProb(), inputs, strict=strict).module()
    assert torch.equal(program(*inputs), _LogProb()(*inputs))


MAKERS: list[Callable[..., Any]] = [
    lambda loc, scale: sf.BetaLaplace(loc, scale, 1.7),
    lambda loc, scale: sf.LocationScale(loc, scale, torch.cosh),
    sf.Laplace,
]
BASES = [
    GaussianRBF.grid(3, 0.2),
    BSpline([0.0, 0.2, 0.5, 0.9, 1.0], 1),
    Fourier([1.0, 3.0]),
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("psi", BASES, ids=lambda psi: type(psi).__name__)
def test_blocks_do_not_change_expectations(
    make: Any, psi: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loc = torch.linspace(-0.5, 1.5, 6, dtype=DOUBLE).reshape(2, 3).requires_grad_()
    scale = torch.tensor([0.1, 0.5, 2.0], dtype=DOUBLE, requires_grad=True)
    psi = psi.double()

    def expect(loc: Tensor, scale: Tensor) -> Tensor:
        found: Tensor = make(loc, scale).expect(psi)
        return found

    expected = expect(loc, scale)
    slopes = torch.autograd.grad(expected.square().sum(), (loc, scale))
    monkeypatch.setattr("sparsefam.distributions.base._AT_ONCE", 4096)
    found = expect(loc, scale)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), (loc, scale)), slopes)
    with torch.no_grad():
        torch.testing.assert_close(expect(loc, scale), expected)
    covariance = make(loc, scale).generalized_covariance(psi, psi, 1.0)
    monkeypatch.undo()
    torch.testing.assert_close(make(loc, scale).generalized_covariance(psi, psi, 1.0), covariance)


def test_location_scale_works_in_inference_mode() -> None:
    with torch.inference_mode():
        p = sf.LocationScale(torch.zeros(3), 1.0, lambda x: x**3 / 6)
        found = p.log_prob(torch.tensor(0.1))
    torch.testing.assert_close(
        found, sf.TruncatedParabola.from_sigma(torch.zeros(3), 1.0).log_prob(torch.tensor(0.1))
    )


_MEMORY = """
import resource, torch, sparsefam as sf
psi, count = sf.bases.GaussianRBF.grid(16, 0.1), 1 << 14
loc = torch.rand(count, requires_grad=True)
p = sf.BetaLaplace(loc, torch.rand(count) + 0.1, 1.7)
sf.BetaLaplace(0.0, 1.0, 1.7).expect(psi)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
p.expect(psi).sum().backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_of_quadrature_is_bounded() -> None:
    done = subprocess.run([sys.executable, "-c", _MEMORY], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # It grows with the batch unless the rule works in blocks.
    assert int(done.stdout) < 300_000


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


P = sf.TruncatedParabola(0.0, 1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sf.Normal(True, 1.0), "loc must be a number"),
        (lambda: sf.Normal(0.0, torch.tensor(True)), "scale must be a number"),
        (lambda: P.expect(None), "psi must be a basis or a callable, got None"),
        (lambda: P.expect(3), "psi must be a basis or a callable, got 3"),
        (lambda: P.expect(lambda t: 1.0), "psi must map .* to a tensor of values, got 1.0"),
        (lambda: P.expect(lambda t: None), "psi must map .* to a tensor of values, got None"),
        (lambda: P.generalized_covariance(torch.cos, BASES[0]), "phi must be a basis"),
        (lambda: P.escort("a"), "beta must be a finite number or a tensor, got 'a'"),
        (lambda: P.escort(math.nan), "beta must be a finite number"),
        (lambda: P.escort(math.inf), "beta must be a finite number"),
        (lambda: P.escort(torch.tensor(math.nan)), "beta must be finite"),
        (lambda: sf.Normal(0.0, 1.0).escort("a"), "beta must be a finite number"),
        (lambda: sf.LocationScale(0.0, 1.0, torch.cosh).escort("a"), "beta must be a finite"),
        (lambda: P.quadrature("a"), "order must be an integer at least 1, got 'a'"),
        (lambda: P.quadrature(1.5), "order must be an integer at least 1, got 1.5"),
        (lambda: sf.LocationScale(0.0, 1.0, None), "g must be a callable on tensors"),
        (lambda: sf.LocationScale(0.0, 1.0, lambda x: 1.0), "g must be a callable on tensors"),
        (lambda: sf.LocationScale(0.0, 1.0, lambda x: x.sum()), "g must be a callable on tensors"),
        (
            lambda: sf.LocationScale(0.0, 1.0, lambda x: np.cosh(x)),
            "g must be a callable on tensors",
        ),
        (lambda: sf.scores.LocationScale(0.0, 1.0, None), "g must be a callable on tensors"),
    ],
)
def test_bad_arguments_are_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("family", [sf.BetaGaussian, sf.BetaLaplace])
def test_a_missing_alpha_is_a_fault_of_the_family_that_was_called(family: Any) -> None:
    with pytest.raises(TypeError, match=rf"{family.__name__}\..*'alpha'"):
        family(0.0, 1.0)


LOC = torch.tensor([[0.25], [-1.0]], dtype=DOUBLE)
WIDTH = torch.tensor([0.01, 0.5, 20.0], dtype=DOUBLE)
ALPHAS = [1.1, 4 / 3, 1.5, 1.8, 2.0, 3.0]


def half_width(order: int, alpha: float, width: Tensor) -> Tensor:
    """Where p = [(alpha - 1)(tau - |t|^k/(k w^k))]_+^m has mass one, from the beta function.

    The half-width s obeys (alpha - 1) tau = s^k (alpha - 1)/(k w^k), hence
    mass = (s^k (alpha - 1)/(k w^k))^m 2 s B(1/k, m + 1)/k = 1.
    """
    m = 1 / (alpha - 1)
    log_beta = math.lgamma(1 / order) + math.lgamma(m + 1) - math.lgamma(1 / order + m + 1)
    log_mass = m * math.log((alpha - 1) / order) + math.log(2 / order) + log_beta
    return torch.exp((order * m * width.log() - log_mass) / (order * m + 1))


@pytest.mark.parametrize("alpha", ALPHAS)
def test_score_scales_give_the_half_width_of_unit_mass(alpha: float) -> None:
    for p, order, back in (
        (q := BetaGaussian.from_sigma(LOC, WIDTH, alpha), 2, q.sigma),
        (r := BetaLaplace.from_b(LOC, WIDTH, alpha), 1, r.b),
    ):
        expected = half_width(order, alpha, WIDTH).expand(2, 3)
        torch.testing.assert_close(p.scale, expected, rtol=1e-12, atol=0)
        torch.testing.assert_close(p.loc, LOC.expand(2, 3), rtol=0, atol=0)
        torch.testing.assert_close(back, WIDTH.expand(2, 3), rtol=1e-12, atol=0)


@pytest.mark.parametrize("alpha", [*ALPHAS, math.inf])
def test_moments_come_back(alpha: float) -> None:
    for p in (
        BetaGaussian.from_moments(LOC, WIDTH, alpha),
        BetaLaplace.from_moments(LOC, WIDTH, alpha),
        TruncatedParabola.from_moments(LOC, WIDTH),
        Triangular.from_moments(LOC, WIDTH),
    ):
        torch.testing.assert_close(p.mean, LOC.expand(2, 3), rtol=0, atol=0)
        torch.testing.assert_close(p.variance, WIDTH.expand(2, 3), rtol=1e-13, atol=0)


@pytest.mark.parametrize(
    "make",
    [
        lambda *x: BetaGaussian.from_sigma(*x).scale,
        lambda *x: BetaLaplace.from_b(*x).scale,
        lambda *x: BetaGaussian.from_moments(*x).scale,
        lambda *x: BetaGaussian(*x).sigma,
        lambda *x: BetaLaplace(*x).b,
        lambda first, second, alpha: BetaGaussian.from_canonical(first, -second, alpha).scale,
    ],
)
def test_gradients_pass_through(make: Callable[..., Tensor]) -> None:
    leaves = [torch.tensor(v, dtype=DOUBLE, requires_grad=True) for v in (0.25, 0.5, 1.7)]
    assert torch.autograd.gradcheck(make, leaves)
    assert torch.autograd.gradgradcheck(make, leaves)


def test_the_uniform_has_no_score_scale_of_its_own() -> None:
    scale = torch.tensor([0.2, 3.0])
    for p in (BetaGaussian(0.0, scale, math.inf), BetaLaplace(0.0, scale, math.inf)):
        back = p.sigma if isinstance(p, BetaGaussian) else p.b
        assert back.tolist() == [0.0, math.inf]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BetaGaussian(0.0, 1.0, alpha=1.0), r"alpha[\s\S]*1"),
        (lambda: BetaGaussian(0.0, 1.0, alpha=math.nan), r"alpha[\s\S]*nan"),
        (lambda: BetaLaplace(0.0, 1.0, alpha=0.5), r"alpha[\s\S]*0.5"),
        (lambda: BetaGaussian.from_sigma(0.0, 1.0, 1.0), "alpha must be greater than 1, got 1.0"),
        (lambda: BetaGaussian.from_sigma(0.0, 0.0, 2.0), "sigma must be positive .*got .*0"),
        (lambda: TruncatedParabola.from_sigma(0.0, math.inf), "sigma must be .*finite, got .*inf"),
        (lambda: TruncatedParabola.from_sigma(math.nan, 1.0), r"loc[\s\S]*nan"),
        (lambda: BetaLaplace.from_b(0.0, -1.0, 1.5), "b must be positive and finite, got .*-1"),
        (lambda: Triangular.from_b(0.0, math.nan), "b must be positive and finite, got .*nan"),
        (lambda: Normal.from_sigma(0.0, -1.0), r"scale[\s\S]*-1"),
        (lambda: BetaGaussian.from_moments(0.0, 0.0, 1.5), "variance must be positive .*got .*0"),
        (lambda: BetaGaussian.from_moments(0.0, 1.0, 0.9), "alpha must be greater than 1, got 0.9"),
        (lambda: Triangular.from_moments(0.0, math.nan), "variance must be .*finite, got .*nan"),
        (
            lambda: BetaGaussian.from_moments(torch.zeros(2), torch.ones(3), 1.5),
            r"shapes must broadcast .*mean \(2,\), variance \(3,\)",
        ),
        (lambda: TruncatedParabola.from_canonical(0.0, 0.0), "theta2 must be negative .*got .*0"),
        (lambda: TruncatedParabola.from_canonical(math.inf, -1.0), r"inf"),
    ],
)
def test_bad_parametrisations_are_named(
    make: Callable[[], SparseDistribution], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make()


LIMITS = {
    "gaussian": (BetaGaussian.from_sigma, Normal),
    "laplace": (BetaLaplace.from_b, Laplace),
}
every_limit = pytest.mark.parametrize("name", LIMITS)
ALPHAS_LIMITS: dict[str, Callable[[float, torch.dtype], Tensor | float]] = {
    "number": lambda e, dtype: 1 + e,
    "tensor": lambda e, dtype: torch.tensor(1.0, dtype=dtype) + e,
}
CENTERS, SHARES = torch.linspace(-2, 2, 9), torch.linspace(-3, 3, 41).unsqueeze(-1)


def locations(p: SparseDistribution) -> Tensor:
    """Within three score scales of loc, for the parameters of `difference`."""
    return p.loc + p.loc.new_tensor([0.5, 2.0]) * SHARES.to(p.loc.dtype)


QUANTITIES: dict[str, Callable[[SparseDistribution], Tensor]] = {
    "log_prob": lambda p: p.log_prob(locations(p)),
    "cdf": lambda p: p.cdf(locations(p)),
    "icdf": lambda p: p.icdf(p.loc.new_tensor([[0.01], [0.4]])),
    "variance": lambda p: p.variance,
    "entropy": lambda p: p.entropy(),
    "tsallis_entropy": lambda p: p.tsallis_entropy(),
    "log_normalizer": lambda p: p.log_normalizer,
    "rbf": lambda p: p.expect(GaussianRBF(CENTERS.to(p.loc.dtype), 0.5)),
    "waves": lambda p: p.expect(Fourier(p.loc.new_tensor([0.5, 2.0]))),
}


def difference(name: str, quantity: str, alpha: Tensor | float, dtype: torch.dtype) -> float:
    """The largest, in units of the limit where that is above one."""
    family, limit = LIMITS[name]
    loc, width = torch.tensor([[0.25, -0.5], [0.5, 2.0]], dtype=dtype)
    found, goal = (
        QUANTITIES[quantity](p).double() for p in (family(loc, width, alpha), limit(loc, width))
    )
    return (found - goal).abs().max().item() / max(1, goal.abs().max().item())


@pytest.mark.parametrize("kind", ALPHAS_LIMITS)
@pytest.mark.parametrize("quantity", QUANTITIES)
@every_limit
def test_the_distance_to_the_limit_is_linear_in_alpha_down_to_rounding(
    name: str, quantity: str, kind: str
) -> None:
    rate = difference(name, quantity, 1 + 1e-4, DOUBLE) / 1e-4
    for dtype, noise in ((DOUBLE, 1e-9), (torch.float32, 1e-5)):
        for e in (1e-3, 1e-4, 1e-5, 1e-6):
            alpha = ALPHAS_LIMITS[kind](e, dtype)
            gap = float(torch.as_tensor(alpha, dtype=dtype).double()) - 1
            found = difference(name, quantity, alpha, dtype)
            assert abs(found - rate * gap) < 0.05 * rate * gap + noise


@every_dtype
@every_limit
def test_gradients_stay_finite_next_to_the_limit(name: str, dtype: torch.dtype) -> None:
    family, _ = LIMITS[name]
    leaves = [torch.tensor(v, dtype=dtype, requires_grad=True) for v in (0.25, 0.5, 1 + 1e-6)]
    for quantity, function in QUANTITIES.items():
        value = function(family(*leaves)).sum()
        found = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
        assert all(g.isfinite() for g in found), quantity


@every_limit
def test_the_score_scale_survives_the_round_trip(name: str) -> None:
    family, _ = LIMITS[name]
    for alpha in (1 + 1e-6, 1.01, 1.5, 2.0, 7.0, 1e3):
        width = torch.tensor([1e-3, 0.5, 40.0])
        p = family(0.0, width, alpha)
        back = p.sigma if name == "gaussian" else p.b
        # The half-width goes with a power of it that vanishes as alpha grows.
        condition = 1 + (alpha - 1) / (2 if name == "gaussian" else 1)
        torch.testing.assert_close(back, width, rtol=2e-6 * condition, atol=0)


# Half-widths far from everything else

EXTREMES = (1e-30, 1e30)
WIDTHS: dict[str, Callable[..., SymmetricDistribution]] = {
    "parabola": TruncatedParabola,
    "gaussian-1.3": partial(BetaGaussian, alpha=1.3),
    "laplace-1.7": partial(BetaLaplace, alpha=1.7),
    "location-scale": partial(LocationScale, g=lambda x: x**4 / 4 + x**2 / 3),
    "normal": Normal,
    "laplace": Laplace,
}
every_width = pytest.mark.parametrize("make", WIDTHS.values(), ids=WIDTHS)
BASES_BY_NAME: dict[str, Callable[[torch.dtype], Basis]] = {
    "rbf": lambda dtype: GaussianRBF(torch.tensor([0.0, 0.3125, 3.0], dtype=dtype), 0.25),
    "spline": lambda dtype: BSpline(torch.tensor([-1, -1, -1, 0, 0.5, 2, 2, 2], dtype=dtype), 2),
    "indicator": lambda dtype: Indicator(torch.tensor([-1.0, 0.0, 0.3125, 2.0], dtype=dtype)),
    "polynomial": lambda dtype: Polynomial(2),
}
every_basis = pytest.mark.parametrize("name", BASES_BY_NAME)


def leaves(loc: float, scale: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Numbers of float32, whatever the dtype, that require grad."""
    single = torch.tensor([loc, scale]).to(dtype)
    return single[0].clone().requires_grad_(), single[1].clone().requires_grad_()


def slopes(value: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
    weights = torch.linspace(0.5, 1.7, value.numel(), dtype=value.dtype).reshape(value.shape)
    found = torch.autograd.grad(value, inputs, weights, allow_unused=True, materialize_grads=True)
    return torch.stack(found)


@every_basis
@every_width
def test_expectations_and_gradients_at_extreme_half_widths(
    make: Callable[..., SymmetricDistribution], name: str
) -> None:
    for loc, scale in itertools.product((0.1875, -40.0), EXTREMES):
        found, expected = [], []
        for dtype, results in ((torch.float32, found), (DOUBLE, expected)):
            inputs = leaves(loc, scale, dtype)
            value = make(*inputs).expect(BASES_BY_NAME[name](dtype))
            results += [value.detach(), slopes(value, inputs)]
        assert all(x.isfinite().all() for x in expected)
        for single, double in zip(found, expected, strict=True):
            torch.testing.assert_close(single, double.float(), rtol=2e-6, atol=5e-7)


@every_dtype
@pytest.mark.parametrize("beta", [1.0, 0.5])
@every_width
def test_covariances_and_gradients_at_extreme_half_widths(
    make: Callable[..., SymmetricDistribution], beta: float, dtype: torch.dtype
) -> None:
    if isinstance(make, partial) and make.func is LocationScale and beta != 1:
        pytest.skip("has no such escort")
    pairs = [
        ("rbf", "rbf"),
        ("spline", "indicator"),
        *itertools.product(["polynomial"], BASES_BY_NAME),
    ]
    for scale in (*EXTREMES, 1e8):
        inputs = leaves(0.1875, scale, dtype)
        for phi, psi in pairs:
            value = make(*inputs).generalized_covariance(
                BASES_BY_NAME[phi](dtype), BASES_BY_NAME[psi](dtype), beta
            )
            assert not value.isnan().any()
            assert not slopes(value, inputs).isnan().any()


@every_width
def test_covariances_that_overflow_are_infinite_and_no_others(
    make: Callable[..., SymmetricDistribution],
) -> None:
    for scale, degree, name in ((1e8, 3, "rbf"), (1e30, 2, "spline"), (1e15, 3, "polynomial")):
        found, expected = (
            make(*leaves(0.1875, scale, dtype)).generalized_covariance(
                BASES_BY_NAME[name](dtype), Polynomial(degree), 1.0
            )
            for dtype in (torch.float32, DOUBLE)
        )
        expected = expected.float()
        if name == "polynomial":
            # Those of an even with an odd power, all but zero, are rounding errors of the others.
            found, expected = found[1:, 1::2], expected[1:, 1::2]
            found, expected = found[::2], expected[::2]
            assert expected.isinf().tolist() == [[False, True]]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)


@every_dtype
@every_width
def test_covariances_of_powers_keep_their_digits(
    make: Callable[..., SymmetricDistribution], dtype: torch.dtype
) -> None:
    for loc, scale in itertools.product((0.0, 0.1875, -100.0), (1e-9, 1e-5, 1e-2, 1.0, 1e3)):
        p = make(*(x.detach() for x in leaves(loc, scale, dtype)))
        wide = make(*(x.detach() for x in leaves(loc, scale, DOUBLE)))
        v, centre = wide.variance, wide.loc
        fourth = wide.scale**4 * wide._standard_moment(4) - v**2
        zero = torch.zeros_like(v)
        expected = [[zero] * 3, [zero, v, 2 * centre * v], [zero, 2 * centre * v]]
        expected[2].append(fourth + 4 * centre**2 * v)
        found = p.generalized_covariance(Polynomial(2), Polynomial(2), 1.0).double()
        for i, j in itertools.product(range(3), repeat=2):
            size = (expected[i][i] * expected[j][j]).sqrt()
            # The rule leaves out e^-18 of the mass in float32: more of Laplace's fourth moment.
            limit = 1e-12 if dtype == DOUBLE else 2e-4 if make is Laplace else 1e-5
            assert (found[i, j] - expected[i][j]).abs() <= limit * size


@every_width
def test_covariances_of_waves_keep_their_digits(make: Callable[..., SymmetricDistribution]) -> None:
    for loc, scale in itertools.product((0.0, 0.1875, 10.0), (1e-9, 1e-5, 1e-2, 1.0, 3.0)):
        found, expected = (
            make(*leaves(loc, scale, dtype)).generalized_covariance(
                Fourier(torch.tensor([0.5, 2.0], dtype=dtype)), Polynomial(1), 1.0
            )
            for dtype in (torch.float32, DOUBLE)
        )
        error = (found.double() - expected).norm() / expected.norm()
        assert error < (1e-5 if make is Laplace else 2e-6)


@every_dtype
@every_width
def test_narrow_densities_see_values_and_sides_of_jumps(
    make: Callable[..., SymmetricDistribution], dtype: torch.dtype
) -> None:
    edges = torch.tensor([-1.0, 0.3125, 2.0], dtype=dtype)
    knots = torch.tensor([-1, -1, -1, 0, 0.5, 2, 2, 2], dtype=dtype)
    limit = 2e-6 if dtype == torch.float32 else 1e-11
    for scale in (1e-3, 1e-5, 1e-7, 1e-9, 1e-30):
        on_edge = make(*leaves(0.3125, scale, dtype))
        halves = torch.full((2,), 0.5, dtype=dtype)
        torch.testing.assert_close(on_edge.expect(Indicator(edges)), halves, rtol=limit, atol=0)
        spline = BSpline(knots, 2)
        value = on_edge.expect(spline)
        assert (value.sum() - 1).abs() < limit
        # Within the variance times half of the second derivative.
        distance = (value - spline(on_edge.loc)).abs().max()
        assert distance <= 10 * on_edge.variance + limit
