"""What the battery (test_battery_*.py) asks with: families of densities and locations in them."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from hypothesis import strategies
from references import Array, Ball, Pieces, pieces
from torch import Size, Tensor

from sparsefam import SparseDistribution
from sparsefam.bases import Basis, BSpline, Fourier, GaussianRBF, Indicator, Polynomial, Product
from sparsefam.supports import Ellipsoid

SINGLE, DOUBLE = torch.float32, torch.float64

# Values that no distribution may take for a parameter of this name; the last entry of scale_tril
# is on its diagonal.
BAD_VALUES = {
    "loc": [math.nan, math.inf, -math.inf],
    "scale": [0.0, -1.0, math.nan, math.inf],
    "scale_tril": [0.0, -1.0, math.nan, math.inf],
    "alpha": [1.0, 0.5, -2.0, math.nan],
    "weights": [math.nan, math.inf, -math.inf],
    "logits": [math.nan, math.inf],
    "rate": [0.0, -1.0, math.nan],
    "slope": [math.nan, math.inf],
    "low": [math.nan, math.inf],
    "high": [math.nan, -math.inf],
    "mean": [math.nan, math.inf, -100.0],
    "concentration": [0.0, -1.0, math.nan, math.inf],
}


def _powers_of_two(lowest: float, highest: float) -> strategies.SearchStrategy[float]:
    return strategies.floats(lowest, highest).map(lambda x: 2.0**x)


# Where parameters of a name are drawn from.
DOMAINS = {
    "loc": strategies.floats(-100, 100),
    "scale": _powers_of_two(-12, 12),
    "alpha": _powers_of_two(-6, 6).map(lambda x: 1 + x),
    "logits": strategies.floats(-30, 30),
    "rate": _powers_of_two(-8, 8),
    "slope": _powers_of_two(-8, 8),
    "low": strategies.floats(-100, 100),
    "high": strategies.floats(-100, 100),
}


@dataclass(frozen=True)
class Family:
    """A distribution, and what is true of it by definition.

    Attributes:
        name: Identifies it among the tests.
        make: Builds the distribution from its parameters, given by name.
        density: Its density in numpy, up to a constant: (t, **parameters) to an array like t. Of
            vectors from arrays (..., D) to arrays (...), a function of |scale_tril^-1 (t - loc)|.
            Where the support may be several intervals: from parameters to `Pieces`.
        scalar: Parameters of one density, by name: numbers exact in float32. Each becomes a tensor
            that requires grad.
        batch: Parameters that broadcast to a batch of shape (2, 3), as nested lists.
        escorts: Values of beta that have an escort (None: the default).
        no_escorts: Values of beta that are refused.
        has_score: Whether the density and alpha determine the score.
        base: Of which p is the density, at locations.
        ranks: How many axes of a parameter belong to one density; default none, of vectors those
            of loc and scale_tril.
        connected: Whether the support is one interval: only then it has a bijection, and `rsample`.
        signed: Whether weights of `quadrature` may be negative.
        once: Functions of tests/functions.py that have no second derivatives, which are refused;
            None for all.
        forward: Whether forward mode exists; else it is refused.
        backward_only: Functions that refuse forward mode though others have it.
        exports: Whether torch.export makes programs of it; else it raises.
        constant: Members that no parameter moves.
        dim: D, if events are vectors.
        thorough: Whether its derivatives are tested each time, or with the slow tests.
        infers_shapes: Whether the class knows that its events are numbers.
        compiled: What is compiled each time; the others with the slow tests.
        untraced: What the error of torch.jit says, of what it cannot trace.
    """

    name: str
    make: Callable[..., SparseDistribution]
    density: Callable[..., Any]
    scalar: dict[str, Any] = field(default_factory=lambda: {"loc": 0.3125, "scale": 0.6875})
    batch: dict[str, Any] = field(
        default_factory=lambda: {"loc": [[0.3125], [-1.25]], "scale": [0.6875, 0.1875, 3.0]}
    )
    escorts: tuple[float | None, ...] = (None, 0.0, 0.4, 1.0, 1.5)
    no_escorts: tuple[float | None, ...] = (-0.5,)
    has_score: bool = True
    base: Callable[[Tensor], Tensor | float] = lambda t: 1.0
    ranks: dict[str, int] | None = None
    connected: bool = True
    signed: bool = False
    once: tuple[str, ...] | None = ()
    forward: bool = True
    backward_only: tuple[str, ...] = ()
    exports: bool = True
    constant: tuple[str, ...] = ()
    dim: int | None = None
    thorough: bool = True
    infers_shapes: bool = True
    compiled: tuple[str, ...] = ()
    untraced: str = ""

    @property
    def event_shape(self) -> Size:
        return Size() if self.dim is None else Size([self.dim])


@dataclass(frozen=True, eq=False)
class Case:
    """A family with parameters of some shape."""

    family: Family
    parameters: dict[str, Any]
    name: str

    def __str__(self) -> str:
        return self.name

    def leaves(self, dtype: torch.dtype = DOUBLE) -> dict[str, Tensor]:
        """The parameters as tensors that require grad."""
        return {
            name: torch.tensor(value, dtype=dtype, requires_grad=True)
            for name, value in self.parameters.items()
        }

    def __call__(self, dtype: torch.dtype = DOUBLE) -> SparseDistribution:
        """The distribution, without gradients."""
        return self.family.make(**{k: v.detach() for k, v in self.leaves(dtype).items()})

    def of(self, **leaves: Tensor) -> SparseDistribution:
        """The distribution of parameters: of a factor only its lower triangle."""
        tril = {k: v.tril() for k, v in leaves.items() if k == "scale_tril"}
        return self.family.make(**(leaves | tril))

    @cached_property
    def batch_shape(self) -> Size:
        shapes = [v.shape[: v.dim() - self.rank(k)] for k, v in self.leaves().items()]
        return torch.broadcast_shapes(*shapes)

    @property
    def event_shape(self) -> Size:
        return self.family.event_shape

    def rounding(self, dtype: torch.dtype) -> float:
        """Of probabilities, where these are sums of masses."""
        return 64 * torch.finfo(dtype).eps if self.family.ranks else 0.0

    def rank(self, name: str) -> int:
        """How many axes of a parameter, known by its name, belong to one density."""
        ranks = {"loc": 1, "scale_tril": 2} if self.event_shape else {}
        return (self.family.ranks or ranks).get(name, 0)

    def spread(self, shape: Size | tuple[int, ...], leaves: dict[str, Tensor]) -> dict[str, Tensor]:
        """Parameters of their own for every density of a batch of this shape."""
        return {
            k: v.expand((*shape, *v.shape[v.dim() - self.rank(k) :])) for k, v in leaves.items()
        }

    @cached_property
    def references(self) -> list[Ball] | list[Pieces]:
        """Its densities, in the order of the flattened batch."""
        count = self.batch_shape.numel()
        leaves = self.spread(self.batch_shape, {k: v.detach() for k, v in self.leaves().items()})
        flat = {k: v.reshape(count, *v.shape[len(self.batch_shape) :]) for k, v in leaves.items()}
        rows = [
            {k: v[i].numpy() if v[i].dim() else v[i].item() for k, v in flat.items()}
            for i in range(count)
        ]
        if self.family.ranks:
            return [self.family.density(**row) for row in rows]
        p, make = self(), self._ball if self.event_shape else self._line
        return [make(p, i, partial(self.family.density, **row)) for i, row in enumerate(rows)]

    def _line(self, p: SparseDistribution, i: int, shape: Any) -> Pieces:
        """With a kink in the middle, and tails of 80 standard deviations."""
        (lower, upper), reach = ends(p), 80 * p.stddev
        edges = torch.maximum(lower, p.mean - reach), torch.minimum(upper, p.mean + reach)
        low, high, center = (x.flatten()[i].item() for x in (*edges, p.mean))
        inner = {center + share * (end - center) for end in (low, high) for share in (0, 0.1, 0.3)}
        cuts = [low, *sorted(inner), high]
        mass = pieces(shape, cuts).integral(shape)
        return pieces(lambda t: shape(t) / mass, cuts)

    def _ball(self, p: SparseDistribution, i: int, shape: Any) -> Ball:
        _, factor = frame(p, 15.0)
        center = p.mean.reshape(-1, *self.event_shape)[i].numpy()
        bare = Ball(shape, center, factor.reshape(-1, *factor.shape[-2:])[i].numpy())
        return replace(bare, mass=bare.integral(bare.shape))

    def reference(self, quantity: Callable[[Any], Any]) -> Tensor:
        """A quantity of every density of the batch, (*batch, *shape of the quantity)."""
        values = torch.as_tensor(np.array([quantity(r) for r in self.references]), dtype=DOUBLE)
        return values.reshape(self.batch_shape + values.shape[1:])


def scale_of(case: Case) -> str | None:
    """The name of the parameter that is a scale, if there is one."""
    return next((name for name in ("scale", "scale_tril") if name in case.parameters), None)


# Locations
def ends(p: SparseDistribution) -> tuple[Tensor, Tensor]:
    """Lower and upper end of the support of numbers, each (*batch)."""
    lower, upper = p.support.intervals.detach().unbind(-1)
    return lower[..., 0], torch.where(upper.isnan(), -math.inf, upper).amax(-1)


def bounded(p: SparseDistribution) -> bool:
    """Whether the support ends."""
    if p.event_shape:
        return isinstance(p.support, Ellipsoid)
    return bool(torch.stack(ends(p)).isfinite().all())


def frame(p: SparseDistribution, deviations: float = 3.0) -> tuple[Tensor, Tensor]:
    """Center and factor of the support, or of a number of deviations where it does not end."""
    if not p.event_shape:
        if not bounded(p):
            return p.mean, deviations * p.stddev
        lower, upper = widest(p)
        return (lower + upper) / 2, (upper - lower) / 2
    if isinstance(p.support, Ellipsoid):
        return p.support.loc, p.support.scale_tril
    return p.mean, deviations * torch.linalg.cholesky(p.covariance_matrix)


def widest(p: SparseDistribution) -> tuple[Tensor, Tensor]:
    """Ends of the widest interval of the support, each (*batch)."""
    intervals = p.support.intervals.detach()
    width = intervals.diff(dim=-1).squeeze(-1).nan_to_num(-1.0)
    best = width.argmax(-1)[..., None, None].expand(*p.batch_shape, 1, 2)
    lower, upper = intervals.gather(-2, best).squeeze(-2).unbind(-1)
    return lower, upper


def located(p: SparseDistribution, radii: Tensor) -> Tensor:
    """Locations (K, *batch, *event) at shares (K,) of the way from the center to the edge.

    A negative share goes the other way; vectors go in a direction of their own for each. Of
    several intervals it is the widest that has the center.
    """
    center, factor = frame(p)
    radii = radii.to(factor.dtype)
    if not p.event_shape:
        return center + factor * radii.reshape(-1, *(1,) * center.dim())
    u = torch.arange(1.0, radii.numel() * p.event_shape[0] + 1).square().cos()
    u = u.reshape(len(radii), *p.event_shape).to(factor.dtype)
    u = radii[:, None] * u / u.norm(dim=-1, keepdim=True)
    return center + torch.einsum("...ij,kj->k...i", factor, u)


def interior(p: SparseDistribution, count: int = 7) -> Tensor:
    """Locations (count, *batch, *event) inside the support, or within three deviations."""
    radii = torch.linspace(-0.94, 0.96, count, dtype=DOUBLE)
    if p.event_shape or not bounded(p):
        return located(p, radii)
    intervals = p.support.intervals.detach()
    lengths = intervals.diff(dim=-1).squeeze(-1).nan_to_num(0.0)
    way = (radii.to(lengths).reshape(-1, *(1,) * lengths.dim()) + 1) / 2
    # As far along the intervals laid end to end; what has passed one or not begun it leaves zero.
    passed = way * lengths.sum(-1, keepdim=True) - lengths.cumsum(-1) + lengths
    here = (passed > 0) & (passed <= lengths)
    return torch.where(here, intervals[..., 0] + passed, 0.0).sum(-1)


def per_event(weights: Tensor, values: Tensor) -> Tensor:
    """Sum of values (Q, *batch, *shape) with weights (Q, *batch)."""
    return (weights.reshape(*weights.shape, *(1,) * (values.dim() - weights.dim())) * values).sum(0)


def masses(case: Case, q: SparseDistribution) -> Tensor:
    """Integrals (*batch) of a density of the case's shape over the supports of the case."""
    rules = [r.rule() for r in case.references]
    size = max(len(weights) for _, weights in rules)
    t, weights = (
        torch.as_tensor(np.stack([_padded(column, size) for column in x], 1))
        for x in zip(*rules, strict=True)
    )
    probs = q.prob(t.reshape(len(t), *q.batch_shape, *q.event_shape))
    return (weights.reshape(probs.shape) * probs).sum(0)


