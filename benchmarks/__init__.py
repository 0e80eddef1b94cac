"""Accuracy and speed tables of the documentation: `python -m benchmarks --help`."""
