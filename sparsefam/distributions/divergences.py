"""Kullback-Leibler, Tsallis and Bregman divergences between densities."""

import math
from collections.abc import Callable
from functools import partial
from itertools import product
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch import distributions as td
from torch.distributions import Distribution, Independent, kl_divergence, register_kl

from ..numerics.deformed import expm1_ratio
from ..numerics.ellipsoid import direction_rule
from ..numerics.quadrature import graded_rule, line_integral
from ..numerics.validation import broadcast_shapes
from ..supports import IntervalUnion
from .base import SparseDistribution
from .beta_gaussian import BetaGaussian, PowerDistribution
from .categorical import SparseCategorical
from .elliptical import EllipticalDistribution, MultivariateBetaGaussian, MultivariateNormal
from .kernel_family import KernelDistribution
from .mixture import Mixture, log_weights, separate_cuts
from .normal import Laplace, Normal
from .torch_adapter import (
    TorchDensity,
    cuts_of,
    dtype_of,
    intervals_of,
    is_discrete,
    is_unbounded,
    to_float64,
    wrap,
)
from .univariate import SymmetricDistribution

__all__ = ["bregman_divergence", "tsallis_divergence"]

_CATEGORICAL = (SparseCategorical, td.Categorical)
_UNIVARIATE = (td.Normal, td.Laplace, td.Uniform)
_THEIRS: tuple[type[Distribution], ...] = (
    *(*_UNIVARIATE, td.Categorical, td.Independent),
    *(td.MultivariateNormal, td.LowRankMultivariateNormal),
)
# Torch's own rules match these of our classes, too, so they are registered by name.
_OURS: tuple[type[Distribution], ...] = (SparseDistribution, Normal, Laplace, MultivariateNormal)
# exp of a larger number is infinite in float64.
_LARGEST_LOG = 709.0


def _kl(p: Distribution, q: Distribution) -> Tensor:
    r"""$\int p \log(p/q)$ (*batch), infinite unless p's support lies in q's."""
    p, q = _check(p, q)
    closed = (td.Normal, td.Laplace)
    if isinstance(p, closed) and isinstance(q, closed):
        dtype = torch.promote_types(dtype_of(p), dtype_of(q))
        return kl_divergence(_as_torch(p), _as_torch(q)).to(dtype)
    return _divergence(p, q, _kl_integrand, _kl_univariate, _kl_multivariate, nested=True)


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
        NotImplementedError: Distributions of torch other than normal, Laplace and uniform ones.

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
    _require_number(alpha)
    if not 0 < alpha < math.inf:
        raise ValueError(f"alpha must be positive and finite, got {alpha}")
    p, q = _check(p, q)
    if alpha == 1:
        return kl_divergence(p, q) if p.event_shape else _kl(p, q)
    rules = (
        partial(f, alpha=alpha)
        for f in (_tsallis_integrand, _tsallis_univariate, _tsallis_multivariate)
    )
    return _divergence(p, q, *rules, nested=alpha > 1)


def bregman_divergence(p: Distribution, q: Distribution, alpha: float) -> Tensor:
    r"""Bregman divergence of the negative Tsallis entropy $\Omega_\alpha$ (*batch).

    $$B_\alpha(p, q) = \Omega_\alpha(p) - \Omega_\alpha(q) -
    \langle\nabla\Omega_\alpha(q), p - q\rangle
    = \int \frac{p^\alpha}{\alpha(\alpha - 1)} + \frac{q^\alpha}{\alpha} -
    \frac{p\,q^{\alpha - 1}}{\alpha - 1}$$

    with $\Omega_\alpha(p) = (\int p^\alpha - 1)/(\alpha(\alpha - 1))$. It is the KL divergence at
    $\alpha = 1$ and $\frac12\int(p - q)^2$ at 2; above 1 it is finite for any two supports. If q is
    the prediction map of a score at this alpha, it is at most the score's Fenchel-Young loss on p,
    and equal to it where p's support lies in q's.

    Args:
        p: A density, or a categorical distribution, of this package or of torch.
        q: Another one.
        alpha: At least 1 and finite. It need not be the alpha of p or q.

    Raises:
        ValueError: `alpha` not a number, below 1 or not finite; event shapes or numbers of
            categories that differ; batch shapes that do not broadcast; `p` or `q` not a
            distribution, or discrete and not categorical.
        NotImplementedError: Distributions of torch other than normal, Laplace and uniform ones.

    References:
        Bregman (1967), The relaxation method of finding the common point of convex sets. USSR
        Comput. Math. Math. Phys. 7. Basu, Harris, Hjort and Jones (1998), Robust and efficient
        estimation by minimising a density power divergence, of which this is $1/\alpha$.
        Biometrika 85. Blondel, Martins and Niculae (2020), Learning with Fenchel-Young losses.
        arXiv:1901.02324

    Examples:
        >>> from sparsefam import TruncatedParabola
        >>> p, q = TruncatedParabola(0.0, 1.0), TruncatedParabola(3.0, 1.0)
        >>> bregman_divergence(p, q, 2.0)
        tensor(0.6000)
    """
    _require_number(alpha)
    if not 1 <= alpha < math.inf:
        raise ValueError(f"alpha must be at least 1 and finite, got {alpha}")
    p, q = _check(p, q)
    if alpha == 1:
        return kl_divergence(p, q) if p.event_shape else _kl(p, q)
    rules = (
        partial(f, alpha=alpha)
        for f in (_bregman_integrand, _bregman_univariate, _bregman_multivariate)
    )
    return _divergence(p, q, *rules, nested=False)


