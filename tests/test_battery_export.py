"""The battery: programs of torch.export, made in a process of their own, say the same."""

import json
import subprocess
import sys

import exported
import pytest
from cases import SCALARS

# Each time only what has taken a wrong turn before: ends whose surroundings are differentiated.
FEW = [("Truncated-Triangular", "log_prob")]
QUANTITIES = ("log_prob", "entropy", "kl")


@pytest.mark.parametrize(("case", "name"), FEW)
def test_densities_are_exported(case: str, name: str) -> None:
    assert not exported.outcome(case, name)


@pytest.mark.slow
def test_densities_are_exported_or_refused() -> None:
    asked = {
        (case.name, name): case.family.exports
        for case in SCALARS
        for name in QUANTITIES
        if name != "kl" or "low" in case.parameters
    }
    names = [f"{case}:{name}" for case, name in asked]
    command = [sys.executable, exported.__file__, *names]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    assert list(found) == names
    wrong = {
        name: said
        for (name, said), exports in zip(found.items(), asked.values(), strict=True)
        if exports == bool(said)
    }
    assert not wrong
