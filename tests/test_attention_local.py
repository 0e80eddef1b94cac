"""Heads around the position of their query, heads of several scores, and readouts."""

import copy
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from battery import DOUBLE, SINGLE, apart, one_graph
from layers import data, make_layer, with_regression
from refusals import refused
from torch import Tensor, nn

from sparsefam.attention import (
    ContinuousAttention,
    ForgettingMemory,
    KernelScore,
    LearnedAlpha,
    LocalScore,
    Observed,
    QuadraticScore,
    Readout,
    RidgeRegression,
    SplitScore,
)
from sparsefam.bases import GaussianRBF, Polynomial

BOX = ((-1.0, 3.0), (0.0, 0.5))
HEADS, REACH = 2, 0.1


def randomize(layer: ContinuousAttention) -> ContinuousAttention:
    """Give scores any parameters, as after training."""
    for parameter in layer.score_proj.parameters():
        nn.init.normal_(parameter)
    return layer


# Densities
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, "learned"])
@pytest.mark.parametrize("ndim", [1, 2])
def test_densities_are_around_the_queries(ndim: int, alpha: Any) -> None:
    domain = BOX if ndim == 2 else BOX[0]
    alpha = LearnedAlpha(2, [1.3, 1.8], dtype=DOUBLE) if alpha == "learned" else alpha
    score = LocalScore(REACH)
    layer = randomize(make_layer(score, alpha=alpha, ndim=ndim, domain=domain))
    query, key, value, t = data(ndim=ndim)
    low, high = torch.tensor([domain] if ndim == 1 else domain, dtype=DOUBLE).T
    at = low + (high - low) * torch.rand(2, 3, ndim, dtype=DOUBLE)
    density = layer(query, key, value, t, query_positions=at if ndim == 2 else at[..., 0])[1]
    channels = torch.stack([layer.score_proj(query)] * 3, 1)[:, 0].expand(2, 3, -1)
    offset, width, triangle = channels.unflatten(-1, (HEADS, -1)).split([ndim, ndim, ndim - 1], -1)
    mean = at[:, :, None] + (high - low) * 2 * REACH * torch.tanh(offset)
    deviation = (high - low) * (1e-3 + (2 * REACH - 1e-3) * torch.sigmoid(width))
    found = density.mean.reshape(2, HEADS, 3, ndim).transpose(1, 2)
    torch.testing.assert_close(found, mean)
    if ndim == 1:
        torch.testing.assert_close(density.stddev.transpose(1, 2), deviation[..., 0])
        return
    factor = torch.diag_embed(deviation)
    factor[..., 1, 0] = deviation[..., 1] * triangle[..., 0]
    found = density.covariance_matrix.transpose(1, 2)
    torch.testing.assert_close(found, factor @ factor.mT)


@pytest.mark.parametrize(("alpha", "ndim"), [(1.0, 1), (1.5, 1), (2.0, 1), (1.5, 2)])
def test_temperature_divides_the_score(alpha: float, ndim: int) -> None:
    """As with quadratic scores, up to the bound."""
    domain = BOX if ndim == 2 else BOX[0]
    layer = make_layer(LocalScore(0.4), alpha=alpha, ndim=ndim, domain=domain)
    layer.score_proj.bias.data.fill_(-3.0)
    x, t = data(ndim=ndim)[1], torch.rand(2, 9, *(2,) * (ndim - 1), dtype=DOUBLE) / 2
    before = layer(x, x, x, t)[1]
    layer.temperature = 1.7
    after: Any = layer(x, x, x, t)[1]
    name = "sigma" if ndim == 1 else "sigma_tril"
    torch.testing.assert_close(getattr(after, name), 1.7**0.5 * getattr(before, name))
    layer.temperature = 1e9
    length = torch.tensor(domain, dtype=DOUBLE).reshape(-1, 2).diff()
    widest = layer(x, x, x, t)[1].variance.reshape(-1, ndim).sqrt() / length.T
    assert (widest <= 0.8 * (1 + 1e-12)).all() if ndim == 1 else widest.isfinite().all()


