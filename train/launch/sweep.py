"""Methods x optimizers x seeds x streams in one results directory, from a file or from options."""

import itertools
import pathlib
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from train import files, settings
from train.errors import UserError, nearest
from train.launch.jobs import Job, Streams, check_seeds, read_record
from train.run.config import KINDS, Config, Record, find
from train.run.directory import Keeping

Seeds = dict[Config, tuple[int, ...]]
"""The seeds of each config, in order."""
Preset = Callable[..., Config]
"""(stream, optimizer, method, model or None) -> the config that settings change."""

LISTS = {"streams": str, "methods": str, "optimizers": str, "models": str, "seeds": int}
_DEFAULTS = dict(methods=["naive"], models=[None], seeds=[1], settings={}, texts={}, source="")


def read(path: pathlib.Path) -> dict[str, Any]:
    """What a TOML file says, its keys and types checked."""
    try:
        found = files.read(path, tomllib.loads, "TOML")
    except FileNotFoundError:
        raise UserError(f"There is no sweep file {path}.") from None
    entries = found.pop("runs", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UserError(f"{path}: write the entries of runs as [[runs]].")
    named = [(f"{path}, [[runs]] entry {i}", entry) for i, entry in enumerate(entries, start=1)]
    runs = [_checked(entry, source) for source, entry in named]
    return _checked(found, str(path), "runs") | {"runs": runs}


def _checked(entry: dict[str, Any], source: str, *more: str) -> dict[str, Any]:
    """The lists and settings of an entry; `more` are keys that it could have had besides."""
    valid = [*LISTS, "settings", *more]
    for key, value in entry.items():
        if key not in valid:
            raise UserError(f"{source}: unknown key {key}. {nearest(key, valid)}")
        if key == "settings":
            if not isinstance(value, dict):
                raise UserError(f"{source}: settings must be a table of fields.")
        elif not isinstance(value, list) or not value or {*map(type, value)} != {LISTS[key]}:
            kind = "numbers" if LISTS[key] is int else "names"
            raise UserError(f"{source}: {key} must be a list of {kind}.")
    return entry | {"source": source}


def plan(options: Mapping[str, Any], file: Mapping[str, Any], preset: Preset) -> Seeds:
    """Every config and its seeds: the product of the options, or the union of a file's entries.

    Options replace the file's keys outside of its entries, one by one for settings; their `texts`
    are settings as they are written on a command line.
    """
    shared = _inherit(_inherit(_DEFAULTS, file), options)
    cells: Seeds = {}
    for entry in file.get("runs") or [{}]:
        inherited = _inherit(shared, entry)
        start = f"{inherited['source']}: " if inherited["source"] else ""
        try:
            configs = _expand(inherited, preset)
        except UserError as error:
            text = str(error)
            raise UserError(text if text.startswith(start) else f"{start}{text}") from None
        for config in configs:
            cells[config] = tuple(dict.fromkeys((*cells.get(config, ()), *inherited["seeds"])))
    return cells


def _inherit(above: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    merged = {
        name: {**above.get(name, {}), **entry.get(name, {})} for name in ("settings", "texts")
    }
    return {**above, **entry, **merged}


def _expand(entry: Mapping[str, Any], preset: Preset) -> list[Config]:
    lists = {kind: entry.get(f"{kind}s", []) for kind in ("stream", "method", "optimizer", "model")}
    for kind, names in lists.items():
        for name in filter(None, names):
            find(kind, name)
    for kind, names in lists.items():
        if not names:
            raise UserError(f"A sweep needs {kind}s: name them with --{kind}s, or in a file.")
    for name in (name for name in KINDS if name in {**entry["settings"], **entry["texts"]}):
        raise UserError(f"{name} is no setting of a sweep: list it under {name}s.")
    check_seeds(entry["seeds"])
    configs = []
    for stream, method, optimizer, model in itertools.product(*lists.values()):
        config = preset(stream, optimizer, method, model)
        config = config.with_fields(entry["settings"], entry["source"] or "settings")
        typed = {
            name: settings.parse(name, text, config.hint(name, "--set"), "--set")
            for name, text in entry["texts"].items()
        }
        configs.append(config.changed(typed))
    return configs


def jobs(
    cells: Seeds, directory_of: Callable[[Config], pathlib.Path], streams: Streams, keeping: Keeping
) -> list[Job]:
    """In the order of the plan, first seeds first: every method has a result early."""
    titles = _titles([config.record for config in cells])
    rounds = itertools.zip_longest(*cells.values())
    return [
        streams.job(titles[config.record], config, seed, directory_of(config), keeping)
        for each in rounds
        for config, seed in zip(cells, each, strict=True)
        if seed is not None
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


def record(cells: Seeds) -> list[dict[str, Any]]:
    return [{"config": config.flat(), "seeds": list(seeds)} for config, seeds in cells.items()]


def check_recorded(cells: Seeds, out: pathlib.Path) -> None:
    """Refuses a directory that holds another sweep. One with more runs is the same, grown."""

    recorded = read_record(
        out / "sweep.json",
        lambda found: {Record(each["config"]): tuple(map(int, each["seeds"])) for each in found},
    )
    mine = {config.record: seeds for config, seeds in cells.items()}
    recorded = recorded or {}
    for config, title in _titles(list(recorded)).items():
        lost = sorted({*recorded[config]} - {*mine.get(config, ())})
        if not lost:
            continue
        changes = [
            config.differences(other)
            for other in mine
            if other not in recorded and _kind(other) == _kind(config)
        ]
        difference = f"it has {title} too"
        if config in mine:
            difference = f"it has seed {', '.join(map(str, lost))} of {title} too"
        elif changes:
            difference = f"its {title} has {'; '.join(min(changes, key=len))}"
        raise UserError(
            f"{out} holds another sweep: {difference}. Choose another --out, or --overwrite that "
            "sweep."
        )
