"""Policies over actions with bounds, for Stable-Baselines3 and TorchRL.

`python -m examples.bounded_actions` prints what the truncated normal density of TorchRL answers,
beside ours, truncated and censored normals side by side, and steps a second of PPO and SAC on
Pendulum with each policy. `--returns` prints the returns of agents that are trained with ten seeds,
which takes about 40 minutes. Both need `pip install '.[actions]'`; `--write` puts the tables into
docs/bounded-actions.md.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Independent, Normal

import sparsefam as sf
from benchmarks.harness import Table, parser, show_and_write

from .common import mean_sd

# Environment steps of a run, and runs of each policy, alternating.
STEPS, ROUNDS = {"PPO": 6144, "SAC": 1500}, 3
# For returns: environment steps, seeds, environments of PPO, episodes of evaluation, and settings.
TRAINED, SEEDS, ENVIRONMENTS, EPISODES = {"PPO": 102_400, "SAC": 3600}, 10, 16, 20
SETTINGS: dict[str, dict[str, Any]] = {
    "PPO": {"n_steps": 128, "batch_size": 256, "gamma": 0.9, "learning_rate": 1e-3},
    "SAC": {"learning_rate": 1e-3},
}


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


def models(
    seed: int = 0, ppo: dict[str, Any] | None = None, sac: dict[str, Any] | None = None
) -> dict[str, Callable[[], Any]]:
    """Return constructors of agents on Pendulum: the library's own, and with our distributions."""
    from stable_baselines3 import PPO, SAC
    from stable_baselines3.common.env_util import make_vec_env

    policy, actions = sb3_policies()
    ppo, sac = ({"seed": seed, "device": "cpu"} | (x or {}) for x in (ppo, sac))

    def agent(kind: Any, policy: Any, settings: dict[str, Any], environments: int = 1) -> Any:
        return kind(policy, make_vec_env("Pendulum-v1", environments, seed), **settings)

    def ours() -> Any:
        model = agent(SAC, "MlpPolicy", sac)
        model.actor.action_dist = actions(1)
        return model

    count = ENVIRONMENTS if "n_steps" in ppo else 1
    return {
        "PPO, normal, clipped": lambda: agent(PPO, "MlpPolicy", ppo, count),
        "PPO, truncated normal": lambda: agent(PPO, policy, ppo, count),
        "SAC, squashed normal": lambda: agent(SAC, "MlpPolicy", sac),
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


def normals() -> Table:
    """Return means and standard deviations of actions in [-1, 1], for locations up to beyond 1."""
    makers = truncated_normal, adjusted_normal, censored_normal
    low, high, scale = -torch.ones(1), torch.ones(1), torch.full((1,), 0.5)
    rows = []
    for loc in (0.0, 0.5, 0.8, 1.0, 1.5):
        found = [make(torch.tensor([loc]), scale, low, high) for make in makers]
        cells = [f"{abs(float(p.mean)):.2f} ± {float(p.variance.sqrt()):.2f}" for p in found]
        rows.append([f"{loc:g}", *cells, f"{1 - float(Normal(loc, 0.5).cdf(high)):.0%}"])
    title = "Means and standard deviations of actions of normals with scale 0.5 on [-1, 1]"
    return Table(
        title, ["loc", "truncated", "scale-adjusted", "censored", "of the last at 1"], rows
    )


def returns() -> list[list[str]]:
    """Return mean and standard deviation, over seeds, of the return of each agent after training.

    With actions as `predict(deterministic=True)` gives them, and with drawn ones.
    """
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    found: dict[str, list[list[float]]] = {}
    start = time.perf_counter()
    for seed in range(SEEDS):
        for name, make in models(seed, SETTINGS["PPO"], SETTINGS["SAC"]).items():
            model = make()
            model.learn(TRAINED[name[:3]])
            pair = []
            for fixed in (True, False):
                environments = make_vec_env("Pendulum-v1", EPISODES, seed=1000 + seed)
                mean, _ = evaluate_policy(model, environments, EPISODES, deterministic=fixed)
                pair.append(float(mean))
            found.setdefault(name, []).append(pair)
            passed = (time.perf_counter() - start) / 60
            print(
                f"{passed:.0f} min: seed {seed}, {name}: {pair[0]:.0f}, drawn {pair[1]:.0f}",
                flush=True,
            )
    return [
        [name, f"{TRAINED[name[:3]]:,}", *(mean_sd(x, 0) for x in zip(*pairs, strict=True))]
        for name, pairs in found.items()
    ]


def main() -> None:
    options = parser(__doc__, write=True)
    options.add_argument("--returns", action="store_true", help="train with ten seeds: 40 minutes")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    command = "python -m examples.bounded_actions"
    if chosen.returns:
        title = f"Returns on Pendulum: mean and standard deviation of {SEEDS} seeds"
        table = Table(title, ["agent", "steps", "deterministic", "drawn"], returns())
        page = "bounded-actions.md"
        show_and_write("returns", f"{command} --returns", [table], chosen.write, page)
        return
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
    show_and_write("normals", command, [normals()], chosen.write, "bounded-actions.md")
    show_and_write("actions", command, tables, chosen.write, "bounded-actions.md")


if __name__ == "__main__":
    main()
