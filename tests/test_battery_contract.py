"""The battery: shapes, broadcasting, expansion and errors."""

import math
from collections.abc import Callable

import pytest
import torch
from cases import (
    BAD_VALUES,
    DOUBLE,
    Case,
    every_batch,
    every_case,
    every_dtype,
    every_scalar,
    interior,
)
from torch import Size, Tensor

from sparsefam import SparseDistribution
from sparsefam.bases import GaussianRBF, Polynomial

# Every member that takes no argument and has the batch shape.
MEMBERS: dict[str, Callable[[SparseDistribution], Tensor]] = {
    "alpha": lambda p: p.alpha,
    "mean": lambda p: p.mean,
    "variance": lambda p: p.variance,
    "stddev": lambda p: p.stddev,
    "mode": lambda p: p.mode,
    "entropy": lambda p: p.entropy(),
    "tsallis_entropy": lambda p: p.tsallis_entropy(),
    "log_normalizer": lambda p: p.log_normalizer,
}


# Shapes


@every_dtype
@every_case
def test_members_have_the_batch_shape_and_dtype(case: Case, dtype: torch.dtype) -> None:
    p = case(dtype)
    parameters = case.leaves(dtype).values()
    assert p.batch_shape == torch.broadcast_shapes(*(x.shape for x in parameters))
    assert p.event_shape == Size()
    for name, member in MEMBERS.items():
        value = member(p)
        assert (value.shape, value.dtype) == (p.batch_shape, dtype), name
        assert not value.isnan().any(), name
    t, psi = interior(p), GaussianRBF([0.0, 1.0, 2.0, 3.0], 0.5).to(dtype)
    for value in (p.log_prob(t), p.prob(t), p.cdf(t), p.icdf(p.cdf(t))):
        assert (value.shape, value.dtype) == (t.shape, dtype)
    assert p.support.intervals.shape == (*p.batch_shape, 1, 2)
    assert p.expect(psi).shape == (*p.batch_shape, 4)
    assert p.expect(psi).dtype == dtype
    covariance = p.generalized_covariance(Polynomial(2), psi, beta=1.0)
    assert (covariance.shape, covariance.dtype) == ((*p.batch_shape, 3, 4), dtype)
    nodes, weights = p.quadrature(8)
    assert nodes.shape == weights.shape == (len(nodes), *p.batch_shape)
    assert nodes.dtype == weights.dtype == dtype


@every_case
def test_samples_have_the_shape_asked_for(case: Case) -> None:
    p = case()
    for shape in ((), (5,), (4, 2)):
        assert p.sample(shape).shape == p.rsample(shape).shape == (*shape, *p.batch_shape)
    assert p.has_rsample
    assert p.log_prob(p.sample((4, 2))).shape == (4, 2, *p.batch_shape)


@every_case
def test_pyro_infers_the_shapes(case: Case) -> None:
    p = case()
    shapes = {name: value.shape for name, value in case.leaves().items()}
    assert type(p).infer_shapes(**shapes) == (p.batch_shape, p.event_shape)


@every_batch
def test_values_broadcast_against_the_batch(case: Case) -> None:
    p = case()
    value = torch.linspace(-1, 1, 5, dtype=DOUBLE).reshape(5, 1, 1)
    full = value.expand(5, *p.batch_shape)
    for function in (p.log_prob, p.prob, p.cdf):
        assert function(value).shape == full.shape
        assert torch.equal(function(value), function(full))
    scalar = torch.tensor(0.25, dtype=DOUBLE)
    assert torch.equal(p.log_prob(scalar), p.log_prob(scalar.expand(p.batch_shape)))
    assert p.icdf(scalar).shape == p.batch_shape


@every_batch
def test_a_batch_is_its_elements(case: Case) -> None:
    p, leaves = case(), {k: v.detach() for k, v in case.leaves().items()}
    whole = {k: v.expand(p.batch_shape) for k, v in leaves.items()}
    t, u = interior(p), torch.tensor([1e-3, 0.4, 0.9], dtype=DOUBLE)
    psi = GaussianRBF(torch.tensor([0.0, 1.0], dtype=DOUBLE), 0.5)
    log_prob, cdf, icdf = p.log_prob(t), p.cdf(t), p.icdf(u.reshape(3, 1, 1))
    for row, column in ((0, 1), (1, 2)):
        one = case.family.make(**{k: v[row, column] for k, v in whole.items()})
        mine = t[:, row, column]
        pairs = [(member(one), member(p)[row, column]) for member in MEMBERS.values()]
        pairs += [
            (one.log_prob(mine), log_prob[:, row, column]),
            (one.cdf(mine), cdf[:, row, column]),
            (one.icdf(u), icdf[:, row, column]),
            (one.expect(psi), p.expect(psi)[row, column]),
        ]
        for found, expected in pairs:
            torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)


