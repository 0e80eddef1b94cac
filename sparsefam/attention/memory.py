"""Memories of fixed size for sequences of any length, with an explicit state."""

from collections.abc import Callable

import torch
from torch import Size, Tensor, nn

from .._numerics.roots import increasing_root
from .._numerics.validation import as_number, require_integer
from ..distributions import SparseDistribution
from ..distributions._torch_adapter import dtype_of
from ._masks import check_mask, check_shape, require_all
from .normal_equations import NormalEquations, check_equations
from .regression import RidgeRegression
from .value_function import ValueFunction

__all__ = ["ContractingMemory", "ForgettingMemory"]

# Steps of the search for a root in [0, 1]: at worst they bisect, to 1e-6.
_STEPS = 20


class ForgettingMemory(nn.Module):
    r"""The sums of a regression over all chunks so far, with less weight for older chunks.

    With $\gamma$ = `forgetting_factor` the function after k chunks minimizes the sum of the penalty
    and the squared residuals, which chunk j enters with the factor $\gamma^{k - j}$. At
    $\gamma = 1$ this is the function of the whole sequence, to rounding. The state has about
    N (N + E) numbers for each example, however long the sequence.

    Args:
        regression: How functions are fitted.
        forgetting_factor: $\gamma \in (0, 1]$, the weight that the past retains with every chunk.

    Raises:
        ValueError: If `forgetting_factor` is not in (0, 1].

    Examples:
        >>> from sparsefam.bases import GaussianRBF
        >>> memory = ForgettingMemory(RidgeRegression(GaussianRBF.grid(8, widths=0.1)))
        >>> state = None
        >>> for t in torch.linspace(0, 1, 40).split(10):
        ...     function, state = memory(t.unsqueeze(0), torch.sin(6 * t).reshape(1, -1, 1), state)
        >>> function(torch.tensor([[0.1]])).shape  # in the first of four chunks
        torch.Size([1, 1, 1])
    """

    def __init__(self, regression: RidgeRegression, forgetting_factor: float = 1.0) -> None:
        super().__init__()
        _check_regression(regression)
        if not _is_positive_fraction(forgetting_factor):
            rule = "forgetting_factor must be above 0 and at most 1"
            raise ValueError(f"{rule}, got {forgetting_factor!r}")
        self.regression, self.forgetting_factor = regression, float(forgetting_factor)

    def extra_repr(self) -> str:
        return f"forgetting_factor={self.forgetting_factor}"

    def forward(
        self,
        positions: Tensor,
        values: Tensor,
        state: NormalEquations | None = None,
        mask: Tensor | None = None,
        reset: Tensor | None = None,
    ) -> tuple[ValueFunction, NormalEquations]:
        """Add a chunk; return the functions of all chunks so far and the new state.

        Args:
            positions: As for `RidgeRegression.fit`, in the domain of the whole sequence.
            values: As for `RidgeRegression.fit`.
            state: The state from the last call; None before the first. Pass `state.detach()` to
                stop gradients there.
            mask: As for `RidgeRegression.fit`.
            reset: Shape (B,), True where an example starts anew and its past is forgotten.

        Raises:
            ValueError: As `RidgeRegression.fit`, or if the state or `reset` has another shape.
        """
        sums = self.regression.statistics(positions, values, mask)
        forgetting_factor = _factors(self.forgetting_factor, reset, values)
        if state is not None:
            check_equations("state", state, sums.cross.shape)
            sums = state.plus(sums, forgetting_factor)
        return self.regression.solve(sums, values.dtype), sums


