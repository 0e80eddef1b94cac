"""The battery: shapes, broadcasting, expansion and parts of a batch."""

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from battery import DOUBLE, Case, bases, bounded, ends, interior
from cases import every_batch, every_case, every_dtype
from torch import Size, Tensor

from sparsefam import SparseDistribution

Member = Callable[[SparseDistribution], Tensor]

# Every member that takes no argument: those of the batch shape, and those with the event's.
NUMBERS = ("alpha", "entropy", "tsallis_entropy", "log_normalizer")
EVENTS = ("mean", "variance", "stddev", "mode", "deterministic_sample")
ONLY_NUMBERS = ("median", "skewness", "kurtosis")


def value_of(name: str, p: SparseDistribution) -> Tensor:
    """Of a property, or of a method."""
    member = getattr(p, name)
    return member if isinstance(member, Tensor) else member()


def members(case: Case) -> dict[str, tuple[Member, Size]]:
    """Each member with the shape that follows the batch's."""
    shape = case.event_shape
    own = (("covariance_matrix",), shape + shape) if shape else (ONLY_NUMBERS, Size())
    groups = [(NUMBERS, Size()), (EVENTS, shape), own]
    return {name: (partial(value_of, name), tail) for group, tail in groups for name in group}


@every_dtype
@every_case
def test_members_have_the_batch_shape_and_dtype(case: Case, dtype: torch.dtype) -> None:
    p = case(dtype)
    assert (p.batch_shape, p.event_shape) == (case.batch_shape, case.event_shape)
    for name, (member, tail) in members(case).items():
        value = member(p)
        assert (value.shape, value.dtype) == (p.batch_shape + tail, dtype), name
        assert not value.isnan().any(), name
    t = interior(p)
    for value in (p.log_prob(t), p.prob(t)):
        assert (value.shape, value.dtype) == ((len(t), *p.batch_shape), dtype)
    for name, psi in bases(case.family.dim, dtype).items():
        found = p.expect(psi)
        assert (found.shape, found.dtype) == ((*p.batch_shape, len(psi)), dtype), name
    nodes, weights = p.quadrature(8)
    assert nodes.shape == (len(nodes), *p.batch_shape, *p.event_shape)
    assert weights.shape == (len(nodes), *p.batch_shape)
    assert nodes.dtype == weights.dtype == dtype


@every_case
def test_samples_have_the_shape_asked_for(case: Case) -> None:
    p = case()
    whole = p.batch_shape + p.event_shape
    for shape in ((), (5,), (4, 2)):
        assert p.sample(shape).shape == (*shape, *whole)
        if case.family.connected:
            t, log_p = p.rsample_and_log_prob(shape)
            assert t.shape == (*shape, *whole)
            assert torch.equal(log_p, p.log_prob(t))
    if not case.family.connected:
        with pytest.raises(NotImplementedError, match="one interval"):
            p.rsample()
    assert p.has_rsample == case.family.connected
    assert p.log_prob(p.sample((4, 2))).shape == (4, 2, *p.batch_shape)


def sums(case: Case) -> dict[str, float]:
    """How close sums of another order are; where there are none it is exactly."""
    return {"rtol": 1e-10, "atol": 1e-12} if case.family.signed else {"rtol": 0.0, "atol": 0.0}


@every_case
def test_every_parameter_is_an_attribute_that_keeps_its_constraint(case: Case) -> None:
    p = case()
    for name, constraint in p.arg_constraints.items():
        value = getattr(p, name)
        assert value.shape[: value.dim() - constraint.event_dim] == p.batch_shape, name
        assert constraint.check(value).all(), name
        assert f"{name}: " in repr(p), name


@every_batch
def test_values_broadcast_against_the_batch(case: Case) -> None:
    p = case()
    value = torch.linspace(-1, 1, 5, dtype=DOUBLE).reshape(5, 1, 1, *(1,) * len(p.event_shape))
    value = value.expand(5, 1, 1, *p.event_shape)
    full = value.expand(5, *p.batch_shape, *p.event_shape)
    for function in (p.log_prob, p.prob):
        assert function(value).shape == (5, *p.batch_shape)
        torch.testing.assert_close(function(value), function(full), **sums(case))
    one = torch.full(p.event_shape, 0.25, dtype=DOUBLE)
    spread = one.expand(p.batch_shape + p.event_shape)
    torch.testing.assert_close(p.log_prob(one), p.log_prob(spread), **sums(case))


