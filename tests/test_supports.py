"""Supports: their intervals, bijections and gradients."""

import math
import pickle

import numpy as np
import pytest
import torch
from battery import DOUBLE
from cases import every_dtype
from references import merged
from refusals import refused
from torch import Tensor
from torch.distributions import biject_to, constraints, transform_to

from sparsefam import Normal
from sparsefam.supports import (
    AnyOf,
    Ellipsoid,
    Interval,
    IntervalUnion,
    OntoIntervals,
    RealLine,
    Region,
)


def test_the_real_line_holds_all_but_nan() -> None:
    support = Normal(torch.zeros(2, 3, dtype=DOUBLE), 1.0).support
    assert isinstance(support, RealLine) and support.intervals.dtype == DOUBLE
    assert support.intervals.tolist() == [[[[-math.inf, math.inf]]] * 3] * 2
    assert support.check(torch.tensor([0.0, math.inf, math.nan])).tolist() == [True, True, False]


# Ellipsoids
def ellipsoid(size: int, dtype: torch.dtype, smallest: float = 0.1) -> Ellipsoid:
    """A batch (3, 2) of them, whose axes are as long as 1 and as short as `smallest`."""
    lengths = torch.logspace(0, math.log10(smallest), size, dtype=dtype).unsqueeze(-1)
    tril = torch.randn(2, size, size, dtype=dtype).tril(-1) + torch.eye(size, dtype=dtype)
    return Ellipsoid(torch.randn(3, 1, size, dtype=dtype), lengths * tril)


@pytest.mark.parametrize(("smallest", "distance"), [(1.0, 0.0), (1e-6, 0.0), (1e-3, 100.0)])
@every_dtype
def test_rounding_throws_no_point_out(dtype: torch.dtype, distance: float, smallest: float) -> None:
    """Far from the origin, or through an ill-conditioned matrix, t keeps few digits of u."""
    support = ellipsoid(8, dtype, smallest)
    support = Ellipsoid(distance * support.loc, support.scale_tril)
    y = 10 * torch.randn(500, 3, 2, 8, dtype=dtype)
    transform = biject_to(support)
    t = transform(y)
    assert support.check(t).all()
    assert transform.inv(t).isfinite().all()


@every_dtype
def test_gradients_reach_the_parameters_and_are_finite_at_the_center(dtype: torch.dtype) -> None:
    loc = torch.tensor([0.5, -1.0], dtype=dtype, requires_grad=True)
    tril = torch.tensor([[2.0, 0.0], [1.0, 0.5]], dtype=dtype, requires_grad=True)
    y = torch.zeros(2, dtype=dtype, requires_grad=True)
    transform = biject_to(Ellipsoid(loc, tril))
    t = transform(y)
    log_det = transform.log_abs_det_jacobian(y, t)
    slopes = torch.autograd.grad(t.sum() + log_det + transform.inv(t).sum(), (y, loc, tril))
    assert all(slope.isfinite().all() for slope in slopes)
    (slope,) = torch.autograd.grad(transform(y)[1], y)
    torch.testing.assert_close(slope, tril[1] / 2)  # tanh(r/2)/r is 1/2 at 0
    y = torch.tensor([0.75, -0.5], dtype=DOUBLE, requires_grad=True)
    fixed = transform(y.to(dtype)).detach().double()
    leaves = (y, loc.detach().double().requires_grad_(), tril.detach().double().requires_grad_())

    def there_and_back(y: Tensor, loc: Tensor, tril: Tensor) -> tuple[Tensor, ...]:
        transform = biject_to(Ellipsoid(loc, tril.tril()))
        t = transform(y)
        return t, transform.inv(fixed), transform.log_abs_det_jacobian(y, t)

    assert torch.autograd.gradcheck(there_and_back, leaves)


def test_ellipsoids_can_be_compared_and_mapped() -> None:
    support = ellipsoid(3, DOUBLE)
    same, other = (Ellipsoid(support.loc + x, support.scale_tril) for x in (0.0, 1.0))
    assert biject_to(support) == biject_to(same) != biject_to(other)
    y = torch.randn(3, 2, 3, dtype=DOUBLE)
    t = biject_to(support)(y)

    def image(y: Tensor, loc: Tensor, tril: Tensor) -> tuple[Tensor, Tensor]:
        support = Ellipsoid(loc, tril)
        t = biject_to(support)(y)
        return t, support.check(t)

    flat = (y.flatten(0, 1), support.loc.flatten(0, 1), support.scale_tril.flatten(0, 1))
    mapped = torch.func.vmap(image)(*flat)
    torch.testing.assert_close(mapped[0], t.flatten(0, 1))
    assert mapped[1].all()


