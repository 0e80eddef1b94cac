"""Continuous attention as a layer: queries become densities, values become functions of time."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from typing_extensions import Self

from .._numerics.modes import branches_allowed
from .._numerics.validation import as_number, broadcasts_to, is_count, require_integer
from ..distributions import SparseDistribution
from ._inputs import InputShapes, check_sequence
from ._masks import (
    AttentionMask,
    check_finite,
    check_shape,
    full_precision,
    to_single,
)
from ._per_query import fit_per_query, weights_per_query
from .local import LocalScore, SplitScore
from .regression import RidgeRegression
from .scores import (
    AttentionScore,
    ContentScore,
    Dimensions,
    DiscreteScore,
    KernelScore,
    LearnedAlpha,
    MomentScore,
    Observed,
    QuadraticScore,
    init_linear,
)
from .value_function import ValueFunction

__all__ = ["ContinuousAttention"]

_Given = TypeVar("_Given", Tensor, Tensor | None)

# Short forms of scores.
_SCORES: dict[str, Callable[[], AttentionScore]] = {
    "quadratic": QuadraticScore,
    "local": LocalScore,
    "moments": MomentScore,
    "kernel": KernelScore,
    "mixture": partial(QuadraticScore, components=8),
    "content": ContentScore,
}
# A layer warns if the absolute weights of observations sum to more than _MOST_WEIGHT in more than
# _LEAST_FRACTION of the contexts. It checks the first _EXAMPLES examples and about _QUERIES queries
# of each.
_MOST_WEIGHT, _LEAST_FRACTION, _EXAMPLES, _QUERIES = 5, 0.1, 2, 8


class _Projected(NamedTuple):
    """Sequences after the projections of a layer, batch first."""

    values: Tensor  # By head (B, L, heads, E), followed by channels of keys that the score reads
    channels: Any  # Queries and keys as the score projects them
    added: Any  # Queries and keys as the discrete score, whose context is added, projects them
    alpha: Tensor | float  # A tensor broadcasts to (B, heads, Lq)
    positions: Tensor  # Where values were observed
    queries: Tensor | None  # Positions of the queries, if the score reads them
    mask: AttentionMask  # Positions that queries may read


class ContinuousAttention(nn.Module):
    r"""Multi-head attention to a continuous domain, called like `torch.nn.MultiheadAttention`.

    The values, observed at `positions`, become a function $V$ by a `RidgeRegression` on a basis.
    Every query and head has a density $p$ over the domain, and its context is $\mathbb E_p[V(t)]$.
    The output has a learned factor for each channel, which starts small, so that a residual network
    starts close to one without attention.

    The score decides how queries, and keys, become densities:

    * "quadratic", `QuadraticScore()`: location and scale are computed from the query. Keys are
      ignored.
    * "local", `LocalScore()`: at offsets from the query's own position. Heads see shape.
    * "mixture", `QuadraticScore(components=8)`: the same for mixtures.
    * "kernel", `KernelScore()`: densities of any shape, from the query.
    * "moments", `MomentScore()`: with mean and variance of discrete weights, from query and keys.
    * "content", `ContentScore()`: from the query and a function of time made of the keys.

    A list gives a number of heads to each of several quadratic scores, as in
    `[("local", 4), ("quadratic", 4)]`: some heads then look around their query, and others
    at locations in the domain.

    Discrete scores are inner products of queries and keys over the root of their length.
    `combine=True` adds the discrete context to the continuous one, with any score.

    Sequences have the dtype of the parameters, except under autocast. Under autocast, and if
    parameters are in half precision, values and contexts are rounded; densities, regression and
    expectations are in float32. Layers whose scores have a learned kernel or basis cannot be
    compiled. Long sequences are read in chunks of `layer.regression.chunk_size` positions.

    The layer takes the place of the attention in `torch.nn.TransformerEncoderLayer` and
    `torch.nn.TransformerDecoderLayer`, which give it no positions: sequences are then spread over
    the domain. Pass `enable_nested_tensor=False` to `torch.nn.TransformerEncoder`.

    Args:
        embed_dim: Channels of the queries and of the context.
        num_heads: Number of heads; divides `embed_dim` unless `head_dim` is given.
        regression: How values become functions: basis, smoothing and domain. Densities may be
            centered in its domain, which is the unit of their scales. The layer converts it to its
            device and dtype. None: `RidgeRegression()`, for positions in [0, 1].
        alpha: Entropic index, at least 1, and at most 2 with the scores "kernel" and "content"; 1
            is softmax, 2 is sparsemax. A tensor above 1 that broadcasts to (B, num_heads, Lq) may
            require grad; a module such as `LearnedAlpha` returns such a tensor.
        score: "quadratic", "local", "moments", "kernel", "mixture" or "content", an
            `AttentionScore`, or pairs as `SplitScore` takes them, with short forms too.
        combine: Whether to add the context of discrete weights, with the same alpha.
        temperature: All scores are divided by this positive number. The attribute may be changed
            between calls. $\sigma^2$ of quadratic scores, of components too, is multiplied by it;
            log weights and discrete scores are divided.
        layer_scale: Initial factor of the output channels, as in LayerScale. None: no factors.
        head_dim: Channels of the values that each head reads. None: `embed_dim` over the number of
            heads. With `embed_dim` each local head is a tap of a convolution between all channels.
        kdim: Channels of the keys; `embed_dim` if None.
        vdim: Channels of the values; `embed_dim` if None.
        bias: Whether the projections of query, key, value and context have biases.
        batch_first: Whether sequences are (B, L, channels) rather than (L, B, channels).
        dropout: Must be 0, since there are no weights to drop. Use `torch.nn.Dropout`.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        ValueError: If an argument is out of its range.

    Warns:
        UserWarning: At the first call, if for a tenth of the contexts the absolute weights of the
            observations sum to more than 5: contexts then exceed the values.

    References:
        Martins et al. (2020), Sparse and Continuous Attention, sections 3 and 4. arXiv:2006.07214.
        Farinhas et al. (2021), Multimodal Continuous Visual Attention Mechanisms.
        arXiv:2104.03046. Touvron et al. (2021), Going Deeper with Image Transformers (LayerScale).
        arXiv:2103.17239

    Examples:
        >>> layer = ContinuousAttention(8, 2, batch_first=True)
        >>> query, sequence = torch.randn(4, 1, 8), torch.randn(4, 50, 8)
        >>> context, density = layer(query, sequence, sequence, positions=torch.rand(4, 50))
        >>> context.shape, density.batch_shape
        (torch.Size([4, 1, 8]), torch.Size([4, 2, 1]))
    """

    alpha: Tensor | nn.Module | float
    score_proj: AttentionScore
    discrete_proj: DiscreteScore | None
    layer_scale: nn.Parameter | None
    # Keep `torch.nn.TransformerEncoderLayer` off its fast path, which reads these two and computes
    # discrete attention without calling the layer.
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        regression: RidgeRegression | None = None,
        alpha: Tensor | nn.Module | float = 2.0,
        score: str | AttentionScore | Sequence[tuple[str | AttentionScore, int]] = "quadratic",
        *,
        combine: bool = False,
        temperature: float = 1.0,
        layer_scale: float | None = 0.1,
        head_dim: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        kdim, vdim = embed_dim if kdim is None else kdim, embed_dim if vdim is None else vdim
        _check_sizes(embed_dim, num_heads, head_dim, kdim, vdim)
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise ValueError(f"dtype must be floating, got {dtype!r}")
        if dropout != 0:
            rule = "dropout must be 0, as there are no weights to drop"
            raise ValueError(f"{rule}: apply torch.nn.Dropout to the context, got {dropout!r}")
        if layer_scale is not None and not 0 < as_number(layer_scale) < inf:
            rule = "layer_scale must be None, or positive and finite"
            raise ValueError(f"{rule}, got {layer_scale!r}")
        regression = RidgeRegression() if regression is None else regression
        if not isinstance(regression, RidgeRegression) or not regression.domain:
            rule = "regression must be a RidgeRegression with a bounded domain"
            raise ValueError(f"{rule}, got {regression!r}")
        self.score_proj = _make_score(score)
        _check_alpha(alpha, self.score_proj)
        self.embed_dim, self.num_heads, self.kdim, self.vdim = embed_dim, num_heads, kdim, vdim
        self.head_dim = embed_dim // num_heads if head_dim is None else head_dim
        self.batch_first, self.combine, self.temperature = batch_first, combine, temperature
        # A constant tensor moves with the layer and is saved, as parameters and modules are.
        if isinstance(alpha, Tensor) and not isinstance(alpha, nn.Parameter):
            self.register_buffer("alpha", alpha)
        else:
            self.alpha = alpha
        box = regression.domain
        self._shapes = InputShapes(embed_dim, kdim, vdim, num_heads, box)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        dimensions = Dimensions(embed_dim, kdim, num_heads, self.head_dim, box, bias, factory)
        self.score_proj.box, self.discrete_proj = box, None
        self.score_proj.prepare(dimensions)
        # A moment score has discrete weights already, whose context is added.
        if combine and not isinstance(self.score_proj, MomentScore):
            self.discrete_proj = DiscreteScore()
            self.discrete_proj.prepare(dimensions)
        inner = num_heads * self.head_dim
        self.v_proj = nn.Linear(vdim, inner, bias, **factory)
        self.out_proj = nn.Linear(inner, embed_dim, bias, **factory)
        # The first call looks for overshoot. `reset_parameters` needs the initial scale.
        self._has_attended, self._first_scale = False, layer_scale
        scales = None if layer_scale is None else nn.Parameter(torch.empty(embed_dim, **factory))
        self.register_parameter("layer_scale", scales)
        self.regression = regression.to(**factory)
        self.register_load_state_dict_post_hook(_rebuild_cache)
        self.rebuild_cache()
        self.reset_parameters()

    @property
    def temperature(self) -> float:
        """The number by which all scores are divided."""
        return self._temperature

    @temperature.setter
    def temperature(self, value: float) -> None:
        if not 0 < as_number(value) < inf:
            raise ValueError(f"temperature must be positive and finite, got {value!r}")
        self._temperature: float = value

    def reset_parameters(self) -> None:
        """Draw new weights, and spread the heads over the domain."""
        self.score_proj.reset_parameters()
        if self.discrete_proj is not None:
            self.discrete_proj.reset_parameters()
        # As `torch.nn.MultiheadAttention` draws them.
        init_linear(self.v_proj, 0.5**0.5)
        nn.init.kaiming_uniform_(self.out_proj.weight, a=5**0.5)
        if self.out_proj.bias is not None:
            nn.init.zeros_(self.out_proj.bias)
        if self.layer_scale is not None and self._first_scale is not None:
            nn.init.constant_(self.layer_scale, float(self._first_scale))
        if isinstance(self.alpha, LearnedAlpha):
            self.alpha.reset_parameters()

    def extra_repr(self) -> str:
        # Modules are listed among the children of the layer.
        alpha = "" if isinstance(self.alpha, nn.Module) else f"alpha={self.alpha}, "
        return (
            f"{self.embed_dim}, {self.num_heads}, {alpha}"
            f"combine={self.combine}, temperature={self.temperature}"
        )

    def rebuild_cache(self) -> None:
        """Recompute the cache that all calls share, after a constant kernel or basis was changed.

        Moving, loading and copying the layer do so.
        """
        self.score_proj.rebuild(self.regression.basis)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Convert or move the layer, as `torch.nn.Module`, and then its cache."""
        super()._apply(fn, recurse)
        # `to_empty` leaves parameters that have yet to be set.
        with suppress(ValueError):
            self.rebuild_cache()
        return self

    def __setstate__(self, state: dict[str, object]) -> None:
        """Restore a copied or pickled layer, without its cache, which is made again."""
        super().__setstate__(state)
        self.rebuild_cache()

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        positions: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        *,
        query_positions: Tensor | None = None,
        function: ValueFunction | None = None,
        need_weights: bool = True,
        average_attn_weights: bool = False,
        is_causal: bool = False,
    ) -> tuple[Tensor, SparseDistribution | None]:
        """Attend to the value function of each example.

        A single sequence may come without its dimension B, as in `torch.nn.MultiheadAttention`:
        then (Lq, embed_dim), (L, kdim), (L, vdim), and masks (L,) and (num_heads, Lq, L).

        Args:
            query: Shape (Lq, B, embed_dim), or (B, Lq, embed_dim) if `batch_first`.
            key: Shape (L, B, kdim), or (B, L, kdim).
            value: Shape (L, B, vdim), or (B, L, vdim).
            positions: Where the values were observed, in any order: shape (B, L) whatever
                `batch_first`, or (L,) if shared; in D dimensions (B, L, D) or (L, D). None, on the
                line: the domain is divided into one cell for each value, padding left out, and
                values are at the centers of the cells. Every sequence then fills the domain,
                however long it is, and moves when it grows.
            key_padding_mask: Shape (B, L), True, or -inf, where a position is padding. Key, value
                and position are never read there. Other numbers are added to discrete scores.
            attn_mask: Shape (Lq, L) or (B * num_heads, Lq, L): True, or -inf, where a query may not
                read. Every query then has a value function of its own, fitted to the positions it
                may read, in O(L N (N + E)). Other numbers are added to discrete scores.
            query_positions: Where the queries are, for scores that look around them: shape (B, Lq),
                or (Lq,) if shared, in D dimensions (B, Lq, D) or (Lq, D). None, if the query is the
                same tensor as the value or the key: `positions`.
            function: A value function to read in place of a sequence, such as a memory returns. Its
                values are projected ones, `layer.v_proj(value)`, of all heads. All other arguments
                but query and `query_positions` are then None. Not for scores that read keys.
            need_weights: Whether to return the density. None takes its place otherwise.
            average_attn_weights: Must be False if the density is returned: each head has its own.
            is_causal: Says that `attn_mask`, which must be given, is causal. It changes nothing.

        Returns:
            The context, shaped like the query, and in place of weights the density, of batch shape
            (B, num_heads, Lq), or (num_heads, Lq) without B.

        Raises:
            ValueError: If shapes do not match, if a mask leaves a query nothing to read, if both a
                function and a sequence are given, if positions are left out in several
                dimensions, if `query_positions` are missing, not asked for, not finite or outside
                of the domain, or as `RidgeRegression.fit` does.
        """
        if not isinstance(need_weights, bool):
            raise ValueError(f"need_weights must be True or False, got {need_weights!r}")
        if need_weights and average_attn_weights:
            rule = "average_attn_weights must be False, as each head has a density"
            raise ValueError(f"{rule}: average density.prob(t) over dimension -2, got True")
        if is_causal and attn_mask is None:
            rule = "attn_mask must be given if is_causal=True, which only says that it is causal"
            made_by = "nn.Transformer.generate_square_subsequent_mask(L)"
            raise ValueError(f"{rule}: {made_by}, got None")
        # Asked before a dimension is added, which makes other tensors of the same numbers.
        are_same = query is value or query is key
        is_single = isinstance(query, Tensor) and query.dim() == 2
        if is_single:
            axis = 0 if self.batch_first else 1
            query = _add_batch(query, 2, axis)
            key, value = (_add_batch(x, 2, axis) for x in (key, value))
            key_padding_mask = _add_batch(key_padding_mask, 1)
        if function is None:
            sequences = query, key, value, positions, key_padding_mask, attn_mask
            projected = self._project(*sequences, query_positions, are_same)
            with full_precision(query):
                heads, density = self._attend(projected)
                if self.regression.validate_args and branches_allowed() and not self._has_attended:
                    self._warn_of_overshoot(density, projected)
        else:
            sequence = (key, value, positions, key_padding_mask, attn_mask)
            if any(x is not None for x in sequence):
                rule = "function must be given without key, value, positions and masks"
                raise ValueError(f"{rule}, got both a function and a sequence")
            heads, density = self._read(query, function, query_positions)
        context = self.out_proj(heads.to(query.dtype).flatten(2))
        if self.layer_scale is not None:
            context = context * self.layer_scale.to(context.dtype)
        if is_single:
            context, density = context.squeeze(0), density[0]
        elif not self.batch_first:
            context = context.transpose(0, 1)
        return context, density if need_weights else None

    def observation_weights(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        positions: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        *,
        query_positions: Tensor | None = None,
    ) -> Tensor:
        """Compute how much each observation counts in the context of each query and head.

        The context of a head is the sum of its channels of `v_proj(value)` with these weights, and
        `out_proj` joins the heads. `RidgeRegression.observation_weights` has the formula. Discrete
        weights are included with `combine=True`. It takes the same arguments as `forward`, with a
        dimension B, and raises the same errors.

        Returns:
            The weights, shape (B, num_heads, Lq, L), exactly 0 where masked. They sum to 1, but for
            a ridge penalty, and may be negative.
        """
        sequences = query, key, value, positions, key_padding_mask, attn_mask
        projected = self._project(*sequences, query_positions, query is value or query is key)
        with full_precision(query):
            weights = self._fit_weights(self._attend(projected)[1], projected)
            if not self.combine:
                return weights
            options = projected.added, projected.alpha, self.temperature, projected.mask
            return weights + self._discrete_score().weights(*options)

    def _discrete_score(self) -> DiscreteScore:
        """Return the score whose discrete context is added, if `combine`."""
        score = self.score_proj if self.discrete_proj is None else self.discrete_proj
        return cast(DiscreteScore, score)

    def _fit_weights(self, density: SparseDistribution, projected: _Projected) -> Tensor:
        """Return the weights (B, heads, Lq, L) of observations in contexts of value functions."""
        regression, values, mask = self.regression, projected.values, projected.mask
        if mask.visible is None:
            return regression.observation_weights(
                density, projected.positions, values.flatten(2), mask.observed
            )
        features = density.expect(regression.basis)
        return weights_per_query(regression, features, projected.positions, values, mask.visible)

    def absolute_weight(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        positions: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        *,
        query_positions: Tensor | None = None,
    ) -> Tensor:
        r"""Compute the sum of the absolute weights of the observations in each context.

        It is 1 for a mean of the observations. A context can be as many times as large as the
        largest of them: the sum is the Lebesgue constant of the fit. If it exceeds 5, value
        functions overshoot, between observations that are far apart or beyond the last one: raise
        `smoothing`, or the ridge `penalty`, or take fewer or wider functions.

        It takes the same arguments as `observation_weights`, and raises the same errors.

        Returns:
            The sums, shape (B, num_heads, Lq).
        """
        arguments = query, key, value, positions, key_padding_mask, attn_mask
        weights = self.observation_weights(*arguments, query_positions=query_positions)
        return weights.abs().sum(-1)

    def _read(
        self, query: Tensor, function: ValueFunction, query_positions: Tensor | None
    ) -> tuple[Tensor, SparseDistribution]:
        """Return contexts of a value function (B, Lq, heads, head_dim), and densities.

        Raises ValueError if the arguments do not fit the layer.

        Args:
            query: As for `forward`, like `query_positions`.
            function: Of projected values, with heads * head_dim channels.
            query_positions: See `query`.
        """
        if self.combine or self.score_proj.reads_keys:
            rule = "function must be None for scores that read keys and for combine=True"
            raise ValueError(f"{rule}, got {function!r}")
        check_sequence("query", query, self._dtype)
        query = query if self.batch_first else query.transpose(0, 1)
        batch, queries = query.shape[:2]
        check_shape("query", query, (batch, queries, self.embed_dim))
        event = self._shapes.event
        if not isinstance(function, ValueFunction) or function.basis.event_shape != event:
            rule = f"function must be a ValueFunction of locations of shape {tuple(event)}"
            raise ValueError(f"{rule}, got {function!r}")
        basis, coefficients = function.basis, function.coefficients
        shape = (batch, len(basis), self.num_heads * self.head_dim)
        check_shape("function.coefficients", coefficients, shape)
        if self.regression.validate_args:
            check_finite("query", query)
            check_finite("function.coefficients", coefficients)
        located = self._locate_queries(query_positions, batch, queries)
        alpha, channels = self._checked_alpha(batch, queries), self.score_proj(query, None)
        with full_precision(query):
            observed = Observed(self.regression.basis, queries=located)
            density = self.score_proj.density(channels, alpha, self.temperature, observed)
            by_head = to_single(coefficients).unflatten(-1, (self.num_heads, -1))
            context = self.score_proj.contexts(density, basis, by_head, observed)
            if function.constant is not None:
                constant = to_single(function.constant).unflatten(-1, (self.num_heads, -1))
                context = context + constant.unsqueeze(1)
            return context, density

    def _project(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        positions: Tensor | None,
        key_padding_mask: Tensor | None,
        attn_mask: Tensor | None,
        query_positions: Tensor | None,
        are_same: bool,
    ) -> _Projected:
        """Check sequences and project them, with zeros in the padding.

        Takes the arguments of `forward`, and whether the query is the value or the key, `are_same`:
        queries then have the positions of the values.
        """
        given = query, key, value, positions, key_padding_mask, attn_mask
        sequences = self._shapes.sequences(*given, self.batch_first, self._dtype)
        query, key, value, positions, mask = sequences
        self.regression._check_observations(positions, value, None)
        if query_positions is None and are_same and self.score_proj.reads_positions:
            located: Tensor | None = positions
            self._require_inside("positions", positions, mask.observed)
        else:
            located = self._locate_queries(query_positions, *query.shape[:2])
        if self.regression.validate_args:
            is_discrete = self.combine or isinstance(self.score_proj, MomentScore)
            sequences.check_values(self.combine or self.score_proj.reads_keys, is_discrete)
        # Keys that become a function are fitted together with the values, by one factorization.
        values = self.v_proj(value).unflatten(-1, (self.num_heads, -1))
        key_channels = self.score_proj.beside(key)
        if key_channels is not None:
            values = torch.cat([values, key_channels], -1)
        channels = self.score_proj(query, key)
        return _Projected(
            to_single(values),
            channels,
            channels if self.discrete_proj is None else self.discrete_proj(query, key),
            self._checked_alpha(*query.shape[:2]),
            positions,
            located,
            mask,
        )

    @property
    def _dtype(self) -> torch.dtype | None:
        """The dtype of the parameters: a replaced linear layer may have no weight."""
        return getattr(getattr(self.out_proj, "weight", None), "dtype", None)

    def _locate_queries(
        self, query_positions: Tensor | None, batch: int, queries: int
    ) -> Tensor | None:
        """Return positions of the queries (B or 1, Lq, *event), None if the score reads none.

        Raises ValueError where `forward` does.

        Args:
            query_positions: As for `forward`.
            batch: B, the number of examples.
            queries: Lq, the number of queries of an example.
        """
        name, kind = "query_positions", type(self.score_proj).__name__
        if not self.score_proj.reads_positions:
            if query_positions is not None:
                rule = f"{name} must be None for {kind}, whose densities do not depend on them"
                raise ValueError(f"{rule}, got {type(query_positions).__name__}")
            return None
        if query_positions is None:
            rule = f"{name} must be given for {kind} where the query is neither value nor key"
            raise ValueError(f"{rule}, got None")
        located = self._shapes.checked_positions(name, query_positions, batch, queries)
        self._require_inside(name, located, None)
        return located

    def _require_inside(self, name: str, positions: Tensor, mask: Tensor | None) -> None:
        """Raise ValueError unless positions are in the domain, if values are validated."""
        if self.regression.validate_args:
            self._shapes.require_inside(name, positions, mask)

    def _checked_alpha(self, batch: int, queries: int) -> Tensor | float:
        """Return alpha, or raise ValueError if it is a tensor that does not broadcast.

        The densities are (batch, heads, queries), the arguments B and Lq.
        """
        alpha: Tensor | float = self.alpha() if isinstance(self.alpha, nn.Module) else self.alpha
        shape = (batch, self.num_heads, queries)
        if isinstance(alpha, Tensor) and not broadcasts_to(alpha.shape, shape):
            rule = f"alpha must broadcast to (batch, num_heads, Lq) = {shape}"
            raise ValueError(f"{rule}, got shape {tuple(alpha.shape)}")
        return alpha

    def _attend(self, projected: _Projected) -> tuple[Tensor, SparseDistribution]:
        """Return contexts (B, Lq, heads, head_dim) and densities (B, heads, Lq)."""
        values, positions, mask = projected.values, projected.positions, projected.mask
        regression, size = self.regression, self.head_dim
        # Contexts are linear in V = c + C' psi: E_p[V(t)] = c + C' E_p[psi(t)], Martins et al.
        # (2020), eq. 15. The regression checks positions and values, and comes first.
        if mask.visible is None:
            function = regression.fit(positions, values.flatten(2), mask.observed)
            coefficients = function.coefficients.unflatten(-1, values.shape[2:])
            constant = function.constant
            if constant is not None:
                constant = constant.unflatten(-1, values.shape[2:]).unsqueeze(1)
        else:
            # Each query has a function: coefficients (B, Lq, N, heads, E).
            coefficients, constant = fit_per_query(regression, positions, values, mask.visible)
        observed = Observed(regression.basis, positions, projected.queries, mask)
        # The channels behind the values are functions of the keys, which the density reads.
        if values.shape[-1] > size:
            means = mask.mean(values[..., size:])
            observed = observed._replace(functions=coefficients[..., size:], means=means)
        density = self.score_proj.density(
            projected.channels, projected.alpha, self.temperature, observed
        )
        coefficients = coefficients[..., :size]
        if mask.visible is None:
            basis = regression.basis
            context = self.score_proj.contexts(density, basis, coefficients, observed)
        else:
            # Each query has its own coefficients, which `contexts` does not take.
            features = density.expect(regression.basis).to(coefficients.dtype)
            context = torch.einsum("bhqn,bqnhe->bqhe", features, coefficients)
        if constant is not None:
            context = context + constant[..., :size]
        if self.combine:
            options = projected.added, projected.alpha, self.temperature
            by_head = values[..., :size].transpose(1, 2)
            means = self._discrete_score().means(*options, mask, by_head)
            context = context + means.transpose(1, 2)
        return context, density

    @torch.no_grad()
    def _warn_of_overshoot(self, density: SparseDistribution, projected: _Projected) -> None:
        """Warn, at the first call, if absolute weights in many contexts sum to more than 5.

        Args:
            density: Densities (B, heads, Lq).
            projected: The sequences of the call.
        """
        self._has_attended = True
        values, positions, mask = projected.values, projected.positions, projected.mask
        if not density.batch_shape.numel():
            return
        # A sample is enough for a warning: all weights are B * heads * Lq * L numbers.
        step = 1 + density.batch_shape[-1] // _QUERIES
        examples, queries = slice(_EXAMPLES), slice(None, None, step)
        observed = None if mask.observed is None else mask.observed[examples]
        visible = None if mask.visible is None else mask.visible[examples, :, queries]
        sample = projected._replace(
            values=values[examples],
            positions=positions if len(positions) == 1 else positions[examples],
            mask=AttentionMask(observed, visible),
        )
        total = self._fit_weights(density.detach()[examples, :, queries], sample).abs().sum(-1)
        fraction = (total > _MOST_WEIGHT).double().mean()
        if fraction > _LEAST_FRACTION:
            regression = self.regression
            warnings.warn(
                f"in {fraction:.0%} of the contexts the absolute weights of the observations sum "
                f"to more than {_MOST_WEIGHT}, at most {total.max():.3g}: value functions "
                "overshoot where positions have gaps, or beyond the last one. With "
                f"{regression.extra_repr()} and {regression.basis}, take a larger factor, or fewer "
                "or wider functions; `absolute_weight` returns the sums "
                "(shown once)",
                stacklevel=6,  # the line that calls the layer, below frames of torch
            )


