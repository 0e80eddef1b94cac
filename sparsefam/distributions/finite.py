"""Sparse probabilities of finitely many categories: softmax, sparsemax and entmax."""

import math
from typing import ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import constraints
from torch.distributions.constraints import Constraint
from torch.types import _size

from ..numerics.deformed import log_beta
from ..numerics.validation import require
from ..scores import Finite
from .base import SparseDistribution

__all__ = ["SparseCategorical"]


class SparseCategorical(SparseDistribution):
    r"""Categorical law whose probabilities may be exactly zero.

    Where `torch.distributions.Categorical` clamps zeros to a rounding error, `log_prob` of a
    category off the support is -inf here, with a zero gradient.

    Args:
        probs: Nonnegative weights (*batch, K), normalised to sum to one.
        alpha: Entropic index of the prediction map that made them (*batch).
        validate_args: As in torch.distributions.

    Raises:
        ValueError: No category, or weights that are negative, not finite or all zero.

    References:
        Martins and Astudillo (2016), From Softmax to Sparsemax. Peters et al. (2019), Sparse
        Sequence-to-Sequence Models.

    Examples:
        >>> SparseCategorical(torch.tensor([0.5, 0.5, 0.0])).log_prob(torch.tensor(2))
        tensor(-inf)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {"probs": constraints.simplex}
    has_rsample = False
    has_enumerate_support = True

    def __init__(
        self, probs: Tensor, alpha: Tensor | float = 2.0, *, validate_args: bool | None = None
    ) -> None:
        if probs.dim() < 1 or probs.shape[-1] < 1:
            raise ValueError(f"probs must have shape (*batch, K >= 1), got {tuple(probs.shape)}")
        self.probs = probs / probs.sum(-1, keepdim=True)
        self.alpha = torch.as_tensor(alpha, dtype=probs.dtype, device=probs.device).expand(
            probs.shape[:-1]
        )
        torch.distributions.Distribution.__init__(
            self, probs.shape[:-1], validate_args=validate_args
        )

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> Constraint:
        """The categories; those of probability zero included."""
        return constraints.integer_interval(0, self.probs.shape[-1] - 1)

    def _log_probs(self) -> Tensor:
        alive = self.probs > 0
        return torch.where(alive, torch.log(torch.where(alive, self.probs, 1.0)), -math.inf)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log probability; -inf with zero gradient off the support.

        Raises:
            ValueError: A value that is no category.
        """
        if self._validate_args:
            self._validate_sample(value)
            last = self.probs.shape[-1] - 1
            require((value >= 0) & (value <= last), "value", f"a category 0 to {last}", value)
        shape = torch.broadcast_shapes(value.shape, self.batch_shape)
        table = self._log_probs().expand(*shape, self.probs.shape[-1])
        return table.gather(-1, value.expand(shape).long().unsqueeze(-1)).squeeze(-1)

    def sample(self, sample_shape: _size = Size()) -> Tensor:
        """Categories (*sample, *batch)."""
        shape = Size(sample_shape) + self.batch_shape
        rows = self.probs.detach().expand(*shape, -1).reshape(-1, self.probs.shape[-1])
        return torch.multinomial(rows, 1).reshape(shape)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All categories (K, *batch), zero probability or not."""
        count = self.probs.shape[-1]
        categories = torch.arange(count, device=self.probs.device)
        categories = categories.reshape(count, *(1,) * len(self.batch_shape))
        return categories.expand(count, *self.batch_shape) if expand else categories

    def quadrature(self, order: int = 64) -> tuple[Tensor, Tensor]:
        """The categories and their probabilities, both (K, *batch); `order` is not needed."""
        return self.enumerate_support(), self.probs.movedim(-1, 0)

    def entropy(self) -> Tensor:
        """Shannon entropy (*batch)."""
        return -torch.where(self.probs > 0, self.probs * self._log_probs(), 0.0).sum(-1)

    def tsallis_entropy(self) -> Tensor:
        r"""$-\Omega_\alpha(p)$ (*batch)."""
        alpha = self.alpha.unsqueeze(-1)
        # Zeros contribute 0 * log_{2 - alpha}(0), finite for alpha > 1 and 0 in the limit at 1.
        safe = torch.where(self.probs > 0, self.probs, 1.0)
        return -(self.probs * log_beta(safe, 2 - alpha)).sum(-1) / self.alpha

    @property
    def score(self) -> Finite:
        r"""$f = \log_{2-\alpha} p$, up to the constant that no prediction map sees."""
        alpha = self.alpha.unsqueeze(-1)
        alive = self.probs > 0
        f = log_beta(torch.where(alive, self.probs, 1.0), 2 - alpha)
        return Finite(torch.where(alive, f, -math.inf))

    @property
    def log_normalizer(self) -> Tensor:
        r"""$A_\alpha$ of `score`, which is normalised: zero (*batch)."""
        return torch.zeros_like(self.alpha)

    def escort(self, beta: Tensor | float | None = None) -> "SparseCategorical":
        r"""The $\beta$-escort on the same categories; default $\beta = 2 - \alpha$."""
        power = 2 - self.alpha if beta is None else torch.as_tensor(beta, dtype=self.probs.dtype)
        log_p = self._log_probs()
        alive = log_p > -math.inf
        raised = torch.exp(power.unsqueeze(-1) * torch.where(alive, log_p, 0.0))
        return SparseCategorical(torch.where(alive, raised, 0.0), self.alpha)
