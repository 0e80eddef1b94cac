"""Samples of kernel families, and their escorts."""

from typing import Any, ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import constraints
from torch.types import _size

from ..numerics.truncated_power import Power, integrals
from ..supports import IntervalUnion, Region
from .kernel_line import KernelLine
from .kernel_power import Parts
from .kernel_rejection import draw_by_rejection
from .once import once

__all__ = ["KernelFamily"]


class KernelFamily(KernelLine):
    """A kernel family with everything that a density here has."""

    _per_batch: ClassVar[tuple[str, ...]] = (
        *("_scores", "_scores_detached", "_parts", "_parts_detached"),
        *("_intervals", "_intervals_detached"),
    )

    def __init__(self, *arguments: Any) -> None:
        if torch.jit.is_tracing():  # type: ignore[attr-defined]
            raise RuntimeError(
                "torch.jit cannot trace kernel densities, whose nodes follow from values; "
                "use torch.compile, with panels of a density made before"
            )
        super().__init__(*arguments)

    @classmethod
    def infer_shapes(cls, **arg_shapes: _size) -> tuple[Size, Size]:
        """Batch and event shape for shapes of the tensor arguments, given by name; for Pyro."""
        points, weights = arg_shapes["inducing_points"], arg_shapes["weights"]
        batches = weights[:-1], points[:-2], arg_shapes.get("alpha", Size())
        dim = points[-1] if len(points) > 1 else 1
        return torch.broadcast_shapes(*batches), Size([dim] if dim > 1 else [])

    @constraints.dependent_property(is_discrete=False)
    def support(self) -> constraints.Constraint:
        """The exact union of intervals; of vectors what tells inside from outside."""
        if self.event_shape:
            return Region(self._is_inside, len(self.event_shape))
        return IntervalUnion(self._intervals)

    def _is_inside(self, value: Tensor) -> Tensor:
        return self.log_prob(value) > -float("inf")

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether `rsample` exists: of numbers, where every support is one interval.

        Over a gap the derivative of the quantile function misses how mass moves across;
        `rsample_components` is exact.
        """
        return not self.event_shape and self._intervals.shape[-2] == 1

    def rsample(self, sample_shape: _size = Size()) -> Tensor:
        """Samples with derivatives in the parameters, by the quantile function.

        Raises:
            NotImplementedError: Supports of several intervals, and vectors.
        """
        if not self.has_rsample:
            raise NotImplementedError(
                "rsample exists for numbers whose support is one interval; use rsample_components "
                "over several, and sample for vectors"
            )
        return self._attached(self.sample(sample_shape))

    @torch.no_grad()
    def sample(self, sample_shape: _size = Size()) -> Tensor:
        """Samples (*sample, *batch, *event): by quantiles, of vectors by rejection.

        Draws are independent also of vectors: their effective sample size is their number. The
        envelope under which those are drawn is estimated from the nodes, and raised where a
        proposal is found above it.

        Raises:
            RuntimeError: A density of vectors that is much narrower than the nodes are apart.
        """
        if self.event_shape:
            return draw_by_rejection(self, Size(sample_shape))
        shape = self._extended_shape(Size(sample_shape))
        level = torch.rand(shape, dtype=self.weights.dtype, device=self.weights.device)
        return self._quantiles(level)

    def rsample_components(self, sample_shape: _size = Size()) -> tuple[Tensor, Tensor]:
        r"""A draw from every interval of the support, and the interval's mass.

        Both are differentiable: $\sum_k m_k \phi(t_k)$ has the mean $E_p[\phi]$ and the right
        gradient, also over gaps, where that of a plain sample is biased.

        Returns:
            Draws (*sample, *batch, K) and masses (*batch, K), 0 where there are fewer intervals.

        Raises:
            NotImplementedError: Vectors.
        """
        if self.event_shape:
            raise NotImplementedError("rsample_components exists for numbers only")
        lower, upper = self._intervals.unbind(-1)
        present = ~lower.isnan()
        ends = [torch.where(present, end, end[..., :1]).movedim(-1, 0) for end in (lower, upper)]
        before, after = (self.cdf(end) for end in ends)  # (K, *batch)
        masses = torch.where(present.movedim(-1, 0), after - before, 0.0)
        shape = Size([*sample_shape, *before.shape])
        share = torch.rand(shape, dtype=before.dtype, device=before.device)
        with torch.no_grad():
            t = self._quantiles(before + share * (after - before))
            t = torch.minimum(torch.maximum(t, ends[0]), ends[1])
        # At a fixed share of its own component: d[F(t) - F(a)] = share d[F(b) - F(a)].
        drift = before + share * (after - before)
        t = self._attached(t, drift)
        return t.movedim(len(sample_shape), -1), masses.movedim(0, -1)

    def escort(self, beta: Tensor | float | None = None) -> "KernelFamily":
        r"""The $\beta$-escort $p^\beta/\int p^\beta$, relative to the base; default $2 - \alpha$.

        At alpha = 2 the default is the base, restricted to the support.

        Raises:
            ValueError: `beta` no number, negative or infinite.

        References:
            Martins et al. (2020), Sparse and Continuous Attention Mechanisms, eq. 5.
        """
        if beta is not None and float(beta) == 1:
            return self
        return KernelEscort(self, self._escort_power(beta))


class KernelEscort(KernelFamily):
    """An escort of a density of a kernel family; made by its `escort`.

    Args:
        parent: The density.
        power: The power of which it is an escort.
    """

    def __init__(self, parent: KernelFamily, power: Power) -> None:
        self._parent, self._escorted = parent, power
        alpha = 1 + 1 / torch.as_tensor(power.exponent, dtype=parent.weights.dtype)
        super().__init__(
            parent.weights,
            parent.inducing_points,
            parent.kernel,
            parent.base,
            alpha.reshape(parent.batch_shape) if isinstance(power.eps, Tensor) else alpha.item(),
            None,
            parent.panels,
            parent._validation,
        )

    @property
    def _power(self) -> Power:
        return self._escorted

    @once
    def _parts(self) -> Parts:
        level = self._parent._parts.level
        offsets = self._scores_on(self.panels) - level
        weights, lowered = integrals(offsets, self._measure(self.panels), self._power, "power lowered")
        return Parts(level, weights, weights.sum((0, 1)), lowered)
