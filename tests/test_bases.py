"""Bases against scipy and numpy, their gradients, and the arguments that they refuse."""

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
from battery import DOUBLE, one_graph
from refusals import refused
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from sparsefam.bases import Basis, BSpline, Fourier, GaussianRBF, Indicator, Polynomial, Product

KNOTS = [0.0, 0.0, 0.0, 0.2, 0.5, 0.5, 0.9, 1.0, 1.0, 1.0]
CENTERS = [[0.0, 0.25], [0.5, 1.0], [1.0, -0.5]]
MATRICES = [[[0.25, 0.125], [0.125, 0.5]], [[1.0, 0.0], [0.0, 0.0625]], [[2.0, -1.0], [-1.0, 2.0]]]
EVERY: dict[str, Callable[[], Basis]] = {
    "gaussian": lambda: GaussianRBF([0.0, 0.4, 1.0], [0.1, 0.2, 0.5]),
    "fourier": lambda: Fourier([0.0, 1.0, 7.5]),
    "polynomial": lambda: Polynomial(3),
    "spline": lambda: BSpline(KNOTS, 2),
    "indicator": lambda: Indicator([0.0, 0.3, 1.0]),
    "stack": lambda: Polynomial(1) + Fourier([1.0]),
    "isotropic": lambda: GaussianRBF(CENTERS, [0.25, 0.5, 1.0]),
    "covariances": lambda: GaussianRBF(CENTERS, covariance=MATRICES),
    "covariance": lambda: GaussianRBF(CENTERS, covariance=MATRICES[0]),
    "waves": lambda: Fourier([[0.0, 0.0], [1.0, -2.0], [0.0, 7.5]]),
    "monomials": lambda: Polynomial(3, ndim=2),
    "product": lambda: Product(GaussianRBF([0.0, 1.0], 0.5), Polynomial(1) + Fourier([2.0])),
    "stack of vectors": lambda: (
        Polynomial(1, ndim=2) + Product(BSpline([0.0, 0.0, 0.5, 1.0], 1), Polynomial(0))
    ),
}
every = pytest.mark.parametrize("name", EVERY)
LOCATIONS = torch.tensor([[0.1, 0.7], [0.37, 0.2], [0.77, 0.33]], dtype=DOUBLE)


def locations(basis: Basis) -> Tensor:
    return LOCATIONS if basis.event_shape else LOCATIONS[:, 0]


# Values
@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize("widths", [0.05, [0.1, 0.5]])
def test_grid_spreads_centers_over_every_axis(ndim: int, widths: float | list[float]) -> None:
    each = [widths] if isinstance(widths, float) else widths
    basis = GaussianRBF.grid(3**ndim * len(each), widths, ndim=ndim, low=-1.0, high=2.0)
    points = list(itertools.product([-1.0, 0.5, 2.0], repeat=ndim))
    assert basis.event_shape == ((ndim,) if ndim > 1 else ())
    expected = torch.tensor(points * len(each)).reshape(len(basis), *basis.event_shape)
    torch.testing.assert_close(basis.centers, expected)
    assert basis.widths.tolist() == pytest.approx([w for w in each for _ in points])


def test_fourier_is_cosines_then_sines() -> None:
    t, omega = np.random.default_rng(0).normal(size=(2, 5, 3))
    for located, basis in (
        (t, Fourier(torch.tensor(omega))),
        (t[:, 0], Fourier(torch.tensor(omega[:, 0]))),
    ):
        angles = t @ omega.T if located.ndim > 1 else np.outer(located, omega[:, 0])
        exact = np.concatenate([np.cos(angles), np.sin(angles)], -1)
        assert basis(torch.tensor(located)).numpy() == pytest.approx(exact, abs=1e-15)
        assert len(basis) == 10


def test_polynomial_is_the_vandermonde_matrix() -> None:
    t = np.linspace(-2, 2, 9)
    exact = np.vander(t, 5, increasing=True)
    assert Polynomial(4)(torch.tensor(t)).numpy() == pytest.approx(exact, rel=1e-15)


