"""What a mixture is made of: several densities asked at once, whether of one class or of many."""

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Size, Tensor
from torch.distributions import Distribution
from torch.types import _size

from ..numerics.validation import copied
from .adoption import adopted
from .base import SparseDistribution
from .foreign import is_discrete, kind_of

__all__ = ["Components"]


class Components:
    """K densities of one event shape; what they answer has an axis of K after their batch.

    Args:
        given: One distribution whose last batch dimension counts them, (*batch, K), or a sequence
            of distributions whose batches broadcast.

    Raises:
        ValueError: Neither of these, no component, one that is discrete, event shapes that differ,
            batches that do not broadcast.
    """

    def __init__(self, given: Distribution | Sequence[Distribution]) -> None:
        self.batched = isinstance(given, Distribution)
        members = _members(given)
        # Values are checked once, by the mixture.
        self.parts = [_unchecked(adopted(p)) for p in members]
        batch = _common_batch(members)
        if self.batched and not batch:
            raise ValueError("components must have batch shape (*batch, K >= 1), got ()")
        self.count = batch[-1] if self.batched else len(members)
        self.batch_shape: Size = batch[:-1] if self.batched else batch
        self.event_shape: Size = members[0].event_shape
        # Some parts answer in a wider type.
        self.dtype = _common_dtype(members)
        if self.count < 1:
            raise ValueError("components must be at least one, got none")

    def ask(self, question: Callable[[Any], Tensor], rank: int = 0) -> Tensor:
        """Answers (*batch, K, *shape) of each to a question, where shape has `rank` axes."""
        answers = [question(p).to(self.dtype) for p in self.parts]
        return answers[0] if self.batched else _stacked(answers, -1 - rank)

    def at(self, question: Callable[..., Tensor], value: Tensor, *others: Tensor) -> Tensor:
        """Answers (*sample, *batch, K) of each about the same locations (*sample, *batch, *event).

        Others are asked about too, (*sample, *batch) each.
        """
        dtype = torch.promote_types(self.dtype, value.dtype)
        if not self.batched:
            return _stacked([question(p, value, *others).to(dtype) for p in self.parts], -1)
        value = value.unsqueeze(-1 - len(self.event_shape))
        return question(self.parts[0], value, *(x.unsqueeze(-1) for x in others)).to(dtype)

    def log_density(self, value: Tensor, logits: Tensor) -> Tensor:
        """Logarithm (*sample, *batch) of their densities' mean with log weights (*batch, K)."""
        found = self.at(lambda p, t: p.log_prob(t), value) + logits.log_softmax(-1)
        # Infinite densities without a weight do not count.
        terms = torch.where(logits > -math.inf, found, -math.inf)
        # torch.logsumexp has NaN derivatives where all vanish or one is infinite.
        large = torch.finfo(terms.dtype).max
        most = terms.detach().amax(-1)
        shift = most.clamp(-large, large)
        total = torch.exp(terms.clamp(max=large) - shift.unsqueeze(-1)).sum(-1)
        finite = most.isfinite()
        return torch.where(finite, torch.where(finite, total, 1.0).log() + shift, most)

    def sample(self, sample_shape: _size, batch: Size) -> Tensor:
        """A draw of each (*sample, *batch, K, *event), for an expanded batch."""
        drawn = [self._expanded(p, batch).sample(sample_shape) for p in self.parts]
        return drawn[0] if self.batched else torch.stack(drawn, -1 - len(self.event_shape))

    def rsample(self, sample_shape: _size, probs: Tensor) -> tuple[Tensor, Tensor]:
        """Draws (*sample, *batch, K', *event) with derivatives, and masses (*batch, K') of each.

        There are more than K where a component is itself made of pieces.

        Args:
            sample_shape: Shape of the samples.
            probs: Masses (*batch, K) of the components.
        """
        rank = len(self.event_shape)
        draws, masses = [], []
        for part, mass in self._with(probs):
            p = self._expanded(part, probs.shape[:-1])
            if p.has_rsample:
                drawn, shares = p.rsample(sample_shape), torch.ones_like(mass)
                drawn, shares = drawn.unsqueeze(-1 - rank), shares.unsqueeze(-1)
            else:
                drawn, shares = _pieces_of(p, sample_shape)
            share = mass.unsqueeze(-1) * shares
            if self.batched:
                drawn = drawn.flatten(-2 - rank, -1 - rank)
                share = share.flatten(-2)
            draws.append(drawn)
            masses.append(share)
        return torch.cat(draws, -1 - rank), torch.cat(masses, -1)

    def rule(self, order: int, probs: Tensor) -> tuple[Tensor, Tensor]:
        """Nodes (Q, *batch, *event) and weights (Q, *batch) of the mixture's expectations."""
        batch = probs.shape[:-1]
        found = []
        for part, mass in self._with(probs):
            rule = self._expanded(part, batch).quadrature(order)
            nodes, weights = (x.to(self.dtype) for x in rule)
            weights = weights * mass
            if self.batched:
                # The components' axis next to the nodes'
                nodes, weights = (
                    x.movedim(len(batch) + 1, 1).flatten(0, 1) for x in (nodes, weights)
                )
            found.append((nodes, weights))
        nodes, weights = (torch.cat(x) for x in zip(*found, strict=True))
        return nodes, weights

    def rows(self, question: Callable[[Any], Tensor], present: Tensor) -> Tensor:
        """Answers (*batch, J, *shape) of all components one after the other, NaN where not present.

        Args:
            question: Asks for (*batch, J, *shape).
            present: Which components count, (*batch, K).
        """
        found = []
        for part, here in self._with(present):
            rows = question(part).to(self.dtype)
            shape = here.shape
            rank = rows.dim() - len(part.batch_shape)
            rows = rows.expand(shape + rows.shape[rows.dim() - rank :])
            rows = torch.where(here.reshape(*shape, *(1,) * rank), rows, torch.nan)
            found.append(rows.flatten(len(shape) - 1, len(shape)) if self.batched else rows)
        return torch.cat(found, present.dim() - 1)

    def _with(self, table: Tensor) -> list[tuple[SparseDistribution, Tensor]]:
        """Each part with its columns of a table (*batch, K)."""
        columns = [table] if self.batched else list(table.unbind(-1))
        return list(zip(self.parts, columns, strict=True))

    def _expanded(self, part: SparseDistribution, batch: Size) -> SparseDistribution:
        return part.expand(Size([*batch, self.count]) if self.batched else batch)


