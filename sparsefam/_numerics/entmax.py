r"""The alpha-entmax transformation of finitely many scores.

With $\epsilon = \alpha - 1$, $p = [1 + \epsilon(f - A)]_+^{1/\epsilon}$ has the sum 1 for one
normalizer $A$. For alpha up to 2 the norm $\|[1 + \epsilon(f - A)]_+\|_{1/\epsilon}$ is convex in
$A$, and Newton's method increases from a lower bound to the root, as in `normalizer`. Beyond 2,
powers rise so steeply where they begin that $A$ has too few digits. The unknown is the least
positive probability z, that of a score v: $p = (z^\epsilon + \epsilon(f - v))^{1/\epsilon}$ is
convex in z, and Newton's method decreases from an upper bound, in float64.

Derivatives are implicit: $dp = s\,(df - \sum s\,df / \sum s)$ with $s = p^{2-\alpha}$, and in alpha
likewise with $\partial p/\partial\alpha$ in place of $s\,df$.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Size, Tensor

from .modes import values_are_readable
from .normalizer import newton_from_below
from .operators import Changes, differentiable, operator
from .validation import broadcasts_to, require

__all__ = ["Jacobian", "entmax", "entmax_of", "epsilon", "require_finite_index", "solve"]

# Steps that suffice for a convex function besides one for each bit of the number of scores: value
# times slope falls to a quarter in each.
_STEPS = {torch.float32: 12, torch.float64: 26}
# Steps for the least probability, of which 7 were the most in 2^20 scores.
_LEAST_STEPS, _LEAST_STEP = 30, 1e-15
# Replaces an epsilon of 0 in a tensor, by which is divided.
_LEAST_EPSILON = 1e-20
# Below this size of log p^epsilon a series is used, if epsilon is small.
_SMALL, _SMALL_EPSILON, _SERIES_EPSILON = 0.25, 0.5, 1e-4
# The logarithm of the largest derivative.
_LARGEST = 700.0


def entmax(scores: Tensor, alpha: Tensor | float) -> Tensor:
    r"""Return p (..., K) that maximizes $p^\top f - \Omega_\alpha(p)$ among probabilities.

    Scores in half precision are computed in float32.

    Args:
        scores: Shape (..., K); -inf excludes a category. At least one of each row is finite.
        alpha: Entropic index, at least 1 and finite; a tensor broadcasts to (...).

    References:
        Peters et al. (2019), Sparse Sequence-to-Sequence Models. arXiv:1905.05702. Correia et al.
        (2019), Adaptively Sparse Transformers, Prop. 1. arXiv:1909.00015
    """
    dtype = scores.dtype if scores.is_floating_point() else torch.get_default_dtype()
    f = scores.to(torch.promote_types(dtype, torch.float32))
    eps, number = epsilon(alpha, f)
    return entmax_of(f, eps, number).to(dtype)


def epsilon(alpha: Tensor | float, like: Tensor) -> tuple[Tensor, float | None]:
    """Return alpha - 1 as a tensor, with a last axis for scores, and as a number if it is one."""
    number = None if isinstance(alpha, Tensor) else float(alpha) - 1
    eps = torch.as_tensor(alpha, dtype=like.dtype, device=like.device) - 1
    return eps.unsqueeze(-1) if eps.dim() else eps, number


def entmax_of(f: Tensor, eps: Tensor, number: float | None) -> Tensor:
    """Return the probabilities of scores f (..., K) in float32 or float64; see `epsilon`."""
    if number == 0:
        return torch.softmax(f, -1)
    p: Tensor = _entmax(f, eps, number)
    return p


def require_finite_index(alpha: Tensor | float, batch: Size) -> None:
    """Raise ValueError unless finitely many scores, of a batch, have probabilities at alpha."""
    if isinstance(alpha, Tensor):
        if not broadcasts_to(alpha.shape, batch):
            raise ValueError(
                f"alpha must broadcast to the batch {tuple(batch)} of the scores, "
                f"got shape {tuple(alpha.shape)}"
            )
        if alpha.is_complex():
            raise ValueError(f"alpha must be real, got {alpha}")
        require((alpha > 1) & (alpha < math.inf), "alpha", "finite and greater than 1", alpha)
    elif alpha == math.inf:
        raise ValueError(f"alpha must be finite for finitely many scores, got {alpha}")


def solve(
    scores: Tensor, eps: Tensor, number: float | None, A: Tensor | None = None
) -> tuple[Tensor, Tensor | None, Tensor]:
    r"""Return p and $s = p^{2-\alpha}$ (..., K), each up to a factor, and A (..., 1).

    A belongs to scores less their maximum. If alpha may be above 2 somewhere, s is None; if it is
    above 2 everywhere, A is 0, as the solution does not need it.

    Args:
        scores: Shape (..., K).
        eps: alpha - 1, (..., 1) or of no axes.
        number: The same if it is a number, else None.
        A: The third result for the same scores, if there is one, which saves the search.
    """
    if number == 0:
        p = torch.softmax(scores, -1)
        return p, p, torch.zeros_like(p[..., :1])
    f = scores - scores.amax(-1, keepdim=True)
    readable = values_are_readable(f, eps)
    size: Tensor | float = eps.clamp(_LEAST_EPSILON, 1) if number is None else min(number, 1.0)
    flat = is_flat(eps, number)
    if not flat and (number is not None or readable and bool((eps > 1).all())):
        p, A = _from_least(f, eps, readable), torch.zeros_like(f[..., :1])
        return p, None, A
    p, powers, A = _from_below(f, size, readable) if A is None else (*_power(f, A, size), A)
    if not flat:
        p = torch.where(eps <= 1, p, _from_least(f, eps.clamp_min(1), readable))
    return p, powers if flat else None, A


def _from_below(f: Tensor, eps: Tensor | float, readable: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return `_power` at A (..., 1), and A, by Newton's method from a lower bound.

    Args:
        f: Scores (..., K) whose maximum is 0.
        eps: alpha - 1 in (0, 1].
        readable: Whether values can be read.
    """
    count, latest = f.shape[-1], (f, f)  # `latest` holds the results of the last call of `sums`
    out = (torch.empty_like(f), torch.empty_like(f)) if readable else (None, None)
    log = eps * math.log(count)
    # Jensen's lower bounds, see `lower_bound`: mean f - (K^-eps - 1) / eps by all scores, and the
    # maximum, 0, by the largest score alone.
    spread = torch.expm1(-log) if isinstance(log, Tensor) else math.expm1(-log)
    A = (f.mean(-1, keepdim=True) - spread / eps).clamp_min(0)

    def sums(A: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mass at A and minus its derivative, both (..., 1)."""
        nonlocal latest
        latest = power, lowered = _power(f, A, eps, out)
        return power.sum(-1, keepdim=True), lowered.sum(-1, keepdim=True)

    steps = count.bit_length() + _STEPS.get(f.dtype, 26)
    if not isinstance(eps, Tensor) and eps == 1:
        A = newton_from_below(sums, A, eps, steps, 0, readable)
        return *latest, A
    A = newton_from_below(sums, A, eps, steps, torch.finfo(f.dtype).eps ** 0.5 / 2, readable)
    return *_power(f, A, eps, out), A


def _power(
    f: Tensor, A: Tensor, eps: Tensor | float, out: Sequence[Tensor | None] = (None, None)
) -> tuple[Tensor, Tensor]:
    r"""Return $(1 + \epsilon x)_+^{1/\epsilon}$ and its derivative in $x = f - A$, both (..., K).

    They are accurate for every epsilon up to 1. The derivative is the power divided by its base
    $1 + \epsilon x$.

    Args:
        f: Scores (..., K) whose maximum is 0.
        A: The normalizer (..., 1).
        eps: alpha - 1 in (0, 1].
        out: Two tensors of the shape of f to be overwritten, or None twice.
    """
    if not isinstance(eps, Tensor) and eps in (0.5, 1.0):
        top = 1 - A if eps == 1 else 1 - eps * A
        base = torch.add(top, f, alpha=eps, out=out[0]).clamp_min_(0)
        if eps == 1:
            return base, torch.sign(base, out=out[1])
        return torch.mul(base, base, out=out[1]), base
    # Powers below e times the least normal number are zero, as operations on subnormal numbers are
    # slow: at the floor of y = eps x the power is that large.
    finfo = torch.finfo(f.dtype)
    lowest = (math.log(finfo.tiny) + 1) * eps
    floor = torch.expm1(lowest) if isinstance(lowest, Tensor) else math.expm1(lowest)
    if isinstance(floor, Tensor):
        floor = floor.clamp_min(finfo.eps - 1)
    else:
        floor = max(floor, finfo.eps - 1)
    y = torch.sub(f, A, out=out[0]).mul_(eps).clamp_min_(floor)
    alive = torch.sub(y, floor, out=out[1]).sign_()
    power = torch.log1p(y).div_(eps).exp_().mul_(alive)
    return power, torch.div(power, y.add_(1), out=out[1])


def _from_least(f: Tensor, eps: Tensor, readable: bool) -> Tensor:
    """Return probabilities (..., K) of scores f with epsilon from 1, from the least positive one.

    The ranks in the support are found first. With v the last score among them and z its
    probability, all are (z^eps + eps (f - v))^(1 / eps), and z makes their sum 1.

    Args:
        f: Scores (..., K).
        eps: alpha - 1, at least 1, (..., 1) or of no axes.
        readable: Whether values can be read.
    """
    dtype, eps, exponent = f.dtype, eps.double(), 1 / eps.double()
    ranked, order = f.double().sort(-1, descending=True)
    if readable:
        # Few scores are in the support: ranks beyond are left out.
        count = _most_in_support(ranked, eps, exponent)
        ranked, order = ranked[..., :count], order[..., :count]
    last = _last_in_support(ranked, eps, exponent)
    gaps = eps * (ranked - ranked.gather(-1, last))
    alive, gaps = gaps >= 0, gaps.clamp_min(0)
    # An upper bound: n probabilities of at least z sum to 1.
    z = 1 / alive.sum(-1, keepdim=True).to(gaps)
    for _ in range(_LEAST_STEPS):
        p = torch.where(alive, (z**eps + gaps) ** exponent, 0.0)
        # dp/dz = (z / p)^(eps - 1).
        ratio = torch.where(p > 0, z / torch.where(p > 0, p, 1.0), alive.to(p))
        slope = torch.where(alive, ratio ** (eps - 1), 0.0).sum(-1, keepdim=True)
        step = (p.sum(-1, keepdim=True) - 1) / slope
        z = (z - step).clamp_min(0)
        if readable and bool((step.abs() <= _LEAST_STEP).all()):
            break
    p = torch.where(alive, (z**eps + gaps) ** exponent, 0.0)
    p = p / p.sum(-1, keepdim=True)
    return torch.zeros_like(f.double()).scatter(-1, order, p).to(dtype)


# The score of a rank has a positive probability if, with 0 in its place, the probabilities of the
# scores above it sum to less than 1.


def _most_in_support(ranked: Tensor, eps: Tensor, exponent: Tensor) -> int:
    """Return a number of ranks that hold the supports of all rows, doubled from 1 until they do.

    Args:
        ranked: Scores (..., K), descending.
        eps: alpha - 1.
        exponent: 1 / eps.
    """
    count, most = ranked.shape[-1], 1
    while most < count:
        gaps = ranked[..., :most] - ranked[..., most : most + 1]
        if not bool(((eps * gaps).pow(exponent).sum(-1) < 1).any()):
            break
        most *= 2
    return min(most, count)


def _last_in_support(ranked: Tensor, eps: Tensor, exponent: Tensor) -> Tensor:
    """Return the last rank (..., 1) with a positive probability, by bisection.

    Arguments are as for `_most_in_support`.
    """
    count = ranked.shape[-1]
    last = torch.zeros_like(ranked[..., :1], dtype=torch.int64)
    beyond = last + count
    for _ in range(count.bit_length()):
        middle = (last + beyond) // 2
        gaps = ranked - ranked.gather(-1, middle.clamp_max(count - 1))
        mass = (eps * gaps).clamp_min_(0).pow(exponent).sum(-1, keepdim=True)
        inside = (mass < 1) & (middle < count)
        last, beyond = torch.where(inside, middle, last), torch.where(inside, beyond, middle)
    return last


def is_flat(eps: Tensor, number: float | None) -> bool:
    """Return whether epsilon is at most 1 everywhere; False, too, where that cannot be read.

    Then the derivative s of the power stays bounded as p tends to 0.
    """
    if number is not None:
        return number <= 1
    return values_are_readable(eps) and bool((eps <= 1).all())


def _solve(scores: Tensor, eps: Tensor, number: float | None) -> Tensor:
    """Return the probabilities (..., K) of scores."""
    p, _, _ = solve(scores, eps, number)
    return p / p.sum(-1, keepdim=True)


def _pull_back(kept: Any, grads: Changes, needed: Sequence[bool]) -> Changes:
    """Return the gradients in the scores (..., K) and, if needed, in epsilon.

    The probabilities, epsilon and its number are kept, see `_entmax`.
    """
    p, eps, number = kept
    (grad,), jacobian, by_eps = grads, Jacobian(p, eps, number), None
    if needed[1]:
        by_eps = (grad * jacobian.in_alpha()).sum_to_size(eps.shape).to(eps)
    return jacobian.in_scores(grad), by_eps


def _push_forward(kept: Any, changes: Changes) -> Tensor:
    """Return the change of the probabilities from changes of the scores and of epsilon."""
    p, eps, number = kept
    by_score, by_eps, _ = changes
    jacobian = Jacobian(p, eps, number)
    change = torch.zeros_like(p) if by_score is None else jacobian.in_scores(by_score)
    return change if by_eps is None else change + by_eps * jacobian.in_alpha()


# Compiled graphs would take long to compile its many steps.
_entmax = differentiable(
    operator("entmax", _solve, lambda scores, *_: torch.empty_like(scores).contiguous()),
    _pull_back,
    lambda inputs, outputs: (*outputs, *inputs[1:]),
    _push_forward,
)


class Jacobian:
    r"""Derivatives of the probabilities, symmetric in scores, by $s = p^{2-\alpha}$.

    Args:
        p: The probabilities (..., K).
        eps: alpha - 1.
        number: The same if it is a number, else None.
        powers: s, the second result of `solve`, if there is one.
    """

    def __init__(
        self, p: Tensor, eps: Tensor, number: float | None, powers: Tensor | None = None
    ) -> None:
        self._dtype, self._flat = p.dtype, is_flat(eps, number)
        if not self._flat:
            p, eps = p.double(), eps.double()
        self._p, self._eps = p, eps
        # The slope is s. The weight is s up to a factor, for means that it weights.
        if powers is not None:
            self._slope = powers
        elif not self._flat:
            # Above alpha = 2, s grows without bound as p tends to 0. Means depend on ratios of s
            # only: their weights are s divided by its largest entry.
            log = (1 - eps) * self._positive.log()
            self._slope = log.clamp_max(_LARGEST).exp() * p.sign()
            top = torch.where(p > 0, log, -math.inf).amax(-1, keepdim=True).detach()
            self._weight = torch.where(p > 0, (log - top).exp(), 0.0)
            return
        elif number == 1:
            self._slope = p.sign()
        elif number == 0.5:
            self._slope = self._positive.sqrt() * p.sign()
        else:
            self._slope = self._positive.pow(1 - eps) * p.sign()
        self._weight = self._slope

    @property
    def _positive(self) -> Tensor:
        """p without zeros, whose logarithms have infinite derivatives."""
        return self._p.clamp_min(torch.finfo(self._p.dtype).tiny)

    def in_scores(self, change: Tensor) -> Tensor:
        r"""Return $s\,(df - \sum s\,df / \sum s)$, the change of p with scores, (..., K).

        The gradient in scores follows from the gradient in p in the same way, by symmetry.
        """
        change, weight = change.to(self._p), self._weight
        mean = (weight * change).sum(-1, keepdim=True) / weight.sum(-1, keepdim=True)
        result = (change - mean) * self._slope
        if not self._flat:
            # The largest slope may be so large that its product has no digits; the sum is 0.
            largest = weight.argmax(-1, keepdim=True)
            others = result.scatter(-1, largest, 0.0)
            result = others.scatter(-1, largest, -others.sum(-1, keepdim=True))
        return result.to(self._dtype)

    def in_alpha(self) -> Tensor:
        r"""Return the change of p with alpha, (..., K).

        At fixed A it is $(p - s - p\log p^\epsilon)/\epsilon^2$. The change of A adds the multiple
        of s that makes the sum 0, so that the s in this term has no effect.
        """
        p, eps, log_p = self._p, self._eps, self._positive.log()
        y, steep = eps * log_p, eps > _SMALL_EPSILON
        near, terms = y.clamp_min(-_SMALL), 6 if p.dtype == torch.float32 else 12
        # As s = p e^-y, (p - s - p y) / eps^2 = -p (log p)^2 (e^-y - 1 + y) / y^2, and the last
        # quotient is the sum of (-y)^k / (k + 2)!, k = 0, 1, ...
        series = torch.full_like(y, 1 / math.factorial(terms + 2))
        for k in range(terms - 1, -1, -1):
            series = 1 / math.factorial(k + 2) - near * series
        # Below _SERIES_EPSILON p is zero beyond the series. Where it is steep, s may be very large,
        # and is left out.
        square = torch.where(eps < _SERIES_EPSILON, 1.0, eps).square()
        quotient = (p * (1 - y) - torch.where(steep, 0.0, 1.0) * self._slope) / square
        small = (y > -_SMALL) & ~steep
        change = torch.where(small, -p * log_p.square() * series, quotient)
        drift = change.sum(-1, keepdim=True) / self._weight.sum(-1, keepdim=True)
        change = change - drift * self._weight
        return change.to(self._dtype)
