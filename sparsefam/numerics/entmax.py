r"""Deformed exponentials of finitely many scores: softmax, sparsemax and everything else.

$p = [1 + \epsilon(f - A)]_+^{1/\epsilon}$ has sum 1 for one $A$, where $\epsilon = \alpha - 1$. No
derivative goes through the search for it: $dp = s\,(df - \sum s\,df / \sum s)$ with
$s = p^{2-\alpha}$, and in alpha likewise with $\partial p/\partial\alpha$ in place of $s\,df$.
"""

import math
from typing import Any

import torch
from torch import Tensor

from .roots import increasing_root

__all__ = ["entmax"]

# Steps that reach rounding for alpha up to 2, with Newton's one after them (measured; see tests).
_STEPS = {torch.float32: 10, torch.float64: 14}
# From this epsilon on powers keep their digits.
_PLAIN = 0.25
_TINY = 1e-20
_SMALL = 0.25


def entmax(scores: Tensor, alpha: Tensor | float) -> Tensor:
    r"""The probabilities that maximise $p^\top f - \Omega_\alpha(p)$, over the last dimension.

    Half precision is for what goes in and comes out only.

    Args:
        scores: Shape (..., K); -inf excludes a category, but not all of a row.
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
    found: Tensor = _Entmax.apply(f, eps.unsqueeze(-1) if eps.dim() else eps, number)
    return found.to(dtype)


def _solve(scores: Tensor, eps: Tensor, number: float | None) -> Tensor:
    """The probabilities; `number` is epsilon if that is the same for all and known."""
    f = scores - scores.amax(-1, keepdim=True)
    if number == 1:
        return _sparsemax(f)
    low = torch.zeros_like(f[..., :1] + eps)
    # Of equal scores: the highest that the normaliser can be.
    positive = eps.clamp_min(_TINY)
    high = low - torch.expm1(-positive * math.log(f.shape[-1])) / positive
    easy = number is not None and number <= 1
    level = increasing_root(
        lambda level: -_power(f - level, eps, number).sum(-1, keepdim=True).log(),
        low,
        high,
        _STEPS.get(f.dtype) if easy else None,
    )
    p = _power(f - level, eps, number)
    if easy:
        step = (p.sum(-1, keepdim=True) - 1) / _lowered(p, eps).sum(-1, keepdim=True)
        p = _power(f - (level + step), eps, number)
    return p / p.sum(-1, keepdim=True)


def _sparsemax(f: Tensor) -> Tensor:
    """The projection onto the simplex, by sorting: sooner than steps where there are few scores."""
    ranked = f.sort(-1, descending=True).values
    level = (ranked.cumsum(-1) - 1) / torch.arange(1, f.shape[-1] + 1, device=f.device)
    # Each category would be on the support if it were the last; they are so up to the last.
    count = (ranked > level).sum(-1, keepdim=True)  # none, of scores that are NaN
    alive = f > level.gather(-1, (count - 1).clamp_min(0))
    p = f - (torch.where(alive, f, 0).sum(-1, keepdim=True) - 1) / alive.sum(-1, keepdim=True)
    p = p.clamp_min(0)
    return p / p.sum(-1, keepdim=True)


@torch.library.custom_op("sparsefam::entmax", mutates_args=())
def _opaque(scores: Tensor, eps: Tensor, number: float | None) -> Tensor:
    """`_solve` as one call in a compiled graph, whose many steps would take the compiler long."""
    return _solve(scores, eps, number).contiguous()


@_opaque.register_fake
def _(scores: Tensor, eps: Tensor, number: float | None) -> Tensor:
    return torch.empty_like(scores).contiguous()


class _Entmax(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, eps: Tensor, number: float | None) -> Tensor:
        if torch.compiler.is_compiling():
            found: Tensor = _opaque(scores, eps, number)
            return found
        return _solve(scores, eps, number)

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor, float | None], output: Tensor
    ) -> None:
        ctx.save_for_backward(output, inputs[1])

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor | None, None]:
        p, eps = ctx.saved_tensors
        lowered = _lowered(p, eps)
        share = lowered / lowered.sum(-1, keepdim=True)
        by_score = lowered * slope - share * (lowered * slope).sum(-1, keepdim=True)
        by_eps = None
        if ctx.needs_input_grad[1]:
            moved = _moved(p, lowered, eps)
            moved = moved - share * moved.sum(-1, keepdim=True)
            by_eps = (slope * moved).sum_to_size(eps.shape)
        return by_score, by_eps, None


def _power(u: Tensor, eps: Tensor, number: float | None) -> Tensor:
    """The deformed exponential of u, at most 0, with the digits of u for every epsilon."""
    if number is not None and number >= _PLAIN:
        return (1 + number * u).clamp_min(0) ** (1 / number)
    eps = eps.clamp_min(_TINY)
    return torch.exp(torch.log1p((eps * u).clamp_min(-1)) / eps)


def _lowered(p: Tensor, eps: Tensor) -> Tensor:
    """p to the power 2 - alpha, on the support."""
    alive = p > 0
    return torch.where(alive, torch.where(alive, p, 1.0) ** (1 - eps), 0.0)


def _moved(p: Tensor, lowered: Tensor, eps: Tensor) -> Tensor:
    r"""What p changes by with alpha if $f - A$ stays: $(p - s - p\log p^\epsilon)/\epsilon^2$."""
    log_p = torch.where(p > 0, p, 1.0).log()
    y = eps * log_p
    near = torch.where(y > -_SMALL, y, 0.0)
    series = torch.zeros_like(y)
    for k in range(12, -1, -1):
        series = 1 / math.factorial(k + 2) - near * series
    far = torch.where(y > -_SMALL, 1.0, eps)
    whole = (lowered - p * (1 - y)) / far.square()
    return -torch.where(y > -_SMALL, p * log_p.square() * series, whole)
