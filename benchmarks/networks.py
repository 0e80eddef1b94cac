"""Does attention help? Classifiers of irregular series, trained on one sampling, tested on five.

All networks see the same frames for the same seed, take the same number of steps, and have the same
readout. First `--select` chooses rate and size of each model on parts of training sets and writes
networks_settings.json; then runs test networks with these settings.

Every run that ends is appended to `--results`, networks_results.jsonl if left out, and runs that
are there are not repeated: the command may be stopped and started again, and `--table --write` puts
what is known into docs/networks.md. Use another file when the package has changed. Two minutes:
`--only GunPoint --seeds 1 --results FILE`.

PLAsTiCC needs a wheel that is read, not installed: see `--wheel`. So do the held-out sets, Trace
and watch, which run only if `--only` names them, and have tables of their own.
"""

import hashlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from . import held_out, irregular, light_curves, wheels
from .classifiers import (
    PLACES,
    REACHES,
    Continuous,
    DeformableScore,
    Discrete,
    DiscreteTwin,
    Encoder,
    LinearRecurrentUnit,
    LinearTwin,
    LocalScore,
    Relative,
    gaussians,
    local_and_places,
)
from .grids import (
    COARSE,
    FINE,
    Convolutions,
    DecayingGRU,
    RandomKernels,
    SetConvolutions,
    TimeAttention,
)
from .harness import ROOT, each_in_processes, parser, run
from .irregular import AS_TRAINED, HELD_OUT, TASKS, Part, take

# From channels, classes and a size, 0 or 1, to a network.
Make = Callable[[int, int, int], nn.Module]


def encoder(mixer: Callable[[int], nn.Module]) -> Make:
    """Return what makes an encoder, from what makes its mixing layer of a size."""
    return lambda channels, classes, size: Encoder(partial(mixer, size), channels, classes)


def deformable(size: int) -> nn.Module:
    return Continuous(DeformableScore(reach=REACHES[size]))


NONE, MHA, LOCAL, BOTH = "no attention", "MHA", "local", "local + places"
DISCRETE, GAPS, RANDOM, CONTENT = "discrete twin", "CNN with gaps", "random kernels", "content"
KERNELS, CYCLES, DROPOUTS, COUNTS = (5, 9), (16.0, 64.0), (0.1, 0.3), (500, 2000)
MODELS: dict[str, Make] = {
    LOCAL: encoder(lambda size: Continuous(LocalScore(reach=REACHES[size]))),
    BOTH: encoder(lambda size: Continuous(local_and_places(REACHES[size]))),
    "local, deformable": encoder(deformable),
    "quadratic": encoder(lambda size: Continuous("quadratic", gaussians(size), PLACES)),
    CONTENT: encoder(lambda size: Continuous("content", gaussians(size), 4)),
    NONE: lambda channels, classes, size: Encoder(None, channels, classes, (2, 4)[size]),
    MHA: encoder(lambda size: Discrete((2, 4)[size])),
    "transformer": encoder(lambda size: Relative(REACHES[size])),
    DISCRETE: encoder(lambda size: DiscreteTwin(REACHES[size])),
    "linear twin": encoder(lambda size: LinearTwin(REACHES[size])),
    "CNN 128": lambda c, k, size: Convolutions(c, k, KERNELS[size]),
    "CNN 512": lambda c, k, size: Convolutions(c, k, KERNELS[size], FINE),
    GAPS: lambda c, k, size: Convolutions(c, k, KERNELS[size], gaps=True),
    "SetConv + CNN": lambda c, k, size: SetConvolutions(c, k, KERNELS[size]),
    "mTAND": lambda c, k, size: TimeAttention(c, k, CYCLES[size]),
    "GRU-D": lambda c, k, size: DecayingGRU(c, k, DROPOUTS[size]),
    "LRU": encoder(lambda size: LinearRecurrentUnit(CYCLES[size] / 2)),
}
NAMES = (*MODELS, RANDOM, light_curves.LOCAL_BY_BAND)
OURS = LOCAL, BOTH, "local, deformable", "quadratic", CONTENT
# Slow: fewer seeds, and the settings of another model.
SEEDS = {CONTENT: 3}
SETTINGS_OF = {CONTENT: "quadratic", light_curves.LOCAL_BY_BAND: LOCAL}

DECAY, CLIP, BATCH = 1e-2, 1.0, 100
RATES, SIZES, LABELS = (3e-3, 1e-2), (0, 1), ("small", "large")
SELECTION = "bursts, noise 0.5", "OSULeaf", "ItalyPowerDemand"
SETTINGS, RESULTS = (
    Path(__file__).with_name(f"networks_{x}") for x in ("settings.json", "results.jsonl")
)
STEPS = {light_curves.NAME: (600, 32)}
FEW_STEPS = 300, 16


