"""Which data sets are prepared where, read from the files that TFDS leaves beside the data.

Reading `dataset_info.json` needs no TFDS, so looking around, and opening a cache, is quick.
"""

import dataclasses
import os
import pathlib
import re
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from train import files
from train.errors import UserError

SPLITS = ("train", "test")
Directory: TypeAlias = str | os.PathLike[str]
Directories: TypeAlias = Sequence[Directory] | Directory | None


class Split(NamedTuple):
    num_examples: int
    num_bytes: int
    shard_lengths: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Prepared:
    """One version of a data set on disk."""

    name: str
    version: str
    directory: pathlib.Path
    file_format: str
    splits: dict[str, Split]

    @property
    def readable(self) -> bool:
        """Whether the data can be read without TensorFlow."""
        return self.file_format == "array_record"

    def class_names(self, num_classes: int) -> list[str]:
        """As TFDS keeps them; the numbers where it has none, or not one for each class."""
        try:
            names = files.read(self.directory / "label.labels.txt", str.splitlines, "text")
        except FileNotFoundError:
            names = []
        return names if len(names) == num_classes else list(map(str, range(num_classes)))


def data_directories(data_dirs: Directories = None) -> list[pathlib.Path]:
    """Where prepared data are looked for, in this order."""
    if isinstance(data_dirs, str | os.PathLike):
        data_dirs = [data_dirs]
    if not data_dirs:
        variable = os.environ.get("TFDS_DATA_DIR", "")
        data_dirs = [part for part in variable.split(os.pathsep) if part]
    return [files.at_home(path) for path in data_dirs or ["~/tensorflow_datasets"]]


def find(name: str, directories: Sequence[pathlib.Path]) -> Prepared | None:
    """The first readable copy of a data set, else an unreadable one, else None; in a directory the
    newest version comes first."""
    copies: list[Prepared] = []
    for directory in directories:
        versions = {
            tuple(map(int, path.parent.name.split("."))): path.parent
            for path in directory.glob(f"{name}/*/dataset_info.json")
            # What is not a version is the leftover of a preparation that was killed.
            if re.fullmatch(r"\d+(\.\d+)*", path.parent.name)
        }
        copies += [_read(name, versions[number]) for number in sorted(versions, reverse=True)]
    return next((copy for copy in copies if copy.readable), copies[0] if copies else None)


def _read(name: str, directory: pathlib.Path) -> Prepared:
    path = directory / "dataset_info.json"
    try:
        info = files.read_json(path)
        splits = {}
        for split in info["splits"]:
            lengths = tuple(int(length) for length in split["shardLengths"])
            num_bytes = int(split.get("numBytes", 0))
            splits[split["name"]] = Split(sum(lengths), num_bytes, lengths)
        file_format = info.get("fileFormat", "tfrecord")
    except UserError as error:
        raise UserError(f"{error} Delete {directory} and prepare {name} again.") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise UserError(
            f"{path} cannot be understood ({type(error).__name__}: {error}). "
            f"Delete {directory} and prepare {name} again."
        ) from error
    for split in SPLITS:
        if split not in splits:
            raise UserError(f"{name} in {directory} has no split {split}.")
        shards = len(list(directory.glob(f"{name}-{split}.{file_format}-*")))
        if shards != len(splits[split].shard_lengths):
            raise UserError(
                f"{name} in {directory} has {shards} of {len(splits[split].shard_lengths)} files "
                f"of split {split}. Delete that directory and prepare {name} again."
            )
    return Prepared(name, directory.name, directory, file_format, splits)
