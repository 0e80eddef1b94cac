"""Expectations by Fourier features: accuracy, derivatives, and densities that need another way."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from battery import DOUBLE, apart, of_dtype
from torch import Tensor, nn

import sparsefam as sf
from sparsefam._choice import Mode, means
from sparsefam._expectations import rules, waves
from sparsefam._numerics import fourier
from sparsefam.bases import GaussianRBF

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
LIMITS = {torch.float32: (2e-6, 2e-5), DOUBLE: (1e-11, 1e-9)}
BASIS = GaussianRBF.grid(32, 0.05)


def by_pairs(p: sf.SparseDistribution, psi: GaussianRBF) -> Tensor:
    return means(p, psi, Mode(by_pairs=True))


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
    assert moved._known is not None
    assert moved._known[0] is moved.centers
    assert moved._known[2] == moved.extent() == basis.extent()
    assert GaussianRBF(nn.Parameter(basis.centers), 0.5)._known is None


@pytest.mark.parametrize("law", fourier.LOG_DENSITIES)
def test_tables_hold_characteristic_functions(law: str) -> None:
    waves = fourier.waves_of((0.0, 1.0, 0.1, 0.1), DOUBLE)
    reach = 40.0 if law == "laplace" else 1.0
    half = torch.rand(1, 9, dtype=DOUBLE) + 0.2
    tables = fourier.law_table(law, 1.0, reach, waves, half)
    cells = fourier._Cells.of(half, None, waves)
    found = fourier._characteristic(half, cells.sums(tables))
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
