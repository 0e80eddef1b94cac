"""The attention layer: contexts by hand, gradients, state, errors."""

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from battery import DOUBLE, SINGLE, one_graph
from layers import (
    KINDS,
    SCORES,
    data,
    every_score,
    join,
    located,
    make_layer,
    spread,
    with_regression,
)
from pyro.contrib.gp.kernels import RBF
from refusals import refused
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.autograd import gradcheck

from sparsefam import SparseDistribution
from sparsefam.attention import (
    ContinuousAttention,
    ForgettingMemory,
    LearnedAlpha,
    RidgeRegression,
    ValueFunction,
)
from sparsefam.attention._masks import AttentionMask
from sparsefam.bases import GaussianRBF, Polynomial

every_kind = pytest.mark.parametrize(("score", "combine"), KINDS)


def by_expectations(density: SparseDistribution, function: ValueFunction) -> Tensor:
    found = torch.einsum("bhqn,bne->bhqe", density.expect(function.basis), function.coefficients)
    return found if function.constant is None else found + function.constant[:, None, None]


def by_hand(layer: Any, inputs: Any, heads: Tensor) -> Tensor:
    """The context from each head's integral (B, heads, Lq, E) of the whole value function."""
    query, key, value, _ = inputs
    parts = [heads[:, h, :, 2 * h : 2 * h + 2] for h in range(2)]
    if layer.combine:
        source = layer.discrete_proj or layer.score_proj
        weights = source.weights(source(query, key), layer.alpha, 1.0, AttentionMask())
        values = layer.v_proj(value)
        parts = [parts[h] + weights[:, h] @ values[..., 2 * h : 2 * h + 2] for h in range(2)]
    return join(layer, torch.stack(parts, -2))


# Contexts
@pytest.mark.parametrize(
    ("score", "combine", "alpha", "ndim"),
    [
        ("quadratic", False, 2.0, 1),
        ("quadratic", False, 1.5, 2),
        ("quadratic", True, 1.0, 1),
        ("moments", True, 1.5, 1),
        ("moments", True, 2.0, 2),
        ("quadratic", True, 1.0, 2),
        *((score, False, alpha, 1) for score in ("mixture", "kernel") for alpha in (1.0, 2.0)),
        ("mixture", False, 1.5, 2),
        ("kernel", False, 1.5, 2),
    ],
)
def test_context_is_the_integral_of_the_values(
    score: str, combine: bool, alpha: float, ndim: int
) -> None:
    """Over disjoint intervals, too, and of positions that examples share; float32 follows."""
    layer, inputs = make_layer(score, combine, alpha, ndim=ndim), data(ndim=ndim)
    with torch.no_grad():
        if score == "quadratic":
            nn.init.normal_(layer.score_proj.weight, std=0.5)
        elif score in ("mixture", "kernel") and ndim == 1:
            layer.score_proj.weight.mul_({"mixture": 5.0, "kernel": 30.0}[score])
            if score == "mixture" and alpha == 2:  # narrow components
                layer.score_proj.bias[12:] = -4.0
    context, density = layer(*inputs)
    assert (context.shape, density.batch_shape) == ((2, 3, 4), (2, 2, 3))
    function = layer.regression.fit(inputs[3], layer.v_proj(inputs[2]))
    expected = by_hand(layer, inputs, by_expectations(density, function))
    assert (context - expected).norm() < 1e-8 * expected.norm()
    several = score in ("mixture", "kernel") and alpha > 1 and ndim == 1
    assert not several or (density.support.count > 1).any()
    *sequences, t = inputs
    each, *shared = (layer(*sequences, x)[0] for x in (t[:1].expand_as(t), t[:1], t[0]))
    for found in shared:
        torch.testing.assert_close(found, each, rtol=1e-10, atol=1e-12)
    single, density = layer.float()(*(x.float() for x in inputs))
    assert (single.dtype, density.mean.dtype) == (torch.float32, torch.float32)
    assert (single - expected).norm() < 2e-6 * expected.norm()


