"""How published runs stand to the paper: the order of the methods, the rows that are far from its
own, and what the authors' choices change. Sentences are made from the numbers alone."""

import dataclasses
import itertools
import math
from typing import Any, NamedTuple

import scipy.stats

from benchmarks.findings import CONFIDENCE, find, paired
from train import paper
from train.paper.presets import usual
from train.report import Group, Section
from train.report.comparison import METRICS, Comparison, compare

PAPER_SEEDS = 5
FAR = 2.0
"""Deviations of the paper beyond which a row is looked into."""


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
    # Not theirs: it tells what the rounds change from what the number of steps does.
    Choice("multitask", "sgd", "(not theirs: as many steps, shuffled)", dict(epochs=6)),
)


def _choices_of(section: Section, row: Group) -> list[tuple[Choice, Group]]:
    """What was tried of the authors' choices in a row, where that compares with the paper."""
    tried = []
    for choice in CHOICES:
        theirs = find(section, choice.optimizer, choice.method, **choice.settings)
        ours = find(section, choice.optimizer, choice.method)
        if ours is row and theirs is not None and theirs.reference("accuracy"):
            tried.append((choice, theirs))
    return tried


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
            swapped.append(
                f"- `{better.label}` is above `{worse.label}` here ({high:.1f} to {low:.1f})"
                f", below it in the paper ({figure.mean:.2f} ± {figure.std:.2f} to "
                f"{other.mean:.2f} ± {other.std:.2f}).{_on_the_same_seeds(better, worse)}"
                f"{_turned_round(section, better, worse)}"
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


def _on_the_same_seeds(one: Group, other: Group) -> str:
    """How far two rows lie apart seed by seed, and whether that is clear: a sentence."""
    apart = paired(one, other, "accuracy", factor=100)
    if apart is None:
        return ""
    clear = "a clear" if apart.direction else "no clear"
    return f" On the same seeds {apart.text(1, ' points')}: {clear} difference."


def _turned_round(section: Section, better: Group, worse: Group) -> str:
    """Which of the authors' choices put two rows into the paper's order, in sentences."""
    pairs = [(choice, theirs, worse) for choice, theirs in _choices_of(section, better)]
    pairs += [(choice, better, theirs) for choice, theirs in _choices_of(section, worse)]
    sentences = []
    for choice, above, below in pairs:
        apart = paired(above, below, "accuracy", factor=100)
        if apart and apart.mean < 0:
            sentences.append(
                f" In the paper's order with the authors' choice ({choice.method}: {choice.name}): "
                f"{apart.text(1, ' points')}."
            )
    return "".join(sentences)


def distances(section: Section) -> list[str]:
    """The rows that lie far from the paper's, and what is known of them: Markdown, or nothing."""
    lines = []
    for group in section.groups:
        found = compare(group, METRICS[0])
        if group.config != usual(group.config) or not abs(found.difference) > FAR:
            continue
        tried = [
            f"{choice.name}, {' and '.join(_beside(theirs, found.reference))}"
            for choice, theirs in _choices_of(section, group)
        ]
        choices = f" With the authors' choices: {'; '.join(tried)}." if tried else ""
        lines.append(
            f"- `{group.label}`: {found.measured_text()}, the paper {found.paper_text()} "
            f"({found.difference_text()}). {_apart_from_paper(found, len(group.runs))}{choices}"
        )
    if not lines:
        return []
    return [
        "### Rows far from the paper's",
        "",
        f"Those whose accuracy is more than {FAR:g} of the paper's deviations away. A deviation "
        "says how far seeds lie apart, not how well five of them, or ours, tell a mean; "
        "whether the means differ is judged by Welch's t-test at "
        f"{100 * CONFIDENCE:g} %:",
        "",
        *lines,
        "",
    ]


def _apart_from_paper(found: Comparison, seeds: int) -> str:
    """Whether the two means differ by more than both spreads explain, in a sentence."""
    if seeds < 2 or found.reference is None:
        return "One seed cannot tell whether the means differ."

    def unbiased(std: float, count: int) -> float:
        return std * math.sqrt(count / (count - 1))

    test = scipy.stats.ttest_ind_from_stats(
        *(found.mean, unbiased(found.std, seeds), seeds),
        *(found.reference.mean, unbiased(found.reference.std, PAPER_SEEDS), PAPER_SEEDS),
        equal_var=False,
    )
    differ = "differ" if test.pvalue < 1 - CONFIDENCE else "do not clearly differ"
    return f"The means of {seeds} and {PAPER_SEEDS} seeds {differ} (p = {test.pvalue:.2g})."


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
