"""Pictures: densities with their supports, and attention over a series or tokens."""

from .attention import plot_attention
from .densities import plot_density

__all__ = ["plot_attention", "plot_density"]
