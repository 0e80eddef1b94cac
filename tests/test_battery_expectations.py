"""The battery: expectations, escorts and covariances, against integrals of the stated density."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from battery import (
    DOUBLE,
    SINGLE,
    Case,
    apart,
    bases,
    bounded,
    interior,
    located,
    masses,
    per_event,
)
from cases import (
    SCALARS,
    every_case,
    every_multivariate_case,
    every_scalar,
    half_of_the_cases,
    in_part,
    weighed,
)
from references import Array, Ball, Pieces, Values
from torch import Tensor, nn

from sparsefam.bases import Basis, GaussianRBF, Polynomial, Product

CLOSE = {"rtol": 1e-10, "atol": 1e-11}


def rule(case: Case, *psi: Basis) -> tuple[Tensor, Array]:
    """Nodes and weights of integrals of a scalar case, cut where the bases break."""
    marks = [t for basis in psi if basis.breaks is not None for t in basis.breaks.tolist()]
    t, weights = case.references[0].smooth_rule(marks)
    return torch.as_tensor(t), weights


def integrable(case: Case) -> dict[str, Basis]:
    """The bases that the reference integrates to rounding."""
    found = bases(case.family.dim, DOUBLE)
    few = case.family.dim is None or case.family.dim <= 3
    return {k: v for k, v in found.items() if few or k == "Polynomial"}


@pytest.mark.parametrize(
    ("case", "name"), [(case, name) for case in SCALARS for name in integrable(case)], ids=str
)
def test_expectations_of_bases(case: Case, name: str) -> None:
    psi = integrable(case)[name]
    t, weights = rule(case, psi)
    density = case.references[0].densities(t.numpy())
    assert apart(case().expect(psi), (weights * density) @ psi(t).numpy()) < 1e-11


# Quadrature
@half_of_the_cases(0)
def test_quadrature_integrates_any_smooth_function(case: Case) -> None:
    p = case()
    smooth = [
        (torch.ones_like, np.ones_like, 64),
        (lambda t: t**3, lambda t: t**3, 64),
        (lambda t: torch.tanh(t / 4), lambda t: np.tanh(t / 4), 64),
        # Laplace's tail of 40 scales is 120 radians long where the scale is 3.
        (torch.cos, np.cos, 64 if case.event_shape else 200),
    ]
    # In many dimensions, of quasi-random directions, only low powers are exact.
    few = case.event_shape and (case.family.dim == 8 or case.batch_shape)
    for torch_g, g, order in smooth[: 2 if few else None]:
        nodes, weights = p.quadrature(order)
        assert case.family.signed or (weights >= 0).all()
        expected = case.reference(lambda r, g=g: smooth_mean(r, g))
        torch.testing.assert_close(per_event(weights, torch_g(nodes)), expected, **CLOSE)
        torch.testing.assert_close(p.expect(torch_g, order), expected, **CLOSE)


def smooth_mean(r: Pieces | Ball, g: Callable[[Values], Values]) -> Values:
    t, weights = r.smooth_rule()
    return (weights * r.densities(t)) @ g(t)


@every_case
def test_the_error_of_quadrature_is_known(case: Case) -> None:
    p = case()

    def power(t: Values) -> Values:
        return t**6 / 64

    expected = case.reference(lambda r: r.expect(power))
    # Of two rules that are both too coarse the difference means little.
    for order in (4, 8, 64) if case.event_shape else (8, 16, 64):
        made = (p.expect(power, order) - expected).abs()
        known = p.quadrature_error(power, order)
        assert known.shape == expected.shape
        assert (made <= 6 * known + 1e-10 * expected.abs()).all()
    sharp = 1e-9 if case.family.dim != 8 else 0.1
    assert (known <= sharp * expected.abs()).all()


@every_multivariate_case
def test_functions_of_another_dimension_are_refused(case: Case) -> None:
    for dim in (None, case.event_shape[0] + 1):
        shape = () if dim is None else (dim,)
        for psi in bases(dim, DOUBLE).values():
            with pytest.raises(ValueError, match=rf"event shape .*{case.event_shape[0]}.* got"):
                case().expect(psi)
            assert psi.event_shape == shape


# Escorts and covariances
@every_case
def test_escorts_are_powers_on_the_same_support_or_refused(case: Case) -> None:
    p = case()
    t = interior(p)
    for beta in case.family.escorts:
        q = p.escort(beta)
        power = 2 - p.alpha if beta is None else beta
        ratio = q.log_prob(t) - power * p.log_prob(t)
        torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(masses(case, q), torch.ones_like(ratio[0]), **CLOSE)
        if bounded(p):
            edges = torch.linspace(-1, 1, 4)
            torch.testing.assert_close(located(q, edges), located(p, edges))
    for beta in case.family.no_escorts:
        with pytest.raises(ValueError, match="beta must "):
            p.escort(beta)


IN_THE_PLANE = [
    ("Polynomial", "Polynomial"),
    ("Fourier", "Fourier"),
    ("Fourier", "Product"),
    ("Polynomial", "Fourier"),
    ("Polynomial", "GaussianRBF"),
    ("Polynomial", "hills"),
    ("cubic", "cubic"),
    ("cubic", "Fourier"),
    ("cubic", "GaussianRBF"),
    ("GaussianRBF", "Fourier"),
    ("GaussianRBF", "GaussianRBF"),
    ("GaussianRBF", "GaussianRBF-full"),
    ("GaussianRBF-full", "Fourier"),
    ("GaussianRBF-full", "Polynomial"),
    ("GaussianRBF-full", "hills"),
]
PAIRS = {
    None: [
        ("Polynomial", "GaussianRBF"),
        ("GaussianRBF", "GaussianRBF"),
        ("BSpline", "Fourier"),
        ("Polynomial", "Fourier"),
        ("BSpline", "GaussianRBF"),
    ],
    1: IN_THE_PLANE,
    2: IN_THE_PLANE,
    3: [
        ("Fourier", "Product"),
        ("Polynomial", "GaussianRBF"),
        ("Polynomial", "hills"),
        ("GaussianRBF-full", "Fourier"),
        ("GaussianRBF-full", "hills"),
    ],
    8: [("Polynomial", "Polynomial")],
}


def paired(dim: int | None, dtype: torch.dtype) -> dict[str, Basis]:
    """The bases of covariances."""
    found = bases(dim, dtype)
    if dim in (1, 2, 3):
        hills = [
            GaussianRBF([-0.5, 0.25], 0.5),
            GaussianRBF([0.5], [0.75]),
            GaussianRBF([0.0], 0.5),
        ]
        more = {"hills": Product(*hills[:dim]), "cubic": Polynomial(3, ndim=dim)}
        found |= {name: basis.to(dtype) for name, basis in more.items()}
    return found


@pytest.mark.parametrize(
    ("case", "rows", "columns"),
    in_part([weighed(case, *pair) for case in SCALARS for pair in PAIRS[case.family.dim]], 0, 2),
)
def test_generalized_covariance(case: Case, rows: str, columns: str) -> None:
    p, found = case(), paired(case.family.dim, DOUBLE)
    phi, psi = found[rows], found[columns]
    t, weights = rule(case, phi, psi)
    density = case.references[0].densities(t.numpy())
    for beta in case.family.escorts:
        # Eq. 17 from sums of 1, phi, psi and their products against p^beta.
        w = weights * density ** ((2 - p.alpha).item() if beta is None else beta)
        f, g = phi(t).numpy(), psi(t).numpy()
        expected = (w[:, None] * f).T @ g - np.outer(w @ f, w @ g) / w.sum()
        assert apart(p.generalized_covariance(phi, psi, beta), expected) < 1e-10, beta
        if beta == 1:
            single = paired(case.family.dim, SINGLE)
            value = case(SINGLE).generalized_covariance(single[rows], single[columns], beta)
            assert value.dtype == SINGLE
            assert apart(value, expected) < 1e-6


@every_scalar
def test_covariances_of_gaussians_follow_from_their_products(case: Case) -> None:
    p, width = case(), 0.03125
    centers = interior(p, 3)
    psi = GaussianRBF(centers, width)
    # N(t; a, w^2) N(t; b, w^2) = N(a; b, 2 w^2) N(t; (a + b)/2, w^2/2).
    middles = (centers.unsqueeze(1) + centers) / 2
    products = p.expect(GaussianRBF(middles.flatten(0, 1), width / 2**0.5)).reshape(3, 3)
    means = p.expect(psi)
    expected = GaussianRBF(centers, width * 2**0.5)(centers) * products - torch.outer(means, means)
    assert apart(p.generalized_covariance(psi, psi, 1.0), expected.numpy()) < 1e-9


@every_scalar
def test_covariances_of_locations_follow_from_derivatives(case: Case) -> None:
    p, width = case(), 0.03125
    centers = nn.Parameter(interior(p, 3))
    psi = GaussianRBF(centers, width)
    means = p.expect(psi)
    # t N(t; c, w^2) = (c + w^2 d/dc) N(t; c, w^2).
    (slopes,) = torch.autograd.grad(means.sum(), centers)
    columns = width**2 * slopes.reshape(3, -1).T + (centers - p.mean).reshape(3, -1).T * means
    expected = torch.cat([torch.zeros(1, 3, dtype=DOUBLE), columns]).detach()
    phi = Polynomial(1, ndim=case.family.dim)
    assert apart(p.generalized_covariance(phi, psi, 1.0).detach(), expected.numpy()) < 1e-9
