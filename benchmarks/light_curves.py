"""PLAsTiCC: simulated light curves of 14 kinds of objects, whose six bands have times of their own.

References:
    Kessler et al. (2019), Models and Simulations for the Photometric LSST Astronomical Time Series
    Classification Challenge (PLAsTiCC). arXiv:1903.11756
"""

import csv
import io
import zipfile
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sparsefam.bases import GaussianRBF

from .classifiers import CHANNELS, REACHES, Continuous, Encoder, Head, LocalScore, local_and_places
from .grids import DecayingGRU, convolutions, middles, on_grid
from .irregular import Part, padded
from .wheels import find

NAME, BANDS, LOCAL_BY_BAND = "PLAsTiCC", 6, "local, by band"
FOLDER = "snmachine/example_data/plasticc_train_"
FOLDS, TRAINED, VALIDATED = 5, 0.6, 0.1
# Readings of an object, at random, that networks are trained on, at most; functions of local heads.
MOST, FUNCTIONS = 128, 128
ALL, DROPPED = "all nights", "half of the nights"


@lru_cache
def read(place: str) -> tuple[list[NDArray[np.float64]], NDArray[np.int64]]:
    """Return the readings (L, 4) of each object, by time, and the classes of objects.

    Readings are time (MJD), band, flux and its standard error.
    """
    with zipfile.ZipFile(find(place, "snmachine")) as archive:
        with archive.open(FOLDER + "metadata.csv") as file:
            rows = csv.DictReader(io.TextIOWrapper(file, "utf-8"))
            targets = {int(x["object_id"]): int(x["target"]) for x in rows}
        with archive.open(FOLDER + "lightcurves.csv") as file:
            file.readline()
            table = np.fromstring(file.read().replace(b"\n", b","), sep=",").reshape(-1, 6)
    table = table[np.lexsort((table[:, 1], table[:, 0]))]
    objects, starts = np.unique(table[:, 0].astype(int), return_index=True)
    series = np.split(table[:, 1:5], starts[1:])
    return series, np.unique([targets[x] for x in objects], return_inverse=True)[1]


def frames(readings: NDArray[np.float64], first: float, last: float) -> tuple[Tensor, Tensor]:
    """Return times (L,) in (0, 1) and values (L, 3 + BANDS).

    Values are the flux less its median and its error, on a scale on which large numbers are
    logarithms, the logarithm of that scale, and which band it is.
    """
    time, band, flux, error = torch.as_tensor(readings).T
    center = flux.median()
    scale = 1.48 * (flux - center).abs().median() + 1e-3
    channels = [
        torch.asinh((flux - center) / scale),
        (error / scale).log().clamp(-5, 5),
        (scale.log() / 3 - 1).expand_as(flux),
        *nn.functional.one_hot(band.long(), BANDS).T,
    ]
    return ((time - first) / (last - first)).float(), torch.stack(channels, -1).float()


def splits(labels: NDArray[np.int64], seed: int) -> tuple[list[int], list[int], list[int]]:
    """Return which objects to train, to validate and to test on, the same shares of each class."""
    generator = np.random.default_rng(seed)
    parts: tuple[list[int], list[int], list[int]] = [], [], []
    for label in np.unique(labels):
        order = generator.permutation(np.flatnonzero(labels == label))
        ends = np.round(np.array([TRAINED, TRAINED + VALIDATED]) * len(order)).astype(int)
        for part, chosen in zip(parts, np.split(order, ends), strict=True):
            part += chosen.tolist()
    return parts


