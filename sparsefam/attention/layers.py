"""Continuous attention as a layer: queries become densities, values become functions of time."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..bases import Basis
from ..distributions import SparseDistribution
from ..kernels import Kernel
from ..numerics.collective import Group
from .arguments import Domain, box_of, check_flags, check_group, check_score, event_of
from .context import contexts
from .discrete import DiscreteScore, reset
from .inputs import check_alpha
from .learned_alpha import LearnedAlpha
from .moments import MomentScore
from .multihead import Multihead
from .precision import check_dtype, full_precision, single
from .projections import score_projection
from .regression import RidgeRegression
from .scores import ScoreProjection
from .separate import separate_contexts
from .sight import Sight

__all__ = ["ContinuousAttention"]


class ContinuousAttention(Multihead):
    r"""Multi-head attention to a continuous domain, called like `torch.nn.MultiheadAttention`.

    The values, observed at `positions`, become a function $V$ by ridge regression on a basis; every
    query and head has a density $p$ over the domain, and the context is $\mathbb E_p[V(t)]$.

    With `score="quadratic"` location and scale of the score come from the query $q$,

    $$\mu_h = a + (b - a)\,\mathrm{sigmoid}(w_h^\top q + w_{h0}), \qquad
    \sigma_h = (b - a)\,\bigl[10^{-3} + \mathrm{softplus}(v_h^\top q + v_{h0})\bigr],$$

    in the domain $[a, b]$; the keys are not read. In D dimensions every axis has such a location
    and such a $\sigma$, and the matrix $\Sigma = L L^\top$ of the score has the factor
    $L_{ij} = \sigma_i \ell_{ij}$ with $\ell_{ii} = 1$, and $\ell_{ij}$ for $j < i$ linear in $q$,
    0 at first. Heads start spread evenly over the domain with $\sigma$ a tenth of it, whatever
    `bias` says: started all together in the middle, as the papers have it, they learn much less.

    With `score="moments"` query and keys give discrete attention weights over the positions, and
    the density is the one with their mean and variance, the latter at least $[10^{-3}(b - a)]^2$;
    in D dimensions that is added to the diagonal of the covariance. Discrete scores are the usual
    ones: products of queries and keys over the root of their number of channels. `combine=True`
    adds the discrete context to the continuous one, with any score.

    With `score="kernel"` the densities have any shape: a `KernelExp` or `KernelDeformedExp`
    relative to the uniform density on the domain, whose weights, one for each inducing point, are
    linear in the query. All densities share one set of nodes, found once for a constant kernel, so
    that their expectations are two matrix products and what the edges of supports need. With
    `score="mixture"` each is a `Mixture` of densities of quadratic scores, and their log weights
    come from the query as well. Of both the keys are not read, and both start wide.

    Sequences have the dtype of the parameters, except under autocast. There, and where parameters
    are in half precision, values and contexts are rounded; densities, regression and expectations
    are in float32. `torch.export.export` takes the context of a layer, with the validation of
    `torch.distributions` switched off. Long sequences are read by blocks of
    `layer.regression.chunk_size` positions, which may be changed between calls.

    Args:
        embed_dim: Channels of the queries and of the context.
        num_heads: Number of heads; divides `embed_dim`.
        basis: The functions that the value functions are combinations of.
        alpha: Entropic index, at least 1: 1 softmax, 2 sparsemax. A tensor above 1 may require
            grad, and broadcasts to (B, num_heads, Lq), as does what a module returns, such as
            `LearnedAlpha`. At most 2 with `score="kernel"`.
        score: "quadratic", "moments", "kernel" or "mixture".
        combine: Whether to add the context of discrete weights, with the same alpha.
        temperature: What all scores are divided by, positive; the attribute may be changed between
            calls. $\sigma^2$ of quadratic scores is multiplied by it, of components too; log
            weights and discrete scores are divided.
        inducing_points: Of `score="kernel"`: their number, for a grid on the domain (to the power
            `ndim`), or locations (I,), or (I, D), in it. Default: 64.
        kernel: Of `score="kernel"`: (n, D), (m, D) to (n, m), for instance one of
            `pyro.contrib.gp.kernels`; a module becomes part of the layer. Default: a constant
            Gaussian, as wide as two steps of the grid. Parameters that require grad are learned;
            the nodes are then found anew whenever they change, and graphs cannot be compiled.
        normalization: Of `score="kernel"`: "inside", the default, or "outside", as in
            `KernelDeformedExp`.
        components: Of `score="mixture"`: how many each density has. Default: 8.
        penalty: Ridge penalty of the regression, or "gcv", as in `RidgeRegression`.
        group: As in `RidgeRegression`: every rank has its part of the sequence and its own queries.
        domain: Where densities may be centred, and the unit of their scales: the ends (a, b) for
            every axis, or `ndim` such pairs.
        ndim: Dimension D of the positions, which is that of the basis's locations.
        kdim: Channels of the keys; `embed_dim` if None.
        vdim: Channels of the values; `embed_dim` if None.
        bias: Whether the projections of query, key, value and context have biases.
        batch_first: Whether sequences are (B, L, channels) rather than (L, B, channels).
        device: Device of the parameters; the basis is moved there.
        dtype: Dtype of the parameters; the basis is converted to it.
        validate_args: As in `RidgeRegression`.

    Raises:
        ValueError: If an argument is out of its range, or is given and the score does not read it.

    References:
        Martins et al. (2020), Sparse and Continuous Attention, sections 3 and 4. arXiv:2006.07214.
        Farinhas et al. (2021), Multimodal Continuous Visual Attention Mechanisms.
        arXiv:2104.03046. Moreno et al. (2022), Kernel Deformed Exponential Families for Sparse
        Continuous Attention, section 5. arXiv:2111.01222

    Examples:
        >>> from sparsefam.bases import GaussianRBF
        >>> layer = ContinuousAttention(8, 2, GaussianRBF.grid(16, 0.1), batch_first=True)
        >>> query, sequence = torch.randn(4, 1, 8), torch.randn(4, 50, 8)
        >>> context, density = layer(query, sequence, sequence, positions=torch.rand(4, 50))
        >>> context.shape, density.batch_shape
        (torch.Size([4, 1, 8]), torch.Size([4, 2, 1]))
    """

    alpha: Tensor | nn.Module | float
    score_proj: ScoreProjection | MomentScore
    discrete_proj: DiscreteScore | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        basis: Basis,
        alpha: Tensor | nn.Module | float = 2.0,
        score: str = "quadratic",
        *,
        combine: bool = False,
        temperature: float = 1.0,
        inducing_points: Tensor | int | None = None,
        kernel: Kernel | None = None,
        normalization: Literal["inside", "outside"] | None = None,
        components: int | None = None,
        penalty: float | Literal["gcv"] = 1e-2,
        group: "Group | None" = None,
        domain: Domain = (0.0, 1.0),
        ndim: int = 1,
        kdim: int | None = None,
        vdim: int | None = None,
        bias: bool = True,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__(embed_dim, num_heads, kdim, vdim, batch_first)
        self._set_score(score, alpha, combine, temperature, group, domain, ndim)
        ridge = RidgeRegression(basis, penalty, group=group, validate_args=validate_args)
        self._add(ridge, bias, device, dtype, inducing_points, kernel, normalization, components)

    def _set_score(
        self,
        score: str,
        alpha: Tensor | nn.Module | float,
        combine: bool,
        temperature: float,
        group: object,
        domain: Domain,
        ndim: int,
    ) -> None:
        check_score(score, alpha)
        check_group(score, combine, group)
        self.score, self.combine, self.temperature = score, combine, temperature
        self.domain, self.ndim = domain, ndim
        if isinstance(alpha, Tensor) and not isinstance(alpha, nn.Parameter):
            self.register_buffer("alpha", alpha)
        else:
            self.alpha = alpha

    def _add(
        self,
        regression: RidgeRegression,
        bias: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        *own: Any,
    ) -> None:
        check_flags(bias=bias, combine=self.combine)
        check_dtype(dtype)
        self._event = event_of(self.ndim, regression.basis)
        box = box_of("domain", self.domain, self.ndim)
        shape = (self.embed_dim, self.kdim, self.num_heads, box, bias)
        self.score_proj = score_projection(self.score, *shape, own, device, dtype)
        self.discrete_proj = None
        if self.combine and self.score != "moments":
            sizes = (self.embed_dim, self.kdim, self.num_heads)
            self.discrete_proj = DiscreteScore(*sizes, bias, device, dtype)
        self.v_proj = nn.Linear(self.vdim, self.embed_dim, bias, device, dtype)
        self.out_proj = nn.Linear(self.embed_dim, self.embed_dim, bias, device, dtype)
        self.regression = regression.to(device=device, dtype=dtype)
        self.prepare()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the weights anew, and spreads the heads over the domain."""
        self.score_proj.spread()
        if self.discrete_proj is not None:
            self.discrete_proj.spread()
        for projection in (self.v_proj, self.out_proj):
            reset(projection)
        if isinstance(self.alpha, LearnedAlpha):
            self.alpha.reset_parameters()

    def prepare(self) -> None:
        """Finds what expectations need, once for all calls with the same basis and kernel."""
        self.score_proj.prepare(self.regression.basis)

    def extra_repr(self) -> str:
        alpha = "" if isinstance(self.alpha, nn.Module) else f"alpha={self.alpha}, "
        return (
            f"{self.embed_dim}, {self.num_heads}, {alpha}score={self.score!r}, "
            f"combine={self.combine}, temperature={self.temperature}, domain={self.domain}, "
            f"ndim={self.ndim}"
        )

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        positions: Tensor,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
    ) -> tuple[Tensor, SparseDistribution]:
        """Attends to the value function of each example.

        Args:
            query: Shape (Lq, B, embed_dim), or (B, Lq, embed_dim) if `batch_first`.
            key: Shape (L, B, kdim), or (B, L, kdim).
            value: Shape (L, B, vdim), or (B, L, vdim).
            positions: Where the values were observed, in any order: shape (B, L) whatever
                `batch_first`, or (L,) if shared; with `ndim` D above 1 (B, L, D) or (L, D).
            key_padding_mask: Shape (B, L), True where a position is padding; what the key, value
                and position are there is never read.
            attn_mask: Shape (Lq, L) or (B * num_heads, Lq, L): True, or -inf, where a query may not
                read. Every query then has a value function of its own, fitted to what it may read,
                in O(L N (N + E)) each. Other numbers are added to discrete scores.

        Returns:
            The context, shaped like the query, and in place of weights the density, of batch shape
            (B, num_heads, Lq).

        Raises:
            ValueError: If shapes do not match, if a mask leaves a query nothing to read, or as
                `RidgeRegression.fit` does.
        """
        sharded = self.regression.group is not None
        due = self._expected(self._event, sharded, self.out_proj)
        inputs = due.read((query, key, value), positions, key_padding_mask, attn_mask)
        if self.regression.validate_args:
            inputs.check(self.combine or self.score == "moments", sharded)
        query, key, value, positions, sight = inputs
        alpha = self.alpha() if isinstance(self.alpha, nn.Module) else self.alpha
        check_alpha(alpha, (len(query), self.num_heads, query.shape[1]))
        values, reading = self.v_proj(value), single(self.score_proj(query, key))
        scores = None if self.discrete_proj is None else single(self.discrete_proj(query, key))
        with full_precision(query):
            found, density = self._attend(single(values), reading, scores, alpha, positions, sight)
        context = self.out_proj(found.to(values.dtype).flatten(2))
        return context if self.batch_first else context.transpose(0, 1), density

    def _attend(
        self,
        values: Tensor,
        reading: Tensor,
        scores: Tensor | None,
        alpha: Tensor | float,
        positions: Tensor,
        sight: Sight,
    ) -> tuple[Tensor, SparseDistribution]:
        """Contexts by head (B, Lq, heads, head_dim), and the densities (B, heads, Lq).

        Args:
            values: Shape (B, L, embed_dim).
            reading: What the score has read off queries and keys.
            scores: Of discrete weights, unless they are what the score has read.
            alpha: Entropic index.
            positions: Where the values were observed.
            sight: Which of them queries may read.
        """
        self.prepare()
        given = (alpha, self.temperature)
        density, weights = self.score_proj.read(reading, *given, positions, sight)
        by_head = self._split(values)
        if sight.seen is None:
            function = self.regression.fit(positions, values, sight.taken)
            context = contexts(density, function.basis, self._split(function.coefficients))
        else:
            context = separate_contexts(density, self.regression, positions, by_head, sight)
        if self.discrete_proj is not None and scores is not None:
            weights = self.discrete_proj.weights(scores, *given, sight)
        if self.combine and weights is not None:
            context = context + torch.einsum("bhql,blhe->bqhe", weights, by_head)
        return context, density
