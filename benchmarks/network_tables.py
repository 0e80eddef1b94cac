"""The tables of `networks`: accuracies, differences, light curves, costs and held-out sets."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

from scipy.stats import ttest_1samp

from . import light_curves
from .harness import Table
from .irregular import AS_TRAINED, GENERATED, HELD_OUT
from .networks import BOTH, DISCRETE, GAPS, LABELS, LOCAL, NAMES, Results, Run, settings

LED = LOCAL, BOTH  # those whose differences are shown
SHIFTED = "mean of the other samplings"
LEVEL = 0.05


class Answers:
    """Accuracies in % of planned runs that are known, by task, model and seed."""

    def __init__(self, results: Results, runs: Sequence[Run]) -> None:
        known = [x for x in runs if x.key in results]
        self._found = {(x.task, x.model, x.seed): results[x.key] for x in known}
        self.tasks = [x for x in dict.fromkeys(x.task for x in known) if x != light_curves.NAME]
        self.models = [
            x for x in NAMES if any(x == y.model and y.task in self.tasks for y in known)
        ]

    def of(self, task: str, model: str) -> dict[int, dict[str, Any]]:
        """Return the results by seed."""
        return {k[2]: x for k, x in self._found.items() if k[:2] == (task, model)}

    def values(
        self, task: str, model: str, sampling: str, measure: str = "accuracy"
    ) -> dict[int, float]:
        """Return a measure by seed, in % if it is not the log loss."""
        factor = 1 if measure == "log loss" else 100
        out = {}
        for seed, result in self.of(task, model).items():
            found = {k: x[measure] for k, x in result["scores"].items()}
            others = [x for k, x in found.items() if k != AS_TRAINED]
            x = statistics.mean(others) if sampling == SHIFTED else found[sampling]
            out[seed] = factor * x
        return out

    def less(self, task: str, model: str, rival: str, sampling: str) -> tuple[float, float]:
        """Return the mean difference, and p of the paired t-test over seeds."""
        ours, other = (self.values(task, x, sampling) for x in (model, rival))
        gaps = [x - other[seed] for seed, x in ours.items() if seed in other]
        if len(set(gaps)) < 2:
            return (gaps or [math.nan])[0], 1.0
        return statistics.mean(gaps), float(ttest_1samp(gaps, 0.0).pvalue)

    def all_less(self, model: str, rival: str, sampling: str) -> list[tuple[float, float]]:
        """Return the differences on all tasks, and p after the correction of Holm over tasks."""
        gaps, found = zip(*(self.less(x, model, rival, sampling) for x in self.tasks), strict=True)
        return list(zip(gaps, holm(found), strict=True))


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number, as Holm has it."""
    out, least = [0.0] * len(p), 0.0
    for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        least = max(least, min(1.0, (len(p) - rank) * p[i]))
        out[i] = least
    return out


def plus_minus(x: Sequence[float], digits: int = 1) -> str:
    if len(x) < 2:
        return f"{x[0]:.{digits}f}" if x else "-"
    error = statistics.stdev(x) / len(x) ** 0.5
    return f"{statistics.mean(x):.{digits}f} ± {error:.{digits}f}"


def _gap(gap: float, p: float) -> str:
    return "-" if math.isnan(gap) else f"{gap:+.1f} ({p:.2g})"


def accuracy_table(answers: Answers, sampling: str) -> Table:
    """Return mean accuracies and their standard errors."""
    rows = []
    for model in answers.models:
        found = [list(answers.values(x, model, sampling).values()) for x in answers.tasks]
        means = [statistics.mean(x) for x in found if x]
        mean = f"{statistics.mean(means):.1f}" if len(means) == len(found) else "-"
        rows.append([model, *map(plus_minus, found), mean])
    text = "on the sampling of training" if sampling == AS_TRAINED else f"on the {SHIFTED}"
    seeds = [len(answers.of(x, model)) for x in answers.tasks for model in answers.models]
    counts = sorted(filter(None, seeds))
    number = f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
    title = f"Accuracy in % {text}: mean and standard error of {number} seeds."
    return Table(title, ["model", *answers.tasks, "mean"], rows)


def difference_table(answers: Answers, model: str, sampling: str) -> Table:
    """Return the differences of a model from each rival."""
    rivals = [x for x in answers.models if x != model]
    rows = [[x, *(_gap(*y) for y in answers.all_less(model, x, sampling))] for x in rivals]
    name = sampling if sampling == AS_TRAINED else f"the {sampling}"
    title = (
        f"Accuracy of {model} less that of each other model in percentage points, {name}; in "
        "brackets p of the paired t-test over seeds, with Holm's correction over tasks."
    )
    return Table(title, ["less", *answers.tasks], rows)