def _divergence(
    p: Any,
    q: Any,
    integrand: Callable[["_Logs"], Tensor],
    univariate: Callable[..., Tensor],
    multivariate: Callable[..., Tensor],
    *,
    nested: bool,
) -> Tensor:
    """Compute a divergence in float64.

    Args:
        p: The first density.
        q: The second.
        integrand: What is summed over categories.
        univariate: Takes univariate float64 densities and the rounding error of their parameters.
        multivariate: The same for vectors.
        nested: Whether it is infinite unless p's support lies in q's.
    """
    dtypes = dtype_of(p), dtype_of(q)
    dtype = torch.promote_types(*dtypes)
    if p is q:
        return torch.zeros(p.batch_shape, dtype=dtype, device=p.mean.device)
    if isinstance(p, _CATEGORICAL):
        return _sum_over_categories(p, q, integrand, nested).to(dtype)
    rule = multivariate if p.event_shape else univariate
    eps = max(torch.finfo(x).eps for x in dtypes)
    return rule(to_float64(p), to_float64(q), eps=eps).to(dtype)


def _sum_over_categories(
    p: Any, q: Any, integrand: Callable[["_Logs"], Tensor], nested: bool
) -> Tensor:
    log_p, log_q = (log_weights(x).double().log_softmax(-1) for x in (p, q))
    if log_p.shape[-1] != log_q.shape[-1]:
        raise ValueError(
            f"p and q must have as many categories, got {log_p.shape[-1]} and {log_q.shape[-1]}"
        )
    at = _Logs.of(log_p, log_q)
    missed = (at.in_p & ~at.in_q).any(-1) & nested
    return torch.where(missed, math.inf, integrand(at).sum(-1))


# Arguments


def _check(p: Any, q: Any) -> tuple[Any, Any]:
    """Return both densities without an `Independent` that reinterprets nothing, or raise."""
    for name, x in (("p", p), ("q", q)):
        if not isinstance(x, Distribution):
            raise ValueError(f"{name} must be a distribution, got {x!r}")
    p, q = _unwrap(p), _unwrap(q)
    if p.event_shape != q.event_shape:
        shapes = f"{tuple(p.event_shape)} and {tuple(q.event_shape)}"
        raise ValueError(f"p and q must have one event shape, got {shapes}")
    try:
        broadcast_shapes(p.batch_shape, q.batch_shape)
    except RuntimeError:
        shapes = f"{tuple(p.batch_shape)} and {tuple(q.batch_shape)}"
        raise ValueError(f"p and q must have batch shapes that broadcast, got {shapes}") from None
    categorical = any(isinstance(x, _CATEGORICAL) for x in (p, q))
    for name, x in (("p", p), ("q", q)):
        if categorical and not isinstance(x, _CATEGORICAL):
            raise ValueError(f"{name} must be a categorical distribution as the other, got {x}")
        if categorical:
            continue
        if is_discrete(x):
            raise ValueError(f"{name} must be continuous, got {x}")
        known = (SparseDistribution, *_UNIVARIATE, *_THEIRS[-2:])
        if not isinstance(x.base_dist if isinstance(x, Independent) else x, known):
            raise NotImplementedError(f"no divergence of {x} is implemented")
    return p, q


def _unwrap(p: Distribution) -> Distribution:
    while isinstance(p, Independent) and p.reinterpreted_batch_ndims == 0:
        p = p.base_dist
    return p


def _require_number(alpha: object) -> None:
    if not isinstance(alpha, Real) or isinstance(alpha, bool):
        raise ValueError(f"alpha must be a number, got {alpha!r}")