def test_monomials_have_the_order_of_scikit_learn() -> None:
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


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_splines_are_scipys(degree: int) -> None:
    inner = [0.0, 0.2, 0.5, 0.5, 0.9, 1.0]
    knots = np.array([0.0] * degree + inner + [1.0] * degree)
    t = np.concatenate([np.linspace(0, 1, 101), inner])
    exact = scipy.interpolate.BSpline.design_matrix(t, knots, degree).toarray()
    found = BSpline(torch.tensor(knots), degree)(torch.tensor(t))
    assert found.numpy() == pytest.approx(exact, abs=1e-14)
    assert found.sum(-1).tolist() == pytest.approx([1.0] * len(t), abs=1e-14)


@pytest.mark.parametrize("count", [2, 9])
def test_splines_that_are_not_zero(count: int) -> None:
    """They make up all values, also with fewer functions than degree + 1, and map over knots."""
    knots = torch.linspace(0.1, 0.9, count + 4, dtype=DOUBLE)
    t = torch.linspace(0, 1, 41, dtype=DOUBLE).reshape(41, 1)
    basis = BSpline(knots, 3)
    index, values = basis.nonzero(t)
    assert index.shape == values.shape == (41, 1, 4)
    assert index.min() == 0 and index.max() == count - 1
    found = (torch.nn.functional.one_hot(index, count) * values.unsqueeze(-1)).sum(-2)
    assert torch.equal(found, basis(t))
    assert torch.equal(basis.own(t.expand(41, count)), found[:, 0])

    def evaluate(knots: Tensor) -> Tensor:
        return torch.func.functional_call(basis, {"knots": knots}, (t,))

    each = torch.func.vmap(evaluate)(torch.stack([knots, knots + 0.05]))
    assert torch.equal(each[0], basis(t))
    assert torch.allclose(each[1], BSpline(knots + 0.05, 3)(t))


def test_splines_without_repeated_knots_vanish_outside() -> None:
    knots = np.array([0.0, 0.3, 0.7, 1.1, 1.2, 2.0])
    t = np.linspace(-1, 3, 81)
    basis = BSpline(torch.tensor(knots), 2)
    values = basis(torch.tensor(t))
    for j in range(3):
        element = scipy.interpolate.BSpline.basis_element(knots[j : j + 4], extrapolate=False)
        assert values[:, j].numpy() == pytest.approx(np.nan_to_num(element(t)), abs=1e-14)
    lower, upper = basis.effective_support
    inside = (torch.tensor(t).unsqueeze(-1) > lower) & (torch.tensor(t).unsqueeze(-1) < upper)
    assert torch.equal(values > 0, inside)


def test_indicator_is_closed_left_and_at_the_last_edge() -> None:
    t = torch.tensor([-0.1, 0.0, 0.5, 1.0, 2.0, 3.0, 3.1])
    expected = [[0, 0], [1, 0], [1, 0], [0, 1], [0, 1], [0, 1], [0, 0]]
    assert Indicator([0, 1, 3])(t).tolist() == expected


def test_product_multiplies_functions_of_coordinates() -> None:
    factors = [Polynomial(1), Fourier([2.0]), Indicator([0.0, 0.5, 1.0])]
    t = torch.rand(4, 3)
    columns = [basis(t[:, axis]) for axis, basis in enumerate(factors)]
    expected = torch.einsum("bi,bj,bk->bijk", *columns).reshape(4, 8)
    torch.testing.assert_close(Product(*factors)(t), expected)
    assert len(Product(*factors)) == 8


@pytest.mark.parametrize("ndim", [1, 2, 16])
@pytest.mark.parametrize("shared", [False, True])
def test_gaussians_are_normal_densities(ndim: int, shared: bool) -> None:
    centers, widths = torch.randn(4, ndim, dtype=DOUBLE), torch.rand(4, dtype=DOUBLE) + 0.5
    factor = torch.randn(4, ndim, ndim, dtype=DOUBLE)
    matrices = factor @ factor.mT + 0.5 * torch.eye(ndim, dtype=DOUBLE)
    widths, matrices = (widths[0], matrices[0]) if shared else (widths, matrices)
    squares = widths.square().expand(4)[:, None, None] * torch.eye(ndim)
    t = centers[:1] + torch.randn(2, 3, ndim, dtype=DOUBLE)
    for basis, covariances, tolerance in (
        (GaussianRBF(centers, widths), squares, 1e-13),
        (GaussianRBF(centers, covariance=matrices), matrices.expand(4, ndim, ndim), 1e-11),
    ):
        for j in range(4):
            law = scipy.stats.multivariate_normal(centers[j].numpy(), covariances[j].numpy())
            assert basis(t)[..., j].numpy() == pytest.approx(law.pdf(t.numpy()), rel=tolerance)


