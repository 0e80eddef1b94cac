"""What is done with densities beside what one could use instead, as sizes grow.

Prints four tables: log densities and draws beside torch.distributions, probabilities of finitely
many scores beside the entmax package, value functions beside least squares, density estimates
beside kernel density estimates; all on one thread, with errors where something is approximate.
`--write` puts them into docs/benchmarks.md.
"""

import argparse

import torch

from .operations_densities import density_table
from .operations_fits import estimate_table, value_table
from .operations_simplex import simplex_table
from .report import write_section

__all__ = ["main"]

_COMMAND = "python -m benchmarks.operations --write"


def main() -> None:
    """Prints the tables, and writes them if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tables = [density_table(), simplex_table(), value_table(), estimate_table()]
    for table in tables:
        table.show()
    if options.write:
        write_section("operations", _COMMAND, [table.markdown() for table in tables])


if __name__ == "__main__":
    main()
