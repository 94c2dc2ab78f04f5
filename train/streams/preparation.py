"""Downloading and preparing data sets, as array_record, by TFDS."""

import importlib.util
import os
import pathlib
import sys
from typing import TYPE_CHECKING

from train import files
from train.errors import UserError
from train.streams import prepared
from train.streams.registry import DATA_SETS, stream_spec

if TYPE_CHECKING:
    import tensorflow_datasets as tfds

# What the builders that come with TFDS import when they run; TFDS does not declare all of it.
_MODULES = ("tensorflow", "importlib_resources")
_MORE_MODULES = {"caltech_birds2011": ("cv2",), "svhn_cropped": ("scipy",)}


def prepare(
    name: str,
    *,
    manual_dir: str | os.PathLike[str] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
) -> None:
    """Prepares every data set of a stream that is missing.

    Args:
      name: a key of `STREAMS`.
      manual_dir: holds what cannot be downloaded; by default `downloads/manual` in the data
        directory.
      data_dir: where the data go; by default the first of the data directories. What any of
        them holds already is not prepared again.

    >>> prepare("rotated-digits")  # Says on stderr that there is nothing to prepare.
    """
    spec = stream_spec(name)
    directories = prepared.data_directories()
    if data_dir is not None:
        directories = [*prepared.data_directories(data_dir), *directories]
    for data_set in (DATA_SETS[data_set] for data_set in spec.data_sets):
        if data_set.embedded:
            print(f"{name} comes with scikit-learn: nothing to prepare", file=sys.stderr)
            continue
        found = prepared.find(data_set.name, directories)
        if found and found.readable:
            print(f"{data_set.name} is prepared in {found.directory}", file=sys.stderr)
        elif found and found.directory.is_relative_to(directories[0]):
            raise UserError(
                f"{found.directory} holds {data_set.name} as {found.file_format}. Delete it, or "
                "choose another directory: "
                f"python -m train prepare {name} --data-dir DIR"
            )
        else:
            _prepare(data_set.name, directories[0], manual_dir)


def _prepare(name: str, directory: pathlib.Path, manual_dir: str | os.PathLike[str] | None) -> None:
    """Runs one builder; what the user can mend comes out as `UserError`."""
    if DATA_SETS[name].manual:
        source = _manual_directory(name, manual_dir or directory / "downloads" / "manual")
    else:
        source = None
        _check_modules(name)
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError

    config = tfds.download.DownloadConfig(manual_dir=source, try_download_gcs=False)
    try:
        _builder(name, directory).download_and_prepare(download_config=config)
    except (
        OSError,  # Includes what `requests` raises.
        tfds.download.DownloadError,
        NonMatchingChecksumError,
    ) as error:
        raise UserError(f"{name} could not be prepared in {directory}: {error}") from error


def _manual_directory(name: str, manual_dir: str | os.PathLike[str]) -> pathlib.Path:
    source = files.at_home(manual_dir)
    if not source.is_dir() or not any(source.iterdir()):
        raise UserError(
            f"{name} is not downloaded but made from what you put into {source}: "
            f"{DATA_SETS[name].manual}. Another directory is chosen with --manual-dir DIR."
        )
    return source


def _check_modules(name: str) -> None:
    modules = (*_MODULES, *_MORE_MODULES.get(name, ()))
    absent = [module for module in modules if importlib.util.find_spec(module) is None]
    if absent:
        raise UserError(
            f"Preparing {name} needs {' and '.join(absent)}: pip install 'tag_optax[tfds]'"
        )


def _builder(name: str, directory: pathlib.Path) -> "tfds.core.DatasetBuilder":
    import tensorflow_datasets as tfds

    if not DATA_SETS[name].manual:
        return tfds.builder(name, data_dir=directory, file_format="array_record")
    from train.streams.builders import BUILDERS

    return BUILDERS[name](data_dir=directory, file_format="array_record")
