r"""Even piecewise polynomials on $[-1, 1]$, and what smoothing with a Gaussian makes of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Profile", "Wanted", "smoothed", "tail_end", "unseen"]

# In widths, where a normal tail ends: numbers nearer to 0 are ten times as slow. And what is as
# little as the tail there.
_ENDS, _TINY = {torch.float32: 12.0, torch.float64: 37.0}, {torch.float32: 1e-30}
# More than distance/scale where the tail beyond an edge ends.
_LARGEST = 20.0
# log(2 / sqrt(2 pi)): of twice the normal density, as erfc is twice its tail.
_LOG_PEAK = math.log(2) - 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True, eq=False)  # torch up to 2.11 hashes it before its field is there
class Profile:
    r"""Even function on $[-1, 1]$, a polynomial on each half.

    Attributes:
        coefficients: Ascending coefficients of the polynomial on $[0, 1]$.
    """

    coefficients: tuple[float, ...]

    @property
    def kinked(self) -> bool:
        """Whether some derivative jumps at zero."""
        return any(self.coefficients[1::2])

    @property
    def flux(self) -> "Profile":
        r"""$q(x) = \int_{|x|}^1 v f(v)\,dv$."""
        terms = [c / (k + 2) for k, c in enumerate(self.coefficients)]
        return Profile((sum(terms), 0.0, *[-c for c in terms]))

    def derivative(self, order: int) -> list[float]:
        """Ascending coefficients of a derivative of the right half."""
        c = list(self.coefficients)
        for _ in range(order):
            c = [k * x for k, x in enumerate(c)][1:]
        return c

    def derivatives_at(self, x: float) -> list[float]:
        """All derivatives of the right half at x, from the value on."""
        orders = range(len(self.coefficients))
        return [sum([c * x**k for k, c in enumerate(self.derivative(n))]) for n in orders]

    def __call__(self, x: Tensor) -> Tensor:
        """Values at any x in [-1, 1]."""
        size, total = x.abs(), torch.zeros_like(x)
        for c in reversed(self.coefficients):
            total = total * size + c
        return total


Wanted = Sequence[tuple[Profile, int]]
# Coefficients of a polynomial, ascending; None for none.
_Terms = list[Tensor | None]


class _Powers(dict[int, Tensor]):
    """Powers of a tensor, each made once."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.x = x

    def __missing__(self, k: int) -> Tensor:
        self[k] = self.x**k
        return self[k]


def smoothed(
    distance: Tensor, lost: Tensor, scale: Tensor, width: Tensor, wanted: Wanted, both: bool
) -> list[Tensor]:
    r"""$\int f(x)\,\varphi^{(n)}((scale\,x - distance)/width)\,dx$ for each (f, n), scale > width.

    A jump of the derivative of order $d$ at a break, $y$ widths away, contributes the repeated
    integral $H_d(-y) = E[(Z - y)_+^d]/d!$, or for $d < 0$ its derivatives. Each is
    $G_d(y)\,\varphi(y) + T_d(y)\,Q(y)$ with the normal tail $Q$. At the edge $x = 1$ the
    polynomials before $Q$ add up to $f$ smoothed as if unbroken, which has its digits in terms
    of $distance/scale$.

    Args:
        distance: From the centre of the density to that of the Gaussian, at least 0.
        lost: What rounding took from it.
        scale: Half-width of the support; of fewer numbers than the distance, if they repeat.
        width: That of the Gaussian, likewise.
        wanted: Functions and orders of derivatives.
        both: Whether the edge at -1 is so near that it is to be seen.
    """
    ratio = width / scale
    powers = _Powers(ratio)
    lowest = -max(n for _, n in wanted)
    parts = _repeated_integrals(lowest, max(len(f.coefficients) - n for f, n in wanted))
    b = (distance / scale).clamp_(max=_LARGEST)
    y = ((distance - scale) + lost) / width
    (near, y), values = _normal(y), []
    for profile, n in wanted:
        jumps = [(-1.0) ** d * x for d, x in enumerate(profile.derivatives_at(1.0))]
        gauss, _ = _terms(jumps, n, parts, powers)
        values.append(_sum(near, y, gauss, _horner(_heat(profile, n, powers), b)))
    breaks = [((distance + scale) / width, 1.0)] if both else []
    breaks += [(distance / width, 0.0)] if wanted[0][0].kinked else []
    for away, place in breaks:
        far, y = _normal(away)
        for i, (profile, n) in enumerate(wanted):
            gauss, tail = _terms(_jumps(profile, place), n, parts, powers)
            values[i] += _sum(far, y, gauss, _horner(tail, y))
    return [value.mul_(0.5 * ratio) for value in values]


