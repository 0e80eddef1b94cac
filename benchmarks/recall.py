"""The price of recall: how exactly N functions give back L vectors, by content and by place.

Vectors are stored in order. A question is one of them with noise, and the answer should be the
vector itself. `--write` puts the table and the picture into docs/learn/attention.md.
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence

import matplotlib.pyplot as plt
import torch
from torch import Tensor

import sparsefam as sf
from examples.data import load_pressure

from .harness import DOCS, ROOT, Table, parser, run

_CHANNELS, _NOISE, _PENALTY = 16, 0.3, 1e-3
# The best of these is taken, for each method and setting.
_TEMPERATURES = 0.5, 2.0, 8.0
SPARSE, DENSE, PLACE = "content, alpha 1.5", "content, alpha 1", "known place"
DISCRETE, METHODS = "discrete", (SPARSE, DENSE, PLACE, "discrete")


def signals(length: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return vectors (L, E) by name, each channel with mean 0 and variance 1."""
    t = torch.arange(length) / length
    waves = 2 * torch.pi * torch.arange(1, 9).unsqueeze(-1) * t
    weights = torch.randn(16, _CHANNELS, generator=generator)
    pressure = torch.cat(load_pressure())
    start = int(torch.randint(len(pressure) - 4 * (length + _CHANNELS), (), generator=generator))
    windows = pressure[start::4].unfold(0, _CHANNELS, 1)[:length]
    found = {
        "noise": torch.randn(length, _CHANNELS, generator=generator),
        "smooth": torch.cat([waves.sin(), waves.cos()]).T @ weights,
        "blood pressure": windows,
    }
    return {name: (x - x.mean(0)) / x.std(0) for name, x in found.items()}


def answers(x: Tensor, queries: Tensor, count: int) -> dict[str, Callable[[float], Tensor]]:
    """Return for each method a function of the temperature that answers all questions."""
    length = len(x)
    t = torch.arange(length) / (length - 1)
    basis = sf.bases.GaussianRBF.grid(count, 1.5 / count)
    function = sf.attention.RidgeRegression(basis, _PENALTY).fit(t, x.unsqueeze(0))
    kept = x[(torch.arange(count) * length) // count]

    def by_content(alpha: float) -> Callable[[float], Tensor]:
        retrieve, ask = sf.attention.retrieve, queries.unsqueeze(0)
        return lambda scale: retrieve(function, ask, alpha, scale, steps=1)[0].squeeze(0)

    return {
        SPARSE: by_content(1.5),
        DENSE: by_content(1.0),
        PLACE: lambda _: function(t.unsqueeze(0)).squeeze(0),
        DISCRETE: lambda scale: torch.softmax(queries @ kept.T / scale, -1) @ kept,
    }


# Mean relative error and milliseconds, by signal and method.
Results = dict[tuple[str, str], tuple[float, ...]]


def measure(length: int, count: int, seeds: int) -> Results:
    """Answer the questions about each signal by each method."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        for name, x in signals(length, generator).items():
            queries = x + _NOISE * torch.randn(x.shape, generator=generator)
            for method, answer in answers(x, queries, count).items():
                best = []
                for scale in _TEMPERATURES[:1] if method == PLACE else _TEMPERATURES:
                    start = time.perf_counter()
                    error = ((answer(scale) - x).norm() / x.norm()).item()
                    best.append((error, 1e3 * (time.perf_counter() - start)))
                found.setdefault((name, method), []).append(min(best))
    return {k: tuple(map(statistics.mean, zip(*v, strict=True))) for k, v in found.items()}


def draw(results: dict[float, Results]) -> None:
    """Draw errors against N/L into docs/assets."""
    shares, names = [*results], [*dict.fromkeys(name for name, _ in next(iter(results.values())))]
    for tone in ("light", "dark"):
        with plt.style.context(ROOT / "examples" / f"{tone}.mplstyle"):
            figure, axes = plt.subplots(1, len(names), figsize=(9.4, 2.8), sharey=True)
            for ax, name in zip(axes, names, strict=True):
                for method, style in zip(METHODS, ("o-", "s-", ":", "^--"), strict=True):
                    y = [found[name, method][0] for found in results.values()]
                    ax.plot(shares, y, style, label=method, markersize=4)
                ax.axhline(_NOISE, color="0.6", linewidth=0.8)
                ax.set_xscale("log", base=2)
                ax.set_xticks(shares, [f"{x:g}" if x >= 1 else f"1/{1 / x:g}" for x in shares])
                ax.set(title=name, xlabel="N/L", ylim=(0, 1.05))
            axes[0].set_ylabel("relative error")
            handles, labels = axes[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=len(METHODS))
            figure.savefig(DOCS / "assets" / f"recall-{tone}.png")
            plt.close(figure)


def table(
    length: int = 256,
    shares: Sequence[float] = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1),
    seeds: int = 3,
    picture: bool = False,
) -> Table:
    """Measure all signals and methods."""
    results = {share: measure(length, round(share * length), seeds) for share in shares}
    if picture:
        draw(results)
    timed = [method for method in METHODS if method != PLACE]
    rows = []
    for name in dict.fromkeys(name for name, _ in results[shares[0]]):
        for share, found in results.items():
            errors = [f"{found[name, method][0]:.2f}" for method in METHODS]
            times = [f"{found[name, method][1]:.3g}" for method in timed]
            rows.append([name, f"{share:g}", *errors, *times])
    title = (
        f"{length} vectors of {_CHANNELS} channels, questions with noise of {_NOISE} standard "
        "deviations: relative error of the answers, and milliseconds for all of them."
    )
    return Table(title, ["signal", "N/L", *METHODS, *(f"{x}, ms" for x in timed)], rows)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    options = parser(__doc__, write=True).parse_args(arguments)
    torch.set_num_threads(1)
    sections = {"recall": lambda: [table(picture=options.write)]}
    return run("recall", sections, options.write, "learn/attention.md")


if __name__ == "__main__":
    sys.exit(main())
