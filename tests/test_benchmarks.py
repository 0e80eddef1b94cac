"""The references agree with adaptive quadrature, the harness measures, and every table is made."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.integrate import quad

from benchmarks import (
    __main__,
    accuracy,
    attention,
    compare,
    content,
    estimation,
    expect,
    first_call,
    harness,
    irregular,
    layers,
    methods,
    networks,
    recall,
    sites,
)
from benchmarks.cases import CASES, OURS
from benchmarks.harness import Table, Worker
from benchmarks.reference import ANY_ALPHA, CLOSED, LAWS, Family, ball_integrals, line_integrals


@pytest.mark.parametrize("family", [CLOSED[1], CLOSED[4], ANY_ALPHA[2]], ids=lambda x: x.name)
def test_references_agree_with_adaptive_quadrature(family: Family) -> None:
    """In 1-D. The others are checked by the package: `make accuracy` compares different methods."""

    def by_quad(loc: float, scale: float) -> float:
        def density(x: float) -> float:
            return max(0.0, 1 - abs(x) ** family.order) ** family.exponent

        def integrand(x: float) -> float:
            z = (loc + scale * x - 0.5) / 0.2
            return density(x) * math.exp(-z * z / 2) / (0.2 * math.sqrt(2 * math.pi))

        limits = {"points": (0.0,), "epsabs": 0, "epsrel": 1e-12, "limit": 200}
        return quad(integrand, -1, 1, **limits)[0] / quad(density, -1, 1, **limits)[0]

    step, center = 1e-4, np.array([0.5])
    result = np.float64(line_integrals(family, 0.3, 0.4, center, 0.2))[:, 0]
    assert result[0] == pytest.approx(by_quad(0.3, 0.4), rel=1e-11)
    difference = by_quad(0.3 + step, 0.4) - by_quad(0.3 - step, 0.4)
    assert result[1] == pytest.approx(difference / (2 * step), rel=1e-6)
    difference = by_quad(0.3, 0.4 + step) - by_quad(0.3, 0.4 - step)
    assert result[2] == pytest.approx(difference / (2 * step), rel=1e-6)
    if family.order == 2:
        columns = [np.full((1, 1), 0.3), np.full((1, 1, 1), 0.4), center[None, :, None]]
        ball = ball_integrals(*columns, np.full((1, 1), 0.2), family.exponent)[:3]
        assert [x.item() for x in ball] == pytest.approx(result.tolist(), rel=1e-12)


@pytest.mark.parametrize(("case", "method"), [("line", expect.ON_SUPPORTS), ("ball", expect.POLAR)])
def test_rivals_agree_with_the_package(case: str, method: str) -> None:
    settings = {"supports": "wide"} if case == "line" else {"width": 0.3}
    settings |= {"functions": 9, "densities": 3}
    ours, rival = (CASES[case](**settings, method=x)()[0] for x in (OURS, method))
    assert harness.relative_error(rival, ours[: len(rival)].double()).max() < 1e-3


def test_limits_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = accuracy.line_cases([1.0], 0.37, 0.05)
    assert accuracy.line_table("", CLOSED[2:3], cases).failures == []
    monkeypatch.setattr(accuracy, "LIMITS", {torch.float32: (1e-9, 2e-5)})
    table = accuracy.line_table("", CLOSED[2:3], cases)
    assert table.failures == ["α = 2, float32: value"] and table.rows[0][-1] == "**exceeded**"
    assert harness.run("accuracy", {"a": lambda: [table]}, write=False) == 1
    (table, _) = accuracy.kernel_tables([0.2], [1.0], [(2.0, True)], 2)
    assert table.failures == [] and table.rows[0][-1] == "100 %"
    limits = {torch.float32: 2e-6, torch.float64: 1e-19}
    monkeypatch.setattr(accuracy, "KERNEL_LIMITS", limits)
    far = accuracy.kernel_tables([0.2], [1.0], [(2.0, True)], 2)[1].failures
    assert "α = 2, inside: value, float64" in far
    assert accuracy.ball_table([2], [1.5, 3.0], [0.1]).failures == []
    assert accuracy.edge_table(10**4, 10**4).failures == []


def test_errors_are_not_larger_than_recorded_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of some settings of `make accuracy`; the test above has others."""

    def kernel_table() -> Table:
        return accuracy.kernel_tables([0.2], [3.0], [(2.0, True)])[0]

    monkeypatch.setattr(accuracy, "_MADE", {})
    assert kernel_table().failures == accuracy.truncated_table(LAWS[:1]).failures == []
    record = json.loads(accuracy.RECORD.read_text())
    assert accuracy._MADE.keys() <= record.keys() and len(accuracy._MADE) == 4
    changed = tmp_path / "record.json"
    row = {"value": 1e-11, "∂ weights": 1e-5}
    changed.write_text(json.dumps({"kernel, float32, α = 2, inside": row}))
    monkeypatch.setattr(accuracy, "RECORD", changed)
    (failure,) = kernel_table().failures
    assert failure.startswith("α = 2, inside: value, ") and "instead of 1.0e-11" in failure


