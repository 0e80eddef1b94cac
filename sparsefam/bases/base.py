"""What a basis is, and how bases are stacked."""

from abc import ABC, abstractmethod
from itertools import chain

import torch
from torch import Tensor, nn

__all__ = ["Basis", "Stack"]


class Basis(nn.Module, ABC):
    r"""A vector of $N$ functions $\psi(t) = [\psi_1(t), \dots, \psi_N(t)]$ of a real location.

    A subclass says how many functions there are (`__len__`) and evaluates them (`forward`).
    Adding two bases stacks their functions.
    """

    @abstractmethod
    def forward(self, t: Tensor) -> Tensor:
        """Evaluates every function at every location.

        Args:
            t: Locations, shape (...).

        Returns:
            The values, shape (..., N).
        """

    @abstractmethod
    def __len__(self) -> int:
        """The number of functions, N."""

    @property
    def reach(self) -> tuple[Tensor, Tensor] | None:
        """The window (lower, upper), each (N,), outside which a function is zero to its precision.

        None where the functions have no such window.
        """
        return None

    @property
    def breaks(self) -> Tensor | None:
        """Increasing locations where some function is not smooth; None if all are everywhere."""
        return None

    def own(self, t: Tensor) -> Tensor:
        """Evaluates each function at locations of its own.

        Args:
            t: Locations (..., N), the last axis over functions.

        Returns:
            The values, shape (..., N).
        """
        values: Tensor = self(t)
        return values.diagonal(dim1=-2, dim2=-1)

    def __add__(self, other: "Basis") -> "Stack":
        return Stack(self, other)

    def extra_repr(self) -> str:
        return f"n={len(self)}"


class Stack(Basis):
    """Several bases side by side, in the order given; nested stacks are flattened.

    Args:
        bases: The bases to stack.

    Raises:
        ValueError: If there is none, or one of them is not a basis.

    Examples:
        >>> from sparsefam.bases import Fourier, Polynomial
        >>> len(Polynomial(1) + Fourier([1.0, 2.0]))
        6
    """

    def __init__(self, *bases: Basis) -> None:
        super().__init__()
        if not bases or not all(isinstance(basis, Basis) for basis in bases):
            names = [type(basis).__name__ for basis in bases]
            raise ValueError(f"bases must be one or more Basis objects, got {names}")
        nested = [basis.bases if isinstance(basis, Stack) else [basis] for basis in bases]
        self.members = nn.ModuleList(chain.from_iterable(nested))

    @property
    def bases(self) -> list[Basis]:
        """The bases stacked, none of them a stack."""
        return [member for member in self.members if isinstance(member, Basis)]

    def __len__(self) -> int:
        return sum(len(basis) for basis in self.bases)

    @property
    def reach(self) -> tuple[Tensor, Tensor] | None:
        windows = [basis.reach for basis in self.bases]
        bounded = [window for window in windows if window is not None]
        if len(bounded) < len(windows):
            return None
        lower, upper = zip(*bounded, strict=True)
        return torch.cat(lower), torch.cat(upper)

    @property
    def breaks(self) -> Tensor | None:
        known = [basis.breaks for basis in self.bases if basis.breaks is not None]
        return torch.cat(known).sort().values if known else None

    def forward(self, t: Tensor) -> Tensor:
        return torch.cat([basis(t) for basis in self.bases], -1)
