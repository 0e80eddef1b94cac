"""What every test starts from: one thread, a seed, examples that do not vary from run to run."""

import os

import pytest
import torch
from hypothesis import settings

os.environ.setdefault("MPLBACKEND", "Agg")  # read when matplotlib is first imported
torch.set_num_threads(1)

settings.register_profile("sparsefam", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("sparsefam")


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
