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
        for edge, word, step in ((max(numbers), "largest", 1), (min(numbers), "smallest", -1)):
            beyond = edge + step if isinstance(edge, int) else math.nextafter(edge, step * math.inf)
            try:
                cell.changed({name: beyond})
            except UserError:  # No dropout is below 0.
                continue
            if cell[name] == edge:
                lines.append(
                    f"{name} {brief(edge)} is the {word} tried: a wider grid may do better."
                )
    return lines


def table(axes: Axes, outcomes: Sequence[CellResult], title: str) -> rich.table.Table:
    """For the terminal, the best cell in bold."""
    shown = rich.table.Table(
        title=title, title_justify="left", box=rich.box.SIMPLE_HEAD, padding=0, show_edge=False
    )
    headings, *rows = _rows(axes, outcomes)
    for heading in headings:
        shown.add_column(heading, justify="left" if heading == "status" else "right")
    for row in rows:
        shown.add_row(*row, style="bold" if row[-1] == "best" else None)
    return shown


def _rows(axes: Axes, outcomes: Sequence[CellResult]) -> list[list[str]]:
    """The headings, and a row for each cell."""
    rows, winner = [[*axes, "accuracy %", "status"]], best(outcomes)
    for outcome in ranked(outcomes):
        accuracy = "-"
        if outcome.accuracies:
            spread = f" ± {100 * outcome.deviation:.1f}" if len(outcome.accuracies) > 1 else ""
            accuracy = f"{100 * outcome.mean:.1f}{spread}"
        status = "best" if outcome is winner else outcome.status
        rows.append([*(brief(outcome.cell[name]) for name in axes), accuracy, status])
    return rows


def write(
    axes: Axes, seeds: Sequence[int], outcomes: Sequence[CellResult], directory: pathlib.Path
) -> list[pathlib.Path]:
    """Writes results.md, results.csv and results.json; returns them."""
    page, sheet, record = (directory / f"results.{kind}" for kind in ("md", "csv", "json"))
    headings, *lines = ["| " + " | ".join(row) + " |" for row in _rows(axes, outcomes)]
    rule = "|" + "---:|" * (len(axes) + 1) + "---|"
    page.write_text("\n".join([headings, rule, *lines]) + "\n")
    winner = best(outcomes)
    entries: list[dict[str, Any]] = []
    for outcome in ranked(outcomes):
        well = bool(outcome.accuracies)
        entries.append(
            {
                "settings": {name: outcome.cell[name] for name in axes},
                "status": outcome.status,
                "best": outcome is winner,
                "tasks": outcome.tasks,
                "accuracy": outcome.mean if well else None,
                "deviation": outcome.deviation if well else None,
                "seeds": dict(zip(seeds, outcome.accuracies, strict=True)) if well else {},
                "failures": outcome.failures,
            }
        )
    files.write_json(record, entries)
    with sheet.open("w", newline="") as file:
        columns = ("status", "best", "tasks", "accuracy", "deviation")
        writer = csv.writer(file)
        writer.writerow([*axes, *columns])
        for entry in entries:
            settings = map(brief, entry["settings"].values())
            writer.writerow([*settings, *(entry[name] for name in columns)])
    return [page, sheet, record]
