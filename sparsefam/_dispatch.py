"""The registry of closed forms by types of density and basis, which `expect` asks."""

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["find_expect", "register_expect"]

_Rule = TypeVar("_Rule", bound=Callable[..., Any])

_RULES: dict[tuple[type, type], Callable[..., Any]] = {}


def register_expect(distribution: type, basis: type) -> Callable[[_Rule], _Rule]:
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

    def decorator(rule: _Rule) -> _Rule:
        _RULES[distribution, basis] = rule
        return rule

    return decorator


def find_expect(distribution: type, basis: type) -> Callable[..., Any] | None:
    """Return the registered rule nearest to a pair of types, or None."""
    for p in distribution.__mro__:
        for b in basis.__mro__:
            if (p, b) in _RULES:
                return _RULES[p, b]
    return None