def _padded(column: Array, size: int) -> Array:
    """With zeros behind."""
    return np.concatenate([column, np.zeros((size - len(column), *column.shape[1:]))])


def double(*numbers: float) -> Tensor:
    """A vector in float64."""
    return torch.tensor(numbers, dtype=DOUBLE)


def number(x: Any) -> Tensor:
    """A number, or an array of them, in float64."""
    return torch.tensor(x, dtype=DOUBLE)


def of_dtype(basis: Basis, dtype: torch.dtype) -> Basis:
    """A copy."""
    return copy.deepcopy(basis).to(dtype)


def one_graph(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as one graph, which is not one of an earlier test."""
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def apart(found: Any, due: Any) -> float:
    """The distance of tensors or arrays relative to the second, in norm."""
    found, due = (torch.as_tensor(x).detach().double() for x in (found, due))
    return float((found - due).norm() / due.norm())


def exp_beta(u: Tensor, beta: Tensor | float) -> Tensor:
    """The deformed exponential [1 + (1 - beta) u]_+^(1 / (1 - beta)), and e^u at 1."""
    slope = 1 - torch.as_tensor(beta, dtype=u.dtype)
    base = (slope * u).clamp_min(-1).log1p()
    return torch.where(slope == 0, u, base / torch.where(slope == 0, 1.0, slope)).exp()


# Bases
def bases(dim: int | None, dtype: torch.dtype) -> dict[str, Basis]:
    """Bases for events of a shape, exact in float32."""
    if dim is None:
        found = {
            "GaussianRBF": GaussianRBF([-0.3, 0.2, 0.8], [0.1, 0.5, 3.0]),
            "Fourier": Fourier([0.5, 3.0]),
            "Polynomial": Polynomial(6),
            "BSpline": BSpline([-0.4, -0.1, 0.1, 0.6, 0.9], 2),
            "Indicator": Indicator([-0.3, 0.1, 0.9]),
        }
    else:
        found = vector_bases(dim)
    return {name: basis.to(dtype) for name, basis in found.items()}


def vector_bases(dim: int) -> dict[str, Basis]:
    centers = torch.cos(1.3 * torch.arange(1.0, 3 * dim + 1)).reshape(3, dim)
    mixed = torch.eye(dim) * 0.5 + torch.full((dim, dim), 0.125).tril(-1)
    found = {
        "GaussianRBF": GaussianRBF(centers, [0.375, 0.5, 3.0]),
        "GaussianRBF-full": GaussianRBF(centers, covariance=mixed @ mixed.mT),
        "Fourier": Fourier(torch.stack([0.5 * centers[0], 3 * centers[1]])),
        "Polynomial": Polynomial(2, ndim=dim),
    }
    if dim <= 3:
        waves, hills = Fourier([1.0]), GaussianRBF([-0.5, 0.25], 0.75)
        found["Product"] = Product(*[waves, hills, Polynomial(1)][:dim])
    return found
