"""Ridge regression: the solution, padding, sums over chunks, cross-validated penalties."""

import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from sparsefam import Normal, TruncatedParaboloid
from sparsefam.attention import RidgeRegression, Statistics, ValueFunction
from sparsefam.bases import Basis, BSpline, Fourier, GaussianRBF, Polynomial

DOUBLE = torch.float64


def data(batch: int = 3, length: int = 20, channels: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Positions, values and a mask that keeps at least one position of each example."""
    generator = torch.Generator().manual_seed(0)
    positions = torch.rand(batch, length, generator=generator, dtype=DOUBLE)
    values = torch.randn(batch, length, channels, generator=generator, dtype=DOUBLE)
    mask = torch.rand(batch, length, generator=generator) < 0.6
    return positions, values, mask


def rbf(n: int = 12, width: float = 0.1) -> GaussianRBF:
    return GaussianRBF(torch.linspace(0, 1, n, dtype=DOUBLE), width)


def least_squares(basis: Basis, t: Tensor, values: Tensor, penalty: float) -> Tensor:
    """The ridge solution without normal equations: least squares with penalty rows below."""
    n = len(basis)
    rows = torch.cat([basis(t), math.sqrt(penalty) * torch.eye(n, dtype=DOUBLE)])
    right = torch.cat([values, torch.zeros(n, values.shape[-1], dtype=DOUBLE)])
    return torch.linalg.lstsq(rows, right, driver="gelsd").solution


# The solution


@pytest.mark.parametrize("penalty", [1e-4, 1e-2, 10.0])
@pytest.mark.parametrize(
    "basis",
    [
        rbf(),
        Fourier([1.0, 2.0, 9.0]).double(),
        Polynomial(3) + BSpline([0.0, 0.0, 0.4, 1.0, 1.0], 1).double(),
    ],
    ids=["rbf", "fourier", "stack"],
)
def test_coefficients_solve_the_penalised_least_squares(basis: Basis, penalty: float) -> None:
    t, values, mask = data()
    fitted = RidgeRegression(basis, penalty).fit(t, values, mask).coefficients
    for b in range(3):
        exact = least_squares(basis, t[b, mask[b]], values[b, mask[b]], penalty)
        assert torch.allclose(fitted[b], exact, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("length", [25, 2000])
def test_float32_loses_nothing_to_overlapping_functions(length: int) -> None:
    t, noise, _ = (x.float() for x in data(2, length))
    values = torch.sin(12 * t).unsqueeze(-1) + 0.3 * noise
    basis = GaussianRBF.grid(64, 1.5 / 64)
    fitted = RidgeRegression(basis, 1e-2).fit(t, values)
    assert fitted.coefficients.dtype == torch.float32
    grid = torch.linspace(0, 1, 501).expand(2, -1)
    found = fitted(grid)
    basis = basis.double()
    for b in range(2):
        exact = least_squares(basis, t[b].double(), values[b].double(), 1e-2)
        assert (fitted.coefficients[b] - exact).norm() < 5e-8 * exact.norm()
        curve = basis(grid[b].double()) @ exact
        assert (found[b] - curve).norm() < 4e-6 * curve.norm()


def test_shared_positions_give_what_repeated_ones_do() -> None:
    t, values, mask = data()
    regression, each = RidgeRegression(rbf()), t[:1].expand(3, -1)
    for shared in (t[0], t[:1]):
        for m in (None, mask):
            fitted = regression.fit(shared, values, m).coefficients
            expected = regression.fit(each, values, m).coefficients
            assert torch.allclose(fitted, expected, rtol=1e-9)


@pytest.mark.parametrize(
    "basis",
    [
        GaussianRBF.grid(27, 0.4, ndim=3).double(),
        GaussianRBF(torch.rand(12, 3, dtype=DOUBLE), covariance=0.1 * torch.eye(3, dtype=DOUBLE)),
        Polynomial(2, ndim=3).double(),
    ],
    ids=["isotropic", "covariance", "polynomial"],
)
def test_functions_of_vectors_solve_it_too(basis: Basis) -> None:
    t, values, mask = space()
    regression = RidgeRegression(basis, 1e-2)
    fitted = regression.fit(t, values, mask).coefficients
    for b in range(3):
        exact = least_squares(basis, t[b, mask[b]], values[b, mask[b]], 1e-2)
        assert torch.allclose(fitted[b], exact, rtol=1e-9, atol=1e-10)
    each = regression.fit(t[:1].expand(3, -1, -1), values).coefficients
    for shared in (t[0], t[:1]):
        assert torch.allclose(regression.fit(shared, values).coefficients, each, rtol=1e-9)


def space() -> tuple[Tensor, Tensor, Tensor]:
    """Positions in three dimensions, values and a mask."""
    _, values, mask = data()
    generator = torch.Generator().manual_seed(1)
    return torch.rand(3, 20, 3, generator=generator, dtype=DOUBLE), values, mask


# Padding


def test_padding_changes_neither_fit_nor_gradients() -> None:
    t, values, _ = data()
    padding = torch.tensor([math.nan, math.inf, -1e30, 7.0], dtype=DOUBLE)
    regression = RidgeRegression(rbf())

    def fit(t: Tensor, values: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
        t.requires_grad_(), values.requires_grad_()
        coefficients = regression.fit(t, values, mask).coefficients
        grads = torch.autograd.grad(coefficients.square().sum(), (t, values))
        return coefficients, *grads

    long_t = torch.cat([t, padding.expand(3, 4)], 1)
    long_values = torch.cat([values, padding[:, None].expand(3, 4, 2)], 1)
    mask = (torch.arange(24) < 20).expand(3, 24)
    short, padded = fit(t, values, None), fit(long_t, long_values, mask)
    assert torch.allclose(padded[0], short[0], rtol=1e-10)
    for long_grad, grad in zip(padded[1:], short[1:], strict=True):
        assert torch.allclose(long_grad[:, :20], grad, rtol=1e-9)
        assert not long_grad[:, 20:].any()


# The value function


def test_value_function_takes_locations_of_more_digits() -> None:
    t, values, _ = (x.float() for x in data())
    function = RidgeRegression(GaussianRBF.grid(12, 0.1)).fit(t, values)
    at = torch.rand(3, 5, dtype=DOUBLE)
    expected = function.basis.double()(at) @ function.coefficients.double()
    assert torch.allclose(function(at), expected, rtol=1e-12)
    density = Normal(at, 0.1)
    expected = density.expect(function.basis) @ function.coefficients.double()
    assert torch.allclose(function.expect(density), expected, rtol=1e-12)


def test_value_function_takes_vectors() -> None:
    t, values, _ = space()
    function = RidgeRegression(GaussianRBF.grid(8, 0.5, ndim=3)).fit(t, values)
    grid = torch.rand(3, 4, 5, 3, dtype=DOUBLE)
    found = function(grid)
    assert found.shape == (3, 4, 5, 2)
    expected = function.basis(grid[2, 1, 3]) @ function.coefficients[2]
    assert torch.allclose(found[2, 1, 3], expected, rtol=1e-12)
    assert torch.allclose(function(grid[:1])[2], function(grid[:1].expand(3, 4, 5, 3))[2])
    # one location for all, and one for each, are told apart by their number of dimensions
    assert torch.allclose(function(grid[0, 0, 0])[1], function(grid[0, 0, 0].expand(3, 3))[1])
    assert torch.allclose(function(grid[:, 0, 0])[1], found[1, 0, 0])


@pytest.mark.parametrize("extra", [(), (4,)])
def test_expectation_of_a_function_of_space(extra: tuple[int, ...]) -> None:
    t, values, _ = space()
    function = RidgeRegression(Polynomial(2, ndim=3)).fit(t, values)
    p = TruncatedParaboloid(torch.rand(3, *extra, 3, dtype=DOUBLE), 0.3 * torch.eye(3).double())
    mean, second = p.mean, p.covariance_matrix + p.mean.unsqueeze(-1) * p.mean.unsqueeze(-2)
    rows, columns = torch.triu_indices(3, 3)
    features = torch.cat([torch.ones_like(mean[..., :1]), mean, second[..., rows, columns]], -1)
    expected = torch.einsum("b...n,bne->b...e", features, function.coefficients)
    assert torch.allclose(function.expect(p), expected, rtol=1e-10)


@pytest.mark.parametrize("extra", [(), (4, 5)])
def test_expectation_is_the_integral_of_the_value_function(extra: tuple[int, ...]) -> None:
    t, values, _ = data()
    function = RidgeRegression(rbf()).fit(t, values)
    loc, scale = torch.rand(3, *extra, dtype=DOUBLE), 0.05 + torch.rand(3, *extra, dtype=DOUBLE)
    x = torch.linspace(-12, 12, 4001, dtype=DOUBLE)
    nodes = loc.unsqueeze(-1) + scale.unsqueeze(-1) * x
    weights = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi) * (x[1] - x[0])
    integral = (weights.unsqueeze(-1) * function(nodes)).sum(-2)
    found = function.expect(Normal(loc, scale))
    assert found.shape == (3, *extra, 2)
    assert torch.allclose(found, integral, rtol=1e-10, atol=1e-12)


def test_gradients_reach_positions_values_and_basis() -> None:
    t, values, mask = data(2, 6)
    centers = nn.Parameter(torch.linspace(0, 1, 4, dtype=DOUBLE))
    widths = nn.Parameter(torch.full((4,), 0.4, dtype=DOUBLE))
    at = torch.tensor([[0.2, 0.9]], dtype=DOUBLE)

    def evaluate(t: Tensor, values: Tensor, centers: Tensor, widths: Tensor) -> Tensor:
        basis = GaussianRBF(centers, widths)
        return RidgeRegression(basis, 0.1).fit(t, values, mask)(at)

    inputs = (t.requires_grad_(), values.requires_grad_(), centers, widths)
    assert gradcheck(evaluate, inputs)


def test_compiles_maps_and_keeps_the_checks() -> None:
    t, values, mask = data()
    regression = RidgeRegression(rbf())

    def fit(t: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        return regression.fit(t, values, mask).coefficients

    torch._dynamo.reset()
    compiled = torch.compile(fit, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(t, values, mask), fit(t, values, mask), rtol=1e-12)
    with pytest.raises(RuntimeError, match="positions must be finite"):
        compiled(t * math.nan, values, mask)
    two = torch.stack([values, 2 * values])
    mapped = torch.func.vmap(fit, in_dims=(None, 0, None))(t, two, mask)
    assert torch.allclose(mapped[1], fit(t, 2 * values, mask), rtol=1e-12)


# Sums over chunks, and of pieces


def observations(
    batch: int = 3, length: int = 20, channels: int = 2
) -> tuple[Tensor, Tensor, Tensor]:
    """Positions, values and a mask that keeps at least one position of each example."""
    positions = torch.rand(batch, length, dtype=DOUBLE)
    values = torch.randn(batch, length, channels, dtype=DOUBLE)
    mask = torch.rand(batch, length) < 0.6
    return positions, values, mask | (torch.arange(length) == 0)


def learned(n: int = 5) -> GaussianRBF:
    centers = torch.linspace(0, 1, n, dtype=DOUBLE)
    return GaussianRBF(nn.Parameter(centers), nn.Parameter(torch.tensor(0.2, dtype=DOUBLE)))


def fixed(n: int = 8) -> GaussianRBF:
    return GaussianRBF.grid(n, 0.15).double()


@pytest.mark.parametrize("shared", [False, True], ids=["each", "shared"])
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize("which", [(True, True), (False, True), (True, False)])
def test_blocks_change_neither_fit_nor_gradients(
    shared: bool, masked: bool, which: tuple[bool, bool]
) -> None:
    t, values, mask = observations()
    if masked:
        values = torch.where(mask.unsqueeze(-1), values, math.nan)
    t = (t[:1] if shared else t).requires_grad_(which[0])
    values.requires_grad_(which[1])
    basis = learned() if which[0] else fixed()
    wanted = [x for x in (t, values, *basis.parameters()) if x.requires_grad]

    def run(chunk_size: int) -> list[Tensor]:
        regression = RidgeRegression(basis, chunk_size=chunk_size)
        found = regression.fit(t, values, mask if masked else None).coefficients
        return [found, *torch.autograd.grad(found.square().sum(), wanted)]

    # The last of three blocks is a short one.
    for found, exact in zip(run(8), run(20), strict=True):
        assert torch.allclose(found, exact, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_gradients_of_blocks(masked: bool) -> None:
    t, values, mask = observations(2, 5, 1)
    basis = learned(3)

    def fit(t: Tensor, values: Tensor, *_: Tensor) -> Tensor:
        regression = RidgeRegression(basis, 0.1, chunk_size=2)
        return regression.fit(t, values, mask if masked else None).coefficients

    inputs = (t.requires_grad_(), values.requires_grad_(), *basis.parameters())
    assert gradcheck(fit, inputs)
    assert gradgradcheck(fit, inputs[:2])


def test_blocks_in_float32_are_as_exact() -> None:
    t, values, _ = (x.float() for x in observations(2, 500, 3))
    basis = GaussianRBF.grid(64, 1.5 / 64)
    values.requires_grad_()

    def run(chunk_size: int, dtype: torch.dtype) -> list[Tensor]:
        regression = RidgeRegression(basis, chunk_size=chunk_size)
        found = regression.fit(t, values.to(dtype)).coefficients
        return [found, *torch.autograd.grad(found.square().sum(), values)]

    for found, exact in zip(run(64, torch.float32), run(500, DOUBLE), strict=True):
        assert (found - exact).norm() < 1e-7 * exact.norm()


@pytest.mark.parametrize("parts", ["values", "everything"])
def test_backward_keeps_no_design(parts: str) -> None:
    t, values, mask = observations(1, 400, 2)
    basis = learned(16) if parts == "everything" else fixed(16)
    values.requires_grad_()
    t.requires_grad_(parts == "everything")
    kept: list[int] = []

    def keep(x: Tensor) -> Tensor:
        kept.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        RidgeRegression(basis, chunk_size=50).fit(t, values, mask)
    # Nothing with a row for each observation and a column for each of 16 functions.
    assert max(kept) == values.numel()


def test_blocks_compile_and_map() -> None:
    t, values, mask = observations(2, 4)
    basis = learned(3)
    regression = RidgeRegression(basis, 0.1, chunk_size=2, validate_args=False)

    def loss(t: Tensor, values: Tensor) -> Tensor:
        return regression.fit(t, values, mask).coefficients.square().sum()

    def grads(function: object) -> tuple[Tensor, ...]:
        leaves = (t.clone().requires_grad_(), values.clone().requires_grad_())
        return torch.autograd.grad(function(*leaves), (*leaves, *basis.parameters()))

    expected = grads(loss)
    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for found, exact in zip(grads(compiled), expected, strict=True):
        assert torch.allclose(found, exact, rtol=1e-10)
    several = torch.stack([values, 2 * values, values])
    each = torch.func.vmap(torch.func.grad(loss, (0, 1)), in_dims=(None, 0))(t, several)
    for found, exact in zip(each, expected[:2], strict=True):
        assert torch.allclose(found[2], exact, rtol=1e-10)


def test_exports_for_any_length() -> None:
    regression = RidgeRegression(fixed())

    class Fit(nn.Module):
        def forward(self, t: Tensor, values: Tensor, mask: Tensor) -> Tensor:
            return regression.fit(t, values, mask).coefficients

    length = {1: torch.export.Dim("length", min=2, max=1000)}
    exported = torch.export.export(Fit(), observations(), dynamic_shapes=(length, length, length))
    longer = observations(3, 77)
    assert torch.allclose(exported.module()(*longer), Fit()(*longer), rtol=1e-12)


def test_autocast_leaves_the_sums_alone() -> None:
    t, values, _ = (x.float() for x in observations(2, 50, 3))
    regression = RidgeRegression(GaussianRBF.grid(8, 0.15), chunk_size=20)

    def run() -> list[Tensor]:
        leaf = values.clone().requires_grad_()
        found = regression.fit(t, leaf).coefficients
        return [found, *torch.autograd.grad(found.square().sum(), leaf)]

    expected = run()
    with torch.autocast("cpu", torch.bfloat16):
        for found, exact in zip(run(), expected, strict=True):
            assert torch.equal(found, exact)


def test_statistics_of_pieces_add_up() -> None:
    t, values, mask = observations()
    regression = RidgeRegression(fixed())
    whole = regression.statistics(t, values, mask)
    parts = [
        regression.statistics(t[:, rows], values[:, rows], mask[:, rows])
        for rows in (slice(0, 12), slice(12, 20))
    ]
    for found, exact in zip(parts[0].plus(parts[1]), whole, strict=True):
        assert torch.allclose(found, exact, rtol=1e-12)
    function = regression.solve(parts[0].plus(parts[1]), DOUBLE)
    assert torch.allclose(function.coefficients, regression.fit(t, values, mask).coefficients)
    assert regression.solve(whole).coefficients.dtype == torch.get_default_dtype()


def test_forgotten_observations_weigh_less() -> None:
    t, values, _ = observations()
    basis, keep = fixed(), torch.tensor([1.0, 0.25, 0.0], dtype=DOUBLE)
    regression = RidgeRegression(basis, 0.1)
    old, new = (
        regression.statistics(t[:, rows], values[:, rows]) for rows in (slice(12), slice(12, 20))
    )
    found = regression.solve(old.plus(new, keep), DOUBLE).coefficients
    for b in range(3):
        weight = torch.where(torch.arange(20) < 12, keep[b], 1.0).sqrt().unsqueeze(-1)
        rows = torch.cat([weight * basis(t[b]), math.sqrt(0.1) * torch.eye(8, dtype=DOUBLE)])
        right = torch.cat([weight * values[b], torch.zeros(8, 2, dtype=DOUBLE)])
        exact = torch.linalg.lstsq(rows, right, driver="gelsd").solution
        assert torch.allclose(found[b], exact, rtol=1e-9)
    assert old.plus(new, keep).num_observations.tolist() == [20.0, 11.0, 8.0]


class Attributes(Basis):
    """Waves whose frequencies are a tensor, and no parameter, as some wrappers make of one."""

    def __init__(self, frequencies: Tensor) -> None:
        super().__init__()
        self.frequencies = frequencies

    def forward(self, t: Tensor) -> Tensor:
        return torch.sin(t.unsqueeze(-1) * self.frequencies)

    def __len__(self) -> int:
        return len(self.frequencies)


def test_gradients_of_blocks_reach_attributes() -> None:
    t, values, _ = observations()
    frequencies = torch.tensor([2.0, 5.0, 9.0], dtype=DOUBLE, requires_grad=True)
    slopes = []
    for rows in (8, 20):
        regression = RidgeRegression(Attributes(2 * frequencies), chunk_size=rows)
        loss = regression.fit(t, values).coefficients.square().sum()
        slopes += torch.autograd.grad(loss, frequencies)
    assert torch.allclose(*slopes, rtol=1e-10)


def test_positions_out_of_reach_are_warned_of_once() -> None:
    t, values, mask = observations(2, 8)
    t[:, ::4] = torch.tensor([9.0, -5.0], dtype=DOUBLE)
    mask[:] = torch.arange(8) != 0
    regression = RidgeRegression(BSpline([0.0, 0.0, 0.5, 1.0, 1.0], 1).double())
    message = "0.14 of the positions lie where all functions of the basis are zero"
    with pytest.warns(UserWarning, match=message) as warned:
        found = regression.fit(t, values, mask).coefficients
        regression.fit(t, values, mask)
    assert len(warned) == 1
    assert warned[0].filename == __file__
    inside = mask & (t > 0) & (t < 1)
    assert torch.allclose(found, regression.fit(t, values, inside).coefficients)


def test_positions_within_reach_are_not_warned_of() -> None:
    t, values, mask = observations(2, 8)
    t[:, 3] = 9.0
    mask[:, 3] = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RidgeRegression(fixed()).fit(t, values, mask)
        # These have no ends.
        RidgeRegression(Polynomial(2).double()).fit(100 * t, values)


def test_without_a_penalty_the_fit_is_least_squares() -> None:
    t, values, _ = observations(1, 9)
    basis = Polynomial(3).double()
    found = RidgeRegression(basis, 0).fit(t, values).coefficients[0]
    exact = torch.linalg.lstsq(basis(t[0]), values[0], driver="gelsd").solution
    assert torch.allclose(found, exact, rtol=1e-8)


def test_too_few_observations_without_a_penalty_are_refused() -> None:
    t, values, mask = observations(2, 6)
    mask[:] = torch.tensor([[True] * 6, [True] * 3 + [False] * 3])
    message = r"penalty must be positive with fewer observations than functions, 4, got 3 .*\[1\]"
    with pytest.raises(ValueError, match=message):
        RidgeRegression(Polynomial(3).double(), 0.0).fit(t, values, mask)
    twice = t[:, :1].expand(2, 6)
    with pytest.raises(ValueError, match="penalty must exceed the rounding errors.*got 0.0"):
        RidgeRegression(Polynomial(3).double(), 0.0).fit(twice, values)


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="group must be a process group or a device mesh, got 4"):
        RidgeRegression(fixed(), group=4)
    with pytest.raises(ValueError, match="chunk_size must be a positive integer, got 0"):
        RidgeRegression(fixed(), chunk_size=0)


def test_sums_of_other_sizes_are_refused() -> None:
    t, values, _ = observations()
    some = RidgeRegression(fixed()).statistics(t, values)
    with pytest.raises(ValueError, match=r"of 3 examples, 8 functions, 2 chan.*got \(1, 8, 2\)"):
        some.plus(RidgeRegression(fixed()).statistics(t[:1], values[:1]))
    with pytest.raises(ValueError, match=r"keep must have shape \(\) or \(3,\), got \(2,\)"):
        some.plus(some, torch.ones(2))
    with pytest.raises(ValueError, match=r"statistics must be of 5 functions, got \(3, 8, 2\)"):
        RidgeRegression(fixed(5)).solve(some)


def test_errors_name_places_in_later_blocks() -> None:
    t, values, _ = observations()
    values[1, 17, 1] = math.inf
    with pytest.raises(ValueError, match=r"values must be finite.*got inf at index .1, 17, 1."):
        RidgeRegression(fixed(), chunk_size=5).fit(t, values)


def test_examples_without_observations_are_refused() -> None:
    t, values, _ = observations()
    statistics = RidgeRegression(fixed()).statistics(t, values)
    empty = Statistics(*(torch.zeros_like(x) for x in statistics))
    with pytest.raises(ValueError, match="mask must let at least one position"):
        RidgeRegression(fixed()).solve(empty)


# Generalised cross-validation

Array = NDArray[np.float64]


def bumps(n: int = 12) -> GaussianRBF:
    return GaussianRBF(torch.linspace(0, 1, n, dtype=DOUBLE), 1.2 / n)


def wave(length: int, noise: float, batch: int = 2) -> tuple[Tensor, Tensor]:
    """Positions and two channels of a wave with noise."""
    t = torch.rand(batch, length, dtype=DOUBLE)
    signal = torch.stack([torch.sin(9 * t), 0.5 * torch.cos(5 * t)], -1)
    return t, signal + noise * torch.randn(batch, length, 2, dtype=DOUBLE)


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
    t, values = wave(length, noise)
    function = RidgeRegression(bumps(), "gcv").fit(t, values)
    for b in range(2):
        design, right = bumps()(t[b]).numpy(), values[b].numpy()
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
    t, values = wave(40, 0.3)
    function = RidgeRegression(bumps(), "gcv").fit(t, values)
    assert function.penalty[0] != function.penalty[1]
    for b, penalty in enumerate(function.penalty.tolist()):
        alone = RidgeRegression(bumps(), penalty).fit(t[b], values[b : b + 1])
        assert torch.allclose(function.coefficients[b], alone.coefficients[0], rtol=1e-9)


def test_examples_on_one_grid_have_penalties_of_their_own() -> None:
    t, values = wave(40, 0.3)
    shared = RidgeRegression(bumps(), "gcv").fit(t[0], values)
    each = RidgeRegression(bumps(), "gcv").fit(t[:1].expand(2, -1), values)
    assert torch.allclose(shared.penalty, each.penalty, rtol=1e-8)
    assert shared.penalty[0] != shared.penalty[1]
    assert torch.allclose(shared.coefficients, each.coefficients, rtol=1e-8)


def test_padding_does_not_count() -> None:
    t, values = wave(40, 0.3)
    mask = torch.arange(40) < torch.tensor([[25], [40]])
    padded = RidgeRegression(bumps(), "gcv").fit(t, values, mask).penalty
    short = RidgeRegression(bumps(), "gcv").fit(t[:1, :25], values[:1, :25]).penalty
    assert padded[0].item() == pytest.approx(short.item(), rel=1e-9)


@pytest.mark.parametrize("shared", [False, True], ids=["each", "shared"])
def test_penalty_is_differentiable(shared: bool) -> None:
    t, values = wave(9, 0.5)
    t = (t[0] if shared else t).requires_grad_()
    centers = nn.Parameter(torch.linspace(0, 1, 4, dtype=DOUBLE))
    basis = GaussianRBF(centers, 0.3)

    def fit(t: Tensor, values: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        function = RidgeRegression(basis, "gcv").fit(t, values)
        return function.coefficients, function.penalty.log()

    assert gradcheck(fit, (t, values.requires_grad_(), centers))


def test_second_derivatives_are_refused() -> None:
    t, values = wave(9, 0.5)
    t.requires_grad_()
    coefficients = RidgeRegression(bumps(4), "gcv").fit(t, values).coefficients
    (grad,) = torch.autograd.grad(coefficients.square().sum(), t, create_graph=True)
    with pytest.raises(RuntimeError, match="cross-validated penalties"):
        torch.autograd.grad(grad.sum(), t)


def test_gradients_under_transforms() -> None:
    t, values = wave(9, 0.5)
    values.requires_grad_()

    def loss(values: Tensor) -> Tensor:
        return RidgeRegression(bumps(4), "gcv").fit(t, values).coefficients.square().sum()

    (exact,) = torch.autograd.grad(loss(values), values)
    found = torch.func.vmap(torch.func.grad(loss))(torch.stack([values, 1 - values]))[0]
    assert torch.allclose(found, exact, rtol=1e-9)


def test_noise_alone_is_smoothed_away() -> None:
    t, _ = wave(30, 0.0)
    # Of a sign that alternates along t: no smooth function is of use.
    order = t.argsort(-1).argsort(-1)
    values = (1 - 2 * (order % 2)).double().unsqueeze(-1).requires_grad_()
    t.requires_grad_()

    def fit(t: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        function = RidgeRegression(bumps(4), "gcv").fit(t, values)
        return function.coefficients, function.penalty.log()

    coefficients, log_penalty = fit(t, values)
    trace = bumps(4)(t).square().sum((-2, -1))
    assert torch.allclose(log_penalty.exp(), 1e3 * trace)
    assert coefficients.abs().max() < 1e-2
    assert gradcheck(fit, (t[:, :6].detach().requires_grad_(), values[:, :6].detach()))


def test_exact_observations_are_kept() -> None:
    t, _ = wave(60, 0.0)
    values = bumps(24)(t) @ torch.randn(2, 24, 2, dtype=DOUBLE)
    function = RidgeRegression(bumps(24), "gcv").fit(t, values)
    assert (function(t) - values).norm() < 1e-5 * values.norm()


def test_zeros_stay_zeros() -> None:
    t, values = wave(30, 0.0)
    values = (0 * values).requires_grad_()
    function = RidgeRegression(bumps(), "gcv").fit(t, values)
    assert not function.coefficients.any()
    assert function.penalty.isfinite().all()
    (slope,) = torch.autograd.grad(function.coefficients.sum() + function.penalty.sum(), values)
    assert slope.isfinite().all()


@pytest.mark.slow
def test_compiles_with_gradients() -> None:
    t, values = wave(20, 0.3)

    def run(regression: RidgeRegression, compiler: str | None) -> list[Tensor]:
        def fit(values: Tensor) -> Tensor:
            return regression.fit(t, values).coefficients

        leaf = values.clone().requires_grad_()
        call = torch.compile(fit, fullgraph=True, backend=compiler) if compiler else fit
        found = call(leaf)
        return [found, *torch.autograd.grad(found.square().sum(), leaf)]

    torch._dynamo.reset()
    for size in (None, 12):
        regression = RidgeRegression(bumps(), "gcv", chunk_size=size)
        for found, exact in zip(run(regression, "aot_eager"), run(regression, None), strict=True):
            assert torch.allclose(found, exact, rtol=1e-8)


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


# Errors


def nan_at(tensor: Tensor, *index: int) -> Tensor:
    tensor = tensor.clone()
    tensor[index] = math.nan
    return tensor


T, VALUES, MASK = data()
FIT = RidgeRegression(rbf()).fit
SPACE = space()[0]
FIT3 = RidgeRegression(Polynomial(1, ndim=3)).fit


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: RidgeRegression(rbf(), -1.0),
            "penalty must be .gcv., or finite and at least 0, got -1",
        ),
        (lambda: RidgeRegression(rbf(), "aic"), "penalty must be 'gcv', or finite.*got 'aic'"),
        (lambda: RidgeRegression(rbf(), math.nan), "penalty must be .*, got nan"),
        (lambda: RidgeRegression(None), "basis must be a Basis, got None"),
        (lambda: FIT(T.numpy(), VALUES), "positions must be a tensor, got ndarray"),
        (lambda: FIT(T, VALUES.tolist()), "values must be a tensor, got list"),
        (lambda: RidgeRegression(rbf(), None), "penalty must be .*, got None"),
        (lambda: RidgeRegression(rbf(), torch.ones(2)), "penalty must be .*, got tensor"),
        (lambda: FIT(T, VALUES[0]), r"values must have shape \(B, L, E\), .*got \(20, 2\)"),
        (
            lambda: FIT(T[0], VALUES[0], MASK[0]),
            r"values must have shape \(B, L, E\) \(and mask \(B, L\)\).*got \(20, 2\); unsqueeze",
        ),
        (lambda: FIT(T, VALUES, MASK[0]), r"mask must be boolean of shape \(3, 20\).* \(20,\)"),
        (lambda: FIT(T[:, :0], VALUES[:, :0]), r"values must .*not zero.*\(3, 0, 2\)"),
        (lambda: FIT(T[:, :7], VALUES), r"positions must have shape \(3, 20\).*got \(3, 7\)"),
        (lambda: FIT(T[:2], VALUES), r"positions must have shape \(3, 20\).*got \(2, 20\)"),
        (lambda: FIT(T, VALUES, MASK[:2]), r"mask must be boolean of shape \(3, 20\).*\(2, 20\)"),
        (lambda: FIT(T, VALUES, MASK.float()), "mask must be boolean.*got torch.float32"),
        (
            lambda: FIT(nan_at(T, 1, 4), VALUES),
            r"positions must be finite.*got nan at index .1, 4.",
        ),
        (lambda: FIT(T, VALUES / 0), r"values must be finite.*got -?inf at index .0, 0, 0."),
        (
            lambda: FIT(T, VALUES, MASK & (torch.arange(3) != 1)[:, None]),
            r"mask must let at least one position of every example.*got 0 at index .1.",
        ),
        (
            lambda: RidgeRegression(Polynomial(3).double(), 1e-300).fit(T[:, :2], VALUES[:, :2]),
            "penalty must exceed the rounding errors.*got 1e-300",
        ),
        (
            lambda: FIT(T, VALUES)(T[:2]),
            r"t must have shape \(3, ...\) or \(1, ...\), got \(2, 20\)",
        ),
        (lambda: FIT(T, VALUES)(T[:0]), r"t must have shape \(3, ...\) .*got \(0, 20\)"),
        (lambda: FIT(SPACE, VALUES), r"positions must have shape \(3, 20\).*got \(3, 20, 3\)"),
        (lambda: FIT3(T, VALUES), r"positions must .*\(3, 20, 3\).*\(20, 3\).*got \(3, 20\)"),
        (lambda: FIT3(SPACE[..., :2], VALUES), r"positions must .*got \(3, 20, 2\)"),
        (lambda: FIT3(SPACE[:2], VALUES), r"positions must .*\(3, 20, 3\) or \(1, 20, 3\)"),
        (
            lambda: FIT3(nan_at(SPACE, 1, 4, 2), VALUES),
            r"positions must be finite.*got nan at index .1, 4, 2.",
        ),
        (
            lambda: FIT3(SPACE, VALUES)(SPACE[..., :2]),
            r"t must have shape \(3, ..., 3\) or \(1, ..., 3\), got \(3, 20, 2\)",
        ),
        (lambda: FIT3(SPACE, VALUES)(SPACE[:2]), r"t must have .*got \(2, 20, 3\)"),
        (lambda: FIT3(SPACE, VALUES)(SPACE[0, 0, 0]), r"t must have .*got \(\)"),
        (
            lambda: FIT3(SPACE, VALUES).expect(Normal(torch.zeros(3), 1.0)),
            r"psi must take locations of event shape \(\), got \(3,\)",
        ),
        (
            lambda: FIT(T, VALUES).expect(Normal(torch.zeros(4), 1.0)),
            r"density must have batch_shape \(3, ...\) or \(1, ...\), got \(4,\)",
        ),
        (
            lambda: ValueFunction(rbf(), torch.zeros(3, 12, 1)).expect(Normal(0.0, 1.0)),
            r"density must have batch_shape .*got \(\)",
        ),
    ],
)
def test_bad_arguments_are_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
