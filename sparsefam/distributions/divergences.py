"""KL divergences, registered with torch's, and those of Tsallis and Bregman."""

import math
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch import distributions as td
from torch.distributions import Distribution, kl_divergence, register_kl

from .base import SparseDistribution
from .divergence_arguments import CATEGORICAL, compared, require_number
from .divergence_integrands import Logs, bregman_excess, kl_excess, tsallis_excess
from .divergence_line import bregman_on_line, kl_on_line, tsallis_on_line
from .divergence_rays import bregman_of_ellipsoids, tsallis_of_ellipsoids
from .divergence_vectors import kl_of_vectors
from .elliptical import MultivariateNormal
from .foreign import kind_of
from .mixture_arguments import log_weights
from .normal import Laplace, Normal
from .widened import widened

__all__ = ["bregman_divergence", "tsallis_divergence"]

# Torch's that ours are compared with; and ours that inherit from those.
_THEIRS: tuple[type[Distribution], ...] = (
    *(td.Normal, td.Laplace, td.Uniform, td.Categorical, td.Independent),
    *(td.MultivariateNormal, td.LowRankMultivariateNormal),
)
_DENSE: tuple[type[Distribution], ...] = (Normal, Laplace, MultivariateNormal)
# Torch has closed forms for these.
_Closed = (td.Normal, td.Laplace)


def _kl(p: Distribution, q: Distribution) -> Tensor:
    """In closed form or by quadrature; infinite unless the supports are nested."""
    p, q = compared(p, q)
    if isinstance(p, _Closed) and isinstance(q, _Closed):
        dtype = torch.promote_types(_dtype(p), _dtype(q))
        return kl_divergence(_torchs(p), _torchs(q)).to(dtype)
    return _divergence(p, q, kl_excess, kl_on_line, kl_of_vectors, True)


# One function for all pairs: wherever several of these match, none of them is ambiguous. The dense
# ones are listed because torch's own match them too.
_OURS = (SparseDistribution, *_DENSE)
for _pair in (*product(_OURS, _OURS), *product(_OURS, _THEIRS), *product(_THEIRS, _OURS)):
    register_kl(*_pair)(_kl)


