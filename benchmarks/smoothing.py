"""Value functions between observations with gaps: how much observations count, and errors.

Contexts of a wave are read by truncated parabolas of half-width 0.23 at nine places, from the first
40, 31 or 25 of 40 random times, 20 draws; errors are taken where windows are within the times.
`--write` puts the tables into docs/learn/attention.md.
"""

import sys

import torch
from torch import Tensor, nn

import sparsefam as sf
from sparsefam.attention import ContinuousAttention, RidgeRegression
from sparsefam.bases import GaussianRBF

from .harness import Table, parser, run

DRAWS = 20
BASES = {
    "32, 0.05": GaussianRBF.grid(32, 0.05),
    "16, 0.1": GaussianRBF.grid(16, 0.1),
    "64, 0.02": GaussianRBF.grid(64, 0.02),
    "left out": None,
}
FITS: dict[str, dict[str, float]] = {
    "smoothing=0.003, the default": {},
    "smoothing=0.01": {"smoothing": 0.01},
    "smoothing=0.1": {"smoothing": 0.1},
    "penalty=0.01": {"penalty": 0.01},
    "penalty=1": {"penalty": 1.0},
}


def contexts(regression: RidgeRegression) -> tuple[Tensor, Tensor, Tensor]:
    """Return sums of absolute weights, errors for the wave, and with noise of deviation 0.5."""
    grid = torch.linspace(0, 1, 2001, dtype=torch.float64)
    density = sf.TruncatedParabola(torch.linspace(0.1, 0.9, 9, dtype=torch.float64), 0.23)
    share = density.prob(grid.unsqueeze(-1))
    truth = torch.sin(9 * grid) @ (share / share.sum(0))
    totals, errors, noisy = [], [], []
    for seed in range(DRAWS):
        draw = torch.Generator().manual_seed(seed)
        times = torch.rand(40, generator=draw, dtype=torch.float64).sort().values
        noise = 0.5 * torch.randn(40, generator=draw, dtype=torch.float64)
        for n in (40, 31, 25):
            t, wave = times[:n], torch.sin(9 * times[:n])
            weights = regression.observation_weights(density[None], t, wave.reshape(1, -1, 1))[0]
            within = density.loc + 0.15 < t[-1]
            totals.append(weights.abs().sum(-1))
            errors.append((weights @ wave - truth)[within].abs().mean())
            noisy.append((weights @ (wave + noise[:n]) - truth)[within].square().mean().sqrt())
    return torch.cat(totals), torch.stack(errors), torch.stack(noisy)


def smoothing_table() -> Table:
    """Compare bases and penalties."""
    rows = []
    for (basis, functions), (name, options) in (
        (b, f) for b in BASES.items() for f in FITS.items()
    ):
        total, error, noisy = contexts(RidgeRegression(functions, **options))
        cells = [f"{total.mean():.2f} / {total.max():.1f}", f"{error.mean():.3f}"]
        rows.append([basis, name, *cells, f"{noisy.mean():.3f}"])
    title = (
        f"Contexts of sin(9 t), {DRAWS} draws of times: the sum of absolute weights of the "
        "observations, mean and largest; the mean error; and the root mean square error with noise "
        "of deviation 0.5."
    )
    header = ["basis (N, width)", "fit", "sum of absolute weights", "error", "error with noise"]
    return Table(title, header, rows)


def start_table() -> Table:
    """Compare the sizes of what layers return when training starts."""
    layers: dict[str, tuple[float | None, float | None]] = {
        "the default": (None, 0.1),
        "layer_scale=None": (None, None),
        "penalty=0.01, layer_scale=None": (0.01, None),
    }
    basis = GaussianRBF.grid(32, widths=0.05)
    rows, padding = [], torch.arange(40) >= torch.tensor([40, 25, 31])[:, None]
    for name in ("nn.MultiheadAttention", *layers):
        sizes, totals = [], []
        for seed in range(DRAWS):
            torch.manual_seed(seed)
            times, x = torch.rand(3, 40).sort(-1).values, torch.randn(3, 40, 16)
            with torch.no_grad():
                if name not in layers:
                    layer = nn.MultiheadAttention(16, 4, batch_first=True)
                    context = layer(x, x, x, key_padding_mask=padding)[0]
                else:
                    penalty, scale = layers[name]
                    regression = RidgeRegression(basis, penalty, validate_args=False)
                    layer = ContinuousAttention(
                        16, 4, regression, layer_scale=scale, batch_first=True
                    )
                    inputs = x, x, x, times, padding
                    context = layer(*inputs)[0]
                    totals.append(layer.absolute_weight(*inputs).transpose(1, 2)[~padding])
            sizes.append(context[~padding].square().mean().sqrt())
        size = torch.stack(sizes)
        cells = [f"{size.mean():.2f} / {size.max():.2f}", "1 / 1"]
        if totals:
            total = torch.cat(totals)
            cells[1] = f"{total.mean():.2f} / {total.max():.1f}"
        rows.append([name, *cells])
    title = (
        f"README's layer on three series of noise of size 1, {DRAWS} seeds, mean and largest: the "
        "root mean square of the output, and the sum of absolute weights."
    )
    return Table(title, ["layer", "output", "sum of absolute weights"], rows)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    options = parser(__doc__, write=True).parse_args(arguments)
    tables = {"smoothing": lambda: [smoothing_table(), start_table()]}
    return run("smoothing", tables, options.write, "learn/attention.md")


if __name__ == "__main__":
    sys.exit(main())