def test_heads_start_as_a_ladder() -> None:
    score, regression = LocalScore(0.2), RidgeRegression(domain=(-2.0, 6.0))
    layer = ContinuousAttention(16, 8, regression, score=score, batch_first=True)
    x, t = torch.randn(3, 5, 16), -2 + 8 * torch.rand(3, 5)
    density = layer(x, x, x, t)[1]
    ladder = 8 * 0.2 * (torch.arange(8) - 3.5) / 4
    torch.testing.assert_close(density.mean, t[:, None] + ladder[:, None])
    torch.testing.assert_close(density.stddev, torch.full((3, 8, 5), 8 * 0.2 / 8))
    square = RidgeRegression(domain=[(0.0, 1.0)] * 2)
    plane = ContinuousAttention(16, 8, square, score="local", batch_first=True)
    x, t = torch.randn(3, 5, 16), torch.rand(3, 5, 2)
    offsets = (plane(x, x, x, t)[1].mean - t[:, None])[0, :, 0] / 0.06
    assert (offsets.abs() < 1).all() and torch.pdist(offsets).min() > 0.2


# Contexts, from the waves of a function that shifts turn
FINE = GaussianRBF.grid(64, 0.02)
ALPHAS = [1.0, 4 / 3, 1.5, 2.0, 3.7, "one learned", "learned"]


def made(score: Any, alpha: Any, dtype: torch.dtype, basis: Any = FINE, **options: Any) -> Any:
    if alpha == "learned":
        alpha = LearnedAlpha(4, [1.05, 1.5, 1.7, 1.99], dtype=dtype)
    elif alpha == "one learned":
        alpha = LearnedAlpha(1, 1.4, dtype=dtype)
    options = {"batch_first": True, "dtype": dtype, "layer_scale": None} | options
    options = with_regression(basis=copy.deepcopy(basis), **options)
    return ContinuousAttention(8, 4, alpha=alpha, score=score, **options)


def by_pairs(layer: Any, density: Any, t: Tensor, values: Tensor) -> Tensor:
    """Contexts (B, heads, Lq, E) from the expectation of every function, in float64."""
    regression = copy.deepcopy(layer.regression).double()
    function = regression.fit(t.double(), values.double())
    features = density.expect(regression.basis)
    heads = function.coefficients.unflatten(-1, (4, 2))
    constant = function.constant.unflatten(-1, (4, 2))
    return torch.einsum("bhqn,bnhe->bhqe", features, heads) + constant[:, :, None]


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("dtype", [DOUBLE, SINGLE], ids=["double", "single"])
def test_contexts_and_slopes_are_exact(alpha: Any, dtype: torch.dtype) -> None:
    """From the narrowest to the widest densities, at the ends of the domain and between."""
    values, slopes = (1e-11, 1e-10) if dtype == DOUBLE else (2e-6, 2e-5)
    for reach in (0.01, 0.06, 0.5):
        torch.manual_seed(7)
        layer, twin = made(LocalScore(reach), alpha, dtype), made(LocalScore(reach), alpha, DOUBLE)
        with torch.no_grad():
            channels = layer.score_proj.bias.unflatten(0, (4, 2))
            channels[:, 1] = torch.tensor([-20.0, -1.0, 1.0, 20.0])
            channels[:, 0] = torch.tensor([-20.0, 0.3, -0.7, 20.0])
        twin.load_state_dict(layer.state_dict())
        t = torch.cat([torch.tensor([[0.0, 1.0]] * 3), torch.rand(3, 28)], 1).to(dtype)
        x = torch.randn(3, 30, 8, dtype=dtype)
        given, leaves = [
            [z.detach().to(kind).requires_grad_() for z in (x, t)] for kind in (dtype, DOUBLE)
        ]
        found = layer(given[0], given[0], given[0], given[1])[0]
        heads = by_pairs(
            twin,
            twin(leaves[0], leaves[0], leaves[0], leaves[1])[1],
            leaves[1],
            twin.v_proj(leaves[0]),
        )
        due = twin.out_proj(heads.transpose(1, 2).flatten(2))
        assert apart(found, due) < values, (alpha, reach)
        weights = [[*x.score_proj.parameters(), *y] for x, y in ((layer, given), (twin, leaves))]
        pull = torch.randn(3, 30, 8)
        slope, exact = (
            torch.autograd.grad((y * pull.to(y.dtype)).sum(), z)
            for y, z in zip((found, due), weights, strict=True)
        )
        for one, other in zip(slope, exact, strict=True):
            # Of the tanh of 20, slopes vanish.
            assert (one - other).norm() < slopes * other.norm() + 1e-12, (alpha, reach)


