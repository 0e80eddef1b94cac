"""Ridge regression by matrices and by bands: solutions, gradients, cross-validated penalties."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from battery import DOUBLE, one_graph
from numpy.typing import NDArray
from refusals import refused
from scipy.optimize import minimize_scalar
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from sparsefam import Normal, TruncatedParabola
from sparsefam.attention import RidgeRegression, ValueFunction
from sparsefam.attention import regression as regression_module
from sparsefam.bases import Basis, BSpline, Fourier, GaussianRBF, Polynomial

CENTERS = torch.rand(9, 3, generator=torch.Generator().manual_seed(0))


def data(
    batch: int = 3, length: int = 20, channels: int = 2, ndim: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Positions, values and a mask that keeps at least one position of each example."""
    shape = (batch, length) if ndim == 1 else (batch, length, ndim)
    mask = (torch.rand(batch, length) < 0.6) | (torch.arange(length) == 0)
    values = torch.randn(batch, length, channels, dtype=DOUBLE)
    return torch.rand(shape, dtype=DOUBLE), values, mask


def rbf(n: int = 12, width: float = 0.1) -> GaussianRBF:
    return GaussianRBF(torch.linspace(0, 1, n, dtype=DOUBLE), width)


def least_squares(basis: Basis, t: Tensor, values: Tensor, penalty: float) -> Tensor:
    """The ridge solution without normal equations: least squares with penalty rows below."""
    n = len(basis)
    rows = torch.cat([basis(t), math.sqrt(penalty) * torch.eye(n, dtype=DOUBLE)])
    right = torch.cat([values, torch.zeros(n, values.shape[-1], dtype=DOUBLE)])
    return torch.linalg.lstsq(rows, right, driver="gelsd").solution


def clamped(n: int, degree: int = 3, dtype: torch.dtype = DOUBLE) -> BSpline:
    ends = torch.ones(degree, dtype=dtype)
    inner = torch.linspace(0, 1, n - degree + 1, dtype=dtype)
    return BSpline(torch.cat([0 * ends, inner, ends]), degree)


UNCLAMPED = BSpline(torch.linspace(-2, 0.2, 31, dtype=DOUBLE).exp() - 0.14, 2)
REPEATED = BSpline(torch.arange(30, dtype=DOUBLE).repeat_interleave(2) / 29, 3)


# The solution
@pytest.mark.parametrize(
    ("basis", "penalty"),
    [
        (rbf(), 1e-4),
        (Fourier([1.0, 9.0]).double() + BSpline([0.0, 0.0, 0.4, 1.0, 1.0], 1).double(), 10.0),
        (Polynomial(3).double(), 0),
        (GaussianRBF.grid(27, 0.4, ndim=3).double(), 1e-2),
        (GaussianRBF(CENTERS.double(), covariance=0.1 * torch.eye(3).double()), 1e-2),
        *(
            (basis, 1e-3)
            for basis in (clamped(5), clamped(64), clamped(129), clamped(77, 11), clamped(40, 0))
        ),
        (UNCLAMPED, 1e-3),
        (REPEATED, 1e-3),
    ],
    ids=(
        "rbf,stack,polynomial,space,covariance,one block,64,129,degree 11,degree 0,unclamped,"
        "repeated"
    ).split(","),
)
@pytest.mark.parametrize("masked", [False, True])
def test_coefficients_solve_the_penalized_least_squares(
    basis: Basis, penalty: float, masked: bool
) -> None:
    """Also in chunks, the last of which is short, and of positions that all examples share.

    Values of one chunk have as many channels as there are functions: see `_can_fit_values`.
    """
    ndim = 3 if basis.event_shape else 1
    t, values, mask = data(3, 90, len(basis), ndim)
    grid = 1.5 * torch.rand(50, *basis.event_shape, dtype=DOUBLE) - 0.2
    for places, chunk_size in ((t, None), (t, 40), (t[:1], 40), (t[0], None)):
        fit = RidgeRegression(basis, penalty, chunk_size=chunk_size).fit
        found = fit(places, values, mask if masked else None)
        for b in range(3):
            seen = mask[b] if masked else slice(None)
            read = t[0 if places is not t else b, seen]
            exact = least_squares(basis, read, values[b, seen], penalty)
            torch.testing.assert_close(found.coefficients[b], exact, rtol=1e-9, atol=1e-10)
            curve = basis(grid) @ exact
            for at in (grid.expand(3, *grid.shape), grid[None]):
                torch.testing.assert_close(found(at)[b], curve, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("chunk_size", "channels"), [(None, 2), (300, 2), (None, 64)])
