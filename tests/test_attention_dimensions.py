"""The attention layer in the plane and in space: contexts, moments, padding, where heads start."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from layers import data, require_that_padding_is_ignored
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.distributions import Distribution

from sparsefam import (
    MultivariateBetaGaussian,
    MultivariateNormal,
    SparseDistribution,
    TruncatedParaboloid,
)
from sparsefam.attention import ContinuousAttention
from sparsefam.attention.sight import Sight
from sparsefam.bases import Fourier, GaussianRBF, Polynomial

DOUBLE = torch.float64
KINDS = [("quadratic", False), ("moments", False), ("moments", True)]
MEMBERS = {1.0: MultivariateNormal, 1.5: MultivariateBetaGaussian, 2.0: TruncatedParaboloid}
BOX = ((-1.0, 3.0), (0.0, 0.5))

every_kind = pytest.mark.parametrize(("score", "combine"), KINDS)


def make(score: str, combine: bool = False, alpha: Any = 2.0, **options: Any) -> Any:
    """A layer of two heads on four channels over the plane, in float64 and batch first."""
    options = {"batch_first": True, "dtype": DOUBLE, "penalty": 0.1, "ndim": 2} | options
    basis = options.pop("basis", None) or GaussianRBF.grid(9, 0.3, ndim=2)
    return ContinuousAttention(4, 2, basis, alpha, score, combine=combine, **options)


def disc_rule(alpha: float, radii: int, angles: int) -> tuple[Tensor, Tensor]:
    """Points u of the plane (Q, 2) and weights for the standard member: C (1 - |u|^2)^m du.

    Gauss-Legendre panels along the radius and equal steps of the angle.
    """
    x, w = map(torch.tensor, np.polynomial.legendre.leggauss(16))
    edge, panels = (9.0 if alpha == 1 else 1.0), radii // 16
    starts = torch.arange(panels, dtype=DOUBLE).unsqueeze(-1)
    r = ((starts + (x + 1) / 2) * edge / panels).flatten()
    if alpha == 1:
        mass = torch.exp(-r.square() / 2)
    else:
        m = 1 / (alpha - 1)
        mass = 2 * (m + 1) * (1 - r.square()) ** m
    mass = mass * r * (w / 2 * edge / panels).repeat(panels)
    turn = 2 * math.pi * torch.arange(angles, dtype=DOUBLE) / angles
    u = r[:, None, None] * torch.stack([turn.cos(), turn.sin()], -1)
    return u.reshape(-1, 2), (mass / angles).repeat_interleave(angles)


def integrate(
    density: SparseDistribution,
    function: Callable[[Tensor], Tensor],
    radii: int = 96,
    angles: int = 60,
) -> Tensor:
    """E_p[function] (B, heads, Lq, E), the rule above stretched over each density."""
    alpha = float(density.alpha.flatten()[0])
    u, weights = disc_rule(alpha, radii, angles)
    t = density.loc.unsqueeze(-2) + u @ density.scale_tril.mT
    return (weights.unsqueeze(-1) * function(t)).sum(-2)


def by_hand(layer: Any, query: Tensor, key: Tensor, value: Tensor, heads: Tensor) -> Tensor:
    """The context from each head's integral (B, heads, Lq, E) of the whole value function."""
    parts = [heads[:, h, :, 2 * h : 2 * h + 2] for h in range(2)]
    if layer.combine:
        weights, values = discrete(layer, query, key), layer.v_proj(value)
        parts = [parts[h] + weights[:, h] @ values[..., 2 * h : 2 * h + 2] for h in range(2)]
    return layer.out_proj(torch.cat(parts, -1))


def discrete(layer: Any, query: Tensor, key: Tensor) -> Tensor:
    """Weights (B, heads, Lq, L)."""
    source = layer.score_proj
    found: Tensor = source.weights(source(query, key), layer.alpha, 1.0, Sight())
    return found


