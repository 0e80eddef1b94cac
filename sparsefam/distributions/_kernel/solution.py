r"""The mesh engine: densities whose score is linear in functions, solved at the nodes of a mesh.

`solve` finds the nodes, evaluates scores there and normalizes. Expectations, entropies and masses
of a density are sums over the nodes, with the weights that its `Solution` holds.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from typing import Any

import torch
from torch import Size, Tensor
from torch.distributions import Distribution

from ..._feature_maps import BasisFeatures, FeatureMap
from ..._numerics.deformed import LOG_LARGE, Power
from ..._numerics.modes import compiled, values_are_readable, values_exist
from ..._numerics.normalizer import normalized_weights
from ..._numerics.truncated_power import integrals, sum_nodes
from ..._numerics.validation import as_number, require
from ...bases import Basis
from .base_measure import Base, BaseMeasure, uniform_box
from .mesh import KernelMesh, require_inside

__all__ = ["Solution", "find_mesh", "solve"]

# Errors of scores on the mesh, by dimension, in float32 and float64.
_TOLERANCE = {1: (1e-5, 1e-11), 2: (1e-5, 1e-7), 3: (1e-3, 1e-4)}
# Errors of functions over the rounding errors of coordinates that cause them.
_ROUNDING = 256
# The tolerance for numbers in float32 where large weights of wide kernels cancel, at few nodes.
_OF_WIDE = 1e-6
# Below this alpha densities are so much more peaked than scores that the mesh must resolve them.
_PEAKED = 1.2
# For at most so many densities, with the widest ranges of scores, a given mesh is refined.
_SHARPEST = 32
# A score may be larger than those that the mesh is made for by this factor.
_MARGIN = 4.0
# From here on the last bit of a score in float32 is more than a millionth.
_LARGE = 16.0
# The error of a mass that rounding may cause.
_MASS = 1e-2
# The fraction of the mass that may lie where the mesh does not resolve the base.
_FAR_OUT = 1e-3


@dataclass(frozen=True, eq=False)
class Solution:
    r"""R densities $p = [1 + \epsilon(f - A)]_+^k\,q_0 / Z$ of scores $f = \sum_i w_i \phi_i$."""

    weights: Tensor  # w (*batch, I)
    features: FeatureMap  # The functions phi
    mesh: KernelMesh  # Nodes, and the base density q_0
    power: Power
    scores: Tensor  # f at the nodes (m, G, R), in the dtype of all sums over nodes
    level: Tensor | None  # A (R,); None at alpha = 1, where expectations do without
    Z: Tensor  # (R,)
    nodal: Tensor  # Weights of p Z at the nodes (m, G, R)
    escort: Tensor  # Those of the power with its exponent less by one, the escort (m, G, R)

    @property
    def A(self) -> Tensor:
        """The normalizer (R,)."""
        if self.level is not None:
            return self.level
        logs = self.scores + self.measure_on(self.mesh).log()
        return torch.logsumexp(logs.flatten(0, 1).T, -1)

    @property
    def batch(self) -> Size:
        """The batch shape, with R elements."""
        return self.weights.shape[:-1]

    def rows(self, rows: Tensor, weights: Tensor, features: FeatureMap) -> "Solution":
        """Return the solution of some densities only.

        Args:
            rows: Their indices (n,) in the flattened batch.
            weights: Their weights (*new batch, I), where the new batch has n elements.
            features: Their functions.
        """
        # If each density has functions of its own, the matrix has those of other densities, too.
        mesh = replace(self.mesh, matrix=None) if features.batch else self.mesh
        names = ("scores", "level", "Z", "nodal", "escort")
        tensors = {name: getattr(self, name) for name in names}
        selected: Any = {name: x if x is None else x[..., rows] for name, x in tensors.items()}
        return Solution(weights, features, mesh, self.power.take(rows), **selected)

    def detach(self) -> "Solution":
        """Return the solution with its tensors detached from the graph."""
        tensors: Any = {name: x.detach() for name, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, features=self.features.detach(), power=self.power.detach(), **tensors)

    def with_power(self, power: Power) -> "Solution":
        """Return the densities of another power of 1 + eps (f - A), with A as it is and a new Z."""
        nodal, escort = integrals(self.scores - self.A, self.measure_on(self.mesh), power)
        return replace(self, power=power, nodal=nodal, escort=escort, Z=sum_nodes(nodal))

    def batched(self, rows: Tensor) -> Tensor:
        """Return a number for each row (R,) in the shape of the batch."""
        return rows.reshape(self.batch).to(self.weights.dtype)

    def batched_power(self) -> Power:
        """Return the power with eps in the shape of the batch."""
        power, eps = self.power, self.power.eps
        return replace(power, eps=eps.reshape(self.batch)) if isinstance(eps, Tensor) else power

    def measure_on(self, mesh: KernelMesh) -> Tensor:
        """Return the base density times quadrature weights at the nodes of a mesh (m, G, 1)."""
        return mesh.measure.unsqueeze(-1).to(self.scores.dtype)

    def offsets_on(self, mesh: KernelMesh) -> Tensor:
        """Return f - A at the nodes of a mesh (m, G, R)."""
        if mesh is self.mesh:
            return self.scores - self.A
        dtype, exponential = self.scores.dtype, self.power.is_exponential
        return _scores_in(dtype, self.weights, self.features, mesh, exponential) - self.A

    def unnormalized_on(self, mesh: KernelMesh) -> Tensor:
        """Return weights of p Z at the nodes of a mesh (m, G, R)."""
        if mesh is self.mesh:
            return self.nodal
        return integrals(self.offsets_on(mesh), self.measure_on(mesh), self.power)[0]

    def weights_on(self, mesh: KernelMesh) -> Tensor:
        """Return weights at the nodes of a mesh (m, G, R): their sum with g is E_p[g]."""
        return self.unnormalized_on(mesh) / self.Z

    # At alpha = 1 weights sum to 1. Elsewhere a column of ones gives their total, and the quotient
    # E[g] = sum w g / sum w centers gradients: its derivative in w is g - E[g] over the total.

    def means(self, values: Tensor, mesh: KernelMesh) -> Tensor:
        """Return expectations (*batch, N) of functions with values (Q, N) at the nodes."""
        weights = self.unnormalized_on(mesh).flatten(0, 1).to(values)
        if self.power.is_exponential and mesh is self.mesh:
            means = weights.T @ values
        else:
            sums = weights.T @ _with_ones(values)
            means = sums[:, :-1] / sums[:, -1:]
        return means.reshape(*self.batch, values.shape[1])

    def combined_means(self, values: Tensor, mesh: KernelMesh) -> Tensor:
        """Return expectations (*batch, E) of functions with values (*batch[:-1], Q, E)."""
        weights = self.unnormalized_on(mesh).reshape(len(mesh.nodes), *self.batch).to(values)
        weights = weights.movedim(0, -2)
        if self.power.is_exponential and mesh is self.mesh:
            return weights.mT @ values
        # Gradients then have the layout of weights.
        sums = _with_ones(values).mT @ weights
        return (sums[..., :-1, :] / sums[..., -1:, :]).mT

    def log_density(self, t: Tensor) -> Tensor:
        """Return the log density (*S, *batch) at locations (*S, *batch, D).

        It is -inf, without a gradient, off the support.
        """
        base = self.mesh.base
        inside = torch.isfinite(base.log_density(t.detach()))
        t = torch.where(inside.unsqueeze(-1), t, self._inner_location().to(t.dtype))
        # Both may be large: they are computed in the dtype of Z, and rounded after the difference.
        score, A = self.features.score(self.weights.to(self.Z), t, self.batch), self.A
        log = self.batched_power().log_at(score - A.reshape(self.batch))
        # Off the support there is no gradient in Z either.
        inside = inside & (log > -math.inf)
        log = log - self.Z.log().reshape(self.batch) + base.log_density(t)
        return torch.where(inside, log, -math.inf).to(self.weights.dtype)

    def _inner_location(self) -> Tensor:
        """Return a location (D,) in the base's support: the node with the most mass of the base."""
        index = self.mesh.measure.flatten().argmax(0, keepdim=True)
        return self.mesh.nodes.index_select(0, index).reshape(-1).to(self.weights)


