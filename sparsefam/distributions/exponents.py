r"""What the densities $C\,(1 - y)_+^m$ share, whatever power or norm of x is called y."""

import math
from numbers import Real

import torch
from torch import Tensor

from ..numerics.arguments import require, require_power
from ..numerics.special import digamma_difference, log_gamma_ratio
from .standardized import StandardizedDistribution

__all__ = ["PowerLaw", "exponent", "exponent_of", "log_constant", "positive"]


class PowerLaw(StandardizedDistribution):
    r"""$q = C\,(1 - y)_+^m$ with $m = 1/(\alpha - 1)$ and $y \sim \mathrm{Beta}(a, m + 1)$.

    $$\log C = \log\frac{\Gamma(m + 1 + a)}{\Gamma(m + 1)} + \text{front}$$

    Here $y = |x|^k$ and $a = 1/k$ on the line, $y = |x|^2$ and $a = D/2$ in space. Closed under
    escorts: exponent $m\beta$ on the same support.
    """

    _fixed_exponent: float | None

    @property
    def _shape(self) -> float:
        """a, the first parameter of the beta law."""
        raise NotImplementedError

    @property
    def _front(self) -> float:
        """The part of log C that does not depend on m."""
        raise NotImplementedError

    @property
    def _exponent(self) -> Tensor:
        """m = 1/(alpha - 1), (*batch)."""
        if self._fixed_exponent is None:
            return 1 / (self.alpha - 1)
        return torch.full_like(self.alpha, self._fixed_exponent)

    def _log_constant(self) -> Tensor:
        return log_constant(self._shape, self._front, self._fixed_exponent, self._exponent)

    def _log_of_share(self, y: Tensor) -> Tensor:
        r"""$\log C + m \log(1 - y)$."""
        m = self._fixed_exponent
        if m is None:
            return self._log_constant() + self._exponent * torch.log1p(-y)
        # Of numbers no tensors are made: they would cost as much as the logarithm.
        return m * torch.log1p(-y) + (_log_gamma_ratio(m + 1, self._shape) + self._front)

    def _standard_entropy(self) -> Tensor:
        m = self._exponent
        return m * digamma_difference(m + 1, self._shape) - self._log_constant()

    def _log_power_integral(self, beta: Tensor | float) -> Tensor:
        power = self._exponent * beta
        return beta * self._log_constant() - log_constant(self._shape, self._front, None, power)

    def _log_mean_power(self) -> Tensor:
        # E[(p/p(loc))^(alpha - 1)] = 1 - E[y].
        m = self._exponent
        return self._peak_log_prob() + m * torch.log1p(-1 / (1 + (m + 1) / self._shape))

    def _escort_alpha(self, beta: Tensor | float | None) -> Tensor | float:
        """Entropic index of the member with exponent m beta; a number where both are."""
        require_power(beta)
        rule = "such that the escort's exponent beta/(alpha - 1) is at least 0"
        m = self._fixed_exponent
        if m is not None and not isinstance(beta, Tensor):
            # m (2 - alpha) = m - 1, without the rounding of alpha.
            fixed = m - 1 if beta is None else m * beta
            if fixed < 0:
                raise ValueError(f"beta must be {rule}, got an exponent of {fixed}")
            return alpha_of(fixed)
        power = self._exponent - 1 if beta is None else self._exponent * beta
        require(power >= 0, "beta", rule, 2 - self.alpha if beta is None else beta)
        return torch.where(power > 0, 1 + 1 / positive(power), math.inf)


def exponent_of(alpha: Tensor | float) -> float | None:
    """m = 1/(alpha - 1) of a number above 1, an exact integer where rounding hides one."""
    if not isinstance(alpha, Real) or not alpha > 1:
        return None
    m = 1 / (alpha - 1)
    return float(round(m)) if abs(m - round(m)) <= 1e-12 * m else m


def alpha_of(m: float) -> float:
    """The inverse of `exponent_of`."""
    return math.inf if m == 0 else 1 + 1 / m


def exponent(alpha: Tensor | float, broadcast: Tensor) -> Tensor:
    """m as a tensor, from alpha as it was given and as it was broadcast."""
    m = exponent_of(alpha)
    return 1 / (broadcast - 1) if m is None else torch.full_like(broadcast, m)


def positive(m: Tensor) -> Tensor:
    """m kept off zero, where alpha = inf would make 0/0 of what has a limit."""
    return m.clamp_min(1e-30)


def log_constant(shape: float, front: float, fixed: float | None, m: Tensor) -> Tensor:
    """log C: once and in float64 for a number, else differentiable in m."""
    if fixed is not None:
        return torch.full_like(m, _log_gamma_ratio(fixed + 1, shape) + front)
    return log_gamma_ratio(m + 1, shape) + front


def _log_gamma_ratio(x: float, delta: float) -> float:
    """lgamma(x + delta) - lgamma(x) of a number, where the difference would lose digits too."""
    if x < 1e4:
        return math.lgamma(x + delta) - math.lgamma(x)
    stirling = delta * math.log(x) + (x + delta - 0.5) * math.log1p(delta / x) - delta
    return stirling + (1 / (x + delta) - 1 / x) / 12
