"""Base classes of densities: the common interface, and densities given in standard form."""

import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, cast

import torch
from pyro.distributions import TorchDistribution
from torch import Size, Tensor, nn
from torch.distributions import Distribution, constraints
from torch.types import _size
from torch.utils.checkpoint import checkpoint
from typing_extensions import Self

from .._choice import Mode, means
from .._numerics.deformed import expm1_ratio
from .._numerics.modes import branches_allowed, values_exist
from .._numerics.validation import (
    LARGEST_ORDER,
    broadcast_shapes,
    in_float64,
    map_tensors,
    require,
    require_integer,
    require_power,
    require_shape,
    require_tensor,
)
from ..bases import Basis
from ..scores import LogDensity, Score
from ._generators import Generator
from ._line.symmetric import expect_on_support, require_resolved

__all__ = [
    "BatchIndexError",
    "SparseDistribution",
    "StandardizedDistribution",
    "select_batch",
    "selection",
]


class BatchIndexError(IndexError, ValueError):
    """An index that does not fit the batch of a density."""


# Not a property, which would not let families set an attribute alpha.
class _Ones:
    """The entropic index of a density without another: 1 (*batch)."""

    def __get__(self, p: "SparseDistribution | None", owner: type) -> Any:
        """Return ones for a density p, and this object for a class."""
        return self if p is None else torch.ones_like(p._like)


