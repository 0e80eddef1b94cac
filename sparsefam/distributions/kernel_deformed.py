"""Kernel deformed exponential families: densities of any shape with disjoint, exact supports."""

from collections.abc import Sequence
from numbers import Real
from typing import Literal

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..kernels import Kernel
from ..numerics.arguments import require
from ..numerics.truncated_power import LOG_LARGE, Power, integrals
from .kernel_family import KernelFamily
from .kernel_panels import KernelPanels
from .kernel_power import Parts
from .once import once

__all__ = ["KernelDeformedExp"]


class KernelDeformedExp(KernelFamily):
    r"""Kernel deformed exponential family: the map at alpha in (1, 2] of a kernel score.

    Relative to a base density $q_0$, of the score $f(t) = \sum_{i=1}^I w_i\, k(t, t_i)$,
    $$p(t) = [1 + (\alpha - 1)(f(t) - A)]_+^{1/(\alpha - 1)}\, q_0(t)$$
    with `normalization="inside"`, and
    $$p(t) = \frac1Z [1 + (\alpha - 1) f(t)]_+^{1/(\alpha - 1)}\, q_0(t)$$
    with `"outside"`. The first is the regularized prediction map, whose support is never empty; the
    second is Algorithm 1 of the kernel paper.

    Args:
        weights: $w$ (*batch, I).
        inducing_points: $t_i$: (I,) or (I, 1) for numbers, (I, D) for vectors; (*batch, I, D) if
            each density has its own.
        kernel: Positive semi-definite, (n, D), (m, D) to (n, m), for instance one of
            `pyro.contrib.gp.kernels`. It is called with float64 matrices.
        base: $q_0$: a univariate distribution, or for vectors an `Independent` or a sequence of
            them; default uniform on [0, 1] in each dimension. It is constant.
        alpha: Entropic index in (1, 2], a number or (*batch).
        normalization: "inside" or "outside".
        tolerance: Relative error to which scores are polynomials between nodes; default 1e-5 in
            float32 (1e-6 where so many kernels overlap that large weights cancel) and 1e-11 in
            float64 for numbers, less in more dimensions.
        panels: `panels` of another density with the same kernel, inducing points, base and dtype,
            whose nodes are then shared; default: found anew. Compiled graphs need it.
        validate_args: As in torch.distributions.

    Raises:
        ValueError: As `KernelExp`; `alpha` outside (1, 2]; another `normalization`; a support that
            is empty outside, naming the batch indices, or a power too large to be normalised there.

    References:
        Moreno et al. (2022), Kernel Deformed Exponential Families for Sparse Continuous Attention,
        section 4.2, Prop. 2 and Algorithm 1.

    Examples:
        >>> from pyro.contrib.gp.kernels import RBF
        >>> kernel = RBF(1, lengthscale=torch.tensor(0.1))
        >>> weights, points = torch.tensor([4.0, -4.0, 3.0]), torch.tensor([0.2, 0.5, 0.8])
        >>> KernelDeformedExp(weights, points, kernel).support.intervals
        tensor([[0.0134, 0.3319],
                [0.6810, 0.9704]])
    """

    def __init__(
        self,
        weights: Tensor,
        inducing_points: Tensor,
        kernel: Kernel,
        base: Distribution | Sequence[Distribution] | None = None,
        alpha: Tensor | float = 2.0,
        normalization: Literal["inside", "outside"] = "inside",
        *,
        tolerance: float | None = None,
        panels: KernelPanels | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if normalization not in ("inside", "outside"):
            raise ValueError(f"normalization must be 'inside' or 'outside', got {normalization!r}")
        self.normalization = normalization
        self._fixed_alpha = float(alpha) if isinstance(alpha, Real) else None
        parts = (weights, inducing_points, kernel, base, alpha)
        super().__init__(*parts, tolerance, panels, validate_args)
        if normalization == "outside":
            self._require_support()

    def _require_alpha(self) -> None:
        rule = f"in (1, 2] in {self.alpha.dtype}"
        require((self.alpha > 1) & (self.alpha <= 2), "alpha", rule, self.alpha)

    def _require_support(self) -> None:
        alive = (self._parts.mass.detach() > 0).reshape(self.batch_shape)
        if not torch.compiler.is_compiling() and not torch._is_all_true(alive):
            raise ValueError(
                "weights must be such that 1 + (alpha - 1) f is positive somewhere "
                "(normalization='inside' always has a support), got an empty support at batch "
                f"indices {(~alive).nonzero().tolist()}"
            )

    def _growth(self, size: Tensor) -> Tensor:
        # At the largest alpha - 1 of all that may share the panels the power is the smallest.
        eps = (self.alpha.detach().double() - 1).flatten().min() if self.alpha.numel() else 1.0
        return torch.log1p(eps * size) / eps

    @property
    def _power(self) -> Power:
        if self._fixed_alpha is not None:
            return Power(self._fixed_alpha - 1)
        return Power((self.alpha - 1).reshape(-1).to(self._dtype))

    @once
    def _parts(self) -> Parts:
        if self.normalization == "inside":
            return self._normalized(self._power.eps)
        measure, scores = self._measure(self.panels), self._scores_on(self.panels)
        if not self._power.is_product:
            log = self._power.log_base(scores.detach().amax((0, 1)))
            rule = f"so small that powers are below exp({LOG_LARGE:g}) with normalization='outside'"
            require(log < LOG_LARGE, "weights", rule, self.weights)
        weights, lowered = integrals(scores, measure, self._power, "power lowered")
        mass = weights.sum((0, 1))
        return Parts(torch.zeros_like(mass), weights, mass, lowered)
