"""Expectations of Gaussian functions under densities on the line, and of sums of such functions.

Most densities are rows of Fourier features; see `_numerics.fourier`. Densities far from all
functions have expectations too small for that, and densities whose center is far outside while
their support ends among the functions have too many frequencies: these are computed pair by pair.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Size, Tensor

from .._choice import Mode, means
from .._numerics.fourier import (
    Waves,
    characteristic,
    expect_shifted,
    expect_waves,
    law_table,
    learned_table,
    waves_of,
)
from .._numerics.modes import values_are_readable
from ..bases import GaussianRBF
from ..distributions import BetaGaussian, Laplace, Normal, SymmetricDistribution
from ..distributions._generators import LOG_TAIL
from ..distributions.beta_gaussian import PowerDistribution

__all__ = ["Law", "distinct", "law_of", "shifted_contexts", "wave_contexts", "wave_means"]

# Fractions of the period that suffice if supports are short.
_FRACTIONS = (0.625, 0.75, 0.875)
# Fraction of the largest possible expectation above which a row is accurate.
_LEAST_FRACTION = 0.2
# The mode of the rows that waves do not serve.
_PAIRS = Mode(by_pairs=True)
# Numbers in a block of rows with matrices of their own.
_BLOCK = 2**20


class Law(NamedTuple):
    """A family in x = (t - loc)/scale, for tables of its characteristic function."""

    name: str  # In `LOG_DENSITIES`
    exponent: float | None  # None if it is a tensor
    radius: float  # |x| beyond which the density is negligible


def law_of(p: SymmetricDistribution) -> Law | None:
    """Return the family of a density for tables of its characteristic function.

    None for classes without a table, and for beta-Laplacians whose alpha is a tensor.
    """
    tail = LOG_TAIL.get(p.loc.dtype, 40.0)
    if isinstance(p, Laplace):
        return Law("laplace", 0.0, tail)
    if not isinstance(p, PowerDistribution):
        return None
    m, k = p._fixed_exponent, p._kind.order
    if m is None:
        return Law("ball", None, math.nan) if isinstance(p, BetaGaussian) else None
    # (1 - |x|^k)^m falls to e^-tail at this |x|.
    radius = (-math.expm1(-tail / m)) ** (1 / k) if m > 0 else 1.0
    return Law("ball" if k == 2 else "cone", m, radius)


def wave_means(
    p: SymmetricDistribution, psi: GaussianRBF, extent: tuple[float, ...], waves: Waves
) -> Tensor:
    """Return expectations (*batch, N), by pairs where waves would lose digits.

    Errors of waves are those of the largest expectations. A density (a row) whose expectations are
    all small has few digits left.

    Args:
        p: Densities (*batch).
        psi: N functions.
        extent: Of the functions: first and last center, least and largest width.
        waves: Of the functions.
    """
    shape = p.batch_shape
    rows = _Rows(p, Size([1, shape.numel()]), extent, waves)
    values = rows.times(lambda matrix: matrix.unsqueeze(0), psi)[0]
    with torch.no_grad():
        spread = cast(Tensor, psi.widths).amin().square() + rows.density.variance[0]
        # A normal density of this variance has the expectation (2 pi spread)^(-1/2) of a Gaussian
        # function at its center, about the largest. The negation includes NaN.
        fraction = values.amax(-1) * (2 * math.pi * spread).sqrt()
        inaccurate = ~(fraction >= _LEAST_FRACTION) | rows.others[0]
    values = _replace(values, inaccurate, lambda index: means(rows.density[0, index], psi, _PAIRS))
    return values.reshape(*shape, len(psi))


def wave_contexts(
    p: SymmetricDistribution,
    psi: GaussianRBF,
    by_head: Tensor,
    extent: tuple[float, ...],
    waves: Waves,
    readable: bool,
    weights: Tensor | None = None,
) -> Tensor:
    """Return $E_p[psi]' C$ (*batch, L, E).

    Args:
        p: Densities (*batch, L), or components (*batch, L, K).
        psi: N functions.
        by_head: C (*batch, N, E).
        extent: Of the functions, and of all centers of densities if these are not readable.
        waves: Of the functions.
        readable: Whether values can be read.
        weights: Of the components (*batch, L, K).
    """
    batch = p.batch_shape[: by_head.dim() - 2]
    groups, length = math.prod(batch), p.batch_shape[len(batch)]
    coefficients = by_head.reshape(groups, *by_head.shape[-2:])
    if weights is not None:
        weights = weights.reshape(groups, length, -1)
    rows = _Rows(p, Size([groups, p.batch_shape[len(batch) :].numel()]), extent, waves)

    def sums(matrix: Tensor) -> Tensor:
        """Combine the columns of a matrix (M, N) of each group, (G, M, E)."""
        return matrix.to(coefficients.dtype) @ coefficients

    values = rows.times(sums, psi, weights)
    if readable:
        index = rows.others.nonzero(as_tuple=True)
        if len(index[0]):
            features = means(rows.density[index], psi, _PAIRS)
            contexts = _times_groups(features, coefficients, index[0])
            values = _put(values, index, contexts, weights)
    return values.reshape(*batch, length, values.shape[-1])


def shifted_contexts(
    p: BetaGaussian | Normal, shifts: Tensor, psi: GaussianRBF, by_head: Tensor, waves: Waves
) -> Tensor:
    r"""Return contexts $E_p[\psi(t + s)]' C$ (G, L, H, E) of shifted densities.

    A shift multiplies waves by $e^{i \omega s}$, so that the densities change the spectrum of
    $\psi' C$ once, whatever the number of shifts: heads are the taps of a convolution.

    Args:
        p: Densities (H,).
        shifts: s (G or 1, L).
        psi: N functions.
        by_head: C (G, H, N, E).
        waves: Of the functions, from `shifted_waves`.
    """
    if isinstance(p, Normal):
        omega = waves.frequencies(p.scale).to(waves.dtype)
        values = torch.exp(-0.5 * (p.scale.unsqueeze(-1) * omega).square())
    else:
        widths = _HalfWidths.of(p, p.batch_shape)
        values = characteristic(widths.half, widths.tables(waves), widths.which, waves)
    right = _amplitudes(waves, psi, by_head.dtype)
    return expect_shifted(shifts, p.loc, values, right @ by_head, waves)


def _amplitudes(waves: Waves, psi: GaussianRBF, dtype: torch.dtype) -> Tensor:
    """Return the amplitudes of functions (2 K, N) in a dtype; kept while they are constant."""
    return psi._keep(
        ("amplitudes", waves, dtype),
        lambda: waves.amplitudes(psi.centers, cast(Tensor, psi.widths)).to(dtype),
    )


def _values_at_nodes(waves: Waves, psi: GaussianRBF, dtype: torch.dtype) -> Tensor:
    """Return the functions at the nodes of a rule, times its weight (Q, N)."""

    def make() -> Tensor:
        nodes, spacing = waves.nodes(psi.centers)
        return (spacing * psi.own(nodes.unsqueeze(-1))).to(dtype)

    return psi._keep(("values at nodes", waves, dtype), make)


class _HalfWidths(NamedTuple):
    """Half-widths beyond which densities are negligible, and their characteristic functions.

    Densities whose alpha was expanded share a table of these functions.
    """

    half: Tensor  # Half-widths, of the shape asked for
    which: Tensor | None  # The index of the table of each density, None if there is one table
    law: Law
    exponents: Tensor  # Of the tables; empty if the exponent is a number
    radii: Tensor  # Of the tables, |x| beyond which densities are negligible; empty as above

    @classmethod
    def of(cls, p: Any, shape: Size) -> "_HalfWidths":
        """Return the half-widths of densities, of which `law_of` knows the family, in a shape."""
        law, scale = cast(Law, law_of(p)), p.scale.reshape(shape)
        if law.exponent is not None:
            none = scale.new_empty(0)
            return cls(scale * law.radius, None, law, none, none)
        alphas = distinct(p.alpha)
        index = torch.arange(alphas.numel(), device=alphas.device).reshape(alphas.shape)
        index = index.expand(p.alpha.shape).reshape(shape)
        generator = p._replace(alpha=alphas.reshape(-1)).generator
        exponents, radii = generator.m, generator.reach().detach()
        half = scale * radii[index]
        return cls(half, index if len(radii) > 1 else None, law, exponents, radii)

    def tables(self, waves: Waves) -> Tensor:
        """Return the tables of the characteristic functions."""
        name, exponent, radius = self.law
        if exponent is None:
            return learned_table(name, self.exponents, self.radii, waves)
        return law_table(name, exponent, radius, waves, self.half.detach())


class _Rows:
    """Densities in a shape (G, L), told apart by the algorithm of their expectations.

    Args:
        p: Densities whose batch has G L elements.
        shape: G and L.
        extent: Of the functions: first and last center, least and largest width.
        waves: Of the functions, for all supports.

    Attributes:
        density: The densities (G, L).
        half: The half-widths beyond which they are negligible (G, L).
        fits: Whether waves serve a density (G, L).
        wide: Whether nodes do, as the density is smooth over all functions (G, L).
        others: Whether each pair is computed by itself (G, L).
        waves: The waves, of a shorter period if that suffices.
        tables: The tables of characteristic functions.
    """

    def __init__(self, p: Any, shape: Size, extent: tuple[float, ...], waves: Waves) -> None:
        density = p._map(lambda x, event: x.reshape(shape), shape)
        widths, loc = _HalfWidths.of(p, shape), density.loc
        self.density, self.half, self._index = density, widths.half, widths.which
        low, high = (loc - self.half).detach(), (loc + self.half).detach()
        # A density with a kink at its center is not smooth.
        smooth = widths.law.name == "ball"
        self.wide = (low <= waves.low) & (high >= waves.high)
        if not smooth:
            self.wide = torch.zeros_like(self.wide)
        # Shifted by a period, a support must not come near the functions again: no aliasing.
        fits = (low > waves.high - waves.period) & (high < waves.low + waves.period)
        self.fits = fits & ~self.wide
        self.others = ~(fits | self.wide)
        # Waves of a shorter period are fewer: it need only exceed the distance from each end of the
        # functions to the far end of a support.
        if values_are_readable(loc.detach()):
            most = torch.maximum(high - waves.low, waves.high - low)
            most = torch.where(self.fits, most, 0.0).amax() / waves.period
            fraction = next((x for x in _FRACTIONS if most < x), 1.0)
            waves = waves_of(extent, waves.dtype, fraction)
        self.waves, self.tables = waves, widths.tables(waves)

    def times(
        self, sums: Callable[[Tensor], Tensor], psi: GaussianRBF, weights: Tensor | None = None
    ) -> Tensor:
        """Return expectations (G, L, E) of sums of the functions; callers replace rows of `others`.

        Args:
            sums: From a matrix (M, N), whose columns belong to the functions, to the matrices
                (G or 1, M, E) of the sums.
            psi: N functions.
            weights: Of mixtures of C neighboring densities (G, L / C, C), whose expectations are
                (G, L / C, E).
        """
        waves, dtype = self.waves, self.density.loc.dtype
        right = sums(_amplitudes(waves, psi, dtype))
        middle = 0.5 * (waves.low + waves.high)
        loc = torch.where(self.fits, self.density.loc, middle)
        # Rows that do not fit take the features of a density that does; they are replaced later.
        half = torch.where(self.fits, self.half, waves.width)
        fitting = weights
        if weights is not None:
            fitting = torch.where(self.fits.view(weights.shape), weights, 0.0)
        values = expect_waves(loc, half, self.tables, self._index, right, waves, fitting)
        eager = values_are_readable(values.detach())
        if eager and not bool(self.wide.any()):
            return values
        # The trapezoidal rule, which converges exponentially for products of smooth functions that
        # vanish at the ends: Trefethen and Weideman (2014), SIAM Review 56.
        nodes, _ = waves.nodes(loc)
        right = sums(_values_at_nodes(waves, psi, dtype))
        if eager:
            index = self.wide.nonzero(as_tuple=True)
            # In float64, as an edge may be close to the nodes.
            densities = self._at(nodes, *(x[index] for x in self._parameters()))
            contexts = _times_groups(densities.to(dtype), right, index[0])
            return _put(values, index, contexts, weights)
        return self._with_wide(values, nodes.to(dtype), right, weights)

    def _with_wide(
        self, values: Tensor, nodes: Tensor, right: Tensor, weights: Tensor | None
    ) -> Tensor:
        """Return the result of `times` with the densities in `wide`, where values are not read.

        Then centers are near the functions, and no edge is close to a node for the scale. All rows
        are computed, with harmless parameters where they are not selected.

        Args:
            values: The expectations by waves (G, L, E).
            nodes: The nodes (Q,).
            right: Sums of the functions at the nodes (G or 1, Q, E).
            weights: As for `times`.
        """
        middle, far = 0.5 * (self.waves.low + self.waves.high), 4 * self.waves.longest
        safe = zip(self._parameters(), (middle, far, None), strict=True)
        parameters = (x if other is None else torch.where(self.wide, x, other) for x, other in safe)
        densities, invalid = self._at(nodes, *parameters), self.others
        if weights is None:
            values = torch.where(self.wide.unsqueeze(-1), densities @ right, values)
        else:
            wide = torch.where(self.wide.view(weights.shape), weights, 0.0)
            components = densities.unflatten(1, wide.shape[1:])
            mixed: Tensor = (wide.unsqueeze(-2) @ components).squeeze(-2)
            values, invalid = values + mixed @ right, invalid.view(weights.shape).any(-1)
        # Only densities with NaN among their parameters are neither wide nor fit.
        return torch.where(invalid.unsqueeze(-1), math.nan, values)

    def _parameters(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return loc, scale and alpha, each (G, L)."""
        return self.density.loc, self.density.scale, self.density.alpha

    def _at(self, nodes: Tensor, loc: Tensor, scale: Tensor, alpha: Tensor) -> Tensor:
        """Return the densities (..., Q) at nodes, in the dtype of these."""
        loc, scale, alpha = (x.to(nodes.dtype).unsqueeze(-1) for x in (loc, scale, alpha))
        parameters = {"loc": loc, "scale": scale, "alpha": alpha}
        exact: Any = self.density._replace(loc.shape, **parameters, _validate_args=False)
        # All nodes are in the support.
        log_density: Tensor = exact.generator.log_density((nodes - loc) / scale)
        return log_density.exp() / scale


