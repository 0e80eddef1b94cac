"""Value functions: observations at irregular locations, smoothed by penalized regression."""

import math
import warnings
from itertools import chain
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from .._numerics.least_squares import (
    Cholesky,
    normal_sums,
    solve_orthogonally,
    solve_shared,
    zero_masked,
)
from .._numerics.modes import branches_allowed, exported
from .._numerics.validation import as_number, require_integer, require_tensor
from ..bases import Basis, GaussianRBF
from ..distributions import SparseDistribution
from ..supports import Box, Domain, box_of
from ._masks import (
    allowed_by,
    check_finite,
    check_mask,
    check_real,
    check_shape,
    full_precision,
    require_all,
    require_finite,
)
from .normal_equations import NormalEquations, check_equations, gcv_penalty
from .value_function import ValueFunction, features_of

__all__ = ["RidgeRegression"]

# Numbers in the design matrix and the values of a chunk, and the least number of rows with which
# matrix products are fast.
_NUMBERS, _LEAST_ROWS = 2**19, 256
# A domain and the range of a basis disagree if their overlap is below this fraction of the longer.
_LEAST_OVERLAP = 0.1
# Positions of an example, about, that are checked for a warning.
_CHECKED = 64

# The default factor of the roughness on the line, and beyond, where few functions cover an axis.
SMOOTHING, SMOOTHING_OF_VECTORS = 3e-3, 0.1
# Fraction of the diagonal of a roughness that is added to it, and the least roughness of a function
# relative to the mean. The ridge hardly changes errors of contexts; without it coefficients are
# thousands of times as large as the values, and lose as much in float32.
_RIDGE, _LEAST_ROUGHNESS = 1e-3, 1e-6
# Functions of a default basis on each of one, two, three or more axes, and their widths in steps.
_COUNTS, _MANY_AXES, _OVERLAP = {1: 64, 2: 10, 3: 6}, 4, 1.5


