"""`python -m train`: a function for each command; what a user can mend ends in one sentence."""

import argparse
import dataclasses
import pathlib
import shlex
import sys
from collections.abc import Sequence
from typing import Annotated

import rich.console
import tyro

from train import commands
from train import config as configs
from train.config import Config
from train.data_listing import list_data
from train.errors import UserError, nearest
from train.places import Places
from train.seeds import Parallel
from train.signals import Stopped
from train.streams import prepare


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunCommand:
    """Train on a stream of tasks; the same command again resumes.

    Defaults are the preset of --stream, --method and --optimizer: name them before --help.
    """

    config: tyro.conf.OmitArgPrefixes[Config]
    places: tyro.conf.OmitArgPrefixes[Places] = dataclasses.field(default_factory=Places)
    seeds: tuple[int, ...] = (1,)
    """Every seed is a run of its own."""
    parallel: Parallel = "auto"
    """Several seeds: one after another, in one vmapped program, or in processes. auto: vmap on an
    accelerator, processes on a CPU."""
    base: Annotated[pathlib.Path | None, tyro.conf.arg(name="config")] = None
    """Take the settings of a config.json instead of a preset; other options change them."""


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


_COMMANDS = ("run", "demo", "data", "prepare", "report")


def parse(arguments: list[str]) -> object:
    """The command asked for, its defaults filled in from the preset it names."""
    _check_name("command", arguments[0] if arguments else "demo", _COMMANDS)
    run = RunCommand(config=_base_config(arguments) if arguments[:1] == ["run"] else Config())
    commands = (
        Annotated[RunCommand, tyro.conf.subcommand("run", default=run)]
        | Annotated[DemoCommand, tyro.conf.subcommand("demo")]
        | Annotated[DataCommand, tyro.conf.subcommand("data")]
        | Annotated[PrepareCommand, tyro.conf.subcommand("prepare")]
        | Annotated[ReportCommand, tyro.conf.subcommand("report")]
    )
    return tyro.cli(
        commands,  # type: ignore[arg-type]
        prog="python -m train",
        description="Learn one task after another without forgetting. With no command: demo.",
        args=arguments or ["demo"],
    )


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


def _check_name(kind: str, name: str, valid: Sequence[str]) -> None:
    """Says which spelling is nearest, where the parser would only list them."""
    if name not in valid and not name.startswith("-"):
        raise UserError(f"Unknown {kind.replace('_', '-')} {name!r}. {nearest(name, valid)}")


def execute(command: object, console: rich.console.Console) -> bool:
    """Does what a command says; False where a part of it failed."""
    match command:
        case RunCommand():
            configs.check_used(command.config)
            return commands.run(
                command.config, command.seeds, command.places, command.parallel, console
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
    """Returns 0; 1 where a run failed; 2 where the request was wrong; 128 + n after signal n."""
    console = rich.console.Console()
    try:
        return 0 if execute(parse(arguments), console) else 1
    except UserError as error:
        rich.console.Console(stderr=True).print(f"error: {error}", soft_wrap=True, markup=False)
        return 2
    except Stopped as stopped:
        again = shlex.join(["python", "-m", "train", *arguments])
        console.print(
            f"Stopped at {stopped}; everything is saved. To go on: {again}",
            soft_wrap=True,
            highlight=False,
            markup=False,
        )
        return 128 + stopped.signum


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
