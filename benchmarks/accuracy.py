"""How accurate E_p[psi] and its gradients are for Gaussian basis functions: `make accuracy`.

Three parts, each against a reference of its own (`benchmarks.reference`): 1-D, many dimensions and
kernel families. Prints the tables and returns 1 if an error exceeds its limit; for kernel families,
where float32 densities may miss theirs, if it exceeds it by far. `--write` puts the tables into
docs/benchmarks.md.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import sparsefam as sf

from .cases import KernelCase, kernel_case, nodes_of
from .harness import Table, parser, relative_error, write_section
from .reference import (
    ANY_ALPHA,
    CLOSED,
    Extended,
    Family,
    GaussianScore,
    Truth,
    ball_integrals,
    bumps,
    cholesky,
    half_width,
    line_integrals,
    score_scale,
    truth,
)
from .rivals import closed_form_around_zero

__all__ = [
    "BallCase",
    "LineCase",
    "ball_cases",
    "ball_errors",
    "ball_table",
    "ball_truths",
    "kernel_error",
    "kernel_tables",
    "kernel_truth",
    "line_cases",
    "line_errors",
    "line_table",
    "main",
]

_COMMAND = "python -m benchmarks.accuracy --write"
DTYPES = (torch.float32, torch.float64)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _limits(limits: dict[torch.dtype, tuple[float, float]]) -> str:
    each = "; ".join(f"{a:g} and {b:g} in {_name(x)}" for x, (a, b) in limits.items())
    return f"Limits of value and derivatives: {each}."


# 1-D: half-widths of the support from 1e-4 to 1e4 widths of the basis functions.

LINE_LIMITS = {torch.float32: (2e-6, 2e-5), torch.float64: (1e-11, 1e-9)}
LINE_QUANTITIES = ("value", "∂ loc", "∂ scale", "∂ σ or b")
LINE_RATIOS = [10 ** (k / 4) for k in range(-16, 17)]


@dataclass(frozen=True)
class LineCase:
    """A density and basis functions around it, in float32: the same numbers in every dtype.

    Attributes:
        ratio: scale / width.
        loc: Centre of the density.
        scale: Half-width of its support.
        centers: Centers of the basis functions.
        width: Their common width.
    """

    ratio: float
    loc: Tensor
    scale: Tensor
    centers: Tensor
    width: Tensor


def line_cases(ratios: Sequence[float], loc: float, width: float) -> list[LineCase]:
    """Return one case a ratio; centers up to 40 widths away, on the support and near its ends."""
    found = []
    for ratio in ratios:
        scale = ratio * width
        ends = torch.tensor([-3.0, -1.6, -0.7, 0.1, 0.9, 1.8, 3.0]).double() * width
        around = loc + width * torch.linspace(-40, 40, 21).double()
        inside = loc + scale * torch.linspace(-1.3, 1.3, 25).double()
        centers = torch.cat([around, inside, loc - scale + ends, loc + scale + ends])
        numbers = torch.tensor(loc), torch.tensor(scale), centers.float(), torch.tensor(width)
        found.append(LineCase(ratio, *numbers))
    return found


def _line_exact(family: Family, case: LineCase, scale: Tensor) -> Tensor:
    """Return E_p[psi] and its derivatives in loc and scale, (3, N), by mpmath."""
    fixed = family, case.loc.item(), scale.item()
    rows = [line_integrals(*fixed, c, case.width.item()) for c in case.centers.tolist()]
    return torch.tensor(rows, dtype=torch.float64).T


def line_errors(family: Family, case: LineCase, dtype: torch.dtype) -> list[float]:
    """Return the errors of the value and the derivatives in loc, scale, and sigma or b.

    The derivative in sigma is judged at the scale that the rounded sigma gives: at scale / width
    = 1e4 the last bit of a float32 scale moves the ends of the support by 1e-3 widths.
    """
    found, _ = _line_result(family.build, case, case.scale, dtype)
    out: list[float] = relative_error(found, _line_exact(family, case, case.scale)).tolist()
    if family.exponent > 0:
        sigma = torch.tensor(score_scale(family, case.scale.item()))
        found, scale = _line_result(family.from_score, case, sigma, dtype)
        exact = _line_exact(family, case, scale)[2] * half_width(family, sigma.item())[1]
        out.append(relative_error(found[2], exact).item())
    return out


def _line_result(
    build: Callable[[Tensor, Tensor], sf.SymmetricDistribution],
    case: LineCase,
    size: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Return E_p[psi] and its derivatives in loc and `size`, (3, N), and p's scale."""
    loc, size = (x.to(dtype).requires_grad_() for x in (case.loc, size))
    p = build(loc, size)
    value = p.expect(sf.bases.GaussianRBF(case.centers.to(dtype), case.width.to(dtype)))
    # One by one, as users differentiate: gradients of a batch would take another path.
    slopes = [torch.autograd.grad(x, (loc, size), retain_graph=True) for x in value]
    found = [value.detach(), *(torch.stack(x) for x in zip(*slopes, strict=True))]
    return torch.stack(found), p.scale.detach()