class SparseDistribution(TorchDistribution):
    r"""A density that may be exactly zero; a torch and a Pyro distribution at once.

    A subclass names its parameters in `arg_constraints`, stores them as attributes that are
    broadcast to the batch shape, and implements `support`, `log_prob`, `rsample`, `quadrature` and
    its closed forms.

    Off the support `log_prob` is -inf with zero gradient. Validation therefore checks the shape of
    a value and that it is real, but not whether it lies in the support.

    Attributes:
        alpha: Entropic index of the prediction map that this density solves (*batch).
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]]
    has_rsample = True
    # Attributes that `_map` changes besides the parameters: tensors, or None, with the number of
    # their axes after the batch; densities of the same batch. Lazy properties, which copies drop.
    _tensors: ClassVar[dict[str, int]] = {}
    _members: ClassVar[tuple[str, ...]] = ()
    _caches: ClassVar[tuple[str, ...]] = ()
    # The least order at which functions are integrated, if there is one.
    _least_order: ClassVar[int | None] = None
    alpha: Tensor = cast(Tensor, _Ones())

    def __init__(
        self, batch_shape: Size, event_shape: Size = Size(), validate_args: bool | None = None
    ) -> None:
        # Torch's checks of parameters branch on values, which compiled and exported graphs and the
        # meta device do not have.
        if not values_exist(self._like):
            validate_args = False
        torch.distributions.Distribution.__init__(self, batch_shape, event_shape, validate_args)

    @property
    def _ranks(self) -> dict[str, int]:
        """The names of parameters and `_tensors`, with the number of their axes after the batch."""
        parameters = {name: rule.event_dim for name, rule in self.arg_constraints.items()}
        return {**parameters, **self._tensors}

    @property
    def _like(self) -> Tensor:
        """Entries (*batch) of the first tensor, which has the dtype and device of the density."""
        name, rank = next(iter(self._ranks.items()))
        tensor: Tensor = getattr(self, name)
        for _ in range(rank):
            tensor = tensor[..., 0]
        return tensor

    @property
    def score(self) -> Score:
        r"""The score f with `rpm(f, alpha)` equal to this density; here $f(t) = \log p(t)$.

        The softmax of its own logarithm is any density, whose alpha is then 1.
        """
        return LogDensity(self)

    @property
    def log_normalizer(self) -> Tensor:
        r"""$A_\alpha(f)$ in $p = \exp_{2-\alpha}(f - A_\alpha)$ (*batch); 0 of $\log p$.

        References:
            Martins et al. (2020), Sparse and Continuous Attention Mechanisms, Prop. 1.
        """
        return torch.zeros_like(self._like)

    def _draw(self, sample_shape: Size) -> Tensor:
        """Return samples (*sample, *batch, *event), whose gradients are not used."""
        return self.rsample(sample_shape)

    def _expect_basis(self, psi: Basis, order: int) -> Tensor:
        """Return the expectation of a basis (*batch, N) by quadrature."""
        return self._expect_at_nodes(psi, order)

    def sample(self, sample_shape: _size = Size()) -> Tensor:
        """Draw samples (*sample, *batch, *event) without gradients.

        From 8192 draws on, kernel families interpolate a table of quantiles, to 1e-8 of the
        distance between the ends of the support (1e-6 in float32).

        Raises:
            RuntimeError: A kernel density of vectors that is much narrower than its nodes are
                apart.
        """
        sample_shape = require_shape("sample_shape", sample_shape)
        with torch.no_grad():
            samples = self._draw(sample_shape)
        return samples.detach()  # a replayed trace of torch.jit ignores no_grad

    def _extended_shape(self, sample_shape: _size = Size()) -> Size:
        """Return the shape (*sample, *batch, *event), after a check that the first is a shape."""
        return super()._extended_shape(require_shape("sample_shape", sample_shape))

    def prob(self, value: Tensor) -> Tensor:
        """Return the density at `value`; exactly 0 off the support."""
        return torch.exp(self.log_prob(value))

    def tsallis_entropy(self) -> Tensor:
        r"""Return $-\Omega_\alpha(p) = (1 - \int p^\alpha)/(\alpha(\alpha - 1))$ (*batch).

        At alpha = 1 it is Shannon's entropy.

        References:
            Martins et al. (2020), Sparse and Continuous Attention Mechanisms, eq. 6.
        """
        return self.entropy()

    def escort(self, beta: Tensor | float | None = None) -> "SparseDistribution":
        r"""Return the escort $p^\beta / \int p^\beta$; default $\beta = 2 - \alpha$.

        Raises:
            ValueError: A power that is not in the family: where nothing else is said, `beta` other
                than 1.

        References:
            Martins et al. (2020), Sparse and Continuous Attention Mechanisms, eq. 5.
        """
        require_power(beta, self.batch_shape)
        fits = torch.as_tensor(1.0 if beta is None else beta) == 1
        rule = f"1 for a {type(self).__name__}, whose other escorts have no closed form"
        require(fits, "beta", rule, beta)
        return self

    def quadrature(self, order: int = 64) -> tuple[Tensor, Tensor]:
        r"""Return nodes and weights with $\sum_q w_q g(t_q) \to E_p[g]$.

        Nodes (Q, *batch, *event) and weights (Q, *batch) are differentiable in the parameters.

        Args:
            order: The least number of nodes on each smooth piece of the density.
        """
        raise NotImplementedError

    def expect(self, psi: Basis | Callable[[Tensor], Tensor], order: int = 64) -> Tensor:
        r"""Return $E_p[\psi(t)]$, differentiable in the parameters of p and of psi.

        `sparsefam.explain` says by which rule.

        Args:
            psi: A basis, or any callable from locations (Q, *batch, *event) to (Q, *batch, *shape).
            order: Order of the quadrature. Functions much narrower than the support need a higher
                one.

        Returns:
            (*batch, N) for a basis, (*batch, *shape) for a callable.

        Raises:
            ValueError: `psi` no basis of such locations and no callable, waves that vary too fast
                for the order, or an order that is no positive integer up to 10,000.

        References:
            Martins et al. (2020), Sparse and Continuous Attention Mechanisms, eq. 15.
        """
        return means(self, psi, Mode(order=order))

    def _expect_at_nodes(self, psi: Callable[[Tensor], Tensor], order: int) -> Tensor:
        """Return the expectation (*batch, *shape) of a basis or callable by `quadrature(order)`."""
        nodes, weights = self.quadrature(order)
        if isinstance(psi, Basis):
            require_resolved(psi, nodes, order)
        return self._weighted_values(psi, nodes, weights).sum(0)

    @staticmethod
    def _weighted_values(psi: Callable[[Tensor], Tensor], nodes: Tensor, weights: Tensor) -> Tensor:
        """Return values of psi at the nodes times the weights, (Q, *batch, *shape)."""
        values = psi(nodes)
        if not isinstance(values, Tensor):
            raise ValueError(f"psi must map locations to a tensor of values, got {values!r}")
        if values.shape[: weights.dim()] != weights.shape:
            raise ValueError(
                f"psi must map locations {tuple(nodes.shape)} to values that begin with "
                f"{tuple(weights.shape)}, got {tuple(values.shape)}"
            )
        extra = values.dim() - weights.dim()
        return weights.reshape(*weights.shape, *(1,) * extra) * values

    def quadrature_error(self, psi: Basis | Callable[[Tensor], Tensor], order: int = 64) -> Tensor:
        r"""Estimate the error of $\sum_q w_q \psi(t_q)$ with the rule of `quadrature(order)`.

        Up to three dimensions it is the difference to a rule of 1.5 times the order. Beyond, where
        directions are quasi-random, it is the standard error over independent replicates plus the
        difference that two more radii make.

        Args:
            psi: A basis, or any callable from locations (Q, *batch, *event) to (Q, *batch, *shape).
            order: As for `quadrature`.

        Returns:
            Nonnegative, of the shape of `expect(psi)`.
        """
        self._check_function(psi)
        require_integer("order", order, 1, LARGEST_ORDER)
        rough, fine = (
            self._weighted_values(psi, *self.quadrature(n)).sum(0)
            for n in (order, order + order // 2 + 1)
        )
        return (fine - rough).abs()

    def _check_function(self, psi: object) -> None:
        """Raise ValueError unless psi is a callable, or a basis of locations of this density."""
        if isinstance(psi, Basis):
            self._check_basis("psi", psi)
        elif not callable(psi):
            raise ValueError(f"psi must be a basis or a callable, got {psi!r}")

    def _check_basis(self, name: str, basis: Basis) -> None:
        """Raise ValueError, with the name of the argument, unless a basis takes these locations."""
        if not isinstance(basis, Basis):
            raise ValueError(f"{name} must be a basis, got {basis!r}")
        if basis.event_shape != self.event_shape:
            raise ValueError(
                f"{name} must take locations of event shape {tuple(self.event_shape)}, "
                f"got {tuple(basis.event_shape)}"
            )

    def generalized_covariance(
        self, phi: Basis, psi: Basis, beta: Tensor | float | None = None
    ) -> Tensor:
        r"""Return the generalized $\beta$-covariance of two bases, (*batch, M, N).

        $$\|p\|_\beta^\beta\,(\tilde E[\phi\psi'] - \tilde E[\phi]\tilde E[\psi]')$$

        The expectations are under the $\beta$-escort. At the default $\beta = 2 - \alpha$ it is the
        Jacobian of $E_p[\psi]$ with respect to the score's coefficients on phi (Prop. 3).

        Raises:
            ValueError: Functions that vary too fast for quadrature.

        References:
            Martins et al. (2020), Sparse and Continuous Attention Mechanisms, eq. 17.
        """
        self._check_basis("phi", phi)
        self._check_basis("psi", psi)
        return self._beta_covariance(phi, psi, beta)

    def _beta_covariance(self, phi: Basis, psi: Basis, beta: Tensor | float | None) -> Tensor:
        """Return `generalized_covariance` for bases that have been checked, (*batch, M, N)."""
        self.escort(beta)  # raises an error for a beta other than 1
        nodes, weights = self.quadrature()
        # Centered first: E[fg] - E[f]E[g] would cancel.
        f, g = (basis(nodes) for basis in (phi, psi))
        f, g = (x - (weights.unsqueeze(-1) * x).sum(0) for x in (f, g))
        return torch.einsum("q...,q...m,q...n->...mn", weights, f, g)

    @property
    def deterministic_sample(self) -> Tensor:
        """The mean (*batch, *event), by the name that TorchRL asks for."""
        return self.mean

    def rsample_and_log_prob(self, sample_shape: _size = Size()) -> tuple[Tensor, Tensor]:
        """Draw samples (*sample, *batch, *event), and return them with their log densities.

        Raises:
            NotImplementedError: A density without `rsample`.
        """
        t = self.rsample(sample_shape)
        return t, self.log_prob(t)

    def plot(self, ax: Any = None, **options: Any) -> Any:
        """Draw the density with its support shaded; see `sparsefam.plotting.plot_density`."""
        from ..plotting import plot_density  # matplotlib is an optional dependency

        return plot_density(self, ax=ax, **options)

    def expand(self, batch_shape: _size, _instance: "SparseDistribution | None" = None) -> Self:
        """Return the density with its batch expanded to `batch_shape`, without copying memory.

        Raises:
            ValueError: Not a sequence of sizes, or not one to which the batch expands.
        """
        shape = require_shape("batch_shape", batch_shape, self.batch_shape)
        return self._map(lambda x, event: x.expand(shape + event), shape)

    def __getitem__(self, index: Any) -> Self:
        """Return the densities at an index of the batch, as of a tensor.

        It may be integers, slices, an ellipsis, None, boolean masks and tensors of integers.
        Gradients reach the parameters of this density.

        Raises:
            BatchIndexError: `index` does not fit the batch. It is an IndexError and a ValueError.
            ValueError: A component of torch in a mixture holds tensors that do not broadcast with
                its batch.
        """
        take = selection(index)
        try:
            shape = take(self._like, Size()).shape
        except (IndexError, TypeError):
            raise BatchIndexError(
                f"index must fit the batch shape {tuple(self.batch_shape)}, got {index!r}"
            ) from None
        return self._map(take, shape)

    def __iter__(self) -> Iterator[Self]:
        """Iterate over the first axis of the batch."""
        if not self.batch_shape:
            raise TypeError(f"a density must have a batch to be iterated over, got {self!r}")
        return (self[i] for i in range(self.batch_shape[0]))

    def detach(self) -> Self:
        """Return the density with its tensors detached from the graph; they share memory.

        This includes the parameters of a kernel, or of the g of `LocationScale`, that is a module.
        """
        new = self._map(lambda x, event: x.detach(), self.batch_shape)
        others = {
            name: map_tensors(x, Tensor.detach)
            for name, x in vars(self).items()
            if isinstance(x, (Distribution, nn.Module)) and not isinstance(x, SparseDistribution)
        }
        return new._replace(**others)

    def to_float64(self) -> "SparseDistribution":
        """Return the same density computed in float64, without validation."""

        def exact(x: Any, event: Size) -> Any:
            return in_float64(x) if isinstance(x, Tensor) else x.to_float64()

        return self._map(exact, self.batch_shape)._replace(_validate_args=False)

    def _map(self, change: Callable[[Any, Size], Any], batch_shape: Size) -> Self:
        """Return the density of another batch shape, with its tensors and members changed.

        Args:
            change: From a tensor (*batch, *event) and its event, the shape after the batch, to one
                of the new batch; from a member, a density, and an empty event to a density.
            batch_shape: The new batch.
        """
        changed: dict[str, Any] = {}
        for name, rank in self._ranks.items():
            if (x := getattr(self, name, None)) is not None:
                changed[name] = change(x, x.shape[x.dim() - rank :])
        for name in self._members:
            changed[name] = change(getattr(self, name), Size())
        return self._replace(batch_shape, **changed)

    def _replace(self, batch_shape: Size | None = None, /, **attributes: Any) -> Self:
        """Return a copy with other values of some attributes, and without `_caches`.

        Args:
            batch_shape: Batch shape of the copy; default the same.
            attributes: New values by name.
        """
        new = type(self).__new__(type(self))
        new.__dict__.update(vars(self))
        new.__dict__.update(attributes)
        if batch_shape is not None:
            new._batch_shape = batch_shape
        for name in self._caches:
            new.__dict__.pop(name, None)
        return new

    def _check_value(self, value: Tensor) -> None:
        """Raise ValueError for values that are no locations, if arguments are validated."""
        if self._validate_args:
            self._validate_sample(value)

    def _validate_sample(self, value: Tensor, name: str = "value") -> None:
        """Raise ValueError unless a value of this name is real numbers (..., *batch, *event).

        Its batch may broadcast; the support is not checked.
        """
        require_tensor(name, value)
        if value.is_complex() or value.dtype == torch.bool:
            raise ValueError(f"{name} must be real numbers, got {value.dtype}")
        try:
            broadcast_shapes(value.shape, self.batch_shape + self.event_shape)
            fits = value.shape[value.dim() - len(self.event_shape) :] == self.event_shape
        except RuntimeError:
            fits = False
        if not fits:
            raise ValueError(
                f"{name} must broadcast with batch shape {tuple(self.batch_shape)} and end in "
                f"event shape {tuple(self.event_shape)}, got shape {tuple(value.shape)}"
            )
        require(~torch.isnan(value), name, "real", value)

    @property
    def _validation(self) -> bool | None:
        """The `validate_args` that the user passed, for densities derived from this one."""
        # Of the instance: the attribute of the class is torch's default.
        return self.__dict__.get("_validate_args")


def selection(index: Any) -> Callable[[Any, Size], Any]:
    """Return a function that indexes the batch of a tensor (*batch, *event) or of a density.

    Its arguments are the tensor and its event, or the density and an empty event.
    """
    given = index if isinstance(index, tuple) else (index,)
    key = given if any(i is Ellipsis for i in given) else (*given, Ellipsis)
    return lambda x, event: x[key + (slice(None),) * len(event)]


def select_batch(p: Any, shape: Size, take: Callable[[Tensor, Size], Tensor]) -> Any:
    """Return a copy of a distribution of torch with a part of its batch, or its batch rearranged.

    Tensors that it holds begin with its batch, or broadcast against batch and event, as the tensors
    of transforms do. A tensor whose first axes have the lengths of the batch by chance is changed,
    too: callers compare log densities to exclude it.

    Args:
        p: The distribution.
        shape: Batch shape of the result.
        take: As `selection` returns: from a tensor (*batch, *event) and its event to one of
            (*shape, *event).

    Raises:
        ValueError: A tensor that does not broadcast with batch and event.
    """
    batch, dims = p.batch_shape, len(p.event_shape)
    rank = len(batch)

    def change(x: Tensor) -> Tensor:
        if x.shape[:rank] == batch:
            return take(x, x.shape[rank:])
        if x.dim() <= dims:  # the same for all of the batch
            return x
        event = x.shape[x.dim() - dims :]
        try:
            return take(x.expand(batch + event), event)
        except RuntimeError:
            rule = f"hold tensors that broadcast with its batch {tuple(batch)}"
            raise ValueError(f"{p} must {rule}, got shape {tuple(x.shape)}") from None

    def with_shape(q: Any) -> Any:
        """Set the batch shape of a copy, and of the distributions that it holds."""
        # These, such as the base of an `Independent`, may count event axes of p to their batch,
        # which come after the axes of the batch of p and stay.
        q._batch_shape = shape + q._batch_shape[rank:]
        for held in vars(q).values():
            if isinstance(held, Distribution):
                with_shape(held)
        return q

    return with_shape(map_tensors(p, change))


# Values of functions at nodes in one block of the batch. The backward pass of a block keeps about a
# hundred tensors of this size: 200 MB in float32.
_BLOCK_SIZE = 1 << 19


class StandardizedDistribution(SparseDistribution):
    r"""$p(t) = q(x)/|\det A|$ with $x = A^{-1}(t - \mu)$, univariate or multivariate.

    A subclass gives $\log|\det A|$ and $q$, as a generator. The mode is at $x = 0$.
    """

    _tensors = {"alpha": 0}
    loc: Tensor

    @property
    def generator(self) -> Generator:
        """The standard density q."""
        raise NotImplementedError

    def _log_det(self) -> Tensor:
        r"""Return $\log|\det A|$ (*batch)."""
        raise NotImplementedError

    def _standardize(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return x, or |x|^2 for vectors, 0 off the support, and which values are inside it.

        Both results are (*sample, *batch).
        """
        raise NotImplementedError

    def _log_standard(self, size: Tensor) -> Tensor:
        """Return log q (*sample, *batch) at a first result of `_standardize`."""
        return self.generator.log_density(size)

    def _peak_score(self) -> Tensor | float:
        """Return the score at the mode (*batch)."""
        return 0.0

    def _covariance(self, phi: Basis, psi: Basis) -> Tensor:
        r"""Return the covariance of $\phi$ and $\psi$ under this density, (*batch, M, N)."""
        raise NotImplementedError

    def escort(self, beta: Tensor | float | None = None) -> "StandardizedDistribution":
        raise NotImplementedError

    def _node_count(self, order: int) -> int:
        """Return the number of nodes of `quadrature(order)`."""
        raise NotImplementedError

    def _expect_basis(self, psi: Basis, order: int) -> Tensor:
        """Return the expectation of a basis (*batch, N) by quadrature, by blocks of the batch."""
        count = self._node_count(order) * len(psi)
        if psi.effective_support is None:
            return self._in_blocks(lambda p: p._expect_at_nodes(psi, order), count)
        # Functions of numbers, each where it is not negligible.
        pieces = 1 if psi.breaks is None else len(psi.breaks) + 1
        return self._in_float64(lambda p: expect_on_support(p, psi, order), count * pieces)

    def _in_float64(self, rule: Callable[[Self], Tensor], count: int) -> Tensor:
        """Return the results of a rule in float64, in the type of the parameters.

        See `_in_blocks` for the arguments.
        """
        exact = self._map(lambda x, event: x.double(), self.batch_shape)
        return exact._in_blocks(rule, count).to(self.loc.dtype)

    def _in_blocks(self, rule: Callable[[Self], Tensor], count: int) -> Tensor:
        """Return the results (*batch, ...) of a rule, by blocks of the batch to bound its memory.

        The backward pass evaluates each block again. Compiled graphs and transforms of `torch.func`
        take the whole batch at once.

        Args:
            rule: From a density (B,), or with the batch of this one, to (B, ...).
            count: How many numbers the rule computes for one entry of the batch.
        """
        size, total = max(1, _BLOCK_SIZE // count), self.batch_shape.numel()
        if total <= size or not branches_allowed():
            return rule(self)
        # Parameters are split once: the gradient of a slice would be as large as the parameter.
        columns: list[tuple[Tensor, ...]] = []

        # `_map` takes tensors in the same order each time: the blocks of each are put into a column
        # here, and taken from an iterator below.
        def split(x: Tensor, event: Size) -> Tensor:
            x = x.reshape(total, *event)
            columns.append(x.split(size))
            return x

        flat = self._map(split, Size([total]))

        def evaluate(*parameters: Tensor) -> Tensor:
            values = iter(parameters)
            shape = parameters[0].shape[:1]
            return rule(flat._map(lambda x, event: next(values), shape))

        blocks = [
            checkpoint(evaluate, *block, use_reentrant=False, preserve_rng_state=False)
            for block in zip(*columns, strict=True)
        ]
        return torch.cat(blocks).unflatten(0, self.batch_shape)

    def _log_escort(self, log_p: Tensor) -> Tensor:
        r"""Return $\log_{2-\alpha} p$ (*batch), accurate as alpha tends to 1 and to infinity.

        It is infinite where it would overflow, with gradient zero.
        """
        # (p^s - 1)/s = log p (e^x - 1)/x with s = alpha - 1 and x = s log p.
        slope = (self.alpha - 1).clamp(max=1e30)
        finite = slope * log_p < math.log(torch.finfo(log_p.dtype).max)
        log_p = torch.where(finite, log_p, 0.0)
        return torch.where(finite, log_p * expm1_ratio(slope * log_p), math.inf)

    @property
    def mean(self) -> Tensor:
        """The center (*batch, *event)."""
        return self.loc

    @property
    def mode(self) -> Tensor:
        """The center (*batch, *event)."""
        return self.loc

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density; -inf with zero gradient off the support."""
        self._check_value(value)
        size, inside = self._standardize(value)
        return torch.where(inside, self._log_standard(size) - self._log_det(), -math.inf)

    def entropy(self) -> Tensor:
        """Return the Shannon entropy (*batch)."""
        return self.generator.entropy() + self._log_det()

    @property
    def log_normalizer(self) -> Tensor:
        r"""$A_\alpha(f) = f(loc) - \log_{2-\alpha} p(loc)$ (*batch).

        References:
            Martins et al. (2020), Sparse and Continuous Attention Mechanisms, Prop. 1.
        """
        log_peak = self._log_standard(torch.zeros_like(self._like)) - self._log_det()
        return self._peak_score() - self._log_escort(log_peak)

    def tsallis_entropy(self) -> Tensor:
        # -log_{2-alpha}(x)/alpha of x = (int p^alpha)^(1/(alpha - 1)), which has a limit at 1.
        log_mean = self.generator.log_mean_power() - self._log_det()
        return -self._log_escort(log_mean) / self.alpha.clamp(max=1e30)

    def _beta_covariance(self, phi: Basis, psi: Basis, beta: Tensor | float | None) -> Tensor:
        """Return the norm times the covariance under the escort, (*batch, M, N)."""
        covariance = self.escort(beta)._covariance(phi, psi)
        power = 2 - self.alpha if beta is None else beta
        # ||p||_beta^beta = int p^beta, with dt = |det A| dx.
        log_norm = self.generator.log_power_integral(power) + (1 - power) * self._log_det()
        norm = torch.exp(log_norm)[..., None, None]
        # The gradient of an infinite product would be NaN; it is zero.
        result = (norm * covariance).detach()
        finite = result.isfinite()
        product = torch.where(finite, norm, 1.0) * torch.where(finite, covariance, 0.0)
        return torch.where(finite, product, result)
