"""The battery: bad parameters and values are refused by name."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from battery import BAD_VALUES, DOUBLE, Case, bounded, scale_of
from cases import (
    SCALARS,
    every_case,
    every_multivariate_scalar,
    every_pair,
    every_scalar,
)
from torch import Tensor

import sparsefam as sf


def constants(case: Case) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in case.leaves().items()}


@every_case
def test_bad_parameters_are_named_with_their_value(case: Case) -> None:
    for name in case.parameters:
        for value in BAD_VALUES[name]:
            leaves = constants(case)
            leaves[name].view(-1)[-1] = value
            with pytest.raises(ValueError, match=rf"\b{name}\b[\s\S]*(got|values)[\s\S]*{value:g}"):
                case.family.make(**leaves)


@every_pair
def test_shapes_that_do_not_broadcast_are_named(case: Case) -> None:
    leaves, (first, second) = constants(case), list(case.parameters)[:2]
    for name, count in ((first, 2), (second, 3)):
        leaves |= case.spread((count,), {name: leaves[name]})
    with pytest.raises(ValueError, match=rf"{first} \(2,.*\), {second} \(3,.*\)"):
        case.family.make(**leaves)


@every_case
def test_values_of_a_wrong_kind_are_refused(case: Case) -> None:
    p = case()
    shape = p.batch_shape + p.event_shape
    for function in [p.log_prob] if case.event_shape else [p.log_prob, p.cdf, p.icdf, p.log_cdf]:
        with pytest.raises(ValueError, match="value must be real, got .*nan"):
            function(torch.full(shape, math.nan, dtype=DOUBLE))
        with pytest.raises(ValueError, match="value must be a tensor, got float"):
            function(0.5)
        for dtype in (torch.bool, torch.complex128):
            with pytest.raises(ValueError, match=f"value must be real numbers, got {dtype}"):
                function(torch.zeros(shape, dtype=dtype))
        if p.batch_shape:
            with pytest.raises(ValueError, match=r"value must broadcast.*\(2, 3\).*\(7,.*\)"):
                function(torch.zeros(7, *p.event_shape, dtype=DOUBLE))


NUMBERS_ONLY: dict[str, Callable[[Any, torch.Tensor], object]] = {
    "survival": lambda p, t: p.survival(t),
    "log_cdf": lambda p, t: p.log_cdf(t),
    "log_survival": lambda p, t: p.log_survival(t),
    "interval_prob": lambda p, t: p.interval_prob(t, t),
    "log_interval_prob": lambda p, t: p.log_interval_prob(t, t),
    "median": lambda p, t: p.median,
    "moment": lambda p, t: p.moment(2),
    "skewness": lambda p, t: p.skewness,
    "kurtosis": lambda p, t: p.kurtosis,
    "highest_density": lambda p, t: p.highest_density(0.5),
    "highest_density_mass": lambda p, t: p.highest_density_mass(t),
}


@every_multivariate_scalar
def test_vectors_have_no_distribution_functions(case: Case) -> None:
    p = case()
    t = torch.zeros(p.event_shape, dtype=DOUBLE)
    # Of mixtures and kernel families the arguments decide whether they are densities of numbers.
    for name, function in NUMBERS_ONLY.items():
        if not isinstance(p, sf.Univariate):
            assert not hasattr(p, name)
            continue
        with pytest.raises(NotImplementedError, match="exists for densities of numbers"):
            function(p, t)


@every_multivariate_scalar
def test_values_and_coordinates_of_another_dimension_are_refused(case: Case) -> None:
    p, dim = case(), case.event_shape[0]
    for shape in ((), (dim + 1,), (4, dim + 1), (dim, dim + 1)):
        with pytest.raises(ValueError, match=rf"value must .*event shape \({dim},\).*got shape"):
            p.log_prob(torch.zeros(shape, dtype=DOUBLE))
    for bad in ([0.5], "a", [], [dim], 0.5, None, [True], ["a"]):
        with pytest.raises(ValueError, match="indices must be distinct integers from .*got"):
            p.marginal(bad)


@every_multivariate_scalar
def test_what_is_no_factor_is_named(case: Case) -> None:
    leaves, dim = constants(case), case.event_shape[0]
    eye = torch.eye(dim + 1, dtype=DOUBLE)
    for factor in (eye[:, :dim], eye[:dim], eye[0], torch.tensor(1.0, dtype=DOUBLE)):
        with pytest.raises(ValueError, match="scale_tril must .*square.*got"):
            case.family.make(**leaves | {"scale_tril": factor})
    other = rf"scale_tril must .*{dim}, {dim}\) like loc .* got shape \({dim + 1}, {dim + 1}\)"
    with pytest.raises(ValueError, match=other):
        case.family.make(**leaves | {"scale_tril": eye})
    with pytest.raises(ValueError, match="loc must .*got"):
        case.family.make(**leaves | {"loc": torch.tensor(0.5, dtype=DOUBLE)})
    if dim > 1:
        upper = leaves["scale_tril"].clone()
        upper[0, dim - 1] = 0.375
        with pytest.raises(ValueError, match=r"scale_tril[\s\S]*lower[\s\S]*0\.375"):
            case.family.make(**leaves | {"scale_tril": upper})
    leaves["scale_tril"][-1, -1] = 0.0
    with pytest.raises(ValueError, match=r"scale_tril[\s\S]*singular[\s\S]*(jitter|add)"):
        case.family.make(**leaves)


@every_scalar
def test_validation_may_be_switched_off(case: Case) -> None:
    leaves = constants(case)
    name = scale_of(case)
    # Without a scale there is nothing to do without: nodes are chosen for finite scores.
    broken = {} if name is None else {name: -leaves[name]}
    p = case.family.make(**leaves | broken, validate_args=False)
    p.log_prob(torch.full(p.event_shape, math.nan, dtype=DOUBLE))
    q = case.family.make(**leaves, validate_args=False)
    assert q.expand((2,))._validate_args is False
    assert q.escort(1.0)._validate_args is False


@every_scalar
def test_arguments_of_a_wrong_kind_are_named(case: Case) -> None:
    p, name = case(), next(iter(case.parameters))
    rule = rf"{name} must be a (number or a |floating )?tensor.*, got 'left'"
    with pytest.raises(ValueError, match=rule):
        case.family.make(**constants(case) | {name: "left"})
    if hasattr(p.support, "intervals") or bounded(p):
        with pytest.raises(ValueError, match="value must be a tensor, got str"):
            p.support.check("a")


every_formula = pytest.mark.parametrize(
    "case", [case for case in SCALARS if not case.family.signed], ids=str
)


@every_formula
def test_numbers_beyond_the_range_of_floats_are_named(case: Case) -> None:
    for name in case.parameters:
        if not case.family.event_shape and not case.family.ranks:
            with pytest.raises(ValueError, match=rf"{name} must be .*got 1000"):
                case.family.make(**constants(case) | {name: 10**400})


@every_formula
def test_parameters_may_be_on_the_meta_device(case: Case) -> None:
    p = case.family.make(**{k: v.to("meta") for k, v in constants(case).items()})
    t = torch.zeros(3, *p.event_shape, dtype=DOUBLE, device="meta")
    assert p.log_prob(t).shape == (3,)
    assert (p.entropy().is_meta, p.mean.shape) == (True, p.event_shape)
