"""Densities from functions: everything that a density has, from a log density and its ends."""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.constraints import Constraint

from .._numerics.validation import as_number, broadcast_arguments
from ..supports import finite
from .univariate import Geometry, Univariate

__all__ = ["Density"]


class Density(Univariate):
    r"""The density on an interval that is proportional to the exponential of a function.

    $$p(t) = \frac{e^{f(t)}}{\int_a^b e^f}\,[a \le t \le b]$$

    For people who have a formula and no class: what `scipy.stats.make_distribution`, or a subclass
    of `scipy.stats.rv_continuous`, is for one density, batched and with gradients. Values are
    computed in float64 by quadrature between the breakpoints, on the part of each subinterval where
    the density matters. f must be smooth there; powers of the density above -1/2 at breakpoints and
    finite ends are accurate. A narrow peak needs a breakpoint on it, unless it is the only one.

    The constructor computes the mass and keeps its graph: more than one backward pass through one
    density needs `retain_graph=True`.

    Args:
        log_prob: f, from float64 locations (*sample, *batch), and the parameters by name, to values
            of that shape; -inf where the density is zero. It need not be normalized.
        low: Lower end a (*batch), learnable; the number -inf if there is none.
        high: Upper end b (*batch), learnable; the number inf if there is none.
        breakpoints: Numbers or tensors (*batch), in any order, where f has kinks, jumps or narrow
            peaks. Those outside of the interval have no effect.
        validate_args: As in torch.distributions.
        parameters: Further tensors (*batch), which `log_prob` receives by name in float64 and the
            density has as attributes, so that no name may be one of its own, such as `mean`.
            Gradients reach them, and `expand` and indices apply to them, unlike to tensors that the
            function contains.

    Raises:
        ValueError: `log_prob` not callable, or its values NaN or of another shape; a parameter not
            finite, or named like a member of densities; `low` not below `high`, or an infinite
            tensor; no mass, or one that is infinite, for which two rules differ, or of which 1e-9
            lies too far out for float64; shapes that do not broadcast.

    Examples:
        >>> rate = torch.tensor([1.0, 4.0], requires_grad=True)
        >>> p = Density(lambda t, rate: -rate * t**1.5, 0.0, 2.0, rate=rate)
        >>> p.mean.detach()
        tensor([0.6088, 0.2617])
        >>> p.rsample((1000,)).requires_grad
        True
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "low": constraints.real,
        "high": constraints.real,
    }

    _tensors = {**Univariate._tensors, "_breaks": 1, "_log_mass": 0}

    def __init__(
        self,
        log_prob: Callable[..., Tensor],
        low: Tensor | float,
        high: Tensor | float,
        breakpoints: Sequence[Tensor | float] = (),
        *,
        validate_args: bool | None = None,
        **parameters: Tensor | float,
    ) -> None:
        if not callable(log_prob):
            raise ValueError(f"log_prob must be a function of locations, got {log_prob!r}")
        for name in parameters:
            if name.startswith("_") or name == "alpha" or hasattr(type(self), name):
                rule = "have names that are none of a density's own"
                raise ValueError(f"parameters must {rule}, got {name!r}")
        self._function = log_prob
        self._is_open = as_number(low) == -math.inf, as_number(high) == math.inf
        try:
            places = {f"breakpoints[{i}]": x for i, x in enumerate(breakpoints)}
        except TypeError:
            raise ValueError(f"breakpoints must be a sequence, got {breakpoints!r}") from None
        given = {"low": low, "high": high, **parameters, **places}
        tensors = dict(zip(given, broadcast_arguments(**given), strict=True))
        self.low, self.high = tensors["low"], tensors["high"]
        # Parameters of this density only: the dictionary of the class stays as it is.
        density: Any = self
        density.arg_constraints = {**type(self).arg_constraints}
        for name in parameters:
            density.arg_constraints[name] = finite
            setattr(self, name, tensors[name])
        # An axis of no breakpoints if there are none.
        columns = torch.stack([self.low.detach(), *(tensors[name] for name in places)], -1)
        self._breaks = columns[..., 1:].double()
        super().__init__(self.low.shape, validate_args=validate_args)

    def geometry(self) -> Geometry:
        """Return the ends of the support and the breakpoints."""
        below, above = self._is_open
        return Geometry(None if below else self.low, None if above else self.high, self._breaks)

    def _normalize(self, mass: Tensor) -> None:
        self._log_mass = mass

    def _unnormalized(self, t: Tensor) -> Tensor:
        """Return the values of f (..., *batch) in float64, after a check of their shape."""
        # The instance lists the parameters of the function besides those of the class.
        names = self.arg_constraints.keys() - type(self).arg_constraints.keys()
        values = self._function(t, **{name: getattr(self, name).double() for name in names})
        shape = torch.broadcast_shapes(t.shape, self.batch_shape)
        if not isinstance(values, Tensor) or values.shape not in (shape, t.shape):
            returned = tuple(values.shape) if isinstance(values, Tensor) else repr(values)
            raise ValueError(
                f"log_prob must map locations {tuple(t.shape)} to a tensor of that shape, got "
                f"{returned}"
            )
        return values.double().expand(shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density at `value`; -inf with zero gradient off the support."""
        self._check_value(value)
        inside = (self.low <= value) & (value <= self.high)
        log_q = self._log_q(torch.where(inside, value.double(), self._peak))
        log_p = torch.where(
            inside & (log_q > -math.inf), log_q - cast(Tensor, self._log_mass), -math.inf
        )
        return log_p.to(torch.promote_types(self._like.dtype, value.dtype))
