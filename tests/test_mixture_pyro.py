"""Mixtures in models of Pyro's: variational inference, Hamiltonian Monte Carlo, the way round."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from mixtures import DOUBLE, KNOWN
from pyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from torch import Tensor
from torch.distributions import constraints

from sparsefam import Mixture, Normal, TruncatedParabola


@pytest.fixture(autouse=True)
def parameters() -> None:
    pyro.clear_param_store()
    pyro.set_rng_seed(1)


def pair(gap: float) -> Mixture:
    """Two parabolas, whose supports overlap unless their centres are more than 2 apart."""
    return Mixture(torch.tensor([0.0, 0.75]), TruncatedParabola(torch.tensor([0.0, gap]), 1.0))


def posterior(p: Mixture, scale: float) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of t ~ p given t + noise = 0.5, by quadrature."""
    t = torch.linspace(-2, 8, 20_001)
    mass = p.prob(t) * torch.exp(-0.5 * ((0.5 - t) / scale).square())
    mean = (mass * t).sum() / mass.sum()
    return mean, ((mass * (t - mean).square()).sum() / mass.sum()).sqrt()


def chain(model, name: str, draws: int = 300) -> Tensor:
    mcmc = MCMC(NUTS(model), num_samples=draws, warmup_steps=draws // 3, disable_progbar=True)
    mcmc.run()
    return mcmc.get_samples()[name]


def test_it_samples_and_scores() -> None:
    p = KNOWN["disjoint"].make(DOUBLE)

    def model() -> Tensor:
        with pyro.plate("n", 5):
            return pyro.sample("t", p)

    trace = pyro.poutine.trace(model).get_trace()
    trace.compute_log_prob()
    site = trace.nodes["t"]
    torch.testing.assert_close(site["log_prob"], p.log_prob(site["value"]))


def test_hamiltonian_monte_carlo_on_one_interval() -> None:
    p = pair(1.25)
    assert p.support.count == 1

    def model() -> None:
        pyro.sample("y", dist.Normal(pyro.sample("t", p), 0.75), obs=torch.tensor(0.5))

    t = chain(model, "t")
    mean, deviation = posterior(p, 0.75)
    assert p.support.check(t).all()
    # Some fifty independent draws.
    assert (t.mean() - mean).abs() < 0.4 * deviation
    assert (t.std() / deviation - 1).abs() < 0.25


def test_several_intervals_are_refused_and_quantiles_are_a_way_round() -> None:
    p = pair(5.0)

    def plain() -> None:
        pyro.sample("t", p)

    with pytest.raises(ValueError, match=r"one interval .* got 2 intervals.*p\.icdf\(u\)"):
        chain(plain, "t")

    def model() -> None:
        t = pyro.deterministic("t", p.icdf(pyro.sample("u", dist.Uniform(0.0, 1.0))))
        pyro.sample("y", dist.Normal(t, 4.0), obs=torch.tensor(0.5))

    t = p.icdf(chain(model, "u", 100))
    mean, deviation = posterior(p, 4.0)
    assert p.support.check(t).all()
    assert (t.mean() - mean).abs() < 0.4 * deviation
    assert ((t > 2.5).float().mean() - 0.5).abs() < 0.3  # both are visited


def test_variational_inference_with_a_mixture_as_guide() -> None:
    def model() -> None:
        pyro.sample("y", dist.Normal(pyro.sample("t", dist.Normal(0.0, 1.0)), 0.5), obs=one)

    def guide() -> None:
        weights = pyro.param("logits", torch.zeros(2))
        loc = pyro.param("loc", torch.tensor([-0.25, 0.75]))
        scale = pyro.param("scale", torch.tensor([0.5, 0.5]), constraint=constraints.positive)
        pyro.sample("t", Mixture(weights, Normal(loc, scale)))

    one = torch.tensor(1.0)
    elbo = Trace_ELBO(num_particles=24, vectorize_particles=True, max_plate_nesting=0)
    steps = SVI(model, guide, pyro.optim.Adam({"lr": 0.03}), elbo)
    for _ in range(200):
        steps.step()
    q = Mixture(pyro.param("logits"), Normal(pyro.param("loc"), pyro.param("scale")))
    # The posterior is a normal of mean 0.8 and variance 0.2.
    assert (q.mean - 0.8).abs() < 0.1 and (q.variance - 0.2).abs() < 0.06
