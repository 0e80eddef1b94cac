"""Workloads by name: each builds its inputs and returns a call, forward and backward.

They use public names only, so that the same case runs on any checkout of the package.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
]

Call = Callable[[], tuple[Tensor, ...]]
Inputs = tuple[tuple[Tensor, Tensor], Tensor, sf.bases.GaussianRBF]


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


def line_inputs(
    densities: int, functions: int, width: float, half_widths: tuple[float, float]
) -> Inputs:
    """Return loc and scale, a gradient from above and a basis on [0, 1].

    Half-widths are log-uniform; all supports lie in [0, 1].
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
        return p.expect(basis)

    return differentiated(expect, inputs, upstream)


def ball_inputs(
    densities: int,
    functions: int,
    ndim: int,
    width: float,
    half_axes: tuple[float, float],
    random: bool = False,
) -> Inputs:
    """Return loc and scale_tril in any orientation, a gradient from above and a basis.

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
        return sf.TruncatedParaboloid(loc, scale_tril).expect(basis)

    return differentiated(expect, inputs, upstream)


CHANNELS, HEADS = 256, 8


def _training_step(module: nn.Module, forward: Callable[[Tensor], Tensor], length: int) -> Call:
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
        return attention(x, x, x, positions=positions)[0]

    return _training_step(attention, forward, length)


def multihead(length: int = 1024) -> Call:
    """`torch.nn.MultiheadAttention` of a sequence to itself, by its fused kernel."""
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(CHANNELS, HEADS, batch_first=True)
    return _training_step(attention, lambda x: attention(x, x, x, need_weights=False)[0], length)


def mlp(length: int = 1024) -> Call:
    """A feed-forward block with a hidden layer four times as wide."""
    torch.manual_seed(0)
    block = nn.Sequential(
        nn.Linear(CHANNELS, 4 * CHANNELS), nn.GELU(), nn.Linear(4 * CHANNELS, CHANNELS)
    )
    return _training_step(block, block, length)


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

    def builder(self, alpha: float, inside: bool, share: bool = False) -> Callable[..., Any]:
        """Return a function of weights that builds densities.

        Args:
            alpha: 1 or a larger one.
            inside: Which normalization; not used at alpha = 1.
            share: Whether all densities share quadrature nodes that are found once, here.
        """
        bandwidth = self.bandwidth

        def gaussian(x: Tensor, y: Tensor) -> Tensor:
            return torch.exp(-((x - y.mT) / bandwidth).square() / 2)

        family, options = sf.KernelExp, {}
        if alpha != 1:
            family = sf.KernelDeformedExp
            options = {"alpha": alpha, "normalization": "inside" if inside else "outside"}

        def build(weights: Tensor) -> Any:
            return family(weights, self.points, gaussian, **options)

        if share:
            first = build(self.weights.flatten(0, -2)[0])
            # Checkouts differ in the name.
            name = "mesh" if hasattr(first, "mesh") else "panels"
            options[name] = getattr(first, name)
        return build


def kernel_case(
    shape: tuple[int, ...], bandwidth: float, deviation: float, widths: Sequence[float]
) -> KernelCase:
    """Draw 256 weights a score in float64, and 64 basis functions of these widths in turn.

    Scores have a standard deviation on [0, 1]. One that is negative everywhere is negated, since
    its support would be empty if it is normalised outside.
    """
    weights = torch.randn(*shape, 256, generator=_generator()).double()
    points = torch.linspace(0, 1, 256, dtype=torch.float64)
    grid = torch.linspace(0, 1, 20 * math.ceil(1 / bandwidth), dtype=torch.float64)
    f = weights @ torch.exp(-((grid - points.unsqueeze(-1)) / bandwidth).square() / 2)
    scale = torch.where(f.amax(-1) > 0, deviation, -deviation) / f.std(-1)
    upstream = torch.randn(*shape, 64, generator=_generator(1), dtype=torch.float64)
    centers = torch.linspace(0, 1, 64, dtype=torch.float64)
    each = torch.tensor(widths, dtype=torch.float64)[torch.arange(64) % len(widths)]
    return KernelCase(weights * scale.unsqueeze(-1), points, bandwidth, centers, each, upstream)


def kernel(alpha: float = 2.0, inside: bool = True, batch: int = 64, heads: int = 100) -> Call:
    """Expectations of kernel families whose nodes are found once, as in attention."""
    case = kernel_case((batch, heads), 0.05, 3.0, (0.1, 0.5)).to(torch.float32)
    build, basis = case.builder(alpha, inside, share=True), case.basis

    def expect(weights: Tensor) -> Tensor:
        return build(weights).expect(basis)

    return differentiated(expect, (case.weights,), case.upstream)


def density_fit(count: int = 10_000) -> Call:
    """`SparseDensity` with default settings, on two separated parabolas."""
    draw = np.random.default_rng(0)
    first = 0.15 + 0.26 * draw.beta(2, 2, 3 * count // 5)
    numbers = np.concatenate([first, 0.67 + 0.16 * draw.beta(2, 2, count * 2 // 5)])

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
