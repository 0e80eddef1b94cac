"""Multivariate densities with ellipsoidal level sets, in u = scale_tril^-1 (t - loc)."""

import math
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import Any, ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import constraints
from torch.distributions.constraints import Constraint
from torch.types import _size
from typing_extensions import Self

from .._numerics.ellipsoid import REPLICATES, direction_rule, radial_count
from .._numerics.validation import (
    broadcast_arguments,
    broadcast_location_scale,
    cholesky_factor,
    require,
    require_integer,
    require_scale_tril,
    require_shape,
)
from ..bases import Basis
from ..scores import MultivariateQuadratic
from ..supports import Ellipsoid, finite_scale_tril, finite_vector
from ._covariance import elliptical_covariance
from ._generators import Gaussian, Parabola, alpha_of, exponent_of, unvalidated
from .base import StandardizedDistribution

__all__ = [
    "EllipticalDistribution",
    "MultivariateBetaGaussian",
    "MultivariateNormal",
    "TruncatedParaboloid",
]


# The recurrence behind the radii of a normal density overflows at higher orders.
_LARGEST_ORDER = 1200


def _lower_factor(rows: Tensor) -> Tensor:
    """Return the Cholesky factor (*batch, k, k) of rows rows' for rows (*batch, k, D).

    With rows' = Q R it is R', up to the signs of its columns. This keeps the accuracy that the
    product rows rows' would halve.
    """
    _, upper = torch.linalg.qr(rows.mT)
    sign = torch.where(upper.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(upper.dtype)
    return (upper * sign.unsqueeze(-1)).mT


def _inverse_factor(factor: Tensor) -> Tensor:
    """Return the Cholesky factor of the inverse of factor factor', both (*batch, D, D)."""
    # (L L')^-1 = L^-T L^-1, in the rows of L^-T.
    unit = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    inverse = torch.linalg.solve_triangular(factor, unit.expand_as(factor), upper=False)
    return _lower_factor(inverse.mT)


class EllipticalDistribution(StandardizedDistribution):
    r"""Density $p(t) = q(|L^{-1}(t - \mu)|^2)/|L|$ of vectors.

    Args:
        loc: Center $\mu$ (*batch, D).
        scale_tril: $L$ (*batch, D, D), lower triangular with a positive diagonal.
        alpha: Entropic index (*batch).
        validate_args: As in torch.distributions.

    Raises:
        ValueError: `loc` not a finite vector, `scale_tril` not square, of another dimension than
            `loc`, not finite, not lower triangular, singular or with a negative diagonal, shapes
            that do not broadcast.
    """

    arg_constraints = {"loc": finite_vector, "scale_tril": finite_scale_tril}
    scale_tril: Tensor

    def __init__(
        self,
        loc: Tensor,
        scale_tril: Tensor,
        alpha: Tensor | float,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.loc, self.scale_tril, self.alpha = broadcast_location_scale(
            loc=loc, scale_tril=scale_tril, alpha=alpha
        )
        # int(), as torch.jit traces shapes as tensors.
        event = Size((int(self.loc.shape[-1]),))
        try:
            StandardizedDistribution.__init__(self, self.alpha.shape, event, validate_args)
        except ValueError:
            # Its message names the rule that is broken.
            require_scale_tril("scale_tril", self.scale_tril)
            raise

    @classmethod
    def from_sigma_tril(cls, loc: Tensor, sigma_tril: Tensor, *args: Any, **options: Any) -> Self:
        r"""Construct from the lower Cholesky factor (*batch, D, D) of the score's matrix.

        Further arguments are the same as for `from_sigma`.
        """
        raise NotImplementedError

    @classmethod
    def from_sigma(cls, loc: Tensor, sigma: Tensor, *args: Any, **options: Any) -> Self:
        r"""Construct from the score's matrix: $f(t) = -(t - \mu)^\top \Sigma^{-1} (t - \mu)/2$.

        Args:
            loc: $\mu$ (*batch, D).
            sigma: $\Sigma$ (*batch, D, D).
            args: `alpha`, if the class takes it.
            options: `alpha` and `validate_args` by name.

        Raises:
            ValueError: `sigma` not symmetric and positive definite.
        """
        loc, sigma = broadcast_location_scale(loc=loc, sigma=sigma)
        return cls.from_sigma_tril(loc, cholesky_factor("sigma", sigma), *args, **options)

    @classmethod
    def from_canonical(cls, theta1: Tensor, theta2: Tensor, *args: Any, **options: Any) -> Self:
        r"""Construct from $\theta = [\Sigma^{-1}\mu, -\Sigma^{-1}/2]$, the score's coefficients.

        Args:
            theta1: $\Sigma^{-1}\mu$ (*batch, D).
            theta2: $-\Sigma^{-1}/2$ (*batch, D, D).
            args: As for `from_sigma`.
            options: As for `from_sigma`.

        Raises:
            ValueError: `theta2` not symmetric and negative definite.
        """
        theta1, theta2 = broadcast_location_scale(theta1=theta1, theta2=theta2)
        sigma_tril = _inverse_factor(cholesky_factor("-2 theta2", -2 * theta2))
        loc = (sigma_tril @ (sigma_tril.mT @ theta1.unsqueeze(-1))).squeeze(-1)
        return cls.from_sigma_tril(loc, sigma_tril, *args, **options)

    @property
    def sigma_tril(self) -> Tensor:
        r"""Lower factor of the score's matrix $\Sigma$ (*batch, D, D)."""
        raise NotImplementedError

    @property
    def sigma(self) -> Tensor:
        r"""The score's matrix $\Sigma$ (*batch, D, D)."""
        return self.sigma_tril @ self.sigma_tril.mT

    @property
    def score(self) -> MultivariateQuadratic:
        r"""$f(t) = -(t - \mu)^\top \Sigma^{-1} (t - \mu)/2$."""
        return MultivariateQuadratic(self.loc, self.sigma_tril)

    def _of_coordinates(
        self, loc: Tensor, scale_tril: Tensor, lost: int
    ) -> "EllipticalDistribution":
        """Return the density of k coordinates, a marginal or a conditional one.

        Args:
            loc: Its center (*batch, k).
            scale_tril: Its factor (*batch, k, k).
            lost: The number of coordinates over which it has been integrated.
        """
        raise NotImplementedError

    def _log_det(self) -> Tensor:
        """Return log|L| (*batch)."""
        return self.scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def _mapped(self, function: Callable[[Tensor], Tensor], vectors: Tensor) -> Tensor:
        """Apply a function of matrices (*batch, D, Q) to vectors (*sample, *batch, D).

        Samples become columns, so that `scale_tril` is not copied for each sample. Vectors that
        broadcast the batch are passed as they are.
        """
        shape = self.batch_shape + self.event_shape
        if vectors.shape[vectors.dim() - len(shape) :] != shape:
            return function(vectors.unsqueeze(-1)).squeeze(-1)
        count = math.prod(vectors.shape[: vectors.dim() - len(shape)])
        columns = vectors.reshape(count, *shape).movedim(0, -1)
        return function(columns).movedim(-1, 0).reshape(vectors.shape)

    def _standardize(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return |u|^2 (*sample, *batch), 0 off the support, and which values are inside."""
        offset = value - self.loc
        # |(L u)_i| is at most the sum of row i of |L| if |u| <= 1. Points outside this bounding box
        # might overflow. The edge is 1 or infinite, and so is its square.
        box = self.generator.edge * self.scale_tril.abs().sum(-1)
        near = (torch.isfinite(offset) & (offset.abs() <= box)).all(-1)
        u = self._mapped(
            lambda x: torch.linalg.solve_triangular(self.scale_tril, x, upper=False),
            torch.where(near.unsqueeze(-1), offset, 0.0),
        )
        squared = u.square().sum(-1)
        inside = near & (squared < self.generator.edge)
        return torch.where(inside, squared, 0.0), inside

    def _log_standard(self, size: Tensor) -> Tensor:
        return self.generator.log_radial_density(size)

    @constraints.dependent_property(is_discrete=False, event_dim=1)
    def support(self) -> Constraint:
        """The ellipsoid |u| <= 1."""
        return Ellipsoid(self.loc, self.scale_tril)

    @property
    def covariance_matrix(self) -> Tensor:
        r"""$c L L^\top$ with $c = E[u_1^2]$, (*batch, D, D)."""
        return self.generator.moments()[0][..., None, None] * (self.scale_tril @ self.scale_tril.mT)

    @property
    def precision_matrix(self) -> Tensor:
        """Inverse of the covariance matrix (*batch, D, D)."""
        unit = torch.eye(self.event_shape[0], dtype=self.loc.dtype, device=self.loc.device)
        # (c L L')^-1 = L^-T L^-1 / c.
        inverse = torch.linalg.solve_triangular(self.scale_tril, unit, upper=False)
        return inverse.mT @ inverse / self.generator.moments()[0][..., None, None]

    @property
    def variance(self) -> Tensor:
        """Variances of the coordinates (*batch, D)."""
        return self.generator.moments()[0].unsqueeze(-1) * self.scale_tril.square().sum(-1)

    def rsample(self, sample_shape: _size = Size()) -> Tensor:
        """Draw samples (*sample, *batch, D), differentiable in every parameter."""
        shape = require_shape("sample_shape", sample_shape)
        u = self.generator.sample_vectors(shape + self.batch_shape)
        return self.loc + self._mapped(lambda x: self.scale_tril @ x, u)

    def marginal(self, indices: int | Sequence[int]) -> "EllipticalDistribution":
        r"""Return the marginal distribution of some coordinates, in closed form.

        $$p(t_I) \propto (1 - v^\top v)_+^{m + (D - k)/2}, \qquad
        v = L_I^{-1}(t_I - \mu_I), \quad L_I L_I^\top = (L L^\top)_{II}$$

        for k coordinates. The marginal of a normal distribution is normal.

        Args:
            indices: The coordinates, in the order of the result; negative ones count from the end.

        Returns:
            A density of events of shape (k,).

        Raises:
            ValueError: No index, one that is out of range, or one given twice.

        References:
            Fang, Kotz and Ng (1990), Symmetric Multivariate and Related Distributions.
        """
        kept = self._coordinates(indices)
        loc, scale_tril = self._rows(kept)
        return self._of_coordinates(loc, scale_tril, self.event_shape[0] - len(kept))

    def conditional(self, indices: int | Sequence[int], value: Tensor) -> "EllipticalDistribution":
        r"""Return the distribution of the other coordinates given some, in closed form.

        $$p(t_J \mid t_I) \propto (1 - w^\top w)_+^m, \qquad
        w = \frac{L_J^{-1}(t_J - \mu_J - L_{JI} v)}{\sqrt{1 - v^\top v}}, \quad
        v = L_I^{-1}(t_I - \mu_I)$$

        with the Cholesky factor $[L_I, 0; L_{JI}, L_J]$ of $L L^\top$ in the order I, J. The
        exponent, and so alpha, stays. A normal distribution has no root: its conditionals are
        normal.

        Args:
            indices: The coordinates with given values; negative ones count from the end.
            value: Their values (*batch, k) in the order of `indices`; batches broadcast.

        Returns:
            A density of events of shape (D - k,), in the order of this one's coordinates.

        Raises:
            ValueError: Indices as for `marginal`, or all of them; `value` of another shape, not
                finite, or outside the support.

        References:
            Cambanis, Huang and Simons (1981), On the theory of elliptically contoured
            distributions, Cor. 5. J. Multivariate Anal. 11.
        """
        given = self._coordinates(indices)
        others = [i for i in range(self.event_shape[0]) if i not in given]
        k = len(given)
        if not others:
            raise ValueError(f"indices must leave a coordinate to be unknown, got {indices}")
        if not isinstance(value, Tensor) or value.shape[-1:] != (k,):
            raise ValueError(f"value must be a tensor (*batch, {k}), got {value!r}")
        loc, factor = self._rows(given + others)
        value, center = broadcast_arguments(value=value, loc=loc[..., :k])
        offset = (value - center).unsqueeze(-1)
        v = torch.linalg.solve_triangular(factor[..., :k, :k], offset, upper=False)
        remainder = 1 - v.square().sum(-2, keepdim=True) / self.generator.edge
        if self._validate_args:
            require(remainder > 0, "value", "inside the support", value)
        center = loc[..., k:] + (factor[..., k:, :k] @ v).squeeze(-1)
        return self._of_coordinates(center, remainder.sqrt() * factor[..., k:, k:], 0)

    def _coordinates(self, indices: int | Sequence[int]) -> list[int]:
        """Return the coordinates that indices name as numbers from 0, or raise ValueError."""
        dim = self.event_shape[0]
        given = list(indices) if isinstance(indices, Iterable) else [indices]
        integral = all(isinstance(i, Integral) and not isinstance(i, bool) for i in given)
        kept = [int(i) % dim for i in given if -dim <= i < dim] if integral else []
        if not given or len(set(kept)) < len(given):
            rule = f"distinct integers from {-dim} to {dim - 1}"
            raise ValueError(f"indices must be {rule}, got {indices!r}")
        return kept

    def _rows(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        """Return the center and the Cholesky factor of some coordinates, in their order."""
        index = torch.tensor(indices, device=self.loc.device)
        rows = self.scale_tril.index_select(-2, index)
        return self.loc.index_select(-1, index), _lower_factor(rows)

    def quadrature(self, order: int = 64) -> tuple[Tensor, Tensor]:
        r"""Return nodes (Q, *batch, D) and weights (Q, *batch) with $\sum_q w_q g(t_q) \to E_p[g]$.

        A Gauss rule in the radius times directions. Up to three dimensions it is exact for
        polynomials of degree `order`; beyond, directions are quasi-random and the rule is exact to
        degree 3. `quadrature_error` estimates its error.

        Args:
            order: Degree of exactness, from 1 to 1200.

        Raises:
            ValueError: `order` out of range.

        References:
            Genz and Monahan (1999), A stochastic algorithm for high-dimensional integrals over
            unbounded regions with Gaussian weight. J. Comput. Appl. Math. 112.
        """
        return self._rule(order, 0)

    def _rule(self, order: int, more: int) -> tuple[Tensor, Tensor]:
        """Return the rule of `quadrature`, with a number of additional radii."""
        require_integer("order", order, 1, _LARGEST_ORDER)
        dim, batch = self.event_shape[0], self.batch_shape
        directions, direction_weights = direction_rule(dim, order, self.loc)
        radii, weights = (
            x.reshape(x.shape[0], *(x.shape[1:] or (1,) * len(batch)))
            for x in self.generator.radial_rule(radial_count(dim, order) + more)
        )
        # t = loc + r L d for radii r and directions d.
        steps = (directions @ self.scale_tril.mT).movedim(-2, 0).unsqueeze(1)
        nodes = self.loc + radii.unsqueeze(-1) * steps
        weights = direction_weights.reshape(-1, 1, *(1,) * len(batch)) * weights
        return nodes.flatten(0, 1), weights.expand(nodes.shape[:-1]).flatten(0, 1)

    def _node_count(self, order: int) -> int:
        dim = self.event_shape[0]
        return len(direction_rule(dim, order, self.loc)[1]) * radial_count(dim, order)

    def quadrature_error(self, psi: Basis | Callable[[Tensor], Tensor], order: int = 64) -> Tensor:
        if self.event_shape[0] <= 3:
            return super().quadrature_error(psi, order)
        self._check_function(psi)
        # Sums (R, *shape of `expect`) over the nodes of each replicate, which are neighbors.
        rough, fine = (
            self._weighted_values(psi, *self._rule(order, more))
            .unflatten(0, (REPLICATES, -1))
            .sum(1)
            for more in (0, 2)
        )
        # The integral is the sum of R replicates r_i, the mean of all R r_i: its standard error is
        # std(R r_i)/sqrt(R). Replicates share their radii, whose error their spread does not show.
        return math.sqrt(REPLICATES) * rough.std(0) + (fine - rough).sum(0).abs()

    def _covariance(self, phi: Basis, psi: Basis) -> Tensor:
        return elliptical_covariance(self, phi, psi)


class MultivariateBetaGaussian(EllipticalDistribution):
    r"""Power of a truncated paraboloid: the alpha-entmax counterpart of the normal.

    $$p(t) = \frac{\Gamma(m + 1 + D/2)}{\pi^{D/2}\,\Gamma(m + 1)\,|L|}\,(1 - u^\top u)_+^m, \qquad
    u = L^{-1}(t - \mu), \quad m = 1/(\alpha - 1)$$

    It is the prediction map of the score $-(t-\mu)^\top \Sigma^{-1} (t-\mu)/2$, whose $\Sigma$
    determines the ellipsoid $L L^\top = R^2 \Sigma$ of the support (`from_sigma`):
    $$R^{2m+D} = (2m)^m\, \frac{\Gamma(m + 1 + D/2)}{\pi^{D/2}\,\Gamma(m + 1)\,|\Sigma|^{1/2}}.$$
    As $\alpha \to 1$ at fixed $\Sigma$ it tends to the normal. $\alpha = 2$ is the truncated
    paraboloid, $\infty$ the uniform distribution on the ellipsoid. The covariance is
    $L L^\top/(D + 2m + 2)$. In one dimension it is `BetaGaussian`.

    Equivalent to Pearson's type II distribution: $|u|^2$ is `scipy.stats.beta(D / 2, m + 1)`, and
    $u/|u|$ is `scipy.stats.uniform_direction(D)`.

    Args:
        loc: Center $\mu$ (*batch, D).
        scale_tril: $L$ (*batch, D, D), lower triangular with a positive diagonal: it maps the unit
            ball onto the support.
        alpha: Entropic index in (1, inf], (*batch); it may require grad.
        validate_args: As in torch.distributions.

    Raises:
        ValueError: As `EllipticalDistribution`; `alpha` not above 1.

    References:
        Martins et al. (2022), Sparse Continuous Distributions and Fenchel-Young Losses. JMLR 23.
        arXiv:2108.01988

    Examples:
        >>> MultivariateBetaGaussian(torch.zeros(2), torch.eye(2), alpha=1.5).variance
        tensor([0.1250, 0.1250])
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "loc": finite_vector,
        "scale_tril": finite_scale_tril,
        "alpha": constraints.greater_than(1.0),
    }
    _fixed_exponent: float | None  # m, if alpha is a number

    def __init__(
        self,
        loc: Tensor,
        scale_tril: Tensor,
        alpha: Tensor | float,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self._fixed_exponent = exponent_of(alpha)
        EllipticalDistribution.__init__(self, loc, scale_tril, alpha, validate_args=validate_args)

    @property
    def generator(self) -> Parabola:
        """The standard density q of u."""
        return Parabola(self.alpha, self._fixed_exponent, self.event_shape[0])

    @classmethod
    def from_sigma_tril(cls, loc: Tensor, sigma_tril: Tensor, *args: Any, **options: Any) -> Self:
        loc, sigma_tril = broadcast_location_scale(loc=loc, sigma_tril=sigma_tril)
        require_scale_tril("sigma_tril", sigma_tril)
        # L is R times the factor of Sigma, and R depends on |Sigma|. `p` has the factor of Sigma in
        # place of L, and is made only to compute R.
        p = unvalidated(cls, loc, sigma_tril, *args, **options)
        return cls(
            p.loc,
            p.generator.radius(p._log_det())[..., None, None] * p.scale_tril,
            *args,
            **options,
        )

    @classmethod
    def from_moments(
        cls, mean: Tensor, covariance_matrix: Tensor, *args: Any, **options: Any
    ) -> Self:
        """Construct from mean (*batch, D) and covariance matrix (*batch, D, D).

        Further arguments are the same as for `from_sigma`.

        Raises:
            ValueError: `covariance_matrix` not symmetric and positive definite.
        """
        mean, covariance = broadcast_location_scale(mean=mean, covariance_matrix=covariance_matrix)
        factor = cholesky_factor("covariance_matrix", covariance)
        # The covariance is L L' times the first of `moments`. `p` has the factor of the covariance
        # in place of L, and is made only for its generator.
        p = unvalidated(cls, mean, factor, *args, **options)
        scale = p.generator.moments()[0].rsqrt()[..., None, None]
        return cls(p.loc, scale * p.scale_tril, *args, **options)

    @property
    def sigma_tril(self) -> Tensor:
        r"""Lower factor of $\Sigma$ (*batch, D, D); 0 or inf at alpha = inf."""
        factor = self.generator.inverse_radius(self._log_det())[..., None, None]
        # Zeros above the diagonal stay zero where the factor is infinite, instead of NaN.
        zero = (self.scale_tril == 0) & factor.isinf()
        return torch.where(zero, 0.0, self.scale_tril * factor)

    def escort(self, beta: Tensor | float | None = None) -> "MultivariateBetaGaussian":
        r"""Return the escort, whose exponent is $m\beta$; default $\beta = 2 - \alpha$.

        Raises:
            ValueError: A negative exponent (the default beta at alpha > 2 gives $m - 1 < 0$).
        """
        alpha = self.generator.escort_alpha(beta)
        return MultivariateBetaGaussian(
            self.loc, self.scale_tril, alpha, validate_args=self._validation
        )

    def _of_coordinates(
        self, loc: Tensor, scale_tril: Tensor, lost: int
    ) -> "MultivariateBetaGaussian":
        # Integrating (1 - |u|^2)^m over a coordinate raises the exponent by 1/2.
        alpha: Tensor | float = self.alpha
        if self._fixed_exponent is not None:
            alpha = alpha_of(self._fixed_exponent + lost / 2)
        elif lost:
            alpha = 1 + 1 / (self.generator.m + lost / 2)
        return MultivariateBetaGaussian(loc, scale_tril, alpha, validate_args=self._validation)


class TruncatedParaboloid(MultivariateBetaGaussian):
    r"""Truncated paraboloid: the sparsemax counterpart of the multivariate normal.

    $$p(t) = \frac{\Gamma(D/2 + 2)}{\pi^{D/2}\,|L|}\,(1 - u^\top u)_+, \qquad u = L^{-1}(t - \mu)$$

    The prediction map of $-(t-\mu)^\top \Sigma^{-1} (t-\mu)/2$ at $\alpha = 2$, with
    $L L^\top = R^2 \Sigma$ and $R^{D+2} = 2\,\Gamma(D/2 + 2)/(\pi^{D/2} |\Sigma|^{1/2})$.

    Equivalent to the Epanechnikov kernel in D dimensions.

    Args:
        loc: Center $\mu$ (*batch, D).
        scale_tril: $L$ (*batch, D, D), lower triangular with a positive diagonal: it maps the unit
            ball onto the support.
        validate_args: As in torch.distributions.

    Raises:
        ValueError: `loc` not a finite vector, `scale_tril` not square, of another dimension than
            `loc`, not finite, not lower triangular, singular or with a negative diagonal, batch
            shapes that do not broadcast.

    References:
        Martins et al. (2020), Sparse and Continuous Attention Mechanisms, eq. 11 and App. E.2.
        arXiv:2006.07214

    Examples:
        >>> import torch
        >>> TruncatedParaboloid(torch.zeros(2), torch.eye(2)).prob(torch.zeros(2))
        tensor(0.6366)
    """

    arg_constraints = EllipticalDistribution.arg_constraints

    def __init__(
        self, loc: Tensor, scale_tril: Tensor, *, validate_args: bool | None = None
    ) -> None:
        super().__init__(loc, scale_tril, 2.0, validate_args=validate_args)


class MultivariateNormal(EllipticalDistribution, torch.distributions.MultivariateNormal):
    r"""`torch.distributions.MultivariateNormal` with `expect`, `escort` and the rest.

    $$p(t) = \frac{1}{(2\pi)^{D/2}\,|L|}\, e^{-u^\top u/2}, \qquad u = L^{-1}(t - \mu)$$

    As torch's it takes one of three matrices, each (*batch, D, D).

    Equivalent to `scipy.stats.multivariate_normal(loc, covariance_matrix)`.

    Args:
        loc: Mean $\mu$ (*batch, D).
        covariance_matrix: $L L^\top$, symmetric and positive definite.
        precision_matrix: Its inverse.
        scale_tril: $L$, lower triangular with a positive diagonal.
        validate_args: As in torch.distributions.

    Raises:
        ValueError: Not exactly one matrix; `loc` not a finite vector; a matrix that is not square,
            of another dimension than `loc`, not finite, singular, or not as above; batch shapes
            that do not broadcast.

    References:
        Martins et al. (2020), Sparse and Continuous Attention Mechanisms, section 2.2.
        arXiv:2006.07214

    Examples:
        >>> MultivariateNormal(torch.zeros(2), scale_tril=torch.eye(2)).log_normalizer
        tensor(1.8379)
    """

    support = constraints.real_vector

    def __init__(
        self,
        loc: Tensor,
        covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None,
        *,
        validate_args: bool | None = None,
    ) -> None:
        matrices = (covariance_matrix, precision_matrix, scale_tril)
        names = ("covariance_matrix", "precision_matrix", "scale_tril")
        given = {k: x for k, x in zip(names, matrices, strict=True) if x is not None}
        if len(given) != 1:
            raise ValueError(f"exactly one of {', '.join(names)} must be given, got {list(given)}")
        if scale_tril is None:
            (name,) = given
            loc, matrix = broadcast_location_scale(loc=loc, **given)
            scale_tril = cholesky_factor(name, matrix)
            if precision_matrix is not None:
                scale_tril = _inverse_factor(scale_tril)
        EllipticalDistribution.__init__(self, loc, scale_tril, 1.0, validate_args=validate_args)

    @property
    def generator(self) -> Gaussian:
        """The standard density q of u."""
        return Gaussian(self.alpha, self.event_shape[0])

    @classmethod
    def from_sigma_tril(
        cls, loc: Tensor, sigma_tril: Tensor, *, validate_args: bool | None = None
    ) -> Self:
        r"""Construct from the lower factor of the score's matrix, which is `scale_tril`."""
        return cls(loc, scale_tril=sigma_tril, validate_args=validate_args)

    @classmethod
    def from_moments(
        cls, mean: Tensor, covariance_matrix: Tensor, *, validate_args: bool | None = None
    ) -> Self:
        """Construct from mean (*batch, D) and covariance matrix (*batch, D, D).

        Raises:
            ValueError: `covariance_matrix` not symmetric and positive definite.
        """
        mean, covariance = broadcast_location_scale(mean=mean, covariance_matrix=covariance_matrix)
        factor = cholesky_factor("covariance_matrix", covariance)
        return cls(mean, scale_tril=factor, validate_args=validate_args)

    @property
    def sigma_tril(self) -> Tensor:
        r"""Lower factor of $\Sigma$ (*batch, D, D), which is `scale_tril`."""
        return self.scale_tril

    def escort(self, beta: Tensor | float | None = None) -> "MultivariateNormal":
        r"""Return the escort, of `scale_tril` times $\beta^{-1/2}$; default $\beta = 1$.

        Raises:
            ValueError: `beta` not positive, which gives no finite mass.
        """
        scale_tril = self.generator.escort_factor(beta)[..., None, None] * self.scale_tril
        return MultivariateNormal(self.loc, scale_tril=scale_tril, validate_args=self._validation)

    @property
    def _unbroadcasted_scale_tril(self) -> Tensor:  # type: ignore[override]
        """The name that torch's KL divergences use."""
        return self.scale_tril

    def _of_coordinates(self, loc: Tensor, scale_tril: Tensor, lost: int) -> "MultivariateNormal":
        return MultivariateNormal(loc, scale_tril=scale_tril, validate_args=self._validation)
