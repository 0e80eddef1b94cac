"""Fenchel-Young losses: how far the prediction map of a score is from what was seen."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from ..distributions.base_measure import Base
from ..numerics.validation import require
from ..prediction_map import rpm
from ..scores import Finite, Score
from .conjugates import conjugate
from .targets import loss_of

__all__ = ["FenchelYoungLoss", "fenchel_young"]

Reduction = Literal["mean", "sum", "none"]


def fenchel_young(
    score: Score,
    target: Tensor | Distribution,
    alpha: Tensor | float = 2.0,
    *,
    base: Base = None,
    weight: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Fenchel-Young loss of a score, for samples or a density that its prediction map is to match.

    $$L_\alpha(f; q) = \Omega^*_\alpha(f) + \Omega_\alpha(q) - E_q[f],\qquad
      \nabla_\theta L_\alpha = E_p[\nabla_\theta f] - E_q[\nabla_\theta f]$$

    It is convex in the score, never negative for a density q, and 0 only where q is the prediction
    map p. For a sample t the term $\Omega_\alpha(q)$, infinite in a continuous domain, is left out:
    $\Omega^*_\alpha(f) - f(t)$. At alpha = 1 that is $-\log p(t)$; above, it stays finite and has
    gradients where p(t) is 0 and a likelihood has none.

    Args:
        score: The score f (*batch).
        target: Samples (*S, *batch, *event), of a `Finite` score categories as integers; or a
            density whose batch broadcasts with that of the score.
        alpha: Entropic index, at least 1 and finite.
        base: Of a `KernelExpansion`, as for `rpm`; entropies are relative to it.
        weight: Nonnegative weights of the samples, broadcast against the losses.
        reduction: "mean" (weighted), "sum" or "none".

    Returns:
        A number, or for "none" the losses (*S, *batch) of samples, (*batch) of densities.

    Raises:
        ValueError: What `rpm` refuses; `alpha` infinite; a target of another shape or kind, not
            finite, or outside of the base's support; weights that are negative, not finite or all
            zero; another reduction.

    References:
        Blondel, Martins and Niculae (2020), Learning with Fenchel-Young losses. JMLR 21.
        Martins et al. (2020), Sparse and Continuous Attention Mechanisms, Def. 1.

    Examples:
        >>> import sparsefam as sf
        >>> score = sf.scores.Quadratic(torch.tensor(0.0), sigma=1.0)
        >>> fenchel_young(score, torch.tensor([0.5, 3.0]), alpha=2.0)  # 3.0 is off the support
        tensor(2.4194)
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
    if not isinstance(score, Score):
        raise ValueError(f"score must be one of sparsefam.scores, got {score!r}")
    if isinstance(score, Finite):
        # The loss does not change, and keeps its digits.
        score = Finite(score.scores - score.scores.detach().amax(-1, keepdim=True))
    p = rpm(score, alpha, base)
    require(torch.isfinite(p.alpha), "alpha", "finite", alpha)
    losses = conjugate(score, p) + loss_of(target, score, p)
    return _reduced(losses, weight, reduction)


def _reduced(losses: Tensor, weight: Tensor | None, reduction: Reduction) -> Tensor:
    if weight is None:
        weight = losses.new_ones(())
    if not isinstance(weight, Tensor):
        raise ValueError(f"weight must be a tensor, got {weight!r}")
    require(torch.isfinite(weight) & (weight >= 0), "weight", "finite, at least 0", weight)
    require((weight > 0).any(), "weight", "positive somewhere", weight)
    try:
        losses, weight = torch.broadcast_tensors(losses, weight)
    except RuntimeError:
        shape = tuple(losses.shape)
        got = f"got shape {tuple(weight.shape)}"
        raise ValueError(f"weight must broadcast with losses {shape}, {got}") from None
    # A weight of 0 has nothing to do with a loss that is infinite.
    weighted = torch.where(weight > 0, weight * losses, 0.0)
    if reduction == "none":
        return weighted
    return weighted.sum() / (weight.sum() if reduction == "mean" else 1)


class FenchelYoungLoss(nn.Module):
    """`fenchel_young` as a module, called with a score and a target.

    Args:
        alpha: Entropic index.
        base: Base density of kernel expansions.
        reduction: "mean", "sum" or "none".
    """

    def __init__(
        self, alpha: float = 2.0, base: Base = None, reduction: Reduction = "mean"
    ) -> None:
        super().__init__()
        self.alpha, self.base, self.reduction = alpha, base, reduction

    def forward(
        self, score: Score, target: Tensor | Distribution, weight: Tensor | None = None
    ) -> Tensor:
        """The loss; see `fenchel_young`."""
        return fenchel_young(
            score, target, self.alpha, base=self.base, weight=weight, reduction=self.reduction
        )
