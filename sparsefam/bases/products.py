"""Functions of vectors as products of functions of their coordinates."""

from functools import reduce

from torch import Size, Tensor

from .arguments import check_locations
from .base import Basis, Compound

__all__ = ["Product"]


class Product(Compound):
    r"""All products of functions of one coordinate each.

    $$\psi_{ij}(t) = \phi_i(t_1)\,\chi_j(t_2)$$

    and so on for more coordinates; the function of the last coordinate changes fastest.

    Args:
        bases: For each of the D coordinates a basis of numbers.

    Raises:
        ValueError: If there is none, or one of them is not a basis of numbers.

    Examples:
        >>> import torch
        >>> from sparsefam.bases import Indicator, Polynomial
        >>> basis = Product(Polynomial(1), Indicator([0.0, 1.0, 2.0]))
        >>> basis(torch.tensor([5.0, 1.5]))
        tensor([0., 1., 0., 5.])
    """

    def __init__(self, *bases: Basis) -> None:
        super().__init__(*bases)
        if shape := tuple(bases[0].event_shape):
            raise ValueError(f"bases must take numbers, event shape (), got {shape}")

    @property
    def event_shape(self) -> Size:
        return Size([len(self.members)])

    def __len__(self) -> int:
        return reduce(lambda count, basis: count * len(basis), self.bases, 1)

    def forward(self, t: Tensor) -> Tensor:
        check_locations(t, self.event_shape)
        factors = [basis(x) for basis, x in zip(self.bases, t.unbind(-1), strict=True)]
        values: Tensor = reduce(_outer, factors)
        return values


def _outer(left: Tensor, right: Tensor) -> Tensor:
    return (left.unsqueeze(-1) * right.unsqueeze(-2)).flatten(-2)
