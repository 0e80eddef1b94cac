"""Expectations of Gaussians: against references, by one contour for each row, and by waves."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from battery import DOUBLE, SINGLE, apart, of_dtype, one_graph
from torch import Tensor, nn

import sparsefam as sf
from benchmarks import accuracy
from benchmarks.reference import ANY_ALPHA, CLOSED, Family
from sparsefam._choice import Mode, means
from sparsefam._expectations import rules, waves
from sparsefam._numerics import fourier, gaussian_contour, shared_contour
from sparsefam._numerics.gaussian_contour import gaussians_by_pairs
from sparsefam.bases import GaussianRBF


# Values and derivatives in both types, by some settings of `make accuracy`
@pytest.fixture
def no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare with limits alone: errors are recorded of other settings."""
    monkeypatch.setattr(accuracy, "RECORD", Path("none"))


def by_contours(*arguments: Any) -> Tensor:
    return gaussians_by_pairs(arguments[:4], arguments[4])


def by_one_contour(*arguments: Any) -> Tensor:
    """By the contour of a row in float32, by one for each pair in float64."""
    inputs, exponent = arguments[:4], arguments[4]
    is_single = inputs[0].dtype == SINGLE
    function = shared_contour.gaussians_by_shared_contour if is_single else gaussians_by_pairs
    return function(inputs, exponent)


def by_pairs(p: sf.SparseDistribution, psi: GaussianRBF) -> Tensor:
    return means(p, psi, Mode(by_pairs=True))


@pytest.mark.parametrize("family", [*CLOSED, *ANY_ALPHA], ids=lambda family: family.name)
def test_on_the_line(family: Family, no_record: None) -> None:
    """Half-widths of 1e-4 to 3e3 widths."""
    cases = accuracy.line_cases([1e-4, 1e-2, 1.0, 1e2, 3e3], 0.37, 0.05)
    assert accuracy.line_table("", [family], cases).failures == []


@pytest.mark.parametrize(
    ("dim", "alpha"),
    [
        *((1, alpha) for alpha in (1.001, 1.05, 1.7, 21.0, math.inf)),
        *((2, 1.5), (2, 3.0), (3, 1.05), (3, math.inf), (8, 1.05), (8, math.inf)),
    ],
)
def test_in_many_dimensions(dim: int, alpha: float, no_record: None) -> None:
    """Round and thin supports, and functions with covariances; also derivatives in alpha."""
    alpha = float(np.float32(alpha))
    assert accuracy.ball_table([dim], [alpha], [1e-2, 1.0, 1e2]).failures == []


# Contours of pairs
@pytest.mark.parametrize("double", [0, 3])
def test_the_widest_input_says_what_is_computed(double: int) -> None:
    tril = torch.stack([0.5 * torch.eye(2), torch.tensor([[0.4, 0.0], [-0.3, 0.7]])])
    m = torch.tensor([0.4, 1.7])
    inputs = [0.3 * torch.randn(2, 2), tril, 0.5 * torch.randn(3, 2), 0.25 + torch.rand(3), m]
    inputs = [(x.double() if i == double else x).requires_grad_() for i, x in enumerate(inputs)]
    exact_inputs = [x.detach().double().requires_grad_() for x in inputs]
    value, exact_value = (by_contours(*x) for x in (inputs, exact_inputs))
    assert torch.equal(value, exact_value)
    slopes = torch.autograd.grad(value.square().sum(), inputs)
    exact = torch.autograd.grad(exact_value.square().sum(), exact_inputs)
    for x, slope, exact_slope in zip(inputs, slopes, exact, strict=True):
        assert slope.dtype == x.dtype
        torch.testing.assert_close(slope, exact_slope.to(x.dtype), rtol=1e-6, atol=0)


