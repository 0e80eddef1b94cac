"""Laws whose masses and quantiles between two ends have closed forms, accurate in tails."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..._numerics.modes import may_be_differentiated, values_are_readable
from ..._numerics.operators import differentiable
from ..._numerics.quadrature import gauss_legendre

__all__ = ["Law", "LawBetween"]

_ROOT = math.sqrt(0.5)
_HALF_LOG = math.log(2 * math.pi) / 2
# What stands for infinity: its products with densities that are zero are zero.
_FAR = 1e200
# Beyond this the normal quantile is found from logarithms, as tails underflow at 38.
_DEEP = 25.0
# Nodes on each side of the mode, and the exponent at which moments are cut off.
_NODES, _DEPTH = 24, 40.0
# Between ends on both sides of the mode, at least this far from it, tails alone are accurate.
_WIDE = 0.75
# The positive half of a Gauss-Legendre rule, for even functions between near ends.
_NEAR_RULE = np.stack(np.polynomial.legendre.leggauss(10))[:, 5:].tolist()


_Pair = tuple[Tensor, Tensor]


class _once:  # noqa: N801
    """A property computed once. torch.compile does not trace functools.cached_property."""

    def __init__(self, compute: Callable[[Any], Any]) -> None:
        self._compute, self._name = compute, compute.__name__

    def __get__(self, holder: Any, owner: type) -> Any:
        """Compute the value, and store it where Python looks before it asks for this property."""
        value = holder.__dict__[self._name] = self._compute(holder)
        return value


class _Ends:
    """Ends of a standard law, and quantities that its mass and its quantiles have in common.

    Args:
        name: Name of the standard law.
        triple: The ends and their distance, as below.

    Attributes:
        law: The standard law, a class that derives from `_Standard`.
        triple: Ends a < b, which may be -_FAR and _FAR, and their distance w, which has digits that
            b - a lacks.
    """

    def __init__(self, name: str, *triple: Tensor) -> None:
        self.law, self.triple = _STANDARD[name], triple

    @_once
    def sides(self) -> Tensor:
        """How far the mode lies below a, and above b (2, *batch); it may be infinite."""
        return torch.stack([self.triple[0], -self.triple[1]])

    @_once
    def tails(self) -> Tensor:
        """The masses of the standard normal law below a and above b (2, *batch)."""
        return torch.erfc(-_ROOT * self.sides) / 2

    @_once
    def are_wide(self) -> bool:
        """Whether values can be read, and all ends are on both sides of the mode, far from it.

        There a mass is 1 less the tails. Far is at least _WIDE.
        """
        sides = self.sides
        return values_are_readable(sides) and sides.numel() > 0 and float(sides.amax()) <= -_WIDE

    @_once
    def log_mass(self) -> Tensor:
        """The log mass (*batch)."""
        return self.law.log_mass(self)

    @_once
    def relative(self) -> Tensor:
        """The logarithm of the ratio of the mass to the higher density at the ends (*batch)."""
        return self.law.relative(self)


class _EndsOfLaw(_Ends):
    """The standard form of the ends of a law, computed when it is first asked for.

    Args:
        law: The law.
        low: Lower end (*batch), in the support of the law.
        high: Upper end (*batch), in the support of the law.
    """

    def __init__(self, law: "Law", low: Tensor, high: Tensor) -> None:
        self.law, self._given = _STANDARD[law.name], (law, low, high)

    @_once
    def triple(self) -> tuple[Tensor, ...]:
        law, low, high = self._given
        return torch.broadcast_tensors(*law.standardize(low, high))

    @_once
    def sides(self) -> Tensor:
        # In fewer operations than by `triple`, which wide ends of a normal law do not need.
        law, low, high = self._given
        if law.exponential:
            return super().sides
        return torch.stack([low - law.loc, law.loc - high]) / law.scale


class _Standard:
    """A standard law between ends a < b, whose distance is w.

    Only `log_density` and `log_ratio` are differentiated. All results are (*batch), those of
    `quantile` (*sample, *batch).
    """

    @staticmethod
    def log_density(x: Tensor) -> Tensor:
        """Return the log density at x."""
        raise NotImplementedError

    @classmethod
    def log_ratio(cls, a: Tensor, b: Tensor, w: Tensor) -> Tensor:
        """Return the logarithm of the ratio of the densities at b and at a."""
        raise NotImplementedError

    @classmethod
    def log_mass(cls, ends: _Ends) -> Tensor:
        """Return the log mass."""
        raise NotImplementedError

    @classmethod
    def relative(cls, ends: _Ends) -> Tensor:
        """Return the logarithm of the ratio of the mass to the higher density at the ends."""
        return ends.log_mass - cls.highest(*ends.triple)

    @classmethod
    def highest(cls, a: Tensor, b: Tensor, w: Tensor) -> Tensor:
        """Return the higher of the log densities at the ends."""
        return torch.maximum(cls.log_density(a), cls.log_density(b))

    @classmethod
    def quantile(cls, ends: _Ends, q: Tensor, p: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return quantiles x of the law between ends, and their distances x - a from the lower end.

        A distance is infinite where it has no more digits than x gives; None if none has.

        Args:
            ends: The ends.
            q: Probabilities (*sample, *batch).
            p: 1 - q (*sample, *batch).
        """
        raise NotImplementedError


