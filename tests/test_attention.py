"""The attention layer: padding, moments, contexts against brute-force integrals."""

import math
from collections.abc import Callable
from typing import Any

import entmax
import numpy as np
import pytest
import torch
from layers import data, require_that_padding_is_ignored
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.distributions import Distribution

from sparsefam import BetaGaussian, Mixture, Normal, SparseDistribution, TruncatedParabola
from sparsefam.attention import ContinuousAttention, RidgeRegression
from sparsefam.attention.sight import Sight
from sparsefam.bases import Fourier, GaussianRBF
from sparsefam.numerics.deformed import log_beta

DOUBLE = torch.float64
KINDS = [("quadratic", False), ("moments", False), ("moments", True)]
ALPHAS = [1.0, 1.5, 2.0]

every_score = pytest.mark.parametrize("score", ["quadratic", "moments", "kernel", "mixture"])
every_kind = pytest.mark.parametrize(("score", "combine"), KINDS)


def make(score: str, combine: bool = False, alpha: Any = 2.0, **options: Any) -> Any:
    """A layer of two heads on four channels, in float64 and batch first."""
    options = {"batch_first": True, "dtype": DOUBLE, "penalty": 0.1} | options
    return ContinuousAttention(
        4, 2, GaussianRBF.grid(10, 0.15), alpha, score, combine=combine, **options
    )


def integrate(density: SparseDistribution, function: Callable[[Tensor], Tensor]) -> Tensor:
    """E_p[function] by 200 panels of 16 Gauss nodes over the support, or 10 scales each way."""
    nodes, weights = map(torch.tensor, np.polynomial.legendre.leggauss(16))
    edge = 10.0 if isinstance(density, Normal) else 1.0
    centers = torch.linspace(-edge, edge, 401, dtype=DOUBLE)[1::2]
    half = edge / 200
    x = (centers.unsqueeze(-1) + half * nodes).flatten()
    t = density.loc.unsqueeze(-1) + density.scale.unsqueeze(-1) * x
    mass = torch.exp(density.log_prob(t.movedim(-1, 0))).movedim(0, -1)
    mass = mass * (half * weights).repeat(200) * density.scale.unsqueeze(-1)
    return (mass.unsqueeze(-1) * function(t)).sum(-2)


# Contexts


@every_kind
@pytest.mark.parametrize("alpha", ALPHAS)
def test_context_is_the_integral_of_the_values(score: str, combine: bool, alpha: float) -> None:
    layer, (query, key, value, t) = make(score, combine, alpha), data()
    context, density = layer(query, key, value, t)
    assert density.batch_shape == (2, 2, 3)
    assert isinstance(density, {1.0: Normal, 1.5: BetaGaussian, 2.0: TruncatedParabola}[alpha])
    values = layer.v_proj(value)
    function = layer.regression.fit(t, values)
    heads = integrate(density, function).unflatten(-1, (2, 2))
    parts = [heads[:, h, :, h] for h in range(2)]
    if combine:
        weights = discrete(layer, query, key, alpha)
        parts = [parts[h] + weights[:, h] @ values[..., 2 * h : 2 * h + 2] for h in range(2)]
    expected = layer.out_proj(torch.cat(parts, -1))
    assert (context - expected).norm() < 1e-9 * expected.norm()


def discrete(layer: ContinuousAttention, query: Tensor, key: Tensor, alpha: float) -> Tensor:
    """Weights of each head by hand, (B, heads, Lq, L)."""
    source = layer.score_proj if layer.score == "moments" else layer.discrete_proj
    queries, keys = source.q_proj(query), source.k_proj(key)
    scores = [queries[..., c] @ keys[..., c].mT / math.sqrt(2) for c in (slice(2), slice(2, 4))]
    maps = {1.0: torch.softmax, 1.5: entmax.entmax15, 2.0: entmax.sparsemax}
    return torch.stack([maps[alpha](s, -1) for s in scores], 1)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_moments_are_those_of_the_weights(alpha: float) -> None:
    layer, (query, key, value, t) = make("moments", alpha=alpha), data()
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
    layer, (query, key, value, t) = make("moments", alpha=alpha, domain=domain), data(1)
    context, density = layer(query, key, value, t)
    assert torch.allclose(density.mean, t[:, None].expand(2, 2, 3), rtol=1e-12)
    floor = 1e-3 * (domain[1] - domain[0])
    assert torch.allclose(density.stddev, torch.full((2, 2, 3), floor, dtype=DOUBLE), rtol=1e-9)
    assert context.isfinite().all()


