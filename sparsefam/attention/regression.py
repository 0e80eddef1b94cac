"""Value functions: observations at irregular locations, smoothed by ridge regression."""

import math
import warnings
from collections.abc import Callable
from functools import reduce
from numbers import Real
from typing import Literal, NamedTuple, TypeGuard, cast

import torch
from torch import Size, Tensor, nn
from torch.distributions import Distribution

from ..bases import Basis, BSpline
from ..distributions import SparseDistribution
from ..numerics.distributed import Group, process_group, sum_over_ranks
from ..numerics.least_squares import (
    add_event_dims,
    add_sums,
    band_sums,
    eliminate,
    normal_sums,
    solve_shared,
    split_rows,
)
from ..numerics.validation import differentiable_once, in_eager, require_integer
from .masks import (
    check_finite,
    check_mask,
    check_real,
    check_shape,
    check_tensor,
    full_precision,
    require_all,
)

__all__ = ["RidgeRegression", "Statistics", "ValueFunction"]

# Numbers in the design matrix and the values of a chunk, and the least number of rows with which
# matrix products are fast.
_NUMBERS, _LEAST_ROWS = 2**19, 256
# The same for regressions of each query, whose chunks hold products of functions.
_PRODUCTS, _LEAST_POSITIONS = 2**21, 16
# Positions of an example, about, that are looked at for a warning.
_LOOKED_AT = 64
# B-splines for each that is not zero from which on only the bands of a Gram matrix are made.
_MANY_SPLINES = 32

# Range of cross-validated penalties, relative to the trace of the Gram matrix.
_LOWEST, _HIGHEST = 1e-11, 1e3
# Points of the first grid of penalties and of each refinement; refinements and Newton steps.
_COARSE, _FINE, _REFINEMENTS, _NEWTON_STEPS = 65, 17, 3, 4
_TINY = 1e-200
# Differences in log GCV below this are ties. A curvature must exceed rounding by this factor.
_TIE, _RESOLVED = 1e-11, 1e3


class ValueFunction:
    r"""A batch of functions $V_b(t) = C_b^\top \psi(t)$ from locations to E channels.

    Args:
        basis: The functions $\psi$.
        coefficients: The matrices $C_b$, shape (B, N, E).
        penalty: The ridge penalty of the fit, if any: a number, or shape (B,).

    Raises:
        ValueError: If `basis` is not a basis or `coefficients` has another shape.
    """

    def __init__(
        self, basis: Basis, coefficients: Tensor, penalty: Tensor | float | None = None
    ) -> None:
        if not isinstance(basis, Basis):
            raise ValueError(f"basis must be a Basis, got {basis!r}")
        check_tensor("coefficients", coefficients)
        if coefficients.shape[1:2] != (len(basis),) or coefficients.ndim != 3:
            shape = tuple(coefficients.shape)
            raise ValueError(f"coefficients must have shape (B, {len(basis)}, E), got {shape}")
        self.basis = basis
        self.coefficients = coefficients
        self.penalty = penalty

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
        if t.ndim == len(event):
            t = t.unsqueeze(0)
        batch = self.coefficients.shape[0]
        fits = t.ndim > len(event) and t.shape[t.ndim - len(event) :] == event
        if not fits or t.shape[0] not in (1, batch):
            ends = "".join(f", {size}" for size in event)
            raise ValueError(
                f"t must have shape ({batch}, ...{ends}) or (1, ...{ends}), got {tuple(t.shape)}"
            )
        if not _has_bands(self.basis):
            return self._contract(self.basis(t))
        # The functions that may not be zero, one after the other.
        index, values = self.basis.nonzero(t)
        example = torch.arange(batch, device=t.device).reshape(-1, *(1,) * (t.ndim - 1))
        pairs = zip(index.unbind(-1), values.unsqueeze(-2).unbind(-1), strict=True)
        return reduce(torch.add, (self.coefficients[example, i] * f for i, f in pairs))

    def expect(self, density: SparseDistribution) -> Tensor:
        r"""Compute the context $\mathbb E_p[V(t)]$, eq. 15 of Martins et al. (2020).

        Args:
            density: Any distribution with `expect`, of batch shape (B, ...) or (1, ...).

        Returns:
            The expectations, shape (B, ..., E).

        Raises:
            ValueError: If the first dimension of the batch shape is neither B nor 1.
        """
        if not callable(getattr(density, "expect", None)):
            raise ValueError(f"density must have expectations, got {density!r}")
        features, batch = density.expect(self.basis), self.coefficients.shape[0]
        if features.ndim < 2 or features.shape[0] not in (1, batch):
            raise ValueError(
                f"density must have batch_shape ({batch}, ...) or (1, ...), "
                f"got {tuple(features.shape[:-1])}"
            )
        return self._contract(features)

    def _contract(self, features: Tensor) -> Tensor:
        """Multiply features (B, ..., N) by the coefficients (B, N, E)."""
        dtype = torch.promote_types(features.dtype, self.coefficients.dtype)
        with full_precision(features):
            return torch.einsum("b...n,bne->b...e", features.to(dtype), self.coefficients.to(dtype))


