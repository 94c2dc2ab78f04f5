"""Methods x optimizers x seeds x streams in one results directory, from a file or from options."""

import dataclasses
import itertools
import pathlib
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from train import files, settings
from train.errors import UserError, nearest
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
)
from train.launch.processes import Failure, check_processes, run_missing, say_failures
from train.run.config import KINDS, Config, Record
from train.run.directory import Keeping
from train.run.progress import Progress

Seeds = dict[Config, tuple[int, ...]]
"""The seeds of each config, in order."""
Preset = Callable[..., Config]
"""(stream, optimizer, method, model or None) -> the config that settings change."""

LISTS = {"streams": str, "methods": str, "optimizers": str, "models": str, "seeds": int}
_DEFAULTS: dict[str, Any] = {
    **{"methods": ["naive"], "models": [None], "seeds": [1]},
    **{"settings": {}, "texts": {}},
}


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
    for key, value in entry.items():
        if key not in valid:
            raise UserError(f"{source}: unknown key {key}. {nearest(key, valid)}")
        if key == "settings":
            if not isinstance(value, dict):
                raise UserError(f"{source}: settings must be a table of fields.")
        elif (
            not isinstance(value, list)
            or not value
            or any(type(each) is not LISTS[key] for each in value)
        ):
            kind = "numbers" if LISTS[key] is int else "names"
            raise UserError(f"{source}: {key} must be a list of {kind}.")
    return dict(entry)


def plan(
    options: Mapping[str, Any],
    file: Mapping[str, Any],
    preset: Preset,
    path: pathlib.Path | None = None,
) -> Seeds:
    """Every config and its seeds: the product of the options, or the union of a file's entries.

    Options replace the file's keys outside of its entries, one by one for settings; their `texts`
    are settings as they are written on a command line.
    """
    shared = _inherit(_inherit(_DEFAULTS, file), options)
    entries = file.get("runs", [])
    cells: Seeds = {}
    for number, entry in enumerate(entries or [{}], start=1):
        source = "" if path is None else str(path)
        if entries and path is not None:
            source = _entry_name(path, number)
        for config, seeds in _expand(_inherit(shared, entry), source, preset).items():
            cells[config] = tuple(dict.fromkeys((*cells.get(config, ()), *seeds)))
    return cells


def _inherit(above: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    merged = {
        name: {**above.get(name, {}), **entry.get(name, {})} for name in ("settings", "texts")
    }
    return {**above, **entry, **merged}


def _expand(entry: Mapping[str, Any], source: str, preset: Preset) -> Seeds:
    start = f"{source}: " if source else ""
    for key in ("streams", "optimizers"):
        if not entry.get(key):
            raise UserError(f"{start}A sweep needs {key}: name them with --{key}, or in a file.")
    for name in (name for name in KINDS if name in {**entry["settings"], **entry["texts"]}):
        raise UserError(f"{start}{name} is no setting of a sweep: list it under {name}s.")
    seeds = tuple(entry["seeds"])
    cells = {}
    lists = (entry[key] for key in ("streams", "methods", "optimizers", "models"))
    for stream, method, optimizer, model in itertools.product(*lists):
        try:
            check_seeds(seeds)
            config = preset(stream, optimizer, method, model)
            config = config.with_fields(entry["settings"], source or "settings")
            typed = {
                name: settings.parse(name, text, config.hint(name, "--set"), "--set")
                for name, text in entry["texts"].items()
            }
            config = config.changed(typed)
        except UserError as error:
            text = str(error)
            raise UserError(text if text.startswith(start) else f"{start}{text}") from None
        cells[config] = seeds
    return cells


def jobs(
    cells: Seeds,
    directory_of: Callable[[Config], pathlib.Path],
    streams: Streams,
    keeping: Keeping,
) -> list[Job]:
    """In the order of the plan, first seeds first: every method has a result early."""
    titles = _titles([config.record for config in cells])
    rounds = range(max(map(len, cells.values())))
    return [
        Job(
            name=f"{titles[config.record]} seed {seeds[i]}",
            config=config,
            seed=seeds[i],
            tasks=streams.num_tasks(config),
            directory=directory_of(config) / f"seed-{seeds[i]}",
            keeping=keeping,
            places=streams.places,
        )
        for i in rounds
        for config, seeds in cells.items()
        if i < len(seeds)
    ]


def _titles(listed: list[Record]) -> dict[Record, str]:
    """Stream and method, and what else tells configs of one stream and method apart."""
    titles = {}
    for record in listed:
        twins = [twin for twin in listed if _kind(twin) == _kind(record)]
        apart = [name for name in record if len({twin.get(name) for twin in twins}) > 1]
        words = [*_kind(record), settings.describe(record, apart)]
        titles[record] = " ".join(filter(None, words))
    return titles


def _kind(record: Record) -> tuple[str, str]:
    return record["stream"], record.label


def run(
    cells: Seeds,
    out: pathlib.Path,
    listed: list[Job],
    streams: Streams,
    progress: Progress,
    *,
    processes: int | None = None,
    keeping: Keeping,
    dry_run: bool = False,
) -> dict[Job, Failure]:
    """Does what is missing of a sweep; returns the runs that failed, and why."""
    check_keeping(keeping)
    check_processes(processes)
    if not keeping.overwrite:
        check_recorded(cells, out)
    if dry_run:
        show_standing(listed, progress)
        return {}
    check_data(listed, streams)
    with held(out):
        if keeping.overwrite:
            start_over(listed)
            kept = dataclasses.replace(keeping, overwrite=False)
            listed = [dataclasses.replace(job, keeping=kept) for job in listed]
        files.write_json(out / "sweep.json", record(cells))
        failed = run_missing(listed, progress, processes)
        say_failures(failed, progress)
    return failed


def record(cells: Seeds) -> list[dict[str, Any]]:
    return [{"config": config.flat(), "seeds": list(seeds)} for config, seeds in cells.items()]


def check_recorded(cells: Seeds, out: pathlib.Path) -> None:
    """Refuses a directory that holds another sweep. One with more runs is the same, grown."""
    path = out / "sweep.json"

    def understand(found: Any) -> dict[Record, tuple[int, ...]]:
        return {_as_record(each["config"]): tuple(map(int, each["seeds"])) for each in found}

    recorded = read_record(path, understand) or {}
    mine = {config.record: seeds for config, seeds in cells.items()}
    titles = _titles(list(recorded))
    for config, seeds in recorded.items():
        others = [other for other in mine if other not in recorded]
        difference = _lost(config, titles[config], seeds, mine, others)
        if difference:
            raise UserError(
                f"{out} holds another sweep: {difference}. Choose another --out, or --overwrite "
                "that sweep."
            )


def _as_record(fields: Mapping[str, Any]) -> Record:
    plain = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    found = Record(plain)
    hash(found)  # Else it could not be compared.
    return found


def _lost(
    config: Record,
    title: str,
    seeds: tuple[int, ...],
    cells: Mapping[Record, tuple[int, ...]],
    others: list[Record],
) -> str:
    """What a recorded sweep has of a config and a plan has not; nothing where it has it all."""
    if config in cells:
        lost = sorted(set(seeds) - set(cells[config]))
        return f"it has seed {', '.join(map(str, lost))} of {title} too" if lost else ""
    changes = [config.differences(other) for other in others if _kind(other) == _kind(config)]
    if changes:
        return f"its {title} has {'; '.join(min(changes, key=len))}"
    return f"it has {title} too"
