"""The documentation's pictures: what they show is so, and the files are those the pages want."""

import json
import math
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from pyro.contrib.gp.kernels import RBF
from scipy.integrate import quad
from scipy.stats import norm

import sparsefam as sf
from examples import gallery, gallery_training
from examples.gallery_errors import closed_form, line_errors, plane_errors, polar_rule
from examples.gallery_maps import shares_of
from examples.gallery_training import PATH
from examples.gallery_translation import learn, pairs, sentence

ROOT = Path(__file__).parents[1]


def test_the_closed_form_is_the_expectation() -> None:
    scale, offset, width = 0.7, 0.4, 0.3
    exact, _ = quad(
        lambda x: 0.75 * (1 - x * x) * norm.pdf(scale * x, offset, width), -1, 1, epsabs=1e-13
    )
    found = closed_form(*(torch.tensor(x, dtype=torch.float64) for x in (scale, offset, width)))
    assert found.item() == pytest.approx(exact, rel=1e-10)


def test_the_rule_of_angles_is_the_expectation() -> None:
    tril = torch.tensor([[0.5, 0.0], [0.2, 0.3]], dtype=torch.float64)
    offset, width = torch.tensor([[0.1, -0.2], [0.5, 0.4]], dtype=torch.float64), 0.25
    # A sum over the disc, in coordinates in which it is smooth and periodic.
    r, w = (torch.from_numpy(x) for x in np.polynomial.legendre.leggauss(60))
    r, w = (r + 1) / 2, w / 2
    turn = torch.arange(200, dtype=torch.float64) * (2 * math.pi / 200)
    u = r[:, None, None] * torch.stack([turn.cos(), turn.sin()], -1)
    hills = torch.exp(-0.5 * ((u @ tril.mT).unsqueeze(-2) - offset).square().sum(-1) / width**2)
    density = 2 / math.pi * (1 - r**2) * r * w
    exact = (density[:, None, None] * hills).sum((0, 1)) * (2 * math.pi / 200)
    exact = exact / (2 * math.pi * width**2)
    torch.testing.assert_close(polar_rule(tril, offset, width, turn), exact, rtol=1e-11, atol=0)


def test_errors_are_where_the_picture_says() -> None:
    line = line_errors(torch.tensor([1e-3, 0.1, 3.0, 1e3], dtype=torch.float64))
    plane = plane_errors(torch.tensor([0.004, 0.1], dtype=torch.float64))
    assert max(line["expect"] + plane["expect"]) < 1e-6
    assert line["eq. 50"][0] > 1 and max(line["eq. 50"][2:]) < 1e-6
    assert line["64 nodes"][-1] > 1 and max(line["64 nodes"][:3]) < 1e-6
    assert plane["angles"][0] > 1e-4 and plane["angles"][1] < 1e-10
    assert min(plane["both ends"]) > 1e-3


def test_pages_show_what_the_gallery_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gallery.main(["moreno-figure-1", "--out", str(tmp_path)])
    light, dark = (tmp_path / f"moreno-figure-1-{tone}.png" for tone in ("light", "dark"))
    assert capsys.readouterr().out.split() == [str(light), str(dark)]
    assert light.read_bytes() != dark.read_bytes()
    written = {f"{p.name}-{tone}.png" for p in gallery.PICTURES for tone in ("light", "dark")}
    pages = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    shown = set(re.findall(r"assets/([\w-]+-(?:light|dark)\.png)", pages))
    assert shown and shown <= written


def test_unknown_pictures_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gallery.main(["trees"])
    assert "got trees" in capsys.readouterr().err


def test_the_gallery_shows_every_picture() -> None:
    page = (ROOT / "docs/gallery.md").read_text()
    shown = re.findall(r"assets/([\w-]+)-light\.png#only-light", page)
    assert shown == re.findall(r"assets/([\w-]+)-dark\.png#only-dark", page)
    assert sorted(shown) == sorted(picture.name for picture in gallery.PICTURES)


@pytest.mark.parametrize("width", [0.02, 0.3])
def test_shares_of_words_are_masses(width: float) -> None:
    loc = torch.tensor([0.1, 0.62], dtype=torch.float64)
    found = shares_of(sf.Normal(loc, width), 4)
    edges = np.array([-np.inf, 0.25, 0.5, 0.75, np.inf])
    exact = np.diff(norm.cdf(edges, loc[:, None], width), axis=-1)
    np.testing.assert_allclose(found, exact, atol=1e-14)
    sparse = shares_of(sf.TruncatedParabola(loc, width), 4)
    inside = [[lo < x + width and x - width < hi for lo, hi in pairwise(edges)] for x in loc]
    assert (sparse > 0).tolist() == inside


def test_the_translator_sees_sentences_of_one_length() -> None:
    german, english = sentence([1, 0, 0, 0, 0, 0, 1], fronted=True)
    assert " ".join(german) == "im mai haben wir vier und zwanzig rote äpfel verkauft"
    assert " ".join(english) == "we have sold twenty four red apples in may"
    german, _ = sentence([0, 1, 2, 3, 2, 1, 0], fronted=False)
    assert " ".join(german) == "ich habe im august drei und dreißig kleine stühle gekauft"
    assert pairs(3, torch.Generator()).german.shape == (3, 10)


def test_what_the_gallery_page_says_of_the_networks_is_so() -> None:
    found = json.loads(PATH.read_text(encoding="utf-8"))
    assert found["words"]["right"] == [1.0, 1.0, 1.0]
    weights = torch.tensor(found["speakers"]["weights"])
    kernel = RBF(1, lengthscale=torch.tensor(0.03))
    p = sf.KernelDeformedExp(weights, torch.linspace(0, 1, 64), kernel, alpha=2.0)
    counts = (~p.support.intervals[..., 0].isnan()).sum(-1)
    assert counts.shape == (3, 6) and counts.min() == 1 and counts.max() == 3


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [None, 1.0, 2.0])
def test_the_translator_learns(alpha: float | None) -> None:
    assert learn(alpha, 300)[1] > 0.99


def test_asking_for_help_trains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["gallery_training", "--help"])
    monkeypatch.setattr(gallery_training, "words", lambda: pytest.fail("training has begun"))
    with pytest.raises(SystemExit):
        gallery_training.main()
