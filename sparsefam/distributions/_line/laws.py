"""Laws whose masses and quantiles between two ends have closed forms, accurate in tails."""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..._numerics.modes import values_are_readable
from ..._numerics.operators import differentiable
from ..._numerics.quadrature import gauss_legendre

__all__ = ["Law", "torch_law"]

_ROOT = math.sqrt(0.5)
_HALF_LOG = math.log(2 * math.pi) / 2
# What stands for infinity: its products with densities that are zero are zero.
_FAR = 1e200
# Beyond this the normal quantile is found from logarithms, as tails underflow at 38.
_DEEP = 25.0
# Nodes on each side of the mode, and the exponent at which moments are cut off.
_NODES, _DEPTH = 24, 40.0
# The positive half of a Gauss-Legendre rule, for even functions between near ends.
_NEAR_RULE = np.stack(np.polynomial.legendre.leggauss(10))[:, 5:].tolist()


_Pair = tuple[Tensor, Tensor]


class _Standard:
    """A standard law between ends a < b, which may be -_FAR and _FAR.

    The distance w = b - a has digits that the difference lacks. Only `log_density` and `log_ratio`
    are differentiated.
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
    def log_mass(cls, a: Tensor, b: Tensor, w: Tensor) -> _Pair:
        """Return the log mass, and that of its ratio to the higher density at the ends."""
        raise NotImplementedError

    @classmethod
    def highest(cls, a: Tensor, b: Tensor, w: Tensor) -> Tensor:
        """Return the higher of the log densities at the ends."""
        return torch.maximum(cls.log_density(a), cls.log_density(b))

    @classmethod
    def quantile(cls, a: Tensor, b: Tensor, w: Tensor, q: Tensor, p: Tensor) -> _Pair:
        """Return quantiles x of probabilities q = 1 - p, and x - a where it has more digits.

        Elsewhere the latter is infinite.
        """
        raise NotImplementedError


class _Normal(_Standard):
    @staticmethod
    def log_density(x: Tensor) -> Tensor:
        return -x.square() / 2 - _HALF_LOG

    @classmethod
    def log_ratio(cls, a: Tensor, b: Tensor, w: Tensor) -> Tensor:
        return w * (a + b) / -2

    @classmethod
    def log_mass(cls, a: Tensor, b: Tensor, w: Tensor) -> _Pair:
        middle = (a + b) / 2
        power = w * middle.abs()
        # Between near ends differences cancel, but the density hardly changes.
        near = _is_near(a, b, w)
        sides, highest = torch.stack([a, -b]), cls.highest(a, b, w)
        mass = torch.log1p(torch.erfc(-_ROOT * sides).sum(0) / -2)
        ratio = mass - highest
        beyond = sides.amax(0) > 0
        if _any(beyond):
            start, erfcx = sides.amax(0), torch.special.erfcx
            end = torch.where(start == a, b, -a)
            side = erfcx(_ROOT * start) - torch.exp(-power) * erfcx(_ROOT * end)
            side = side.log() + math.log(math.pi / 2) / 2
            mass = torch.where(beyond, side + highest, mass)
            ratio = torch.where(beyond, side, ratio)
        if _any(near):
            width, slope = (torch.where(near, t, 1.0) / 2 for t in (w, power))
            close = (2 * width * _mean_shape(width, slope)).log() - slope + width.square() / 2
            mass = torch.where(near, close + highest, mass)
            ratio = torch.where(near, close, ratio)
        return mass, ratio

    @classmethod
    def quantile(cls, a: Tensor, b: Tensor, w: Tensor, q: Tensor, p: Tensor) -> _Pair:
        ends = _ROOT * torch.stack([a, b])
        below, above = (_between(x, q) for x in (torch.erfc(-ends), torch.erfc(ends)))
        tail = torch.special.ndtri(torch.minimum(below, above) / 2)
        x, step = torch.where(below < above, tail, -tail), torch.full_like(tail, math.inf)
        # Around 0 by the difference of the tails, which erf knows to more digits.
        central = torch.maximum(below, above) < 1.5
        if _any(central):
            centre = torch.erfinv(_between(torch.erf(ends), q))
            x = torch.where(central, centre / _ROOT, x)
        middle = (a + b) / 2
        deep = (a > _DEEP) | (b < -_DEEP)
        if _any(deep):
            deep_x, deep_step = cls._deep_quantile(a, b, w, q, p)
            x, step = torch.where(deep, deep_x, x), torch.where(deep, deep_step, step)
        near = _is_near(a, b, w)
        if _any(near):
            # By one Newton step for the distance from a.
            a, width, middle = (torch.where(near, t, 1.0) for t in (a, w, middle))
            u = torch.minimum(torch.where(near, x - a, 1.0).clamp_min(0), width)
            here, whole = a + u / 2, width * _mean_shape(width / 2, width * middle / 2)
            share = u * _mean_shape(u / 2, u * here / 2)
            share = share * torch.exp((width - u) * (here + middle) / 4) / whole
            density = torch.exp(width * (a + middle) / 4 - u * here) / whole
            step = torch.where(near, u + (q - share) / density, step)
        return x, step

    @staticmethod
    def _deep_quantile(a: Tensor, b: Tensor, w: Tensor, q: Tensor, p: Tensor) -> _Pair:
        """Return the same deep in a tail.

        The ratio of tails at x and a is exp((a^2 - x^2)/2) erfcx(x/sqrt 2)/erfcx(a/sqrt 2).
        """
        erfcx, flip = torch.special.erfcx, b < 0
        start, end = (torch.where(flip, *x).clamp_min(0) for x in ((-b, a), (-a, b)))
        first = erfcx(_ROOT * start)
        ratio = torch.exp(w * (a + b).abs() / -2) * erfcx(_ROOT * end) / first
        log_tail = torch.lerp(ratio, torch.ones_like(ratio), torch.where(flip, q, p)).log()
        square, drop = start.square(), -log_tail
        x = (square + 2 * drop).sqrt()
        for _ in range(4):
            drop = (erfcx(_ROOT * x) / first).log() - log_tail
            x = (square + 2 * drop).sqrt()
        step = 2 * drop / (x + start)
        step = torch.where(flip, torch.where(w < 1, w - step, math.inf), step)
        return torch.where(flip, -x, x), step


def _between(ends: Tensor, q: Tensor) -> Tensor:
    """Return a value at a share of the way between ends (2, *batch)."""
    start, end = ends.unbind()
    return torch.lerp(start, end, q)


def _any(mask: Tensor) -> bool:
    """Return whether any is true, or cannot be read; what is left out then is not selected."""
    return not values_are_readable(mask) or bool(mask.any())


def _is_near(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    """Return whether the standard normal density hardly changes between ends."""
    return w + w * ((a + b) / 2).abs() < 1.5


def _shape_of(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    """Return the mean of the normal density between near ends over that at their middle."""
    return _mean_shape(w / 2, w * (a + b) / 4)


def _mean_shape(width: Tensor, slope: Tensor) -> Tensor:
    """Return the mean of cosh(2 slope s) exp(-(2 width s)^2 / 2) over s in [0, 1/2]."""
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

    @classmethod
    def log_mass(cls, a: Tensor, b: Tensor, w: Tensor) -> _Pair:
        flip = a + b < 0
        a, b = torch.where(flip, -b, a), torch.where(flip, -a, b)
        share = (-torch.where(a < 0, torch.expm1(a) + torch.expm1(-b), torch.expm1(-w))).log()
        return share - a.clamp_min(0) - math.log(2), share - a.clamp(max=0)

    @classmethod
    def quantile(cls, a: Tensor, b: Tensor, w: Tensor, q: Tensor, p: Tensor) -> _Pair:
        below, above = torch.expm1(a.clamp(max=0)), torch.expm1(-b.clamp_min(0))
        centre = torch.lerp(below, -above, q)
        first, last = torch.exp(a.clamp(max=0)), torch.exp(-b.clamp_min(0))
        tails = torch.lerp(first, 1 - above, q), torch.lerp(1 - below, last, q)
        tail = torch.minimum(*tails).log()
        tail = torch.where(centre.abs() < 0.5, torch.log1p(-centre.abs()), tail)
        x = torch.where(centre < 0, tail, -tail)
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
    def log_mass(cls, a: Tensor, b: Tensor, w: Tensor) -> _Pair:
        share = (-torch.expm1(-w)).log()
        return share - a, share

    @classmethod
    def quantile(cls, a: Tensor, b: Tensor, w: Tensor, q: Tensor, p: Tensor) -> _Pair:
        u = -torch.log1p(q * torch.expm1(-w))
        return a + u, u


class _Uniform(_Standard):
    @staticmethod
    def log_density(x: Tensor) -> Tensor:
        return 0 * x

    @classmethod
    def log_ratio(cls, a: Tensor, b: Tensor, w: Tensor) -> Tensor:
        return 0 * w

    @classmethod
    def log_mass(cls, a: Tensor, b: Tensor, w: Tensor) -> _Pair:
        return w.log(), w.log()

    @classmethod
    def quantile(cls, a: Tensor, b: Tensor, w: Tensor, q: Tensor, p: Tensor) -> _Pair:
        return a + q * w, q * w


class _ByDifference(_Standard):
    """A standard law whose log ratios have no formula in terms of w."""

    @classmethod
    def log_ratio(cls, a: Tensor, b: Tensor, w: Tensor) -> Tensor:
        return cls.log_density(b) - cls.log_density(a)


class _Cauchy(_ByDifference):
    @staticmethod
    def log_density(x: Tensor) -> Tensor:
        return -torch.log1p(x.clamp(-1e150, 1e150).square()) - math.log(math.pi)

    @classmethod
    def log_mass(cls, a: Tensor, b: Tensor, w: Tensor) -> _Pair:
        mass = torch.atan2(w, 1 + a * b).log() - math.log(math.pi)
        return mass, mass - cls.highest(a, b, w)

    @classmethod
    def quantile(cls, a: Tensor, b: Tensor, w: Tensor, q: Tensor, p: Tensor) -> _Pair:
        ends, one = torch.stack([a, b]), torch.ones_like(a)
        below, above, centre = (
            _between(x, q)
            for x in (torch.atan2(one, -ends), torch.atan2(one, ends), torch.atan(ends))
        )
        x = torch.where(below < above, -1 / below.tan(), 1 / above.tan())
        x = torch.where(centre.abs() < 0.5, centre.tan(), x)
        near = w < 1
        a, b, w = (torch.where(near, x, 0.5) for x in (a, b, w))
        step = (q * torch.atan2(w, 1 + a * b)).tan()
        return x, torch.where(near, step * (1 + a.square()) / (1 - a * step), math.inf)


class _Gumbel(_ByDifference):
    """In terms of y = exp(-x), which is exponentially distributed."""

    @staticmethod
    def log_density(x: Tensor) -> Tensor:
        return -x - torch.exp(-x.clamp_min(-600))

    @staticmethod
    def _log_gap(a: Tensor, w: Tensor) -> Tensor:
        return (-torch.expm1(-w)).log() - a

    @classmethod
    def log_mass(cls, a: Tensor, b: Tensor, w: Tensor) -> _Pair:
        log_gap = cls._log_gap(a, w)
        log_share = torch.where(log_gap < -40, log_gap, (-torch.expm1(-log_gap.exp())).log())
        mass = log_share - torch.exp(-b)
        return mass, mass - cls.highest(a, b, w)

    @classmethod
    def quantile(cls, a: Tensor, b: Tensor, w: Tensor, q: Tensor, p: Tensor) -> _Pair:
        log_gap = cls._log_gap(a, w)
        gap = log_gap.exp()
        left = torch.lerp(torch.exp(-gap), torch.ones_like(gap), q).log()
        step = -torch.where((q < 0.5) & (gap > 1), left, torch.log1p(p * torch.expm1(-gap)))
        log_step = torch.where(log_gap < -40, p.log() + log_gap, step.log())
        u = torch.where(w < 1, w - torch.log1p(torch.exp(log_step + b)), math.inf)
        return -torch.logaddexp(-b, log_step), u


class _ReversedGumbel(_ByDifference):
    """Of -x where x is standard Gumbel."""

    @staticmethod
    def log_density(x: Tensor) -> Tensor:
        return _Gumbel.log_density(-x)

    @classmethod
    def log_mass(cls, a: Tensor, b: Tensor, w: Tensor) -> _Pair:
        return _Gumbel.log_mass(-b, -a, w)

    @classmethod
    def quantile(cls, a: Tensor, b: Tensor, w: Tensor, q: Tensor, p: Tensor) -> _Pair:
        x, u = _Gumbel.quantile(-b, -a, w, p, q)
        return -x, torch.where(u < math.inf, w - u, math.inf)


_STANDARD: dict[str, Any] = {
    "normal": _Normal,
    "laplace": _Laplace,
    "exponential": _Exponential,
    "uniform": _Uniform,
    "cauchy": _Cauchy,
    "gumbel": _Gumbel,
    "reversed gumbel": _ReversedGumbel,
}


def _mass_slopes(
    name: str, a: Tensor, b: Tensor, w: Tensor, log_mass: Tensor, log_ratio: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return derivatives of the log mass in a, b and w, one of the first two 0."""
    law, present = _STANDARD[name], log_ratio.isfinite()
    if torch.is_grad_enabled():  # the same number with derivatives
        moved = log_mass - law.highest(a, b, w)
        log_ratio = log_ratio + (moved - moved.detach())
    # Without mass there is no slope.
    log_ratio = torch.where(present, log_ratio, math.inf)
    change = law.log_ratio(a, b, w)
    left = change <= 0
    fall = torch.where(left, change, -change)
    by_end = torch.expm1(fall) * torch.exp(-log_ratio)
    by_width = torch.exp(fall - log_ratio)
    return torch.where(left, by_end, 0.0), torch.where(left, 0.0, -by_end), by_width


