"""Functions of location that are combinations of a basis."""

from typing import Protocol

import torch
from torch import Tensor

from ..bases import Basis
from .observations import check_real
from .precision import full_precision

__all__ = ["Density", "ValueFunction"]


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
        penalty: The ridge penalty that they were fitted with, if any: one, or shape (B,).

    Raises:
        ValueError: If the basis is none, or the coefficients are no such matrices.
    """

    def __init__(
        self, basis: Basis, coefficients: Tensor, penalty: Tensor | float | None = None
    ) -> None:
        if not isinstance(basis, Basis):
            raise ValueError(f"basis must be a Basis, got {basis!r}")
        tensor = isinstance(coefficients, Tensor) and coefficients.is_floating_point()
        if not tensor or coefficients.ndim != 3 or coefficients.shape[1] != len(basis):
            got = tuple(coefficients.shape) if tensor else type(coefficients).__name__
            raise ValueError(f"coefficients must be floating, (B, {len(basis)}, E), got {got}")
        self.basis = basis
        self.coefficients = coefficients
        self.penalty = penalty

    def __call__(self, t: Tensor) -> Tensor:
        """Evaluates every function at its own locations.

        Args:
            t: Locations, shape (B, ..., *event) or (1, ..., *event), where event is the shape of
                one location of the basis; a single location is the same for all.

        Returns:
            The values, shape (B, ..., E), in the wider dtype of basis and coefficients.

        Raises:
            ValueError: If the first dimension of the locations is neither B nor 1, or the last ones
                are no location of the basis.
        """
        if not isinstance(t, Tensor):
            raise ValueError(f"t must be a tensor, got {t!r}")
        check_real("t", t)
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
        if not callable(getattr(density, "expect", None)):
            raise ValueError(f"density must have expectations, got {density!r}")
        features, batch = density.expect(self.basis), len(self.coefficients)
        if features.ndim < 2 or features.shape[0] not in (1, batch):
            raise ValueError(
                f"density must have batch_shape ({batch}, ...) or (1, ...), "
                f"got {tuple(features.shape[:-1])}"
            )
        return self._contract(features)

    def _contract(self, features: Tensor) -> Tensor:
        """Features (B, ..., N) against coefficients (B, N, E), in the wider dtype of the two."""
        dtype = torch.promote_types(features.dtype, self.coefficients.dtype)
        parts = features.to(dtype), self.coefficients.to(dtype)
        with full_precision(features):
            return torch.einsum("b...n,bne->b...e", *parts)
