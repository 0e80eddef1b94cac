"""Bandwidths and penalties, chosen by an estimate of the loss of data that were not seen."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from ..kernels import Kernel
from .newton import Fit, Objective
from .progress import Told

__all__ = ["Chosen", "best_kernel", "best_penalty", "polished"]

# How often in a row a candidate may be worse than the best before the rest is not tried.
_PATIENCE = 2
# How often between kernels what the criterion of one adds more to the loss of the data counts.
_DOUBT = 2
# To what the losses that are compared are minimised.
_ROUGH = 1e-5
# Fits with small penalties start from those with larger ones.
_PATH = (1e-2, 1e-4, 1e-6)
# How often panels are refined for a density that is narrower than theirs.
_MOST_REFINED = 12
# What normalisers on finer panels may differ by.
_SAME = 1e-6


Candidate = TypeVar("Candidate")


class Chosen(NamedTuple):
    """A fit, and what it was made with."""

    objective: Objective
    fit: Fit
    penalty: float


def best_kernel(kernels: Sequence[Kernel], tried: Callable[[Kernel], Chosen]) -> Chosen:
    """The fit of the best kernel; kernels begin with the widest.

    The criterion is an estimate, and its errors cost more where they favour a narrow kernel: for
    one that is too wide a smaller penalty makes up. So what a narrow one adds more counts twice.

    References:
        Gu and Wang (2003), Penalized likelihood density estimation: direct cross-validation and
        scalable approximation. Statistica Sinica 13. In R's gss what is added counts 1.4 times.
    """
    return _best_of(kernels, tried, _DOUBT)


def _best_of(
    candidates: Sequence[Candidate], tried: Callable[[Candidate], Chosen], doubt: float
) -> Chosen:
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
        worse = 0 if _better(found.fit, best.fit, doubt) else worse + 1
        best = best if worse else found
        if worse == _PATIENCE:
            break
    return best


def _better(found: Fit, best: Fit, doubt: float) -> bool:
    """Whether the criterion is less, if what it adds more to the loss counts `doubt` times."""
    less = found.criterion - best.criterion
    more = less - (found.loss - best.loss)
    return less + (doubt - 1) * max(more, 0.0) < 0


def best_penalty(
    objective: Objective, penalties: Sequence[float], tol: float, max_iter: int, told: Told
) -> Chosen:
    """The best of penalties, on panels that resolve its density.

    Between nodes that are too far apart a score can rise around observations and no integral sees
    it: a loss too small, which would be taken for the best. Panels are made for scores of a usual
    size; where the density of the best is narrower they are refined, and the search is repeated.

    Raises:
        ValueError: Densities that get narrower as often as panels are refined.
    """
    for _ in range(_MOST_REFINED):
        found = _best_on(objective, penalties, tol, max_iter, told)
        finer = objective.resolving(found.fit.coefficients)
        if abs(finer.level(found.fit.coefficients) - found.fit.level) <= _SAME:
            return found
        objective = finer
    raise ValueError(
        "penalty must be larger, or bandwidth or alpha, for nodes to resolve the density, got "
        f"penalty {found.penalty:g}, {objective}"
    )


def _best_on(
    objective: Objective, penalties: Sequence[float], tol: float, max_iter: int, told: Told
) -> Chosen:
    """The best of penalties, the largest first; each fit starts where the last one ended.

    Edges of supports, which take most of the time, are located for the best alone, so that kernels
    are compared without the error of leaving that out.
    """
    start = objective.data.first.new_zeros(objective.features.mixing.shape[1])
    quick, enough = objective.roughly(), max(tol, _ROUGH)

    def tried(penalty: float) -> Chosen:
        nonlocal start
        fit = quick.minimum(start, penalty, enough, max_iter)
        start = fit.coefficients
        told(f"{objective}, penalty {penalty:g}: criterion {fit.criterion:.6g}")
        return Chosen(objective, fit, penalty)

    for larger in _PATH:
        if larger > penalties[0]:
            start = quick.minimum(start, larger, enough, max_iter).coefficients
    return polished(_best_of(penalties, tried, 1), enough, max_iter)


def polished(rough: Chosen, tol: float, max_iter: int) -> Chosen:
    """Fitted to `tol`."""
    fit = rough.objective.minimum(rough.fit.coefficients, rough.penalty, tol, max_iter)
    return rough._replace(fit=fit)
