"""Tables and plots of any set of runs: mean and deviation over the seeds of each config."""

import collections
import csv
import dataclasses
import pathlib

import numpy as np
import rich.box
import rich.table

from train import metrics, plots
from train.config import Config
from train.errors import UserError
from train.rundir import RunResult, find_runs, read_result

# Column, field of a summary, factor, digits.
_COLUMNS = (
    ("accuracy %", "accuracy", 100, 1),
    ("forgetting", "forgetting", 1, 3),
    ("learned %", "learning_accuracy", 100, 1),
    ("BWT %", "backward_transfer", 100, 1),
)


@dataclasses.dataclass(frozen=True)
class Group:
    """The finished runs of one config."""

    label: str
    config: Config
    runs: list[RunResult]

    def values(self, field: str) -> np.ndarray:
        """One metric at the stream's end, for each seed."""
        return np.array([getattr(metrics.summary(run.accuracy), field) for run in self.runs])

    def mean_accuracy(self) -> np.ndarray:
        return np.mean([run.accuracy for run in self.runs], axis=0)

    def mean_alpha(self) -> np.ndarray | None:
        found = [run.alpha for run in self.runs if run.alpha is not None]
        return np.mean(found, axis=0) if found else None


def collect(roots: list[pathlib.Path]) -> tuple[list[Group], list[pathlib.Path]]:
    """Groups of finished runs below these directories, and the runs that are not finished."""
    for root in roots:
        if not root.exists():
            raise UserError(f"There is no directory {root}.")
    results = [read_result(path) for path in find_runs(roots)]
    unfinished = [result.path for result in results if not result.finished]
    by_config: dict[Config, list[RunResult]] = collections.defaultdict(list)
    for result in results:
        if result.finished:
            by_config[result.config].append(result)
    if not by_config:
        where = ", ".join(map(str, roots))
        raise UserError(f"No finished run below {where}. Make one: python -m train run --help.")
    labels = _labels(list(by_config))
    groups = [Group(labels[config], config, runs) for config, runs in by_config.items()]
    return groups, unfinished


def _labels(configs: list[Config]) -> dict[Config, str]:
    """The optimizer's name, and what else tells configs of one stream and optimizer apart."""
    labels = {}
    for config in configs:
        twins = [
            other
            for other in configs
            if (other.stream, other.optimizer) == (config.stream, config.optimizer)
        ]
        differing = [
            field.name
            for field in dataclasses.fields(Config)
            if len({getattr(twin, field.name) for twin in twins}) > 1
        ]
        extra = ", ".join(f"{name} {getattr(config, name)}" for name in differing)
        labels[config] = f"{config.optimizer} ({extra})" if extra else config.optimizer
    return labels


def table(groups: list[Group], title: str) -> rich.table.Table:
    """The groups of one stream as a table for the terminal."""
    shown = rich.table.Table(
        title=title, title_justify="left", box=rich.box.SIMPLE_HEAD, padding=0, show_edge=False
    )
    shown.add_column("optimizer")
    for heading in ("rate", "seeds", *(column[0] for column in _COLUMNS)):
        shown.add_column(heading, justify="right", no_wrap=True)
    for group in groups:
        shown.add_row(*_cells(group))
    return shown


def _cells(group: Group) -> list[str]:
    cells = [group.label, f"{group.config.learning_rate:g}", str(len(group.runs))]
    for _, field, factor, digits in _COLUMNS:
        mean, deviation = metrics.over_seeds(factor * group.values(field))
        spread = f" ± {deviation:.{digits}f}" if len(group.runs) > 1 else ""
        cells.append(f"{mean:.{digits}f}{spread}")
    return cells


def write(groups: list[Group], out: pathlib.Path) -> list[pathlib.Path]:
    """Writes report.md, results.csv and the plots of every stream; returns what was written."""
    out.mkdir(parents=True, exist_ok=True)
    streams = sorted({group.config.stream for group in groups})
    written = [_write_csv(groups, out / "results.csv")]
    lines = ["# Results", ""]
    for stream in streams:
        of_stream = [group for group in groups if group.config.stream == stream]
        drawn = _draw(stream, of_stream, out)
        written += drawn
        lines += [f"## {stream}", "", *_markdown(of_stream), ""]
        lines += [f"Data: {'; '.join(of_stream[0].runs[0].sources)}.", ""]
        lines += [f"![{path.stem}]({path.name})" for path in drawn] + [""]
    page = out / "report.md"
    page.write_text("\n".join(lines))
    return [page, *written]


def _markdown(groups: list[Group]) -> list[str]:
    headings = ["optimizer", "rate", "seeds", *(column[0] for column in _COLUMNS)]
    lines = ["| " + " | ".join(headings) + " |", "|---|" + "---:|" * (len(headings) - 1)]
    return lines + ["| " + " | ".join(_cells(group)) + " |" for group in groups]


def _write_csv(groups: list[Group], path: pathlib.Path) -> pathlib.Path:
    """One line a run, at full precision."""
    fields = [column[1] for column in _COLUMNS]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["stream", "optimizer", "learning_rate", "seed", *fields, "run"])
        for group in groups:
            for run in group.runs:
                summary = metrics.summary(run.accuracy)
                values = [getattr(summary, field) for field in fields]
                config = group.config
                row = [
                    config.stream,
                    group.label,
                    config.learning_rate,
                    run.seed,
                    *values,
                    run.path,
                ]
                writer.writerow(row)
    return path


def _draw(stream: str, groups: list[Group], out: pathlib.Path) -> list[pathlib.Path]:
    """The plots of one stream."""
    drawn = []

    def save(figure: plots.Figure, name: str) -> None:
        path = out / f"{stream}-{name}.png"
        plots.save(figure, path)
        drawn.append(path)

    curves = {
        group.label: np.stack([metrics.average_accuracy(run.accuracy) for run in group.runs])
        for group in groups
    }
    save(
        plots.accuracy_along_stream(curves, title=f"{stream}: accuracy along the stream"),
        "accuracy",
    )
    for _, field, factor, _ in _COLUMNS[:2]:
        bars = {group.label: (factor * group.values(field)).tolist() for group in groups}
        unit = f"{field} (%)" if factor == 100 else field
        figure = plots.method_bars(
            bars,
            title=f"{stream}: {field} at the end of the stream",
            unit=unit,
            lower_is_better=field == "forgetting",
        )
        save(figure, f"final-{field}")
    # One scale for all methods, so that their matrices can be compared.
    limits = plots.round_limits(100 * np.stack([group.mean_accuracy() for group in groups]))
    for group in groups:
        slug = group.label.replace(" ", "-").replace("(", "").replace(")", "").replace(",", "")
        title = f"{stream}, {group.label}: accuracy on each task"
        tasks = group.runs[0].tasks
        figure = plots.accuracy_matrix(group.mean_accuracy(), tasks, title=title, limits=limits)
        save(figure, f"matrix-{slug}")
        alpha = group.mean_alpha()
        if alpha is not None:
            title = f"{stream}, {group.label}: weights of the earlier tasks"
            save(plots.alpha(alpha, title=title, b=group.config.b), f"alpha-{slug}")
            first = {g.label: np.stack([run.accuracy[:, 0] for run in g.runs]) for g in groups}
            title = f"{stream}, {group.label}: what becomes of the first task"
            figure = plots.alpha_and_accuracy(alpha, first, 0, title=title, b=group.config.b)
            save(figure, f"first-task-{slug}")
    return drawn