def _jumps(profile: Profile, place: float) -> list[float]:
    """Of the derivatives at a break to the left: at zero, or at minus one."""
    found = profile.derivatives_at(place)
    if place:
        return [-x for x in found]
    return [2 * x if d % 2 else 0.0 for d, x in enumerate(found)]


def tail_end(x: Tensor) -> float:
    """How many widths from its centre a Gaussian is 0."""
    return _ENDS.get(x.dtype, _ENDS[torch.float64])


def unseen(x: Tensor) -> float:
    """How many widths from its centre a Gaussian is nothing beside its peak."""
    # exp(-y^2/2) is 7e-10 at 6.5 and 3e-20 at 9.5: less than a hundredth of a rounding error of
    # the peak, so that many tails together stay below one.
    return 9.5 if torch.finfo(x.dtype).eps < 1e-12 else 6.5


def _normal(y: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Twice the normal density, twice the mass beyond y, and y where there is a density."""
    end, tiny = tail_end(y), _TINY.get(y.dtype, 1e-290)
    y = y.clamp(-end, end)
    gauss = torch.addcmul(y.new_full((), _LOG_PEAK), y, y, value=-0.5).exp_()
    tail = (y * math.sqrt(0.5)).erfc_()
    return (gauss.sub_(tiny).clamp_min_(0), tail.sub_(tiny).clamp_min_(0)), y


def _sum(normal: tuple[Tensor, Tensor], y: Tensor, gauss: _Terms, tail: Tensor | None) -> Tensor:
    """Density and tail, times a polynomial in y and a factor that is known."""
    density, beyond = normal
    factor = _horner(gauss, y)
    if factor is None:
        return torch.zeros_like(y) if tail is None else tail * beyond
    return factor * density if tail is None else torch.addcmul(factor * density, tail, beyond)


def _horner(terms: _Terms, x: Tensor) -> Tensor | None:
    total: Tensor | None = None
    for c in reversed(terms):
        if total is None:
            total = c
        else:
            total = total * x if c is None else torch.addcmul(c, total, x)
    return total


def _terms(
    jumps: list[float], n: int, parts: dict[int, tuple[list[float], list[float]]], powers: _Powers
) -> tuple[_Terms, _Terms]:
    """Coefficients in y of what multiplies density and tail, for jumps of all derivatives."""
    found: tuple[_Terms, _Terms] = ([], [])
    for d, jump in enumerate(jumps):
        if jump:
            for terms, polynomial in zip(found, parts[d - n], strict=True):
                _add(terms, [jump * c for c in polynomial], powers[d])
    return found


def _heat(profile: Profile, n: int, powers: _Powers) -> _Terms:
    r"""In b: $(-r)^n \sum_k (r^2/2)^k f^{(n+2k)}(b)/k!$, the polynomial smoothed as if unbroken."""
    terms: _Terms = []
    for k in range((len(profile.coefficients) - 1 - n) // 2 + 1):
        scale = (-1.0) ** n / (2.0**k * math.factorial(k))
        _add(terms, [scale * c for c in profile.derivative(n + 2 * k)], powers[n + 2 * k])
    return terms


def _add(terms: _Terms, coefficients: list[float], scale: Tensor) -> None:
    """Adds a polynomial times a factor."""
    terms += [None] * (len(coefficients) - len(terms))
    for j, c in enumerate(coefficients):
        if c:
            known = terms[j]
            terms[j] = scale * c if known is None else known + scale * c


def _repeated_integrals(lowest: int, top: int) -> dict[int, tuple[list[float], list[float]]]:
    """The polynomials G and T of each order."""
    found: dict[int, tuple[list[float], list[float]]] = {0: ([], [1.0]), -1: ([1.0], [])}
    for k in range(1, -lowest):
        before = found[1 - k][0] if k > 1 else []
        found[-1 - k] = (_combined([0.0, *found[-k][0]], before, 1 - k), [])
    for d in range(1, top + 1):
        (g2, t2), (g1, t1) = found[d - 2], found[d - 1]
        pairs = ((g2, g1), (t2, t1))
        g, t = ([x / d for x in _combined(two, [0.0, *one], -1)] for two, one in pairs)
        found[d] = (g, t)
    return found


def _combined(a: list[float], b: list[float], factor: float) -> list[float]:
    """a + factor b."""
    size = max(len(a), len(b))
    a, b = (x + [0.0] * (size - len(x)) for x in (a, b))
    return [x + factor * y for x, y in zip(a, b, strict=True)]
