"""The bound that stays finite: its values, gradients and optimum against integrals on a grid."""

import math
from functools import partial

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from battery import DOUBLE
from pyro.infer import RenyiELBO, Trace_ELBO
from refusals import refused
from torch import Tensor

import sparsefam as sf
from sparsefam.inference import FenchelYoungELBO, TsallisELBO

ZERO, ONE = torch.tensor([0.0, 1.0], dtype=DOUBLE)
PRIORS = {"smooth": sf.BetaGaussian(ZERO, ONE, 1.5), "jump": sf.BetaGaussian(ZERO, ONE, math.inf)}
COINS = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=DOUBLE)


def model(kind: str = "smooth") -> None:
    """Two heads and two tails: the posterior is a beta-Gaussian with an exponent two higher."""
    z = pyro.sample("z", PRIORS[kind])
    with pyro.plate("n", 4):
        pyro.sample("o", dist.Bernoulli(((1 + z) / 2).clamp(0, 1)), obs=COINS)


def log_joint(t: Tensor, kind: str = "smooth") -> Tensor:
    safe = t.clamp(-1 + 1e-15, 1 - 1e-15)
    found = PRIORS[kind].log_prob(safe) + 2 * torch.log((1 - safe.square()) / 4)
    return torch.where(t.abs() < 1, found, -math.inf)


def log_moment(loc: Tensor, scale: Tensor, alpha: float, kind: str = "smooth") -> Tensor:
    """log of the integral of q^alpha p^(1 - alpha), on the part of q's support that p shares."""
    low, high = torch.maximum(loc - scale, -ONE), torch.minimum(loc + scale, ONE)
    nodes, weights = (torch.as_tensor(x) for x in np.polynomial.legendre.leggauss(400))
    t = (low + high) / 2 + (high - low) / 2 * nodes
    log_q = sf.BetaGaussian(loc, scale, 1.5).log_prob(t)
    powers = alpha * log_q + (1 - alpha) * log_joint(t, kind)
    return torch.logsumexp(powers + weights.log(), 0) + ((high - low) / 2).log()


def many(alpha: float, count: int = 100_000) -> TsallisELBO:
    return TsallisELBO(alpha, count, vectorize_particles=True, max_plate_nesting=1)


def guide_of(loc: Tensor, scale: Tensor, path: bool = True):
    return lambda *_: pyro.sample("z", sf.BetaGaussian(loc, scale, 1.5).has_rsample_(path))


@pytest.mark.parametrize("alpha", [0.4, 0.8])
@pytest.mark.parametrize(("kind", "path"), [("smooth", True), ("smooth", False), ("jump", False)])
def test_value_and_gradients_are_those_of_the_integral(kind: str, path: bool, alpha: float) -> None:
    """With a third of the guide's support outside of the model's."""
    loc, scale = (torch.tensor(x, dtype=DOUBLE, requires_grad=True) for x in (0.6, 1.0))
    exact = -log_moment(loc, scale, alpha, kind) / (1 - alpha)
    expected = torch.stack(torch.autograd.grad(exact, [loc, scale]))
    found = []
    for seed in range(8):
        pyro.set_rng_seed(seed)
        loss = many(alpha).differentiable_loss(model, guide_of(loc, scale, path), kind)
        found.append(torch.stack([loss.detach(), *torch.autograd.grad(loss, [loc, scale])]))
    runs = torch.stack(found)
    error = runs.std(0) / 8**0.5
    assert ((runs.mean(0) - torch.cat([exact.detach()[None], expected])).abs() < 5 * error).all()
    assert (error < 0.05).all()


def test_one_is_the_usual_bound_and_the_scale_that_of_renyi() -> None:
    """Where supports are nested."""
    guide = guide_of(0.1 * ONE, 0.5 * ONE)

    def loss(bound) -> float:
        pyro.set_rng_seed(0)
        return bound.loss(model, guide)

    settings = {"num_particles": 50, "vectorize_particles": True, "max_plate_nesting": 1}
    assert loss(TsallisELBO(1 - 1e-6, **settings)) == pytest.approx(
        loss(Trace_ELBO(**settings)), abs=1e-4
    )
    # One step is its own scale, where the bounds are equal.
    expected = loss(RenyiELBO(0.5, **settings))
    assert loss(TsallisELBO(0.5, **settings)) == pytest.approx(expected, abs=1e-9)
    one_by_one = TsallisELBO(0.5, 50)
    assert loss(one_by_one) == pytest.approx(expected, abs=0.5)