def _has_bands(basis: Basis) -> TypeGuard[BSpline]:
    """Return whether a basis consists of so many B-splines that most are zero at any location."""
    return isinstance(basis, BSpline) and len(basis) >= _MANY_SPLINES * (basis.degree + 1)


def _exports_to_onnx() -> bool:
    """Return whether this is traced for ONNX, which has no Cholesky factors."""
    return torch.compiler.is_exporting() and torch.onnx.is_in_onnx_export()


class Statistics(NamedTuple):
    r"""Sums over positions, in float64: all that `RidgeRegression` keeps of its observations.

    The statistics of two parts of a sequence add up to the whole sequence's; see `plus`.

    Attributes:
        gram: $F^\top F$, shape (B, N, N), or (1, N, N) if all examples share their positions. Of
            many B-splines only the diagonal and the bands on its right, shape (., N, degree + 1).
        cross: $F^\top H$, shape (B, N, E).
        sum_of_squares: $\lVert H \rVert^2$, shape (B,).
        num_observations: Number of observations, shape (B,).
    """

    gram: Tensor
    cross: Tensor
    sum_of_squares: Tensor
    num_observations: Tensor

    def plus(self, other: "Statistics", keep: Tensor | float = 1.0) -> "Statistics":
        """Add the statistics of other positions of the same examples.

        Args:
            other: Statistics of the same sizes.
            keep: Factor of these statistics, from 0 to 1, shape () or (B,). 1 forgets nothing, 0
                forgets all, NaN included.

        Raises:
            ValueError: If the sizes differ, or `keep` has another shape or range.
        """
        check_statistics("other", other, self.cross.shape, self.gram.shape[-1])
        weights = torch.as_tensor(keep).to(self.cross)
        check_shape("keep", weights, (), self.num_observations.shape)
        require_all((weights >= 0) & (weights <= 1), "keep must be from 0 to 1", weights)
        parts = []
        for old, new in zip(self, other, strict=True):
            weight = weights.reshape([*weights.shape, *[1] * (old.ndim - 1)])
            parts.append(weight * torch.where(weight == 0, 0, old) + new)
        return Statistics(*parts)

    def detach(self) -> "Statistics":
        """Return the same numbers, cut off from the graph."""
        return Statistics(*(part.detach() for part in self))


def check_statistics(name: str, statistics: Statistics, shape: Size, columns: int) -> None:
    """Raise ValueError unless `cross` has a shape (B, N, E), `gram` so many columns, all to fit."""
    if not isinstance(statistics, Statistics):
        raise ValueError(f"{name} must be a Statistics, got {type(statistics).__name__}")
    batch, size, _ = shape
    check_shape(f"{name}.cross", statistics.cross, tuple(shape))
    check_shape(f"{name}.gram", statistics.gram, (batch, size, columns), (1, size, columns))
    check_shape(f"{name}.sum_of_squares", statistics.sum_of_squares, (batch,))
    check_shape(f"{name}.num_observations", statistics.num_observations, (batch,))


