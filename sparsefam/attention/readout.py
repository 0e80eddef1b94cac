"""Readouts: from sequences of any length to vectors, the means of value functions over parts."""

import math

import torch
from torch import Tensor, nn

from .._numerics.validation import require_integer
from ..distributions import BetaGaussian
from .regression import RidgeRegression

__all__ = ["Readout"]


class Readout(nn.Module):
    r"""Summarizes a value function by its means over parts of the domain, after an encoder.

    The values of a sequence become a function V by a regression, and the result is
    $\int_{I_k} V(t)\,dt / |I_k|$ for intervals $I_k$, side by side. Unlike the mean over frames it
    does not depend on where frames are dense. With one part it is the mean over time; with several
    it tells where things are, as `torch.nn.AdaptiveAvgPool1d` does on a grid.

    Args:
        parts: Number of intervals, equal parts of the regression's domain.
        regression: How functions are fitted, with a basis of numbers. None: `RidgeRegression()`,
            for positions in [0, 1].

    Raises:
        ValueError: `parts` not a positive integer, or locations of the basis are vectors.

    Examples:
        >>> readout = Readout(parts=4)
        >>> readout(torch.rand(2, 30), torch.randn(2, 30, 8)).shape
        torch.Size([2, 32])
    """

    def __init__(self, parts: int = 4, regression: RidgeRegression | None = None) -> None:
        super().__init__()
        require_integer("parts", parts, 1)
        regression = RidgeRegression() if regression is None else regression
        if not isinstance(regression, RidgeRegression) or len(regression.domain) != 1:
            rule = "regression must be a RidgeRegression with a basis of numbers and a domain"
            raise ValueError(f"{rule}, got {regression!r}")
        self.parts, self.regression = parts, regression

    def extra_repr(self) -> str:
        return f"parts={self.parts}"

    def forward(
        self, positions: Tensor, values: Tensor, key_padding_mask: Tensor | None = None
    ) -> Tensor:
        """Return the means of functions that are fitted to values, (B, parts * E).

        Args:
            positions: As for `RidgeRegression.fit`, (B, L) or (L,).
            values: Shape (B, L, E).
            key_padding_mask: Shape (B, L), True, or -inf, where a position is padding.

        Raises:
            ValueError: As `RidgeRegression.fit`.
        """
        function = self.regression.fit(positions, values, key_padding_mask=key_padding_mask)
        ((low, high),) = self.regression.domain
        # Parts are [center - half, center + half], side by side.
        half = (high - low) / (2 * self.parts)
        like = function.coefficients
        index = torch.arange(self.parts, dtype=like.dtype, device=like.device)
        # Uniform densities are the beta-Gaussians at infinity.
        uniform = BetaGaussian(low + half * (2 * index + 1), half, math.inf).expand([1, self.parts])
        return function.expect(uniform).flatten(1)
