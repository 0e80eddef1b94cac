"""B-splines: the few that are not zero at a location."""

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["nonzero_splines"]


def nonzero_splines(knots: Tensor, degree: int, t: Tensor) -> tuple[Tensor, Tensor]:
    """Return indices and values (..., degree + 1) of the B-splines that may not be zero at t (...).

    De Boor's recurrence in the degree k is B_{i,k} = r_i B_{i,k-1} + (1 - r_{i+1}) B_{i+1,k-1},
    where r_i = (t - t_i) / (t_{i+k} - t_i) rises from 0 to 1 between the knots t_i and t_{i+k}.

    Args:
        knots: The full knot vector.
        degree: Of the polynomials.
        t: Locations.
    """
    dtype, last = torch.promote_types(t.dtype, knots.dtype), len(knots) - degree - 2
    knots, t = knots.to(dtype), t.to(dtype)
    inside = (knots[0] <= t) & (t <= knots[-1])
    t = t.clamp(knots[0], knots[-1])
    passed = torch.searchsorted(knots.detach(), t.detach().contiguous(), right=True)
    # Each location has an interval of positive length: the last one is closed.
    interval = torch.minimum(passed, (knots < knots[-1]).sum()) - 1
    # Within an interval the recurrence takes `degree` knots on either side, its ends among them.
    steps = torch.arange(1 - degree, degree + 1, device=t.device)
    near = knots[(interval.unsqueeze(-1) + steps).clamp(0, len(knots) - 1)]
    t, values = t.unsqueeze(-1), inside.to(dtype).unsqueeze(-1)
    for order in range(1, degree + 1):
        start, end = near[..., degree - order : degree], near[..., degree : degree + order]
        rise = (t - start) / (end - start)
        values = pad(rise * values, (1, 0)) + pad((1 - rise) * values, (0, 1))
    index = interval.unsqueeze(-1) + torch.arange(-degree, 1, device=t.device)
    return index.clamp(0, last), torch.where((index >= 0) & (index <= last), values, 0)