def _rebuild_cache(module: nn.Module, _: object) -> None:
    """Rebuild the cache of a layer after its state was loaded, as a hook of torch."""
    # A function rather than a bound method, since copies of the layer share the hook.
    if isinstance(module, ContinuousAttention):
        module.rebuild_cache()


def _add_batch(x: _Given, dim: int, axis: int = 0) -> _Given:
    """Insert the dimension of a batch of one at an axis if x is a tensor of `dim` dimensions."""
    return x.unsqueeze(axis) if isinstance(x, Tensor) and x.dim() == dim else x


def _check_sizes(
    embed_dim: int, num_heads: int, head_dim: int | None, kdim: int, vdim: int
) -> None:
    """Raise ValueError unless sizes are positive, and channels divide among the heads.

    The sizes are as for `ContinuousAttention`. With a `head_dim` channels need not divide.
    """
    if head_dim is not None:
        for name, size in {"embed_dim": embed_dim, "num_heads": num_heads}.items():
            require_integer(name, size, 1)
        require_integer("head_dim", head_dim, 1)
    elif not (is_count(num_heads) and is_count(embed_dim)) or embed_dim % num_heads:
        rule = "embed_dim must be a positive multiple of num_heads"
        raise ValueError(f"{rule}, got {embed_dim} and {num_heads}")
    require_integer("kdim", kdim, 1)
    require_integer("vdim", vdim, 1)


