"""Checking and encoding the images that go into a data set."""

import io

import numpy as np
from PIL import Image


def encoded(content: bytes, size: tuple[int, int], mode: str) -> bytes | None:
    """The image as it is if size and mode fit, else converted to PNG; None if it is unreadable.

    >>> encoded(b"not an image", (28, 28), "L") is None
    True
    >>> large = png(np.zeros((5, 5, 3), np.uint8))
    >>> with Image.open(io.BytesIO(encoded(large, (2, 2), "L"))) as small:
    ...     small.size, small.mode
    ((2, 2), 'L')
    """
    try:
        with Image.open(io.BytesIO(content)) as image:
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
    """uint8[height, width] or [height, width, 3] as PNG."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png")
    return buffer.getvalue()
