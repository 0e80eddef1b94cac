"""Expectations under activation checkpoints, where backward may read what is kept only once."""

from collections.abc import Callable

import pytest
import torch
from cases_kernel import bell
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import sparsefam as sf
from sparsefam.bases import GaussianRBF

PLANE = GaussianRBF.grid(16, 0.2, ndim=2)
LINE = GaussianRBF.grid(8, 0.1)
POINTS = torch.linspace(0, 1, 5)


def on_line(x: Tensor) -> Tensor:
    return sf.TruncatedParabola(x[..., 0], 0.3).expect(LINE)


def in_plane(x: Tensor) -> Tensor:
    return sf.TruncatedParaboloid(x, 0.3 * torch.eye(2).to(x)).expect(PLANE)


def by_kernel(x: Tensor) -> Tensor:
    base = torch.distributions.Uniform(x.new_zeros(()), x.new_ones(()))
    weights = torch.cat([x, 1 + x], -1)
    points = POINTS[:4].to(x)
    p = sf.KernelDeformedExp(weights, points, bell(0.1), base, x.new_tensor(1.5))
    return p.expect(LINE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("expect", [on_line, in_plane, by_kernel])
def test_gradients_are_those_without_a_checkpoint(
    expect: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    x = torch.tensor([[0.4, 0.5], [0.6, 0.3]], dtype=dtype, requires_grad=True)
    due = torch.autograd.grad(expect(x).square().sum(), x)[0]
    found = checkpoint(expect, x, use_reentrant=False)
    assert isinstance(found, Tensor)
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), x)[0], due)