class RidgeRegression(nn.Module):
    r"""Fits a value function to observations by ridge regression on a basis.

    $$C = \arg\min_C \lVert F C - H \rVert^2 + \lambda \lVert C \rVert^2
        = (F^\top F + \lambda I)^{-1} F^\top H, \qquad F_{\ell j} = \psi_j(t_\ell)$$

    $F^\top F$ and $F^\top H$ are added up chunk by chunk, in O(L N (N + E)) time and O(N (N + E))
    memory besides the observations and their gradients; for 32 (degree + 1) or more B-splines and a
    given penalty in O((L + N) E) time and O(N E) memory, times a power of the degree. As
    overlapping functions make $F^\top F$ singular to working precision, all is in float64 until
    coefficients are rounded, whatever the dtype of the observations.

    Args:
        basis: The N functions $\psi$, which must accept float64 locations.
        penalty: The ridge penalty $\lambda \ge 0$, or "gcv": for each example the minimiser of
            generalised cross-validation over all its channels, which is differentiable once.
        group: If sequences are sharded over processes, their group or mesh. Every rank fits with
            its own positions and gets the functions of the whole sequence, by one reduction of
            about B N (N + E) float64 numbers. Gradients, by another reduction, belong to the sum of
            the ranks' losses. A shard may be empty. Not under `torch.vmap`.
        chunk_size: Number of rows of a chunk; the attribute may be set between calls. None: as
            many as make four megabytes.
        validate_args: Whether to check the values of arguments; None follows
            `torch.distributions`.

    Raises:
        ValueError: If `basis` is not a basis, `penalty` is neither "gcv" nor finite and at least 0,
            `chunk_size` is not positive, or the mesh does not have one dimension.

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
        is_gcv = isinstance(penalty, str) and penalty == "gcv"
        if not is_gcv and not (math.isfinite(number) and number >= 0):
            raise ValueError(f"penalty must be 'gcv', or finite and at least 0, got {penalty!r}")
        if chunk_size is not None:
            require_integer("chunk_size", chunk_size, 1)
        self.basis = basis
        self.penalty: float | Literal["gcv"] = "gcv" if is_gcv else number
        self.group = None if group is None else process_group(group)
        self.chunk_size = chunk_size
        self.validate_args = Distribution._validate_args if validate_args is None else validate_args
        self._has_fitted = False

    def extra_repr(self) -> str:
        return f"penalty={self.penalty}"

    def fit(self, positions: Tensor, values: Tensor, mask: Tensor | None = None) -> ValueFunction:
        """Fit one function per example.

        Args:
            positions: Locations of the observations, in any order: shape (B, L), or (B, L, D) for a
                basis on D dimensions. Without the B, or with 1 in its place, all examples share
                them, and with them a single factorisation.
            values: The observations, shape (B, L, E).
            mask: Shape (B, L), True where an observation takes part. Other observations are
                never read, so padding cannot leak. None: all take part.

        Returns:
            The fitted functions, differentiable in positions, values and learned basis parameters.

        Raises:
            ValueError: If shapes do not match or are empty, if a position or value that takes part
                is not finite, if an example has no observation, or if the penalty is too small for
                the Gram matrix, as is zero with fewer observations than functions.

        Warns:
            UserWarning: At the first fit, if positions lie where all functions of the basis are
                zero.
        """
        return self._solve(self.statistics(positions, values, mask), values.dtype)

    def statistics(
        self, positions: Tensor, values: Tensor, mask: Tensor | None = None
    ) -> Statistics:
        """Compute the sums over observations from which `solve` makes a function.

        The arguments are those of `fit`. The sums over pieces of a sequence add up to the sum over
        the whole.

        Returns:
            The sums, over the positions of all ranks if there is a group.

        Raises:
            ValueError: As `fit`, but not for too few observations.
        """
        positions = self._check_observations(positions, values, mask)
        sums = self._local_statistics(positions, values, mask)
        if self.group is not None:
            flat = sum_over_ranks(torch.cat([x.flatten() for x in sums]), self.group)
            pieces = flat.split([x.numel() for x in sums])
            sums = Statistics(*(a.reshape(b.shape) for a, b in zip(pieces, sums, strict=True)))
        if self.validate_args:
            # After the reduction, as others would wait for a rank that raises before it.
            _require_finite("positions", positions, values.shape, mask)
            _require_finite("values", values, values.shape, mask)
            if in_eager() and not self._has_fitted:
                self._warn_if_unreached(positions, mask)
        return sums

    def solve(self, statistics: Statistics, dtype: torch.dtype | None = None) -> ValueFunction:
        """Minimise the penalised sum of squares.

        Args:
            statistics: Sums over observations, as from `statistics`.
            dtype: Of the coefficients, float32 at least; torch's default dtype if None.

        Returns:
            One function for each example.

        Raises:
            ValueError: If the sums are not finite or belong to another number of functions, or as
                `fit`.
        """
        if not isinstance(statistics, Statistics):
            raise ValueError(f"statistics must be a Statistics, got {type(statistics).__name__}")
        size, shape = len(self.basis), statistics.cross.shape
        if len(shape) != 3 or shape[1] != size:
            raise ValueError(f"statistics.cross must have shape (B, {size}, E), got {tuple(shape)}")
        columns = statistics.gram.shape[-1]
        has_bands = self.penalty != "gcv" and _has_bands(self.basis)
        if not (has_bands and columns == cast(BSpline, self.basis).degree + 1):
            columns = size
        check_statistics("statistics", statistics, shape, columns)
        return self._solve(statistics, dtype or torch.get_default_dtype())

    def observation_weights(
        self,
        density: SparseDistribution,
        positions: Tensor,
        values: Tensor,
        mask: Tensor | None = None,
    ) -> Tensor:
        r"""Compute how much each observation counts in a context.

        For a given penalty $\lambda$ contexts are linear in the observations $h_\ell$:

        $$\mathbb E_p[V(t)] = \sum_\ell w_\ell h_\ell, \qquad
            w = F (F^\top F + \lambda I)^{-1} \, \mathbb E_p[\psi(t)]$$

        Weights may be negative, also where the density is zero, since functions overlap. A
        cross-validated penalty depends on the values: the weights take its value as given, so
        that the sum is exact, but they are not the derivatives of the context.

        Args:
            density: Any distribution with `expect`, of batch shape (B, ...) or (1, ...).
            positions: As for `fit`.
            values: As for `fit`. Only a cross-validated penalty depends on them.
            mask: As for `fit`.

        Returns:
            The weights, shape (B, ..., L), exactly 0 where masked.

        Raises:
            ValueError: As `fit` and `ValueFunction.expect`.
        """
        statistics = self.statistics(positions, values, mask)
        batch, length = values.shape[:2]
        positions = positions.reshape(-1, length, *self.basis.event_shape)
        if mask is not None:
            positions = torch.where(add_event_dims(mask, self.basis.event_shape), positions, 0)
        design = self.basis(positions.double()).expand(batch, -1, -1)
        if mask is not None:
            design = torch.where(mask.unsqueeze(-1), design, 0)
        # Of values that are 1 at one observation and 0 at the others, the product with F is F.
        weights = self._solve(statistics, torch.float64, design.mT).expect(density)
        return weights.to(torch.promote_types(values.dtype, torch.float32))

    def _check_observations(self, positions: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Return positions (B or 1, L, *event), or raise ValueError if shapes or dtypes do not fit.

        Only a shard may be empty.
        """
        check_real("positions", positions)
        check_tensor("values", values)
        if mask is not None:
            check_tensor("mask", mask)
        event, sharded = self.basis.event_shape, self.group is not None
        if values.ndim != 3 or 0 in (values.shape[2:] if sharded else values.shape[1:]):
            rule = "values must have shape (B, L, E), L and E not zero"
            raise ValueError(f"{rule}, got {tuple(values.shape)}")
        if not values.is_floating_point():
            raise ValueError(f"values must be floating, got {values.dtype}")
        batch, length = values.shape[:2]
        shared, hint = (length, *event), " to match values and basis"
        check_shape("positions", positions, (batch, *shared), (1, *shared), shared, hint=hint)
        if mask is not None:
            check_mask("mask", mask, (batch, length), hint=" to match values")
        return positions.unsqueeze(0) if positions.ndim == 1 + len(event) else positions

    def _local_statistics(
        self, positions: Tensor, values: Tensor, mask: Tensor | None = None
    ) -> Statistics:
        """Sum over the observations of this process."""
        batch, length, channels = values.shape
        basis, event, given = self.basis, self.basis.event_shape, self.chunk_size
        # Cross-validation needs eigenvalues.
        if _has_bands(basis) and self.penalty != "gcv" and not _exports_to_onnx():
            rows = given or max(len(basis), _NUMBERS // (max(batch, 1) * channels))
            sums = band_sums(basis.nonzero, len(basis), positions, values, mask, rows)
        else:
            each = max(batch, 1) * (len(basis) + channels)
            rows = given or max(_LEAST_ROWS, _NUMBERS // each)
            sums = normal_sums(basis, positions, values, mask, rows)
        squares = sums[2]
        count = squares.new_full((batch,), length) if mask is None else mask.sum(-1).to(squares)
        if self.group is not None:
            # NaN where a position is not finite, which other ranks may not see in their sums.
            zeros = (positions - positions).detach()
            seen = zeros if mask is None else torch.where(add_event_dims(mask, event), zeros, 0)
            count = count + seen.sum()
        return Statistics(*sums, count)

    def _warn_if_unreached(self, positions: Tensor, mask: Tensor | None) -> None:
        """Warn, with the first fit, if many of some positions are where all functions are zero."""
        self._has_fitted = True
        some = slice(None, None, 1 + positions.shape[1] // _LOOKED_AT)
        with torch.no_grad():
            size = self.basis(positions[:, some].double()).abs().amax(-1)
        unreached = size < torch.finfo(torch.float32).tiny
        if mask is not None:
            unreached = unreached.expand(mask[:, some].shape)[mask[:, some]]
        if unreached.any():
            warnings.warn(
                f"{unreached.double().mean():.2g} of the positions lie where all functions of the "
                "basis are zero; their values are ignored. Scale positions to the basis's range, "
                "or give it theirs, as GaussianRBF.grid(n, widths, low=..., high=...) does (shown "
                "once)",
                stacklevel=4,
            )

    def _solve(
        self, statistics: Statistics, dtype: torch.dtype, right: Tensor | None = None
    ) -> ValueFunction:
        """Solve the normal equations, with another right side (B, N, E) than `cross` if given."""
        if self.validate_args:
            check_finite("statistics.gram", statistics.gram, "finite")
            check_finite("statistics.cross", statistics.cross, "finite")
            check_finite("statistics.num_observations", statistics.num_observations, "finite")
            rule = "mask must let at least one position of every example take part"
            require_all(statistics.num_observations > 0, rule, statistics.num_observations)
        gram, right = statistics.gram, statistics.cross if right is None else right
        penalty: Tensor | float
        penalty = gcv_penalty(statistics) if self.penalty == "gcv" else float(self.penalty)
        ridge = penalty.reshape(-1, 1, 1) if isinstance(penalty, Tensor) else penalty
        size, columns = gram.shape[-2:]  # the first column of bands is the diagonal
        shape = (size if columns == size else 1, columns)
        gram = gram + ridge * torch.eye(*shape, dtype=gram.dtype, device=gram.device)
        if _exports_to_onnx():
            coefficients = eliminate(gram, right)
        else:
            coefficients, pivots = solve_shared(gram, right)
            if self.validate_args:
                # The largest number in a positive definite matrix is on its diagonal.
                rounding = size * torch.finfo(gram.dtype).eps * gram.amax((-2, -1))
                rule = "penalty must exceed the rounding errors of the basis's Gram matrix"
                require_all(pivots > rounding, rule, torch.zeros_like(pivots) + penalty)
        # Coefficients may cancel: rounded to half precision they would lose more than values do.
        dtype = torch.promote_types(dtype, torch.float32)
        return ValueFunction(self.basis, coefficients.to(dtype), penalty)

    def _fit_per_query(self, positions: Tensor, values: Tensor, visible: Tensor) -> Tensor:
        """Return coefficients (B, Lq, N, heads, E) of the functions of all queries."""
        batch, length, heads, channels = values.shape
        groups, queries = visible.shape[1:3]
        statistics = self._statistics_per_query(positions, values, visible)
        coefficients = self._solve(statistics, values.dtype).coefficients
        shape = (batch, groups, queries, len(self.basis), heads // groups, channels)
        return coefficients.reshape(shape).movedim(1, 3).flatten(3, 4)

    def _weights_per_query(
        self, features: Tensor, positions: Tensor, values: Tensor, visible: Tensor
    ) -> Tensor:
        """Return weights (B, heads, Lq, L) from expectations of functions (B, heads, Lq, N)."""
        groups, heads = visible.shape[1], features.shape[1]
        statistics = self._statistics_per_query(positions, values, visible)
        right = features.double().unflatten(1, (groups, heads // groups)).movedim(2, 4)
        solved = self._solve(statistics, torch.float64, right.flatten(0, 2)).coefficients
        f = self.basis(positions.double()).double()
        weights = torch.einsum("bgqni,bln->bgiql", solved.reshape(right.shape), f)
        return torch.where(visible, weights.flatten(1, 2), 0).to(values.dtype)

    def _statistics_per_query(
        self, positions: Tensor, values: Tensor, visible: Tensor
    ) -> Statistics:
        """Sum for each query over the positions that it may read.

        Positions are (B or 1, L, *event) and values by head (B, L, heads, E). The sums are those of
        B * G * Lq examples with heads // G * E channels, where `visible` is (B, G, Lq, L) and G is
        heads or 1.
        """
        batch, length, heads, channels = values.shape
        groups, queries = visible.shape[1:3]
        size = len(self.basis)
        if self.validate_args:
            observed = visible.flatten(1, 2).any(1) if queries else None
            _require_finite("positions", positions, values.shape, observed)
            _require_finite("values", values, values.shape, observed)

        def sums(t: Tensor, h: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            f, h = self.basis(t.double()).double(), h.double()
            weights = weights.movedim(1, -1).double()
            h = h.unflatten(2, (groups, heads // groups)).flatten(3).transpose(1, 2)
            gram = weights.flatten(1, 2) @ (f.unsqueeze(-1) * f.unsqueeze(-2)).flatten(2)
            cross = weights @ (f[:, None, :, :, None] * h.unsqueeze(-2)).flatten(3)
            squares = weights @ h.square().sum(-1, keepdim=True)
            return gram.flatten(0, 1), cross.flatten(0, 2), squares.flatten()

        each = positions.shape[0] * size**2 + size * batch * heads * channels
        rows = self.chunk_size or max(_LEAST_POSITIONS, _PRODUCTS // max(each, 1))
        chunks = split_rows(rows, positions, values, visible.movedim(-1, 1))
        gram, cross, squares = reduce(add_sums, (sums(*chunk) for chunk in chunks))
        gram, cross = gram.unflatten(-1, (size, size)), cross.unflatten(-1, (size, -1))
        return Statistics(gram, cross, squares, visible.sum(-1).flatten().to(squares))


def _require_finite(name: str, x: Tensor, shape: Size, mask: Tensor | None) -> None:
    """Raise ValueError unless positions or values (B, L, ...) that take part are finite."""
    if mask is None:
        check_finite(name, x)
    else:
        x = x.expand(*shape[:2], *x.shape[2:])
        valid = x.detach().isfinite() | ~add_event_dims(mask, x.shape[2:])
        require_all(valid, f"{name} must be finite where they take part", x)


def gcv_penalty(statistics: Statistics) -> Tensor:
    r"""Minimise generalised cross-validation for each example; return penalties of shape (B,).

    $$\mathrm{GCV}(\lambda) = \frac{n \lVert H - F C_\lambda \rVert^2}
        {[n - \operatorname{tr} F (F^\top F + \lambda I)^{-1} F^\top]^2}$$

    The range is from $10^{-11}$ to $10^3$ times the trace of $F^\top F$. Residuals below rounding
    times $\sqrt{\operatorname{tr} F^\top F / \lambda}\, \lVert H \rVert^2$, which the statistics
    cannot resolve, are replaced by that bound. Of penalties that tie the smallest is chosen.

    First derivatives are by the implicit function theorem at a minimum inside the range; at its
    ends, and where residuals are not resolved, they are those of the trace.

    References:
        Golub, Heath and Wahba (1979), Generalized Cross-Validation as a Method for Choosing a Good
        Ridge Parameter. Technometrics 21
    """
    with torch.no_grad():
        curve = _gcv_curve(Statistics(*(x.detach() for x in statistics)))
        log_penalty = _minimise(
            curve, _trace(statistics.gram).expand_as(statistics.cross[..., 0, :1])
        )
        _, slope, curvature, error = (x.squeeze(-1) for x in curve(log_penalty.unsqueeze(-1)))
        stationary = (slope.abs() < 1e-6) & (curvature > 1e-6) & (curvature > _RESOLVED * error)
        rate = torch.where(stationary, 1 / curvature, 0)
        penalty = log_penalty.exp()
    if not torch.is_grad_enabled():
        return penalty
    trace, slope = _trace(statistics.gram).squeeze(-1), _gcv_slope(statistics, penalty, stationary)
    change = torch.where(stationary, -rate * (slope - slope.detach()), trace / trace.detach() - 1)
    return penalty * (1 + differentiable_once(change))


Curve = Callable[[Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]


def _gcv_curve(statistics: Statistics) -> Curve:
    """Return a function of log penalties: log GCV, two derivatives, and a bound on rounding."""
    gram, cross, squares, count = statistics
    eigenvalues, vectors = torch.linalg.eigh(gram)
    eps, size = torch.finfo(gram.dtype).eps, gram.shape[-1]
    # Eigenvalues that are zero but for rounding have no degrees of freedom.
    noise = size * eps * eigenvalues[..., -1:]
    eigenvalues = torch.where(eigenvalues > noise, eigenvalues, 0).unsqueeze(-2)
    projections = (vectors.mT @ cross).square().sum(-1).unsqueeze(-2)
    trace, squares, count = _trace(gram), squares.unsqueeze(-1), count.unsqueeze(-1)

    def curve(log_penalty: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        penalty = log_penalty.exp().unsqueeze(-1)
        shrunk = penalty / (eigenvalues + penalty)
        kept = 1 - shrunk
        share = projections / (eigenvalues + penalty)
        residual = squares - (share * (1 + shrunk)).sum(-1)
        noise = 4 * eps * (trace / log_penalty.exp()).sqrt() * squares
        known = residual > noise
        residual = torch.where(known, residual, noise).clamp_min(_TINY)
        slope = 2 * (share * shrunk.square()).sum(-1)
        slope = torch.where(known, slope, -0.5 * noise) / residual
        second = 2 * (share * shrunk.square() * (2 * kept - shrunk)).sum(-1)
        second = torch.where(known, second, 0.25 * noise) / residual
        freedom = (count - size + shrunk.sum(-1)).clamp_min(_TINY)
        freedom_slope = (kept * shrunk).sum(-1) / freedom
        freedom_second = (kept * shrunk * (kept - shrunk)).sum(-1) / freedom
        return (
            residual.log() - 2 * freedom.log(),
            slope - 2 * freedom_slope,
            second - slope.square() - 2 * (freedom_second - freedom_slope.square()),
            noise / residual + 8 * eps * (count + size) / freedom,
        )

    return curve


def _minimise(curve: Curve, trace: Tensor) -> Tensor:
    """Minimise over log penalties by nested grids and Newton steps; trace (B, 1), result (B,)."""
    lowest, highest = (trace * _LOWEST).log(), (trace * _HIGHEST).log()
    low, high = lowest, highest
    for count in (_COARSE, *[_FINE] * _REFINEMENTS):
        grid = torch.linspace(0, 1, count, dtype=trace.dtype, device=trace.device)
        points = low + (high - low) * grid
        height, _, _, error = curve(points)
        height = height + error
        ties = height <= height.amin(-1, keepdim=True) + _TIE
        best = points.gather(-1, ties.byte().argmax(-1, keepdim=True))
        step = (high - low) / (count - 1)
        low, high = torch.maximum(best - step, lowest), torch.minimum(best + step, highest)
    for _ in range(_NEWTON_STEPS):
        _, slope, curvature, error = curve(best)
        newton = best - slope / curvature
        inside = (curvature > _RESOLVED * error) & (newton > low) & (newton < high)
        best = torch.where(inside, newton, best)
    return best.squeeze(-1)


def _trace(gram: Tensor) -> Tensor:
    """Trace (B or 1, 1), positive."""
    return gram.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True).clamp_min(_TINY)


def _gcv_slope(statistics: Statistics, penalty: Tensor, stationary: Tensor) -> Tensor:
    """Return the slope (B,) of log GCV in the log penalty, differentiable where stationary."""
    gram, cross, squares, count = statistics
    size = gram.shape[-1]
    eye = torch.eye(size, dtype=gram.dtype, device=gram.device)
    ridge = penalty[:, None, None]
    factor = torch.linalg.cholesky_ex(
        torch.where(stationary[:, None, None], gram + ridge * eye, eye)
    )[0]
    inverse = torch.cholesky_inverse(factor)
    fitted = inverse @ cross
    residual = squares - (fitted * (cross + ridge * fitted)).sum((-2, -1))
    trace = inverse.diagonal(dim1=-2, dim2=-1).sum(-1)
    freedom = torch.where(stationary, count - size + penalty * trace, 1)
    residual = torch.where(stationary, residual, 1)
    slope = 2 * penalty.square() * (fitted * (inverse @ fitted)).sum((-2, -1)) / residual
    return slope - 2 * penalty * (trace - penalty * inverse.square().sum((-2, -1))) / freedom
