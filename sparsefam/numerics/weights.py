"""Effective weights as one call, whether a graph is compiled or not."""

import torch
from torch import Tensor

from .effective import power_weights
from .truncated import Power

__all__ = ["find_weights"]


def find_weights(
    x: Tensor, measure: Tensor, of: Power, names: str, upper: Tensor | None = None
) -> list[Tensor]:
    """`power_weights` of names with spaces between."""
    eps = of.eps if isinstance(of.eps, Tensor) else None
    number = 0.0 if isinstance(of.eps, Tensor) else float(of.eps)
    find = _opaque if torch.compiler.is_compiling() else _found
    found: list[Tensor] = find(x, measure, eps, upper, number, of.ratio, of.order, names)
    return found


def _found(
    x: Tensor,
    measure: Tensor,
    eps: Tensor | None,
    upper: Tensor | None,
    number: float,
    ratio: float,
    order: int,
    names: str,
) -> list[Tensor]:
    of = Power(number if eps is None else eps, ratio, order)
    return power_weights(x, measure, of, tuple(names.split()), upper)


# The schema is given: torch 2.6 cannot infer it from list.
@torch.library.custom_op(
    "sparsefam::power_weights",
    mutates_args=(),
    schema=(
        "(Tensor x, Tensor measure, Tensor? eps, Tensor? upper, "
        "float number, float ratio, int order, str names) -> Tensor[]"
    ),
)
def _opaque(
    x: Tensor,
    measure: Tensor,
    eps: Tensor | None,
    upper: Tensor | None,
    number: float,
    ratio: float,
    order: int,
    names: str,
) -> list[Tensor]:
    """`power_weights` as one call in a compiled graph, since it looks at the data."""
    return [w.contiguous() for w in _found(x, measure, eps, upper, number, ratio, order, names)]


@_opaque.register_fake
def _(
    x: Tensor,
    measure: Tensor,
    eps: Tensor | None,
    upper: Tensor | None,
    number: float,
    ratio: float,
    order: int,
    names: str,
) -> list[Tensor]:
    return [torch.empty_like(x).contiguous() for _ in names.split()]
