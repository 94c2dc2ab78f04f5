"""Methods x optimizers x seeds x streams in one results directory, from a file or from options."""

import dataclasses
import itertools
import pathlib
import tomllib
from collections.abc import Mapping
from typing import Any

import rich.console

from train import files
from train.errors import UserError, nearest
from train.launch import many
from train.launch.jobs import Job, describe
from train.launch.processes import Failure, check_processes
from train.launch.seeds import check_seeds
from train.run import config as configs
from train.run import rundir, usage
from train.run.config import Config
from train.run.places import Places

Plan = dict[Config, tuple[int, ...]]
"""The seeds of each config, in order."""

LISTS = {"streams": str, "methods": str, "optimizers": str, "seeds": int}
_DEFAULTS: dict[str, Any] = {"methods": ["naive"], "seeds": [1], "settings": {}}


def read(path: pathlib.Path) -> dict[str, Any]:
    """What a TOML file says, its keys and types checked."""
    try:
        found = files.read(path, tomllib.loads, "TOML")
    except FileNotFoundError:
        raise UserError(f"There is no sweep file {path}.") from None
    entries = found.pop("runs", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UserError(f"{path}: write the entries of runs as [[runs]].")
    runs = [_checked(entry, _entry_name(path, i)) for i, entry in enumerate(entries, start=1)]
    return _checked(found, str(path), "runs") | {"runs": runs}


def _entry_name(path: pathlib.Path, number: int) -> str:
    return f"{path}, [[runs]] entry {number}"


def _checked(entry: dict[str, Any], source: str, *more: str) -> dict[str, Any]:
    """The lists and settings of an entry; `more` are keys that it could have had besides."""
    valid = [*LISTS, "settings", *more]
    checked = dict(entry)
    for key, value in entry.items():
        if key not in valid:
            raise UserError(f"{source}: unknown key {key}. {nearest(key, valid)}")
        if key == "settings":
            if not isinstance(value, dict):
                raise UserError(f"{source}: settings must be a table of fields.")
            checked[key] = configs.check_fields(value, source)
        elif (
            not isinstance(value, list)
            or not value
            or any(type(each) is not LISTS[key] for each in value)
        ):
            kind = "numbers" if LISTS[key] is int else "names"
            raise UserError(f"{source}: {key} must be a list of {kind}.")
    return checked


def plan(
    options: Mapping[str, Any], file: Mapping[str, Any], path: pathlib.Path | None = None
) -> Plan:
    """Every config and its seeds: the product of the options, or the union of a file's entries.

    Options replace the file's keys outside of its entries, one by one for settings.

    >>> found = plan(dict(streams=["split-cub"], optimizers=["sgd", "adam"], seeds=[1, 2]), {})
    >>> [(config.optimizer, seeds) for config, seeds in found.items()]
    [('sgd', (1, 2)), ('adam', (1, 2))]
    """
    shared = _inherit(_inherit(_DEFAULTS, file), options)
    entries = file.get("runs", [])
    cells: Plan = {}
    for number, entry in enumerate(entries or [{}], start=1):
        source = "" if path is None else f"{path}: "
        if entries and path is not None:
            source = f"{_entry_name(path, number)}: "
        for config, seeds in _expand(_inherit(shared, entry), source).items():
            cells[config] = tuple(dict.fromkeys((*cells.get(config, ()), *seeds)))
    return cells


def _inherit(above: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    settings = {**above.get("settings", {}), **entry.get("settings", {})}
    return {**above, **entry, "settings": settings}


def _expand(entry: Mapping[str, Any], source: str) -> Plan:
    for key in ("streams", "optimizers"):
        if not entry.get(key):
            raise UserError(f"{source}A sweep needs {key}: name them with --{key}, or in a file.")
    for name in ("stream", "method", "optimizer"):
        if name in entry["settings"]:
            raise UserError(f"{source}{name} is no setting of a sweep: list it under {name}s.")
    seeds = tuple(entry["seeds"])
    cells = {}
    for names in itertools.product(entry["streams"], entry["methods"], entry["optimizers"]):
        stream, method, optimizer = names
        try:
            check_seeds(seeds)
            preset = configs.preset(stream, optimizer, method)
            config = dataclasses.replace(preset, **entry["settings"])
            usage.check_used(config)
        except UserError as error:
            raise UserError(f"{source}{error}") from None
        cells[config] = seeds
    return cells


def jobs(cells: Plan, places: Places) -> list[Job]:
    """In the order of the plan, first seeds first: every method has a result early."""
    titles = _titles(list(cells))
    rounds = range(max(map(len, cells.values())))
    return [
        Job(name=f"{titles[config]} seed {seeds[i]}", config=config, seed=seeds[i], places=places)
        for i in rounds
        for config, seeds in cells.items()
        if i < len(seeds)
    ]


def _titles(listed: list[Config]) -> dict[Config, str]:
    """Stream and method, and what else tells configs of one stream and method apart."""
    titles = {}
    for config in listed:
        twins = [twin for twin in listed if _kind(twin) == _kind(config)]
        apart = [
            field.name
            for field in dataclasses.fields(Config)
            if len({getattr(twin, field.name) for twin in twins}) > 1
        ]
        titles[config] = " ".join([*_kind(config), *filter(None, [describe(config, apart)])])
    return titles


def _kind(config: Config) -> tuple[str, str]:
    return config.stream, configs.label(config)


def run(
    cells: Plan,
    places: Places,
    console: rich.console.Console,
    *,
    processes: int | None = None,
    dry_run: bool = False,
) -> dict[Job, Failure]:
    """Does what is missing of a sweep; returns the runs that failed, and why."""
    many.check_places(places)
    check_processes(processes)
    if not places.overwrite:
        check_record(cells, places.out)
    if dry_run:
        many.show_standing(jobs(cells, places), console)
        return {}
    many.open_data(jobs(cells, places))
    with many.held(places.out):
        if places.overwrite:
            many.start_over(jobs(cells, places))
            places = dataclasses.replace(places, overwrite=False)
        rundir.write_json(places.out / "sweep.json", record(cells))
        failed = many.run_missing(jobs(cells, places), console, processes)
        many.say_failures(failed, console)
    return failed


def record(cells: Plan) -> list[dict[str, Any]]:
    return [{"config": configs.to_json(c), "seeds": list(seeds)} for c, seeds in cells.items()]


def check_record(cells: Plan, out: pathlib.Path) -> None:
    """Refuses a directory that holds another sweep. One with more runs is the same, grown."""
    path = out / "sweep.json"

    def understand(found: Any) -> Plan:
        return {configs.from_json(e["config"], path): tuple(map(int, e["seeds"])) for e in found}

    recorded = many.read_record(path, understand) or {}
    for config, seeds in recorded.items():
        difference = _lost(config, seeds, cells, others=[c for c in cells if c not in recorded])
        if difference:
            raise UserError(
                f"{out} holds another sweep: {difference}. Choose another --out, or --overwrite "
                "that sweep."
            )


def _lost(config: Config, seeds: tuple[int, ...], cells: Plan, others: list[Config]) -> str:
    """What a recorded sweep has of a config and a plan has not; nothing where it has it all."""
    title = " ".join(_kind(config))
    if config in cells:
        lost = sorted(set(seeds) - set(cells[config]))
        return f"it has seed {', '.join(map(str, lost))} of {title} too" if lost else ""
    changes = [config.differences(other) for other in others if _kind(other) == _kind(config)]
    if changes:
        return f"its {title} has {'; '.join(min(changes, key=len))}"
    changed = configs.variant(config)
    return f"it has {title}{' with ' * bool(changed)}{changed} too"