@pytest.mark.parametrize(("score", "combine"), [*((x, False) for x in SCORES), ("moments", True)])
def test_no_queries_or_examples_have_no_contexts(score: str, combine: bool) -> None:
    layer, inputs = make_layer(score, combine, 1.5), data()
    for batch, queries, smoothing in ((2, 0, 0.1), (0, 3, 0.1), (0, 3, "gcv")):
        layer.regression.smoothing = smoothing
        parts = (inputs[0][:batch, :queries], *(x[:batch] for x in inputs[1:]))
        mask = torch.zeros(queries, 9, dtype=torch.bool) if combine else None
        context, density = layer(*parts, attn_mask=mask)
        assert context.shape == (batch, queries, 4)
        assert density.batch_shape == (batch, 2, queries)
        (slope,) = torch.autograd.grad(context.sum(), layer.out_proj.weight)
        assert not slope.any()


# In the place of torch's attention
@every_score
def test_positions_left_out_are_spread_over_the_domain(score: str) -> None:
    layer, (query, key, value, _) = make_layer(score, domain=(-3.0, 7.0)), data()
    found, density = layer(query, key, value)
    even = torch.linspace(-3.0, 7.0, 19, dtype=DOUBLE)[1::2]  # nine cells
    expected = layer(query, key, value, even)
    assert torch.allclose(found, expected[0], rtol=1e-9)
    assert torch.allclose(density.mean, expected[1].mean, rtol=1e-9)
    padding = torch.zeros(2, 9, dtype=torch.bool)
    padding[0, :2] = padding[0, 5] = padding[1, 4:] = True
    for masks in (padding, torch.zeros(2, 9).masked_fill(padding, -math.inf)):
        context = layer(query, key, value, key_padding_mask=masks)[0]
        for b in range(2):
            alone = (x[b, ~padding[b]] for x in (key, value))
            assert torch.allclose(context[b], layer(query[b], *alone)[0], rtol=1e-9)


@pytest.mark.parametrize(
    ("score", "norm_first"), [("kernel", False), ("moments", True), ("local", True)]
)
def test_torch_encoders_call_the_layer(score: str, norm_first: bool) -> None:
    options = {"batch_first": True, "dtype": DOUBLE, "norm_first": norm_first}
    block, x = nn.TransformerEncoderLayer(4, 2, 8, 0.0, **options), data()[1]
    block.self_attn = make_layer(score)
    padding = torch.arange(9).expand(2, 9) >= torch.tensor([[6], [9]])
    encoder = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
    causal = nn.Transformer.generate_square_subsequent_mask(9, dtype=DOUBLE)

    def by_hand(x: Tensor, **masks: Any) -> Tensor:
        for _ in range(2):
            read = block.norm1(x) if norm_first else x
            x = x + block.self_attn(read, read, read, **masks)[0]
            x = x if norm_first else block.norm1(x)
            change = block.linear2(block.linear1(block.norm2(x) if norm_first else x).relu())
            x = x + change if norm_first else block.norm2(x + change)
        return x

    for training in (True, False):
        encoder.train(training)
        with torch.set_grad_enabled(training):
            found = encoder(x, src_key_padding_mask=padding)
            assert torch.allclose(found, by_hand(x, key_padding_mask=padding), rtol=1e-9)
            assert torch.allclose(encoder(x[0, :6]), found[0, :6], rtol=1e-9)
            found = encoder(x, mask=causal)
            assert torch.allclose(found, by_hand(x, attn_mask=causal), rtol=1e-9)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = encoder.float()(x.float(), causal.float())
    assert (rounded - found).norm() < 16 * UNITS[torch.bfloat16] * found.norm()


# Weights of observations
PADDED = (torch.arange(9) >= 7).expand(2, 9)
LATER = torch.arange(9) > torch.arange(3).unsqueeze(-1) + 3


