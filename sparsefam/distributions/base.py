"""Base classes of densities: the interface, and what follows from a standardized density."""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from pyro.distributions import TorchDistribution
from torch import Size, Tensor
from torch.distributions import constraints
from torch.types import _size
from torch.utils.checkpoint import checkpoint
from typing_extensions import Self

from ..bases import Basis
from ..dispatch import find_expect
from ..numerics.deformed import expm1_ratio
from ..numerics.validation import attributes, broadcast_shapes, in_eager, require
from ..scores import Score

__all__ = ["SparseDistribution", "StandardizedDistribution"]


class SparseDistribution(TorchDistribution):
    r"""A density that may be exactly zero; a torch and a Pyro distribution at once.

    A subclass names its parameters in `arg_constraints`, stores them as attributes broadcast to
    the batch shape, and implements `support`, `log_prob`, `rsample`, `quadrature` and its closed
    forms. The base class derives the rest.

    Off the support `log_prob` is -inf with zero gradient. Validation of a value therefore checks
    its shape and that it is real, but not whether it lies in the support.

    Attributes:
        alpha: Entropic index of the prediction map that this density solves (*batch).
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]]
    has_rsample = True
    # Cached attributes to drop when the batch expands.
    _per_batch: ClassVar[tuple[str, ...]] = ()
    alpha: Tensor

    @property
    def score(self) -> Score:
        """The score f with `rpm(f, alpha)` equal to this density."""
        raise NotImplementedError

    @property
    def log_normalizer(self) -> Tensor:
        r"""$A_\alpha(f)$ in $p = \exp_{2-\alpha}(f - A_\alpha)$ (*batch).

        References:
            Martins et al. (2020), Sparse and Continuous Attention Mechanisms, Prop. 1.
        """
        raise NotImplementedError

    def sample(self, sample_shape: _size = Size()) -> Tensor:
        """Draws (*sample, *batch, *event) without gradients."""
        # Detached, as torch.jit ignores no_grad when it replays a trace.
        return super().sample(sample_shape).detach()

    def prob(self, value: Tensor) -> Tensor:
        """Density at `value`; exactly 0 off the support."""
        return torch.exp(self.log_prob(value))

    def tsallis_entropy(self) -> Tensor:
        r"""$-\Omega_\alpha(p) = (1 - \int p^\alpha)/(\alpha(\alpha - 1))$; Shannon's at 1 (*batch).

        References:
            Martins et al. (2020), Sparse and Continuous Attention Mechanisms, eq. 6.
        """
        raise NotImplementedError

    def escort(self, beta: Tensor | float | None = None) -> "SparseDistribution":
        r"""The $\beta$-escort $p^\beta / \int p^\beta$ on the same support; default $2 - \alpha$.

        References:
            Martins et al. (2020), Sparse and Continuous Attention Mechanisms, eq. 5.
        """
        raise NotImplementedError

    def quadrature(self, order: int = 64) -> tuple[Tensor, Tensor]:
        r"""Nodes (Q, *batch, *event) and weights (Q, *batch): $\sum_q w_q g(t_q) \to E_p[g]$.

        Both are differentiable in the parameters.

        Args:
            order: At least the number of nodes over each smooth piece of the density.
        """
        raise NotImplementedError

    def expect(self, psi: Basis | Callable[[Tensor], Tensor], order: int = 64) -> Tensor:
        r"""Expectation $E_p[\psi(t)]$, differentiable in the parameters of p and of psi.

        Uses the closed form registered for the types of p and psi (`sparsefam.register_expect`) if
        there is one, else `quadrature` on the support.

        Args:
            psi: A basis, or any callable from locations (Q, *batch, *event) to (Q, *batch, *shape).
            order: Quadrature order if there is no closed form. Functions much narrower than the
                support need a higher order.

        Returns:
            (*batch, N) for a basis, (*batch, *shape) for a callable.

        References:
            Martins et al. (2020), Sparse and Continuous Attention Mechanisms, eq. 15.
        """
        if isinstance(psi, Basis):
            self._check_basis("psi", psi)
        elif not callable(psi):
            raise ValueError(f"psi must be a basis or a callable, got {psi!r}")
        rule = find_expect(type(self), type(psi))
        found: Tensor = NotImplemented if rule is None else rule(self, psi)
        return self._quadrature_expect(psi, order) if found is NotImplemented else found

    def _quadrature_expect(self, psi: Callable[[Tensor], Tensor], order: int) -> Tensor:
        weights, values = self._quadrature_values(psi, order)
        return (weights * values).sum(0)

    def _quadrature_values(
        self, psi: Callable[[Tensor], Tensor], order: int
    ) -> tuple[Tensor, Tensor]:
        """Return weights and values of psi at the nodes, which multiply to (Q, *batch, *shape)."""
        return self._values_at(psi, *self.quadrature(order))

    @staticmethod
    def _values_at(
        psi: Callable[[Tensor], Tensor], nodes: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return weights, reshaped to multiply values of psi, and these values."""
        values = psi(nodes)
        if not isinstance(values, Tensor):
            raise ValueError(f"psi must map locations to a tensor of values, got {values!r}")
        if values.shape[: weights.dim()] != weights.shape:
            raise ValueError(
                f"psi must map locations {tuple(nodes.shape)} to values that begin with "
                f"{tuple(weights.shape)}, got {tuple(values.shape)}"
            )
        extra = values.dim() - weights.dim()
        return weights.reshape(*weights.shape, *(1,) * extra), values

    def quadrature_error(self, psi: Basis | Callable[[Tensor], Tensor], order: int = 64) -> Tensor:
        r"""Estimate of the error of $\sum_q w_q \psi(t_q)$ for the rule of `quadrature(order)`.

        The difference to a rule half as fine again; in more than three dimensions, where directions
        are quasi-random, the standard error over independent replicates and what more radii change.

        Args:
            psi: A basis, or any callable from locations (Q, *batch, *event) to (Q, *batch, *shape).
            order: As for `quadrature`.

        Returns:
            Nonnegative, of the shape of `expect(psi)`.
        """
        if isinstance(psi, Basis):
            self._check_basis("psi", psi)
        rough, fine = (
            (weights * values).sum(0)
            for weights, values in (
                self._quadrature_values(psi, n) for n in (order, order + order // 2 + 1)
            )
        )
        return (fine - rough).abs()

    def _check_basis(self, name: str, basis: Basis) -> None:
        if not isinstance(basis, Basis):
            raise ValueError(f"{name} must be a basis, got {basis!r}")
        if basis.event_shape != self.event_shape:
            raise ValueError(
                f"{name} must take locations of event shape {tuple(self.event_shape)}, "
                f"got {tuple(basis.event_shape)}"
            )

    def generalized_covariance(
        self, phi: Basis, psi: Basis, beta: Tensor | float | None = None
    ) -> Tensor:
        r"""Generalized $\beta$-covariance of two bases, (*batch, M, N).

        $$\|p\|_\beta^\beta\,(\tilde E[\phi\psi'] - \tilde E[\phi]\tilde E[\psi]')$$

        The expectations are under the $\beta$-escort. At the default $\beta = 2 - \alpha$ this is
        the Jacobian of $E_p[\psi]$ in the score's coefficients on phi (Prop. 3).

        References:
            Martins et al. (2020), Sparse and Continuous Attention Mechanisms, eq. 17.
        """
        raise NotImplementedError

    def plot(self, ax: Any = None, **options: Any) -> Any:
        """Draw the density with its support shaded; see `sparsefam.plotting.plot_density`."""
        from ..plotting import plot_density  # matplotlib is an optional dependency

        return plot_density(self, ax=ax, **options)

    def expand(
        self, batch_shape: _size, _instance: "SparseDistribution | None" = None
    ) -> "SparseDistribution":
        """Return the same density with its batch expanded to `batch_shape`, without copying."""
        shape = Size(batch_shape)
        return self._with_parameters(shape, lambda x, event: x.expand(shape + event), _instance)

    def _with_parameters(
        self,
        shape: Size,
        change: Callable[[Tensor, Size], Tensor],
        instance: "SparseDistribution | None" = None,
    ) -> "SparseDistribution":
        """Return the density of another batch shape, of parameters changed by a function.

        The function receives a parameter and the shape that belongs to one density.
        """
        new = type(self).__new__(type(self)) if instance is None else instance
        for name, value in attributes(self).items():
            if name not in self._per_batch:
                new.__dict__[name] = value
        # alpha is a parameter of every density, though not of every constructor.
        for name, constraint in {"alpha": constraints.real, **self.arg_constraints}.items():
            value = getattr(self, name)
            setattr(new, name, change(value, value.shape[value.dim() - constraint.event_dim :]))
        torch.distributions.Distribution.__init__(new, shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def _validate_sample(self, value: Tensor) -> None:
        if not isinstance(value, Tensor):
            raise ValueError(f"value must be a tensor, got {type(value).__name__}")
        shape = self.batch_shape + self.event_shape
        if value.is_complex() or value.dtype == torch.bool:
            raise ValueError(f"value must be real numbers, got {value.dtype}")
        if value.shape[value.dim() - len(shape) :] != shape and not self._fits(value.shape):
            raise ValueError(
                f"value must broadcast with batch shape {tuple(self.batch_shape)} and end in event "
                f"shape {tuple(self.event_shape)}, got shape {tuple(value.shape)}"
            )
        require(~torch.isnan(value), "value", "real", value)

    def _fits(self, shape: Size) -> bool:
        """Return whether values of a shape broadcast with the batch."""
        try:
            broadcast_shapes(shape, self.batch_shape + self.event_shape)
        except RuntimeError:
            return False
        return shape[len(shape) - len(self.event_shape) :] == self.event_shape

    @property
    def _validation(self) -> bool | None:
        """`validate_args` as the user gave it, for densities derived from this one."""
        return self.__dict__.get("_validate_args")


# Values of functions at nodes in one block of the batch. The backward pass of a block keeps about a
# hundred tensors of this size: 200 MB in float32.
_AT_ONCE = 1 << 19


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
        # Parameters are split once: the gradient of a slice would be as large as the parameter.
        parts: dict[int, Sequence[Tensor]] = {}

        def part(x: Tensor, start: int) -> Tensor:
            if id(x) not in parts:
                parts[id(x)] = x.split(size)
            return parts[id(x)][start // size]

        def compute(start: int) -> Tensor:
            shape = Size([min(size, total - start)])
            return rule(flat._with_parameters(shape, lambda x, _: part(x, start)))

        starts = range(0, total, size)
        first = compute(0)
        if first.requires_grad:
            blocks = [
                checkpoint(compute, i, use_reentrant=False, preserve_rng_state=False)
                for i in starts
            ]
            joined: Tensor = torch.cat(blocks).unflatten(0, self.batch_shape)
            return joined
        # Small results between large temporaries would keep the allocator from reusing these.
        found = first.new_empty(total, *first.shape[1:])
        found[:size] = first
        for i in starts[1:]:
            found[i : i + size] = compute(i)
        whole: Tensor = found.unflatten(0, self.batch_shape)
        return whole

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
        # Infinite values get a zero gradient; that of the product would be NaN.
        found = (norm * covariance).detach()
        finite = found.isfinite()
        product = torch.where(finite, norm, 1.0) * torch.where(finite, covariance, 0.0)
        return torch.where(finite, product, found)