def _as_torch(p: Any) -> Distribution:
    """Return a normal or Laplace distribution as torch's own class, in float64."""
    kind = td.Normal if isinstance(p, td.Normal) else td.Laplace
    return kind(p.loc.double(), p.scale.double(), validate_args=False)


# Integrands as functions of two log densities


class _Logs(NamedTuple):
    """Log densities, 0 in place of infinite ones, and where each is finite."""

    p: Tensor
    q: Tensor
    in_p: Tensor
    in_q: Tensor

    @classmethod
    def of(cls, log_p: Tensor, log_q: Tensor) -> "_Logs":
        logs = torch.broadcast_tensors(log_p, log_q)
        finite = [x.isfinite() for x in logs]
        return cls(*(torch.where(f, x, 0.0) for f, x in zip(finite, logs, strict=True)), *finite)

    @classmethod
    def at(cls, p: Any, q: Any, t: Tensor) -> "_Logs":
        return cls.of(p.log_prob(t), q.log_prob(t))


def _kl_integrand(at: _Logs) -> Tensor:
    r"""$p\,(\log p - \log q)$, 0 where either vanishes."""
    return torch.where(at.in_p & at.in_q, torch.exp(at.p) * (at.p - at.q), 0.0)


def _cross_entropy_integrand(at: _Logs) -> Tensor:
    r"""$-p \log q$, 0 where either vanishes."""
    return torch.where(at.in_p & at.in_q, -torch.exp(at.p) * at.q, 0.0)


def _tsallis_integrand(at: _Logs, alpha: float) -> Tensor:
    r"""$(p^\alpha q^{1-\alpha} - p)/(\alpha - 1)$, accurate as alpha tends to 1.

    Above alpha = 1 it is 0 instead of infinite where only q vanishes.
    """
    slope = alpha - 1
    alone = torch.exp(at.p) / -slope if slope < 0 else torch.zeros_like(at.p)
    both = _power_difference(at.p, at.p - at.q, slope)
    return torch.where(at.in_p & at.in_q, both, torch.where(at.in_p, alone, 0.0))


def _bregman_gain(at: _Logs, alpha: float) -> Tensor:
    r"""$p\,(p^{\alpha - 1} - q^{\alpha - 1})/(\alpha - 1)$."""
    slope = alpha - 1
    both = _power_difference(at.p + slope * at.q, at.p - at.q, slope)
    alone = torch.where(at.in_p, _exp(alpha * at.p) / slope, 0.0)
    return torch.where(at.in_p & at.in_q, both, alone)


def _bregman_integrand(at: _Logs, alpha: float) -> Tensor:
    r"""`_bregman_gain` less $(p^\alpha - q^\alpha)/\alpha$."""
    both = _power_difference(alpha * at.q, at.p - at.q, alpha)
    only_p, only_q = (
        torch.where(inside, _exp(alpha * x) / alpha, 0.0)
        for x, inside in ((at.p, at.in_p), (at.q, at.in_q))
    )
    gain = _bregman_gain(at, alpha)
    norms = torch.where(at.in_p & at.in_q, both, only_p - only_q)
    # Where both overflow their difference is unknown.
    return torch.where(gain.isinf() | norms.isinf(), math.inf, gain - norms)


def _exp(log: Tensor) -> Tensor:
    """Exponential without a gradient where it is infinite."""
    fits = log <= _LARGEST_LOG
    return torch.where(fits, torch.exp(torch.where(fits, log, 0.0)), math.inf)


def _power_difference(log: Tensor, ratio: Tensor, rate: float) -> Tensor:
    r"""$e^{log} (e^{rate\,ratio} - 1)/rate$ without cancellation; infinite where it overflows."""
    fits = torch.maximum(log, log + rate * ratio) <= _LARGEST_LOG
    log, ratio = torch.where(fits, log, 0.0), torch.where(fits, ratio, 0.0)
    near = (rate * ratio).abs() < 1
    small = torch.where(near, ratio, 0.0)
    base = torch.exp(log)
    far = (torch.exp(log + rate * ratio) - base) / rate
    found = torch.where(near, base * small * expm1_ratio(rate * small), far)
    return torch.where(fits, found, math.inf)


# Univariate densities

# Rounding errors by which ends of supports may miss each other that are meant to be equal; the ends
# of kernel families are roots.
_ULPS, _ROOT_ULPS = 8, 2**12
# Integrals over pieces, of densities whose mass is 1, are not more exact than this.
_ROUNDING = 1e-15
# Cuts of q so close to an end of p's support, relative to p's own next cut, are dropped.
_CLOSE = 1e-9
# How often the range is doubled where the integrand decays more slowly than the densities.
_DOUBLINGS = (*range(12), 16, 24, 36, 54, 80, 120)
# Distances, half a decade apart, at which the power of an integrand is measured; the smallest one
# relative to the end; and the margin to the power at which the integral diverges.
_PROBES, _LEAST, _MARGIN = 11, 1e-6, 1e-3


