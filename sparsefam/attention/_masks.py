"""Masks of attention layers, and the checks and conversions of inputs that attention shares."""

import math
from contextlib import AbstractContextManager, nullcontext
from operator import eq
from typing import NamedTuple

import torch
from torch import Size, Tensor

from .._numerics.least_squares import add_event_dims
from .._numerics.modes import compiled
from .._numerics.validation import require_tensor

__all__ = [
    "AttentionMask",
    "allowed_by",
    "check_finite",
    "check_mask",
    "check_real",
    "check_shape",
    "full_precision",
    "is_autocasting",
    "require_all",
    "require_finite",
    "to_single",
]

Shape = tuple[int, ...]


class AttentionMask(NamedTuple):
    """Which positions queries may read."""

    observed: Tensor | None = None  # True where any query may read (B, L). None: everywhere
    visible: Tensor | None = None  # By query (B, heads or 1, Lq, L). None: as observed
    bias: Tensor | None = None  # Added to discrete scores, broadcasts to (B, heads, Lq, L)

    @classmethod
    def from_masks(
        cls, padding: Tensor | None, mask: Tensor | None, batch: int, heads: int
    ) -> "AttentionMask":
        """Combine the masks of `ContinuousAttention.forward`.

        Args:
            padding: The `key_padding_mask`.
            mask: The `attn_mask`, (Lq, L) or (B * heads, Lq, L).
            batch: B.
            heads: Number of heads.
        """
        observed, bias = (None, None) if padding is None else _split(padding)
        if bias is not None:
            bias = bias[:, None, None]
        if mask is None:
            return cls(observed, None, bias)
        # (B, heads, Lq, L), or (1, 1, Lq, L) for a mask that examples and heads share
        by_head = mask.unflatten(0, (batch, heads)) if mask.dim() == 3 else mask[None, None]
        allowed, by_query = _split(by_head)
        if by_query is not None:
            bias = by_query if bias is None else by_query + bias
        visible = allowed.expand(batch, *allowed.shape[1:])
        if observed is not None:
            visible = visible & observed[:, None, None]
        # Without queries `any` would hide all positions, about which the mask says nothing.
        return cls(visible.any(2).any(1) if mask.shape[-2] else observed, visible, bias)

    def check(self, discrete: bool) -> None:
        """Raise ValueError where a query may read nothing, or where a bias cannot be added.

        It must be below inf, and 0 unless scores are `discrete`.
        """
        if self.visible is not None:
            rule = "attn_mask and key_padding_mask must leave every query a position to read"
            count = self.visible.sum(-1)
            require_all(count > 0, rule, count)
        elif self.observed is not None:
            rule = "key_padding_mask must leave every example a position to read"
            count = self.observed.sum(-1)
            require_all(count > 0, rule, count)
        if self.bias is not None:
            names = "attn_mask and key_padding_mask"
            require_all(self.bias < math.inf, f"{names} must be numbers below inf", self.bias)
            rule = f"{names} must be boolean, or 0 and -inf, where no weights are discrete"
            require_all((self.bias == 0) | discrete, rule, self.bias)

    def mean(self, x: Tensor) -> Tensor:
        """Return means (B, Lq or 1, heads, E) of x (B, L, heads, E) over readable positions."""
        readable = self._readable()
        if readable is None:
            return x.mean(1, keepdim=True)
        weights = readable.to(x.dtype)
        weights = weights / weights.sum(-1, keepdim=True)
        return torch.einsum("bhql,blhe->bqhe", weights, x)

    def added(self, dtype: torch.dtype) -> Tensor | None:
        """Return the summand of discrete scores, -inf where masked; None if there is none.

        It broadcasts to (B, heads, Lq, L).
        """
        bias, readable = self.bias, self._readable()
        if readable is not None:
            bias = torch.where(readable, 0.0 if bias is None else bias, -math.inf)
        return None if bias is None else bias.to(dtype)

    def _readable(self) -> Tensor | None:
        """Return True where queries may read (B, heads or 1, Lq or 1, L). None: everywhere."""
        if self.visible is not None or self.observed is None:
            return self.visible
        return self.observed[:, None, None]


