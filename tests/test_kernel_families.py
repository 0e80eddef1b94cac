"""Kernel families on the line, against a fine trapezoid of their own density and autodiff."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from sparsefam import KernelDeformedExp, KernelExp
from sparsefam.bases import Fourier, GaussianRBF, Indicator, Polynomial

POINTS = torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)
WEIGHTS = torch.tensor([[4.0, -4.0, 3.0], [1.0, 2.0, -1.0]], dtype=torch.float64)
GRID = torch.linspace(0, 1, 40001, dtype=torch.float64)


def gaussian(x: Tensor, z: Tensor) -> Tensor:
    return torch.exp(-0.5 * ((x - z.T) / 0.1).square())


def family(
    alpha: float, normalization: str = "inside", weights: Tensor = WEIGHTS
) -> KernelExp | KernelDeformedExp:
    points = POINTS.to(weights.dtype)
    if alpha == 1:
        return KernelExp(weights, points, gaussian)
    return KernelDeformedExp(weights, points, gaussian, None, alpha, normalization)


def integral(values: Tensor) -> Tensor:
    """Trapezoid rule along the first dimension."""
    return torch.trapezoid(values, GRID, dim=0)


every_family = pytest.mark.parametrize(
    ("alpha", "normalization"),
    [(1.0, "inside")] + [(a, n) for a in (1.25, 1.5, 1.8, 2.0) for n in ("inside", "outside")],
)


@every_family
def test_moments_and_entropies(alpha: float, normalization: str) -> None:
    p = family(alpha, normalization)
    probs = p.prob(GRID.unsqueeze(-1))
    t = GRID.unsqueeze(-1)
    torch.testing.assert_close(integral(probs), torch.ones(2).double(), atol=1e-7, rtol=0)
    torch.testing.assert_close(p.mean, integral(probs * t), atol=1e-7, rtol=0)
    spread = integral(probs * (t - p.mean).square())
    torch.testing.assert_close(p.variance, spread, atol=1e-7, rtol=0)
    entropy = -integral(torch.special.xlogy(probs, probs))
    torch.testing.assert_close(p.entropy(), entropy, atol=1e-6, rtol=0)


@every_family
def test_expectations(alpha: float, normalization: str) -> None:
    p = family(alpha, normalization)
    probs = p.prob(GRID.unsqueeze(-1))
    smooth = GaussianRBF([0.2, 0.5, 0.9], [0.05, 0.01, 0.2]) + Fourier([3.0]) + Polynomial(2)
    psi = smooth.double()
    due = integral(probs.unsqueeze(-1) * psi(GRID).unsqueeze(1))
    torch.testing.assert_close(p.expect(psi), due, atol=1e-6, rtol=1e-6)
    edges = Indicator([0.13, 0.21, 0.8]).double()
    due = (p.cdf(torch.tensor([[0.21], [0.8]])) - p.cdf(torch.tensor([[0.13], [0.21]]))).T
    torch.testing.assert_close(p.expect(edges), due.double(), atol=1e-7, rtol=0)


@every_family
def test_float32_keeps_its_digits(alpha: float, normalization: str) -> None:
    psi = GaussianRBF([0.2, 0.5, 0.9], [0.05, 0.1, 0.2])
    fine = family(alpha, normalization).expect(psi.double())
    single = family(alpha, normalization, WEIGHTS.float())
    assert len(single.panels.nodes) <= 512
    error = (single.expect(psi.float()) - fine).norm() / fine.norm()
    assert error < 2e-6


@every_family
def test_gradients(alpha: float, normalization: str) -> None:
    panels = family(alpha, normalization).panels
    psi = GaussianRBF([0.2, 0.5, 0.9], [0.05, 0.1, 0.2]).double()

    def expectation(weights: Tensor) -> Tensor:
        p = family(alpha, normalization, weights)
        p.panels = panels
        return torch.cat([p.expect(psi), p.log_prob(torch.tensor(0.22).double()).unsqueeze(-1)], -1)

    assert gradcheck(expectation, WEIGHTS.clone().requires_grad_())


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_support_is_where_the_density_is_positive(alpha: float) -> None:
    p = family(alpha)
    intervals = p.support.intervals
    inner = intervals[0, :2].flatten()
    alive = (p.prob(GRID.unsqueeze(-1))[:, 0] > 0).int()
    switches = GRID[1:][alive.diff() != 0]
    ends = inner[(inner > 0) & (inner < 1)]
    torch.testing.assert_close(ends, switches, atol=3e-5, rtol=0)
    draws = p.sample(torch.Size([2000]))
    assert p.support.check(draws).all()
    assert (p.prob(torch.tensor([[0.5]]).double())[:, 0] == 0).all()


@every_family
def test_quantiles_invert_the_distribution_function(alpha: float, normalization: str) -> None:
    p = family(alpha, normalization)
    level = torch.linspace(0.01, 0.99, 25, dtype=torch.float64).unsqueeze(-1).expand(25, 2)
    torch.testing.assert_close(p.cdf(p.icdf(level)), level, atol=1e-7, rtol=0)


def test_the_jacobian_is_the_generalized_covariance() -> None:
    p = family(2.0)
    phi = GaussianRBF([0.2, 0.5, 0.8], [0.1, 0.1, 0.1]).double()
    psi = Polynomial(2).double()

    def expectation(weights: Tensor) -> Tensor:
        return KernelDeformedExp(weights, POINTS, gaussian, panels=p.panels).expect(psi)

    jacobian = torch.func.vmap(torch.func.jacrev(expectation))(WEIGHTS)
    # The Gaussian functions are the kernel over its integral.
    height = 0.1 * (2 * torch.pi) ** 0.5
    covariance = p.generalized_covariance(phi, psi) * height
    torch.testing.assert_close(jacobian, covariance.mT, atol=1e-8, rtol=1e-6)


def test_arguments() -> None:
    with pytest.raises(ValueError, match=r"weights must be such.*batch indices \[\[1\]\]"):
        weights = torch.tensor([[4.0], [-9.0]])
        KernelDeformedExp(
            weights,
            torch.tensor([0.5]),
            lambda x, z: x.new_ones(len(x), len(z)),
            None,
            2.0,
            "outside",
        )
    with pytest.raises(ValueError, match="inducing_points must be inside the support"):
        KernelExp(WEIGHTS[0], POINTS + 1, gaussian)
    with pytest.raises(ValueError, match="positive semi-definite"):
        KernelExp(WEIGHTS[0], POINTS, lambda x, z: -gaussian(x, z))
    with pytest.raises(ValueError, match="kernel must map"):
        KernelExp(WEIGHTS[0], POINTS, lambda x, z: gaussian(x, z)[:1])
    with pytest.raises(ValueError, match="weights"):
        KernelExp(torch.full((3,), torch.nan), torch.tensor([0.2, 0.5, 0.8]), gaussian)
    with pytest.raises(ValueError, match="alpha must be in"):
        family(2.5)
