"""The search of a grid: all cells go to the end, or with a budget only the better ones."""

import dataclasses
import itertools
import pathlib
import shlex
from collections.abc import Callable, Sequence
from typing import Any

from train import files, settings
from train.errors import UserError
from train.launch import grid_results, halving
from train.launch.grid_results import CellResult
from train.launch.halving import Rung
from train.launch.jobs import (
    Job,
    Streams,
    check_data,
    check_keeping,
    check_seeds,
    held,
    read_record,
    show_standing,
    start_over,
    tasks_learned,
)
from train.launch.processes import Failure, check_processes, run_missing, say_failures
from train.run import metrics, records
from train.run.config import KINDS, Config, Record
from train.run.directory import Keeping, extending
from train.run.progress import Progress
from train.settings import brief

FILES = ("best.json", "diverged.json", "results.csv", "results.json", "results.md")
"""What a search writes beside grid.json."""
# A grid is of one stream, method and optimizer, and never sees the test part.
_FIXED = (*KINDS, "evaluate_on")


@dataclasses.dataclass(frozen=True)
class Grid:
    """Fields to vary, and the config whose other fields all cells share."""

    base: Config
    axes: dict[str, tuple[Any, ...]]
    seeds: tuple[int, ...] = (1,)
    origin: str = "A grid"
    """Whose it is."""

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
            f"{_counted(cells, 'cell')}, {_counted(seeds, 'seed')}, judged on 10 % of the training "
            "data."
        )


def plan(
    base: Config, axes: dict[str, tuple[Any, ...]], seeds: tuple[int, ...], origin: str = "A grid"
) -> Grid:
    """The grid that varies these fields; every cell is checked."""
    if base.run.evaluate_on != "validation":
        raise UserError(
            "A grid is judged on held-out training data, never on the test part: drop "
            "--evaluate-on test."
        )
    check_seeds(seeds)
    for name in axes:
        if name in _FIXED:
            raise UserError(
                f"A grid cannot vary {name}. To compare several: python -m train sweep --help."
            )
        if name in extending(base):
            raise UserError(f"A grid cannot vary {name}: more of it extends the same run.")
    grid = Grid(base, axes, seeds, origin)
    grid.cells()  # Checks them.
    return grid


def axes(texts: Sequence[str], base: Config, option: str = "--vary") -> dict[str, tuple[Any, ...]]:
    """The values of each field named, as `FIELD=V1,V2,...`."""
    found = {}
    for name, listed in settings.assignments(texts, option).items():
        if name in _FIXED:
            raise UserError(
                f"A grid cannot vary {name}. To compare several: python -m train sweep --help."
            )
        hint = base.hint(name, option)
        values = tuple(settings.parse(name, text, hint, option) for text in listed.split(","))
        twice = [value for value in values if values.count(value) > 1]
        if twice:
            raise UserError(f"{option}: {name} has {twice[0]} more than once.")
        found[name] = values
    return found


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" + ("s" if number != 1 else "")


def _listed(values: tuple[Any, ...]) -> str:
    return ", ".join(map(brief, values))


def check_recorded(grid: Grid, directory: pathlib.Path) -> None:
    """Refuses a directory that holds another grid. One with more values is the same, grown."""

    def understand(found: Any) -> tuple[dict[str, tuple[Any, ...]], Record]:
        axes = {name: tuple(map(_plain, values)) for name, values in found["axes"].items()}
        hash(tuple(axes.items()))  # Else they could not be compared.
        return axes, Record({name: _plain(value) for name, value in found["base"].items()})

    found = read_record(directory / "grid.json", understand)
    if found is None:
        others = [name for name in FILES if (directory / name).exists()]
        if others:
            raise UserError(
                f"{directory} holds {others[0]} and no grid.json: it is no grid's. Choose another "
                "--out, or --overwrite."
            )
        return
    recorded, base = found
    differences = []
    if recorded.keys() != grid.axes.keys():
        differences.append(f"varied {', '.join(recorded)}, not {', '.join(grid.axes)}")
    else:
        for name, values in grid.axes.items():
            if not set(recorded[name]) <= set(values):
                differences.append(f"{name} {_listed(recorded[name])}, not {_listed(values)}")
        shared = {name: grid.base[name] for name in grid.axes}
        differences += Record({**base, **shared}).differences(grid.base.record)
    if differences:
        raise UserError(
            f"{directory} holds another grid: {'; '.join(differences)}. Choose another --out, or "
            "--overwrite that grid."
        )


def _plain(value: Any) -> Any:
    """A value that can be compared with that of a file."""
    return tuple(value) if isinstance(value, list) else value


@dataclasses.dataclass(frozen=True)
class Search:
    """A grid, and where and how it is searched."""

    grid: Grid
    directory: pathlib.Path
    """Of the grid's own files."""
    directory_of: Callable[[Config], pathlib.Path]
    """Of the runs of a cell."""
    streams: Streams
    progress: Progress
    processes: int | None = None
    keeping: Keeping = dataclasses.field(default_factory=Keeping)

    def jobs(self, cells: Sequence[Config], stop_after: int | None = None) -> list[Job]:
        """Seeds outermost: a search that is stopped knows something of every cell."""
        keeping = dataclasses.replace(self.keeping, stop_after=stop_after)
        return [
            Job(
                name=f"{self.grid.name(cell)} seed {seed}",
                config=cell,
                seed=seed,
                tasks=self.tasks,
                directory=self.directory_of(cell) / f"seed-{seed}",
                keeping=keeping,
                places=self.streams.places,
            )
            for seed in self.grid.seeds
            for cell in cells
        ]

    @property
    def tasks(self) -> int:
        return self.streams.num_tasks(self.grid.base)

    def run(
        self, *, budget: float | None = None, dry_run: bool = False
    ) -> tuple[list[CellResult], bool]:
        """Trains what is missing and writes what it found; False where a cell crashed.

        To diverge is an ordinary outcome of a search, unless every cell does.
        """
        grid, directory, progress = self.grid, self.directory, self.progress
        check_keeping(self.keeping)
        check_processes(self.processes)
        if budget is not None and grid.base.method.value.joint:
            raise UserError(
                f"{grid.base.method.name} learns all tasks at once, so --budget has none to save: "
                "drop it."
            )
        cells = grid.cells()
        rungs = halving.schedule(len(cells), self.tasks, budget)
        if not self.keeping.overwrite:
            check_recorded(grid, directory)
        progress.say(grid.introduction())
        if dry_run:
            show_standing(self.jobs(cells), progress, _Climb(self).diverged)
            return [], True
        check_data(self.jobs(cells), self.streams)
        with held(directory):
            if self.keeping.overwrite:
                start_over(self.jobs(cells))
                for path in directory.glob("*.*"):  # All but the lock.
                    path.unlink()
                # What the first rung learns, the second must find.
                kept = dataclasses.replace(self.keeping, overwrite=False)
                self = dataclasses.replace(self, keeping=kept)
            base = grid.base.flat()
            recorded = {"base": base, "axes": grid.axes, "seeds": grid.seeds}
            files.write_json(directory / "grid.json", recorded)
            climb = _Climb(self)
            results = climb.run(rungs)
            if budget is not None:
                progress.say(climb.spending(results, budget))
            say_failures(climb.failed, progress)
            best = grid_results.best(results)
            written = grid_results.write(grid.axes, grid.seeds, results, directory)
            progress.say(f"Written to {directory}: {', '.join(path.name for path in written)}")
            self._say_best(best)
        crashed = any(not failure.diverged for failure in climb.failed.values())
        return results, best is not None and not crashed

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
        for line in grid_results.at_the_edge(self.grid.axes, best.cell):
            say(line)
        command = ["python", "-m", "train", "run", "--config", str(path)]
        command += ["--data-dir", *map(str, places.data_dir)] if places.data_dir else []
        command += ["--cache-dir", str(places.cache_dir)] if places.cache_dir else []
        say(f"On the test data: {shlex.join(command)}")


class _Climb:
    """A search on its way; what it decides depends on what the runs have measured alone."""

    def __init__(self, search: Search):
        self._search = search
        self._grid = search.grid
        self._record = search.directory / "diverged.json"
        everything = search.jobs(self._grid.cells())
        found = read_record(self._record, _reasons) or {}
        # A run that was removed since is to be tried again.
        self.diverged: dict[str, str] = {
            job.name: found[job.name]
            for job in everything
            if job.name in found and job.directory is not None and job.directory.exists()
        }
        """Runs that would diverge again, because they are deterministic; and how they did."""
        self.failed: dict[Job, Failure] = {}

    def run(self, rungs: list[Rung]) -> list[CellResult]:
        """What became of every cell, in the order of the grid."""
        cells = self._grid.cells()
        outcomes: dict[Config, CellResult] = {}
        going = cells
        for rung, following in zip(rungs, [*rungs[1:], None], strict=True):
            self._learn(going, rung.tasks)
            outcomes |= {cell: self._judge(cell, rung.tasks) for cell in going}
            well = [cell for cell in going if outcomes[cell].accuracies]
            if following is None or not well:
                break
            # Sorting is stable: of equal cells the first goes on.
            ranked = sorted(well, key=lambda cell: -outcomes[cell].mean)
            dropped = ranked[following.cells :]
            for cell in dropped:
                status = f"dropped after task {rung.tasks}"
                outcomes[cell] = dataclasses.replace(outcomes[cell], status=status)
            going = [cell for cell in well if cell not in dropped]
            self._say_decision(rung.tasks, going, [outcomes[cell] for cell in dropped])
        return [outcomes[cell] for cell in cells]

    def spending(self, outcomes: list[CellResult], budget: float) -> str:
        """How much was learned, against every cell to the end."""
        spent = sum(outcome.learned for outcome in outcomes)
        full = len(outcomes) * len(self._grid.seeds) * self._search.tasks
        return (
            f"Learned {spent} of the full grid's {full} tasks, {100 * spent / full:.0f} %; the "
            f"budget was {100 * budget:g} %."
        )

    def _jobs(self, cells: list[Config], tasks: int) -> list[Job]:
        return self._search.jobs(cells, None if tasks == self._search.tasks else tasks)

    def _learn(self, cells: list[Config], tasks: int) -> None:
        jobs = [job for job in self._jobs(cells, tasks) if job.name not in self.diverged]
        search = self._search
        self.failed |= run_missing(jobs, search.progress, search.processes, self._ended)

    def _ended(self, job: Job, failure: Failure | None) -> None:
        """At once, so that not even a kill makes the next search try it again."""
        if failure is not None and failure.diverged:
            self.diverged[job.name] = failure.why
            files.write_json(self._record, self.diverged)

    def _judge(self, cell: Config, tasks: int) -> CellResult:
        jobs = self._jobs([cell], tasks)
        learned = [min(tasks_learned(job), tasks) for job in jobs]
        # A run may have diverged later than here, when more was asked of it.
        behind = [job for job, count in zip(jobs, learned, strict=True) if count < tasks]
        for job in behind:
            if job.name in self.diverged:
                self.failed[job] = Failure(self.diverged[job.name], diverged=True)
        if behind:
            failures = {job.seed: self.failed[job] for job in behind}
            diverged = all(failure.diverged for failure in failures.values())
            return CellResult(
                cell,
                "diverged" if diverged else "failed",
                tasks=min(learned),
                learned=sum(learned),
                failures={seed: failure.why for seed, failure in failures.items()},
            )
        paths = [job.directory for job in jobs if job.directory is not None]
        matrices = [records.read_measured(path).accuracy for path in paths]
        accuracies = tuple(float(metrics.average_accuracy(a)[tasks - 1]) for a in matrices)
        return CellResult(cell, "finished", tasks, sum(learned), accuracies)

    def _say_decision(self, tasks: int, going: list[Config], dropped: list[CellResult]) -> None:
        cells = len(going) + len(dropped)
        self._search.progress.say(
            f"After task {tasks}, {len(going)} of {cells} cells are kept. Dropped:"
        )
        for outcome in dropped:
            name, accuracy = self._grid.name(outcome.cell), 100 * outcome.mean
            self._search.progress.say(f"  {name}, average accuracy {accuracy:.1f} %")


def _reasons(found: Any) -> dict[str, str]:
    return {name: str(why) for name, why in found.items()}
