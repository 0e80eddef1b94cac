"""Contexts on a GPU: against FlashAttention, against what the device can do, and their errors.

`python -m benchmarks.gpu --write` puts the tables into docs/gpu.md.
"""

import argparse
import re
import statistics
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import sparsefam as sf
from sparsefam.attention import RidgeRegression
from sparsefam.attention.fused import fused_contexts
from sparsefam.bases import GaussianRBF

from .gpu_bound import CHANNELS, FUNCTIONS, H200, HEADS, RULES, Ceilings, Work, work
from .report import Table

PAGE = Path(__file__).parents[1] / "docs" / "gpu.md"
LENGTHS = (4096, 16384, 65536, 262144)
_ALPHAS = {"2": 2.0, "3/2": 1.5, "1.7": 1.7}
# Alphas and dimensions, by the names of their rules.
KINDS = {name: (alpha, 1) for name, alpha in _ALPHAS.items()}
KINDS |= {f"{name} in the plane": (alpha, 2) for name, alpha in _ALPHAS.items()}
# Queries whose contexts are checked against float64.
_CHECKED = 512
# Outputs of a call, and whether it has backward, too.
Call = Callable[[bool], object]


def seconds(call: Callable[[], object], rounds: int = 10) -> float:
    """Of the device, the middle one of some rounds after three that warm up."""
    for _ in range(3):
        call()
    times = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)


def measured() -> Ceilings:
    """A copy's bytes and the operations of square matrix products; the others as they are given."""
    source = torch.empty(2**29, device="cuda")
    target = torch.empty_like(source)
    copied = 2 * source.nbytes / seconds(lambda: target.copy_(source))
    rates = {}
    for dtype, size in ((torch.float32, 8192), (torch.bfloat16, 16384)):
        a, b = (torch.randn(size, size, device="cuda", dtype=dtype) for _ in range(2))
        rates[dtype] = 2 * size**3 / seconds(lambda a=a, b=b: a @ b)
    return Ceilings(copied, rates[torch.float32] / 2, H200.special, rates[torch.bfloat16])


def densities(loc: Tensor, scale: Tensor, alpha: float) -> sf.distributions.SparseDistribution:
    if loc.dim() == 3:
        return sf.BetaGaussian(loc, scale, alpha=alpha, validate_args=False)
    return sf.MultivariateBetaGaussian(loc, scale, alpha=alpha, validate_args=False)


class Queries:
    """Densities as wide as a layer's are at first, and the coefficients of value functions."""

    def __init__(self, length: int, alpha: float, dtype: torch.dtype, dim: int = 1) -> None:
        draw = torch.Generator(device="cuda").manual_seed(0)
        there = {"generator": draw, "device": "cuda"}
        event = (dim,) * (dim - 1)
        self.loc = torch.rand(1, HEADS, length, *event, **there)
        self.scale = 0.2 * torch.exp(0.3 * torch.randn(1, HEADS, length, *event, **there))
        if dim == 2:
            # Wider, as those of the same sigma are in the plane, and turned.
            self.scale = 1.7 * self.scale.diag_embed()
            self.scale[..., 1, 0] = 0.1 * torch.randn(1, HEADS, length, **there)
        self.values = torch.randn(1, length, HEADS * CHANNELS, **there).to(dtype)
        self.positions = torch.rand(1, length, **there).sort(-1).values
        self.upstream = torch.randn(1, length, HEADS, CHANNELS, **there).to(dtype)
        if dim == 1:
            self.basis = GaussianRBF.grid(FUNCTIONS, 1.5 / FUNCTIONS).cuda()
        else:
            self.basis = GaussianRBF.grid(FUNCTIONS, [0.2, 0.1], ndim=dim).cuda()
        self.regression = RidgeRegression(self.basis, 1e-2, validate_args=False)
        self.coefficients = torch.randn(1, FUNCTIONS, HEADS, CHANNELS, **there).to(dtype)
        self.alpha = alpha

    def contexts(self, training: bool) -> Tensor:
        """Of given coefficients."""
        return self._finish(self.coefficients, self.coefficients, training)

    def core(self, training: bool) -> Tensor:
        """With the fit of the values, which a layer makes in float32."""
        self.values.requires_grad_(training)
        function = self.regression.fit(self.positions, self.values.float())
        by_head = function.coefficients.unflatten(-1, (HEADS, CHANNELS))
        return self._finish(by_head.to(self.values.dtype), self.values, training)

    def _finish(self, coefficients: Tensor, source: Tensor, training: bool) -> Tensor:
        inputs = self.loc, self.scale, source
        for x in inputs:
            x.requires_grad_(training)
        p = densities(self.loc, self.scale, self.alpha)
        out = fused_contexts(p, self.basis, coefficients)
        if out is None:
            raise RuntimeError("there is no kernel: is Triton installed?")
        if training:
            torch.autograd.grad(out, inputs, self.upstream)
        return out.detach()

    def error(self) -> float:
        """Of the contexts, relative to the largest one, against float64."""
        loc, scale = (x[:, :, :_CHECKED].detach().double() for x in (self.loc, self.scale))
        p = densities(loc, scale, self.alpha)
        features = p.expect(GaussianRBF(self.basis.centers.double(), self.basis.widths.double()))
        by_head = self.coefficients.detach().double().transpose(1, 2)
        expected = (features @ by_head).transpose(1, 2)
        found = self.contexts(False)[:, :_CHECKED].double()
        return float((found - expected).abs().max() / expected.abs().max())


