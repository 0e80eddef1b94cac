"""The table of rules for expectations: which algorithm serves which density, basis and mode."""

import math
from typing import Any, cast

import torch
from torch import Tensor

from .._choice import GENERAL, TABLE, Mode, Rule, Shifts, count_pairs, explain
from .._numerics.fourier import Waves, shifted_waves, waves_of
from .._numerics.gaussian_contour import Four, gaussians_by_pairs
from .._numerics.gaussian_interval import gaussian_expectation
from .._numerics.modes import (
    branches_allowed,
    compiled,
    exported,
    in_forward_mode,
    values_are_readable,
)
from .._numerics.shared_contour import CONTOURS, LEAST_EXPONENT, gaussians_by_shared_contour
from ..bases import Basis, GaussianRBF, Product, Stack
from ..distributions import (
    BetaGaussian,
    KernelDistribution,
    Mixture,
    MultivariateBetaGaussian,
    MultivariateNormal,
    Normal,
    SparseDistribution,
    SymmetricDistribution,
    Truncated,
)
from ..distributions._covariance import exponent_of_ball, gaussians_of
from ..distributions._generators import LOG_TAIL
from ..distributions._line.symmetric import gaussians_on_support
from ..distributions.beta_gaussian import PowerDistribution
from .compiled import contexts_in_graph
from .waves import distinct, law_of, shifted_contexts, wave_contexts, wave_means

__all__: list[str] = []

# Pairs of a density and a function from which on making a matrix of waves pays.
_LEAST_PAIRS = 2**12
# Waves for each function, and further ones, up to which they are faster than pairs.
_WAVES_PER_FUNCTION, _FURTHER_WAVES = 3, 64
# Cells of the tables of learned alphas for each density, up to which the same holds.
_CELLS_PER_DENSITY = 8


# Any density


class StackedBases(Rule):
    """A stack: the expectations of each basis."""

    name = "stack"

    def means(self, p: SparseDistribution, psi: Stack, mode: Mode) -> Tensor:
        return torch.cat([p.expect(basis) for basis in psi.bases], -1)

    def reason(self, p: SparseDistribution, psi: Stack, mode: Mode) -> str:
        return "; ".join(explain(p, basis) for basis in psi.bases)


class Components(Rule):
    """A mixture: the average of the components' expectations."""

    name = "components"

    def serves(self, p: SparseDistribution, psi: object, mode: Mode) -> bool:
        return isinstance(p, Mixture) and isinstance(psi, Basis)

    def means(self, p: Mixture, psi: Basis, mode: Mode) -> Tensor:
        return p._expect_basis(psi, mode.order)

    def reason(self, p: Mixture, psi: Basis, mode: Mode) -> str:
        return "; ".join(explain(component, psi, mode.order) for component in p._densities)


class Quadrature(Rule):
    """Nodes on the support of the density, or on its intersection with those of functions."""

    name = "quadrature"

    def means(self, p: SparseDistribution, psi: Any, mode: Mode) -> Tensor:
        order = max(mode.order, p._least_order or 0)
        if isinstance(psi, Basis):
            return p._expect_basis(psi, order)
        return p._expect_at_nodes(psi, order)

    def reason(self, p: SparseDistribution, psi: object, mode: Mode) -> str:
        return f"no rule for {type(p).__name__} and {type(psi).__name__}, order {mode.order}"


class Mesh(Rule):
    """A kernel density: sums over the nodes of its mesh."""

    name = "mesh"

    def serves(self, p: KernelDistribution, psi: Basis, mode: Mode) -> bool:
        # Expectations of a stack are taken basis by basis, each on a mesh of its own.
        return mode.contexts or not isinstance(psi, Stack)

    def means(self, p: KernelDistribution, psi: Basis, mode: Mode) -> Tensor:
        return p.basis_means(psi)

    def contexts(self, p: KernelDistribution, psi: Basis, by_head: Tensor, mode: Mode) -> Tensor:
        return p.combination_means(psi, by_head).to(by_head.dtype)

    def reason(self, p: KernelDistribution, psi: Basis, mode: Mode) -> str:
        return f"{len(p.mesh.for_basis(psi).nodes)} nodes for {count_pairs(p, psi)}"


# Gaussian functions on the line


