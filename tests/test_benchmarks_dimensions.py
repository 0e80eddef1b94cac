"""The benchmarks in many dimensions: references, the polar rule, limits and workloads."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import ncx2
from torch import Tensor

from benchmarks.ball_accuracy import BALL_LIMITS, Shape, broken, rows
from benchmarks.ball_reference import cholesky, integrals
from benchmarks.ball_speed import BallRun, ball_gain
from benchmarks.ball_sweep import cases, truths
from benchmarks.ball_workload import METHODS, REGIMES, in_plane
from benchmarks.families import ANY_ALPHA, CLOSED, Family
from benchmarks.polar import polar_rule, polar_rule_by_hand
from benchmarks.reference import integrals as on_the_line
from benchmarks.steepest import descent
from benchmarks.sweep import norm_error

Array = NDArray[np.longdouble]
BETA_GAUSSIANS = [family for family in (*CLOSED, *ANY_ALPHA) if family.order == 2]
SINGLE, DOUBLE = torch.float32, torch.float64


def extended(*numbers: object) -> list[Array]:
    return [np.asarray(x, dtype=np.longdouble) for x in numbers]


def double(numbers: object) -> Tensor:
    return torch.tensor(numbers, dtype=DOUBLE)


def average(lam: list[float], b: list[float], exponent: float) -> float:
    """E[(1 - |x|^2)_+^m] by the path of steepest descent."""
    return float(descent(*extended([lam], [b]), exponent).value[0])


def nested(lam: list[float], b: list[float], exponent: float) -> float:
    """The same with one axis inside the other, by Gauss-Legendre rules."""
    return float(over_axes(np.sqrt(lam).tolist(), b, exponent, np.ones(())))


def over_axes(
    widths: list[float], b: list[float], exponent: float, square: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Integrals of (square - |x|^2)^m under N(b, widths^2).

    Along an axis x = R sin(angle), which leaves no root at the ends, cut around the Gaussian.
    """
    radius, width, center = np.sqrt(square)[..., None], widths[0], b[0]
    near = (center + width * np.array([-9, -5, -2, 0, 2, 5, 9])) / radius
    fixed = np.broadcast_to([-1, -0.6, -0.2, 0.2, 0.6, 1], (*square.shape, 6))
    cuts = np.arcsin(np.sort(np.concatenate([near.clip(-1, 1), fixed], -1)))
    nodes, weights = np.polynomial.legendre.leggauss(16)
    half = np.diff(cuts)[..., None] / 2
    angles = cuts[..., :-1, None] + half * (1 + nodes)
    cosines, radius = np.cos(angles), radius[..., None]
    distance = (radius * np.sin(angles) - center) / width
    shares = half * weights * radius * cosines * np.exp(-(distance**2) / 2)
    left = (radius * cosines) ** 2
    level = over_axes(widths[1:], b[1:], exponent, left) if b[1:] else left**exponent
    total: NDArray[np.float64] = (shares * level).sum((-1, -2))
    return total / (width * math.sqrt(2 * math.pi))


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 20.0])
@pytest.mark.parametrize(
    ("lam", "b"),
    [
        ([1e-4], [1.01]),
        ([0.01, 4.0], [0.95, 0.3]),
        ([1e-4, 1e-3], [0.6, 0.7]),
        ([1e-6, 0.1], [0.2, -1.1]),
        ([100.0, 0.02], [3.0, 0.0]),
    ],
)
def test_averages_over_the_ball(lam: list[float], b: list[float], exponent: float) -> None:
    assert average(lam, b, exponent) == pytest.approx(nested(lam, b, exponent), rel=1e-11)


def test_averages_over_the_ball_in_space() -> None:
    lam, b = [1e-3, 0.05, 2.0], [0.6, -0.5, 0.4]
    assert average(lam, b, 0.5) == pytest.approx(nested(lam, b, 0.5), rel=1e-11)


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.7])
@pytest.mark.parametrize(("first", "second"), [(0.01, 3.0), (0.3, 0.3)])
def test_averages_in_many_dimensions(first: float, second: float, exponent: float) -> None:
    """Two variances: |x|^2 is the sum of two noncentral chi-square variables."""
    dims, squares = (3, 5), (0.5, 0.2)
    lam = [first] * dims[0] + [second] * dims[1]
    b = [math.sqrt(squares[0] / dims[0])] * dims[0] + [math.sqrt(squares[1] / dims[1])] * dims[1]
    nodes, weights = np.polynomial.legendre.leggauss(150)
    angles, weights = math.pi / 4 * (1 + nodes), math.pi / 4 * weights
    # The first is sin(angle)^2; the second as large a part of what that leaves of 1.
    part, rest = np.sin(angles) ** 2, np.cos(angles) ** 2
    move = 2 * np.sin(angles) * np.cos(angles) * weights
    one = ncx2.pdf(part, dims[0], squares[0] / first, scale=first)
    two = ncx2.pdf(np.outer(rest, part), dims[1], squares[1] / second, scale=second)
    inner = (two * rest**exponent * move).sum(-1) * rest ** (exponent + 1)
    assert average(lam, b, exponent) == pytest.approx((one * inner * move).sum(), rel=1e-9)


