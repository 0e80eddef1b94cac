"""Kullback-Leibler, Tsallis and Bregman divergences between densities."""

import math
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch import distributions as td
from torch.distributions import Distribution, Independent, kl_divergence, register_kl

from .._numerics.deformed import expm1_ratio
from .._numerics.ellipsoid import direction_rule
from .._numerics.modes import branches_allowed
from .._numerics.quadrature import graded_rule, line_integral, weighted_sum
from .._numerics.roots import increasing_root
from .._numerics.validation import as_number, broadcast_shapes
from ..supports import IntervalUnion
from ._torch_adapter import (
    dtype_of,
    is_discrete,
    to_float64,
)
from .base import SparseDistribution
from .beta_gaussian import BetaGaussian
from .categorical import SparseCategorical
from .elliptical import EllipticalDistribution, MultivariateBetaGaussian, MultivariateNormal
from .mixture import Mixture, log_weights, separate_cuts
from .normal import Laplace, Normal
from .scaled_beta import ScaledBeta
from .symmetric import SymmetricDistribution

__all__ = ["bregman_divergence", "tsallis_divergence"]

_CATEGORICAL = (SparseCategorical, td.Categorical)
_VECTORS = (td.MultivariateNormal, td.LowRankMultivariateNormal)
_CONTINUOUS = (SparseDistribution, td.Normal, td.Laplace, td.Uniform, td.Beta, *_VECTORS)
_THEIRS = (td.Normal, td.Laplace, td.Uniform, td.Beta, td.Categorical, td.Independent, *_VECTORS)
# Torch's own rules match these of our classes, too, so they are registered by name.
_OURS = (SparseDistribution, Normal, Laplace, MultivariateNormal)
# exp of a larger number is infinite in float64.
_LARGEST_LOG = 709.0


def _kl(p: Any, q: Any) -> Tensor:
    r"""Return $\int p \log(p/q)$ (*batch), infinite unless p's support lies in q's."""
    _check(p, q)
    if all(isinstance(x, (td.Normal, td.Laplace)) for x in (p, q)):
        dtype = torch.promote_types(dtype_of(p), dtype_of(q))
        return kl_divergence(_as_torch(p), _as_torch(q)).to(dtype)
    return _divergence(p, q, _kl_integrand, True, _kl_univariate, _kl_multivariate)


for _pair in (*product(_OURS, _OURS), *product(_OURS, _THEIRS), *product(_THEIRS, _OURS)):
    register_kl(*_pair)(_kl)


def tsallis_divergence(p: Distribution, q: Distribution, alpha: float) -> Tensor:
    r"""Tsallis relative entropy (*batch); the KL divergence at $\alpha = 1$.

    $$D_\alpha(p\,\|\,q) = \frac{1}{\alpha - 1}\left(\int p^\alpha q^{1 - \alpha} - 1\right)$$

    Below $\alpha = 1$ it is finite for any two supports, and reaches its maximum $1/(1 - \alpha)$
    where they are disjoint. Above, it is infinite unless p's support lies in q's, and where the
    integral diverges.

    Args:
        p: A density, or a categorical distribution, of this package or of torch.
        q: Another one.
        alpha: Positive and finite. It need not be the alpha of p or q.

    Raises:
        ValueError: `alpha` not a number, not positive or not finite; event shapes or numbers of
            categories that differ; batch shapes that do not broadcast; `p` or `q` not a
            distribution, or discrete and not categorical.
        NotImplementedError: Distributions of torch but normal, Laplace, uniform and beta ones.

    References:
        Tsallis (1998), Generalized entropy-based criterion for consistent testing. Phys. Rev. E 58.
        Furuichi, Yanagi and Kuriyama (2004), Fundamental properties of Tsallis relative entropy.
        arXiv:cond-mat/0406178

    Examples:
        >>> from sparsefam import TruncatedParabola
        >>> p, q = TruncatedParabola(0.0, 1.0), TruncatedParabola(3.0, 1.0)
        >>> tsallis_divergence(p, q, 0.5)
        tensor(2.)
    """
    _check(p, q, alpha)
    if alpha <= 0:
        raise ValueError(f"alpha must be positive and finite, got {alpha}")
    if alpha == 1:
        return kl_divergence(p, q) if p.event_shape else _kl(p, q)
    integrand = partial(_tsallis_integrand, alpha=alpha)
    rules = _integral_over_line, partial(_tsallis_multivariate, alpha=alpha)
    return _divergence(p, q, integrand, alpha > 1, *rules)


