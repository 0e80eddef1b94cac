"""Bases: the fixed or learned functions that value functions are combinations of."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import reduce
from itertools import chain, combinations_with_replacement
from typing import cast

import torch
from torch import Size, Tensor, nn

from .numerics.gaussian_interval import unseen
from .numerics.validation import cholesky_factor, require, require_integer

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


def common_dtype(*values: Values | None) -> torch.dtype:
    """The widest floating dtype among the tensors; torch's default if there is none."""
    dtypes = [v.dtype for v in values if isinstance(v, Tensor) and v.is_floating_point()]
    return reduce(torch.promote_types, dtypes) if dtypes else torch.get_default_dtype()


def floating(name: str, values: Values, dtype: torch.dtype) -> Tensor:
    """Return values as a tensor of the dtype; a parameter as it is.

    Raises:
        ValueError: Not numbers, or ragged lists.
    """
    if isinstance(values, nn.Parameter):
        return values
    try:
        return torch.as_tensor(values, dtype=dtype)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{name} must be numbers of one shape, got {values!r}") from None


def store(module: nn.Module, name: str, value: Tensor | None) -> None:
    """Register a parameter as a parameter; any other tensor, or None, as a buffer."""
    if isinstance(value, nn.Parameter):
        module.register_parameter(name, value)
    else:
        module.register_buffer(name, value)


def check_rows(name: str, values: Tensor, most: int = 2) -> None:
    """Raise ValueError unless a tensor is finite, (N,) or (N, D); `most` is its number of axes."""
    require(values.isfinite(), name, "finite", values)
    if not 1 <= values.ndim <= most or values.numel() == 0:
        shapes = "(N,)" if most == 1 else "(N,) or (N, D)"
        shape = tuple(values.shape)
        raise ValueError(f"{name} must have shape {shapes}, not empty, got shape {shape}")


def check_locations(t: Tensor, event_shape: Size) -> None:
    """Raise ValueError unless locations are a tensor that ends in the event shape."""
    if not isinstance(t, Tensor):
        raise ValueError(f"locations must be a tensor, got {t!r}")
    if t.shape[t.ndim - len(event_shape) :] != event_shape:
        raise ValueError(
            f"locations must end in event shape {tuple(event_shape)}, got shape {tuple(t.shape)}"
        )


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


class Fourier(Basis):
    r"""Cosines, then sines.

    $$\cos(\omega_1^\top t), \dots, \cos(\omega_K^\top t),
        \sin(\omega_1^\top t), \dots, \sin(\omega_K^\top t)$$

    Args:
        frequencies: Angular frequencies $\omega_k$, shape (K,), or (K, D) for locations of D
            coordinates; a parameter stays one.

    Raises:
        ValueError: If a frequency is not finite, or the shape is wrong.

    Examples:
        >>> len(Fourier([1.0, 2.0, 3.0]))
        6
        >>> Fourier([[0.0, 1.0]])(torch.tensor([5.0, 0.0]))
        tensor([1., 0.])
    """

    frequencies: Tensor

    def __init__(self, frequencies: Values) -> None:
        super().__init__()
        frequencies = floating("frequencies", frequencies, common_dtype(frequencies))
        check_rows("frequencies", frequencies)
        store(self, "frequencies", frequencies)

    def __len__(self) -> int:
        return 2 * len(self.frequencies)

    @property
    def event_shape(self) -> Size:
        return self.frequencies.shape[1:]

    def forward(self, t: Tensor) -> Tensor:
        check_locations(t, self.event_shape)
        if self.event_shape:
            angles = (t.unsqueeze(-2) * self.frequencies).sum(-1)
        else:
            angles = t.unsqueeze(-1) * self.frequencies
        return torch.cat([angles.cos(), angles.sin()], -1)


