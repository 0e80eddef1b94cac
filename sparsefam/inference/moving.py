"""Warnings for models whose supports move where plain Hamiltonian Monte Carlo cannot follow.

Pyro's kernels ask for a support once and say to nobody when they do, so that they cannot be made
to warn without replacing parts of Pyro. A model can: it sees the support in each trace.
"""

import warnings
from collections.abc import Callable
from typing import Any

import pyro
import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor

from .coordinates import support_numbers
from .reparam import support_of

__all__ = ["MovingSupportWarning", "check_model", "warn_moving_supports"]


class MovingSupportWarning(UserWarning):
    """The support of a latent site moves with other latent sites."""


def check_model(model: Callable[..., Any], *args: Any, **kwargs: Any) -> list[str]:
    """Runs a model sixteen times and warns of each latent site whose support moves.

    A support that follows a discrete site is missed if that has the same value in all runs.

    Args:
        model: A model of Pyro's.
        *args: Its arguments.
        **kwargs: Its keyword arguments.

    Returns:
        The names of the sites, those that `SupportReparam` is for.

    Warns:
        MovingSupportWarning: For each of them.
    """
    watched = warn_moving_supports(model)
    with pyro.poutine.block(), torch.no_grad():
        for _ in range(16):
            watched(*args, **kwargs)
    return sorted(watched.watch.moved)


def warn_moving_supports(model: Callable[..., Any]) -> "_WatchedModel":
    """The same model, which warns when the support of a latent site moves between two traces.

    `NUTS(warn_moving_supports(model))` then warns in its first steps, where `NUTS(model)` would
    sample a wrong law in silence. Sites that are reparameterized, inside or outside of this, are
    none to warn of.

    Args:
        model: A model of Pyro's.

    Returns:
        A model. It warns with `MovingSupportWarning`, once for each site.
    """
    return _WatchedModel(model)


class _WatchedModel:
    def __init__(self, model: Callable[..., Any]) -> None:
        self.model, self.watch = model, _Watch()
        self._called_with: list[Any] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        if not _identical(given, self._called_with):
            # Another model in effect: its supports may differ with no latent site to blame.
            self._called_with, self.watch.seen = given, {}
        with self.watch:
            return self.model(*args, **kwargs)


class _Watch(Messenger):
    """Remembers the supports of latent sites, and compares."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, list[Tensor]] = {}
        self.moved: set[str] = set()
        self._latent: set[str] = set()

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        # Handlers outside, such as the conditions of NUTS, may yet make it an observed one.
        self._latent.discard(msg["name"])
        if not msg["is_observed"]:
            self._latent.add(msg["name"])

    def _pyro_post_sample(self, msg: dict[str, Any]) -> None:
        # Only now, when a reparameterizer has had its turn.
        name, support = msg["name"], support_of(msg["fn"])
        latent = name in self._latent and name not in self.moved
        if not latent or support is None or support.is_discrete:
            return
        if torch._C._get_tracing_state():
            return
        numbers = [x.detach() for x in support_numbers(support)]
        if not _agree(self.seen.setdefault(name, numbers), numbers):
            self.moved.add(name)
            _warn(name)


def _warn(name: str) -> None:
    warnings.warn(
        f"the support of site {name!r} moves with other latent sites, but HMC, NUTS and automatic "
        "guides keep the bijection of the first trace: what they sample is not the posterior. Use "
        f"poutine.reparam(model, config={{{name!r}: sparsefam.inference.SupportReparam()}}) or "
        "sparsefam.inference.AutoSupportReparam()(model)",
        MovingSupportWarning,
        stacklevel=2,
    )


def _identical(given: list[Any], before: list[Any]) -> bool:
    return len(given) == len(before) and all(a is b for a, b in zip(given, before, strict=True))


def _agree(first: list[Tensor], then: list[Tensor]) -> bool:
    """Whether two supports are the same, with NaN where there is no interval."""
    if len(first) != len(then):
        return False
    try:
        pairs = [torch.broadcast_tensors(a, b) for a, b in zip(first, then, strict=True)]
    except RuntimeError:
        return False  # not even of one shape
    return all(bool(((a == b) | (a.isnan() & b.isnan())).all()) for a, b in pairs)
