"""Colours and settings of the pictures, for light and dark pages.

References:
    Okabe and Ito (2008), Color Universal Design.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure

WIDTH = 9.4  # of a page, in inches


@dataclass(frozen=True)
class Look:
    """A version of a picture; a page shows the one that fits its background."""

    dark: bool = False
    transparent: bool = False

    @property
    def name(self) -> str:
        """Return dark or light, for file names."""
        return "dark" if self.dark else "light"

    @property
    def ink(self) -> str:
        """Return the colour of text and axes."""
        return "#d8dee6" if self.dark else "#222a33"

    @property
    def palette(self) -> tuple[str, ...]:
        """Return eight colours that colour-blind readers can tell apart."""
        blue, sky = "#0072B2", "#56B4E9"
        first, fifth = (sky, blue) if self.dark else (blue, sky)
        yellow = "#F0E442" if self.dark else "#A89B00"
        return (first, "#E69F00", "#009E73", "#D55E00", fifth, "#CC79A7", yellow, self.ink)

    @property
    def ramp(self) -> tuple[str, ...]:
        """Return colours from little to much, none of which is the background."""
        if self.dark:
            return ("#1f3d52", "#3381b3", "#7cc4f0", "#f2faff")
        return ("#d3e6f3", "#56a3d9", "#005f94", "#001e33")

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Apply the settings to matplotlib inside a with block."""
        background = "none" if self.transparent else "#14181d" if self.dark else "#ffffff"
        settings: dict[Any, Any] = {
            "figure.dpi": 160,
            "axes.prop_cycle": cycler(color=self.palette),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlesize": 9.5,
            "axes.titlelocation": "left",
            "axes.labelsize": 9,
            "font.size": 9,
            "xtick.labelsize": 8,
            "ytick.labelsize": 8,
            "legend.fontsize": 8.5,
            "legend.frameon": False,
            "lines.linewidth": 1.7,
        }
        surfaces = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
        lines = ("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color")
        settings |= dict.fromkeys(surfaces, background) | dict.fromkeys(lines, self.ink)
        with mpl.rc_context(settings):
            yield

    def panels(
        self, rows: int, columns: int, height: float, *, sharex: bool = False
    ) -> tuple[Figure, list[Axes]]:
        """Make a figure as wide as the page, with panels of a height in inches, row by row."""
        size = (WIDTH, rows * height)
        options: dict[str, Any] = {"squeeze": False, "sharex": sharex, "layout": "constrained"}
        figure, axes = plt.subplots(rows, columns, figsize=size, **options)
        return figure, list(axes.flat)


LOOKS = (Look(), Look(dark=True))
