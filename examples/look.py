"""Settings of matplotlib for light and dark pages.

Colours C0 to C6 can be told apart by colour-blind readers; C7 is the colour of the text.

References:
    Okabe and Ito (2008), Color Universal Design.
"""

from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib.colors import LinearSegmentedColormap

WIDTH = 9.4  # of a page, in inches
_BLUE, _SKY = "#0072B2", "#56B4E9"
# From little to much; none is the background.
_RAMPS = {
    "light": ("#d3e6f3", "#56a3d9", "#005f94", "#001e33"),
    "dark": ("#1f3d52", "#3381b3", "#7cc4f0", "#f2faff"),
}
for _name, _ramp in _RAMPS.items():
    mpl.colormaps.register(LinearSegmentedColormap.from_list(_name, _ramp), force=True)


def look(name: str, background: str) -> dict[str, Any]:
    """Return the settings of one of the two looks."""
    dark = name == "dark"
    first, fifth = (_SKY, _BLUE) if dark else (_BLUE, _SKY)
    yellow, ink = ("#F0E442", "#d8dee6") if dark else ("#A89B00", "#222a33")
    colors = [first, "#E69F00", "#009E73", "#D55E00", fifth, "#CC79A7", yellow, ink]
    surfaces = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
    lines = ("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color")
    return {
        "figure.dpi": 160,
        "figure.constrained_layout.use": True,
        "image.cmap": name,
        "axes.prop_cycle": cycler(color=colors),
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
        **dict.fromkeys(surfaces, background),
        **dict.fromkeys(lines, ink),
    }


LOOKS = {"light": look("light", "#ffffff"), "dark": look("dark", "#14181d")}
