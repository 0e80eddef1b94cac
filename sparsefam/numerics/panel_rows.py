r"""Effective weights of short powers and their normalisers, on the CPU.

What `effective` and `normalizer` do for any tensors, here in loops compiled by numba: of hundreds
of short operations on the few panels with an edge most costs more than its work, and passes over
all nodes go through memory.
"""

from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .edges import panel_rule
from .patience import while_compiling
from .quadrature import gauss_legendre
from .team import by_threads
from .truncated import Power
from .validation import in_eager, in_memory

__all__ = ["Weighed", "is_for_loops", "weigh"]

# Exponents that the loops know.
_EXPONENTS = (1, 2, 3, 4)
# For how many numbers loops are compiled: in float64, too, only where much is to be gained by it.
_LEAST = {torch.float32: 1, torch.float64: 2**14}
# Units of rounding by which what is constant may vary.
_FLAT = 100
# Fewer numbers are not worth threads: those of a pool take a tenth of a millisecond to begin.
_NUMBERS = 50_000
# Into how many parts a thread's share of the rows goes.
_PARTS = 4

_Array = NDArray[Any]


class Weighed(NamedTuple):
    """What is found for each row.

    Attributes:
        level: The normaliser, or 0, (R,).
        weights: Of the power, (m, G, R).
        lowered: Of the lowered power, (m, G, R).
        mass: Of the former, (R,).
    """

    level: Tensor
    weights: Tensor
    lowered: Tensor
    mass: Tensor


def is_for_loops(x: Tensor, measure: Tensor, of: Power) -> bool:
    """Whether `weigh` is for these inputs, whose values can be looked at for nothing."""
    if isinstance(of.eps, Tensor) or of.exponent not in _EXPONENTS or x.dtype not in _LEAST:
        return False
    shared = measure.shape == (*x.shape[:-1], 1) and x.numel() >= _LEAST[x.dtype]
    return shared and in_eager() and in_memory(x) and _loops() is not None


def weigh(x: Tensor, measure: Tensor, of: Power, normalized: bool) -> Weighed:
    r"""Weights of $[1 + \epsilon(x - A)]_+^k$ and of $[1 + \epsilon(x - A)]_+^{k-1}$.

    Args:
        x: Values at the nodes of panels, (m, G, R).
        measure: The rule's own weights, times a base density, (m, G, 1).
        of: The power.
        normalized: Whether A makes the mass 1, for k = 1 / eps; it is 0 otherwise.
    """
    exponent, rows = int(of.exponent), x.shape[-1]
    arrays = (x, measure.squeeze(-1))
    values, shares = (part.detach().contiguous().numpy() for part in arrays)
    shapes = (rows,), x.shape, x.shape, (rows,)
    found = Weighed(*(x.new_empty(shape) for shape in shapes))
    out = tuple(part.numpy() for part in found)
    rules = _rules(len(x), exponent, x.dtype)
    rules = *rules, _base_series(shares, *rules[0][:2])
    given = values, shares, rules, exponent, float(of.eps), normalized
    count, some = min(torch.get_num_threads(), x.numel() // _NUMBERS), _loops().weigh_rows
    # More parts than threads: some rows take longer than others, and some threads begin late.
    parts = 1 if count < 2 else _PARTS * count
    ends = list(pairwise(rows * i // parts for i in range(parts + 1)))
    with while_compiling(some, values.dtype):
        if parts == 1:
            some(*given, *ends, out)
        else:
            by_threads(lambda pair: some(*given, pair, out), ends, count)
    return found


def _base_series(shares: _Array, own: _Array, to_series: _Array) -> _Array:
    """Coefficients (m, G) of a base known at nodes; the first alone where panels have constants."""
    found = to_series @ (shares / own.reshape(-1, 1))
    rounding = _FLAT * np.finfo(found.dtype).eps
    is_flat = (abs(found[1:]).sum(0) <= rounding * abs(found[0])).all()
    return np.ascontiguousarray(found[:1] if is_flat else found)


@cache
def _loops() -> Any:
    """Looked for when first used, as numba takes long to import, and may not be there."""
    try:
        return import_module(".panel_loops", __package__)
    except (ImportError, RuntimeError):
        return None


@cache
def _rules(order: int, exponent: int, dtype: torch.dtype) -> Any:
    """What the loops call rules, but for the base.

    Of panels the rule's weights, what leads from values to a series and to values at check points,
    these points, and what leads back; then nodes and weights on [0, 1], exact for the power of a
    polynomial times another, and for the power alone.
    """
    like = torch.empty((), dtype=dtype)
    rule, degree = panel_rule(order, like), order - 1
    series = rule.coefficients
    panel = rule.weights, series, rule.checks, rule.points, series.T
    found: list[tuple[Tensor, ...]] = [panel]
    for most in ((exponent + 1) * degree, exponent * degree):
        nodes, weights = gauss_legendre(most // 2 + 1, like)
        found.append(((nodes + 1) / 2, weights / 2))
    return tuple(tuple(np.ascontiguousarray(part.numpy()) for part in parts) for parts in found)
