"""Contexts: blocks of queries and quadrature against all expectations at once."""

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Distribution

import sparsefam as sf
from benchmarks.harness import allocated_megabytes
from sparsefam.attention import context
from sparsefam.attention.context import contexts
from sparsefam.bases import Basis, Fourier, GaussianRBF
from sparsefam.numerics import compiled

pytestmark = pytest.mark.parametrize("compiled_loops", ["0", "1"], indirect=True)

F64 = torch.float64
HEADS, CHANNELS = 2, 3


def line(kind: type[sf.SparseDistribution], *more: float) -> Callable[..., sf.SparseDistribution]:
    return lambda loc, width, logits: kind(loc[..., 0], 0.05 + width[..., 0].abs(), *more)


def plane(loc: Tensor, width: Tensor, logits: Tensor) -> sf.SparseDistribution:
    return sf.MultivariateBetaGaussian(loc, torch.diag_embed(0.1 + width.abs()), 1.5)


def learned(loc: Tensor, width: Tensor, logits: Tensor) -> sf.SparseDistribution:
    return sf.BetaGaussian(loc[..., 0], 0.1 + width[..., 0].abs(), 1.2 + logits[..., 0].square())


def mixture(loc: Tensor, width: Tensor, logits: Tensor) -> sf.SparseDistribution:
    return sf.Mixture(logits, sf.TruncatedParabola(loc, 0.1 + width.abs()))


RBF, WAVES = GaussianRBF.grid(6, [0.1, 0.25]), Fourier([1.0, 2.5, 4.0])
HILLS = GaussianRBF.grid(4, 0.3, ndim=2)
CASES: dict[str, tuple[Callable[..., sf.SparseDistribution], Basis]] = {
    "parabola": (line(sf.TruncatedParabola), RBF),
    "normal": (line(sf.Normal), RBF),
    "triangular, waves": (line(sf.Triangular), WAVES),
    "biweight": (line(sf.BetaGaussian, 1.5), RBF),
    "learned alpha": (learned, RBF),
    "plane": (plane, HILLS),
    "mixture": (mixture, RBF),
}