def _with_ones(values: Tensor) -> Tensor:
    """Append the constant function 1 to functions with values (..., N): (..., N + 1)."""
    return torch.cat([values, values.new_ones(*values.shape[:-1], 1)], -1)


def solve(
    weights: Tensor,
    features: FeatureMap,
    base: Base,
    alpha: Tensor | float,
    inside: bool = True,
    *,
    tolerance: float | None = None,
    mesh: KernelMesh | None = None,
    validate: bool = False,
) -> Solution:
    """Normalize the densities of scores at the nodes of a mesh.

    Args:
        weights: Weights of the functions (*batch, I).
        features: The functions.
        base: The base density.
        alpha: Entropic index from 1 to 2, a number or (*batch).
        inside: Whether A normalizes, with Z = 1; otherwise Z does, with A = 0.
        tolerance: Relative error to which scores are polynomials between nodes; default
            `_TOLERANCE`.
        mesh: That of another density; default: a new one.
        validate: Whether values of the functions are compared with the ones that the mesh keeps.
    """
    if base is None and isinstance(features, BasisFeatures):
        base = _uniform_on(features.basis)
    is_given, exponential = mesh is not None, isinstance(alpha, Real) and alpha == 1
    if mesh is None:
        mesh = find_mesh(weights, features, base, alpha, tolerance).with_matrix_of(features)
    elif not isinstance(mesh, KernelMesh):
        raise ValueError(f"mesh must be that of another density, got {mesh!r}")
    elif not compiled():
        with torch.no_grad():
            mesh.require_fit(features, base, weights.dtype, validate)
    scores = _scores_at_nodes(weights, features, mesh, exponential)
    if is_given and features.dim == 1 and scores.numel() and values_are_readable(scores.detach()):
        if (finer := _refined(mesh, weights, features, scores, alpha)) is not mesh:
            mesh = finer
            scores = _scores_at_nodes(weights, features, mesh, exponential)
    eps = alpha.reshape(-1).to(scores) - 1 if isinstance(alpha, Tensor) else float(alpha) - 1
    power, measure = Power(eps), mesh.measure.unsqueeze(-1).to(scores.dtype)
    normalize = _by_softmax if exponential else _inside if inside else _outside
    solution = Solution(
        weights, features, mesh, power, scores, *normalize(scores, measure, power, weights)
    )
    if not is_given:
        _require_resolved(solution)
    return solution


