"""Bases: vectors of functions, whose expectations are taken and combined to value functions."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from functools import reduce
from itertools import chain, combinations_with_replacement
from typing import cast

import torch
from torch import Size, Tensor, nn
from torch.nn.functional import pad
from typing_extensions import Self

from ._numerics.dirichlet_energy import energy_scale, gaussian_energy, quadrature_energy
from ._numerics.gaussian_interval import negligible_distance
from ._numerics.modes import branches_allowed, outside_modes, traced, values_are_readable
from ._numerics.special import normal_density
from ._numerics.spline import nonzero_splines
from ._numerics.validation import (
    LARGEST_POWER,
    as_tensors,
    require,
    require_covariance,
    require_integer,
    require_tensor,
)
from .supports import Box

__all__ = [
    "BSpline",
    "Basis",
    "Fourier",
    "GaussianRBF",
    "Indicator",
    "Polynomial",
    "Product",
    "Stack",
]

Values = Tensor | float | Sequence["Values"]
Interval = tuple[float, float]

# Panels on an axis, on which derivatives are integrated: at least so many, and one for every so
# many functions along the axis.
_PANELS, _FUNCTIONS = 8, 2
# Most axes and most monomials of a basis.
_MOST_AXES, _MOST_MONOMIALS = 1000, 10**6
# Numbers in a matrix that a basis keeps, and how many it keeps.
_LARGEST_KEPT, _MOST_KEPT = 2**18, 8


def _tensors(**values: Values) -> tuple[Tensor, ...]:
    """Return values, named for messages, as tensors of one dtype and device.

    Parameters stay as they are.
    """
    tensors = as_tensors(**values)
    return tuple(
        value if isinstance(value, nn.Parameter) else tensor
        for value, tensor in zip(values.values(), tensors.values(), strict=True)
    )


def _require_rows(name: str, values: Tensor, max_dim: int = 2) -> None:
    """Raise ValueError unless values are finite, not empty, and of shape (N,) or (N, D).

    Args:
        name: The name of the values, for messages.
        values: The values.
        max_dim: The largest number of dimensions: 1 refuses (N, D).
    """
    require(values.isfinite(), name, "finite", values)
    if not 1 <= values.dim() <= max_dim or values.numel() == 0:
        rule = (
            "have shape (N,), not empty" if max_dim == 1 else "have shape (N,) or (N, D), not empty"
        )
        raise ValueError(f"{name} must {rule}, got shape {tuple(values.shape)}")


class Basis(nn.Module, ABC):
    r"""A vector of $N$ functions $\psi(t) = [\psi_1(t), \dots, \psi_N(t)]$ of a location.

    A location is a real number, or a vector of shape `event_shape`. A subclass defines the number
    of functions (`__len__`) and their values (`forward`). The sum of two bases is their `Stack`.

    Attributes:
        event_shape: Shape of one location: () for numbers, (D,) for vectors.
    """

    event_shape: Size = Size()
    # Matrices made of the functions, with the buffers and their versions that they were made of.
    _kept: dict[Hashable, tuple[list[Tensor], list[int], Tensor]] | None = None

    @abstractmethod
    def forward(self, t: Tensor) -> Tensor:
        """Evaluate every function at every location.

        Args:
            t: Locations, shape (..., *event_shape).

        Returns:
            The values, shape (..., N).
        """

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of functions, N."""

    @property
    def domain(self) -> tuple[Interval, ...]:
        """The range (low, high) that the functions cover on each axis.

        (-inf, inf), unless a subclass says otherwise: polynomials and waves cover the whole line.
        """
        return ((-math.inf, math.inf),) * max(self.event_shape.numel(), 1)

    @property
    def effective_support(self) -> tuple[Tensor, Tensor] | None:
        """Ends (lower, upper), each (N,), outside which a function is zero to its precision.

        None if the functions do not vanish, and for functions of vectors.
        """
        return None

    @property
    def breaks(self) -> Tensor | None:
        """Increasing locations at which some function is not smooth.

        None if all functions are smooth everywhere, and for functions of vectors.
        """
        return None

    def roughness(self, box: Box) -> Tensor:
        r"""Return the matrix S of the roughness $C^\top S C$ of functions $C^\top\psi$.

        It is the Dirichlet energy in the coordinates of a box with sides $s_d$ and volume v, which
        does not depend on the unit of locations:

        $$S_{ij} = \sum_d \frac{s_d^2}{v} \int \partial_d \psi_i\, \partial_d \psi_j\, dt$$

        Gaussians are integrated over the whole space, B-splines over all knots, and other functions
        over the box, by quadrature.

        Args:
            box: The ends (low, high) of each axis.

        Returns:
            The matrix, shape (N, N), float64.
        """
        like = [*self.buffers(), *self.parameters(), torch.empty(0)][0]
        count = max(_PANELS, math.ceil(len(self) ** (1 / len(box)) / _FUNCTIONS))
        cuts = []
        for axis, (low, high) in enumerate(box):
            ends = torch.linspace(low, high, count + 1, dtype=torch.float64, device=like.device)
            breaks = [x.clamp(low, high) for x in breaks_along(self, axis)]
            cuts.append(torch.cat([ends, *breaks]).sort().values)
        return quadrature_energy(self.in_float64, cuts, energy_scale(box))

    def in_float64(self, t: Tensor) -> Tensor:
        """Evaluate the functions in float64, with all parameters converted, (..., N)."""
        tensors = chain(self.named_parameters(), self.named_buffers())
        state = {name: x.double() for name, x in tensors if x.is_floating_point()}
        return torch.func.functional_call(self, state, (t,))

    def own(self, t: Tensor) -> Tensor:
        """Evaluate each function at locations of its own.

        Args:
            t: Locations (..., N, *event_shape): function j is evaluated at t[..., j].

        Returns:
            The values, shape (..., N).
        """
        return torch.diagonal(self(t), dim1=-2, dim2=-1)

    def _keep(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """Return a matrix that depends on the functions only, made once while they are constant.

        Making it takes many small operations, each of which a device has to be told to start.

        Args:
            key: A name, and all else on which the matrix depends.
            make: Makes the matrix.
        """
        if not branches_allowed() or traced() or any(True for _ in self.parameters()):
            return make()
        buffers = list(self.buffers())
        plain = all(type(x) is Tensor and not x.requires_grad for x in buffers)
        # torch counts changes in place by the version of a tensor, which inference tensors lack.
        if not buffers or not plain or any(x.is_inference() for x in buffers):
            return make()
        versions = [x._version for x in buffers]
        cache = self._kept = {} if self._kept is None else self._kept
        if key in cache:
            old, old_versions, matrix = cache[key]
            if versions == old_versions and all(x is y for x, y in zip(buffers, old, strict=True)):
                return matrix
        with outside_modes():
            matrix = make()
        if matrix.numel() <= _LARGEST_KEPT:
            while len(cache) >= _MOST_KEPT:
                del cache[next(iter(cache))]  # the oldest
            cache[key] = buffers, versions, matrix
        return matrix

    def __add__(self, other: "Basis") -> "Stack":
        return Stack(self, other)

    def extra_repr(self) -> str:
        return f"n={len(self)}"

    def _store(self, **tensors: Tensor | None) -> None:
        """Set attributes: a parameter as a parameter, any other tensor or None as a buffer."""
        for name, value in tensors.items():
            if isinstance(value, nn.Parameter):
                self.register_parameter(name, value)
            else:
                self.register_buffer(name, value)

    def _check(self, t: Tensor) -> None:
        """Raise ValueError unless locations are a tensor whose shape ends in the event shape."""
        require_tensor("locations", t)
        if t.shape[t.dim() - len(self.event_shape) :] != self.event_shape:
            raise ValueError(
                f"locations must end in event shape {tuple(self.event_shape)}, "
                f"got shape {tuple(t.shape)}"
            )


def breaks_along(basis: Basis, axis: int) -> list[Tensor]:
    """Return the coordinates on an axis at which functions are not smooth, in float64."""
    if isinstance(basis, Stack):
        return [x for member in basis.bases for x in breaks_along(member, axis)]
    if isinstance(basis, Product):
        return breaks_along(basis.bases[axis], 0)
    return [] if basis.breaks is None else [basis.breaks.double()]


class _Compound(Basis):
    """A basis made of other bases, its members."""

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
        """The members, in order."""
        return [cast(Basis, member) for member in self.members]


class Stack(_Compound):
    """The functions of several bases, one basis after the other; nested stacks are flattened.

    Args:
        bases: The bases to stack, all of one event shape.

    Raises:
        ValueError: No basis, an argument that is not a basis, or event shapes that differ.

    Examples:
        >>> from sparsefam.bases import Fourier, Polynomial
        >>> len(Polynomial(1) + Fourier([1.0, 2.0]))
        6
    """

    def __init__(self, *bases: Basis) -> None:
        nested = [basis.bases if isinstance(basis, Stack) else [basis] for basis in bases]
        super().__init__(*chain.from_iterable(nested))
        self.event_shape = self.bases[0].event_shape

    def __len__(self) -> int:
        return sum(len(basis) for basis in self.bases)

    @property
    def domain(self) -> tuple[Interval, ...]:
        """The smallest range on each axis that contains the range of each basis that has one."""
        return tuple(map(_hull, zip(*(basis.domain for basis in self.bases), strict=True)))

    @property
    def effective_support(self) -> tuple[Tensor, Tensor] | None:
        supports = [basis.effective_support for basis in self.bases]
        bounded = [support for support in supports if support is not None]
        if len(bounded) < len(supports):
            return None
        lower, upper = zip(*bounded, strict=True)
        return torch.cat(lower), torch.cat(upper)

    @property
    def breaks(self) -> Tensor | None:
        breaks = [basis.breaks for basis in self.bases if basis.breaks is not None]
        return torch.cat(breaks).sort().values if breaks else None

    def forward(self, t: Tensor) -> Tensor:
        return torch.cat([basis(t) for basis in self.bases], -1)


def _hull(sides: Sequence[Interval]) -> Interval:
    """Return the smallest interval that contains all bounded ones; the line if there is none."""
    lows, highs = zip(*([x for x in sides if math.isfinite(x[1] - x[0])] or sides), strict=True)
    return min(lows), max(highs)


class Fourier(Basis):
    r"""Cosines, then sines.

    $$\cos(\omega_1^\top t), \dots, \cos(\omega_K^\top t),
        \sin(\omega_1^\top t), \dots, \sin(\omega_K^\top t)$$

    Args:
        frequencies: Angular frequencies $\omega_k$, shape (K,), or (K, D) for locations of D
            coordinates. A parameter stays a parameter.

    Raises:
        ValueError: A frequency that is not finite, or another shape.

    Examples:
        >>> len(Fourier([1.0, 2.0, 3.0]))
        6
        >>> Fourier([[0.0, 1.0]])(torch.tensor([5.0, 0.0]))
        tensor([1., 0.])
    """

    frequencies: Tensor

    def __init__(self, frequencies: Values) -> None:
        super().__init__()
        (frequencies,) = _tensors(frequencies=frequencies)
        _require_rows("frequencies", frequencies)
        self._store(frequencies=frequencies)
        self.event_shape = frequencies.shape[1:]

    def __len__(self) -> int:
        return 2 * len(self.frequencies)

    def forward(self, t: Tensor) -> Tensor:
        self._check(t)
        if self.event_shape:
            angles = (t.unsqueeze(-2) * self.frequencies).sum(-1)
        else:
            angles = t.unsqueeze(-1) * self.frequencies
        return torch.cat([angles.cos(), angles.sin()], -1)


class Polynomial(Basis):
    r"""The powers $1, t, \dots, t^d$, or all monomials of D coordinates up to a total degree.

    Monomials are ordered by total degree and then as in scikit-learn's `PolynomialFeatures`:
    $1, x, y, x^2, xy, y^2, \dots$

    Args:
        degree: Highest power or total degree $d \ge 0$.
        ndim: Number of coordinates D of a location; None for numbers.

    Attributes:
        exponents: The powers, (N,), or (N, D) if locations are vectors.
        lowered: Row of each monomial divided by each coordinate, (N, D); 0 where that is no
            monomial. Derivatives of monomials follow from it.

    Raises:
        ValueError: A degree that is no integer from 0 to 170, `ndim` none from 1 to 1000, or more
            than a million monomials.

    Examples:
        >>> Polynomial(3)(torch.tensor(2.0))
        tensor([1., 2., 4., 8.])
        >>> Polynomial(2, ndim=2)(torch.tensor([2.0, 3.0]))
        tensor([1., 2., 3., 4., 6., 9.])
    """

    exponents: Tensor
    lowered: Tensor

    def __init__(self, degree: int, ndim: int | None = None) -> None:
        super().__init__()
        require_integer("degree", degree, 0, LARGEST_POWER)
        if ndim is not None:
            require_integer("ndim", ndim, 1, _MOST_AXES)
        if (count := math.comb(degree + (ndim or 1), degree)) > _MOST_MONOMIALS:
            rule = f"have at most {_MOST_MONOMIALS} monomials"
            raise ValueError(f"degree and ndim must {rule}, got {degree} and {ndim}: {count}")
        self.degree = degree
        self.ndim = ndim
        self.event_shape = Size([ndim] if ndim else [])
        # A monomial of degree k is a multiset of k axes.
        exponents = [
            tuple(axes.count(axis) for axis in range(ndim or 1))
            for total in range(degree + 1)
            for axes in combinations_with_replacement(range(ndim or 1), total)
        ]
        rows = {powers: row for row, powers in enumerate(exponents)}
        # Monomial k with its power on an axis less by one.
        lowered = [
            [rows.get((*k[:axis], k[axis] - 1, *k[axis + 1 :]), 0) for axis in range(len(k))]
            for k in exponents
        ]
        powers = torch.tensor(exponents)
        self.register_buffer("exponents", powers if ndim else powers[:, 0], persistent=False)
        self.register_buffer("lowered", torch.tensor(lowered), persistent=False)

    def __len__(self) -> int:
        return len(self.exponents)

    def forward(self, t: Tensor) -> Tensor:
        self._check(t)
        powers = t.unsqueeze(-1) ** torch.arange(self.degree + 1, device=t.device)
        if not self.event_shape:
            return powers
        # Powers of each coordinate are taken once, and picked for each monomial.
        columns = zip(powers.unbind(-2), self.exponents.unbind(-1), strict=True)
        return reduce(torch.mul, [power[..., k] for power, k in columns])


_SQRT_TWO_PI = math.sqrt(2 * math.pi)
# With at least so many functions and locations, Gaussians are evaluated only where they are not
# negligible, provided that this is at most one in so many of all pairs.
_MANY, _SPARSE = 128, 4


class GaussianRBF(Basis):
    r"""Gaussian radial basis functions, each a normalized density.

    $$\psi_j(t) = \mathcal N(t; \mu_j, s_j^2 I) \quad\text{or}\quad
        \psi_j(t) = \mathcal N(t; \mu_j, \Sigma_j)$$

    Args:
        centers: Centers $\mu_j$, shape (N,), or (N, D) for locations of D coordinates.
        widths: Standard deviations $s_j > 0$: one for all, or shape (N,).
        covariance: For centers (N, D), instead of widths: the covariance matrices $\Sigma_j$, one
            for all, (D, D), or shape (N, D, D).

    An `nn.Parameter` stays a parameter and is learned; anything else becomes a buffer. Only the
    initial values are checked, and a buffer must not be changed in place, which compiled graphs
    would not see: keep learned widths positive, and learned covariances positive
    definite, by `torch.nn.utils.parametrize`. An indefinite covariance gives NaN.

    Attributes:
        centers: The centers.
        widths: The widths, or None.
        covariance: The covariance matrices, or None.

    Raises:
        ValueError: A center that is not finite, a width that is not finite and positive, a
            covariance matrix that is not symmetric and positive definite, a wrong shape, or both
            or neither of widths and covariance.

    References:
        Martins et al. (2020), Sparse and Continuous Attention, section 3. arXiv:2006.07214

    Examples:
        >>> GaussianRBF([0.0, 1.0], 0.5)(torch.tensor(0.0))
        tensor([0.7979, 0.1080])
        >>> GaussianRBF([[0.0, 0.0], [1.0, 1.0]], 0.5)(torch.zeros(2))
        tensor([0.6366, 0.0117])
    """

    centers: Tensor
    widths: Tensor | None
    covariance: Tensor | None
    # The centers and widths that were read last, and their `extent`; None if they are learned.
    _last_read: tuple[Tensor, Tensor | None, tuple[float, ...]] | None = None

    def __init__(
        self, centers: Values, widths: Values | None = None, covariance: Values | None = None
    ) -> None:
        super().__init__()
        if (widths is None) == (covariance is None):
            number = "neither" if widths is None else "both"
            raise ValueError(f"give either widths or covariance, got {number}")
        if widths is not None:
            centers, widths = _tensors(centers=centers, widths=widths)
            _require_rows("centers", centers)
            require(widths.isfinite() & (widths > 0), "widths", "finite and positive", widths)
            if widths.shape not in (Size(), centers.shape[:1]):
                shape = tuple(widths.shape)
                rule = f"one number or ({len(centers)},)"
                raise ValueError(f"widths must be {rule}, got shape {shape}")
            self._store(centers=centers, widths=widths, covariance=None)
        elif covariance is not None:
            centers, covariance = _tensors(centers=centers, covariance=covariance)
            _require_rows("centers", centers)
            require_covariance(covariance, centers)
            self._store(centers=centers, widths=None, covariance=covariance)
        self.event_shape = self.centers.shape[1:]
        self._keep_extent()

    def extent(self) -> tuple[float, ...] | None:
        """Return the first and last center and the least and largest width, None if unknown.

        On a device and in compiled graphs, which do not wait for values, these are the values
        when the basis was made, moved or loaded, unknown for learned functions.
        """
        if self.widths is None or self.event_shape:
            return None
        if values_are_readable(self.centers, self.widths):
            return self._read_extent()
        if self._last_read is None:
            return None
        centers, widths, extent = self._last_read
        return extent if centers is self.centers and widths is self.widths else None

    def _read_extent(self) -> tuple[float, ...]:
        """Read the first and last center, least and largest width, which waits for a device."""
        ends = (*self.centers.detach().aminmax(), *cast(Tensor, self.widths).detach().aminmax())
        return tuple([x.item() for x in ends])

    def _keep_extent(self) -> None:
        """Read the extent and keep it in `_last_read`, for `extent` where values are not read.

        None is kept for learned functions, whose extent changes. Functions of vectors, and those
        without widths or without values, have no extent.
        """
        if self.widths is None or self.event_shape or self.centers.is_meta:
            return
        learned = self.centers.requires_grad or self.widths.requires_grad
        self._last_read = None if learned else (self.centers, self.widths, self._read_extent())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Tensors are replaced, on a move to a device, too: the extent that was read is kept.
        extent = self.extent() if self._last_read is not None else None
        super()._apply(fn, recurse)
        self._last_read = None if extent is None else (self.centers, self.widths, extent)
        return self

    def _load_from_state_dict(self, *args: object) -> None:
        super()._load_from_state_dict(*args)
        self._keep_extent()

    @classmethod
    def grid(
        cls, n: int, widths: Values, ndim: int = 1, low: float = 0.0, high: float = 1.0
    ) -> "GaussianRBF":
        """Spread centers evenly from low to high, the same ones for every width.

        Args:
            n: Number of functions in all: the number of centers on each axis, to the power
                `ndim`, times the number of widths.
            widths: One width, or several: the first n / len(widths) functions have the first.
            ndim: Number of coordinates of a location; 1 for numbers.
            low: First center on every axis.
            high: Last center on every axis. A single center is put in the middle.

        Returns:
            The basis; the last coordinate of the centers changes fastest.

        Raises:
            ValueError: No whole number of centers per axis gives n, `ndim` is below 1, or `low` is
                not below `high`.
        """
        require_integer("ndim", ndim, 1)
        require_integer("n", n, 1)
        _tensors(low=low, high=high)  # refuses all but numbers
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"low must be below high, both finite, got low={low}, high={high}")
        widths = _tensors(widths=widths)[0].reshape(-1)
        count = round((n / max(len(widths), 1)) ** (1 / ndim))
        if not count or count**ndim * len(widths) != n:
            raise ValueError(
                f"n must be a positive integer to the power ndim={ndim} times "
                f"len(widths)={len(widths)}, got {n}"
            )
        # linspace would put a single center at the low end.
        first = low if count > 1 else (low + high) / 2
        axis = torch.linspace(first, high, count, dtype=widths.dtype, device=widths.device)
        centers = torch.cartesian_prod(*[axis] * ndim)
        # Centers are (count,), or (count^ndim, ndim) in several dimensions.
        repeats = (len(widths), *(1,) * (ndim > 1))
        return cls(centers.repeat(repeats), widths.repeat_interleave(len(centers)))

    def __len__(self) -> int:
        return len(self.centers)

    @property
    def domain(self) -> tuple[Interval, ...]:
        """The range of the centers; on an axis where all are equal, one width on either side."""
        centers = self.centers.detach().reshape(len(self), -1)
        low, high = centers.aminmax(dim=0)
        if self.widths is None:
            widths = cast(Tensor, self.covariance).detach().diagonal(dim1=-2, dim2=-1).sqrt()
        else:
            widths = self.widths.detach().unsqueeze(-1)
        # Between centers functions overlap; a single center has no range but its width.
        margin = torch.where(low < high, 0, widths.reshape(-1, widths.shape[-1]).amax(0))
        return tuple(zip((low - margin).tolist(), (high + margin).tolist(), strict=True))

    def roughness(self, box: Box) -> Tensor:
        centers = self.centers.double().reshape(len(self), -1)
        if self.widths is None:
            covariance = cast(Tensor, self.covariance).double()
            covariance = covariance.reshape(-1, *covariance.shape[-2:])
        else:
            covariance = self.widths.double().square().reshape(-1, 1)
        return gaussian_energy(centers, covariance, centers.new_tensor(energy_scale(box)))

    @property
    def effective_support(self) -> tuple[Tensor, Tensor] | None:
        if self.event_shape or self.widths is None:
            return None
        distance = negligible_distance(self.centers) * self.widths
        return self.centers - distance, self.centers + distance

    def forward(self, t: Tensor) -> Tensor:
        self._check(t)
        values = self._near(t) if min(len(self), t.numel()) >= _MANY else None
        return self.own(t.unsqueeze(t.dim() - len(self.event_shape))) if values is None else values

    def _near(self, t: Tensor) -> Tensor | None:
        """Return values (..., N) computed where they are not negligible, with 0 for the others.

        None if too many pairs matter, or unless all tensors are float64 and on a CPU, where their
        values can be read.
        """
        ends, tensors = self.effective_support, (t, self.centers, cast(Tensor, self.widths))
        if ends is None or any(x.dtype != torch.float64 for x in tensors):
            return None
        if not values_are_readable(*tensors):
            return None
        flat, size = t.flatten(), t.numel()
        increasing, order = flat.detach().sort()
        first, last = (torch.searchsorted(increasing, x.detach()) for x in ends)
        # The largest number of locations in the effective support of one function.
        most = int((last - first).amax())
        # NaN is sorted behind all numbers, and a sum is finite only if all of its terms are.
        finite = torch.stack([increasing[-1], ends[0].sum(), ends[1].sum()]).isfinite().all()
        # Each function has `most` pairs instead of `size`.
        if not 0 < most * _SPARSE <= size or not finite:
            return None
        # A rectangle of pairs (N, most): each function has the same number of neighboring
        # locations, which begin with the first in its effective support, or earlier near the end.
        index = order[first.clamp_max(size - most).unsqueeze(-1) + torch.arange(most)]
        values = self.own(flat[index].T).T
        values = values.new_zeros(len(self), size).scatter(1, index, values)
        return values.T.reshape(*t.shape, len(self))

    def own(self, t: Tensor) -> Tensor:
        self._check(t)
        if self.widths is None:
            return normal_density(t, self.centers, cast(Tensor, self.covariance))
        if not self.event_shape:
            # One expression, which frees each large temporary at once.
            peak = self.widths * _SQRT_TWO_PI
            return torch.exp(-0.5 * ((t - self.centers) / self.widths).square()) / peak
        # N(t; mu, s^2 I) = (e^(-z/2) / (s sqrt(2 pi)))^D, with z the mean of the D squares. The
        # power comes last, since a power of the width alone may leave float32's range.
        z = ((t - self.centers) / self.widths.unsqueeze(-1)).square().mean(-1)
        return (torch.exp(-0.5 * z) / (self.widths * _SQRT_TWO_PI)) ** self.centers.shape[-1]


