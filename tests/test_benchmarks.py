"""The benchmarks' own instruments: references, rivals, limits and the page they write."""

import math
import statistics
from pathlib import Path

import mpmath as mp
import pytest
import torch

import sparsefam as sf
from benchmarks import report
from benchmarks.accuracy import LIMITS, broken, near_one, worst
from benchmarks.expectations import Run, gain, runs
from benchmarks.families import ANY_ALPHA, CLOSED, Family
from benchmarks.overhead import DENSITIES, Density, ratio, seconds
from benchmarks.reference import half_width, integrals, score_scale
from benchmarks.report import Table, write_section
from benchmarks.rivals import (
    closed_form_around_zero,
    trapezoid_on_shared_grid,
    trapezoid_on_supports,
)
from benchmarks.sweep import cases, exact, norm_error
from benchmarks.workload import METHODS, REGIMES, workload

FAMILIES = (*CLOSED, *ANY_ALPHA)
PARABOLA = CLOSED[2]


def name(family: Family) -> str:
    return family.name


@pytest.mark.parametrize("family", FAMILIES, ids=name)
@pytest.mark.parametrize(
    ("loc", "scale", "center"), [(0.5, 0.125, 0.75), (0.5, 2.0, 2.25), (0.5, 16.0, -15.0)]
)
def test_reference_is_the_integral(family: Family, loc: float, scale: float, center: float) -> None:
    """Of the density as its prediction map defines it, with derivatives by mpmath's own."""
    width = 0.5

    def expectation(loc: mp.mpf, scale: mp.mpf) -> mp.mpf:
        def unnormalised(x: mp.mpf) -> mp.mpf:
            return (1 - abs(x) ** family.order) ** mp.mpf(family.exponent)

        def gaussian(x: mp.mpf) -> mp.mpf:
            return mp.npdf(loc + scale * x, center, width)

        near = {(center + k * width - loc) / scale for k in (-8, -4, -2, 0, 2, 4, 8)}
        cuts = sorted({mp.mpf(-1), mp.mpf(0), mp.mpf(1), *(x for x in near if -1 < x < 1)})
        mass = mp.quad(unnormalised, [-1, 0, 1])
        return mp.quad(lambda x: unnormalised(x) * gaussian(x), cuts) / mass

    with mp.workdps(20):
        step = mp.mpf("1e-5")
        slopes = [
            (expectation(loc + step, scale) - expectation(loc - step, scale)) / (2 * step),
            (expectation(loc, scale + step) - expectation(loc, scale - step)) / (2 * step),
        ]
        value = float(expectation(mp.mpf(loc), mp.mpf(scale)))
    found = integrals(family, loc, scale, center, width)
    assert found[0] == pytest.approx(value, rel=1e-13)
    assert found[1:] == pytest.approx([float(x) for x in slopes], rel=1e-6)


@pytest.mark.parametrize("family", [f for f in FAMILIES if f.exponent > 0], ids=name)
def test_scale_of_the_score(family: Family) -> None:
    """[(1 - |x|^k) s^k / (k m sigma^k)]^m integrates to one, which is what fixes s."""
    scale, slope = half_width(family, 0.3)
    k, m = family.order, family.exponent
    mass = mp.quad(lambda x: ((1 - abs(x) ** k) * scale**k / (k * m * 0.3**k)) ** m, [-1, 0, 1])
    assert float(mass) * scale == pytest.approx(1, rel=1e-12)
    step = (half_width(family, 0.3 + 1e-6)[0] - half_width(family, 0.3 - 1e-6)[0]) / 2e-6
    assert slope == pytest.approx(step, rel=1e-8)
    assert score_scale(family, scale) == pytest.approx(0.3, rel=1e-14)


@pytest.mark.parametrize("family", CLOSED, ids=name)
def test_limits_are_kept_and_noticed(family: Family) -> None:
    sweep = cases([0.01, 1.0, 100.0], loc=0.37, width=0.05)
    for dtype in LIMITS:
        row = worst(family, dtype, sweep)
        assert broken(row) == []
        found = [(1e-4, 1.0), *row[2][1:]]
        assert broken((family, dtype, found)) == ["value"]
        found = [*row[2][:2], (1e-4, 1.0), *row[2][3:]]
        assert broken((family, dtype, found)) == ["∂ scale"]


def test_not_a_number_is_an_error() -> None:
    assert norm_error(torch.tensor([1.0, math.nan]), torch.ones(2)).item() == math.inf


