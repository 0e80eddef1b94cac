r"""The alpha-entmax transformation of finitely many scores.

With $\epsilon = \alpha - 1$, $p = [1 + \epsilon(f - A)]_+^{1/\epsilon}$ has the sum 1 for one
normaliser $A$. Derivatives are implicit: $dp = s\,(df - \sum s\,df / \sum s)$ with
$s = p^{2-\alpha}$, and in alpha likewise with $\partial p/\partial\alpha$ in place of $s\,df$.
"""

import math
from typing import Any

import torch
from torch import Tensor

from .roots import increasing_root

__all__ = ["entmax"]

# Steps of the root finder that suffice for alpha up to 2, followed by one of Newton's (measured).
_STEPS = {torch.float32: 10, torch.float64: 14}
# From this epsilon on powers are accurate without logarithms.
_LARGE_EPSILON = 0.25
_LEAST_EPSILON = 1e-20
# Below this size of log p^epsilon a series is used.
_SMALL = 0.25


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
    p: Tensor = _Entmax.apply(f, eps.unsqueeze(-1) if eps.dim() else eps, number)
    return p.to(dtype)


def _solve(scores: Tensor, eps: Tensor, number: float | None) -> Tensor:
    """Compute the probabilities; `number` is epsilon if that is a number."""
    f = scores - scores.amax(-1, keepdim=True)
    if number == 1:
        return _sparsemax(f)
    low = torch.zeros_like(f[..., :1] + eps)
    # The normaliser of equal scores is the largest.
    positive = eps.clamp_min(_LEAST_EPSILON)
    high = low - torch.expm1(-positive * math.log(f.shape[-1])) / positive
    easy = number is not None and number <= 1
    normalizer = increasing_root(
        lambda a: -_power(f - a, eps, number).sum(-1, keepdim=True).log(),
        low,
        high,
        _STEPS.get(f.dtype) if easy else None,
    )
    p = _power(f - normalizer, eps, number)
    if easy:
        step = (p.sum(-1, keepdim=True) - 1) / _derivative(p, eps).sum(-1, keepdim=True)
        p = _power(f - (normalizer + step), eps, number)
    return p / p.sum(-1, keepdim=True)


def _sparsemax(f: Tensor) -> Tensor:
    """Project onto the simplex by sorting, which is faster for few scores."""
    ranked = f.sort(-1, descending=True).values
    threshold = (ranked.cumsum(-1) - 1) / torch.arange(1, f.shape[-1] + 1, device=f.device)
    count = (ranked > threshold).sum(-1, keepdim=True)  # of the support; 0 if scores are NaN
    alive = f > threshold.gather(-1, (count - 1).clamp_min(0))
    p = f - (torch.where(alive, f, 0).sum(-1, keepdim=True) - 1) / alive.sum(-1, keepdim=True)
    p = p.clamp_min(0)
    return p / p.sum(-1, keepdim=True)


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
        if torch.compiler.is_compiling() and number != 1:  # sparsemax has few steps
            p: Tensor = _solve_operator(scores, eps, number)
            return p
        return _solve(scores, eps, number)

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor, float | None], output: Tensor
    ) -> None:
        ctx.save_for_backward(output, inputs[1])

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor | None, None]:
        p, eps = ctx.saved_tensors
        derivative = _derivative(p, eps)
        share = derivative / derivative.sum(-1, keepdim=True)
        by_score = derivative * slope - share * (derivative * slope).sum(-1, keepdim=True)
        by_eps = None
        if ctx.needs_input_grad[1]:
            change = _slope_in_alpha(p, derivative, eps)
            change = change - share * change.sum(-1, keepdim=True)
            by_eps = (slope * change).sum_to_size(eps.shape)
        return by_score, by_eps, None


def _power(u: Tensor, eps: Tensor, number: float | None) -> Tensor:
    """Return the deformed exponential of u <= 0, accurately for every epsilon."""
    if number is not None and number >= _LARGE_EPSILON:
        return (1 + number * u).clamp_min(0) ** (1 / number)
    eps = eps.clamp_min(_LEAST_EPSILON)
    return torch.exp(torch.log1p((eps * u).clamp_min(-1)) / eps)


def _derivative(p: Tensor, eps: Tensor) -> Tensor:
    """Return p to the power 2 - alpha on the support, the derivative of p in its score."""
    alive = p > 0
    return torch.where(alive, torch.where(alive, p, 1.0) ** (1 - eps), 0.0)


def _slope_in_alpha(p: Tensor, derivative: Tensor, eps: Tensor) -> Tensor:
    r"""Return $\partial p/\partial\alpha = (p - s - p\log p^\epsilon)/\epsilon^2$ at fixed A."""
    log_p = torch.where(p > 0, p, 1.0).log()
    y = eps * log_p
    small = y > -_SMALL
    near = torch.where(small, y, 0.0)
    series = torch.zeros_like(y)
    for k in range(12, -1, -1):
        series = 1 / math.factorial(k + 2) - near * series
    quotient = (derivative - p * (1 - y)) / torch.where(small, 1.0, eps).square()
    return -torch.where(small, p * log_p.square() * series, quotient)