# Nodes and scores


def find_mesh(
    weights: Tensor,
    features: FeatureMap,
    base: Base,
    alpha: Tensor | float,
    tolerance: float | None,
) -> KernelMesh:
    """Find a mesh for functions and scores of some weights, without the functions at its nodes.

    Args:
        weights: Weights of the functions (*batch, I).
        features: The functions.
        base: The base density.
        alpha: Entropic index from 1 to 2, a number or (*batch).
        tolerance: As for `solve`.

    Raises:
        ValueError: A tolerance that is not positive and finite, points off the support of the base,
            or as `KernelMesh.find`.
    """
    rough, fine = _TOLERANCE.get(features.dim, _TOLERANCE[3])
    if is_default := tolerance is None:
        tolerance = fine if weights.dtype == torch.float64 else rough
    if not 0 < as_number(tolerance) < math.inf:
        raise ValueError(f"tolerance must be a positive, finite number, got {tolerance!r}")
    tolerance = _attainable(float(tolerance), features.points.flatten(0, -2))
    measure = BaseMeasure(base, features.dim, weights.dtype)
    require_inside(measure, features)
    sizes = _MARGIN * weights.detach().double().abs().unsqueeze(-2)
    # The power is smallest at the largest alpha of all densities that may share the mesh.
    eps = _least(alpha) - 1

    def growth(t: Tensor) -> Tensor:
        """Bound the log density at locations (q, D), also of somewhat larger scores."""
        if not sizes.numel():
            return t.new_zeros(len(t))
        # |f| <= sum |w| |phi|, and the log density is at most log(1 + eps f)/eps, or f at eps = 0.
        size = (sizes @ features.at(t).detach().abs()).reshape(-1, len(t)).amax(0)
        return torch.log1p(eps * size) / eps if eps > 0 else size

    find = partial(KernelMesh.find, features, measure, growth=growth)
    mesh = find(tolerance=tolerance)
    is_line = features.dim == 1
    if not is_line:
        return mesh
    if is_default and tolerance > _OF_WIDE and mesh.with_matrix_of(features).is_wide:
        mesh = find(tolerance=_OF_WIDE)
    if not sizes.numel():
        return mesh
    with torch.no_grad():
        return mesh.for_scores(partial(_exact_scores, weights, features), _least(alpha) < _PEAKED)


