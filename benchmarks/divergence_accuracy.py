"""How exact divergences of vectors are: against slices by a rule for singular ends.

Balls with centres on one axis, and mixtures of them. Both densities depend on the place along the
axis and on the distance from it alone, which leaves two integrals in any dimension. The first is
cut where edges end or meet, the second at every edge: only ends of pieces are singular.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributions import kl_divergence

import sparsefam as sf

from .report import Table, following

__all__ = [
    "Ball",
    "Question",
    "divergence_errors",
    "divergence_failures",
    "divergence_table",
    "error",
    "exact",
    "questions",
]

Array = NDArray[np.float64]
Integrand = Callable[[Array, Array], Array]
# Steps of the rule, and as many normal scales as hold all mass to rounding.
_STEPS, _TAIL = np.linspace(-3.1, 3.1, 161), 9.0


@dataclass(frozen=True)
class Ball:
    """A beta-Gaussian on a ball, or a normal of that scale where alpha is 1."""

    centre: float
    radius: float
    alpha: float

    @property
    def reach(self) -> float:
        """Radius of what to integrate over."""
        return self.radius * (_TAIL if self.alpha == 1 else 1.0)

    def log_density(self, x: Array, rho: Array, dim: int) -> Array:
        """At x along the axis and rho from it."""
        squares = ((x - self.centre) ** 2 + rho**2) / self.radius**2
        level = dim * math.log(self.radius) + 0.5 * dim * math.log(math.pi)
        if self.alpha == 1:
            return np.asarray(-squares / 2 - level - 0.5 * dim * math.log(2))
        m = 1 / (self.alpha - 1)
        peak = math.lgamma(m + 1 + dim / 2) - math.lgamma(m + 1) - level
        inside = squares < 1
        return np.where(inside, peak + m * np.log1p(-np.where(inside, squares, 0.0)), -np.inf)

    def made(self, dim: int) -> Any:
        """The same here."""
        loc = self.centre * torch.eye(dim, dtype=torch.float64)[0]
        tril = self.radius * torch.eye(dim, dtype=torch.float64)
        if self.alpha == 1:
            return sf.MultivariateNormal(loc, scale_tril=tril)
        return sf.MultivariateBetaGaussian(loc, tril, self.alpha)


@dataclass(frozen=True)
class Question:
    """Divergences of one kind in some dimensions, and what they may be off by.

    Attributes:
        name: For the table: the kind, with its alpha, and the pairs.
        dimensions: In which.
        pairs: Of what; several balls are a mixture.
        limit: On the error, of the divergence's size or of 1 if it is smaller.
    """

    name: str
    dimensions: Sequence[int]
    pairs: Sequence[tuple[Sequence[Ball], Sequence[Ball]]]
    limit: float


def questions() -> list[Question]:
    """What is asked."""
    alphas = [(2.0, 2.0), (1.5, 3.0), (math.inf, 1.5), (1.05, 2.0)]
    places = [(0.1, 0.6), (0.0, 0.9), (-0.3, 0.5)]
    unit = Ball(0.0, 1.0, 2.0)
    whole = [([Ball(0.0, 1.0, a)], [Ball(0.0, 1.0, b)]) for a, b in alphas]
    nested = [([Ball(*at, a)], [Ball(0.0, 1.0, b)]) for at in places for a, b in alphas]
    touching = [([Ball(0.5, 0.5, a)], [unit]) for a in (1.5, 2.0, 3.0)]
    several = [Ball(-0.4, 0.5, 2.0), Ball(0.3, 0.4, 1.5)]
    crossing = [([unit], [Ball(0.7, 0.8, 1.5)]), ([Ball(1.25, 0.75, 1.5)], [unit])]
    smooth = [([Ball(0.1, 0.5, 1.5)], [q]) for q in (unit, Ball(0.5, 0.7, 1.0))]
    return [
        Question("KL 1, one in the other", (1, 2, 3), nested, 1e-12),
        Question("KL 1, one in the other", (6,), nested, 1e-5),
        Question("KL 1, one support", (1, 2, 3, 6), whole, 1e-10),
        Question("KL 1, touching in a point", (1, 2, 3), touching, 1e-7),
        Question("KL 1, touching in a point", (6,), touching, 1e-4),
        Question("KL 1, of a uniform one", (1, 2, 3), [([Ball(0.5, 0.5, math.inf)], [unit])], 1e-5),
        Question("KL 1, of a mixture", (2, 3), [(several, [Ball(0.0, 2.0, 1.5)])], 1e-5),
        Question("KL 1, to a mixture", (2, 3), [([Ball(0.1, 0.2, 2.0)], several)], 1e-5),
        Question("Tsallis 0.5, crossing", (2,), crossing, 1e-7),
        Question("Tsallis 0.5, crossing", (3,), crossing, 2e-5),
        Question("Tsallis 1.5, one in the other", (2, 3), smooth, 1e-12),
        Question("Bregman 1.5, crossing", (2,), crossing, 1e-8),
        Question("Bregman 1.5, crossing", (3,), crossing, 2e-6),
        Question("Bregman 1.5, one in the other", (2, 3), smooth, 1e-12),
    ]


def error(question: Question) -> float:
    """The largest over its dimensions and pairs."""
    kind, alpha = question.name.split(",")[0].split()
    return max(
        _error(kind, float(alpha), p, q, dim)
        for dim in question.dimensions
        for p, q in question.pairs
    )


def _error(kind: str, alpha: float, p: Sequence[Ball], q: Sequence[Ball], dim: int) -> float:
    ours = {"Tsallis": sf.tsallis_divergence, "Bregman": sf.bregman_divergence}
    laws = [_made(balls, dim) for balls in (p, q)]
    found = ours[kind](*laws, alpha) if kind in ours else kl_divergence(*laws)
    truth = exact(kind, alpha, p, q, dim)
    return abs(found.item() - truth) / max(1.0, abs(truth))


def exact(kind: str, alpha: float, p: Sequence[Ball], q: Sequence[Ball], dim: int) -> float:
    """A divergence, KL, Tsallis' or Bregman's, by the reference."""

    def values(x: Array, rho: Array) -> Array:
        logs = (_log_density(balls, x, rho, dim) for balls in (p, q))
        return _INTEGRANDS[kind](*logs, alpha)

    return _integral(values, [*p, *q], dim)


def _made(balls: Sequence[Ball], dim: int) -> Any:
    if len(balls) == 1:
        return balls[0].made(dim)
    return sf.Mixture(torch.zeros(len(balls)).double(), [ball.made(dim) for ball in balls])


def _log_density(balls: Sequence[Ball], x: Array, rho: Array, dim: int) -> Array:
    logs = [ball.log_density(x, rho, dim) for ball in balls]
    return np.logaddexp.reduce(logs, 0) - math.log(len(balls)) if len(balls) > 1 else logs[0]


def _kl(p: Array, q: Array, alpha: float) -> Array:
    both = np.isfinite(p) & np.isfinite(q)
    return np.where(both, np.exp(p) * (np.where(both, p, 0.0) - np.where(both, q, 0.0)), 0.0)


def _tsallis(p: Array, q: Array, alpha: float) -> Array:
    both = np.isfinite(p) & np.isfinite(q)
    logs = (np.where(both, x, 0.0) for x in (p, q))
    power = alpha * next(logs) + (1 - alpha) * next(logs)
    return np.asarray((np.where(both, np.exp(power), 0.0) - np.exp(p)) / (alpha - 1))


def _bregman(p: Array, q: Array, alpha: float) -> Array:
    one, two = np.exp(p), np.exp(q)
    own = one**alpha / (alpha * (alpha - 1)) + two**alpha / alpha
    return np.asarray(own - one * two ** (alpha - 1) / (alpha - 1))


_INTEGRANDS = {"KL": _kl, "Tsallis": _tsallis, "Bregman": _bregman}


def _integral(values: Integrand, balls: Sequence[Ball], dim: int) -> float:
    """Of values at (x, rho) over space."""
    ends = [ball.centre + side * ball.reach for ball in balls for side in (-1, 1)]
    cuts = sorted({*ends, *(_meeting(a, b) for a, b in combinations(balls, 2))})
    inside = [x for x in cuts if min(ends) <= x <= max(ends)]
    return math.fsum(_slices(values, balls, dim, a, b) for a, b in pairwise(inside))


def _meeting(a: Ball, b: Ball) -> float:
    """Where along the axis two edges cross, or the first centre if they do not."""
    gap = b.centre - a.centre
    return a.centre + (gap**2 + a.reach**2 - b.reach**2) / (2 * gap) if gap else a.centre


def _slices(values: Integrand, balls: Sequence[Ball], dim: int, low: float, high: float) -> float:
    x, weights = _rule(np.array(low), np.array(high))
    if dim == 1:
        return float((weights * values(x, np.zeros_like(x))).sum())
    chords = [np.sqrt((ball.reach**2 - (x - ball.centre) ** 2).clip(0)) for ball in balls]
    edges = np.sort([np.zeros_like(x), *chords], 0)
    surface = 2 * math.pi ** ((dim - 1) / 2) / math.gamma((dim - 1) / 2)
    total = 0.0
    for a, b in pairwise(edges):
        rho, rule = _rule(a[:, None], b[:, None])
        total += float((weights[:, None] * rule * rho ** (dim - 2) * values(x[:, None], rho)).sum())
    return surface * total


def _rule(low: Array, high: Array) -> tuple[Array, Array]:
    """Nodes and weights of Takahasi's and Mori's rule, each node from the nearer end."""
    share = 1 / (1 + np.exp(np.pi * np.sinh(np.abs(_STEPS))))
    step = _STEPS[1] - _STEPS[0]
    weights = step * np.pi * np.cosh(_STEPS) * share * (1 - share)
    width = high - low
    return np.where(_STEPS < 0, low + width * share, high - width * share), width * weights


def divergence_table(found: Sequence[tuple[Question, float]]) -> Table:
    """For the terminal."""
    lines = [
        [q.name, ", ".join(map(str, q.dimensions)), f"{x:.1e}", f"{q.limit:g}"] for q, x in found
    ]
    title = (
        "Divergences of balls in float64: the largest error, of the divergence or of 1 if it is "
        "smaller."
    )
    return Table(title, ["divergence and alpha", "D", "error", "limit"], lines)


def divergence_errors() -> list[tuple[Question, float]]:
    """Asks all."""
    return [(q, error(q)) for q in following(questions(), "divergences")]


def divergence_failures(found: Sequence[tuple[Question, float]]) -> list[str]:
    """What is above its limit."""
    return [f"{q.name} in {q.dimensions}: {x:.1e}" for q, x in found if not x <= q.limit]
