"""`python -m train`: a function for each command; what a user can mend ends in one sentence."""

import argparse
import dataclasses
import io
import pathlib
import shlex
import signal
import sys
from collections.abc import Sequence
from typing import Annotated

import rich.console
import tyro

from train.cli import commands
from train.cli.data_listing import list_data
from train.errors import AFTER_SIGNAL, DONE, FAILED, REFUSED, UserError, nearest
from train.launch import grid as grids
from train.launch import guard, sweep
from train.launch.seeds import Parallel
from train.run import config as configs
from train.run import hosts, settings, usage
from train.run.config import Config
from train.run.devices import Devices
from train.run.places import Places
from train.run.signals import Stopped
from train.streams import prepare


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunCommand:
    """Train on a stream of tasks; the same command again resumes.

    Defaults are the preset of --stream, --method and --optimizer: name them before --help.
    """

    config: tyro.conf.OmitArgPrefixes[Config]
    places: tyro.conf.OmitArgPrefixes[Places] = dataclasses.field(default_factory=Places)
    devices: tyro.conf.OmitArgPrefixes[Devices] = dataclasses.field(default_factory=Devices)
    seeds: tuple[int, ...] = (1,)
    """Every seed is a run of its own."""
    parallel: Parallel = "auto"
    """Several seeds: one after another, in one vmapped program, or in processes. auto: vmap on an
    accelerator, processes on a CPU."""
    base: Annotated[pathlib.Path | None, tyro.conf.arg(name="config")] = None
    """Take the settings of a config.json instead of a preset; other options change them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GridCommand:
    """Search settings on held-out training data; the same command again does what is missing.

    The grid is the paper's for --method and --optimizer, or ours where it has none, or what --vary
    says. Its table and best.json go to OUT/STREAM/METHOD/OPTIMIZER/grid. A cell that diverged is
    not tried again; one that failed otherwise is.
    """

    config: tyro.conf.OmitArgPrefixes[Config]
    vary: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """FIELD=V1,V2,...: search these values instead; once for each field."""
    budget: float | None = None
    """Share of the work to spend at most: after some tasks only the better half goes on."""
    places: tyro.conf.OmitArgPrefixes[Places] = dataclasses.field(
        default_factory=lambda: Places(out=pathlib.Path("grids"))
    )
    seeds: tuple[int, ...] = (1,)
    """Every cell is judged by its mean over these."""
    processes: int | None = None
    """Runs at a time, each on its share of the cores. None: one a core; on accelerators 1."""
    dry_run: bool = False
    """Only list what is finished, under way and missing."""
    base: Annotated[pathlib.Path | None, tyro.conf.arg(name="config")] = None
    """Take the settings of a config.json instead of a preset; other options change them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepCommand:
    """Run methods x optimizers x seeds x streams; the same command again does what is missing.

    The runs go to OUT/STREAM/METHOD/OPTIMIZER, each with its preset, and a report on all of them
    to OUT/report.
    """

    file: tyro.conf.Positional[pathlib.Path | None] = None
    """TOML: the lists below, [settings], and [[runs]] with any of them. Options go before it."""
    streams: tuple[configs.StreamName, ...] = ()
    """Which tasks, in which order."""
    methods: tuple[configs.MethodName, ...] = ()
    """What is done against forgetting. Default: naive."""
    optimizers: tuple[configs.OptimizerName, ...] = ()
    """How a gradient becomes a step."""
    seeds: tuple[int, ...] = ()
    """Every seed is a run of its own. Default: 1."""
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """FIELD=VALUE: change a setting of all presets; once for each field."""
    places: tyro.conf.OmitArgPrefixes[Places] = dataclasses.field(
        default_factory=lambda: Places(out=pathlib.Path("sweep"))
    )
    processes: int | None = None
    """Runs at a time, each on its share of the cores. None: one a core; on accelerators 1."""
    dry_run: bool = False
    """Only list what is finished, under way and missing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DemoCommand:
    """RMSProp against TAG-RMSProp on rotated digits: no download, about a minute."""

    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    out: pathlib.Path = pathlib.Path("runs")
    """Where runs, tables and plots go."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataCommand:
    """List the streams: where their data are looked for, if they are there, how to get them."""

    data_dir: tuple[pathlib.Path, ...] = ()
    """Where tensorflow-datasets keeps its data; several allowed. Default: $TFDS_DATA_DIR."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareCommand:
    """Download and prepare the data of a stream (needs TensorFlow)."""

    stream: tyro.conf.Positional[configs.StreamName]
    manual_dir: pathlib.Path | None = None
    """Where the files are that you have to fetch by hand (notMNIST, miniImageNet)."""
    data_dir: pathlib.Path | None = None
    """Where to put the data. Default: $TFDS_DATA_DIR, else ~/tensorflow_datasets."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportCommand:
    """Tables of any set of runs beside the paper's figures, plots, and one HTML page."""

    runs: tyro.conf.Positional[tuple[pathlib.Path, ...]] = (pathlib.Path("runs"),)
    """Run directories, or directories of them."""
    out: pathlib.Path = pathlib.Path("report")
    """Where the report goes."""


