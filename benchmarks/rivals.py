"""What sparsefam is compared with: plain quadrature rules."""

import math
from collections.abc import Callable

import entmax
import torch
from torch import Tensor

import sparsefam as sf


def trapezoid_on_supports(
    build: Callable[..., sf.SparseDistribution],
    loc: Tensor,
    scale: Tensor,
    psi: sf.bases.GaussianRBF,
    points: int = 1000,
) -> Tensor:
    """Return E_p[psi] (batch, N) by the trapezoid rule on the support of each density.

    The values of the standard density at the nodes serve all densities. Memory is
    batch x points x N numbers.
    """
    # log_prob counts the ends of the support as outside, where a density may not vanish.
    x = torch.linspace(-1, 1, points, dtype=loc.dtype) * (1 - torch.finfo(loc.dtype).eps)
    standard = build(torch.zeros_like(loc[0]), torch.ones_like(loc[0]))
    weights = standard.prob(x) * (2 / (points - 1))
    weights[0] = weights[0] / 2
    weights[-1] = weights[-1] / 2
    z = (loc.unsqueeze(-1) + scale.unsqueeze(-1) * x).unsqueeze(-1) - psi.centers
    z = z * (math.sqrt(0.5) / psi.widths)
    return weights @ torch.exp(-z.square()) / (psi.widths * math.sqrt(2 * math.pi))


_ROOT_PI = math.sqrt(math.pi)
_LOG2_E = math.log2(math.e)


