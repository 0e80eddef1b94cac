"""Bases against scipy and numpy, their gradients, and what they refuse."""

import copy
import itertools
import math
import re
from collections.abc import Callable

import numpy as np
import pytest
import scipy.interpolate
import scipy.stats
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from sparsefam.bases import (
    Basis,
    BSpline,
    Fourier,
    GaussianRBF,
    Indicator,
    Polynomial,
    Product,
    Stack,
)

DOUBLE = torch.float64
KNOTS = [0.0, 0.0, 0.0, 0.2, 0.5, 0.5, 0.9, 1.0, 1.0, 1.0]


def double(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=DOUBLE)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: GaussianRBF("abc", 1.0), "centers must be numbers of one shape, got 'abc'"),
        (lambda: GaussianRBF([[0.0], [1.0, 2.0]], 1.0), "centers must be numbers of one shape"),
        (lambda: GaussianRBF([0.0], "a"), "widths must be numbers"),
        (lambda: Polynomial(1.5), "degree must be an integer at least 0, got 1.5"),
        (lambda: Polynomial("2"), "degree must be an integer at least 0, got '2'"),
        (lambda: Polynomial(2, ndim=1.5), "ndim must be an integer"),
        (lambda: BSpline(KNOTS, 1.5), "degree must be an integer"),
        (lambda: GaussianRBF([0.0], 1.0)(1.0), "locations must be a tensor, got 1.0"),
        (lambda: BSpline(KNOTS, 1)(1.0), "locations must be a tensor, got 1.0"),
        (lambda: Polynomial(1)(None), "locations must be a tensor"),
        (lambda: Fourier([1.0])(1.0), "locations must be a tensor"),
    ],
)
def test_arguments_of_wrong_types_are_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_bases_are_made_on_the_meta_device() -> None:
    with torch.device("meta"):
        found = [GaussianRBF([0.0, 1.0], 0.1), GaussianRBF.grid(4, 0.1), BSpline(KNOTS, 2)]
    assert all(x.is_meta for basis in found for x in basis.buffers())


def every_basis() -> list[Basis]:
    return [
        GaussianRBF([0.0, 0.4, 1.0], [0.1, 0.2, 0.5]),
        Fourier([0.0, 1.0, 7.5]),
        Polynomial(3),
        BSpline(KNOTS, 2),
        Indicator([0.0, 0.3, 1.0]),
        Polynomial(1) + Indicator([0.0, 1.0]),
    ]


def name(basis: Basis) -> str:
    return type(basis).__name__


# Values


@pytest.mark.parametrize("widths", [0.05, [0.1, 0.5], (0.1, 0.2, 0.5)])
def test_grid_spreads_centers_for_every_width(widths: float | list[float]) -> None:
    basis = GaussianRBF.grid(12, widths, low=-1.0, high=2.0)
    each = [widths] if isinstance(widths, float) else widths
    count = 12 // len(each)
    pairs = [(c, w) for w in each for c in np.linspace(-1, 2, count)]
    assert len(basis) == 12
    assert basis.centers.tolist() == pytest.approx([c for c, _ in pairs], abs=1e-6)
    assert basis.widths.tolist() == pytest.approx([w for _, w in pairs])


def test_fourier_is_cosines_then_sines() -> None:
    t, omega = np.linspace(-2, 3, 11), np.array([0.0, 0.5, 4.0])
    angles = t[:, None] * omega
    exact = np.concatenate([np.cos(angles), np.sin(angles)], -1)
    basis = Fourier(torch.tensor(omega))
    assert basis(torch.tensor(t)).numpy() == pytest.approx(exact, abs=1e-15)
    assert len(basis) == 6


def test_polynomial_is_the_vandermonde_matrix() -> None:
    t = np.linspace(-2, 2, 9)
    exact = np.vander(t, 5, increasing=True)
    assert Polynomial(4)(torch.tensor(t)).numpy() == pytest.approx(exact, rel=1e-15)


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_bspline_is_scipys_on_clamped_knots_with_repeats(degree: int) -> None:
    inner = [0.0, 0.2, 0.5, 0.5, 0.9, 1.0]
    knots = np.array([0.0] * degree + inner + [1.0] * degree)
    t = np.concatenate([np.linspace(0, 1, 101), inner])
    exact = scipy.interpolate.BSpline.design_matrix(t, knots, degree).toarray()
    basis = BSpline(torch.tensor(knots), degree)
    assert len(basis) == exact.shape[1]
    assert basis(torch.tensor(t)).numpy() == pytest.approx(exact, abs=1e-14)


