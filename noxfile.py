"""The tests with the oldest, the locked and the newest versions that pyproject.toml allows.

`nox` runs all four, `nox -s "tests(lowest)"` one; pytest gets what follows `--`. Interpreters must
be on PATH, or uv downloads them; UV_INDEX and UV_FIND_LINKS say where else packages come from.
"""

import nox

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "uv"

ALL = ("-e", ".[estimators,plot]", "--group", "test")


@nox.session
@nox.parametrize(
    "python,options",
    [
        nox.param("3.10", ("--resolution", "lowest-direct"), id="lowest"),
        nox.param("3.11", ("--constraint", "constraints.txt"), id="locked"),
        nox.param("3.12", ("--upgrade",), id="newest"),
        nox.param("3.13", ("--upgrade",), id="newest-python"),
    ],
)
def tests(session: nox.Session, options: tuple[str, ...]) -> None:
    """Run the test suite."""
    session.run_install("uv", "pip", "install", *options, *ALL)
    session.run_install("uv", "pip", "install", "--no-deps", "aeon<=1.6.0")
    session.run("uv", "pip", "freeze")
    session.run("python", "-m", "pytest", *session.posargs, env={"OMP_NUM_THREADS": "1"})