NAN, INF = math.nan, math.inf
ENDS = [[[0.0, 1.0], [2.0, 2.5], [4.0, INF]], [[-INF, -1.0], [-0.5, 3.0], [NAN, NAN]]]


def test_members_are_the_intervals_with_their_ends() -> None:
    union = IntervalUnion(torch.tensor(ENDS))
    value = torch.tensor([-2.0, -1.0, -0.5, -0.1, 0.0, 0.5, 1.0, 1.5, 2.5, 3.5, 4.0, 9.0])
    inside = [[x in (0.0, 0.5, 1.0, 2.5, 4.0, 9.0), x < 3.5] for x in value.tolist()]
    assert union.check(value[:, None]).tolist() == inside
    assert not union.check(torch.tensor(NAN)).any()
    assert union.check(torch.zeros(5, 1, 2)).shape == (5, 1, 2)
    assert union.count.tolist() == [3, 2]
    assert union.lower_bound.tolist() == [0.0, -INF] and union.upper_bound.tolist() == [INF, 3.0]
    assert union.event_dim == 0 and not union.is_discrete
    assert torch.equal(pickle.loads(pickle.dumps(union)).count, union.count)
    assert repr(union).startswith("IntervalUnion(intervals=tensor(")


test_bad_intervals_are_named = refused(
    [
        ([0.0, 1.0], "intervals must .*shape"),
        ([[0.0], [1.0]], "intervals must .*shape"),
        ([[0.0, 2.0], [1.0, 3.0]], "intervals must .*ascend"),
        ([[NAN, NAN], [0.0, 1.0]], "intervals must .*padded with NaN"),
        ([[0.0, NAN]], "intervals must .*pairs"),
        ([[NAN, NAN]], "intervals must .*one or more"),
    ],
    of=lambda ends: IntervalUnion(torch.tensor(ends)),
)


def test_merging_is_what_a_sweep_finds() -> None:
    generator = torch.Generator().manual_seed(1)
    # Few values, so that ends often coincide.
    ends = torch.randint(0, 14, (400, 5, 2), generator=generator).double().sort(-1).values
    ends[torch.rand(400, 5, generator=generator) < 0.2] = NAN
    ends[:, 0] = torch.tensor([3.0, 4.0])
    ends[:9, 1, 1], ends[9:18, 2, 0] = INF, -INF
    ends[ends.isnan().any(-1)] = NAN
    union = IntervalUnion.merged(ends)
    assert union.intervals.shape == ends.shape
    for row, found in zip(ends.numpy(), union.intervals.numpy(), strict=True):
        expected = merged(row[~np.isnan(row).any(-1)].tolist())
        assert found[: len(expected)].tolist() == expected
        assert np.isnan(found[len(expected) :]).all()


@pytest.mark.parametrize("registry", [biject_to, transform_to])
@pytest.mark.parametrize(
    ("ends", "twin"),
    [
        ((-1.0, 3.0), constraints.interval(-1.0, 3.0)),
        ((2.0, INF), constraints.greater_than(2.0)),
        ((-INF, 2.0), constraints.less_than(2.0)),
        ((-INF, INF), constraints.real),
    ],
)
def test_one_interval_has_a_bijection(registry, ends: tuple, twin: constraints.Constraint) -> None:
    row = torch.tensor([[ends, (NAN, NAN)]] * 3, dtype=DOUBLE)
    transform = registry(IntervalUnion(row))
    u = torch.linspace(-4, 4, 9, dtype=DOUBLE)[:, None].expand(9, 3).clone().requires_grad_()
    t = transform(u)
    torch.testing.assert_close(t, registry(twin)(u))
    assert IntervalUnion(row).check(t).all()
    torch.testing.assert_close(transform.inv(t), u, rtol=1e-9, atol=1e-9)
    (slope,) = torch.autograd.grad(t.sum(), u)
    torch.testing.assert_close(transform.log_abs_det_jacobian(u, t), slope.abs().log())


def test_several_intervals_have_none_and_a_way_round() -> None:
    with pytest.raises(ValueError, match=r"one interval .* \[3, 2\].*p\.icdf\(u\).*SupportRep"):
        biject_to(IntervalUnion(torch.tensor(ENDS)))
    unlike = torch.tensor([[[0.0, 1.0]], [[0.0, INF]]])
    with pytest.raises(ValueError, match="same sides"):
        biject_to(IntervalUnion(unlike))
    for registry in (biject_to, transform_to):
        with pytest.raises(ValueError, match="one piece .* enumerate"):
            registry(AnyOf([constraints.real_vector, constraints.real_vector]))


