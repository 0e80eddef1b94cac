"""Scores: the functions f that the regularized prediction map turns into densities."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.distributions import Distribution

from ._feature_maps import BasisFeatures, FeatureMap, Kernel, KernelFeatures, require_weights
from ._numerics.modes import branches_allowed, compiled, in_forward_mode
from ._numerics.validation import (
    broadcast_arguments,
    broadcast_location_scale,
    broadcast_shapes,
    cholesky_factor,
    require,
    require_scale_tril,
)
from .bases import Basis

__all__ = [
    "AbsoluteDeviation",
    "BasisExpansion",
    "Finite",
    "KernelExpansion",
    "LocationScale",
    "LogDensity",
    "MultivariateQuadratic",
    "Quadratic",
    "Score",
    "slope_of",
]


class Score:
    """A function of locations, which `rpm` maps to a density."""

    def __call__(self, t: Tensor) -> Tensor:
        """Evaluate the score at locations t, broadcast against the parameters."""
        raise NotImplementedError


def _location_scale(name: str, loc: Tensor | float, scale: Tensor | float) -> tuple[Tensor, ...]:
    """Return a location and a scale as tensors (*batch), checked: finite, and the scale positive.

    The scale has the given name in messages.
    """
    loc, scale = broadcast_arguments(**{"loc": loc, name: scale})
    require(torch.isfinite(loc), "loc", "finite", loc)
    require(torch.isfinite(scale) & (scale > 0), name, "positive and finite", scale)
    return loc, scale


class Quadratic(Score):
    r"""$f(t) = -(t - \mu)^2/(2\sigma^2)$: Gaussian at alpha = 1, truncated parabola at alpha = 2.

    Args:
        loc: $\mu$ (*batch).
        sigma: $\sigma > 0$ (*batch).

    Raises:
        ValueError: `loc` not finite, `sigma` not positive and finite, shapes that do not broadcast.
    """

    def __init__(self, loc: Tensor | float, sigma: Tensor | float) -> None:
        self.loc, self.sigma = _location_scale("sigma", loc, sigma)

    def __call__(self, t: Tensor) -> Tensor:
        return -0.5 * ((t - self.loc) / self.sigma).square()


class MultivariateQuadratic(Score):
    r"""$f(t) = -\tfrac12 (t - \mu)^\top \Sigma^{-1} (t - \mu)$, where $\Sigma = L L^\top$.

    Gaussian at alpha = 1, truncated paraboloid at alpha = 2.

    Args:
        loc: $\mu$ (*batch, D).
        sigma_tril: $L$ (*batch, D, D), lower triangular with a positive diagonal.

    Raises:
        ValueError: `loc` not finite, `sigma_tril` not a finite Cholesky factor of the same
            dimension, or batches that do not broadcast.

    Examples:
        >>> f = MultivariateQuadratic.from_sigma([0.0, 0.0], torch.tensor([[4.0, 0.0], [0.0, 1.0]]))
        >>> f(torch.tensor([[2.0, 0.0], [0.0, 2.0]]))
        tensor([-0.5000, -2.0000])
    """

    def __init__(self, loc: Tensor | Sequence[float], sigma_tril: Tensor) -> None:
        self.loc, self.sigma_tril = broadcast_location_scale(loc=loc, sigma_tril=sigma_tril)
        require(torch.isfinite(self.loc), "loc", "finite", self.loc)
        require_scale_tril("sigma_tril", self.sigma_tril)

    @classmethod
    def from_sigma(cls, loc: Tensor | Sequence[float], sigma: Tensor) -> "MultivariateQuadratic":
        r"""Make the score from $\Sigma$ (*batch, D, D).

        Raises:
            ValueError: `sigma` not square, finite, symmetric and positive definite to rounding.
        """
        loc, sigma = broadcast_location_scale(loc=loc, sigma=sigma)
        return cls(loc, cholesky_factor("sigma", sigma))

    @property
    def sigma(self) -> Tensor:
        r"""$\Sigma$ (*batch, D, D)."""
        return self.sigma_tril @ self.sigma_tril.mT

    def __call__(self, t: Tensor) -> Tensor:
        """Evaluate the score at locations t (..., D)."""
        size = self.loc.shape[-1]
        if t.shape[-1:] != (size,):
            raise ValueError(f"t must have shape (..., {size}), got {tuple(t.shape)}")
        # (t - mu)' Sigma^-1 (t - mu) = |L^-1 (t - mu)|^2.
        offset = (t - self.loc).unsqueeze(-1)
        u: Tensor = torch.linalg.solve_triangular(self.sigma_tril.to(offset), offset, upper=False)
        return -0.5 * u.square().sum((-2, -1))


class AbsoluteDeviation(Score):
    r"""$f(t) = -|t - \mu|/b$: Laplace at alpha = 1, triangular at alpha = 2.

    Args:
        loc: $\mu$ (*batch).
        b: $b > 0$ (*batch).

    Raises:
        ValueError: `loc` not finite, `b` not positive and finite, shapes that do not broadcast.
    """

    def __init__(self, loc: Tensor | float, b: Tensor | float) -> None:
        self.loc, self.b = _location_scale("b", loc, b)

    def __call__(self, t: Tensor) -> Tensor:
        return -(t - self.loc).abs() / self.b


class LocationScale(Score):
    r"""$f(t) = -g'(|t - \mu|/\sigma)/\sigma$ for convex g, at alpha = 2.

    Args:
        loc: $\mu$ (*batch).
        scale: $\sigma > 0$ (*batch).
        g: Convex, differentiable on $[0, \infty)$, elementwise in torch.

    References:
        Martins et al. (2020), Sparse and Continuous Attention Mechanisms, eq. 13.
    """

    def __init__(
        self, loc: Tensor | float, scale: Tensor | float, g: Callable[[Tensor], Tensor]
    ) -> None:
        self.loc, self.scale = _location_scale("scale", loc, scale)
        require_elementwise(g, self.scale)
        self.g = g

    def __call__(self, t: Tensor) -> Tensor:
        return -slope_of(self.g, (t - self.loc).abs() / self.scale) / self.scale


class FeatureExpansion(Score):
    r"""$f(t) = \sum_i w_i\,\phi_i(t)$ for functions $\phi_i$: kernels, or functions of a basis.

    Attributes:
        weights: $w$ (*batch, I).
        features: The functions.
    """

    def __init__(self, weights: Tensor, features: FeatureMap) -> None:
        require_weights(weights, features)
        require(torch.isfinite(weights), "weights", "finite", weights)
        self.weights, self.features = weights, features

    def __call__(self, t: Tensor) -> Tensor:
        """Evaluate the score at locations t (*S, *batch[, D]), broadcast against the batch."""
        batch = broadcast_shapes(self.weights.shape[:-1], self.features.batch)
        located = t if self.features.dim > 1 else t.unsqueeze(-1)
        # Functions are computed in float64, their sums in the wider dtype of weights and locations.
        dtype = torch.promote_types(self.weights.dtype, t.dtype)
        return self.features.score(self.weights.to(dtype), located, batch)


class KernelExpansion(FeatureExpansion):
    r"""$f(t) = \sum_i w_i\, k(t, t_i)$, an element of the kernel's Hilbert space.

    Args:
        weights: $w$ (*batch, I).
        inducing_points: $t_i$: (I,) or (I, 1) for numbers, (I, D) for vectors; (*batch, I, D) if
            they differ in the batch.
        kernel: Maps float64 matrices (n, D) and (m, D) to (n, m).

    Raises:
        ValueError: `weights` or `inducing_points` that are not floating tensors, weights that are
            not finite, or different numbers of weights and inducing points.

    References:
        Moreno et al. (2021), Kernel Deformed Exponential Families for Sparse Continuous Attention,
        section 4.
    """

    def __init__(self, weights: Tensor, inducing_points: Tensor, kernel: Kernel) -> None:
        super().__init__(weights, KernelFeatures(inducing_points, kernel))
        self.inducing_points, self.kernel = inducing_points, kernel


class BasisExpansion(FeatureExpansion):
    r"""$f(t) = \sum_j w_j\,\psi_j(t)$ for the functions of a basis.

    Args:
        weights: $w$ (*batch, N).
        basis: The basis; functions of numbers or of vectors.

    Raises:
        ValueError: Weights that are not a floating tensor, not finite, or not one number for each
            function; not a basis.

    References:
        Martins et al. (2020), Sparse and Continuous Attention Mechanisms, Def. 1 with
        $f(t) = \theta^\top \phi(t)$.
    """

    def __init__(self, weights: Tensor, basis: Basis) -> None:
        super().__init__(weights, BasisFeatures(basis))
        self.basis = basis


class Finite(Score):
    """Scores of finitely many categories, for softmax, sparsemax and entmax.

    Args:
        scores: (*batch, K); -inf excludes a category. At least one of each row is finite.

    Raises:
        ValueError: No category, scores that are complex, NaN or +inf, or a row of -inf.
    """

    def __init__(self, scores: Tensor) -> None:
        if not isinstance(scores, Tensor) or scores.is_complex():
            raise ValueError(f"scores must be a tensor of real numbers, got {scores!r}")
        if scores.dim() < 1 or scores.shape[-1] < 1:
            raise ValueError(f"scores must have shape (*batch, K >= 1), got {tuple(scores.shape)}")
        require(scores < float("inf"), "scores", "numbers below +inf", scores)
        alive = (scores > -float("inf")).any(-1)
        require(alive, "scores", "finite for at least one category of each row", scores)
        self.scores = scores

    def __call__(self, t: Tensor) -> Tensor:
        """Return the scores of categories t, integers of any shape, (*batch, *t.shape)."""
        return self.scores[..., t]


class LogDensity(Score):
    r"""$f(t) = \log p(t)$ of a density p, which is its prediction map at alpha = 1.

    Args:
        density: The density p.

    Raises:
        ValueError: `density` is not a distribution.
    """

    def __init__(self, density: Distribution) -> None:
        if not isinstance(density, Distribution):
            raise ValueError(f"density must be a distribution, got {density!r}")
        self.density = density

    def __call__(self, t: Tensor) -> Tensor:
        return self.density.log_prob(t)


def require_elementwise(g: Callable[[Tensor], Tensor], like: Tensor) -> None:
    """Raise ValueError unless g maps a tensor (2,) to a tensor (2,), with a derivative.

    The tensor has the dtype and device of another one, `like`.
    """
    if compiled():
        return
    try:
        x = torch.ones(2, dtype=like.dtype, device=like.device, requires_grad=True)
        fits = g(x).shape == x.shape == slope_of(g, x).shape
    except (RuntimeError, TypeError, AttributeError):
        fits = False
    if not fits:
        raise ValueError(f"g must be a callable on tensors, elementwise, got {g!r}")


def slope_of(g: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return the derivative of an elementwise function at x, with the shape of x.

    It may be differentiated in x and in the parameters of g.
    """
    forward = not branches_allowed() or in_forward_mode()
    if forward or torch.is_inference_mode_enabled():
        return torch.func.jvp(g, (x,), (torch.ones_like(x),))[1]
    # In plain eager mode the first call of `torch.func`, or of `grad` with `grad_outputs`, would
    # import torch's compiler and sympy, which takes a second. As g is elementwise, the gradient of
    # the sum of its values holds the slope of each.
    needs_graph = torch.is_grad_enabled() and g(x).requires_grad
    with torch.enable_grad():
        # A new tensor, as g may also depend on x by its parameters, which are constant here.
        at = x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(g(at).sum(), at, create_graph=needs_graph)
    return slope
