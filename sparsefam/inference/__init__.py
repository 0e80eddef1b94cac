"""Inference in Pyro with bounded supports: sites whose support moves, and compact guides."""

from .elbo import FenchelYoungELBO, TsallisELBO
from .guides import AutoBetaGaussian
from .reparam import (
    AutoSupportReparam,
    MovingSupportWarning,
    SupportReparam,
    check_model,
    warn_moving_supports,
)
from .restricted_prior import RestrictedPrior

__all__ = [
    "AutoBetaGaussian",
    "AutoSupportReparam",
    "FenchelYoungELBO",
    "MovingSupportWarning",
    "RestrictedPrior",
    "SupportReparam",
    "TsallisELBO",
    "check_model",
    "warn_moving_supports",
]
