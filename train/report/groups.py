"""Which runs belong together: groups of seeds, and sections of groups that can be compared."""

import collections
import dataclasses
import pathlib
import re
from typing import Any, NamedTuple

import numpy as np

from train import files, paper
from train.errors import UserError
from train.paper.presets import foreign, usual
from train.plots import NOTHING
from train.run import metrics
from train.run.config import KINDS, Record
from train.run.records import Measured, find_runs, read_measured
from train.streams.data_sets import are_complete


@dataclasses.dataclass(frozen=True)
class Group:
    """The finished runs of one config on the same data, one a seed."""

    label: str  # In tables and plots, unique in its section.
    config: Record
    runs: list[Measured]
    apart: tuple[str, ...] = ()
    """Settings that tell it from others of the same method and optimizer; none for the preset."""
    repeated: tuple[pathlib.Path, ...] = ()
    """Runs of a seed that is here already: left out, or the seed would count twice."""

    def values(self, field: str) -> np.ndarray:
        """One metric at the stream's end, for each seed."""
        return np.array([getattr(metrics.summary(run.accuracy), field) for run in self.runs])

    def reference(self, field: str) -> paper.Reference | None:
        """The paper's figure; none for runs that saw a part of the data only."""
        return paper.reference(self.config, field) if self.complete else None

    @property
    def complete(self) -> bool:
        """Whether the runs saw the whole data sets; a stream from outside is whole as it is."""
        built_in = self.config["stream"] in KINDS["stream"][0]
        return not built_in or are_complete(self.runs[0].sources)

    @property
    def score(self) -> str:
        return "accuracy" if self.config["score"] == "auto" else self.config["score"]

    def number(self, name: str) -> float | None:
        """A setting, unless it is none or no number: what comes from outside may have any."""
        value = self.config.get(name)
        return value if isinstance(value, int | float) else None

    @property
    def rate(self) -> str:
        """The step size, of an optimizer that calls it so."""
        rate = self.number("learning_rate")
        return NOTHING if rate is None else f"{rate:g}"

    def settings(self) -> list[str]:
        """What it changes in its preset, and what tells it apart; the rate has its own column."""
        hidden = [f"{name} {self.config.get(name)}" for name in ("learning_rate", "evaluate_on")]
        changed = (f"{name} {self.config[name]}" for name in _changed(self.config))
        return [each for each in dict.fromkeys((*self.apart, *changed)) if each not in hidden]

    def mean_accuracy(self) -> np.ndarray:
        return np.mean([run.accuracy for run in self.runs], axis=0)


@dataclasses.dataclass(frozen=True)
class Section:
    """Groups that were evaluated on the same kind of data of the same stream, by one score."""

    stream: str
    evaluate_on: str
    score: str
    groups: list[Group]

    @property
    def title(self) -> str:
        parts = [self.stream]
        parts += [self.score] if self.score != "accuracy" else []
        parts += ["validation"] if self.evaluate_on != "test" else []
        parts += ["subsets"] if not any(group.complete for group in self.groups) else []
        return ", ".join(parts)

    @property
    def slug(self) -> str:
        return slug(self.title)

    @property
    def compared(self) -> bool:
        """Whether the paper has a figure for any group."""
        return any(group.reference("accuracy") for group in self.groups)

    def sources(self) -> list[str]:
        lines = [line for group in self.groups for line in group.runs[0].sources]
        return list(dict.fromkeys(lines))


class Origin(NamedTuple):
    """Runs that were made alike."""

    command: str
    facts: tuple[str, ...]  # Commit, versions, machine.
    runs: tuple[str, ...]


