"""From queries and keys to densities: the scores of attention layers, and a learned alpha."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn import functional
from torch.quasirandom import SobolEngine

from .._choice import Mode, contexts
from .._feature_maps import (
    BasisFeatures,
    FeatureMap,
    Gaussian,
    Kernel,
    KernelFeatures,
    kernel_matrix,
)
from .._numerics.entmax import require_finite_index
from .._numerics.modes import branches_allowed, compiled
from .._numerics.quadrature import constant
from .._numerics.validation import as_number, is_count, require, require_integer
from .._prediction_map import rpm
from ..bases import Basis
from ..distributions import (
    BetaGaussian,
    KernelDeformedExp,
    KernelExp,
    Mixture,
    MultivariateBetaGaussian,
    MultivariateNormal,
    Normal,
    SparseDistribution,
)
from ..distributions._kernel.base_measure import uniform_box
from ..distributions._kernel.mesh import KernelMesh
from ..distributions._kernel.solution import find_mesh
from ..scores import (
    BasisExpansion,
    FeatureExpansion,
    Finite,
    KernelExpansion,
    MultivariateQuadratic,
    Quadratic,
)
from ..supports import Box
from ._discrete import attend
from ._masks import AttentionMask, full_precision, to_single

__all__ = [
    "AttentionScore",
    "ContentScore",
    "Dimensions",
    "DiscreteScore",
    "KernelScore",
    "LearnedAlpha",
    "MomentScore",
    "Observed",
    "QuadraticScore",
    "by_head",
    "density_of_moments",
    "ends",
    "init_linear",
    "initial_centers",
]

# Fractions of the domain: sigma when training starts, and the least that sigma, or the standard
# deviation of matched moments, can become.
_FIRST_SIGMA, _LEAST_SIGMA = 0.1, 1e-3
# Gain of weights that are multiplied with queries when training starts: queries then differ little.
_FIRST_GAIN = 0.1
# Sigma of neighboring components over the distance between them: their sum has no gaps.
_OVERLAP = 0.4
# Least value of a learned alpha: nearer to 1, derivatives in alpha lose their digits in float32.
_LEAST_ALPHA = 1.01

# Kernel scores when training starts: the greatest value, and the standard deviation over queries
# whose channels have variance one.
_FIRST_HEIGHT, _FIRST_DEVIATION = 1.0, 0.3
# Length scale of the default kernel over the distance between inducing points.
_LENGTH = 2.0
# Tolerance of the quadrature of float32 kernel scores, which is not adapted as scores grow in
# training: below the default of densities.
_TOLERANCE = 1e-6
# Fraction of the domain by which conversion between dtypes may move an inducing point.
_SLACK = 1e-2
_TINY = 1e-30


class Dimensions(NamedTuple):
    """Sizes of a layer, from which its score makes parameters."""

    embed_dim: int
    kdim: int
    num_heads: int
    head_dim: int  # channels of the values of a head, and of its queries and keys
    box: Box  # the domain: an interval for each of its dimensions
    bias: bool
    factory: dict[str, Any]  # device and dtype of the parameters


class Observed(NamedTuple):
    """Inputs of densities besides the queries."""

    basis: Basis
    # Positions of the values (B or 1, L, *event). They, and the mask of positions that queries may
    # read, are None where a layer reads a value function.
    positions: Tensor | None = None
    # Positions of the queries (B or 1, Lq, *event), None if the score does not read them.
    queries: Tensor | None = None
    mask: AttentionMask | None = None
    # Coefficients (B, N, heads, F) of the functions that `AttentionScore.beside` asks for, with Lq
    # before N if they differ by query; and means of their values over readable positions,
    # (B, Lq or 1, heads, F).
    functions: Tensor | None = None
    means: Tensor | None = None


class AttentionScore(nn.Module):
    """From queries, and from keys, to densities: the `score` of a `ContinuousAttention`.

    A layer calls `prepare` once, so that each needs a score of its own, and then in every call
    `forward` and `density`. A class must implement these three.

    Attributes:
        reads_keys: Whether densities depend on the keys.
        reads_positions: Whether densities depend on the positions of the queries.
        most_alpha: Largest alpha for which there are densities.
        margin: The fraction of the domain by which the center of a 1-D density may lie outside of
            it; None if there is no bound. With a bound contexts are cheaper.
    """

    reads_keys: bool = False
    reads_positions: bool = False
    most_alpha: float = math.inf
    margin: float | None = None
    box: Box = ()  # the domain of the layer, which sets it

    def prepare(self, dimensions: Dimensions) -> None:
        """Make the parameters; `reset_parameters` sets them."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Set the parameters to those with which training starts."""

    def forward(self, query: Tensor, key: Tensor) -> Any:
        """Project queries (B, Lq, embed_dim), and keys (B, L, kdim), under autocast if it is on."""
        raise NotImplementedError

    def density(
        self, projected: Any, alpha: Tensor | float, temperature: float, observed: Observed
    ) -> SparseDistribution:
        """Return densities (B, num_heads, Lq), in float32 at least, of the output of `forward`."""
        raise NotImplementedError

    def contexts(
        self,
        density: SparseDistribution,
        basis: Basis,
        coefficients: Tensor,
        observed: Observed,
    ) -> Tensor:
        r"""Return contexts $E_p[\psi]^\top C$ (B, Lq, heads, E), with C (B, N, heads, E)."""
        by_head, mode = coefficients.transpose(1, 2), self._mode(observed)
        return contexts(density, basis, by_head, mode).transpose(1, 2)

    def _mode(self, observed: Observed) -> Mode:
        """Return facts about the densities, by which a rule for `contexts` is chosen."""
        return Mode(centers=self._centers())

    def _centers(self) -> tuple[float, float] | None:
        """Return an interval in which densities are centered, if there is a bound."""
        if self.margin is None or len(self.box) > 1:
            return None
        ((low, high),) = self.box
        return low - self.margin * (high - low), high + self.margin * (high - low)

    def beside(self, key: Tensor) -> Tensor | None:
        """Return channels (B, L, heads, F) that are fitted beside the values, or None."""
        return None

    def rebuild(self, basis: Basis) -> None:
        """Compute a cache that all calls share, after parameters are made, moved or loaded.

        The basis is that of the layer's value functions.
        """