def test_a_shared_grid_and_second_derivatives() -> None:
    layer, x = made(LocalScore(), 2.0, DOUBLE), torch.randn(3, 20, 8, dtype=DOUBLE)
    t = torch.linspace(0.02, 0.98, 20, dtype=DOUBLE)
    each = layer(x, x, x, t.expand(3, -1))[0]
    torch.testing.assert_close(layer(x, x, x, t)[0], each)

    def loss(bias: Tensor) -> Tensor:
        parts = {"score_proj.bias": bias}
        found: Tensor = torch.func.functional_call(layer, parts, (x, x, x, t))[0].square().sum()
        return found

    bias = layer.score_proj.bias.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(loss, bias, rtol=1e-5, atol=1e-7)
    assert torch.autograd.gradgradcheck(loss, bias, rtol=1e-4, atol=1e-6)


def test_a_layer_on_a_grid_is_a_convolution() -> None:
    """Offsets of whole steps, narrow densities, V that interpolates: `torch.nn.Conv1d`."""
    length, taps, channels = 64, 3, 2
    basis, step = GaussianRBF.grid(2 * length, 0.5 / length), 1 / length
    layer = ContinuousAttention(
        channels,
        taps,
        RidgeRegression(basis, smoothing=1e-12, validate_args=False),
        score=LocalScore(0.05),
        head_dim=channels,
        layer_scale=None,
        bias=False,
        batch_first=True,
        dtype=DOUBLE,
    )
    convolution = nn.Conv1d(channels, channels, taps, bias=False, dtype=DOUBLE)
    with torch.no_grad():
        offsets, widths = layer.score_proj.bias.unflatten(0, (taps, 2)).unbind(-1)
        offsets.copy_(torch.atanh(step * torch.tensor([-1.0, 0.0, 1.0]) / 0.1))
        widths.fill_(-40.0)
        # Each head reads all channels, and the output adds up what the taps make of them.
        layer.v_proj.weight.copy_(torch.eye(channels).repeat(taps, 1))
        layer.out_proj.weight.copy_(convolution.weight.transpose(1, 2).flatten(1))
    t = (torch.arange(length) + 0.5).double() / length
    x = torch.sin(6 * t + torch.tensor([[[0.0], [1.0]]])).mT  # (1, L, channels)
    found = layer(x, x, x, t)[0]
    due = convolution(x.mT).mT
    # Half-widths of a five-hundredth of the domain average over the function's curvature.
    assert apart(found[:, 1:-1], due) < 1e-3


# Where queries are
def test_queries_that_are_not_the_values_say_where_they_are() -> None:
    layer = randomize(made(LocalScore(), 1.5, DOUBLE))
    x, t = torch.randn(2, 9, 8, dtype=DOUBLE), torch.rand(2, 9, dtype=DOUBLE)
    expected, density = layer(x, x, x, t)
    for call in (
        layer(x.clone(), x, x, t, query_positions=t),
        layer(x, x, x.clone(), t),  # queries are the keys
        layer(x, x, x, t, query_positions=t),
    ):
        assert torch.equal(call[0], expected)
    few = layer(x[:, :3].contiguous(), x, x, t, query_positions=t[:, :3])
    torch.testing.assert_close(few[0], expected[:, :3])
    shared = layer(x, x, x, t, query_positions=t[0])[1]
    torch.testing.assert_close(shared.mean[0], density.mean[0])
    single = x[0]
    one, p = layer(single, single, single, t[0])
    torch.testing.assert_close(one, expected[0])
    assert p.batch_shape == (4, 9)
    memory = ForgettingMemory(layer.regression)
    state = None
    for positions, values in zip(t.split(5, 1), layer.v_proj(x).split(5, 1), strict=True):
        function, state = memory(positions, values, state)
    found = layer(x, function=function, query_positions=t)[0]
    torch.testing.assert_close(found, expected)
    turned = copy.deepcopy(layer)
    turned.batch_first = False
    y = x.transpose(0, 1)
    torch.testing.assert_close(turned(y, y, y, t)[0].transpose(0, 1), expected)
    spread = layer(x, x, x)[1].mean
    cells = (torch.arange(9) + 0.5) / 9
    torch.testing.assert_close(spread, layer(x, x, x, cells.double())[1].mean)


