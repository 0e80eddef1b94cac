"""Value functions: observations at irregular locations, smoothed by ridge regression."""

import math
import warnings
from numbers import Real
from typing import TYPE_CHECKING, Literal

import torch
from torch import Size, Tensor, nn
from torch.distributions import Distribution

from ..bases import Basis
from ..numerics.collective import Group, process_group
from ..numerics.normal_equations import normal_sums
from ..numerics.validation import in_eager, is_count
from .observations import Faults, check_shapes, faults, reached, require
from .penalty import check_factor, cross_validated
from .precision import check_dtype
from .shared_gram import SharedGram
from .statistics import Statistics, require_finite, require_statistics
from .value_function import ValueFunction

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["RidgeRegression", "tensors_of"]

# Rows of a block: so many numbers for its design and its values, but not too few to be fast.
_NUMBERS, _FEWEST = 2**19, 256


class RidgeRegression(nn.Module):
    r"""Fits a value function to observations, by ridge regression on a basis.

    $$C = \arg\min_C \lVert F C - H \rVert^2 + \lambda \lVert C \rVert^2
        = (F^\top F + \lambda I)^{-1} F^\top H, \qquad F_{\ell j} = \psi_j(t_\ell)$$

    $F^\top F$ and $F^\top H$ are sums over the L observations, added up block by block, and once
    more so for the gradients: O(L N (N + E)) time, and O(N (N + E)) memory besides the observations
    and their gradients.

    Overlapping basis functions make $F^\top F$ singular to working precision, which in float32
    would cost three to five digits of $V$ and, for long sequences, the factorisation itself. So the
    basis is evaluated and the system solved in float64, whatever the dtype of the observations:
    with N Gaussians of width 1.5/N, N up to 512, and $\lambda = 0.01$ the coefficients are those
    of a float64 least-squares solution to 4e-8, the rounding of the result.

    Where all examples share one set of positions, and neither these nor the basis are learned,
    $F^\top F$ is kept for the next call with the same ones: one matrix, in a buffer that is no part
    of the state. Whether they are the same is seen by comparing them. Compiled graphs and groups
    of processes form it anew.

    Args:
        basis: The N functions $\psi$; it must accept float64 locations. What it learns must be
            attributes of it or of its modules, not in lists.
        penalty: The ridge penalty $\lambda \ge 0$, or "gcv" for each example's minimiser of
            generalised cross-validation over all its channels, which is differentiable, once.
        group: If sequences are sharded over processes, their group or mesh: every rank fits with
            its own positions and has the same functions, those of the whole sequence, by one
            reduction of about B N (N + E) float64 numbers. Gradients, by another one, are those of
            the sum of the ranks' losses. A shard may be empty.
        chunk_size: Rows of a block; the attribute may be set anew. None: a block of four megabytes.
        validate_args: Whether to check the values of arguments; None follows
            `torch.distributions`.

    Raises:
        ValueError: If the basis is none, the penalty neither "gcv" nor finite and at least 0, the
            chunk size not positive, or the mesh not of one dimension.

    References:
        Martins et al. (2020), Sparse and Continuous Attention, eq. 16. arXiv:2006.07214. Golub,
        Heath and Wahba (1979), Generalized Cross-Validation as a Method for Choosing a Good Ridge
        Parameter. Technometrics 21

    Examples:
        >>> from sparsefam.bases import Polynomial
        >>> t = torch.tensor([[0.0, 1.0, 2.0]])
        >>> line = RidgeRegression(Polynomial(1), penalty=1e-8).fit(t, 3 * t.unsqueeze(-1) + 1)
        >>> line(torch.tensor([[5.0]]))
        tensor([[[16.0000]]])
    """

    def __init__(
        self,
        basis: Basis,
        penalty: float | Literal["gcv"] = 1e-2,
        *,
        group: "Group | None" = None,
        chunk_size: int | None = None,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(basis, Basis):
            raise ValueError(f"basis must be a Basis, got {basis!r}")
        number = float(penalty) if isinstance(penalty, Real) else math.nan
        chosen = isinstance(penalty, str) and penalty == "gcv"
        if not chosen and not (math.isfinite(number) and number >= 0):
            raise ValueError(f"penalty must be 'gcv', or finite and at least 0, got {penalty!r}")
        self.basis = basis
        self.penalty: float | Literal["gcv"] = "gcv" if chosen else number
        self.group = None if group is None else process_group(group)
        self.chunk_size = chunk_size
        self.validate_args = Distribution._validate_args if validate_args is None else validate_args
        self._shared = SharedGram()
        self._warned = False

    @property
    def chunk_size(self) -> int | None:
        """Rows of a block, if it is not left to their size."""
        return self._chunk_size

    @chunk_size.setter
    def chunk_size(self, value: int | None) -> None:
        if value is not None and not is_count(value):
            raise ValueError(f"chunk_size must be a positive integer, got {value!r}")
        self._chunk_size = value

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
                is not finite, or if an example has none that does, or, with a penalty of zero,
                fewer than there are basis functions.

        Warns:
            UserWarning: Once, if there are positions outside the interval, or of Gaussians the
                box, that the functions of the basis reach to its precision.
        """
        return self.solve(self.statistics(positions, values, mask), values.dtype)

    def statistics(
        self, positions: Tensor, values: Tensor, mask: Tensor | None = None
    ) -> Statistics:
        """The sums over observations that `solve` makes a function of.

        For sequences that come in pieces: those of the pieces add up to those of the whole.

        Args:
            positions: As for `fit`.
            values: As for `fit`.
            mask: As for `fit`.

        Returns:
            The sums, over the positions of all ranks if there is a group.

        Raises:
            ValueError: As `fit`, but for observations that are too few.
        """
        event = self.basis.event_shape
        check_shapes(positions, values, mask, event, self.group is not None)
        given = positions.ndim == 1 + len(event)
        positions = positions.unsqueeze(0) if given else positions
        rows = self._rows(*values.shape[::2])
        # Shards differ in length, and buffers that do so are too much for some wrappers.
        shared = (given or len(positions) < len(values)) and mask is None and self.group is None
        sums = self._sums(positions, values, mask, rows, shared)
        found = None
        if self.validate_args:
            found = faults(positions, values, mask, self._window(), sums.energy)
        if self.group is not None:
            sums, found = _over_ranks(sums, found, self.group)
        if found is not None:
            found.require_none(positions, values, mask)
            self._warn(found.outside, mask, values.shape[:2])
        return sums

    def solve(self, statistics: Statistics, dtype: torch.dtype | None = None) -> ValueFunction:
        """The functions that minimise the penalised squares of what the sums are over.

        Args:
            statistics: Of the basis's N functions, as from `statistics`.
            dtype: Of the coefficients, float32 at least; torch's default dtype if None.

        Returns:
            One function for each example.

        Raises:
            ValueError: If the sums are not finite or of another number of functions, or an example
                has no observations, or, with a penalty of zero, fewer than N.
        """
        require_statistics("statistics", statistics)
        check_dtype(dtype)
        if statistics.cross.shape[-2] != len(self.basis):
            due = f"of {len(self.basis)} functions"
            raise ValueError(f"statistics must be {due}, got {tuple(statistics.cross.shape)}")
        if self.validate_args:
            self._check_sums(statistics)
        penalty = cross_validated(statistics) if self.penalty == "gcv" else self.penalty
        coefficients = self._solve(statistics, penalty)
        # They cancel, so that in half precision functions would lose more than the values' digits.
        dtype = torch.promote_types(dtype or torch.get_default_dtype(), torch.float32)
        return ValueFunction(self.basis, coefficients.to(dtype), penalty)

    def local_statistics(self, positions: Tensor, values: Tensor) -> Statistics:
        """The sums of this process alone, over observations (1, L) and (B, L, E) that are right."""
        return self._sums(positions, values, None, self._rows(*values.shape[::2]), False)

    def _rows(self, batch: int, channels: int) -> int:
        if self.chunk_size is not None:
            return self.chunk_size
        return max(_FEWEST, _NUMBERS // (max(batch, 1) * (len(self.basis) + channels)))

    def _sums(
        self, positions: Tensor, values: Tensor, mask: Tensor | None, rows: int, shared: bool
    ) -> Statistics:
        state = tensors_of(self.basis)
        parameters = tuple(state.values())

        def design(t: Tensor, *parameters: Tensor) -> Tensor:
            now = dict(zip(state, parameters, strict=True))
            found: Tensor = torch.func.functional_call(self.basis, now, (t,))
            return found.double()

        known = self._shared.find(self.basis, (positions, *parameters)) if shared else None
        parts = (design, rows, positions, values, mask, parameters, known is None)
        gram, cross, energy = normal_sums(*parts)
        if known is not None:
            gram = known
        elif shared:
            self._shared.keep(self.basis, (positions, *parameters), gram)
        length = torch.full_like(energy, values.shape[1])
        return Statistics(gram, cross, energy, length if mask is None else mask.sum(-1).to(length))

    def _solve(self, statistics: Statistics, penalty: Tensor | float) -> Tensor:
        """Coefficients (B, N, E)."""
        gram, cross = statistics.gram, statistics.cross
        ridge = penalty.reshape(-1, 1, 1) if isinstance(penalty, Tensor) else penalty
        gram = gram + ridge * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        factor, failed = torch.linalg.cholesky_ex(gram)
        if self.validate_args:
            check_factor(gram, factor, failed, penalty)
        # Examples that share a matrix become further columns of one right-hand side.
        each = len(cross) // max(len(gram), 1)
        right = cross.reshape(len(gram), each, *cross.shape[1:]).transpose(1, 2)
        solution = torch.cholesky_solve(right.flatten(2), factor).reshape(right.shape)
        return solution.transpose(1, 2).flatten(0, 1)

    # Rules

    def _window(self) -> tuple[Tensor, Tensor] | None:
        """Where the basis is not zero, while there is somebody to be warned."""
        asked = self.validate_args and not self._warned and in_eager()
        return reached(self.basis) if asked else None

    def _warn(self, outside: Tensor, mask: Tensor | None, shape: Size) -> None:
        if not in_eager() or self._warned or torch._is_all_true(outside == 0):
            return
        self._warned = True
        share = outside.item() / (shape.numel() if mask is None else int(mask.sum()))
        warnings.warn(
            f"{share:.2g} of the positions are where no function of the basis reaches, and their "
            "values have no effect; this is said once",
            stacklevel=4,
        )

    def _check_sums(self, statistics: Statistics) -> None:
        # The energy, of large values the largest, is only read to choose a penalty.
        require_finite(statistics, but="" if self.penalty == "gcv" else "energy")
        number, size = statistics.number, statistics.cross.shape[-2]
        rule = "mask must let at least one position of every example take part"
        require(number > 0, rule, number.long())
        if self.penalty == 0:
            rule = f"penalty must be positive with fewer observations than functions, {size}"
            require(number >= size, rule, number.long())


def tensors_of(basis: Basis) -> dict[str, Tensor]:
    """Parameters and buffers, and attributes, which some wrappers make of the former."""
    found = {**dict(basis.named_parameters()), **dict(basis.named_buffers())}
    modules = () if torch.compiler.is_compiling() else basis.named_modules()  # for torch 2.11
    for prefix, module in modules:
        for name, x in vars(module).items():
            if isinstance(x, Tensor):
                found[f"{prefix}.{name}" if prefix else name] = x
    return found


def _over_ranks(
    sums: Statistics, found: Faults | None, group: "ProcessGroup"
) -> tuple[Statistics, Faults | None]:
    """Sums over all positions, and of what is not finite among them, so that all ranks raise."""
    if found is None:
        return sums.over_ranks(group)[0], None
    sums, (bad,) = sums.over_ranks(group, torch.stack(found[:2]))
    return sums, Faults(bad[0], bad[1], found.outside)
