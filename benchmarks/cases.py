"""Workloads by name: each builds its inputs and returns a call, forward and backward.

They use public names only, so that the same case runs on any checkout of the package.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

import sparsefam as sf

__all__ = ["CASES", "Call"]

Call = Callable[[], tuple[Tensor, ...]]


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _with_gradients(
    expect: Callable[..., Tensor], inputs: tuple[Tensor, ...], upstream: Tensor, backward: bool
) -> Call:
    """Return a call for the value and, if asked for, its gradients in the inputs."""
    leaves = tuple(x.requires_grad_(backward) for x in inputs)

    def call() -> tuple[Tensor, ...]:
        value = expect(*leaves)
        slopes = torch.autograd.grad(value, leaves, upstream) if backward else ()
        return value.detach(), *slopes

    return call


def line(
    alpha: float = 2.0,
    densities: int = 4096,
    functions: int = 128,
    width: float = 0.02,
    half_widths: tuple[float, float] = (0.002, 0.5),
    backward: bool = True,
) -> Call:
    """Expectations in 1-D; the half-widths of the supports are log-uniform, all within [0, 1]."""
    draw = _generator()
    low, high = (math.log(x) for x in half_widths)
    scale = torch.exp(low + (high - low) * torch.rand(densities, generator=draw))
    loc = scale + (1 - 2 * scale) * torch.rand(densities, generator=draw)
    upstream = torch.randn(densities, functions, generator=draw)
    basis = sf.bases.GaussianRBF.grid(functions, width)

    def expect(loc: Tensor, scale: Tensor) -> Tensor:
        p = sf.TruncatedParabola(loc, scale) if alpha == 2 else sf.BetaGaussian(loc, scale, alpha)
        value: Tensor = p.expect(basis)
        return value

    return _with_gradients(expect, (loc, scale), upstream, backward)


def ball(
    densities: int = 64,
    functions: int = 100,
    ndim: int = 2,
    width: float = math.sqrt(1e-3),
    half_axes: tuple[float, float] = (0.1, 0.5),
    backward: bool = True,
) -> Call:
    """Expectations under truncated paraboloids turned in any direction, in the unit cube."""
    draw = _generator()
    low, high = half_axes
    axes = low * (high / low) ** torch.rand(densities, ndim, generator=draw)
    turns = torch.linalg.qr(torch.randn(densities, ndim, ndim, generator=draw))[0]
    upper = torch.linalg.qr((turns * axes.unsqueeze(-2)).mT)[1]
    scale_tril = upper.mT * upper.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    loc = torch.rand(densities, ndim, generator=draw)
    upstream = torch.randn(densities, functions, generator=draw)
    centers = sf.bases.GaussianRBF.grid(functions, width, ndim=ndim).centers
    basis = sf.bases.GaussianRBF(centers, width)

    def expect(loc: Tensor, scale_tril: Tensor) -> Tensor:
        value: Tensor = sf.TruncatedParaboloid(loc, scale_tril).expect(basis)
        return value

    return _with_gradients(expect, (loc, scale_tril), upstream, backward)


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


CASES: dict[str, Callable[..., Call]] = {
    "line": line,
    "ball": ball,
    "layer": layer,
    "multihead": multihead,
    "mlp": mlp,
}
