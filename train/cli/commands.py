"""What each command of the command line does."""

import pathlib

import rich.console

from train import report
from train.launch import search
from train.launch import sweep as sweeps
from train.launch.display import say as _say
from train.launch.grid import Grid
from train.launch.jobs import standing
from train.launch.seeds import Parallel, run_seeds
from train.run import config as configs
from train.run import hosts
from train.run.config import Config
from train.run.devices import Devices
from train.run.places import Places
from train.run.rundir import read_result

_DEMO = ("rmsprop", "tag-rmsprop")


def run(
    config: Config,
    seeds: tuple[int, ...],
    places: Places,
    parallel: Parallel,
    console: rich.console.Console,
    devices: Devices,
) -> bool:
    """Trains one config on its seeds and prints its table; False where a seed failed."""
    _say_untrained([config], console)
    failed = run_seeds(config, seeds, places, console, parallel, devices=devices)
    if not hosts.is_first():
        return not failed
    _say_failures(failed, places.experiment(config), console)
    well = [places.seed_directory(config, seed) for seed in seeds if seed not in failed]
    finished = [path for path in well if read_result(path).finished]
    if len(finished) < len(well):
        _say(
            console,
            f"Stopped after task {places.stop_after} of {config.num_tasks}, as asked. The same "
            "command without --stop-after goes on.",
        )
    if finished:
        _report(finished, places.experiment(config) / "report", console)
    return not failed


def demo(seeds: tuple[int, ...], places: Places, console: rich.console.Console) -> bool:
    """The embedded comparison: RMSProp against TAG-RMSProp on ten rotations of digits."""
    console.print(
        "Ten tasks, one after another: handwritten digits, each time turned by 30 degrees more.\n"
        "RMSProp and TAG-RMSProp, each at its best learning rate, one pass over the data."
    )
    finished, well = [], True
    for optimizer in _DEMO:
        config = configs.preset("rotated-digits", optimizer)
        # Small enough that starting processes would take longer than the runs.
        failed = run_seeds(config, seeds, places, console, "serial")
        _say_failures(failed, places.experiment(config), console)
        well &= not failed
        finished += [places.seed_directory(config, seed) for seed in seeds if seed not in failed]
    if finished:
        _report(finished, places.out / "rotated-digits" / "report", console)
    return well


def grid(
    chosen: Grid,
    places: Places,
    budget: float | None,
    processes: int | None,
    dry_run: bool,
    console: rich.console.Console,
) -> bool:
    """Searches a grid and prints its table; False where a cell failed."""
    _say_untrained([chosen.base], console)
    return search.run(chosen, places, console, budget=budget, processes=processes, dry_run=dry_run)


def sweep(
    plan: sweeps.Plan,
    places: Places,
    processes: int | None,
    dry_run: bool,
    console: rich.console.Console,
) -> bool:
    """Does what is missing of a sweep and reports what is finished; False where a run failed."""
    _say_untrained(list(plan), console)
    failed = sweeps.run(plan, places, console, processes=processes, dry_run=dry_run)
    if dry_run:
        return True
    jobs = sweeps.jobs(plan, places)
    finished = [job.directory for job in jobs if standing(job) == "finished"]
    if finished:
        _report(finished, places.out / "report", console)
    return not failed


def make_report(
    runs: tuple[pathlib.Path, ...], out: pathlib.Path, console: rich.console.Console
) -> None:
    _report(list(runs), out, console)


def _say_failures(
    failed: dict[int, str], experiment: pathlib.Path, console: rich.console.Console
) -> None:
    for seed, why in failed.items():
        _say(console, f"seed {seed} failed ({experiment / f'seed-{seed}'}): {why}")


def _say_untrained(chosen: list[Config], console: rich.console.Console) -> None:
    if any(config.stream == "split-cub" and config.pretrained is None for config in chosen):
        console.print(
            "split-cub: the paper starts from ImageNet weights; without --pretrained FILE the "
            "network starts from nothing."
        )


def _report(roots: list[pathlib.Path], out: pathlib.Path, console: rich.console.Console) -> None:
    groups, unfinished = report.collect(roots)
    for path in unfinished:
        _say(console, f"not finished, left out: {path}")
    for section in report.sections(groups):
        console.print(report.table(section))
    written = report.write(groups, out)
    names = [path.name for path in written if path.suffix != ".png"]
    _say(console, f"Written to {out}: {', '.join(names)}, {len(written) - len(names)} plots")