def line_table(
    title: str, families: Sequence[Family], cases: Sequence[LineCase]
) -> tuple[Table, list[str]]:
    """Return the largest errors, and which exceed their limits."""
    rows, failures = [], []
    for family in families:
        for dtype, (first, rest) in LINE_LIMITS.items():
            columns = zip(*(line_errors(family, case, dtype) for case in cases), strict=True)
            ratios = [case.ratio for case in cases]
            worst = [max(zip(column, ratios, strict=True)) for column in columns]
            limits = [first, rest, rest, rest]
            broken = [
                quantity
                for quantity, (error, _), limit in zip(LINE_QUANTITIES, worst, limits, strict=False)
                if not error <= limit
            ]
            cells = [f"{error:.1e} ({ratio:.2g})" for error, ratio in worst]
            cells += ["–"] * (len(LINE_QUANTITIES) - len(cells))
            verdict = "**exceeded**" if broken else "met"
            rows.append([family.name, _name(dtype), *cells, verdict])
            failures += [f"{family.name}, {_name(dtype)}: {x}" for x in broken]
    return Table(title, ["density", "dtype", *LINE_QUANTITIES, "limits"], rows), failures


def _published_table(cases: Sequence[LineCase]) -> Table:
    rows = []
    for family in CLOSED:
        row = [family.name]
        for case in cases:
            psi = sf.bases.GaussianRBF(case.centers, case.width)
            found = closed_form_around_zero(family, case.loc, case.scale, psi)
            error = relative_error(found, _line_exact(family, case, case.scale)[0])
            row.append(f"{error.item():.0e}")
        rows.append(row)
    title = (
        "For contrast, the published closed form, which expands the density around t = 0: error of "
        "the value in float32 on the same inputs (loc = 0.37, width 0.05), by scale / width."
    )
    return Table(title, ["density", *(f"{case.ratio:.0e}" for case in cases)], rows)


def _near_one_table() -> Table:
    """Return the distance of log densities from the normal's as alpha tends to 1."""
    loc, sigma = torch.tensor(0.37), torch.tensor(0.05)
    t = loc + sigma * torch.linspace(-3, 3, 601)

    def gap(dtype: torch.dtype, alpha: float | Tensor) -> Tensor:
        x, s, at = loc.to(dtype), sigma.to(dtype), t.to(dtype)
        p = sf.BetaGaussian.from_sigma(x, s, alpha)
        return p.log_prob(at) - sf.Normal(x, s).log_prob(at)

    rows = []
    for k in range(1, 7):
        alpha = 1 + 10.0**-k
        double, single = gap(torch.float64, alpha), gap(torch.float32, alpha)
        each = [double, single, gap(torch.float32, torch.tensor(alpha)), single - double]
        rows.append([f"1 + 1e-{k}", *(f"{x.abs().max().item():.1e}" for x in each)])
    title = (
        "α → 1: largest difference between the log densities of BetaGaussian.from_sigma and of the "
        "normal within three σ. Noise: float32 less float64."
    )
    return Table(title, ["α", "float64", "float32", "float32, α a tensor", "noise"], rows)


