"""Retrieval from a function of time: the fixed point that a query reaches by attending to it."""

import math

from torch import Tensor

from .._numerics.validation import as_number, require, require_integer, require_tensor
from .._prediction_map import rpm
from ..distributions import SparseDistribution
from ..scores import BasisExpansion
from .value_function import ValueFunction

__all__ = ["retrieve"]

# The largest number of steps.
_MOST = 10_000


def retrieve(
    function: ValueFunction,
    query: Tensor,
    alpha: float = 1.0,
    temperature: float = 1.0,
    steps: int = 10,
) -> tuple[Tensor, SparseDistribution]:
    r"""Retrieve from a function X: return the query after its steps, and the density that reads X.

    Every step replaces the query by a mean of X, $q \leftarrow \mathbb E_p[X(t)]$, where p is the
    density of the score $f(t) = q^\top X(t)/\tau$ relative to the uniform density on the basis's
    domain. The energy $\frac12 \lVert q\rVert^2 - \tau\,\Omega^*_\alpha(q^\top X/\tau)$, whose
    gradient is the step, does not increase. This is the continuous Hopfield network with X as its
    memory; alpha above 1 reads X on a part of the domain only.

    Args:
        function: X, B functions with E channels, for instance from `RidgeRegression.fit` or a
            memory. The basis must have a bounded `domain`.
        query: Shape (B, Lq, E).
        alpha: Entropic index in [1, 2].
        temperature: $\tau$, positive.
        steps: Number of steps, from 1 to 10,000.

    Returns:
        The queries after the last step, (B, Lq, E), and the density of that step, of batch shape
        (B, Lq).

    Raises:
        ValueError: If an argument is out of its range, or shapes do not match.

    References:
        Santos et al. (2025), Modern Hopfield Networks with Continuous-Time Memories.
        arXiv:2502.10122. Santos et al. (2024), Hopfield-Fenchel-Young Networks. arXiv:2411.08590

    Examples:
        >>> import torch
        >>> from sparsefam.attention import RidgeRegression
        >>> from sparsefam.bases import GaussianRBF
        >>> t, frames = torch.linspace(0, 1, 50), torch.randn(1, 50, 8)
        >>> function = RidgeRegression(GaussianRBF.grid(50, 0.02), 1e-6).fit(t, frames)
        >>> noisy = frames[:, 20:21] + 0.5 * torch.randn(1, 1, 8)
        >>> retrieved, density = retrieve(function, noisy, alpha=1.5, temperature=0.1)
        >>> retrieved.shape
        torch.Size([1, 1, 8])
    """
    if not isinstance(function, ValueFunction):
        raise ValueError(f"function must be a ValueFunction, got {function!r}")
    if not all(math.isfinite(high - low) for low, high in function.basis.domain):
        rule = "function must have a basis with a bounded domain"
        raise ValueError(f"{rule}, got {function.basis!r}")
    require_tensor("query", query)
    batch, _, channels = function.coefficients.shape
    fits = query.dim() == 3 and len(query) == batch and query.shape[-1] == channels
    if not fits or not query.is_floating_point():
        got = f"{query.dtype} of shape {tuple(query.shape)}"
        raise ValueError(f"query must be floating, ({batch}, Lq, {channels}), got {got}")
    require(query.isfinite(), "query", "finite", query)
    if not 0 < as_number(temperature) < math.inf:
        raise ValueError(f"temperature must be positive and finite, got {temperature!r}")
    require_integer("steps", steps, 1, _MOST)
    for _ in range(steps):
        # Weights (B, Lq, N) of the basis in q'X. The constant of X, which is left out, changes a
        # score by a number, on which the density does not depend.
        weights = query @ function.coefficients.mT.to(query.dtype) / temperature
        density = rpm(BasisExpansion(weights, function.basis), alpha)
        query = function.expect(density)
    return query, density
