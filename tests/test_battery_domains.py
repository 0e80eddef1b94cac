"""The battery: what holds for all parameters of the domains that they are drawn from."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from battery import DOMAINS, DOUBLE, Case
from cases import SCALARS
from hypothesis import Phase, given, settings, strategies
from references import tanh_sinh
from torch import Tensor

from sparsefam import SparseDistribution, Truncated

# Of a Beta density, quantiles may be ends where it is infinite.
DRAWN = [
    case
    for case in SCALARS
    if not (case.event_shape or case.family.signed or "mean" in case.parameters)
]
LEVELS = torch.tensor([1e-9, 1e-4, 0.02, 0.25, 0.5, 0.75, 0.98, 1 - 1e-4], dtype=DOUBLE)
EPS = torch.finfo(DOUBLE).eps
COUNT = 16


def drawn(case: Case, data: Any) -> list[dict[str, Tensor]]:
    """Parameters of as many densities, less those of which the error says that there are none."""
    found = []
    for _ in range(COUNT):
        row = {}
        for name, value in case.parameters.items():
            size = int(np.prod(np.shape(value)))
            numbers = data.draw(strategies.lists(DOMAINS[name], min_size=size, max_size=size))
            row[name] = torch.tensor(numbers, dtype=DOUBLE).reshape(np.shape(value))
        try:
            case.family.make(**row)
            found.append(row)
        except ValueError as error:
            assert "low" in row and str(error).startswith(("low must be", "low and high must be"))
    return found


@pytest.mark.parametrize("case", DRAWN, ids=str)
@given(data=strategies.data())
@settings(max_examples=2, phases=[Phase.explicit, Phase.generate])  # shrinking takes minutes
def test_quantities_are_finite_and_agree(case: Case, data: Any) -> None:
    rows = drawn(case, data)
    if not rows:
        return
    p = case.family.make(**{name: torch.stack([row[name] for row in rows]) for name in rows[0]})
    found = [p.mean, p.variance, p.entropy(), p.mode]
    if case.family.has_score:  # else these may be infinite
        found += [p.log_normalizer, p.tsallis_entropy()]
    assert all(value.isfinite().all() for value in found)
    t = p.icdf(LEVELS.unsqueeze(-1))
    assert (t.diff(dim=0) >= 0).all()
    moved = EPS * p.prob(t) * (t.abs() + p.stddev)
    # In the tail of a base, log densities are differences of large ones.
    lost = EPS * p.log_mass.abs() if isinstance(p, Truncated) else torch.zeros_like(p.alpha)
    assert ((p.cdf(t) - LEVELS.unsqueeze(-1)).abs() < 100 * (moved + EPS + lost)).all()
    assert (p.prob(p.mode) >= p.prob(t).amax(0) * (1 - 1e-6)).all()
    for q, quantiles, *rounding in zip(p, t.mT.contiguous(), lost, moved.amax(0), strict=True):
        close = {"rtol": 1e-7 + 4 * rounding[0].item(), "atol": 1e-9 + 4 * rounding[1].item()}
        torch.testing.assert_close(between(q, quantiles), LEVELS.diff(), **close)


def between(p: SparseDistribution, t: Tensor) -> Tensor:
    """Integrals of the density between locations, cut where it may not be smooth."""
    cuts = [c for c in p._cuts().tolist() if t[0] < c < t[-1]]
    marks = sorted({*t.tolist(), *cuts})
    rules = [tanh_sinh(0.1, a, b) for a, b in pairwise(marks)]
    nodes, weights = (torch.as_tensor(np.stack(x)) for x in zip(*rules, strict=True))
    parts = (weights * p.prob(nodes)).sum(-1)
    index = torch.searchsorted(t, torch.tensor(marks[:-1], dtype=DOUBLE), right=True) - 1
    return torch.zeros(len(t) - 1, dtype=DOUBLE).index_add(0, index, parts)