@every_case
def test_values_may_have_more_digits_than_the_parameters(case: Case) -> None:
    p = case(torch.float32)
    t, level = p.mean, torch.full(p.batch_shape, 0.25)
    numbers = ("cdf", "survival", "log_cdf", "log_survival", "highest_density_mass")
    calls = {name: t for name in ("log_prob", "prob", *(() if p.event_shape else numbers))}
    for name, value in (calls if p.event_shape else {**calls, "icdf": level}).items():
        found, same = (getattr(p, name)(x).double() for x in (value.double(), value))
        torch.testing.assert_close(found, same, rtol=1e-4, atol=1e-5, msg=name)


# Expansion and reshaping
@every_case
def test_expand_copies_nothing_and_changes_nothing(case: Case) -> None:
    p = case()
    shape = Size((4, *p.batch_shape))
    q = p.expand(shape)
    assert type(q) is type(p)
    assert (q.batch_shape, q.event_shape) == (shape, p.event_shape)
    name = next(iter(type(p).arg_constraints))
    assert getattr(q, name).data_ptr() == getattr(p, name).data_ptr()
    assert p.batch_shape == shape[1:]
    for name, (member, tail) in members(case).items():
        torch.testing.assert_close(member(q), member(p).expand(shape + tail), msg=name)
    t = interior(p)
    spread = t.unsqueeze(1).expand(len(t), *shape, *p.event_shape)
    expected = p.log_prob(t).unsqueeze(1).expand(len(t), *shape)
    torch.testing.assert_close(q.log_prob(spread), expected)
    assert q.sample((3,)).shape == (3, *shape, *p.event_shape)
    assert q.escort(1.0).batch_shape == shape
    assert q.expand((2, *shape)).batch_shape == (2, *shape)
    with pytest.raises(ValueError, match="batch_shape must be what .* expands to, got"):
        q.expand((3, *p.batch_shape))


# Parts of a batch
SOME: list[Any] = [
    (0, 1),
    (1, slice(0, 2)),
    torch.tensor([[True, False, True], [False, True, True]]),
]


@every_batch
def test_a_batch_is_its_parts_however_they_are_made(case: Case) -> None:
    p, psi = case(), bases(case.family.dim, DOUBLE)
    t, rows = interior(p), torch.arange(6).reshape(2, 3)
    spread = case.spread(p.batch_shape, {k: v.detach() for k, v in case.leaves().items()})
    # Of a kernel family the mode is searched for, and rounding decides on its last digits.
    names = members(case).keys() - ({"mode"} if case.family.signed else {})
    functions = [members(case)[name][0] for name in names]
    functions += [lambda q, basis=basis: q.expect(basis) for basis in psi.values()]
    functions += [lambda q: q.escort(1.0).log_normalizer]
    if case.family.signed:  # covariances of the others follow from their parameters
        functions += [lambda q: q.generalized_covariance(psi["Fourier"], psi["GaussianRBF"])]
    quarter = torch.tensor(0.25, dtype=DOUBLE)
    quantiles: list[Member] = [
        lambda q: torch.stack(ends(q), -1),
        lambda q: q.icdf(quarter.expand(q.batch_shape)),
        lambda q: q.cdf(quarter.expand(q.batch_shape)),
    ]
    quantiles = [] if case.event_shape else quantiles
    wholes = {function: function(p).flatten(0, 1) for function in functions + quantiles}
    at = [f(t).flatten(1, 2) for f in (p.log_prob, p.support.check)]
    # Nodes are chosen for all of a batch.
    fresh = 1e-10 if case.family.signed else 1e-13
    for index in SOME:
        own = rows[index]
        made = case.family.make(**{k: v.flatten(0, 1)[own] for k, v in spread.items()})
        for q, close, asked in ((p[index], 1e-11, functions + quantiles), (made, fresh, functions)):
            assert type(q) is type(p)
            assert (q.batch_shape, q.event_shape) == (own.shape, p.event_shape)
            for function in asked:
                torch.testing.assert_close(
                    function(q), wholes[function][own], rtol=close, atol=close
                )
            x = t.flatten(1, 2)[:, own]
            for found, whole in zip((q.log_prob(x), q.support.check(x)), at, strict=True):
                torch.testing.assert_close(found, whole[:, own], rtol=close, atol=close)
            assert q.support.check(q.sample((5,))).all()
    again = pickle.loads(pickle.dumps(p[1]))
    assert torch.equal(again.log_prob(t[:, 1]), p[1].log_prob(t[:, 1]))
    torch.testing.assert_close(torch.stack([q.mean for q in p]), p.mean)


