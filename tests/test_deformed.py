"""Deformed exponentials and logarithms against mpmath, through beta = 1."""

import math

import mpmath
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from sparsefam.numerics.deformed import exp_beta, expm1_ratio, log1p_ratio, log_beta

SLOPES = [0.0, 1e-12, -1e-6, 1e-3, 0.3, 1.0, -0.5, 2.5]
DTYPES = [(torch.float32, 2e-6), (torch.float64, 4e-15)]


def exact_exp(u: float, slope: float) -> mpmath.mpf:
    with mpmath.workdps(200):
        u, slope = mpmath.mpf(u), mpmath.mpf(slope)
        return mpmath.exp(u) if slope == 0 else max(1 + slope * u, mpmath.mpf(0)) ** (1 / slope)


def exact_log(u: float, slope: float) -> mpmath.mpf:
    with mpmath.workdps(200):
        u, slope = mpmath.mpf(u), mpmath.mpf(slope)
        return mpmath.log(u) if slope == 0 else (u**slope - 1) / slope


def beta_of(slope: float, dtype: torch.dtype) -> tuple[torch.Tensor, float]:
    """beta, and the slope 1 - beta that its rounding leaves."""
    beta = torch.tensor(1 - slope, dtype=dtype)
    return beta, (1 - beta).item()


@pytest.mark.parametrize("slope", SLOPES)
@pytest.mark.parametrize(("dtype", "limit"), DTYPES)
def test_values(slope: float, dtype: torch.dtype, limit: float) -> None:
    beta, kept = beta_of(slope, dtype)
    u = torch.tensor([-0.35, -1e-4, 0.0, 1e-7, 0.2, 0.39, 1.7, 4.0], dtype=dtype)
    u = u[1 + kept * u > 0.05]
    exact = torch.tensor([float(exact_exp(x, kept)) for x in u.tolist()], dtype=torch.float64)
    torch.testing.assert_close(exp_beta(u, beta).double(), exact, rtol=limit, atol=0)
    v = torch.tensor([1e-3, 0.3, 0.999, 1.0, 1.001, 2.7, 40.0], dtype=dtype)
    exact = torch.tensor([float(exact_log(x, kept)) for x in v.tolist()], dtype=torch.float64)
    torch.testing.assert_close(log_beta(v, beta).double(), exact, rtol=limit, atol=1e-30)


@pytest.mark.parametrize("slope", [1e-9, 0.05, 0.3, -1e-4])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 5e-6), (torch.float64, 1e-13)])
def test_derivative_in_beta(slope: float, dtype: torch.dtype, limit: float) -> None:
    beta, kept = beta_of(slope, dtype)
    for function, exact, u in ((exp_beta, exact_exp, 1.3), (log_beta, exact_log, 2.6)):
        b = beta.clone().requires_grad_()
        x = torch.tensor(u, dtype=dtype)
        (found,) = torch.autograd.grad(function(x, b), b)
        with mpmath.workdps(80):
            expected = -mpmath.diff(
                lambda s, x=x, exact=exact: exact(x.item(), s), mpmath.mpf(kept)
            )
        assert found.item() == pytest.approx(float(expected), rel=limit)


def test_edges() -> None:
    u = torch.tensor([-1.0, -1.5, -7.0, -math.inf], dtype=torch.float64, requires_grad=True)
    value = exp_beta(u, 0.0)
    assert (value == 0).all()
    assert (torch.autograd.grad(value.sum(), u)[0] == 0).all()
    assert torch.isposinf(exp_beta(torch.tensor(2.0), 1.5))
    zero = torch.zeros(())
    assert log_beta(zero, 0.5).item() == -2.0
    assert log_beta(zero, 1.0).item() == log_beta(zero, 1.5).item() == -math.inf


def test_derivatives_of_both_and_of_the_ratios() -> None:
    x = torch.tensor([-0.6, -0.25, -0.1, 0.0, 1e-9, 0.2499, 0.25, 3.0], dtype=torch.float64)
    for function in (log1p_ratio, expm1_ratio):
        assert gradcheck(function, x.requires_grad_()) and gradgradcheck(function, x)
    u = torch.tensor([-0.3, 0.2, 1.5], dtype=torch.float64, requires_grad=True)
    v = torch.tensor([0.3, 1.0, 2.5], dtype=torch.float64, requires_grad=True)
    for slope in (1e-7, 0.2, -0.3):
        beta = torch.tensor(1 - slope, dtype=torch.float64, requires_grad=True)
        assert gradgradcheck(exp_beta, (u, beta)) and gradgradcheck(log_beta, (v, beta))
