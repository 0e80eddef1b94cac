"""Laws with atoms against integrals of their parts, scipy and mpmath."""

import math
import pickle
from collections.abc import Callable
from typing import Any

import mpmath as mp
import pyro
import pyro.distributions as dist
import pytest
import torch
from battery import DOUBLE, SINGLE, double, number
from scipy import stats
from torch import Tensor
from torch import distributions as td

from sparsefam import (
    Censored,
    Hurdle,
    Mixture,
    Normal,
    ScaledBeta,
    Truncated,
    TruncatedParabola,
)
from sparsefam.bases import GaussianRBF, Polynomial
from sparsefam.inference import SupportReparam

ZERO, ONE = (torch.tensor(x, dtype=DOUBLE) for x in (0.0, 1.0))
LAWS: dict[str, Callable[[torch.dtype], Any]] = {
    "normal": lambda d: Censored(td.Normal(ZERO.to(d) + 0.25, 1.25), -0.5, 2.0),
    "from-below": lambda d: Censored(td.Gamma(ONE.to(d) * 2, 1.5), 0.5),
    "from-above": lambda d: Censored(TruncatedParabola(ONE.to(d), 2.0), None, 1.5),
    "beta": lambda d: Censored(ScaledBeta(ZERO.to(d), 1.0, 0.25, 3.0), 0.125, 0.5),
    "mixture": lambda d: Censored(
        Mixture(torch.zeros(2, dtype=d), [Normal(ZERO.to(d), 1.0), Normal(ONE.to(d), 0.25)]), 0.0
    ),
    "rain": lambda d: Hurdle(td.Gamma(ONE.to(d) * 2, 1.5), 0.75),
    "both-sides": lambda d: Hurdle(Normal(ONE.to(d) / 2, 1.0), 0.25),
    "apart": lambda d: Hurdle(TruncatedParabola(4 * ONE.to(d), 2.0), 0.5),
}
every_law = pytest.mark.parametrize("name", LAWS)


