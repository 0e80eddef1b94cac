"""Bandwidths and penalties, chosen by an estimate of the loss of data that were not seen."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from .newton import Fit, Objective
from .progress import Told

__all__ = ["Chosen", "best_of", "best_penalty", "polished"]

# How often in a row a candidate may be worse than the best before the rest is not tried.
_PATIENCE = 2
# To what the losses that are compared are minimised.
_ROUGH = 1e-5


Candidate = TypeVar("Candidate")


class Chosen(NamedTuple):
    """A fit, and what it was made with."""

    objective: Objective
    fit: Fit
    penalty: float


def best_of(candidates: Sequence[Candidate], tried: Callable[[Candidate], Chosen]) -> Chosen:
    """The fit with the least criterion; candidates begin with the smoothest."""
    first, *others = candidates
    best, worse = tried(first), 0
    for candidate in others:
        try:
            found = tried(candidate)
        except ValueError:
            # In space kernels may be too narrow for as many nodes as there can be; what else is
            # wrong was so for the first candidate.
            break
        worse = 0 if found.fit.criterion < best.fit.criterion else worse + 1
        best = best if worse else found
        if worse == _PATIENCE:
            break
    return best


def best_penalty(
    objective: Objective, penalties: Sequence[float], tol: float, max_iter: int, told: Told
) -> Chosen:
    """The best of penalties, fitted roughly; each fit starts where the last one ended."""
    start = objective.data.first.new_zeros(objective.features.mixing.shape[1])

    def tried(penalty: float) -> Chosen:
        nonlocal start
        fit = objective.minimum(start, penalty, max(tol, _ROUGH), max_iter)
        start = fit.coefficients
        told(f"{objective}, penalty {penalty:g}: criterion {fit.criterion:.6g}")
        return Chosen(objective, fit, penalty)

    return best_of(penalties, tried)


def polished(rough: Chosen, tol: float, max_iter: int) -> Chosen:
    """Fitted to `tol`."""
    fit = rough.objective.minimum(rough.fit.coefficients, rough.penalty, tol, max_iter)
    return rough._replace(fit=fit)
