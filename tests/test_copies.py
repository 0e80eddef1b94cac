"""Copies, as compiled graphs make them: by the names in the code of methods."""

import pytest
import torch
from battery import Case, interior
from cases import SCALARS

from sparsefam.numerics.validation import copied


@pytest.mark.parametrize("case", SCALARS, ids=str)
def test_they_answer_as_the_original(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    p = case()
    t = interior(p)
    expected = p.log_prob(t)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    q, wide = copied(p), p.expand((2, *p.batch_shape))
    monkeypatch.undo()
    assert q is not p and torch.equal(q.log_prob(t), expected)
    torch.testing.assert_close(wide.log_prob(t.unsqueeze(1))[:, 1], expected)
