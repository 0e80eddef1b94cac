"""Compare Hamiltonian chains on moving supports with exact posteriors: `make inference`.

Prints the table of docs/inference.md in about three minutes; returns 1 if a limit is exceeded.
"""

import sys
import warnings
from collections.abc import Callable, Iterable
from statistics import NormalDist
from typing import Any, NamedTuple

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import MCMC, NUTS, Predictive
from pyro.ops.stats import effective_sample_size, split_gelman_rubin
from torch import Tensor

from sparsefam import Mixture, TruncatedParabola, TruncatedParaboloid
from sparsefam.inference import AutoSupportReparam

from .harness import Table, parser

DOUBLE = torch.float64
ZERO, ONE = torch.tensor([0.0, 1.0], dtype=DOUBLE)

Moments = tuple[Tensor, Tensor]


class Posterior(NamedTuple):
    """A Pyro model and the means and variances of its sites.

    Attributes:
        model: A model whose supports move.
        exact: Mean and variance by the name of a site; `log x` is the logarithm of site x.
        draws: Of each chain, for the table.
        jit: Whether Pyro can compile it.
    """

    model: Callable[[], object]
    exact: Callable[[], dict[str, Moments]]
    draws: int
    jit: bool = True


def moments(weights: Tensor, values: Tensor) -> Moments:
    """Return mean and variance of values on a grid under unnormalised weights."""
    mass = weights.sum()
    mean = (weights * values).sum() / mass
    return mean, (weights * (values - mean).square()).sum() / mass


def midpoints(low: float, high: float, count: int) -> Tensor:
    """Return the midpoints of equal parts of an interval."""
    return low + (torch.arange(count, dtype=DOUBLE) + 0.5) * (high - low) / count


def uniform() -> Tensor:
    """Draw y from a unit interval that begins at x."""
    x = pyro.sample("x", dist.Normal(ZERO, ONE))
    return pyro.sample("y", dist.Uniform(x, x + 1))


def _exact_uniform() -> dict[str, Moments]:
    return {"x": (ZERO, ONE), "y_base": (ONE / 2, ONE / 12), "y": (ONE / 2, 13 * ONE / 12)}


def observed_uniform() -> None:
    """Observe y with noise."""
    pyro.sample("o", dist.Normal(uniform(), 0.5), obs=ONE)


def _exact_observed_uniform() -> dict[str, Moments]:
    x, v = midpoints(-7, 7, 1400)[:, None], midpoints(0, 1, 200)
    weights = torch.exp(-x.square() / 2 - (x + v - 1).square() / (2 * 0.25))
    return {"x": moments(weights, x.expand_as(weights)), "y": moments(weights, x + v)}


def pair() -> None:
    """Draw from a mixture whose components overlap where |gap| < 2."""
    gap = pyro.sample("gap", dist.Uniform(ONE, 3 * ONE))
    loc = torch.stack([ZERO, gap])
    t = pyro.sample("t", Mixture(torch.zeros(2, dtype=DOUBLE), TruncatedParabola(loc, ONE)))
    pyro.sample("o", dist.Normal(t, 1.0), obs=ONE)


def _exact_pair() -> dict[str, Moments]:
    gap, u = midpoints(1, 3, 400)[:, None], midpoints(-1, 1, 400)
    t = torch.stack([u.expand(400, 400), gap + u])
    weights = (1 - u.square()) * torch.exp(-(t - 1).square() / 2)
    return {"gap": moments(weights, gap.expand_as(weights)), "t": moments(weights, t)}


_SHAPE = torch.tensor([[1.0, 0.0], [0.8, 0.5]], dtype=DOUBLE)
_SEEN, _SEEN_NOISE = torch.tensor([0.9, -0.3], dtype=DOUBLE), 0.3


def ellipse() -> None:
    """Observe a draw from a paraboloid whose centre and size are latent."""
    centre = pyro.sample("centre", dist.Normal(torch.zeros(2, dtype=DOUBLE), ONE).to_event(1))
    size = pyro.sample("size", dist.LogNormal(ZERO, 0.5 * ONE))
    t = pyro.sample("t", TruncatedParaboloid(centre, size * _SHAPE))
    pyro.sample("o", dist.Normal(t, _SEEN_NOISE).to_event(1), obs=_SEEN)