def bregman_divergence(p: Distribution, q: Distribution, alpha: float) -> Tensor:
    r"""Bregman divergence of the negative Tsallis entropy $\Omega_\alpha$ (*batch).

    $$B_\alpha(p, q) = \Omega_\alpha(p) - \Omega_\alpha(q) -
    \langle\nabla\Omega_\alpha(q), p - q\rangle
    = \int \frac{p^\alpha}{\alpha(\alpha - 1)} + \frac{q^\alpha}{\alpha} -
    \frac{p\,q^{\alpha - 1}}{\alpha - 1}$$

    with $\Omega_\alpha(p) = (\int p^\alpha - 1)/(\alpha(\alpha - 1))$. It is the KL divergence at
    $\alpha = 1$ and $\frac12\int(p - q)^2$ at 2; above 1 it is finite for any two supports, and
    infinite only if a density is so high at an end that $\int p^\alpha$ is. If q is the prediction
    map of a score at this alpha, it is at most the score's Fenchel-Young loss on p, and equal to it
    where p's support lies in q's.

    Args:
        p: As for `tsallis_divergence`.
        q: Another one.
        alpha: At least 1 and finite. It need not be the alpha of p or q.

    Raises:
        ValueError: `alpha` below 1; otherwise, and NotImplementedError, as `tsallis_divergence`.

    References:
        Bregman (1967), The relaxation method of finding the common point of convex sets. USSR
        Comput. Math. Math. Phys. 7. Basu, Harris, Hjort and Jones (1998), Robust and efficient
        estimation by minimizing a density power divergence, of which this is $1/\alpha$.
        Biometrika 85. Blondel, Martins and Niculae (2020), Learning with Fenchel-Young losses.
        arXiv:1901.02324

    Examples:
        >>> from sparsefam import TruncatedParabola
        >>> p, q = TruncatedParabola(0.0, 1.0), TruncatedParabola(3.0, 1.0)
        >>> bregman_divergence(p, q, 2.0)
        tensor(0.6000)
    """
    _check(p, q, alpha)
    if alpha < 1:
        raise ValueError(f"alpha must be at least 1 and finite, got {alpha}")
    if alpha == 1:
        return kl_divergence(p, q) if p.event_shape else _kl(p, q)
    integrand = partial(_bregman_integrand, alpha=alpha)
    rules = _integral_over_line, partial(_bregman_multivariate, alpha=alpha)
    return _divergence(p, q, integrand, False, *rules)


_Integrand = Callable[["_Logs"], Tensor]
# From p and q in float64, the integrand, whether the divergence is infinite unless p's support lies
# in q's (`nested`), and eps, the rounding error of the parameters, to divergences (*batch).
_Rule = Callable[[Any, Any, _Integrand, bool, float], Tensor]


def _divergence(
    p: Any, q: Any, integrand: _Integrand, nested: bool, univariate: _Rule, multivariate: _Rule
) -> Tensor:
    """Compute a divergence (*batch) in float64, by a rule for the kind of densities.

    Args:
        p: A density, or a categorical distribution.
        q: Another one.
        integrand: From log densities to the function whose integral, or sum, is the divergence.
        nested: Whether the divergence is infinite unless p's support lies in q's.
        univariate: The rule for densities of numbers.
        multivariate: The rule for densities of vectors.
    """
    dtypes = dtype_of(p), dtype_of(q)
    dtype = torch.promote_types(*dtypes)
    if isinstance(p, _CATEGORICAL):
        return _sum_over_categories(p, q, integrand, nested).to(dtype)
    eps = max(torch.finfo(x).eps for x in dtypes)
    p, q = to_float64(p), to_float64(q)
    # Vectors of one coordinate are taken for numbers, with a batch (*batch, 1).
    if p.event_shape == (1,) and all(isinstance(x, EllipticalDistribution) for x in (p, q)):
        p, q = _coordinates(p), _coordinates(q)
        return univariate(p, q, integrand, nested, eps).squeeze(-1).to(dtype)
    rule = multivariate if p.event_shape else univariate
    return rule(p, q, integrand, nested, eps).to(dtype)


def _sum_over_categories(p: Any, q: Any, integrand: _Integrand, nested: bool) -> Tensor:
    """Sum an integrand over categories (*batch); if `nested`, infinite where q misses one of p."""
    log_p, log_q = (log_weights(x).double().log_softmax(-1) for x in (p, q))
    if log_p.shape[-1] != log_q.shape[-1]:
        raise ValueError(
            f"p and q must have as many categories, got {log_p.shape[-1]} and {log_q.shape[-1]}"
        )
    at = _Logs.of(log_p, log_q)
    missed = (at.in_p & ~at.in_q).any(-1) & nested
    return torch.where(missed, math.inf, integrand(at).sum(-1))


