"""B-splines by de Boor's recursion, evaluated only where they are not zero."""

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["nonzero_splines"]


def nonzero_splines(knots: Tensor, degree: int, t: Tensor) -> tuple[Tensor, Tensor]:
    """Return the indices of the degree + 1 B-splines at each location that may not be zero there.

    References:
        de Boor (1972), On calculating with B-splines. J. Approximation Theory 6.

    Args:
        knots: Nondecreasing and not all equal, shape (N + degree + 1,).
        degree: Degree of the polynomials between knots.
        t: Locations, shape (...).

    Returns:
        Indices from 0 to N - 1 and values, each (..., degree + 1). A function that does not exist,
        as there are too few knots, has the nearest index and the value 0.
    """
    dtype = torch.promote_types(t.dtype, knots.dtype)
    knots, t = knots.to(dtype), t.to(dtype)
    inside = (knots[0] <= t) & (t <= knots[-1])
    t = t.clamp(knots[0], knots[-1])
    # Each location has an interval of positive length: the last one is closed.
    interval = torch.minimum(_count_knots(knots, t), (knots < knots[-1]).sum()) - 1
    steps = torch.arange(1 - degree, degree + 1, device=t.device)
    near = knots[(interval.unsqueeze(-1) + steps).clamp(0, len(knots) - 1)]
    t, values = t.unsqueeze(-1), inside.to(dtype).unsqueeze(-1)
    for order in range(1, degree + 1):
        start, end = near[..., degree - order : degree], near[..., degree : degree + order]
        rise = (t - start) / (end - start)
        values = pad(rise * values, (1, 0)) + pad((1 - rise) * values, (0, 1))
    index = interval.unsqueeze(-1) + torch.arange(-degree, 1, device=t.device)
    last = len(knots) - degree - 2
    return index.clamp(0, last), torch.where((index >= 0) & (index <= last), values, 0)


def _count_knots(knots: Tensor, t: Tensor) -> Tensor:
    """Count the knots at or below each location."""
    if torch.compiler.is_exporting():  # ONNX has no sorted search
        return (knots <= t.unsqueeze(-1)).sum(-1)
    return torch.searchsorted(knots.detach(), t.detach().contiguous(), right=True)
