"""B-splines, and the indicators that are their lowest degree."""

import torch
from torch import Tensor

from .arguments import (
    Values,
    check_degree,
    check_finite,
    check_vector,
    common_dtype,
    floating,
    store,
)
from .base import Basis

__all__ = ["BSpline", "Indicator"]


class BSpline(Basis):
    """B-splines on a full knot vector, as `scipy.interpolate.BSpline` takes it.

    Each function is zero outside its knots. At a knot the value is the limit from the right; at
    the last knot, from the left, so that a clamped basis sums to one on the closed interval.

    Args:
        knots: Nondecreasing knots, shape (N + degree + 1,); a parameter stays one.
        degree: Degree of the pieces.

    Raises:
        ValueError: If the degree is negative or the knots are not finite, decrease, are too few or
            are all equal.

    References:
        de Boor (1972), On calculating with B-splines. J. Approximation Theory 6.

    Examples:
        >>> BSpline([0.0, 0.0, 0.5, 1.0, 1.0], 1)(torch.tensor(0.25))
        tensor([0.5000, 0.5000, 0.0000])
    """

    knots: Tensor

    def __init__(self, knots: Values, degree: int) -> None:
        super().__init__()
        check_degree(degree)
        knots = floating(knots, common_dtype(knots))
        check_finite("knots", knots)
        check_vector("knots", knots)
        if len(knots) < degree + 2:
            raise ValueError(f"knots must be at least degree + 2 = {degree + 2}, got {len(knots)}")
        if bool((knots.diff() < 0).any()) or not bool(knots[0] < knots[-1]):
            raise ValueError(f"knots must be nondecreasing and not all equal, got {knots.tolist()}")
        self.degree = degree
        store(self, "knots", knots)

    def __len__(self) -> int:
        return len(self.knots) - self.degree - 1

    @property
    def reach(self) -> tuple[Tensor, Tensor]:
        return self.knots[: len(self)], self.knots[self.degree + 1 :]

    @property
    def breaks(self) -> Tensor:
        return self.knots

    def forward(self, t: Tensor) -> Tensor:
        values = self._spans(t)
        # Where all functions vanish the recursion must not meet an infinite location.
        t = t.unsqueeze(-1).clamp(self.knots[0], self.knots[-1])
        for degree in range(1, self.degree + 1):
            start, width = self.knots[:-degree], self.knots[degree:] - self.knots[:-degree]
            rise = torch.where(width > 0, (t - start) / torch.where(width > 0, width, 1), 0)
            values = rise[..., :-1] * values[..., :-1] + (1 - rise[..., 1:]) * values[..., 1:]
        return values

    def _spans(self, t: Tensor) -> Tensor:
        """The functions of degree zero: which span between knots holds t."""
        dtype = torch.promote_types(t.dtype, self.knots.dtype)
        t, left, right = t.unsqueeze(-1), self.knots[:-1], self.knots[1:]
        closed = (right == self.knots[-1]) & (left < right)
        return ((left <= t) & ((t < right) | (closed & (t == right)))).to(dtype)


class Indicator(BSpline):
    """Indicators of adjacent intervals: one between an edge and the next, zero elsewhere.

    Args:
        edges: Strictly increasing edges, shape (N + 1,); a parameter stays one.

    Raises:
        ValueError: If the edges are not finite, do not increase, or are fewer than two.

    Examples:
        >>> Indicator([0.0, 1.0, 3.0])(torch.tensor(1.0))
        tensor([0., 1.])
    """

    def __init__(self, edges: Values) -> None:
        given = floating(edges, common_dtype(edges)).detach()
        if given.ndim != 1 or len(given) < 2 or not bool((given.diff() > 0).all()):
            raise ValueError(
                f"edges must be two or more, strictly increasing, got {given.tolist()}"
            )
        check_finite("edges", given)
        super().__init__(edges, 0)
