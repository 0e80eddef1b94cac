"""Inference in Pyro with bounded supports: sites whose support moves, and compact guides."""

from .elbo import TsallisELBO
from .guides import AutoBetaGaussian
from .reparam import (
    AutoSupportReparam,
    MovingSupportWarning,
    SupportReparam,
    check_model,
    warn_moving_supports,
)

__all__ = [
    "AutoBetaGaussian",
    "AutoSupportReparam",
    "MovingSupportWarning",
    "SupportReparam",
    "TsallisELBO",
    "check_model",
    "warn_moving_supports",
]
