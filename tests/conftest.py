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