def test_float32_loses_nothing_to_overlapping_functions(
    chunk_size: int | None, channels: int
) -> None:
    """With many channels coefficients lose digits in directions that functions do not see."""
    t, noise, _ = (x.float() for x in data(2, 2000, channels))
    values = (torch.sin(12 * t).unsqueeze(-1) + 0.3 * noise).requires_grad_()
    basis = GaussianRBF.grid(64, 1.5 / 64)
    found = RidgeRegression(basis, 1e-2, chunk_size=chunk_size).fit(t, values)
    assert found.coefficients.dtype == torch.float32
    grid = torch.linspace(0, 1, 501).expand(2, -1)
    upstream = found.coefficients.detach()
    (slope,) = torch.autograd.grad(found.coefficients, values, upstream)
    basis = basis.double()
    for b in range(2):
        design = basis(t[b].double())
        exact = least_squares(basis, t[b].double(), values[b].detach().double(), 1e-2)
        rounding = 5e-8 if channels == 2 else 5e-6
        assert (found.coefficients[b] - exact).norm() < rounding * exact.norm()
        curve = basis(grid[b].double()) @ exact
        assert (found(grid)[b] - curve).norm() < 4e-6 * curve.norm()
        gram = design.T @ design + 1e-2 * torch.eye(64, dtype=DOUBLE)
        due = design @ torch.linalg.solve(gram, upstream[b].double())
        assert (slope[b] - due).norm() < 1e-6 * due.norm()


# The roughness, and fits that are penalized for it
def smoothed(
    basis: Basis, t: Tensor, values: Tensor, smoothing: float, ends: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    """The solution by least squares, with rows of slopes on a fine grid, and the mean."""
    cuts = [torch.linspace(*ends, 60, dtype=DOUBLE)] + [basis.breaks] * (basis.breaks is not None)
    panels = torch.cat(cuts).unique()
    nodes, weights = (torch.from_numpy(x) for x in np.polynomial.legendre.leggauss(8))
    half = panels.diff().unsqueeze(-1) / 2
    nodes = (panels[:-1, None] + half * (1 + nodes)).flatten().requires_grad_()
    columns = basis(nodes).sum(0)
    slopes = [torch.autograd.grad(x, nodes, retain_graph=True)[0] for x in columns]
    side = basis.domain[0][1] - basis.domain[0][0]
    rows = (side * half * weights).sqrt().reshape(-1, 1) * torch.stack(slopes, -1)
    rows = torch.cat([rows, (1e-3 * rows.square().sum(0)).sqrt().diag()])
    mean = values.mean(0)
    design = torch.cat([basis(t), math.sqrt(smoothing) * rows])
    right = torch.cat([values - mean, torch.zeros(len(rows), values.shape[-1], dtype=DOUBLE)])
    return torch.linalg.lstsq(design, right, driver="gelsd").solution, mean


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("basis", "ends"),
    [
        (rbf(), (-1.5, 2.5)),
        (clamped(12), (0.0, 1.0)),
        (GaussianRBF.grid(8, 0.1).double() + clamped(9, 2), (0.0, 1.0)),
    ],
    ids=["rbf", "splines", "stack"],
)
def test_fits_are_smoothing_splines_around_the_mean(
    basis: Basis, ends: tuple[float, float], masked: bool
) -> None:
    """Also in chunks, and of positions that all examples share."""
    t, values, mask = data(3, 90, len(basis))
    for places, chunk_size in ((t, None), (t[:1], 40), (t[0], None)):
        fit = RidgeRegression(basis, smoothing=0.05, chunk_size=chunk_size).fit
        found = fit(places, values, mask if masked else None)
        again = fit(places, values, key_padding_mask=~mask if masked else None)
        assert torch.equal(found.coefficients, again.coefficients)
        for b in range(3):
            seen = mask[b] if masked else slice(None)
            read = t[0 if places is not t else b, seen]
            exact, mean = smoothed(basis, read, values[b, seen], 0.05, ends)
            torch.testing.assert_close(found.constant[b], mean)
            torch.testing.assert_close(found.coefficients[b], exact, rtol=2e-6, atol=2e-7)


