"""The battery: what float32 keeps, and what becomes of extreme scales."""

import torch
from battery import DOUBLE, SINGLE, Case, interior, scale_of
from cases import BATCHES, SCALARS, every_case
from functions import arguments, every_function, function, functions, gradients
from torch import Tensor

# What is a logarithm has the absolute accuracy of one: it may cross zero.
LOGARITHMS = {
    *("log_prob", "escort", "entropy", "tsallis_entropy", "log_normalizer"),
    *("log_survival", "log_interval_prob"),
}


def error(found: Tensor, expected: Tensor, floor: float = 1e-20) -> float:
    return ((found.double() - expected).norm() / expected.norm().clamp_min(floor)).item()


@every_function(BATCHES, part=(1, 2))
def test_float32_keeps_its_digits(case: Case, name: str) -> None:
    inputs, exact_inputs = arguments(case, name, SINGLE), arguments(case, name)
    found, expected = (function(case, name)(*x) for x in (inputs, exact_inputs))
    assert found.dtype == SINGLE
    finite = expected.isfinite()
    assert torch.equal(found[~finite].double(), expected[~finite])
    assert error(found[finite], expected[finite], float(name in LOGARITHMS) or 1e-20) < 2e-6
    slopes, exact = gradients(found, inputs), gradients(expected, exact_inputs)
    total = torch.cat([g.flatten() for g in exact])
    # Where nodes are shared, a derivative that is zero is a sum that cancels.
    floor = found.abs().max().item() if case.family.signed and found.numel() else 1e-20
    assert error(torch.cat([g.flatten() for g in slopes]), total, floor) < 2e-5


@every_case
def test_values_of_another_type_are_taken_as_they_are(case: Case) -> None:
    p, single = case(), case(SINGLE)
    t = interior(single)
    whole = t.round().to(torch.int64)
    assert torch.equal(p.log_prob(whole), p.log_prob(whole.double()))
    # Numbers exact in both: what is computed has the digits of the coarser type.
    expected = p.prob(t.double())
    for found in (p.prob(t), single.prob(t.double())):
        torch.testing.assert_close(found.double(), expected, rtol=5e-6, atol=5e-6)


@every_function([case for case in SCALARS if scale_of(case) and not case.family.ranks], part=(0, 3))
def test_extreme_scales_give_numbers_or_a_clear_error(case: Case, name: str) -> None:
    for scale in (1e-30, 1e30):
        found = {}
        for dtype in (SINGLE, DOUBLE):
            *leaves, x = arguments(case, name, dtype)
            named = dict(zip(case.parameters, leaves, strict=True))
            key = scale_of(case) or ""
            factor = torch.tensor(scale / named[key].amax().item(), dtype=SINGLE).to(dtype)
            named[key] = (named[key] * factor).detach().requires_grad_()
            p = case.of(**named)
            if name != "icdf":
                shares = torch.tensor([-0.5, 0.0, 0.3], dtype=dtype)
                step = p.scale_tril[..., 0] if case.event_shape else p.scale
                x = p.loc + shares.reshape(3, *(1,) * step.dim()) * step
            try:
                value = functions(case)[name](p, x)
            except ValueError as error:
                assert "frequencies must be below" in str(error)
                continue
            assert not value[representable(case, name, named, x)].isnan().any()
            slopes = gradients(value, tuple(named.values()))
            # float32 has no square of these scales.
            if dtype == DOUBLE:
                assert not any(g.isnan().any() for g in slopes)
            found[dtype] = value.detach(), *slopes
        # The cosine of 1e30 is noise.
        if name.startswith("expect") and name != "expect-callable" and found:
            pairs = zip(found[SINGLE], found[DOUBLE], strict=True)
            for i, (single, double) in enumerate(pairs):
                # Terms of slopes, of about 1, cancel where the scale is small.
                close = {"rtol": 2e-6, "atol": 2e-6 if i else 5e-7}
                torch.testing.assert_close(single, double.float(), **close)


def representable(case: Case, name: str, named: dict[str, Tensor], x: Tensor) -> Tensor:
    """Which values are in the range of the dtype: of matrices, sums of squares of both signs.

    Numbers must not be NaN beyond it either.
    """
    exact = case.of(**{k: v.detach().double() for k, v in named.items()})
    values = functions(case)[name](exact, x.detach().double())
    return (values.abs() <= torch.finfo(x.dtype).max) | (not case.event_shape)