class Polynomial(Basis):
    r"""The powers $1, t, \dots, t^d$, or all monomials of D coordinates up to a total degree.

    Monomials come by total degree and then as in scikit-learn's `PolynomialFeatures`:
    $1, x, y, x^2, xy, y^2, \dots$

    Args:
        degree: Highest power or total degree $d \ge 0$.
        ndim: Number of coordinates D of a location; None for numbers.

    Attributes:
        exponents: The powers, (N,), or (N, D) where there are coordinates.
        lowered: Where the coordinates' monomials have their derivatives, (N, D): the row of the
            monomial with one power of that coordinate less, or 0 if it has none.

    Raises:
        ValueError: If the degree is negative or ndim not positive.

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
        require_integer("degree", degree, 0)
        if ndim is not None:
            require_integer("ndim", ndim, 1)
        self.degree = degree
        self.ndim = ndim
        exponents = _exponents(degree, ndim or 1)
        powers = torch.tensor(exponents)
        self.register_buffer("exponents", powers if ndim else powers[:, 0], persistent=False)
        self.register_buffer("lowered", torch.tensor(_lowered(exponents)), persistent=False)

    def __len__(self) -> int:
        return len(self.exponents)

    @property
    def event_shape(self) -> Size:
        return Size([self.ndim]) if self.ndim else Size()

    def forward(self, t: Tensor) -> Tensor:
        check_locations(t, self.event_shape)
        powers = t.unsqueeze(-1) ** torch.arange(self.degree + 1, device=t.device)
        if not self.event_shape:
            return powers
        columns = zip(powers.unbind(-2), self.exponents.unbind(-1), strict=True)
        return reduce(torch.mul, [power[..., k] for power, k in columns])


def _exponents(degree: int, ndim: int) -> list[list[int]]:
    """The exponents of every monomial, by total degree."""
    return [
        [axes.count(axis) for axis in range(ndim)]
        for total in range(degree + 1)
        for axes in combinations_with_replacement(range(ndim), total)
    ]


def _lowered(exponents: list[list[int]]) -> list[list[int]]:
    """Row of each monomial with one power of an axis less; 0 where there is none."""
    rows = {tuple(powers): row for row, powers in enumerate(exponents)}
    return [
        [rows.get((*k[:axis], k[axis] - 1, *k[axis + 1 :]), 0) for axis in range(len(k))]
        for k in exponents
    ]


_SQRT_TWO_PI = math.sqrt(2 * math.pi)
# Where an infinite location is put by the functions of full covariance: products of two stay finite
# in float64.
_FAR = 1e100


class GaussianRBF(Basis):
    r"""Gaussian radial basis functions, each a normalised density.

    $$\psi_j(t) = \mathcal N(t; \mu_j, s_j^2 I) \quad\text{or}\quad
        \psi_j(t) = \mathcal N(t; \mu_j, \Sigma_j)$$

    Args:
        centers: Centers $\mu_j$, shape (N,), or (N, D) for locations of D coordinates.
        widths: Standard deviations $s_j > 0$: one for all, or shape (N,).
        covariance: For centers (N, D) instead of widths, the covariance matrices $\Sigma_j$: one
            for all, (D, D), or shape (N, D, D).

    An `nn.Parameter` stays a parameter and is learned; anything else becomes a buffer. Only the
    initial values are checked: keep learned widths positive, and learned covariances positive
    definite, with `torch.nn.utils.parametrize`. A covariance that ceases to be gives NaN.

    Attributes:
        centers: The centers.
        widths: The widths, or None.
        covariance: The covariance matrices, or None.

    Raises:
        ValueError: If a center is not finite, a width not finite and positive, a covariance matrix
            not symmetric and positive definite, a shape wrong, or if there are both widths and a
            covariance, or neither.

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

    def __init__(
        self, centers: Values, widths: Values | None = None, covariance: Values | None = None
    ) -> None:
        super().__init__()
        if (widths is None) == (covariance is None):
            given = "neither" if widths is None else "both"
            raise ValueError(f"give either widths or covariance, got {given}")
        dtype = common_dtype(centers, widths, covariance)
        centers = floating("centers", centers, dtype)
        check_rows("centers", centers)
        store(self, "centers", centers)
        for name, values, check in (
            ("widths", widths, _check_widths),
            ("covariance", covariance, _check_covariance),
        ):
            value = None if values is None else check(floating(name, values, dtype), centers)
            store(self, name, value)

    @classmethod
    def grid(
        cls,
        n: int,
        widths: Values,
        ndim: int = 1,
        low: float = 0.0,
        high: float = 1.0,
    ) -> "GaussianRBF":
        """Spreads n functions evenly: every width gets the same centers, from low to high.

        Args:
            n: Number of functions in all: a number of centers for each axis, to the power `ndim`,
                times the number of widths.
            widths: One width, or several: the first n / len(widths) functions have the first.
            ndim: Number of coordinates of a location; 1 for numbers.
            low: First center, on every axis.
            high: Last center. A single center per width and axis is put in the middle.

        Returns:
            The basis; the last coordinate of the centers changes fastest.

        Raises:
            ValueError: If no whole number of centers per axis gives n, ndim is not positive, or low
                is not below high.
        """
        require_integer("ndim", ndim, 1)
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"low must be below high, both finite, got low={low}, high={high}")
        each = floating("widths", widths, common_dtype(widths)).reshape(-1)
        count = round((n / max(len(each), 1)) ** (1 / ndim)) if n > 0 else 0
        if not count or count**ndim * len(each) != n:
            raise ValueError(
                f"n must be a positive integer to the power ndim={ndim} times "
                f"len(widths)={len(each)}, got {n}"
            )
        first = low if count > 1 else (low + high) / 2
        axis = torch.linspace(first, high, count, dtype=each.dtype, device=each.device)
        centers = torch.cartesian_prod(*[axis] * ndim)
        repeats = (len(each), *(1,) * (ndim > 1))
        return cls(centers.repeat(repeats), each.repeat_interleave(len(centers)))

    def __len__(self) -> int:
        return len(self.centers)

    @property
    def event_shape(self) -> Size:
        return self.centers.shape[1:]

    @property
    def reach(self) -> tuple[Tensor, Tensor] | None:
        if self.event_shape or self.widths is None:
            return None
        far = unseen(self.centers) * self.widths
        return self.centers - far, self.centers + far

    def forward(self, t: Tensor) -> Tensor:
        check_locations(t, self.event_shape)
        return self.own(t.unsqueeze(t.ndim - len(self.event_shape)))

    def own(self, t: Tensor) -> Tensor:
        check_locations(t, self.event_shape)
        if self.widths is None:
            return _full(t, self.centers, cast(Tensor, self.covariance))
        return _isotropic(t, self.centers, self.widths)


