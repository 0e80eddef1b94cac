"""The same laws in float64: what a difference of two entropies leaves of float32 is too little."""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Independent

from ..numerics.copies import attributes, copied
from .adoption import adopted
from .base import SparseDistribution
from .foreign import class_name
from .foreign_line import ForeignOnLine
from .kernel_family import KernelDistribution
from .mixture import Mixture
from .multivariate_normal import MultivariateNormal
from .once import once

__all__ = ["widened"]


def widened(p: Any) -> Any:
    """The same law in float64: a density of this package, or `Independent` ones."""
    law = class_name(p)
    if law == "LowRankMultivariateNormal":
        p = MultivariateNormal(p.loc, p.covariance_matrix, validate_args=False)
    elif isinstance(p, Independent):
        found = adopted(p)
        if not isinstance(found, MultivariateNormal):
            base = widened(p.base_dist)
            return Independent(base, p.reinterpreted_batch_ndims, validate_args=False)
        p = found
    elif law == "Uniform":
        return ForeignOnLine(p)._uniform()
    return _doubled(adopted(p))


def _doubled(p: SparseDistribution) -> SparseDistribution:
    if isinstance(p, Mixture):
        parts = [_doubled(part) for part in p.parts.parts]
        whole = parts[0] if p.parts.batched else parts
        return Mixture(p.logits.double(), whole, validate_args=False)
    if isinstance(p, ForeignOnLine) and class_name(p.base) == "Uniform":
        return p._uniform()
    if isinstance(p, KernelDistribution):
        return p if p.alpha.dtype == torch.float64 else p.to_float64()
    new = copied(p)
    new._validate_args = False
    if p.alpha.dtype == torch.float64:
        return new
    for name, value in attributes(new).items():
        if isinstance(getattr(type(p), name.removesuffix("_detached"), None), once):
            delattr(new, name)
        elif isinstance(value, Tensor) and value.is_floating_point():
            setattr(new, name, value.double())
    return new
