"""The search of a grid: all cells go to the end, or with a budget only the better ones.

A budget is spent by successive halving over the tasks of a stream: all cells learn the first few
tasks; the better half of them learns twice as many, and so on, until those that are left reach the
end. The budget decides how many tasks come before the first choice: the more, the surer it is.
"""

import csv
import dataclasses
import itertools
import math
import pathlib
import shlex
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import rich.box
import rich.table

from train import files, settings
from train.errors import UserError
from train.launch import jobs
from train.launch.jobs import Job, Streams, tasks_learned
from train.launch.processes import Failure, check_many, run_missing, say_failures
from train.run import metrics, records
from train.run.config import KINDS, Config, Record
from train.run.directory import Keeping, extending
from train.run.progress import Progress
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


def _write_results(
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


@dataclasses.dataclass
class Search:
    """A grid on its way; what it decides depends on what the runs have measured alone."""

    grid: Grid
    directory: pathlib.Path
    """Of the grid's own files."""
    directory_of: Callable[[Config], pathlib.Path]
    """Of the runs of a cell."""
    streams: Streams
    progress: Progress
    processes: int | None
    keeping: Keeping

    def __post_init__(self) -> None:
        check_many(self.processes, self.keeping)
        self._tasks = self.streams.num_tasks(self.grid.base)
        self._diverged: dict[str, str] = {}
        """Runs that would diverge again, because they are deterministic; and how they did."""
        self._failed: dict[Job, Failure] = {}

    def run(
        self, *, budget: float | None = None, dry_run: bool = False
    ) -> tuple[list[CellResult], bool]:
        """Trains what is missing and writes what it found; False where a cell crashed.

        To diverge is an ordinary outcome of a search, unless every cell does.
        """
        grid, directory, say = self.grid, self.directory, self.progress.say
        overwrite = self.keeping.overwrite
        if budget is not None and grid.base.method.value.joint:
            raise UserError(
                f"{grid.base.method.name} learns all tasks at once, so --budget has none to save: "
                "drop it."
            )
        cells = grid.cells()
        rungs = schedule(len(cells), self._tasks, budget)
        if not overwrite:
            check_recorded(grid, directory)
        say(grid.introduction())
        listed = self._jobs(cells, self._tasks)
        if dry_run:
            self._read_diverged(listed)
            jobs.show_standing(listed, self.progress, self._diverged)
            return [], True
        content = {"base": grid.base.flat(), "axes": grid.axes, "seeds": grid.seeds}
        record = directory / "grid.json"
        with jobs.undertaking(record, content, listed, self.streams, overwrite):
            for name in FILES if overwrite else ():
                (directory / name).unlink(missing_ok=True)
            self._read_diverged(listed)
            results = self._climb(rungs)
            if budget is not None:
                spent, full = sum(each.learned for each in results), len(listed) * self._tasks
                say(
                    f"Learned {spent} of the full grid's {full} tasks, {100 * spent / full:.0f} %; "
                    f"the budget was {100 * budget:g} %."
                )
            say_failures(self._failed, self.progress)
            written = _write_results(grid, results, directory)
            say(f"Written to {directory}: {', '.join(path.name for path in written)}")
            self._say_best(best(results))
        crashed = any(not failure.diverged for failure in self._failed.values())
        return results, best(results) is not None and not crashed

    def _say_best(self, best: CellResult | None) -> None:
        """Writes the best cell's config and says how to run it on the test part."""
        path, say, places = self.directory / "best.json", self.progress.say, self.streams.places
        if best is None:
            path.unlink(missing_ok=True)
            say("No cell came to the end, so none is the best; the reasons are above.")
            return
        files.write_json(path, best.cell.changed({"evaluate_on": "test"}).flat())
        name = self.grid.name(best.cell)
        say(f"Best: {name}, {100 * best.mean:.1f} % on the held-out data.")
        for line in at_the_edge(self.grid, best.cell):
            say(line)
        command = ["python", "-m", "train", "run", "--config", str(path)]
        command += ["--data-dir", *map(str, places.data_dir)] if places.data_dir else []
        command += ["--cache-dir", str(places.cache_dir)] if places.cache_dir else []
        say(f"On the test data: {shlex.join(command)}")

    def _jobs(self, cells: Sequence[Config], tasks: int) -> list[Job]:
        """So many tasks of each cell. Seeds outermost: a search that is stopped knows something of
        every cell."""
        # Nothing is overwritten here: what the first rung learns, the second must find.
        stop_after = tasks if tasks < self._tasks else None
        keeping = dataclasses.replace(self.keeping, overwrite=False, stop_after=stop_after)
        return [
            self.streams.job(self.grid.name(cell), cell, seed, self.directory_of(cell), keeping)
            for seed in self.grid.seeds
            for cell in cells
        ]

    def _read_diverged(self, listed: list[Job]) -> None:
        found = jobs.read_record(
            self.directory / "diverged.json",
            lambda found: {name: str(why) for name, why in found.items()},
        )
        # A run that was removed since is to be tried again.
        there = [each.name for each in listed if each.directory and each.directory.exists()]
        self._diverged = {name: found[name] for name in there if found and name in found}

    def _climb(self, rungs: list[Rung]) -> list[CellResult]:
        """What became of every cell, in the order of the grid."""
        cells = going = self.grid.cells()
        outcomes: dict[Config, CellResult] = {}
        for rung, following in zip(rungs, [*rungs[1:], None], strict=True):
            asked = [job for job in self._jobs(going, rung.tasks) if job.name not in self._diverged]
            self._failed |= run_missing(asked, self.progress, self.processes, self._ended)
            outcomes |= {cell: self._judge(cell, rung.tasks) for cell in going}
            well = [cell for cell in going if outcomes[cell].accuracies]
            if following is None or not well:
                break
            # Sorting is stable: of equal cells the first goes on.
            ranked = sorted(well, key=lambda cell: -outcomes[cell].mean)
            dropped = ranked[following.cells :]
            going = [cell for cell in well if cell not in dropped]
            self.progress.say(
                f"After task {rung.tasks}, {len(going)} of {len(well)} cells are kept. Dropped:"
            )
            for cell in dropped:
                status = f"dropped after task {rung.tasks}"
                outcomes[cell] = dataclasses.replace(outcomes[cell], status=status)
                accuracy = f"{100 * outcomes[cell].mean:.1f} %"
                self.progress.say(f"  {self.grid.name(cell)}, average accuracy {accuracy}")
        return [outcomes[cell] for cell in cells]

    def _ended(self, job: Job, failure: Failure | None) -> None:
        """At once, so that not even a kill makes the next search try it again."""
        if failure is not None and failure.diverged:
            self._diverged[job.name] = failure.why
            files.write_json(self.directory / "diverged.json", self._diverged)

    def _judge(self, cell: Config, tasks: int) -> CellResult:
        listed = self._jobs([cell], tasks)
        learned = [min(tasks_learned(job), tasks) for job in listed]
        # A run may have diverged later than here, when more was asked of it.
        behind = [job for job, count in zip(listed, learned, strict=True) if count < tasks]
        for job in behind:
            if job.name in self._diverged:
                self._failed[job] = Failure(self._diverged[job.name], diverged=True)
        if behind:
            failures = {job.seed: self._failed[job] for job in behind}
            diverged = all(failure.diverged for failure in failures.values())
            return CellResult(
                cell,
                "diverged" if diverged else "failed",
                tasks=min(learned),
                learned=sum(learned),
                failures={seed: failure.why for seed, failure in failures.items()},
            )
        paths = [job.directory for job in listed if job.directory]
        matrices = [records.read_measured(path).accuracy for path in paths]
        accuracies = tuple(float(metrics.average_accuracy(a)[tasks - 1]) for a in matrices)
        return CellResult(cell, "finished", tasks, sum(learned), accuracies)
