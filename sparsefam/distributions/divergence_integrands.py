"""What divergences integrate, or sum, as functions of two log densities."""

from typing import NamedTuple

import torch
from torch import Tensor

from ..numerics.deformed import expm1_ratio

__all__ = ["Logs", "bregman_excess", "kl_excess", "surprise", "tsallis_excess"]

# No exponential of more than this.
_LARGE = 700.0


class Logs(NamedTuple):
    """Log densities, 0 in place of infinite ones, and where each is finite."""

    p: Tensor
    q: Tensor
    in_p: Tensor
    in_q: Tensor

    @classmethod
    def of(cls, log_p: Tensor, log_q: Tensor) -> "Logs":
        """From log densities that may be infinite."""
        logs = torch.broadcast_tensors(log_p, log_q)
        finite = [x.isfinite() for x in logs]
        found = [torch.where(f, x, 0.0) for f, x in zip(finite, logs, strict=True)]
        return cls(*found, *finite)

    @property
    def in_both(self) -> Tensor:
        """Where both densities are positive."""
        return self.in_p & self.in_q


def kl_excess(at: Logs) -> Tensor:
    r"""$p\,(\log p - \log q)$, 0 where either vanishes."""
    return torch.where(at.in_both, torch.exp(at.p) * (at.p - at.q), 0.0)


def surprise(at: Logs) -> Tensor:
    r"""$-p \log q$, 0 where either vanishes."""
    return torch.where(at.in_both, -torch.exp(at.p) * at.q, 0.0)


def tsallis_excess(at: Logs, alpha: float) -> Tensor:
    r"""$(p^\alpha q^{1-\alpha} - p)/(\alpha - 1)$: no digits are lost as alpha tends to 1.

    Where q vanishes and p does not it is 0 in place of infinity at alpha above 1.
    """
    slope = alpha - 1
    alone = torch.exp(at.p) / -slope if slope < 0 else torch.zeros_like(at.p)
    alone = torch.where(at.in_p, alone, 0.0)
    return torch.where(at.in_both, _gap(at.p, at.p - at.q, slope), alone)


def bregman_excess(at: Logs, alpha: float) -> Tensor:
    r"""$p\,(\log_{2-\alpha} p - \log_{2-\alpha} q) - (p^\alpha - q^\alpha)/\alpha$ at alpha > 1."""
    slope, ratio = alpha - 1, at.p - at.q
    both = _gap(at.p + slope * at.q, ratio, slope) - _gap(alpha * at.q, ratio, alpha)
    only_p = torch.where(at.in_p, torch.exp(alpha * at.p) / (alpha * slope), 0.0)
    only_q = torch.where(at.in_q, torch.exp(alpha * at.q) / alpha, 0.0)
    return torch.where(at.in_both, both, only_p + only_q)


def _gap(log: Tensor, ratio: Tensor, rate: float) -> Tensor:
    r"""$e^{log} (e^{rate\,ratio} - 1)/rate$, to all digits and without overflow."""
    near = (rate * ratio).abs() < 1
    small = torch.where(near, ratio, 0.0)
    base = torch.exp(log.clamp(max=_LARGE))
    far = (torch.exp((log + rate * ratio).clamp(max=_LARGE)) - base) / rate
    return torch.where(near, base * small * expm1_ratio(rate * small), far)
