r"""Gamma functions, normal densities, tails and characteristic functions, maps onto the ball.

Subtracting values of `lgamma` or `digamma` cancels at large arguments. The differences here are
sums of small terms.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from .quadrature import MAKERS, Numbers, table

__all__ = [
    "ball_to_space",
    "characteristic",
    "digamma_difference",
    "digamma_excess",
    "log_positive",
    "log_ball_tail",
    "log_gamma_ratio",
    "normal_density",
    "space_to_ball",
    "space_to_ball_log_det",
    "stirling_excess",
]


# Asymptotic series in descending powers of the argument have float64 accuracy from here on.
_SHIFT = 9
# B_{2k} / (2k (2k - 1)) and B_{2k} / 2k, k = 1, 2, ...
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)

# Terms of artanh(s)/s - 1 = s^2/3 + s^4/5 + ..., used for |s| <= _SMALL.
_SMALL = 0.2
_ARTANH = {torch.float32: 7, torch.float64: 14}

# Number of Chebyshev polynomials in each variable of `_log_mills`, and c in these variables.
_MILLS_COUNT, _MILLS_MAP = {torch.float32: 14, torch.float64: 24}, 1.5


def log_gamma_ratio(x: Tensor, delta: float) -> Tensor:
    r"""Return $\log\Gamma(x + \delta) - \log\Gamma(x)$, up to the rounding of $\delta\log x$.

    Args:
        x: Any shape, $x \ge 1/2$.
        delta: $\delta > 0$.
    """
    # Gamma(y + 1) = y Gamma(y), nine times, leads to arguments where Stirling's series is exact.
    steps = _unit_steps(x)
    shifted = x + _SHIFT
    quotient = torch.log1p(delta / shifted)
    stirling = delta * torch.log(shifted) + (shifted + (delta - 0.5)) * quotient - delta
    remainders = _stirling_series(shifted + delta) - _stirling_series(shifted)
    return stirling + remainders - torch.log1p(delta / steps).sum(-1)


def digamma_difference(x: Tensor, delta: float) -> Tensor:
    r"""Return $\psi(x + \delta) - \psi(x) \approx \delta/x$, with a small relative error.

    Args:
        x: Any shape, $x \ge 1/2$.
        delta: $\delta > 0$.
    """
    # psi(y + 1) = psi(y) + 1/y, nine times, leads to arguments where its series is exact.
    steps = _unit_steps(x)
    low = x + _SHIFT
    high = low + delta
    remainders = _inverse_squares(_DIGAMMA, high) - _inverse_squares(_DIGAMMA, low)
    asymptotic = torch.log1p(delta / low) + delta / (2 * low * high) - remainders
    return asymptotic + (delta / (steps * (steps + delta))).sum(-1)


def log_ball_tail(radius: Tensor, m: Tensor, dim: int = 1) -> Tensor:
    r"""Compute $\log P(|x| > r)$ of the density $\propto (1 - |x|^2)_+^m$ in D dimensions.

    With $p = 1 - r^2$ and $b = m + 1$ it is $b\log p + \log(G + \sum_j t_j)$: in 1-D $G$ is a
    smooth function, Mills' ratio of the density, tabulated once by Chebyshev coefficients in two
    variables. Two more dimensions add a positive term $t_j$. The absolute error is a few roundings
    of $b\log p$; in 1-D the value at $r = 0$ is exactly zero.

    Args:
        radius: $r$ in [0, 1), (*sample, *batch).
        m: $m \ge 0$, (*batch) or of no axes.
        dim: D, at least 1.
    """
    if dim > 1 and radius.dtype != torch.float64:
        # Below the radii that are likely the terms cancel in derivatives.
        return log_ball_tail(radius.double(), m.double(), dim).to(radius.dtype)
    b = m.to(radius.dtype) + 1
    square, complement = radius.square(), (1 - radius) * (1 + radius)
    log_power = -b * torch.log1p(square / complement)
    if dim == 1:
        return log_power + _log_mills(radius, b)
    term, total = square * b, torch.ones_like(log_power)
    if dim % 2:
        total = torch.exp(_log_mills(radius, b))
        term = radius * (2 / math.sqrt(math.pi) * torch.exp(log_gamma_ratio(b, 0.5)))
    # P(|x| > r) is the incomplete beta function I_p(b, D/2), and two more dimensions add a term:
    # I_p(b, a + 1) = I_p(b, a) + p^b r^(2 a) / (a B(a, b)), from a = 1/2 or 1 on.
    for j in range((dim - 1) // 2):
        total = total + term
        a = dim % 2 / 2 + (1 - dim % 2) + j
        term = term * square * ((a + b) / (a + 1))
    return log_power + total.log()


def _log_mills(x: Tensor, b: Tensor) -> Tensor:
    r"""Return $\log G$, $G = 2C \int_x^1 (1 - t^2)^{b-1} dt / (1 - x^2)^b$, for $0 \le x < 1$.

    The constant C makes $G(0) = 1$. The table of `_mills` gives $(G (1 + x\sqrt b/c) - 1)/s$.

    Args:
        x: Shape (*sample, *batch).
        b: Shape (*batch).
    """
    count, narrow = _MILLS_COUNT[x.dtype], _MILLS_MAP * torch.rsqrt(b)
    variable = x * (1 + narrow) / (x + narrow)
    rows = torch.tensordot(
        table("mills", (count,), x), _chebyshev(2 / _MILLS_MAP * narrow - 1, count), 1
    )
    rows = rows.reshape(count, *(1,) * (x.dim() - b.dim()), *b.shape)
    series = (rows * _chebyshev(2 * variable - 1, count)).sum(0)
    return torch.log1p(variable * series) - torch.log1p(x / narrow)


def _chebyshev(y: Tensor, count: int) -> Tensor:
    """Return the first Chebyshev polynomials (count, ...) at y, by doubling the degree.

    T_{n+k} = 2 T_n T_k - T_{n-k} makes all degrees up to 2 n from those up to n in one step.
    """
    values = torch.stack([torch.ones_like(y), y])
    while (computed := len(values)) < count:
        more = min(computed - 1, count - computed)
        higher = 2 * values[-1] * values[1 : more + 1] - values[-1 - more : -1].flip(0)
        values = torch.cat([values, higher])
    return values


def _mills(count: int) -> Numbers:
    r"""Return the table of `_log_mills`, coefficients (count, count) in the two variables.

    It interpolates $(G (1 + x\sqrt b/c) - 1)/s$ in $s = x (1 + c/\sqrt b)/(x + c/\sqrt b)$ and
    $1/\sqrt b$, with $G$ by quadrature of
    $\tfrac12 \int_0^\infty e^{-\tau} (x^2 + (1 - x^2)(1 - e^{-\tau/b}))^{-1/2}\,d\tau$.
    """
    y = np.cos(np.pi * (np.arange(count) + 0.5) / count)
    variable, inverse = (y[:, None] + 1) / 2, (y + 1) / 2
    x = variable * _MILLS_MAP * inverse / (1 + _MILLS_MAP * inverse - variable)
    # Nodes and weights of `_decay_rule` from -4.6 to 4.2, the weights times e^-tau.
    step = 8.8 / 300
    gap = np.exp(4.6 - step * (np.arange(300) + 0.5))
    tau = np.exp(-gap) / gap
    weights = step * tau * (1 + gap) * np.exp(-tau)
    # Square roots at 0 and at x, and the difference of the integrals without cancellation.
    start = np.sqrt(-np.expm1(-tau * inverse[:, None] ** 2))
    square = x[..., None] ** 2
    root = np.sqrt(square + (1 - square) * start**2)
    fall = (weights * square * (1 - start**2) / (root * start * (root + start))).sum(-1)
    # With s `variable`, x sqrt(b)/c is s steep, and G is 1 - fall / sum(weights / start).
    steep = 1 / (1 + _MILLS_MAP * inverse - variable)
    series = steep - fall / (weights / start).sum(-1) * (1 / variable + steep)
    polynomials = np.polynomial.chebyshev.chebvander(y, count - 1) * (2 / count)
    polynomials[:, 0] /= 2
    return polynomials.T @ series @ polynomials


MAKERS["mills"] = _mills


def _decay_rule(count: int, low: float, high: float, like: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return nodes and weights (count,) for smooth functions on $(0, \infty)$ that decay.

    It is the midpoint rule in $\tau$ from `low` to `high` after $s = e^{\tau - e^{-\tau}}$, which
    converges geometrically if the integrand is negligible at both ends. The nodes have the dtype
    and device of `like`.
    """
    step = (high - low) / count
    tau = low + step * (torch.arange(count, dtype=like.dtype, device=like.device) + 0.5)
    gap = torch.exp(-tau)
    nodes = torch.exp(tau - gap)
    return nodes, step * nodes * (1 + gap)


