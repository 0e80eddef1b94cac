"""The references agree with adaptive quadrature, the harness measures, and every table is made."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.integrate import dblquad, quad
from scipy.optimize import brentq

from benchmarks import (
    __main__,
    accuracy,
    attention,
    compare,
    estimation,
    expect,
    first_call,
    harness,
    threads,
)
from benchmarks.cases import ball_inputs
from benchmarks.harness import Table, Worker, alternate
from benchmarks.reference import (
    ANY_ALPHA,
    CLOSED,
    Family,
    Integrals,
    ball_integrals,
    divergences,
    kernel_truth,
    line_integrals,
)
from benchmarks.rivals import polar_rule, trapezoid_on_supports

DOUBLE = torch.float64


@pytest.mark.parametrize("family", [CLOSED[1], CLOSED[4], ANY_ALPHA[2]], ids=lambda x: x.name)
def test_the_1d_reference_agrees_with_adaptive_quadrature(family: Family) -> None:
    def by_quad(loc: float, scale: float) -> float:
        def density(x: float) -> float:
            return max(0.0, 1 - abs(x) ** family.order) ** family.exponent

        def integrand(x: float) -> float:
            z = (loc + scale * x - 0.5) / 0.2
            return density(x) * math.exp(-z * z / 2) / (0.2 * math.sqrt(2 * math.pi))

        limits = {"points": (0.0,), "epsabs": 0, "epsrel": 1e-12, "limit": 200}
        return quad(integrand, -1, 1, **limits)[0] / quad(density, -1, 1, **limits)[0]

    step = 1e-4
    value, by_loc, by_scale = np.float64(line_integrals(family, 0.3, 0.4, np.array([0.5]), 0.2))
    assert value[0] == pytest.approx(by_quad(0.3, 0.4), rel=1e-11)
    difference = by_quad(0.3 + step, 0.4) - by_quad(0.3 - step, 0.4)
    assert by_loc[0] == pytest.approx(difference / (2 * step), rel=1e-6)
    difference = by_quad(0.3, 0.4 + step) - by_quad(0.3, 0.4 - step)
    assert by_scale[0] == pytest.approx(difference / (2 * step), rel=1e-6)
    sigma = torch.tensor(family.sigma(0.7), dtype=DOUBLE, requires_grad=True)
    scale = family.from_score(torch.zeros((), dtype=DOUBLE), sigma).scale
    assert scale.item() == pytest.approx(0.7, rel=1e-12)
    (slope,) = torch.autograd.grad(scale, sigma)
    assert slope.item() == pytest.approx(family.score_power * 0.7 / sigma.item(), rel=1e-12)


@pytest.mark.parametrize("family", [CLOSED[2], ANY_ALPHA[2]], ids=lambda x: x.name)
@pytest.mark.parametrize(("scale", "width"), [(1e-3, 1.0), (100.0, 1.0)])
def test_the_contour_agrees_with_the_1d_reference(
    family: Family, scale: float, width: float
) -> None:
    centers = np.array([0.25, 0.25 + scale, 0.25 - 0.75 * scale])
    result = ball_integrals(
        np.full((1, 1), 0.25, np.longdouble),
        np.full((1, 1, 1), scale, np.longdouble),
        centers.astype(np.longdouble).reshape(1, 3, 1),
        np.full((1, 3), width, np.longdouble),
        family.exponent,
    )
    columns = result.value, result.by_loc[..., 0], result.by_scale_tril[..., 0, 0]
    exact = line_integrals(family, 0.25, scale, centers, width)
    for column, true in zip(columns, exact, strict=True):
        assert np.linalg.norm(np.float64(column[0] - true)) < 1e-13 * np.linalg.norm(true)


def test_the_contour_agrees_with_quadrature_in_2d_and_with_differences() -> None:
    loc, tril = np.array([[0.1, -0.2]]), np.array([[[0.8, 0.0], [0.3, 0.5]]])
    center, root, m = np.array([[[0.4, 0.1]]]), np.array([[[[0.3, 0.0], [0.1, 0.4]]]]), 0.7

    def integrate(*changed: np.ndarray, exponent: float = m) -> Integrals:
        return ball_integrals(*(np.asarray(x, np.longdouble) for x in changed), exponent)

    result = integrate(loc, tril, center, root)
    inverse = np.linalg.inv(root[0, 0])

    def integrand(r: float, angle: float) -> float:
        t = loc[0] + tril[0] @ (r * np.array([math.cos(angle), math.sin(angle)]))
        z = inverse @ (t - center[0, 0])
        return r * (1 - r * r) ** m * math.exp(-z @ z / 2)

    mass = math.pi / (m + 1) * 2 * math.pi * np.linalg.det(root[0, 0])
    by_quad = dblquad(integrand, 0, 2 * math.pi, 0, 1, epsabs=0, epsrel=1e-10)[0] / mass
    assert float(result.value[0, 0]) == pytest.approx(by_quad, rel=1e-9)
    step, below = 1e-6, np.array([[[0.0, 0.0], [1e-6, 0.0]]])
    moves: dict[str, Callable[[int], Integrals]] = {
        "by_loc": lambda s: integrate(loc + s * np.array([step, 0.0]), tril, center, root),
        "by_scale_tril": lambda s: integrate(loc, tril + s * below, center, root),
        "by_exponent": lambda s: integrate(loc, tril, center, root, exponent=m + s * step),
    }
    entries = {"by_loc": (0, 0, 0), "by_scale_tril": (0, 0, 1, 0), "by_exponent": (0, 0)}
    for name, moved in moves.items():
        difference = (moved(1).value - moved(-1).value)[0, 0] / (2 * step)
        slope = getattr(result, name)[entries[name]]
        assert float(slope) == pytest.approx(float(difference), rel=1e-6)


@pytest.mark.parametrize(("alpha", "inside"), [(1.0, True), (1.75, True), (2.0, False)])
def test_the_kernel_reference_agrees_with_adaptive_quadrature(alpha: float, inside: bool) -> None:
    eps, points = alpha - 1, np.linspace(0, 1, 5)
    weights = np.array([2.0, -3.0, 4.0, -1.0, 2.5])

    def power(t: float, a: float) -> float:
        f = float(weights @ np.exp(-(((t - points) / 0.1) ** 2) / 2))
        bracket = max(0.0, 1 + eps * (f - a))
        return math.exp(f - a) if eps == 0 else bracket ** (1 / eps) if bracket else 0.0

    def mass(a: float, k: int = 0) -> float:
        cuts = np.linspace(0, 1, 41)
        return sum(
            quad(lambda t: power(t, a) * t**k, x, y, epsabs=1e-13, limit=200)[0]
            for x, y in zip(cuts, cuts[1:], strict=False)
        )

    def reference(weights: np.ndarray) -> accuracy.KernelTruth:
        upstream = torch.tensor([[1.0, -2.0]], dtype=DOUBLE)
        fixed = torch.from_numpy(points), 0.1, alpha, inside
        return kernel_truth(
            torch.from_numpy(weights)[None], *fixed, lambda t: np.stack([t, t**2], -1), upstream
        )

    result = reference(weights)
    a = brentq(lambda x: mass(x) - 1, -1, 4, xtol=1e-12) if inside else 0.0
    if inside:
        assert result.normalizer.item() == pytest.approx(a, abs=1e-9)
    exact = [mass(a, k) / mass(a) for k in (1, 2)]
    assert result.value[0].tolist() == pytest.approx(exact, abs=1e-8)
    moved = reference(weights + np.array([0.0, 0.0, 1e-5, 0.0, 0.0]))
    difference = (moved.value - result.value) @ torch.tensor([1.0, -2.0], dtype=DOUBLE) / 1e-5
    assert result.slope[0, 2].item() == pytest.approx(difference.item(), rel=1e-3)


def test_the_reference_of_divergences_agrees_with_closed_forms() -> None:
    """KL from a uniform density on a disc: log of the areas' ratio; Tsallis at 3/2 likewise."""
    loc = np.zeros((2, 2))
    tril = np.stack([0.5 * np.eye(2), np.eye(2)])
    kl, tsallis = divergences(loc, tril, (0.0, 0.0))
    assert (kl, tsallis) == pytest.approx((math.log(4), 2.0))


