"""Microseconds a number of every method of every family, beside scipy and torch.

One thread, one run: the methods of a row take turns with those of the neighbors that have the
same distribution, and the least processor time counts. `--write` puts the tables into
docs/benchmarks.md.
"""

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pyro.contrib.gp.kernels import RBF
from scipy import stats
from torch import Tensor
from torch import distributions as td
from tqdm import tqdm

import sparsefam as sf

from .harness import Table, parser, run

BATCHES = (1, 256, 100_000)
DTYPES = (torch.float32, torch.float64)
# Seconds for each cell, and the longest call that is repeated or enlarged.
BUDGET, LONGEST = 0.02, 0.3
# Slower than so many times the best neighbor is bold.
SLOW = 3.0

Parameters = dict[str, Tensor]
# A method by its name; None where the family lacks it.
Calls = dict[str, Callable[[], Any]]


def places(count: int) -> Parameters:
    """Draw locations and scales (count,) in float64, exact in float32."""
    draw = torch.Generator().manual_seed(0)
    loc, scale = torch.randn(count, generator=draw), 0.5 + torch.rand(count, generator=draw)
    return {"loc": loc.double(), "scale": scale.double()}


def learned(count: int) -> Parameters:
    """Add an alpha for each."""
    return places(count) | {"alpha": torch.full((count,), 1.75).double()}


def three(count: int) -> Parameters:
    """Draw three components for each."""
    found = {name: x.reshape(count, 3) for name, x in places(3 * count).items()}
    return found | {"logits": found["loc"].flip(-1)}


def vectors(count: int) -> Parameters:
    """Draw locations and factors in 2-D."""
    found = places(3 * count)
    tril = torch.diag_embed(found["scale"][: 2 * count].reshape(count, 2))
    tril[:, 1, 0] = found["scale"][2 * count :] / 2
    return {"loc": found["loc"][: 2 * count].reshape(count, 2), "scale_tril": tril}


def kernels(count: int) -> Parameters:
    """Draw 32 weights for each."""
    return {"weights": places(32 * count)["loc"].reshape(count, 32)}


def _kernel(cls: Any, weights: Tensor, **options: Any) -> sf.SparseDistribution:
    points = torch.linspace(0, 1, 32, dtype=weights.dtype)
    kernel = RBF(1, lengthscale=torch.tensor(0.1))
    return cls(weights, points, kernel, **options)


def _scipy(make: Callable[..., Any]) -> Callable[[Parameters], tuple[Any, Callable[[], Any]]]:
    """Return what makes a frozen distribution of scipy, and the call that constructs it."""

    def build(parameters: Parameters) -> tuple[Any, Callable[[], Any]]:
        arrays = {name: x.double().numpy() for name, x in parameters.items()}
        return make(**arrays), lambda: make(**arrays)

    return build


def _power(m: float) -> Callable[..., Any]:
    """Return scipy's density (1 - x^2)^m."""
    return lambda loc, scale: stats.rdist(2 * m + 2, loc, scale)


@dataclass(frozen=True)
class Row:
    """A family, what draws its parameters, and the same distribution in scipy and torch."""

    name: str
    make: Callable[..., Any]
    draw: Callable[[int], Parameters] = places
    scipy: Callable[..., Any] | None = None
    torch: Callable[..., Any] | None = None


def _cut(base: Callable[..., Any]) -> Callable[..., Any]:
    return lambda loc, scale: sf.Truncated(base(loc, scale), loc - scale, loc + 2 * scale)


