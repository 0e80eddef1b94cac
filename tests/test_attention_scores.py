"""Scores of attention layers: their densities by hand, where they start, learned alphas."""

import math
import re
from typing import Any

import entmax
import numpy as np
import pytest
import torch
from battery import DOUBLE, apart
from cases_kernel import bell, frozen
from layers import SCORES, data, every_score, make_layer
from pyro.contrib.gp.kernels import RBF
from refusals import refused
from torch import Tensor, nn
from torch.distributions import Uniform
from torch.nn import functional

from sparsefam import KernelDeformedExp, KernelExp, Mixture
from sparsefam.attention import (
    ContinuousAttention,
    KernelScore,
    LearnedAlpha,
    RidgeRegression,
    ValueFunction,
)
from sparsefam.bases import GaussianRBF, Polynomial

BOX = ((-1.0, 3.0), (0.0, 0.5))
LOW, SPAN = torch.tensor([-1.0, 0.0], dtype=DOUBLE), torch.tensor([4.0, 0.5], dtype=DOUBLE)


# Moments of discrete weights
def discrete(layer: ContinuousAttention, query: Tensor, key: Tensor, alpha: float) -> Tensor:
    """Weights of each head by hand, (B, heads, Lq, L)."""
    queries, keys = layer.score_proj.q_proj(query), layer.score_proj.k_proj(key)
    scores = [queries[..., c] @ keys[..., c].mT / math.sqrt(2) for c in (slice(2), slice(2, 4))]
    maps = {1.0: torch.softmax, 1.5: entmax.entmax15, 2.0: entmax.sparsemax}
    return torch.stack([maps[alpha](s / layer.temperature, -1) for s in scores], 1)


@pytest.mark.parametrize(("alpha", "length"), [(1.0, 9), (1.5, 1), (1.5, 9), (2.0, 9)])
@pytest.mark.parametrize("domain", [(-3.0, 7.0), BOX], ids=["line", "plane"])
def test_moments_are_those_of_the_weights(alpha: float, length: int, domain: Any) -> None:
    """A single observation has the least variance."""
    ndim = 1 if domain is not BOX else 2
    options: dict[str, Any] = {"ndim": ndim, "domain": domain, "temperature": 0.4}
    if ndim == 2:
        options["basis"] = GaussianRBF.grid(9, 0.3, ndim=2)
    layer = make_layer("moments", alpha=alpha, **options)
    query, key, value, t = data(length, ndim)
    context, density = layer(query, key, value, t)
    weights = discrete(layer, query, key, alpha)
    t = t.reshape(2, length, ndim)
    mean = torch.einsum("bhql,bld->bhqd", weights, t)
    offset = t[:, None, None] - mean.unsqueeze(-2)
    covariance = torch.einsum("bhql,bhqld,bhqle->bhqde", weights, offset, offset)
    floor = (1e-3 * torch.tensor(domain, dtype=DOUBLE).reshape(ndim, 2).diff(dim=-1)).square()
    if ndim == 1:
        assert torch.allclose(density.mean, mean.squeeze(-1), rtol=1e-12)
        variance = covariance.flatten(3).squeeze(-1).clamp_min(float(floor))
        assert torch.allclose(density.variance, variance, rtol=1e-9)
    else:
        assert torch.allclose(density.mean, mean, rtol=1e-12)
        covariance = covariance + torch.diag(floor.squeeze(-1))
        assert torch.allclose(density.covariance_matrix, covariance, rtol=1e-9, atol=1e-15)
    assert context.isfinite().all()


@pytest.mark.filterwarnings("ignore:.*all functions of the basis are zero")
@pytest.mark.parametrize("stretch", [1.0, 1e4])
def test_positions_on_a_line_have_a_valid_density(stretch: float) -> None:
    """Their covariance is singular, and rounding may make it worse than that."""
    layer = make_layer("moments", ndim=2, dtype=torch.float32)
    query, key, value, _ = (x.float() for x in data(100, ndim=2))
    along = torch.rand(2, 100, 1)
    t = (stretch * (0.3 + along * torch.tensor([0.7, -0.2]))).requires_grad_()
    context, density = layer(query, key, value, t)
    (slope,) = torch.autograd.grad(density.covariance_matrix.sum() + context.sum(), t)
    assert context.isfinite().all() and slope.isfinite().all()
    across = torch.tensor([0.2, 0.7]) / math.hypot(0.2, 0.7)
    thickness = torch.einsum("i,bhqij,j->bhq", across, density.covariance_matrix, across)
    assert (thickness > 0).all() and (thickness < 1e-6 * max(1.0, 10 * stretch**2)).all()


