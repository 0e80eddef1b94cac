"""Truncated powers of kernel scores: what kernel families and their escorts have in common."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..bases import Basis
from ..numerics.arguments import require
from ..numerics.deformed import expm1_ratio
from ..numerics.normalizer import normalized_weights
from ..numerics.truncated_power import Power, integrals, sum_nodes
from ..scores import KernelExpansion
from .kernel import KernelDistribution
from .kernel_panels import KernelPanels
from .once import once

__all__ = ["KernelPower", "Parts"]


# What rounding may take from a mass.
_MASS = 1e-2


class Parts(NamedTuple):
    """What a density is made of.

    Attributes:
        level: A, (R,).
        weights: Of the power, (m, G, R).
        mass: Z, (R,).
        lowered: Weights of the lowered power, (m, G, R).
    """

    level: Tensor
    weights: Tensor
    mass: Tensor
    lowered: Tensor


class KernelPower(KernelDistribution):
    r"""$p = [1 + \epsilon(f - A)]_+^k\, q_0/Z$ with $k = ratio/\epsilon - order$.

    A subclass gives the power, and the parts on its own panels.
    """

    @property
    def _power(self) -> Power:
        raise NotImplementedError

    @once
    def _parts(self) -> Parts:
        raise NotImplementedError

    def _normalized(self, eps: Tensor | float) -> Parts:
        """The parts of the density whose mass is 1.

        Raises:
            ValueError: Scores so large that their differences are lost to rounding.
        """
        measure, scores = self._measure(self.panels), self._scores_on(self.panels)
        level, weights, lowered, mass = normalized_weights(scores, measure, eps)
        require(
            (mass - 1).abs() <= _MASS,
            "weights",
            f"so small that scores have digits after the point in {scores.dtype}",
            self.weights,
        )
        return Parts(level, weights, torch.ones_like(level), lowered)

    @property
    def _mass(self) -> Tensor:
        return self._parts.mass

    def _measure(self, panels: KernelPanels) -> Tensor:
        return panels.measure.unsqueeze(-1).to(self._dtype)

    def _offsets_on(self, panels: KernelPanels) -> Tensor:
        """f - A at nodes, (m, G, R)."""
        return self._scores_on(panels) - self._parts.level

    def _unnormalized_on(self, panels: KernelPanels) -> Tensor:
        if panels is self.panels:
            return self._parts.weights
        found, _ = integrals(self._offsets_on(panels), self._measure(panels), self._power, "power lowered")
        return found

    def _batched(self, rows: Tensor) -> Tensor:
        return rows.reshape(self.batch_shape).to(self.weights.dtype)

    def _power_of(self, like: Tensor) -> Power:
        """The power with eps shaped for scores (*S, *batch)."""
        power = self._power
        return (
            power._replace(eps=self._batched(power.eps)) if isinstance(power.eps, Tensor) else power
        )

    def _log_relative(self, scores: Tensor) -> Tensor:
        power = self._power_of(scores)
        x = scores - self._batched(self._parts.level)
        inside = power.eps * x > -1
        log = power.factor_of_log * power.log_base(torch.where(inside, x, 0.0))
        return torch.where(inside, log - self._batched(self._parts.mass.log()), -math.inf)

    # As a prediction map: p = [1 + e (g - A')]_+^(1/e) with e = 1/k, g = share f.

    @property
    def _share(self) -> Tensor:
        """What f is multiplied with to be the score, (*batch)."""
        power = self._power_of(self.weights)
        own = power.factor_of_log  # k eps
        require(
            torch.as_tensor(own != 0), "alpha", "finite for a score to be determined", self.alpha
        )
        log_mass = self._batched(self._parts.mass.log())
        return own * torch.exp(-(self.alpha - 1) * log_mass)

    @property
    def log_normalizer(self) -> Tensor:
        r"""$A_\alpha$ in $p = \exp_{2-\alpha}(score - A_\alpha)$ relative to the base (*batch).

        References:
            Martins et al. (2020), Sparse and Continuous Attention Mechanisms, Prop. 1.
        """
        log_mass = self._parts.mass.log().reshape(self.batch_shape)
        rest = log_mass * expm1_ratio(-(self.alpha - 1) * log_mass)
        return rest.to(self.weights.dtype) + self._share * self._batched(self._parts.level)

    @property
    def score(self) -> KernelExpansion:
        """The kernel expansion with `rpm(score, alpha, base)` equal to this density."""
        weights = self._share.unsqueeze(-1) * self.weights
        return KernelExpansion(weights, self.inducing_points, self.kernel)

    def tsallis_entropy(self) -> Tensor:
        r"""$-\Omega_\alpha(p)$ relative to the base, which the prediction map maximises (*batch).

        References:
            Martins et al. (2020), Sparse and Continuous Attention Mechanisms, eq. 6.
        """
        # (1 - int p^alpha)/(alpha (alpha - 1)), and p^(alpha - 1) = 1 + (alpha - 1)(score - A).
        mean = (self._weights_on(self.panels) * self._scores_on(self.panels)).sum((0, 1))
        return (self.log_normalizer - self._share * self._batched(mean)) / self.alpha

    def entropy(self) -> Tensor:
        r"""Shannon entropy $-\int p \log p\,dt$ (*batch).

        Good to 1e-6 only where the base's log density is singular at an end of its support.
        """
        power, mass = self._power, self._parts.mass
        offsets = self._offsets_on(self.panels)
        if power.is_exponential:
            logs = (self._parts.weights * offsets).sum((0, 1))
        else:
            logs = sum_nodes(integrals(offsets, self._measure(self.panels), power, "log")[0])
        relative = self._batched(mass.log() - power.factor_of_log * logs / mass)
        log_base = self.panels.base.log_density(self.panels.nodes).to(self._dtype).unsqueeze(-1)
        log_base = torch.where(log_base.isinf(), 0.0, log_base)
        return relative - self._means(log_base, self.panels).squeeze(-1)

    # Escorts

    def _escort_power(self, beta: Tensor | float | None) -> Power:
        """The power of p^beta.

        Raises:
            ValueError: `beta` no number, or negative.
        """
        power = self._power
        if beta is None:
            # 2 - alpha, which lowers the exponent of a prediction map by one.
            return power.lowered()
        if isinstance(beta, Tensor) and beta.numel() > 1:
            raise ValueError(f"beta must be one number for a kernel family, got {beta}")
        if not 0 <= float(beta) < math.inf:
            raise ValueError(f"beta must be finite and not negative, got {beta}")
        if power.order:
            raise ValueError(f"beta must be None for the escort of an escort, got {beta}")
        return power._replace(ratio=power.ratio * float(beta))

    def generalized_covariance(
        self, phi: Basis, psi: Basis, beta: Tensor | float | None = None
    ) -> Tensor:
        r"""Generalized $\beta$-covariance of two bases relative to the base, (*batch, M, N).

        $$\|p\|_\beta^\beta\,(\tilde E[\phi\psi'] - \tilde E[\phi]\tilde E[\psi]')$$

        The expectations are under the $\beta$-escort; default $\beta = 2 - \alpha$.

        References:
            Martins et al. (2020), Sparse and Continuous Attention Mechanisms, eq. 17.
        """
        self._check_basis("phi", phi)
        self._check_basis("psi", psi)
        panels = self.panels.for_basis(phi).for_basis(psi)
        weights = self._power_weights_on(panels, beta).flatten(0, 1).T
        left, right = self._values_of(phi, panels), self._values_of(psi, panels)
        total = weights.sum(-1, keepdim=True)
        # Both centred: a constant has no covariance to the last digit.
        left, right = (x - ((weights @ x) / total).unsqueeze(1) for x in (left, right))
        found = ((weights.unsqueeze(-1) * left).mT @ right).to(self.weights.dtype)
        return found.reshape(*self.batch_shape, *found.shape[1:])

    def _power_weights_on(self, panels: KernelPanels, beta: Tensor | float | None) -> Tensor:
        if beta is not None and float(beta) == 1:
            return self._weights_on(panels)
        power = self._escort_power(beta)
        exponent = 2 - self.alpha.reshape(-1) if beta is None else float(beta)
        found = self._parts.lowered
        if beta is not None or panels is not self.panels:
            found, _ = integrals(self._offsets_on(panels), self._measure(panels), power, "power lowered")
        scale = torch.exp(-exponent * self._parts.mass.log())
        return found * scale
