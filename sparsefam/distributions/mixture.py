"""Mixtures of densities, whatever their classes and supports."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any, ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import Categorical, Distribution, constraints
from torch.distributions.constraints import Constraint
from torch.types import _size

from ..bases import Basis, Polynomial, Stack
from ..numerics.quadrature import line_integral, sort_cuts
from ..numerics.roots import attach_root_gradient, increasing_root
from ..numerics.validation import broadcast_shapes, copied, require
from ..scores import LogDensity
from ..supports import AnyOf, IntervalUnion, RealLine, unnormalised
from .base import SparseDistribution
from .categorical import SparseCategorical
from .torch_adapter import (
    TorchUnivariate,
    cuts_of,
    dtype_of,
    intervals_of,
    is_discrete,
    is_unbounded,
    tail_of,
    to_float64,
    wrap,
)
from .univariate import SymmetricDistribution

__all__ = ["Mixture", "log_weights", "separate_cuts"]

_NO_RSAMPLE = (
    "rsample needs univariate components with a cdf, and a support of one interval: "
    "use rsample_components"
)
# Locations between two cuts at which the search for a mode starts, and its steps.
_LOCATIONS, _STEPS = 8, 50
_GOLDEN = 0.6180339887498949
# Shift from one density to the next that separates cuts, relative to the scale of each.
_SHIFT = 2.0**-42


class Mixture(SparseDistribution):
    r"""Weighted sum of densities, whose support is the union of theirs.

    $$p(t) = \sum_k \pi_k\, p_k(t), \qquad \pi = \mathrm{softmax}(\mathrm{logits})$$

    Components may differ in class and support, and may be distributions of torch. Where all of them
    vanish `log_prob` is -inf with a zero gradient, and validation does not raise.

    A sample from one component has no derivative in the weights, and none across a gap in the
    support. `rsample`, by implicit differentiation of the distribution function, is therefore
    correct only for univariate mixtures whose support is one interval; elsewhere `has_rsample` is
    false. `rsample_components`, one sample and one mass for each component, always gives unbiased
    gradients.

    Components of torch need `log_prob` and `sample`. `cdf`, `icdf` and `rsample` of the mixture
    need a `cdf` of each of them.

    Args:
        logits: Unnormalised log weights (*batch, K), -inf for a weight of zero; or a categorical
            distribution.
        components: A distribution with batch shape (*batch, K), or a sequence of K distributions.
            The batches broadcast.
        validate_args: As in torch.distributions.

    Attributes:
        components: As passed.
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

    arg_constraints: ClassVar[dict[str, Constraint]] = {"logits": unnormalised}

    def __init__(
        self,
        logits: Tensor | Categorical | SparseCategorical,
        components: Distribution | Sequence[Distribution],
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.components, self.parts = components, _Components(components)
        weights = log_weights(logits)
        batch = _mixture_batch(weights, self.parts)
        self.logits: Tensor = weights.expand(*batch, self.parts.count)
        self.alpha = torch.ones_like(self.logits[..., 0])
        Distribution.__init__(self, batch, self.parts.event_shape, validate_args=validate_args)

    @property
    def probs(self) -> Tensor:
        """Weights of the components (*batch, K)."""
        return torch.softmax(self.logits, -1)

    def _average(self, values: Tensor, rank: int = 0) -> Tensor:
        """Return the weighted sum of values (*batch, K, *shape) with `rank` axes in shape.

        The value of a component with a weight of zero does not count, even infinite or NaN.
        """
        weights = self.probs.reshape(*self.logits.shape, *(1,) * rank)
        return (weights * torch.where(weights > 0, values, 0.0)).sum(-1 - rank)

    def _offsets(self) -> Tensor:
        """Return the components' means less the mixture's (*batch, K, *event)."""
        rank = len(self.event_shape)
        offset = self.parts.map(lambda p: p.mean, rank) - self.mean.unsqueeze(-1 - rank)
        # An infinite mean without a weight would have NaN derivatives.
        return torch.where((self.probs > 0).reshape(*self.logits.shape, *(1,) * rank), offset, 0.0)

    @constraints.dependent_property(is_discrete=False)
    def support(self) -> Constraint:
        """The union of the supports of the components with a weight."""
        present = self.logits > -math.inf
        if not self.event_shape:
            if self._is_unbounded:
                return RealLine(self.alpha)
            return IntervalUnion.merged(self.parts.rows(intervals_of, present))
        supports: list[Any] = [p.support for p in self.parts.parts]
        if all(support == constraints.real_vector for support in supports):
            return constraints.real_vector
        return AnyOf(supports, batched=self.parts.batched, present=present)

    @property
    def _is_unbounded(self) -> bool:
        return all(is_unbounded(p) for p in self.parts.parts)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether `rsample` exists: of univariate mixtures whose support is one interval."""
        return self._has_cdf and (self._is_unbounded or bool(self._is_connected.all()))

    @property
    def _has_cdf(self) -> bool:
        return not self.event_shape and all(
            p.has_cdf for p in self.parts.parts if isinstance(p, TorchUnivariate)
        )

    @property
    def _is_connected(self) -> Tensor:
        """Which supports (*batch) are one interval."""
        return intervals_of(self)[..., 1:, :].isnan().all(-1).all(-1)

    @property
    def score(self) -> LogDensity:
        r"""$f(t) = \log p(t)$, whose softmax is p."""
        return LogDensity(self)

    @property
    def log_normalizer(self) -> Tensor:
        """The normaliser of `score`: 0 (*batch)."""
        return torch.zeros_like(self.alpha)

    @property
    def mean(self) -> Tensor:
        """Mean (*batch, *event)."""
        rank = len(self.event_shape)
        return self._average(self.parts.map(lambda p: p.mean, rank), rank)

    @property
    def variance(self) -> Tensor:
        """Variance (*batch, *event)."""
        rank = len(self.event_shape)
        within = self.parts.map(lambda p: p.variance, rank)
        return self._average(within + self._offsets().square(), rank)

    @property
    def covariance_matrix(self) -> Tensor:
        """Covariance matrix (*batch, D, D) of a multivariate mixture."""
        if not self.event_shape:
            raise NotImplementedError("covariance_matrix exists for multivariate mixtures only")
        within, offset = self.parts.map(lambda p: p.covariance_matrix, 2), self._offsets()
        return self._average(within + offset.unsqueeze(-1) * offset.unsqueeze(-2), 2)

    @property
    def mode(self) -> Tensor:
        """Where the density is highest (*batch, *event), without gradient.

        A univariate mixture is searched on its whole support. A multivariate one returns the best
        of its components' modes; where components overlap the density may be higher between them.
        """
        if not self.event_shape:
            return _argmax(self.prob, self._cuts())
        with torch.no_grad():
            own = self.parts.map(lambda p: p.mode, 1)
            own = own.expand(*self.logits.shape, -1)
            best = self.prob(own.movedim(-2, 0)).argmax(0)
            return own.take_along_dim(best[..., None, None], -2).squeeze(-2)

    def _cuts(self) -> Tensor:
        """Return locations (*batch, J) between which the density is smooth."""
        present = self.logits.detach() > -math.inf
        return self.parts.rows(cuts_of, present)

    def _to_float64(self) -> "Mixture":
        parts = [to_float64(part) for part in self.parts.parts]
        return Mixture(
            self.logits.double(), parts[0] if self.parts.batched else parts, validate_args=False
        )

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density at `value` (..., *event); -inf with zero gradient off the support."""
        if self._validate_args:
            self._validate_sample(value)
        return self.parts.log_density(value, self.logits)

    def cdf(self, value: Tensor) -> Tensor:
        """Distribution function of a univariate mixture."""
        if self._validate_args:
            self._validate_sample(value)
        return self._tail(value, torch.zeros_like(value, dtype=torch.bool))

    def _tail(self, value: Tensor, upper: Tensor) -> Tensor:
        """Return the mass below each value, or above it where `upper`."""
        self._require_univariate()
        return self._average(self.parts.at(tail_of, value, upper))

    def _require_univariate(self) -> None:
        if self.event_shape:
            raise NotImplementedError("distribution functions exist for univariate mixtures only")

    def icdf(self, value: Tensor) -> Tensor:
        """Quantile function of probabilities in [0, 1]; its values lie in the support.

        Raises:
            ValueError: A probability outside [0, 1].
            NotImplementedError: A multivariate mixture, or a component of torch without a cdf.
        """
        if self._validate_args:
            self._validate_sample(value)
            require((value >= 0) & (value <= 1), "value", "a probability in [0, 1]", value)
        self._require_univariate()
        value = value * torch.ones_like(self.alpha)
        inside = (value > 0) & (value < 1)
        share = torch.where(inside, value, 0.5)
        upper = share > 0.5
        goal = torch.where(upper, 1 - share, share)
        ends = intervals_of(self)
        with torch.no_grad():
            present = self.logits > -math.inf
            own = self.parts.at(lambda q, u: q.icdf(u), share)
            low, high = (torch.where(present, own, end) for end in (math.inf, -math.inf))
            t = increasing_root(self._excess(goal, upper), low.amin(-1), high.amax(-1))
            t = _snap(t, ends, self._excess(goal, upper)(t) >= 0)
        t = self._attach(t, goal, upper)
        first, last = ends[..., 0, 0], torch.where(ends.isnan(), -math.inf, ends)[..., 1].amax(-1)
        return torch.where(inside, t, torch.where(value <= 0, first, last))

    def _excess(self, goal: Tensor, upper: Tensor) -> Callable[[Tensor], Tensor]:
        """Return an increasing function of t that is zero where the tail has the mass `goal`."""

        def excess(t: Tensor) -> Tensor:
            gap = self._tail(t, upper) - goal
            return torch.where(upper, -gap, gap)

        return excess

    def _attach(self, t: Tensor, goal: Tensor, upper: Tensor) -> Tensor:
        """Attach to quantiles the derivatives of the equation that they solve."""
        moved = attach_root_gradient(t, self._excess(goal, upper), self.prob)
        return t.detach() + (moved - moved.detach())

    def sample(self, sample_shape: _size = Size()) -> Tensor:
        """Samples (*sample, *batch, *event)."""
        with torch.no_grad():
            drawn = self.parts.sample(sample_shape, self.batch_shape)
            shape = Size(sample_shape) + self.batch_shape
            rows = self.probs.expand(*shape, -1).reshape(shape.numel(), self.parts.count)
            index = torch.multinomial(rows, 1).reshape(*shape, 1, *(1,) * len(self.event_shape))
            axis = -1 - len(self.event_shape)
            return drawn.take_along_dim(index, axis).squeeze(axis).detach()

    def rsample(self, sample_shape: _size = Size()) -> Tensor:
        """Samples (*sample, *batch), differentiable in weights and components.

        Raises:
            NotImplementedError: `has_rsample` is false.
        """
        if torch.compiler.is_compiling() and self._has_cdf and not self._is_unbounded:
            torch._assert_async(self._is_connected.all(), _NO_RSAMPLE)  # cannot branch on values
        elif not self.has_rsample:
            raise NotImplementedError(_NO_RSAMPLE)
        return self._attach_sample(self.sample(sample_shape))

    def _attach_sample(self, t: Tensor) -> Tensor:
        """Attach to samples the derivatives of quantiles at fixed probabilities."""
        with torch.no_grad():
            upper = self._tail(t, torch.zeros_like(t, dtype=torch.bool)) > 0.5
            goal = self._tail(t, upper)
        return self._attach(t, goal.detach(), upper)

    def rsample_components(self, sample_shape: _size = Size()) -> tuple[Tensor, Tensor]:
        r"""A sample from each component and its mass, both differentiable.

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
        return self.parts.rsample(sample_shape, self.probs)

    def entropy(self) -> Tensor:
        """Shannon entropy (*batch), by quadrature; multivariate by `quadrature`."""
        if self.event_shape:
            nodes, weights = self.quadrature()
            log_p = self.log_prob(nodes)
            # The derivative of 0 log 0 would be infinite.
            return -(weights * torch.where(log_p.isfinite(), log_p, 0.0)).sum(0)
        (p,) = separate_cuts(to_float64(self))

        def integrand(t: Tensor) -> Tensor:
            log_p = p.log_prob(t)
            finite = log_p.isfinite()
            log_p = torch.where(finite, log_p, 0.0)
            return torch.where(finite, -torch.exp(log_p) * log_p, 0.0)

        return line_integral(integrand, cuts_of(p)).to(self.alpha.dtype)

    def tsallis_entropy(self) -> Tensor:
        """The Shannon entropy (*batch), as alpha is 1."""
        return self.entropy()

    def quadrature(self, order: int = 64) -> tuple[Tensor, Tensor]:
        r"""Nodes (Q, *batch, *event) and weights (Q, *batch) of all components' own rules."""
        return self.parts.rule(order, self.probs)

    def _quadrature_expect(self, psi: Basis | Callable[[Tensor], Tensor], order: int) -> Tensor:
        if not isinstance(psi, Basis):
            return super()._quadrature_expect(psi, order)
        return self._average(self.parts.map(lambda p: p.expect(psi, order), 1), 1)

    def escort(self, beta: Tensor | float | None = None) -> "Mixture":
        """The density itself; a power of a mixture is not a mixture.

        Raises:
            ValueError: `beta` other than 1.
        """
        self._require_unit_beta(beta)
        return self

    def _require_unit_beta(self, beta: Tensor | float | None) -> None:
        fits = torch.as_tensor(1.0 if beta is None else beta) == 1
        require(fits, "beta", "1 for a mixture, whose other escorts have no closed form", beta)

    def generalized_covariance(
        self, phi: Basis, psi: Basis, beta: Tensor | float | None = None
    ) -> Tensor:
        r"""$\sum_k \pi_k \mathrm{Cov}_k + \sum_k \pi_k (m_k - m)(n_k - n)'$, (*batch, M, N)."""
        self._check_basis("phi", phi)
        self._check_basis("psi", psi)
        self._require_unit_beta(beta)
        weights = self.probs.unsqueeze(-1)
        within = self.parts.map(lambda q: q.generalized_covariance(phi, psi, 1.0), rank=2)
        f, g = (torch.where(weights > 0, self._deviations(basis), 0.0) for basis in (phi, psi))
        return self._average(within, 2) + (weights * f).mT @ g

    def _deviations(self, psi: Basis) -> Tensor:
        """Return the components' expectations less the mixture's, (*batch, K, N)."""
        if isinstance(psi, Stack):
            return torch.cat([self._deviations(basis) for basis in psi.bases], -1)
        symmetric = all(isinstance(q, SymmetricDistribution) for q in self.parts.parts)
        if isinstance(psi, Polynomial) and symmetric:
            return self._deviations_of_powers(psi)
        means = self.parts.map(lambda q: q.expect(psi), rank=1)
        return means - self._average(means, 1).unsqueeze(-2)

    def _deviations_of_powers(self, psi: Polynomial) -> Tensor:
        """Expand powers of t about the mean c, far from 0 where their differences would cancel.

        (c + s)^k is the sum over j of k!/j!(k-j)! c^(k-j) s^j.
        """
        centre = self.mean

        def moved(q: SymmetricDistribution) -> Tensor:
            q = q.expand(q.batch_shape)
            q.loc = q.loc - (centre.unsqueeze(-1) if self.parts.batched else centre)
            return q.expect(psi)

        means = self.parts.map(moved, rank=1)
        powers = means - self._average(means, 1).unsqueeze(-2)
        degree, centre_ = len(psi) - 1, centre.unsqueeze(-1)
        terms = [
            [math.comb(k, j) * centre_ ** (k - j) * powers[..., j] for j in range(k + 1)]
            for k in range(degree + 1)
        ]
        return torch.stack([torch.stack(row).sum(0) for row in terms], -1)


class _Components:
    """K densities of one event shape, whose values get an axis of K after the batch.

    Args:
        components: One distribution whose last batch dimension counts them, (*batch, K), or a
            sequence of distributions whose batches broadcast.

    Raises:
        ValueError: Neither of these; no component; a discrete one; event shapes that differ;
            batches that do not broadcast.
    """

    def __init__(self, components: Distribution | Sequence[Distribution]) -> None:
        self.batched = isinstance(components, Distribution)
        members = _members(components)
        # The mixture checks values.
        self.parts = [_without_validation(wrap(p)) for p in members]
        batch = _common_batch(members)
        if self.batched and not batch:
            raise ValueError("components must have batch shape (*batch, K >= 1), got ()")
        self.count = batch[-1] if self.batched else len(members)
        self.batch_shape: Size = batch[:-1] if self.batched else batch
        self.event_shape: Size = members[0].event_shape
        self.dtype = reduce(torch.promote_types, [dtype_of(p) for p in members])
        if self.count < 1:
            raise ValueError("components must be at least one, got none")

    def map(self, function: Callable[[Any], Tensor], rank: int = 0) -> Tensor:
        """Return a function of each component, (*batch, K, *shape) with `rank` axes in shape."""
        values = [function(p).to(self.dtype) for p in self.parts]
        return values[0] if self.batched else _stack(values, -1 - rank)

    def at(self, function: Callable[..., Tensor], value: Tensor, *others: Tensor) -> Tensor:
        """Return a function of each component and of locations (*sample, *batch, *event).

        Args:
            function: Takes a component, the locations and the others.
            value: Locations.
            others: Further arguments (*sample, *batch).

        Returns:
            (*sample, *batch, K).
        """
        dtype = torch.promote_types(self.dtype, value.dtype)
        if not self.batched:
            return _stack([function(p, value, *others).to(dtype) for p in self.parts], -1)
        value = value.unsqueeze(-1 - len(self.event_shape))
        return function(self.parts[0], value, *(x.unsqueeze(-1) for x in others)).to(dtype)

    def log_density(self, value: Tensor, logits: Tensor) -> Tensor:
        """Return the log of the densities' average with log weights (*batch, K)."""
        found = self.at(lambda p, t: p.log_prob(t), value) + logits.log_softmax(-1)
        # An infinite density without a weight does not count.
        terms = torch.where(logits > -math.inf, found, -math.inf)
        # torch.logsumexp has NaN derivatives where all vanish or one is infinite.
        large = torch.finfo(terms.dtype).max
        most = terms.detach().amax(-1)
        shift = most.clamp(-large, large)
        total = torch.exp(terms.clamp(max=large) - shift.unsqueeze(-1)).sum(-1)
        finite = most.isfinite()
        return torch.where(finite, torch.where(finite, total, 1.0).log() + shift, most)

    def sample(self, sample_shape: _size, batch: Size) -> Tensor:
        """Draw a sample of each, (*sample, *batch, K, *event)."""
        drawn = [self._expanded(p, batch).sample(sample_shape) for p in self.parts]
        return drawn[0] if self.batched else torch.stack(drawn, -1 - len(self.event_shape))

    def rsample(self, sample_shape: _size, probs: Tensor) -> tuple[Tensor, Tensor]:
        """Draw differentiable samples (*sample, *batch, K', *event) and masses (*batch, K')."""
        rank = len(self.event_shape)
        samples, masses = [], []
        for part, mass in self._with(probs):
            p: Any = self._expanded(part, probs.shape[:-1])
            if p.has_rsample:
                drawn, shares = p.rsample(sample_shape), torch.ones_like(mass)
                drawn, shares = drawn.unsqueeze(-1 - rank), shares.unsqueeze(-1)
            elif hasattr(p, "rsample_components"):
                drawn, shares = p.rsample_components(sample_shape)
            else:
                raise NotImplementedError(f"{p} has no differentiable samples")
            share = mass.unsqueeze(-1) * shares
            if self.batched:
                drawn, share = drawn.flatten(-2 - rank, -1 - rank), share.flatten(-2)
            samples.append(drawn)
            masses.append(share)
        return torch.cat(samples, -1 - rank), torch.cat(masses, -1)

    def rule(self, order: int, probs: Tensor) -> tuple[Tensor, Tensor]:
        """Return nodes (Q, *batch, *event) and weights (Q, *batch) for the mixture."""
        batch = probs.shape[:-1]
        found = []
        for part, mass in self._with(probs):
            rule = self._expanded(part, batch).quadrature(order)
            nodes, weights = (x.to(self.dtype) for x in rule)
            weights = weights * mass
            if self.batched:
                axis = len(batch) + 1
                nodes, weights = (x.movedim(axis, 1).flatten(0, 1) for x in (nodes, weights))
            found.append((nodes, weights))
        nodes, weights = (torch.cat(x) for x in zip(*found, strict=True))
        return nodes, weights

    def rows(self, function: Callable[[Any], Tensor], present: Tensor) -> Tensor:
        """Concatenate values (*batch, J, *shape) of all components, NaN where not present.

        Args:
            function: Takes a component and returns (*batch, J, *shape).
            present: Which components count, (*batch, K).
        """
        found = []
        for part, here in self._with(present):
            rows = function(part).to(self.dtype)
            shape = here.shape
            rank = rows.dim() - len(part.batch_shape)
            rows = rows.expand(shape + rows.shape[rows.dim() - rank :])
            rows = torch.where(here.reshape(*shape, *(1,) * rank), rows, torch.nan)
            found.append(rows.flatten(len(shape) - 1, len(shape)) if self.batched else rows)
        return torch.cat(found, present.dim() - 1)

    def _with(self, table: Tensor) -> list[tuple[SparseDistribution, Tensor]]:
        """Pair each part with its columns of a table (*batch, K)."""
        columns = [table] if self.batched else list(table.unbind(-1))
        return list(zip(self.parts, columns, strict=True))

    def _expanded(self, part: SparseDistribution, batch: Size) -> SparseDistribution:
        return part.expand(Size([*batch, self.count]) if self.batched else batch)


def _members(components: Distribution | Sequence[Distribution]) -> list[Distribution]:
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


def _common_batch(members: list[Distribution]) -> Size:
    batches = [p.batch_shape for p in members]
    try:
        batch: Size = broadcast_shapes(*batches)
    except RuntimeError:
        shapes = [tuple(batch) for batch in batches]
        raise ValueError(f"components must have batches that broadcast, got {shapes}") from None
    return batch


def _without_validation(p: SparseDistribution) -> SparseDistribution:
    if not p._validate_args:
        return p
    p = copied(p)
    p._validate_args = False
    return p


def _stack(values: list[Tensor], dim: int) -> Tensor:
    return torch.stack(torch.broadcast_tensors(*values), dim)


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


def _mixture_batch(logits: Tensor, parts: _Components) -> Size:
    if logits.shape[-1] != parts.count:
        raise ValueError(
            f"logits must have shape (*batch, K) for K = {parts.count} components, got "
            f"{tuple(logits.shape)}"
        )
    try:
        batch: Size = broadcast_shapes(logits.shape[:-1], parts.batch_shape)
    except RuntimeError:
        raise ValueError(
            f"logits must have a batch that broadcasts with the components' "
            f"{tuple(parts.batch_shape)}, got {tuple(logits.shape[:-1])}"
        ) from None
    return batch


def separate_cuts(*densities: Any) -> list[Any]:
    """Return float64 densities with their centres moved apart by a thousand rounding errors.

    An integral between cuts that move with the parameters has a wrong second derivative where two
    of them coincide, such as a centre and an edge: nodes in the empty piece between them lie on
    the wrong side of one of the two. After a constant shift of each symmetric density, by a
    different multiple of 2e-13 of its scale, no two coincide.
    """
    count = sum(_count_symmetric(p) for p in densities)
    shares = iter([(k - (count - 1) / 2) * _SHIFT for k in range(count)])
    return [_shift(p, shares) for p in densities]


def _count_symmetric(p: Any) -> int:
    if isinstance(p, Mixture):
        if p.parts.batched:
            return p.parts.count if isinstance(p.parts.parts[0], SymmetricDistribution) else 0
        return sum(_count_symmetric(part) for part in p.parts.parts)
    return int(isinstance(p, SymmetricDistribution))


def _shift(p: Any, shares: Iterator[float]) -> Any:
    if isinstance(p, Mixture):
        parts = p.parts.parts
        if not p.parts.batched:
            return Mixture(p.logits, [_shift(part, shares) for part in parts], validate_args=False)
        if not isinstance(parts[0], SymmetricDistribution):
            return p
        share = parts[0].loc.new_tensor([next(shares) for _ in range(p.parts.count)])
        return Mixture(p.logits, _moved(parts[0], share), validate_args=False)
    return _moved(p, next(shares)) if isinstance(p, SymmetricDistribution) else p


def _moved(p: SymmetricDistribution, share: Tensor | float) -> SymmetricDistribution:
    new = p.expand(p.batch_shape)
    new.loc = p.loc + share * p.scale.detach()
    return new


def _argmax(function: Callable[[Tensor], Tensor], cuts: Tensor) -> Tensor:
    """Return where a function is highest (*batch), without gradient.

    The best of the cuts (*batch, J) and of locations between them, improved by golden section
    search between its neighbours: accurate to the square root of a rounding error at a smooth peak.
    """
    with torch.no_grad():
        ordered = sort_cuts(cuts)
        share = torch.linspace(0, 1, _LOCATIONS + 1).to(cuts).reshape(-1, *(1,) * ordered.dim())
        grid = (ordered[:-1] + share * ordered.diff(dim=0)).flatten(0, 1)
        best = grid.gather(0, function(grid).argmax(0, keepdim=True))
        low = torch.where(grid < best, grid, -math.inf).amax(0)
        high = torch.where(grid > best, grid, math.inf).amin(0)
        best = best.squeeze(0)
        low, high = (torch.where(end.isfinite(), end, best) for end in (low, high))
        for _ in range(_STEPS):
            step = _GOLDEN * (high - low)
            left, right = high - step, low + step
            rises = function(left) < function(right)
            low, high = torch.where(rises, left, low), torch.where(rises, high, right)
        found = (low + high) / 2
        return torch.where(function(found) > function(best), found, best)


def _snap(t: Tensor, intervals: Tensor, reached: Tensor) -> Tensor:
    """Move locations out of the gaps between intervals.

    Args:
        t: Locations (..., *batch).
        intervals: Ends (*batch, J, 2), NaN where there are fewer.
        reached: Whether the mass below t is at least the probability asked for: then the quantile
            is the end of the interval below t, else the beginning of the next.
    """
    lower, upper = intervals.detach().unbind(-1)
    at = t.unsqueeze(-1)
    inside = ((lower <= at) & (at <= upper)).any(-1)
    below = torch.where(upper <= at, upper, -math.inf).amax(-1)
    above = torch.where(lower >= at, lower, math.inf).amin(-1)
    down = (reached & below.isfinite()) | ~above.isfinite()
    return torch.where(inside, t, torch.where(down, below, above))
