"""B-splines: the few that are not zero at a location, and the bands of their Dirichlet energy."""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from .dirichlet_energy import PanelRule
from .least_squares import band_sums
from .modes import exported

__all__ = ["nonzero_splines", "spline_energy"]


def nonzero_splines(knots: Tensor, degree: int, t: Tensor) -> tuple[Tensor, Tensor]:
    """Return indices and values (..., degree + 1) of the B-splines that may not be zero at t (...).

    Args:
        knots: The full knot vector.
        degree: Of the polynomials.
        t: Locations.
    """
    dtype, last = torch.promote_types(t.dtype, knots.dtype), len(knots) - degree - 2
    knots, t = knots.to(dtype), t.to(dtype)
    inside = (knots[0] <= t) & (t <= knots[-1])
    t = t.clamp(knots[0], knots[-1])
    if exported():  # ONNX has no sorted search
        passed = (knots <= t.unsqueeze(-1)).sum(-1)
    else:
        passed = torch.searchsorted(knots.detach(), t.detach().contiguous(), right=True)
    # Each location has an interval of positive length: the last one is closed.
    interval = torch.minimum(passed, (knots < knots[-1]).sum()) - 1
    steps = torch.arange(1 - degree, degree + 1, device=t.device)
    near = knots[(interval.unsqueeze(-1) + steps).clamp(0, len(knots) - 1)]
    t, values = t.unsqueeze(-1), inside.to(dtype).unsqueeze(-1)
    for order in range(1, degree + 1):
        start, end = near[..., degree - order : degree], near[..., degree : degree + order]
        rise = (t - start) / (end - start)
        values = pad(rise * values, (1, 0)) + pad((1 - rise) * values, (0, 1))
    index = interval.unsqueeze(-1) + torch.arange(-degree, 1, device=t.device)
    return index.clamp(0, last), torch.where((index >= 0) & (index <= last), values, 0)


def spline_energy(knots: Tensor, degree: int, scale: float) -> Tensor:
    """Return the diagonal of the matrix of energies, and the bands on its right, (N, bands).

    Indicators have no slope: theirs is that of straight lines between the middles of intervals.

    Args:
        knots: The full knot vector in float64.
        degree: Of the polynomials.
        scale: The factor of the energy.
    """
    if not degree:
        middles = (knots[1:] + knots[:-1]) / 2
        steep = pad(scale / middles.diff(), (1, 1))
        return torch.stack([steep[:-1] + steep[1:], -steep[1:]], -1)
    rule = PanelRule(knots, degree + 1)

    def slopes(t: Tensor) -> tuple[Tensor, Tensor]:
        index, values = nonzero_splines(knots, degree, t.squeeze(0))
        values = rule.slopes(values.unflatten(0, (-1, rule.order))) * rule.weights.sqrt()
        return index.unsqueeze(0), math.sqrt(scale) * values.flatten(0, 1).unsqueeze(0)

    nodes, count = rule.nodes.unsqueeze(0), len(knots) - degree - 1
    return band_sums(slopes, count, nodes, nodes.unsqueeze(-1), None, None, len(nodes.mT))[0][0]
