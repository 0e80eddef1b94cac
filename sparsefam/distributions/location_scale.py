"""Location-scale families: the sparsemax density of any convex score."""

import math
from collections.abc import Callable

import torch
from torch import Size, Tensor

from .._numerics.modes import in_forward_mode
from .._numerics.roots import attach_root_gradient, increasing_root
from .._numerics.validation import broadcast_arguments, require, require_power
from ..scores import LocationScale as LocationScaleScore
from ..scores import require_elementwise, slope_of
from ._generators import QuadratureGenerator
from .beta_gaussian import BetaGaussian
from .symmetric import SymmetricDistribution

__all__ = ["LocationScale"]


class _Convex(QuadratureGenerator):
    """$q(x) = [g'(a) - g'(|x|)]_+$, whose mass is twice $a g'(a) - g(a) + g(0)$.

    Args:
        alpha: Twos (*batch).
        g: The convex function.
        root: The half-width a, a tensor without axes, at which the mass is 1.
        learned: Whether a is differentiated, in parameters of g.
    """

    def __init__(
        self, alpha: Tensor, g: Callable[[Tensor], Tensor], root: Tensor, learned: bool
    ) -> None:
        super().__init__(alpha)
        self._g = g

        def rate(a: Tensor) -> Tensor:
            # The derivative of a g'(a) - g(a) is a g''(a).
            return a * slope_of(lambda x: slope_of(g, x), a)

        if learned:
            root = attach_root_gradient(root, lambda a: _excess(g, a), rate)
        self.edge: Tensor = root

    def log_density(self, x: Tensor) -> Tensor:
        height = slope_of(self._g, self.edge) - slope_of(self._g, x.abs())
        positive = height > 0
        return torch.where(positive, torch.log(torch.where(positive, height, 1.0)), -math.inf)

    def sample(self, shape: Size) -> Tensor:
        """Return samples x of the given shape, roots of an equation for the mass from 0 to |x|."""
        # The mass between 0 and x, with the sign of x: it is |x| g'(a) - g(|x|) + g(0).
        signed_mass = torch.rand(shape, dtype=self.alpha.dtype, device=self.alpha.device) - 0.5
        edge = self.edge * (1 - torch.finfo(self.alpha.dtype).eps)
        zero = torch.zeros_like(edge)

        def excess(size: Tensor) -> Tensor:
            mass = size * slope_of(self._g, self.edge) - self._g(size) + self._g(zero)
            return mass - signed_mass.abs()

        def density(size: Tensor) -> Tensor:
            return torch.exp(self.log_density(size))

        size = increasing_root(
            excess, torch.zeros_like(signed_mass), edge * torch.ones_like(signed_mass)
        )
        size = torch.minimum(attach_root_gradient(size, excess, density), edge)
        return torch.where(signed_mass < 0, -size, size)


class LocationScale(SymmetricDistribution):
    r"""Sparsemax density of the score $-g'(|t - \mu|/\sigma)/\sigma$ for convex g.

    $$p(t) = \frac{1}{\sigma}\,[g'(a) - g'(|t - \mu|/\sigma)]_+, \qquad
    a\,g'(a) - g(a) + g(0) = \tfrac12$$

    The support is $[\mu - a\sigma, \mu + a\sigma]$. $g(x) = x^3/6$ gives the truncated parabola,
    $x^2/2$ the triangular density.

    Args:
        loc: Center $\mu$ (*batch).
        scale: $\sigma > 0$ (*batch): the score's scale, not the half-width of the support.
        g: Convex and continuously differentiable on $[0, \infty)$, elementwise in torch. It may
            hold parameters that require grad.
        validate_args: As in torch.distributions.

    Raises:
        ValueError: `loc` not finite, `scale` not positive and finite, shapes that do not
            broadcast, `g` not convex or without a solution a in (1e-18, 1e18).

    References:
        Martins et al. (2020), Sparse and Continuous Attention Mechanisms, eq. 13 and App. E.4.
        arXiv:2006.07214

    Examples:
        >>> LocationScale(0.0, 1.0, lambda x: x**2 / 2).variance
        tensor(0.1667)
    """

    def __init__(
        self,
        loc: Tensor | float,
        scale: Tensor | float,
        g: Callable[[Tensor], Tensor],
        *,
        validate_args: bool | None = None,
    ) -> None:
        (like,) = broadcast_arguments(scale=scale)
        require_elementwise(g, like)
        self.g = g
        self._root = _solve(g, torch.zeros((), dtype=like.dtype, device=like.device))
        with torch.enable_grad():
            self._learned = _excess(g, self._root).requires_grad
        SymmetricDistribution.__init__(self, loc, scale, 2.0, validate_args=validate_args)

    @property
    def generator(self) -> "_Convex":
        """The standard density q of x."""
        # The second derivative of g only where it is needed: torch.export cannot trace it, and the
        # first one in a process imports torch's compiler.
        learned = self._learned or in_forward_mode()
        return _Convex(self.alpha, self.g, self._root.to(self.loc.dtype), learned)

    def _peak_score(self) -> Tensor:
        return -slope_of(self.g, torch.zeros_like(self.loc)) / self.scale

    @property
    def score(self) -> LocationScaleScore:
        r"""$f(t) = -g'(|t - \mu|/\sigma)/\sigma$."""
        return LocationScaleScore(self.loc, self.scale, self.g)

    def escort(self, beta: Tensor | float | None = None) -> SymmetricDistribution:
        r"""Return the escort; default $\beta = 0$, the uniform distribution on the support.

        Raises:
            ValueError: `beta` other than 0 and 1: powers of this density are not in the family.
        """
        require_power(beta, self.batch_shape)
        if beta is None or beta == 0:
            half = self.generator.edge * self.scale
            return BetaGaussian(self.loc, half, math.inf, validate_args=self._validation)
        if beta == 1:
            return self
        raise ValueError(f"beta must be 0 or 1 for a location-scale family, got {beta}")


def _excess(g: Callable[[Tensor], Tensor], a: Tensor) -> Tensor:
    """Return a g'(a) - g(a) + g(0) - 1/2, which increases in a and is 0 at the half-width."""
    return a * slope_of(g, a) - g(a) + g(torch.zeros_like(a)) - 0.5


@torch.no_grad()
def _solve(g: Callable[[Tensor], Tensor], origin: Tensor) -> Tensor:
    """Return the half-width, a root of `_excess` in (2^-60, 2^60), without gradient.

    Args:
        g: The convex function.
        origin: A tensor without axes, whose dtype and device the result has.

    Raises:
        ValueError: No root, or g not convex between 0 and the root.
    """
    # The first power of two at or above the root, and the one before it, are a bracket.
    grid = 2.0 ** torch.arange(-60, 61, dtype=origin.dtype, device=origin.device)
    above = _excess(g, grid) >= 0
    require(above.any(), "g", "convex enough that a g'(a) - g(a) + g(0) reaches 1/2", g)
    upper = torch.where(above, grid, grid[-1]).amin()
    root = increasing_root(lambda a: _excess(g, a), upper / 2, upper)
    slopes = slope_of(g, root * torch.linspace(0, 1, 65, dtype=root.dtype, device=root.device))
    slack = 1e-6 * slopes.abs().max()
    require(slopes.diff() >= -slack, "g", "convex on [0, a]", g)
    return root
