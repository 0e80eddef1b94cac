"""The examples: their data, their models against other ways to the same numbers, their output."""

import io
import json
import math
import re
import tarfile
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from rich.console import Console
from scipy import integrate, stats
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

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
)
from examples.training import Reporter, contest, rows, train

ROOT = Path(__file__).parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"
DOUBLE = torch.float64


# The tour


def test_the_tour_writes_a_page_with_its_pictures_and_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "LOOKS", page.LOOKS[:1])  # drawing takes longest
    folder = tmp_path / "new" / "demo"
    tour.main(["--quick", "--out", str(folder)])
    html = (folder / "index.html").read_text(encoding="utf-8")
    links = re.findall(r"(?:src|srcset|href)=[\"']([^#\"'][^\"']*)[\"']", html)
    names = ("families", "estimation", "vowels-attention", "leaves-attention", "stream", "digits")
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
        for name in ("Gaussian", "Gaussian mixture", "kernel softmax"):
            assert methods[name][0]["read"] == 100 and methods[name][0]["intervals"] == 1
        assert 0 < methods["truncated parabola"][0]["read"] < 100
    assert results["vowels"]["methods"][series.LOGISTIC][0]["accuracy"] > 88
    assert list(results["digits"]["methods"]) == list(digits.READERS)
    with pytest.raises(SystemExit):
        tour.main(["--seeds", "0"])


@pytest.mark.parametrize("live", [False, True])
def test_progress_is_lines_and_on_a_screen_a_bar(live: bool) -> None:
    out = io.StringIO()
    reporter = Reporter(Console(file=out, force_terminal=live, width=100))
    reporter.stage("A stage")
    with reporter.steps(3) as step:
        for _ in range(3):
            step()
        step("run 1")
    reporter.table(["method", "%"], [["other", "12.5"]])
    seen = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())
    assert seen.startswith("A stage\n") and "  run 1 (" in seen and "other" in seen
    assert ("time left" in seen) == live


def test_rows_are_means_and_deviations() -> None:
    runs = {"a": [{"x": 1.0, "n": 1234}, {"x": 2.0, "n": 1234}], "b": [{"n": 5}]}
    found = rows(runs, {"x": "±.1f", "n": ",.0f"})
    assert found == [["a", "1.5 ± 0.7", "1,234"], ["b", "–", "5"]]


# Data


def test_recordings_are_the_published_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"TRAIN": [30] * 9, "TEST": [31, 35, 88, 44, 29, 24, 40, 50, 29]}
    for part, expected in counts.items():
        recordings, labels = data.load_series("JapaneseVowels", part)
        assert labels.bincount().tolist() == expected
        assert {len(x) for x in recordings} == {12}
    outlines, labels = data.load_series("OSULeaf", "TRAIN")
    assert labels.bincount().tolist() == [34, 29, 33, 53, 36, 15]
    assert outlines[0][0, :2].tolist() == pytest.approx([0.55067091, 0.46471588])
    assert [len(part) for part in stream.load_pressure()] == [4501, 1125, 1875]
    readings = daylight.load()
    assert readings[0, 10] == 0.00165 and (readings > 0).sum() == 6 * 30
    durations = pickups.load("TRAIN").exp().round()
    assert durations[0].tolist() == [324, 361, 277, 326, 329]

    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(data, "distribution", missing)
    with pytest.raises(FileNotFoundError, match=r"solar.csv.*make demo.*pip install --no-deps"):
        daylight.load()


def observed() -> data.Series:
    recordings = data.load_series("JapaneseVowels", "TEST")
    return data.observe(recordings, 0.3, torch.Generator().manual_seed(0))


def test_observations_are_a_share_of_the_channels_end_to_end() -> None:
    recordings, seen = data.load_series("JapaneseVowels", "TEST")[0], observed()
    for i in range(0, 370, 20):
        whole, mask = recordings[i].reshape(-1), seen.mask[i]
        assert int(mask.sum()) == round(0.3 * len(whole))
        index = (seen.positions[i, mask] * len(whole) - 0.5).round().long()
        assert (index.diff() > 0).all() and torch.equal(whole[index], seen.values[i, mask])
    grid = (np.arange(50) + 0.5) / 50
    found = data.interpolate(seen, 50)
    for i, mask in enumerate(seen.mask):
        known = seen.positions[i, mask].double(), seen.values[i, mask].double()
        np.testing.assert_allclose(found[i], np.interp(grid, *known), atol=2e-4)


