"""The battery: draws follow the density, and their derivatives those of expectations."""

import pytest
import torch
from battery import DOUBLE, SINGLE, Case
from cases import CASES, every_case, every_connected_line, every_dtype, half_of_the_cases, weighed
from pyro.distributions.testing.gof import auto_goodness_of_fit, unif01_goodness_of_fit
from torch import Tensor

from sparsefam import BetaGaussian, Normal, SparseDistribution
from sparsefam.bases import Fourier

DRAWS, PATHS = 20_000, 8_000
# Between many more draws the gaps would be as small as float32's spacing.
SPACED = {SINGLE: 4_000, DOUBLE: DRAWS}
float32_slowly = pytest.mark.parametrize(
    "dtype", [pytest.param(SINGLE, marks=pytest.mark.slow), DOUBLE], ids=str
)


def views(case: Case, t: Tensor, p: SparseDistribution) -> tuple[Tensor, SparseDistribution]:
    """Numbers computed from the draws, and their law: of vectors, projections on five directions.

    A law is known by its projections. Pyro's own test of vectors looks at nearest neighbors, which
    in eight dimensions are no longer near, and at jumps of the density lie outside.
    """
    if not case.event_shape:
        return t, p
    (dim,) = case.event_shape
    along = torch.randn(5, dim, dtype=t.dtype, generator=torch.Generator().manual_seed(0))
    loc = p.loc @ along.mT
    scale = torch.linalg.vector_norm(along @ p.scale_tril, dim=-1)
    m = 1 / (p.alpha.unsqueeze(-1) - 1)
    normal = case.name.startswith("MultivariateNormal")
    law = Normal(loc, scale) if normal else BetaGaussian(loc, scale, 1 + 1 / (m + (dim - 1) / 2))
    return t @ along.mT, law


def fit(case: Case, dtype: torch.dtype, count: int) -> float:
    """The least p-value of draws, times the number of p-values."""
    p = case(dtype)
    t = p.sample((count,))
    assert not t.requires_grad
    x, law = views(case, t, p)
    columns = (y.reshape(len(y), -1).unbind(-1) for y in (x, law.prob(x), law.cdf(x[:4_000])))
    values = []
    for numbers, probs, levels in zip(*columns, strict=True):
        # Of gaps between draws, which see a jump, and of levels, which see a trend.
        values += [auto_goodness_of_fit(numbers, probs), unif01_goodness_of_fit(levels)]
    return min(values) * len(values)


@float32_slowly
@half_of_the_cases(0)
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


def moments(p: SparseDistribution, along: Tensor) -> Tensor:
    """Expectations of (w't)^2 and cos(w't), from closed forms."""
    square = (p.mean @ along).square() + (p.covariance_matrix @ along) @ along
    wave = Fourier([along.tolist()]).to(p.mean.dtype)
    return torch.stack([square, p.expect(wave)[..., 0]])


# Draws of numbers keep their level exactly; of vectors there are means to compare.
@float32_slowly
@pytest.mark.parametrize(
    "case", [weighed(case) for case in CASES if case.family.connected and case.event_shape]
)
def test_pathwise_gradients_are_those_of_the_expectation(case: Case, dtype: torch.dtype) -> None:
    # A parameter for every draw: its gradient is one draw of the estimate.
    leaves, spread = (
        {k: v.detach().clone().requires_grad_() for k, v in case.spread(shape, leaves).items()}
        for shape in (case.batch_shape, (PATHS, *case.batch_shape))
        for leaves in [case.leaves(dtype)]
    )
    along = torch.linspace(0.5, 1.25, case.event_shape[0], dtype=dtype)
    projected = case.of(**spread).rsample() @ along
    for value, mean in zip(
        (projected.square(), projected.cos()), moments(case.of(**leaves), along), strict=True
    ):
        exact = torch.autograd.grad(mean.sum(), list(leaves.values()), retain_graph=True)
        draws = torch.autograd.grad(value.sum(), list(spread.values()), retain_graph=True)
        for key, found, goal in zip(leaves, draws, exact, strict=True):
            error = found.std(0) / PATHS**0.5
            # Draws 12 standard deviations away, on which some depend alone, are never seen.
            rounding = torch.finfo(dtype).eps * goal.abs().amax()
            assert ((found.mean(0) - goal).abs() <= 5 * error + rounding).all(), key