# Quadratic scores and mixtures, and where heads start
@pytest.mark.parametrize("score", ["quadratic", "mixture"])
@pytest.mark.parametrize("ndim", [1, 2])
def test_location_and_scale_are_read_off_the_query(score: str, ndim: int) -> None:
    domain = BOX if ndim == 2 else BOX[0]
    layer = make_layer(score, alpha=1.5, ndim=ndim, domain=domain, temperature=2.5)
    for parameter in layer.score_proj.parameters():
        nn.init.normal_(parameter)
    inputs = data(ndim=ndim)
    density = layer(*inputs)[1]
    channels, count = layer.score_proj(inputs[0][1, 2]), 3 if score == "mixture" else 1
    logits, channels = channels.split(
        [2 * count, len(channels) - 2 * count] if count > 1 else [0, len(channels)]
    )
    if isinstance(density, Mixture):
        found = density.logits[1, :, 2].log_softmax(-1)
        expected = (logits / 2.5).reshape(2, count).log_softmax(-1)
        torch.testing.assert_close(found, expected)
        density = density.components
    parts = channels.split([2 * count * ndim, 2 * count * ndim, count * ndim * (ndim - 1)])
    loc, diagonal, triangle = (x.reshape(2, count, -1) for x in parts)
    loc = LOW[:ndim] + SPAN[:ndim] * torch.sigmoid(loc)
    sigma = math.sqrt(2.5) * SPAN[:ndim] * (1e-3 + functional.softplus(diagonal))
    if ndim == 1:
        found, due = (density.loc[1, :, 2], density.sigma[1, :, 2]), (loc, sigma)
    else:
        tril = torch.diag_embed(sigma)
        tril[..., 1, 0] = sigma[..., 1] * triangle[..., 0]
        found, due = (density.loc[1, :, 2], density.sigma_tril[1, :, 2]), (loc, tril)
    for x, y in zip(found, due, strict=True):
        torch.testing.assert_close(x, y.reshape(x.shape), rtol=1e-10, atol=1e-12)


def test_heads_start_spread_over_the_domain() -> None:
    heads, domain, span = 8, (-2.0, 6.0), 8.0
    regression = RidgeRegression(GaussianRBF.grid(10, 0.1), domain=domain)
    layer = ContinuousAttention(64, heads, regression, bias=False, batch_first=True)
    sequence = torch.randn(5, 7, 64)
    _, density = layer(torch.randn(5, 11, 64), sequence, sequence, torch.rand(5, 7))
    centers = domain[0] + span * (torch.arange(heads) + 0.5) / heads
    assert (density.mean.mean((0, 2)) - centers).abs().max() < 0.02 * span
    assert (density.mean - centers[:, None]).abs().max() < 0.2 * span
    assert (density.sigma / span - 0.1).abs().max() < 0.07
    _, density = layer(torch.zeros(5, 1, 64), sequence, sequence, torch.rand(5, 7))
    assert torch.allclose(density.mean, centers[:, None].expand(5, heads, 1), rtol=1e-4)
    assert torch.allclose(density.sigma, torch.full((5, heads, 1), 0.1 * span), rtol=1e-4)
    nn.init.constant_(layer.score_proj.bias, -1e4)
    _, density = layer(torch.zeros(5, 1, 64), sequence, sequence, torch.rand(5, 7))
    assert torch.allclose(density.sigma, torch.full((5, heads, 1), 1e-3 * span))
    assert torch.equal(density.loc, torch.full((5, heads, 1), -2.0))


