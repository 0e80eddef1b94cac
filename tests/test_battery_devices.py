"""The battery: all is where the parameters are."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from battery import SINGLE, Case
from cases import SCALARS, every_scalar, weighed
from functions import arguments, every_function, function, functions, gradients
from layers import KINDS, data, make_layer
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from sparsefam import SparseDistribution
from sparsefam.attention import LearnedAlpha
from sparsefam.losses import fenchel_young
from sparsefam.scores import AbsoluteDeviation, Finite, MultivariateQuadratic, Quadratic, Score

MAKERS = _device_constructors()


class Elsewhere(TorchFunctionMode):
    """Puts what is made without a device on another one, as happens beside parameters on a GPU.

    Numbers may stay where they are made: they go with tensors of any device.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        chosen = kwargs.get("device") or any(isinstance(x, Tensor) for x in args[:1])
        return made if func not in MAKERS or chosen or not made.dim() else made.to("meta")


def test_what_is_made_without_a_device_is_found() -> None:
    x = torch.ones(3)
    with Elsewhere():
        assert torch.equal(x + torch.ones(3, device=x.device) + torch.tensor(1.0), 3 * x)
        with pytest.raises(RuntimeError, match="device"):
            x + torch.ones(3)


@every_function(SCALARS, part=(0, 2))
def test_nothing_is_made_on_another_device(case: Case, name: str) -> None:
    inputs, evaluate = arguments(case, name), function(case, name)
    case()  # what a family keeps for all its densities is made once
    with Elsewhere():
        found = evaluate(*inputs)
    assert found.device == inputs[0].device


@every_scalar
def test_draws_are_made_on_the_same_device(case: Case) -> None:
    p = case()
    with Elsewhere():
        t = p.sample((100,))
        inside = p.support.check(t)
    assert t.device == inside.device == p.mean.device
    assert inside.all()


# On the meta device, where reading a value raises: nothing waits for a GPU.
DRAWS: dict[str, Callable[[SparseDistribution], Tensor]] = {
    "sample": lambda p: p.sample((3,)),
    "rsample": lambda p: p.rsample((3,)),
    "support": lambda p: p.support.check(p.mean).to(p.mean.dtype) + 0 * p.mean,
}
# What is asked each time; the others with the slow tests.
OFTEN = ("log_prob", "entropy", "kl", "expect-GaussianRBF", "sample", "rsample", "support")
# What reads values, and docs/gpu.md lists: the meshes of kernel densities, and whether
# the support of a truncated density has one interval.
DIVERGENCES = ("kl", "tsallis", "bregman")
READS_VALUES: dict[str, tuple[str, ...]] = {
    "Truncated-Normal": ("support", *DIVERGENCES),
    "Truncated-Triangular": ("support", *DIVERGENCES),
    "Truncated-Gamma": ("support", *DIVERGENCES),
    "Mixture-Truncated": ("support", *DIVERGENCES, "icdf", "rsample"),
}


def on_meta(x: Tensor) -> Tensor:
    return x.detach().to("meta").requires_grad_(x.is_floating_point())


ASKED = [
    weighed(case, name, slow=name not in OFTEN or case.name == "LocationScale-quartic")
    for case in SCALARS
    for name in [*functions(case), *DRAWS]
    if not case.name.startswith("Kernel")
    and name not in READS_VALUES.get(case.name, ())
    and (name != "rsample" or case.family.connected)
]


@pytest.mark.parametrize(("case", "name"), ASKED)
def test_densities_read_no_value(case: Case, name: str, unchecked: None) -> None:
    *leaves, x = map(on_meta, arguments(case, "log_prob" if name in DRAWS else name))
    if name in DRAWS:
        found = DRAWS[name](case.of(**dict(zip(case.parameters, leaves, strict=True))))
    else:
        found = function(case, name)(*leaves, x)
    assert found.is_meta
    if found.requires_grad:
        assert all(slope.is_meta for slope in gradients(found, (*leaves, x)))


LOSSES: dict[str, tuple[Callable[..., Score], tuple[int, ...], Tensor]] = {
    "quadratic": (lambda f: Quadratic(f[..., 0], f[..., 1].exp()), (5, 2), torch.ones(5)),
    "absolute": (lambda f: AbsoluteDeviation(f[..., 0], f[..., 1].exp()), (5, 2), torch.ones(5)),
    "vectors": (
        lambda f: MultivariateQuadratic(
            f[..., 0, :], f.tril().diagonal_scatter(f[..., 0].exp(), 0, -2, -1)
        ),
        (5, 2, 2),
        torch.ones(5, 2),
    ),
    "categories": (Finite, (5, 3), torch.tensor([0, 1, 2, 0, 1])),
}


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, "learned"])
@pytest.mark.parametrize("kind", LOSSES)
def test_losses_read_no_value(kind: str, alpha: Any, unchecked: None) -> None:
    build, shape, target = LOSSES[kind]
    f = torch.empty(shape, device="meta", requires_grad=True)
    learned = torch.empty((), device="meta", requires_grad=True)
    loss = fenchel_young(build(f), target.to("meta"), learned if alpha == "learned" else alpha)
    loss.backward()
    assert f.grad is not None and f.grad.is_meta
    assert alpha != "learned" or learned.grad is not None


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, "learned"])
@pytest.mark.parametrize(("score", "combine"), KINDS)
def test_layers_read_no_value(score: str, combine: bool, alpha: Any, unchecked: None) -> None:
    alpha = LearnedAlpha(2) if alpha == "learned" else alpha
    layer = make_layer(score, combine, alpha, dtype=SINGLE, domain=(0.0, 1.0)).to("meta")
    inputs = [on_meta(x) for x in data(dtype=SINGLE)]
    padding = torch.zeros(2, 9, dtype=torch.bool, device="meta")
    masks = {"key_padding_mask": padding}, {"attn_mask": padding[0].expand(3, 9)}
    for options in ({}, *(masks if alpha == 2.0 else ())):
        context, density = layer(*inputs, **options)
        context.sum().backward()
        assert context.is_meta and density.mean.is_meta
        assert all(x.grad is None or x.grad.is_meta for x in layer.parameters())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@every_scalar
def test_on_a_gpu_values_and_gradients_are_the_same(case: Case) -> None:
    for name in functions(case):
        inputs, evaluate = arguments(case, name), function(case, name)
        moved = tuple(x.detach().cuda().requires_grad_() for x in inputs)
        expected, found = evaluate(*inputs), evaluate(*moved)
        assert found.is_cuda, name
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-9, atol=1e-9)
        for a, b in zip(gradients(found, moved), gradients(expected, inputs), strict=True):
            assert a.is_cuda, name
            torch.testing.assert_close(a.cpu(), b, rtol=1e-7, atol=1e-7)
