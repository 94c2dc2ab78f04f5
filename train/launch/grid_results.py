"""What a search found: a table for the terminal, and the same as Markdown, CSV and JSON."""

import csv
import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import rich.box
import rich.table

from train import files
from train.errors import UserError
from train.run import metrics
from train.run.config import Config
from train.settings import brief

Axes = Mapping[str, tuple[Any, ...]]


@dataclasses.dataclass(frozen=True)
class CellResult:
    """What became of a cell."""

    cell: Config
    status: str
    """finished, diverged, failed, or dropped after a task."""
    tasks: int
    """After how many tasks it was judged; those that every seed had learned where one failed."""
    learned: int
    """Tasks learned up to there, all seeds together."""
    accuracies: tuple[float, ...] = ()
    """Each seed's average accuracy over those tasks; none where a seed failed."""
    failures: dict[int, str] = dataclasses.field(default_factory=dict)
    """Seeds that failed, and why."""

    @property
    def mean(self) -> float:
        return float(metrics.over_seeds(self.accuracies)[0])

    @property
    def deviation(self) -> float:
        return float(metrics.over_seeds(self.accuracies)[1])


def best(outcomes: Sequence[CellResult]) -> CellResult | None:
    """The highest mean accuracy at the stream's end; of equal ones the first."""
    finished = [outcome for outcome in outcomes if outcome.status == "finished"]
    return max(finished, key=lambda outcome: outcome.mean, default=None)


def ranked(outcomes: Sequence[CellResult]) -> list[CellResult]:
    """Those that came furthest first, the better before the worse; failed ones last."""

    def order(outcome: CellResult) -> tuple[bool, int, float]:
        well = bool(outcome.accuracies)
        return not well, -outcome.tasks, -outcome.mean if well else 0.0

    return sorted(outcomes, key=order)


def at_the_edge(axes: Axes, cell: Config) -> list[str]:
    """Says where the best cell has the largest or smallest number tried, and could go beyond."""
    lines = []
    for name, values in axes.items():
        numbers = [value for value in values if isinstance(value, (int, float))]
        if len(numbers) < 2 or any(isinstance(value, bool) for value in values):
            continue
        value = cell[name]
        for edge, word, step in ((max(numbers), "largest", 1), (min(numbers), "smallest", -1)):
            if value == edge and _exists(cell, name, _beyond(edge, step)):
                lines.append(
                    f"{name} {brief(value)} is the {word} tried: a wider grid may do better."
                )
    return lines


def _beyond(value: float, step: int) -> float:
    return value + step if isinstance(value, int) else math.nextafter(value, step * math.inf)


def _exists(cell: Config, name: str, value: float) -> bool:
    """Whether a config can have this value at all: no dropout is below 0."""
    try:
        cell.changed({name: value})
    except UserError:
        return False
    return True


def table(axes: Axes, outcomes: Sequence[CellResult], title: str) -> rich.table.Table:
    """For the terminal, the best cell in bold."""
    shown = rich.table.Table(
        title=title, title_justify="left", box=rich.box.SIMPLE_HEAD, padding=0, show_edge=False
    )
    for heading in _headings(axes):
        shown.add_column(heading, justify="left" if heading == "status" else "right")
    winner = best(outcomes)
    for outcome in ranked(outcomes):
        row = _row(axes, outcome, outcome is winner)
        shown.add_row(*row, style="bold" if outcome is winner else None)
    return shown


def _headings(axes: Axes) -> list[str]:
    return [*axes, "accuracy %", "status"]


def _row(axes: Axes, outcome: CellResult, wins: bool) -> list[str]:
    accuracy = "-"
    if outcome.accuracies:
        spread = f" ± {100 * outcome.deviation:.1f}" if len(outcome.accuracies) > 1 else ""
        accuracy = f"{100 * outcome.mean:.1f}{spread}"
    settings = [brief(outcome.cell[name]) for name in axes]
    return [*settings, accuracy, "best" if wins else outcome.status]


def write(
    axes: Axes, seeds: Sequence[int], outcomes: Sequence[CellResult], directory: pathlib.Path
) -> list[pathlib.Path]:
    """Writes results.md, results.csv and results.json; returns them."""
    page, sheet, record = (directory / f"results.{kind}" for kind in ("md", "csv", "json"))
    winner = best(outcomes)
    headings = _headings(axes)
    lines = ["| " + " | ".join(headings) + " |", "|" + "---:|" * (len(headings) - 1) + "---|"]
    lines += [
        "| " + " | ".join(_row(axes, outcome, outcome is winner)) + " |"
        for outcome in ranked(outcomes)
    ]
    page.write_text("\n".join(lines) + "\n")
    entries = [_entry(axes, seeds, outcome, outcome is winner) for outcome in ranked(outcomes)]
    files.write_json(record, entries)
    with sheet.open("w", newline="") as file:
        columns = ("status", "best", "tasks", "accuracy", "deviation")
        writer = csv.writer(file)
        writer.writerow([*axes, *columns])
        for entry in entries:
            settings = [brief(value) for value in entry["settings"].values()]
            writer.writerow([*settings, *(entry[name] for name in columns)])
    return [page, sheet, record]


def _entry(axes: Axes, seeds: Sequence[int], outcome: CellResult, wins: bool) -> dict[str, Any]:
    """A cell at full precision; null where there is no accuracy."""
    well = bool(outcome.accuracies)
    return {
        "settings": {name: outcome.cell[name] for name in axes},
        "status": outcome.status,
        "best": wins,
        "tasks": outcome.tasks,
        "accuracy": outcome.mean if well else None,
        "deviation": outcome.deviation if well else None,
        "seeds": dict(zip(seeds, outcome.accuracies, strict=True)) if well else {},
        "failures": outcome.failures,
    }
