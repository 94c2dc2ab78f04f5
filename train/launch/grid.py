"""A grid of settings: its cells, what a budget buys, and what becomes of the cells.

A budget is spent by successive halving over the tasks of a stream: all cells learn the first few
tasks; the better half of them learns twice as many, and so on, until those that are left reach the
end. The budget decides how many tasks come before the first choice: the more, the surer it is.
"""

import csv
import dataclasses
import itertools
import math
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import rich.box
import rich.table

from train import files, settings
from train.errors import UserError
from train.launch import jobs
from train.run import metrics
from train.run.config import KINDS, Config, Record
from train.run.directory import extending
from train.settings import brief

FILES = ("best.json", "diverged.json", "results.csv", "results.json", "results.md")
"""What a search writes beside grid.json."""


class Rung(NamedTuple):
    """So many cells learn so many tasks in all."""

    tasks: int
    cells: int


def schedule(cells: int, tasks: int, budget: float | None) -> list[Rung]:
    """The rungs that spend most of a budget, a share of what all cells to the end would cost."""
    if budget is None:
        return [Rung(tasks, cells)]
    if not 0 < budget <= 1:
        raise UserError(f"--budget must lie in (0, 1], and is {budget:g}.")
    full, costs = cells * tasks, []
    for first in range(tasks, 0, -1):
        rungs = [Rung(first, cells)]
        while rungs[-1].tasks < tasks:
            left = math.ceil(rungs[-1].cells / 2)
            # The last one left has nothing more to be compared with.
            rungs.append(Rung(tasks if left == 1 else min(2 * rungs[-1].tasks, tasks), left))
        costs.append(cost(rungs))
        if costs[-1] <= budget * full + 1e-9:
            return rungs
    least = math.ceil(100 * min(costs) / full) / 100
    raise UserError(
        f"--budget {budget:g} is too small: {cells} cells over {tasks} tasks need {least:g}."
    )


def cost(rungs: list[Rung]) -> int:
    """How many times a cell learns a task."""
    starts = [0, *(rung.tasks for rung in rungs)]
    return sum(
        rung.cells * (rung.tasks - start) for rung, start in zip(rungs, starts, strict=False)
    )


@dataclasses.dataclass(frozen=True)
class Grid:
    """Fields to vary, and the config whose other fields all cells share; every cell is checked."""

    base: Config
    axes: dict[str, tuple[Any, ...]]
    seeds: tuple[int, ...] = (1,)
    origin: str = "A grid"
    """Whose it is."""

    def __post_init__(self) -> None:
        if self.base.run.evaluate_on != "validation":
            raise UserError(
                "A grid is judged on held-out training data, never on the test part: drop "
                "--evaluate-on test."
            )
        jobs.check_seeds(self.seeds)
        self.cells()

    def cells(self) -> list[Config]:
        """Every combination, the last axis changing fastest."""
        return [
            self.base.changed(dict(zip(self.axes, values, strict=True)))
            for values in itertools.product(*self.axes.values())
        ]

    def name(self, cell: Config) -> str:
        return settings.describe(cell.flat(), self.axes)

    def introduction(self) -> str:
        """What is about to be searched."""
        varied = "; ".join(f"{name} {_listed(values)}" for name, values in self.axes.items())
        cells, seeds = len(self.cells()), len(self.seeds)
        return (
            f"{self.origin} for {self.base.stream.name}, {self.base.record.label}: {varied}. "
            f"{cells} cell{'s' * (cells != 1)}, {seeds} seed{'s' * (seeds != 1)}, judged on 10 % "
            "of the training data."
        )


def axes(texts: Sequence[str], base: Config) -> dict[str, tuple[Any, ...]]:
    """The values of each field named, as `FIELD=V1,V2,...`."""
    found = {}
    for name, listed in settings.assignments(texts, "--vary").items():
        # A grid is of one stream, method and optimizer, and never sees the test part.
        if name in (*KINDS, "evaluate_on"):
            raise UserError(
                f"A grid cannot vary {name}. To compare several: python -m train sweep --help."
            )
        hint = base.hint(name, "--vary")
        if name in extending(base):
            raise UserError(f"A grid cannot vary {name}: more of it extends the same run.")
        values = tuple(settings.parse(name, text, hint, "--vary") for text in listed.split(","))
        twice = [value for value in values if values.count(value) > 1]
        if twice:
            raise UserError(f"--vary: {name} has {twice[0]} more than once.")
        found[name] = values
    return found


def _listed(values: tuple[Any, ...]) -> str:
    return ", ".join(map(brief, values))