@every_kind
@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_constant_sequences_are_read_as_constants(score: str, combine: bool, alpha: float) -> None:
    layer = make(score, combine, alpha, penalty=1e-4)
    for name in ("q_proj", "k_proj"):
        nn.init.eye_(getattr(layer.score_proj, name, layer.out_proj).weight)
    for projection in (layer.v_proj, layer.out_proj):
        nn.init.eye_(projection.weight)
    level = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=DOUBLE)
    t = torch.linspace(-0.5, 1.5, 80, dtype=DOUBLE)
    basis = layer.regression.basis
    basis.centers, basis.widths = (
        torch.linspace(-1, 2, 40, dtype=DOUBLE),
        torch.full_like(t[0], 0.15),
    )
    # Weights that fall off as a Gaussian of deviation 0.08 around the middle.
    key = -60 * (t - 0.5).square().reshape(80, 1).expand(2, 80, 4)
    context, density = layer(torch.ones(2, 3, 4, dtype=DOUBLE), key, level.expand(2, 80, 4), t)
    assert ((density.mean - 0.5).abs() + 3 * density.stddev < 1).all()
    expected = (2 if combine else 1) * level
    assert torch.allclose(context, expected.expand(2, 3, 4), rtol=1e-3)


@every_kind
def test_order_of_the_sequence_does_not_matter(score: str, combine: bool) -> None:
    layer, (query, key, value, t) = make(score, combine), data()
    order = torch.randperm(9)
    context, _ = layer(query, key[:, order], value[:, order], t[:, order])
    assert torch.allclose(context, layer(query, key, value, t)[0], rtol=1e-9)


@every_kind
def test_layouts_agree(score: str, combine: bool) -> None:
    layer, (query, key, value, t) = make(score, combine), data()
    context, _ = layer(query, key, value, t)
    layer.batch_first = False
    flipped, density = layer(*flip(query, key, value), t)
    assert torch.allclose(flipped.transpose(0, 1), context)
    assert density.batch_shape == (2, 2, 3)


def flip(*tensors: Tensor) -> list[Tensor]:
    return [tensor.transpose(0, 1) for tensor in tensors]


@every_kind
def test_shared_positions_are_those_of_every_example(score: str, combine: bool) -> None:
    layer, (query, key, value, t) = make(score, combine), data()
    expected, _ = layer(query, key, value, t[:1].expand(2, -1))
    for shared in (t[0], t[:1]):
        assert torch.allclose(layer(query, key, value, shared)[0], expected, rtol=1e-10)


@every_score
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("combine", [False, True])
def test_no_queries_or_examples_have_no_contexts(score: str, alpha: float, combine: bool) -> None:
    layer, inputs = make(score, combine, alpha), data()
    for batch, queries, penalty in ((2, 0, 0.1), (0, 3, 0.1), (0, 3, "gcv")):
        layer.regression.penalty = penalty
        parts = (inputs[0][:batch, :queries], *(x[:batch] for x in inputs[1:]))
        mask = torch.zeros(queries, 9, dtype=torch.bool) if combine else None
        context, density = layer(*parts, attn_mask=mask)
        assert context.shape == (batch, queries, 4)
        assert density.batch_shape == (batch, 2, queries)
        (slope,) = torch.autograd.grad(context.sum(), layer.out_proj.weight)
        assert not slope.any()


@every_score
@pytest.mark.parametrize("alpha", ALPHAS)
def test_discrete_contexts_are_added(score: str, alpha: float) -> None:
    layer, plain = make(score, True, alpha), make(score, False, alpha)
    plain.load_state_dict(layer.state_dict(), strict=False)
    query, key, value, t = data()
    weights = discrete(layer, query, key, alpha)
    values = layer.v_proj(value)
    parts = [weights[:, h] @ values[..., 2 * h : 2 * h + 2] for h in range(2)]
    expected = torch.cat(parts, -1) @ layer.out_proj.weight.mT
    found = layer(query, key, value, t)[0] - plain(query, key, value, t)[0]
    assert (found - expected).norm() < 1e-9 * expected.norm()


@pytest.mark.parametrize("score", ["quadratic", "kernel", "mixture"])
@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_temperature_divides_scores(score: str, alpha: float) -> None:
    """Up to a constant, the deformed logarithm of a density is its score."""
    layer, inputs = make(score, alpha=alpha), data()
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