class ContractingMemory(nn.Module):
    r"""A function on [0, 1] whose past is compressed into $[0, \tau]$ with every chunk.

    The first chunk occupies [0, 1]. Every other one occupies $(\tau, 1]$ and is fitted together
    with `samples` values of the last function, $V_{new}(\tau s) \approx V(s)$. Older chunks move
    towards 0 and become smoother. The state is the last function, (N + 1) E numbers for each
    example.

    Memories are *sticky* if chunks come with the density that attended to the last function. Times
    of much attention then get more room: the past moves from t to $\tau G(t)$, where

    $$G(t) = (1 - \kappa)\, t + \kappa\, F(t), \qquad V_{new}(\tau s) \approx V(G^{-1}(s)),$$

    with F the distribution function, averaged over heads and queries, and $\kappa$ = `stickiness`.
    Where F is flat, the past keeps the fraction $1 - \kappa$ of its room. At $\kappa = 1$ it would
    be forgotten there, at once and for good.

    Args:
        regression: How functions are fitted, with a basis on [0, 1].
        tau: The part of [0, 1] that the past gets, in (0, 1).
        samples: Number of values of the past that are fitted.
        stickiness: $\kappa \in [0, 1]$, the fraction of the room of the past that densities
            distribute.

    Raises:
        ValueError: If `tau` is not in (0, 1), `samples` is below 1, `stickiness` is not in [0, 1],
            or locations of the basis are vectors.

    References:
        Martins, Marinho and Martins (2022), $\infty$-former: Infinite Memory Transformer. ACL.
        There $\kappa = 1$, and locations are drawn from a histogram at random.
    """

    def __init__(
        self,
        regression: RidgeRegression,
        tau: float = 0.5,
        samples: int = 256,
        stickiness: float = 0.5,
    ) -> None:
        super().__init__()
        _check_regression(regression)
        if not _is_positive_fraction(tau) or tau == 1:
            raise ValueError(f"tau must be between 0 and 1, got {tau!r}")
        require_integer("samples", samples, 1)
        if regression.basis.event_shape:
            raise ValueError(f"regression must have a basis of numbers, got {regression.basis}")
        if stickiness != 0 and not _is_positive_fraction(stickiness):
            raise ValueError(f"stickiness must be from 0 to 1, got {stickiness!r}")
        self.regression, self.tau, self.samples = regression, float(tau), samples
        self.stickiness = float(stickiness)

    def extra_repr(self) -> str:
        return f"tau={self.tau}, samples={self.samples}, stickiness={self.stickiness}"

    def forward(
        self,
        positions: Tensor,
        values: Tensor,
        state: Tensor | None = None,
        mask: Tensor | None = None,
        reset: Tensor | None = None,
        density: SparseDistribution | None = None,
    ) -> tuple[ValueFunction, Tensor]:
        r"""Add a chunk, as `ForgettingMemory.forward`.

        Args:
            positions: Within the chunk, in [0, 1]: shape (B, L), or (L,) for all.
            values: Shape (B, L, E).
            state: The state from the last call; None before the first. Its shape is (B, N + 1, E),
                the coefficients and the constant, or (B, N, E) with a ridge penalty.
            mask: As for `RidgeRegression.fit`.
            reset: Shape (B,), True where an example starts anew.
            density: The density that attended to the last functions, of batch shape (B, ...) or
                (1, ...), such as a layer returns. It has no effect on the first chunk. Mass outside
                [0, 1] is spread evenly. There is no gradient. Each query takes 22 `samples` values
                of its distribution function: if there are thousands, pass `density[..., ::10]`.
                None: evenly.

        Raises:
            ValueError: As `ForgettingMemory.forward`, or if positions are outside [0, 1], or
                `density` is not univariate and continuous, or of another batch.
        """
        self.regression._check_observations(positions, values, mask)
        if self.regression.validate_args:
            valid = (positions >= 0) & (positions <= 1)
            valid = valid if mask is None else valid | ~mask
            require_all(valid, "positions must be in [0, 1]", positions.expand(valid.shape))
        forgetting_factor = _factors(1.0, reset, values)
        if state is None:
            function = self.regression.fit(positions, values, mask)
            return function, _as_state(function)
        # The past is refitted in [0, tau] from samples, and the chunk is moved behind it.
        later = self.tau + (1 - self.tau) * positions
        if reset is not None:
            # The first chunk of an example occupies all of [0, 1].
            later = torch.where(reset.unsqueeze(-1), positions, later)
        sums = self.regression.statistics(later, values, mask)
        batch, size, channels = sums.cross.shape
        rows = size + (self.regression.smoothing is not None)
        check_shape("state", state, (batch, rows, channels))
        past = self._past(state, density)
        function = self.regression.solve(past.plus(sums, forgetting_factor), values.dtype)
        return function, _as_state(function)

    def relocate(self, t: Tensor, density: SparseDistribution | None = None) -> Tensor:
        r"""Return where the past is after a chunk that came with this density, $\tau G(t)$.

        Args:
            t: Locations in the last functions, shape (B, T).
            density: As for `forward`.

        Raises:
            ValueError: As `forward`.
        """
        return self.tau * (t if density is None else self._relocation(density, len(t))(t))

    def _past(self, state: Tensor, density: SparseDistribution | None) -> NormalEquations:
        """Return sums over samples of the last functions, moved into [0, tau].

        The observation at tau s, for evenly spaced s, is V(G^-1(s)); without a density G(t) = t.

        Args:
            state: The last functions, as `_as_state` returns them.
            density: As for `forward`.
        """
        index = torch.arange(self.samples, dtype=torch.float64, device=state.device)
        s = ((index + 0.5) / self.samples).unsqueeze(0)
        source = s  # Locations G^-1(s) in the last functions, (B or 1, samples)
        if density is not None:
            # G has at least the slope 1 - stickiness: if that is positive, G(t) = s at one t only.
            relocation = self._relocation(density, len(state))
            low = torch.zeros(density.batch_shape[0], 1, dtype=dtype_of(density), device=s.device)
            source = increasing_root(lambda t: relocation(t) - s, low, low + 1, _STEPS).to(s)
        # The state ends with a row of constants, or with none under a ridge penalty, where the sum
        # over its rows is 0.
        size = len(self.regression.basis)
        coefficients, constant = state.double().split([size, state.shape[1] - size], 1)
        past = ValueFunction(self.regression.basis, coefficients)(source)
        past = past + constant.sum(1, keepdim=True)
        return self.regression._unchecked_statistics(self.tau * s, past)

    def _relocation(self, density: SparseDistribution, batch: int) -> Callable[[Tensor], Tensor]:
        """Return G(t) = (1 - kappa) t + kappa F(t), from and to shape (batch or 1, T).

        F is the distribution function, averaged over heads and queries. Mass outside of [0, 1]
        is spread evenly, so that F(0) = 0 and F(1) = 1.
        """
        if (
            not isinstance(density, SparseDistribution)
            or density.has_enumerate_support
            or density.event_shape
            or density.batch_shape[:1] not in (Size([1]), Size([batch]))
        ):
            rule = f"univariate and continuous, of batch shape ({batch}, ...) or (1, ...)"
            raise ValueError(f"density must be {rule}, got {density!r}")

        p = density.detach()  # there is no gradient

        def mass(t: Tensor) -> Tensor:
            """Return the mean mass (B, T) below locations t (B or 1, T)."""
            rows = t.mT.reshape(*t.mT.shape, *(1,) * (len(density.batch_shape) - 1))
            # Batch (B, heads, Lq) to (T, B, heads * Lq).
            cdf = p.cdf(rows).reshape(len(rows), -1, density.batch_shape[1:].numel())
            return cdf.mean(-1).mT  # over heads and queries

        # F(t) = mass(t) - first + (1 - (last - first)) t: the mass in [0, 1], and the remainder.
        ends = torch.tensor([[0.0, 1.0]], dtype=dtype_of(density), device=density.alpha.device)
        first, last = mass(ends).split(1, -1)
        return lambda t: t + self.stickiness * (mass(t) - first - (last - first) * t)


