"""The ridge penalty: of generalised cross-validation, from sums over positions, and too small."""

from typing import NamedTuple

import torch
from torch import Tensor

from ..numerics.validation import differentiable_once
from .observations import require
from .statistics import Statistics

__all__ = ["check_factor", "cross_validated"]

# Of the trace of the Gram matrix: where penalties are looked for.
_LOWEST, _HIGHEST = 1e-11, 1e3
_COARSE, _FINE = 65, 17
_ZOOMS, _STEPS = 3, 4
_TINY = 1e-200
# Differences in log GCV that are none, and how many roundings make a bend that is one.
_EQUAL, _RESOLVED = 1e-11, 1e3


def cross_validated(statistics: Statistics) -> Tensor:
    r"""The penalty that minimises generalised cross-validation, for each example, shape (B,).

    $$\mathrm{GCV}(\lambda) = \frac{n \lVert H - F C_\lambda \rVert^2}
        {[n - \operatorname{tr} F (F^\top F + \lambda I)^{-1} F^\top]^2}$$

    between $10^{-11}$ and $10^3$ times the trace of $F^\top F$, whose eigenvalues make every value
    of it O(N) work. What the statistics cannot resolve, residuals below rounding times
    $\sqrt{\operatorname{tr} F^\top F / \lambda}\, \lVert H \rVert^2$, is no reason to prefer a
    penalty, nor are differences within rounding, as of single observations, for which all penalties
    are as good: of these it is the smallest.

    The penalty has first derivatives: those of the implicit function that makes the slope of GCV
    zero, or where the minimum is at an end of the range, or where residuals can no longer be
    resolved, those of the trace.

    References:
        Golub, Heath and Wahba (1979), Generalized Cross-Validation as a Method for Choosing a Good
        Ridge Parameter. Technometrics 21
    """
    with torch.no_grad():
        curve = _Curve.of(statistics)
        log_penalty = _minimum(curve)
        shape = curve.at(log_penalty.unsqueeze(-1))
        flat, bent = shape.slope.abs() < 1e-6, (shape.bend > 1e-6) & _bent(shape)
        stationary = (flat & bent).squeeze(-1)
        rate = torch.where(stationary, 1 / shape.bend.squeeze(-1), 0)
        penalty = log_penalty.exp()
    if not torch.is_grad_enabled():
        return penalty
    trace, slope = _trace(statistics.gram).squeeze(-1), _slope(statistics, penalty, stationary)
    moved = torch.where(stationary, -rate * (slope - slope.detach()), trace / trace.detach() - 1)
    return penalty * (1 + differentiable_once(moved))


def check_factor(gram: Tensor, factor: Tensor, failed: Tensor, penalty: Tensor | float) -> None:
    """Raises ValueError if a penalised matrix (B or 1, N, N) is singular to rounding."""
    pivots = factor.diagonal(dim1=-2, dim2=-1).square().amin(-1)
    largest = gram.diagonal(dim1=-2, dim2=-1).amax(-1)
    valid = (failed == 0) & (pivots > gram.shape[-1] * torch.finfo(gram.dtype).eps * largest)
    rule = "penalty must exceed the rounding errors of the basis's Gram matrix"
    require(valid, rule, torch.zeros_like(pivots) + penalty)


class _Shape(NamedTuple):
    """log GCV, its first two derivatives in log penalty, and what rounding may do to it."""

    height: Tensor
    slope: Tensor
    bend: Tensor
    doubt: Tensor


