"""Hamiltonian Monte Carlo on groups whose common place and width are latent."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from chains import DOUBLE, agree, midpoints, moments, walked

from sparsefam import TruncatedParabola
from sparsefam.inference import AutoSupportReparam

ZERO, ONE = torch.tensor([0.0, 1.0], dtype=DOUBLE)
GROUPS = torch.tensor([-0.4, 0.3, 1.1], dtype=DOUBLE)
NOISE = 0.4


def hierarchy() -> None:
    loc = pyro.sample("loc", dist.Normal(ZERO, ONE))
    scale = pyro.sample("scale", dist.LogNormal(ZERO, 0.5 * ONE))
    with pyro.plate("groups", len(GROUPS)):
        t = pyro.sample("t", TruncatedParabola(loc, scale))
        pyro.sample("y", dist.Normal(t, NOISE), obs=GROUPS)


def hierarchy_is_right(draws: int) -> None:
    found = walked(AutoSupportReparam()(hierarchy), draws, jit=True)
    loc, log_scale = midpoints(-5, 5, 250)[:, None], midpoints(-2.5, 2.5, 200)
    scale, u = log_scale.exp(), midpoints(-1, 1, 80)[:, None, None]
    density, t = 1 - u.square(), loc + scale * u
    near = [density * torch.exp(-(t - y).square() / (2 * NOISE**2)) for y in GROUPS]
    weights = torch.exp(-loc.square() / 2 - 2 * log_scale.square())
    for part in near:
        weights = weights * part.sum(0)
    agree(found["loc"], *moments(weights, loc.expand_as(weights)))
    agree(found["scale"].log(), *moments(weights, log_scale.expand_as(weights)))
    for k, part in enumerate(near):
        agree(found["t"][..., k], *moments(weights / part.sum(0) * part, t))


def test_a_hierarchy_of_parabolas_with_latent_place_and_width() -> None:
    hierarchy_is_right(400)


@pytest.mark.slow
def test_longer_chains() -> None:
    hierarchy_is_right(3000)
