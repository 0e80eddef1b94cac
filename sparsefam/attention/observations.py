"""Rules for observations, and the errors of those who break them."""

from typing import NamedTuple

import torch
from torch import Size, Tensor

from ..bases import Basis, GaussianRBF
from ..numerics.gaussian_interval import unseen
from ..numerics.normal_equations import over_events

__all__ = ["Faults", "check_real", "check_shapes", "faults", "reached", "require"]


def check_shapes(
    positions: Tensor, values: Tensor, mask: Tensor | None, event: Size, sharded: bool
) -> None:
    """Raises ValueError unless shapes fit; only a shard may be of no length."""
    for name, x in (("positions", positions), ("values", values)):
        if not isinstance(x, Tensor):
            raise ValueError(f"{name} must be a tensor, got {type(x).__name__}")
    check_real("positions", positions)
    if values.ndim != 3 or 0 in (values.shape[2:] if sharded else values.shape[1:]):
        raise ValueError(
            f"values must have shape (B, L, E), L and E not zero, got {tuple(values.shape)}"
        )
    if not values.is_floating_point():
        raise ValueError(f"values must be floating, got {values.dtype}")
    batch, length = values.shape[:2]
    shared = (length, *event)
    if positions.shape not in ((batch, *shared), (1, *shared), shared):
        raise ValueError(
            f"positions must have shape {(batch, *shared)}, {(1, *shared)} or {shared} "
            f"to match values and basis, got {tuple(positions.shape)}"
        )
    if mask is not None and not isinstance(mask, Tensor):
        raise ValueError(f"mask must be a tensor, got {mask!r}")
    if mask is not None and (mask.shape != (batch, length) or mask.dtype != torch.bool):
        raise ValueError(
            f"mask must be boolean of shape ({batch}, {length}) to match values, "
            f"got {mask.dtype} of shape {tuple(mask.shape)}"
        )


def check_real(name: str, x: Tensor) -> None:
    """Raises ValueError for locations that are none, such as a mask in their place."""
    if x.is_complex() or x.dtype == torch.bool:
        raise ValueError(f"{name} must be real numbers, got {x.dtype}")


class Faults(NamedTuple):
    """How many observations that take part have something wrong, in all examples together.

    Attributes:
        positions: Positions with a coordinate that is not finite.
        values: Values that are not finite.
        outside: Positions outside the box that functions of the basis reach.
    """

    positions: Tensor
    values: Tensor
    outside: Tensor

    def require_none(self, positions: Tensor, values: Tensor, mask: Tensor | None) -> None:
        """Raises ValueError if numbers are not finite, naming the first that is among these."""
        pairs = {"positions": (self.positions, positions), "values": (self.values, values)}
        for name, (count, found) in pairs.items():
            rule = f"{name} must be finite where they take part"
            if torch.compiler.is_compiling():
                torch._assert_async(torch._is_all_true(count == 0), rule)
            elif not torch._is_all_true(count == 0):
                found = found.expand(*values.shape[:2], *found.shape[2:])
                require(found.isfinite() | ~_taken(mask, found), rule, found)
                raise ValueError(f"{rule}, got others on another rank")


def reached(basis: Basis) -> tuple[Tensor, Tensor] | None:
    """Ends (*event) of a box outside which all functions are zero to their precision, if known."""
    reach = basis.reach
    if reach is not None:
        return reach[0].amin(), reach[1].amax()
    if not isinstance(basis, GaussianRBF):
        return None
    centers, widths, covariance = basis.centers.detach(), basis.widths, basis.covariance
    if widths is not None:
        spread = widths.detach().unsqueeze(-1)
    elif covariance is not None:
        spread = covariance.detach().diagonal(dim1=-2, dim2=-1).sqrt()
    far = unseen(centers) * spread
    return (centers - far).amin(0), (centers + far).amax(0)


def faults(
    positions: Tensor,
    values: Tensor,
    mask: Tensor | None,
    window: tuple[Tensor, Tensor] | None,
    energy: Tensor,
) -> Faults:
    """Counts faults; `window` is the box, if it is asked for, and `energy` the values' squares."""
    outside = torch.zeros_like(positions, dtype=torch.bool)
    if window is not None:
        outside = (positions < window[0]) | (positions > window[1])
    outside = outside.flatten(2).any(-1) if positions.ndim > 2 else outside
    wrong = [~positions.isfinite(), outside]
    # Values whose squares have a finite sum are finite, and need not be read once more.
    if torch.compiler.is_compiling() or not torch._is_all_true(energy.isfinite()):
        wrong.insert(1, ~values.isfinite())
    counts = [(bad & _taken(mask, bad)).sum() for bad in wrong]
    of_values = counts[1] if len(counts) > 2 else torch.zeros_like(counts[0])
    return Faults(counts[0], of_values, counts[-1])


def _taken(mask: Tensor | None, like: Tensor) -> Tensor:
    """Where observations take part, to broadcast against what has (B, L) in front."""
    if mask is None:
        return torch.ones((), dtype=torch.bool, device=like.device)
    return over_events(mask, like.shape[2:])


def require(valid: Tensor, rule: str, found: Tensor) -> None:
    """Raises at the first place that is not valid; in a compiled graph, which cannot, asserts."""
    if torch.compiler.is_compiling():
        torch._assert_async(torch._is_all_true(valid), rule)
    elif not torch._is_all_true(valid):
        first = (~valid).nonzero()[0].tolist()
        raise ValueError(f"{rule}, got {found[tuple(first)].item()} at index {first}")