def _quantile_slopes(
    by_q: bool, name: str, a: Tensor, b: Tensor, w: Tensor, q: Tensor, x: Tensor, u: Tensor
) -> tuple[Tensor, Tensor, None, Tensor | None]:
    """Return derivatives of quantiles x in a, b and q."""
    law = _STANDARD[name]
    known, left, right = u < math.inf, x - a, b - x
    left = torch.where(known, u + (left - left.detach()), left)
    right = torch.where(known, w - u + (right - right.detach()), right)
    low, high = -law.log_ratio(a, x, left), law.log_ratio(x, b, right)
    mass = torch.exp(_log_mass(name, a, b, w)[0] - law.log_density(x)) if by_q else None
    return (1 - q) * torch.exp(low), q * torch.exp(high), None, mass


def _change(slopes: Any, changes: Any) -> Any:
    pairs = zip(slopes, changes, strict=True)
    return sum(x * y for x, y in pairs if x is not None and y is not None)


def _pull_back_mass(kept: Any, grads: Any, needed: Any) -> Any:
    return None, *(grads[0] * x for x in _mass_slopes(*kept))


def _pull_back_quantile(kept: Any, grads: Any, needed: Any) -> Any:
    slopes = _quantile_slopes(needed[4], *kept)
    return None, *(
        None if x is None else (grads[0] * x).sum_to_size(end.shape)
        for x, end in zip(slopes, kept[1:5], strict=True)
    )