def _check(p: Any, q: Any, alpha: object = 1) -> None:
    """Raise for a pair without a divergence, or an alpha that is not a finite number.

    Raises:
        ValueError: Arguments that do not fit each other, or are no distributions.
        NotImplementedError: A distribution of torch that is not supported.
    """
    if not math.isfinite(as_number(alpha)):
        raise ValueError(f"alpha must be a finite number, got {alpha!r}")
    for name, x in (("p", p), ("q", q)):
        if not isinstance(x, Distribution):
            raise ValueError(f"{name} must be a distribution, got {x!r}")
    if p.event_shape != q.event_shape:
        shapes = f"{tuple(p.event_shape)} and {tuple(q.event_shape)}"
        raise ValueError(f"p and q must have one event shape, got {shapes}")
    try:
        broadcast_shapes(p.batch_shape, q.batch_shape)
    except RuntimeError:
        shapes = f"{tuple(p.batch_shape)} and {tuple(q.batch_shape)}"
        raise ValueError(f"p and q must have batch shapes that broadcast, got {shapes}") from None
    categorical = [isinstance(x, _CATEGORICAL) for x in (p, q)]
    for name, x in (("p", p), ("q", q)):
        if any(categorical) and not isinstance(x, _CATEGORICAL):
            raise ValueError(f"{name} must be a categorical distribution as the other, got {x}")
        if not any(categorical) and is_discrete(x):
            raise ValueError(f"{name} must be continuous, got {x}")
        base = x.base_dist if isinstance(x, Independent) and x.event_shape else x
        if not isinstance(base, (*_CONTINUOUS, *_CATEGORICAL)):
            raise NotImplementedError(f"no divergence of {x} is implemented")


def _as_torch(p: Any) -> Distribution:
    """Return a normal or Laplace distribution as torch's own class, in float64."""
    kind = td.Normal if isinstance(p, td.Normal) else td.Laplace
    return kind(p.loc.double(), p.scale.double(), validate_args=False)


# Integrands as functions of two log densities


class _Logs(NamedTuple):
    """Log densities at some locations, all of one shape."""

    p: Tensor  # Log density of p, or 0 where it is infinite
    q: Tensor
    in_p: Tensor  # Whether the log density of p is finite
    in_q: Tensor

    @classmethod
    def of(cls, log_p: Tensor, log_q: Tensor) -> "_Logs":
        """Return the log densities with infinite ones replaced."""
        logs = torch.broadcast_tensors(log_p, log_q)
        finite = [x.isfinite() for x in logs]
        return cls(*(torch.where(f, x, 0.0) for f, x in zip(finite, logs, strict=True)), *finite)

    @classmethod
    def at(cls, p: Any, q: Any, t: Tensor) -> "_Logs":
        """Return the log densities of p and q at locations (Q, *batch, *event)."""
        return cls.of(p.log_prob(t), q.log_prob(t))

    def swapped(self) -> "_Logs":
        """Return the log densities with p and q exchanged."""
        return _Logs(self.q, self.p, self.in_q, self.in_p)


def _kl_integrand(at: _Logs) -> Tensor:
    r"""Return $p\,(\log p - \log q)$, 0 where either vanishes."""
    return torch.where(at.in_p & at.in_q, torch.exp(at.p) * (at.p - at.q), 0.0)


def _cross_entropy_integrand(at: _Logs) -> Tensor:
    r"""Return $-p \log q$, 0 where either vanishes.

    Callers make the integral infinite where p has mass off the support of q.
    """
    return torch.where(at.in_p & at.in_q, -torch.exp(at.p) * at.q, 0.0)


def _tsallis_integrand(at: _Logs, alpha: float) -> Tensor:
    r"""Return $(p^\alpha q^{1-\alpha} - p)/(\alpha - 1)$, accurate as alpha tends to 1.

    Above alpha = 1 it is 0 instead of infinite where only q vanishes.
    """
    slope = alpha - 1
    alone = torch.exp(at.p) / -slope if slope < 0 else torch.zeros_like(at.p)
    both = _power_difference(at.p, at.p - at.q, slope)
    return torch.where(at.in_p & at.in_q, both, torch.where(at.in_p, alone, 0.0))


