"""Scores of attention layers: their densities by hand, where they start, learned alphas."""

import copy
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import entmax
import numpy as np
import pytest
import torch
from layers import SCORES, data, make_layer
from pyro.contrib.gp.kernels import RBF, Matern52
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.nn import functional

from sparsefam import KernelDeformedExp, KernelExp, Mixture
from sparsefam.attention import ContinuousAttention, LearnedAlpha
from sparsefam.attention.masks import AttentionMask
from sparsefam.attention.scores import KernelScore
from sparsefam.bases import GaussianRBF
from sparsefam.numerics.deformed import log_beta

DOUBLE = torch.float64
ALPHAS = [1.0, 1.5, 2.0]
BOX = ((-1.0, 3.0), (0.0, 0.5))

every_score = pytest.mark.parametrize("score", SCORES)
every_alpha = pytest.mark.parametrize("alpha", ALPHAS)
plane_layer = partial(make_layer, ndim=2)


def close(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    return bool((found - expected).norm() < tolerance * expected.norm())


# Moments of discrete weights


def discrete(layer: ContinuousAttention, query: Tensor, key: Tensor, alpha: float) -> Tensor:
    """Weights of each head by hand, (B, heads, Lq, L)."""
    source = layer.score_proj if layer.score == "moments" else layer.discrete_proj
    queries, keys = source.q_proj(query), source.k_proj(key)
    scores = [queries[..., c] @ keys[..., c].mT / math.sqrt(2) for c in (slice(2), slice(2, 4))]
    maps = {1.0: torch.softmax, 1.5: entmax.entmax15, 2.0: entmax.sparsemax}
    return torch.stack([maps[alpha](s, -1) for s in scores], 1)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_moments_are_those_of_the_weights(alpha: float) -> None:
    layer, (query, key, value, t) = make_layer("moments", alpha=alpha), data()
    _, density = layer(query, key, value, t)
    weights = discrete(layer, query, key, alpha)
    mean = torch.einsum("bhql,bl->bhq", weights, t)
    second = torch.einsum("bhql,bl->bhq", weights, t.square())
    assert torch.allclose(density.mean, mean, rtol=1e-12)
    variance = (second - mean.square()).clamp_min(1e-6)
    assert torch.allclose(density.variance, variance, rtol=1e-9)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("domain", [(0.0, 1.0), (-3.0, 7.0)])
def test_one_observation_has_a_valid_density(alpha: float, domain: tuple[float, float]) -> None:
    layer, (query, key, value, t) = make_layer("moments", alpha=alpha, domain=domain), data(1)
    context, density = layer(query, key, value, t)
    assert torch.allclose(density.mean, t[:, None].expand(2, 2, 3), rtol=1e-12)
    floor = 1e-3 * (domain[1] - domain[0])
    assert torch.allclose(density.stddev, torch.full((2, 2, 3), floor, dtype=DOUBLE), rtol=1e-9)
    assert context.isfinite().all()


def floor(domain: Any) -> Tensor:
    sides = torch.tensor(domain, dtype=DOUBLE).expand(2, 2).diff().squeeze(-1)
    return (1e-3 * sides).square()


@pytest.mark.parametrize("domain", [(0.0, 1.0), BOX])
@every_alpha
def test_covariances_are_those_of_the_weights(alpha: float, domain: Any) -> None:
    layer, (query, key, value, t) = plane_layer("moments", alpha=alpha, domain=domain), data(ndim=2)
    _, density = layer(query, key, value, t)
    weights = discrete(layer, query, key, alpha)
    assert torch.allclose(density.mean, torch.einsum("bhql,bld->bhqd", weights, t), rtol=1e-12)
    offset = t[:, None, None] - density.mean.unsqueeze(-2)
    expected = torch.einsum("bhql,bhqld,bhqle->bhqde", weights, offset, offset)
    expected = expected + torch.diag(floor(domain))
    assert torch.allclose(density.covariance_matrix, expected, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("domain", [(0.0, 1.0), BOX])
@every_alpha
def test_one_observation_in_the_plane_has_a_valid_density(alpha: float, domain: Any) -> None:
    layer, (query, key, value, t) = (
        plane_layer("moments", alpha=alpha, domain=domain),
        data(1, ndim=2),
    )
    context, density = layer(query, key, value, t)
    assert torch.allclose(density.mean, t[:, None].expand(2, 2, 3, 2), rtol=1e-12)
    covariance = torch.diag(floor(domain)).expand(2, 2, 3, 2, 2)
    assert torch.allclose(density.covariance_matrix, covariance, rtol=1e-9, atol=1e-20)
    assert context.isfinite().all()


@pytest.mark.filterwarnings("ignore:.*all functions of the basis are zero")
@pytest.mark.parametrize("stretch", [1.0, 1e4])
def test_positions_on_a_line_have_a_valid_density(stretch: float) -> None:
    """Their covariance is singular, and rounding may make it worse than that."""
    layer = plane_layer("moments", dtype=torch.float32)
    query, key, value, _ = (x.float() for x in data(500, ndim=2))
    along = torch.rand(2, 500, 1)
    t = (stretch * (0.3 + along * torch.tensor([0.7, -0.2]))).requires_grad_()
    context, density = layer(query, key, value, t)
    (slope,) = torch.autograd.grad(density.covariance_matrix.sum() + context.sum(), t)
    assert context.isfinite().all() and slope.isfinite().all()
    across = torch.tensor([0.2, 0.7]) / math.hypot(0.2, 0.7)
    thickness = torch.einsum("i,bhqij,j->bhq", across, density.covariance_matrix, across)
    assert (thickness > 0).all() and (thickness < 1e-6 * max(1.0, 10 * stretch**2)).all()


@pytest.mark.parametrize("alpha", [*ALPHAS, torch.tensor(1.3, dtype=DOUBLE)], ids=str)
def test_weights_of_padding_are_exactly_zero(alpha: Tensor | float) -> None:
    layer, (query, key, _, _) = make_layer("moments", alpha=alpha), data()
    mask = torch.rand(2, 9) < 0.5
    mask[:, 0] = True
    scores = layer.score_proj(query, key)
    weights = layer.score_proj.weights(scores, layer.alpha, 1.0, AttentionMask(mask))
    assert not weights[(~mask)[:, None, None].expand_as(weights)].any()
    assert torch.allclose(weights.sum(-1), torch.ones(2, 2, 3, dtype=DOUBLE))


def test_temperature_divides_discrete_scores() -> None:
    layer, (query, key, value, t) = make_layer("moments", alpha=1.0, temperature=0.2), data()
    weights = torch.softmax(layer.score_proj(query, key) / 0.2, -1)
    _, density = layer(query, key, value, t)
    assert torch.allclose(density.mean, torch.einsum("bhql,bl->bhq", weights, t), rtol=1e-12)


# Quadratic scores, and where heads start


@pytest.mark.parametrize("score", ["quadratic", "kernel", "mixture"])
@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_temperature_divides_scores(score: str, alpha: float) -> None:
    """Up to a constant, the deformed logarithm of a density is its score."""
    layer, inputs = make_layer(score, alpha=alpha), data()
    t = torch.linspace(0.05, 0.95, 40, dtype=DOUBLE)
    found: list[list[Tensor]] = []
    for layer.temperature in (1.0, 2.5):
        density, parts = layer(*inputs)[1], []
        if isinstance(density, Mixture):
            parts.append((density.logits - density.logits[..., :1]).movedim(-1, 0))
            density = density.components
        p = density.prob(t.reshape(-1, *(1,) * len(density.batch_shape)))
        found.append([*parts, torch.where(p > 0, log_beta(p, 2 - alpha), math.nan)])
    for cold, hot in zip(*found, strict=True):
        both = cold.isfinite() & hot.isfinite()
        shift = torch.where(both, cold - 2.5 * hot, math.nan)
        assert both.float().mean() > 0.3
        assert (shift - shift.nanmean(0)).nan_to_num().abs().max() < 1e-6


@pytest.mark.parametrize("domain", [(0.0, 1.0), (-2.0, 6.0)])
@pytest.mark.parametrize("bias", [True, False])
def test_heads_start_spread_over_the_domain(domain: tuple[float, float], bias: bool) -> None:
    heads, span = 8, domain[1] - domain[0]
    basis = GaussianRBF.grid(10, 0.1)
    layer = ContinuousAttention(64, heads, basis, domain=domain, bias=bias, batch_first=True)
    sequence = torch.randn(5, 7, 64)
    _, density = layer(torch.randn(5, 11, 64), sequence, sequence, torch.rand(5, 7))
    centers = domain[0] + span * (torch.arange(heads) + 0.5) / heads
    assert (density.mean.mean((0, 2)) - centers).abs().max() < 0.02 * span
    assert (density.mean - centers[:, None]).abs().max() < 0.2 * span
    assert (density.sigma / span - 0.1).abs().max() < 0.07
    _, density = layer(torch.zeros(5, 1, 64), sequence, sequence, torch.rand(5, 7))
    assert torch.allclose(density.mean, centers[:, None].expand(5, heads, 1), rtol=1e-4)
    assert torch.allclose(density.sigma, torch.full((5, heads, 1), 0.1 * span), rtol=1e-4)


@every_score
@pytest.mark.parametrize("alpha", [1.5, 2.0])
@pytest.mark.parametrize("length", [30, 1000])
def test_supports_start_wide(score: str, alpha: float, length: int) -> None:
    basis = GaussianRBF.grid(10, 0.1)
    layer = ContinuousAttention(64, 8, basis, alpha, score, batch_first=True)
    sequence = torch.randn(4, length, 64)
    _, density = layer(torch.randn(4, 3, 64), sequence, sequence, torch.rand(4, length))
    lengths = density.support.intervals.clamp(0, 1).diff(dim=-1).squeeze(-1).nansum(-1)
    assert lengths.min() > 0.25
    assert lengths.mean() > 0.4


def test_sigma_stays_above_its_floor() -> None:
    layer, (query, key, value, t) = make_layer("quadratic", domain=(0.0, 5.0)), data()
    nn.init.constant_(layer.score_proj.bias, -1e4)
    context, density = layer(query, key, value, t)
    assert torch.allclose(density.sigma, torch.full((2, 2, 3), 5e-3, dtype=DOUBLE))
    assert torch.equal(density.loc, torch.zeros(2, 2, 3, dtype=DOUBLE))
    assert context.isfinite().all()


@pytest.mark.parametrize("ndim", [2, 3])
@pytest.mark.parametrize("heads", [1, 8])
def test_heads_start_spread_in_space(heads: int, ndim: int) -> None:
    layer = ContinuousAttention(
        16, heads, GaussianRBF.grid(2**ndim, 0.3, ndim=ndim), ndim=ndim, batch_first=True
    )
    sequence = torch.randn(2, 5, 16)
    inputs = (torch.zeros(2, 1, 16), sequence, sequence, torch.rand(2, 5, ndim))
    _, density = layer(*inputs)
    loc = density.loc[0, :, 0]
    assert ((loc > 0.02) & (loc < 0.98)).all()
    assert torch.allclose(loc.mean(0), torch.tensor(0.5), atol=1e-3)
    sigma = density.sigma_tril
    assert torch.allclose(sigma, 0.1 * torch.eye(ndim).expand_as(sigma), atol=1e-6)
    # However the first two axes are cut into as many equal boxes, there is a head in each.
    columns = 1
    while columns <= heads:
        cut = (loc[:, :2] * torch.tensor([columns, heads // columns])).long()
        assert len({tuple(box) for box in cut.tolist()}) == heads
        columns *= 2
    layer.score_proj.bias.data.zero_()
    layer.reset_parameters()
    _, density = layer(*inputs)
    assert torch.equal(density.loc[0, :, 0], loc)


def test_location_and_scale_are_read_off_the_query() -> None:
    layer, (query, key, value, t) = plane_layer("quadratic", domain=BOX), data(ndim=2)
    assert layer.score_proj.weight.shape == (10, 4)
    assert not layer.score_proj.weight[8:].any()
    for parameter in layer.score_proj.parameters():
        nn.init.normal_(parameter)
    _, density = layer(query, key, value, t)
    channels = layer.score_proj(query[1, 2])
    low, span = torch.tensor([-1.0, 0.0], dtype=DOUBLE), torch.tensor([4.0, 0.5], dtype=DOUBLE)
    for head in range(2):
        loc = low + span * torch.sigmoid(channels[2 * head : 2 * head + 2])
        first = channels[4 + 2 * head : 6 + 2 * head]
        sigma = span * (1e-3 + nn.functional.softplus(first))
        tril = torch.diag(sigma)
        tril[1, 0] = sigma[1] * channels[8 + head]
        assert torch.allclose(density.loc[1, head, 2], loc, rtol=1e-12)
        assert torch.allclose(density.sigma_tril[1, head, 2], tril, rtol=1e-10)


def test_domain_stretches_every_axis() -> None:
    unit, (query, key, value, t) = plane_layer("quadratic"), data(ndim=2)
    nn.init.normal_(unit.score_proj.weight)
    wide = plane_layer("quadratic", domain=BOX)
    wide.load_state_dict(unit.state_dict())
    (_, small), (_, large) = (layer(query, key, value, t) for layer in (unit, wide))
    low, span = torch.tensor([-1.0, 0.0], dtype=DOUBLE), torch.tensor([4.0, 0.5], dtype=DOUBLE)
    assert torch.allclose(large.loc, low + span * small.loc, rtol=1e-12)
    assert torch.allclose(large.sigma_tril, span.unsqueeze(-1) * small.sigma_tril, rtol=1e-10)


# Kernel scores, against a dense trapezoid

POINTS = 12001
KERNEL_ALPHAS = [1.0, 1.25, 2.0]


def kernel_layer(alpha: Any = 2.0, gain: float = 1.0, **options: Any) -> Any:
    """A layer with weights `gain` times those at the start."""
    options = {"batch_first": True, "dtype": DOUBLE, "inducing_points": 8, "penalty": 0.1} | options
    low, high = options.get("domain", (0.0, 1.0))
    basis = GaussianRBF.grid(6, 0.15 * (high - low), low=low, high=high)
    layer = ContinuousAttention(4, 2, basis, alpha, "kernel", **options)
    with torch.no_grad():
        layer.score_proj.weight.mul_(gain)
        layer.score_proj.bias.mul_(gain)
    return layer


def rule(low: float = 0.0, high: float = 1.0) -> tuple[Tensor, Tensor]:
    """Nodes and weights of a trapezoid, for expectations relative to the uniform density."""
    t = torch.linspace(low, high, POINTS, dtype=DOUBLE)
    weights = torch.full_like(t, 1 / (POINTS - 1))
    weights[[0, -1]] /= 2
    return t, weights


def scores(layer: Any, query: Tensor, t: Tensor, length: float) -> Tensor:
    """f of each head by hand, (B, heads, Lq, POINTS), of a Gaussian kernel."""
    projection = layer.score_proj
    weights = query.double() @ projection.weight.double().mT + projection.bias.double()
    weights = weights.unflatten(-1, (2, -1)).transpose(1, 2)
    points = torch.linspace(float(t[0]), float(t[-1]), weights.shape[-1], dtype=DOUBLE)
    return weights @ torch.exp(-0.5 * ((points[:, None] - t) / length).square())


def masses(f: Tensor, weights: Tensor, alpha: float, normalization: str = "inside") -> Tensor:
    """Of each node, by bisection for the normaliser."""
    if alpha == 1:
        p = torch.exp(f - f.amax(-1, keepdim=True)) * weights
        return p / p.sum(-1, keepdim=True)
    eps = alpha - 1
    low, high = f.amin(-1, keepdim=True), f.amax(-1, keepdim=True)
    for _ in range(60):
        middle = (low + high) / 2
        total = ((1 + eps * (f - middle)).clamp_min(0) ** (1 / eps) * weights).sum(-1, keepdim=True)
        low, high = torch.where(total > 1, middle, low), torch.where(total > 1, high, middle)
    level = low if normalization == "inside" else torch.zeros_like(low)
    p = (1 + eps * (f - level)).clamp_min(0) ** (1 / eps) * weights
    return p / p.sum(-1, keepdim=True)


def by_trapezoid(layer: Any, inputs: Any, alpha: float, length: float, **options: Any) -> Tensor:
    """The context: value functions under the masses of a trapezoid."""
    query, _, value, positions = inputs
    t, weights = rule(*layer.domain)
    p = masses(scores(layer, query, t, length), weights, alpha, **options)
    function = layer.regression.fit(positions, layer.v_proj(value))
    values = function(t.expand(2, -1)).unflatten(-1, (2, 2))
    return layer.out_proj(torch.einsum("bhqt,bthe->bqhe", p, values).flatten(2))


@pytest.mark.parametrize("gain", [1.0, 30.0])
@pytest.mark.parametrize("alpha", KERNEL_ALPHAS)
def test_kernel_context_is_the_integral_of_the_values(alpha: float, gain: float) -> None:
    layer, inputs = kernel_layer(alpha, gain), data()
    context, density = layer(*inputs)
    assert isinstance(density, KernelExp if alpha == 1 else KernelDeformedExp)
    assert density.batch_shape == (2, 2, 3)
    # Two steps between inducing points; the trapezoid's own error is 1e-7 at edges.
    assert close(context, by_trapezoid(layer, inputs, alpha, 2 / 7), 1e-6)


def test_kernel_context_over_disjoint_supports_and_another_domain() -> None:
    kernel = RBF(1, lengthscale=torch.tensor(0.5, dtype=DOUBLE)).requires_grad_(False)
    layer = kernel_layer(2.0, 30.0, kernel=kernel, domain=(-2.0, 6.0), inducing_points=16)
    query, key, value, t = data()
    inputs = (query, key, value, 8 * t - 2)
    context, density = layer(*inputs)
    assert (density.support.count > 1).any()
    assert close(context, by_trapezoid(layer, inputs, 2.0, 0.5), 1e-6)
    nodes, weights = rule(-2.0, 6.0)
    p = masses(scores(layer, query, nodes, 0.5), weights, 2.0)
    first = torch.where(p > 0, nodes, math.inf).amin(-1)
    assert (density.support.intervals[..., 0, 0] - first).abs().max() < 8 / (POINTS - 1) + 1e-9


def test_outside_normalisation_is_by_the_mass() -> None:
    layer, inputs = kernel_layer(1.5, 3.0, normalization="outside"), data()
    context, density = layer(*inputs)
    assert density.normalization == "outside"
    expected = by_trapezoid(layer, inputs, 1.5, 2 / 7, normalization="outside")
    assert close(context, expected, 1e-6)
    assert not close(expected, by_trapezoid(layer, inputs, 1.5, 2 / 7), 1e-2)
    with torch.no_grad():
        layer.score_proj.bias.fill_(-5.0)
    with pytest.raises(ValueError, match=r"weights must be .*empty support at batch indices \[\[0"):
        layer(*inputs)


@pytest.mark.parametrize("alpha", KERNEL_ALPHAS)
def test_kernel_float32_follows_the_reference(alpha: float) -> None:
    layer, inputs = kernel_layer(alpha, 10.0, dtype=torch.float32), data(dtype=torch.float32)
    context, density = layer(*inputs)
    assert (context.dtype, density.weights.dtype) == (torch.float32, torch.float32)
    exact = copy.deepcopy(layer).double()
    assert close(context, by_trapezoid(exact, [x.double() for x in inputs], alpha, 2 / 7), 5e-6)


@pytest.mark.parametrize("alpha", KERNEL_ALPHAS)
def test_kernel_planes_are_read_like_lines(alpha: float) -> None:
    kernel = Matern52(2, lengthscale=torch.tensor(0.4)).requires_grad_(False)
    basis = GaussianRBF.grid(9, 0.3, ndim=2)
    layer = ContinuousAttention(
        4, 2, basis, alpha, "kernel", ndim=2, kernel=kernel, inducing_points=16, batch_first=True
    )
    layer.double()
    query, key, value, _ = data()
    positions = torch.rand(2, 9, 2, dtype=DOUBLE)
    context, density = layer(query, key, value, positions)
    side = (torch.arange(120, dtype=DOUBLE) + 0.5) / 120
    t = torch.cartesian_prod(side, side)
    p = density.prob(t[:, None, None, None]).movedim(0, -1) / len(t)
    assert (p.sum(-1) - 1).abs().max() < 1e-4
    values = layer.regression.fit(positions, layer.v_proj(value))(t.expand(2, -1, -1))
    heads = torch.einsum("bhqt,bthe->bqhe", p, values.unflatten(-1, (2, 2)))
    assert close(context, layer.out_proj(heads.flatten(2)), 1e-4)


@pytest.mark.parametrize("alpha", KERNEL_ALPHAS)
def test_kernel_gradients_in_the_weights_are_those_of_the_reference(alpha: float) -> None:
    layer, inputs = kernel_layer(alpha, 10.0), data()
    parameters = list(layer.score_proj.parameters())[:2]
    found = torch.autograd.grad(layer(*inputs)[0].square().sum(), parameters)
    # Bisection has no derivative, so by differences.
    direction = [torch.randn_like(x) for x in parameters]
    slope = sum((g * d).sum() for g, d in zip(found, direction, strict=True))
    values = []
    for step in (1e-3, -2e-3):
        with torch.no_grad():
            for x, d in zip(parameters, direction, strict=True):
                x.add_(step * d)
            values.append(by_trapezoid(layer, inputs, alpha, 2 / 7).square().sum())
    expected = (values[0] - values[1]) / 2e-3
    assert (slope - expected).abs() < 1e-4 * expected.abs()


def test_bandwidth_is_learned() -> None:
    kernel = RBF(1, lengthscale=torch.tensor(0.2))
    layer, inputs = kernel_layer(2.0, 10.0, kernel=kernel), data()
    name = "score_proj.kernel.lengthscale_unconstrained"
    assert name in dict(layer.named_parameters())
    layer(*inputs)[0].square().sum().backward()
    length = kernel.lengthscale_unconstrained
    values = []
    for step in (1e-3, -2e-3):
        length.data.add_(step)
        values.append(
            by_trapezoid(layer, inputs, 2.0, float(kernel.lengthscale.detach())).square().sum()
        )
    expected = (values[0] - values[1]) / 2e-3
    assert (length.grad - expected).abs() < 1e-3 * expected.abs()
    # Panels follow a bandwidth that has shrunk.
    before = len(layer(*inputs)[1].mesh.nodes)
    with torch.no_grad():
        length.sub_(3.0)
    assert len(layer(*inputs)[1].mesh.nodes) > before
    expected = by_trapezoid(layer, inputs, 2.0, float(kernel.lengthscale.detach()))
    assert close(layer(*inputs)[0], expected, 1e-6)


def test_bandwidth_may_be_learned_by_a_function() -> None:
    length = torch.tensor(0.3, dtype=DOUBLE, requires_grad=True)

    def kernel(x: Tensor, z: Tensor) -> Tensor:
        return torch.exp(-0.5 * ((x - z.mT) / length).square())

    layer, inputs = kernel_layer(2.0, 10.0, kernel=kernel), data()
    layer(*inputs)
    with torch.no_grad():
        length.mul_(0.1)
    assert close(layer(*inputs)[0], by_trapezoid(layer, inputs, 2.0, 0.03), 1e-6)


def test_panels_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    find = KernelScore._find
    monkeypatch.setattr(KernelScore, "_find", lambda self: found.append(1) or find(self))
    layer, inputs = kernel_layer(), data()
    optimiser = torch.optim.SGD([x for x in layer.parameters() if x.requires_grad], 0.1)
    for _ in range(3):
        optimiser.zero_grad()
        context, density = layer(*inputs)
        context.square().sum().backward()
        optimiser.step()
    assert len(found) == 1
    assert layer(*inputs)[1].mesh is density.mesh
    assert density.mesh.matrix is not None
    layer.float()
    assert len(found) == 2
    assert layer(*(x.float() for x in inputs))[1].mesh is not density.mesh


def test_panels_follow_a_kernel_that_is_replaced() -> None:
    """Also where its parameters stay the same objects and get another storage."""
    kernel: Any = RBF(1, lengthscale=torch.tensor(0.2)).requires_grad_(False)
    layer, inputs = kernel_layer(2.0, 10.0, kernel=kernel), data()
    flat = nn.utils.parameters_to_vector(kernel.parameters())

    def of_pyros() -> None:
        kernel.lengthscale = torch.tensor(0.4)
        kernel.requires_grad_(False)

    def of_torchs() -> None:
        nn.utils.vector_to_parameters(flat.clone(), kernel.parameters())

    def whole() -> None:
        layer.score_proj.kernel = RBF(1, lengthscale=torch.tensor(0.1)).requires_grad_(False)

    for change, length in ((of_pyros, 0.4), (of_torchs, 0.2), (whole, 0.1)):
        layer(*inputs)
        change()
        assert close(layer(*inputs)[0], by_trapezoid(layer, inputs, 2.0, length), 1e-6)
    constant = kernel_layer(
        2.0, 10.0, kernel=lambda x, z: torch.exp(-0.5 * (x - z.mT).square() / 0.09)
    )
    constant(*inputs)
    constant.score_proj.kernel = lambda x, z: torch.exp(-0.5 * (x - z.mT).square() / 0.01)
    assert close(constant(*inputs)[0], by_trapezoid(constant, inputs, 2.0, 0.1), 1e-6)


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0])
def test_kernel_supports_start_wide_and_heads_spread(alpha: float) -> None:
    basis = GaussianRBF.grid(6, 0.15)
    layer = ContinuousAttention(64, 4, basis, alpha, "kernel", batch_first=True)
    sequence = torch.randn(16, 7, 64)
    query = torch.randn(16, 5, 64)
    _, density = layer(query, sequence, sequence, torch.rand(16, 7))
    lower, upper = density.support.intervals.unbind(-1)
    lengths = (upper - lower).nansum(-1)
    assert lengths.mean() > 0.95
    assert lengths.min() > 0.5
    means = density.mean.mean((0, 2))
    assert (means.diff() > 0.02).all()
    assert (means - means.flip(0).neg().add(1)).abs().max() < 0.05


def test_kernel_layers_without_storage_can_be_filled() -> None:
    layer, inputs = kernel_layer(), data()
    empty = kernel_layer(device="meta").to_empty(device="cpu")
    # What memory holds is chance.
    empty.score_proj.inducing_points.fill_(9.0)
    with pytest.raises(ValueError, match="inducing_points must be in the domain"):
        empty(*inputs)
    empty._apply(lambda x: x)
    empty.load_state_dict(layer.state_dict())
    assert torch.equal(empty(*inputs)[0], layer(*inputs)[0])


LINE, PLANE = GaussianRBF.grid(4, 0.2), GaussianRBF.grid(4, 0.2, ndim=2)


def build_kernel(basis: Any = LINE, alpha: Any = 2.0, **options: Any) -> Any:
    return ContinuousAttention(4, 2, basis, alpha, "kernel", **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: build_kernel(alpha=2.5), "alpha must be at most 2 .*got 2.5"),
        *(
            (
                lambda count=count: build_kernel(inducing_points=count),
                "inducing_points must be a tensor, or a positive .*got " + re.escape(repr(count)),
            )
            for count in (0, -3, 2.5, True, "3", (0.1, 0.2))
        ),
        (
            lambda: build_kernel(PLANE, ndim=2, inducing_points=10),
            "inducing_points must be .*power ndim=2, got 10",
        ),
        (
            lambda: build_kernel(inducing_points=torch.tensor([0.5, 1.5])),
            r"inducing_points must be in the domain .*1.5",
        ),
        (
            lambda: build_kernel(inducing_points=torch.zeros(3, 2)),
            r"inducing_points must be floating of shape \(I, 1\) or \(I,\), got .*\(3, 2\)",
        ),
        (lambda: build_kernel(kernel=3), "kernel must be a callable.*got 3"),
        (lambda: build_kernel(kernel=RBF), "kernel must be .* instance, got the class .*RBF"),
        (
            lambda: build_kernel(components=3),
            "components must not be given unless score='mixture', got score='kernel'",
        ),
        (
            lambda: build_kernel(kernel=lambda x, z: x),
            r"kernel must map .*\(64, 1\), \(64, 1\) to \(64, 64\).*, got \(64, 1\)",
        ),
        (
            lambda: build_kernel(kernel=lambda x, z: -torch.exp(-((x - z.mT) ** 2))),
            "kernel must be positive semi-definite",
        ),
        (lambda: build_kernel(normalization="both"), "normalization must be .*got 'both'"),
        (
            lambda: ContinuousAttention(4, 2, LINE, normalization="outside"),
            "normalization must not be given unless score='kernel', got score='quadratic'",
        ),
        (
            lambda: ContinuousAttention(4, 2, LINE, kernel=RBF(1)),
            "kernel must not be given unless score='kernel', got score='quadratic'",
        ),
        (
            lambda: ContinuousAttention(4, 2, LINE, inducing_points=64),
            "inducing_points must not be given unless score='kernel'",
        ),
    ],
)
def test_bad_kernel_settings_are_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


# Mixtures, against a dense trapezoid

COMPONENTS = 3


def mixture_layer(alpha: Any = 2.0, gain: float = 1.0, **options: Any) -> Any:
    """A layer with weights `gain` times those at the start."""
    low, high = options.get("domain", (0.0, 1.0))
    basis = GaussianRBF.grid(6, 0.15 * (high - low), low=low, high=high)
    options = {"batch_first": True, "dtype": DOUBLE, "penalty": 0.1} | options
    layer = ContinuousAttention(4, 2, basis, alpha, "mixture", components=COMPONENTS, **options)
    with torch.no_grad():
        layer.score_proj.weight.mul_(gain)
    return layer


def mixture_by_hand(layer: Any, query: Tensor, alpha: float, t: Tensor) -> Tensor:
    """Densities (B, heads, Lq, len(t)) from the channels of the query."""
    channels = layer.score_proj(query).unflatten(-1, (3, 2, COMPONENTS)).movedim(1, 3)
    logits, loc, diagonal = (x.unsqueeze(-1) for x in channels.unbind(1))
    low, high = layer.domain
    loc = low + (high - low) * torch.sigmoid(loc)
    sigma = (high - low) * (1e-3 + functional.softplus(diagonal))
    if alpha == 1:
        bumps = torch.exp(-0.5 * ((t - loc) / sigma).square()) / sigma / math.sqrt(2 * math.pi)
    else:
        # Of f = -(t - loc)^2 / (2 sigma^2), (R^2 - (t - loc)^2)_+^k up to a factor, whose
        # radius makes the factor 1/(2 k sigma^2)^k normalise.
        k = 1 / (alpha - 1)
        volume = math.exp(math.lgamma(k + 1) - math.lgamma(k + 1.5)) * math.sqrt(math.pi)
        radius = ((2 * k * sigma**2) ** k / volume) ** (1 / (2 * k + 1))
        bumps = (radius**2 - (t - loc).square()).clamp_min(0) ** k / (2 * k * sigma**2) ** k
    return (torch.softmax(logits, -2) * bumps).sum(-2)


def by_mixture(layer: Any, inputs: Any, alpha: float) -> Tensor:
    """The context: value functions under the density, by a trapezoid on seven domains."""
    query, _, value, positions = inputs
    low, high = layer.domain
    reach = 3 * (high - low)
    t = torch.linspace(low - reach, high + reach, 42001, dtype=DOUBLE)
    p = mixture_by_hand(layer, query, alpha, t) * (t[1] - t[0])
    assert (p.sum(-1) - 1).abs().max() < 1e-5
    function = layer.regression.fit(positions, layer.v_proj(value))
    values = function(t.expand(2, -1)).unflatten(-1, (2, 2))
    return layer.out_proj(torch.einsum("bhqt,bthe->bqhe", p, values).flatten(2))


@pytest.mark.parametrize("domain", [(0.0, 1.0), (-2.0, 6.0)])
@every_alpha
def test_mixture_context_is_the_integral_of_the_values(
    alpha: float, domain: tuple[float, float]
) -> None:
    layer, (query, key, value, t) = mixture_layer(alpha, 5.0, domain=domain), data()
    inputs = (query, key, value, domain[0] + (domain[1] - domain[0]) * t)
    context, density = layer(*inputs)
    assert isinstance(density, Mixture)
    assert (density.batch_shape, density.logits.shape[-1]) == ((2, 2, 3), COMPONENTS)
    assert close(context, by_mixture(layer, inputs, alpha), 1e-6)


def test_components_may_be_disjoint() -> None:
    layer, inputs = mixture_layer(2.0), data()
    total = 2 * COMPONENTS
    with torch.no_grad():
        layer.score_proj.bias[2 * total :] = -7.0
    context, density = layer(*inputs)
    assert (density.support.count == COMPONENTS).all()
    assert close(context, by_mixture(layer, inputs, 2.0), 1e-4)
    t = torch.linspace(0, 1, 1001, dtype=DOUBLE)
    expected = mixture_by_hand(layer, inputs[0], 2.0, t)
    found = density.prob(t[:, None, None, None]).movedim(0, -1)
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-8)
    assert (found == 0).any(-1).all()


