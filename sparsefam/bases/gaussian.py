"""Gaussian radial basis functions."""

import math

import torch
from torch import Tensor

from .arguments import (
    Values,
    check_finite,
    check_vector,
    common_dtype,
    floating,
    store,
)
from .base import Basis

__all__ = ["GaussianRBF"]

_SQRT_TWO_PI = math.sqrt(2 * math.pi)


class GaussianRBF(Basis):
    r"""Gaussian radial basis functions, each a normalised density.

    $$\psi_j(t) = \mathcal N(t; \mu_j, s_j^2)$$

    Args:
        centers: Centers $\mu_j$, shape (N,).
        widths: Standard deviations $s_j > 0$: one for all, or shape (N,).

    An `nn.Parameter` stays a parameter and is learned; anything else becomes a buffer. Only the
    initial widths are checked: keep learned ones positive with `torch.nn.utils.parametrize`.

    Raises:
        ValueError: If a center is not finite, a width not finite and positive, or a shape wrong.

    References:
        Martins et al. (2020), Sparse and Continuous Attention, section 3. arXiv:2006.07214

    Examples:
        >>> GaussianRBF([0.0, 1.0], 0.5)(torch.tensor(0.0))
        tensor([0.7979, 0.1080])
    """

    centers: Tensor
    widths: Tensor

    def __init__(self, centers: Values, widths: Values) -> None:
        super().__init__()
        dtype = common_dtype(centers, widths)
        centers, widths = floating(centers, dtype), floating(widths, dtype)
        check_finite("centers", centers)
        check_vector("centers", centers)
        if not bool((widths.isfinite() & (widths > 0)).all()):
            raise ValueError(f"widths must be finite and positive, got {widths.tolist()}")
        if widths.shape not in (torch.Size(), centers.shape):
            shape = tuple(widths.shape)
            raise ValueError(f"widths must be one number or ({len(centers)},), got shape {shape}")
        store(self, "centers", centers)
        store(self, "widths", widths)

    @classmethod
    def grid(
        cls,
        n: int,
        widths: Values,
        ndim: int = 1,
        low: float = 0.0,
        high: float = 1.0,
    ) -> "GaussianRBF":
        """Spreads n functions evenly: every width gets the same centers, from low to high.

        Args:
            n: Number of functions in all, a multiple of the number of widths.
            widths: One width, or several: the first n / len(widths) functions have the first.
            ndim: Dimension of the locations; only 1 is available.
            low: First center.
            high: Last center. A single center per width is put in the middle.

        Returns:
            The basis.

        Raises:
            ValueError: If n is no positive multiple of len(widths), low is not below high, or
                ndim is not 1.
        """
        if ndim != 1:
            raise ValueError(f"ndim must be 1, got {ndim}")
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"low must be below high, both finite, got low={low}, high={high}")
        each = floating(widths, common_dtype(widths)).reshape(-1)
        if n < 1 or not len(each) or n % len(each):
            raise ValueError(f"n must be a positive multiple of len(widths)={len(each)}, got {n}")
        count = n // len(each)
        first = low if count > 1 else (low + high) / 2
        centers = torch.linspace(first, high, count, dtype=each.dtype, device=each.device)
        return cls(centers.repeat(len(each)), each.repeat_interleave(count))

    def __len__(self) -> int:
        return len(self.centers)

    @property
    def reach(self) -> tuple[Tensor, Tensor]:
        # exp(-R^2/2) is 7e-10 at R = 6.5 and 3e-20 at R = 9.5: less than a hundredth of a
        # rounding error of the peak, so that many tails together stay below one.
        deviations = 9.5 if torch.finfo(self.centers.dtype).eps < 1e-12 else 6.5
        return self.centers - deviations * self.widths, self.centers + deviations * self.widths

    def forward(self, t: Tensor) -> Tensor:
        return self.own(t.unsqueeze(-1))

    def own(self, t: Tensor) -> Tensor:
        z = (t - self.centers) / self.widths
        return torch.exp(-0.5 * z * z) / (self.widths * _SQRT_TWO_PI)