@pytest.mark.parametrize("ndim", [2, 3])
def test_heads_start_spread_in_space(ndim: int) -> None:
    regression = RidgeRegression(GaussianRBF.grid(2**ndim, 0.3, ndim=ndim))
    layer = ContinuousAttention(16, 8, regression, batch_first=True)
    sequence = torch.randn(2, 5, 16)
    inputs = (torch.zeros(2, 1, 16), sequence, sequence, torch.rand(2, 5, ndim))
    _, density = layer(*inputs)
    loc = density.loc[0, :, 0]
    assert ((loc > 0.02) & (loc < 0.98)).all()
    assert torch.allclose(loc.mean(0), torch.tensor(0.5), atol=1e-3)
    sigma = density.sigma_tril
    assert torch.allclose(sigma, 0.1 * torch.eye(ndim).expand_as(sigma), atol=1e-6)
    # However the first two axes are cut into eight equal boxes, there is a head in each.
    for columns in (1, 2, 4, 8):
        cut = (loc[:, :2] * torch.tensor([columns, 8 // columns])).long()
        assert len({tuple(box) for box in cut.tolist()}) == 8
    layer.score_proj.bias.data.zero_()
    layer.reset_parameters()
    assert torch.equal(layer(*inputs)[1].loc[0, :, 0], loc)


@pytest.mark.parametrize("score", [x for x in SCORES if x != "local"])
def test_supports_start_wide(score: str) -> None:
    regression = RidgeRegression(GaussianRBF.grid(10, 0.1))
    layer = ContinuousAttention(64, 4, regression, 2.0, score, batch_first=True)
    sequence = torch.randn(16, 300, 64)
    _, density = layer(torch.randn(16, 5, 64), sequence, sequence, torch.rand(16, 300))
    lengths = density.support.intervals.clamp(0, 1).diff(dim=-1).squeeze(-1).nansum(-1)
    assert lengths.min() > 0.25
    assert lengths.mean() > (0.95 if score == "kernel" else 0.4)
    if score in ("kernel", "mixture"):
        assert (density.mean.mean((0, 2)).diff() > 0.02).all()
    if score == "mixture":
        t = torch.linspace(0.1, 0.9, 401)
        assert (density.prob(t[:, None, None, None]) > 0).all()


# Densities of kernel scores
@pytest.mark.parametrize("alpha", [1.0, 1.5])
@pytest.mark.parametrize("normalization", ["inside", "outside"])
def test_kernel_densities_are_those_of_the_weights(alpha: float, normalization: str) -> None:
    domain, kernel = (-2.0, 6.0), frozen(RBF, 1.5)
    points, base = torch.linspace(*domain, 5, dtype=DOUBLE), Uniform(*domain)
    options: dict[str, Any] = {"normalization": normalization, "points": points}
    layer = make_layer("kernel", alpha=alpha, kernel=kernel, domain=domain, **options)
    layer.temperature, inputs = 2.5, data()
    density = layer(*inputs)[1]
    channels = layer.score_proj(inputs[0]).unflatten(-1, (2, 5)).transpose(1, 2) / 2.5
    if alpha == 1:
        expected: Any = KernelExp(channels, points, kernel, base)
    else:
        expected = KernelDeformedExp(channels, points, kernel, base, alpha, normalization)
    t = torch.linspace(-2, 6, 50, dtype=DOUBLE)[:, None, None, None]
    torch.testing.assert_close(density.prob(t), expected.prob(t), rtol=1e-7, atol=1e-8)


def test_an_empty_support_is_an_error() -> None:
    layer = make_layer("kernel", alpha=1.5, normalization="outside")
    nn.init.constant_(layer.score_proj.bias, -5.0)
    with pytest.raises(ValueError, match=r"weights must be .*empty support at batch indices \[\[0"):
        layer(*data())


# Far from zero
@every_score
def test_the_origin_of_positions_does_not_matter(score: str) -> None:
    query, key, value, positions = data()
    near, far = (
        make_layer(score, basis=GaussianRBF(x + torch.linspace(0, 8, 64, dtype=DOUBLE), 0.19))
        for x in (0.0, 2.0**17)
    )
    shared = {k: x for k, x in near.state_dict().items() if "proj." in k and "points" not in k}
    far.load_state_dict(shared, strict=False)
    expected = near(query, key, value, 8 * positions)[0]
    found = far(query, key, value, 8 * positions + 2.0**17)[0]
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


# The cache of kernel scores
def fresh(layer: Any, inputs: Any, kernel: Any) -> Tensor:
    """The context of a new layer with the same weights and another kernel."""
    twin = make_layer("kernel", kernel=kernel)
    state = {k: x for k, x in layer.state_dict().items() if "kernel" not in k}
    twin.load_state_dict(state, strict=False)
    return twin(*inputs)[0]


def test_bandwidth_is_learned() -> None:
    kernel = RBF(1, lengthscale=torch.tensor(0.2, dtype=DOUBLE))
    layer, inputs = make_layer("kernel", kernel=kernel), data()
    assert "score_proj.kernel.lengthscale_unconstrained" in dict(layer.named_parameters())
    layer(*inputs)[0].square().sum().backward()
    length = kernel.lengthscale_unconstrained
    values = []
    for step in (1e-3, -2e-3):
        length.data.add_(step)
        now = frozen(RBF, kernel.lengthscale.item())
        values.append(fresh(layer, inputs, now).square().sum())
    expected = (values[0] - values[1]) / 2e-3
    assert (length.grad - expected).abs() < 1e-3 * expected.abs()
    before = len(layer(*inputs)[1].mesh.nodes)
    with torch.no_grad():
        length.sub_(3.0)
    context, density = layer(*inputs)
    assert len(density.mesh.nodes) > before
    assert apart(context, fresh(layer, inputs, frozen(RBF, kernel.lengthscale.item()))) < 1e-9


def test_meshes_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found, find = [], KernelScore._find_mesh
    spy = lambda *options: found.append(1) or find(*options)  # noqa: E731
    monkeypatch.setattr(KernelScore, "_find_mesh", spy)
    layer, inputs = make_layer("kernel"), data()
    optimizer = torch.optim.SGD([x for x in layer.parameters() if x.requires_grad], 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        context, density = layer(*inputs)
        context.square().sum().backward()
        optimizer.step()
    assert len(found) == 1
    assert layer(*inputs)[1].mesh is density.mesh
    assert density.mesh.matrix is not None
    layer.float()
    assert len(found) == 2
    assert layer(*(x.float() for x in inputs))[1].mesh is not density.mesh


def test_meshes_follow_what_a_function_has_learned() -> None:
    length, inputs = torch.tensor(0.3, dtype=DOUBLE, requires_grad=True), data()
    layer = make_layer("kernel", kernel=bell(length))
    layer(*inputs)
    length.data.mul_(0.5)
    assert apart(layer(*inputs)[0], fresh(layer, inputs, frozen(RBF, 0.15))) < 1e-6
    layer.score_proj.kernel = bell(0.1)
    assert apart(layer(*inputs)[0], fresh(layer, inputs, frozen(RBF, 0.1))) < 1e-6


# Learned alphas
@pytest.mark.parametrize("high", [3.0, math.inf])
def test_learned_alpha_starts_as_given_and_stays_in_its_range(high: float) -> None:
    alpha = LearnedAlpha(3, start=[1.1, 1.5, 1.9], high=high)
    torch.testing.assert_close(alpha(), torch.tensor([[1.1], [1.5], [1.9]]))
    for start in (1.75, torch.tensor([1.75, 1.75]), np.array([1.75, 1.75])):
        torch.testing.assert_close(LearnedAlpha(2, start)(), torch.tensor([[1.75], [1.75]]))
    for weight in (-1e4, 1e4):
        nn.init.constant_(alpha.weight, weight)
        assert ((alpha() >= 1.01) & (alpha() <= high)).all()
    alpha.reset_parameters()
    torch.testing.assert_close(alpha()[:, 0], torch.tensor([1.1, 1.5, 1.9]))
    half = LearnedAlpha(1, start=1.02).to(torch.bfloat16)
    assert half().dtype == torch.float32
    assert 1.015 < half().item() < 1.025


# Errors
def kernel(ndim: int = 1, **options: Any) -> Any:
    return make_layer("kernel", ndim=ndim, **options)


test_bad_settings_are_named = refused(
    [
        *(
            (
                lambda count=count: kernel(points=count),
                "points must be a tensor, or a positive .*got " + re.escape(repr(count)),
            )
            for count in (0, 2.5, True, (0.1, 0.2))
        ),
        (lambda: kernel(2, points=10), "points must be .*power ndim=2, got 10"),
        (lambda: kernel(points=torch.tensor([0.5, 1.5])), r"must be in the domain .*1.5"),
        (lambda: kernel(alpha=2.5), "alpha must be at most 2 .*got 2.5"),
        (lambda: kernel(kernel=lambda x, z: x), r"kernel must map .* to \(8, 8\).*, got \(8, 1\)"),
        (lambda: kernel(normalization="both"), "normalization must be .*got 'both'"),
        *(
            (lambda x=x: make_layer("mixture", components=x), f"components must be .*, got {x!r}")
            for x in (0, 2.5, True)
        ),
        (lambda: LearnedAlpha(0), "num_heads must be at least 1, got 0"),
        (lambda: LearnedAlpha(2, 2.0), "start must be .* between 1.01 and 2.0, got 2.0"),
        (lambda: LearnedAlpha(2, [1.5] * 3), r"start must be a number, or 2 of them, .*got \[1.5"),
        (lambda: kernel(alpha=LearnedAlpha(2, high=3.0)), "alpha must be at most 2.*got 3.0"),
        (lambda: make_layer(alpha=LearnedAlpha(3))(*data()), r"alpha must.*got shape \(3, 1\)"),
    ]
)


# Content
def test_content_is_an_inner_product_with_a_key_function() -> None:
    """Its density is the kernel family's on the functions of the basis."""
    layer, inputs = make_layer("content", alpha=1.5), data(30)
    query, key, _, positions = inputs
    with torch.no_grad():
        layer.score_proj.q_proj.weight.mul_(100)
    score, density = layer.score_proj, layer(*inputs)[1]
    keys = score.k_proj(key)
    ones = torch.ones_like(keys[..., :1])
    t = torch.linspace(0, 1, 1001, dtype=DOUBLE).expand(2, -1)
    function, one = (layer.regression.fit(positions, x)(t) for x in (keys, ones))
    centered = function - one * keys.mean(1, keepdim=True)
    queries, centered = (x.unflatten(-1, (2, 2)) for x in (score.q_proj(query), centered))
    f = torch.einsum("bqhe,bthe->tbhq", queries, centered) / math.sqrt(2)
    assert apart(density.score(t[0].reshape(-1, 1, 1, 1)), f) < 1e-10
    p = (1 + 0.5 * (f - density.log_normalizer)).clamp_min(0).square()
    assert apart(density.prob(t[0].reshape(-1, 1, 1, 1)), p) < 1e-9
    assert ((p == 0).double().mean((0, 1, 3)) > 0.1).all()


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("size", [1.0, 100.0])
def test_sharp_contents_are_resolved(alpha: float, size: float) -> None:
    """Nodes that layers keep are refined where exponentials of scores are narrower."""
    basis = GaussianRBF.grid(48, 0.03)
    regression = RidgeRegression(basis, 0.01)
    layer = ContinuousAttention(4, 2, regression, alpha, "content", batch_first=True)
    inputs = data(200, dtype=torch.float32)
    with torch.no_grad():
        spread = layer(*inputs)[1].score(torch.linspace(0, 1, 200).reshape(-1, 1, 1, 1)).std(0)
        layer.score_proj.q_proj.weight.mul_(size / float(spread.mean()))
        density = layer(*inputs)[1]
    exact = density.to_float64()
    assert apart(density.expect(basis).double(), exact.expect(basis.double())) < 2e-6


def test_contents_in_half_precision_have_the_domain_of_the_basis() -> None:
    """Neither 1001 nor 1100 is a number of bfloat16."""
    basis = GaussianRBF.grid(8, 20.0, low=1001.0, high=1100.0)
    layer = ContinuousAttention(4, 2, RidgeRegression(basis), 1.5, "content", dtype=torch.bfloat16)
    sequence = torch.randn(9, 1, 4, dtype=torch.bfloat16)
    _, density = layer(sequence, sequence, sequence, torch.linspace(1001, 1100, 9))
    assert density.mesh.axes[0].breaks[[0, -1]].tolist() == [1001, 1100]


def test_projections_of_contents_may_be_replaced() -> None:
    """As by dynamic quantisation: the new ones may have no attribute `weight`."""
    layer = ContinuousAttention(4, 2, RidgeRegression(GaussianRBF.grid(8, 0.1)), 1.5, "content")
    sequence = torch.randn(9, 1, 4)
    expected, _ = layer(sequence, sequence, sequence)
    for name in ("q_proj", "k_proj"):
        projection = getattr(layer.score_proj, name)
        setattr(layer.score_proj, name, nn.Sequential(projection))
    assert torch.equal(layer(sequence, sequence, sequence)[0], expected)


def test_reading_a_function_leaves_the_nodes_of_the_layer() -> None:
    """A compiled layer could not find them again."""
    basis = GaussianRBF.grid(100, 0.006)
    layer = ContinuousAttention(4, 2, RidgeRegression(basis), 1.5, KernelScore(8))
    nodes = layer.score_proj.mesh(basis).nodes
    layer(torch.randn(2, 1, 4), function=ValueFunction(Polynomial(1), torch.randn(1, 2, 4)))
    assert layer.score_proj.mesh(basis).nodes is nodes


def test_a_learned_basis_of_contents_is_not_compiled() -> None:
    """Its nodes would stay where they were when training began."""
    basis = GaussianRBF(nn.Parameter(torch.linspace(0, 1, 8)), 0.1)
    layer = ContinuousAttention(4, 2, RidgeRegression(basis), 1.5, "content")
    sequence = torch.randn(9, 1, 4)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="learned kernel or basis cannot be compiled"):
        compiled(sequence, sequence, sequence)