_COMMANDS = ("run", "grid", "sweep", "demo", "data", "prepare", "report")


def parse(arguments: list[str]) -> object:
    """The command asked for, its defaults filled in from the preset it names."""
    _check_name("command", arguments[0] if arguments else "demo", _COMMANDS)
    base = _base_config(arguments) if arguments[:1] in (["run"], ["grid"]) else Config()
    judged = dataclasses.replace(base, evaluate_on="validation")
    _check_lists(arguments)
    commands = (
        Annotated[RunCommand, tyro.conf.subcommand("run", default=RunCommand(config=base))]
        | Annotated[GridCommand, tyro.conf.subcommand("grid", default=GridCommand(config=judged))]
        | Annotated[SweepCommand, tyro.conf.subcommand("sweep")]
        | Annotated[DemoCommand, tyro.conf.subcommand("demo")]
        | Annotated[DataCommand, tyro.conf.subcommand("data")]
        | Annotated[PrepareCommand, tyro.conf.subcommand("prepare")]
        | Annotated[ReportCommand, tyro.conf.subcommand("report")]
    )
    command = tyro.cli(
        commands,  # type: ignore[arg-type]
        prog="python -m train",
        description="Learn one task after another without forgetting. With no command: demo.",
        args=arguments or ["demo"],
    )
    if isinstance(command, GridCommand):
        _check_not_searched(command, judged)
    return command


def _base_config(arguments: list[str]) -> Config:
    """What the other options change: a preset, or a config file."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--config", nargs="?")
    for name in configs.CHOICES:
        first.add_argument("--" + name.replace("_", "-"), nargs="?")
    chosen, _ = first.parse_known_args(arguments[1:])
    for name, valid in configs.CHOICES.items():
        _check_name(name, getattr(chosen, name) or valid[0], valid)
    if chosen.config is None:
        default = Config()
        return configs.preset(
            chosen.stream or default.stream,
            chosen.optimizer or default.optimizer,
            chosen.method or default.method,
        )
    config = configs.read(pathlib.Path(chosen.config))
    for name in ("stream", "method", "optimizer"):
        asked, found = getattr(chosen, name), getattr(config, name)
        if asked not in (None, found):
            raise UserError(
                f"--{name} {asked} contradicts {chosen.config}, which is for {found}: drop one."
            )
    return config


def _check_lists(arguments: list[str]) -> None:
    """The names that a sweep lists."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    kinds = ("stream", "method", "optimizer")
    for kind in kinds:
        first.add_argument(f"--{kind}s", nargs="*", default=[])
    chosen, _ = first.parse_known_args(arguments[1:])
    for kind in kinds:
        for name in getattr(chosen, kind + "s"):
            _check_name(kind, name, configs.CHOICES[kind])


