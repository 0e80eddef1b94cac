"""The sums of a ridge regression: by blocks, in pieces, and kept for the next call."""

import math
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.flop_counter import FlopCounterMode

from sparsefam.attention import RidgeRegression, Statistics
from sparsefam.bases import Basis, BSpline, GaussianRBF, Polynomial

DOUBLE = torch.float64


def data(batch: int = 3, length: int = 20, channels: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Positions, values and a mask that keeps at least one position of each example."""
    positions = torch.rand(batch, length, dtype=DOUBLE)
    values = torch.randn(batch, length, channels, dtype=DOUBLE)
    mask = torch.rand(batch, length) < 0.6
    return positions, values, mask | (torch.arange(length) == 0)


def learned(n: int = 5) -> GaussianRBF:
    centers = torch.linspace(0, 1, n, dtype=DOUBLE)
    return GaussianRBF(nn.Parameter(centers), nn.Parameter(torch.tensor(0.2, dtype=DOUBLE)))


def fixed(n: int = 8) -> GaussianRBF:
    return GaussianRBF.grid(n, 0.15).double()


# Blocks


@pytest.mark.parametrize("shared", [False, True], ids=["each", "shared"])
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize("which", [(True, True), (False, True), (True, False)])
def test_blocks_change_neither_fit_nor_gradients(
    shared: bool, masked: bool, which: tuple[bool, bool]
) -> None:
    t, values, mask = data()
    if masked:
        values = torch.where(mask.unsqueeze(-1), values, math.nan)
    t = (t[:1] if shared else t).requires_grad_(which[0])
    values.requires_grad_(which[1])
    basis = learned() if which[0] else fixed()
    wanted = [x for x in (t, values, *basis.parameters()) if x.requires_grad]

    def run(chunk_size: int) -> list[Tensor]:
        regression = RidgeRegression(basis, chunk_size=chunk_size)
        found = regression.fit(t, values, mask if masked else None).coefficients
        return [found, *torch.autograd.grad(found.square().sum(), wanted)]

    # The last of three blocks is a short one.
    for found, exact in zip(run(8), run(20), strict=True):
        assert torch.allclose(found, exact, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_gradients_of_blocks(masked: bool) -> None:
    t, values, mask = data(2, 5, 1)
    basis = learned(3)

    def fit(t: Tensor, values: Tensor, *_: Tensor) -> Tensor:
        regression = RidgeRegression(basis, 0.1, chunk_size=2)
        return regression.fit(t, values, mask if masked else None).coefficients

    inputs = (t.requires_grad_(), values.requires_grad_(), *basis.parameters())
    assert gradcheck(fit, inputs)
    assert gradgradcheck(fit, inputs[:2])


def test_blocks_in_float32_are_as_exact() -> None:
    t, values, _ = (x.float() for x in data(2, 500, 3))
    basis = GaussianRBF.grid(64, 1.5 / 64)
    values.requires_grad_()

    def run(chunk_size: int, dtype: torch.dtype) -> list[Tensor]:
        regression = RidgeRegression(basis, chunk_size=chunk_size)
        found = regression.fit(t, values.to(dtype)).coefficients
        return [found, *torch.autograd.grad(found.square().sum(), values)]

    for found, exact in zip(run(64, torch.float32), run(500, DOUBLE), strict=True):
        assert (found - exact).norm() < 1e-7 * exact.norm()


@pytest.mark.parametrize("parts", ["values", "everything"])
def test_backward_keeps_no_design(parts: str) -> None:
    t, values, mask = data(1, 400, 2)
    basis = learned(16) if parts == "everything" else fixed(16)
    values.requires_grad_()
    t.requires_grad_(parts == "everything")
    kept: list[int] = []

    def keep(x: Tensor) -> Tensor:
        kept.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        RidgeRegression(basis, chunk_size=50).fit(t, values, mask)
    # Nothing with a row for each observation and a column for each of 16 functions.
    assert max(kept) == values.numel()


def test_blocks_compile_and_map() -> None:
    t, values, mask = data(2, 4)
    basis = learned(3)
    regression = RidgeRegression(basis, 0.1, chunk_size=2, validate_args=False)

    def loss(t: Tensor, values: Tensor) -> Tensor:
        return regression.fit(t, values, mask).coefficients.square().sum()

    def grads(function: object) -> tuple[Tensor, ...]:
        leaves = (t.clone().requires_grad_(), values.clone().requires_grad_())
        return torch.autograd.grad(function(*leaves), (*leaves, *basis.parameters()))

    expected = grads(loss)
    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for found, exact in zip(grads(compiled), expected, strict=True):
        assert torch.allclose(found, exact, rtol=1e-10)
    several = torch.stack([values, 2 * values, values])
    each = torch.func.vmap(torch.func.grad(loss, (0, 1)), in_dims=(None, 0))(t, several)
    for found, exact in zip(each, expected[:2], strict=True):
        assert torch.allclose(found[2], exact, rtol=1e-10)


def test_exports_for_any_length() -> None:
    regression = RidgeRegression(fixed())

    class Fit(nn.Module):
        def forward(self, t: Tensor, values: Tensor, mask: Tensor) -> Tensor:
            return regression.fit(t, values, mask).coefficients

    length = {1: torch.export.Dim("length", min=2, max=1000)}
    exported = torch.export.export(Fit(), data(), dynamic_shapes=(length, length, length))
    longer = data(3, 77)
    assert torch.allclose(exported.module()(*longer), Fit()(*longer), rtol=1e-12)


def test_autocast_leaves_the_sums_alone() -> None:
    t, values, _ = (x.float() for x in data(2, 50, 3))
    regression = RidgeRegression(GaussianRBF.grid(8, 0.15), chunk_size=20)

    def run() -> list[Tensor]:
        leaf = values.clone().requires_grad_()
        found = regression.fit(t, leaf).coefficients
        return [found, *torch.autograd.grad(found.square().sum(), leaf)]

    expected = run()
    with torch.autocast("cpu", torch.bfloat16):
        for found, exact in zip(run(), expected, strict=True):
            assert torch.equal(found, exact)


# Pieces


def test_statistics_of_pieces_add_up() -> None:
    t, values, mask = data()
    regression = RidgeRegression(fixed())
    whole = regression.statistics(t, values, mask)
    parts = [
        regression.statistics(t[:, rows], values[:, rows], mask[:, rows])
        for rows in (slice(0, 12), slice(12, 20))
    ]
    for found, exact in zip(parts[0].plus(parts[1]), whole, strict=True):
        assert torch.allclose(found, exact, rtol=1e-12)
    function = regression.solve(parts[0].plus(parts[1]), DOUBLE)
    assert torch.allclose(function.coefficients, regression.fit(t, values, mask).coefficients)
    assert regression.solve(whole).coefficients.dtype == torch.get_default_dtype()


def test_forgotten_observations_weigh_less() -> None:
    t, values, _ = data()
    basis, keep = fixed(), torch.tensor([1.0, 0.25, 0.0], dtype=DOUBLE)
    regression = RidgeRegression(basis, 0.1)
    old, new = (
        regression.statistics(t[:, rows], values[:, rows]) for rows in (slice(12), slice(12, 20))
    )
    found = regression.solve(old.plus(new, keep), DOUBLE).coefficients
    for b in range(3):
        weight = torch.where(torch.arange(20) < 12, keep[b], 1.0).sqrt().unsqueeze(-1)
        rows = torch.cat([weight * basis(t[b]), math.sqrt(0.1) * torch.eye(8, dtype=DOUBLE)])
        right = torch.cat([weight * values[b], torch.zeros(8, 2, dtype=DOUBLE)])
        exact = torch.linalg.lstsq(rows, right, driver="gelsd").solution
        assert torch.allclose(found[b], exact, rtol=1e-9)
    assert old.plus(new, keep).number.tolist() == [20.0, 11.0, 8.0]


class Attributes(Basis):
    """Waves whose frequencies are a tensor, and no parameter, as some wrappers make of one."""

    def __init__(self, frequencies: Tensor) -> None:
        super().__init__()
        self.frequencies = frequencies

    def forward(self, t: Tensor) -> Tensor:
        return torch.sin(t.unsqueeze(-1) * self.frequencies)

    def __len__(self) -> int:
        return len(self.frequencies)


def test_gradients_of_blocks_reach_attributes() -> None:
    t, values, _ = data()
    frequencies = torch.tensor([2.0, 5.0, 9.0], dtype=DOUBLE, requires_grad=True)
    slopes = []
    for rows in (8, 20):
        regression = RidgeRegression(Attributes(2 * frequencies), chunk_size=rows)
        loss = regression.fit(t, values).coefficients.square().sum()
        slopes += torch.autograd.grad(loss, frequencies)
    assert torch.allclose(*slopes, rtol=1e-10)


# What examples share


def products(regression: RidgeRegression, t: Tensor, values: Tensor) -> int:
    """Operations of matrix products in one fit."""
    with FlopCounterMode(display=False) as counter:
        regression.fit(t, values)
    return counter.get_total_flops()


def test_matrix_of_the_last_grid_is_kept() -> None:
    t, values, _ = data(3, 100)
    regression = RidgeRegression(fixed())
    once, again = (products(regression, t[0], values) for _ in range(2))
    assert once - again == 2 * 100 * 8 * 8
    # It is one matrix, whatever the lengths, and no part of the state.
    for length in (7, 50):
        regression.fit(t[0, :length], values[:, :length])
    sizes = {name: tuple(x.shape) for name, x in regression.named_buffers() if "basis" not in name}
    assert list(sizes.values()) == [(50 + 8 + 8,), (1, 8, 8)]
    assert set(regression.state_dict()) == {"basis.centers", "basis.widths"}


@pytest.mark.parametrize(
    "change", ["positions", "data", "basis", "state", "other", "dtype", "length"]
)
def test_matrix_of_another_grid_is_not_used(change: str) -> None:
    t, values, _ = data(3, 30)
    grid, basis = t[0].clone(), fixed()
    regression = RidgeRegression(basis)
    regression.fit(grid, values)
    if change == "positions":
        grid[3] += 0.1
    elif change == "data":
        grid.data.mul_(0.9)
    elif change == "basis":
        basis.widths.mul_(1.5)
    elif change == "state":
        other = GaussianRBF.grid(8, 0.3).double()
        basis.load_state_dict(other.state_dict())
    elif change == "other":
        regression.basis = basis = Polynomial(2).double()
        regression.fit(grid, values)
        regression.basis = basis = Polynomial(3).double()
    elif change == "dtype":
        regression.float().double()
    else:
        grid, values = grid[:20], values[:, :20]
    found = regression.fit(grid, values).coefficients
    exact = RidgeRegression(basis).fit(grid.expand(3, -1), values).coefficients
    assert torch.allclose(found, exact, rtol=1e-9)


def test_what_is_kept_serves_everywhere() -> None:
    t, values, _ = data(3, 30)
    exact = RidgeRegression(fixed()).fit(t[:1].expand(3, -1), values).coefficients
    regression = RidgeRegression(fixed())

    def fit(values: Tensor) -> Tensor:
        return regression.fit(t[0], values).coefficients

    grads = torch.func.vmap(torch.func.grad(lambda h: fit(h).square().sum()))(values[None])
    with torch.inference_mode():
        fit(values)
    for _ in range(2):
        leaf = values.clone().requires_grad_()
        (grad,) = torch.autograd.grad(fit(leaf).square().sum(), leaf)
        assert torch.allclose(fit(values), exact, rtol=1e-9)
        assert torch.allclose(grad, grads[0], rtol=1e-9)


def test_learned_bases_and_positions_are_not_kept() -> None:
    t, values, _ = data()
    grid, basis = t[0].clone().requires_grad_(), learned()
    for regression in (RidgeRegression(basis), RidgeRegression(fixed())):
        for _ in range(2):
            loss = regression.fit(grid, values).coefficients.square().sum()
            (grad,) = torch.autograd.grad(loss, grid)
            assert grad.abs().min() > 0


# What no function reaches


def test_positions_out_of_reach_are_told_once() -> None:
    t, values, mask = data(2, 8)
    t[:, ::4] = torch.tensor([9.0, -5.0], dtype=DOUBLE)
    mask[:] = torch.arange(8) != 0
    regression = RidgeRegression(BSpline([0.0, 0.0, 0.5, 1.0, 1.0], 1).double())
    message = "0.14 of the positions are where no function of the basis reaches"
    with pytest.warns(UserWarning, match=message) as told:
        found = regression.fit(t, values, mask).coefficients
        regression.fit(t, values, mask)
    assert len(told) == 1
    assert told[0].filename == __file__
    inside = mask & (t > 0) & (t < 1)
    assert torch.allclose(found, regression.fit(t, values, inside).coefficients)


def test_positions_within_reach_are_not_told() -> None:
    t, values, mask = data(2, 8)
    t[:, 3] = 9.0
    mask[:, 3] = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RidgeRegression(fixed()).fit(t, values, mask)
        # These have no ends.
        RidgeRegression(Polynomial(2).double()).fit(100 * t, values)


# Zero penalties, and errors


def test_without_a_penalty_the_fit_is_least_squares() -> None:
    t, values, _ = data(1, 9)
    basis = Polynomial(3).double()
    found = RidgeRegression(basis, 0).fit(t, values).coefficients[0]
    exact = torch.linalg.lstsq(basis(t[0]), values[0], driver="gelsd").solution
    assert torch.allclose(found, exact, rtol=1e-8)


def test_too_few_observations_without_a_penalty_are_refused() -> None:
    t, values, mask = data(2, 6)
    mask[:] = torch.tensor([[True] * 6, [True] * 3 + [False] * 3])
    message = r"penalty must be positive with fewer observations than functions, 4, got 3 .*\[1\]"
    with pytest.raises(ValueError, match=message):
        RidgeRegression(Polynomial(3).double(), 0.0).fit(t, values, mask)
    twice = t[:, :1].expand(2, 6)
    with pytest.raises(ValueError, match="penalty must exceed the rounding errors.*got 0.0"):
        RidgeRegression(Polynomial(3).double(), 0.0).fit(twice, values)


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="group must be a process group or a device mesh, got 4"):
        RidgeRegression(fixed(), group=4)
    with pytest.raises(ValueError, match="chunk_size must be a positive integer, got 0"):
        RidgeRegression(fixed(), chunk_size=0)


def test_sums_of_other_sizes_are_refused() -> None:
    t, values, _ = data()
    some = RidgeRegression(fixed()).statistics(t, values)
    with pytest.raises(ValueError, match=r"of 3 examples, 8 functions, 2 chan.*got \(1, 8, 2\)"):
        some.plus(RidgeRegression(fixed()).statistics(t[:1], values[:1]))
    with pytest.raises(ValueError, match=r"keep must have shape \(\) or \(3,\), got \(2,\)"):
        some.plus(some, torch.ones(2))
    with pytest.raises(ValueError, match=r"statistics must be of 5 functions, got \(3, 8, 2\)"):
        RidgeRegression(fixed(5)).solve(some)


def test_errors_name_places_in_later_blocks() -> None:
    t, values, _ = data()
    values[1, 17, 1] = math.inf
    with pytest.raises(ValueError, match=r"values must be finite.*got inf at index .1, 17, 1."):
        RidgeRegression(fixed(), chunk_size=5).fit(t, values)


def test_examples_without_observations_are_refused() -> None:
    t, values, _ = data()
    statistics = RidgeRegression(fixed()).statistics(t, values)
    empty = Statistics(*(torch.zeros_like(x) for x in statistics))
    with pytest.raises(ValueError, match="mask must let at least one position"):
        RidgeRegression(fixed()).solve(empty)