ROWS = [
    Row("TruncatedParabola", sf.TruncatedParabola, scipy=_power(1)),
    Row("BetaGaussian, α = 3/2", lambda **x: sf.BetaGaussian(**x, alpha=1.5), scipy=_power(2)),
    Row("BetaGaussian, α = 7/4", lambda **x: sf.BetaGaussian(**x, alpha=1.75), scipy=_power(4 / 3)),
    Row(
        "BetaGaussian, learned α",
        sf.BetaGaussian,
        learned,
        scipy=lambda loc, scale, alpha: stats.rdist(2 / (alpha - 1) + 2, loc, scale),
    ),
    Row(
        "BetaGaussian, α = ∞",
        lambda **x: sf.BetaGaussian(**x, alpha=math.inf),
        scipy=_power(0),
        torch=lambda loc, scale: td.Uniform(loc - scale, loc + scale),
    ),
    Row(
        "Triangular",
        sf.Triangular,
        scipy=lambda loc, scale: stats.triang(0.5, loc - scale, 2 * scale),
    ),
    Row("BetaLaplace, α = 7/4", lambda **x: sf.BetaLaplace(**x, alpha=1.75)),
    Row("LocationScale", lambda **x: sf.LocationScale(**x, g=torch.cosh)),
    Row("Normal", sf.Normal, scipy=stats.norm, torch=td.Normal),
    Row("Laplace", sf.Laplace, scipy=stats.laplace, torch=td.Laplace),
    Row(
        "Truncated(Normal)",
        _cut(td.Normal),
        scipy=lambda loc, scale: stats.truncnorm(-1, 2, loc, scale),
    ),
    Row("Truncated(Laplace)", _cut(td.Laplace)),
    Row(
        "Truncated(Gamma)",
        lambda loc, scale: sf.Truncated(td.Gamma(2 * scale, 1.0), 0.5 * scale, 3 * scale),
    ),
    Row(
        "Mixture of 3 parabolas",
        lambda logits, **x: sf.Mixture(logits, sf.TruncatedParabola(**x)),
        three,
    ),
    Row(
        "Mixture of 3 normals",
        lambda logits, **x: sf.Mixture(logits, sf.Normal(**x)),
        three,
        torch=lambda logits, **x: td.MixtureSameFamily(
            td.Categorical(logits=logits), td.Normal(**x)
        ),
    ),
    Row("TruncatedParaboloid", sf.TruncatedParaboloid, vectors),
    Row(
        "MultivariateBetaGaussian, α = 3/2",
        lambda **x: sf.MultivariateBetaGaussian(**x, alpha=1.5),
        vectors,
    ),
    Row(
        "MultivariateNormal",
        sf.MultivariateNormal,
        vectors,
        torch=lambda **x: td.MultivariateNormal(x["loc"], scale_tril=x["scale_tril"]),
    ),
    Row("KernelExp", lambda **x: _kernel(sf.KernelExp, **x), kernels),
    Row(
        "KernelDeformedExp, α = 2",
        lambda **x: _kernel(sf.KernelDeformedExp, **x, alpha=2.0),
        kernels,
    ),
]


def torch_calls(make: Callable[..., Any], parameters: Parameters, levels: Tensor) -> Calls:
    """Return the methods of a density of this package or of torch."""
    p = make(**parameters)
    t = p.sample()
    leaves = {name: x.clone().requires_grad_() for name, x in parameters.items()}

    def differentiated() -> Any:
        found = make(**leaves).rsample().sum()
        return torch.autograd.grad(found, list(leaves.values()), allow_unused=True)

    calls: Calls = {
        "made": lambda: make(**parameters),
        "log_prob": lambda: p.log_prob(t),
        "cdf": lambda: p.cdf(t),
        "icdf": lambda: p.icdf(levels),
        "sample": p.sample,
        "rsample": p.rsample,
        "with backward": differentiated,
        "entropy": p.entropy,
        "mean": lambda: p.mean,
        "variance": lambda: p.variance,
        "mode": lambda: p.mode,
        "check": lambda: p.support.check(t),
    }
    if isinstance(p, sf.SparseDistribution):
        dim = 2 if p.event_shape else None
        psi = sf.bases.GaussianRBF(_centers(dim, t.dtype), 0.3)
        calls["expect"] = lambda: p.expect(psi)
    return calls


def _centers(dim: int | None, dtype: torch.dtype) -> Tensor:
    """Return 32 centers."""
    if dim is None:
        return torch.linspace(-1, 1, 32, dtype=dtype)
    x, y = torch.linspace(-1, 1, 8, dtype=dtype), torch.linspace(-1, 1, 4, dtype=dtype)
    return torch.cartesian_prod(x, y)


def scipy_calls(make: Callable[..., Any], parameters: Parameters, levels: Tensor) -> Calls:
    """Return the methods of a distribution of scipy, which computes in float64."""
    arrays = {name: x.double().numpy() for name, x in parameters.items()}
    d, u = make(**arrays), levels.double().numpy()
    t, shape = d.ppf(u), u.shape
    return {
        "made": lambda: make(**arrays),
        "log_prob": lambda: d.logpdf(t),
        "cdf": lambda: d.cdf(t),
        "icdf": lambda: d.ppf(u),
        "sample": lambda: d.rvs(shape),
        "entropy": d.entropy,
        "mean": d.mean,
        "variance": d.var,
    }


METHODS = (
    *("made", "log_prob", "cdf", "icdf", "sample", "rsample", "with backward"),
    *("entropy", "mean", "variance", "mode", "check", "expect"),
)


