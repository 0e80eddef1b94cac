r"""The alpha-entmax transformation of finitely many scores.

With $\epsilon = \alpha - 1$, $p = [1 + \epsilon(f - A)]_+^{1/\epsilon}$ has the sum 1 for one
normaliser $A$. For alpha up to 2 the norm $\|[1 + \epsilon(f - A)]_+\|_{1/\epsilon}$ is convex in
$A$, and Newton's method increases from a lower bound to the root, as in `normalizer`. Beyond 2,
powers rise so steeply where they begin that $A$ has too few digits. The unknown is the least
positive probability z, that of a score v: $p = (z^\epsilon + \epsilon(f - v))^{1/\epsilon}$ is
convex in z, and Newton's method decreases from an upper bound, in float64.

Derivatives are implicit: $dp = s\,(df - \sum s\,df / \sum s)$ with $s = p^{2-\alpha}$, and in alpha
likewise with $\partial p/\partial\alpha$ in place of $s\,df$.
"""

import math
from typing import Any

import torch
from torch import Tensor

from .normalizer import newton_step
from .validation import by_forward_mode, forward_rule, in_eager, is_plain_cpu_tensor

__all__ = ["entmax"]

# Steps that suffice for a convex function besides one for each bit of the number of scores: value
# times slope falls to a quarter in each.
_STEPS = {torch.float32: 12, torch.float64: 26}
# Steps for the least probability, of which 7 were the most in 2^20 scores.
_LEAST_STEPS, _LEAST_STEP = 30, 1e-15
# From this epsilon on powers are accurate without logarithms.
_LARGE_EPSILON = 0.25
_LEAST_EPSILON = 1e-20
# Below this size of log p^epsilon a series is used, if epsilon is small.
_SMALL, _SMALL_EPSILON = 0.25, 0.5
# The logarithm of the largest derivative.
_LARGEST = 700.0


