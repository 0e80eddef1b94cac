"""Attention over several processes: the steps that one process takes."""

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

from sparsefam import _choice
from sparsefam.attention import ContinuousAttention, LearnedAlpha, RidgeRegression
from sparsefam.bases import GaussianRBF

STEPS, RATE = 2, 0.5


class Case(NamedTuple):
    """What is distributed, and how."""

    wrapper: str
    config: str = "plain"
    dtype: torch.dtype = torch.float64


def settings(config: str) -> dict[str, Any]:
    """Arguments of a layer, all of which draw from one generator."""
    if config == "learned":
        centers, widths = torch.linspace(0, 1, 8), torch.full((8,), 0.15)
        basis = GaussianRBF(nn.Parameter(centers), nn.Parameter(widths))
        return {"regression": RidgeRegression(basis, "gcv"), "alpha": LearnedAlpha(2)}
    score = "quadratic" if config == "plain" else config
    return {"regression": RidgeRegression(GaussianRBF.grid(8, 0.15)), "score": score}


class Model(nn.Module):
    """Projects, attends, and reads one number off each context."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Linear(3, 8)
        self.attention = ContinuousAttention(8, 2, **settings(case.config), batch_first=True)
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
    _choice._PAIRS = 100
    return [distributed(case, rank) for case in cases]


def distributed(case: Case, rank: int) -> tuple[list[float], dict[str, Tensor]]:
    ranks = dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks,))
    model = Model(case)
    inputs = [x.chunk(ranks)[rank] for x in data(case.dtype)]
    constant = {x for x in model.parameters() if not x.requires_grad}  # that of a kernel
    if case.wrapper == "fully_shard":
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
    Case("parallel", "learned"),
    Case("parallel", "local"),
    Case("parallel", dtype=torch.float32),
]


def test_two_processes_take_the_steps_of_one() -> None:
    require_one_process(PLAIN, 2)


@pytest.mark.slow
@pytest.mark.parametrize("config", ["plain", "moments", "kernel", "mixture"])
def test_four_processes_take_the_steps_of_one(config: str) -> None:
    require_one_process([Case("fully_shard", config)], 4)
