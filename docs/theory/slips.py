"""Formulas of derivations.md: of every slip the printed one fails, the corrected one holds.

`python docs/theory/slips.py` checks all of them, in a few seconds; each function is one row of the
page. A slow test runs it.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import sparsefam as sf
import torch
from scipy.integrate import quad
from scipy.stats import norm
from torch import Tensor

torch.set_default_dtype(torch.float64)

# A truncated parabola and a Gaussian function for eqs. 49 and 52.
MU, SIGMA, MU_J, SIGMA_J = 0.3, 0.8, 0.5, 0.4
A = (1.5 * SIGMA**2) ** (1 / 3)
U, V = (MU - MU_J - A) / SIGMA_J, (MU - MU_J + A) / SIGMA_J


ROWS: list[Callable[[], None]] = []


def row(check: Callable[[], None]) -> Callable[[], None]:
    ROWS.append(check)
    return check


def log_beta(u: Tensor, beta: float) -> Tensor:
    """The deformed logarithm."""
    return u.log() if beta == 1 else (u ** (1 - beta) - 1) / (1 - beta)


def exp_beta(u: Tensor, beta: float) -> Tensor:
    """The deformed exponential, its inverse."""
    return (
        u.exp() if beta == 1 else (1 + (1 - beta) * u).clamp_min(0) ** (1 / (1 - beta))
    )


def bell(width: float) -> Callable[[Tensor, Tensor], Tensor]:
    """The Gaussian kernel."""
    return lambda x, z: torch.exp(-0.5 * (torch.cdist(x, z) / width).square())


def close(x: float | Tensor, y: float | Tensor, tolerance: float = 1e-9) -> bool:
    return abs(float(x) - float(y)) <= tolerance * (1 + abs(float(y)))


def parabola_and_gaussian() -> tuple[sf.TruncatedParabola, sf.bases.GaussianRBF]:
    return sf.TruncatedParabola.from_sigma(MU, SIGMA), sf.bases.GaussianRBF(
        [MU_J], SIGMA_J
    )


@row
def eq_49_has_no_factor() -> None:
    level = -(A**2) / (2 * SIGMA**2)  # lambda, eq. 37

    def printed(s: float) -> float:
        parabola = -level - (SIGMA_J * s + MU_J - MU) ** 2 / (2 * SIGMA**2)
        return parabola * norm.pdf(s) / SIGMA_J

    p, psi = parabola_and_gaussian()
    assert close(quad(printed, U, V)[0] * SIGMA_J, p.expect(psi))


@row
def eq_52_lacks_a_half() -> None:
    def erfs(x: float) -> float:
        return math.erf(x / math.sqrt(2))

    def eq52(factor: float) -> float:
        first = (MU_J**2 - MU**2 + SIGMA_J**2 - A**2 / 3) * (erfs(V) - erfs(U))
        high = SIGMA_J * (MU + MU_J + A) * norm.pdf(V)
        low = SIGMA_J * (MU + MU_J - A) * norm.pdf(U)
        return factor * first - high + low

    def value(theta1: Tensor, theta2: Tensor) -> Tensor:
        return sf.TruncatedParabola.from_canonical(theta1, theta2).expect(psi)[0]

    p, psi = parabola_and_gaussian()
    exact = p.generalized_covariance(sf.bases.Polynomial(2), psi)[
        2, 0
    ]  # eq. 17, of t^2
    theta = (torch.tensor(MU / SIGMA**2), torch.tensor(-1 / (2 * SIGMA**2)))
    assert close(exact, torch.func.grad(value, argnums=1)(*theta))
    assert close(eq52(0.5), exact)
    assert not close(eq52(1.0), exact, 1e-3)


@row
def eq_36_loses_the_edge() -> None:
    def hessian(alpha: float) -> Tensor:  # of A in theta_1, where f = theta_1 t - t^2/2
        def normalizer(
            theta1: Tensor,
        ) -> Tensor:  # f is a quadratic score and theta_1^2/2
            score = sf.BetaGaussian.from_sigma(theta1, 1.0, alpha)
            return score.log_normalizer + theta1**2 / 2

        return torch.func.grad(torch.func.grad(normalizer))(torch.tensor(0.0))

    def eq36(alpha: float) -> float:
        # With p = h (1 - x^2)^m, h^(alpha-1) = (alpha-1) R^2/2, constants and R leave 2m.
        m = 1 / (alpha - 1)
        upper = quad(
            lambda x: x * x, -1, 1, weight="alg", wvar=(m * (3 - 2 * alpha),) * 2
        )[0]
        lower = quad(lambda x: 1.0, -1, 1, weight="alg", wvar=(m - 1, m - 1))[0]
        return (2 - alpha) * 2 * m * upper / lower

    for alpha in (1.2, 1.5, 1.9, 1.99):
        assert close(hessian(alpha), 1.0) and close(eq36(alpha), 1.0, 1e-6)
    assert close(hessian(2.0), 1.0)  # where eq. 36 has the factor 2 - 2


@row
def prop_2_needs_alpha_of_at_most_2() -> None:
    def normalizer(alpha: float, *scores: float) -> Tensor:
        p = sf.rpm(sf.scores.Finite(torch.tensor(scores)), alpha)
        return scores[0] - log_beta(p.probs[0], 2 - alpha)

    for alpha, sign in ((1.5, 1), (3.0, -1)):
        ends = (normalizer(alpha, 0.1, 0.0) + normalizer(alpha, -0.1, 0.0)) / 2
        assert sign * (ends - normalizer(alpha, 0.0, 0.0)) > 1e-4


@row
def footnote_3_has_another_q_than_appendix_c() -> None:
    p = sf.BetaGaussian(0.0, 1.0, alpha=1.5)

    def tsallis(q: float) -> float:  # (1 - int p^q)/(q - 1)
        return (1 - quad(lambda t: p.prob(torch.tensor(t)).item() ** q, -1, 1)[0]) / (
            q - 1
        )

    assert close(p.alpha * p.tsallis_entropy(), tsallis(1.5), 1e-7)
    assert not close(p.alpha * p.tsallis_entropy(), tsallis(0.5), 0.1)


@row
def signs_factors_and_ends_by_one_example_each() -> None:
    at = torch.tensor([[1.0], [2.0]]) @ torch.tensor([0.3])  # Lemma 1 for D = 2, R = 1
    normal = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
    density, rest = normal.log_prob(at).exp(), torch.exp(-0.5 * at @ at)
    assert close(density, rest / (2 * math.pi)) and not close(density, rest / 2.5, 0.1)
    probs = torch.tensor([0.5, 0.3, 0.2])  # Gini-Simpson is twice the entropy
    gini = 1 - probs.square().sum()
    assert close(sf.SparseCategorical(probs, 2.0).tsallis_entropy(), gini / 2)
    f, Z, alpha = (
        torch.tensor(0.7),
        torch.tensor(2.0),
        1.5,
    )  # Lemma 1 of the kernel paper
    lemma = exp_beta(f - log_beta(Z, alpha), 2 - alpha)
    assert close(lemma, exp_beta(f * Z ** (alpha - 1), 2 - alpha) / Z)
    assert not close(lemma, exp_beta(f / Z ** (alpha - 1), 2 - alpha) / Z, 0.1)
    exact = quad(lambda t: math.exp(t**3 + t**4) * norm.pdf(t), -1, 1)[0]  # eq. 8
    wrong, right = (
        quad(lambda t, s=s: math.exp(s * t**2 / 2 + t**3 + t**4), -1, 1)[0]
        / math.sqrt(2 * math.pi)
        for s in (1, -1)
    )
    assert close(right, exact) and not close(wrong, exact, 0.1)
    for j in range(4):  # App. A.1
        exact = quad(lambda t: math.exp(t) * norm.pdf(t), j, j + 1)[0]
        mass = norm.cdf(j + 1) - norm.cdf(j)
        assert math.exp(j) * mass < exact < math.exp(j + 1) * mass
    # Lemma 2 for F = exp, f = 0, g = 1, k = 2: no F'' between 0 and 1 makes the line true.
    remainders = np.exp(np.linspace(0, 1, 101))
    assert (1 + 1 + remainders).min() > math.e
    assert (1 + 1 + remainders / 2).min() < math.e < (1 + 1 + remainders / 2).max()
    # The bound of term (iii) on [0, 1], with p = 1 and q = 2 on the left half.
    left = 1 / (alpha - 1) * (0.5 * abs(1 - 2 ** (alpha - 1)) + 0.5 * 1)
    assert left > 1.4 > 0.8 > (1 + 1) ** (alpha - 2) * 1

    def objective(
        s: float, sign: int
    ) -> float:  # section 3.1: E f - sign * entropy of N(0, s^2)
        return -(s**2) / 2 - sign * 0.5 * math.log(2 * math.pi * math.e * s**2)

    widths = [10.0**-k for k in range(4)]  # the narrower the better: no maximum
    assert all(objective(b, 1) > objective(a, 1) for a, b in pairwise(widths))
    assert all(objective(1.0, -1) >= objective(s, -1) for s in (0.5, 0.9, 1.1, 2.0))


def ray(power: int, r0: float, s: float) -> float:
    """Integral of r^power N(r; r0, s^2) on [0, 1]."""
    value: float = quad(lambda r: r**power * norm.pdf(r, r0, s), 0, 1)[0]
    return value


def eq59(r0: Any, s: float) -> Any:
    low, high = norm.pdf(-r0 / s), norm.pdf((1 - r0) / s)
    F = (2 * s**3 + r0**2 * s + r0 * s) * high - (2 * s**3 + r0**2 * s - s) * low
    return F - (r0**3 + (3 * s**2 - 1) * r0) * (
        norm.cdf((1 - r0) / s) - norm.cdf(-r0 / s)
    )


@row
def eqs_58_to_81_are_correct() -> None:
    r0, s = 0.3, 0.45  # s for the paper's sigma
    low, high = norm.pdf(-r0 / s), norm.pdf((1 - r0) / s)
    between = norm.cdf((1 - r0) / s) - norm.cdf(-r0 / s)
    assert close(eq59(r0, s), ray(1, r0, s) - ray(3, r0, s))
    root, mu = 0.7, 0.2  # for (-2 lambda)^(1/2) Sigma^(1/2) a, and mu
    G = (root * s * r0 + mu * s) * low - (root * s * (1 + r0) + mu * s) * high
    G += (root * (s**2 + r0**2) + mu * r0) * between
    assert close(G, root * ray(2, r0, s) + mu * ray(1, r0, s))  # eq. 69
    assert close(s * (low - high) + r0 * between, ray(1, r0, s))  # H, below eq. 71
    a3, a2, a1 = 0.9, -0.4, 0.6  # for the matrices A, B, C
    tA, tB = s**3 * a3, s**2 * (3 * r0 * a3 + a2)
    tC, tD = s * (3 * r0**2 * a3 + 2 * r0 * a2 + a1), r0**3 * a3 + r0**2 * a2 + r0 * a1
    M = ((2 + (r0 / s) ** 2) * tA - r0 / s * tB + tC) * low + (tB + tD) * between
    M -= ((2 + ((1 - r0) / s) ** 2) * tA + (1 - r0) / s * tB + tC) * high
    expected = a3 * ray(3, r0, s) + a2 * ray(2, r0, s) + a1 * ray(1, r0, s)
    assert close(M, expected)  # eqs. 77 to 81
    sigma2 = torch.tensor([[0.5, 0.2], [0.2, 0.4]])
    p = sf.TruncatedParaboloid.from_sigma(torch.zeros(2), sigma2)
    area = math.pi * torch.linalg.det(p.scale_tril)
    height = (math.pi * torch.linalg.det(sigma2).sqrt()) ** -0.5  # eq. 55
    assert close(
        area, math.pi * (2 * height) * torch.linalg.det(sigma2).sqrt()
    )  # eq. 65
    assert torch.allclose(p.escort().covariance_matrix, sigma2 / area)  # eq. 64


@row
def cor_1_excludes_equality() -> None:
    mass = [quad(lambda t: math.exp(t * t) * norm.pdf(t), -r, r)[0] for r in (2, 4, 6)]
    assert mass[0] < 4 and mass[2] > 1e6
    base = torch.distributions.Normal(torch.tensor(0.0), torch.tensor(1.0))
    try:
        sf.KernelExp(torch.ones(1), torch.ones(1), lambda x, z: (x @ z.T) ** 2, base)
    except ValueError as error:
        assert "outweigh the growth of the kernel" in str(error)
    else:
        raise AssertionError


@row
def lemma_4_has_a_wrong_sign_and_power() -> None:
    weights, direction = torch.tensor([0.5, -0.3, 0.4]), torch.tensor([1.0, 0.2, 0.6])
    points, t, kernel = (
        torch.tensor([0.2, 0.5, 0.8]),
        torch.tensor(0.4),
        bell(0.05**0.5),
    )

    def family(eta: float) -> sf.KernelDeformedExp:
        return sf.KernelDeformedExp(
            weights + eta * direction, points, kernel, alpha=1.5
        )

    def psi(t: Tensor) -> Tensor:
        return (
            kernel(t.reshape(-1, 1), points[:, None]).matmul(direction).reshape(t.shape)
        )

    p, eta = family(0.0), 1e-5
    slope = (family(eta).prob(t) - family(-eta).prob(t)) / (2 * eta)
    nodes, w = p.quadrature()
    w = w * p.prob(nodes) ** -0.5  # of p^(2 - alpha)
    dA = (w * psi(nodes)).sum() / w.sum()
    assert close(slope, p.prob(t) ** 0.5 * (psi(t) - dA), 1e-7)
    assert not close(slope, p.prob(t) ** 0.5 * (psi(t) + dA), 0.1)
    power = (family(eta).prob(t) ** 0.5 - family(-eta).prob(t) ** 0.5) / (2 * eta)
    assert close(power, 0.5 * p.prob(t) ** -0.5 * slope, 1e-7)


@row
def eq_12_has_a_wrong_sign() -> None:
    p, q, r = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.1, 0.7, 0.2]])
    alpha = 1.5

    def slope_at(q: Tensor) -> Tensor:
        return q.pow(alpha - 1) / (alpha - 1)

    def bregman(p: Tensor, q: Tensor) -> Tensor:
        omega_p, omega_q = (
            (x.pow(alpha).sum() - 1) / (alpha * (alpha - 1)) for x in (p, q)
        )
        return omega_p - omega_q - (slope_at(q) * (p - q)).sum()

    product = ((p - q) * (slope_at(q) - slope_at(r))).sum()
    assert close(bregman(p, r), bregman(p, q) + bregman(q, r) + product)
    assert not close(bregman(p, r), bregman(p, q) + bregman(q, r) - product, 0.1)


@row
def eq_60_on_a_closed_grid_counts_an_angle_twice() -> None:
    center, width = np.array([0.3, 0.2]), 0.5
    paraboloid = sf.TruncatedParaboloid.from_sigma(torch.zeros(2), torch.eye(2))
    psi = sf.bases.GaussianRBF(torch.tensor([center.tolist()]), torch.tensor([width]))

    def eq60(angles: np.ndarray) -> float:  # Sigma = I, Sigma_j = width^2 I
        height = math.pi**-0.5  # -lambda, eq. 55
        mean, s = center / math.sqrt(2 * height), width / math.sqrt(2 * height)
        r0 = np.cos(angles) * mean[0] + np.sin(angles) * mean[1]
        front = np.exp(-(mean @ mean - r0**2) / (2 * s**2)) / math.sqrt(2 * math.pi) / s
        return float(2 * math.pi * np.mean(height * front * eq59(r0, s)))

    exact = paraboloid.expect(psi)[0].item()
    assert close(eq60(np.linspace(0, 2 * math.pi, 100, endpoint=False)), exact, 1e-12)
    assert abs(eq60(np.linspace(0, 2 * math.pi, 100)) / exact - 1 - 0.006) < 5e-4


@row
def eq_50_cancels_in_float32() -> None:
    def eq49(mu: Tensor, variance: Tensor, mu_j: Tensor, sigma_j: Tensor) -> Tensor:
        a = (1.5 * variance) ** (1 / 3)
        height, shift = a**2 / (2 * variance), mu_j - mu
        u, v = (-shift - a) / sigma_j, (-shift + a) / sigma_j
        between = (torch.erf(v / 2**0.5) - torch.erf(u / 2**0.5)) / 2
        pdf_u, pdf_v = (torch.exp(-x * x / 2) / (2 * math.pi) ** 0.5 for x in (u, v))
        first, second = pdf_u - pdf_v, between - v * pdf_v + u * pdf_u  # eq. 50
        square = shift**2 * between + 2 * shift * sigma_j * first + sigma_j**2 * second
        return height * between - square / (2 * variance)

    numbers = torch.tensor([5.0, 1e-10, 4.9, 0.5])
    exact = eq49(*numbers)
    narrow = sf.TruncatedParabola.from_sigma(
        torch.tensor(5.0).float(), torch.tensor(1e-5).float()
    )
    ours = narrow.expect(sf.bases.GaussianRBF([4.9], 0.5).float())
    assert ours.dtype == torch.float32 and close(ours, exact, 1e-6)
    assert abs(float(exact) - 0.782) < 5e-4
    assert eq49(*numbers.float()).item() > 9


@row
def the_maximum_does_not_cancel() -> None:
    f = 3 * torch.sin(9 * torch.linspace(0, 1, 1001))

    def outside(f: Tensor, alpha: float) -> Tensor:
        p = exp_beta(f, 2 - alpha)
        return p / p.mean()

    def variation(alpha: float) -> float:
        return (outside(f, alpha) - outside(f - f.max(), alpha)).abs().mean().item() / 2

    assert variation(1.0) < 1e-12 and abs(variation(2.0) - 0.38) < 5e-3


@row
def outside_is_inside_of_another_score() -> None:
    weights, points = torch.tensor([4.0, -4.0, 3.0]), torch.tensor([0.2, 0.5, 0.8])
    grid = torch.linspace(0, 1, 1001)

    def density(weights: Tensor, **more: str) -> Callable[[Tensor], Tensor]:
        return sf.KernelDeformedExp(weights, points, bell(0.1), alpha=1.5, **more).prob

    outer = density(weights, normalization="outside")(grid)
    Z = exp_beta(
        sf.scores.KernelExpansion(weights, points, bell(0.1))(grid), 0.5
    ).mean()
    assert (outer - density(weights / Z**0.5)(grid)).abs().max() < 0.01
    assert (outer - density(weights)(grid)).abs().max() > 0.1


# docs/theory/derivations.md
@row
def the_derivation_of_beta_gaussians() -> None:
    sigma, alpha, m = 0.8, 1.7, 1 / 0.7
    gammas = math.lgamma(m + 1.5) - math.lgamma(m + 1)
    bracket = m * math.log(2 * m) - math.log(math.pi) / 2 + gammas - math.log(sigma)
    r2 = math.exp(2 / (2 * m + 1) * bracket)
    p = sf.BetaGaussian.from_sigma(0.0, sigma, alpha)
    assert close(p.scale, r2**0.5 * sigma)
    assert close(p.variance, r2 * sigma**2 / (2 * m + 3))
    assert close(p.log_normalizer, m - r2 / 2)
    omega = (r2 / (2 * m) * (m + 1) / (m + 1.5) - 1) / (alpha * (alpha - 1))
    assert close(-p.tsallis_entropy(), omega)


@row
def the_sigma_of_location_scale_families() -> None:
    t = torch.linspace(-3, 3, 7)
    p = sf.LocationScale(0.0, 2.0, lambda x: x**3 / 6)
    assert torch.allclose(
        p.prob(t), sf.TruncatedParabola.from_sigma(0.0, 2.0**1.5).prob(t)
    )


if __name__ == "__main__":
    for check in ROWS:
        check()
        print(check.__name__.replace("_", " "))
