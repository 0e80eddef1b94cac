"""Contexts of long sequences: by blocks of queries against all at once; what backward keeps."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import sparsefam as sf
from sparsefam.attention import contraction
from sparsefam.attention.contraction import contexts
from sparsefam.bases import Basis, Fourier, GaussianRBF

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


@pytest.mark.parametrize(("batch", "queries"), [(1, 7), (5, 2), (2, 5)])
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
    monkeypatch.setattr(contraction, "_PAIRS", 3 * HEADS * len(basis))
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
    monkeypatch.setattr(contraction, "_PAIRS", 2 * HEADS * len(basis))
    for function in (contexts, at_once):
        density = sf.TruncatedParabola(loc[..., 0], 0.3 + width[..., 0].square())
        value = function(density, basis, coefficients).square().sum()
        slopes = torch.autograd.grad(value, inputs, create_graph=True)
        found.append(torch.autograd.grad(sum(x.square().sum() for x in slopes), inputs))
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-12)


def kept(function: Callable[[], Tensor]) -> tuple[Tensor, int]:
    """What a function returns, and the most numbers in any tensor that it keeps for backward."""
    sizes = [0]

    def pack(x: Tensor) -> Tensor:
        sizes.append(x.untyped_storage().nbytes() // x.element_size())
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        return function(), max(sizes)


def test_nothing_of_the_size_of_all_expectations_is_kept() -> None:
    queries, basis = 5000, GaussianRBF.grid(64, 1.5 / 64)
    loc = torch.rand(1, HEADS, queries, requires_grad=True)
    coefficients = torch.randn(1, 64, HEADS, CHANNELS, requires_grad=True)
    density = sf.TruncatedParabola.from_sigma(loc, 0.1)
    pairs = HEADS * queries * len(basis)
    value, ours = kept(lambda: contexts(density, basis, coefficients))
    assert ours <= loc.numel()
    due, all_of_them = kept(lambda: at_once(density, basis, coefficients))
    assert all_of_them >= pairs
    torch.testing.assert_close(value, due, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [0.01, 0.1, 1.0, torch.nan])
def test_what_is_not_a_number_stays_so(scale: float) -> None:
    """Of some densities of many: also where only functions nearby are evaluated."""
    basis = GaussianRBF.grid(64, 1.5 / 64)
    loc, scales = torch.tensor([torch.nan, 0.5]), torch.tensor([scale, 0.02])
    found = sf.TruncatedParabola(loc, scales, validate_args=False).expect(basis)
    assert found[0].isnan().all()
    assert found[1].isfinite().all()


def test_layer_with_blocks_and_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = sf.attention.ContinuousAttention(
        8, 2, GaussianRBF.grid(16, 0.1), batch_first=True, dtype=F64
    )
    query, sequence = torch.randn(3, 40, 8, dtype=F64), torch.randn(3, 20, 8, dtype=F64)
    positions, padding = torch.rand(3, 20, dtype=F64), torch.arange(20).expand(3, 20) > 15
    found = []
    for pairs in (2**16, 100):
        monkeypatch.setattr(contraction, "_PAIRS", pairs)
        context, _ = layer(query, sequence, sequence, positions, padding)
        slopes = torch.autograd.grad(context.square().sum(), [*layer.parameters()])
        found.append([context, *slopes])
    torch.testing.assert_close(found[1], found[0])


def loss_of(loc: Tensor, width: Tensor, coefficients: Tensor) -> Tensor:
    density = sf.TruncatedParabola(loc[..., 0], 0.1 + width[..., 0].square())
    return contexts(density, RBF, coefficients).square().sum()


@pytest.mark.parametrize("way", ["func", pytest.param("compile", marks=pytest.mark.slow)], ids=str)
def test_transformed_and_compiled_as_in_eager(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contraction, "_PAIRS", 50)
    loc, width, _, coefficients = (x.float() for x in draws(2, 11, len(RBF)))
    leaves = [x.requires_grad_() for x in (loc, width, coefficients)]
    due = torch.autograd.grad(loss_of(*leaves), leaves)
    if way == "func":
        found = torch.func.grad(loss_of, (0, 1, 2))(*leaves)
    else:
        compiled = torch.compile(loss_of, fullgraph=True, backend="aot_eager")
        found = torch.autograd.grad(compiled(*leaves), leaves)
    torch.testing.assert_close(found, due)


def attending(alpha: object = 1.5) -> tuple[sf.attention.ContinuousAttention, list[Tensor]]:
    centers, widths = torch.linspace(0, 1, 16, dtype=F64), torch.full((16,), 0.1, dtype=F64)
    basis = GaussianRBF(nn.Parameter(centers), nn.Parameter(widths))
    layer = sf.attention.ContinuousAttention(8, 2, basis, alpha, batch_first=True, dtype=F64)
    query, sequence = torch.randn(2, 40, 8, dtype=F64), torch.randn(2, 20, 8, dtype=F64)
    return layer, [query, sequence, sequence, torch.rand(2, 20, dtype=F64)]


def test_parameters_that_are_not_the_modules_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backward runs when the module has its own again."""
    layer, inputs = attending()
    given = {name: (1.3 * x).detach().requires_grad_() for name, x in layer.named_parameters()}
    found = []
    for pairs in (2**20, 100):
        monkeypatch.setattr(contraction, "_PAIRS", pairs)
        context = torch.func.functional_call(layer, given, tuple(inputs))[0]
        found.append(torch.autograd.grad(context.square().sum(), list(given.values())))
    torch.testing.assert_close(found[1], found[0])


def test_scales_that_depend_on_alpha(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, inputs = attending(nn.Parameter(torch.full((2, 2, 40), 1.4, dtype=F64)))
    monkeypatch.setattr(contraction, "_PAIRS", 100)
    loss = layer(*inputs)[0].square().sum()
    (due,) = torch.autograd.grad(loss, layer.alpha, retain_graph=True)
    (found,) = torch.autograd.grad(loss, layer.alpha, create_graph=True)
    torch.testing.assert_close(found, due)


def test_gradients_of_many_outputs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, (query, *sequence) = attending()
    query.requires_grad_()
    found = []
    for pairs in (2**20, 100):
        monkeypatch.setattr(contraction, "_PAIRS", pairs)
        each = layer(query, *sequence)[0].sum((0, 2))
        ones = torch.eye(40, dtype=F64)
        found.append(torch.autograd.grad(each, query, ones, is_grads_batched=True)[0])
    torch.testing.assert_close(found[1], found[0])


def test_expectations_map_without_gradients() -> None:
    basis, x = GaussianRBF.grid(16, 0.1), torch.rand(5)
    with torch.no_grad():
        mapped = torch.func.vmap(lambda s: sf.TruncatedParabola(s, s).expect(basis))(x)
        torch.testing.assert_close(mapped, sf.TruncatedParabola(x, x).expect(basis))