class _Normal(_Standard):
    @staticmethod
    def log_density(x: Tensor) -> Tensor:
        return torch.rsub(x.square(), -_HALF_LOG, alpha=0.5)

    @classmethod
    def log_ratio(cls, a: Tensor, b: Tensor, w: Tensor) -> Tensor:
        # (a^2 - b^2) / 2, without the difference of squares.
        return w * (a + b) / -2

    @classmethod
    def log_mass(cls, ends: _Ends) -> Tensor:
        log_mass = torch.log1p(-ends.tails.sum(0))
        if ends.are_wide:
            return log_mass
        # 1 less the tails cancels on one side of the mode, and between near ends.
        by_density = (ends.sides.amax(0) > 0) | _is_near(*ends.triple)
        return torch.where(by_density, ends.relative + cls.highest(*ends.triple), log_mass)

    @classmethod
    def relative(cls, ends: _Ends) -> Tensor:
        a, b, w = ends.triple
        # Three cases: ends on both sides of the mode, on one side of it, and near ends.
        ratio = torch.log1p(-ends.tails.sum(0)) - cls.highest(a, b, w)
        if ends.are_wide:
            return ratio
        # The logarithm of the ratio of the higher end density to the lower one.
        fall = w * ((a + b) / 2).abs()
        start = torch.maximum(a, -b)
        beyond = start > 0
        if _any(beyond):
            # The tail beyond x is phi(x) sqrt(pi / 2) erfcx(x / sqrt 2) with the density phi.
            erfcx, end = torch.special.erfcx, torch.where(start == a, b, -a)
            side = erfcx(_ROOT * start) - torch.exp(-fall) * erfcx(_ROOT * end)
            ratio = torch.where(beyond, side.log() + math.log(math.pi / 2) / 2, ratio)
        # Between near ends differences cancel, but the density hardly changes.
        near = _is_near(a, b, w)
        if _any(near):
            half, slope = (torch.where(near, t, 1.0) / 2 for t in (w, fall))
            # The density at the middle over the higher one at an end is exp(half^2 / 2 - slope).
            close = (2 * half * _relative_mean(half, slope)).log() - slope + half.square() / 2
            ratio = torch.where(near, close, ratio)
        return ratio

    @classmethod
    def quantile(cls, ends: _Ends, q: Tensor, p: Tensor) -> tuple[Tensor, Tensor | None]:
        # The masses below and above x, of which the smaller one determines it.
        mass = ends.log_mass.exp()
        below, above = (
            torch.addcmul(tail, fraction, mass)
            for tail, fraction in zip(ends.tails.unbind(), (q, p), strict=True)
        )
        x = torch.special.ndtri(torch.minimum(below, above)).copysign(below - above)
        if ends.are_wide:
            return x, None
        a, b, w = ends.triple
        # Around 0 by erf, which has more digits there than a tail near one half.
        central = (torch.maximum(below, above) < 0.75) & (ends.sides.amax(0) > -_WIDE)
        if _any(central):
            center = torch.erfinv(torch.lerp(torch.erf(_ROOT * a), torch.erf(_ROOT * b), q))
            x = torch.where(central, center / _ROOT, x)
        step, middle = torch.full_like(x, math.inf), (a + b) / 2
        deep = (a > _DEEP) | (b < -_DEEP)
        if _any(deep):
            deep_x, deep_step = cls._deep_quantile(a, b, w, q, p)
            x, step = torch.where(deep, deep_x, x), torch.where(deep, deep_step, step)
        near = _is_near(a, b, w)
        if _any(near):
            # By one Newton step for u = x - a, with a fraction of the mass below x. All is relative
            # to the density phi at the middle of the ends; `here` is the middle of [a, x], and
            # phi(y) / phi(z) = exp((z - y)(z + y) / 2).
            a, width, middle = (torch.where(near, t, 1.0) for t in (a, w, middle))
            u = torch.minimum(torch.where(near, x - a, 1.0).clamp_min(0), width)
            here, whole = a + u / 2, width * _relative_mean(width / 2, width * middle / 2)
            fraction = u * _relative_mean(u / 2, u * here / 2)
            fraction = fraction * torch.exp((width - u) * (here + middle) / 4) / whole
            density = torch.exp(width * (a + middle) / 4 - u * here) / whole
            step = torch.where(near, u + (q - fraction) / density, step)
        return x, step

    @staticmethod
    def _deep_quantile(a: Tensor, b: Tensor, w: Tensor, q: Tensor, p: Tensor) -> _Pair:
        """Return quantiles x deep in a tail, and x - a, infinite where x is as accurate.

        The ratio of tails at x and a is exp(-d) erfcx(x/sqrt 2)/erfcx(a/sqrt 2) with the drop
        d = (x^2 - a^2)/2 of the log density: a fixed-point equation for d. The lower tail is the
        mirror image.

        Args:
            a: Lower end (*batch).
            b: Upper end (*batch).
            w: Distance of the ends (*batch).
            q: Probabilities (*sample, *batch).
            p: 1 - q (*sample, *batch).
        """
        erfcx, flip = torch.special.erfcx, b < 0
        start, end = (torch.where(flip, *x).clamp_min(0) for x in ((-b, a), (-a, b)))
        first = erfcx(_ROOT * start)
        ratio = torch.exp(w * (a + b).abs() / -2) * erfcx(_ROOT * end) / first
        log_tail = torch.lerp(ratio, torch.ones_like(ratio), torch.where(flip, q, p)).log()
        square, drop = start.square(), -log_tail
        x = (square + 2 * drop).sqrt()
        # Each of four steps divides the error by about x^2, which is above _DEEP^2 = 625.
        for _ in range(4):
            drop = (erfcx(_ROOT * x) / first).log() - log_tail
            x = (square + 2 * drop).sqrt()
        step = 2 * drop / (x + start)
        step = torch.where(flip, torch.where(w < 1, w - step, math.inf), step)
        return torch.where(flip, -x, x), step


