"""Models whose supports move, and the exact moments of their posteriors, by quadrature."""

from collections.abc import Callable
from typing import NamedTuple

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from sparsefam import Mixture, TruncatedParabola, TruncatedParaboloid

__all__ = ["POSTERIORS", "Moments", "Posterior", "midpoints", "moments"]

DOUBLE = torch.float64
ZERO, ONE = torch.tensor([0.0, 1.0], dtype=DOUBLE)

Moments = tuple[Tensor, Tensor]


class Posterior(NamedTuple):
    """A model of Pyro's and the means and variances of its sites.

    Attributes:
        model: It needs `SupportReparam`.
        exact: Mean and variance by the name of a site; `log x` is the logarithm of site x.
        draws: Of each chain, for the table.
        jit: Whether Pyro can compile it.
    """

    model: Callable[[], object]
    exact: Callable[[], dict[str, Moments]]
    draws: int
    jit: bool = True


def moments(weights: Tensor, values: Tensor) -> Moments:
    """Mean and variance of values under weights of any sum, over all of a grid."""
    mass = weights.sum()
    mean = (weights * values).sum() / mass
    return mean, (weights * (values - mean).square()).sum() / mass


def midpoints(low: float, high: float, count: int) -> Tensor:
    """The middles of equal parts of an interval."""
    return low + (torch.arange(count, dtype=DOUBLE) + 0.5) * (high - low) / count


def uniform() -> Tensor:
    x = pyro.sample("x", dist.Normal(ZERO, ONE))
    return pyro.sample("y", dist.Uniform(x, x + 1))


def _exact_uniform() -> dict[str, Moments]:
    return {"x": (ZERO, ONE), "y_base": (ONE / 2, ONE / 12), "y": (ONE / 2, 13 * ONE / 12)}


def observed_uniform() -> None:
    pyro.sample("o", dist.Normal(uniform(), 0.5), obs=ONE)


def _exact_observed_uniform() -> dict[str, Moments]:
    x, v = midpoints(-7, 7, 1400)[:, None], midpoints(0, 1, 200)
    weights = torch.exp(-x.square() / 2 - (x + v - 1).square() / (2 * 0.25))
    return {"x": moments(weights, x.expand_as(weights)), "y": moments(weights, x + v)}


def pair() -> None:
    # The components meet where |gap| < 2 and part elsewhere.
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
    centre = pyro.sample("centre", dist.Normal(torch.zeros(2, dtype=DOUBLE), ONE).to_event(1))
    size = pyro.sample("size", dist.LogNormal(ZERO, 0.5 * ONE))
    t = pyro.sample("t", TruncatedParaboloid(centre, size * _SHAPE))
    pyro.sample("o", dist.Normal(t, _SEEN_NOISE).to_event(1), obs=_SEEN)


def _exact_ellipse() -> dict[str, Moments]:
    """Given the place u in the unit disc and the size, the centre is normal: a grid over three."""
    radius = midpoints(0, 1, 60)
    angle = 2 * torch.pi * torch.arange(48, dtype=DOUBLE) / 48
    r, a, z = torch.meshgrid(radius, angle, torch.linspace(-3, 3, 200, dtype=DOUBLE), indexing="ij")
    u = torch.stack([r * a.cos(), r * a.sin()], -1)
    offset = z.exp().unsqueeze(-1) * (u @ _SHAPE.T)
    left = _SEEN - offset
    share = 1 / (1 + _SEEN_NOISE**2)
    weights = r * (1 - r.square()) * torch.exp(-2 * z.square() - share * left.square().sum(-1) / 2)

    def both(means: Tensor) -> Moments:
        """Of a plane vector that is normal around `means` given the grid."""
        found = [moments(weights, means[..., k]) for k in range(2)]
        mean, variance = (torch.stack(x) for x in zip(*found, strict=True))
        return mean, variance + _SEEN_NOISE**2 * share

    return {
        "log size": moments(weights, z),
        "centre": both(share * left),
        "t": both(share * left + offset),
    }


_GROUPS = torch.tensor([-0.4, 0.3, 1.1], dtype=DOUBLE)
_NOISE = 0.4


def hierarchy() -> None:
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
    places = [moments(weights / part.sum(0) * part, t) for part in near]
    mean, variance = (torch.stack(x) for x in zip(*places, strict=True))
    return {
        "loc": moments(weights, loc.expand_as(weights)),
        "log scale": moments(weights, log_scale.expand_as(weights)),
        "t": (mean, variance),
    }


POSTERIORS = {
    "uniform on a moving interval, prior": Posterior(uniform, _exact_uniform, 2400),
    "the same, posterior": Posterior(observed_uniform, _exact_observed_uniform, 2400),
    "paraboloid in the plane, centre and size latent": Posterior(ellipse, _exact_ellipse, 1900),
    "three groups, parabola of latent place and size": Posterior(hierarchy, _exact_hierarchy, 4700),
    "mixture of parabolas that meet and part": Posterior(pair, _exact_pair, 480, jit=False),
}