def _line() -> tuple[list[Table], list[str]]:
    near, far = line_cases(LINE_RATIOS, 0.37, 0.05), line_cases(LINE_RATIOS, -7.3, 1.0)
    title = (
        "Exponents with a closed form: the largest relative error (2-norm over the basis "
        f"functions) and, in brackets, the scale / width where it occurs. {_limits(LINE_LIMITS)}"
    )
    closed, failures = line_table(title, CLOSED, near + far)
    title = "Any other α, by a contour integral: the same errors and limits."
    rest, more = line_table(title, ANY_ALPHA, near[::2])
    return [closed, rest, _published_table(near[::4]), _near_one_table()], failures + more


# Many dimensions: widths of the basis functions from 1e-3 to 1e3 times the support.

BALL_LIMITS = {torch.float32: (2e-6, 2e-5), torch.float64: (1e-11, 1e-8)}
BALL_QUANTITIES = ("value", "∂ loc", "∂ scale_tril", "∂ width", "∂ α")
BALL_RATIOS = [10.0**k for k in range(-3, 4)]
DIMENSIONS = (1, 2, 3, 5, 8)
# As float32 holds them, so that reference, float32 and float64 take the same numbers.
ALPHAS = [float(np.float32(alpha)) for alpha in (1.05, 4 / 3, 1.5, 2.0, 3.0, math.inf)]
# Name: condition of scale_tril, and whether the basis functions have covariance matrices.
SHAPES = {
    "round": (3.0, False),
    "thin": (1e4, False),
    "thinner": (1e6, False),
    "covariances": (1e2, True),
}
# Inputs are moved by this to see what rounding them does; less than the rounding of float32.
_NUDGE = 2.0**-30


@dataclass(frozen=True)
class BallCase:
    """A density and Gaussians around it, in float32: the same numbers in every dtype.

    Attributes:
        ratio: Width of the Gaussians over the support's (the geometric mean of its half-axes, 1).
        loc: (D,).
        scale_tril: (D, D).
        centers: (N, D).
        spread: Standard deviations (N,), or covariances (N, D, D).
    """

    ratio: float
    loc: Tensor
    scale_tril: Tensor
    centers: Tensor
    spread: Tensor


def ball_cases(dim: int, condition: float, ratios: Sequence[float], full: bool) -> list[BallCase]:
    """Return one case for each width."""
    draw = np.random.default_rng([dim, round(condition), full])

    def rotation() -> NDArray[np.float64]:
        return np.linalg.qr(draw.normal(size=(dim, dim)))[0]

    def directions(count: int) -> NDArray[np.float64]:
        found = draw.normal(size=(count, dim))
        return found / np.linalg.norm(found, axis=-1, keepdims=True)

    def spaced(low: float, high: float, count: int) -> NDArray[np.float64]:
        return np.linspace(low, high, count)[:, None] * directions(count)

    exponents = np.linspace(0.5, -0.5, dim) if dim > 1 else np.zeros(1)
    cases = []
    for width in ratios:
        upper = np.linalg.qr((rotation() * condition**exponents).T)[1]
        tril = upper.T * np.sign(np.diagonal(upper))
        loc = draw.uniform(-1, 1, dim)
        inside = spaced(0, 0.95, 6) @ tril.T
        surface = directions(8) @ tril.T + width * spaced(-2, 2, 8)
        around, far = width * spaced(0.3, 3, 4), 40 * width * directions(2)
        outside = spaced(1.02, 1.6, 24) @ tril.T
        centers = loc + np.concatenate([inside, surface, outside, around, far])
        spread = np.full(len(centers), width)
        if full:
            # Condition 1e3: float32 entries of a matrix cannot hold much more.
            roots = [width * rotation() * 10 ** (1.5 * exponents) for _ in centers]
            spread = np.stack([root @ root.T for root in roots])
        numbers = (torch.from_numpy(x).float() for x in (loc, tril, centers, spread))
        cases.append(BallCase(width, *numbers))
    return cases