@every_alpha
def test_mixture_float32_follows_the_reference(alpha: float) -> None:
    layer, inputs = mixture_layer(alpha, 5.0, dtype=torch.float32), data(dtype=torch.float32)
    context, _ = layer(*inputs)
    assert context.dtype == torch.float32
    exact = copy.deepcopy(layer).double()
    assert close(context, by_mixture(exact, [x.double() for x in inputs], alpha), 5e-6)


@every_alpha
def test_mixture_planes_are_read_like_lines(alpha: float) -> None:
    basis = GaussianRBF.grid(9, 0.3, ndim=2)
    options: dict[str, Any] = {"ndim": 2, "components": COMPONENTS, "batch_first": True}
    layer = ContinuousAttention(4, 2, basis, alpha, "mixture", dtype=DOUBLE, **options)
    query, key, value, _ = data()
    positions = torch.rand(2, 9, 2, dtype=DOUBLE)
    context, density = layer(query, key, value, positions)
    side = 3 * (torch.arange(240, dtype=DOUBLE) + 0.5) / 240 - 1
    t = torch.cartesian_prod(side, side)
    p = density.prob(t[:, None, None, None]).movedim(0, -1) * (3 / 240) ** 2
    assert (p.sum(-1) - 1).abs().max() < 1e-3
    values = layer.regression.fit(positions, layer.v_proj(value))(t.expand(2, -1, -1))
    heads = torch.einsum("bhqt,bthe->bqhe", p, values.unflatten(-1, (2, 2)))
    assert close(context, layer.out_proj(heads.flatten(2)), 1e-3)


