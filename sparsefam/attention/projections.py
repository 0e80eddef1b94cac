"""The projection of each score."""

from collections.abc import Sequence
from typing import Any

import torch

from .arguments import Box
from .kernel_score import KernelScore
from .mixture_score import MixtureScore
from .moments import MomentScore
from .scores import QuadraticScore, ScoreProjection

__all__ = ["score_projection"]

_PROJECTIONS = {"quadratic": QuadraticScore, "kernel": KernelScore, "mixture": MixtureScore}
# The only score that reads an option.
_READERS = {
    "inducing_points": "kernel",
    "kernel": "kernel",
    "normalization": "kernel",
    "components": "mixture",
}


def score_projection(
    score: str,
    embed_dim: int,
    kdim: int,
    heads: int,
    box: Box,
    bias: bool,
    options: Sequence[Any],
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> ScoreProjection | MomentScore:
    """What reads densities off queries and keys.

    Args:
        score: Which score.
        embed_dim: Channels of the queries.
        kdim: Channels of the keys.
        heads: Number of densities for each query.
        box: The domain.
        bias: Whether projections to discrete scores have biases.
        options: What single scores read: inducing points, kernel, normalization, components. None
            is the score's own default.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        ValueError: An argument out of its range, or one that the score does not read.
    """
    named = zip(_READERS, options, strict=True)
    given = {name: value for name, value in named if value is not None}
    for name in given:
        if _READERS[name] != score:
            raise ValueError(
                f"{name} must not be given unless score={_READERS[name]!r}, got score={score!r}"
            )
    if score == "moments":
        return MomentScore(embed_dim, kdim, heads, box, bias, device, dtype)
    make: Any = _PROJECTIONS[score]
    projection: ScoreProjection = make(embed_dim, heads, box, **given, device=device, dtype=dtype)
    return projection
