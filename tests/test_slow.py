"""`make test-slow` has something to run."""

from pathlib import Path

# Files whose slow tests nothing else replaces: Pyro's checks, compiled graphs, and derivatives.
LEAST = {
    "test_battery_devices.py": 1000,
    "test_battery_export.py": 80,
    "test_battery_gradients.py": 2000,
    "test_battery_precision.py": 800,
    "test_battery_pyro.py": 30,
}


def test_the_slow_battery_is_not_empty(slow_tests: dict[str, int]) -> None:
    """Counted in files that were collected, all of them by `make test`."""
    for name, least in LEAST.items():
        assert Path(__file__).with_name(name).is_file()
        assert slow_tests.get(name, least) >= least
