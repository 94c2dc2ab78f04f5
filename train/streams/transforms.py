"""What a task does to its images: rotations and permutations of the pixels, in numpy."""

import math

import numpy as np


class Rotation:
    """Turns images counter-clockwise about their centre, bilinear, with black outside.

    Every pixel of the result is a weighted sum of four pixels; which and how much is worked out
    once. Multiples of 90 degrees move pixels exactly."""

    def __init__(self, size: tuple[int, int], degrees: float):
        height, width = size
        # Rounded so that the sine of 180 degrees is zero and no pixel is smeared over two.
        sine = round(math.sin(math.radians(degrees)), 12)
        cosine = round(math.cos(math.radians(degrees)), 12)
        y = np.arange(height)[:, None] - (height - 1) / 2
        x = np.arange(width)[None, :] - (width - 1) / 2
        source_y = cosine * y + sine * x + (height - 1) / 2
        source_x = cosine * x - sine * y + (width - 1) / 2
        top, left = np.floor(source_y).astype(int), np.floor(source_x).astype(int)
        down, right = source_y - top, source_x - left
        corners = [
            (top, left, (1 - down) * (1 - right)),
            (top, left + 1, (1 - down) * right),
            (top + 1, left, down * (1 - right)),
            (top + 1, left + 1, down * right),
        ]
        self._pixels, self._weights = [], []
        for row, column, weight in corners:
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            self._pixels.append(np.where(inside, row * width + column, 0).ravel())
            self._weights.append(np.where(inside, weight, 0).astype(np.float32).reshape(1, -1, 1))

    def __call__(self, images: np.ndarray) -> np.ndarray:
        flat = images.reshape(len(images), -1, images.shape[-1])
        total = np.full(flat.shape, 0.5, np.float32)  # Truncation then rounds to the nearest.
        for pixels, weights in zip(self._pixels, self._weights, strict=True):
            total += weights * flat[:, pixels]
        return total.astype(np.uint8).reshape(images.shape)


def permuted(images: np.ndarray, order: np.ndarray) -> np.ndarray:
    """The pixels of every image in this order, the channels of a pixel together."""
    flat = images.reshape(len(images), -1, images.shape[-1])
    return flat[:, order].reshape(images.shape)
