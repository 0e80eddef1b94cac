"""Divergences of NUTS on models of bounded noise, with the prior of the scale plain and restricted.

Usage: python -m benchmarks.bounded_noise [--draws 500]
"""

import sys
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import MCMC, NUTS, Predictive
from pyro.infer.autoguide import init_to_value
from pyro.ops.stats import effective_sample_size
from sklearn.datasets import load_diabetes, load_iris
from torch import Tensor

import sparsefam as sf
from sparsefam.inference import AutoSupportReparam, RestrictedPrior

from .harness import Table, parser

DOUBLE = torch.float64
ZERO, ONE = torch.tensor([0.0, 1.0], dtype=DOUBLE)
WARMUP = 300


def standardized(x: Any) -> Tensor:
    """Return columns with mean 0 and standard deviation 1."""
    t = torch.as_tensor(x, dtype=DOUBLE)
    return (t - t.mean(0)) / t.std(0)


_data = load_diabetes()
X, Y = standardized(_data.data[:, [2, 8, 3]]), standardized(_data.target)
# Sepal lengths and widths of three species of 50 flowers.
IRIS = standardized(load_iris().data[:, :2]).reshape(3, 50, 2)


def prior(restricted: bool, low: Tensor, high: Tensor | None = None, law: Any = None) -> Any:
    """Return the prior of a site, restricted or not."""
    law = law or dist.LogNormal(ZERO, ONE)
    return RestrictedPrior(law, low, high) if restricted else law


def regression(restricted: bool, alpha: float) -> None:
    """Regress the progress of diabetes on three features; one half-width."""
    intercept = pyro.sample("intercept", dist.Normal(ZERO, ONE))
    slopes = pyro.sample("slopes", dist.Normal(ZERO, ONE).expand([3]).to_event(1))
    loc = intercept + X @ slopes
    scale = pyro.sample("scale", prior(restricted, (Y - loc).abs().amax()))
    pyro.sample("y", sf.BetaGaussian(loc, scale, alpha).to_event(1), obs=Y)


def groups(restricted: bool, alpha: float) -> None:
    """Sepal lengths of each species around a mean, with a half-width of its own."""
    with pyro.plate("species", 3):
        loc = pyro.sample("loc", dist.Normal(ZERO, ONE))
        residuals = IRIS[..., 0] - loc.unsqueeze(-1)
        scale = pyro.sample("scale", prior(restricted, residuals.abs().amax(-1)))
        noise = sf.BetaGaussian(loc.unsqueeze(-1), scale.unsqueeze(-1), alpha)
        pyro.sample("y", noise.expand([3, 50]).to_event(1), obs=IRIS[..., 0])


def ellipse(restricted: bool, alpha: float) -> None:
    """Sepal lengths and widths of one species in an ellipse of latent place, shape and size."""
    loc = pyro.sample("loc", dist.Normal(torch.zeros(2, dtype=DOUBLE), ONE).to_event(1))
    shape = pyro.sample("shape", dist.LKJCholesky(2, ONE))
    radii = torch.linalg.solve_triangular(shape, (IRIS[1] - loc).mT, upper=False).norm(dim=0)
    scale = pyro.sample("scale", prior(restricted, radii.amax()))
    noise = sf.MultivariateBetaGaussian(loc, scale * shape, alpha)
    pyro.sample("y", noise.expand([50]).to_event(1), obs=IRIS[1])


def place(restricted: bool, alpha: float) -> None:
    """Sepal lengths of one species around a mean, with a known half-width."""
    y, half = IRIS[1, :, 0], 1.6 * ONE
    ends = (y - half).amax(), (y + half).amin()
    loc = pyro.sample("loc", prior(restricted, *ends, law=dist.Normal(ZERO, ONE)))
    pyro.sample("y", sf.BetaGaussian(loc, half, alpha).expand([50]).to_event(1), obs=y)


MODELS: dict[str, Callable[[bool, float], None]] = {
    "regression, one half-width": regression,
    "three groups, a half-width each": groups,
    "ellipse, latent scale_tril": ellipse,
    "one location, known half-width": place,
}
STARTS = {"intercept": ZERO, "slopes": torch.zeros(3, dtype=DOUBLE)}


def run(name: str, alpha: float, restricted: bool, draws: int) -> tuple[int, Tensor]:
    """Return the divergences of two chains, and draws (2, draws, ...) of the scale or location."""

    def plain() -> None:
        MODELS[name](restricted, alpha)

    model = AutoSupportReparam()(plain) if restricted else plain
    site = "loc" if name.startswith("one location") else "scale"
    width = 5 * ONE.expand([3] if name.startswith("three") else [])
    start = init_to_value(values={**STARTS, "scale": width} if site == "scale" else STARTS)
    found, divergences = [], 0
    for seed in range(2):
        pyro.set_rng_seed(seed)
        mcmc = MCMC(NUTS(model, init_strategy=start), draws, WARMUP, disable_progbar=True)
        mcmc.run()
        divergences += sum(map(len, mcmc.diagnostics()["divergences"].values()))
        samples = mcmc.get_samples()
        if restricted:
            samples = Predictive(model, samples, return_sites=[site])()
        found.append(samples[site])
    return divergences, torch.stack(found)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return 1 if 1 % of the draws with a restricted prior diverge."""
    options = parser(__doc__)
    options.add_argument("--draws", type=int, default=500, help="of each of two chains")
    draws = options.parse_args(arguments).draws
    torch.set_num_threads(1)  # the tensors are small
    rows, failed = [], False
    for name in MODELS:
        for alpha in (2.0, 1.5):
            for restricted in (False, True):
                count, x = run(name, alpha, restricted, draws)
                size = effective_sample_size(x, 0, 1)
                means, spreads = x.mean((0, 1)), x.std((0, 1))
                moments = ", ".join(
                    f"{m:.3f} +- {s / n**0.5:.3f}, {s:.3f}"
                    for m, s, n in zip(
                        means.reshape(-1), spreads.reshape(-1), size.reshape(-1), strict=True
                    )
                )
                prior = "restricted" if restricted else "plain"
                rows.append([name, f"{alpha}", prior, f"{count} of {2 * draws}", moments])
                print("  ".join(rows[-1]), flush=True)
                failed |= restricted and count >= 0.01 * 2 * draws
    header = ["model", "alpha", "prior", "divergences", "mean and standard deviation"]
    Table("NUTS on bounded noise", header, rows).show()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
