"""Masks of attention layers: each query is answered as if it alone had been asked."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from battery import DOUBLE
from layers import SCORES, data, every_score, make_layer, spread
from refusals import refused
from torch import Tensor, nn

from sparsefam.attention import _per_query
from sparsefam.bases import GaussianRBF

PADDING = torch.arange(7).expand(2, 7) >= torch.tensor([[5], [7]])
make = partial(make_layer, alpha=1.5)


def learned() -> GaussianRBF:
    """Functions whose centers are learned."""
    return GaussianRBF(nn.Parameter(torch.linspace(0, 1, 5)), 0.3)


def asked_alone(layer: Any, inputs: Any, mask: Tensor) -> Tensor:
    """Contexts (B, Lq, channels), one at a time: the other positions are cut away."""
    query, key, value, positions = inputs
    contexts, where = torch.empty_like(query), spread(layer, query)
    for b in range(len(query)):
        for q in range(query.shape[1]):
            free = ~mask[b, q]
            parts = (query[b, [q]], key[b, free], value[b, free], positions[b, free])
            own = {name: x[[q]] for name, x in where.items()}
            contexts[b, q] = layer(*(x.unsqueeze(0) for x in parts), **own)[0]
    return contexts


@pytest.mark.parametrize("by_head", [False, True])
@pytest.mark.parametrize(
    ("score", "combine", "ndim"),
    [*((score, True, 1) for score in SCORES), ("quadratic", False, 2), ("moments", True, 2)],
)
def test_what_is_masked_might_as_well_not_be_there(
    score: str, combine: bool, ndim: int, by_head: bool
) -> None:
    layer, inputs = make(score, combine=combine, ndim=ndim), data(7, ndim)
    mask = torch.rand(*((4,) if by_head else ()), 3, 7) < 0.4
    mask[..., 0] = False
    junk = [inputs[0], *(x.clone() for x in inputs[1:])]
    for x in junk[1:]:
        x[PADDING] = math.nan
    found = layer(*junk, key_padding_mask=PADDING, attn_mask=mask)[0]
    by_heads = mask.unflatten(0, (2, 2)) if by_head else mask.expand(2, 2, 3, 7)
    whole = by_heads | PADDING[:, None, None]
    # A head is what is left where the others' values, and so their contexts, are zero.
    parts = []
    for head in range(2):
        with torch.no_grad():
            alone = make(score, combine=combine, ndim=ndim)
            alone.load_state_dict(layer.state_dict())
            alone.v_proj.weight[2 * (1 - head) : 4 - 2 * head] = 0
            alone.out_proj.bias.zero_()
        parts.append(asked_alone(alone, inputs, whole[:, head]))
    assert torch.allclose(found, sum(parts) + layer.out_proj.bias, rtol=1e-9, atol=1e-11)
    floats = torch.zeros_like(mask, dtype=DOUBLE).masked_fill(mask, -math.inf)
    assert torch.equal(layer(*junk, key_padding_mask=PADDING, attn_mask=floats)[0], found)


@every_score
def test_nothing_leaks_through_a_causal_mask(score: str) -> None:
    layer, (query, key, value, _) = make(score, alpha=1.0, combine=True), data(7)
    positions = torch.linspace(0, 1, 7, dtype=DOUBLE)
    mask = positions > positions[:3, None]
    inputs = [x.requires_grad_() for x in (key, value, positions)]
    for q in range(3):
        context = layer(query, *inputs, attn_mask=mask)[0]
        of_key, of_value, of_t = torch.autograd.grad(context[:, q].square().sum(), inputs)
        for slope in (of_key[0], of_value[0], of_t.unsqueeze(-1)):
            assert not slope[q + 1 :].any()
            # The key of a single position has nothing to compete with.
            assert slope[: q + 1].any() or q == 0
    with torch.no_grad():
        key[:, 3:], value[:, 3:] = math.nan, math.inf
    assert torch.equal(layer(query, *inputs, attn_mask=mask)[0], context)


@pytest.mark.parametrize("heads", [False, True])
def test_numbers_are_added_to_discrete_scores_as_by_torch(heads: bool) -> None:
    layer, (query, key, value, t) = make("moments", alpha=1.0), data(7)
    twin = nn.MultiheadAttention(4, 2, batch_first=True, dtype=DOUBLE)
    parts = [layer.score_proj.q_proj, layer.score_proj.k_proj, layer.v_proj]
    twin.in_proj_weight = nn.Parameter(torch.cat([part.weight for part in parts]))
    PADDING, mask = torch.randn(2, 7, dtype=DOUBLE), torch.randn(4, 3, 7, dtype=DOUBLE)
    PADDING[0, 5:] = mask[1, 2, :3] = -math.inf
    by_query = mask if heads else mask[0]
    for masks in ((PADDING, None), (None, by_query), (PADDING, by_query)):
        both = dict(zip(("key_padding_mask", "attn_mask"), masks, strict=True))
        weights = twin(query, key, value, average_attn_weights=False, **both)[1]
        mean = torch.einsum("bhql,bl->bhq", weights, t)
        assert torch.allclose(layer(query, key, value, t, **both)[1].mean, mean, rtol=1e-12)


@every_score
@pytest.mark.parametrize("first", [True, False])
def test_a_sequence_without_a_batch_is_a_batch_of_one(score: str, first: bool) -> None:
    layer, inputs = make(score, combine=True, batch_first=first), data(7)
    mask = torch.rand(4, 3, 7) < 0.4
    mask[..., 0] = False
    sequences = inputs[:3] if first else [x.transpose(0, 1) for x in inputs[:3]]
    contexts, densities = layer(*sequences, inputs[3], PADDING, mask)
    contexts = contexts if first else contexts.transpose(0, 1)
    for b in range(2):
        masks = PADDING[b], mask[2 * b : 2 * b + 2]
        context, density = layer(*(x[b] for x in inputs), *masks)
        assert torch.allclose(context, contexts[b], rtol=1e-9)
        assert density.batch_shape == (2, 3)
        t = torch.rand(5, 1, 1, dtype=DOUBLE)
        assert torch.allclose(density.prob(t), densities.prob(t.unsqueeze(1))[:, b], rtol=1e-9)
        assert torch.allclose(density.mean, densities.mean[b], rtol=1e-9)


@pytest.mark.parametrize(("masks", "grids"), [(None, 2), ((3, 7), 1), ((4, 3, 7), 2)], ids=str)
def test_blocks_change_neither_contexts_nor_gradients(
    masks: tuple[int, ...] | None, grids: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A basis is asked for so many positions at a time, whether that is said or found."""
    mask = None if masks is None else (torch.rand(masks) < 0.4).index_fill(-1, torch.tensor(0), 0)
    query, key, value, t = data(7)
    inputs = [x.requires_grad_() for x in (value, t[:grids].clone())]
    state = make(basis=learned()).state_dict()

    def run(size: int | None) -> tuple[list[Tensor], set[int]]:
        basis, asked = learned(), set()
        layer = make(basis=basis)
        layer.load_state_dict(state)
        layer.regression.chunk_size, layer.regression._has_fitted = size, True
        layer._has_attended = True
        basis.register_forward_pre_hook(lambda _, args: asked.add(args[0].shape[1]))
        context = layer(query, key, *inputs, attn_mask=mask)[0]
        wanted = [*inputs, basis.centers]
        return [context, *torch.autograd.grad(context.square().sum(), wanted)], asked

    whole, asked = run(None)
    assert asked == {7}
    found = [(run(2), {1, 2})]
    if mask is not None:
        monkeypatch.setattr(_per_query, "_PRODUCTS", 0)
        monkeypatch.setattr(_per_query, "_LEAST_POSITIONS", 2)
        found.append((run(None), {1, 2}))
    for (parts, asked), due in found:
        assert asked == due
        torch.testing.assert_close(parts, whole, rtol=1e-9, atol=1e-12)


test_bad_masks_are_named = refused(
    [
        ("moments", torch.zeros(3, 8), r"attn_mask must .*\(3, 7\) or \(4, 3, 7\).*, got \(3, 8\)"),
        ("moments", torch.ones(3, 7).bool(), "attn_mask and .* every query .*got 0 at index"),
        ("quadratic", torch.full((3, 7), -math.inf), "attn_mask and .* leave every query"),
        ("moments", torch.full((3, 7), math.nan), "attn_mask and .* must be numbers.*got nan"),
        ("quadratic", torch.ones(3, 7), "attn_mask and .* must be boolean, or 0 and -inf.*got 1.0"),
    ],
    of=lambda score, mask: make(score, validate_args=True)(*data(7), attn_mask=mask),
)
