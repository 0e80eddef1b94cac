"""Where densities of kernel scores are largest."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .kernel import KernelDistribution

__all__ = ["highest_location"]

# How often neighbours are compared, and what is left of their distance each time.
_STEPS, _CLOSER = 40, 0.6


def highest_location(p: "KernelDistribution") -> Tensor:
    """The mode (*batch, *event), by search from the best node."""
    nodes, _ = p.quadrature(1)
    log = p.log_prob(nodes)
    best = log.argmax(0, keepdim=True)
    dim = p._points.shape[-1]
    lifted = nodes if p.event_shape else nodes.unsqueeze(-1)
    t = lifted.gather(0, best.unsqueeze(-1).expand(1, *p.batch_shape, dim))
    width = torch.stack([axis.breaks.diff().amax() for axis in p.panels.axes]).to(t)
    steps = torch.cartesian_prod(*[torch.linspace(-1, 1, 5).to(t)] * dim)
    steps = steps.reshape(-1, *(1,) * len(p.batch_shape), dim)
    for _ in range(_STEPS):
        tried = t + width * steps
        log = p.log_prob(tried if p.event_shape else tried.squeeze(-1))
        best = log.argmax(0, keepdim=True).unsqueeze(-1).expand(1, *p.batch_shape, dim)
        t, width = tried.gather(0, best), width * _CLOSER
    t = t.squeeze(0)
    return t if p.event_shape else t.squeeze(-1)