def _exact_ellipse() -> dict[str, Moments]:
    """Integrate over u in the unit disc and the size; given these, the centre is normal."""
    radius = midpoints(0, 1, 60)
    angle = 2 * torch.pi * torch.arange(48, dtype=DOUBLE) / 48
    r, a, z = torch.meshgrid(radius, angle, torch.linspace(-3, 3, 200, dtype=DOUBLE), indexing="ij")
    u = torch.stack([r * a.cos(), r * a.sin()], -1)
    offset = z.exp().unsqueeze(-1) * (u @ _SHAPE.T)
    left = _SEEN - offset
    share = 1 / (1 + _SEEN_NOISE**2)
    weights = r * (1 - r.square()) * torch.exp(-2 * z.square() - share * left.square().sum(-1) / 2)

    def both(means: Tensor) -> Moments:
        """Return the moments of a 2-D vector that is normal around `means` given the grid."""
        each = [moments(weights, means[..., k]) for k in range(2)]
        mean, variance = (torch.stack(x) for x in zip(*each, strict=True))
        return mean, variance + _SEEN_NOISE**2 * share

    centre, t = both(share * left), both(share * left + offset)
    return {"log size": moments(weights, z), "centre": centre, "t": t}


_GROUPS = torch.tensor([-0.4, 0.3, 1.1], dtype=DOUBLE)
_NOISE = 0.4


def hierarchy() -> None:
    """Observe three draws from a parabola whose location and scale are latent."""
    loc = pyro.sample("loc", dist.Normal(ZERO, ONE))
    scale = pyro.sample("scale", dist.LogNormal(ZERO, 0.5 * ONE))
    with pyro.plate("groups", len(_GROUPS)):
        t = pyro.sample("t", TruncatedParabola(loc, scale))
        pyro.sample("y", dist.Normal(t, _NOISE), obs=_GROUPS)


def _exact_hierarchy() -> dict[str, Moments]:
    loc, log_scale = midpoints(-5, 5, 250)[:, None], midpoints(-2.5, 2.5, 200)
    scale, u = log_scale.exp(), midpoints(-1, 1, 80)[:, None, None]
    density, t = 1 - u.square(), loc + scale * u
    near = [density * torch.exp(-(t - y).square() / (2 * _NOISE**2)) for y in _GROUPS]
    weights = torch.exp(-loc.square() / 2 - 2 * log_scale.square())
    for part in near:
        weights = weights * part.sum(0)
    each = [moments(weights / part.sum(0) * part, t) for part in near]
    mean, variance = (torch.stack(x) for x in zip(*each, strict=True))
    return {
        "loc": moments(weights, loc.expand_as(weights)),
        "log scale": moments(weights, log_scale.expand_as(weights)),
        "t": (mean, variance),
    }


POSTERIORS = {
    "uniform on a moving interval, prior": Posterior(uniform, _exact_uniform, 2400),
    "the same, posterior": Posterior(observed_uniform, _exact_observed_uniform, 2400),
    "paraboloid in 2-D, centre and size latent": Posterior(ellipse, _exact_ellipse, 1900),
    "three groups, parabola of latent place and size": Posterior(hierarchy, _exact_hierarchy, 4700),
    "mixture of parabolas that meet and part": Posterior(pair, _exact_pair, 900, jit=False),
}
# After 150 warm-up steps, some chains take steps so long that they stand still for dozens.
_CHAINS, _WARMUP = 2, 400
# The largest R-hat and the least effective sample size.
_R_HAT, _SIZE = 1.01, 150.0
# The probability that correct chains exceed a limit in the table. Each deviation is normal, and
# the worst of some dozens exceeds three standard errors in one table of eleven.
_FALSE_ALARM = 0.01


class Verdict(NamedTuple):
    """The worst diagnostics of all numbers of a site, or of all sites.

    Attributes:
        deviation: Of a mean or a variance from the exact one, in Monte Carlo standard errors.
        r_hat: Largest split R-hat.
        size: Smallest effective sample size, of the numbers and of their squared deviations.
        count: Number of means and variances.
    """

    deviation: float
    r_hat: float
    size: float
    count: int


