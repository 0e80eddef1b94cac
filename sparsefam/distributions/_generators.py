"""Generators: standard densities of |x|, which families move and scale."""

import math
from numbers import Real
from typing import Any

import torch
from torch import Size, Tensor

from .._numerics.ellipsoid import radial_rule
from .._numerics.quadrature import smooth_unit_rule
from .._numerics.roots import attach_root_gradient, increasing_root
from .._numerics.special import digamma_difference, log_ball_tail, log_gamma_ratio, log_positive
from .._numerics.validation import require, require_power

__all__ = [
    "LOG_TAIL",
    "Cone",
    "ExponentialPower",
    "Gaussian",
    "Generator",
    "Laplacian",
    "Parabola",
    "QuadratureGenerator",
    "TruncatedPower",
    "alpha_of",
    "exponent_of",
    "positive",
    "unvalidated",
]

# Minus the logarithm of the tail mass beyond the nodes of quadrature: less than a rounding error.
LOG_TAIL = {torch.float32: 18.0, torch.float64: 40.0}
# An exponent up to which the halves of a truncated power need no cuts.
_LOW_EXPONENT = 3
# An exponent at which a beta-Gaussian is normal to rounding: (1 - x^2/(2 m))^m = e^(-x^2/2).
_LARGE_EXPONENT = 1e16


class Generator:
    """A standard density q(x) that depends on |x| only, at the parameters of a batch.

    Families of vectors need `entropy`, `log_power_integral`, `log_mean_power` and the last four
    methods, those on the line all but the last four.

    Args:
        alpha: Entropic index (*batch), in the type of results.

    Attributes:
        edge: Half-width, or radius, of the support; infinite if it is the whole space.
        cuts: Fractions of `reach` between which the density is smooth: 0, where it may have a kink,
            and others beside it, which seldom coincide with the cuts of another density.
    """

    edge: Tensor | float = 1.0
    cuts: tuple[float, ...] = (-1.0, -0.5519, -0.2371, 0.0, 0.2371, 0.5519, 1.0)

    def __init__(self, alpha: Tensor) -> None:
        self.alpha = alpha

    def reach(self) -> Tensor | float:
        """Return the half-width of the interval on which quadrature integrates."""
        return self.edge * (1 - torch.finfo(self.alpha.dtype).eps)

    def rule(self, order: int) -> tuple[Tensor, Tensor]:
        """Return nodes and weights (2 order, *batch) for E[g(x)], one rule on each half."""
        # q is even: the rule on the upper half, and its mirror image. Ones give the batch shape.
        half_width = self.reach() * torch.ones_like(self.alpha)
        fraction, unit_weights = (
            x.reshape(order, *(1,) * self.alpha.dim()) for x in smooth_unit_rule(order, self.alpha)
        )
        right = half_width * fraction
        weights = half_width * unit_weights * torch.exp(self.log_density(right))
        return torch.cat([-right.flip(0), right]), torch.cat([weights.flip(0), weights])

    def log_density(self, x: Tensor) -> Tensor:
        """Return log q inside the support."""
        raise NotImplementedError

    def cdf(self, x: Tensor) -> Tensor:
        """Return the mass below x inside the support, relatively accurate in the lower tail."""
        raise NotImplementedError

    def log_cdf(self, x: Tensor) -> Tensor:
        """Return the logarithm of the mass below x <= 0 inside the support."""
        raise NotImplementedError

    def icdf(self, value: Tensor) -> Tensor:
        """Return quantiles of probabilities in (0, 1)."""
        raise NotImplementedError

    def moment(self, order: int) -> Tensor | float:
        """Return E[x^order] for even order."""
        raise NotImplementedError

    def sample(self, shape: Size) -> Tensor:
        """Draw x (*shape), differentiable in the parameters of q."""
        raise NotImplementedError

    def entropy(self) -> Tensor | float:
        """Return the Shannon entropy (*batch)."""
        raise NotImplementedError

    def log_power_integral(self, beta: Tensor | float) -> Tensor | float:
        r"""Return $\log \int q(x)^\beta dx$ (*batch)."""
        raise NotImplementedError

    def log_mean_power(self) -> Tensor | float:
        r"""Return $\log(\int q(x)^\alpha dx)/(\alpha - 1)$ (*batch)."""
        raise NotImplementedError

    def log_radial_density(self, square: Tensor) -> Tensor:
        """Return log q from |x|^2 inside the support."""
        raise NotImplementedError

    def sample_vectors(self, shape: Size) -> Tensor:
        """Draw x (*shape, D), differentiable in the parameters of q."""
        raise NotImplementedError

    def moments(self) -> tuple[Tensor, Tensor, Tensor]:
        r"""Return $c = E[x_1^2]$, $E[x_1^2 x_2^2]$ and $E[x_1^2 x_2^2] - c^2$, each (*batch)."""
        raise NotImplementedError

    def radial_rule(self, count: int) -> tuple[Tensor, Tensor]:
        """Return nodes and weights for |x|, (count, *batch), or (count,) if all agree."""
        raise NotImplementedError


