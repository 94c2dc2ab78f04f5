"""From a stream's name to its tasks."""

import os
from collections.abc import Sequence

import numpy as np

from train.errors import UserError
from train.streams import cache, digits, prepared
from train.streams.commands import prepare_advice
from train.streams.registry import DATA_SETS, stream_spec
from train.streams.sampling import spaced
from train.streams.sources import record
from train.streams.specs import DataSet, Plan, StreamSpec
from train.streams.types import Examples, Stream, Task

_Source = tuple[cache.Arrays, cache.Arrays, str]
"""Training part, test part, and a line for the record."""


def load_stream(
    name: str,
    *,
    num_tasks: int | None = None,
    order_seed: int | None = None,
    shared_head: bool = False,
    hold_out: float = 0.0,
    data_dirs: Sequence[str | os.PathLike[str]] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Stream:
    """The tasks of a stream, in order; images stay on disk until they are taken.

    Args:
      name: a key of `STREAMS`.
      num_tasks: into how many tasks the classes are split, or how many tasks are taken.
      order_seed: shuffles the classes, data sets or rotations, or draws the permutations; None
        is the natural order.
      shared_head: one head for all tasks, where all have the same classes.
      hold_out: the fraction of each class's training examples that becomes `validation`. The
        same images are held out in every task that uses them.
      data_dirs: where prepared data are looked for; by default TFDS_DATA_DIR, which may name
        several directories, else `~/tensorflow_datasets`.
      cache_dir: where decoded images are kept; by default TAG_OPTAX_CACHE, else the user's cache
        directory.

    >>> stream = load_stream("rotated-digits", num_tasks=3, hold_out=0.1)
    >>> [task.name for task in stream.tasks], stream.num_outputs
    (['0 deg', '30 deg', '60 deg'], 30)
    >>> task = stream.tasks[1]
    >>> task.classes, len(task.train), len(task.validation), len(task.test)
    (range(10, 20), 1295, 143, 359)
    """
    spec = stream_spec(name)
    num_tasks = spec.default_tasks if num_tasks is None else num_tasks
    if num_tasks < 1:
        raise UserError(f"{name} needs at least one task, not {num_tasks}.")
    if order_seed is not None and order_seed < 0:
        raise UserError(f"The order seed must not be negative, as {order_seed} is.")
    if not 0 <= hold_out < 1:
        raise UserError(f"The fraction to hold out must be in [0, 1), not {hold_out}.")
    if shared_head and not spec.same_classes:
        raise UserError(f"The tasks of {name} have different classes: they cannot share a head.")
    plans = spec.plan(spec, num_tasks, order_seed)
    sources = _sources(spec, [plan.data_set for plan in plans], data_dirs, cache_dir)
    tasks = []
    for position, plan in enumerate(plans):
        start = 0 if shared_head else position * len(plan.classes)
        head = range(start, start + len(plan.classes))
        tasks.append(_task(plan, head, sources[plan.data_set], hold_out))
    return Stream(
        name=name,
        tasks=tasks,
        num_outputs=tasks[-1].classes.stop,
        image_shape=spec.image_shape,
        scale=spec.scale,
        offset=spec.offset,
        sources=[line for _, _, line in sources.values()],
    )


def _sources(
    spec: StreamSpec,
    names: Sequence[str],
    data_dirs: Sequence[str | os.PathLike[str]] | None,
    cache_dir: str | os.PathLike[str] | None,
) -> dict[str, _Source]:
    """Every data set once, all missing ones in one error."""
    directories = prepared.data_directories(data_dirs)
    wanted = [DATA_SETS[name] for name in dict.fromkeys(names)]
    found = {
        data_set.name: prepared.find(data_set.name, directories)
        for data_set in wanted
        if not data_set.embedded
    }
    missing = [name for name, data in found.items() if data is None]
    if missing:
        raise UserError(
            f"{spec.name} needs {' and '.join(missing)}, found in none of: "
            f"{', '.join(map(str, directories))}. {prepare_advice(spec, missing)}"
        )
    sources = {}
    for data_set in wanted:
        data = found.get(data_set.name)
        if data is None:
            train, test = digits.load_digits(spec.image_shape)
            origin = "of scikit-learn"
        elif not data.readable:
            raise UserError(
                f"{data.name} in {data.directory} is in the format {data.file_format}, which only "
                "TensorFlow reads. Prepare it as array_record, in another directory or after "
                f"deleting this one. {prepare_advice(spec, [data.name])}"
            )
        else:
            train, test = (
                cache.load(data, split, spec.image_shape, cache.cache_directory(cache_dir))
                for split in prepared.SPLITS
            )
            origin = data.version
        _check_labels(data_set, train.labels, test.labels)
        sources[data_set.name] = train, test, record(data_set, origin, len(train), len(test))
    return sources


def _check_labels(data_set: DataSet, train: np.ndarray, test: np.ndarray) -> None:
    for split, labels in (("train", train), ("test", test)):
        wrong = labels[(labels < 0) | (labels >= data_set.num_classes)]
        if len(wrong):
            raise UserError(
                f"{data_set.name} {split} has the label {wrong[0]}, outside the "
                f"{data_set.num_classes} classes that are expected."
            )
        absent = np.setdiff1d(np.arange(data_set.num_classes), labels)
        if len(absent):
            raise UserError(
                f"{data_set.name} has no {split} example of class {', '.join(map(str, absent))}."
            )


def _task(plan: Plan, head: range, source: _Source, hold_out: float) -> Task:
    train, test, _ = source
    held = spaced(train.labels, hold_out) if hold_out else np.zeros(len(train.labels), bool)
    return Task(
        name=plan.name,
        classes=head,
        train=_examples(plan, head, train, ~held),
        validation=_examples(plan, head, train, held),
        test=_examples(plan, head, test, np.ones(len(test.labels), bool)),
    )


def _examples(plan: Plan, head: range, arrays: cache.Arrays, wanted: np.ndarray) -> Examples:
    units = np.full(DATA_SETS[plan.data_set].num_classes, -1, np.int32)
    units[list(plan.classes)] = head
    labels = units[arrays.labels]
    rows = np.flatnonzero(wanted & (labels >= 0))
    return Examples(arrays.images, rows, labels[rows], plan.transform)
