"""The class that docs/learn/extending.md writes, asked a part of what the battery asks of ours."""

import math
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
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
import torch
from battery import BAD_VALUES, DOUBLE, SINGLE, Case
from scipy import stats
from scipy.integrate import quad
from test_docs import ROOT, blocks
from torch import Size, Tensor, ones, ones_like, tensor, where, zeros
from torch.distributions import constraints

import sparsefam as sf
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


def test_a_density_by_its_geometry_has_every_method() -> None:
    page = ModuleType("extending")
    (code,) = (code for code in blocks(PAGE.read_text()) if "class Tent" in code)
    exec(compile(code, str(PAGE), "exec"), page.__dict__)
    assert code.index("p = Tent") < len(code)
    assert len(code[code.index("class Tent") : code.index("peak =")].strip().splitlines()) <= 22
    low, peak, high = -1.0, 0.25, 2.0
    law = stats.triang((peak - low) / (high - low), low, high - low)
    p = page.Tent(*(tensor(x, dtype=DOUBLE) for x in (low, peak, high)))
    t = tensor([-1.5, -0.999, -0.2, 0.25, 1.0, 1.9999999, 3.0], dtype=DOUBLE)
    q = tensor([0.0, 1e-9, 0.3, 0.9, 1.0], dtype=DOUBLE)
    below = law.cdf(t)
    above = (high - t).clamp_min(0) ** 2 / ((high - low) * (high - peak))
    with np.errstate(divide="ignore"):
        pairs = {
            "log_prob": (p.log_prob(t), law.logpdf(t)),
            "cdf": (p.cdf(t), below),
            "log_survival": (p.log_survival(t), np.log(np.where(t > peak, above, 1 - below))),
            "icdf": (p.icdf(q), law.ppf(q)),
            "mean": (p.mean, law.mean()),
            "variance": (p.variance, law.var()),
            "skewness": (p.skewness, law.stats("s")),
            "kurtosis": (p.kurtosis, law.stats("k")),
            "entropy": (p.entropy(), law.entropy()),
            "moment": (p.moment(5), quad(lambda t: t**5 * law.pdf(t), low, high, points=[peak])[0]),
            "mode": (p.mode, peak),
            "interval": (p.interval_prob(0.2, 0.4), law.cdf(0.4) - law.cdf(0.2)),
        }
    for name, (found, expected) in pairs.items():
        expected = torch.as_tensor(expected, dtype=DOUBLE)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12, msg=name)
    ends = p.highest_density(0.5).intervals[0]
    assert p.log_prob(ends[0]).allclose(p.log_prob(ends[1]))
    assert p.highest_density_mass(ends).allclose(tensor(0.5, dtype=DOUBLE))
    torch.manual_seed(0)
    assert stats.kstest(p.sample((2000,)), law.cdf).pvalue > 0.01
    copies = page.Tent(tensor([low, low]), tensor(peak), tensor(high))
    for copy in (copies[1], copies.expand((3, 2))[2, 0], copies.detach()[0]):
        assert (
            copy.mean.allclose(copies.mean[0])
            and copy.cdf(tensor(1.0)) == copies.cdf(tensor(1.0))[0]
        )


class _Wrong(sf.Univariate):
    """Between 0 and an end, with the logarithm of a function as density."""

    arg_constraints = {"end": constraints.real}

    def __init__(self, end: float, function: Callable[[Tensor], Tensor], *breaks: float) -> None:
        self.end, self.function, self.breaks = tensor(end), function, breaks
        super().__init__(Size())

    def geometry(self) -> sf.Geometry:
        return sf.Geometry(zeros(()), self.end, tensor(self.breaks))

    def log_prob(self, value: Tensor) -> Tensor:
        return self.function(value).log()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1.0, ones_like), "low must be below high"),
        ((math.inf, ones_like), "high must be a finite tensor"),
        ((2.0, ones_like), "log_prob must be of mass 1, got 1.9999"),
        ((1.0, lambda t: -ones_like(t)), "log_prob must be a number, or -inf, between low and"),
        ((1.0, lambda t: 1 / t), "integrable|smooth between breakpoints|finite integral"),
        ((1.0, lambda t: 2.0 * (t > 0.3).to(t) / 1.4), "log_prob must be smooth between break"),
        ((1.0, ones_like, math.nan), "breakpoints must be numbers"),
    ],
)
def test_wrong_densities_are_named(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _Wrong(*arguments)


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
