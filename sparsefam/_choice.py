r"""The choice of how $E_p[\psi]$ is computed: one ordered table of rules, which `expect` asks."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from ._numerics.least_squares import recomputed
from ._numerics.modes import branches_allowed
from ._numerics.validation import LARGEST_ORDER, require_integer
from ._types import DensityLike
from .bases import Basis

__all__ = [
    "GENERAL",
    "TABLE",
    "Mode",
    "Rule",
    "Shifts",
    "choose",
    "contexts",
    "explain",
    "means",
    "nearest",
    "register_expect",
]

_ClosedForm = TypeVar("_ClosedForm", bound=Callable[..., object])
Function = Basis | Callable[[Tensor], Tensor]

# Pairs of a query and a basis function in a block of contexts: large enough for threads, small
# enough for the cache of a CPU. Fewer than four blocks are not worth their while.
_PAIRS, _DEVICE_PAIRS = 2**18, 2**24


class Shifts(NamedTuple):
    """Shifts of the density of the first query, from which all others follow."""

    steps: Tensor  # From the first query, (B or 1, Lq)
    deviation: float  # A bound of the standard deviations


class Mode(NamedTuple):
    """The request to a rule, besides the density and the basis."""

    order: int = 64  # Of a quadrature
    contexts: bool = False  # Whether sums over the functions are asked for
    by_pairs: bool = False  # Whether each pair has to be computed by itself
    centers: tuple[float, float] | None = None  # An interval in which all densities are centered
    shifts: Shifts | None = None


class Rule:
    r"""One way to compute $E_p[\psi]$.

    Its methods take a density p (*batch), a basis psi of N functions, or a callable, and the mode.
    """

    name: str

    # A rule names the types of p and psi that it serves, for which the table has it.
    def serves(self, p: Any, psi: Any, mode: Mode) -> bool:
        """Return whether the rule can be used, and is faster than those after it."""
        return True

    def means(self, p: Any, psi: Any, mode: Mode) -> Tensor:
        """Return expectations (*batch, N)."""
        raise NotImplementedError

    def contexts(self, p: Any, psi: Any, by_head: Tensor, mode: Mode) -> Tensor:
        r"""Return contexts $E_p[\psi]^\top C$ (*batch, E), with C = `by_head` (*batch[:-1], N, E).

        Expectations of many queries are computed in blocks, and again in the backward pass, as they
        would be more numbers than the rest of a layer. Compiled graphs and transforms of
        `torch.func` take all at once.
        """
        # C is contracted block by block, so that features never take (*batch, N) numbers at once.
        # `numel` would fix the sizes of an exported graph.
        pairs = p.batch_shape.numel() * len(psi) if branches_allowed() else 0
        most = _PAIRS if by_head.is_cpu else _DEVICE_PAIRS
        if pairs < 4 * most:
            return _contract(p.expect(psi), by_head)

        def block(psi: Basis, queries: DensityLike) -> Tensor:
            """Return the contexts of some queries."""
            return _contract(queries.expect(psi), by_head)

        count = p.batch_shape[-1]
        # Queries of a block, so that with the whole batch they make about as many pairs.
        size = max(1, most * count // pairs)
        run = recomputed(psi, block)
        blocks = [p[..., first : first + size] for first in range(0, count, size)]
        return torch.cat([run(queries) for queries in blocks], -2)

    def reason(self, p: Any, psi: Any, mode: Mode) -> str:
        """Return the reason that `explain` gives after the name."""
        return count_pairs(p, psi)


def _contract(features: Tensor, by_head: Tensor) -> Tensor:
    """Multiply expectations (*batch, N) by C (*batch[:-1], N, E) in the dtype of C: (*batch, E)."""
    return features.to(by_head.dtype) @ by_head


def count_pairs(p: DensityLike, psi: Basis) -> str:
    """Describe the numbers of densities and of functions, for `explain`."""
    return f"{p.batch_shape.numel()} x {len(psi)} pairs"


class ClosedForm(Rule):
    """A function that was registered for types of p and psi.

    Args:
        function: From p and psi to expectations (*batch, N), or to NotImplemented.
        types: The types of p and of psi.
    """

    name = "closed form"

    def __init__(self, function: Callable[..., object], types: tuple[type, type]) -> None:
        self.function, self.types = function, types

    def means(self, p: Any, psi: Any, mode: Mode) -> Tensor:
        result = self.function(p, psi)
        # The rules for all pairs take the cases that the function leaves to them.
        if _declines(result):
            return _first(GENERAL, p, psi, mode).means(p, psi, mode)
        return cast(Tensor, result)

    def reason(self, p: Any, psi: Any, mode: Mode) -> str:
        if _declines(self.function(p, psi)):
            return f"declined, {_explain(_first(GENERAL, p, psi, mode), p, psi, mode)}"
        return f"registered for {' and '.join(x.__name__ for x in self.types)}"


def _declines(result: object) -> bool:
    """Return whether a closed form left a case to quadrature."""
    return result is NotImplemented


# Rules by the types of a density and a basis, in the order in which they are asked. They serve
# subclasses, too: the nearest pair is taken, of the distribution first.
TABLE: dict[tuple[type, type], tuple[Rule, ...]] = {}
# Rules for all pairs that the table lacks, or whose rules do not serve; the last one always serves.
GENERAL: list[Rule] = []


def register_expect(distribution: type, basis: type) -> Callable[[_ClosedForm], _ClosedForm]:
    r"""Register the decorated function as the closed form of $E_p[\psi(t)]$ for a pair of types.

    The function receives `(p, psi)` and returns a tensor (*batch, N), or `NotImplemented` to leave
    a case to quadrature. It serves subclasses, too: of several rules that apply, the nearest in the
    method resolution order of the distribution, then of the basis, is taken. Compare
    `torch.distributions.kl.register_kl`.

    Args:
        distribution: Type of p.
        basis: Type of psi.

    Raises:
        ValueError: An argument that is not a class.

    Examples:
        >>> from sparsefam import TruncatedParabola, bases, register_expect
        >>> class Level(bases.Polynomial):
        ...     "The constant function alone."
        >>> @register_expect(TruncatedParabola, Level)
        ... def _(p, psi):
        ...     return p.loc.new_ones(*p.batch_shape, 1)
    """
    for name, value in (("distribution", distribution), ("basis", basis)):
        if not isinstance(value, type):
            raise ValueError(f"{name} must be a class, got {value!r}")

    def decorator(function: _ClosedForm) -> _ClosedForm:
        TABLE[distribution, basis] = (ClosedForm(function, (distribution, basis)),)
        return function

    return decorator


def nearest(distribution: type, basis: type) -> tuple[Rule, ...]:
    """Return the rules in the table for the nearest pair of base classes, none if there is none."""
    for p in distribution.__mro__:
        for b in basis.__mro__:
            if (p, b) in TABLE:
                return TABLE[p, b]
    return ()


def _first(rules: Iterable[Rule], p: DensityLike, psi: Function, mode: Mode) -> Rule:
    """Return the first of some rules that serves a density and a function in a mode."""
    for rule in rules:
        if rule.serves(p, psi, mode):
            return rule
    raise AssertionError("the last rule must serve all pairs")


def choose(p: DensityLike, psi: Function, mode: Mode) -> Rule:
    """Return the first rule that serves a density and a basis, or a function."""
    return _first((*nearest(type(p), type(psi)), *GENERAL), p, psi, mode)


def means(p: DensityLike, psi: Function, mode: Mode) -> Tensor:
    """Return expectations, as `SparseDistribution.expect` does."""
    p._check_function(psi)
    require_integer("order", mode.order, 1, LARGEST_ORDER)
    return choose(p, psi, mode).means(p, psi, mode)


def contexts(p: DensityLike, psi: Basis, by_head: Tensor, mode: Mode) -> Tensor:
    r"""Return contexts $E_p[\psi]^\top C$ (*batch, E), with coefficients C (*batch[:-1], N, E)."""
    mode = mode._replace(contexts=True)
    return choose(p, psi, mode).contexts(p, psi, by_head, mode)


def explain(p: DensityLike, psi: Function, order: int = 64, *, contexts: bool = False) -> str:
    r"""Return which rule `p.expect(psi, order)` follows, and why, in a line.

    Args:
        p: A density.
        psi: A basis or a callable, as for `expect`.
        order: As for `expect`.
        contexts: Whether to explain $E_p[\psi]^\top C$ instead, which attention layers compute.

    Raises:
        ValueError: As `expect`.

    Examples:
        >>> import torch
        >>> from sparsefam import TruncatedParabola, bases, explain
        >>> explain(TruncatedParabola(torch.rand(4096), 0.3), bases.GaussianRBF.grid(128, 0.02))
        'waves: at most 190 features, 4096 x 128 pairs'
    """
    p._check_function(psi)
    require_integer("order", order, 1, LARGEST_ORDER)
    mode = Mode(order=order, contexts=contexts)
    return _explain(choose(p, psi, mode), p, psi, mode)


def _explain(rule: Rule, p: DensityLike, psi: Function, mode: Mode) -> str:
    """Return the name of a rule and the reason why it was chosen."""
    return f"{rule.name}: {rule.reason(p, psi, mode)}"
