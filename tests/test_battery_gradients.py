"""The battery: derivatives of two orders, edges, vmap and compilation."""

import copy
import math

import pytest
import torch
from battery import DOUBLE, Case, bases, bounded, frame, located, one_graph
from cases import BATCHES, SCALARS, compiled, every_case, every_dtype, in_part, weighed
from functions import PAIRS, arguments, asked, every_function, function, functions, gradients
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck


# Derivatives
@every_function(SCALARS, part=(0, 2))
def test_first_derivatives(case: Case, name: str) -> None:
    assert gradcheck(function(case, name), arguments(case, name), fast_mode=True)


# The roots behind icdf, of every evaluation, and integrals of pairs make their second derivatives
# the slow ones.
@every_function(SCALARS, slow=("icdf", "log_interval_prob", "moment", *PAIRS), part=(1, 4))
def test_second_derivatives(case: Case, name: str) -> None:
    inputs, once = arguments(case, name), case.family.once
    if once is None or name in once:
        with pytest.raises(RuntimeError, match="only first derivatives|second derivatives need"):
            gradgradcheck(function(case, name), inputs, fast_mode=True)
    else:
        assert gradgradcheck(function(case, name), inputs, fast_mode=True)


LEARNED = ("GaussianRBF", "Fourier", "BSpline", "Product")


@pytest.mark.parametrize(
    ("case", "name"),
    [
        weighed(case, name)
        for case in SCALARS
        for name in LEARNED
        if name in bases(case.family.dim, DOUBLE)
    ],
)
def test_derivatives_in_the_density_and_the_basis(case: Case, name: str) -> None:
    basis, leaves = bases(case.family.dim, DOUBLE)[name], case.leaves()
    state = {k: v for k, v in basis.state_dict().items() if v.is_floating_point()}

    def expectation(*values: Tensor) -> Tensor:
        learned = copy.deepcopy(basis)
        for key, value in zip(state, values[len(leaves) :], strict=True):
            path, _, attribute = key.rpartition(".")
            module = learned.get_submodule(path)
            delattr(module, attribute)
            setattr(module, attribute, value)
        return case.of(**dict(zip(leaves, values, strict=False))).expect(learned)

    inputs = (*leaves.values(), *(v.clone().requires_grad_() for v in state.values()))
    assert gradcheck(expectation, inputs, fast_mode=case.family.dim == 8)
    if name == "Fourier" and case.family.once is not None:
        assert gradgradcheck(expectation, inputs, fast_mode=True)


@every_dtype
@every_case
def test_densities_have_finite_derivatives_on_and_around_their_edges(
    case: Case, dtype: torch.dtype
) -> None:
    (mean, _), far = frame(case(dtype)), 1e3 * case(dtype).stddev
    edges = located(case(dtype), torch.tensor([-1.0, 1.0]))
    t = torch.cat(
        [
            *(edges, edges.nextafter(mean), edges.nextafter(2 * edges - mean)),
            torch.stack([mean - far, mean, mean + far]),
        ]
    )
    leaves = tuple(case.leaves(dtype).values())
    p = case.of(**dict(zip(case.parameters, leaves, strict=True)))
    t.requires_grad_()
    values = [p.log_prob(t), p.prob(t)] + ([] if case.event_shape else [p.cdf(t)])
    for value in values:
        assert not value.isnan().any()
        assert all(g.isfinite().all() for g in gradients(value, (*leaves, t)))


@every_dtype
@every_case
def test_off_the_support_all_is_zero(case: Case, dtype: torch.dtype) -> None:
    p = case(dtype)
    off = torch.tensor([-1 - 2e-4, 1 + 2e-4, 2e6] if bounded(p) else [])
    far = torch.full((2, *p.batch_shape, *p.event_shape), math.inf, dtype=dtype)
    far[1] *= -1
    if case.event_shape:
        far[1, ..., 1:] = 0.0  # only one coordinate is infinite
    t = torch.cat([located(p, off), far]).requires_grad_()
    leaves = case.leaves(dtype)
    p = case.of(**leaves)
    assert (p.log_prob(t) == -math.inf).all()
    assert (p.prob(t) == 0).all()
    for value in (p.log_prob(t), p.prob(t)):
        assert not any(g.any() for g in gradients(value, (*leaves.values(), t)))
    if not case.event_shape:
        slopes = gradients(p.cdf(t), (*leaves.values(), t))
        # In a gap the level depends on the parameters, though not on t.
        slopes = slopes if case.family.connected else slopes[-1:]
        assert max(g.abs().max() for g in slopes) <= case.rounding(dtype)