@pytest.mark.filterwarnings("ignore:in .* of the contexts:UserWarning")  # of noise, by gcv
@pytest.mark.parametrize("options", [{"penalty": 0.1}, {"smoothing": "gcv"}], ids=str)
@pytest.mark.parametrize("masks", [(), (PADDED, LATER.expand(4, 3, 9))], ids=["all", "masked"])
@every_kind
def test_contexts_are_weighted_sums_of_observations(
    score: str, combine: bool, masks: tuple[Tensor | None, ...], options: dict[str, Any]
) -> None:
    layer, inputs = make_layer(score, combine, 1.5, **options), data()
    single = make_layer(score, combine, 1.5, **options, dtype=torch.float32)
    single.load_state_dict(layer.state_dict())
    # Cross-validation of noise chooses tiny penalties, with condition numbers up to 1e9.
    pairs = [(layer, 1e-9)] if "gcv" in options.values() else [(layer, 1e-11), (single, 5e-6)]
    for twin, tolerance in pairs:
        parts = [x.to(twin.v_proj.weight) for x in inputs]
        expected, _ = twin(*parts, *masks)
        where = spread(twin, parts[0])
        weights = twin.observation_weights(*parts, *masks, **where)
        values = twin.v_proj(parts[2]).unflatten(-1, (2, 2))
        found = join(twin, torch.einsum("bhql,blhe->bqhe", weights, values))
        total = twin.absolute_weight(*parts, *masks, **where)
        torch.testing.assert_close(total, weights.abs().sum(-1))
        assert weights.dtype == expected.dtype
        assert (found - expected).norm() < tolerance * expected.norm()
        if masks and masks[0] is not None:
            assert not weights[..., 7:].any()
        if len(masks) > 1:
            assert not weights[..., 0, 4:].any()


@pytest.mark.parametrize("masked", [False, True])
def test_overshoot_is_warned_of_once(masked: bool) -> None:
    """A ridge penalty with a gap in the times exceeds the limit, the default does not."""
    query, key, value, t = data(40, dtype=torch.float32)
    t = torch.where(t < 0.5, 0.5 * t, 0.5 * t + 0.5)
    mask = torch.arange(40).expand(3, -1) > 35 if masked else None
    options = {"basis": GaussianRBF.grid(32, 0.05), "dtype": torch.float32}
    layer = make_layer(**options, penalty=1e-4)
    message = r"in .*% of the contexts .* sum to more than 5, .* penalty=0.0001 and GaussianRBF"
    with pytest.warns(UserWarning, match=message) as caught:
        layer(query, key, value, t, attn_mask=mask)
        layer(query, key, value, t, attn_mask=mask)
    assert [x.filename for x in caught] == [__file__]
    assert (layer.absolute_weight(query, key, value, t, attn_mask=mask) > 5).float().mean() > 0.1
    default = make_layer(**options)
    default(query, key, value, t, attn_mask=mask)
    assert (default.absolute_weight(query, key, value, t, attn_mask=mask) < 2).all()


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_basis_and_size_of_the_output_may_be_left_out(ndim: int) -> None:
    """Outputs start at most a tenth as large as the values."""
    domain = [(0.0, 1.0), (-1.0, 1.0), (2.0, 3.0)][:ndim]
    layer = ContinuousAttention(16, 4, RidgeRegression(domain=domain), batch_first=True)
    assert len(layer.regression.basis) == {1: 64, 2: 100, 3: 216}[ndim]
    assert layer.regression.basis.domain == tuple(domain)
    x = torch.randn(3, 40, 16)
    low, high = torch.tensor(domain).T
    t = low + (high - low) * torch.rand(3, 40, ndim)
    context, _ = layer(x, x, x, t.squeeze(-1) if ndim == 1 else t)
    assert 0 < context.square().mean().sqrt() < 0.1
    whole = ContinuousAttention(16, 4, layer.regression, layer_scale=None)
    assert "layer_scale" not in whole.state_dict()


# Value functions in place of sequences
@pytest.mark.parametrize("options", [{"penalty": 0.1}, {"smoothing": "gcv"}], ids=str)
@pytest.mark.parametrize("score", ["quadratic", "kernel"])
def test_a_memory_in_chunks_is_the_sequence(score: str, options: dict[str, Any]) -> None:
    layer, (query, key, value, t) = make_layer(score, **options), data(40)
    memory, state = ForgettingMemory(layer.regression), None
    for positions, values in zip(t.split(15, 1), layer.v_proj(value).split(15, 1), strict=True):
        function, state = memory(positions, values, state)
    context, density = layer(query, function=function)
    expected, same = layer(query, key, value, t)
    assert (context - expected).norm() < 1e-10 * expected.norm()
    assert torch.equal(density.mean, same.mean)
    layer.batch_first = False
    turned, _ = layer(query.transpose(0, 1), function=function)
    assert torch.equal(turned.transpose(0, 1), context)