class ShiftedWaves(Rule):
    """Contexts of densities that differ by shifts: one spectrum for all."""

    name = "shifted waves"

    def serves(self, p: SymmetricDistribution, psi: GaussianRBF, mode: Mode) -> bool:
        return self._waves(p, psi, mode) is not None

    def _waves(self, p: SymmetricDistribution, psi: GaussianRBF, mode: Mode) -> Waves | None:
        """Return the waves of the functions; None where the rule does not serve."""
        if mode.shifts is None or not isinstance(p, BetaGaussian | Normal) or not p.loc.numel():
            return None
        # Densities (B, heads, Lq) are shifts of each other only if alpha differs by heads at most.
        alphas = distinct(p.alpha)
        extent, dtype = psi.extent(), _dtype_of_waves(p, psi)
        if alphas.shape[0] > 1 or alphas.shape[-1] > 1 or extent is None or dtype is None:
            return None
        m = None if isinstance(p, Normal) else p._fixed_exponent
        # (1 - x^2)^m has the variance 1/(2 m + 3), and normals end at sqrt(2 LOG_TAIL) deviations:
        # the square of the effective half-width, in standard deviations, is below this.
        most = 2 * min(LOG_TAIL[dtype], math.inf if m is None else m) + 3
        half = mode.shifts.deviation * math.sqrt(most)
        waves = shifted_waves(extent, dtype, cast(tuple[float, float], mode.centers), half)
        return None if _are_many(waves, psi) else waves

    def contexts(
        self, p: BetaGaussian | Normal, psi: GaussianRBF, by_head: Tensor, mode: Mode
    ) -> Tensor:
        waves = cast(Waves, self._waves(p, psi, mode))
        steps = cast(Shifts, mode.shifts).steps
        first = p[0, :, 0]  # of the first query, from which others are at the steps
        return shifted_contexts(first, steps, psi, by_head, waves).transpose(1, 2)


class Compiled(Rule):
    """Contexts in a compiled graph on a CPU: an operator that asks this table in eager mode."""

    name = "operator"

    def serves(self, p: SparseDistribution, psi: object, mode: Mode) -> bool:
        if not mode.contexts or not compiled():
            return False
        inner = _inner(p)
        if exported() or not isinstance(inner, BetaGaussian):
            return False
        return isinstance(psi, GaussianRBF) and psi.widths is not None and inner.loc.is_cpu

    def contexts(
        self, p: BetaGaussian | Mixture, psi: GaussianRBF, by_head: Tensor, mode: Mode
    ) -> Tensor:
        return contexts_in_graph(p, psi, by_head)


class WaveFeatures(Rule):
    """Rows of Fourier features; contexts also of mixtures, and by a bound of centers."""

    name = "waves"

    def serves(self, p: SparseDistribution, psi: object, mode: Mode) -> bool:
        return self._plan(p, psi, mode) is not None

    def _plan(
        self, p: SparseDistribution, psi: object, mode: Mode
    ) -> tuple[tuple[float, ...], Waves] | None:
        """Return the functions' extent and waves; None where the rule does not serve."""
        inner = _inner(p) if mode.contexts else p
        # The closed form of a Gaussian function under a normal density is cheaper than waves.
        if not isinstance(inner, SymmetricDistribution) or isinstance(inner, Normal):
            return None
        if mode.by_pairs or not isinstance(psi, GaussianRBF):
            return None
        if not mode.contexts and (
            not _readable(p, psi) or p.batch_shape.numel() * len(psi) < _LEAST_PAIRS
        ):
            return None
        # Without values to read, only a bound of the centers ensures that waves serve densities.
        certain = mode.centers is not None and isinstance(inner, BetaGaussian)
        if mode.contexts and not certain and not _readable(inner, psi):
            return None
        extent = _extent(psi, mode.centers)
        waves = None if extent is None else _waves(inner, psi, extent)
        return None if extent is None or waves is None else (extent, waves)

    def means(self, p: SymmetricDistribution, psi: GaussianRBF, mode: Mode) -> Tensor:
        extent, waves = cast(tuple[tuple[float, ...], Waves], self._plan(p, psi, mode))
        return wave_means(p, psi, extent, waves)

    def contexts(self, p: Any, psi: GaussianRBF, by_head: Tensor, mode: Mode) -> Tensor:
        inner = cast(SymmetricDistribution, _inner(p))
        extent, waves = cast(tuple[tuple[float, ...], Waves], self._plan(p, psi, mode))
        weights = p.logits.softmax(-1) if isinstance(p, Mixture) else None
        readable = _readable(inner, psi)
        return wave_contexts(inner, psi, by_head, extent, waves, readable, weights)

    def reason(self, p: SparseDistribution, psi: GaussianRBF, mode: Mode) -> str:
        _, waves = cast(tuple[tuple[float, ...], Waves], self._plan(p, psi, mode))
        return f"at most {2 * waves.number} features, {count_pairs(p, psi)}"