def draws(batch: int, queries: int, functions: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    shape = (batch, HEADS, queries, 2)
    parts = [torch.randn(shape, generator=draw, dtype=F64) for _ in range(3)]
    sizes = (batch, functions, HEADS, CHANNELS)
    return [*parts, torch.randn(sizes, generator=draw, dtype=F64)]


def at_once(density: sf.SparseDistribution, basis: Basis, coefficients: Tensor) -> Tensor:
    return torch.einsum("bhqn,bnhe->bqhe", density.expect(basis), coefficients)


@pytest.mark.parametrize(("batch", "queries"), [(5, 2), (2, 5)])
@pytest.mark.parametrize("name", CASES)
def test_blocks_make_the_same(
    name: str, batch: int, queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contexts, gradients in densities, coefficients and a learned basis."""
    build, basis = CASES[name]
    inputs = [x.requires_grad_() for x in draws(batch, queries, len(basis))]
    if isinstance(basis, GaussianRBF):
        widths = torch.nn.Parameter(basis.widths.detach().double())
        basis = GaussianRBF(basis.centers.double(), widths)
    else:
        basis = Fourier(torch.nn.Parameter(basis.frequencies.detach().double()))
    leaves = [*inputs, *basis.parameters()]
    found = []
    monkeypatch.setattr(context, "_PAIRS", 3 * HEADS * len(basis))
    for function in (contexts, at_once):
        value = function(build(*inputs[:3]), basis, inputs[3])
        upstream = torch.sin(torch.arange(value.numel(), dtype=F64)).reshape(value.shape)
        slopes = torch.autograd.grad(value, leaves, upstream, allow_unused=True)
        found.append([value, *slopes])
    for ours, due in zip(*found, strict=True):
        assert (ours is None) == (due is None)
        if due is not None:
            torch.testing.assert_close(ours, due, rtol=1e-10, atol=1e-12)


def test_second_derivatives(monkeypatch: pytest.MonkeyPatch) -> None:
    basis = GaussianRBF(RBF.centers.double(), RBF.widths.double())
    loc, width, _, coefficients = draws(1, 9, len(basis))
    inputs = [x.requires_grad_() for x in (loc, width, coefficients)]
    found = []
    monkeypatch.setattr(context, "_PAIRS", 2 * HEADS * len(basis))
    for function in (contexts, at_once):
        density = sf.TruncatedParabola(loc[..., 0], 0.3 + width[..., 0].square())
        value = function(density, basis, coefficients).square().sum()
        slopes = torch.autograd.grad(value, inputs, create_graph=True)
        found.append(torch.autograd.grad(sum(x.square().sum() for x in slopes), inputs))
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-12)


def loss_of(loc: Tensor, width: Tensor, coefficients: Tensor) -> Tensor:
    density = sf.TruncatedParabola(loc[..., 0], 0.1 + width[..., 0].square())
    return contexts(density, RBF, coefficients).square().sum()


@pytest.mark.parametrize("way", ["func", pytest.param("compile", marks=pytest.mark.slow)], ids=str)
def test_transformed_and_compiled_as_in_eager(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "_PAIRS", 50)
    loc, width, _, coefficients = (x.float() for x in draws(2, 11, len(RBF)))
    leaves = [x.requires_grad_() for x in (loc, width, coefficients)]
    due = torch.autograd.grad(loss_of(*leaves), leaves)
    if way == "func":
        found = torch.func.grad(loss_of, (0, 1, 2))(*leaves)
    else:
        monkeypatch.setattr(Distribution, "_validate_args", False)  # as compiling would
        compiled = torch.compile(loss_of, fullgraph=True, backend="aot_eager")
        found = torch.autograd.grad(compiled(*leaves), leaves)
    torch.testing.assert_close(found, due)


@pytest.mark.parametrize("queries", [5, 1500])
def test_centers_that_are_not_the_modules_own(
    queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With expectations of single functions and with tables, before loops are compiled."""
    monkeypatch.setattr(compiled, "_setting", "")
    monkeypatch.setattr(compiled, "_pairs_done", 0)
    basis, other = GaussianRBF.grid(8, 0.1), GaussianRBF.grid(8, 0.1, low=0.2)
    layer = sf.attention.ContinuousAttention(8, 2, basis, 1.5, batch_first=True)
    inputs = torch.randn(1, queries, 8), *torch.randn(2, 1, 20, 8), torch.rand(1, 20)
    given = {"regression.basis.centers": other.centers}
    found = torch.func.functional_call(layer, given, inputs)[0].square().sum()
    slopes = torch.autograd.grad(found, layer.score_proj.weight)
    layer.regression.basis = other
    due = torch.autograd.grad(layer(*inputs)[0].square().sum(), layer.score_proj.weight)
    torch.testing.assert_close(slopes, due, rtol=1e-4, atol=1e-3)


FINE = GaussianRBF.grid(64, 1.5 / 64)


def compiled_contexts(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Let quadrature take any number of queries, and list the tables that it makes."""
    made: list[Tensor] = []
    tabulate = context._tabulate

    def spied(*inputs: Any) -> Tensor:
        made.append(tabulate(*inputs))
        return made[-1]

    monkeypatch.setattr(compiled, "_setting", "1")
    monkeypatch.setattr(context, "_LEAST_QUERIES", 0.0)
    monkeypatch.setattr(context, "_tabulate", spied)
    return made


def apart(found: Tensor, due: Tensor) -> float:
    return float((found - due).detach().norm() / due.detach().norm())


@pytest.mark.parametrize("basis", [FINE, GaussianRBF.grid(40, [0.03, 0.2])], ids=["one", "two"])
@pytest.mark.parametrize(
    ("alpha", "wide"),
    [*((2.0, wide) for wide in (1e-3, 0.03, 0.6)), *((a, 0.1) for a in (torch.inf, 3, 1.7, 1.05))],
)
def test_quadrature_against_expectations_in_float64(
    alpha: float, wide: float, basis: GaussianRBF, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of supports inside and outside of the basis, on several threads."""
    made, draw = compiled_contexts(monkeypatch), torch.Generator().manual_seed(0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    loc = 1.6 * torch.rand(2, HEADS, 12, generator=draw) - 0.3
    scale = wide * torch.exp(0.4 * torch.randn(2, HEADS, 12, generator=draw))
    coefficients = torch.randn(2, len(basis), HEADS, CHANNELS, generator=draw)
    found = []
    for dtype, function in ((torch.float32, contexts), (F64, at_once)):
        leaves = [x.to(dtype).requires_grad_() for x in (loc, scale, coefficients)]
        widths = cast(Tensor, basis.widths).to(dtype)
        psi = GaussianRBF(basis.centers.to(dtype), widths)
        value = function(sf.BetaGaussian(leaves[0], leaves[1], alpha), psi, leaves[2])
        upstream = torch.sin(torch.arange(value.numel())).reshape(value.shape)
        found.append([value, *torch.autograd.grad(value, leaves, upstream.to(dtype))])
    assert len(made) == 1
    # Errors of contexts, and of gradients in locations, widths and coefficients.
    limits = (4e-7, 3e-6, 2e-5, 3e-7) if alpha == 2 else (5e-7, 5e-6, 2e-5, 1e-6)
    for ours, exact, limit in zip(*found, limits, strict=True):
        assert apart(ours, exact) < limit


@pytest.mark.parametrize(
    ("density", "basis", "by_quadrature"),
    [
        (line(sf.BetaGaussian, 2.0), FINE, True),
        (line(sf.BetaGaussian, 1.5), FINE, True),
        (mixture, FINE, True),
        (learned, FINE, False),
        (line(sf.Triangular), FINE, False),
        (line(sf.TruncatedParabola), GaussianRBF(nn.Parameter(FINE.centers), FINE.widths), False),
        (line(sf.TruncatedParabola), GaussianRBF.grid(20, [1e-4, 1.0]), False),
    ],
)
def test_which_contexts_are_quadratures(
    density: Callable[..., sf.SparseDistribution],
    basis: Basis,
    by_quadrature: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = compiled_contexts(monkeypatch)
    *inputs, coefficients = (x.float() for x in draws(1, 9, len(basis)))
    p = density(*inputs)
    assert apart(contexts(p, basis, coefficients), at_once(p, basis, coefficients)) < 2e-6
    assert bool(made) == by_quadrature


def test_derivatives_that_quadrature_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Second ones, and many first ones at once."""
    made = compiled_contexts(monkeypatch)
    loc, width, _, coefficients = (x.float() for x in draws(1, 5, len(FINE)))
    loc, scale = loc[..., 0].requires_grad_(), 0.1 + width[..., 0].square()
    ones, found = torch.eye(5), []
    for function in (contexts, at_once):
        each = function(sf.TruncatedParabola(loc, scale), FINE, coefficients).sum((0, 2, 3))
        (many,) = torch.autograd.grad(each, loc, ones, is_grads_batched=True, retain_graph=True)
        (one,) = torch.autograd.grad(each.square().sum(), loc, create_graph=True)
        found.append([many, one, *torch.autograd.grad(one.square().sum(), loc)])
    assert len(made) == 1
    assert max(apart(a, b) for a, b in zip(*found, strict=True)) < 2e-5


def test_only_nan_parameters_have_nan_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    made = compiled_contexts(monkeypatch)
    loc, scale = torch.tensor([torch.nan, 0.5, 0.5]), torch.tensor([0.1, 0.1, torch.nan])
    density = sf.TruncatedParabola(*(x[None, None] for x in (loc, scale)), validate_args=False)
    found = contexts(density, FINE, torch.ones(1, 64, 1, 2))
    assert len(made) == 1
    assert found.isnan().all(-1).flatten().tolist() == [True, False, True]


@pytest.mark.parametrize("blocks", [False, True])
def test_memory_does_not_grow_with_the_pairs(blocks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its peak, besides contexts and gradients: a fraction of the expectations."""
    compiled_contexts(monkeypatch)
    monkeypatch.setattr(compiled, "_setting", "0" if blocks else "1")
    basis, sizes = GaussianRBF.grid(128, 1.5 / 128), []
    for queries in (8192, 16_384):
        loc = torch.rand(1, 1, queries, requires_grad=True)
        coefficients = torch.randn(1, 128, 1, 32, requires_grad=True)

        def call() -> list[Tensor]:
            value = contexts(sf.TruncatedParabola(loc, 0.2), basis, coefficients)  # noqa: B023
            slopes = torch.autograd.grad(value.sum(), [loc, coefficients])  # noqa: B023
            return [value.detach(), *slopes]

        sizes.append(allocated_megabytes(call))
    assert sizes[1] < sizes[0] + 1
    assert blocks or sizes[1] < queries * len(basis) * 4 / 1e6 / 2


@pytest.mark.parametrize("scale", [0.01, 0.1, 1.0, torch.nan])
def test_what_is_not_a_number_stays_so(scale: float) -> None:
    """Of some densities of many: also where only functions nearby are evaluated."""
    basis = GaussianRBF.grid(64, 1.5 / 64)
    loc, scales = torch.tensor([torch.nan, 0.5]), torch.tensor([scale, 0.02])
    found = sf.TruncatedParabola(loc, scales, validate_args=False).expect(basis)
    assert found[0].isnan().all()
    assert found[1].isfinite().all()


def test_parameters_that_are_not_the_modules_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backward runs when the module has its own again."""
    basis = GaussianRBF(nn.Parameter(torch.linspace(0, 1, 16)), nn.Parameter(torch.tensor(0.1)))
    layer = sf.attention.ContinuousAttention(8, 2, basis, 1.5, batch_first=True, dtype=F64)
    query, sequence = torch.randn(2, 40, 8, dtype=F64), torch.randn(2, 20, 8, dtype=F64)
    inputs = (query, sequence, sequence, torch.rand(2, 20, dtype=F64))
    given = {name: (1.3 * x).detach().requires_grad_() for name, x in layer.named_parameters()}
    found = []
    for pairs in (2**20, 100):
        monkeypatch.setattr(context, "_PAIRS", pairs)
        output = torch.func.functional_call(layer, given, inputs)[0]
        found.append(torch.autograd.grad(output.square().sum(), list(given.values())))
    torch.testing.assert_close(found[1], found[0])