# Of each quantity, (N, ...): the exact values, and their change per relative change of the inputs.
BallTruth = tuple[list[NDArray[np.float64]], list[NDArray[np.float64]]]


def ball_truths(cases: Sequence[BallCase], alpha: float) -> list[BallTruth]:
    """Return the references of cases that agree in dimension and in the kind of spread."""
    draw = np.random.default_rng(0)
    inputs = [
        np.stack([getattr(case, name).numpy() for case in cases]).astype(np.longdouble)
        for name in ("loc", "scale_tril", "centers", "spread")
    ]

    def nudged(x: Extended) -> Extended:
        signs = draw.choice([-1.0, 1.0], size=x.shape)
        if x.ndim == 4:  # covariances stay symmetric
            signs = np.tril(signs) + np.swapaxes(np.tril(signs, -1), -1, -2)
        return x * (1 + _NUDGE * signs)

    exact = _ball_exact(inputs, alpha)
    beside = _ball_exact([nudged(x) for x in inputs], alpha)
    moved = [(y - x) / _NUDGE for x, y in zip(exact, beside, strict=True)]
    return [
        ([np.float64(x[i]) for x in exact], [np.float64(x[i]) for x in moved])
        for i in range(len(cases))
    ]


def _ball_exact(inputs: Sequence[Extended], alpha: float) -> list[Extended]:
    loc, scale_tril, centers, spread = inputs
    exponent = 0.0 if alpha == math.inf else float(1 / (np.longdouble(alpha) - 1))
    full = spread.ndim == 4
    roots = cholesky(spread) if full else spread
    found = ball_integrals(loc, scale_tril, centers, roots, exponent)
    by_spread = found.by_covariance
    if not full:
        by_spread = 2 * spread * np.trace(by_spread, axis1=-2, axis2=-1)
    columns = [found.value, found.by_loc, found.by_scale_tril, by_spread]
    if alpha < math.inf:
        columns.append(-found.by_exponent / (np.longdouble(alpha) - 1) ** 2)
    return columns


def ball_errors(
    case: BallCase, exact: BallTruth, alpha: float, dtype: torch.dtype
) -> list[tuple[float, float]]:
    """Return each quantity's error relative to its norm, and as it is judged.

    Where rounding the inputs alone would move a quantity by more than its norm times the rounding,
    its error is judged relative to that movement.
    """
    out = []
    for found, true, moved in zip(_ball_result(case, alpha, dtype), *exact, strict=True):
        gap = np.nan_to_num(found.numpy() - true, nan=np.inf)
        with np.errstate(over="ignore"):
            error = np.linalg.norm(gap)
        norm = np.linalg.norm(true)
        out.append((float(error / norm), float(error / max(norm, np.linalg.norm(moved)))))
    return out


