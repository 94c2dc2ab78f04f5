"""The data sets that streams are made of, and the line that records which of them a run saw."""

import dataclasses
import functools
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from train.errors import UserError
from train.streams import cache, prepared
from train.streams.prepared import Arrays, Prepared
from train.streams.stream import spaced


@dataclasses.dataclass(frozen=True)
class DataSet:
    name: str  # As in tensorflow-datasets.
    num_classes: int
    full_size: tuple[int, int]
    """Training and test examples of the whole data set: fewer are called a subset."""
    manual: str = ""  # What the user must bring, for our own builders; empty where TFDS downloads.
    embedded: bool = False  # It comes with scikit-learn: nothing to prepare or to cache.

    def is_subset(self, num_train: int, num_test: int) -> bool:
        return num_train + num_test < sum(self.full_size)

    def read(
        self, found: Prepared | None, shape: tuple[int, int, int], cache_dir: pathlib.Path
    ) -> tuple[Arrays, Arrays, Sequence[str], str]:
        """Training and test examples, names of classes, and what is recorded of them all.

        Through the cache, unless the data set is embedded; its labels are checked."""
        if found is None:
            train, test = load_digits(shape)
            names, origin = list(map(str, range(self.num_classes))), "of scikit-learn"
        else:
            train, test = (cache.load(found, split, shape, cache_dir) for split in prepared.SPLITS)
            names, origin = found.class_names(self.num_classes), found.version
        for split, (_, labels) in (("train", train), ("test", test)):
            wrong = labels[(labels < 0) | (labels >= self.num_classes)]
            if len(wrong):
                raise UserError(
                    f"{self.name} {split} has the label {wrong[0]}, outside the "
                    f"{self.num_classes} classes that are expected."
                )
            absent = np.setdiff1d(np.arange(self.num_classes), labels)
            if len(absent):
                classes = ", ".join(map(str, absent))
                raise UserError(f"{self.name} has no {split} example of class {classes}.")
        return train, test, names, record(self, origin, len(train[1]), len(test[1]))


@functools.cache
def load_digits(image_shape: tuple[int, int, int]) -> tuple[Arrays, Arrays]:
    """scikit-learn's handwritten digits, enlarged: uint8 in a fixed 80/20 split of every class."""
    import sklearn.datasets  # A second, which only this data set should pay.

    digits: Any = sklearn.datasets.load_digits()
    grey = np.round(digits.images * (255 / 16)).astype(np.uint8)
    images = np.stack([prepared.decode_image(prepared.png(image), image_shape) for image in grey])
    labels = digits.target.astype(np.int64)
    test = spaced(labels, 0.2)
    return (images[~test], labels[~test]), (images[test], labels[test])


_NOT_MNIST = "notMNIST_small.tar.gz (from http://yaroslavvb.com/upload/notMNIST/)"
_MINI_IMAGENET = (
    "mini_imagenet/ with a folder of images for each of the 100 classes (all in one folder, or "
    "below train/ and val/), or mini-imagenet-cache-train.pkl, -val.pkl and -test.pkl"
)

_ALL = (
    DataSet("cifar100", 100, (50_000, 10_000)),
    DataSet("mini_imagenet", 100, (48_000, 12_000), manual=_MINI_IMAGENET),
    DataSet("caltech_birds2011", 200, (5_994, 5_794)),
    DataSet("cifar10", 10, (50_000, 10_000)),
    DataSet("mnist", 10, (60_000, 10_000)),
    DataSet("svhn_cropped", 10, (73_257, 26_032)),
    DataSet("not_mnist", 10, (16_854, 1_870), manual=_NOT_MNIST),
    DataSet("fashion_mnist", 10, (60_000, 10_000)),
    DataSet("digits", 10, (1_438, 359), embedded=True),
)
DATA_SETS = {data_set.name: data_set for data_set in _ALL}


def record(data_set: DataSet, origin: str, num_train: int, num_test: int) -> str:
    """As in "cifar100 3.0.2 (500 + 100, a subset of 50000 + 10000)"."""
    size = f"{num_train} + {num_test}"
    if data_set.is_subset(num_train, num_test):
        size += ", a subset of {} + {}".format(*data_set.full_size)
    return f"{data_set.name} {origin} ({size})"


def are_complete(lines: Sequence[str]) -> bool:
    """Whether these lines name whole data sets; what they do not say is not taken for granted."""
    found = [re.fullmatch(r"(\w+) .*\((\d+) \+ (\d+)\)", line) for line in lines]
    return bool(found) and all(
        one and one[1] in DATA_SETS and not DATA_SETS[one[1]].is_subset(int(one[2]), int(one[3]))
        for one in found
    )