def hard_pairs(dtype: torch.dtype) -> tuple[Tensor, ...]:
    """A support 1e4 times as long as thin, and narrow Gaussians around it: loc to spread."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=DOUBLE, generator=generator)

    axes = torch.linalg.qr(draw(3, 3))[0] * torch.tensor([1e2, 1.0, 1e-2])
    factor = torch.linalg.cholesky(axes @ axes.mT)
    u = torch.nn.functional.normalize(draw(2000, 3), dim=-1)
    u = u * (1 + 0.6 * torch.rand(2000, 1, dtype=DOUBLE, generator=generator))
    inputs = (torch.zeros(3), factor, u @ factor.mT, torch.tensor(1e-3))
    return tuple(x.to(dtype) for x in inputs)


@pytest.mark.parametrize("m", [0.6, 5.0])
@pytest.mark.parametrize(("dtype", "limit"), [(SINGLE, 1e-4), (DOUBLE, 1e-7)])
def test_a_few_steps_find_the_saddle_of_hard_pairs(
    m: float, dtype: torch.dtype, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = hard_pairs(dtype)
    found = by_contours(*inputs, m)
    peak = sf.MultivariateBetaGaussian(*inputs[:2], 1 + 1 / m).log_prob(inputs[0]).exp()
    assert ((found >= 0) & (found <= peak)).all()
    monkeypatch.setattr("sparsefam._numerics.gaussian_contour._steps_for", lambda dim: 40)
    exact = by_contours(*inputs, m)
    # Float32 rounds exponents near -50, by an amount that depends on the processor.
    least = 1e-24 if dtype == SINGLE else 1e-30
    torch.testing.assert_close(found, exact, rtol=limit, atol=least * peak.item())


# One contour for each row, in float32
def supports(rows: int, dim: int, low: float, high: float) -> Tensor:
    """Factors of ellipsoids with half-axes even on a log scale, turned in any direction."""
    draw = torch.Generator().manual_seed(dim)
    axes = low * (high / low) ** torch.rand(rows, dim, generator=draw, dtype=DOUBLE)
    turns = torch.linalg.qr(torch.randn(rows, dim, dim, generator=draw, dtype=DOUBLE))[0]
    upper = torch.linalg.qr((turns * axes.unsqueeze(-2)).mT)[1]
    return (upper.mT * upper.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)).float()


def scene(rows: int, dim: int, low: float, high: float, extent: float = 1.0) -> tuple[Tensor, ...]:
    """loc, scale_tril, centers of width 0.5 around them, and a gradient from above."""
    draw = torch.Generator().manual_seed(0)
    loc = 0.2 * torch.randn(rows, dim, generator=draw)
    centers = extent * (2 * torch.rand(60**dim if dim < 3 else 800, dim, generator=draw) - 1)
    centers = torch.cat([centers[:400], torch.zeros(1, dim)])
    above = torch.randn(rows, len(centers), generator=draw)
    return loc, 0.5 * supports(rows, dim, low, high), centers, above


def found(inputs: tuple[Tensor, ...], exponent: float, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Values and gradients; in float64 by contours of pairs."""
    loc, tril = (x.to(dtype).requires_grad_() for x in inputs[:2])
    spread = torch.tensor(0.5, dtype=dtype).expand(len(inputs[2]))
    values = by_one_contour(loc, tril, inputs[2].to(dtype), spread, exponent)
    slopes = torch.autograd.grad(values, (loc, tril), inputs[3].to(dtype))
    return values.detach().double(), *(x.double() for x in slopes)


def relative(x: Tensor, y: Tensor) -> float:
    """The largest norm-wise error of a row."""
    return ((x - y).flatten(1).norm(dim=1) / y.flatten(1).norm(dim=1)).max().item()


