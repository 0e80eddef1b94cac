r"""Kernel families to thirteen digits: panels cut at the exact edges of the support, in float64.

A score $f(t) = \sum_i \gamma_i k(t, x_i)$ with a Gaussian kernel on [0, 1] is monotone between the
roots of $f'$, so that each such piece holds at most one edge $f = A - 1/\varepsilon$, with
$\varepsilon = \alpha - 1$. Between edges everything is smooth and Gauss-Legendre rules converge.
Nothing here is shared with sparsefam, whose nodes stay where they are and never meet an edge.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

__all__ = ["GaussianScore", "Truth", "bumps", "truth"]

# Roots: enough for bisection alone to reach the last bit; Newton's steps need ten.
_HALVINGS = 60
# Kernel values at a time.
_CHUNK = 10_000_000
# Nodes of a panel; more where the density meets its edges with an exponent that is not whole.
_ORDER, _GRADED_ORDER = 20, 48
# No panel is wider than the kernel, nor than twice the narrowest basis function.
_WIDEST = 0.05


@dataclass(frozen=True)
class GaussianScore:
    """Scores sum_i weights_i exp(-(t - points_i)^2 / (2 bandwidth^2)), all in float64.

    Attributes:
        weights: Shape (R, I).
        points: Inducing points in [0, 1], shape (I,).
        bandwidth: Of the kernel.
    """

    weights: Tensor
    points: Tensor
    bandwidth: float

    def kernel(self, t: Tensor) -> Tensor:
        """Its values (*t, I)."""
        z = (t.unsqueeze(-1) - self.points).div_(self.bandwidth)
        return z.square_().mul_(-0.5).exp_()  # in place: most of the time goes to new memory

    def derivatives(self, rows: Tensor, t: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """The derivatives of order `first` (0 or 1) and the next, at t (n,), one row for each."""
        z = (self.points - t.unsqueeze(-1)) / self.bandwidth
        terms = self.weights[rows] * torch.exp(-z.square() / 2)
        factors = (torch.ones_like(z), z / self.bandwidth, (z.square() - 1) / self.bandwidth**2)
        low, high = ((terms * factors[order]).sum(-1) for order in (first, first + 1))
        return low, high

    def rows(self, rows: slice) -> "GaussianScore":
        """Some of them; itself, with the pieces it knows, if they are all."""
        if rows.indices(len(self.weights)) == (0, len(self.weights), 1):
            return self
        return GaussianScore(self.weights[rows], self.points, self.bandwidth)

    @cached_property
    def pieces(self) -> Tensor:
        """0, the roots of f', and 1 as often as the longest row needs, (R, K)."""
        scan = torch.linspace(0, 1, 32 * math.ceil(1 / self.bandwidth) + 1, dtype=torch.float64)
        moved = (self.points - scan.unsqueeze(-1)) * self.kernel(scan)
        inner = _roots(self, scan.expand(len(self.weights), -1), self.weights @ moved.T, 1, 0.0)
        ends = inner.new_tensor([0.0, 1.0]).expand(len(inner), 2)
        return torch.cat([ends[:, :1], inner, ends[:, 1:]], -1)

    @cached_property
    def highest(self) -> float:
        """Greatest |f| where f' is zero, and at both ends."""
        return float(self.at(self.pieces).abs().amax())

    def at(self, t: Tensor) -> Tensor:
        """The scores (R, n) at t (R, n)."""
        return torch.einsum("rni,ri->rn", self.kernel(t), self.weights)

    def edges(self, level: Tensor) -> Tensor:
        """Where f meets its level (R,), in order, then 1 as often as the longest row needs."""
        values = self.at(self.pieces)
        return _roots(self, self.pieces, values - level.unsqueeze(-1), 0, level)


def _roots(
    score: GaussianScore, t: Tensor, values: Tensor, order: int, level: Tensor | float
) -> Tensor:
    """Roots of the derivative of f of some order less a level, between t (R, n) of unlike sign."""
    positive = values > 0
    rows, k = (positive[:, 1:] != positive[:, :-1]).nonzero(as_tuple=True)
    low, high, rising = t[rows, k], t[rows, k + 1], positive[rows, k + 1]
    goal = level[rows] if isinstance(level, Tensor) else level
    x = (low + high) / 2
    for _ in range(_HALVINGS):
        value, slope = score.derivatives(rows, x, order)
        below = ((value - goal) > 0) != rising
        low, high = torch.where(below, x, low), torch.where(below, high, x)
        step = x - (value - goal) / slope
        inside = (step >= low) & (step <= high)
        moved = torch.where(inside, step, (low + high) / 2)
        done = (moved - x).abs().max() < 1e-16 if len(x) else True
        x = moved
        if done:
            break
    count = torch.bincount(rows, minlength=len(t))
    place = torch.arange(len(rows)) - (count.cumsum(0) - count)[rows]
    packed = torch.ones(len(t), int(count.max()), dtype=torch.float64)
    packed[rows, place] = x
    return packed


def bumps(centers: Tensor, widths: Tensor) -> Callable[[Tensor], Tensor]:
    """Gaussian densities (N,) as functions of t, in float64: (*t,) to (*t, N)."""
    centers, widths = centers.double(), widths.double()

    def psi(t: Tensor) -> Tensor:
        z = (t.unsqueeze(-1) - centers) / widths
        return torch.exp(-z.square() / 2) / (widths * math.sqrt(2 * math.pi))

    return psi


