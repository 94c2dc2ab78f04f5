"""The line that records which data a run saw, and how to read it again."""

import re
from collections.abc import Sequence

from train.streams.registry import DATA_SETS
from train.streams.specs import DataSet


def record(data_set: DataSet, origin: str, num_train: int, num_test: int) -> str:
    """Name, version and size.

    >>> record(DATA_SETS["cifar100"], "3.0.2", 500, 100)
    'cifar100 3.0.2 (500 + 100, a subset of 50000 + 10000)'
    """
    size = f"{num_train} + {num_test}"
    if data_set.is_subset(num_train, num_test):
        size += ", a subset of {} + {}".format(*data_set.full_size)
    return f"{data_set.name} {origin} ({size})"


def are_complete(lines: Sequence[str]) -> bool:
    """Whether these lines name whole data sets; what they do not say is not taken for granted.

    >>> are_complete(["cifar100 3.0.2 (50000 + 10000)"])
    True
    >>> are_complete(["cifar100 3.0.2 (500 + 100)"]), are_complete(["noise"]), are_complete([])
    (False, False, False)
    """
    return bool(lines) and all(map(_is_complete, lines))


def _is_complete(line: str) -> bool:
    found = re.fullmatch(r"(\w+) .*\((\d+) \+ (\d+)\)", line)
    if not found or found[1] not in DATA_SETS:
        return False
    return not DATA_SETS[found[1]].is_subset(int(found[2]), int(found[3]))
