"""The weights of a mixture, from what users pass."""

import math

import torch
from torch import Size, Tensor
from torch.distributions import Categorical

from ..numerics.validation import require
from .components import Components
from .finite import SparseCategorical

__all__ = ["log_weights", "mixture_batch", "require_unit_beta"]


def log_weights(given: Tensor | Categorical | SparseCategorical) -> Tensor:
    """Log weights (*batch, K) from what a mixture was given.

    Raises:
        ValueError: Neither a real tensor of at least one axis nor a categorical distribution.
    """
    if isinstance(given, SparseCategorical):
        return given._log_probs()
    if isinstance(given, Categorical):
        if "probs" not in vars(given):
            return given.logits
        # Its own logits are clamped: a weight of zero would become a rounding error.
        alive = given.probs > 0
        return torch.where(alive, torch.where(alive, given.probs, 1.0).log(), -math.inf)
    if not isinstance(given, Tensor) or given.dim() < 1 or given.is_complex():
        raise ValueError(
            f"logits must be a real tensor (*batch, K) or a categorical distribution, got {given!r}"
        )
    return given if given.is_floating_point() else given.to(torch.get_default_dtype())


def mixture_batch(logits: Tensor, parts: Components) -> Size:
    """Batch shape of a mixture.

    Raises:
        ValueError: Another K than the components have, or batches that do not broadcast.
    """
    if logits.shape[-1] != parts.count:
        raise ValueError(
            f"logits must have shape (*batch, K) for K = {parts.count} components, got "
            f"{tuple(logits.shape)}"
        )
    try:
        batch: Size = torch.broadcast_shapes(logits.shape[:-1], parts.batch_shape)
    except RuntimeError:
        raise ValueError(
            f"logits must have a batch that broadcasts with the components' "
            f"{tuple(parts.batch_shape)}, got {tuple(logits.shape[:-1])}"
        ) from None
    return batch


def require_unit_beta(beta: Tensor | float | None, alpha: Tensor) -> None:
    """Raise unless beta is 1, the default 2 - alpha of a mixture.

    Raises:
        ValueError: `beta` other than 1.
    """
    power = alpha if beta is None else torch.as_tensor(beta)
    require(power == 1, "beta", "1 for a mixture, whose other escorts have no closed form", beta)