def test_bspline_is_zero_off_its_knots_and_scipys_elements_on_them() -> None:
    knots = np.array([0.0, 0.3, 0.7, 1.1, 1.2, 2.0])
    t = np.linspace(-1, 3, 81)
    actual = BSpline(torch.tensor(knots), 2)(torch.tensor(t)).numpy()
    for j in range(3):
        element = scipy.interpolate.BSpline.basis_element(knots[j : j + 4], extrapolate=False)
        assert actual[:, j] == pytest.approx(np.nan_to_num(element(t)), abs=1e-14)


@pytest.mark.parametrize("basis", [BSpline(KNOTS, 2), Indicator([0.0, 0.3, 1.0])], ids=name)
def test_splines_sum_to_one_on_the_closed_interval(basis: Basis) -> None:
    total = basis.double()(torch.linspace(0, 1, 33, dtype=DOUBLE)).sum(-1)
    assert total.tolist() == pytest.approx([1.0] * 33, abs=1e-14)


def test_indicator_is_closed_left_and_at_the_last_edge() -> None:
    t = torch.tensor([-0.1, 0.0, 0.5, 1.0, 2.0, 3.0, 3.1])
    expected = [[0, 0], [1, 0], [1, 0], [0, 1], [0, 1], [0, 1], [0, 0]]
    assert Indicator([0, 1, 3])(t).tolist() == expected


@pytest.mark.parametrize("basis", [BSpline(KNOTS, 2), GaussianRBF([0.0, 1.0], 0.1)], ids=name)
def test_far_locations_give_zero_with_zero_gradient(basis: Basis) -> None:
    t = torch.tensor([-math.inf, -1e30, 1e30, math.inf])
    assert not basis(t).any()
    t = torch.tensor([-1e10, 1e10], requires_grad=True)
    (grad,) = torch.autograd.grad(basis(t).sum(), t)
    assert grad.tolist() == [0.0, 0.0]


# Members


@pytest.mark.parametrize("basis", every_basis(), ids=name)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
def test_shape_is_that_of_the_locations_then_n(basis: Basis, shape: tuple[int, ...]) -> None:
    t = torch.rand(shape)
    values = basis(t)
    assert values.shape == (*shape, len(basis))
    assert values.dtype == torch.float32
    assert values.reshape(-1, len(basis))[0].tolist() == basis(t.reshape(-1)[0]).tolist()


@pytest.mark.parametrize(
    ("basis", "names"),
    [
        (GaussianRBF([0.0, 0.4], [0.1, 0.2]), {"centers", "widths"}),
        (Fourier(nn.Parameter(torch.ones(3))), {"frequencies"}),
        (BSpline(KNOTS, 2), {"knots"}),
        (Indicator([0.0, 0.3, 1.0]) + Fourier([1.0]), {"members.0.knots", "members.1.frequencies"}),
    ],
)
def test_state_dict_round_trip(basis: Basis, names: set[str]) -> None:
    t, twin = torch.linspace(0, 1, 5), copy.deepcopy(basis)
    for tensor in twin.state_dict().values():
        tensor.fill_(7.0)
    assert not torch.equal(twin(t), basis(t))
    twin.load_state_dict(basis.state_dict())
    assert torch.equal(twin(t), basis(t))
    assert set(basis.state_dict()) == names


@pytest.mark.parametrize("basis", every_basis(), ids=name)
def test_own_evaluates_each_function_at_its_own_locations(basis: Basis) -> None:
    t = torch.rand(4, len(basis))
    expected = torch.stack([basis(t[:, j])[:, j] for j in range(len(basis))], -1)
    assert torch.allclose(basis.own(t), expected)


def test_stacks_flatten_in_order() -> None:
    a, b, c, d = Polynomial(1), Fourier([1.0]), GaussianRBF([0.0], 1.0), Indicator([0.0, 1.0])
    stack = (a + b) + (c + d)
    assert [id(basis) for basis in stack.bases] == [id(basis) for basis in (a, b, c, d)]
    t = torch.rand(2, 5)
    assert torch.equal(stack(t), torch.cat([basis(t) for basis in (a, b, c, d)], -1))
    assert len(stack) == 6


