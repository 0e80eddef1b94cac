"""Warnings of supports that move, and only of those."""

import pickle
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS
from torch import Tensor

import sparsefam as sf
from sparsefam.inference import (
    AutoSupportReparam,
    MovingSupportWarning,
    SupportReparam,
    check_model,
    warn_moving_supports,
)


def model(width: float = 1.0) -> Tensor:
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    pyro.sample("fixed", dist.Uniform(0.0, width))
    with pyro.plate("pair", 2):
        return pyro.sample("y", dist.Uniform(x, x + 1))


def ellipse() -> None:
    x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    pyro.sample("y", sf.TruncatedParaboloid(x, torch.eye(2)))


def union() -> None:
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    pyro.sample("y", sf.Mixture(torch.zeros(2), sf.Triangular(torch.stack([x, x + 1]), 1.0)))


def half_line() -> None:
    x = pyro.sample("x", dist.LogNormal(0.0, 1.0))
    pyro.sample("y", dist.Pareto(x, 2.0).expand([3]).to_event(1))


def discrete_parent() -> None:
    z = pyro.sample("z", dist.Bernoulli(0.5))
    pyro.sample("y", dist.Uniform(z, z + 1))


def unmoved() -> None:
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    pyro.sample("z", dist.Normal(x, 1.0))
    pyro.sample("u", dist.Uniform(-1.0, torch.tensor([1.0, 2.0])).to_event(1))
    pyro.sample("t", sf.TruncatedParabola(torch.zeros(3), 1.0).to_event(1))
    pyro.sample("n", dist.Binomial(5, torch.sigmoid(x)))
    pyro.sample("o", dist.Uniform(x - 9, x + 9), obs=torch.tensor(0.0))


@pytest.mark.parametrize("moving", [model, ellipse, union, half_line, discrete_parent])
def test_sites_that_move_are_named(moving) -> None:
    with pytest.warns(MovingSupportWarning, match=r"site 'y' .*AutoSupportReparam\(\)") as caught:
        assert check_model(moving) == ["y"]
    assert len(caught) == 1


# Warnings are errors here, so that none has been given where a test passes.
@pytest.mark.parametrize("moving", [model, ellipse, union, half_line, discrete_parent])
def test_reparameterized_models_are_right(moving) -> None:
    assert check_model(AutoSupportReparam()(moving)) == []
    assert check_model(poutine.reparam(moving, config={"y": SupportReparam()})) == []
    watched = AutoSupportReparam()(warn_moving_supports(moving))
    for _ in range(5):
        watched()


def test_models_are_callable() -> None:
    for check in (check_model, warn_moving_supports):
        with pytest.raises(TypeError, match="model must be callable, got None"):
            check(None)


def test_nothing_is_said_of_supports_that_stand_still() -> None:
    assert check_model(unmoved) == []


def minibatch(widths: Tensor) -> None:
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    with pyro.plate("n", 20, subsample_size=len(widths)) as rows:
        pyro.sample("still", dist.Uniform(torch.zeros(20)[rows], widths))
        pyro.sample("y", dist.Uniform(x, x + torch.arange(1.0, 21.0)[rows]))


def test_data_that_change_are_neither_a_reason_nor_an_excuse() -> None:
    with pytest.warns(MovingSupportWarning, match="'y'") as caught:
        assert check_model(minibatch, torch.ones(5)) == ["y"]
    assert len(caught) == 1
    watched = warn_moving_supports(minibatch)
    x = torch.tensor(0.1, requires_grad=True)  # as kernels and guides give it
    with pytest.warns(MovingSupportWarning, match="'y'") as caught:
        for _ in range(3):
            poutine.condition(watched, {"x": x})(torch.rand(5) + 1)
    assert watched.watch.moved == {"y"} and len(caught) == 1


def test_a_check_leaves_no_trace() -> None:
    def learned() -> None:
        scale = pyro.param("scale", torch.tensor(1.0))
        pyro.sample("x", dist.Normal(pyro.param("new", torch.randn(3)), scale).to_event(1))

    pyro.clear_param_store()
    scale = pyro.param("scale", torch.tensor(2.0))
    expected = pyro.util.get_rng_state()["torch"].clone()
    assert check_model(learned) == []
    assert torch.equal(pyro.util.get_rng_state()["torch"], expected)
    assert list(pyro.get_param_store().keys()) == ["scale"] and pyro.param("scale") is scale


def test_conditions_from_outside_are_no_excuse() -> None:
    watched = warn_moving_supports(model)
    latent = {"fixed": torch.tensor(0.5), "y": torch.tensor([0.5, 0.5])}
    x = torch.tensor(0.1, requires_grad=True)
    with pytest.warns(MovingSupportWarning, match="site 'y'"):
        poutine.condition(watched, {"x": x, **latent})()


def test_chains_warn_once_and_reparameterized_ones_never() -> None:
    def run(target) -> None:
        mcmc = MCMC(NUTS(target, max_tree_depth=2), 5, warmup_steps=5, disable_progbar=True)
        mcmc.run()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(warn_moving_supports(model))
    assert [w.category for w in caught] == [MovingSupportWarning]
    assert "'y'" in str(caught[0].message)
    run(warn_moving_supports(AutoSupportReparam()(model)))
    run(AutoSupportReparam()(warn_moving_supports(model)))


def test_the_model_is_the_same() -> None:
    pyro.set_rng_seed(3)
    expected = poutine.trace(unmoved).get_trace()
    pyro.set_rng_seed(3)
    found = poutine.trace(warn_moving_supports(unmoved)).get_trace()
    torch.testing.assert_close(found.log_prob_sum(), expected.log_prob_sum())
    pyro.set_rng_seed(3)
    assert torch.equal(pickle.loads(pickle.dumps(warn_moving_supports(pair)))(), pair(3))


def pair(seed: int | None = None) -> Tensor:
    if seed is not None:
        pyro.set_rng_seed(seed)
    return pyro.sample("y", dist.Normal(torch.zeros(2), 1.0))
