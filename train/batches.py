"""Batches as a pure function of (seed, task, step): no iterator, so a resume is an integer."""

import functools
from typing import NamedTuple

import jax
import numpy as np

from train.streams.types import Examples

Array = np.ndarray | jax.Array


class Batch(NamedTuple):
    """Examples of one step, or of several behind a leading axis."""

    image: Array  # uint8[..., batch, height, width, channels]
    label: Array  # int32[..., batch]
    weight: Array  # float32[..., batch]: 0 for the filling of a last, partial batch


def steps_per_epoch(examples: int, batch_size: int) -> int:
    """
    >>> steps_per_epoch(25, 10)
    3
    """
    return -(-examples // batch_size)


@functools.lru_cache(maxsize=64)  # The order of an epoch is asked for at each of its steps.
def _order(seed: int, task: int, epoch: int, examples: int) -> np.ndarray:
    return np.random.default_rng((seed, task, epoch)).permutation(examples)


def positions(
    seed: int, task: int, step: int, *, examples: int, batch_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Which examples a step takes, and their weights.

    An epoch goes through all examples in a random order. Its last batch is filled up from the
    epoch's beginning, so that shapes stay and batch normalisation sees a whole batch; the filling
    has no weight, so every example counts once.

    >>> rows, weight = positions(0, 0, 2, examples=5, batch_size=2)
    >>> len(set(rows)), weight
    (2, array([1., 0.], dtype=float32))
    """
    epoch, step_in_epoch = divmod(step, steps_per_epoch(examples, batch_size))
    order = _order(seed, task, epoch, examples)
    taken = step_in_epoch * batch_size + np.arange(batch_size)
    return order[taken % examples], (taken < examples).astype(np.float32)


def take(
    examples: Examples, seeds: tuple[int, ...], task: int, steps: range, *, batch_size: int
) -> Batch:
    """The batches of some steps for each seed, with axes [step, seed, batch]."""
    chosen = [
        positions(seed, task, step, examples=len(examples), batch_size=batch_size)
        for step in steps
        for seed in seeds
    ]
    rows = np.concatenate([rows for rows, _ in chosen])
    image, label = examples.take(rows)
    axes = (len(steps), len(seeds), batch_size)
    return Batch(
        image=image.reshape(*axes, *image.shape[1:]),
        label=label.reshape(axes),
        weight=np.stack([weight for _, weight in chosen]).reshape(axes),
    )


def block(examples: Examples, start: int, size: int) -> Batch:
    """Examples in their own order from `start` on, filled up to `size`: for evaluation."""
    rows = start + np.arange(size)
    image, label = examples.take(np.minimum(rows, len(examples) - 1))
    return Batch(image, label, (rows < len(examples)).astype(np.float32))