def test_canvases_have_a_digit_in_each_quadrant_and_share_none() -> None:
    parts = data.load_canvases(64, 0)
    seen = []
    for canvases in parts:
        crops = set()
        for canvas, corners in zip(canvases.images, canvases.corners.tolist(), strict=True):
            rest = canvas.clone()
            for question, (x, y) in enumerate(corners):
                assert x // 14 == (x + 7) // 14 == question % 2
                assert y // 14 == (y + 7) // 14 == question // 2
                crops.add(tuple(canvas[y : y + 8, x : x + 8].flatten().tolist()))
                rest[y : y + 8, x : x + 8] = 0
            assert not rest.any()
        seen.append(crops)
    assert not seen[0] & seen[1] and [len(part) for part in parts] == [64, 24]


# Series


MODELS = series.builders(9, 4)


@pytest.fixture(scope="module")
def few() -> series.Examples:
    return series.Examples.fit(observed(), 100.0)[torch.arange(0, 370, 40)]


@pytest.mark.parametrize("name", MODELS)
def test_padding_does_not_leak_into_the_networks(few: series.Examples, name: str) -> None:
    index, model = int(few.mask.sum(-1).argmin()), MODELS[name]()
    junk = torch.where(few.mask, 0.0, 1e6)
    padded = data.Series(few.positions + junk, few.values - junk, few.mask, few.labels)
    size = int(few.mask[index].sum())
    parts = (few.positions, few.values, few.mask)
    alone = data.Series(*(x[index, None, :size] for x in parts), few.labels[index, None])
    pair = [model(series.Examples.fit(x, 100.0)) for x in (padded, alone)]
    torch.testing.assert_close(pair[0][index], pair[1][0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", list(MODELS)[3:])
def test_heads_read_the_expected_value_function(few: series.Examples, name: str) -> None:
    model, t = MODELS[name](), torch.linspace(-1, 2, 12001)
    with torch.no_grad():
        attention = model.attend(few)
        found = model.context(attention, few)
        value = (series.BASIS(t) @ few.coefficients).squeeze(-1)
        density = attention.prob(t.reshape(-1, 1, 1)).permute(1, 2, 0)
    expected = torch.trapezoid(density * value.unsqueeze(1), t)
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", ["discrete sparsemax", "truncated parabola", "kernel sparsemax"])
def test_shares_and_intervals_are_those_of_the_densities(few: series.Examples, name: str) -> None:
    model = MODELS[name]()
    with torch.no_grad():
        model.query.weight *= 8
        attention: Any = model.attend(few)
        t = few.positions.T.unsqueeze(-1)
        read = attention.probs if "discrete" in name else attention.prob(t).movedim(0, -1)
        counts = None if "discrete" in name else series.intervals(attention)
    inside = (read > 0) & few.mask.unsqueeze(1)
    shares = inside.sum(-1) / few.mask.sum(-1, keepdim=True)
    assert 0.02 < series.share_read(attention, few) < 0.9
    assert series.share_read(attention, few) == pytest.approx(shares.mean().item())
    if counts is not None:
        alive = attention.prob(torch.linspace(0, 1, 20001).reshape(-1, 1, 1)) > 0
        assert torch.equal(counts, alive[0].int() + (alive[1:] & ~alive[:-1]).sum(0))


def test_training_repeats_and_learns(few: series.Examples) -> None:
    def losses() -> tuple[float, float]:
        torch.manual_seed(1)
        model = MODELS["kernel sparsemax"]()
        before = nn.functional.cross_entropy(model(few), few.labels).item()
        train(model, few, 15, 1)
        return before, nn.functional.cross_entropy(model(few), few.labels).item()

    before, after = losses()
    assert after < before - 0.05 and losses() == (before, after)


def test_the_penalty_is_chosen_by_left_out_points() -> None:
    errors = series.choose_penalty(observed(), torch.Generator().manual_seed(0))
    assert min(errors, key=errors.__getitem__) == 100.0


def test_contests_compare_the_best_of_two_groups() -> None:
    runs = {"a": [{"x": 1.0}, {"x": 4.0}], "b": [{"x": 2.0}, {"x": 2.0}], "c": [{"x": 3.0}] * 2}
    assert contest(runs, "x", "ab", ".1f") == "a (2.5) against c (3.0), ahead in 1 of 2 seeds"
    found = contest(runs, "x", "ab", ".1f", sign=-1)
    assert found == "b (2.0) against c (3.0), ahead in 2 of 2 seeds"
    labels = torch.tensor([[1, 1, 2, 3], [4, 5, 6, 7]])
    assert digits.blind_limit(labels) == pytest.approx(37.5)


# Digits


def test_aims_are_measured_where_attention_lies() -> None:
    test = data.load_canvases(64, 0)[1]
    column, row = ((test.corners + 4) // 2).unbind(-1)
    right = nn.functional.one_hot(14 * row + column, 196).float()
    found = digits.aim(sf.SparseCategorical(probs=right), test)
    assert found == pytest.approx({"quadrant": 100, "digit": 100, "read": 100 / 196})
    low, high = test.boxes()
    scale = 0.49 * 8 / 28 * torch.eye(2)
    found = digits.aim(sf.TruncatedParaboloid((low + high) / 2, scale), test)
    assert (found["quadrant"], found["digit"]) == pytest.approx((100, 100))
    found = digits.aim(sf.TruncatedParaboloid(((low + high) / 2).flip(1), scale), test)
    assert (found["quadrant"], found["digit"]) == (0, 0)


@pytest.mark.parametrize("name", list(digits.READERS)[2:])
def test_densities_have_the_moments_of_the_weights(name: str) -> None:
    model: Any = digits.READERS[name]()
    with torch.no_grad():
        features = model.features(data.load_canvases(64, 0)[1])
        weights, density = model.weigh(features).probs[3, 2].double(), model.attend(features)
    cells = model.cells.double().numpy()
    np.testing.assert_allclose(density.mean[3, 2], weights.numpy() @ cells, rtol=1e-5)
    expected = np.cov(cells.T, aweights=weights, ddof=0) + np.eye(2) / (12 * 14**2)
    np.testing.assert_allclose(density.covariance_matrix[3, 2], expected, rtol=1e-4, atol=1e-7)


# Streams


def some(count: int, sampling: str = "as trained") -> stream.Streams:
    part, generator = stream.load_pressure()[2], torch.Generator().manual_seed(0)
    return stream.read_streams(part, count, generator, sampling).fitted(10.0)


@pytest.mark.parametrize("sampling", stream.SAMPLINGS)
def test_readings_are_of_the_stream_and_questions_of_its_mean(sampling: str) -> None:
    streams, times = some(30, sampling), (np.arange(512) + 0.5) / 512
    assert streams.positions.shape == (30, 48 if sampling == "half" else 96)
    for one in range(30):
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


def test_methods_read_means_over_intervals() -> None:
    streams = some(4)
    reader = stream.Continuous(math.inf)
    with torch.no_grad():
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
    times, values, truth = recall.listen(3000, torch.Generator().manual_seed(0))
    asked = recall.ask(truth, (0, 4), 40, torch.Generator().manual_seed(0))
    places = (np.arange(7501) + 0.5) / 7501
    inside = (places >= asked.low[0].item()) & (places <= asked.high[0].item())
    assert asked.answers[0].item() == pytest.approx(truth[inside].mean().item(), abs=1e-3)
    # What was taken in chunk by chunk is what is fitted at once.
    basis = sf.bases.GaussianRBF.grid(48, 1 / 48)
    whole = sf.attention.RidgeRegression(basis, 1.0).fit(times[None], values[None, :, None])
    answer, size = recall.remember(times, values, 48)
    assert size == 48 * 49 + 2
    expected = recall.mean_over(whole, asked.low, asked.high)
    torch.testing.assert_close(answer(asked), expected, atol=1e-3, rtol=0)
    found = list(recall.recall(20000, 128, 0, 100).values())
    (forgetting, window, _), (contracting, small, _) = found[:3], found[3:]
    assert forgetting["oldest"] < 0.5 * window["oldest"]
    assert contracting["last chunk"] < 0.5 * small["last chunk"]
    chunk, share = torch.tensor([0, 19]), torch.tensor([0.5, 0.25])
    now = recall.position_now(share, chunk)
    torch.testing.assert_close(now, torch.tensor([0.5 * 0.9**19, 0.925]))


# Density estimates


def test_zeros_are_worth_what_the_tutorial_says() -> None:
    text = (TUTORIALS / "estimation.md").read_text(encoding="utf-8")
    petals, concavity, _ = estimation.load()
    assert [len(petals.data), len(concavity.data)] == [150, 556]
    for method in ("gaussian_kde", "gaussian_kde, tuned"):
        for case in (petals, concavity):
            empty, missed, score = estimation.check(case, method, 5)
            cells = (case.name, method, f"{empty:.2%}", f"{missed:.1%}", f"{score:.3f}")
            assert f"| {' | '.join(cells)} |" in text
    model = estimation.sparse(estimation.replace(concavity, bandwidth=(0.04,)), concavity.data)
    p = model.density_
    assert p.prob(torch.tensor([-1e-9, 1e-9], dtype=DOUBLE)).gt(0).tolist() == [False, True]


# Daylight


def test_probabilities_of_rounded_readings_sum_to_one() -> None:
    values = daylight.UNIT * torch.arange(0, 5000, dtype=DOUBLE)
    log = daylight.log_probability(values, *torch.tensor([[0.001], [0.0005]], dtype=DOUBLE))
    assert log.exp().sum().item() == pytest.approx(1.0, abs=1e-5)
    zero = torch.zeros(2, dtype=DOUBLE)
    certain = daylight.log_probability(torch.tensor([0.0, 1e-5], dtype=DOUBLE), zero, zero)
    assert certain.tolist() == [0.0, -math.inf]


@pytest.mark.parametrize("name", daylight.MODELS)
def test_the_log_density_of_days_is_a_sum_over_readings(name: str) -> None:
    compact, quiet = daylight.MODELS[name]
    days = daylight.load()[:2]
    numbers = {"first": 4.6, "last": 19.7, "power": 1.8} if compact else {"centre": 12, "spread": 3}
    numbers |= {"typical": 1.1, "varied": 0.4, "noise": 0.3}
    held = {site: torch.tensor(float(x), dtype=DOUBLE) for site, x in numbers.items()}
    held["energy"] = torch.tensor([3.8, 4.2], dtype=DOUBLE)
    trace = poutine.trace(poutine.condition(daylight.model_of(name, days), held)).get_trace()
    trace.compute_log_prob()
    shape = stats.norm(12, 3).pdf(daylight.HOURS)
    if compact:
        x = (daylight.HOURS.numpy() - 12.15) / 7.55
        shape = np.clip(1 - x**2, 0, None) ** 1.8
        shape /= integrate.quad(lambda t: (1 - t * t) ** 1.8, -1, 1)[0] * 7.55
    expected = 0.0
    for energy, day in zip((3.8, 4.2), days.numpy(), strict=True):
        for value, mean in zip(day, energy * shape, strict=True):
            noise = 0.3 * mean if quiet else 0.03 * energy
            if value > 0:
                log = stats.norm.logpdf(value, mean, noise) + math.log(daylight.UNIT)
                expected += min(0.0, log)
            elif noise > 0:
                expected += stats.norm.logcdf(daylight.UNIT / 2, mean, noise)
    assert trace.nodes["readings"]["log_prob_sum"].item() == pytest.approx(expected, rel=1e-9)


def test_scores_and_weighted_draws_of_known_laws() -> None:
    torch.manual_seed(0)
    mean = torch.full((1000, 48), 0.5, dtype=DOUBLE)
    predicted = (mean, torch.full_like(mean, 0.1), mean + 0.1 * torch.randn_like(mean))
    days = 0.5 + 0.1 * torch.randn(100, 48, dtype=DOUBLE)
    found = daylight.score(predicted, days, torch.arange(48) < 24)
    covered, width, crps, log = (float(x.rstrip(" %")) for x in found)
    assert covered == pytest.approx(90, abs=2)
    assert width == pytest.approx(0.2 * stats.norm.ppf(0.95), rel=0.03)
    assert crps == pytest.approx(0.1 / math.sqrt(math.pi), rel=0.03)
    assert log == pytest.approx(-0.5 - math.log(0.1 * math.sqrt(2 * math.pi) / 1e-5), abs=0.05)

    def model() -> None:
        z = pyro.sample("z", dist.Normal(torch.zeros((), dtype=DOUBLE), 1.0))
        pyro.sample("seen", dist.Normal(z, 0.5), obs=torch.ones((), dtype=DOUBLE))

    draws, size = daylight.posterior(model, 200, 1000)
    assert draws["z"].mean().item() == pytest.approx(0.8, abs=0.07)
    assert draws["z"].var().item() == pytest.approx(0.2, abs=0.04)
    assert 500 < size <= 10000


# Pickups


def test_the_exact_posterior_integrates_over_people() -> None:
    seen = pickups.load("TRAIN")[:2]
    normal, parabola = (
        pickups.solve("normal", seen, 3, 200),
        pickups.solve("parabola", seen, 3, 400),
    )
    mean, spread, noise = (x[13].item() for x in (normal.mean, normal.spread, normal.noise))
    covariance = spread**2 * np.ones((5, 5)) + noise**2 * np.eye(5)
    expected = stats.multivariate_normal(np.full(5, mean), covariance).logpdf(seen[0].numpy())
    assert normal.people[0, 13].item() == pytest.approx(expected, abs=1e-4)

    def integrand(t: float) -> float:
        u = (t - mean) / (spread * 5**0.5)
        density = 0.75 * max(1 - u * u, 0) / (spread * 5**0.5)
        return density * np.exp(stats.norm(t, noise).logpdf(seen[1].numpy()).sum())

    place = seen[1].mean().item()
    whole = integrate.quad(integrand, place - 1, place + 1, points=[place], limit=200)[0]
    assert parabola.people[1, 13].item() == pytest.approx(math.log(whole), abs=2e-3)
    fewer = pickups.solve("normal", seen[1:], 3, 200)
    torch.testing.assert_close(normal.weights(without=0), fewer.weights())


def test_predictions_of_durations_are_those_of_the_page() -> None:
    text = (TUTORIALS / "pickups.md").read_text(encoding="utf-8")
    seen, unseen = pickups.load("TRAIN"), pickups.load("TEST")
    exact = {name: pickups.solve(name, seen) for name in pickups.MODELS}
    for name, one in exact.items():
        row = pickups.prediction_row(name, one, seen, unseen)
        assert f"| {' | '.join(row)} |" in text
    found = [pickups.moments(exact["parabola"], site) for site in pickups.SITES]
    assert " | ".join(f"{mean:.3f} ± {sd:.3f}" for mean, sd in found) in text


@pytest.mark.slow
def test_chains_agree_with_the_exact_posterior() -> None:
    seen = pickups.load("TRAIN")
    model = pickups.AutoSupportReparam()(pickups.model_of("parabola", seen))
    draws, exact = pickups.sample(model, 250), pickups.solve("parabola", seen)
    for site, x in draws.items():
        mean, sd = pickups.moments(exact, site)
        assert abs(x.mean().item() - mean) < 0.5 * sd


# Reviews


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


@torch.no_grad()
def test_reviews_are_read_as_if_alone_and_states_are_those_of_packed_sequences() -> None:
    lengths = torch.tensor([5, 17, 1, 9])
    tokens = torch.randint(1, 40, (4, 17)) * (torch.arange(17) < lengths[:, None])
    some = reviews.Reviews(tokens, torch.tensor([0, 1, 0, 1]))
    for name, build in reviews.READERS.items():
        model = build(40)
        if name != reviews.MEAN:
            nn.init.normal_(model.query, std=3.0)
        alone = torch.cat([model(some[torch.tensor([k])]) for k in range(4)])
        torch.testing.assert_close(model(some), alone, rtol=0, atol=2e-5)
    both = nn.LSTM(64, 48, batch_first=True, bidirectional=True)
    for lstm, end in ((model.ahead, ""), (model.back, "_reverse")):
        for name, parameter in lstm.named_parameters():
            getattr(both, name + end).copy_(parameter)
    words = model.embedding(tokens)
    packed = pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False)
    expected = pad_packed_sequence(both(packed)[0], batch_first=True)[0]
    torch.testing.assert_close(model.states(some)[some.mask], expected[some.mask])


# Gallery


def test_errors_are_where_the_picture_says() -> None:
    exact, _ = integrate.quad(
        lambda x: 0.75 * (1 - x * x) * stats.norm.pdf(0.7 * x, 0.4, 0.3), -1, 1, epsabs=1e-13
    )
    found = gallery.closed_form(*(torch.tensor(x, dtype=DOUBLE) for x in (0.7, 0.4, 0.3)))
    assert found.item() == pytest.approx(exact, rel=1e-10)
    line = gallery.errors_1d(torch.tensor([1e-3, 0.1, 3.0, 1e3], dtype=DOUBLE))
    plane = gallery.errors_2d(torch.tensor([0.004, 0.1], dtype=DOUBLE))
    assert max(line["p.expect"] + plane["p.expect"]) < 1e-6
    closed, nodes, _ = line.values()
    assert closed[0] > 1 and max(closed[2:]) < 1e-6
    assert nodes[-1] > 1 and max(nodes[:3]) < 1e-6
    ends, angles, _ = plane.values()
    assert angles[0] > 1e-4 and angles[1] < 1e-10 and min(ends) > 1e-3


def test_pages_show_what_the_gallery_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gallery.main(["moreno-figure-1", "martins-figure-2", "--out", str(tmp_path)])
    assert len(capsys.readouterr().out.split()) == len(list(tmp_path.glob("*.png"))) == 4
    written = {f"{p.name}-{tone}.png" for p in gallery.PICTURES for tone in ("light", "dark")}
    pages = "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    assert set(re.findall(r"assets/([\w-]+-(?:light|dark)\.png)", pages)) <= written
    text = (ROOT / "docs/gallery.md").read_text()
    shown = re.findall(r"assets/([\w-]+)-light\.png#only-light", text)
    assert sorted(shown) == sorted(picture.name for picture in gallery.PICTURES)
    with pytest.raises(SystemExit):
        gallery.main(["trees"])


def test_what_the_gallery_says_of_the_networks_is_so() -> None:
    found = json.loads(gallery_training.PATH.read_text(encoding="utf-8"))
    assert found["words"]["right"] == [1.0, 1.0, 1.0]
    german, english = gallery_training.sentence([1, 0, 0, 0, 0, 0, 1], fronted=True)
    assert (german, english) == (found["words"]["german"], found["words"]["english"])
    weights = torch.tensor(found["speakers"]["weights"])
    kernel = series.RBF(1, lengthscale=torch.tensor(0.03))
    p: Any = sf.KernelDeformedExp(weights, torch.linspace(0, 1, 64), kernel, alpha=2.0)
    counts = series.intervals(p)
    assert counts.shape == (3, 6) and counts.min() == 1 and counts.max() == 3
    loc = torch.tensor([0.1, 0.62], dtype=DOUBLE)
    edges = np.array([-np.inf, 0.25, 0.5, 0.75, np.inf])
    exact = np.diff(stats.norm.cdf(edges, loc[:, None], 0.3), axis=-1)
    np.testing.assert_allclose(gallery.masses(sf.Normal(loc, 0.3), 4), exact, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [None, 1.0, 2.0])
def test_the_translator_learns(alpha: float | None) -> None:
    assert gallery_training.learn(alpha, 300)[1] > 0.99
