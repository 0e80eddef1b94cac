"""The battery: supports, their bijections, and copies."""

import copy
import io
import math
import pickle

import pytest
import torch
from battery import DOUBLE, SINGLE, Case, bounded, interior, located
from cases import (
    every_case,
    every_connected_case,
    every_dtype,
    every_scattered_case,
    every_univariate_case,
)
from torch import Tensor
from torch.distributions import Uniform, biject_to

from sparsefam import BetaGaussian, BetaLaplace, Mixture, SparseDistribution, Truncated


@every_dtype
@every_case
def test_samples_lie_in_the_support(case: Case, dtype: torch.dtype) -> None:
    p = case(dtype)
    t = p.sample((2000,))
    assert t.dtype == dtype
    assert p.support.check(t).shape == (2000, *p.batch_shape)
    assert p.support.check(t).all()
    assert p.support.event_dim == len(p.event_shape)
    assert not p.support.is_discrete
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


@every_dtype
@every_univariate_case
def test_the_support_and_the_density_agree_on_the_ends(case: Case, dtype: torch.dtype) -> None:
    p = case(dtype)
    for end in p.support.intervals.flatten(-2).unbind(-1):
        finite = end.isfinite()
        at = torch.where(finite, end, p.mean)
        inside = p.log_prob(at) > -math.inf
        assert torch.equal(p.support.check(at), inside)
        assert torch.equal(p.prob(at) > 0, inside)


def test_both_ends_count_where_the_density_is_positive_but_for_uniform_ones_of_torch() -> None:
    t = torch.tensor([-0.5, 0.0, 0.5, 1.0, 1.5])
    inside = torch.tensor([False, True, True, True, False])
    learned = torch.tensor(math.inf)
    uniforms: list[SparseDistribution] = [
        BetaGaussian(0.5, 0.5, math.inf),
        BetaGaussian(0.5, 0.5, learned),
        BetaLaplace(0.5, 0.5, math.inf),
        Truncated(Uniform(-1.0, 3.0), 0.0, 1.0),
        Truncated(Uniform(0.0, 1.0), -2.0, 3.0),
    ]
    theirs = Mixture(torch.zeros(1), [Uniform(0.0, 1.0)])
    torch_inside = Uniform(0.0, 1.0, validate_args=False).log_prob(t) > -math.inf
    for p, here in [*((p, inside) for p in uniforms), (theirs, torch_inside)]:
        expected = torch.where(here, 0.0, -math.inf)
        torch.testing.assert_close(p.log_prob(t), expected, rtol=0, atol=1e-6)
        assert torch.equal(p.support.check(t), here)


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
    p, file = case(), io.BytesIO()
    torch.save(p, file)
    file.seek(0)
    saved = torch.load(file, weights_only=False)  # of a distribution more than tensors is kept
    t = interior(p)
    for q in (pickle.loads(pickle.dumps(p)), saved, copy.deepcopy(p), copy.copy(p)):
        assert type(q) is type(p)
        assert torch.equal(q.log_prob(t), p.log_prob(t))
        assert torch.equal(q.mean, p.mean)
        if not case.event_shape:
            assert torch.equal(q.cdf(t), p.cdf(t))
