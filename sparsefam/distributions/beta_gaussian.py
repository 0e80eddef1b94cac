"""Beta-Gaussians: powers of a truncated parabola, the sparse counterparts of the normal."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints
from typing_extensions import Self

from .._numerics.gaussian_interval import Profile
from .._numerics.validation import broadcast_arguments, require
from ..scores import Quadratic
from ..supports import finite, positive_finite
from ._generators import Parabola, TruncatedPower, exponent_of, unvalidated
from ._line.laws import Law
from .symmetric import SymmetricDistribution

__all__ = [
    "BetaGaussian",
    "PowerDistribution",
    "TruncatedParabola",
]


# The largest integer exponent whose closed form is accurate in float32.
_LARGEST_CLOSED = 3


class PowerDistribution(SymmetricDistribution):
    r"""Prediction map of the score $-|t-\mu|^k/(k\sigma^k)$ at any alpha, $m = 1/(\alpha - 1)$.

    $$q(x) = C\,(1 - |x|^k)_+^m, \qquad
    C = \frac{k\,\Gamma(m + 1 + 1/k)}{2\,\Gamma(1/k)\,\Gamma(m + 1)}, \qquad
    s^{km+1} = C\,(km)^m\,\sigma^{km}$$

    Subclasses set `_kind`, the generator of their k.
    """

    _kind: ClassVar[type[TruncatedPower]]
    _fixed_exponent: float | None  # m, if alpha is a number

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "loc": finite,
        "scale": positive_finite,
        "alpha": constraints.greater_than(1.0),
    }

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

    @property
    def generator(self) -> TruncatedPower:
        """The standard density q of x."""
        return self._kind(self.alpha, self._fixed_exponent)

    @classmethod
    def _from_score(
        cls, name: str, loc: Tensor | float, width: Tensor | float, *args: Any, **options: Any
    ) -> Self:
        """Construct from the score's scale sigma: s = R sigma.

        Args:
            name: The name of the scale in messages.
            loc: Center (*batch).
            width: The score's scale sigma (*batch).
            args: `alpha`, unless the class fixes it.
            options: `alpha` and `validate_args` by name.
        """
        _require_positive(name, width, loc=loc)
        # R depends on sigma: `p`, with sigma in place of s, is made only to compute it.
        p = unvalidated(cls, loc, width, *args, **options)
        return cls(p.loc, p.scale * p.generator.radius(p._log_det()), *args, **options)

    @classmethod
    def from_moments(
        cls, mean: Tensor | float, variance: Tensor | float, *args: Any, **options: Any
    ) -> Self:
        """Construct from mean and variance.

        Args:
            mean: Mean (*batch).
            variance: Variance (*batch).
            args: `alpha`, unless the class fixes it.
            options: `alpha` and `validate_args` by name.

        Raises:
            ValueError: `variance` not positive and finite, or as for the class.
        """
        _require_positive("variance", variance, mean=mean)
        # `p` has the variance in place of s, and is made only to broadcast and for its generator.
        p = unvalidated(cls, mean, variance, *args, **options)
        return cls(p.loc, (p.scale / p.generator.moment(2)).sqrt(), *args, **options)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density; -inf with zero gradient off the support."""
        if self._fixed_exponent:
            return super().log_prob(value)
        # Uniform densities, whose exponent is 0, are positive at their ends, unlike torch's: there
        # the density at the center, which is the same, is returned.
        self._check_value(value)
        at_end = (value == self.loc - self.scale) | (value == self.loc + self.scale)
        uniform_end = (self.generator.m == 0) & at_end
        return super().log_prob(torch.where(uniform_end, self.loc, value))

    def profile(self) -> Profile | None:
        """Return the standard density as a piecewise polynomial, None unless m is 0, 1, 2 or 3.

        Higher degrees lose accuracy in `_numerics.gaussian_interval`.
        """
        m, k = self._fixed_exponent, self._kind.order
        if m is None or m > _LARGEST_CLOSED or m != int(m):
            return None
        # (1 - |x|^k)^m by the binomial theorem, over its integral.
        coefficients, mass = [0.0] * (k * int(m) + 1), 0.0
        for j in range(int(m) + 1):
            coefficients[k * j] = math.comb(int(m), j) * (-1) ** j
            mass += 2 * coefficients[k * j] / (k * j + 1)
        return Profile(tuple([c / mass for c in coefficients]))


def _require_positive(name: str, value: Tensor | float, **others: Tensor | float) -> None:
    """Raise ValueError unless an argument is positive and finite and broadcasts with others.

    Args:
        name: The name of the argument, for messages.
        value: The argument.
        others: Other arguments by name.
    """
    *_, value = broadcast_arguments(**others, **{name: value})
    require(torch.isfinite(value) & (value > 0), name, "positive and finite", value)


