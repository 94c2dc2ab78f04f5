"""Downloading and preparing data sets by TFDS, as array_record; and which of them are there."""

import contextlib
import importlib.util
import pathlib
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from train import files
from train.errors import UserError, nearest
from train.streams import prepared
from train.streams.data_sets import DATA_SETS, DataSet
from train.streams.named import STREAMS
from train.streams.prepared import Directories, Directory

# What the builders that come with TFDS import when they run; TFDS does not declare all of it.
_MODULES = ("tensorflow", "importlib_resources")
_MORE_MODULES = {"caltech_birds2011": ("cv2",), "svhn_cropped": ("scipy",)}


def prepare(
    name: str, *, manual_dir: Directory | None = None, data_dir: Directory | None = None
) -> None:
    """Prepares every data set of a stream that is missing; what cannot be is refused first.

    Args:
      name: a key of `STREAMS`.
      manual_dir: holds what cannot be downloaded; by default `downloads/manual` in `data_dir`.
      data_dir: where the data go; by default the first of the data directories. What any of
        them holds already is not prepared again.
    """
    if name not in STREAMS:
        raise UserError(f'There is no stream "{name}". {nearest(name, STREAMS)}')
    directories = [*prepared.data_directories(data_dir), *prepared.data_directories()]
    target = directories[0]
    manual = files.at_home(manual_dir or target / "downloads" / "manual")
    missing = []
    for data_set in (DATA_SETS[each] for each in STREAMS[name].data_sets):
        if data_set.embedded:
            print(f"{name} comes with scikit-learn: nothing to prepare", file=sys.stderr)
            continue
        found = prepared.find(data_set.name, directories)
        if found and found.readable:
            print(f"{data_set.name} is prepared in {found.directory}", file=sys.stderr)
            continue
        if found and found.directory.is_relative_to(target):
            raise UserError(
                f"{found.directory} holds {data_set.name} as {found.file_format}. Delete it, or "
                f"choose another directory: python -m train prepare {name} --data-dir DIR"
            )
        _check_needs(data_set, manual)
        missing.append(data_set)
    for data_set in missing:
        _prepare(data_set, target, manual)


def _check_needs(data_set: DataSet, manual: pathlib.Path) -> None:
    if data_set.manual:
        if not manual.is_dir() or not any(manual.iterdir()):
            raise UserError(
                f"{data_set.name} is not downloaded but made from what you put into {manual}: "
                f"{data_set.manual}. Another directory is chosen with --manual-dir DIR."
            )
        return
    modules = (*_MODULES, *_MORE_MODULES.get(data_set.name, ()))
    absent = [module for module in modules if importlib.util.find_spec(module) is None]
    if absent:
        raise UserError(
            f"Preparing {data_set.name} needs {' and '.join(absent)}: in the clone of this "
            "repository, pip install '.[tfds]'"
        )


def _prepare(data_set: DataSet, directory: pathlib.Path, manual: pathlib.Path) -> None:
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError

    config = tfds.download.DownloadConfig(
        manual_dir=manual if data_set.manual else None, try_download_gcs=False
    )
    made = (directory / each for each in ("downloads/extracted", "downloads", data_set.name))
    absent = [path for path in (*made, directory, *directory.parents) if not path.exists()]
    try:
        _builder(data_set, directory).download_and_prepare(download_config=config)
    except BaseException as error:
        # The directories that it made and left empty are removed.
        for path in absent:
            with contextlib.suppress(OSError):  # It has something in it, or was never made.
                path.rmdir()
        # The first is also what `requests` raises.
        if isinstance(error, OSError | tfds.download.DownloadError | NonMatchingChecksumError):
            why = f"{data_set.name} could not be prepared in {directory}: {error}"
            raise UserError(why) from error
        raise


def _builder(data_set: DataSet, directory: pathlib.Path) -> Any:
    import tensorflow_datasets as tfds

    if not data_set.manual:
        return tfds.builder(data_set.name, data_dir=directory, file_format="array_record")
    from train.streams.builders import BUILDERS

    return BUILDERS[data_set.name](data_dir=directory, file_format="array_record")


class DataStatus(NamedTuple):
    """One data set of one stream."""

    stream: str
    data_set: str
    looked_in: Sequence[pathlib.Path]  # Empty where the data come with scikit-learn.
    present: bool  # Whether the stream can read it as it is.
    num_train: int = 0
    num_test: int = 0
    found: pathlib.Path | None = None
    version: str = ""
    file_format: str = ""
    num_bytes: int = 0  # Of the prepared files.
    subset: bool = False  # Whether there are fewer examples than in the whole data set.


def data_status(data_dirs: Directories = None) -> list[DataStatus]:
    """Every data set of every stream, in the order of the registry."""
    directories = tuple(prepared.data_directories(data_dirs))
    return [
        _status(stream.name, DATA_SETS[name], directories)
        for stream in STREAMS.values()
        for name in stream.data_sets
    ]


def _status(stream: str, data_set: DataSet, directories: tuple[pathlib.Path, ...]) -> DataStatus:
    if data_set.embedded:
        return DataStatus(stream, data_set.name, (), True, *data_set.full_size)
    data = prepared.find(data_set.name, directories)
    if data is None:
        return DataStatus(stream, data_set.name, directories, present=False)
    sizes = data.splits["train"].num_examples, data.splits["test"].num_examples
    num_bytes = sum(path.stat().st_size for path in data.directory.iterdir())
    copy = data.directory, data.version, data.file_format, num_bytes, data_set.is_subset(*sizes)
    return DataStatus(stream, data_set.name, directories, data.readable, *sizes, *copy)