@pytest.mark.parametrize("name", ["gaussian", "spline", "isotropic", "covariance", "covariances"])
def test_far_locations_give_zero_with_zero_gradient(name: str) -> None:
    basis = EVERY[name]()
    far = [-math.inf, -1e30, 1e30, math.inf]
    if basis.event_shape:
        far = [x for x in itertools.product([*far, 0.0], repeat=2) if x != (0.0, 0.0)]
    assert not basis(torch.tensor(far)).any()
    t = torch.full((2, *basis.event_shape), 1e10, requires_grad=True)
    (grad,) = torch.autograd.grad(basis(t).sum(), t)
    assert not grad.any()


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE], ids=str)
def test_gaussians_are_negligible_outside_their_effective_support(dtype: torch.dtype) -> None:
    basis = GaussianRBF([-3.0, 0.0, 1.0], [0.01, 1.0, 30.0]).to(dtype)
    eps = torch.finfo(dtype).eps
    for edge in basis.effective_support:
        relative = basis(edge).diagonal() / basis(basis.centers).diagonal()
        assert ((relative < eps / 100) & (relative > eps**1.5)).all()


@pytest.mark.parametrize("widths", [0.004, [0.001] * 100 + [0.01] * 100])
def test_gaussians_are_evaluated_only_where_they_are_not_negligible(widths: object) -> None:
    """Many of them, at locations in no order, some of them out of reach of all; NaN stays NaN."""
    basis = GaussianRBF(torch.rand(200, dtype=DOUBLE), widths).double()
    basis.centers.requires_grad_()
    t = (torch.rand(10, 40, dtype=DOUBLE) * 1.5).requires_grad_()
    near, dense = basis(t), basis.own(t.unsqueeze(-1))
    assert near.shape == (10, 40, 200) and (near == 0).double().mean() > 0.7
    assert torch.allclose(near, dense, rtol=1e-15, atol=1e-17)
    above = torch.randn_like(near)
    slopes = (torch.autograd.grad(x, (t, basis.centers), above) for x in (near, dense))
    torch.testing.assert_close(*slopes, rtol=1e-12, atol=1e-10)
    assert basis(torch.full((200,), math.nan, dtype=DOUBLE)).isnan().all()


# Modules
@every
def test_shapes_and_functions_at_their_own_locations(name: str) -> None:
    basis = EVERY[name]()
    t = torch.rand(4, len(basis), *basis.event_shape)
    values = basis(t)
    assert values.shape == (4, len(basis), len(basis)) and values.dtype == torch.float32
    assert torch.allclose(basis(t[0, 0]), values[0, 0])
    assert torch.allclose(basis.own(t), values.diagonal(dim1=-2, dim2=-1))


def test_parameters_stay_parameters() -> None:
    basis = GaussianRBF(nn.Parameter(torch.zeros(2)), torch.ones(2, dtype=DOUBLE))
    assert [name for name, _ in basis.named_parameters()] == ["centers"]
    with torch.no_grad():
        learned = GaussianRBF(CENTERS, covariance=nn.Parameter(torch.tensor(MATRICES)))
        learned.get_parameter("covariance")[1, 0, 0] = -1.0
    assert learned(torch.zeros(2)).isnan().tolist() == [False, True, False]


def test_stacks_flatten_in_order() -> None:
    a, b, c, d = Polynomial(1), Fourier([1.0]), GaussianRBF([0.0], 1.0), Indicator([0.0, 1.0])
    stack = (a + b) + (c + d)
    assert [id(basis) for basis in stack.bases] == [id(basis) for basis in (a, b, c, d)]
    t = torch.rand(2, 5)
    assert torch.equal(stack(t), torch.cat([basis(t) for basis in (a, b, c, d)], -1))


