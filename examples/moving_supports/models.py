"""Models whose supports move: plain Pyro, with data.

Each is a function of its data. Other libraries can take the models without this package, except
for the four that sample its densities. Sites are named like their variables.
"""

import json
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from sparsefam import BetaGaussian, Mixture, Triangular, TruncatedParabola, TruncatedParaboloid
from sparsefam.inference import RestrictedPrior


def data(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


ONE = torch.ones((), dtype=torch.float64)


def interval(seen: Tensor | None = ONE) -> None:
    """A unit interval that begins at x, and a noisy observation of a number in it: numpyro#241."""
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    y = pyro.sample("y", dist.Uniform(x, x + 1))
    pyro.sample("seen", dist.Normal(y, 0.5), obs=seen)


GARCH = json.loads((Path(__file__).parent / "garch11.json").read_text(encoding="utf-8"))
RETURNS = data(*GARCH["returns"])


def garch11(seen: Tensor = RETURNS) -> None:
    """Volatility in discrete time, stationary if alpha1 + beta1 < 1: posteriordb, Pyro#2763."""
    mu = pyro.sample("mu", dist.Normal(0.0, 100.0))
    alpha0 = pyro.sample("alpha0", dist.HalfNormal(100.0))
    alpha1 = pyro.sample("alpha1", dist.Uniform(0.0, 1.0))
    beta1 = pyro.sample("beta1", dist.Uniform(0.0, 1 - alpha1))
    pyro.factor("flat", torch.log(1 - alpha1))  # as in Stan, on the whole triangle
    mu, alpha0, alpha1, beta1 = (x[..., None] for x in (mu, alpha0, alpha1, beta1))
    shocks = alpha0 + alpha1 * (seen[:-1] - mu) ** 2
    # v[t] = shocks[t] + beta1 v[t - 1], in steps that double.
    v = torch.concatenate([0.25 * torch.ones_like(mu), shocks], -1)
    for lag in (1, 2, 4, 8, 16, 32, 64, 128):
        earlier = torch.concatenate([torch.zeros_like(v[..., :lag]), v[..., :-lag]], -1)
        v = v + beta1**lag * earlier
    pyro.sample("seen", dist.Normal(mu, torch.sqrt(v)).to_event(1), obs=seen)


GROUPS = data(-0.4, 0.3, 1.1)


def hierarchy(seen: Tensor | None = GROUPS) -> None:
    """Means of groups within bounds that are learned."""
    low = pyro.sample("low", dist.Normal(-1.0, 1.0))
    width = pyro.sample("width", dist.LogNormal(0.5, 0.5))
    with pyro.plate("groups", 3):
        mean = pyro.sample("mean", dist.Uniform(low, low + width))
        pyro.sample("seen", dist.Normal(mean, 0.4), obs=seen)


def triangle(seen: Tensor | None = GROUPS) -> None:
    """Means of groups with a triangular density whose ends are learned."""
    low = pyro.sample("low", dist.Normal(-1.0, 1.0))
    width = pyro.sample("width", dist.LogNormal(0.5, 0.5))
    with pyro.plate("groups", 3):
        mean = pyro.sample("mean", Triangular(low + width / 2, width / 2))
        pyro.sample("seen", dist.Normal(mean, 0.4), obs=seen)


TIMES = torch.linspace(-1, 1, 10, dtype=torch.float64)
LINE = data(-1.15, -0.08, -0.61, 0.31, 0.18, -0.35, 0.93, 0.44, 1.21, 0.65)


def bounded_noise(seen: Tensor | None = LINE, restricted: bool = False) -> None:
    """A line and noise that never exceeds a half-width, which is learned.

    `restricted` limits the prior of the half-width to where the likelihood is positive. The
    posterior stays the same, and chains no longer diverge where the likelihood ends.
    """
    start = pyro.sample("start", dist.Normal(0.0, 1.0))
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
    line = start + slope * TIMES
    prior = dist.LogNormal(0.0, 0.5)
    if restricted:
        largest = (seen - line).abs().amax(-1).reshape(start.shape)
        prior = RestrictedPrior(prior, low=largest)
    half_width = pyro.sample("half_width", prior)
    with pyro.plate("times", 10):
        pyro.sample("seen", BetaGaussian(line, half_width, alpha=1.5), obs=seen)


HOURS = torch.arange(10, dtype=torch.float64)
CHANNELS = data(
    [2.1, 2.4, 3.0, 4.1, 5.2, 6.0, 6.3, 6.1, 5.5, 4.6],
    [9.0, 8.1, 6.9, 6.2, 5.0, 4.4, 3.9, 2.7, 2.2, 1.0],
)
LOGGED = data(4.9, 4.6)
LEVELS = data(0.1, -0.3, 0.6, 1.4, 0.9, 1.3, 1.6, 0.4, -0.2, 0.2)


def overlap(start: Tensor, end: Tensor) -> Tensor:
    """Return how much of each hour lies between two times."""
    first, last = torch.maximum(start[..., None], HOURS), torch.minimum(end[..., None], HOURS + 1)
    return (last - first).clip(0)


def window_mean(seen: Tensor | None = LOGGED) -> None:
    """Means of two known series over a window whose location and width are unknown."""
    start = pyro.sample("start", dist.Uniform(0.0, 10.0))
    end = pyro.sample("end", dist.Uniform(start, 10.0))
    hours = overlap(start, end) / (end - start)[..., None]
    means = torch.stack([(hours * channel).sum(-1) for channel in CHANNELS], -1)
    pyro.sample("seen", dist.Normal(means, 0.4).to_event(1), obs=seen)


def window_change(seen: Tensor | None = LEVELS) -> None:
    """A series that is shifted within a window."""
    start = pyro.sample("start", dist.Uniform(0.0, 10.0))
    end = pyro.sample("end", dist.Uniform(start, 10.0))
    shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
    levels = shift[..., None] * overlap(start, end)
    pyro.sample("seen", dist.Normal(levels, 0.6).to_event(1), obs=seen)


SHAPE = data([1.0, 0.0], [0.8, 0.5])
POINT = data(0.9, -0.3)


def ellipsoid(seen: Tensor | None = POINT) -> None:
    """A point in an ellipse whose center and size are unknown."""
    center = pyro.sample("center", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    size = pyro.sample("size", dist.LogNormal(0.0, 0.5))
    point = pyro.sample("point", TruncatedParaboloid(center, size[..., None, None] * SHAPE))
    pyro.sample("seen", dist.Normal(point, 0.3).to_event(1), obs=seen)


EXPOSED = data(0.0, 1.0, 0.0, 2.0), data(3.0, 2.0, 4.0, 5.0)
SICK = data(2.0, 4.0, 6.0, 3.0), data(4.0, 6.0, 7.0, 8.0)


def censored(exposed: tuple[Tensor, Tensor] = EXPOSED, sick: tuple[Tensor, Tensor] = SICK) -> None:
    """Incubation times of people, if of infections and of first symptoms only bounds are known."""
    rate = pyro.sample("rate", dist.LogNormal(-0.5, 0.5))
    with pyro.plate("people", 4):
        infected = pyro.sample("infected", dist.Uniform(*exposed))
        first = torch.maximum(infected, sick[0])
        onset = pyro.sample("onset", dist.Uniform(first, sick[1]))
        incubation = dist.Gamma(2.0, rate).log_prob(onset - infected)
        pyro.factor("incubation", incubation + torch.log(sick[1] - first))


HEIGHTS = data(-1.9, -1.2, -0.4, 0.9, 1.1, 1.8)


def separated(seen: Tensor | None = HEIGHTS) -> None:
    """Two components on either side of an unknown border; membership is summed out."""
    border = pyro.sample("border", dist.Uniform(-1.0, 1.0))
    left = pyro.sample("left", dist.Uniform(-3.0, border))
    right = pyro.sample("right", dist.Uniform(border, 3.0))
    with pyro.plate("heights", 6):
        side = pyro.sample("side", dist.Bernoulli(0.5))
        pyro.sample("seen", dist.Normal(torch.where(side > 0, right, left), 0.8), obs=seen)


def meeting(seen: Tensor | None = ONE) -> None:
    """A mixture whose two intervals overlap if gap < 2 and are disjoint if gap > 2."""
    gap = pyro.sample("gap", dist.Uniform(1.0, 3.0))
    components = TruncatedParabola(torch.stack([torch.zeros_like(gap), gap], -1), 1.0)
    t = pyro.sample("t", Mixture(torch.zeros(2), components))
    pyro.sample("seen", dist.Normal(t, 1.0), obs=seen)


ANSWERS = data(5.0, 9.0, 4.0, 2.0)


def cutpoints(seen: Tensor | None = ANSWERS) -> None:
    """Ordered cut-points of a logistic density: each begins where the one before is."""
    c1 = pyro.sample("c1", dist.Uniform(-3.0, 3.0))
    c2 = pyro.sample("c2", dist.Uniform(c1, 3.0))
    c3 = pyro.sample("c3", dist.Uniform(c2, 3.0))
    s1, s2, s3 = (1 / (1 + torch.exp(-c)) for c in (c1, c2, c3))
    shares = torch.stack([s1, s2 - s1, s3 - s2, 1 - s3], -1)
    pyro.sample("seen", dist.Multinomial(20, probs=shares), obs=seen)


COUNTS = data(7.0, 2.0, 8.0, 3.0)


def chain(seen: Tensor | None = COUNTS) -> None:
    """Shares that are bounded by what the shares before have left."""
    p1 = pyro.sample("p1", dist.Uniform(0.0, 1.0))
    p2 = pyro.sample("p2", dist.Uniform(0.0, 1 - p1))
    p3 = pyro.sample("p3", dist.Uniform(0.0, 1 - p1 - p2))
    shares = torch.stack([p1, p2, p3, 1 - p1 - p2 - p3], -1)
    pyro.sample("seen", dist.Multinomial(20, probs=shares), obs=seen)


MODELS = (
    interval,
    garch11,
    hierarchy,
    triangle,
    bounded_noise,
    window_mean,
    window_change,
    ellipsoid,
    censored,
    separated,
    meeting,
    cutpoints,
    chain,
)