class BSpline(Basis):
    """B-splines on a full knot vector, as in `scipy.interpolate.BSpline`.

    Each function is zero outside its knots. At a knot the value is the limit from the right; at
    the last knot, from the left, so that a clamped basis sums to one on the closed interval.

    Args:
        knots: Nondecreasing knots, shape (N + degree + 1,). A parameter stays a parameter.
        degree: Degree of the polynomials between knots.

    Raises:
        ValueError: A negative degree, or knots that are not finite, decrease, are too few or all
            equal.

    References:
        de Boor (1972), On calculating with B-splines. J. Approximation Theory 6.

    Examples:
        >>> BSpline([0.0, 0.0, 0.5, 1.0, 1.0], 1)(torch.tensor(0.25))
        tensor([0.5000, 0.5000, 0.0000])
    """

    knots: Tensor

    def __init__(self, knots: Values, degree: int) -> None:
        super().__init__()
        require_integer("degree", degree, 0)
        (knots,) = _tensors(knots=knots)
        _require_rows("knots", knots, 1)
        if len(knots) < degree + 2:
            raise ValueError(f"knots must be at least degree + 2 = {degree + 2}, got {len(knots)}")
        valid = (knots.diff() >= 0).all() & (knots[0] < knots[-1])
        require(valid, "knots", "nondecreasing and not all equal", knots)
        self.degree = degree
        self._store(knots=knots)

    def __len__(self) -> int:
        return len(self.knots) - self.degree - 1

    @property
    def domain(self) -> tuple[Interval, ...]:
        """The interval on which the functions sum to one, if any; else from first to last knot."""
        knots = self.knots.tolist()
        low, high = knots[self.degree], knots[len(self)]
        return ((low, high) if low < high else (knots[0], knots[-1]),)

    @property
    def effective_support(self) -> tuple[Tensor, Tensor]:
        return self.knots[: len(self)], self.knots[self.degree + 1 :]

    @property
    def breaks(self) -> Tensor:
        return self.knots

    def forward(self, t: Tensor) -> Tensor:
        index, values = self.nonzero(t)
        return values.new_zeros(*t.shape, len(self)).scatter_add(-1, index, values)

    def roughness(self, box: Box) -> Tensor:
        knots, scale = self.knots.double(), energy_scale(box)
        if self.degree:
            return quadrature_energy(self.in_float64, [knots], scale, self.degree + 1)
        # Steps have no slope: take the straight lines through their values c_j at the middles m_j.
        # The energy s sum_j (c_{j+1} - c_j)^2 / (m_{j+1} - m_j) has a tridiagonal matrix.
        middles = (knots[1:] + knots[:-1]) / 2
        steep = scale[0] / middles.diff()
        matrix = (pad(steep, (1, 0)) + pad(steep, (0, 1))).diag()
        return matrix - steep.diag(1) - steep.diag(-1)

    def own(self, t: Tensor) -> Tensor:
        # Of the functions that are not zero at a location, the one whose location it is.
        index, values = self.nonzero(t)
        function = torch.arange(len(self), device=t.device).unsqueeze(-1)
        return torch.where(index == function, values, 0).sum(-1)

    def nonzero(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluate only the functions that may not be zero at each location.

        Args:
            t: Locations, shape (...).

        Returns:
            Indices of functions and their values, each (..., degree + 1). Where fewer functions
            are not zero, some values are 0, and an index may occur twice.
        """
        self._check(t)
        return nonzero_splines(self.knots, self.degree, t)


class Indicator(BSpline):
    """Indicators of adjacent intervals: one between an edge and the next, zero elsewhere.

    Args:
        edges: Strictly increasing edges, shape (N + 1,). A parameter stays a parameter.

    Raises:
        ValueError: Edges that are not finite, do not increase, or are fewer than two.

    Examples:
        >>> Indicator([0.0, 1.0, 3.0])(torch.tensor(1.0))
        tensor([0., 1.])
    """

    def __init__(self, edges: Values) -> None:
        (edges,) = _tensors(edges=edges)
        rule = "two or more, strictly increasing"
        if edges.dim() != 1 or len(edges) < 2:
            raise ValueError(f"edges must be {rule}, got {edges}")
        _require_rows("edges", edges, 1)
        require(edges.diff() > 0, "edges", rule, edges)
        super().__init__(edges, 0)


class Product(_Compound):
    r"""All products of functions of one coordinate each.

    $$\psi_{ij}(t) = \phi_i(t_1)\,\chi_j(t_2)$$

    and likewise for more coordinates; the function of the last coordinate changes fastest.

    Args:
        bases: A basis of numbers for each of the D coordinates.

    Raises:
        ValueError: No basis, or an argument that is not a basis of numbers.

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
        self.event_shape = Size([len(bases)])

    @property
    def domain(self) -> tuple[Interval, ...]:
        return tuple(chain.from_iterable(basis.domain for basis in self.bases))

    def __len__(self) -> int:
        return math.prod(len(basis) for basis in self.bases)

    def forward(self, t: Tensor) -> Tensor:
        self._check(t)
        # A Kronecker product, one axis at a time.
        values, *factors = (basis(x) for basis, x in zip(self.bases, t.unbind(-1), strict=True))
        for factor in factors:
            values = (values.unsqueeze(-1) * factor.unsqueeze(-2)).flatten(-2)
        return cast(Tensor, values)
