"""Covariances of narrow, wide and far functions under elliptical densities; others: battery."""

import math

import mpmath
import pytest
import torch
from battery import DOUBLE, SINGLE, apart
from torch import Tensor
from vectors import elliptical

from sparsefam import MultivariateBetaGaussian
from sparsefam.bases import Fourier, GaussianRBF, Indicator, Polynomial, Product


@pytest.mark.parametrize(("dim", "alpha"), [(1, 1.5), (1, math.inf), (2, 1.0), (2, 1.02)])
def test_gaussians_of_any_width(dim: int, alpha: float) -> None:
    directions = torch.sin(2.3 * torch.arange(1.0, 2 * dim + 1, dtype=DOUBLE)).reshape(2, 1, dim)
    directions = directions / directions.norm(dim=-1, keepdim=True)
    p = elliptical(torch.zeros(dim, dtype=DOUBLE), torch.eye(dim, dtype=DOUBLE), alpha)
    for offset, widths in [
        (0.3, (0.2, 0.2)),
        (1.0, (0.2, 1.0)),
        (0.3, (1.0, 1.0)),
        (1.0, (2.0, 10.0)),
        (0.3, (0.2, 10.0)),
        (0.3, (1e3, 1e3)),
    ]:
        a, b = offset * directions
        phi, psi = (GaussianRBF(c, w) for c, w in zip((a, 0.7 * b), widths, strict=True))
        expected = concentric(dim, alpha, (a[0], 0.7 * b[0]), widths)
        found = p.generalized_covariance(phi, psi, 1.0).item()
        assert abs(found / expected - 1) < 1e-10


def concentric(
    dim: int, alpha: float, centers: tuple[Tensor, Tensor], widths: tuple[float, float]
) -> float:
    """Covariance of two isotropic Gaussians under the unit ball's density, in 40 digits.

    Averaged over directions, exp(g'x) is a function of |g| |x|.
    """
    with mpmath.workdps(40):
        c = [mpmath.matrix(x.tolist()) for x in centers]
        k = [1 / mpmath.mpf(w) ** 2 for w in widths]
        g = [x * y for x, y in zip(c, k, strict=True)]
        half, norms = mpmath.mpf(dim) / 2, [mpmath.norm(x) for x in c]
        peaks = [
            mpmath.exp(-n * n * y / 2) * (y / (2 * mpmath.pi)) ** half
            for n, y in zip(norms, k, strict=True)
        ]

        def mean(slope: mpmath.matrix, bend: mpmath.mpf) -> mpmath.mpf:
            square = mpmath.norm(slope) ** 2
            if alpha == 1:
                return mpmath.exp(square / (1 + bend) / 2) / (1 + bend) ** half
            m = 0 if alpha == math.inf else 1 / (mpmath.mpf(alpha) - 1)

            def shell(r: mpmath.mpf) -> mpmath.mpf:
                radial = 2 * r ** (dim - 1) * (1 - r * r) ** m * mpmath.exp(-bend * r * r / 2)
                return radial * mpmath.hyp0f1(half, r * r * square / 4)

            return mpmath.quad(shell, [0, 0.02, 0.1, 0.3, 0.6, 1]) / mpmath.beta(half, m + 1)

        both = mean(g[0] + g[1], k[0] + k[1])
        return float(peaks[0] * peaks[1] * (both - mean(g[0], k[0]) * mean(g[1], k[1])))


@pytest.mark.parametrize("alpha", [1.0, 3.0])
def test_far_from_the_origin(alpha: float) -> None:
    for dtype, most in ((SINGLE, 2e-6), (DOUBLE, 1e-11)):
        tril = torch.tensor([[0.9, 0.0], [0.2, 0.6]], dtype=dtype) / 64
        shift = torch.tensor([128.0, -64.0], dtype=dtype)
        p, moved = (elliptical(x, tril, alpha) for x in (0 * shift, shift))
        centers = torch.tensor([[0.015625, 0.0], [0.0, -0.0078125]], dtype=dtype)
        found, expected = (
            q.generalized_covariance(
                Polynomial(1, ndim=2), GaussianRBF(centers + q.loc, 0.0078125).to(dtype), 1.0
            )
            for q in (moved, p)
        )
        assert apart(found, expected) < most


def test_pairs_that_no_rule_resolves_are_refused() -> None:
    loc, tril = torch.tensor([0.3, -0.2]).double(), torch.tensor([[0.9, 0.0], [0.2, 0.6]]).double()
    p = MultivariateBetaGaussian(loc, tril, 1.5)
    steps = Product(Indicator([-0.3, 0.1, 0.5]), Polynomial(1)).double()
    hill = GaussianRBF([[0.3, -0.2]], 0.004).double()
    waves = Fourier([[0.2, 0.0], [-0.8, -1.5]]).double()
    for phi in (steps, hill):
        with pytest.raises(ValueError, match="phi and psi must be smooth enough for quadrature"):
            p.generalized_covariance(phi, waves)
    q = MultivariateBetaGaussian(loc, tril, 1.5, validate_args=False)
    assert q.generalized_covariance(hill, waves).isfinite().all()
