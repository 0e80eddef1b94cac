"""From queries and keys to densities: the scores of attention layers, and a learned alpha."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from numbers import Real
from typing import Any, Literal

import numpy as np
import torch
from pyro.contrib.gp.kernels import RBF
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn import functional
from torch.quasirandom import SobolEngine

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
from ..distributions.base_measure import uniform_box
from ..distributions.kernel import find_mesh
from ..distributions.kernel_mesh import KernelMesh
from ..feature_maps import BasisFeatures, FeatureMap, Kernel, KernelFeatures, kernel_matrix
from ..numerics.entmax import require_finite_index
from ..numerics.quadrature import constant
from ..numerics.validation import in_eager, is_count, require, require_integer
from ..prediction_map import rpm
from ..scores import (
    BasisExpansion,
    FeatureExpansion,
    Finite,
    KernelExpansion,
    MultivariateQuadratic,
    Quadratic,
)
from ..supports import Box
from .discrete import attend
from .masks import AttentionMask, full_precision, to_single

__all__ = [
    "ContentScore",
    "DiscreteScore",
    "KernelScore",
    "LearnedAlpha",
    "MomentScore",
    "QuadraticScore",
    "init_linear",
]

# Shares of the domain: sigma when training starts, and the least that sigma, or the standard
# deviation of matched moments, can become.
_FIRST_SIGMA, _LEAST_SIGMA = 0.1, 1e-3
# Gain of weights that are multiplied with queries when training starts: queries then differ little.
_FIRST_GAIN = 0.1
# Sigma of neighbouring components over the distance between them: their sum has no gaps.
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
# Share of the domain by which conversion between dtypes may move an inducing point.
_SLACK = 1e-2
_TINY = 1e-30


class _ScoreProjection(nn.Linear):
    """A linear layer from queries to the parameters of scores on a domain."""

    def __init__(self, embed_dim: int, channels: int, heads: int, box: Box, **factory: Any) -> None:
        super().__init__(embed_dim, channels, **factory)
        self.heads, self.box = heads, box

    def forward(self, query: Tensor, key: Tensor | None = None) -> Tensor:
        """Project queries to channels (B, Lq, channels), without the rounding of autocast."""
        with full_precision(query):
            return to_single(super().forward(query.to(self.weight.dtype)))


class QuadraticScore(_ScoreProjection):
    """A location and a scale for each head; or, with a log weight, for each of its components."""

    def __init__(
        self, embed_dim: int, heads: int, box: Box, components: int | None = None, **factory: Any
    ) -> None:
        if components is not None:
            require_integer("components", components, 1)
        counts = (heads,) if components is None else (heads, components)
        total, ndim = math.prod(counts), len(box)
        logits = 0 if components is None else total
        # Log weights, locations, diagonals and lower triangles.
        sizes = [logits, total * ndim, total * ndim, total * (ndim * (ndim - 1) // 2)]
        super().__init__(embed_dim, sum(sizes), heads, box, **factory)
        self.components, self._counts, self._sizes = components, counts, sizes

    @torch.no_grad()
    def init_heads(self) -> None:
        """Spread heads, or in each head its components, heavier next to the head's own center."""
        ndim, sigma = len(self.box), _FIRST_SIGMA
        nn.init.xavier_uniform_(self.weight, gain=_FIRST_GAIN)
        logits, loc, diagonal, triangle = self.bias.split(self._sizes)
        centers = own = _initial_centers(self.heads, ndim)
        if self.components is not None:
            centers = _initial_centers(self.components, ndim)
            sigma = min(sigma, _OVERLAP * self.components ** (-1 / ndim))
            logits.copy_(_proximity(own, centers).flatten())
            centers = centers.repeat(self.heads, 1)
        loc.copy_(centers.logit().flatten())
        diagonal.fill_(math.log(math.expm1(sigma - _LEAST_SIGMA)))
        for correlations in (triangle, self.weight.split(self._sizes)[-1]):
            correlations.zero_()

    def densities(
        self, channels: Tensor, alpha: Tensor | float, temperature: float, basis: Basis
    ) -> SparseDistribution:
        """Return densities (B, heads, Lq) with parameters (B, Lq, channels), for any basis."""
        logits, *parts = channels.split(self._sizes, -1)
        counts, total, ndim = self._counts, math.prod(self._counts), len(self.box)
        loc, diagonal, triangle = (_by_head(x, (*counts, x.shape[-1] // total)) for x in parts)
        low, high = _ends(self.box, loc)
        loc = low + (high - low) * torch.sigmoid(loc)
        share = math.sqrt(temperature) * (_LEAST_SIGMA + functional.softplus(diagonal))
        sigma = (high - low) * share
        score: Quadratic | MultivariateQuadratic
        if ndim == 1:
            score = Quadratic(loc.squeeze(-1), sigma=sigma.squeeze(-1))
        else:
            score = MultivariateQuadratic(loc, sigma.unsqueeze(-1) * _unit_tril(triangle, ndim))
        if self.components is None:
            return rpm(score, alpha)
        alpha = alpha.unsqueeze(-1) if isinstance(alpha, Tensor) else alpha
        return Mixture(_by_head(logits / temperature, counts), rpm(score, alpha))


class _MeshScore(nn.Module):
    """Scores whose densities are sums over quadrature nodes, which calls share."""

    box: Box
    _mesh: KernelMesh | None = None

    def _functions(self, basis: Basis) -> FeatureMap:
        """Return the functions of which scores are sums."""
        raise NotImplementedError

    def _like(self, basis: Basis) -> Tensor:
        """Return a tensor with the dtype and device of the densities."""
        raise NotImplementedError

    def mesh(self, basis: Basis, anew: bool = False) -> KernelMesh | None:
        """Return nodes for scores and for the basis of the value functions.

        They are kept while nothing is learned of which they are made. Validation, if it is on,
        notices functions that have changed; `anew` finds the nodes in any case. Compiled graphs,
        which cannot read values, use those of the last call.
        """
        mesh, like = self._mesh, self._like(basis)
        if torch.compiler.is_compiling():
            if mesh is not None and mesh.matrix is None and not torch.compiler.is_exporting():
                raise RuntimeError(
                    "a layer whose scores have a learned kernel or basis cannot be compiled, as "
                    "its quadrature nodes follow from values: call requires_grad_(False) on it, "
                    "and then rebuild_cache() of the layer"
                )
            return mesh
        if like.is_meta:
            return None if mesh is None else mesh.to(like.device)
        if not anew and mesh is not None and self._is_kept(mesh, basis):
            return mesh
        # The nodes outlive this call, and a learned kernel must be seen to require gradients.
        with torch.inference_mode(False), torch.enable_grad():
            mesh = _find_mesh(self._functions(basis), self.box, basis, like)
        if in_eager():  # tensors of a transform end with it
            self._mesh = mesh
        return mesh

    def _is_kept(self, mesh: KernelMesh, basis: Basis) -> bool:
        learned = (x.requires_grad for x in (*self._kernel_parameters(), *basis.parameters()))
        if mesh.matrix is None or any(learned):
            return False
        if not Distribution._validate_args or not in_eager():
            return True
        return mesh.has(self._functions(basis))

    def _kernel_parameters(self) -> Iterable[Tensor]:
        return ()


class KernelScore(_ScoreProjection, _MeshScore):
    """A kernel expansion for each head, with a weight for each inducing point."""

    inducing_points: Tensor

    def __init__(
        self,
        embed_dim: int,
        heads: int,
        box: Box,
        inducing_points: Tensor | int = 64,
        kernel: Kernel | None = None,
        normalization: Literal["inside", "outside"] = "inside",
        **factory: Any,
    ) -> None:
        if normalization not in ("inside", "outside"):
            raise ValueError(f"normalization must be 'inside' or 'outside', got {normalization!r}")
        points = _inducing_points(inducing_points, box)
        super().__init__(embed_dim, heads * len(points), heads, box, **factory)
        self.register_buffer("inducing_points", points.to(self.weight))
        self.kernel = _default_kernel(len(points), box) if kernel is None else kernel
        if isinstance(self.kernel, nn.Module):
            self.kernel.to(**factory)
        self.normalization = normalization

    @torch.no_grad()
    def init_heads(self) -> None:
        """Give each head a low and wide score, and spread these evenly over the domain."""
        if self.weight.is_meta:
            return
        points, (low, high) = self._points().double(), _ends(self.box, self.inducing_points)
        gram = kernel_matrix(self.kernel, points, points)
        centers = _initial_centers(self.heads, len(self.box)).to(points)
        weights = _proximity(centers, (points - low) / (high - low))
        # The kernel may be zero between all inducing points.
        height = (weights @ gram).abs().amax(-1, keepdim=True).clamp_min(_TINY)
        self.bias.copy_((_FIRST_HEIGHT * weights / height).flatten())
        size = float(gram.square().sum(-1).mean().sqrt().clamp_min(_TINY))
        nn.init.normal_(self.weight, std=_FIRST_DEVIATION / size / self.in_features**0.5)

    def densities(
        self, channels: Tensor, alpha: Tensor | float, temperature: float, basis: Basis
    ) -> SparseDistribution:
        """Return densities (B, heads, Lq) with parameters (B, Lq, channels), for a basis."""
        weights = _by_head(channels / temperature, (self.heads, len(self.inducing_points)))
        score = KernelExpansion(weights, self._points(), self.kernel)
        base = uniform_box(*_ends(self.box, self.inducing_points))
        return _kernel_density(score, base, alpha, self.mesh(basis), self.normalization)

    def _points(self) -> Tensor:
        """Inducing points (I, D)."""
        low, high = _ends(self.box, self.inducing_points)
        # Conversion to another dtype may have rounded the outermost ones across the ends.
        points = self.inducing_points.detach().reshape(-1, len(self.box))
        return torch.maximum(torch.minimum(points, high), low)

    def _like(self, basis: Basis) -> Tensor:
        return self.inducing_points

    def _kernel_parameters(self) -> Iterable[Tensor]:
        return self.kernel.parameters() if isinstance(self.kernel, nn.Module) else ()

    def _functions(self, basis: Basis) -> FeatureMap:
        points, (low, high) = self._points(), _ends(self.box, self.inducing_points)
        moved = (self.inducing_points.detach().reshape(points.shape) - points).abs()
        rule = f"in the domain {self.box}"
        valid = moved <= _SLACK * (high - low)
        require(valid, "inducing_points", rule, self.inducing_points)
        return KernelFeatures(points, self.kernel)


def _kernel_density(
    score: FeatureExpansion,
    base: list[Distribution],
    alpha: Tensor | float,
    mesh: KernelMesh | None,
    normalization: Literal["inside", "outside"] = "inside",
) -> SparseDistribution:
    """Return the densities of scores relative to a base."""
    if not isinstance(alpha, Tensor) and alpha == 1:
        return KernelExp.from_score(score, base, mesh=mesh)
    return KernelDeformedExp.from_score(score, base, alpha, normalization, mesh=mesh)


def _find_mesh(features: FeatureMap, box: Box, basis: Basis, like: Tensor) -> KernelMesh:
    """Return nodes on the domain for all scores made of some functions, and for a basis."""
    tolerance = None if like.dtype == torch.float64 else _TOLERANCE
    dtype = torch.promote_types(like.dtype, torch.float32)  # no half precision
    weights = like.new_zeros(features.points.shape[-2], dtype=dtype)
    mesh = find_mesh(weights, features, uniform_box(*_ends(box, like)), 2.0, tolerance)
    return replace(mesh.for_basis(basis).with_matrix_of(features), basis=basis)


class DiscreteScore(nn.Module):
    """Weights of the observed positions from inner products of queries and keys."""

    def __init__(
        self, embed_dim: int, kdim: int, heads: int, box: Box, bias: bool = True, **factory: Any
    ) -> None:
        super().__init__()
        self.heads, self.box = heads, box
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias, **factory)
        self.k_proj = nn.Linear(kdim, embed_dim, bias, **factory)

    def forward(self, query: Tensor, key: Tensor) -> Any:
        """Return projected queries (B, heads, Lq, head_dim) and keys (B, heads, L, head_dim).

        Their inner products are the scores, over the root of their length.
        """
        queries, keys = (
            to_single(x).unflatten(-1, (self.heads, x.shape[-1] // self.heads)).transpose(1, 2)
            for x in (self.q_proj(query), self.k_proj(key))
        )
        return queries / math.sqrt(queries.shape[-1]), keys

    def init_heads(self) -> None:
        """Draw the weights, those of queries small, so that many positions get a share."""
        init_linear(self.q_proj, _FIRST_GAIN)
        init_linear(self.k_proj)

    def weights(
        self,
        projected: tuple[Tensor, Tensor],
        alpha: Tensor | float,
        temperature: float,
        mask: AttentionMask,
    ) -> Tensor:
        """Return weights (B, heads, Lq, L), exactly zero where masked."""
        queries, keys = projected
        scores, bias = (queries / temperature) @ keys.mT, mask.added(queries.dtype)
        weights: Tensor = rpm(Finite(scores if bias is None else scores + bias), alpha).probs
        return weights

    def means(
        self,
        projected: tuple[Tensor, Tensor],
        alpha: Tensor | float,
        temperature: float,
        mask: AttentionMask,
        values: Tensor,
    ) -> Tensor:
        """Return means (B, heads, Lq, F) of values (B, heads, L, F) by these weights.

        Values that are shared have 1 in place of B or heads. Means are summed in their dtype.
        """
        queries, keys = projected
        require_finite_index(alpha, queries.shape[:-1])
        return attend(queries / temperature, keys, values, alpha, mask.added(queries.dtype))


class MomentScore(DiscreteScore):
    """One density for each head, with the moments of its discrete attention weights."""

    def densities(
        self,
        projected: tuple[Tensor, Tensor],
        alpha: Tensor | float,
        temperature: float,
        mask: AttentionMask,
        positions: Tensor,
    ) -> SparseDistribution:
        """Return densities (B, heads, Lq) with the moments of positions (B or 1, L, *event)."""
        ndim, dtype = len(self.box), projected[0].dtype
        low, high = _ends(self.box, positions.double())
        # In float64 and from the middle of the domain, as variances are differences.
        t = positions.double().reshape(*positions.shape[:2], 1, ndim) - (low + high) / 2
        values = torch.cat([t, t.mT * t], -2).flatten(-2).unsqueeze(1)
        moments = self.means(projected, alpha, temperature, mask, values)
        mean = moments[..., :ndim].unsqueeze(-2)
        covariance = moments[..., ndim:].unflatten(-1, (ndim, ndim)) - mean.mT * mean
        mean = mean.squeeze(-2) + (low + high) / 2
        match = _match_covariance if ndim > 1 else _match_variance
        return match(mean.to(dtype), covariance.to(dtype), self.box, alpha)


class ContentScore(DiscreteScore, _MeshScore):
    """Inner products of queries with a key function, over the root of their length."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Return projected queries (B, Lq, embed_dim)."""
        return to_single(self.q_proj(query))

    def keys(self, key: Tensor) -> Tensor:
        """Return projected keys by head, and a constant, (B, L, heads, head_dim + 1).

        The constant shows how the regression reproduces constants, which are taken out of scores.
        """
        keys = self.k_proj(key).unflatten(-1, (self.heads, -1))
        return torch.cat([keys, torch.ones_like(keys[..., :1])], -1)

    def densities(
        self,
        queries: Tensor,
        alpha: Tensor | float,
        temperature: float,
        basis: Basis,
        coefficients: Tensor,
        means: Tensor,
    ) -> SparseDistribution:
        """Return densities (B, heads, Lq) of queries (B, Lq, embed_dim).

        The key functions have `coefficients` (B, N, heads, head_dim + 1), with Lq before N if each
        query has its own. `means` (B, Lq or 1, ...) are those of `keys` where a query may read.
        """
        queries = queries.unflatten(-1, (self.heads, -1))
        if own := coefficients.dim() > means.dim():
            means = means.unsqueeze(2)
        # Without its mean, which does not change the density, a constant key function is zero.
        keys = coefficients[..., :-1] - coefficients[..., -1:] * means[..., :-1]
        weights = torch.einsum(f"bqhe,b{'q' * own}nhe->bhqn", queries, keys)
        weights = weights / (math.sqrt(queries.shape[-1]) * temperature)
        base = uniform_box(*_ends(self.box, weights))
        return _kernel_density(BasisExpansion(weights, basis), base, alpha, self.mesh(basis))

    def _like(self, basis: Basis) -> Tensor:
        # Quantised projections have no parameters.
        tensors = chain(self.parameters(), basis.buffers(), basis.parameters())
        floating = [x for x in tensors if x.is_floating_point()]
        return to_single([*floating, torch.empty(0)][0])

    def _functions(self, basis: Basis) -> FeatureMap:
        return BasisFeatures(basis)


def _match_variance(
    mean: Tensor, covariance: Tensor, box: Box, alpha: Tensor | float
) -> SparseDistribution:
    """Return densities (...) with means (..., 1) and variances (..., 1, 1)."""
    mean, ((low, high),) = mean.squeeze(-1), box
    variance = covariance[..., 0, 0].clamp_min((_LEAST_SIGMA * (high - low)) ** 2)
    if not isinstance(alpha, Tensor) and alpha == 1:
        return Normal(mean, variance.sqrt())
    return BetaGaussian.from_moments(mean, variance, alpha)


def _match_covariance(
    mean: Tensor, covariance: Tensor, box: Box, alpha: Tensor | float
) -> SparseDistribution:
    """Return densities (...) with means (..., D) and, nearly, covariances (..., D, D)."""
    covariance = 0.5 * (covariance + covariance.mT)
    low, high = _ends(box, mean)
    floor = (_LEAST_SIGMA * (high - low)).square()
    # The floor is below rounding if positions lie on a line far outside the domain.
    rounding = 64 * torch.finfo(mean.dtype).eps * covariance.diagonal(dim1=-2, dim2=-1)
    covariance = covariance + torch.diag_embed(torch.maximum(floor, rounding))
    if not isinstance(alpha, Tensor) and alpha == 1:
        return MultivariateNormal.from_moments(mean, covariance)
    return MultivariateBetaGaussian.from_moments(mean, covariance, alpha)


def init_linear(projection: nn.Linear, gain: float = 1.0) -> None:
    """Draw weights like `torch.nn.MultiheadAttention`."""
    nn.init.xavier_uniform_(projection.weight, gain)
    if projection.bias is not None:
        nn.init.zeros_(projection.bias)


# Channels, and where training starts


def _by_head(channels: Tensor, counts: tuple[int, ...]) -> Tensor:
    """Reshape channels (B, Lq, heads * rest) to (B, heads, Lq, *rest)."""
    # Contiguous: compiled graphs otherwise get the strides of gradients wrong.
    by_head: Tensor = channels.unflatten(-1, counts).transpose(1, 2).contiguous()
    return by_head


def _unit_tril(triangle: Tensor, ndim: int) -> Tensor:
    """Return matrices (..., D, D) with a unit diagonal from the entries below it, row by row."""
    rows, columns = torch.tril_indices(ndim, ndim, -1, device=triangle.device)
    unit = torch.diag_embed(triangle.new_ones(*triangle.shape[:-1], ndim))
    unit[..., rows, columns] = triangle
    return unit


def _initial_centers(count: int, ndim: int) -> Tensor:
    """Return shares (count, D) of the domain, spread evenly over it, on the CPU.

    Equal steps along the first axis and a Sobol sequence along the others: $2^k$ centers lie one
    each in $2^k$ equal boxes, however these are cut.
    """
    with torch.device("cpu"):
        shares = (torch.arange(count) + 0.5).unsqueeze(-1) / count
        if ndim == 1:
            return shares
        others = SobolEngine(ndim - 1).draw(count).to(shares)
        return torch.cat([shares, others + 0.5 / count], -1)


def _proximity(centers: Tensor, shares: Tensor) -> Tensor:
    """Proximity (heads, n) of shares (n, D) to the heads' centers (heads, D), from 0 to 1."""
    distance = (centers.unsqueeze(1) - shares) / _FIRST_SIGMA
    return torch.exp(-0.5 * distance.square().sum(-1))


# Kernel scores


def _inducing_points(points: Tensor | int, box: Box) -> Tensor:
    """Check inducing points (I,) or (I, D), or return a grid of so many that includes the edges."""
    ndim = len(box)
    if isinstance(points, Tensor):
        shapes = [(len(points), ndim), *[(len(points),)] * (ndim == 1)] if points.dim() else []
        if not points.numel() or points.shape not in shapes or not points.is_floating_point():
            raise ValueError(
                f"inducing_points must be floating of shape (I, {ndim}){' or (I,)' * (ndim == 1)}, "
                f"got {points.dtype} of shape {tuple(points.shape)}"
            )
        return points.detach()
    count = round(points ** (1 / ndim)) if is_count(points) else 0
    if not count or count**ndim != points:
        raise ValueError(
            f"inducing_points must be a tensor, or a positive integer to the power ndim={ndim}, "
            f"got {points!r}"
        )
    sides = [(low if count > 1 else (low + high) / 2, high) for low, high in box]
    return torch.cartesian_prod(
        *(torch.linspace(*side, count, dtype=torch.float64) for side in sides)
    )


def _default_kernel(count: int, box: Box) -> Kernel:
    """Return a constant Gaussian kernel as wide as two steps between `count` inducing points."""
    steps = max(round(count ** (1 / len(box))) - 1, 1)
    lengths = torch.tensor([_LENGTH * (high - low) / steps for low, high in box])
    kernel: Kernel = RBF(len(box), lengthscale=lengths.squeeze()).requires_grad_(False)
    return kernel


def _ends(box: Box, like: Tensor) -> tuple[Tensor, Tensor]:
    """Ends of the domain (D,), with the dtype and device of another tensor."""
    if torch.compiler.is_compiling():
        low, high = like.new_tensor(box).T.unbind()
    else:
        low, high = _cached_ends(box, like.dtype, like.device).unbind()
    return low, high


@cache
def _cached_ends(box: Box, dtype: torch.dtype, device: torch.device) -> Tensor:
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
        bound: Any = high
        least = _LEAST_ALPHA
        if not isinstance(bound, Real) or not float(bound) > least:
            raise ValueError(f"high must be a number above {least}, got {high!r}")
        try:
            each = np.broadcast_to(np.asarray(start, np.float64), (num_heads,))
        except (TypeError, ValueError):
            each = np.array(math.nan)
        if not ((each > least) & (each < high)).all():
            rule = f"a number, or {num_heads} of them, between {least} and {high}"
            raise ValueError(f"start must be {rule}, got {start!r}")
        self.num_heads, self.start, self.high = num_heads, each.tolist(), high
        self.weight = nn.Parameter(torch.empty(num_heads, 1, device=device, dtype=dtype))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set alpha to its initial value."""
        above = torch.tensor(self.start, dtype=torch.float64, device="cpu") - _LEAST_ALPHA
        if self.high == math.inf:
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
