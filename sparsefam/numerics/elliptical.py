r"""What elliptical laws have in closed form: characteristic functions and moments.

Here a law is a family $p_0, p_1, \dots$ for which Stein's identity leads from each to the next,

$$E_s[(t - \mu)_i\,g(t)] = c_s \sum_j A_{ij}\,E_{s+1}[\partial_j g(t)].$$

For beta-Gaussians $p_s$ has the exponent $m + s$ and $c_s = 1/(D + 2(m + s) + 2)$; for a normal law
every $p_s$ is itself and $c_s = 1$. So $c_0 A$ is the covariance.
"""

import math

import torch
from torch import Tensor

from .characteristic import characteristic

__all__ = ["elliptical_moments", "radial_characteristic"]

# Terms of the power series below |rho| = 1.
_TERMS = {torch.float32: 5, torch.float64: 9}


def radial_characteristic(square: Tensor, nu: Tensor) -> Tensor:
    r"""`characteristic` as a function of $\rho^2$, smooth at zero, where $\rho$ is not.

    Args:
        square: $\rho^2 = |L^\top w|^2$; broadcasts with `nu` and gives the dtype.
        nu: $\nu \ge 1/2$.
    """
    # An infinite square belongs to a frequency that averages out, as the largest one does.
    square = square.clamp(max=torch.finfo(square.dtype).max / 4)
    near = square < 1
    x = torch.where(near, square, 0.0) / 4
    series = torch.ones_like(x * nu)
    for k in range(_TERMS[square.dtype], 0, -1):
        series = 1 - series * x / (k * (nu + k))
    return torch.where(near, series, characteristic(torch.where(near, 1.0, square).sqrt(), nu))


def elliptical_moments(
    loc: Tensor, spread: Tensor, factors: Tensor, exponents: Tensor, lowered: Tensor
) -> Tensor:
    r"""$E_0[t_1^{k_1} \cdots t_D^{k_D}]$ for all monomials up to a degree d, (*batch, N).

    $$E_s[t_i\,t^k] = \mu_i\,E_s[t^k] + c_s \sum_j A_{ij}\,k_j\,E_{s+1}[t^{k - e_j}]$$

    Nothing is subtracted: the part of a moment that is due to the spread has all its digits
    however far the centre is.

    Args:
        loc: $\mu$, (*batch, D).
        spread: $A$, (*batch, D, D).
        factors: $c_0, c_1, \dots$, d // 2 of them, (*batch, d // 2).
        exponents: The k of each monomial, by total degree, (N, D).
        lowered: The row of $k - e_j$, or 0 where $k_j = 0$, (N, D).
    """
    ends = _degree_ends(*exponents.shape)
    ones = torch.ones_like(loc[..., :1]).unsqueeze(-1)
    older = current = ones.expand(*loc.shape[:-1], factors.shape[-1] + 1, 1)
    found = [current[..., 0, :]]
    for degree in range(1, len(ends) - 1):
        # Monomials t_i t^k of this degree, by the rows of k and k - e_j among those of theirs.
        rows, levels = slice(ends[degree], ends[degree + 1]), (len(ends) - 2 - degree) // 2 + 1
        axis = exponents[rows].argmax(-1)
        parent = lowered[rows].gather(-1, axis.unsqueeze(-1)).squeeze(-1)
        moments = _times(loc[..., None, axis], current[..., :levels, parent - ends[degree - 1]])
        if degree > 1:
            slopes = _times(exponents[parent].to(spread), spread[..., axis, :])
            rest = older[..., 1:, (lowered[parent] - ends[degree - 2]).clamp_min(0)]
            derivatives = _times(slopes.unsqueeze(-3), rest).sum(-1)
            moments = moments + factors[..., :levels, None] * derivatives
        older, current = current, moments
        found.append(current[..., 0, :])
    return torch.cat(found, -1)


def _times(left: Tensor, right: Tensor) -> Tensor:
    """The product, in which zero times infinity is zero."""
    none = ((left == 0) & right.isinf()) | ((right == 0) & left.isinf())
    return torch.where(none, 0.0, left) * torch.where(none, 0.0, right)


def _degree_ends(count: int, ndim: int) -> list[int]:
    """Where the monomials of total degree 0, 1, ... begin, and where the last ones end."""
    ends = [0]
    while ends[-1] < count:
        ends.append(math.comb(len(ends) - 1 + ndim, ndim))
    return ends
