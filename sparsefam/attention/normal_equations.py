"""Normal equations of regressions: sums over observations, and penalties by cross-validation."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Size, Tensor

from ._masks import check_shape, require_all

__all__ = ["NormalEquations", "check_equations", "gcv_penalty"]

# Range of cross-validated penalties, relative to the trace of the Gram matrix.
_LOWEST, _HIGHEST = 1e-11, 1e3
# Points of the first grid of penalties and of each refinement, and refinements.
_COARSE, _FINE, _REFINEMENTS = 65, 17, 5
_TINY = 1e-200
# Differences in log GCV below this are ties.
_TIE = 1e-11


class NormalEquations(NamedTuple):
    r"""Sums over positions, in float64: all that `RidgeRegression` keeps of its observations.

    The sums over two pieces of a sequence add up to the sums over the whole; see `plus`.

    Attributes:
        gram: $F^\top F$, shape (B, N, N), or (1, N, N) if all examples share their positions.
        cross: $F^\top H$, shape (B, N, E).
        sum_of_squares: $\lVert H \rVert^2$, shape (B,).
        num_observations: Number of observations, or the sum of their weights, shape (B,).
        sum_of_functions: $F^\top 1$, shape (B, N) or (1, N), as `gram`.
        sum_of_values: $H^\top 1$, shape (B, E).
    """

    gram: Tensor
    cross: Tensor
    sum_of_squares: Tensor
    num_observations: Tensor
    sum_of_functions: Tensor
    sum_of_values: Tensor

    def plus(
        self, other: "NormalEquations", forgetting_factor: Tensor | float = 1.0
    ) -> "NormalEquations":
        """Add the sums over other positions of the same examples.

        Args:
            other: Sums of the same sizes.
            forgetting_factor: Factor of these sums, from 0 to 1, shape () or (B,). 1 forgets
                nothing, 0 forgets all, NaN included.

        Raises:
            ValueError: If the sizes differ, or `forgetting_factor` has another shape or range.
        """
        check_equations("other", other, self.cross.shape)
        cross = self.cross
        weights = torch.as_tensor(forgetting_factor, dtype=cross.dtype, device=cross.device)
        check_shape("forgetting_factor", weights, (), self.num_observations.shape)
        rule = "forgetting_factor must be from 0 to 1"
        require_all((weights >= 0) & (weights <= 1), rule, weights)
        # The old sums are replaced where their weight is 0, since 0 times NaN is NaN.
        sums = []
        for old, new in zip(self, other, strict=True):
            weight = weights.reshape([*weights.shape, *[1] * (old.ndim - 1)])
            sums.append(weight * torch.where(weight == 0, 0, old) + new)
        return NormalEquations(*sums)

    def detach(self) -> "NormalEquations":
        """Return the same numbers, cut off from the graph."""
        return NormalEquations(*(x.detach() for x in self))


def check_equations(name: str, statistics: NormalEquations, shape: Size) -> None:
    """Raise ValueError unless `cross` has the shape (B, N, E), and the other sums fit it.

    The name is that of the statistics in messages.
    """
    if not isinstance(statistics, NormalEquations):
        raise ValueError(f"{name} must be a NormalEquations, got {type(statistics).__name__}")
    batch, size, channels = shape
    check_shape(f"{name}.cross", statistics.cross, tuple(shape))
    check_shape(f"{name}.gram", statistics.gram, (batch, size, size), (1, size, size))
    check_shape(f"{name}.sum_of_squares", statistics.sum_of_squares, (batch,))
    check_shape(f"{name}.num_observations", statistics.num_observations, (batch,))
    check_shape(f"{name}.sum_of_functions", statistics.sum_of_functions, (batch, size), (1, size))
    check_shape(f"{name}.sum_of_values", statistics.sum_of_values, (batch, channels))


@torch.no_grad()
def gcv_penalty(statistics: NormalEquations) -> Tensor:
    r"""Minimize generalized cross-validation for each example; return penalties of shape (B,).

    $$\mathrm{GCV}(\lambda) = \frac{n \lVert H - F C_\lambda \rVert^2}
        {[n - \operatorname{tr} F (F^\top F + \lambda I)^{-1} F^\top]^2}$$

    The range is from $10^{-11}$ to $10^3$ times the trace of $F^\top F$. Residuals below rounding
    times $\sqrt{\operatorname{tr} F^\top F / \lambda}\, \lVert H \rVert^2$, which the statistics
    cannot resolve, are replaced by that bound. Of penalties that tie the smallest is chosen.
    Derivatives take the penalties as given.

    References:
        Golub, Heath and Wahba (1979), Generalized Cross-Validation as a Method for Choosing a Good
        Ridge Parameter. Technometrics 21
    """
    log_gcv = _log_gcv(statistics)
    trace = _trace(statistics.gram).expand_as(statistics.cross[..., 0, :1])
    lowest, highest = (trace * _LOWEST).log(), (trace * _HIGHEST).log()
    low, high = lowest, highest
    # GCV may have several minima, so a grid comes first. Each refinement has a grid on the two
    # steps around the best point, which divides the step by eight.
    for count in (_COARSE, *[_FINE] * _REFINEMENTS):
        grid = torch.linspace(0, 1, count, dtype=trace.dtype, device=trace.device)
        points = low + (high - low) * grid
        height = log_gcv(points)
        # The first of equals, so that rounding does not choose among penalties of a flat curve.
        ties = height <= height.amin(-1, keepdim=True) + _TIE
        best = points.gather(-1, ties.byte().argmax(-1, keepdim=True))
        step = (high - low) / (count - 1)
        low, high = torch.maximum(best - step, lowest), torch.minimum(best + step, highest)
    return best.squeeze(-1).exp()


def _log_gcv(statistics: NormalEquations) -> Callable[[Tensor], Tensor]:
    """Return a function from log penalties (B, P) to log GCV plus a bound on its rounding.

    The constant factor n of GCV is left out.
    """
    gram, cross, squares, count, *_ = statistics
    eigenvalues, vectors = torch.linalg.eigh(gram)
    # In the eigenbasis F'F = U diag(e) U', with b = U'F'H, the residual sum of squares is
    # |H|^2 - sum b^2 / (e + l) (1 + l / (e + l)), and tr F (F'F + l I)^-1 F' = sum e / (e + l):
    # Golub, Heath and Wahba (1979). Every penalty then costs O(N).
    eps, size = torch.finfo(gram.dtype).eps, gram.shape[-1]
    # Eigenvalues that are zero but for rounding have no degrees of freedom.
    least = size * eps * eigenvalues[..., -1:]
    eigenvalues = torch.where(eigenvalues > least, eigenvalues, 0).unsqueeze(-2)
    projections = (vectors.mT @ cross).square().sum(-1).unsqueeze(-2)
    trace, squares, count = _trace(gram), squares.unsqueeze(-1), count.unsqueeze(-1)

    def log_gcv(log_penalty: Tensor) -> Tensor:
        """Return log GCV at penalties, from and to shape (B, P)."""
        # (B, P, 1), beside eigenvalues (B, 1, N).
        penalty = log_penalty.exp().unsqueeze(-1)
        shrunk = penalty / (eigenvalues + penalty)
        residual = squares - (projections / (eigenvalues + penalty) * (1 + shrunk)).sum(-1)
        # A bound on the rounding of the residual: the statistics resolve nothing below.
        noise = 4 * eps * (trace / log_penalty.exp()).sqrt() * squares
        residual = torch.maximum(residual, noise).clamp_min(_TINY)
        # n - sum e / (e + l) = n - N + sum l / (e + l)
        freedom = (count - size + shrunk.sum(-1)).clamp_min(_TINY)
        # The rounding of log residual - 2 log freedom, from relative errors of both.
        error = noise / residual + 8 * eps * (count + size) / freedom
        return residual.log() - 2 * freedom.log() + error

    return log_gcv


def _trace(gram: Tensor) -> Tensor:
    """Return traces (B or 1, 1), at least tiny, as their logarithms are taken."""
    return gram.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True).clamp_min(_TINY)
