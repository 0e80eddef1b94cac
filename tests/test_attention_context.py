"""Contexts: waves and blocks of queries against all expectations at once."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from battery import DOUBLE, apart, of_dtype, one_graph
from torch import Tensor, nn

import sparsefam as sf
from benchmarks.allocation import allocated_megabytes
from sparsefam import _choice
from sparsefam._choice import Mode
from sparsefam._expectations import waves
from sparsefam.bases import Basis, Fourier, GaussianRBF

HEADS, CHANNELS = 2, 3


def contexts(
    p: Any, psi: Basis, coefficients: Tensor, centers: tuple[float, float] | None = None
) -> Tensor:
    """Contexts (B, Lq, heads, E), with coefficients (B, N, heads, E)."""
    by_head = coefficients.transpose(1, 2)
    return _choice.contexts(p, psi, by_head, Mode(centers=centers)).transpose(1, 2)


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
    parts = [torch.randn(shape, generator=draw, dtype=DOUBLE) for _ in range(3)]
    sizes = (batch, functions, HEADS, CHANNELS)
    return [*parts, torch.randn(sizes, generator=draw, dtype=DOUBLE)]


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
    monkeypatch.setattr(_choice, "_PAIRS", 3 * HEADS * len(basis))
    for function in (contexts, at_once):
        value = function(build(*inputs[:3]), basis, inputs[3])
        upstream = torch.sin(torch.arange(value.numel(), dtype=DOUBLE)).reshape(value.shape)
        slopes = torch.autograd.grad(value, leaves, upstream, allow_unused=True)
        found.append([value, *slopes])
    for ours, due in zip(*found, strict=True):
        assert (ours is None) == (due is None)
        if due is not None:
            torch.testing.assert_close(ours, due, rtol=1e-10, atol=1e-12)


def test_second_derivatives(monkeypatch: pytest.MonkeyPatch) -> None:
    basis = of_dtype(RBF, DOUBLE)
    loc, width, _, coefficients = draws(1, 9, len(basis))
    inputs = [x.requires_grad_() for x in (loc, width, coefficients)]
    found = []
    monkeypatch.setattr(_choice, "_PAIRS", 2 * HEADS * len(basis))
    for function in (contexts, at_once):
        density = sf.TruncatedParabola(loc[..., 0], 0.3 + width[..., 0].square())
        value = function(density, basis, coefficients).square().sum()
        slopes = torch.autograd.grad(value, inputs, create_graph=True)
        found.append(torch.autograd.grad(sum(x.square().sum() for x in slopes), inputs))
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_compiled_as_in_eager(monkeypatch: pytest.MonkeyPatch, unchecked: None) -> None:
    monkeypatch.setattr(_choice, "_PAIRS", 50)
    loc, width, _, coefficients = (x.float() for x in draws(2, 11, len(RBF)))
    leaves = [x.requires_grad_() for x in (loc, width, coefficients)]

    def loss(loc: Tensor, width: Tensor, coefficients: Tensor) -> Tensor:
        density = sf.TruncatedParabola(loc[..., 0], 0.1 + width[..., 0].square())
        return contexts(density, RBF, coefficients).square().sum()

    due, found = (torch.autograd.grad(f(*leaves), leaves) for f in (loss, one_graph(loss)))
    assert all(apart(a, b) < 2e-6 for a, b in zip(found, due, strict=True))


@pytest.mark.parametrize("queries", [5, 1500])
def test_centers_that_are_not_the_modules_own(
    queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By expectations of single functions, which are in blocks, and by waves."""
    monkeypatch.setattr(_choice, "_PAIRS", 200)
    basis, other = GaussianRBF.grid(8, 0.1), GaussianRBF.grid(8, 0.1, low=0.2)
    layer = sf.attention.ContinuousAttention(
        8, 2, sf.attention.RidgeRegression(basis), 1.5, batch_first=True
    )
    inputs = torch.randn(1, queries, 8), *torch.randn(2, 1, 20, 8), torch.rand(1, 20)
    given = {"regression.basis.centers": other.centers}
    found = torch.func.functional_call(layer, given, inputs)[0].square().sum()
    slopes = torch.autograd.grad(found, layer.score_proj.weight)
    layer.regression.basis = other
    due = torch.autograd.grad(layer(*inputs)[0].square().sum(), layer.score_proj.weight)
    torch.testing.assert_close(slopes, due, rtol=1e-4, atol=1e-3)


FINE = GaussianRBF.grid(64, 1.5 / 64)


@pytest.mark.parametrize("basis", [FINE, GaussianRBF.grid(40, [0.03, 0.2])], ids=["one", "two"])
@pytest.mark.parametrize(
    ("alpha", "wide"),
    [*((2.0, wide) for wide in (1e-3, 0.03, 0.6, 2.0)), *((a, 0.3) for a in (torch.inf, 3, 1.05))],
)
def test_waves_against_expectations_in_float64(
    alpha: float, wide: float, basis: GaussianRBF
) -> None:
    """Of supports inside and outside of the basis, and of those that hold it."""
    draw = torch.Generator().manual_seed(0)
    loc = 1.6 * torch.rand(2, HEADS, 12, generator=draw) - 0.3
    scale = wide * torch.exp(0.4 * torch.randn(2, HEADS, 12, generator=draw))
    coefficients = torch.randn(2, len(basis), HEADS, CHANNELS, generator=draw)
    found = []
    for dtype, function in ((torch.float32, contexts), (DOUBLE, at_once)):
        leaves = [x.to(dtype).requires_grad_() for x in (loc, scale, coefficients)]
        psi = of_dtype(basis, dtype)
        value = function(sf.BetaGaussian(leaves[0], leaves[1], alpha), psi, leaves[2])
        upstream = torch.sin(torch.arange(value.numel())).reshape(value.shape)
        found.append([value, *torch.autograd.grad(value, leaves, upstream.to(dtype))])
    # Errors of contexts, and of gradients in locations, widths and coefficients.
    for ours, exact, limit in zip(*found, (2e-6, 2e-5, 2e-5, 2e-6), strict=True):
        assert apart(ours, exact) < limit