def check_recorded(grid: Grid, directory: pathlib.Path) -> None:
    """Refuses a directory that holds another grid. One with more values is the same, grown."""

    def understand(found: Any) -> tuple[Record, Record]:
        axes = Record({name: list(values) for name, values in found["axes"].items()})
        return axes, Record(found["base"])

    found = jobs.read_record(directory / "grid.json", understand)
    if found is None:
        others = [name for name in FILES if (directory / name).exists()]
        if others:
            raise UserError(
                f"{directory} holds {others[0]} and no grid.json: it is no grid's. Choose another "
                "--out, or --overwrite."
            )
        return
    recorded, base = found
    if recorded.keys() != grid.axes.keys():
        differences = [f"varied {', '.join(recorded)}, not {', '.join(grid.axes)}"]
    else:
        differences = [
            f"{name} {_listed(recorded[name])}, not {_listed(values)}"
            for name, values in grid.axes.items()
            if not set(recorded[name]) <= set(values)
        ]
        shared = {name: grid.base[name] for name in grid.axes}
        differences += Record({**base, **shared}).differences(grid.base.record)
    if differences:
        raise UserError(
            f"{directory} holds another grid: {'; '.join(differences)}. Choose another --out, or "
            "--overwrite that grid."
        )


@dataclasses.dataclass(frozen=True)
class CellResult:
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


def at_the_edge(grid: Grid, cell: Config) -> list[str]:
    """Says where the best cell has the largest or smallest number tried, and could go beyond."""
    lines = []
    for name, values in grid.axes.items():
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
                where = f"{name} {brief(edge)} is the {word} tried"
                lines.append(f"{where}: a wider grid may do better.")
    return lines


def results_table(grid: Grid, outcomes: Sequence[CellResult]) -> rich.table.Table:
    """For the terminal, the best cell in bold."""
    title = f"{grid.base.stream.name}, {grid.base.record.label}"
    shown = rich.table.Table(
        title=title, title_justify="left", box=rich.box.SIMPLE_HEAD, padding=0, show_edge=False
    )
    headings, *rows = _rows(grid, outcomes)
    for heading in headings:
        shown.add_column(heading, justify="left" if heading == "status" else "right")
    for row in rows:
        shown.add_row(*row, style="bold" if row[-1] == "best" else None)
    return shown


def _rows(grid: Grid, outcomes: Sequence[CellResult]) -> list[list[str]]:
    """The headings, and a row for each cell."""
    rows, winner = [[*grid.axes, "accuracy %", "status"]], best(outcomes)
    for outcome in ranked(outcomes):
        accuracy = "-"
        if outcome.accuracies:
            spread = f" ± {100 * outcome.deviation:.1f}" if len(outcome.accuracies) > 1 else ""
            accuracy = f"{100 * outcome.mean:.1f}{spread}"
        status = "best" if outcome is winner else outcome.status
        rows.append([*(brief(outcome.cell[name]) for name in grid.axes), accuracy, status])
    return rows


def write_results(
    grid: Grid, outcomes: Sequence[CellResult], directory: pathlib.Path
) -> list[pathlib.Path]:
    """Writes results.md, results.csv and results.json; returns them."""
    page, sheet, record = (directory / f"results.{kind}" for kind in ("md", "csv", "json"))
    headings, *lines = ["| " + " | ".join(row) + " |" for row in _rows(grid, outcomes)]
    rule = "|" + "---:|" * (len(grid.axes) + 1) + "---|"
    page.write_text("\n".join([headings, rule, *lines]) + "\n")
    winner = best(outcomes)
    entries: list[dict[str, Any]] = [
        {
            "settings": {name: outcome.cell[name] for name in grid.axes},
            "status": outcome.status,
            "best": outcome is winner,
            "tasks": outcome.tasks,
            "accuracy": outcome.mean if outcome.accuracies else None,
            "deviation": outcome.deviation if outcome.accuracies else None,
            "seeds": dict(zip(grid.seeds, outcome.accuracies, strict=False)),
            "failures": outcome.failures,
        }
        for outcome in ranked(outcomes)
    ]
    files.write_json(record, entries)
    with sheet.open("w", newline="") as file:
        columns = ("status", "best", "tasks", "accuracy", "deviation")
        writer = csv.writer(file)
        writer.writerow([*grid.axes, *columns])
        for entry in entries:
            settings = map(brief, entry["settings"].values())
            writer.writerow([*settings, *(entry[name] for name in columns)])
    return [page, sheet, record]