def allowed_by(mask: Tensor) -> Tensor:
    """Return True where a boolean or floating mask lets positions be read."""
    return ~mask if mask.dtype == torch.bool else mask != -math.inf


def _split(mask: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return where a mask lets positions be read, and its summand of scores there, else 0.

    A boolean mask has no summand: None.
    """
    allowed = allowed_by(mask)
    return allowed, None if mask.dtype == torch.bool else torch.where(allowed, mask, 0)


def require_all(valid: Tensor, rule: str, values: Tensor) -> None:
    """Raise ValueError unless all is valid; the message has the first value that is not.

    Compiled graphs, which cannot raise, assert instead.

    Args:
        valid: Booleans.
        rule: Beginning of the message, such as "x must be positive".
        values: Numbers of the same shape.
    """
    if compiled():
        torch._assert_async(valid.all(), rule)
    elif not torch._is_all_true(valid):
        first = (~valid).nonzero()[0].tolist()
        raise ValueError(f"{rule}, got {values[tuple(first)].item()} at index {first}")


def check_finite(name: str, x: Tensor, rule: str = "finite where they take part") -> None:
    """Raise ValueError unless all numbers of x are finite.

    Args:
        name: Of x in the message.
        x: Numbers, with zeros where they take no part, as at masked positions of attention.
        rule: End of the message, after "must be".
    """
    # If the sum is finite, so are all numbers: that reads them once and writes nothing. A sum of
    # finite numbers may overflow, so that each is checked before an error is raised.
    if compiled() or not torch._is_all_true(x.detach().sum().isfinite()):
        require_all(x.isfinite(), f"{name} must be {rule}", x)


def require_finite(name: str, x: Tensor, shape: Size, mask: Tensor | None) -> None:
    """Raise ValueError unless positions or values that take part are finite.

    Args:
        name: Of the numbers in the message.
        x: Positions or values (B or 1, L, ...).
        shape: Begins with (B, L).
        mask: True where they take part (B, L). None: everywhere.
    """
    if mask is None:
        check_finite(name, x)
    else:
        x = x.expand(*shape[:2], *x.shape[2:])
        valid = x.detach().isfinite() | ~add_event_dims(mask, x.shape[2:])
        require_all(valid, f"{name} must be finite where they take part", x)


def check_real(name: str, x: Tensor) -> None:
    """Raise ValueError unless x is a tensor, neither complex nor boolean."""
    require_tensor(name, x)
    if x.is_complex() or x.dtype == torch.bool:
        raise ValueError(f"{name} must be real numbers, got {x.dtype}")


def check_shape(name: str, x: Tensor, *shapes: Shape, hint: str = "") -> None:
    """Raise ValueError unless x is a tensor of one of the shapes; `hint` follows their list."""
    require_tensor(name, x)
    # `in` does not compare sizes that a trace holds as symbols.
    if not any(len(x.shape) == len(y) and all(map(eq, x.shape, y)) for y in shapes):
        listed = " or ".join(map(str, dict.fromkeys(shapes)))
        raise ValueError(f"{name} must have shape {listed}{hint}, got {tuple(x.shape)}")


def check_mask(
    name: str, x: Tensor, *shapes: Shape, hint: str = "", or_floating: bool = False
) -> None:
    """Raise ValueError unless x is a boolean tensor of one of the shapes, as for `check_shape`.

    With `or_floating` it may be a floating one.
    """
    check_shape(name, x, *shapes, hint=hint)
    if x.dtype != torch.bool and not (or_floating and x.is_floating_point()):
        raise ValueError(f"{name} must be boolean{' or floating' * or_floating}, got {x.dtype}")


# Autocast may round projections of sequences, and nothing between values and contexts.


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """Return a context in which autocast is off on the device of a tensor."""
    return torch.autocast(x.device.type, enabled=False) if is_autocasting(x) else nullcontext()


def is_autocasting(x: Tensor) -> bool:
    """Return whether autocast is on for the device of a tensor."""
    kind = x.device.type
    return kind != "meta" and torch.is_autocast_enabled(kind)


def to_single(x: Tensor) -> Tensor:
    """Convert half precision to float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