@pytest.mark.parametrize(
    ("density", "basis", "by_waves"),
    [
        (line(sf.BetaGaussian, 1.5), FINE, True),
        (mixture, FINE, True),
        (learned, FINE, False),  # each has an alpha of its own
        (line(sf.Triangular), FINE, True),
        (line(sf.TruncatedParabola), GaussianRBF(nn.Parameter(FINE.centers), FINE.widths), True),
        (line(sf.Normal), FINE, False),
        (line(sf.TruncatedParabola), GaussianRBF.grid(20, [1e-4, 1.0]), False),
    ],
)
def test_which_contexts_are_waves(
    density: Callable[..., sf.SparseDistribution],
    basis: Basis,
    by_waves: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, expect_waves = [], waves.expect_waves

    def spied(*inputs: Any) -> Tensor:
        made.append(expect_waves(*inputs))
        return made[-1]

    monkeypatch.setattr(waves, "expect_waves", spied)
    *inputs, coefficients = (x.float() for x in draws(1, 9, len(basis)))
    p = density(*inputs)
    found = contexts(p, basis, coefficients)
    assert bool(made) == by_waves
    assert apart(found, at_once(p, basis, coefficients)) < 2e-6


@pytest.mark.parametrize("alpha", [2.0, 1.3])
def test_centered_densities_in_graphs(alpha: float) -> None:
    """Where values cannot be read: with waves that need not be checked, and without."""
    loc, width, _, coefficients = draws(1, 7, len(FINE))
    psi = of_dtype(FINE, DOUBLE)
    scale = torch.tensor([1e-3, 0.1, 0.4, 0.9, 1.3, 4.0, 50.0], dtype=DOUBLE).expand(1, HEADS, 7)
    leaves = [x.requires_grad_() for x in (loc[..., 0].sigmoid(), scale.clone(), coefficients)]

    def loss(centers: Any, loc: Tensor, scale: Tensor, coefficients: Tensor) -> Tensor:
        p = sf.BetaGaussian(loc, scale, alpha, validate_args=False)
        return contexts(p, psi, coefficients, centers).square().sum()

    due = torch.autograd.grad(loss(None, *leaves), leaves)
    for centers in (None, (0.0, 1.0), (-0.3, 1.2)):
        found = torch.func.grad(partial(loss, centers), (0, 1, 2))(*leaves)
        torch.testing.assert_close(found, due, rtol=1e-8, atol=1e-9)


def test_many_first_derivatives_at_once() -> None:
    loc, width, _, coefficients = (x.float() for x in draws(1, 5, len(FINE)))
    loc, scale = loc[..., 0].requires_grad_(), 0.1 + width[..., 0].square()
    each = contexts(sf.TruncatedParabola(loc, scale), FINE, coefficients).sum((0, 2, 3))
    (many,) = torch.autograd.grad(each, loc, torch.eye(5), is_grads_batched=True, retain_graph=True)
    one = torch.stack([torch.autograd.grad(x, loc, retain_graph=True)[0] for x in each])
    assert apart(many, one) < 2e-6


@pytest.mark.parametrize("components", [1, 2])
@pytest.mark.parametrize("readable", [True, False])
def test_only_nan_parameters_have_nan_contexts(readable: bool, components: int) -> None:
    loc, scale = torch.tensor([torch.nan, 0.5, 1.0]), torch.tensor([0.1, 0.1, torch.nan])

    def evaluate(loc: Tensor, scale: Tensor) -> Tensor:
        p: Any = sf.TruncatedParabola(loc[None, None], scale[None, None], validate_args=False)
        if components > 1:
            both = (torch.stack([x, x.nan_to_num(0.5)], -1)[None, None] for x in (loc, scale))
            p = sf.TruncatedParabola(*both, validate_args=False)
            p = sf.Mixture(torch.zeros(1, 1, 3, 2), p, validate_args=False)
        return contexts(p, FINE, torch.ones(1, 64, 1, 2), (0.0, 1.0))

    found = evaluate(loc, scale) if readable else torch.func.vmap(evaluate)(loc[None], scale[None])
    assert found.isnan().all(-1).flatten().tolist() == [True, False, True]


@pytest.mark.parametrize("family", [sf.TruncatedParabola, sf.Normal])
def test_memory_does_not_grow_with_the_pairs(family: Callable[..., Any]) -> None:
    """At its peak, besides contexts and gradients: a fraction of the expectations."""
    basis, sizes = GaussianRBF.grid(128, 1.5 / 128), []
    for queries in (8192, 16_384):
        loc = torch.rand(1, 1, queries, requires_grad=True)
        coefficients = torch.randn(1, 128, 1, 32, requires_grad=True)

        def call() -> list[Tensor]:
            value = contexts(family(loc, 0.2), basis, coefficients)  # noqa: B023
            slopes = torch.autograd.grad(value.sum(), [loc, coefficients])  # noqa: B023
            return [value.detach(), *slopes]

        sizes.append(allocated_megabytes(call))
    assert sizes[1] < sizes[0] + 2
