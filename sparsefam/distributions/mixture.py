"""Mixtures of densities, whatever their classes and supports."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any, ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily, constraints
from torch.distributions.constraints import Constraint
from torch.types import _size
from typing_extensions import Self

from .._numerics.modes import compiled
from .._numerics.quadrature import line_integral, piecewise_integral
from .._numerics.roots import attach_root_gradient, increasing_root
from .._numerics.validation import broadcast_shapes, map_tensors, require_shape, saturated
from ..bases import Basis, Polynomial, Stack
from ..supports import AnyOf, IntervalUnion, RealLine, unnormalized
from ._line.panels import Panels, argmax, on_line
from ._torch_adapter import (
    WRAPPERS,
    dtype_of,
    is_discrete,
    wrap,
)
from .base import SparseDistribution
from .categorical import SparseCategorical
from .symmetric import SymmetricDistribution
from .univariate import Geometry, Univariate

__all__ = ["Mixture", "log_weights", "separate_cuts"]

_NO_RSAMPLE = (
    "rsample needs univariate components, and a support of one interval: use rsample_components"
)
# Shift from one density to the next that separates cuts, relative to the scale of each.
_SHIFT = 2.0**-42


class Mixture(Univariate):
    r"""Weighted sum of densities, whose support is the union of theirs.

    $$p(t) = \sum_k \pi_k\, p_k(t), \qquad \pi = \mathrm{softmax}(\mathrm{logits})$$

    Components may differ in class and support, and may be distributions of torch. Where all of them
    vanish `log_prob` is -inf with a zero gradient, and validation does not raise.

    A sample from one component has no derivative in the weights, and none across a gap in the
    support. `rsample`, by implicit differentiation of the distribution function, is therefore
    correct only for univariate mixtures whose support is one interval; elsewhere `has_rsample` is
    false. `rsample_components`, one sample and one mass for each component, always gives unbiased
    gradients.

    Components of torch need no more than `log_prob`, `support` and `sample`.

    Equivalent to `torch.distributions.MixtureSameFamily(Categorical(logits=logits), components)`,
    whose components have one class.

    Args:
        logits: Unnormalized log weights (*batch, K), -inf for a weight of zero; or a categorical
            distribution.
        components: A distribution with batch shape (*batch, K), or a sequence of K distributions.
            The batches broadcast.
        validate_args: As in torch.distributions.

    Attributes:
        components: As passed; of a part of the batch, densities of this package.
        logits: Log weights (*batch, K), up to a constant.

    Raises:
        ValueError: `logits` NaN, infinite or -inf for all components, or of another K than the
            components; components that are not continuous distributions of one event shape; batches
            that do not broadcast.

    References:
        Farinhas et al. (2021), Multimodal Continuous Visual Attention Mechanisms, sec. 3.
        arXiv:2104.03046. Figurnov et al. (2018), Implicit Reparameterization Gradients.
        arXiv:1805.08498

    Examples:
        >>> from sparsefam import TruncatedParabola
        >>> p = Mixture(torch.zeros(2), TruncatedParabola(torch.tensor([0.0, 3.0]), 1.0))
        >>> p.support.intervals
        tensor([[-1.,  1.],
                [ 2.,  4.]])
        >>> p.prob(torch.tensor([0.0, 1.5]))
        tensor([0.3750, 0.0000])
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {"logits": unnormalized}

    def __init__(
        self,
        logits: Tensor | Categorical | SparseCategorical,
        components: Distribution | Sequence[Distribution],
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.components = components
        batched, members = isinstance(components, Distribution), _members(components)
        self._dtype = reduce(torch.promote_types, [dtype_of(p) for p in members])
        weights = log_weights(logits)
        batch, count = _common_batch(weights, members, batched)
        # The members as densities whose last batch axis counts components: one density with all K,
        # or K with one each. They do not check values, as the mixture does.
        wrapped = [wrap(p)._replace(_validate_args=False) for p in members]
        self._densities: list[Any] = wrapped if batched else [p[..., None] for p in wrapped]
        self.logits: Tensor = weights.expand(*batch, count)
        SparseDistribution.__init__(self, batch, members[0].event_shape, validate_args)

    @property
    def probs(self) -> Tensor:
        """Weights of the components (*batch, K)."""
        # Torch's softmax is slow over a short last axis.
        return torch.softmax(self.logits.movedim(-1, 0), 0).movedim(0, -1)

    def _map(self, change: Callable[[Any, Size], Any], batch_shape: Size) -> Self:
        # The axis of components is an event, which stays behind the axes of the batch.
        components = [change(p, p.batch_shape[-1:]) for p in self._densities]
        return super()._map(change, batch_shape)._replace(_densities=components)

    def expand(self, batch_shape: _size, _instance: SparseDistribution | None = None) -> Self:
        # Densities of components stay as they are: their batches broadcast.
        shape = require_shape("batch_shape", batch_shape, self.batch_shape)
        return self._replace(shape, logits=self.logits.expand(*shape, -1))

    def __getitem__(self, index: Any) -> Self:
        expanded = [self._expanded(p) for p in self._densities]
        new = SparseDistribution.__getitem__(self._replace(_densities=expanded), index)
        batched = isinstance(self.components, Distribution)
        components = new._densities[0] if batched else [p[..., 0] for p in new._densities]
        return new._replace(components=components)

    def detach(self) -> Self:
        return super().detach()._replace(components=map_tensors(self.components, Tensor.detach))

    def to_float64(self) -> Self:
        return super().to_float64()._replace(_dtype=torch.float64)

    # Values of the components have an axis of K after the batch.

    def _values(self, function: Callable[[Any], Tensor], rank: int = 0) -> Tensor:
        """Return a function of each component (*batch, K, *shape), in the type of the mixture.

        Args:
            function: From a member (*batch, K') to values (*batch, K', *shape).
            rank: Number of axes in shape.
        """
        return _concatenate([function(p).to(self._dtype) for p in self._densities], -1 - rank)

    def _values_at(self, function: Callable[..., Tensor], value: Tensor, *more: Tensor) -> Tensor:
        """Return a function of each component at given locations (*sample, *batch, K).

        Args:
            function: From a member (*batch, K'), and the arguments below with an axis for
                components after the batch, to values (*sample, *batch, K').
            value: Locations (*sample, *batch, *event).
            more: Further arguments (*sample, *batch).
        """
        dtype = torch.promote_types(self._dtype, value.dtype)
        value = value.unsqueeze(-1 - len(self.event_shape))
        arguments = (value, *(x.unsqueeze(-1) for x in more))
        return _concatenate([function(p, *arguments).to(dtype) for p in self._densities], -1)

    def _rows(self, function: Callable[[Any], Tensor]) -> Tensor:
        """Return rows of all components (*batch, J_1 + ... + J_K, *shape), NaN where weights are 0.

        Args:
            function: From a member (*batch, K') to its rows (*batch, K', J, *shape), such as its
                intervals or cuts.
        """
        blocks, axis = [], len(self.batch_shape)
        for component, present in self._with_columns(self.logits.detach() > -math.inf):
            rows = function(component).to(self._dtype)
            shape = rows.shape[len(component.batch_shape) :]
            rows = rows.expand(present.shape + shape)
            rows = torch.where(present.reshape(*present.shape, *(1,) * len(shape)), rows, torch.nan)
            blocks.append(rows.flatten(axis, axis + 1))
        return torch.cat(blocks, axis)

    def _with_columns(self, table: Tensor) -> list[tuple[Any, Tensor]]:
        """Return pairs of a member and its columns (*batch, K') of a table (*batch, K).

        A single member has all columns, and each of several members has one.
        """
        columns = table.split(table.shape[-1] // len(self._densities), -1)
        return list(zip(self._densities, columns, strict=True))

    def _expanded(self, component: SparseDistribution) -> Any:
        """Return a member with the batch of the mixture, and the axis of its components."""
        return component.expand(self.batch_shape + component.batch_shape[-1:])

    def _average(self, values: Tensor, rank: int = 0) -> Tensor:
        """Return the weighted sum (*batch, *shape) of values of the components.

        Args:
            values: Values (*batch, K, *shape).
            rank: Number of axes in shape.
        """
        # The value of a component with a weight of zero does not count, even infinite or NaN.
        weights = self.probs.reshape(*self.logits.shape, *(1,) * rank)
        return (weights * torch.where(weights > 0, values, 0.0)).sum(-1 - rank)

    def _deviations(self, values: Tensor, rank: int = 0) -> Tensor:
        """Return values (*batch, K, *shape) less their average, 0 for a component without weight.

        Args:
            values: Values (*batch, K, *shape).
            rank: Number of axes in shape.
        """
        values = values - self._average(values, rank).unsqueeze(-1 - rank)
        # An infinite value without a weight would have NaN derivatives.
        present = (self.probs > 0).reshape(*self.logits.shape, *(1,) * rank)
        return torch.where(present, values, 0.0)

    @constraints.dependent_property(is_discrete=False)
    def support(self) -> Constraint:
        """The union of the supports of the components with a weight."""
        if not self.event_shape:
            if self._is_unbounded:
                return RealLine(self._like)
            rows = self._rows(lambda p: p._intervals())
            return IntervalUnion.merged(rows, self.log_prob)
        supports: list[Any] = [p.support for p in self._densities]
        if all(support == constraints.real_vector for support in supports):
            return constraints.real_vector
        return AnyOf(supports, batched=True, present=self.logits > -math.inf)

    @property
    def _is_unbounded(self) -> bool:
        return not self.event_shape and all(p._is_unbounded for p in self._densities)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether `rsample` exists: of univariate mixtures whose support is one interval."""
        return self.has_cdf and (self._is_unbounded or bool(self._is_connected.all()))

    @property
    def has_cdf(self) -> bool:
        """Whether `cdf` and `icdf` exist: of univariate mixtures."""
        return not self.event_shape

    @property
    def _is_connected(self) -> Tensor:
        """Which supports (*batch) are one interval."""
        return self._intervals()[..., 1:, :].isnan().all(-1).all(-1)

    @property
    def mean(self) -> Tensor:
        """Mean (*batch, *event)."""
        rank = len(self.event_shape)
        return self._average(self._values(lambda p: p.mean, rank), rank)

    @property
    def variance(self) -> Tensor:
        """Variance (*batch, *event)."""
        # The law of total variance: E[Var(t | k)] + Var(E[t | k]).
        rank = len(self.event_shape)
        offset = self._deviations(self._values(lambda p: p.mean, rank), rank)
        return self._average(self._values(lambda p: p.variance, rank) + offset.square(), rank)

    @property
    def covariance_matrix(self) -> Tensor:
        """Covariance matrix (*batch, D, D) of a multivariate mixture."""
        if not self.event_shape:
            raise NotImplementedError("covariance_matrix exists for multivariate mixtures only")
        offset = self._deviations(self._values(lambda p: p.mean, 1), 1)
        between = offset.unsqueeze(-1) * offset.unsqueeze(-2)
        return self._average(self._values(lambda p: p.covariance_matrix, 2) + between, 2)

    @property
    def mode(self) -> Tensor:
        """Where the density is highest (*batch, *event), without gradient.

        A univariate mixture is searched on its whole support. A multivariate one returns the best
        of its components' modes; where components overlap the density may be higher between them.
        """
        with torch.no_grad():
            if not self.event_shape:
                exact = self.to_float64()
                return argmax(exact.prob, exact._cuts()).to(self._dtype)
            modes = self._values(lambda p: p.mode, 1).expand(*self.logits.shape, -1)
            best = self.prob(modes.movedim(-2, 0)).argmax(0)
            return modes.take_along_dim(best[..., None, None], -2).squeeze(-2)

    def _cuts(self) -> Tensor:
        """Return locations (*batch, J) between which the density is smooth."""
        return self._rows(lambda p: p._cuts())

    def _breakpoints(self) -> Tensor:
        return self._rows(lambda p: p._breakpoints())

    def geometry(self) -> Geometry:
        """Return the ends of the support, and the breakpoints of all components."""
        if self._is_unbounded:
            return Geometry(None, None, self._breakpoints())
        ends = self._intervals().flatten(-2)
        low, high = (torch.where(ends.isnan(), x, ends) for x in (math.inf, -math.inf))
        return Geometry(low.amin(-1), high.amax(-1), self._breakpoints())

    @property
    def _panels(self) -> Panels:
        return on_line(self.log_prob, self._cuts(), self._ends())

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density at values (..., *event).

        It is -inf with zero gradient off the support.
        """
        self._check_value(value)
        return self._log_sum(self._values_at(lambda p, t: p.log_prob(t), value))

    def _log_sum(self, terms: Tensor) -> Tensor:
        """Return the logarithm of the weighted sum of exponentials of terms (..., *batch, K)."""
        terms = terms + self.logits.log_softmax(-1)
        # An infinite density without a weight does not count.
        terms = torch.where(self.logits > -math.inf, terms, -math.inf)
        # torch.logsumexp has NaN derivatives where all terms are -inf or one is infinite.
        bound = torch.finfo(terms.dtype).max
        largest = terms.detach().amax(-1)
        shift = largest.clamp(-bound, bound)
        total = torch.exp(terms.clamp(max=bound) - shift.unsqueeze(-1)).sum(-1)
        finite = largest.isfinite()
        return torch.where(finite, torch.where(finite, total, 1.0).log() + shift, largest)

    def _tail(self, value: Tensor, upper: Tensor, log: bool = False) -> Tensor:
        if log:
            logs = self._values_at(lambda p, t, side: p._log_tail(t, side), value, upper)
            return self._log_sum(logs)
        return self._average(self._values_at(lambda p, t, side: p._tail(t, side), value, upper))

    def _interval(self, a: Tensor, b: Tensor, log: bool = False) -> Tensor:
        masses = self._values_at(lambda p, a, b: p._interval(a, b, log), a, b)
        return self._log_sum(masses) if log else self._average(masses)

    def _moment_about(self, n: int, center: Tensor) -> Tensor:
        return self._average(
            self._values(lambda p: self._expanded(p)._moment_about(n, center.unsqueeze(-1)))
        )

    def _quantile(self, value: Tensor) -> Tensor:
        """Return quantiles of probabilities (..., *batch), roots of an equation for a tail."""
        value = value * torch.ones_like(self._like)
        inside = (value > 0) & (value < 1)
        level = torch.where(inside, value, 0.5)
        upper = level > 0.5
        # The equation for the smaller tail, in which no digits cancel.
        excess = self._excess(torch.where(upper, 1 - level, level), upper)
        ends = self._intervals()
        with torch.no_grad():
            # A quantile of the mixture lies between the least and the largest of the components'.
            quantiles = self._values_at(lambda q, u: q.icdf(u), level)
            present = self.logits > -math.inf
            low, high = (torch.where(present, quantiles, end) for end in (math.inf, -math.inf))
            t = increasing_root(excess, low.amin(-1), high.amax(-1))
            t = _move_to_support(t, ends, excess(t) >= 0)
        t = self._attach(t, excess)
        first, last = ends[..., 0, 0], torch.where(ends.isnan(), -math.inf, ends)[..., 1].amax(-1)
        return torch.where(inside, t, torch.where(value <= 0, first, last))

    def _excess(self, goal: Tensor, upper: Tensor) -> Callable[[Tensor], Tensor]:
        """Return an increasing function of t that is zero where a tail has a given mass.

        Args:
            goal: The mass (..., *batch).
            upper: Whether the tail above t is meant (..., *batch).
        """
        sign = 1 - 2 * upper.to(goal.dtype)

        def excess(t: Tensor) -> Tensor:
            return sign * (self._tail(t, upper) - goal)

        return excess

    def _attach(self, t: Tensor, excess: Callable[[Tensor], Tensor]) -> Tensor:
        """Return quantiles with the derivatives of the equation that they solve.

        Args:
            t: Quantiles (..., *batch), whose values stay.
            excess: The equation, as from `_excess`.
        """
        moved = attach_root_gradient(t, excess, self.prob)
        return t.detach() + (moved - moved.detach())

    def _draw(self, sample_shape: Size) -> Tensor:
        """Return samples (*sample, *batch, *event), each from a component drawn by its weight."""
        rank = len(self.event_shape)
        # A draw of each component (*sample, *batch, K, *event), of which one is selected.
        table = torch.cat(
            [self._expanded(p).sample(sample_shape) for p in self._densities], -1 - rank
        )
        shape = table.shape[: table.dim() - rank - 1]
        rows = self.probs.expand(*shape, -1).reshape(shape.numel(), self.logits.shape[-1])
        index = torch.multinomial(rows, 1).reshape(*shape, 1, *(1,) * rank)
        return table.take_along_dim(index, -1 - rank).squeeze(-1 - rank)

    def rsample(self, sample_shape: _size = Size()) -> Tensor:
        """Draw samples (*sample, *batch), differentiable in weights and components.

        Raises:
            NotImplementedError: `has_rsample` is false.
        """
        if compiled() and self.has_cdf and not self._is_unbounded:
            torch._assert_async(self._is_connected.all(), _NO_RSAMPLE)  # cannot branch on values
        elif not self.has_rsample:
            raise NotImplementedError(_NO_RSAMPLE)
        return self._attach_sample(self.sample(sample_shape))

    def _attach_sample(self, t: Tensor) -> Tensor:
        """Return samples (*sample, *batch) with the derivatives of quantiles."""
        with torch.no_grad():
            upper = self._tail(t, torch.zeros_like(t, dtype=torch.bool)) > 0.5
            goal = self._tail(t, upper)
        # Detached, as torch.jit ignores no_grad when it replays a trace.
        return self._attach(t, self._excess(goal.detach(), upper))

    def rsample_components(self, sample_shape: _size = Size()) -> tuple[Tensor, Tensor]:
        r"""Draw a sample from each component, and return it with its mass, both differentiable.

        $\sum_k m_k\, g(t_k)$ is an unbiased estimate of $E_p[g]$, and so are its derivatives,
        whatever the supports.

        Args:
            sample_shape: Shape of the samples.

        Returns:
            Samples (*sample, *batch, K, *event) and masses (*batch, K); more than K of them if a
            component is itself made of pieces.

        Raises:
            NotImplementedError: A component has no differentiable samples.
        """
        rank = len(self.event_shape)
        samples, masses = [], []
        for component, weight in self._with_columns(self.probs):
            p = self._expanded(component)
            if p.has_rsample:
                draws, piece_masses = p.rsample(sample_shape), torch.ones_like(weight)
                draws, piece_masses = draws.unsqueeze(-1 - rank), piece_masses.unsqueeze(-1)
            elif hasattr(p, "rsample_components"):
                draws, piece_masses = p.rsample_components(sample_shape)
            else:
                raise NotImplementedError(f"{p} has no differentiable samples")
            samples.append(draws.flatten(-2 - rank, -1 - rank))
            masses.append((weight.unsqueeze(-1) * piece_masses).flatten(-2))
        return torch.cat(samples, -1 - rank), torch.cat(masses, -1)

    def entropy(self) -> Tensor:
        """Return the Shannon entropy (*batch) by quadrature.

        Mixtures of vectors are integrated at the nodes of `quadrature`, symmetric components of
        numbers by one rule between their cuts, others adaptively.
        """
        if self.event_shape:
            nodes, weights = self.quadrature()
            log_p = self.log_prob(nodes)
            # The derivative of 0 log 0 would be infinite.
            return -(weights * torch.where(log_p.isfinite(), log_p, 0.0)).sum(0)
        (p,) = separate_cuts(self.to_float64())

        def integrand(t: Tensor) -> Tensor:
            # -p log p, with 0 where p is 0 or infinite: a value and a derivative of 0.
            values = p._average(p._values_at(lambda q, x: q.prob(x), t))
            finite = (values > 0) & values.isfinite()
            values = torch.where(finite, values, 1.0)
            return -values * values.log()

        simple = all(isinstance(component, SymmetricDistribution) for component in p._densities)
        integral = piecewise_integral if simple else line_integral
        return integral(integrand, p._cuts()).to(self._like.dtype)

    def quadrature(self, order: int = 64) -> tuple[Tensor, Tensor]:
        r"""Return nodes (Q, *batch, *event) and weights (Q, *batch) of the components' rules."""
        rules, axis = [], len(self.batch_shape) + 1
        for component, weight in self._with_columns(self.probs):
            nodes, weights = self._expanded(component).quadrature(order)
            pair = saturated(nodes, self._dtype), weights.to(self._dtype) * weight
            rules.append([x.movedim(axis, 1).flatten(0, 1) for x in pair])
        nodes, weights = (torch.cat(x) for x in zip(*rules, strict=True))
        return nodes, weights

    def _expect_basis(self, psi: Basis, order: int) -> Tensor:
        return self._average(self._values(lambda p: p.expect(psi, order), 1), 1)

    def _beta_covariance(self, phi: Basis, psi: Basis, beta: Tensor | float | None) -> Tensor:
        r"""Return $\sum_k \pi_k [\mathrm{Cov}_k + (m_k - m)(n_k - n)']$, (*batch, M, N)."""
        self.escort(beta)  # raises an error for a beta other than 1
        f, g = self._basis_deviations(phi), self._basis_deviations(psi)
        within = self._values(lambda q: q.generalized_covariance(phi, psi, 1.0), 2)
        return self._average(within, 2) + (self.probs.unsqueeze(-1) * f).mT @ g

    def _basis_deviations(self, psi: Basis) -> Tensor:
        """Return the components' expectations less the mixture's, (*batch, K, N)."""
        if isinstance(psi, Stack):
            return torch.cat([self._basis_deviations(basis) for basis in psi.bases], -1)
        # Powers far from 0 agree in most digits of float32.
        p = self.to_float64() if isinstance(psi, Polynomial) else self
        means = p._values(lambda q: q.expect(psi), 1)
        return p._deviations(means, 1).to(self._like.dtype)


def _of_torch(p: Any) -> Mixture:
    """Return a mixture of torch as one of this package, which knows where its peaks are."""
    return Mixture(p.mixture_distribution, p.component_distribution, validate_args=False)


WRAPPERS[MixtureSameFamily] = _of_torch


def _members(components: Distribution | Sequence[Distribution]) -> list[Distribution]:
    """Return one distribution, or a sequence of them, as a list, or raise ValueError."""
    given: Any = [components] if isinstance(components, Distribution) else components
    fits = isinstance(given, Sequence) and all(isinstance(p, Distribution) for p in given)
    if not fits or not given:
        raise ValueError(
            "components must be a distribution with batch shape (*batch, K), or a sequence of K "
            f"distributions, got {components!r}"
        )
    members = list(given)
    shapes = sorted({tuple(p.event_shape) for p in members})
    if len(shapes) > 1:
        raise ValueError(f"components must have one event shape, got {shapes}")
    for p in members:
        if is_discrete(p):
            raise ValueError(f"components must be continuous, got {type(p).__name__}")
    return members


def _common_batch(logits: Tensor, members: list[Distribution], batched: bool) -> tuple[Size, int]:
    """Return the batch shape of a mixture and the number of its components.

    Args:
        logits: Log weights (*batch, K).
        members: The components: one distribution with batch (*batch, K), or K distributions.
        batched: Whether there is one distribution.

    Raises:
        ValueError: Another number of components than of weights; batches that do not broadcast.
    """
    batches = [p.batch_shape for p in members]
    if batched and not (batches[0] and batches[0][-1]):
        shape = tuple(batches[0])
        raise ValueError(f"components must have batch shape (*batch, K >= 1), got {shape}")
    count = batches[0][-1] if batched else len(members)
    if logits.shape[-1] != count:
        raise ValueError(
            f"logits must have shape (*batch, K) for K = {count} components, got "
            f"{tuple(logits.shape)}"
        )
    batches = [logits.shape[:-1], *([batches[0][:-1]] if batched else batches)]
    try:
        return broadcast_shapes(*batches), count
    except RuntimeError:
        expected, *others = map(tuple, batches)
        rule = f"have batches that broadcast with that of logits {expected}"
        raise ValueError(f"components must {rule}, got {others}") from None


def _concatenate(values: list[Tensor], dim: int) -> Tensor:
    """Return values of the members, broadcast and concatenated along the axis of components."""
    # There is one member, or each has one component, so that the axis broadcasts, too.
    return torch.cat(torch.broadcast_tensors(*values), dim)


def log_weights(logits: Tensor | Categorical | SparseCategorical) -> Tensor:
    """Return log weights (*batch, K) from a tensor or a categorical distribution.

    Raises:
        ValueError: Neither a real tensor of at least one axis nor a categorical distribution.
    """
    if isinstance(logits, SparseCategorical):
        return logits._log_probs()
    if isinstance(logits, Categorical):
        if "probs" not in vars(logits):
            return logits.logits
        # Its own logits are clamped: a weight of zero would become a rounding error.
        alive = logits.probs > 0
        return torch.where(alive, torch.where(alive, logits.probs, 1.0).log(), -math.inf)
    if not isinstance(logits, Tensor) or logits.dim() < 1 or logits.is_complex():
        raise ValueError(
            "logits must be a real tensor (*batch, K) or a categorical distribution, got "
            f"{logits!r}"
        )
    return logits if logits.is_floating_point() else logits.to(torch.get_default_dtype())


def separate_cuts(*densities: Any) -> list[Any]:
    """Return float64 densities with their centers moved apart by a thousand rounding errors.

    An integral between cuts that move with the parameters has a wrong second derivative where two
    of them coincide, such as a center and an edge: nodes in the empty piece between them lie on
    the wrong side of one of the two. After a constant shift of each symmetric density, by a
    different multiple of 2e-13 of its scale, no two coincide.
    """
    index = itertools.count()
    return [_shifted(p, index) for p in densities]


def _shifted(p: Any, index: Iterator[int], counts_components: bool = False) -> Any:
    """Return a density with moved centers: of a symmetric density, or in a mixture.

    Each center moves by `_SHIFT` times an index and its scale, which counts as a constant.

    Args:
        p: A density, returned as it is unless it is symmetric or a mixture.
        index: Counter of the densities that have been moved.
        counts_components: Whether the last axis of the batch counts components, each with an index.
    """
    if isinstance(p, Mixture):
        return p._replace(
            _densities=[_shifted(component, index, True) for component in p._densities]
        )
    if not isinstance(p, SymmetricDistribution):
        return p
    count = p.batch_shape[-1] if counts_components else 1
    steps = p.loc.new_tensor([_SHIFT * next(index) for _ in range(count)])
    step = steps if counts_components else steps[0]
    return p._replace(loc=p.loc + step * p.scale.detach())


def _move_to_support(t: Tensor, intervals: Tensor, reached: Tensor) -> Tensor:
    """Return locations, moved out of the gaps between intervals of the support.

    A location in a gap moves to the end of the interval below, or to the beginning of the one
    above: to the number next to it in the interval, as the density may be zero at the end itself.

    Args:
        t: Quantiles (..., *batch), accurate but for gaps.
        intervals: The support (*batch, J, 2), padded with NaN.
        reached: Whether the mass below t is enough (..., *batch), so that it moves down.
    """
    lower, upper = intervals.detach().unbind(-1)
    at = t.unsqueeze(-1)
    inside = ((lower <= at) & (at <= upper)).any(-1)
    last, first = torch.nextafter(upper, lower), torch.nextafter(lower, upper)
    below = torch.where(upper <= at, last, -math.inf).amax(-1)
    above = torch.where(lower >= at, first, math.inf).amin(-1)
    down = (reached & below.isfinite()) | ~above.isfinite()
    return torch.where(inside, t, torch.where(down, below, above))
