"""The battery: shapes, broadcasting and expansion."""

from collections.abc import Callable

import pytest
import torch
from battery import DOUBLE, Case, bases, bounded, interior
from cases import every_batch, every_case, every_dtype
from torch import Size, Tensor

from sparsefam import SparseDistribution

Member = Callable[[SparseDistribution], Tensor]

# Every member that takes no argument: those of the batch shape, and those with the event's.
NUMBERS: dict[str, Member] = {
    "alpha": lambda p: p.alpha,
    "entropy": lambda p: p.entropy(),
    "tsallis_entropy": lambda p: p.tsallis_entropy(),
    "log_normalizer": lambda p: p.log_normalizer,
}
EVENTS: dict[str, Member] = {
    "mean": lambda p: p.mean,
    "variance": lambda p: p.variance,
    "stddev": lambda p: p.stddev,
    "mode": lambda p: p.mode,
}
MATRICES: dict[str, Member] = {"covariance_matrix": lambda p: p.covariance_matrix}


def members(case: Case) -> dict[str, tuple[Member, Size]]:
    """Each member with the shape that follows the batch's."""
    shape = case.event_shape
    groups = [(NUMBERS, Size()), (EVENTS, shape), (MATRICES if shape else {}, shape + shape)]
    return {name: (member, tail) for group, tail in groups for name, member in group.items()}


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
            assert p.rsample(shape).shape == (*shape, *whole)
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


@every_batch
def test_a_batch_is_its_elements(case: Case) -> None:
    p = case()
    whole = case.spread(p.batch_shape, {k: v.detach() for k, v in case.leaves().items()})
    t, psi = interior(p), bases(case.family.dim, DOUBLE)
    log_prob, expected = p.log_prob(t), {name: p.expect(basis) for name, basis in psi.items()}
    # Nodes are chosen for all of a batch.
    close = 1e-10 if case.family.signed else 1e-13
    for row, column in ((0, 1), (1, 2)):
        one = case.family.make(**{k: v[row, column] for k, v in whole.items()})
        pairs = [
            (member(one), member(p)[row, column])
            for name, (member, _) in members(case).items()
            if not (name == "mode" and case.family.signed)
        ]
        pairs += [(one.log_prob(t[:, row, column]), log_prob[:, row, column])]
        pairs += [(one.expect(psi[name]), value[row, column]) for name, value in expected.items()]
        for found, mine in pairs:
            torch.testing.assert_close(found, mine, rtol=close, atol=close)


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
    with pytest.raises(RuntimeError):
        q.expand((3, *p.batch_shape))


@every_case
def test_expand_keeps_gradients(case: Case) -> None:
    leaves = case.leaves()
    p = case.family.make(**leaves)
    t = interior(p).detach()
    expanded = p.expand((4, *p.batch_shape)).log_prob(t.unsqueeze(1)).sum()
    found = torch.autograd.grad(
        expanded, list(leaves.values()), retain_graph=True, allow_unused=True
    )
    plain = 4 * p.log_prob(t).sum()
    expected = torch.autograd.grad(plain, list(leaves.values()), allow_unused=True)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


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
