"""What a stream is: tasks in order, each with its examples and the outputs that answer for it."""

import dataclasses
import hashlib
import operator
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from train.errors import UserError

Pair: TypeAlias = tuple[npt.ArrayLike, npt.ArrayLike]
"""Inputs [n, ...] and targets [n, ...]."""
Transform: TypeAlias = Callable[[np.ndarray], np.ndarray]
PARTS = ("train", "validation", "test")
_NONE = np.zeros(0, np.int64)


@dataclasses.dataclass(frozen=True, eq=False)
class Examples:
    """Rows of an array, which may be memory-mapped: nothing is read before `take`."""

    x: np.ndarray  # [all, ...], of any shape and dtype: images, features, token ids
    rows: np.ndarray  # int64[n]: which rows of x belong here
    y: np.ndarray  # [n, ...]: units of the output layer, numbers, token ids
    transform: Transform | None = None
    """What the task does to the inputs that it takes (a rotation, a permutation)."""

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets at these positions.

        >>> x = np.arange(4, dtype=np.uint8).reshape(4, 1)
        >>> part = Examples(x, rows=np.array([1, 3]), y=np.array([7, 8], np.int32))
        >>> part.take(np.array([1]))[0].item(), part.take(np.array([1]))[1].item()
        (3, 8)
        """
        x = self.x[self.rows[indices]]
        return self.transform(x) if self.transform else x, self.y[indices]

    def only(self, chosen: np.ndarray) -> "Examples":
        """Those at these positions, or under this mask."""
        return dataclasses.replace(self, rows=self.rows[chosen], y=self.y[chosen])


@dataclasses.dataclass(frozen=True, eq=False, init=False)
class Task:
    """One task of a stream.

    Each part may be given as a pair of arrays. Where the targets are one integer each, they are
    classes unless `classes=()` says that they are none, as the next token of a text is none.

    >>> x, y = np.zeros((4, 2)), np.array([0, 2, 0, 2])
    >>> Task("two of three", train=(x, y), test=(x, y)).classes
    (0, 2)
    >>> print(Task("numbers", train=(x, y / 2), test=(x, y / 2)).classes)
    None
    """

    name: str  # Short, for tables and plots: "classes 0-4", "90 deg", "svhn_cropped".
    train: Examples
    test: Examples
    validation: Examples  # Held out of the training data for search; mostly empty.
    classes: Sequence[int] | None
    """The units of the output layer that answer for this task; None where targets are no classes.
    By default the labels of train and test."""

    def __init__(
        self,
        name: str,
        train: Examples | Pair,
        test: Examples | Pair,
        validation: Examples | Pair | None = None,
        classes: Sequence[int] | None = None,
    ):
        learned = _examples(train, f"train of task {name!r}")
        judged = _examples(test, f"test of task {name!r}")
        held = learned.only(_NONE)
        if validation is not None:
            held = _examples(validation, f"validation of {name!r}")
        labels = (learned.y, judged.y)
        if classes is None and all(y.ndim == 1 and y.dtype.kind in "iu" for y in labels):
            classes = np.unique(np.concatenate(labels)).tolist()
        units = _units(classes, name) if classes is not None and len(classes) else None
        fields = dict(name=name, train=learned, test=judged, validation=held, classes=units)
        self.__dict__.update(fields)  # Frozen from here on.

    def with_parts(self, **parts: Examples) -> "Task":
        """The task with other examples and the same classes."""
        return dataclasses.replace(self, **parts, classes=self.classes or ())

    def changed(self, change: Callable[[Examples], Examples]) -> "Task":
        """The task with a change in each of its parts."""
        return self.with_parts(**{part: change(getattr(self, part)) for part in PARTS})


@dataclasses.dataclass(frozen=True, eq=False)
class Stream:
    """Tasks in the order in which they are learned."""

    name: str
    tasks: Sequence[Task]
    num_outputs: int = None  # pyright: ignore[reportAssignmentType]
    """Of the model; by default as many as the classes or targets need."""
    scale: float | None = None
    """A model is fed `scale * x + offset` in float32; None: x as it is."""
    offset: float = 0.0
    sources: Sequence[str] = ()  # For the record: "cifar100 3.0.2 (50000 + 10000)".
    class_names: Sequence[str] = ()  # One for each output, or none.

    def __post_init__(self) -> None:
        tasks = tuple(self.tasks)
        if not tasks or not all(isinstance(task, Task) for task in tasks):
            raise UserError(f"The stream {self.name} must have one Task or more.")
        needed = max(map(_num_outputs, tasks))
        if self.num_outputs is None:
            object.__setattr__(self, "num_outputs", needed)
        highest = max((max(task.classes) for task in tasks if task.classes), default=-1)
        if self.num_outputs <= highest:
            raise UserError(
                f"{self.name} has {self.num_outputs} outputs, and a task with the class {highest}."
            )
        if self.class_names and len(self.class_names) != self.num_outputs:
            raise UserError(
                f"{self.name} has {self.num_outputs} outputs and {len(self.class_names)} class "
                "names: give one name for each output, or none."
            )
        object.__setattr__(self, "tasks", tasks)

    @classmethod
    def from_arrays(
        cls,
        tasks: Sequence[tuple[Pair, Pair]],
        *,
        name: str = "arrays",
        heads: Literal["shared", "own"] = "shared",
        task_names: Sequence[str] | None = None,
        class_names: Sequence[str] = (),
        scale: float | Literal["auto"] | None = "auto",
    ) -> "Stream":
        """A stream of arrays, memory-mapped ones included.

        Args:
          tasks: `((x, y), (x_test, y_test))` of each task.
          name: what reports call the stream.
          heads: "shared" takes labels for units of the output layer as they are; "own" gives each
            task units of its own, behind those of the tasks before it.
          task_names: by default "task 0", "task 1", ...
          class_names: one for each output.
          scale: what inputs are multiplied by; "auto" is 1/255 for images (uint8 of two or more
            axes) and None, which feeds a model the arrays as they are, for all else.

        >>> x, y = np.zeros((4, 8, 8), np.uint8), np.array([0, 1, 0, 1])
        >>> stream = Stream.from_arrays([((x, y), (x, y))] * 2, heads="own")
        >>> [task.classes for task in stream.tasks], stream.input_shape
        ([range(0, 2), range(2, 4)], (8, 8))
        """
        if not isinstance(tasks, Sequence) or not tasks:
            raise UserError("The stream has no tasks: give a list of ((x, y), (x_test, y_test)).")
        if heads not in ("shared", "own"):
            raise UserError(f'heads must be "shared" or "own", and is {heads!r}.')
        names = [f"task {t}" for t in range(len(tasks))] if task_names is None else task_names
        if len(names) != len(tasks):
            raise UserError(f"There are {len(tasks)} tasks and {len(names)} task names.")
        made: list[Task] = []
        for each, task_name in zip(tasks, names, strict=True):
            if not isinstance(each, tuple | list) or len(each) != 2:
                raise UserError(f"{task_name} must be given as ((x, y), (x_test, y_test)).")
            task = Task(task_name, *each)
            if heads == "own":
                task = _behind(task, made[-1] if made else None)
            made.append(task)
        if scale == "auto":
            x = made[0].train.x
            scale = 1 / 255 if x.dtype == np.uint8 and x.ndim > 2 else None
        stream = cls(name, made, scale=scale, class_names=class_names)
        stream.check("test")
        return stream

    @property
    def input_shape(self) -> tuple[int, ...]:
        return _one(self.tasks[0].train)[0].shape

    @property
    def input_dtype(self) -> np.dtype:
        return _one(self.tasks[0].train)[0].dtype

    @property
    def fed_dtype(self) -> np.dtype:
        """What a model gets to see."""
        return self.input_dtype if self.scale is None else np.dtype(np.float32)

    @property
    def target_shape(self) -> tuple[int, ...]:
        return self.tasks[0].train.y.shape[1:]

    @property
    def target_dtype(self) -> np.dtype:
        return self.tasks[0].train.y.dtype

    def fingerprints(self) -> list[str]:
        """A short digest of each task: name, classes, sizes, targets, and some of its inputs."""
        found = []
        for task in self.tasks:
            units = task.classes and tuple(task.classes)
            digest = hashlib.sha256(repr((task.name, units)).encode())
            for name in PARTS:
                part: Examples = getattr(task, name)
                digest.update(f"{name} {len(part)} ".encode())
                # Few rows tell data sets apart, and a memory-mapped array is read nowhere else.
                arrays = (part.take(_spread(part, 64))[0], part.y) if len(part) else ()
                for array in arrays:
                    digest.update(f"{array.dtype.str} {array.shape} ".encode())
                    digest.update(array.tobytes())
            found.append(digest.hexdigest()[:16])
        return found

    def check(self, part: str) -> None:
        """Refuses tasks with nothing to learn or to judge by (in `part`), or that do not fit."""
        expected = None
        for task in self.tasks:
            for each in ("train", part):
                examples: Examples = getattr(task, each)
                if not len(examples):
                    raise UserError(f"Task {task.name!r} of {self.name} has no {each} examples.")
                has = f"Task {task.name!r} of {self.name} has {each} examples"
                found = _check(examples, task.classes, has)
                expected = expected or found
                if found != expected:
                    raise UserError(
                        f"{has} of {found}, and those before it are of {expected}: all must have "
                        "the same shape and dtype."
                    )

    def shortened(self, most: int) -> "Stream":
        """The stream with at most so many examples in each part of a task, spread over the part."""
        tasks = [task.changed(lambda part: part.only(_spread(part, most))) for task in self.tasks]
        return dataclasses.replace(self, tasks=tasks)

    def holding_out(self, fraction: float) -> "Stream":
        """The stream with this share of each class's training examples moved to `validation`.

        Where targets are no classes it is a share of all. The choice depends on nothing but the
        data, so tasks of the same images hold out the same ones. A task that has validation
        examples of its own keeps them.
        """
        if not 0 <= fraction < 1:
            raise UserError(f"The fraction to hold out must be in [0, 1), not {fraction}.")

        def hold_out(task: Task) -> Task:
            if not fraction or len(task.validation):
                return task
            labels = np.zeros(len(task.train), int) if task.classes is None else task.train.y
            held = spaced(labels, fraction)
            return task.with_parts(train=task.train.only(~held), validation=task.train.only(held))

        return dataclasses.replace(self, tasks=[hold_out(task) for task in self.tasks])

    def without_test(self) -> "Stream":
        """The stream with nothing in its test parts."""
        tasks = [task.with_parts(test=task.train.only(_NONE)) for task in self.tasks]
        return dataclasses.replace(self, tasks=tasks)


def spaced(labels: np.ndarray, fraction: float) -> np.ndarray:
    """Marks this fraction of every class, evenly spaced over its examples, as bool[n].

    No random numbers: the choice depends on nothing but the data. Of a class of two examples or
    more at least one is marked and one left.
    """
    marked = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        count = min(max(round(fraction * len(rows)), 1), len(rows) - 1)
        marked[rows[np.arange(1, count + 1) * len(rows) // max(count, 1) - 1]] = True
    return marked


def _spread(part: Examples, most: int) -> np.ndarray:
    """So many positions at equal distances, or all of them."""
    return np.linspace(0, len(part) - 1, min(len(part), most)).round().astype(np.int64)


def _examples(given: Examples | Pair, what: str) -> Examples:
    if isinstance(given, Examples):
        return given
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise UserError(f"{what} must be a pair of arrays, (x, y), or Examples.")
    arrays = []
    for each, part in zip(given, (f"x in {what}", f"y in {what}"), strict=True):
        try:  # Not asarray, which would hide that an array is memory-mapped.
            array = np.asanyarray(each)
        except ValueError as error:
            raise UserError(f"{part} is no array: {error}.") from error
        _check_dtype(array.dtype, part)
        if not array.ndim:
            raise UserError(f"{part} must have an axis of examples, and is a single value.")
        arrays.append(array)
    x, y = arrays
    if len(x) != len(y):
        raise UserError(f"{what} has {len(x)} inputs and {len(y)} targets.")
    if y.dtype.kind in "biu":
        if y.size and (y.min() < -(2**31) or y.max() >= 2**31):
            raise UserError(f"y in {what} does not fit into 32 bits.")
        y = y.astype(np.int32, copy=False)
    elif y.dtype == np.float64:
        y = y.astype(np.float32)
    return Examples(x, np.arange(len(x)), y)


def _check_dtype(dtype: np.dtype, what: str) -> None:
    if dtype.kind in "OSUMm" or dtype.names:
        raise UserError(f"{what} must be an array of numbers, and is of {dtype}.")


def _units(classes: Sequence[int], task: str) -> Sequence[int]:
    """A range where they follow one another, else a tuple."""
    try:
        units = tuple(operator.index(one) for one in classes)
    except TypeError:
        units = (-1,)
    if len(set(units)) < len(units) or min(units) < 0:
        raise UserError(f"The classes of task {task!r} must be different integers from 0 on.")
    following = range(units[0], units[0] + len(units))
    return following if units == tuple(following) else units


def _num_outputs(task: Task) -> int:
    if task.classes is not None:
        return 1 + max(task.classes)
    y = task.train.y
    if y.dtype.kind in "iu":
        return 1 + max(int(getattr(task, part).y.max(initial=0)) for part in PARTS)
    return y.shape[-1] if y.ndim > 1 else 1


def _behind(task: Task, before: Task | None) -> Task:
    """Its labels moved behind those of the task before it."""
    if task.classes is None:
        raise UserError(f'heads="own" needs one integer label an example: {task.name} has none.')
    start = 1 + max(before.classes or ()) if before else 0
    moved = task.changed(lambda part: dataclasses.replace(part, y=part.y + np.int32(start)))
    return dataclasses.replace(moved, classes=range(start, start + 1 + max(task.classes)))


def _one(part: Examples) -> tuple[np.ndarray, np.ndarray]:
    x, y = part.take(np.zeros(1, np.int64))
    return x[0], y[0]


def _check(part: Examples, classes: Sequence[int] | None, has: str) -> str:
    """Checks a part by itself; returns shape and dtype of an example in words."""
    if len(part.y) != len(part) or part.rows.min() < 0 or part.rows.max() >= len(part.x):
        raise UserError(f"{has} whose x, rows and y do not belong together.")
    _check_dtype(part.x.dtype, f"{has} whose x")
    _check_dtype(part.y.dtype, f"{has} whose y")
    if classes is not None:
        wrong = np.setdiff1d(part.y, np.array(classes))
        if len(wrong):
            one = f"{classes[0]} to {classes[-1]}" if isinstance(classes, range) else classes
            raise UserError(f"{has} of class {wrong[0]}, and its classes are {one}.")
    # A memory-mapped array is not read to its end for this.
    looked_at = _spread(part, 64 if isinstance(part.x, np.memmap) else len(part))
    for start in range(0, len(looked_at) if part.x.dtype.kind == "f" else 0, 4096):
        if not np.isfinite(part.take(looked_at[start : start + 4096])[0]).all():
            raise UserError(f"{has} with NaN or infinity in x.")
    if part.y.dtype.kind == "f" and not np.isfinite(part.y).all():
        raise UserError(f"{has} with NaN or infinity in y.")
    x, y = _one(part)
    return f"x {x.dtype}{list(x.shape)}, y {y.dtype}{list(y.shape)}"
