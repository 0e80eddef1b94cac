r"""The regularizer's convex conjugate, $\Omega^*_\alpha(f) = \max_p E_p[f] - \Omega_\alpha(p)$."""

from torch import Tensor

from ..distributions import SparseDistribution
from ..scores import Finite, Score

__all__ = ["conjugate"]


def conjugate(score: Score, p: SparseDistribution) -> Tensor:
    r"""$\Omega^*_\alpha(f)$ (*batch), whose derivative along a change of the score is its mean.

    With $p^{\alpha - 1} = 1 + (\alpha - 1)(f - A_\alpha)$ on the support it is
    $A_\alpha + (\alpha - 1)\,\Omega_\alpha(p)$.

    Args:
        score: The score f.
        p: Its prediction map.

    References:
        Blondel, Martins and Niculae (2020), Learning with Fenchel-Young losses, section 3.
    """
    if isinstance(score, Finite):
        probs = p.quadrature()[1].movedim(0, -1)
        return (probs * score.scores.masked_fill(probs == 0, 0.0)).sum(-1) + p.tsallis_entropy()
    return p.log_normalizer - (p.alpha - 1) * p.tsallis_entropy()