def distinct(alpha: Tensor) -> Tensor:
    """Return alpha without the axes along which it was expanded, which are one long."""
    return alpha[tuple([slice(None) if step else slice(0, 1) for step in alpha.stride()])]


def _times_groups(weights: Tensor, right: Tensor, group: Tensor) -> Tensor:
    """Return the products (R, E) of rows and the matrices of their groups.

    Args:
        weights: The rows (R, M).
        right: Matrices (G or 1, M, E).
        group: The index of the group of each row (R,).
    """
    if right.shape[0] == 1:
        return weights @ right[0]
    # In blocks, since each row takes a copy of the matrix of its group.
    step = max(1, _BLOCK // right[0].numel())
    blocks = zip(weights.split(step), group.split(step), strict=True)
    return torch.cat([(x.unsqueeze(-2) @ right[g]).squeeze(-2) for x, g in blocks])


def _put(values: Tensor, index: tuple[Tensor, ...], rows: Tensor, weights: Tensor | None) -> Tensor:
    """Return values (G, L, E) with rows (R, E) put at indices, or added if they are weighted.

    Args:
        values: The values.
        index: Indices (R,) of the group, and of the density in it.
        rows: The rows, expectations under single densities.
        weights: If values are of mixtures of C neighboring densities, their weights (G, L, C).
    """
    if weights is None:
        return values.index_put(index, rows)
    group, component = index
    rows = rows * weights.flatten(1)[index].unsqueeze(-1)
    return values.index_put((group, component // weights.shape[-1]), rows, accumulate=True)


def _replace(values: Tensor, where: Tensor, rows: Callable[[Tensor], Tensor]) -> Tensor:
    """Replace values (R, ...) where a mask (R,) is true.

    Args:
        values: The values.
        where: The mask.
        rows: From indices (n,) to new values (n, ...).
    """
    (index,) = where.nonzero(as_tuple=True)
    return values.index_put((index,), rows(index)) if len(index) else values
