"""Data sets as TFDS prepares them: which are where, and the images in them, decoded and encoded.

Reading `dataset_info.json` needs no TFDS, so looking around, and opening a cache, is quick.
"""

import concurrent.futures
import dataclasses
import functools
import io
import os
import pathlib
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from PIL import Image

from train import files
from train.errors import UserError

SPLITS = ("train", "test")
BLOCK = 512
Arrays: TypeAlias = tuple[np.ndarray, np.ndarray]
"""Images, uint8[n, height, width, channels], and labels, int64[n]: classes of the data set."""
_MODES = {1: "L", 3: "RGB"}
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
        path = self.directory / "label.labels.txt"
        names = files.read(path, str.splitlines, "text") if path.exists() else []
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
    return max(copies, key=lambda copy: copy.readable, default=None)  # The first of the best.


def _read(name: str, directory: pathlib.Path) -> Prepared:
    path = directory / "dataset_info.json"
    try:
        info = files.read_json(path)
        splits = {}
        for split in info["splits"]:
            lengths = tuple(map(int, split["shardLengths"]))
            splits[split["name"]] = Split(sum(lengths), int(split.get("numBytes", 0)), lengths)
        file_format = info.get("fileFormat", "tfrecord")
    except Exception as error:  # Of another shape than TFDS writes.
        why = f"{path} cannot be understood ({type(error).__name__}: {error})."
        why = error if isinstance(error, UserError) else why
        raise UserError(f"{why} Delete {directory} and prepare {name} again.") from error
    for split in SPLITS:
        if split not in splits:
            raise UserError(f"{name} in {directory} has no split {split}.")
        shards = len(list(directory.glob(f"{name}-{split}.{file_format}-*")))
        expected = len(splits[split].shard_lengths)
        if shards != expected:
            raise UserError(
                f"{name} in {directory} has {shards} of {expected} files of split {split}. "
                f"Delete that directory and prepare {name} again."
            )
    return Prepared(name, directory.name, directory, file_format, splits)


def blocks(data: Prepared, split: str, image_shape: tuple[int, int, int]) -> Iterator[Arrays]:
    """A split, a block of images and labels at a time."""
    decode = functools.partial(decode_image, image_shape=image_shape)
    try:
        import tensorflow_datasets as tfds  # Half a second, and not needed once the cache is there.

        builder: Any = tfds.builder_from_directory(data.directory)
        features = builder.info.features
        kept = [key for key, kind in features.items() if isinstance(kind, tfds.features.Image)]
        if "image" not in kept or "label" not in features:
            raise ValueError("it has no image and label")
        skip = dict.fromkeys(kept, tfds.decode.SkipDecoding())  # Pillow decodes and resizes them.
        source = builder.as_data_source(split, decoders=skip)
        # Small images are decoded faster than threads can pass the interpreter lock around.
        large = image_shape[0] * image_shape[1] > 64 * 64
        with concurrent.futures.ThreadPoolExecutor() as pool:
            for start in range(0, len(source), BLOCK):
                records = source.__getitems__(range(start, min(start + BLOCK, len(source))))
                images = [record["image"] for record in records]
                with _bombs_refused():  # Not across a yield, and for all threads at once.
                    decoded = (pool.map if large else map)(decode, images)
                    block = np.stack(list(decoded))
                yield block, np.array([record["label"] for record in records], np.int64)
    except MemoryError:
        raise
    except Exception as error:
        # A damaged file: what TFDS, protobuf, array_record or Pillow raise is anybody's guess.
        raise UserError(
            f"{data.name} in {data.directory} cannot be read ({error}). "
            "Delete that directory and prepare the data set again."
        ) from error


def decode_image(encoded: bytes, image_shape: tuple[int, int, int]) -> np.ndarray:
    """An encoded image as uint8 of this shape: grey or RGB, resized where it must be."""
    height, width, channels = image_shape
    with Image.open(io.BytesIO(encoded)) as image:
        image = image.convert(_MODES[channels]).resize((width, height), Image.Resampling.BILINEAR)
        return np.asarray(image).reshape(image_shape)


def encoded(content: bytes, size: tuple[int, int], mode: str) -> bytes | None:
    """The image as it is if size and mode fit, else converted to PNG; None if it is unreadable."""
    try:
        with _bombs_refused(), Image.open(io.BytesIO(content)) as image:
            image.load()
            if (image.size, image.mode) == (size, mode) and image.format in ("JPEG", "PNG"):
                return content
            converted = image.convert(mode)
    except MemoryError:
        raise
    except Exception:  # Pillow has one for each way in which a file can be broken or too large.
        return None
    return png(np.asarray(converted.resize(size, Image.Resampling.BILINEAR)))


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png")
    return buffer.getvalue()


def _bombs_refused() -> "warnings.catch_warnings[None]":
    """Pillow refuses an image that is twice too large, and of a smaller one it only warns."""
    return warnings.catch_warnings(action="error", category=Image.DecompressionBombWarning)
