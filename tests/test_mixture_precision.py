"""Expectations of mixtures in float32 against float64, for supports from 1e-4 to 1e4 wide."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch import distributions as td

from sparsefam import BetaGaussian, Laplace, Mixture, Normal, Triangular, TruncatedParabola, bases

FAMILIES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "TruncatedParabola": TruncatedParabola,
    "Normal": Normal,
    "Triangular": Triangular,
    "BetaGaussian": lambda loc, scale: BetaGaussian(loc, scale, 1.5),
    "Laplace": Laplace,
    "Gumbel": td.Gumbel,
    "Gamma": lambda loc, scale: td.Gamma(1 + loc.square(), 1 / scale),
    "unlike": lambda loc, scale: [
        kind(loc[..., k], scale[..., k])
        for k, kind in enumerate((TruncatedParabola, td.Gumbel, Laplace))
    ],
}
BASES = {
    "wide": bases.GaussianRBF(torch.linspace(-2, 2, 5), 3.0),
    "narrow": bases.GaussianRBF(torch.linspace(-1, 1, 9), 0.0078125),
    "Polynomial": bases.Polynomial(3),
    "BSpline": bases.BSpline(torch.linspace(-1, 1, 6), 3),
    "Indicator": bases.Indicator(torch.linspace(-1, 1, 6)),
}
# One component is of the first width and one of the second.
WIDTHS = torch.tensor([[1e-4, 1.0], [1e4, 0.01], [100.0, 1e-4], [1.0, 1.0], [1e4, 1.0]])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("basis", BASES)
def test_single_precision_is_enough(family: str, basis: str) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, loc = torch.randn(2, 5, 3, generator=generator)
    scale = torch.cat([WIDTHS, torch.full((5, 1), 0.0625)], -1)

    def asked(dtype: torch.dtype) -> list[Tensor]:
        psi = copy.deepcopy(BASES[basis]).to(dtype)
        leaves = tuple(x.to(dtype) for x in (logits, loc, scale))

        def expect(logits: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
            return Mixture(logits, FAMILIES[family](loc, scale)).expect(psi)

        # Rows of the batch are independent: their sum has the Jacobian of each.
        jacobian = torch.func.jacrev(lambda *x: expect(*x).sum(0), argnums=(0, 1, 2))(*leaves)
        units = (torch.ones_like(leaves[0]), leaves[2], leaves[2])
        slopes = [x.movedim(0, 1) * u[:, None] for x, u in zip(jacobian, units, strict=True)]
        return [expect(*leaves), *slopes]

    single, double = asked(torch.float32), asked(torch.float64)
    value = double[0].norm(dim=-1)
    for a, b, limit in zip(single, double, (2e-6, 2e-5, 2e-5, 2e-5), strict=True):
        assert a.dtype == torch.float32
        error, size = (x.flatten(1).norm(dim=-1) for x in (a.double() - b, b))
        # Derivatives by logits and in units of the scales, which may vanish: of the value's size.
        assert (error <= limit * torch.maximum(size, value)).all()
