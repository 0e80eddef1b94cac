"""Losses of every score, for weighted samples and for densities: sums over fine grids."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution

import sparsefam as sf
from sparsefam.losses import fenchel_young

DOUBLE = torch.float64


def double(*values: float) -> Tensor:
    found = torch.tensor(values, dtype=DOUBLE)
    return found.squeeze() if len(values) == 1 else found


def hills(x: Tensor, y: Tensor) -> Tensor:
    return torch.exp(-(x - y.mT).square() / 0.02)


def line(low: float, high: float) -> tuple[Tensor, float]:
    """Middles of many short cells, and their length."""
    count = 100_000
    return low + (high - low) * (torch.arange(count, dtype=DOUBLE) + 0.5) / count, (
        high - low
    ) / count


def plane(reach: float) -> tuple[Tensor, float]:
    t = torch.linspace(-reach, reach, 701, dtype=DOUBLE)
    return torch.cartesian_prod(t, t), float(t[1] - t[0]) ** 2


class Case(NamedTuple):
    """A score of some parameters, where it is summed, samples with weights, and a density."""

    score: Callable[..., sf.scores.Score]
    parameters: tuple[Tensor, ...]
    grid: tuple[Tensor, float]
    samples: Tensor
    target: Distribution
    tolerance: float = 1e-6


SAMPLES = double(-3.0, 0.25, 0.5, 1.5)
INSIDE = double(0.1, 0.25, 0.5, 1.0)
NUMBERS = (SAMPLES, sf.TruncatedParabola(double(0.25), double(0.75)))
MIXED = (double(-1.0, 2.0), double(0.75, 0.5))
CASES = {
    "quadratic": Case(sf.scores.Quadratic, (double(0.3), double(0.5)), line(-4, 4), *NUMBERS),
    "absolute": Case(
        sf.scores.AbsoluteDeviation, (double(0.3), double(0.5)), line(-20, 20), *NUMBERS
    ),
    "location-scale": Case(
        lambda loc, scale: sf.scores.LocationScale(loc, scale, lambda x: x**4 / 4),
        (double(0.3), double(0.8)),
        line(-4, 4),
        *NUMBERS,
    ),
    "mixture": Case(
        lambda logits, loc: sf.scores.LogDensity(sf.Mixture(logits, sf.Normal(loc, MIXED[1]))),
        (double(0.5, 0.0), MIXED[0]),
        line(-12, 12),
        *NUMBERS,
    ),
    "kernel": Case(
        lambda w: sf.scores.KernelExpansion(w, torch.linspace(0, 1, 4).double(), hills),
        (double(3.0, -4.0, 1.0, 5.0),),
        line(0, 1),
        INSIDE,
        sf.TruncatedParabola(double(0.5), double(0.25)),
    ),
    "vectors": Case(
        lambda loc, tril: sf.scores.MultivariateQuadratic(loc, tril.tril()),
        (double(0.3, -0.2), torch.tensor([[0.6, 0.0], [0.3, 0.5]], dtype=DOUBLE)),
        plane(6),
        torch.tensor([[0.0, 0.0], [2.0, -1.0], [0.5, 0.5], [1.0, 1.0]], dtype=DOUBLE),
        sf.TruncatedParaboloid(double(0.25, 0.0), 0.75 * torch.eye(2, dtype=DOUBLE)),
        1e-4,
    ),
}
ALPHAS = {"location-scale": [2.0], "mixture": [1.0], "kernel": [1.0, 1.5, 2.0]}
PAIRS = [(name, a) for name in CASES for a in ALPHAS.get(name, [1.0, 1.5, 2.0])]


def regularizer(p: Tensor, alpha: float) -> Tensor:
    if alpha == 1:
        return torch.special.xlogy(p, p)
    return (p**alpha - p) / (alpha * (alpha - 1))


@pytest.mark.parametrize(("name", "alpha"), PAIRS)
def test_value_and_gradient(name: str, alpha: float) -> None:
    """Omega*(f) - mean f, or + Omega(q) - E_q[f]; and the means of f's own gradient."""
    case = CASES[name]
    parameters = [a.clone().requires_grad_() for a in case.parameters]
    score, (t, cell) = case.score(*parameters), case.grid
    weight, f = double(1.0, 2.0, 0.0, 0.5), case.score(*parameters)(t)
    p = sf.rpm(score, alpha).log_prob(t).exp().detach()
    q = case.target.log_prob(t).exp()
    conjugate = cell * (p * f - regularizer(p, alpha)).sum()
    at_samples = (weight * score(case.samples)).sum() / weight.sum()
    at_density = cell * (q * f - regularizer(q, alpha)).sum()
    for target, given, known in (
        (case.samples, weight, at_samples),
        (case.target, None, at_density),
    ):
        found = fenchel_young(score, target, alpha, weight=given)
        due = conjugate - known
        assert found.item() == pytest.approx(due.item(), abs=case.tolerance)
        slopes = [torch.autograd.grad(x, parameters, retain_graph=True) for x in (found, due)]
        for mine, theirs in zip(*slopes, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=case.tolerance, atol=case.tolerance * 10)