def test_padding_does_not_count() -> None:
    layer = randomize(
        made(
            LocalScore(),
            2.0,
            SINGLE,
            domain=(5.0, 6.0),
            basis=GaussianRBF.grid(40, 0.03, low=5.0, high=6.0),
        )
    )
    x, t = torch.randn(2, 9, 8), 5 + torch.rand(2, 9)
    padding = torch.arange(9) >= torch.tensor([[6], [9]])
    junk = t.masked_fill(padding, math.nan)
    found = layer(x, x, x, junk, padding)[0]
    cut = x[:1, :6]
    torch.testing.assert_close(found[:1, :6], layer(cut, cut, cut, t[:1, :6])[0])


@pytest.mark.parametrize(("kind", "alpha"), [("local", 2.0), ("split", "learned")])
def test_compiled_and_mapped_layers_are_the_same(kind: str, alpha: Any, unchecked: None) -> None:
    """A graph without the values of positions has the same waves."""
    score: Any = LocalScore()
    if kind == "split":
        score = [(score, 1), ("quadratic", 3)]
    layer = made(score, alpha, DOUBLE, validate_args=False)
    x, t = torch.randn(3, 20, 8, dtype=DOUBLE), torch.rand(3, 20, dtype=DOUBLE)

    def loss(x: Tensor, t: Tensor) -> Tensor:
        return layer(x, x, x, t)[0].square().sum()

    x.requires_grad_()
    expected = torch.autograd.grad(loss(x, t), [x, *layer.parameters()])
    compiled = one_graph(loss)(x, t)
    found = torch.autograd.grad(compiled, [x, *layer.parameters()])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)

    def one(x: Tensor, t: Tensor) -> Tensor:
        return loss(x[None], t[None])

    slopes = torch.func.vmap(torch.func.grad(one))(x.detach(), t)
    torch.testing.assert_close(slopes, expected[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("score", ["local", "quadratic", "moments", "content", "mixture"])
def test_heads_may_have_channels_of_their_own(score: str) -> None:
    layer = ContinuousAttention(5, 3, score=score, head_dim=4, combine=True, batch_first=True)
    x, t = torch.randn(2, 9, 5), torch.rand(2, 9)
    context, density = layer(x, x, x, t)
    assert context.shape == x.shape and density.batch_shape == (2, 3, 9)
    weights = layer.observation_weights(x, x, x, t)
    heads = torch.einsum("bhql,blhe->bqhe", weights, layer.v_proj(x).unflatten(-1, (3, 4)))
    torch.testing.assert_close(layer.out_proj(heads.flatten(2)) * layer.layer_scale, context)


# Heads of several scores
def test_each_score_has_its_heads() -> None:
    alpha = LearnedAlpha(4, [1.2, 1.5, 1.7, 1.9], dtype=DOUBLE)
    x, t = torch.randn(2, 9, 8, dtype=DOUBLE), torch.rand(2, 9, dtype=DOUBLE)
    for index in (1.0, 2.0, alpha):
        score = SplitScore([(LocalScore(), 1), (QuadraticScore(), 2), (LocalScore(0.2), 1)])
        layer = randomize(made(score, index, DOUBLE))
        context, density = layer(x, x, x, t)
        first = 0
        for part, count in zip(score.scores, score.counts, strict=True):
            whole = density[:, first : first + count]
            index = layer._checked_alpha(2, 9)
            own = index[first : first + count] if isinstance(index, Tensor) else index
            observed = Observed(layer.regression.basis, t, t)
            due = part.density(part(x, x), own, 1.0, observed)
            torch.testing.assert_close(whole.mean, due.mean)
            torch.testing.assert_close(whole.stddev, due.stddev)
            first += count
        due = layer.out_proj(
            by_pairs(layer, density, t, layer.v_proj(x)).transpose(1, 2).flatten(2)
        )
        assert apart(context, due) < 1e-11
    square = RidgeRegression(domain=[(0.0, 1.0)] * 2)
    plane = ContinuousAttention(8, 4, square, score=[("local", 2), ("quadratic", 2)])
    assert plane(*[torch.randn(9, 2, 8)] * 3, torch.rand(2, 9, 2))[1].event_shape == (2,)


# Readouts
@pytest.mark.parametrize("domain", [(0.0, 1.0), (-3.0, 7.0)])
def test_a_readout_has_the_means_of_the_function(domain: tuple[float, float]) -> None:
    low, high = domain
    regression = RidgeRegression(domain=domain).double()
    readout = Readout(3, regression)
    t = low + (high - low) * torch.rand(2, 30, dtype=DOUBLE)
    values = torch.randn(2, 30, 4, dtype=DOUBLE)
    padding = torch.arange(30) >= torch.tensor([[20], [30]])
    found = readout(t, values, padding)
    function = regression.fit(t, values, key_padding_mask=padding)
    nodes, weights = np.polynomial.legendre.leggauss(200)
    cells = low + (high - low) * (np.arange(3)[:, None] + (nodes + 1) / 2) / 3
    at = function(torch.from_numpy(cells).expand(2, -1, -1))
    due = (at * torch.from_numpy(weights / 2)[:, None]).sum(2).flatten(1)
    torch.testing.assert_close(found, due, rtol=1e-10, atol=1e-12)
    assert not list(readout.parameters()) and readout.state_dict().keys() <= {
        "regression.basis.centers",
        "regression.basis.widths",
    }


def test_a_readout_does_not_depend_on_where_frames_are_dense() -> None:
    torch.manual_seed(0)
    even, dense = torch.rand(1, 4000), torch.rand(1, 4000) ** 3
    found, due = (Readout(1)(t, torch.cos(3 * t).unsqueeze(-1)) for t in (dense, even))
    assert (found - due).abs() < 5e-3 < 0.3 < (torch.cos(3 * dense).mean() - due).abs()


# Refusals
def attend(score: Any = "local", **options: Any) -> object:
    layer = ContinuousAttention(8, 4, score=score, batch_first=True)
    return layer(torch.zeros(2, 3, 8), *torch.zeros(2, 2, 5, 8), torch.rand(2, 5), **options)


def at(positions: Any, score: str = "local") -> object:
    return attend(score, query_positions=positions)


def itself(t: Tensor) -> object:
    x = torch.zeros(2, 5, 8)
    return ContinuousAttention(8, 4, score="local", batch_first=True)(x, x, x, t)


PAIRS, NAME = "scores must be pairs of a LocalScore", "query_positions"
test_wrong_positions_are_refused = refused(
    [
        (attend, f"{NAME} must be given for LocalScore .* got None"),
        (partial(at, torch.rand(2, 5)), rf"{NAME} must have shape \(2, 3\).*got \(2, 5\)"),
        (partial(at, torch.full((3,), math.nan)), f"{NAME} must be in the domain .* got nan"),
        (partial(at, torch.tensor([0.0, 0.5, 1.2])), f"{NAME} must be in the domain .* got 1.2"),
        (partial(at, [0.1, 0.2, 0.3]), f"{NAME} must be a tensor, got list"),
        (partial(at, torch.rand(3), "quadratic"), f"{NAME} must be None for QuadraticScore"),
        (partial(itself, torch.full((2, 5), 3.0)), r"positions must be in .*\(0.0, 1.0\).*got 3.0"),
    ]
)
test_wrong_scores_and_readouts_are_refused = refused(
    [
        (partial(LocalScore, 0.0), "reach must be between 0.001 and 0.5, got 0.0"),
        (partial(LocalScore, math.nan), "reach must be between"),
        (partial(LocalScore, "a"), "reach must be between .* got 'a'"),
        (partial(attend, [("local", 4), ("quadratic", 4)]), r"num_heads = 4 heads .* got 4 \+ 4"),
        (partial(attend, [("local", 4), "quadratic"]), "score must be pairs of a score and its"),
        (partial(attend, []), "score must be pairs"),
        (partial(attend, [("local", 0), ("quadratic", 4)]), PAIRS),
        (partial(attend, [(KernelScore(8), 2), ("local", 2)]), PAIRS),
        (partial(attend, [("mixture", 2), ("local", 2)]), PAIRS),
        (partial(attend, [("other", 2), ("local", 2)]), "score must be 'quadratic', 'local'"),
        (partial(ContinuousAttention, 8, 3), "embed_dim must be a positive multiple of num_heads"),
        (partial(ContinuousAttention, 8, 3, head_dim=0), "head_dim must be"),
        (partial(ContinuousAttention, 8, 0, head_dim=2), "num_heads must be"),
        (partial(Readout, 0), "parts must be"),
        (partial(Readout, 2, Polynomial(2)), "regression must be a RidgeRegression"),
        (partial(Readout, 2, RidgeRegression(GaussianRBF.grid(4, 0.3, ndim=2))), "regression must"),
    ]
)
