"""A ball integral as a differentiable function of everything, at nodes that stay where they are.

First derivatives are averages over the nodes (`averages`); this is for the derivatives of those.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .contour import Contour, contour
from .frame import Frame, turn, whiten
from .special import stirling_excess

__all__ = ["differentiable_partials", "draw_path", "log_front", "log_size"]


def draw_path(
    frame: Frame, m: Tensor, kind: str, dtype: torch.dtype
) -> tuple[Contour, Tensor, Tensor]:
    """Nodes for pairs (R, N), and lam and b with axes first, (D, R, N).

    Args:
        frame: The coordinates.
        m: Exponents (R).
        kind: "ball", "lowered" (the path is that of m + 1), or "normal" (one node, exactly).
        dtype: Of the nodes.
    """
    lam, b = (x.to(dtype).movedim(-1, 0).contiguous() for x in (frame.lam, frame.b))
    if kind == "normal":
        return _normal_path(lam, b), lam, b
    inside = frame.inside.to(dtype)
    m = m.unsqueeze(-1) + torch.zeros_like(inside)
    lowered = kind == "lowered"
    # A derivative of the integral, which lowering takes, asks for more nodes.
    count = 24 if dtype == torch.float64 else 8 if lowered else 6
    return contour(lam, b, m + 1 if lowered else m, inside, count), lam, b


def _normal_path(lam: Tensor, b: Tensor) -> Contour:
    q = 1 / (1 + lam)
    one = torch.ones_like(q[0])
    log_mean = -0.5 * (torch.log1p(lam.double()) + (b * b * q).double()).sum(0)
    none = torch.zeros_like(one, dtype=one.dtype.to_complex()).unsqueeze(0)
    steps = none.expand(len(lam), *none.shape)
    return Contour(0.5 * one, q, steps, none, none, none + 1j, log_mean)


def log_front(m: Tensor, dim: int, kind: str) -> tuple[Tensor, Tensor]:
    """Logarithm of what multiplies the path's integral, and its derivative in m, float64 (R, 1)."""
    m = m.double().unsqueeze(-1)
    if kind == "normal":
        return torch.full_like(m, -0.5 * dim * math.log(2 * math.pi)), m
    top = m + (2 if kind == "lowered" else 1)
    half = dim / 2
    # log Gamma(top + D/2) - top log top + top, without large terms.
    front = top * torch.log1p(half / top) + half * torch.log((top + half) / math.pi) - half
    front = front + stirling_excess(top + half)
    return front, torch.digamma(top + half) - top.log()


def log_size(path: Contour, frame: Frame, scale_tril: Tensor) -> Tensor:
    """Logarithm of the path's integral, whose weights have a sum of one, float64 (R, N)."""
    volume = scale_tril.diagonal(dim1=-2, dim2=-1).double().log().sum(-1, keepdim=True)
    return path.log_mean.double() - volume + frame.shrink.log().sum(-1)


def differentiable_partials(
    kind: str, inputs: tuple[Tensor, ...]
) -> Callable[..., tuple[Tensor, ...]]:
    """The derivatives in b, A, the spread and m as a function of the inputs near where they are.

    Args:
        kind: As for `draw_path`.
        inputs: loc, scale_tril, centers, spread and m.
    """
    fixed = [x.detach().double() for x in inputs]
    frame = whiten(*fixed[:4])
    path, lam, _ = draw_path(frame, fixed[4], kind, torch.float64)
    front, _ = log_front(fixed[4], fixed[0].shape[-1], kind)
    weights = path.weights * torch.exp(log_size(path, frame, fixed[1]) + front)
    replayed = _Replay(kind, path, lam.movedim(0, -1), weights, fixed[4].unsqueeze(-1))

    def partials(
        loc: Tensor, scale_tril: Tensor, centers: Tensor, spread: Tensor, m: Tensor
    ) -> tuple[Tensor, ...]:
        gaps = centers.double() - loc.double().unsqueeze(1)
        b = frame.shrink * turn(gaps @ frame.inverse.mT, frame.rotation)
        pairs = frame.shrink.unsqueeze(-1) * frame.shrink.unsqueeze(-2)
        sides = frame.rotation.mT @ (frame.inverse @ scale_tril.double()).unsqueeze(1)
        ball = pairs * (sides @ sides.mT)
        if spread.dim() > 1:
            whole = frame.rotation.mT @ frame.inverse.unsqueeze(1)
            spread = pairs * (whole @ spread.double() @ whole.mT)
        else:
            spread = (2 * torch.log(spread.double() / fixed[3])).expand(b.shape[:-1])
        m = m.double().unsqueeze(-1).expand(b.shape[:-1])
        slopes: tuple[Tensor, ...] = torch.func.grad(replayed.total, (0, 1, 2, 3))(
            b, ball, spread, m
        )
        return slopes

    return partials


class _Replay(NamedTuple):
    """The sum over nodes as it depends on b, A, the spread and m; all else is constant."""

    kind: str
    path: Contour
    lam: Tensor
    weights: Tensor
    exponent: Tensor

    def total(self, b: Tensor, ball: Tensor, spread: Tensor, m: Tensor) -> Tensor:
        """Sum of the integrals of all pairs."""
        ball = 0.5 * (ball + ball.mT)
        mixing = 0.5 / (self.path.saddle * (1 + self.path.nodes))
        unit = torch.eye(b.shape[-1], dtype=b.dtype, device=b.device)
        if spread.dim() < ball.dim():
            spread = spread.exp()[..., None, None] * self.lam.unsqueeze(-1) * unit
        spread = 0.5 * (spread + spread.mT)
        inverse = torch.linalg.inv_ex(spread + ball * mixing[..., None, None])[0]
        v = (inverse @ b.unsqueeze(-1).to(inverse.dtype)).squeeze(-1)
        phase = 0.5 * (_log_det(inverse) - (v * b).sum(-1))
        if self.kind == "lowered":
            phase = phase + self._moved(m)
        level = torch.exp(phase - phase.detach())
        if self.kind == "lowered":
            through = ball.to(v.dtype) @ v.unsqueeze(-1)
            rate = (v * through.squeeze(-1)).sum(-1) - (inverse * ball.mT).sum((-2, -1))
            level = level * (1 + mixing * rate / (2 * m + 2 + b.shape[-1]))
        return (self.weights * level).imag.sum()

    def _moved(self, m: Tensor) -> Tensor:
        """Gamma(m + 2 + D/2) z^-(m + 2) against what it is where the path was drawn."""
        top = self.exponent + 2
        whole = torch.lgamma(m + (2 + self.lam.shape[-1] / 2))
        return whole - whole.detach() - (m - self.exponent) * (top.log() + self.path.turns)


def _log_det(matrix: Tensor) -> Tensor:
    sign, size = torch.linalg.slogdet(matrix)
    found: Tensor = sign.log() + size
    return found
