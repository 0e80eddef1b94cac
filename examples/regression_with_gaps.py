"""Predict sets that may be two intervals: a mixture for each input, calibrated by conformal sets.

After a long wait an eruption of Old Faithful lasts about two minutes or more than four. A network
returns a `Mixture` of beta-Gaussians and is trained by the kernel score (`losses.mmd`). Its sets of
highest density are calibrated on held-out answers (`conformal_mass`). Beside it: MAPIE's
conformalized quantile regression, with linear and with boosted quantiles.

`python -m examples.regression_with_gaps` prints coverage and length for ten splits of each data set
in about ten minutes; `--write` puts the table into docs/tutorials/regression-with-gaps.md, and
`--draw` draws the sets into docs/assets. It needs `pip install --group regression` for MAPIE and
data.

References:
    Azzalini and Bowman (1990), A look at some data on the Old Faithful geyser. Applied Statistics
    39. The data, as those of Fiji's earthquakes, come with R; irises as scikit-learn has them.
    Romano, Patterson and Candes (2019), Conformalized quantile regression. NeurIPS 32.
    Izbicki, Shimizu and Stern (2022), CD-split and HPD-split. JMLR 23.
"""

import math
import warnings
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_iris
from torch import Tensor, nn
from tqdm import tqdm

import sparsefam as sf
from benchmarks.harness import DOCS, Table, parser, show_and_write
from sparsefam.estimators import conformal_mass

from .data import read_columns

Floats = NDArray[np.float64]
COVERAGE, SEEDS = 0.9, 10
# Of the network: components, units, steps, rows of a step; and of the kernel, in deviations of y.
COMPONENTS, UNITS, STEPS, ROWS, WIDTH = 3, 32, 300, 128, 0.3
# Weight and standard deviation of a density that is positive where the head's is zero.
WIDE = 0.02, 2.0
PAGE = "tutorials/regression-with-gaps.md"


def data() -> dict[str, tuple[Floats, Floats]]:
    """Return inputs (n, D) and answers (n,)."""
    geyser = read_columns("MASS/geyser")
    faithful, quakes = read_columns("datasets/faithful"), read_columns("datasets/quakes")
    petals = load_iris().data
    return {
        "eruption, by the wait before": (geyser["waiting"][:, None], geyser["duration"]),
        "length of petals, by width of sepals": (petals[:, 1:2], petals[:, 2]),
        "depth of earthquakes, by latitude": (quakes["lat"][:, None], quakes["depth"]),
        "wait, by the eruption before": (faithful["eruptions"][:, None], faithful["waiting"]),
    }


class Head(nn.Module):
    """A network from standardized inputs (n, D) to mixtures (n,) of beta-Gaussians."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(inputs, UNITS), nn.Tanh(), nn.Linear(UNITS, 3 * COMPONENTS)
        )
        with torch.no_grad():
            self.body[-1].bias[COMPONENTS : 2 * COMPONENTS] = torch.linspace(-1, 1, COMPONENTS)

    def forward(self, x: Tensor) -> sf.Mixture:
        logits, loc, half = self.body(x).chunk(3, -1)
        parts = sf.BetaGaussian(loc, 0.05 + nn.functional.softplus(half), 1.5, validate_args=False)
        return sf.Mixture(logits, parts, validate_args=False)


def fit(x: Tensor, y: Tensor, seed: int) -> Head:
    """Train a head by the kernel score, on random rows."""
    torch.manual_seed(seed)
    head = Head(x.shape[1])
    optimizer = torch.optim.AdamW(head.parameters(), 0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        rows = torch.randperm(len(x))[:ROWS]
        loss = sf.losses.mmd(head(x[rows]), y[None, rows], WIDTH, order=8).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return head.eval()


def positive(p: sf.Mixture) -> sf.Mixture:
    """Mix in a wide density, so that answers off the support of p have a rank."""
    share, wide = WIDE
    logits = torch.tensor([1 - share, share]).log()
    return sf.Mixture(logits, [p, sf.Normal(torch.zeros(p.batch_shape), wide)])


# Prediction sets (m, K, 2) at inputs (m, D), padded with NaN

Rows = tuple[Floats, Floats]
Method = Callable[[Rows, Rows, Floats, int], Floats]


def by_density(train: Rows, held: Rows, at: Floats, seed: int) -> Floats:
    """Train a head on the rows of `train`, and calibrate its sets on those of `held`."""
    (x, y), center, scale = train, train[1].mean(), train[1].std()

    def inputs(rows: Floats) -> Tensor:
        return torch.from_numpy((rows - x.mean(0)) / x.std(0)).float()

    def answers(rows: Floats) -> Tensor:
        return torch.from_numpy((rows - center) / scale).float()

    head = fit(inputs(x), answers(y), seed)
    with torch.no_grad():
        mass = conformal_mass(positive(head(inputs(held[0]))), answers(held[1]), COVERAGE)
        sets = positive(head(inputs(at))).highest_density(mass).intervals
    return center + scale * sets.double().numpy()


def by_quantiles(boosted: bool) -> Method:
    """Return MAPIE's conformalized quantile regression."""
    from mapie.regression import ConformalizedQuantileRegressor
    from sklearn.ensemble import GradientBoostingRegressor
    from sklearn.linear_model import QuantileRegressor

    def sets(train: Rows, held: Rows, at: Floats, seed: int) -> Floats:
        model = QuantileRegressor(alpha=0.0)
        if boosted:
            options = {"n_estimators": 50, "max_depth": 2, "min_samples_leaf": 9}
            model = GradientBoostingRegressor(loss="quantile", random_state=seed, **options)
        calibrated = ConformalizedQuantileRegressor(model, confidence_level=COVERAGE)
        with warnings.catch_warnings():
            # Quantiles of few rows may cross, which MAPIE reports.
            warnings.simplefilter("ignore", UserWarning)
            _, found = calibrated.fit(*train).conformalize(*held).predict_interval(at)
        return np.moveaxis(found, -1, 1)

    return sets


