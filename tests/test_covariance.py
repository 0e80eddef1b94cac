"""Covariances of bases under elliptical densities, against quadrature and mpmath."""

import math

import mpmath
import pytest
import torch
from battery import frame
from references import smooth_rule
from torch import Tensor
from torch.autograd import gradcheck
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


@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_slow_waves(alpha: float) -> None:
    p = unit(3, alpha)
    slow = 1e-4 * torch.eye(3, dtype=DOUBLE)[:1]
    found = p.generalized_covariance(Fourier(slow), Fourier(slow), 1.0)
    second = p.variance[0].item()
    # sin(w t) is w t, and cos(w t) is 1 - (w t)^2/2, to 8 digits.
    fourth = 3 * second**2 if alpha == 1 else 3 * second / (1 / second + 2)
    assert abs(found[1, 1].item() / (1e-8 * second) - 1) < 1e-7
    assert abs(found[0, 0].item() / (1e-16 * (fourth - second**2) / 4) - 1) < 1e-6
    assert found[0, 1].abs() < 1e-25 and found[1, 0].abs() < 1e-25


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


@pytest.mark.parametrize(
    ("alpha", "names"), [(1.0, ("isotropic", "isotropic")), (1.5, ("full", "isotropic"))]
)
def test_derivatives_in_everything(alpha: float, names: tuple[str, str]) -> None:
    p = member(2, alpha)
    centers, widths = functions(2)["isotropic"].centers, torch.tensor([0.4, 0.6, 5.0]).double()
    covariances = functions(2)["full"].covariance.expand(3, 2, 2)
    leaves = [p.loc, p.scale_tril, centers, widths, covariances]
    index = torch.tensor(alpha, dtype=DOUBLE, requires_grad=True)

    def evaluate(loc: Tensor, tril: Tensor, c: Tensor, w: Tensor, s: Tensor, a: Tensor) -> Tensor:
        q = elliptical(loc, tril.tril(), a if alpha > 1 else 1.0)
        given = {"isotropic": {"widths": w}, "full": {"covariance": 0.5 * (s + s.mT)}}
        pair = []
        for name in names:
            basis = GaussianRBF(c.detach(), **{k: v.detach() for k, v in given[name].items()})
            for key, value in {"centers": c, **given[name]}.items():
                basis._buffers[key] = value
            pair.append(basis)
        wide = GaussianRBF(centers, 5.0)
        wide._buffers["centers"] = c
        rows = [(pair[0], pair[1]), (wide, wide), (Polynomial(2, ndim=2), pair[0])]
        found = torch.cat([q.generalized_covariance(*row, 1.0) for row in rows])
        # Those of the wide ones are tiny.
        return found * torch.tensor([1.0] * 3 + [1e5] * 3 + [1.0] * 6).double().unsqueeze(-1)

    inputs = [x.detach().clone().requires_grad_() for x in leaves]
    assert gradcheck(evaluate, (*inputs, index), fast_mode=True)


def test_vmap_over_locations() -> None:
    psi, locs = functions(2)["isotropic"], torch.tensor([[0.5, 0.0], [-0.25, 1.0]], dtype=DOUBLE)

    def covariance(loc: Tensor) -> Tensor:
        p = MultivariateBetaGaussian(loc, torch.eye(2, dtype=DOUBLE), 1.5)
        return p.generalized_covariance(psi, psi)

    torch.testing.assert_close(torch.vmap(covariance)(locs), covariance(locs))


def test_stacks_are_their_members() -> None:
    p, found = member(2, 1.5), functions(2)
    stack = found["quadratic"] + found["isotropic"]
    whole = p.generalized_covariance(stack, stack, 1.0)
    blocks = [[p.generalized_covariance(a, b, 1.0) for b in stack.bases] for a in stack.bases]
    torch.testing.assert_close(whole, torch.cat([torch.cat(row, 1) for row in blocks]))
    torch.testing.assert_close(whole, whole.mT)


@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_quasi_random_directions_have_two_digits(alpha: float) -> None:
    p = unit(5, alpha, 0.5)
    phi, psi = GaussianRBF(torch.full((1, 5), 0.1).double(), 2.0), Polynomial(2, ndim=5).double()
    exact = p.generalized_covariance(phi, psi, 1.0)
    t = p.sample((200_000,))
    f, g = (x - x.mean(0) for x in (phi(t), psi(t)))
    assert error(exact, f.mT @ g / len(t)) < 0.05
    # No direction meets a narrow function: its product is a Gaussian function, too.
    narrow = GaussianRBF(torch.full((1, 5), 0.1).double(), 0.01)
    middle = GaussianRBF(torch.full((1, 5), 0.1).double(), 0.01 / 2**0.5)
    peak = (2 * torch.pi * 2 * 0.01**2) ** -2.5
    expected = peak * p.expect(middle) - p.expect(narrow).square()
    torch.testing.assert_close(p.generalized_covariance(narrow, narrow, 1.0), expected[None])
