"""Contexts in one kernel, against the same contexts from expectations that are kept.

Without a GPU the kernels run in Triton's interpreter.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import sparsefam as sf
from benchmarks import gpu_bound
from sparsefam.attention import ContinuousAttention, fused
from sparsefam.bases import Basis, Fourier, GaussianRBF
from sparsefam.distributions import SparseDistribution

ON_GPU = torch.cuda.is_available()
# Triton asks when it is imported, once for a process, which torch may do before.
if find_spec("triton") is None or not (ON_GPU or os.environ.get("TRITON_INTERPRET") == "1"):
    pytest.skip("needs Triton and, without a GPU, TRITON_INTERPRET=1", allow_module_level=True)

Way = Callable[[SparseDistribution, Basis, Tensor], Tensor | None]
DEVICE = "cuda" if ON_GPU else "cpu"
TOLERANCE = 1e-5
SINGLE, DOUBLE = torch.float32, torch.float64


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    if not ON_GPU:
        monkeypatch.setattr(fused, "_has_kernels", lambda x: True)
    # Fewer tiles are fewer operations for the interpreter.
    monkeypatch.setattr(fused, "_ROWS", {1: 64, 2: 64})


def kept(p: SparseDistribution, psi: Basis, coefficients: Tensor) -> Tensor:
    return (p.expect(psi) @ coefficients.transpose(1, 2)).transpose(1, 2)


def inputs(
    queries: int, channels: int, functions: int, dtype: torch.dtype, dim: int = 1
) -> list[Tensor]:
    """Supports from far narrower to far wider than the functions, some of them out of sight.

    In the plane they are also up to 1000 times as long as they are thick.
    """
    loc = torch.rand(1, 1, queries, *[dim] * (dim - 1)) * 1.4 - 0.2
    scale = 10 ** (-4 + 4 * torch.rand(1, 1, queries))
    if dim == 2:
        thin, lean = 10 ** (-3 * torch.rand(1, 1, queries)), torch.randn(1, 1, queries)
        entries = [scale, torch.zeros_like(scale), scale * lean, scale * thin]
        scale = torch.stack(entries, -1).unflatten(-1, (2, 2))
    parts = loc, scale, torch.randn(1, functions, 1, channels)
    return [x.to(DEVICE, dtype) for x in parts]


def basis(functions: int, dtype: torch.dtype, dim: int = 1) -> GaussianRBF:
    if dim == 1:
        return GaussianRBF.grid(functions, [0.03, 0.002]).to(DEVICE, dtype)
    widths = 10 ** torch.linspace(-2, -0.5, functions)
    draw = torch.Generator().manual_seed(2)
    return GaussianRBF(torch.rand(functions, 2, generator=draw), widths).to(DEVICE, dtype)


def density(
    loc: Tensor, scale: Tensor, alpha: float = 2.0, validate_args: bool | None = None
) -> SparseDistribution:
    family: Any = sf.BetaGaussian if loc.dim() == 3 else sf.MultivariateBetaGaussian
    found: SparseDistribution = family(loc, scale, alpha=alpha, validate_args=validate_args)
    return found


def evaluate(way: Way, parts: list[Tensor], psi: Basis, alpha: float) -> list[Tensor]:
    """Contexts, and gradients in all inputs."""
    leaves = [x.detach().requires_grad_() for x in parts]
    out = way(density(leaves[0], leaves[1], alpha), psi, leaves[2])
    assert out is not None
    draw = torch.Generator().manual_seed(1)
    upstream = torch.randn(out.shape, generator=draw).to(out)
    return [out.detach(), *torch.autograd.grad(out, leaves, upstream)]


def compare(parts: list[Tensor], functions: int, alpha: float) -> None:
    """With what keeps expectations, in float64; coefficients make up for heights of functions."""
    dim = parts[0].dim() - 2
    psi, exact = basis(functions, torch.float32, dim), basis(functions, torch.float64, dim)
    parts = [*parts[:2], parts[2] * psi.widths.pow(dim)[:, None, None]]
    expected = evaluate(kept, [x.double() for x in parts], exact, alpha)
    check(evaluate(fused.fused_contexts, parts, psi, alpha), expected)


def check(found: list[Tensor], expected: list[Tensor]) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.to(b.dtype), b, rtol=0, atol=TOLERANCE * float(b.abs().max()))


# 3/2 has products for powers, 1.7 and 1.08 have not; the last one has a density of thin ends.
@pytest.mark.parametrize("alpha", [2.0, 1.5, 1.7, 1.08])
@pytest.mark.parametrize("dim", [1, 2])
def test_equals_what_keeps_expectations(alpha: float, dim: int) -> None:
    compare(inputs(40, 5, 20, torch.float32, dim), 20, alpha)


def test_the_tip_of_a_long_ellipse() -> None:
    """Of whose pairs one here has its saddle point far from the first guess."""
    place = torch.tensor([[354.30221, 1.98235], [0.0, 0.0]], device=DEVICE)
    axes = torch.tensor([354.564, 2.33043], device=DEVICE).expand(2, 2)
    queries = -place[None, None], axes.diag_embed()[None, None]
    psi = GaussianRBF(torch.zeros(1, 2), 1.0).to(DEVICE)
    parts = [*queries, torch.ones(1, 1, 1, 1, device=DEVICE)]
    exact = GaussianRBF(psi.centers.double(), torch.ones(1, device=DEVICE).double())
    expected = evaluate(kept, [x.double() for x in parts], exact, 2.0)
    check(evaluate(fused.fused_contexts, parts, psi, 2.0), expected)


def test_supports_far_wider_than_functions() -> None:
    loc, scale = torch.tensor([[[0.0, 0.3]]]), torch.ones(1, 1, 2)
    for width in (1e-5, 1e-10, 1e-15):
        centers = torch.tensor([0.0, 0.5 * width, 0.5])
        psi, exact = (GaussianRBF(centers.to(DEVICE, x), width) for x in (SINGLE, DOUBLE))
        parts = [x.to(DEVICE) for x in (loc, scale, torch.ones(1, 3, 1, 1))]
        expected = evaluate(kept, [x.double() for x in parts], exact, 2.0)
        check(evaluate(fused.fused_contexts, parts, psi, 2.0), expected)


@pytest.mark.parametrize("dim", [1, 2])
def test_tiles_are_put_together(dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "_ROWS", {dim: 16})
    monkeypatch.setattr(fused, "_PROGRAMS", 16)  # two shares in backward, of two tiles and of one
    loc, scale = torch.rand(2, 2, 40, dim), 0.1 + torch.rand(2, 2, 40)
    if dim == 1:
        parts = [loc[..., 0], scale, torch.randn(2, 34, 2, 17)]
    else:
        # Circles, which have no longer axis.
        parts = [loc[:1], scale[:1, :, :, None, None] * torch.eye(2), torch.randn(1, 34, 2, 17)]
    compare([x.to(DEVICE) for x in parts], 34, 2.0 if dim == 1 else 1.5)


@pytest.mark.parametrize("dim", [1, 2])
def test_bfloat16_is_rounded_once(dim: int) -> None:
    parts = inputs(40, 5, 20, torch.bfloat16, dim)
    psi = basis(20, torch.float32, dim)
    found = fused.fused_contexts(density(parts[0].float(), parts[1].float()), psi, parts[2])
    assert found is not None and found.dtype == torch.bfloat16
    exact = density(parts[0].double(), parts[1].double())
    expected = kept(exact, basis(20, torch.float64, dim), parts[2].double())
    # A unit in the last place: the interpreter cuts off what a GPU rounds.
    room = 2**-7 * expected.abs() + TOLERANCE * expected.abs().max()
    assert ((found.double() - expected).abs() <= room).all()


@pytest.mark.parametrize("dim", [1, 2])
def test_a_query_on_a_center_or_far_away_has_exact_zeros(dim: int) -> None:
    # The middle one of three functions is where loc is; no function is seen from the other query.
    loc, scale = torch.tensor([[[0.5, 1e6]]]), torch.full((1, 1, 2), 0.3)
    centers = torch.tensor([0.25, 0.5, 0.75])
    if dim == 2:
        loc, centers = (torch.stack([x, x], -1) for x in (loc, centers))
        scale = scale[..., None, None] * torch.tensor([[1.0, 0.0], [0.5, 1e-3]])
    psi = GaussianRBF(centers, 0.1).to(DEVICE)
    loc, scale = (x.to(DEVICE).requires_grad_() for x in (loc, scale))
    coefficients = torch.ones(1, 3, 1, 1, device=DEVICE)
    out = fused.fused_contexts(density(loc, scale), psi, coefficients)
    assert out is not None and out[0, 1] == 0
    by_loc, by_scale = torch.autograd.grad(out.sum(), (loc, scale))
    assert (by_loc[:, :, 1] == 0).all() and (by_scale[:, :, 1] == 0).all()
    assert by_loc[:, :, 0].abs().max() < 1e-6 < by_scale[:, :, 0].abs().max()


@pytest.mark.parametrize("dim", [1, 2])
def test_second_derivatives(dim: int) -> None:
    parts, psi = inputs(5, 3, 8, torch.float32, dim), basis(8, torch.float32, dim)
    found = []
    for way in (fused.fused_contexts, kept):
        leaves = [x.clone().requires_grad_() for x in parts]
        out = way(density(leaves[0], leaves[1]), psi, leaves[2])
        assert out is not None
        first = torch.autograd.grad(out.square().sum(), leaves, create_graph=True)
        found.append(torch.autograd.grad(sum((x * x).sum() for x in first), leaves))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * float(b.abs().max()))


@pytest.mark.parametrize("dim", [1, 2])
def test_gradients_of_many_outputs_at_once(dim: int) -> None:
    leaves = [x.requires_grad_() for x in inputs(3, 2, 8, torch.float32, dim)]
    psi = basis(8, torch.float32, dim)
    out = fused.fused_contexts(density(leaves[0], leaves[1]), psi, leaves[2])
    assert out is not None
    upstream = torch.randn(2, *out.shape, device=DEVICE)
    found = torch.autograd.grad(out, leaves, upstream, is_grads_batched=True, retain_graph=True)
    each = [torch.autograd.grad(out, leaves, u, retain_graph=True) for u in upstream]
    check(list(found), [torch.stack(x) for x in zip(*each, strict=True)])


def test_nothing_of_the_size_of_pairs_is_kept() -> None:
    sizes: list[int] = []
    parts = [x.requires_grad_() for x in inputs(40, 4, 32, torch.float32)]

    def pack(x: Tensor) -> Tensor:
        sizes.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        fused.fused_contexts(
            sf.TruncatedParabola(parts[0], parts[1]), basis(32, torch.float32), parts[2]
        )
    assert sizes and max(sizes) <= max(x.numel() for x in parts) < parts[0].numel() * 32


@pytest.mark.parametrize("dim", [1, 2])
def test_a_layer_takes_the_kernel(dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    psi, places = GaussianRBF.grid(16, 0.1, ndim=dim), torch.rand(1, 20, *[2] * (dim - 1))
    layer = ContinuousAttention(8, 2, psi, ndim=dim, batch_first=True).to(DEVICE)
    values, positions = (x.to(DEVICE) for x in (torch.randn(1, 20, 8), places))
    launches: list[Tensor] = []

    def launch(inputs: list[Tensor], m: float) -> Tensor:
        launches.append(found := forward(inputs, m))
        return found

    forward = fused._forward
    monkeypatch.setattr(fused, "_forward", launch)
    found, _ = layer(values, values, values, positions)
    assert len(launches) == 1
    monkeypatch.setattr(fused, "_has_kernels", lambda x: False)
    expected, _ = layer(values, values, values, positions)
    assert len(launches) == 1
    check([found.detach()], [expected.detach()])


def test_what_has_no_kernel_is_left_to_others() -> None:
    loc, scale, coefficients = inputs(4, 2, 8, torch.float32)
    psi = basis(8, torch.float32)
    p = sf.TruncatedParabola(loc, scale)
    learned = GaussianRBF(torch.nn.Parameter(psi.centers.clone()), psi.widths)
    fused_contexts = fused.fused_contexts
    assert fused_contexts(p, psi, coefficients) is not None
    assert fused_contexts(p, learned, coefficients) is None
    assert fused_contexts(p, Fourier([1.0, 2.0, 3.0, 4.0]).to(DEVICE), coefficients) is None
    assert fused_contexts(p, psi, coefficients.double()) is None
    for other in (
        sf.Triangular(loc, scale),
        sf.BetaGaussian(loc, scale, alpha=3.0),
        sf.BetaGaussian(loc, scale, alpha=1.01),
        sf.BetaGaussian(loc, scale, alpha=torch.tensor(1.5, device=DEVICE)),
    ):
        assert fused_contexts(other, psi, coefficients) is None
    loc, scale, coefficients = inputs(4, 2, 8, torch.float32, 2)
    flat, solid = torch.eye(2, device=DEVICE), torch.eye(3, device=DEVICE)
    for other, functions in (
        (sf.MultivariateBetaGaussian(loc, scale, alpha=1.01), basis(8, torch.float32, 2)),
        (density(loc, scale), GaussianRBF(loc[0, 0, :1].repeat(8, 1), covariance=flat)),
        (density(solid[:1, None, None], solid), GaussianRBF(torch.rand(8, 3), 0.1).to(DEVICE)),
    ):
        assert fused_contexts(other, functions, coefficients) is None
    torch.func.vmap(lambda x: torch.zeros(()) if fused_contexts(p, psi, x) is None else x.sum())(
        coefficients[None]
    )


def test_classes_of_a_user_keep_their_own_expectations() -> None:
    class Halved(GaussianRBF):
        pass

    class Parabola(sf.TruncatedParabola):
        pass

    loc, scale, coefficients = inputs(4, 2, 8, torch.float32)
    psi = basis(8, torch.float32)
    p, halved = sf.TruncatedParabola(loc, scale), Halved(psi.centers, psi.widths)
    assert fused.fused_contexts(p, halved, coefficients) is None
    assert fused.fused_contexts(Parabola(loc, scale), psi, coefficients) is None


def test_the_bound_in_the_docs_is_the_one_that_is_counted() -> None:
    page = Path(__file__).parents[1] / "docs" / "gpu.md"
    assert gpu_bound.table().markdown() in page.read_text()


COMPILE = """
import re
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from sparsefam.attention import fused, fused_kernels

