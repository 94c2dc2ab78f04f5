"""The built-in streams by name: their settings, and how data sets become their tasks."""

import dataclasses
import functools
import inspect
import itertools
import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from train import settings
from train.errors import UserError
from train.streams import cache, prepared
from train.streams.data_sets import DATA_SETS
from train.streams.prepared import Arrays, Directories, Directory
from train.streams.stream import Examples, Stream, Task, Transform

DEGREES = 30


class Plan(NamedTuple):
    """One task, before its data are read: so that a wrong setting fails at once."""

    name: str
    data_set: str
    classes: Sequence[int]  # of the data set, in the order of the task's output units
    transform: Transform | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedStream:
    """A stream made of data sets; a kind of stream says in `plans` which tasks they become."""

    num_tasks: int = 10
    """How many tasks there are."""
    order_seed: int | None = None
    """Shuffles classes, data sets or rotations, or draws the permutations; None: natural order."""

    name: ClassVar[str]
    summary: ClassVar[str]  # One line for `python -m train data`.
    data_sets: ClassVar[tuple[str, ...]]
    image_shape: ClassVar[tuple[int, int, int]]
    scale: ClassVar[float] = 1 / 255
    offset: ClassVar[float] = 0.0
    most_tasks: ClassVar[int] = 10_000  # The accuracy on each task after each task is written down.
    extends: ClassVar[tuple[str, ...]] = ("num_tasks",)
    """Settings that make the stream longer and leave its first tasks as they are, as long as no
    order_seed shuffles them; `Stream.fingerprints` tells."""

    def __post_init__(self) -> None:
        count, seed, most = self.num_tasks, self.order_seed, self.most_tasks
        settings.check(count >= 1, "num_tasks", "must be at least 1", count)
        settings.check(count <= most, "num_tasks", f"must be at most {most} for {self.name}", count)
        settings.check(seed is None or seed >= 0, "order_seed", "must not be negative", seed)

    @property
    def num_classes(self) -> int:
        """Of its first data set; of each where a task has a data set."""
        return DATA_SETS[self.data_sets[0]].num_classes

    def plans(self) -> list[Plan]:
        """The tasks, in order."""
        raise NotImplementedError

    def open(self, data_dirs: Directories = None, cache_dir: Directory | None = None) -> Stream:
        """The tasks with their examples; images stay on disk until they are taken."""
        plans = self.plans()
        used = dict.fromkeys(plan.data_set for plan in plans)
        sources = self._sources(list(used), data_dirs, cache_dir)
        one_head = getattr(self, "shared_head", False)  # Not all streams have this setting.
        tasks: list[Task] = []
        names: list[str] = []
        for plan in plans:
            train, test, known, _ = sources[plan.data_set]
            start = 0 if one_head else len(names)
            names[start:] = [known[one] for one in plan.classes]
            head = range(start, len(names))
            units = np.full(DATA_SETS[plan.data_set].num_classes, -1, np.int32)
            units[list(plan.classes)] = head
            parts = []
            for images, labels in (train, test):
                answers = units[labels]
                rows = np.flatnonzero(answers >= 0)
                parts.append(Examples(images, rows, answers[rows], plan.transform))
            tasks.append(Task(plan.name, *parts, classes=head))
        lines = [line for *_, line in sources.values()]
        return Stream(self.name, tasks, len(names), self.scale, self.offset, lines, names)

    def _sources(
        self, names: Sequence[str], data_dirs: Directories, cache_dir: Directory | None
    ) -> dict[str, tuple[Arrays, Arrays, Sequence[str], str]]:
        """What is read of every data set; all missing ones are in one error."""
        directories = prepared.data_directories(data_dirs)
        stored = [name for name in names if not DATA_SETS[name].embedded]
        found = {name: prepared.find(name, directories) for name in stored}
        missing = [name for name, data in found.items() if data is None]
        if missing:
            raise UserError(
                f"{self.name} needs {' and '.join(missing)}, found in none of: "
                f"{', '.join(map(str, directories))}. {prepare_advice(self, missing)}"
            )
        for data in found.values():
            if data is not None and not data.readable:
                raise UserError(
                    f"{data.name} in {data.directory} is in the format {data.file_format}, which "
                    "only TensorFlow reads. Prepare it as array_record, in another directory or "
                    f"after deleting this one. {prepare_advice(self, [data.name])}"
                )
        shape, decoded = self.image_shape, cache.cache_directory(cache_dir)
        return {name: DATA_SETS[name].read(found.get(name), shape, decoded) for name in names}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitClasses(NamedStream):
    """All classes of one data set in equal parts, in natural order or shuffled."""

    num_tasks: int = 20
    """Into how many tasks the classes are split."""
    extends = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        count = self.num_classes
        divisors = ", ".join(str(n) for n in range(1, count + 1) if count % n == 0)
        rule = f"must cut the {count} classes of {self.name} into equal tasks ({divisors})"
        settings.check(count % self.num_tasks == 0, "num_tasks", rule, self.num_tasks)

    def plans(self) -> list[Plan]:
        order = _shuffled(range(self.num_classes), self.order_seed)
        size = self.num_classes // self.num_tasks
        parts = [order[k : k + size] for k in range(0, self.num_classes, size)]
        return [Plan(_class_names(part), self.data_sets[0], part) for part in parts]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FiveDatasets(NamedStream):
    """A task for each of the first data sets, in the listed order or shuffled."""

    name = "five-datasets"
    summary = "CIFAR-10, MNIST, SVHN, notMNIST and Fashion-MNIST, one after the other"
    data_sets = ("cifar10", "mnist", "svhn_cropped", "not_mnist", "fashion_mnist")
    most_tasks = len(data_sets)
    image_shape = (32, 32, 3)

    num_tasks: int = 5
    """How many of the data sets are taken."""

    def plans(self) -> list[Plan]:
        chosen = _shuffled(self.data_sets[: self.num_tasks], self.order_seed)
        return [Plan(name, name, range(self.num_classes)) for name in chosen]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SameClasses(NamedStream):
    """One data set in every task, its images changed: the tasks may share one head."""

    shared_head: bool = False
    """All tasks answer with the same outputs."""

    def _plan(self, name: str, transform: Transform | None) -> Plan:
        return Plan(name, self.data_sets[0], range(self.num_classes), transform)


