"""Value functions: observations at irregular locations, smoothed by ridge regression."""

import math
from typing import Protocol

import torch
from torch import Size, Tensor, nn
from torch.distributions import Distribution

from ..bases import Basis

__all__ = ["RidgeRegression", "ValueFunction"]


class Density(Protocol):
    """What a value function asks of a density: the expectation of a basis."""

    def expect(self, basis: Basis, /) -> Tensor:
        """The expectations, shape (*batch_shape, N)."""
        ...


class ValueFunction:
    r"""A batch of functions $V_b(t) = C_b^\top \psi(t)$ from locations to E channels.

    Args:
        basis: The functions $\psi$.
        coefficients: The matrices $C_b$, shape (B, N, E).
    """

    def __init__(self, basis: Basis, coefficients: Tensor) -> None:
        self.basis = basis
        self.coefficients = coefficients

    def __call__(self, t: Tensor) -> Tensor:
        """Evaluates every function at its own locations.

        Args:
            t: Locations, shape (B, ..., *event) or (1, ..., *event), where event is the shape of
                one location of the basis; a single location is the same for all.

        Returns:
            The values, shape (B, ..., E).

        Raises:
            ValueError: If the first dimension of the locations is neither B nor 1, or the last ones
                are no location of the basis.
        """
        event = self.basis.event_shape
        if t.ndim == len(event):
            t = t.unsqueeze(0)
        batch = len(self.coefficients)
        fits = t.ndim > len(event) and t.shape[t.ndim - len(event) :] == event
        if not fits or t.shape[0] not in (1, batch):
            ends = "".join(f", {size}" for size in event)
            raise ValueError(
                f"t must have shape ({batch}, ...{ends}) or (1, ...{ends}), got {tuple(t.shape)}"
            )
        return self._contract(self.basis(t))

    def expect(self, density: Density) -> Tensor:
        r"""The context $\mathbb E_p[V(t)]$, eq. 15 of the paper.

        Args:
            density: Any distribution with `expect`, of batch shape (B, ...) or (1, ...).

        Returns:
            The expectations, shape (B, ..., E).

        Raises:
            ValueError: If the first dimension of the batch shape is neither B nor 1.
        """
        features, batch = density.expect(self.basis), len(self.coefficients)
        if features.ndim < 2 or features.shape[0] not in (1, batch):
            raise ValueError(
                f"density must have batch_shape ({batch}, ...) or (1, ...), "
                f"got {tuple(features.shape[:-1])}"
            )
        return self._contract(features)

    def _contract(self, features: Tensor) -> Tensor:
        """Features (B, ..., N) against coefficients (B, N, E)."""
        return torch.einsum("b...n,bne->b...e", features, self.coefficients)