def test_constants_are_exact_for_any_basis_and_density() -> None:
    """Also where a support leaves the basis, and in all sums of weights."""
    t, ones = torch.rand(2, 9), torch.ones(2, 9, 1)
    density = TruncatedParabola(torch.tensor([[0.5, 0.9, 7.0]]).expand(2, -1), 0.5)
    for basis in (None, GaussianRBF.grid(5, 0.01), Fourier([1.0, 2.0]), clamped(30).float()):
        regression = RidgeRegression(basis, domain=(0.0, 1.0))
        many = (3 * ones).expand(-1, -1, 64)
        assert torch.equal(regression.fit(t[0], many).expect(density), 3 * torch.ones(2, 3, 64))
        context = regression.fit(t, 3 * ones).expect(density)
        assert torch.equal(context, torch.full((2, 3, 1), 3.0))
        weights = regression.observation_weights(density, t, ones)
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3))


def test_contexts_hardly_depend_on_the_basis() -> None:
    """20 draws of 40, 31 or 25 of 40 times: weights, errors of a wave, errors with noise of 0.5."""
    grid, found = torch.linspace(0, 1, 2001, dtype=DOUBLE), []
    density = TruncatedParabola(torch.linspace(0.1, 0.9, 9, dtype=DOUBLE), 0.23)
    share = density.prob(grid.unsqueeze(-1))
    truth = torch.sin(9 * grid) @ (share / share.sum(0))
    for basis in (None, *(GaussianRBF.grid(n, w) for n, w in ((32, 0.05), (16, 0.1), (64, 0.02)))):
        regression, totals, errors, noisy = RidgeRegression(basis), [], [], []
        for seed in range(20):
            generator = torch.Generator().manual_seed(seed)
            times = torch.rand(40, generator=generator, dtype=DOUBLE).sort().values
            noise = 0.5 * torch.randn(40, generator=generator, dtype=DOUBLE)
            for n in (40, 31, 25):
                t, wave = times[:n], torch.sin(9 * times[:n])
                weights = regression.observation_weights(density[None], t, wave.reshape(1, -1, 1))
                within = density.loc + 0.15 < t[-1]
                totals.append(weights.abs().sum(-1))
                errors.append((weights[0] @ wave - truth)[within].abs().mean())
                noisy.append((weights[0] @ (wave + noise[:n]) - truth)[within].square().mean())
        total = torch.cat(totals)
        # Functions as wide as a third of the windows cannot bend as sharply as a spline.
        coarse = basis is not None and len(basis) == 16
        assert total.mean() < (1.5 if coarse else 1.3) and total.max() < (3.5 if coarse else 2.5)
        assert torch.stack(errors).mean() < 0.045 and torch.stack(noisy).sqrt().mean() < 0.165
        found.append(torch.stack(errors).mean())
    assert max(found) - min(found) < 0.01


def test_smoothing_minimizes_gcv() -> None:
    """The score of the whole smoother on a grid of factors has its minimum at the one found."""
    t, values, _ = data(1, 40)
    values = torch.sin(9 * t).unsqueeze(-1) + 0.3 * values
    function = RidgeRegression(rbf(), smoothing="gcv").fit(t, values)

    def score(factor: float) -> float:
        found = RidgeRegression(rbf(), smoothing=factor).fit(t, values)
        trace = float(torch.func.jacrev(lambda v: fit_at(factor, v))(values[0, :, 0]).trace())
        residual = float((found(t) - values).square().sum())
        return residual / (40 - trace) ** 2

    def fit_at(factor: float, v: Tensor) -> Tensor:
        regression = RidgeRegression(rbf(), smoothing=factor, validate_args=False)
        return regression.fit(t, v.reshape(1, -1, 1))(t).flatten()

    best = float(function.penalty)
    # The constant is one degree of freedom more than those of the coefficients, within 2 %.
    assert 1e-5 < best < 1
    scores = [score(best * 1.2**k) for k in range(-8, 9)]
    assert min(scores) > 0.999 * score(best)


