"""Warnings for models whose supports move where plain Hamiltonian Monte Carlo cannot follow.

Pyro's kernels ask for a support once and say to nobody when they do, so that they cannot be made
to warn without replacing parts of Pyro. A model can: in each trace, autograd tells whether a
support was computed from the values of latent sites.
"""

import warnings
from collections.abc import Callable
from typing import Any

import pyro
import torch
from pyro.poutine.messenger import Messenger
from pyro.util import get_rng_state, set_rng_state
from torch import Tensor

from .coordinates import support_numbers
from .reparam import support_of

__all__ = ["MovingSupportWarning", "check_model", "warn_moving_supports"]

# Traces with gradients that a watch looks at: the supports of later ones are made alike.
_LOOKS = 16


class MovingSupportWarning(UserWarning):
    """The support of a latent site moves with other latent sites."""


def check_model(model: Callable[..., Any], *args: Any, **kwargs: Any) -> list[str]:
    """Runs a model once and warns of each latent site whose support moves.

    Random numbers and parameters are afterwards what they were. A support that follows a site of
    whole numbers, such as a categorical one, is not seen to move: those have no derivative.

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
    store, random = pyro.get_param_store(), get_rng_state()
    try:
        # Outermost the sites are differentiable, so that they are for all that the watch sees.
        with pyro.poutine.block(), store.scope(store.get_state()), torch.enable_grad():
            with _Differentiable():
                watched(*args, **kwargs)
    finally:
        set_rng_state(random)
    return sorted(watched.watch.moved)


def warn_moving_supports(model: Callable[..., Any]) -> "_WatchedModel":
    """The same model, which warns when the support of a latent site moves with other latent sites.

    `NUTS(warn_moving_supports(model))` then warns in its first steps, where `NUTS(model)` would
    sample a wrong law in silence; so does `SVI`, if the guide's samples have gradients. Sites that
    are reparameterized, inside or outside of this, are none to warn of.

    Args:
        model: A model of Pyro's.

    Returns:
        A model. It warns with `MovingSupportWarning`, once for each site.
    """
    return _WatchedModel(model)


class _WatchedModel:
    def __init__(self, model: Callable[..., Any]) -> None:
        self.model, self.watch = model, _Watch()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self.watch:
            return self.model(*args, **kwargs)


class _Differentiable(Messenger):
    """Gives latent sites values that have gradients."""

    def _pyro_post_sample(self, msg: dict[str, Any]) -> None:
        value = msg["value"]
        if not msg["is_observed"] and isinstance(value, Tensor) and value.is_floating_point():
            msg["value"] = value.detach().requires_grad_()


class _Watch(Messenger):
    """Asks whether the supports of latent sites depend on the values of others."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: set[str] = set()
        self._looks = 0
        self._latent: set[str] = set()
        self._values: list[Tensor] = []

    def __enter__(self) -> Any:
        self._values = []
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        self._looks += bool(self._values)
        self._values = []  # and with them their graphs
        super().__exit__(*exception)

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        # Handlers outside, such as the conditions of NUTS, may yet make it an observed one.
        self._latent.discard(msg["name"])
        if not msg["is_observed"]:
            self._latent.add(msg["name"])

    def _pyro_post_sample(self, msg: dict[str, Any]) -> None:
        # Only now, when a reparameterizer has had its turn.
        name, value = msg["name"], msg["value"]
        if name not in self._latent or self._looks == _LOOKS or torch._C._get_tracing_state():
            return
        support = support_of(msg["fn"])
        if support is not None and not support.is_discrete and name not in self.moved:
            if _depends(support_numbers(support), self._values):
                self.moved.add(name)
                _warn(name)
        if isinstance(value, Tensor) and value.requires_grad:
            self._values.append(value)


def _warn(name: str) -> None:
    warnings.warn(
        f"the support of site {name!r} moves with other latent sites, but HMC, NUTS and automatic "
        "guides keep the bijection of the first trace: what they sample is not the posterior. Use "
        f"poutine.reparam(model, config={{{name!r}: sparsefam.inference.SupportReparam()}}) or "
        "sparsefam.inference.AutoSupportReparam()(model)",
        MovingSupportWarning,
        stacklevel=2,
    )


def _depends(numbers: list[Tensor], values: list[Tensor]) -> bool:
    """Whether any of the numbers was computed from any of the values."""
    made = [x.double().sum() for x in numbers if x.requires_grad]
    if not made or not values:
        return False
    slopes = torch.autograd.grad(
        torch.stack(made).sum(), values, retain_graph=True, allow_unused=True
    )
    return any(slope is not None for slope in slopes)