def sides(row: Row, count: int, dtype: torch.dtype) -> list[Calls]:
    """Return the methods of the package, then those of its neighbors."""
    parameters = {name: x.to(dtype) for name, x in row.draw(count).items()}
    levels = torch.rand(count, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    levels = (0.98 * levels + 0.01).to(dtype)
    found = [torch_calls(row.make, parameters, levels)]
    if row.torch is not None:
        found.append(torch_calls(row.torch, parameters, levels))
    if row.scipy is not None:
        found.append(scipy_calls(row.scipy, parameters, levels))
    return found


def _once(call: Callable[[], Any] | None) -> float:
    """Return the seconds of a call; NaN where there is no such method."""
    if call is None:
        return math.nan
    try:
        start = time.process_time()
        call()
    except (NotImplementedError, AttributeError):
        return math.nan
    return time.process_time() - start


def in_turn(calls: Sequence[Callable[[], Any] | None], budget: float) -> list[float]:
    """Return the least seconds of each call, visited in turn; NaN where there is none."""
    best = [_once(call) for call in calls]
    end, visits = time.process_time() + budget, 0
    while visits < 2 or time.process_time() < end:
        for i, call in enumerate(calls):
            if best[i] <= LONGEST:
                best[i] = min(best[i], _once(call))
        visits += 1
    return best


def row_times(
    row: Row, dtype: torch.dtype, batches: Sequence[int], budget: float
) -> list[list[str]]:
    """Return a row of cells for each batch: our time and, in brackets, the best neighbor's."""
    rows, each = [], dict.fromkeys((*METHODS, "built"), 0.0)
    for count in batches:
        cells, built = [f"{row.name}, {count:,}"], {}
        for name in METHODS:
            # Where a call of either would be long, fewer numbers give the time of each.
            few, longest = count, max(each[name], each["built"])
            while few > 256 and few * longest > LONGEST:
                few = max(256, few // 10)
            if few not in built:
                start = time.process_time()
                built[few] = sides(row, few, dtype)
                each["built"] = (time.process_time() - start) / few
            ours, *others = in_turn([x.get(name) for x in built[few]], budget)
            known = [x / few for x in (ours, *others) if not math.isnan(x)]
            each[name] = max(known, default=0.0)
            best = min((x for x in others if not math.isnan(x)), default=math.nan)
            text = "" if math.isnan(ours) else _micro(ours / few)
            text = f"**{text}**" if ours > SLOW * best else text
            cells.append(text if math.isnan(ours + best) else f"{text} ({_micro(best / few)})")
        rows.append(cells)
    return rows


def _micro(seconds: float) -> str:
    value = 1e6 * seconds
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}"


def times_table(
    dtype: torch.dtype,
    only: Sequence[str] = ("",),
    batches: Sequence[int] = BATCHES,
    budget: float = BUDGET,
) -> Table:
    """Time all methods of the rows whose name contains one of `only`."""
    chosen = [row for row in ROWS if any(text in row.name for text in only)]
    rows = [x for row in tqdm(chosen, disable=None) for x in row_times(row, dtype, batches, budget)]
    title = (
        f"Microseconds a number, {str(dtype).removeprefix('torch.')}, by the size of the batch; in "
        f"brackets the faster of scipy and torch. Bold: more than {SLOW:g} times that."
    )
    return Table(title, ["density, batch", *METHODS], rows)


ERRORS = ("log_prob", "cdf", "icdf", "entropy", "mean", "variance")


def errors_table(only: Sequence[str] = ("",), count: int = 256) -> Table:
    """Compare values with scipy in float64, at the numbers that the tensors hold."""
    rows = []
    for row in ROWS:
        if row.scipy is None or not any(text in row.name for text in only):
            continue
        for dtype in DTYPES:
            parameters = {name: x.to(dtype) for name, x in row.draw(count).items()}
            p = row.make(**parameters)
            d = row.scipy(**{name: x.double().numpy() for name, x in parameters.items()})
            u = torch.linspace(0.01, 0.99, count, dtype=dtype)
            t = p.icdf(u)
            ours = [p.log_prob(t), p.cdf(t), t, p.entropy(), p.mean, p.variance]
            exact = t.double().numpy()
            theirs = [d.logpdf(exact), d.cdf(exact), d.ppf(u.double().numpy())]
            theirs += [d.entropy(), d.mean(), d.var()]
            scale, one = parameters["scale"].double(), torch.ones(count, dtype=torch.float64)
            units = [one, one, scale, one, scale, scale.square()]
            gaps = [
                ((x.double() - torch.as_tensor(y)).abs() / unit).max().item()
                for x, y, unit in zip(ours, theirs, units, strict=True)
            ]
            label = f"{row.name}, {str(dtype).removeprefix('torch.')}"
            rows.append([label, *(f"{gap:.0e}" for gap in gaps)])
    title = "The largest difference from scipy in float64, in units of the scale."
    return Table(title, ["density", *ERRORS], rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = parser(__doc__, write=True, only=True).parse_args(arguments)
    torch.set_num_threads(1)

    def tables() -> list[Table]:
        times = [times_table(dtype, options.only) for dtype in DTYPES]
        return [*times, errors_table(options.only)]

    return run("methods", {"methods": tables}, options.write)


if __name__ == "__main__":
    sys.exit(main())
