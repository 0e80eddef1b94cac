"""Value functions: linear combinations of a basis, which densities read."""

import torch
from torch import Tensor

from .._numerics.validation import require_tensor
from ..bases import Basis
from ..distributions import SparseDistribution
from ._masks import check_real, check_shape, full_precision

__all__ = ["ValueFunction", "features_of"]


class ValueFunction:
    r"""A batch of functions $V_b(t) = c_b + C_b^\top \psi(t)$ from locations to E channels.

    Args:
        basis: The functions $\psi$.
        coefficients: The matrices $C_b$, shape (B, N, E).
        penalty: The factor of the penalty of the fit, if any: a number, or shape (B,) or (G,).
        constant: The vectors $c_b$, shape (B, E); None is 0.

    Raises:
        ValueError: If `basis` is not a basis, or `coefficients` or `constant` has another shape.
    """

    def __init__(
        self,
        basis: Basis,
        coefficients: Tensor,
        penalty: Tensor | float | None = None,
        constant: Tensor | None = None,
    ) -> None:
        if not isinstance(basis, Basis):
            raise ValueError(f"basis must be a Basis, got {basis!r}")
        require_tensor("coefficients", coefficients)
        if coefficients.shape[1:2] != (len(basis),) or coefficients.ndim != 3:
            shape = tuple(coefficients.shape)
            raise ValueError(f"coefficients must have shape (B, {len(basis)}, E), got {shape}")
        if constant is not None:
            check_shape("constant", constant, (coefficients.shape[0], coefficients.shape[2]))
        self.basis = basis
        self.coefficients = coefficients
        self.penalty = penalty
        self.constant = constant

    def __call__(self, t: Tensor) -> Tensor:
        """Evaluate every function at its own locations.

        Args:
            t: Locations, shape (B, ..., *event) or (1, ..., *event), where event is the shape of
                one location of the basis. A single location is shared by all functions.

        Returns:
            The values, shape (B, ..., E), in the wider dtype of basis and coefficients.

        Raises:
            ValueError: If the first dimension is neither B nor 1, or the last ones do not have the
                shape of a location.
        """
        check_real("t", t)
        event = self.basis.event_shape
        # A location without a batch is shared by all functions.
        if t.ndim == len(event):
            t = t.unsqueeze(0)
        batch = self.coefficients.shape[0]
        fits = t.ndim > len(event) and t.shape[t.ndim - len(event) :] == event
        if not fits or t.shape[0] not in (1, batch):
            ends = "".join(f", {size}" for size in event)
            raise ValueError(
                f"t must have shape ({batch}, ...{ends}) or (1, ...{ends}), got {tuple(t.shape)}"
            )
        return self._contract(self.basis(t))

    def expect(self, density: SparseDistribution) -> Tensor:
        r"""Compute the context $\mathbb E_p[V(t)]$, eq. 15 of Martins et al. (2020).

        Args:
            density: Any distribution with `expect`, of batch shape (B, ...) or (1, ...).

        Returns:
            The expectations, shape (B, ..., E).

        Raises:
            ValueError: If the first dimension of the batch shape is neither B nor 1.
        """
        features = features_of(density, self.basis, self.coefficients.shape[0])
        return self._contract(features)

    def _contract(self, features: Tensor) -> Tensor:
        """Multiply features (B, ..., N) by the coefficients (B, N, E), and add the constant."""
        dtype = torch.promote_types(features.dtype, self.coefficients.dtype)
        # Coefficients of overlapping functions cancel, which autocast would do in half precision.
        with full_precision(features):
            values = torch.einsum(
                "b...n,bne->b...e", features.to(dtype), self.coefficients.to(dtype)
            )
        if self.constant is None:
            return values
        # (B, 1, ..., 1, E)
        shape = [len(self.constant), *[1] * (values.ndim - 2), self.constant.shape[1]]
        return values + self.constant.to(values.dtype).reshape(shape)


def features_of(density: SparseDistribution, basis: Basis, batch: int) -> Tensor:
    """Return expectations (B or 1, ..., N) of the basis, or raise ValueError.

    Args:
        density: Any distribution with `expect`, of batch shape (B or 1, ...).
        basis: The N functions.
        batch: B, the number of value functions.
    """
    if not callable(getattr(density, "expect", None)):
        raise ValueError(f"density must have expectations, got {density!r}")
    features: Tensor = density.expect(basis)
    if features.ndim < 2 or features.shape[0] not in (1, batch):
        raise ValueError(
            f"density must have batch_shape ({batch}, ...) or (1, ...), "
            f"got {tuple(features.shape[:-1])}"
        )
    return features
