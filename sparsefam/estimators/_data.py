"""Parameter checks, ranges of columns, inducing points and draws, shared by the estimators."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree
from sklearn.base import BaseEstimator, DensityMixin, OutlierMixin
from sklearn.cluster import kmeans_plusplus
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor
from torch.distributions import Distribution, Uniform
from torch.nn.functional import pad

from .._numerics.threads import one_thread
from .._numerics.validation import as_number, require_integer
from ..distributions import SparseDistribution
from ..supports import IntervalUnion

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "MARGIN",
    "Base",
    "Bounds",
    "Columns",
    "DensityEstimator",
    "Floats",
    "PointTree",
    "Seed",
    "as_events",
    "as_tensor",
    "bandwidth_of",
    "bounds_of",
    "chunks",
    "check_alpha",
    "check_positive",
    "uniform_box",
    "log_density",
    "intervals_of",
    "distance_from",
    "inducing_points",
    "merged",
    "reduced",
    "rounding_of",
    "sample_weights",
    "support_of",
]

Floats = NDArray[np.float64]
Seed = int | np.random.RandomState | None
# A density for all columns, or one for each.
Base = Distribution | Sequence[Distribution]
# Ends (low, high) of all columns, or of each.
Bounds = Sequence[float | None] | Sequence[Sequence[float | None]] | ArrayLike | None

# The default support of a base exceeds the range of the data by this fraction of it on either side.
MARGIN = 0.25
# Rows of data whose functions are in memory at a time, and rows that are sorted at a time.
_CHUNK, _SORTED = 2**13, 2**19
# A column is taken for rounded if its values occur so often on average.
_TIED = 3
# The default number of inducing points, by dimension.
_COUNTS = {1: 100, 2: 150, 3: 200}
# The least range of a column relative to its values: neighboring nodes must be different numbers.
_LEAST_RANGE = 2.0**-40


class PointTree(NamedTuple):
    """A search tree of points (m, D), by which distances to the nearest of them are computed."""

    scale: Floats  # Units of the columns (D,), by which points and locations are divided
    tree: cKDTree  # Of the divided points

    @classmethod
    def in_support(cls, density: SparseDistribution) -> "PointTree":
        """Return the nodes of a kernel density at which it is positive.

        The units are the standard deviations of the density. A mixture has the nodes of all its
        components.
        """
        nodes = torch.cat([p.mesh.nodes for p in getattr(density, "components", [density])])
        nodes = nodes[density.log_prob(nodes) > -torch.inf]
        scale = density.variance.sqrt().numpy()
        return cls(scale, cKDTree(nodes.numpy() / scale))

    def box(self, margin: float) -> tuple[Floats, Floats]:
        """Return corners (D,), (D,) of a box around the points, with a margin in their units."""
        return (self.tree.mins - margin) * self.scale, (self.tree.maxes + margin) * self.scale

    def distance(self, x: Tensor) -> Floats:
        """Return the distances (n,) of observations (n, D) from the nearest point, in the units."""
        return self.tree.query(x.numpy() / self.scale)[0]


class DensityEstimator(OutlierMixin, DensityMixin, BaseEstimator):  # type: ignore[misc]
    """A base class of estimators, whose `fit` sets the density of the columns of data."""

    density_: SparseDistribution  # Of numbers if there is one column, else of vectors
    offset_: float  # A log density, for `decision_function`

    @property
    def support_(self) -> Floats:
        """The support of the density of one column: intervals (J, 2)."""
        check_is_fitted(self)
        if self.density_.event_shape:
            raise AttributeError("support_ exists for one column")
        return intervals_of(self.density_).numpy()

    def _observations(self, X: ArrayLike) -> Tensor:
        """Check new observations, and return them (n, D)."""
        check_is_fitted(self)
        return as_tensor(validate_data(self, X, dtype=np.float64, reset=False))

    @one_thread()
    def score_samples(self, X: ArrayLike) -> Floats:
        """Return the log density of each observation (n,); -inf where the density is zero."""
        x = self._observations(X)
        return log_density(self.density_, x).numpy()

    def predict(self, X: ArrayLike) -> NDArray[np.int_]:
        """Return -1 where the density is zero, else 1 (n,), as outlier detectors do."""
        return np.where(np.isneginf(self.score_samples(X)), -1, 1)

    def decision_function(self, X: ArrayLike) -> Floats:
        r"""Return how usual observations are (n,): positive in the support, negative off it.

        It ranks all observations, also those off the support, as `roc_auc_score` needs it. On the
        support it increases with the log density: it is $1 + z$ where
        $z = \log p(x) - \mathrm{offset\_}$ is positive, and $1/(1 - z)$ below. Off the support it
        is minus the distance from the support; for several columns these are divided by their
        standard deviations first. `BetaGaussianDensity` measures distances by its ellipsoid.
        """
        log = self.score_samples(X)
        outside = np.isneginf(log)
        z = np.where(outside, 0.0, log) - self.offset_
        # Both branches have value 1 and slope 1 at z = 0.
        usual: Floats = np.where(z > 0, 1 + z, 1 / (1 - np.minimum(z, 0)))
        if outside.any():
            distance = self._distance(self._observations(X)[torch.from_numpy(outside)])
            usual[outside] = -np.maximum(distance, np.finfo(np.float64).tiny)
        return usual

    def _distance(self, x: Tensor) -> Floats:
        """Return distances (n,) of observations (n, D) from the support."""
        return distance_from(self.density_, x)

    def _set_offset(self, x: Tensor) -> None:
        """Set `offset_`, the mean log density of the observations (n, D) on the support."""
        total, count = 0.0, 0
        for (rows,) in chunks(x):
            log = log_density(self.density_, rows)
            log = log[log.isfinite()]
            total, count = total + float(log.sum()), count + len(log)
        self.offset_ = total / count if count else math.nan

    @one_thread()
    def sample(self, n_samples: int = 1, random_state: Seed = None) -> Floats:
        """Draw samples (n_samples, D); `random_state` is a seed or numpy's random state."""
        check_is_fitted(self)
        density = self.density_
        require_integer("n_samples", n_samples, 0)
        seed = check_random_state(random_state).randint(2**31 - 1)
        # The generator of torch stays as it is.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            draws = density.sample((n_samples,))
        return draws.reshape(n_samples, *(density.event_shape or (1,))).numpy()

    @one_thread()
    def plot(self, ax: "Axes | None" = None, **options: object) -> "Axes":
        """Plot the density, with options of `plot_density` such as `data=X`; return the axes.

        Axes without labels get the names of the columns, if the data had any.
        """
        check_is_fitted(self)
        ax = self.density_.plot(ax, **options)
        for axis, name in zip("xy", getattr(self, "feature_names_in_", ()), strict=False):
            if not getattr(ax, f"get_{axis}label")():
                ax.set(**{f"{axis}label": name})
        return ax


