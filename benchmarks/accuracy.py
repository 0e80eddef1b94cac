"""Errors of expectations against independent references: `make accuracy`.

Prints a table for each part (1-D and its edges, many dimensions, kernel families, truncated
densities) and returns 1 if an error exceeds its limit, or four times the one that
benchmarks/accuracy.json records. Single kernel densities may miss their limit: the command fails
only if one does so by far, or the median of a setting does. `--write` updates docs/benchmarks.md
and the file of errors.
"""

import json
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from references import Kernel, gaussian, gaussians
from torch import Tensor

import sparsefam as sf
from sparsefam._numerics.gaussian_interval import negligible_distance

from .cases import KernelCase, kernel_case
from .harness import Table, parser, relative_error, run
from .reference import (
    ANY_ALPHA,
    CLOSED,
    LAWS,
    Array,
    Extended,
    Family,
    Law,
    ball_integrals,
    line_integrals,
    truncated_truth,
)

# Of values and of derivatives.
Limits = dict[torch.dtype, tuple[float, float]]
LIMITS: Limits = {torch.float32: (2e-6, 2e-5), torch.float64: (1e-11, 1e-9)}
BALL_LIMITS: Limits = {torch.float32: (2e-6, 2e-5), torch.float64: (1e-11, 1e-8)}


# Errors of the last run with `--write`, by row and quantity. They may grow by a factor, since
# processors round differently; those below a share of their limit are rounding.
RECORD = Path(__file__).with_suffix(".json")
GROWTH, ROUNDING = 4.0, 1e-3


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _text(limits: Limits) -> str:
    each = "; ".join(f"{a:g} and {b:g} in {_name(x)}" for x, (a, b) in limits.items())
    return f"Limits of value and derivatives: {each}."


class Errors:
    """A row of a table: the largest error of each quantity, and the setting in which it occurs.

    Args:
        part: The table, which makes names unique.
        names: The first cells of the row.
        quantities: Their names; those of derivatives begin with ∂.
        limits: Of values and of derivatives.
    """

    def __init__(
        self,
        part: str,
        names: Sequence[str],
        quantities: Sequence[str],
        limits: tuple[float, float],
    ) -> None:
        self.key, self.names = ", ".join([part, *names]), names
        self._limits = {name: limits[name.startswith("∂")] for name in quantities}
        self._shown: dict[str, tuple[float, str]] = {}
        self._judged = dict.fromkeys(quantities, 0.0)

    def add(self, setting: str, shown: Sequence[float], judged: Sequence[float] = ()) -> None:
        """Add the errors of the first quantities; limits apply to those judged, if given."""
        for name, error, other in zip(self._judged, shown, judged or shown, strict=False):
            self._shown[name] = max(self._shown.get(name, (-1.0, "")), (error, setting))
            self._judged[name] = max(self._judged[name], other)

    @property
    def cells(self) -> list[str]:
        """The names, and a cell for each quantity."""
        cells = []
        for error, setting in (self._shown.get(name, (None, "")) for name in self._judged):
            number = "–" if error is None else f"{error:.1e}" if setting else f"{error:.0e}"
            cells.append(f"{number} ({setting})" if setting else number)
        return [*self.names, *cells]

    @property
    def failures(self) -> list[str]:
        """Which limits are exceeded, and which errors are larger than recorded ones."""
        broken = [name for name, limit in self._limits.items() if not self._judged[name] <= limit]
        known = json.loads(RECORD.read_text()).get(self.key, {}) if RECORD.exists() else {}
        row = ", ".join(self.names)
        found = [f"{row}: {name}" for name in broken]
        for name, error in known.items():
            least = ROUNDING * self._limits[name] if self._limits[name] < math.inf else 0.0
            if name not in broken and not self._judged[name] <= GROWTH * max(error, least):
                found.append(f"{row}: {name}, {self._judged[name]:.1e} instead of {error:.1e}")
        return found

    @property
    def record(self) -> dict[str, float]:
        """The errors that limits apply to, as the file has them."""
        return {name: float(f"{error:.1e}") for name, error in self._judged.items()}


# Rows of the tables that were made.
_MADE: dict[str, dict[str, float]] = {}


def _table(title: str, header: Sequence[str], rows: Sequence[Errors]) -> Table:
    """Return a table whose last column says whether the limits are met."""
    _MADE.update({row.key: row.record for row in rows})
    lines = [[*row.cells, "**exceeded**" if row.failures else "met"] for row in rows]
    return Table(title, [*header, "limits"], lines, [x for row in rows for x in row.failures])


