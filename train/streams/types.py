"""What a stream is: tasks in order, each with its images, labels and slice of the output layer."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from train.errors import UserError


@dataclasses.dataclass(frozen=True)
class Examples:
    """Rows of an array of images, which may be memory-mapped: nothing is read before `take`."""

    images: np.ndarray
    """uint8[all, height, width, channels]"""
    rows: np.ndarray
    """int64[n]: which of the images belong here."""
    labels: np.ndarray
    """int32[n]: the label of each row, as a unit of the output layer."""
    transform: Callable[[np.ndarray], np.ndarray] | None = None
    """What the task does to the images it takes (a rotation, a permutation); uint8 in and out."""

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Images and labels at these positions.

        >>> images = np.arange(4, dtype=np.uint8).reshape(4, 1, 1, 1)
        >>> part = Examples(images, rows=np.array([1, 3]), labels=np.array([7, 8], np.int32))
        >>> part.take(np.array([1]))[0].item(), part.take(np.array([1]))[1].item()
        (3, 8)
        """
        images = self.images[self.rows[indices]]
        return self.transform(images) if self.transform else images, self.labels[indices]


@dataclasses.dataclass(frozen=True)
class Task:
    """One task of a stream."""

    name: str
    """Short, for tables and plots: "classes 0-4", "90 deg", "svhn_cropped"."""
    classes: range
    """The slice of the output layer that answers for this task."""
    train: Examples
    validation: Examples
    """The part of the training data held out for search; empty where nothing is held out."""
    test: Examples


@dataclasses.dataclass(frozen=True)
class Stream:
    """Tasks in the order in which they are learned."""

    name: str
    tasks: Sequence[Task]
    num_outputs: int
    image_shape: tuple[int, int, int]
    scale: float
    offset: float
    """What a model is fed is `scale * image + offset`."""
    sources: Sequence[str]
    """Data sets with versions and sizes, for the record: "cifar100 3.0.2 (50000 + 10000)"."""


def check(stream: Stream, evaluate_on: str) -> None:
    """Refuses a task that has nothing to learn or to judge by, or labels outside its classes."""
    for task in stream.tasks:
        for part in ("train", evaluate_on):
            examples: Examples = getattr(task, part)
            if not len(examples):
                raise UserError(f"Task {task.name!r} of {stream.name} has no {part} examples.")
            wrong = [label for label in set(examples.labels.tolist()) if label not in task.classes]
            if wrong:
                raise UserError(
                    f"Task {task.name!r} of {stream.name} has {part} examples of class {wrong[0]}, "
                    f"and its classes are {task.classes.start} to {task.classes.stop - 1}."
                )


def shortened(stream: Stream, most: int) -> Stream:
    """The stream with at most so many examples in each part of a task, spread over the part."""

    def shorten(part: Examples) -> Examples:
        if len(part) <= most:
            return part
        kept = np.linspace(0, len(part) - 1, most).round().astype(np.int64)
        return dataclasses.replace(part, rows=part.rows[kept], labels=part.labels[kept])

    tasks = [
        dataclasses.replace(
            task,
            train=shorten(task.train),
            validation=shorten(task.validation),
            test=shorten(task.test),
        )
        for task in stream.tasks
    ]
    return dataclasses.replace(stream, tasks=tasks)