# The value function
def test_value_function_takes_vectors() -> None:
    t, values, _ = data(ndim=3)
    function = RidgeRegression(GaussianRBF.grid(8, 0.5, ndim=3)).fit(t, values)
    grid = torch.rand(3, 4, 5, 3, dtype=DOUBLE)
    found = function(grid)
    assert found.shape == (3, 4, 5, 2)
    expected = function.basis(grid[2, 1, 3]) @ function.coefficients[2] + function.constant[2]
    assert torch.allclose(found[2, 1, 3], expected, rtol=1e-12)
    assert torch.allclose(function(grid[:1])[2], function(grid[:1].expand(3, 4, 5, 3))[2])
    # One location for all and one for each differ in their number of dimensions.
    assert torch.allclose(function(grid[0, 0, 0])[1], function(grid[0, 0, 0].expand(3, 3))[1])
    assert torch.allclose(function(grid[:, 0, 0])[1], found[1, 0, 0])


# Sums over chunks and of pieces, gradients and transforms
class Attributes(Basis):
    """Waves whose frequencies are a tensor but no parameter, as in some wrappers."""

    def __init__(self, frequencies: Tensor) -> None:
        super().__init__()
        self.frequencies = frequencies

    def forward(self, t: Tensor) -> Tensor:
        return torch.sin(t.unsqueeze(-1) * self.frequencies)

    def __len__(self) -> int:
        return len(self.frequencies)


def splines(knots: Tensor) -> BSpline:
    basis = BSpline(knots.detach(), 3)
    basis.knots = knots
    return basis


GRADIENTS: dict[str, tuple[Callable[[Tensor], Basis], Tensor]] = {
    "parameters": (lambda x: GaussianRBF(x, 0.2), torch.linspace(0, 1, 3)),
    "attributes": (lambda x: Attributes(2 * x), torch.tensor([1.0, 2.5, 4.5])),
    "bands": (splines, torch.linspace(-2, 0.2, 16).exp() - 0.14),
}


