"""How data sets become tasks: by classes, by data set, by rotation, by permutation of the pixels.

A plan is made before any data is touched, so that a wrong argument fails at once.
"""

from collections.abc import Sequence

import numpy as np

from train.errors import UserError
from train.streams import transforms
from train.streams.specs import Plan, StreamSpec

DEGREES = 30


def split_classes(spec: StreamSpec, num_tasks: int, order_seed: int | None) -> list[Plan]:
    """All classes of one data set in equal parts, in natural order or shuffled by the seed."""
    num_classes = spec.default_tasks * spec.classes_per_task
    if num_classes % num_tasks:
        divisors = [n for n in range(1, num_classes + 1) if num_classes % n == 0]
        raise UserError(
            f"{spec.name} cannot split {num_classes} classes into {num_tasks} equal tasks; "
            f"possible numbers of tasks: {', '.join(map(str, divisors))}."
        )
    parts = np.split(np.array(_shuffled(range(num_classes), order_seed)), num_tasks)
    return [Plan(_class_names(part.tolist()), spec.data_sets[0], part.tolist()) for part in parts]


def data_set_each(spec: StreamSpec, num_tasks: int, order_seed: int | None) -> list[Plan]:
    """A task for each of the first data sets, in the listed order or shuffled by the seed."""
    if num_tasks > len(spec.data_sets):
        raise UserError(f"{spec.name} has {len(spec.data_sets)} tasks at most, not {num_tasks}.")
    data_sets = _shuffled(spec.data_sets[:num_tasks], order_seed)
    return [Plan(data_set, data_set, range(spec.classes_per_task)) for data_set in data_sets]


def rotations(spec: StreamSpec, num_tasks: int, order_seed: int | None) -> list[Plan]:
    """The same images turned by 0, 30, 60, ... degrees, in this order or shuffled by the seed."""
    most = 360 // DEGREES
    if num_tasks > most:
        raise UserError(
            f"{spec.name} has {most} tasks at most, not {num_tasks}: "
            f"{most} steps of {DEGREES} degrees are a full turn."
        )
    data_set, classes = spec.data_sets[0], range(spec.classes_per_task)
    height, width, _ = spec.image_shape
    return [
        Plan(
            f"{degrees} deg",
            data_set,
            classes,
            transforms.Rotation((height, width), degrees) if degrees else None,
        )
        for degrees in _shuffled([DEGREES * k for k in range(num_tasks)], order_seed)
    ]


def permutations(spec: StreamSpec, num_tasks: int, order_seed: int | None) -> list[Plan]:
    """The same images with permuted pixels; the first task leaves them as they are.

    The permutations come from the seed, 0 where none is given: more tasks extend the sequence and
    change none of it.
    """
    data_set, classes = spec.data_sets[0], range(spec.classes_per_task)
    height, width, _ = spec.image_shape
    rng = np.random.default_rng(order_seed or 0)
    orders = [rng.permutation(height * width) for _ in range(num_tasks - 1)]
    return [
        Plan("identity", data_set, classes),
        *(
            Plan(f"permutation {k}", data_set, classes, transforms.Permutation(order))
            for k, order in enumerate(orders, start=1)
        ),
    ]


def _shuffled(items: Sequence, seed: int | None) -> list:
    if seed is None:
        return list(items)
    return [items[k] for k in np.random.default_rng(seed).permutation(len(items))]


def _class_names(classes: Sequence[int]) -> str:
    """A short name for a task.

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
