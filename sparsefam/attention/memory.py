"""Memories of fixed size for sequences of any length, with a state that goes in and comes out."""

from numbers import Real

import torch
from torch import Size, Tensor, nn

from ..numerics.validation import is_count
from .observations import check_shapes, require
from .regression import RidgeRegression
from .statistics import Statistics, require_statistics
from .value_function import ValueFunction

__all__ = ["ContractingMemory", "ForgettingMemory"]


class ForgettingMemory(nn.Module):
    r"""The sums of a ridge regression over all chunks so far, older ones counting less.

    With $\gamma$ = `keep` the function after k chunks minimises
    $\sum_j \gamma^{k - j} \lVert F_j C - H_j \rVert^2 + \lambda \lVert C \rVert^2$. At
    $\gamma = 1$ it is that of the whole sequence at once, to rounding. The state has
    N (N + E) numbers for each example, however long the sequence.

    Args:
        regression: How functions are fitted.
        keep: $\gamma \in [0, 1]$, what is kept of the past with every chunk.

    Raises:
        ValueError: `keep` not in [0, 1].

    Examples:
        >>> from sparsefam.bases import GaussianRBF
        >>> memory = ForgettingMemory(RidgeRegression(GaussianRBF.grid(8, widths=0.1)))
        >>> state = None
        >>> for t in torch.linspace(0, 1, 40).split(10):
        ...     function, state = memory(t.unsqueeze(0), torch.sin(6 * t).reshape(1, -1, 1), state)
        >>> function(torch.tensor([[0.1]])).shape  # of a chunk that is long gone
        torch.Size([1, 1, 1])
    """

    def __init__(self, regression: RidgeRegression, keep: float = 1.0) -> None:
        super().__init__()
        _require_regression(regression)
        if not _is_share(keep):
            raise ValueError(f"keep must be from 0 to 1, got {keep!r}")
        self.regression, self.keep = regression, float(keep)

    def extra_repr(self) -> str:
        return f"keep={self.keep}"

    def forward(
        self,
        positions: Tensor,
        values: Tensor,
        state: Statistics | None = None,
        mask: Tensor | None = None,
        reset: Tensor | None = None,
    ) -> tuple[ValueFunction, Statistics]:
        """Takes in a chunk, and returns the functions of all so far and the new state.

        Args:
            positions: As for `RidgeRegression.fit`, in the domain of the whole sequence.
            values: Shape (B, L, E).
            state: What the last call returned; None before the first. To stop gradients at a
                horizon, pass `state.detach()`.
            mask: As for `RidgeRegression.fit`.
            reset: Shape (B,), True where an example begins anew, and its past is forgotten.

        Raises:
            ValueError: What `RidgeRegression.fit` refuses; a state or `reset` of another shape.
        """
        found = self.regression.statistics(positions, values, mask)
        kept = _kept(self.keep, reset, values)
        if state is not None:
            require_statistics("state", state)
            _require_like(state.cross, found.cross)
            if self.regression.validate_args and self.keep > 0:
                parts = {f"state.{k}": x for k, x in zip(Statistics._fields, state, strict=True)}
                _require_known(parts, reset)
            found = state.plus(found, kept)
        return self.regression.solve(found, values.dtype), found


