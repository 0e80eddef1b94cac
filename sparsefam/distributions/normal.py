"""The normal and the Laplace distribution, which are the families at alpha = 1."""

import math
from typing import Any, cast

import torch
from torch import Size, Tensor
from typing_extensions import Self

from ..scores import AbsoluteDeviation, Quadratic
from .base import StandardizedDistribution
from .generators import ExponentialPower
from .interval_laws import Law
from .univariate import _LOG_TAIL, SymmetricDistribution

__all__ = ["Laplace", "Normal"]


class _DenseUnivariate(ExponentialPower, SymmetricDistribution):
    """A density on the real line."""

    @classmethod
    def _of(cls, loc: Tensor, scale: Tensor) -> Self:
        """Return the density of parameters of one shape and dtype, without checks."""
        new = cls.__new__(cls)
        new.loc, new.scale, new.alpha = loc, scale, torch.ones_like(loc)
        StandardizedDistribution.__init__(new, loc.shape, validate_args=False)
        return new

    def _edge(self) -> float:
        return math.inf

    def _reach(self) -> float:
        return math.pow(self._order * _LOG_TAIL.get(self.loc.dtype, 40.0), 1 / self._order)

    def _log_interval(self, a: Tensor, b: Tensor) -> Tensor:
        loc, scale = self.loc.double(), self.scale.double()
        law, some = Law("normal" if self._order == 2 else "laplace", loc, scale), a < b
        start = torch.where(some, a.double(), loc)
        end = torch.where(some, b.double(), loc + scale)
        found = torch.where(some, law.log_mass(start, end), -math.inf)
        return found.to(torch.promote_types(self.loc.dtype, a.dtype))

    def _interval(self, a: Tensor, b: Tensor) -> Tensor:
        return self._log_interval(a, b).exp()

    def escort(self, beta: Tensor | float | None = None) -> Self:
        r"""Return the escort, of the scale times $\beta^{-1/k}$; default $\beta = 1$.

        Raises:
            ValueError: `beta` not positive, which gives no finite mass.
        """
        family: Any = type(self)
        scale = self.scale * self._escort_factor(beta)
        return cast(Self, family(self.loc, scale, validate_args=self._validation))


class Normal(_DenseUnivariate, torch.distributions.Normal):
    r"""`torch.distributions.Normal` with `expect`, `escort` and the rest.

    $$p(t) = \frac{1}{\sqrt{2\pi}\,\sigma} e^{-(t-\mu)^2/(2\sigma^2)}$$

    Equivalent to `scipy.stats.norm(loc, scale)`.

    Args:
        loc: Mean $\mu$ (*batch).
        scale: Standard deviation $\sigma > 0$ (*batch).
        validate_args: As in torch.distributions.

    Raises:
        ValueError: `loc` not finite, `scale` not positive and finite, shapes that do not broadcast.

    Examples:
        >>> Normal(0.0, 1.0).log_normalizer
        tensor(0.9189)
    """

    _order = 2

    def __init__(
        self, loc: Tensor | float, scale: Tensor | float, *, validate_args: bool | None = None
    ) -> None:
        SymmetricDistribution.__init__(self, loc, scale, 1.0, validate_args=validate_args)

    @classmethod
    def from_sigma(
        cls, loc: Tensor | float, sigma: Tensor | float, *, validate_args: bool | None = None
    ) -> Self:
        r"""Construct from the score's $\sigma$, which is `scale`."""
        return cls(loc, sigma, validate_args=validate_args)

    @property
    def sigma(self) -> Tensor:
        r"""The score's $\sigma$, which is `scale`."""
        return self.scale

    @property
    def score(self) -> Quadratic:
        r"""$f(t) = -(t - \mu)^2/(2\sigma^2)$."""
        return Quadratic(self.loc, self.scale)

    def _standard_log_prob(self, x: Tensor) -> Tensor:
        return -0.5 * x.square() - 0.5 * math.log(2 * math.pi)

    def _standard_cdf(self, x: Tensor) -> Tensor:
        return 0.5 * torch.erfc(-x * math.sqrt(0.5))

    def _standard_log_cdf(self, x: Tensor) -> Tensor:
        # torch's log_ndtr has no rule for vmap.
        return (torch.special.erfcx(-x * math.sqrt(0.5)) / 2).log() - x.square() / 2

    def _standard_icdf(self, value: Tensor) -> Tensor:
        return torch.special.ndtri(value)

    def _standard_moment(self, order: int) -> float:
        return float(math.prod(range(1, order, 2)))

    def _standard_entropy(self) -> float:
        return 0.5 + 0.5 * math.log(2 * math.pi)

    def _standard_sample(self, shape: Size) -> Tensor:
        return torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device)


class Laplace(_DenseUnivariate, torch.distributions.Laplace):
    r"""`torch.distributions.Laplace` with `expect`, `escort` and the rest.

    $$p(t) = \frac{1}{2b} e^{-|t-\mu|/b}$$

    Equivalent to `scipy.stats.laplace(loc, scale)`.

    Args:
        loc: Mean $\mu$ (*batch).
        scale: $b > 0$ (*batch).
        validate_args: As in torch.distributions.

    Raises:
        ValueError: `loc` not finite, `scale` not positive and finite, shapes that do not broadcast.

    Examples:
        >>> Laplace(0.0, 1.0).log_normalizer
        tensor(0.6931)
    """

    _order = 1

    def __init__(
        self, loc: Tensor | float, scale: Tensor | float, *, validate_args: bool | None = None
    ) -> None:
        SymmetricDistribution.__init__(self, loc, scale, 1.0, validate_args=validate_args)

    @classmethod
    def from_b(
        cls, loc: Tensor | float, b: Tensor | float, *, validate_args: bool | None = None
    ) -> Self:
        """Construct from the score's b, which is `scale`."""
        return cls(loc, b, validate_args=validate_args)

    @property
    def b(self) -> Tensor:
        """The score's b, which is `scale`."""
        return self.scale

    @property
    def score(self) -> AbsoluteDeviation:
        r"""$f(t) = -|t - \mu|/b$."""
        return AbsoluteDeviation(self.loc, self.scale)

    def _standard_log_prob(self, x: Tensor) -> Tensor:
        return -x.abs() - math.log(2)

    def _standard_cdf(self, x: Tensor) -> Tensor:
        tail = 0.5 * torch.exp(torch.where(x < 0, x, -x))
        return torch.where(x < 0, tail, 1 - tail)

    def _standard_log_cdf(self, x: Tensor) -> Tensor:
        return x - math.log(2)

    def _standard_icdf(self, value: Tensor) -> Tensor:
        x = torch.log(2 * torch.where(value < 0.5, value, 1 - value))
        return torch.where(value < 0.5, x, -x)

    def _standard_moment(self, order: int) -> float:
        return float(math.factorial(order))

    def _standard_entropy(self) -> float:
        return 1 + math.log(2)
