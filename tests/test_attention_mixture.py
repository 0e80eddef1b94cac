"""Attention with several bumps for each head, against a dense trapezoid."""

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from layers import data, require_that_padding_is_ignored
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.distributions import Distribution
from torch.nn import functional

from sparsefam import Mixture
from sparsefam.attention import ContinuousAttention
from sparsefam.bases import GaussianRBF

DOUBLE = torch.float64
ALPHAS = [1.0, 1.5, 2.0]
COMPONENTS = 3

every_alpha = pytest.mark.parametrize("alpha", ALPHAS)


def make(alpha: Any = 2.0, gain: float = 1.0, **options: Any) -> Any:
    """A layer of two heads on four channels, with weights `gain` times those at the start."""
    low, high = options.get("domain", (0.0, 1.0))
    basis = GaussianRBF.grid(6, 0.15 * (high - low), low=low, high=high)
    options = {"batch_first": True, "dtype": DOUBLE, "penalty": 0.1} | options
    layer = ContinuousAttention(4, 2, basis, alpha, "mixture", components=COMPONENTS, **options)
    with torch.no_grad():
        layer.score_proj.weight.mul_(gain)
    return layer


def density_by_hand(layer: Any, query: Tensor, alpha: float, t: Tensor) -> Tensor:
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


def by_hand(layer: Any, inputs: Any, alpha: float) -> Tensor:
    """The context: value functions under the density, by a trapezoid on seven domains."""
    query, _, value, positions = inputs
    low, high = layer.domain
    reach = 3 * (high - low)
    t = torch.linspace(low - reach, high + reach, 42001, dtype=DOUBLE)
    p = density_by_hand(layer, query, alpha, t) * (t[1] - t[0])
    assert (p.sum(-1) - 1).abs().max() < 1e-5
    function = layer.regression.fit(positions, layer.v_proj(value))
    values = function(t.expand(2, -1)).unflatten(-1, (2, 2))
    return layer.out_proj(torch.einsum("bhqt,bthe->bqhe", p, values).flatten(2))


def close(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    return bool((found - expected).norm() < tolerance * expected.norm())


@pytest.mark.parametrize("domain", [(0.0, 1.0), (-2.0, 6.0)])
@every_alpha
def test_context_is_the_integral_of_the_values(alpha: float, domain: tuple[float, float]) -> None:
    layer, (query, key, value, t) = make(alpha, 5.0, domain=domain), data()
    inputs = (query, key, value, domain[0] + (domain[1] - domain[0]) * t)
    context, density = layer(*inputs)
    assert isinstance(density, Mixture)
    assert (density.batch_shape, density.logits.shape[-1]) == ((2, 2, 3), COMPONENTS)
    assert close(context, by_hand(layer, inputs, alpha), 1e-6)


def test_components_may_be_disjoint() -> None:
    layer, inputs = make(2.0), data()
    total = 2 * COMPONENTS
    with torch.no_grad():
        layer.score_proj.bias[2 * total :] = -7.0
    context, density = layer(*inputs)
    assert (density.support.count == COMPONENTS).all()
    assert close(context, by_hand(layer, inputs, 2.0), 1e-4)
    t = torch.linspace(0, 1, 1001, dtype=DOUBLE)
    expected = density_by_hand(layer, inputs[0], 2.0, t)
    found = density.prob(t[:, None, None, None]).movedim(0, -1)
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-8)
    assert (found == 0).any(-1).all()


@every_alpha
def test_float32_follows_the_reference(alpha: float) -> None:
    layer, inputs = make(alpha, 5.0, dtype=torch.float32), data(dtype=torch.float32)
    context, _ = layer(*inputs)
    assert context.dtype == torch.float32
    exact = copy.deepcopy(layer).double()
    assert close(context, by_hand(exact, [x.double() for x in inputs], alpha), 5e-6)


@every_alpha
def test_planes_are_read_like_lines(alpha: float) -> None:
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


# Gradients


@every_alpha
def test_gradients_of_the_whole_layer(alpha: float) -> None:
    layer, (query, *sequence) = make(alpha, 5.0), data(3)
    inputs = tuple(x.requires_grad_() for x in (query[:, :1], *sequence))
    assert gradcheck(lambda *inputs: layer(*inputs)[0], inputs, atol=1e-6, fast_mode=True)


@every_alpha
def test_gradients_in_the_weights_are_those_of_the_reference(alpha: float) -> None:
    layer, inputs = make(alpha, 5.0), data()
    parameters = list(layer.score_proj.parameters())
    found = torch.autograd.grad(layer(*inputs)[0].square().sum(), parameters)
    expected = torch.autograd.grad(by_hand(layer, inputs, alpha).square().sum(), parameters)
    # At alpha = 2 the integrand jumps at edges, which the trapezoid sees to its step.
    tolerance = 2e-3 if alpha == 2 else 1e-5
    for one, other in zip(found, expected, strict=True):
        assert close(one, other, tolerance)


def test_alpha_is_learned_per_head() -> None:
    alpha = nn.Parameter(torch.tensor([[1.3], [2.2]], dtype=DOUBLE))
    layer, inputs = make(alpha), data()
    density = layer(*inputs)[1]
    assert torch.equal(density.components.alpha, alpha.unsqueeze(-1).expand(2, 2, 3, COMPONENTS))

    def context(alpha: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"alpha": alpha}, inputs)[0]

    assert gradcheck(context, (alpha,), rtol=1e-4, atol=1e-7)


# Padding


@every_alpha
def test_padding_changes_neither_context_nor_gradients(alpha: float) -> None:
    require_that_padding_is_ignored(make(alpha), data())


# Start, state, compiled graphs


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


@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_compiles_whole(alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    # torch cannot trace its own validation of distributions, and so switches it off itself.
    monkeypatch.setattr(Distribution, "_validate_args", False)
    layer, inputs = make(alpha), data()
    padding = (torch.arange(9) >= 7).expand(2, 9)
    torch._dynamo.reset()
    compiled = torch.compile(lambda *inputs: layer(*inputs)[0], fullgraph=True, backend="aot_eager")
    expected, found = layer(*inputs, padding)[0], compiled(*inputs, padding)
    assert torch.allclose(found, expected, rtol=1e-10)
    weights = list(layer.score_proj.parameters())
    grads = [torch.autograd.grad(x.square().sum(), weights) for x in (found, expected)]
    for one, other in zip(*grads, strict=True):
        assert close(one, other, 1e-9)


def test_maps_over_examples() -> None:
    layer, inputs = make(), data()

    def single(*inputs: Tensor) -> Tensor:
        return layer(*(x.unsqueeze(0) for x in inputs))[0].squeeze(0)

    assert torch.allclose(torch.func.vmap(single)(*inputs), layer(*inputs)[0], rtol=1e-10)


def test_state_dict_round_trip() -> None:
    layer, twin, inputs = make(), make(), data()
    assert not torch.allclose(twin(*inputs)[0], layer(*inputs)[0])
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    twin.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(twin(*inputs)[0], layer(*inputs)[0])


# Errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({"components": count}, f"components must be a positive integer, got {count!r}")
            for count in (0, -3, 2.5, "3", True)
        ),
        ({"normalization": "outside"}, "normalization must not be given unless score='kernel'"),
    ],
)
def test_bad_arguments_are_named(options: dict[str, Any], message: str) -> None:
    make: Callable[..., object] = ContinuousAttention
    with pytest.raises(ValueError, match=message):
        make(4, 2, GaussianRBF.grid(4, 0.2), 2.0, "mixture", **options)
