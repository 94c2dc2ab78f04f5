"""The search of a grid: all cells go to the end, or with a budget only the better ones."""

import dataclasses
import shlex
from typing import Any

import rich.console

from train.errors import UserError
from train.launch import grid_results, halving, many
from train.launch.display import say
from train.launch.grid import Grid, check_record, introduction, record
from train.launch.grid_results import Outcome
from train.launch.halving import Rung
from train.launch.jobs import Job, tasks_learned
from train.launch.processes import Failure, check_processes
from train.run import config as configs
from train.run import metrics, rundir
from train.run.config import Config
from train.run.places import Places
from train.run.rundir import read_result


def run(
    grid: Grid,
    places: Places,
    console: rich.console.Console,
    *,
    budget: float | None = None,
    processes: int | None = None,
    dry_run: bool = False,
) -> bool:
    """Trains what is missing of a grid and writes what it found; False where a cell crashed.

    To diverge is an ordinary outcome of a search, unless every cell does.
    """
    many.check_places(places)
    check_processes(processes)
    if budget is not None and grid.base.method == "multitask":
        raise UserError(
            "multitask learns all tasks at once, so --budget has none to save: drop it."
        )
    rungs = halving.schedule(len(grid.cells()), grid.base.num_tasks, budget)
    directory = grid.directory(places)
    if not places.overwrite:
        check_record(grid, directory)
    say(console, introduction(grid))
    if dry_run:
        known = Search(grid, places, console, processes).diverged
        many.show_standing(grid.jobs(grid.cells(), places), console, known)
        return True
    many.open_data(grid.jobs(grid.cells(), places))
    with many.held(directory):
        if places.overwrite:
            many.start_over(grid.jobs(grid.cells(), places))
            for path in directory.glob("*.*"):  # All but the lock.
                path.unlink()
            # What the first rung learns, the second must find.
            places = dataclasses.replace(places, overwrite=False)
        rundir.write_json(directory / "grid.json", record(grid))
        search = Search(grid, places, console, processes)
        outcomes = search.run(rungs)
        if budget is not None:
            say(console, search.spending(outcomes, budget))
        many.say_failures(search.failed, console)
        written = grid_results.write(grid.axes, grid.seeds, outcomes, directory)
        title = f"{grid.base.stream}, {configs.label(grid.base)}"
        console.print(grid_results.table(grid.axes, outcomes, title))
        say(console, f"Written to {directory}: {', '.join(path.name for path in written)}")
        best = grid_results.best(outcomes)
        _say_best(grid, best, places, console)
    crashed = any(not failure.diverged for failure in search.failed.values())
    return best is not None and not crashed


class Search:
    """One grid on its way; what it decides depends on what the runs have measured alone."""

    def __init__(
        self, grid: Grid, places: Places, console: rich.console.Console, processes: int | None
    ):
        self._grid = grid
        self._places = places
        self._console = console
        self._processes = processes
        self._record = grid.directory(places) / "diverged.json"
        everything = grid.jobs(grid.cells(), places)
        found = many.read_record(self._record, _reasons) or {}
        # A run that was removed since is to be tried again.
        self.diverged: dict[str, str] = {
            job.name: found[job.name]
            for job in everything
            if job.name in found and job.directory.exists()
        }
        """Runs that would diverge again, because they are deterministic; and how they did."""
        self.failed: dict[Job, Failure] = {}

    def run(self, rungs: list[Rung]) -> list[Outcome]:
        """What became of every cell, in the order of the grid."""
        cells = self._grid.cells()
        outcomes: dict[Config, Outcome] = {}
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

    def spending(self, outcomes: list[Outcome], budget: float) -> str:
        """How much was learned, against every cell to the end."""
        spent = sum(outcome.learned for outcome in outcomes)
        full = len(outcomes) * len(self._grid.seeds) * self._grid.base.num_tasks
        return (
            f"Learned {spent} of the full grid's {full} tasks, {100 * spent / full:.0f} %; the "
            f"budget was {100 * budget:g} %."
        )

    def _jobs(self, cells: list[Config], tasks: int) -> list[Job]:
        end = None if tasks == self._grid.base.num_tasks else tasks
        return self._grid.jobs(cells, dataclasses.replace(self._places, stop_after=end))

    def _learn(self, cells: list[Config], tasks: int) -> None:
        jobs = [job for job in self._jobs(cells, tasks) if job.name not in self.diverged]
        self.failed |= many.run_missing(jobs, self._console, self._processes, self._ended)

    def _ended(self, job: Job, failure: Failure | None) -> None:
        """At once, so that not even a kill makes the next search try it again."""
        if failure is not None and failure.diverged:
            self.diverged[job.name] = failure.why
            rundir.write_json(self._record, self.diverged)

    def _judge(self, cell: Config, tasks: int) -> Outcome:
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
            return Outcome(
                cell,
                "diverged" if diverged else "failed",
                tasks=min(learned),
                learned=sum(learned),
                failures={seed: failure.why for seed, failure in failures.items()},
            )
        matrices = [read_result(job.directory).accuracy for job in jobs]
        accuracies = tuple(float(metrics.average_accuracy(a)[tasks - 1]) for a in matrices)
        return Outcome(cell, "finished", tasks, sum(learned), accuracies)

    def _say_decision(self, tasks: int, going: list[Config], dropped: list[Outcome]) -> None:
        cells = len(going) + len(dropped)
        say(self._console, f"After task {tasks}, {len(going)} of {cells} cells are kept. Dropped:")
        for outcome in dropped:
            name, accuracy = self._grid.name(outcome.cell), 100 * outcome.mean
            say(self._console, f"  {name}, average accuracy {accuracy:.1f} %")


def _reasons(found: Any) -> dict[str, str]:
    return {name: str(why) for name, why in found.items()}


def _say_best(
    grid: Grid, best: Outcome | None, places: Places, console: rich.console.Console
) -> None:
    """Writes the best cell's config and says how to run it on the test part."""
    path = grid.directory(places) / "best.json"
    if best is None:
        path.unlink(missing_ok=True)
        say(console, "No cell came to the end, so none is the best; the reasons are above.")
        return
    tested = dataclasses.replace(best.cell, evaluate_on="test")
    rundir.write_json(path, configs.to_json(tested))
    say(console, f"Best: {grid.name(best.cell)}, {100 * best.mean:.1f} % on the held-out data.")
    for line in grid_results.at_the_edge(grid.axes, best.cell):
        say(console, line)
    command = ["python", "-m", "train", "run", "--config", str(path)]
    command += ["--data-dir", *map(str, places.data_dir)] if places.data_dir else []
    command += ["--cache-dir", str(places.cache_dir)] if places.cache_dir else []
    say(console, f"On the test data: {shlex.join(command)}")