class RidgeRegression(nn.Module):
    r"""Fits a value function to observations by penalized least squares on a basis.

    By default the function is penalized for its roughness, around the mean of the values:

    $$V = \bar h + C^\top \psi, \qquad
        C = \arg\min_C \sum_\ell \lVert V(t_\ell) - h_\ell \rVert^2
            + \lambda \operatorname{tr} C^\top S\, C, \qquad
        S_{ij} = |\text{domain}| \int \psi_i'\, \psi_j'\, dt,$$

    with `Basis.roughness` in D dimensions. It is a smoothing spline, seen through the basis: nearly
    linear where observations are far apart, flat beyond the last one, and hardly dependent on the
    basis, so that the basis may be left out. Constants are represented exactly. $\lambda$ is the
    variance of the noise over the variance of the change of V across the domain. To S a thousandth
    of its diagonal is added, which keeps the coefficients of overlapping functions small.

    With `penalty` it is the ridge regression of the papers, which penalizes coefficients and has no
    constant:

    $$V = C^\top \psi, \qquad
        C = \arg\min_C \lVert F C - H \rVert^2 + \lambda \lVert C \rVert^2
        = (F^\top F + \lambda I)^{-1} F^\top H, \qquad F_{\ell j} = \psi_j(t_\ell)$$

    Where positions have gaps it overshoots.

    $F^\top F$ and $F^\top H$ are added up chunk by chunk, in O(L N (N + E)) time and O(N (N + E))
    memory besides the observations and their gradients. As overlapping functions make $F^\top F$
    singular to working precision, all is in float64 until coefficients are rounded, whatever the
    dtype of the observations. For one series and thousands of B-splines take
    `scipy.interpolate.make_smoothing_spline` or `make_lsq_spline`, whose time is linear in N.

    Args:
        basis: The N functions $\psi$, which must accept float64 locations. None: Gaussians
            on a grid over the domain, 64 on the line, 100 in 2-D, 216 in 3-D.
        penalty: The ridge penalty $\lambda \ge 0$ of the papers, or "gcv".
        smoothing: The factor $\lambda \ge 0$ of the roughness, or "gcv": for each example the
            minimizer of generalized cross-validation over all its channels, which derivatives take
            as given. None, without `penalty`: 0.003, and 0.1 in more than one dimension.
        domain: The range of locations, as ends (low, high) for all axes or for each. It scales the
            roughness, and is where bases without a bounded range are integrated. Without a basis it
            says how many axes there are. None: `basis.domain`, or (0, 1) without a basis.
        chunk_size: Number of rows of a chunk; the attribute may be set between calls. None: as
            many as make four megabytes.
        validate_args: Whether to check the values of arguments; None follows
            `torch.distributions`.

    Raises:
        ValueError: If `basis` is not a basis, `penalty` or `smoothing` is neither "gcv" nor finite
            and at least 0, both are given, the roughness has no bounded domain, or `chunk_size` is
            not positive.

    Warns:
        UserWarning: If the domain and the range of the basis share less than a tenth of the longer
            one on some axis.

    References:
        Martins et al. (2020), Sparse and Continuous Attention, eqs. 15 and 16. arXiv:2006.07214.
        Eilers and Marx (1996), Flexible Smoothing with B-splines and Penalties. Statistical Science
        11. Golub, Heath and Wahba (1979), Generalized Cross-Validation as a Method for Choosing a
        Good Ridge Parameter. Technometrics 21

    Examples:
        >>> t = torch.linspace(0, 1, 50).unsqueeze(0)
        >>> function = RidgeRegression().fit(t, torch.stack([t, 1 + 0 * t], -1))
        >>> function(torch.tensor([[0.5, 9.0]]))
        tensor([[[0.5000, 1.0000],
                 [0.5000, 1.0000]]])
    """

    def __init__(
        self,
        basis: Basis | None = None,
        penalty: float | Literal["gcv"] | None = None,
        *,
        smoothing: float | Literal["gcv"] | None = None,
        domain: Domain | None = None,
        chunk_size: int | None = None,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__()
        if basis is not None and not isinstance(basis, Basis):
            raise ValueError(f"basis must be a Basis or None, got {basis!r}")
        if penalty is not None and smoothing is not None:
            rule = "penalty and smoothing must not both be given"
            raise ValueError(f"{rule}, got {penalty!r} and {smoothing!r}")
        if chunk_size is not None:
            require_integer("chunk_size", chunk_size, 1)
        if basis is None:
            box = box_of("domain", (0.0, 1.0) if domain is None else domain, None)
            basis = _default_basis(box)
        elif domain is not None:
            box = box_of("domain", domain, max(basis.event_shape.numel(), 1))
            _warn_of_another_range(basis, box)
        else:
            box = _range_of(basis, penalty is None)
        self.basis, self.domain = basis, box
        self.penalty = None if penalty is None else _checked_factor("penalty", penalty)
        self.smoothing: float | Literal["gcv"] | None = None
        if penalty is None:
            default = SMOOTHING_OF_VECTORS if basis.event_shape else SMOOTHING
            given = default if smoothing is None else smoothing
            self.smoothing = _checked_factor("smoothing", given)
        self.chunk_size = chunk_size
        self.validate_args = Distribution._validate_args if validate_args is None else validate_args
        self._has_fitted = False

    def extra_repr(self) -> str:
        if self.smoothing is None:
            return f"penalty={self.penalty}"
        return f"smoothing={self.smoothing}, domain={self.domain}"

    def fit(
        self,
        positions: Tensor,
        values: Tensor,
        mask: Tensor | None = None,
        *,
        key_padding_mask: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> ValueFunction:
        r"""Fit one function per example.

        Args:
            positions: Locations of the observations, in any order: shape (B, L), or (B, L, D) for a
                basis on D dimensions. Without the B, or with 1 in its place, all examples share
                them, and with them a single factorization.
            values: The observations, shape (B, L, E).
            mask: Shape (B, L), True where an observation takes part. Other observations are
                never read, so padding cannot leak. None: all take part.
            key_padding_mask: The same with the meaning that it has in `torch.nn`: True, or -inf,
                where a position is padding. Give one of the two.
            weights: How often each observation counts, finite and at least 0, shape (B, L) or (L,):
                the inverse of the variance of its noise, if that is known. $\lambda$ is then the
                inverse of the variance of the change of V, and for "gcv" weights should have mean
                one. None: once.

        Returns:
            The fitted functions, differentiable in positions, values and learned basis parameters.

        Raises:
            ValueError: If shapes do not match or are empty, if a position or value that takes part
                is not finite, if an example has no observation, if both masks are given, or if the
                penalty is too small for the Gram matrix, as is zero with fewer observations than
                functions.

        Warns:
            UserWarning: At the first fit, if positions lie where all functions of the basis are
                zero.
        """
        mask = _taking_part(mask, key_padding_mask)
        positions = self._check_observations(positions, values, mask)
        if weights is None and self._can_fit_values(positions, values, mask):
            return self._fit_values(positions, values, mask)
        sums = self._checked_statistics(positions, values, mask, weights)
        return self._solve(sums, values.dtype)

    def statistics(
        self,
        positions: Tensor,
        values: Tensor,
        mask: Tensor | None = None,
        *,
        key_padding_mask: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> NormalEquations:
        """Compute the sums over observations from which `solve` makes a function.

        Takes the arguments of `fit`. The sums over pieces of a sequence add up to the sum over the
        whole.

        Returns:
            The sums.

        Raises:
            ValueError: As `fit`, but not for too few observations.
        """
        mask = _taking_part(mask, key_padding_mask)
        positions = self._check_observations(positions, values, mask)
        return self._checked_statistics(positions, values, mask, weights)

    def _checked_statistics(
        self, positions: Tensor, values: Tensor, mask: Tensor | None, weights: Tensor | None = None
    ) -> NormalEquations:
        """Sum over observations, whose values are checked."""
        self._check_values(positions, values, mask)
        if weights is not None:
            weights = self._check_weights(weights, values, mask)
        return self._unchecked_statistics(positions, values, mask, weights)

    def _check_values(self, positions: Tensor, values: Tensor, mask: Tensor | None) -> None:
        """Check the values of observations: they must be finite where they take part.

        The first call warns where all functions are zero at a position.
        """
        if self.validate_args:
            require_finite("positions", positions, values.shape, mask)
            require_finite("values", values, values.shape, mask)
            if branches_allowed() and not self._has_fitted:
                self._warn_if_unreached(positions, mask)

    def solve(self, statistics: NormalEquations, dtype: torch.dtype | None = None) -> ValueFunction:
        """Minimize the penalized sum of squares.

        Args:
            statistics: Sums over observations, as from `statistics`.
            dtype: Of the coefficients, float32 at least; torch's default dtype if None.

        Returns:
            One function for each example.

        Raises:
            ValueError: If the sums are not finite or belong to another number of functions, or as
                `fit`.
        """
        if not isinstance(statistics, NormalEquations):
            rule = "statistics must be NormalEquations"
            raise ValueError(f"{rule}, got {type(statistics).__name__}")
        size, shape = len(self.basis), statistics.cross.shape
        if len(shape) != 3 or shape[1] != size:
            raise ValueError(f"statistics.cross must have shape (B, {size}, E), got {tuple(shape)}")
        check_equations("statistics", statistics, shape)
        return self._solve(statistics, dtype or torch.get_default_dtype())

    def observation_weights(
        self,
        density: SparseDistribution,
        positions: Tensor,
        values: Tensor,
        mask: Tensor | None = None,
        *,
        key_padding_mask: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        r"""Compute how much each observation counts in a context.

        For a given $\lambda$ contexts are linear in the n observations $h_\ell$:

        $$\mathbb E_p[V(t)] = \sum_\ell w_\ell h_\ell, \qquad
            w = \frac{1 - 1^\top a}{n} + a, \qquad
            a = F (F^\top F + \lambda S)^{-1} \, \mathbb E_p[\psi(t)]$$

        The weights sum to 1. With a ridge penalty, $w = a$ with I in place of S, they need not.
        Weights may be negative, also where the density is zero, since functions overlap. The sum of
        their absolute values says by how much contexts can exceed the values. A cross-validated
        $\lambda$ depends on the values: the weights take it as given, so that the sum is exact, but
        they are not the derivatives of the context.

        Args:
            density: Any distribution with `expect`, of batch shape (B, ...) or (1, ...).
            positions: As for `fit`.
            values: As for `fit`. Only a cross-validated factor depends on them.
            mask: As for `fit`.
            key_padding_mask: As for `fit`.
            weights: As for `fit`; $F$ and 1 are multiplied by them in $a$ and $w$, and n is their
                sum.

        Returns:
            The weights, shape (B, ..., L), exactly 0 where masked.

        Raises:
            ValueError: As `fit` and `ValueFunction.expect`.
        """
        mask = _taking_part(mask, key_padding_mask)
        statistics = self.statistics(positions, values, mask, weights=weights)
        batch, length = values.shape[:2]
        features = features_of(density, self.basis, batch)
        shape = (batch, *features.shape[1:-1], length)
        right = features.double().reshape(len(features), -1, len(self.basis)).mT
        right = right.expand(batch, -1, -1)
        # The constant is mean(h) - mean(psi)' C, which gives each observation the same weight.
        solved, offset = self._weigh(statistics, right)
        positions = positions.reshape(-1, length, *self.basis.event_shape)
        positions = zero_masked(positions, mask)
        design: Tensor = self.basis(positions.double()).double()
        counts = (design @ solved).mT + offset.unsqueeze(-1)
        if weights is not None:
            counts = counts * self._check_weights(weights, values, mask).unsqueeze(1)
        if mask is not None:
            counts = torch.where(mask.unsqueeze(1), counts, 0)
        return counts.to(torch.promote_types(values.dtype, torch.float32)).reshape(shape)

    def _check_observations(self, positions: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Return positions (B or 1, L, *event); raise ValueError if shapes or dtypes do not fit.

        The arguments are as for `fit`.
        """
        check_real("positions", positions)
        require_tensor("values", values)
        if mask is not None:
            require_tensor("mask", mask)
        event = self.basis.event_shape
        if values.ndim != 3 or 0 in values.shape[1:]:
            rule = "values must have shape (B, L, E), L and E not zero"
            raise ValueError(f"{rule}, got {tuple(values.shape)}")
        if not values.is_floating_point():
            raise ValueError(f"values must be floating, got {values.dtype}")
        batch, length = values.shape[:2]
        shared, hint = (length, *event), " to match values and basis"
        check_shape("positions", positions, (batch, *shared), (1, *shared), shared, hint=hint)
        if mask is not None:
            hint = " to match values, True where an observation takes part"
            check_mask("mask", mask, (batch, length), hint=hint)
        return positions.unsqueeze(0) if positions.ndim == 1 + len(event) else positions

    def _check_weights(self, weights: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Return weights (B, L) from weights (B, L) or (L,), or raise ValueError.

        The values (B, L, E) have the shape that they must fit; where the mask (B, L) is False they
        are not checked.
        """
        check_real("weights", weights)
        check_shape("weights", weights, tuple(values.shape[:2]), tuple(values.shape[1:2]))
        weights = weights.expand(values.shape[:2])
        if self.validate_args:
            valid = (weights >= 0) & (weights < math.inf)
            valid = valid if mask is None else valid | ~mask
            require_all(valid, "weights must be finite and at least 0", weights)
        return weights

    def _unchecked_statistics(
        self,
        positions: Tensor,
        values: Tensor,
        mask: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> NormalEquations:
        """Return the sums over observations, without a check, chunk by chunk.

        Args:
            positions: Shape (B or 1, L, *event).
            values: Shape (B, L, E).
            mask: True where observations take part (B, L). None: everywhere.
            weights: How often each observation counts (B, L). None: once.
        """
        batch, length, channels = values.shape
        basis, given = self.basis, self.chunk_size
        # Shared positions have one Gram matrix, but with weights each example has its own.
        if weights is not None:
            positions = positions.expand(batch, *positions.shape[1:])
        columns = max(batch, 1) * (len(basis) + channels)
        rows = given or max(_LEAST_ROWS, _NUMBERS // columns)
        sums = normal_sums(basis, positions, values, mask, weights, rows)
        gram, cross, squares, functions, values_sum = sums
        if weights is not None:
            count = zero_masked(weights, mask).sum(-1, dtype=squares.dtype)
        else:
            count = squares.new_full((batch,), length) if mask is None else mask.sum(-1).to(squares)
        return NormalEquations(gram, cross, squares, count, functions, values_sum)

    def _warn_if_unreached(self, positions: Tensor, mask: Tensor | None) -> None:
        """Warn, with the first fit, if all functions are zero at positions of a sample."""
        self._has_fitted = True
        sample = slice(None, None, 1 + positions.shape[1] // _CHECKED)
        with torch.no_grad():
            largest = self.basis(positions[:, sample].double()).abs().amax(-1)
        unreached = largest < torch.finfo(torch.float32).tiny
        if mask is not None:
            unreached = unreached.expand(mask[:, sample].shape)[mask[:, sample]]
        if unreached.any():
            warnings.warn(
                f"{unreached.double().mean():.2g} of the positions lie where all functions of the "
                "basis are zero; their values count at most in the mean. Scale positions to the "
                "basis's range, or give it theirs, as GaussianRBF.grid(n, widths, low=..., "
                "high=...) does (shown once)",
                stacklevel=5,
            )

    @property
    def _factor(self) -> float | Literal["gcv"]:
        """The factor of the ridge penalty or of the roughness."""
        return cast(float, self.penalty if self.smoothing is None else self.smoothing)

    def _can_fit_values(self, positions: Tensor, values: Tensor, mask: Tensor | None) -> bool:
        """Return whether `_fit_values` is accurate and saves time for these observations.

        It takes one chunk, and at most gradients in the values: its products in float32 would make
        others inaccurate.

        Args:
            positions: Shape (B or 1, L, *event).
            values: Shape (B, L, E).
            mask: True where observations take part (B, L). None: everywhere.
        """
        tensors = chain((positions,), self.basis.parameters(), self.basis.buffers())
        if self._factor == "gcv" or any(x.requires_grad for x in tensors):
            return False
        # The comparison below would fix the sizes of an exported graph.
        if exported():
            return True
        batch, length, channels = values.shape
        columns = len(self.basis) * (positions.shape[0] if mask is None else batch)
        rows = self.chunk_size or max(_LEAST_ROWS, _NUMBERS // max(columns, 1))
        # An orthogonal matrix takes L N^2 operations for each design; it saves a part of the L N E
        # for each example, by products with the values in their own dtype.
        return length <= rows and columns <= batch * channels

    def _fit_values(self, positions: Tensor, values: Tensor, mask: Tensor | None) -> ValueFunction:
        r"""Fit values H (B, L, E) at positions (B or 1, L, *event): solve K C = F'H.

        F are the functions at the positions, K = F'F + lambda S. With a smoothing the constant is
        the mean of H, which is subtracted first. Only gradients in the values are accurate, see
        `_can_fit_values`. K is in float64; products with the values are in their dtype, float32 at
        least.
        """
        self._check_values(positions, values, mask)
        dtype, factor = torch.promote_types(values.dtype, torch.float32), float(self._factor)
        values = zero_masked(values, mask).to(dtype)
        constant: Tensor | None = None
        count: Tensor | int = values.shape[1]
        if mask is not None:
            count = mask.sum(-1, keepdim=True)
            self._check_count(count)
        with full_precision(values):
            design = self.basis(zero_masked(positions, mask).double()).double()
            design = zero_masked(design, mask)
            # In float64, as the condition of K is the square of that of F.
            penalty = self._penalty_matrix(design)
            matrix = torch.baddbmm(penalty, design.mT, design, beta=factor)
            if self.smoothing is not None:
                constant = values.sum(1) / count
                # The mean of the functions (B or 1, 1, N), and F less that.
                mean = (design.sum(1) / count).unsqueeze(1)
                # The F on the right may be centered, too, as values less their mean sum to 0. Then
                # C does not change with the constant, whose gradient may be left out.
                design = zero_masked(design - mean, mask)
                values = zero_masked(values - constant.detach().unsqueeze(1), mask)
            coefficients, cholesky = solve_orthogonally(matrix, design, values)
        self._check_pivots(cholesky, matrix, factor)
        return ValueFunction(self.basis, coefficients.to(dtype), factor, constant)

    def _solve(self, statistics: NormalEquations, dtype: torch.dtype) -> ValueFunction:
        """Return the functions that minimize penalized sums of squares, without shape checks."""
        statistics, constant, factor = self._centered(statistics)
        coefficients = self._solve_system(statistics, factor, statistics.cross)
        # Coefficients may cancel: rounded to half precision they would lose more than values do.
        dtype = torch.promote_types(dtype, torch.float32)
        constant = None if constant is None else constant.to(dtype)
        return ValueFunction(self.basis, coefficients.to(dtype), factor, constant)

    def _weigh(self, statistics: NormalEquations, right: Tensor) -> tuple[Tensor, Tensor]:
        r"""Return $K^{-1} Y$, and an offset (B, Q), for Q expectations of functions Y (B, N, Q).

        With $K = F^\top F + \lambda S$ the weights of the observations in a context are
        $F K^{-1} y$ plus the offset. If there is a constant they sum to 1, as the fit reproduces
        constants; else the offset is 0.
        """
        statistics, constant, factor = self._centered(statistics)
        solved = self._solve_system(statistics, factor, right)
        if constant is None:
            return solved, torch.zeros_like(solved[:, 0])
        # The sum 1'F K^-1 Y of the weights without the offset, which n observations share.
        total = (statistics.sum_of_functions.unsqueeze(1) @ solved).squeeze(1)
        return solved, (1 - total) / statistics.num_observations.unsqueeze(-1)

    def _centered(
        self, statistics: NormalEquations
    ) -> tuple[NormalEquations, Tensor | None, Tensor | float]:
        """Check sums over observations, and center them.

        Returns:
            The sums with `cross` and `sum_of_squares` of the values less their mean; the mean
            (B, E); and the factor of the penalty, a number or (B,). With a ridge penalty, which has
            no constant, the sums stay as they are and the mean is None.
        """
        if self.validate_args:
            check_finite("statistics.gram", statistics.gram, "finite")
            check_finite("statistics.cross", statistics.cross, "finite")
            check_finite("statistics.num_observations", statistics.num_observations, "finite")
            self._check_count(statistics.num_observations)
        gram, cross, squares, count, functions, values = statistics
        mean = None
        if self.smoothing is not None:
            # F'(H - 1 m') = F'H - (F'1) m', and |H - 1 m'|^2 = |H|^2 - n |m|^2: no second pass.
            mean = values / count.unsqueeze(-1)
            cross = cross - functions.unsqueeze(-1) * mean.unsqueeze(1)
            squares = squares - count * mean.square().sum(-1)
            statistics = statistics._replace(cross=cross, sum_of_squares=squares)
        if self._factor != "gcv":
            return statistics, mean, float(self._factor)
        if mean is None:
            return statistics, mean, gcv_penalty(statistics)
        # Substituting L'C for C, with L L' = S, makes the penalty a sum of squares, which
        # `gcv_penalty` minimizes: the Gram matrix becomes L^{-1} F'F L^{-T}.
        lower = torch.linalg.cholesky_ex(self._penalty_matrix(gram))[0]
        gram = torch.linalg.solve_triangular(lower, gram, upper=False).mT
        gram = torch.linalg.solve_triangular(lower, gram, upper=False)
        cross = torch.linalg.solve_triangular(lower, cross, upper=False)
        return statistics, mean, gcv_penalty(statistics._replace(gram=gram, cross=cross))

    def _solve_system(
        self, statistics: NormalEquations, factor: Tensor | float, right: Tensor
    ) -> Tensor:
        """Solve (F'F + factor S) X = Y for right sides Y (B, N, Q); the factor may be (B,)."""
        by_example = factor.reshape(-1, 1, 1) if isinstance(factor, Tensor) else factor
        matrix = statistics.gram + by_example * self._penalty_matrix(statistics.gram)
        solution, cholesky = solve_shared(matrix, right)
        self._check_pivots(cholesky, matrix, factor)
        return solution

    def _check_count(self, count: Tensor) -> None:
        """Raise ValueError unless counts of observations (B, ...) are positive."""
        if self.validate_args:
            rule = "mask and weights must let at least one position of every example take part"
            require_all(count > 0, rule, count)

    def _check_pivots(self, cholesky: Cholesky, matrix: Tensor, factor: Tensor | float) -> None:
        """Raise ValueError unless pivots exceed rounding errors of the largest numbers.

        Args:
            cholesky: The factors of the matrices.
            matrix: F'F + lambda S (S, N, N), S examples or one.
            factor: lambda, for the message: a number, or (S,).
        """
        if self.validate_args:
            # The largest number in a positive definite matrix is on its diagonal.
            pivots, largest = cholesky.least_pivot(), matrix.amax((-2, -1))
            rounding = len(self.basis) * torch.finfo(largest.dtype).eps * largest
            name = "penalty" if self.smoothing is None else "smoothing"
            rule = f"{name} must exceed the rounding errors of the basis's Gram matrix"
            require_all(pivots > rounding, rule, torch.zeros_like(pivots) + factor)

    def _penalty_matrix(self, like: Tensor) -> Tensor:
        """Return the matrix S of the penalty (N, N): the roughness, or I for a ridge penalty.

        The identity has the dtype and device of another tensor; the roughness is kept by the basis.
        """
        if self.smoothing is None:
            return torch.eye(len(self.basis), dtype=like.dtype, device=like.device)
        return self.basis._keep(("roughness", self.domain), self._roughness)

    def _roughness(self) -> Tensor:
        """Return the roughness of the basis and a ridge, (N, N)."""
        matrix = self.basis.roughness(self.domain)
        diagonal = matrix.diagonal()
        ridge = _RIDGE * diagonal.clamp_min(_LEAST_ROUGHNESS * diagonal.mean())
        return matrix + ridge.diag()


def _default_basis(box: Box) -> GaussianRBF:
    """Return Gaussians on a grid over a box: 64 on the line, 100 in 2-D, 216 in 3-D.

    They are as wide as one and a half steps of the grid, by the longest axis if axes differ.
    """
    count = _COUNTS.get(len(box), _MANY_AXES)
    # Steps differ with the sides of the box, and a Gaussian has one width for all axes: the longest
    # leaves no gaps.
    axes = [torch.linspace(low, high, count) for low, high in box]
    step = max(high - low for low, high in box) / (count - 1)
    return GaussianRBF(torch.cartesian_prod(*axes), _OVERLAP * step)


def _range_of(basis: Basis, is_needed: bool) -> Box:
    """Return the domain of a basis; if it is not bounded or not known, () unless it is needed.

    Raises:
        ValueError: It is needed.
    """
    is_meta = any(x.is_meta for x in chain(basis.parameters(), basis.buffers()))
    if not is_meta and all(math.isfinite(high - low) for low, high in basis.domain):
        return basis.domain
    if not is_needed:
        return ()
    raise ValueError(
        "domain must be given for functions that cover the whole line or are on the meta device, "
        "as ends (low, high) of the locations, unless a ridge penalty is given, got None with "
        f"{basis!r}"
    )


def _warn_of_another_range(basis: Basis, box: Box) -> None:
    """Warn if a basis on some axis hardly covers the domain, or reaches far beyond it."""
    if any(x.is_meta for x in chain(basis.parameters(), basis.buffers())):
        return
    for (a, b), (low, high) in zip(box, basis.domain, strict=True):
        longer = max(b - a, high - low)
        if longer < math.inf and min(b, high) - max(a, low) < _LEAST_OVERLAP * longer:
            warnings.warn(
                f"the domain {(a, b)} and the range {(low, high)} of the basis share less than a "
                "tenth of the longer one; leave domain out to take the range of the basis",
                stacklevel=3,
            )


def _checked_factor(name: str, factor: object) -> float | Literal["gcv"]:
    """Return the factor of a penalty, or raise ValueError."""
    if isinstance(factor, str) and factor == "gcv":
        return "gcv"
    number = as_number(factor)
    if not 0 <= number < math.inf:
        raise ValueError(f"{name} must be 'gcv', or finite and at least 0, got {factor!r}")
    return number


def _taking_part(mask: Tensor | None, key_padding_mask: Tensor | None) -> Tensor | None:
    """Return where observations take part (B, L), or None for all, from one mask at most."""
    if key_padding_mask is None:
        return mask
    if mask is not None:
        rule = "mask, True where observations take part, and key_padding_mask, True where not, must"
        raise ValueError(f"{rule} not both be given, got two tensors")
    require_tensor("key_padding_mask", key_padding_mask)
    return allowed_by(key_padding_mask)