class Interval(Rule):
    """The closed form of each pair, for integer exponents up to 3."""

    name = "closed form"

    def serves(self, p: SymmetricDistribution, psi: GaussianRBF, mode: Mode) -> bool:
        return isinstance(p, PowerDistribution) and p.profile() is not None

    def means(self, p: PowerDistribution, psi: GaussianRBF, mode: Mode) -> Tensor:
        loc, scale = p.loc.unsqueeze(-1), p.scale.unsqueeze(-1)
        profile = cast(Any, p.profile())
        return gaussian_expectation(loc, scale, psi.centers, cast(Tensor, psi.widths), profile)

    def reason(self, p: PowerDistribution, psi: GaussianRBF, mode: Mode) -> str:
        return f"exponent {p._fixed_exponent:g}, {count_pairs(p, psi)}"


class Contour(Rule):
    """A contour integral for each pair, under beta-Gaussians of any dimension and exponent."""

    name = "contour"

    def serves(self, p: SparseDistribution, psi: Basis, mode: Mode) -> bool:
        return isinstance(p, BetaGaussian) or (_is_elliptical(p) and gaussians_of(psi) is not None)

    def means(self, p: Any, psi: Basis, mode: Mode) -> Tensor:
        return gaussians_by_pairs(_inputs(p, psi), exponent_of_ball(p))

    def reason(self, p: SparseDistribution, psi: Basis, mode: Mode) -> str:
        return f"each of {count_pairs(p, psi)}"


class SharedContour(Rule):
    """One contour for all pairs of a density: products of matrices, in float32, of one width."""

    name = "shared contour"

    def serves(self, p: MultivariateBetaGaussian, psi: Basis, mode: Mode) -> bool:
        exponent = exponent_of_ball(p)
        if exponent is None or isinstance(exponent, Tensor) or gaussians_of(psi) is None:
            return False
        # The table of contours is for these exponents in 2-D and 3-D, and has no derivatives in the
        # functions.
        loc, scale_tril, centers, spread = _inputs(p, psi)
        if loc.shape[-1] not in (2, 3) or spread.dim() > 1 or not len(centers):
            return False
        if not LEAST_EXPONENT <= exponent <= max(CONTOURS) or in_forward_mode():
            return False
        if centers.requires_grad or spread.requires_grad:
            return False
        return all(x.dtype == torch.float32 for x in (loc, scale_tril, centers, spread))

    def means(self, p: MultivariateBetaGaussian, psi: Basis, mode: Mode) -> Tensor:
        return gaussians_by_shared_contour(_inputs(p, psi), float(cast(float, exponent_of_ball(p))))


class Overlap(Rule):
    """Nodes where both the density and the Gaussian function matter."""

    name = "overlap"

    def means(self, p: SymmetricDistribution, psi: GaussianRBF, mode: Mode) -> Tensor:
        return gaussians_on_support(p, psi.centers, cast(Tensor, psi.widths))


class NormalProduct(Rule):
    """The product of two Gaussians, which integrates to a Gaussian of their difference."""

    name = "closed form"

    def means(self, p: Normal, psi: GaussianRBF, mode: Mode) -> Tensor:
        # The variance of a difference is the sum: its density at 0, N(mu - c; 0, sigma^2 + w^2).
        widths = cast(Tensor, psi.widths)
        scale = torch.hypot(p.scale.unsqueeze(-1), widths)
        z = (p.loc.unsqueeze(-1) - psi.centers) / scale
        return torch.exp(-0.5 * z * z) / (scale * math.sqrt(2 * math.pi))


class TruncatedNormal(Rule):
    """Differences of normal masses."""

    name = "closed form"

    def serves(self, p: Truncated, psi: GaussianRBF, mode: Mode) -> bool:
        law = p._base_law
        return law is not None and law.name == "normal" and not law.exponential

    def means(self, p: Truncated, psi: GaussianRBF, mode: Mode) -> Tensor:
        law, widths = cast(Any, p._base_law), cast(Tensor, psi.widths)
        means: Tensor = law.gaussian_means(*p._ends(), psi.centers.double(), widths.double())
        return means.to(p._like.dtype)


