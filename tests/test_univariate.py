"""Densities of numbers: quantiles, parameters of g, export, memory, dtypes and arguments."""

import math
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sparsefam as sf
from sparsefam.bases import BSpline, Fourier, GaussianRBF

DOUBLE = torch.float64


@pytest.mark.parametrize("alpha", [math.inf, torch.tensor(math.inf), 1e6, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_quantiles_of_tiny_probabilities_are_numbers(alpha: Any, dtype: torch.dtype) -> None:
    q = torch.tensor([0.0, 1e-30, 1e-17, 1e-8, 1e-7, 0.5, 1.0], dtype=dtype)
    found = sf.BetaGaussian(torch.tensor(0.0, dtype=dtype), 1.0, alpha).icdf(q)
    assert bool((found.abs() <= 1).all())
    assert found[5] == 0
    torch.testing.assert_close(found[[0, 1, -1]], torch.tensor([-1.0, -1.0, 1.0], dtype=dtype))


def test_quantiles_have_gradients_in_parameters_of_g() -> None:
    g, q = torch.tensor(1.1, dtype=DOUBLE, requires_grad=True), torch.tensor([0.13, 0.5, 0.9, 1.0])

    def quantiles(g: Tensor) -> Tensor:
        return sf.LocationScale(0.2, 1.3, lambda v: torch.cosh(g * v)).icdf(q.double())

    assert torch.autograd.gradcheck(quantiles, g)


class _LogProb(torch.nn.Module):
    def forward(self, loc: Tensor, scale: Tensor) -> Tensor:
        return sf.LocationScale(loc, scale, torch.cosh, validate_args=False).log_prob(loc)


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_location_scale_family_has_numbers(strict: bool) -> None:
    inputs = torch.tensor([0.2, 0.5]), torch.tensor([0.9, 0.3])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        program = torch.export.export(_LogProb(), inputs, strict=strict).module()
    assert torch.equal(program(*inputs), _LogProb()(*inputs))


MAKERS: list[Callable[..., Any]] = [
    lambda loc, scale: sf.BetaLaplace(loc, scale, 1.7),
    lambda loc, scale: sf.LocationScale(loc, scale, torch.cosh),
    sf.Laplace,
]
BASES = [
    GaussianRBF.grid(3, 0.2),
    BSpline([0.0, 0.2, 0.5, 0.9, 1.0], 1),
    Fourier([1.0, 3.0]),
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("psi", BASES, ids=lambda psi: type(psi).__name__)
def test_blocks_do_not_change_expectations(
    make: Any, psi: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loc = torch.linspace(-0.5, 1.5, 6, dtype=DOUBLE).reshape(2, 3).requires_grad_()
    scale = torch.tensor([0.1, 0.5, 2.0], dtype=DOUBLE, requires_grad=True)
    psi = psi.double()

    def expect(loc: Tensor, scale: Tensor) -> Tensor:
        found: Tensor = make(loc, scale).expect(psi)
        return found

    expected = expect(loc, scale)
    slopes = torch.autograd.grad(expected.square().sum(), (loc, scale))
    monkeypatch.setattr("sparsefam.distributions.base._AT_ONCE", 4096)
    found = expect(loc, scale)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), (loc, scale)), slopes)
    with torch.no_grad():
        torch.testing.assert_close(expect(loc, scale), expected)
    covariance = make(loc, scale).generalized_covariance(psi, psi, 1.0)
    monkeypatch.undo()
    torch.testing.assert_close(make(loc, scale).generalized_covariance(psi, psi, 1.0), covariance)


_MEMORY = """
import resource, torch, sparsefam as sf
psi, count = sf.bases.GaussianRBF.grid(16, 0.1), 1 << 14
loc = torch.rand(count, requires_grad=True)
p = sf.BetaLaplace(loc, torch.rand(count) + 0.1, 1.7)
sf.BetaLaplace(0.0, 1.0, 1.7).expect(psi)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
p.expect(psi).sum().backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_of_quadrature_is_bounded() -> None:
    done = subprocess.run([sys.executable, "-c", _MEMORY], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # Without blocks: 650 MB.
    assert int(done.stdout) < 300_000


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused_by_name(dtype: torch.dtype) -> None:
    half, vector = torch.tensor(0.5, dtype=dtype), torch.zeros(2, dtype=dtype)
    for make in (
        lambda: sf.Normal(half, 1.0),
        lambda: sf.BetaGaussian(0.0, half, 1.5),
        lambda: sf.TruncatedParabola.from_sigma(half, 1.0),
        lambda: sf.TruncatedParaboloid(vector, torch.eye(2, dtype=dtype)),
        lambda: sf.scores.Quadratic(half, 1.0),
    ):
        with pytest.raises(ValueError, match=f"loc.* must be of dtype float32 .* got {dtype}"):
            make()


P = sf.TruncatedParabola(0.0, 1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sf.Normal(True, 1.0), "loc must be a number"),
        (lambda: sf.Normal(0.0, torch.tensor(True)), "scale must be a number"),
        (lambda: P.expect(None), "psi must be a basis or a callable, got None"),
        (lambda: P.expect(3), "psi must be a basis or a callable, got 3"),
        (lambda: P.expect(lambda t: 1.0), "psi must map .* to a tensor of values, got 1.0"),
        (lambda: P.expect(lambda t: None), "psi must map .* to a tensor of values, got None"),
        (lambda: P.generalized_covariance(torch.cos, BASES[0]), "phi must be a basis"),
        (lambda: P.escort("a"), "beta must be a finite number or a tensor, got 'a'"),
        (lambda: P.escort(math.nan), "beta must be a finite number"),
        (lambda: P.escort(math.inf), "beta must be a finite number"),
        (lambda: P.escort(torch.tensor(math.nan)), "beta must be finite"),
        (lambda: sf.Normal(0.0, 1.0).escort("a"), "beta must be a finite number"),
        (lambda: sf.LocationScale(0.0, 1.0, torch.cosh).escort("a"), "beta must be a finite"),
        (lambda: P.quadrature("a"), "order must be an integer at least 1, got 'a'"),
        (lambda: P.quadrature(1.5), "order must be an integer at least 1, got 1.5"),
        (lambda: sf.LocationScale(0.0, 1.0, None), "g must be a callable on tensors"),
        (lambda: sf.LocationScale(0.0, 1.0, lambda x: 1.0), "g must be a callable on tensors"),
        (lambda: sf.LocationScale(0.0, 1.0, lambda x: x.sum()), "g must be a callable on tensors"),
        (
            lambda: sf.LocationScale(0.0, 1.0, lambda x: np.cosh(x)),
            "g must be a callable on tensors",
        ),
        (lambda: sf.scores.LocationScale(0.0, 1.0, None), "g must be a callable on tensors"),
    ],
)
def test_bad_arguments_are_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("family", [sf.BetaGaussian, sf.BetaLaplace])
def test_a_missing_alpha_is_a_fault_of_the_family_that_was_called(family: Any) -> None:
    with pytest.raises(TypeError, match=rf"{family.__name__}\..*'alpha'"):
        family(0.0, 1.0)
