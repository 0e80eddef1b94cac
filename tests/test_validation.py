"""Arguments: broadcasting, refusals and singular matrices."""

import subprocess
import sys

import pytest
import torch
from battery import one_graph
from cases import every_dtype
from torch import Tensor

import sparsefam as sf
from sparsefam._numerics.validation import (
    broadcast_location_scale,
    cholesky_factor,
    require_scale_tril,
)

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
assert "sympy" not in sys.modules
"""


def test_first_calls_import_no_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", _FIRST_CALLS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


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


def test_checks_pass_through_vmap_and_compilation() -> None:
    def build(loc: Tensor, sigma: Tensor) -> Tensor:
        factor = cholesky_factor("sigma", sigma)
        require_scale_tril("factor", factor)
        return broadcast_location_scale(loc=loc, scale_tril=factor)[1]

    loc, sigma = torch.zeros(4, 3), gram(9, 3, torch.float32)[:4]
    expected = build(loc, sigma)
    torch.testing.assert_close(torch.func.vmap(build)(loc, sigma), expected)
    torch.testing.assert_close(one_graph(build)(loc, sigma), expected)
    with pytest.raises(ValueError, match="sigma must be positive definite"):
        torch.func.vmap(build)(loc, -sigma)


def test_messages_show_the_entries_that_break_a_rule() -> None:
    mean = torch.linspace(0.0, 1.0, 101)
    with pytest.raises(ValueError) as refusal:
        sf.ScaledBeta(0.0, 1.0, mean, 2.0)
    # The ends are of all densities, as many as the means.
    shown = "(tensor([0., 1.]), tensor([0., 0.]), tensor([1., 1.]))"
    assert str(refusal.value) == f"mean must be strictly between low and high, got {shown}"
