"""Attention over several processes: the steps that one process takes, and what is refused."""

import math
import warnings
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from sparsefam.attention import (
    ContinuousAttention,
    ContractingMemory,
    ForgettingMemory,
    LearnedAlpha,
    RidgeRegression,
    context,
)
from sparsefam.bases import GaussianRBF

# Shards of one sequence
RANKS = 4
# Shards of 13, none, 20 and 17.
SHARDS = (0, 13, 13, 33, 50)


def observations() -> tuple[Tensor, Tensor, Tensor]:
    """Positions, values and a mask, under which the last shard of one example is empty."""
    torch.manual_seed(0)
    mask = torch.rand(2, 50) < 0.7
    mask[0, SHARDS[3] :] = False
    return torch.rand(2, 50).double(), torch.randn(2, 50, 3).double(), mask


def refusals(rank: int) -> list[str]:
    """What a rank is told of a value, and of a position, that is not finite on the third."""
    told = []
    for name in ("values", "positions"):
        part = slice(*SHARDS[rank : rank + 2])
        t, values, mask = (x[:, part].clone() for x in observations())
        if rank == 2:
            mask[:] = True
            if name == "values":
                values[1, 4, 2] = math.nan
            else:
                t[1, 4] = math.inf  # where Gaussians are zero, so that sums stay finite
        regression = RidgeRegression(GaussianRBF.grid(8, 0.1).double(), group=dist.group.WORLD)
        with pytest.raises(ValueError) as error:
            regression.fit(t, values, mask)
        told.append(str(error.value))
    return told


def require_that_streams_are_shared(rank: int) -> None:
    """Memories that every rank feeds with its part of each chunk."""
    t, values, _ = observations()
    basis = GaussianRBF.grid(8, 0.1).double()
    for kind in (ForgettingMemory, ContractingMemory):
        ours, theirs = (kind(RidgeRegression(basis, group=g)) for g in (dist.group.WORLD, None))
        state, exact = None, None
        for chunk in (slice(0, 20), slice(20, 50)):
            mine = slice(chunk.start + rank, chunk.stop, dist.get_world_size())
            found, state = ours(t[:, mine], values[:, mine], state)
            whole, exact = theirs(t[:, chunk], values[:, chunk], exact)
        change, size = found.coefficients - whole.coefficients, whole.coefficients.norm()
        assert change.norm() < 1e-11 * size


def work(rank: int) -> list[str]:
    with pytest.raises(ValueError, match="group must be a mesh of one dimension, got 2"):
        RidgeRegression(GaussianRBF.grid(8, 0.1), group=init_device_mesh("cpu", (2, 2)))
    require_that_streams_are_shared(rank)
    return refusals(rank)


def test_memories_share_streams_and_ranks_are_told_of_bad_values() -> None:
    results = on_ranks(RANKS, work)
    wrong = ("values", "nan at index [1, 4, 2]"), ("positions", "inf at index [1, 4]")
    for i, (name, where) in enumerate(wrong):
        told = [messages[i] for messages in results]
        assert told[2] == f"{name} must be finite where they take part, got {where}"
        rule = f"statistics.{('cross', 'num_observations')[i]} must be finite, got nan"
        assert all(told[rank].startswith(rule) for rank in (0, 1, 3))


# Models: the steps that one process takes
STEPS, RATE = 2, 0.5
# Of four parts the second is short, and the third is empty.
CUTS = {1: (0, 120), 2: (0, 50, 120), 4: (0, 60, 63, 63, 120)}


