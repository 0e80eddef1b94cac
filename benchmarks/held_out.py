"""Held-out sets, Trace and recordings of a watch: rates, sizes and steps come from other sets.

The rest of the models is not as blind: trials of layers and of pooling, before, had seen both.

References:
    Dau et al. (2019), The UCR Time Series Archive. arXiv:1810.07758
    Burns et al. (2018), Shoulder Physiotherapy Exercise Recognition: Machine Learning the Inertial
    Signals from a Smartwatch. arXiv:1802.01489
"""

import codecs
import io
import pickle
import zipfile
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy

from . import irregular
from .irregular import Part, Series, seen, standardized
from .wheels import find

TRACE, WATCH = irregular.HELD_OUT
FILES = {
    TRACE: ("tslearn", "tslearn/.cached_datasets/Trace.npz"),
    WATCH: ("seglearn", "seglearn/data/watch_dataset.npy"),
}
TRAINED_ON = {TRACE: "60", WATCH: "half"}
# Every second frame of windows of four seconds, so many from each recording, and how many of the
# ten subjects are tested on.
WINDOW, STRIDE, WINDOWS, SUBJECTS_TESTED = 200, 2, 6, 3


class Arrays(pickle.Unpickler):
    """Makes arrays and what is built into Python, and runs nothing else that a file asks for."""

    known = {
        "_reconstruct": np.empty(0).__reduce__()[0],
        "ndarray": np.ndarray,
        "dtype": np.dtype,
        "encode": codecs.encode,
    }

    def find_class(self, module: str, name: str) -> Any:
        if name not in self.known:
            raise pickle.UnpicklingError(f"an array has no {module}.{name}")
        return self.known[name]


def opened(task: str, place: str) -> io.BytesIO:
    """Return the file of a task in its wheel."""
    package, name = FILES[task]
    with zipfile.ZipFile(find(place, package)) as archive:
        return io.BytesIO(archive.read(name))


def as_series(values: Any, labels: Any) -> Series:
    """Return frames (L, C) with numbers for labels."""
    numbers = np.unique(labels, return_inverse=True)[1].tolist()
    return [(torch.tensor(x).float(), y) for x, y in zip(values, numbers, strict=True)]


@lru_cache
def read_trace(place: str) -> tuple[Series, Series]:
    """Return what to train and to test on, each of 100 series of 275 frames, of four classes."""
    arrays = np.load(opened(TRACE, place))
    first, second = (as_series(arrays[f"X_{x}"], arrays[f"y_{x}"]) for x in ("train", "test"))
    return standardized(first, second)


@lru_cache
def read_watch(place: str) -> tuple[Series, list[int]]:
    """Return windows of acceleration and rotation, labeled by the exercise, and their subjects.

    Every subject does every exercise with either arm.
    """
    file = opened(WATCH, place)
    npy.read_magic(file)
    npy.read_array_header_1_0(file)
    found = Arrays(file).load().item()
    windows, subjects = [], []
    recordings = as_series(found["X"], found["y"])
    for (frames, label), subject in zip(recordings, found["subject"].tolist(), strict=True):
        for start in np.linspace(0, len(frames) - WINDOW, WINDOWS).astype(int):
            windows.append((frames[start : start + WINDOW : STRIDE], label))
            subjects.append(int(subject))
    return windows, subjects


def split_watch(place: str, generator: torch.Generator) -> tuple[Series, Series]:
    """Return what to train on, and windows of other subjects to test on."""
    windows, subjects = read_watch(place)
    names = sorted(set(subjects))
    order = torch.randperm(len(names), generator=generator).tolist()
    tested = {names[i] for i in order[:SUBJECTS_TESTED]}
    first, second = (
        [x for x, subject in zip(windows, subjects, strict=True) if (subject in tested) == side]
        for side in (False, True)
    )
    return standardized(first, second)


def draw(task: str, seed: int, place: str) -> tuple[Part, dict[str, Part]]:
    """Return what is trained on, and what is tested on by the name of its sampling.

    Args:
        task: A name in HELD_OUT.
        seed: Decides about the frames and, of the watch, the subjects.
        place: The wheel, or its folder.
    """
    generator = torch.Generator().manual_seed(seed)
    parts = read_trace(place) if task == TRACE else split_watch(place, generator)
    return seen(*parts, generator, irregular.TESTED, TRAINED_ON[task])
