"""The reference of kernel densities, against 25 digits."""

from collections.abc import Callable
from itertools import pairwise

import mpmath as mp
import numpy as np
import pytest
from kernel_references import KernelReference, exponential, gaussian
from references import Array
from scipy.stats import norm

WEIGHTS, CENTERS, WIDTH = (
    np.array([2.5, -1.75, 3.0, -4.0]),
    np.array([0.125, 0.5, 0.75, 1.0]),
    0.125,
)
DENSITIES = {"uniform": lambda t: mp.mpf(1), "normal": mp.npdf}


def psi(t: Array) -> Array:
    return np.stack([t**2, np.cos(9 * t)], -1)


MP_PSI = (lambda t: t**2, lambda t: mp.cos(9 * t))


class Exact:
    """The same density in mpmath, its edges and A polished from those of the reference."""

    def __init__(self, r: KernelReference, smooth: bool, base: str) -> None:
        self.r, self.smooth, self.base = r, smooth, DENSITIES[base]
        self.weights = [mp.mpf(w) for w in r.weights.tolist()]
        self.eps = mp.mpf(r.alpha) - 1

    def score(self, t: mp.mpf) -> mp.mpf:
        shape = (lambda d: d**2 / 2) if self.smooth else abs
        distances = [(t - c) / self.r.width for c in self.r.centers.tolist()]
        return mp.fsum(w * mp.exp(-shape(d)) for w, d in zip(self.weights, distances, strict=True))

    def integral(self, g: Callable[[mp.mpf], mp.mpf], shift: mp.mpf, power: int) -> mp.mpf:
        """Of g (dP/dbase)^(1 - power eps) against the base."""
        r = self.r
        inner = r.roots(r.level(r.shift)).tolist() if self.eps else []
        edges = [
            mp.findroot(lambda t: 1 + self.eps * (self.score(t) - shift), (t, t + 1e-9))
            for t in inner
        ]
        ends = [max(r.ends[0], -14.0), min(r.ends[1], 14.0)]
        even = [x for x in [-4, -1, *np.linspace(0, 1, 9), 2, 4] if ends[0] < x < ends[1]]
        marks = sorted([*ends, *even, *edges])

        def integrand(t: mp.mpf) -> mp.mpf:
            x = self.score(t) - shift
            u = 1 + self.eps * x
            p = mp.exp(x) if not self.eps else u ** (1 / self.eps - power)
            return g(t) * p * self.base(t)

        pieces = [
            (a, b)
            for a, b in pairwise(marks)
            if not self.eps or 1 + self.eps * (self.score((a + b) / 2) - shift) > 0
        ]
        return mp.fsum(
            mp.quad(integrand, piece, method=self.rule(piece, edges)) for piece in pieces
        )

    def rule(self, piece: tuple[mp.mpf, mp.mpf], edges: list[mp.mpf]) -> str:
        """The cheaper rule away from edges."""
        return "gauss-legendre" if self.smooth and not {*piece} & {*edges} else "tanh-sinh"

    def normalizer(self) -> mp.mpf:
        if not self.r.inside:
            return self.integral(lambda t: mp.mpf(1), mp.mpf(0), 0)
        shift = mp.mpf(self.r.normalizer)
        for _ in range(2):
            mass = self.integral(lambda t: mp.mpf(1), shift, 0)
            shift += (mass - 1) / self.integral(lambda t: mp.mpf(1), shift, 1)
        return shift

    def expect(self) -> list[mp.mpf]:
        normalizer = self.normalizer()
        shift, mass = (normalizer, 1) if self.r.inside else (mp.mpf(0), normalizer)
        return [self.integral(g, shift, 0) / mass for g in MP_PSI]


def slope(change: Callable[[mp.mpf], list[mp.mpf]]) -> list[mp.mpf]:
    """Central difference at zero, to sixteen digits."""
    h = mp.mpf(10) ** -8
    return [(a - b) / (2 * h) for a, b in zip(change(h), change(-h), strict=True)]


def close(found: Array, expected: list[mp.mpf]) -> bool:
    error = [abs(mp.mpf(x) - y) for x, y in zip(found.tolist(), expected, strict=True)]
    return bool(max(error) < 1e-12 * max(abs(y) for y in expected))


CASES = [
    *[(alpha, True, True, "uniform") for alpha in (1.0, 1.25, 1.5, 1.8, 2.0)],
    *[(alpha, False, True, "uniform") for alpha in (1.25, 2.0)],
    (2.0, True, False, "uniform"),
    (1.5, True, True, "normal"),
    (1.0, True, True, "normal"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "inside", "smooth", "base"), CASES)
def test_normalizers_and_expectations(alpha: float, inside: bool, smooth: bool, base: str) -> None:
    kernel = (gaussian if smooth else exponential)(WIDTH)
    law = {"law": norm()} if base == "normal" else {}
    kinks = () if smooth else tuple(CENTERS.tolist())
    r = KernelReference(
        WEIGHTS, CENTERS, kernel, WIDTH, alpha=alpha, inside=inside, kinks=kinks, **law
    )
    with mp.workdps(25):
        exact = Exact(r, smooth, base)
        assert close(np.array([r.normalizer]), [exact.normalizer()])
        assert close(r.expect(psi), exact.expect())

        def weigh(h: mp.mpf) -> list[mp.mpf]:
            exact.weights[1] = mp.mpf(r.weights[1]) + h
            return exact.expect()

        assert close(r.jacobian(psi)[:, 1], slope(weigh))
        exact.weights[1] = mp.mpf(r.weights[1])

        def bend(h: mp.mpf) -> list[mp.mpf]:
            exact.eps = mp.mpf(alpha) - 1 + h
            return exact.expect()

        if alpha > 1:
            assert close(r.slope(psi), slope(bend))