@pytest.mark.parametrize("family", CLOSED, ids=name)
def test_rivals_are_right_where_they_can_be(family: Family) -> None:
    """In float64: the published closed form where supports are wide, the rules with many points."""
    (case,) = cases([5.0], loc=0.0, width=0.25)
    loc, scale, psi = case.loc.double(), case.scale.double(), case.basis(torch.float64)
    truth = exact(family, case)[0]
    assert norm_error(closed_form_around_zero(family, loc, scale, psi), truth) < 1e-12
    rule = trapezoid_on_supports(family, loc[None], scale[None], psi, points=20_001)[0]
    # A density that jumps at its ends costs the rule its second order, but for the ends' halves.
    assert norm_error(rule, truth) < 1e-7
    grid = torch.linspace(-20, 20, 20_001, dtype=torch.float64)
    p = family.build(loc[None], scale[None])
    first_order = family.exponent == 0
    assert norm_error(trapezoid_on_shared_grid(p, grid, psi)[0], truth) < (
        1e-2 if first_order else 1e-5
    )


def test_differences_at_alpha_one_shrink_with_alpha() -> None:
    coarse, fine = near_one(1e-2), near_one(1e-4)
    assert fine[0] == pytest.approx(coarse[0] / 100, rel=0.05)
    assert all(noise < 1e-5 for noise in (coarse[3], fine[3]))


@pytest.mark.parametrize("regime", REGIMES)
def test_supports_lie_on_the_grid(regime: str) -> None:
    work = workload(regime)
    low, high = REGIMES[regime]
    assert (work.loc - work.scale).min() >= -1e-6
    assert (work.loc + work.scale).max() <= 1 + 1e-6
    assert work.scale.min() >= 0.999 * low
    assert work.scale.max() <= 1.001 * high


def test_methods_compute_the_same() -> None:
    work = workload("wide", densities=3)
    found = runs("wide", PARABOLA, work, rounds=1)
    assert [run.method for run in found] == list(METHODS)
    ours, rule, grid = found
    assert max(*ours.row_errors, *ours.slope_errors) < 2e-6
    assert max(*rule.row_errors, *rule.slope_errors) < 1e-4
    # Its points enter and leave the supports: that is no smooth function of their ends.
    assert max(grid.row_errors) < 1e-4
    assert max(grid.slope_errors) < 0.1


def test_gain_compares_medians() -> None:
    ours, rule, _ = METHODS
    none = (0.0, 0.0)
    found = [
        Run("wide", PARABOLA, ours, [0.01, 0.1, 0.5], none, none),
        Run("narrow", PARABOLA, rule, [1.0], none, none),
        Run("wide", CLOSED[0], rule, [2.0], none, none),
        Run("wide", PARABOLA, rule, [9.0, 3.0, 0.3], none, none),
    ]
    assert gain(found, found[0]) == pytest.approx(30)


def test_sections_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    monkeypatch.setattr(report, "PAGE", page)
    page.write_text("before\n<!-- x: made by run x -->\nold\n<!-- x: end -->\nafter\n")
    table = Table("A title.", ["name", "error"], [["a", "1e-7"]])
    for _ in range(2):
        write_section("x", "run x", [table.markdown()])
        text = page.read_text()
        assert text.startswith("before\n<!-- x: made by run x -->\n\n`run x`, one run on")
        assert text.endswith("| a | 1e-7 |\n\n<!-- x: end -->\nafter\n")
        assert "old" not in text
    with pytest.raises(ValueError, match="page.md must have one section .*y: made by"):
        write_section("y", "run y", [])


def test_every_closed_family_is_one() -> None:
    """A family that lost its closed form would be measured as if it had one."""
    one = torch.tensor(1.0)
    for family in CLOSED:
        p = family.build(0 * one, one)
        assert isinstance(p, sf.BetaGaussian | sf.BetaLaplace)
        assert p.profile() is not None


@pytest.mark.parametrize("density", DENSITIES, ids=lambda density: density.name)
def test_formulas_of_the_overhead_are_those_densities(density: Density) -> None:
    x = torch.linspace(-2, 2, 9, dtype=torch.float64)
    loc, scale = torch.tensor([0.25, 1.5], dtype=torch.float64)
    found = density.make(loc, scale).log_prob(x)
    torch.testing.assert_close(density.formula(x, loc, scale), found)
    assert density.name.split(",")[0] == type(density.make(loc, scale)).__name__


def test_the_ratio_of_a_call_is_that_of_the_middle_round() -> None:
    # In the second round something else ran: 2/(1 + 1), 90/(1 + 2), 6/(2 + 1).
    assert ratio([2.0, 90.0, 6.0], [1.0, 1.0, 2.0], [1.0, 2.0, 1.0]) == 2
    calls: list[str] = []
    quick, slow = seconds([lambda: calls.append("a"), lambda: sum(range(20_000))], rounds=3)
    assert len(quick) == len(slow) == 3
    assert statistics.median(slow) > 10 * statistics.median(quick)
    assert len(calls) % 3 == 0