def _kl_univariate(p: Any, q: Any, eps: float) -> Tensor:
    known = _closed_cross_entropy(p, q)
    if known is not None:
        return torch.where(_is_nested(p, q, eps)[0], known - p.entropy(), math.inf)
    return _mean_log(p, q, eps, _kl_integrand)


def _closed_cross_entropy(p: Any, q: Any) -> Tensor | None:
    """Return the cross entropy with a normal or a uniform density, None for others."""
    if not isinstance(p, SymmetricDistribution):
        return None
    if isinstance(q, Normal):
        square = (p.variance + (p.mean - q.loc).square()) / q.scale.square()
        return 0.5 * square + 0.5 * math.log(2 * math.pi) + q.scale.log()
    if isinstance(q, PowerDistribution) and q._fixed_exponent == 0:
        return (2 * q.scale).log() + torch.zeros_like(p.loc)
    return None


def _mean_log(p: Any, q: Any, eps: float, integrand: Callable[[_Logs], Tensor]) -> Tensor:
    """Integrate p times a function that grows like log q; infinite where the integral diverges."""
    return _nested_integral(p, q, eps, integrand, lambda at: at.p + (1 + at.q.abs()).log())


def _tsallis_univariate(p: Any, q: Any, alpha: float, eps: float) -> Tensor:
    if isinstance(p, Normal) and isinstance(q, Normal):
        return _tsallis_of_normals(p, q, alpha)
    integrand = partial(_tsallis_integrand, alpha=alpha)
    if alpha < 1:
        return _integral(integrand, *_recenter(p, q))
    return _nested_integral(p, q, eps, integrand, lambda at: alpha * at.p + (1 - alpha) * at.q)


def _bregman_univariate(p: Any, q: Any, alpha: float, eps: float) -> Tensor:
    return _integral(partial(_bregman_integrand, alpha=alpha), *_recenter(p, q))


def _nested_integral(
    p: Any,
    q: Any,
    eps: float,
    integrand: Callable[[_Logs], Tensor],
    log_size: Callable[[_Logs], Tensor],
) -> Tensor:
    """Integrate over p's support; infinite unless that lies in q's and the integral converges.

    Args:
        p: The first density, float64.
        q: The second.
        eps: Rounding error of their parameters.
        integrand: What is integrated.
        log_size: Logarithm of a function that decays like it.
    """
    nested, slack = _is_nested(p, q, eps)
    p, q = _recenter(p, q)
    others = cuts_of(q)
    finite = nested & _converges(log_size, p, q, slack)
    # Where p vanishes a kink of q has no effect, and a second cut there only costs accuracy.
    ends = intervals_of(p).flatten(-2).unsqueeze(-2)
    gaps = (cuts_of(p).unsqueeze(-1) - ends).abs()
    gap = torch.where(gaps > slack[..., None, None], gaps, math.inf).amin(-2, keepdim=True)
    close = torch.maximum(slack[..., None, None], torch.where(gap < math.inf, _CLOSE * gap, 0.0))
    near = (others.unsqueeze(-1) - ends).abs() <= close
    p, q = separate_cuts(p, q)
    cuts = _concatenate(cuts_of(p), torch.where(near.any(-1), math.nan, cuts_of(q)))
    return torch.where(finite, _integral(integrand, p, q, _with_tails(p, cuts)), math.inf)


def _integral(
    integrand: Callable[[_Logs], Tensor], p: Any, q: Any, cuts: Tensor | None = None
) -> Tensor:
    if cuts is None:
        p, q = separate_cuts(p, q)
        cuts = _concatenate(cuts_of(p), cuts_of(q))
    return line_integral(lambda t: integrand(_Logs.at(p, q, t)), cuts, rounding=_ROUNDING)


def _recenter(p: Any, q: Any) -> tuple[Any, Any]:
    """Move both symmetric densities to where the narrower's centre is 0."""
    if isinstance(p, SymmetricDistribution) and isinstance(q, SymmetricDistribution):
        shape = broadcast_shapes(p.batch_shape, q.batch_shape)
        p, q = p.expand(shape), q.expand(shape)
        centre = torch.where(p.scale <= q.scale, p.loc, q.loc).detach()
        p.loc, q.loc = p.loc - centre, q.loc - centre
    return p, q


