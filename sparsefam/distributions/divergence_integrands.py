"""What divergences integrate, or sum, as functions of two log densities."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..numerics.deformed import expm1_ratio

__all__ = [
    "LARGEST_LOG",
    "Logs",
    "bregman_excess",
    "bregman_gain",
    "kl_excess",
    "surprise",
    "tsallis_excess",
]

# The exponential of more than this is infinite in float64.
LARGEST_LOG = 709.0


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


def bregman_gain(at: Logs, alpha: float) -> Tensor:
    r"""$p\,(p^{\alpha - 1} - q^{\alpha - 1})/(\alpha - 1)$ at alpha > 1: all but what norms add."""
    slope = alpha - 1
    both = _gap(at.p + slope * at.q, at.p - at.q, slope)
    alone = torch.where(at.in_p, _exp(alpha * at.p) / slope, 0.0)
    return torch.where(at.in_both, both, alone)


def bregman_excess(at: Logs, alpha: float) -> Tensor:
    r"""$p\,(\log_{2-\alpha} p - \log_{2-\alpha} q) - (p^\alpha - q^\alpha)/\alpha$ at alpha > 1."""
    both = _gap(alpha * at.q, at.p - at.q, alpha)
    powers = (
        torch.where(inside, _exp(alpha * x) / alpha, 0.0)
        for x, inside in ((at.p, at.in_p), (at.q, at.in_q))
    )
    only_p, only_q = powers
    gain, norms = bregman_gain(at, alpha), torch.where(at.in_both, both, only_p - only_q)
    # Where both overflow their difference is not known.
    return torch.where(gain.isinf() | norms.isinf(), math.inf, gain - norms)


def _exp(log: Tensor) -> Tensor:
    """An exponential that has no gradient where it is infinite."""
    fits = log <= LARGEST_LOG
    return torch.where(fits, torch.exp(torch.where(fits, log, 0.0)), math.inf)


def _gap(log: Tensor, ratio: Tensor, rate: float) -> Tensor:
    r"""$e^{log} (e^{rate\,ratio} - 1)/rate$, to all digits; infinite where a part overflows."""
    fits = torch.maximum(log, log + rate * ratio) <= LARGEST_LOG
    log, ratio = torch.where(fits, log, 0.0), torch.where(fits, ratio, 0.0)
    near = (rate * ratio).abs() < 1
    small = torch.where(near, ratio, 0.0)
    base = torch.exp(log)
    far = (torch.exp(log + rate * ratio) - base) / rate
    found = torch.where(near, base * small * expm1_ratio(rate * small), far)
    return torch.where(fits, found, math.inf)
