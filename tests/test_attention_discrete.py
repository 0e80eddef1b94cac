"""Discrete attention in blocks of queries: against its weights, its derivatives and its memory."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from battery import DOUBLE, one_graph
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from benchmarks.allocation import allocated_megabytes
from sparsefam._numerics.entmax import entmax
from sparsefam.attention import ContinuousAttention, RidgeRegression, _discrete
from sparsefam.attention._discrete import attend
from sparsefam.bases import GaussianRBF

MIXED = torch.tensor([[1.3], [2.6]], dtype=DOUBLE)


def by_weights(q: Tensor, k: Tensor, v: Tensor, alpha: Any, bias: Any = None) -> Tensor:
    scores = q @ k.mT if bias is None else q @ k.mT + bias
    return entmax(scores, alpha) @ v


def inputs(shared: bool = False) -> list[Tensor]:
    """Queries (3, 2, 5, 4), keys, values of two channels and a bias with masked keys."""
    shapes = (3, 2, 5, 4), (3, 2, 7, 4), (1, 1, 7, 2) if shared else (3, 2, 7, 2), (3, 1, 5, 7)
    *parts, bias = (torch.randn(shape, dtype=DOUBLE) for shape in shapes)
    bias[..., :3] = torch.where(bias[..., :3] > 0, -torch.inf, bias[..., :3])
    return [x.requires_grad_() for x in (*parts, bias)]


@pytest.mark.parametrize("alpha", [1.0, 1.2, 1.5, 2.0, 3.0, MIXED.clamp_max(1.8), MIXED], ids=str)
@pytest.mark.parametrize("size", [1, 30, 80, 10**6])
def test_blocks_say_what_weights_say(
    alpha: Any, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks are rows of a head, heads of an example, examples, or all there is."""
    monkeypatch.setattr(_discrete, "_BLOCK", size)
    for shared in (True, False):
        leaves = inputs(shared)
        if isinstance(alpha, Tensor):
            alpha = alpha.detach().requires_grad_()
        found, due = (f(*leaves[:3], alpha, leaves[3]) for f in (attend, by_weights))
        torch.testing.assert_close(found, due, rtol=1e-12, atol=1e-13)
        leaves += [alpha] * isinstance(alpha, Tensor)
        slope = torch.randn_like(due)
        grads = [torch.autograd.grad(x, leaves, slope) for x in (found, due)]
        torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-12)


def test_derivatives() -> None:
    q, k, v, _ = (x.detach()[:1, :1, :2, :3].requires_grad_() for x in inputs())
    alpha = torch.tensor(1.4, dtype=DOUBLE, requires_grad=True)
    assert gradcheck(attend, (q, k, v, alpha)) and gradgradcheck(attend, (q, k, v, alpha))
    (jacobian,) = torch.autograd.functional.jacobian(
        lambda q: attend(q, k, v, 1.5), (q,), vectorize=True
    )
    torch.testing.assert_close(torch.func.jacfwd(lambda q: attend(q, k, v, 1.5))(q), jacobian)
    torch.testing.assert_close(torch.func.jacrev(lambda q: attend(q, k, v, 1.5))(q), jacobian)


def test_compiled_graphs_take_blocks() -> None:
    leaves = [*inputs(), torch.tensor([[1.2], [1.9]], dtype=DOUBLE, requires_grad=True)]

    def call(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, alpha: Tensor) -> Tensor:
        return attend(q, k, v, alpha, bias)

    ways = one_graph(call), call
    found = [(y := f(*leaves), *torch.autograd.grad(y.sum(), leaves)) for f in ways]
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-14)


def test_variances_of_sharp_weights_keep_their_digits() -> None:
    """As differences of moments in float32 they would have none left."""
    t = torch.linspace(-0.5, 0.5, 2001)
    centers, width = torch.tensor([-0.47, 0.02, 0.499]), 1e-3
    scores = -((t - centers.unsqueeze(-1)) / width).square() / 2
    q, k = torch.eye(3)[None, None], scores.T[None, None].contiguous()
    values = torch.stack([t, t.square()], -1).double()[None, None]
    for alpha in (1.0, 1.5, 1.7, 2.0):
        found, due = attend(q, k, values, alpha), by_weights(q.double(), k.double(), values, alpha)
        found, due = (x[..., 1] - x[..., 0].square() for x in (found, due))
        assert ((found - due).abs() < 5e-6 * due).all()


def test_no_tensor_grows_with_the_square_of_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of the densities nor of the discrete contexts that are added."""
    monkeypatch.setattr(_discrete, "_BLOCK", 2**12)
    basis = GaussianRBF.grid(4, 0.2)
    layer = ContinuousAttention(
        2, 1, RidgeRegression(basis), 2.0, "moments", combine=True, batch_first=True
    )

    def step(length: int) -> Callable[[], None]:
        x = torch.randn(1, length, 2)
        return lambda: layer(x, x, x)[0].square().sum().backward()

    for length in (128, 512):
        step(length)()
    small, large = (allocated_megabytes(step(length)) for length in (128, 512))
    assert large < 5 * small and large < 512**2 * 4 / 1e6
