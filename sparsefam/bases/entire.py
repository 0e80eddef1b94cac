"""Bases of functions that never vanish: Fourier and polynomial."""

from functools import reduce
from itertools import combinations_with_replacement

import torch
from torch import Size, Tensor

from ..numerics.arguments import require_integer
from .arguments import (
    Values,
    check_locations,
    check_rows,
    common_dtype,
    floating,
    store,
)
from .base import Basis

__all__ = ["Fourier", "Polynomial"]


class Fourier(Basis):
    r"""Cosines, then sines.

    $$\cos(\omega_1^\top t), \dots, \cos(\omega_K^\top t),
        \sin(\omega_1^\top t), \dots, \sin(\omega_K^\top t)$$

    Args:
        frequencies: Angular frequencies $\omega_k$, shape (K,), or (K, D) for locations of D
            coordinates; a parameter stays one.

    Raises:
        ValueError: If a frequency is not finite, or the shape is wrong.

    Examples:
        >>> len(Fourier([1.0, 2.0, 3.0]))
        6
        >>> Fourier([[0.0, 1.0]])(torch.tensor([5.0, 0.0]))
        tensor([1., 0.])
    """

    frequencies: Tensor

    def __init__(self, frequencies: Values) -> None:
        super().__init__()
        frequencies = floating("frequencies", frequencies, common_dtype(frequencies))
        check_rows("frequencies", frequencies)
        store(self, "frequencies", frequencies)

    def __len__(self) -> int:
        return 2 * len(self.frequencies)

    @property
    def event_shape(self) -> Size:
        return self.frequencies.shape[1:]

    def forward(self, t: Tensor) -> Tensor:
        check_locations(t, self.event_shape)
        if self.event_shape:
            angles = (t.unsqueeze(-2) * self.frequencies).sum(-1)
        else:
            angles = t.unsqueeze(-1) * self.frequencies
        return torch.cat([angles.cos(), angles.sin()], -1)


class Polynomial(Basis):
    r"""The powers $1, t, \dots, t^d$, or all monomials of D coordinates up to a total degree.

    Monomials come by total degree and then as in scikit-learn's `PolynomialFeatures`:
    $1, x, y, x^2, xy, y^2, \dots$

    Args:
        degree: Highest power or total degree $d \ge 0$.
        ndim: Number of coordinates D of a location; None for numbers.

    Attributes:
        exponents: The powers, (N,), or (N, D) where there are coordinates.
        lowered: Where the coordinates' monomials have their derivatives, (N, D): the row of the
            monomial with one power of that coordinate less, or 0 if it has none.

    Raises:
        ValueError: If the degree is negative or ndim not positive.

    Examples:
        >>> Polynomial(3)(torch.tensor(2.0))
        tensor([1., 2., 4., 8.])
        >>> Polynomial(2, ndim=2)(torch.tensor([2.0, 3.0]))
        tensor([1., 2., 3., 4., 6., 9.])
    """

    exponents: Tensor
    lowered: Tensor

    def __init__(self, degree: int, ndim: int | None = None) -> None:
        super().__init__()
        require_integer("degree", degree, 0)
        if ndim is not None:
            require_integer("ndim", ndim, 1)
        self.degree = degree
        self.ndim = ndim
        exponents = _exponents(degree, ndim or 1)
        powers = torch.tensor(exponents)
        self.register_buffer("exponents", powers if ndim else powers[:, 0], persistent=False)
        self.register_buffer("lowered", torch.tensor(_lowered(exponents)), persistent=False)

    def __len__(self) -> int:
        return len(self.exponents)

    @property
    def event_shape(self) -> Size:
        return Size([self.ndim]) if self.ndim else Size()

    def forward(self, t: Tensor) -> Tensor:
        check_locations(t, self.event_shape)
        powers = t.unsqueeze(-1) ** torch.arange(self.degree + 1, device=t.device)
        if not self.event_shape:
            return powers
        columns = zip(powers.unbind(-2), self.exponents.unbind(-1), strict=True)
        return reduce(torch.mul, [power[..., k] for power, k in columns])


def _exponents(degree: int, ndim: int) -> list[list[int]]:
    """The exponents of every monomial, by total degree."""
    return [
        [axes.count(axis) for axis in range(ndim)]
        for total in range(degree + 1)
        for axes in combinations_with_replacement(range(ndim), total)
    ]


def _lowered(exponents: list[list[int]]) -> list[list[int]]:
    """Row of each monomial with one power of an axis less; 0 where there is none."""
    rows = {tuple(powers): row for row, powers in enumerate(exponents)}
    return [
        [rows.get((*k[:axis], k[axis] - 1, *k[axis + 1 :]), 0) for axis in range(len(k))]
        for k in exponents
    ]
