"""Hamiltonian Monte Carlo on an ellipsoid that moves, against a posterior by quadrature."""

from functools import partial

import pyro
import pyro.distributions as dist
import pytest
import torch
from chains import DOUBLE, agree, walked

from sparsefam import TruncatedParaboloid
from sparsefam.inference import AutoSupportReparam

SHAPE = torch.tensor([[1.0, 0.0], [0.8, 0.5]], dtype=DOUBLE)
SEEN, NOISE = torch.tensor([0.9, -0.3], dtype=DOUBLE), 0.3
ZERO, ONE = torch.tensor([0.0, 1.0], dtype=DOUBLE)


def model(sized: bool) -> None:
    centre = pyro.sample("centre", dist.Normal(torch.zeros(2, dtype=DOUBLE), ONE).to_event(1))
    size = pyro.sample("size", dist.LogNormal(ZERO, 0.5 * ONE)) if sized else ONE
    t = pyro.sample("t", TruncatedParaboloid(centre, size * SHAPE))
    pyro.sample("o", dist.Normal(t, NOISE).to_event(1), obs=SEEN)


def posterior_is_right(draws: int, sized: bool) -> None:
    """Given the place u in the unit disc and the size, the centre is normal: a grid over three."""
    found = walked(AutoSupportReparam()(partial(model, sized)), draws, jit=True)
    radius = (torch.arange(60, dtype=DOUBLE) + 0.5) / 60
    angle = 2 * torch.pi * torch.arange(48, dtype=DOUBLE) / 48
    log_size = torch.linspace(-3, 3, 200, dtype=DOUBLE) if sized else ZERO.reshape(1)
    r, a, z = torch.meshgrid(radius, angle, log_size, indexing="ij")
    u = torch.stack([r * a.cos(), r * a.sin()], -1)
    offset = z.exp().unsqueeze(-1) * (u @ SHAPE.T)
    left = SEEN - offset
    weights = r * (1 - r.square()) * torch.exp(-2 * z.square())
    weights = weights * torch.exp(-left.square().sum(-1) / (2 * (1 + NOISE**2)))
    weights = weights / weights.sum()

    def moments(means: torch.Tensor, spread: float) -> tuple[torch.Tensor, torch.Tensor]:
        axes = tuple(range(3))
        share = weights.reshape(*weights.shape, *(1,) * (means.dim() - 3))
        mean = (share * means).sum(axes)
        return mean, (share * (means - mean).square()).sum(axes) + spread

    share, spread = 1 / (1 + NOISE**2), NOISE**2 / (1 + NOISE**2)
    if sized:
        agree(found["size"].log(), *moments(z, 0.0))
    agree(found["centre"], *moments(share * left, spread))
    agree(found["t"], *moments(share * left + offset, spread))


@pytest.mark.slow
def test_an_ellipse_with_a_latent_centre() -> None:
    posterior_is_right(400, sized=False)


@pytest.mark.slow
def test_an_ellipse_with_latent_centre_and_size() -> None:
    posterior_is_right(3000, sized=True)
