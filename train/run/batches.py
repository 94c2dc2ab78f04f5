"""Batches as a pure function of (seed, task, step): no iterator, so a resume is an integer."""

import functools
import math
from collections.abc import Mapping

import numpy as np

from train.methods import Batch
from train.streams import Examples

WHOLE = slice(None)


@functools.lru_cache(maxsize=64)  # The order of an epoch is asked for at each of its steps.
def _order(key: tuple[int, ...], sizes: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(key)
    starts = np.cumsum((0, *sizes[:-1]))
    return np.concatenate(
        [start + rng.permutation(size) for start, size in zip(starts, sizes, strict=True)]
    )


def positions(
    seed: int, task: int, step: int, *, sizes: tuple[int, ...], batch_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Which examples a step takes, and their weights.

    An epoch goes through all examples, part by part, each part in a random order; `sizes` says how
    many examples the parts have. The epoch's last batch is filled up from its beginning, so that
    shapes stay and batch normalisation sees a whole batch; the filling has no weight, so every
    example counts once.
    """
    examples = sum(sizes)
    epoch, step_in_epoch = divmod(step, math.ceil(examples / batch_size))
    order = _order((seed, task, epoch), sizes)
    taken = step_in_epoch * batch_size + np.arange(batch_size)
    return order[taken % examples], (taken < examples).astype(np.float32)


def take(
    parts: Mapping[int, Examples],
    seeds: tuple[int, ...],
    task: int,
    steps: range,
    *,
    batch_size: int,
    in_turn: bool = False,
    of_batch: slice = WHOLE,
) -> Batch:
    """The batches of some steps for each seed, with axes [step, seed, batch].

    `parts` has the examples of each task that is learned: one, or with a joint method all of them.
    They are shuffled together, or come one part after another in every epoch. Of every batch only
    the slice `of_batch` is read.
    """
    sizes = tuple(map(len, parts.values()))
    if not in_turn:
        sizes = (sum(sizes),)
    chosen = [
        positions(seed, task, step, sizes=sizes, batch_size=batch_size)
        for step in steps
        for seed in seeds
    ]
    rows, weights = (np.stack(each)[:, of_batch] for each in zip(*chosen, strict=True))
    flat = _gather(parts, rows.ravel(), weights.ravel())
    axes = (len(steps), len(seeds), rows.shape[1])
    return Batch(*(x.reshape(*axes, *x.shape[1:]) for x in flat))


def _gather(
    parts: Mapping[int, Examples], rows: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, ...]:
    """The fields of a batch: rows count through all parts."""
    ends = np.cumsum([len(part) for part in parts.values()])
    owner = np.searchsorted(ends, rows, side="right")
    task = np.array(list(parts), np.int32)[owner]
    taken = [
        part.take(rows[owner == index] - (ends[index] - len(part)))
        for index, part in enumerate(parts.values())
    ]
    # Part by part, and then back to the order of the rows.
    back = np.argsort(np.argsort(owner, kind="stable"))
    x, y = (np.concatenate(field)[back] for field in zip(*taken, strict=True))
    return x, y, task, weight


def block(examples: Examples, task: int, start: int, size: int, of_batch: slice = WHOLE) -> Batch:
    """Examples in their own order from `start` on, filled up to `size`: for evaluation."""
    rows = start + np.arange(size)[of_batch]
    taken = np.minimum(rows, len(examples) - 1)
    weight = (rows < len(examples)).astype(np.float32)
    return Batch(*_gather({task: examples}, taken, weight))


def revisited(
    examples: Examples,
    seeds: tuple[int, ...],
    task: int,
    count: int,
    start: int,
    *,
    batch_size: int,
    of_batch: slice = WHOLE,
) -> Batch:
    """Some of `count` different examples of a finished task, from `start` on; axes [seed, batch].

    Weights add up to 1 over all `count` of them; the last batch is filled up without weight.
    """
    position = start + np.arange(batch_size)[of_batch]
    weight = (position < count).astype(np.float32) / np.float32(count)
    rows = [_order((seed, task), (len(examples),))[position % count] for seed in seeds]
    flat = _gather({task: examples}, np.concatenate(rows), np.tile(weight, len(seeds)))
    return Batch(*(x.reshape(len(seeds), len(position), *x.shape[1:]) for x in flat))
