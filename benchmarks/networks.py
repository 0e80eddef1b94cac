"""Does attention help? Classifiers of irregular series: kinds of attention, a CNN, a GRU.

Attention is used in two ways: self-attention in an encoder of two blocks, and pooling by learned
queries. All networks see the same frames for the same seed and take the same number of steps.

Every run that ends is appended to `--results`, and runs that are there are not repeated, so the
command may be stopped and started again. Use another file when the package has changed. Two
minutes: `--only GunPoint --seeds 1`. `--write` puts the tables into docs/networks.md.
"""

import hashlib
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from scipy.stats import ttest_1samp
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sparsefam.attention import ContinuousAttention, KernelScore, QuadraticScore
from sparsefam.bases import GaussianRBF

from .classifiers import CHANNELS, GRID, QUERIES, Convolutions, Encoder, Pooling, Recurrent
from .harness import ROOT, Table, each_in_processes, parser, run
from .irregular import draw

# Of every continuous attention; the options of a score are in SCORES.
BASIS: dict[str, Any] = {"n": 32, "widths": 0.05}
LAYER: dict[str, Any] = {}
SCORES: dict[str, dict[str, Any]] = {
    "quadratic, α = 2": {"score": "quadratic", "alpha": 2.0},
    "quadratic, α = 1": {"score": "quadratic", "alpha": 1.0},
    "moments": {"score": "moments", "alpha": 2.0},
    "kernel": {"score": "kernel", "alpha": 2.0, "inducing_points": 32},
    "mixture": {"score": "mixture", "alpha": 2.0, "components": 4},
    "content": {"score": "content", "alpha": 2.0},
}
FIXED = "quadratic, α = 2"  # reported on every data set beside the best score
NONE, MHA, CNN, GRU = "no attention", "MHA", "CNN", "GRU"
RIVALS = NONE, MHA, CNN, GRU
MODELS = (*RIVALS, *SCORES)
HEADS = 4
RATE, DECAY, CLIP = 3e-3, 1e-2, 1.0
TESTED, BATCH = 500, 50  # series of a test set at most, and at a time
SELF, POOL = "self-attention", "pooling"


class Setting(NamedTuple):
    """A task: frames of a data set, what attention is used for, and how long networks train."""

    use: str
    data: str
    sampling: str
    steps: int
    batch: int

    @property
    def name(self) -> str:
        return f"{self.data}, {self.sampling}"


SETTINGS = (
    Setting(SELF, "BasicMotions", "short", 150, 16),
    Setting(SELF, "JapaneseVowels", "half", 150, 16),
    Setting(SELF, "ItalyPowerDemand", "half", 150, 16),
    Setting(SELF, "GunPoint", "gaps", 150, 16),
    Setting(SELF, "bursts", "as generated", 300, 16),
    Setting(POOL, "GunPoint", "half", 300, 32),
    Setting(POOL, "ItalyPowerDemand", "half", 300, 32),
    Setting(POOL, "ArrowHead", "half", 300, 32),
    Setting(POOL, "OSULeaf", "half", 300, 32),
    Setting(POOL, "JapaneseVowels", "half", 300, 32),
    Setting(POOL, "ItalyPowerDemand", "regular", 300, 32),
    Setting(POOL, "ArrowHead", "bursts", 300, 32),
    Setting(POOL, "where", "as generated", 300, 32),
)


def attention(model: str) -> nn.Module:
    """Return an attention layer by its name in MODELS."""
    if model == MHA:
        return nn.MultiheadAttention(CHANNELS, HEADS, batch_first=True)
    options = {"batch_first": True, **LAYER, **SCORES[model]}
    if "inducing_points" in options:
        options["score"] = KernelScore(options.pop("inducing_points"))
    if "components" in options:
        options["score"] = QuadraticScore(options.pop("components"))
    return ContinuousAttention(CHANNELS, HEADS, GaussianRBF.grid(**BASIS), **options)


def network(model: str, use: str, channels: int, classes: int) -> nn.Module:
    """Return a classifier by its name in MODELS."""
    if model in (CNN, GRU):
        return (Convolutions if model == CNN else Recurrent)(channels, classes)
    layer = None if model == NONE else partial(attention, model)
    return (Encoder if use == SELF else Pooling)(layer, channels, classes)


# Runs and their results.


class Run(NamedTuple):
    """One network to train."""

    setting: Setting
    model: str
    seed: int

    @property
    def key(self) -> str:
        """All that decides the outcome, but for the code."""
        options = {"basis": BASIS, **LAYER, **SCORES[self.model]} if self.model in SCORES else {}
        training = [CHANNELS, HEADS, QUERIES, GRID, RATE, DECAY, CLIP, TESTED]
        return json.dumps([*self.setting, self.model, self.seed, training, options])