# One dimension: half-widths of the support from 1e-4 to 1e4 widths of the basis functions

LINE_QUANTITIES = ("value", "∂ loc", "∂ scale")
LINE_RATIOS = [10 ** (k / 4) for k in range(-16, 17)]


class LineCase(NamedTuple):
    """A density and Gaussians of one width around it, in float32: the same numbers in every dtype.

    The ratio is scale / width; there are N centers.
    """

    ratio: float
    loc: Tensor
    scale: Tensor
    centers: Tensor
    width: Tensor


def line_cases(ratios: Sequence[float], loc: float, width: float) -> list[LineCase]:
    """Return a case for each ratio: centers up to 40 widths away, inside and near the edges."""
    cases = []
    for ratio in ratios:
        scale = ratio * width
        edge = torch.tensor([-3.0, -1.6, -0.7, 0.1, 0.9, 1.8, 3.0]).double() * width
        around = loc + width * torch.linspace(-40, 40, 21).double()
        inside = loc + scale * torch.linspace(-1.3, 1.3, 25).double()
        centers = torch.cat([around, inside, loc - scale + edge, loc + scale + edge])
        numbers = torch.tensor(loc), torch.tensor(scale), centers.float(), torch.tensor(width)
        cases.append(LineCase(ratio, *numbers))
    return cases


def line_errors(family: Family, case: LineCase, dtype: torch.dtype) -> list[float]:
    """Return the errors of the value and of the derivatives in loc and scale."""
    loc, scale = (x.to(dtype).requires_grad_() for x in (case.loc, case.scale))
    psi = sf.bases.GaussianRBF(case.centers.to(dtype), case.width.to(dtype))
    value = family.build(loc, scale).expect(psi)
    # One by one, as users differentiate: gradients of a batch are computed in another way.
    slopes = [torch.autograd.grad(x, (loc, scale), retain_graph=True) for x in value]
    columns = [value.detach(), *(torch.stack(x) for x in zip(*slopes, strict=True))]
    numbers = case.loc.item(), case.scale.item(), case.centers.double().numpy(), case.width.item()
    exact = torch.from_numpy(np.float64(line_integrals(family, *numbers)))
    errors: list[float] = relative_error(torch.stack(columns), exact).tolist()
    return errors


def line_table(title: str, families: Sequence[Family], cases: Sequence[LineCase]) -> Table:
    """Return the largest errors of densities."""
    rows = []
    for family, (dtype, limits) in product(families, LIMITS.items()):
        rows.append(Errors("line", [family.name, _name(dtype)], LINE_QUANTITIES, limits))
        for case in cases:
            rows[-1].add(f"{case.ratio:.2g}", line_errors(family, case, dtype))
    return _table(title, ["density", "dtype", *LINE_QUANTITIES], rows)


def line_tables() -> list[Table]:
    """Return the errors of exponents with and without a closed form."""
    near, far = line_cases(LINE_RATIOS, 0.37, 0.05), line_cases(LINE_RATIOS, -7.3, 1.0)
    closed = (
        "Exponents with a closed form: the largest relative error (2-norm over the basis "
        f"functions) and, in brackets, the scale / width where it occurs. {_text(LIMITS)}"
    )
    other = "Any other α, by a contour integral: the same errors and limits."
    return [line_table(closed, CLOSED, near + far), line_table(other, ANY_ALPHA, near[::2])]


# Pairs of a density and a function that are cut where the other ends

EDGES: dict[str, Callable[[Tensor, Tensor], sf.SymmetricDistribution]] = {
    **{family.name: family.build for family in (*CLOSED, *ANY_ALPHA)},
    **{
        f"beta-Laplace, α = {alpha:g}": partial(sf.BetaLaplace, alpha=alpha)
        for alpha in (1.2, 1.5, 2.5, 3.0, 4.0, math.inf)
    },
    "beta-Gaussian, α learned": lambda loc, scale: sf.BetaGaussian(loc, scale, 0 * loc + 3),
    "beta-Laplace, α learned": lambda loc, scale: sf.BetaLaplace(loc, scale, 0 * loc + 3),
    "location-scale, cosh": partial(sf.LocationScale, g=torch.cosh),
}


