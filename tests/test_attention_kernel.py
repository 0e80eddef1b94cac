"""Attention with kernel scores: contexts, supports and gradients against a dense trapezoid."""

import copy
import io
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from layers import data, require_that_padding_is_ignored
from pyro.contrib.gp.kernels import RBF, Matern52
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.distributions import Distribution

from sparsefam import KernelDeformedExp, KernelExp
from sparsefam.attention import ContinuousAttention
from sparsefam.attention.kernel_score import KernelScore
from sparsefam.bases import GaussianRBF

DOUBLE = torch.float64
ALPHAS = [1.0, 1.25, 2.0]
POINTS = 12001

every_alpha = pytest.mark.parametrize("alpha", ALPHAS)


def make(alpha: Any = 2.0, gain: float = 1.0, **options: Any) -> Any:
    """A layer of two heads on four channels, with weights `gain` times those at the start."""
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


def by_hand(layer: Any, inputs: Any, alpha: float, length: float, **options: Any) -> Tensor:
    """The context: value functions under the masses of a trapezoid."""
    query, _, value, positions = inputs
    t, weights = rule(*layer.domain)
    p = masses(scores(layer, query, t, length), weights, alpha, **options)
    function = layer.regression.fit(positions, layer.v_proj(value))
    values = function(t.expand(2, -1)).unflatten(-1, (2, 2))
    return layer.out_proj(torch.einsum("bhqt,bthe->bqhe", p, values).flatten(2))


def close(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    return bool((found - expected).norm() < tolerance * expected.norm())


# Contexts


@pytest.mark.parametrize("gain", [1.0, 30.0])
@every_alpha
def test_context_is_the_integral_of_the_values(alpha: float, gain: float) -> None:
    layer, inputs = make(alpha, gain), data()
    context, density = layer(*inputs)
    assert isinstance(density, KernelExp if alpha == 1 else KernelDeformedExp)
    assert density.batch_shape == (2, 2, 3)
    # Two steps between inducing points; the trapezoid's own error is 1e-7 at edges.
    assert close(context, by_hand(layer, inputs, alpha, 2 / 7), 1e-6)


def test_context_over_disjoint_supports_and_another_domain() -> None:
    kernel = RBF(1, lengthscale=torch.tensor(0.5, dtype=DOUBLE)).requires_grad_(False)
    layer = make(2.0, 30.0, kernel=kernel, domain=(-2.0, 6.0), inducing_points=16)
    query, key, value, t = data()
    inputs = (query, key, value, 8 * t - 2)
    context, density = layer(*inputs)
    assert (density.support.count > 1).any()
    assert close(context, by_hand(layer, inputs, 2.0, 0.5), 1e-6)
    nodes, weights = rule(-2.0, 6.0)
    p = masses(scores(layer, query, nodes, 0.5), weights, 2.0)
    first = torch.where(p > 0, nodes, math.inf).amin(-1)
    assert (density.support.intervals[..., 0, 0] - first).abs().max() < 8 / (POINTS - 1) + 1e-9


def test_outside_normalisation_is_by_the_mass() -> None:
    layer, inputs = make(1.5, 3.0, normalization="outside"), data()
    context, density = layer(*inputs)
    assert density.normalization == "outside"
    expected = by_hand(layer, inputs, 1.5, 2 / 7, normalization="outside")
    assert close(context, expected, 1e-6)
    assert not close(expected, by_hand(layer, inputs, 1.5, 2 / 7), 1e-2)
    with torch.no_grad():
        layer.score_proj.bias.fill_(-5.0)
    with pytest.raises(ValueError, match=r"weights must be .*empty support at batch indices \[\[0"):
        layer(*inputs)


@every_alpha
def test_float32_follows_the_reference(alpha: float) -> None:
    layer, inputs = make(alpha, 10.0, dtype=torch.float32), data(dtype=torch.float32)
    context, density = layer(*inputs)
    assert (context.dtype, density.weights.dtype) == (torch.float32, torch.float32)
    exact = copy.deepcopy(layer).double()
    assert close(context, by_hand(exact, [x.double() for x in inputs], alpha, 2 / 7), 5e-6)


@every_alpha
def test_planes_are_read_like_lines(alpha: float) -> None:
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


# Gradients


@every_alpha
def test_gradients_of_the_whole_layer(alpha: float) -> None:
    layer, (query, key, value, t) = make(alpha, 10.0), data(3)
    inputs = tuple(x.requires_grad_() for x in (query[:, :1], key, value, t))
    assert gradcheck(lambda *inputs: layer(*inputs)[0], inputs, atol=1e-6, fast_mode=True)


@every_alpha
def test_gradients_in_the_weights_are_those_of_the_reference(alpha: float) -> None:
    layer, inputs = make(alpha, 10.0), data()
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
            values.append(by_hand(layer, inputs, alpha, 2 / 7).square().sum())
    expected = (values[0] - values[1]) / 2e-3
    assert (slope - expected).abs() < 1e-4 * expected.abs()


def test_alpha_is_learned_per_head() -> None:
    alpha = nn.Parameter(torch.tensor([[1.3], [1.8]], dtype=DOUBLE))
    layer, inputs = make(alpha, 5.0), data()
    _, density = layer(*inputs)
    assert torch.equal(density.alpha, alpha.expand(2, 2, 3))

    def context(alpha: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"alpha": alpha}, inputs)[0]

    assert gradcheck(context, (alpha,), rtol=1e-4, atol=1e-7)


