"""The suite of models whose supports move: its references and its command."""

import warnings

import pytest
import torch

from examples.moving_supports import __main__ as suite
from examples.moving_supports import calibration, models, references

pytestmark = pytest.mark.usefixtures("double")


def test_references_are_those_of_the_file() -> None:
    known = references.load()
    assert list(known) and set(known) == set(suite.NAMES)
    for model in models.MODELS:
        if model not in (models.garch11, models.meeting):
            for site, found in references.reference(model, 2**11, 8).items():
                for key in ("mean", "sd"):
                    expected, tolerance = (
                        torch.tensor(known[model.__name__][site][x]) for x in (key, "sd")
                    )
                    deviation = (torch.tensor(found[key]) - expected).abs() / tolerance
                    assert (deviation < 0.15).all(), (model.__name__, site, key)


@pytest.mark.slow
def test_chains_agree_with_the_references(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["interval", "chain"]
    assert suite.main(["--models", *names]) == 0
    table = capsys.readouterr().out.split("NUTS against")[1]
    assert table.count("AutoSupportReparam") == len(names)


@pytest.mark.slow
@pytest.mark.parametrize("name", calibration.THINNED)
@pytest.mark.usefixtures("double")
def test_posteriors_are_calibrated(name: str) -> None:
    with warnings.catch_warnings():
        assert calibration.main([name]) == 0
