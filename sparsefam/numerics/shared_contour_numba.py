"""How numba compiles loops."""

from numba import njit

__all__ = ["compiled"]

# Sums may be reordered; NaN and infinity keep their meaning.
compiled = njit(
    cache=True,
    nogil=True,
    error_model="numpy",
    fastmath={"reassoc", "contract", "nsz", "arcp"},
)