def test_rivals_agree_with_expect() -> None:
    loc, scale = torch.tensor([0.3, 0.6]).double(), torch.tensor([0.2, 0.3]).double()
    psi = expect.sf.bases.GaussianRBF(torch.linspace(0, 1, 5).double(), torch.tensor(0.1).double())
    rule = trapezoid_on_supports(CLOSED[2], loc, scale, psi)
    torch.testing.assert_close(rule, CLOSED[2].build(loc, scale).expect(psi), rtol=1e-4, atol=1e-6)
    (center, tril), _, basis = ball_inputs(3, 9, 2, 0.3, (0.2, 0.4))
    rule = polar_rule(center, tril, basis.centers, basis.widths)
    exact = expect.sf.TruncatedParaboloid(center, tril).expect(basis)
    torch.testing.assert_close(rule, exact, rtol=1e-4, atol=1e-5)


def test_limits_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = accuracy.line_cases([1.0], 0.37, 0.05)
    assert accuracy.line_table("", CLOSED[2:3], cases)[1] == []
    monkeypatch.setattr(accuracy, "LIMITS", {torch.float32: (1e-9, 2e-5)})
    assert accuracy.line_table("", CLOSED[2:3], cases)[1] == ["α = 2, float32: value"]
    (error, _) = accuracy.kernel_errors(0.2, 1.0, [(2.0, True)], 2)
    assert error.exceeded() == [] and accuracy.divergence_table()[1] == []
    far = replace(error, errors=error.errors + torch.tensor([[0.0], [1e-3], [math.inf]]))
    assert far.exceeded() == far.exceeded(100, 2) == ["value", "∂ weights"]
    assert replace(far, alpha=1.75).exceeded() == []