def parts(p: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Atoms, and nodes with weights of integrals of functions times the density elsewhere."""
    atoms = p.support.atoms
    atoms = atoms[~atoms.isnan()]
    base = p.base
    cut = base if isinstance(p, Hurdle) else Truncated(base, p.low, p.high)
    nodes, weights = cut.quadrature(400)
    return atoms, p.prob(atoms), nodes, weights * (p.prob(nodes) / cut.prob(nodes)).nan_to_num()


@every_law
def test_moments_and_entropies_are_sums_over_atoms_and_integrals(name: str) -> None:
    p, rbf = LAWS[name](DOUBLE), GaussianRBF([0.0, 0.5], [0.25, 1.0]).double()
    atoms, masses, nodes, weights = parts(p)

    def total(g: Callable[[Tensor], Tensor]) -> Tensor:
        return torch.tensordot(masses, g(atoms), 1) + torch.tensordot(weights, g(nodes), 1)

    mean = total(lambda t: t)
    for found, expected in (
        (total(torch.ones_like), ONE),
        (p.mean, mean),
        (p.variance, total(lambda t: (t - mean).square())),
        (p.entropy(), total(lambda t: -p.log_prob(t).clamp_min(-1e300))),
        (p.expect(lambda t: t.cos()), total(torch.cos)),
        (p.expect(rbf), total(rbf)),
        (p.moment(3), total(lambda t: t**3)),
    ):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    single = LAWS[name](SINGLE)
    for value, exact in ((single.mean, mean), (single.entropy(), p.entropy())):
        assert value.dtype == SINGLE
        torch.testing.assert_close(value.double(), exact, rtol=2e-6, atol=1e-6)


@every_law
def test_distribution_functions_jump_at_atoms(name: str) -> None:
    p = LAWS[name](DOUBLE)
    atoms, masses, nodes, weights = parts(p)
    near = torch.stack([atoms.nextafter(ZERO - math.inf), atoms])
    torch.testing.assert_close(p.cdf(near).diff(dim=0)[0], masses, rtol=1e-12, atol=1e-14)
    t = torch.cat([atoms - 0.25, atoms, double(0.25, 0.75, 1.25)])
    below = torch.stack([masses[atoms <= x].sum() + weights[nodes <= x].sum() for x in t])
    torch.testing.assert_close(p.cdf(t), below, rtol=0, atol=0.05)  # nodes are coarse
    for log, tail in ((p.log_cdf, p.cdf), (p.log_survival, p.survival)):
        torch.testing.assert_close(log(t).exp(), tail(t), rtol=1e-11, atol=1e-300)
    torch.testing.assert_close(p.cdf(t) + p.survival(t), torch.ones_like(t), rtol=0, atol=1e-14)
    u = torch.linspace(0.01, 0.99, 99, dtype=DOUBLE)
    q = p.icdf(u)
    assert (q.diff() >= 0).all()
    # The smallest location with at least this level.
    assert (p.cdf(q) >= u - 1e-12).all()
    at_atom = (q.unsqueeze(-1) == atoms).any(-1)
    torch.testing.assert_close(p.cdf(q)[~at_atom], u[~at_atom], rtol=0, atol=1e-11)
    assert p.support.check(q).all()


@every_law
def test_draws_fit_the_law(name: str) -> None:
    torch.manual_seed(5)
    p = LAWS[name](SINGLE)
    t = p.sample((4000,))
    atoms = p.support.atoms
    atoms = atoms[~atoms.isnan()]
    counts = (t.unsqueeze(-1) == atoms).sum(0)
    rest = t[(t.unsqueeze(-1) != atoms).all(-1)]
    edges = p.icdf(torch.linspace(0.0, 1.0, 6))[1:-1]
    edges = edges[(edges.unsqueeze(-1) != atoms).all(-1)]
    cuts = torch.cat([edges, atoms.nextafter(atoms - 1), atoms]).sort().values
    levels = torch.cat([torch.zeros(1), p.cdf(cuts), torch.ones(1)]).diff()
    found = torch.bincount(torch.bucketize(t, cuts), minlength=len(levels))
    kept = levels > 1e-6
    expected = levels[kept].double()
    expected = expected / expected.sum() * found[kept].sum()
    assert stats.chisquare(found[kept].double(), expected).pvalue > 1e-3
    assert counts.sum() + len(rest) == 4000


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("distance", [1.0, 8.0, 40.0])
def test_masses_of_atoms_in_far_tails(distance: float, upper: bool) -> None:
    loc, scale, end = (number(x).requires_grad_() for x in (0.0, 1.0, distance))
    p = Censored(td.Normal(loc, scale), *((None, end) if upper else (-end, None)))
    at_end = p.log_prob(end.detach() if upper else -end.detach())
    with mp.workdps(30):
        tail = mp.erfc(mp.mpf(distance) / mp.sqrt(2)) / 2
        slope = mp.npdf(distance) / tail
        expected, rate = float(mp.log(tail)), float(slope)
    assert at_end.item() == pytest.approx(expected, rel=1e-14)
    found = torch.autograd.grad(at_end, [loc, scale, end])
    side = 1.0 if upper else -1.0
    torch.testing.assert_close(
        torch.stack(found), double(side * rate, distance * rate, -rate * 1.0), rtol=1e-11, atol=0
    )
    single = Censored(td.Normal(0.0, 1.0), None, distance).log_prob(torch.tensor(distance))
    assert single.item() == pytest.approx(expected, rel=1e-6)


def test_densities_off_the_support_are_zero_without_gradients() -> None:
    for gate, value in ((0.0, 0.0), (1.0, 1.0), (0.5, -1.0)):
        leaves = number(gate).requires_grad_(), number(2.0).requires_grad_()
        log_p = Hurdle(td.Gamma(leaves[1], 1.0), leaves[0]).log_prob(number(value))
        assert log_p == -math.inf
        assert all(g == 0 for g in torch.autograd.grad(log_p, leaves))
    ends = number(-1.0).requires_grad_(), number(1.0).requires_grad_()
    log_p = Censored(Normal(ZERO, 1.0), *ends).log_prob(double(-1.5, 1.5))
    assert (log_p == -math.inf).all()
    assert all(g == 0 for g in torch.autograd.grad(log_p.sum(), ends))
    loc = ZERO.clone().requires_grad_()
    bare = Censored(TruncatedParabola(loc, 1.0), -2.0, validate_args=False)
    log_p = bare.log_prob(double(-2.0, 0.5))
    assert log_p[0] == -math.inf
    assert torch.autograd.grad(log_p[0], loc)[0] == 0
    assert bare.mean.abs() < 1e-15


def test_moments_that_do_not_exist_are_not_finite() -> None:
    p = Hurdle(dist.InverseGamma(3 * ONE, 1.0), 0.5)
    assert p.moment(2).isfinite() and p.moment(3) == p.moment(4, central=True) == math.inf
    assert Hurdle(td.Cauchy(ZERO, ONE), 0.5).moment(3).isnan()
    assert Censored(td.Cauchy(ZERO, ONE), None, 1.0).moment(3) == -math.inf


def test_parts_of_degenerate_hurdles() -> None:
    base = td.Gamma(2 * ONE, 1.0)
    none, all_ = Hurdle(base, 0.0), Hurdle(base, 1.0)
    torch.testing.assert_close(none.entropy(), base.entropy())
    assert all_.mean == all_.variance == all_.entropy() == 0
    assert (all_.icdf(double(0.0, 0.5, 1.0)) == 0).all() and (all_.sample((9,)) == 0).all()


def test_gradients_of_samples_are_those_of_their_means() -> None:
    for law, last in ((Censored, None), (Hurdle, 0.375)):
        leaves = [number(x).requires_grad_() for x in (0.25, 1.25, last or 0.0)]
        loc, scale, third = leaves
        p: Any = law(Normal(loc, scale), third)
        torch.manual_seed(1)
        draws = p.rsample((40000,))
        expected, found = (
            torch.autograd.grad(x, leaves, allow_unused=True, materialize_grads=True)
            for x in (p.mean, draws.mean())
        )
        torch.testing.assert_close(found, expected, rtol=0, atol=0.03)


def test_samples_are_clamped_ones_of_the_base() -> None:
    base = Normal(ZERO, 1.0)
    torch.manual_seed(0)
    expected = base.rsample((50,)).clamp(-0.5, 1.0)
    torch.manual_seed(0)
    assert torch.equal(Censored(base, -0.5, 1.0).rsample((50,)), expected)
    assert not Hurdle(TruncatedParabola(4.0, 2.0), 0.5).has_rsample
    with pytest.raises(NotImplementedError, match="one interval"):
        Hurdle(TruncatedParabola(4.0, 2.0), 0.5).rsample()


def test_covariances_count_atoms() -> None:
    p = Censored(td.Normal(number(0.25), number(1.0)), -1.0, 1.5)
    found = p.generalized_covariance(*[Polynomial(2).double()] * 2)
    powers = torch.stack([p.moment(n) for n in range(1, 5)])
    mean, square = powers[0], powers[1]
    expected = torch.stack(
        [
            torch.stack([square - mean**2, powers[2] - mean * square]),
            torch.stack([powers[2] - mean * square, powers[3] - square**2]),
        ]
    )
    torch.testing.assert_close(found[1:, 1:], expected)
    with pytest.raises(NotImplementedError, match="mode exists for laws without atoms"):
        _ = p.mode


@pytest.mark.parametrize(
    "make",
    [
        lambda x: Censored(Normal(x, torch.ones(3, 1)), -1.0, torch.tensor([1.0, 2.0])),
        lambda x: Hurdle(Normal(x, torch.ones(3, 1)), torch.tensor([0.25, 0.5])),
    ],
    ids=["Censored", "Hurdle"],
)
def test_batches(make: Callable[[Tensor], Any]) -> None:
    p, t = make(torch.zeros(2)), torch.tensor([0.0, 1.0])
    assert p.batch_shape == (3, 2) and p.sample((4,)).shape == (4, 3, 2)
    assert torch.equal(p.expand((5, 3, 2)).log_prob(t)[1], p.log_prob(t))
    assert torch.equal(p[1, 1].log_prob(t[1]), p.log_prob(t)[1, 1])
    assert torch.equal(pickle.loads(pickle.dumps(p)).mean, p.mean)
    assert torch.equal(p.detach().variance, p.variance)
    assert p.support.intervals.shape[:2] == (3, 2)

    def rows(x: Tensor) -> Tensor:
        return make(x).log_prob(t)

    x = torch.tensor([[0.0, 0.5], [1.0, 0.25]])
    torch.testing.assert_close(torch.vmap(rows)(x), torch.stack([rows(row) for row in x]))
    whole: Any = torch.compile(rows, fullgraph=True, backend="eager")
    torch.testing.assert_close(whole(x[0]), rows(x[0]))


def test_bad_input_is_named() -> None:
    normal, parabola = td.Normal(0.0, 1.0), TruncatedParabola(1.0, 2.0)
    bad: list[tuple[str, Callable[[], Any]]] = [
        ("low must be below high", lambda: Censored(normal, 1.0, 0.0)),
        ("low must be an end beyond which the base has .*, got -3", lambda: Censored(parabola, -3)),
        ("high must be an end beyond which the base", lambda: Censored(parabola, None, 3.0)),
        ("low", lambda: Censored(normal, math.nan)),
        ("base must be a continuous", lambda: Censored(td.Poisson(1.0), 0.0)),
        ("base must be a continuous", lambda: Hurdle(Hurdle(normal, 0.5), 0.5)),
        ("gate", lambda: Hurdle(normal, 1.5)),
        ("gate", lambda: Hurdle(normal, math.nan)),
        ("base must be a continuous", lambda: Truncated(Hurdle(normal, 0.5), 0.0)),
        ("components must be continuous", lambda: Mixture(torch.zeros(1), [Censored(normal, 0.0)])),
        ("p must be continuous", lambda: td.kl_divergence(Censored(normal, 0.0), normal)),
        ("without atoms", lambda: td.biject_to(Hurdle(normal, 0.5).support)),
    ]
    for message, call in bad:
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(NotImplementedError, match="without atoms"):
        Censored(normal, 0.0).highest_density(0.5)


def test_sites_with_atoms_are_quantiles_of_their_levels() -> None:
    law = Censored(dist.Normal(0.0, 1.0), 0.0, 1.0)
    sites: Any = {"x": SupportReparam()}
    model = pyro.poutine.reparam(lambda: pyro.sample("x", law), config=sites)
    nodes = pyro.poutine.trace(model).get_trace().nodes
    assert nodes["x"]["value"] == law.icdf(nodes["x_base"]["value"])
    assert nodes["x_base"]["fn"].log_prob(nodes["x_base"]["value"]) == 0
