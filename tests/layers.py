"""Attention layers and their inputs for tests, and what padding may not change."""

import math
from typing import Any

import torch
from battery import DOUBLE
from torch import Tensor, nn

from sparsefam.attention import ContinuousAttention
from sparsefam.bases import GaussianRBF

__all__ = ["KINDS", "SCORES", "data", "make_layer", "require_that_padding_is_ignored"]

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]

SCORES = ["quadratic", "moments", "kernel", "mixture", "content"]
# Scores and whether discrete contexts are added.
KINDS = [*((score, False) for score in SCORES), ("moments", True), ("quadratic", True)]


def make_layer(
    score: str = "quadratic", combine: bool = False, alpha: Any = 2.0, **options: Any
) -> Any:
    """A layer of two heads on four channels, in float64 and batch first."""
    ndim = options.get("ndim", 1)
    low, high = options.get("domain", (0.0, 1.0))
    if "basis" not in options and ndim == 1:
        basis = GaussianRBF.grid(10, 0.15 * (high - low), low=low, high=high)
        options = {"basis": basis} | options
    elif "basis" not in options:
        options = {"basis": GaussianRBF.grid(9, 0.3, ndim=ndim)} | options
    if score == "kernel":
        options = {"inducing_points": 8 if ndim == 1 else 9} | options
    if score == "mixture":
        options = {"components": 3} | options
    options = {"batch_first": True, "dtype": DOUBLE, "penalty": 0.1} | options
    return ContinuousAttention(4, 2, alpha=alpha, score=score, combine=combine, **options)


def data(length: int = 9, ndim: int | None = None, dtype: torch.dtype = DOUBLE) -> Inputs:
    """Two examples: queries (2, 3, 4), keys and values (2, length, 4), positions."""
    query = torch.randn(2, 3, 4, dtype=dtype)
    key, value = torch.randn(2, 2, length, 4, dtype=dtype)
    tail = () if ndim in (None, 1) else (ndim,)
    return query, key, value, torch.rand(2, length, *tail, dtype=dtype)


def require_that_padding_is_ignored(layer: nn.Module, inputs: Inputs) -> None:
    """Require that junk in padding changes neither contexts nor gradients."""
    query, *sequence = inputs
    parameters = [x for x in layer.parameters() if x.requires_grad]

    def run(*parts: Tensor, padding: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
        leaves = [x.detach().requires_grad_() for x in parts]
        context, _ = layer(*leaves, key_padding_mask=padding)
        inputs = [*leaves, *parameters]
        grads = torch.autograd.grad(context.square().sum(), inputs, materialize_grads=True)
        return context, list(grads)

    junk = torch.tensor([math.nan, math.inf, -1e300], dtype=DOUBLE)
    count = sequence[0].shape[1]
    longer = [
        torch.cat([x, junk.reshape(3, *(1,) * (x.dim() - 2)).expand(2, 3, *x.shape[2:])], 1)
        for x in sequence
    ]
    padding = (torch.arange(count + 3) >= count).expand(2, -1)
    long, long_grads = run(query, *longer, padding=padding)
    short, short_grads = run(query, *sequence)
    assert torch.allclose(long, short, rtol=1e-10)
    for i, (found, expected) in enumerate(zip(long_grads, short_grads, strict=True)):
        if i in (1, 2, 3):
            assert not found[:, count:].any()
            found = found[:, :count]
        assert torch.allclose(found, expected, rtol=1e-8, atol=1e-12)
