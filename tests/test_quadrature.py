"""Integrals between cuts: derivatives in cuts that move, where values cannot be read."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from sparsefam.numerics.quadrature import line_integral

DOUBLE = torch.float64


def compiled_gradient(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def gradient(x: Tensor) -> Tensor:
        at = x.clone().requires_grad_()
        torch._dynamo.reset()
        whole = torch.compile(function, fullgraph=True, backend="aot_eager")
        return torch.autograd.grad(whole(at), at)[0]

    return gradient


WAYS: dict[str, Callable[[Any], Any]] = {
    "eager": torch.func.grad,
    "vmap": lambda f: lambda x: torch.func.vmap(torch.func.grad(f))(x[None])[0],
    "jacfwd": torch.func.jacfwd,
    "compile": compiled_gradient,
}


@pytest.mark.parametrize("way", WAYS)
def test_ends_that_move_have_their_derivative(way: str) -> None:
    """Of the integral of exp(t) where the function is zero at the end itself, as some densities."""

    def integral(ends: Tensor) -> Tensor:
        low, middle, high = ends.unbind()
        cuts = torch.stack([low, middle, high, high, low.new_tensor(math.nan)])
        return line_integral(lambda t: torch.where(t < high, t.exp(), 0.0), cuts)

    ends = torch.tensor([-0.25, 0.5, 1.25], dtype=DOUBLE)
    expected = torch.stack([-ends[0].exp(), torch.zeros((), dtype=DOUBLE), ends[2].exp()])
    found = WAYS[way](integral)(ends)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