def _push_mass_forward(kept: Any, changes: Any) -> Any:
    return _change(_mass_slopes(*kept), changes[1:]), None


def _push_quantile_forward(kept: Any, changes: Any) -> Any:
    return _change(_quantile_slopes(changes[4] is not None, *kept), changes[1:]), None


def _mass_of(name: str, a: Tensor, b: Tensor, w: Tensor) -> _Pair:
    """Return the log mass between a and b, and the logarithm of its ratio to the higher density."""
    out: _Pair = _STANDARD[name].log_mass(a, b, w)
    return out


def _quantile_of(name: str, a: Tensor, b: Tensor, w: Tensor, q: Tensor) -> _Pair:
    """Return quantiles x between a and b, and x - a."""
    out: _Pair = _STANDARD[name].quantile(a, b, w, q, 1 - q)
    return out


def _keep(inputs: Any, outputs: Any) -> tuple[Any, ...]:
    return *inputs, *outputs


# In w and the end of the higher density, and in a, b and the probability. The second results are
# constants.
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
        """Clip ends to the support."""
        if self.lower is not None:
            low, high = (torch.where(x < self.lower, self.lower, x) for x in (low, high))
        if self.upper is not None:
            low, high = (torch.where(x > self.upper, self.upper, x) for x in (low, high))
        return low, high

    def standardize(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return ends (*batch) in terms of x, and their distance."""
        if not self.exponential:
            low, high = low.clamp(-_FAR, _FAR), high.clamp(-_FAR, _FAR)
            width = high - low
            return (low - self.loc) / self.scale, (high - self.loc) / self.scale, width / self.scale
        below, above = low > 0, high < math.inf
        both = below & above
        start, end = torch.where(below, low, 1.0), torch.where(above, high, 1.0)
        a = torch.where(below, (start.log() - self.loc) / self.scale, -_FAR)
        b = torch.where(above, (end.log() - self.loc) / self.scale, _FAR)
        near = torch.log1p(torch.where(both, end - start, 0.0) / start) / self.scale
        return a, b, torch.where(both, near, b - a)

    def is_resolved(self, low: Tensor, high: Tensor, lost: float) -> Tensor:
        """Return where a rounding error of the ends changes log densities by less than `lost`.

        It may be false elsewhere, too: always, for laws without `moments`.
        """
        if not self.has_moments:
            return torch.zeros_like(low, dtype=torch.bool)
        ends = torch.stack(self.ends(low, high))
        x = (ends - self.loc) / self.scale
        resolved = (1 + x.abs()) * ends.abs() < (lost * 2.0**52) * self.scale
        return (resolved | ends.isinf()).all(0) & (x[0] < x[1])

    def log_mass(self, low: Tensor, high: Tensor) -> Tensor:
        """Return the logarithm of the mass between ends (*batch)."""
        a, b, w = torch.broadcast_tensors(*self.standardize(*self.ends(low, high)))
        return _log_mass(self.name, a, b, w)[0] + self.log_factor

    def log_share(self, low: Tensor, high: Tensor, start: Tensor, end: Tensor) -> Tensor:
        """Return the logarithm of the part of the mass between ends that lies between others.

        Far in a tail both masses are tiny, and digits are lost in the difference of their
        logarithms: the value is that of their ratios to the density at the higher end.
        """
        moved = self.log_mass(start, end) - self.log_mass(low, high)
        with torch.no_grad():
            law, (low, high) = _STANDARD[self.name], self.ends(low, high)
            (start, end), standard = self.ends(start, end), self.standardize
            whole, part = standard(low, high), standard(start, end)
            rise = law.log_ratio(*whole)
            by_low, by_high = (
                torch.maximum(*(law.log_ratio(*standard(*pair)) * sign for pair in pairs))
                for sign, pairs in (
                    (1, ((low, start), (low, end))),
                    (-1, ((start, high), (end, high))),
                )
            )
            by_low, by_high = by_low - rise.clamp_min(0), by_high - (-rise).clamp_min(0)
            part, whole = (torch.broadcast_tensors(*x) for x in (part, whole))
            ratios = law.log_mass(*part)[1] - law.log_mass(*whole)[1]
            known = ratios + torch.where(rise <= 0, by_low, by_high)
            known = torch.where(known.isfinite(), known, moved)
        moved = torch.where(moved.isfinite(), moved, 0.0)  # no mass, which has no slope
        return known.detach() + (moved - moved.detach())

    def icdf(self, low: Tensor, high: Tensor, q: Tensor) -> Tensor:
        """Return quantiles of probabilities in (0, 1) of the law between ends (*batch)."""
        low, high = self.ends(low, high)
        a, b, w = torch.broadcast_tensors(*self.standardize(low, high))
        x, distance = _quantile(self.name, a, b, w, q)
        t, step = self.loc + self.scale * x, self.scale * distance
        known = torch.where(step < math.inf, low + step, t)
        if self.exponential:
            t, known = t.exp(), torch.where(step < math.inf, low * step.exp(), t.exp())
        known = torch.minimum(torch.maximum(known, low), high).detach()
        return known + (t - t.detach())

    @property
    def has_moments(self) -> bool:
        """Whether `moments` knows the law."""
        return not self.exponential and self.name in ("normal", "laplace", "exponential")

    def moments(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of the law between ends (*batch)."""
        flip, z, weights, total, u, _ = self._moment_rule(low, high)
        weights, signed = weights / total, torch.stack([u[0], -u[1]])
        mean = (weights * signed).sum((0, 1))
        variance = (weights * (signed - mean).square()).sum((0, 1))
        x = z + mean
        return self.loc + self.scale * torch.where(flip, -x, x), self.scale.square() * variance

    def entropy(self, low: Tensor, high: Tensor) -> Tensor:
        """Return the Shannon entropy of the law between ends (*batch)."""
        _, _, weights, total, _, exponent = self._moment_rule(low, high)
        return total.log() + (weights * exponent).sum((0, 1)) / total + self.scale.log()

    def gaussian_means(self, low: Tensor, high: Tensor, centers: Tensor, widths: Tensor) -> Tensor:
        """Return expectations (*batch, N) of Gaussians (N) under the normal law between ends.

        The product with a Gaussian is such a law, too, whose mass is divided by the law's own.
        """
        low, high = (end.unsqueeze(-1) for end in (low, high))
        scale, loc = self.scale.unsqueeze(-1), self.loc
        loc = loc.unsqueeze(-1) if isinstance(loc, Tensor) else loc
        own, offset = self._replace(loc=loc, scale=scale), centers - loc
        spread = (scale.square() + widths.square()).sqrt()
        middle = centers - (widths / spread).square() * offset
        product = self._replace(loc=middle, scale=scale * widths / spread)
        log = product.log_mass(low, high) - own.log_mass(low, high)
        log = log - 0.5 * (offset / spread).square() - spread.log()
        ends = [law.standardize(low, high) for law in (product, own)]
        near = _is_near(*ends[0]) & _is_near(*ends[1])
        if _any(near):
            # Beside the Gaussian at the middle by ratios that hardly change, whose slopes are tiny.
            shapes = [_shape_of(*(torch.where(near, x, 1.0) for x in law)).log() for law in ends]
            z = torch.where(near, (low + high) / 2 - centers, 0.0) / widths
            close = shapes[0] - shapes[1] - 0.5 * z * z - widths.log()
            log = torch.where(near, close, log)
        return torch.exp(log - _HALF_LOG)

    def _moment_rule(self, low: Tensor, high: Tensor) -> tuple[Tensor, ...]:
        """Return a Gauss-Legendre rule on each side of the mode.

        In terms of the distance u from it or from the nearer end, at z, the density is exp(-u) or
        exp(-u (z + u / 2)), and all terms are positive. Returned are whether the law is mirrored,
        z, weights (2, Q, *batch) and their sum, u and the exponent.
        """
        a, b, w = self.standardize(*self.ends(low, high))
        flip = a + b < 0
        a, b = torch.where(flip, -b, a), torch.where(flip, -a, b)
        # By one condition: at the mode itself both sides would move with the end.
        past, square = a < 0, self.name == "normal"
        z = torch.where(past, 0.0, a)
        # Where the exponent is _DEPTH.
        last = torch.full_like(z, _DEPTH)
        if square:
            last = (2 * _DEPTH / (z + (z.square() + 2 * _DEPTH).sqrt())).detach()
        lengths = torch.stack([torch.where(past, b, w), torch.where(past, -a, 0.0)])
        lengths = torch.minimum(lengths, last).unsqueeze(1)
        y, rule = (x.reshape(-1, *(1,) * z.dim()) for x in gauss_legendre(_NODES, z))
        u = lengths * ((1 + y) / 2)
        exponent = u * (z + u / 2) if square else u
        weights = lengths * (rule / 2) * torch.exp(-exponent)
        return flip, z, weights, weights.sum((0, 1)), u, exponent


def torch_law(p: Any, name: str | None) -> Law | None:
    """Return the law of a float64 distribution of torch or Pyro, if it has closed forms."""
    if name in ("Cauchy", "Gumbel"):
        return Law(name.lower(), p.loc, p.scale)
    if name == "LogNormal":
        return Law("normal", p.loc, p.scale, True, lower=0.0)
    if name == "Exponential":
        return Law("exponential", 0.0, p.rate.reciprocal(), lower=0.0)
    if name == "Pareto":
        return Law("exponential", p.scale.log(), p.alpha.reciprocal(), True, lower=p.scale)
    if name == "Weibull":
        return Law("reversed gumbel", p.scale.log(), p.concentration.reciprocal(), True, lower=0.0)
    if name in ("HalfNormal", "HalfCauchy"):
        return Law(name[4:].lower(), 0.0, p.scale, lower=0.0, log_factor=math.log(2))
    return None
