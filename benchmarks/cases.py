"""Workloads by name: each builds its inputs and returns a call, forward and backward.

They use public names only, so that the same case runs on any checkout of the package.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

import sparsefam as sf

__all__ = [
    "CASES",
    "Call",
    "KernelCase",
    "ball_inputs",
    "differentiated",
    "kernel_case",
    "line_inputs",
    "nodes_of",
]

Call = Callable[[], tuple[Tensor, ...]]


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def differentiated(
    expect: Callable[..., Tensor], inputs: Sequence[Tensor], upstream: Tensor
) -> Call:
    """Return a call for the value and its gradients in the inputs."""

    def call() -> tuple[Tensor, ...]:
        leaves = [x.detach().requires_grad_() for x in inputs]
        value = expect(*leaves)
        return value.detach(), *torch.autograd.grad(value, leaves, upstream)

    return call


Inputs = tuple[tuple[Tensor, Tensor], Tensor, sf.bases.GaussianRBF]


def line_inputs(
    densities: int, functions: int, width: float, half_widths: tuple[float, float]
) -> Inputs:
    """Return loc and scale, a gradient from above and a basis on [0, 1].

    Half-widths are log-uniform; all supports lie in [0, 1], so that a grid on it misses nothing.
    """
    draw = _generator()
    low, high = (math.log(x) for x in half_widths)
    scale = torch.exp(low + (high - low) * torch.rand(densities, generator=draw))
    loc = scale + (1 - 2 * scale) * torch.rand(densities, generator=draw)
    upstream = torch.randn(densities, functions, generator=draw)
    return (loc, scale), upstream, sf.bases.GaussianRBF.grid(functions, width)


def line(alpha: float = 2.0, densities: int = 4096, functions: int = 128) -> Call:
    """Expectations in 1-D under truncated parabolas or beta-Gaussians."""
    inputs, upstream, basis = line_inputs(densities, functions, 0.02, (0.002, 0.5))

    def expect(loc: Tensor, scale: Tensor) -> Tensor:
        p = sf.TruncatedParabola(loc, scale) if alpha == 2 else sf.BetaGaussian(loc, scale, alpha)
        value: Tensor = p.expect(basis)
        return value

    return differentiated(expect, inputs, upstream)


def ball_inputs(
    densities: int,
    functions: int,
    ndim: int,
    width: float,
    half_axes: tuple[float, float],
    random: bool = False,
) -> Inputs:
    """Return loc and scale_tril turned in any direction, a gradient from above and a basis.

    Its centers form a grid on the unit cube, or are random in it.
    """
    draw = _generator()
    low, high = half_axes
    axes = low * (high / low) ** torch.rand(densities, ndim, generator=draw)
    turns = torch.linalg.qr(torch.randn(densities, ndim, ndim, generator=draw))[0]
    upper = torch.linalg.qr((turns * axes.unsqueeze(-2)).mT)[1]
    scale_tril = upper.mT * upper.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    loc = torch.rand(densities, ndim, generator=draw)
    upstream = torch.randn(densities, functions, generator=draw)
    if random:
        centers = torch.rand(functions, ndim, generator=_generator(1))
    else:
        centers = sf.bases.GaussianRBF.grid(functions, width, ndim=ndim).centers
    return (loc, scale_tril), upstream, sf.bases.GaussianRBF(centers, width)


def ball(
    densities: int = 64,
    functions: int = 100,
    ndim: int = 2,
    width: float = math.sqrt(1e-3),
    random: bool = False,
) -> Call:
    """Expectations under truncated paraboloids."""
    inputs, upstream, basis = ball_inputs(densities, functions, ndim, width, (0.1, 0.5), random)

    def expect(loc: Tensor, scale_tril: Tensor) -> Tensor:
        value: Tensor = sf.TruncatedParaboloid(loc, scale_tril).expect(basis)
        return value

    return differentiated(expect, inputs, upstream)


CHANNELS, HEADS = 256, 8


def _trained(module: nn.Module, forward: Callable[[Tensor], Tensor], length: int) -> Call:
    """Return a call of one training step without its optimiser, on one sequence."""
    x = torch.randn(1, length, CHANNELS, generator=_generator(), requires_grad=True)
    upstream = torch.randn(1, length, CHANNELS, generator=_generator(1))
    leaves = (x, *(p for p in module.parameters() if p.requires_grad))

    def call() -> tuple[Tensor, ...]:
        value = forward(x)
        return value.detach(), *torch.autograd.grad(value, leaves, upstream, allow_unused=True)

    return call


def layer(alpha: float = 2.0, length: int = 1024, score: str = "quadratic") -> Call:
    """`ContinuousAttention` of a sequence to itself."""
    torch.manual_seed(0)
    basis = sf.bases.GaussianRBF.grid(128, 0.03)
    attention = sf.attention.ContinuousAttention(
        CHANNELS, HEADS, basis, alpha=alpha, score=score, batch_first=True
    )
    positions = torch.rand(1, length, generator=_generator()).sort(-1).values

    def forward(x: Tensor) -> Tensor:
        context: Tensor = attention(x, x, x, positions=positions)[0]
        return context

    return _trained(attention, forward, length)


def multihead(length: int = 1024) -> Call:
    """`torch.nn.MultiheadAttention` of a sequence to itself, by its fused kernel."""
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(CHANNELS, HEADS, batch_first=True)
    return _trained(attention, lambda x: attention(x, x, x, need_weights=False)[0], length)


def mlp(length: int = 1024) -> Call:
    """A feed-forward block, four times as wide within."""
    torch.manual_seed(0)
    block = nn.Sequential(
        nn.Linear(CHANNELS, 4 * CHANNELS), nn.GELU(), nn.Linear(4 * CHANNELS, CHANNELS)
    )
    return _trained(block, block, length)


def kernel_weights(shape: tuple[int, ...], bandwidth: float, spread: float) -> Tensor:
    """Return weights (*shape, 256) in float64 of scores with standard deviation `spread`.

    A score that is negative everywhere is negated: normalised outside, its support would be empty.
    """
    weights = torch.randn(*shape, 256, generator=_generator()).double()
    grid = torch.linspace(0, 1, 20 * math.ceil(1 / bandwidth), dtype=torch.float64)
    points = torch.linspace(0, 1, 256).double().unsqueeze(-1)
    f = weights @ torch.exp(-((grid - points) / bandwidth).square() / 2)
    scale = torch.where(f.amax(-1) > 0, spread, -spread) / f.std(-1)
    return weights * scale.unsqueeze(-1)


def _points() -> Tensor:
    return torch.linspace(0, 1, 256, dtype=torch.float64)


@dataclass(frozen=True)
class KernelCase:
    """Scores on [0, 1] with one Gaussian kernel, basis functions, and the gradient from above.

    Attributes:
        weights: Shape (*batch, I).
        points: Inducing points (I,).
        bandwidth: Of the kernel.
        centers: Of the basis functions, (N,).
        widths: Of the basis functions, (N,).
        upstream: d loss / d E_p[psi], (*batch, N).
    """

    weights: Tensor
    points: Tensor
    bandwidth: float
    centers: Tensor
    widths: Tensor
    upstream: Tensor

    def to(self, dtype: torch.dtype) -> "KernelCase":
        """Return the case with all tensors in another dtype."""
        tensors = {k: x.to(dtype) for k, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, **tensors)

    @property
    def basis(self) -> sf.bases.GaussianRBF:
        """The basis functions."""
        return sf.bases.GaussianRBF(self.centers, self.widths)

    def builder(self, alpha: float, inside: bool) -> Callable[..., Any]:
        """Return a function of weights that builds the densities."""
        bandwidth = self.bandwidth

        def gaussian(x: Tensor, y: Tensor) -> Tensor:
            return torch.exp(-((x - y.mT) / bandwidth).square() / 2)

        fixed = self.points, gaussian
        if alpha == 1:
            return lambda weights, **nodes: sf.KernelExp(weights, *fixed, **nodes)
        mode: Literal["inside", "outside"] = "inside" if inside else "outside"
        return lambda weights, **nodes: sf.KernelDeformedExp(
            weights, *fixed, alpha=alpha, normalization=mode, **nodes
        )


def kernel_case(
    shape: tuple[int, ...], bandwidth: float, spread: float, widths: Sequence[float]
) -> KernelCase:
    """Draw a case in float64 with 64 basis functions of these widths in turn."""
    upstream = torch.randn(*shape, 64, generator=_generator(1), dtype=torch.float64)
    centers = torch.linspace(0, 1, 64, dtype=torch.float64)
    turns = torch.tensor(widths, dtype=torch.float64)[torch.arange(64) % len(widths)]
    weights = kernel_weights(shape, bandwidth, spread)
    return KernelCase(weights, _points(), bandwidth, centers, turns, upstream)


def nodes_of(p: Any) -> dict[str, Any]:
    """Return the quadrature nodes of a kernel density, as the argument that shares them."""
    name = "mesh" if hasattr(p, "mesh") else "panels"
    return {name: getattr(p, name)}


def kernel(alpha: float = 2.0, inside: bool = True, batch: int = 64, heads: int = 100) -> Call:
    """Expectations of kernel families whose nodes have been found once, as attention does."""
    case = kernel_case((batch, heads), 0.05, 3.0, (0.1, 0.5)).to(torch.float32)
    build, basis = case.builder(alpha, inside), case.basis
    shared = nodes_of(build(case.weights[0, 0]))

    def expect(weights: Tensor) -> Tensor:
        value: Tensor = build(weights, **shared).expect(basis)
        return value

    return differentiated(expect, (case.weights,), case.upstream)


def density_fit(count: int = 10_000) -> Call:
    """`SparseDensity` with nothing given, on two separated parabolas."""
    draw = np.random.default_rng(0)
    numbers = np.concatenate(
        [
            0.15 + 0.26 * draw.beta(2, 2, 3 * count // 5),
            0.67 + 0.16 * draw.beta(2, 2, count * 2 // 5),
        ]
    )

    def call() -> tuple[Tensor, ...]:
        sf.estimators.SparseDensity(random_state=0).fit(numbers[:, None])
        return ()

    return call


CASES: dict[str, Callable[..., Call]] = {
    "line": line,
    "ball": ball,
    "kernel": kernel,
    "density_fit": density_fit,
    "layer": layer,
    "multihead": multihead,
    "mlp": mlp,
}
