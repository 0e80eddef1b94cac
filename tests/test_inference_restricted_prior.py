"""Priors on the interval where the likelihood is positive: the same posterior."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from battery import DOUBLE
from pyro import poutine
from refusals import refused
from torch.distributions import biject_to

import sparsefam as sf
from sparsefam.inference import AutoSupportReparam, RestrictedPrior, check_model

ZERO, ONE = torch.tensor([0.0, 1.0], dtype=DOUBLE)
Y = torch.tensor([[-0.7, 0.2, 0.4], [1.0, 2.5, 1.4]], dtype=DOUBLE)
LAWS = {"lognormal": dist.LogNormal(ZERO, ONE), "normal": dist.Normal(ZERO, 2 * ONE)}
BOUNDS = {"low": (True, False), "high": (False, True), "both": (True, True)}


def noise(kind: str, law: str, restricted: bool):
    """Two groups of three observations, and a scale between ends that move with the location."""

    def model() -> None:
        with pyro.plate("groups", 2):
            loc = pyro.sample("loc", dist.Normal(ZERO, 3 * ONE))
            reach = (Y - loc.unsqueeze(-1)).abs().amax(-1)
            low, high = (reach if i else None for i in BOUNDS[kind])
            high = None if high is None else 1 + 2 * high
            prior = LAWS[law]
            s = pyro.sample("s", RestrictedPrior(prior, low, high) if restricted else prior)
            inside = torch.ones(2, dtype=torch.bool)
            inside = inside if low is None else inside & (s >= low)
            inside = inside if high is None else inside & (s <= high)
            pyro.factor("wall", torch.where(inside, 0.0, -math.inf) - (s - loc).square())

    return model


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("kind", BOUNDS)
def test_the_joint_density_is_that_of_the_plain_model(kind: str, law: str) -> None:
    """With the Jacobian of the standard coordinates; so are its gradients."""
    pyro.set_rng_seed(0)
    restricted = AutoSupportReparam()(noise(kind, law, True))
    trace = poutine.trace(restricted).get_trace()
    assert "s_base" in trace.nodes
    values = {n: trace.nodes[n]["value"].detach().requires_grad_() for n in ("loc", "s_base")}
    found = poutine.trace(poutine.condition(restricted, values)).get_trace()
    s = found.nodes["s"]["value"]
    plain = poutine.condition(noise(kind, law, False), {"loc": values["loc"], "s": s})
    jacobian = torch.zeros(2, dtype=DOUBLE)
    if kind == "both" or (kind, law) == ("high", "lognormal"):
        reach = (Y - values["loc"].unsqueeze(-1)).abs().amax(-1)
        low = reach if kind == "both" else torch.zeros_like(reach)
        assert ((s - low) / (1 + 2 * reach - low) - values["s_base"]).abs().max() < 1e-12
        jacobian = (1 + 2 * reach - low).log()
    expected = poutine.trace(plain).get_trace().log_prob_sum() + jacobian.sum()
    torch.testing.assert_close(found.log_prob_sum(), expected, rtol=1e-12, atol=1e-12)
    places = list(values.values())
    slopes = [
        torch.autograd.grad(x, places, retain_graph=True) for x in (found.log_prob_sum(), expected)
    ]
    torch.testing.assert_close(*slopes, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("law", LAWS)
def test_density_is_the_prior_between_the_ends_and_zero_elsewhere(law: str) -> None:
    prior = RestrictedPrior(LAWS[law], 0.5 * ONE, 2 * ONE)
    t = torch.tensor([-1.0, 0.2, 0.6, 1.9, 2.1], dtype=DOUBLE, requires_grad=True)
    inside = (t >= 0.5) & (t <= 2)
    density = prior.log_prob(t)
    expected = LAWS[law].log_prob(t.detach()[inside])
    assert torch.equal(density[inside], expected)
    assert (density[~inside] == -math.inf).all()
    (slope,) = torch.autograd.grad(density[inside].sum(), t)
    assert slope.isfinite().all()
    assert (slope[~inside] == 0).all()


def test_an_empty_interval_has_density_zero() -> None:
    """Below a prior's own end too; no gradient is NaN."""
    low = torch.tensor([3.0, 0.2], dtype=DOUBLE, requires_grad=True)
    for law in (LAWS["normal"], LAWS["lognormal"]):
        prior = RestrictedPrior(law, low, 2.0)
        value = biject_to(prior.support)(torch.zeros(2, dtype=DOUBLE))
        density = prior.log_prob(value)
        assert density.isneginf().tolist() == [True, False]
        assert torch.autograd.grad(density[1], low)[0].isfinite().all()
    beyond = RestrictedPrior(dist.Uniform(ZERO, 2 * ONE), low).log_prob(low + 0.5)
    assert beyond.isneginf().tolist() == [True, False]


def test_ends_that_are_always_empty_are_named_by_the_check() -> None:
    """Tensors may depend on latent sites, so they are not refused."""

    def model() -> None:
        pyro.sample("s", RestrictedPrior(LAWS["normal"], 2 * ONE, ONE))

    with pytest.warns(RuntimeWarning, match="site 's' is zero at 10 of 10 random starts"):
        check_model(model)


def test_an_integer_end_leaves_the_other_as_it_is() -> None:
    prior = RestrictedPrior(dist.Exponential(torch.tensor(1.0)), 1, 2.5)
    assert prior.log_prob(torch.tensor([0.9, 2.25, 2.6])).tolist() == [-math.inf, -2.25, -math.inf]


test_bad_arguments_are_named = refused(
    [
        (dist.Poisson(ONE), (1.0,), "prior must be continuous and univariate"),
        (
            sf.Mixture(torch.zeros(2), sf.TruncatedParabola(torch.tensor([0.0, 3.0]), 1.0)),
            (0.5,),
            "on one interval, got Mixture",
        ),
        (LAWS["normal"], (), "low or high must be given, got None"),
        (dist.Normal(torch.zeros(3), 1.0), (torch.zeros(2),), r"\(3,\)|\[3\]"),
        (LAWS["normal"], ("1",), "low must be a number or a tensor, got '1'"),
        (LAWS["normal"], (1.0, 0.0), "low must be below high.*, got 1.0 and 0.0 for Normal"),
        (LAWS["normal"], (1.0, 1.0), "low must be below high.*, got 1.0 and 1.0"),
        (LAWS["normal"], (math.nan,), "low must be below high.*, got nan and None"),
        (LAWS["lognormal"], (None, -1.0), "got None and -1.0 for LogNormal.* on GreaterThan"),
        (dist.Beta(ONE, ONE), (torch.zeros(2), 0), "got .* and 0 for Beta"),
    ],
    of=lambda prior, ends: RestrictedPrior(prior, *ends),
)
