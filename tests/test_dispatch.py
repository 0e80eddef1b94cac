"""The registry behind expect."""

import pytest
import torch

import sparsefam as sf
from sparsefam.bases import Basis, Indicator, Polynomial
from sparsefam.dispatch import _RULES, find_expect, register_expect


@pytest.fixture(autouse=True)
def restore_rules():
    before = dict(_RULES)
    yield
    _RULES.clear()
    _RULES.update(before)


class Constant(Basis):
    """The number one."""

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        return torch.ones_like(t).unsqueeze(-1)

    def __len__(self) -> int:
        return 1


def test_a_users_rule_serves_subclasses_and_replaces_quadrature() -> None:
    p, psi = sf.TruncatedParabola(torch.tensor([0.0, 1.0]), 1.0), Constant()
    torch.testing.assert_close(p.expect(psi), torch.ones(2, 1))

    @register_expect(sf.BetaGaussian, Constant)
    def _(p: sf.BetaGaussian, psi: Constant) -> torch.Tensor:
        return p.loc.unsqueeze(-1) + 41

    torch.testing.assert_close(p.expect(psi), torch.tensor([[41.0], [42.0]]))
    torch.testing.assert_close(sf.Normal(0.0, 1.0).expect(psi), torch.ones(1))


def test_the_nearest_rule_wins_distribution_first() -> None:
    class Special(Polynomial):
        pass

    named = {}
    for p in (sf.SparseDistribution, sf.BetaGaussian, sf.TruncatedParabola):
        for b in (Basis, Polynomial, Special):
            if (p, b) != (sf.TruncatedParabola, Special):
                named[p, b] = register_expect(p, b)(lambda *_, key=(p, b): key)
    assert find_expect(sf.TruncatedParabola, Special) is named[sf.TruncatedParabola, Polynomial]
    assert find_expect(sf.BetaGaussian, Special) is named[sf.BetaGaussian, Special]
    assert find_expect(sf.SparseCategorical, Indicator) is named[sf.SparseDistribution, Basis]


def test_no_rule_is_none() -> None:
    assert find_expect(sf.Normal, Constant) is None


@pytest.mark.parametrize("arguments", [(sf.Normal(0.0, 1.0), Polynomial), (sf.Normal, "basis")])
def test_only_classes_are_registered(arguments: tuple[object, object]) -> None:
    with pytest.raises(ValueError, match="must be a class, got"):
        register_expect(*arguments)
