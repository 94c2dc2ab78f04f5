"""Memories of past examples: arrays of fixed shape, written and drawn from inside a step."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from train.methods.problem import Batch, Problem

NOBODY = -1  # The task of a slot that holds nothing.


class Memory(NamedTuple):
    """Examples in slots."""

    x: jax.Array  # [slots, *example]
    y: jax.Array  # [slots, *target]
    task: jax.Array  # int32[slots]: NOBODY where nothing is stored
    offered: jax.Array  # int32[]: examples seen; int32[rings]: the next place in each ring


def num_rings(problem: Problem) -> int:
    """One for each class of each task, since a task would push out its predecessors; or one for
    each task where targets are no classes."""
    return problem.tasks if problem.mask is None else int(problem.mask.sum())


def ring_of(problem: Problem, batch: Batch) -> jax.Array:
    """Which ring each example goes to: those of the first task come first."""
    if problem.mask is None:
        return jnp.asarray(batch.task)
    table = np.zeros(problem.mask.shape, np.int32)
    table[problem.mask] = np.arange(problem.mask.sum())
    return jnp.asarray(table)[batch.task, batch.y]


def empty(problem: Problem, slots: int, *, rings: int | None = None) -> Memory:
    """A memory with nothing in it; with `rings`, so many ring buffers of equal size."""
    return Memory(
        x=jnp.zeros((slots, *problem.inputs.shape), problem.inputs.dtype),
        y=jnp.zeros((slots, *problem.targets.shape), problem.targets.dtype),
        task=jnp.full((slots,), NOBODY, jnp.int32),
        offered=jnp.zeros(() if rings is None else (rings,), jnp.int32),
    )


def add_to_reservoir(memory: Memory, batch: Batch, key: jax.Array) -> Memory:
    """Reservoir sampling: every example offered so far is in the memory with equal probability.

    The n-th example takes slot n while there is one free, and then a random one of n numbers: where
    that is a slot it replaces what is there. Filling (weight 0) is not offered.
    """
    slots = len(memory.task)
    offered = jnp.asarray(batch.weight) > 0
    # The count stands still before it would overflow: later examples have its chances.
    before = jnp.minimum(memory.offered, jnp.iinfo(jnp.int32).max - len(offered))
    number = before + jnp.cumsum(offered.astype(jnp.int32))  # 1 for the very first.
    drawn = jax.random.randint(key, number.shape, 0, jnp.maximum(number, 1))
    slot = jnp.where(number <= slots, number - 1, drawn)
    memory = _write(memory, batch, slot, offered & (slot < slots))
    return memory._replace(offered=number[-1])


def add_to_rings(memory: Memory, batch: Batch, ring: jax.Array) -> Memory:
    """Ring buffers: each holds the latest examples of one class of one task."""
    size = len(memory.task) // len(memory.offered)
    offered = jnp.asarray(batch.weight) > 0
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
    slots = len(memory.task)
    eligible = (memory.task != NOBODY) & (memory.task != without)
    # Eligible slots first, in random order.
    order = jnp.argsort(jax.random.uniform(key, (slots,)) + ~eligible)
    count = jnp.sum(eligible, dtype=jnp.int32)
    position = jnp.arange(size, dtype=jnp.int32)
    slot = order[position % jnp.maximum(count, 1)]
    return Batch(
        x=memory.x[slot],
        y=memory.y[slot],
        task=jnp.maximum(memory.task[slot], 0),  # An empty slot names no task to look up.
        weight=(position < count).astype(jnp.float32),
    )


def _write(memory: Memory, batch: Batch, slot: jax.Array, chosen: jax.Array) -> Memory:
    """Writes the chosen examples to their slots; of several for one slot, the last."""
    slots = len(memory.task)
    same = (slot[:, None] == slot) & chosen
    overtaken = jnp.any(jnp.triu(same, k=1), axis=1)
    where = jnp.where(chosen & ~overtaken, slot, slots)  # Past the end: dropped.
    return memory._replace(
        x=memory.x.at[where].set(batch.x, mode="drop"),
        y=memory.y.at[where].set(batch.y, mode="drop"),
        task=memory.task.at[where].set(batch.task, mode="drop"),
    )
