"""The numbers and pictures of README: `python -m benchmarks.readme --write`.

One table collects what other commands measured, from the pages that they wrote. The other runs
lines of other libraries beside lines of this package: `pip install --group neighbors` installs
those that the package does not need. The command writes only if all of them are installed.
"""

import re
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
from torch.distributions import Distribution

from examples import gallery

from .harness import DOCS, Table, parser, run


def cells(page: str, section: str = "") -> Iterator[list[str]]:
    """Yield the rows of the tables of a page in docs/, or of one section that a command wrote."""
    text = (DOCS / page).read_text(encoding="utf-8")
    if section:
        text = text.partition(f"<!-- {section}: made by")[2].partition(f"<!-- {section}: end")[0]
    for line in re.findall(r"^\| (.*) \|$", text, re.M):
        yield [cell.strip("* ") for cell in line.split(" | ")]


def number(cell: str) -> float:
    """Return the number that a cell begins with."""
    return float(cell.split()[0])


def _gap() -> str:
    rows = cells("tutorials/estimation.md")
    found = {row[1]: row[2] for row in rows if row[0] == "petal length, cm"}
    return f"{found['SparseDensity']}, {found['gaussian_kde']}"


def _shift() -> str:
    """Return how far local heads are ahead on samplings other than that of training."""
    rows = list(cells("networks.md", "networks"))
    first = next(i for i, row in enumerate(rows) if row[0] == "model" and row[-1] == "mean")
    ours, other = (
        next(row for row in rows[first:] if row[0] == name)[1:-1] for name in ("local", "MHA")
    )
    gains = [number(x) - number(y) for x, y in zip(ours, other, strict=True)]
    return f"{min(gains):+.0f} to {max(gains):+.0f} points, mean {np.mean(gains):+.0f}"


def _chains() -> str:
    rows = list(cells("moving-supports.md", "suite"))
    kinds = ("AutoSupportReparam", "Pyro")
    worst = [max(number(row[3]) for row in rows if row[1].startswith(kind)) for kind in kinds]
    return f"{worst[0]}, {worst[1]}"


def _error() -> str:
    rows = cells("benchmarks.md", "accuracy")
    worst = max(number(row[2]) for row in rows if row[1] == "float32")
    return f"{worst:.0e}".replace("e-0", "e-")


def _gain() -> str:
    rows = [row for row in cells("benchmarks.md", "expectations") if row[1] == "sparsefam"]
    gains = [round(number(row[3]), -1) for row in rows]
    return f"{min(gains):.0f} to {max(gains):.0f} times"


def _lengths() -> str:
    ratios = {row[0]: row[4] for row in cells("learn/attention.md", "attention")}
    return ", ".join(f"{ratios[length]}" for length in ("256", "1024", "16384")) + " times"


# For whom, what, its number, and the page, which names the command that measured it.
NUMBERS: tuple[tuple[str, str, Callable[[], str], str], ...] = (
    (
        "**Density estimation**: ",
        "share of the mass in the gap between petals: `SparseDensity`, `gaussian_kde`",
        _gap,
        "tutorials/estimation.md#results-on-held-out-measurements",
    ),
    (
        "**Attention**: ",
        "accuracy of an encoder with local heads less that with `nn.MultiheadAttention`, on "
        "samplings other than that of training, nine tasks",
        _shift,
        "networks.md",
    ),
    (
        "",
        "`nn.MultiheadAttention`'s time over the layer's at 256, 1024 and 16,384 positions",
        _lengths,
        "learn/attention.md#time-and-memory",
    ),
    (
        "**Pyro**: ",
        "worst error of a posterior mean in standard errors, thirteen models: "
        "`AutoSupportReparam`, plain NUTS",
        _chains,
        "moving-supports.md",
    ),
    (
        "**All**: ",
        "worst error of an expectation in float32, supports from 1e-4 to 1e4 widths",
        _error,
        "benchmarks.md#how-exact",
    ),
    (
        "",
        "faster than trapezoid quadrature on each support",
        _gain,
        "benchmarks.md#how-fast",
    ),
)


class Pair(NamedTuple):
    """A line of another library, and one of this package."""

    what: str
    package: str
    imports: str
    line: str
    ours: str


