"""Mixtures in compiled graphs: members, and draws with their derivatives."""

import pytest
import torch
from test_mixture_gradients import MEMBERS, leaves, normals, parabolas, unlike
from torch import Tensor
from torch import distributions as td

from sparsefam import Mixture as _M
attached = _M._attach_sample

# Tracing takes seconds, of windows ten, of the steps to a root half a minute.
COMPILED = [
    (make, name)
    for make in (normals, parabolas)
    for name in ("log_prob", "cdf", "entropy", "expect-callable")
] + [(normals, "expect"), (unlike, "log_prob")]
SLOW = [(parabolas, "expect"), (unlike, "expect"), (normals, "icdf"), (parabolas, "covariance")]


@pytest.mark.parametrize(
    ("make", "name"), [*COMPILED, *(pytest.param(*x, marks=pytest.mark.slow) for x in SLOW)]
)
def test_compiled_they_are_the_same(make, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # torch cannot trace its own validation of distributions, and so switches it off itself.
    monkeypatch.setattr(td.Distribution, "_validate_args", False)
    args = tuple(x.detach() for x in leaves(2))

    def ask(*args: Tensor) -> Tensor:
        return MEMBERS[name](make(*args))

    torch._dynamo.reset()
    compiled = torch.compile(ask, fullgraph=True, backend="aot_eager")(*args)
    torch.testing.assert_close(compiled, ask(*args))


@pytest.mark.parametrize("make", [normals, parabolas])
def test_compiled_draws_have_the_derivatives(make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(td.Distribution, "_validate_args", False)

    def draw(*args: Tensor) -> Tensor:
        return make(*args).rsample((50,))

    torch._dynamo.reset()
    args = leaves()
    t = torch.compile(draw, fullgraph=True, backend="aot_eager")(*args)
    p = make(*args)
    assert t.shape == (50,) and p.support.check(t).all()
    found = torch.autograd.grad(t.square().sum(), args)
    expected = torch.autograd.grad(attached(p, t.detach()).square().sum(), args)
    torch.testing.assert_close(found, expected)
    if make is parabolas:
        weights, loc, scale = args
        with pytest.raises(RuntimeError, match="use rsample_components"):
            torch.compile(draw, fullgraph=True, backend="aot_eager")(weights, 99 * loc, scale)