def _is_nested(p: Any, q: Any, eps: float) -> tuple[Tensor, Tensor]:
    """Return whether p's support lies in q's, and by how much rounding moves ends (*batch)."""
    inner, outer = intervals_of(p).detach(), intervals_of(q).detach()
    ends = [torch.where(x.isfinite(), x, 0.0).abs().flatten(-2).amax(-1) for x in (inner, outer)]
    ulps = _ROOT_ULPS if any(isinstance(x, KernelDistribution) for x in (p, q)) else _ULPS
    slack = ulps * eps * torch.maximum(*ends)
    side = torch.tensor([-1.0, 1.0]).to(outer)
    outer = IntervalUnion.merged(outer + slack[..., None, None] * side).intervals.unsqueeze(-3)
    low, high = inner.unsqueeze(-2).unbind(-1)
    inside = ((outer[..., 0] <= low) & (high <= outer[..., 1])).any(-1)
    return (inside | inner[..., 0].isnan()).all(-1), slack


@torch.no_grad()
def _converges(log_size: Callable[[_Logs], Tensor], p: Any, q: Any, slack: Tensor) -> Tensor:
    """Whether the integral converges at each end of p's support (*batch).

    The power with which the integrand decays is measured over half decades of the distance, from
    the next cut towards a finite end, and from the range of the cuts outwards.
    """
    cuts = _concatenate(cuts_of(p), cuts_of(q))
    low, high = (x.unsqueeze(-1) for x in _span(cuts))
    found = torch.ones_like(low[..., 0], dtype=torch.bool)
    for end, inwards in zip(intervals_of(p).unbind(-1), (1.0, -1.0), strict=True):
        finite = end.isfinite()
        gaps = inwards * (cuts.unsqueeze(-2) - end.unsqueeze(-1))
        gap = torch.where(gaps > slack[..., None, None], gaps, math.inf).amin(-1)
        gap = torch.maximum(gap, _LEAST * end.abs()) / 2
        start = torch.where(finite, end, (low + high) / 2)
        size = torch.where(finite, inwards * gap, inwards * (low - high))
        decades = (torch.arange(_PROBES).to(low) / 2).reshape(-1, *(1,) * size.dim())
        t = start + size * 10 ** torch.where(finite, -decades, decades)
        at = _Logs.of(*(x.log_prob(t.movedim(-1, 1)).movedim(1, -1) for x in (p, q)))
        log = torch.where(at.in_p & at.in_q, log_size(at), math.nan)
        power = log.diff(dim=0) / (0.5 * math.log(10))
        # The last that is known: further out one of the densities underflows.
        known = ~power.isnan()
        rank = known * torch.arange(1, len(known) + 1).to(power).reshape(decades[1:].shape)
        power = power.gather(0, rank.argmax(0, keepdim=True)).squeeze(0)
        light = torch.where(finite, -power > _MARGIN - 1, power < -_MARGIN - 1)
        found = found & (light | ~at.in_p[-1] | end.isnan()).all(-1)
    return found


def _concatenate(*cuts: Tensor) -> Tensor:
    shape = broadcast_shapes(*(x.shape[:-1] for x in cuts))
    return torch.cat([x.expand(*shape, x.shape[-1]) for x in cuts], -1)


def _span(cuts: Tensor) -> tuple[Tensor, Tensor]:
    missing = cuts.isnan()
    low = torch.where(missing, math.inf, cuts).amin(-1)
    return low, torch.where(missing, -math.inf, cuts).amax(-1)


def _is_bounded(p: Any) -> bool:
    if isinstance(p, Mixture):
        return all(_is_bounded(part) for part in p.parts.parts)
    if isinstance(p, KernelDistribution):
        return bool((intervals_of(p).abs() != math.inf).all())
    ends = getattr(p, "ends", None)
    return not is_unbounded(p) if ends is None else None not in ends


def _with_tails(p: Any, cuts: Tensor) -> Tensor:
    """Add cuts further and further outside, unless p has bounded support."""
    if _is_bounded(p):
        return cuts
    low, high = (x.detach().unsqueeze(-1) for x in _span(cuts))
    steps = (high - low) * 2.0 ** torch.tensor(_DOUBLINGS).to(cuts)
    return torch.cat([cuts, low - steps, high + steps], -1)


