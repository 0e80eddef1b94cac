"""Pictures: densities with their supports, and attention over a series, tokens or an image."""

from .attention import plot_attention
from .densities import plot_density
from .maps import plot_attention_map

__all__ = ["plot_attention", "plot_attention_map", "plot_density"]