class Run(NamedTuple):
    """One network to train, and to test or validate."""

    task: str
    model: str
    seed: int
    rate: float
    size: int
    validates: bool = False
    wheel: str = ""

    @property
    def key(self) -> str:
        """All that decides the outcome, but for the code."""
        steps = STEPS.get(self.task, FEW_STEPS)
        return json.dumps([*self[:-1], *steps, DECAY, CLIP, irregular.TESTED])


def execute(run: Run) -> dict[str, Any]:
    """Train a network and test it once, at the end."""
    torch.set_num_threads(1)
    start = time.process_time()
    if run.task == light_curves.NAME:
        train, tests = light_curves.draw(run.wheel, run.seed)
    elif run.task in HELD_OUT:
        train, tests = held_out.draw(run.task, run.seed, run.wheel)
    else:
        train, tests = (irregular.draw_validation if run.validates else irregular.draw)(
            run.task, run.seed
        )
    answers, parameters = (by_ridge if run.model == RANDOM else by_steps)(run, train, tests)
    return {
        "key": run.key,
        "scores": {name: scores(answers[name], part[3]) for name, part in tests.items()},
        "parameters": parameters,
        "seconds": time.process_time() - start,
        "package": package(),
    }


def by_steps(run: Run, train: Part, tests: dict[str, Part]) -> tuple[dict[str, Tensor], int]:
    """Return the logits of the tests, and the number of parameters."""
    torch.manual_seed(run.seed)
    channels, classes = train[1].shape[-1], int(train[3].max()) + 1
    if run.task == light_curves.NAME and run.model in light_curves.OWN:
        model = light_curves.OWN[run.model](classes, run.size)
    else:
        model = MODELS[run.model](channels, classes, run.size)
    fit(model, train, run.rate, *STEPS.get(run.task, FEW_STEPS))
    count = sum(x.numel() for x in model.parameters() if x.requires_grad)
    return {name: logits(model, part) for name, part in tests.items()}, count


def by_ridge(run: Run, train: Part, tests: dict[str, Part]) -> tuple[dict[str, Tensor], int]:
    """Return the classes as logits 0 and -inf; the rate decides about the grid."""
    size = (COARSE, FINE)[RATES.index(run.rate)]
    model, classes = RandomKernels(COUNTS[run.size], size, run.seed), int(train[3].max()) + 1
    model.fit(train)
    found = {name: model.predict(part) for name, part in tests.items()}
    return {k: nn.functional.one_hot(x, classes).double().log() for k, x in found.items()}, 0


