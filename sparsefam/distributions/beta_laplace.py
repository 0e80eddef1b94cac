"""Beta-Laplacians: powers of a triangular density, the sparse counterparts of Laplace's."""

from typing import Any

from torch import Tensor
from typing_extensions import Self

from ..scores import AbsoluteDeviation
from ._generators import Cone
from .beta_gaussian import PowerDistribution
from .symmetric import SymmetricDistribution

__all__ = ["BetaLaplace", "Triangular"]


class BetaLaplace(PowerDistribution):
    r"""Power of a triangular density: the alpha-entmax counterpart of Laplace's.

    $$p(t) = \frac{m + 1}{2s}\,(1 - |x|)_+^m, \qquad x = (t - \mu)/s, \quad m = 1/(\alpha - 1)$$

    It is the prediction map of the score $-|t-\mu|/b$, whose $b$ determines the half-width $s$
    (`from_b`); as $\alpha \to 1$ at fixed $b$ it tends to Laplace's density. $\alpha = 2$ is the
    triangular, $\infty$ the uniform distribution on the support.

    Equivalent to a random sign times `scipy.stats.beta(1, m + 1, 0, scale)`, shifted by `loc`.

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
        Martins et al. (2020), Sparse and Continuous Attention Mechanisms, Prop. 1 and eq. 12.
        arXiv:2006.07214

    Examples:
        >>> BetaLaplace(0.0, 1.0, alpha=1.5).variance
        tensor(0.1000)
    """

    _kind = Cone

    @classmethod
    def from_b(cls, loc: Tensor | float, b: Tensor | float, *args: Any, **options: Any) -> Self:
        r"""Construct from the score's scale: $f(t) = -|t - \mu|/b$.

        Args:
            loc: $\mu$ (*batch).
            b: Scale of the score (*batch).
            args: `alpha`, unless the class fixes it.
            options: `alpha` and `validate_args` by name.

        Raises:
            ValueError: `b` not positive and finite, or as for the class.
        """
        return cls._from_score("b", loc, b, *args, **options)

    @property
    def b(self) -> Tensor:
        """The score's b (*batch); inf or 0 at alpha = inf, where it is not determined."""
        return self.scale * self.generator.inverse_radius(self._log_det())

    @property
    def score(self) -> AbsoluteDeviation:
        r"""$f(t) = -|t - \mu|/b$."""
        return AbsoluteDeviation(self.loc, self.b)

    def escort(self, beta: Tensor | float | None = None) -> "BetaLaplace":
        r"""Return the escort, whose exponent is $m\beta$; default $\beta = 2 - \alpha$.

        Raises:
            ValueError: A negative exponent (the default beta at alpha > 2 gives $m - 1 < 0$).
        """
        alpha = self.generator.escort_alpha(beta)
        return BetaLaplace(self.loc, self.scale, alpha, validate_args=self._validation)


class Triangular(BetaLaplace):
    r"""Triangular density: the sparsemax counterpart of Laplace's.

    $$p(t) = \frac{1}{s}\,(1 - |x|)_+, \qquad x = (t - \mu)/s$$

    The prediction map of $-|t-\mu|/b$ at $\alpha = 2$, with $s = \sqrt b$.

    Equivalent to `scipy.stats.triang(0.5, loc - scale, 2 * scale)` and to
    `tfp.distributions.Triangular(low=loc - scale, high=loc + scale, peak=loc)`.

    Args:
        loc: Center $\mu$ (*batch).
        scale: Half-width $s > 0$ of the support (*batch).
        validate_args: As in torch.distributions.

    Raises:
        ValueError: `loc` not finite, `scale` not positive and finite, shapes that do not broadcast.

    References:
        Martins et al. (2020), Sparse and Continuous Attention Mechanisms, eq. 12.
        arXiv:2006.07214

    Examples:
        >>> Triangular(0.0, 1.0).variance
        tensor(0.1667)
    """

    arg_constraints = SymmetricDistribution.arg_constraints

    def __init__(
        self, loc: Tensor | float, scale: Tensor | float, *, validate_args: bool | None = None
    ) -> None:
        super().__init__(loc, scale, 2.0, validate_args=validate_args)
