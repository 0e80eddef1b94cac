"""Bases of vectors against scipy, scikit-learn's order, and their factors; what they refuse."""

import copy
import math
import re
from collections.abc import Callable

import numpy as np
import pytest
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
CENTERS = [[0.0, 0.25], [0.5, 1.0], [1.0, -0.5]]
MATRICES = [[[0.25, 0.125], [0.125, 0.5]], [[1.0, 0.0], [0.0, 0.0625]], [[2.0, -1.0], [-1.0, 2.0]]]


def every_basis() -> list[Basis]:
    return [
        GaussianRBF(CENTERS, [0.25, 0.5, 1.0]),
        GaussianRBF(CENTERS, covariance=MATRICES),
        GaussianRBF(CENTERS, covariance=MATRICES[0]),
        Fourier([[0.0, 0.0], [1.0, -2.0], [0.0, 7.5]]),
        Polynomial(3, ndim=2),
        Product(GaussianRBF([0.0, 1.0], 0.5), Polynomial(1) + Fourier([2.0])),
        Polynomial(1, ndim=2) + Product(BSpline([0.0, 0.0, 0.5, 1.0], 1), Polynomial(0)),
    ]


def name(basis: Basis) -> str:
    if isinstance(basis, GaussianRBF):
        matrices = basis.covariance
        return "isotropic" if matrices is None else f"covariance-{matrices.ndim}"
    return type(basis).__name__


every = pytest.mark.parametrize("basis", every_basis(), ids=name)


# Fourier, polynomials, products


def test_fourier_is_cosines_then_sines() -> None:
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


def test_product_of_gaussians_is_a_gaussian_with_diagonal_covariance() -> None:
    product = Product(GaussianRBF([0.0, 1.0], [0.5, 0.25]), GaussianRBF([-1.0, 2.0, 0.0], 2.0))
    centers = [[x, y] for x in (0.0, 1.0) for y in (-1.0, 2.0, 0.0)]
    variances = torch.tensor([[w * w, 4.0] for w in (0.5, 0.25) for _ in range(3)])
    t = torch.randn(5, 2)
    full = GaussianRBF(centers, covariance=variances.diag_embed())
    torch.testing.assert_close(product(t), full(t))


# Members


@every
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0,)])
def test_shape_is_that_of_the_locations_then_n(basis: Basis, shape: tuple[int, ...]) -> None:
    t = torch.rand(*shape, 2)
    values = basis(t)
    assert basis.event_shape == (2,)
    assert basis.reach is None
    assert basis.breaks is None
    assert values.shape == (*shape, len(basis))
    assert values.dtype == torch.float32
    for found, location in zip(values.reshape(-1, len(basis)), t.reshape(-1, 2), strict=True):
        torch.testing.assert_close(found, basis(location))


@every
def test_own_evaluates_each_function_at_its_own_locations(basis: Basis) -> None:
    t = torch.rand(4, len(basis), 2)
    expected = torch.stack([basis(t[:, j])[:, j] for j in range(len(basis))], -1)
    torch.testing.assert_close(basis.own(t), expected)


@every
def test_dtype_is_that_of_the_tensors(basis: Basis) -> None:
    twin = copy.deepcopy(basis).double()
    t = torch.rand(3, 2, dtype=DOUBLE)
    assert twin(t).dtype == DOUBLE
    assert {tensor.dtype for tensor in twin.state_dict().values()} <= {DOUBLE}
    torch.testing.assert_close(twin(t).float(), basis(t.float()), rtol=1e-5, atol=1e-6)


def test_only_tensors_that_are_there_are_stored() -> None:
    names = {
        GaussianRBF(CENTERS, 0.5): {"centers", "widths"},
        GaussianRBF(CENTERS, covariance=MATRICES): {"centers", "covariance"},
        Polynomial(2, ndim=2): set(),
        Product(Fourier([1.0]), Indicator([0.0, 1.0])): {
            "members.0.frequencies",
            "members.1.knots",
        },
    }
    for basis, expected in names.items():
        assert set(basis.state_dict()) == expected
        twin = copy.deepcopy(basis)
        twin.load_state_dict(basis.state_dict())


def test_stacks_and_products_know_their_members() -> None:
    a, b, c = Polynomial(1, ndim=2), Fourier([[1.0, 0.0]]), Product(Polynomial(0), Polynomial(1))
    stack = (a + b) + c
    assert [id(basis) for basis in stack.bases] == [id(basis) for basis in (a, b, c)]
    t = torch.rand(3, 2)
    assert torch.equal(stack(t), torch.cat([a(t), b(t), c(t)], -1))
    assert [len(basis) for basis in c.bases] == [1, 2]


# Gradients


@every
def test_gradients_in_the_location(basis: Basis) -> None:
    basis = copy.deepcopy(basis).double()
    t = torch.tensor([[0.1, 0.7], [0.37, 0.2]], dtype=DOUBLE, requires_grad=True)
    assert gradcheck(basis, (t,))
    assert gradgradcheck(basis, (t,))


@pytest.mark.parametrize(
    "basis", [basis for basis in every_basis() if basis.state_dict()], ids=name
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
def test_compiles_and_maps(basis: Basis) -> None:
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
def test_bad_arguments_are_named(make: Callable[[], Basis], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@every
@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_locations_of_another_dimension_are_refused(basis: Basis, shape: tuple[int, ...]) -> None:
    message = f"locations must end in event shape (2,), got shape {shape}"
    with pytest.raises(ValueError, match=re.escape(message)):
        basis(torch.zeros(shape))
