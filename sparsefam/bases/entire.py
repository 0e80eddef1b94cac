"""Bases of functions that never vanish: Fourier and polynomial."""

import torch
from torch import Tensor

from .arguments import (
    Values,
    check_degree,
    check_finite,
    check_vector,
    common_dtype,
    floating,
    store,
)
from .base import Basis

__all__ = ["Fourier", "Polynomial"]


class Fourier(Basis):
    r"""Cosines, then sines: $\cos(\omega_1 t), \dots, \cos(\omega_K t), \sin(\omega_1 t), \dots$.

    Args:
        frequencies: Angular frequencies $\omega_k$, shape (K,); a parameter stays one.

    Raises:
        ValueError: If a frequency is not finite, or the shape is wrong.

    Examples:
        >>> len(Fourier([1.0, 2.0, 3.0]))
        6
    """

    frequencies: Tensor

    def __init__(self, frequencies: Values) -> None:
        super().__init__()
        frequencies = floating(frequencies, common_dtype(frequencies))
        check_finite("frequencies", frequencies)
        check_vector("frequencies", frequencies)
        store(self, "frequencies", frequencies)

    def __len__(self) -> int:
        return 2 * len(self.frequencies)

    def forward(self, t: Tensor) -> Tensor:
        angles = t.unsqueeze(-1) * self.frequencies
        return torch.cat([angles.cos(), angles.sin()], -1)


class Polynomial(Basis):
    r"""The powers $1, t, \dots, t^d$.

    Args:
        degree: Highest power $d \ge 0$.

    Raises:
        ValueError: If the degree is negative.

    Examples:
        >>> Polynomial(3)(torch.tensor(2.0))
        tensor([1., 2., 4., 8.])
    """

    def __init__(self, degree: int) -> None:
        super().__init__()
        check_degree(degree)
        self.degree = degree

    def __len__(self) -> int:
        return self.degree + 1

    def forward(self, t: Tensor) -> Tensor:
        return t.unsqueeze(-1) ** torch.arange(len(self), device=t.device)
