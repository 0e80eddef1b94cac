"""Laws of numbers with atoms besides a density."""

import math
from typing import Any

import torch
from torch import Size, Tensor
from torch.distributions import constraints
from torch.distributions.constraints import Constraint
from torch.types import _size

from .._numerics.validation import require_shape
from ..bases import Basis
from ..supports import IntervalUnion, WithAtoms
from .base import SparseDistribution
from .univariate import Geometry, Univariate, interval_by_tails

__all__ = ["MixedDistribution"]

_NO_LEVELS = "highest_density exists for laws without atoms only"


class MixedDistribution(Univariate):
    """A law of numbers with atoms: `log_prob` is the log mass at an atom, elsewhere a log density.

    A subclass has `base`, a float64 density of the same batch, and implements the methods that
    raise NotImplementedError here.
    """

    base: Any
    _members = ("base",)

    def _atoms(self) -> tuple[Tensor, Tensor]:
        """Return locations of atoms, finite also where there is none, and log masses (K, *batch).

        Both are float64.
        """
        raise NotImplementedError

    def _continuous(self) -> tuple[Any, Tensor]:
        """Return the law of draws that are no atoms, and the logarithm of its mass (*batch)."""
        raise NotImplementedError

    def geometry(self) -> Geometry:
        """Return the ends of the support, without breakpoints."""
        ends = self._intervals().flatten(-2)
        return Geometry(ends.nan_to_num(math.inf).amin(-1), ends.nan_to_num(-math.inf).amax(-1))

    def _interval(self, a: Tensor, b: Tensor, log: bool = False) -> Tensor:
        return interval_by_tails(self, a, b, log)

    def _log_tail(self, value: Tensor, upper: Tensor) -> Tensor:
        # Subclasses know the logarithm of either tail, also of the larger one.
        return self._tail(value, upper, log=True)

    def _intervals(self) -> Tensor:
        """Return the support (*batch, J, 2), in any order."""
        raise NotImplementedError

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Constraint:
        """Closed intervals, and the `atoms` (*batch, K) in them."""
        locations, log_masses = self._atoms()
        atoms = torch.where(log_masses > -math.inf, locations, math.nan).movedim(0, -1)
        return WithAtoms(self._intervals(), atoms.to(self._like.dtype), self.log_prob)

    def _total(self, at_atoms: Tensor, within: Tensor) -> Tensor:
        """Return the mean of a function of t (*batch, *shape), in the type of the parameters.

        Args:
            at_atoms: Its values at the atoms (K, *batch, *shape).
            within: Its mean under the continuous law (*batch, *shape).
        """
        atom_masses, inner_mass = self._atoms()[1].exp(), self._continuous()[1].exp()
        extra = (1,) * (within.dim() - inner_mass.dim())
        atom_masses, inner_mass = (x.reshape((*x.shape, *extra)) for x in (atom_masses, inner_mass))
        # A law may have no mean where its mass is zero, and NaN times zero is NaN.
        total = (atom_masses * torch.where(atom_masses > 0, at_atoms, 0.0)).sum(0)
        total = total + inner_mass * torch.where(inner_mass > 0, within, 0.0)
        return total.to(self._like.dtype)

    @property
    def mean(self) -> Tensor:
        """Mean (*batch)."""
        return self._total(self._atoms()[0], self._continuous()[0].mean)

    @property
    def variance(self) -> Tensor:
        """Variance (*batch)."""
        (atoms, _), (inner, _), center = self._atoms(), self._continuous(), self._center()
        within = inner.variance + (inner.mean - center).square()
        return self._total((atoms - center).square(), within)

    def _center(self) -> Tensor:
        """Return the mean (*batch) in float64, around which the variance is taken."""
        (atoms, log_masses), (inner, log_mass) = self._atoms(), self._continuous()
        mass = log_mass.exp()
        within = mass * torch.where(mass > 0, inner.mean, 0.0)
        return (log_masses.exp() * atoms).sum(0) + within

    def _moment_about(self, n: int, center: Tensor) -> Tensor:
        within = self._continuous()[0]._moment_about(n, center.double())
        return self._total((self._atoms()[0] - center) ** n, within)

    def entropy(self) -> Tensor:
        """Return the Shannon entropy (*batch) of the masses of atoms and of the density elsewhere.

        It is minus the mean of `log_prob`, relative to counting and to Lebesgue measure.
        """
        (_, log_masses), (inner, log_mass) = self._atoms(), self._continuous()
        present = log_masses > -math.inf
        return self._total(-torch.where(present, log_masses, 0.0), inner.entropy() - log_mass)

    def quadrature(self, order: int = 64) -> tuple[Tensor, Tensor]:
        r"""Return nodes and weights (Q, *batch) with $\sum_q w_q g(t_q) \to E_p[g]$.

        The atoms come first.
        """
        (atoms, log_masses), (inner, log_mass) = self._atoms(), self._continuous()
        nodes, weights = inner.quadrature(order)
        nodes, weights = (
            torch.cat([atoms, nodes]),
            torch.cat([log_masses.exp(), log_mass.exp() * weights]),
        )
        return nodes.to(self._like.dtype), weights.to(self._like.dtype)

    # By the nodes of `quadrature`, atoms included.
    _beta_covariance = SparseDistribution._beta_covariance

    def _expect_basis(self, psi: Basis, order: int) -> Tensor:
        return self._total(psi(self._atoms()[0]), self._continuous()[0].expect(psi, order))

    def _draw(self, sample_shape: Size) -> Tensor:
        return self._from_base(self.base.sample(sample_shape)).to(self._like.dtype)

    def rsample(self, sample_shape: _size = Size()) -> Tensor:
        """Draw samples (*sample, *batch), differentiable in the parameters.

        Raises:
            NotImplementedError: `has_rsample` is false.
        """
        if torch.is_grad_enabled() and not self.has_rsample:
            raise NotImplementedError("rsample needs a support of one interval: use sample")
        shape = require_shape("sample_shape", sample_shape)
        return self._from_base(self.base.rsample(shape)).to(self._like.dtype)

    def _from_base(self, t: Tensor) -> Tensor:
        """Return draws of this law, made from draws (*sample, *batch) of the base in float64."""
        raise NotImplementedError

    @property
    def mode(self) -> Tensor:
        """Raise NotImplementedError: there are atoms."""
        raise NotImplementedError("mode exists for laws without atoms only")

    def highest_density(self, mass: Tensor | float) -> IntervalUnion:
        """Raise NotImplementedError: there are atoms."""
        raise NotImplementedError(_NO_LEVELS)

    def highest_density_mass(self, value: Tensor) -> Tensor:
        """Raise NotImplementedError: there are atoms."""
        raise NotImplementedError(_NO_LEVELS)

    def _as_given(self, x: Tensor, value: Tensor) -> Tensor:
        """Return float64 results in the type of the parameters, or of `value` if that is longer."""
        return x.to(torch.promote_types(self._like.dtype, value.dtype))
