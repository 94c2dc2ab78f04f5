"""Memories against dumb ones: a list, a deque, and what chance should give."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from train.methods import memory
from train.methods.memory import Rings
from train.run.batches import Batch

SHAPE = (2, 2, 1)


def batch_of(numbers, tasks=0, weight=None, labels=None):
    """Examples whose pixels are their number."""
    numbers = np.asarray(numbers)
    image = np.broadcast_to(numbers.astype(np.uint8)[:, None, None, None], (len(numbers), *SHAPE))
    return Batch(
        image=jnp.asarray(image),
        label=jnp.asarray(numbers if labels is None else labels, jnp.int32),
        task=jnp.broadcast_to(jnp.asarray(tasks, jnp.int32), numbers.shape),
        weight=jnp.ones(len(numbers)) if weight is None else jnp.asarray(weight, jnp.float32),
    )


def stored(kept):
    return [int(n) if t >= 0 else None for n, t in zip(kept.label, kept.task, strict=True)]


@pytest.mark.parametrize("slots", [1, 3, 20])
def test_the_reservoir_equals_a_loop_over_single_examples(slots):
    """With few slots and large batches, several examples of a batch want the same slot."""
    kept, expected, offered = memory.empty(slots, SHAPE), [None] * slots, 0
    for step in range(6):
        key = jax.random.key(step)
        numbers = 10 * step + np.arange(8)
        weight = [1, 1, 0, 1, 1, 1, 1, 1 if step % 2 else 0]
        count = offered + np.cumsum(weight)
        drawn = jax.random.randint(key, (8,), 0, jnp.maximum(count, 1))
        kept = memory.add_to_reservoir(kept, batch_of(numbers, step, weight), key)
        for number, draw, there in zip(numbers, drawn, weight, strict=True):
            if there:
                slot = offered if offered < slots else int(draw)
                offered += 1
                if slot < slots:
                    expected[slot] = int(number)
    assert stored(kept) == expected
    assert int(kept.offered) == offered
    filled = np.array([n is not None for n in expected])
    np.testing.assert_array_equal(np.asarray(kept.image)[filled, 0, 0, 0], kept.label[filled])
    np.testing.assert_array_equal(
        np.asarray(kept.task)[filled], np.asarray(kept.label)[filled] // 10
    )


def test_a_reservoir_that_has_seen_all_it_can_count():
    """It goes on as one that has seen a few less, and its count stays."""
    end = np.iinfo(np.int32).max
    kept = memory.empty(4, SHAPE)
    kept = memory.add_to_reservoir(kept, batch_of([1, 2, 3, 4]), jax.random.key(0))
    for step in range(3):
        kept = memory.add_to_reservoir(
            kept._replace(offered=jnp.maximum(kept.offered, end - 3)),
            batch_of([5, 6, 7, 8]),
            jax.random.key(step),
        )
        assert stored(kept) == [1, 2, 3, 4]  # Four slots of 2^31 are drawn next to never.
        assert int(kept.offered) == end


def test_rings_count_nothing_that_could_overflow():
    rings = Rings(first_ring=(0,), first_class=(0,), number=1)
    kept = memory.empty(3, SHAPE, rings=1)
    for step in range(5):
        numbers = 2 * step + np.arange(2)
        kept = memory.add_to_rings(kept, batch_of(numbers, labels=np.zeros(2)), rings)
        assert int(kept.offered[0]) == (2 * step + 2) % 3
    assert sorted(np.asarray(kept.image)[:, 0, 0, 0]) == [7, 8, 9]


def chi_square(add, examples=30, slots=6, runs=3000):
    """The p-value of all examples being kept equally often."""

    def run(key):
        kept = memory.empty(slots, SHAPE)
        for step in range(examples // 5):
            numbers = 5 * step + np.arange(5)
            kept = add(kept, batch_of(numbers), jax.random.fold_in(key, step))
        return kept.label

    labels = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), runs))
    counts = np.bincount(np.asarray(labels).ravel(), minlength=examples)
    share = slots / examples
    # Slots of a run hold different examples: less varied than independent draws.
    statistic = np.sum((counts - runs * share) ** 2) / (runs * share * (1 - share))
    return stats.chi2.sf(statistic * (examples - 1) / examples, examples - 1)


def test_the_reservoir_keeps_every_example_equally_often():
    assert chi_square(memory.add_to_reservoir) > 1e-3


def test_the_chi_square_test_sees_a_biased_reservoir():
    def biased(kept, batch, key):
        return memory.add_to_reservoir(kept._replace(offered=kept.offered // 2), batch, key)

    assert chi_square(biased) < 1e-6


def test_rings_equal_deques():
    rings = Rings(first_ring=(0, 2), first_class=(4, 4), number=4)  # Two tasks share two classes.
    kept = memory.empty(8, SHAPE, rings=4)
    deques = collections.defaultdict(lambda: collections.deque(maxlen=2))
    rng = np.random.default_rng(0)
    for step in range(5):
        numbers, task = 10 * step + np.arange(6), int(step > 2)
        labels, weight = rng.integers(4, 6, 6), rng.integers(0, 2, 6)
        kept = memory.add_to_rings(kept, batch_of(numbers, task, weight, labels), rings)
        for number, label, there in zip(numbers, labels, weight, strict=True):
            if there:
                deques[task, int(label)].append(int(number))
    for ring, (task, label) in enumerate((t, c) for t in (0, 1) for c in (4, 5)):
        slots = slice(2 * ring, 2 * ring + 2)
        assert set(np.asarray(kept.image)[slots, 0, 0, 0]) == set(deques[task, label])
        assert set(np.asarray(kept.task)[slots]) == {task}
        assert set(np.asarray(kept.label)[slots]) == {label}


def filled():
    kept = memory.empty(10, SHAPE)
    tasks = np.array([0, 0, 0, 1, 1, 1, 1, 2])
    return memory.add_to_reservoir(kept, batch_of(np.arange(8), tasks), jax.random.key(0))


def test_a_draw_leaves_out_the_current_task_and_repeats_nothing():
    counts = collections.Counter()
    for seed in range(200):
        drawn = memory.draw(filled(), jax.random.key(seed), 3, without=1)
        assert len(set(np.asarray(drawn.label).tolist())) == 3
        np.testing.assert_array_equal(drawn.weight, 1)
        np.testing.assert_array_equal(drawn.image[:, 0, 0, 0], drawn.label)
        counts.update(np.asarray(drawn.label).tolist())
    assert set(counts) == {0, 1, 2, 7}
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3


def test_a_draw_from_too_few_weighs_each_once():
    drawn = memory.draw(filled(), jax.random.key(0), 20, without=1)
    assert drawn.weight.sum() == 4
    assert set(np.asarray(drawn.label).tolist()) == {0, 1, 2, 7}  # The filling is of the same.
    assert len(set(np.asarray(drawn.label)[np.asarray(drawn.weight) == 1].tolist())) == 4


def test_a_draw_from_nothing_has_no_weight():
    drawn = memory.draw(memory.empty(10, SHAPE), jax.random.key(0), 4)
    assert drawn.weight.sum() == 0
    assert (drawn.task >= 0).all()
