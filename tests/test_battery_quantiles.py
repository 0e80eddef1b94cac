"""The battery: distribution functions and quantiles of numbers."""

import pytest
import torch
from battery import DOUBLE, Case, ends
from cases import every_dtype, every_univariate_case, every_univariate_scalar

from sparsefam.numerics.roots import increasing_root


@every_univariate_case
def test_levels_must_be_probabilities(case: Case) -> None:
    p = case()
    for bad in (-0.01, 1.01):
        with pytest.raises(ValueError, match=rf"value must be a probability.*{bad}"):
            p.icdf(torch.full(p.batch_shape, bad, dtype=DOUBLE))


@every_univariate_case
def test_cdf_keeps_the_digits_of_the_lower_tail(case: Case) -> None:
    p = case()
    lower, _ = ends(p)
    start = torch.maximum(lower, p.mean - 6 * p.stddev)
    shares = [0.003, 0.1, 0.4, 0.9, 0.999, 1.0, 1.001, 1.3, 1.9]
    t = torch.stack([start + s * (p.mean - start) for s in shares])
    rows = t.reshape(len(t), -1).unbind(-1)
    for i, (r, row) in enumerate(zip(case.references, rows, strict=True)):
        expected = [r.integral(r.density, upper=x) for x in row.tolist()]
        found = p.cdf(t).reshape(len(t), -1)[:, i]
        torch.testing.assert_close(found, torch.tensor(expected, dtype=DOUBLE), rtol=1e-9, atol=0)


@every_univariate_case
def test_cdf_ends_at_zero_and_one(case: Case) -> None:
    p = case()
    lower, upper = ends(p)
    torch.testing.assert_close(p.cdf(lower), torch.zeros_like(lower), rtol=0, atol=1e-15)
    torch.testing.assert_close(p.cdf(upper), torch.ones_like(upper), rtol=0, atol=1e-15)
    assert torch.equal(p.cdf(p.mean - 1e3 * p.stddev), torch.zeros_like(lower))
    end, rounding = p.cdf(p.mean + 1e3 * p.stddev), case.rounding(DOUBLE)
    torch.testing.assert_close(end, torch.ones_like(lower), rtol=0, atol=rounding)


@every_dtype
@every_univariate_scalar
def test_icdf_inverts_cdf_far_into_the_tails(case: Case, dtype: torch.dtype) -> None:
    p = case(dtype)
    u = torch.tensor([1e-6, 1e-4, 0.03, 0.3, 0.5, 0.7, 0.99, 1 - 1e-6], dtype=dtype)
    t = p.icdf(u)
    assert (t.diff() > 0).all()
    assert p.support.check(t).all()
    # As good as the rounding of t and of u allows, and of some tens of nodes where cdf is a sum.
    eps = torch.finfo(dtype).eps
    level = torch.ones_like(u) if case.family.signed else u
    allowed = eps * (p.prob(t) * (t.abs() + p.stddev) + level)
    assert ((p.cdf(t) - u).abs() < 16 * allowed).all()


@every_dtype
@every_univariate_scalar
def test_icdf_of_zero_and_one_are_the_ends(case: Case, dtype: torch.dtype) -> None:
    p = case(dtype)
    lower, upper = ends(p)
    eps = torch.finfo(dtype).eps
    for u, end in ((0.0, lower), (1.0, upper)):
        t = p.icdf(torch.tensor(u, dtype=dtype))
        torch.testing.assert_close(t, end, rtol=0, atol=4 * eps)


def test_an_end_is_the_root_where_rounding_puts_it_beyond() -> None:
    zero, one = torch.zeros(1, dtype=DOUBLE), torch.ones(1, dtype=DOUBLE)
    assert increasing_root(lambda x: (x - 1).clamp_max(-1e-17), zero, one) == 1
    assert increasing_root(lambda x: x.clamp_min(1e-17), zero, one) == 0