class BetaGaussian(PowerDistribution):
    r"""Power of a truncated parabola: the alpha-entmax counterpart of the normal.

    $$p(t) = \frac{\Gamma(m + 3/2)}{\sqrt\pi\,\Gamma(m + 1)\,s}\,(1 - x^2)_+^m, \qquad
    x = (t - \mu)/s, \quad m = 1/(\alpha - 1)$$

    It is the prediction map of the score $-(t-\mu)^2/(2\sigma^2)$, whose $\sigma$ determines the
    half-width $s$ (`from_sigma`); as $\alpha \to 1$ at fixed $\sigma$ it tends to the normal.
    $\alpha = 2$ is the truncated parabola, 3/2 the biweight, 4/3 the triweight, $\infty$ the
    uniform distribution on the support.

    Equivalent to `scipy.stats.rdist(2 * m + 2, loc, scale)`, and to
    `scipy.stats.beta(m + 1, m + 1, loc - scale, 2 * scale)`. alpha = 3 is
    `scipy.stats.semicircular(loc, scale)`.

    Args:
        loc: Center $\mu$ (*batch).
        scale: Half-width $s > 0$ of the support (*batch).
        alpha: Entropic index in (1, inf], (*batch); it may require grad. A Python number selects
            closed forms if the exponent is an integer up to 3.
        validate_args: As in torch.distributions.

    Raises:
        ValueError: `loc` not finite, `scale` not positive and finite, `alpha` not above 1, shapes
            that do not broadcast.

    References:
        Martins et al. (2020), Sparse and Continuous Attention Mechanisms, Prop. 1 and eq. 10.
        arXiv:2006.07214

    Examples:
        >>> BetaGaussian(0.0, 1.0, alpha=1.5).variance
        tensor(0.1429)
    """

    _kind = Parabola

    @classmethod
    def from_sigma(
        cls, loc: Tensor | float, sigma: Tensor | float, *args: Any, **options: Any
    ) -> Self:
        r"""Construct from the score's scale: $f(t) = -(t - \mu)^2/(2\sigma^2)$.

        Args:
            loc: $\mu$ (*batch).
            sigma: $\sigma$ (*batch).
            args: `alpha`, unless the class fixes it.
            options: `alpha` and `validate_args` by name.

        Raises:
            ValueError: `sigma` not positive and finite, or as for the class.
        """
        return cls._from_score("sigma", loc, sigma, *args, **options)

    @classmethod
    def from_canonical(
        cls, theta1: Tensor | float, theta2: Tensor | float, *args: Any, **options: Any
    ) -> Self:
        r"""Construct from $\theta = [\mu/\sigma^2, -1/(2\sigma^2)]$, the score's coefficients.

        Args:
            theta1: Coefficient of t (*batch).
            theta2: Coefficient of t^2 (*batch).
            args: As for `from_sigma`.
            options: As for `from_sigma`.

        Raises:
            ValueError: `theta2` not negative and finite, or as for the class.
        """
        theta1, theta2 = broadcast_arguments(theta1=theta1, theta2=theta2)
        require(torch.isfinite(theta2) & (theta2 < 0), "theta2", "negative and finite", theta2)
        return cls.from_sigma(-theta1 / (2 * theta2), (-0.5 / theta2).sqrt(), *args, **options)

    @property
    def sigma(self) -> Tensor:
        r"""The score's $\sigma$ (*batch); inf or 0 at alpha = inf, where it is not determined."""
        return self.scale * self.generator.inverse_radius(self._log_det())

    @property
    def score(self) -> Quadratic:
        r"""$f(t) = -(t - \mu)^2/(2\sigma^2)$."""
        return Quadratic(self.loc, self.sigma)

    @property
    def _law(self) -> Law | None:
        # Only uniform densities have a law here. A subclass may have another `log_prob`.
        if type(self) is not BetaGaussian or self._fixed_exponent != 0:
            return None
        low, high = self.loc - self.scale, self.loc + self.scale
        return Law("uniform", low, high - low, lower=low, upper=high)

    def escort(self, beta: Tensor | float | None = None) -> "BetaGaussian":
        r"""Return the escort, whose exponent is $m\beta$; default $\beta = 2 - \alpha$.

        Raises:
            ValueError: A negative exponent (the default beta at alpha > 2 gives $m - 1 < 0$).
        """
        alpha = self.generator.escort_alpha(beta)
        return BetaGaussian(self.loc, self.scale, alpha, validate_args=self._validation)


class TruncatedParabola(BetaGaussian):
    r"""Truncated parabola: the sparsemax counterpart of the normal.

    $$p(t) = \frac{3}{4s}\,(1 - x^2)_+, \qquad x = (t - \mu)/s$$

    The prediction map of $-(t-\mu)^2/(2\sigma^2)$ at $\alpha = 2$, with $s^3 = 3\sigma^2/2$.

    Equivalent to `scipy.stats.rdist(4, loc, scale)`: the Epanechnikov kernel.

    Args:
        loc: Center $\mu$ (*batch).
        scale: Half-width $s > 0$ of the support (*batch).
        validate_args: As in torch.distributions.

    Raises:
        ValueError: `loc` not finite, `scale` not positive and finite, shapes that do not broadcast.

    References:
        Martins et al. (2020), Sparse and Continuous Attention Mechanisms, eq. 10.
        arXiv:2006.07214

    Examples:
        >>> TruncatedParabola(0.0, 1.0).variance
        tensor(0.2000)
    """

    arg_constraints = SymmetricDistribution.arg_constraints

    def __init__(
        self, loc: Tensor | float, scale: Tensor | float, *, validate_args: bool | None = None
    ) -> None:
        super().__init__(loc, scale, 2.0, validate_args=validate_args)