def test_bandwidth_is_learned() -> None:
    kernel = RBF(1, lengthscale=torch.tensor(0.2))
    layer, inputs = make(2.0, 10.0, kernel=kernel), data()
    name = "score_proj.kernel.lengthscale_unconstrained"
    assert name in dict(layer.named_parameters())
    layer(*inputs)[0].square().sum().backward()
    length = kernel.lengthscale_unconstrained
    values = []
    for step in (1e-3, -2e-3):
        length.data.add_(step)
        values.append(
            by_hand(layer, inputs, 2.0, float(kernel.lengthscale.detach())).square().sum()
        )
    expected = (values[0] - values[1]) / 2e-3
    assert (length.grad - expected).abs() < 1e-3 * expected.abs()
    # Panels follow a bandwidth that has shrunk.
    before = len(layer(*inputs)[1].panels.nodes)
    with torch.no_grad():
        length.sub_(3.0)
    assert len(layer(*inputs)[1].panels.nodes) > before
    expected = by_hand(layer, inputs, 2.0, float(kernel.lengthscale.detach()))
    assert close(layer(*inputs)[0], expected, 1e-6)


def test_bandwidth_may_be_learned_by_a_function() -> None:
    length = torch.tensor(0.3, dtype=DOUBLE, requires_grad=True)

    def kernel(x: Tensor, z: Tensor) -> Tensor:
        return torch.exp(-0.5 * ((x - z.mT) / length).square())

    layer, inputs = make(2.0, 10.0, kernel=kernel), data()
    layer(*inputs)
    with torch.no_grad():
        length.mul_(0.1)
    assert close(layer(*inputs)[0], by_hand(layer, inputs, 2.0, 0.03), 1e-6)


# Panels


def test_panels_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    find = KernelScore._find
    monkeypatch.setattr(KernelScore, "_find", lambda self: found.append(1) or find(self))
    layer, inputs = make(), data()
    optimiser = torch.optim.SGD([x for x in layer.parameters() if x.requires_grad], 0.1)
    for _ in range(3):
        optimiser.zero_grad()
        context, density = layer(*inputs)
        context.square().sum().backward()
        optimiser.step()
    assert len(found) == 1
    assert layer(*inputs)[1].panels is density.panels
    assert density.panels.matrix is not None
    layer.float()
    assert len(found) == 2
    assert layer(*(x.float() for x in inputs))[1].panels is not density.panels


def test_panels_follow_a_kernel_that_is_replaced() -> None:
    """Also where its parameters stay the same objects and get another storage."""
    kernel: Any = RBF(1, lengthscale=torch.tensor(0.2)).requires_grad_(False)
    layer, inputs = make(2.0, 10.0, kernel=kernel), data()
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
        assert close(layer(*inputs)[0], by_hand(layer, inputs, 2.0, length), 1e-6)
    constant = make(2.0, 10.0, kernel=lambda x, z: torch.exp(-0.5 * (x - z.mT).square() / 0.09))
    constant(*inputs)
    constant.score_proj.kernel = lambda x, z: torch.exp(-0.5 * (x - z.mT).square() / 0.01)
    assert close(constant(*inputs)[0], by_hand(constant, inputs, 2.0, 0.1), 1e-6)


# Padding


@every_alpha
def test_padding_changes_neither_context_nor_gradients(alpha: float) -> None:
    require_that_padding_is_ignored(make(alpha, 10.0), data())


# Start, state, compiled graphs


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0])
def test_supports_start_wide_and_heads_spread(alpha: float) -> None:
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


