"""Last layers whose output is a density, with what is possible as its support."""

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from ..distributions import SparseDistribution
from ..prediction_map import rpm
from ..scores import Finite, Quadratic, Score
from .fenchel_young import fenchel_young

__all__ = ["ClassificationHead", "RegressionHead"]

# So that a new head's sigma is that of standardized targets, and no weight makes it zero.
_BIAS, _LEAST = 0.5413, 1e-6


class _Head(nn.Module):
    def __init__(self, in_features: int, out_features: int, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha
        self.linear = nn.Linear(in_features, out_features)

    def score(self, features: Tensor) -> Score:
        raise NotImplementedError

    def forward(self, features: Tensor) -> SparseDistribution:
        """The densities (*batch) of features (*batch, in_features)."""
        return rpm(self.score(features), self.alpha)

    def loss(self, features: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        """Mean Fenchel-Young loss of targets (*batch); see `fenchel_young`.

        Raises:
            ValueError: Targets of another batch, which would broadcast to a table.
        """
        batch = features.shape[:-1]
        if target.shape[target.dim() - len(batch) :] != batch:
            got = tuple(target.shape)
            raise ValueError(f"target must end in the batch {tuple(batch)}, got shape {got}")
        return fenchel_young(self.score(features), target, self.alpha, weight=weight)


class RegressionHead(_Head):
    r"""A location and a width for each row: at alpha = 2 a truncated parabola.

    The density's support is a statement about what can happen at all, and its mean and variance
    match those of the targets, which the loss makes them do at every alpha.

    Args:
        in_features: Length of a row of features.
        alpha: Entropic index, at least 1.

    References:
        Blondel, Martins and Niculae (2020), Learning with Fenchel-Young losses. JMLR 21.

    Examples:
        >>> head = RegressionHead(3)
        >>> density = head(torch.zeros(5, 3))
        >>> density.support.intervals.shape  # lower and upper ends
        torch.Size([5, 1, 2])
    """

    def __init__(self, in_features: int, alpha: float = 2.0) -> None:
        super().__init__(in_features, 2, alpha)
        with torch.no_grad():
            self.linear.bias.copy_(torch.tensor([0.0, _BIAS]))

    def score(self, features: Tensor) -> Quadratic:
        """The score of each row."""
        loc, width = self.linear(features).unbind(-1)
        return Quadratic(loc, softplus(width) + _LEAST)


class ClassificationHead(_Head):
    """Sparse probabilities of classes: softmax at alpha = 1, sparsemax at 2.

    Args:
        in_features: Length of a row of features.
        num_classes: Number of classes.
        alpha: Entropic index, at least 1.

    References:
        Martins and Astudillo (2016), From Softmax to Sparsemax.
    """

    def __init__(self, in_features: int, num_classes: int, alpha: float = 2.0) -> None:
        super().__init__(in_features, num_classes, alpha)

    def score(self, features: Tensor) -> Finite:
        """The score of each row."""
        return Finite(self.linear(features))
