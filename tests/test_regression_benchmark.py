"""The benchmark of the regression: its reference, its exponents, and what it says."""

import mpmath
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.communication import Network, gathering, numbers, reduction, tables
from benchmarks.regression import (
    Timing,
    accuracy,
    accuracy_table,
    exponent,
    least_squares,
    stream_table,
    time_table,
    timing,
)
from benchmarks.regression_memory import measure_stream
from sparsefam.attention import RidgeRegression
from sparsefam.bases import GaussianRBF


@pytest.mark.parametrize("penalty", [1e-4, 1.0])
def test_reference_agrees_with_fifty_digits(penalty: float) -> None:
    t, values = torch.rand(40), torch.randn(40, 1)
    basis = GaussianRBF.grid(12, 1.5 / 12)
    found = least_squares(basis, t, values, penalty)
    with mpmath.workdps(50):
        design = mpmath.matrix(basis(t.double()).tolist())
        gram = design.T * design + mpmath.mpf(penalty) * mpmath.eye(12)
        exact = mpmath.lu_solve(gram, design.T * mpmath.matrix(values.double().tolist()))
    exact = torch.tensor([[float(x)] for x in exact], dtype=torch.double)
    assert (found - exact).norm() < 1e-12 * exact.norm()


def test_exponents_are_those_of_powers() -> None:
    lengths = [100, 200, 800]
    assert exponent(lengths, [3e-6 * n**1.5 for n in lengths]) == pytest.approx(1.5)
    rows = [Timing(n, 1e-6 * n, 2e-6 * n, 1e-7 * n * n) for n in lengths]
    assert time_table(rows).rows[-1] == ["exponent of L", "1.00", "1.00", "2.00"]


def test_streams_differ_from_one_fit_by_rounding() -> None:
    megabytes, error = measure_stream(12_000)
    assert megabytes < 50
    assert error < 1e-6
    assert stream_table({10**6: (0.123, 4.5e-8)}).rows == [
        ["1,000,000", "260 MB", "0.1 MB", "4.5e-08"]
    ]


def all_reduced(monkeypatch: pytest.MonkeyPatch, length: int) -> list[int]:
    """How many numbers the processes of a group send, forward and backward."""
    sent: list[int] = []

    def reduce(x: Tensor, group: object) -> None:
        assert x.dtype == torch.double
        sent.append(x.numel())

    monkeypatch.setattr(dist, "all_reduce", reduce)
    values = torch.randn(2, length, 3, requires_grad=True)
    regression = RidgeRegression(GaussianRBF.grid(8, 0.1), group=dist.group.WORLD)
    function = regression.fit(torch.rand(2, length), values)
    function.coefficients.sum().backward()
    return sent


def test_bytes_are_those_that_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for length in (5, 500):
        assert all_reduced(monkeypatch, length) == [numbers(8, 3, batch=2)] * 2
    dist.destroy_process_group()


def test_rings_take_the_time_of_their_messages() -> None:
    """Counted one by one: every rank sends a part to the next, and waits for that of the last."""
    network = Network("", bandwidth=1e6, latency=1e-3)
    ranks, size = 4, 8000.0
    known = [{(rank, part): {rank} for part in range(ranks)} for rank in range(ranks)]
    seconds = 0.0
    for step in range(2 * (ranks - 1)):
        sent = [
            (rank, (rank - step) % ranks, known[rank][rank, (rank - step) % ranks])
            for rank in range(ranks)
        ]
        for rank, part, terms in sent:
            after = (rank + 1) % ranks
            known[after][after, part] = known[after][after, part] | terms
        seconds += network.latency + size / ranks / network.bandwidth
    assert all(terms == set(range(ranks)) for rank in known for terms in rank.values())
    assert reduction(size, ranks, network) == pytest.approx(seconds)
    assert gathering(size, ranks, network) == pytest.approx(seconds / 2)
    assert reduction(size, 1, network) == 0


def test_tables_are_of_a_million_positions_and_more() -> None:
    ethernet, _, sizes = tables(6e-6)
    assert ethernet.rows[0][:2] == ["1,000,000", "6"]
    work, communication = ethernet.rows[3][2].split(" + ")
    assert (work, float(communication)) == ("750", pytest.approx(2.1e-3))
    assert sizes.rows[3][:3] == ["1,000,000,000", "0.2", "260,000"]


def test_times_are_positive() -> None:
    found = timing(64, functions=8, channels=2)
    assert min(found.forward, found.backward, found.known) > 0


@pytest.mark.parametrize("size", [16, 512])
def test_fits_are_exact_where_float32_is_not(size: int) -> None:
    row = accuracy(size, 1e-2, length=500)
    # Rounding the coefficients is all that is lost.
    assert row.coefficients < 6e-8
    assert not row.single < 100 * row.curve
    assert accuracy_table([row]).rows[0][0] == str(size)
