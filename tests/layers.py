"""Attention layers and their inputs for tests."""

from typing import Any

import pytest
import torch
from battery import DOUBLE
from torch import Tensor

from sparsefam.attention import ContinuousAttention, KernelScore, QuadraticScore, RidgeRegression
from sparsefam.bases import GaussianRBF

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]

SCORES = ["quadratic", "local", "moments", "kernel", "mixture", "content"]
every_score = pytest.mark.parametrize("score", SCORES)
# Scores and whether discrete contexts are added.
KINDS = [*((score, False) for score in SCORES), ("moments", True), ("quadratic", True)]


def make_layer(
    score: Any = "quadratic", combine: bool = False, alpha: Any = 2.0, **options: Any
) -> Any:
    """A layer of two heads on four channels, in float64 and batch first."""
    ndim = options.setdefault("ndim", 1)
    low, high = options.get("domain", (0.0, 1.0))
    if "basis" not in options and ndim == 1:
        basis = GaussianRBF.grid(10, 0.15 * (high - low), low=low, high=high)
        options = {"basis": basis} | options
    elif "basis" not in options:
        options = {"basis": GaussianRBF.grid(9, 0.3, ndim=ndim)} | options
    made: Any = score
    if score == "kernel":
        given = {k: options.pop(k) for k in ("points", "kernel", "normalization") if k in options}
        made = KernelScore(**{"points": 8 if ndim == 1 else 9} | given)
    if score == "mixture":
        made = QuadraticScore(options.pop("components", 3))
    if "penalty" not in options:
        options = {"smoothing": 0.1} | options
    del options["ndim"]
    options = {"batch_first": True, "dtype": DOUBLE} | with_regression(**options)
    return located(ContinuousAttention(4, 2, alpha=alpha, score=made, combine=combine, **options))


def with_regression(**options: Any) -> dict[str, Any]:
    """Options of a layer, with the regression that some of these describe."""
    names = "basis", "penalty", "smoothing", "domain", "validate_args"
    given = {name: options.pop(name) for name in names if name in options}
    return {"regression": RidgeRegression(**given)} | options


def located(layer: Any) -> Any:
    """The layer, with queries spread over the domain where its score has to know where they are."""
    if layer.score_proj.reads_positions:
        layer.register_forward_pre_hook(locate_queries, with_kwargs=True)
    return layer


def locate_queries(layer: Any, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Add `query_positions` to the inputs of a layer that needs them."""
    query, *sequence = inputs
    if "query_positions" not in options and not any(query is x for x in sequence[:2]):
        options = {**options, **spread(layer, query)}
    return inputs, options


def spread(layer: Any, query: Tensor) -> dict[str, Tensor]:
    """Positions (Lq,) or (Lq, D) on the diagonal of the domain, if the score reads them."""
    if not layer.score_proj.reads_positions:
        return {}
    count = query.shape[0 if query.dim() == 2 or not layer.batch_first else 1]
    low, high = torch.tensor(layer.regression.domain, dtype=DOUBLE).T
    share = torch.arange(1, count + 1, dtype=DOUBLE).unsqueeze(-1) / (count + 1)
    positions = (low + (high - low) * share).to(query)
    return {"query_positions": positions.squeeze(-1) if positions.shape[-1] == 1 else positions}


def join(layer: Any, heads: Tensor) -> Tensor:
    """The output of a layer from the contexts of its heads (B, Lq, heads, E)."""
    joined: Tensor = layer.out_proj(heads.flatten(2)) * layer.layer_scale
    return joined


def data(length: int = 9, ndim: int | None = None, dtype: torch.dtype = DOUBLE) -> Inputs:
    """Two examples: queries (2, 3, 4), keys and values (2, length, 4), positions."""
    query = torch.randn(2, 3, 4, dtype=dtype)
    key, value = torch.randn(2, 2, length, 4, dtype=dtype)
    tail = () if ndim in (None, 1) else (ndim,)
    return query, key, value, torch.rand(2, length, *tail, dtype=dtype)
