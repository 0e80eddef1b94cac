"""Losses under which prediction maps are learned, and layers that are learned with them."""

from .fenchel_young import FenchelYoungLoss, fenchel_young
from .heads import ClassificationHead, RegressionHead

__all__ = ["ClassificationHead", "FenchelYoungLoss", "RegressionHead", "fenchel_young"]
