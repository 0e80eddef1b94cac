"""Accuracy and speed tables of the documentation: `python -m benchmarks --help`."""

import sys
from pathlib import Path

# References are those of the tests.
sys.path.append(str(Path(__file__).parents[1] / "tests"))