# Gradients, transforms, state
@pytest.mark.parametrize(
    ("score", "combine", "ndim"),
    [*((*kind, 1) for kind in KINDS), ("quadratic", False, 2), ("moments", True, 2)],
)
@pytest.mark.parametrize("alpha", [1.0, "learned"])
def test_gradients_of_the_whole_layer(score: str, combine: bool, ndim: int, alpha: Any) -> None:
    """Also of alphas that are learned, one for each head."""
    if alpha == "learned":
        high = math.inf if score in ("quadratic", "moments") else 2.0
        alpha = LearnedAlpha(2, [1.3, 1.8], high, dtype=DOUBLE)
    layer, inputs = make_layer(score, combine, alpha, ndim=ndim), data(4, ndim)
    query, *sequence = (x.requires_grad_() for x in inputs)
    weights = {name: x for name, x in layer.named_parameters() if x.requires_grad}

    def context(query: Tensor, *inputs: Tensor) -> Tensor:
        parameters = dict(zip(weights, inputs[3:], strict=True))
        parts = (query[:, :1], *inputs[:3])
        found: Tensor = torch.func.functional_call(layer, parameters, parts)[0]
        return found

    parts = (query, *sequence, *weights.values())
    assert gradcheck(context, parts, rtol=1e-3, atol=1e-6, fast_mode=True)


@pytest.mark.parametrize(
    ("score", "options", "mask"),
    [
        ("quadratic", {"alpha": 1.0, "combine": True, "validate_args": True}, LATER),
        ("kernel", {"alpha": torch.tensor([[1.2], [1.9]], dtype=DOUBLE)}, None),
    ],
    ids=["masked", "kernel"],
)
def test_compiles_whole(
    score: str, options: dict[str, Any], mask: Tensor | None, unchecked: None
) -> None:
    layer, inputs = make_layer(score, **options), data()
    found = one_graph(lambda *inputs: layer(*inputs)[0])(*inputs, PADDED, mask)
    expected = layer(*inputs, PADDED, mask)[0]
    assert torch.allclose(found, expected, rtol=1e-10)
    parameters = [x for x in layer.parameters() if x.requires_grad]
    grads = [torch.autograd.grad(x.square().sum(), parameters) for x in (found, expected)]
    torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-12)


def test_one_graph_serves_sequences_of_all_sizes(unchecked: None) -> None:
    """Also of positions that are made in the graph. `torch.linspace` itself fixes its number."""
    regression = RidgeRegression(GaussianRBF.grid(8, 0.2), validate_args=False)
    layer = ContinuousAttention(4, 2, regression, score="moments", batch_first=True)

    def attend(x: Tensor) -> Tensor:
        return layer(x, x, x, torch.arange(x.shape[1]) / x.shape[1])[0]

    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend=counter)
    for batch, length in ((3, 20), (4, 31), (5, 7)):
        x = torch.randn(batch, length, 4, requires_grad=True)
        values = compiled(x), attend(x)
        found, due = ([y, *torch.autograd.grad(y.square().sum(), x)] for y in values)
        torch.testing.assert_close(found, due)
    assert counter.frame_count == 1


@pytest.mark.parametrize(
    ("score", "bandwidth"), [*((score, None) for score in SCORES), ("kernel", 0.2)]
)
def test_maps_over_examples_with_gradients(score: str, bandwidth: float | None) -> None:
    """As for gradients of single samples; also of the bandwidth that a kernel learns."""
    kernel = None if bandwidth is None else RBF(1, lengthscale=torch.tensor(bandwidth))
    options = {} if kernel is None else {"kernel": kernel}
    layer, inputs = make_layer(score, alpha=1.5, **options), data()
    named = {name: x for name, x in layer.named_parameters() if x.requires_grad}

    def loss(parameters: dict[str, Tensor], *inputs: Tensor) -> Tensor:
        given = tuple(x.unsqueeze(0) for x in inputs)
        found: Tensor = torch.func.functional_call(layer, parameters, given)[0].square().sum()
        return found

    mapped = torch.func.vmap(torch.func.grad_and_value(loss), (None, 0, 0, 0, 0))
    slopes, losses = mapped(named, *inputs)
    for i in range(2):
        due = loss(named, *(x[i] for x in inputs))
        torch.testing.assert_close(losses[i], due, rtol=1e-10, atol=0)
        for name, slope in zip(named, torch.autograd.grad(due, [*named.values()]), strict=True):
            torch.testing.assert_close(slopes[name][i], slope)


