"""Hamiltonian Monte Carlo on supports that move, against posteriors by quadrature: the line."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from chains import DOUBLE, agree, midpoints, moments, walked
from pyro.poutine import reparam
from torch import Tensor

from sparsefam import Mixture, TruncatedParabola
from sparsefam.inference import (
    AutoSupportReparam,
    MovingSupportWarning,
    SupportReparam,
    warn_moving_supports,
)

ZERO, ONE = torch.tensor([0.0, 1.0], dtype=DOUBLE)


def uniform() -> Tensor:
    x = pyro.sample("x", dist.Normal(ZERO, ONE))
    return pyro.sample("y", dist.Uniform(x, x + 1))


def observed_uniform() -> None:
    pyro.sample("o", dist.Normal(uniform(), 0.5), obs=ONE)


def prior_and_posterior(draws: int) -> None:
    found = walked(reparam(uniform, config={"y": SupportReparam()}), draws, jit=True)
    agree(found["x"], 0.0, 1.0)
    agree(found["y_base"], 0.5, 1 / 12)
    agree(found["y"], 0.5, 1 + 1 / 12)
    found = walked(AutoSupportReparam()(observed_uniform), draws, jit=True)
    x, v = midpoints(-7, 7, 1400)[:, None], midpoints(0, 1, 200)
    weights = torch.exp(-x.square() / 2 - (x + v - 1).square() / (2 * 0.25))
    agree(found["x"], *moments(weights, x.expand_as(weights)))
    agree(found["y"], *moments(weights, x + v))


def test_a_uniform_that_starts_at_a_latent_place() -> None:
    prior_and_posterior(500)


def test_plain_chains_are_wrong_about_it_and_can_be_made_to_say_so() -> None:
    # Whatever the first trace is, y cannot leave its interval, whose length is 1.
    pyro.set_rng_seed(0)
    kernel = pyro.infer.NUTS(warn_moving_supports(uniform), max_tree_depth=4)
    mcmc = pyro.infer.MCMC(kernel, 60, warmup_steps=30, disable_progbar=True)
    with pytest.warns(MovingSupportWarning, match=r"site 'y' moves .*'y': .*SupportReparam\(\)"):
        mcmc.run()
    y = mcmc.get_samples()["y"]
    assert y.max() - y.min() <= 1


def pair() -> None:
    # The components meet where |gap| < 2 and part elsewhere.
    gap = pyro.sample("gap", dist.Uniform(ONE, 3 * ONE))
    loc = torch.stack([ZERO, gap])
    t = pyro.sample("t", Mixture(torch.zeros(2, dtype=DOUBLE), TruncatedParabola(loc, ONE)))
    pyro.sample("o", dist.Normal(t, 1.0), obs=ONE)


def pair_is_right(draws: int) -> None:
    found = walked(AutoSupportReparam()(pair), draws)
    gap, u = midpoints(1, 3, 400)[:, None], midpoints(-1, 1, 400)
    t = torch.stack([u.expand(400, 400), gap + u])
    weights = (1 - u.square()) * torch.exp(-(t - 1).square() / 2)
    agree(found["gap"], *moments(weights, gap.expand_as(weights)))
    agree(found["t"], *moments(weights, t))


@pytest.mark.slow
def test_longer_chains() -> None:
    prior_and_posterior(4000)


@pytest.mark.slow
def test_a_mixture_whose_components_part() -> None:
    pair_is_right(500)
