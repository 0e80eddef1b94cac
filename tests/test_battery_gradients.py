"""The battery: derivatives of two orders, edges, vmap, compilation, and what float32 keeps."""

import math
from collections.abc import Callable

import pytest
import torch
from cases import (
    DOUBLE,
    SCALARS,
    Case,
    ends,
    every_batch,
    every_case,
    every_dtype,
    every_scalar,
    interior,
)
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.distributions import Distribution

from sparsefam import SparseDistribution
from sparsefam.bases import BSpline, Fourier, GaussianRBF, Indicator, Polynomial

SINGLE = torch.float32


# Exact in both precisions, and made once: a compiled graph cannot check their arguments.
BASES = {
    dtype: {
        "GaussianRBF": GaussianRBF([-0.3, 0.2, 0.8], [0.1, 0.5, 3.0]).to(dtype),
        "Fourier": Fourier([0.5, 4.0]).to(dtype),
        "Polynomial": Polynomial(3),
        "BSpline": BSpline([-0.4, -0.1, 0.1, 0.6, 0.9], 2).to(dtype),
        "Indicator": Indicator([-0.3, 0.1, 0.9]).to(dtype),
    }
    for dtype in (SINGLE, DOUBLE)
}


# What a density computes from its parameters and x: locations, or for icdf probabilities.
FUNCTIONS: dict[str, Callable[[SparseDistribution, Tensor], Tensor]] = {
    "log_prob": lambda p, x: p.log_prob(x),
    "prob": lambda p, x: p.prob(x),
    "cdf": lambda p, x: p.cdf(x),
    "icdf": lambda p, x: p.icdf(x),
    "mean": lambda p, x: p.mean,
    "variance": lambda p, x: p.variance,
    "entropy": lambda p, x: p.entropy(),
    "tsallis_entropy": lambda p, x: p.tsallis_entropy(),
    "log_normalizer": lambda p, x: p.log_normalizer,
    "escort": lambda p, x: p.escort(1.0).log_prob(x),
    "covariance": lambda p, x: p.generalized_covariance(
        Polynomial(1), BASES[x.dtype]["GaussianRBF"], beta=1.0
    ),
    "expect-callable": lambda p, x: p.expect(torch.cos, 128),
    **{
        f"expect-{name}": lambda p, x, name=name: p.expect(BASES[x.dtype][name])
        for name in BASES[DOUBLE]
    },
}
every_function = pytest.mark.parametrize("name", FUNCTIONS)
# The roots behind icdf, of every evaluation, make its second derivatives the slow ones.
every_second_order = pytest.mark.parametrize(
    "name", [pytest.param(k, marks=pytest.mark.slow) if k == "icdf" else k for k in FUNCTIONS]
)


def arguments(case: Case, name: str, dtype: torch.dtype = DOUBLE) -> tuple[Tensor, ...]:
    """The parameters and x, all requiring grad."""
    p = case(SINGLE)
    x = interior(p, 3)[:2]
    if name == "icdf":
        x = torch.tensor([0.01, 0.8]).reshape(2, *(1,) * len(p.batch_shape)).expand(x.shape)
    leaves = (v.detach().to(dtype).requires_grad_() for v in case.leaves(SINGLE).values())
    return (*leaves, x.to(dtype, copy=True).requires_grad_())


def function(case: Case, name: str) -> Callable[..., Tensor]:
    def evaluate(*leaves: Tensor) -> Tensor:
        p = case.family.make(**dict(zip(case.parameters, leaves, strict=False)))
        return FUNCTIONS[name](p, leaves[-1])

    return evaluate


