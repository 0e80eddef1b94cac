"""The KL divergence of every pair of densities that the battery knows, and of torch's with them."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from battery import DOUBLE, SINGLE, Case, bounded, scale_of
from cases import SCALARS
from cases_kernel import POINTS
from cases_multivariate import scalar, squared
from references import Array, Ball, smooth_rule, sphere_rule, tanh_sinh
from scipy import stats
from torch import Tensor
from torch import distributions as td
from torch.distributions import kl_divergence

from sparsefam import SparseDistribution

# Of the pairs one in so many is asked about each time, and all with the slow tests.
EVERY = 13
LOC, SCALE = 0.3125, 0.6875
# Where integrals are cut, of a support that may be a dense density's, and of scales.
SHARES = (-0.3, -0.1, -0.03, -0.01, 0, 0.01, 0.03, 0.1, 0.3)
STEPS = (-8, -4, -1, 0, 1, 4, 8)


@dataclass(frozen=True, eq=False)
class Member:
    """A density with the definition that it is compared by.

    Attributes:
        name: Its name.
        of: Builds it from parameters by name.
        parameters: These, numbers exact in float32.
        densities: Of locations (Q,) or (Q, D), in numpy.
        intervals: Of numbers: those of the support.
        ball: Of vectors: what to integrate in.
        bounded: Of vectors: whether the support is that.
        marks: Of numbers: where to cut integrals.
    """

    name: str
    of: Callable[..., Any]
    parameters: dict[str, Any]
    densities: Callable[[Array], Array]
    intervals: tuple[tuple[float, float], ...] = ()
    ball: Ball | None = None
    bounded: bool = False
    marks: tuple[float, ...] = ()

    def leaves(self, dtype: torch.dtype = DOUBLE) -> dict[str, Tensor]:
        return {name: torch.tensor(x, dtype=dtype) for name, x in self.parameters.items()}

    @cache  # noqa: B019
    def made(self, dtype: torch.dtype) -> Any:
        return self.of(**self.leaves(dtype))

    @cached_property
    def is_ours(self) -> bool:
        return isinstance(self.made(DOUBLE), SparseDistribution)

    def logs(self, t: Array) -> Array:
        """Log densities, -inf off the support."""
        found = self.densities(t)
        if self.intervals:
            found = np.where(
                np.any([(a < t) & (t < b) for a, b in self.intervals], axis=0), found, 0.0
            )
        return np.where(found > 0, np.log(np.where(found > 0, found, 1.0)), -math.inf)


def wider(case: Case) -> Case:
    """About another centre, its support around that of the original."""
    name = scale_of(case)
    assert name is not None
    sizes = 1.25 * np.array(case.parameters[name])
    moved = np.array(case.parameters["loc"]) + 0.0625
    parameters = case.parameters | {"loc": moved.tolist(), name: sizes.tolist()}
    return Case(case.family, parameters, f"{case.name}-wider")


def member(case: Case) -> Member:
    (reference,) = case.references
    if isinstance(reference, Ball):
        found, ends = reference.densities, bounded(case())
        return Member(case.name, case.of, case.parameters, found, ball=reference, bounded=ends)
    parameters, intervals = case.parameters, reference.intervals
    if "weights" in parameters:  # kernel families, cut at each edge and inducing point
        marks = [*POINTS]
    elif "logits" in parameters:  # kinks of the components, and what is between them
        pairs = zip(parameters["loc"], parameters["scale"], strict=True)
        marks = [loc + step * scale for loc, scale in pairs for step in STEPS]
    else:
        (low, high), centre = intervals[0], parameters["loc"]
        half = (high - low) / 2
        marks = [centre + share * half for share in SHARES]
    marks = [t for t in marks if any(a < t < b for a, b in intervals)]
    marks += [t for interval in intervals for t in interval]
    if not bounded(case()):
        intervals = ((-math.inf, math.inf),)
    found = reference.densities
    return Member(case.name, case.of, parameters, found, intervals, marks=tuple(marks))


def torchs() -> list[Member]:
    """Torch's own of numbers."""
    steps = [SCALE * step for step in (0.0, 0.75, 2.0, 8.0, 24.0, 80.0)]
    marks = tuple(sorted({LOC + sign * step for step in steps for sign in (-1, 1)}))
    whole = ((-math.inf, math.inf),)
    known = [(td.Normal, stats.norm), (td.Laplace, stats.laplace)]
    found = [
        Member(
            f"torch-{cls.__name__}",
            cls,
            {"loc": LOC, "scale": SCALE},
            law(LOC, SCALE).pdf,
            whole,
            marks=marks,
        )
        for cls, law in known
    ]
    ends = LOC - SCALE, LOC + SCALE
    box = {"low": ends[0], "high": ends[1]}
    pdf = stats.uniform(ends[0], 2 * SCALE).pdf
    return [*found, Member("torch-Uniform", td.Uniform, box, pdf, (ends,), marks=ends)]