def _attainable(tolerance: float, points: Tensor) -> float:
    """Return the tolerance, or the error that rounding of coordinates causes if that is larger.

    Args:
        tolerance: Relative error of functions between nodes.
        points: Points of the functions (n, D), over whose range functions are taken to vary.
    """
    points = points.detach().double()
    span = (points.amax(0) - points.amin(0)).clamp_min(torch.finfo(points.dtype).tiny)
    # Rounding a coordinate t moves it by eps |t| / span of the range of the points. Points that
    # coincide have no range, and the tolerance stays.
    far = float((points.abs().amax(0) / span).amax())
    rounding = _ROUNDING * torch.finfo(points.dtype).eps * far
    return max(tolerance, rounding) if rounding < 1 else tolerance


@torch.no_grad()
def _refined(
    mesh: KernelMesh,
    weights: Tensor,
    features: FeatureMap,
    scores: Tensor,
    alpha: Tensor | float,
) -> KernelMesh:
    """Return a given mesh, refined where the most peaked densities need it; itself if none does.

    Args:
        mesh: The mesh, of numbers.
        weights: Weights of the functions (*batch, I).
        features: The functions.
        scores: Scores at the nodes (m, G, R).
        alpha: Entropic index, a number or (*batch).
    """
    if not _least(alpha) < _PEAKED:
        return mesh
    # The densities of the widest ranges of scores are the most peaked.
    by_row = scores.flatten(0, 1)
    spread = by_row.amax(0) - by_row.amin(0)
    rows = spread.topk(min(_SHARPEST, len(spread))).indices
    flat_weights = weights.detach().reshape(-1, weights.shape[-1])
    nodes = mesh.axes[0].rule()[0].flatten()

    def exact(t: Tensor) -> Tensor:
        """Return scores (rows, q) at locations (q,), float64; at the nodes from the matrix."""
        if mesh.matrix is None or features.batch or not torch.equal(t, nodes):
            return _exact_scores(weights, features, t, rows)
        # The matrix has the first node of every subinterval before the second of any; `t` has all
        # nodes of a subinterval in succession.
        matrix: Tensor = mesh.matrix.unflatten(-1, mesh.measure.shape).mT.flatten(-2)
        return flat_weights[rows].double() @ matrix

    finer = mesh.for_scores(exact, True)
    if finer is mesh:
        return mesh
    with torch.enable_grad():
        return finer.with_matrix_of(features)


def _least(alpha: Tensor | float) -> float:
    """Return the smallest alpha of a batch, 2 if the batch is empty."""
    if not isinstance(alpha, Tensor):
        return float(alpha)
    return float(alpha.detach().double().amin()) if alpha.numel() else 2.0


