"""Integrals between cuts: derivatives in cuts that move, where values cannot be read."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from battery import one_graph
from torch import Tensor

from sparsefam.numerics.quadrature import line_integral

WAYS: dict[str, Callable[[Any], Any]] = {
    "vmap": lambda f: lambda x: torch.func.vmap(torch.func.grad(f))(x[None])[0],
    "jacfwd": torch.func.jacfwd,
    "compile": lambda f: lambda x: torch.autograd.grad(one_graph(f)(x.requires_grad_()), x)[0],
}


@pytest.mark.parametrize("way", WAYS)
def test_ends_that_move_have_their_derivative(way: str) -> None:
    """Of the integral of exp(t) where the function is zero at the end itself, as some densities."""

    def integral(ends: Tensor) -> Tensor:
        low, middle, high = ends.unbind()
        cuts = torch.stack([low, middle, high, high, low.new_tensor(math.nan)])
        return line_integral(lambda t: torch.where(t < high, t.exp(), 0.0), cuts)

    ends = torch.tensor([-0.25, 0.5, 1.25]).double()
    expected = ends.exp() * torch.tensor([-1.0, 0.0, 1.0])
    found = WAYS[way](integral)(ends)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