def _isotropic(t: Tensor, centers: Tensor, widths: Tensor) -> Tensor:
    """Densities with one width on every axis."""
    if centers.ndim == 1:
        return torch.exp(-0.5 * ((t - centers) / widths).square()) / (widths * _SQRT_TWO_PI)
    square = ((t - centers) / widths.unsqueeze(-1)).square().mean(-1)
    # The power last: that of a width alone may leave float32's range in many dimensions.
    return (torch.exp(-0.5 * square) / (widths * _SQRT_TWO_PI)) ** centers.shape[-1]


def _full(t: Tensor, centers: Tensor, covariance: Tensor) -> Tensor:
    """Densities with a covariance matrix, in float64 inside.

    A factor of condition number 1e3 amplifies the rounding of `t - centers` as much.
    """
    dtype = torch.promote_types(t.dtype, centers.dtype)
    factor, failed = torch.linalg.cholesky_ex(covariance.double())
    factor = factor.masked_fill((failed > 0)[..., None, None], math.nan)
    offset = (t.double() - centers.double()).clamp(-_FAR, _FAR)
    # All locations are right-hand sides of one system per function.
    columns = offset.reshape(-1, *centers.shape).movedim(0, -1)
    z = torch.linalg.solve_triangular(factor, columns, upper=False)
    log_peak = -(factor.diagonal(dim1=-2, dim2=-1) * _SQRT_TWO_PI).log().sum(-1)
    values = torch.exp(log_peak.unsqueeze(-1) - 0.5 * z.square().sum(-2))
    return values.mT.reshape(offset.shape[:-1]).to(dtype)


