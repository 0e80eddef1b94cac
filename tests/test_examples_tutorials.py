"""The tutorials: their data, their models against other ways to the same numbers, their scores."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from scipy import integrate, stats

from examples import gestures, pickups, solar
from examples.look import Look
from examples.pickups import central
from examples.posterior import fit
from sparsefam import TruncatedParabola

DOUBLE = torch.float64


class NoBars:
    def begin(self, name: str) -> None: ...

    def epoch(self, number: int, loss: float) -> None: ...

    def end(self, name: str, outcome: str) -> None: ...


def test_the_readings_are_what_they_are_said_to_be() -> None:
    readings = solar.load()
    assert readings.shape == (6, 48) and readings[0, 10] == 0.00165
    units = readings / solar.UNIT
    torch.testing.assert_close(units, units.round(), rtol=0, atol=1e-6)
    lit = (readings > 0).all(0).nonzero().flatten()
    assert lit.min() == 10 and lit.max() == 39 and (readings > 0).sum() == 6 * 30


@pytest.mark.parametrize(("mean", "noise"), [(0.001, 0.0005), (0.02, 0.004)])
def test_probabilities_of_rounded_readings_sum_to_one(mean: float, noise: float) -> None:
    values = solar.UNIT * torch.arange(0, 5000, dtype=DOUBLE)
    log = solar.log_probability(values, *torch.tensor([[mean], [noise]], dtype=DOUBLE))
    assert log.exp().sum().item() == pytest.approx(1.0, abs=1e-5)
    law = stats.norm(mean, noise)
    assert log[0].item() == pytest.approx(law.logcdf(solar.UNIT / 2), abs=1e-9)
    cell = law.cdf(values[100] + solar.UNIT / 2) - law.cdf(values[100] - solar.UNIT / 2)
    assert log[100].item() == pytest.approx(math.log(cell), abs=1e-4)


def test_without_noise_a_reading_is_certain() -> None:
    zero = torch.zeros(2, dtype=DOUBLE)
    found = solar.log_probability(torch.tensor([0.0, solar.UNIT], dtype=DOUBLE), zero, zero)
    assert found.tolist() == [0.0, -math.inf]


@pytest.mark.parametrize("name", solar.MODELS)
def test_the_log_density_of_the_days_is_the_sum_of_its_parts(name: str) -> None:
    compact, quiet = solar.MODELS[name]
    readings = solar.load()[:2]
    numbers = {"first": 4.6, "last": 19.7, "power": 1.8} if compact else {"centre": 12, "spread": 3}
    numbers |= {"typical": 1.1, "varied": 0.4, "noise": 0.3}
    held = {site: torch.tensor(float(x), dtype=DOUBLE) for site, x in numbers.items()}
    held["energy"] = torch.tensor([3.8, 4.2], dtype=DOUBLE)
    trace = poutine.trace(poutine.condition(solar.model_of(name, readings), held)).get_trace()
    trace.compute_log_prob()
    x = (solar.HOURS.numpy() - 12.15) / 7.55
    shape = stats.norm(12, 3).pdf(solar.HOURS)
    if compact:
        shape = np.clip(1 - x**2, 0, None) ** 1.8
        shape /= integrate.quad(lambda t: (1 - t * t) ** 1.8, -1, 1)[0] * 7.55
    expected = 0.0
    for energy, day in zip((3.8, 4.2), readings.numpy(), strict=True):
        for value, mean in zip(day, energy * shape, strict=True):
            noise = 0.3 * mean if quiet else 0.03 * energy
            if noise == 0:
                assert value == 0
            elif value == 0:
                expected += stats.norm.logcdf(solar.UNIT / 2, mean, noise)
            else:
                expected += min(0.0, stats.norm.logpdf(value, mean, noise) + math.log(solar.UNIT))
    assert trace.nodes["readings"]["log_prob_sum"].item() == pytest.approx(expected, rel=1e-9)


def test_scores_of_a_law_that_is_known() -> None:
    torch.manual_seed(0)
    mean = torch.zeros(1000, 48, dtype=DOUBLE) + 0.5
    draws = mean + 0.1 * torch.randn_like(mean)
    prediction = solar.Prediction(mean, torch.full_like(mean, 0.1), draws)
    days = 0.5 + 0.1 * torch.randn(100, 48, dtype=DOUBLE)
    found = solar.score(prediction, days, torch.arange(48) < 24)
    assert found.covered == pytest.approx(0.9, abs=0.02)
    assert found.width == pytest.approx(0.2 * stats.norm.ppf(0.95), rel=0.03)
    assert found.crps == pytest.approx(0.1 / math.sqrt(math.pi), rel=0.03)
    expected = -0.5 - math.log(0.1 * math.sqrt(2 * math.pi)) + math.log(solar.UNIT)
    assert found.log == pytest.approx(expected, abs=0.05)


def test_weighted_draws_are_those_of_the_posterior() -> None:
    """Of a normal with a known variance: mean 0.8, variance 0.2."""

    def model() -> None:
        z = pyro.sample("z", dist.Normal(torch.zeros((), dtype=DOUBLE), 1.0))
        pyro.sample("seen", dist.Normal(z, 0.5), obs=torch.ones((), dtype=DOUBLE))
        with pyro.plate("n", 2):
            pyro.sample("v", dist.LogNormal(torch.zeros((), dtype=DOUBLE), 0.5))

    found = fit("", model, 200, 1000, NoBars())
    assert found.draws["z"].shape == (1000,) and found.draws["v"].shape == (1000, 2)
    assert found.draws["z"].mean().item() == pytest.approx(0.8, abs=0.07)
    assert found.draws["z"].var().item() == pytest.approx(0.2, abs=0.04)
    assert found.draws["v"].log().std().item() == pytest.approx(0.5, abs=0.04)
    assert 500 < found.size <= 10000


def test_the_durations_are_those_of_the_recordings() -> None:
    seen, unseen = (x.exp().round() for x in gestures.load())
    assert seen.shape == unseen.shape == (10, 5)
    assert seen[0].tolist() == [324, 361, 277, 326, 329]
    assert unseen[9].tolist() == [125, 164, 121, 124, 167]


def test_the_table_is_the_integral_over_people() -> None:
    seen = gestures.load()[0][:2]
    normal = gestures.tabulated("normal", seen, 3, 200)
    parabola = gestures.tabulated("parabola", seen, 3, 400)
    for g in (4, 13, 22):
        mean, spread, noise = (x[g].item() for x in (normal.mean, normal.spread, normal.noise))
        covariance = spread**2 * np.ones((5, 5)) + noise**2 * np.eye(5)
        expected = stats.multivariate_normal(np.full(5, mean), covariance).logpdf(seen[0].numpy())
        assert normal.people[0, g].item() == pytest.approx(expected, abs=1e-4)

        def integrand(t: float, mean: float = mean, spread: float = spread, noise: float = noise):
            law = TruncatedParabola(*torch.tensor([mean, spread * 5**0.5], dtype=DOUBLE))
            likelihood = np.exp(stats.norm(t, noise).logpdf(seen[1].numpy()).sum())
            return law.prob(torch.tensor(t, dtype=DOUBLE)).item() * likelihood

        place = seen[1].mean().item()
        whole = integrate.quad(integrand, place - 1, place + 1, points=[place], limit=200)[0]
        assert parabola.people[1, g].item() == pytest.approx(math.log(whole), abs=2e-3)


def test_predictions_of_durations() -> None:
    seen = gestures.load()[0]
    table = gestures.tabulated("normal", seen, 3, 200)
    one = torch.nn.functional.one_hot(torch.tensor(13), 27).double()
    mean, spread, noise = (x[13].item() for x in (table.mean, table.spread, table.noise))
    law = stats.norm(mean, math.hypot(spread, noise))
    values = torch.tensor([law.ppf(p) for p in (0.04, 0.06, 0.5, 0.94, 0.96)], dtype=DOUBLE)
    joint = table.stranger(one)
    expected = torch.tensor([0.04, 0.06, 0.5, 0.94, 0.96], dtype=DOUBLE)
    torch.testing.assert_close(table.below(joint, values), expected, atol=1e-4, rtol=0)
    assert central(table, joint, values).tolist() == [False, True, True, True, False]
    # A person's own place: normal, with the precision of the population and of five durations.
    known = table.known(2)
    assert known.sum().item() == pytest.approx(1.0)
    torch.testing.assert_close(known.sum(0), table.weights())
    given = known[:, 13] / known[:, 13].sum()
    precision = spread**-2 + 5 * noise**-2
    place = (mean * spread**-2 + seen[2].sum().item() * noise**-2) / precision
    assert (given * table.places[:, 13]).sum().item() == pytest.approx(place, abs=1e-4)
    # Without a person, as if never asked.
    fewer = gestures.tabulated("normal", seen[1:], 3, 200)
    torch.testing.assert_close(table.weights(0), fewer.weights())


def test_pictures_and_rows_are_of_the_table() -> None:
    """The curves are densities; the shares are those of the page."""
    seen, unseen = gestures.load()
    tables = {name: gestures.tabulated(name, seen, 5, 64) for name in gestures.MODELS}
    chains = {name: {"mean": torch.full((2, 9), 4.8)} for name in ("SupportReparam", "plain")}
    with Look().applied():
        figure = pickups._draw(Look(), chains, tables, seen)
    left, right = figure.axes
    for line in left.lines[:2]:
        x, y = line.get_data()
        assert integrate.trapezoid(y, x) == pytest.approx(1.0, abs=0.02)
    exact = right.lines[0].get_data()
    assert integrate.trapezoid(exact[1], exact[0]) == pytest.approx(1.0, abs=0.05)
    plt.close(figure)
    row = pickups._row("normal", gestures.tabulated("normal", seen), seen, unseen)
    assert row[0] == "normal" and row[1:3] == ["82 %", "88 %"]


@pytest.mark.parametrize("name", gestures.MODELS)
def test_the_model_of_the_chains_is_that_of_the_table(name: str) -> None:
    seen = gestures.load()[0]
    person = seen.mean(1)
    logs = []
    table = gestures.tabulated(name, seen, 3, 64)
    for g in (13, 14):
        held = {site: getattr(table, site)[g] for site in ("mean", "spread", "noise")}
        held["person"] = person
        trace = poutine.trace(poutine.condition(gestures.model_of(name, seen), held)).get_trace()
        logs.append(trace.log_prob_sum().item())
        law = gestures.population(name, held["mean"], held["spread"])
        assert law.variance.item() == pytest.approx(held["spread"].item() ** 2)
        rest = law.log_prob(person).sum()
        rest = rest + dist.Normal(person, held["noise"]).log_prob(seen.T).sum()
        # In the logarithms of spread and noise, as the table has its priors.
        logs[-1] += (held["spread"].log() + held["noise"].log() - rest).item()
    expected = table.prior[14] - table.prior[13]
    assert logs[1] - logs[0] == pytest.approx(expected.item(), abs=1e-6)