@pytest.mark.parametrize(
    ("basis", "expected"),
    [
        (GaussianRBF.grid(16, 0.1), [(0, 1)]),
        (GaussianRBF.grid(8, [0.1, 3.0], low=-2, high=48), [(-2, 48)]),
        (GaussianRBF.grid(1, 0.25, low=1, high=3), [(1.75, 2.25)]),
        (GaussianRBF(nn.Parameter(torch.tensor([0.5, 0.5])), [0.25, 2.0]), [(-1.5, 2.5)]),
        (GaussianRBF([[0.0, 3.0], [1.0, 3.0]], 0.5), [(0, 1), (2.5, 3.5)]),
        (GaussianRBF([[0.0, 3.0]], covariance=MATRICES[1]), [(-1, 1), (2.75, 3.25)]),
        (BSpline(KNOTS, 2), [(0, 1)]),
        (BSpline([-2.0, -1.0, 0.0, 1.0, 2.0, 3.0], 2), [(0, 1)]),
        (BSpline([0.0, 1.0, 2.0], 1), [(0, 2)]),
        (Indicator([-1.0, 0.3, 1.0]), [(-1, 1)]),
        (Fourier([1.0]) + Polynomial(1), [(-math.inf, math.inf)]),
        (Polynomial(1, ndim=2), [(-math.inf, math.inf)] * 2),
        (Polynomial(1) + Indicator([5.0, 6.0]) + GaussianRBF([7.0, 9.0], 1.0), [(5, 9)]),
        (Product(Polynomial(1), BSpline(KNOTS, 2)), [(-math.inf, math.inf), (0, 1)]),
    ],
)
def test_ranges_of_bases(basis: Basis, expected: list[tuple[float, float]]) -> None:
    assert basis.domain == tuple(expected)
    # Splines sum to one there, if anywhere.
    if isinstance(basis, BSpline) and len(basis) > basis.degree:
        inside = torch.linspace(*basis.domain[0], 9)
        assert torch.allclose(basis(inside).sum(-1), torch.ones(9))


@every
def test_gradients_in_locations_and_parameters(name: str) -> None:
    basis = EVERY[name]().double()
    t = locations(basis).clone().requires_grad_(name != "indicator")
    # Discontinuous or not differentiable in their knots.
    state = basis.state_dict() if name not in ("spline", "indicator") else {}
    keys, leaves = list(state), [x.clone().requires_grad_() for x in state.values()]

    def evaluate(t: Tensor, *values: Tensor) -> Tensor:
        symmetric = (
            (v + v.mT) / 2 if "covariance" in k else v for k, v in zip(keys, values, strict=True)
        )
        return torch.func.functional_call(basis, dict(zip(keys, symmetric, strict=True)), (t,))

    if t.requires_grad:
        assert gradcheck(evaluate, (t, *leaves)) and gradgradcheck(evaluate, (t, *leaves))


@every
def test_compiles_and_maps(name: str) -> None:
    basis = EVERY[name]()
    t = torch.rand(4, 3, *basis.event_shape)
    torch.testing.assert_close(one_graph(basis)(t), basis(t))
    torch.testing.assert_close(torch.func.vmap(basis)(t), basis(t))


# Errors
ERRORS: list[tuple[Callable[[], object], str]] = [
    (lambda: GaussianRBF("abc", 1.0), "centers must be a number or a tensor, got 'abc'"),
    (lambda: GaussianRBF([0.0, math.nan], 1.0), "centers must be finite.*nan"),
    (lambda: GaussianRBF([[[0.0]]], 1.0), r"centers must have shape .*got shape \(1, 1, 1\)"),
    (lambda: GaussianRBF([0.0, 1.0], [1.0, -2.0]), "widths must be .*positive.*-2"),
    (lambda: GaussianRBF([0.0, 1.0], [1.0]), r"widths must be one number or \(2,\).*\(1,\)"),
    (lambda: GaussianRBF(CENTERS), "either widths or covariance, got neither"),
    (lambda: GaussianRBF(CENTERS, covariance=torch.eye(3)), r"covariance must have shape \(2,"),
    (lambda: GaussianRBF(CENTERS, covariance=torch.ones(2, 2)), "covariance must be positive"),
    (lambda: GaussianRBF.grid(7, [0.1, 0.5]), r"n must be .*len\(widths\)=2, got 7"),
    (lambda: GaussianRBF.grid(10, 0.1, ndim=2), "n must be .*power ndim=2 .*=1, got 10"),
    (lambda: GaussianRBF.grid(4, 0.1, low=1.0), "low must be below high.*low=1.0, high=1.0"),
    (lambda: Fourier([math.inf]), "frequencies must be finite.*inf"),
    (lambda: BSpline([0.0, 1.0], 1), "knots must be at least degree . 2 = 3, got 2"),
    (lambda: BSpline([0.0, 2.0, 1.0], 1), "knots must be nondecreasing.*2., 1."),
    (lambda: Indicator([0.0, 0.0, 1.0]), "edges must be .*strictly increasing, got .*0., 0."),
    (lambda: Product(nn.Linear(1, 1)), "bases must be .*'Linear'"),
    (lambda: Product(Polynomial(1, ndim=2)), r"bases must take numbers.*got \(2,\)"),
    (lambda: Fourier([1.0]) + Polynomial(1, ndim=1), r"one event shape, got \[\(\), \(1,\)\]"),
    (lambda: Polynomial(1)(1.0), "locations must be a tensor, got float"),
]
test_bad_arguments_are_named = refused(ERRORS, ids=[m for _, m in ERRORS])


