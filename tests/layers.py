"""What the tests of attention layers have in common: inputs, and what padding may not change."""

import math

import torch
from battery import DOUBLE
from torch import Tensor, nn

__all__ = ["data", "require_that_padding_is_ignored"]

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]


def data(length: int = 9, ndim: int | None = None, dtype: torch.dtype = DOUBLE) -> Inputs:
    """Two examples: queries (2, 3, 4), keys and values (2, length, 4), positions."""
    query = torch.randn(2, 3, 4, dtype=dtype)
    key, value = torch.randn(2, 2, length, 4, dtype=dtype)
    tail = () if ndim is None else (ndim,)
    return query, key, value, torch.rand(2, length, *tail, dtype=dtype)


def require_that_padding_is_ignored(layer: nn.Module, inputs: Inputs) -> None:
    """Contexts and all gradients are those without it, whatever stands in the padding."""
    query, *sequence = inputs
    parameters = [x for x in layer.parameters() if x.requires_grad]

    def run(*parts: Tensor, padding: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
        leaves = [x.detach().requires_grad_() for x in parts]
        context, _ = layer(*leaves, key_padding_mask=padding)
        wanted = [*leaves, *parameters]
        grads = torch.autograd.grad(context.square().sum(), wanted, materialize_grads=True)
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