def _ball_result(case: BallCase, alpha: float, dtype: torch.dtype) -> list[Tensor]:
    loc, scale_tril = (x.to(dtype, copy=True).requires_grad_() for x in (case.loc, case.scale_tril))
    spread = torch.nn.Parameter(case.spread.to(dtype, copy=True))
    full = case.spread.dim() > 1

    def basis(x: Tensor) -> sf.bases.GaussianRBF:
        kind = "covariance" if full else "widths"
        return sf.bases.GaussianRBF(case.centers.to(dtype), **{kind: x})

    p = sf.MultivariateBetaGaussian(loc, scale_tril, alpha)
    # A learned basis takes another path, and so do gradients of a batch: both are tried.
    value = p.expect(basis(spread.detach()))
    each = [torch.autograd.grad(x, (loc, scale_tril), retain_graph=True) for x in value]
    slopes = [torch.stack(x) for x in zip(*each, strict=True)]
    psi = basis(spread)
    (by_spread,) = torch.autograd.grad(p.expect(psi).sum(), spread)
    if full:
        by_spread = (by_spread + by_spread.mT) / 2
    found = [value, *slopes, by_spread]
    if alpha < math.inf:
        power = torch.tensor(alpha, dtype=dtype, requires_grad=True)
        learned = sf.MultivariateBetaGaussian(loc.detach(), scale_tril.detach(), power).expect(psi)
        whole = torch.eye(len(value), dtype=dtype)
        found += torch.autograd.grad(learned, power, whole, is_grads_batched=True)
    return [x.detach().double() for x in found]


def ball_table(
    dimensions: Sequence[int] = DIMENSIONS,
    alphas: Sequence[float] = ALPHAS,
    ratios: Sequence[float] = BALL_RATIOS,
) -> tuple[Table, list[str]]:
    """Return the largest errors over all alphas and widths, and which exceed their limits."""
    rows, failures = [], []
    for dim in dimensions:
        for shape, (condition, full) in SHAPES.items():
            if dim == 1 and "thin" in shape:
                continue
            cases = ball_cases(dim, condition, ratios, full)
            truths = {alpha: ball_truths(cases, alpha) for alpha in alphas}
            for dtype, (first, rest) in BALL_LIMITS.items():
                # alpha = inf has no derivative in alpha, and so one quantity fewer.
                plain, judged = ([(0.0, 0.0)] * len(BALL_QUANTITIES) for _ in range(2))
                for alpha in alphas:
                    for case, exact in zip(cases, truths[alpha], strict=True):
                        errors = ball_errors(case, exact, alpha, dtype)
                        for i, (error, relative) in enumerate(errors):
                            plain[i] = max(plain[i], (error, case.ratio))
                            judged[i] = max(judged[i], (relative, case.ratio))
                limits = [first, *[rest] * (len(BALL_QUANTITIES) - 1)]
                triples = zip(BALL_QUANTITIES, judged, limits, strict=True)
                broken = [name for name, (error, _), limit in triples if not error <= limit]
                cells = [f"{error:.1e} ({ratio:.0e})" for error, ratio in plain]
                verdict = "**exceeded**" if broken else "met"
                rows.append([str(dim), shape, _name(dtype), *cells, verdict])
                failures += [f"D = {dim}, {shape}, {_name(dtype)}: {name}" for name in broken]
    title = (
        "Many dimensions: the largest relative error (2-norm over the basis functions) for α in "
        "1.05, 4/3, 3/2, 2, 3 and ∞, and, in brackets, the width / support where it occurs. "
        + _limits(BALL_LIMITS)
    )
    return Table(title, ["D", "support", "dtype", *BALL_QUANTITIES, "limits"], rows), failures


# Kernel families: bandwidths down to a hundredth of the interval.

KERNEL_QUANTITIES = ("Z", "value", "∂ weights")
KERNEL_LIMITS = {torch.float32: 2e-6, torch.float64: 1e-10}
MOST_NODES = {torch.float32: 512}
# The command fails where an error exceeds its limit this many times, or the median of a setting.
FAR, FAR_MEDIAN = 100.0, 2.0
BANDWIDTHS, SPREADS, ROWS = (0.2, 0.1, 0.05, 0.02, 0.01), (1.0, 3.0, 10.0), 8
# No limit for alpha = 1.75: its power 4/3 is no polynomial, so that edges converge slowly.
REPORTED = 1.75
KERNEL_DENSITIES = [(1.0, True)] + [
    (alpha, inside) for alpha in (1.25, 1.5, REPORTED, 2.0) for inside in (True, False)
]