def _members(given: Distribution | Sequence[Distribution]) -> list[Distribution]:
    members = [given] if isinstance(given, Distribution) else list(_iterated(given))
    wrong = [type(p).__name__ for p in members if not isinstance(p, Distribution)]
    if wrong or not members:
        raise ValueError(
            "components must be a distribution with batch shape (*batch, K), or a sequence of K "
            f"distributions, got {given!r}"
        )
    shapes = sorted({tuple(p.event_shape) for p in members})
    if len(shapes) > 1:
        raise ValueError(f"components must have one event shape, got {shapes}")
    for p in members:
        if is_discrete(p):
            raise ValueError(f"components must be continuous, got {type(p).__name__}")
    return members


def _iterated(given: Sequence[Distribution]) -> Sequence[Distribution]:
    return given if isinstance(given, Sequence) else []


def _common_batch(members: list[Distribution]) -> Size:
    batches = [p.batch_shape for p in members]
    try:
        batch: Size = torch.broadcast_shapes(*batches)
    except RuntimeError:
        found = [tuple(batch) for batch in batches]
        raise ValueError(f"components must have batches that broadcast, got {found}") from None
    return batch


def _common_dtype(members: list[Distribution]) -> torch.dtype:
    found = [
        p.alpha.dtype
        if isinstance(p, SparseDistribution)
        else kind_of(p).get("dtype", torch.get_default_dtype())
        for p in members
    ]
    return reduce(torch.promote_types, found)


def _unchecked(p: SparseDistribution) -> SparseDistribution:
    if not p._validate_args:
        return p
    p = copied(p)
    p._validate_args = False
    return p


def _stacked(answers: list[Tensor], dim: int) -> Tensor:
    return torch.stack(torch.broadcast_tensors(*answers), dim)


def _pieces_of(p: SparseDistribution, sample_shape: _size) -> tuple[Tensor, Tensor]:
    draw = getattr(p, "rsample_components", None)
    if draw is None:
        raise NotImplementedError(f"{p} has no differentiable draws")
    drawn, masses = draw(sample_shape)
    return drawn, masses
