"""What densities compute from their parameters and locations, for tests of derivatives."""

import copy
from collections.abc import Callable

import pytest
import torch
from battery import DOUBLE, SINGLE, Case, bases, interior
from cases import in_part, weighed
from torch import Tensor
from torch.distributions import kl_divergence

from sparsefam import Normal, SparseDistribution, Triangular, bregman_divergence, tsallis_divergence
from sparsefam.bases import Basis, Polynomial
from sparsefam.losses import fenchel_young
from sparsefam.scores import Quadratic

# A density, and locations or for icdf probabilities.
Function = Callable[[SparseDistribution, Tensor], Tensor]

SHARED: dict[str, Function] = {
    "log_prob": lambda p, x: p.log_prob(x),
    "prob": lambda p, x: p.prob(x),
    "mean": lambda p, x: p.mean,
    "variance": lambda p, x: p.variance,
    "entropy": lambda p, x: p.entropy(),
    "tsallis_entropy": lambda p, x: p.tsallis_entropy(),
    "log_normalizer": lambda p, x: p.log_normalizer,
    "escort": lambda p, x: p.escort(1.0).log_prob(x),
}
NUMBERS: dict[str, Function] = {
    "cdf": lambda p, x: p.cdf(x),
    "icdf": lambda p, x: p.icdf(x),
    "log_survival": lambda p, x: p.log_survival(x),
    "log_interval_prob": lambda p, x: p.log_interval_prob(x, x + 0.25),
    "moment": lambda p, x: p.moment(3, central=True) + p.moment(2),
    "covariance": lambda p, x: p.generalized_covariance(
        LINEAR[None], basis(x, None, "GaussianRBF"), beta=1.0
    ),
    "expect-callable": lambda p, x: p.expect(torch.cos, 128),
}
# Between two densities: of the locations x the other is made.
PAIRS: dict[str, Function] = {
    "kl": lambda p, x: kl_divergence(p, Normal(x, 2.0)),
    "tsallis": lambda p, x: tsallis_divergence(Triangular(x, 1.5), p, 0.5),
    "bregman": lambda p, x: bregman_divergence(p, Normal(x, 0.5), 1.5),
    "fenchel_young": lambda p, x: fenchel_young(Quadratic(x, 0.75), p, 1.5, reduction="none"),
}
VECTORS: dict[str, Function] = {
    "covariance_matrix": lambda p, x: p.covariance_matrix,
    "covariance": lambda p, x: p.generalized_covariance(
        LINEAR[x.shape[-1]], basis(x, x.shape[-1], "GaussianRBF"), beta=1.0
    ),
    "expect-callable": lambda p, x: p.expect(torch.cos, 16),
}

# Exact in both precisions, and made once: a compiled graph cannot check their arguments.
BASES = {
    (dim, dtype): bases(dim, dtype) for dim in (None, 1, 2, 3, 8) for dtype in (SINGLE, DOUBLE)
}
LINEAR = {dim: Polynomial(1, ndim=dim) for dim in (None, 1, 2, 3, 8)}


def basis(x: Tensor, dim: int | None, name: str) -> Basis:
    """In the type and on the device of x."""
    found = BASES[dim, x.dtype][name]
    return found if x.device.type == "cpu" else copy.deepcopy(found).to(x.device)


def functions(case: Case) -> dict[str, Function]:
    """All that a case is asked."""
    own = VECTORS if case.event_shape else NUMBERS | PAIRS
    shared = {k: v for k, v in SHARED.items() if k not in case.family.constant}
    expectations = {
        f"expect-{name}": lambda p, x, name=name: p.expect(basis(x, case.family.dim, name))
        for name in BASES[case.family.dim, DOUBLE]
    }
    return shared | own | expectations


# What transforms are asked of some families: of one with a function that is differentiated in its
# argument, where they are slow, and of those of whose class another member is asked everything.
FEW = ("log_prob", "entropy", "expect-GaussianRBF")
ASKED_FEW = (
    *("LocationScale-quartic", "BetaGaussian-3", "BetaGaussian-inf", "BetaLaplace-inf"),
    "KernelDeformedExp-2.0-outside",
)


def asked(case: Case, few: bool = False) -> list[str]:
    """Names of all functions, or few of some families."""
    few = few and case.family.name in ASKED_FEW
    return [x for x in functions(case) if not few or x in FEW]


def every_function(
    cases: list[Case],
    slow: tuple[str, ...] = (),
    few: bool = False,
    part: tuple[int, int] = (0, 1),
) -> pytest.MarkDecorator:
    """All functions of all cases; some of them slow, and all but one part of so many."""
    rows = [weighed(case, name, slow=name in slow) for case in cases for name in asked(case, few)]
    return pytest.mark.parametrize(("case", "name"), in_part(rows, *part))


def arguments(case: Case, name: str, dtype: torch.dtype = DOUBLE) -> tuple[Tensor, ...]:
    """The parameters and x, all requiring grad."""
    p = case(SINGLE)
    x = interior(p, 3)[:2]
    if name == "icdf":
        x = torch.tensor([0.01, 0.8]).reshape(2, *(1,) * len(p.batch_shape)).expand(x.shape)
    leaves = (v.detach().to(dtype).requires_grad_() for v in case.leaves(SINGLE).values())
    return (*leaves, x.to(dtype, copy=True).requires_grad_())


def function(case: Case, name: str) -> Callable[..., Tensor]:
    chosen = functions(case)[name]

    def evaluate(*leaves: Tensor) -> Tensor:
        *values, x = leaves
        p = case.of(**dict(zip(case.parameters, values, strict=True)))
        return chosen(p, x)

    return evaluate


def gradients(value: Tensor, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Gradients of a weighted sum, of which no part cancels another; infinite terms give none.

    Some densities keep what they have computed, with its graph.
    """
    weights = torch.linspace(0.5, 1.7, value.numel(), dtype=value.dtype, device=value.device)
    weights = weights.reshape(value.shape)
    options = {"allow_unused": True, "materialize_grads": True, "retain_graph": True}
    return list(torch.autograd.grad(value, inputs, weights, **options))