@every_score
def test_layers_on_the_meta_device(score: str) -> None:
    regressions = [RidgeRegression(GaussianRBF.grid(10, 0.15)) for _ in range(2)]
    with torch.device("meta"):
        layer = ContinuousAttention(4, 2, regressions[0], 1.5, score, batch_first=True)
    assert layer.score_proj.state_dict().popitem()[1].is_meta
    twin = ContinuousAttention(4, 2, regressions[1], 1.5, score, batch_first=True)
    layer = layer.to_empty(device="cpu")
    layer.load_state_dict(twin.state_dict())
    inputs = data(dtype=torch.float32)
    assert torch.equal(*(located(x)(*inputs)[0] for x in (layer, twin)))


def test_key_and_value_may_have_their_own_channels() -> None:
    layer = make_layer("moments", kdim=3, vdim=5)
    query, _, _, t = data()
    key, value = torch.randn(2, 9, 3, dtype=DOUBLE), torch.randn(2, 9, 5, dtype=DOUBLE)
    assert layer(query, key, value, t)[0].shape == (2, 3, 4)


# Precision and export
# Unit roundoff: inputs, values and contexts are rounded, and nothing in between.
UNITS = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}

every_half = pytest.mark.parametrize("half", UNITS, ids=str)


def single_layer(score: str, alpha: Any = 2.0, **options: Any) -> ContinuousAttention:
    options = with_regression(basis=GaussianRBF.grid(10, 0.15), batch_first=True, **options)
    return located(ContinuousAttention(4, 2, alpha=alpha, score=score, **options))


@every_score
@every_half
def test_autocast_rounds_only_the_projections(score: str, half: torch.dtype) -> None:
    layer, inputs = single_layer(score, 1.5), data(dtype=SINGLE)
    expected, exact = layer(*inputs)
    with torch.autocast("cpu", dtype=half):
        context, density = layer(*inputs)
    assert context.dtype == half and density.mean.dtype == SINGLE
    if score not in ("moments", "content"):
        assert torch.equal(density.mean, exact.mean)
        assert torch.equal(density.variance, exact.variance)
    assert (context - expected).norm() < 4 * UNITS[half] * expected.norm()
    weights = [x for x in layer.parameters() if x.requires_grad]
    found, due = (
        torch.autograd.grad(x.float().square().sum(), weights, materialize_grads=True)
        for x in (context, expected)
    )
    found, due = (torch.cat([x.flatten() for x in grads]) for grads in (found, due))
    assert (found - due).norm() < 8 * UNITS[half] * due.norm()


@every_score
@every_half
def test_layers_in_half_precision_are_those_of_rounded_weights(
    score: str, half: torch.dtype
) -> None:
    layer, inputs = single_layer(score).to(half), [x.to(half) for x in data(dtype=SINGLE)]
    context, density = layer(*inputs)
    assert context.dtype == half and density.mean.dtype == SINGLE
    exact = copy.deepcopy(layer).float()
    expected = exact(*(x.float() for x in inputs))[0]
    assert (context - expected).norm() < 8 * UNITS[half] * expected.norm()


class Contexts(nn.Module):
    """What can be exported: tensors, not densities."""

    def __init__(self, layer: ContinuousAttention) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Tensor) -> Tensor:
        context: Tensor = self.layer(*inputs)[0]
        return context


# Packed weights that are no contiguous piece of memory are copied, on any device.
@pytest.mark.filterwarnings("ignore:No complete tensor found in the group")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("score", "alpha", "penalty", "masks"),
    [
        *((score, 2.0, 0.01, 0) for score in SCORES),
        ("quadratic", LearnedAlpha(2, [1.3, 1.8]), "gcv", 0),
        ("quadratic", 1.5, 0.01, 1),
        ("moments", 1.0, 0.01, 2),
    ],
    ids=[*SCORES, "learned", "padding", "mask"],
)
def test_exported_layers_say_the_same(score: str, alpha: Any, penalty: Any, masks: int) -> None:
    layer = single_layer(score, alpha, combine=True, penalty=penalty, validate_args=True)
    program = torch.export.export(
        Contexts(layer), export_inputs(masks), dynamic_shapes=dynamic_shapes(masks), strict=False
    )
    # Graphs of kernels have an empty block without gradient, which torch saves but does not load.
    if score not in ("kernel", "content"):
        file = io.BytesIO()
        torch.export.save(program, file)
        file.seek(0)
        program = torch.export.load(file)
    loaded = program.module()
    # More positions than a chunk has, and other numbers of queries and examples.
    for shape in ((4, 30, 5), (2, 300, 3)) if masks == 2 else ((4, 30, 5), (512, 300, 3)):
        other = export_inputs(masks, *shape)
        expected = layer(*other)[0]
        assert (loaded(*other) - expected).norm() < 1e-5 * expected.norm()