def split(x: Floats, y: Floats, seed: int) -> list[Rows]:
    """Return rows to train, to calibrate and to test: three, one and one fifth, at random."""
    rows, n = np.random.default_rng(seed).permutation(len(x)), len(x)
    return [(x[part], y[part]) for part in np.split(rows, [n - 2 * (n // 5), n - n // 5])]


def check(method: Method, x: Floats, y: Floats, seed: int) -> tuple[float, float, float]:
    """Return coverage, mean length, and the share of sets with a gap."""
    train, held, (at, answers) = split(x, y, seed)
    low, high = np.moveaxis(method(train, held, at, seed), -1, 0)
    covered = ((low <= answers[:, None]) & (answers[:, None] <= high)).any(-1)
    gaps = (~np.isnan(low)).sum(-1) > 1
    return covered.mean(), np.nansum(high - low, -1).mean(), gaps.mean()


def compare(x: Floats, y: Floats, seeds: int = SEEDS) -> dict[str, Floats]:
    """Return coverage, length and share of gaps (seeds, 3) of each method."""
    methods = {
        "mixture": by_density,
        "CQR, linear": by_quantiles(False),
        "CQR, boosted": by_quantiles(True),
    }
    return {
        name: np.array([check(method, x, y, seed) for seed in range(seeds)])
        for name, method in methods.items()
    }


def results() -> Table:
    rows = []
    for name, (x, y) in tqdm(data().items(), disable=None):
        for method, found in compare(x, y).items():
            mean, error = found.mean(0), found.std(0, ddof=1) / math.sqrt(len(found))
            cells = f"{mean[0]:.1%} ± {error[0]:.1%}", f"{mean[1]:.3g} ± {error[1]:.1g}"
            rows.append([f"{name}, {len(y)}", method, *cells, f"{mean[2]:.0%}"])
    title = (
        f"Nominal coverage {COVERAGE:.0%}: measured coverage, mean length and share of sets with a "
        f"gap; means and standard errors of {SEEDS} random splits."
    )
    return Table(title, ["answer, observations", "sets", "coverage", "length", "gap"], rows)


def draw(path: Path) -> None:
    """Draw the sets of eruptions after all waits, and the eruptions that they are not fitted to."""
    train, held, test = split(*data()["eruption, by the wait before"], 0)
    waits = np.linspace(43, 108, 400)
    figure, axes = plt.subplots(1, 2, figsize=(9.4, 2.9), sharey=True, layout="constrained")
    methods = {"mixture": by_density, "CQR, boosted": by_quantiles(True)}
    for ax, (name, method) in zip(axes, methods.items(), strict=True):
        # From the uppermost interval down, the padding last.
        ends = -np.sort(-method(train, held, waits[:, None], 0), 1)
        for low, high in zip(ends[..., 0].T, ends[..., 1].T, strict=True):
            ax.fill_between(waits, low, high, color="C0", alpha=0.3, linewidth=0)
        ax.plot(test[0][:, 0], test[1], ".", color="C1", markersize=5)
        ax.set(title=name, xlabel="wait before the eruption, minutes")
    axes[0].set_ylabel("eruption, minutes")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    options = parser(__doc__, write=True)
    options.add_argument("--draw", action="store_true", help="draw the picture only")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    if chosen.draw:
        draw(DOCS / "assets" / "regression-with-gaps.png")
        return
    command = "python -m examples.regression_with_gaps"
    show_and_write("gaps", command, [results()], chosen.write, PAGE)


if __name__ == "__main__":
    main()