@every_case
def test_expand_copies_nothing_and_changes_nothing(case: Case) -> None:
    p = case()
    shape = Size((4, *p.batch_shape))
    q = p.expand(shape)
    assert type(q) is type(p)
    assert q.batch_shape == shape
    assert q.loc.data_ptr() == p.loc.data_ptr()
    assert p.batch_shape == shape[1:]
    for name, member in MEMBERS.items():
        torch.testing.assert_close(member(q), member(p).expand(shape), msg=name)
    t = interior(p)
    expected = p.log_prob(t).unsqueeze(1).expand(len(t), *shape)
    torch.testing.assert_close(q.log_prob(t.unsqueeze(1).expand_as(expected)), expected)
    assert q.rsample((3,)).shape == (3, *shape)
    assert q.escort(1.0).batch_shape == shape
    assert q.expand((2, *shape)).batch_shape == (2, *shape)
    with pytest.raises(RuntimeError):
        q.expand((3, *p.batch_shape))


@every_case
def test_expand_keeps_gradients(case: Case) -> None:
    leaves = case.leaves()
    p = case.family.make(**leaves)
    t = interior(p).detach()
    expanded = p.expand((4, *p.batch_shape)).log_prob(t.unsqueeze(1)).sum()
    found = torch.autograd.grad(expanded, list(leaves.values()), allow_unused=True)
    plain = 4 * p.log_prob(t).sum()
    expected = torch.autograd.grad(plain, list(leaves.values()), allow_unused=True)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


@every_batch
def test_pyro_reshapes_and_masks(case: Case) -> None:
    p = case()
    t = interior(p)
    summed = p.to_event(1)
    assert (summed.batch_shape, summed.event_shape) == (p.batch_shape[:1], p.batch_shape[1:])
    torch.testing.assert_close(summed.log_prob(t), p.log_prob(t).sum(-1))
    assert p.expand_by((5,)).batch_shape == (5, *p.batch_shape)
    mask = torch.tensor([True, False, True])
    torch.testing.assert_close(p.mask(mask).log_prob(t), p.log_prob(t) * mask)


# Errors


@every_case
def test_bad_parameters_are_named_with_their_value(case: Case) -> None:
    for name in case.parameters:
        for value in BAD_VALUES[name]:
            leaves = {k: v.detach().clone() for k, v in case.leaves().items()}
            leaves[name].view(-1)[-1] = value
            with pytest.raises(ValueError, match=rf"\b{name}\b[\s\S]*(got|values)[\s\S]*{value:g}"):
                case.family.make(**leaves)


@every_scalar
def test_shapes_that_do_not_broadcast_are_named(case: Case) -> None:
    leaves = {k: v.detach() for k, v in case.leaves().items()}
    with pytest.raises(ValueError, match=r"loc \(2,\), scale \(3,\)"):
        case.family.make(**leaves | {"loc": torch.zeros(2), "scale": torch.ones(3)})


@every_scalar
def test_arguments_that_are_no_numbers_are_named(case: Case) -> None:
    leaves = {k: v.detach() for k, v in case.leaves().items()}
    with pytest.raises(ValueError, match="loc must be a number or a tensor, got 'left'"):
        case.family.make(**leaves | {"loc": "left"})


@every_case
def test_values_of_a_wrong_kind_are_refused(case: Case) -> None:
    p = case()
    for function in (p.log_prob, p.cdf, p.icdf):
        with pytest.raises(ValueError, match="value must be real, got .*nan"):
            function(torch.full(p.batch_shape, math.nan, dtype=DOUBLE))
        with pytest.raises(ValueError, match="value must be a tensor, got float"):
            function(0.5)
        if p.batch_shape:
            with pytest.raises(ValueError, match=r"value must broadcast.*\(2, 3\).*\(7,\)"):
                function(torch.zeros(7, dtype=DOUBLE))
    for bad in (-0.01, 1.01):
        with pytest.raises(ValueError, match=rf"value must be a probability.*{bad}"):
            p.icdf(torch.full(p.batch_shape, bad, dtype=DOUBLE))


@every_scalar
def test_validation_may_be_switched_off(case: Case) -> None:
    leaves = {k: v.detach() for k, v in case.leaves().items()}
    p = case.family.make(**leaves | {"scale": torch.tensor(-1.0)}, validate_args=False)
    p.log_prob(torch.tensor(math.nan))
    q = case.family.make(**leaves, validate_args=False)
    assert q.expand((2,))._validate_args is False
    assert q.escort(1.0)._validate_args is False
