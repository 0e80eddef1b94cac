"""Ridge regression against least squares, and that padding never leaks into it."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

from sparsefam import Normal, TruncatedParaboloid
from sparsefam.attention import RidgeRegression, ValueFunction
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


@pytest.mark.parametrize("length", [25, 300, 2000])
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


def test_order_of_observations_does_not_matter() -> None:
    t, values, mask = data()
    order = torch.randperm(20, generator=torch.Generator().manual_seed(1))
    regression = RidgeRegression(rbf())
    fitted = regression.fit(t[:, order], values[:, order], mask[:, order]).coefficients
    assert torch.allclose(fitted, regression.fit(t, values, mask).coefficients, rtol=1e-9)


def test_shared_positions_give_what_repeated_ones_do() -> None:
    t, values, mask = data()
    regression, each = RidgeRegression(rbf()), t[:1].expand(3, -1)
    for shared in (t[0], t[:1]):
        for m in (None, mask):
            fitted = regression.fit(shared, values, m).coefficients
            expected = regression.fit(each, values, m).coefficients
            assert torch.allclose(fitted, expected, rtol=1e-9)


def test_one_observation_is_fitted_by_hand() -> None:
    psi = rbf()(torch.tensor(0.3, dtype=DOUBLE))
    t, values = torch.full((1, 1), 0.3, dtype=DOUBLE), torch.full((1, 1, 1), 5.0, dtype=DOUBLE)
    fitted = RidgeRegression(rbf(), 0.01).fit(t, values).coefficients[0, :, 0]
    assert torch.allclose(fitted, 5 * psi / (psi @ psi + 0.01), rtol=1e-11)


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


def test_padding_of_vectors_is_never_read() -> None:
    t, values, _ = space()
    junk = torch.tensor([math.nan, -math.inf, 1e300], dtype=DOUBLE)
    long_t = torch.cat([t, junk.expand(3, 2, 3)], 1).requires_grad_()
    long_values = torch.cat([values, junk[:2].expand(3, 2, 2)], 1)
    regression = RidgeRegression(GaussianRBF.grid(8, 0.5, ndim=3))
    mask = (torch.arange(22) < 20).expand(3, 22)
    padded = regression.fit(long_t, long_values, mask).coefficients
    (grad,) = torch.autograd.grad(padded.square().sum(), long_t)
    short_t = t.requires_grad_()
    short = regression.fit(short_t, values).coefficients
    (expected,) = torch.autograd.grad(short.square().sum(), short_t)
    assert torch.allclose(padded, short, rtol=1e-10)
    assert torch.allclose(grad[:, :20], expected, rtol=1e-9)
    assert not grad[:, 20:].any()


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


def test_value_function_broadcasts_locations() -> None:
    t, values, _ = data()
    function = RidgeRegression(rbf()).fit(t, values)
    grid = torch.rand(3, 4, 5, dtype=DOUBLE)
    found = function(grid)
    assert found.shape == (3, 4, 5, 2)
    expected = function.basis(grid[2, 1, 3]) @ function.coefficients[2]
    assert torch.allclose(found[2, 1, 3], expected, rtol=1e-12)
    assert torch.allclose(function(grid[:1])[2], function(grid[:1].expand(3, 4, 5))[2])
    assert torch.allclose(function(grid[0, 0, 0])[1], function(grid[0, 0, 0].expand(3))[1])


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


@pytest.mark.parametrize("extra", [(), (4,), (4, 5)])
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


def test_state_dict_holds_the_basis() -> None:
    assert set(RidgeRegression(rbf()).state_dict()) == {"basis.centers", "basis.widths"}


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
        (lambda: RidgeRegression(rbf(), math.nan), "penalty must be .*, got nan"),
        (lambda: RidgeRegression(None), "basis must be a Basis, got None"),
        (lambda: FIT(T.numpy(), VALUES), "positions must be a tensor, got ndarray"),
        (lambda: FIT(T, VALUES.tolist()), "values must be a tensor, got list"),
        (lambda: RidgeRegression(rbf(), None), "penalty must be .*, got None"),
        (lambda: RidgeRegression(rbf(), torch.ones(2)), "penalty must be .*, got tensor"),
        (lambda: FIT(T, VALUES[0]), r"values must have shape \(B, L, E\).*got \(20, 2\)"),
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
        (lambda: FIT3(SPACE[:2], VALUES), r"positions must .*\(3, 20, 3\), \(1, 20, 3\)"),
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
