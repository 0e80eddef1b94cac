"""The documentation's pictures: what they show is so, and the files are those the pages want."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from examples import gallery
from examples.gallery_errors import closed_form, line_errors, plane_errors, polar_rule

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
    gallery.main(["tree", "--out", str(tmp_path)])
    light, dark = (tmp_path / f"tree-{tone}.png" for tone in ("light", "dark"))
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


@pytest.mark.slow
def test_every_picture_is_drawn(tmp_path: Path) -> None:
    files = gallery.write(tmp_path, [])
    assert len(files) == 2 * len(gallery.PICTURES)
    assert len({file.read_bytes() for file in files}) == len(files)
