"""Attention layers under autocast, in half precision, and exported."""

import copy
import io
import math
from typing import Any

import pytest
import torch
from layers import data
from torch import Tensor, nn
from torch.distributions import Distribution

from sparsefam.attention import ContinuousAttention, LearnedAlpha
from sparsefam.bases import GaussianRBF

SINGLE = torch.float32
SCORES = ["quadratic", "moments", "kernel", "mixture"]
# Units of rounding of each: inputs, values and contexts are rounded, and nothing in between.
UNITS = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}

every_score = pytest.mark.parametrize("score", SCORES)
every_half = pytest.mark.parametrize("half", UNITS, ids=str)


def make(score: str, alpha: Any = 2.0, **options: Any) -> ContinuousAttention:
    basis = GaussianRBF.grid(10, 0.15)
    return ContinuousAttention(4, 2, basis, alpha, score, batch_first=True, **options)


@every_score
@every_half
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_autocast_rounds_only_the_projections(score: str, half: torch.dtype, alpha: float) -> None:
    layer, inputs = make(score, alpha), data(dtype=SINGLE)
    expected, exact = layer(*inputs)
    with torch.autocast("cpu", dtype=half):
        context, density = layer(*inputs)
    assert context.dtype == half and density.mean.dtype == SINGLE
    if score != "moments":
        assert torch.equal(density.mean, exact.mean)
        assert torch.equal(density.variance, exact.variance)
    assert (context - expected).norm() < 4 * UNITS[half] * expected.norm()
    weights = list(layer.parameters())
    weights = [x for x in weights if x.requires_grad]
    found, due = (
        torch.autograd.grad(x.float().square().sum(), weights, materialize_grads=True)
        for x in (context, expected)
    )
    found, due = (torch.cat([x.flatten() for x in grads]) for grads in (found, due))
    assert (found - due).norm() < 8 * UNITS[half] * due.norm()


@every_score
@every_half
def test_layers_in_half_precision_are_those_of_rounded_weights(
    score: str, half: torch.dtype
) -> None:
    layer, inputs = make(score).to(half), [x.to(half) for x in data(dtype=SINGLE)]
    context, density = layer(*inputs)
    assert context.dtype == half and density.mean.dtype == SINGLE
    exact = copy.deepcopy(layer).float()
    expected = exact(*(x.float() for x in inputs))[0]
    assert (context - expected).norm() < 8 * UNITS[half] * expected.norm()


@every_half
def test_kernel_scores_of_the_plane_in_half_precision(half: torch.dtype) -> None:
    basis, x = GaussianRBF.grid(9, 0.3, ndim=2), torch.randn(2, 5, 4, dtype=half)
    options: dict[str, Any] = {"inducing_points": 4, "ndim": 2, "batch_first": True}
    layer = ContinuousAttention(4, 2, basis, 2.0, "kernel", **options).to(half)
    context, _ = layer(x, x, x, torch.rand(2, 5, 2))
    exact = copy.deepcopy(layer).float()
    assert layer.score_proj._panels.nodes.shape == exact.score_proj._panels.nodes.shape
    assert context.dtype == half and context.isfinite().all()


class Contexts(nn.Module):
    """What can be exported: tensors, not densities."""

    def __init__(self, layer: ContinuousAttention) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Tensor) -> Tensor:
        context: Tensor = self.layer(*inputs)[0]
        return context


# Packed weights that are no contiguous piece of memory are copied, on any device.
@pytest.mark.filterwarnings("ignore:No complete tensor found in the group")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("score", "alpha", "penalty", "masks"),
    [
        *((score, 2.0, 0.01, 0) for score in SCORES),
        ("quadratic", LearnedAlpha(2, [1.3, 1.8]), "gcv", 0),
        ("quadratic", 1.5, 0.01, 1),
        ("moments", 1.0, 0.01, 2),
    ],
    ids=[*SCORES, "learned", "padding", "mask"],
)
def test_exported_layers_say_the_same(
    score: str, alpha: Any, penalty: Any, masks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Non-strict export traces torch's own validation of distributions, which branches on values.
    monkeypatch.setattr(Distribution, "_validate_args", False)
    layer = make(score, alpha, combine=True, penalty=penalty, validate_args=True)

    def inputs(hidden: int) -> tuple[Tensor, ...]:
        padding = (torch.arange(9) >= hidden).expand(2, 9)
        mask = torch.zeros(3, 9).masked_fill(torch.arange(9) < 9 - hidden, -math.inf)
        return (*data(dtype=SINGLE), padding, mask)[: 4 + masks]

    program = torch.export.export(Contexts(layer), inputs(7))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    other = inputs(6)
    expected = layer(*other)[0]
    found = torch.export.load(file).module()(*other)
    assert (found - expected).norm() < 1e-5 * expected.norm()
