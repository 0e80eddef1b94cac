"""The command that runs all benchmarks, and what stands beside sparsefam in two of them."""

import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import operations_simplex
from benchmarks.ball_workload import ball_workload, by_expect
from benchmarks.operations_densities import PAIRS, Pair, density_table, log_prob_error, parameters
from benchmarks.operations_fits import FITS, PENALTY, value_table
from benchmarks.operations_simplex import METHODS, simplex_table
from benchmarks.pairs import by_quadrature
from benchmarks.regression import least_squares
from benchmarks.turns import processor_seconds
from sparsefam.bases import GaussianRBF

DOCS = Path(__file__).parents[1] / "docs"


def test_every_section_of_the_pages_is_of_a_part_and_every_part_is_there() -> None:
    claimed = {
        (part.page, section, name)
        for name, part in command.PARTS.items()
        for section in part.sections
    }
    pattern = re.compile(r"<!-- (.+): made by python -m benchmarks\.(\w+) --write -->")
    pages = {page.name: page.read_text() for page in DOCS.glob("*.md")}
    found = {(page, *marks) for page, text in pages.items() for marks in pattern.findall(text)}
    assert found == claimed
    for name in command.PARTS:
        assert callable(import_module(f"benchmarks.{name}").main)


def test_parts_run_in_processes_of_their_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called = []

    def run(words: list[str], check: bool) -> SimpleNamespace:
        called.append(words[1:])
        return SimpleNamespace(returncode=int("benchmarks.pairs" in words))

    monkeypatch.setattr(command.subprocess, "run", run)
    assert command.main(["--write", "--only", "inference", "density_estimation"]) == 0
    assert called == [
        ["-m", "benchmarks.inference"],
        ["-m", "benchmarks.density_estimation", "--jobs", "2", "--write"],
    ]
    assert command.main(["--only", "pairs", "ceilings"]) == 1
    assert called[2:] == [["-m", "benchmarks.pairs"], ["-m", "benchmarks.ceilings"]]
    with pytest.raises(SystemExit):
        command.main(["--only", "nothing"])


def test_times_are_medians_of_calls_in_turn() -> None:
    order: list[str] = []
    calls = {"a": lambda: order.append("a"), "b": lambda: sum(range(50_000))}
    found = processor_seconds(calls, budget=0, least=3)
    assert order == ["a"] * 4
    assert found["b"] > 10 * found["a"]


@pytest.mark.parametrize("dim", [2, 3])
def test_the_tensor_rule_finds_the_same(dim: int) -> None:
    work = ball_workload(dim, 3, 5).double()
    for found, expected in zip(by_quadrature(64, work), by_expect(work), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_densities_stand_beside_ones_of_the_same_place_and_shape(pair: Pair) -> None:
    leaves = parameters(pair.dim)
    ours, theirs = pair.ours(*leaves), pair.theirs(*leaves)
    assert ours.batch_shape == theirs.batch_shape
    assert ours.event_shape == theirs.event_shape
    assert ours.mean.allclose(theirs.mean, atol=1e-5)
    t = ours.sample((5,))
    assert log_prob_error(pair.ours, pair.dim, t) < 1e-3
    assert log_prob_error(pair.theirs, pair.dim, t) < 1e-5


@pytest.mark.parametrize("alpha", METHODS)
def test_maps_to_probabilities_are_the_same(alpha: float) -> None:
    scores = torch.randn(4, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ours, *others = (method(scores) for method in METHODS[alpha].values())
    for other in others:
        torch.testing.assert_close(ours, other)
    assert (ours == 0).any()


def test_fits_of_value_functions_are_the_same() -> None:
    t, basis = torch.linspace(0, 1, 40), GaussianRBF.grid(6, 0.2)
    values = torch.stack([t.sin(), t.square()], -1)
    exact = least_squares(basis, t, values, PENALTY)
    for fit in FITS.values():
        torch.testing.assert_close(fit(basis, t, values).double(), exact, rtol=1e-3, atol=1e-4)


def test_tables_have_a_column_for_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations_simplex, "_NUMBERS", 64)
    tables = [density_table([100], 0.0), simplex_table([16, 32], 0.0), value_table([64], 0.0)]
    for table, rows in zip(tables, (2 * len(PAIRS), 8, len(FITS)), strict=True):
        assert len(table.rows) == rows
        assert {len(row) for row in table.rows} == {len(table.header)}
