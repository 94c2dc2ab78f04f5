"""A group's metrics beside the paper's, how both are written, and what is said of them."""

import collections
import dataclasses
import math
from collections.abc import Sequence

from train import paper, plots
from train.plots import NOTHING
from train.report.groups import Group, Section

PAPER = (
    "Malviya, Ravindran and Chandar, “TAG: Task-based Accumulated Gradients for Lifelong "
    "learning”, CoLLAs 2022"
)
LINK = "https://arxiv.org/abs/2105.05155"


@dataclasses.dataclass(frozen=True)
class Metric:
    """How a field of `metrics.Summary` is shown."""

    field: str
    name: str
    unit: str  # % for what the summary has as a fraction.
    digits: str
    lower_is_better: bool = False

    @property
    def heading(self) -> str:
        return f"{self.name} {self.unit}".strip()

    @property
    def factor(self) -> float:
        return 100 if self.unit == "%" else 1


METRICS = (
    Metric("accuracy", "accuracy", "%", ".1f"),
    Metric("forgetting", "forgetting", "", ".3f", lower_is_better=True),
    Metric("learning_accuracy", "learned", "%", ".1f"),
    Metric("backward_transfer", "BWT", "%", ".1f"),
)


def metrics_of(score: str) -> tuple[Metric, ...]:
    """The metrics of what is no accuracy are in units of its own, and may be of any size."""
    if score == "accuracy":
        return METRICS
    first, *others = (dataclasses.replace(each, unit="", digits=".4g") for each in METRICS)
    return dataclasses.replace(first, name=score), *others


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One metric of one group, in the paper's units."""

    metric: Metric
    mean: float
    std: float  # Over the seeds, ddof 0; NaN for one seed.
    reference: paper.Reference | None

    @property
    def difference(self) -> float:
        """In the paper's deviations; NaN where there is no figure, or none of its deviation."""
        figure = self.reference
        return (self.mean - figure.mean) / figure.std if figure and figure.std > 0 else math.nan

    @property
    def note(self) -> str:
        return self.reference.note if self.reference else ""

    def measured_text(self) -> str:
        return plots.spread(self.mean, self.std, self.metric.digits)

    def paper_text(self) -> str:
        """To two digits, as most of them are printed."""
        return plots.spread(*self.reference[:2], ".2f") if self.reference else NOTHING

    def difference_text(self) -> str:
        return NOTHING if math.isnan(self.difference) else f"{self.difference:+.1f} σ"


def compare(group: Group, metric: Metric) -> Comparison:
    values = metric.factor * group.values(metric.field)
    deviation = float(values.std()) if len(values) > 1 else math.nan
    return Comparison(metric, float(values.mean()), deviation, group.reference(metric.field))


def rows(section: Section) -> tuple[list[tuple[Group, list[Comparison]]], dict[str, int]]:
    """Every group with its metrics; and the different notes of the paper's figures, numbered in the
    order in which a table has them."""
    metrics = metrics_of(section.score)
    found = [(group, [compare(group, metric) for metric in metrics]) for group in section.groups]
    notes = dict.fromkeys(each.note for _, row in found for each in row if each.note)
    return found, {note: number for number, note in enumerate(notes, start=1)}


def explanation(sections: Sequence[Section]) -> list[str]:
    """How to read the tables: paragraphs, for every form of the report."""
    paragraphs = [
        "Means over seeds ± standard deviation (ddof 0), at the end of the stream. Accuracy: the "
        "mean over all tasks. Forgetting: how far the earlier tasks have fallen from their best, "
        "on average. Learned: the mean accuracy on each task just after it was learned. BWT "
        "(backward transfer): what later tasks added to the earlier ones, on average."
    ]
    scores = dict.fromkeys(s.score for s in sections if s.score != "accuracy")
    if scores:
        paragraphs.append(
            f"Where tables have {', '.join(scores)} for the accuracy, all numbers are in its unit."
        )
    if any(section.compared for section in sections):
        paragraphs.append(
            f"Paper: the figure of {PAPER}, as its tables print it unless a note says otherwise. "
            "Δ: the measured mean minus the paper's, in units of the paper's standard deviation σ; "
            "– where there is nothing to compare."
        )
    return paragraphs


def remarks(section: Section) -> list[str]:
    """What a reader must know about a section before comparing anything in it."""
    found = []
    if section.evaluate_on != "test":
        found.append(
            "Evaluated on held-out training data: to choose settings by, not to compare with the "
            "paper."
        )
    labels = collections.defaultdict(list)
    for group in section.groups:
        if not group.complete:
            labels["subset of the data, not compared with the paper."].append(group.label)
        elif section.evaluate_on == "test" and section.stream in paper.STREAMS:
            why = paper.departures(group.config)
            if why:
                labels[f"not compared with the paper ({', '.join(why)})."].append(group.label)
    for why, those in labels.items():
        everything = len(those) == len(section.groups) > 1
        found.append(f"{'all methods' if everything else ', '.join(those)}: {why}")
    found += [
        f"{group.label}: {path} repeats a seed and was left out."
        for group in section.groups
        for path in group.repeated
    ]
    return found


def seeds_in_words(section: Section) -> str:
    """The seeds of most groups, and those of the others by name."""
    labels = collections.defaultdict(list)
    for group in section.groups:
        labels[", ".join(str(run.seed) for run in group.runs)].append(group.label)
    usual = max(labels, key=lambda seeds: len(labels[seeds]))
    others = [f"{', '.join(those)}: {seeds}" for seeds, those in labels.items() if seeds != usual]
    return "; ".join([usual, *others])