@pytest.mark.parametrize("family", BETA_GAUSSIANS, ids=lambda family: family.name)
@pytest.mark.parametrize(("scale", "center"), [(0.125, 0.75), (2.0, 2.25), (16.0, -15.0)])
def test_reference_on_the_line(family: Family, scale: float, center: float) -> None:
    """mpmath's quadrature, which knows nothing of contours."""
    found = integrals(*extended([[0.5]], [[[scale]]], [[[center]]], [[0.5]]), family.exponent)
    value, by_loc, by_scale = on_the_line(family, 0.5, scale, center, 0.5)
    assert float(found.value[0, 0]) == pytest.approx(value, rel=1e-14)
    assert float(found.by_loc[0, 0, 0]) == pytest.approx(by_loc, rel=1e-13)
    assert float(found.by_scale_tril[0, 0, 0, 0]) == pytest.approx(by_scale, rel=1e-13)


def disc_nodes(count: int) -> tuple[Tensor, Tensor]:
    """Nodes (Q, 2) of the unit disc and weights that sum to pi."""
    x, weights = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(count))
    r, turn = (1 + x) / 2, torch.arange(count).double() * (2 * math.pi / count)
    nodes = torch.stack([torch.outer(r, turn.cos()), torch.outer(r, turn.sin())], -1)
    return nodes.flatten(0, 1), (r * weights * math.pi / count).repeat_interleave(count)


def test_reference_in_the_plane() -> None:
    """The frame: a turned ellipse against a full covariance, by a rule over the ellipse itself."""
    loc, tril = [0.3, -0.2], [[0.5, 0.0], [-0.7, 0.2]]
    covariance = [[0.05, 0.03], [0.03, 0.09]]
    center = [0.6, -0.4]
    root = cholesky(*extended([[covariance]]))
    found = integrals(*extended([loc], [tril], [[center]]), root, 1.0).value[0, 0]
    u, weights = disc_nodes(120)
    t = double(loc) + u @ double(tril).mT
    normal = torch.distributions.MultivariateNormal(double(center), double(covariance))
    density = 2 / math.pi * (1 - u.square().sum(-1))
    direct = (weights * density * normal.log_prob(t).exp()).sum().item()
    assert float(found) == pytest.approx(direct, rel=1e-12)


@pytest.mark.parametrize("full", [False, True])
def test_derivatives_of_the_reference(full: bool) -> None:
    draw = np.random.default_rng(0)
    dim, count, exponent, step = 3, 4, 0.7, 1e-6
    loc, tril, centers = extended(
        draw.normal(size=(1, dim)) / 5,
        [np.eye(dim) + np.tril(draw.normal(size=(dim, dim))) / 4],
        draw.normal(size=(1, count, dim)) / 2,
    )
    roots = np.eye(dim) / 2 + draw.normal(size=(1, count, dim, dim)) / 5
    spread = extended(roots @ np.swapaxes(roots, -1, -2))[0]
    if not full:
        spread = extended(draw.uniform(0.2, 1, size=(1, count)))[0]

    def value(loc: Array, tril: Array, spread: Array, exponent: float) -> Array:
        return integrals(loc, tril, centers, cholesky(spread) if full else spread, exponent).value

    def slope(move: Callable[[float], Array]) -> Array:
        return (move(step) - move(-step))[0] / (2 * step)

    found = integrals(loc, tril, centers, cholesky(spread) if full else spread, exponent)
    size = float(np.abs(found.by_scale_tril).max())
    close = {"rtol": 0, "atol": 1e-8 * size}
    unit = np.eye(dim)
    for i in range(dim):
        moved = slope(lambda h, i=i: value(loc + h * unit[i], tril, spread, exponent))
        np.testing.assert_allclose(found.by_loc[0, :, i], moved, **close)
        for j in range(i + 1):
            one = np.outer(unit[i], unit[j])
            moved = slope(lambda h, one=one: value(loc, tril + h * one, spread, exponent))
            np.testing.assert_allclose(found.by_scale_tril[0, :, i, j], moved, **close)
            if full:
                both = (one + one.T) / 2
                moved = slope(lambda h, one=both: value(loc, tril, spread + h * one, exponent))
                np.testing.assert_allclose(found.by_covariance[0, :, i, j], moved, **close)
    if not full:
        moved = slope(lambda h: value(loc, tril, spread + h, exponent))
        traces = np.trace(found.by_covariance[0], axis1=-2, axis2=-1)
        np.testing.assert_allclose(2 * spread[0] * traces, moved, **close)
    moved = slope(lambda h: value(loc, tril, spread, exponent + h))
    np.testing.assert_allclose(found.by_exponent[0], moved, **close)


