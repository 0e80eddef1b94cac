r"""Gamma, incomplete beta and characteristic functions, and the map of space onto the ball.

Subtracting values of `lgamma` or `digamma` cancels at large arguments. The differences here are
sums of small terms.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = [
    "ball_to_space",
    "betaincc",
    "characteristic",
    "digamma_difference",
    "log_gamma_ratio",
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

# The integral for I_x(a, b) is cut where the integrand is exp(-_DEPTH), which is mapped to the end
# _HIGH of the quadrature rule (count, low, _HIGH).
_DEPTH = {torch.float32: 18.0, torch.float64: 40.0}
_RULE = {torch.float32: (24, -2.9), torch.float64: (48, -3.6)}
_HIGH = 2.5
_END = math.exp(_HIGH - math.exp(-_HIGH))
_NEWTON_STEPS = 4


def log_gamma_ratio(x: Tensor, delta: float) -> Tensor:
    r"""Return $\log\Gamma(x + \delta) - \log\Gamma(x)$, up to the rounding of $\delta\log x$.

    Args:
        x: Any shape, $x \ge 1/2$.
        delta: $\delta > 0$.
    """
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
    steps = _unit_steps(x)
    low = x + _SHIFT
    high = low + delta
    remainders = _inverse_squares(_DIGAMMA, high) - _inverse_squares(_DIGAMMA, low)
    asymptotic = torch.log1p(delta / low) + delta / (2 * low * high) - remainders
    return asymptotic + (delta / (steps * (steps + delta))).sum(-1)


def betaincc(a: Tensor, b: Tensor, x: Tensor, complement: Tensor) -> Tensor:
    r"""Compute the upper tail of the beta distribution, differentiable in a, b and x.

    $$1 - I_x(a, b) = \frac{1}{B(a, b)} \int_x^1 t^{a-1} (1-t)^{b-1}\,dt$$

    Values, however small, and gradients have a relative error of 4e-7 in float32 and 4e-14 in
    float64, a little more next to underflow. Outside $(0, 1)$ the value is 0 or 1 with a zero
    gradient, also at $x = 0$ with $a < 1$, where the density is infinite.

    Args:
        a: First exponent, from about 0.05 to 1e7.
        b: Second exponent, from about 0.05 to 1e7.
        x: Argument, which broadcasts with `a` and `b` and determines the dtype.
        complement: $1 - x$, which may have more digits than x. Gradients flow through x only.

    References:
        DiDonato and Morris (1992), Significant digit computation of the incomplete beta function
        ratios, ACM TOMS 18(3), for the choice of the tail and the prefactor.
    """
    # In float64, as the prefactor is ill-conditioned.
    a, b, left, right = (t.double() for t in (a, b, x, complement))
    above, outside = right <= 0, (left <= 0) | (right <= 0)
    left, right = (torch.where(outside, 0.5, t) for t in (left, right))
    right = right.detach() + (left.detach() - left)
    # The tail that does not hold the mean is integrated.
    upper = a * right < b * left
    tail = _lower_tail(
        torch.where(upper, b, a),
        torch.where(upper, a, b),
        torch.where(upper, right, left),
        torch.where(upper, left, right),
        x.dtype,
    )
    tail = torch.where(upper, tail, 1 - tail).to(x.dtype)
    return torch.where(outside, 1 - above.to(x.dtype), tail)


def _decay_rule(count: int, low: float, high: float, like: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return nodes and weights (count,) for smooth functions on $(0, \infty)$ that decay.

    It is the midpoint rule in $\tau$ from `low` to `high` after $s = e^{\tau - e^{-\tau}}$, which
    converges geometrically if the integrand is negligible at both ends.
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
    """Evaluate a polynomial with ascending coefficients."""
    total = torch.full_like(z, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = total * z + c
    return total


def _inverse_squares(coefficients: Sequence[float], x: Tensor) -> Tensor:
    """Return the sum of c_k / x^{2k}, k = 1, 2, ..."""
    z = x.reciprocal().square()
    return z * _horner(coefficients, z)


def _stirling_series(x: Tensor) -> Tensor:
    """Return Stirling's remainder for x >= _SHIFT."""
    return x * _inverse_squares(_STIRLING, x)


def _stirling_remainder(x: Tensor) -> Tensor:
    r"""Return $\log\Gamma(x) - (x - \tfrac12)\log x + x - \tfrac12\log 2\pi$ for $x > 0$."""
    steps = _unit_steps(x)
    inverse = steps.reciprocal()
    # (y + 1/2) log(1 + 1/y) - 1, without the 1.
    terms = (steps + 0.5) * _log_remainder(1 + inverse, inverse) + 0.5 * inverse
    return _stirling_series(x + _SHIFT) + terms.sum(-1)


