"""What Pyro's own tests ask of each of its distributions, asked of those of sparsefam.

The sdist of pyro-ppl does not ship tests/distributions/test_distributions.py, so its checks are
written anew here, with its tolerances, as of release 1.9.2.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyro
import pytest
import scipy.stats
import torch
from pyro.contrib.gp.kernels import RBF
from pyro.distributions import TorchDistribution
from pyro.distributions.testing.gof import auto_goodness_of_fit, unif01_goodness_of_fit
from pyro.distributions.util import broadcast_shape, scale_and_mask
from torch import Size, Tensor

import sparsefam as sf

pytestmark = pytest.mark.slow

DRAWS = 50_000
FAILURE_RATE = 2e-5  # of goodness-of-fit tests
PRECISION = 1e-5


@dataclass(frozen=True, eq=False)
class Example:
    """A distribution with parameters of some batch shape."""

    make: Callable[..., sf.SparseDistribution]
    parameters: dict[str, Tensor]
    scipy: Callable[..., Any] | None  # frozen distribution of one density's parameters

    def __call__(self) -> sf.SparseDistribution:
        return self.make(**self.parameters)


def _cubic(x: Tensor) -> Tensor:
    return x.abs() ** 3 / 3


def _kernel(cls: Callable[..., Any], weights: Tensor, *more: Any, **options: Any) -> Any:
    points = torch.tensor([0.125, 0.5, 0.875])
    kernel = RBF(1, lengthscale=torch.tensor(0.125))
    for parameter in kernel.parameters():
        parameter.requires_grad_(False)
    return cls(weights, points, kernel, None, *more, **options)


def _mixture(cls: Callable[..., Any], loc: Tensor, logits: Tensor) -> sf.Mixture:
    return sf.Mixture(logits, cls(loc, torch.full_like(loc, 0.75)))


def _beta(exponent: float) -> Callable[..., Any]:
    return lambda loc, scale: scipy.stats.beta(exponent + 1, exponent + 1, loc - scale, 2 * scale)


def _triangular(loc: Any, scale: Any) -> Any:
    return scipy.stats.triang(0.5, loc - scale, 2 * scale)


def _normal_vector(loc: Any, scale_tril: Any) -> Any:
    return scipy.stats.multivariate_normal(loc, scale_tril @ scale_tril.T)


LOCATION_SCALE = [
    {"loc": [2.0], "scale": [0.5]},
    {"loc": [[2.0, -1.0]], "scale": [[0.5, 3.0]]},
    {"loc": [[2.0], [-1.0]], "scale": [[0.5], [3.0]]},
]
FACTOR = [[0.5, 0.0], [-0.25, 1.5]]
VECTORS = [
    {"loc": [2.0, -1.0], "scale_tril": FACTOR},
    {"loc": [[0.0, 0.0]], "scale_tril": [[1.0, 0.0], [0.0, 1.0]]},
    {"loc": [[[2.0, -1.0]], [[0.0, 3.0]]], "scale_tril": FACTOR},
]
WEIGHTS = [{"weights": [[1.0, -2.0, 3.0]]}, {"weights": [[[1.0, -2.0, 3.0]], [[4.0, 2.0, 1.0]]]}]
COMPONENTS = [
    {"loc": [[-0.5, 0.5, 2.5]], "logits": [0.25, -0.5, 0.5]},
    {"loc": [[[-0.5, 0.5, 2.5]], [[0.0, 1.0, 1.5]]], "logits": [0.25, -0.5, 0.5]},
]
PROBS = [{"probs": [[0.5, 0.25, 0.25]]}, {"probs": [[[0.5, 0.5, 0.0]], [[0.1, 0.6, 0.3]]]}]

CONTINUOUS: dict[str, tuple[Callable[..., Any], list[dict[str, Any]], Callable[..., Any] | None]]
CONTINUOUS = {
    "TruncatedParabola": (sf.TruncatedParabola, LOCATION_SCALE, _beta(1.0)),
    "BetaGaussian": (partial(sf.BetaGaussian, alpha=1.5), LOCATION_SCALE, _beta(2.0)),
    "BetaGaussian-learned": (
        sf.BetaGaussian,
        [{**parameters, "alpha": [1.7]} for parameters in LOCATION_SCALE],
        None,
    ),
    "Triangular": (sf.Triangular, LOCATION_SCALE, _triangular),
    "BetaLaplace": (partial(sf.BetaLaplace, alpha=1.5), LOCATION_SCALE, None),
    "LocationScale": (partial(sf.LocationScale, g=_cubic), LOCATION_SCALE, None),
    "Normal": (sf.Normal, LOCATION_SCALE, scipy.stats.norm),
    "Laplace": (sf.Laplace, LOCATION_SCALE, scipy.stats.laplace),
    "KernelExp": (partial(_kernel, sf.KernelExp), WEIGHTS, None),
    "KernelDeformedExp": (partial(_kernel, sf.KernelDeformedExp, alpha=2.0), WEIGHTS, None),
    "Mixture-Normal": (partial(_mixture, sf.Normal), COMPONENTS, None),
    "Mixture-TruncatedParabola": (partial(_mixture, sf.TruncatedParabola), COMPONENTS, None),
    "TruncatedParaboloid": (sf.TruncatedParaboloid, VECTORS, None),
    "MultivariateBetaGaussian": (partial(sf.MultivariateBetaGaussian, alpha=1.5), VECTORS, None),
    "MultivariateNormal": (sf.MultivariateNormal, VECTORS, _normal_vector),
}
DISCRETE = {"SparseCategorical": (sf.SparseCategorical, PROBS, None)}


def _examples(fixtures: dict[str, Any]) -> list[Any]:
    return [
        pytest.param(Example(make, {k: torch.tensor(v) for k, v in values.items()}, scipy), id=id)
        for name, (make, examples, scipy) in fixtures.items()
        for id, values in ((f"{name}-{i}", values) for i, values in enumerate(examples))
    ]


every_continuous = pytest.mark.parametrize("example", _examples(CONTINUOUS))
every_discrete = pytest.mark.parametrize("example", _examples(DISCRETE))
every_example = pytest.mark.parametrize("example", _examples(CONTINUOUS | DISCRETE))
# Pyro's classes expand either by a method of their own or by TorchDistribution's.
both_expands = pytest.mark.parametrize("default", [False, True])
sample_shapes = pytest.mark.parametrize("sample_shape", [(), (2,), (2, 3)])


@contextmanager
def xfail_if_not_implemented() -> Iterator[None]:
    try:
        yield
    except NotImplementedError as error:
        pytest.xfail(f"not implemented: {error}")


def assert_close(x: Tensor, y: Tensor) -> None:
    torch.testing.assert_close(x, y, rtol=PRECISION, atol=PRECISION, check_stride=False)


def log_prob_shape(p: TorchDistribution, shape: Size = Size()) -> Size:
    return Size(broadcast_shape(p.shape(), shape, strict=True)[: -p.event_dim or None])


def expanded(p: TorchDistribution, shape: Any, default: bool) -> TorchDistribution:
    return TorchDistribution.expand(p, shape) if default else p.expand(shape)


def check_draws(small: TorchDistribution, large: TorchDistribution) -> None:
    x = small.sample()
    assert_close(small.log_prob(x).expand(large.batch_shape), large.log_prob(x))
    x = large.sample()
    assert x.shape == large.shape()
    assert_close(small.log_prob(x), large.log_prob(x))


# All distributions


@every_example
def test_support_holds_draws(example: Example) -> None:
    p = example()
    assert p.support.event_dim == p.event_dim
    for x in (p.sample(), p.sample((3,))):
        ok = p.support.check(x)
        assert ok.shape == broadcast_shape(p.batch_shape, x.shape[: x.dim() - p.event_dim])
        assert ok.all()


@every_example
def test_infer_shapes(example: Example) -> None:
    p = example()
    shapes = {name: value.shape for name, value in example.parameters.items()}
    if "weights" in shapes:
        shapes["inducing_points"] = Size([3])
    with xfail_if_not_implemented():
        assert type(p).infer_shapes(**shapes) == (p.batch_shape, p.event_shape)


@sample_shapes
@every_example
def test_sample_shape(example: Example, sample_shape: tuple[int, ...]) -> None:
    p = example()
    x = p.sample(sample_shape)
    assert x.shape == p.shape(sample_shape) == (*sample_shape, *p.batch_shape, *p.event_shape)
    assert p.log_prob(x).shape == (*sample_shape, *p.batch_shape)
    if p.has_rsample:
        with xfail_if_not_implemented():
            assert p.rsample(sample_shape).shape == x.shape


@every_continuous
def test_log_prob_is_that_of_scipy(example: Example) -> None:
    if example.scipy is None:
        pytest.skip("scipy has no equivalent")
    p = example()
    x = p.sample((20,)).double().numpy()
    found = p.log_prob(torch.tensor(x, dtype=p.mean.dtype))
    ranks = {"loc": p.event_dim, "scale": 0, "scale_tril": 2}
    parameters = {
        name: np.broadcast_to(
            v.double().numpy(), (*p.batch_shape, *v.shape[v.dim() - ranks[name] :])
        )
        for name, v in example.parameters.items()
    }
    for i in np.ndindex(*p.batch_shape):
        q = example.scipy(**{name: v[i] for name, v in parameters.items()})
        expected = torch.as_tensor(q.logpdf(x[(slice(None), *i)]), dtype=found.dtype)
        # Where a density vanishes its logarithm is known to fewer digits than it.
        inside = expected > expected.max() - 7
        torch.testing.assert_close(
            found[(slice(None), *i)][inside], expected[inside], rtol=1e-4, atol=1e-4
        )


@every_example
def test_log_prob_broadcasts(example: Example) -> None:
    p = example()
    one = p.sample()
    narrow = one.reshape(-1, *p.event_shape)[0]
    for x in (one, narrow, p.sample((5,)), p.sample((4, 1)), narrow.expand(4, *p.shape())):
        found = p.log_prob(x)
        assert found.shape == log_prob_shape(p, x.shape)
        assert_close(found, p.log_prob(x.expand(broadcast_shape(x.shape, p.shape()))))
    # An axis of length one in the batch widens to that of the value.
    for axis, size in enumerate(p.batch_shape):
        if size == 1:
            shape = (*p.batch_shape[:axis], 5, *p.batch_shape[axis + 1 :])
            x = p.expand(shape).sample()
            assert p.log_prob(x).shape == shape
            assert_close(p.log_prob(x), p.expand(shape).log_prob(x))


@every_example
def test_entropy_shape(example: Example) -> None:
    p = example()
    with xfail_if_not_implemented():
        assert p.entropy().shape == log_prob_shape(p)


@every_example
def test_log_prob_refuses_other_events(example: Example) -> None:
    p = example()
    if p.event_shape:
        with pytest.raises((ValueError, RuntimeError)):
            p.log_prob(torch.ones(*p.shape(), 1))


@every_example
def test_log_prob_refuses_what_does_not_broadcast(example: Example) -> None:
    p = example()
    for axis, size in enumerate(p.batch_shape):
        if size > 1:
            shape = list(p.shape())
            shape[axis] = size + 1
            with pytest.raises((ValueError, RuntimeError)):
                p.log_prob(torch.ones(shape))


@pytest.mark.parametrize("validate_args", [False, True])
def test_validation_is_pyros(validate_args: bool) -> None:
    with pyro.validation_enabled(validate_args):
        if validate_args:
            with pytest.raises(ValueError, match="scale"):
                sf.TruncatedParabola(torch.tensor(0.0), torch.tensor(-1.0))
        else:
            sf.TruncatedParabola(torch.tensor(0.0), torch.tensor(-1.0))


# Continuous ones


@every_continuous
def test_support_is_not_discrete(example: Example) -> None:
    assert not example().support.is_discrete


def goodness_of_fit(p: TorchDistribution) -> list[float]:
    """P-values of draws of each density of a batch.

    Of vectors by radius and angle of the standardised draws: Pyro's own test, by distances to the
    nearest draw, finds exact draws wrong where the density ends.
    """
    samples = p.sample((DRAWS,))
    probs = p.log_prob(samples).exp()
    if not p.event_shape:
        columns = zip(samples.reshape(DRAWS, -1).T, probs.reshape(DRAWS, -1).T, strict=True)
        return [auto_goodness_of_fit(x, y) for x, y in columns]
    factor = p.scale_tril
    z = torch.linalg.solve_triangular(factor, (samples - p.loc).unsqueeze(-1), upper=False)
    z = z.squeeze(-1).reshape(DRAWS, -1, 2)
    radius, turn = z.norm(dim=-1), torch.atan2(z[..., 1], z[..., 0]) / (2 * math.pi) + 0.5
    area = 2 * math.pi * factor.diagonal(dim1=-2, dim2=-1).prod(-1).reshape(-1)
    by_radius = radius * probs.reshape(DRAWS, -1) * area
    found = [auto_goodness_of_fit(x, y) for x, y in zip(radius.T, by_radius.T, strict=True)]
    return found + [unif01_goodness_of_fit(x) for x in turn.T]


@every_continuous
def test_goodness_of_fit(example: Example) -> None:
    with xfail_if_not_implemented():
        assert min(goodness_of_fit(example())) > FAILURE_RATE


@every_continuous
def test_cdf_inverts_icdf(example: Example) -> None:
    p = example()
    if p.event_shape.numel() != 1:
        pytest.skip("only numbers have a distribution function")
    u = torch.rand(100, *p.shape())
    with xfail_if_not_implemented():
        assert_close(p.cdf(p.icdf(u)), u)


# Discrete ones


@every_discrete
def test_enumerate_support(example: Example) -> None:
    p = example()
    assert p.support.is_discrete
    assert p.has_enumerate_support
    support = p.enumerate_support()
    count = len(support)
    assert count == example.parameters["probs"].shape[-1]
    assert support.shape == (count, *p.batch_shape, *p.event_shape)
    assert_close(support, p.enumerate_support(expand=True))
    narrow = p.enumerate_support(expand=False)
    assert narrow.shape == (count, *(1 for _ in p.batch_shape), *p.event_shape)
    assert (support == narrow).all()
    assert_close(p.log_prob(support).exp().sum(0), torch.ones(p.batch_shape))
    wide = TorchDistribution.expand(p, (4, *p.batch_shape)).enumerate_support(expand=True)
    assert wide.shape == (count, 4, *p.batch_shape)


# Expanding


@pytest.mark.parametrize("shape_type", [Size, tuple, list])
@sample_shapes
@every_example
def test_expand_by(example: Example, sample_shape: tuple[int, ...], shape_type: Any) -> None:
    small = example()
    large = small.expand_by(shape_type(sample_shape))
    assert large.batch_shape == (*sample_shape, *small.batch_shape)
    check_draws(small, large)


@both_expands
@pytest.mark.parametrize("shape_type", [Size, tuple, list])
@sample_shapes
@every_example
def test_expand_new_dim(
    example: Example, sample_shape: tuple[int, ...], shape_type: Any, default: bool
) -> None:
    small = example()
    large = expanded(small, shape_type((*sample_shape, *small.batch_shape)), default)
    assert large.batch_shape == (*sample_shape, *small.batch_shape)
    check_draws(small, large)


@both_expands
@pytest.mark.parametrize("shape_type", [Size, tuple, list])
@every_example
def test_expand_existing_dim(example: Example, shape_type: Any, default: bool) -> None:
    small = example()
    for axis, size in enumerate(small.batch_shape):
        if size == 1:
            shape = (*small.batch_shape[:axis], 5, *small.batch_shape[axis + 1 :])
            large = expanded(small, shape_type(shape), default)
            assert large.batch_shape == shape
            check_draws(small, large)


@both_expands
@pytest.mark.parametrize(
    "shapes", [[(2, 1), (2, 3)], [(2, 1, 1), (2, 1, 3), (2, 5, 3)]], ids=["two", "three"]
)
@every_example
def test_subsequent_expands(example: Example, shapes: list[tuple[int, ...]], default: bool) -> None:
    p = example()
    batch = p.batch_shape
    for shape in shapes:
        q = expanded(p, Size(shape) + batch, default)
        assert q.batch_shape == (*shape, *batch)
        check_draws(p, q)
        p = q


@both_expands
@pytest.mark.parametrize(
    ("initial", "proposed"),
    [((2, 1), (4, 3)), ((2, 4), (2, 2, 1)), ((1, 2, 1), (2, 1))],
)
@every_example
def test_expand_error(
    example: Example, initial: tuple[int, ...], proposed: tuple[int, ...], default: bool
) -> None:
    small = example()
    large = expanded(small, Size(initial) + small.batch_shape, default)
    with pytest.raises((RuntimeError, ValueError)):
        large.expand(Size(proposed) + small.batch_shape)


# Batches as events, and masks


@pytest.mark.parametrize("count", [0, 1, 2, 3])
@pytest.mark.parametrize("batch_shape", [(), (4,), (5, 3)])
@every_example
def test_to_event(example: Example, batch_shape: tuple[int, ...], count: int) -> None:
    p = example().expand_by(batch_shape)
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
    wide = q.expand((6, *q.batch_shape))
    assert wide.sample().shape == (6, *p.shape())


def checkers(shape: Size) -> Tensor:
    return torch.arange(shape.numel()).reshape(shape) % 2 == 0


@pytest.mark.parametrize("dims", [0, 1, 2])
@every_example
def test_mask(example: Example, dims: int) -> None:
    p = example().expand_by((4, 3))
    mask = checkers(p.batch_shape[len(p.batch_shape) - dims :])
    q = p.mask(mask)
    assert (q.batch_shape, q.event_shape) == (p.batch_shape, p.event_shape)
    x = p.sample()
    assert_close(q.log_prob(x), scale_and_mask(p.log_prob(x), mask=mask))
    if p.has_enumerate_support:
        assert_close(q.enumerate_support(), p.enumerate_support())
    else:
        assert_close(q.mean, p.mean)
        assert_close(q.variance, p.variance)
        found, expected = q.score_parts(x), p.score_parts(x).scale_and_mask(mask=mask)
        assert all(
            torch.equal(torch.as_tensor(a), torch.as_tensor(b))
            for a, b in zip(found, expected, strict=True)
        )
