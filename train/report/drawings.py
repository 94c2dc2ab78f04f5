"""The plots of a section: which there are, what they show, and their names."""

import dataclasses
from collections.abc import Iterator

import numpy as np
from matplotlib.figure import Figure

from train import metrics, plots
from train.report.comparison import METRICS, Metric
from train.report.groups import Group, Section, slug


@dataclasses.dataclass(frozen=True)
class Drawing:
    """One figure."""

    name: str
    """Unique in the report: of a file, of an element."""
    title: str
    figure: Figure
    narrow: Figure | None = None
    """The same for a screen held upright, where one was drawn."""
    detail: bool = False
    """Of one group alone, and so one of many."""
    wide: bool = False
    """Has many lines that need room."""


def drawings(section: Section) -> Iterator[Drawing]:
    """One after the other, as each takes memory: first what compares groups, then each group."""
    yield _along_stream(section)
    for metric in METRICS[:2]:
        if any(np.isfinite(group.values(metric.field)).any() for group in section.groups):
            yield _bars(section, metric)
    yield from _of_groups(section)


def _along_stream(section: Section) -> Drawing:
    curves = {
        group.label: np.stack([metrics.average_accuracy(run.accuracy) for run in group.runs])
        for group in section.groups
    }
    title = f"{section.title}: accuracy along the stream"
    figure, narrow = (
        plots.accuracy_along_stream(curves, title=title, narrow=small) for small in (False, True)
    )
    return Drawing(f"{section.slug}-accuracy", title, figure, narrow, wide=True)


def _bars(section: Section, metric: Metric) -> Drawing:
    bars, reference = {}, {}
    for group in section.groups:
        values = metric.factor * group.values(metric.field)
        if np.isnan(values).all():
            continue  # Learning all tasks at once forgets nothing.
        bars[group.label] = values
        figure = group.reference(metric.field)
        if figure:
            reference[group.label] = figure.mean, figure.std
    title = f"{section.title}: {metric.name} at the end of the stream"
    unit = f"{metric.name} ({metric.unit})" if metric.unit else metric.name
    figure, narrow = (
        plots.method_bars(
            bars,
            title=title,
            unit=unit,
            lower_is_better=metric.lower_is_better,
            reference=reference,
            narrow=small,
        )
        for small in (False, True)
    )
    return Drawing(f"{section.slug}-final-{metric.field}", title, figure, narrow)


def _of_groups(section: Section) -> Iterator[Drawing]:
    # One scale for all methods, so that their matrices can be compared.
    matrices = {group.label: 100 * group.mean_accuracy() for group in section.groups}
    limits = plots.round_limits(np.concatenate([matrix.ravel() for matrix in matrices.values()]))
    for number, group in enumerate(section.groups, start=1):
        label = slug(group.label)
        taken = [slug(other.label) for other in section.groups]
        # Two labels may differ only in what a file name cannot show.
        end = label if taken.count(label) == 1 else f"{label}-{number}"
        # Where all tasks are learned at once only the last row is measured: that is no matrix.
        if np.isfinite(np.diagonal(matrices[group.label])).all():
            title = f"{section.title}, {group.label}: accuracy on each task"
            tasks = group.runs[0].tasks
            figure = plots.accuracy_matrix(group.mean_accuracy(), tasks, title=title, limits=limits)
            yield Drawing(f"{section.slug}-matrix-{end}", title, figure, detail=True)
        weights = group.mean_alpha()
        if weights is not None:
            title = f"{section.title}, {group.label}: weights of the earlier tasks"
            figure = plots.alpha(weights, title=title, b=group.config.b)
            yield Drawing(f"{section.slug}-alpha-{end}", title, figure, detail=True)
            title = f"{section.title}, {group.label}: what becomes of the first task"
            first = {
                other.label: np.stack([run.accuracy[:, 0] for run in other.runs])
                for other in section.groups
                if other is group or _without_tag(other, group)
            }
            figure = plots.alpha_and_accuracy(weights, first, 0, title=title, b=group.config.b)
            yield Drawing(f"{section.slug}-first-task-{end}", title, figure, detail=True)


def _without_tag(other: Group, group: Group) -> bool:
    """Whether one is the other's counterpart, as the paper pairs TAG-RMSProp with RMSProp."""
    theirs, mine = other.config, group.config
    same = theirs.method == mine.method and theirs.epochs == mine.epochs
    return same and f"tag-{theirs.optimizer}" == mine.optimizer
