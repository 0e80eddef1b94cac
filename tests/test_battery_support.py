"""The battery: supports, copies, and life inside Pyro."""

import copy
import math
import pickle

import pyro
import pyro.distributions
import pytest
import torch
from battery import DOUBLE, SINGLE, Case, bounded, interior, located
from cases import (
    every_case,
    every_connected_case,
    every_connected_scalar,
    every_dtype,
    every_scalar,
    every_scattered_case,
)
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor
from torch.distributions import biject_to


@every_dtype
@every_case
def test_samples_lie_in_the_support(case: Case, dtype: torch.dtype) -> None:
    p = case(dtype)
    t = p.sample((2000,))
    assert t.dtype == dtype
    assert p.support.check(t).all()
    assert not p.log_prob(t).isnan().any()


@every_dtype
@every_case
def test_the_support_is_where_the_density_is_positive(case: Case, dtype: torch.dtype) -> None:
    p = case(dtype)
    margin = 2e-5 if dtype == SINGLE else 2e-12
    sides = torch.tensor([-1.0, 1.0, -1.0, 1.0, 1.0], dtype=DOUBLE)
    inside, edges, outside = (located(p, sides * r) for r in (1 - margin, 1.0, 1 + margin))
    assert p.support.check(inside).all()
    assert p.log_prob(inside).isfinite().all()
    assert (p.support.check(outside) != bounded(p)).all()
    assert ((p.log_prob(outside) == -math.inf) == bounded(p)).all()
    assert ((p.prob(outside) == 0) == bounded(p)).all()
    assert (p.prob(edges) <= p.prob(p.mode)).all()


def free(case: Case, dtype: torch.dtype) -> Tensor:
    """Locations of the unconstrained space, one of them at its origin."""
    shape = (9, *(1,) * len(case.batch_shape), *case.event_shape)
    pattern = torch.linspace(1, -0.5, case.event_shape.numel(), dtype=dtype)
    return torch.outer(torch.linspace(-4, 4, 9, dtype=dtype), pattern).reshape(shape)


@every_scattered_case
def test_no_space_maps_onto_several_intervals(case: Case) -> None:
    with pytest.raises(ValueError, match=r"support must be one interval[\s\S]*got[\s\S]*icdf"):
        biject_to(case().support)


@every_dtype
@every_connected_case
def test_space_maps_onto_the_support_and_back(case: Case, dtype: torch.dtype) -> None:
    p = case(dtype)
    transform, x = biject_to(p.support), free(case, dtype)
    t = transform(x)
    assert t.shape == (9, *p.batch_shape, *p.event_shape) or not bounded(p)
    assert p.support.check(t).all()
    tolerance = 1e-3 if dtype == SINGLE else 1e-11
    assert (transform.inv(t) - x).abs().max() < tolerance


@every_connected_case
def test_the_map_onto_the_support_knows_its_volume(case: Case) -> None:
    p = case()
    transform, x = biject_to(p.support), free(case, DOUBLE)
    size = case.event_shape.numel()
    whole = x.expand(9, *p.batch_shape, *p.event_shape)
    slopes = torch.func.vmap(torch.func.jacrev(lambda x: transform(x)))(whole)
    # The batch does not mix: of the Jacobian only blocks of one event with itself remain.
    blocks = slopes.reshape(9, p.batch_shape.numel(), size, p.batch_shape.numel(), size)
    own = blocks.diagonal(dim1=1, dim2=3).movedim(-1, 1)
    assert torch.allclose(blocks.square().sum(), own.square().sum())
    expected = torch.linalg.slogdet(own).logabsdet.reshape(9, *p.batch_shape)
    found = transform.log_abs_det_jacobian(whole, transform(whole))
    if found.shape != expected.shape:  # torch's identity has the sum over events left to the caller
        found = found.sum(-1)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


# Copies


@every_case
def test_pickles_and_deep_copies(case: Case) -> None:
    p = case()
    t = interior(p)
    for q in (pickle.loads(pickle.dumps(p)), copy.deepcopy(p), copy.copy(p)):
        assert type(q) is type(p)
        assert torch.equal(q.log_prob(t), p.log_prob(t))
        assert torch.equal(q.mean, p.mean)
        if not case.event_shape:
            assert torch.equal(q.cdf(t), p.cdf(t))


# Pyro


@every_case
def test_runs_in_a_plate(case: Case) -> None:
    def model() -> Tensor:
        with pyro.plate("rows", 2, dim=-2), pyro.plate("columns", 3, dim=-1):
            value: Tensor = pyro.sample("x", case())
            return value

    trace = pyro.poutine.trace(model).get_trace()
    trace.compute_log_prob()
    site = trace.nodes["x"]
    assert site["value"].shape == (2, 3, *case.event_shape)
    assert site["log_prob"].shape == (2, 3)
    expected = case().log_prob(site["value"])
    torch.testing.assert_close(site["log_prob"], expected)


@every_connected_scalar
def test_variational_inference_improves_its_bound(case: Case) -> None:
    seen = torch.full((3, *case.event_shape), 0.9)

    def model() -> None:
        with pyro.plate("columns", 3):
            x = pyro.sample("x", case(SINGLE))
            noise = pyro.distributions.Normal(x, 0.4).to_event(len(case.event_shape))
            pyro.sample("y", noise, obs=seen)

    pyro.clear_param_store()
    guide = AutoNormal(model)
    bound = Trace_ELBO(num_particles=100, vectorize_particles=True, max_plate_nesting=1)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), bound)
    losses = [svi.step() for _ in range(8)]
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[-1] < losses[0] - 0.1
    assert case().support.check(guide.median()["x"].double()).all()


@every_scalar
def test_a_guide_equal_to_its_model_has_a_bound_of_zero(case: Case) -> None:
    def model() -> None:
        with pyro.plate("columns", 3):
            pyro.sample("x", case())

    loss = Trace_ELBO(num_particles=4).loss(model, model)
    assert abs(loss) < 1e-12
