"""The plots of a section: which there are, what they show, and their names."""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
from matplotlib.figure import Figure

from train import plots
from train.plot_style import Style
from train.report.comparison import Metric, metrics_of
from train.report.groups import Group, Section, counterparts, slug
from train.run import metrics

MOST = 10  # Curves that can still be told apart.
_CONSTANT = ("uniform", "self")  # Weigh all other tasks alike: there is nothing to see in that.
_PLAIN = ("sgd", "adagrad", "rmsprop", "adam", "tag-rmsprop", "tag-adagrad", "tag-adam")
_WEIGHTED = ("tag-rmsprop", "tag-uniform", "tag-age", "tag-g", "tag-self")  # The paper's variants.


@dataclasses.dataclass(frozen=True)
class Drawing:
    """One figure."""

    name: str  # Unique in the report: of a file, of an element.
    title: str
    figure: Figure
    narrow: Figure | None = None
    """The same for a screen held upright; none of a figure of one group alone, which is small."""
    wide: bool = False  # Has many lines that need room.


def drawings(
    section: Section, detailed: Callable[[Group], bool] = lambda group: True
) -> Iterator[Drawing]:
    """One after the other, as each takes memory: first what compares groups, then each group, or
    only those that are to be drawn in detail."""
    chosen = metrics_of(section.score)[:2]
    for family, groups in families(section).items():
        yield _along_stream(section, family, groups)
    for metric in chosen:
        if any(np.isfinite(group.values(metric.field)).any() for group in section.groups):
            yield _bars(section, section.groups, metric)
    paired = [group for pair in pairs(section) for group in pair]
    if 0 < len(paired) < len(section.groups):  # Else the bars above have them side by side.
        for metric in chosen:
            yield _bars(section, paired, metric, as_pairs=True)
    yield from _of_groups(section, detailed)


def families(section: Section) -> dict[str, list[Group]]:
    """All groups together, without a name; or, where they are too many for one plot, the
    comparisons that the paper draws. Every group is in one."""
    if len(section.groups) <= MOST:
        return {"": section.groups}
    kinds: dict[str, list[Group]] = {"methods": [], "optimizers": [], "TAG": []}
    for group in section.groups:
        if not group.apart:
            method, optimizer = _kind(group)
            if optimizer in ("sgd", "stable-sgd") or _kind(group) == ("naive", "tag-rmsprop"):
                kinds["methods"].append(group)
            if method == "naive" and optimizer in _PLAIN:
                kinds["optimizers"].append(group)
            if optimizer in _WEIGHTED:
                kinds["TAG"].append(group)
    drawn = {group.label for groups in kinds.values() for group in groups}
    rest = {_kind(group) for group in section.groups if group.label not in drawn}
    kinds["settings"] = [group for group in section.groups if _kind(group) in rest]
    found = {}
    for name, groups in kinds.items():
        for number, start in enumerate(range(0, len(groups), MOST), start=1):
            part = f"{name} {number}" if len(groups) > MOST else name
            found[part] = groups[start : start + MOST]
    return found


def pairs(section: Section) -> list[tuple[Group, Group]]:
    """Each group without TAG beside the one with it, as the paper pairs them."""
    return [
        (without, tagged)
        for tagged in section.groups
        for without in section.groups
        if not without.apart and not tagged.apart and counterparts(without.config, tagged.config)
    ]


def _kind(group: Group) -> tuple[str, str]:
    return group.config["method"], group.config["optimizer"]


def _along_stream(section: Section, family: str, groups: list[Group]) -> Drawing:
    curves = {
        group.label: np.stack([metrics.average_accuracy(run.accuracy) for run in group.runs])
        for group in groups
    }
    title = f"{section.title}: {section.score} along the stream" + f" ({family})" * bool(family)
    figure, narrow = (
        plots.accuracy_along_stream(curves, title=title, score=section.score, narrow=small)
        for small in (False, True)
    )
    name = slug("-".join(filter(None, [section.slug, family, "accuracy"])))
    return Drawing(name, title, figure, narrow, wide=True)


def _bars(
    section: Section, groups: list[Group], metric: Metric, *, as_pairs: bool = False
) -> Drawing:
    """As pairs in the order given, TAG hatched as in the paper."""
    bars = {group.label: metric.factor * group.values(metric.field) for group in groups}
    # Learning all tasks at once forgets nothing.
    bars = {label: values for label, values in bars.items() if not np.isnan(values).all()}
    printed = {group.label: group.reference(metric.field) for group in groups}
    reference = {name: of[:2] for name, of in printed.items() if of and name in bars}
    tagged = [group.label for group in groups if group.config["optimizer"].startswith("tag-")]
    shown = "without TAG and with it" if as_pairs else "at the end of the stream"
    title = f"{section.title}: {metric.name} {shown}"
    unit = f"{metric.name} ({metric.unit})" if metric.unit else metric.name
    options: Style = dict(title=title, unit=unit, lower_is_better=metric.lower_is_better)
    options |= dict(reference=reference, hatched=tagged if as_pairs else (), in_order=as_pairs)
    figure, narrow = (plots.method_bars(bars, **options, narrow=small) for small in (False, True))
    name = f"{section.slug}-{'pairs' if as_pairs else 'final'}-{metric.field}"
    return Drawing(name, title, figure, narrow)


def _of_groups(section: Section, detailed: Callable[[Group], bool]) -> Iterator[Drawing]:
    # One scale for all methods, so that their matrices can be compared.
    limits = plots.round_limits([group.mean_accuracy() for group in section.groups], section.score)
    labels = [slug(group.label) for group in section.groups]
    for number, (group, label) in enumerate(zip(section.groups, labels, strict=True), start=1):
        if not detailed(group):
            continue
        # Two labels may differ only in what a file name cannot show.
        end = label if labels.count(label) == 1 else f"{label}-{number}"
        # Where all tasks are learned at once only the last row is measured: that is no matrix.
        matrix = group.mean_accuracy()
        if np.isfinite(np.diagonal(matrix)).all():
            title = f"{section.title}, {group.label}: {section.score} on each task"
            figure = plots.accuracy_matrix(
                matrix, group.runs[0].tasks, title=title, limits=limits, score=section.score
            )
            yield Drawing(f"{section.slug}-matrix-{end}", title, figure)
        measured = [run.alpha for run in group.runs if run.alpha is not None]
        if measured and group.config.get("relatedness") not in _CONSTANT:
            weights, b = np.mean(measured, axis=0), group.number("b")
            title = f"{section.title}, {group.label}: weights of the earlier tasks"
            figure = plots.alpha(weights, title=title, b=b)
            yield Drawing(f"{section.slug}-alpha-{end}", title, figure)
            title = f"{section.title}, {group.label}: what becomes of the first task"
            first = {
                other.label: np.stack([run.accuracy[:, 0] for run in other.runs])
                for other in section.groups
                if other is group or counterparts(other.config, group.config)
            }
            figure = plots.alpha_and_accuracy(
                weights, first, 0, title=title, b=b, score=section.score
            )
            yield Drawing(f"{section.slug}-first-task-{end}", title, figure)
