"""Streams of readings with questions: what is asked, what answers, and what a memory keeps."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from scipy import integrate

import sparsefam as sf
from examples import recall, stream
from examples.look import Look
from examples.progress import Reporter
from examples.stream_data import (
    GRID,
    SAMPLINGS,
    SATURATED,
    Streams,
    load_pressure,
    parts,
    read_streams,
)
from examples.stream_models import Bumps, Discrete, basis, methods
from examples.stream_pictures import draw_stream
from examples.stream_training import Answers, Plan, cells, compare, error, summary

REGRESSION = sf.attention.RidgeRegression(basis(), 10.0)


def some(count: int, sampling: str = SAMPLINGS[0], seed: int = 0) -> Streams:
    generator = torch.Generator().manual_seed(seed)
    return read_streams(parts(load_pressure())[2], count, generator, sampling)


def test_the_recording_is_standardised_by_what_trains() -> None:
    pressure = load_pressure()
    assert pressure.shape == (7501,) and pressure[0].item() == pytest.approx(63.73215)
    fit, validation, test = parts(pressure)
    assert [len(x) for x in (fit, validation, test)] == [4501, 1125, 1875]
    assert fit.mean().item() == pytest.approx(0, abs=1e-5)
    assert fit.std().item() == pytest.approx(1)
    back = torch.cat([fit, validation, test]) * pressure[:4501].std() + pressure[:4501].mean()
    torch.testing.assert_close(back, pressure)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_readings_are_of_the_stream_and_questions_of_its_mean(sampling: str) -> None:
    streams = some(50, sampling)
    assert streams.positions.shape == (50, 48 if sampling == "half as many" else 96)
    assert (streams.positions.diff() > 0).all() and streams.grid.shape == (50, GRID)
    times = (np.arange(512) + 0.5) / 512
    for i in range(50):
        (middle, width), (begin, end) = (x[i].tolist() for x in (streams.question, streams.block))
        inside = np.abs(times - middle) <= width / 2 + 1e-7
        assert streams.labels[i].item() == pytest.approx(
            streams.whole[i][inside].mean().item(), 1e-3
        )
        assert end <= middle - width / 2 + 1e-6 or begin >= middle + width / 2 - 1e-6
        positions, values = streams.positions[i].numpy(), streams.values[i].numpy()
        saturated = (positions > begin) & (positions < end)
        assert (values[saturated] == SATURATED).all()
        noise = (values - np.interp(positions, times, streams.whole[i]))[~saturated]
        assert np.abs(noise).max() < 0.5 and noise.std() == pytest.approx(0.1, abs=0.05)


def test_samplings_differ_as_their_names_say() -> None:
    gaps, medians, levels = {}, {}, {}
    for name in SAMPLINGS:
        streams = some(200, name)
        steps = streams.positions.diff()
        gaps[name] = steps.amax(-1).mean().item()
        medians[name] = steps.median(-1).values.mean().item()
        index = (streams.positions * 512).long()
        levels[name] = (streams.whole.gather(1, index).mean() - streams.whole.mean()).item()
    assert gaps["a gap"] > 0.149 > 2 * gaps["as in training"]
    assert levels["more when low"] < -0.3 and abs(levels["as in training"]) < 0.03
    assert gaps["bursts"] > 2 * gaps["as in training"]
    assert medians["half as many"] > 1.5 * medians["as in training"]
    with pytest.raises(ValueError, match="sampling must be one of .* got 'else'"):
        some(1, "else")


def test_a_uniform_density_reads_the_mean_over_its_interval() -> None:
    streams = some(5).fitted(REGRESSION)
    reader = Bumps(1, math.inf)
    with torch.no_grad():
        density = reader.attend(streams)
        answers = reader(streams)
    low, high = density.loc - density.scale, density.loc + density.scale
    value = sf.attention.ValueFunction(basis(), streams.coefficients)
    grid = torch.linspace(0, 1, 2001)
    curves = value(low + (high - low) * grid).squeeze(-1)
    assert answers.numpy() == pytest.approx(integrate.simpson(curves, x=grid), abs=1e-4)


def test_all_continuous_attention_moves_with_the_question() -> None:
    """Before training already: the mean of a head is at a fixed distance from the midpoint."""
    streams = some(4)
    reader = Bumps(4, 2.0)
    for parameter in reader.network[-1].parameters():
        parameter.data[...] = 0
    middle, _ = streams.question.split(1, -1)
    torch.testing.assert_close(reader.attend(streams).mean, middle.expand(4, 4))


def test_weights_with_gaps_are_those_of_a_riemann_sum() -> None:
    streams = some(3)
    reader = Discrete(1.0, gaps=True)
    reader.network[-1].weight.data[...] = 0
    with torch.no_grad():
        weights = reader.attend(streams).probs.squeeze(1).numpy()
        answers = reader(streams).numpy()
    for i in range(3):
        t, y = streams.positions[i].numpy(), streams.values[i].numpy()
        ends = np.concatenate([[0], (t[1:] + t[:-1]) / 2, [1]])
        assert weights[i] == pytest.approx(np.diff(ends), rel=1e-4)
        assert answers[i] == pytest.approx(np.diff(ends) @ y, rel=1e-4)


def test_every_method_answers_and_has_the_size_of_the_page() -> None:
    streams = some(2).fitted(REGRESSION)
    sizes = {}
    for name, make in methods().items():
        model = make()
        assert model(streams).shape == (2,) and model(streams).isfinite().all()
        sizes[name] = sum(x.numel() for x in model.parameters() if x.requires_grad)
    assert len(sizes) == 15 and list(methods(few=True)) == list(sizes)[:7]
    assert sizes["one head, sparsemax"] == sizes["one head, α = ∞"] == 3 * 16 + 17 * 16 + 17 * 2
    assert sizes["one head, learned α"] == sizes["one head, sparsemax"] + 1
    assert sizes["kernel softmax"] == 337 and sizes["discrete softmax"] == 353


def test_a_comparison_has_errors_of_all_samplings() -> None:
    found = compare(Plan(1, 1, few=True, streams=128), Reporter())
    assert set(found.runs) == set(methods(few=True))
    assert set(found.readers) == {name for name in found.runs if name != "CNN"}
    numbers = summary(found)["methods"]
    for method in numbers:
        assert method["parameters"] > 0 and list(method["rmse"]) == list(SAMPLINGS)
    name, one = "one head, softmax", found.tests["bursts"]
    with torch.no_grad():
        missed = found.readers[name](one).numpy() - one.labels.numpy()
    expected = np.sqrt(np.mean(missed**2))
    assert found.runs[name][0].errors["bursts"] == pytest.approx(expected, rel=1e-5)
    assert error(found.readers[name], one) == pytest.approx(expected, rel=1e-5)
    assert found.spread == pytest.approx(found.tests[SAMPLINGS[0]].labels.numpy().std(ddof=1))
    with pytest.raises(ValueError, match="at least one seed, got 0"):
        compare(Plan(0, 1), Reporter())


def test_the_verdict_counts() -> None:
    def runs(*errors: float) -> list[Answers]:
        return [Answers(dict.fromkeys(SAMPLINGS, x) | {"bursts": 1 - x}, 1.0, 9) for x in errors]

    one = {"softmax": (0.2, 0.1), "sparsemax": (0.1, 0.3), "α = ∞": (0.05, 0.06)}
    found = {f"one head, {name}": runs(*x) for name, x in one.items()}
    found |= {"discrete softmax": runs(0.4, 0.5), "CNN": runs(0.2, 0.3)}
    text = stream.verdict(found)
    assert "in 1 of 2 seeds (0.200 and 0.150 on average)" in text
    assert "is one head, α = ∞ (0.055), the best rival CNN (0.250)" in text
    assert "one head, α = ∞ (more when low, 0.055), discrete softmax (bursts, 0.550)." in text
    assert cells(found["CNN"]) == ["9", "1.0", *["0.250 ± 0.071"] * 4, "0.750 ± 0.071"]


def test_the_picture_shows_interval_block_and_densities() -> None:
    streams = some(2).fitted(REGRESSION)
    readers = {
        f"one head, {name}": Bumps(1, alpha)
        for name, alpha in {"softmax": 1.0, "sparsemax": 2.0, "α = ∞": math.inf}.items()
    }
    with Look(narrow=True).applied():
        figure = draw_stream(Look(narrow=True), readers, streams, 10.0)
    above, below = figure.axes
    middle, width = streams.question[0].tolist()
    dotted = [line.get_xdata()[0] for line in above.lines if line.get_linestyle() == ":"]
    assert dotted == pytest.approx([middle - width / 2, middle + width / 2])
    for line, reader in zip(below.lines, readers.values(), strict=False):
        x, y = (np.asarray(data) for data in line.get_data())
        density = reader.attend(streams[torch.tensor([0])])
        inside = density.cdf(torch.tensor(1.0)) - density.cdf(torch.tensor(0.0))
        area = integrate.trapezoid(np.nan_to_num(y), x)
        assert area == pytest.approx(inside.item(), abs=0.02)
    plt.close(figure)


def test_contracted_places_are_where_the_memory_has_them() -> None:
    chunk, share = torch.tensor([0, 3, 19]), torch.tensor([0.5, 0.25, 1.0])
    expected = []
    for own, place in zip(chunk.tolist(), share.tolist(), strict=True):
        for k in range(own, 20):
            first = k == own
            place = (place if k == 0 else 0.9 + 0.1 * place) if first else 0.9 * place
        expected.append(place)
    assert recall.position_now(share, chunk).tolist() == pytest.approx(expected)


def test_memories_of_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall, "_SLOTS", 128)
    monkeypatch.setattr(recall, "_NOISE", 0.0)
    generator = torch.Generator().manual_seed(0)
    readings = recall.listen(3000, generator)
    found = recall.memories(readings, 48, generator)
    assert [memory.numbers for memory in found.values()][:3] == [48 * 49 + 2, 2354, 2354]
    asked = recall.ask(readings.truth, (0, 4), 40, generator)
    low, high = asked.ends()
    assert ((low >= 0) & (high <= 0.2)).all()
    times = (np.arange(7501) + 0.5) / 7501
    inside = (times >= low[0].item()) & (times <= high[0].item())
    assert asked.answers[0].item() == pytest.approx(readings.truth[inside].mean().item(), abs=1e-3)
    # What was taken in by chunks is what is fitted at once.
    value = sf.attention.RidgeRegression(sf.bases.GaussianRBF.grid(48, 1 / 48), 1.0).fit(
        readings.times[None], readings.values[None, :, None]
    )
    places = low.unsqueeze(-1) + (high - low).unsqueeze(-1) * torch.linspace(0, 1, 501)
    expected = integrate.simpson(value(places[None])[0, ..., 0], dx=1 / 500)
    assert found["ForgettingMemory"].answer(asked).numpy() == pytest.approx(expected, abs=1e-3)
    # The window has nothing of that time.
    window = found["window of 1177"].answer(asked)
    assert window.numpy() == pytest.approx(readings.values[-1177:].mean().item(), abs=1e-5)
    latest = recall.ask(readings.truth, (19, 20), 1, generator)
    low, high = latest.ends()
    own = readings.values[(readings.times >= low) & (readings.times <= high)].mean()
    answer = found["window of 1177"].answer(latest)
    assert answer.item() == pytest.approx(own.item(), abs=1e-5)
    recent = recall.ask(readings.truth, (17, 20), 40, generator)
    missed = found["ContractingMemory"].answer(recent) - recent.answers
    assert missed.square().mean().sqrt() < 0.1 * recent.answers.std()
