"""Old names warn, name their replacement, and are the new objects."""

import pytest

from sparsefam import distributions
from sparsefam._deprecation import renamed


def test_old_names_warn_where_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    find = renamed("sparsefam.distributions", Epanechnikov="TruncatedParabola")
    monkeypatch.setattr(distributions, "__getattr__", find, raising=False)
    with pytest.warns(DeprecationWarning, match="use sparsefam.distributions.Trunc") as caught:
        from sparsefam.distributions import Epanechnikov  # type: ignore[attr-defined]
    assert Epanechnikov is distributions.TruncatedParabola
    assert {warning.filename for warning in caught} == {__file__}
    with pytest.raises(AttributeError, match="has no attribute 'Biweight'"):
        find("Biweight")
