"""Small stand-ins for the data sets, written by TFDS as it writes the real ones."""

import dataclasses
import pathlib

import numpy as np
import tensorflow_datasets as tfds

from train.streams import STREAMS
from train.streams.data_sets import DATA_SETS
from train.streams.prepared import png

SHAPES = {"cifar100": (32, 32, 3), "mini_imagenet": (90, 84, 3), "caltech_birds2011": (30, 40, 3)}
TRAIN, TEST = 5, 2  # Examples a class of the tiny data sets.


class Tiny(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Writes encoded images, which needs no TensorFlow."""

    VERSION = tfds.core.Version("1.0.0")
    url_infos = None
    labels: tuple[list[int], list[int]]
    shape: tuple[int, int, int]

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(
                {"image": tfds.features.Image(), "label": tfds.features.Scalar(np.int64)}
            ),
        )

    def _split_generators(self, dl_manager):
        train, test = self.labels
        return {"train": self._generate_examples(train), "test": self._generate_examples(test)}

    def _generate_examples(self, labels):
        for key, label in enumerate(labels):
            yield key, {"image": png(image_of(label, key, self.shape)), "label": label}


def load_stream(name: str, *, data_dirs=None, cache_dir=None, **changes):
    """Opens the built-in stream of this name, with other settings."""
    return dataclasses.replace(STREAMS[name], **changes).open(data_dirs, cache_dir)


def image_of(label: int, key: int, shape: tuple[int, int, int]) -> np.ndarray:
    """One grey level for the class, with a mark of the example in the corner."""
    image = np.full(shape, label, np.uint8)
    image[: shape[0] // 2] = 100 + key % 100
    return image.squeeze()


def write(directory: pathlib.Path, name: str, labels: tuple[list[int], list[int]] | None = None):
    classes = range(DATA_SETS[name].num_classes)
    members = dict(
        name=name,
        shape=SHAPES.get(name, (28, 28, 1)),
        labels=labels or (list(classes) * TRAIN, list(classes) * TEST),
    )
    builder = type("Written", (Tiny,), members, skip_registration=True)
    builder(data_dir=directory, file_format="array_record").download_and_prepare()


def write_all(directory: pathlib.Path) -> None:
    for data_set in DATA_SETS.values():
        if not data_set.embedded:
            write(directory, data_set.name)


def damage(file: pathlib.Path) -> None:
    """Cuts a file in half."""
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