# Contexts


@every_kind
@pytest.mark.parametrize("alpha", MEMBERS)
def test_context_is_the_integral_of_the_values(score: str, combine: bool, alpha: float) -> None:
    layer, (query, key, value, t) = make(score, combine, alpha), data(ndim=2)
    if score == "quadratic":
        nn.init.normal_(layer.score_proj.weight, std=0.5)
    context, density = layer(query, key, value, t)
    assert isinstance(density, MEMBERS[alpha])
    assert (density.batch_shape, density.event_shape) == ((2, 2, 3), (2,))
    heads = integrate(density, layer.regression.fit(t, layer.v_proj(value)))
    expected = by_hand(layer, query, key, value, heads)
    assert (context - expected).norm() < 1e-8 * expected.norm()


@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_reads_an_image_as_in_visual_question_answering(alpha: float) -> None:
    """Cells of a 14 x 14 grid, 100 Gaussians of covariance 0.001 I (Martins et al., 2020)."""
    basis = GaussianRBF.grid(100, math.sqrt(1e-3), ndim=2)
    layer = make("moments", alpha=alpha, basis=basis, penalty=0.01)
    ticks = (torch.arange(14, dtype=DOUBLE) + 0.5) / 14
    cells = torch.cartesian_prod(ticks, ticks)
    query, key, value = (x[:1] for x in data(196, ndim=2)[:3])
    query, key = query[:, :1], 2 * key
    _, density = layer(query, key, value, cells)
    function = layer.regression.fit(cells, layer.v_proj(value))
    if alpha == 1:
        # a normal under a normal is the normal of their difference
        rbf = layer.regression.basis
        spread = density.covariance_matrix + rbf.widths[0] ** 2 * torch.eye(2, dtype=DOUBLE)
        difference = torch.distributions.MultivariateNormal(density.loc, spread)
        centers = rbf.centers.reshape(100, 1, 1, 1, 2)
        features = difference.log_prob(centers).exp().movedim(0, -1)
        heads = torch.einsum("bhqn,bne->bhqe", features, function.coefficients)
    else:
        heads = integrate(density, function, radii=160, angles=300)
    expected = by_hand(layer, query, key, value, heads)
    for dtype, bound in ((DOUBLE, 1e-10), (torch.float32, 4e-6)):
        context, _ = layer.to(dtype)(*(x.to(dtype) for x in (query, key, value, cells)))
        assert (context - expected).norm() < bound * expected.norm()


@pytest.mark.parametrize("score", ["quadratic", "moments"])
@pytest.mark.parametrize("alpha", MEMBERS)
def test_reads_quadratic_functions_of_space(score: str, alpha: float) -> None:
    layer = make(score, alpha=alpha, ndim=3, basis=Polynomial(2, ndim=3), penalty=1e-3)
    query, key, value, t = data(30, ndim=3)
    context, density = layer(query, key, value, t)
    function = layer.regression.fit(t, layer.v_proj(value))
    mean, covariance = density.mean, density.covariance_matrix
    second = covariance + mean.unsqueeze(-1) * mean.unsqueeze(-2)
    rows, columns = torch.triu_indices(3, 3)
    features = torch.cat([torch.ones_like(mean[..., :1]), mean, second[..., rows, columns]], -1)
    heads = torch.einsum("bhqn,bne->bhqe", features, function.coefficients)
    expected = by_hand(layer, query, key, value, heads)
    assert (context - expected).norm() < 1e-9 * expected.norm()


def test_any_basis_serves() -> None:
    basis = Fourier([[1.0, 0.0], [2.0, -3.0]]) + GaussianRBF.grid(4, 0.3, ndim=2)
    layer, (query, key, value, t) = make("quadratic", basis=basis), data(ndim=2)
    context, density = layer(query, key, value, t)
    heads = integrate(density, layer.regression.fit(t, layer.v_proj(value)))
    expected = by_hand(layer, query, key, value, heads)
    assert (context - expected).norm() < 1e-8 * expected.norm()