def test_times_are_medians_of_alternating_calls() -> None:
    order: list[str] = []
    naps = {"short": 0.001, "long": 0.004}

    def call(name: str) -> None:
        order.append(name)
        time.sleep(naps[name])

    calls = {name: (lambda name=name: call(name)) for name in naps}
    seconds = alternate(calls, budget=0, rounds=3, clock=time.perf_counter)
    assert order == ["short", "long"] * 4
    assert 0.001 <= seconds["short"] and 0.004 <= seconds["long"]
    assert harness.ratio([2.0, 6.0, 4.0], [1.0, 2.0, 2.0]) == 2


def test_workers_time_cases_of_a_checkout(tmp_path: Path) -> None:
    settings = {"densities": 8, "functions": 4}
    with Worker("line", settings, threads=2, checkout=harness.ROOT) as worker:
        assert len(worker.seconds(3)) == 3 and worker.megabytes() >= 0
        rounds = harness.alternate_workers({"a": worker}, budget=0, rounds=2)
        assert len(rounds["a"]) == 2 and rounds["a"][0] > 0
    other = tmp_path / "sparsefam"
    other.mkdir()
    (other / "__init__.py").write_text("raise SystemExit(3)")
    with pytest.raises(RuntimeError, match="ended"):
        Worker("line", checkout=tmp_path)
    with harness.busy():
        pass


def test_memory_is_that_of_the_call() -> None:
    def call() -> float:
        return torch.ones(25_000_000).sum().item()  # 100 MB

    assert 95 < harness.peak_megabytes(call) < 150
    assert harness.allocated_megabytes(call) == pytest.approx(100, rel=0.01)