@dataclass(frozen=True)
class KernelError:
    """The errors of some densities of one family in one setting.

    Attributes:
        alpha: From 1 to 2.
        inside: Which normalization.
        dtype: What the package computed in.
        bandwidth: Of the kernel.
        spread: The standard deviation of the scores.
        nodes: Number of quadrature nodes.
        errors: Relative errors of each quantity, (3, R).
        rounding: How far the quantities move when the inputs are rounded to float32, (3, R).
    """

    alpha: float
    inside: bool
    dtype: torch.dtype
    bandwidth: float
    spread: float
    nodes: int
    errors: Tensor
    rounding: Tensor

    @property
    def name(self) -> str:
        """The family, for a table."""
        return f"α = {self.alpha:g}" + (
            "" if self.alpha == 1 else ", inside" if self.inside else ", outside"
        )

    @property
    def where(self) -> str:
        """The setting, for a table."""
        return f"{self.bandwidth:g}, {self.spread:g}"

    def exceeded(self, factor: float = 1.0, factor_of_median: float = math.inf) -> list[str]:
        """Return the quantities whose errors exceed the limit so many times."""
        if self.alpha == REPORTED:
            return []
        limit = KERNEL_LIMITS[self.dtype]
        worst, middle = self.errors.amax(-1), self.errors.median(-1).values
        broken = ~((worst <= factor * limit) & (middle <= factor_of_median * limit))
        return [x for x, is_broken in zip(KERNEL_QUANTITIES, broken, strict=True) if is_broken]


def kernel_truth(case: KernelCase, alpha: float, inside: bool, every: int = 1) -> Truth:
    """Return the reference of one density in `every`."""
    score = GaussianScore(
        case.weights.flatten(0, -2)[::every].double(), case.points.double(), case.bandwidth
    )
    psi = bumps(case.centers, case.widths)
    return truth(score, alpha, inside, psi, case.upstream.flatten(0, -2)[::every].double())


def kernel_error(
    bandwidth: float, spread: float, densities: Sequence[tuple[float, bool]], rows: int = ROWS
) -> list[KernelError]:
    """Return the errors of all densities in both dtypes."""
    drawn = kernel_case((rows,), bandwidth, spread, (0.025, 0.1, 0.5))
    single = drawn.to(torch.float32)
    double = single.to(torch.float64)
    out = []
    for alpha, inside in densities:
        kind = alpha, inside
        exact = kernel_truth(double, *kind)
        rounding = _kernel_gap(*kind, exact, kernel_truth(drawn, *kind))
        for case in (single, double):
            weights = case.weights.clone().requires_grad_()
            p = case.builder(*kind)(weights)
            value = p.expect(case.basis)
            (slope,) = torch.autograd.grad(value, weights, case.upstream)
            found = Truth(*(x.detach().double() for x in (p.log_normalizer, value, slope)))
            (mesh,) = nodes_of(p).values()
            nodes = len(mesh.for_basis(case.basis).nodes)
            errors = _kernel_gap(*kind, found, exact)
            setting = (case.weights.dtype, bandwidth, spread, nodes)
            out.append(KernelError(*kind, *setting, errors, rounding))
    return out


def _kernel_gap(alpha: float, inside: bool, found: Truth, exact: Truth) -> Tensor:
    """Return the relative errors of Z, of the value and of the gradient in the weights, (3, R).

    Inside, where there is no Z, that of A takes its place, absolute where A is below 1.
    """
    eps = alpha - 1
    if not eps or inside:
        gap = (found.normalizer - exact.normalizer).abs()
        if eps:
            gap = gap / exact.normalizer.abs().clamp_min(1)
    else:
        logs = [-torch.log1p(-eps * x.normalizer) / eps for x in (found, exact)]
        gap = (logs[0] - logs[1]).abs()
    pairs = (found.value, exact.value), (found.slope, exact.slope)
    return torch.stack([gap, *(relative_error(x, y) for x, y in pairs)]).nan_to_num(math.inf)


