"""What each command of the command line does."""

import dataclasses
import itertools
import pathlib
from collections.abc import Iterable
from typing import Any

import rich.filesize
import rich.text

from train import report, settings
from train.cli import arguments
from train.cli.display import Display
from train.errors import UserError
from train.launch import grid, hosts, sweep
from train.launch.fit import fit_config
from train.launch.jobs import Places, Streams, show_standing, standing, undertaking
from train.launch.processes import check_many, run_missing, say_failures
from train.launch.search import Search
from train.paper import grids, presets
from train.run import hosts as processes
from train.run.config import Config
from train.run.devices import Devices
from train.run.directory import Keeping
from train.run.result import RunResult
from train.streams import STREAMS, data_status, prepare
from train.streams.named import prepare_advice
from train.streams.preparation import DataStatus


def execute(command: object, display: Display) -> bool:
    """Does what a command says; False where a part of it failed."""
    match command:
        case arguments.RunCommand():
            hosts.start(command.hosts)
            display.console.quiet = not processes.is_first()
            with processes.noticing():
                return _run(command, display)
        case arguments.GridCommand():
            return _grid(command, display)
        case arguments.SweepCommand():
            return _sweep(command, display)
        case arguments.DemoCommand():
            return _demo(command, display)
        case arguments.DataCommand():
            _list_data(command.data_dir, display)
        case arguments.PrepareCommand():
            prepare(command.stream, manual_dir=command.manual_dir, data_dir=command.data_dir)
        case arguments.ReportCommand():
            _report(list(command.runs), command.out, display)
    return True


def _run(command: arguments.RunCommand, display: Display) -> bool:
    """Trains one config on its seeds and prints its table."""
    chosen = {name: getattr(command, name) for name in ("parallel", "keeping", "places", "devices")}
    result, finished = _train(command.config, command, display, **chosen)
    if not processes.is_first():
        return not result.failed
    if len(finished) < len(result.runs):
        display.say(
            f"Stopped after task {command.keeping.stop_after} of {len(result.tasks)}, as asked. "
            "The same command without --stop-after goes on."
        )
    if finished:
        _report(finished, finished[0].parent / "report", display)
    return not result.failed


def _demo(command: arguments.DemoCommand, display: Display) -> bool:
    """The embedded comparison: RMSProp against TAG-RMSProp on ten rotations of digits."""
    display.console.print(
        "Ten tasks, one after another: handwritten digits, each time turned by 30 degrees more.\n"
        "RMSProp and TAG-RMSProp, each at its best learning rate, one pass over the data."
    )
    finished, well = [], True
    for optimizer in ("rmsprop", "tag-rmsprop"):
        config = presets.preset("rotated-digits", optimizer)
        # So small that processes would take longer to start than to run.
        usual = dict(parallel="serial", keeping=Keeping(), places=Places(), devices=Devices())
        result, paths = _train(config, command, display, **usual)
        finished += paths
        well &= not result.failed
    if finished:
        _report(finished, command.out / "rotated-digits" / "report", display)
    return well


def _train(
    config: Config,
    command: arguments.RunCommand | arguments.DemoCommand,
    display: Display,
    **options: Any,
) -> tuple[RunResult, list[pathlib.Path]]:
    """The result of a command's seeds, and the directories of those that are finished."""
    _say_untrained([config], display)
    experiment = presets.experiment(command.out, config.record)
    result = fit_config(config, command.seeds, experiment, progress=display, **options)
    for seed, why in result.failed.items() if processes.is_first() else ():
        display.say(f"seed {seed} failed ({experiment / f'seed-{seed}'}): {why}")
    seeds = [run.seed for run in result.runs if run.matrices.finished]
    return result, [experiment / f"seed-{seed}" for seed in seeds]


