"""Time the first calls of an installation: `python -m benchmarks.first_call`.

Clones the repository at HEAD into a temporary folder, so that nothing is compiled, and times each
call in a process of its own, after torch, Pyro and sparsefam are imported, without bytecode and
with an empty cache of torch. The exit code is 1 if a call exceeds its limit twice, by the
clock and in processor time, so that other work on the machine does not count.
"""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .harness import ROOT, Table, parser, run

README = ROOT / "README.md"
LIMIT, LIMIT_2D_FIT = 1.0, 2.0

_SETUP = """
import torch, pyro, scipy
import sparsefam as sf
from sparsefam.attention import RidgeRegression
from sparsefam.bases import BSpline, Fourier, GaussianRBF, Indicator, Polynomial, Product, Stack
knots = [0.0, 0.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
def tensor(*numbers):
    return torch.tensor(numbers, requires_grad=True)
def rbf(x, y):
    return torch.exp(-((x - y.mT) / 0.2).square() / 2) if x.shape[-1] == 1 else torch.exp(
        -(x.unsqueeze(1) - y).square().sum(-1) / 0.08)
def density(x):
    return x**4 / 4 + x**2 / 3
loc, scale = tensor(0.3, 0.7), tensor(0.2, 0.4)
center, tril = tensor(0.4, 0.5), torch.tensor([[0.3, 0.0], [0.1, 0.2]])
weights, points = tensor(1.0, -2.0, 3.0, 0.5), torch.linspace(0, 1, 4)
corners = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
uniform = torch.distributions.Uniform(torch.zeros(()), torch.ones(()))
square = torch.distributions.Independent(
    torch.distributions.Uniform(torch.zeros(2), torch.ones(2)), 1)
two = torch.distributions.Categorical(torch.ones(2))
draw = torch.randn(300, 2, generator=torch.Generator().manual_seed(0)).double().numpy()
"""
_BASES = {
    "GaussianRBF": "GaussianRBF.grid(16, 0.1)",
    "Fourier": "Fourier(torch.arange(4.0))",
    "Polynomial": "Polynomial(3)",
    "BSpline": "BSpline(knots, 2)",
    "Indicator": "Indicator(torch.linspace(0, 1, 9))",
    "Stack": "Stack(GaussianRBF.grid(16, 0.1), Polynomial(1))",
}
_BASES_2D = {
    "GaussianRBF": "GaussianRBF.grid(16, 0.2, ndim=2)",
    "Fourier": "Fourier(torch.eye(2))",
    "Polynomial": "Polynomial(2, ndim=2)",
    "Product": "Product(BSpline(knots, 2), Polynomial(1))",
}
_FAMILIES = {
    "TruncatedParabola": "sf.TruncatedParabola(loc, scale)",
    "BetaGaussian, alpha 1.5": "sf.BetaGaussian(loc, scale, 1.5)",
    "BetaGaussian, alpha 1.7": "sf.BetaGaussian(loc, scale, 1.7)",
    "Triangular": "sf.Triangular(loc, scale)",
    "BetaLaplace, alpha 1.3": "sf.BetaLaplace(loc, scale, 1.3)",
    "LocationScale": "sf.LocationScale(loc, scale, density)",
    "Normal": "sf.Normal(loc, scale)",
    "Laplace": "sf.Laplace(loc, scale)",
    "KernelExp": "sf.KernelExp(weights, points, rbf, base=uniform)",
    "KernelDeformedExp": "sf.KernelDeformedExp(weights, points, rbf, base=uniform)",
    "Truncated": "sf.Truncated(torch.distributions.Gamma(scale, scale), 0.5, 3.0)",
    "Mixture": "sf.Mixture(two, sf.TruncatedParabola(loc, scale))",
}
_FAMILIES_2D = {
    "TruncatedParaboloid": "sf.TruncatedParaboloid(center, tril)",
    "MultivariateBetaGaussian": "sf.MultivariateBetaGaussian(center, tril, 1.5)",
    "MultivariateNormal": "sf.MultivariateNormal(center, scale_tril=tril)",
    "KernelDeformedExp, 2-D": "sf.KernelDeformedExp(weights, corners, rbf, base=square)",
}
_LAYER = """
layer = sf.attention.ContinuousAttention(
    32, 4, RidgeRegression(GaussianRBF.grid(32, 0.05)), {alpha}, {score!r}, batch_first=True)
x = torch.randn(4, 100, 32, requires_grad=True)
layer(x, x, x, positions=torch.rand(4, 100))[0].sum().backward()
"""
_LARGE_LAYER = """
regression = RidgeRegression(GaussianRBF.grid(128, 0.03))
layer = sf.attention.ContinuousAttention(256, 8, regression, batch_first=True)
x = torch.randn(1, 8192, 256, requires_grad=True)
layer(x, x, x, positions=torch.rand(1, 8192))[0].sum().backward()
"""
_LARGE_EXPECT = """
p = sf.TruncatedParabola(torch.rand(4096, requires_grad=True), torch.full((4096,), 0.1))
p.expect(GaussianRBF.grid(128, 0.02)).sum().backward()
"""