def entmax(scores: Tensor, alpha: Tensor | float) -> Tensor:
    r"""Return p (..., K) that maximises $p^\top f - \Omega_\alpha(p)$ among probabilities.

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
    if not isinstance(alpha, Tensor) and alpha == 1:
        return torch.softmax(f, -1).to(dtype)
    number = None if isinstance(alpha, Tensor) else float(alpha) - 1
    eps = torch.as_tensor(alpha, dtype=f.dtype, device=f.device) - 1
    function = by_forward_mode(_Entmax, _EntmaxForward)
    p: Tensor = function.apply(f, eps.unsqueeze(-1) if eps.dim() else eps, number)
    return p.to(dtype)


def _solve(scores: Tensor, eps: Tensor, number: float | None) -> Tensor:
    """Compute the probabilities; `number` is epsilon if that is a number."""
    f = scores - scores.amax(-1, keepdim=True)
    readable = in_eager() and is_plain_cpu_tensor(f, eps)
    if number is None and readable:
        flat, steep = bool((eps <= 1).all()), bool((eps > 1).all())
    else:
        flat, steep = (number <= 1, number > 1) if number is not None else (False, False)
    if flat:
        return _from_below(f, eps, number, readable)
    if steep:
        return _from_least(f, eps, readable)
    below = _from_below(f, eps.clamp_max(1), None, readable)
    return torch.where(eps <= 1, below, _from_least(f, eps.clamp_min(1), readable))


def _from_below(f: Tensor, eps: Tensor, number: float | None, readable: bool) -> Tensor:
    """Solve for A with epsilon up to 1, for scores whose maximum is 0."""
    count = f.shape[-1]
    # The greatest of Jensen's lower bounds by all scores and by the largest.
    positive = eps.clamp_min(_LEAST_EPSILON)
    A = f.mean(-1, keepdim=True) - torch.expm1(-positive * math.log(count)) / positive
    A, alive, close = A.clamp_min(0), f.new_zeros(()), torch.finfo(f.dtype).eps ** 0.5 / 2
    active = torch.ones_like(A, dtype=torch.bool)
    for _ in range(count.bit_length() + _STEPS.get(f.dtype, 26)):
        power, lowered = _power(f, A, eps, number)
        mass, rate = power.sum(-1, keepdim=True), lowered.sum(-1, keepdim=True)
        step = newton_step(mass, rate, positive if number is None else number)
        # A row that has ended stays as it is, whatever the other rows do.
        if number == 1:
            active = active & (rate != alive)  # of sparsemax, where the support is as before
            A, alive = torch.where(active, A + step, A), rate
        else:
            A = torch.where(active, A + step, A)
            active = active & (step.abs() > close)  # the error is squared once more
        if readable and not bool(active.any()):
            break
    p, _ = _power(f, A, eps, number)
    return p / p.sum(-1, keepdim=True)


def _power(f: Tensor, A: Tensor, eps: Tensor, number: float | None) -> tuple[Tensor, Tensor]:
    """Return the deformed exponential of f - A, accurately for every epsilon, and its slope."""
    if number is not None and number >= _LARGE_EPSILON:
        base = torch.add(1 - number * A, f, alpha=number).clamp_min_(0)
        if number == 1:
            return base, base.sign()
        lowered = base if number == 0.5 else base ** (1 / number - 1)
        return base * lowered, lowered
    y = (eps.clamp_min(_LEAST_EPSILON) * (f - A)).clamp_min(-1)
    power = torch.exp(torch.log1p(y) / eps.clamp_min(_LEAST_EPSILON))
    return power, torch.where(y > -1, power / (1 + y), 0.0)


def _from_least(f: Tensor, eps: Tensor, readable: bool) -> Tensor:
    """Solve for the least positive probability with epsilon from 1, for scores up to 0."""
    dtype, eps, exponent = f.dtype, eps.double(), 1 / eps.double()
    ranked, order = f.double().sort(-1, descending=True)
    count = f.shape[-1]

    def is_in(place: Tensor) -> Tensor:
        """Return whether the score of some rank has a positive probability."""
        gaps = ranked - ranked.gather(-1, place.clamp_max(count - 1))
        mass = (eps * gaps).clamp_min_(0).pow(exponent).sum(-1, keepdim=True)
        return (mass < 1) & (place < count)

    first = torch.zeros_like(order[..., :1])
    if readable:
        # Few scores are in the support.
        whole, most = count, 1
        ranks = ranked
        while most < whole:
            gaps = ranks[..., :most] - ranks[..., most : most + 1]
            if not bool(((eps * gaps).pow(exponent).sum(-1) < 1).any()):
                break
            most *= 2
        count = min(most, whole)
        ranked, order = ranks[..., :count], order[..., :count]
    last, beyond = first, first + count
    for _ in range(count.bit_length()):
        middle = (last + beyond) // 2
        inside = is_in(middle)
        last, beyond = torch.where(inside, middle, last), torch.where(inside, beyond, middle)
    gaps = eps * (ranked - ranked.gather(-1, last))
    alive, gaps = gaps >= 0, gaps.clamp_min(0)
    z = 1 / alive.sum(-1, keepdim=True).to(gaps)
    for _ in range(_LEAST_STEPS):
        p = torch.where(alive, (z**eps + gaps) ** exponent, 0.0)
        share = torch.where(p > 0, z / torch.where(p > 0, p, 1.0), alive.to(p))
        slope = torch.where(alive, share ** (eps - 1), 0.0).sum(-1, keepdim=True)
        step = (p.sum(-1, keepdim=True) - 1) / slope
        z = (z - step).clamp_min(0)
        if readable and bool((step.abs() <= _LEAST_STEP).all()):
            break
    p = torch.where(alive, (z**eps + gaps) ** exponent, 0.0)
    p = p / p.sum(-1, keepdim=True)
    return torch.zeros_like(f.double()).scatter(-1, order, p).to(dtype)


@torch.library.custom_op("sparsefam::entmax", mutates_args=())
def _solve_operator(scores: Tensor, eps: Tensor, number: float | None) -> Tensor:
    """Call `_solve` from a compiled graph, which would take long to compile its many steps."""
    return _solve(scores, eps, number).contiguous()


@_solve_operator.register_fake
def _(scores: Tensor, eps: Tensor, number: float | None) -> Tensor:
    return torch.empty_like(scores).contiguous()


class _Entmax(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, eps: Tensor, number: float | None) -> Tensor:
        if torch.compiler.is_compiling():
            p: Tensor = _solve_operator(scores, eps, number)
            return p
        return _solve(scores, eps, number)

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor, float | None], output: Tensor
    ) -> None:
        ctx.number = inputs[2]
        ctx.save_for_backward(output, inputs[1])
        ctx.save_for_forward(output, inputs[1])

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor | None, None]:
        p, eps = ctx.saved_tensors
        jacobian, by_eps = _Jacobian(p, eps, ctx.number), None
        if ctx.needs_input_grad[1]:
            by_eps = (slope * jacobian.in_alpha()).sum_to_size(eps.shape).to(eps)
        return jacobian.in_scores(slope), by_eps, None


class _EntmaxForward(_Entmax):
    @staticmethod
    @forward_rule
    def jvp(ctx: Any, by_score: Tensor | None, by_eps: Tensor | None, _: None) -> Tensor:
        p, eps = ctx.saved_tensors
        jacobian = _Jacobian(p, eps, ctx.number)
        found = torch.zeros_like(p) if by_score is None else jacobian.in_scores(by_score)
        return found if by_eps is None else found + by_eps * jacobian.in_alpha()


class _Jacobian:
    """Derivatives of the probabilities, symmetric in scores."""

    def __init__(self, p: Tensor, eps: Tensor, number: float | None) -> None:
        self._dtype, self._is_flat = p.dtype, number is not None and number <= 1
        if not self._is_flat:
            p, eps = p.double(), eps.double()
        self._p, self._eps, self._alive = p, eps, p > 0
        if self._is_flat:
            positive = torch.where(self._alive, p, 1.0)
            self._slope = torch.where(self._alive, positive ** (1 - eps), 0.0)
            self._share = self._slope / self._slope.sum(-1, keepdim=True)
        else:
            log = (1 - eps) * self._log_p
            self._slope = torch.where(self._alive, log.clamp_max(_LARGEST).exp(), 0.0)
            top = torch.where(self._alive, log, -math.inf).amax(-1, keepdim=True).detach()
            weight = torch.where(self._alive, (log - top).exp(), 0.0)
            self._share = weight / weight.sum(-1, keepdim=True)

    @property
    def _log_p(self) -> Tensor:
        return torch.where(self._alive, self._p, 1.0).log()

    def in_scores(self, change: Tensor) -> Tensor:
        """Return the change of probabilities from that of scores, and gradients likewise."""
        change = change.to(self._p)
        found = self._slope * (change - (self._share * change).sum(-1, keepdim=True))
        if not self._is_flat:
            # The largest slope may be so large that its product has no digits; the sum is 0.
            place = self._share.argmax(-1, keepdim=True)
            others = found.scatter(-1, place, 0.0)
            found = others.scatter(-1, place, -others.sum(-1, keepdim=True))
        return found.to(self._dtype)

    def in_alpha(self) -> Tensor:
        r"""Return the change of probabilities with alpha.

        At fixed A it is $(p - s - p\log p^\epsilon)/\epsilon^2$, of which s changes nothing.
        """
        p, eps, log_p = self._p, self._eps, self._log_p
        y = eps * log_p
        small, steep = y > -_SMALL, eps > _SMALL_EPSILON
        near = torch.where(small, y, 0.0)
        series = torch.zeros_like(y)
        for k in range(12, -1, -1):
            series = 1 / math.factorial(k + 2) - near * series
        square = torch.where(small & ~steep, 1.0, eps).square()
        kept = torch.where(steep, 0.0, self._slope)
        quotient = (p * (1 - y) - kept) / square
        change = torch.where(small & ~steep, -p * log_p.square() * series, quotient)
        change = change - self._share * change.sum(-1, keepdim=True)
        return change.to(self._dtype)
