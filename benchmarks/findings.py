"""What published runs say about the paper's claims, in sentences made from the numbers alone."""

import dataclasses
import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import scipy.stats

from train import config as configs
from train import metrics, paper
from train.report import Group, Section
from train.report.comparison import METRICS, compare

CONFIDENCE = 0.95
"""Of Student's interval, outside of which zero must lie for a difference to be called one."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """How much more one of two things is than the other, seed by seed."""

    values: np.ndarray

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    @property
    def standard_error(self) -> float:
        """Of the mean; NaN for a single seed."""
        seeds = len(self.values)
        return float(self.values.std(ddof=1)) / math.sqrt(seeds) if seeds > 1 else math.nan

    @property
    def direction(self) -> int:
        """1 or -1 where the mean is clearly above or below zero, else 0.

        >>> few, many, one = [1.0, 1.4], [1.0, 1.4, 1.2, 1.1], [1.0]
        >>> [Difference(np.array(values)).direction for values in (few, many, one)]
        [0, 1, 0]
        """
        if len(self.values) < 2:
            return 0
        reach = scipy.stats.t.ppf((1 + CONFIDENCE) / 2, df=len(self.values) - 1)
        return int(np.sign(self.mean)) if abs(self.mean) > reach * self.standard_error else 0

    def text(self, digits: int, unit: str = "") -> str:
        """Mean, standard error, and how many seeds agree on the sign.

        >>> Difference(np.array([0.5, 1.0, -0.3])).text(1, " points")
        '+0.4 ± 0.4 points (above 0 in 2 of 3 seeds)'
        """
        above, seeds = int((self.values > 0).sum()), len(self.values)
        error = "" if seeds == 1 else f" ± {self.standard_error:.{digits}f}"
        return f"{self.mean:+.{digits}f}{error}{unit} (above 0 in {above} of {seeds} seeds)"


def paired(one: Group, other: Group, field: str, factor: float = 1) -> Difference | None:
    """One metric of one group minus the other's, on the seeds that both have.

    Paired, because a seed gives both the same initial network and the same batches.
    """
    first, second = ({run.seed: run for run in group.runs} for group in (one, other))
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return None

    def value(run: Any) -> float:
        return getattr(metrics.summary(run.accuracy), field)

    return Difference(np.array([factor * (value(first[s]) - value(second[s])) for s in seeds]))


def find(section: Section, optimizer: str, method: str = "naive", **settings: Any) -> Group | None:
    """The group of a preset, or of a preset with these settings changed."""
    wanted = dataclasses.replace(configs.preset(section.stream, optimizer, method), **settings)
    return next((group for group in section.groups if group.config == wanted), None)


def cosine(section: Section) -> list[str]:
    """What TAG's cosine adds to its sums: Markdown, or nothing where the runs are missing."""
    named = {
        "one cosine": find(section, "tag-rmsprop"),
        "a cosine for each tensor": find(section, "tag-rmsprop", alpha_scope="leaf"),
        "no cosine": find(section, "tag-self"),
    }
    comparisons = [
        ("one cosine", "no cosine"),
        ("a cosine for each tensor", "no cosine"),
        ("one cosine", "a cosine for each tensor"),
    ]
    rows, verdicts = [], []
    for first, second in comparisons:
        one, other = named[first], named[second]
        if one is None or other is None:
            continue
        accuracy = paired(one, other, "accuracy", factor=100)
        forgetting = paired(one, other, "forgetting")
        if accuracy is None or forgetting is None:
            continue
        rows.append(f"| {first} – {second} | {accuracy.text(2)} | {forgetting.text(4)} |")
        verdicts.append(_verdict(first, second, accuracy, forgetting))
    if not rows:
        return []
    return [
        "### What the cosine adds",
        "",
        "TAG-RMSProp weighs the second moments of earlier tasks by a cosine: one over all "
        "parameters (`tag-rmsprop`), or one for each tensor (`--alpha-scope leaf`). `tag-self` is "
        "the same without any: 1 for every earlier task. Differences on the same seeds, mean ± "
        f"standard error; clear is what Student's {100 * CONFIDENCE:g} % interval tells from 0:",
        "",
        "| | accuracy, points | forgetting |",
        "|---|---|---|",
        *rows,
        "",
        *verdicts,
        "",
    ]


def _verdict(first: str, second: str, accuracy: Difference, forgetting: Difference) -> str:
    """A sentence; what lies inside the interval is no difference that these seeds can show."""
    accurate = {1: "more accurate", -1: "less accurate", 0: "not clearly more or less accurate"}
    forgets = {1: "forgets more", -1: "forgets less", 0: "does not clearly forget more or less"}
    return (
        f"- {first.capitalize()} against {second}: {accurate[accuracy.direction]}, and "
        f"{forgets[forgetting.direction]}."
    )


class Choice(NamedTuple):
    """A point on which the authors' code or log departs from the paper."""

    method: str
    optimizer: str
    name: str
    settings: dict[str, Any]


CHOICES = (
    Choice("naive", "tag-rmsprop", "eps outside the root", dict(eps_in_sqrt=False)),
    Choice("naive", "tag-rmsprop", "a cosine for each tensor", dict(alpha_scope="leaf")),
    Choice("naive", "tag-uniform", "eps outside the root", dict(eps_in_sqrt=False)),
    Choice("naive", "tag-g", "a cosine for each tensor", dict(alpha_scope="leaf")),
    Choice(
        *("ewc", "sgd", "the mean gradient of one batch squared, lambda 1"),
        dict(fisher="batch", ewc_lambda=1.0),
    ),
    Choice("er", "sgd", "the current task replayed too", dict(replay_current_task=True)),
    Choice("er", "tag-rmsprop", "the rate that was logged", dict(learning_rate=2.5e-4)),
    Choice("a-gem", "sgd", "running statistics moved twice", dict(statistics_twice=True)),
    Choice(
        *("multitask", "sgd", "six rounds over the tasks in turn"),
        dict(epochs=6, multitask_order="in-turn"),
    ),
    Choice("multitask", "sgd", "as many steps, the tasks shuffled", dict(epochs=6)),
)


