"""Log densities and draws, with their gradients, beside those of torch.distributions."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily
from torch.distributions import MultivariateNormal as TorchMultivariateNormal
from torch.distributions import Normal as TorchNormal

import sparsefam as sf

from .report import Table, following
from .turns import processor_seconds

__all__ = ["PAIRS", "Pair", "density_table", "log_prob_error", "parameters"]

SIZES = (1_000, 30_000, 1_000_000)
# Members of a batch; each has its share of the draws.
_BATCH = 100

_Build = Callable[[Tensor, Tensor], Distribution]


class Pair(NamedTuple):
    """A density of ours and the one of torch that it stands beside, of the same parameters.

    Attributes:
        name: Ours.
        ours: Takes loc, and scale or scale_tril.
        theirs: The same.
        dim: Of events; 0 for numbers.
        through: Whether gradients go through draws of both.
    """

    name: str
    ours: _Build
    theirs: _Build
    dim: int = 0
    through: bool = True


def _biweight(loc: Tensor, scale: Tensor) -> Distribution:
    return sf.BetaGaussian(loc, scale, 1.5)


def _multivariate(loc: Tensor, scale_tril: Tensor) -> Distribution:
    return TorchMultivariateNormal(loc, scale_tril=scale_tril)


def _three(of: _Build, loc: Tensor, scale: Tensor) -> Distribution:
    """Components of equal weights, three apart."""
    apart = 3 * torch.arange(3, dtype=loc.dtype)
    return of(loc.unsqueeze(-1) + apart, scale.unsqueeze(-1).expand(*scale.shape, 3))


def _our_mixture(loc: Tensor, scale: Tensor) -> Distribution:
    return sf.Mixture(torch.zeros(3, dtype=loc.dtype), _three(sf.TruncatedParabola, loc, scale))


def _their_mixture(loc: Tensor, scale: Tensor) -> Distribution:
    weights = Categorical(logits=torch.zeros(*loc.shape, 3, dtype=loc.dtype))
    return MixtureSameFamily(weights, _three(TorchNormal, loc, scale))


PAIRS = (
    Pair("TruncatedParabola", sf.TruncatedParabola, TorchNormal),
    Pair("BetaGaussian, α = 3/2", _biweight, TorchNormal),
    Pair("TruncatedParaboloid, D = 2", sf.TruncatedParaboloid, _multivariate, 2),
    Pair("TruncatedParaboloid, D = 8", sf.TruncatedParaboloid, _multivariate, 8),
    Pair("Mixture of three", _our_mixture, _their_mixture, through=False),
)


def parameters(dim: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Of a batch, the same numbers in every dtype."""
    draw = torch.Generator().manual_seed(0)
    shape = (_BATCH, dim) if dim else (_BATCH,)
    loc, scale = torch.randn(shape, generator=draw), 0.5 + torch.rand(shape, generator=draw)
    if dim:
        below = 0.3 * torch.randn(*shape, dim, generator=draw).tril(-1)
        scale = below + scale.diag_embed()
    return loc.to(dtype).requires_grad_(), scale.to(dtype).requires_grad_()


def _log_prob(build: _Build, leaves: tuple[Tensor, Tensor], t: Tensor) -> None:
    torch.autograd.grad(build(*leaves).log_prob(t).sum(), leaves)


def _draw(build: _Build, leaves: tuple[Tensor, Tensor], count: int, through: bool) -> None:
    p = build(*leaves)
    if through:
        torch.autograd.grad(p.rsample((count,)).sum(), leaves)
    else:
        p.sample((count,))


def log_prob_error(build: _Build, dim: int, t: Tensor) -> float:
    """The largest difference of float32 from float64 where the density is positive."""
    found, truth = (
        build(*parameters(dim, dtype)).log_prob(t.to(dtype)).detach()
        for dtype in (torch.float32, torch.float64)
    )
    gaps = (found.double() - truth).abs()
    return float(gaps[found.isfinite() & truth.isfinite()].max())


def _rows(pair: Pair, sizes: Sequence[int], budget: float) -> list[list[str]]:
    leaves = parameters(pair.dim)
    rows: dict[str, list[str]] = {"log_prob": [], "rsample" if pair.through else "sample": []}
    for size in sizes:
        count = size // _BATCH
        # Inside the supports of ours, mostly, which have no gradient elsewhere.
        t = pair.ours(*leaves).sample((count,))
        for name, row in rows.items():
            call = (
                partial(_log_prob, leaves=leaves, t=t)
                if name == "log_prob"
                else partial(_draw, leaves=leaves, count=count, through=pair.through)
            )
            builds = {"ours": pair.ours, "theirs": pair.theirs}
            found = processor_seconds({k: partial(call, x) for k, x in builds.items()}, budget)
            row.extend(f"{1e9 * seconds / size:.0f}" for seconds in found.values())
    t = pair.ours(*leaves).sample((max(1, sizes[0] // _BATCH),))
    errors = (f"{log_prob_error(build, pair.dim, t):.0e}" for build in (pair.ours, pair.theirs))
    first, second = rows.items()
    return [[pair.name, first[0], *first[1], *errors], [pair.name, second[0], *second[1], "", ""]]


def density_table(sizes: Sequence[int] = SIZES, budget: float = 0.2) -> Table:
    """All pairs."""
    rows = [row for pair in following(PAIRS, "densities") for row in _rows(pair, sizes, budget)]
    columns = [f"{x}, {size}" for size in sizes for x in ("ours", "theirs")]
    return Table(
        "Nanoseconds a draw or a log density with the gradient in the parameters (but for "
        f"`sample`), {_BATCH} members of a batch, by how many in all; and the largest error of the "
        "log density in float32. Theirs: Normal, MultivariateNormal, MixtureSameFamily of normals.",
        ["densities", "what", *columns, "error, ours", "error, theirs"],
        rows,
    )
