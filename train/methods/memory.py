"""Memories of past examples: arrays of fixed shape, written and drawn from inside a step."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from train.run.batches import Batch
from train.streams.types import Stream

NOBODY = -1  # The task of a slot that holds nothing.


class Memory(NamedTuple):
    """Examples in slots."""

    image: jax.Array  # uint8[slots, height, width, channels]
    label: jax.Array  # int32[slots]
    task: jax.Array  # int32[slots]: NOBODY where nothing is stored
    offered: jax.Array  # int32[]: examples seen; int32[rings]: the next place in each ring


class Rings(NamedTuple):
    """Which ring an example goes to: one for each class of each task.

    Tasks that share their classes have rings of their own, else a task would push its
    predecessors out.
    """

    first_ring: tuple[int, ...]  # of each task
    first_class: tuple[int, ...]  # of each task
    number: int


def rings_of(stream: Stream) -> Rings:
    """
    >>> from types import SimpleNamespace as New
    >>> rings_of(New(tasks=[New(classes=range(0, 5)), New(classes=range(5, 7))]))
    Rings(first_ring=(0, 5), first_class=(0, 5), number=7)
    """
    sizes = [len(task.classes) for task in stream.tasks]
    ends = np.cumsum(sizes).tolist()
    return Rings(
        first_ring=tuple(end - size for end, size in zip(ends, sizes, strict=True)),
        first_class=tuple(task.classes.start for task in stream.tasks),
        number=ends[-1],
    )


def empty(slots: int, image_shape: tuple[int, int, int], *, rings: int | None = None) -> Memory:
    """A memory with nothing in it; with `rings`, so many ring buffers of equal size."""
    return Memory(
        image=jnp.zeros((slots, *image_shape), jnp.uint8),
        label=jnp.zeros((slots,), jnp.int32),
        task=jnp.full((slots,), NOBODY, jnp.int32),
        offered=jnp.zeros(() if rings is None else (rings,), jnp.int32),
    )


def add_to_reservoir(memory: Memory, batch: Batch, key: jax.Array) -> Memory:
    """Reservoir sampling: every example offered so far is in the memory with equal probability.

    The n-th example takes slot n while there is one free, and then a random one of n numbers: where
    that is a slot it replaces what is there. Filling (weight 0) is not offered.
    """
    slots = memory.label.shape[0]
    offered = jnp.asarray(batch.weight) > 0
    # The count stands still before it would overflow: later examples have its chances.
    before = jnp.minimum(memory.offered, jnp.iinfo(jnp.int32).max - len(offered))
    number = before + jnp.cumsum(offered.astype(jnp.int32))  # 1 for the very first.
    drawn = jax.random.randint(key, number.shape, 0, jnp.maximum(number, 1))
    slot = jnp.where(number <= slots, number - 1, drawn)
    memory = _write(memory, batch, slot, offered & (slot < slots))
    return memory._replace(offered=number[-1])


def add_to_rings(memory: Memory, batch: Batch, rings: Rings) -> Memory:
    """Ring buffers: each holds the latest examples of one class of one task."""
    size = memory.label.shape[0] // rings.number
    offered = jnp.asarray(batch.weight) > 0
    ring = (
        jnp.array(rings.first_ring)[batch.task]
        + batch.label
        - jnp.array(rings.first_class)[batch.task]
    )
    earlier = jnp.tri(len(ring), k=-1, dtype=bool) & (ring[:, None] == ring) & offered
    turn = memory.offered[ring] + jnp.sum(earlier, axis=1, dtype=jnp.int32)
    memory = _write(memory, batch, ring * size + turn % size, offered)
    # A place, and no count of all examples, which would overflow.
    places = memory.offered.at[ring].add(offered.astype(jnp.int32)) % size
    return memory._replace(offered=places)


def draw(memory: Memory, key: jax.Array, size: int, *, without: jax.Array | int = NOBODY) -> Batch:
    """Different examples at random, none of them of the task `without`.

    Where there are fewer than `size`, they fill the batch again from the first, without weight;
    where there is none, nothing in the batch has weight.
    """
    slots = memory.label.shape[0]
    eligible = (memory.task != NOBODY) & (memory.task != without)
    # Eligible slots first, in random order.
    order = jnp.argsort(jax.random.uniform(key, (slots,)) + ~eligible)
    count = jnp.sum(eligible, dtype=jnp.int32)
    position = jnp.arange(size, dtype=jnp.int32)
    slot = order[position % jnp.maximum(count, 1)]
    return Batch(
        image=memory.image[slot],
        label=memory.label[slot],
        task=jnp.maximum(memory.task[slot], 0),  # An empty slot names no task to look up.
        weight=(position < count).astype(jnp.float32),
    )


def _write(memory: Memory, batch: Batch, slot: jax.Array, chosen: jax.Array) -> Memory:
    """Writes the chosen examples to their slots; of several for one slot, the last."""
    slots = memory.label.shape[0]
    same = (slot[:, None] == slot) & chosen
    overtaken = jnp.any(jnp.triu(same, k=1), axis=1)
    where = jnp.where(chosen & ~overtaken, slot, slots)  # Behind the end: dropped.
    return memory._replace(
        image=memory.image.at[where].set(batch.image, mode="drop"),
        label=memory.label.at[where].set(batch.label, mode="drop"),
        task=memory.task.at[where].set(batch.task, mode="drop"),
    )