def _check_not_searched(command: GridCommand, default: Config) -> None:
    """A setting given for all cells would be lost where the grid varies it."""
    for name in _plan_grid(command).axes:
        if getattr(command.config, name) != getattr(default, name):
            flag = "--" + name.replace("_", "-")
            raise UserError(f"This grid varies {name}: drop {flag}, or say what to --vary.")


def _plan_grid(command: GridCommand) -> grids.Grid:
    return grids.plan(command.config, settings.axes(command.vary, "--vary"), command.seeds)


def _plan_sweep(command: SweepCommand) -> sweep.Plan:
    lists = {name: list(getattr(command, name)) for name in sweep.LISTS if getattr(command, name)}
    options = lists | {"settings": settings.assignments(command.set, "--set")}
    file = {} if command.file is None else sweep.read(command.file)
    return sweep.plan(options, file, command.file)


def _check_name(kind: str, name: str, valid: Sequence[str]) -> None:
    """Says which spelling is nearest, where the parser would only list them."""
    if name not in valid and not name.startswith("-"):
        raise UserError(f"Unknown {kind.replace('_', '-')} {name!r}. {nearest(name, valid)}")


def execute(command: object, console: rich.console.Console) -> bool:
    """Does what a command says; False where a part of it failed."""
    match command:
        case RunCommand():
            usage.check_used(command.config)
            hosts.start(command.devices)
            console.quiet = not hosts.is_first()
            with hosts.noticing():
                return commands.run(
                    command.config,
                    command.seeds,
                    command.places,
                    command.parallel,
                    console,
                    command.devices,
                )
        case GridCommand():
            return commands.grid(
                _plan_grid(command),
                command.places,
                command.budget,
                command.processes,
                command.dry_run,
                console,
            )
        case SweepCommand():
            return commands.sweep(
                _plan_sweep(command), command.places, command.processes, command.dry_run, console
            )
        case DemoCommand():
            return commands.demo(command.seeds, Places(out=command.out), console)
        case DataCommand():
            list_data(command.data_dir, console)
        case PrepareCommand():
            prepare(command.stream, manual_dir=command.manual_dir, data_dir=command.data_dir)
        case ReportCommand():
            commands.make_report(command.runs, command.out, console)
    return True


def main(arguments: list[str]) -> int:
    """Does what the arguments say, and returns how the process is to end.

    0   It is done.
    1   A run failed, and the others are done; also how Python ends after an error of ours.
    2   The request was wrong, or a file or a place cannot be read or written: one sentence on
        stderr says what to do. The parser ends with it too.
    3   Kept for a worker (`train.launch.worker`) whose loss is no longer finite.
    4   Another process of a run over several hosts is gone.
    128 + n   After signal n; a run under way is saved.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A path may be no text, and a terminal may lack ±: neither may end a run.
            stream.reconfigure(errors="backslashreplace")
    console = rich.console.Console()
    try:
        command = parse(arguments)
        if isinstance(command, RunCommand) and guard.is_needed(command.devices):
            return guard.run(arguments)
        return DONE if execute(command, console) else FAILED
    except UserError as error:
        return _refuse(str(error))
    except OSError as error:  # A full disk, a place of somebody else's, a name that is too long.
        named = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
        return _refuse(f"{named or error}")
    except MemoryError as error:
        return _refuse(f"Not enough memory. {error}")
    except hosts.Lost as lost:
        hosts.end_alone(lost)
    except KeyboardInterrupt:  # Before or after the steps, which end as below.
        return AFTER_SIGNAL + signal.SIGINT
    except Stopped as stopped:
        again = shlex.join(["python", "-m", "train", *arguments])
        console.print(
            f"Stopped at {stopped}; everything is saved. To go on: {again}",
            soft_wrap=True,
            highlight=False,
            markup=False,
        )
        return AFTER_SIGNAL + stopped.signum


def _refuse(why: str) -> int:
    line = " ".join(why.split())  # What a library says may have several.
    rich.console.Console(stderr=True).print(f"error: {line}", soft_wrap=True, markup=False)
    return REFUSED
