"""Decoded images and labels as .npy files, written once and memory-mapped after that.

An entry is a directory that holds `images.npy` and `labels.npy` of one split of one data set, and
their checksum. It is built under another name and renamed when complete: whoever is killed half
way, or loses the race against another process, leaves no entry that looks whole.
"""

import contextlib
import hashlib
import os
import pathlib
import sys
import tempfile
import zlib
from collections.abc import Iterable, Sequence

import numpy as np

from train import files
from train.errors import UserError
from train.streams import prepared
from train.streams.prepared import Arrays, Directory, Prepared

# Goes into every key: raise it when the decoding changes what the arrays hold.
_DECODING = "1"
_CHECKSUM = "crc32"


def cache_directory(cache_dir: Directory | None = None) -> pathlib.Path:
    """The argument, else TAG_OPTAX_CACHE, else `tag_optax` in the user's cache directory."""
    cache_dir = cache_dir or os.environ.get("TAG_OPTAX_CACHE")
    if not cache_dir:
        cache_dir = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "tag_optax"
    return files.at_home(cache_dir)


def load(
    data: Prepared, split: str, image_shape: tuple[int, int, int], cache_dir: pathlib.Path
) -> Arrays:
    """The decoded split, its images memory-mapped; it is decoded if the cache does not hold it."""
    part = data.splits[split]
    shape, size = (part.num_examples, *image_shape), "x".join(map(str, image_shape))
    # Other than a subset of the same version has, or data that were prepared anew.
    identity = " ".join(map(str, [_DECODING, part.num_bytes, *part.shard_lengths]))
    digest = hashlib.sha256(identity.encode()).hexdigest()[:10]
    path = cache_dir / f"{data.name}-{data.version}-{split}-{part.num_examples}-{size}-{digest}"
    try:
        if path.exists():
            try:
                return _open(path, shape)
            # What numpy raises at a damaged header is anybody's guess.
            except Exception as error:
                print(f"{path} is damaged ({error}); decoding again", file=sys.stderr)
                # Renamed, then deleted: nobody ever sees half an entry.
                with (
                    tempfile.TemporaryDirectory(dir=cache_dir, prefix=".discarded-") as discarded,
                    contextlib.suppress(FileNotFoundError),  # Of two processes, one finds it gone.
                ):
                    path.rename(pathlib.Path(discarded) / path.name)
        print(f"decoding {data.name} {split}: {shape[0]} images, once", file=sys.stderr)
        cache_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_dir, prefix=f".{path.name}-") as workshop:
            unfinished = pathlib.Path(workshop) / path.name
            unfinished.mkdir()
            _write(unfinished, shape, prepared.blocks(data, split, image_shape))
            # Opened before it moves: the maps outlive both a rename and a deletion.
            arrays = _open(unfinished, shape)
            try:
                unfinished.rename(path)
            except OSError:
                # Another process was first, and has written the same arrays.
                if not path.exists():
                    raise
            return arrays
    except OSError as error:
        raise UserError(
            f"Cannot keep decoded images in {cache_dir}: {error.strerror or error}. "
            "Choose another directory with TAG_OPTAX_CACHE."
        ) from error


def _open(path: pathlib.Path, shape: Sequence[int]) -> Arrays:
    images = np.load(path / "images.npy", mmap_mode="r", allow_pickle=False)
    labels = np.load(path / "labels.npy", allow_pickle=False)
    if images.shape != tuple(shape) or images.dtype != np.uint8:
        raise ValueError(f"images are {images.dtype}{list(images.shape)}")
    if labels.shape != tuple(shape[:1]) or labels.dtype != np.int64:
        raise ValueError(f"labels are {labels.dtype}{list(labels.shape)}")
    # Two thirds of a second a gigabyte, where a wrong pixel would go unnoticed for ever.
    if (path / _CHECKSUM).read_text() != f"{zlib.crc32(labels, zlib.crc32(images)):08x}\n":
        raise ValueError("its checksum is another one")
    return images, labels


def _write(directory: pathlib.Path, shape: Sequence[int], blocks: Iterable[Arrays]) -> None:
    labels, checksum = [], 0
    # Not through a writable map: there a full disk is a bus error, here it is an OSError.
    with (directory / "images.npy").open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": tuple(shape)}
        np.lib.format.write_array_header_1_0(file, header)
        for block, block_labels in blocks:
            written = np.ascontiguousarray(block).data
            file.write(written)
            checksum = zlib.crc32(written, checksum)
            labels.append(block_labels)
    every_label = np.concatenate(labels)
    np.save(directory / "labels.npy", every_label)
    # What a power cut leaves half written does not agree with it, and is decoded again.
    (directory / _CHECKSUM).write_text(f"{zlib.crc32(every_label.data, checksum):08x}\n")
