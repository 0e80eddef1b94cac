"""The references agree with each other, the harness measures, and every table can be made."""

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
from torch import Tensor

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
from benchmarks.cases import CASES, kernel_case
from benchmarks.harness import Table, Worker, alternate
from benchmarks.reference import (
    ANY_ALPHA,
    CLOSED,
    Family,
    GaussianScore,
    Integrals,
    ball_integrals,
    half_width,
    line_integrals,
    score_scale,
    truth,
)
from benchmarks.rivals import polar_rule, trapezoid_on_supports

FAMILIES = [CLOSED[1], CLOSED[4], ANY_ALPHA[2]]


def _line_by_quad(family: Family, loc: float, scale: float, center: float, width: float) -> float:
    def density(x: float) -> float:
        return max(0.0, 1 - abs(x) ** family.order) ** family.exponent

    def integrand(x: float) -> float:
        z = (loc + scale * x - center) / width
        return density(x) * math.exp(-z * z / 2) / (width * math.sqrt(2 * math.pi))

    limits = {"points": (0.0,), "epsabs": 0, "epsrel": 1e-12, "limit": 200}
    return quad(integrand, -1, 1, **limits)[0] / quad(density, -1, 1, **limits)[0]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda x: x.name)
def test_the_1d_reference_agrees_with_adaptive_quadrature(family: Family) -> None:
    where, step = (0.3, 0.4, 0.5, 0.2), 1e-4
    value, by_loc, by_scale = line_integrals(family, *where)
    assert value == pytest.approx(_line_by_quad(family, *where), rel=1e-11)
    for slope, move in ((by_loc, (step, 0.0)), (by_scale, (0.0, step))):
        high, low = (
            _line_by_quad(family, 0.3 + s * move[0], 0.4 + s * move[1], 0.5, 0.2) for s in (1, -1)
        )
        assert slope == pytest.approx((high - low) / (2 * step), rel=1e-6)
    sigma = score_scale(family, 0.7)
    assert half_width(family, sigma)[0] == pytest.approx(0.7, rel=1e-14)
    assert family.from_score(torch.zeros(()), torch.tensor(sigma).double()).scale.item() == (
        pytest.approx(0.7, rel=1e-7)
    )


@pytest.mark.parametrize("family", [CLOSED[2], ANY_ALPHA[2]], ids=lambda x: x.name)
@pytest.mark.parametrize(("scale", "width"), [(0.5, 0.25), (1e-3, 1.0), (100.0, 1.0)])
def test_the_contour_agrees_with_mpmath_in_1d(family: Family, scale: float, width: float) -> None:
    centers = [0.25, 0.25 + scale, 0.25 - 0.75 * scale]
    found = ball_integrals(
        np.full((1, 1), 0.25, np.longdouble),
        np.full((1, 1, 1), scale, np.longdouble),
        np.array(centers, np.longdouble).reshape(1, 3, 1),
        np.full((1, 3), width, np.longdouble),
        family.exponent,
    )
    exact = [line_integrals(family, 0.25, scale, center, width) for center in centers]
    columns = found.value, found.by_loc[..., 0], found.by_scale_tril[..., 0, 0]
    for column, true in zip(columns, np.array(exact).T, strict=True):
        assert np.linalg.norm(np.float64(column[0]) - true) < 1e-13 * np.linalg.norm(true)


def test_the_contour_agrees_with_quadrature_in_2d_and_with_differences() -> None:
    loc, tril = np.array([[0.1, -0.2]]), np.array([[[0.8, 0.0], [0.3, 0.5]]])
    center, root, m = np.array([[[0.4, 0.1]]]), np.array([[[[0.3, 0.0], [0.1, 0.4]]]]), 0.7

    def integrate(*changed: np.ndarray, exponent: float = m) -> Integrals:
        given = [np.asarray(x, np.longdouble) for x in changed]
        return ball_integrals(*given, exponent)

    found = integrate(loc, tril, center, root)
    inverse = np.linalg.inv(root[0, 0])

    def integrand(r: float, angle: float) -> float:
        t = loc[0] + tril[0] @ (r * np.array([math.cos(angle), math.sin(angle)]))
        z = inverse @ (t - center[0, 0])
        return r * (1 - r * r) ** m * math.exp(-z @ z / 2)

    mass = math.pi / (m + 1) * 2 * math.pi * np.linalg.det(root[0, 0])
    by_quad = dblquad(integrand, 0, 2 * math.pi, 0, 1, epsabs=0, epsrel=1e-10)[0] / mass
    assert float(found.value[0, 0]) == pytest.approx(by_quad, rel=1e-9)
    step, across, below = 1e-6, np.array([[1e-6, 0.0]]), np.zeros((1, 2, 2))
    below[0, 1, 0] = step
    pairs = (
        (found.by_loc[0, 0, 0], lambda s: integrate(loc + s * across, tril, center, root)),
        (found.by_scale_tril[0, 0, 1, 0], lambda s: integrate(loc, tril + s * below, center, root)),
        (
            found.by_exponent[0, 0],
            lambda s: integrate(loc, tril, center, root, exponent=m + s * step),
        ),
    )
    for slope, moved in pairs:
        difference = (moved(1).value - moved(-1).value)[0, 0] / (2 * step)
        assert float(slope) == pytest.approx(float(difference), rel=1e-6)