SHAPES = [
    *((1e-3, 8.0, 1.0), (0.1, 16.0, 3.0), (16.0, 24.0, 1.0), (1.0, 71.9, 1.0), (1.0, 71.9, 3.0)),
    *((1.0, 71.9, 25.0), (1e-3, 16.0, 12.5)),
]


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize(("low", "high", "exponent"), SHAPES)
def test_values_and_gradients(
    dim: int, low: float, high: float, exponent: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = scene(40, dim, low, high, extent=max(2.0, 0.3 * high))
    truth = found(inputs, exponent, DOUBLE)
    monkeypatch.setattr(gaussian_contour, "_outputs", None)
    monkeypatch.setattr(shared_contour, "_LEAST_FRACTION", 1e-3)
    value, by_loc, by_tril = found(inputs, exponent, SINGLE)
    assert relative(value, truth[0]) < 2e-6
    for x, y in ((by_loc, truth[1]), (by_tril, truth[2])):
        assert (x - y).norm() < 5e-6 * y.norm()


def test_rows_without_a_near_center_take_contours_of_pairs() -> None:
    """A support as long as hundreds of widths, and some far from every center, among others."""
    inputs = scene(9, 2, 1.0, 8.0)
    inputs[1][2] *= 400
    inputs[0][4:8] += torch.tensor([4.0, 5.0, 6.2, 40.0]).unsqueeze(-1)
    near = [x for x in range(9) if x != 7]
    for x, y in zip(found(inputs, 1.0, SINGLE), found(inputs, 1.0, DOUBLE), strict=True):
        assert relative(x[near], y[near]) < 2e-5
        assert not x[7].any()
    rows = (*inputs[:3], torch.tensor(0.5).expand(len(inputs[2])))
    served = shared_contour.integrate_rows(rows, 1.0, False)[3]
    assert served.tolist() == [k not in (2, 4, 5, 6, 7) for k in range(9)]


@pytest.mark.parametrize("dim", [2, 3])
def test_blocks_and_left_out_centers_change_nothing(
    dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = scene(23, dim, 0.1, 16.0, extent=9.0)
    inputs[1][5] *= 400  # a row that the contours do not serve
    whole = found(inputs, 1.0, SINGLE)
    monkeypatch.setattr(shared_contour, "_BLOCK", 2**13)
    for x, y in zip(found(inputs, 1.0, SINGLE), whole, strict=True):
        assert (x - y).norm() < 1e-6 * y.norm()


def test_every_mode_has_the_same_numbers() -> None:
    """Compiled graphs, transforms, and devices, on which no value may be read."""
    loc, tril, centers, above = scene(6, 2, 0.1, 8.0)
    tril[3] *= 400
    spread = torch.tensor(0.5).expand(len(centers))

    def values(loc: Tensor, tril: Tensor) -> Tensor:
        return by_one_contour(loc, tril, centers, spread, 1.0)

    def slopes(loc: Tensor, tril: Tensor, above: Tensor) -> tuple[Tensor, ...]:
        leaves = loc.detach().requires_grad_(), tril.detach().requires_grad_()
        return torch.autograd.grad(compiled(*leaves), leaves, above)

    value, each = values(loc, tril), torch.vmap(values)(loc.unsqueeze(1), tril.unsqueeze(1))
    torch.testing.assert_close(each.squeeze(1), value, rtol=0, atol=1e-6 * value.max().item())
    compiled = one_graph(values)
    assert torch.equal(compiled(loc, tril), value)
    _, pull = torch.func.vjp(values, loc, tril)
    expected = found((loc, tril, centers, above), 1.0, SINGLE)[1:]
    for some in (slopes(loc, tril, above), pull(above)):
        for x, y in zip(some, expected, strict=True):
            torch.testing.assert_close(x.double(), y, rtol=0, atol=1e-6 * y.abs().max().item())
    there = [torch.empty_like(x, device="meta") for x in (loc, tril, centers, spread)]
    moved = by_one_contour(there[0].requires_grad_(), *there[1:], 1.0)
    moved.sum().backward()
    assert moved.shape == value.shape and there[0].grad.shape == loc.shape


def test_widths_that_are_unlike_take_contours_of_pairs() -> None:
    loc, tril, centers, _ = scene(4, 2, 0.1, 8.0)
    spread = torch.linspace(0.4, 0.6, len(centers))
    truth = by_one_contour(*(x.double() for x in (loc, tril, centers, spread)), 1.0)
    for function in (
        by_one_contour,
        torch.vmap(by_one_contour, (0, 0, None, None, None)),
    ):
        value = function(loc, tril, centers, spread, 1.0)
        assert relative(value.double(), truth) < 2e-6


def test_second_derivatives_are_those_of_pairs() -> None:
    inputs = scene(3, 2, 1.0, 8.0)

    def curvature(dtype: torch.dtype) -> Tensor:
        loc = inputs[0].to(dtype).requires_grad_()
        spread = torch.tensor(0.5, dtype=dtype).expand(len(inputs[2]))
        values = by_one_contour(loc, inputs[1].to(dtype), inputs[2].to(dtype), spread, 1.0)
        slope = torch.autograd.grad(values, loc, inputs[3].to(dtype), create_graph=True)[0]
        return torch.autograd.grad(slope.square().sum(), loc)[0]

    assert relative(curvature(SINGLE).double(), curvature(DOUBLE)) < 2e-5


def test_gradients_of_many_outputs_at_once() -> None:
    loc, tril, centers, _ = scene(3, 2, 1.0, 8.0)
    loc.requires_grad_()
    spread = torch.tensor(0.5).expand(len(centers))
    total = by_one_contour(loc, tril, centers, spread, 1.0).sum(-1)
    (batched,) = torch.autograd.grad(
        total, loc, torch.eye(3), is_grads_batched=True, retain_graph=True
    )
    mapped = torch.vmap(lambda grad: torch.autograd.grad(total, loc, grad, retain_graph=True)[0])
    each = torch.stack([torch.autograd.grad(x, loc, retain_graph=True)[0] for x in total])
    for found in (batched, mapped(torch.eye(3))):
        torch.testing.assert_close(found, each, rtol=1e-5, atol=1e-5)


# Waves
FAMILIES: dict[str, Callable[..., Any]] = {
    "parabola": sf.TruncatedParabola,
    "1.7": lambda loc, scale: sf.BetaGaussian(loc, scale, 1.7),
    "1.02": lambda loc, scale: sf.BetaGaussian(loc, scale, 1.02),
    "5": lambda loc, scale: sf.BetaGaussian(loc, scale, 5.0),
    "uniform": lambda loc, scale: sf.BetaGaussian(loc, scale, math.inf),
    "triangular": sf.Triangular,
    "beta-Laplace": lambda loc, scale: sf.BetaLaplace(loc, scale, 1.6),
    "Laplace": sf.Laplace,
}
# Relative errors of values and of derivatives.
LIMITS = {SINGLE: (2e-6, 2e-5), DOUBLE: (1e-11, 1e-9)}
BASIS = GaussianRBF.grid(32, 0.05)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Take waves for any number of densities, and list which of these did not fit them."""
    made: list[Tensor] = []
    times = waves._Rows.times

    def spied(self: Any, *inputs: Any) -> Tensor:
        made.append(~self.fits)
        return times(self, *inputs)

    monkeypatch.setattr(rules, "_LEAST_PAIRS", 0)
    monkeypatch.setattr(rules, "_CELLS_PER_DENSITY", 1000)
    monkeypatch.setattr(waves._Rows, "times", spied)
    return made


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_expectations_against_pairs_in_float64(
    name: str, dtype: torch.dtype, rows: list[Tensor]
) -> None:
    """Of narrow to very wide densities, inside and outside of the basis."""
    draw = torch.Generator().manual_seed(0)
    sizes = (1e-4, 0.01, 0.1, 0.5, 1.5) if "Laplace" in name else (1e-4, 0.01, 0.1, 0.5, 1.5, 50.0)
    for size in sizes:
        loc = 1.4 * torch.rand(60, generator=draw) - 0.2
        scale = size * (0.5 + torch.rand(60, generator=draw))
        found = []
        for kind in (dtype, DOUBLE):
            leaves = [x.to(kind).requires_grad_() for x in (loc, scale)]
            p, psi = FAMILIES[name](*leaves), of_dtype(BASIS, kind)
            if kind == DOUBLE:
                psi = of_dtype(of_dtype(BASIS, dtype), DOUBLE)
            value = p.expect(psi) if not found else by_pairs(p, psi)
            upstream = torch.sin(torch.arange(value.numel())).reshape(value.shape).to(kind)
            found.append([value, *torch.autograd.grad(value, leaves, upstream)])
        for i, (ours, due) in enumerate(zip(*found, strict=True)):
            if due.norm() > 1e-12 * found[1][0].norm():
                assert apart(ours, due) < LIMITS[dtype][i > 0], (size, i)
    assert len(rows) == len(sizes)


@pytest.mark.parametrize("kind", ["number", "one", "four"])
def test_first_and_second_derivatives(kind: str, rows: list[Tensor]) -> None:
    """In densities, alpha, centers and widths."""
    draw = torch.Generator().manual_seed(0)
    loc, scale = torch.rand(2, 4, 6, generator=draw, dtype=DOUBLE).unbind()
    alphas = {
        "one": torch.tensor(1.6, dtype=DOUBLE),
        "four": torch.tensor([[1.3], [1.8], [2.5], [1.05]]),
    }
    found = []
    for way in (sf.BetaGaussian.expect, by_pairs):
        centers, widths = (nn.Parameter(x.double()) for x in (BASIS.centers, BASIS.widths))
        leaves = [x.clone().requires_grad_() for x in (loc, 0.05 + 0.5 * scale)]
        alpha: Any = 1.5
        if kind in alphas:
            leaves.append(alphas[kind].double().requires_grad_())
            alpha = leaves[-1]
        value = way(sf.BetaGaussian(leaves[0], leaves[1], alpha), GaussianRBF(centers, widths))
        leaves += [centers, widths]
        upstream = torch.sin(torch.arange(value.numel(), dtype=DOUBLE)).reshape(value.shape)
        slopes = torch.autograd.grad(value, leaves, upstream, create_graph=True)
        second = torch.autograd.grad(sum(x.square().sum() for x in slopes), leaves)
        found.append([value, *slopes, *second])
    assert len(rows) == 1
    for ours, due in zip(*found, strict=True):
        assert apart(ours, due) < 1e-9


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_same_bits_whatever_was_computed_before(count: int) -> None:
    """Twice, and of the same rows beside others."""
    loc, scale = torch.rand(2, 300)
    p = sf.BetaGaussian(loc, 0.1 + scale, 1.5)
    first = p.expect(BASIS)
    for _ in range(count):
        sf.BetaGaussian(loc.double(), 0.3, 1.7).expect(of_dtype(BASIS, DOUBLE))
    assert torch.equal(p.expect(BASIS), first)


def test_transforms_and_forward_mode(rows: list[Tensor]) -> None:
    psi = of_dtype(BASIS, DOUBLE)

    def means(loc: Tensor, scale: Tensor) -> Tensor:
        value: Tensor = sf.TruncatedParabola(loc, scale).expect(psi)
        return value

    loc, scale = torch.rand(2, 3, dtype=DOUBLE)
    due = torch.autograd.functional.jacobian(means, (loc, scale))
    for way in (torch.func.jacrev, torch.func.jacfwd):
        torch.testing.assert_close(way(means, (0, 1))(loc, scale), due, rtol=1e-9, atol=1e-10)
    each = torch.vmap(means)(loc, scale)
    torch.testing.assert_close(each, means(loc, scale), rtol=1e-11, atol=1e-12)


def test_too_narrow_functions_are_left_to_pairs(rows: list[Tensor]) -> None:
    """Their waves would be too many for the memory."""
    p = sf.TruncatedParabola(torch.rand(100), 0.5)
    value = p.expect(GaussianRBF(torch.linspace(0, 1, 50), torch.full((50,), 1e-6)))
    assert not rows
    assert value.isfinite().all()


def test_the_extent_of_a_basis_follows_it() -> None:
    basis = GaussianRBF.grid(4, 0.5, low=1.0, high=3.0)
    assert basis.extent() == (1.0, 3.0, 0.5, 0.5)
    other = GaussianRBF.grid(4, 0.25)
    other.load_state_dict(basis.state_dict())
    moved = other.double()
    assert moved._last_read is not None
    assert moved._last_read[0] is moved.centers
    assert moved._last_read[2] == moved.extent() == basis.extent()
    assert GaussianRBF(nn.Parameter(basis.centers), 0.5)._last_read is None


@pytest.mark.parametrize("law", fourier.LOG_DENSITIES)
def test_tables_hold_characteristic_functions(law: str) -> None:
    waves = fourier.waves_of((0.0, 1.0, 0.1, 0.1), DOUBLE)
    reach = 40.0 if law == "laplace" else 1.0
    half = torch.rand(1, 9, dtype=DOUBLE) + 0.2
    tables = fourier.law_table(law, 1.0, reach, waves, half)
    cells = fourier._Cells.of(half, None, waves)
    found = fourier._characteristic(half, fourier._sums(tables, *cells.terms(tables)))
    again = fourier._characteristic(half, cells.differentiable_sums(tables))
    torch.testing.assert_close(found, again, rtol=0, atol=1e-14)
    v = half.unsqueeze(-1) * waves.frequencies(half) / reach
    due = {
        "ball": 3 * (v.sin() - v * v.cos()) / v**3,
        "cone": torch.sinc(v / (2 * math.pi)).square(),
        "laplace": 1 / (1 + v.square()),
    }[law]
    torch.testing.assert_close(found[..., 1:], due[..., 1:], rtol=0, atol=2e-12)
    assert (found[..., 0] == 1).all()