class QuadratureGenerator(Generator):
    """A standard density on the line by its `log_density`; the rest by quadrature and root finding.

    That is accurate to rounding if the density is smooth inside each half of its support.
    """

    def cdf(self, x: Tensor) -> Tensor:
        fraction, weights = (y.reshape(-1, *(1,) * x.dim()) for y in smooth_unit_rule(64, x))
        size = torch.where(x < 0, -x, x)  # unlike abs, it has a slope at 0
        # The mass from |x| to the end of the support.
        width = (self.reach() - size).clamp_min(0)
        density = torch.exp(self.log_density(size + width * fraction))
        tail = width * (weights * density).sum(0)
        return torch.where(x < 0, tail, 1 - tail)

    def log_cdf(self, x: Tensor) -> Tensor:
        return log_positive(self.cdf(x))

    def icdf(self, value: Tensor) -> Tensor:
        # The quantile of the smaller tail, on the lower half; the other half by symmetry.
        lower = torch.where(value <= 0.5, value, 1 - value)
        lowest = -self.reach() * torch.ones_like(lower)

        def excess(x: Tensor) -> Tensor:
            """Return the mass below x beyond the wanted one."""
            return self.cdf(x) - lower

        x = increasing_root(excess, lowest, torch.zeros_like(lower))
        x = torch.where(lower == 0.5, 0.0, x)
        x = attach_root_gradient(x, excess, lambda x: torch.exp(self.log_density(x)))
        return torch.where(value <= 0.5, x, -x)

    def moment(self, order: int) -> Tensor | float:
        nodes, weights = self.rule(64)
        return (weights * nodes**order).sum(0) if order else 1.0

    def sample(self, shape: Size) -> Tensor:
        return self.icdf(_uniform(shape, self.alpha))

    def entropy(self) -> Tensor:
        nodes, weights = self.rule(64)
        return -(weights * self.log_density(nodes)).sum(0)

    def log_power_integral(self, beta: Tensor | float) -> Tensor:
        nodes, weights = self.rule(64)
        return torch.log((weights * torch.exp((beta - 1) * self.log_density(nodes))).sum(0))

    def log_mean_power(self) -> Tensor:
        return self.log_power_integral(self.alpha) / (self.alpha - 1)


