"""The battery: all is where the parameters are."""

from typing import Any

import pytest
import torch
from battery import Case
from cases import SCALARS, every_scalar
from functions import arguments, every_function, function, functions, gradients
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

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


@every_function(SCALARS)
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
