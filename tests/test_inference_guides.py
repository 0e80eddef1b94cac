"""Compact guides: where they are zero, and the moments they find, against a grid."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from battery import DOUBLE
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor

import sparsefam as sf
from sparsefam.inference import (
    AutoBetaGaussian,
    AutoSupportReparam,
    FenchelYoungELBO,
    MovingSupportWarning,
    RestrictedPrior,
    TsallisELBO,
)

ZERO, ONE = torch.tensor([0.0, 1.0], dtype=DOUBLE)


def skewed() -> None:
    z = pyro.sample("z", dist.Gamma(3 * ONE, ONE))
    pyro.sample("o", dist.Normal(z, 1.0), obs=2 * ONE)


def plane() -> None:
    """A parabola whose place is latent, and an observation of it."""
    x = pyro.sample("x", dist.Normal(ZERO, ONE))
    y = pyro.sample("y", sf.TruncatedParabola(x, 2 * ONE))
    for name, t, noise in (("seen_x", x, 0.1), ("seen_y", y, 1.0)):
        pyro.sample(name, dist.Normal(t, noise), obs=ONE / 2)


def vectors() -> None:
    with pyro.plate("n", 3):
        pyro.sample("p", dist.Dirichlet(torch.ones(4, dtype=DOUBLE)))
    pyro.sample("z", dist.LogNormal(ZERO, ONE))


def test_density_is_zero_beyond_its_ends_and_else_that_of_the_change_of_variable() -> None:
    guide = AutoBetaGaussian(vectors, 2.0, init_scale=0.3)
    guide()
    low, high = guide.quantiles([0.0, 1.0])["z"]
    loc, scale = guide._get_loc_and_scale("z")
    assert (high / low).log().item() == pytest.approx(2 * 0.3 * math.sqrt(5))

    def log_prob(z: Tensor) -> Tensor:
        held = {"z_unconstrained": z.log()}
        trace = poutine.trace(poutine.condition(guide, held)).get_trace()
        trace.compute_log_prob()
        return trace.nodes["z_unconstrained"]["log_prob"] + trace.nodes["z"]["log_prob"]

    assert log_prob(low * 0.999) == -math.inf and log_prob(high * 1.001) == -math.inf
    middle = (low + high) / 2
    expected = sf.TruncatedParabola(loc, scale).log_prob(middle.log()) - middle.log()
    torch.testing.assert_close(log_prob(middle), expected)
    with pyro.plate("draws", 1000, dim=-2):
        draws = guide()
    assert draws["p"].shape == (1000, 3, 4)
    torch.testing.assert_close(draws["p"].sum(-1), torch.ones(1000, 3, dtype=DOUBLE))
    assert (draws["z"] >= low).all() and (draws["z"] <= high).all()
    half, median = guide.quantiles([0.5])["p"][0], guide.median()["p"]
    torch.testing.assert_close(half, median)


def noise(restricted: bool = False) -> None:
    """Noise of a latent half-width, of which Trace_ELBO is finite at first."""
    width = dist.LogNormal(ONE, ONE)
    with pyro.plate("n", 3):
        if restricted:
            width = RestrictedPrior(width, low=0.7 * ONE)
        width = pyro.sample("width", width)
        pyro.sample("seen", sf.TruncatedParabola(ZERO, width), obs=0.7 * ONE)


def test_a_likelihood_that_may_be_zero_is_told_to_the_usual_bound_only() -> None:
    options = {"num_particles": 5, "vectorize_particles": True}
    bounds = Trace_ELBO(**options), TsallisELBO(**options), FenchelYoungELBO(**options)
    infinite = []
    for bound in bounds:
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        svi = SVI(noise, AutoBetaGaussian(noise), pyro.optim.Adam({"lr": 0.1}), bound)
        if isinstance(bound, Trace_ELBO):
            with pytest.warns(RuntimeWarning, match="site 'seen' is zero .*TsallisELBO") as caught:
                losses = [svi.step()]
            assert len(caught) == 1
        else:
            losses = [svi.step()]  # a warning would be an error
        assert math.isfinite(losses[0])
        infinite.append(not all(math.isfinite(svi.step()) for _ in range(60)))
    assert infinite == [True, False, False]
    AutoBetaGaussian(AutoSupportReparam()(noise))(True)


def test_a_support_that_moves_is_told_and_nothing_else_is_changed() -> None:
    with pytest.warns(MovingSupportWarning, match="support of site 'y' .*SupportReparam") as caught:
        AutoBetaGaussian(plane)()
    assert len(caught) == 1
    draws = []
    for guide in (AutoBetaGaussian(skewed), AutoNormal(skewed)):
        pyro.set_rng_seed(0)
        guide._setup_prototype()
        draws.append(torch.rand(()))
    assert draws[0] == draws[1]


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="alpha must be a number above 1, got 1.0"):
        AutoBetaGaussian(skewed, alpha=1.0)
    with pytest.raises(TypeError, match="model must be callable, got None"):
        AutoBetaGaussian(None)
    for size in (-1.0, math.inf, "1"):
        with pytest.raises(ValueError, match="init_scale must be positive and finite, got"):
            AutoBetaGaussian(skewed, 2.0, init_scale=size)
