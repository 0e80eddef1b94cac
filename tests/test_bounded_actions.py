"""Policies of other libraries with densities of this package, if they are installed."""

import pytest
import torch

pytestmark = pytest.mark.slow

sb3 = pytest.importorskip("stable_baselines3")
torchrl = pytest.importorskip("torchrl.modules")

from tensordict import TensorDict  # noqa: E402
from tensordict.nn import InteractionType, TensorDictModule, set_interaction_type  # noqa: E402

from examples import actions, bounded_actions  # noqa: E402


@pytest.mark.parametrize("name", ["PPO, truncated normal", "SAC, beta-Gaussian"])
def test_agents_of_stable_baselines_learn_with_actions_in_the_box(name: str) -> None:
    model = bounded_actions.models()[name]()
    model.learn(2048 if name.startswith("PPO") else 300)
    observations = model.get_env().reset()
    for deterministic in (False, True):
        action, _ = model.predict(observations, deterministic=deterministic)
        assert (abs(action) <= 2).all()
    assert all(x.isfinite().all() for x in model.policy.parameters())


@pytest.mark.parametrize(
    "name", ["truncated_normal", "adjusted_normal", "censored_normal", "beta_gaussian"]
)
def test_actors_of_torchrl_take_the_densities_as_they_are(name: str) -> None:
    low, high = torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 1.0])
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torchrl.NormalParamExtractor())
    actor = torchrl.ProbabilisticActor(
        TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=getattr(actions, name),
        distribution_kwargs={"low": low, "high": high},
        return_log_prob=True,
    )
    seen = TensorDict({"observation": 3 * torch.randn(64, 3)}, [64])
    for kind in (InteractionType.RANDOM, InteractionType.DETERMINISTIC):
        with set_interaction_type(kind):
            found = actor(seen.clone())
        assert ((low <= found["action"]) & (found["action"] <= high)).all()
    with set_interaction_type(InteractionType.RANDOM):
        log_prob = actor(seen.clone())["action_log_prob"]
    assert log_prob.shape == (64,) and log_prob.isfinite().all()
    log_prob.sum().backward()
    assert all(x.grad.isfinite().all() for x in net.parameters())