def _inner(p: SparseDistribution) -> object:
    """Return the components of a mixture, which may be a list, or else the density."""
    return p.components if isinstance(p, Mixture) else p


def _is_elliptical(p: SparseDistribution) -> bool:
    """Return whether a density is a normal or a beta-Gaussian of vectors."""
    return isinstance(p, MultivariateBetaGaussian | MultivariateNormal)


def _inputs(p: Any, psi: Any) -> Four:
    """Return the parameters of densities and of Gaussian functions, for contours.

    They are centers (*batch, D) and factors (*batch, D, D) of the densities, and centers (N, D) and
    spread of the functions: widths, or covariances (N, D, D).
    """
    if isinstance(p, BetaGaussian):
        return p.loc.unsqueeze(-1), p.scale[..., None, None], psi.centers.unsqueeze(-1), psi.widths
    return p.loc, p.scale_tril, *cast(Any, gaussians_of(psi))


def _readable(p: SymmetricDistribution, psi: GaussianRBF) -> bool:
    """Return whether values can be read, and the functions have a dtype that waves serve."""
    tensors = p.loc, p.scale, p.alpha, psi.centers, cast(Tensor, psi.widths)
    return psi.centers.dtype in LOG_TAIL and values_are_readable(*tensors)


def _dtype_of_waves(p: SymmetricDistribution, psi: GaussianRBF) -> torch.dtype | None:
    """Return the dtype of a density if waves serve it, and functions are no more precise."""
    dtype = torch.promote_types(p.loc.dtype, psi.centers.dtype)
    return dtype if dtype in LOG_TAIL and p.loc.dtype == dtype else None


def _extent(psi: GaussianRBF, centers: tuple[float, float] | None) -> tuple[float, ...] | None:
    """Return the extent of functions, made longer so that it contains the centers of densities.

    Args:
        psi: The functions.
        centers: Bounds of the centers of densities; None to leave the extent as it is.
    """
    extent = psi.extent()
    if extent is None or centers is None:
        return extent
    first, last, width, widest = extent
    return min(first, centers[0]), max(last, centers[1]), width, widest


def _waves(p: SymmetricDistribution, psi: GaussianRBF, extent: tuple[float, ...]) -> Waves | None:
    """Return the waves of functions; None if there are too many, or none for the densities.

    Args:
        p: The densities.
        psi: The functions.
        extent: First and last center, least and largest width, as for `waves_of`.
    """
    dtype, law = _dtype_of_waves(p, psi), law_of(p)
    if branches_allowed() and not p.loc.numel() or dtype is None or law is None:
        return None
    waves = waves_of(extent, dtype)
    if _are_many(waves, psi):
        return None
    if law.exponent is None:
        # Each alpha has a table, which takes as long as pairs with so many densities.
        cost = distinct(p.alpha).numel() * waves.cells[1]
        return waves if cost <= _CELLS_PER_DENSITY * p.batch_shape.numel() else None
    return waves


def _are_many(waves: Waves, psi: GaussianRBF) -> bool:
    """Return whether waves are so many that pairs are faster."""
    return waves.number > _WAVES_PER_FUNCTION * len(psi) + _FURTHER_WAVES


_STACKED, _CONTOUR = StackedBases(), Contour()
_OPERATOR, _WAVES, _SHIFTED = Compiled(), WaveFeatures(), ShiftedWaves()
_ELLIPTICAL = SharedContour(), _CONTOUR

TABLE.update(
    {
        (SparseDistribution, Stack): (_STACKED,),
        (KernelDistribution, Basis): (Mesh(), _STACKED),
        (SymmetricDistribution, GaussianRBF): (
            _SHIFTED,
            _OPERATOR,
            _WAVES,
            Interval(),
            _CONTOUR,
            Overlap(),
        ),
        (Normal, GaussianRBF): (_SHIFTED, NormalProduct()),
        (Truncated, GaussianRBF): (TruncatedNormal(),),
        (MultivariateBetaGaussian, GaussianRBF): _ELLIPTICAL,
        (MultivariateBetaGaussian, Product): _ELLIPTICAL,
        (MultivariateNormal, GaussianRBF): (_CONTOUR,),
        (MultivariateNormal, Product): (_CONTOUR,),
    }
)
# Contexts of mixtures may be waves, too.
GENERAL.extend([_OPERATOR, _WAVES, Components(), Quadrature()])