@every_kind
def test_order_layout_and_sharing_do_not_matter(score: str, combine: bool) -> None:
    layer, (query, key, value, t) = make(score, combine), data(ndim=2)
    order = torch.randperm(9)
    expected, _ = layer(query, key, value, t)
    found, _ = layer(query, key[:, order], value[:, order], t[:, order])
    assert torch.allclose(found, expected, rtol=1e-9)
    shared = [layer(query, key, value, x)[0] for x in (t[:1].expand(2, -1, -1), t[:1], t[0])]
    assert torch.allclose(shared[1], shared[0], rtol=1e-10)
    assert torch.allclose(shared[2], shared[0], rtol=1e-10)
    layer.batch_first = False
    flipped, density = layer(*(x.transpose(0, 1) for x in (query, key, value)), t)
    assert torch.allclose(flipped.transpose(0, 1), expected)
    assert density.batch_shape == (2, 2, 3)


# Moments


@pytest.mark.parametrize("domain", [(0.0, 1.0), BOX])
@pytest.mark.parametrize("alpha", MEMBERS)
def test_moments_are_those_of_the_weights(alpha: float, domain: Any) -> None:
    layer, (query, key, value, t) = make("moments", alpha=alpha, domain=domain), data(ndim=2)
    _, density = layer(query, key, value, t)
    weights = discrete(layer, query, key)
    assert torch.allclose(density.mean, torch.einsum("bhql,bld->bhqd", weights, t), rtol=1e-12)
    offset = t[:, None, None] - density.mean.unsqueeze(-2)
    expected = torch.einsum("bhql,bhqld,bhqle->bhqde", weights, offset, offset)
    expected = expected + torch.diag(floor(domain))
    assert torch.allclose(density.covariance_matrix, expected, rtol=1e-9, atol=1e-15)


def floor(domain: Any) -> Tensor:
    sides = torch.tensor(domain, dtype=DOUBLE).expand(2, 2).diff().squeeze(-1)
    return (1e-3 * sides).square()


@pytest.mark.parametrize("domain", [(0.0, 1.0), BOX])
@pytest.mark.parametrize("alpha", MEMBERS)
def test_one_observation_has_a_valid_density(alpha: float, domain: Any) -> None:
    layer, (query, key, value, t) = make("moments", alpha=alpha, domain=domain), data(1, ndim=2)
    context, density = layer(query, key, value, t)
    assert torch.allclose(density.mean, t[:, None].expand(2, 2, 3, 2), rtol=1e-12)
    covariance = torch.diag(floor(domain)).expand(2, 2, 3, 2, 2)
    assert torch.allclose(density.covariance_matrix, covariance, rtol=1e-9, atol=1e-20)
    assert context.isfinite().all()


@pytest.mark.filterwarnings("ignore:.*no function of the basis reaches")
@pytest.mark.parametrize("stretch", [1.0, 1e4])
def test_positions_on_a_line_have_a_valid_density(stretch: float) -> None:
    """Their covariance is singular, and rounding may make it worse than that."""
    layer = make("moments", dtype=torch.float32)
    query, key, value, _ = (x.float() for x in data(500, ndim=2))
    along = torch.rand(2, 500, 1)
    t = (stretch * (0.3 + along * torch.tensor([0.7, -0.2]))).requires_grad_()
    context, density = layer(query, key, value, t)
    (slope,) = torch.autograd.grad(density.covariance_matrix.sum() + context.sum(), t)
    assert context.isfinite().all() and slope.isfinite().all()
    across = torch.tensor([0.2, 0.7]) / math.hypot(0.2, 0.7)
    thickness = torch.einsum("i,bhqij,j->bhq", across, density.covariance_matrix, across)
    assert (thickness > 0).all() and (thickness < 1e-6 * max(1.0, 10 * stretch**2)).all()


