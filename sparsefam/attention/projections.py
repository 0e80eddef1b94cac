"""The projection of each score."""

from typing import Literal

import torch
from torch import Tensor

from ..kernels import Kernel
from .arguments import Box
from .kernel_score import KernelScore
from .mixture_score import MixtureScore
from .scores import QuadraticScore, ScoreProjection

__all__ = ["ScoreOptions", "score_projection"]

# What single scores read: inducing points, kernel, normalization; components.
ScoreOptions = tuple[Tensor | int, Kernel | None, Literal["inside", "outside"], int]


def score_projection(
    score: str,
    embed_dim: int,
    heads: int,
    box: Box,
    own: ScoreOptions,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> ScoreProjection | None:
    """What reads densities off the queries alone; None for scores that read the keys, too.

    Raises:
        ValueError: An argument out of its range, or one that the score does not read.
    """
    points, kernel, normalization, components = own
    if score == "kernel":
        options = (points, kernel, normalization)
        return KernelScore(embed_dim, heads, box, *options, device, dtype)
    _refuse(score, points, kernel, normalization)
    if score == "mixture":
        return MixtureScore(embed_dim, heads, box, components, device, dtype)
    if score == "quadratic":
        return QuadraticScore(embed_dim, heads, box, device, dtype)
    return None


def _refuse(score: str, points: Tensor | int, kernel: Kernel | None, normalization: str) -> None:
    given = {
        "inducing_points": isinstance(points, Tensor),
        "kernel": kernel is not None,
        "normalization": normalization != "inside",
    }
    for name in given:
        if given[name]:
            raise ValueError(f"{name} must not be given unless score='kernel', got score={score!r}")
