"""The battery: what is asked of densities of vectors alone."""

import pytest
import torch
from battery import DOUBLE, Case, interior
from cases import SCALARS, every_multivariate_case
from functions import function
from torch.autograd import gradcheck

from sparsefam.bases import Fourier


# Marginals
@every_multivariate_case
def test_marginals_have_the_characteristic_function(case: Case) -> None:
    p, dim = case(), case.event_shape[0]
    for kept in {(0,), (dim - 1,), tuple(range(dim)), (dim - 1, 0)[:dim]}:
        q = p.marginal(kept)
        assert (q.batch_shape, q.event_shape) == (p.batch_shape, (len(kept),))
        waves = torch.cos(torch.arange(3.0 * len(kept), dtype=DOUBLE)).reshape(3, len(kept)) * 2
        padded = torch.zeros(3, dim, dtype=DOUBLE)
        padded[:, kept] = waves
        found, expected = q.expect(Fourier(waves)), p.expect(Fourier(padded))
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


# Factors whose eigenvectors are not determined, or nearly not
@pytest.mark.parametrize("gap", [0.0, 1e-9])
@pytest.mark.parametrize("dim", [2, 3, 8])
@pytest.mark.parametrize("name", ["GaussianRBF", "GaussianRBF-full", "Fourier", "log_prob"])
def test_isotropic_factors_have_derivatives(name: str, dim: int, gap: float) -> None:
    (case,) = (x for x in SCALARS if x.name == f"MultivariateBetaGaussian-{dim}d-learned")
    leaves = {k: v.detach().clone() for k, v in case.leaves().items()}
    tilt = gap * torch.linspace(-1, 1, dim, dtype=DOUBLE).diag().cumsum(0).tril()
    leaves["scale_tril"] = 0.5 * torch.eye(dim, dtype=DOUBLE) + tilt
    x = interior(case.of(**leaves), 3)[:2]
    inputs = tuple(v.requires_grad_() for v in leaves.values())
    evaluate = function(case, name if name == "log_prob" else f"expect-{name}")
    assert gradcheck(lambda *v: evaluate(*v, x), inputs, fast_mode=dim > 3)
