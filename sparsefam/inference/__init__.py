"""Inference in Pyro that is right where a site's support moves with other latent sites."""

from .moving import MovingSupportWarning, check_model, warn_moving_supports
from .reparam import AutoSupportReparam, SupportReparam

__all__ = [
    "AutoSupportReparam",
    "MovingSupportWarning",
    "SupportReparam",
    "check_model",
    "warn_moving_supports",
]
