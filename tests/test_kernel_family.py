"""Kernel families in 1-D: arguments, accuracy, kernels, batches and transforms."""

import math
from collections.abc import Callable
from typing import Any, cast

import mpmath
import numpy as np
import pyro.contrib.gp.kernels as gp
import pytest
import torch
from battery import DOUBLE, SINGLE, apart, one_graph
from cases import every_dtype
from cases_kernel import bell, density, frozen, jacobian, kernel_density, reference
from references import Kernel, KernelFunction, gaussian, gaussians
from refusals import refused
from torch import Tensor
from torch import distributions as td

from sparsefam import KernelDeformedExp, KernelExp, Mixture, Truncated, scores
from sparsefam.bases import BSpline, Fourier, GaussianRBF, Indicator
from sparsefam.supports import IntervalUnion, Region

TOLERANCE = {SINGLE: 2e-6, DOUBLE: 1e-10}
CENTERS = np.linspace(0, 1, 9)
BUMPS = gaussians(CENTERS, 0.125)


def basis(dtype: torch.dtype, width: float = 0.125) -> GaussianRBF:
    return GaussianRBF(torch.tensor(CENTERS), width).to(dtype)


# Arguments
POINTS, WEIGHTS = torch.tensor([0.25, 0.5, 0.75]), torch.tensor([4.0, -4.0, 3.0])
near = bell(0.1)


def make(family: Any = KernelExp, **changes: Any) -> Any:
    parts = {"weights": WEIGHTS, "inducing_points": POINTS, "kernel": near} | changes
    return family(**parts)


def other(**changes: Any) -> Any:
    """A density that is given the mesh of another one."""
    return make(mesh=make().mesh, **changes)


NAN = WEIGHTS * math.nan
EMPTY = {
    "weights": torch.tensor([[4.0], [-9.0]]),
    "inducing_points": torch.tensor([0.5]),
    "kernel": lambda x, z: x.new_ones(len(x), len(z)),
    "normalization": "outside",
}


def narrow(x: Tensor, z: Tensor) -> Tensor:
    return torch.exp(-0.5 * torch.cdist(x, z).square() / 1e-12)


FORTY = torch.tensor([40.0], dtype=DOUBLE), torch.tensor([[0.5, 0.5]], dtype=DOUBLE)
LARGE = {"weights": 100 * torch.ones(3), "alpha": 1.0001, "normalization": "outside"}
test_bad_arguments_are_named = refused(
    [
        (lambda: make(weights=WEIGHTS.int()), r"weights must be .*\(3,\), torch.int32"),
        (lambda: make(weights=NAN), "weights must be finite"),
        (lambda: make(weights=NAN, validate_args=False), "weights must be finite"),
        (lambda: make(inducing_points=POINTS + 1), "inducing_points must be inside the sup"),
        (lambda: make(inducing_points=torch.ones(0, 3, 1)), "points must not be empty"),
        (lambda: make(kernel=3), "kernel must be a callable"),
        (lambda: make(kernel=lambda x, z: near(x, z)[:1]), r"kernel must map .*\(1, 8\)"),
        (lambda: make(kernel=lambda x, z: near(x, z).float()), "kernel .*torch.float32"),
        (lambda: make(tolerance=0.0), "tolerance must be a positive, finite number"),
        (lambda: make(tolerance=10**400), "tolerance must be a positive, finite"),
        (lambda: make().quadrature(10**400), "order must be from 1 to 262144"),
        (lambda: make().escort(10**400), "beta must be a finite number"),
        (lambda: make(KernelDeformedExp).escort(10**400), "beta must be a finite number"),
        (lambda: scores.KernelExpansion(WEIGHTS, POINTS, None), "kernel must be"),  # type: ignore[arg-type]
        (lambda: make(mesh="found"), "mesh must be that of another density, got 'found'"),
        (lambda: other(weights=WEIGHTS.double()), "mesh must be .* in torch.float64"),
        (lambda: other(inducing_points=POINTS.repeat(2, 1).T), "mesh must have dimension 2"),
        (lambda: other(base=td.Normal(0.0, 1.0)), "mesh must be .*same base, got Normal"),
        (lambda: other(base=td.Uniform(0.0, 1.25)), "mesh .*same base, got Uniform"),
        (lambda: other(inducing_points=POINTS + 0.01), "mesh .*kernel and inducing po"),
        (lambda: other(kernel=lambda x, z: x @ z.mT), "mesh .*kernel and inducing po"),
        (lambda: other(weights=WEIGHTS[:2], inducing_points=POINTS[:2]), "mesh .*same kernel"),
        (lambda: make(KernelDeformedExp, **EMPTY), r"weights must be such.*indices \[\[1\]\]"),
        (lambda: KernelExp(*FORTY, narrow), "kernel must be smooth between its poi"),
        (lambda: make(KernelDeformedExp, **LARGE), "weights must be so small that pow"),
        *[
            (lambda x=alpha: make(KernelDeformedExp, alpha=x), r"^alpha must be in ")
            # In float32 there is no number between 1 and 1 + 1e-7.
            for alpha in (1.0, 1 + 1e-9, 2.5, math.nan, -1, torch.tensor([1.5, 1.0]))
        ],
    ]
)