def export_inputs(
    masks: int, batch: int = 3, length: int = 9, queries: int = 4
) -> tuple[Tensor, ...]:
    """Inputs with the first so many of padding and mask."""
    query = torch.randn(batch, queries, 4)
    key, value = torch.randn(2, batch, length, 4)
    padding = (torch.arange(length) >= length - 2).expand(batch, length)
    mask = torch.zeros(queries, length).masked_fill(torch.arange(length) < 3, -math.inf)
    return (query, key, value, torch.rand(batch, length), padding, mask)[: 4 + masks]


def dynamic_shapes(masks: int) -> dict[str, tuple[dict[int, torch.export.Dim], ...]]:
    batch, length, queries = (torch.export.Dim(name, min=2) for name in ("B", "L", "Q"))
    sequence = {0: batch, 1: length}
    each = ({0: batch, 1: queries}, *[sequence] * 4, {0: queries, 1: length})
    return {"inputs": each[: 4 + masks]}


# Errors
FUNCTION = ValueFunction(GaussianRBF.grid(4, 0.2), torch.ones(2, 4, 4))
BASIS, PLANE = GaussianRBF.grid(4, 0.2), GaussianRBF.grid(4, 0.2, ndim=2)
Q, K, V, T = torch.zeros(2, 3, 4), torch.zeros(2, 9, 4), torch.zeros(2, 9, 4), torch.zeros(2, 9)
PADDING = torch.zeros(2, 9, dtype=torch.bool)


def build(**options: Any) -> Any:
    layer: Callable[..., Any] = ContinuousAttention
    options = with_regression(**{"basis": BASIS} | options)
    return layer(**{"embed_dim": 4, "num_heads": 2, "batch_first": True} | options)


@pytest.mark.parametrize(
    ("basis", "domain"),
    [
        (GaussianRBF.grid(8, 6.0, high=48.0), (0.0, 1.0)),
        (BASIS, (1.1, 1.2)),
        (PLANE, [(0.0, 1.0), (0.0, 24.0)]),
    ],
)
def test_a_domain_apart_from_the_basis_is_named(basis: Any, domain: Any) -> None:
    of_basis = r"\(0.0, 48.0\)" if len(basis) == 8 else r"\(0.0, 1.0\)"
    with pytest.warns(UserWarning, match=rf"domain \(.*{domain[-1]}.* range {of_basis}") as caught:
        RidgeRegression(basis, domain=domain)
    assert caught[0].filename == __file__


def test_temperatures_may_change_but_stay_positive() -> None:
    layer = build(temperature=2.0)
    layer.temperature = 0.5
    with pytest.raises(ValueError, match="temperature must be positive and finite, got -1.0"):
        layer.temperature = -1.0
    assert layer.temperature == 0.5


def attend(*inputs: Any) -> Callable[[], object]:
    return lambda: build(score="moments", validate_args=True)(*inputs)