# Padding


@every_kind
@pytest.mark.parametrize("alpha", MEMBERS)
def test_padding_changes_neither_context_nor_gradients(
    score: str, combine: bool, alpha: float
) -> None:
    require_that_padding_is_ignored(make(score, combine, alpha), data(ndim=2))


# Parameters


@pytest.mark.parametrize("ndim", [2, 3])
@pytest.mark.parametrize("heads", [1, 4, 8, 16])
def test_heads_start_spread_over_the_domain(heads: int, ndim: int) -> None:
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
    layer, (query, key, value, t) = make("quadratic", domain=BOX), data(ndim=2)
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
    unit, (query, key, value, t) = make("quadratic"), data(ndim=2)
    nn.init.normal_(unit.score_proj.weight)
    wide = make("quadratic", domain=BOX)
    wide.load_state_dict(unit.state_dict())
    (_, small), (_, large) = (layer(query, key, value, t) for layer in (unit, wide))
    low, span = torch.tensor([-1.0, 0.0], dtype=DOUBLE), torch.tensor([4.0, 0.5], dtype=DOUBLE)
    assert torch.allclose(large.loc, low + span * small.loc, rtol=1e-12)
    assert torch.allclose(large.sigma_tril, span.unsqueeze(-1) * small.sigma_tril, rtol=1e-10)


def test_alpha_is_learned_per_head() -> None:
    alpha = nn.Parameter(torch.tensor([[1.3], [2.2]], dtype=DOUBLE))
    inputs = data(5, ndim=2)
    for score in ("quadratic", "moments"):
        layer = make(score, alpha=alpha)

        def context(alpha: Tensor, layer: Any = layer) -> Tensor:
            return torch.func.functional_call(layer, {"alpha": alpha}, inputs)[0]

        assert gradcheck(context, (alpha,), rtol=1e-4, atol=1e-7)
        assert torch.equal(layer(*inputs)[1].alpha, alpha.expand(2, 2, 3))


@every_kind
@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_gradients_of_the_whole_layer(score: str, combine: bool, alpha: float) -> None:
    layer, (query, key, value, t) = make(score, combine, alpha), data(4, ndim=2)
    inputs = [x.requires_grad_() for x in (query[:, :1], key, value, t)]
    weights = dict(layer.named_parameters())

    def context(*inputs: Tensor) -> Tensor:
        parameters = dict(zip(weights, inputs[4:], strict=True))
        found: Tensor = torch.func.functional_call(layer, parameters, inputs[:4])[0]
        return found

    assert gradcheck(context, (*inputs, *weights.values()), atol=1e-6, fast_mode=True)


@every_kind
def test_state_dict_round_trip(score: str, combine: bool) -> None:
    layer, twin, inputs = make(score, combine), make(score, combine), data(ndim=2)
    assert not torch.allclose(twin(*inputs)[0], layer(*inputs)[0])
    twin.load_state_dict(layer.state_dict())
    assert torch.equal(twin(*inputs)[0], layer(*inputs)[0])


@every_kind
@pytest.mark.parametrize("alpha", MEMBERS)
def test_float32_follows_float64(score: str, combine: bool, alpha: float) -> None:
    layer, inputs = make(score, combine, alpha), data(ndim=2)
    expected, _ = layer(*inputs)
    context, density = layer.float()(*(x.float() for x in inputs))
    assert (context.dtype, density.scale_tril.dtype) == (torch.float32, torch.float32)
    assert (context - expected).norm() < 5e-6 * expected.norm()


