"""Policies over actions with bounds, for Stable-Baselines3 and TorchRL.

`python -m examples.bounded_actions` prints what the truncated normal density of TorchRL answers,
beside ours, and steps a second of PPO and SAC on Pendulum with each policy. It needs
`pip install '.[actions]'`; `--write` puts the tables into docs/use-with.md.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Independent, Normal

import sparsefam as sf
from benchmarks.harness import Table, parser, show_and_write

# Environment steps of a run, and runs of each policy, alternating.
STEPS, ROUNDS = {"PPO": 6144, "SAC": 1500}, 3


# Distributions, which TorchRL takes as they are: `ProbabilisticActor(distribution_class=...)`


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


def beta_gaussian(loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Actions:
    """A bump between the bounds, whose support moves with location and scale: for SAC."""
    half = (high - low) / 2 * (0.05 + 0.9 * scale / (1 + scale))
    centre = (low + high) / 2 + ((high - low) / 2 - half) * loc.tanh()
    return Actions(sf.BetaGaussian(centre, half, 1.5, validate_args=False))


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
            half = 0.05 + 0.9 * log_std.sigmoid()
            centre = (1 - half) * mean_actions.tanh()
            self.distribution = sf.BetaGaussian(centre, half, 1.5, validate_args=False)
            return self

        def log_prob_from_params(self, mean_actions: Tensor, log_std: Tensor) -> Any:
            action = self.actions_from_params(mean_actions, log_std)
            return action, self.log_prob(action)

    return TruncatedPolicy, BetaGaussianActions


def models() -> dict[str, Callable[[], Any]]:
    """Return constructors of agents on Pendulum: the library's own, and with our distributions."""
    from stable_baselines3 import PPO, SAC

    policy, actions = sb3_policies()

    def ours() -> Any:
        model = SAC("MlpPolicy", "Pendulum-v1", seed=0, device="cpu")
        model.actor.action_dist = actions(1)
        return model

    return {
        "PPO, normal, clipped": lambda: PPO("MlpPolicy", "Pendulum-v1", seed=0, device="cpu"),
        "PPO, truncated normal": lambda: PPO(policy, "Pendulum-v1", seed=0, device="cpu"),
        "SAC, squashed normal": lambda: SAC("MlpPolicy", "Pendulum-v1", seed=0, device="cpu"),
        "SAC, beta-Gaussian": ours,
    }


def speeds() -> list[list[str]]:
    """Return steps a second of processor time of each agent, and the ratio to the library's own."""
    seconds: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for name, make in models().items():
            model = make()
            start = time.process_time()
            model.learn(STEPS[name[:3]])
            seconds.setdefault(name, []).append(time.process_time() - start)
    best = {name: STEPS[name[:3]] / min(found) for name, found in seconds.items()}
    own = {name[:3]: best[name] for name in ("PPO, normal, clipped", "SAC, squashed normal")}
    return [[name, f"{x:.0f}", f"{x / own[name[:3]]:.2f}"] for name, x in best.items()]


def answers() -> list[list[str]]:
    """Return mean, variance and entropy of truncated normals on [-1, 1], TorchRL's and ours."""
    from torchrl.modules import TruncatedNormal

    rows = []
    for loc, scale in ((2.0, 0.2), (3.0, 0.5)):
        parameters = torch.tensor([loc]), torch.tensor([scale])
        ours = sf.Truncated(Normal(*parameters), -1.0, 1.0)
        theirs = TruncatedNormal(*parameters, low=-1.0, high=1.0)
        for name, p in (("TorchRL", theirs), ("sparsefam", ours)):
            torch.manual_seed(0)
            share = (p.sample((1000,)).abs() >= 1).double().mean()
            numbers = (float(x) for x in (p.mean, p.variance, p.entropy()))
            cells = [f"{x:.3f}" for x in numbers]
            rows.append([f"loc {loc:g}, scale {scale:g}", name, *cells, f"{share:.0%}"])
    return rows


def main() -> None:
    chosen = parser(__doc__, write=True).parse_args()
    torch.set_num_threads(1)
    print("Training for about four minutes", flush=True)
    header = ["on [-1, 1]", "library", "mean", "variance", "entropy", "draws at a bound"]
    tables = [
        Table("What truncated normal densities answer", header, answers()),
        Table(
            "Steps a second of processor time on Pendulum, one thread, best of three runs",
            ["agent", "steps a second", "of the library's own"],
            speeds(),
        ),
    ]
    command = "python -m examples.bounded_actions"
    show_and_write("actions", command, tables, chosen.write, "use-with.md")


if __name__ == "__main__":
    main()
