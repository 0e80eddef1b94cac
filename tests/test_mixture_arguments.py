"""Mixtures as objects: copies, shapes, bad arguments, in a model of Pyro's."""

import copy
import math
import pickle

import pytest
import torch
from mixtures import DOUBLE, KNOWN
from torch import distributions as td

from sparsefam import BetaGaussian, Laplace, Mixture, Normal, TruncatedParabola, bases, rpm
from sparsefam.scores import LogDensity


def test_copies_say_the_same() -> None:
    p = KNOWN["unlike"].make(DOUBLE)
    t = torch.linspace(-1, 3, 9, dtype=DOUBLE)
    for q in (pickle.loads(pickle.dumps(p)), copy.deepcopy(p), p.escort(), p.escort(1.0)):
        torch.testing.assert_close(q.log_prob(t), p.log_prob(t))


@pytest.mark.parametrize("batched", [True, False])
def test_expanded_batches_are_independent_copies(batched: bool) -> None:
    loc = torch.tensor([[0.0, 3.0], [1.0, 9.0]])
    parts = Normal(loc, 0.5) if batched else [Normal(loc[:, 0], 0.5), td.Normal(loc[:, 1], 0.5)]
    p = Mixture(torch.tensor([0.0, 1.0]), parts)
    q = p.expand((3, 2))
    assert isinstance(q, Mixture) and q.batch_shape == (3, 2) and q.logits.shape == (3, 2, 2)
    draws = q.sample((1000,))
    assert draws.shape == (1000, 3, 2)
    assert (draws[:, 0] != draws[:, 1]).all()
    t, psi = torch.randn(5, 3, 2), bases.Polynomial(2)
    torch.testing.assert_close(q.log_prob(t), p.log_prob(t))
    torch.testing.assert_close(q.cdf(t), p.cdf(t))
    for ask in (
        lambda p: p.mean,
        lambda p: p.variance,
        lambda p: p.mode,
        lambda p: p.entropy(),
        lambda p: p.expect(psi),
        lambda p: p.expect(torch.cos),
        lambda p: p.generalized_covariance(psi, psi),
        lambda p: p.icdf(torch.tensor(0.25)),
        lambda p: p.rsample_components()[1],
        lambda p: p.support.intervals,
    ):
        torch.testing.assert_close(ask(q), ask(p).expand_as(ask(q)))
    t, masses = q.rsample_components((4,))
    assert t.shape == (4, 3, 2, 2) and masses.shape == (3, 2, 2)
    nodes, weights = q.quadrature(8)
    assert nodes.shape == weights.shape and nodes.shape[1:] == (3, 2)


def test_members_that_follow_from_alpha() -> None:
    p = KNOWN["disjoint"].make(DOUBLE).expand((2,))
    assert p.alpha.tolist() == [1.0, 1.0] and p.log_normalizer.tolist() == [0.0, 0.0]
    assert isinstance(p.score, LogDensity)
    t = torch.tensor([0.5, 3.0], dtype=DOUBLE)
    torch.testing.assert_close(p.score(t), p.log_prob(t))
    assert rpm(p.score, 1.0) is p
    with pytest.raises(ValueError, match="alpha must be 1 for the logarithm of a density"):
        rpm(p.score, 2.0)
    psi = bases.Polynomial(1)
    for refuse in (p.escort, lambda beta: p.generalized_covariance(psi, psi, beta)):
        with pytest.raises(ValueError, match="beta must be 1 for a mixture.* got 0.5"):
            refuse(0.5)
    with pytest.raises(ValueError, match="density must be a distribution, got 3"):
        LogDensity(3)


NAN, INF = math.nan, math.inf
PAIR = Normal(torch.zeros(2), 1.0)


