"""Continuous attention on irregular series: a density for each head, of one bump or of several.

References:
    Moreno et al. (2022), Kernel Deformed Exponential Families for Sparse Continuous Attention:
    the five densities of Table 2.
"""

import torch
from pyro.contrib.gp.kernels import RBF
from torch import Tensor, nn

import sparsefam as sf

from .mechanisms import SIGMA, Attention, Examples, spread

__all__ = ["Kernel", "ManyBumps", "OneBump"]

_BUMPS, _POINTS, _LENGTH = 8, 64, 0.03
# The least width of a bump: far below that of a basis function.
_LEAST_SIGMA = 1e-3
# How much wider than usual the weights of the kernel's queries start.
_WIDER = 8.0


class _Continuous(Attention):
    """A density for each head, which reads the value function."""

    def __init__(self, classes: int, heads: int, outputs: int, basis: sf.bases.Basis) -> None:
        super().__init__(classes, heads, outputs)
        self.basis = basis

    def context(self, attention: sf.SparseDistribution, examples: Examples) -> Tensor:
        """Expected value function (B, heads)."""
        value = sf.attention.ValueFunction(self.basis, examples.coefficients)
        return value.expect(attention).squeeze(-1)


class OneBump(_Continuous):
    r"""The density of the score $-(t - \mu_h)^2/(2\sigma_h^2)$: a Gaussian, a truncated parabola.

    As in Martins et al. (2020), section 4, the centre is the sigmoid of a linear function of the
    features, so that no head leaves the domain. The heads start spread over it: without biases
    they all start in the middle, where one-bump densities are slow to come apart.
    """

    def __init__(self, classes: int, heads: int, basis: sf.bases.Basis, alpha: float) -> None:
        super().__init__(classes, heads, 2, basis)
        self.alpha = alpha
        self.query.bias.data = _bump_bias(spread(heads), SIGMA).reshape(-1)

    def weigh(self, queries: Tensor, examples: Examples) -> sf.SparseDistribution:
        """Densities, batch shape (B, heads)."""
        return sf.rpm(_bump_score(queries), self.alpha)


class ManyBumps(_Continuous):
    """A mixture of eight Gaussians, whose centres start spread over the domain in every head."""

    def __init__(self, classes: int, heads: int, basis: sf.bases.Basis) -> None:
        super().__init__(classes, heads, 3 * _BUMPS, basis)
        # The heads' centres lie between each other's.
        loc = spread(heads * _BUMPS).reshape(_BUMPS, heads).T
        bias = nn.functional.pad(_bump_bias(loc, SIGMA / 2), (0, 1))
        self.query.bias.data = bias.reshape(-1)

    def weigh(self, queries: Tensor, examples: Examples) -> sf.SparseDistribution:
        """Densities, batch shape (B, heads)."""
        queries = queries.unflatten(-1, (_BUMPS, 3))
        return sf.Mixture(queries[..., 2], sf.rpm(_bump_score(queries), 1.0))


class Kernel(_Continuous):
    r"""The density of the score $\sum_i \gamma_{hi} k(t, t_i)$, the queries being its weights.

    As in Moreno et al. (2022), appendix C.1.1: Gaussian kernels at 64 inducing points. The scores
    start wider apart than a layer's usual weights would have them (0.1 in standard deviation), or
    the heads would be slow to leave the uniform density, which all of them would start from.
    """

    def __init__(
        self,
        classes: int,
        heads: int,
        basis: sf.bases.Basis,
        family: type[sf.KernelExp] | type[sf.KernelDeformedExp],
    ) -> None:
        super().__init__(classes, heads, _POINTS, basis)
        self.family = family
        self.points = torch.linspace(0, 1, _POINTS)
        self.kernel = RBF(1, lengthscale=torch.tensor(_LENGTH)).requires_grad_(False)
        # Nodes depend on the kernel and the points alone: found once, they serve every density.
        self.panels = family(torch.zeros(_POINTS), self.points, self.kernel).panels
        self.query.weight.data *= _WIDER

    def weigh(self, queries: Tensor, examples: Examples) -> sf.SparseDistribution:
        """Densities, batch shape (B, heads)."""
        return self.family(queries, self.points, self.kernel, panels=self.panels)


def _bump_bias(loc: Tensor, sigma: float) -> Tensor:
    """The last two outputs of a query (*B, 2) that `_bump_score` makes into these."""
    width = torch.full_like(loc, sigma).expm1().log()
    return torch.stack([loc.logit(), width], -1)


def _bump_score(queries: Tensor) -> sf.scores.Quadratic:
    sigma = nn.functional.softplus(queries[..., 1]) + _LEAST_SIGMA
    return sf.scores.Quadratic(queries[..., 0].sigmoid(), sigma=sigma)
