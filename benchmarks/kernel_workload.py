"""Attention with 100 heads as a batch of kernel families, and three ways to its expectations."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

import sparsefam as sf
from sparsefam.distributions.kernel_mesh import KernelMesh

from .kernel_reference import GaussianScore, Truth, bumps, truth
from .kernel_rivals import Products, trapezoid_broadcast

__all__ = [
    "FUNCTIONS",
    "METHODS",
    "KernelDensity",
    "KernelMethod",
    "KernelWorkload",
    "draw_weights",
    "drawn_workload",
    "kernel_workload",
    "spread_basis",
]

BATCH, HEADS, FUNCTIONS, POINTS, BANDWIDTH, SPREAD = 64, 100, 64, 256, 0.05, 3.0
# Those of the basis functions in the research code that has heads.
WIDTHS = (0.1, 0.5)


def draw_weights(shape: tuple[int, ...], bandwidth: float, spread: float) -> Tensor:
    """Weights (*shape, POINTS) in float64 of scores with a standard deviation of `spread`.

    A score below zero everywhere changes its sign: outside, its support is empty, or nearly.
    """
    draw = torch.Generator().manual_seed(0)
    weights = torch.randn(*shape, POINTS, generator=draw).double()
    grid = torch.linspace(0, 1, 20 * math.ceil(1 / bandwidth), dtype=torch.float64)
    score = GaussianScore(weights, torch.linspace(0, 1, POINTS).double(), bandwidth)
    f = weights @ score.kernel(grid).T
    scale = torch.where(f.amax(-1) > 0, spread, -spread) / f.std(-1)
    return weights * scale.unsqueeze(-1)


def spread_basis(widths: Sequence[float]) -> sf.bases.GaussianRBF:
    """Gaussians evenly over [0, 1], of these widths in turn, in float64."""
    turns = torch.arange(FUNCTIONS) % len(widths)
    centers = torch.linspace(0, 1, FUNCTIONS, dtype=torch.float64)
    return sf.bases.GaussianRBF(centers, torch.tensor(widths, dtype=torch.float64)[turns])


@dataclass(frozen=True)
class KernelWorkload:
    """Scores on [0, 1] with one Gaussian kernel, basis functions, and the gradient from above.

    Attributes:
        weights: Shape (*batch, I).
        points: Inducing points (I,).
        bandwidth: Of the kernel.
        psi: The basis.
        upstream: d loss / d E_p[psi], shape (*batch, N).
    """

    weights: Tensor
    points: Tensor
    bandwidth: float
    psi: sf.bases.GaussianRBF
    upstream: Tensor
    _panels: dict["KernelDensity", KernelMesh] = field(default_factory=dict)
    _products: dict["KernelDensity", Products] = field(default_factory=dict)

    def panels(self, density: "KernelDensity") -> KernelMesh:
        """The nodes that these densities need, found once and shared, as attention does."""
        if density not in self._panels:
            self._panels[density] = density.build(self.weights, self).panels
        return self._panels[density]

    @cached_property
    def kernel(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Between (n, 1) and (m, 1); one object, so that panels made with it fit."""
        bandwidth = self.bandwidth

        def gaussian(x: Tensor, y: Tensor) -> Tensor:
            return torch.exp(-((x - y.mT) / bandwidth).square() / 2)

        return gaussian

    @cached_property
    def products(self) -> Products:
        """The matrices of the well-written rule."""
        return Products.of(self.points, self.bandwidth, self.psi.centers, self.psi.widths)

    def products_at(self, density: "KernelDensity") -> Products:
        """Those of a rule with the nodes that a density needs, without regard to its edges."""
        if density not in self._products:
            panels = self.panels(density).for_basis(self.psi)
            rule = panels.nodes, panels.measure.reshape(-1, 1)
            fixed = self.points, self.bandwidth, self.psi.centers, self.psi.widths
            self._products[density] = Products.by_rule(*(x.to(self.weights) for x in rule), *fixed)
        return self._products[density]

    def to(self, dtype: torch.dtype) -> "KernelWorkload":
        """All numbers in another dtype, rounded if it is shorter; the bandwidth stays."""
        psi = sf.bases.GaussianRBF(self.psi.centers.to(dtype), self.psi.widths.to(dtype))
        weights, points = self.weights.to(dtype), self.points.to(dtype)
        return KernelWorkload(weights, points, self.bandwidth, psi, self.upstream.to(dtype))

    @cached_property
    def score(self) -> GaussianScore:
        """For the reference, all rows."""
        rows = self.weights.flatten(0, -2).double()
        return GaussianScore(rows, self.points.double(), self.bandwidth)


