"""Where runs come from, as they recorded it: command, commit, versions; and how to repeat them."""

import collections
import dataclasses
import shlex
from typing import Any

from train import files
from train.errors import UserError
from train.report.groups import Group, Section
from train.run import config as configs
from train.run.rundir import RunResult


@dataclasses.dataclass(frozen=True)
class Origin:
    """Runs that were made alike."""

    command: str
    facts: tuple[str, ...]
    """Commit, versions, machine."""
    runs: tuple[str, ...]


def origins(section: Section) -> list[Origin]:
    """The runs of a section, those with the same record together."""
    together: dict[tuple[str, tuple[str, ...]], list[str]] = collections.defaultdict(list)
    for group in section.groups:
        for run in group.runs:
            together[_record(run)].append(str(run.path))
    return [Origin(*record, tuple(paths)) for record, paths in together.items()]


def again(group: Group) -> str:
    """The command that makes the runs of a group once more.

    >>> import dataclasses
    >>> from train.run.config import preset
    >>> config = dataclasses.replace(preset("split-cub", "tag-adam"), epochs=2, eps_in_sqrt=False)
    >>> again(Group("", config, []))
    'python -m train run --stream split-cub --optimizer tag-adam --no-eps-in-sqrt --epochs 2'
    """
    config, usual = group.config, configs.usual(group.config)
    words = ["python", "-m", "train", "run", "--stream", config.stream]
    words += ["--method", config.method] if config.method != "naive" else []
    words += ["--optimizer", config.optimizer]
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if value != getattr(usual, field.name):
            words += _option(field.name.replace("_", "-"), value)
    seeds = [str(run.seed) for run in group.runs]
    return shlex.join([*words, *(["--seeds", *seeds] if seeds else [])])


def _option(name: str, value: Any) -> list[str]:
    match value:
        case bool():
            return [f"--{name}" if value else f"--no-{name}"]
        case tuple():
            return [f"--{name}", *map(str, value)]
    return [f"--{name}", str(value)]


def _record(run: RunResult) -> tuple[str, tuple[str, ...]]:
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