# Accuracy
# Bandwidth, alpha, whether it is normalized inside, standard deviation of the score.
HARD = [
    (0.01, 1.0, True, 2.0),
    (0.05, 1 + 1e-6, True, 2.0),
    (0.05, 1.001, False, 2.0),
    (0.05, 1.001, True, 1e3),
    (0.01, 1.5, False, 2.0),
    (0.05, 1.5, True, 1e3),
    (0.2, 1.8, True, 2.0),
    (0.01, 2.0, True, 2.0),
    (0.05, 2.0, True, 1e-3),
    (0.05, 2.0, True, 1e3),
]


@every_dtype
@pytest.mark.parametrize(("width", "alpha", "inside", "size"), HARD)
def test_expectations_gradients_edges_and_densities(
    width: float, alpha: float, inside: bool, size: float, dtype: torch.dtype
) -> None:
    r = reference(width, alpha, inside, size)
    p = density(width, alpha, inside, dtype, size)
    eps = torch.finfo(dtype).eps
    # Weights of cut subintervals are exact only for integer exponents.
    tolerance = TOLERANCE[dtype] * (10 if alpha == 1.8 and dtype == DOUBLE else 1)
    assert len(p.mesh.nodes) <= 512 or dtype == DOUBLE
    assert abs(p.quadrature()[1].sum().item() - 1) < 10 * eps
    # The normalizer is as large as the score.
    rounding = eps * np.abs(r.weights).sum() if size > 2 else tolerance * abs(r.log_normalizer)
    assert abs(p.log_normalizer.item() - r.log_normalizer) < tolerance + rounding
    means = p.expect(basis(dtype))
    assert means.dtype == dtype
    assert apart(means, r.expect(BUMPS)) < tolerance
    slopes = jacobian(means, p.weights)
    assert slopes.isfinite().all()
    if size > 2:
        return
    assert apart(slopes, r.jacobian(BUMPS)) < tolerance
    edges = p.support.intervals.flatten().tolist()
    assert edges == pytest.approx(r.edges.tolist(), abs=1e-6 if dtype == SINGLE else 1e-9)
    t = torch.linspace(-0.25, 1.25, 151, dtype=dtype)
    t = t[(t[:, None] - torch.tensor([0.0, 1.0, *r.edges])).abs().amin(-1) > 1e-3]
    due = torch.as_tensor(r.density(t.double().numpy()))
    assert torch.equal(p.prob(t) > 0, due > 0)
    close = 1e-4 if dtype == SINGLE else 1e-9
    torch.testing.assert_close(p.prob(t).double(), due, rtol=close, atol=close)
    torch.testing.assert_close(p.log_prob(t).double(), due.log(), rtol=close, atol=close)


