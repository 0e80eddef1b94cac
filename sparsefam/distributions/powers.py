r"""Powers of a clipped $1 - |x|^k$: beta-Gaussians (k = 2) and beta-Laplacians (k = 1)."""

import math
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints
from typing_extensions import Self

from ..numerics.arguments import broadcast_arguments, require
from ..numerics.interval import Profile
from ..supports import finite, positive_finite
from .exponents import PowerLaw, exponent, exponent_of, log_constant, positive
from .symmetric import _LOG_TAIL, SymmetricDistribution

__all__ = ["PowerDistribution", "SparsemaxMember"]

# The largest integer exponent whose closed form keeps float32's digits (numerics.interval).
_LARGEST_CLOSED = 3


class PowerDistribution(PowerLaw, SymmetricDistribution):
    r"""Prediction map of the score $-|t-\mu|^k/(k\sigma^k)$ at any alpha, $m = 1/(\alpha - 1)$.

    $$q(x) = C\,(1 - |x|^k)_+^m, \qquad
    C = \frac{k\,\Gamma(m + 1 + 1/k)}{2\,\Gamma(1/k)\,\Gamma(m + 1)}, \qquad
    s^{km+1} = C\,(km)^m\,\sigma^{km}, \qquad |x|^k \sim \mathrm{Beta}(1/k,\, m + 1)$$

    Closed under escorts: exponent $m\beta$ on the same support.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "loc": finite,
        "scale": positive_finite,
        "alpha": constraints.greater_than(1.0),
    }
    _order: ClassVar[int]

    def __init__(
        self,
        loc: Tensor | float,
        scale: Tensor | float,
        alpha: Tensor | float,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self._fixed_exponent = exponent_of(alpha)
        super().__init__(loc, scale, alpha, validate_args=validate_args)

    @classmethod
    def _member(
        cls,
        loc: Tensor | float,
        scale: Tensor | float,
        alpha: Tensor | float,
        validate_args: bool | None,
    ) -> Self:
        """An instance; classes of one fixed alpha leave it out of their constructor."""
        return cls(loc, scale, alpha, validate_args=validate_args)

    @classmethod
    def _from_score_scale(
        cls,
        name: str,
        loc: Tensor | float,
        width: Tensor | float,
        alpha: Tensor | float,
        validate_args: bool | None,
    ) -> Self:
        loc, width, alpha_ = broadcast_arguments(**{"loc": loc, name: width, "alpha": alpha})
        require(torch.isfinite(width) & (width > 0), name, "positive and finite", width)
        require(alpha_ > 1, "alpha", "greater than 1", alpha)
        # A number for all where it is one.
        m = exponent(alpha, alpha_ if isinstance(alpha, Tensor) else alpha_.new_empty(()))
        km = cls._order * m
        log_c = log_constant(1 / cls._order, _front(cls._order), exponent_of(alpha), m)
        log_scale = (log_c + torch.xlogy(m, positive(km)) + km * width.log()) / (km + 1)
        return cls._member(loc, log_scale.exp(), alpha, validate_args)

    @classmethod
    def _from_moments(
        cls,
        mean: Tensor | float,
        variance: Tensor | float,
        alpha: Tensor | float,
        validate_args: bool | None,
    ) -> Self:
        mean, variance, alpha_ = broadcast_arguments(mean=mean, variance=variance, alpha=alpha)
        valid = torch.isfinite(variance) & (variance > 0)
        require(valid, "variance", "positive and finite", variance)
        require(alpha_ > 1, "alpha", "greater than 1", alpha)
        unit = _moment(cls._order, exponent(alpha, alpha_), 2)
        return cls._member(mean, (variance / unit).sqrt(), alpha, validate_args)

    def _score_scale(self) -> Tensor:
        """The inverse of `_from_score_scale`."""
        m = positive(self._exponent)
        km = self._order * m
        log_width = (
            (km + 1) * self.scale.log() - self._log_constant()
        ) / km - km.log() / self._order
        return log_width.exp()

    @property
    def _shape(self) -> float:
        return 1 / self._order

    @property
    def _front(self) -> float:
        return _front(self._order)

    def _reach(self) -> Tensor:
        tail = _LOG_TAIL.get(self.loc.dtype, 40.0)
        share = -torch.expm1(-tail / positive(self._exponent.detach()))
        return (share ** (1 / self._order)).clamp(max=1 - torch.finfo(share.dtype).eps)

    def _standard_log_prob(self, x: Tensor) -> Tensor:
        return self._log_of_share(x.square() if self._order == 2 else x.abs())

    def _standard_moment(self, order: int) -> Tensor:
        return _moment(self._order, self._exponent, order)

    def profile(self) -> Profile | None:
        """The standard density as a piecewise polynomial, if it is one of low degree."""
        m = self._fixed_exponent
        if m is None or m > _LARGEST_CLOSED or m != int(m):
            return None
        return _profile(self._order, int(m))


class SparsemaxMember(PowerDistribution):
    """The member at alpha = 2, which its constructor then does not ask for."""

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "loc": finite,
        "scale": positive_finite,
    }

    def __init__(
        self, loc: Tensor | float, scale: Tensor | float, *, validate_args: bool | None = None
    ) -> None:
        super().__init__(loc, scale, 2.0, validate_args=validate_args)

    @classmethod
    def _member(
        cls,
        loc: Tensor | float,
        scale: Tensor | float,
        alpha: Tensor | float,
        validate_args: bool | None,
    ) -> Self:
        return cls(loc, scale, validate_args=validate_args)


def _front(order: int) -> float:
    return math.log(order / 2) - math.lgamma(1 / order)


def _moment(order: int, m: Tensor, power: int) -> Tensor:
    """E|x|^power for even power: E (|x|^k)^(power/k), a ratio of rising factorials."""
    total = torch.ones_like(m)
    for j in range(power // order):
        total = total * (1 / order + j) / (1 / order + m + 1 + j)
    return total


def _profile(order: int, m: int) -> Profile:
    inverse = 1 / order
    constant = order * math.gamma(m + 1 + inverse) / (2 * math.gamma(inverse) * math.gamma(m + 1))
    coefficients = [0.0] * (order * m + 1)
    for j in range(m + 1):
        coefficients[order * j] = constant * math.comb(m, j) * (-1) ** j
    return Profile(tuple(coefficients))
