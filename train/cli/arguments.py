"""What may be given on the command line: a frozen dataclass a command, read by tyro.

The settings of `run` and `grid` are those of the stream, method, optimizer and model that are named
before them, and no others.
"""

import argparse
import dataclasses
import functools
import operator
import pathlib
from collections.abc import Sequence
from typing import Annotated, Any

import tyro

from train import settings
from train.errors import UserError, nearest
from train.launch.hosts import Hosts
from train.launch.jobs import Places
from train.launch.seeds import Parallel
from train.paper import presets
from train.run.config import KINDS, Config, find, read_fields
from train.run.devices import Devices
from train.run.directory import Keeping
from train.settings import Part

_DEFAULT = {"stream": "split-cifar100", "method": "naive", "optimizer": "tag-rmsprop"}
_HELP = {
    "stream": "Which tasks, in which order",
    "method": "What is done against forgetting, besides what the optimizer does",
    "optimizer": "How a gradient becomes a step",
    "model": "Which network",
    "loss": "What is minimised; auto: by what the targets are",
    "score": "What is reported; auto: accuracy, or a squared error turned round",
}
_FROM_FILE = Annotated[pathlib.Path | None, tyro.conf.arg(name="config")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunCommand:
    """Train on a stream of tasks; the same command again resumes, with more tasks it goes on.

    Defaults are the preset of --stream, --method and --optimizer: name them before --help.
    """

    config: Any
    out: pathlib.Path = pathlib.Path("runs")
    """Runs go to OUT/STREAM/METHOD/OPTIMIZER/seed-N, those that change the preset to a directory
    named after the change before seed-N. The same command again resumes them."""
    seeds: tuple[int, ...] = (1,)
    """Every seed is a run of its own."""
    parallel: Parallel = "auto"
    """Several seeds: one after another, in one vmapped program, or in processes. auto: vmap on an
    accelerator, processes on a CPU."""
    base: _FROM_FILE = None
    """Take settings from a config.json; what it does not name is the preset's."""
    places: tyro.conf.OmitArgPrefixes[Places] = dataclasses.field(default_factory=Places)
    keeping: tyro.conf.OmitArgPrefixes[Keeping] = dataclasses.field(default_factory=Keeping)
    devices: tyro.conf.OmitArgPrefixes[Devices] = dataclasses.field(default_factory=Devices)
    hosts: tyro.conf.OmitArgPrefixes[Hosts] = dataclasses.field(default_factory=Hosts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GridCommand:
    """Search settings on held-out training data; the same command again does what is missing.

    The grid is the paper's for --method and --optimizer, or ours where it has none, or what --vary
    says. Its table and best.json go to OUT/STREAM/METHOD/OPTIMIZER/grid. A cell that diverged is
    not tried again; one that failed otherwise is.
    """

    config: Any
    vary: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """FIELD=V1,V2,...: search these values instead; once for each field."""
    budget: float | None = None
    """Share of the work to spend at most: after some tasks only the better half goes on."""
    out: pathlib.Path = pathlib.Path("grids")
    """Where the grid goes."""
    seeds: tuple[int, ...] = (1,)
    """Every cell is judged by its mean over these."""
    processes: int | None = None
    """Runs at a time, each on its share of the cores. None: one a core; on accelerators 1."""
    dry_run: bool = False
    """Only list what is finished, under way and missing."""
    base: _FROM_FILE = None
    """Take settings from a config.json; what it does not name is the preset's."""
    places: tyro.conf.OmitArgPrefixes[Places] = dataclasses.field(default_factory=Places)
    keeping: tyro.conf.OmitArgPrefixes[Keeping] = dataclasses.field(default_factory=Keeping)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepCommand:
    """Run methods x optimizers x seeds x streams; the same command again does what is missing.

    The runs go to OUT/STREAM/METHOD/OPTIMIZER, each with its preset, and a report on all of them
    to OUT/report.
    """

    file: tyro.conf.Positional[pathlib.Path | None] = None
    """TOML: the lists below, [settings], and [[runs]] with any of them. Options go before it."""
    streams: tuple[str, ...] = ()
    """Which tasks, in which order."""
    methods: tuple[str, ...] = ()
    """What is done against forgetting. Default: naive."""
    optimizers: tuple[str, ...] = ()
    """How a gradient becomes a step."""
    models: tuple[str, ...] = ()
    """Which network. Default: the preset's."""
    seeds: tuple[int, ...] = ()
    """Every seed is a run of its own. Default: 1."""
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """FIELD=VALUE: change a setting of all presets; once for each field."""
    out: pathlib.Path = pathlib.Path("sweep")
    """Where the runs go."""
    processes: int | None = None
    """Runs at a time, each on its share of the cores. None: one a core; on accelerators 1."""
    dry_run: bool = False
    """Only list what is finished, under way and missing."""
    places: tyro.conf.OmitArgPrefixes[Places] = dataclasses.field(default_factory=Places)
    keeping: tyro.conf.OmitArgPrefixes[Keeping] = dataclasses.field(default_factory=Keeping)


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

    stream: tyro.conf.Positional[str]
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


def parse(arguments: Sequence[str]) -> object:
    """The command asked for, its defaults filled in from the preset it names."""
    arguments = list(arguments) or ["demo"]
    configured = arguments[0] in ("run", "grid")
    base = _base_config(arguments) if configured else presets.preset(**_DEFAULT)
    if configured:
        _check_settings(arguments, base)
    if arguments[0] == "grid":
        base = base.changed({"evaluate_on": "validation"})
    commands = {
        "run": _with_settings(RunCommand, base),
        "grid": _with_settings(GridCommand, base),
        "sweep": SweepCommand(),
        "demo": DemoCommand(),
        "data": DataCommand(),
        "prepare": PrepareCommand(stream=tyro.MISSING),
        "report": ReportCommand(),
    }
    if arguments[0] not in commands and not arguments[0].startswith("-"):
        raise UserError(f"Unknown command {arguments[0]!r}. {nearest(arguments[0], commands)}")
    kinds: list[Any] = [
        Annotated[type(each), tyro.conf.subcommand(name, default=each)]
        for name, each in commands.items()
    ]
    command: Any = tyro.cli(
        functools.reduce(operator.or_, kinds),
        prog="python -m train",
        description="Learn one task after another without forgetting. With no command: demo.",
        args=arguments,
    )
    if not configured:
        return command
    # The options were read into a dataclass made for these parts: back into a config.
    found = command.config
    parts: dict[str, Any] = {"run": found.run_settings}
    for kind in KINDS:
        part = getattr(base, kind)
        parts[kind] = Part(part.name, getattr(found, f"{kind}_settings", part.value))
    return dataclasses.replace(command, config=dataclasses.replace(base, **parts))


def _with_settings(kind: type, base: Config) -> Any:
    """A command whose `config` has the names of the parts and their settings as options."""
    fields: list[Any] = []
    for name, (known, _) in KINDS.items():
        described = f"{_HELP[name]}: {', '.join(known)}, or package.module:attribute."
        annotated = Annotated[str, tyro.conf.arg(help=described)]
        fields.append((name, annotated, dataclasses.field(default=getattr(base, name).name)))
    for name in (*KINDS, "run"):
        value = base.parts()[name]
        if settings.hints(value):
            annotated = Annotated[type(value), tyro.conf.OmitArgPrefixes]
            # The title above the options in --help; else that of the class.
            fields.append((f"{name}_settings", annotated, dataclasses.field(default=value)))
    options = dataclasses.make_dataclass("Settings", fields, frozen=True, kw_only=True)
    made = dataclasses.make_dataclass(
        kind.__name__,
        [("config", Annotated[options, tyro.conf.OmitArgPrefixes], dataclasses.field())],
        bases=(kind,),
        frozen=True,
        kw_only=True,
    )
    made.__doc__ = kind.__doc__
    return made(config=options())


def _base_config(arguments: Sequence[str]) -> Config:
    """What the other options change: a preset, filled up from a config file."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--config", nargs="?")
    for kind in KINDS:
        first.add_argument(f"--{kind}", nargs="?")
    chosen, _ = first.parse_known_args(arguments[1:])
    fields = read_fields(pathlib.Path(chosen.config)) if chosen.config else {}
    fields.pop("seed", None)  # A run's own file names its seed; a config serves any.
    names: dict[str, str] = {}
    for kind in KINDS:
        asked, found = getattr(chosen, kind), fields.pop(kind, None)
        if found is not None and not isinstance(found, str):
            raise UserError(f"{chosen.config}: {kind} must be a name.")
        if None not in (asked, found) and asked != found:
            raise UserError(
                f"--{kind} {asked} contradicts {chosen.config}, which is for {found}: drop one."
            )
        if asked or found:
            names[kind] = str(asked or found)
    loss, score = names.pop("loss", "auto"), names.pop("score", "auto")
    preset = presets.preset(**(_DEFAULT | names))
    config = dataclasses.replace(preset, loss=find("loss", loss), score=find("score", score))
    return config.with_fields(fields, chosen.config) if fields else config


def _check_settings(arguments: Sequence[str], base: Config) -> None:
    """Says of a setting that would change nothing whose it is."""
    mine = base.flat()
    for word in arguments:
        name = word.partition("=")[0].removeprefix("--").removeprefix("no-").replace("-", "_")
        if not word.startswith("--") or name in mine:
            continue
        for kind, (known, _) in KINDS.items():
            owners = [each for each, part in known.items() if name in settings.hints(part)]
            if owners:
                raise UserError(
                    f"{settings.flag(name)} is a setting of --{kind} {' or '.join(owners)}, and "
                    f"would change nothing with {getattr(base, kind).name}."
                )
