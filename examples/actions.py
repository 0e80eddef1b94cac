"""Adapters of densities of bounded actions for Stable-Baselines3 and TorchRL.

They are not in the installed package, which needs neither library: copy this file, which imports
nothing else of this repository.
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Independent, Normal

import sparsefam as sf

# Distributions, which TorchRL takes as they are: `ProbabilisticActor(distribution_class=...)`.


class Actions(Independent):
    """A density of actions (*batch, D), with the action that TorchRL takes in evaluation."""

    def __init__(self, p: sf.SparseDistribution) -> None:
        super().__init__(p, 1, validate_args=False)

    @property
    def deterministic_sample(self) -> Tensor:
        return self.mean


def truncated_normal(loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Actions:
    """A normal density cut at the bounds, whose support is fixed, as PPO needs it."""
    base = Normal(loc, scale, validate_args=False)
    return Actions(sf.Truncated(base, low, high, validate_args=False))


def adjusted_normal(loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Actions:
    """A truncated normal whose scale shrinks with the mass of the normal between the bounds."""
    base = Normal(loc, scale, validate_args=False)
    mass = sf.Truncated(base, low, high, validate_args=False).log_mass.exp()
    return truncated_normal(loc, scale * (0.1 + 0.9 * mass), low, high)


def censored_normal(loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Actions:
    """A normal density of which what lies beyond a bound is moved onto it."""
    base = Normal(loc, scale, validate_args=False)
    return Actions(sf.Censored(base, low, high, validate_args=False))


def beta_gaussian(loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Actions:
    """A density between the bounds, whose support moves with location and scale: for SAC."""
    center, half = _moving_support(loc, scale.log())
    side = (high - low) / 2
    center = (low + high) / 2 + side * center
    return Actions(sf.BetaGaussian(center, side * half, 1.5, validate_args=False))


def _moving_support(loc: Tensor, log_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return center and half-width of a support in [-1, 1].

    The room below it, its width and the room above are as exp(loc), exp(log_scale) and exp(-loc).
    With a width apart from the place, entropy says nothing of the place, and SAC raises all widths
    to where Stable-Baselines3 clamps `log_std`: there neither has a gradient.
    """
    below, width, above = torch.stack([loc, log_scale, -loc]).softmax(0)
    return 0.975 * (below - above), 0.025 + 0.975 * width


# Stable-Baselines3


def sb3_policies() -> tuple[Any, Any]:
    """Return a policy for PPO, and the distribution of actions that SAC takes instead of its own.

    `PPO(policy, env)`; for SAC `model.actor.action_dist = distribution(action_dim)`, again after
    `load`.
    """
    from stable_baselines3.common.distributions import DiagGaussianDistribution
    from stable_baselines3.common.policies import ActorCriticPolicy

    class TruncatedNormal(DiagGaussianDistribution):
        def __init__(self, box: Any) -> None:
            super().__init__(box.shape[0])
            self.low, self.high = torch.as_tensor(box.low), torch.as_tensor(box.high)

        def proba_distribution(self, mean_actions: Tensor, log_std: Tensor) -> Any:
            scale = log_std.exp().expand_as(mean_actions)
            base = Normal(mean_actions, scale, validate_args=False)
            low, high = self.low.to(mean_actions), self.high.to(mean_actions)
            self.distribution: Any = sf.Truncated(base, low, high, validate_args=False)
            return self

    class TruncatedPolicy(ActorCriticPolicy):
        def _build(self, lr_schedule: Any) -> None:
            self.action_dist: Any = TruncatedNormal(self.action_space)
            super()._build(lr_schedule)

    class BetaGaussianActions(DiagGaussianDistribution):
        """Actions in [-1, 1], which Stable-Baselines3 rescales."""

        def proba_distribution(self, mean_actions: Tensor, log_std: Tensor) -> Any:
            center, half = _moving_support(mean_actions, log_std)
            self.distribution = sf.BetaGaussian(center, half, 1.5, validate_args=False)
            return self

        def log_prob_from_params(self, mean_actions: Tensor, log_std: Tensor) -> Any:
            action = self.actions_from_params(mean_actions, log_std)
            return action, self.log_prob(action)

    return TruncatedPolicy, BetaGaussianActions
