"""Bases of numbers against scipy and numpy, their gradients, and what they refuse."""

import copy
import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.interpolate
import scipy.stats
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from sparsefam.bases import Basis, BSpline, Fourier, GaussianRBF, Indicator, Polynomial, Stack

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


@pytest.mark.parametrize("widths", [0.3, [0.1, 0.5, 2.0]])
def test_gaussian_is_the_normal_density(widths: float | list[float]) -> None:
    centers = [-1.0, 0.25, 3.0]
    t = np.linspace(-3, 4, 57).reshape(3, 19)
    basis = GaussianRBF(centers, widths).double()
    exact = scipy.stats.norm.pdf(t[..., None], basis.centers.numpy(), basis.widths.numpy())
    assert basis(torch.tensor(t)).numpy() == pytest.approx(exact, rel=1e-13, abs=1e-300)


def test_gaussian_keeps_float32_digits() -> None:
    basis = GaussianRBF([0.0, 0.5, 1.0], [0.01, 0.1, 1.0])
    t = torch.linspace(0, 1, 101)
    exact = basis.double()(t.double())
    error = (basis.float()(t) - exact).norm() / exact.norm()
    assert error < 3e-7


@pytest.mark.parametrize("widths", [0.05, [0.1, 0.5], (0.1, 0.2, 0.5)])
def test_grid_spreads_centers_for_every_width(widths: float | list[float]) -> None:
    basis = GaussianRBF.grid(12, widths, low=-1.0, high=2.0)
    each = [widths] if isinstance(widths, float) else widths
    count = 12 // len(each)
    pairs = [(c, w) for w in each for c in np.linspace(-1, 2, count)]
    assert len(basis) == 12
    assert basis.centers.tolist() == pytest.approx([c for c, _ in pairs], abs=1e-6)
    assert basis.widths.tolist() == pytest.approx([w for _, w in pairs])


def test_grid_puts_a_single_center_in_the_middle() -> None:
    assert GaussianRBF.grid(2, [0.1, 0.5], low=1.0, high=2.0).centers.tolist() == [1.5, 1.5]


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


@pytest.mark.parametrize("basis", every_basis(), ids=name)
def test_double_moves_every_tensor(basis: Basis) -> None:
    assert basis.double()(torch.rand(3, dtype=DOUBLE)).dtype == DOUBLE
    assert {tensor.dtype for tensor in basis.state_dict().values()} <= {DOUBLE}


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


def test_dtype_follows_the_tensors_and_ints_become_the_default() -> None:
    basis = GaussianRBF(double([0.0, 1.0]), 0.1)
    assert basis.widths.dtype == DOUBLE
    assert basis.widths.item() == 0.1
    assert GaussianRBF([0, 1], 2).centers.dtype == torch.float32
    assert GaussianRBF(torch.tensor([0, 1]), 2)(torch.tensor(0.5)).dtype == torch.float32
    assert Fourier([1, 2]).frequencies.dtype == torch.float32


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
    lower, upper = basis.reach
    assert lower.shape == upper.shape == (3,)
    eps = torch.finfo(dtype).eps
    for edge in (lower, upper):
        relative = basis(edge).diagonal() / basis(basis.centers).diagonal()
        assert (relative < eps / 100).all()
        assert (relative > eps**1.5).all()


def test_spline_vanishes_exactly_past_its_reach() -> None:
    basis = BSpline(KNOTS, 2).double()
    lower, upper = basis.reach
    t = torch.linspace(-0.5, 1.5, 2001, dtype=DOUBLE).unsqueeze(-1)
    inside = (t >= lower) & (t <= upper)
    assert not basis(t.squeeze(-1))[~inside].any()
    assert (basis(t.squeeze(-1))[(t > lower) & (t < upper)] > 0).all()


def test_reach_of_global_functions_and_of_stacks() -> None:
    assert Fourier([1.0]).reach is None
    assert Polynomial(2).reach is None
    assert (Indicator([0.0, 1.0]) + Polynomial(0)).reach is None
    lower, upper = (Indicator([0.0, 1.0, 3.0]) + BSpline([0.0, 1.0, 5.0], 1)).reach
    assert (lower.tolist(), upper.tolist()) == ([0.0, 1.0, 0.0], [1.0, 3.0, 5.0])


# Gradients


@pytest.mark.parametrize("basis", [b for b in every_basis() if type(b) is not Indicator], ids=name)
def test_gradients_in_the_location(basis: Basis) -> None:
    basis = basis.double()
    t = double([0.1, 0.37, 0.77]).requires_grad_()
    assert gradcheck(basis, (t,))
    assert gradgradcheck(basis, (t,))


def test_polynomial_has_finite_gradients_at_zero() -> None:
    t = torch.zeros((), requires_grad=True)
    assert torch.autograd.functional.jacobian(Polynomial(3), t).tolist() == [0, 1, 0, 0]


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


def test_frequencies_and_knots_may_be_learned_and_buffers_are_not() -> None:
    assert len(list(Fourier(nn.Parameter(torch.ones(2))).parameters())) == 1
    assert len(list(BSpline(nn.Parameter(torch.arange(4.0)), 1).parameters())) == 1
    assert len(list(Indicator(nn.Parameter(torch.arange(4.0))).parameters())) == 1
    assert [p for basis in every_basis() for p in basis.parameters()] == []


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
