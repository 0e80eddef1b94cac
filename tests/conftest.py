"""What every test starts from: one thread, a seed, no parameters of Pyro, the same examples."""

import os
from collections.abc import Iterator

import pyro
import pytest
import torch
from hypothesis import settings
from torch.distributions import Distribution

os.environ.setdefault("MPLBACKEND", "Agg")  # read when matplotlib is first imported
torch.set_num_threads(1)

settings.register_profile("sparsefam", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("sparsefam")

# How many slow tests each file has, of those that were collected.
SLOW = pytest.StashKey[dict[str, int]]()


@pytest.hookimpl(tryfirst=True)  # before `-m` leaves any out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    slow = dict.fromkeys((item.path.name for item in items), 0)
    for item in items:
        slow[item.path.name] += item.get_closest_marker("slow") is not None
    config.stash[SLOW] = slow


@pytest.fixture
def slow_tests(request: pytest.FixtureRequest) -> dict[str, int]:
    """How many slow tests each file has, of those that were collected."""
    return request.config.stash[SLOW]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
    pyro.clear_param_store()


@pytest.fixture
def double() -> Iterator[None]:
    """Numbers are float64 by default."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(autouse=True)
def validation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first use of torch.compile switches validation off for the whole process."""
    monkeypatch.setattr(Distribution, "_validate_args", True)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without validation: torch's own of distributions reads values, and cannot be traced."""
    monkeypatch.setattr(Distribution, "_validate_args", False)
