"""Plots of densities with their supports, and of attention over a series, tokens or an image."""

from .attention import plot_attention, plot_attention_map
from .densities import plot_density

__all__ = ["plot_attention", "plot_attention_map", "plot_density"]
