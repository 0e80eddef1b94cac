"""What estimates with true zeros are to achieve, and whether they do."""

from collections.abc import Callable
from dataclasses import dataclass

from .estimation_laws import SEPARATED, Errors
from .estimation_methods import OURS

__all__ = ["AIMS", "Aim", "verdicts"]

# Errors by method, and those by density.
Row = dict[str, Errors]


@dataclass(frozen=True)
class Aim:
    """Something that is to be at most 1.

    Attributes:
        text: In words.
        ratios: From errors by method: the name of what is compared, and a ratio.
        separated: Whether only densities with gaps count.
    """

    text: str
    ratios: Callable[[Row], dict[str, float]]
    separated: bool


def _rivals(row: Row) -> Row:
    return {name: errors for name, errors in row.items() if name != OURS}


def _against_each(row: Row) -> dict[str, float]:
    return {
        f"{of}, {name}": getattr(row[OURS], of) / getattr(errors, of)
        for name, errors in _rivals(row).items()
        for of in ("squared", "hellinger")
    }


def _against_best(row: Row) -> dict[str, float]:
    found = {}
    for of in ("squared", "hellinger"):
        name, best = min(((n, getattr(e, of)) for n, e in _rivals(row).items()), key=lambda x: x[1])
        found[f"{of}, {name}"] = getattr(row[OURS], of) / (1.2 * best)
    return found


def _outside(row: Row) -> dict[str, float]:
    return {
        f"{name}": row[OURS].outside / (0.1 * max(errors.outside, 1e-300))
        for name, errors in _rivals(row).items()
    }


AIMS = (
    Aim("separated: both errors less than each rival's", _against_each, True),
    Aim("everywhere: both errors at most 1.2 times the best rival's", _against_best, False),
    Aim("everywhere: mass off the support at most a tenth of each rival's", _outside, False),
    Aim("separated: mass off the support at most a tenth of each rival's", _outside, True),
)


def verdicts(aim: Aim, every: dict[int, dict[str, Row]]) -> dict[int, str]:
    """By number of observations: how often an aim holds, and where it holds least."""
    found = {}
    for size, rows in every.items():
        ratios = {
            f"{density} ({what})": ratio
            for density, row in rows.items()
            if density in SEPARATED or not aim.separated
            for what, ratio in aim.ratios(row).items()
        }
        held = sum(ratio <= 1 for ratio in ratios.values())
        worst = max(ratios, key=lambda name: ratios[name])
        found[size] = f"{held} of {len(ratios)}"
        if held < len(ratios):
            found[size] += f"; {ratios[worst]:.1f} times too large: {worst}"
    return found