class RidgeRegression(nn.Module):
    r"""Fits a value function to observations, by ridge regression on a basis.

    $$C = \arg\min_C \lVert F C - H \rVert^2 + \lambda \lVert C \rVert^2
        = (F^\top F + \lambda I)^{-1} F^\top H, \qquad F_{\ell j} = \psi_j(t_\ell)$$

    Overlapping basis functions make $F^\top F$ singular to working precision, which in float32
    would cost three to five digits of $V$ and, for long sequences, the factorisation itself. So the
    basis is evaluated and the system solved in float64, whatever the dtype of the observations:
    with 64 Gaussians of width 1.5/64 and $\lambda = 0.01$ the coefficients are those of a float64
    least-squares solution to 4e-8, the rounding of the result.

    Args:
        basis: The N functions $\psi$; it must accept float64 locations.
        penalty: The ridge penalty $\lambda > 0$.
        validate_args: Whether to check the values of arguments; None follows
            `torch.distributions`.

    Raises:
        ValueError: If the penalty is not finite and positive.

    References:
        Martins et al. (2020), Sparse and Continuous Attention, eq. 16. arXiv:2006.07214

    Examples:
        >>> from sparsefam.bases import Polynomial
        >>> t = torch.tensor([[0.0, 1.0, 2.0]])
        >>> line = RidgeRegression(Polynomial(1), penalty=1e-8).fit(t, 3 * t.unsqueeze(-1) + 1)
        >>> line(torch.tensor([[5.0]]))
        tensor([[[16.0000]]])
    """

    def __init__(
        self, basis: Basis, penalty: float = 1e-2, *, validate_args: bool | None = None
    ) -> None:
        super().__init__()
        if not (math.isfinite(penalty) and penalty > 0):
            raise ValueError(f"penalty must be finite and positive, got {penalty}")
        default = Distribution._validate_args
        self.basis = basis
        self.penalty = float(penalty)
        self.validate_args = default if validate_args is None else validate_args

    def extra_repr(self) -> str:
        return f"penalty={self.penalty}"

    def fit(self, positions: Tensor, values: Tensor, mask: Tensor | None = None) -> ValueFunction:
        """Fits one function per example.

        Args:
            positions: Locations of the observations, in any order: shape (B, L), or (B, L, D) for a
                basis on D dimensions. Without the B, or with 1 for it, they are shared, and with
                them a single factorisation, among all examples.
            values: The observations, shape (B, L, E).
            mask: Shape (B, L), True where an observation takes part; what lies at the other places
                is never read, so that padding cannot leak. None: all take part.

        Returns:
            The fitted functions, differentiable in positions, values and learned basis parameters.

        Raises:
            ValueError: If shapes do not match or are empty, if a position or value that takes part
                is not finite, or if an example has none that does.
        """
        event = self.basis.event_shape
        _check_shapes(positions, values, mask, event)
        positions = positions.unsqueeze(0) if positions.ndim == 1 + len(event) else positions
        if self.validate_args:
            _check_values(positions, values, mask)
        if mask is not None:
            positions = torch.where(over_events(mask, event), positions, 0)
            values = torch.where(mask.unsqueeze(-1), values, 0)
        design = self.basis(positions.double())
        if mask is not None:
            design = torch.where(mask.unsqueeze(-1), design, 0)
        solution = self._solve(design, values.double())
        return ValueFunction(self.basis, solution.to(values.dtype))

    def _solve(self, design: Tensor, values: Tensor) -> Tensor:
        """Coefficients (B, N, E) from a design (B or 1, L, N) and values (B, L, E)."""
        shared = len(design)
        # Examples that share a design become further columns of one right-hand side.
        values = values.reshape(shared, -1, *values.shape[1:])
        right = torch.einsum("sln,scle->snce", design, values)
        gram = design.mT @ design
        gram.diagonal(dim1=-2, dim2=-1).add_(self.penalty)
        factor, failed = torch.linalg.cholesky_ex(gram)
        if self.validate_args:
            self._check_factor(gram, factor, failed)
        solution = torch.cholesky_solve(right.flatten(2), factor).reshape(right.shape)
        return solution.transpose(1, 2).flatten(0, 1)

    def _check_factor(self, gram: Tensor, factor: Tensor, failed: Tensor) -> None:
        pivots = factor.diagonal(dim1=-2, dim2=-1).square().amin(-1)
        largest = gram.diagonal(dim1=-2, dim2=-1).amax(-1)
        valid = (failed == 0) & (pivots > gram.shape[-1] * torch.finfo(gram.dtype).eps * largest)
        rule = "penalty must exceed the rounding errors of the basis's Gram matrix"
        _require(valid, rule, torch.full_like(pivots, self.penalty))


def over_events(mask: Tensor, event: Size) -> Tensor:
    """A mask over locations, to broadcast against locations of an event shape."""
    return mask.reshape(*mask.shape, *(1,) * len(event))


def _check_shapes(positions: Tensor, values: Tensor, mask: Tensor | None, event: Size) -> None:
    if values.ndim != 3 or values.numel() == 0:
        raise ValueError(
            f"values must have shape (B, L, E), none of them zero, got {tuple(values.shape)}"
        )
    batch, length = values.shape[:2]
    shared = (length, *event)
    if positions.shape not in ((batch, *shared), (1, *shared), shared):
        raise ValueError(
            f"positions must have shape {(batch, *shared)}, {(1, *shared)} or {shared} "
            f"to match values and basis, got {tuple(positions.shape)}"
        )
    if mask is not None and (mask.shape != (batch, length) or mask.dtype != torch.bool):
        raise ValueError(
            f"mask must be boolean of shape ({batch}, {length}) to match values, "
            f"got {mask.dtype} of shape {tuple(mask.shape)}"
        )


def _check_values(positions: Tensor, values: Tensor, mask: Tensor | None) -> None:
    part = torch.ones_like(values[..., 0], dtype=torch.bool) if mask is None else mask
    rule = "mask must let at least one position of every example take part"
    _require(part.any(-1), rule, part.sum(-1))
    finite = "must be finite where they take part"
    everywhere = positions.expand(*part.shape, *positions.shape[2:])
    taken = over_events(part, positions.shape[2:])
    _require(everywhere.isfinite() | ~taken, f"positions {finite}", everywhere)
    _require(values.isfinite() | ~part.unsqueeze(-1), f"values {finite}", values)


def _require(valid: Tensor, rule: str, found: Tensor) -> None:
    """Raises at the first place that is not valid; in a compiled graph, which cannot, asserts."""
    if torch.compiler.is_compiling():
        torch._assert_async(torch._is_all_true(valid), rule)
    elif not torch._is_all_true(valid):
        first = (~valid).nonzero()[0].tolist()
        raise ValueError(f"{rule}, got {found[tuple(first)].item()} at index {first}")
