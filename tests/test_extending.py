"""The class that docs/learn/extending.md writes, asked a part of what the battery asks of ours."""

import math
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import test_battery_contract as contract
import test_battery_errors as errors
import test_battery_expectations as expectations
import test_battery_gradients as gradients
import test_battery_integrals as integrals
import test_battery_precision as precision
import test_battery_quantiles as quantiles
import test_battery_sampling as sampling
import test_battery_support as support
from battery import BAD_VALUES, SINGLE, Case
from test_docs import ROOT, blocks
from torch import Size, Tensor, ones, tensor, where
from torch.distributions import constraints

from sparsefam import SparseDistribution
from sparsefam._choice import TABLE

PAGE = ROOT / "docs" / "learn" / "extending.md"

# One of each kind: what the other checks see in it, they see in ours.
CHECKS: list[tuple[Callable[..., None], str, dict[str, Any]]] = [
    (contract.test_members_have_the_batch_shape_and_dtype, "batch", {"dtype": SINGLE}),
    (contract.test_expand_copies_nothing_and_changes_nothing, "batch", {}),
    (contract.test_a_batch_is_its_parts_however_they_are_made, "batch", {}),
    (errors.test_bad_parameters_are_named_with_their_value, "batch", {}),
    (expectations.test_escorts_are_powers_on_the_same_support_or_refused, "batch", {}),
    (expectations.test_expectations_of_bases, "scalar", {"name": "GaussianRBF"}),
    (expectations.test_expectations_of_bases, "scalar", {"name": "Fourier"}),
    (gradients.test_first_derivatives, "scalar", {"name": "expect-Fourier"}),
    (gradients.test_off_the_support_all_is_zero, "batch", {"dtype": SINGLE}),
    (gradients.test_vmap_over_parameters_is_one_by_one, "batch", {"name": "log_prob"}),
    (integrals.test_prob_is_the_stated_density, "batch", {}),
    (integrals.test_the_mass_is_one, "batch", {}),
    (integrals.test_moments_and_mode, "batch", {}),
    (integrals.test_tsallis_entropy, "batch", {}),
    (precision.test_float32_keeps_its_digits, "scalar", {"name": "cdf"}),
    (quantiles.test_icdf_inverts_cdf_from_end_to_end, "scalar", {"dtype": SINGLE}),
    (sampling.test_draws_follow_the_density, "scalar", {"dtype": SINGLE}),
    (support.test_pickles_and_deep_copies, "batch", {}),
]


@pytest.fixture(scope="module")
def cases() -> Iterator[dict[str, Case]]:
    """The page's family; what it registers is taken back afterwards."""
    rules, bad = dict(TABLE), dict(BAD_VALUES)
    page = ModuleType("extending")
    sys.modules[page.__name__] = page  # pickles look for the class there
    for code in blocks(PAGE.read_text()):
        exec(compile(code, str(PAGE), "exec"), page.__dict__)
    family = page.family
    yield {name: Case(family, getattr(family, name), name) for name in ("scalar", "batch")}
    del sys.modules[page.__name__]
    for mine, kept in ((TABLE, rules), (BAD_VALUES, bad)):
        mine.clear()
        mine.update(kept)


@pytest.mark.parametrize(
    ("check", "kind", "more"), CHECKS, ids=[f"{x.__name__}-{m.get('name')}" for x, _, m in CHECKS]
)
def test_the_battery(
    cases: dict[str, Case], check: Callable[..., None], kind: str, more: dict[str, Any]
) -> None:
    check(cases[kind], **more)


def test_the_class_is_short() -> None:
    (code,) = (code for code in blocks(PAGE.read_text()) if "class CosinePower" in code)
    assert len(code.strip().splitlines()) < 60


class Decay(SparseDistribution):
    """Only what the page asks for of a density that is not symmetric."""

    arg_constraints = {"rate": constraints.positive}
    support = constraints.nonnegative

    def __init__(self, rate: Tensor) -> None:
        self.rate = rate
        super().__init__(rate.shape)

    def log_prob(self, value: Tensor) -> Tensor:
        return where(value >= 0, self.rate.log() - self.rate * value, -math.inf)


def test_a_class_needs_no_other_attributes_to_be_copied() -> None:
    p = Decay(tensor([1.0, 2.0], requires_grad=True))
    for q in (p.expand((3, 2))[1], p.detach(), p[[0, 1]], p.to_float64(), p.expand_by([4])[0]):
        assert q.batch_shape == Size([2]) and q.prob(ones(2)).allclose(p.prob(ones(2)).to(q.rate))
    assert not p.detach().rate.requires_grad
