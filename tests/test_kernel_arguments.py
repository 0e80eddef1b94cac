"""What kernel families refuse, and densities of an empty batch."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from battery import DOUBLE, SINGLE
from cases_kernel import kernel_density
from torch import Tensor
from torch import distributions as td

from sparsefam import KernelDeformedExp, KernelExp, scores
from sparsefam.bases import GaussianRBF

POINTS, WEIGHTS = torch.tensor([0.25, 0.5, 0.75]), torch.tensor([4.0, -4.0, 3.0])


def gaussian(x: Tensor, z: Tensor) -> Tensor:
    return torch.exp(-50 * torch.cdist(x, z).square())


def make(**changes: Any) -> KernelExp:
    parts = {"weights": WEIGHTS, "inducing_points": POINTS, "kernel": gaussian} | changes
    return KernelExp(**parts)


REFUSED: list[tuple[str, Callable[[], Any], str]] = [
    ("no tensor", lambda: make(weights=[1.0, 2.0, 3.0]), "weights must be a floating tensor"),
    ("integers", lambda: make(weights=WEIGHTS.int()), r"weights must be .*\(3,\), torch.int32"),
    ("complex", lambda: make(weights=WEIGHTS + 0j), "weights must be .*complex64"),
    ("points", lambda: make(inducing_points=POINTS + 0j), "inducing_points must be .*complex64"),
    ("NaN", lambda: make(weights=WEIGHTS * math.nan), "Expected parameter weights"),
    ("outside", lambda: make(inducing_points=POINTS + 1), "inducing_points must be inside the sup"),
    ("no points", lambda: make(inducing_points=torch.ones(0, 3, 1)), "for each inducing point"),
    ("a class", lambda: make(kernel=torch.nn.Linear), "kernel must be a callable on matrices"),
    ("no kernel", lambda: make(kernel=3), "kernel must be a callable"),
    ("indefinite", lambda: make(kernel=lambda x, z: -gaussian(x, z)), "positive semi-definite"),
    ("shape", lambda: make(kernel=lambda x, z: gaussian(x, z)[:1]), r"kernel must map .*\(1, 3\)"),
    ("number", lambda: make(kernel=lambda x, z: 1.0), "kernel must map .* got 1.0"),
    ("float32", lambda: make(kernel=lambda x, z: gaussian(x, z).float()), "kernel .*torch.float32"),
    ("long", lambda: make(kernel=lambda x, z: gaussian(x, z).long()), "kernel .*torch.int64"),
    ("tolerance 0", lambda: make(tolerance=0.0), "tolerance must be a positive, finite number"),
    ("tolerance NaN", lambda: make(tolerance=math.nan), "tolerance must be .*got nan"),
    ("tolerance inf", lambda: make(tolerance=math.inf), "tolerance must be .*got inf"),
    ("tolerance text", lambda: make(tolerance="small"), "tolerance must be .*got 'small'"),
    ("score", lambda: scores.KernelExpansion(WEIGHTS + 0j, POINTS, gaussian), "weights must be"),
    ("score's kernel", lambda: scores.KernelExpansion(WEIGHTS, POINTS, None), "kernel must be"),  # type: ignore[arg-type]
    ("finite score", lambda: scores.Finite(WEIGHTS + 0j), "scores must be a tensor of real"),
    ("location", lambda: scores.Quadratic(WEIGHTS + 0j, 1.0), "loc must be real"),
]


@pytest.mark.parametrize(
    ("make_it", "message"), [x[1:] for x in REFUSED], ids=[x[0] for x in REFUSED]
)
def test_bad_input(make_it: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_it()


PANELS: list[tuple[str, dict[str, Any], str]] = [
    ("no mesh", {"mesh": "found"}, "mesh must be those of another density, got 'found'"),
    ("dtype", {"weights": WEIGHTS.double()}, "mesh must be of a density in torch.float64"),
    (
        "dimension",
        {"inducing_points": POINTS.repeat(2, 1).T},
        "mesh must have dimension 2",
    ),
    ("base", {"base": td.Normal(0.0, 1.0)}, "mesh must be .*same base, got Normal"),
    ("interval", {"base": td.Uniform(0.0, 1.25)}, "mesh must be .*same base, got Uniform"),
    ("points", {"inducing_points": POINTS + 0.01}, "mesh must be .*same kernel and inducing po"),
    ("kernel", {"kernel": lambda x, z: x @ z.mT}, "mesh must be .*same kernel and inducing po"),
    ("number", {"weights": WEIGHTS[:2], "inducing_points": POINTS[:2]}, "mesh must be .*same ke"),
]


@pytest.mark.parametrize(
    ("changes", "message"), [x[1:] for x in PANELS], ids=[x[0] for x in PANELS]
)
def test_panels_of_another_density(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**{"mesh": make().mesh} | changes)


def test_panels_of_the_same_density() -> None:
    # The base is another object, its parameters were rounded, and more digits do no harm.
    base = td.Normal(0.5, torch.tensor(0.3, dtype=DOUBLE))
    p = make(weights=WEIGHTS.double(), inducing_points=POINTS.double(), base=base)
    q = make(base=td.Normal(0.5, 0.3), mesh=p.mesh)
    assert q.mean.dtype == SINGLE
    torch.testing.assert_close(q.mean.double(), p.mean, rtol=1e-6, atol=0)


@pytest.mark.parametrize("alpha", ["2", None, 1.5 + 0j, torch.tensor(1.5 + 0j), [1.5, "2"]])
def test_alpha_that_is_no_number(alpha: Any) -> None:
    with pytest.raises(ValueError, match="^alpha must be"):
        KernelDeformedExp(WEIGHTS, POINTS, gaussian, None, alpha)


@pytest.mark.parametrize("alpha", [1.0, 2.5, math.nan, math.inf, -1, torch.tensor([1.5, 1.0])])
def test_alpha_out_of_range(alpha: Any) -> None:
    with pytest.raises(ValueError, match=r"^alpha must be in \(1, 2\]"):
        KernelDeformedExp(WEIGHTS, POINTS, gaussian, None, alpha)


def test_alpha_that_rounds_to_one() -> None:
    # In float32 there is no number between 1 and 1 + 1e-7; in float64 there is, next to the limit.
    with pytest.raises(ValueError, match=r"alpha must be in \(1, 2\] in torch.float32, got 1.0"):
        KernelDeformedExp(WEIGHTS, POINTS, gaussian, None, 1 + 1e-9)
    parts = (WEIGHTS.double(), POINTS.double(), gaussian)
    p, q = KernelDeformedExp(*parts, None, 1 + 1e-9), KernelExp(*parts)
    torch.testing.assert_close(p.mean, q.mean, rtol=1e-8, atol=0)


def test_an_empty_support() -> None:
    weights, point = torch.tensor([[4.0], [-9.0]]), torch.tensor([0.5])
    with pytest.raises(ValueError, match=r"weights must be such.*batch indices \[\[1\]\]"):
        kernel_density(weights, point, lambda x, z: x.new_ones(len(x), len(z)), inside=False)


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
def test_powers_too_large_to_be_normalised(dtype: torch.dtype) -> None:
    parts = (100 * torch.ones(3, dtype=dtype), POINTS.to(dtype), gaussian, None, 1.0001)
    with pytest.raises(ValueError, match=r"weights must be so small that powers are below exp"):
        KernelDeformedExp(*parts, normalization="outside")


@pytest.mark.parametrize("batch", [(0,), (2, 0)])
@pytest.mark.parametrize(("alpha", "inside"), [(1.0, True), (1.5, True), (2.0, False)])
def test_empty_batches(alpha: float, inside: bool, batch: tuple[int, ...]) -> None:
    p = kernel_density(torch.zeros(*batch, 3), POINTS, gaussian, None, alpha, inside)
    t = torch.rand(7, *batch)
    psi = GaussianRBF.grid(4, 0.1)
    of_batch = (p.mean, p.variance, p.mode, p.entropy(), p.tsallis_entropy(), p.log_normalizer)
    assert all(found.shape == batch for found in of_batch)
    at_locations = (p.log_prob(t), p.cdf(t), p.icdf(t), p.sample((7,)), p.rsample((7,)))
    assert all(found.shape == (7, *batch) for found in at_locations)
    assert p.expect(psi).shape == (*batch, 4)
    assert p.expect(torch.cos).shape == p.escort(0.5).mean.shape == p.support.check(t[0]).shape
    assert p.generalized_covariance(psi, psi).shape == (*batch, 4, 4)
    assert p.expand((3, *batch)).mean.shape == (3, *batch)