def test_temperature_divides_discrete_scores() -> None:
    layer, (query, key, value, t) = make("moments", alpha=1.0, temperature=0.2), data()
    weights = torch.softmax(layer.score_proj(query, key) / 0.2, -1)
    _, density = layer(query, key, value, t)
    assert torch.allclose(density.mean, torch.einsum("bhql,bl->bhq", weights, t), rtol=1e-12)


# Padding


@every_kind
@pytest.mark.parametrize("alpha", ALPHAS)
def test_padding_changes_neither_context_nor_gradients(
    score: str, combine: bool, alpha: float
) -> None:
    require_that_padding_is_ignored(make(score, combine, alpha), data())


@pytest.mark.parametrize("alpha", [*ALPHAS, torch.tensor(1.3, dtype=DOUBLE)], ids=str)
def test_weights_of_padding_are_exactly_zero(alpha: Tensor | float) -> None:
    layer, (query, key, _, _) = make("moments", alpha=alpha), data()
    mask = torch.rand(2, 9) < 0.5
    mask[:, 0] = True
    scores = layer.score_proj(query, key)
    weights = layer.score_proj.weights(scores, layer.alpha, 1.0, Sight(mask))
    assert not weights[(~mask)[:, None, None].expand_as(weights)].any()
    assert torch.allclose(weights.sum(-1), torch.ones(2, 2, 3, dtype=DOUBLE))


# Parameters


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


@every_score
def test_layers_are_the_same_under_a_seed(score: str) -> None:
    found = []
    for _ in range(2):
        torch.manual_seed(7)
        layer, inputs = make(score, combine=True), data()
        context = layer(*inputs)[0]
        wanted = [x for x in layer.parameters() if x.requires_grad]
        found.append([context, *torch.autograd.grad(context.square().sum(), wanted)])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_sigma_stays_above_its_floor() -> None:
    layer, (query, key, value, t) = make("quadratic", domain=(0.0, 5.0)), data()
    nn.init.constant_(layer.score_proj.bias, -1e4)
    context, density = layer(query, key, value, t)
    assert torch.allclose(density.sigma, torch.full((2, 2, 3), 5e-3, dtype=DOUBLE))
    assert torch.equal(density.loc, torch.zeros(2, 2, 3, dtype=DOUBLE))
    assert context.isfinite().all()


def test_key_and_value_may_have_their_own_channels() -> None:
    layer = make("moments", kdim=3, vdim=5)
    query, _, _, t = data()
    key, value = torch.randn(2, 9, 3, dtype=DOUBLE), torch.randn(2, 9, 5, dtype=DOUBLE)
    assert layer(query, key, value, t)[0].shape == (2, 3, 4)


@pytest.mark.parametrize("score", ["quadratic", "moments"])
def test_alpha_is_learned_per_head(score: str) -> None:
    alpha = nn.Parameter(torch.tensor([[1.3], [2.2]], dtype=DOUBLE))
    layer, inputs = make(score, alpha=alpha), data()
    assert dict(layer.named_parameters())["alpha"] is alpha

    def context(alpha: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"alpha": alpha}, inputs)[0]

    assert gradcheck(context, (alpha,), rtol=1e-4, atol=1e-7)
    _, density = layer(*inputs)
    assert torch.equal(density.alpha, alpha.expand(2, 2, 3))


@every_kind
@pytest.mark.parametrize("alpha", ALPHAS)
def test_gradients_of_the_whole_layer(score: str, combine: bool, alpha: float) -> None:
    layer, (query, key, value, t) = make(score, combine, alpha), data(3)
    inputs = tuple(x.requires_grad_() for x in (query[:, :1], key, value, t))
    assert gradcheck(lambda *inputs: layer(*inputs)[0], inputs, atol=1e-6, fast_mode=True)


@every_kind
def test_state_dict_round_trip(score: str, combine: bool) -> None:
    alpha = torch.tensor(1.4, dtype=DOUBLE)
    layer, twin = make(score, combine, alpha), make(score, combine, alpha + 1)
    inputs = data()
    assert not torch.allclose(twin(*inputs)[0], layer(*inputs)[0])
    twin.load_state_dict(layer.state_dict())
    assert torch.equal(twin(*inputs)[0], layer(*inputs)[0])
    tops = {name.split(".")[0] for name in layer.state_dict()}
    assert tops == {"alpha", "score_proj", "v_proj", "out_proj", "regression"}


@every_kind
def test_float32_follows_float64(score: str, combine: bool) -> None:
    layer, inputs = make(score, combine), data()
    expected, _ = layer(*inputs)
    context, density = layer.float()(*(x.float() for x in inputs))
    assert (context.dtype, density.loc.dtype) == (torch.float32, torch.float32)
    assert (context - expected).norm() < 5e-6 * expected.norm()