def fit(model: nn.Module, train: Part, rate: float, steps: int, batch: int) -> None:
    """Train with AdamW and a rate that decreases to 0."""
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    batches: list[Tensor] = []
    for _ in range(steps):
        batches = batches or list(torch.randperm(len(train[3])).split(batch))
        *inputs, labels = take(train, batches.pop())
        optimizer.zero_grad()
        cross_entropy(model(*inputs), labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
    model.eval()


@torch.no_grad()
def logits(model: nn.Module, part: Part) -> Tensor:
    """Return the logits of all series, those of similar length at a time."""
    order = (~part[2]).sum(-1).argsort()
    found = torch.cat([model(*take(part, i)[:3]) for i in order.split(BATCH)])
    return found[order.argsort()]


def scores(answer: Tensor, labels: Tensor) -> dict[str, float]:
    """Return accuracy, macro F1 and log loss of logits."""
    classes, found = answer.shape[-1], answer.argmax(-1)
    counts = torch.zeros(classes, classes, dtype=torch.double)
    counts.index_put_((labels, found), torch.ones(len(labels)).double(), accumulate=True)
    f1 = 2 * counts.diagonal() / (counts.sum(0) + counts.sum(1)).clamp(min=1)
    return {
        "accuracy": (found == labels).double().mean().item(),
        "F1": f1[counts.sum(1) > 0].mean().item(),
        "log loss": cross_entropy(answer.double(), labels).item(),
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


def measure(runs: Sequence[Run], jobs: int, path: Path) -> None:
    """Append to the file the results of the runs that it lacks."""
    known = load(path)
    missing = [x for x in runs if x.key not in known]
    print(f"{len(missing)} of {len(runs)} runs to do, results in {path}", flush=True)
    with path.open("a", encoding="utf-8") as file:
        for result in each_in_processes(execute, missing, jobs):
            print(json.dumps(result), file=file, flush=True)


# Settings.


def candidates(models: Sequence[str], seeds: int) -> list[Run]:
    """Return the runs that decide about settings."""
    return [
        Run(task, model, seed, rate, size, True)
        for seed, task, model, rate, size in product(range(seeds), SELECTION, models, RATES, SIZES)
        if model not in SETTINGS_OF
    ]


def choose(results: Results, models: Sequence[str], seeds: int) -> dict[str, dict[str, Any]]:
    """Return for each model the rate and size with the best mean accuracy in validation."""
    found: dict[str, dict[tuple[float, int], list[float]]] = {}
    for x in candidates(models, seeds):
        accuracy = results[x.key]["scores"][AS_TRAINED]["accuracy"]
        found.setdefault(x.model, {}).setdefault((x.rate, x.size), []).append(accuracy)
    chosen = {}
    for model, accuracies in found.items():
        means = {k: round(statistics.mean(x), 4) for k, x in accuracies.items()}
        rate, size = max(means, key=lambda k: means[k])
        validation = {f"{k[0]:g}, {LABELS[k[1]]}": x for k, x in means.items()}
        chosen[model] = {"rate": rate, "size": size, "validation": validation}
    return chosen


def settings(model: str) -> tuple[float, int]:
    """Return the chosen rate and size.

    Raises:
        FileNotFoundError: None were chosen.
    """
    if not SETTINGS.exists():
        raise FileNotFoundError(f"{SETTINGS} is missing: python -m benchmarks.networks --select")
    found = json.loads(SETTINGS.read_text(encoding="utf-8"))[SETTINGS_OF.get(model, model)]
    return found["rate"], found["size"]


def select(models: Sequence[str], seeds: int, jobs: int, path: Path) -> None:
    """Choose settings and write them, beside those of other models, into their file."""
    measure(candidates(models, seeds), jobs, path)
    old = json.loads(SETTINGS.read_text(encoding="utf-8")) if SETTINGS.exists() else {}
    new = old | choose(load(path), models, seeds)
    SETTINGS.write_text(json.dumps(new, indent=1) + "\n", encoding="utf-8")
    for model, x in new.items():
        print(f"{model}: rate {x['rate']}, {LABELS[x['size']]}")


def planned(tasks: Sequence[str], models: Sequence[str], seeds: int, wheel: str) -> list[Run]:
    """Return all runs, seed by seed, so that those of an unfinished command are balanced."""
    runs = [
        Run(task, model, seed, *settings(model), False, wheel)
        for seed, task, model in product(range(seeds), tasks, models)
        if seed < SEEDS.get(model, seeds)
    ]
    return [x for x in runs if is_possible(x)]


def is_possible(run: Run) -> bool:
    """Return whether there is such a run: light curves have fewer splits, and other models."""
    if run.task == light_curves.NAME:
        return run.model in light_curves.MODELS and run.seed < light_curves.FOLDS
    return run.model != light_curves.LOCAL_BY_BAND


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    from .network_tables import tables

    options = parser(__doc__, write=True, only=True)
    options.add_argument("--models", nargs="+", choices=NAMES, default=NAMES, metavar="MODEL")
    options.add_argument("--seeds", type=int, help="runs of each; 10, and 1 with --select")
    options.add_argument("--jobs", type=int, default=2, help="processes of one thread each")
    options.add_argument("--results", type=Path, default=RESULTS, metavar="FILE")
    options.add_argument("--select", action="store_true", help="choose the settings, test nothing")
    options.add_argument("--table", action="store_true", help="train nothing, print what is known")
    options.add_argument("--wheel", default="", metavar="PATH", help=wheels.HELP)
    chosen = options.parse_args(arguments)
    if chosen.select:
        select(chosen.models, chosen.seeds or 1, chosen.jobs, chosen.results)
        return 0
    names = (*TASKS, light_curves.NAME) if chosen.wheel or chosen.table else TASKS
    tasks = [x for x in names if any(text in x for text in chosen.only)]
    every = chosen.table and chosen.only == [""]
    tasks += [x for x in HELD_OUT if every or x in chosen.only]
    runs = planned(tasks, chosen.models, chosen.seeds or 10, chosen.wheel)
    if not chosen.table:
        measure(runs, chosen.jobs, chosen.results)
    results = load(chosen.results)
    return run("networks", {"networks": lambda: tables(results, runs)}, chosen.write, "networks.md")


if __name__ == "__main__":
    sys.exit(main())
