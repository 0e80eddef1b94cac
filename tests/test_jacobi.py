"""Rotations that make columns orthogonal, against LAPACK."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sparsefam.numerics.jacobi import orthogonalize, rotate_columns

Method = Callable[[Tensor], tuple[Tensor, Tensor]]


@pytest.mark.parametrize("method", [orthogonalize, rotate_columns])
@pytest.mark.parametrize("dim", [1, 2, 3, 4, 5, 8, 16])
def test_columns_become_orthogonal(method: Method, dim: int) -> None:
    torch.manual_seed(dim)
    # Columns of very different lengths, as in a scale_tril of condition number 1e6.
    matrix = torch.randn(50, dim, dim, dtype=torch.float64)
    matrix = matrix * torch.logspace(0, -6, dim, dtype=torch.float64)
    rotation, lengths = method(matrix)
    unit = torch.eye(dim, dtype=torch.float64).expand_as(matrix)
    torch.testing.assert_close(rotation.mT @ rotation, unit, rtol=0, atol=1e-14)
    turned = matrix @ rotation
    torch.testing.assert_close(turned.norm(dim=-2), lengths, rtol=1e-9, atol=0)
    off = turned.mT @ turned - torch.diag_embed(lengths.square())
    limit = 1e-14 * dim * lengths.amax(-1).square()
    assert (off.abs() < limit[:, None, None]).all()
    exact = torch.linalg.svdvals(matrix)
    found = lengths.sort(-1, descending=True).values
    torch.testing.assert_close(found, exact, rtol=1e-8, atol=0)


def test_rotations_serve_matrices_that_are_not_square_and_batches_of_any_shape() -> None:
    matrix = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    rotation, lengths = rotate_columns(matrix)
    assert (rotation.shape, lengths.shape) == ((2, 3, 4, 4), (2, 3, 4))
    exact = torch.linalg.svdvals(matrix)
    torch.testing.assert_close(lengths.sort(-1, descending=True).values, exact)


def test_equal_columns_and_zeros_are_no_trouble() -> None:
    for matrix in (torch.eye(3), torch.ones(3, 3), torch.zeros(3, 3)):
        rotation, lengths = rotate_columns(matrix.double())
        turned = matrix.double() @ rotation
        assert rotation.isfinite().all()
        torch.testing.assert_close(turned.norm(dim=-2), lengths)
        torch.testing.assert_close(lengths.square().sum(), matrix.double().square().sum())