@pytest.mark.parametrize("dim", [1, 3])
@pytest.mark.parametrize("condition", [1.0, 1e3])
def test_cases_are_what_they_say(dim: int, condition: float) -> None:
    for case in cases(dim, condition, [0.01, 10.0], full=False):
        axes = torch.linalg.svdvals(case.scale_tril.double())
        assert axes[0] / axes[-1] == pytest.approx(condition if dim > 1 else 1, rel=1e-3)
        assert axes.prod() == pytest.approx(1, rel=1e-3)
        assert torch.equal(case.scale_tril, case.scale_tril.tril())


@pytest.mark.parametrize("ratio", [1e-3, 0.3, 100.0])
def test_nudges_tell_how_rounding_moves_a_value(ratio: float) -> None:
    """To first order, of all inputs; a center moves the value as loc does, the other way."""
    (case,) = cases(2, 3.0, [ratio], full=False)
    (truth,) = truths([case], 2.0)
    loc, tril, centers, spread = (
        x.double().numpy() for x in (case.loc, case.scale_tril, case.centers, case.spread)
    )
    _, by_loc, by_tril, by_spread, _ = truth.exact
    parts = [by_loc * loc, by_loc * centers, by_tril * tril, by_spread * spread]
    shares = np.concatenate([np.abs(x).reshape(len(centers), -1) for x in parts], -1)
    moved = np.abs(truth.moved[0])
    assert (moved <= shares.sum(-1) * (1 + 1e-4) + 1e-7 * truth.exact[0]).all()
    assert 0.5 < np.linalg.norm(moved) / np.linalg.norm(shares) < 2


@pytest.fixture(scope="module")
def small() -> list:
    return rows([2], alphas=[2.0], ratios=[0.01, 1.0])


def test_limits_are_kept(small: list) -> None:
    assert {row.dtype for row in small} == {SINGLE, DOUBLE}
    assert [broken(row) for row in small] == [[]] * len(small)


def test_limits_are_noticed(small: list) -> None:
    for row in small:
        value, slope = BALL_LIMITS[row.dtype]
        for i, limit in enumerate([value, slope, slope, slope, slope]):
            judged = [*row.judged]
            judged[i] = (1.01 * limit, 1.0)
            names = ["value", "∂ loc", "∂ scale_tril", "∂ width", "∂ α"]
            assert broken(replace(row, judged=judged)) == [names[i]]


def test_nothing_is_thin_on_a_line() -> None:
    found = rows([1], alphas=[2.0], ratios=[1.0])
    assert {row.shape.name for row in found} == {"round", "covariances"}
    assert all(isinstance(row.shape, Shape) for row in found)


@pytest.mark.parametrize("rule", [polar_rule, polar_rule_by_hand])
@pytest.mark.parametrize("width", [0.05, 0.3])
def test_polar_rule_is_right_with_enough_angles(rule: Callable[..., Tensor], width: float) -> None:
    loc = double([[0.3, -0.2]]).requires_grad_()
    tril = double([[[0.5, 0.0], [-0.7, 0.2]]]).requires_grad_()
    centers = double([[0.3, -0.2], [0.5, -0.4], [-0.1, 0.9]])

    def direct(loc: Tensor, tril: Tensor) -> Tensor:
        u, weights = disc_nodes(160)
        t = loc + u @ tril[0].mT
        square = (t.unsqueeze(1) - centers).square().sum(-1)
        psi = torch.exp(-square / (2 * width**2)) / (2 * math.pi * width**2)
        density = 2 / math.pi * (1 - u.square().sum(-1))
        return ((weights * density) @ psi).unsqueeze(0)

    results = [rule(loc, tril, centers, double(width), 400), direct(loc, tril)]
    weights = double([[1.0, -0.5, 2.0]])
    slopes = [torch.autograd.grad(x, (loc, tril), weights) for x in results]
    torch.testing.assert_close(results[0], results[1], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(slopes[0][0], slopes[1][0], rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(slopes[0][1].tril(), slopes[1][1].tril(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("regime", REGIMES)
def test_methods_in_the_plane_compute_the_same(regime: str) -> None:
    work = in_plane(REGIMES[regime])
    low, high = REGIMES[regime].half_axes
    axes = torch.linalg.svdvals(work.scale_tril)
    assert axes.min() >= 0.999 * low
    assert axes.max() <= 1.001 * high
    ours, *rules = (method(work) for method in METHODS.values())
    # 100 angles are too few for a large support of narrow functions: that is in the table.
    share = 0.2 if regime == "large" else 1e-4
    for rule in rules:
        for x, y in zip((*rule[:2], rule[2].tril()), ours, strict=True):
            assert norm_error(x.flatten(), y.flatten().double()) < share


def test_gain_compares_medians() -> None:
    ours, rule, _ = METHODS
    none = (0.0, 0.0)
    found = [
        BallRun("wide", ours, [0.01, 0.1, 0.5], none, none),
        BallRun("narrow", rule, [1.0], none, none),
        BallRun("wide", rule, [9.0, 3.0, 0.3], none, none),
    ]
    assert ball_gain(found, found[0]) == pytest.approx(30)
