"""Kernel densities for tests, each with its float64 reference, and those that the battery takes."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyro.contrib.gp.kernels as gp
import torch
from battery import DOUBLE, Family
from references import Array, Kernel, Pieces, gaussian
from torch import Tensor

from sparsefam import KernelDeformedExp, KernelExp, SparseDistribution


def frozen(cls: Callable[..., torch.nn.Module], width: float, dim: int = 1) -> torch.nn.Module:
    """One of Pyro's kernels, its parameters constants in float64."""
    return cls(dim, lengthscale=torch.tensor(width, dtype=DOUBLE)).requires_grad_(False)


def bell(width: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """The Gaussian kernel of numbers or vectors."""
    return lambda x, z: torch.exp(
        -0.5 * ((x.unsqueeze(-2) - z.unsqueeze(-3)) / width).square().sum(-1)
    )


def kernel_density(
    weights: Tensor,
    points: Tensor,
    kernel: Callable[[Tensor, Tensor], Tensor],
    base: Any = None,
    alpha: Tensor | float = 2.0,
    inside: bool = True,
    **options: Any,
) -> SparseDistribution:
    """The member at any alpha from one."""
    if not isinstance(alpha, Tensor) and alpha == 1:
        return KernelExp(weights, points, kernel, base, **options)
    normalization = "inside" if inside else "outside"
    return KernelDeformedExp(weights, points, kernel, base, alpha, normalization, **options)


@lru_cache
def expansion(width: float, size: float = 2.0, seed: int = 0) -> tuple[Array, Array]:
    """Weights and inducing points on [0, 1], exact in float32; the score's deviation is `size`."""
    count = 12 if width > 0.1 else 24 if width > 0.02 else 48
    points = np.round(np.linspace(0.02, 0.98, count) * 1024) / 1024
    weights = np.random.default_rng(seed).normal(size=count)
    score = gaussian(width)(np.linspace(0, 1, 2001), points) @ weights
    return (weights * size / score.std()).astype(np.float32).astype(float), points


@lru_cache
def reference(
    width: float, alpha: float, inside: bool = True, size: float = 2.0, seed: int = 0
) -> Kernel:
    weights, points = expansion(width, size, seed)
    return Kernel(weights, points, gaussian(width), width, alpha=alpha, inside=inside)


def density(
    width: float,
    alpha: float,
    inside: bool = True,
    dtype: torch.dtype = DOUBLE,
    size: float = 2.0,
    seed: int = 0,
) -> SparseDistribution:
    """What `reference` describes, with weights that require grad."""
    weights, points = (torch.tensor(x, dtype=dtype) for x in expansion(width, size, seed))
    kernel = frozen(gp.RBF, width)
    return kernel_density(weights.requires_grad_(), points, kernel, None, alpha, inside)


def jacobian(values: Tensor, inputs: Tensor) -> Tensor:
    """Derivatives (N, *shape of the inputs) of values (N,)."""
    rows = [torch.autograd.grad(v, inputs, retain_graph=True)[0] for v in values]
    return torch.stack(rows)


# The battery's
POINTS, WIDTH = (0.0625, 0.28125, 0.5, 0.71875, 0.9375), 0.125
ONE, TWO = [-4.0, 1.5, 2.5, 1.0, -3.5], [-4.0, 2.5, -3.5, 2.0, 1.0]


def rbf(x: Tensor, z: Tensor) -> Tensor:
    return bell(WIDTH)(x, z)  # which pickles


# Nodes for all: where parameters are traced they cannot be chosen.
PANELS: dict[Any, Any] = {}


def _make(inside: bool, weights: Tensor, alpha: Tensor | float, **options: Any) -> Any:
    dtype = weights.dtype if isinstance(weights, Tensor) else DOUBLE
    device = weights.device if isinstance(weights, Tensor) else None
    points = torch.tensor(POINTS, dtype=dtype, device=device)
    peaked = not isinstance(alpha, Tensor) and alpha == 1
    key = dtype, device, peaked
    if key not in PANELS:
        scores = 1.5 * torch.tensor([ONE, TWO], dtype=dtype, device=device)
        PANELS[key] = kernel_density(scores, points, rbf, None, 1.0 if peaked else 2.0).mesh
    return kernel_density(weights, points, rbf, None, alpha, inside, mesh=PANELS[key], **options)


def _pieces(inside: bool, weights: Array, alpha: float) -> Pieces:
    points = np.array(POINTS)
    return Kernel(weights, points, gaussian(WIDTH), WIDTH, alpha=alpha, inside=inside).pieces()


def _base(t: Tensor) -> Tensor:
    return ((t >= 0) & (t <= 1)).to(t.dtype)


# Of parts of panels only first derivatives exist, and of integrals that end at the edges.
ONCE = ("cdf", "icdf", "log_survival", "log_interval_prob")
ONCE_AT_EDGES = ("entropy", "kl", "tsallis", "bregman", "fenchel_young")
COMPILED = {(2.0, False): ("expect-GaussianRBF",)}


def _family(name: str, weights: list[float], alpha: float | None, inside: bool = True) -> Family:
    """Of fixed alpha, or with None of one that is learned."""
    others = [[w + shift for w in weights] for shift in (-0.25, 0.125, 0.25)]
    scaled = [[[1.25 * w for w in row] for row in others]]
    fixed = {} if alpha is None else {"alpha": alpha}
    learned = {"alpha": 1.6875} if alpha is None else {}
    return Family(
        name,
        partial(_make, inside, **fixed),
        partial(_pieces, inside, **fixed),
        scalar={"weights": weights} | learned,
        batch={"weights": [others, *scaled]} | ({"alpha": [1.125, 1.5, 2.0]} if learned else {}),
        escorts=(None, 0.0, 0.4, 1.0, 1.5),
        base=_base,
        ranks={"weights": 1},
        connected=weights is ONE or alpha == 1,
        signed=True,
        once=None if alpha is None else ONCE if alpha == 1 else (*ONCE, *ONCE_AT_EDGES),
        forward=alpha is not None,
        backward_only=("icdf", "kl", "tsallis", "bregman", "fenchel_young"),  # they read values
        exports=False,
        # Of fixed alphas one is enough each time: their code is the same.
        thorough=alpha in (None, 1, 2),
        infers_shapes=False,
        compiled=("jit",) if alpha is None else COMPILED.get((alpha, inside), ()),
        untraced="torch.jit cannot trace",
    )


KERNELS = [
    _family("KernelExp", TWO, 1.0),
    *[
        _family(
            f"KernelDeformedExp-{alpha}-{'inside' if inside else 'outside'}", weights, alpha, inside
        )
        for alpha, inside, weights in (
            (1.5, True, ONE),
            (1.5, False, TWO),
            (2.0, True, TWO),
            (2.0, False, ONE),
        )
    ],
    _family("KernelDeformedExp-learned", ONE, None),
]
