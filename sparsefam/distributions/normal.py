"""The normal and the Laplace distribution: the families at alpha = 1."""

import math
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from typing_extensions import Self

from ..scores import AbsoluteDeviation, Quadratic
from ._generators import ExponentialPower, Gaussian, Laplacian
from ._line.laws import Law
from .symmetric import SymmetricDistribution

__all__ = ["Laplace", "Normal"]


class _DenseUnivariate(SymmetricDistribution):
    """A density on the real line."""

    _kind: ClassVar[type[ExponentialPower]]

    def __init__(
        self, loc: Tensor | float, scale: Tensor | float, *, validate_args: bool | None = None
    ) -> None:
        SymmetricDistribution.__init__(self, loc, scale, 1.0, validate_args=validate_args)

    @property
    def generator(self) -> ExponentialPower:
        """The standard density q of x."""
        return self._kind(self.alpha)

    @property
    def _law(self) -> Law | None:
        # A subclass may have another `log_prob`.
        return self._law_of_parameters if type(self) in (Normal, Laplace) else None

    @property
    def _law_of_parameters(self) -> Law:
        """The law with these parameters, whatever `log_prob` a subclass has."""
        name = "normal" if self._kind is Gaussian else "laplace"
        return Law(name, self.loc.double(), self.scale.double())

    def _interval(self, a: Tensor, b: Tensor, log: bool = False) -> Tensor:
        """Return the mass between a and b, or its logarithm, by the law; none unless a < b."""
        law, ordered = self._law_of_parameters, a < b
        # Elsewhere the mass next to the center is computed, and not selected.
        start = torch.where(ordered, a.double(), self.loc.double())
        end = torch.where(ordered, b.double(), start + law.scale)
        mass = torch.where(ordered, law.log_mass(start, end), -math.inf)
        mass = mass.to(torch.promote_types(self.loc.dtype, a.dtype))
        return mass if log else mass.exp()

    def escort(self, beta: Tensor | float | None = None) -> Self:
        r"""Return the escort, of the scale times $\beta^{-1/k}$; default $\beta = 1$.

        Raises:
            ValueError: `beta` not positive, which gives no finite mass.
        """
        family: Any = type(self)
        scale = self.scale * self.generator.escort_factor(beta)
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

    _kind = Gaussian

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

    _kind = Laplacian

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