def _tsallis_of_normals(p: Any, q: Any, alpha: float) -> Tensor:
    r"""$(\int p^\alpha q^{1 - \alpha} - 1)/(\alpha - 1)$, accurate as alpha tends to 1.

    In the coordinates of q, with $M = L_q^{-1} L_p$ and the offset d,
    $$\int p^\alpha q^{1 - \alpha} = e^{(1 - \alpha) s}, \quad
    s = \log|M| - \frac{\log|A|}{2 (1 - \alpha)} - \frac{\alpha}{2} d^\top A^{-1} d, \quad
    A = \alpha I + (1 - \alpha) M M^\top$$
    if A is positive definite; it is infinite otherwise.
    """
    offset, matrix = _relative(*_location_and_factor(p), *_location_and_factor(q))
    rate, unit = 1 - alpha, torch.eye(matrix.shape[-1]).to(matrix)
    excess = matrix @ matrix.mT - unit
    spreads = torch.linalg.eigvalsh(excess)
    finite = (rate * spreads > -1).all(-1, keepdim=True)
    spreads = torch.where(finite, spreads, 0.0)
    mixed = torch.where(finite.unsqueeze(-1), unit + rate * excess, unit)
    distance = (offset * torch.linalg.solve(mixed, offset)).sum(-1)
    s = matrix.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    s = s - 0.5 * torch.log1p(rate * spreads).sum(-1) / rate - 0.5 * alpha * distance
    fits = finite.squeeze(-1) & (rate * s <= _LARGEST_LOG)
    s = torch.where(fits, s, 0.0)
    return torch.where(fits, -s * expm1_ratio(rate * s), math.inf)


def _location_and_factor(p: Any) -> tuple[Tensor, Tensor]:
    if isinstance(p, Normal):
        return p.loc.unsqueeze(-1), p.scale[..., None, None]
    return p.loc, p.scale_tril


def _relative(
    loc: Tensor, scale_tril: Tensor, other_loc: Tensor, other_scale_tril: Tensor
) -> tuple[Tensor, Tensor]:
    """Return centre and factor of one ellipsoid in the coordinates of another."""
    solve = partial(torch.linalg.solve_triangular, other_scale_tril, upper=False)
    return solve((loc - other_loc).unsqueeze(-1)).squeeze(-1), solve(scale_tril)


# Multivariate densities

# Radii, and order of the directions by dimension, for ellipsoids; orders of other rules.
_RADII, _DIRECTIONS = 48, {1: 1, 2: 96, 3: 48}
_NORMAL_ORDERS = {1: 200, 2: 120, 3: 48}
_PRODUCT_ORDERS = {1: 64, 2: 32, 3: 20}
# Mass of p at nodes off q's support that counts as rounding.
_MISSED = 1e-9
# Halvings of an interval that contains a Lagrange multiplier.
_HALVINGS = 60


def _kl_multivariate(p: Any, q: Any, eps: float) -> Tensor:
    p = p.expand(broadcast_shapes(p.batch_shape, q.batch_shape))
    if (pair := _coordinate_pair(p, q)) is not None:
        return _kl_univariate(*pair, eps).squeeze(-1)
    if isinstance(q, MultivariateNormal):
        cross = _normal_cross_entropy(p, q)
    elif isinstance(q, Independent) and isinstance(p, EllipticalDistribution):
        cross = _mean_log(_coordinates(p), q.base_dist, eps, _cross_entropy_integrand).sum(-1)
    else:
        cross = _expect(p, q, eps, lambda at: torch.where(at.in_q, -at.q, 0.0), nested=True)
    finite = cross.isfinite()
    entropy = _expect(p, p, eps, lambda at: -at.p) if isinstance(p, Mixture) else p.entropy()
    return torch.where(finite, torch.where(finite, cross, 0.0) - entropy, math.inf)


def _tsallis_multivariate(p: Any, q: Any, alpha: float, eps: float) -> Tensor:
    p = p.expand(broadcast_shapes(p.batch_shape, q.batch_shape))
    if isinstance(p, MultivariateNormal) and isinstance(q, MultivariateNormal):
        return _tsallis_of_normals(p, q, alpha)
    if (pair := _coordinate_pair(p, q)) is not None:
        return _tsallis_univariate(*pair, alpha, eps).squeeze(-1)
    slope = alpha - 1

    def ratio(at: _Logs) -> Tensor:
        both = _power_difference(torch.zeros_like(at.p), at.p - at.q, slope)
        alone = -1 / slope if slope < 0 else 0.0
        return torch.where(at.in_p, torch.where(at.in_q, both, alone), 0.0)

    found = _expect(p, q, eps, ratio, nested=slope > 0)
    if slope > 0 and all(isinstance(x, MultivariateBetaGaussian) for x in (p, q)):
        # Where edges meet the integrand is a power, which has an integral above -1.
        light = alpha * p._exponent + (1 - alpha) * q._exponent > -1
        found = torch.where(light | _is_inside(p, q, eps, 1 - 1e-9), found, math.inf)
    return found


