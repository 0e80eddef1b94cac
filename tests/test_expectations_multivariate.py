"""Closed forms in D dimensions against nested quadrature, mpmath and exact fractions."""

import copy
import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache

import mpmath as mp
import numpy as np
import pytest
import torch
from scipy.special import roots_hermite, roots_jacobi
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.distributions import Distribution

from sparsefam import BetaGaussian, MultivariateBetaGaussian, MultivariateNormal, Normal
from sparsefam.bases import Basis, Fourier, GaussianRBF, Indicator, Polynomial, Product

DOUBLE = torch.float64
BOUND = {torch.float32: 2e-6, DOUBLE: 1e-11}
ALPHAS = [1.0, 1.05, 4 / 3, 1.5, 2.0, 3.0, math.inf]
LOC = torch.tensor([[0.3125, -0.5, 0.125, 0.75], [-2.0, 1.0, 0.0, 0.5]])
# Well conditioned, and with a condition number of about 1e3.
FACTORS = torch.tensor(
    [
        [[0.75, 0, 0, 0], [0.5, 1.0, 0, 0], [-0.25, 0.125, 0.5, 0], [0.0, 0.5, -1.0, 0.25]],
        [[1.5, 0, 0, 0], [0.75, 2.0**-9, 0, 0], [0.5, -0.25, 0.0625, 0], [1.0, 0.0, 0.25, 0.5]],
    ]
)

Density = MultivariateBetaGaussian | MultivariateNormal
every_alpha = pytest.mark.parametrize("alpha", ALPHAS, ids=lambda alpha: f"{alpha:.3g}")


def density(
    alpha: Tensor | float, loc: Tensor, scale_tril: Tensor, dtype: torch.dtype = DOUBLE
) -> Density:
    loc, scale_tril = loc.to(dtype), scale_tril.to(dtype)
    if not isinstance(alpha, Tensor) and alpha == 1:
        return MultivariateNormal(loc, scale_tril=scale_tril)
    return MultivariateBetaGaussian(loc, scale_tril, alpha)


def in_dimension(ndim: int, alpha: float, dtype: torch.dtype = DOUBLE) -> Density:
    return density(alpha, LOC[:, :ndim], FACTORS[:, :ndim, :ndim], dtype)


def error(found: Tensor, expected: Tensor) -> float:
    return ((found.double() - expected).norm() / expected.norm()).item()


@cache
def standard_rule(ndim: int, alpha: float) -> tuple[Tensor, Tensor]:
    """Nodes (Q, D) and weights of the standard law: its coordinates one after the other.

    The next coordinate, given those before and relative to what they leave of the ball, has the
    density (1 - x^2)^{m + (number of coordinates after it)/2}.
    """
    count = {1: 60, 2: 40, 3: 28}[ndim]
    nodes, weights, left = torch.zeros(1, 0, dtype=DOUBLE), torch.ones(1, dtype=DOUBLE), 1.0
    for after in reversed(range(ndim)):
        if alpha == 1:
            x, w = roots_hermite(count)
            x, stretch = x * math.sqrt(2), np.ones(count)
        else:
            power = 1 / (alpha - 1) + after / 2
            x, w = roots_jacobi(count, power, power)
            stretch = np.sqrt((1 - x) * (1 + x))
        x, w, stretch = (torch.tensor(v) for v in (x, w / w.sum(), stretch))
        latest = (left * x.unsqueeze(-1)).flatten()
        nodes = torch.cat([nodes.repeat(count, 1), latest.unsqueeze(-1)], -1)
        weights = (w.unsqueeze(-1) * weights).flatten()
        left = (left * stretch.unsqueeze(-1)).flatten()
    return nodes, weights


def by_quadrature(ndim: int, alpha: float, psi: Callable[[Tensor], Tensor]) -> Tensor:
    p = in_dimension(ndim, alpha)
    nodes, weights = standard_rule(ndim, alpha)
    located = p.loc + torch.einsum("bij,qj->qbi", p.scale_tril, nodes)
    return torch.einsum("q,qbn->bn", weights, psi(located))


def fourier(ndim: int) -> Fourier:
    rows = [[0, 0, 0], [0.5, -0.25, 1], [2, 1, -1], [-3, 4, 0.5], [2**-10, 0, 0]]
    return Fourier([row[:ndim] for row in rows])


