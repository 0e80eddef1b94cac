"""Deformed logarithms against mpmath, through beta = 1."""

import math

import mpmath
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from sparsefam.numerics.deformed import expm1_ratio, log1p_ratio, log_beta

SLOPES = [0.0, 1e-12, -1e-6, 1e-3, 0.3, 1.0, -0.5, 2.5]
DTYPES = [(torch.float32, 2e-6), (torch.float64, 4e-15)]


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
    v = torch.tensor([1e-3, 0.3, 0.999, 1.0, 1.001, 2.7, 40.0], dtype=dtype)
    exact = torch.tensor([float(exact_log(x, kept)) for x in v.tolist()], dtype=torch.float64)
    torch.testing.assert_close(log_beta(v, beta).double(), exact, rtol=limit, atol=1e-30)
    x = v - 1
    ratio = torch.where(x == 0, 1.0, x.double().log1p() / x.double())
    torch.testing.assert_close(log1p_ratio(x).double(), ratio, rtol=limit, atol=0)


@pytest.mark.parametrize("slope", [1e-9, 0.05, 0.3, -1e-4])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 5e-6), (torch.float64, 1e-13)])
def test_derivative_in_beta(slope: float, dtype: torch.dtype, limit: float) -> None:
    beta, kept = beta_of(slope, dtype)
    v = torch.tensor(2.625, dtype=dtype)
    (found,) = torch.autograd.grad(log_beta(v, beta.requires_grad_()), beta)
    with mpmath.workdps(80):
        expected = -mpmath.diff(lambda s: exact_log(2.625, s), mpmath.mpf(kept))
    assert found.item() == pytest.approx(float(expected), rel=limit)


def test_edges() -> None:
    zero = torch.zeros(())
    assert log_beta(zero, 0.5).item() == -2.0
    assert log_beta(zero, 1.0).item() == log_beta(zero, 1.5).item() == -math.inf


def test_second_derivatives() -> None:
    x = torch.tensor([-0.6, -0.25, -0.1, 0.0, 1e-9, 0.2499, 0.25, 3.0], dtype=torch.float64)
    for function in (log1p_ratio, expm1_ratio):
        assert gradcheck(function, x.requires_grad_()) and gradgradcheck(function, x)
    v = torch.tensor([0.3, 1.0, 2.5], dtype=torch.float64, requires_grad=True)
    for slope in (1e-7, 0.2, -0.3):
        beta = torch.tensor(1 - slope, dtype=torch.float64, requires_grad=True)
        assert gradgradcheck(log_beta, (v, beta))
