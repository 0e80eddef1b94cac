"""The benchmark of the regression: its reference, its exponents, and what it says."""

import mpmath
import pytest
import torch

from benchmarks.regression import (
    Timing,
    accuracy,
    accuracy_table,
    exponent,
    least_squares,
    time_table,
    timing,
)
from sparsefam.bases import GaussianRBF


@pytest.mark.parametrize("penalty", [1e-4, 1.0])
def test_reference_agrees_with_fifty_digits(penalty: float) -> None:
    t, values = torch.rand(40), torch.randn(40, 1)
    basis = GaussianRBF.grid(12, 1.5 / 12)
    found = least_squares(basis, t, values, penalty)
    with mpmath.workdps(50):
        design = mpmath.matrix(basis(t.double()).tolist())
        gram = design.T * design + mpmath.mpf(penalty) * mpmath.eye(12)
        exact = mpmath.lu_solve(gram, design.T * mpmath.matrix(values.double().tolist()))
    exact = torch.tensor([[float(x)] for x in exact], dtype=torch.double)
    assert (found - exact).norm() < 1e-12 * exact.norm()


def test_exponents_are_those_of_powers() -> None:
    lengths = [100, 200, 800]
    assert exponent(lengths, [3e-6 * n**1.5 for n in lengths]) == pytest.approx(1.5)
    rows = [Timing(n, 1e-6 * n, 2e-6 * n, 1e-7 * n * n) for n in lengths]
    assert time_table(rows).rows[-1] == ["exponent of L", "1.00", "1.00", "2.00"]


def test_times_are_positive() -> None:
    found = timing(64, functions=8, channels=2)
    assert min(found.forward, found.backward, found.known) > 0


@pytest.mark.parametrize("size", [16, 128])
def test_fits_are_exact_where_float32_is_not(size: int) -> None:
    row = accuracy(size, 1e-2, length=500)
    # Rounding the coefficients is all that is lost.
    assert row.coefficients < 6e-8
    assert not row.single < 100 * row.curve
    assert accuracy_table([row]).rows[0][0] == str(size)