def _as_state(function: ValueFunction) -> Tensor:
    """Return coefficients (B, N, E) and, if there is a constant, below them: (B, N + 1, E)."""
    if function.constant is None:
        return function.coefficients
    return torch.cat([function.coefficients, function.constant.unsqueeze(1)], 1)


def _factors(forgetting_factor: float, reset: Tensor | None, values: Tensor) -> Tensor | float:
    """Return the factor of the past: a number, or (B,) with 0 for examples that start anew.

    Args:
        forgetting_factor: The factor of examples that go on.
        reset: True where an example starts anew (B,). None: nowhere.
        values: Values (B, L, E) of the chunk.
    """
    if reset is None:
        return forgetting_factor
    batch = (len(values),)
    check_mask("reset", reset, batch)
    factors = torch.full(batch, forgetting_factor, dtype=torch.float64, device=values.device)
    return factors.masked_fill(reset, 0.0)


def _is_positive_fraction(x: object) -> bool:
    """Return whether x is a number above 0 and at most 1."""
    return 0 < as_number(x) <= 1


def _check_regression(regression: object) -> None:
    """Raise ValueError unless the argument is a `RidgeRegression`."""
    if not isinstance(regression, RidgeRegression):
        raise ValueError(f"regression must be a RidgeRegression, got {regression!r}")