class Rotation:
    """Turns images counter-clockwise about their centre, bilinear, with black outside.

    Every pixel of the result is a weighted sum of four pixels; which and how much is worked out
    once. Multiples of 90 degrees move pixels exactly."""

    def __init__(self, size: tuple[int, int], degrees: float):
        height, width = size
        # Rounded so that the sine of 180 degrees is zero and no pixel is smeared over two.
        sine = round(math.sin(math.radians(degrees)), 12)
        cosine = round(math.cos(math.radians(degrees)), 12)
        y = np.arange(height)[:, None] - (height - 1) / 2
        x = np.arange(width)[None, :] - (width - 1) / 2
        source_y = cosine * y + sine * x + (height - 1) / 2
        source_x = cosine * x - sine * y + (width - 1) / 2
        self._pixels, self._weights = [], []
        for down, right in itertools.product((0, 1), repeat=2):
            row = np.floor(source_y).astype(int) + down
            column = np.floor(source_x).astype(int) + right
            weight = (1 - np.abs(source_y - row)) * (1 - np.abs(source_x - column))
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            self._pixels.append(np.where(inside, row * width + column, 0).ravel())
            self._weights.append(np.where(inside, weight, 0).astype(np.float32).reshape(1, -1, 1))

    def __call__(self, images: np.ndarray) -> np.ndarray:
        flat = images.reshape(len(images), -1, images.shape[-1])
        total = np.full(flat.shape, 0.5, np.float32)  # Truncation then rounds to the nearest.
        for pixels, weights in zip(self._pixels, self._weights, strict=True):
            total += weights * flat[:, pixels]
        return total.astype(np.uint8).reshape(images.shape)


class Rotations(SameClasses):
    """The same images turned by 0, 30, 60, ... degrees, in this order or shuffled."""

    most_tasks = 360 // DEGREES

    def plans(self) -> list[Plan]:
        size = self.image_shape[:2]
        turns = _shuffled([DEGREES * k for k in range(self.num_tasks)], self.order_seed)
        return [self._plan(f"{turn} deg", Rotation(size, turn) if turn else None) for turn in turns]


def permuted(images: np.ndarray, order: np.ndarray) -> np.ndarray:
    """The pixels of every image in this order, the channels of a pixel together."""
    flat = images.reshape(len(images), -1, images.shape[-1])
    return flat[:, order].reshape(images.shape)


