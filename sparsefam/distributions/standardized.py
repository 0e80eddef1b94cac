"""Densities of t = loc + A x for a standard law of x, and what follows from that alone."""

import math
from collections.abc import Callable

import torch
from torch import Size, Tensor
from torch.utils.checkpoint import checkpoint
from typing_extensions import Self

from ..bases import Basis
from ..numerics.arguments import in_eager
from ..numerics.deformed import expm1_ratio
from .base import SparseDistribution

__all__ = ["StandardizedDistribution"]

# Values of functions at nodes that are computed at a time. Some fifty tensors of this size live
# while a block is differentiated: 200 MB in float32.
_AT_ONCE = 1 << 20


class StandardizedDistribution(SparseDistribution):
    r"""$p(t) = q(A^{-1}(t - \mu))/|\det A|$, on the line or in space.

    A subclass knows $\log q$ as a function of the size of $x$, which is zero at its mode, and
    $\log|\det A|$.
    """

    def _log_det(self) -> Tensor:
        r"""$\log|\det A|$ (*batch)."""
        raise NotImplementedError

    def _standard_log_prob(self, size: Tensor) -> Tensor:
        """Log density of x of some size, called only inside the support."""
        raise NotImplementedError

    def _standard_entropy(self) -> Tensor | float:
        """Shannon entropy of x."""
        raise NotImplementedError

    def _log_power_integral(self, beta: Tensor | float) -> Tensor | float:
        r"""$\log \int q(x)^\beta dx$."""
        raise NotImplementedError

    def _covariance(self, phi: Basis, psi: Basis) -> Tensor:
        r"""Covariance of $\phi$ and $\psi$ under this density, (*batch, M, N)."""
        raise NotImplementedError

    def escort(self, beta: Tensor | float | None = None) -> "StandardizedDistribution":
        raise NotImplementedError

    def _node_count(self, order: int) -> int:
        """Number of nodes of `quadrature(order)`."""
        raise NotImplementedError

    def _quadrature_expect(self, psi: Basis | Callable[[Tensor], Tensor], order: int) -> Tensor:
        if not isinstance(psi, Basis):
            return super()._quadrature_expect(psi, order)
        base, count = SparseDistribution._quadrature_expect, self._node_count(order) * len(psi)
        return self._in_blocks(lambda p: base(p, psi, order), count)

    def _in_blocks(self, rule: Callable[[Self], Tensor], count: int) -> Tensor:
        """Apply a rule to blocks of the batch, which bounds the memory that it takes.

        The backward pass computes each block again. Compiled graphs and transforms of `torch.func`
        take the whole batch at once.

        Args:
            rule: From a density of batch shape (B,) to a tensor (B, ...).
            count: How many numbers the rule keeps for each density.
        """
        size, total = max(1, _AT_ONCE // count), self.batch_shape.numel()
        if total <= size or not in_eager():
            return rule(self)
        flat = self._with_parameters(Size([total]), lambda x, event: x.reshape(total, *event))

        def compute(start: int) -> Tensor:
            length = min(size, total - start)
            shape = Size([length])
            return rule(flat._with_parameters(shape, lambda x, _: x.narrow(0, start, length)))

        if torch.is_grad_enabled():
            blocks = [
                checkpoint(compute, i, use_reentrant=False, preserve_rng_state=False)
                for i in range(0, total, size)
            ]
        else:
            blocks = [compute(i) for i in range(0, total, size)]
        found: Tensor = torch.cat(blocks).unflatten(0, self.batch_shape)
        return found

    def _peak_score(self) -> Tensor | float:
        """Score at the mode."""
        return 0.0

    def _peak_log_prob(self) -> Tensor:
        """Log density at the mode (*batch)."""
        return self._standard_log_prob(torch.zeros_like(self.alpha)) - self._log_det()

    def _log_mean_power(self) -> Tensor:
        r"""$\log E_p[p^{\alpha-1}]/(\alpha - 1)$."""
        return self._log_power_integral(self.alpha) / (self.alpha - 1) - self._log_det()

    def _log_escort(self, log_p: Tensor) -> Tensor:
        r"""$\log_{2-\alpha}(e^{\log p})$, exact as alpha -> 1 and at infinity."""
        slope = (self.alpha - 1).clamp(max=1e30)
        finite = slope * log_p < math.log(torch.finfo(log_p.dtype).max)
        log_p = torch.where(finite, log_p, 0.0)
        return torch.where(finite, log_p * expm1_ratio(slope * log_p), math.inf)

    def entropy(self) -> Tensor:
        """Shannon entropy (*batch)."""
        return self._standard_entropy() + self._log_det()

    @property
    def log_normalizer(self) -> Tensor:
        r"""$A_\alpha(f) = f(loc) - \log_{2-\alpha} p(loc)$ (*batch).

        References:
            Martins et al. (2020), Sparse and Continuous Attention Mechanisms, Prop. 1.
        """
        return self._peak_score() - self._log_escort(self._peak_log_prob())

    def tsallis_entropy(self) -> Tensor:
        r"""$-\Omega_\alpha(p) = -E_p[\log_{2-\alpha} p]/\alpha$ (*batch).

        References:
            Martins et al. (2020), Sparse and Continuous Attention Mechanisms, eq. 6.
        """
        return -self._log_escort(self._log_mean_power()) / self.alpha.clamp(max=1e30)

    def generalized_covariance(
        self, phi: Basis, psi: Basis, beta: Tensor | float | None = None
    ) -> Tensor:
        self._check_basis("phi", phi)
        self._check_basis("psi", psi)
        covariance = self.escort(beta)._covariance(phi, psi)
        power = 2 - self.alpha if beta is None else beta
        log_norm = self._log_power_integral(power) + (1 - power) * self._log_det()
        norm = torch.exp(log_norm)[..., None, None]
        # An infinite value has a zero gradient, which a product with it would make NaN.
        found = (norm * covariance).detach()
        finite = found.isfinite()
        product = torch.where(finite, norm, 1.0) * torch.where(finite, covariance, 0.0)
        return torch.where(finite, product, found)
