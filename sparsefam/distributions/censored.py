"""Censored densities: the mass beyond an end is moved onto it."""

import math
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.constraints import Constraint

from .._numerics.quadrature import sort_cuts
from .._numerics.validation import require
from ._atoms import MixedDistribution
from ._line.panels import clamp
from ._torch_adapter import exact_base
from .base import SparseDistribution
from .truncated import Truncated

__all__ = ["Censored"]


class Censored(MixedDistribution):
    r"""A univariate density censored at the ends of an interval: the law of its clamped draws.

    $$P(t = a) = \int_{-\infty}^a q,\quad p(t) = q(t)\,[a < t < b],\quad
    P(t = b) = \int_b^\infty q$$

    For measurements that saturate, Tobit regression and clipped actions. `log_prob` is the log mass
    at an end, accurate with its gradients in far tails, the log density of the base between the
    ends, and -inf beyond them. Entropies sum masses and integrate the density. Values are computed
    in float64.

    In Pyro it is a likelihood as it stands. A latent site has no bijection from the line:
    sample the base and clamp, or use `sparsefam.inference.SupportReparam`, which does so by
    `icdf`. `rsample` is right for functions that are continuous at the ends; `log_prob` is not, so
    an ELBO with this law as guide needs `has_rsample_(False)`.

    Args:
        base: The density q (*batch): a continuous univariate distribution of torch or of this
            package.
        low: Lower end a (*batch), learnable; None or -inf for none.
        high: Upper end b (*batch), learnable; None or inf for none.
        validate_args: As in torch.distributions.

    Attributes:
        base: q in float64, with the batch shape of the result.

    Raises:
        ValueError: `base` not a continuous univariate distribution, an end that is NaN, `low` not
            below `high`, an end beyond which the base has no mass, or shapes that do not broadcast.

    Examples:
        >>> p = Censored(torch.distributions.Normal(0.0, 1.0), 0.0)
        >>> p.log_prob(torch.tensor([-1.0, 0.0, 1.0])), p.mean
        (tensor([   -inf, -0.6931, -1.4189]), tensor(0.3989))
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "low": constraints.real,
        "high": constraints.real,
    }

    def __init__(
        self,
        base: Distribution,
        low: Tensor | float | None = None,
        high: Tensor | float | None = None,
        *,
        validate_args: bool | None = None,
    ) -> None:
        low, high = -math.inf if low is None else low, math.inf if high is None else high
        self.base, self.low, self.high = exact_base(base, low=low, high=high)
        SparseDistribution.__init__(self, self.low.shape, validate_args=validate_args)
        if self._validate_args:
            require(self.low < self.high, "low", "below high", (self.low, self.high))
            first, last = self._base_ends()
            rule = "an end beyond which the base has mass"
            require(self.low.isinf() | (self.low > first), "low", rule, self.low)
            require(self.high.isinf() | (self.high < last), "high", rule, self.high)

    def _base_ends(self) -> tuple[Tensor, Tensor]:
        """Return the ends of the support of the base (2 tensors *batch), without gradient."""
        ends = sort_cuts(self.base._intervals().detach().flatten(-2))
        return ends[0], ends[-1]

    def _ends(self) -> tuple[Tensor, Tensor]:
        return self.low.double(), self.high.double()

    def _atoms(self) -> tuple[Tensor, Tensor]:
        """Return the finite ends, 0 for others, and the log masses beyond (2, *batch)."""
        ends, (first, last) = torch.stack(self._ends()), self._base_ends()
        present = ends.isfinite() & torch.stack([ends[0] > first, ends[1] < last])
        # The mass below the lower end, and the mass above the upper one.
        upper = torch.ones_like(present)
        upper[0] = False
        log_masses = self.base._log_tail(torch.where(present, ends, 0.0), upper)
        log_masses = torch.where(present, log_masses, -math.inf)
        return torch.where(ends.isfinite(), ends, 0.0), log_masses

    def _continuous(self) -> tuple[Truncated, Tensor]:
        inner = Truncated(self.base, *self._ends(), validate_args=False)
        return inner, inner._log_mass

    def _intervals(self) -> Tensor:
        low, high = self.low.unsqueeze(-1), self.high.unsqueeze(-1)
        # Intervals beyond an end shrink to that end, which has an atom.
        inner = self.base._intervals().to(low)
        return torch.stack([clamp(x, low, high) for x in inner.unbind(-1)], -1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log mass at an end, and the log density of the base between the ends.

        It is -inf with zero gradient beyond them.
        """
        self._check_value(value)
        t = torch.clamp(value.double(), *(x.detach() for x in self._ends()))
        log_p = self.base.log_prob(t)
        log_p = torch.where((self.low < value) & (value < self.high), log_p, -math.inf)
        for end, log_mass in zip((self.low, self.high), self._atoms()[1], strict=True):
            log_p = torch.where(value == end, log_mass, log_p)
        return self._as_given(log_p, value)

    def _tail(self, value: Tensor, upper: Tensor, log: bool = False) -> Tensor:
        """Return the tail of the base between the ends; beyond them all of the mass, or none."""
        inside = (self.low <= value) & (value < self.high)
        none, every = (-math.inf, 0.0) if log else (0.0, 1.0)
        outside = torch.where((value < self.low) == upper, every, none)
        t = torch.clamp(value.double(), *(x.detach() for x in self._ends()))
        tail = self.base._log_tail(t, upper) if log else self.base._tail(t, upper)
        return self._as_given(torch.where(inside, tail, outside), value)

    def _quantile(self, value: Tensor) -> Tensor:
        return self._as_given(clamp(self.base.icdf(value.double()), *self._ends()), value)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether the base has differentiable samples."""
        return bool(self.base.has_rsample)

    def _from_base(self, t: Tensor) -> Tensor:
        return clamp(t, *self._ends())
