"""Irregular series in the tour: the recordings, what models see of them, the regression."""

from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest
import torch

import sparsefam as sf
from examples import recordings
from examples.comparison import choose_penalty, value_basis
from examples.recordings import (
    Observations,
    Recordings,
    interpolate,
    load_recordings,
    observe,
    read_ts,
)


@pytest.fixture(scope="module")
def vowels() -> tuple[Recordings, Recordings]:
    return load_recordings("JapaneseVowels")


@pytest.fixture(scope="module")
def observed(vowels: tuple[Recordings, Recordings]) -> Observations:
    return observe(vowels[1], 0.3, torch.Generator().manual_seed(0))


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


def test_the_outlines_are_those_that_were_published() -> None:
    train_part, test_part = load_recordings("OSULeaf")
    assert {series.shape for part in (train_part, test_part) for series in part.series} == {
        (1, 427)
    }
    assert train_part.labels.bincount().tolist() == [34, 29, 33, 53, 36, 15]
    assert test_part.labels.bincount().tolist() == [32, 55, 42, 44, 46, 23]
    assert train_part.series[0][0, :2].tolist() == pytest.approx([0.55067091, 0.46471588])
    # what the page says of the curve where no points are kept
    assert max(series.mean().abs() for series in test_part.series) < 1e-6


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
    with pytest.raises(
        FileNotFoundError, match=r"OSULeaf.*make demo.*pip install --no-deps aeon==1\.6\.0"
    ):
        load_recordings("OSULeaf")


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


def test_the_penalty_is_chosen_by_left_out_points(observed: Observations) -> None:
    errors = choose_penalty(observed, value_basis(), torch.Generator().manual_seed(0))
    again = choose_penalty(
        replace(observed, labels=observed.labels.flip(0)),
        value_basis(),
        torch.Generator().manual_seed(0),
    )
    assert errors == again
    assert list(errors) == [0.1, 1.0, 10.0, 100.0, 1000.0]
    assert min(errors, key=errors.__getitem__) == 100.0
    # far above what is left at the points a function was fitted to
    fitted = sf.attention.RidgeRegression(value_basis(), 0.1).fit(
        observed.positions, observed.values.unsqueeze(-1), observed.mask
    )
    residual = (fitted(observed.positions).squeeze(-1) - observed.values)[observed.mask]
    assert errors[0.1] > 3 * residual.square().mean().sqrt().item()
