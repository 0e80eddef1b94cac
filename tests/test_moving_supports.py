"""The suite of models whose supports move: its references, its verdicts, and its command."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from pyro import poutine
from scipy import integrate, stats

from examples.moving_supports import __main__ as suite
from examples.moving_supports import models, references

DOUBLE = torch.float64


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(DOUBLE)
    yield
    torch.set_default_dtype(torch.float32)


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


def test_references_agree_with_closed_forms() -> None:
    known = references.load()
    # The shares of what is left are independent: p2 = (1 - v1) v2.
    v1, v2 = stats.beta(8, 14), stats.beta(3, 12)
    expected = (1 - v1.mean()) * v2.mean()
    assert known["chain"]["p1"]["mean"] == pytest.approx([v1.mean()], abs=2e-4)
    assert known["chain"]["p1"]["sd"] == pytest.approx([v1.std()], abs=2e-4)
    assert known["chain"]["p2"]["mean"] == pytest.approx([expected], abs=2e-4)

    def weight(v: float, x: float, power: int) -> float:
        density = math.exp(-x * x / 2 - (x + v - 1) ** 2 / 0.5)
        return density * (x + v) ** power

    mass, mean = (integrate.dblquad(weight, -8, 8, 0, 1, args=(k,))[0] for k in (0, 1))
    assert known["interval"]["y"]["mean"] == pytest.approx([mean / mass], abs=1e-4)


def test_restricted_prior_leaves_the_posterior_unchanged() -> None:
    """Where the likelihood is positive, the two variants have one density."""
    sites = {"start": models.ONE / 10, "slope": models.ONE, "half_width": 2 * models.ONE}
    model = poutine.condition(models.bounded_noise, sites)
    plain, restricted = (poutine.trace(model).get_trace(restricted=x) for x in (False, True))
    assert plain.log_prob_sum().isfinite() and plain.log_prob_sum() == restricted.log_prob_sum()


def test_verdicts_of_independent_draws() -> None:
    """Whose effective sample size is their number, and whose deviations are known."""
    torch.manual_seed(0)
    draws = torch.randn(2, 2000, 3)
    none = [0.0] * 3
    known = {"mean": none, "sd": [1.0] * 3, "mean_error": none, "sd_error": none}
    found = suite.verdict(draws, known)
    assert found.unmet() == [] and 2500 < found.size < 6000 and found.r_hat < 1.002
    off = suite.verdict(draws, known | {"mean": [0.0, 0.2, 0.0]})
    assert off.mean == pytest.approx(0.2 * 4000**0.5, rel=0.25) and "mean" in off.unmet()
    vague = suite.verdict(draws, known | {"mean": [0.0, 0.2, 0.0], "mean_error": [0.2] * 3})
    assert vague.mean < 1.5
    apart = suite.verdict(draws + torch.tensor([0.0, 1.0])[:, None, None], known)
    assert {"r_hat", "size"} <= set(apart.unmet())
    assert suite.worst([found, off]).mean == off.mean
    assert found._replace(divergent=0.01).unmet() == ["divergent"]
    still = suite.verdict(torch.zeros(2, 100, 1), {k: v[:1] for k, v in known.items()})
    assert still.sd == math.inf and np.isfinite(still.size)


@pytest.mark.slow
def test_chains_agree_with_the_references(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["interval", "chain"]
    assert suite.main(["--models", *names]) == 0
    table = capsys.readouterr().out.split("NUTS against")[1]
    assert table.count("AutoSupportReparam") == len(names)
