"""Covariances of bases under elliptical densities, against quadrature and mpmath."""

import math

import mpmath
import pytest
import torch
from battery import frame
from references import smooth_rule
from torch import Tensor
from vectors import elliptical

from sparsefam import EllipticalDistribution, MultivariateBetaGaussian
from sparsefam.bases import Basis, Fourier, GaussianRBF, Indicator, Polynomial, Product

SINGLE, DOUBLE = torch.float32, torch.float64


def unit(dim: int, alpha: float, scale: float = 1.0) -> EllipticalDistribution:
    return elliptical(torch.zeros(dim, dtype=DOUBLE), scale * torch.eye(dim, dtype=DOUBLE), alpha)


def member(dim: int, alpha: float | Tensor, dtype: torch.dtype = DOUBLE) -> EllipticalDistribution:
    loc = torch.tensor([0.3, -0.2, 0.1][:dim], dtype=dtype)
    tril = torch.tensor([[0.9, 0, 0], [0.2, 0.6, 0], [-0.3, 0.1, 0.75]], dtype=dtype)
    tril = tril[:dim, :dim].contiguous()
    return elliptical(loc, 0.5 * tril if isinstance(alpha, float) and alpha == 1 else tril, alpha)


def functions(dim: int, dtype: torch.dtype = DOUBLE) -> dict[str, Basis]:
    centers = torch.sin(1.7 * torch.arange(1.0, 3 * dim + 1)).reshape(3, dim)
    mixed = 0.5 * torch.eye(dim) + 0.125 * torch.ones(dim, dim).tril(-1)
    hills = [GaussianRBF([-0.5, 0.25], 0.5), GaussianRBF([0.5], [0.75]), GaussianRBF([0.0], 0.5)]
    found = {
        "isotropic": GaussianRBF(centers, [0.4, 0.6, 5.0]),
        "full": GaussianRBF(centers, covariance=mixed @ mixed.mT),
        "hills": Product(*hills[:dim]),
        "waves": Fourier(torch.stack([0.2 * centers[0], 3 * centers[1]])),
        "quadratic": Polynomial(2, ndim=dim),
        "cubic": Polynomial(3, ndim=dim),
    }
    return {name: basis.to(dtype) for name, basis in found.items()}


def polar(p: EllipticalDistribution) -> tuple[Tensor, Tensor]:
    """Return nodes (Q, D) and weights of the battery's rule on the ball."""
    centre, factor = frame(p, 15.0)
    u, weights = (torch.as_tensor(x) for x in smooth_rule(p.loc.shape[-1]))
    t = (centre + u @ factor.mT).detach()
    weights = weights * p.prob(t).detach()
    return t, weights / weights.sum()


def covariance(phi: Basis, psi: Basis, t: Tensor, weights: Tensor) -> Tensor:
    f, g = (x - weights @ x for x in (phi(t).detach(), psi(t).detach()))
    found: Tensor = torch.einsum("q,qm,qn->mn", weights, f, g)
    return found


def error(found: Tensor, expected: Tensor) -> float:
    return ((found.double() - expected).norm() / expected.norm()).item()


PAIRS = [
    ("isotropic", "isotropic"),
    ("isotropic", "full"),
    ("hills", "full"),
    ("quadratic", "isotropic"),
    ("full", "quadratic"),
    ("quadratic", "hills"),
    ("quadratic", "waves"),
    ("waves", "waves"),
    ("waves", "full"),
    ("isotropic", "waves"),
    ("cubic", "isotropic"),
    ("cubic", "cubic"),
    ("cubic", "waves"),
]


@pytest.mark.parametrize(("rows", "columns"), PAIRS)
@pytest.mark.parametrize("alpha", [1.0, 1.2, math.inf])
@pytest.mark.parametrize("dim", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_pairs_agree_with_quadrature(dim: int, alpha: float, rows: str, columns: str) -> None:
    for dtype, most in ((DOUBLE, 1e-10), (SINGLE, 1e-6)):
        found = functions(dim, dtype)
        phi, psi = found[rows], found[columns]
        q = member(dim, alpha, dtype)
        exact = elliptical(q.loc.double(), q.scale_tril.double(), alpha)
        t, weights = polar(exact)
        expected = covariance(phi.double(), psi.double(), t, weights)
        value = q.generalized_covariance(phi.to(dtype), psi.to(dtype), 1.0)
        assert value.dtype == dtype
        assert error(value, expected) < most


@pytest.mark.parametrize(("dim", "alpha"), [(1, 1.5), (1, math.inf), (2, 1.0), (2, 1.02)])
def test_gaussians_of_any_width(dim: int, alpha: float) -> None:
    directions = torch.sin(2.3 * torch.arange(1.0, 2 * dim + 1, dtype=DOUBLE)).reshape(2, 1, dim)
    directions = directions / directions.norm(dim=-1, keepdim=True)
    p = unit(dim, alpha)
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
        near, shift = member(2, alpha, dtype), torch.tensor([128.0, -64.0], dtype=dtype)
        tril, loc = near.scale_tril / 64, torch.zeros(2, dtype=dtype)
        p, moved = (elliptical(x, tril, alpha) for x in (loc, shift))
        centers = torch.tensor([[0.015625, 0.0], [0.0, -0.0078125]], dtype=dtype)
        found, expected = (
            q.generalized_covariance(
                Polynomial(1, ndim=2), GaussianRBF(centers + q.loc, 0.0078125).to(dtype), 1.0
            )
            for q in (moved, p)
        )
        assert error(found, expected.double()) < most


def test_pairs_that_no_rule_resolves_are_refused() -> None:
    p = member(2, 1.5)
    steps = Product(Indicator([-0.3, 0.1, 0.5]), Polynomial(1)).double()
    hill = GaussianRBF([[0.3, -0.2]], 0.004).double()
    for phi, psi in ((steps, functions(2)["waves"]), (hill, functions(2)["waves"])):
        with pytest.raises(ValueError, match="phi and psi must be smooth enough for quadrature"):
            p.generalized_covariance(phi, psi)
    q = MultivariateBetaGaussian(p.loc, p.scale_tril, 1.5, validate_args=False)
    assert q.generalized_covariance(hill, functions(2)["waves"]).isfinite().all()
