"""Modules: their state is tensors alone, and all that their answers depend on."""

import copy
import importlib
import inspect
import io
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from battery import DOUBLE, bases
from layers import SCORES, data, make_layer
from pyro.nn import PyroModule
from torch import Tensor, nn

import sparsefam
from sparsefam.attention import LearnedAlpha, Readout, RidgeRegression
from sparsefam.attention.memory import ContractingMemory, ForgettingMemory
from sparsefam.bases import GaussianRBF
from sparsefam.losses import ClassificationHead, RegressionHead

Answer = Callable[[nn.Module], Tensor]


def _attention(score: Any, ndim: int = 1, **options: Any) -> tuple[nn.Module, Answer]:
    torch.manual_seed(1)
    inputs = data(ndim=ndim)
    return make_layer(score, ndim=ndim, **options), lambda layer: layer(*inputs)[0]


def _regression() -> tuple[nn.Module, Answer]:
    t = torch.linspace(0, 1, 20, dtype=DOUBLE).unsqueeze(0)
    module = RidgeRegression(GaussianRBF.grid(4, 0.2).to(DOUBLE), 0.1)
    return module, lambda module: module.fit(t, t.sin().unsqueeze(-1))(t)


def _memory(make: Callable[[RidgeRegression], nn.Module]) -> tuple[nn.Module, Answer]:
    t = torch.linspace(0.05, 0.95, 20, dtype=DOUBLE).unsqueeze(0)

    def answer(memory: nn.Module) -> Tensor:
        state = None
        for chunk in t.split(10, 1):
            function, state = memory(chunk, chunk.sin().unsqueeze(-1), state)
        found: Tensor = function(t)
        return found

    return make(RidgeRegression(GaussianRBF.grid(4, 0.2).to(DOUBLE), 0.1)), answer


def modules() -> Iterator[tuple[str, nn.Module, Answer]]:
    for dim in (None, 2):
        t = torch.linspace(-1, 1, 12, dtype=DOUBLE).reshape(-1, *(() if dim is None else (dim,)))
        for name, basis in bases(dim, DOUBLE).items():
            yield f"{name}-{dim or 1}d", basis, lambda basis, t=t: basis(t)
    both = bases(None, DOUBLE)
    t = torch.linspace(-1, 1, 12, dtype=DOUBLE)
    yield "Sum", both["Fourier"] + both["GaussianRBF"], lambda basis: basis(t)
    yield "LearnedAlpha", LearnedAlpha(2, 1.5, dtype=DOUBLE), lambda module: module()
    rows = torch.randn(5, 3)
    yield "RegressionHead", RegressionHead(3), lambda head: head(rows).variance
    yield "ClassificationHead", ClassificationHead(3, 4), lambda head: head(rows).probs
    yield "RidgeRegression", *_regression()
    yield "ForgettingMemory", *_memory(ForgettingMemory)
    yield "ContractingMemory", *_memory(ContractingMemory)
    for score in SCORES:
        yield f"attention-{score}", *_attention(score)
    yield "attention-split", *_attention([("local", 1), ("quadratic", 1)])
    t = torch.linspace(0.05, 0.95, 20, dtype=DOUBLE).unsqueeze(0)
    readout = Readout(2, RidgeRegression(GaussianRBF.grid(4, 0.2).to(DOUBLE)))
    yield "Readout", readout, lambda module, t=t: module(t, t.sin().unsqueeze(-1))
    yield "attention-plane", *_attention("quadratic", 2)
    yield "attention-combined", *_attention("quadratic", combine=True)


MODULES = {name: (module, answer) for name, module, answer in modules()}


@pytest.mark.parametrize("name", MODULES)
def test_state_is_saved_and_loaded_as_tensors(name: str) -> None:
    module, answer = MODULES[name]
    twin, file = copy.deepcopy(module), io.BytesIO()
    with torch.no_grad():
        for tensor in twin.state_dict().values():
            tensor.mul_(0.875) if tensor.is_floating_point() else None
    getattr(twin, "rebuild_cache", bool)()
    expected = answer(module)
    assert bool(twin.state_dict()) != torch.equal(answer(twin), expected)
    torch.save(module.state_dict(), file)
    file.seek(0)
    twin.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(answer(twin), expected)


def test_every_module_is_asked() -> None:
    found = set()
    for info in pkgutil.walk_packages(sparsefam.__path__, "sparsefam."):
        for name, kind in inspect.getmembers(importlib.import_module(info.name), inspect.isclass):
            ours = issubclass(kind, nn.Module) and kind.__module__.startswith("sparsefam.")
            if ours and not inspect.isabstract(kind) and not name.startswith("_"):
                found.add(kind)
    # A guide's state is that of its model's sites: Pyro's own modules, and tests of theirs.
    found = {kind for kind in found if not issubclass(kind, PyroModule)}
    asked = {type(part) for module, _ in MODULES.values() for part in module.modules()}
    missing = {kind for kind in found if not any(issubclass(one, kind) for one in asked)}
    assert not missing