@every_dtype
def test_the_line_is_mapped_onto_several_intervals(dtype: torch.dtype) -> None:
    ends = torch.tensor(
        [
            [[0.0, 1.0], [2.0, 4.0], [NAN, NAN]],
            [[-INF, -1.0], [0.0, 0.5], [3.0, INF]],
            [[1e4, 1e4 + 1], [1e4 + 2, 1e4 + 3], [NAN, NAN]],
            [[0.0, INF], [NAN, NAN], [NAN, NAN]],
            [[-INF, INF], [NAN, NAN], [NAN, NAN]],
        ],
        dtype=dtype,
    )
    union = IntervalUnion(ends)
    transform = transform_to(union)
    y = torch.linspace(-9, 9, 2001, dtype=dtype)[:, None].expand(-1, 5)
    t = transform(y)
    assert union.check(t).all() and t.isfinite().all()
    assert (t[1:] >= t[:-1]).all()
    # No interval is left out, nor is an end.
    for row, found in zip(ends, t.T, strict=True):
        for low, high in row[~row[:, 0].isnan()].nan_to_num(posinf=1e3, neginf=-1e3):
            inside = found[(found >= low) & (found <= high)]
            assert len(inside) > 20
            gap = (high - low) * 0.3
            assert inside.min() < low + gap and inside.max() > high - gap
    if dtype == DOUBLE:
        torch.testing.assert_close(transform.inv(t), y, rtol=1e-5, atol=1e-5)


def test_any_of_asks_each_member() -> None:
    loc = torch.tensor([[[0.0, 0.0], [5.0, 0.0]], [[0.0, 0.0], [0.0, 7.0]]])
    batched = Ellipsoid(loc, torch.eye(2))
    present = torch.tensor([[True, True], [True, False]])
    value = torch.tensor([[0.5, 0.0], [5.0, 0.9], [0.0, 7.0], [2.0, 2.0]])[:, None]
    expected = [[True, True], [True, False], [False, True], [False, False]]
    union = AnyOf([batched], batched=True)
    assert union.event_dim == 1 and union.check(value).tolist() == expected
    apart = AnyOf([Ellipsoid(loc[:, k], torch.eye(2)) for k in range(2)])
    assert apart.check(value).tolist() == expected
    some = AnyOf([batched], batched=True, present=present)
    expected[2][1] = False
    assert some.check(value).tolist() == expected
    assert repr(some).startswith("AnyOf(Ellipsoid(")
    line = AnyOf([Interval(torch.tensor(0.0), torch.tensor(1.0)), constraints.greater_than(2.0)])
    assert line.check(torch.tensor([0.5, 1.5, 2.5])).tolist() == [True, False, True]
    for supports in ([], [RealLine(torch.tensor(0.0)), constraints.real_vector]):
        with pytest.raises(ValueError, match="supports must be one or more of one event dimension"):
            AnyOf(supports)


test_bad_arguments_are_named = refused(
    [
        (lambda: Interval(1.0, 0.0), "lower must be at most upper"),
        (lambda: Interval(torch.tensor([0.0, math.nan]), 1.0), "lower must be at most upper"),
        (lambda: Interval(0.0, 1.0).check("a"), "value must be a tensor, got str"),
        (lambda: RealLine(torch.tensor(0.0)).check(0.5), "value must be a tensor, got float"),
        (lambda: Region(3, 1), "contains must be a function of locations, got 3"),
        (lambda: Region(torch.isfinite, -1), "event_dim must be at least 0, got -1"),
    ]
)


@pytest.mark.parametrize("ends", [[[0, 0], [1, 2], [3, 3]], [[0, 0], [0, 0], [1, 2]]])
def test_points_of_a_union_are_passed_over(ends: list[list[float]]) -> None:
    """Starts must not fall on a component of a mixture that has no width."""
    line = torch.linspace(-30, 30, 13, dtype=DOUBLE)
    t = OntoIntervals(IntervalUnion(torch.tensor(ends, dtype=DOUBLE)))(line)
    assert ((t >= 1) & (t <= 2)).all() and (t.diff() >= 0).all()
    assert t[0] < 1.001 and t[-1] > 1.999