class Case(NamedTuple):
    """What is distributed, and how."""

    wrapper: str
    config: str = "plain"
    dtype: torch.dtype = torch.float64

    def grid(self, ranks: int) -> tuple[int, int]:
        """Into how many parts batches and sequences are cut."""
        return {"sequence": (1, ranks), "both": (ranks // 2, 2)}.get(self.wrapper, (ranks, 1))


def settings(config: str) -> dict[str, Any]:
    """Arguments of a layer, all of which draw from one generator."""
    if config == "learned":
        centers, widths = torch.linspace(0, 1, 8), torch.full((8,), 0.15)
        basis = GaussianRBF(nn.Parameter(centers), nn.Parameter(widths))
        return {"basis": basis, "alpha": LearnedAlpha(2), "penalty": "gcv"}
    score = "quadratic" if config == "plain" else config
    return {"basis": GaussianRBF.grid(8, 0.15), "score": score}


class Model(nn.Module):
    """Projects, attends, and reads one number off each context."""

    def __init__(self, case: Case, group: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Linear(3, 8)
        given = settings(case.config) | {"group": group, "batch_first": True}
        self.attention = ContinuousAttention(8, 2, **given)
        if case.config == "learned":
            self.attention.regression.chunk_size = 16
        self.out = nn.Linear(8, 1)
        self.to(case.dtype)

    def forward(self, query: Tensor, x: Tensor, t: Tensor, padding: Tensor) -> Tensor:
        """Squared readings, averaged."""
        h = self.embed(x)
        where: dict[str, Tensor] = {}
        if self.attention.score_proj.reads_positions:
            where["query_positions"] = torch.sigmoid(query[..., 0])
        context, _ = self.attention(self.embed(query), h, h, t, padding, **where)
        found: Tensor = (self.out(context) - 1).square().mean()
        return found


def data(dtype: torch.dtype) -> list[Tensor]:
    """Queries, inputs, positions and padding, of 4 examples."""
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(4, 8, 3, generator=generator, dtype=torch.float64)
    x = torch.randn(4, 120, 3, generator=generator, dtype=torch.float64)
    t = torch.rand(4, 120, generator=generator, dtype=torch.float64)
    padding = torch.rand(4, 120, generator=generator) < 0.2
    return [query.to(dtype), x.to(dtype), t.to(dtype), padding]


def part(case: Case, rank: int, ranks: int) -> list[Tensor]:
    """A rank's share of the examples, and of their sequences and queries."""
    batches, pieces = case.grid(ranks)
    batch, piece = divmod(rank, pieces)
    query, *sequence = (x.chunk(batches)[batch] for x in data(case.dtype))
    rows = slice(*CUTS[pieces][piece : piece + 2])
    return [query.chunk(pieces, 1)[piece], *(x[:, rows] for x in sequence)]


def stepped(model: nn.Module, inputs: list[Tensor]) -> list[float]:
    """Losses of some steps of gradient descent."""
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(*inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Whole parameters, whatever holds them."""
    found = {}
    for name, x in model.named_parameters():
        whole = x.full_tensor() if hasattr(x, "full_tensor") else x
        found[name] = whole.detach().clone()
    return found


def on_rank(cases: list[Case], rank: int) -> list[tuple[list[float], dict[str, Tensor]]]:
    """Losses and weights of each case."""
    # It says so of every linear layer on three dimensions.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
    # Even few queries in blocks, whose backward has to know what a wrapper did to parameters.
    context._PAIRS = 100
    return [distributed(case, rank) for case in cases]


def distributed(case: Case, rank: int) -> tuple[list[float], dict[str, Tensor]]:
    ranks = dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks,))
    grid = init_device_mesh("cpu", case.grid(ranks), mesh_dim_names=("batch", "sequence"))
    model = Model(case, grid["sequence"] if case.grid(ranks)[1] > 1 else None)
    inputs = part(case, rank, ranks)
    constant = {x for x in model.parameters() if not x.requires_grad}  # that of a kernel
    if case.wrapper in ("fully_shard", "both"):
        for layer in (model.attention, model):
            fully_shard(layer, mesh=mesh, ignored_params=constant)
        return stepped(model, inputs), weights(model)
    return stepped(DistributedDataParallel(model), inputs), weights(model)


def require_one_process(cases: list[Case], ranks: int) -> None:
    """Averages of losses are those of one process, and so are weights."""
    results = on_ranks(ranks, partial(on_rank, cases))
    for i, case in enumerate(cases):
        model = Model(case)
        before = weights(model)
        losses = stepped(model, data(case.dtype))
        mean = torch.tensor([found[i][0] for found in results]).mean(0)
        torch.testing.assert_close(mean, torch.tensor(losses), rtol=1e-6, atol=0)
        for name, exact in weights(model).items():
            # Rounding is all that float32 loses, of one number too; float64 knows the steps.
            limit = 1e-6 * exact.norm().clamp_min(0.5)
            if case.dtype == torch.float64:
                limit = 1e-11 * (exact - before[name]).norm().clamp_min(1e-3)
            for found in results:
                assert (found[i][1][name] - exact).norm() <= limit, (case, name)


PLAIN = [
    Case("fully_shard"),
    Case("sequence", "learned"),
    Case("sequence", "local"),
    Case("sequence", dtype=torch.float32),
]


def test_two_processes_take_the_steps_of_one() -> None:
    require_one_process(PLAIN, 2)


@pytest.mark.slow
@pytest.mark.parametrize("config", ["plain", "moments", "kernel", "mixture"])
def test_four_processes_take_the_steps_of_one(config: str) -> None:
    wrappers = ["fully_shard"] if config == "moments" else ["fully_shard", "both"]
    require_one_process([Case(wrapper, config) for wrapper in wrappers], 4)