def execute(run: Run) -> dict[str, Any]:
    """Train a network and test it once, at the end."""
    torch.set_num_threads(1)
    start, setting = time.process_time(), run.setting
    train, test = draw(setting.data, setting.sampling, run.seed, TESTED)
    torch.manual_seed(run.seed)
    model = network(run.model, setting.use, train[1].shape[-1], int(train[3].max()) + 1)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, setting.steps)
    batches: list[Tensor] = []
    for _ in range(setting.steps):
        batches = batches or list(torch.randperm(len(train[3])).split(setting.batch))
        *inputs, labels = (x[batches[-1]] for x in train)
        batches.pop()
        optimizer.zero_grad()
        cross_entropy(model(*inputs), labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        parts = zip(*(x.split(BATCH) for x in test), strict=True)
        right = torch.cat([model(*inputs).argmax(-1) == labels for *inputs, labels in parts])
    return {
        "key": run.key,
        "accuracy": right.double().mean().item(),
        "parameters": sum(x.numel() for x in model.parameters()),
        "seconds": time.process_time() - start,
        "package": package(),
    }


@lru_cache
def package() -> str:
    """Return what identifies the code of the package."""
    files = sorted((ROOT / "sparsefam").rglob("*.py"))
    return hashlib.sha256(b"".join(x.read_bytes() for x in files)).hexdigest()[:12]


Results = dict[str, dict[str, Any]]


def load(path: Path) -> Results:
    """Return the results of a file by the key of their run."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    results = {x["key"]: x for x in map(json.loads, lines)}
    others = sum(x["package"] != package() for x in results.values())
    if others:
        print(f"{others} of {len(results)} results in {path} are by other code of the package")
    return results


def measure(settings: Sequence[Setting], seeds: int, jobs: int, path: Path) -> None:
    """Append to the file the results of the runs that it lacks, seed by seed."""
    known = load(path)
    runs = [
        Run(*x) for x in ((s, m, seed) for seed, s, m in product(range(seeds), settings, MODELS))
    ]
    missing = [x for x in runs if x.key not in known]
    print(f"{len(missing)} of {len(runs)} runs to do, results in {path}", flush=True)
    with path.open("a", encoding="utf-8") as file:
        for result in each_in_processes(execute, missing, jobs):
            print(json.dumps(result), file=file, flush=True)


# Tables.


class Answers:
    """Results by setting, model and seed."""

    def __init__(self, results: Results, settings: Sequence[Setting], seeds: int) -> None:
        self.settings, self._results, self._seeds = settings, results, seeds

    def of(self, setting: Setting, model: str) -> dict[int, dict[str, Any]]:
        """Return the results by seed."""
        keys = {seed: Run(setting, model, seed).key for seed in range(self._seeds)}
        return {seed: self._results[key] for seed, key in keys.items() if key in self._results}

    def accuracies(self, setting: Setting, model: str) -> list[float]:
        return [100 * x["accuracy"] for x in self.of(setting, model).values()]

    def best(self, setting: Setting) -> str:
        """Return the score with the highest mean on the test set."""
        return max(SCORES, key=lambda x: statistics.mean(self.accuracies(setting, x) or [0.0]))

    def less(self, setting: Setting, model: str, rival: str) -> tuple[float, float]:
        """Return the mean difference, and p of the paired t-test over seeds."""
        ours, other = self.of(setting, model), self.of(setting, rival)
        gaps = [100 * (x["accuracy"] - other[s]["accuracy"]) for s, x in ours.items() if s in other]
        if len(set(gaps)) < 2:
            return (gaps or [math.nan])[0], 1.0
        return statistics.mean(gaps), float(ttest_1samp(gaps, 0.0).pvalue)


def _plus_minus(x: Sequence[float]) -> str:
    if len(x) < 2:
        return f"{x[0]:.1f}" if x else "-"
    return f"{statistics.mean(x):.1f} ± {statistics.stdev(x) / len(x) ** 0.5:.1f}"


def _gap(answers: Answers, setting: Setting, model: str, rival: str, tries: int = 1) -> str:
    gap, p = answers.less(setting, model, rival)
    return "-" if math.isnan(gap) else f"{gap:+.1f} ({min(1.0, tries * p):.2g})"


def accuracy_table(answers: Answers, use: str) -> Table:
    """Return the mean accuracies with their standard errors."""
    rows = []
    for x in (x for x in answers.settings if x.use == use):
        cells = [_plus_minus(answers.accuracies(x, model)) for model in MODELS]
        rows.append([x.name, f"{x.steps} x {x.batch}", *cells])
    title = f"{use.capitalize()}: accuracy on the test set in %, mean and standard error of seeds."
    return Table(title, ["data, frames", "steps x batch", *MODELS], rows)


def difference_table(answers: Answers, use: str) -> Table:
    """Return the differences of one fixed score, and of the best score, from the rivals."""
    rows = []
    for x in (x for x in answers.settings if x.use == use):
        for label, model, tries in (
            (FIXED, FIXED, 1),
            (f"best: {answers.best(x)}", answers.best(x), len(SCORES)),
        ):
            cells = [_gap(answers, x, model, rival, tries) for rival in RIVALS]
            rows.append([x.name, label, *cells])
    title = (
        f"{use.capitalize()}: accuracy less that of the rivals in percentage points, and p of the "
        "paired t-test over seeds. The best score is chosen by its mean on the test set, and its p "
        f"is multiplied by {len(SCORES)}, the number of scores."
    )
    return Table(title, ["data, frames", "score", *(f"less {x}" for x in RIVALS)], rows)


def cost_table(answers: Answers) -> Table:
    """Return numbers of parameters and seconds."""
    rows, total = [], 0.0
    for model in MODELS:
        cells = []
        for use in (SELF, POOL):
            found = [list(answers.of(x, model).values()) for x in answers.settings if x.use == use]
            counts = [x["parameters"] for runs in found for x in runs]
            seconds = [statistics.mean(x["seconds"] for x in runs) for runs in found if runs]
            cells.append(f"{min(counts)} to {max(counts)}" if counts else "-")
            cells.append(f"{statistics.mean(seconds):.1f}" if seconds else "-")
            total += sum(seconds)
        rows.append([model, *cells])
    title = (
        "Parameters, and processor seconds of a run with its test, mean over data sets. "
        f"Ten seeds take {10 * total / 3600:.2f} core-hours."
    )
    header = [f"{use}, {what}" for use in (SELF, POOL) for what in ("parameters", "s")]
    return Table(title, ["model", *header], rows)


def summary(answers: Answers) -> Table:
    """Return the answers in short; differences are in percentage points."""
    rows = []
    encoders = [x for x in answers.settings if x.use == SELF]
    for x in (x for x in encoders if x.name == "BasicMotions, short"):
        rows.append(
            [f"self-attention, {x.name}: {FIXED}", _plus_minus(answers.accuracies(x, FIXED))]
        )
    losses = [
        (answers.less(x, model, NONE)[0], f"{model}, on {x.name}")
        for x, model in product(encoders, (FIXED, "mixture", "content"))
    ]
    losses = [x for x in losses if not math.isnan(x[0])]
    if losses:
        name = f"self-attention: worst of {FIXED}, mixture and content, less no attention"
        rows.append([name, f"{min(losses)[0]:+.1f} ({min(losses)[1]})"])
    for x in (x for x in encoders if x.data == "bursts"):
        gaps = [_gap(answers, x, model, MHA) for model in (FIXED, "content")]
        rows.append([f"self-attention, bursts: {FIXED}; content; less {MHA}", "; ".join(gaps)])
    real = [x for x in answers.settings if x.use == POOL and x.sampling == "half"]
    for rival, which in product((MHA, CNN) if real else (), ("the best score", FIXED)):
        model, tries = (FIXED, 1) if which == FIXED else (None, len(SCORES))
        gaps = [answers.less(x, model or answers.best(x), rival) for x in real]
        ahead = [sum(gap > 0 and k * p < 0.05 for gap, p in gaps) for k in (0, 1, tries)]
        corrected = f", with p < .05 / {tries} on {ahead[2]}" if tries > 1 else ""
        name = f"pooling half of the frames of {len(real)} real sets: {which} ahead of {rival}"
        rows.append([name, f"on {ahead[0]}, with p < .05 on {ahead[1]}{corrected}"])
    return Table("In short", ["question", "answer"], rows)


def tables(answers: Answers) -> list[Table]:
    """Return all tables that have rows."""
    found = [
        make(answers, use) for use in (SELF, POOL) for make in (accuracy_table, difference_table)
    ]
    return [x for x in (*found, cost_table(answers), summary(answers)) if x.rows]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    options = parser(__doc__, write=True, only=True)
    options.add_argument("--seeds", type=int, default=10, help="runs of each model and setting")
    options.add_argument("--jobs", type=int, default=2, help="processes of one thread each")
    default = Path(tempfile.gettempdir()) / "sparsefam-networks.jsonl"
    options.add_argument("--results", type=Path, default=default, metavar="FILE")
    options.add_argument("--table", action="store_true", help="train nothing, print what is known")
    chosen = options.parse_args(arguments)
    settings = [x for x in SETTINGS if any(text in f"{x.use}: {x.name}" for text in chosen.only)]
    if not chosen.table:
        measure(settings, chosen.seeds, chosen.jobs, chosen.results)
    answers = Answers(load(chosen.results), settings, chosen.seeds)
    return run("networks", {"networks": lambda: tables(answers)}, chosen.write, "networks.md")


if __name__ == "__main__":
    sys.exit(main())