def test_tables_go_between_the_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "DOCS", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- a: made by c -->\nold\n<!-- a: end -->\nafter\n")
    harness.show_and_write("a", "c", [Table("T", ["x", "y"], [["1", "2"]])], True, "page.md")
    text = page.read_text()
    assert "| 1 | 2 |" in text and "old" not in text and text.endswith("<!-- a: end -->\nafter\n")
    with pytest.raises(ValueError, match="one section"):
        harness.show_and_write("b", "c", [], True, "page.md")


SECTIONS = {
    "benchmarks.md": {
        "accuracy": ("accuracy", "dimensions", "kernel accuracy"),
        "expect": ("expectations", "plane", "kernels", "entmax"),
        "estimation": ("density estimation",),
        "threads": ("threads",),
        "first_call": ("first calls",),
    },
    "long-sequences.md": {"attention": ("attention",)},
    "value-functions.md": {"attention": ("regression",)},
}


def test_every_section_is_in_its_page() -> None:
    for page, modules in SECTIONS.items():
        text = (harness.DOCS / page).read_text()
        for module, names in modules.items():
            for name in names:
                mark = f"<!-- {name}: made by python -m benchmarks.{module} --write -->"
                assert text.count(mark) == text.count(f"<!-- {name}: end -->") == 1


TINY: dict[str, Callable[[], Table | Sequence[Table]]] = {
    "dimensions": lambda: accuracy.ball_table([2], [1.5], [1.0])[0],
    "kernel accuracy": lambda: accuracy.kernel_tables(
        accuracy.kernel_errors(0.2, 1, [(2, True)], 2)
    ),
    "expectations": lambda: expect.line_table(64, 4, 50),
    "plane": lambda: expect.ball_table(2, 4),
    "growth": lambda: expect.growth_table(2),
    "kernels": lambda: expect.kernel_table(1, 2, 1),
    "entmax": lambda: expect.entmax_table(256, (16,)),
    "attention": lambda: attention.cost_table((16, 32)),
    "recall": lambda: attention.recall_table((32,)),
    "regression": lambda: attention.error_table((8,), 64),
    "fits": lambda: attention.fit_table((64, 128), 64),
    "estimation": lambda: estimation.tables({40: 1}, jobs=1),
}


@pytest.mark.parametrize("name", TINY)
def test_tables_are_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expect, "_seconds", lambda calls: alternate(calls, 0.0, 1))
    monkeypatch.setattr(expect, "SUPPORTS", {"wide": (0.1, 0.5)})
    monkeypatch.setattr(estimation, "DENSITIES", {"ramp": estimation.DENSITIES["ramp"]})
    tables = TINY[name]()
    for table in [tables] if isinstance(tables, Table) else tables:
        assert table.rows and all(len(row) == len(table.header) for row in table.rows)
        assert "nan" not in table.markdown()


def test_commands_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(threads, "measure", lambda *_: (0.1, 0.6, 1.1, 1.5))
    assert threads.main(["--only", "layer"]) == 0
    monkeypatch.setattr(threads, "measure", lambda *_: (0.1, 0.8, 1.1, 1.5))
    assert threads.main(["--only", "MLP"]) == 0 and threads.main(["--only", "layer"]) == 1
    monkeypatch.setattr(compare, "measure", lambda *_: ([0.1, 0.2], [1.0, 2.0], 1.1))
    assert compare.main(["--only", "1-D", "--against", "."]) == 0
    assert compare.main(["--only", "alpha 1.5, L", "--against", "."]) == 1
    monkeypatch.setattr(first_call, "clone", lambda checkout, folder: checkout)
    monkeypatch.setattr(first_call, "first_seconds", lambda folder, code: (0.5, 0.4))
    assert first_call.main(["--only", "README", "layer"]) == 0
    monkeypatch.setattr(first_call, "first_seconds", lambda folder, code: (1.5, 1.4))
    assert first_call.main(["--only", "README"]) == 1
    assert "1 of 1 calls exceed" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        __main__.main(["--only", "nothing"])
