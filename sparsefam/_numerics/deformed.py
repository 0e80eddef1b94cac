r"""Deformed exponentials and logarithms, accurate through $\beta = 1$.

The textbook forms $[1 + (1-\beta)u]_+^{1/(1-\beta)}$ and $(u^{1-\beta} - 1)/(1-\beta)$ are
undefined at $\beta = 1$ and inaccurate near it. Both are written in terms of two smooth functions,
`log1p_ratio` and `expm1_ratio`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

__all__ = ["LOG_LARGE", "Power", "expm1_ratio", "functions", "log1p_ratio", "log_beta"]

# Below this a series is used, whose first ten terms have float64 accuracy. Above it the second
# derivatives of the quotients lose a factor of about 1/_SWITCH**2.
_SWITCH = 0.25
# Exponents whose power is computed by multiplication.
_SHORT = range(5)
# Exponents that differ from a whole number below _SMALL by less than this are rounded to it.
_ROUNDING, _SMALL = 1e-13, 20
# Replaces log 0, so that its product with 0 is finite; the logarithm of the largest power.
_LOG_ZERO, LOG_LARGE = -1e6, 80.0


def log1p_ratio(x: Tensor) -> Tensor:
    r"""Return $\log(1 + x)/x$, or 1 at $x = 0$, with all its derivatives.

    Args:
        x: Any shape, $x > -1$.
    """
    small = x.abs() < _SWITCH
    near = torch.where(small, x, 0.0)
    far = torch.where(small, 1.0, x)
    # log1p(x) = 2 artanh(x/(2+x)): a series in y^2 <= 1/49.
    half = 1 / (2 + near)
    y2 = (near * half).square()
    series = torch.full_like(x, 1 / 21)
    for k in range(9, -1, -1):
        series = series * y2 + 1 / (2 * k + 1)
    return torch.where(small, 2 * half * series, torch.log1p(far) / far)


def expm1_ratio(x: Tensor) -> Tensor:
    r"""Return $(e^x - 1)/x$, or 1 at $x = 0$, with all its derivatives.

    Args:
        x: Any shape.
    """
    small = x.abs() < _SWITCH
    near = torch.where(small, x, 0.0)
    far = torch.where(small, 1.0, x)
    series = torch.full_like(x, 1 / math.factorial(12))
    for k in range(11, 0, -1):
        series = series * near + 1 / math.factorial(k)
    return torch.where(small, series, torch.expm1(far) / far)


def log_beta(u: Tensor, beta: Tensor | float) -> Tensor:
    r"""Return the deformed logarithm $(u^{1-\beta} - 1)/(1-\beta)$, and $\log u$ at 1.

    The inverse of the deformed exponential; see `Power`. At $u = 0$ it is $-1/(1-\beta)$ for
    $\beta < 1$, else $-\infty$.

    Args:
        u: Any shape, $u \ge 0$.
        beta: Deformation, broadcast against `u`.

    References:
        Martins et al. (2020), Sparse and Continuous Attention Mechanisms, eq. 4.
    """
    exponent = 1 - torch.as_tensor(beta, dtype=u.dtype, device=u.device)
    positive = u > 0
    log_u = torch.log(torch.where(positive, u, 1.0))
    is_finite = exponent > 0
    at_zero = torch.where(is_finite, -1 / torch.where(is_finite, exponent, 1.0), -math.inf)
    return torch.where(positive, log_u * expm1_ratio(exponent * log_u), at_zero.to(u.dtype))


@dataclass(frozen=True, eq=False)
class Power:
    r"""$[1 + \epsilon x]_+^k$, $k = ratio/\epsilon - order$; $e^{ratio\,x}$ at $\epsilon = 0$."""

    eps: Tensor | float  # alpha - 1 >= 0, a number, or positive numbers that broadcast against x
    ratio: float = 1.0  # 1, or beta for a beta-escort
    order: int = 0  # How many times the power has been differentiated

    @property
    def is_exponential(self) -> bool:
        """Whether eps is the number 0."""
        return not isinstance(self.eps, Tensor) and self.eps == 0

    @property
    def exponent(self) -> Tensor | float:
        """k, a number or a tensor of the shape of eps."""
        if self.is_exponential:
            return math.inf
        k = self.ratio / self.eps - self.order
        if isinstance(k, Tensor) or not abs(k) < _SMALL:
            return k
        # 1 / (4/3 - 1) is 3.000000000000001 in floating point, but 3 has a shorter rule.
        whole = float(round(k))
        return whole if abs(k - whole) < _ROUNDING else k

    @property
    def is_jump(self) -> Tensor | bool:
        """Whether the power is 0 or 1."""
        return self.exponent == 0

    @property
    def is_product(self) -> bool:
        """Whether the power is computed by multiplication, without a logarithm."""
        return not isinstance(self.exponent, Tensor) and self.exponent in (-1, *_SHORT)

    @property
    def factor(self) -> Tensor | float:
        """The derivative in x, divided by the power whose exponent is less by one."""
        factor = self.ratio - self.order * self.eps
        # The derivative of a jump is a delta, which its lowered power stands for, without a factor.
        if isinstance(factor, Tensor):
            return torch.where(factor == 0, 1.0, factor)
        return 1.0 if self.is_jump else factor

    @property
    def factor_of_log(self) -> Tensor | float:
        r"""$k\epsilon$, the factor of `log_base` in `log_at`; like `factor`, but 0 for a jump."""
        return self.ratio - self.order * self.eps

    def lowered(self) -> "Power":
        """Return the power with its exponent less by one."""
        return Power(self.eps, self.ratio, self.order + 1)

    def take(self, columns: Tensor) -> "Power":
        """Return the power for the columns of an index, or itself if all columns share eps."""
        if not isinstance(self.eps, Tensor) or self.eps.dim() == 0:
            return self
        return replace(self, eps=self.eps[columns])

    def detach(self) -> "Power":
        """Return the power with a tensor eps detached from the graph."""
        return replace(self, eps=self.eps.detach()) if isinstance(self.eps, Tensor) else self

    def inside(self, x: Tensor) -> Tensor:
        r"""Return $1 + \epsilon x$."""
        if isinstance(self.eps, Tensor):
            return 1 + self.eps * x
        return torch.add(x.new_ones(()), x, alpha=self.eps)

    # torch.where is not vectorized on the CPU; signs and clamping replace it.

    def at(self, x: Tensor) -> Tensor:
        """Return the power at x, accurate for small eps; 0^k is 0 for any k."""
        if self.is_exponential:
            # Where the base has no mass, a score may be arbitrarily large.
            most = math.floor(math.log(torch.finfo(x.dtype).max))
            return torch.exp((self.ratio * x).clamp_max(most))
        if self.is_product:
            return _short_power(self.inside(x).clamp_min_(0), int(self.exponent))
        y = (self.eps * x).clamp_min(-1)
        log = self.exponent * torch.log1p(y).clamp_min(_LOG_ZERO)
        return torch.exp(log.clamp_max(LOG_LARGE)) * (1 + y).sign()

    def pair(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the power and the power with its exponent less by one."""
        if self.is_exponential:
            power = self.at(x)
            return power, power  # an exponent less by one is as infinite
        base, exponent = self.inside(x).clamp_min_(0), self.exponent
        if not isinstance(exponent, Tensor) and exponent in _SHORT:
            return _short_power(base, int(exponent)), _short_power(base, int(exponent) - 1)
        lowered = self.lowered().at(x)
        return lowered * base, lowered  # base^k is base^(k - 1) times base

    def log_base(self, x: Tensor) -> Tensor:
        r"""Return $\log(1 + \epsilon x)/\epsilon$ where that exists, 0 elsewhere."""
        y = self.eps * x
        inside = y > -1
        x, y = torch.where(inside, x, 0.0), torch.where(inside, y, 0.0)
        return x * log1p_ratio(y)

    def log_at(self, x: Tensor) -> Tensor:
        """Return the logarithm of the power, -inf where it is zero."""
        inside = self.eps * x > -1
        log = self.factor_of_log * self.log_base(torch.where(inside, x, 0.0))
        return torch.where(inside, log, -math.inf)

    def log_slope(self, x: Tensor) -> Tensor:
        r"""Return $\partial_\epsilon$ of `log_base`, accurate as eps tends to 0.

        With $y = \epsilon x$ it is $(y/(1 + y) - \log(1 + y))/\epsilon^2$.
        """
        y = self.eps * x
        small = y.abs() < (3e-2 if x.dtype == torch.float32 else 1e-3)
        near, far = torch.where(small, y, 0.0), torch.where(small | (y <= -1), 1.0, y)
        # (y / (1 + y) - log(1 + y)) / y^2 = sum_k (-1)^(k + 1) (k + 1) / (k + 2) y^k, k = 0, 1, ...
        tail = -3 / 4 + near * (4 / 5 + near * (-5 / 6 + near * 6 / 7))
        series = x.square() * (-1 / 2 + near * (2 / 3 + near * tail))
        scale = torch.where(small, torch.ones_like(x), self.eps)
        return torch.where(small, series, (far / (1 + far) - torch.log1p(far)) / scale.square())