def sample(model: Callable[..., Any], draws: int, jit: bool = False) -> dict[str, Tensor]:
    """Return draws (chains, draws, ...) of all sites of a model, deterministic ones too."""
    chains = []
    for seed in range(_CHAINS):
        pyro.set_rng_seed(seed)
        kernel = NUTS(model, max_tree_depth=4, jit_compile=jit, ignore_jit_warnings=jit)
        mcmc = MCMC(kernel, draws, warmup_steps=_WARMUP, disable_progbar=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".torch.jit.* is deprecated", DeprecationWarning)
            mcmc.run()
        samples = mcmc.get_samples()
        names = [name for name in pyro.poutine.trace(model).get_trace().nodes if name[0] != "_"]
        rest = Predictive(model, samples, return_sites=names, parallel=False)()
        chains.append({**rest, **samples})
    return {name: torch.stack([chain[name] for chain in chains]) for name in chains[0]}


def verdict(samples: Tensor, mean: Tensor | float, variance: Tensor | float) -> Verdict:
    """Judge draws (chains, draws, ...) of numbers whose means and variances are known."""
    deviations, sizes, count = [], [], 0
    for x, true in ((samples, mean), ((samples - mean).square(), variance)):
        size = effective_sample_size(x, 0, 1)
        error = (x.flatten(0, 1).var(0) / size).sqrt()
        deviations.append(((x.mean((0, 1)) - true).abs() / error).max().item())
        sizes.append(size.min().item())
        count += size.numel()
    r_hat = split_gelman_rubin(samples, 0, 1).max().item()
    return Verdict(max(deviations), r_hat, min(sizes), count)


def judged(posterior: Posterior, draws: int) -> dict[str, Verdict]:
    """Run two chains on a posterior and judge each site."""
    chains = sample(AutoSupportReparam()(posterior.model), draws, jit=posterior.jit)
    verdicts = {}
    for name, (mean, variance) in posterior.exact().items():
        samples = chains[name.removeprefix("log ")]
        samples = samples.log() if name.startswith("log ") else samples
        verdicts[name] = verdict(samples, mean, variance)
    return verdicts


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst diagnostics of all sites."""
    deviations, r_hats, sizes, counts = zip(*verdicts, strict=True)
    return Verdict(max(deviations), max(r_hats), min(sizes), sum(counts))


def allowed(count: int) -> float:
    """Return the limit, in standard errors, of the worst deviation of so many numbers."""
    share = _FALSE_ALARM / (len(POSTERIORS) * count)
    return NormalDist().inv_cdf(1 - share / 2)


def unmet(result: Verdict) -> list[str]:
    """Return the limits that are exceeded."""
    broken = {
        "deviation": not result.deviation < allowed(result.count),
        "r_hat": not result.r_hat < _R_HAT,
        "size": not result.size > _SIZE,
    }
    return [name for name, is_broken in broken.items() if is_broken]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return 1 if a limit is exceeded."""
    options = parser(__doc__)
    options.add_argument("--draws", type=int, help="of each chain (default: as in the page)")
    chosen = options.parse_args(arguments)
    torch.set_num_threads(1)  # the tensors are small
    rows, failures = [], []
    for name, posterior in POSTERIORS.items():
        draws = chosen.draws or posterior.draws
        result = worst(judged(posterior, draws).values())
        limit = allowed(result.count)
        row = [name, f"2 x {draws}", f"{result.deviation:.1f}", f"{limit:.1f}"]
        rows.append([*row, f"{result.r_hat:.4f}", f"{result.size:.0f}"])
        failures += [f"{name}: {limit}" for limit in unmet(result)]
        print("  ".join(rows[-1]), flush=True)
    header = ["model", "draws", "deviation in standard errors", "allowed"]
    header += ["R-hat", "effective sample size"]
    Table("NUTS against quadrature, two chains; the worst of all sites", header, rows).show()
    for line in failures:
        print(f"limit not met: {line}")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