def _normal_density(loc: Array, scale_tril: Array, t: Array) -> Array:
    peak = 2 * math.pi * np.prod(np.diagonal(scale_tril))
    return np.asarray(np.exp(-0.5 * squared(t, loc, scale_tril)) / peak)


def _independent(loc: Tensor, scale: Tensor) -> td.Distribution:
    return td.Independent(td.Normal(loc, scale), 1)


def torchs_of_vectors() -> list[Member]:
    """Torch's own, of two numbers."""
    loc, tril = (np.array(x) for x in scalar(2).values())
    made = {
        "torch-MultivariateNormal": (
            lambda loc, scale_tril: td.MultivariateNormal(loc, scale_tril=scale_tril),
            {"loc": loc, "scale_tril": tril},
            tril,
        ),
        "torch-Independent": (
            _independent,
            {"loc": loc, "scale": np.diagonal(tril)},
            np.diag(np.diagonal(tril)),
        ),
    }
    return [
        Member(
            name,
            of,
            {k: x.tolist() for k, x in parameters.items()},
            partial(_normal_density, loc, factor),
            ball=Ball(partial(_normal_density, loc, factor), loc, 15 * factor),
        )
        for name, (of, parameters, factor) in made.items()
    ]


def _members(dim: int | None) -> list[Case]:
    cases = [case for case in SCALARS if case.family.dim == dim]
    return cases + [wider(case) for case in cases if scale_of(case) and not case.family.ranks]


NUMBERS = [case.name for case in _members(None)] + [
    f"torch-{name}" for name in ("Normal", "Laplace", "Uniform")
]
VECTORS = [case.name for case in _members(2)] + ["torch-MultivariateNormal", "torch-Independent"]


@cache
def members(dim: int | None) -> dict[str, Member]:
    found = [member(case) for case in _members(dim)]
    found += torchs() if dim is None else torchs_of_vectors()
    return {x.name: x for x in found}


def nested(p: Member, q: Member) -> bool:
    """Whether p's support lies in q's, to rounding."""
    if p.ball is None or q.ball is None:
        return all(
            any(a - 1e-12 <= low and high <= b + 1e-12 for a, b in q.intervals)
            for low, high in p.intervals
        )
    if not q.bounded:
        return True
    edge = p.ball.centre + sphere_rule(2, 5000)[0] @ p.ball.factor.T
    return p.bounded and squared(edge, q.ball.centre, q.ball.factor).max() < 1 + 1e-12


@cache
def rule() -> tuple[Array, Array]:
    """Nodes and weights of integrals over the line, cut at all marks."""
    cuts = sorted({t for x in members(None).values() for t in x.marks})
    pieces = [tanh_sinh(0.04, a, b) for a, b in pairwise(cuts)]
    nodes, weights = (np.concatenate(x) for x in zip(*pieces, strict=True))
    return nodes, weights


@cache
def on_line(name: str) -> Array:
    """Log densities at the nodes of the rule."""
    return members(None)[name].logs(rule()[0])


def expected(p: str, q: str, dim: int | None) -> float:
    """The divergence by quadrature; infinite if p has mass where q has none."""
    if dim is None:
        (_, weights), log_p, log_q = rule(), on_line(p), on_line(q)
    else:
        ball = members(dim)[p].ball
        assert ball is not None
        t, weights = ball._image(*smooth_rule(dim))
        log_p, log_q = (members(dim)[x].logs(t) for x in (p, q))
    mass = weights * np.exp(log_p)
    assert mass.sum() == pytest.approx(1, abs=1e-9)
    if not nested(members(dim)[p], members(dim)[q]):
        return math.inf
    both = np.isfinite(log_p) & np.isfinite(log_q)
    return float((mass[both] * (log_p[both] - log_q[both])).sum())


