"""Heads that look around the position of their query, and heads of several scores in one layer."""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, cast

import torch
from torch import Tensor, nn

from .._choice import Mode, Shifts
from .._numerics.validation import as_number, is_count
from ..bases import Basis
from ..distributions import (
    BetaGaussian,
    MultivariateBetaGaussian,
    MultivariateNormal,
    Normal,
    SparseDistribution,
)
from ._masks import to_single
from .scores import (
    AttentionScore,
    Dimensions,
    Observed,
    QuadraticScore,
    by_head,
    density_of_moments,
    ends,
    initial_centers,
)

__all__ = ["LocalScore", "SplitScore"]

# The bound of offsets and standard deviations, in units of the reach, and the largest reach: with
# both, a density is centered at most one length of the domain from its query.
_MOST, _FARTHEST = 2.0, 0.5
# The least standard deviation of a density, as a fraction of the domain.
_LEAST = 1e-3


class LocalScore(AttentionScore):
    r"""Densities around the position of the query: each head looks at an offset from it.

    With the position $t_q$ of a query in the domain $[a, b]$, and the reach r, the density of head
    h has mean and standard deviation

    $$\mu_h = t_q + 2 r (b - a) \tanh w_h, \qquad
    \sigma_h = (b - a)\,[10^{-3} + (2 r - 10^{-3})\,\mathrm{sigmoid}(v_h)].$$

    Heads are then taps of a convolution in continuous time, which see a shape wherever it occurs.
    Offsets start evenly between $\pm r (b - a)$, and $\sigma_h$ as half the distance of two
    neighbors. In D dimensions every axis has its own offset and $\sigma$, and the covariance
    $L L^\top$ has the factor $L_{ij} = \sigma_i \ell_{ij}$ with $\ell_{ii} = 1$ and, for $j < i$,
    $\ell_{ij}$ initially 0.

    Densities depend on the query by its position only, which is cheap: a shift is a factor of the
    waves of V, whatever the number of queries. On a regular grid, with offsets of whole steps and
    narrow functions, such a layer is `torch.nn.Conv1d`. Both look to either side, and V is fitted
    to later values too: for causal attention pass `attn_mask`.

    Args:
        reach: r, the fraction of the domain over which offsets are spread when training starts.
            Offsets and standard deviations stay below twice the reach, at any temperature.

    Raises:
        ValueError: `reach` not between 0.001 and 0.5.

    References:
        Cordonnier et al. (2020), On the Relationship between Self-Attention and Convolutional
        Layers. arXiv:1911.03584. Atzmon et al. (2018), Point Convolutional Neural Networks by
        Extension Operators. arXiv:1803.10091
    """

    reads_positions = True
    margin: float

    def __init__(self, reach: float = 0.06) -> None:
        super().__init__()
        if not _LEAST <= as_number(reach) <= _FARTHEST:
            raise ValueError(f"reach must be between {_LEAST} and {_FARTHEST}, got {reach!r}")
        self.reach: float = float(reach)
        self.margin = _MOST * self.reach

    def extra_repr(self) -> str:
        return f"reach={self.reach}"

    def prepare(self, dimensions: Dimensions) -> None:
        """Make the parameters."""
        self.heads, ndim = dimensions.num_heads, len(dimensions.box)
        # Channels of a head: offsets, standard deviations and the lower triangle.
        self._sizes = [ndim, ndim, ndim * (ndim - 1) // 2]
        count = self.heads * sum(self._sizes)
        self.bias = nn.Parameter(torch.empty(count, **dimensions.factory))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Spread offsets over the reach, twice as far apart as densities are wide."""
        ndim = len(self.box)
        channels = self.bias.unflatten(0, (self.heads, -1))
        offsets, deviations, triangle = channels.split(self._sizes, -1)
        # Offsets between -reach and reach, by the inverse of the tanh in `density`.
        offsets.copy_(torch.atanh((2 * initial_centers(self.heads, ndim) - 1) / _MOST))
        # Neighbors are about 2 reach heads^(-1/D) apart. Half of that, but above the least, where
        # the logit would be infinite.
        width = max(self.reach * self.heads ** (-1 / ndim), 1.1 * _LEAST)
        # The sigmoid of `density` is inverted likewise, by the logit.
        fraction = (width - _LEAST) / (self.margin - _LEAST)
        deviations.fill_(math.log(fraction / (1 - fraction)))
        triangle.zero_()

    def forward(self, query: Tensor, key: Tensor | None = None) -> Tensor:
        """Return channels (B, 1, channels), without the rounding of autocast."""
        # A length of 1 in place of Lq: channels do not depend on the query.
        return to_single(self.bias).expand(query.shape[0], 1, -1)

    def density(
        self, projected: Tensor, alpha: Tensor | float, temperature: float, observed: Observed
    ) -> SparseDistribution:
        """Return densities (B, heads, Lq) around the positions of the queries.

        The projected channels (B, 1, channels) are the same for all queries.
        """
        channels = by_head(projected, (self.heads, sum(self._sizes)))
        offsets, deviations, triangle = channels.split(self._sizes, -1)
        low, high = ends(self.box, offsets)
        ndim, most = len(self.box), self.margin
        positions = self._inside(observed).to(offsets.dtype).unsqueeze(1)
        mean = positions + (high - low) * most * torch.tanh(offsets)
        # Temperature T multiplies sigma^2 of a quadratic score. In the family of alpha the radius R
        # has R^(2 + D (alpha - 1)) proportional to sigma^2, so T^power multiplies all widths.
        power = 1 / (2 + ndim * (alpha - 1))
        # With an axis for dimensions if alpha is a tensor.
        stretch = temperature ** (power if isinstance(power, float) else power[..., None])
        deviations = _LEAST + (most - _LEAST) * torch.sigmoid(deviations)
        deviations = (high - low) * (deviations * stretch).clamp(max=most)
        if ndim == 1:
            return density_of_moments(mean, deviations.square().unsqueeze(-1), alpha)
        # L = diag(sigma) times a lower triangle with ones on its diagonal.
        rows, columns = torch.tril_indices(ndim, ndim, -1, device=mean.device)
        unit = torch.diag_embed(torch.ones_like(deviations))
        unit[..., rows, columns] = triangle
        factor = deviations.unsqueeze(-1) * unit
        return density_of_moments(mean, factor @ factor.mT, alpha)

    def _mode(self, observed: Observed) -> Mode:
        """Add the shifts between queries, by which the densities of a head differ, in 1-D.

        Contexts may then be computed from the density of one query.
        """
        mode = super()._mode(observed)
        if len(self.box) > 1:
            return mode
        # Steps are relative to the first query of the first example.
        positions = self._inside(observed).squeeze(-1)
        ((low, high),) = self.box
        shifts = Shifts(positions - positions[:1, :1], self.margin * (high - low))
        return mode._replace(shifts=shifts)

    def _inside(self, observed: Observed) -> Tensor:
        """Return positions of the queries (B or 1, Lq, D), in the domain."""
        positions = cast(Tensor, observed.queries)
        positions = positions.reshape(*positions.shape[:2], len(self.box))
        low, high = ends(self.box, positions)
        return torch.maximum(torch.minimum(positions, high), low)


class SplitScore(AttentionScore):
    """Heads of several quadratic scores in one layer, such as local ones and heads at locations.

    `ContinuousAttention` makes it of a list: `score=[("local", 4), ("quadratic", 4)]`.

    Args:
        scores: Pairs of a `LocalScore`, or a `QuadraticScore` without components, and its number of
            heads, in the order of the heads.

    Raises:
        ValueError: `scores` as above; by the layer: numbers that do not sum to `num_heads`.
    """

    def __init__(self, scores: Sequence[tuple[AttentionScore, int]]) -> None:
        super().__init__()
        pairs = [x for x in scores if isinstance(x, Sequence) and len(x) == 2]
        valid = [is_count(count) and _is_quadratic(score) for score, count in pairs]
        if not valid or len(pairs) < len(scores) or not all(valid):
            rule = "pairs of a LocalScore, or a QuadraticScore without components, and its heads"
            raise ValueError(f"scores must be {rule}, got {scores!r}")
        self.scores = nn.ModuleList([score for score, _ in pairs])
        self.counts = [count for _, count in pairs]
        self.reads_positions = any(x.reads_positions for x in self._scores())

    def extra_repr(self) -> str:
        return f"counts={self.counts}"

    def prepare(self, dimensions: Dimensions) -> None:
        """Make the parameters."""
        if sum(self.counts) != dimensions.num_heads:
            rule = f"score must have num_heads = {dimensions.num_heads} heads in all"
            raise ValueError(f"{rule}, got {' + '.join(map(str, self.counts))}")
        for score, count in zip(self._scores(), self.counts, strict=True):
            score.box = self.box
            score.prepare(dimensions._replace(num_heads=count))

    def reset_parameters(self) -> None:
        """Set the parameters to those with which training starts."""
        for score in self._scores():
            score.reset_parameters()

    def forward(self, query: Tensor, key: Tensor) -> list[Tensor]:
        """Return the projections of each score."""
        return [score(query, key) for score in self._scores()]

    def density(
        self, projected: list[Tensor], alpha: Tensor | float, temperature: float, observed: Observed
    ) -> SparseDistribution:
        """Return densities (B, heads, Lq) of the projections of each score, in their order."""
        # All are elliptical with one alpha, so that their parameters can be joined.
        densities: list[Any] = [
            score.density(channels, _of_heads(alpha, heads), temperature, observed)
            for score, channels, heads in zip(self._scores(), projected, self._heads(), strict=True)
        ]
        loc = torch.cat([p.loc for p in densities], 1)
        is_normal = not isinstance(alpha, Tensor) and alpha == 1
        if len(self.box) > 1:
            factor = torch.cat([p.scale_tril for p in densities], 1)
            if is_normal:
                return MultivariateNormal(loc, scale_tril=factor)
            return MultivariateBetaGaussian(loc, factor, alpha)
        scale = torch.cat([p.scale for p in densities], 1)
        return Normal(loc, scale) if is_normal else BetaGaussian(loc, scale, alpha)

    def contexts(
        self,
        density: SparseDistribution,
        basis: Basis,
        coefficients: Tensor,
        observed: Observed,
    ) -> Tensor:
        """Return contexts (B, Lq, heads, E), each score's as it computes them."""
        pairs = zip(self._scores(), self._heads(), strict=True)
        return torch.cat(
            [
                score.contexts(density[:, heads], basis, coefficients[:, :, heads], observed)
                for score, heads in pairs
            ],
            2,
        )

    def _scores(self) -> list[AttentionScore]:
        """Return the scores, with their type, which the module list forgets."""
        return [cast(AttentionScore, score) for score in self.scores]

    def _heads(self) -> list[slice]:
        """Return the slice of heads of each score."""
        ends = list(accumulate(self.counts))
        return [slice(end - count, end) for end, count in zip(ends, self.counts, strict=True)]


def _is_quadratic(score: object) -> bool:
    """Return whether a `SplitScore` may take a score: a quadratic one that no layer has yet."""
    if isinstance(score, QuadraticScore):
        return score.components is None and not score.box
    return isinstance(score, LocalScore) and not score.box


def _of_heads(alpha: Tensor | float, heads: slice) -> Tensor | float:
    """Return the alpha of a slice of heads from a number or a tensor (B, heads, Lq).

    The tensor may have 1 in place of any size, or lack the first ones.
    """
    if not isinstance(alpha, Tensor) or alpha.dim() < 2 or alpha.shape[-2] == 1:
        return alpha
    return alpha[..., heads, :]