@pytest.mark.slow
def test_workers_time_cases_of_a_checkout(tmp_path: Path) -> None:
    case = ("line", {"densities": 8, "functions": 4})
    with Worker(threads=2, checkout=harness.ROOT).load(case) as worker:
        assert len(worker.visit()) >= 1 and worker.megabytes() > 0
        rounds = harness.alternate({"a": worker}, budget=0, rounds=2)
        assert len(rounds["a"]) == 2 and rounds["a"][0] > 0
    assert harness.ratio([2.0, 6.0, 4.0], [1.0, 2.0, 2.0]) == 2
    (tmp_path / "sparsefam.py").write_text("raise SystemExit(3)")
    with Worker(checkout=tmp_path) as worker, pytest.raises(RuntimeError, match="ended"):
        worker.load(case)
    with harness.busy():
        pass


def test_memory_is_that_of_the_call() -> None:
    def call() -> float:
        return torch.ones(25_000_000).sum().item()  # 100 MB

    assert harness.allocated_megabytes(call) == pytest.approx(100, rel=0.01)


def test_tables_go_between_the_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "DOCS", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- a: made by c -->\nold\n<!-- a: end -->\nafter\n")
    harness.show_and_write("a", "c", [Table("T", ["x", "y"], [["1", "2"]])], True, "page.md")
    text = page.read_text()
    assert "| 1 | 2 |" in text and "old" not in text and text.endswith("<!-- a: end -->\nafter\n")
    with pytest.raises(ValueError, match="one section"):
        harness.show_and_write("b", "c", [], True, "page.md")


TINY: dict[str, Callable[[], Table | Sequence[Table]]] = {
    "expectations": lambda: expect.line_table(64, 4, 50),
    "plane": lambda: expect.ball_table(2, 4),
    "kernels": lambda: expect.kernel_table(1, 2, 1),
    "content": lambda: content.time_table(((16, 1),)),
    "content shares": lambda: content.share_table(16, (1,)),
    "methods": lambda: methods.times_table(torch.float64, ("Triangular", "3 normals"), (1, 4), 0.0),
    "errors of methods": lambda: methods.errors_table(("Triangular",), 4),
    "recall": lambda: recall.table(16, (0.5,), 1),
    "layers": lambda: layers.layer_table(("quadratic, L = 128",), 1),
    "attention": lambda: attention.cost_table((16, 32)),
    "splines": lambda: attention.spline_table((8, 128), (64,), 2),
    "sites": lambda: sites.sites_table(1, 2),
    "particles": lambda: sites.particles_table(1, 1),
    "estimation": lambda: estimation.error_tables({40: 1}, jobs=1),
    "neighbours": lambda: estimation.neighbour_tables({40: 1}, jobs=1),
    "coverage": lambda: estimation.coverage_tables((120,), 1, 1, jobs=1),
    "fitted observations": lambda: estimation.own_table(),
    "anomalies": lambda: estimation.anomaly_table(estimation.ANOMALIES[:1], 1),
}


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[pytest.mark.slow] * (x == "coverage")) for x in TINY]
)
def test_tables_are_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = harness.Cost(1.0, 1.0)
    for module in (expect, attention, content):
        monkeypatch.setattr(module, "costs", lambda rows, _: [dict.fromkeys(x, one) for x in rows])
    monkeypatch.setattr(expect, "SUPPORTS", ("wide",))
    monkeypatch.setattr(estimation, "DENSITIES", {"ramp": estimation.DENSITIES["ramp"]})
    monkeypatch.setattr(estimation, "LAWS", {"uniform": estimation.LAWS["uniform"]})
    monkeypatch.setattr(estimation, "own_data", lambda: {"three": np.array([0.0, 1.0, 3.0])})
    monkeypatch.setattr(estimation, "COLUMNS", {"petals": estimation.COLUMNS["petal length"]})
    tables = TINY[name]()
    for table in [tables] if isinstance(tables, Table) else tables:
        assert table.rows and all(len(row) == len(table.header) for row in table.rows)
        assert "nan" not in table.markdown()


