"""The regularized prediction map, from a score and alpha to a density."""

from collections.abc import Sequence

from torch import Tensor
from torch.distributions import Distribution

from . import scores
from ._numerics.entmax import entmax, require_finite_index
from ._numerics.validation import as_number
from .distributions import (
    BetaGaussian,
    BetaLaplace,
    KernelDeformedExp,
    KernelExp,
    Laplace,
    LocationScale,
    MultivariateBetaGaussian,
    MultivariateNormal,
    Normal,
    SparseCategorical,
    SparseDistribution,
    Triangular,
    TruncatedParabola,
    TruncatedParaboloid,
)
from .distributions._torch_adapter import wrap

__all__ = ["rpm"]


def rpm(
    score: scores.Score,
    alpha: Tensor | float,
    base: Distribution | Sequence[Distribution] | None = None,
) -> SparseDistribution:
    r"""Return the density that maximizes $E_p[f] - \Omega_\alpha(p)$.

    It is $\exp_{2-\alpha}(f - A_\alpha(f))$:

    | alpha | `Quadratic` | `MultivariateQuadratic` | `AbsoluteDeviation` | `Finite` |
    |---|---|---|---|---|
    | 1 | `Normal` | `MultivariateNormal` | `Laplace` | softmax |
    | 2 | `TruncatedParabola` | `TruncatedParaboloid` | `Triangular` | sparsemax |
    | other > 1 | `BetaGaussian` | `MultivariateBetaGaussian` | `BetaLaplace` | entmax |

    The score `LocationScale` has the density of that name, at alpha = 2 only; `KernelExpansion`
    and `BasisExpansion` have `KernelExp` at 1 and `KernelDeformedExp` up to 2; `LogDensity` has its
    own density, at 1.

    Args:
        score: The score f.
        alpha: Entropic index, at least 1. A tensor, which may require grad, must be above 1 and
            always gives the general family.
        base: Base density of a `KernelExpansion`, default uniform on the unit interval or box, or
            of a `BasisExpansion`, default uniform on the basis's domain; no other score takes one.

    Raises:
        ValueError: `alpha` below 1, or a score without a density at this alpha.

    References:
        Blondel et al. (2020), Learning with Fenchel-Young losses. Martins et al. (2020), Sparse
        and Continuous Attention Mechanisms, Def. 1 and Prop. 1.

    Examples:
        >>> rpm(scores.Quadratic(0.0, sigma=1.0), alpha=2.0).scale
        tensor(1.1447)
    """
    number = None if isinstance(alpha, Tensor) else alpha
    if isinstance(score, scores.FeatureExpansion):
        if number == 1:
            return KernelExp.from_score(score, base)
        return KernelDeformedExp.from_score(score, base, alpha)
    if base is not None:
        raise ValueError(f"base must be None for {type(score).__name__}, got {base!r}")
    if number is not None and not as_number(number) >= 1:
        raise ValueError(f"alpha must be at least 1, got {alpha!r}")
    # Numbers 1 and 2 have classes with simpler formulas. A tensor alpha always gives the general
    # family: it may be learned, and it may differ from one density of the batch to the next.
    if isinstance(score, scores.Quadratic):
        if number == 1:
            return Normal(score.loc, score.sigma)
        if number == 2:
            return TruncatedParabola.from_sigma(score.loc, score.sigma)
        return BetaGaussian.from_sigma(score.loc, score.sigma, alpha)
    if isinstance(score, scores.MultivariateQuadratic):
        if number == 1:
            return MultivariateNormal(score.loc, scale_tril=score.sigma_tril)
        if number == 2:
            return TruncatedParaboloid.from_sigma_tril(score.loc, score.sigma_tril)
        return MultivariateBetaGaussian.from_sigma_tril(score.loc, score.sigma_tril, alpha)
    if isinstance(score, scores.AbsoluteDeviation):
        if number == 1:
            return Laplace(score.loc, score.b)
        if number == 2:
            return Triangular.from_b(score.loc, score.b)
        return BetaLaplace.from_b(score.loc, score.b, alpha)
    if isinstance(score, scores.LocationScale):
        if number != 2:
            raise ValueError(f"alpha must be 2 for a location-scale score (eq. 13), got {alpha}")
        return LocationScale(score.loc, score.scale, score.g)
    if isinstance(score, scores.LogDensity):
        if number != 1:
            raise ValueError(f"alpha must be 1 for the logarithm of a density, got {alpha}")
        return wrap(score.density)
    if isinstance(score, scores.Finite):
        require_finite_index(alpha, score.scores.shape[:-1])
        return SparseCategorical(entmax(score.scores, alpha), alpha)
    raise ValueError(f"score must be one of sparsefam.scores, got {score!r}")