def count_table(answers: Answers) -> Table:
    """Return on how many tasks a model is ahead of, and behind, each rival."""
    rows = []
    for rival in answers.models:
        cells = []
        for sampling in (SHIFTED, AS_TRAINED):
            for model in LED:
                found = answers.all_less(model, rival, sampling) if model != rival else []
                sure = [gap for gap, p in found if p < LEVEL]
                ahead = sum(gap > 0 for gap in sure)
                cells.append(f"{ahead}, {len(sure) - ahead}" if found else "-")
        rows.append([rival, *cells])
    names = [f"{model}, {x}" for x in ("other samplings", AS_TRAINED) for model in LED]
    title = (
        f"On how many of {len(answers.tasks)} tasks a model is ahead of, and behind, another one "
        f"with p < {LEVEL} after Holm's correction over tasks."
    )
    return Table(title, ["other model", *names], rows)


def burst_table(answers: Answers) -> Table:
    """Return the differences on each sampling of bursts."""
    tasks = [x for x in answers.tasks if x.startswith("bursts")]
    samplings = list(GENERATED["bursts, noise 0.2"][1])
    rows = [
        [f"{task}, less {rival}", *(_gap(*answers.less(task, LOCAL, rival, x)) for x in samplings)]
        for task in tasks
        for rival in (DISCRETE, GAPS)
    ]
    title = f"Bursts: accuracy of {LOCAL} less that of two others, and p of the paired t-test."
    return Table(title, ["task", *samplings], rows)


def sampling_table(answers: Answers, task: str) -> Table:
    """Return the accuracies on all samplings of a task."""
    names: list[str] = []
    for model in answers.models:
        for x in answers.of(task, model).values():
            names = list(x["scores"])
    rows = [
        [x, *(plus_minus(list(answers.values(task, x, y).values())) for y in names)]
        for x in answers.models
        if answers.of(task, x)
    ]
    return Table(f"{task}: accuracy in % by sampling.", ["model", *names], rows)


def light_curve_table(answers: Answers) -> Table:
    """Return macro F1 and log loss on PLAsTiCC."""
    rows = []
    for model in (x for x in light_curves.MODELS if answers.of(light_curves.NAME, x)):
        cells = [
            plus_minus(list(answers.values(light_curves.NAME, model, x, y).values()), digits)
            for x in (light_curves.ALL, light_curves.DROPPED)
            for y, digits in (("F1", 1), ("log loss", 3))
        ]
        counts = [x["parameters"] for x in answers.of(light_curves.NAME, model).values()]
        seconds = [x["seconds"] for x in answers.of(light_curves.NAME, model).values()]
        rows.append([model, *cells, str(counts[0]), f"{statistics.mean(seconds):.0f}"])
    title = (
        f"{light_curves.NAME} (simulated): macro F1 in % and log loss, mean and standard error of "
        "stratified splits."
    )
    names = [f"{x}, {y}" for x in (light_curves.ALL, light_curves.DROPPED) for y in ("F1", "loss")]
    return Table(title, ["model", *names, "parameters", "s"], rows)


def cost_table(answers: Answers) -> Table:
    """Return settings, numbers of parameters and seconds."""
    rows, total = [], 0.0
    for model in answers.models:
        found = [list(answers.of(x, model).values()) for x in answers.tasks]
        counts = [x["parameters"] for runs in found for x in runs]
        seconds = [statistics.mean(x["seconds"] for x in runs) for runs in found if runs]
        total += sum(x["seconds"] for runs in found for x in runs)
        rate, size = settings(model)
        cells = [f"{rate:g}", LABELS[size]]
        cells.append(f"{min(counts)} to {max(counts)}" if counts else "-")
        cells.append(f"{statistics.mean(seconds):.1f}" if seconds else "-")
        rows.append([model, *cells])
    title = (
        "Chosen settings, parameters, and processor seconds of a run with its tests, mean over "
        f"tasks. All runs took {total / 3600:.2f} core-hours."
    )
    return Table(title, ["model", "rate", "size", "parameters", "s"], rows)


def held_out_tables(answers: Answers) -> list[Table]:
    """Return the tables of sets on which nothing was chosen."""
    led = [x for x in LED if x in answers.models]
    found = [accuracy_table(answers, x) for x in (SHIFTED, AS_TRAINED)]
    found += [difference_table(answers, x, y) for y in (SHIFTED, AS_TRAINED) for x in led]
    found += [sampling_table(answers, x) for x in answers.tasks]
    text = "Held-out sets: settings come from the other sets."
    return [x._replace(title=f"{text} {x.title}") for x in found]


def tables(results: Results, runs: Sequence[Run]) -> list[Table]:
    """Return all tables that have rows, held-out sets apart from the others."""
    found: list[Table] = []
    answers = Answers(results, [x for x in runs if x.task not in HELD_OUT])
    if answers.tasks:
        led = [x for x in LED if x in answers.models]
        found += [count_table(answers)] if len(led) == len(LED) else []
        found += [accuracy_table(answers, x) for x in (SHIFTED, AS_TRAINED)]
        found += [difference_table(answers, x, y) for y in (SHIFTED, AS_TRAINED) for x in led]
        found += [burst_table(answers)] if LOCAL in led else []
        found += [sampling_table(answers, x) for x in answers.tasks]
        found.append(cost_table(answers))
    found.append(light_curve_table(answers))
    held_out = [x for x in runs if x.task in HELD_OUT and x.key in results]
    if held_out:
        found += held_out_tables(Answers(results, held_out))
    return [x for x in found if x.rows]