def _exact_scores(
    weights: Tensor, features: FeatureMap, t: Tensor, rows: Tensor | None = None
) -> Tensor:
    """Return scores (n, q) in float64, from the functions themselves, not by interpolation.

    Args:
        weights: Weights of the functions (*batch, I).
        features: The functions.
        t: Locations (q,), numbers.
        rows: Indices (n,) of densities in the flattened batch; default all.
    """
    # With functions that all densities share, the scores of other densities are not computed.
    batch, weights = weights.shape[:-1], weights.detach().double()
    if rows is not None and not features.batch:
        weights, batch = weights.reshape(-1, weights.shape[-1])[rows], rows.shape
    located = t.reshape(-1, *(1,) * (len(batch) + 1))
    scores = features.score(weights, located, batch).reshape(len(t), -1).T
    return scores if rows is None or not features.batch else scores[rows]


def _scores_at_nodes(
    weights: Tensor, features: FeatureMap, mesh: KernelMesh, exponential: bool
) -> Tensor:
    """Return f at the nodes (m, G, R), in the dtype of all sums over the nodes.

    It is float64 if weights are, if so many functions overlap that large weights cancel (vectors
    have too many nodes for it), or if scores are so large that their last bits matter.

    Args:
        weights: Weights of the functions (*batch, I).
        features: The functions.
        mesh: The mesh.
        exponential: Whether alpha is the number 1, as for `_scores_in`.
    """
    dtype = torch.float64 if mesh.is_wide and features.dim == 1 else weights.dtype
    scores = _scores_in(dtype, weights, features, mesh, exponential)
    if dtype == torch.float64 or not scores.numel() or not values_are_readable(scores.detach()):
        return scores
    # In the order in which `_scores_in` leaves them in memory, which is the fastest to read.
    low, high = (scores.detach().movedim(-1, 0) if exponential else scores.detach()).aminmax()
    if float(torch.maximum(-low, high)) > _LARGE:
        scores = _scores_in(torch.float64, weights, features, mesh, exponential)
    return scores


def _scores_in(
    dtype: torch.dtype, weights: Tensor, features: FeatureMap, mesh: KernelMesh, exponential: bool
) -> Tensor:
    """Return f at the nodes of a mesh (m, G, R) in a dtype.

    Args:
        dtype: Of the result.
        weights: Weights of the functions (*batch, I).
        features: The functions.
        mesh: The mesh.
        exponential: Whether the nodes of a density, not the densities at a node, are neighbors in
            memory.
    """
    matrix = features.at(mesh.nodes) if mesh.matrix is None else mesh.matrix
    # Wide functions have large weights that cancel.
    weights = weights.to(torch.float64 if mesh.is_wide else dtype)
    matrix = matrix.to(weights)
    if features.batch:
        scores = (weights.unsqueeze(-2) @ matrix).reshape(-1, matrix.shape[-1]).T
    else:
        rows = weights.reshape(-1, weights.shape[-1])
        # A softmax over nodes takes the nodes of each density together.
        scores = (rows @ matrix).T if exponential else matrix.T @ rows.T
    return scores.to(dtype).reshape(*mesh.measure.shape, -1)


# Normalizing

# The functions below take scores (m, G, R), the measure (m, G, 1), the power, and the weights of
# phi for messages. They return A (R,), Z (R,), and weights of p Z and of its escort (m, G, R).
_Normalized = tuple[Tensor | None, Tensor, Tensor, Tensor]


def _by_softmax(scores: Tensor, measure: Tensor, power: Power, weights: Tensor) -> _Normalized:
    """Normalize at alpha = 1 by a softmax over the nodes, with Z = 1 and without A."""
    by_row, log_measure = scores.flatten(0, 1).T, measure.flatten().log()
    top = by_row.detach().amax(-1)
    _require_digits(top, weights)
    # A factor of the measure cancels in a softmax. With a largest measure of 1 its logarithm does
    # not round the scores where it is largest.
    nodal = torch.softmax(by_row + (log_measure - log_measure.amax()), -1)
    nodal = nodal.T.reshape(scores.shape)
    return None, torch.ones_like(top), nodal, nodal


