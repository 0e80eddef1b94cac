"""Densities with an atom at zero."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.constraints import Constraint

from .._numerics.special import log_positive
from ._atoms import MixedDistribution
from ._torch_adapter import exact_base
from .base import SparseDistribution

__all__ = ["Hurdle"]


class Hurdle(MixedDistribution):
    r"""Exactly zero with a probability, else a draw of a univariate density.

    $$P(t = 0) = g,\quad p(t) = (1 - g)\,q(t)\;\text{elsewhere}$$

    For rain, doses and visits. `log_prob` is the log mass at 0, elsewhere a log density; entropies
    sum the mass and integrate the density. Values are computed in float64. `rsample` exists where
    the support with 0 is one interval, and is right for functions that are continuous at 0. In
    Pyro it is a likelihood as it stands; `sparsefam.inference.SupportReparam` makes it a latent
    site.

    Args:
        base: The density q (*batch): a continuous univariate distribution of torch or of this
            package. Its value at 0 has no effect.
        gate: g in [0, 1] (*batch).
        validate_args: As in torch.distributions.

    Attributes:
        base: q in float64, with the batch shape of the result.

    Raises:
        ValueError: `base` not a continuous univariate distribution, `gate` outside [0, 1], or
            shapes that do not broadcast.

    Examples:
        >>> p = Hurdle(torch.distributions.Gamma(2.0, 1.0), gate=0.75)
        >>> p.log_prob(torch.tensor([0.0, 1.0])), p.mean
        (tensor([-0.2877, -2.3863]), tensor(0.5000))
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {"gate": constraints.unit_interval}

    def __init__(
        self, base: Distribution, gate: Tensor | float, *, validate_args: bool | None = None
    ) -> None:
        self.base, self.gate = exact_base(base, gate=gate)
        SparseDistribution.__init__(self, self.gate.shape, validate_args=validate_args)

    @property
    def _log_complement(self) -> Tensor:
        """Logarithm of 1 - gate in float64; -inf with zero gradient where it is 0."""
        gate = self.gate.double()
        positive = gate < 1
        return torch.where(positive, torch.log1p(-torch.where(positive, gate, 0.0)), -math.inf)

    def _atoms(self) -> tuple[Tensor, Tensor]:
        log_gate = log_positive(self.gate.double()).unsqueeze(0)
        return torch.zeros_like(log_gate), log_gate

    def _continuous(self) -> tuple[Any, Tensor]:
        return self.base, self._log_complement

    def _intervals(self) -> Tensor:
        inner = self.base._intervals().to(self._like.dtype)
        # The atom as an interval of length 0.
        return torch.cat([inner, torch.zeros_like(inner[..., :1, :])], -2)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log mass at 0, else a log density; -inf with zero gradient off the support."""
        self._check_value(value)
        log_p, log_complement = self.base.log_prob(value), self._log_complement
        inside = (log_p > -math.inf) & (log_complement > -math.inf)
        log_p = torch.where(inside, log_p + log_complement, -math.inf)
        return self._as_given(torch.where(value == 0, self._atoms()[1][0], log_p), value)

    def _tail(self, value: Tensor, upper: Tensor, log: bool = False) -> Tensor:
        """Return the tail of the base times 1 - gate, plus the gate where 0 is in the tail."""
        gate, t, has_atom = self.gate.double(), value.double(), (value >= 0) ^ upper
        if not log:
            tail = (1 - gate) * self.base._tail(t, upper)
            return self._as_given(torch.where(has_atom, gate, 0.0) + tail, value)
        # `bare` is the logarithm of a tail without the atom: this tail if 0 is not in it, else the
        # tail on the other side, whose difference from 1 is accurate where this tail is large.
        bare = self._log_complement + self.base._log_tail(t, upper ^ has_atom)
        bare = torch.where(bare > -math.inf, bare, -math.inf)
        with_atom = gate + (1 - gate) * self.base._tail(t, upper)
        large = has_atom & (with_atom > 0.5)
        log_large = torch.log1p(-torch.where(large, bare, -math.inf).exp())
        with_atom = torch.where(large, log_large, log_positive(with_atom))
        return self._as_given(torch.where(has_atom, with_atom, bare), value)

    def _quantile(self, value: Tensor) -> Tensor:
        """Return quantiles of probabilities (..., *batch): 0, or quantiles of the base."""
        q, gate = value.double() * torch.ones_like(self.gate), self.gate.double()
        zero = torch.zeros_like(gate)
        # Probabilities from `start`, the mass below 0, to start + gate have the quantile 0.
        start = (1 - gate) * self.base._tail(zero, zero > 0)
        below, above = q < start, q > start + gate
        complement = torch.where(gate < 1, 1 - gate, 1.0)
        level = torch.where(above, 1 - (1 - q) / complement, 0.5)
        level = torch.where(below, q / complement, level)
        t = self.base.icdf(level.clamp(0, 1))
        return self._as_given(torch.where(below | above, t, 0.0), value)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether the support of the base is one interval that has 0 in it, or at an end."""
        intervals = self.base._intervals()
        if intervals.is_meta or intervals.shape[-2] > 1:
            return False
        low, high = intervals[..., 0, :].unbind(-1)
        return bool(((low <= 0) & (0 <= high)).all())

    def _from_base(self, t: Tensor) -> Tensor:
        """Return draws of the base, set to 0 with probability gate, differentiable in the gate."""
        gate = self.gate.double()
        nonzero = torch.rand(t.shape, dtype=t.dtype, device=t.device) >= gate
        t = torch.where(nonzero, t, 0.0)
        if not (torch.is_grad_enabled() and gate.requires_grad):
            return t
        # From (1 - gate) F(t) + gate [t >= 0] = u at a fixed probability u:
        # dt/dgate = (F(t) - [t >= 0]) / ((1 - gate) q(t)).
        with torch.no_grad():
            x = torch.where(nonzero, t, 1.0)
            excess = self.base.cdf(x) - (x >= 0).to(x)
            rate = torch.where(nonzero, excess / ((1 - gate) * self.base.prob(x)), 0.0)
        return t + rate * (gate - gate.detach())
