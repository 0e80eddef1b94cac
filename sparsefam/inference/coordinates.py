"""Standard coordinates: affine maps of fixed sets onto supports that depend on parameters."""

from typing import Any

import torch
from torch import Size, Tensor
from torch.distributions import biject_to, constraints
from torch.distributions.constraints import Constraint
from torch.distributions.transforms import IndependentTransform, Transform

from ..numerics.validation import attributes, require
from ..supports import Ellipsoid, Interval, RealLine

__all__ = ["placement", "support_numbers"]

Bound = Tensor | float


def support_numbers(support: Constraint) -> list[Tensor]:
    """The tensors that say where a support lies: none, if it is a fixed set.

    A set whose ends are numbers of Python, as those of `constraints.unit_interval`, is fixed.
    """
    if isinstance(support, RealLine):
        return []
    found: list[Tensor] = []
    for value in attributes(support).values():
        for part in value if isinstance(value, list | tuple) else [value]:
            if isinstance(part, Tensor):
                found.append(part)
            elif isinstance(part, Constraint):
                found.extend(support_numbers(part))
    return found


def placement(support: Constraint) -> Transform:
    """The map of a fixed set onto a support, affine where that is bounded or a half-line.

    The set is [0, 1] for an interval, the positive half-line for a half-line, the unit ball for an
    ellipsoid, all of space for any other that has a bijection.

    Raises:
        ValueError, NotImplementedError: A support without a bijection.
    """
    if isinstance(support, constraints.independent):
        base = placement(support.base_constraint)
        place: Transform = IndependentTransform(base, support.reinterpreted_batch_ndims)
    elif isinstance(support, Ellipsoid):
        place = _BallToEllipsoid(support)
    elif isinstance(support, Interval | constraints.interval | constraints.half_open_interval):
        place = _UnitToInterval(support, support.lower_bound, support.upper_bound)
    elif isinstance(support, constraints.greater_than | constraints.greater_than_eq):
        place = _PositiveToHalfLine(support, support.lower_bound, 1)
    elif isinstance(support, constraints.less_than):
        place = _PositiveToHalfLine(support, support.upper_bound, -1)
    else:
        place = biject_to(support)
    cached: Transform = place.with_cache()
    return cached


class _Placement(Transform):
    """A bijection onto a support; `_args` are what it was made of."""

    bijective = True
    _args: tuple[Any, ...]
    _shape: Size

    def with_cache(self, cache_size: int = 1) -> "_Placement":
        if self._cache_size == cache_size:
            return self
        cls: Any = type(self)
        new: _Placement = cls(*self._args, cache_size=cache_size)
        return new

    def forward_shape(self, shape: Size) -> Size:
        found: Size = torch.broadcast_shapes(shape, self._shape)
        return found

    inverse_shape = forward_shape


class _UnitToInterval(_Placement):
    r"""$x = a + (b - a) v$; where $b$ is infinite $x = a + v/(1 - v)$.

    So all of a batch has one domain, and an element keeps it when its end comes from infinity.
    """

    domain = constraints.unit_interval
    sign = 1

    def __init__(
        self, support: Constraint, lower: Bound, upper: Bound, cache_size: int = 0
    ) -> None:
        super().__init__(cache_size=cache_size)
        self._args, self.codomain = (support, lower, upper), support
        ends = torch.as_tensor(lower), torch.as_tensor(upper)
        require(ends[0].isfinite(), "lower_bound", "finite", ends[0])
        self._lower, self._upper = torch.broadcast_tensors(*ends)
        self._shape = self._lower.shape
        self._bounded = self._upper.isfinite()
        # Neither branch may have a NaN for a slope where the other one serves.
        self._width = torch.where(self._bounded, self._upper - self._lower, 1.0)

    def _call(self, x: Tensor) -> Tensor:
        value = self._lower + self._width * x / torch.where(self._bounded, 1.0, 1 - x)
        # Rounding may put it beyond the end, where torch's densities raise.
        return torch.where(value > self._upper, self._upper, value)

    def _inverse(self, y: Tensor) -> Tensor:
        offset = y - self._lower
        v: Tensor = offset / torch.where(self._bounded, self._width, 1 + offset)
        return v

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        far = torch.where(self._bounded, 0.0, x)
        slope: Tensor = self._width.log() - 2 * torch.log1p(-far)
        return slope


class _PositiveToHalfLine(_Placement):
    """x = a + v, or a - v."""

    domain = constraints.positive

    def __init__(self, support: Constraint, end: Bound, sign: int, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        self._args, self.codomain = (support, end, sign), support
        self._end, self._sign = torch.as_tensor(end), sign
        self._shape = self._end.shape

    @property
    def sign(self) -> int:
        """Whether x rises or falls with v."""
        return self._sign

    def _call(self, x: Tensor) -> Tensor:
        return self._end + self._sign * x

    def _inverse(self, y: Tensor) -> Tensor:
        return self._sign * (y - self._end)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.zeros_like(x)


class _BallToEllipsoid(_Placement):
    """t = loc + L u."""

    codomain: Ellipsoid

    def __init__(self, support: Ellipsoid, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        self._args, self.codomain = (support,), support
        centre = torch.zeros_like(support.loc.detach())
        eye = torch.eye(centre.shape[-1], dtype=centre.dtype, device=centre.device)
        self.domain = Ellipsoid(centre, eye)
        self._shape = support.loc.shape

    def _call(self, x: Tensor) -> Tensor:
        t: Tensor = self.codomain.loc + (self.codomain.scale_tril @ x.unsqueeze(-1)).squeeze(-1)
        return t

    def _inverse(self, y: Tensor) -> Tensor:
        return self.codomain._standardize(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        diagonal = self.codomain.scale_tril.diagonal(dim1=-2, dim2=-1)
        return diagonal.log().sum(-1).expand(x.shape[:-1])