def _unit_steps(x: Tensor) -> Tensor:
    """Return x, x + 1, ..., x + _SHIFT - 1 along a new last dimension."""
    return x[..., None] + torch.arange(_SHIFT, dtype=x.dtype, device=x.device)


def _horner(coefficients: Sequence[float], z: Tensor) -> Tensor:
    """Evaluate a polynomial with ascending coefficients at z, of any shape."""
    total = torch.full_like(z, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = total * z + c
    return total


def _inverse_squares(coefficients: Sequence[float], x: Tensor) -> Tensor:
    """Return the sum of c_k / x^{2k}, k = 1, 2, ..."""
    z = x.reciprocal().square()
    return z * _horner(coefficients, z)


def _stirling_series(x: Tensor) -> Tensor:
    """Return S(x) = log Gamma(x) - (x - 1/2) log x + x - log(2 pi)/2 for x >= _SHIFT."""
    return x * _inverse_squares(_STIRLING, x)


def stirling_excess(x: Tensor) -> Tensor:
    r"""Return $E(x) = \log\Gamma(x) - x \log x + x$ for $x > 0$, without large terms.

    From $\Gamma(y + 1) = y\,\Gamma(y)$ follows $E(y) - E(y + 1) = (y + 1) \log(1 + 1/y) - 1$. Nine
    such steps lead to $z = x + 9$, where $E(z) = \log(2\pi/z)/2 + S(z)$ by Stirling's series. Half
    of each logarithm telescopes to $\log(z/x)/2$, which leaves
    $E(x) = \sum_y [(y + 1/2) \log(1 + 1/y) - 1] + \log(2\pi/x)/2 + S(z)$.
    """
    steps = _unit_steps(x)
    inverse = steps.reciprocal()
    # With R = log(1 + 1/y) - 1/y, (y + 1/2) log(1 + 1/y) - 1 = (y + 1/2) R + 1/(2 y).
    terms = (steps + 0.5) * _log_remainder(1 + inverse, inverse) + 0.5 * inverse
    return _stirling_series(x + _SHIFT) + terms.sum(-1) + 0.5 * torch.log(2 * math.pi / x)


def digamma_excess(x: Tensor) -> Tensor:
    r"""Return $\psi(x) - \log x$ for $x > 0$, the derivative of `stirling_excess`."""
    large = x > _SHIFT
    low, high = torch.where(large, 1.0, x), torch.where(large, x, _SHIFT)
    series = -0.5 / high - _inverse_squares(_DIGAMMA, high)
    return torch.where(large, series, torch.digamma(low) - low.log())


def _log_remainder(ratio: Tensor, excess: Tensor) -> Tensor:
    """Return log(ratio) - excess for excess = ratio - 1, which is more accurate than the ratio.

    By log(ratio) = 2 artanh(s), s = excess / (1 + ratio), and excess = 2 s + s excess.
    """
    s = excess / (1 + ratio)
    small = s.abs() <= _SMALL
    s = torch.where(small, s, 0.0)
    s2 = s.square()
    series = _horner([1 / (2 * k + 3) for k in range(_ARTANH[s.dtype])], s2)
    large = torch.log(torch.where(small, 1.0, ratio)) - excess
    return torch.where(small, s * (2 * s2 * series - excess), large)


# For small rho: number of nodes, largest t, and the negative logarithm of the last weight.
_COSINE_RULE = {torch.float32: (20, 2.0, 16.0), torch.float64: (48, 2.6, 37.0)}
# For large rho, at least max(5, 1.5 nu): the decay rule (count, low, high).
_SINE_RULE = {torch.float32: (24, -2.9, 3.6), torch.float64: (60, -3.6, 4.4)}
_LARGE_RHO = 5.0
_LARGE_RATIO = 1.5
# For small rho the value is at most exp(-rho^2 / (4 (nu + 1))); beyond this exponent it is zero.
_LARGEST_EXPONENT = {torch.float32: 18.0, torch.float64: 40.0}


def characteristic(rho: Tensor, nu: Tensor | float) -> Tensor:
    r"""Compute the characteristic function of $p(u) \propto (1 - u^2)^{\nu - 1/2}$ on $[-1, 1]$.

    $$\varphi_\nu(\rho) = {}_0F_1(;\nu + 1; -\rho^2/4)
        = \Gamma(\nu + 1)\,(2/\rho)^\nu J_\nu(\rho)$$

    It is even in $\rho$, exactly 1 at zero, and $E\cos(w^\top(t - \mu))$ of a beta-Gaussian in
    $D$ dimensions for $\nu = D/2 + m$, $\rho = |L^\top w|$. The absolute error is 3e-7 in float32
    and 1e-14 in float64 for all $\rho$ and $\nu$. Differentiable in both arguments to any order.

    Args:
        rho: Frequency times half-width, which broadcasts with `nu` and determines the dtype.
        nu: $\nu \ge 1/2$.

    References:
        DLMF 10.9.4, and its integrand along contours from -1 and 1, https://dlmf.nist.gov/10.9.
    """
    nu = torch.as_tensor(nu, dtype=rho.dtype, device=rho.device)
    size = rho.abs()
    large = size >= (_LARGE_RATIO * nu).clamp_min(_LARGE_RHO)
    zero = ~large & (rho.square() > 4 * _LARGEST_EXPONENT[rho.dtype] * (nu + 1))
    # Both formulas are computed everywhere, with harmless arguments where they are not used.
    inner = _cosine_mean(torch.where(large | zero, 0.0, rho), nu)
    outer = _sine_transform(torch.where(large, size, _LARGE_RHO), torch.where(large, nu, 1.0))
    return torch.where(large, outer, torch.where(zero, 0.0, inner))


def _cosine_mean(rho: Tensor, nu: Tensor) -> Tensor:
    r"""Return $E\cos(\rho u)$ by the midpoint rule in $t$: $u = \tanh(x_{max}\sinh(t)/\sinh(T))$.

    The weights sum to one and $1 - \cos$ is summed, so that the value is exactly 1 at $\rho = 0$.
    """
    count, last, depth = _COSINE_RULE[nu.dtype]
    step = last / count
    t = step * (torch.arange(count, dtype=nu.dtype, device=nu.device) + 0.5)
    # cosh(x_max)^{-(2 nu + 1)} = e^{-depth}, and arcosh(e^a) = a + log(1 + sqrt(1 - e^{-2 a})).
    log_cosh = depth / (2 * nu.detach() + 1)
    x_max = log_cosh + torch.log1p(torch.sqrt(-torch.expm1(-2 * log_cosh)))
    x = x_max[..., None] * (torch.sinh(t) / math.sinh(last))
    # The density times du = cosh(x)^-2 dx is cosh(x)^{-(2 nu + 1)} dx, and dx = cosh(t) dt up to a
    # factor; softmax makes the weights sum to one.
    log_weight = torch.log(torch.cosh(t)) - (nu[..., None] + 0.5) * torch.log1p(
        torch.sinh(x).square()
    )
    half_angle = rho[..., None] * (torch.tanh(x) / 2)
    return 1 - 2 * (torch.softmax(log_weight, -1) * torch.sin(half_angle).square()).sum(-1)


def _sine_transform(rho: Tensor, nu: Tensor) -> Tensor:
    r"""Return $E\cos(\rho u)$ for large $\rho$, on a contour that leaves the real line at $\pm 1$.

    $$\varphi = 2C\int_0^\infty (t\sqrt{t^2 + 4})^{a} e^{-\rho t}
        \sin(\rho - a \operatorname{atan2}(2, t))\,dt,\quad a = \nu - \tfrac12,
        \quad C = \frac{\Gamma(\nu + 1)}{\sqrt\pi\,\Gamma(\nu + 1/2)}$$
    """
    nodes, weights = _decay_rule(*_SINE_RULE[rho.dtype], rho)
    scale = 1 / rho.detach()
    t = scale[..., None] * nodes
    power, frequency = nu[..., None] - 0.5, rho[..., None]
    log_constant = log_gamma_ratio(nu + 0.5, 0.5)[..., None] - 0.5 * math.log(math.pi)
    log_size = power * (torch.log(t) + 0.5 * torch.log(t.square() + 4)) - frequency * t
    phase = frequency - power * torch.atan2(torch.full_like(t, 2.0), t)
    return 2 * scale * (weights * torch.exp(log_constant + log_size) * torch.sin(phase)).sum(-1)


# Below these squares of the radius, continued fractions of this depth have float64 accuracy.
_TANH_LIMIT, _ATANH_LIMIT, _DEPTH_OF_FRACTIONS = 1.0, 0.0625, 10


def space_to_ball(y: Tensor) -> Tensor:
    r"""Map y (..., D) to $u = \tanh(|y|/2)\, y/|y|$ in the open unit ball."""
    square, small, r = _radius(y / 2, _TANH_LIMIT)
    # A point that was rounded to the sphere could not be mapped back.
    outer = torch.tanh(r).clamp(max=_largest_radius(y)) / r
    return y / 2 * torch.where(small, _fraction(square, lambda k: 1), outer)


def space_to_ball_log_det(y: Tensor) -> Tensor:
    r"""Return $\log|\det \partial u / \partial y|$ (...) of `space_to_ball` at y (..., D)."""
    square, small, r = (x.squeeze(-1) for x in _radius(y / 2, _TANH_LIMIT))
    ratio = _fraction(square, lambda k: 1)
    across = torch.where(small, ratio, torch.tanh(r) / r).log() - math.log(2)
    # The radial factor 1 - tanh^2 = 1/cosh^2, whose logarithm is linear for large radii.
    outer = 2 * math.log(2) - 2 * r - 2 * torch.log1p(torch.exp(-2 * r))
    along = torch.where(small, torch.log1p(-square * ratio.square()), outer) - math.log(2)
    # One radial direction, and D - 1 across it.
    return along + (y.shape[-1] - 1) * across


def ball_to_space(u: Tensor) -> Tensor:
    """Invert `space_to_ball`; points on the sphere or outside count as just inside of it."""
    square, small, r = _radius(u, _ATANH_LIMIT)
    inside = r.clamp(max=_largest_radius(u))
    outer = torch.log1p(2 * inside / (1 - inside)) / (2 * r)
    return 2 * u * torch.where(small, _fraction(square, lambda k: -k * k), outer)


def _largest_radius(x: Tensor) -> float:
    """Return the largest radius of points (..., D) in the ball.

    It is below 1 by a rounding error of the sums of D terms in the affine map that follows.
    """
    return 1 - 2 * x.shape[-1] * torch.finfo(x.dtype).eps


def _radius(x: Tensor, limit: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return |x|^2, a mask `small` of |x|^2 below the limit, and |x|, (..., 1) for x (..., D).

    Only one of the numbers is used: |x|^2 is 0 where it is not small, and |x| is 1 where it is.
    """
    square = x.square().sum(-1, keepdim=True)
    small = square < limit
    # Not even the number that is not used may overflow or lack a gradient.
    size = x.detach().abs().amax(-1, keepdim=True)
    unit = torch.where(small, 1.0, x / torch.where(small, 1.0, size))
    norm = unit.square().sum(-1, keepdim=True).sqrt() * size
    return torch.where(small, square, 0.0), small, torch.where(small, 1.0, norm)


def _fraction(s: Tensor, numerator: Callable[[int], int]) -> Tensor:
    r"""Return the continued fraction 1/(1 + a_1 s/(3 + a_2 s/(5 + ...))) of numerators a.

    It is $\tanh(\sqrt s)/\sqrt s$ for a_k = 1 (Lambert), and
    $\operatorname{artanh}(\sqrt s)/\sqrt s$ for a_k = -k^2 (Gauss).

    Args:
        s: Any shape.
        numerator: a_k as a function of k.
    """
    total = torch.full_like(s, 2 * _DEPTH_OF_FRACTIONS + 1)
    for k in range(_DEPTH_OF_FRACTIONS, 0, -1):
        total = 2 * k - 1 + numerator(k) * s / total
    return 1 / total


# Infinite locations are moved here before a covariance is divided by: squares of it are finite.
_LARGEST_OFFSET = 1e100


def normal_density(t: Tensor, centers: Tensor, covariance: Tensor) -> Tensor:
    """Return normal densities (..., N) at t (..., N or 1, D), computed in float64.

    A factor of condition number 1e3 amplifies the rounding of `t - centers` as much.

    Args:
        t: Locations, one for each density or one for all.
        centers: Shape (N, D).
        covariance: Shape (N, D, D) or (D, D).
    """
    dtype = torch.promote_types(t.dtype, centers.dtype)
    factor, failed = torch.linalg.cholesky_ex(covariance.double())
    factor = factor.masked_fill((failed > 0)[..., None, None], math.nan)
    offset = (t.double() - centers.double()).clamp(-_LARGEST_OFFSET, _LARGEST_OFFSET)
    # All locations are right-hand sides of one system per function.
    columns = offset.reshape(-1, *centers.shape).movedim(0, -1)
    z = torch.linalg.solve_triangular(factor, columns, upper=False)
    log_peak = -(factor.diagonal(dim1=-2, dim2=-1) * math.sqrt(2 * math.pi)).log().sum(-1)
    values = torch.exp(log_peak.unsqueeze(-1) - 0.5 * z.square().sum(-2))
    return values.mT.reshape(offset.shape[:-1]).to(dtype)


def log_positive(x: Tensor) -> Tensor:
    """Return the logarithm of x; -inf with zero gradient where x is not positive."""
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1.0).log(), -math.inf)