def test_the_scale_carries_evidence_that_has_no_exponential() -> None:
    """A likelihood of e^-5000, in float32."""

    def far() -> None:
        z = pyro.sample("z", sf.TruncatedParabola(0.0, 1.0))
        pyro.factor("far", -5000 - z)

    loc = torch.zeros((), requires_grad=True)
    bound = TsallisELBO(0.5, 1000, vectorize_particles=True, max_plate_nesting=0)
    pyro.set_rng_seed(0)
    loss = bound.differentiable_loss(far, lambda: pyro.sample("z", sf.TruncatedParabola(loc, 0.5)))
    (slope,) = torch.autograd.grad(loss, loc)
    assert loss.item() == pytest.approx(5000, abs=1) and 0 < slope < 3


def test_particles_that_are_all_outside_cost_a_finite_amount() -> None:
    bound = many(0.5, 10)
    inside, outside = guide_of(ZERO, ONE / 2), guide_of(9 * ONE, ONE)
    before = bound.loss_and_grads(model, inside)
    loc = torch.tensor(9.0, dtype=DOUBLE, requires_grad=True)
    with pytest.warns(RuntimeWarning, match="none of 10 particles is on the support"):
        after = bound.loss_and_grads(model, guide_of(loc, ONE))
    # -c + 1/(1 - alpha), with the scale a tenth lower than it was.
    assert after == pytest.approx(before + 2 - 2 * math.log(0.9), abs=1e-6)
    assert loc.grad == 0
    with pytest.raises(ValueError, match="guide must overlap .* got no particle of 10"):
        many(0.5, 10).loss(model, outside)


@pytest.mark.parametrize("path", [True, False])
@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_the_free_energy_and_its_gradients_are_integrals(alpha: float, path: bool) -> None:
    """With plates and events; the guide is partly outside of the support."""
    loc, scale = (torch.tensor(x, dtype=DOUBLE, requires_grad=True) for x in (0.6, 1.0))
    prior, seen = sf.BetaGaussian(ZERO, ONE, 2.0), torch.tensor([0.1, 0.5], dtype=DOUBLE)

    def model() -> None:
        z = pyro.sample("z", prior)
        with pyro.plate("n", 2):
            pyro.sample("o", dist.Normal(z, ONE), obs=seen)
        places = z.unsqueeze(-1).expand(*z.shape, 2)
        pyro.sample("compact", sf.BetaGaussian(places, ONE, 2.0).to_event(1), obs=3 * seen)

    def guide() -> None:
        pyro.sample("z", sf.BetaGaussian(loc, scale, 1.5).has_rsample_(path))

    nodes, weights = (torch.as_tensor(x) for x in np.polynomial.legendre.leggauss(400))
    t = loc + scale * nodes
    q = sf.BetaGaussian(loc, scale, 1.5).prob(t)
    # p = 3/4 (1 - t^2) has score f = -3/4 t^2, so E[f] = -3/20, and Omega_2(p) = (3/5 - 1)/2.
    losses = sum(0.75 * (t - x).square() - 0.15 + 0.2 for x in (0.0, 0.3, 1.5))
    losses = losses - dist.Normal(t.unsqueeze(-1), ONE).log_prob(seen).sum(-1)
    density = q * losses + (q**alpha - q) / (alpha * (alpha - 1))
    exact = scale * (weights * density).sum()
    expected = torch.stack(torch.autograd.grad(exact, [loc, scale]))
    pyro.set_rng_seed(0)
    elbo = FenchelYoungELBO(alpha, 200_000, vectorize_particles=True, max_plate_nesting=1)
    loss = elbo.differentiable_loss(model, guide)
    found = torch.stack(torch.autograd.grad(loss, [loc, scale]))
    torch.testing.assert_close(loss.detach(), exact.detach(), rtol=0.01, atol=0.01)
    torch.testing.assert_close(found, expected, rtol=0.03, atol=0.03)


def free_energy(prior: dist.Distribution) -> float:
    guide = guide_of(5 * ONE, ONE)
    return FenchelYoungELBO().loss(lambda: pyro.sample("z", prior), guide)


UNIFORM = dist.Uniform(ZERO, ONE, validate_args=False)
test_bad_arguments_are_named = refused(
    [
        *(
            (partial(TsallisELBO, alpha), "alpha must be between 0 and 1, got")
            for alpha in (0.0, 1.0, 2.0, math.nan, "0.5")
        ),
        *(
            (partial(TsallisELBO, 0.5, n), "num_particles must be .*at least 1, got")
            for n in (0, 2.5, True)
        ),
        *(
            (partial(FenchelYoungELBO, alpha), "alpha must be finite, at least 1, got")
            for alpha in (0.5, math.inf, math.nan, "2")
        ),
        (partial(free_energy, PRIORS["jump"]), "site 'z' must have a score: alpha must be finite"),
        (partial(free_energy, UNIFORM), "site 'z' must have a finite .* use TsallisELBO"),
    ]
)