@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_bases_that_the_mesh_of_the_kernel_does_not_resolve(alpha: float) -> None:
    r, p = reference(0.2, alpha), density(0.2, alpha)
    marks = np.linspace(0, 1, 26)
    due = r.expect(gaussians(CENTERS, 0.02), marks)
    assert apart(p.expect(basis(DOUBLE, 0.02)), due) < 1e-10
    edges = [0.0, 0.3125, 0.34375, 0.8125]
    levels = np.diff(r.cdf(np.array(edges)))
    assert apart(p.expect(Indicator(edges).to(DOUBLE)), levels) < 1e-10
    psi = BSpline([0.125, 0.25, 0.5625, 0.6875, 1.0], 2).to(DOUBLE)
    due = r.expect(lambda t: psi(torch.as_tensor(t)).numpy(), psi.breaks.numpy())
    assert apart(p.expect(psi), due) < 1e-10


# Kernels
LINE = np.linspace(0.0625, 0.9375, 8)
HEIGHTS = np.array([1.5, -2.25, 3.0, 0.5, -3.5, 2.0, 1.25, -1.75])
WIDTH = 0.125
KERNELS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], KernelFunction, bool]] = {
    "RBF": (frozen(gp.RBF, WIDTH), gaussian(WIDTH), False),
    # Pyro's modules look parameters up by name, in a store that all of a process share.
    "another RBF": (frozen(gp.RBF, 2 * WIDTH), gaussian(2 * WIDTH), False),
    "Exponential": (
        frozen(gp.Exponential, WIDTH),
        lambda t, c: np.exp(-np.abs(np.subtract.outer(t, c)) / WIDTH),
        True,
    ),
    "quadratic": (
        lambda x, z: (1 + x @ z.mT).square(),
        lambda t, c: (1 + np.multiply.outer(t, c)) ** 2,
        False,
    ),
}


@pytest.mark.parametrize(
    ("alpha", "inside", "dtype"), [(1.0, True, SINGLE), (1.5, False, DOUBLE), (2.0, True, SINGLE)]
)
@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name: str, alpha: float, inside: bool, dtype: torch.dtype) -> None:
    kernel, exact, kinked = KERNELS[name]
    kinks = LINE if kinked else ()
    r = Kernel(HEIGHTS, LINE, exact, WIDTH, kinks=kinks, alpha=alpha, inside=inside)
    weights, points = torch.tensor(HEIGHTS, dtype=dtype), torch.tensor(LINE, dtype=dtype)
    p = kernel_density(weights.requires_grad_(), points, kernel, None, alpha, inside)
    means = p.expect(basis(dtype))
    assert apart(means, r.expect(BUMPS)) < TOLERANCE[dtype]
    close = 2e-5 if dtype == SINGLE else 1e-10
    assert apart(jacobian(means, weights), r.jacobian(BUMPS)) < close


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_kernels_may_be_learned(alpha: float) -> None:
    log = torch.tensor(math.log(WIDTH), dtype=DOUBLE, requires_grad=True)
    kernel = bell(log.exp())
    p = kernel_density(torch.tensor(HEIGHTS), torch.tensor(LINE), kernel, None, alpha)
    (slope,) = torch.autograd.grad(p.expect(basis(DOUBLE)).sum(), log)

    def exact(log: float) -> float:
        r = Kernel(HEIGHTS, LINE, gaussian(math.exp(log)), WIDTH, alpha=alpha)
        return float(r.expect(BUMPS).sum())

    below, above = (exact(math.log(WIDTH) + h) for h in (-1e-4, 1e-4))
    assert abs(slope.item() - (above - below) / 2e-4) < 1e-6


# Scores so large that their last digits matter
def peak(x: Tensor, z: Tensor) -> Tensor:
    return torch.exp(-20 * torch.cdist(x, z).square())


