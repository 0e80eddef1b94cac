"""The other ways to name a density: score scales, moments, canonical parameters."""

import math
from collections.abc import Callable

import pytest
import torch
from cases import DOUBLE
from torch import Tensor

from sparsefam import (
    BetaGaussian,
    BetaLaplace,
    Laplace,
    Normal,
    SparseDistribution,
    Triangular,
    TruncatedParabola,
)

LOC = torch.tensor([[0.25], [-1.0]], dtype=DOUBLE)
WIDTH = torch.tensor([0.01, 0.5, 20.0], dtype=DOUBLE)
ALPHAS = [1.1, 4 / 3, 1.5, 1.8, 2.0, 3.0]


def half_width(order: int, alpha: float, width: Tensor) -> Tensor:
    """Where p = [(alpha - 1)(tau - |t|^k/(k w^k))]_+^m has mass one, from the beta function.

    The half-width s obeys (alpha - 1) tau = s^k (alpha - 1)/(k w^k), hence
    mass = (s^k (alpha - 1)/(k w^k))^m 2 s B(1/k, m + 1)/k = 1.
    """
    m = 1 / (alpha - 1)
    log_beta = math.lgamma(1 / order) + math.lgamma(m + 1) - math.lgamma(1 / order + m + 1)
    log_mass = m * math.log((alpha - 1) / order) + math.log(2 / order) + log_beta
    return torch.exp((order * m * width.log() - log_mass) / (order * m + 1))


@pytest.mark.parametrize("alpha", ALPHAS)
def test_score_scales_give_the_half_width_of_unit_mass(alpha: float) -> None:
    for p, order, back in (
        (q := BetaGaussian.from_sigma(LOC, WIDTH, alpha), 2, q.sigma),
        (r := BetaLaplace.from_b(LOC, WIDTH, alpha), 1, r.b),
    ):
        expected = half_width(order, alpha, WIDTH).expand(2, 3)
        torch.testing.assert_close(p.scale, expected, rtol=1e-12, atol=0)
        torch.testing.assert_close(p.loc, LOC.expand(2, 3), rtol=0, atol=0)
        torch.testing.assert_close(back, WIDTH.expand(2, 3), rtol=1e-12, atol=0)


def test_named_members_take_no_alpha_and_agree_with_their_family() -> None:
    for special, general in (
        (TruncatedParabola.from_sigma(LOC, WIDTH), BetaGaussian.from_sigma(LOC, WIDTH, 2.0)),
        (Triangular.from_b(LOC, WIDTH), BetaLaplace.from_b(LOC, WIDTH, 2.0)),
    ):
        torch.testing.assert_close(special.scale, general.scale, rtol=1e-14, atol=0)
    assert torch.equal(Normal.from_sigma(LOC, WIDTH).sigma, WIDTH.expand(2, 3))
    assert torch.equal(Laplace.from_b(LOC, WIDTH).b, WIDTH.expand(2, 3))


@pytest.mark.parametrize("alpha", [*ALPHAS, math.inf])
def test_moments_come_back(alpha: float) -> None:
    for p in (
        BetaGaussian.from_moments(LOC, WIDTH, alpha),
        BetaLaplace.from_moments(LOC, WIDTH, alpha),
        TruncatedParabola.from_moments(LOC, WIDTH),
        Triangular.from_moments(LOC, WIDTH),
    ):
        torch.testing.assert_close(p.mean, LOC.expand(2, 3), rtol=0, atol=0)
        torch.testing.assert_close(p.variance, WIDTH.expand(2, 3), rtol=1e-13, atol=0)


@pytest.mark.parametrize(
    "make",
    [
        lambda *x: BetaGaussian.from_sigma(*x).scale,
        lambda *x: BetaLaplace.from_b(*x).scale,
        lambda *x: BetaGaussian.from_moments(*x).scale,
        lambda *x: BetaGaussian(*x).sigma,
        lambda *x: BetaLaplace(*x).b,
        lambda first, second, alpha: BetaGaussian.from_canonical(first, -second, alpha).scale,
    ],
)
def test_gradients_pass_through(make: Callable[..., Tensor]) -> None:
    leaves = [torch.tensor(v, dtype=DOUBLE, requires_grad=True) for v in (0.25, 0.5, 1.7)]
    assert torch.autograd.gradcheck(make, leaves)
    assert torch.autograd.gradgradcheck(make, leaves)


def test_the_uniform_has_no_score_scale_of_its_own() -> None:
    scale = torch.tensor([0.2, 3.0])
    for p in (BetaGaussian(0.0, scale, math.inf), BetaLaplace(0.0, scale, math.inf)):
        back = p.sigma if isinstance(p, BetaGaussian) else p.b
        assert back.tolist() == [0.0, math.inf]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BetaGaussian(0.0, 1.0, alpha=1.0), r"alpha[\s\S]*1"),
        (lambda: BetaGaussian(0.0, 1.0, alpha=math.nan), r"alpha[\s\S]*nan"),
        (lambda: BetaLaplace(0.0, 1.0, alpha=0.5), r"alpha[\s\S]*0.5"),
        (lambda: BetaGaussian.from_sigma(0.0, 1.0, 1.0), "alpha must be greater than 1, got 1.0"),
        (lambda: BetaGaussian.from_sigma(0.0, 0.0, 2.0), "sigma must be positive .*got .*0"),
        (lambda: TruncatedParabola.from_sigma(0.0, math.inf), "sigma must be .*finite, got .*inf"),
        (lambda: TruncatedParabola.from_sigma(math.nan, 1.0), r"loc[\s\S]*nan"),
        (lambda: BetaLaplace.from_b(0.0, -1.0, 1.5), "b must be positive and finite, got .*-1"),
        (lambda: Triangular.from_b(0.0, math.nan), "b must be positive and finite, got .*nan"),
        (lambda: Normal.from_sigma(0.0, -1.0), r"scale[\s\S]*-1"),
        (lambda: BetaGaussian.from_moments(0.0, 0.0, 1.5), "variance must be positive .*got .*0"),
        (lambda: BetaGaussian.from_moments(0.0, 1.0, 0.9), "alpha must be greater than 1, got 0.9"),
        (lambda: Triangular.from_moments(0.0, math.nan), "variance must be .*finite, got .*nan"),
        (
            lambda: BetaGaussian.from_moments(torch.zeros(2), torch.ones(3), 1.5),
            r"shapes must broadcast .*mean \(2,\), variance \(3,\)",
        ),
        (lambda: TruncatedParabola.from_canonical(0.0, 0.0), "theta2 must be negative .*got .*0"),
        (lambda: TruncatedParabola.from_canonical(math.inf, -1.0), r"inf"),
    ],
)
def test_bad_arguments_are_named(make: Callable[[], SparseDistribution], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