@every_alpha
def test_mixtures_start_without_gaps(alpha: float) -> None:
    basis = GaussianRBF.grid(6, 0.15)
    layer = ContinuousAttention(64, 4, basis, alpha, "mixture", components=8, batch_first=True)
    sequence = torch.randn(16, 7, 64)
    _, density = layer(torch.randn(16, 5, 64), sequence, sequence, torch.rand(16, 7))
    t = torch.linspace(0.1, 0.9, 401)
    assert (density.prob(t[:, None, None, None]) > 0).all()
    means = density.mean.mean((0, 2))
    assert (means.diff() > 0.02).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({"components": count}, f"components must be a positive integer, got {count!r}")
            for count in (0, -3, 2.5, "3", True)
        ),
    ],
)
def test_bad_components_are_named(options: dict[str, Any], message: str) -> None:
    build: Callable[..., object] = ContinuousAttention
    with pytest.raises(ValueError, match=message):
        build(4, 2, GaussianRBF.grid(4, 0.2), 2.0, "mixture", **options)


# Learned alphas


def learned_layer(score: str, alpha: LearnedAlpha) -> ContinuousAttention:
    basis = GaussianRBF.grid(6, 0.2)
    options: dict[str, Any] = {"batch_first": True, "dtype": alpha.weight.dtype, "combine": True}
    return ContinuousAttention(4, 2, basis, alpha, score, **options)


