"""The battery: programs of torch.export say the same at other parameters."""

from typing import Any

import pytest
import torch
from cases import SCALARS, Case
from functions import arguments, function
from torch import Tensor

QUANTITIES = ("log_prob", "entropy", "kl")
# Each time only what has taken a wrong turn before: ends whose surroundings are differentiated.
FEW = [("Truncated-Triangular", "log_prob")]


def asked() -> list[Any]:
    pairs = [(case, name) for case in SCALARS for name in QUANTITIES]
    return [
        pytest.param(*(case, name), marks=[pytest.mark.slow] * ((case.name, name) not in FEW))
        for case, name in pairs
        if name != "kl" or "low" in case.parameters
    ]


class Program(torch.nn.Module):
    def __init__(self, case: Case, name: str) -> None:
        super().__init__()
        self.evaluate = function(case, name)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.evaluate(*inputs)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("case", "name"), asked(), ids=str)
def test_densities_are_exported_or_refused(case: Case, name: str, unchecked: None) -> None:
    torch._dynamo.reset()
    program, inputs = Program(case, name), [x.detach() for x in arguments(case, name)]
    moved = [x * 1.015625 for x in inputs]
    try:
        exported = torch.export.export(program, tuple(inputs))
    except Exception:  # of many types; and after other exports torch makes some that it refused
        assert not case.family.exports
        return
    found = exported.module()(*moved)
    torch.testing.assert_close(found, program(*moved), rtol=1e-11, atol=1e-13)