def collect(roots: list[pathlib.Path]) -> tuple[list[Group], list[pathlib.Path]]:
    """Groups of finished runs below these directories, and the runs that are not finished."""
    for root in roots:
        if not root.exists():
            raise UserError(f"There is no directory {root}.")
    # A run below two of the roots is one run, however it is spelled.
    paths = {path.resolve(): path for path in reversed(find_runs(roots))}
    found = [read_measured(path) for path in sorted(paths.values())]
    unfinished = [run.path for run in found if not run.finished]
    together = collections.defaultdict(list)
    for run in found:
        if run.finished:
            together[run.config, tuple(run.sources)].append(run)
    if not together:
        where = ", ".join(map(str, roots))
        raise UserError(f"No finished run below {where}. Make one: python -m train run --help.")
    groups = []
    for (config, _), runs in together.items():
        by_seed = {run.seed: run for run in reversed(runs)}
        repeated = tuple(run.path for run in runs if run is not by_seed[run.seed])
        ordered = [by_seed[seed] for seed in sorted(by_seed)]
        groups.append(Group("", config, ordered, repeated=repeated))
    return _labelled(sorted(groups, key=_order)), unfinished


def sections(groups: list[Group]) -> list[Section]:
    """Each stream by itself, and never runs on validation data beside runs on test data."""
    found: dict[tuple[str, str, str], list[Group]] = collections.defaultdict(list)
    for group in groups:
        found[group.config["stream"], group.config["evaluate_on"], group.score].append(group)
    return [Section(*shared, those) for shared, those in found.items()]


def origins(section: Section) -> list[Origin]:
    """The runs of a section, those with the same record together."""
    together: dict[tuple[str, tuple[str, ...]], list[str]] = collections.defaultdict(list)
    for group in section.groups:
        for run in group.runs:
            together[_record(run)].append(str(run.path))
    return [Origin(*record, tuple(paths)) for record, paths in together.items()]


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


def counterparts(without: Record, tagged: Record) -> bool:
    """Whether one is the other without TAG, as the paper pairs them."""
    if any(without[name] != tagged[name] for name in ("method", "epochs")):
        return False
    plain, tag = without["optimizer"], tagged["optimizer"]
    # The paper's methods take steps of SGD; alone, TAG is held against what it sums.
    with_method = tagged["method"] != "naive" and (plain, tag) == ("sgd", "tag-rmsprop")
    return tag == f"tag-{plain}" or with_method


def slug(name: str) -> str:
    """Safe in a file name and in an anchor."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.")[:120]


def _kind(group: Group) -> dict[str, str]:
    """What it shares with those that only settings tell from it."""
    names = {name: group.config[name] for name in ("stream", "evaluate_on", "method", "optimizer")}
    return names | {"score": group.score}


def _order(group: Group) -> tuple[Any, ...]:
    """Streams, methods and optimizers in the order in which the paper has them, those from outside
    behind; then settings, those next to the preset first."""
    config = group.config
    places = []
    for kind, name in _kind(group).items():
        known = list(KINDS[kind][0]) if kind in KINDS else []
        places.append((known.index(name), "") if name in known else (len(known), name))
    rate, rest = group.number("learning_rate") or 0, [str(value) for value in config.values()]
    return (*places, rate, len(_changed(config)), rest, group.runs[0].sources)


def _labelled(groups: list[Group]) -> list[Group]:
    """Method and optimizer, and what a group changes in its preset and others of the two do not."""
    labelled = []
    for group in groups:
        others = [other for other in groups if _kind(other) == _kind(group)]
        unlike = {*_changed(group.config), *foreign(group.config)}
        extra = [
            f"{name} {value}"
            for name, value in group.config.items()
            if name in unlike and len({other.config.get(name) for other in others}) > 1
        ]
        if len({tuple(g.runs[0].sources) for g in others if g.config == group.config}) > 1:
            extra.append("; ".join(group.runs[0].sources))
        name = group.config.label + (f" ({', '.join(extra)})" if extra else "")
        labelled.append(dataclasses.replace(group, label=name, apart=tuple(extra)))
    return labelled


def _changed(config: Record) -> list[str]:
    """What differs from the preset."""
    papers = usual(config)
    return [name for name in config if config[name] != papers[name]]