@dataclass(frozen=True)
class Truth:
    """What there is to know of the densities of some scores.

    Attributes:
        normalizer: log_normalizer, shape (R,).
        value: E_p[psi], shape (R, N).
        slope: Gradient of sum(upstream value) in the weights, shape (R, I).
    """

    normalizer: Tensor
    value: Tensor
    slope: Tensor


def truth(
    score: GaussianScore,
    alpha: float,
    inside: bool,
    psi: Callable[[Tensor], Tensor],
    upstream: Tensor,
) -> Truth:
    """The densities exp_{2-alpha}(f - A), or those of exp_{2-alpha}(f)/Z, over [0, 1].

    Args:
        score: Of R densities.
        alpha: From 1 to 2.
        inside: Which of the two; at alpha = 1 they are the same.
        psi: Basis functions.
        upstream: The gradient (R, N) that comes from above.
    """
    nodes = (_panels(score, alpha) + score.pieces.shape[-1]) * _ORDER
    chunk = max(1, _CHUNK // (nodes * len(score.points)))
    parts = []
    for first in range(0, len(score.weights), chunk):
        rows = slice(first, first + chunk)
        part = _Density(score.rows(rows), alpha)
        parts.append(part.truth(inside or alpha == 1, psi, upstream[rows]))
    columns = zip(*((x.normalizer, x.value, x.slope) for x in parts), strict=True)
    return Truth(*(torch.cat(column) for column in columns))


def _panels(score: GaussianScore, alpha: float) -> int:
    """How many even ones; the exponential of a large score is narrower than the kernel."""
    width = min(score.bandwidth, _WIDEST)
    if alpha == 1:
        width /= max(1.0, math.sqrt(score.highest) / 4)
    return math.ceil(1 / width)


class _Density:
    """exp_{2-alpha}(f - A) and its (2 - alpha)-th power, integrated between its edges."""

    def __init__(self, score: GaussianScore, alpha: float) -> None:
        self.score = score
        self.eps = alpha - 1
        self.power = 1 / self.eps if self.eps else 0.0
        # Where edges are met with a power that is not whole, nodes crowd towards all ends.
        whole = abs(self.power - round(self.power)) < 1e-12
        x, w = np.polynomial.legendre.leggauss(_ORDER if whole else _GRADED_ORDER)
        y, v = (torch.from_numpy(a) for a in ((1 + x) / 2, w / 2))
        if not whole:
            y, v = y**3 * (10 - 15 * y + 6 * y**2), v * 30 * (y * (1 - y)) ** 2
        self.y, self.v = y, v

    def truth(self, inside: bool, psi: Callable[[Tensor], Tensor], upstream: Tensor) -> Truth:
        a = self._normalizer() if inside else torch.zeros(len(upstream), dtype=torch.float64)
        t, w = self._rule(a)
        kernel = self.score.kernel(t)
        p, q = (w * x for x in self._powers(kernel, a))
        z = p.sum(-1)
        values = psi(t)
        value = torch.einsum("rq,rqn->rn", p, values) / z.unsqueeze(-1)
        above = torch.einsum("rn,rqn->rq", upstream, values)
        if inside:
            pull = q * (above - ((q * above).sum(-1) / q.sum(-1)).unsqueeze(-1))
        else:
            pull = q * (above - (upstream * value).sum(-1, keepdim=True)) / z.unsqueeze(-1)
            a = -torch.expm1(-self.eps * z.log()) / self.eps
        return Truth(a, value, torch.einsum("rq,rqi->ri", pull, kernel))

    def _rule(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """Nodes and weights (R, Q) of smooth pieces: even panels, cut at the edges."""
        count = _panels(self.score, 1 + self.eps) + 1
        cuts = torch.linspace(0, 1, count, dtype=torch.float64).expand(len(a), -1)
        if self.eps:
            cuts = torch.cat([cuts, self.score.edges(a - self.power)], -1).sort(-1).values
        low, size = cuts[:, :-1, None], cuts.diff(dim=-1).unsqueeze(-1)
        return (low + size * self.y).flatten(1), (size * self.v).flatten(1)

    def _powers(self, kernel: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        """The density and its (2 - alpha)-th power, (R, Q)."""
        x = torch.einsum("rqi,ri->rq", kernel, self.score.weights) - a.unsqueeze(-1)
        if not self.eps:
            return x.exp(), x.exp()
        on = self.eps * x > -1
        log = torch.log1p(self.eps * torch.where(on, x, 0.0))
        return on * torch.exp(log * self.power), on * torch.exp(log * (self.power - 1))

    def _normalizer(self) -> Tensor:
        """A, at which the mass is one: halvings on an even grid, then Newton's steps."""
        grid = torch.linspace(0, 1, 64 * math.ceil(1 / self.score.bandwidth), dtype=torch.float64)
        f = self.score.weights @ self.score.kernel(grid).T
        if not self.eps:
            top = f.amax(-1)
            t, w = self._rule(top)
            return top + (w * self._powers(self.score.kernel(t), top)[0]).sum(-1).log()
        low, high = f.mean(-1), f.amax(-1)
        for _ in range(40):
            a = (low + high) / 2
            bracket = (1 + self.eps * (f - a.unsqueeze(-1))).clamp_min(0)
            heavy = bracket.pow(self.power).mean(-1) > 1
            low, high = torch.where(heavy, a, low), torch.where(heavy, high, a)
        for _ in range(20):
            t, w = self._rule(a)
            mass, slope = ((w * x).sum(-1) for x in self._powers(self.score.kernel(t), a))
            step = torch.expm1(self.eps * mass.log()) / self.eps * mass ** (1 - self.eps) / slope
            a = a + step
            if step.abs().max() < 1e-11 * (1 + a.abs().max()):  # the next one is its square
                break
        return a
