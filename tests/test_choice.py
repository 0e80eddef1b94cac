"""Which rule computes an expectation: what `explain` says is what runs."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import sparsefam as sf
from sparsefam import _choice
from sparsefam._choice import Mode, Rule, Shifts
from sparsefam.bases import Fourier, GaussianRBF, Indicator, Polynomial, Product, Stack

FINE, UNLIKE = GaussianRBF.grid(64, 0.02), GaussianRBF.grid(64, [1e-4, 1.0])
HILLS, ROUND = GaussianRBF.grid(16, 0.1, ndim=2), GaussianRBF([[0.1, 0.2]], covariance=torch.eye(2))
PAIRS = Product(GaussianRBF([0.0], 0.1), GaussianRBF([0.5], 0.2))
UNIT = torch.linspace(0, 1, 64)
PLANE = torch.stack([UNIT, UNIT], -1)
BALL, NORMAL = sf.MultivariateBetaGaussian(PLANE, torch.eye(2), 1.5), sf.Normal(UNIT, 0.2)
MIXTURE = sf.Mixture(torch.zeros(64, 2), sf.TruncatedParabola(UNIT[:, None].expand(64, 2), 0.3))


def by_exponent(alpha: Any) -> sf.BetaGaussian:
    return sf.BetaGaussian(UNIT, 0.3, alpha)


CASES: list[tuple[Any, Any, str]] = [
    (sf.TruncatedParabola(UNIT, 0.3), FINE, "waves"),
    (sf.TruncatedParabola(UNIT[:8], 0.3), FINE, "closed form: exponent 1, 8 x 64 pairs"),
    (by_exponent(1.5), UNLIKE, "closed form: exponent 2"),
    (by_exponent(1.7), UNLIKE, "contour: each of 64 x 64 pairs"),
    (by_exponent(torch.linspace(1.2, 2, 64)), FINE, "contour"),
    (sf.BetaLaplace(UNIT, 0.3, 1.7), UNLIKE, "overlap"),
    (sf.BetaLaplace(UNIT, 0.3, 1.7), FINE, "waves"),
    (sf.Laplace(UNIT, 0.3), FINE, "waves"),
    (NORMAL, FINE, "closed form: 64 x 64 pairs"),
    (sf.Truncated(sf.Normal(0.0, 1.0), 0.0, 1.0), FINE, "closed form"),
    (sf.Truncated(sf.Laplace(0.0, 1.0), 0.0, 1.0), FINE, "quadrature: no rule"),
    (MIXTURE, FINE, "components: waves"),
    (BALL, HILLS, "shared contour"),
    (BALL, ROUND, "contour"),
    (BALL, PAIRS, "contour"),
    (sf.MultivariateNormal(PLANE, torch.eye(2)), HILLS, "contour"),
    (BALL, Product(Indicator([0.0, 0.5]), Polynomial(1)), "quadrature"),
    (NORMAL, Polynomial(2), "closed form: registered for SymmetricDistribution and Polynomial"),
    (NORMAL, Fourier([1.0]), "closed form"),
    (NORMAL, torch.cos, "quadrature"),
    (NORMAL, Stack(FINE, Indicator([0.0, 0.5])), "stack: closed form: 64 x 64 pairs; closed"),
]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of rules that compute, the outermost first."""
    names: list[str] = []

    def spied(method: Any) -> Any:
        def call(self: Rule, *inputs: Any) -> Tensor:
            names.append(self.name)
            return method(self, *inputs)  # type: ignore[no-any-return]

        return call

    def kinds(kind: type[Rule]) -> Iterator[type[Rule]]:
        for subclass in kind.__subclasses__():
            yield subclass
            yield from kinds(subclass)

    for kind in (Rule, *kinds(Rule)):
        for name in {"means", "contexts"} & set(vars(kind)):
            monkeypatch.setattr(kind, name, spied(vars(kind)[name]))
    return names


@pytest.mark.parametrize(("p", "psi", "expected"), CASES)
def test_the_rule_that_is_named_runs(p: Any, psi: Any, expected: str, ran: list[str]) -> None:
    said = sf.explain(p, psi)
    assert said.startswith(expected)
    ran.clear()
    p.expect(psi)
    assert ran[0] == said.partition(":")[0]


@pytest.mark.parametrize(
    ("score", "alpha", "expected"),
    [
        ("quadratic", 2.0, "waves"),
        ("quadratic", 1.0, "closed form"),
        ("mixture", 1.5, "waves"),
        ("kernel", 2.0, "mesh"),
    ],
)
def test_in_attention(score: str, alpha: float, expected: str, ran: list[str]) -> None:
    regression = sf.attention.RidgeRegression(FINE)
    layer = sf.attention.ContinuousAttention(8, 2, regression, alpha, score, batch_first=True)
    values = torch.randn(1, 20, 8)
    ran.clear()
    _, p = layer(torch.randn(1, 5, 8), values, values, torch.rand(1, 20))
    assert ran[0] == expected
    assert sf.explain(p, FINE, contexts=True).startswith(f"{expected}: ")


def test_queries_that_differ_by_positions_shift_one_spectrum() -> None:
    mode = Mode(contexts=True, centers=(-0.5, 1.5), shifts=Shifts(UNIT[None], 0.2))
    p = sf.TruncatedParabola(UNIT, 0.3).expand((1, 2, 64))
    assert _choice.choose(p, FINE, mode).name == "shifted waves"
    one = sf.BetaGaussian(p.loc, p.scale, torch.rand(1, 2, 64) + 1.5)
    assert _choice.choose(one, FINE, mode).name != "shifted waves"


def test_a_closed_form_may_decline(ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Some(Polynomial):
        "Powers without a closed form."

    monkeypatch.setattr(_choice, "TABLE", dict(_choice.TABLE))
    sf.register_expect(sf.Normal, Some)(lambda p, psi: NotImplemented)
    assert sf.explain(NORMAL, Some(1)).startswith("closed form: declined, quadrature: no rule")
    torch.testing.assert_close(NORMAL.expect(Some(1)), NORMAL.expect(Polynomial(1)))


@pytest.mark.parametrize("psi", [3.0, HILLS])
def test_what_expect_refuses_is_not_explained(psi: Any) -> None:
    for ask in (NORMAL.expect, lambda x: sf.explain(NORMAL, x)):
        with pytest.raises(ValueError, match="psi must"):
            ask(psi)
