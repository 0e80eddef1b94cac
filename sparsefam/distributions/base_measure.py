"""The base densities of kernel families: any univariate torch density, and products of them."""

import copy
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Uniform

__all__ = ["BaseMeasure"]

# Mass that may be lost at either end of an unbounded base, and how far it is looked for.
_LOG_TAIL = {torch.float32: math.log(1e-9), torch.float64: math.log(1e-17)}
_DOUBLINGS = 70
# Log densities below this are rounding; growth below this is none; orders of growth this close are
# the same.
_FAR, _SMALL, _CLOSE = 1e300, 1e-6, 0.02

Base = Distribution | Sequence[Distribution] | None


class BaseMeasure:
    """A product of univariate densities, which are constants: they are not differentiated.

    Args:
        base: None (uniform on the unit box), a univariate distribution, an `Independent` of one, or
            a sequence of univariate ones.
        dim: The number of factors.
        dtype: Of the densities that it becomes part of: how much of the tails is cut.

    Raises:
        ValueError: Anything else, a batch, or parameters that require grad.
    """

    def __init__(self, base: Base, dim: int, dtype: torch.dtype) -> None:
        self.dim = dim
        self._tail = _LOG_TAIL.get(dtype, _LOG_TAIL[torch.float32])
        self.factors = [_doubled(factor) for factor in _factors(base, dim)]

    def log_density(self, t: Tensor) -> Tensor:
        """Log density of the product at t (..., D); -inf off its support."""
        return torch.stack([self.log_factor(d, t[..., d]) for d in range(self.dim)]).sum(0)

    def log_factor(self, axis: int, t: Tensor) -> Tensor:
        """Log density of one factor (...); -inf off its closed support, in the dtype of t."""
        factor = self.factors[axis]
        if isinstance(factor, Uniform):
            # Closed, where torch's is half open.
            inside = (factor.low <= t) & (t <= factor.high)
            return torch.where(inside, -(factor.high - factor.low).log(), -math.inf).to(t.dtype)
        inside = factor.support.check(t) if factor.support is not None else torch.isfinite(t)
        safe = torch.where(inside, t, self._inner(factor).to(t.dtype))
        log = factor.log_prob(safe.double()).to(t.dtype)
        return torch.where(inside, log, -math.inf)

    @staticmethod
    def _inner(factor: Distribution) -> Tensor:
        """Some location inside the support."""
        mean = factor.mean if torch.isfinite(factor.mean).all() else factor.mode
        return mean

    def bounds(self, axis: int) -> tuple[float, float]:
        """The ends of the support of a factor, maybe infinite."""
        support = self.factors[axis].support
        low = getattr(support, "lower_bound", -math.inf)
        high = getattr(support, "upper_bound", math.inf)
        return float(low), float(high)

    def reach(self, axis: int, growth: Callable[[Tensor], Tensor]) -> tuple[float, float]:
        """The ends of the interval outside of which density times growth has no mass to speak of.

        Args:
            axis: Which factor.
            growth: Logarithm of what the density may be multiplied with, (q,) to (q,).
        """
        low, high = self.bounds(axis)
        centre = float(self._inner(self.factors[axis]))
        low, high = (
            end if math.isfinite(end) else self._end(axis, centre, side, growth)
            for end, side in ((low, -1.0), (high, 1.0))
        )
        return low, high

    def _end(
        self, axis: int, centre: float, side: float, growth: Callable[[Tensor], Tensor]
    ) -> float:
        """Where the tail on one side is light enough, on a grid of quarters of powers of two.

        Raises:
            ValueError: If it never is, or if p grows as fast as the tail falls (Prop. 1).
        """
        steps = 2.0 ** (torch.arange(-40, 4 * _DOUBLINGS, dtype=torch.float64) / 4)
        t = centre + side * steps
        log, size = self.log_factor(axis, t), growth(t)
        size = size - size[0]
        # Of one order of growth a large enough score wins. The order is the slope in log t.
        tail, rise = (-log[log > -_FAR]).log2(), size.clamp_min(_SMALL).log2()
        light = (log + size + steps.log() < self._tail) | (log == -math.inf)
        heavy = (~light).nonzero()
        last = int(heavy[-1]) + 1 if len(heavy) else 0
        outweighed = last >= len(steps)
        if not outweighed and size[last] > _SMALL:
            window = slice(last, min(last + 8, len(tail)))
            orders = [4 * x[window].diff().mean() for x in (tail, rise)]
            outweighed = bool(orders[1] >= orders[0] - _CLOSE)
        if outweighed:
            raise ValueError(
                f"base must have tails that outweigh the growth of the kernel's k(t, t), got "
                f"{self.factors[axis]}: the density cannot be normalised for every score (Prop. 1)"
            )
        return float(t[last])


def _factors(base: Base, dim: int) -> list[Distribution]:
    if base is None:
        base = Uniform(0.0, 1.0, validate_args=False)
        return [base] * dim
    if isinstance(base, Independent) and base.reinterpreted_batch_ndims == 1:
        return _split(base.base_dist, dim)
    factors = list(base) if isinstance(base, Sequence) else [base]
    fits = len(factors) == dim and all(isinstance(factor, Distribution) for factor in factors)
    if not fits or any(factor.batch_shape or factor.event_shape for factor in factors):
        raise ValueError(
            "base must be a univariate distribution with an empty batch"
            + (f", or {dim} of them" if dim > 1 else "")
            + f", got {base}"
        )
    return factors


def _split(base: Distribution, dim: int) -> list[Distribution]:
    """The members of a batch of univariate distributions."""
    if base.batch_shape != (dim,) or base.event_shape:
        raise ValueError(f"base must have {dim} univariate factors, got {base}")
    factors = []
    for index in range(dim):
        factor = copy.copy(base)
        for name in base.arg_constraints:
            if isinstance(base.__dict__.get(name), Tensor):
                factor.__dict__[name] = base.__dict__[name][index]
        torch.distributions.Distribution.__init__(factor, validate_args=False)
        factors.append(factor)
    return factors


def _doubled(factor: Distribution) -> Distribution:
    """The distribution without validation, its parameters constants in float64."""
    factor = copy.copy(factor)
    for name, value in list(factor.__dict__.items()):
        if isinstance(value, Tensor):
            if value.requires_grad:
                raise ValueError(
                    f"base must be constant, got a {name} that requires grad: {factor}"
                )
            if value.is_floating_point():
                factor.__dict__[name] = value.double()
    factor._validate_args = False
    return factor