def _any(mask: Tensor) -> bool:
    """Return whether a mask is true anywhere, or cannot be read.

    If not, callers leave out values that they would select where it is true.
    """
    return not values_are_readable(mask) or bool(mask.any())


def _is_near(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    """Return whether ends are so near that the standard normal density hardly changes (*batch)."""
    return w + w * ((a + b) / 2).abs() < 1.5


def _mean_by_middle(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    """Return the mean of the standard normal density between near ends a, b, with the distance w.

    It is relative to the density at the middle of the ends.
    """
    return _relative_mean(w / 2, w * (a + b) / 4)


def _relative_mean(width: Tensor, slope: Tensor) -> Tensor:
    """Return the mean of cosh(slope x) exp(-(width x)^2 / 2) over x in [0, 1].

    With slope = m width it is the mean of the normal density over [m - width, m + width], relative
    to the density at m.
    """
    # Not a cached tensor: torch.jit does not trace two functions that share one.
    rule = width.new_tensor(_NEAR_RULE).reshape(2, -1, *(1,) * width.dim())
    x, weights = rule.unbind()
    return (weights * (slope * x).cosh() * torch.exp((width * x).square() / -2)).sum(0)


class _Laplace(_Standard):
    @staticmethod
    def log_density(x: Tensor) -> Tensor:
        return -x.abs() - math.log(2)

    @classmethod
    def log_ratio(cls, a: Tensor, b: Tensor, w: Tensor) -> Tensor:
        return torch.where(a >= 0, -w, torch.where(b <= 0, w, -a - b))

    @staticmethod
    def _log_mass_from(ends: _Ends) -> _Pair:
        """Return the end a next to the mode, and log(2 mass) + max(a, 0), both (*batch).

        Both ends are mirrored where a + b < 0.
        """
        a, b, w = ends.triple
        flip = a + b < 0
        a, b = torch.where(flip, -b, a), torch.where(flip, -a, b)
        # Twice the mass is 2 - e^a - e^-b around the mode, and e^-a (1 - e^-w) on its right.
        relative = -torch.where(a < 0, torch.expm1(a) + torch.expm1(-b), torch.expm1(-w))
        return a, relative.log()

    @classmethod
    def log_mass(cls, ends: _Ends) -> Tensor:
        a, log_relative = cls._log_mass_from(ends)
        return log_relative - a.clamp_min(0) - math.log(2)

    @classmethod
    def relative(cls, ends: _Ends) -> Tensor:
        a, log_relative = cls._log_mass_from(ends)
        return log_relative - a.clamp(max=0)

    @classmethod
    def quantile(cls, ends: _Ends, q: Tensor, p: Tensor) -> _Pair:
        a, b, w = ends.triple
        # Ends around the mode: with the distribution function F, `center` is 2 F(x) - 1, the tails
        # are 2 F(x) and 2 - 2 F(x), and the smaller one is e^-|x|.
        below, above = torch.expm1(a.clamp(max=0)), torch.expm1(-b.clamp_min(0))
        center = torch.lerp(below, -above, q)
        first, last = torch.exp(a.clamp(max=0)), torch.exp(-b.clamp_min(0))
        tails = torch.lerp(first, 1 - above, q), torch.lerp(1 - below, last, q)
        tail = torch.minimum(*tails).log()
        tail = torch.where(center.abs() < 0.5, torch.log1p(-center.abs()), tail)
        x = torch.where(center < 0, tail, -tail)
        # Ends on one side of it: u = x - a is a quantile of e^-u, or of e^u, cut at w.
        upper = -torch.log1p(q * torch.expm1(-w))
        lower = torch.log1p(q * torch.expm1(w.clamp(max=1)))
        u = torch.where(a >= 0, upper, torch.where((b <= 0) & (w < 1), lower, math.inf))
        below = b + torch.lerp(torch.exp(-w), torch.ones_like(w), q).log()
        x = torch.where(b <= 0, below, x)
        return torch.where(a >= 0, a + upper, x), u


class _Exponential(_Standard):
    @staticmethod
    def log_density(x: Tensor) -> Tensor:
        return -x

    @classmethod
    def log_ratio(cls, a: Tensor, b: Tensor, w: Tensor) -> Tensor:
        return -w

    @classmethod
    def log_mass(cls, ends: _Ends) -> Tensor:
        return ends.relative - ends.triple[0]

    @classmethod
    def relative(cls, ends: _Ends) -> Tensor:
        return (-torch.expm1(-ends.triple[2])).log()

    @classmethod
    def quantile(cls, ends: _Ends, q: Tensor, p: Tensor) -> _Pair:
        a, b, w = ends.triple
        u = -torch.log1p(q * torch.expm1(-w))
        return a + u, u


class _Uniform(_Standard):
    # Zeros with a graph, as others have: derivatives of them are taken.
    @staticmethod
    def log_density(x: Tensor) -> Tensor:
        return 0 * x

    @classmethod
    def log_ratio(cls, a: Tensor, b: Tensor, w: Tensor) -> Tensor:
        return 0 * w

    @classmethod
    def log_mass(cls, ends: _Ends) -> Tensor:
        return ends.triple[2].log()

    @classmethod
    def quantile(cls, ends: _Ends, q: Tensor, p: Tensor) -> _Pair:
        a, b, w = ends.triple
        return a + q * w, q * w


_STANDARD: dict[str, Any] = {
    "normal": _Normal,
    "laplace": _Laplace,
    "exponential": _Exponential,
    "uniform": _Uniform,
}


def _mass_slopes(
    name: str, a: Tensor, b: Tensor, w: Tensor, log_mass: Tensor, log_ratio: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return derivatives of the log mass in a, b and w, one of the first two 0.

    The mass is a function of w and of the end with the higher density. Moved at fixed w, this end
    changes it by the density at b less the density at a, and w changes it by the lower density.

    Args:
        name: Name of the standard law.
        a: Lower end (*batch).
        b: Upper end (*batch).
        w: Distance of the ends (*batch), with digits that b - a lacks.
        log_mass: First result of `_mass_of` (*batch).
        log_ratio: Second result of `_mass_of` (*batch).
    """
    law, has_mass = _STANDARD[name], log_ratio.isfinite()
    if torch.is_grad_enabled():
        # The same number, with derivatives for second derivatives of the log mass.
        by_difference = log_mass - law.highest(a, b, w)
        log_ratio = log_ratio + (by_difference - by_difference.detach())
    # Without mass there is no slope.
    log_ratio = torch.where(has_mass, log_ratio, math.inf)
    change = law.log_ratio(a, b, w)
    left = change <= 0
    fall = torch.where(left, change, -change)
    by_end = torch.expm1(fall) * torch.exp(-log_ratio)
    by_width = torch.exp(fall - log_ratio)
    return torch.where(left, by_end, 0.0), torch.where(left, 0.0, -by_end), by_width


def _quantile_slopes(
    by_q: bool, name: str, a: Tensor, b: Tensor, w: Tensor, q: Tensor, x: Tensor, u: Tensor
) -> tuple[Tensor, Tensor, None, Tensor | None]:
    """Return derivatives of quantiles x in a, b, w (None for 0) and q.

    With the density p and the mass between the ends, F(x) = (1 - q) F(a) + q F(b) leads to
    p(x) dx = (1 - q) p(a) da + q p(b) db + mass dq.

    Args:
        by_q: Whether the derivative in q is needed; else it is None.
        name: Name of the standard law.
        a: Lower end (*batch).
        b: Upper end (*batch).
        w: Distance of the ends (*batch).
        q: Probabilities (*sample, *batch).
        x: First result of `_quantile_of` (*sample, *batch).
        u: Second result of `_quantile_of`: x - a, or infinity.
    """
    law = _STANDARD[name]
    # The distances of x from both ends, with the values of u and w - u where u has more digits.
    accurate, left, right = u < math.inf, x - a, b - x
    left = torch.where(accurate, u + (left - left.detach()), left)
    right = torch.where(accurate, w - u + (right - right.detach()), right)
    low, high = -law.log_ratio(a, x, left), law.log_ratio(x, b, right)
    mass = torch.exp(_log_mass(name, a, b, w)[0] - law.log_density(x)) if by_q else None
    return (1 - q) * torch.exp(low), q * torch.exp(high), None, mass


def _change(slopes: Any, changes: Any) -> Any:
    """Return the sum of slopes times changes, where None counts as 0."""
    pairs = zip(slopes, changes, strict=True)
    return sum(x * y for x, y in pairs if x is not None and y is not None)


def _pull_back_mass(kept: Any, grads: Any, needed: Any) -> Any:
    """Return gradients in (name, a, b, w) from one in the log mass, as `differentiable` asks."""
    return None, *(grads[0] * x for x in _mass_slopes(*kept))


def _pull_back_quantile(kept: Any, grads: Any, needed: Any) -> Any:
    """Return gradients in (name, a, b, w, q) from one in the quantiles."""
    slopes = _quantile_slopes(needed[4], *kept)
    return None, *(
        None if x is None else (grads[0] * x).sum_to_size(end.shape)
        for x, end in zip(slopes, kept[1:5], strict=True)
    )


def _push_mass_forward(kept: Any, changes: Any) -> Any:
    """Return the change of the log mass with changes of (name, a, b, w)."""
    return _change(_mass_slopes(*kept), changes[1:]), None


def _push_quantile_forward(kept: Any, changes: Any) -> Any:
    """Return the change of the quantiles with changes of (name, a, b, w, q)."""
    return _change(_quantile_slopes(changes[4] is not None, *kept), changes[1:]), None


def _mass_of(name: str, a: Tensor, b: Tensor, w: Tensor) -> _Pair:
    """Return the log mass between a and b, and the log of its ratio to the higher end density."""
    ends = _Ends(name, a, b, w)
    return ends.log_mass, ends.relative


def _quantile_of(name: str, a: Tensor, b: Tensor, w: Tensor, q: Tensor) -> _Pair:
    """Return quantiles x between a and b, and x - a, infinite where it has no more digits."""
    ends = _Ends(name, a, b, w)
    x, distance = ends.law.quantile(ends, q, 1 - q)
    return x, torch.full_like(x, math.inf) if distance is None else distance


def _keep(inputs: Any, outputs: Any) -> tuple[Any, ...]:
    """Return all arguments and results, which the derivatives need."""
    return *inputs, *outputs


# Functions of (name, a, b, w) and (name, a, b, w, q) with the derivatives above, for their first
# results only.
_log_mass = differentiable(_mass_of, _pull_back_mass, _keep, _push_mass_forward, constants=(1,))
_quantile = differentiable(
    _quantile_of, _pull_back_quantile, _keep, _push_quantile_forward, constants=(1,)
)


class Law(NamedTuple):
    r"""The law of $t = \mu + \sigma x$, or of its exponential, where x has a standard law.

    Attributes:
        name: Of the standard law.
        loc: $\mu$ (*batch).
        scale: $\sigma$ (*batch).
        exponential: Whether t is the exponential.
        lower: Lower end of the support where it is finite.
        upper: Upper end where it is finite.
        log_factor: Added to log densities, for one half of a symmetric law.
    """

    name: str
    loc: Tensor | float
    scale: Tensor
    exponential: bool = False
    lower: Tensor | float | None = None
    upper: Tensor | float | None = None
    log_factor: float = 0.0

    def ends(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Return ends (*batch), moved to an end of the support if they lie beyond it."""
        if self.lower is not None:
            low, high = (torch.where(x < self.lower, self.lower, x) for x in (low, high))
        if self.upper is not None:
            low, high = (torch.where(x > self.upper, self.upper, x) for x in (low, high))
        return low, high

    def standardize(self, low: Tensor, high: Tensor) -> tuple[Tensor, ...]:
        """Return ends (*batch) in terms of x, finite even if t is not, and their distance.

        Results are float64.
        """
        low, high = low.double(), high.double()
        if not self.exponential:
            low, high = low.clamp(-_FAR, _FAR), high.clamp(-_FAR, _FAR)
            width = high - low
            return (low - self.loc) / self.scale, (high - self.loc) / self.scale, width / self.scale
        below, above = low > 0, high < math.inf
        both = below & above
        # Ends that have a logarithm; 1 stands in where it is not selected.
        start, end = torch.where(below, low, 1.0), torch.where(above, high, 1.0)
        a = torch.where(below, (start.log() - self.loc) / self.scale, -_FAR)
        b = torch.where(above, (end.log() - self.loc) / self.scale, _FAR)
        # log(end) - log(start), which would cancel where they are near.
        near = torch.log1p(torch.where(both, end - start, 0.0) / start) / self.scale
        return a, b, torch.where(both, near, b - a)

    def is_resolved(self, low: Tensor, high: Tensor, lost: float) -> Tensor:
        """Return whether a rounding error of the ends changes log densities little (*batch).

        False may also mean that it is not known, as for all laws without `moments`.

        Args:
            low: Lower end (*batch).
            high: Upper end (*batch).
            lost: The change that is little enough.
        """
        if not self.has_moments:
            return torch.zeros_like(low, dtype=torch.bool)
        # A rounding error of t is at most 2^-53 |t|, and slopes in x are at most 1 + |x|.
        ends = torch.stack(self.ends(low, high))
        x = (ends - self.loc) / self.scale
        resolved = (1 + x.abs()) * ends.abs() < (lost * 2.0**52) * self.scale
        return (resolved | ends.isinf()).all(0) & (x[0] < x[1])

    def log_mass(self, low: Tensor, high: Tensor) -> Tensor:
        """Return the logarithm of the mass between ends (*batch)."""
        return LawBetween(self, low, high).log_mass

    @property
    def is_on_line(self) -> bool:
        """Whether the support is the real line."""
        # No law has an upper end without a lower one.
        return not self.exponential and self.lower is None

    def log_density(self, t: Tensor) -> Tensor:
        """Return the log density (*sample, *batch) of a law on the real line."""
        x = (t - self.loc) / self.scale
        return _STANDARD[self.name].log_density(x) - self.scale.log()

    def log_fraction(self, low: Tensor, high: Tensor, start: Tensor, end: Tensor) -> Tensor:
        """Return the logarithm of the fraction (*sample, *batch) of a mass between inner ends.

        Far in a tail both masses are tiny, and the difference of their logarithms cancels. So they
        are taken relative to the higher density at the ends of each, and the logarithm of the ratio
        of these two densities is added. Derivatives are taken of the difference.

        Args:
            low: Lower end of the whole mass (*batch).
            high: Upper end of the whole mass (*batch).
            start: Lower inner ends (*sample, *batch), at least `low`.
            end: Upper inner ends (*sample, *batch), at most `high`.
        """
        by_difference = self.log_mass(start, end) - self.log_mass(low, high)
        with torch.no_grad():
            law, standard = _STANDARD[self.name], self.standardize
            outer, inner = LawBetween(self, low, high), LawBetween(self, start, end)
            (low, high), (start, end) = (x.ends for x in (outer, inner))
            rise = law.log_ratio(*standard(low, high))
            # Logarithms of the higher density at inner ends over the density at `low` and at
            # `high`, of which the one for the higher outer density is taken.
            by_low, by_high = (
                torch.maximum(*(law.log_ratio(*standard(*pair)) * sign for pair in pairs))
                for sign, pairs in (
                    (1, ((low, start), (low, end))),
                    (-1, ((start, high), (end, high))),
                )
            )
            ratios = inner.standard.relative - outer.standard.relative
            value = ratios + torch.where(rise <= 0, by_low, by_high)
            value = torch.where(value.isfinite(), value, by_difference)
        # Without mass there is no slope.
        by_difference = torch.where(by_difference.isfinite(), by_difference, 0.0)
        return value.detach() + (by_difference - by_difference.detach())

    @property
    def has_moments(self) -> bool:
        """Whether `moments` and `entropy` have a rule for the law."""
        return not self.exponential and self.name in ("normal", "laplace", "exponential")

    def moments(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance (*batch) between ends (*batch) of a law that `has_moments`."""
        rule = self._moment_rule(low, high)
        weights, offset = rule.weights / rule.total, torch.stack([rule.u[0], -rule.u[1]])
        mean = (weights * offset).sum((0, 1))
        variance = (weights * (offset - mean).square()).sum((0, 1))
        x = rule.z + mean
        x = torch.where(rule.is_mirrored, -x, x)
        return self.loc + self.scale * x, self.scale.square() * variance

    def entropy(self, low: Tensor, high: Tensor) -> Tensor:
        """Return the Shannon entropy (*batch) between ends (*batch) of a law that `has_moments`."""
        rule = self._moment_rule(low, high)
        # The density of x is exp(-exponent) / total, and the density of t is this over the scale.
        mean_exponent = (rule.weights * rule.exponent).sum((0, 1)) / rule.total
        return rule.total.log() + mean_exponent + self.scale.log()

    def gaussian_means(self, low: Tensor, high: Tensor, centers: Tensor, widths: Tensor) -> Tensor:
        """Return expectations (*batch, N) of Gaussian densities under the normal law between ends.

        With s^2 = scale^2 + w^2 for a Gaussian of width w around c, the product of both densities
        is N(c; loc, s^2) N(t; middle, (scale w / s)^2). The mass of its second factor between the
        ends is divided by the mass of the law.

        Args:
            low: Lower ends (*batch).
            high: Upper ends (*batch).
            centers: Centers of the Gaussians (N,).
            widths: Standard deviations of the Gaussians (N,).
        """
        low, high = (end.unsqueeze(-1) for end in (low, high))
        scale, loc = self.scale.unsqueeze(-1), self.loc
        loc = loc.unsqueeze(-1) if isinstance(loc, Tensor) else loc
        normal, offset = self._replace(loc=loc, scale=scale), centers - loc
        spread = (scale.square() + widths.square()).sqrt()
        middle = centers - (widths / spread).square() * offset
        product = self._replace(loc=middle, scale=scale * widths / spread)
        log = product.log_mass(low, high) - normal.log_mass(low, high)
        log = log - 0.5 * (offset / spread).square() - spread.log()
        ends = [law.standardize(low, high) for law in (product, normal)]
        near = _is_near(*ends[0]) & _is_near(*ends[1])
        if _any(near):
            # The Gaussian at the middle of the ends times a factor near 1: the mean of the product
            # over the ends, relative to its value at the middle, over the same of the law.
            law_ends = ([torch.where(near, x, 1.0) for x in triple] for triple in ends)
            of_product, of_normal = (_mean_by_middle(*triple).log() for triple in law_ends)
            z = torch.where(near, (low + high) / 2 - centers, 0.0) / widths
            close = of_product - of_normal - 0.5 * z * z - widths.log()
            log = torch.where(near, close, log)
        return torch.exp(log - _HALF_LOG)

    def _moment_rule(self, low: Tensor, high: Tensor) -> "_MomentRule":
        """Return a Gauss-Legendre rule on each side of the mode, for the law between ends (*batch).

        In terms of the distance u from the mode or from the end next to it, at z, the density is
        exp(-u) or exp(-u (z + u / 2)) times a constant, and all terms are positive.
        """
        a, b, w = self.standardize(*self.ends(low, high))
        flip = a + b < 0
        a, b = torch.where(flip, -b, a), torch.where(flip, -a, b)
        # By one condition: at the mode itself both sides would move with the end.
        around_mode, is_normal = a < 0, self.name == "normal"
        z = torch.where(around_mode, 0.0, a)
        # Where the exponent is _DEPTH: the root of u (z + u / 2) = _DEPTH without a difference.
        last = torch.full_like(z, _DEPTH)
        if is_normal:
            last = (2 * _DEPTH / (z + (z.square() + 2 * _DEPTH).sqrt())).detach()
        lengths = torch.stack([torch.where(around_mode, b, w), torch.where(around_mode, -a, 0.0)])
        lengths = torch.minimum(lengths, last).unsqueeze(1)
        y, rule = (x.reshape(-1, *(1,) * z.dim()) for x in gauss_legendre(_NODES, z))
        u = lengths * ((1 + y) / 2)
        exponent = u * (z + u / 2) if is_normal else u
        weights = lengths * (rule / 2) * torch.exp(-exponent)
        return _MomentRule(flip, z, weights, weights.sum((0, 1)), u, exponent)


class _MomentRule(NamedTuple):
    """Nodes and weights for integrals over the part of a standard law between two ends.

    Attributes:
        is_mirrored: Whether the law is mirrored (*batch), so that most of its mass is above z.
        z: The mode, or the end next to it (*batch).
        weights: Weights (2, Q, *batch), with the density but for a constant: above z, then below.
        total: Sum of the weights (*batch).
        u: Distances of nodes from z (2, Q, *batch).
        exponent: Minus the log density but for a constant (2, Q, *batch).
    """

    is_mirrored: Tensor
    z: Tensor
    weights: Tensor
    total: Tensor
    u: Tensor
    exponent: Tensor


def _version(x: Tensor | float) -> int:
    """Return how often a tensor has been changed in place, as far as torch counts it."""
    return x._version if isinstance(x, Tensor) and not x.is_inference() else 0


class LawBetween:
    """A law between two ends.

    Its methods share quantities of the standard law where no derivatives are taken.

    Args:
        law: The law (*batch).
        low: Lower end (*batch).
        high: Upper end (*batch).

    Attributes:
        ends: The ends, clipped to the support of the law (2 tensors *batch).
        standard: The same ends in terms of the standard law.
        is_constant: Whether no derivatives are taken.
    """

    def __init__(self, law: Law, low: Tensor, high: Tensor) -> None:
        self.law, self.ends = law, law.ends(low, high)
        self._given = law.loc, law.scale, low, high
        self.standard = _EndsOfLaw(law, *self.ends)
        tensors = [x for x in self._given if isinstance(x, Tensor)]
        self.is_constant = not may_be_differentiated(*tensors)
        self._versions = [_version(x) for x in self._given] if self.is_constant else []

    def is_same(self, other: "LawBetween") -> bool:
        """Return whether both are constant and of the same tensors, unchanged in place."""
        pairs = zip(self._given, other._given, strict=True)
        constant = self.is_constant and other.is_constant
        return constant and all(x is y for x, y in pairs) and self._versions == other._versions

    @property
    def log_mass(self) -> Tensor:
        """Logarithm of the mass between the ends (*batch)."""
        if self.is_constant:
            log_mass = self.standard.log_mass
        else:
            log_mass, _ = _log_mass(self.law.name, *self.standard.triple)
        return log_mass + self.law.log_factor if self.law.log_factor else log_mass

    def icdf(self, q: Tensor) -> Tensor:
        """Return quantiles (*sample, *batch) of probabilities in (0, 1)."""
        law, (low, high) = self.law, self.ends
        without_gradient = self.is_constant and not may_be_differentiated(q)
        if without_gradient:
            x, distance = self.standard.law.quantile(self.standard, q, 1 - q)
        else:
            x, distance = _quantile(law.name, *self.standard.triple, q)
        t = law.loc + law.scale * x
        t = value = t.exp() if law.exponential else t
        # The value by the distance from the lower end where that is more accurate; slopes by t.
        if distance is not None:
            step = law.scale * distance
            near = low * step.exp() if law.exponential else low + step
            value = torch.where(step < math.inf, near, t)
        value = torch.clamp(value, low, high)
        return value if without_gradient else value.detach() + (t - t.detach())
