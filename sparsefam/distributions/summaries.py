"""Masses in tails and their logarithms, from distribution functions of densities of numbers."""

import math

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

__all__ = ["Summaries", "log_positive"]


def log_positive(x: Tensor) -> Tensor:
    """Return the logarithm of x; -inf with zero gradient where x is not positive."""
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1.0).log(), -math.inf)


class Summaries(TorchDistribution):
    """What is asked of a density of numbers besides torch's methods, by hooks of the families."""

    # Hooks. `upper` (..., *batch) tells of each value whether the mass above it is meant.

    def _tail(self, value: Tensor, upper: Tensor) -> Tensor:
        """Return the mass below each value, or above it where `upper`."""
        below = self.cdf(value)
        return torch.where(upper, 1 - below, below)

    def _log_small_tail(self, value: Tensor, upper: Tensor) -> Tensor:
        """Return the logarithm of a tail that is not the larger one, relatively accurate."""
        return log_positive(self._tail(value, upper))

    def _is_larger(self, value: Tensor, upper: Tensor) -> Tensor:
        """Return whether a tail is the larger one."""
        with torch.no_grad():
            return self._tail(value, upper) > 0.5

    # Masses

    def _log_tail(self, value: Tensor, upper: Tensor) -> Tensor:
        """Return the logarithm of a tail: of the larger one by what the other leaves of 1."""
        larger = self._is_larger(value, upper)
        small = self._log_small_tail(value, upper ^ larger)
        return torch.where(larger, torch.log1p(-small.exp()), small)

    def _side(self, name: str, value: Tensor, upper: bool) -> Tensor:
        """Return which tails are meant, after the checks of the method of this name."""
        self._require_numbers(name)
        if self._validate_args:
            self._validate_sample(value)
        return torch.full_like(value, upper, dtype=torch.bool)

    def _require_numbers(self, name: str) -> None:
        if self.event_shape:
            raise NotImplementedError(f"{name} exists for densities of numbers only")

    def survival(self, value: Tensor) -> Tensor:
        """Return the mass above `value`, 1 - `cdf`, relatively accurate in the upper tail.

        Raises:
            NotImplementedError: A density of vectors.
        """
        return self._tail(value, self._side("survival", value, True))

    def log_cdf(self, value: Tensor) -> Tensor:
        """Return the logarithm of the mass below `value`, relatively accurate in both tails.

        It is -inf with zero gradient below the support.

        Raises:
            NotImplementedError: A density of vectors.
        """
        return self._log_tail(value, self._side("log_cdf", value, False))

    def log_survival(self, value: Tensor) -> Tensor:
        """Return the logarithm of the mass above `value`, relatively accurate in both tails.

        It is -inf with zero gradient above the support.

        Raises:
            NotImplementedError: A density of vectors.
        """
        return self._log_tail(value, self._side("log_survival", value, True))
