"""Rotations and permutations against scipy and against numpy's own."""

import functools
import time

import numpy as np
import pytest
import scipy.ndimage

from train.streams.named import Rotation, permuted


@pytest.mark.parametrize("degrees", [30, 60, 90, 120, 210, 330, 17])
@pytest.mark.parametrize("shape", [(28, 28, 1), (16, 16, 1), (9, 9, 3)])
def test_rotation_equals_scipy(degrees, shape):
    images = np.random.default_rng(0).integers(0, 256, (3, *shape)).astype(np.uint8)
    expected = scipy.ndimage.rotate(
        images.astype(float), degrees, axes=(2, 1), reshape=False, order=1, mode="grid-constant"
    )
    rotated = Rotation(shape[:2], degrees)(images)
    assert rotated.dtype == np.uint8
    np.testing.assert_allclose(rotated, expected, atol=0.51)


@pytest.mark.parametrize("quarters", range(5))
def test_quarter_turns_are_exact(quarters):
    images = np.random.default_rng(0).integers(0, 256, (5, 28, 28, 1)).astype(np.uint8)
    turned = Rotation((28, 28), 90 * quarters)(images)
    np.testing.assert_array_equal(turned, np.rot90(images, quarters, axes=(1, 2)))


def test_permutation():
    order = np.random.default_rng(0).permutation(16)
    images = np.random.default_rng(1).integers(0, 256, (2, 4, 4, 3)).astype(np.uint8)
    found = permuted(images, order)
    np.testing.assert_array_equal(found.reshape(2, 16, 3), images.reshape(2, 16, 3)[:, order])


def test_transforms_are_fast():
    images = np.random.default_rng(0).integers(0, 256, (10, 28, 28, 1)).astype(np.uint8)
    reversed_pixels = functools.partial(permuted, order=np.arange(784)[::-1])
    for transform in (Rotation((28, 28), 30), reversed_pixels):
        times = []
        for _ in range(50):
            start = time.perf_counter()
            transform(images)
            times.append(time.perf_counter() - start)
        assert min(times) < 1e-3