class _Curve(NamedTuple):
    """What GCV depends on: eigenvalues (B or 1, 1, N), and by them the energy of F'H (B, 1, N).

    The trace, the energy and the number are (B or 1, 1).
    """

    trace: Tensor
    spectrum: Tensor
    weights: Tensor
    energy: Tensor
    number: Tensor

    @classmethod
    def of(cls, statistics: Statistics) -> "_Curve":
        gram, cross, energy, number = (x.detach() for x in statistics)
        spectrum, vectors = torch.linalg.eigh(gram)
        # What is zero but for rounding leaves no trace in the degrees of freedom.
        noise = spectrum.shape[-1] * torch.finfo(spectrum.dtype).eps * spectrum[..., -1:]
        spectrum = torch.where(spectrum > noise, spectrum, 0)
        weights = (vectors.mT @ cross).square().sum(-1)
        spectrum, weights = spectrum.unsqueeze(-2), weights.unsqueeze(-2)
        return cls(_trace(gram), spectrum, weights, energy.unsqueeze(-1), number.unsqueeze(-1))

    def at(self, log_penalty: Tensor) -> _Shape:
        """The curve at penalties (B, K)."""
        penalty = log_penalty.exp().unsqueeze(-1)
        whole = self.spectrum + penalty
        lost = penalty / whole
        kept = 1 - lost
        share = self.weights / whole
        residual = self.energy - (share * (1 + lost)).sum(-1)
        eps = torch.finfo(penalty.dtype).eps
        noise = 4 * eps * (self.trace / log_penalty.exp()).sqrt() * self.energy
        known = residual > noise
        residual = torch.where(known, residual, noise).clamp_min(_TINY)
        rise = torch.where(known, 2 * (share * lost.square()).sum(-1), -0.5 * noise) / residual
        bow = 2 * (share * lost.square() * (2 * kept - lost)).sum(-1)
        bow = torch.where(known, bow, 0.25 * noise) / residual
        free = (self.number - self.spectrum.shape[-1] + lost.sum(-1)).clamp_min(_TINY)
        free_rise = (kept * lost).sum(-1) / free
        free_bow = (kept * lost * (kept - lost)).sum(-1) / free
        return _Shape(
            residual.log() - 2 * free.log(),
            rise - 2 * free_rise,
            bow - rise.square() - 2 * (free_bow - free_rise.square()),
            noise / residual + 8 * eps * (self.number + self.spectrum.shape[-1]) / free,
        )


def _bent(shape: _Shape) -> Tensor:
    """Where the curve has a bend upwards that is no rounding."""
    return shape.bend > _RESOLVED * shape.doubt


def _minimum(curve: _Curve) -> Tensor:
    """Log penalties (B,): the best of a grid, of finer ones about it, and then Newton's steps."""
    unit = torch.linspace(0, 1, _COARSE, dtype=curve.energy.dtype, device=curve.energy.device)
    fine = torch.linspace(0, 1, _FINE, dtype=unit.dtype, device=unit.device)
    trace = curve.trace.expand(curve.energy.shape)
    low, high = (trace * _LOWEST).log(), (trace * _HIGHEST).log()
    ends = low, high
    for grid in (unit, *[fine] * _ZOOMS):
        places = low + (high - low) * grid
        shape = curve.at(places)
        height = shape.height + shape.doubt
        equal = height <= height.amin(-1, keepdim=True) + _EQUAL
        best = equal.byte().argmax(-1, keepdim=True)
        step = (high - low) / (len(grid) - 1)
        middle = places.gather(-1, best)
        low, high = torch.maximum(middle - step, ends[0]), torch.minimum(middle + step, ends[1])
    for _ in range(_STEPS):
        shape = curve.at(middle)
        newton = middle - shape.slope / shape.bend
        inside = _bent(shape) & (newton > low) & (newton < high)
        middle = torch.where(inside, newton, middle)
    return middle.squeeze(-1)


def _trace(gram: Tensor) -> Tensor:
    """The sum of all eigenvalues, (B or 1, 1)."""
    return gram.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True).clamp_min(_TINY)


def _slope(statistics: Statistics, penalty: Tensor, wanted: Tensor) -> Tensor:
    """The slope of log GCV in log penalty, (B,), as a function of the statistics.

    Where it is not wanted (B,), as nothing may be left to divide by, it is any finite number.
    """
    gram, cross, energy, number = statistics
    size = gram.shape[-1]
    unit = torch.eye(size, dtype=gram.dtype, device=gram.device)
    whole = gram + penalty[:, None, None] * unit
    factor = torch.linalg.cholesky_ex(torch.where(wanted[:, None, None], whole, unit))[0]
    inverse = torch.cholesky_inverse(factor)
    fitted = inverse @ cross
    residual = energy - (fitted * (cross + penalty[:, None, None] * fitted)).sum((-2, -1))
    trace = inverse.diagonal(dim1=-2, dim2=-1).sum(-1)
    free = torch.where(wanted, number - size + penalty * trace, 1)
    residual = torch.where(wanted, residual, 1)
    rise = 2 * penalty.square() * (fitted * (inverse @ fitted)).sum((-2, -1)) / residual
    return rise - 2 * penalty * (trace - penalty * inverse.square().sum((-2, -1))) / free
