"""First tutorial: electricity from the sun, by densities that are zero at night and by a normal.

`python -m examples.daylight` prints the numbers of docs/tutorials/daylight.md and writes its
picture to `demo/daylight.png`.
"""

import argparse
import time
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from .look import Look
from .posterior import Fit, fit
from .progress import Reporter
from .solar import HOURS, MODELS, Prediction, Scores, load, model_of, predicted, score

__all__ = ["main"]

_HEADER = ["model", "hours", "in 90 %", "width", "CRPS", "log P"]


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Electricity from the sun, and nights.")
    parser.add_argument("--steps", type=int, default=500, help="of each optimisation (500)")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder to write (demo)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    start, reporter = time.perf_counter(), Reporter()
    readings = load()
    seen, unseen = readings[:3], readings[3:]
    reporter.stage(f"{len(MODELS)} models of three days")
    with reporter.runs(len(MODELS), options.steps) as bars:
        fits = {name: fit(name, model_of(name, seen), options.steps, 2000, bars) for name in MODELS}
    torch.manual_seed(0)
    predictions = {name: predicted(name, found.draws) for name, found in fits.items()}
    reporter.stage("The three days that follow")
    reporter.table(_HEADER, _rows(predictions, unseen))
    reporter.stage("First and last light, hours UTC: mean and central 90 %")
    for name, found in fits.items():
        if "first" in found.draws:
            reporter.note(f"{name}: {_light(found, 'first')}, {_light(found, 'last')}")
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "daylight.png"
    look = Look()
    with look.applied():
        _draw(look, predictions, unseen).savefig(path)
    reporter.note(f"{path}  ({time.perf_counter() - start:.0f} s in all)")


def _rows(predictions: dict[str, Prediction], unseen: Tensor) -> list[list[str]]:
    night = (unseen == 0).all(0)
    hours = {"night": night, "day": ~night, "all": torch.ones_like(night)}
    found = {
        (name, when): score(prediction, unseen, mask)
        for when, mask in hours.items()
        for name, prediction in predictions.items()
    }
    return [[name, when, *_numbers(scores)] for (name, when), scores in found.items()]


def _numbers(scores: Scores) -> list[str]:
    return [
        f"{100 * scores.covered:.0f} %",
        f"{scores.width:.3f}",
        f"{scores.crps:.4f}",
        f"{scores.log:.2f}",
    ]


def _light(found: Fit, site: str) -> str:
    draws = found.draws[site]
    low, high = draws.quantile(torch.tensor([0.05, 0.95], dtype=draws.dtype)).tolist()
    return f"{site} {draws.mean().item():.2f} ({low:.2f} to {high:.2f})"


def _draw(look: Look, predictions: dict[str, Prediction], unseen: Tensor) -> Figure:
    figure, axes = look.panels(1, 2, 2.9)
    shown = [name for name in predictions if name != "compact"]
    for ax, name in zip(axes, shown, strict=True):
        draws = predictions[name].readings
        levels = torch.tensor([0.05, 0.5, 0.95], dtype=draws.dtype)
        low, middle, high = draws.quantile(levels, dim=0)
        blue = look.palette[0]
        ax.fill_between(HOURS, low, high, color=blue, alpha=0.25, lw=0, label="central 90 %")
        ax.plot(HOURS, middle, color=blue, label="median")
        for k, day in enumerate(unseen):
            label = "days not seen" if k == 0 else None
            ax.plot(HOURS, day, ".", color=look.palette[3], ms=3.5, label=label)
        ax.set_title(f"density: {name}")
        ax.set_xlabel("hour of the day, UTC")
        ax.set_xticks(range(0, 25, 4))
        ax.set_ylim(-0.02, 0.95)
    axes[0].set_ylabel("output, share of capacity")
    axes[0].legend(loc="upper left")
    return figure


if __name__ == "__main__":
    main()