@pytest.mark.parametrize(
    ("logits", "components", "message"),
    [
        (torch.tensor([0.0, NAN]), PAIR, "(?s)logits .*numbers below inf.*nan"),
        (torch.tensor([0.0, INF]), PAIR, "(?s)logits .*numbers below inf.*inf"),
        (torch.tensor([-INF, -INF]), PAIR, "(?s)logits .*at least one of them above -inf"),
        (torch.zeros(3), PAIR, r"logits must have shape \(\*batch, K\) for K = 2 .* got \(3,\)"),
        (torch.zeros(3, 2), Normal(torch.zeros(4, 2), 1.0), r"logits must have a batch .*\(4,\)"),
        (torch.tensor(0.0), PAIR, "logits must be a real tensor"),
        ([0.0, 1.0], PAIR, "logits must be a real tensor"),
        (torch.zeros(2) + 0j, PAIR, "logits must be a real tensor"),
        (torch.zeros(2), Normal(0.0, 1.0), r"components must have batch shape \(\*batch, K >= 1\)"),
        (torch.zeros(0), Normal(torch.zeros(0), 1.0), "components must be at least one, got none"),
        (torch.zeros(0), [], "components must be a distribution .* or a sequence"),
        (torch.zeros(2), [PAIR, 3], "components must be a distribution .* or a sequence"),
        (torch.zeros(2), 3, "components must be a distribution .* or a sequence"),
        (torch.zeros(2), td.Poisson(torch.ones(2)), "components must be continuous, got Poisson"),
        (torch.zeros(1), [td.Independent(td.Poisson(torch.ones(2)), 1)], "must be continuous"),
        (
            torch.zeros(2),
            [Normal(torch.zeros(2), 1.0), Normal(torch.zeros(3), 1.0)],
            r"components must have batches that broadcast, got \[\(2,\), \(3,\)\]",
        ),
        (
            torch.zeros(2),
            [Normal(0.0, 1.0), td.MultivariateNormal(torch.zeros(2), torch.eye(2))],
            r"components must have one event shape, got \[\(\), \(2,\)\]",
        ),
    ],
)
def test_bad_arguments_are_refused(logits: object, components: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Mixture(logits, components)


def test_bad_values_and_bases_are_refused() -> None:
    p = KNOWN["disjoint"].make(DOUBLE)
    for value in (torch.tensor(NAN), torch.tensor([0.0, NAN])):
        with pytest.raises(ValueError, match="value must be real"):
            p.log_prob(value)
    with pytest.raises(ValueError, match="value must broadcast"):
        p.expand((3,)).log_prob(torch.zeros(4))
    with pytest.raises(ValueError, match="psi must take locations of event shape"):
        p.expect(bases.Polynomial(1, ndim=2))
    with pytest.raises(ValueError, match="parameter scale"):
        Mixture(torch.zeros(1), [BetaGaussian(0.0, -1.0, 2.0)])


def test_integer_logits_are_numbers() -> None:
    p = Mixture(torch.tensor([0, 1]), PAIR)
    torch.testing.assert_close(p.probs, torch.tensor([0.0, 1.0]).softmax(-1))


def test_nested_mixtures_are_mixtures() -> None:
    inner = Mixture(torch.zeros(2), TruncatedParabola(torch.tensor([0.0, 3.0]), 1.0))
    outer = Mixture(torch.tensor([0.0, 1.0]), [inner, Laplace(9.0, 0.1)])
    weights = torch.softmax(torch.tensor([0.0, 1.0]), 0)
    flat = Mixture(
        torch.log(torch.stack([weights[0] / 2, weights[0] / 2, weights[1]])),
        [TruncatedParabola(0.0, 1.0), TruncatedParabola(3.0, 1.0), Laplace(9.0, 0.1)],
    )
    t = torch.linspace(-2, 10, 13)
    torch.testing.assert_close(outer.log_prob(t), flat.log_prob(t))
    u = torch.linspace(0.01, 0.99, 12)
    torch.testing.assert_close(outer.icdf(u), flat.icdf(u))
    torch.testing.assert_close(outer.entropy(), flat.entropy())
    draws, masses = outer.rsample_components((3,))
    assert draws.shape == (3, 3)
    torch.testing.assert_close(masses, flat.probs)


def test_numbers_have_no_covariance_matrix() -> None:
    with pytest.raises(NotImplementedError, match="covariance matrices are known of vectors only"):
        _ = Mixture(torch.zeros(2), PAIR).covariance_matrix