BASES: dict[str, Callable[[int], Basis]] = {
    "fourier": fourier,
    "polynomial": lambda ndim: Polynomial(6, ndim=ndim),
    "stack": lambda ndim: Polynomial(1, ndim=ndim) + fourier(ndim),
    "gaussians": lambda ndim: Product(*[GaussianRBF([-1.0, 0.5], [1.5, 3.0])] * ndim),
    "waves": lambda ndim: Product(*[Fourier([1.0]), Polynomial(2), Fourier([0.5])][:ndim]),
}


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("ndim", [1, 2, 3])
@every_alpha
def test_against_nested_quadrature(alpha: float, ndim: int, name: str) -> None:
    psi = BASES[name](ndim)
    exact = by_quadrature(ndim, alpha, copy.deepcopy(psi).double())
    for dtype, bound in BOUND.items():
        found = in_dimension(ndim, alpha, dtype).expect(copy.deepcopy(psi).to(dtype))
        assert found.dtype == dtype
        assert found.shape == (2, len(psi))
        assert error(found, exact) < bound


@pytest.mark.parametrize("ndim", [2, 5, 8, 16])
@every_alpha
def test_fourier_against_mpmath(alpha: float, ndim: int) -> None:
    generator = torch.Generator().manual_seed(ndim)
    loc, directions = torch.randn(2, 12, ndim, generator=generator)
    factor = torch.randn(ndim, ndim, generator=generator).tril(-1) / 4 + torch.eye(ndim)
    frequencies = directions * torch.logspace(-2, 1.5, 12).unsqueeze(-1) / ndim**0.5
    place, exact = loc[0].tolist(), []
    with mp.workdps(40):
        for w in frequencies.double():
            rho = mp.sqrt(sum(mp.mpf(x) ** 2 for x in (w @ factor.double()).tolist()))
            nu = mp.mpf(ndim) / 2 + (0 if alpha == 1 else 1 / (mp.mpf(alpha) - 1))
            if alpha == 1:
                damping = mp.exp(-(rho**2) / 2)
            else:
                damping = mp.gamma(nu + 1) * (2 / rho) ** nu * mp.besselj(nu, rho)
            angle = sum(mp.mpf(a) * mp.mpf(b) for a, b in zip(w.tolist(), place, strict=True))
            exact.append([float(mp.cos(angle) * damping), float(mp.sin(angle) * damping)])
    expected = torch.tensor(exact, dtype=DOUBLE).mT.flatten()
    for dtype, bound in BOUND.items():
        found = density(alpha, loc[0], factor, dtype).expect(Fourier(frequencies.to(dtype)))
        assert error(found, expected) < bound


