"""Categorical distributions with exact zeros, such as sparsemax and entmax return."""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.constraints import Constraint

from .._numerics.deformed import log_beta
from .._numerics.validation import as_tensors, broadcast_shapes, require, require_power
from ..scores import Finite
from .base import SparseDistribution

__all__ = ["SparseCategorical"]


class SparseCategorical(SparseDistribution):
    r"""Categorical distribution whose probabilities may be exactly zero.

    `torch.distributions.Categorical` clamps zeros to a rounding error; here `log_prob` of a
    category off the support is -inf, with a zero gradient.

    Equivalent to `torch.distributions.Categorical` where all probabilities are positive.

    Args:
        probs: Nonnegative weights (*batch, K), which are normalized to sum to one.
        alpha: Entropic index of their prediction map (*batch).
        validate_args: As in torch.distributions.

    Raises:
        ValueError: No category, or weights that are negative, NaN, infinite or all zero.

    References:
        Martins and Astudillo (2016), From Softmax to Sparsemax. Peters et al. (2019), Sparse
        Sequence-to-Sequence Models.

    Examples:
        >>> SparseCategorical(torch.tensor([0.5, 0.5, 0.0])).log_prob(torch.tensor(2))
        tensor(-inf)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {"probs": constraints.simplex}
    _tensors = {"alpha": 0}
    has_rsample = False
    has_enumerate_support = True

    def __init__(
        self,
        probs: Tensor | Sequence[float],
        alpha: Tensor | float = 2.0,
        *,
        validate_args: bool | None = None,
    ) -> None:
        try:
            weights = torch.as_tensor(probs)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(f"probs must be a tensor (*batch, K), got {probs!r}") from None
        if weights.dim() < 1 or weights.shape[-1] < 1 or weights.is_complex():
            raise ValueError(f"probs must have shape (*batch, K >= 1), got {tuple(weights.shape)}")
        if not weights.is_floating_point():
            weights = weights.to(torch.get_default_dtype())
        checks = Distribution._validate_args if validate_args is None else validate_args
        if checks:
            fits = (weights >= 0) & (weights < math.inf)
            require(fits.all(-1), "probs", "nonnegative and finite", weights)
            require((weights > 0).any(-1), "probs", "positive for some category", weights)
        self.probs = weights / weights.sum(-1, keepdim=True)
        self.alpha = as_tensors(alpha=alpha)["alpha"].to(weights).expand(weights.shape[:-1])
        super().__init__(weights.shape[:-1], validate_args=validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> Constraint:
        """All categories, also if their probability is zero."""
        return constraints.integer_interval(0, self.probs.shape[-1] - 1)

    def _log_probs(self) -> Tensor:
        """Return log probabilities (*batch, K), -inf with zero gradient for zeros."""
        alive = self.probs > 0
        return torch.where(alive, torch.log(torch.where(alive, self.probs, 1.0)), -math.inf)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log probability; -inf with zero gradient off the support.

        Raises:
            ValueError: A value that is not an integer from 0 to K - 1.
        """
        if self._validate_args:
            self._validate_sample(value)
            last = self.probs.shape[-1] - 1
            fits = (value >= 0) & (value <= last) & (value % 1 == 0)
            require(fits, "value", f"an integer from 0 to {last}", value)
        shape = broadcast_shapes(value.shape, self.batch_shape)
        table = self._log_probs().expand(*shape, self.probs.shape[-1])
        return table.gather(-1, value.expand(shape).long().unsqueeze(-1)).squeeze(-1)

    def _draw(self, sample_shape: torch.Size) -> Tensor:
        shape = self._extended_shape(sample_shape)
        rows = self.probs.expand(*shape, -1).reshape(-1, self.probs.shape[-1])
        return torch.multinomial(rows, 1).reshape(shape)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Return all categories (K, *batch), also if their probability is zero."""
        count = self.probs.shape[-1]
        categories = torch.arange(count, device=self.probs.device)
        categories = categories.reshape(count, *(1,) * len(self.batch_shape))
        return categories.expand(count, *self.batch_shape) if expand else categories

    def quadrature(self, order: int = 64) -> tuple[Tensor, Tensor]:
        """Return the categories and their probabilities, both (K, *batch), at any order."""
        return self.enumerate_support(), self.probs.movedim(-1, 0)

    def entropy(self) -> Tensor:
        """Return the Shannon entropy (*batch)."""
        safe = torch.where(self.probs > 0, self.probs, 1.0)
        return -(self.probs * safe.log()).sum(-1)

    def tsallis_entropy(self) -> Tensor:
        r"""Return $-\Omega_\alpha(p)$ (*batch)."""
        # (1 - sum p^alpha)/(alpha (alpha - 1)) = -sum p log_{2-alpha}(p)/alpha. Terms with p = 0
        # are 0.
        alpha = self.alpha.unsqueeze(-1)
        safe = torch.where(self.probs > 0, self.probs, 1.0)
        return -(self.probs * log_beta(safe, 2 - alpha)).sum(-1) / self.alpha

    @property
    def score(self) -> Finite:
        r"""$f = \log_{2-\alpha} p$, up to a constant."""
        alpha = self.alpha.unsqueeze(-1)
        alive = self.probs > 0
        f = log_beta(torch.where(alive, self.probs, 1.0), 2 - alpha)
        return Finite(torch.where(alive, f, -math.inf))

    @property
    def log_normalizer(self) -> Tensor:
        r"""$A_\alpha$ of `score`: zero (*batch)."""
        return torch.zeros_like(self._like)

    def escort(self, beta: Tensor | float | None = None) -> "SparseCategorical":
        r"""Return the escort on the same categories; default $\beta = 2 - \alpha$.

        Raises:
            ValueError: `beta` neither a number nor a tensor, or not finite.
        """
        require_power(beta, self.batch_shape)
        power = 2 - self.alpha if beta is None else beta
        power = torch.as_tensor(power, dtype=self.probs.dtype, device=self.probs.device)
        log_p = self._log_probs()
        alive = log_p > -math.inf
        raised = torch.exp(power.unsqueeze(-1) * torch.where(alive, log_p, 0.0))
        weights = torch.where(alive, raised, 0.0)
        return SparseCategorical(weights, self.alpha, validate_args=self._validation)