def kernel_tables(found: Sequence[KernelError]) -> list[Table]:
    """Return the errors by density in either dtype, and by setting in float32."""
    tables = []
    for dtype, limit in KERNEL_LIMITS.items():
        mine = [x for x in found if x.dtype == dtype]
        rows = [_kernel_row(mine, "name", x) for x in dict.fromkeys(x.name for x in mine)]
        title = (
            f"Kernel families in {_name(dtype)}: the largest relative error of a density and, in "
            "brackets, the bandwidth and the standard deviation of the score where it occurs. "
            f"Limit: {limit:g}, with at most {MOST_NODES.get(dtype, 'any number of')} nodes. "
            "Rounding: the change that rounding the inputs to float32 causes at most. "
            f"α = {REPORTED:g} at standard deviation 3 only."
        )
        tables.append(Table(title, _kernel_header("density"), rows))
    mine = [x for x in found if x.dtype == torch.float32 and x.alpha != REPORTED]
    rows = [_kernel_row(mine, "where", x) for x in dict.fromkeys(x.where for x in mine)]
    title = f"The same in float32 by bandwidth and standard deviation, without α = {REPORTED:g}."
    return [*tables, Table(title, _kernel_header("bandwidth, score"), rows)]


def _kernel_header(first: str) -> list[str]:
    columns = [x for quantity in KERNEL_QUANTITIES for x in (quantity, "rounding")]
    return [first, *columns, "median ∂", "met by", "nodes", "limit"]


def _kernel_row(found: Sequence[KernelError], key: str, label: str) -> list[str]:
    some = [x for x in found if getattr(x, key) == label]
    cells = []
    for i in range(len(KERNEL_QUANTITIES)):
        worst = max(some, key=lambda x: x.errors[i].max().item())
        place = f" ({worst.where})" if key == "name" else ""
        cells.append(f"{worst.errors[i].max().item():.1e}{place}")
        cells.append(f"{max(x.rounding[i].max().item() for x in some):.0e}")
    median = torch.cat([x.errors[-1] for x in some]).median().item()
    met = torch.cat([(x.errors <= KERNEL_LIMITS[x.dtype]).all(0) for x in some])
    nodes = max(x.nodes for x in some)
    kept = nodes <= MOST_NODES.get(some[0].dtype, nodes) and not any(x.exceeded() for x in some)
    verdict = "none" if all(x.alpha == REPORTED for x in some) else "met" if kept else "**not met**"
    share = f"{math.floor(100 * met.double().mean().item())} %"
    return [label, *cells, f"{median:.0e}", share, str(nodes), verdict]


def _kernels() -> tuple[list[Table], list[str]]:
    found: list[KernelError] = []
    for bandwidth in BANDWIDTHS:
        for spread in SPREADS:
            asked = [x for x in KERNEL_DENSITIES if x[0] != REPORTED or spread == 3]
            found += kernel_error(bandwidth, spread, asked)
    failures = [
        f"{x.name}, {_name(x.dtype)}, {x.where}: {', '.join(broken)}"
        for x in found
        if (broken := x.exceeded(FAR, FAR_MEDIAN))
    ]
    return kernel_tables(found), failures


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return 1 if a limit is exceeded."""
    options = parser(__doc__, write=True).parse_args(arguments)
    torch.set_num_threads(1)  # the tensors are small
    failures: list[str] = []

    def dimensions() -> tuple[list[Table], list[str]]:
        table, broken = ball_table()
        return [table], broken

    parts = {"accuracy": _line, "dimensions": dimensions, "kernel accuracy": _kernels}
    for section, part in parts.items():
        tables, broken = part()
        failures += broken
        for table in tables:
            table.show()
        if options.write:
            write_section(section, _COMMAND, [x.markdown() for x in tables], "benchmarks.md")
    for failure in failures:
        print(f"limit exceeded: {failure}")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
