"""Where the runs of a section come from: command, commit and versions, as the runs recorded."""

import collections
import dataclasses
import json

from train.report.groups import Section
from train.rundir import RunResult


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


def _record(run: RunResult) -> tuple[str, tuple[str, ...]]:
    """What `environment.json` says; it may be missing or from another version."""
    try:
        found = json.loads((run.path / "environment.json").read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError):
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
