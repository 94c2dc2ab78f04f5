"""The embedded data set: scikit-learn's handwritten digits, enlarged, in a fixed 80/20 split."""

from typing import Any

import numpy as np
from PIL import Image

from train.streams.cache import Arrays
from train.streams.sampling import spaced

TEST_FRACTION = 0.2


def load_digits(image_shape: tuple[int, int, int]) -> tuple[Arrays, Arrays]:
    """Training and test part, uint8, every class in the same proportion.

    >>> train, test = load_digits((16, 16, 1))
    >>> train.images.shape, test.images.shape
    ((1438, 16, 16, 1), (359, 16, 16, 1))
    """
    import sklearn.datasets  # A second, which only this stream should pay.

    digits: Any = sklearn.datasets.load_digits()
    grey = np.round(digits.images * (255 / 16)).astype(np.uint8)
    size = (image_shape[1], image_shape[0])
    enlarged = [Image.fromarray(image).resize(size, Image.Resampling.BILINEAR) for image in grey]
    images = np.stack([np.asarray(image) for image in enlarged]).reshape(-1, *image_shape)
    labels = digits.target.astype(np.int64)
    test = spaced(labels, TEST_FRACTION)
    return Arrays(images[~test], labels[~test]), Arrays(images[test], labels[test])
