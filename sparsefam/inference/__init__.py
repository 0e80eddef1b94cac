"""Inference in Pyro where supports have ends: sites that move, guides that are compact."""

from .guides import AutoBetaGaussian
from .moving import MovingSupportWarning, check_model, warn_moving_supports
from .reparam import AutoSupportReparam, SupportReparam
from .tsallis import TsallisELBO

__all__ = [
    "AutoBetaGaussian",
    "AutoSupportReparam",
    "MovingSupportWarning",
    "SupportReparam",
    "TsallisELBO",
    "check_model",
    "warn_moving_supports",
]
