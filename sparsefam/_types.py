"""Densities as modules below their classes see them."""

from collections.abc import Callable
from typing import Protocol

from torch import Size, Tensor
from torch.distributions.constraints import Constraint
from torch.types import _size
from typing_extensions import Self

__all__ = ["DensityLike"]


class DensityLike(Protocol):
    """A distribution of this package."""

    alpha: Tensor
    has_enumerate_support: bool

    @property
    def batch_shape(self) -> Size:
        """Shape of the batch."""

    @property
    def event_shape(self) -> Size:
        """Shape of one location."""

    @property
    def support(self) -> Constraint:
        """The set on which it is positive."""

    @property
    def mean(self) -> Tensor:
        """The mean (*batch, *event)."""

    @property
    def variance(self) -> Tensor:
        """The variance of each coordinate (*batch, *event)."""

    def __getitem__(self, index: object) -> Self:
        """Return the densities at an index of the batch."""

    def prob(self, value: Tensor) -> Tensor:
        """Return the density at locations (*sample, *batch, *event)."""

    def icdf(self, value: Tensor) -> Tensor:
        """Return quantiles of probabilities (*sample, *batch)."""

    def expect(self, psi: Callable[[Tensor], Tensor]) -> Tensor:
        """Return expectations of functions (*batch, N)."""

    def sample(self, sample_shape: _size) -> Tensor:
        """Draw samples (*sample, *batch, *event)."""

    def escort(self) -> "DensityLike":
        """Return the escort density, which is proportional to p^(2 - alpha)."""

    def _check_function(self, psi: object) -> None:
        """Raise ValueError unless psi can be integrated."""