def asked(names: list[str], dim: int | None) -> list[Any]:
    """A name with some of the others each time, and with the rest if slow tests are run."""
    found = []
    for i, p in enumerate(names):
        some = [q for j, q in enumerate(names) if i == j or (i + 3 * j) % EVERY == 0]
        rest = [q for q in names if q not in some]
        found.append(pytest.param(p, some, dim, id=f"{p}-some"))
        found.append(pytest.param(p, rest, dim, id=f"{p}-rest", marks=pytest.mark.slow))
    return found


@pytest.mark.parametrize(("name", "others", "dim"), asked(NUMBERS, None) + asked(VECTORS, 2))
def test_every_pair_is_the_integral(name: str, others: list[str], dim: int | None) -> None:
    known = members(dim)
    p = known[name]
    found, exact = [], []
    for other in others:
        q = known[other]
        if not (p.is_ours or q.is_ours):
            continue
        value = kl_divergence(p.made(DOUBLE), q.made(DOUBLE)).item()
        truth = expected(name, other, dim)
        assert value == pytest.approx(truth, abs=1e-9, rel=1e-9), other
        assert value >= -1e-12, other
        if name == other:
            assert value == pytest.approx(0, abs=1e-12)
        single = kl_divergence(p.made(SINGLE), q.made(SINGLE))
        assert single.dtype == SINGLE
        assert single.isinf().item() == math.isinf(truth), other
        if math.isfinite(truth):
            found.append(single.item())
            exact.append(value)
    error = np.linalg.norm(np.array(found) - exact)
    assert error <= 1e-6 * np.linalg.norm(exact) + 1e-7


def strictly_nested(p: Member, q: Member) -> bool:
    """Whether p's support stays in q's when parameters move a little."""
    if p.ball is not None:
        apart = q.name.endswith("wider") and not p.name.endswith("wider")
        return not q.bounded or (apart and nested(p, q))
    if q.name == "KernelExp":  # whose ends stay where they are
        return nested(p, q)
    wide = [(a + 0.02, b - 0.02) for a, b in q.intervals]
    return nested(p, replace(q, intervals=tuple(wide)))


def moved(x: Member, step: float | Tensor, seed: float) -> dict[str, Tensor]:
    """Parameters, all of them so far away in some direction."""
    found = {}
    for i, (name, value) in enumerate(x.leaves().items()):
        waves = torch.cos(seed + i + torch.arange(float(value.numel()), dtype=DOUBLE))
        away = value + step * waves.reshape(value.shape)
        found[name] = away.tril() if name == "scale_tril" else away
    return found


def some_of(names: list[str], dim: int | None) -> list[Any]:
    marks = [[pytest.mark.slow] if i % 4 else [] for i in range(len(names))]
    return [pytest.param(x, dim, marks=m) for x, m in zip(names, marks, strict=True)]


@pytest.mark.parametrize(("name", "dim"), some_of(NUMBERS, None) + some_of(VECTORS, 2))
def test_gradients_are_finite_differences(name: str, dim: int | None) -> None:
    known = list(members(dim).values())
    at = [x.name for x in known].index(name)
    p = known[at]
    fitting = [
        q
        for q in known[at + 1 :] + known[:at]
        if (p.is_ours or q.is_ours) and strictly_nested(p, q)
    ]
    assert len(fitting) >= 2

    def divergence(step: float | Tensor, q: Member) -> Tensor:
        pair = (x.of(**moved(x, step, seed)) for x, seed in ((p, 0.0), (q, 2.0)))
        found: Tensor = kl_divergence(*pair)
        return found

    h = 2.0**-12
    for q in fitting[:2]:
        step = torch.zeros((), dtype=DOUBLE, requires_grad=True)
        (slope,) = torch.autograd.grad(divergence(step, q), step)
        with torch.no_grad():
            near, far = (
                (divergence(k * h, q) - divergence(-k * h, q)).item() / (2 * k * h) for k in (1, 2)
            )
        # Of fourth order.
        assert slope.item() == pytest.approx((4 * near - far) / 3, rel=1e-6, abs=1e-7), q.name
