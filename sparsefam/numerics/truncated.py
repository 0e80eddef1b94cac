r"""Truncated powers $[1 + \epsilon x]_+^k$: deformed exponentials and their derivatives."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .deformed import log1p_ratio

__all__ = ["LOG_LARGE", "Power"]

# Exponents whose power is a short product.
_SHORT = range(5)
# By how much exponents differ from whole ones for rounding alone, and which may.
_ROUNDING, _SMALL = 1e-13, 20
# In place of the logarithm of 0, so that times 0 it is a number; that of what is the largest power.
_LOG_ZERO, LOG_LARGE = -1e6, 80.0


class Power(NamedTuple):
    r"""$[1 + \epsilon x]_+^k$ with $k = ratio/\epsilon - order$; $e^{ratio\,x}$ at $\epsilon = 0$.

    Attributes:
        eps: alpha - 1 >= 0, a number, or ones above 0 that broadcast against x.
        ratio: 1, or beta for a beta-escort.
        order: How often it was differentiated, or its escort of beta = 2 - alpha taken.
    """

    eps: Tensor | float
    ratio: float = 1.0
    order: int = 0

    @property
    def is_exponential(self) -> bool:
        """Whether this is the limit."""
        return not isinstance(self.eps, Tensor) and self.eps == 0

    @property
    def exponent(self) -> Tensor | float:
        """k, a number or a tensor as eps."""
        if self.is_exponential:
            return math.inf
        found = self.ratio / self.eps - self.order
        if isinstance(found, Tensor) or not abs(found) < _SMALL:
            return found
        # 1 / (4/3 - 1) is 3.000000000000001 in floating point, but 3 has a shorter rule.
        whole = float(round(found))
        return whole if abs(found - whole) < _ROUNDING else found

    @property
    def is_jump(self) -> Tensor | bool:
        """Whether the power is 0 or 1."""
        return self.exponent == 0

    @property
    def is_product(self) -> bool:
        """Whether it is a short product, which no logarithm bounds."""
        return not isinstance(self.exponent, Tensor) and self.exponent in (-1, *_SHORT)

    @property
    def factor(self) -> Tensor | float:
        """What the derivative in x is of the lowered power."""
        factor = self.ratio - self.order * self.eps
        if isinstance(factor, Tensor):
            return torch.where(factor == 0, self.eps, factor)
        return self.eps if self.is_jump else factor

    @property
    def factor_of_log(self) -> Tensor | float:
        r"""$k\epsilon$, which has a limit."""
        return self.ratio - self.order * self.eps

    def lowered(self) -> "Power":
        """With the exponent less one."""
        return self._replace(order=self.order + 1)

    def base(self, x: Tensor) -> Tensor:
        r"""$[1 + \epsilon x]_+$."""
        return self.inside(x).clamp_min_(0)

    def inside(self, x: Tensor) -> Tensor:
        r"""$1 + \epsilon x$."""
        if isinstance(self.eps, Tensor):
            return 1 + self.eps * x
        return torch.add(x.new_ones(()), x, alpha=self.eps)

    # torch.where is not vectorised on the CPU: signs and bounds serve instead.

    def at(self, x: Tensor) -> Tensor:
        """The power itself, to all digits however small eps is; 0^k is 0 for any k."""
        if self.is_exponential:
            # Where a base has no mass left, a score may be any.
            most = math.floor(math.log(torch.finfo(x.dtype).max))
            return torch.exp((self.ratio * x).clamp_max(most))
        if self.is_product:
            return _short_power(self.base(x), int(self.exponent))
        y = (self.eps * x).clamp_min(-1)
        log = self.exponent * torch.log1p(y).clamp_min(_LOG_ZERO)
        return torch.exp(log.clamp_max(LOG_LARGE)) * (1 + y).sign()

    def pair(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The power and the lowered power."""
        if self.is_exponential:
            power = self.at(x)
            return power, power
        base, exponent = self.base(x), self.exponent
        if not isinstance(exponent, Tensor) and exponent in _SHORT:
            return _short_power(base, int(exponent)), _short_power(base, int(exponent) - 1)
        lowered = self.lowered().at(x)
        return lowered * base, lowered

    def log_base(self, x: Tensor) -> Tensor:
        r"""$\log(1 + \epsilon x)/\epsilon$ inside, 0 elsewhere."""
        y = self.eps * x
        inside = y > -1
        x, y = torch.where(inside, x, 0.0), torch.where(inside, y, 0.0)
        return x * log1p_ratio(y)

    def log_slope(self, x: Tensor) -> Tensor:
        r"""$\partial_\epsilon$ of `log_base`, exact as eps tends to 0."""
        y = self.eps * x
        small = y.abs() < (3e-2 if x.dtype == torch.float32 else 1e-3)
        near, far = torch.where(small, y, 0.0), torch.where(small | (y <= -1), 1.0, y)
        tail = -3 / 4 + near * (4 / 5 + near * (-5 / 6 + near * 6 / 7))
        series = x.square() * (-1 / 2 + near * (2 / 3 + near * tail))
        scale = torch.where(small, torch.ones_like(x), self.eps)
        return torch.where(small, series, (far / (1 + far) - torch.log1p(far)) / scale.square())

    def functions(self, names: tuple[str, ...], x: Tensor) -> list[Tensor]:
        """Functions that belong to the power, at x.

        | name | function, with the power v and its logarithm's base L |
        |---|---|
        | power | v |
        | lowered | the power with the exponent less one |
        | second | the power with the exponent less two |
        | slope | derivative of v in eps, at order 0 |
        | log | v L |
        | log_lowered | derivative of v L in x |
        | log_slope | derivative of v L in eps, at order 0 |
        """
        if names[:2] == ("power", "lowered"):
            return [*self.pair(x), *(self._function(name, x) for name in names[2:])]
        return [self._function(name, x) for name in names]

    def _function(self, name: str, x: Tensor) -> Tensor:
        if name == "power":
            return self.at(x)
        if name == "lowered":
            return self.lowered().at(x)
        if name == "second":
            return self.lowered().lowered().at(x)
        if name == "log":
            return self.at(x) * self.log_base(x)
        if name == "log_lowered":
            return self.lowered().at(x) * (1 + self.factor_of_log * self.log_base(x))
        slope = self.log_slope(x)
        level = (
            self.ratio * slope if name == "slope" else slope * (1 + self.ratio * self.log_base(x))
        )
        return self.at(x) * level


def _short_power(u: Tensor, exponent: int) -> Tensor:
    """u^k for u >= 0, and 0 where u is; -1 stands for the derivative of a jump, away from it."""
    if exponent < 0:
        return torch.zeros_like(u)
    if exponent == 0:
        return u.sign()
    if exponent > 2:
        return _short_power(u, 2) * _short_power(u, exponent - 2)
    return u if exponent == 1 else u.square()