def _inside(scores: Tensor, measure: Tensor, power: Power, weights: Tensor) -> _Normalized:
    """Solve for A, with Z = 1."""
    A, nodal, escort, mass = normalized_weights(scores, measure, power.eps)
    # Rounding f and A changes the log density f - A by the last digit of A.
    _require_digits(A, weights, (mass - 1).abs() <= _MASS)
    return A, torch.ones_like(A), nodal, escort


def _outside(scores: Tensor, measure: Tensor, power: Power, weights: Tensor) -> _Normalized:
    """Integrate the powers at A = 0, which gives Z."""
    # Powers that are not computed by multiplication are capped at exp(LOG_LARGE).
    if not power.is_product:
        log = power.log_base(scores.detach().amax((0, 1)))
        rule = f"so small that powers are below exp({LOG_LARGE:g}) with normalization='outside'"
        require(log < LOG_LARGE, "weights", rule, weights)
    nodal, escort = integrals(scores, measure, power)
    Z = sum_nodes(nodal)
    alive = (Z.detach() > 0).reshape(weights.shape[:-1])
    if values_exist(alive) and not torch._is_all_true(alive):
        raise ValueError(
            "weights must be such that 1 + (alpha - 1) f is positive somewhere "
            "(normalization='inside' always has a support), got an empty support at batch "
            f"indices {(~alive).nonzero().tolist()}"
        )
    return torch.zeros_like(Z.detach()), Z, nodal, escort


def _require_digits(A: Tensor, weights: Tensor, valid: Tensor | bool = True) -> None:
    """Raise unless scores as large as A have enough digits after the point.

    Args:
        A: Normalizers, or largest scores (R,).
        weights: The weights of the functions, for the message.
        valid: A further condition (R,).
    """
    # The rounding error of such a score is eps^(1/3): 0.005 in float32.
    most = float(torch.finfo(A.dtype).eps ** (-2 / 3))
    rule = f"so small that scores have digits after the point in {A.dtype}"
    require((A.abs() <= most) & valid, "weights", rule, weights)


@torch.no_grad()
def _require_resolved(s: Solution) -> None:
    """Raise if large scores move a density so far into a tail that the mesh misses it."""
    mesh = s.mesh
    # Subintervals (G,) with so little mass of the base that the mesh need not resolve it there.
    far = mesh.measure.sum(0) < mesh.tolerance
    if s.features.dim > 1 or not s.batch.numel() or not bool(far.any()):
        return
    logs = s.scores + mesh.measure.log().unsqueeze(-1)
    masses = torch.softmax(logs.flatten(0, 1), 0).reshape(logs.shape).sum(0)
    # The masses (G, R) at alpha = 1: no other power moves as far as the exponential.
    if bool((masses[far].sum(0) <= _FAR_OUT).all()):
        return
    # A mesh that resolves the density has the same mass as one with twice the nodes.
    mass = sum_nodes(s.weights_on(mesh.with_least_nodes(2 * mesh.axes[0].size)))
    rule = "so small that the density is not in the far tails of the base"
    require((mass - 1).abs() <= math.sqrt(mesh.tolerance), "weights", rule, s.weights)


def _uniform_on(basis: Basis) -> list[Distribution]:
    """Return the uniform density on the domain of a basis, a factor for each axis."""
    if not all(math.isfinite(end) for side in basis.domain for end in side):
        raise ValueError(f"base must be given for a basis without bounds, got None and {basis!r}")
    device = [*basis.buffers(), *basis.parameters(), torch.empty(0)][0].device
    return uniform_box(*torch.tensor(basis.domain, dtype=torch.float64, device=device).T)
