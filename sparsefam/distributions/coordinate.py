"""A coordinate of the line in which the bulk of any one-peaked density is a few units wide."""

import torch
from torch import Tensor

__all__ = ["Coordinate"]

# Half the range of y: all but a rounding error of the mass, and no overflow, exp(sinh 5) = 1e32.
_RANGE = {torch.float32: 4.2, torch.float64: 5.0}
_WIDEST = 2.0


class Coordinate:
    r"""$t = T(a + b \sinh y)$: T is logistic, exponential or a hyperbolic sine, by the support.

    Whatever the tails of a density, and whatever powers it begins with at the ends of its support,
    as a function of y it decays double exponentially: few nodes integrate it to rounding.

    Args:
        lower: Lower end of the support (*batch); None if there is none.
        upper: Upper end (*batch); None if there is none.
        centre: About where the mass is (*batch), inside the support.
        spread: About its standard deviation (*batch).

    References:
        Takahasi and Mori (1974), Double exponential formulas for numerical integration. Publ. Res.
        Inst. Math. Sci. 9.
    """

    def __init__(
        self, lower: Tensor | None, upper: Tensor | None, centre: Tensor, spread: Tensor
    ) -> None:
        self.lower, self.upper = lower, upper
        # Where the nodes lie is of no consequence for the integral, but for the ends.
        self._centre, self._spread = centre.detach(), spread.detach()
        self.reach = _RANGE.get(centre.dtype, 5.0)
        self._a, self._b = self._frame()

    def _frame(self) -> tuple[Tensor, Tensor]:
        centre, spread = self._centre, self._spread
        if self.lower is not None and self.upper is not None:
            width = (self.upper - self.lower).detach()
            share = ((centre - self.lower.detach()) / width).clamp(1e-6, 1 - 1e-6)
            return torch.logit(share), (spread / width / (share * (1 - share))).clamp(max=_WIDEST)
        if self.lower is not None:
            gap = _positive(centre - self.lower.detach())
            return gap.log(), (spread / gap).clamp(max=_WIDEST)
        if self.upper is not None:
            gap = _positive(self.upper.detach() - centre)
            return -gap.log(), (spread / gap).clamp(max=_WIDEST)
        return torch.zeros_like(centre), torch.ones_like(centre)

    def locations(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """t and dt/dy at y (..., *batch)."""
        x, slope = self._a + self._b * y.sinh(), self._b * y.cosh()
        if self.lower is not None and self.upper is not None:
            width, share = self.upper - self.lower, torch.sigmoid(x)
            return self.lower + width * share, width * share * torch.sigmoid(-x) * slope
        if self.lower is not None:
            return self.lower + x.exp(), x.exp() * slope
        if self.upper is not None:
            return self.upper - (-x).exp(), (-x).exp() * slope
        return self._centre + self._spread * x.sinh(), self._spread * x.cosh() * slope

    def of(self, t: Tensor) -> Tensor:
        """y at t (..., *batch), moved to within the range."""
        if self.lower is not None and self.upper is not None:
            share = (t - self.lower) / (self.upper - self.lower)
            tiny, eps = torch.finfo(t.dtype).tiny, torch.finfo(t.dtype).eps
            x = torch.logit(share.clamp(tiny, 1 - eps / 2))
        elif self.lower is not None:
            x = _positive(t - self.lower).log()
        elif self.upper is not None:
            x = -_positive(self.upper - t).log()
        else:
            x = torch.asinh((t - self._centre) / self._spread)
        return torch.asinh((x - self._a) / self._b).clamp(-self.reach, self.reach)


def _positive(gap: Tensor) -> Tensor:
    """A distance to an end, of a point that rounding may have put on it."""
    return gap.clamp_min(torch.finfo(gap.dtype).tiny)
