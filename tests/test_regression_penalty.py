"""The penalty of generalised cross-validation: its definition, and leaving out one by one."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from torch import Tensor, nn
from torch.autograd import gradcheck

from sparsefam.attention import RidgeRegression
from sparsefam.bases import Fourier, GaussianRBF

DOUBLE = torch.float64
Array = NDArray[np.float64]


def data(length: int, noise: float, batch: int = 2) -> tuple[Tensor, Tensor]:
    """Positions and two channels of a wave with noise."""
    t = torch.rand(batch, length, dtype=DOUBLE)
    signal = torch.stack([torch.sin(9 * t), 0.5 * torch.cos(5 * t)], -1)
    return t, signal + noise * torch.randn(batch, length, 2, dtype=DOUBLE)


def rbf(n: int = 12) -> GaussianRBF:
    return GaussianRBF(torch.linspace(0, 1, n, dtype=DOUBLE), 1.2 / n)


def gcv(design: Array, values: Array, penalty: float) -> float:
    """By the matrix that takes observations to fitted values."""
    left, singular, _ = np.linalg.svd(design, full_matrices=False)
    hat = left * (singular**2 / (singular**2 + penalty)) @ left.T
    n = len(design)
    return float(n * ((values - hat @ values) ** 2).sum() / (n - np.trace(hat)) ** 2)


def left_out(design: Array, values: Array, penalty: float) -> float:
    """The mean square error at each observation, of a fit to all others."""
    total, size = 0.0, design.shape[1]
    for i in range(len(design)):
        others = np.arange(len(design)) != i
        rows = np.concatenate([design[others], math.sqrt(penalty) * np.eye(size)])
        right = np.concatenate([values[others], np.zeros((size, values.shape[1]))])
        fitted = np.linalg.lstsq(rows, right, rcond=None)[0]
        total += ((values[i] - design[i] @ fitted) ** 2).sum()
    return total / len(design)


def best(criterion: object, design: Array, values: Array, low: float, high: float) -> float:
    """The penalty with the lowest criterion, of a grid and then between its neighbours."""
    places = np.linspace(math.log(low), math.log(high), 60)
    heights = [criterion(design, values, math.exp(x)) for x in places]
    i = int(np.argmin(heights))
    found = minimize_scalar(
        lambda x: criterion(design, values, math.exp(x)),
        bounds=(places[max(i - 1, 0)], places[min(i + 1, 59)]),
        method="bounded",
        options={"xatol": 1e-9},
    )
    return math.exp(found.x)


@pytest.mark.parametrize("noise", [0.3, 1e-3])
@pytest.mark.parametrize("length", [40, 9], ids=["long", "short"])
def test_penalty_minimises_gcv(length: int, noise: float) -> None:
    t, values = data(length, noise)
    function = RidgeRegression(rbf(), "gcv").fit(t, values)
    for b in range(2):
        design, right = rbf()(t[b]).numpy(), values[b].numpy()
        trace = (design**2).sum()
        exact = best(gcv, design, right, 1e-10 * trace, 1e2 * trace)
        found = function.penalty[b].item()
        assert gcv(design, right, found) <= gcv(design, right, exact) * (1 + 1e-8)
        assert found == pytest.approx(exact, rel=1e-4)


def test_gcv_leaves_out_one_by_one_where_all_count_alike() -> None:
    """Waves at even distances: there is no observation that weighs more than another."""
    t = (torch.arange(15, dtype=DOUBLE) / 15).unsqueeze(0)
    values = torch.sin(9 * t).unsqueeze(-1) + 0.5 * torch.randn(1, 15, 2, dtype=DOUBLE)
    basis = Fourier([2 * math.pi * k for k in range(1, 5)]).double()
    function = RidgeRegression(basis, "gcv").fit(t, values)
    exact = best(left_out, basis(t[0]).numpy(), values[0].numpy(), 1e-3, 1e4)
    assert function.penalty.item() == pytest.approx(exact, rel=1e-4)


def test_coefficients_are_those_of_the_penalty() -> None:
    t, values = data(40, 0.3)
    function = RidgeRegression(rbf(), "gcv").fit(t, values)
    assert function.penalty[0] != function.penalty[1]
    for b, penalty in enumerate(function.penalty.tolist()):
        alone = RidgeRegression(rbf(), penalty).fit(t[b], values[b : b + 1])
        assert torch.allclose(function.coefficients[b], alone.coefficients[0], rtol=1e-9)


def test_examples_on_one_grid_have_penalties_of_their_own() -> None:
    t, values = data(40, 0.3)
    shared = RidgeRegression(rbf(), "gcv").fit(t[0], values)
    each = RidgeRegression(rbf(), "gcv").fit(t[:1].expand(2, -1), values)
    assert torch.allclose(shared.penalty, each.penalty, rtol=1e-8)
    assert shared.penalty[0] != shared.penalty[1]
    assert torch.allclose(shared.coefficients, each.coefficients, rtol=1e-8)


def test_padding_does_not_count() -> None:
    t, values = data(40, 0.3)
    mask = torch.arange(40) < torch.tensor([[25], [40]])
    padded = RidgeRegression(rbf(), "gcv").fit(t, values, mask).penalty
    short = RidgeRegression(rbf(), "gcv").fit(t[:1, :25], values[:1, :25]).penalty
    assert padded[0].item() == pytest.approx(short.item(), rel=1e-9)


@pytest.mark.parametrize("shared", [False, True], ids=["each", "shared"])
def test_penalty_is_differentiable(shared: bool) -> None:
    t, values = data(9, 0.5)
    t = (t[0] if shared else t).requires_grad_()
    centers = nn.Parameter(torch.linspace(0, 1, 4, dtype=DOUBLE))
    basis = GaussianRBF(centers, 0.3)

    def fit(t: Tensor, values: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        function = RidgeRegression(basis, "gcv").fit(t, values)
        return function.coefficients, function.penalty.log()

    assert gradcheck(fit, (t, values.requires_grad_(), centers))


def test_second_derivatives_are_refused() -> None:
    t, values = data(9, 0.5)
    t.requires_grad_()
    coefficients = RidgeRegression(rbf(4), "gcv").fit(t, values).coefficients
    (grad,) = torch.autograd.grad(coefficients.square().sum(), t, create_graph=True)
    with pytest.raises(RuntimeError, match="cross-validated penalties"):
        torch.autograd.grad(grad.sum(), t)


def test_gradients_under_transforms() -> None:
    t, values = data(9, 0.5)
    values.requires_grad_()

    def loss(values: Tensor) -> Tensor:
        return RidgeRegression(rbf(4), "gcv").fit(t, values).coefficients.square().sum()

    (exact,) = torch.autograd.grad(loss(values), values)
    found = torch.func.vmap(torch.func.grad(loss))(torch.stack([values, 1 - values]))[0]
    assert torch.allclose(found, exact, rtol=1e-9)


# Where there is no minimum inside


def test_noise_alone_is_smoothed_away() -> None:
    t, _ = data(30, 0.0)
    # Of a sign that alternates along t: no smooth function is of use.
    order = t.argsort(-1).argsort(-1)
    values = (1 - 2 * (order % 2)).double().unsqueeze(-1).requires_grad_()
    t.requires_grad_()

    def fit(t: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        function = RidgeRegression(rbf(4), "gcv").fit(t, values)
        return function.coefficients, function.penalty.log()

    coefficients, log_penalty = fit(t, values)
    trace = rbf(4)(t).square().sum((-2, -1))
    assert torch.allclose(log_penalty.exp(), 1e3 * trace)
    assert coefficients.abs().max() < 1e-2
    assert gradcheck(fit, (t[:, :6].detach().requires_grad_(), values[:, :6].detach()))


def test_exact_observations_are_kept() -> None:
    t, _ = data(60, 0.0)
    values = rbf(24)(t) @ torch.randn(2, 24, 2, dtype=DOUBLE)
    function = RidgeRegression(rbf(24), "gcv").fit(t, values)
    assert (function(t) - values).norm() < 1e-5 * values.norm()


def test_zeros_stay_zeros() -> None:
    t, values = data(30, 0.0)
    values = (0 * values).requires_grad_()
    function = RidgeRegression(rbf(), "gcv").fit(t, values)
    assert not function.coefficients.any()
    assert function.penalty.isfinite().all()
    (slope,) = torch.autograd.grad(function.coefficients.sum() + function.penalty.sum(), values)
    assert slope.isfinite().all()


def test_maps() -> None:
    t, values = data(20, 0.3)
    regression = RidgeRegression(rbf(), "gcv")

    def fit(values: Tensor) -> Tensor:
        return regression.fit(t, values).coefficients

    mapped = torch.func.vmap(fit)(torch.stack([values, 1 - values]))
    assert torch.allclose(mapped[1], fit(1 - values), rtol=1e-9)


@pytest.mark.slow
def test_compiles_with_gradients() -> None:
    t, values = data(20, 0.3)

    def run(regression: RidgeRegression, compiler: str | None) -> list[Tensor]:
        def fit(values: Tensor) -> Tensor:
            return regression.fit(t, values).coefficients

        leaf = values.clone().requires_grad_()
        call = torch.compile(fit, fullgraph=True, backend=compiler) if compiler else fit
        found = call(leaf)
        return [found, *torch.autograd.grad(found.square().sum(), leaf)]

    torch._dynamo.reset()
    for size in (None, 12):
        regression = RidgeRegression(rbf(), "gcv", chunk_size=size)
        for found, exact in zip(run(regression, "aot_eager"), run(regression, None), strict=True):
            assert torch.allclose(found, exact, rtol=1e-8)


def test_other_words_are_refused() -> None:
    with pytest.raises(ValueError, match="penalty must be 'gcv', or finite.*got 'aic'"):
        RidgeRegression(rbf(), "aic")


@pytest.mark.parametrize("count", [1, 3])
def test_of_fewer_observations_than_functions_rounding_decides_nothing(count: int) -> None:
    psi = GaussianRBF(torch.linspace(0, 1, 6, dtype=torch.float64), 0.3)
    at = torch.linspace(0, 1, 5, dtype=torch.float64)[None]
    draw = torch.Generator().manual_seed(0)
    for _ in range(50):
        t, h = (torch.rand(1, count, generator=draw, dtype=torch.float64) for _ in range(2))
        # Apart from each other, as what goes through close ones is steep.
        t = (torch.arange(count) + 0.2 + 0.6 * t) / count
        values = (2 * h - 1).unsqueeze(-1).requires_grad_()
        found, moved = (
            RidgeRegression(psi, "gcv").fit(x, values)(at) for x in (t.requires_grad_(), t + 1e-13)
        )
        assert (found - moved).abs().max() < 0.05
        slopes = torch.autograd.grad(found.sum(), (t, values))
        assert max(float(x.abs().max()) for x in slopes) < 1e4
