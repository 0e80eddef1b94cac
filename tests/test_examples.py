"""The tour: its data, what it trains, and the page it writes."""

import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import sparsefam as sf
from examples import recordings, tour
from examples.comparison import LOGISTIC, NONE, Comparison, choose_penalty, share_read, vowel_basis
from examples.digits import MEAN, READERS
from examples.mechanisms import Attention, Continuous, Discrete, Examples, NoAttention
from examples.progress import Reporter
from examples.recordings import Observations, Recordings, interpolate, load_vowels, observe, read_ts
from examples.settings import Settings
from examples.training import Run, logistic_regression, train
from examples.vowels import verdict

CLASSES = 9
BASIS = vowel_basis()
MODELS = {
    "none": lambda: NoAttention(CLASSES),
    "discrete softmax": lambda: Discrete(CLASSES, 4, 1.0),
    "discrete sparsemax": lambda: Discrete(CLASSES, 4, 2.0),
    "continuous softmax": lambda: Continuous(CLASSES, 4, 1.0, BASIS),
    "continuous sparsemax": lambda: Continuous(CLASSES, 4, 2.0, BASIS),
}


@pytest.fixture(scope="module")
def vowels() -> tuple[Recordings, Recordings]:
    return load_vowels()


@pytest.fixture(scope="module")
def observed(vowels: tuple[Recordings, Recordings]) -> Observations:
    return observe(vowels[1], 0.3, torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def data(vowels: tuple[Recordings, Recordings]) -> tuple[Examples, Examples]:
    generator = torch.Generator().manual_seed(0)
    fit, test = (Examples.fit(observe(part, 0.3, generator), BASIS, 100.0) for part in vowels)
    return fit, test


def test_the_recordings_are_those_that_were_published(
    vowels: tuple[Recordings, Recordings],
) -> None:
    train_part, test_part = vowels
    assert (len(train_part.series), len(test_part.series)) == (270, 370)
    frames = [series.shape[1] for part in vowels for series in part.series]
    assert (min(frames), max(frames)) == (7, 29)
    assert {series.shape[0] for part in vowels for series in part.series} == {12}
    assert train_part.labels.bincount().tolist() == [30] * 9
    assert test_part.labels.bincount().tolist() == [31, 35, 88, 44, 29, 24, 40, 50, 29]
    assert train_part.series[0][:2, 0].tolist() == pytest.approx([1.860936, -0.207383])


def test_ts_files(tmp_path: Path) -> None:
    file = tmp_path / "some.ts"
    file.write_text("# a comment\n@problemName some\n@data\n1,2,-3.5:4,5,6:b\n0:1:a\n")
    series, labels = read_ts(file)
    assert [x.tolist() for x in series] == [[[1, 2, -3.5], [4, 5, 6]], [[0], [1]]]
    assert labels == ["b", "a"]
    file.write_text("@data\n")
    with pytest.raises(ValueError, match="path must be a .ts file with data"):
        read_ts(file)


def test_missing_recordings_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(recordings, "distribution", missing)
    with pytest.raises(FileNotFoundError, match=r"make demo.*pip install --no-deps aeon==1\.6\.0"):
        load_vowels()


def test_observations_are_a_random_share_of_the_channels_end_to_end(
    vowels: tuple[Recordings, Recordings], observed: Observations
) -> None:
    for i, series in enumerate(vowels[1].series):
        whole, mask = series.reshape(-1), observed.mask[i]
        kept = round(0.3 * len(whole))
        assert mask.tolist() == [True] * kept + [False] * (len(mask) - kept)
        position, value = observed.positions[i, mask], observed.values[i, mask]
        index = (position * len(whole) - 0.5).round().long()
        assert (index.diff() > 0).all()
        torch.testing.assert_close((index + 0.5) / len(whole), position)
        assert torch.equal(whole[index], value)
        # the channel that a point is from
        assert torch.equal(index // series.shape[1], (position * 12).floor().long())


def test_observations_follow_the_generator(vowels: tuple[Recordings, Recordings]) -> None:
    first, again, other = (
        observe(vowels[0], 0.3, torch.Generator().manual_seed(seed)).positions for seed in (0, 0, 1)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
    everything = observe(vowels[0], 1.0, torch.Generator())
    assert everything.mask.sum(-1).tolist() == [x.numel() for x in vowels[0].series]
    with pytest.raises(ValueError, match=r"share must lie in \(0, 1\], got 0"):
        observe(vowels[0], 0, torch.Generator())


def test_interpolation_is_linear(observed: Observations) -> None:
    grid = (np.arange(50) + 0.5) / 50
    found = interpolate(observed, 50)
    for i, mask in enumerate(observed.mask):
        known = observed.positions[i, mask].double(), observed.values[i, mask].double()
        np.testing.assert_allclose(found[i], np.interp(grid, *known), atol=2e-4)


@pytest.mark.parametrize("name", MODELS)
def test_padding_does_not_leak(observed: Observations, name: str) -> None:
    index = int(observed.mask.sum(-1).argmin())
    length = int(observed.mask[index].sum())
    assert length < observed.mask.shape[1]
    junk = torch.where(observed.mask, 0.0, 1e6)
    padded = replace(observed, positions=observed.positions + junk, values=observed.values - junk)
    alone = Observations(
        observed.positions[index, None, :length],
        observed.values[index, None, :length],
        observed.mask[index, None, :length],
        observed.labels[index, None],
    )
    model = MODELS[name]()
    rows = [model(Examples.fit(x, BASIS, 100.0))[i] for x, i in ((padded, index), (alone, 0))]
    torch.testing.assert_close(*rows, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "none"])
def test_heads_start_spread_over_the_domain(data: tuple[Examples, Examples], name: str) -> None:
    model = MODELS[name]()
    nn.init.zeros_(model.query.weight)
    attention = model.attend(data[1])
    if isinstance(attention, sf.SparseCategorical):
        t = data[1].positions.unsqueeze(1)
        mean = (attention.probs * t).sum(-1)
        spread = (attention.probs * (t - mean.unsqueeze(-1)).square()).sum(-1).sqrt()
    else:
        mean, spread = attention.mean, attention.stddev
    expected = torch.tensor([0.125, 0.375, 0.625, 0.875])
    tolerance = 0.06 if "discrete" in name else 1e-5
    torch.testing.assert_close(mean.mean(0), expected, atol=tolerance, rtol=0)
    # the same score: sigma = 0.1 is the spread of a softmax; a sparsemax over many points is narrow
    width = {"discrete sparsemax": 0.03, "continuous sparsemax": 0.11}.get(name, 0.1)
    assert spread.mean().item() == pytest.approx(width, rel=0.2)


@pytest.mark.parametrize(
    ("model", "share"),
    [
        (Discrete(CLASSES, 2, 1.0), 1.0),
        (Continuous(CLASSES, 2, 1.0, BASIS), 1.0),
        (Continuous(CLASSES, 2, 2.0, BASIS), None),
        (Discrete(CLASSES, 2, 2.0), None),
    ],
)
def test_share_read(data: tuple[Examples, Examples], model: Attention, share: float) -> None:
    part = data[1][torch.arange(5)]
    attention = model.attend(part)
    found = share_read(attention, part)
    if share is None:
        shares = [
            _density(attention, part, i)[:, part.mask[i]].gt(0).float().mean() for i in range(5)
        ]
        share = float(sum(shares) / 5)
        assert 0.05 < share < 0.9
    assert found == pytest.approx(share)


def _density(attention: sf.SparseDistribution, part: Examples, row: int) -> Tensor:
    if isinstance(attention, sf.SparseCategorical):
        return attention.probs[row]
    grid = part.positions[row].reshape(-1, 1, 1)
    return attention.prob(grid)[:, row].T


@pytest.mark.parametrize(("name", "drop"), [("continuous sparsemax", 0.01), ("none", 0.2)])
def test_training_is_repeatable_and_learns(
    data: tuple[Examples, Examples], name: str, drop: float
) -> None:
    outcomes = []
    for _ in range(2):
        torch.manual_seed(1)
        losses: list[float] = []
        model = MODELS[name]()
        generator = torch.Generator().manual_seed(1)
        run = train(model, data, 4, generator, lambda _, loss, seen=losses: seen.append(loss))
        outcomes.append((run.accuracy, losses))
    assert outcomes[0] == outcomes[1]
    losses = outcomes[0][1]
    assert len(losses) == 4 and losses[-1] < losses[0] - drop


def test_logistic_regression_is_the_usual_one(data: tuple[Examples, Examples]) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    # few examples, where the strength of the penalty shows
    fit, test = data[0][torch.arange(0, 270, 10)], data[1]
    center, spread = fit.grid.mean(0), fit.grid.std(0)
    usual = linear_model.LogisticRegression(C=1.0, max_iter=2000)
    usual.fit(((fit.grid - center) / spread).numpy(), fit.labels.numpy())
    score = usual.score(((test.grid - center) / spread).numpy(), test.labels.numpy())
    # one recording of 370 may fall on the other side
    assert logistic_regression((fit, test)).accuracy == pytest.approx(score, abs=1.1 / 370)


def test_the_penalty_is_chosen_by_left_out_points(observed: Observations) -> None:
    errors = choose_penalty(observed, BASIS, torch.Generator().manual_seed(0))
    again = choose_penalty(
        replace(observed, labels=observed.labels.flip(0)), BASIS, torch.Generator().manual_seed(0)
    )
    assert errors == again
    assert list(errors) == [0.1, 1.0, 10.0, 100.0, 1000.0]
    assert min(errors, key=errors.__getitem__) == 100.0
    # far above what is left at the points a function was fitted to
    fitted = sf.attention.RidgeRegression(BASIS, 0.1).fit(
        observed.positions, observed.values.unsqueeze(-1), observed.mask
    )
    residual = (fitted(observed.positions).squeeze(-1) - observed.values)[observed.mask]
    assert errors[0.1] > 3 * residual.square().mean().sqrt().item()


def _comparison(accuracy: dict[tuple[str, int], float]) -> Comparison:
    runs = {key: [Run(x, 1.0), Run(x, 1.0)] for key, x in accuracy.items()}
    empty = torch.zeros(0)
    return Comparison(runs, {}, Examples(*[empty] * 6), Recordings([], empty), {100.0: 0.2}, 100.0)


def test_the_verdict_follows_the_numbers() -> None:
    plain = {(LOGISTIC, 0): 0.92, (NONE, 0): 0.91}
    behind = verdict(_comparison(plain | {("continuous softmax", 8): 0.7}))
    assert "beats every mechanism" in behind
    assert "logistic regression 92.0\u00a0%, continuous softmax, 8 heads 70.0\u00a0%" in behind
    ahead = verdict(_comparison(plain | {("continuous softmax", 8): 0.95}))
    assert "beats every mechanism" not in ahead and "95.0\u00a0%" in ahead


class Links(HTMLParser):
    """All that a page refers to, and pictures without a text."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.anchors: set[str] = set()
        self.silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.found += [given[name] or "" for name in ("src", "srcset", "href") if name in given]
        self.anchors |= {given["id"] or ""} if "id" in given else set()
        self.silent += tag == "img" and not given.get("alt")


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tour") / "new" / "demo"
    tour.main(["--quick", "--out", str(folder)])
    return folder


def test_the_tour_writes_its_numbers(quick: Path) -> None:
    results = json.loads((quick / "results.json").read_text())
    assert set(results) == {"settings", "versions", "families", "vowels", "digits"}
    vowels = {"seeds": 2, "epochs": 1, "heads": [3]}
    assert results["settings"] == vowels | {"digit_seeds": 2, "digit_epochs": 1, "canvases": 64}
    methods = {(m["name"], m["heads"]): m for m in results["vowels"]["methods"]}
    maps = ("softmax", "sparsemax")
    names = [f"{where} {what}" for where in ("discrete", "continuous") for what in maps]
    assert list(methods) == [(LOGISTIC, 0), (NONE, 0), *((name, 3) for name in names)]
    for method in methods.values():
        assert len(method["accuracy"]) == len(method["seconds"]) == 2
        assert method["mean"] == pytest.approx(sum(method["accuracy"]) / 2)
        assert method["sd"] == pytest.approx(np.std(method["accuracy"], ddof=1))
    assert methods[LOGISTIC, 0]["mean"] > 0.88
    assert methods["continuous softmax", 3]["read"] == 1
    assert 0 < methods["continuous sparsemax", 3]["read"] < 1
    for method in results["digits"]["methods"]:
        assert len(method["accuracy"]) == len(method["seconds"]) == 2
        assert method["mean"] == pytest.approx(sum(method["accuracy"]) / 2)
        assert (method["attention"] is None) == (method["name"] == MEAN)
    assert [method["name"] for method in results["digits"]["methods"]] == list(READERS)
    assert results["families"]["Triangular, α = 2"]["variance"] == pytest.approx(1 / 6)


def test_the_page_stands_alone(quick: Path) -> None:
    page = (quick / "index.html").read_text(encoding="utf-8")
    links = Links()
    links.feed(page)
    files = {link for link in links.found if not link.startswith("#")}
    assert files == {path.name for path in quick.iterdir()} - {"index.html"}
    assert {link[1:] for link in links.found if link.startswith("#")} <= links.anchors
    assert links.silent == 0
    assert "<!--" not in page and "http" not in page
    results = json.loads((quick / "results.json").read_text())
    for method in results["vowels"]["methods"] + results["digits"]["methods"]:
        assert f"<td>{100 * method['mean']:.1f} ± {100 * method['sd']:.1f}</td>" in page


def test_all_four_versions_of_a_picture_differ(quick: Path) -> None:
    for name in ("families", "input", "accuracy", "attention", "digits"):
        looks = [f"{tone}-{width}" for tone in ("light", "dark") for width in ("wide", "narrow")]
        assert len({(quick / f"{name}-{look}.png").read_bytes() for look in looks}) == 4


@pytest.mark.parametrize(
    "arguments", [["--seeds", "0"], ["--epochs", "-1"], ["--digit-seeds", "x"]]
)
def test_bad_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        tour.main(arguments)
    assert arguments[0] in capsys.readouterr().err


def _report(terminal: bool) -> str:
    out = io.StringIO()
    reporter = Reporter(Console(file=out, force_terminal=terminal, width=100))
    reporter.stage("A stage")
    with reporter.runs(2, 3) as bars:
        for run in range(2):
            bars.begin(f"run {run}")
            for epoch in range(3):
                bars.epoch(epoch + 1, 0.5)
            bars.end(f"run {run}", "50 %")
    return out.getvalue()


def test_progress_is_lines_where_there_is_no_screen() -> None:
    assert _report(False) == "A stage\n    1/2  run 0: 50 %\n    2/2  run 1: 50 %\n"


def test_progress_is_live_on_a_screen() -> None:
    seen = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", _report(True))
    assert "loss 0.50" in seen and "eta" in seen and "6/6" in seen
    assert "1/2  run 0: 50 %" in seen


def test_settings_default_to_what_the_page_says() -> None:
    vowels = {"seeds": 5, "epochs": 40, "heads": (8, 32)}
    assert Settings() == Settings(**vowels, digit_seeds=2, digit_epochs=3, canvases=4000)
