"""Kernel families as sites of Pyro models, where Hamiltonian Monte Carlo needs one interval."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import HMC, MCMC, NUTS, SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.optim import Adam
from torch import Tensor

from sparsefam import KernelDeformedExp, KernelExp

DOUBLE = torch.float64
POINTS = torch.tensor([0.2, 0.5, 0.8], dtype=DOUBLE)
TWO, ONE = torch.tensor([4.0, -4.0, 3.0]).double(), torch.tensor([4.0, 1.0, -3.0]).double()


def gaussian(x: Tensor, z: Tensor) -> Tensor:
    return torch.exp(-50 * (x - z.mT).square())


def walked(model: object, count: int) -> tuple[dict[str, Tensor], float]:
    """Samples by NUTS, and the least number of independent ones that they are worth.

    That is the chain's own estimate, which must not be so small that any bound holds.
    """
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    kernel = NUTS(model, max_tree_depth=3)
    mcmc = MCMC(kernel, num_samples=count, warmup_steps=50, disable_progbar=True)
    mcmc.run()
    found = mcmc.get_samples()
    worth = [mcmc.diagnostics()[name]["n_eff"].min().item() for name in found]
    assert min(worth) > 25
    return found, min(worth)


def agree(t: Tensor, worth: float, nodes: Tensor, shares: Tensor) -> None:
    """Mean and second moment are those of the rule, within four standard errors."""
    for power in (1, 2):
        mean = (shares * nodes**power).sum()
        spread = ((shares * nodes ** (2 * power)).sum() - mean.square()).sqrt()
        assert abs(t.pow(power).mean() - mean) < 4 * spread / math.sqrt(worth)


@pytest.mark.parametrize("kind", [HMC, NUTS])
def test_a_site_of_two_intervals_is_refused_with_the_way_round(kind: type) -> None:
    p = KernelDeformedExp(TWO, POINTS, gaussian)
    assert p.support.count == 2
    mcmc = MCMC(kind(lambda: pyro.sample("t", p)), 2, warmup_steps=2, disable_progbar=True)
    with pytest.raises(
        ValueError,
        match=r"one interval.*got 2 intervals.*Uniform\(0, 1\).*pyro\.deterministic.*p\.icdf\(u\)",
    ):
        mcmc.run()


def test_automatic_guides_refuse_it_too() -> None:
    p = KernelDeformedExp(TWO, POINTS, gaussian)
    with pytest.raises(ValueError, match=r"one interval.*p\.icdf\(u\)"):
        AutoNormal(lambda: pyro.sample("t", p))()


def test_a_region_of_the_plane_is_refused_with_a_way_round() -> None:
    p = KernelDeformedExp(
        TWO, POINTS.unsqueeze(-1).repeat(1, 2), lambda x, z: torch.exp(-50 * torch.cdist(x, z) ** 2)
    )
    mcmc = MCMC(NUTS(lambda: pyro.sample("t", p)), 2, warmup_steps=2, disable_progbar=True)
    with pytest.raises(ValueError, match=r"known shape.*box.*pyro\.factor"):
        mcmc.run()


@pytest.mark.slow
def test_the_way_round_is_exact_for_the_prior() -> None:
    p = KernelDeformedExp(TWO, POINTS, gaussian, alpha=1.5)

    def model() -> Tensor:
        u = pyro.sample("u", dist.Uniform(torch.zeros((), dtype=DOUBLE), 1.0))
        return pyro.deterministic("t", p.icdf(u))

    found, worth = walked(model, 150)
    t = p.icdf(found["u"])
    assert p.support.check(t).all()
    agree(t, worth, *p.quadrature())


# An observation in the gap, closer to the right interval than to the left.
SEEN, SCALE = torch.tensor(0.55, dtype=DOUBLE), 0.25


def way_round(p: KernelDeformedExp) -> None:
    u = pyro.sample("u", dist.Uniform(torch.zeros((), dtype=DOUBLE), 1.0))
    t = pyro.deterministic("t", p.icdf(u))
    pyro.sample("y", dist.Normal(t, SCALE), obs=SEEN)


def posterior(p: KernelDeformedExp) -> tuple[Tensor, Tensor]:
    nodes, shares = p.quadrature(256)
    shares = shares * torch.exp(-0.5 * ((nodes - SEEN) / SCALE).square())
    return nodes, shares / shares.sum()


def test_the_model_of_the_way_round_has_the_posterior() -> None:
    # Its moments by the joint density of the model at all levels, without a chain.
    p = KernelDeformedExp(TWO, POINTS, gaussian)
    levels = (torch.arange(2000, dtype=DOUBLE) + 0.5) / 2000
    model = poutine.condition(lambda: way_round(p), {"u": levels})
    trace = poutine.trace(model).get_trace()
    trace.compute_log_prob()
    t, weights = trace.nodes["t"]["value"], torch.softmax(trace.nodes["y"]["log_prob"], 0)
    nodes, shares = posterior(p)
    for power in (1, 2):
        due = (shares * nodes**power).sum()
        torch.testing.assert_close((weights * t**power).sum(), due, rtol=5e-4, atol=0)


@pytest.mark.slow
def test_the_way_round_is_exact_for_a_posterior() -> None:
    p = KernelDeformedExp(TWO, POINTS, gaussian)
    found, worth = walked(lambda: way_round(p), 150)
    t, (nodes, shares) = p.icdf(found["u"]), posterior(p)
    agree(t, worth, nodes, shares)
    right, due = (t > 0.5).double().mean(), shares[nodes > 0.5].sum()
    assert abs(right - due) < 4 * math.sqrt(due * (1 - due) / worth)


@pytest.mark.parametrize("family", [KernelExp, KernelDeformedExp])
def test_a_site_of_one_interval_needs_nothing(family: type) -> None:
    p = family(ONE, POINTS, gaussian)
    assert p.support.count == 1
    found, worth = walked(lambda: pyro.sample("t", p), 150)
    assert p.support.check(found["t"]).all()
    agree(found["t"], worth, *p.quadrature())


def test_weights_are_found_by_variational_inference() -> None:
    # A point estimate of the weights under observations from two intervals raises both hills.
    torch.manual_seed(0)
    p = KernelDeformedExp(TWO, POINTS, gaussian)
    data = p.sample((200,))

    def model() -> None:
        weights = pyro.param("weights", torch.zeros(3, dtype=DOUBLE))
        with pyro.plate("data", len(data)):
            pyro.sample("t", KernelExp(weights, POINTS, gaussian, mesh=p.mesh), obs=data)

    pyro.clear_param_store()
    svi = SVI(model, lambda: None, Adam({"lr": 0.3}), Trace_ELBO())
    losses = [svi.step() for _ in range(60)]
    assert losses[-1] < losses[0] - 20
    left, middle, right = pyro.param("weights").tolist()
    assert min(left, right) > middle + 1