def _bregman_gain(at: _Logs, alpha: float) -> Tensor:
    r"""Return $p\,(p^{\alpha - 1} - q^{\alpha - 1})/(\alpha - 1)$."""
    slope = alpha - 1
    # p q^s (e^(s (log p - log q)) - 1)/s with s = alpha - 1.
    both = _power_difference(at.p + slope * at.q, at.p - at.q, slope)
    return torch.where(at.in_p & at.in_q, both, _power(at, alpha) / slope)


def _bregman_integrand(at: _Logs, alpha: float) -> Tensor:
    r"""Return `_bregman_gain` less $(p^\alpha - q^\alpha)/\alpha$."""
    gain, p, q = _bregman_gain(at, alpha), _power(at, alpha), _power(at.swapped(), alpha)
    # Where powers overflow their difference is unknown.
    over = gain.isinf() | p.isinf() | q.isinf()
    p, q = (torch.where(over, 0.0, x) for x in (p, q))
    return torch.where(over, math.inf, gain - (p - q) / alpha)


def _power(at: _Logs, alpha: float) -> Tensor:
    r"""Return $p^\alpha$, infinite without a gradient where it overflows."""
    log = alpha * at.p
    fits = log <= _LARGEST_LOG
    power = torch.where(fits, torch.exp(torch.where(fits, log, 0.0)), math.inf)
    return torch.where(at.in_p, power, 0.0)


def _power_difference(log: Tensor, ratio: Tensor, rate: float) -> Tensor:
    r"""Return $e^{log} (e^{rate\,ratio} - 1)/rate$ without cancellation; inf where it overflows.

    Args:
        log: The logarithm of a factor.
        ratio: A logarithm of a ratio, of the same shape.
        rate: Not 0.
    """
    fits = torch.maximum(log, log + rate * ratio) <= _LARGEST_LOG
    log, ratio = torch.where(fits, log, 0.0), torch.where(fits, ratio, 0.0)
    near = (rate * ratio).abs() < 1
    small = torch.where(near, ratio, 0.0)
    base = torch.exp(log)
    far = (torch.exp(log + rate * ratio) - base) / rate
    difference = torch.where(near, base * small * expm1_ratio(rate * small), far)
    return torch.where(fits, difference, math.inf)


# Univariate densities

# Rounding errors by which ends of supports may miss each other that are meant to be equal.
_ULPS = 8
# Integrals over pieces, of densities whose mass is 1, are not more exact than this.
_ROUNDING = 1e-15
# Where a support is unbounded, integrals are cut at these distances beyond all other cuts, too, in
# multiples of the range of these.
_TAIL = (2.0, 2.0**5, 2.0**40)
# Where convergence is tested: distances to a finite end, in multiples of the gap to the next cut,
# and towards an infinite one, of the range; the factor by which contributions must decrease; and a
# contribution that does not matter.
_PROBES, _DECREASE, _LEAST = ((2.0**-7, 2.0**30), (2.0**-15, 2.0**60)), 0.9, 1e-12


def _kl_univariate(p: Any, q: Any, integrand: _Integrand, nested: bool, eps: float) -> Tensor:
    """Use the closed cross entropy of a symmetric p with a normal or uniform q, else integrate.

    Beta densities on the same interval have a closed form, too.
    """
    if isinstance(p, ScaledBeta) and isinstance(q, ScaledBeta):
        same = (p.low == q.low) & (p.high == q.high)
        if branches_allowed() and bool(same.all()):
            return p._kl_on_same_interval(q)
        other = _integral_over_line(p, q, integrand, nested, eps)
        return torch.where(same, p._kl_on_same_interval(q), other)
    if isinstance(p, SymmetricDistribution) and isinstance(q, Normal):
        square = (p.variance + (p.mean - q.loc).square()) / q.scale.square()
        cross = 0.5 * square + 0.5 * math.log(2 * math.pi) + q.scale.log()
    elif isinstance(p, SymmetricDistribution) and getattr(q, "_fixed_exponent", None) == 0:
        cross = (2 * q.scale).log() + torch.zeros_like(p.loc)
    else:
        return _integral_over_line(p, q, integrand, nested, eps)
    return torch.where(_is_nested(p, q, eps)[0], cross - p.entropy(), math.inf)