def tsallis_divergence(p: Distribution, q: Distribution, alpha: float) -> Tensor:
    r"""Tsallis' relative entropy, the KL divergence at $\alpha = 1$ (*batch).

    $$D_\alpha(p\,\|\,q) = \frac{1}{\alpha - 1}\left(\int p^\alpha q^{1 - \alpha} - 1\right)$$

    Below $\alpha = 1$ it is finite whatever the supports, at most $1/(1 - \alpha)$, which it is
    where they have nothing in common. Above, it is infinite unless p's support lies in q's, and
    where $p^\alpha q^{1 - \alpha}$ has no integral.

    Args:
        p: A density of numbers, a categorical distribution, or an elliptical density of vectors,
            here or in torch.
        q: Another.
        alpha: Positive and finite. It need not be the alpha of p or q.

    Raises:
        ValueError: `alpha` no number, not positive and finite; event shapes or categories that
            differ; batch shapes that do not broadcast; `p` or `q` no distribution, or discrete and
            not categorical.
        NotImplementedError: Vectors that are not elliptical or of more than three dimensions.

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
    require_number("alpha", alpha)
    if not 0 < alpha < math.inf:
        raise ValueError(f"alpha must be positive and finite, got {alpha}")
    p, q = compared(p, q)
    if alpha == 1:
        return kl_divergence(p, q) if p.event_shape else _kl(p, q)
    integrand, on_line, of_vectors = (
        partial(f, alpha=alpha) for f in (tsallis_excess, tsallis_on_line, tsallis_of_ellipsoids)
    )
    return _divergence(p, q, integrand, on_line, of_vectors, alpha > 1)


def bregman_divergence(p: Distribution, q: Distribution, alpha: float) -> Tensor:
    r"""Bregman divergence of the negative Tsallis entropy $\Omega_\alpha$ (*batch).

    $$B_\alpha(p, q) = \Omega_\alpha(p) - \Omega_\alpha(q) -
    \langle\nabla\Omega_\alpha(q), p - q\rangle
    = \int \frac{p^\alpha}{\alpha(\alpha - 1)} + \frac{q^\alpha}{\alpha} -
    \frac{p\,q^{\alpha - 1}}{\alpha - 1}$$

    with $\Omega_\alpha(p) = (\int p^\alpha - 1)/(\alpha(\alpha - 1))$, the negative Tsallis
    entropy. It is the KL divergence at $\alpha = 1$ and $\frac12\int(p - q)^2$ at 2; above 1 it is
    finite whatever the supports. For a q that is the prediction map of a score at this alpha it is
    at most the score's Fenchel-Young loss on p, and equal to it where p's support lies in q's.

    Args:
        p: A density of numbers, a categorical distribution, or an elliptical density of vectors,
            here or in torch.
        q: Another.
        alpha: At least 1 and finite. It need not be the alpha of p or q.

    Raises:
        ValueError: `alpha` no number, below 1 or not finite; event shapes or categories that
            differ; batch shapes that do not broadcast; `p` or `q` no distribution, or discrete and
            not categorical.
        NotImplementedError: Vectors that are not elliptical or of more than three dimensions.

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
    require_number("alpha", alpha)
    if not 1 <= alpha < math.inf:
        raise ValueError(f"alpha must be at least 1 and finite, got {alpha}")
    p, q = compared(p, q)
    if alpha == 1:
        return kl_divergence(p, q) if p.event_shape else _kl(p, q)
    integrand, on_line, of_vectors = (
        partial(f, alpha=alpha) for f in (bregman_excess, bregman_on_line, bregman_of_ellipsoids)
    )
    return _divergence(p, q, integrand, on_line, of_vectors, False)


def _divergence(
    p: Any,
    q: Any,
    integrand: Callable[[Logs], Tensor],
    on_line: Callable[..., Tensor],
    of_vectors: Callable[..., Tensor],
    nested: bool,
) -> Tensor:
    """A divergence, computed in float64.

    Args:
        p: The first density.
        q: The second.
        integrand: What is summed over categories.
        on_line: Integrates it, of numbers.
        of_vectors: Integrates it, of vectors.
        nested: Whether it is infinite unless supports are nested.
    """
    dtypes = [_dtype(x) for x in (p, q)]
    dtype = torch.promote_types(*dtypes)
    if isinstance(p, CATEGORICAL):
        return _of_categories(p, q, integrand, nested).to(dtype)
    found = of_vectors if p.event_shape else on_line
    eps = max(torch.finfo(x).eps for x in dtypes)
    return found(widened(p), widened(q), eps=eps).to(dtype)


def _of_categories(p: Any, q: Any, integrand: Callable[[Logs], Tensor], nested: bool) -> Tensor:
    log_p, log_q = (log_weights(x).double().log_softmax(-1) for x in (p, q))
    if log_p.shape[-1] != log_q.shape[-1]:
        raise ValueError(
            f"p and q must have as many categories, got {log_p.shape[-1]} and {log_q.shape[-1]}"
        )
    at = Logs.of(log_p, log_q)
    missed = (at.in_p & ~at.in_q).any(-1) & nested
    return torch.where(missed, math.inf, integrand(at).sum(-1))


def _dtype(p: Any) -> torch.dtype:
    if isinstance(p, SparseDistribution):
        return p.alpha.dtype
    found: torch.dtype = kind_of(p).get("dtype", torch.get_default_dtype())
    return found


def _torchs(p: Any) -> Distribution:
    """The same law as torch's own class has it, in float64."""
    law = td.Normal if isinstance(p, td.Normal) else td.Laplace
    return law(p.loc.double(), p.scale.double(), validate_args=False)