# Reach


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE], ids=str)
def test_gaussian_is_negligible_past_its_reach(dtype: torch.dtype) -> None:
    basis = GaussianRBF([-3.0, 0.0, 1.0], [0.01, 1.0, 30.0]).to(dtype)
    lower, upper = basis.effective_support
    assert lower.shape == upper.shape == (3,)
    eps = torch.finfo(dtype).eps
    for edge in (lower, upper):
        relative = basis(edge).diagonal() / basis(basis.centers).diagonal()
        assert (relative < eps / 100).all()
        assert (relative > eps**1.5).all()


def test_spline_vanishes_exactly_past_its_reach() -> None:
    basis = BSpline(KNOTS, 2).double()
    lower, upper = basis.effective_support
    t = torch.linspace(-0.5, 1.5, 2001, dtype=DOUBLE).unsqueeze(-1)
    inside = (t >= lower) & (t <= upper)
    assert not basis(t.squeeze(-1))[~inside].any()
    assert (basis(t.squeeze(-1))[(t > lower) & (t < upper)] > 0).all()


# Gradients


@pytest.mark.parametrize("basis", [b for b in every_basis() if type(b) is not Indicator], ids=name)
def test_gradients_in_the_location(basis: Basis) -> None:
    basis = basis.double()
    t = double([0.1, 0.37, 0.77]).requires_grad_()
    assert gradcheck(basis, (t,))
    assert gradgradcheck(basis, (t,))


@pytest.mark.parametrize("shape", [(3,), ()])
def test_gaussian_learns_centers_and_widths(shape: tuple[int, ...]) -> None:
    centers = nn.Parameter(double([0.0, 0.5, 1.0]))
    widths = nn.Parameter(torch.full(shape, 0.3, dtype=DOUBLE))
    basis = GaussianRBF(centers, widths)
    assert {key for key, _ in basis.named_parameters()} == {"centers", "widths"}
    t = torch.linspace(-1, 2, 7, dtype=DOUBLE)

    def evaluate(centers: Tensor, widths: Tensor) -> Tensor:
        return torch.func.functional_call(basis, {"centers": centers, "widths": widths}, (t,))

    assert gradcheck(evaluate, (centers, widths))
    assert torch.equal(evaluate(centers, widths), basis(t))


def test_spline_gradient_in_the_knots() -> None:
    knots = nn.Parameter(double([0.0, 0.1, 0.5, 0.8, 1.0, 1.3]))
    basis = BSpline(knots, 2)
    t = double([0.05, 0.3, 0.65, 0.9])
    assert gradcheck(lambda k: torch.func.functional_call(basis, {"knots": k}, (t,)), (knots,))


@pytest.mark.parametrize("basis", every_basis(), ids=name)
def test_compiles_and_maps(basis: Basis) -> None:
    t = torch.rand(4, 3)
    torch._dynamo.reset()
    compiled = torch.compile(basis, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(t), basis(t))
    assert torch.allclose(torch.func.vmap(basis)(t), basis(t))


