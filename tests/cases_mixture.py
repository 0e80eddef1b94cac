"""The mixtures that the battery is run on: on the line, and on several intervals."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from battery import Family
from references import Array, Pieces, merged, pieces

from sparsefam import Mixture, Normal, SparseDistribution, TruncatedParabola

# How far from its center a component may have to be cut.
SHARES = np.array([0.0, 1.0, 3.0, 8.0, 40.0])


def _make(
    cls: Callable[..., SparseDistribution],
    loc: Any,
    scale: Any,
    logits: Any,
    validate_args: bool | None = None,
) -> Mixture:
    components = cls(loc, scale, validate_args=validate_args)
    return Mixture(logits, components, validate_args=validate_args)


def _density(shape: Callable[[Array], Array], loc: Array, scale: Array, logits: Array) -> Any:
    weights = np.exp(logits) / np.exp(logits).sum() / scale

    def density(t: Any) -> Any:
        x = (np.asarray(t)[..., None] - loc) / scale
        return (shape(x) * weights).sum(-1)

    return density


def _normal(x: Array) -> Array:
    return np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)


def _parabola(x: Array) -> Array:
    return 0.75 * np.maximum(0.0, 1 - x**2)


def _normals(loc: Array, scale: Array, logits: Array) -> Pieces:
    cuts = loc + scale * np.concatenate([-SHARES[1:], SHARES])[:, None]
    return pieces(_density(_normal, loc, scale, logits), sorted({*cuts.ravel().tolist()}))


def _parabolas(loc: Array, scale: Array, logits: Array) -> Pieces:
    marks = sorted({*(loc - scale).tolist(), *(loc + scale).tolist()})
    spans = merged(np.stack([loc - scale, loc + scale], -1).tolist())
    cuts = [[t for t in marks if a <= t <= b] for a, b in spans]
    return pieces(_density(_parabola, loc, scale, logits), *cuts)


def _family(
    cls: Callable[..., SparseDistribution],
    density: Callable[..., Pieces],
    connected: bool,
    compiled: tuple[str, ...],
) -> Family:
    return Family(
        f"Mixture-{cls.__name__}",
        partial(_make, cls),
        density,
        # Of the bounded ones the first two overlap, and the last stands alone.
        scalar={
            "loc": [-0.5, 0.3125, 2.5],
            "scale": [0.6875, 0.5, 0.75],
            "logits": [0.25, -0.5, 0.375],
        },
        batch={
            "loc": [[[-0.5, 0.3125, 2.5]], [[-2.0, 0.25, 1.0]]],
            "scale": [[0.6875, 0.5, 0.75], [0.25, 0.125, 0.5], [0.125, 0.625, 0.25]],
            "logits": [0.25, -0.5, 0.375],
        },
        escorts=(None, 1.0),
        no_escorts=(0.5, 2.0, -0.5),
        ranks={"loc": 1, "scale": 1, "logits": 1},
        connected=connected,
        constant=("log_normalizer",),
        infers_shapes=False,
        compiled=compiled,
    )


MIXTURES = [
    _family(Normal, _normals, True, ("jit", "expect-GaussianRBF")),
    _family(TruncatedParabola, _parabolas, False, ("jit", "log_prob")),
]
