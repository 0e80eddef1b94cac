"""Kernel families: densities of any shape whose score is a sum of kernels."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Size, Tensor
from torch.distributions import constraints
from torch.distributions.utils import lazy_property
from torch.types import _size
from typing_extensions import Self

from .._feature_maps import BasisFeatures, FeatureMap, Kernel, KernelFeatures
from .._numerics.deformed import Power, expm1_ratio
from .._numerics.modes import compiled, exported, traced
from .._numerics.operators import differentiable_once, without_derivative
from .._numerics.special import log_positive
from .._numerics.truncated_power import integrals, sum_nodes
from .._numerics.validation import (
    broadcast_arguments,
    require,
    require_integer,
    require_power,
    require_shape,
)
from ..bases import Basis
from ..scores import BasisExpansion, FeatureExpansion, KernelExpansion
from ..supports import IntervalUnion, Region, finite_vector
from ._kernel.base_measure import Base, BaseMeasure, RestrictedBase
from ._kernel.line import Line
from ._kernel.mesh import MOST_NODES, KernelMesh, dtype_of
from ._kernel.solution import Solution, solve
from ._kernel.vectors import draw_vectors
from ._line.panels import Panels, on_line
from .base import SparseDistribution
from .univariate import Geometry, Univariate, interval_by_tails

__all__ = ["KernelDeformedExp", "KernelDistribution", "KernelExp"]

# The fraction of a moment that may lie beyond an end of the mesh, by a bound.
_MOST_BEYOND = 1e-4
# Steps of the search for a mode, and the factor by which each narrows its grid: above 1/2, so that
# the grid extends to the neighbors of the best location. All steps together narrow it to 1e-9.
_STEPS, _SHRINKAGE = 40, 0.6


class KernelDistribution(Univariate):
    r"""A truncated power of an expansion, $p = [1 + \epsilon(f - A)]_+^k\,q_0 / Z$.

    The score is $f(t) = \sum_i w_i k(t, t_i)$, or $\sum_j w_j \psi_j(t)$ for the functions of a
    basis, and $q_0$ the base density. All integrals are sums over nodes that the batch shares, with
    weights of its own for each density, so an expectation is one matrix product.

    Subclasses compute $A$ and the weights in their constructor. These are kept with their graph:
    more than one backward pass through one density needs `retain_graph=True`. Forward mode
    (`torch.func.jvp`, `jacfwd`, `hessian`) needs alpha to be a number.

    Args:
        weights: $w$ (*batch, I).
        inducing_points: $t_i$, as for `KernelExp`; or the functions, which `from_score` passes
            instead of points and a kernel.
        kernel: As for `KernelExp`; None if functions are given.
        base: $q_0$, as for `KernelExp`.
        alpha: Entropic index, a number or (*batch).
        validate_args: As in torch.distributions.

    Raises:
        ValueError: Shapes that do not fit.
        RuntimeError: A trace of `torch.jit`.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {"weights": finite_vector}
    _tensors = {"alpha": 0}
    _caches = ("_line",)
    weights: Tensor
    _solution: Solution

    def __init__(
        self,
        weights: Tensor,
        inducing_points: Tensor | FeatureMap,
        kernel: Any,
        base: Base,
        alpha: Tensor | float,
        validate_args: bool | None,
    ) -> None:
        if traced():
            raise RuntimeError(
                "torch.jit cannot trace kernel densities, whose nodes follow from values; "
                "use torch.compile, with the mesh of a density made before"
            )
        if isinstance(inducing_points, FeatureMap):  # `from_score`
            features = inducing_points
        else:
            features = KernelExpansion(weights, inducing_points, kernel).features
        self.features, self.base = features, base
        # One entry of each weight vector and point set has the shape of its batch.
        _, alpha, _ = broadcast_arguments(
            weights=weights[..., 0], alpha=alpha, inducing_points=features.points[..., 0, 0]
        )
        self.alpha = alpha.to(weights.dtype)
        batch, dim = self.alpha.shape, self.features.dim
        self.weights = weights.expand(*batch, -1)
        event = Size([dim] if dim > 1 else [])
        SparseDistribution.__init__(self, batch, event, validate_args)  # checks the attributes

    def _solve(self, alpha: Tensor | float, inside: bool = True, **options: Any) -> None:
        """Set `_solution`, with its graph even under `torch.no_grad`, as it may be used later.

        Args:
            alpha: As the constructor was given it: a number, or else `self.alpha` is taken.
            inside: As for `solve`.
            options: `tolerance` and `mesh`, as for `solve`.
        """
        alpha, validate = self.alpha if isinstance(alpha, Tensor) else alpha, self._validate_args
        with torch.enable_grad():
            arguments = self.weights, self.features, self.base, alpha, inside
            self._solution = solve(*arguments, validate=bool(validate), **options)

    @classmethod
    def from_score(cls, score: FeatureExpansion, *args: Any, **options: Any) -> Self:
        """Return the density of an expansion in kernels or in a basis.

        Args:
            score: The `KernelExpansion` or `BasisExpansion`.
            args: Arguments of the constructor after the kernel, such as `base`.
            options: The same by name.

        Raises:
            ValueError: As the constructor; `score` of another class.
        """
        if not isinstance(score, FeatureExpansion):
            rule = "score must be a KernelExpansion or a BasisExpansion"
            raise ValueError(f"{rule}, got {score!r}")
        family: Any = cls
        return family(score.weights, score.features, None, *args, **options)

    @property
    def inducing_points(self) -> Tensor:
        """The locations at which the kernel is placed."""
        return self._kernel_features.inducing_points

    @property
    def kernel(self) -> Kernel:
        """The kernel."""
        return self._kernel_features.kernel

    @property
    def _kernel_features(self) -> KernelFeatures:
        """The features, or an AttributeError if they are the functions of a basis."""
        if not isinstance(self.features, KernelFeatures):
            raise AttributeError("a density of a basis has neither kernel nor inducing points")
        return self.features

    @property
    def mesh(self) -> KernelMesh:
        """The nodes, for further densities with the same functions and base."""
        return self._solution.mesh

    def _map(self, change: Callable[[Any, Size], Any], batch_shape: Size) -> Self:
        new, features = super()._map(change, batch_shape), self.features
        # The same change of row numbers tells which rows of the solution belong to the new batch.
        rows = torch.arange(self.batch_shape.numel(), device=self.weights.device)
        rows = change(rows.reshape(self.batch_shape), Size()).reshape(-1)
        if features.batch:
            event = features.points.shape[-2:]
            points = change(features.points.expand(self.batch_shape + event), event)
            features = KernelFeatures(points, self.kernel)
        solution = self._solution.rows(rows, new.weights, features)
        return new._replace(features=features, _solution=solution)

    def detach(self) -> Self:
        new = super()._map(lambda x, event: x.detach(), self.batch_shape)
        solution = self._solution.detach()
        return new._replace(features=solution.features, _solution=solution)

    # Densities

    def _lift(self, t: Tensor) -> Tensor:
        """Return locations (*S, *batch, *event) with an axis for coordinates."""
        return t if self.event_shape else t.unsqueeze(-1)

    def _lower(self, t: Tensor) -> Tensor:
        """Return locations (*S, *batch, D) without an axis for coordinates if they are numbers."""
        return t if self.event_shape else t.squeeze(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density; -inf off the support, with zero gradient."""
        self._check_value(value)
        return self._solution.log_density(self._lift(value))

    @property
    def _score_factor(self) -> Tensor:
        """The factor (*batch) of f in the score of the prediction map with this alpha."""
        # p^(alpha - 1) = Z^(1 - alpha) [1 + eps (f - A)] relative to the base: its slope in f over
        # alpha - 1, in which k eps has a limit as eps tends to 0.
        s, power_factor = self._solution, self._solution.batched_power().factor_of_log
        rule = "finite for a score to be determined"
        require(torch.as_tensor(power_factor != 0), "alpha", rule, self.alpha)
        factor = power_factor * torch.exp(-(self.alpha - 1) * s.batched(s.Z.log()))
        return factor.to(self.weights.dtype)

    @property
    def log_normalizer(self) -> Tensor:
        r"""$A_\alpha$ in $p = \exp_{2-\alpha}(score - A_\alpha)$ relative to the base (*batch)."""
        # 1 + (alpha - 1) (score - A_alpha) = p^(alpha - 1) = Z^(1 - alpha) [1 + eps (f - A)].
        return self._log_mass + self._score_factor * self._solution.batched(self._solution.A)

    @property
    def _log_mass(self) -> Tensor:
        r"""The deformed logarithm $(1 - Z^{1-\alpha})/(\alpha - 1)$ of Z (*batch)."""
        log_mass = self._solution.Z.log().reshape(self.batch_shape)
        deformed = log_mass * expm1_ratio(-(self.alpha - 1) * log_mass)
        return deformed.to(self.weights.dtype)

    @property
    def score(self) -> FeatureExpansion:
        """The expansion with `rpm(score, alpha, base)` equal to this density."""
        return self._with_weights(self._score_factor.unsqueeze(-1) * self.weights)

    def _with_weights(self, weights: Tensor) -> FeatureExpansion:
        """Return the expansion with other weights of the same functions."""
        if isinstance(self.features, BasisFeatures):
            return BasisExpansion(weights, self.features.basis)
        return KernelExpansion(weights, self.inducing_points, self.kernel)

    # Integrals

    def quadrature(self, order: int = 64) -> tuple[Tensor, Tensor]:
        r"""Return nodes (Q, *batch, *event), weights (Q, *batch): $\sum_q w_q g(t_q) \to E_p[g]$.

        All densities have the same nodes. Weights next to an edge of the support may be negative.

        Args:
            order: Subintervals are halved until each axis has at least this many nodes.

        Raises:
            ValueError: `order` below 1, or above 2^18.
        """
        require_integer("order", order, 1, MOST_NODES)
        mesh = self.mesh.with_least_nodes(order)
        weights = self._solution.weights_on(mesh).to(self.weights.dtype)
        count = len(mesh.nodes)
        nodes = mesh.nodes.to(self.weights).reshape(count, *(1,) * len(self.batch_shape), -1)
        nodes = nodes.expand(count, *self.batch_shape, -1)
        return self._lower(nodes), weights.reshape(count, *self.batch_shape)

    def basis_means(self, psi: Basis) -> Tensor:
        """Return E_p[psi] (*batch, N), on a mesh that also resolves the basis."""
        mesh = self.mesh.for_basis(psi)
        return self._solution.means(self._values_of(psi, mesh), mesh).to(self._dtype_with(psi))

    def combination_means(self, psi: Basis, coefficients: Tensor) -> Tensor:
        r"""Return $E_p[\psi]^\top C$ (*batch, E) with coefficients C (*batch[:-1], N, E).

        Either the functions are combined at the nodes, or their expectations are.
        """
        (functions, columns), count = coefficients.shape[-2:], self.batch_shape[-1]
        mesh = self.mesh.for_basis(psi)
        values, nodes = self._values_of(psi, mesh), len(mesh.nodes)
        dtype = torch.promote_types(self._dtype_with(psi), coefficients.dtype)
        # The order of the product, weights (values C) or (weights values) C, with fewer operations.
        # An exported graph, for any number of densities, has the first only.
        if not exported():
            combined = nodes * columns * (functions + count)
            separate = count * functions * (nodes + columns)
            if combined > separate:
                return self._solution.means(values, mesh).to(dtype) @ coefficients.to(dtype)
        return self._solution.combined_means(values @ coefficients.to(values), mesh).to(dtype)

    def _values_of(self, psi: Basis, mesh: KernelMesh) -> Tensor:
        """Return a basis at the nodes of a mesh (Q, N), in the dtype of sums or a longer one."""
        # In float32 the rounding of a location may be comparable to the width of a function.
        values = psi.in_float64(self._lower(mesh.nodes))
        if self.event_shape:  # sums over thousands of nodes lose two digits of float32
            return values
        return values.to(torch.promote_types(self._solution.scores.dtype, self._dtype_with(psi)))

    def _dtype_with(self, *bases: Basis) -> torch.dtype:
        """Return the dtype of expectations of bases."""
        dtype = self.weights.dtype
        for basis in bases:
            if any(x.is_floating_point() for x in (*basis.parameters(), *basis.buffers())):
                dtype = torch.promote_types(dtype, dtype_of(basis))
        return dtype

    @property
    def mean(self) -> Tensor:
        """Mean (*batch, *event); a ValueError if the base's tails leave none."""
        self._require_moment(1)
        return self._lower(self._solution.means(self.mesh.nodes, self.mesh).to(self.weights.dtype))

    @property
    def variance(self) -> Tensor:
        """Variance of each component (*batch, *event)."""
        return self._lower(self.covariance_matrix.diagonal(dim1=-2, dim2=-1))

    @property
    def covariance_matrix(self) -> Tensor:
        """Covariance (*batch, D, D), also of a number; a ValueError if there is none."""
        self._require_moment(2)
        nodes = self.mesh.nodes
        offset = nodes - self._solution.means(nodes, self.mesh).unsqueeze(-2)
        weights = self._solution.weights_on(self.mesh).reshape(len(nodes), -1).T.double()
        weights = weights.reshape(*self.batch_shape, len(nodes), 1)
        return ((weights * offset).mT @ offset).to(self.weights.dtype)

    def _require_moment(self, order: int) -> None:
        """Raise unless the mesh holds nearly all of an absolute moment, which then exists.

        Compiled graphs, which cannot read values, do not check it.
        """
        if compiled():
            return
        base, mesh = self.mesh.base, self.mesh
        for axis in range(base.dim):
            low, high = base.bounds(axis)
            # Indices of the outermost nodes on the sides where the base has no end.
            open_ends = [index for index, end in ((0, low), (-1, high)) if math.isinf(end)]
            if not open_ends:
                continue
            weights = self._solution.weights_on(mesh).detach().double().flatten(0, 1)
            coordinates, center = mesh.nodes[:, axis], base.center(axis)
            total = ((coordinates - center).abs() ** order) @ weights
            t, lengths = (x.flatten()[open_ends] for x in mesh.axes[axis].rule())
            last = torch.stack([weights[coordinates == end].sum(0).abs() for end in t], -1)
            # Beyond t an integrand g that falls as |t|^(-1 - a) has the integral |t| g(t)/a; here a
            # is taken for 1. Weights over lengths are the marginal density at the outermost nodes.
            tail_bound = (last / lengths) @ ((t - center).abs() ** (order + 1))
            rule = f"so light in its tails that the moment of order {order} exists, within reach"
            require(tail_bound <= _MOST_BEYOND * total, "base", rule, base.factors[axis])

    @property
    @torch.no_grad()
    def mode(self) -> Tensor:
        """Location of the largest density (*batch, *event), by a search from the best node."""
        log_density, dim = self._solution.log_density, self.features.dim

        def best(t: Tensor) -> Tensor:
            """Return the location (1, *batch, D) of the largest of some densities."""
            index = log_density(t).argmax(0, keepdim=True)
            return t.gather(0, index.unsqueeze(-1).expand(1, *self.batch_shape, dim))

        t = best(self._lift(self.quadrature(1)[0]))
        width = torch.stack([axis.breaks.diff().amax() for axis in self.mesh.axes]).to(t)
        steps = torch.cartesian_prod(*[torch.linspace(-1, 1, 5).to(t)] * dim)
        steps = steps.reshape(-1, *(1,) * len(self.batch_shape), dim)
        for _ in range(_STEPS):
            t, width = best(t + width * steps), width * _SHRINKAGE
        return self._lower(t.squeeze(0))

    def tsallis_entropy(self) -> Tensor:
        r"""Return $-\Omega_\alpha(p)$ relative to the base (*batch)."""
        # (1 - int p^alpha)/(alpha (alpha - 1)), with p^(alpha - 1) = 1 + (alpha - 1)(score - A'),
        # is E[A' - score]/alpha. A' is `log_normalizer`: score - A' = factor (f - A) - log mass.
        s = self._solution
        mean = sum_nodes(s.weights_on(s.mesh) * s.offsets_on(s.mesh))
        return (self._log_mass - self._score_factor * s.batched(mean)) / self.alpha

    def entropy(self) -> Tensor:
        r"""Return Shannon's entropy $-\int p \log p\,dt$ (*batch)."""
        s = self._solution
        power, offsets = s.power, s.offsets_on(s.mesh)
        # -E[log(p/q_0)], where log(p/q_0) = factor_of_log L(f - A) - log Z and "log" is p Z L.
        if power.is_exponential:
            logs = sum_nodes(s.nodal * offsets)
        else:
            logs = sum_nodes(integrals(offsets, s.measure_on(s.mesh), power, ("log",))[0])
        relative_entropy = s.batched(s.Z.log() - power.factor_of_log * logs / s.Z)
        mesh = s.mesh.graded()
        log_base = mesh.base.log_density(mesh.nodes).unsqueeze(-1)
        # Where the base density is 0, so are the weights.
        log_base = torch.where(log_base.isinf(), 0.0, log_base)
        base_term = s.means(log_base, mesh).squeeze(-1)
        return relative_entropy - base_term.to(relative_entropy.dtype)

    # Escorts

    def escort(self, beta: Tensor | float | None = None) -> "KernelDistribution":
        r"""Return the escort $p^\beta/\int p^\beta$ relative to the base; default $2 - \alpha$.

        At alpha = 2 the default is the base, restricted to the support.

        Raises:
            ValueError: `beta` not a number, negative or infinite.
        """
        if _is_one(beta):
            return self
        return KernelEscort(self, self._escort_power(beta))

    def _escort_power(self, beta: Tensor | float | None) -> Power:
        """Return the power to which p^beta is proportional, relative to the base.

        The default of beta is 2 - alpha.

        Raises:
            ValueError: `beta` negative, or given for an escort.
        """
        power = self._solution.power
        if beta is None:
            # 2 - alpha, which lowers the exponent of a prediction map by one.
            return power.lowered()
        if float(beta) < 0:
            raise ValueError(f"beta must not be negative, got {beta}")
        if power.order:
            raise ValueError(f"beta must be None for the escort of an escort, got {beta}")
        return replace(power, ratio=power.ratio * float(beta))

    def _beta_covariance(self, phi: Basis, psi: Basis, beta: Tensor | float | None) -> Tensor:
        r"""Return the $\beta$-covariance of two bases relative to the base (*batch, M, N).

        It is $\int p^\beta (\phi - \tilde E\phi)(\psi - \tilde E\psi)'$ with means of the escort.
        """
        s, mesh = self._solution, self.mesh.for_basis(phi).for_basis(psi)
        if _is_one(beta):
            nodal = s.weights_on(mesh)
        else:
            power, nodal = self._escort_power(beta), s.escort
            exponent = 2 - self.alpha.reshape(-1) if beta is None else float(beta)
            if beta is not None or mesh is not s.mesh:
                nodal, _ = integrals(s.offsets_on(mesh), s.measure_on(mesh), power)
            # p^beta = Z^-beta v^beta for p = v / Z, and the integral of v^beta has the weights.
            nodal = nodal * torch.exp(-exponent * s.Z.log())
        # (R, Q), and values (Q, M) and (Q, N).
        weights = nodal.flatten(0, 1).T.double()
        f, g = (self._values_of(basis, mesh).double() for basis in (phi, psi))
        total = weights.sum(-1, keepdim=True)
        # Both are centered, so that the covariance of a constant is 0 to the last digit: (R, Q, M)
        # and (R, Q, N).
        f, g = (x - ((weights @ x) / total).unsqueeze(1) for x in (f, g))
        covariance = ((weights.unsqueeze(-1) * f).mT @ g).to(self._dtype_with(phi, psi))
        return covariance.reshape(*self.batch_shape, *covariance.shape[1:])

    # Supports, distribution functions and samples

    @lazy_property
    def _line(self) -> Line:
        """The distribution functions, made when they are first asked for."""
        return Line(self._solution)

    @constraints.dependent_property(is_discrete=False)
    def support(self) -> constraints.Constraint:
        """The exact union of intervals; for vectors a region that can be checked."""
        if self.event_shape:
            return Region(lambda t: self.log_prob(t) > -math.inf, len(self.event_shape))
        return IntervalUnion(self._line.intervals, self.log_prob)

    def _tail(self, value: Tensor, upper: Tensor, log: bool = False) -> Tensor:
        tail = self._line.tail(value, upper)
        return log_positive(tail) if log else tail

    def _interval(self, a: Tensor, b: Tensor, log: bool = False) -> Tensor:
        return interval_by_tails(self, a, b, log)

    def geometry(self) -> Geometry:
        """Return the ends of the support, and the ends of its parts and of the mesh's."""
        self._require_numbers("geometry")
        intervals = self._line.intervals
        ends = intervals.flatten(-2)
        high = torch.where(ends.isnan(), -math.inf, ends).amax(-1)
        finite = torch.where(ends.isinf(), math.nan, ends)
        breaks = self.mesh.axes[0].breaks.to(ends).expand(*self.batch_shape, -1)
        return Geometry(intervals[..., 0, 0], high, torch.cat([finite, breaks], -1))

    def _breakpoints(self) -> Tensor:
        # Polynomials on a subinterval may have several extrema.
        halves = self.mesh.axes[0].halved().breaks.to(self._line.intervals)
        breaks = cast(Tensor, self.geometry().breakpoints)
        return torch.cat([breaks, halves.expand(*self.batch_shape, -1)], -1)

    def _cuts(self) -> Tensor:
        """Return locations (*batch, J), padded with NaN, at which integrals over the line are cut.

        They are the ends of the support, and 32 to 48 of the nodes, which are dense where the base
        and the functions of the score vary fast.
        """
        ends = self._line.intervals.flatten(-2)
        if bool((self.alpha > 1).any()):
            # Ends are found as roots, without derivatives. Where the density is 0 at its ends, the
            # first derivative of an integral does not depend on them, but the second one does;
            # where it jumps, as a uniform escort (alpha = inf) does, so does the first. Adding 0
            # times the weights makes torch raise there, instead of returning wrong derivatives.
            limit = without_derivative if bool(self.alpha.isinf().any()) else differentiable_once
            ends = ends + 0 * limit(self.weights).sum(-1, keepdim=True)
        nodes = self.quadrature()[0].detach()
        inner = nodes[:: max(1, len(nodes) // 32)].movedim(0, -1)
        return torch.cat([torch.where(ends.isfinite(), ends, math.nan), inner.to(ends)], -1)

    @property
    def _panels(self) -> Panels:
        return on_line(self.log_prob, self._cuts(), self._ends())

    def _moment_about(self, n: int, center: Tensor) -> Tensor:
        """Return E[(t - center)^n] (*batch), summed over the nodes; ValueError if none exists."""
        self._require_moment(n)
        s, nodes = self._solution, self.mesh.nodes.squeeze(-1)
        weights = s.weights_on(self.mesh).reshape(len(nodes), *self.batch_shape).double()
        nodes = nodes.reshape(-1, *(1,) * len(self.batch_shape))
        return (weights * (nodes - center) ** n).sum(0).to(self.weights.dtype)

    def _quantile(self, value: Tensor) -> Tensor:
        return self._line.icdf(value)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether `rsample` exists: for numbers, if every support is one interval.

        Over a gap the derivative of the quantile function misses the mass that moves across it;
        `rsample_components` is exact.
        """
        return not self.event_shape and self._line.intervals.shape[-2] == 1

    def rsample(self, sample_shape: _size = Size()) -> Tensor:
        """Draw samples with derivatives in the parameters, by the quantile function.

        Raises:
            NotImplementedError: Supports of several intervals, and vectors.
        """
        if not self.has_rsample:
            raise NotImplementedError(
                "rsample exists for numbers whose support is one interval; use rsample_components "
                "over several, and sample for vectors"
            )
        return self._line.with_gradient(self.sample(sample_shape))

    def _draw(self, sample_shape: Size) -> Tensor:
        shape = require_shape("sample_shape", sample_shape)
        if self.event_shape:
            return draw_vectors(self._solution, shape)
        return self._line.sample(shape)

    def rsample_components(self, sample_shape: _size = Size()) -> tuple[Tensor, Tensor]:
        r"""Draw from every interval of the support, and return the intervals' masses.

        Both are differentiable: $\sum_k m_k \phi(t_k)$ has the mean $E_p[\phi]$ and the right
        gradient, also over gaps, where the gradient of a plain sample is biased.

        Returns:
            Draws (*sample, *batch, K) and masses (*batch, K), 0 where there are fewer intervals.

        Raises:
            NotImplementedError: Vectors.
        """
        self._require_numbers("rsample_components")
        return self._line.components(Size(sample_shape))

    def to_float64(self) -> "KernelDistribution":
        """Return the same density solved in float64, or itself if it is."""
        return self if self.weights.dtype == torch.float64 else self._solved_in_float64()

    def _solved_in_float64(self) -> "KernelDistribution":
        """Return the density of the same weights in float64, on a new mesh."""
        score = self._with_weights(self.weights.double())
        return type(self).from_score(score, self.base, validate_args=False)


class KernelExp(KernelDistribution):
    r"""Kernel exponential family: the map at alpha = 1 of a kernel score, relative to a base.

    $$p(t) = \exp(f(t) - A)\, q_0(t), \qquad f(t) = \sum_{i=1}^I w_i\, k(t, t_i)$$

    Args:
        weights: $w$ (*batch, I).
        inducing_points: $t_i$: (I,) or (I, 1) for numbers, (I, D) for vectors; (*batch, I, D) if
            each density has its own.
        kernel: Positive semi-definite, (n, D), (m, D) to (n, m), for instance one of
            `pyro.contrib.gp.kernels`. It is called with float64 matrices.
        base: $q_0$: a univariate distribution, or for vectors an `Independent` or a sequence of
            them; default uniform on [0, 1] in each dimension. It is a constant.
        tolerance: Relative error to which scores are polynomials between nodes; default 1e-5 in
            float32 (1e-6 where so many kernels overlap that large weights cancel) and 1e-11 in
            float64 for numbers, less in more dimensions.
        mesh: The `mesh` of another density with the same kernel, inducing points, base and dtype;
            default: a new one. Required in compiled graphs. On a CPU it is refined where alpha is
            below 1.2 and scores are too peaked for it.
        validate_args: As in torch.distributions.

    Raises:
        ValueError: Shapes that do not fit; `weights` or `inducing_points` not finite; `weights`
            so large that scores have too few digits after the point (about 3e10, or 4e4 where
            float32 is summed); inducing points outside the base's support; a kernel of another
            shape, or not finite; a base with parameters that require grad, or with tails too heavy
            for the growth of the kernel (Prop. 1); a kernel that no number of nodes within reason
            resolves.

    References:
        Canu and Smola (2006), Kernel methods and the exponential family. Moreno et al. (2021),
        Kernel Deformed Exponential Families for Sparse Continuous Attention, section 4.1 and
        Prop. 1.

    Examples:
        >>> from pyro.contrib.gp.kernels import RBF
        >>> kernel = RBF(1, lengthscale=torch.tensor(0.1))
        >>> p = KernelExp(torch.tensor([3.0, 0.0, 2.0]), torch.tensor([0.2, 0.5, 0.8]), kernel)
        >>> p.mean.detach()
        tensor(0.3936)
    """

    def __init__(
        self,
        weights: Tensor,
        inducing_points: Tensor,
        kernel: Kernel,
        base: Base = None,
        *,
        tolerance: float | None = None,
        mesh: KernelMesh | None = None,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__(weights, inducing_points, kernel, base, 1.0, validate_args)
        self._solve(1.0, tolerance=tolerance, mesh=mesh)

    def escort(self, beta: Tensor | float | None = None) -> "KernelExp":
        r"""Return the $\beta$-escort relative to the base, with beta times the weights; default 1.

        Raises:
            ValueError: `beta` negative or not finite.
        """
        if beta is None:
            return self
        require_power(beta, self.batch_shape)
        power = torch.as_tensor(beta, dtype=self.weights.dtype, device=self.weights.device)
        require(torch.isfinite(power) & (power >= 0), "beta", "finite and not negative", beta)
        score = self._with_weights(power.unsqueeze(-1) * self.weights)
        return KernelExp.from_score(
            score, self.base, mesh=self.mesh, validate_args=self._validation
        )


class KernelDeformedExp(KernelDistribution):
    r"""Kernel deformed exponential family: the map at alpha in (1, 2] of a kernel score.

    Relative to a base density $q_0$, of the score $f(t) = \sum_{i=1}^I w_i\, k(t, t_i)$,
    $$p(t) = [1 + (\alpha - 1)(f(t) - A)]_+^{1/(\alpha - 1)}\, q_0(t)$$
    with `normalization="inside"`, and
    $$p(t) = \frac1Z [1 + (\alpha - 1) f(t)]_+^{1/(\alpha - 1)}\, q_0(t)$$
    with `"outside"`. The first is the regularized prediction map, whose support is never empty; the
    second is Algorithm 1 of the kernel paper.

    The constructor solves for $A$ and the quadrature weights, once for all members.

    Args:
        weights: $w$ (*batch, I).
        inducing_points: $t_i$, as in `KernelExp`.
        kernel: As in `KernelExp`.
        base: $q_0$, as in `KernelExp`.
        alpha: Entropic index in (1, 2], a number or (*batch).
        normalization: "inside" or "outside".
        tolerance: As in `KernelExp`.
        mesh: As in `KernelExp`.
        validate_args: As in torch.distributions.

    Raises:
        ValueError: As `KernelExp`; `alpha` outside (1, 2]; another `normalization`; a support that
            is empty outside, naming the batch indices, or a power too large to be normalized there.

    References:
        Moreno et al. (2021), Kernel Deformed Exponential Families for Sparse Continuous Attention,
        section 4.2, Prop. 2 and Algorithm 1.

    Examples:
        >>> from pyro.contrib.gp.kernels import RBF
        >>> kernel = RBF(1, lengthscale=torch.tensor(0.1))
        >>> weights, points = torch.tensor([4.0, -4.0, 3.0]), torch.tensor([0.2, 0.5, 0.8])
        >>> KernelDeformedExp(weights, points, kernel).support.intervals
        tensor([[0.0134, 0.3319],
                [0.6810, 0.9704]])
    """

    def __init__(
        self,
        weights: Tensor,
        inducing_points: Tensor,
        kernel: Kernel,
        base: Base = None,
        alpha: Tensor | float = 2.0,
        normalization: Literal["inside", "outside"] = "inside",
        *,
        tolerance: float | None = None,
        mesh: KernelMesh | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if normalization not in ("inside", "outside"):
            raise ValueError(f"normalization must be 'inside' or 'outside', got {normalization!r}")
        self.normalization = normalization
        super().__init__(weights, inducing_points, kernel, base, alpha, validate_args)
        rule = f"in (1, 2] in {self.alpha.dtype}"
        require((self.alpha > 1) & (self.alpha <= 2), "alpha", rule, self.alpha)
        self._solve(alpha, normalization == "inside", tolerance=tolerance, mesh=mesh)

    def restrict(self, region: constraints.Constraint) -> "KernelDeformedExp":
        r"""Return the density $p(t)\,1[t \in R] / P(R)$, restricted to a region R.

        Args:
            region: An `IntervalUnion` without a batch for numbers, a `Region` for vectors, whose
                mass is the sum over the nodes inside.

        Raises:
            ValueError: Another region, or one where a density has no mass.
        """
        kind = Region if self.event_shape else IntervalUnion
        if not isinstance(region, kind):
            raise ValueError(f"region must be of class {kind.__name__}, got {region!r}")
        base: Any = RestrictedBase(self.base, region)
        measure = BaseMeasure(base, self.features.dim, self.weights.dtype)
        mesh, eps = self.mesh.restricted(measure), self._solution.power.eps
        mass = self._solution.batched(sum_nodes(self._solution.weights_on(mesh)))
        require(mass > 0, "region", "where each density has mass", mass)
        alpha = self.alpha if isinstance(eps, Tensor) else 1 + eps
        # Relative to the base p^(alpha - 1) is linear in the score: dividing p by a mass multiplies
        # the slope by mass^(1 - alpha), and A_alpha adapts.
        factor = self._score_factor * mass ** (1 - self.alpha)
        score = self._with_weights(factor.unsqueeze(-1) * self.weights)
        return KernelDeformedExp.from_score(
            score, base, alpha, mesh=mesh, validate_args=self._validation
        )

    def _solved_in_float64(self) -> "KernelDeformedExp":
        score, eps = self._with_weights(self.weights.double()), self._solution.power.eps
        alpha = self.alpha.double() if isinstance(eps, Tensor) else eps + 1
        arguments = self.base, alpha, self.normalization
        return type(self).from_score(score, *arguments, validate_args=False)


class KernelEscort(KernelDistribution):
    """An escort of a density of a kernel family; made by its `escort`.

    Args:
        parent: The density.
        power: The power of the escort.
    """

    _members = ("_parent",)

    def __init__(self, parent: KernelDistribution, power: Power) -> None:
        self._parent = parent
        # A power with exponent k is a prediction map at the alpha with k = 1/(alpha - 1).
        alpha = 1 + 1 / torch.as_tensor(power.exponent, dtype=parent.weights.dtype)
        is_batch = isinstance(power.eps, Tensor)
        escort_alpha = alpha.reshape(parent.batch_shape) if is_batch else alpha.item()
        kernel = None  # which the features hold
        arguments = parent.weights, parent.features, kernel, parent.base, escort_alpha
        super().__init__(*arguments, parent._validation)
        with torch.enable_grad():
            self._solution = parent._solution.with_power(power)

    def _solved_in_float64(self) -> "KernelEscort":
        parent, power = self._parent.to_float64(), self._solution.power
        return KernelEscort(parent, replace(power, eps=parent._solution.power.eps))


def _is_one(beta: Tensor | float | None) -> bool:
    """Return whether the power of an escort is 1; a ValueError unless it is one number or None."""
    require_power(beta, Size())
    if isinstance(beta, Tensor) and beta.numel() != 1:
        raise ValueError(f"beta must be one number for a kernel family, got {beta}")
    return beta is not None and float(beta) == 1