def _short_power(u: Tensor, exponent: int) -> Tensor:
    """Return u^k for u >= 0, 0 at u = 0; 0 for k = -1, the derivative of a jump elsewhere."""
    if exponent < 0:
        return torch.zeros_like(u)
    if exponent == 0:
        return u.sign()
    if exponent > 2:
        return _short_power(u, 2) * _short_power(u, exponent - 2)
    return u if exponent == 1 else u.square()


# Functions of a power v = e^(k eps L), with its `log_base` L, by name. The derivative of L in x is
# 1 / (1 + eps x), which times v is the lowered power.
FUNCTIONS: dict[str, Callable[[Power, Tensor], Tensor]] = {
    "power": Power.at,  # v
    "lowered": lambda v, x: v.lowered().at(x),  # The power with its exponent less by one
    "log": lambda v, x: v.at(x) * v.log_base(x),  # v L, and its derivative in x
    "log_lowered": lambda v, x: v.lowered().at(x) * (1 + v.factor_of_log * v.log_base(x)),
    # Derivatives of v and v L in eps, at order 0
    "slope": lambda v, x: v.at(x) * v.ratio * v.log_slope(x),
    "log_slope": lambda v, x: v.at(x) * v.log_slope(x) * (1 + v.ratio * v.log_base(x)),
}


def functions(power: Power, names: tuple[str, ...], x: Tensor) -> Sequence[Tensor]:
    """Return functions of a power, by their names in `FUNCTIONS`, at x, each of its shape."""
    if names == ("power", "lowered"):
        return power.pair(x)
    return [FUNCTIONS[name](power, x) for name in names]
