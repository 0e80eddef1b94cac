"""Kernel families: densities of any shape whose score is a sum of kernels."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from numbers import Real
from typing import Any, ClassVar, Literal

import torch
from torch import Size, Tensor
from torch.autograd import forward_ad
from torch.distributions import Distribution, constraints
from torch.distributions.utils import lazy_property
from torch.types import _size
from typing_extensions import Self

from ..bases import Basis
from ..feature_maps import BasisFeatures, FeatureMap, KernelFeatures
from ..kernels import Kernel
from ..numerics.chebyshev_mesh import ChebyshevMesh
from ..numerics.deformed import expm1_ratio
from ..numerics.normalizer import normalized_weights
from ..numerics.truncated_power import (
    LOG_LARGE,
    Power,
    below,
    integrals,
    pieces_by_column,
    positive_pieces,
    power_quantiles,
    sum_nodes,
)
from ..numerics.validation import (
    broadcast_arguments,
    broadcast_shapes,
    differentiable_once,
    in_eager,
    is_finite_number,
    is_plain_cpu_tensor,
    map_tensors,
    may_have_tangent,
    require,
    require_integer,
    require_power,
    require_shape,
)
from ..scores import BasisExpansion, FeatureExpansion, KernelExpansion
from ..supports import IntervalUnion, Region, finite_vector
from .base import SparseDistribution
from .base_measure import Base, BaseMeasure, uniform_box
from .kernel_mesh import MOST_NODES, KernelMesh, dtype_of, require_inside

__all__ = ["KernelDeformedExp", "KernelDistribution", "KernelEscort", "KernelExp"]

# Errors of scores on the mesh, by dimension, in float32 and float64.
_TOLERANCE = {1: (1e-5, 1e-11), 2: (1e-5, 1e-7), 3: (1e-3, 1e-4)}
# The first for numbers where large weights cancel, which takes few nodes in any case.
_OF_WIDE = 1e-6
# Below this alpha densities are so much more peaked than scores that the mesh must resolve them.
_PEAKED = 1.2
# Rows for which a given mesh is refined.
_SHARPEST = 32
# A score may be larger than those that the mesh is made for by this factor.
_MARGIN = 4.0
# From here on the last bit of a score in float32 is more than a millionth.
_LARGE = 16.0
# The error of a mass that rounding may cause.
_MASS = 1e-2
_DIGITS = "so small that scores have digits after the point in {}"
# The share of a mass that may be where the mesh does not resolve the base.
_FAR_OUT = 1e-3
# The share of a moment that its integrand times the distance may be at the end of the mesh.
_LEFT = 1e-4
# Units of rounding of scores and levels.
_ROUNDING = 8
# So many draws from one density read their quantiles from a table, and its number of brackets.
# Where it is off by more in the middle of a bracket, relative to the range, they are computed.
_TABLED, _BRACKETS = 2**13, 2**10
_TABLE_ERROR = {torch.float32: 1e-6, torch.float64: 1e-8}
# Steps of the search for a mode, and the ratio of one's distance between neighbours to the last's.
_STEPS, _SHRINKAGE = 40, 0.6


class KernelDistribution(SparseDistribution):
    r"""A truncated power of an expansion, $p = [1 + \epsilon(f - A)]_+^k\,q_0 / Z$.

    The score is $f(t) = \sum_i w_i k(t, t_i)$, or $\sum_j w_j \psi_j(t)$ for the functions of a
    basis, and $q_0$ the base density. All integrals are sums over nodes that the batch shares, with
    weights of its own for each density, so an expectation is one matrix product.

    Subclasses compute $A$ and the weights in their constructor. These are kept with their graph:
    more than one backward pass through one density needs `retain_graph=True`. Forward mode
    (`torch.func.jvp`, `jacfwd`, `hessian`) needs alpha to be a number.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {"weights": finite_vector}
    weights: Tensor
    # By density, the last axis: A and Z (R,), scores and weights of p Z and of its escort (m, G, R)
    _per_row: ClassVar[tuple[str, ...]] = ("_level", "_mass", "_scores", "_nodal", "_escort_nodal")
    _per_batch: ClassVar[tuple[str, ...]] = (*_per_row, "_intervals", "_power")
    _mass: Tensor
    _scores: Tensor
    _nodal: Tensor
    _escort_nodal: Tensor
    _power: Power
    _is_exponential: ClassVar[bool] = False

    def __init__(
        self,
        weights: Tensor,
        inducing_points: Tensor | FeatureMap,
        kernel: Any,
        base: Base,
        alpha: Tensor | float,
        validate_args: bool | None,
    ) -> None:
        if torch.jit.is_tracing():  # type: ignore[attr-defined]
            raise RuntimeError(
                "torch.jit cannot trace kernel densities, whose nodes follow from values; "
                "use torch.compile, with the mesh of a density made before"
            )
        if isinstance(inducing_points, FeatureMap):  # `from_score`
            features = inducing_points
        else:
            features = KernelExpansion(weights, inducing_points, kernel).features
        if base is None and isinstance(features, BasisFeatures):
            base = _uniform_on(features.basis)
        self.features, self.base = features, base
        _, alpha, _ = broadcast_arguments(
            weights=weights[..., 0], alpha=alpha, inducing_points=features.points[..., 0, 0]
        )
        self.alpha = alpha.to(weights.dtype)
        batch, dim = self.alpha.shape, self.features.dim
        self.weights = weights.expand(*batch, -1)
        super().__init__(batch, Size([dim] if dim > 1 else []), validate_args=validate_args)

    @classmethod
    def from_score(cls, score: FeatureExpansion, *args: Any, **options: Any) -> Self:
        """Return the density of an expansion in kernels or in a basis.

        Args:
            score: The `KernelExpansion` or `BasisExpansion`.
            args: What the constructor takes after the kernel, such as `base`.
            options: The same by name.

        Raises:
            ValueError: As the constructor; `score` of another class.
        """
        if not isinstance(score, FeatureExpansion):
            rule = "score must be a KernelExpansion or a BasisExpansion"
            raise ValueError(f"{rule}, got {score!r}")
        family: Any = cls
        density: Self = family(score.weights, score.features, None, *args, **options)
        return density

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
        if not isinstance(self.features, KernelFeatures):
            raise AttributeError("a density of a basis has neither kernel nor inducing points")
        return self.features

    def _with_parameters(
        self,
        shape: Size,
        change: Callable[[Tensor, Size], Tensor],
        instance: SparseDistribution | None = None,
    ) -> SparseDistribution:
        new = super()._with_parameters(shape, change, instance)
        rows = torch.arange(self._mass.shape[-1], device=self._mass.device)
        rows = change(rows.reshape(self.batch_shape), Size()).reshape(-1)
        for name in self._per_row:
            new.__dict__[name] = getattr(self, name).index_select(-1, rows)
        new.__dict__["_power"] = self._power.take(rows)
        if self.features.batch:
            event = self.features.points.shape[-2:]
            points = change(self.features.points.expand(self.batch_shape + event), event)
            new.__dict__.update(
                features=KernelFeatures(points, self.kernel), mesh=replace(self.mesh, matrix=None)
            )
        return new

    def detach(self) -> Self:
        new = super().detach()
        eps = map_tensors(self._power.eps, Tensor.detach)
        new.__dict__.update(_power=replace(self._power, eps=eps), features=self.features.detach())
        return new

    # Nodes

    def _set_mesh(self, tolerance: float | None, mesh: KernelMesh | None) -> None:
        """Find a mesh, or check the given one, and evaluate the scores at its nodes."""
        if mesh is not None and not isinstance(mesh, KernelMesh):
            raise ValueError(f"mesh must be that of another density, got {mesh!r}")
        self.mesh = self._find_mesh(tolerance) if mesh is None else mesh
        if mesh is not None and not torch.compiler.is_compiling():
            with torch.no_grad():
                dtype, validate = self.weights.dtype, bool(self._validate_args)
                mesh.require_fit(self.features, self.base, dtype, validate)
        self._scores = self._scores_at_nodes()
        if mesh is None or self.event_shape or not self._scores.numel():
            return
        # Not where that would wait for a device.
        if in_eager() and is_plain_cpu_tensor(self._scores) and (self.alpha < _PEAKED).any():
            self._refine_mesh()

    @torch.no_grad()
    def _refine_mesh(self) -> None:
        """Refine the mesh of another density where those of the largest scores are too peaked."""
        scores = self._scores.flatten(0, 1)
        spread = scores.amax(0) - scores.amin(0)
        rows = spread.topk(min(_SHARPEST, len(spread))).indices
        matrix, nodes = self.mesh.matrix, self.mesh.axes[0].rule()[0].flatten()
        if matrix is not None and not self.features.batch:
            matrix = matrix.unflatten(-1, self.mesh.measure.shape).mT.flatten(-2)
            weights = self.weights.detach().reshape(-1, matrix.shape[0])[rows].double()

        def exact(t: Tensor) -> Tensor:
            if matrix is None or self.features.batch or not torch.equal(t, nodes):
                return self._exact_scores(t, rows)
            return weights @ matrix

        finer = self.mesh.for_scores(exact, True)
        if finer is not self.mesh:
            with torch.enable_grad():
                self.mesh = finer.with_matrix_of(self.features)
                self._scores = self._scores_at_nodes()

    def _find_mesh(self, tolerance: float | None) -> KernelMesh:
        dim = self.features.dim
        rough, fine = _TOLERANCE.get(dim, _TOLERANCE[3])
        if is_default := tolerance is None:
            tolerance = fine if self.weights.dtype == torch.float64 else rough
        if not is_finite_number(tolerance) or not tolerance > 0:
            raise ValueError(f"tolerance must be a positive, finite number, got {tolerance!r}")
        base = BaseMeasure(self.base, dim, self.weights.dtype)
        require_inside(base, self.features)
        weights = _MARGIN * self.weights.detach().double().abs().unsqueeze(-2)
        # The power is smallest at the largest alpha of all densities that may share the mesh.
        eps = float(self.alpha.detach().double().amin()) - 1 if self.alpha.numel() else 1.0

        def growth(t: Tensor) -> Tensor:
            """Bound the log density at locations (q, D), also of somewhat larger scores."""
            if not weights.numel():
                return t.new_zeros(len(t))
            size = (weights @ self.features.at(t).detach().abs()).reshape(-1, len(t)).amax(0)
            return torch.log1p(eps * size) / eps if eps > 0 else size

        find = partial(KernelMesh.find, self.features, base, growth=growth)
        mesh = find(tolerance=float(tolerance))
        if is_default and mesh.is_wide and not self.event_shape and tolerance > _OF_WIDE:
            mesh = find(tolerance=_OF_WIDE)
        if self.event_shape or not weights.numel():
            return mesh
        with torch.no_grad():
            peaked = bool((self.alpha < _PEAKED).any())
            finer = mesh.for_scores(self._exact_scores, peaked)
        return mesh if finer is mesh else finer.with_matrix_of(self.features)

    def _exact_scores(self, t: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the scores (R, q) of all rows or of some at locations (q,), float64."""
        weights, batch = self.weights.detach().double(), self.batch_shape
        if rows is not None and not self.features.batch:
            weights, batch = weights.reshape(-1, weights.shape[-1])[rows], rows.shape
        located = t.reshape(-1, *(1,) * (len(batch) + 1))
        found = self.features.score(weights, located, batch).reshape(len(t), -1).T
        return found if rows is None or not self.features.batch else found[rows]

    def _scores_at_nodes(self) -> Tensor:
        """Return f at the nodes (m, G, R), in the dtype of all sums over nodes."""
        # Float64 if so many kernels overlap that large weights cancel (vectors have too many nodes
        # for it), or if scores are so large that their last bits matter.
        dtype = self.weights.dtype
        if self.mesh.is_wide and not self.event_shape:
            dtype = torch.float64
        scores = self._scores_in(dtype, self.mesh)
        if dtype == torch.float32 and scores.numel() and in_eager() and is_plain_cpu_tensor(scores):
            # Contiguous in memory.
            rows = scores.detach().movedim(-1, 0) if self._is_exponential else scores.detach()
            low, high = rows.aminmax()
            if float(torch.maximum(-low, high)) > _LARGE:
                return self._scores_in(torch.float64, self.mesh)
        return scores

    def _scores_in(self, dtype: torch.dtype, mesh: KernelMesh) -> Tensor:
        """Return f at the nodes of a mesh (m, G, R) in a dtype."""
        matrix = mesh.matrix
        if matrix is None:
            matrix = self.features.at(mesh.nodes)
        # Wide kernels, here or in the family's own mesh, have large weights that cancel.
        weights = self.weights.to(torch.float64 if self.mesh.is_wide else dtype)
        matrix = matrix.to(weights)
        if matrix.dim() == 2:
            rows = weights.reshape(-1, weights.shape[-1])
            # A softmax over nodes takes the nodes of each density together.
            scores = (rows @ matrix).T if self._is_exponential else matrix.T @ rows.T
        else:
            scores = (weights.unsqueeze(-2) @ matrix).reshape(-1, matrix.shape[-1]).T
        return scores.to(dtype).reshape(*mesh.measure.shape, -1)

    def _offsets_on(self, mesh: KernelMesh) -> Tensor:
        """Return f - A at the nodes of a mesh (m, G, R)."""
        if mesh is self.mesh:
            return self._scores - self._level
        return self._scores_in(self._scores.dtype, mesh) - self._level

    def _measure(self, mesh: KernelMesh) -> Tensor:
        return mesh.measure.unsqueeze(-1).to(self._scores.dtype)

    # Solving

    def _normalize_exponential(self) -> None:
        """Set the weights of the density at alpha = 1: a softmax over nodes."""
        scores, log_measure = self._scores.flatten(0, 1).T, self._log_measure
        top = scores.detach().amax(-1)
        require(top.abs() <= _most_digits(top), "weights", _DIGITS.format(top.dtype), self.weights)
        # Logarithms of at most 0 leave scores their digits.
        weights = torch.softmax(scores + (log_measure - log_measure.amax()), -1)
        self._power, self._mass = Power(0.0), torch.ones_like(top)
        self._nodal = self._escort_nodal = weights.T.reshape(self._scores.shape)

    @property
    def _log_measure(self) -> Tensor:
        return self._measure(self.mesh).flatten().log()

    @lazy_property
    def _level(self) -> Tensor:
        """A (R,) at alpha = 1; others solve for it."""
        return torch.logsumexp(self._scores.flatten(0, 1).T + self._log_measure, -1)

    def _normalize(self, power: Power) -> None:
        """Set A and the weights of the density with Z = 1."""
        level, nodal, escort, mass = normalized_weights(
            self._scores, self._measure(self.mesh), power.eps
        )
        # Rounding f and A changes the log density f - A by the last digit of A.
        digits = (level.abs() <= _most_digits(level)) & ((mass - 1).abs() <= _MASS)
        require(digits, "weights", _DIGITS.format(mass.dtype), self.weights)
        self._power, self._level, self._mass = power, level, torch.ones_like(level)
        self._nodal, self._escort_nodal = nodal, escort

    def _integrate(self, power: Power, level: Tensor) -> None:
        """Set Z and the weights of a density whose A is given."""
        self._power, self._level = power, level
        measure = self._measure(self.mesh)
        self._nodal, self._escort_nodal = integrals(self._scores - level, measure, power)
        self._mass = sum_nodes(self._nodal)

    @torch.no_grad()
    def _require_resolved(self) -> None:
        """Raise if large scores move a density so far into a tail that the mesh misses it."""
        mesh = self.mesh
        far = mesh.measure.sum(0) < mesh.tolerance
        if self.event_shape or not self.batch_shape.numel() or not bool(far.any()):
            return
        logs = self._scores + mesh.measure.log().unsqueeze(-1)
        shares = torch.softmax(logs.flatten(0, 1), 0).reshape(logs.shape).sum(0)
        # No power moves as far as the exponential.
        if bool((shares[far].sum(0) <= _FAR_OUT).all()):
            return
        mass = sum_nodes(self._weights_on(mesh.with_order(2 * mesh.axes[0].size)))
        rule = "so small that the density is not in the far tails of the base"
        require((mass - 1).abs() <= math.sqrt(mesh.tolerance), "weights", rule, self.weights)

    def _batched(self, rows: Tensor) -> Tensor:
        return rows.reshape(self.batch_shape).to(self.weights.dtype)

    def _batched_power(self) -> Power:
        """Return the power with eps in the shape of the batch."""
        power = self._power
        if isinstance(power.eps, Tensor):
            return replace(power, eps=power.eps.reshape(self.batch_shape))
        return power

    # Densities

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density; -inf off the support, with zero gradient."""
        if self._validate_args:
            self._validate_sample(value)
        located = value if self.event_shape else value.unsqueeze(-1)
        inside = torch.isfinite(self.mesh.base.log_density(located.detach())).unsqueeze(-1)
        located = torch.where(inside, located, self._inner_location().to(value.dtype).reshape(-1))
        base, inside = self.mesh.base.log_density(located), inside.squeeze(-1)
        # Rounded only after the difference, where both are large.
        score = self.features.score(self.weights.to(self._level), located, self.batch_shape)
        log = _log_power(self._batched_power(), score - self._level.reshape(self.batch_shape))
        # Off the support there is no gradient in Z either.
        inside = inside & (log > -math.inf)
        log = log - self._mass.log().reshape(self.batch_shape) + base
        return torch.where(inside, log, -math.inf).to(self.weights.dtype)

    def _inner_location(self) -> Tensor:
        """Return a location in the base's support (*event), where the mesh has most mass."""
        place = self.mesh.measure.flatten().argmax(0, keepdim=True)
        node = self.mesh.nodes.index_select(0, place).reshape(self.event_shape)
        return node.to(self.weights)

    @property
    def _share(self) -> Tensor:
        """The factor (*batch) of f in the score of the prediction map with this alpha."""
        own = self._batched_power().factor_of_log
        rule = "finite for a score to be determined"
        require(torch.as_tensor(own != 0), "alpha", rule, self.alpha)
        share = own * torch.exp(-(self.alpha - 1) * self._batched(self._mass.log()))
        return share.to(self.weights.dtype)

    @property
    def log_normalizer(self) -> Tensor:
        r"""$A_\alpha$ in $p = \exp_{2-\alpha}(score - A_\alpha)$ relative to the base (*batch)."""
        return self._log_mass + self._share * self._batched(self._level)

    @property
    def _log_mass(self) -> Tensor:
        """The deformed logarithm of Z (*batch), what A is without that of f."""
        log_mass = self._mass.log().reshape(self.batch_shape)
        rest = log_mass * expm1_ratio(-(self.alpha - 1) * log_mass)
        return rest.to(self.weights.dtype)

    @property
    def score(self) -> FeatureExpansion:
        """The expansion with `rpm(score, alpha, base)` equal to this density."""
        return self._with_weights(self._share.unsqueeze(-1) * self.weights)

    def _with_weights(self, weights: Tensor) -> FeatureExpansion:
        """Return the expansion with other weights of the same functions."""
        if isinstance(self.features, BasisFeatures):
            return BasisExpansion(weights, self.features.basis)
        return KernelExpansion(weights, self.inducing_points, self.kernel)

    # Integrals

    def _unnormalized_on(self, mesh: KernelMesh) -> Tensor:
        """Return weights (m, G, R) at the nodes of a mesh, times Z."""
        if mesh is self.mesh:
            return self._nodal
        measure = self._measure(mesh)
        return integrals(self._offsets_on(mesh), measure, self._power)[0]

    def _weights_on(self, mesh: KernelMesh) -> Tensor:
        """Return weights (m, G, R) at the nodes of a mesh: their sum with g is E_p[g]."""
        return self._unnormalized_on(mesh) / self._mass

    def quadrature(self, order: int = 64) -> tuple[Tensor, Tensor]:
        r"""Return nodes (Q, *batch, *event), weights (Q, *batch): $\sum_q w_q g(t_q) \to E_p[g]$.

        All densities have the same nodes. Weights next to an edge of the support may be negative.

        Args:
            order: Subintervals are halved until each axis has at least this many nodes.

        Raises:
            ValueError: `order` below 1, or above 2^18.
        """
        require_integer("order", order, 1, MOST_NODES)
        mesh = self.mesh.with_order(order)
        weights = self._weights_on(mesh).to(self.weights.dtype)
        count = len(mesh.nodes)
        nodes = mesh.nodes.to(self.weights).reshape(count, *(1,) * len(self.batch_shape), -1)
        nodes = nodes.expand(count, *self.batch_shape, -1)
        weights = weights.reshape(count, *self.batch_shape)
        return nodes if self.event_shape else nodes.squeeze(-1), weights

    def basis_means(self, psi: Basis) -> Tensor:
        """Return E_p[psi] (*batch, N), on a mesh that also resolves the basis."""
        mesh = self.mesh.for_basis(psi)
        return self._means(self._values_of(psi, mesh), mesh).to(self._dtype_with(psi))

    def _means(self, values: Tensor, mesh: KernelMesh) -> Tensor:
        """Return expectations (*batch, N) of functions with values (Q, N) at nodes."""
        weights = self._unnormalized_on(mesh).reshape(len(mesh.nodes), -1).to(values)
        if self._is_exponential and mesh is self.mesh:
            return (weights.T @ values).reshape(*self.batch_shape, values.shape[1])
        # A column of ones gives the total, and makes gradients those of centred functions.
        sums = weights.T @ torch.cat([values, values.new_ones(len(values), 1)], -1)
        means = sums[:, :-1] / sums[:, -1:]
        return means.reshape(*self.batch_shape, values.shape[1])

    def combination_means(self, psi: Basis, coefficients: Tensor) -> Tensor:
        r"""Return $E_p[\psi]^\top C$ (*batch, E) with coefficients C (*batch[:-1], N, E).

        The combinations are evaluated at the nodes, unless there are fewer densities for each.
        """
        (size, width), count = coefficients.shape[-2:], self.batch_shape[-1]
        mesh = self.mesh.for_basis(psi)
        values, nodes = self._values_of(psi, mesh), len(mesh.nodes)
        dtype = torch.promote_types(self._dtype_with(psi), coefficients.dtype)
        if nodes * size * width + count * nodes * width > count * size * (nodes + width):
            means = self._means(values, mesh).to(dtype)
            return means @ coefficients.to(dtype)
        values = values @ coefficients.to(values)  # (*batch[:-1], Q, E)
        weights = self._unnormalized_on(mesh).reshape(nodes, *self.batch_shape).to(values)
        weights = weights.movedim(0, -2)  # (*batch[:-1], Q, count)
        if self._is_exponential and mesh is self.mesh:
            return (weights.mT @ values).to(dtype)
        ones = values.new_ones(*values.shape[:-1], 1)
        sums = torch.cat([values, ones], -1).mT @ weights
        return (sums[..., :-1, :] / sums[..., -1:, :]).mT.to(dtype)

    def _values_of(self, psi: Basis, mesh: KernelMesh) -> Tensor:
        """Return a basis at the nodes of a mesh (Q, N), in the dtype of sums or a longer one."""
        if self.event_shape:  # sums over thousands of nodes lose two digits of float32
            return psi.in_float64(mesh.nodes)
        # In float32 the rounding of a location may be much of the width of a function.
        dtype = torch.promote_types(self._scores.dtype, self._dtype_with(psi))
        return psi.in_float64(mesh.nodes.squeeze(-1)).to(dtype)

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
        means = self._means(self.mesh.nodes, self.mesh).to(self.weights.dtype)
        return means if self.event_shape else means.squeeze(-1)

    @property
    def variance(self) -> Tensor:
        """Variance of each component (*batch, *event)."""
        found = self.covariance_matrix.diagonal(dim1=-2, dim2=-1)
        return found if self.event_shape else found.squeeze(-1)

    @property
    def covariance_matrix(self) -> Tensor:
        """Covariance (*batch, D, D), also of a number; a ValueError if there is none."""
        self._require_moment(2)
        nodes = self.mesh.nodes
        offset = nodes - self._means(nodes, self.mesh).unsqueeze(-2)
        weights = self._weights_on(self.mesh).reshape(len(nodes), -1).T.double()
        weights = weights.reshape(*self.batch_shape, len(nodes), 1)
        return ((weights * offset).mT @ offset).to(self.weights.dtype)

    def _require_moment(self, order: int) -> None:
        """Raise unless the mesh holds nearly all of an absolute moment, which then exists."""
        # An integrand that falls as |t|^(-1 - a) is, times the distance, a/2 of the missing part.
        if torch.compiler.is_compiling():
            return
        base, mesh = self.mesh.base, self.mesh
        for axis in range(base.dim):
            low, high = base.bounds(axis)
            open_ends = [place for place, end in ((0, low), (-1, high)) if math.isinf(end)]
            if not open_ends:
                continue
            weights = self._weights_on(mesh).detach().double().flatten(0, 1)
            places, centre = mesh.nodes[:, axis], base.centre(axis)
            total = ((places - centre).abs() ** order) @ weights
            t, lengths = (x.flatten()[open_ends] for x in mesh.axes[axis].rule())
            last = torch.stack([weights[places == end].sum(0).abs() for end in t], -1) / lengths
            left = last @ ((t - centre).abs() ** (order + 1))
            rule = f"so light in its tails that the moment of order {order} exists, within reach"
            require(left <= _LEFT * total, "base", rule, base.factors[axis])

    @property
    @torch.no_grad()
    def mode(self) -> Tensor:
        """Location of the largest density (*batch, *event), by a search from the best node."""
        nodes, _ = self.quadrature(1)
        best = self.log_prob(nodes).argmax(0, keepdim=True)
        dim = self.features.dim
        lifted = nodes if self.event_shape else nodes.unsqueeze(-1)
        t = lifted.gather(0, best.unsqueeze(-1).expand(1, *self.batch_shape, dim))
        width = torch.stack([axis.breaks.diff().amax() for axis in self.mesh.axes]).to(t)
        steps = torch.cartesian_prod(*[torch.linspace(-1, 1, 5).to(t)] * dim)
        steps = steps.reshape(-1, *(1,) * len(self.batch_shape), dim)
        for _ in range(_STEPS):
            near = t + width * steps
            log = self.log_prob(near if self.event_shape else near.squeeze(-1))
            best = log.argmax(0, keepdim=True).unsqueeze(-1).expand(1, *self.batch_shape, dim)
            t, width = near.gather(0, best), width * _SHRINKAGE
        t = t.squeeze(0)
        return t if self.event_shape else t.squeeze(-1)

    def tsallis_entropy(self) -> Tensor:
        r"""Return $-\Omega_\alpha(p)$ relative to the base (*batch)."""
        # (1 - int p^alpha)/(alpha (alpha - 1)), and p^(alpha - 1) = 1 + (alpha - 1)(score - A).
        mean = sum_nodes(self._weights_on(self.mesh) * (self._scores - self._level))
        return (self._log_mass - self._share * self._batched(mean)) / self.alpha

    def entropy(self) -> Tensor:
        r"""Return Shannon's entropy $-\int p \log p\,dt$ (*batch).

        Accurate to 1e-6 only where the base's log density is singular at an end of its support.
        """
        power, offsets = self._power, self._offsets_on(self.mesh)
        if power.is_exponential:
            logs = sum_nodes(self._nodal * offsets)
        else:
            logs = sum_nodes(integrals(offsets, self._measure(self.mesh), power, ("log",))[0])
        relative = self._batched(self._mass.log() - power.factor_of_log * logs / self._mass)
        log_base = self.mesh.base.log_density(self.mesh.nodes).unsqueeze(-1)
        log_base = torch.where(log_base.isinf(), 0.0, log_base)
        return relative - self._means(log_base, self.mesh).squeeze(-1).to(relative.dtype)

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
        """Return the power of p^beta."""
        if beta is None:
            # 2 - alpha, which lowers the exponent of a prediction map by one.
            return self._power.lowered()
        if float(beta) < 0:
            raise ValueError(f"beta must not be negative, got {beta}")
        if self._power.order:
            raise ValueError(f"beta must be None for the escort of an escort, got {beta}")
        return replace(self._power, ratio=self._power.ratio * float(beta))

    def _beta_covariance(self, phi: Basis, psi: Basis, beta: Tensor | float | None) -> Tensor:
        r"""Return the $\beta$-covariance of two bases relative to the base (*batch, M, N)."""
        mesh = self.mesh.for_basis(phi).for_basis(psi)
        weights = self._escort_weights_on(mesh, beta).flatten(0, 1).T.double()
        left, right = (self._values_of(basis, mesh).double() for basis in (phi, psi))
        total = weights.sum(-1, keepdim=True)
        # Both centred: the covariance of a constant is 0 to the last digit.
        left, right = (x - ((weights @ x) / total).unsqueeze(1) for x in (left, right))
        found = ((weights.unsqueeze(-1) * left).mT @ right).to(self._dtype_with(phi, psi))
        return found.reshape(*self.batch_shape, *found.shape[1:])

    def _escort_weights_on(self, mesh: KernelMesh, beta: Tensor | float | None) -> Tensor:
        """Return weights (m, G, R) of p^beta at the nodes of a mesh."""
        if _is_one(beta):
            return self._weights_on(mesh)
        power = self._escort_power(beta)
        exponent = 2 - self.alpha.reshape(-1) if beta is None else float(beta)
        found = self._escort_nodal
        if beta is not None or mesh is not self.mesh:
            measure = self._measure(mesh)
            found, _ = integrals(self._offsets_on(mesh), measure, power)
        return found * torch.exp(-exponent * self._mass.log())

    # Supports, distribution functions and samples

    @lazy_property
    @torch.no_grad()
    def _intervals(self) -> Tensor:
        """The intervals (*batch, K, 2) of the support of a number, padded with NaN."""
        _require_values("the support, icdf and samples")
        if not self.batch_shape.numel():
            return self.weights.new_empty(*self.batch_shape, 1, 2)
        x, power = self._offsets_on(self.mesh), self._power
        inside = torch.ones_like(x) if power.is_exponential else power.inside(x)
        inside = inside.flatten(1)
        lower, upper = pieces_by_column(positive_pieces(inside), inside.shape[1])
        breaks = self.mesh.axes[0].breaks.to(lower)
        shape = (len(lower), len(breaks) - 1, -1)
        lower, upper = (end.reshape(shape).permute(2, 1, 0) for end in (lower, upper))
        alive = (upper > lower) & (self.mesh.measure > 0).any(0).unsqueeze(-1)
        low, high = breaks[:-1].unsqueeze(-1), breaks[1:].unsqueeze(-1)
        # lerp is exact at the ends of subintervals.
        ends = torch.stack([torch.lerp(low, high, (1 + y) / 2) for y in (lower, upper)], -1)
        ends = torch.where(alive.unsqueeze(-1), ends, math.nan).to(self.weights)
        found = IntervalUnion.merged(ends.flatten(1, 2)).intervals
        most = int((~found[..., 0].isnan()).sum(-1).amax())
        found = found[:, :most].reshape(*self.batch_shape, most, 2)
        # Ends of the mesh are those of the base, which may be infinite.
        (first, last), bounds = self._range, self.mesh.base.bounds(0)
        lower = torch.where(found[..., 0] <= first, bounds[0], found[..., 0])
        return torch.stack(
            [lower, torch.where(found[..., 1] >= last, bounds[1], found[..., 1])], -1
        )

    @property
    def _range(self) -> tuple[Tensor, Tensor]:
        breaks = self.mesh.axes[0].breaks.to(self.weights)
        return breaks[0], breaks[-1]

    @constraints.dependent_property(is_discrete=False)
    def support(self) -> constraints.Constraint:
        """The exact union of intervals; for vectors a region that can be checked."""
        if self.event_shape:
            return Region(lambda t: self.log_prob(t) > -math.inf, len(self.event_shape))
        return IntervalUnion(self._intervals, self.log_prob)

    def cdf(self, value: Tensor) -> Tensor:
        """Return the distribution function of a number at values (*S, *batch)."""
        self._require_number("cdf")
        if self._validate_args:
            self._validate_sample(value)
        value = value.expand(broadcast_shapes(value.shape, self.batch_shape))
        if not value.numel():
            return value.clone()
        first, last = self._range
        dtype = torch.promote_types(value.dtype, self._scores.dtype)
        t = value.detach().to(dtype).clamp(first.to(dtype), last.to(dtype))
        breaks = self.mesh.axes[0].breaks.to(t)
        cell = (torch.searchsorted(breaks, t.contiguous()) - 1).clamp(0, len(breaks) - 2)
        low, high = breaks[cell], breaks[cell + 1]
        y = ((2 * t - low - high) / (high - low)).clamp(-1, 1)
        x, measure, power = self._cell_values(cell)
        x, measure = below(x, measure, y.reshape(-1).to(x))
        (part,) = integrals(x, measure, power, ("power",))
        part = part.sum(0).reshape(value.shape) / self._mass.reshape(self.batch_shape)
        masses = self._cell_masses()
        before = (masses.cumsum(-1) - masses).expand(*cell.shape, -1)
        before = before.gather(-1, cell.unsqueeze(-1)).squeeze(-1)
        found = (before + part).to(torch.promote_types(value.dtype, self.weights.dtype))
        if value.requires_grad or may_have_tangent(value):
            density = self.prob(value.detach()).detach()
            found = differentiable_once(found + (value - value.detach()) * density)
        found = torch.where(value <= first, 0.0, torch.where(value >= last, 1.0, found))
        return found.clamp(0, 1)

    def _cell_values(self, cell: Tensor) -> tuple[Tensor, Tensor, Power]:
        """Return f - A (m, n), measure (m, n) and power of subintervals (*S, *batch)."""
        offsets = self._offsets_on(self.mesh)
        row = torch.arange(offsets.shape[-1], device=cell.device).reshape(self.batch_shape)
        row, place = row.expand(cell.shape).reshape(-1), cell.reshape(-1)
        measure = self._measure(self.mesh).squeeze(-1)[:, place]
        return offsets[:, place, row], measure, self._power.take(row)

    def _cell_masses(self) -> Tensor:
        """Return masses of subintervals (*batch, G)."""
        masses = self._weights_on(self.mesh).sum(0)
        return masses.T.reshape(*self.batch_shape, len(masses))

    def icdf(self, value: Tensor) -> Tensor:
        """Return quantiles of a number, differentiable once in the level and the parameters.

        The quantiles of 0 and 1, the ends of the support, have no derivatives.

        Raises:
            ValueError: Levels outside [0, 1].
        """
        self._require_number("icdf")
        _require_values("icdf")
        if self._validate_args:
            self._validate_probability(value)
        value = value.expand(broadcast_shapes(value.shape, self.batch_shape))
        t = self._quantiles(value.detach())
        # With less mass than rounding beyond, the quotient of derivatives has no digits.
        at_end = torch.minimum(value, 1 - value) < _ROUNDING * torch.finfo(t.dtype).eps
        return torch.where(at_end, t, self._with_gradient(t, value))

    def _with_gradient(self, t: Tensor, level: Tensor | None = None) -> Tensor:
        """Return quantiles t with the derivatives of the implicit function: dt = (dq - dF)/p."""
        mass = self.cdf(t)
        return _implicit(t, mass if level is None else mass - level, self.prob(t))

    def _nearer_end(self, level: Tensor) -> tuple[Tensor, Tensor]:
        """Return the nearer end of the support, and the mass between."""
        first, last = self._intervals[..., 0, 0], self._intervals[..., 1].nan_to_num(-math.inf)
        upper = level > 0.5
        return torch.where(upper, last.amax(-1), first), torch.where(upper, 1 - level, level)

    @torch.no_grad()
    def _quantiles(self, level: Tensor) -> Tensor:
        """Return quantiles of levels (*S, *batch), without derivatives."""
        _require_values("icdf and samples")
        if not level.numel():
            return level.clone()
        (end, beyond), dtype = self._nearer_end(level), level.dtype
        masses = self._cell_masses().clamp_min(0)
        level = level.to(masses)
        above = masses.cumsum(-1)
        above = (above / above[..., -1:]).expand(*level.shape, -1).contiguous()
        cell = torch.searchsorted(above, level.unsqueeze(-1).contiguous()).clamp_max(
            masses.shape[-1] - 1
        )
        last = above.gather(-1, cell).squeeze(-1)
        own = masses.expand(*level.shape, -1).gather(-1, cell).squeeze(-1)
        cell = cell.squeeze(-1)
        x, measure, power = self._cell_values(cell)
        _, lengths = self.mesh.axes[0].rule()
        density = measure / lengths.to(measure).T[:, cell.reshape(-1)]
        breaks = self.mesh.axes[0].breaks.to(level)
        low, high = breaks[cell], breaks[cell + 1]
        mass = (own - (last - level)).clamp_min(0) * self._mass.reshape(self.batch_shape)
        y = power_quantiles(x, density, power, (mass * 2 / (high - low)).reshape(-1))
        t = torch.lerp(low, high, (1 + y.reshape(level.shape)) / 2).to(dtype)
        # Rounding may have left the support: the nearest location in it.
        lower, upper = self._intervals.to(t).unbind(-1)
        inside = torch.minimum(torch.maximum(t.unsqueeze(-1), lower), upper)
        gap = (inside - t.unsqueeze(-1)).abs().nan_to_num(math.inf)
        t = inside.gather(-1, gap.argmin(-1, keepdim=True)).squeeze(-1)
        return torch.where(beyond <= 0, end, t)

    def _require_number(self, name: str) -> None:
        if self.event_shape:
            raise NotImplementedError(f"{name} exists for numbers only")

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether `rsample` exists: for numbers, if every support is one interval.

        Over a gap the derivative of the quantile function misses how mass moves across;
        `rsample_components` is exact.
        """
        return not self.event_shape and self._intervals.shape[-2] == 1

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
        return self._with_gradient(self.sample(sample_shape))

    @torch.no_grad()
    def sample(self, sample_shape: _size = Size()) -> Tensor:
        """Draw independent samples (*sample, *batch, *event): by quantiles, vectors by rejection.

        From 8192 draws on, a table of quantiles is interpolated, to 1e-8 of the distance between
        the ends of the support (1e-6 in float32).

        Vectors are proposed uniformly in cells around the nodes and accepted under a bound that is
        estimated from the nodes. Where a proposal is above it, the bound is raised and the vectors
        of that density are drawn anew.

        Raises:
            RuntimeError: A density of vectors that is much narrower than the nodes are apart.
        """
        sample_shape = require_shape("sample_shape", sample_shape)
        if self.event_shape:
            return _draw_vectors(self, sample_shape)
        shape = self._extended_shape(sample_shape)
        level = torch.rand(shape, dtype=self.weights.dtype, device=self.weights.device)
        if sample_shape.numel() < _TABLED:
            return self._quantiles(level)
        return self._tabled_quantiles(level.flatten(0, len(sample_shape) - 1)).reshape(shape)

    def _tabled_quantiles(self, level: Tensor) -> Tensor:
        """Return quantiles (n, *batch) by cubic polynomials, or exactly where these are off."""
        count = 2 * _BRACKETS + 1
        knots = torch.linspace(0, 1, count, dtype=level.dtype, device=level.device)
        t = self._quantiles(
            knots.reshape(-1, *(1,) * (level.dim() - 1)).expand(-1, *level.shape[1:])
        )
        first, last, middle = t[:-1:2], t[2::2], t[1::2]
        start, end = (1 / (_BRACKETS * self.prob(side)) for side in (first, last))
        rise = last - first
        error = (first + rise / 2 + (start - end) / 8 - middle).abs()
        close = error <= _TABLE_ERROR[t.dtype] * (t[-1] - t[0])
        place = (level * _BRACKETS).long().clamp_max(_BRACKETS - 1)
        u = level * _BRACKETS - place
        second, third = 3 * rise - 2 * start - end, start + end - 2 * rise
        low, a, b, c = (x.gather(0, place) for x in (first, start, second, third))
        found = torch.minimum(low + u * (a + u * (b + u * c)), last.gather(0, place))
        found, close = torch.maximum(found, low), close.gather(0, place)
        others = (~close).reshape(len(close), -1).any(1).nonzero().squeeze(-1)
        return found.index_copy(0, others, self._quantiles(level[others]))

    def rsample_components(self, sample_shape: _size = Size()) -> tuple[Tensor, Tensor]:
        r"""Draw from every interval of the support, and return the intervals' masses.

        Both are differentiable: $\sum_k m_k \phi(t_k)$ has the mean $E_p[\phi]$ and the right
        gradient, also over gaps, where that of a plain sample is biased.

        Returns:
            Draws (*sample, *batch, K) and masses (*batch, K), 0 where there are fewer intervals.

        Raises:
            NotImplementedError: Vectors.
        """
        self._require_number("rsample_components")
        lower, upper = self._intervals.unbind(-1)
        present = ~lower.isnan()
        ends = [torch.where(present, end, end[..., :1]).movedim(-1, 0) for end in (lower, upper)]
        before, after = (self.cdf(end) for end in ends)  # (K, *batch)
        masses = torch.where(present.movedim(-1, 0), after - before, 0.0)
        shape = Size([*sample_shape, *before.shape])
        share = torch.rand(shape, dtype=before.dtype, device=before.device)
        # At a fixed share of its own component: d[F(t) - F(a)] = share d[F(b) - F(a)].
        level = before + share * (after - before)
        t = self._quantiles(level.detach())
        t = self._with_gradient(torch.minimum(torch.maximum(t, ends[0]), ends[1]), level)
        return t.movedim(len(sample_shape), -1), masses.movedim(0, -1)

    def to_float64(self) -> "KernelDistribution":
        """Return the same density computed in float64."""
        raise NotImplementedError


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
        mesh: That of another density with the same kernel, inducing points, base and dtype;
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
        Canu and Smola (2006), Kernel methods and the exponential family. Moreno et al. (2022),
        Kernel Deformed Exponential Families for Sparse Continuous Attention, section 4.1 and
        Prop. 1.

    Examples:
        >>> from pyro.contrib.gp.kernels import RBF
        >>> kernel = RBF(1, lengthscale=torch.tensor(0.1))
        >>> p = KernelExp(torch.tensor([3.0, 0.0, 2.0]), torch.tensor([0.2, 0.5, 0.8]), kernel)
        >>> p.mean.detach()
        tensor(0.3936)
    """

    _is_exponential: ClassVar[bool] = True

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
        with torch.enable_grad():
            self._set_mesh(tolerance, mesh)
            self._normalize_exponential()
        if mesh is None:
            self._require_resolved()

    def escort(self, beta: Tensor | float | None = None) -> "KernelExp":
        r"""Return the $\beta$-escort relative to the base, with beta times the weights; default 1.

        Raises:
            ValueError: `beta` negative or not finite.
        """
        if beta is None:
            return self
        require_power(beta)
        power = torch.as_tensor(beta, dtype=self.weights.dtype, device=self.weights.device)
        require(torch.isfinite(power) & (power >= 0), "beta", "finite and not negative", beta)
        score = self._with_weights(power.unsqueeze(-1) * self.weights)
        return KernelExp.from_score(
            score, self.base, mesh=self.mesh, validate_args=self._validation
        )

    def to_float64(self) -> "KernelExp":
        """Return the same density computed in float64."""
        score = self._with_weights(self.weights.double())
        return KernelExp.from_score(score, self.base, validate_args=False)


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
            is empty outside, naming the batch indices, or a power too large to be normalised there.

    References:
        Moreno et al. (2022), Kernel Deformed Exponential Families for Sparse Continuous Attention,
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
        with torch.enable_grad():
            self._set_mesh(tolerance, mesh)
            if isinstance(alpha, Real):
                power = Power(float(alpha) - 1)
            else:
                power = Power((self.alpha - 1).reshape(-1).to(self._scores.dtype))
            if normalization == "inside":
                self._normalize(power)
            else:
                self._normalize_outside(power)
        if mesh is None:
            self._require_resolved()

    def _normalize_outside(self, power: Power) -> None:
        """Set Z and the weights at A = 0."""
        if not power.is_product:
            log = power.log_base(self._scores.detach().amax((0, 1)))
            rule = f"so small that powers are below exp({LOG_LARGE:g}) with normalization='outside'"
            require(log < LOG_LARGE, "weights", rule, self.weights)
        self._integrate(power, self._scores.new_zeros(self._scores.shape[-1]))
        alive = (self._mass.detach() > 0).reshape(self.batch_shape)
        if torch.compiler.is_compiling() or alive.is_meta:
            return
        if not torch._is_all_true(alive):
            raise ValueError(
                "weights must be such that 1 + (alpha - 1) f is positive somewhere "
                "(normalization='inside' always has a support), got an empty support at batch "
                f"indices {(~alive).nonzero().tolist()}"
            )

    def to_float64(self) -> "KernelDeformedExp":
        """Return the same density computed in float64."""
        score, eps = self._with_weights(self.weights.double()), self._power.eps
        parts = self.base, self.alpha.double() if isinstance(eps, Tensor) else eps + 1
        return KernelDeformedExp.from_score(score, *parts, self.normalization, validate_args=False)


class KernelEscort(KernelDistribution):
    """An escort of a density of a kernel family; made by its `escort`.

    Args:
        parent: The density.
        power: The power of the escort.
    """

    def __init__(self, parent: KernelDistribution, power: Power) -> None:
        self._parent = parent
        alpha = 1 + 1 / torch.as_tensor(power.exponent, dtype=parent.weights.dtype)
        own = alpha.reshape(parent.batch_shape) if isinstance(power.eps, Tensor) else alpha.item()
        super().__init__(
            parent.weights, parent.features, None, parent.base, own, parent._validation
        )
        self.mesh = parent.mesh
        with torch.enable_grad():
            self._scores = parent._scores
            self._integrate(power, parent._level)

    def _with_parameters(self, shape: Size, *others: Any, **options: Any) -> SparseDistribution:
        new = super()._with_parameters(shape, *others, **options)
        new.__dict__["_parent"] = self._parent._with_parameters(shape, others[0])
        return new

    def to_float64(self) -> "KernelEscort":
        """Return the same density computed in float64."""
        parent, power = self._parent.to_float64(), self._power
        if isinstance(power.eps, Tensor):
            power = replace(power, eps=parent._power.eps)
        return KernelEscort(parent, power)


def _uniform_on(basis: Basis) -> list[Distribution]:
    """Return the uniform density on the domain of a basis, a factor for each axis."""
    if not all(math.isfinite(end) for side in basis.domain for end in side):
        raise ValueError(f"base must be given for a basis without bounds, got None and {basis!r}")
    device = [*basis.buffers(), *basis.parameters(), torch.empty(0)][0].device
    return uniform_box(*torch.tensor(basis.domain, dtype=torch.float64, device=device).T)


def _require_values(name: str) -> None:
    """Raise where the number of roots, which decides shapes, cannot be read."""
    if not in_eager() or forward_ad._current_level >= 0:
        raise RuntimeError(
            f"{name} of a kernel family needs the values of its parameters, which torch.compile, "
            "torch.func and forward mode hide: call it outside, on a density with a batch"
        )


def _most_digits(x: Tensor) -> float:
    """Return the largest score that has enough digits after the point in a dtype."""
    return float(torch.finfo(x.dtype).eps ** (-2 / 3))


def _is_one(beta: Tensor | float | None) -> bool:
    """Return whether the power of an escort is 1; a ValueError unless it is one number or None."""
    require_power(beta)
    if isinstance(beta, Tensor) and beta.numel() != 1:
        raise ValueError(f"beta must be one number for a kernel family, got {beta}")
    return beta is not None and float(beta) == 1


def _implicit(t: Tensor, residual: Tensor, slope: Tensor) -> Tensor:
    """Return t with the first derivatives of the root of a residual with a slope."""
    slope = slope.detach()
    change = residual - residual.detach()
    change = torch.where(slope > 0, change / torch.where(slope > 0, slope, 1.0), 0.0)
    return differentiable_once(t.detach() - change)


# Draws of vectors

# A cell's bound is the node's score, plus this share of the way to the greatest of its neighbours
# and that share of their range, at most 1, for peaks between nodes.
_TOWARDS, _BEYOND, _HIGHEST = 0.75, 0.375, 1.0
# Numbers in the largest matrix of a round; proposals for each draw, and in any case.
_ELEMENTS, _MOST_PROPOSALS, _ANY_PROPOSALS = 2**21, 200, 10**6


def _draw_vectors(p: KernelDistribution, sample_shape: Size) -> Tensor:
    """Draw vectors (*sample, *batch, D) by rejection in cells around the nodes."""
    ends = [_cell_ends(axis) for axis in p.mesh.axes]
    log_bound, log_volume = _bounds(p, ends)
    rows, dim = len(log_bound), len(ends)
    count = sample_shape.numel() * rows
    row = torch.arange(count, device=log_bound.device) % max(rows, 1)
    above = _distribution(log_bound + log_volume)
    found = p.weights.new_empty(count, dim)
    waiting, proposals = torch.arange(count, device=row.device), 0
    room = max(1, _ELEMENTS // p.features.points.shape[:-1].numel())
    while len(waiting):
        if proposals > _MOST_PROPOSALS * count + _ANY_PROPOSALS:
            raise RuntimeError(
                f"sample has {len(waiting)} of {count} draws left after {proposals} proposals: the "
                "density is much narrower than the nodes are apart; a smaller tolerance brings "
                "more nodes"
            )
        part, rest = waiting[:room], waiting[room:]
        proposals += len(part)
        at = row[part]
        level = at + torch.rand(at.shape, dtype=torch.float64, device=at.device)
        cell = torch.searchsorted(above, level, right=True)
        cell = torch.minimum(cell, (at + 1) * log_bound.shape[1] - 1) % log_bound.shape[1]
        places = torch.unravel_index(cell, [len(end) - 1 for end in ends])
        share = torch.rand(len(at), dim, dtype=torch.float64, device=at.device)
        axes = zip(ends, places, share.T, strict=True)
        t = torch.stack([torch.lerp(e[i], e[i + 1], s) for e, i, s in axes], -1).to(p.weights)
        excess = _log_density(p, t, at) - log_bound[at, cell]
        over = excess > 0
        if over.any():
            # Raise the bounds, and draw all of these densities' vectors anew.
            place = (at[over], cell[over])
            log_bound[place] = torch.maximum(log_bound[place] + 2 * excess[over], log_bound[place])
            above = _distribution(log_bound + log_volume)
            again = torch.isin(row, at[over]).index_fill(0, waiting, True)
            waiting = again.nonzero().squeeze(-1)
            continue
        accepted = torch.rand_like(excess).log() < excess
        found[part[accepted]] = t[accepted]
        waiting = torch.cat([part[~accepted], rest])
    return found.reshape(*sample_shape, *p.batch_shape, dim)


def _distribution(log_mass: Tensor) -> Tensor:
    """Return row r's distribution function over cells, plus r, flat (R Q,): increasing."""
    above = torch.softmax(log_mass, -1).cumsum(-1)
    above = above / above[:, -1:]
    return (above + torch.arange(len(above), device=above.device).unsqueeze(-1)).flatten()


def _log_density(p: KernelDistribution, t: Tensor, row: Tensor) -> Tensor:
    """Return the log density times Z of some rows (n,) at locations (n, D)."""
    columns, weights = p.features.at(t).to(p._level), p.weights.to(p._level)
    columns = columns.reshape(-1, *columns.shape[-2:])
    sets = torch.arange(len(columns), device=row.device).reshape(p.features.batch)
    own = sets.expand(p.batch_shape).reshape(-1)[row]
    columns = columns[own, :, torch.arange(len(t), device=row.device)]
    terms, level = columns * weights.reshape(-1, columns.shape[-1])[row], p._level[row]
    # Draws keep away from edges by the rounding of the score, whose terms others add otherwise.
    rounding = _ROUNDING * torch.finfo(terms.dtype).eps * (terms.abs().sum(-1) + level.abs())
    base = p.mesh.base.log_density(t.double())
    return _log_power(p._power.take(row), terms.sum(-1) - level - rounding).double() + base


def _log_power(power: Power, x: Tensor) -> Tensor:
    """Return the logarithm of a power, -inf where it is zero."""
    inside = power.eps * x > -1
    log = power.factor_of_log * power.log_base(torch.where(inside, x, 0.0))
    return torch.where(inside, log, -math.inf)


def _bounds(p: KernelDistribution, ends: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return bounds of the log density times Z in cells (R, Q), and logarithms of volumes (Q,)."""
    counts = [len(end) - 1 for end in ends]
    x = p._offsets_on(p.mesh).permute(2, 1, 0).reshape(-1, *counts)
    log_base = p.mesh.base.log_density(p.mesh.nodes).reshape(p.mesh.measure.shape).T
    high, low, log_base = x, x, log_base.reshape(1, *counts)
    for axis in range(1, x.dim()):
        high, low = _neighbours_max(high, axis), -_neighbours_max(-low, axis)
        log_base = _neighbours_max(log_base, axis)
    beyond = _BEYOND * (x - low) + 4 * torch.finfo(x.dtype).eps * (1 + x.abs())
    x = (x + _TOWARDS * (high - x) + beyond.clamp_max(_HIGHEST)).flatten(1)
    rows = torch.arange(len(x), device=x.device).unsqueeze(-1)
    log_volume = torch.cartesian_prod(*(end.diff().log() for end in ends)).sum(-1)
    return _log_power(p._power.take(rows), x).double() + log_base.flatten(1), log_volume


def _cell_ends(axis: ChebyshevMesh) -> Tensor:
    """Return ends (n + 1,) of cells as long as Gauss-Legendre weights, each around its node."""
    lengths = axis.rule()[1]
    ends = axis.breaks[:-1].unsqueeze(-1) + lengths.cumsum(-1)
    return torch.cat([axis.breaks[:1], ends[:, :-1].flatten(), axis.breaks[1:]]).sort().values


def _neighbours_max(x: Tensor, axis: int) -> Tensor:
    """Return the greatest of each entry and its neighbours along an axis."""
    first, last = x.narrow(axis, 0, 1), x.narrow(axis, x.shape[axis] - 1, 1)
    return torch.cat([first, x, last], axis).unfold(axis, 3, 1).amax(-1)
