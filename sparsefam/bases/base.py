"""What a basis is, and how bases are stacked."""

from abc import ABC, abstractmethod
from itertools import chain

import torch
from torch import Size, Tensor, nn

__all__ = ["Basis", "Compound", "Stack"]


class Basis(nn.Module, ABC):
    r"""A vector of $N$ functions $\psi(t) = [\psi_1(t), \dots, \psi_N(t)]$ of a location.

    A location is a real number, or a vector of the basis's `event_shape`. A subclass says how many
    functions there are (`__len__`) and evaluates them (`forward`). Adding two bases stacks their
    functions.
    """

    @abstractmethod
    def forward(self, t: Tensor) -> Tensor:
        """Evaluates every function at every location.

        Args:
            t: Locations, shape (..., *event_shape).

        Returns:
            The values, shape (..., N).
        """

    @abstractmethod
    def __len__(self) -> int:
        """The number of functions, N."""

    @property
    def event_shape(self) -> Size:
        """Shape of one location: () for numbers, (D,) for vectors."""
        return Size()

    @property
    def reach(self) -> tuple[Tensor, Tensor] | None:
        """The window (lower, upper), each (N,), outside which a function is zero to its precision.

        None where the functions have no such window, and for functions of vectors.
        """
        return None

    @property
    def breaks(self) -> Tensor | None:
        """Increasing locations where some function is not smooth.

        None if all are smooth everywhere, and for functions of vectors.
        """
        return None

    def in_float64(self, t: Tensor) -> Tensor:
        """The values (..., N) at locations in float64, to which all tensors are taken."""
        tensors = chain(self.named_parameters(), self.named_buffers())
        state = {name: x.double() for name, x in tensors if x.is_floating_point()}
        values: Tensor = torch.func.functional_call(self, state, (t,))
        return values

    def own(self, t: Tensor) -> Tensor:
        """Evaluates each function at locations of its own.

        Args:
            t: Locations (..., N, *event_shape), the N over functions.

        Returns:
            The values, shape (..., N).
        """
        values: Tensor = self(t)
        return values.diagonal(dim1=-2, dim2=-1)

    def __add__(self, other: "Basis") -> "Stack":
        return Stack(self, other)

    def extra_repr(self) -> str:
        return f"n={len(self)}"


class Compound(Basis):
    """A basis made of others, its members, all of one event shape.

    Args:
        members: The bases that it is made of.

    Raises:
        ValueError: If there is none, one of them is not a basis, or their event shapes differ.
    """

    def __init__(self, *members: Basis) -> None:
        super().__init__()
        if not members or not all(isinstance(basis, Basis) for basis in members):
            names = [type(basis).__name__ for basis in members]
            raise ValueError(f"bases must be one or more Basis objects, got {names}")
        shapes = [tuple(basis.event_shape) for basis in members]
        if len(set(shapes)) > 1:
            raise ValueError(f"bases must have one event shape, got {shapes}")
        self.members = nn.ModuleList(members)

    @property
    def bases(self) -> list[Basis]:
        """The members, in the order given."""
        return [member for member in self.members if isinstance(member, Basis)]


class Stack(Compound):
    """Several bases side by side, in the order given; nested stacks are flattened.

    Args:
        bases: The bases to stack, all of one event shape.

    Raises:
        ValueError: If there is none, one of them is not a basis, or their event shapes differ.

    Examples:
        >>> from sparsefam.bases import Fourier, Polynomial
        >>> len(Polynomial(1) + Fourier([1.0, 2.0]))
        6
    """

    def __init__(self, *bases: Basis) -> None:
        nested = [basis.bases if isinstance(basis, Stack) else [basis] for basis in bases]
        super().__init__(*chain.from_iterable(nested))

    def __len__(self) -> int:
        return sum(len(basis) for basis in self.bases)

    @property
    def event_shape(self) -> Size:
        return self.bases[0].event_shape

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
