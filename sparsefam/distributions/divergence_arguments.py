"""What two densities must be for a divergence between them."""

from numbers import Real
from typing import Any

import torch
from torch import distributions as td
from torch.distributions import Distribution, Independent

from .finite import SparseCategorical
from .foreign import class_name, is_discrete

__all__ = ["CATEGORICAL", "compared", "require_number"]

CATEGORICAL = (SparseCategorical, td.Categorical)


def compared(p: Any, q: Any) -> tuple[Any, Any]:
    """Both densities, as they are without an `Independent` that reinterprets nothing.

    Raises:
        ValueError: No distributions, event shapes that differ, batch shapes that do not broadcast,
            only one that has categories, one without a density.
    """
    for name, x in (("p", p), ("q", q)):
        if not isinstance(x, Distribution):
            raise ValueError(f"{name} must be a distribution, got {x!r}")
    p, q = _bare(p), _bare(q)
    if p.event_shape != q.event_shape:
        raise ValueError(f"p and q must have one event shape, got {_shapes(p, q, 'event_shape')}")
    try:
        torch.broadcast_shapes(p.batch_shape, q.batch_shape)
    except RuntimeError:
        found = _shapes(p, q, "batch_shape")
        raise ValueError(f"p and q must have batch shapes that broadcast, got {found}") from None
    finite = any(isinstance(x, CATEGORICAL) for x in (p, q))
    for name, x in (("p", p), ("q", q)):
        if finite and not isinstance(x, CATEGORICAL):
            raise ValueError(f"{name} must be a categorical distribution as the other, got {x}")
        if not finite and (class_name(x) == "Delta" or is_discrete(x)):
            raise ValueError(f"{name} must be continuous, got {x}")
    return p, q


def require_number(name: str, value: object) -> None:
    """Raise a ValueError unless it is a number: derivatives are those of the densities."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise ValueError(f"{name} must be a number, got {value!r}")


def _bare(p: Distribution) -> Distribution:
    while isinstance(p, Independent) and p.reinterpreted_batch_ndims == 0:
        p = p.base_dist
    return p


def _shapes(p: Distribution, q: Distribution, name: str) -> str:
    return f"{tuple(getattr(p, name))} and {tuple(getattr(q, name))}"
