"""How long a regression over many machines takes: a model, computed from what it assumes.

Prints the seconds of work and of communication up to a thousand million positions. The work of one
position is measured, the network is assumed. `--write` puts the tables into docs/distributed.md.
"""

import argparse
from dataclasses import dataclass

import torch

from .regression import CHANNELS, FUNCTIONS, timing
from .report import PAGE, Table, write_section

__all__ = ["NETWORKS", "Network", "gathering", "main", "numbers", "reduction", "tables"]

LENGTHS = tuple(10**k for k in range(6, 10))
RANKS = (1, 8, 64, 512)
_COMMAND = "python -m benchmarks.communication --write"
_DOUBLE, _SINGLE = 8, 4  # bytes
_MEASURED = 2**17


@dataclass(frozen=True)
class Network:
    """A ring of ranks, each of which sends to the next.

    Attributes:
        name: What it is like.
        bandwidth: Bytes a second.
        latency: Seconds of a message, however short.
    """

    name: str
    bandwidth: float
    latency: float


NETWORKS = (Network("Ethernet", 1e9, 50e-6), Network("cluster", 25e9, 5e-6))


def numbers(functions: int, channels: int, batch: int = 1) -> int:
    """How many numbers in float64 a reduction adds up, whatever the length of the sequence.

    The two matrices, the energy and the number of each example, and two counts of values that are
    not finite.
    """
    return batch * (functions * (functions + channels) + 2) + 2


def reduction(size: float, ranks: int, network: Network) -> float:
    """Seconds in which all ranks have the sum of `size` bytes: twice round the ring, in parts."""
    return 2 * (ranks - 1) * (network.latency + size / ranks / network.bandwidth)


def gathering(size: float, ranks: int, network: Network) -> float:
    """Seconds in which all ranks have `size` bytes of which each had its part: once round."""
    return reduction(size, ranks, network) / 2


def _short(number: float) -> str:
    """Two digits, or whole."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.2g}"


def _times(seconds: float, network: Network) -> Table:
    """Work and two reductions, where a position takes some seconds of a rank."""
    size = _DOUBLE * numbers(FUNCTIONS, CHANNELS)

    def cell(length: int, ranks: int) -> str:
        work = _short(seconds * length / ranks)
        return work if ranks == 1 else f"{work} + {_short(2 * reduction(size, ranks, network))}"

    return Table(
        f"Seconds of forward and backward, work + reductions, {network.name}: "
        f"{network.bandwidth / 1e9:g} GB/s, {1e6 * network.latency:g} µs",
        ["positions", *(f"{n} rank{'s' * (n > 1)}" for n in RANKS)],
        [[f"{length:,}", *(cell(length, ranks) for ranks in RANKS)] for length in LENGTHS],
    )


def _sizes(network: Network, ranks: int) -> Table:
    """What is sent, and what would be if ranks gathered the sequence."""
    size = _DOUBLE * numbers(FUNCTIONS, CHANNELS)
    rows = []
    for length in LENGTHS:
        whole = _SINGLE * (CHANNELS + 1) * length
        # Backward sends the gradients of the whole to where they belong.
        times = 2 * reduction(size, ranks, network), 2 * gathering(whole, ranks, network)
        rows.append([f"{length:,}", *(_short(x) for x in (size / 1e6, whole / 1e6, *times))])
    return Table(
        f"Sums, or the sequence itself: {ranks} ranks, {network.name}",
        ["positions", "sums, MB", "sequence, MB", "sums, s", "sequence, s"],
        rows,
    )


def tables(seconds: float) -> list[Table]:
    """All of them, for so many seconds of work at each position."""
    return [*(_times(seconds, network) for network in NETWORKS), _sizes(NETWORKS[0], 64)]


def main() -> None:
    """Measures the work, prints the tables, and writes them if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into docs/distributed.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    one = timing(_MEASURED)
    seconds = (one.forward + one.backward) / _MEASURED
    text = (
        f"Measured: {1e6 * seconds:.2g} s for a million positions, forward and backward (one fit "
        f"of {_MEASURED} positions, N = {FUNCTIONS}, E = {CHANNELS}, float32, one thread)."
    )
    print(text)
    made = tables(seconds)
    for table in made:
        table.show()
    if options.write:
        page = PAGE.with_name("distributed.md")
        parts = [text, *(table.markdown() for table in made)]
        write_section("communication", _COMMAND, parts, page)


if __name__ == "__main__":
    main()