def _bregman_multivariate(p: Any, q: Any, alpha: float, eps: float) -> Tensor:
    shape = broadcast_shapes(p.batch_shape, q.batch_shape)
    p, q = p.expand(shape), q.expand(shape)
    if (pair := _coordinate_pair(p, q)) is not None:
        return _bregman_univariate(*pair, alpha, eps).squeeze(-1)
    slope = alpha - 1

    def gain(at: _Logs) -> Tensor:
        """`_bregman_gain` divided by p."""
        both = _power_difference(slope * at.q, at.p - at.q, slope)
        alone = torch.where(at.in_p, _exp(slope * at.p) / slope, 0.0)
        return torch.where(at.in_p & at.in_q, both, alone)

    def power(at: _Logs) -> Tensor:
        return torch.where(at.in_p, _exp(slope * at.p), 0.0)

    norms = [_expect(x, x, eps, power) for x in (p, q)]
    return _expect(p, q, eps, gain) + (norms[1] - norms[0]) / alpha


def _coordinate_pair(p: Any, q: Any) -> tuple[Any, Any] | None:
    """Return the univariate densities of elliptical ones of dimension 1."""
    pair = p, q
    if all(isinstance(x, EllipticalDistribution) and x.event_shape[0] == 1 for x in pair):
        return _coordinates(p), _coordinates(q)
    return None


def _coordinates(p: EllipticalDistribution) -> SymmetricDistribution:
    """Return the marginal densities of the coordinates of an elliptical density (*batch, D)."""
    scale = p.scale_tril.square().sum(-1).sqrt()
    if isinstance(p, MultivariateNormal):
        return Normal(p.loc, scale, validate_args=False)
    alpha = p.marginal(0).alpha.unsqueeze(-1)
    return BetaGaussian(p.loc, scale, alpha, validate_args=False)


def _normal_cross_entropy(p: Any, q: MultivariateNormal) -> Tensor:
    """Return the cross entropy with a normal density, whose logarithm needs two moments."""
    if isinstance(p, Independent):
        covariance = p.variance.diag_embed()
    else:
        covariance = p.covariance_matrix
    factor, offset = q.scale_tril, (p.mean - q.loc).unsqueeze(-1)
    scatter = covariance + offset @ offset.mT
    half = torch.linalg.solve_triangular(factor, scatter, upper=False)
    whole = torch.linalg.solve_triangular(factor, half.mT, upper=False)
    spread = whole.diagonal(dim1=-2, dim2=-1).sum(-1)
    found: Tensor = 0.5 * (spread + q.event_shape[0] * math.log(2 * math.pi)) + q._log_det()
    return found


def _expect(
    p: Any, q: Any, eps: float, function: Callable[[_Logs], Tensor], *, nested: bool = False
) -> Tensor:
    """Return the mean under p of a function of both log densities.

    Args:
        p: The density, float64.
        q: The other one.
        eps: Rounding error of their parameters.
        function: From log densities at nodes (Q, *batch) to values of that shape.
        nested: Whether the mean is infinite unless p's support lies in q's.
    """
    if nested and _fills_space(p, by_default=False) and not _fills_space(q):
        infinite: Tensor = p.mean.new_full(p.batch_shape, math.inf)
        return infinite
    nodes, weights = _rule(p)
    at = _Logs.at(p, q, nodes)
    value = (weights * function(at)).sum(0)
    if not nested:
        return value
    if all(isinstance(x, MultivariateBetaGaussian) for x in (p, q)):
        inside = _is_inside(p, q, eps)
    else:
        inside = torch.where(at.in_p & ~at.in_q, weights.abs(), 0.0).sum(0) <= _MISSED
    return torch.where(inside, value, math.inf)


def _rule(p: Any) -> tuple[Tensor, Tensor]:
    """Return nodes (Q, *batch, D) and weights (Q, *batch) of p."""
    dim = p.event_shape[0]
    if isinstance(p, MultivariateBetaGaussian):
        return _ball_rule(p)
    if isinstance(p, KernelDistribution):
        nodes, weights = p.quadrature()
        return nodes, weights
    if not isinstance(p, Independent):
        nodes, weights = p.quadrature(_NORMAL_ORDERS.get(dim, 64))
        return nodes, weights
    if dim not in _PRODUCT_ORDERS:
        raise NotImplementedError(
            f"products of more than {max(_PRODUCT_ORDERS)} univariate densities have no quadrature "
            f"rule, got {dim}"
        )
    nodes, weights = p.base_dist.quadrature(_PRODUCT_ORDERS[dim])
    index = torch.cartesian_prod(*[torch.arange(len(nodes), device=nodes.device)] * dim)
    index = index.reshape(-1, dim)
    columns = range(dim)
    points = torch.stack([nodes[index[:, d], ..., d] for d in columns], -1)
    return points, torch.stack([weights[index[:, d], ..., d] for d in columns]).prod(0)


