"""The class that docs/learn/extending.md writes, asked a part of what the battery asks of ours."""

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

from sparsefam import dispatch

PAGE = ROOT / "docs" / "learn" / "extending.md"

BATCH: list[Callable[..., None]] = [
    contract.test_members_have_the_batch_shape_and_dtype,
    contract.test_every_parameter_is_an_attribute_that_keeps_its_constraint,
    contract.test_values_broadcast_against_the_batch,
    contract.test_a_batch_is_its_elements,
    contract.test_expand_copies_nothing_and_changes_nothing,
    contract.test_expand_keeps_gradients,
    errors.test_bad_parameters_are_named_with_their_value,
    expectations.test_escorts_are_powers_on_the_same_support,
    expectations.test_escorts_that_do_not_exist_are_refused,
    integrals.test_prob_is_the_stated_density,
    integrals.test_the_mass_is_one,
    integrals.test_moments_and_mode,
    integrals.test_shannon_entropy,
    integrals.test_tsallis_entropy,
    gradients.test_densities_have_finite_derivatives_on_and_around_their_edges,
    gradients.test_off_the_support_all_is_zero,
    quantiles.test_cdf_keeps_the_digits_of_the_lower_tail,
    quantiles.test_cdf_ends_at_zero_and_one,
    support.test_the_support_is_where_the_density_is_positive,
    support.test_pickles_and_deep_copies,
]
SCALAR: list[Callable[..., None]] = [
    errors.test_shapes_that_do_not_broadcast_are_named,
    errors.test_arguments_that_are_no_numbers_are_named,
    errors.test_validation_may_be_switched_off,
    quantiles.test_icdf_inverts_cdf_far_into_the_tails,
    sampling.test_draws_follow_the_density,
    support.test_space_maps_onto_the_support_and_back,
]
NAMED = [
    (expectations.test_expectations_of_bases, "scalar", "GaussianRBF Fourier BSpline"),
    (gradients.test_first_derivatives, "scalar", "log_prob entropy expect-Fourier covariance"),
    (gradients.test_vmap_over_parameters_is_one_by_one, "batch", "log_prob expect-Fourier"),
    (precision.test_float32_keeps_its_digits, "scalar", "log_prob cdf expect-Fourier"),
]


@pytest.fixture(scope="module")
def cases() -> Iterator[dict[str, Case]]:
    """The page's family; what it registers is taken back afterwards."""
    rules, bad = dict(dispatch._RULES), dict(BAD_VALUES)
    page = ModuleType("extending")
    sys.modules[page.__name__] = page  # pickles look for the class there
    for code in blocks(PAGE.read_text()):
        exec(compile(code, str(PAGE), "exec"), page.__dict__)
    family = page.family
    yield {name: Case(family, getattr(family, name), name) for name in ("scalar", "batch")}
    del sys.modules[page.__name__]
    for mine, kept in ((dispatch._RULES, rules), (BAD_VALUES, bad)):
        mine.clear()
        mine.update(kept)


def ask(check: Callable[..., None], case: Case, **more: Any) -> None:
    check(case, **more | ({"dtype": SINGLE} if "dtype" in check.__annotations__ else {}))


@pytest.mark.parametrize("check", BATCH, ids=lambda check: check.__name__)
def test_batches(cases: dict[str, Case], check: Callable[..., None]) -> None:
    ask(check, cases["batch"])


@pytest.mark.parametrize("check", SCALAR, ids=lambda check: check.__name__)
def test_numbers(cases: dict[str, Case], check: Callable[..., None]) -> None:
    ask(check, cases["scalar"])


@pytest.mark.parametrize(
    ("check", "kind", "name"),
    [(check, kind, name) for check, kind, names in NAMED for name in names.split()],
)
def test_functions(
    cases: dict[str, Case], check: Callable[..., None], kind: str, name: str
) -> None:
    ask(check, cases[kind], name=name)


def test_the_class_is_short() -> None:
    (code,) = (code for code in blocks(PAGE.read_text()) if "class CosinePower" in code)
    assert len(code.strip().splitlines()) < 60
