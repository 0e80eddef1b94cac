"""Kernel exponential families: densities of any shape, positive on the base's support."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..kernels import Kernel
from ..numerics.arguments import require
from ..numerics.truncated_power import Power
from .kernel_family import KernelFamily
from .kernel_panels import KernelPanels
from .kernel_power import Parts
from .once import once

__all__ = ["KernelExp"]


class KernelExp(KernelFamily):
    r"""Kernel exponential family: the map at alpha = 1 of a kernel score, relative to a base.

    $$p(t) = \exp(f(t) - A)\, q_0(t), \qquad f(t) = \sum_{i=1}^I w_i\, k(t, t_i)$$

    Args:
        weights: $w$ (*batch, I).
        inducing_points: $t_i$: (I,) or (I, 1) for numbers, (I, D) for vectors; (*batch, I, D) if
            each density has its own.
        kernel: Positive semi-definite, (n, D), (m, D) to (n, m), for instance one of
            `pyro.contrib.gp.kernels`. It is called with float64 matrices.
        base: $q_0$: a univariate distribution, or for vectors an `Independent` or a sequence of
            them; default uniform on [0, 1] in each dimension. It is constant.
        tolerance: Relative error to which scores are polynomials between nodes; default 1e-5 in
            float32 (1e-6 where so many kernels overlap that large weights cancel) and 1e-11 in
            float64 for numbers, less in more dimensions.
        panels: `panels` of another density with the same kernel, inducing points, base and dtype,
            whose nodes are then shared; default: found anew. Compiled graphs need it.
        validate_args: As in torch.distributions.

    Raises:
        ValueError: Shapes that do not fit; `weights` or `inducing_points` not finite; inducing
            points outside the base's support; a kernel of another shape, not finite, or not
            positive semi-definite on the inducing points; a base with parameters that require grad,
            or with tails too heavy for the growth of k(t, t) (Prop. 1); a kernel that no number of
            nodes within reason resolves.

    References:
        Canu and Smola (2006), Kernel methods and the exponential family. Moreno et al. (2022),
        Kernel Deformed Exponential Families for Sparse Continuous Attention, section 4.1 and
        Prop. 1.

    Examples:
        >>> from pyro.contrib.gp.kernels import RBF
        >>> kernel = RBF(1, lengthscale=torch.tensor(0.1))
        >>> p = KernelExp(torch.tensor([3.0, 0.0, 2.0]), torch.tensor([0.2, 0.5, 0.8]), kernel)
        >>> p.mean.detach()
        tensor(0.3936)
    """

    def __init__(
        self,
        weights: Tensor,
        inducing_points: Tensor,
        kernel: Kernel,
        base: Distribution | Sequence[Distribution] | None = None,
        *,
        tolerance: float | None = None,
        panels: KernelPanels | None = None,
        validate_args: bool | None = None,
    ) -> None:
        parts = (weights, inducing_points, kernel, base)
        super().__init__(*parts, 1.0, tolerance, panels, validate_args)

    def _growth(self, size: Tensor) -> Tensor:
        return size

    @property
    def _power(self) -> Power:
        return Power(0.0)

    @once
    def _parts(self) -> Parts:
        return self._normalized(0.0)

    def escort(self, beta: Tensor | float | None = None) -> "KernelExp":
        r"""The $\beta$-escort relative to the base, whose weights are beta times these; default 1.

        Raises:
            ValueError: `beta` negative or not finite.
        """
        if beta is None:
            return self
        power = torch.as_tensor(beta, dtype=self.weights.dtype, device=self.weights.device)
        require(torch.isfinite(power) & (power >= 0), "beta", "finite and not negative", beta)
        return KernelExp(
            power.unsqueeze(-1) * self.weights,
            self.inducing_points,
            self.kernel,
            self.base,
            panels=self.panels,
            validate_args=self._validation,
        )
