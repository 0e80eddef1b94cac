"""Workloads by name: each builds its inputs and returns a call, forward and backward.

They use public names of the package only. Those with a `method` compare it with alternatives.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import sparsefam as sf

from . import rivals

Call = Callable[[], tuple[Tensor, ...]]
OURS = "sparsefam"


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


FAMILIES: dict[str, Callable[..., Any]] = {
    "α = 2": sf.TruncatedParabola,
    "α = 3/2": partial(sf.BetaGaussian, alpha=1.5),
    "α = 4/3": partial(sf.BetaGaussian, alpha=4 / 3),
    "α = 1.7": partial(sf.BetaGaussian, alpha=1.7),
    "triangular": sf.Triangular,
}
# Half-widths of the supports; the basis functions have width 0.02.
SUPPORTS = {"wide": (0.1, 0.5), "mixed": (0.002, 0.5), "narrow": (0.0002, 0.02)}
ON_SUPPORTS = "trapezoid on supports"


def line(
    family: str = "α = 2",
    supports: str = "mixed",
    method: str = OURS,
    densities: int = 4096,
    functions: int = 128,
    double: bool = False,
    points: int = 1000,
) -> Call:
    """Expectations in 1-D. All supports lie in [0, 1]; half-widths are log-uniform.

    The trapezoid rule on supports takes the first of each 128 densities only: its time is in
    proportion to their number.
    """
    draw, dtype = _generator(), torch.float64 if double else torch.float32
    low, high = (math.log(x) for x in SUPPORTS[supports])
    scale = torch.exp(low + (high - low) * torch.rand(densities, generator=draw))
    loc = scale + (1 - 2 * scale) * torch.rand(densities, generator=draw)
    upstream = torch.randn(densities, functions, generator=draw)
    few = max(1, densities // 128) if method == ON_SUPPORTS else densities
    inputs = [x[:few].to(dtype) for x in (loc, scale, upstream)]
    psi = sf.bases.GaussianRBF(torch.linspace(0, 1, functions, dtype=dtype), 0.02)
    build = FAMILIES[family]
    expect: dict[str, Callable[..., Tensor]] = {
        OURS: lambda *x: build(*x).expect(psi),
        ON_SUPPORTS: lambda *x: rivals.trapezoid_on_supports(build, *x, psi, points),
    }
    return differentiated(expect[method], inputs[:2], inputs[2])


POLAR = "polar rule"


def ball(
    densities: int = 64,
    functions: int = 100,
    width: float = math.sqrt(1e-3),
    half_axes: tuple[float, float] = (0.1, 0.5),
    method: str = OURS,
    double: bool = False,
    ndim: int = 2,
) -> Call:
    """Expectations under truncated paraboloids, in any orientation, centers on a grid."""
    draw, dtype = _generator(), torch.float64 if double else torch.float32
    low, high = half_axes
    axes = low * (high / low) ** torch.rand(densities, ndim, generator=draw)
    turns = torch.linalg.qr(torch.randn(densities, ndim, ndim, generator=draw))[0]
    upper = torch.linalg.qr((turns * axes.unsqueeze(-2)).mT)[1]
    tril = upper.mT * upper.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    loc = torch.rand(densities, ndim, generator=draw)
    upstream = torch.randn(densities, functions, generator=draw)
    centers = sf.bases.GaussianRBF.grid(functions, width, ndim=ndim).centers.to(dtype)
    psi = sf.bases.GaussianRBF(centers, torch.tensor(width).to(dtype))
    expect: dict[str, Callable[..., Tensor]] = {
        OURS: lambda loc, tril: sf.TruncatedParaboloid(loc, tril.tril()).expect(psi),
        POLAR: lambda loc, tril: rivals.polar_rule(loc, tril.tril(), centers, psi.widths),
    }
    loc, tril, upstream = (x.to(dtype) for x in (loc, tril, upstream))
    return differentiated(expect[method], (loc, tril), upstream)


CHANNELS, HEADS = 256, 8


def _training_step(module: nn.Module, forward: Callable[[Tensor], Tensor], length: int) -> Call:
    """Return a call of one training step without its optimizer, on one sequence."""
    x = torch.randn(1, length, CHANNELS, generator=_generator(), requires_grad=True)
    upstream = torch.randn(1, length, CHANNELS, generator=_generator(1))
    leaves = (x, *(p for p in module.parameters() if p.requires_grad))

    def call() -> tuple[Tensor, ...]:
        value = forward(x)
        return value.detach(), *torch.autograd.grad(value, leaves, upstream, allow_unused=True)

    return call


def layer(alpha: float = 2.0, length: int = 1024) -> Call:
    """`ContinuousAttention` of a sequence to itself."""
    torch.manual_seed(0)
    regression = sf.attention.RidgeRegression(sf.bases.GaussianRBF.grid(128, 0.03))
    attention = sf.attention.ContinuousAttention(
        CHANNELS, HEADS, regression, alpha=alpha, batch_first=True
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


@dataclass(frozen=True)
class KernelCase:
    """Scores on [0, 1] with one Gaussian kernel, basis functions, and the gradient from above."""

    weights: Tensor  # (*batch, I)
    points: Tensor  # inducing points (I,)
    bandwidth: float  # of the kernel
    centers: Tensor  # of the basis functions, (N,)
    widths: Tensor  # of the basis functions, (N,)
    upstream: Tensor  # d loss / d E_p[psi], (*batch, N)

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

        def gaussian(x: Tensor, y: Tensor) -> Tensor:
            return torch.exp(-((x - y.mT) / self.bandwidth).square() / 2)

        options: dict[str, Any] = {"alpha": alpha}
        options["normalization"] = "inside" if inside else "outside"
        family = partial(sf.KernelDeformedExp, **options) if alpha != 1 else sf.KernelExp
        build = partial(family, inducing_points=self.points, kernel=gaussian)
        if share:
            build = partial(build, mesh=build(self.weights.flatten(0, -2)[0]).mesh)
        return build


def kernel_case(
    shape: tuple[int, ...], bandwidth: float, deviation: float, widths: Sequence[float]
) -> KernelCase:
    """Draw 256 weights a score in float64, and 64 basis functions of these widths in turn.

    Scores have a standard deviation on [0, 1]. One that is negative everywhere is negated, since
    its support would be empty if it is normalized outside.
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


