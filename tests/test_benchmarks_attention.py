"""The benchmark of attention: what it times, where curves cross, what it calls memory."""

import math
from pathlib import Path

import pytest
import torch

from benchmarks.attention import (
    cost_table,
    crossing,
    draw_costs,
    measured,
    memory_table,
    summary,
    times,
)
from benchmarks.attention_core import Cost, discrete, wide
from benchmarks.attention_recall import discrete_recall, recall_error, signal, sparse_recall
from benchmarks.memory import allocated_megabytes


def test_curves_cross_where_their_powers_do() -> None:
    lengths = [256, 1024, 4096, 16384]
    ours, theirs = [1e-3 * n for n in lengths], [5e-7 * n**2 for n in lengths]
    assert crossing(lengths, ours, theirs) == pytest.approx(2000)
    assert crossing(lengths, theirs, ours) is None
    costs = {
        "continuous": [Cost(n, a, 2 * a, 1.0) for n, a in zip(lengths, ours, strict=True)],
        "narrow": [Cost(n, a, 2 * a, 1.0) for n, a in zip(lengths, ours, strict=True)],
        "discrete": [Cost(n, b, 3 * b, 2.0) for n, b in zip(lengths, theirs, strict=True)],
    }
    costs["discrete"][-1] = Cost(16384, theirs[-1], None, 2.0)
    costs["continuous"][-1] = costs["narrow"][-1] = Cost(16384, ours[-1], None, 1.0)
    last = cost_table(costs).rows[-1]
    assert last == ["exponent", "1.00", "1.00", "2.00", "", "1.00", "1.00", "2.00", ""]
    assert cost_table(costs).rows[2][:5] == ["4096", "4.1", "4.1", "8.39", "2.0"]
    assert cost_table(costs).rows[3][5:] == ["", "", "", ""]
    assert memory_table(costs).rows[3] == ["16384", "forward", "1.00", "1.00", "2.00"]
    assert "forward from 2000 positions on, and forward and backward from 1300" in summary(costs)


def test_every_cost_is_of_what_it_says(tmp_path: Path) -> None:
    found = measured([32, 64], 128)
    assert [n for n, _ in times(found["discrete"], "forward")] == [32, 64, 128]
    assert [n for n, _ in times(found["narrow"], "forward and backward")] == [32, 64]
    assert all(x.megabytes > 0 for costs in found.values() for x in costs)
    draw_costs(tmp_path / "picture.png", found)
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_gradients_are_those_of_the_outputs() -> None:
    """The same numbers of both ways of attention, in the shapes of their inputs."""
    context, scale, *slopes = wide(16)(True)
    assert context.shape == (1, 16, 8, 64)
    assert [x.shape for x in (scale, *slopes)] == [(1, 8, 16), (1, 16, 512), (1, 8, 16), (1, 8, 16)]
    (plain, *_), (again, *_) = wide(16)(False), wide(16)(True)
    torch.testing.assert_close(plain, again)
    context, *slopes = discrete(16)(True)
    assert {x.shape for x in (context, *slopes)} == {(1, 8, 16, 64)}


def test_memory_is_what_was_there_at_once_but_for_what_is_returned() -> None:
    def call() -> torch.Tensor:
        kept = torch.ones(10**6)
        for _ in range(3):
            kept += torch.ones(10**6)
        return kept

    assert allocated_megabytes(call) == pytest.approx(4, rel=0.01)


def test_a_function_of_few_numbers_cannot_recall_many() -> None:
    """Of noise at least the part outside of N dimensions is lost; discrete attention has it all."""
    noise = signal(1024, None)
    assert recall_error(sparse_recall(noise), noise) > math.sqrt(1 - 128 / 1024)
    assert recall_error(discrete_recall(noise), noise) < 1e-6
    smooth = signal(1024, 32)
    assert recall_error(sparse_recall(smooth), smooth) < 0.005
