"""Continuous attention's core, discrete attention's, and what each of them costs."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import sparsefam as sf
from sparsefam.attention import RidgeRegression
from sparsefam.attention.context import contexts
from sparsefam.bases import GaussianRBF

from .memory import allocated_megabytes

__all__ = ["Cost", "Method", "cost", "discrete", "narrow", "wide"]

HEADS, CHANNELS, FUNCTIONS = 8, 64, 128
# Of 128 rows, so that a block in float64 is as small as a block of queries.
_ROWS = 128
# What libraries need when first called is over after so short a sequence.
_FIRST = 256
# Outputs and, if asked for, gradients in the inputs.
Call = Callable[[bool], tuple[Tensor, ...]]
Method = Callable[[int], Call]


@dataclass(frozen=True)
class Cost:
    """Of one call: seconds, and megabytes at the peak besides inputs and outputs.

    Attributes:
        length: Queries and values.
        forward: Seconds, or None if too long to wait for.
        training: Seconds of forward and backward, or None.
        megabytes: Of forward and backward, or of forward without gradients where there is no other.
    """

    length: int
    forward: float
    training: float | None
    megabytes: float


def wide(length: int) -> Call:
    """Densities as wide as a layer's are at first: scores of sigma 0.1, give or take a third."""
    return _continuous(length, 0.1)


def narrow(length: int) -> Call:
    """Densities as narrow as the layer allows: scores of sigma 0.001, give or take a third."""
    return _continuous(length, 1e-3)


def _continuous(length: int, sigma: float) -> Call:
    draw = torch.Generator().manual_seed(0)
    values = torch.randn(1, length, HEADS * CHANNELS, generator=draw)
    positions = torch.rand(1, length, generator=draw).sort(-1).values
    loc = torch.rand(1, HEADS, length, generator=draw)
    sigmas = sigma * torch.exp(0.3 * torch.randn(1, HEADS, length, generator=draw))
    upstream = torch.randn(1, length, HEADS, CHANNELS, generator=draw)
    basis = GaussianRBF.grid(FUNCTIONS, 1.5 / FUNCTIONS)
    regression = RidgeRegression(basis, 1e-2, chunk_size=_ROWS)
    inputs = values, loc, sigmas

    def call(training: bool) -> tuple[Tensor, ...]:
        for x in inputs:
            x.requires_grad_(training)
        function = regression.fit(positions, values)
        density = sf.TruncatedParabola.from_sigma(loc, sigmas)
        by_head = function.coefficients.unflatten(-1, (HEADS, CHANNELS))
        # The layer hands the density back as well: its half-widths are an output.
        found = contexts(density, function.basis, by_head), density.scale
        return _with_gradients(found, inputs, upstream if training else None)

    return call


def discrete(length: int) -> Call:
    """`scaled_dot_product_attention`."""
    draw = torch.Generator().manual_seed(0)
    shape = (1, length, HEADS, CHANNELS)
    parts = [torch.randn(shape, generator=draw).transpose(1, 2) for _ in range(4)]
    *inputs, upstream = parts

    def call(training: bool) -> tuple[Tensor, ...]:
        for x in inputs:
            x.requires_grad_(training)
        query, key, value = inputs
        found = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        return _with_gradients((found,), inputs, upstream if training else None)

    return call


def _with_gradients(
    found: Sequence[Tensor], inputs: Sequence[Tensor], upstream: Tensor | None
) -> tuple[Tensor, ...]:
    slopes = () if upstream is None else torch.autograd.grad(found[0], inputs, upstream)
    return *(x.detach() for x in found), *slopes


def cost(method: Method, length: int, training: bool, rounds: int) -> Cost:
    """Measures a method, best of some rounds.

    Args:
        method: What to measure.
        length: Queries and values.
        training: Whether backward, too.
        rounds: How often.
    """
    method(_FIRST)(training)
    call = method(length)
    forward = min(_seconds(call, False) for _ in range(rounds))
    both = min(_seconds(call, True) for _ in range(rounds)) if training else None
    return Cost(length, forward, both, allocated_megabytes(lambda: call(training)))


def _seconds(call: Call, training: bool) -> float:
    start = time.perf_counter()
    call(training)
    return time.perf_counter() - start