@pytest.mark.parametrize("high", [2.0, 3.0, math.inf])
def test_it_starts_where_it_is_told_and_stays_in_its_range(high: float) -> None:
    alpha = LearnedAlpha(3, start=[1.1, 1.5, 1.9], high=high)
    torch.testing.assert_close(alpha(), torch.tensor([[1.1], [1.5], [1.9]]))
    assert LearnedAlpha(2, start=1.75)().tolist() == [[1.75], [1.75]]
    for start in (torch.tensor([1.25, 1.75]), np.array([1.25, 1.75])):
        torch.testing.assert_close(LearnedAlpha(2, start)(), torch.tensor([[1.25], [1.75]]))
    for weight in (-1e4, 1e4):
        with torch.no_grad():
            alpha.weight.fill_(weight)
        assert ((alpha() >= 1.01) & (alpha() <= high)).all()
    alpha.reset_parameters()
    torch.testing.assert_close(alpha()[:, 0], torch.tensor([1.1, 1.5, 1.9]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounded_weights_do_not_round_it_to_one(dtype: torch.dtype) -> None:
    alpha = LearnedAlpha(1, start=1.02).to(dtype)
    assert alpha().dtype == torch.float32
    assert 1.015 < alpha().item() < 1.025


@pytest.mark.parametrize("score", ["quadratic", "moments", "kernel"])
@pytest.mark.parametrize("start", [[1.02, 1.6], [1.9, 2.6]])
def test_gradients_pass_through_the_layer(score: str, start: list[float]) -> None:
    if score == "kernel":
        start = [min(x, 1.98) for x in start]
    high = 2.0 if max(start) < 2 else math.inf
    layer, inputs = learned_layer(score, LearnedAlpha(2, start, high, dtype=DOUBLE)), data(5)
    weight = layer.alpha.weight
    assert dict(layer.named_parameters())["alpha.weight"] is weight

    def context(weight: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"alpha.weight": weight}, inputs)[0]

    assert gradcheck(context, (weight,), rtol=1e-4, atol=1e-7)
    density = layer(*inputs)[1]
    if score != "mixture":
        expected = torch.tensor(start, dtype=DOUBLE)[:, None].expand(2, 2, 3)
        torch.testing.assert_close(density.alpha, expected)


def test_learned_alpha_in_float32_follows_float64_next_to_one() -> None:
    """Where the derivative in alpha is the difference of large numbers."""
    layer, inputs = learned_layer("moments", LearnedAlpha(2, 1.0101, dtype=DOUBLE)), data(5)
    layer(*inputs)[0].square().sum().backward()
    expected = layer.alpha.weight.grad
    layer.zero_grad()
    layer.float()(*(x.float() for x in inputs))[0].square().sum().backward()
    assert (layer.alpha.weight.grad - expected).norm() < 1e-2 * expected.norm()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LearnedAlpha(0), "num_heads must be a positive integer, got 0"),
        (lambda: LearnedAlpha(2, high=1.0), "high must be a number above 1.01, got 1.0"),
        (lambda: LearnedAlpha(2, high=math.nan), "high must be a number above 1.01, got nan"),
        (lambda: LearnedAlpha(2, high=None), "high must be a number above 1.01, got None"),
        (lambda: LearnedAlpha(2, "1.5"), "start must be .* between 1.01 and 2.0, got '1.5'"),
        (lambda: LearnedAlpha(1, dtype=torch.int32), "dtype must be floating, got torch.int32"),
        (lambda: LearnedAlpha(2, None), "start must be .* between 1.01 and 2.0, got None"),
        (
            lambda: learned_layer("kernel", LearnedAlpha(2, high=3.0)),
            "alpha.high must be at most 2 for score='kernel', got 3.0",
        ),
        (lambda: LearnedAlpha(2, 2.0), "start must be .* between 1.01 and 2.0, got 2.0"),
        (lambda: LearnedAlpha(2, 1.0), "start must be .* between 1.01 and 2.0, got 1.0"),
        (lambda: LearnedAlpha(2, [1.5] * 3), r"start must be a number, or 2 of them, .*got \[1.5"),
        (
            lambda: learned_layer("quadratic", LearnedAlpha(3))(*data(dtype=torch.float32)),
            r"alpha must broadcast to .* \(2, 2, 3\), got shape \(3, 1\)",
        ),
    ],
)
def test_bad_learned_alphas_are_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("kernel", [None, RBF(1, lengthscale=torch.tensor(0.2))])
@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_gradients_of_single_samples(kernel: RBF | None, alpha: float) -> None:
    layer = make_layer("kernel", alpha=alpha, kernel=kernel)
    query, key, value, positions = data()
    named = {name: x for name, x in layer.named_parameters() if x.requires_grad}

    def loss(parameters: dict[str, Tensor], *inputs: Tensor) -> Tensor:
        given = tuple(x.unsqueeze(0) for x in inputs)
        found: Tensor = torch.func.functional_call(layer, parameters, given)[0].square().sum()
        return found

    inputs = (query, key, value, positions)
    gradients = torch.func.vmap(torch.func.grad(loss), (None, 0, 0, 0, 0))(named, *inputs)
    for i in range(len(query)):
        found = loss(named, *(x[i] for x in inputs))
        for name, slope in zip(named, torch.autograd.grad(found, [*named.values()]), strict=True):
            torch.testing.assert_close(gradients[name][i], slope)