def polar_rule(
    loc: Tensor, scale_tril: Tensor, centers: Tensor, width: Tensor, angles: int = 100
) -> Tensor:
    r"""Return E_p[N(t; c_j, w^2 I)] (batch, N) under 2-D truncated paraboloids.

    Research code averages over angles the integral along the radius, where the integrand is
    $4 r (1 - r^2)$ times a Gaussian in r. Here all rays are computed at once and opposite rays form
    one line, integrated with three erf instead of four. With $t = loc + r v$ in units of
    $\sqrt2 w$, the center is at $x$ along the line and $h$ beside it; the support ends at
    $\sigma = |v|$. Powers of two replace exponentials: torch's exp takes six times as long where it
    underflows.

    Args:
        loc: Centers (batch, 2).
        scale_tril: Cholesky factors of the supports (batch, 2, 2).
        centers: Centers of the Gaussians (N, 2).
        width: Their common width, a scalar.
        angles: Number of rays, even.
    """
    turn = torch.arange(angles // 2, dtype=loc.dtype) * (2 * math.pi / angles)
    unit = 1 / (math.sqrt(2) * width)
    ends = (scale_tril @ torch.stack([turn.cos(), turn.sin()])).mT * unit
    sigma = ends.norm(dim=-1, keepdim=True)
    along = ends / sigma
    offset = ((centers - loc.unsqueeze(-2)) * unit).mT
    x = along @ offset
    h = torch.stack([-along[..., 1], along[..., 0]], -1) @ offset
    aside = torch.mul(h, -_LOG2_E * h)
    ahead, behind, x2, square = sigma - x, sigma + x, x.square(), sigma.square()
    top = x2 + 1
    # Beyond 9, erf is 1 and its derivative an exponential that would underflow.
    errors = torch.erf(ahead.clamp(-9, 9)) - torch.erf(behind.clamp(-9, 9))
    errors = torch.add(errors, torch.erf(x.clamp(-9, 9)), alpha=2)
    cubic = torch.addcmul(x * (_ROOT_PI * (square - 1.5)), x, x2, value=-_ROOT_PI)
    line = torch.exp2(aside) * (errors * cubic)
    rim = torch.exp2(torch.addcmul(aside, ahead, ahead, value=-_LOG2_E))
    line = torch.addcmul(line, rim, torch.addcmul(top, x, sigma))
    rim = torch.exp2(torch.addcmul(aside, behind, behind, value=-_LOG2_E))
    line = torch.addcmul(line, rim, torch.addcmul(top, x, sigma, value=-1))
    middle = 2 * torch.exp(-offset.square().sum(-2, keepdim=True))  # at r = 0, on every line
    weight = square.pow(-2).mT  # (batch, 1, lines)
    total = weight @ line + middle * (weight @ (square - 1) - weight @ x2)
    return total.squeeze(-2) / (math.pi * angles * width.square())


def _deformed(f: Tensor, alpha: float) -> Tensor:
    r"""Return $\exp_{2-\alpha}(f)$, not normalized.

    Research code subtracts the maximum of f for every alpha, which changes the density unless
    alpha = 1; here it is subtracted for alpha = 1 only, so that all methods compute one number.
    """
    if alpha == 1:
        return torch.exp(f - f.detach().amax(-1, keepdim=True))
    bracket = torch.relu(1 + (alpha - 1) * f)
    if alpha == 1.5:
        return bracket.square()
    return bracket if alpha == 2 else bracket ** (1 / (alpha - 1))


def _gaussian(z: Tensor) -> Tensor:
    return torch.exp(-z.square() / 2)


def kernel_trapezoid(
    weights: Tensor, points: Tensor, bandwidth: float, centers: Tensor, widths: Tensor, alpha: float
) -> Tensor:
    """Return E_p[psi] (batch, heads, N) as research code does, by 100 nodes on [0, 1].

    Its tensors are (batch, heads, N, 100); basis and kernel are evaluated in every call.
    """
    t = torch.linspace(0, 1, 100, dtype=weights.dtype)
    psi = _gaussian((t - centers.unsqueeze(-1)) / widths.unsqueeze(-1))
    psi = psi / (widths.unsqueeze(-1) * math.sqrt(2 * math.pi))
    f = weights @ _gaussian((t - points.unsqueeze(-1)) / bandwidth)
    p = _deformed(f.unsqueeze(-2), alpha)
    mass = torch.trapezoid(p, t, dim=-1).unsqueeze(-1)
    return torch.trapezoid(psi * p / mass, t, dim=-1)


def content_trapezoid(
    weights: Tensor, basis: sf.bases.GaussianRBF, alpha: float, products: bool, points: int = 1000
) -> Tensor:
    """Return E_p[psi] (heads, queries, N) by a rule of so many points, as research code does.

    Its exponentials are not shifted, and its tensors are (heads, queries, N, points) unless
    `products`. At alpha = 1.5 the density on the nodes is an entmax of discrete scores.
    """
    t = torch.linspace(0, 1, points)
    psi = basis(t).T
    f = weights @ psi
    if alpha == 1:
        p = torch.exp(f)
        p = p / torch.trapezoid(p, t, dim=-1).unsqueeze(-1)
    else:
        p = entmax.entmax15(f / math.sqrt(points), -1) * points
    if products:
        step = torch.full_like(t, 1 / (points - 1))
        step[[0, -1]] /= 2
        return (p * step) @ psi.T
    return torch.trapezoid(psi * p.unsqueeze(-2), t, dim=-1)


def kernel_products(
    points: Tensor, bandwidth: float, centers: Tensor, widths: Tensor, alpha: float
) -> Callable[[Tensor], Tensor]:
    """Return the same rule as a function of the weights: two products with fixed matrices."""
    t = torch.linspace(0, 1, 100, dtype=points.dtype).unsqueeze(-1)
    step = torch.full_like(t, 1 / 99)
    step[0] = step[-1] = step[0] / 2
    psi = _gaussian((t - centers) / widths) / (widths * math.sqrt(2 * math.pi))
    kernel = _gaussian((t - points) / bandwidth).T.contiguous()
    moments = step * torch.cat([psi, torch.ones_like(t)], -1)

    def expect(weights: Tensor) -> Tensor:
        sums = _deformed(weights @ kernel, alpha) @ moments
        return sums[..., :-1] / sums[..., -1:]

    return expect