def choices(section: Section) -> list[str]:
    """What each of the authors' choices does to its row: Markdown, or nothing."""
    rows = []
    for choice in CHOICES:
        ours = find(section, choice.optimizer, choice.method)
        theirs = find(section, choice.optimizer, choice.method, **choice.settings)
        if ours is None or theirs is None:
            continue
        change = paired(theirs, ours, "accuracy", factor=100)
        if change is None:
            continue
        printed = ours.reference("accuracy")
        cells = [ours.label, choice.name, *_beside(ours, printed), *_beside(theirs, printed)]
        rows.append("| " + " | ".join([*cells, change.text(1)]) + " |")
    if not rows:
        return []
    return [
        "### The authors' choices",
        "",
        "Where the authors' code or log departs from the paper, its choice was tried, one at a "
        "time. Accuracy in %, its distance from the paper's figure in the paper's deviations, and "
        "the change on the same seeds, mean ± standard error:",
        "",
        "| row | the authors' choice | by the paper | Δ | by choice | Δ | change, points |",
        "|---|---|---:|---:|---:|---:|---|",
        *rows,
        "",
    ]


def _beside(group: Group, printed: paper.Reference | None) -> list[str]:
    """Accuracy, and how far it is from a figure of the paper."""
    found = dataclasses.replace(compare(group, METRICS[0]), reference=printed)
    return [found.measured_text(), found.difference_text()]


def order(section: Section) -> list[str]:
    """Whether the methods of the paper's main table come in its order: Markdown, or nothing."""
    ranked: list[tuple[Group, float, paper.Reference]] = []
    for group in section.groups:
        printed = group.reference("accuracy")
        if printed and printed.source == paper.MAIN_TABLE and not group.apart:
            ranked.append((group, compare(group, METRICS[0]).mean, printed))
    if len(ranked) < 2:
        return []
    ranked.sort(key=lambda row: row[1])
    pairs = list(itertools.combinations(ranked, 2))
    swapped = []
    for (worse, low, other), (better, high, figure) in pairs:
        if figure.mean < other.mean:
            apart = paired(better, worse, "accuracy", factor=100)
            seeds = f"; on the same seeds {apart.text(1, ' points')}" if apart else ""
            swapped.append(
                f"- `{better.label}` is above `{worse.label}` here ({high:.1f} to {low:.1f}{seeds})"
                f", below it in the paper ({figure.mean:.2f} ± {figure.std:.2f} to "
                f"{other.mean:.2f} ± {other.std:.2f})."
            )
    agree = f"{len(pairs) - len(swapped)} of {len(pairs)} pairs of rows stand as in the paper"
    return [
        "### The order of the methods",
        "",
        "The rows of the paper's main table by their accuracy here, from the lowest: "
        f"{', '.join(f'`{group.label}` {mean:.1f}' for group, mean, _ in ranked)}. {agree}"
        + (":" if swapped else "."),
        "",
        *([*swapped, ""] if swapped else []),
    ]


def split_cifar100(section: Section) -> list[str]:
    """All that is said of the paper's first stream."""
    return [*order(section), *choices(section), *cosine(section)]


def half_turn(section: Section) -> list[str]:
    """Whether accuracy rises at 180 degrees, where the paper sees it rise: Markdown, or nothing."""
    tag = find(section, "tag-rmsprop")
    if tag is None or tag.config.num_tasks < 8:
        return []
    before, turned, after = 5, 6, 7  # The tasks at 150, 180 and 210 degrees, from zero.
    curves = {
        group.label: np.stack([metrics.average_accuracy(run.accuracy) for run in group.runs])
        for group in section.groups
    }
    steps = {
        label: Difference(100 * (curve[:, turned] - curve[:, before]))
        for label, curve in curves.items()
    }
    first = np.stack([run.accuracy[:, 0] for run in tag.runs])
    weights = np.stack([run.alpha[:, 0] for run in tag.runs if run.alpha is not None])
    neighbours = (weights[:, before] + weights[:, after]) / 2
    weight = Difference(weights[:, turned] - neighbours)
    mean = weights.mean(axis=0)
    verdict = {1: "confirmed", -1: "refuted, it falls", 0: "not confirmed, no clear change"}
    place = {1: "above", -1: "below", 0: "not clearly above or below"}
    first_task = Difference(100 * (first[:, turned] - first[:, before]))
    return [
        "### The half turn",
        "",
        "The paper reports that the average accuracy of TAG-RMSProp gains at the seventh task, "
        "180 degrees from the first, because some digits look the same again. Changes from the "
        "sixth task to the seventh, mean ± standard error over the seeds:",
        "",
        f"- Average accuracy of `{tag.label}`: {steps[tag.label].text(2, ' points')}; the claim is "
        f"{verdict[steps[tag.label].direction]}.",
        *(
            f"- Average accuracy of `{label}`: {step.text(2, ' points')}."
            for label, step in steps.items()
            if label != tag.label
        ),
        f"- Accuracy of `{tag.label}` on the first task: {first_task.text(2, ' points')}.",
        f"- Its weights of the first task: α(7, 1) is {mean[turned]:.3f}, its neighbours α(6, 1) "
        f"{mean[before]:.3f} and α(8, 1) {mean[after]:.3f}. α(7, 1) is {place[weight.direction]} "
        f"their mean: {weight.text(3)}. The lower a weight, the more alike the gradients.",
        "",
    ]
