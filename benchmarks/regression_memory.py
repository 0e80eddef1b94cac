"""How much memory a ridge regression needs at its peak."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

from sparsefam.attention import ForgettingMemory, RidgeRegression
from sparsefam.bases import GaussianRBF

from .memory import resident_megabytes

__all__ = ["measure_stream", "regression_megabytes", "stream"]

_FUNCTIONS, _CHANNELS = 128, 64
_CHUNK, _FIRST = 1000, 10


def regression_megabytes(length: int, whole: bool) -> float:
    """Of forward and backward in a fresh process, above observations and their gradients.

    Args:
        length: The number of observations.
        whole: Whether all rows are one block, as without blocks.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_measure, length, whole).result()


def _measure(length: int, whole: bool) -> float:
    torch.set_num_threads(1)
    basis = GaussianRBF.grid(_FUNCTIONS, 1.5 / _FUNCTIONS)
    regression = RidgeRegression(basis, chunk_size=length if whole else None)
    # What libraries need when first called.
    _run(RidgeRegression(basis, chunk_size=None if whole else 32), *_observations(64))
    t, values = _observations(length)
    before = resident_megabytes()
    _run(regression, t, values)
    gradients = t.numel() * t.element_size() + values.numel() * values.element_size()
    return resident_megabytes() - before - gradients / 1e6


def stream(length: int) -> tuple[float, float]:
    """What `measure_stream` finds in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure_stream, length).result()


def measure_stream(length: int) -> tuple[float, float]:
    """A stream in chunks of a thousand.

    Returns:
        Megabytes at the peak, above that of the first chunks; and how far the coefficients are
        from those of one fit to all, relatively.
    """
    torch.set_num_threads(1)
    regression = RidgeRegression(GaussianRBF.grid(_FUNCTIONS, 1.5 / _FUNCTIONS))
    memory, state, before = ForgettingMemory(regression), None, 0.0
    for chunk in range(length // _CHUNK):
        function, state = memory(*_chunk(chunk), state)
        if chunk == _FIRST:
            before = resident_megabytes()
    megabytes = resident_megabytes() - before
    chunks = [_chunk(chunk) for chunk in range(length // _CHUNK)]
    t, values = (torch.cat(parts, 1) for parts in zip(*chunks, strict=True))
    whole = regression.fit(t, values).coefficients
    return megabytes, float((function.coefficients - whole).norm() / whole.norm())


def _chunk(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Irregular positions in the whole domain, and noisy waves."""
    torch.manual_seed(number)
    t, noise = _observations(_CHUNK)
    return t, torch.sin(12 * t).unsqueeze(-1) + 0.3 * noise


def _observations(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(1, length), torch.randn(1, length, _CHANNELS)


def _run(regression: RidgeRegression, t: torch.Tensor, values: torch.Tensor) -> None:
    t, values = t.requires_grad_(), values.requires_grad_()
    loss = regression.fit(t, values).coefficients.square().sum()
    torch.autograd.grad(loss, (t, values))
