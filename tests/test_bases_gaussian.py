"""Gaussian basis functions of vectors: values, digits, parameters, and what is refused."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor, nn

from sparsefam.bases import Basis, GaussianRBF

DOUBLE = torch.float64
CENTERS = [[0.0, 0.25], [0.5, 1.0], [1.0, -0.5]]
MATRICES = [[[0.25, 0.125], [0.125, 0.5]], [[1.0, 0.0], [0.0, 0.0625]], [[2.0, -1.0], [-1.0, 2.0]]]


# Values


@pytest.mark.parametrize("ndim", [1, 2, 3, 16])
@pytest.mark.parametrize("shared", [False, True])
def test_isotropic_gaussian_is_the_normal_density(ndim: int, shared: bool) -> None:
    centers = torch.randn(4, ndim, dtype=DOUBLE)
    widths = torch.tensor(0.75, dtype=DOUBLE) if shared else torch.rand(4, dtype=DOUBLE) + 0.5
    t = centers[:1] + torch.randn(5, ndim, dtype=DOUBLE)
    exact = [
        scipy.stats.multivariate_normal.pdf(t.numpy(), center, float(width) ** 2 * np.eye(ndim))
        for center, width in zip(centers.numpy(), widths.expand(4), strict=True)
    ]
    found = GaussianRBF(centers, widths)(t)
    assert found.T.numpy() == pytest.approx(np.array(exact), rel=1e-13)


@pytest.mark.parametrize("ndim", [1, 2, 3, 16])
@pytest.mark.parametrize("shared", [False, True])
def test_full_gaussian_is_the_normal_density(ndim: int, shared: bool) -> None:
    centers = torch.randn(4, ndim, dtype=DOUBLE)
    factor = torch.randn(4, ndim, ndim, dtype=DOUBLE)
    matrices = factor @ factor.mT + 0.5 * torch.eye(ndim, dtype=DOUBLE)
    if shared:
        matrices = matrices[0]
    t = centers[:1] + torch.randn(2, 3, ndim, dtype=DOUBLE)
    exact = [
        scipy.stats.multivariate_normal.pdf(t.numpy(), center.numpy(), matrix.numpy())
        for center, matrix in zip(centers, matrices.expand(4, ndim, ndim), strict=True)
    ]
    found = GaussianRBF(centers, covariance=matrices)(t)
    assert found.movedim(-1, 0).numpy() == pytest.approx(np.array(exact), rel=1e-11)


def test_one_coordinate_is_as_good_as_a_number() -> None:
    centers, t = torch.tensor([-1.0, 0.25, 3.0]), torch.linspace(-3, 4, 9)
    numbers = GaussianRBF(centers, [0.5, 1.0, 2.0])(t)
    rows = centers.unsqueeze(-1)
    matrices = torch.tensor([0.25, 1.0, 4.0]).reshape(3, 1, 1)
    for basis in (GaussianRBF(rows, [0.5, 1.0, 2.0]), GaussianRBF(rows, covariance=matrices)):
        assert basis.event_shape == (1,)
        torch.testing.assert_close(basis(t.unsqueeze(-1)), numbers, rtol=1e-6, atol=1e-12)


def ill_conditioned(ndim: int) -> Tensor:
    """Matrices (5, D, D) of condition number 1e6, as exactly as float32 holds them."""
    rotation, _ = torch.linalg.qr(torch.randn(5, ndim, ndim, dtype=DOUBLE))
    values = torch.logspace(-6, 0, ndim, dtype=DOUBLE)
    matrix = ((rotation * values) @ rotation.mT).float()
    return torch.tril(matrix) + torch.tril(matrix, -1).mT


@pytest.mark.parametrize("ndim", [2, 3, 8])
def test_float32_keeps_the_digits_of_an_ill_conditioned_covariance(ndim: int) -> None:
    matrices = ill_conditioned(ndim)
    factor = torch.linalg.cholesky(matrices.double())
    centers = torch.randn(5, ndim)
    # Around each center by a few of its own standard deviations.
    t = centers + (factor @ torch.randn(7, 5, ndim, 1, dtype=DOUBLE)).squeeze(-1).float()
    basis = GaussianRBF(centers, covariance=matrices)
    found = basis.own(t)
    whitened = torch.linalg.solve(matrices.double(), (t.double() - centers.double()).unsqueeze(-1))
    square = ((t.double() - centers.double()) * whitened.squeeze(-1)).sum(-1)
    log_exact = -0.5 * (square + torch.logdet(2 * math.pi * matrices.double()))
    assert found.dtype == torch.float32
    assert (found.double() / log_exact.exp() - 1).abs().max() < 1e-7


def test_narrow_functions_of_many_coordinates_stay_finite_in_float32() -> None:
    centers = torch.zeros(1, 16)
    t = torch.full((16,), 3e-3)
    found = GaussianRBF(centers, 1e-3)(t).double()
    exact = 16 * scipy.stats.norm.logpdf(np.float32(3e-3), 0, np.float32(1e-3))
    assert found.log().item() == pytest.approx(exact, abs=1e-5)
    assert found.item() > 1e10


@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize("widths", [0.05, [0.1, 0.5]])
def test_grid_spreads_centers_over_every_axis(ndim: int, widths: float | list[float]) -> None:
    each = [widths] if isinstance(widths, float) else widths
    basis = GaussianRBF.grid(3**ndim * len(each), widths, ndim=ndim, low=-1.0, high=2.0)
    points = list(itertools.product([-1.0, 0.5, 2.0], repeat=ndim))
    assert basis.event_shape == ((ndim,) if ndim > 1 else ())
    expected = torch.tensor(points * len(each)).reshape(len(basis), *basis.event_shape)
    torch.testing.assert_close(basis.centers, expected)
    assert basis.widths is not None
    assert basis.widths.tolist() == pytest.approx([w for w in each for _ in points])


def test_grid_puts_a_single_center_in_the_middle() -> None:
    assert GaussianRBF.grid(1, 0.1, ndim=3, high=4.0).centers.tolist() == [[2.0, 2.0, 2.0]]


def test_grid_finds_large_roots_exactly() -> None:
    assert GaussianRBF.grid(2 * 6**5, [0.1, 0.2], ndim=5).centers.shape == (2 * 6**5, 5)


@pytest.mark.parametrize("matrices", [None, MATRICES, MATRICES[0]])
def test_far_locations_give_zero_with_zero_gradient(matrices: list[list[float]] | None) -> None:
    basis = GaussianRBF(CENTERS, None if matrices else 0.5, matrices)
    far = list(itertools.product([-math.inf, -1e30, 0.0, 1e30, math.inf], repeat=2))
    far.remove((0.0, 0.0))
    assert not basis(torch.tensor(far)).any()
    t = torch.tensor([[-1e10, 0.5], [1e10, 1e10]], requires_grad=True)
    (grad,) = torch.autograd.grad(basis(t).sum(), t)
    assert not grad.any()


# Parameters


def test_parameters_given_stay_parameters() -> None:
    centers, matrices = nn.Parameter(torch.tensor(CENTERS)), nn.Parameter(torch.tensor(MATRICES))
    full, isotropic = GaussianRBF(centers, covariance=matrices), GaussianRBF(centers, 1.0)
    assert full.centers is centers
    assert full.covariance is matrices
    assert {key for key, _ in full.named_parameters()} == {"centers", "covariance"}
    assert {key for key, _ in isotropic.named_parameters()} == {"centers"}
    (gradient,) = torch.autograd.grad(full(torch.tensor([0.1, 0.7])).sum(), matrices)
    torch.testing.assert_close(gradient, gradient.mT)


def test_a_learned_covariance_that_is_no_longer_one_gives_nan() -> None:
    basis = GaussianRBF(CENTERS, covariance=nn.Parameter(torch.tensor(MATRICES)))
    with torch.no_grad():
        basis.get_parameter("covariance")[1, 0, 0] = -1.0
    assert basis(torch.zeros(2)).isnan().tolist() == [False, True, False]


# Errors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GaussianRBF(CENTERS, [1.0, 2.0]), r"widths must be one number or \(3,\).*\(2,\)"),
        (lambda: GaussianRBF(CENTERS), "either widths or covariance, got neither"),
        (lambda: GaussianRBF(CENTERS, 1.0, MATRICES), "either widths or covariance, got both"),
        (lambda: GaussianRBF([[0.0, math.inf]], 1.0), "centers must be finite.*inf"),
        (lambda: GaussianRBF([[]], 1.0), r"centers must .*not empty, got shape \(1, 0\)"),
        (
            lambda: GaussianRBF([0.0], covariance=[[1.0]]),
            r"centers must have shape \(N, D\) with a covariance, got shape \(1,\)",
        ),
        (
            lambda: GaussianRBF(CENTERS, covariance=torch.eye(3)),
            r"covariance must have shape \(2, 2\) or \(3, 2, 2\), got shape \(3, 3\)",
        ),
        (
            lambda: GaussianRBF(CENTERS, covariance=[[1.0, 0.5], [0.0, 1.0]]),
            "covariance must be symmetric",
        ),
        (
            lambda: GaussianRBF(CENTERS, covariance=[[1.0, math.nan], [math.nan, 1.0]]),
            "covariance must be finite",
        ),
        (
            lambda: GaussianRBF(CENTERS, covariance=[[1.0, 1.0], [1.0, 1.0]]),
            "covariance must be positive definite.*singular.*add a small multiple of the identity",
        ),
        (lambda: GaussianRBF.grid(10, 0.1, ndim=2), "n must be .*power ndim=2 .*=1, got 10"),
        (lambda: GaussianRBF.grid(9, [0.1, 0.2], ndim=2), r"n must be .*len\(widths\)=2, got 9"),
        (lambda: GaussianRBF.grid(-8, 0.1, ndim=3), "n must be .*got -8"),
        (lambda: GaussianRBF.grid(4, 0.1, ndim=0), "ndim must be at least 1, got 0"),
    ],
)
def test_bad_arguments_are_named(make: Callable[[], Basis], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
