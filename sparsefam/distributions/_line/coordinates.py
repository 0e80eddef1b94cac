"""Coordinates in which densities of numbers are integrated."""

import torch
from torch import Tensor

from ..._numerics.quadrature import graded

__all__ = ["Coordinate", "DoubleExponential", "Line"]

# Largest exponent to which a coordinate reaches: the exponential overflows at 88.7 and 709.8, which
# leaves a factor of 1e9 or more for the width or the spread of the distribution.
_REACH = {torch.float32: 66.0, torch.float64: 600.0}


class Coordinate:
    """Base class of coordinates: variables y that replace the location t in integrals.

    Subclasses implement t(y), `locations`, and its inverse, `onto`. Between two cuts in y there is
    a Gauss-Legendre rule, graded towards cuts where the density has a kink or a power.

    Args:
        order: Number of nodes between two cuts.
        parts: Number of pieces between two cuts on which a distribution function is one polynomial.
        degree: Number of nodes on each piece, and degree of the polynomial.
        rough: The cuts (K, *batch) at which the density is not smooth; default all.
        steps: Steps of the search for a quantile; two Newton steps follow.
    """

    def __init__(
        self,
        order: int = 32,
        parts: int = 3,
        degree: int = 24,
        rough: Tensor | None = None,
        steps: int = 24,
    ) -> None:
        self.order, self.parts, self.degree = order, parts, degree
        self.rough, self.steps = rough, steps

    def onto(self, t: Tensor) -> Tensor:
        """Return coordinates of locations (..., *batch)."""
        raise NotImplementedError

    def locations(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return locations, and their derivatives, at coordinates y (..., *batch)."""
        raise NotImplementedError

    def is_rough(self, low: Tensor, high: Tensor) -> Tensor | bool:
        """Return whether the density is not smooth at one of the cuts (..., *batch) of a pair.

        It is one bool for all pairs if all cuts are rough, or none is.
        """
        if self.rough is None or not len(self.rough):
            return self.rough is None
        batch = self.rough.shape[1:]
        rough = self.rough.reshape(len(self.rough), *(1,) * (low.dim() - len(batch)), *batch)
        return ((low == rough) | (high == rough)).any(0)

    def locations_between(
        self, y: Tensor, low: Tensor, high: Tensor, rough: Tensor | bool
    ) -> tuple[Tensor, Tensor]:
        """Return locations, and their derivatives in y, between cuts.

        Args:
            y: From -1, at the lower cut, to 1, at the upper one; it broadcasts with the cuts.
            low: Coordinates of lower cuts (..., *batch).
            high: Coordinates of upper cuts (..., *batch).
            rough: Result of `is_rough` for these cuts, by which nodes are graded towards both.
        """
        if isinstance(rough, Tensor):
            pairs = [self.locations_between(y, low, high, choice) for choice in (True, False)]
            t, slope = (torch.where(rough, a, b) for a, b in zip(*pairs, strict=True))
            return t, slope
        if rough:
            x, rate = graded(y, low, high)
        else:
            rate = (high - low) / 2
            x = low + rate * (1 + y)
        t, slope = self.locations(x)
        return t, slope * rate


class Line(Coordinate):
    """The location itself as the coordinate."""

    def onto(self, t: Tensor) -> Tensor:
        return t

    def locations(self, y: Tensor) -> tuple[Tensor, Tensor]:
        return y, y.new_ones(())


class DoubleExponential(Coordinate):
    r"""The coordinate y of double-exponential quadrature, $t = T(a + b \sinh y)$.

    T maps the line onto an interval with the given ends: it is a logistic function, an exponential
    or a hyperbolic sine. Whatever the tails of a density and its powers at the ends, it decays
    double exponentially in y, so that a few nodes suffice. y = 0 is the center, where dt/dy is at
    most the spread.

    Args:
        lower: Lower end of the support (*batch); None if there is none.
        upper: Upper end (*batch); None if there is none.
        center: Location (*batch) near most of the mass.
        spread: About the standard deviation (*batch).
        order: Number of nodes between two cuts.

    Attributes:
        limit: The largest |y| that `onto` returns (*batch).

    References:
        Takahasi and Mori (1974), Double exponential formulas for numerical integration. Publ. Res.
        Inst. Math. Sci. 9.
    """

    def __init__(
        self,
        lower: Tensor | None,
        upper: Tensor | None,
        center: Tensor,
        spread: Tensor,
        order: int = 20,
    ) -> None:
        # No cut is rough unless a caller says so: at the ends the density decays in y.
        super().__init__(order, 1, order, center.new_empty(0, *center.shape))
        # Detached, as a replayed trace of torch.jit ignores no_grad.
        center, spread = center.detach(), spread.detach()
        self._lower, self._upper, self._center, self._spread = lower, upper, center, spread
        self._a = self.onto_line(center).detach()
        # dt/dy = T'(a) b is the spread at the center unless b would be large.
        self._b = (spread / self.from_line(self._a)[1]).clamp(max=2.0).detach()
        # As far as the exponentials of T, and their products with the spread, do not overflow.
        reach, is_whole_line = _REACH[center.dtype], lower is None and upper is None
        used = spread.log().clamp_min(0) if is_whole_line else self._a.abs()
        self.limit = torch.asinh((reach - used).clamp_min(reach / 10) / self._b)

    def onto(self, t: Tensor) -> Tensor:
        y = torch.asinh((self.onto_line(t) - self._a) / self._b)
        return y.clamp(-self.limit, self.limit)

    def locations(self, y: Tensor) -> tuple[Tensor, Tensor]:
        rise = y.exp()  # a quarter of the time of sinh and cosh
        fall = 1 / rise
        half = self._b / 2
        t, slope = self.from_line(self._a + half * (rise - fall))
        return t, slope * (half * (rise + fall))

    def from_line(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return T and its derivative at x (..., *batch)."""
        if self._lower is not None and self._upper is not None:
            width, fraction = self._upper - self._lower, torch.sigmoid(x)
            return self._lower + width * fraction, width * fraction * torch.sigmoid(-x)
        if self._lower is not None:
            slope = x.exp()
            return self._lower + slope, slope
        if self._upper is not None:
            slope = (-x).exp()
            return self._upper - slope, slope
        return self._center + self._spread * x.sinh(), self._spread * x.cosh()

    def onto_line(self, t: Tensor) -> Tensor:
        """Return the inverse of T, also where rounding puts t on an end."""
        info = torch.finfo(t.dtype)
        if self._lower is not None and self._upper is not None:
            # From either end: logit would lose digits next to the upper one.
            width = self._upper - self._lower
            below = torch.maximum(t - self._lower, info.tiny * width)
            return below.log() - torch.maximum(self._upper - t, info.eps / 2 * width).log()
        if self._lower is not None:
            return (t - self._lower).clamp_min(info.tiny).log()
        if self._upper is not None:
            return -(self._upper - t).clamp_min(info.tiny).log()
        return torch.asinh((t - self._center) / self._spread)