def _grid(command: arguments.GridCommand, display: Display) -> bool:
    """Searches a grid and prints its table."""
    config: Config = command.config
    usual = grids.axes(config.record)
    varied = grid.axes(command.vary, config) or dict(usual)
    if not varied:
        raise UserError("There is no grid for these: say what to --vary.")
    base = presets.preset(*(config.names()[k] for k in ("stream", "optimizer", "method", "model")))
    for name in varied:
        # A setting given for all cells would be lost where the grid varies it.
        if command.base is None and config[name] != base[name]:
            raise UserError(
                f"This grid varies {name}: drop {settings.flag(name)}, or say what to --vary."
            )
    origin = "A grid"
    if varied == usual:
        origin = "The paper's grid" if grids.is_papers(config.record) else "Our own grid"
    _say_untrained([config], display)
    search = Search(
        grid.Grid(config, varied, command.seeds, origin),
        presets.experiment(command.out, base.record) / "grid",
        lambda cell: presets.experiment(command.out, cell.record),
        Streams(command.places),
        display,
        processes=command.processes,
        keeping=command.keeping,
    )
    results, well = search.run(budget=command.budget, dry_run=command.dry_run)
    if results:
        display.console.print(grid.results_table(search.grid, results))
    return well


def _sweep(command: arguments.SweepCommand, display: Display) -> bool:
    """Does what is missing of a sweep and reports what is finished."""
    check_many(command.processes, command.keeping)
    options: dict[str, Any] = {name: list(getattr(command, name)) for name in sweep.LISTS}
    options = {name: values for name, values in options.items() if values}
    options["texts"] = settings.assignments(command.set, "--set")
    file = {} if command.file is None else sweep.read(command.file)
    cells = sweep.plan(options, file, presets.preset)
    _say_untrained(cells, display)
    streams, overwrite = Streams(command.places), command.keeping.overwrite
    jobs = sweep.jobs(
        cells,
        lambda config: presets.experiment(command.out, config.record),
        streams,
        dataclasses.replace(command.keeping, overwrite=False),
    )
    if not overwrite:
        sweep.check_recorded(cells, command.out)
    if command.dry_run:
        show_standing(jobs, display)
        return True
    record = command.out / "sweep.json"
    with undertaking(record, sweep.record(cells), jobs, streams, overwrite):
        failed = run_missing(jobs, display, command.processes)
        say_failures(failed, display)
    finished = [job.directory for job in jobs if standing(job) == "finished"]
    if finished:
        _report([path for path in finished if path], command.out / "report", display)
    return not failed


def _say_untrained(chosen: Iterable[Config], display: Display) -> None:
    for config in chosen:
        if config.stream.name == "split-cub" and not config.flat().get("pretrained"):
            display.say(
                "split-cub: the paper starts from ImageNet weights; without --pretrained FILE the "
                "network starts from nothing."
            )
            return


def _report(roots: list[pathlib.Path], out: pathlib.Path, display: Display) -> None:
    groups, unfinished = report.collect(roots)
    for path in unfinished:
        display.say(f"not finished, left out: {path}")
    for section in report.sections(groups):
        display.console.print(report.table(section))
    written = report.write(groups, out)
    names = [path.name for path in written if path.suffix != ".png"]
    plots = len(written) - len(names)
    display.say(f"Written to {out}: {', '.join(names)}, {plots} plots")


def _list_data(data_dirs: tuple[pathlib.Path, ...], display: Display) -> None:
    """Every stream, where its data are looked for, and how to get them."""
    found = data_status(data_dirs or None)
    looked_in = dict.fromkeys(str(path) for status in found for path in status.looked_in)
    display.say(f"Data are looked for in {', '.join(looked_in)}.")
    display.say("Choose other places with --data-dir or $TFDS_DATA_DIR.\n")
    for stream, group in itertools.groupby(found, key=lambda status: status.stream):
        statuses = list(group)
        spec = STREAMS[stream]
        display.console.print(rich.text.Text(stream, style="bold"), end="")
        display.say(f"  {spec.summary}")
        for status in statuses:
            display.say("  " + describe(status))
        missing = [status.data_set for status in statuses if not status.present]
        if missing:
            display.say(f"  {prepare_advice(spec, missing)}")


def describe(status: DataStatus) -> str:
    """One line on one data set.

    >>> describe(DataStatus("rotated-mnist", "mnist", (), present=False))
    'missing  mnist'
    """
    if not status.present:
        as_it_is = f" (there, but as {status.file_format})" if status.found else ""
        return f"missing  {status.data_set}{as_it_is}"
    where = f" in {status.found}" if status.found else ", comes with scikit-learn"
    size = f", {rich.filesize.decimal(status.num_bytes)}" if status.num_bytes else ""
    version = f" {status.version}" if status.version else ""
    subset = ", a subset" if status.subset else ""
    return (
        f"present  {status.data_set}{version}: {status.num_train} + {status.num_test} "
        f"images{size}{subset}{where}"
    )