INSIDE, OUTSIDE = "sparsefam, inside", "sparsefam, outside"
TRAPEZOID, PRODUCTS = "trapezoid", "trapezoid as products"


def kernel(alpha: float = 2.0, method: str = INSIDE, shape: tuple[int, int] = (64, 100)) -> Call:
    """Expectations of kernel families whose nodes are found once, as in attention."""
    case = kernel_case(shape, 0.05, 3.0, (0.1, 0.5)).to(torch.float32)
    fixed = case.points, case.bandwidth, case.centers, case.widths
    expect: dict[str, Callable[[Tensor], Tensor]] = {
        TRAPEZOID: lambda weights: rivals.kernel_trapezoid(weights, *fixed, alpha),
        PRODUCTS: rivals.kernel_products(*fixed, alpha),
    }
    if method not in expect:
        build = case.builder(alpha, method == INSIDE, share=True)
        expect[method] = lambda weights: build(weights).expect(case.basis)
    return differentiated(expect[method], (case.weights,), case.upstream)


def content_case(functions: int, deviation: float) -> KernelCase:
    """Draw scores (12, 32) of Gaussians 1.5 steps wide, which are the values' basis, too."""
    points, width = torch.linspace(0, 1, functions).double(), 1.5 / functions
    weights = torch.randn(12, 32, functions, generator=_generator()).double()
    grid = torch.linspace(0, 1, 8 * functions, dtype=torch.float64)
    f = weights @ torch.exp(-((grid - points.unsqueeze(-1)) / width).square() / 2)
    weights = (deviation / f.std(-1, keepdim=True) * weights).float().double()
    widths = torch.full_like(points, width)
    return KernelCase(weights, points, width, points, widths, torch.zeros_like(weights))


MESH_KNOWN = "mesh known"


def content(functions: int, alpha: float, deviation: float, method: str = OURS) -> Call:
    """Expectations of a basis under densities of attention by content, forward only."""
    case = content_case(functions, deviation)
    basis = sf.bases.GaussianRBF(case.points.float(), case.bandwidth)
    weights = (case.weights * (case.bandwidth * math.sqrt(2 * math.pi))).float()
    score = sf.scores.BasisExpansion(weights, basis)
    p = sf.rpm(score, alpha)
    options: dict[str, Any] = {"mesh": p.mesh} if alpha == 1 else {"mesh": p.mesh, "alpha": alpha}
    expect: dict[str, Callable[[], Tensor]] = {
        OURS: lambda: sf.rpm(score, alpha).expect(basis),
        MESH_KNOWN: lambda: type(p).from_score(score, **options).expect(basis),
        TRAPEZOID: lambda: rivals.content_trapezoid(weights, basis, alpha, products=False),
        PRODUCTS: lambda: rivals.content_trapezoid(weights, basis, alpha, products=True),
    }
    return torch.no_grad()(lambda: (expect[method](),))


def density_fit(count: int = 10_000) -> Call:
    """`SparseDensity` with default settings, on two separated parabolas."""
    draw = np.random.default_rng(0)
    first = 0.15 + 0.26 * draw.beta(2, 2, 3 * count // 5)
    numbers = np.concatenate([first, 0.67 + 0.16 * draw.beta(2, 2, count * 2 // 5)])

    def call() -> tuple[Tensor, ...]:
        sf.estimators.SparseDensity(random_state=0).fit(numbers[:, None])
        return ()

    return call


_ALL = (line, ball, kernel, content, density_fit, layer, multihead)
CASES: dict[str, Callable[..., Call]] = {case.__name__: case for case in _ALL}
