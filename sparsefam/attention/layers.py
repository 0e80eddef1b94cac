"""Continuous attention as a layer: queries become densities, values become functions of time."""

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..bases import Basis
from ..distributions import BetaGaussian, Normal, SparseDistribution, TruncatedParabola
from ..prediction_map import rpm
from ..scores import Finite, Quadratic
from .regression import RidgeRegression

__all__ = ["ContinuousAttention"]

# Shares of the domain: sigma when training starts, and the least that sigma, or the standard
# deviation of matched moments, can become.
_FIRST_SIGMA = 0.1
_LEAST_SIGMA = 1e-3


class ContinuousAttention(nn.Module):
    r"""Multi-head attention to a continuous domain, called like `torch.nn.MultiheadAttention`.

    The values, observed at `positions`, become a function $V$ by ridge regression on a basis; every
    query and head has a density $p$ over the domain, and the context is $\mathbb E_p[V(t)]$.

    With `score="quadratic"` location and scale of the score come from the query $q$,

    $$\mu_h = a + (b - a)\,\mathrm{sigmoid}(w_h^\top q + w_{h0}), \qquad
    \sigma_h = (b - a)\,\bigl[10^{-3} + \mathrm{softplus}(v_h^\top q + v_{h0})\bigr],$$

    in the domain $[a, b]$; the keys are not read. Heads start spread evenly over the domain with
    $\sigma$ a tenth of it, whatever `bias` says: started all together in the middle, as the papers
    have it, they learn much less.

    With `score="moments"` query and keys give discrete attention weights over the positions, and
    the density is the one with their mean and variance, the latter at least $[10^{-3}(b - a)]^2$.
    `combine=True` adds the discrete context to the continuous one.

    Args:
        embed_dim: Channels of the queries and of the context.
        num_heads: Number of heads; divides `embed_dim`.
        basis: The functions that the value functions are combinations of.
        alpha: Entropic index, at least 1: 1 softmax, 2 sparsemax. A tensor above 1 may require
            grad, and broadcasts to (B, num_heads, Lq).
        score: "quadratic" or "moments".
        combine: Whether to add the discrete context; needs `score="moments"`.
        penalty: Ridge penalty of the regression.
        domain: Where densities may be centred, and the unit of their scales.
        kdim: Channels of the keys; `embed_dim` if None.
        vdim: Channels of the values; `embed_dim` if None.
        bias: Whether the projections of query, key, value and context have biases.
        batch_first: Whether sequences are (B, L, channels) rather than (L, B, channels).
        device: Device of the parameters; the basis is moved there.
        dtype: Dtype of the parameters; the basis is converted to it.
        validate_args: As in `RidgeRegression`.

    Raises:
        ValueError: If an argument is out of its range.

    References:
        Martins et al. (2020), Sparse and Continuous Attention, sections 3 and 4. arXiv:2006.07214

    Examples:
        >>> from sparsefam.bases import GaussianRBF
        >>> layer = ContinuousAttention(8, 2, GaussianRBF.grid(16, 0.1), batch_first=True)
        >>> query, sequence = torch.randn(4, 1, 8), torch.randn(4, 50, 8)
        >>> context, density = layer(query, sequence, sequence, positions=torch.rand(4, 50))
        >>> context.shape, density.batch_shape
        (torch.Size([4, 1, 8]), torch.Size([4, 2, 1]))
    """

    alpha: Tensor | float

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        basis: Basis,
        alpha: Tensor | float = 2.0,
        score: str = "quadratic",
        *,
        combine: bool = False,
        penalty: float = 1e-2,
        domain: tuple[float, float] = (0.0, 1.0),
        kdim: int | None = None,
        vdim: int | None = None,
        bias: bool = True,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__()
        _check_arguments(embed_dim, num_heads, alpha, score, combine, domain)
        self.embed_dim, self.num_heads, self.batch_first = embed_dim, num_heads, batch_first
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self.score, self.combine, self.domain = score, combine, domain
        self._set_alpha(alpha)
        self._add_projections(bias, device, dtype)
        regression = RidgeRegression(basis, penalty, validate_args=validate_args)
        self.regression = regression.to(device=device, dtype=dtype)
        self.reset_parameters()

    def _set_alpha(self, alpha: Tensor | float) -> None:
        if isinstance(alpha, Tensor) and not isinstance(alpha, nn.Parameter):
            self.register_buffer("alpha", alpha)
        else:
            self.alpha = alpha

    def _add_projections(
        self, bias: bool, device: torch.device | str | None, dtype: torch.dtype | None
    ) -> None:
        linear = partial(nn.Linear, bias=bias, device=device, dtype=dtype)
        if self.score == "quadratic":
            self.score_proj = linear(self.embed_dim, 2 * self.num_heads, bias=True)
        else:
            self.q_proj = linear(self.embed_dim, self.embed_dim)
            self.k_proj = linear(self.kdim, self.embed_dim)
        self.v_proj = linear(self.vdim, self.embed_dim)
        self.out_proj = linear(self.embed_dim, self.embed_dim)

    def reset_parameters(self) -> None:
        """Draws the weights anew, and spreads the heads over the domain."""
        for name, module in self.named_children():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight, gain=0.1 if name == "score_proj" else 1.0)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        if self.score == "quadratic":
            heads = self.num_heads
            share = (torch.arange(heads) + 0.5) / heads
            first = math.log(math.expm1(_FIRST_SIGMA - _LEAST_SIGMA))
            with torch.no_grad():
                self.score_proj.bias[:heads] = share.logit()
                self.score_proj.bias[heads:] = first

    def extra_repr(self) -> str:
        return (
            f"{self.embed_dim}, {self.num_heads}, alpha={self.alpha}, score={self.score!r}, "
            f"combine={self.combine}, domain={self.domain}"
        )

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        positions: Tensor,
        key_padding_mask: Tensor | None = None,
    ) -> tuple[Tensor, SparseDistribution]:
        """Attends to the value function of each example.

        Args:
            query: Shape (Lq, B, embed_dim), or (B, Lq, embed_dim) if `batch_first`.
            key: Shape (L, B, kdim), or (B, L, kdim).
            value: Shape (L, B, vdim), or (B, L, vdim).
            positions: Where the values were observed, in any order: shape (B, L) whatever
                `batch_first`, or (L,) if shared.
            key_padding_mask: Shape (B, L), True where a position is padding; what the key, value
                and position are there is never read.

        Returns:
            The context, shaped like the query, and the density, of batch shape (B, num_heads, Lq).

        Raises:
            ValueError: If shapes do not match, or as `RidgeRegression.fit` does.
        """
        if not self.batch_first:
            query, key, value = (
                x.transpose(0, 1) if x.ndim == 3 else x for x in (query, key, value)
            )
        self._check_shapes(query, key, value, positions, key_padding_mask)
        mask = None
        if key_padding_mask is not None:
            # What is never read must be finite even so: gradients are zero times what it becomes.
            mask = ~key_padding_mask
            key, value = (torch.where(mask.unsqueeze(-1), x, 0) for x in (key, value))
            positions = torch.where(mask, positions, 0)
        values = self.v_proj(value)
        function = self.regression.fit(positions, values, mask)
        density, weights = self._densities(query, key, positions, mask)
        features = density.expect(function.basis)
        context = torch.einsum("bhqn,bnhe->bqhe", features, self._split(function.coefficients))
        if self.combine and weights is not None:
            context = context + torch.einsum("bhql,blhe->bqhe", weights, self._split(values))
        context = self.out_proj(context.flatten(2))
        return context if self.batch_first else context.transpose(0, 1), density

    def _densities(
        self, query: Tensor, key: Tensor, positions: Tensor, mask: Tensor | None
    ) -> tuple[SparseDistribution, Tensor | None]:
        """Densities (B, heads, Lq), and the discrete weights that they match if there are any."""
        if self.score == "quadratic":
            return self._quadratic(query), None
        weights = self._weights(query, key, mask)
        return self._match(weights, positions), weights

    def _quadratic(self, query: Tensor) -> SparseDistribution:
        """Densities whose location and scale are read off the queries (B, Lq, embed_dim)."""
        low, high = self.domain
        loc, sigma = self.score_proj(query).movedim(-1, 1).chunk(2, 1)
        loc = low + (high - low) * torch.sigmoid(loc)
        sigma = (high - low) * (_LEAST_SIGMA + functional.softplus(sigma))
        return rpm(Quadratic(loc, sigma=sigma), self.alpha)

    def _weights(self, query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
        """Discrete attention (B, heads, Lq, L), exactly zero at masked positions."""
        queries, keys = self._split(self.q_proj(query)), self._split(self.k_proj(key))
        scores = torch.einsum("bqhe,blhe->bhql", queries, keys) / math.sqrt(queries.shape[-1])
        if mask is not None:
            scores = torch.where(mask[:, None, None], scores, -math.inf)
        weights: Tensor = rpm(Finite(scores), self.alpha).probs
        return weights

    def _match(self, weights: Tensor, positions: Tensor) -> SparseDistribution:
        """Densities with the mean and variance of the positions under the weights."""
        positions = positions.reshape(-1, 1, 1, positions.shape[-1]).to(weights.dtype)
        mean = (weights * positions).sum(-1)
        variance = (weights * (positions - mean.unsqueeze(-1)).square()).sum(-1)
        low, high = self.domain
        variance = variance.clamp_min((_LEAST_SIGMA * (high - low)) ** 2)
        if not isinstance(self.alpha, Tensor) and self.alpha == 1:
            return Normal(mean, variance.sqrt())
        if not isinstance(self.alpha, Tensor) and self.alpha == 2:
            return TruncatedParabola.from_moments(mean, variance)
        return BetaGaussian.from_moments(mean, variance, self.alpha)

    def _split(self, channels: Tensor) -> Tensor:
        """Channels (..., embed_dim) by head: (..., heads, head_dim)."""
        return channels.reshape(*channels.shape[:-1], self.num_heads, -1)

    def _check_shapes(
        self, query: Tensor, key: Tensor, value: Tensor, positions: Tensor, mask: Tensor | None
    ) -> None:
        """Checks inputs that are batch-first by now."""
        layout = f"with batch_first={self.batch_first}; is the other setting meant?"
        batch, length = len(query), value.shape[1] if value.ndim == 3 else 0
        rules = {
            "query": (query, (batch, query.shape[1] if query.ndim == 3 else 0, self.embed_dim)),
            "key": (key, (batch, length, self.kdim)),
            "value": (value, (batch, length, self.vdim)),
        }
        for name, (tensor, shape) in rules.items():
            if tensor.shape != shape:
                raise ValueError(
                    f"{name} must have (batch, length, channels) {shape}, "
                    f"got {tuple(tensor.shape)} {layout}"
                )
        if positions.shape not in ((batch, length), (1, length), (length,)):
            raise ValueError(
                f"positions must have shape ({batch}, {length}) or ({length},), always batch "
                f"first, got {tuple(positions.shape)} {layout}"
            )
        if mask is not None and (mask.shape != (batch, length) or mask.dtype != torch.bool):
            raise ValueError(
                f"key_padding_mask must be boolean of shape ({batch}, {length}), "
                f"got {mask.dtype} of shape {tuple(mask.shape)} {layout}"
            )


def _check_arguments(
    embed_dim: int,
    num_heads: int,
    alpha: Tensor | float,
    score: str,
    combine: bool,
    domain: tuple[float, float],
) -> None:
    if num_heads < 1 or embed_dim < 1 or embed_dim % num_heads:
        raise ValueError(
            f"embed_dim must be a positive multiple of num_heads, got {embed_dim} and {num_heads}"
        )
    if not isinstance(alpha, Tensor) and not alpha >= 1:
        raise ValueError(f"alpha must be at least 1, got {alpha}")
    if score not in ("quadratic", "moments"):
        raise ValueError(f"score must be 'quadratic' or 'moments', got {score!r}")
    if combine and score != "moments":
        raise ValueError(f"combine must be False unless score='moments', got score={score!r}")
    low, high = domain
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"domain must be two finite numbers that increase, got {domain}")