def _calls() -> dict[str, tuple[str, float]]:
    """Return the code and its limit in seconds by name."""
    _, density, attention, pyro = re.findall(
        r"```python\n(.*?)```", README.read_text("utf-8"), re.S
    )
    calls: dict[str, tuple[str, float]] = {
        "README, a chain of 400 draws": (pyro, math.inf),
        "README, attention": (attention, LIMIT),
        "README, a density with coverage": (density, LIMIT),
    }
    for families, bases in ((_FAMILIES, _BASES), (_FAMILIES_2D, _BASES_2D)):
        for family, p in families.items():
            for basis, psi in bases.items():
                calls[f"{family}: expect {basis}"] = f"({p}).expect({psi}).sum().backward()", LIMIT
    for family in ("KernelExp", "KernelDeformedExp"):
        for query in ("support", "sample((5,))", "entropy()", "icdf(torch.tensor(0.5))"):
            calls[f"{family}: {query.split('(')[0]}"] = f"({_FAMILIES[family]}).{query}", LIMIT
    for score in ("quadratic", "moments", "mixture", "kernel", "content"):
        for alpha in (2.0, 1.5) if score != "moments" else (2.0,):
            code = _LAYER.format(alpha=alpha, score=score)
            calls[f"layer, score {score}, alpha {alpha:g}"] = code, LIMIT
    calls["Truncated: sample"] = f"({_FAMILIES['Truncated']}).sample((1000,))", LIMIT
    score = "sf.scores.BasisExpansion(weights, GaussianRBF.grid(4, 0.2))"
    calls["rpm of a BasisExpansion"] = f"sf.rpm({score}, 1.5).support", LIMIT
    fit = "sf.estimators.SparseDensity().fit(draw[:, :{}])"
    calls["SparseDensity: fit, 300 numbers"] = fit.format(1), LIMIT
    calls["SparseDensity: fit, 300 points in 2-D"] = fit.format(2), LIMIT_2D_FIT
    calls["large expect, 1-D 4096 x 128"] = _LARGE_EXPECT, math.inf
    calls["large layer, L = 8k"] = _LARGE_LAYER, math.inf
    return calls


CALLS = _calls()


def first_seconds(folder: Path, code: str) -> tuple[float, float]:
    """Return wall and processor seconds of some code in a fresh process without any cache."""
    for cache in folder.glob("**/__pycache__"):
        shutil.rmtree(cache)
    script = (
        f"import sys; sys.path[0] = {str(folder)!r}\n{_SETUP}\nimport contextlib, io, time\n"
        f"assert sf.__file__.startswith({str(folder)!r}), sf.__file__\n"
        f"if 'estimators' in {code!r}: sf.estimators\n"  # imports scikit-learn
        f"if 'savefig' in {code!r}: import matplotlib.pyplot\n"
        f"code = compile({code!r}, 'first call', 'exec')\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    start = time.perf_counter(), time.process_time()\n"
        "    exec(code)\n"
        "    end = time.perf_counter(), time.process_time()\n"
        "print([b - a for a, b in zip(start, end)])"
    )
    with tempfile.TemporaryDirectory() as cache:
        names = ("NUMBA_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME")
        environment = {**os.environ, **dict.fromkeys(names, cache)}
        command = [sys.executable, "-c", script]
        printed = subprocess.run(
            command, env=environment, cwd=cache, stdout=subprocess.PIPE, text=True, check=True
        ).stdout
    wall, processor = json.loads(printed.splitlines()[-1])
    return wall, processor


def table(only: Sequence[str]) -> Table:
    """Time the calls whose name contains one of some texts; show the slowest of each kind."""
    slowest: dict[str, list[str]] = {}
    failures = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "clone"
        clone = ["git", "clone", "--quiet", "--no-local", "--depth", "1", str(ROOT), str(folder)]
        subprocess.run(clone, check=True)
        for name, (code, limit) in CALLS.items():
            if not any(text in name for text in only):
                continue
            result = first_seconds(folder, code)
            if min(result) > limit:
                result = min(result, first_seconds(folder, code), key=min)
            failures += [name] * (min(result) > limit)
            row = [name, *(f"{x:.2f}" for x in result), "" if limit == math.inf else f"{limit:g}"]
            print("  ".join(row), flush=True)
            kind = name.split(":")[0]
            slowest[kind] = max(slowest.get(kind, row), row, key=lambda row: float(row[1]))
    title = "First calls without any cache: the slowest of each kind."
    rows = sorted(slowest.values(), key=lambda row: float(row[1]))
    return Table(title, ["first call", "s", "s of processor", "limit"], rows, failures)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if a limit is exceeded."""
    chosen = parser(__doc__, write=True, only=True).parse_args(arguments)
    return run("first_call", {"first calls": lambda: [table(chosen.only)]}, chosen.write)


if __name__ == "__main__":
    sys.exit(main())