class TruncatedPower(Generator):
    r"""$q(x) = C\,(1 - |x|^k)_+^m$ in D dimensions, with $m = 1/(\alpha - 1)$.

    $$C = \frac{k\,\Gamma(D/2)}{2 \pi^{D/2}\,\Gamma(a)}\,\frac{\Gamma(m + 1 + a)}{\Gamma(m + 1)},
    \qquad |x|^k \sim \mathrm{Beta}(a, m + 1), \quad a = D/k$$

    It is the prediction map of a score $-|x|^k/k$ and closed under escorts, which have the exponent
    $m\beta$ and the same support.

    Args:
        alpha: Entropic index above 1 (*batch).
        exponent: m if alpha is a number, for constants in float64; else None.
        dim: D.

    Attributes:
        order: k.
        exponent: m, a tensor (*batch) unless alpha is a number.
    """

    order: int

    def __init__(self, alpha: Tensor, exponent: float | None, dim: int = 1) -> None:
        super().__init__(alpha)
        self.dim = dim
        self.exponent = 1 / (alpha - 1) if exponent is None else exponent
        if exponent is not None and exponent <= _LOW_EXPONENT:
            # Even powers have no kink at the center.
            self.cuts = (-1.0, 1.0) if self.order == 2 and exponent <= 1 else (-1.0, 0.0, 1.0)

    @property
    def number(self) -> float | None:
        """The exponent if alpha is a number."""
        return None if isinstance(self.exponent, Tensor) else self.exponent

    @property
    def m(self) -> Tensor:
        """The exponent as a tensor (*batch)."""
        m = self.exponent
        return m if isinstance(m, Tensor) else torch.full_like(self.alpha, m)

    @property
    def shared_m(self) -> Tensor:
        """The exponent as a tensor (*batch), or one of no axes if alpha is a number."""
        return torch.as_tensor(self.exponent, dtype=self.alpha.dtype, device=self.alpha.device)

    def reach(self) -> Tensor:
        # The radius r with (1 - r^k)^m = e^-tail.
        tail = LOG_TAIL.get(self.alpha.dtype, 40.0)
        power = -torch.expm1(-tail / positive(self.m.detach()))  # r^k
        return (power ** (1 / self.order)).clamp(max=1 - torch.finfo(power.dtype).eps)

    def log_constant(self) -> Tensor:
        """Return log C: in float64 if m is a number, else differentiable in m."""
        a, m = self.dim / self.order, self.exponent
        if isinstance(m, Tensor):
            return log_gamma_ratio(m + 1, a) + self._log_factor()
        return torch.full_like(self.alpha, _log_gamma_ratio(m + 1, a) + self._log_factor())

    def _log_factor(self) -> float:
        """Return the terms of log C that do not depend on m."""
        k, dim = self.order, self.dim
        log_gamma = math.lgamma(dim / 2) - math.lgamma(dim / k)
        return math.log(k / 2) + log_gamma - 0.5 * dim * math.log(math.pi)

    def log_density_of_power(self, power: Tensor) -> Tensor:
        r"""Return $\log C + m \log(1 - |x|^k)$ from $|x|^k$."""
        return self.log_constant() + self.m * torch.log1p(-power)

    def moment(self, order: int) -> Tensor:
        # |x|^k ~ Beta(a, m + 1): E (|x|^k)^j is a ratio of rising factorials (a)_j / (a + m + 1)_j.
        total, a, m = torch.ones_like(self.alpha), 1 / self.order, self.m
        for j in range(order // self.order):
            total = total * (a + j) / (a + m + 1 + j)
        return total

    def entropy(self) -> Tensor:
        # -E log q, and E log(1 - |x|^k) = digamma(m + 1) - digamma(m + 1 + a).
        m = self.m
        return m * digamma_difference(m + 1, self.dim / self.order) - self.log_constant()

    def log_power_integral(self, beta: Tensor | float) -> Tensor:
        # int q^beta = C(m)^beta / C(m beta), with the constant of either exponent.
        exponent = self.m * beta
        log_constant = log_gamma_ratio(exponent + 1, self.dim / self.order) + self._log_factor()
        return beta * self.log_constant() - log_constant

    def log_mean_power(self) -> Tensor:
        # E[(q/C)^(alpha - 1)] = 1 - E|x|^k.
        m = self.m
        return self.log_constant() + m * torch.log1p(-1 / (1 + (m + 1) * self.order / self.dim))

    def radius(self, log_det: Tensor) -> Tensor:
        """Return the half-width of a prediction map divided by the scale of its score.

        Args:
            log_det: The logarithm of the determinant of that scale (*batch).
        """
        # (s/sigma)^(km + D) = C (km)^m / sigma^D, from C (1 - |x|^k)^m / s^D = [(f - tau)/m]^m.
        m, km = self.m, self.order * self.m
        log_c = self.log_constant() + torch.xlogy(m, positive(km))
        return torch.exp((log_c - log_det) / (km + self.dim))

    def inverse_radius(self, log_det: Tensor) -> Tensor:
        """Return the scale of a score divided by the half-width of its prediction map.

        Args:
            log_det: The logarithm of the determinant of that half-width (*batch).
        """
        # As in `radius`, (s/sigma)^(km) = C (km)^m / s^D.
        km = self.order * positive(self.m)
        log_radius = (self.log_constant() - log_det) / km + km.log() / self.order
        return torch.exp(-log_radius)

    def escort_alpha(self, beta: Tensor | float | None) -> Tensor | float:
        """Return the alpha of the member with exponent m beta, a number if both are numbers."""
        require_power(beta, self.alpha.shape)
        rule = "such that the escort's exponent beta/(alpha - 1) is at least 0"
        m = self.exponent
        if not isinstance(m, Tensor) and not isinstance(beta, Tensor):
            # m (2 - alpha) = m - 1, without the rounding of alpha.
            number = m - 1 if beta is None else m * beta
            if number < 0:
                raise ValueError(f"beta must be {rule}, got an exponent of {number}")
            return alpha_of(number)
        exponent = self.m - 1 if beta is None else self.m * beta
        require(exponent >= 0, "beta", rule, 2 - self.alpha if beta is None else beta)
        return torch.where(exponent > 0, 1 + 1 / positive(exponent), math.inf)


class Parabola(TruncatedPower):
    """Powers of a truncated parabola on the line, or of a truncated paraboloid: k = 2."""

    order = 2

    def log_density(self, x: Tensor) -> Tensor:
        return self.log_density_of_power(x.square())

    def log_radial_density(self, square: Tensor) -> Tensor:
        return self.log_density_of_power(square)

    def cdf(self, x: Tensor) -> Tensor:
        if self.number == 1:
            # The cubic as a product, relatively accurate next to the edge.
            side = torch.where(x < 0, 1 + x, 1 - x)
            tail = side.square() * (3 - side) / 4
        else:
            # Where, not abs: the slope at 0 is the density's.
            tail = 0.5 * torch.exp(self._log_tail(torch.where(x < 0, -x, x)))
        return torch.where(x < 0, tail, 1 - tail)

    def log_cdf(self, x: Tensor) -> Tensor:
        if self.number == 1:
            return log_positive(self.cdf(x))
        return self._log_tail(-x) - math.log(2)

    def icdf(self, value: Tensor) -> Tensor:
        tail = torch.where(value < 0.5, value, 1 - value)
        if self.number == 1:
            # The root x = 2 cos((pi + angle)/3) of x^3 - 3 x + 2 = 4 tail; as a product 1 - x is
            # accurate next to the edge. At the center x is 0 exactly.
            angle = 2 * torch.asin(tail.sqrt())
            side = 4 * torch.sin(angle / 6) * torch.cos((torch.pi - angle) / 6)
            x = torch.where(tail == 0.5, (0.5 - tail) * (4 / 3), 1 - side)
            return torch.where(value < 0.5, -x, x)
        x = self._radius_near(tail.detach())
        log_tail = torch.log(2 * tail)
        # Steps of fourth order: two digits become about eight, and then all.
        for _ in range(2):
            x = self._radius_of_tail(x, log_tail)
        return torch.where(value < 0.5, -x, x)

    def _radius_near(self, tail: Tensor) -> Tensor:
        r"""Return |x| to about two digits for a tail of at most one half, from a normal quantile.

        For its square $s$, $-2 (m + 1) \log(1 - x^2)$ is $s$ and a little more: $s/(4 (m + 1))$ at
        the center, and $\log(s/(2 (m + 1)))$ next to the edge.
        """
        b = self.m.detach() + 1
        s = torch.special.ndtri(tail.clamp_min(torch.finfo(tail.dtype).tiny)).square()
        ratio = s / (4 * b)
        correction = torch.log1p(ratio * (1 + ratio) / (1 + 0.5 * ratio))
        return torch.sqrt(-torch.expm1(-(s + correction) / (2 * b)))

    def sample(self, shape: Size) -> Tensor:
        if self.number == 1:
            return self.icdf(_uniform(shape, self.alpha))
        return self.sample_vectors(shape).squeeze(-1)

    def sample_vectors(self, shape: Size) -> Tensor:
        r"""Draw x (*shape, D), differentiable in alpha by implicit reparameterization.

        References:
            Figurnov et al. (2018), Implicit Reparameterization Gradients. arXiv:1805.08498
        """
        dtype, device = self.alpha.dtype, self.alpha.device
        with torch.no_grad():
            z = torch.randn(*shape, self.dim, dtype=dtype, device=device)
            # |x|^2 ~ Beta(D/2, m + 1) is a ratio of gamma variables, kept off the edge.
            squares = z.square().sum(-1)
            gamma = 2 * torch._standard_gamma((self.m + 1).expand(shape))
            gamma = torch.maximum(gamma, 4 * torch.finfo(dtype).eps * squares)
            x = z * torch.rsqrt(squares + gamma).unsqueeze(-1)
        if self.alpha.requires_grad and torch.is_grad_enabled():
            radius = (squares / (squares + gamma)).sqrt().clamp_min(torch.finfo(dtype).tiny)
            # The same number, with the derivatives in alpha of the radius of a given tail.
            moved = self._radius_of_tail(radius)
            x = x * (moved / radius).unsqueeze(-1)
        return x

    def moments(self) -> tuple[Tensor, Tensor, Tensor]:
        # With b = D/2 + m + 1, E[x_1^2] = 1/(2 b) and E[x_1^2 x_2^2] = 1/(4 b (b + 1)).
        total = self.dim + 2 + 2 * self.m
        fourth = 1 / (total * (total + 2))
        return 1 / total, fourth, -2 * fourth / total

    def radial_rule(self, count: int) -> tuple[Tensor, Tensor]:
        return radial_rule(count, self.dim, self.shared_m)

    def _log_tail(self, radius: Tensor) -> Tensor:
        """Return log P(|x| > radius)."""
        return log_ball_tail(radius, self.shared_m, self.dim)

    def _radius_of_tail(self, radius: Tensor, log_tail: Tensor | None = None) -> Tensor:
        """Improve a radius, near the one at which log P(|x| > radius) is `log_tail`.

        The default is the tail of the radius itself, which adds derivatives only. It is one step of
        fourth order, by the derivatives of the logarithm; the result has the first two derivatives
        of the solution in alpha and `log_tail`.
        """
        edge = 1 - torch.finfo(radius.dtype).eps / 2
        radius = radius.detach().clamp(max=edge)
        side, m, dim = (1 - radius) * (1 + radius), self.m, self.dim
        log_mass = self._log_tail(radius)
        log_surface = math.log(2) + 0.5 * dim * math.log(math.pi) - math.lgamma(dim / 2)
        log_density = self.log_density_of_power(radius.square()) + log_surface
        if dim > 1:
            log_density = log_density + (dim - 1) * radius.log()
        # The derivative of -log P(|x| > radius) in the radius.
        hazard = torch.exp(log_density - log_mass)
        step = (log_mass - (log_mass.detach() if log_tail is None else log_tail)) / hazard
        # Derivatives of the log density in -radius, and from them the ratios of the second and
        # third derivative of the log tail to the first.
        rise, bend = 2 * m * radius / side, -2 * m * (1 + radius.square()) / side.square()
        if dim > 1:
            rise, bend = rise - (dim - 1) / radius, bend - (dim - 1) / radius.square()
        second = rise - hazard
        third = second.square() / 3 - (bend - hazard * second) / 6
        # The Taylor polynomial of the inverse function, to the third power of Newton's step.
        moved = radius + step * (1 + step * (second / 2 + step * third))
        # The clamp changes the value, but not the derivatives.
        return moved + (moved.detach().clamp(max=edge) - moved.detach())


class Cone(TruncatedPower):
    """Powers of a triangular density on the line: k = 1."""

    order = 1

    def log_density(self, x: Tensor) -> Tensor:
        return self.log_density_of_power(x.abs())

    def cdf(self, x: Tensor) -> Tensor:
        # Where, not abs: the slope at 0 is the density's.
        tail = self.log_cdf(torch.where(x < 0, x, -x)).exp()
        return torch.where(x < 0, tail, 1 - tail)

    def log_cdf(self, x: Tensor) -> Tensor:
        return (self.m + 1) * torch.log1p(x) - math.log(2)

    def icdf(self, value: Tensor) -> Tensor:
        tail = torch.where(value < 0.5, value, 1 - value)
        x = torch.expm1(torch.log(2 * tail) / (self.m + 1))
        return torch.where(value < 0.5, x, -x)

    def sample(self, shape: Size) -> Tensor:
        return self.icdf(_uniform(shape, self.alpha))


class ExponentialPower(Generator):
    r"""$q \propto e^{-|x|^k/k}$ in D dimensions, the prediction maps at $\alpha = 1$.

    The escort multiplies the scale by $\beta^{-1/k}$.

    Args:
        alpha: Ones (*batch).
        dim: D.
    """

    order: int
    edge = math.inf

    def __init__(self, alpha: Tensor, dim: int = 1) -> None:
        super().__init__(alpha)
        self.dim = dim

    def reach(self) -> float:
        return math.pow(self.order * LOG_TAIL.get(self.alpha.dtype, 40.0), 1 / self.order)

    def log_power_integral(self, beta: Tensor | float) -> Tensor:
        # q^beta is q at beta^(1/k) x times q(0)^(beta - 1).
        beta = beta * torch.ones_like(self.alpha)
        peak = self.log_peak()
        return (beta - 1) * peak - beta.log() * self.dim / self.order

    def log_peak(self) -> float:
        """Return the log density at 0."""
        raise NotImplementedError

    def entropy(self) -> float:
        # E|x|^k = D.
        return self.dim / self.order - self.log_peak()

    def log_mean_power(self) -> float:
        return -self.entropy()

    def escort_factor(self, beta: Tensor | float | None) -> Tensor:
        """Return the factor of the scale in the escort, or raise if `beta` is not positive."""
        require_power(beta, self.alpha.shape)
        power = torch.as_tensor(
            1.0 if beta is None else beta, dtype=self.alpha.dtype, device=self.alpha.device
        )
        require(power > 0, "beta", "positive for a density of unbounded support", power)
        return power ** (-1 / self.order)


class Gaussian(ExponentialPower):
    """The standard normal density on the line or in D dimensions: k = 2."""

    order = 2

    def log_peak(self) -> float:
        return -0.5 * self.dim * math.log(2 * math.pi)

    def log_density(self, x: Tensor) -> Tensor:
        return -0.5 * x.square() + self.log_peak()

    def log_radial_density(self, square: Tensor) -> Tensor:
        return -0.5 * square + self.log_peak()

    def cdf(self, x: Tensor) -> Tensor:
        return 0.5 * torch.erfc(-x * math.sqrt(0.5))

    def log_cdf(self, x: Tensor) -> Tensor:
        # Phi(x) = erfcx(-x/sqrt 2) e^(-x^2/2)/2. Torch's log_ndtr has no rule for vmap.
        return (torch.special.erfcx(-x * math.sqrt(0.5)) / 2).log() - x.square() / 2

    def icdf(self, value: Tensor) -> Tensor:
        return torch.special.ndtri(value)

    def moment(self, order: int) -> float:
        return float(math.prod(range(1, order, 2)))

    def sample(self, shape: Size) -> Tensor:
        return torch.randn(shape, dtype=self.alpha.dtype, device=self.alpha.device)

    def sample_vectors(self, shape: Size) -> Tensor:
        return self.sample(shape + (self.dim,))

    def moments(self) -> tuple[Tensor, Tensor, Tensor]:
        one = torch.ones_like(self.alpha)
        return one, one, torch.zeros_like(one)

    def radial_rule(self, count: int) -> tuple[Tensor, Tensor]:
        # The rule of a beta-Gaussian that is normal to rounding, in x sqrt(2 m).
        limit = torch.full((), _LARGE_EXPONENT, dtype=self.alpha.dtype, device=self.alpha.device)
        radii, weights = radial_rule(count, self.dim, limit)
        return radii * math.sqrt(2 * _LARGE_EXPONENT), weights


class Laplacian(ExponentialPower):
    """The standard Laplace density on the line: k = 1."""

    order = 1

    def log_peak(self) -> float:
        return -math.log(2)

    def log_density(self, x: Tensor) -> Tensor:
        return -x.abs() - math.log(2)

    def cdf(self, x: Tensor) -> Tensor:
        tail = 0.5 * torch.exp(torch.where(x < 0, x, -x))
        return torch.where(x < 0, tail, 1 - tail)

    def log_cdf(self, x: Tensor) -> Tensor:
        return x - math.log(2)

    def icdf(self, value: Tensor) -> Tensor:
        x = torch.log(2 * torch.where(value < 0.5, value, 1 - value))
        return torch.where(value < 0.5, x, -x)

    def moment(self, order: int) -> float:
        return float(math.factorial(order))

    def sample(self, shape: Size) -> Tensor:
        return self.icdf(_uniform(shape, self.alpha))


def _uniform(shape: Size, like: Tensor) -> Tensor:
    """Draw probabilities (*shape) above 0, whose quantiles are finite."""
    uniform = torch.rand(shape, dtype=like.dtype, device=like.device)
    return uniform.clamp_min(torch.finfo(like.dtype).eps / 2)


def exponent_of(alpha: Tensor | float) -> float | None:
    """Return m = 1/(alpha - 1) of a number above 1, an integer if it is one up to rounding."""
    if not isinstance(alpha, Real) or not alpha > 1:
        return None
    m = 1 / (alpha - 1)
    return float(round(m)) if abs(m - round(m)) <= 1e-12 * m else m


def alpha_of(m: float) -> float:
    """Return the alpha of an exponent, the inverse of `exponent_of`."""
    return math.inf if m == 0 else 1 + 1 / m


def unvalidated(family: Any, *args: Any, **options: Any) -> Any:
    """Construct a density of a family, with a check of alpha only.

    Args:
        family: The class.
        args: Arguments of its constructor.
        options: The same by name.
    """
    p = family(*args, **{**options, "validate_args": False})
    require(p.alpha > 1, "alpha", "greater than 1", p.alpha)
    return p


def positive(m: Tensor) -> Tensor:
    """Keep an exponent off zero, where alpha = inf would make 0/0 of a quantity with a limit."""
    return m.clamp_min(1e-30)


def _log_gamma_ratio(x: float, delta: float) -> float:
    """Return lgamma(x + delta) - lgamma(x) of numbers, by Stirling's series for large x."""
    if x < 1e4:
        return math.lgamma(x + delta) - math.lgamma(x)
    # From lgamma(x) = (x - 1/2) log x - x + 1/(12 x) + ..., without a difference of large terms.
    stirling = delta * math.log(x) + (x + delta - 0.5) * math.log1p(delta / x) - delta
    return stirling + (1 / (x + delta) - 1 / x) / 12
