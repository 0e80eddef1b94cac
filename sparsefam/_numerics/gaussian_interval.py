r"""Expectations of Gaussians under an even piecewise polynomial density on an interval.

For $t = loc + scale\,x$ with $x \sim f$ on $[-1, 1]$ this module computes
$$R_{f,n} = \frac{\partial^n}{\partial loc^n} \int_{-1}^{1} f(x)\, N(loc + scale\,x; c, w^2)\,dx.$$
Three identities express all derivatives by such integrals, without differences of large terms:
$\partial_{loc} R_{f,n} = R_{f,n+1}$, $\partial_w R_{f,n} = w R_{f,n+2}$ (the heat equation) and,
by parts, $\partial_{scale} R_{f,n} = scale\, R_{q,n+2}$ with the *flux*
$q(x) = \int_{|x|}^1 v f(v)\,dv$, again an even piecewise polynomial.

If the support is wide against the Gaussian ($scale \ge 2.5\,w$), the integral is computed by a
closed form, otherwise by Gauss-Legendre quadrature. Each is inaccurate where the other is used.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .modes import compiled, sizes_are_symbols, values_are_readable
from .operators import Changes, differentiable
from .quadrature import gauss_legendre
from .validation import broadcast_shapes, difference

__all__ = ["Profile", "gaussian_expectation", "negligible_distance"]

# Distance in widths beyond which a Gaussian is set to 0, as subnormal numbers are ten times slower,
# and a bound of its tail there.
_TAIL_ENDS = {torch.float32: 12.0, torch.float64: 37.0}
_TAIL_BOUNDS = {torch.float32: 1e-30, torch.float64: 1e-290}
# The logarithm of the peak of the normal density.
_LOG_PEAK = -0.5 * math.log(2 * math.pi)
# The ratio scale / width from which on the closed form is used, and the nodes needed below it.
_SWITCH = 2.5
_NODES = {torch.float32: 14, torch.float64: 30}
# Pairs in a block on the CPU, where using memory again is faster than pages from the system; and
# pairs times nodes that are evaluated together on other devices, which start one operation slowly.
_BLOCK, _DEVICE_BLOCK = 1 << 17, 1 << 26


@dataclass(frozen=True, eq=False)  # torch up to 2.11 hashes it before its field is set
class Profile:
    r"""Even density on $[-1, 1]$, or its flux, which is a polynomial on each half."""

    coefficients: tuple[float, ...]  # Ascending coefficients of the polynomial on $[0, 1]$

    @property
    def kinked(self) -> bool:
        """Whether some derivative has a jump at zero."""
        return any(self.coefficients[1::2])

    @property
    def flux(self) -> "Profile":
        r"""The profile $q(x) = \int_{|x|}^1 v f(v)\,dv$."""
        terms = [c / (k + 2) for k, c in enumerate(self.coefficients)]
        return Profile((sum(terms), 0.0, *[-c for c in terms]))

    def derivative(self, order: int) -> list[float]:
        """Return ascending coefficients of a derivative of the right half."""
        c = list(self.coefficients)
        for _ in range(order):
            c = [k * x for k, x in enumerate(c)][1:]
        return c

    def jumps(self, x0: int) -> list[float]:
        r"""Return the factor $J_d$ of each degree d = 0, 1, ... at a break $x_0$, -1, 0 or 1.

        The function is the sum of $J_d (x_0 - x)_+^d/d!$ over its breaks.
        """
        orders = range(len(self.coefficients))
        at = [sum([c * abs(x0) ** k for k, c in enumerate(self.derivative(d))]) for d in orders]
        # J_d is the d-th derivative in -x on the left of the break, less the one on its right:
        # this factor, for even d or for odd, times the d-th derivative of the right half at |x0|.
        even, odd = {1: (1, -1), 0: (0, 2), -1: (-1, -1)}[x0]
        return [(odd if d % 2 else even) * x for d, x in enumerate(at)]

    def __call__(self, x: Tensor) -> Tensor:
        """Evaluate the function at any x in [-1, 1]."""
        size, total = x.abs(), torch.zeros_like(x)
        for c in reversed(self.coefficients):
            total = total * size + c
        return total


# Profiles f and orders of derivatives n of the integrals to compute.
_Orders = Sequence[tuple[Profile, int]]


def gaussian_expectation(
    loc: Tensor, scale: Tensor, centers: Tensor, widths: Tensor, profile: Profile
) -> Tensor:
    r"""Compute $E[N(loc + scale\,x;\, c, w^2)]$ for $x$ with the density `profile`, elementwise.

    It is differentiable to any order in all four tensors, which broadcast together. The norm-wise
    relative error is about 3e-7 in float32 and 1e-14 in float64 for every ratio of scale to width.

    References:
        Martins et al. (2020), Sparse and Continuous Attention Mechanisms, App. G, whose eq. 52
        lacks a factor 1/2.
    """
    return _expectation(loc, scale, centers, widths, profile.coefficients, 0)


def negligible_distance(x: Tensor) -> float:
    """Return the number of widths beyond which a Gaussian is negligible relative to its peak."""
    # exp(-y^2/2) is 7e-10 at 6.5 and 3e-20 at 9.5: less than a hundredth of a rounding error of
    # the peak, so that many tails together stay below one.
    return 9.5 if torch.finfo(x.dtype).eps < 1e-12 else 6.5


def _forward(
    loc: Tensor,
    scale: Tensor,
    center: Tensor,
    width: Tensor,
    coefficients: tuple[float, ...],
    order: int,
) -> Tensor:
    """Compute R_{f,n}, elementwise, for the profile f with these coefficients and the order n."""
    return _integrals(loc, scale, center, width, ((Profile(coefficients), order),))[0]


def _pull_back(kept: Any, grads: Changes, needed: Sequence[bool]) -> Changes:
    """Return gradients by the identities of the module, each integral once.

    The arguments of `_forward` are kept.
    """
    *inputs, coefficients, n = kept
    (loc, scale, center, width), (grad,), profile = inputs, grads, Profile(coefficients)
    at_loc, at_scale, at_center, at_width, *_ = needed
    needs = {
        "first": (at_loc or at_center, profile, n + 1),
        "flux": (at_scale, profile.flux, n + 2),
        "second": (at_width, profile, n + 2),
    }
    orders = {name: (f, k) for name, (wanted, f, k) in needs.items() if wanted}
    # A compiled graph has no double backward, and tracing into the recursion would not end.
    if torch.is_grad_enabled() and not compiled():
        values = [_expectation(*inputs, f.coefficients, k) for f, k in orders.values()]
    else:
        values = _integrals(loc, scale, center, width, tuple(orders.values()))
    by = {name: grad * x for name, x in zip(orders, values, strict=True)}
    return (
        by["first"].sum_to_size(loc.shape) if at_loc else None,
        (by["flux"] * scale).sum_to_size(scale.shape) if at_scale else None,
        -by["first"].sum_to_size(center.shape) if at_center else None,
        (by["second"] * width).sum_to_size(width.shape) if at_width else None,
    )


def _push_forward(kept: Any, changes: Changes) -> Tensor:
    """Return the sum of the derivatives, by the identities of the module, times the changes.

    Changes are of loc, scale, center and width, then of the coefficients and n, which have none.
    """
    *inputs, coefficients, n = kept
    (_, scale, _, width), profile = inputs, Profile(coefficients)
    # In each argument, the factor of R_{f,k}, f, and k.
    rules = (
        (1.0, profile, n + 1),
        (scale, profile.flux, n + 2),
        (-1.0, profile, n + 1),
        (width, profile, n + 2),
    )
    terms = [
        change * factor * _expectation(*inputs, f.coefficients, k)
        for change, (factor, f, k) in zip(changes[:4], rules, strict=True)
        if change is not None
    ]
    return torch.stack(torch.broadcast_tensors(*terms)).sum(0)


def _vmap(
    function: Callable[..., Tensor], _: Any, dims: tuple[int | None, ...], *inputs: Any
) -> tuple[Tensor, int]:
    """Return the result with the axis that vmap maps over in front, and 0, the index of that axis.

    The function is elementwise: the axis goes to the front of the tensors that have it, and other
    axes are padded to broadcast.
    """
    rank = max(x.dim() - (d is not None) for x, d in zip(inputs[:4], dims, strict=False))
    front = []
    for x, d in zip(inputs[:4], dims, strict=False):
        if d is not None:
            x = x.movedim(d, 0)
            x = x.reshape(x.shape[0], *(1,) * (rank - x.dim() + 1), *x.shape[1:])
        front.append(x)
    return function(*front, *inputs[4:]), 0


# The backward pass computes derivatives and saves no tensor of all pairs.
_expectation = differentiable(
    _forward, _pull_back, lambda inputs, outputs: inputs, _push_forward, _vmap
)


def _integrals(
    loc: Tensor, scale: Tensor, center: Tensor, width: Tensor, orders: _Orders
) -> list[Tensor]:
    """Compute R_{f,n} of each (f, n) in `orders`, elementwise, in blocks of pairs."""
    inputs = loc, scale, center, width
    shape = broadcast_shapes(*(x.shape for x in inputs))
    if not values_are_readable(loc) or math.prod(shape) <= _BLOCK:
        return _integrals_of_block(inputs, orders)
    axis = max(range(len(shape)), key=lambda k: shape[k]) - len(shape)
    step = max(1, _BLOCK * shape[axis] // math.prod(shape))
    blocks = [
        _integrals_of_block([_slice(x, axis, first, step) for x in inputs], orders)
        for first in range(0, shape[axis], step)
    ]
    return [torch.cat(values, axis) for values in zip(*blocks, strict=True)]


def _slice(x: Tensor, axis: int, first: int, step: int) -> Tensor:
    """Return up to `step` entries of x from `first` on along an axis; x if it broadcasts there.

    The axis is negative, counted from the last.
    """
    if x.dim() < -axis or x.shape[axis] == 1:
        return x
    return x.narrow(axis, first, min(step, x.shape[axis] - first))


def _integrals_of_block(inputs: Sequence[Tensor], orders: _Orders) -> list[Tensor]:
    r"""Compute R_{f,n} of each (f, n) in `orders` for loc, scale, center and width.

    It is $w^{-n-1} \int f(x)\,\varphi^{(n)}((loc + scale\,x - c)/w)\,dx$, computed in terms of the
    distance of loc and center, which is at least 0.
    """
    loc, scale, center, width = inputs
    offset, rounding = difference(center, loc)
    shape = broadcast_shapes(offset.shape, scale.shape, width.shape)
    if values_are_readable(width) and width.dim() and bool((width == width[..., :1]).all()):
        width = width[..., :1]  # terms in it are computed once
    # f is even: mirroring x changes the sign of the offset, and that of odd derivatives.
    side, distance = offset.sign().expand(shape), offset.abs().expand(shape)
    rounding = rounding * side
    values = _by_regime((distance, rounding, scale, width), orders)
    for i, (_, n) in enumerate(orders):
        values[i].mul_(width ** -(n + 1))
        if n % 2:
            # At the center itself an odd derivative is 0.
            values[i].mul_(side)
    return values


def _by_regime(pairs: tuple[Tensor, Tensor, Tensor, Tensor], orders: _Orders) -> list[Tensor]:
    r"""Return $\int f(x)\,\varphi^{(n)}((scale\,x - distance)/width)\,dx$ for each (f, n).

    Each pair is computed by the formula that is accurate for its ratio of scale to width.

    Args:
        pairs: The distance of the centers, its rounding error, scale and width, which broadcast.
        orders: Profiles and orders of derivatives.
    """
    distance, rounding, scale, width = pairs
    wide = scale >= _SWITCH * width
    if not values_are_readable(distance) or not distance.dim():
        # Both formulas get arguments that they stand; only one of the results is used.
        safe = torch.where(wide, scale, _SWITCH * width)
        closed = _closed_form(distance, rounding, safe, width, orders)
        nodes = _quadrature(distance, rounding, torch.where(wide, width, scale), width, orders)
        return [torch.where(wide, a, b) for a, b in zip(closed, nodes, strict=True)]
    # On the CPU, gathering the pairs of each formula is faster than computing both for all pairs.
    if bool(wide.all()):
        return _closed_form(*pairs, orders)
    # Most functions are far from a narrow support; written so that NaN is not.
    outside = distance >= scale + (negligible_distance(distance) + 1) * width
    values = [torch.zeros_like(distance) for _ in orders]
    for mask, method in ((wide, _closed_form), (~wide & ~outside, _quadrature)):
        index, (distance, rounding, scale, width) = _select(mask, pairs)
        selected = method(distance, rounding, scale, width, orders)
        for whole, entries in zip(values, selected, strict=True):
            whole[index] = entries
    return values


def _select(mask: Tensor, pairs: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    """Return the index of the pairs for which a mask is true, and the entries of tensors there.

    Pairs are those of densities and functions. Their tensors broadcast to the shape (..., N) of the
    first. With a mask (..., 1) the index is one of rows, and entries (R, N), or (R, 1) where N
    functions share a number.
    """
    shape = pairs[0].shape
    if mask.shape[-1] > 1:
        index = mask.expand(shape).nonzero(as_tuple=True)
        return index, [x.expand(shape)[index] for x in pairs]
    index = mask.squeeze(-1).expand(shape[:-1]).nonzero(as_tuple=True)
    vectors = (x if x.dim() else x.reshape(1) for x in pairs)
    return index, [x.expand(*shape[:-1], x.shape[-1])[index] for x in vectors]


# The closed form


def _closed_form(
    distance: Tensor, rounding: Tensor, scale: Tensor, width: Tensor, orders: _Orders
) -> list[Tensor]:
    r"""Return $\int f(x)\,\varphi^{(n)}((scale\,x - distance)/width)\,dx$ for each (f, n).

    With $r = width/scale$, $b = distance/scale$ and a standard normal $Z$ it is
    $r (-r)^n \partial_b^n E f(b + r Z)$. Each term $(x_0 - x)_+^d/d!$ of f adds $r^d H_{n-d}(y)$,
    $y = (b - x_0)/r$, to the expectation. If b is inside, the terms of $x_0 = 1$ add up to the
    polynomial of f around b, less these terms beyond the edge.

    Args:
        distance: Of the two centers, at least 0, of any shape.
        rounding: Its rounding error.
        scale: The half-width of the support, which broadcasts against the distance.
        width: The width of the Gaussian, which broadcasts, too.
        orders: Profiles f and orders of derivatives n.
    """
    ratio, b = width / scale, (distance / scale).clamp_(max=1.0)
    edge = (distance - scale) + rounding
    breaks = {1: edge, -1: distance + scale}
    if orders[0][0].kinked:
        breaks[0] = distance
    y = torch.stack([*breaks.values()]).div_(width)
    powers = [ratio**d for d in range(max(len(f.coefficients) for f, _ in orders))]
    lowest = min(n - len(f.coefficients) for f, n in orders) + 1
    inside = 0.5 - 0.5 * edge.sign()
    totals = [_smoothed(f, n, powers, b).mul_(inside) for f, n in orders]
    integrals = _repeated_integrals(y, lowest, max(n for _, n in orders))
    for i, x0 in enumerate(breaks):
        for total, (profile, n) in zip(totals, orders, strict=True):
            for d, jump in enumerate(profile.jumps(x0)):
                if jump:
                    total.addcmul_(powers[d], integrals[n - d][i], value=jump)
    return [total.mul_(ratio) for total in totals]


def _smoothed(profile: Profile, n: int, powers: list[Tensor], b: Tensor) -> Tensor:
    r"""Return $(-r)^n \partial_b^n E f(b + r Z) = (-r)^n \sum_k (r^2/2)^k f^{(n+2k)}(b)/k!$.

    Here f is the polynomial of the profile without breaks; `powers` are r^0, r^1, ...
    """
    terms = [torch.zeros_like(powers[0]) for _ in profile.coefficients[n:]]
    for k, d in enumerate(range(n, len(profile.coefficients), 2)):
        factor = (-1) ** n / (2**k * math.factorial(k))
        for j, c in enumerate(profile.derivative(d)):
            terms[j] = torch.add(terms[j], powers[d], alpha=factor * c)
    total = torch.zeros_like(b)
    for term in reversed(terms):
        total = torch.addcmul(term, total, b)
    return total


def _repeated_integrals(y: Tensor, lowest: int, highest: int) -> dict[int, Tensor]:
    r"""Return $H_{-d}(y) = E[(Z - y)_+^d]/d!$ and the derivatives $H_n = (-1)^n H_0^{(n)}$.

    For negative y the polynomial $E[(Z - y)^d]/d!$, their limit as y decreases, is subtracted. The
    keys of the result are indices of H, from `lowest` or 0, if that is less, to at least `highest`.
    """
    end, bound = _TAIL_ENDS[y.dtype], _TAIL_BOUNDS[y.dtype]
    y = y.clamp(-end, end)
    density = torch.addcmul(y.new_full((), _LOG_PEAK), y, y, value=-0.5).exp_()
    tail = (y.abs() * math.sqrt(0.5)).erfc_().mul_(0.5)
    # Both are below the bound at `end` and beyond, and become 0 there.
    density, tail = (x.sub_(bound).clamp_min_(0) for x in (density, tail))
    derivatives = _hermite(y, density, max(highest - 1, 0))
    integrals = {0: tail.mul_(y.sign()), **{n + 1: x for n, x in enumerate(derivatives)}}
    # Integrating by parts, d H_{-d} = H_{2-d} - y H_{1-d}: Hermite's recurrence, downward.
    for d in range(1, -lowest + 1):
        integrals[-d] = torch.addcmul(integrals[2 - d], y, integrals[1 - d], value=-1).div_(d)
    return integrals


# Quadrature


def _quadrature(
    distance: Tensor, rounding: Tensor, scale: Tensor, width: Tensor, orders: _Orders
) -> list[Tensor]:
    r"""Return the same integrals as `_closed_form`, by Gauss-Legendre; each half if f has a kink.

    They are of $f(x)\,\varphi^{(n)}(h x - z)$ with $h = scale/width$, $z = distance/width$. The
    rounding error is not needed.
    """
    h, end = scale / width, _TAIL_ENDS[distance.dtype]
    z = torch.minimum(distance / width, h + end)
    x, w = gauss_legendre(_NODES[distance.dtype], distance)
    if orders[0][0].kinked:
        x, w = torch.cat([(x - 1) / 2, (x + 1) / 2]), torch.cat([w, w]) / 2
    weights = [(-1) ** n * w * profile(x) / math.sqrt(2 * math.pi) for profile, n in orders]
    totals, start = [z.new_zeros(z.numel()) for _ in orders], -z
    # A few nodes together: an array of all nodes and pairs would be many times as large.
    step = _nodes_together(z)
    for first in range(0, len(x), step):
        some = slice(first, first + step)
        t = torch.addcmul(start, h, x[some].reshape(-1, *[1] * z.dim())).clamp_min_(-end)
        values = _hermite(t, (t * t).mul_(-0.5).exp_(), max(n for _, n in orders))
        for total, weight, (_, n) in zip(totals, weights, orders, strict=True):
            total.addmv_(values[n].reshape(len(t), *total.shape).mT, weight[some])
    # Beyond the support by `end` widths, where z was clamped, the integral is zero.
    is_near = (h + end - z).sign()
    return [total.view(z.shape).mul_(is_near) for total in totals]


def _nodes_together(pairs: Tensor) -> int:
    """Return the number of nodes of `_quadrature` that are evaluated at once for these pairs."""
    if sizes_are_symbols():
        return 1
    return max(1, (_BLOCK if pairs.is_cpu else _DEVICE_BLOCK) // max(1, pairs.numel()))


def _hermite(t: Tensor, gauss: Tensor, order: int) -> list[Tensor]:
    r"""Return $g, -g', g'', \dots, (-1)^n g^{(n)}$ of $g = e^{-t^2/2}$ up to the order n.

    They are g times Hermite's polynomials, $He_n = t\,He_{n-1} - (n - 1) He_{n-2}$.
    """
    out = [gauss]
    for n in range(1, order + 1):
        out.append(t * out[-1])
        if n > 1:
            out[-1].sub_(out[-3], alpha=n - 1)
    return out
