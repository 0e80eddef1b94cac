"""Densities of numbers of torch's: what they do not know themselves, by quadrature."""

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from ..bases import Basis, Fourier
from ..numerics.quadrature import gauss_legendre
from ..numerics.roots import attach_root_gradient, increasing_root
from ..numerics.validation import require
from .beta_gaussian import BetaGaussian
from .coordinate import Coordinate
from .foreign import ForeignDistribution, class_name
from .once import once

__all__ = ["ForeignOnLine"]

# Gauss-Legendre nodes over a large part of the support, and over one of many panels; and the order
# of the trapezoidal rule where two functions may be narrow.
_PART, _SHORT, _PANELS, _FINE = 80, 10, 64, 512
# Their `cdf` has no derivative in the shape.
_SHAPED = ("Chi2", "Gamma", "InverseGamma")
# Log densities of less than minus this, and of more, count as none.
_FAINT = 640.0
# What a rule may miss of a mass of one, and the order that it needs for that.
_LOST, _FEWEST = 0.02, 4


class ForeignOnLine(ForeignDistribution):
    """A continuous distribution of numbers of torch's; its density should have one peak.

    Classes of torch's and Pyro's answer in float64.

    Args:
        base: The original (*batch).
    """

    _widened = True
    _per_batch = ("_kept_masses", "_kept_masses_detached")

    @property
    def ends(self) -> tuple[Tensor | None, Tensor | None]:
        """Lower and upper end of the support (*batch), None where there is none."""
        bounds = (getattr(self.base.support, f"{name}_bound", None) for name in ("lower", "upper"))
        lower, upper = (
            None
            if x is None
            else torch.as_tensor(x, dtype=self.alpha.dtype, device=self.alpha.device).expand(
                self.alpha.shape
            )
            for x in bounds
        )
        return lower, upper

    @property
    def mean(self) -> Tensor:
        """Mean (*batch)."""
        known = self._known("mean")
        return self.expect(lambda t: t) if known is None else known

    @property
    def variance(self) -> Tensor:
        """Variance (*batch)."""
        known, mean = self._known("variance"), self.mean
        return self.expect(lambda t: (t - mean).square()) if known is None else known

    def _inside(self) -> Tensor:
        lower, upper = (x if x is None else x.detach() for x in self.ends)
        if lower is not None and upper is not None:
            return (lower + upper) / 2
        if lower is not None:
            return lower + lower.abs().clamp_min(1)
        return torch.zeros_like(self.alpha) if upper is None else upper - upper.abs().clamp_min(1)

    @property
    def intervals(self) -> Tensor:
        """The support as an interval (*batch, 1, 2)."""
        lower, upper = self.ends
        infinite = torch.full_like(self.alpha, math.inf)
        ends = [-infinite if lower is None else lower, infinite if upper is None else upper]
        return torch.stack(ends, -1).unsqueeze(-2)

    @property
    def coordinate(self) -> Coordinate:
        """What to integrate in."""
        with torch.no_grad():
            centre = self._middle()
            # As wide as the uniform density of the same height, where the variance is not known.
            wide = (0.5 * torch.exp(-self.base.log_prob(centre))).clamp(1e-9, 1e9)
            spread = self._known("stddev")
            if spread is not None:
                wide = torch.where(spread.isfinite() & (spread > 0), spread, wide)
        return Coordinate(*self.ends, centre, wide)

    def _middle(self) -> Tensor:
        """The mean, or else the median, or else the mode, or else anywhere."""
        found = self._inside()
        for known in (self._known("mode"), self._median(), self._known("mean")):
            if known is not None:
                within = known.isfinite() & self.base.support.check(known)
                found = torch.where(within, known, found)
        return found

    def _median(self) -> Tensor | None:
        try:
            median: Tensor = self.base.icdf(0.5 * torch.ones_like(self._inside()))
        except NotImplementedError:
            return None
        return median

    def _weighed(self, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Locations at y (Q, ...), and the weights times the density there, by dy."""
        t, slope = self.coordinate.locations(y)
        # A density may be infinite on an end, and its slope infinite where it underflows.
        inside, found = self._looked_up(t)
        alive = inside & (found.abs() < _FAINT)
        t = self._moved(t, alive)
        weights = weights * slope * torch.exp(self.base.log_prob(t))
        return t, torch.where(alive, weights, 0.0)

    @property
    def bulk(self) -> tuple[Tensor, Tensor]:
        """First and last value of the coordinate (*batch) between which the mass is."""
        c = self.coordinate
        y = torch.linspace(-c.reach, c.reach, _PANELS + 1).to(self.alpha)
        y = y.reshape(-1, *(1,) * self.alpha.dim())
        with torch.no_grad():
            t, slope = c.locations(y)
            inside, found = self._looked_up(t)
            height = torch.where(inside & (found < math.inf), found + slope.log(), -math.inf)
            alive = height > height.amax(0) - _FAINT / 8
            step = 2 * c.reach / _PANELS
            first = torch.where(alive, y, c.reach).amin(0) - step
            last = torch.where(alive, y, -c.reach).amax(0) + step
        return first.clamp(min=-c.reach), last.clamp(max=c.reach)

    def quadrature(self, order: int = 64) -> tuple[Tensor, Tensor]:
        r"""Nodes and weights, both (4 order + 1 >= 17, *batch): $\sum_q w_q g(t_q) \to E_p[g]$.

        Raises:
            ValueError: They do not find all of the mass.
        """
        if order < 1:
            raise ValueError(f"order must be at least 1, got {order}")
        first, last = self.bulk
        count = 4 * max(order, _FEWEST)
        share = torch.linspace(0, 1, count + 1).to(self.alpha)
        y = first + (last - first) * share.reshape(-1, *(1,) * self.alpha.dim())
        nodes, weights = self._weighed(y, (last - first) / count)
        mass = weights.sum(0)
        law, rule = type(self.base).__name__, "a density on a line, of mass 1 at these nodes"
        require((mass - 1).abs() < _LOST, law, rule, mass)
        return nodes, weights / mass

    def tail(self, value: Tensor, upper: Tensor) -> Tensor:
        """Mass below each value, or above where `upper`; with its own digits where integrated."""
        inside = self.base.support.check(value)
        at = self._moved(value, inside)
        outside = (value < self._inside()) == upper
        if (known := self._known_cdf(at)) is not None:
            found = torch.where(upper, 1 - known, known)
        else:
            found = self._integrated(at, upper)
        return torch.where(inside, found, outside.to(found.dtype))

    def _known_cdf(self, value: Tensor) -> Tensor | None:
        if class_name(self.base) in _SHAPED:
            return None
        try:
            known: Tensor = self.base.cdf(value)
        except NotImplementedError:
            return None
        return known

    def _integrated(self, value: Tensor, upper: Tensor) -> Tensor:
        """Mass below each value inside the support, or above."""
        reach = self.coordinate.reach
        y = self.coordinate.of(value)
        low, high = self._masses() if torch.is_grad_enabled() else self._kept_masses
        # From the next cut outwards, and what is beyond it.
        right = y > 0
        place = (y.detach() / reach + 1) * (_PANELS // 2)
        index = torch.where(right, place.ceil(), place.floor()).long().clamp(0, _PANELS)
        cut = (2 * index / _PANELS - 1) * reach
        ends = torch.where(right, y, cut), torch.where(right, cut, y)
        rows = [
            x.reshape(len(x), *(1,) * (y.dim() - x.dim() + 1), *x.shape[1:]) for x in (high, low)
        ]
        above, below = (x.expand(len(x), *y.shape).gather(0, index[None])[0] for x in rows)
        mass = self._part(*ends, _SHORT)[1].sum(0) + torch.where(right, above, below)
        return torch.where(right == upper, mass, 1 - mass)

    def _masses(self) -> tuple[Tensor, Tensor]:
        """Masses below and above the ends of panels, both (P + 1, *batch)."""
        reach = self.coordinate.reach
        grid = torch.linspace(-reach, reach, _PANELS + 1).to(self.alpha)
        grid = grid.reshape(-1, *(1,) * self.alpha.dim())
        panels = self._part(grid[:-1], grid[1:], _SHORT)[1].sum(0)
        none = torch.zeros_like(panels[:1])
        return (
            torch.cat([none, panels.cumsum(0)]),
            torch.cat([panels.flip(0).cumsum(0).flip(0), none]),
        )

    # For a search; a graph that is kept could be differentiated only once.
    _kept_masses = once(_masses)

    def _part(self, low: Tensor, high: Tensor, order: int) -> tuple[Tensor, Tensor]:
        """Nodes and weights (Q, ...) between two values of y."""
        nodes, rule = (x.reshape(-1, *(1,) * low.dim()) for x in gauss_legendre(order, self.alpha))
        half = (high - low) / 2
        return self._weighed(low + half * (1 + nodes), half * rule)

    def cdf(self, value: Tensor) -> Tensor:
        """Distribution function, integrated where the original has none."""
        return self.tail(value, torch.zeros_like(value, dtype=torch.bool))

    def icdf(self, value: Tensor) -> Tensor:
        """Quantile function, by root finding where the original has none."""
        try:
            known: Tensor = self.base.icdf(value)
        except NotImplementedError:
            return self._found_quantile(value)
        return known

    def _found_quantile(self, value: Tensor) -> Tensor:
        c = self.coordinate
        value = value * torch.ones_like(self.alpha)
        upper = value > 0.5
        goal = torch.where(upper, 1 - value, value)
        end = torch.full_like(value, c.reach)

        def excess(t: Tensor) -> Tensor:
            gap = self.tail(t, upper) - goal
            return torch.where(upper, -gap, gap)

        y = increasing_root(lambda y: excess(c.locations(y)[0]), -end, end)
        t = attach_root_gradient(c.locations(y)[0], excess, self.prob)
        low, high = self.intervals[..., 0, :].unbind(-1)
        return torch.where(value <= 0, low, torch.where(value >= 1, high, t))

    def _quadrature_expect(self, psi: Basis | Callable[[Tensor], Tensor], order: int) -> Tensor:
        if isinstance(psi, Basis) and class_name(self.base) == "Uniform":
            return self._uniform().expect(psi, order)
        if isinstance(psi, Basis) and psi.reach is not None:
            return self._expect_by_windows(psi)
        if isinstance(psi, Fourier):
            return self._expect_waves(psi)
        return super()._quadrature_expect(psi, order)

    def _expect_waves(self, psi: Fourier) -> Tensor:
        weights, values = self._quadrature_values(psi, _FINE)
        found = (weights * values).sum(0)
        # Every other node is a rule too, with about the root of the error.
        rough = (weights * values)[::2].sum(0) / weights[::2].sum(0)
        fits = (rough - found).abs() < 1e-4
        require(fits, "frequencies", f"low enough to integrate {self}", psi.frequencies)
        return found

    def _uniform(self) -> BetaGaussian:
        """The same law with closed forms."""
        lower, upper = self.intervals[..., 0, :].unbind(-1)
        return BetaGaussian((lower + upper) / 2, (upper - lower) / 2, math.inf, validate_args=False)

    def _expect_by_windows(self, psi: Basis) -> Tensor:
        """Each function where it is not zero, cut where it is not smooth."""
        c, ones, (first, last) = self.coordinate, (1,) * self.alpha.dim(), self.bulk
        low, high = (
            torch.minimum(torch.maximum(c.of(x.reshape(-1, *ones).to(self.alpha)), first), last)
            for x in psi.reach or ()
        )
        cuts = [low]
        if psi.breaks is not None:
            inner = c.of(psi.breaks.reshape(-1, 1, *ones).to(self.alpha))
            cuts += torch.minimum(torch.maximum(inner, low), high).unbind()
        found = []
        for a, b in pairwise([*cuts, high]):
            nodes, weights = self._part(a, b, _PART)
            values = psi.own(nodes.movedim(1, -1))
            found.append((weights.movedim(1, -1) * values).sum(0))
        return torch.stack(found).sum(0)

    def generalized_covariance(
        self, phi: Basis, psi: Basis, beta: Tensor | float | None = None
    ) -> Tensor:
        self._check_basis("phi", phi)
        self._check_basis("psi", psi)
        if class_name(self.base) == "Uniform":
            return self._uniform().generalized_covariance(phi, psi, 1.0)
        nodes, weights = self.quadrature(_FINE)
        f, g = (basis(nodes) for basis in (phi, psi))
        f, g = (x - (weights.unsqueeze(-1) * x).sum(0) for x in (f, g))
        return torch.einsum("q...,q...m,q...n->...mn", weights, f, g)
