"""The Beta densities on an interval that the battery is run on."""

from typing import Any

from battery import Family
from references import Pieces, pieces
from scipy import stats

from sparsefam import ScaledBeta


def _beta(low: float, high: float, mean: float, concentration: float) -> Pieces:
    width = high - low
    a, b = (concentration * (x / width) for x in (mean - low, high - mean))
    law = stats.beta(a, b, low, width)
    inner = sorted({*law.ppf([1e-6, 1e-3, 0.1, 0.5, 0.9, 0.999, 1 - 1e-6]).tolist()})
    return pieces(law.pdf, [low, *(t for t in inner if low < t < high), high])


_SHARED: dict[str, Any] = {
    "escorts": (None, 1.0),
    "no_escorts": (0.5, 2.0, -0.5),
    "constant": ("log_normalizer",),
    "ranks": dict.fromkeys(("low", "high", "mean", "concentration"), 0),
}
BETAS = [
    Family(
        "ScaledBeta",
        ScaledBeta,
        _beta,
        scalar={"low": -0.5, "high": 1.5, "mean": 0.75, "concentration": 6.5},
        batch={
            "low": [[-0.5], [-1.5]],
            "high": [1.5, 1.0, 2.0],
            "mean": [[0.3125], [0.0625]],
            "concentration": [5.0, 12.0, 64.0],
        },
        **_SHARED,
    )
]
