"""Mixtures of any densities, of unlike supports too."""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.constraints import Constraint
from torch.types import _size

from ..bases import Basis
from ..numerics.validation import require
from ..scores import LogDensity
from ..supports import AnyOf, IntervalUnion, RealLine, unnormalised
from .adoption import cuts_of, intervals_of, whole_line
from .base import SparseDistribution
from .components import Components
from .finite import SparseCategorical
from .mixture_arguments import log_weights, mixture_batch, require_unit_beta
from .mixture_covariance import mixture_covariance
from .mixture_quantiles import attached, quantile, tail
from .pieces import highest, piece_rule

__all__ = ["Mixture"]

_UNATTACHED = (
    "no draw from vectors or from a support of several intervals has the right gradient: "
    "use rsample_components"
)


class Mixture(SparseDistribution):
    r"""Weighted sum of densities, whose support is the union of theirs.

    $$p(t) = \sum_k \pi_k\, p_k(t), \qquad \pi = \mathrm{softmax}(\mathrm{logits})$$

    Components may have unlike supports and be of unlike classes, those of torch included. Where
    they all vanish `log_prob` is -inf with a zero gradient, and validation does not mind.

    A draw from a component has no derivative in the weights, and none across a gap in the support:
    `rsample`, by implicit differentiation of the distribution function, is right only for numbers
    whose support is one interval, and `has_rsample` false elsewhere. `rsample_components`, a draw
    and a mass for each component, gives unbiased gradients always.

    Args:
        logits: Unnormalised log weights (*batch, K), -inf for none; or a categorical distribution.
        components: A distribution with batch shape (*batch, K), or a sequence of K distributions.
            The batches broadcast.
        validate_args: As in torch.distributions.

    Attributes:
        components: As given.
        logits: Log weights (*batch, K), up to a constant.

    Raises:
        ValueError: `logits` NaN, infinite or -inf for all components, or of another K than the
            components; components that are no continuous distributions of one event shape, or laws
            of torch's on a circle or without a mass of one; batches that do not broadcast.

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
        logits: Tensor | torch.distributions.Categorical | SparseCategorical,
        components: Distribution | Sequence[Distribution],
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.components, self.parts = components, Components(components)
        weights = log_weights(logits)
        batch = mixture_batch(weights, self.parts)
        self.logits: Tensor = weights.expand(*batch, self.parts.count)
        self.alpha = torch.ones_like(self.logits[..., 0])
        Distribution.__init__(self, batch, self.parts.event_shape, validate_args=validate_args)

    @property
    def probs(self) -> Tensor:
        """Weights of the components (*batch, K)."""
        return torch.softmax(self.logits, -1)

    def _weighed(self, answers: Tensor, rank: int = 0) -> Tensor:
        """Sum of answers (*batch, K, *shape), weighted; shape has `rank` axes.

        What a component without a weight answers does not count, infinite or NaN though it be.
        """
        weights = self.probs.reshape(*self.logits.shape, *(1,) * rank)
        return (weights * torch.where(weights > 0, answers, 0.0)).sum(-1 - rank)

    def _offsets(self) -> Tensor:
        """Means of the components with a weight less that of all (*batch, K, *event)."""
        rank = len(self.event_shape)
        offset = self.parts.ask(lambda p: p.mean, rank) - self.mean.unsqueeze(-1 - rank)
        # Infinite ones would have NaN derivatives.
        return torch.where((self.probs > 0).reshape(*self.logits.shape, *(1,) * rank), offset, 0.0)

    @constraints.dependent_property(is_discrete=False)
    def support(self) -> Constraint:
        """The union of the supports of the components with a weight.

        The line, or intervals; of vectors, the space, or what lies in any of the supports.
        """
        present = self.logits > -math.inf
        if not self.event_shape:
            if self._on_whole_line:
                return RealLine(self.alpha)
            return IntervalUnion.merged(self.parts.rows(intervals_of, present))
        supports: list[Any] = [p.support for p in self.parts.parts]
        if all(support == constraints.real_vector for support in supports):
            return constraints.real_vector
        return AnyOf(supports, batched=self.parts.batched, present=present)

    @property
    def _on_whole_line(self) -> bool:
        return all(whole_line(p) for p in self.parts.parts)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether the implicit gradient is right: for numbers with one interval as support."""
        return self._on_whole_line or bool(self._connected.all())

    @property
    def _connected(self) -> Tensor:
        """Which supports (*batch) are one interval."""
        if self.event_shape:
            return torch.zeros_like(self.alpha, dtype=torch.bool)
        return intervals_of(self)[..., 1:, :].isnan().all(-1).all(-1)

    @property
    def score(self) -> LogDensity:
        r"""$f(t) = \log p(t)$, whose softmax is p."""
        return LogDensity(self)

    @property
    def log_normalizer(self) -> Tensor:
        """That of the score: 0 (*batch)."""
        return torch.zeros_like(self.alpha)

    @property
    def mean(self) -> Tensor:
        """Mean (*batch, *event)."""
        rank = len(self.event_shape)
        return self._weighed(self.parts.ask(lambda p: p.mean, rank), rank)

    @property
    def variance(self) -> Tensor:
        """Variance (*batch, *event): the mean of those within, and that between the components."""
        rank = len(self.event_shape)
        within = self.parts.ask(lambda p: p.variance, rank)
        return self._weighed(within + self._offsets().square(), rank)

    @property
    def covariance_matrix(self) -> Tensor:
        """Covariance matrix (*batch, D, D), of vectors only."""
        if not self.event_shape:
            raise NotImplementedError("covariance matrices are known of vectors only")
        within, offset = self.parts.ask(lambda p: p.covariance_matrix, 2), self._offsets()
        return self._weighed(within + offset.unsqueeze(-1) * offset.unsqueeze(-2), 2)

    @property
    def mode(self) -> Tensor:
        """Where the density is highest (*batch, *event), without gradient.

        Of numbers, a search over the whole support. Of vectors, the best of the components' own
        modes: where components overlap the density may be higher between them.
        """
        if not self.event_shape:
            return highest(self.prob, self._cuts())
        with torch.no_grad():
            own = self.parts.ask(lambda p: p.mode, 1)
            own = own.expand(*self.logits.shape, -1)
            best = self.prob(own.movedim(-2, 0)).argmax(0)
            return own.take_along_dim(best[..., None, None], -2).squeeze(-2)

    def _cuts(self) -> Tensor:
        """Locations (*batch, J) between which the density is smooth."""
        present = self.logits.detach() > -math.inf
        return self.parts.rows(cuts_of, present)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density at `value` (..., *event); -inf with zero gradient off the support."""
        if self._validate_args:
            self._validate_sample(value)
        return self.parts.log_density(value, self.logits)

    def cdf(self, value: Tensor) -> Tensor:
        """Distribution function of numbers; components of torch's may lose digits in the tails."""
        if self._validate_args:
            self._validate_sample(value)
        return tail(self, value, torch.zeros_like(value, dtype=torch.bool))

    def icdf(self, value: Tensor) -> Tensor:
        """Quantile function of probabilities in [0, 1], of numbers; never in a gap of the support.

        Raises:
            ValueError: A probability outside [0, 1].
        """
        if self._validate_args:
            self._validate_sample(value)
            require((value >= 0) & (value <= 1), "value", "a probability in [0, 1]", value)
        return quantile(self, value * torch.ones_like(self.alpha))

    def sample(self, sample_shape: _size = Size()) -> Tensor:
        """Draws (*sample, *batch, *event)."""
        with torch.no_grad():
            drawn = self.parts.sample(sample_shape, self.batch_shape)
            shape = Size(sample_shape) + self.batch_shape
            rows = self.probs.expand(*shape, -1).reshape(shape.numel(), self.parts.count)
            index = torch.multinomial(rows, 1).reshape(*shape, 1, *(1,) * len(self.event_shape))
            axis = -1 - len(self.event_shape)
            return drawn.take_along_dim(index, axis).squeeze(axis).detach()

    def rsample(self, sample_shape: _size = Size()) -> Tensor:
        """Draws (*sample, *batch) of numbers, differentiable in weights and components.

        Raises:
            NotImplementedError: `has_rsample` is false.
        """
        if torch.compiler.is_compiling() and not self._on_whole_line:
            torch._assert_async(self._connected.all(), _UNATTACHED)  # it cannot branch on values
        elif not self.has_rsample:
            raise NotImplementedError(_UNATTACHED)
        return attached(self, self.sample(sample_shape))

    def rsample_components(self, sample_shape: _size = Size()) -> tuple[Tensor, Tensor]:
        r"""A draw from each component, and its mass, both differentiable.

        $\sum_k m_k\, g(t_k)$ has the expectation $E_p[g]$, and its derivatives that of $E_p[g]$,
        whatever the supports.

        Args:
            sample_shape: Shape of the samples.

        Returns:
            Draws (*sample, *batch, K, *event) and masses (*batch, K); with more than K entries
            where a component is itself made of pieces.

        Raises:
            NotImplementedError: A component has no differentiable draws.
        """
        return self.parts.rsample(sample_shape, self.probs)

    def entropy(self) -> Tensor:
        """Shannon entropy (*batch), by quadrature: of vectors, by that of `quadrature`."""
        if self.event_shape:
            nodes, weights = self.quadrature()
        else:
            nodes, rule = piece_rule(self._cuts())
            weights = rule * self.prob(nodes)
        log_p = self.log_prob(nodes)
        # Zero times the logarithm of zero, without the infinite derivative.
        return -(weights * torch.where(log_p.isfinite(), log_p, 0.0)).sum(0)

    def tsallis_entropy(self) -> Tensor:
        """The Shannon entropy, as alpha is 1 (*batch)."""
        return self.entropy()

    def quadrature(self, order: int = 64) -> tuple[Tensor, Tensor]:
        r"""Nodes (Q, *batch, *event) and weights (Q, *batch): the components' own, side by side."""
        return self.parts.rule(order, self.probs)

    def _quadrature_expect(self, psi: Basis | Callable[[Tensor], Tensor], order: int) -> Tensor:
        if not isinstance(psi, Basis):
            return super()._quadrature_expect(psi, order)
        return self._weighed(self.parts.ask(lambda p: p.expect(psi, order), 1), 1)

    def escort(self, beta: Tensor | float | None = None) -> "Mixture":
        """The density itself; powers of a mixture are no mixtures.

        Raises:
            ValueError: `beta` other than 1.
        """
        require_unit_beta(beta, self.alpha)
        return self

    def generalized_covariance(
        self, phi: Basis, psi: Basis, beta: Tensor | float | None = None
    ) -> Tensor:
        self._check_basis("phi", phi)
        self._check_basis("psi", psi)
        require_unit_beta(beta, self.alpha)
        return mixture_covariance(self, phi, psi)