def log_density(p: SparseDistribution, x: Tensor) -> Tensor:
    """Return the log density (n,) of observations (n, D)."""
    return torch.cat([p.log_prob(as_events(rows)) for (rows,) in chunks(x)])


def uniform_box(low: Tensor, high: Tensor) -> list[Uniform]:
    """Return uniform densities between corners (D,), one for each axis."""
    return [Uniform(*ends, validate_args=False) for ends in zip(low, high, strict=True)]


def intervals_of(p: SparseDistribution) -> Tensor:
    """Return the intervals (J, 2) of the support of a density of numbers."""
    intervals = cast(IntervalUnion, p.support).intervals
    return intervals[~intervals[:, 0].isnan()]


def distance_from(p: SparseDistribution, x: Tensor) -> Floats:
    """Return distances (n,) of observations (n, D) from the support of a kernel density."""
    if p.event_shape:
        return PointTree.in_support(p).distance(x)
    low, high = intervals_of(p).T
    # Distances from each interval (n, J), negative inside and set to 0; the nearest one counts.
    return torch.maximum(low - x, x - high).clamp_min(0).amin(-1).numpy()


def chunks(*data: Tensor, size: int = _CHUNK) -> Iterator[tuple[Tensor, ...]]:
    """Yield the rows of tensors (n, ...) in chunks."""
    return zip(*(rows.split(size) for rows in data), strict=True)