@pytest.mark.parametrize(
    "alpha", [pytest.param(1.0, marks=pytest.mark.slow), 2.0, torch.tensor([[1.2], [1.9]])], ids=str
)
def test_compiles_whole(alpha: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # torch cannot trace its own validation of distributions, and so switches it off itself.
    monkeypatch.setattr(Distribution, "_validate_args", False)
    layer, inputs = make(alpha, 10.0), data()
    padding = (torch.arange(9) >= 7).expand(2, 9)
    torch._dynamo.reset()
    compiled = torch.compile(lambda *inputs: layer(*inputs)[0], fullgraph=True, backend="aot_eager")
    expected, found = layer(*inputs, padding)[0], compiled(*inputs, padding)
    assert torch.allclose(found, expected, rtol=1e-10)
    weights = list(layer.score_proj.parameters())[:2]
    grads = [torch.autograd.grad(x.square().sum(), weights) for x in (found, expected)]
    for found, expected in zip(*grads, strict=True):
        assert close(found, expected, 1e-9)


def test_maps_over_examples() -> None:
    layer, inputs = make(2.0, 10.0), data()

    def single(*inputs: Tensor) -> Tensor:
        return layer(*(x.unsqueeze(0) for x in inputs))[0].squeeze(0)

    assert torch.allclose(torch.func.vmap(single)(*inputs), layer(*inputs)[0], rtol=1e-10)


def test_state_dict_round_trip() -> None:
    kernel = RBF(1, lengthscale=torch.tensor(0.2)).requires_grad_(False)
    layer, twin, inputs = make(kernel=kernel), make(), data()
    assert not torch.allclose(twin(*inputs)[0], layer(*inputs)[0])
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    twin.load_state_dict(torch.load(file, weights_only=True))
    for same in (twin, copy.deepcopy(layer)):
        assert torch.equal(same(*inputs)[0], layer(*inputs)[0])


def test_layers_without_storage_can_be_filled() -> None:
    layer, inputs = make(), data()
    empty = make(device="meta").to_empty(device="cpu")
    # What memory holds is chance.
    empty.score_proj.inducing_points.fill_(9.0)
    with pytest.raises(ValueError, match="inducing_points must be in the domain"):
        empty(*inputs)
    empty._apply(lambda x: x)
    empty.load_state_dict(layer.state_dict())
    assert torch.equal(empty(*inputs)[0], layer(*inputs)[0])


# Errors

BASIS = GaussianRBF.grid(4, 0.2)
PLANE = GaussianRBF.grid(4, 0.2, ndim=2)


def kernel_layer(basis: Any = BASIS, alpha: Any = 2.0, **options: Any) -> Any:
    return ContinuousAttention(4, 2, basis, alpha, "kernel", **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kernel_layer(alpha=2.5), "alpha must be at most 2 .*got 2.5"),
        *(
            (
                lambda count=count: kernel_layer(inducing_points=count),
                "inducing_points must be a tensor, or a positive .*got " + re.escape(repr(count)),
            )
            for count in (0, -3, 2.5, True, "3", (0.1, 0.2))
        ),
        (
            lambda: kernel_layer(PLANE, ndim=2, inducing_points=10),
            "inducing_points must be .*power ndim=2, got 10",
        ),
        (
            lambda: kernel_layer(inducing_points=torch.tensor([0.5, 1.5])),
            r"inducing_points must be in the domain .*1.5",
        ),
        (
            lambda: kernel_layer(inducing_points=torch.zeros(3, 2)),
            r"inducing_points must be floating of shape \(I, 1\) or \(I,\), got .*\(3, 2\)",
        ),
        (lambda: kernel_layer(kernel=3), "kernel must be a callable.*got 3"),
        (lambda: kernel_layer(kernel=RBF), "kernel must be .* instance, got the class .*RBF"),
        (
            lambda: kernel_layer(components=3),
            "components must not be given unless score='mixture', got score='kernel'",
        ),
        (
            lambda: kernel_layer(kernel=lambda x, z: x),
            r"kernel must map .*\(64, 1\), \(64, 1\) to \(64, 64\).*, got \(64, 1\)",
        ),
        (
            lambda: kernel_layer(kernel=lambda x, z: -torch.exp(-((x - z.mT) ** 2))),
            "kernel must be positive semi-definite",
        ),
        (lambda: kernel_layer(normalization="both"), "normalization must be .*got 'both'"),
        (
            lambda: ContinuousAttention(4, 2, BASIS, normalization="outside"),
            "normalization must not be given unless score='kernel', got score='quadratic'",
        ),
        (
            lambda: ContinuousAttention(4, 2, BASIS, kernel=RBF(1)),
            "kernel must not be given unless score='kernel', got score='quadratic'",
        ),
        (
            lambda: ContinuousAttention(4, 2, BASIS, inducing_points=64),
            "inducing_points must not be given unless score='kernel'",
        ),
    ],
)
def test_bad_arguments_are_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
