"""What Pyro's own tests ask of its distributions about expanding and events, asked of ours.

The sdist of pyro-ppl does not ship tests/distributions/test_distributions.py, so its checks are
written anew here, as of release 1.9.2. Those of shapes, samples, densities and distribution
functions are in test_battery_*.py.
"""

from typing import Any

import pyro
import pytest
import torch
from battery import SINGLE, Case
from cases import BATCHES, CASES
from pyro.distributions import TorchDistribution
from torch import Size, Tensor

import sparsefam as sf

pytestmark = pytest.mark.slow


def narrow(case: Case) -> TorchDistribution:
    """The first row of a batch, as a batch of shape (1, 3)."""
    leaves = case.spread(case.batch_shape, {k: v.detach() for k, v in case.leaves(SINGLE).items()})
    return case.family.make(**{name: v[:1] for name, v in leaves.items()})


PROBS = torch.tensor([[[0.5, 0.5, 0.0]], [[0.1, 0.6, 0.3]]])
every_example = pytest.mark.parametrize(
    "make",
    [
        *(pytest.param(lambda case=case: case(SINGLE), id=case.name) for case in CASES),
        *(pytest.param(lambda case=case: narrow(case), id=f"{case}-1") for case in BATCHES),
        pytest.param(lambda: sf.SparseCategorical(PROBS), id="SparseCategorical"),
    ],
)
# Pyro's classes expand either by a method of their own or by TorchDistribution's.
both_expands = pytest.mark.parametrize("default", [False, True])


def assert_close(x: Tensor, y: Tensor) -> None:
    torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5, check_stride=False)


def expanded(p: TorchDistribution, shape: Any, default: bool) -> TorchDistribution:
    return TorchDistribution.expand(p, shape) if default else p.expand(shape)


def check_draws(small: TorchDistribution, large: TorchDistribution) -> None:
    x = small.sample()
    assert_close(small.log_prob(x).expand(large.batch_shape), large.log_prob(x))
    x = large.sample()
    assert x.shape == large.shape()
    assert_close(small.log_prob(x), large.log_prob(x))


@pytest.mark.parametrize("validate_args", [False, True])
def test_validation_is_pyros(validate_args: bool) -> None:
    with pyro.validation_enabled(validate_args):
        if validate_args:
            with pytest.raises(ValueError, match="scale"):
                sf.TruncatedParabola(torch.tensor(0.0), torch.tensor(-1.0))
        else:
            sf.TruncatedParabola(torch.tensor(0.0), torch.tensor(-1.0))


def test_enumerate_support() -> None:
    p = sf.SparseCategorical(PROBS)
    assert p.support.is_discrete and p.has_enumerate_support
    support, narrow = p.enumerate_support(), p.enumerate_support(expand=False)
    assert support.shape == (3, 2, 1) and narrow.shape == (3, 1, 1)
    assert (support == narrow).all()
    assert_close(p.log_prob(support).exp().sum(0), torch.ones(2, 1))
    wide = TorchDistribution.expand(p, (4, 2, 1)).enumerate_support(expand=True)
    assert wide.shape == (3, 4, 2, 1)


@both_expands
@every_example
def test_subsequent_expands(make: Any, default: bool) -> None:
    p = make()
    batch = p.batch_shape
    for shape in ((2, 1, 1), (2, 1, 3), (2, 5, 3)):
        q = expanded(p, Size(shape) + batch, default)
        assert q.batch_shape == (*shape, *batch)
        check_draws(p, q)
        p = q
    for proposed in ((4, 5, 3), (2, 5, 1), (5, 3)):
        with pytest.raises((RuntimeError, ValueError)):
            p.expand(Size(proposed) + batch)


@pytest.mark.parametrize("count", [0, 1, 2, 3])
@pytest.mark.parametrize("batch_shape", [(), (4,)])
@every_example
def test_to_event(make: Any, batch_shape: tuple[int, ...], count: int) -> None:
    p = make().expand_by(batch_shape)
    kept = len(p.batch_shape) - count
    if kept < 0:
        with pytest.raises(ValueError):
            p.to_event(count)
        return
    q = p.to_event(count)
    assert q.batch_shape == p.batch_shape[:kept]
    assert q.event_shape == p.batch_shape[kept:] + p.event_shape
    x = q.sample((2,))
    assert x.shape == (2, *p.shape())
    expected = p.log_prob(x)
    assert_close(q.log_prob(x), expected.flatten(kept + 1).sum(-1) if count else expected)
    assert q.expand((6, *q.batch_shape)).sample().shape == (6, *p.shape())
