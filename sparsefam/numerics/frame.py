"""Coordinates in which an ellipsoid is the unit ball and Gaussians have independent components."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .ellipsoid import orthogonalize
from .validation import difference

__all__ = ["Frame", "whiten"]

# Neither the density nor the Gaussian is taken as narrower than this share of the other: its
# square is below the rounding of what it adds to.
_NARROWEST = 1e-6
# Distances, in units of the larger of the two, from which on everything is zero.
_FARTHEST = 1e7


@dataclass(frozen=True)
class Frame:
    """x = shrink (rotation' inverse (t - loc)): the ball in its own axes, (R, N) pairs at once.

    It is made in float64: where an ellipsoid is thin, a float32 rotation would move a center by
    many of its widths.

    Attributes:
        inverse: Inverse of scale_tril, (R, D, D).
        rotation: Orthogonal, (R, 1, D, D) if it serves all Gaussians, else (R, N, D, D).
        shrink: Below 1 along axes that are taken as thicker than they are, (R, N, D).
        b: Centers of the Gaussians, (R, N, D).
        lam: Their variances along the axes, (R, N, D).
        inside: 1 - |b|^2, (R, N).
    """

    inverse: Tensor
    rotation: Tensor
    shrink: Tensor
    b: Tensor
    lam: Tensor
    inside: Tensor


@torch.no_grad()
def whiten(loc: Tensor, scale_tril: Tensor, centers: Tensor, spread: Tensor) -> Frame:
    """The frame of densities (R) against Gaussians (N).

    Args:
        loc: (R, D).
        scale_tril: (R, D, D).
        centers: (N, D).
        spread: Standard deviations (N,), or covariances (N, D, D).
    """
    scale_tril, spread = scale_tril.double(), spread.double()
    unit = torch.eye(loc.shape[-1], dtype=torch.float64, device=loc.device)
    inverse = torch.linalg.solve_triangular(scale_tril, unit.expand_as(scale_tril), upper=False)
    if spread.dim() == 1:
        rotation, scales = orthogonalize(scale_tril)
        rotation, deviations = rotation.unsqueeze(1), spread.unsqueeze(-1) / scales.unsqueeze(1)
    else:
        factor = torch.linalg.cholesky_ex(spread)[0]
        rotation, deviations = orthogonalize((inverse.unsqueeze(1) @ factor).mT)
    gaps, lost = difference(centers.double(), loc.double().unsqueeze(1))
    b = turn(gaps @ inverse.mT, rotation)
    shrink = (1 / (_NARROWEST * deviations)).clamp(max=1.0)
    b = (b * shrink).clamp(-_FARTHEST, _FARTHEST)
    # What rounding took from the gaps counts only here, where the edge is located.
    inside = 1 - b.square().sum(-1) - 2 * (b * turn(lost @ inverse.mT, rotation)).sum(-1)
    lam = (deviations * shrink).clamp_min(_NARROWEST).square()
    return Frame(inverse, rotation, shrink, b, lam, inside)


def turn(vectors: Tensor, rotation: Tensor) -> Tensor:
    """Row vectors (R, N, D) times rotations (R, 1 | N, D, D)."""
    if rotation.shape[1] == 1:
        return vectors @ rotation.squeeze(1)
    return (vectors.unsqueeze(-2) @ rotation).squeeze(-2)