def _integral_over_line(p: Any, q: Any, integrand: _Integrand, nested: bool, eps: float) -> Tensor:
    """Integrate between the cuts of both densities, infinite unless the integral converges.

    If `nested`, p's support must lie in q's, and the integral is over p's support.
    """
    is_finite, slack = _is_nested(p, q, eps)
    # The cuts of q (*batch, J) that are at an end of p's support.
    ends = p._intervals().flatten(-2).unsqueeze(-2)
    at_end = ((q._cuts().unsqueeze(-1) - ends).abs() <= slack[..., None, None]).any(-1)
    p, q = separate_cuts(p, q)
    cuts = _concatenate(p._cuts(), q._cuts())
    if nested:
        is_finite = is_finite & ~_diverges(integrand, p, q, cuts, slack, nested)
        # A second cut at an end of p's support would only cost accuracy.
        cuts = _concatenate(p._cuts(), torch.where(at_end, math.nan, q._cuts()))
        cuts = _with_tails(p, cuts)
    else:
        # At the ends of both supports: swapping p and q twice leaves the integrand as it is.
        at_p = _diverges(integrand, p, q, cuts, slack, nested)
        at_q = _diverges(lambda at: integrand(at.swapped()), q, p, cuts, slack, nested)
        is_finite = ~at_p & ~at_q
    integral = line_integral(lambda t: integrand(_Logs.at(p, q, t)), cuts, rounding=_ROUNDING)
    return torch.where(is_finite, integral, math.inf)


def _is_nested(p: Any, q: Any, eps: float) -> tuple[Tensor, Tensor]:
    """Return whether p's support lies in q's, and by how much rounding moves ends (*batch)."""
    inner, outer = p._intervals().detach(), q._intervals().detach()
    ends = [torch.where(x.isfinite(), x, 0.0).abs().flatten(-2).amax(-1) for x in (inner, outer)]
    slack = _ULPS * eps * torch.maximum(*ends)
    # Intervals of q, widened by rounding, so that neighbors merge: (*batch, 1, L, 2).
    side = outer.new_tensor([-1.0, 1.0])
    outer = IntervalUnion.merged(outer + slack[..., None, None] * side).intervals.unsqueeze(-3)
    # Each of the K intervals of p must lie in one of them, (*batch, K, L).
    low, high = inner.unsqueeze(-2).unbind(-1)
    inside = ((outer[..., 0] <= low) & (high <= outer[..., 1])).any(-1)
    return (inside | inner[..., 0].isnan()).all(-1), slack


@torch.no_grad()
def _diverges(
    integrand: _Integrand, p: Any, q: Any, cuts: Tensor, slack: Tensor, nested: bool
) -> Tensor:
    """Return whether the integral diverges at an end of p's support (*batch).

    The integral over a doubling of the distance to a finite end, or from the middle to an infinite
    one, is of the order of the integrand times the distance. Compared at two distances, it must
    decrease towards the end. Unless `nested`, only finite ends are tested, as the integral always
    converges at infinite ones.

    Args:
        integrand: The integrand.
        p: The density whose ends are tested.
        q: The other one.
        cuts: The cuts of both (*batch, J), padded with NaN.
        slack: By how much rounding moves ends (*batch).
        nested: Whether infinite ends are tested, too.
    """
    low, high = (x.unsqueeze(-1) for x in _span(cuts))
    ends = p._intervals()
    inwards = ends.new_tensor([1.0, -1.0]).expand(ends.shape).flatten(-2)
    ends = ends.flatten(-2)
    finite = ends.isfinite()
    # Half of the distance from each end to the next cut, (*batch, ends).
    gaps = inwards.unsqueeze(-1) * (cuts.unsqueeze(-2) - ends.unsqueeze(-1))
    gap = torch.where(gaps > slack[..., None, None], gaps, math.inf).amin(-1) / 2
    # Rounding of the end must not matter.
    gap = torch.maximum(gap, 1e-6 * ends.abs())
    start = torch.where(finite, ends, (low + high) / 2)
    sizes = []
    for near, far in _PROBES:
        step = torch.where(finite, near * gap, far * (low - high))
        t = (start + inwards * step).movedim(-1, 0)
        at = _Logs.of(*(x.log_prob(t).movedim(0, -1) for x in (p, q)))
        # p is added to the integrand, which changes its sign and may happen to be small.
        height = torch.where(at.in_p, torch.exp(at.p), 0.0)
        sizes.append((integrand(at).abs() + height) * step.abs())
    before, nearer = sizes  # the second one nearer to the end, finite or infinite
    grows = (nearer > _LEAST) & (nearer >= _DECREASE * before)
    return (grows & (finite | nested)).any(-1)


def _concatenate(*cuts: Tensor) -> Tensor:
    """Join cuts (*batch, J) whose batches broadcast."""
    shape = broadcast_shapes(*(x.shape[:-1] for x in cuts))
    return torch.cat([x.expand(*shape, x.shape[-1]) for x in cuts], -1)