def edge_table(pairs: int = 10**6, block: int = 10**5) -> Table:
    """Return how many random pairs have a value, or a derivative, that is not finite."""
    torch.manual_seed(0)
    lines: list[list[str]] = [[name] for name in EDGES]
    failures = []
    for (line, (name, build)), dtype in product(zip(lines, EDGES.items(), strict=True), LIMITS):
        counts = torch.zeros(2, dtype=torch.int64)
        for _ in range(pairs // block):
            side, other, size, beside, kind = torch.rand(5, block, dtype=dtype)
            scale = torch.exp(10 * size - 5)
            cut = negligible_distance(scale) * (1 + 10 ** (-9 * kind) * (beside - 0.5))
            edge = build(torch.zeros_like(scale), torch.ones_like(scale)).generator.edge
            # The function is at zero, with width 1; one in four pairs is anywhere.
            loc = (2 * side.round() - 1) * edge * scale + (2 * other.round() - 1) * cut
            loc = torch.where(beside < 0.25, (2 * side - 1) * (edge * scale + cut), loc)
            leaves = loc.requires_grad_(), scale.requires_grad_()
            value = build(*leaves).expect(sf.bases.GaussianRBF([0.0], 1.0).to(dtype))
            slopes = torch.stack(torch.autograd.grad(value.sum(), leaves))
            counts += torch.stack([(~x.isfinite()).sum() for x in (value, slopes.sum(0))])
        line += map(str, counts.tolist())
        failures += [f"{name}, {_name(dtype)}: not finite"] * bool(counts.any())
    title = (
        f"Values and derivatives that are not finite, of {pairs:,} pairs of a density and a "
        "function that is cut at its edge. Limit: 0."
    )
    header = [f"{what}, {_name(dtype)}" for dtype in LIMITS for what in ("values", "∂")]
    return Table(title, ["density", *header], lines, failures)


# Many dimensions: widths of the basis functions from 1e-3 to 1e3 times the support

BALL_QUANTITIES = ("value", "∂ loc", "∂ scale_tril", "∂ width", "∂ α")
BALL_RATIOS = [10.0**k for k in range(-3, 4)]
DIMENSIONS = (1, 2, 3, 5, 8)
# As float32 holds them, so that reference, float32 and float64 take the same numbers.
ALPHAS = [float(np.float32(alpha)) for alpha in (1.05, 4 / 3, 1.5, 2.0, 3.0, math.inf)]
# Name: condition number of scale_tril, and whether the basis functions have covariance matrices.
SHAPES = {
    "round": (3.0, False),
    "thin": (1e4, False),
    "thinner": (1e6, False),
    "covariances": (1e2, True),
}
# The inputs are moved by this to measure what rounding them changes.
_NUDGE = 2.0**-30


class BallCase(NamedTuple):
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

    def rotation() -> Array:
        return np.linalg.qr(draw.normal(size=(dim, dim)))[0]

    def spaced(low: float, high: float, count: int) -> Array:
        """Return points in random directions at distances from `low` to `high`."""
        directions = draw.normal(size=(count, dim))
        directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
        return np.linspace(low, high, count)[:, None] * directions

    exponents = np.linspace(0.5, -0.5, dim) if dim > 1 else np.zeros(1)
    cases = []
    for width in ratios:
        upper = np.linalg.qr((rotation() * condition**exponents).T)[1]
        tril = upper.T * np.sign(np.diagonal(upper))
        loc = draw.uniform(-1, 1, dim)
        inside, surface = spaced(0, 0.95, 6) @ tril.T, spaced(1, 1, 8) @ tril.T
        surface = surface + width * spaced(-2, 2, 8)
        around, far = width * spaced(0.3, 3, 4), width * spaced(40, 40, 2)
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


def ball_exact(cases: Sequence[BallCase], alpha: float) -> list[tuple[list[Extended], ...]]:
    """Return, for each case, the quantities (N, ...) and their change per change of the inputs."""
    draw = np.random.default_rng(0)
    parts = zip(*(case[1:] for case in cases), strict=True)
    inputs = [np.stack([x.double().numpy() for x in part]) for part in parts]
    gap = np.longdouble(alpha) - 1

    def quantities(inputs: Sequence[Array]) -> list[Extended]:
        *exact, by_exponent = ball_integrals(*inputs, exponent=float(1 / gap))
        return exact if alpha == math.inf else [*exact, -by_exponent / gap**2]

    def nudged(x: Array) -> Array:
        signs = draw.choice([-1.0, 1.0], size=x.shape)
        if x.ndim == 4:  # covariances stay symmetric
            signs = np.tril(signs) + np.swapaxes(np.tril(signs, -1), -1, -2)
        return x * (1 + _NUDGE * signs)

    exact, beside = quantities(inputs), quantities([nudged(x) for x in inputs])
    moved = [(y - x) / _NUDGE for x, y in zip(exact, beside, strict=True)]
    return [([x[i] for x in exact], [x[i] for x in moved]) for i in range(len(cases))]


def ball_errors(
    case: BallCase, exact: tuple[list[Extended], ...], alpha: float, dtype: torch.dtype
) -> tuple[list[float], list[float]]:
    """Return each quantity's error relative to its norm, and the error that the limit applies to.

    Where rounding the inputs would move a quantity by more than its norm times the rounding, the
    limit applies to the error relative to that movement.
    """
    shown, judged = [], []
    for result, true, moved in zip(_ball_result(case, alpha, dtype), *exact, strict=True):
        gap = np.nan_to_num(result.numpy() - true, nan=np.inf)
        with np.errstate(over="ignore"):
            error, norm = np.linalg.norm(gap), np.linalg.norm(true)
        shown.append(float(error / norm))
        judged.append(float(error / max(norm, np.linalg.norm(moved))))
    return shown, judged


def _ball_result(case: BallCase, alpha: float, dtype: torch.dtype) -> list[Tensor]:
    loc, scale_tril = (x.to(dtype, copy=True).requires_grad_() for x in (case.loc, case.scale_tril))
    spread = torch.nn.Parameter(case.spread.to(dtype, copy=True))
    full = case.spread.dim() > 1

    def basis(x: Tensor) -> sf.bases.GaussianRBF:
        kind = "covariance" if full else "widths"
        return sf.bases.GaussianRBF(case.centers.to(dtype), **{kind: x})

    p = sf.MultivariateBetaGaussian(loc, scale_tril, alpha)
    # Fixed and learned bases are computed differently, as are gradients of a batch: both are tried.
    value = p.expect(basis(spread.detach()))
    each = [torch.autograd.grad(x, (loc, scale_tril), retain_graph=True) for x in value]
    slopes = [torch.stack(x) for x in zip(*each, strict=True)]
    psi = basis(spread)
    (by_spread,) = torch.autograd.grad(p.expect(psi).sum(), spread)
    if full:
        by_spread = (by_spread + by_spread.mT) / 2
    results = [value, *slopes, by_spread]
    if alpha < math.inf:
        power = torch.tensor(alpha, dtype=dtype, requires_grad=True)
        learned = sf.MultivariateBetaGaussian(loc.detach(), scale_tril.detach(), power).expect(psi)
        whole = torch.eye(len(value), dtype=dtype)
        results += torch.autograd.grad(learned, power, whole, is_grads_batched=True)
    return [x.detach().double() for x in results]


def ball_table(
    dimensions: Sequence[int] = DIMENSIONS,
    alphas: Sequence[float] = ALPHAS,
    ratios: Sequence[float] = BALL_RATIOS,
) -> Table:
    """Return the largest errors over all alphas and widths."""
    rows: list[Errors] = []
    for dim, (shape, (condition, full)) in product(dimensions, SHAPES.items()):
        if dim == 1 and "thin" in shape:
            continue
        cases = ball_cases(dim, condition, ratios, full)
        pair = {
            dtype: Errors("ball", [str(dim), shape, _name(dtype)], BALL_QUANTITIES, limits)
            for dtype, limits in BALL_LIMITS.items()
        }
        for alpha in alphas:
            for case, exact in zip(cases, ball_exact(cases, alpha), strict=True):
                for dtype, row in pair.items():
                    row.add(f"{case.ratio:.2g}", *ball_errors(case, exact, alpha, dtype))
        rows += pair.values()
    title = (
        "Many dimensions: the largest relative error (2-norm over the basis functions) for α in "
        "1.05, 4/3, 3/2, 2, 3 and ∞, and, in brackets, the width / support where it occurs. "
        + _text(BALL_LIMITS)
    )
    return _table(title, ["D", "support", "dtype", *BALL_QUANTITIES], rows)


# Kernel families: bandwidths down to a hundredth of the interval

KERNEL_QUANTITIES = ("Z", "value", "∂ weights")
KERNEL_LIMITS = {torch.float32: 2e-6, torch.float64: 1e-10}
# The command fails where an error exceeds its limit this many times, or the median of a setting.
FAR, FAR_MEDIAN = 100.0, 2.0
BANDWIDTHS, DEVIATIONS, ROWS = (0.2, 0.1, 0.05, 0.02, 0.01), (1.0, 3.0, 10.0), 8
# No limit for alpha = 1.75: its power 4/3 is no polynomial, so subintervals at edges converge
# slowly.
UNLIMITED = 1.75
KERNEL_DENSITIES = [(1.0, True)] + [
    (alpha, inside) for alpha in (1.25, 1.5, UNLIMITED, 2.0) for inside in (True, False)
]


class KernelTruth(NamedTuple):
    """Log normalizers (R,), expectations (R, N), and the gradient in the weights (R, I)."""

    normalizer: Tensor
    value: Tensor
    slope: Tensor


def kernel_truth(case: KernelCase, alpha: float, inside: bool, every: int = 1) -> KernelTruth:
    """Return the reference of one density in `every`."""
    numbers = (case.weights, case.upstream, case.points, case.centers, case.widths)
    weights, upstream, points, centers, widths = (x.double().numpy() for x in numbers)
    psi, kernel = gaussians(centers, widths), gaussian(case.bandwidth)
    width = min(case.bandwidth, 0.05)  # twice the narrowest basis function
    rows = weights.reshape(-1, len(points)), upstream.reshape(-1, len(centers))
    found = []
    for w, above in zip(*(x[::every] for x in rows), strict=True):
        p = Kernel(w, points, kernel, width, alpha=alpha, inside=inside)
        found.append((p.log_normalizer, p.expect(psi), above @ p.jacobian(psi)))
    return KernelTruth(*(torch.from_numpy(np.array(x)) for x in zip(*found, strict=True)))


def kernel_errors(case: KernelCase, alpha: float, inside: bool, exact: KernelTruth) -> Tensor:
    """Return the relative errors (3, R) of R densities: Z, value, and gradient in the weights.

    Inside, A takes the place of Z, absolute where A is below 1.
    """
    weights = case.weights.clone().requires_grad_()
    p = case.builder(alpha, inside)(weights)
    value = p.expect(case.basis)
    (slope,) = torch.autograd.grad(value, weights, case.upstream)
    found, true = p.log_normalizer.detach().double(), exact.normalizer
    gap, eps = (found - true).abs(), alpha - 1
    if eps and inside:
        gap = gap / true.abs().clamp_min(1)
    elif eps:
        gap = (torch.log1p(-eps * found) - torch.log1p(-eps * true)).abs() / eps
    pairs = (value.detach(), exact.value), (slope, exact.slope)
    errors = torch.stack([gap, *(relative_error(x.double(), y) for x, y in pairs)])
    return errors.nan_to_num(math.inf)


def kernel_tables(
    bandwidths: Sequence[float] = BANDWIDTHS,
    deviations: Sequence[float] = DEVIATIONS,
    densities: Sequence[tuple[float, bool]] = KERNEL_DENSITIES,
    rows: int = ROWS,
) -> list[Table]:
    """Return the errors by density, a table for each dtype."""
    found: dict[torch.dtype, dict[str, dict[str, Tensor]]] = {x: {} for x in KERNEL_LIMITS}
    for bandwidth, deviation in product(bandwidths, deviations):
        case = kernel_case((rows,), bandwidth, deviation, (0.025, 0.1, 0.5)).to(torch.float32)
        for alpha, inside in densities:
            if alpha == UNLIMITED and deviation != 3:
                continue
            mode = "" if alpha == 1 else ", inside" if inside else ", outside"
            exact = kernel_truth(case, alpha, inside)
            for dtype, of in found.items():
                errors = kernel_errors(case.to(dtype), alpha, inside, exact)
                setting = f"{bandwidth:g}, {deviation:g}"
                of.setdefault(f"α = {alpha:g}{mode}", {})[setting] = errors
    return [_kernel_table(dtype, of) for dtype, of in found.items()]


def _kernel_table(dtype: torch.dtype, found: dict[str, dict[str, Tensor]]) -> Table:
    """Return a table of the errors (3, R) by density and setting."""
    limit = KERNEL_LIMITS[dtype]
    lines, failures = [], []
    for name, settings in found.items():
        highest = math.inf if name.startswith(f"α = {UNLIMITED:g}") else limit
        part = f"kernel, {_name(dtype)}"
        row = Errors(part, [name], KERNEL_QUANTITIES, (highest, highest))
        for setting, x in settings.items():
            worst = x.amax(-1)
            judged = torch.maximum(worst / FAR, x.median(-1).values / FAR_MEDIAN)
            row.add(setting, worst.tolist(), judged.tolist())
        every = torch.cat([*settings.values()], -1)
        share = math.floor(100 * (every <= limit).all(0).double().mean().item())
        _MADE[row.key] = row.record
        lines.append([*row.cells, f"{every[-1].median().item():.0e}", f"{share} %"])
        failures += [f"{failure}, {_name(dtype)}" for failure in row.failures]
    title = (
        f"Kernel families in {_name(dtype)}: the largest relative error of a density and, in "
        "brackets, the bandwidth and the standard deviation of the score where it occurs. "
        f"Limit: {limit:g}. α = {UNLIMITED:g} at standard deviation 3 only."
    )
    header = ["density", *KERNEL_QUANTITIES, "median ∂", "met by"]
    return Table(title, header, lines, failures)


# Truncated densities, in the middle and in far tails of their bases

TRUNCATED_LIMITS: Limits = {torch.float32: (1e-6, 1e-6), torch.float64: (1e-11, 1e-10)}
_NAMES = ("log mass", "log p", "variance", "quantile", "entropy")
TRUNCATED_QUANTITIES = [x for name in _NAMES for x in (name, f"∂ {name}")][:-1]
# Where the quantile is taken, and where the density is: at this level, rounded to float32.
_LEVEL = 0.625


def truncated_errors(law: Law, dtypes: Sequence[torch.dtype]) -> list[list[float]]:
    """Return for each dtype the errors of each quantity and of its derivatives, in one list.

    Errors are relative, those of logarithms and their derivatives absolute below 1. Derivatives are
    those in all parameters and ends, and their error is one of norms.
    """
    numbers = [*law.parameters, *law.interval]

    def cut(leaves: Sequence[Tensor]) -> sf.Truncated:
        return sf.Truncated(law.build(*leaves[:-2]), *leaves[-2:])

    level = torch.tensor(_LEVEL).double()
    start = cut([torch.tensor(x).double() for x in numbers]).icdf(level)
    at = start.float()
    exact = truncated_truth(law, at.item(), _LEVEL, start.item())
    out = []
    for dtype in dtypes:
        leaves = [torch.tensor(x, dtype=dtype, requires_grad=True) for x in numbers]
        p = cut(leaves)
        values = [p.log_mass, p.log_prob(at.to(dtype)), p.variance, p.icdf(level.to(dtype))]
        errors = []
        for name, value in zip(_NAMES, [*values, p.entropy()], strict=True):
            truth = torch.tensor([float(x) for x in exact[name]], dtype=torch.float64)
            least = 0.0 if name in ("variance", "quantile") else 1.0
            found = [value.detach().reshape(1)]
            if len(truth) > 1:
                found.append(torch.stack(torch.autograd.grad(value, leaves, retain_graph=True)))
            for x, y in zip(found, truth.split([1, len(truth) - 1]), strict=False):
                gap = (x.double() - y).norm() / y.norm().clamp_min(least)
                errors.append(gap.nan_to_num(math.inf).item())
        out.append(errors)
    return out


def truncated_table(laws: Sequence[Law] = LAWS) -> Table:
    """Return the errors of densities cut to intervals."""
    rows = []
    for law in laws:
        interval = f"[{law.interval[0]:.4g}, {law.interval[1]:.7g})"
        errors = truncated_errors(law, [*TRUNCATED_LIMITS])
        for (dtype, limits), found in zip(TRUNCATED_LIMITS.items(), errors, strict=True):
            rows.append(
                Errors(
                    "truncated", [law.name, interval, _name(dtype)], TRUNCATED_QUANTITIES, limits
                )
            )
            rows[-1].add("", found)
    title = (
        "Truncated densities: relative errors of values and of their derivatives in all "
        "parameters and both ends (2-norm), of log mass, log p and entropy absolute below 1. "
        f"log p and the quantile are taken at the level {_LEVEL}. {_text(TRUNCATED_LIMITS)}"
    )
    return _table(title, ["base", "ends", "dtype", *TRUNCATED_QUANTITIES], rows)


SECTIONS = {
    "accuracy": line_tables,
    "edges": lambda: [edge_table()],
    "dimensions": lambda: [ball_table()],
    "kernel accuracy": kernel_tables,
    "truncated": lambda: [truncated_table()],
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if a limit is exceeded."""
    options = parser(__doc__, write=True).parse_args(arguments)
    torch.set_num_threads(1)  # the tensors are small
    code = run("accuracy", SECTIONS, options.write)
    if options.write:
        rows = [f"  {json.dumps(k)}: {json.dumps(_MADE[k])}" for k in sorted(_MADE)]
        RECORD.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
