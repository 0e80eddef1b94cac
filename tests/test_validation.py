"""Arguments: broadcasting, refusals and singular matrices."""

import math
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from sparsefam.numerics.validation import (
    broadcast_arguments,
    broadcast_location_scale,
    cholesky_factor,
    is_plain_cpu_tensor,
    require_scale_tril,
)

DOUBLE = torch.float64
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
EYE = torch.eye(2)


_FIRST_CALLS = """
import sys, torch, sparsefam as sf
psi = sf.bases.GaussianRBF.grid(4, 0.2)
rbf = lambda x, z: torch.exp(-20 * (x - z.mT).square())
p = sf.KernelDeformedExp(torch.ones(2, 3), torch.tensor([0.2, 0.5, 0.8]), rbf)
for p in (
    *(p, sf.LocationScale(0.0, torch.ones(2), torch.cosh)),
    *(sf.BetaLaplace(0.0, 1.0, 1.7), sf.TruncatedParabola(0.0, torch.ones(2))),
):
    p.expect(psi), p.sample(), p.support, p.log_prob(torch.zeros(3, 1)), p.entropy()
sf.attention.ContinuousAttention(4, 2, psi, score="kernel")(*torch.randn(3, 9, 1, 4), torch.rand(9))
assert "sympy" not in sys.modules and "numba" not in sys.modules
"""


def test_first_calls_import_no_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", _FIRST_CALLS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_that_float32_does_not_hold_are_infinite(sign: int) -> None:
    arguments = {"loc": torch.zeros(2), "scale_tril": EYE.float(), "alpha": sign * 1e300}
    assert broadcast_location_scale(**arguments)[-1].item() == sign * math.inf


def test_integers_become_floats_and_precisions_the_widest() -> None:
    loc, scale = broadcast_arguments(loc=torch.tensor([1, 2]), scale=3)
    assert loc.dtype == scale.dtype == torch.float32
    loc, scale = broadcast_arguments(loc=torch.ones(2), scale=torch.ones((), dtype=DOUBLE))
    assert loc.dtype == scale.dtype == DOUBLE


def gram(vectors: int, size: int, dtype: torch.dtype) -> Tensor:
    x = torch.randn(200, size, vectors, dtype=dtype)
    return x @ x.mT


@pytest.mark.parametrize("size", [2, 32])
@every_dtype
def test_no_singular_matrix_passes_for_its_rounding_errors(dtype: torch.dtype, size: int) -> None:
    """Torch finds a factor for about half of these."""
    for matrix in gram(size - 1, size, dtype):
        with pytest.raises(ValueError, match="sigma must be positive definite, and is singular"):
            cholesky_factor("sigma", matrix)


@pytest.mark.parametrize("size", [1, 3, 32])
@every_dtype
def test_factors_of_matrices_that_have_one(dtype: torch.dtype, size: int) -> None:
    # Units that differ by 1e12 among the axes are no singularity.
    units = torch.logspace(-6, 6, size, dtype=dtype).unsqueeze(-1)
    matrix = units * gram(4 * size, size, dtype) * units.mT
    factor = cholesky_factor("sigma", matrix)
    assert (factor.triu(1) == 0).all() and (factor.diagonal(dim1=-2, dim2=-1) > 0).all()
    error = ((factor @ factor.mT - matrix) / units / units.mT).abs().amax()
    assert error < 8 * size * torch.finfo(dtype).eps * 4 * size


def test_checks_pass_through_vmap_and_compilation() -> None:
    def build(loc: Tensor, sigma: Tensor) -> Tensor:
        factor = cholesky_factor("sigma", sigma)
        require_scale_tril("factor", factor)
        return broadcast_location_scale(loc=loc, scale_tril=factor)[1]

    loc, sigma = torch.zeros(4, 3), gram(9, 3, torch.float32)[:4]
    expected = build(loc, sigma)
    torch.testing.assert_close(torch.func.vmap(build)(loc, sigma), expected)
    compiled = torch.compile(build, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(loc, sigma), expected)
    with pytest.raises(ValueError, match="sigma must be positive definite"):
        torch.func.vmap(build)(loc, -sigma)


def test_tensors_with_a_pending_negation_are_not_plain() -> None:
    x = torch.complex(torch.ones(2), torch.ones(2)).conj().imag
    assert is_plain_cpu_tensor(torch.ones(2)) and not is_plain_cpu_tensor(torch.ones(2), x)