@pytest.mark.parametrize("sampling", ["regular", "half", "gaps", "bursts", "short"])
def test_frames_are_kept(sampling: str) -> None:
    generator = torch.Generator().manual_seed(0)
    for length in (7, 100):
        for _ in range(20):
            found = irregular.kept(sampling, length, generator)
            assert (found.diff() > 0).all() and 0 <= found.min() and found.max() < length
            assert len(found) <= (length + 1) // 2
    if sampling in ("gaps", "bursts"):  # of 100: lengths of the gaps, or that bursts are complete
        assert found.diff().max() >= 8
    train, test = irregular.draw("JapaneseVowels", sampling, 0, 40)
    assert len(train[3]) == 270 and len(test[3]) == 40
    assert (train[0][~train[2]] > 0).all() and (train[1][train[2]] == 0).all()
    again = irregular.draw("JapaneseVowels", sampling, 0, 40)[0]
    assert all(torch.equal(x, y) for x, y in zip(train, again, strict=True))


@pytest.mark.slow
def test_networks_are_trained_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = "bursts, as generated", "GunPoint, half"
    few = [x._replace(steps=2) for x in networks.SETTINGS if x.name in names]
    monkeypatch.setattr(networks, "SETTINGS", few)
    path = tmp_path / "results"
    options = ["--results", str(path), "--seeds", "2", "--jobs", "1"]
    assert networks.main([*options, "--only", "pooling: GunPoint"]) == 0
    assert "20 of 20 runs to do" in capsys.readouterr().out
    assert networks.main(options) == 0
    out = capsys.readouterr().out
    assert "20 of 40 runs to do" in out and "real sets: the best score ahead of CNN" in out
    assert networks.main([*options, "--table"]) == 0 and "to do" not in capsys.readouterr().out
    assert len(path.read_text().splitlines()) == 40
    answers = networks.Answers(networks.load(path), few, 2)
    for table in networks.tables(answers):
        assert table.rows and all(len(row) == len(table.header) for row in table.rows)
        assert "nan" not in table.markdown()
    monkeypatch.setattr(networks, "package", lambda: "changed")
    networks.load(path)
    assert "40 of 40 results" in capsys.readouterr().out


def test_differences_are_paired() -> None:
    setting = networks.SETTINGS[0]
    found = {(networks.FIXED, 0): 0.5, (networks.FIXED, 1): 0.7, (networks.FIXED, 2): 0.9}
    found |= {(networks.MHA, 0): 0.4, (networks.MHA, 1): 0.5, (networks.NONE, 2): 0.1}
    results = {networks.Run(setting, m, s).key: {"accuracy": x} for (m, s), x in found.items()}
    answers = networks.Answers(results, [setting], 3)
    gap, p = answers.less(setting, networks.FIXED, networks.MHA)
    assert gap == pytest.approx(15) and p == pytest.approx(stats.ttest_rel([5, 7], [4, 5]).pvalue)
    assert answers.less(setting, networks.FIXED, networks.NONE)[0] == pytest.approx(80)
    assert math.isnan(answers.less(setting, networks.FIXED, networks.CNN)[0])
    assert answers.best(setting) == networks.FIXED


def test_commands_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for options, lines in ((["--against", "."], 12), (["--threads", "1", "2", "8"], 9)):
        monkeypatch.setattr(compare, "measure", lambda _, x, *__: [(0.1, 1.1, 2.0)] * len(x))
        assert compare.main(["--only", "1-D", *options]) == 0
        table = capsys.readouterr().out.partition("Medians")[2]
        assert table.count("1-D") == lines
    monkeypatch.setattr(first_call.subprocess, "run", lambda *_, **__: None)
    monkeypatch.setattr(first_call, "first_seconds", lambda folder, code: (0.5, 0.4))
    assert first_call.main(["--only", "README", "layer"]) == 0
    monkeypatch.setattr(first_call, "first_seconds", lambda folder, code: (1.5, 1.4))
    assert first_call.main(["--only", "README"]) == 1
    assert capsys.readouterr().out.count("limit exceeded: README") == 2
    with pytest.raises(SystemExit):
        __main__.main(["--only", "nothing"])
