"""What of each stream's data is there: the facts behind `python -m train data`."""

import dataclasses
import os
import pathlib
from collections.abc import Sequence

from train.streams import cache, prepared
from train.streams.commands import prepare_command
from train.streams.registry import DATA_SETS, STREAMS
from train.streams.specs import DataSet, StreamSpec


@dataclasses.dataclass(frozen=True)
class DataStatus:
    """One data set of one stream."""

    stream: str
    data_set: str
    looked_in: tuple[pathlib.Path, ...]
    """Empty where the data come with scikit-learn."""
    present: bool
    """Whether the stream can read it as it is."""
    found: pathlib.Path | None = None
    version: str = ""
    file_format: str = ""
    num_train: int = 0
    num_test: int = 0
    num_bytes: int = 0
    """Of the prepared files."""
    subset: bool = False
    """Whether there are fewer examples than in the whole data set."""
    cached: bool = False
    """Whether the decoded images are in the cache already."""
    command: str = ""
    """What prepares it; empty where there is nothing to prepare."""


def data_status(
    data_dirs: Sequence[str | os.PathLike[str]] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> list[DataStatus]:
    """Every data set of every stream, in the order of the registry.

    >>> digits = data_status(["/nowhere"])[-1]
    >>> digits.stream, digits.data_set, digits.present, digits.command
    ('rotated-digits', 'digits', True, '')
    """
    directories = tuple(prepared.data_directories(data_dirs))
    decoded = cache.cache_directory(cache_dir)
    return [
        _status(spec, DATA_SETS[name], directories, decoded)
        for spec in STREAMS.values()
        for name in spec.data_sets
    ]


def _status(
    spec: StreamSpec,
    data_set: DataSet,
    directories: tuple[pathlib.Path, ...],
    decoded: pathlib.Path,
) -> DataStatus:
    if data_set.embedded:
        num_train, num_test = data_set.full_size
        return DataStatus(
            spec.name, data_set.name, (), present=True, num_train=num_train, num_test=num_test
        )
    status = DataStatus(
        spec.name,
        data_set.name,
        directories,
        present=False,
        command=prepare_command(spec, [data_set.name]),
    )
    data = prepared.find(data_set.name, directories)
    if data is None:
        return status
    entries = [cache.entry(data, split, spec.image_shape, decoded) for split in prepared.SPLITS]
    num_train, num_test = (data.splits[split].num_examples for split in prepared.SPLITS)
    return dataclasses.replace(
        status,
        present=data.readable,
        found=data.directory,
        version=data.version,
        file_format=data.file_format,
        num_train=num_train,
        num_test=num_test,
        num_bytes=sum(path.stat().st_size for path in data.directory.iterdir()),
        subset=data_set.is_subset(num_train, num_test),
        cached=all(path.exists() for path in entries),
    )
