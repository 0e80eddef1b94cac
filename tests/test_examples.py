"""The tour: the page it writes, its numbers, its progress and its options."""

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from examples import page, tour
from examples.comparison import LOGISTIC, builders
from examples.digits import MEAN, READERS
from examples.look import Look
from examples.progress import Reporter
from examples.series_pictures import draw_accuracy
from examples.settings import Settings
from examples.training import Run

_LOOKS = (Look(), Look(dark=True, narrow=True))
_SERIES = ("input", "accuracy", "attention", "heads")


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
    """The tour with two of the four versions of each picture: drawing is what takes longest."""
    folder = tmp_path_factory.mktemp("tour") / "new" / "demo"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "LOOKS", _LOOKS)
        tour.main(["--quick", "--out", str(folder)])
    return folder


def test_the_tour_writes_its_numbers(quick: Path) -> None:
    results = json.loads((quick / "results.json").read_text())
    stages = {"families", "estimation", "vowels", "leaves", "stream", "digits"}
    assert set(results) == {"settings", "versions"} | stages
    series = {"seeds": 2, "epochs": 1, "heads": 3, "leaf_epochs": 1, "leaf_heads": 3}
    digits = {"digit_seeds": 2, "digit_epochs": 1, "canvases": 64}
    streams = {"stream_seeds": 1, "stream_epochs": 1, "streams": 256}
    assert results["settings"] == series | digits | streams | {"folds": 2}
    for key in ("vowels", "leaves"):
        methods = {m["name"]: m for m in results[key]["methods"]}
        assert list(methods) == [LOGISTIC, *builders(2, 2)]
        for method in methods.values():
            assert method["heads"] == 3
            assert len(method["accuracy"]) == len(method["seconds"]) == 2
            assert method["mean"] == pytest.approx(sum(method["accuracy"]) / 2)
            assert method["sd"] == pytest.approx(np.std(method["accuracy"], ddof=1))
        for name in ("Gaussian", "Gaussian mixture", "kernel softmax"):
            assert methods[name]["read"] == methods[name]["intervals"] == 1
        assert 0 < methods["truncated parabola"]["read"] < 1
        assert methods["truncated parabola"]["intervals"] == 1
        assert methods["kernel sparsemax"]["intervals"] >= 1
        assert methods["discrete softmax"]["intervals"] is None
    accuracy = {m["name"]: m["mean"] for m in results["vowels"]["methods"]}
    assert accuracy[LOGISTIC] > 0.88
    for method in results["digits"]["methods"]:
        assert len(method["accuracy"]) == len(method["seconds"]) == 2
        assert method["mean"] == pytest.approx(sum(method["accuracy"]) / 2)
        assert (method["attention"] is None) == (method["name"] == MEAN)
    assert [method["name"] for method in results["digits"]["methods"]] == list(READERS)
    assert results["families"]["Triangular, α = 2"]["variance"] == pytest.approx(1 / 6)


def test_the_page_stands_alone(quick: Path) -> None:
    html = (quick / "index.html").read_text(encoding="utf-8")
    links = Links()
    links.feed(html)
    files = {link for link in links.found if not link.startswith("#")}
    assert files == {path.name for path in quick.iterdir()} - {"index.html"}
    assert {link[1:] for link in links.found if link.startswith("#")} <= links.anchors
    assert links.silent == 0
    assert "<!--" not in html and "http" not in html
    results = json.loads((quick / "results.json").read_text())
    for method in (m for key in ("vowels", "leaves", "digits") for m in results[key]["methods"]):
        assert f"<td>{100 * method['mean']:.1f} ± {100 * method['sd']:.1f}</td>" in html


def test_every_stage_has_its_pictures(quick: Path) -> None:
    series = [f"{key}-{what}" for key in ("vowels", "leaves") for what in _SERIES]
    files = {
        f"{name}-{look.name}.png"
        for name in ("families", "estimation", *series, "stream", "digits")
        for look in _LOOKS
    }
    assert files == {path.name for path in quick.glob("*.png")}
    assert len({(quick / file).read_bytes() for file in files}) == len(files)


def test_the_screen_chooses_between_four_versions_of_a_picture(tmp_path: Path) -> None:
    runs = {"one": [Run(0.5, 1.0, 1), Run(0.6, 1.0, 1)]}
    picture = page.Picture("p", lambda look: draw_accuracy(look, runs), "Dots.", "Why.")
    html = picture.write(tmp_path)
    versions = [
        f'media="(m{limit}) and (prefers-color-scheme: {tone})" srcset="p-{tone}-{width}.png"'
        for width, limit in (("wide", "in-width: 640.02px"), ("narrow", "ax-width: 640px"))
        for tone in ("light", "dark")
    ]
    assert all(version in html for version in versions) and html.count("<source") == 4
    assert '<img src="p-light-wide.png" alt="Dots.">' in html
    assert len({path.read_bytes() for path in tmp_path.glob("p-*.png")}) == 4


@pytest.mark.parametrize(
    "arguments", [["--seeds", "0"], ["--leaf-epochs", "-1"], ["--digit-seeds", "x"]]
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


def test_steps_and_tables_are_lines() -> None:
    out = io.StringIO()
    reporter = Reporter(Console(file=out, width=100))
    with reporter.steps(2) as ended:
        ended("one")
        ended("other")
    reporter.table(["method", "%"], [["some method", "7"], ["other", "12.5"]])
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert lines[:2] == ["    1/2  one", "    2/2  other"]
    assert lines[2:] == ["  method          %", "  some method     7", "  other        12.5"]


def test_progress_is_lines_where_there_is_no_screen() -> None:
    assert _report(False) == "A stage\n    1/2  run 0: 50 %\n    2/2  run 1: 50 %\n"


def test_progress_is_live_on_a_screen() -> None:
    seen = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", _report(True))
    assert "loss 0.50" in seen and "eta" in seen and "6/6" in seen
    assert "1/2  run 0: 50 %" in seen


def test_settings_default_to_what_the_page_says() -> None:
    series = {"seeds": 5, "epochs": 40, "heads": 8, "leaf_epochs": 30, "leaf_heads": 32}
    assert Settings() == Settings(**series, digit_seeds=2, digit_epochs=3, canvases=4000)
