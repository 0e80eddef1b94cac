"""What the families tend to: the normal and Laplace's density as alpha goes to 1."""

from collections.abc import Callable

import pytest
import torch
from cases import DOUBLE, every_dtype
from torch import Tensor

from sparsefam import BetaGaussian, BetaLaplace, Laplace, Normal, SparseDistribution
from sparsefam.bases import Fourier, GaussianRBF

LIMITS = {
    "gaussian": (BetaGaussian.from_sigma, Normal),
    "laplace": (BetaLaplace.from_b, Laplace),
}
every_limit = pytest.mark.parametrize("name", LIMITS)
ALPHAS: dict[str, Callable[[float, torch.dtype], Tensor | float]] = {
    "number": lambda e, dtype: 1 + e,
    "tensor": lambda e, dtype: torch.tensor(1.0, dtype=dtype) + e,
}
CENTERS, SHARES = torch.linspace(-2, 2, 9), torch.linspace(-3, 3, 41).unsqueeze(-1)


def locations(p: SparseDistribution) -> Tensor:
    """Within three score scales of loc, for the parameters of `difference`."""
    return p.loc + p.loc.new_tensor([0.5, 2.0]) * SHARES.to(p.loc.dtype)


QUANTITIES: dict[str, Callable[[SparseDistribution], Tensor]] = {
    "log_prob": lambda p: p.log_prob(locations(p)),
    "cdf": lambda p: p.cdf(locations(p)),
    "icdf": lambda p: p.icdf(p.loc.new_tensor([[0.01], [0.4]])),
    "variance": lambda p: p.variance,
    "entropy": lambda p: p.entropy(),
    "tsallis_entropy": lambda p: p.tsallis_entropy(),
    "log_normalizer": lambda p: p.log_normalizer,
    "rbf": lambda p: p.expect(GaussianRBF(CENTERS.to(p.loc.dtype), 0.5)),
    "waves": lambda p: p.expect(Fourier(p.loc.new_tensor([0.5, 2.0]))),
}


def difference(name: str, quantity: str, alpha: Tensor | float, dtype: torch.dtype) -> float:
    """The largest, in units of the limit where that is above one."""
    family, limit = LIMITS[name]
    loc, width = torch.tensor([[0.25, -0.5], [0.5, 2.0]], dtype=dtype)
    found, goal = (
        QUANTITIES[quantity](p).double() for p in (family(loc, width, alpha), limit(loc, width))
    )
    return (found - goal).abs().max().item() / max(1, goal.abs().max().item())


@pytest.mark.parametrize("kind", ALPHAS)
@pytest.mark.parametrize("quantity", QUANTITIES)
@every_limit
def test_the_distance_to_the_limit_is_linear_in_alpha_down_to_rounding(
    name: str, quantity: str, kind: str
) -> None:
    rate = difference(name, quantity, 1 + 1e-4, DOUBLE) / 1e-4
    for dtype, noise in ((DOUBLE, 1e-9), (torch.float32, 1e-5)):
        for e in (1e-3, 1e-4, 1e-5, 1e-6):
            alpha = ALPHAS[kind](e, dtype)
            gap = float(torch.as_tensor(alpha, dtype=dtype).double()) - 1
            found = difference(name, quantity, alpha, dtype)
            assert abs(found - rate * gap) < 0.05 * rate * gap + noise


@every_dtype
@every_limit
def test_gradients_stay_finite_next_to_the_limit(name: str, dtype: torch.dtype) -> None:
    family, _ = LIMITS[name]
    leaves = [torch.tensor(v, dtype=dtype, requires_grad=True) for v in (0.25, 0.5, 1 + 1e-6)]
    for quantity, function in QUANTITIES.items():
        value = function(family(*leaves)).sum()
        found = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
        assert all(g.isfinite() for g in found), quantity


@every_limit
def test_the_score_scale_survives_the_round_trip(name: str) -> None:
    family, _ = LIMITS[name]
    for alpha in (1 + 1e-6, 1.01, 1.5, 2.0, 7.0, 1e3):
        width = torch.tensor([1e-3, 0.5, 40.0])
        p = family(0.0, width, alpha)
        back = p.sigma if name == "gaussian" else p.b
        # The half-width goes with a power of it that vanishes as alpha grows.
        condition = 1 + (alpha - 1) / (2 if name == "gaussian" else 1)
        torch.testing.assert_close(back, width, rtol=2e-6 * condition, atol=0)