def _check_widths(widths: Tensor, centers: Tensor) -> Tensor:
    require(widths.isfinite() & (widths > 0), "widths", "finite and positive", widths)
    if widths.shape not in (torch.Size(), centers.shape[:1]):
        shape = tuple(widths.shape)
        raise ValueError(f"widths must be one number or ({len(centers)},), got shape {shape}")
    return widths


def _check_covariance(covariance: Tensor, centers: Tensor) -> Tensor:
    if centers.ndim != 2:
        shape = tuple(centers.shape)
        raise ValueError(f"centers must have shape (N, D) with a covariance, got shape {shape}")
    n, d = centers.shape
    if covariance.shape not in ((d, d), (n, d, d)):
        shape = tuple(covariance.shape)
        raise ValueError(f"covariance must have shape {(d, d)} or {(n, d, d)}, got shape {shape}")
    cholesky_factor("covariance", covariance.detach())
    return covariance


class BSpline(Basis):
    """B-splines on a full knot vector, as `scipy.interpolate.BSpline` takes it.

    Each function is zero outside its knots. At a knot the value is the limit from the right; at
    the last knot, from the left, so that a clamped basis sums to one on the closed interval.

    Args:
        knots: Nondecreasing knots, shape (N + degree + 1,); a parameter stays one.
        degree: Degree of the pieces.

    Raises:
        ValueError: If the degree is negative or the knots are not finite, decrease, are too few or
            are all equal.

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
        knots = floating("knots", knots, common_dtype(knots))
        check_rows("knots", knots, 1)
        if len(knots) < degree + 2:
            raise ValueError(f"knots must be at least degree + 2 = {degree + 2}, got {len(knots)}")
        sorted_ = (knots.diff() >= 0).all() & (knots[0] < knots[-1])
        require(sorted_, "knots", "nondecreasing and not all equal", knots)
        self.degree = degree
        store(self, "knots", knots)

    def __len__(self) -> int:
        return len(self.knots) - self.degree - 1

    @property
    def reach(self) -> tuple[Tensor, Tensor]:
        return self.knots[: len(self)], self.knots[self.degree + 1 :]

    @property
    def breaks(self) -> Tensor:
        return self.knots

    def forward(self, t: Tensor) -> Tensor:
        check_locations(t, self.event_shape)
        values = self._spans(t)
        # Where all functions vanish the recursion must not meet an infinite location.
        t = t.unsqueeze(-1).clamp(self.knots[0], self.knots[-1])
        for degree in range(1, self.degree + 1):
            start, width = self.knots[:-degree], self.knots[degree:] - self.knots[:-degree]
            rise = torch.where(width > 0, (t - start) / torch.where(width > 0, width, 1), 0)
            values = rise[..., :-1] * values[..., :-1] + (1 - rise[..., 1:]) * values[..., 1:]
        return values

    def _spans(self, t: Tensor) -> Tensor:
        """The functions of degree zero: which span between knots holds t."""
        dtype = torch.promote_types(t.dtype, self.knots.dtype)
        t, left, right = t.unsqueeze(-1), self.knots[:-1], self.knots[1:]
        closed = (right == self.knots[-1]) & (left < right)
        return ((left <= t) & ((t < right) | (closed & (t == right)))).to(dtype)


class Indicator(BSpline):
    """Indicators of adjacent intervals: one between an edge and the next, zero elsewhere.

    Args:
        edges: Strictly increasing edges, shape (N + 1,); a parameter stays one.

    Raises:
        ValueError: If the edges are not finite, do not increase, or are fewer than two.

    Examples:
        >>> Indicator([0.0, 1.0, 3.0])(torch.tensor(1.0))
        tensor([0., 1.])
    """

    def __init__(self, edges: Values) -> None:
        edges = floating("edges", edges, common_dtype(edges))
        rule = "two or more, strictly increasing"
        if edges.ndim != 1 or len(edges) < 2:
            raise ValueError(f"edges must be {rule}, got {edges}")
        check_rows("edges", edges, 1)
        require(edges.diff() > 0, "edges", rule, edges)
        super().__init__(edges, 0)


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