# Functional transforms
# Quantiles of kernel densities are found among panels, of which each level has its own, and
# their supports, which divergences ask for, are searched.
MAPPED = [
    weighed(case, name)
    for case in BATCHES
    for name in asked(case, few=True)
    if not (case.family.signed and name in ("icdf", *PAIRS))
]


@pytest.mark.parametrize(("case", "name"), in_part(MAPPED, 2, 4))
def test_vmap_over_parameters_is_one_by_one(case: Case, name: str) -> None:
    *leaves, x = (v.detach() for v in arguments(case, name))
    named = case.spread(case.batch_shape, dict(zip(case.parameters, leaves, strict=True)))
    columns = [v.flatten(0, 1)[[1, 5]] for v in named.values()]
    columns.append(x.flatten(1, 2).movedim(1, 0)[[1, 5]])
    evaluate = function(case, name)
    found = torch.vmap(evaluate)(*columns)
    rows = [[v.clone().requires_grad_() for v in row] for row in zip(*columns, strict=True)]
    expected = torch.stack([evaluate(*row) for row in rows])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)

    def total(*inputs: Tensor) -> Tensor:
        value = evaluate(*inputs)
        return torch.where(value.isfinite(), value, 0.0).sum()

    which = tuple(range(len(columns)))
    slopes = torch.vmap(torch.func.grad(total, which))(*columns)
    for i, row in enumerate(rows):
        exact = torch.autograd.grad(total(*row), row, allow_unused=True, materialize_grads=True)
        for slope, a in zip(slopes, exact, strict=True):
            torch.testing.assert_close(slope[i], a, rtol=1e-11, atol=1e-11)


@every_function(SCALARS, slow=("icdf", *PAIRS), few=True, part=(3, 4))
def test_forward_mode_is_reverse_mode(case: Case, name: str) -> None:
    inputs, evaluate = arguments(case, name), function(case, name)
    if not case.family.forward or name in case.family.backward_only:
        rule = "forward mode|only first derivatives"
        with pytest.raises((NotImplementedError, RuntimeError), match=rule):
            torch.func.jvp(evaluate, tuple(x.detach() for x in inputs), inputs)
        return
    value = evaluate(*inputs)
    tangents = tuple(
        torch.linspace(-0.7, 1.1, x.numel(), dtype=x.dtype).reshape(x.shape) for x in inputs
    )
    found = torch.func.jvp(evaluate, tuple(x.detach() for x in inputs), tangents)[1]
    weights = torch.linspace(0.5, 1.7, value.numel(), dtype=value.dtype).reshape(value.shape)
    along = zip(gradients(value, inputs), tangents, strict=True)
    expected = sum((slope * tangent).sum() for slope, tangent in along)
    torch.testing.assert_close((weights * found).sum(), expected, rtol=1e-9, atol=1e-11)


def traceable(case: Case) -> list[str]:
    """A density and an expectation of each family, what it asks for, and integrals to its ends."""
    few = "expect-GaussianRBF" if (case.family.dim or 1) <= 3 else "expect-Polynomial"
    integrals = ("entropy", "kl", "fenchel_young") if "low" in case.parameters else ()
    asked = {"log_prob", few, *integrals, *case.family.compiled}
    return [x for x in functions(case) if x in asked]


COMPILED = [compiled(case, name) for case in SCALARS for name in traceable(case)]


@pytest.mark.parametrize(("case", "name"), COMPILED)
def test_compiles_in_one_graph(case: Case, name: str, unchecked: None) -> None:
    inputs, evaluate = arguments(case, name), function(case, name)
    expected = evaluate(*inputs)
    slopes = gradients(expected, inputs)
    found = one_graph(evaluate)(*inputs)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(gradients(found, inputs), slopes, rtol=1e-11, atol=1e-13)
