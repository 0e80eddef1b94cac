"""What contexts of queries must at least cost on a GPU: operations, bytes, and the time they imply.

`python -m benchmarks.gpu_bound` prints the table of docs/gpu.md. Written before any measurement.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from .report import Table

__all__ = ["H200", "Ceilings", "Rule", "Work", "attention_seconds", "bounds", "work"]

HEADS, CHANNELS, FUNCTIONS, LENGTH = 8, 64, 128, 65536
# Functions of a tile: backward keeps the slopes of each tile, to be summed.
_TILE = 32


@dataclass(frozen=True)
class Ceilings:
    """What a device does a second at most.

    Attributes:
        bytes: From and to its memory.
        arithmetic: Float32 results, where a fused multiply-add is one.
        special: Exponentials, logarithms and reciprocals.
        tensor: Floating-point operations of bfloat16 matrix products, two a multiply-add.
    """

    bytes: float
    arithmetic: float
    special: float
    tensor: float


# Of the datasheet: 4.8 TB/s, 67 TFLOP/s in float32 and 989 TFLOP/s in dense bfloat16. Of the
# architecture: 16 special functions a cycle on each of 132 multiprocessors, at 1.98 GHz.
H200 = Ceilings(4.8e12, 67e12 / 2, 132 * 16 * 1.98e9, 989e12)


@dataclass(frozen=True)
class Rule:
    """Operations of a pair of a query and a function, counted in the formulas of the kernels.

    Attributes:
        arithmetic: Float32 results forward.
        special: Special functions forward.
        slopes: Float32 results that backward has besides.
        more: Special functions that backward has besides.
        numbers: Parameters of a query.
        frame: Bytes that a frame of a query is written and read in.
    """

    arithmetic: int
    special: int
    slopes: int
    more: int
    numbers: int = 2
    frame: int = 0


# Edges in widths (19); two exponentials (6), error functions of 16 operations and what enters them
# (36), and the formula (15). Backward: two more formulas (20), their scales and sums (12).
_CLOSED = Rule(76, 5, 32, 1)


# A window (30) and nodes: where it is and the density's base there (6), its power, and the sum (4).
# Backward has 16 operations more a node.
# In the plane: a frame (14, and 16 in float64, of which each takes the time of two; its conversions
# and reciprocals are 5), the saddle (11 and 3; four steps of 44 and 8; a last one of 53 and 6), the
# path (88 and 8) and the value (18 and 3). A node: where it is and the two factors that a Gaussian
# has there (79 and 5), its power (28 and 1 for products of two, 4 for one more; 36 and 3 for any),
# and backward 16 besides; a pair's slopes are 62 and 2.
def _in_plane(nodes: int, node: int, special: int) -> Rule:
    pair, rest = 46 + 11 + 4 * 44 + 53 + 88 + 18, 5 + 3 + 4 * 8 + 6 + 8 + 3
    return Rule(pair + nodes * node, rest + nodes * special, 62 + nodes * 16, 2, 6, 128)


RULES = {
    "2": _CLOSED,
    "3/2": Rule(30 + 20 * 11, 1 + 20, 12 + 20 * 16, 1),
    "1.7": Rule(30 + 32 * 13, 1 + 32 * 2, 12 + 32 * 16, 1),
    "2 in the plane": _in_plane(8, 79 + 28, 6),
    "3/2 in the plane": _in_plane(6, 79 + 32, 6),
    "1.7 in the plane": _in_plane(8, 79 + 36, 8),
}


@dataclass(frozen=True)
class Work:
    """Of one query and head."""

    arithmetic: float
    special: float
    tensor: float
    bytes: float

    def seconds(self, device: Ceilings) -> dict[str, float]:
        """The time that each of them implies; the longest one is the bound."""
        return {name: value / getattr(device, name) for name, value in vars(self).items()}

    def __add__(self, other: "Work") -> "Work":
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Work(*(a + b for a, b in pairs))


def work(rule: Rule, half: bool, backward: bool) -> Work:
    """Forward, or backward alone, of one query and head.

    Products of bfloat16 are the tensor cores': one if both factors are, and two where one is a
    float32 number in two parts. Those of float32 are arithmetic.
    """
    products, exact = (3 if backward else 2, 2 if backward else 1)
    matrix, row = FUNCTIONS * CHANNELS, CHANNELS * (2 if half else 4)
    arithmetic = rule.arithmetic + (rule.slopes if backward else 0)
    special = rule.special + (rule.more if backward else 0)
    # Location and scale; and their slopes by tile, written and read, and summed.
    numbers = 4 * rule.numbers
    moved = numbers + rule.frame
    moved += numbers * (2 * FUNCTIONS // _TILE + 1) if backward else 0
    return Work(
        FUNCTIONS * arithmetic + (0 if half else exact * matrix),
        FUNCTIONS * special,
        2 * products * matrix if half else 0,
        row + moved,
    )


def attention_seconds(device: Ceilings, length: int, training: bool) -> float:
    """Of discrete attention at the peak of its products: 2 forward and 5 backward."""
    return 4 * length**2 * CHANNELS * HEADS / device.tensor * (3.5 if training else 1)


def bounds() -> Iterator[tuple[str, bool, bool, Work]]:
    """Each alpha, in bfloat16 or not, with backward or not."""
    for name, rule in RULES.items():
        for half in (True, False) if name == "2" else (True,):
            forward = work(rule, half, False)
            yield name, half, False, forward
            yield name, half, True, forward + work(rule, half, True)


def table() -> Table:
    """Operations and bytes a query and head, and what they imply."""
    rows = []
    for name, half, training, each in bounds():
        seconds = each.seconds(H200)
        longest = max(seconds, key=lambda kind: seconds[kind])
        total = seconds[longest] * HEADS * LENGTH
        ratio = attention_seconds(H200, LENGTH, training) / total
        rows.append(
            [
                f"{name}, {'bfloat16' if half else 'float32'}{', with backward' * training}",
                *(f"{value:.0f}" for value in vars(each).values()),
                longest,
                f"{1e12 * seconds[longest]:.0f}",
                f"{1e3 * total:.2f}",
                f"{ratio:.0f}",
            ]
        )
    header = ["alpha", "arithmetic", "special", "tensor", "bytes", "bound by", "ps", "ms", "ratio"]
    return Table(f"N = {FUNCTIONS}, E = {CHANNELS}.", header, rows)


if __name__ == "__main__":
    print(table().markdown())