def _make_score(score: object) -> AttentionScore:
    """Return a score from its short form, or one that no layer has yet; see `ContinuousAttention`.

    Raises:
        ValueError: A score of another layer, or anything else.
    """
    if isinstance(score, Sequence) and not isinstance(score, str):
        pairs = [x for x in score if isinstance(x, Sequence) and len(x) == 2]
        if not pairs or len(pairs) < len(score):
            raise ValueError(f"score must be pairs of a score and its heads, got {score!r}")
        return SplitScore([(_make_score(x), heads) for x, heads in pairs])
    if isinstance(score, AttentionScore):
        if score.box:
            raise ValueError(f"score must be a new one for each layer, got {score!r}")
        return score
    if not isinstance(score, str) or score not in _SCORES:
        names = ", ".join(map(repr, _SCORES))
        raise ValueError(f"score must be {names} or an AttentionScore, got {score!r}")
    return _SCORES[score]()


def _check_alpha(alpha: Tensor | nn.Module | float, score: AttentionScore) -> None:
    """Raise ValueError for an alpha that a score does not support."""
    if not isinstance(alpha, (Tensor, nn.Module)):
        if not as_number(alpha) >= 1:
            raise ValueError(f"alpha must be at least 1, got {alpha!r}")
    # Numbers of tensors and of other modules are only known in calls, whose densities check them.
    largest = alpha.high if isinstance(alpha, LearnedAlpha) else alpha
    most = score.most_alpha
    if not isinstance(largest, (Tensor, nn.Module)) and largest > most:
        kind = type(score).__name__
        raise ValueError(f"alpha must be at most {most:g} for {kind}, got {largest}")
