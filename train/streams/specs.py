"""What the registry says of a stream and of its data sets, and what a plan of a task is."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np


@dataclasses.dataclass(frozen=True)
class DataSet:
    """A data set as tensorflow-datasets names it."""

    name: str
    num_classes: int
    full_size: tuple[int, int]
    """Training and test examples of the whole data set: fewer are called a subset."""
    manual: str = ""
    """What the user must bring, for our own builders; empty where TFDS downloads."""
    embedded: bool = False
    """Comes with scikit-learn: nothing to prepare, nothing to cache."""

    def is_subset(self, num_train: int, num_test: int) -> bool:
        """Whether so many examples are less than the whole data set."""
        return num_train + num_test < sum(self.full_size)


@dataclasses.dataclass(frozen=True)
class StreamSpec:
    """One entry of the registry `STREAMS`."""

    name: str
    summary: str
    """One line for `python -m train data`."""
    data_sets: tuple[str, ...]
    plan: "Planner"
    """How the data sets become tasks."""
    default_tasks: int
    classes_per_task: int
    """At the default number of tasks."""
    image_shape: tuple[int, int, int]
    same_classes: bool = False
    """Whether all tasks have the same classes, so that they may share one head."""
    scale: float = 1 / 255
    offset: float = 0.0
    """What a model is fed is `scale * image + offset`."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """One task, before its data are read."""

    name: str
    data_set: str
    classes: Sequence[int]
    """Classes of the data set, in the order of the task's output units."""
    transform: Callable[[np.ndarray], np.ndarray] | None = None


Planner: TypeAlias = Callable[[StreamSpec, int, int | None], list[Plan]]
"""(spec, number of tasks, order seed or None) -> one plan a task."""