@pytest.mark.parametrize("kind", GRADIENTS)
@pytest.mark.parametrize(("chunk_size", "shared", "masked"), [(None, False, True), (4, True, True)])
def test_gradients_reach_positions_values_and_basis(
    kind: str, chunk_size: int | None, shared: bool, masked: bool
) -> None:
    """All at once, in chunks twice, and each where the others have none."""
    build, numbers = GRADIENTS[kind]
    t, values, mask = data(2, 7, 3 if chunk_size is None else 1)
    t = t[:1] if shared else t

    def fit(t: Tensor, values: Tensor, numbers: Tensor) -> Tensor:
        regression = RidgeRegression(build(numbers), 0.1, chunk_size=chunk_size)
        return regression.fit(t, values, mask if masked else None)(t.square())

    inputs = (t.requires_grad_(), values.requires_grad_(), nn.Parameter(numbers.double()))
    assert gradcheck(fit, inputs)
    assert chunk_size is None or gradgradcheck(fit, inputs)
    due = torch.autograd.grad(fit(*inputs).square().sum(), inputs)
    for i, slope in enumerate(due):
        for j, x in enumerate(inputs):
            x.requires_grad_(i == j)
        (alone,) = torch.autograd.grad(fit(*inputs).square().sum(), inputs[i])
        torch.testing.assert_close(alone, slope, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("chunk_size", [50, None])
def test_backward_keeps_no_design(chunk_size: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regression_module, "_NUMBERS", 50 * (16 + 2))
    monkeypatch.setattr(regression_module, "_LEAST_ROWS", 1)
    t, values, mask = data(1, 400, 2)
    values.requires_grad_()
    t.requires_grad_()
    sizes: list[int] = []

    def keep(x: Tensor) -> Tensor:
        sizes.append(x.numel())
        return x

    centers, width = (nn.Parameter(x) for x in (torch.linspace(0, 1, 16), torch.tensor(0.2)))
    regression = RidgeRegression(GaussianRBF(centers, width).double(), chunk_size=chunk_size)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        regression.fit(t, values, mask)
    # Nothing with a row for each observation and a column for each of 16 functions.
    assert max(sizes) < 50 * 16


@pytest.mark.parametrize("basis", [rbf(), clamped(30)], ids=["gaussians", "splines"])
def test_padding_changes_neither_fit_nor_gradients(basis: Basis) -> None:
    t, values, _ = data(channels=len(basis))
    padding = torch.tensor([math.nan, math.inf, -1e30, 7.0], dtype=DOUBLE)

    def fit(*leaves: Tensor, mask: Tensor | None = None) -> tuple[Tensor, ...]:
        function = RidgeRegression(basis).fit(leaves[0], leaves[-1], mask)
        found = (function.coefficients, function.constant)
        total = sum(x.square().sum() for x in found)
        return *found, *torch.autograd.grad(total, [x for x in leaves if x.requires_grad])

    long_t = torch.cat([t, padding.expand(3, 4)], 1)
    long_values = torch.cat([values, padding[:, None].expand(3, 4, values.shape[-1])], 1)
    mask = (torch.arange(24) < 20).expand(3, 24)
    leaves, long = (t, values), (long_t, long_values)
    for moved in (leaves[1:] + long[1:], leaves[:1] + long[:1]):
        for x in moved:
            x.requires_grad_()
        short, padded = fit(*leaves), fit(*long, mask=mask)
        torch.testing.assert_close(padded[:2], short[:2], rtol=1e-10, atol=1e-12)
        for found, exact in zip(padded[2:], short[2:], strict=True):
            torch.testing.assert_close(found[:, :20], exact, rtol=1e-9, atol=1e-12)
            assert not found[:, 20:].any()


@pytest.mark.slow
def test_fits_compile_map_and_keep_the_checks() -> None:
    t, values, mask = data(2, 9, 1)
    regression = RidgeRegression(clamped(16, 1))

    def loss(t: Tensor, values: Tensor) -> Tensor:
        return regression.fit(t, values, mask)(t).square().sum()

    def grads(function: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        leaves = (t.clone().requires_grad_(), values.clone().requires_grad_())
        return torch.autograd.grad(function(*leaves), (*leaves, *regression.parameters()))

    expected = grads(loss)
    compiled = one_graph(loss)
    torch.testing.assert_close(grads(compiled), expected, rtol=1e-10, atol=1e-12)
    with pytest.raises(RuntimeError, match="positions must be finite"):
        compiled((t * math.nan).requires_grad_(), values.clone().requires_grad_())
    several = torch.stack([values, 2 * values, values])
    each = torch.func.vmap(torch.func.grad(loss, (0, 1)), in_dims=(None, 0))(t, several)
    torch.testing.assert_close([x[2] for x in each], expected[:2], rtol=1e-10, atol=1e-12)


def test_sums_of_pieces_add_up() -> None:
    t, values, _ = data()
    regression = RidgeRegression(clamped(30), 0.1)
    first, last = (
        regression.statistics(t[:, rows], values[:, rows]) for rows in (slice(12), slice(12, 20))
    )
    found = regression.solve(first.plus(last), DOUBLE).coefficients
    whole = regression.fit(t, values).coefficients
    torch.testing.assert_close(found, whole, rtol=1e-9, atol=1e-12)


# Gaussians reach 9.5 deviations beyond the outermost centers, 0 and 1.
@pytest.mark.parametrize(
    "basis",
    [
        BSpline([0.0, 0.0, 0.5, 1.0, 1.0], 1),
        GaussianRBF.grid(9, 0.05),
        GaussianRBF.grid(9, 0.05, ndim=2),
        GaussianRBF(CENTERS[:4, :2], covariance=torch.tensor([[0.0025, 0.0], [0.0, 0.01]])),
    ],
    ids=["splines", "line", "plane", "covariance"],
)
def test_positions_out_of_reach_are_warned_of_once(basis: Basis) -> None:
    t, values, mask = data(2, 8, ndim=2 if basis.event_shape else 1)
    t[:, 0], t[0, 4], t[1, 4].view(-1)[-1] = 9.0, -5.0, 3.0
    mask[:] = torch.arange(8) != 0
    regression = RidgeRegression(basis.double(), 1e-2)
    message = "0.14 of the positions lie where all functions of the basis are zero"
    with pytest.warns(UserWarning, match=message) as caught:
        found = regression.fit(t, values, mask).coefficients
        regression.fit(t, values, mask)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    inside = mask & (torch.arange(8) != 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exact = RidgeRegression(basis, 1e-2).fit(t, values, inside).coefficients
        RidgeRegression(Polynomial(2).double(), 1e-2).fit(
            100 * t[..., :8].reshape(2, -1)[:, :8], values
        )
    torch.testing.assert_close(found, exact, rtol=1e-8, atol=1e-10)


# Generalized cross-validation
Array = NDArray[np.float64]


def bumps(n: int = 12) -> GaussianRBF:
    return rbf(n, 1.2 / n)


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


@pytest.mark.parametrize(
    ("length", "noise", "shared"),
    [(40, 0.3, False), (40, 0.3, True), (40, 1e-3, False), (12, 0.3, False)],
)
def test_penalty_of_each_example_minimizes_gcv(length: int, noise: float, shared: bool) -> None:
    """The first example has three quarters of the observations, unless positions are shared."""
    t, values = wave(length, noise)
    mask = torch.arange(length) < torch.tensor([[3 * length // 4], [length]])
    fit = RidgeRegression(bumps(), "gcv").fit
    function = fit(t[0], values) if shared else fit(t, values, mask)
    for b in range(2):
        seen, places = (slice(None), t[0]) if shared else (mask[b], t[b, mask[b]])
        design, right = bumps()(places).numpy(), values[b, seen].numpy()
        trace = (design**2).sum()
        grid = np.linspace(math.log(1e-10 * trace), math.log(1e2 * trace), 60)
        i = int(np.argmin([gcv(design, right, math.exp(x)) for x in grid]))
        bounds = (grid[max(i - 1, 0)], grid[min(i + 1, 59)])
        best = minimize_scalar(
            lambda x, design=design, right=right: gcv(design, right, math.exp(x)),
            bounds=bounds,
            method="bounded",
            options={"xatol": 1e-9},
        )
        found = function.penalty[b].item()
        assert gcv(design, right, found) <= best.fun * (1 + 1e-8)
        assert found == pytest.approx(math.exp(best.x), rel=1e-4)
        alone = RidgeRegression(bumps(), found).fit(places, values[b : b + 1, seen])
        torch.testing.assert_close(
            function.coefficients[b], alone.coefficients[0], rtol=1e-8, atol=1e-10
        )


def test_derivatives_take_the_cross_validated_penalty_as_given() -> None:
    t, values = wave(9, 0.5)
    inputs = t.requires_grad_(), values.requires_grad_()
    found = RidgeRegression(bumps(4), "gcv").fit(*inputs)
    for b, penalty in enumerate(found.penalty.tolist()):
        fixed = RidgeRegression(bumps(4), penalty).fit(*inputs).coefficients[b].square().sum()
        expected = torch.autograd.grad(fixed, inputs)
        slopes = torch.autograd.grad(
            found.coefficients[b].square().sum(), inputs, retain_graph=True
        )
        torch.testing.assert_close(slopes, expected, rtol=1e-9, atol=1e-11)


def test_noise_is_smoothed_away_and_a_signal_kept() -> None:
    t, _ = wave(30, 0.0)
    # The sign alternates along t, so no smooth function helps.
    values = (1 - 2 * (t.argsort(-1).argsort(-1) % 2)).double().unsqueeze(-1)
    function = RidgeRegression(bumps(4), "gcv").fit(t, values)
    assert torch.allclose(function.penalty, 1e3 * bumps(4)(t).square().sum((-2, -1)))
    assert function.coefficients.abs().max() < 1e-2
    values = bumps(24)(t) @ torch.randn(2, 24, 2, dtype=DOUBLE)
    function = RidgeRegression(bumps(24), "gcv").fit(t, values)
    assert (function(t) - values).norm() < 1e-5 * values.norm()
    values = torch.zeros_like(values, requires_grad=True)
    function = RidgeRegression(bumps(), "gcv").fit(t, values)
    (slope,) = torch.autograd.grad(function.coefficients.sum(), values)
    assert not function.coefficients.any()
    assert function.penalty.isfinite().all() and slope.isfinite().all()


@pytest.mark.parametrize("count", [1, 3])
def test_rounding_decides_nothing_for_fewer_observations_than_functions(count: int) -> None:
    psi, at = rbf(6, 0.3), torch.linspace(0, 1, 5, dtype=DOUBLE)[None]
    draw = torch.Generator().manual_seed(0)
    for _ in range(20):
        t, h = (torch.rand(1, count, generator=draw, dtype=DOUBLE) for _ in range(2))
        # Apart from each other, since functions through close points are steep.
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
SPACE = data(ndim=3)[0]
FIT, FIT3 = RidgeRegression(rbf()).fit, RidgeRegression(Polynomial(1, ndim=3), 1e-2).fit
CUBIC = Polynomial(3).double()
SUMS = RidgeRegression(rbf()).statistics(T, VALUES)
NARROW = SUMS._replace(gram=SUMS.gram[..., :4])
FEW = torch.arange(20) < torch.tensor([[20], [3], [20]])
test_bad_arguments_are_named = refused(
    [
        (lambda: RidgeRegression(rbf(), -1.0), "penalty must be .gcv., or finite .* 0, got -1"),
        (lambda: RidgeRegression(3), "basis must be a Basis or None, got 3"),
        (lambda: RidgeRegression(smoothing=-1.0), "smoothing must be .gcv., or finite and at leas"),
        (lambda: RidgeRegression(smoothing=math.nan), "smoothing must be .gcv., .* got nan"),
        (lambda: RidgeRegression(rbf(), 0.1, smoothing=0.1), "penalty and smoothing must not both"),
        (lambda: RidgeRegression(CUBIC), r"domain must be given .* \(low, high\) .*got None"),
        (lambda: RidgeRegression(domain=(1.0, 0.0)), r"domain must be two finite .*\(1.0, 0.0\)"),
        (
            lambda: RidgeRegression(rbf(40), smoothing=0.0).fit(T[:, :5], VALUES[:, :5]),
            "smoothing must exceed the rounding errors .* got 0.0",
        ),
        (lambda: FIT(T, VALUES, MASK, key_padding_mask=~MASK), "mask, True where observations tak"),
        (lambda: RidgeRegression(rbf(), chunk_size=0), "chunk_size must be at least 1, got 0"),
        (lambda: FIT(T[0], VALUES[0]), r"values must have shape \(B, L, E\), .*got \(20, 2\)"),
        (lambda: FIT(T[:2], VALUES), r"positions must have shape \(3, 20\).*got \(2, 20\)"),
        (lambda: FIT(T, VALUES, MASK[:2]), r"mask must .*\(3, 20\) .*takes part, got \(2, 20\)"),
        (lambda: FIT(nan_at(T, 1, 4), VALUES), r"positions must be finite.*nan at index .1, 4."),
        (
            lambda: RidgeRegression(rbf(), chunk_size=5).fit(T, nan_at(VALUES, 1, 17, 1)),
            r"values must be finite.*got nan at index .1, 17, 1.",
        ),
        (lambda: FIT(T, VALUES, MASK & (torch.arange(3) != 1)[:, None]), "mask and weights must "),
        (lambda: FIT(T, VALUES, weights=T[:, :5]), r"weights must have shape \(3, 20\) or \(20,\)"),
        (lambda: FIT(T, VALUES, weights=-T), "weights must be finite and at least 0, got -"),
        (
            lambda: FIT(T, VALUES, weights=nan_at(T, 1, 4)),
            r"weights must be finite.* got nan .*1, 4",
        ),
        (lambda: FIT(T, VALUES, weights=0 * T), "mask and weights must let at least one"),
        (lambda: RidgeRegression(CUBIC, 0.0).fit(T, VALUES, FEW), r"must exceed .*got 0.0 .*\[1\]"),
        (
            lambda: RidgeRegression(CUBIC, 1e-300).fit(T[:, :2], VALUES[:, :2]),
            "must exceed the rounding",
        ),
        (lambda: FIT3(nan_at(SPACE, 1, 4, 2), VALUES), "positions must be .*at index .1, 4, 2."),
        (lambda: FIT3(SPACE, VALUES)(SPACE[..., :2]), r"t must .*\(3, ..., 3\).*got \(3, 20, 2\)"),
        (lambda: FIT(T, VALUES).expect(Normal(torch.zeros(4), 1.0)), r"density must.*got \(4,\)"),
        (lambda: ValueFunction(rbf(), T), r"coefficients must .* \(B, 12, E\), got \(3, 20\)"),
        (
            lambda: RidgeRegression(rbf()).observation_weights(
                Normal(torch.zeros(5), 1.0), T, VALUES
            ),
            r"density must have batch_shape \(3, ...\)",
        ),
        (lambda: SUMS.plus(SUMS, 1.5), "forgetting_factor must be from 0 to 1, got 1.5"),
        (lambda: RidgeRegression(rbf(5)).solve(SUMS), r"cross must .*5, E\), got \(3, 12"),
        (
            lambda: RidgeRegression(rbf()).solve(SUMS._replace(cross=SUMS.cross / 0)),
            "statistics.cross must be finite, got -?inf at index .0, 0, 0.",
        ),
        (lambda: RidgeRegression(rbf()).solve(NARROW), r"statistics.gram must .*got \(3, 12, 4\)"),
        (lambda: SUMS.plus(NARROW), r"other.gram must have shape .*got \(3, 12, 4\)"),
        (
            lambda: RidgeRegression(clamped(30), 0.0).fit(torch.full((20,), 0.5), VALUES),
            "penalty must exceed the rounding errors",
        ),
    ]
)


@pytest.mark.parametrize("options", [{"penalty": 0.1}, {"smoothing": 0.1}])
def test_weights_of_observations_are_fits_of_indicators(options: dict[str, float]) -> None:
    """Each observation counts as much as a fit of its indicator says, whatever the batch shape."""
    t, values = torch.rand(9, dtype=torch.float64), torch.randn(2, 9, 3, dtype=torch.float64)
    mask = torch.tensor([[True] * 9, [True] * 6 + [False] * 3])
    fit = RidgeRegression(GaussianRBF.grid(6, 0.1).double(), **options)
    for shape in ((1,), (2,), (2, 4, 3)):
        density = TruncatedParabola(torch.rand(shape, dtype=torch.float64), 0.3)
        for seen in (None, mask):
            weights = fit.observation_weights(density, t, values, seen)
            expected = fit.fit(t, torch.eye(9).double().expand(2, 9, 9), seen).expect(density)
            assert weights.shape == (2, *shape[1:], 9)
            assert torch.allclose(weights, expected, rtol=1e-9, atol=1e-12)
    padded = torch.where(mask, t, torch.nan).requires_grad_()
    weights = fit.observation_weights(density, padded, values, mask)
    assert torch.allclose(weights, expected)
    (slope,) = torch.autograd.grad(weights.square().sum(), padded)
    assert slope.isfinite().all() and not slope[~mask].any()


@pytest.mark.parametrize(
    ("basis", "options"),
    [
        (rbf(), {"smoothing": 0.1}),
        (rbf(), {"smoothing": "gcv"}),
        (rbf(), {"penalty": 0.1}),
        (clamped(30), {"penalty": 0.1}),
        (clamped(30), {"smoothing": 0.1}),
    ],
    ids=str,
)
def test_an_observation_of_weight_two_is_two(basis: Basis, options: Any) -> None:
    """In chunks, with padding that holds anything; contexts are sums with the weights."""
    t, values, _ = data()
    counts = torch.randint(1, 4, (20,))
    fit = RidgeRegression(basis, chunk_size=7, **options)
    twice = [x.repeat_interleave(counts, 1) for x in (t, values)]
    expected, found = fit.fit(*twice), fit.fit(t, values, weights=counts)
    torch.testing.assert_close(found(t), expected(t), rtol=1e-8, atol=1e-9)
    padding = torch.arange(25) >= 20
    junk = [
        torch.cat([x, torch.full_like(x[:, :5], math.nan)], 1)
        for x in (t, values, counts.double().expand(3, -1))
    ]
    again = fit.fit(*junk[:2], key_padding_mask=padding.expand(3, -1), weights=junk[2])
    torch.testing.assert_close(again(t), found(t), rtol=1e-9, atol=1e-11)
    shared = fit.fit(t[0], values, weights=counts)
    torch.testing.assert_close(shared(t[:1])[0], found(t[:1])[0], rtol=1e-9, atol=1e-11)
    density = TruncatedParabola(torch.rand(3, 4, dtype=DOUBLE), 0.2)
    weights = fit.observation_weights(density, t, values, weights=counts)
    context = found.expect(density)
    torch.testing.assert_close(weights @ values, context, rtol=1e-8, atol=1e-9)


def test_weights_are_differentiable() -> None:
    t, values, _ = data(2, 8, 1)
    fit = RidgeRegression(rbf(5, 0.3), smoothing=0.1)
    weights = torch.rand(2, 8, dtype=DOUBLE, requires_grad=True)
    assert gradcheck(lambda x: fit.fit(t, values, weights=x).coefficients, weights)
