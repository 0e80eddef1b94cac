"""A sequence over several processes: the fit of one, with its gradients."""

import math
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from sparsefam.attention import (
    ContractingMemory,
    ForgettingMemory,
    RidgeRegression,
    ValueFunction,
)
from sparsefam.bases import GaussianRBF

RANKS = 4
# Shards of 13, none, 20 and 17.
CUTS = (0, 13, 13, 33, 50)


class Outcome(NamedTuple):
    """Coefficients and penalties, and gradients in positions, values and centers."""

    coefficients: Tensor
    penalty: Tensor
    grads: list[Tensor]


def observations(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Positions, values and a mask, under which the last shard of one example is empty."""
    generator = torch.Generator().manual_seed(0)
    t = torch.rand(2, 50, generator=generator, dtype=torch.float64)
    values = torch.sin(9 * t).unsqueeze(-1) + 0.3 * torch.randn(
        2, 50, 3, generator=generator, dtype=torch.float64
    )
    mask = torch.rand(2, 50, generator=generator) < 0.7
    mask[0, CUTS[3] :] = False
    return t.to(dtype), values.to(dtype), mask


def loss(function: ValueFunction) -> Tensor:
    """Read at places between the ends."""
    at = torch.linspace(0.1, 0.9, 7, dtype=function.coefficients.dtype).expand(2, -1)
    return function(at).square().sum()


def fitted(
    kind: str, dtype: torch.dtype, part: slice, group: object = None, ranks: int = 1
) -> Outcome:
    """The fit of a part of the observations, and gradients of the share of one rank of the loss."""
    t, values, mask = (x[:, part] for x in observations(dtype))
    centers = nn.Parameter(torch.linspace(0, 1, 8, dtype=dtype))
    shared = kind == "shared"
    t = (t[0] if shared else t).clone().requires_grad_()
    values = values.clone().requires_grad_()
    penalty = "gcv" if kind == "gcv" else 0.1
    regression = RidgeRegression(GaussianRBF(centers, 0.1), penalty, group=group)
    function = regression.fit(t, values, None if shared else mask)
    grads = torch.autograd.grad(loss(function) / ranks, (t, values, centers))
    chosen = torch.as_tensor(function.penalty).detach()
    return Outcome(function.coefficients.detach(), chosen, list(grads))


def refusal(rank: int) -> str:
    """What a rank is told of a value that is not finite on the third."""
    t, values, mask = (x[:, CUTS[rank] : CUTS[rank + 1]] for x in observations(torch.float64))
    if rank == 2:
        values = values.clone()
        values[1, 4, 2] = math.nan
        mask = torch.ones_like(mask)
    group = dist.group.WORLD
    with pytest.raises(ValueError) as error:
        RidgeRegression(GaussianRBF.grid(8, 0.1).double(), group=group).fit(t, values, mask)
    return str(error.value)


def require_that_it_maps() -> None:
    """One reduction for all that a transform maps over."""
    t, values, _ = observations(torch.float64)
    regression = RidgeRegression(GaussianRBF.grid(8, 0.1).double(), group=dist.group.WORLD)
    several = torch.stack([values, values.square()])
    mapped = torch.func.vmap(lambda h: regression.fit(t, h).coefficients)(several)
    for found, h in zip(mapped, several, strict=True):
        assert error(found, regression.fit(t, h).coefficients) < 1e-11


def require_that_streams_are_shared(rank: int) -> None:
    """Memories that every rank feeds with its part of each chunk."""
    t, values, _ = observations(torch.float64)
    basis = GaussianRBF.grid(8, 0.1).double()
    for kind in (ForgettingMemory, ContractingMemory):
        ours, theirs = (kind(RidgeRegression(basis, group=g)) for g in (dist.group.WORLD, None))
        state, exact = None, None
        for chunk in (slice(0, 20), slice(20, 50)):
            mine = slice(chunk.start + rank, chunk.stop, dist.get_world_size())
            found, state = ours(t[:, mine], values[:, mine], state)
            whole, exact = theirs(t[:, chunk], values[:, chunk], exact)
        assert error(found.coefficients, whole.coefficients) < 1e-11


CASES = [(kind, dtype) for kind in ("fixed", "shared", "gcv") for dtype in (torch.float64,)]
CASES.append(("fixed", torch.float32))


def work(rank: int) -> tuple[list[Outcome], str]:
    with pytest.raises(ValueError, match="group must be a mesh of one dimension, got 2"):
        RidgeRegression(GaussianRBF.grid(8, 0.1), group=init_device_mesh("cpu", (2, 2)))
    require_that_it_maps()
    require_that_streams_are_shared(rank)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    groups = (dist.group.WORLD, mesh)
    part = slice(CUTS[rank], CUTS[rank + 1])
    found = [
        fitted(*case, part, groups[i % 2], dist.get_world_size()) for i, case in enumerate(CASES)
    ]
    return found, refusal(rank)


def error(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


def test_shards_are_fitted_as_one_sequence() -> None:
    results = on_ranks(RANKS, work)
    for i, case in enumerate(CASES):
        limit = 1e-6 if case[1] == torch.float32 else 1e-11
        whole = fitted(*case, slice(None))
        shards = [outcomes[i] for outcomes, _ in results]
        for shard in shards:
            assert error(shard.coefficients, whole.coefficients) < limit
            assert error(shard.penalty, whole.penalty) < limit
        of_t, of_values, of_centers = zip(*(shard.grads for shard in shards), strict=True)
        exact = whole.grads
        assert error(torch.cat(of_t, -1), exact[0]) < limit
        assert error(torch.cat(of_values, 1), exact[1]) < limit
        # Of what every rank has a copy, the gradients add up, as DDP knows.
        assert error(torch.stack(of_centers).sum(0), exact[2]) < limit
    rule = "values must be finite where they take part, got "
    told = [message for _, message in results]
    assert told[2] == f"{rule}nan at index [1, 4, 2]"
    assert {*told[:2], told[3]} == {f"{rule}others on another rank"}
