"""Policies over actions with bounds, for Stable-Baselines3 and TorchRL.

`python -m examples.bounded_actions` prints what the truncated normal density of TorchRL answers,
beside ours, truncated and censored normals side by side, and steps a second of PPO and SAC on
Pendulum with each policy of examples/actions.py. `--returns` prints the returns of agents trained
with ten seeds, in about 40 minutes. Both need `pip install --group actions`; `--write`
puts the tables into docs/bounded-actions.md.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.distributions import Normal

import sparsefam as sf
from benchmarks.harness import Table, parser, show_and_write

from .actions import adjusted_normal, censored_normal, sb3_policies, truncated_normal
from .common import mean_sd

# Environment steps of a run, and runs of each policy, alternating.
STEPS, ROUNDS = {"PPO": 6144, "SAC": 1500}, 3
# For returns: environment steps, seeds, environments of PPO, episodes of evaluation, and settings.
TRAINED, SEEDS, ENVIRONMENTS, EPISODES = {"PPO": 102_400, "SAC": 3600}, 10, 16, 20
SETTINGS: dict[str, dict[str, Any]] = {
    "PPO": {"n_steps": 128, "batch_size": 256, "gamma": 0.9, "learning_rate": 1e-3},
    "SAC": {"learning_rate": 1e-3},
}


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