def _ball_rule(p: MultivariateBetaGaussian) -> tuple[Tensor, Tensor]:
    """Return a rule whose radii resolve a logarithm at the edge of the support."""
    m, dim = p._exponent, p.event_shape[0]
    # A sharp density has all but a rounding error of its mass inside a smaller radius.
    reach = (-torch.expm1(-(40 + dim) / m.detach().clamp_min(1e-30))).sqrt().unsqueeze(0)
    radii, rule = (x.squeeze(0) for x in graded_rule(_RADII, torch.zeros_like(reach), reach))
    radii = radii.clamp(max=1 - torch.finfo(m.dtype).eps)
    log_density = m * torch.log1p(-radii.square()) + (dim - 1) * radii.log()
    weights = rule * torch.exp(log_density - log_density.detach().amax(0))
    weights = weights / weights.sum(0)
    directions, shares = direction_rule(dim, _DIRECTIONS.get(dim, 64), m)
    steps = (directions @ p.scale_tril.mT).movedim(-2, 0)
    nodes = p.loc + radii[:, None, ..., None] * steps
    weights = weights[:, None] * shares.reshape(-1, *(1,) * m.dim())
    return nodes.flatten(0, 1), weights.flatten(0, 1)


def _fills_space(p: Any, by_default: bool = True) -> bool:
    """Whether the support is the whole space; `by_default` where that is not known."""
    if isinstance(p, MultivariateNormal):
        return True
    if isinstance(p, MultivariateBetaGaussian):
        return False
    if isinstance(p, TorchDensity):
        return _fills_space(p.base, by_default)
    if isinstance(p, Independent):
        return is_unbounded(wrap(p.base_dist))
    if isinstance(p, Mixture):
        return any(_fills_space(part, by_default) for part in p.parts.parts)
    return by_default


def _is_inside(p: Any, q: Any, eps: float, size: float = 1.0) -> Tensor:
    """Whether p's ellipsoid lies in q's (*batch), shrunk to `size`."""
    factor = size * q.scale_tril
    offset, matrix = _relative(p.loc, p.scale_tril, q.loc, factor)
    unit = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    inverse = torch.linalg.solve_triangular(factor, unit, upper=False).abs()
    sizes = torch.cat([matrix.abs(), offset.abs().unsqueeze(-1)], -1)
    slack = 8 * eps * (inverse @ factor.abs() @ sizes).sum((-2, -1))
    return _lies_in_ball(matrix, offset, slack)


@torch.no_grad()
def _lies_in_ball(matrix: Tensor, offset: Tensor, slack: Tensor | float = 0.0) -> Tensor:
    r"""Whether $|M v + d| \le 1$ for all $|v| \le 1$ (*batch).

    By duality without a gap, the largest value of $|M v + d|^2$ is
    $$\min_{\lambda \ge \sigma_1^2}
    \lambda + |d|^2 + \sum_k \frac{\sigma_k^2 d_k^2}{\lambda - \sigma_k^2},$$
    with the singular values $\sigma_k$ of M and d along its left singular vectors. Bisection finds
    the minimum of this convex function.

    Args:
        matrix: M, float64 (*batch, D, D).
        offset: d, float64 (*batch, D).
        slack: By how much the largest value may exceed 1 (*batch).

    References:
        Boyd and Vandenberghe (2004), Convex Optimization, App. B.1.
    """
    squares, vectors = torch.linalg.eigh(matrix @ matrix.mT)
    squares = squares.clamp_min(0)
    along = (vectors.mT @ offset.unsqueeze(-1)).squeeze(-1)
    shares = squares * along.square()

    def ratio(gap: Tensor) -> Tensor:
        return torch.where(shares > 0, shares / gap, 0.0).sum(-1, keepdim=True)

    low = squares.amax(-1, keepdim=True)
    high = low + low.sqrt() * torch.linalg.vector_norm(along, dim=-1, keepdim=True)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        outside = ratio((middle - squares).square()) > 1
        low, high = torch.where(outside, middle, low), torch.where(outside, high, middle)
    largest = (high + ratio(high - squares)).squeeze(-1) + along.square().sum(-1)
    inside: Tensor = largest <= 1 + slack
    return inside
