"""Export functions of the battery's densities, and run the programs at other parameters.

In a process of its own: what torch keeps from a first export may serve the second one. Called with
names of families and functions, "name:function"; prints what became of each.
"""

import json
import sys
import warnings

import torch
from cases import SCALARS
from functions import arguments, function
from torch import Tensor
from torch.distributions import Distribution


class Program(torch.nn.Module):
    def __init__(self, case: str, name: str) -> None:
        super().__init__()
        self.evaluate = function(CASES[case], name)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.evaluate(*inputs)


CASES = {case.name: case for case in SCALARS}


def outcome(case: str, name: str) -> str:
    """Empty if the program has the values of the function, else what is wrong."""
    program = Program(case, name)
    inputs = tuple(x.detach() for x in arguments(CASES[case], name))
    try:
        exported = torch.export.export(program, inputs).module()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    moved = tuple(x * 1.015625 for x in inputs)
    found, expected = exported(*moved), program(*moved)
    if type(found) is not Tensor:
        return f"gives a {type(found).__name__}"
    close = torch.allclose(found, expected, rtol=1e-11, atol=1e-13)
    return "" if close else f"{found.tolist()} is not {expected.tolist()}"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    Distribution.set_default_validate_args(False)  # torch's own validation reads values
    asked = [argument.rsplit(":", 1) for argument in sys.argv[1:]]
    print(json.dumps({f"{case}:{name}": outcome(case, name) for case, name in asked}))
