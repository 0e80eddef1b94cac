"""Expectations of Gaussians by mpmath, with their derivatives, to at least 15 digits.

Every argument is a number that a tensor holds, taken exactly: what is judged against this is
arithmetic alone, not the rounding of the inputs.
"""

import math
from functools import cache

import mpmath as mp

from .families import Family

__all__ = ["half_width", "integrals", "score_scale"]

# Beyond this many widths exp(-y^2/2) is 1e-32.
_CUT = 12
# The tanh-sinh rule: what it leaves out at an end is exp(-pi sinh(_COUNT _STEP)), 1e-27.
_STEP, _COUNT = 1 / 16, 59


@cache
def integrals(
    family: Family, loc: float, scale: float, center: float, width: float
) -> tuple[float, float, float]:
    r"""$E[N(loc + scale\,x; center, width^2)]$ and its derivatives in loc and scale."""
    if float(family.exponent).is_integer():
        found = _by_moments(family, loc, scale, center, width)
    else:
        found = _by_quadrature(family, loc, scale, center, width)
    value, first, second = (float(x) for x in found)
    return value, first, second


def half_width(family: Family, sigma: float) -> tuple[float, float]:
    r"""The half-width s of the density whose score has that sigma (or b), and ds/dsigma.

    $s^{km+1} = C\,(km)^m\,\sigma^{km}$: then $C (1 - |x|^k)^m/s$ has the score's curvature.
    """
    with mp.workdps(40):
        power, unit = _power_law(family)
        scale = unit * mp.mpf(sigma) ** power
        return float(scale), float(power * scale / mp.mpf(sigma))


def score_scale(family: Family, scale: float) -> float:
    """The inverse: sigma (or b) of the density with that half-width."""
    with mp.workdps(40):
        power, unit = _power_law(family)
        return float((mp.mpf(scale) / unit) ** (1 / power))


def _power_law(family: Family) -> tuple[mp.mpf, mp.mpf]:
    """Power and factor in half-width = factor sigma^power."""
    m, km = mp.mpf(family.exponent), family.order * mp.mpf(family.exponent)
    return km / (km + 1), (_constant(family) * km**m) ** (1 / (km + 1))


def _constant(family: Family) -> mp.mpf:
    k, m = mp.mpf(family.order), mp.mpf(family.exponent)
    return k * mp.gamma(m + 1 + 1 / k) / (2 * mp.gamma(1 / k) * mp.gamma(m + 1))


def _by_moments(
    family: Family, loc: float, scale: float, center: float, width: float
) -> tuple[mp.mpf, mp.mpf, mp.mpf]:
    """Exact: a polynomial on each half of the support, in many more digits than it cancels."""
    m, k = int(family.exponent), family.order
    degree = max(7, k * m + 1)
    # Powers of (loc - center)/scale, up to 4e5, multiply the rounding of the error function.
    with mp.workdps(40 + 6 * degree):
        halves = _moments(loc, scale, center, width, degree)
        total = [mp.mpf(0)] * 3
        for side, (plain, slope) in zip((-1, 1), halves, strict=True):
            for j in range(m + 1):
                a = (-1) ** j * math.comb(m, j) * side ** (k * j)
                terms = (plain[k * j], -slope[k * j], -slope[k * j + 1])
                total = [old + a * new for old, new in zip(total, terms, strict=True)]
        c, s, w = _constant(family), mp.mpf(scale), mp.mpf(width)
        return c * total[0] / s, c * total[1] / (s * w), c * total[2] / (s * w)


@cache
def _moments(
    loc: float, scale: float, center: float, width: float, degree: int
) -> list[tuple[list[mp.mpf], list[mp.mpf]]]:
    r"""$\int x^k \varphi(y)\,dy$ and $\int x^k y \varphi(y)\,dy$ on $x \in [-1, 0]$ and $[0, 1]$.

    Here $y = (loc + scale\,x - center)/width$; by parts, since $y \varphi = -\varphi'$.
    """
    offset, s, w = mp.mpf(loc) - mp.mpf(center), mp.mpf(scale), mp.mpf(width)
    ends = [(offset + x * s) / w for x in (-1, 0, 1)]
    cdf = [mp.ncdf(y) for y in ends]
    pdf = [mp.npdf(y) for y in ends]
    halves = []
    for i in range(2):
        plain, slope = [cdf[i + 1] - cdf[i]], []
        for k in range(degree + 1):
            # x^k at the ends of the half: 0 or (-1)^k below, 0 or 1 above.
            below, above = ((-1) ** k, 0**k) if i == 0 else (0**k, 1)
            before = k * (w / s) * plain[k - 1] if k else 0
            slope.append(below * pdf[i] - above * pdf[i + 1] + before)
            plain.append((w / s) * slope[k] - (offset / s) * plain[k])
        halves.append((plain, slope))
    return halves


def _by_quadrature(
    family: Family, loc: float, scale: float, center: float, width: float
) -> tuple[mp.mpf, mp.mpf, mp.mpf]:
    """The tanh-sinh rule where support and Gaussian meet, cut at the peaks of both."""
    with mp.workdps(25):
        offset, s, w = mp.mpf(loc) - mp.mpf(center), mp.mpf(scale), mp.mpf(width)
        low, peak, high = (min(max((y * w - offset) / s, -1), 1) for y in (-_CUT, 0, _CUT))
        kink = [mp.mpf(0)] if family.order == 1 and low < 0 < high else []
        cuts = sorted({low, peak, high, *kink})
        total = [mp.mpf(0)] * 3
        for left, right in zip(cuts, cuts[1:], strict=False):
            for share, weight in _rule():
                x = left + (right - left) * share
                y = (offset + s * x) / w
                density = (1 - abs(x) ** family.order) ** mp.mpf(family.exponent)
                mass = (right - left) * weight * density * mp.exp(-y * y / 2)
                terms = (mass, -mass * y, -mass * x * y)
                total = [old + new for old, new in zip(total, terms, strict=True)]
        front = _constant(family) / (w * mp.sqrt(2 * mp.pi))
        return front * total[0], front * total[1] / w, front * total[2] / w


@cache
def _rule() -> list[tuple[mp.mpf, mp.mpf]]:
    """Nodes and weights of the tanh-sinh rule on [0, 1]."""
    found = []
    for j in range(-_COUNT, _COUNT + 1):
        u = mp.mpf(j) * _STEP
        share = 1 / (1 + mp.exp(-mp.pi * mp.sinh(u)))
        rest = 1 / (1 + mp.exp(mp.pi * mp.sinh(u)))
        found.append((share, _STEP * mp.pi * mp.cosh(u) * share * rest))
    return found