test_bad_arguments_are_named = refused(
    [
        (lambda: build(num_heads=3), "embed_dim must be .*num_heads, got 4 and 3"),
        (lambda: build(vdim=0), "vdim must be at least 1, got 0"),
        (lambda: build(alpha=0.5), "alpha must be at least 1, got 0.5"),
        (lambda: build(score="kernels"), "score must be .* or an AttentionScore, got 'kernels'"),
        (lambda: build(domain=(1.0, 1.0)), r"domain must be .*increase, got \(1.0, 1.0\)"),
        (lambda: build(basis=PLANE, domain=((0.0, 1.0),)), "domain must be .* 2 such pa"),
        (lambda: build(regression=BASIS), "regression must be a RidgeRegression with a bounded"),
        (
            lambda: build(basis=Polynomial(2), penalty=0.1),
            "regression must be a RidgeRegression with a bounded domain, got Ridge",
        ),
        (lambda: build(basis=copy.deepcopy(BASIS).to("meta")), "domain must be given .* meta dev"),
        (lambda: build(dropout=0.1), "dropout must be 0.* apply torch.nn.Dropout .*got 0.1"),
        (lambda: build(dtype=torch.complex64), "dtype must be floating, got torch.complex64"),
        (lambda: build(dtype="a"), "dtype must be floating, got 'a'"),
        (lambda: build(layer_scale=0), "layer_scale must be None, or positive and finite, got 0"),
        (lambda: build(basis=3), "basis must be a Basis or None, got 3"),
        (lambda: build(penalty=0.1, smoothing=0.1), "penalty and smoothing must not both be given"),
        (lambda: build()(Q, K, V, T, need_weights="maybe"), "need_weights must be .*got 'maybe'"),
        (lambda: build(score=build().score_proj), "score must be a new one for each layer, got Qu"),
        *(
            (
                lambda x=x: build(temperature=x),
                f"temperature must be positive and finite, got {x!r}",
            )
            for x in (0, math.inf, "1")
        ),
        *(
            (
                lambda shape=shape: build(alpha=torch.full(shape, 1.5))(Q, K, V, T),
                r"alpha must broadcast to .* \(2, 2, 3\), got shape",
            )
            for shape in ((5,), (2, 1, 1, 1))
        ),
        (attend(Q[..., :3], K, V, T), r"query must .*\(2, 3, 4\).*, got \(2, 3, 3\)"),
        (attend(Q[0], K, V, T), r"key must .*\(1, 9, 4\).*, got \(2, 9, 4\)"),
        (attend(Q, K[:, :5], V, T), r"key must .*\(2, 9, 4\).*, got \(2, 5, 4\)"),
        (attend(Q, K.mT, V.mT, T), r"key must .*batch_first=True \(is the other.*got \(2, 4, 9\)"),
        (attend(Q, K[:, :0], V[:, :0], T[:, :0]), r"values must .*not zero, got \(2, 0, 4\)"),
        (attend(Q, K, V.long(), T), "value must be floating .*got torch.int64"),
        (attend(Q.double(), K, V, T), "query must be torch.float32 .* got torch.float64"),
        (attend(Q / 0, K, V, T), "query must be finite .*got nan at index .0, 0, 0."),
        (attend(Q, K, V - math.inf, T), "value must be finite .*got -inf at index .0, 0, 0"),
        (attend(Q, K, V, T.mT), r"positions must .*\(2, 9\).*got \(9, 2\)"),
        (attend(Q, K, V, T, PADDING[:1]), r"key_padding_mask must .*got .*\(1, 9\)"),
        (attend(Q, K, V, T, PADDING.long()), "key_padding_mask must be boolean or float.*int64"),
        (attend(Q, K, V, T, PADDING / 0), "key_padding_mask must be numbers below inf, got nan"),
        (attend(Q, K, V, T, ~PADDING), "key_padding_mask must leave every example.*got 0 at index"),
        (lambda: build(basis=PLANE)(Q, K, V, T), r"positions must .*got \(2, 9\)"),
        (lambda: build(basis=PLANE)(Q, K, V), "positions must be given in 2 .*got None"),
        (lambda: build()(Q, K, V, average_attn_weights=True), "average_attn_weights must be False"),
        (lambda: build()(Q, K, V, is_causal=True), "attn_mask must be given if is_causal=True"),
        (lambda: build()(Q), "key and value must be tensors, unless a function is.*got NoneType"),
        (lambda: build()(Q, K, V, T, function=FUNCTION), "function must be given without.*both"),
        (lambda: build(score="moments")(Q, function=FUNCTION), "function must be None for .*keys"),
        (lambda: build(combine=True)(Q, function=FUNCTION), "function must be None for .*keys"),
        (lambda: build()(Q[:1], function=FUNCTION), r"function.coefficients .*got \(2, 4, 4\)"),
        (
            lambda: build(validate_args=True)(Q, function=ValueFunction(BASIS, K[:, :4] / 0)),
            "function.coefficients must be finite .*got nan",
        ),
    ]
)
