"""Unions of supports: merging, membership, gradients, the bijections there are and are not."""

import math
import pickle
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from pyro.infer import MCMC, NUTS
from torch import Tensor
from torch.distributions import biject_to, constraints, transform_to

from sparsefam import TruncatedParabola
from sparsefam.supports import AnyOf, Ellipsoid, Interval, IntervalUnion, OntoIntervals, RealLine

NAN, INF = math.nan, math.inf
DOUBLE = torch.float64
ENDS = [[[0.0, 1.0], [2.0, 2.5], [4.0, INF]], [[-INF, -1.0], [-0.5, 3.0], [NAN, NAN]]]


def test_members_are_the_intervals_with_their_ends() -> None:
    union = IntervalUnion(torch.tensor(ENDS))
    value = torch.tensor([-2.0, -1.0, -0.5, -0.1, 0.0, 0.5, 1.0, 1.5, 2.5, 3.5, 4.0, 9.0])
    first = [x in (0.0, 0.5, 1.0, 2.5, 4.0, 9.0) for x in value.tolist()]
    second = [x not in (3.5, 4.0, 9.0) for x in value.tolist()]
    assert union.check(value[:, None]).tolist() == [
        list(x) for x in zip(first, second, strict=True)
    ]
    assert not union.check(torch.tensor(NAN)).any()
    assert union.check(torch.zeros(5, 1, 2)).shape == (5, 1, 2)
    assert union.count.tolist() == [3, 2]
    assert union.lower_bound.tolist() == [0.0, -INF] and union.upper_bound.tolist() == [INF, 3.0]
    assert union.event_dim == 0 and not union.is_discrete
    assert torch.equal(pickle.loads(pickle.dumps(union)).count, union.count)
    assert repr(union).startswith("IntervalUnion(intervals=tensor(")


def test_check_compiles_and_maps() -> None:
    ends, value = torch.tensor(ENDS), torch.linspace(-3, 5, 9)

    def check(ends: Tensor) -> tuple[Tensor, Tensor]:
        union = IntervalUnion(ends)
        return union.check(value[:, None] if ends.dim() == 3 else value), union.upper_bound

    expected = check(ends)
    mapped = torch.func.vmap(check, out_dims=(1, 0))(ends)
    compiled = torch.compile(check, fullgraph=True, backend="aot_eager")(ends)
    for found in (mapped, compiled):
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("ends", "rule"),
    [
        ([0.0, 1.0], "shape"),
        ([[0.0], [1.0]], "shape"),
        ([[1.0, 0.0]], "ascending"),
        ([[0.0, 2.0], [1.0, 3.0]], "ascending, disjoint"),
        ([[2.0, 3.0], [0.0, 1.0]], "ascending"),
        ([[NAN, NAN], [0.0, 1.0]], "padded with NaN"),
        ([[0.0, NAN]], "neither or both NaN"),
        ([[NAN, NAN]], "one or more"),
    ],
)
def test_bad_intervals_are_refused(ends: list, rule: str) -> None:
    with pytest.raises(ValueError, match=f"intervals must .*{rule}"):
        IntervalUnion(torch.tensor(ends))


def _union_by_hand(ends: np.ndarray) -> list[tuple[float, float]]:
    pieces: list[tuple[float, float]] = []
    for low, high in sorted(tuple(row) for row in ends if not np.isnan(row).any()):
        if pieces and low <= pieces[-1][1]:
            pieces[-1] = (pieces[-1][0], max(pieces[-1][1], high))
        else:
            pieces.append((low, high))
    return pieces


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
        expected = _union_by_hand(row)
        assert [tuple(x) for x in found[: len(expected)]] == expected
        assert np.isnan(found[len(expected) :]).all()


def test_merged_ends_carry_gradients_of_their_own() -> None:
    ends = torch.tensor([[5.0, 6.0], [NAN, NAN], [0.0, 2.0], [1.0, 3.0]], requires_grad=True)
    intervals = IntervalUnion.merged(ends).intervals
    weights = torch.tensor([[1.0, 10.0], [100.0, 1000.0]])
    (slope,) = torch.autograd.grad((weights * intervals[:2]).sum(), ends)
    assert slope.tolist() == [[100.0, 1000.0], [0.0, 0.0], [1.0, 0.0], [0.0, 10.0]]
    mapped = torch.func.vmap(lambda x: IntervalUnion.merged(x).intervals)(ends.expand(2, 4, 2))
    torch.testing.assert_close(mapped, intervals.expand(2, 4, 2), equal_nan=True)


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


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
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
    wrong: Any
    for wrong in ([None], None, constraints.real):
        with pytest.raises(ValueError, match="supports must be a sequence of constraints, got"):
            AnyOf(wrong)
    wrong = [[0.0, 1.0]]
    with pytest.raises(ValueError, match=r"intervals must be a tensor .* got \[\[0.0, 1.0\]\]"):
        IntervalUnion(wrong)


class _Shown(TruncatedParabola):
    """A density that states its support as a union of one."""

    @property
    def support(self) -> IntervalUnion:
        return IntervalUnion(torch.stack([self.loc - self.scale, self.loc + self.scale], -1)[None])


def test_hamiltonian_monte_carlo_walks_in_a_union_of_one() -> None:
    loc, scale = torch.tensor(3.0, dtype=DOUBLE), torch.tensor(0.5, dtype=DOUBLE)
    chain = MCMC(
        NUTS(lambda: pyro.sample("t", _Shown(loc, scale))),
        num_samples=300,
        warmup_steps=100,
        disable_progbar=True,
    )
    chain.run()
    t = chain.get_samples()["t"]
    assert ((t - loc).abs() <= scale).all()
    # The standard deviation is scale / sqrt(5); some 150 independent draws.
    assert abs(t.mean() - loc) < 0.07 and abs(t.std() - scale / math.sqrt(5)) < 0.06


@pytest.mark.parametrize("ends", [[[0, 0], [1, 2], [3, 3]], [[0, 0], [0, 0], [1, 2]], [[1, 2]]])
def test_points_of_a_union_are_passed_over(ends: list[list[float]]) -> None:
    """A mixture with a component of no width, say; starts must not fall on it."""
    line = torch.linspace(-30, 30, 13, dtype=DOUBLE)
    found = OntoIntervals(IntervalUnion(torch.tensor(ends, dtype=DOUBLE)))(line)
    expected = OntoIntervals(IntervalUnion(torch.tensor([[1.0, 2.0]], dtype=DOUBLE)))(line)
    assert ((found >= 1) & (found <= 2)).all() and (found.diff() >= 0).all()
    assert found[0] < 1.001 and found[-1] > 1.999 and (found - expected).abs().max() < 0.3
