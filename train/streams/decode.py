"""Images as files and as arrays: what a prepared data set holds, and what goes into one."""

import concurrent.futures
import contextlib
import io
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
from PIL import Image

from train.errors import UserError
from train.streams.prepared import Prepared

BLOCK = 512
Blocks: TypeAlias = Iterable[tuple[np.ndarray, np.ndarray]]
"""Some images and their labels at a time."""
_MODES = {1: "L", 3: "RGB"}


def blocks(data: Prepared, split: str, image_shape: tuple[int, int, int]) -> Blocks:
    """All images (uint8[n, *image_shape]) and labels (int64[n]) of a split, a block at a time."""
    try:
        import tensorflow_datasets as tfds  # Half a second, and not needed once the cache is there.

        builder: Any = tfds.builder_from_directory(data.directory)
        features = builder.info.features
        encoded = [key for key, kind in features.items() if isinstance(kind, tfds.features.Image)]
        if "image" not in encoded or "label" not in features:
            raise ValueError("it has no image and label")
        # Pillow decodes and resizes them.
        skip = {key: tfds.decode.SkipDecoding() for key in encoded}
        yield from _blocks(builder.as_data_source(split, decoders=skip), image_shape)
    except MemoryError:
        raise
    except Exception as error:
        # A damaged file: what TFDS, protobuf, array_record or Pillow raise is anybody's guess.
        raise UserError(
            f"{data.name} in {data.directory} cannot be read ({error}). "
            "Delete that directory and prepare the data set again."
        ) from error


def _blocks(source: Any, image_shape: tuple[int, int, int]) -> Blocks:
    def decode(record: dict[str, Any]) -> np.ndarray:
        return decode_image(record["image"], image_shape)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        # Small images are decoded faster than threads can pass the interpreter lock around.
        apply = pool.map if image_shape[0] * image_shape[1] > 64 * 64 else map
        for start in range(0, len(source), BLOCK):
            records = source.__getitems__(range(start, min(start + BLOCK, len(source))))
            with _bombs_refused():  # Not across a yield, and for all threads at once.
                images = np.stack(list(apply(decode, records)))
            yield images, np.array([record["label"] for record in records], np.int64)


def decode_image(encoded: bytes, image_shape: tuple[int, int, int]) -> np.ndarray:
    """An encoded image as uint8 of this shape: grey or RGB, resized where it must be."""
    height, width, channels = image_shape
    with Image.open(io.BytesIO(encoded)) as image:
        image = image.convert(_MODES[channels])
        if image.size != (width, height):
            image = image.resize((width, height), Image.Resampling.BILINEAR)
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
    if converted.size != size:
        converted = converted.resize(size, Image.Resampling.BILINEAR)
    return png(np.asarray(converted))


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png")
    return buffer.getvalue()


@contextlib.contextmanager
def _bombs_refused() -> Iterator[None]:
    """Pillow refuses an image that is twice too large, and of a smaller one it only warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield
