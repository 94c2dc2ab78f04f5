"""The search of a grid: all cells go to the end, or with a budget only the better ones."""

import dataclasses
import pathlib
import shlex
from collections.abc import Callable, Sequence

from train import files
from train.errors import UserError
from train.launch import jobs
from train.launch.grid import (
    FILES,
    CellResult,
    Grid,
    Rung,
    at_the_edge,
    best,
    check_recorded,
    schedule,
    write_results,
)
from train.launch.jobs import Job, Streams, tasks_learned
from train.launch.processes import Failure, check_many, run_missing, say_failures
from train.run import metrics, records
from train.run.config import Config
from train.run.directory import Keeping
from train.run.progress import Progress


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
            written = write_results(grid, results, directory)
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