@every_dtype
@pytest.mark.parametrize("weight", [1e5, 1e10])
def test_log_densities_of_large_weights(weight: float, dtype: torch.dtype) -> None:
    w, points = torch.tensor([weight], dtype=dtype), torch.tensor([0.5], dtype=dtype)
    p = KernelExp(w, points, peak)
    at = torch.tensor(0.5 + weight**-0.5 / 8, dtype=dtype)
    with mpmath.workdps(40):
        w, t, half = mpmath.mpf(w.item()), mpmath.mpf(at.item()), mpmath.mpf(0.5)

        def score(t: Any) -> Any:
            return w * mpmath.expm1(-20 * (t - half) ** 2)

        cuts = [half + k / mpmath.sqrt(w) for k in (-3, -1, 1, 3)]
        mass = mpmath.quad(lambda t: mpmath.exp(score(t)), [0, *cuts, 1])
        log_prob = float(score(t) - mpmath.log(mass))
    # The last digit of 1e10 in float64 is 2e-6.
    close = (1e-12 if dtype == DOUBLE else 1e-6) + 2e-15 * weight
    assert p.log_prob(at).item() == pytest.approx(log_prob, rel=close)
    assert p.tsallis_entropy().item() == pytest.approx(p.entropy().item(), rel=close)


def test_scores_without_digits_after_the_point() -> None:
    rule = "weights must be so small that scores have digits after the point"
    for weight, dtype in ((1e12, DOUBLE), (1e38, SINGLE)):
        for alpha in (1.0, 1.5):
            with pytest.raises(ValueError, match=rule):
                w, point = torch.tensor([weight], dtype=dtype), torch.tensor([0.5], dtype=dtype)
                kernel_density(w, point, peak, None, alpha)
    # Where values are not read, sums are in float32.
    point = torch.tensor([0.5])
    mesh = KernelExp(torch.ones(1), point, peak).mesh
    with pytest.raises(ValueError, match=rule):
        torch.func.vmap(lambda w: KernelExp(w, point, peak, mesh=mesh).mean)(
            torch.tensor([[1e6], [1.0]])
        )


# Batches, transforms and compiled graphs of wide kernels, whose large weights cancel
MANY = torch.linspace(0, 1, 200)
# alpha, inside, bandwidth, standard deviation of the scores, number of densities.
SCENES = [(1.0, True, 0.25, 3.0, 6), (1.25, False, 0.25, 3.0, 300), (2.0, False, 0.03, 12.0, 6)]


def wide_weights(bandwidth: float, deviation: float, rows: int) -> Tensor:
    draw = torch.randn(rows, len(MANY), generator=torch.Generator().manual_seed(4))
    f = draw @ bell(bandwidth)(MANY.unsqueeze(-1), MANY.unsqueeze(-1))
    # Positive somewhere, as supports outside must not be empty.
    sign = torch.where(f.amax(-1, keepdim=True) > 0, 1.0, -1.0)
    return sign * draw * deviation / f.std(-1, keepdim=True)


@pytest.mark.parametrize(("alpha", "inside", "bandwidth", "deviation", "rows"), SCENES)
def test_float32_where_large_weights_cancel(
    alpha: float, inside: bool, bandwidth: float, deviation: float, rows: int
) -> None:
    psi = GaussianRBF(torch.linspace(0, 1, 30), torch.tensor(0.05)) + Fourier([3.0, 20.0])
    psi = psi + BSpline(torch.linspace(0, 1, 9), 3)
    upstream = torch.randn(rows, len(psi), generator=torch.Generator().manual_seed(5))
    results = []
    for dtype in (SINGLE, DOUBLE):
        w = wide_weights(bandwidth, deviation, rows).to(dtype).requires_grad_()
        p = kernel_density(w, MANY.to(dtype), bell(bandwidth), None, alpha, inside)
        value = p.expect(psi.to(dtype))
        results.append((value.detach(), torch.autograd.grad(value, w, upstream.to(dtype))[0]))
    for one, other in zip(*results, strict=True):
        assert one.dtype == SINGLE
        assert ((one.double() - other).norm(dim=-1) / other.norm(dim=-1)).max() < 2e-6