def flash(length: int) -> Call:
    """FlashAttention in bfloat16."""
    shape = (1, HEADS, length, CHANNELS)
    parts = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    *inputs, upstream = parts

    def call(training: bool) -> Tensor:
        for x in inputs:
            x.requires_grad_(training)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            out = torch.nn.functional.scaled_dot_product_attention(*inputs)
        if training:
            torch.autograd.grad(out, inputs, upstream)
        return out

    return call


def against_flash() -> Table:
    """Milliseconds in bfloat16 at alpha = 2."""
    rows = []
    for length in LENGTHS:
        queries, rival = Queries(length, 2.0, torch.bfloat16), flash(length)
        for training in (False, True):
            ways = (queries.contexts, queries.core, rival)
            times = [seconds(lambda way=way, t=training: way(t)) for way in ways]
            part = "forward and backward" if training else "forward"
            ratios = [f"{times[2] / x:.1f}" for x in times[:2]]
            rows.append([f"{length}, {part}", *(f"{1e3 * x:.3f}" for x in times), *ratios])
    header = ["L", "contexts", "with the fit", "FlashAttention", "ratio", "ratio with the fit"]
    return Table("Milliseconds, alpha 2, bfloat16.", header, rows)


def against_bound(device: Ceilings) -> Table:
    """The share of the bound that contexts reach, and their errors, at the longest but one."""
    rows = []
    for name, (alpha, dim) in KINDS.items():
        for dtype in (torch.bfloat16, torch.float32):
            queries = Queries(LENGTHS[-2], alpha, dtype, dim)
            half = dtype == torch.bfloat16
            forward = work(RULES[name], half, False)
            error = f"{queries.error():.1e}"
            for training in (False, True):
                each = forward + work(RULES[name], half, True) if training else forward
                time = seconds(lambda q=queries, t=training: q.contexts(t))
                part = ", with backward" if training else ""
                label = f"{name}, {'bfloat16' if half else 'float32'}{part}"
                rows.append([label, *_shares(each, time, device), error])
    header = [
        "alpha",
        "ms",
        "GB/s",
        "arithmetic, 1e12/s",
        "tensor, TFLOP/s",
        "of the bound",
        "error",
    ]
    return Table(f"L = {LENGTHS[-2]}, {HEADS} heads.", header, rows)


def _shares(each: Work, time: float, device: Ceilings) -> Iterator[str]:
    rows = HEADS * LENGTHS[-2]
    yield f"{1e3 * time:.3f}"
    yield f"{each.bytes * rows / time / 1e9:.0f}"
    yield f"{each.arithmetic * rows / time / 1e12:.2f}"
    yield f"{each.tensor * rows / time / 1e12:.1f}"
    yield f"{100 * max(each.seconds(device).values()) * rows / time:.0f} %"


def ceilings(device: Ceilings) -> Table:
    """What was measured beside what the datasheet says."""
    names = {
        "bytes": "copy, TB/s",
        "arithmetic": "float32 results, 1e12/s",
        "tensor": "bfloat16 products, TFLOP/s",
    }
    rows = [
        [text, f"{getattr(device, name) / 1e12:.2f}", f"{getattr(H200, name) / 1e12:.2f}"]
        for name, text in names.items()
    ]
    return Table("Ceilings.", ["of", "measured", "H200, datasheet"], rows)


def write(parts: list[str]) -> None:
    """Replaces what stands between the two marks of the page."""
    begin, end = "<!-- gpu: made by python -m benchmarks.gpu --write -->", "<!-- gpu: end -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.S)
    text, count = pattern.subn(
        lambda _: "\n\n".join([begin, *parts, end]), PAGE.read_text(encoding="utf-8")
    )
    if count != 1:
        raise ValueError(f"{PAGE.name} must have one section {begin} ... {end}, got {count}")
    PAGE.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/gpu.md")
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("needs a CUDA device")
    torch.backends.cuda.matmul.allow_tf32 = False
    found = measured()
    tables = [ceilings(found), against_flash(), against_bound(found)]
    for table in tables:
        table.show()
    if asked.write:
        machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {date.today()}."
        write([machine, *(table.markdown() for table in tables)])


if __name__ == "__main__":
    main()
