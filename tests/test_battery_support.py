"""The battery: supports, copies, and life inside Pyro."""

import copy
import math
import pickle

import pyro
import pyro.distributions
import torch
from cases import Case, ends, every_case, every_dtype, every_scalar, interior
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
    lower, upper = ends(p)
    margin = (1e-5 if dtype == torch.float32 else 1e-12) * (upper - lower)
    for inside in (lower + margin, upper - margin):
        bounded = inside.isfinite()
        t = torch.where(bounded, inside, p.mean)
        assert p.support.check(t).all()
        assert p.log_prob(t).isfinite().all()
        outside = torch.where(bounded, torch.stack([lower - margin, upper + margin]), t)
        assert (p.support.check(outside) == ~bounded).all()
        assert ((p.log_prob(outside) == -math.inf) == bounded).all()
        assert ((p.prob(outside) == 0) == bounded).all()
    if p.support.intervals.isfinite().all():
        assert (p.prob(torch.stack([lower, upper])) <= p.prob(p.mode)).all()


@every_dtype
@every_case
def test_the_line_maps_onto_the_support_and_back(case: Case, dtype: torch.dtype) -> None:
    p = case(dtype)
    transform = biject_to(p.support)
    x = torch.linspace(-4, 4, 9, dtype=dtype).reshape(9, *(1,) * len(p.batch_shape))
    t = transform(x)
    assert t.shape == (9, *p.batch_shape) or p.support.intervals.isinf().all()
    assert p.support.check(t).all()
    tolerance = 1e-3 if dtype == torch.float32 else 1e-11
    assert (transform.inv(t) - x).abs().max() < tolerance


# Copies


@every_case
def test_pickles_and_deep_copies(case: Case) -> None:
    p = case()
    t = interior(p)
    for q in (pickle.loads(pickle.dumps(p)), copy.deepcopy(p), copy.copy(p)):
        assert type(q) is type(p)
        assert torch.equal(q.log_prob(t), p.log_prob(t))
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
    assert site["value"].shape == site["log_prob"].shape == (2, 3)
    expected = case().log_prob(site["value"])
    torch.testing.assert_close(site["log_prob"], expected)


@every_scalar
def test_variational_inference_improves_its_bound(case: Case) -> None:
    def model() -> None:
        with pyro.plate("columns", 3):
            x = pyro.sample("x", case(torch.float32))
            pyro.sample("y", pyro.distributions.Normal(x, 0.4), obs=torch.full((3,), 0.9))

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