@pytest.mark.parametrize(
    ("alpha", "inside"), [(1.0, True), (1.5, True), (1.75, True), (2.0, False)]
)
def test_the_kernel_reference_agrees_with_adaptive_quadrature(alpha: float, inside: bool) -> None:
    eps, points = alpha - 1, torch.linspace(0, 1, 5).double()
    weights = torch.tensor([[2.0, -3.0, 4.0, -1.0, 2.5]], dtype=torch.float64)

    def power(t: float, a: float) -> float:
        f = float(weights[0] @ torch.exp(-((t - points) / 0.1).square() / 2))
        bracket = max(0.0, 1 + eps * (f - a))
        return math.exp(f - a) if eps == 0 else bracket ** (1 / eps) if bracket else 0.0

    def mass(a: float, psi: Callable[[float], float] = lambda t: 1.0) -> float:
        cuts = np.linspace(0, 1, 41)
        each = (
            quad(lambda t: power(t, a) * psi(t), x, y, epsabs=1e-13, limit=200)[0]
            for x, y in zip(cuts, cuts[1:], strict=False)
        )
        return sum(each)

    def psi(t: Tensor) -> Tensor:
        return torch.stack([t, t.square()], -1)

    upstream = torch.tensor([[1.0, -2.0]], dtype=torch.float64)
    found = truth(GaussianScore(weights, points, 0.1), alpha, inside, psi, upstream)
    a = brentq(lambda x: mass(x) - 1, -1, 4, xtol=1e-12) if inside else 0.0
    if inside:
        assert found.normalizer.item() == pytest.approx(a, abs=1e-9)
    exact = [mass(a, lambda t, k=k: t**k) / mass(a) for k in (1, 2)]
    assert found.value[0].tolist() == pytest.approx(exact, abs=1e-8)
    step = 1e-5
    moved = weights.clone()
    moved[0, 2] += step
    beside = truth(GaussianScore(moved, points, 0.1), alpha, inside, psi, upstream)
    difference = ((beside.value - found.value) * upstream).sum() / step
    assert found.slope[0, 2].item() == pytest.approx(difference.item(), rel=1e-3)


def test_rivals_agree_with_expect() -> None:
    loc, scale = torch.tensor([0.3, 0.6]).double(), torch.tensor([0.2, 0.3]).double()
    psi = expect.sf.bases.GaussianRBF(torch.linspace(0, 1, 5).double(), torch.tensor(0.1).double())
    rule = trapezoid_on_supports(CLOSED[2], loc, scale, psi)
    torch.testing.assert_close(rule, CLOSED[2].build(loc, scale).expect(psi), rtol=1e-4, atol=1e-6)
    (center, tril), _, basis = expect.ball_inputs(3, 9, 2, 0.3, (0.2, 0.4))
    p = expect.sf.TruncatedParaboloid(center, tril)
    rule = polar_rule(center, tril, basis.centers, basis.widths)
    torch.testing.assert_close(rule, p.expect(basis), rtol=1e-4, atol=1e-5)


def test_limits_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = accuracy.line_cases([1.0], 0.37, 0.05)
    assert accuracy.line_table("", CLOSED[2:3], cases)[1] == []
    monkeypatch.setattr(accuracy, "LINE_LIMITS", {torch.float32: (1e-9, 2e-5)})
    assert accuracy.line_table("", CLOSED[2:3], cases)[1] == ["α = 2, float32: value"]
    (error, _) = accuracy.kernel_error(0.2, 1.0, [(2.0, True)], 2)
    assert error.exceeded() == []
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
    with Worker(
        "line", {"densities": 8, "functions": 4}, threads=2, checkout=harness.ROOT
    ) as worker:
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

    assert 95 < harness._peak_megabytes(call) < 150
    assert harness.allocated_megabytes(call) == pytest.approx(100, rel=0.01)


def test_tables_go_between_the_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "DOCS", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- a: made by c -->\nold\n<!-- a: end -->\nafter\n")
    harness.write_section("a", "c", [Table("T", ["x", "y"], [["1", "2"]]).markdown()], "page.md")
    text = page.read_text()
    assert "| 1 | 2 |" in text and "old" not in text and text.endswith("<!-- a: end -->\nafter\n")
    with pytest.raises(ValueError, match="one section"):
        harness.write_section("b", "c", [], "page.md")


def test_every_section_is_in_its_page() -> None:
    sections = {name: part.sections for name, part in __main__.PARTS.items()}
    sections["threads"] = {"benchmarks.md": ("threads",)}
    sections["first_call"] = {"benchmarks.md": ("first calls",)}
    for module, pages in sections.items():
        for page, names in pages.items():
            text = (harness.DOCS / page).read_text()
            for name in names:
                mark = f"<!-- {name}: made by python -m benchmarks.{module} --write -->"
                assert text.count(mark) == text.count(f"<!-- {name}: end -->") == 1


TINY: dict[str, Callable[[], Table | Sequence[Table]]] = {
    "dimensions": lambda: accuracy.ball_table([2], [1.5], [1.0])[0],
    "kernel accuracy": lambda: accuracy.kernel_tables(
        accuracy.kernel_error(0.2, 1, [(2, True)], 2)
    ),
    "expectations": lambda: expect.line_table(64, 4, 50),
    "plane": lambda: expect.ball_table(2, 4),
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
    monkeypatch.setattr(
        estimation,
        "DENSITIES",
        {"ramp": estimation.DENSITIES["ramp"]}
        | {"two parabolas": estimation.DENSITIES["two parabolas"]},
    )
    found = TINY[name]()
    for table in [found] if isinstance(found, Table) else found:
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


def test_cases_are_those_of_the_kernel_paper() -> None:
    case = kernel_case((2,), 0.05, 3.0, (0.1, 0.5))
    assert case.weights.shape == (2, 256) and case.basis.centers.shape == (64,)
    assert set(CASES) >= {"line", "ball", "kernel", "layer", "multihead", "mlp", "density_fit"}