@every_batch
def test_quantities_of_no_densities_are_empty(case: Case) -> None:
    p, psi = case()[:0], bases(case.family.dim, DOUBLE)["GaussianRBF"]
    n = len(psi)
    assert p.expect(psi).shape == (*p.batch_shape, n)
    assert p.generalized_covariance(psi, psi, 1.0).shape == (*p.batch_shape, n, n)
    for get, _ in members(case).values():
        assert get(p).numel() == 0
    t = p.sample((3,))
    assert t.shape == (3, *p.batch_shape, *p.event_shape)
    assert p.log_prob(t).shape == (3, *p.batch_shape)
    if not case.event_shape:
        assert p.icdf(p.cdf(t)).shape == t.shape
        assert p.highest_density(0.5).intervals.numel() == 0


@every_batch
def test_gradients_pass_parts_and_expansion_and_end_at_detach(case: Case) -> None:
    leaves = case.leaves()
    p, inputs = case.family.make(**leaves), list(leaves.values())
    t = interior(p).detach()
    whole = p.log_prob(t)
    expanded = p.expand((4, *p.batch_shape)).log_prob(t.unsqueeze(1))
    for found, expected in ((p[:, 1].log_prob(t[:, :, 1]), whole[:, :, 1]), (expanded, 4 * whole)):
        slopes = (
            torch.autograd.grad(x.sum(), inputs, retain_graph=True, allow_unused=True)
            for x in (found, expected)
        )
        for slope, exact in zip(*slopes, strict=True):
            torch.testing.assert_close(slope, exact, rtol=1e-11, atol=1e-11)
    q, name = p.detach(), next(iter(type(p).arg_constraints))
    assert type(q) is type(p)
    assert getattr(q, name).data_ptr() == getattr(p, name).data_ptr()
    assert whole.requires_grad
    for f, g in ((whole, q.log_prob(t)), (p.variance, q.variance), (p.mean, q.mean)):
        assert torch.equal(f, g)
        assert not g.requires_grad
    assert not q[0].escort(1.0).entropy().requires_grad
    assert not q.sample().requires_grad
    x = t.clone().requires_grad_()
    assert torch.autograd.grad(q.log_prob(x).sum(), x)[0].isfinite().all()


@every_case
def test_an_index_out_of_the_batch_is_named(case: Case) -> None:
    p = case()
    bad = [2, -3, (0, 3), (0, 0, 0), "left", 0.5, torch.tensor([2]), torch.ones(3) > 0]
    for index in bad if p.batch_shape else [0, slice(None), torch.tensor(0)]:
        with pytest.raises(ValueError, match="index must fit the batch shape .*, got") as error:
            p[index]
        assert isinstance(error.value, IndexError)
    if not p.batch_shape:
        with pytest.raises(TypeError, match="must have a batch to be iterated over"):
            iter(p)


@every_case
def test_the_support_ends_where_it_says(case: Case) -> None:
    p = case()
    if not case.event_shape:
        intervals = p.support.intervals.reshape(p.batch_shape.numel(), -1, 2)
        assert p.support.intervals.shape == (*p.batch_shape, *intervals.shape[1:])
        for r, row in zip(case.references if bounded(p) else [], intervals, strict=bounded(p)):
            found = row[~row.isnan().any(-1)]
            torch.testing.assert_close(found, torch.tensor(r.intervals, dtype=DOUBLE))
    elif bounded(p):
        assert p.support.loc.shape == p.batch_shape + p.event_shape