def _span(cuts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and the last of cuts (*batch, J) that may be NaN, each (*batch)."""
    missing = cuts.isnan()
    low = torch.where(missing, math.inf, cuts).amin(-1)
    return low, torch.where(missing, -math.inf, cuts).amax(-1)


def _with_tails(p: Any, cuts: Tensor) -> Tensor:
    """Add cuts further and further outside on the sides where p's support has no end."""
    if isinstance(p, SymmetricDistribution) and not p._is_unbounded:
        return cuts
    low, high = (x.detach().unsqueeze(-1) for x in _span(cuts))
    steps = (high - low) * cuts.new_tensor(_TAIL)
    left, right = p._intervals().isinf().any(-2, keepdim=True).unbind(-1)
    tails = torch.where(left, low - steps, math.nan), torch.where(right, high + steps, math.nan)
    return _concatenate(cuts, *tails)


# Multivariate densities

# Radii of ellipsoids; orders by dimension of their directions and of other rules, and of products.
_RADII, _ORDERS = 48, {1: 200, 2: 96, 3: 48}
_PRODUCT_ORDERS = {1: 64, 2: 32, 3: 20}
# Mass of p at nodes off q's support that counts as rounding.
_MISSED = 1e-9
# Standard deviations from the mean of p at which an unbounded support is found out.
_FAR = 1e3


def _kl_multivariate(p: Any, q: Any, integrand: _Integrand, nested: bool, eps: float) -> Tensor:
    """Return the cross entropy of p and q less the entropy of p (*batch); no integrand is used."""
    p = p.expand(broadcast_shapes(p.batch_shape, q.batch_shape))
    if isinstance(q, MultivariateNormal):
        cross = _normal_cross_entropy(p, q)
    elif isinstance(q, Independent) and isinstance(p, EllipticalDistribution):
        marginals = _coordinates(p), q.base_dist
        cross = _integral_over_line(*marginals, _cross_entropy_integrand, True, eps).sum(-1)
    else:
        cross = _integral_at_nodes(p, q, _cross_entropy_integrand, True, eps)
    if isinstance(p, Mixture):  # at the same nodes, as its own rule has another order
        entropy = _integral_at_nodes(p, p, _cross_entropy_integrand, False, eps)
    else:
        entropy = p.entropy()
    finite = cross.isfinite()
    return torch.where(finite, torch.where(finite, cross, 0.0) - entropy, math.inf)


def _tsallis_multivariate(
    p: Any, q: Any, integrand: _Integrand, nested: bool, eps: float, *, alpha: float
) -> Tensor:
    """Use the closed form for two normal densities, else the nodes of p's quadrature rule."""
    p = p.expand(broadcast_shapes(p.batch_shape, q.batch_shape))
    if isinstance(p, MultivariateNormal) and isinstance(q, MultivariateNormal):
        return _tsallis_of_normals(p, q, alpha)
    integral = _integral_at_nodes(p, q, integrand, nested, eps)
    if nested and all(isinstance(x, MultivariateBetaGaussian) for x in (p, q)):
        # Where edges meet, the integrand is a power of the distance. It is integrable if the
        # exponent is above -1, or if p's ellipsoid keeps a distance from the edge of q's.
        light = alpha * p.generator.m + (1 - alpha) * q.generator.m > -1
        integral = torch.where(light | _is_inside(p, q, eps, 1 - 1e-9), integral, math.inf)
    return integral


def _bregman_multivariate(
    p: Any, q: Any, integrand: _Integrand, nested: bool, eps: float, *, alpha: float
) -> Tensor:
    """Integrate `_bregman_gain` at the nodes of p, and each power at nodes of its own density."""
    shape = broadcast_shapes(p.batch_shape, q.batch_shape)
    p, q = p.expand(shape), q.expand(shape)
    gain = _integral_at_nodes(p, q, partial(_bregman_gain, alpha=alpha), nested, eps)
    power = partial(_power, alpha=alpha)
    norms = [_integral_at_nodes(x, x, power, nested, eps) for x in (p, q)]
    return gain + (norms[1] - norms[0]) / alpha


def _coordinates(p: EllipticalDistribution) -> SymmetricDistribution:
    """Return the marginal densities of the coordinates of an elliptical density (*batch, D).

    The scale of a coordinate is the length of its row of `scale_tril`.
    """
    scale = p.scale_tril.square().sum(-1).sqrt()
    if isinstance(p, MultivariateNormal):
        return Normal(p.loc, scale, validate_args=False)
    alpha = p.marginal(0).alpha.unsqueeze(-1)
    return BetaGaussian(p.loc, scale, alpha, validate_args=False)


def _normal_cross_entropy(p: Any, q: MultivariateNormal) -> Tensor:
    """Return the cross entropy with a normal density, whose logarithm needs two moments."""
    independent = isinstance(p, Independent)
    covariance = p.variance.diag_embed() if independent else p.covariance_matrix
    offset = (p.mean - q.loc).unsqueeze(-1)
    scatter = covariance + offset @ offset.mT
    # E_p |L^-1 (t - mu)|^2 = tr(L^-1 S L^-T) with L and mu of q, and S = E_p[(t - mu) (t - mu)'].
    left = torch.linalg.solve_triangular(q.scale_tril, scatter, upper=False)
    whitened = torch.linalg.solve_triangular(q.scale_tril, left.mT, upper=False)
    trace = whitened.diagonal(dim1=-2, dim2=-1).sum(-1)
    return 0.5 * (trace + q.event_shape[0] * math.log(2 * math.pi)) + q._log_det()


def _tsallis_of_normals(p: MultivariateNormal, q: MultivariateNormal, alpha: float) -> Tensor:
    r"""Return $(\int p^\alpha q^{1 - \alpha} - 1)/(\alpha - 1)$, accurate as alpha tends to 1.

    In the coordinates of q, with $M = L_q^{-1} L_p$ and the offset d,
    $$\int p^\alpha q^{1 - \alpha} = e^{(1 - \alpha) s}, \quad
    s = \log|M| - \frac{\log|A|}{2 (1 - \alpha)} - \frac{\alpha}{2} d^\top A^{-1} d, \quad
    A = \alpha I + (1 - \alpha) M M^\top$$
    if A is positive definite; it is infinite otherwise.
    """
    offset, matrix = _relative(p, q.loc, q.scale_tril)
    rate, unit = 1 - alpha, torch.eye(matrix.shape[-1]).to(matrix)
    # A = I + (1 - alpha) (M M' - I).
    excess = matrix @ matrix.mT - unit
    eigenvalues = torch.linalg.eigvalsh(excess)
    definite = (rate * eigenvalues > -1).all(-1, keepdim=True)
    eigenvalues = torch.where(definite, eigenvalues, 0.0)
    mixed = torch.where(definite.unsqueeze(-1), unit + rate * excess, unit)
    distance = (offset * torch.linalg.solve(mixed, offset)).sum(-1)
    s = matrix.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    s = s - 0.5 * torch.log1p(rate * eigenvalues).sum(-1) / rate - 0.5 * alpha * distance
    fits = definite.squeeze(-1) & (rate * s <= _LARGEST_LOG)
    s = torch.where(fits, s, 0.0)
    return torch.where(fits, -s * expm1_ratio(rate * s), math.inf)


def _relative(p: Any, loc: Tensor, scale_tril: Tensor) -> tuple[Tensor, Tensor]:
    """Return center (*batch, D) and factor (*batch, D, D) of p in other coordinates.

    They are u = scale_tril^-1 (t - loc), in which an ellipsoid with this center and factor is the
    unit ball.
    """
    solve = partial(torch.linalg.solve_triangular, scale_tril, upper=False)
    return solve((p.loc - loc).unsqueeze(-1)).squeeze(-1), solve(p.scale_tril)


def _integral_at_nodes(p: Any, q: Any, integrand: _Integrand, nested: bool, eps: float) -> Tensor:
    """Integrate over p's support at the nodes of p's quadrature rule (*batch).

    If `nested`, the integral is infinite where p has mass off the support of q.
    """
    nodes, weights = _rule(p)
    at = _Logs.at(p, q, nodes)
    # Weights of expectations under p, divided by p, are weights of integrals.
    integral = weighted_sum(weights * torch.exp(-at.p), integrand(at))
    if not nested:
        return integral
    if all(isinstance(x, MultivariateBetaGaussian) for x in (p, q)):
        return torch.where(_is_inside(p, q, eps), integral, math.inf)
    missed = torch.where(at.in_p & ~at.in_q, weights.abs(), 0.0).sum(0) > _MISSED
    # An unbounded p may have no node as far out as the end of q's support.
    step = _FAR * p.variance.sqrt()
    far = _Logs.at(p, q, torch.stack([p.mean - step, p.mean + step]))
    return torch.where(missed | (far.in_p & ~far.in_q).any(0), math.inf, integral)


def _rule(p: Any) -> tuple[Tensor, Tensor]:
    """Return nodes (Q, *batch, D) and weights (Q, *batch) for expectations under p."""
    dim = p.event_shape[0]
    if isinstance(p, MultivariateBetaGaussian):
        return _ball_rule(p)
    if not isinstance(p, Independent):
        return p.quadrature(_ORDERS.get(dim, 64))
    if dim not in _PRODUCT_ORDERS:
        raise NotImplementedError(
            f"products of more than {max(_PRODUCT_ORDERS)} univariate densities have no quadrature "
            f"rule, got {dim}"
        )
    nodes, weights = p.base_dist.quadrature(_PRODUCT_ORDERS[dim])
    index = torch.cartesian_prod(*[torch.arange(len(nodes), device=nodes.device)] * dim)
    columns = list(enumerate(index.reshape(-1, dim).unbind(-1)))
    points = torch.stack([nodes[i, ..., d] for d, i in columns], -1)
    return points, torch.stack([weights[i, ..., d] for d, i in columns]).prod(0)


def _ball_rule(p: MultivariateBetaGaussian) -> tuple[Tensor, Tensor]:
    """Return nodes (Q, *batch, D) and weights (Q, *batch) that resolve a logarithm at the edge.

    A rule for the radius, with density proportional to r^(D - 1) (1 - r^2)^m, times directions.
    """
    m, dim = p.generator.m, p.event_shape[0]
    # A sharp density has all but a rounding error of its mass inside a smaller radius.
    reach = (-torch.expm1(-(40 + dim) / m.detach().clamp_min(1e-30))).sqrt().unsqueeze(0)
    radii, rule = (x.squeeze(0) for x in graded_rule(_RADII, torch.zeros_like(reach), reach))
    radii = radii.clamp(max=1 - torch.finfo(m.dtype).eps)
    log_density = m * torch.log1p(-radii.square()) + (dim - 1) * radii.log()
    weights = rule * torch.exp(log_density - log_density.detach().amax(0))
    weights = weights / weights.sum(0)
    directions, direction_weights = direction_rule(dim, _ORDERS.get(dim, 64), m)
    steps = (directions @ p.scale_tril.mT).movedim(-2, 0)
    nodes = p.loc + radii[:, None, ..., None] * steps
    weights = weights[:, None] * direction_weights.reshape(-1, *(1,) * m.dim())
    return nodes.flatten(0, 1), weights.flatten(0, 1)


@torch.no_grad()
def _is_inside(p: Any, q: Any, eps: float, size: float = 1.0) -> Tensor:
    r"""Return whether p's ellipsoid lies in q's (*batch), shrunk to a fraction `size`.

    With center d and factor M in the coordinates of q's, whether $|M v + d| \le 1$ for all
    $|v| \le 1$. By duality without a gap, the largest value of $|M v + d|^2$ is
    $$\min_{\lambda \ge \sigma_1^2}
    \lambda + |d|^2 + \sum_k \frac{\sigma_k^2 d_k^2}{\lambda - \sigma_k^2},$$
    with the singular values $\sigma_k$ of M and d along its left singular vectors. The derivative
    increases.

    References:
        Boyd and Vandenberghe (2004), Convex Optimization, App. B.1.
    """
    factor = size * q.scale_tril
    offset, matrix = _relative(p, q.loc, factor)
    unit = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    inverse = torch.linalg.solve_triangular(factor, unit, upper=False).abs()
    sizes = torch.cat([matrix.abs(), offset.abs().unsqueeze(-1)], -1)
    slack = 8 * eps * (inverse @ factor.abs() @ sizes).sum((-2, -1))
    squares, vectors = torch.linalg.eigh(matrix @ matrix.mT)
    squares = squares.clamp_min(0)
    along = (vectors.mT @ offset.unsqueeze(-1)).squeeze(-1)
    products = squares * along.square()

    # lambda is sigma_1^2 plus a gap, where the derivative 1 - sum_k s_k / (gap + below_k)^2 is 0,
    # with s_k = sigma_k^2 d_k^2. At a gap of sigma_1 |d| no term exceeds (d_k / |d|)^2.
    top = squares.amax(-1, keepdim=True)
    below = top - squares

    def terms(gap: Tensor, power: int) -> Tensor:
        """Return the sum of all s_k / (gap + below_k)^power (*batch, 1)."""
        ratios = torch.where(products > 0, products / (gap + below) ** power, 0.0)
        return ratios.sum(-1, keepdim=True)

    upper = top.sqrt() * torch.linalg.vector_norm(along, dim=-1, keepdim=True)
    gap = increasing_root(lambda x: 1 - terms(x, 2), torch.zeros_like(upper), upper)
    largest = (top + gap + terms(gap, 1)).squeeze(-1) + along.square().sum(-1)
    return largest <= 1 + slack
