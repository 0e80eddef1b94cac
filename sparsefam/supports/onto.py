"""The line onto a union of intervals: where to start from, not a way to walk."""

import torch
from torch import Size, Tensor
from torch.distributions import constraints
from torch.distributions.transforms import Transform

__all__ = ["OntoIntervals"]


class OntoIntervals(Transform):
    """The line onto several intervals, which follow one another; it jumps from each to the next.

    What `torch.distributions.transform_to` asks for, and `pyro.infer.autoguide.init_to_uniform`: a
    map whose values lie in the union, half-lines included. No Jacobian makes it fit for a walk.

    Args:
        union: A constraint with `intervals` (*batch, K, 2), ascending and padded with NaN.
        cache_size: As in torch.distributions.
    """

    domain = constraints.real

    def __init__(self, union: constraints.Constraint, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        self.codomain = union
        self._ends: Tensor = union.intervals.detach()  # type: ignore[attr-defined]
        ends = self._ends.flatten(-2)
        finite = torch.where(ends.isfinite(), ends, torch.nan)
        self._centre = finite.nanmean(-1).nan_to_num(0.0)
        size = (finite - self._centre.unsqueeze(-1)).abs().nan_to_num(0.0).amax(-1)
        self._size = torch.where(size > 0, size, 1.0)
        # The line shrunk to (-1, 1), where all intervals have a length.
        shrunk = self._shrunk(self._ends.movedim((-2, -1), (0, 1))).movedim((0, 1), (-2, -1))
        self._lower = shrunk[..., 0]
        self._length = (shrunk[..., 1] - shrunk[..., 0]).nan_to_num(0.0)
        self._reach = self._length.cumsum(-1)

    def with_cache(self, cache_size: int = 1) -> "OntoIntervals":
        """The same transform with another cache."""
        return OntoIntervals(self.codomain, cache_size)

    def _shrunk(self, x: Tensor) -> Tensor:
        u = (x - self._centre) / self._size
        return torch.where(u.isinf(), u.sign(), u / (1 + u.abs()))

    def _call(self, x: Tensor) -> Tensor:
        place = torch.sigmoid(x) * self._reach[..., -1]
        order = torch.arange(self._length.shape[-1], device=x.device)
        last = (order * (self._length > 0)).amax(-1)
        index = torch.minimum((place.unsqueeze(-1) >= self._reach).sum(-1), last).unsqueeze(-1)
        before, lower = _taken(self._reach - self._length, index), _taken(self._lower, index)
        z = (lower + place - before).clamp(-1 + 1e-6, 1 - 1e-6)
        t = self._centre + self._size * z / (1 - z.abs())
        # Rounding may put it beyond the ends.
        low, high = (_taken(self._ends[..., k], index) for k in (0, 1))
        return torch.minimum(torch.maximum(t, low), high)

    def _inverse(self, y: Tensor) -> Tensor:
        index = (self._ends[..., 0] <= y.unsqueeze(-1)).sum(-1, keepdim=True).sub(1).clamp_min(0)
        before, lower = _taken(self._reach - self._length, index), _taken(self._lower, index)
        return torch.logit((before + self._shrunk(y) - lower) / self._reach[..., -1])

    def forward_shape(self, shape: Size) -> Size:
        """The shape of t for y of a shape."""
        broadcast: Size = torch.broadcast_shapes(shape, self._centre.shape)
        return broadcast

    def inverse_shape(self, shape: Size) -> Size:
        """The shape of y for t of a shape."""
        return self.forward_shape(shape)


def _taken(values: Tensor, index: Tensor) -> Tensor:
    """Entries (*sample, *batch) of (*batch, K)."""
    return values.expand(*index.shape[:-1], -1).gather(-1, index).squeeze(-1)