class PermutedMnist(SameClasses):
    """The permutations come from the seed, 0 where none is given: more tasks extend the sequence
    and change none of it."""

    name = "permuted-mnist"
    summary = "MNIST with its pixels in another fixed order in every task after the first"
    data_sets = ("mnist",)
    image_shape = (28, 28, 1)

    def plans(self) -> list[Plan]:
        rng = np.random.default_rng(self.order_seed or 0)
        pixels = self.image_shape[0] * self.image_shape[1]
        plans = [self._plan("identity", None)]
        for k in range(1, self.num_tasks):
            permutation = functools.partial(permuted, order=rng.permutation(pixels))
            plans.append(self._plan(f"permutation {k}", permutation))
        return plans


class SplitCifar100(SplitClasses):
    name = "split-cifar100"
    summary = "the 100 classes of CIFAR-100, 5 a task"
    data_sets = ("cifar100",)
    image_shape = (32, 32, 3)


class SplitMiniImagenet(SplitClasses):
    name = "split-mini-imagenet"
    summary = "the 100 classes of miniImageNet, 5 a task"
    data_sets = ("mini_imagenet",)
    image_shape = (84, 84, 3)
    scale, offset = 2 / 255, -1.0


class SplitCub(SplitClasses):
    name = "split-cub"
    summary = "the 200 birds of CUB-200-2011, 10 a task"
    data_sets = ("caltech_birds2011",)
    image_shape = (224, 224, 3)
    scale, offset = 2 / 255, -1.0


class RotatedMnist(Rotations):
    name = "rotated-mnist"
    summary = "MNIST turned by 30 degrees more with every task"
    data_sets = ("mnist",)
    image_shape = (28, 28, 1)


class RotatedDigits(Rotations):
    name = "rotated-digits"
    summary = "scikit-learn's 1797 digits turned by 30 degrees a task; needs no download"
    data_sets = ("digits",)
    image_shape = (16, 16, 1)


_OTHER_CLASSES = (SplitCifar100, SplitMiniImagenet, SplitCub, FiveDatasets)
_SAME_CLASSES = (RotatedMnist, PermutedMnist, RotatedDigits)
STREAMS: dict[str, NamedStream] = {kind.name: kind() for kind in _OTHER_CLASSES + _SAME_CLASSES}


def as_stream(
    given: Any, data_dirs: Directories = None, cache_dir: Directory | None = None
) -> Stream:
    """Opens whatever a user may give for a stream."""
    name = getattr(given, "__name__", type(given).__name__)
    if callable(given):
        try:
            inspect.signature(given).bind()
        except (TypeError, ValueError) as error:  # The second where there is no signature.
            raise UserError(f"The stream {name} must be callable without arguments.") from error
        given = given()
    if isinstance(given, NamedStream):
        return given.open(data_dirs, cache_dir)
    if isinstance(given, Stream):
        return given
    if isinstance(given, Sequence) and given and all(isinstance(each, Task) for each in given):
        return Stream(name, given)
    raise UserError(
        "A stream must be a train.Stream, a list of train.Task, or a function without arguments "
        f"that returns one of them, and {name} is or returns {type(given).__name__}."
    )


def prepare_advice(stream: NamedStream, data_sets: Sequence[str]) -> str:
    """What to type to prepare some data sets of a stream, and what to bring, as a sentence."""
    manual = [DATA_SETS[name].manual for name in data_sets if DATA_SETS[name].manual]
    brought = f" --manual-dir DIR, where DIR holds {' and '.join(manual)}" if manual else ""
    return f"Prepare with: python -m train prepare {stream.name}{brought}"


def _shuffled(items: Sequence, seed: int | None) -> list:
    if seed is None:
        return list(items)
    return [items[k] for k in np.random.default_rng(seed).permutation(len(items))]


def _class_names(classes: Sequence[int]) -> str:
    """
    >>> _class_names([5, 6, 7]), _class_names([7, 5, 6]), _class_names([9, 3, 4, 1, 8, 2, 7])
    ('classes 5-7', 'classes 7,5,6', 'classes 9,3,4,...,7')
    """
    if len(classes) == 1:
        return f"class {classes[0]}"
    if list(classes) == list(range(classes[0], classes[-1] + 1)):
        return f"classes {classes[0]}-{classes[-1]}"
    names = [str(one) for one in classes]
    if len(names) > 5:
        names[3:-1] = ["..."]
    return f"classes {','.join(names)}"
