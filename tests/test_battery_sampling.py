"""The battery: draws follow the density, and their derivatives those of expectations."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from battery import DOUBLE, SINGLE, Case
from cases import every_case, every_connected_line, every_dtype, every_thorough_case
from pyro.distributions.testing.gof import auto_goodness_of_fit, unif01_goodness_of_fit
from references import Array
from torch import Tensor

from sparsefam import SparseDistribution
from sparsefam.bases import Fourier

DRAWS, PATHS = 20_000, 8_000
# Between many more draws the gaps would be as small as float32's spacing.
SPACED = {SINGLE: 4_000, DOUBLE: DRAWS}
float32_slowly = pytest.mark.parametrize(
    "dtype", [pytest.param(SINGLE, marks=pytest.mark.slow), DOUBLE], ids=str
)


# Numbers, and the densities and levels that they should have.
View = tuple[Tensor, Tensor, Tensor]


def views(case: Case, p: SparseDistribution, t: Tensor) -> Iterator[View]:
    """Numbers computed from the draws of each density.

    Of vectors, the radius and four projections in the coordinates of the reference: a law is known
    by its projections. Pyro's own test of vectors looks at nearest neighbours, which in eight
    dimensions are no longer near, and at jumps of the density lie outside.
    """
    if not case.event_shape:
        columns = (x.reshape(len(x), -1).unbind(-1) for x in (t, p.prob(t), p.cdf(t[:4_000])))
        yield from zip(*columns, strict=True)
        return
    rows = t.double().reshape(len(t), -1, *case.event_shape).unbind(1)
    for r, row in zip(case.references, rows, strict=True):
        u = np.linalg.solve(r.factor, (row.numpy() - r.centre).T).T
        radius = np.linalg.norm(u, axis=-1)
        yield _view(radius, *r.radius(radius))
        for axis in np.random.default_rng(0).normal(size=(4, len(r.centre))):
            x = u @ axis / np.linalg.norm(axis)
            yield _view(x, *r.projected(x))


def _view(*columns: Array) -> View:
    x, probs, levels = (torch.as_tensor(column) for column in columns)
    return x, probs, levels


def fit(case: Case, dtype: torch.dtype, count: int) -> float:
    """The least p-value of draws, times the number of p-values."""
    p = case(dtype)
    t = p.sample((count,))
    assert not t.requires_grad
    values = []
    for x, probs, levels in views(case, p, t):
        # Of gaps between draws, which see a jump, and of levels, which see a trend.
        values += [auto_goodness_of_fit(x, probs), unif01_goodness_of_fit(levels)]
    return min(values) * len(values)


@float32_slowly
@every_case
def test_draws_follow_the_density(case: Case, dtype: torch.dtype) -> None:
    # Kernel densities search each quantile.
    assert fit(case, dtype, SPACED[dtype] // (4 if case.family.signed else 1)) > 1e-3


@every_dtype
@every_case
def test_draws_repeat_with_the_seed_and_differ_within(case: Case, dtype: torch.dtype) -> None:
    p = case(dtype)
    torch.manual_seed(3)
    t = p.sample((100,))
    torch.manual_seed(3)
    again = p.rsample((100,)).detach() if p.has_rsample else p.sample((100,))
    assert torch.equal(again, t)
    assert len(t.flatten().unique()) > 0.98 * t.numel()


@every_connected_line
def test_draws_keep_their_level_as_parameters_change(case: Case) -> None:
    leaves = case.leaves()
    p = case.of(**leaves)
    levels = p.cdf(p.rsample((100,)))
    kept = torch.autograd.grad(levels.sum(), list(leaves.values()), retain_graph=True)
    # As large as the derivative is at a draw that stays where it is.
    moved = torch.autograd.grad(p.cdf(p.sample((100,))).abs().sum(), list(leaves.values()))
    for name, found, scale in zip(leaves, kept, moved, strict=True):
        assert (found.abs() < 1e-9 * (1 + scale.abs())).all(), name


def weights(p: SparseDistribution) -> Tensor:
    return torch.linspace(0.5, 1.25, p.event_shape[0], dtype=p.mean.dtype)


def square(p: SparseDistribution, t: Tensor) -> Tensor:
    """t^2, of vectors that of a sum of all coordinates."""
    return (t @ weights(p) if p.event_shape else t).square()


def mean_square(p: SparseDistribution) -> Tensor:
    """The expectation of `square`, from the closed forms of moments."""
    if not p.event_shape:
        return p.variance + p.mean.square()
    w = weights(p)
    return (p.mean @ w).square() + (p.covariance_matrix @ w) @ w


def cosine(p: SparseDistribution, t: Tensor) -> Tensor:
    return torch.cos(t @ weights(p) if p.event_shape else t)


def mean_cosine(p: SparseDistribution) -> Tensor:
    psi = Fourier([weights(p).tolist()] if p.event_shape else [1.0]).to(p.mean.dtype)
    return p.expect(psi)[..., 0]


# What draws are mapped to, and its expectation.
PATHWISE = {"square": (square, mean_square), "cos": (cosine, mean_cosine)}


@pytest.mark.parametrize("name", PATHWISE)
@float32_slowly
@every_thorough_case
def test_pathwise_gradients_are_those_of_the_expectation(
    case: Case, dtype: torch.dtype, name: str
) -> None:
    g, expectation = PATHWISE[name]
    # A parameter for every draw: its gradient is one draw of the estimate. Panels serve them all.
    paths = PATHS // 10 if case.family.signed else PATHS
    leaves, spread = (
        {k: v.detach().clone().requires_grad_() for k, v in case.spread(shape, leaves).items()}
        for shape in (case.batch_shape, (paths, *case.batch_shape))
        for leaves in [case.leaves(dtype)]
    )
    p, q = case.of(**leaves), case.of(**spread)
    exact = torch.autograd.grad(expectation(p).sum(), list(leaves.values()))
    draws = torch.autograd.grad(g(q, q.rsample()).sum(), list(spread.values()))
    for key, found, goal in zip(leaves, draws, exact, strict=True):
        error = found.std(0) / paths**0.5
        # Draws 12 standard deviations away, on which some depend alone, are never seen.
        rounding = torch.finfo(dtype).eps * goal.abs().amax()
        assert ((found.mean(0) - goal).abs() <= 5 * error + rounding).all(), key