@pytest.mark.parametrize(("score", "alpha"), [("quadratic", 2.0), ("moments", 2.0)])
def test_compiles_whole(score: str, alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    # torch cannot trace its own validation of distributions, and so switches it off itself.
    monkeypatch.setattr(Distribution, "_validate_args", False)
    layer, inputs = make(score, alpha=alpha), data(ndim=2)
    padding = (torch.arange(9) >= 7).expand(2, 9)
    torch._dynamo.reset()
    compiled = torch.compile(lambda *inputs: layer(*inputs)[0], fullgraph=True, backend="aot_eager")
    expected, _ = layer(*inputs, padding)
    assert torch.allclose(compiled(*inputs, padding), expected, rtol=1e-10)


# Errors


@pytest.mark.parametrize("kind", ["widths", "covariance", "line"])
def test_positions_out_of_reach_are_told_once(kind: str) -> None:
    """Such as pixels, where the basis is on the unit square."""
    ndim = 1 if kind == "line" else 2
    basis = GaussianRBF.grid(9, 0.1, ndim=ndim)
    if kind == "covariance":
        basis = GaussianRBF(basis.centers, covariance=torch.tensor([[0.01, 0.0], [0.0, 0.04]]))
    layer = make("quadratic", basis=basis, ndim=ndim, validate_args=True)
    query, key, value, t = data(8, ndim=None if ndim == 1 else 2)
    # In reach are 9.5 deviations of 0.1 (or 0.2) beyond the outermost centers, 0 and 1.
    t[:, 0], t[:, 1:3] = -1.0, 1.9
    t[0, 5].view(-1)[-1] = 3.0
    padding = torch.zeros(2, 8, dtype=torch.bool)
    padding[1, 0] = True
    with pytest.warns(UserWarning, match=r"0\.13 of the positions are where") as told:
        layer(query, key, value, t, padding)
        layer(query, key, value, t, padding)
    assert len(told) == 1


LINE, PLANE = GaussianRBF.grid(4, 0.2), GaussianRBF.grid(4, 0.2, ndim=2)
Q, K, V, T = torch.zeros(2, 3, 4), torch.zeros(2, 9, 4), torch.zeros(2, 9, 4), torch.zeros(2, 9, 2)
LAYER = ContinuousAttention(4, 2, PLANE, ndim=2, batch_first=True, validate_args=True)
PADDING = torch.zeros(2, 9, dtype=torch.bool)


def build(basis: Any = PLANE, ndim: int = 2, **options: Any) -> ContinuousAttention:
    return ContinuousAttention(4, 2, basis, ndim=ndim, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: build(LINE), r"basis must take .* shape \(2,\) for ndim=2, got \(\)"),
        (lambda: build(ndim=1), r"basis must take .* shape \(\) for ndim=1, got \(2,\)"),
        (lambda: build(ndim=3), r"basis must take .* shape \(3,\) for ndim=3, got \(2,\)"),
        (lambda: build(ndim=0), "ndim must be at least 1, got 0"),
        (lambda: build(domain=(1.0, 0.0)), r"domain must be .* 2 such pairs, got \(1.0, 0.0\)"),
        (lambda: build(domain=((0.0, 1.0),)), r"domain must be .*got \(\(0.0, 1.0\),\)"),
        (lambda: build(domain=((0.0, 1.0), (0.0, math.inf))), "domain must be .*inf"),
        (lambda: build(domain=((0.0, 1.0), 2.0)), "domain must be .*2.0"),
        (lambda: LAYER(Q, K, V, T[..., 0]), r"positions must .*\(2, 9, 2\).*got \(2, 9\)"),
        (lambda: LAYER(Q, K, V, T[..., :1]), r"positions must .*\(9, 2\).*got \(2, 9, 1\)"),
        (lambda: LAYER(Q, K, V, T[:, :5]), r"positions must .*got \(2, 5, 2\)"),
        (
            lambda: LAYER(Q, K, V, T, ~PADDING),
            "key_padding_mask must leave every .*index .0.",
        ),
        (lambda: LAYER(Q, K, V, T / 0), "positions must be finite.*got nan at index .0, 0, 0."),
    ],
)
def test_bad_arguments_are_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
