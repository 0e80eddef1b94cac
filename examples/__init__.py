"""The tour: real data, trained and drawn; `python -m examples.tour` runs all of it."""