class ContractingMemory(nn.Module):
    r"""A function on [0, 1] whose past is squeezed into $[0, \tau]$ with every chunk.

    The first chunk takes all of it. Every other takes $(\tau, 1]$, and `samples` values of the last
    function are fitted with it, $V_{new}(\tau s) \approx V(s)$: what is long ago is ever closer to
    0 and ever smoother. The state are the coefficients, N E numbers for each example.

    Args:
        regression: How functions are fitted, with a basis on [0, 1].
        tau: The part of [0, 1] that the past gets, in (0, 1).
        samples: How many values of the past are fitted.

    Raises:
        ValueError: `tau` not in (0, 1), `samples` below 1, or a basis that is not one of numbers.

    References:
        Martins, Marinho and Martins (2022), $\infty$-former: Infinite Memory Transformer. ACL.
    """

    def __init__(self, regression: RidgeRegression, tau: float = 0.5, samples: int = 256) -> None:
        super().__init__()
        _require_regression(regression)
        if not _is_share(tau) or tau in (0, 1):
            raise ValueError(f"tau must be between 0 and 1, got {tau!r}")
        if not is_count(samples):
            raise ValueError(f"samples must be a positive integer, got {samples!r}")
        if regression.basis.event_shape:
            raise ValueError(f"regression must have a basis of numbers, got {regression.basis}")
        self.regression, self.tau, self.samples = regression, float(tau), samples

    def extra_repr(self) -> str:
        return f"tau={self.tau}, samples={self.samples}"

    def forward(
        self,
        positions: Tensor,
        values: Tensor,
        state: Tensor | None = None,
        mask: Tensor | None = None,
        reset: Tensor | None = None,
    ) -> tuple[ValueFunction, Tensor]:
        r"""Takes in a chunk, and returns the functions of all so far and the new state.

        Args:
            positions: Within the chunk, in [0, 1]: shape (B, L), or (L,) for all.
            values: Shape (B, L, E).
            state: What the last call returned, shape (B, N, E); None before the first. To stop
                gradients at a horizon, pass `state.detach()`.
            mask: As for `RidgeRegression.fit`.
            reset: Shape (B,), True where an example begins anew.

        Returns:
            The functions, of locations in [0, 1], and the state.

        Raises:
            ValueError: What `RidgeRegression.fit` refuses; positions outside of [0, 1]; a state or
                `reset` of another shape.
        """
        check_shapes(positions, values, mask, Size(), self.regression.group is not None)
        if self.regression.validate_args:
            within = (positions >= 0) & (positions <= 1)
            within = within if mask is None else within | ~mask
            require(within, "positions must be in [0, 1]", positions.expand(within.shape))
        kept = _kept(1.0, reset, values)
        if state is None:
            found = self.regression.statistics(positions, values, mask)
        else:
            later = self.tau + (1 - self.tau) * positions
            if reset is not None:
                later = torch.where(reset.unsqueeze(-1), positions, later)
            found = self.regression.statistics(later, values, mask)
            _require_like(state, found.cross)
            if self.regression.validate_args:
                _require_known({"state": state}, reset)
            found = self._squeezed(state).plus(found, kept)
        function = self.regression.solve(found, values.dtype)
        return function, function.coefficients

    def _squeezed(self, coefficients: Tensor) -> Statistics:
        """The sums over values of the last functions, where the past goes.

        Of this rank alone: every rank knows all of the past.
        """
        steps = torch.arange(self.samples, dtype=torch.float64, device=coefficients.device)
        s = (steps + 0.5) / self.samples
        features = self.regression.basis(s).double()
        past = torch.einsum("ln,bne->ble", features, coefficients.double())
        return self.regression.local_statistics((self.tau * s).unsqueeze(0), past)


def _kept(keep: float, reset: Tensor | None, values: Tensor) -> Tensor | float:
    """What to multiply the past of each example (B,) with; one number if all have the same."""
    if reset is None:
        return keep
    due = values.shape[:1]
    if not isinstance(reset, Tensor):
        raise ValueError(f"reset must be a tensor, got {reset!r}")
    if reset.shape != due or reset.dtype != torch.bool:
        got = f"{reset.dtype} of shape {tuple(reset.shape)}"
        raise ValueError(f"reset must be boolean of shape {tuple(due)}, got {got}")
    kept = torch.full(due, keep, dtype=torch.float64, device=values.device)
    return kept.masked_fill(reset, 0.0)


def _is_share(x: object) -> bool:
    """Whether something is a number from 0 to 1."""
    return isinstance(x, Real) and 0 <= float(x) <= 1


def _require_regression(regression: object) -> None:
    if not isinstance(regression, RidgeRegression):
        raise ValueError(f"regression must be a RidgeRegression, got {regression!r}")


def _require_like(state: object, found: Tensor) -> None:
    right = isinstance(state, Tensor) and state.is_floating_point()
    shape = tuple(state.shape) if isinstance(state, Tensor) else type(state).__name__
    if not right or shape != found.shape:
        rule = f"of {len(found)} examples, {found.shape[1]} functions, {found.shape[2]} channels"
        kind = f" of {state.dtype}" if isinstance(state, Tensor) else ""
        raise ValueError(f"state must be floating, {rule}, got {shape}{kind}")


def _require_known(state: dict[str, Tensor], reset: Tensor | None) -> None:
    known = {name: x.isfinite() for name, x in state.items()}
    if reset is not None:
        known = {name: x | reset.reshape(-1, *[1] * (x.ndim - 1)) for name, x in known.items()}
    # One question to the device.
    together = torch.stack([x.all() for x in known.values()])
    if torch.compiler.is_compiling() or not torch._is_all_true(together):
        for name, x in known.items():
            rule = f"{name} must be finite where it is not reset"
            require(x, rule, state[name].expand(x.shape))