@pytest.mark.parametrize(
    ("score", "alpha", "options", "masked"),
    [
        ("quadratic", 2.0, {}, False),
        ("quadratic", 1.0, {"combine": True, "validate_args": True}, True),
        ("moments", torch.tensor([[1.2], [2.0]], dtype=DOUBLE), {}, False),
    ],
    ids=["quadratic", "masked", "moments"],
)
def test_compiles_whole(
    score: str,
    alpha: Tensor | float,
    options: dict[str, Any],
    masked: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # torch cannot trace its own validation of distributions, and so switches it off itself.
    monkeypatch.setattr(Distribution, "_validate_args", False)
    layer, inputs = make(score, alpha=alpha, **options), data()
    padding = (torch.arange(9) >= 7).expand(2, 9)
    mask = torch.arange(9) > torch.arange(3).unsqueeze(-1) + 3 if masked else None
    torch._dynamo.reset()
    compiled = torch.compile(lambda *inputs: layer(*inputs)[0], fullgraph=True, backend="aot_eager")
    found, expected = compiled(*inputs, padding, mask), layer(*inputs, padding, mask)[0]
    assert torch.allclose(found, expected, rtol=1e-10)
    parameters = list(layer.parameters())
    grads = [torch.autograd.grad(x.square().sum(), parameters) for x in (found, expected)]
    for one, other in zip(*grads, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)


def test_any_basis_serves() -> None:
    basis = Fourier([1.0, 3.0]) + GaussianRBF.grid(4, 0.2)
    layer, inputs = ContinuousAttention(4, 2, basis, batch_first=True, dtype=DOUBLE), data()
    context, density = layer(*inputs)
    function = RidgeRegression(basis).fit(inputs[3], layer.v_proj(inputs[2]))
    heads = integrate(density, function).unflatten(-1, (2, 2))
    expected = layer.out_proj(torch.cat([heads[:, 0, :, 0], heads[:, 1, :, 1]], -1))
    assert (context - expected).norm() < 1e-9 * expected.norm()


# Errors


BASIS = GaussianRBF.grid(4, 0.2)
Q, K, V, T = torch.zeros(2, 3, 4), torch.zeros(2, 9, 4), torch.zeros(2, 9, 4), torch.zeros(2, 9)
LAYER = ContinuousAttention(4, 2, BASIS, batch_first=True, validate_args=True)
PADDING = torch.zeros(2, 9, dtype=torch.bool)


def build(**options: Any) -> Any:
    return ContinuousAttention(
        **{"embed_dim": 4, "num_heads": 2, "basis": BASIS, "batch_first": True} | options
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ContinuousAttention(4, 3, BASIS), "embed_dim must be .*num_heads, got 4 and 3"),
        (lambda: ContinuousAttention(4, 0, BASIS), "embed_dim must be .*num_heads, got 4 and 0"),
        (lambda: ContinuousAttention(4, 2, BASIS, 0.5), "alpha must be at least 1, got 0.5"),
        (lambda: ContinuousAttention(4, 2, BASIS, math.nan), "alpha must be at least 1, got nan"),
        (lambda: build(alpha="2"), "alpha must be at least 1, got '2'"),
        (lambda: build(alpha=None), "alpha must be at least 1, got None"),
        (lambda: build(embed_dim="4"), "embed_dim must be .*num_heads, got 4 and 2"),
        (lambda: build(ndim=1.5), "ndim must be at least 1, got 1.5"),
        (lambda: build(domain=5.0), "domain must be two finite numbers that increase, got 5.0"),
        (lambda: build(domain=None), "domain must be two finite numbers that increase, got None"),
        (
            lambda: build(alpha=torch.full((5,), 1.5))(Q, K, V, T),
            r"alpha must broadcast to .* \(2, 2, 3\), got shape \(5,\)",
        ),
        (
            lambda: build(alpha=torch.full((2, 1, 1, 1), 1.5), score="moments")(Q, K, V, T),
            r"alpha must broadcast to .* \(2, 2, 3\), got shape \(2, 1, 1, 1\)",
        ),
        (
            lambda: build(alpha=torch.full((2, 1, 1), 1.5))(Q[:1], K[:1], V[:1], T[:1]),
            r"alpha must broadcast to .* \(1, 2, 3\), got shape \(2, 1, 1\)",
        ),
        (lambda: ContinuousAttention(4, 2, BASIS, 2.0, "kernels"), "score must be .*got 'kernels'"),
        (
            lambda: ContinuousAttention(4, 2, BASIS, domain=(1.0, 1.0)),
            r"domain must be two finite numbers that increase, got \(1.0, 1.0\)",
        ),
        (lambda: ContinuousAttention(4, 2, BASIS, penalty=-1.0), "penalty must .*got -1.0"),
        (lambda: LAYER(Q, K, V, T.mT), r"positions must .*got \(9, 2\).*batch_first=True"),
        (lambda: LAYER(Q[..., :3], K, V, T), r"query must .*\(2, 3, 4\), got \(2, 3, 3\)"),
        (lambda: LAYER(Q[0], K, V, T), r"query must .*got \(3, 4\)"),
        (lambda: LAYER(Q, K[:, :5], V, T), r"key must .*\(2, 9, 4\), got \(2, 5, 4\)"),
        (lambda: LAYER(Q, *flip(K, V), T), r"key must .*got \(9, 2, 4\).*batch_first=True; is"),
        (lambda: LAYER(Q, K, V[0], T), "value must|key must"),
        (lambda: LAYER(Q, K, V, T, PADDING.float()), "key_padding_mask must be boolean"),
        (lambda: LAYER(Q, K, V, T, PADDING[:1]), r"key_padding_mask must .*got .*\(1, 9\)"),
        *(
            (
                lambda score=score: build(score=score)(Q, K, V, T, ~PADDING),
                "key_padding_mask must leave every example a position to read, got 0 at index .0.",
            )
            for score in ("quadratic", "moments")
        ),
        (lambda: LAYER(Q, K, V, T / 0), "positions must be finite.*got nan at index .0, 0."),
        (
            lambda: LAYER(Q, K[:, :0], V[:, :0], T[:, :0]),
            r"value must .*got shape \(2, 0, 4\)",
        ),
        (lambda: LAYER(Q + 0j, K, V, T), "query must be floating, .* got torch.complex"),
        (lambda: LAYER(Q, K, V.long(), T), "value must be floating, .* got torch.int64"),
        (lambda: LAYER(Q.double(), K, V, T), "query must be torch.float32 .* got torch.float64"),
        (lambda: LAYER(Q, K.half(), V, T), "key must be torch.float32 .* got torch.float16"),
        (lambda: LAYER(Q, K, V, PADDING), "positions must be real numbers, got torch.bool"),
        (lambda: build(alpha=nn.Linear(2, 2)), "alpha must be a module .* got Linear"),
        (lambda: build(bias=None), "bias must be True or False, got None"),
        (lambda: build(batch_first=1), "batch_first must be True or False, got 1"),
        (lambda: build(dtype=torch.complex64), "dtype must be floating, got torch.complex64"),
        (
            lambda: setattr(build().regression, "chunk_size", 0),
            "chunk_size must be a positive integer, got 0",
        ),
        (lambda: build(penalty=np.ones(2)), r"penalty must .*got array\(\[1., 1.\]\)"),
        (lambda: LAYER(Q, K, V, T + 0j), "positions must be real numbers, got torch.complex"),
        (lambda: build(combine="no"), "combine must be True or False, got 'no'"),
        (lambda: LAYER(Q / 0, K, V, T), "query must be finite .*got nan at index .0, 0, 0."),
        (lambda: LAYER(Q, K / 0, V, T), "key must be finite .*got nan at index .0, 0, 0."),
        (lambda: LAYER(Q, K, V - math.inf, T), "value must be finite .*got -inf at index .0, 0, 0"),
        (lambda: LAYER(Q, K, V, None), "positions must be a tensor, got None"),
        (lambda: LAYER(Q, K, V, T, [True]), r"key_padding_mask must be a tensor, got \[True\]"),
        (lambda: build(penalty=None), "penalty must .*got None"),
        (lambda: build(basis=None), "basis must be a Basis, got None"),
        (lambda: build(kdim="3"), "kdim must be a positive integer, got '3'"),
        (lambda: build(vdim=0), "vdim must be a positive integer, got 0"),
        *(
            (
                lambda temperature=temperature: build(temperature=temperature),
                f"temperature must be positive and finite, got {temperature!r}",
            )
            for temperature in (0, -1.0, math.inf, math.nan, "1", None)
        ),
        (lambda: setattr(build(), "temperature", -1.0), "temperature must be positive .*got -1.0"),
        (
            lambda: build(penalty=0.0)(Q, K[:, :3], V[:, :3], T[:, :3]),
            "penalty must be positive with fewer observations than functions, 4, got 3",
        ),
    ],
)
def test_bad_arguments_are_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