def test_compiled_graphs_and_vmap_in_float32() -> None:
    """Neither reads scores, but the mesh knows how wide a kernel is."""
    w, psi = wide_weights(0.25, 3.0, 6), GaussianRBF(torch.linspace(0, 1, 5), torch.tensor(0.2))
    p, t = kernel_density(w, MANY, bell(0.25), None, 1.5), torch.tensor(0.3)

    def function(w: Tensor) -> tuple[Tensor, Tensor]:
        options = {"mesh": p.mesh, "validate_args": False}
        q = kernel_density(w, MANY, p.kernel, None, 1.5, **options)
        return q.expect(psi), q.cdf(t)

    for means, levels in (one_graph(function)(w), torch.func.vmap(function)(w)):
        torch.testing.assert_close(means, p.expect(psi), rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(levels, p.cdf(t), rtol=1e-5, atol=1e-6)


def test_parts_of_a_batch_with_points_of_their_own() -> None:
    points = torch.linspace(0.1, 0.9, 5)[:, None] + 0.02 * torch.rand(2, 1, 5, 1)
    weights, psi = 3 * torch.randn(2, 3, 5), basis(SINGLE, 0.02)
    p = KernelDeformedExp(weights, points, frozen(gp.RBF, 0.1), alpha=1.5)
    q = p[1, :2]
    torch.testing.assert_close(q.inducing_points, points.expand(2, 3, 5, 1)[1, :2])
    t = torch.rand(7, 1)
    torch.testing.assert_close(q.log_prob(t), p.log_prob(t.unsqueeze(-1))[:, 1, :2])
    torch.testing.assert_close(q.expect(psi), p.expect(psi)[1, :2])
    other = KernelDeformedExp(q.weights, q.inducing_points, p.kernel, alpha=1.5, mesh=q.mesh)
    torch.testing.assert_close(other.mean, q.mean)


def test_detach_reaches_the_kernel_and_escorts_keep_their_parent() -> None:
    kernel, weights = gp.RBF(1, lengthscale=torch.tensor(0.1)), torch.randn(2, 5).requires_grad_()
    alpha = torch.tensor([1.3, 1.6], requires_grad=True)
    p = KernelDeformedExp(weights, torch.linspace(0.1, 0.9, 5), kernel, alpha=alpha)
    q, t = p.detach(), torch.tensor([0.3, 0.6])
    assert next(kernel.parameters()).requires_grad
    for found in (q.log_prob(t), q.cdf(t), q.escort().variance, q.entropy(), q.log_normalizer):
        assert not found.requires_grad
    for holder in (Mixture(torch.zeros(2), p), Truncated(p, 0.25, 0.75)):
        assert not holder.detach().log_prob(t).requires_grad
    escort = p.escort()
    torch.testing.assert_close(escort[1].to_float64().mean.float(), escort.mean[1])
    torch.testing.assert_close(escort.expand([3, 2]).mean, escort.mean.expand(3, 2))


@pytest.mark.parametrize(
    ("alpha", "beta", "order"),
    [
        (1.5, 1.0, 3),
        (1.5, 0.5, 2),
        (4 / 3, 1 / 3, 2),
        (4 / 3, 2 / 3, 3),
        (1.9, 1.0, 2),
        (1.9, 0.1, 1),
        (torch.tensor(1.9, dtype=DOUBLE), None, 1),
        (2.0, 1.0, 2),
    ],
)
def test_derivatives_of_every_order_that_exists(
    alpha: Tensor | float, beta: float | None, order: int
) -> None:
    """Up to 1 more than the exponent of the escort, as the power may have poles, or jumps."""

    def derivatives(shift: float, count: int) -> list[Tensor]:
        s = torch.tensor(shift, dtype=DOUBLE, requires_grad=True)
        p = make(
            KernelDeformedExp,
            weights=WEIGHTS.double() * (1 + s),
            inducing_points=POINTS.double(),
            alpha=alpha,
        )
        results = [p.escort(beta).expect(basis(DOUBLE))[2]]
        for _ in range(count):
            results += torch.autograd.grad(results[-1], s, create_graph=True)
        return results

    step = 1e-4
    above, below = (derivatives(x, order - 1) for x in (step, -step))
    for high, low, due in zip(above, below, derivatives(0.0, order)[1:], strict=True):
        torch.testing.assert_close((high - low) / (2 * step), due, rtol=1e-5, atol=1e-7)
    with pytest.raises(RuntimeError, match="up to the order|to be a number"):
        derivatives(0.0, order + 1)


@pytest.mark.parametrize("beta", [0.05, 0.3])
def test_derivatives_in_alpha_of_escorts_with_poles(beta: float) -> None:
    options = {"weights": WEIGHTS.double(), "inducing_points": POINTS.double()}

    def mean(alpha: Tensor) -> Tensor:
        return cast(Tensor, make(KernelDeformedExp, alpha=alpha, **options).escort(beta).mean)

    alpha = torch.tensor(1.8, dtype=DOUBLE, requires_grad=True)
    (due,) = torch.autograd.grad(mean(alpha), alpha)
    # Of the fourth order in the step.
    near, far = ((mean(alpha + h) - mean(alpha - h)).detach() / (2 * h) for h in (5e-4, 1e-3))
    torch.testing.assert_close((4 * near - far) / 3, due, rtol=3e-8, atol=0)


def test_a_basis_whose_centers_are_replaced() -> None:
    p, psi = make(), GaussianRBF(torch.tensor([0.0, 0.5]), 0.01)
    exact = make(weights=WEIGHTS.double())
    for center in (0.2, 0.3, 0.8):
        psi.centers = torch.full((1,), center)
        psi.widths = torch.full((1,), 0.01)
        due = exact.expect(GaussianRBF(torch.tensor([center]).double(), 0.01))
        torch.testing.assert_close(p.expect(psi).double(), due, rtol=1e-5, atol=1e-6)


# Restriction
@pytest.mark.parametrize("alpha", [1.5, torch.tensor([1.5, 2.0])], ids=["number", "tensor"])
@pytest.mark.parametrize("inside", [True, False])
def test_restricted_densities_are_conditional(alpha: Any, inside: bool) -> None:
    """On both intervals of a density, one of them cut; with its derivatives in the weights."""
    weights = torch.stack([WEIGHTS, WEIGHTS.flip(0)]).double().requires_grad_()
    p = kernel_density(weights, POINTS.double(), near, None, alpha, inside)
    ends = torch.tensor([[0.1, 0.3], [0.6, 1.0]], dtype=DOUBLE)
    q = cast(KernelDeformedExp, p).restrict(IntervalUnion(ends))
    mass = p.cdf(ends.reshape(-1, 1)).reshape(2, 2, -1).diff(dim=1).sum((0, 1))
    t = torch.linspace(0.01, 0.99, 50, dtype=DOUBLE).unsqueeze(-1)
    due = torch.where(q.support.check(t), p.prob(t) / mass, 0.0)
    assert (due > 0).any(0).all() and (p.prob(t)[due == 0] > 0).any()
    torch.testing.assert_close(q.prob(t), due, rtol=1e-9, atol=1e-9)
    slopes = (torch.autograd.grad(x.sum(), weights, retain_graph=True)[0] for x in (q.prob(t), due))
    torch.testing.assert_close(*slopes, rtol=1e-7, atol=1e-7)
    again = KernelDeformedExp.from_score(q.score, q.base, alpha)
    torch.testing.assert_close(again.prob(t), q.prob(t))


test_what_is_no_region = refused(
    [
        (Region(lambda t: t > 0, 0), "^region must be of class IntervalUnion, got Region"),
        (IntervalUnion(torch.tensor([[2.0, 3.0]])), "^region must be where each density has mass"),
    ],
    of=lambda region: make(KernelDeformedExp).restrict(region),
)