def kernel_workload(batch: int = BATCH, heads: int = HEADS) -> KernelWorkload:
    """The size that is asked for, or fewer densities, in float32."""
    return drawn_workload((batch, heads), BANDWIDTH, SPREAD, WIDTHS).to(torch.float32)


def drawn_workload(
    shape: tuple[int, ...], bandwidth: float, spread: float, widths: Sequence[float]
) -> KernelWorkload:
    """Densities of some shape, in float64."""
    weights = draw_weights(shape, bandwidth, spread)
    draw = torch.Generator().manual_seed(1)
    upstream = torch.randn(*shape, FUNCTIONS, generator=draw, dtype=torch.float64)
    points = torch.linspace(0, 1, POINTS, dtype=torch.float64)
    return KernelWorkload(weights, points, bandwidth, spread_basis(widths), upstream)


@dataclass(frozen=True)
class KernelDensity:
    """A kernel family.

    Attributes:
        alpha: From 1 to 2.
        inside: Which normalisation; at alpha = 1 they are the same.
    """

    alpha: float
    inside: bool

    @property
    def name(self) -> str:
        """For a table."""
        mode = "" if self.alpha == 1 else ", inside" if self.inside else ", outside"
        return f"α = {self.alpha:g}{mode}"

    def build(
        self,
        weights: Tensor,
        work: KernelWorkload,
        panels: KernelMesh | None = None,
    ) -> sf.SparseDistribution:
        """The densities of some weights."""
        arguments = weights, work.points, work.kernel
        if self.alpha == 1:
            return sf.KernelExp(*arguments, panels=panels)
        mode = "inside" if self.inside else "outside"
        return sf.KernelDeformedExp(*arguments, alpha=self.alpha, normalization=mode, panels=panels)

    def truth(self, work: KernelWorkload, every: int = 1) -> Truth:
        """The reference, for one row in `every`."""
        rows = slice(None, None, every)
        upstream = work.upstream.flatten(0, -2)[rows].double()
        psi = bumps(work.psi.centers, work.psi.widths)
        return truth(work.score.rows(rows), self.alpha, self.inside, psi, upstream)


# To E_p[psi] and its gradient in the weights.
KernelMethod = Callable[[KernelDensity, KernelWorkload], tuple[Tensor, Tensor]]


def by_expect(density: KernelDensity, work: KernelWorkload) -> tuple[Tensor, Tensor]:
    """By sparsefam, with nodes that all calls share, as those of attention do."""

    def expect(weights: Tensor) -> Tensor:
        value: Tensor = density.build(weights, work, work.panels(density)).expect(work.psi)
        return value

    return _with_gradient(expect, work)


def by_broadcast(density: KernelDensity, work: KernelWorkload) -> tuple[Tensor, Tensor]:
    """By the trapezoid rule of research code, which knows "outside" only."""
    fixed = work.points, work.bandwidth, work.psi.centers, work.psi.widths

    def expect(weights: Tensor) -> Tensor:
        return trapezoid_broadcast(weights, *fixed, density.alpha)

    return _with_gradient(expect, work)


def by_products(density: KernelDensity, work: KernelWorkload) -> tuple[Tensor, Tensor]:
    """By the same rule as products of matrices."""

    def expect(weights: Tensor) -> Tensor:
        return work.products.expect(weights, density.alpha)

    return _with_gradient(expect, work)


def by_same_nodes(density: KernelDensity, work: KernelWorkload) -> tuple[Tensor, Tensor]:
    """By products of matrices on the nodes of sparsefam, which knows "outside" only."""

    def expect(weights: Tensor) -> Tensor:
        return work.products_at(density).expect(weights, density.alpha)

    return _with_gradient(expect, work)


def _with_gradient(
    expect: Callable[[Tensor], Tensor], work: KernelWorkload
) -> tuple[Tensor, Tensor]:
    weights = work.weights.detach().requires_grad_()
    value = expect(weights)
    (slope,) = torch.autograd.grad(value, weights, work.upstream)
    return value.detach(), slope


METHODS: dict[str, KernelMethod] = {
    "sparsefam": by_expect,
    "trapezoid, broadcast": by_broadcast,
    "trapezoid, products": by_products,
    "same nodes, products": by_same_nodes,
}
