"""Bandwidths and penalties, chosen by an estimate of the loss of data that were not seen."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from .newton import Fit, Objective

__all__ = ["Chosen", "best_of", "best_penalty"]

# How often in a row a candidate may be worse than the best before the rest is not tried.
_PATIENCE = 2
# To what the losses that are compared are minimised.
_ROUGH = 1e-5


class Chosen(NamedTuple):
    """A fit, and what it was made with."""

    objective: Objective
    fit: Fit
    penalty: float


def best_of(candidates: Iterable[float], tried: Callable[[float], Chosen]) -> Chosen:
    """The fit with the least criterion, from the largest candidate on."""
    first, *others = sorted(candidates, reverse=True)
    best, worse = tried(first), 0
    for candidate in others:
        found = tried(candidate)
        worse = 0 if found.fit.criterion < best.fit.criterion else worse + 1
        best = best if worse else found
        if worse == _PATIENCE:
            break
    return best


def best_penalty(
    objective: Objective, penalties: Sequence[float], tol: float, max_iter: int
) -> Chosen:
    """The best of penalties, fitted to `tol`; each fit starts where the last one ended."""
    start = objective.data.first.new_zeros(objective.features.mixing.shape[1])

    def tried(penalty: float) -> Chosen:
        nonlocal start
        fit = objective.minimum(start, penalty, max(tol, _ROUGH), max_iter)
        start = fit.coefficients
        return Chosen(objective, fit, penalty)

    best = best_of(penalties, tried)
    fit = objective.minimum(best.fit.coefficients, best.penalty, tol, max_iter)
    return best._replace(fit=fit)
