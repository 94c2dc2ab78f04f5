"""Where runs come from, as they recorded it: command, commit, versions; and how to repeat them."""

import collections
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from train import files
from train.errors import UserError
from train.paper.presets import foreign, usual
from train.report.groups import Section
from train.run.config import Record
from train.run.records import Measured
from train.settings import flag


class Origin(NamedTuple):
    """Runs that were made alike."""

    command: str
    facts: tuple[str, ...]  # Commit, versions, machine.
    runs: tuple[str, ...]


def origins(section: Section) -> list[Origin]:
    """The runs of a section, those with the same record together."""
    together = collections.defaultdict(list)
    for group in section.groups:
        for run in group.runs:
            together[_record(run)].append(str(run.path))
    return [Origin(*record, tuple(paths)) for record, paths in together.items()]


def command(record: Record, seeds: Sequence[int]) -> str:
    """What to type to make these runs once more.

    >>> from train.paper.presets import preset
    >>> config = preset("split-cub", "tag-adam").changed({"epochs": 2, "eps_in_sqrt": False})
    >>> command(config.record, [1])
    'python -m train run --stream split-cub --optimizer tag-adam --no-eps-in-sqrt --epochs 2
     --seeds 1'
    """
    papers, unknown = usual(record), foreign(record)
    words = ["python", "-m", "train", "run", "--stream", record["stream"]]
    words += ["--method", record["method"]] if record["method"] != "naive" else []
    words += ["--optimizer", record["optimizer"]]
    for name, value in record.items():
        # Of what comes from outside nobody knows the defaults without importing it.
        if value != papers[name] or name in unknown:
            match value:
                case bool():
                    words.append(flag(name if value else f"no_{name}"))
                case tuple():
                    words += [flag(name), *map(str, value)]
                case _:
                    words += [flag(name), str(value)]
    return shlex.join([*words, "--seeds", *map(str, seeds)])


def _record(run: Measured) -> tuple[str, tuple[str, ...]]:
    """What `environment.json` says; it may be missing or from another version."""
    try:
        found = files.read_json(run.path / "environment.json")
    except (FileNotFoundError, UserError):
        found = None
    if not isinstance(found, dict):
        return "", ("no record of how it was made",)
    facts = [f"commit {found['commit']}"] if found.get("commit") else []
    packages = found.get("packages")
    if isinstance(packages, dict):
        facts += [f"{name} {version}" for name, version in packages.items()]
    for name, words in (("python", "Python {}"), ("platform", "{}"), ("cores", "{} cores")):
        facts += [words.format(found[name])] if found.get(name) else []
    devices = found.get("devices")
    facts += map(str, devices) if isinstance(devices, list) else []
    return str(found.get("command", "")), tuple(facts)
