r"""Covariances of functions that hardly vary where a density is, without cancellation.

Where Gaussians are wide against a density, $E[N_i N_j] - E[N_i]\,E[N_j]$ keeps no digit. But the
density is a (complex) mixture of normals $N(\mu, s A)$, for which with $t = \mu + L x$
$$N(t; c, S) = N(\mu; c, S)\,e^{g^\top x - x^\top P x/2}, \qquad
P = L^\top S^{-1} L, \quad g = L^\top S^{-1} (c - \mu),$$
$$\Phi(g, P) = \log E_s[e^{g^\top x - x^\top P x/2}]
= \tfrac{s}{2}\, g^\top (I + s P)^{-1} g - \tfrac12 \log|I + s P|$$
are small numbers. A wave is the same with $P = 0$ and an imaginary $g$. One path serves all that
is wide, for it need not know of them.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .contour import contour

__all__ = ["Mixture", "Tilt", "mixture", "tilted", "wide_gaussians", "wide_waves"]

# How many standard deviations of its logarithm a function may vary by to be called wide.
_WIDE = 0.5


class Mixture(NamedTuple):
    """Nodes s and weights, complex (n, *batch), whose products have imaginary parts that add up.

    Attributes:
        nodes: s.
        weights: Their imaginary parts add up to one.
        variance: Of x along any axis, (*batch).
    """

    nodes: Tensor
    weights: Tensor
    variance: Tensor

    def mean(self, values: Tensor) -> Tensor:
        """Of values at the nodes, (n, *batch, ...)."""
        extra = (1,) * (values.dim() - self.weights.dim())
        total: Tensor = (self.weights.reshape(*self.weights.shape, *extra) * values).imag.sum(0)
        return total


class Tilt(NamedTuple):
    """Gaussians as they vary over a density.

    Attributes:
        log_peak: Logarithm of the Gaussian at the centre, (*batch, N).
        slope: g, (*batch, N, D).
        curvature: P, (*batch, N, D, D).
        wide: Whether there is little variation, (*batch, N); where not, all else is zero.
    """

    log_peak: Tensor
    slope: Tensor
    curvature: Tensor
    wide: Tensor


def mixture(exponent: Tensor | None, dim: int, like: Tensor) -> Mixture:
    """The mixture that is a beta-Gaussian, or without an exponent the normal density.

    Args:
        exponent: m, float64 (*batch).
        dim: D.
        like: Any float64 tensor (*batch).
    """
    if exponent is None:
        one = torch.ones_like(like)
        s = torch.complex(one, torch.zeros_like(one)).unsqueeze(0)
        return Mixture(s, 1j * s, one)
    with torch.no_grad():
        m = exponent.detach()
        none = torch.zeros_like(m).unsqueeze(0)
        path = contour(none + torch.finfo(none.dtype).tiny, none, m + dim / 2, torch.ones_like(m))
        turns = (m + (dim / 2 + 1)).log() + path.turns
    # Gamma(M) z^-M against what it is where the path was drawn.
    whole = torch.lgamma(exponent + (dim / 2 + 1))
    moved = whole - whole.detach() - (exponent - m) * turns
    nodes = 0.5 / (path.saddle * (1 + path.nodes))
    return Mixture(nodes, path.weights * moved.exp(), 1 / (2 * exponent + (dim + 2)))


def tilted(loc: Tensor, scale_tril: Tensor, centers: Tensor, spread: Tensor, law: Mixture) -> Tilt:
    """Gaussians of standard deviations (N,) or covariances (N, D, D) under densities (*batch).

    All in float64.
    """
    gaps = (centers - loc.unsqueeze(-2)).unsqueeze(-1)
    if spread.dim() > 1:
        factor = torch.linalg.cholesky_ex(spread)[0]
        sides = torch.linalg.solve_triangular(factor, scale_tril.unsqueeze(-3), upper=False)
        gaps = torch.linalg.solve_triangular(factor, gaps, upper=False)
        log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    else:
        widths = spread[:, None, None]
        sides, gaps = scale_tril.unsqueeze(-3) / widths, gaps / widths
        log_det = loc.shape[-1] * spread.log()
    slope, curvature = (sides.mT @ gaps).squeeze(-1), sides.mT @ sides
    deviation = law.variance.detach().sqrt().unsqueeze(-1)
    bent = torch.linalg.matrix_norm(curvature.detach()) * deviation
    wide = deviation * (torch.linalg.vector_norm(slope.detach(), dim=-1) + bent) < _WIDE
    # What is not wide is zero before it can overflow, here and in its derivatives.
    gaps = torch.where(wide[..., None, None], gaps, 0.0)
    log_peak = -0.5 * gaps.square().sum((-2, -1)) - log_det
    log_peak = log_peak - 0.5 * loc.shape[-1] * math.log(2 * math.pi)
    return Tilt(
        torch.where(wide, log_peak, 0.0),
        torch.where(wide.unsqueeze(-1), slope, 0.0),
        torch.where(wide[..., None, None], curvature, 0.0),
        wide,
    )


def wide_gaussians(first: Tilt, second: Tilt, law: Mixture) -> Tensor:
    """Covariances of Gaussians (M) and (N), right where both are wide, (*batch, M, N)."""
    phi, psi, joint = _log_means(first, second, law.nodes)
    peaks = torch.exp(first.log_peak.unsqueeze(-1) + second.log_peak.unsqueeze(-2))
    return peaks * _covariance(phi, psi, joint, law)


def wide_waves(first: Tensor, second: Tensor, law: Mixture) -> tuple[Tensor, Tensor, Tensor]:
    r"""$E\cos((a \pm b)^\top x) - E\cos(a^\top x)\,E\cos(b^\top x)$ of slow waves, (*batch, M, N).

    Args:
        first: a, (*batch, M, D).
        second: b, (*batch, N, D).
        law: Of x.

    Returns:
        The one with a minus, the one with a plus, and where both waves are slow.
    """
    deviation = law.variance.detach().sqrt().unsqueeze(-1)
    a, b = (
        (x, deviation * torch.linalg.vector_norm(x.detach(), dim=-1) < _WIDE)
        for x in (first, second)
    )
    slow = a[1].unsqueeze(-1) & b[1].unsqueeze(-2)
    x, y = (torch.where(w.unsqueeze(-1), v, 0.0) for v, w in (a, b))
    s = law.nodes.unsqueeze(-1)
    phi, psi = (-0.5 * s * v.square().sum(-1) for v in (x, y))
    joint = s.unsqueeze(-1) * (x @ y.mT)
    return _covariance(phi, psi, joint, law), _covariance(phi, psi, -joint, law), slow


def _covariance(phi: Tensor, psi: Tensor, joint: Tensor, law: Mixture) -> Tensor:
    """From log means (n, *batch, M), (n, *batch, N), and what the log mean of products has more."""
    f, g = phi.expm1(), psi.expm1()
    means = law.mean(f).unsqueeze(-1) * law.mean(g).unsqueeze(-2)
    f, g = f.unsqueeze(-1), g.unsqueeze(-2)
    return law.mean((1 + f) * (1 + g) * joint.expm1() + f * g) - means


def _log_means(first: Tilt, second: Tilt, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Phi of all, (n, *batch, M) and (n, *batch, N), and what that of sums has more than theirs.

    By eliminating one axis after the other from s P, bordered by s g. The matrix of a sum is known
    by what it has more than the sum of its two, so that nothing is a difference of large numbers.
    """
    s = nodes[..., None, None]
    one, two = (s.unsqueeze(-1) * _bordered(x) for x in (first, second))
    more = torch.zeros_like(one.unsqueeze(-3) * two.unsqueeze(-4))
    logs = [torch.zeros_like(x[..., 0, 0]) for x in (one, two, more)]
    for _ in range(first.slope.shape[-1]):
        (a, u, one), (b, v, two), (extra, w, more) = (_split(x) for x in (one, two, more))
        log_one, log_two = _log1p(a), _log1p(b)
        one = one - _outer(u, u) / (1 + a)[..., None, None]
        two = two - _outer(v, v) / (1 + b)[..., None, None]
        a, u, b, v = a.unsqueeze(-1), u.unsqueeze(-2), b.unsqueeze(-2), v.unsqueeze(-3)
        whole = 1 + a + b + extra
        # What (u + v + w)^2/whole has more than u^2/(1 + a) and v^2/(1 + b).
        mixed = _outer(u, v + w) + _outer(v + w, u) + _outer(v, w) + _outer(w, v) + _outer(w, w)
        lost = _outer(u, u) * ((b + extra) / (1 + a))[..., None, None]
        lost = lost + _outer(v, v) * ((a + extra) / (1 + b))[..., None, None]
        more = more - (mixed - lost) / whole[..., None, None]
        log_more = _log1p((extra - a * b) / ((1 + a) * (1 + b)))
        logs = [x + y for x, y in zip(logs, (log_one, log_two, log_more), strict=True)]
    corners = (x[..., 0, 0] for x in (one, two, more))
    scales = s[..., 0], s[..., 0], s
    phi, psi, joint = (
        -0.5 * (x + corner / scale) for x, corner, scale in zip(logs, corners, scales, strict=True)
    )
    return phi, psi, joint


def _bordered(tilt: Tilt) -> Tensor:
    """P with g as one more row and column, (*batch, N, D + 1, D + 1)."""
    column = tilt.slope.unsqueeze(-1)
    row = torch.cat([column.mT, torch.zeros_like(column[..., :1, :])], -1)
    return torch.cat([torch.cat([tilt.curvature, column], -1), row], -2)


def _split(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """First entry, the rest of its row, and the rest of the matrix."""
    return matrix[..., 0, 0], matrix[..., 0, 1:], matrix[..., 1:, 1:]


def _outer(left: Tensor, right: Tensor) -> Tensor:
    return left.unsqueeze(-1) * right.unsqueeze(-2)


def _log1p(z: Tensor) -> Tensor:
    x, y = z.real, z.imag
    return torch.complex(0.5 * torch.log1p(x * (2 + x) + y * y), torch.atan2(y, 1 + x))
