"""The plots of a section: which there are, what they show, and their names."""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
from matplotlib.figure import Figure

from train import plots
from train.report.comparison import METRICS, Metric
from train.report.families import Family, families, pairs
from train.report.groups import Group, Section, counterparts, slug
from train.run import metrics

_CONSTANT = ("tag-uniform", "tag-self")
"""Weigh all other tasks alike, by definition: there is nothing to see in that."""


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


def drawings(
    section: Section, detailed: Callable[[Group], bool] = lambda group: True
) -> Iterator[Drawing]:
    """One after the other, as each takes memory: first what compares groups, then each group, or
    only those that are to be drawn in detail."""
    for family in families(section):
        yield _along_stream(section, family)
    for metric in METRICS[:2]:
        if any(np.isfinite(group.values(metric.field)).any() for group in section.groups):
            yield _bars(section, metric)
    paired = [group for pair in pairs(section) for group in pair]
    if 0 < len(paired) < len(section.groups):  # Else the bars above have them side by side.
        for metric in METRICS[:2]:
            yield _with_and_without_tag(section, paired, metric)
    yield from _of_groups(section, detailed)


def _along_stream(section: Section, family: Family) -> Drawing:
    curves = {
        group.label: np.stack([metrics.average_accuracy(run.accuracy) for run in group.runs])
        for group in family.groups
    }
    title = f"{section.title}: accuracy along the stream" + f" ({family.name})" * bool(family.name)
    figure, narrow = (
        plots.accuracy_along_stream(curves, title=title, narrow=small) for small in (False, True)
    )
    name = slug("-".join(filter(None, [section.slug, family.name, "accuracy"])))
    return Drawing(name, title, figure, narrow, wide=True)


def _bars(section: Section, metric: Metric) -> Drawing:
    title = f"{section.title}: {metric.name} at the end of the stream"
    figure, narrow = _draw_bars(section.groups, metric, title)
    return Drawing(f"{section.slug}-final-{metric.field}", title, figure, narrow)


def _with_and_without_tag(section: Section, paired: list[Group], metric: Metric) -> Drawing:
    title = f"{section.title}: {metric.name} without TAG and with it"
    figure, narrow = _draw_bars(paired, metric, title, as_pairs=True)
    return Drawing(f"{section.slug}-pairs-{metric.field}", title, figure, narrow)


def _draw_bars(
    groups: list[Group], metric: Metric, title: str, *, as_pairs: bool = False
) -> tuple[Figure, Figure]:
    """Wide and narrow; as pairs in the order given, TAG hatched as in the paper."""
    bars, reference = {}, {}
    for group in groups:
        values = metric.factor * group.values(metric.field)
        if np.isnan(values).all():
            continue  # Learning all tasks at once forgets nothing.
        bars[group.label] = values
        figure = group.reference(metric.field)
        if figure:
            reference[group.label] = figure.mean, figure.std
    unit = f"{metric.name} ({metric.unit})" if metric.unit else metric.name
    tagged = [group.label for group in groups if group.config.optimizer.startswith("tag-")]
    wide, narrow = (
        plots.method_bars(
            bars,
            title=title,
            unit=unit,
            lower_is_better=metric.lower_is_better,
            reference=reference,
            hatched=tagged if as_pairs else (),
            in_order=as_pairs,
            narrow=small,
        )
        for small in (False, True)
    )
    return wide, narrow


def _of_groups(section: Section, detailed: Callable[[Group], bool]) -> Iterator[Drawing]:
    # One scale for all methods, so that their matrices can be compared.
    matrices = {group.label: 100 * group.mean_accuracy() for group in section.groups}
    limits = plots.round_limits(np.concatenate([matrix.ravel() for matrix in matrices.values()]))
    for number, group in enumerate(section.groups, start=1):
        if not detailed(group):
            continue
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
        if weights is not None and group.config.optimizer not in _CONSTANT:
            title = f"{section.title}, {group.label}: weights of the earlier tasks"
            figure = plots.alpha(weights, title=title, b=group.config.b)
            yield Drawing(f"{section.slug}-alpha-{end}", title, figure, detail=True)
            title = f"{section.title}, {group.label}: what becomes of the first task"
            first = {
                other.label: np.stack([run.accuracy[:, 0] for run in other.runs])
                for other in section.groups
                if other is group or counterparts(other.config, group.config)
            }
            figure = plots.alpha_and_accuracy(weights, first, 0, title=title, b=group.config.b)
            yield Drawing(f"{section.slug}-first-task-{end}", title, figure, detail=True)