# Errors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GaussianRBF([0.0, math.nan], 1.0), "centers must be finite.*nan"),
        (lambda: GaussianRBF([[[0.0]]], 1.0), r"centers must have shape .*got shape \(1, 1, 1\)"),
        (lambda: GaussianRBF(0.5, 1.0), r"centers must have shape .*got shape \(\)"),
        (lambda: GaussianRBF([], 1.0), r"centers must .* not empty.*\(0,\)"),
        (lambda: GaussianRBF([0.0], 0.0), "widths must be finite and positive, got 0.0"),
        (lambda: GaussianRBF([0.0], math.inf), "widths must be finite and positive, got inf"),
        (lambda: GaussianRBF([0.0, 1.0], [1.0, -2.0]), "widths must be .*positive.*-2"),
        (lambda: GaussianRBF([0.0, 1.0], [1.0]), r"widths must be one number or \(2,\)"),
        (lambda: GaussianRBF.grid(7, [0.1, 0.5]), r"n must be .*len\(widths\)=2, got 7"),
        (lambda: GaussianRBF.grid(0, 0.1), "n must be a positive.*got 0"),
        (lambda: GaussianRBF.grid(4, []), r"n must be .*len\(widths\)=0"),
        (lambda: GaussianRBF.grid(4, 0.1, low=1.0), "low must be below high.*low=1.0, high=1.0"),
        (lambda: Fourier([math.inf]), "frequencies must be finite.*inf"),
        (lambda: Fourier([]), "frequencies must have .* not empty"),
        (lambda: Polynomial(-1), "degree must be at least 0, got -1"),
        (lambda: BSpline([0.0, 1.0], -1), "degree must be at least 0, got -1"),
        (lambda: BSpline([0.0, 1.0], 1), "knots must be at least degree . 2 = 3, got 2"),
        (lambda: BSpline([0.0, 2.0, 1.0], 1), "knots must be nondecreasing.*2., 1."),
        (lambda: BSpline([1.0, 1.0, 1.0], 1), "knots must be nondecreasing and not all equal"),
        (lambda: BSpline([0.0, math.nan, 1.0], 1), "knots must be finite.*nan"),
        (
            lambda: Indicator([0.0, 0.0, 1.0]),
            "edges must be .*strictly increasing, got .*0., 0.",
        ),
        (lambda: Indicator([0.0]), "edges must be two or more"),
        (lambda: Indicator([0.0, math.inf]), "edges must be finite.*inf"),
        (lambda: Indicator([[0.0, 1.0]]), "edges must be"),
        (Stack, r"bases must be one or more.*\[\]"),
        (lambda: Stack(nn.Linear(1, 1)), "bases must be .*'Linear'"),
    ],
)
def test_bad_arguments_are_named(make: Callable[[], Basis], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


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


@pytest.mark.parametrize("matrices", [None, MATRICES, MATRICES[0]])
def test_far_locations_give_zero_gaussians(
    matrices: list[list[float]] | None,
) -> None:
    basis = GaussianRBF(CENTERS, None if matrices else 0.5, matrices)
    far = list(itertools.product([-math.inf, -1e30, 0.0, 1e30, math.inf], repeat=2))
    far.remove((0.0, 0.0))
    assert not basis(torch.tensor(far)).any()
    t = torch.tensor([[-1e10, 0.5], [1e10, 1e10]], requires_grad=True)
    (grad,) = torch.autograd.grad(basis(t).sum(), t)
    assert not grad.any()


# Parameters


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
def test_bad_arguments_are_named_of_gaussians(make: Callable[[], Basis], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def vector_bases() -> list[Basis]:
    return [
        GaussianRBF(CENTERS, [0.25, 0.5, 1.0]),
        GaussianRBF(CENTERS, covariance=MATRICES),
        GaussianRBF(CENTERS, covariance=MATRICES[0]),
        Fourier([[0.0, 0.0], [1.0, -2.0], [0.0, 7.5]]),
        Polynomial(3, ndim=2),
        Product(GaussianRBF([0.0, 1.0], 0.5), Polynomial(1) + Fourier([2.0])),
        Polynomial(1, ndim=2) + Product(BSpline([0.0, 0.0, 0.5, 1.0], 1), Polynomial(0)),
    ]


def basis_name(basis: Basis) -> str:
    if isinstance(basis, GaussianRBF):
        matrices = basis.covariance
        return "isotropic" if matrices is None else f"covariance-{matrices.ndim}"
    return type(basis).__name__


every = pytest.mark.parametrize("basis", vector_bases(), ids=basis_name)


# Fourier, polynomials, products


def test_fourier_is_cosines_then_sines_of_vectors() -> None:
    t, omega = np.random.default_rng(0).normal(size=(2, 5, 3)), np.eye(3)[:2] * [1.0, 2.0, 5.0]
    angles = t @ omega.T
    exact = np.concatenate([np.cos(angles), np.sin(angles)], -1)
    basis = Fourier(torch.tensor(omega))
    assert len(basis) == 4
    assert basis(torch.tensor(t)).numpy() == pytest.approx(exact, abs=1e-15)


def test_polynomial_has_the_order_of_scikit_learn() -> None:
    x, y, z = t = torch.tensor([2.0, 3.0, 5.0])
    cubic = [x**3, x * x * y, x * x * z, x * y * y, x * y * z, x * z * z]
    cubic += [y**3, y * y * z, y * z * z, z**3]
    expected = [1, x, y, z, x * x, x * y, x * z, y * y, y * z, z * z, *cubic]
    basis = Polynomial(3, ndim=3)
    assert basis(t).tolist() == expected
    assert (t**basis.exponents).prod(-1).tolist() == expected
    assert [len(Polynomial(d, ndim=n)) for d, n in ((0, 4), (2, 2), (6, 8))] == [1, 6, 3003]


def test_lowered_monomials_are_the_derivatives() -> None:
    basis, t = Polynomial(4, ndim=3), torch.randn(3, dtype=DOUBLE)
    expected = torch.autograd.functional.jacobian(basis, t)
    torch.testing.assert_close(basis(t)[basis.lowered] * basis.exponents, expected)
    assert basis.lowered.max() < len(Polynomial(3, ndim=3))


def test_polynomial_has_finite_gradients_at_zero() -> None:
    jacobian = torch.autograd.functional.jacobian(Polynomial(2, ndim=2), torch.zeros(2))
    assert jacobian.tolist() == [[0, 0], [1, 0], [0, 1], [0, 0], [0, 0], [0, 0]]


def test_product_multiplies_functions_of_coordinates() -> None:
    factors = [Polynomial(1), Fourier([2.0]), Indicator([0.0, 0.5, 1.0])]
    t = torch.rand(4, 3)
    found = Product(*factors)(t)
    columns = [basis(t[:, axis]) for axis, basis in enumerate(factors)]
    expected = torch.einsum("bi,bj,bk->bijk", *columns).reshape(4, 8)
    torch.testing.assert_close(found, expected)
    assert len(Product(*factors)) == 8


# Members


# Gradients


@every
def test_gradients_in_the_location_of_vectors(basis: Basis) -> None:
    basis = copy.deepcopy(basis).double()
    t = torch.tensor([[0.1, 0.7], [0.37, 0.2]], dtype=DOUBLE, requires_grad=True)
    assert gradcheck(basis, (t,))
    assert gradgradcheck(basis, (t,))


@pytest.mark.parametrize(
    "basis",
    [basis for basis in vector_bases() if basis.state_dict()],
    ids=basis_name,
)
def test_parameters_are_learned(basis: Basis) -> None:
    basis = copy.deepcopy(basis).double()
    for module in basis.modules():
        for key, value in list(module.named_buffers(recurse=False)):
            if value.is_floating_point():
                delattr(module, key)
                module.register_parameter(key, nn.Parameter(value))
    t = torch.tensor([[0.1, 0.7], [0.37, 0.2]], dtype=DOUBLE)
    keys, leaves = zip(*basis.named_parameters(), strict=True)

    def evaluate(*values: Tensor) -> Tensor:
        # Only symmetric perturbations of a covariance make sense.
        values = tuple(
            (v + v.mT) / 2 if key == "covariance" else v
            for key, v in zip(keys, values, strict=True)
        )
        return torch.func.functional_call(basis, dict(zip(keys, values, strict=True)), (t,))

    assert gradcheck(evaluate, leaves)
    assert gradgradcheck(evaluate, leaves)


@every
def test_compiles_and_maps_of_vectors(basis: Basis) -> None:
    t = torch.rand(4, 3, 2)
    torch._dynamo.reset()
    compiled = torch.compile(basis, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(t), basis(t))
    torch.testing.assert_close(torch.func.vmap(basis)(t), basis(t))


# Errors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Fourier([[math.nan, 0.0]]), "frequencies must be finite"),
        (lambda: Fourier([[[1.0]]]), r"frequencies must have shape .*got shape \(1, 1, 1\)"),
        (lambda: Polynomial(2, ndim=0), "ndim must be at least 1, got 0"),
        (lambda: Polynomial(-1, ndim=2), "degree must be at least 0, got -1"),
        (Product, r"bases must be one or more.*\[\]"),
        (lambda: Product(nn.Linear(1, 1)), "bases must be .*'Linear'"),
        (lambda: Product(Polynomial(1, ndim=2)), r"bases must take numbers.*got \(2,\)"),
        (
            lambda: Product(Polynomial(1), Polynomial(1, ndim=2)),
            r"bases must have one event shape, got \[\(\), \(2,\)\]",
        ),
        (
            lambda: Stack(Polynomial(1, ndim=2), Polynomial(1, ndim=3)),
            r"bases must have one event shape, got \[\(2,\), \(3,\)\]",
        ),
        (lambda: Fourier([1.0]) + Polynomial(1, ndim=1), r"one event shape, got \[\(\), \(1,\)\]"),
    ],
)
def test_bad_arguments_are_named_of_vectors(make: Callable[[], Basis], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@every
@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_locations_of_another_dimension_are_refused(basis: Basis, shape: tuple[int, ...]) -> None:
    message = f"locations must end in event shape (2,), got shape {shape}"
    with pytest.raises(ValueError, match=re.escape(message)):
        basis(torch.zeros(shape))


def test_bases_without_storage_for_layers_that_load_it_later() -> None:
    with torch.device("meta"):
        for basis in (GaussianRBF.grid(4, [0.1, 0.2]), GaussianRBF.grid(9, 0.2, ndim=2)):
            assert all(x.is_meta for x in basis.buffers())
            assert len(basis) == len(basis.centers)
