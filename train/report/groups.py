"""Which runs belong together: groups of seeds, and sections of groups that can be compared."""

import collections
import dataclasses
import pathlib
import re
from typing import Any

import numpy as np

from train import paper
from train.errors import UserError
from train.run import config as configs
from train.run import metrics, usage
from train.run.config import CHOICES, Config
from train.run.rundir import RunResult, find_runs, read_result
from train.streams.sources import are_complete


@dataclasses.dataclass(frozen=True)
class Group:
    """The finished runs of one config on the same data, one a seed."""

    label: str
    """Its name in tables and plots, unique in its section."""
    config: Config
    runs: list[RunResult]
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
        """Whether the runs saw the whole data sets."""
        return are_complete(self.runs[0].sources)

    def settings(self) -> list[str]:
        """What it changes in its preset, and what tells it apart; the rate has its own column."""
        usual = configs.usual(self.config)
        names = [field.name for field in dataclasses.fields(Config)]
        changed = [n for n in names if getattr(self.config, n) != getattr(usual, n)]
        hidden = [_setting(self.config, name) for name in ("learning_rate", "evaluate_on")]
        found = dict.fromkeys((*self.apart, *(_setting(self.config, name) for name in changed)))
        return [setting for setting in found if setting not in hidden]

    def mean_accuracy(self) -> np.ndarray:
        return np.mean([run.accuracy for run in self.runs], axis=0)

    def mean_alpha(self) -> np.ndarray | None:
        found = [run.alpha for run in self.runs if run.alpha is not None]
        return np.mean(found, axis=0) if found else None


@dataclasses.dataclass(frozen=True)
class Section:
    """Groups that were evaluated on the same kind of data of the same stream."""

    stream: str
    evaluate_on: str
    groups: list[Group]

    @property
    def title(self) -> str:
        parts = [self.stream]
        parts += ["validation"] if self.evaluate_on != "test" else []
        parts += ["subsets"] if not any(group.complete for group in self.groups) else []
        return ", ".join(parts)

    @property
    def slug(self) -> str:
        """Its name in file names and anchors."""
        return slug(self.title)

    @property
    def compared(self) -> bool:
        """Whether the paper has a figure for any group."""
        return any(group.reference("accuracy") for group in self.groups)

    def sources(self) -> list[str]:
        lines = [line for group in self.groups for line in group.runs[0].sources]
        return list(dict.fromkeys(lines))


def collect(roots: list[pathlib.Path]) -> tuple[list[Group], list[pathlib.Path]]:
    """Groups of finished runs below these directories, and the runs that are not finished."""
    for root in roots:
        if not root.exists():
            raise UserError(f"There is no directory {root}.")
    # A run below two of the roots is one run, however it is spelled.
    paths = {path.resolve(): path for path in reversed(find_runs(roots))}
    results = [read_result(path) for path in sorted(paths.values())]
    unfinished = [result.path for result in results if not result.finished]
    together: dict[tuple[Config, tuple[str, ...]], list[RunResult]] = collections.defaultdict(list)
    for result in results:
        if result.finished:
            # Of another version, or written by hand: what it does not use tells no two apart.
            config = usage.without_unused(result.config)
            together[config, tuple(result.sources)].append(result)
    if not together:
        where = ", ".join(map(str, roots))
        raise UserError(f"No finished run below {where}. Make one: python -m train run --help.")
    groups = [_group(config, runs) for (config, _), runs in together.items()]
    return _labelled(sorted(groups, key=_order)), unfinished


def sections(groups: list[Group]) -> list[Section]:
    """Each stream by itself, and never runs on validation data beside runs on test data."""
    found = dict.fromkeys((group.config.stream, group.config.evaluate_on) for group in groups)
    return [
        Section(
            stream,
            evaluate_on,
            [g for g in groups if (g.config.stream, g.config.evaluate_on) == (stream, evaluate_on)],
        )
        for stream, evaluate_on in found
    ]


def counterparts(without: Config, tagged: Config) -> bool:
    """Whether one is the other without TAG, as the paper pairs them.

    >>> from train.run.config import preset
    >>> tag = preset("split-cub", "tag-rmsprop")
    >>> [counterparts(preset("split-cub", name), tag) for name in ("sgd", "rmsprop", "adam")]
    [False, True, False]
    >>> counterparts(preset("split-cub", "sgd", "er"), preset("split-cub", "tag-rmsprop", "er"))
    True
    """
    if (without.method, without.epochs) != (tagged.method, tagged.epochs):
        return False
    # The paper's methods take steps of SGD; alone, TAG is held against what it sums.
    method = tagged.method != "naive" and (without.optimizer, tagged.optimizer)
    return f"tag-{without.optimizer}" == tagged.optimizer or method == ("sgd", "tag-rmsprop")


def slug(name: str) -> str:
    """Safe in a file name and in an anchor.

    >>> slug("er + tag-rmsprop (b 1.0, epochs 2)")
    'er-tag-rmsprop-b-1.0-epochs-2'
    """
    return re.sub(r"[^\w.-]+", "-", name).strip("-.")[:120]


def _group(config: Config, runs: list[RunResult]) -> Group:
    by_seed: dict[int, RunResult] = {}
    repeated = []
    for run in runs:
        if run.seed in by_seed:
            repeated.append(run.path)
        by_seed.setdefault(run.seed, run)
    ordered = [by_seed[seed] for seed in sorted(by_seed)]
    return Group("", config, ordered, repeated=tuple(repeated))


def _order(group: Group) -> tuple[Any, ...]:
    """Streams, methods and optimizers in the order in which the paper has them, then settings,
    those next to the preset first."""
    config = group.config
    places = [CHOICES[name].index(getattr(config, name)) for name in _NAMES]
    rest = [str(value) for value in configs.to_json(config).values()]
    changed = len(config.differences(configs.usual(config)))
    return *places, config.learning_rate, changed, rest, group.runs[0].sources


_NAMES = ("stream", "evaluate_on", "method", "optimizer")


def _labelled(groups: list[Group]) -> list[Group]:
    """Method and optimizer, and what a group changes in its preset and others of the two do not."""
    twins: dict[tuple[str, ...], list[Group]] = collections.defaultdict(list)
    for group in groups:
        twins[tuple(getattr(group.config, name) for name in _NAMES)].append(group)
    labelled = []
    for group in groups:
        others = twins[tuple(getattr(group.config, name) for name in _NAMES)]
        usual = configs.usual(group.config)
        extra = [
            _setting(group.config, field.name)
            for field in dataclasses.fields(Config)
            if len({getattr(other.config, field.name) for other in others}) > 1
            and getattr(group.config, field.name) != getattr(usual, field.name)
        ]
        if len({tuple(g.runs[0].sources) for g in others if g.config == group.config}) > 1:
            extra.append("; ".join(group.runs[0].sources))
        name = configs.label(group.config) + (f" ({', '.join(extra)})" if extra else "")
        labelled.append(dataclasses.replace(group, label=name, apart=tuple(extra)))
    return labelled


def _setting(config: Config, name: str) -> str:
    return f"{name} {getattr(config, name)}"
