"""Divergences of NUTS on models of bounded noise, with the prior of the scale plain and restricted.

The data are scikit-learn's. `--write` puts the table into docs/inference.md.
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

from .harness import Table, in_processes, parser, show_and_write

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


def prior(restricted: bool, low: Tensor) -> Any:
    """Return the prior of a half-width, restricted or not."""
    plain = dist.LogNormal(ZERO, ONE)
    return RestrictedPrior(plain, low) if restricted else plain


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


MODELS: dict[str, Callable[[bool, float], None]] = {
    "regression, one half-width": regression,
    "three groups, a half-width each": groups,
    "ellipse, latent scale_tril": ellipse,
}
STARTS = {"intercept": ZERO, "slopes": torch.zeros(3, dtype=DOUBLE)}


def run(job: tuple[str, float, bool, int, int]) -> tuple[int, Tensor]:
    """Return the divergences of a chain, and its half-widths (draws, ...)."""
    name, alpha, restricted, draws, seed = job
    torch.set_num_threads(1)  # the tensors are small

    def plain() -> None:
        MODELS[name](restricted, alpha)

    model = AutoSupportReparam()(plain) if restricted else plain
    width = 5 * ONE.expand([3] if MODELS[name] is groups else [])
    pyro.set_rng_seed(seed)
    kernel = NUTS(model, init_strategy=init_to_value(values={**STARTS, "scale": width}))
    mcmc = MCMC(kernel, draws, WARMUP, disable_progbar=True)
    mcmc.run()
    samples = mcmc.get_samples()
    if restricted:
        samples = Predictive(model, samples, return_sites=["scale"])()
    return len(mcmc.diagnostics()["divergences"]["chain 0"]), samples["scale"]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return 1 if 1 % of the draws with a restricted prior diverge."""
    options = parser(__doc__, write=True)
    options.add_argument("--draws", type=int, default=500, help="of each of two chains")
    chosen = options.parse_args(arguments)
    kinds = [(name, a, r) for name in MODELS for a in (2.0, 1.5) for r in (False, True)]
    rows, failed = [], False
    jobs = [(*kind, chosen.draws, seed) for kind in kinds for seed in (0, 1)]
    results = in_processes(run, jobs, 2)
    for i, (name, alpha, restricted) in enumerate(kinds):
        counts, chains = zip(*results[2 * i : 2 * i + 2], strict=True)
        count, x = sum(counts), torch.stack(chains)
        size = effective_sample_size(x, 0, 1)
        numbers = (y.reshape(-1) for y in (x.mean((0, 1)), x.std((0, 1)), size))
        cells = [f"{m:.3f} ± {s / n**0.5:.3f}, {s:.3f}" for m, s, n in zip(*numbers, strict=True)]
        kind = "restricted" if restricted else "plain"
        total = f"{count} of {2 * chosen.draws}"
        rows.append([name, f"{alpha:g}", kind, total, "; ".join(cells)])
        failed |= restricted and count >= 0.01 * 2 * chosen.draws
    header = ["model", "alpha", "prior", "divergences", "half-width: mean ± error, sd"]
    title = "NUTS on bounded noise, two chains"
    command = "python -m benchmarks.bounded_noise --write"
    table = Table(title, header, rows)
    show_and_write("bounded noise", command, [table], chosen.write, "inference.md")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