class _ScoreProjection(AttentionScore):
    """A linear map from queries to the parameters of scores on a domain."""

    weight: Tensor
    bias: Tensor

    def _make_parameters(self, dimensions: Dimensions, channels: int) -> None:
        """Make the weight (channels, embed_dim) and the bias (channels,) of the map."""
        self.heads = dimensions.num_heads
        # Only its parameters are used: `forward` multiplies by them without autocast.
        linear = nn.Linear(dimensions.embed_dim, channels, **dimensions.factory)
        self.weight = linear.weight
        self.bias = linear.bias

    def forward(self, query: Tensor, key: Tensor | None = None) -> Tensor:
        """Project queries to channels (B, Lq, channels), without the rounding of autocast."""
        with full_precision(query):
            channels = functional.linear(query.to(self.weight.dtype), self.weight, self.bias)
            return to_single(channels)


class QuadraticScore(_ScoreProjection):
    r"""A quadratic score for each head, or a mixture of the densities of several.

    Location and scale are computed from the query $q$,

    $$\mu_h = a + (b - a)\,\mathrm{sigmoid}(w_h^\top q + w_{h0}), \qquad
    \sigma_h = (b - a)\,\bigl[10^{-3} + \mathrm{softplus}(v_h^\top q + v_{h0})\bigr],$$

    in the domain $[a, b]$. In D dimensions every axis has its own location and $\sigma$, and the
    matrix $\Sigma = L L^\top$ of the score has the factor $L_{ij} = \sigma_i \ell_{ij}$ with
    $\ell_{ii} = 1$ and, for $j < i$, $\ell_{ij}$ linear in $q$ and initially 0. Heads start spread
    evenly over the domain with $\sigma$ a tenth of it.

    Args:
        components: Number of components of a `Mixture`, with log weights linear in the query. None:
            one density for each head.

    Raises:
        ValueError: `components` not a positive integer.
    """

    margin = 0.0

    def __init__(self, components: int | None = None) -> None:
        super().__init__()
        if components is not None:
            require_integer("components", components, 1)
        self.components = components

    def prepare(self, dimensions: Dimensions) -> None:
        """Make the parameters."""
        heads, ndim = dimensions.num_heads, len(dimensions.box)
        # The batch shape of the densities of one query.
        self._counts = (heads,) if self.components is None else (heads, self.components)
        total = math.prod(self._counts)
        logits = 0 if self.components is None else total
        # Channels of log weights, locations, diagonals and lower triangles.
        self._sizes = [logits, total * ndim, total * ndim, total * (ndim * (ndim - 1) // 2)]
        self._make_parameters(dimensions, sum(self._sizes))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Spread heads; or components, within each head, the heaviest at the head's center."""
        ndim, sigma = len(self.box), _FIRST_SIGMA
        nn.init.xavier_uniform_(self.weight, gain=_FIRST_GAIN)
        logits, loc, diagonal, triangle = self.bias.split(self._sizes)
        centers = heads = initial_centers(self.heads, ndim)
        if self.components is not None:
            centers = initial_centers(self.components, ndim)
            sigma = min(sigma, _OVERLAP * self.components ** (-1 / ndim))
            logits.copy_(_proximity(heads, centers).flatten())
            centers = centers.repeat(self.heads, 1)
        # The inverses of the sigmoid and the softplus in `density`, where the query is 0.
        loc.copy_(centers.logit().flatten())
        diagonal.fill_(math.log(math.expm1(sigma - _LEAST_SIGMA)))
        for correlations in (triangle, self.weight.split(self._sizes)[-1]):
            correlations.zero_()

    def density(
        self, projected: Tensor, alpha: Tensor | float, temperature: float, observed: Observed
    ) -> SparseDistribution:
        """Return densities (B, heads, Lq) with the projected channels (B, Lq, channels)."""
        logits, *channels = projected.split(self._sizes, -1)
        counts, total, ndim = self._counts, math.prod(self._counts), len(self.box)
        loc, diagonal, triangle = (by_head(x, (*counts, x.shape[-1] // total)) for x in channels)
        low, high = ends(self.box, loc)
        sides = high - low
        loc = torch.addcmul(low, sides, torch.sigmoid(loc))
        # Dividing -(t - mu)^2 / (2 sigma^2) by the temperature multiplies sigma^2 by it.
        relative = math.sqrt(temperature) * (_LEAST_SIGMA + functional.softplus(diagonal))
        sigma = sides * relative
        score: Quadratic | MultivariateQuadratic
        if ndim == 1:
            score = Quadratic(loc.squeeze(-1), sigma=sigma.squeeze(-1))
        else:
            rows, columns = torch.tril_indices(ndim, ndim, -1, device=sigma.device)
            # L = diag(sigma) times a lower triangle with ones on its diagonal.
            unit = torch.diag_embed(torch.ones_like(sigma))
            unit[..., rows, columns] = triangle
            score = MultivariateQuadratic(loc, sigma.unsqueeze(-1) * unit)
        if self.components is None:
            return rpm(score, alpha)
        # One alpha for all components of a mixture, whose axis is the last.
        alpha = alpha.unsqueeze(-1) if isinstance(alpha, Tensor) else alpha
        return Mixture(by_head(logits / temperature, counts), rpm(score, alpha))


class _MeshScore(AttentionScore):
    """A score whose densities share quadrature nodes, which follow from a kernel or a basis.

    The nodes are computed once if neither is learned, else in every call. The `basis` of methods
    is that of the value functions, which the nodes serve, too.
    """

    _mesh: KernelMesh | None = None  # Kept by `rebuild`, unless nodes are found in every call
    most_alpha = 2.0

    def _functions(self, basis: Basis) -> tuple[object, FeatureMap]:
        """Return the kernel or basis of the scores, and the functions that these combine."""
        raise NotImplementedError

    def _like(self, basis: Basis) -> Tensor:
        """Return a tensor of the dtype and device of densities."""
        raise NotImplementedError

    @torch.inference_mode(False)
    @torch.enable_grad()
    def rebuild(self, basis: Basis) -> None:
        """Find the nodes, unless they are to be found in every call."""
        like = self._like(basis)
        if like.is_meta:
            self._mesh = None if self._mesh is None else self._mesh.to(like.device)
        else:
            mesh = self._find_mesh(basis)
            # A mesh of learned functions has no matrix of their values.
            self._mesh = None if mesh.matrix is None else mesh

    def mesh(self, basis: Basis) -> KernelMesh | None:
        """Return the nodes: those that `rebuild` kept, or new ones if these may not fit any more.

        Learned functions change with every step of training. Constant ones are compared with their
        values at the kept nodes if validation is on.
        """
        mesh, (source, features) = self._mesh, self._functions(basis)
        modules = [x for x in (source, basis) if isinstance(x, nn.Module)]
        are_learned = any(x.requires_grad for module in modules for x in module.parameters())
        if self._like(basis).is_meta:
            return mesh
        if mesh is not None and not are_learned:
            is_checked = Distribution._validate_args and branches_allowed()
            if not is_checked or mesh.has(features):
                return mesh
        if compiled():
            raise RuntimeError(
                "a layer whose scores have a learned kernel or basis cannot be compiled, as its "
                "quadrature nodes follow from values: call requires_grad_(False) on it, and then "
                "rebuild_cache() of the layer"
            )
        return self._find_mesh(basis)

    def _find_mesh(self, basis: Basis) -> KernelMesh:
        """Return nodes on the domain for all scores, and for a basis."""
        _, features = self._functions(basis)
        like = self._like(basis)
        # One mesh serves all densities: with zero weights, where alpha has no effect, it is adapted
        # to the functions alone.
        alpha, tolerance = 2.0, None if like.dtype == torch.float64 else _TOLERANCE
        dtype = torch.promote_types(like.dtype, torch.float32)  # no half precision
        weights = like.new_zeros(features.points.shape[-2], dtype=dtype)
        mesh = find_mesh(weights, features, uniform_box(*ends(self.box, like)), alpha, tolerance)
        # For a basis the mesh may get further nodes, whose values of the functions are added.
        mesh = mesh.with_matrix_of(features).for_basis(basis)
        return replace(mesh.with_matrix_of(features), basis=basis)

    def __getstate__(self) -> dict[str, object]:
        # The nodes belong to these tensors; the layer of a copy finds nodes for its tensors.
        return {**self.__dict__, "_mesh": None}


class KernelScore(_MeshScore, _ScoreProjection):
    """A kernel expansion for each head, with a weight for each inducing point.

    Densities are `KernelExp` or `KernelDeformedExp`, of any shape, relative to the uniform density
    on the domain. Weights are linear in the query. Heads start wide.

    Args:
        points: Number of inducing points, an integer to the power of the domain's dimension, for a
            grid on the domain; or their locations, (I,) or (I, D).
        kernel: A function of (n, D) and (m, D) that returns (n, m), for instance one of
            `pyro.contrib.gp.kernels`; a module becomes part of the layer. Default: a constant
            Gaussian, as wide as two steps of the grid. Quadrature nodes are found in every call if
            it is learned; if a constant one is changed, call the layer's `rebuild_cache`.
        normalization: "inside" or "outside", as in `KernelDeformedExp`.

    Raises:
        ValueError: `normalization` as above; by the layer: `points` that are not as above or not in
            the domain.

    References:
        Moreno et al. (2021), Kernel Deformed Exponential Families for Sparse Continuous Attention,
        section 4.3. arXiv:2111.01222
    """

    inducing_points: Tensor

    def __init__(
        self,
        points: Tensor | int = 64,
        kernel: Kernel | None = None,
        normalization: Literal["inside", "outside"] = "inside",
    ) -> None:
        super().__init__()
        if normalization not in ("inside", "outside"):
            raise ValueError(f"normalization must be 'inside' or 'outside', got {normalization!r}")
        self.points, self.normalization = points, normalization
        self.kernel: Any = kernel

    def prepare(self, dimensions: Dimensions) -> None:
        """Make the parameters."""
        points = _inducing_points(self.points, dimensions.box)
        self._make_parameters(dimensions, dimensions.num_heads * len(points))
        self.register_buffer("inducing_points", points.to(self.weight))
        if self.kernel is None:
            steps = max(round(len(points) ** (1 / len(dimensions.box))) - 1, 1)
            lengths = [_LENGTH * (high - low) / steps for low, high in dimensions.box]
            self.kernel = Gaussian(torch.tensor(lengths))
        if isinstance(self.kernel, nn.Module):
            self.kernel.to(**dimensions.factory)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Give each head a low and wide score, and spread these evenly over the domain."""
        if self.weight.is_meta:
            return
        points, (low, high) = self._points().double(), ends(self.box, self.inducing_points)
        gram = kernel_matrix(self.kernel, points, points)
        centers = initial_centers(self.heads, len(self.box)).to(points)
        # Each head starts with a bump of the score around a center of its own.
        weights = _proximity(centers, (points - low) / (high - low))
        # The kernel may be zero between all inducing points.
        height = (weights @ gram).abs().amax(-1, keepdim=True).clamp_min(_TINY)
        self.bias.copy_((_FIRST_HEIGHT * weights / height).flatten())
        # Independent weights of variance 1 give the score at point i the variance sum_j K_ij^2, of
        # which the mean over the points is taken.
        size = float(gram.square().sum(-1).mean().sqrt().clamp_min(_TINY))
        nn.init.normal_(self.weight, std=_FIRST_DEVIATION / size / self.weight.shape[1] ** 0.5)

    def density(
        self, projected: Tensor, alpha: Tensor | float, temperature: float, observed: Observed
    ) -> SparseDistribution:
        """Return densities (B, heads, Lq) with the projected weights (B, Lq, heads * I)."""
        weights = by_head(projected / temperature, (self.heads, len(self.inducing_points)))
        score = KernelExpansion(weights, self._points(), self.kernel)
        base = uniform_box(*ends(self.box, self.inducing_points))
        return _kernel_density(score, base, alpha, self.mesh(observed.basis), self.normalization)

    def _points(self) -> Tensor:
        """Return inducing points (I, D) in the domain."""
        low, high = ends(self.box, self.inducing_points)
        # Conversion to another dtype may have rounded the outermost ones across the ends.
        points = self.inducing_points.detach().reshape(-1, len(self.box))
        return torch.maximum(torch.minimum(points, high), low)

    def _functions(self, basis: Basis) -> tuple[object, FeatureMap]:
        """Return the kernel, and its functions at the inducing points, which are checked."""
        points, (low, high) = self._points(), ends(self.box, self.inducing_points)
        moved = (self.inducing_points.detach().reshape(points.shape) - points).abs()
        rule = f"in the domain {self.box}"
        valid = moved <= _SLACK * (high - low)
        require(valid, "inducing_points", rule, self.inducing_points)
        return self.kernel, KernelFeatures(points, self.kernel)

    def _like(self, basis: Basis) -> Tensor:
        """Return the inducing points, whose device and dtype, float32 at least, densities have."""
        return self.inducing_points


def _kernel_density(
    score: FeatureExpansion,
    base: list[Distribution],
    alpha: Tensor | float,
    mesh: KernelMesh | None,
    normalization: Literal["inside", "outside"] = "inside",
) -> SparseDistribution:
    """Return the densities of scores: `KernelExp` if alpha is the number 1.

    Args:
        score: An expansion in a kernel or a basis, (B, heads, Lq).
        base: The base, one density for each dimension.
        alpha: A number, or a tensor that broadcasts to (B, heads, Lq).
        mesh: Quadrature nodes; None to find them.
        normalization: As in `KernelDeformedExp`.
    """
    if not isinstance(alpha, Tensor) and alpha == 1:
        return KernelExp.from_score(score, base, mesh=mesh)
    return KernelDeformedExp.from_score(score, base, alpha, normalization, mesh=mesh)


class DiscreteScore(AttentionScore):
    """Weights of the observed positions from inner products of queries and keys."""

    reads_keys = True

    def prepare(self, dimensions: Dimensions) -> None:
        """Make the parameters."""
        self.heads = dimensions.num_heads
        size, bias, factory = self.heads * dimensions.head_dim, dimensions.bias, dimensions.factory
        self.q_proj = nn.Linear(dimensions.embed_dim, size, bias, **factory)
        self.k_proj = nn.Linear(dimensions.kdim, size, bias, **factory)

    def forward(self, query: Tensor, key: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return projected queries (B, heads, Lq, head_dim) and keys (B, heads, L, head_dim).

        Their inner products are the scores, over the root of their length.
        """
        queries, keys = (
            to_single(x).unflatten(-1, (self.heads, x.shape[-1] // self.heads)).transpose(1, 2)
            for x in (self.q_proj(query), self.k_proj(key))
        )
        return queries / math.sqrt(queries.shape[-1]), keys

    def reset_parameters(self) -> None:
        """Draw weights, small for queries, so that many positions start with positive weights."""
        init_linear(self.q_proj, _FIRST_GAIN)
        init_linear(self.k_proj)

    def weights(
        self,
        projected: tuple[Tensor, Tensor],
        alpha: Tensor | float,
        temperature: float,
        mask: AttentionMask,
    ) -> Tensor:
        """Return weights (B, heads, Lq, L), exactly zero where masked.

        The queries and keys are as `forward` returns them.
        """
        queries, keys = projected
        scores, bias = (queries / temperature) @ keys.mT, mask.added(queries.dtype)
        return rpm(Finite(scores if bias is None else scores + bias), alpha).probs

    def means(
        self,
        projected: tuple[Tensor, Tensor],
        alpha: Tensor | float,
        temperature: float,
        mask: AttentionMask,
        values: Tensor,
    ) -> Tensor:
        """Return means (B, heads, Lq, F) of values (B, heads, L, F), with the weights of `weights`.

        Values that examples or heads share have 1 in place of B or heads. Sums are taken in the
        dtype of the values.
        """
        queries, keys = projected
        require_finite_index(alpha, queries.shape[:-1])
        return attend(queries / temperature, keys, values, alpha, mask.added(queries.dtype))


class MomentScore(DiscreteScore):
    r"""A density for each head, with the mean and variance of its discrete attention weights.

    These are computed from queries and keys. The variance is at least $[10^{-3}(b - a)]^2$ in a
    domain $[a, b]$; in D dimensions that is added to the diagonal of the covariance.
    """

    def density(
        self,
        projected: tuple[Tensor, Tensor],
        alpha: Tensor | float,
        temperature: float,
        observed: Observed,
    ) -> SparseDistribution:
        """Return densities (B, heads, Lq) with the moments of the observed positions.

        The projected queries and keys give the discrete weights of the positions.
        """
        positions, mask = cast(Tensor, observed.positions), cast(AttentionMask, observed.mask)
        ndim, dtype = len(self.box), projected[0].dtype
        low, high = ends(self.box, positions.double())
        # Var = E[t^2] - E[t]^2 cancels: in float64, and from the middle of the domain. The values
        # (B or 1, 1, L, D + D^2) are t and t t', for all heads.
        t = positions.double().reshape(*positions.shape[:2], 1, ndim) - (low + high) / 2
        values = torch.cat([t, t.mT * t], -2).flatten(-2).unsqueeze(1)
        moments = self.means(projected, alpha, temperature, mask, values)
        mean = moments[..., :ndim].unsqueeze(-2)
        covariance = moments[..., ndim:].unflatten(-1, (ndim, ndim)) - mean.mT * mean
        mean = mean.squeeze(-2) + (low + high) / 2
        return _match_moments(mean.to(dtype), covariance.to(dtype), self.box, alpha)


class ContentScore(_MeshScore, DiscreteScore):
    r"""Inner products of queries with a key function.

    The keys become a function $K$ by the same regression as the values, with one penalty. The score
    of a query is $q^\top (K(t) - \bar K)/\sqrt d$, with $\bar K$ the mean of the keys that it may
    read, relative to the uniform density on the domain, as in `BasisExpansion`.
    """

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Return projected queries (B, Lq, heads * head_dim)."""
        return to_single(self.q_proj(query))

    def beside(self, key: Tensor) -> Tensor:
        """Return projected keys by head, and a constant, (B, L, heads, head_dim + 1).

        The constant shows how the regression reproduces constants, which are taken out of scores.
        """
        keys = self.k_proj(key).unflatten(-1, (self.heads, -1))
        return torch.cat([keys, torch.ones_like(keys[..., :1])], -1)

    def density(
        self, projected: Tensor, alpha: Tensor | float, temperature: float, observed: Observed
    ) -> SparseDistribution:
        """Return densities (B, heads, Lq) of projected queries, by the functions of the keys."""
        queries = projected.unflatten(-1, (self.heads, -1))
        # K - mean(K) in the basis: the last channel is the regression of the constant 1, and times
        # mean(K) it is the regression of keys that are all equal to mean(K).
        coefficients, means = cast(Tensor, observed.functions), cast(Tensor, observed.means)
        are_per_query = coefficients.dim() > means.dim()
        if are_per_query:
            means = means.unsqueeze(2)
        # Subtracting the mean does not change the density, but makes a constant key function zero.
        keys = coefficients[..., :-1] - coefficients[..., -1:] * means[..., :-1]
        weights = torch.einsum(f"bqhe,b{'q' * are_per_query}nhe->bhqn", queries, keys)
        weights = weights / (math.sqrt(queries.shape[-1]) * temperature)
        base = uniform_box(*ends(self.box, weights))
        score = BasisExpansion(weights, observed.basis)
        return _kernel_density(score, base, alpha, self.mesh(observed.basis))

    def _functions(self, basis: Basis) -> tuple[object, FeatureMap]:
        """Return the basis, and its functions, which key functions combine."""
        return basis, BasisFeatures(basis)

    def _like(self, basis: Basis) -> Tensor:
        """Return a tensor of the dtype and device of densities: a parameter, float32 at least."""
        # Quantized projections have no parameters: then a tensor of the basis is taken, and if it
        # has none, an empty one of torch's default dtype.
        tensors = chain(self.parameters(), basis.buffers(), basis.parameters())
        floating = [x for x in tensors if x.is_floating_point()]
        return to_single([*floating, torch.empty(0)][0])


def density_of_moments(
    mean: Tensor, covariance: Tensor, alpha: Tensor | float
) -> SparseDistribution:
    """Return elliptical densities (...) with means (..., D) and covariances (..., D, D).

    They are normal if alpha is the number 1, else beta-Gaussian; a tensor broadcasts to (...).
    """
    is_normal = not isinstance(alpha, Tensor) and alpha == 1
    if mean.shape[-1] > 1:
        if is_normal:
            return MultivariateNormal.from_moments(mean, covariance)
        return MultivariateBetaGaussian.from_moments(mean, covariance, alpha)
    mean, variance = mean.squeeze(-1), covariance[..., 0, 0]
    if is_normal:
        return Normal(mean, variance.sqrt())
    return BetaGaussian.from_moments(mean, variance, alpha)


def _match_moments(
    mean: Tensor, covariance: Tensor, box: Box, alpha: Tensor | float
) -> SparseDistribution:
    """Return densities (...) with given means (..., D) and covariances (..., D, D) above a floor.

    A floor, relative to the domain, is the least variance in 1-D, and else added to the diagonal.
    """
    low, high = ends(box, mean)
    floor = (_LEAST_SIGMA * (high - low)).square()
    if len(box) == 1:
        return density_of_moments(mean, covariance.clamp_min(floor), alpha)
    # Rounding of the moments is not symmetric.
    covariance = 0.5 * (covariance + covariance.mT)
    # The floor is below rounding if positions lie on a line far outside the domain.
    rounding = 64 * torch.finfo(mean.dtype).eps * covariance.diagonal(dim1=-2, dim2=-1)
    covariance = covariance + torch.diag_embed(torch.maximum(floor, rounding))
    return density_of_moments(mean, covariance, alpha)


def init_linear(projection: nn.Linear, gain: float = 1.0) -> None:
    """Draw weights like `torch.nn.MultiheadAttention`, times a gain, and set the bias to zero."""
    nn.init.xavier_uniform_(projection.weight, gain)
    if projection.bias is not None:
        nn.init.zeros_(projection.bias)


# Channels, and where training starts


def by_head(channels: Tensor, counts: tuple[int, ...]) -> Tensor:
    """Reshape channels (B, Lq, heads * n) to (B, heads, Lq, n), or n to several dimensions."""
    # Contiguous: compiled graphs otherwise get the strides of gradients wrong.
    return channels.unflatten(-1, counts).transpose(1, 2).contiguous()


def initial_centers(count: int, ndim: int) -> Tensor:
    """Return points (count, D) in [0, 1]^D, spread evenly, on the CPU: fractions of the domain.

    Equal steps along the first axis and a Sobol sequence along the others: each of $2^k$ equal
    boxes has one of $2^k$ centers, however the boxes are cut.
    """
    with torch.device("cpu"):
        first = (torch.arange(count) + 0.5).unsqueeze(-1) / count
        if ndim == 1:
            return first
        # The sequence begins with 0: half a step moves it into (0, 1), where logits are finite.
        others = SobolEngine(ndim - 1).draw(count).to(first)
        return torch.cat([first, others + 0.5 / count], -1)


def _proximity(centers: Tensor, points: Tensor) -> Tensor:
    """Return proximities (heads, n) of points (n, D) to centers (heads, D), from 0 to 1.

    Both are fractions of the domain; the proximity is a Gaussian of their distance.
    """
    distance = (centers.unsqueeze(1) - points) / _FIRST_SIGMA
    return torch.exp(-0.5 * distance.square().sum(-1))


# Kernel scores


def _inducing_points(points: Tensor | int, box: Box) -> Tensor:
    """Return given inducing points, or make a grid of a number of them: (I, D), or (I,) in 1-D.

    The grid has equally many points along each axis, from end to end of the domain; a single point
    is in the middle.

    Raises:
        ValueError: Points of another shape or dtype; a number that is no D-th power of an integer.
    """
    ndim = len(box)
    if isinstance(points, Tensor):
        shapes = [(len(points), ndim), *[(len(points),)] * (ndim == 1)] if points.dim() else []
        if not points.numel() or points.shape not in shapes or not points.is_floating_point():
            raise ValueError(
                f"points must be floating of shape (I, {ndim}){' or (I,)' * (ndim == 1)}, "
                f"got {points.dtype} of shape {tuple(points.shape)}"
            )
        return points.detach()
    count = round(points ** (1 / ndim)) if is_count(points) else 0
    if not count or count**ndim != points:
        raise ValueError(
            f"points must be a tensor, or a positive integer to the power ndim={ndim}, "
            f"got {points!r}"
        )
    # A grid of one point begins, and ends, in the middle.
    sides = [(low if count > 1 else (low + high) / 2, high) for low, high in box]
    return torch.cartesian_prod(
        *(torch.linspace(*side, count, dtype=torch.float64) for side in sides)
    )


def ends(box: Box, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return ends of the domain (D,), with the dtype and device of another tensor."""
    if compiled():
        low, high = like.new_tensor(box).T.unbind()
    else:
        low, high = _cached_ends(box, like.dtype, like.device).unbind()
    return low, high


@cache
def _cached_ends(box: Box, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the ends (2, D) of the domain as a tensor, which is copied to a device once."""
    return constant(np.array(box).T, dtype, device)


# Alpha


class LearnedAlpha(nn.Module):
    r"""A learned entropic index for each head: the `alpha` of a `ContinuousAttention`.

    $$\alpha_h = 1.01 + (\bar\alpha - 1.01)\,\mathrm{sigmoid}(w_h), \qquad
    \alpha_h = 1.01 + \mathrm{softplus}(w_h) \quad \text{if } \bar\alpha = \infty$$

    It is computed in float32 at least, whatever the dtype of the parameters.

    Args:
        num_heads: Number of heads; 1 for an index that all heads share.
        start: The initial value, one number or one for each head, between 1.01 and `high`; also as
            a tensor or an array.
        high: The bound $\bar\alpha$; at most 2 for the scores "kernel" and "content".
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        ValueError: If an argument is out of its range.

    Examples:
        >>> LearnedAlpha(2, start=1.5)()
        tensor([[1.5000],
                [1.5000]], grad_fn=<AddBackward0>)
    """

    def __init__(
        self,
        num_heads: int,
        start: Tensor | Sequence[float] | float = 1.5,
        high: float = 2.0,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_integer("num_heads", num_heads, 1)
        least = _LEAST_ALPHA
        if not as_number(high) > least:
            raise ValueError(f"high must be a number above {least}, got {high!r}")
        try:
            starts = np.broadcast_to(np.asarray(start, np.float64), (num_heads,))
        except (TypeError, ValueError, OverflowError):
            starts = np.array(math.nan)
        if not ((starts > least) & (starts < high)).all():
            rule = f"a number, or {num_heads} of them, between {least} and {high}"
            raise ValueError(f"start must be {rule}, got {start!r}")
        self.num_heads, self.start, self.high = num_heads, starts.tolist(), high
        self.weight = nn.Parameter(torch.empty(num_heads, 1, device=device, dtype=dtype))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set alpha to its initial value."""
        above = torch.tensor(self.start, dtype=torch.float64, device="cpu") - _LEAST_ALPHA
        if self.high == math.inf:
            # The inverse of softplus, log(e^x - 1), without overflow.
            weight = above + torch.log(-torch.expm1(-above))
        else:
            weight = torch.logit(above / (self.high - _LEAST_ALPHA))
        self.weight.copy_(weight.unsqueeze(-1))

    def forward(self) -> Tensor:
        """Return the indices (num_heads, 1), which broadcast to densities (B, num_heads, Lq)."""
        weight = to_single(self.weight)
        if self.high == math.inf:
            return _LEAST_ALPHA + functional.softplus(weight)
        return _LEAST_ALPHA + (self.high - _LEAST_ALPHA) * torch.sigmoid(weight)

    def extra_repr(self) -> str:
        return f"{self.num_heads}, start={self.start}, high={self.high}"