def gradients(value: Tensor, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Gradients of a weighted sum, of which no part cancels another; infinite terms give none."""
    weights = torch.linspace(0.5, 1.7, value.numel(), dtype=value.dtype).reshape(value.shape)
    found = torch.autograd.grad(value, inputs, weights, allow_unused=True, materialize_grads=True)
    return list(found)


# Derivatives


@every_function
@every_scalar
def test_first_derivatives(case: Case, name: str) -> None:
    assert gradcheck(function(case, name), arguments(case, name), fast_mode=True)


@every_second_order
@every_scalar
def test_second_derivatives(case: Case, name: str) -> None:
    assert gradgradcheck(function(case, name), arguments(case, name), fast_mode=True)


@every_dtype
@every_case
def test_densities_have_finite_derivatives_on_and_around_their_edges(
    case: Case, dtype: torch.dtype
) -> None:
    lower, upper = ends(case(dtype))
    mean, far = case(dtype).mean, 1e3 * case(dtype).stddev
    t = torch.stack(
        [
            *(lower, lower.nextafter(mean), lower.nextafter(mean - far)),
            *(upper, upper.nextafter(mean), upper.nextafter(mean + far)),
            *(mean - far, mean, mean + far),
        ]
    )
    t = torch.where((t - mean).abs() > far, mean, t).requires_grad_()
    leaves = tuple(case.leaves(dtype).values())
    p = case.family.make(**dict(zip(case.parameters, leaves, strict=True)))
    for value in (p.log_prob(t), p.prob(t), p.cdf(t)):
        assert not value.isnan().any()
        assert all(g.isfinite().all() for g in gradients(value, (*leaves, t)))


@every_dtype
@every_case
def test_off_the_support_all_is_zero(case: Case, dtype: torch.dtype) -> None:
    lower, upper = ends(case(dtype))
    width = upper - lower
    far = torch.full_like(width, math.inf)
    t = torch.stack([lower - 1e-4 * width, upper + 1e-4 * width, upper + 1e6 * width, -far, far])
    t.requires_grad_()
    leaves = case.leaves(dtype)
    p = case.family.make(**leaves)
    assert (p.log_prob(t) == -math.inf).all()
    assert (p.prob(t) == 0).all()
    for value in (p.log_prob(t), p.prob(t), p.cdf(t)):
        assert not any(g.any() for g in gradients(value, (*leaves.values(), t)))


# Functional transforms


@every_function
@every_batch
def test_vmap_over_parameters_is_one_by_one(case: Case, name: str) -> None:
    *leaves, x = (v.detach() for v in arguments(case, name))
    columns = [v.expand(x.shape[1:]).reshape(-1)[[1, 5]] for v in leaves]
    columns.append(x.reshape(len(x), -1).mT[[1, 5]])
    evaluate = function(case, name)
    found = torch.vmap(evaluate)(*columns)
    rows = [[v.clone().requires_grad_() for v in row] for row in zip(*columns, strict=True)]
    expected = torch.stack([evaluate(*row) for row in rows])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)

    def total(*inputs: Tensor) -> Tensor:
        value = evaluate(*inputs)
        return torch.where(value.isfinite(), value, 0.0).sum()

    which = tuple(range(len(columns)))
    slopes = torch.vmap(torch.func.grad(total, which))(*columns)
    for i, row in enumerate(rows):
        exact = torch.autograd.grad(total(*row), row, allow_unused=True, materialize_grads=True)
        for slope, a in zip(slopes, exact, strict=True):
            torch.testing.assert_close(slope[i], a, rtol=1e-11, atol=1e-11)


COMPILED = [
    ("TruncatedParabola", "log_prob"),
    ("TruncatedParabola", "expect-GaussianRBF"),
    pytest.param("BetaGaussian-learned", "expect-GaussianRBF", marks=pytest.mark.slow),
    pytest.param("BetaGaussian-1.5", "expect-GaussianRBF", marks=pytest.mark.slow),
    ("Triangular", "icdf"),
    ("BetaLaplace-learned", "expect-BSpline"),
    ("Normal", "entropy"),
]


@pytest.mark.parametrize(("family", "name"), COMPILED)
def test_compiles_in_one_graph(family: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # torch's own validation does not trace; its first compilation switches it off.
    monkeypatch.setattr(Distribution, "_validate_args", False)
    (case,) = (case for case in SCALARS if case.name == family)
    inputs, evaluate = arguments(case, name), function(case, name)
    expected = evaluate(*inputs)
    slopes = gradients(expected, inputs)
    torch._dynamo.reset()
    found = torch.compile(evaluate, fullgraph=True, backend="aot_eager")(*inputs)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    for a, b in zip(gradients(found, inputs), slopes, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-13)


# Precision


# What is a logarithm has the absolute accuracy of one: it may cross zero.
LOGARITHMS = {"log_prob", "escort", "entropy", "tsallis_entropy", "log_normalizer"}


def error(found: Tensor, expected: Tensor, floor: float = 1e-20) -> float:
    return ((found.double() - expected).norm() / expected.norm().clamp_min(floor)).item()


@every_function
@every_case
def test_float32_keeps_its_digits(case: Case, name: str) -> None:
    inputs, exact_inputs = arguments(case, name, SINGLE), arguments(case, name)
    found, expected = (function(case, name)(*x) for x in (inputs, exact_inputs))
    assert found.dtype == SINGLE
    finite = expected.isfinite()
    assert torch.equal(found[~finite].double(), expected[~finite])
    assert error(found[finite], expected[finite], float(name in LOGARITHMS) or 1e-20) < 2e-6
    slopes, exact = gradients(found, inputs), gradients(expected, exact_inputs)
    total = torch.cat([g.flatten() for g in exact])
    assert error(torch.cat([g.flatten() for g in slopes]), total) < 2e-5


@every_dtype
@every_function
@every_scalar
def test_extreme_scales_give_numbers_or_a_clear_error(
    case: Case, name: str, dtype: torch.dtype
) -> None:
    for scale in (1e-30, 1e30):
        *leaves, x = arguments(case, name, dtype)
        named = dict(zip(case.parameters, leaves, strict=True))
        named["scale"] = torch.tensor(scale, dtype=dtype, requires_grad=True)
        p = case.family.make(**named)
        if name != "icdf":
            x = p.loc + p.scale * torch.tensor([-0.5, 0.0, 0.3], dtype=dtype)
        try:
            value = FUNCTIONS[name](p, x)
        except ValueError as error:
            assert "frequencies must be below" in str(error)
        else:
            assert not value.isnan().any()
            # float32 has no square of these scales.
            if dtype == DOUBLE:
                slopes = gradients(value, tuple(named.values()))
                assert not any(g.isnan().any() for g in slopes)