def thinned(readings: NDArray[np.float64], generator: np.random.Generator) -> NDArray[np.float64]:
    """Drop half of the nights."""
    nights = np.unique(np.floor(readings[:, 0]))
    kept = generator.permutation(nights)[: (len(nights) + 1) // 2]
    return readings[np.isin(np.floor(readings[:, 0]), kept)]


def draw(place: str, seed: int) -> tuple[Part, dict[str, Part]]:
    """Return what is trained on, and what is tested on, with all nights and with half of them."""
    series, labels = read(place)
    first, last = min(x[0, 0] for x in series) - 1, max(x[-1, 0] for x in series) + 1
    train, _, test = splits(labels, seed)
    generator = np.random.default_rng(seed)

    def few(readings: NDArray[np.float64]) -> NDArray[np.float64]:
        return readings[np.sort(generator.permutation(len(readings))[:MOST])]

    def part(readings: list[NDArray[np.float64]], index: list[int]) -> Part:
        times, values = zip(*(frames(x, first, last) for x in readings), strict=True)
        return padded(times, values, torch.as_tensor(labels[index]))

    tested = [series[i] for i in test]
    return part([few(series[i]) for i in train], train), {
        ALL: part(tested, test),
        DROPPED: part([thinned(x, generator) for x in tested], test),
    }


def by_band(times: Tensor, values: Tensor, padding: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the series of each band: times (B * BANDS, L), values (B * BANDS, L, 2), padding.

    Bands without a reading have one of value 0 at time 0.
    """
    absent = (values[..., 3:].mT < 0.5) | padding[:, None]  # (B, BANDS, L)
    order = absent.to(torch.int8).argsort(stable=True)
    length = max(int((~absent).sum(-1).max()), 1)
    order = order[..., :length].flatten(0, 1)
    missing = absent.flatten(0, 1).gather(-1, order)
    flux = values[..., :2].repeat_interleave(BANDS, 0)
    flux = flux.gather(1, order[..., None].expand(-1, -1, 2)).masked_fill(missing[..., None], 0)
    found = times.repeat_interleave(BANDS, 0).gather(-1, order).masked_fill(missing, 0)
    return found, flux, torch.cat([missing[:, :1] & False, missing[:, 1:]], 1)


class BandConvolutions(nn.Module):
    """Convolutions of bands interpolated one by one, with distances to the nearest reading."""

    def __init__(self, classes: int, kernel: int, size: int = 256) -> None:
        super().__init__()
        self.size = size
        self.layers, self.head = convolutions(3 * BANDS + 1, kernel), Head(classes)

    def forward(self, times: Tensor, values: Tensor, padding: Tensor) -> Tensor:
        bands = by_band(times, values, padding)
        found, distance = on_grid(*bands, self.size)
        grid = torch.cat([found, (20 * distance).clamp(max=3)], -1)
        grid = grid.unflatten(0, (len(times), BANDS)).transpose(1, 2).flatten(2)
        scale = values[:, :1, 2:3].expand(-1, self.size, -1)
        logits: Tensor = self.head(self.layers(torch.cat([grid, scale], -1).mT).mT)
        return logits


class BandGRU(DecayingGRU):
    """GRU-D with a channel for the flux, and for the error, of each band."""

    def __init__(self, classes: int, dropout: float) -> None:
        super().__init__(2 * BANDS + 1, classes, dropout)

    def forward(self, times: Tensor, values: Tensor, padding: Tensor) -> Tensor:
        band = values[..., 3:]
        channels = [values[..., :1] * band, values[..., 1:2] * band, values[..., 2:3]]
        seen = torch.cat([band, band, torch.ones_like(band[..., :1])], -1) > 0.5
        return super().forward(times, torch.cat(channels, -1), padding, seen)


class BandLocal(nn.Module):
    """Local heads read the function of each band on one grid, before an encoder of local heads.

    Bands are folded into the batch. Queries, which static heads do not read, are 0. As the
    convolutions, it is told how far the nearest reading of each band is.
    """

    grid: Tensor

    def __init__(self, classes: int, reach: float, size: int = 128) -> None:
        super().__init__()
        self.embed, self.bands = nn.Linear(2, CHANNELS), nn.Parameter(torch.zeros(BANDS, CHANNELS))
        self.first = fine(LocalScore(reach=reach)).layer
        self.join = nn.Linear(BANDS * (CHANNELS + 1) + 1, CHANNELS)
        mixer = partial(local, reach)
        self.encoder = Encoder(mixer, CHANNELS, classes)
        self.register_buffer("grid", middles(size))

    def forward(self, times: Tensor, values: Tensor, padding: Tensor) -> Tensor:
        found, flux, missing = by_band(times, values, padding)
        batch, queries = len(times), self.grid.expand(len(times), -1)
        x = self.embed(flux) + self.bands.repeat(batch, 1)[:, None]
        zero = x.new_zeros(len(x), len(self.grid), CHANNELS)
        options = {"key_padding_mask": missing, "need_weights": False}
        read = self.first(zero, x, x, found, query_positions=self.grid, **options)[0]
        distance = on_grid(found, flux, missing, len(self.grid))[1]
        read = torch.cat([read, (20 * distance).clamp(max=3)], -1)
        read = read.unflatten(0, (batch, BANDS)).transpose(1, 2).flatten(2)
        read = torch.cat([read, values[:, :1, 2:3].expand(-1, len(self.grid), -1)], -1)
        x = nn.functional.gelu(self.join(read))
        logits: Tensor = self.encoder(queries, x, torch.zeros_like(queries, dtype=torch.bool))
        return logits


def local(reach: float) -> nn.Module:
    return Continuous(LocalScore(reach=reach))


def fine(score: Any) -> Continuous:
    """Return attention to twice as many functions as usual, since events take weeks of years."""
    return Continuous(score, GaussianRBF.grid(FUNCTIONS, 1.5 / FUNCTIONS))


def encoder(score: Callable[[float], Any]) -> Callable[[int, int], nn.Module]:
    """Return what makes an encoder of fine functions, from what makes the score of a reach."""
    return lambda classes, size: Encoder(lambda: fine(score(REACHES[size])), 3 + BANDS, classes)


# Those that differ from the models of other tasks, of a size.
OWN: dict[str, Callable[[int, int], nn.Module]] = {
    "local": encoder(lambda reach: LocalScore(reach=reach)),
    "local + places": encoder(local_and_places),
    LOCAL_BY_BAND: lambda classes, size: BandLocal(classes, REACHES[size]),
    "CNN with gaps": lambda classes, size: BandConvolutions(classes, (5, 9)[size]),
    "GRU-D": lambda classes, size: BandGRU(classes, (0.1, 0.3)[size]),
}
MODELS = (*OWN, "no attention", "transformer", "discrete twin")