@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_locations_of_another_dimension_are_refused(shape: tuple[int, ...]) -> None:
    message = f"locations must end in event shape (2,), got shape {shape}"
    for basis in (make() for name, make in EVERY.items() if make().event_shape):
        with pytest.raises(ValueError, match=re.escape(message)):
            basis(torch.zeros(shape))


# Roughness
@every
def test_roughness_is_the_integral_of_squared_slopes(name: str) -> None:
    """Against slopes by autodiff at Gauss nodes of fine panels, over a box of unlike sides."""
    basis = EVERY[name]().double()
    box = ((0.0, 1.0),) if not basis.event_shape else ((0.0, 1.0), (-0.5, 1.5))
    # Gaussians are integrated over the whole plane, splines over their knots.
    reach = 6.0 if name in ("gaussian", "isotropic", "covariances", "covariance") else 0.0
    axes = []
    for low, high in box:
        cuts = torch.linspace(low - reach, high + reach, 21 if basis.event_shape else 201)
        cuts = torch.cat([cuts.double(), torch.tensor([*KNOTS, 0.3], dtype=DOUBLE)])
        cuts = cuts.clamp(low - reach, high + reach).unique()
        y, w = (torch.from_numpy(x) for x in np.polynomial.legendre.leggauss(8))
        half = cuts.diff().unsqueeze(-1) / 2
        axes.append(((cuts[:-1, None] + half * (1 + y)).flatten(), (half * w).flatten()))
    nodes = torch.cartesian_prod(*(x for x, _ in axes))
    weights = torch.cartesian_prod(*(w for _, w in axes)).reshape(len(nodes), -1).prod(-1)
    slopes = torch.func.vmap(torch.func.jacfwd(basis))(nodes).reshape(len(nodes), len(basis), -1)
    sides = torch.tensor([high - low for low, high in box], dtype=DOUBLE)
    scale = sides.square() / sides.prod()
    expected = torch.einsum("q,d,qid,qjd->ij", weights, scale, slopes, slopes)
    if name == "indicator":  # straight lines between the middles of intervals
        expected = torch.tensor([[2.0, -2.0], [-2.0, 2.0]], dtype=DOUBLE)
    found = basis.roughness(box)
    assert (found - expected).abs().max() < 1e-6 * expected.abs().max()


def test_matrices_are_kept_while_functions_are_constant() -> None:
    basis, made = GaussianRBF.grid(4, 0.3), []

    def matrix(basis: Basis, key: str = "a") -> Tensor:
        return basis._keep(key, lambda: made.append(1) or basis.own(torch.zeros(4)))

    assert matrix(basis) is matrix(basis)
    matrix(basis, "b")
    assert len(made) == 2
    before = matrix(basis).clone()
    basis.widths.mul_(2)
    assert not torch.equal(matrix(basis), before)
    basis.load_state_dict(GaussianRBF.grid(4, 0.3).state_dict())
    assert torch.equal(matrix(basis), before)
    assert matrix(basis.double()).dtype == torch.float64
    assert matrix(copy.deepcopy(basis)) is not matrix(basis)
    with torch.inference_mode():
        inside = matrix(basis, "c")
    assert not inside.is_inference() and matrix(basis, "c") is inside
    learned = GaussianRBF(nn.Parameter(torch.arange(4.0)), 1.0)
    assert matrix(learned) is not matrix(learned)
    assert matrix(learned).requires_grad