def stirling_excess(x: Tensor) -> Tensor:
    r"""Return $\log\Gamma(x) - x \log x + x$ for $x > 0$, without large terms."""
    return _stirling_remainder(x) + 0.5 * torch.log(2 * math.pi / x)


def _log_remainder(ratio: Tensor, excess: Tensor) -> Tensor:
    """Return log(ratio) - excess for excess = ratio - 1, which is more accurate than the ratio."""
    s = excess / (1 + ratio)
    small = s.abs() <= _SMALL
    s = torch.where(small, s, 0.0)
    s2 = s.square()
    series = _horner([1 / (2 * k + 3) for k in range(_ARTANH[s.dtype])], s2)
    large = torch.log(torch.where(small, 1.0, ratio)) - excess
    return torch.where(small, s * (2 * s2 * series - excess), large)


def _lower_tail(a: Tensor, b: Tensor, x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
    r"""Return $I_x(a, b)$ for $x \le a/(a+b)$, $y = 1 - x$; nodes are in `dtype`."""
    small = a < 1
    # For small a by the two positive terms I_x(a, b) = I_x(a + 1, b) + x^a y^b / (a B(a, b)).
    raised = torch.where(small, a + 1, a)
    # The slope a - (b - 1) x/y of the exponent at 0, by the same difference as in the prefactor.
    slope = (raised * y - b * x + x) / y
    integral = _integral(*(t.to(dtype) for t in (raised, b, x / y, slope))).double()
    step = (1 + (a + b) * (x / y) * integral) / a
    return torch.exp(_log_kernel(a, b, x, y)) * torch.where(small, step, integral / y)


def _log_kernel(a: Tensor, b: Tensor, x: Tensor, y: Tensor) -> Tensor:
    r"""Return $\log [x^a y^b / B(a, b)]$, expanded around the mean $a/(a+b)$."""
    total = a + b
    shift = a * y - b * x
    exponent = a * _log_remainder(x * total / a, -shift / a)
    exponent = exponent + b * _log_remainder(y * total / b, shift / b)
    remainders = _stirling_remainder(total) - _stirling_remainder(a) - _stirling_remainder(b)
    return exponent + remainders + 0.5 * torch.log(a / total * b / (2 * math.pi))


def _integral(a: Tensor, b: Tensor, odds: Tensor, slope: Tensor) -> Tensor:
    r"""Return $\int_0^\infty e^{-\varphi(s)} ds$, which is left of $I_x$ after $t = x e^{-s}$.

    $\varphi(s) = a s - (b-1)\log(1 + r(1 - e^{-s}))$ with odds $r = x/(1-x)$. This plain form has
    exact gradients at fixed nodes; its value, a difference of large terms, is replaced by
    `_exponent`.
    """
    fixed_a, fixed_b, fixed_odds, slope = (t.detach() for t in (a, b, odds, slope))
    scale = _cutoff(fixed_a, fixed_b, fixed_odds, slope) / _END
    nodes, weights = _decay_rule(*_RULE[a.dtype], _HIGH, a)
    s = scale[..., None] * nodes
    exponent = _exponent(s, *(t[..., None] for t in (fixed_b - 1, fixed_odds, slope)))
    plain = a[..., None] * s - (b[..., None] - 1) * torch.log1p(-odds[..., None] * torch.expm1(-s))
    return scale * (weights * torch.exp(plain.detach() - plain - exponent)).sum(-1)


def _exponent(s: Tensor, power: Tensor, odds: Tensor, slope: Tensor) -> Tensor:
    r"""Return $\varphi(s)$ of `_integral` as a sum of small terms, with slope $= \varphi'(0)$."""
    part = -torch.expm1(-s)
    growth = odds * part
    curved = odds * _log_remainder(torch.exp(-s), -part) + _log_remainder(1 + growth, growth)
    return slope * s - power * curved


def _cutoff(a: Tensor, b: Tensor, odds: Tensor, slope: Tensor) -> Tensor:
    r"""Return the s where $\varphi$ reaches `_DEPTH`, at which the integrand is negligible.

    By Newton's method for $\log\varphi$ as a function of $\log s$, whose slope is between 1 and
    2. For $b < 1$ the bound $\varphi(s) \ge a s$ is used.
    """
    depth = _DEPTH[a.dtype]
    power = (b - 1).clamp_min(0)
    slope = torch.where(b < 1, a, slope)
    s = (depth + power * torch.log1p(odds)) / a
    for _ in range(_NEWTON_STEPS):
        value = _exponent(s, power, odds, slope)
        derivative = a - power * odds / (torch.exp(s) * (1 + odds) - odds)
        s = s * torch.exp(torch.log(depth / value) * value / (s * derivative))
    return s


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
        DLMF 10.9.4 and 10.9.11, https://dlmf.nist.gov/10.9.
    """
    nu = torch.as_tensor(nu, dtype=rho.dtype, device=rho.device)
    size = rho.abs()
    large = size >= (_LARGE_RATIO * nu).clamp_min(_LARGE_RHO)
    zero = ~large & (rho.square() > 4 * _LARGEST_EXPONENT[rho.dtype] * (nu + 1))
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
    # cosh(x_max)^{-(2 nu + 1)} = e^{-depth}
    log_cosh = depth / (2 * nu.detach() + 1)
    x_max = log_cosh + torch.log1p(torch.sqrt(-torch.expm1(-2 * log_cosh)))
    x = x_max[..., None] * (torch.sinh(t) / math.sinh(last))
    log_weight = torch.log(torch.cosh(t)) - (nu[..., None] + 0.5) * torch.log1p(
        torch.sinh(x).square()
    )
    half_angle = rho[..., None] * (torch.tanh(x) / 2)
    return 1 - 2 * (torch.softmax(log_weight, -1) * torch.sin(half_angle).square()).sum(-1)


def _sine_transform(rho: Tensor, nu: Tensor) -> Tensor:
    r"""Return the same for large $\rho > 0$, on a contour that leaves the real line at $\pm 1$.

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


# Below these squares of the radius continued fractions of this depth have float64 accuracy.
_TANH_LIMIT, _ATANH_LIMIT, _DEPTH_OF_FRACTIONS = 1.0, 0.0625, 10


def space_to_ball(y: Tensor) -> Tensor:
    r"""Map y (..., D) to $u = \tanh(|y|/2)\, y/|y|$ in the open unit ball."""
    square, small, r = _radius(y / 2, _TANH_LIMIT)
    # A point that was rounded to the sphere could not be mapped back.
    outer = torch.tanh(r).clamp(max=_largest_radius(y)) / r
    return y / 2 * torch.where(small, _tanh_ratio(square), outer)


def space_to_ball_log_det(y: Tensor) -> Tensor:
    r"""Return $\log|\det \partial u / \partial y|$ (...) of `space_to_ball` at y (..., D)."""
    square, small, r = (x.squeeze(-1) for x in _radius(y / 2, _TANH_LIMIT))
    ratio = _tanh_ratio(square)
    across = torch.where(small, ratio, torch.tanh(r) / r).log() - math.log(2)
    # The radial factor 1 - tanh^2 = 1/cosh^2, whose logarithm is linear for large radii.
    outer = 2 * math.log(2) - 2 * r - 2 * torch.log1p(torch.exp(-2 * r))
    along = torch.where(small, torch.log1p(-square * ratio.square()), outer) - math.log(2)
    return along + (y.shape[-1] - 1) * across


def ball_to_space(u: Tensor) -> Tensor:
    """Invert `space_to_ball`; points on the sphere or outside count as just inside of it."""
    square, small, r = _radius(u, _ATANH_LIMIT)
    inside = r.clamp(max=_largest_radius(u))
    outer = torch.log1p(2 * inside / (1 - inside)) / (2 * r)
    return 2 * u * torch.where(small, _atanh_ratio(square), outer)


def _largest_radius(x: Tensor) -> float:
    """Return the largest radius in the ball: the affine map that follows rounds in D terms."""
    return 1 - 2 * x.shape[-1] * torch.finfo(x.dtype).eps


def _radius(x: Tensor, limit: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return |x|^2, or 0 if that is above the limit; whether it is below; and |x|, or 1 if so."""
    square = x.square().sum(-1, keepdim=True)
    small = square < limit
    # Neither may overflow or lack a gradient where the other is used.
    size = x.detach().abs().amax(-1, keepdim=True)
    unit = torch.where(small, 1.0, x / torch.where(small, 1.0, size))
    norm = unit.square().sum(-1, keepdim=True).sqrt() * size
    return torch.where(small, square, 0.0), small, torch.where(small, 1.0, norm)


def _tanh_ratio(s: Tensor) -> Tensor:
    r"""Return $\tanh(\sqrt s)/\sqrt s$ by Lambert's continued fraction."""
    total = torch.full_like(s, 2 * _DEPTH_OF_FRACTIONS + 1)
    for k in range(_DEPTH_OF_FRACTIONS - 1, -1, -1):
        total = 2 * k + 1 + s / total
    return 1 / total


def _atanh_ratio(s: Tensor) -> Tensor:
    r"""Return $\operatorname{artanh}(\sqrt s)/\sqrt s$ by Gauss's continued fraction."""
    total = torch.full_like(s, 2 * _DEPTH_OF_FRACTIONS + 1)
    for k in range(_DEPTH_OF_FRACTIONS - 1, -1, -1):
        total = 2 * k + 1 - (k + 1) ** 2 * s / total
    return 1 / total