def fraction_moments(alpha: Fraction, loc: list[Fraction], scale: list[Fraction]) -> list[Fraction]:
    """E of every monomial up to degree 4, coordinates of the ball scaled one by one."""
    ndim = len(loc)
    m = 1 / (alpha - 1)

    def standard(powers: list[int]) -> Fraction:
        if any(k % 2 for k in powers):
            return Fraction(0)
        halves = [Fraction(2 * j + 1, 2) for k in powers for j in range(k // 2)]
        below = [Fraction(ndim, 2) + m + 1 + j for j in range(sum(powers) // 2)]
        return math.prod(halves, start=Fraction(1)) / math.prod(below, start=Fraction(1))

    def expand(powers: list[int], chosen: list[int]) -> Fraction:
        axis = len(chosen)
        if axis == ndim:
            return standard(chosen)
        return sum(
            math.comb(powers[axis], j)
            * loc[axis] ** (powers[axis] - j)
            * scale[axis] ** j
            * expand(powers, [*chosen, j])
            for j in range(powers[axis] + 1)
        ) + Fraction(0)

    return [expand(k, []) for k in Polynomial(4, ndim=ndim).exponents.tolist()]


@pytest.mark.parametrize(
    "alpha", [Fraction(4, 3), Fraction(3, 2), Fraction(2), Fraction(3)], ids=str
)
def test_every_polynomial_is_exact_to_rounding(alpha: Fraction) -> None:
    loc = [Fraction(k, 8) for k in (4, 96, 3, 1, 800)]
    scale = [Fraction(k, 1024) for k in (1024, 1, 3000, 64, 10)]
    expected = torch.tensor([float(x) for x in fraction_moments(alpha, loc, scale)], dtype=DOUBLE)
    for dtype, bound in ((torch.float32, 2e-6), (DOUBLE, 3e-15)):
        factor = torch.diag(torch.tensor([float(s) for s in scale], dtype=dtype))
        center = torch.tensor([float(x) for x in loc], dtype=dtype)
        p = MultivariateBetaGaussian(center, factor, float(alpha))
        found = p.expect(Polynomial(4, ndim=5)).double()
        # Each for itself, though they range from 1e-3 to 1e8.
        assert (found / expected - 1).abs().max() < bound


@every_alpha
def test_one_coordinate_agrees_with_the_line(alpha: float) -> None:
    loc = torch.tensor([0.3, -2.0], dtype=DOUBLE)
    scale = torch.tensor([0.7, 3.0], dtype=DOUBLE)
    p = density(alpha, loc.unsqueeze(-1), scale[:, None, None])
    q = Normal(loc, scale) if alpha == 1 else BetaGaussian(loc, scale, alpha)
    frequencies = torch.linspace(0, 9, 7, dtype=DOUBLE)
    centers = torch.linspace(-2, 1, 4, dtype=DOUBLE)
    pairs: list[tuple[Basis, Basis]] = [
        (Polynomial(7, ndim=1), Polynomial(7)),
        (Fourier(frequencies.unsqueeze(-1)), Fourier(frequencies)),
        (Product(GaussianRBF(centers, 0.5)), GaussianRBF(centers, 0.5)),
    ]
    for rows, numbers in pairs:
        torch.testing.assert_close(p.expect(rows), q.expect(numbers), rtol=1e-12, atol=1e-14)


# Products


@every_alpha
def test_products_of_gaussians_are_gaussians(alpha: float) -> None:
    p = in_dimension(2, alpha)
    first = GaussianRBF(torch.tensor([-1.0, 0.5], dtype=DOUBLE), [0.125, 2.0])
    second = GaussianRBF(torch.tensor([0.0, 0.25, 1.0], dtype=DOUBLE), 0.5)
    centers = [[x, y] for x in (-1.0, 0.5) for y in (0.0, 0.25, 1.0)]
    variances = [[w * w, 0.25] for w in (0.125, 2.0) for _ in range(3)]
    matrices = torch.tensor(variances, dtype=DOUBLE).diag_embed()
    full = GaussianRBF(centers, covariance=matrices)
    torch.testing.assert_close(p.expect(Product(first, second)), p.expect(full), rtol=1e-13, atol=0)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_one_covariance_for_all_is_that_of_each(alpha: float) -> None:
    p = in_dimension(3, alpha)
    centers = torch.randn(4, 3, dtype=DOUBLE)
    factor = torch.randn(3, 3, dtype=DOUBLE)
    matrix = factor @ factor.mT + torch.eye(3, dtype=DOUBLE)
    shared = p.expect(GaussianRBF(centers, covariance=matrix))
    each = p.expect(GaussianRBF(centers, covariance=matrix.repeat(4, 1, 1)))
    torch.testing.assert_close(shared, each, rtol=1e-14, atol=0)
    wide = p.expect(GaussianRBF(centers, covariance=4 * torch.eye(3, dtype=DOUBLE)))
    torch.testing.assert_close(wide, p.expect(GaussianRBF(centers, 2.0)), rtol=1e-12, atol=0)


@pytest.mark.parametrize("alpha", [1.0, 4 / 3, 2.0])
def test_products_of_waves_are_sums_of_waves(alpha: float) -> None:
    p = in_dimension(2, alpha)
    found = p.expect(Product(Fourier([2.0]), Fourier([3.0])).double())
    cosine, difference, _, _ = p.expect(Fourier([[2.0, 3.0], [2.0, -3.0]]).double()).unbind(-1)
    torch.testing.assert_close(found[..., 0], (cosine + difference) / 2, rtol=0, atol=1e-12)
    torch.testing.assert_close(found[..., 3], (difference - cosine) / 2, rtol=0, atol=1e-12)


# Derivatives


@pytest.mark.parametrize("name", ["fourier", "polynomial", "gaussians"])
@pytest.mark.parametrize("alpha", [1.0, 1.5, "learned"])
def test_gradients_in_the_density_and_the_basis(alpha: float | str, name: str) -> None:
    psi = Polynomial(4, ndim=2) if name == "polynomial" else BASES[name](2)
    keys = [key for key, _ in psi.double().named_buffers() if key in psi.state_dict()]
    leaves = [in_dimension(2, 2.0).loc, in_dimension(2, 2.0).scale_tril]
    leaves += [torch.tensor([1.25, 2.5], dtype=DOUBLE)] if alpha == "learned" else []
    leaves += [psi.get_buffer(key) for key in keys]
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]

    def expectation(loc: Tensor, scale_tril: Tensor, *rest: Tensor) -> Tensor:
        index, rest = (rest[0], rest[1:]) if alpha == "learned" else (alpha, rest)
        learned = copy.deepcopy(psi)
        for key, value in zip(keys, rest, strict=True):
            path, _, attribute = key.rpartition(".")
            module = learned.get_submodule(path)
            delattr(module, attribute)
            setattr(module, attribute, value)
        return density(index, loc, scale_tril.tril()).expect(learned)

    assert gradcheck(expectation, leaves, atol=1e-7)
    if name != "gaussians":
        assert gradgradcheck(expectation, leaves, atol=1e-6)


@every_alpha
def test_curvature_at_frequency_zero_is_the_second_moment(alpha: float) -> None:
    p = density(alpha, LOC[0, :3], FACTORS[0, :3, :3])
    psi = Fourier(torch.zeros(1, 3, dtype=DOUBLE))

    def cosine(w: Tensor) -> Tensor:
        wave = copy.copy(psi)
        wave._buffers = {"frequencies": w.unsqueeze(0)}
        return p.expect(wave)[0]

    hessian = torch.autograd.functional.hessian(cosine, torch.zeros(3, dtype=DOUBLE))
    second = p.covariance_matrix + torch.outer(p.loc, p.loc)
    torch.testing.assert_close(hessian, -second, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_spread_keeps_its_digits_far_from_the_origin(alpha: float) -> None:
    loc, scale = torch.full((2,), 100.0), torch.tensor([[0.01, 0.0], [-0.005, 0.02]])

    def second(scale: Tensor) -> Tensor:
        p = density(alpha, loc, scale.tril(), scale.dtype)
        return p.expect(Polynomial(2, ndim=2))[3:]

    found = torch.autograd.functional.jacobian(second, scale)
    exact = torch.autograd.functional.jacobian(second, scale.double())
    assert error(found, exact) < 2e-7


# How it is called


def example(alpha: float, name: str) -> tuple[Callable[[Tensor, Tensor], Tensor], Tensor, Tensor]:
    """A batch of expectations as a function of locations and factors, and those."""
    psi = BASES[name](2).double()
    loc, factors = LOC[:, :2].double(), FACTORS[:, :2, :2].double()
    return lambda loc, factors: density(alpha, loc, factors).expect(psi), loc, factors


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_maps(alpha: float, name: str) -> None:
    evaluate, loc, factors = example(alpha, name)
    mapped = torch.func.vmap(evaluate)(loc, factors)
    torch.testing.assert_close(mapped, evaluate(loc, factors), rtol=1e-12, atol=1e-14)


@pytest.mark.slow
def test_products_compile_into_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Distribution, "_validate_args", False)
    evaluate, loc, factors = example(1.5, "gaussians")
    expected = evaluate(loc, factors)
    torch._dynamo.reset()
    compiled = torch.compile(evaluate, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(loc, factors), expected, rtol=1e-12, atol=1e-14)


@every_alpha
def test_bases_of_other_dimensions_are_refused(alpha: float) -> None:
    p = in_dimension(2, alpha)
    for psi in (Polynomial(2), Indicator([0.0, 1.0]), Fourier([[1.0, 2.0, 3.0]])):
        shape = r"\(3,\)" if psi.event_shape else r"\(\)"
        with pytest.raises(ValueError, match=rf"psi must take .* event shape \(2,\), got {shape}"):
            p.expect(psi)