def reduced(
    reduce: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], x: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Reduce data to fewer rows, chunk by chunk, without having all of them in one call.

    Args:
        reduce: From rows and weights to the rows that are kept, and their weights. It is called
            with each chunk below the rows that were kept from the chunks before.
        x: Rows (n, D).
        weight: Their weights (n,).
    """
    kept = x.new_empty(0, x.shape[1]), weight.new_empty(0)
    for chunk in chunks(x, weight, size=_SORTED):
        kept = reduce(*(torch.cat(pair) for pair in zip(kept, chunk, strict=True)))
    return kept


def merged(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct rows of data (n, D), in lexicographic order, and their total weights."""

    def merge(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the distinct rows of a chunk, and their weights."""
        # The last key of `lexsort` comes first. Equal rows are then next to each other.
        order = torch.from_numpy(np.lexsort(x.numpy().T[::-1]))
        x, weight = x[order], weight[order]
        is_first = pad((x[1:] != x[:-1]).any(1), (1, 0), value=True)
        values = x[is_first]
        # The index of each row's value among the distinct ones.
        index = is_first.cumsum(0) - 1
        return values, torch.zeros_like(values[:, 0]).index_add(0, index, weight)

    return reduced(merge, x, weight)


def rounding_of(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the units to which columns are rounded, and the numbers of distinct whole numbers.

    A column is taken for rounded if each value occurs three times or more on average. The unit is
    the usual distance of a tied observation from the nearest other value with ties: for counts,
    mostly 1.

    Args:
        x: Observations (n, D).

    Returns:
        The units (D,), 0 for columns that are not rounded. The numbers (D,) of distinct values in
        rounded columns of whole numbers only, else 0: if there are few, values may be categories.
    """
    unit, num_whole = x.new_zeros(x.shape[1]), x.new_zeros(x.shape[1])
    for d, column in enumerate(x.T):
        ordered = torch.from_numpy(np.sort(column.numpy()))
        is_last = pad(ordered[1:] != ordered[:-1], (0, 1), value=True)
        if _TIED * int(is_last.count_nonzero()) > len(ordered):
            continue
        # Distinct values, and how often each occurs: the distance between ends of runs.
        (end,) = torch.nonzero(is_last, as_tuple=True)
        values, counts = ordered[end], end.diff(prepend=end.new_tensor([-1]))
        num_whole[d] = len(values) * bool((values.frac() == 0).all())
        # A value that occurs once may be an outlier, or not rounded.
        values, counts = values[counts > 1], counts[counts > 1]
        if len(values) > 1:
            gap = values.diff()
            nearest = torch.minimum(torch.cat([gap[:1], gap]), torch.cat([gap, gap[-1:]]))
            # The weighted median: half of the tied observations are at most so far from another.
            nearest, order = nearest.sort()
            unit[d] = nearest[int((2 * counts[order].cumsum(0) < counts.sum()).sum())]
    return unit, num_whole


def as_events(x: Tensor) -> Tensor:
    """Convert observations (n, D) to events of a density: numbers (n,) if there is one column."""
    return x.squeeze(-1) if x.shape[-1] == 1 else x


def check_alpha(alpha: float, most: float = 2.0) -> float:
    """Return alpha as a float; raise ValueError unless it is a number from 1 to `most`."""
    if not 1 <= as_number(alpha) <= most:
        raise ValueError(f"alpha must be a number from 1 to {most:g}, got {alpha!r}")
    return float(alpha)


def check_positive(name: str, value: float) -> float:
    """Return a number as a float; raise ValueError unless it is positive and finite."""
    if not 0 < as_number(value) < float("inf"):
        raise ValueError(f"{name} must be a positive, finite number, got {value!r}")
    return float(value)


def bandwidth_of(bandwidth: ArrayLike | None, dim: int) -> Tensor | None:
    """Return the bandwidth (D,) of the Gaussian kernel, or None if it is to be chosen."""
    if bandwidth is None:
        return None
    values = _array("bandwidth", bandwidth)
    if values.size not in (1, dim) or not (np.isfinite(values) & (values > 0)).all():
        raise ValueError(f"bandwidth must be one positive number or {dim}, got {bandwidth!r}")
    return torch.from_numpy(values).reshape(-1).expand(dim)


def bounds_of(bounds: Bounds, x: Tensor) -> Tensor:
    """Return the bounds (D, 2) of each column of x (n, D), infinite where there are none."""
    dim, given = x.shape[1], _array("bounds", (None, None) if bounds is None else bounds)
    # NaN, the only number that differs from itself, must not pass for a bound that is left out.
    has_nan = any(end != end for end in np.ravel(np.array(bounds, dtype=object)))
    fits = given.shape in ((2,), (dim, 2)) and not has_nan
    # None has become NaN, no bound.
    ends = np.where(np.isnan(given), [-np.inf, np.inf], given) if fits else given
    if not fits or not (ends[..., 0] < ends[..., 1]).all():
        rule = f"(low, high) with low below high, or a pair for each of {dim} columns"
        raise ValueError(f"bounds must be {rule}, got {bounds!r}")
    pairs = torch.from_numpy(ends).expand(dim, 2)
    if not ((pairs[:, 0] <= x) & (x <= pairs[:, 1])).all():
        raise ValueError(f"X must be inside bounds={bounds!r}, got values outside")
    return pairs


def support_of(base: Base, x: Tensor) -> Tensor:
    """Return the ends (D, 2) of the support of a base, inside which x (K, D) must be.

    The base is a distribution, or one for each column of x.
    """
    factors = list(base) if isinstance(base, Sequence) else [base]
    if len(factors) != x.shape[1]:
        raise ValueError(f"base must have a distribution for each of {x.shape[1]} columns: {base}")
    # A support without an end has no attribute for it.
    infinite = {"lower_bound": -math.inf, "upper_bound": math.inf}
    ends = [[float(getattr(p.support, n, end)) for n, end in infinite.items()] for p in factors]
    limits = x.new_tensor(ends)
    if not ((limits[:, 0] <= x) & (x <= limits[:, 1])).all():
        raise ValueError(f"X must be inside the support of the base {base}, got values outside")
    return limits


def as_tensor(data: Floats) -> Tensor:
    """Return an array as a tensor, which shares its memory where the array may be written to."""
    return torch.from_numpy(np.require(data, requirements="W"))


def sample_weights(sample_weight: ArrayLike | None, data: Floats) -> Floats:
    """Return the weight (n,) of each observation, 1 by default; one must be positive."""
    weight: Floats = _check_sample_weight(
        sample_weight, data, dtype=np.float64, ensure_non_negative=True
    )
    if not weight.any():
        raise ValueError("sample_weight must be positive for some observation, got zeros only")
    return weight


class Columns(NamedTuple):
    """Least and greatest value, mean and standard deviation of each column, (D,) each."""

    low: Tensor
    high: Tensor
    mean: Tensor
    deviation: Tensor

    @classmethod
    def of(cls, x: Tensor, weight: Tensor) -> "Columns":
        """Measure data (n, D) with positive weights (n,)."""
        low, high = x.amin(0), x.amax(0)
        span, largest = high - low, torch.maximum(low.abs(), high.abs())
        if not ((span > _LEAST_RANGE * largest) & ((1 + 2 * MARGIN) * span).isfinite()).all():
            raise ValueError(
                "X must have no constant column, nor one whose range is lost in rounding or "
                f"overflows; shift and scale it: got {low.tolist()} to {high.tolist()}"
            )
        total = weight.sum()

        def mean_of(f: Callable[[Tensor], Tensor]) -> Tensor:
            """Return the weighted mean (D,) of a function of rows (m, D) that keeps their shape."""
            means = [w / total @ f(rows) for rows, w in chunks(x, weight)]
            return torch.stack(means).sum(0)

        mean = mean_of(lambda rows: rows)
        # Relative to the range, so that squares neither overflow nor underflow.
        square = mean_of(lambda rows: ((rows - mean) / span).square())
        return cls(low, high, mean, span * square.sqrt())


def inducing_points(
    given: ArrayLike | None,
    x: Tensor,
    columns: Columns,
    bounds: "tuple[float, float] | Tensor",
    random_state: Seed,
) -> Tensor:
    """Return inducing points (I, D).

    Unless locations are given, in 1-D they are evenly spaced, else observations chosen by
    k-means++.

    Args:
        given: Locations (I,) or (I, D), or their number I; None is 100, 150 or 200, by dimension.
        x: Observations (n, D).
        columns: Their ranges and moments.
        bounds: Ends (low, high) of the first column, beyond which there are no points in 1-D.
        random_state: Seed of k-means++.
    """
    dim = x.shape[1]
    if given is None:
        given = _COUNTS.get(dim, _COUNTS[2])
    if np.ndim(given) > 0:
        rows = torch.from_numpy(_array("inducing_points", given))
        rows = rows.unsqueeze(-1) if rows.dim() == 1 else rows
        shaped = rows.dim() == 2 and len(rows) > 0 and rows.shape[1] == dim
        if not shaped or not torch.isfinite(rows).all():
            rule = f"finite, (I, {dim})"
            raise ValueError(f"inducing_points must be {rule}, got shape {tuple(rows.shape)}")
        return rows
    require_integer("inducing_points", given, 1)
    count = cast(int, given)
    if dim == 1:
        # Beyond the data, where the density may still be positive.
        margin = MARGIN * (columns.high - columns.low)
        low = (columns.low - margin).clamp_min(bounds[0])
        high = (columns.high + margin).clamp_max(bounds[1])
        fraction = torch.linspace(0, 1, count, dtype=x.dtype)
        return torch.lerp(low, high, fraction).unsqueeze(-1)
    # k-means++ spreads points by distances, which need a common unit.
    scaled = ((x - columns.mean) / columns.deviation).numpy()
    _, index = kmeans_plusplus(scaled, min(count, len(x)), random_state=random_state)
    return x[torch.as_tensor(index)]


def _array(name: str, value: object) -> Floats:
    """Return numbers as an array, with NaN for None; raise ValueError for anything else."""
    try:
        return np.array(value, dtype=np.float64)  # None becomes NaN
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be numbers, got {value!r}") from None