OWN = """
import numpy as np, torch
from torch.distributions import Uniform
import sparsefam as sf
from sparsefam.attention import ContinuousAttention
from sparsefam.estimators import SparseDensity
np.random.seed(0)
torch.manual_seed(0)
waits = np.random.exponential(size=(500, 1))
x, none = torch.randn(3, 1, 8), torch.ones(1, 3, dtype=torch.bool)
ends = torch.tensor([[0.0, 2.0], [1.0, 3.0]])
"""

NEIGHBORS = (
    Pair(
        "a draw from [10, 11]",
        "scipy",
        "from scipy import stats",
        "stats.truncate(stats.Normal(), 10, 11).sample()",
        "sf.Truncated(sf.Normal(0.0, 1.0), 10.0, 11.0).sample()",
    ),
    Pair(
        "the entropy of two intervals",
        "scipy",
        "from scipy import stats",
        "stats.Mixture([stats.Uniform(a=0, b=1), stats.Uniform(a=2, b=3)]).entropy()",
        "sf.Mixture(torch.zeros(2), Uniform(*ends)).entropy()",
    ),
    Pair(
        "the probability that a wait is negative",
        "scipy",
        "from scipy import stats",
        "stats.gaussian_kde(waits.T).integrate_box_1d(-9, 0)",
        "SparseDensity(bounds=(0, None)).fit(waits).density_.cdf(torch.zeros(1))",
    ),
    Pair(
        "the mean on [8, 9]",
        "numpyro",
        "import numpyro.distributions as dist",
        "dist.TruncatedNormal(0.0, 1.0, low=8.0, high=9.0).mean",
        "sf.Truncated(sf.Normal(0.0, 1.0), 8.0, 9.0).mean",
    ),
    Pair(
        "the mean on [-1, 1]",
        "torchrl",
        "from torchrl.modules import TruncatedNormal",
        "TruncatedNormal(torch.tensor([5.0]), torch.tensor([0.2]), low=-1.0, high=1.0).mean",
        "sf.Truncated(sf.Normal(5.0, 0.2), -1.0, 1.0).mean",
    ),
    Pair(
        "attention when all is padding",
        "torch",
        "from torch import nn",
        "nn.MultiheadAttention(8, 2)(x, x, x, key_padding_mask=none)[0]",
        "ContinuousAttention(8, 2)(x, x, x, key_padding_mask=none)[0]",
    ),
)


def answer(line: str, space: dict[str, Any]) -> str:
    """Return what an expression gives, to four digits; the first of many; or its error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = eval(line, space)
    except ValueError as error:
        return f"ValueError: {error}".partition(",")[0]
    detached = value.detach() if hasattr(value, "detach") else value
    return f"{np.asarray(detached).flatten()[0]:.4g}"


def both(pair: Pair) -> tuple[str, str]:
    """Return the answers of the other library and of this package.

    Raises:
        ImportError: The other library is not installed.
    """
    space: dict[str, Any] = {}
    exec(OWN, space)
    exec(pair.imports, space)
    Distribution.set_default_validate_args(True)  # some libraries switch it off for all
    return answer(pair.line, space), answer(pair.ours, space)


def measured() -> Table:
    """Return the table of what other commands measured."""
    rows = [[f"{who}[{what}](docs/{page})", value()] for who, what, value, page in NUMBERS]
    return Table("Results:", ["measured", "result"], rows)


def row(pair: Pair) -> list[str]:
    """Return the row of a pair: what is asked and the line, its answer, our line, its answer."""
    theirs, own = both(pair)
    name = f"{pair.package} {version(pair.package).partition('+')[0]}"
    return [f"{name}, {pair.what}: `{pair.line}`", f"**{theirs}**", f"`{pair.ours}`", own]


def neighbors() -> Table:
    """Return the table of lines; a library that is not installed is reported as a failure."""
    rows, failures = [], []
    for pair in NEIGHBORS:
        try:
            rows.append(row(pair))
        except ImportError:
            failures.append(f"{pair.package} is not installed: pip install --group neighbors")
    title = "Answers to four digits; of several numbers, the first."
    return Table(title, ["asked", "answer", "with sparsefam", "answer"], rows, failures)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    options = parser(__doc__, write=True).parse_args(arguments)
    lines = neighbors()
    sections = {"numbers": lambda: [measured()], "neighbors": lambda: [lines]}
    if options.write:
        gallery.main(["start", "start-narrow", "--out", str(DOCS / "assets")])
    return run("readme", sections, options.write and not lines.failures, "../README.md")


if __name__ == "__main__":
    sys.exit(main())