dim = int(sys.argv[1])
TILE = {"lowered": 0, "rows": fused._ROWS[dim], "columns": 32, "width": 64, "dim": dim}
COUNTS = ("queries", "functions", "heads", "channels", "pairs", "share", "count")
KINDS = dict.fromkeys(("coefficients", "out", "upstream"), "*bf16") | dict.fromkeys(COUNTS, "i32")
KINDS |= dict.fromkeys(("m", "constant", "trim"), "fp32") | dict.fromkeys(TILE, "constexpr")
if dim == 2:
    KINDS["loc"] = "*fp64"
OPTIONS = {"num_warps": fused._WARPS[dim]}
for kernel in (fused_kernels.forward, fused_kernels.backward):
    signature = {name: KINDS.get(name, "*fp32") for name in kernel.arg_names}
    source, target = ASTSource(kernel, signature, TILE), GPUTarget("cuda", 90, 32)
    code = triton.compile(source, target=target, options=OPTIONS)
    print(len(re.findall("ex2.approx", code.asm["ptx"])))
"""


# On the line a thread has 8 pairs: of each two exponentials, those of two error functions, and a
# node's. In the plane it has 2: of each a step to the saddle and along the path, a node, and all.
@pytest.mark.slow
@pytest.mark.parametrize(("dim", "most"), [(1, 8 * 5), (2, 2 * 4)])
def test_kernels_compile_for_a_gpu_and_find_each_pair_once(dim: int, most: int) -> None:
    """The compiler may place a tile so that each thread has many times as many."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILE, str(dim)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert all(0 < int(count) <= most for count in result.stdout.split()), result.stdout


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
@pytest.mark.parametrize("dim", [1, 2])
def test_the_host_does_not_wait(dim: int) -> None:
    parts, psi = inputs(1000, 64, 128, torch.float32, dim), basis(128, torch.float32, dim)
    evaluate(fused.fused_contexts, parts, psi, 2.0)
    leaves = [x.detach().requires_grad_() for x in parts]
    torch.cuda.set_sync_debug_mode("error")
    try:
        p = density(leaves[0], leaves[1], validate_args=False)
        out = fused.fused_contexts(p, psi, leaves[2])
        assert out is not None
        out.backward(torch.ones_like(out))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(x.grad is not None and x.grad.isfinite().all() for x in leaves)


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
@pytest.mark.parametrize("dim", [1, 2])
def test_a_graph_of_it_is_captured_and_replayed(dim: int) -> None:
    parts, psi = inputs(1000, 64, 128, torch.float32, dim), basis(128, torch.float32, dim)

    def contexts() -> Tensor:
        p = density(parts[0], parts[1], validate_args=False)
        found = fused.fused_contexts(p, psi, parts[2])
        assert found is not None
        return found

    contexts()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = contexts()
    parts[0].copy_(parts[0].flip(2))
    graph.replay()
    torch.testing.assert_close(out, contexts())
