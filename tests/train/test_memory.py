"""Memories against dumb ones: a list, a deque, and what chance should give."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from train.methods import Batch, Problem, memory

pytestmark = pytest.mark.ci

SHAPE = (2, 2, 1)


def problem_of(mask=None, tasks=3):
    """As much of a problem as a memory asks for."""
    fields = dict.fromkeys(Problem._fields) | dict(
        inputs=jax.ShapeDtypeStruct(SHAPE, np.uint8),
        targets=jax.ShapeDtypeStruct((), np.int32),
        tasks=tasks,
        mask=mask,
    )
    return Problem(**fields)


def empty(slots, **rings):
    return memory.empty(problem_of(), slots, **rings)


# Compiled whole, which is quicker than one operation after another.
add_to_reservoir = jax.jit(memory.add_to_reservoir)
add_to_rings = jax.jit(memory.add_to_rings)
draw = jax.jit(memory.draw, static_argnums=2)


def batch_of(numbers, tasks=0, weight=None, labels=None):
    """Examples whose pixels are their number."""
    numbers = np.asarray(numbers)
    image = np.broadcast_to(numbers.astype(np.uint8)[:, None, None, None], (len(numbers), *SHAPE))
    return Batch(
        x=jnp.asarray(image),
        y=jnp.asarray(numbers if labels is None else labels, jnp.int32),
        task=jnp.broadcast_to(jnp.asarray(tasks, jnp.int32), numbers.shape),
        weight=jnp.ones(len(numbers)) if weight is None else jnp.asarray(weight, jnp.float32),
    )


def stored(kept):
    return [int(n) if t >= 0 else None for n, t in zip(kept.y, kept.task, strict=True)]


@pytest.mark.parametrize("slots", [1, 3, 20])
def test_the_reservoir_equals_a_loop_over_single_examples(slots):
    """With few slots and large batches, several examples of a batch want the same slot."""
    kept, expected, offered = empty(slots), [None] * slots, 0
    for step in range(6):
        key = jax.random.key(step)
        numbers = 10 * step + np.arange(8)
        weight = [1, 1, 0, 1, 1, 1, 1, 1 if step % 2 else 0]
        count = offered + np.cumsum(weight)
        drawn = jax.random.randint(key, (8,), 0, jnp.maximum(count, 1))
        kept = add_to_reservoir(kept, batch_of(numbers, step, weight), key)
        for number, draw, there in zip(numbers, drawn, weight, strict=True):
            if there:
                slot = offered if offered < slots else int(draw)
                offered += 1
                if slot < slots:
                    expected[slot] = int(number)
    assert stored(kept) == expected
    assert int(kept.offered) == offered
    filled = np.array([n is not None for n in expected])
    np.testing.assert_array_equal(np.asarray(kept.x)[filled, 0, 0, 0], kept.y[filled])
    np.testing.assert_array_equal(np.asarray(kept.task)[filled], np.asarray(kept.y)[filled] // 10)


def test_a_reservoir_that_has_seen_all_it_can_count():
    """It goes on as one that has seen a few less, and its count stays."""
    end = np.iinfo(np.int32).max
    kept = empty(4)
    kept = add_to_reservoir(kept, batch_of([1, 2, 3, 4]), jax.random.key(0))
    for step in range(3):
        kept = add_to_reservoir(
            kept._replace(offered=jnp.maximum(kept.offered, end - 3)),
            batch_of([5, 6, 7, 8]),
            jax.random.key(step),
        )
        assert stored(kept) == [1, 2, 3, 4]  # Four slots of 2^31 are drawn next to never.
        assert int(kept.offered) == end


def test_rings_count_nothing_that_could_overflow():
    kept = empty(3, rings=1)
    for step in range(5):
        numbers = 2 * step + np.arange(2)
        kept = add_to_rings(kept, batch_of(numbers), np.zeros(2, np.int32))
        assert int(kept.offered[0]) == (2 * step + 2) % 3
    assert sorted(np.asarray(kept.x)[:, 0, 0, 0]) == [7, 8, 9]


def chi_square(add, examples=30, slots=6, runs=2000):
    """The p-value of all examples being kept equally often."""

    def run(key):
        def step(n, kept):
            batch = batch_of(np.arange(5))
            return add(kept, batch._replace(y=5 * n + batch.y), jax.random.fold_in(key, n))

        return jax.lax.fori_loop(0, examples // 5, step, empty(slots)).y

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
        return add_to_reservoir(kept._replace(offered=kept.offered // 2), batch, key)

    assert chi_square(biased) < 1e-6


def test_rings_equal_deques():
    mask = np.zeros((2, 6), bool)
    mask[:, 4:] = True  # Two tasks share two classes.
    problem = problem_of(mask)
    assert memory.num_rings(problem) == 4
    kept = empty(8, rings=4)
    deques = collections.defaultdict(lambda: collections.deque(maxlen=2))
    rng = np.random.default_rng(0)
    for step in range(5):
        numbers, task = 10 * step + np.arange(6), int(step > 2)
        labels, weight = rng.integers(4, 6, 6), rng.integers(0, 2, 6)
        batch = batch_of(numbers, task, weight, labels)
        kept = add_to_rings(kept, batch, memory.ring_of(problem, batch))
        for number, label, there in zip(numbers, labels, weight, strict=True):
            if there:
                deques[task, int(label)].append(int(number))
    for ring, (task, label) in enumerate((t, c) for t in (0, 1) for c in (4, 5)):
        slots = slice(2 * ring, 2 * ring + 2)
        assert set(np.asarray(kept.x)[slots, 0, 0, 0]) == set(deques[task, label])
        assert set(np.asarray(kept.task)[slots]) == {task}
        assert set(np.asarray(kept.y)[slots]) == {label}


def test_without_classes_a_task_is_a_ring():
    problem = problem_of(tasks=3)
    assert memory.num_rings(problem) == 3
    ring = memory.ring_of(problem, batch_of(np.arange(4), [2, 0, 1, 2]))
    np.testing.assert_array_equal(ring, [2, 0, 1, 2])


def filled():
    kept = empty(10)
    tasks = np.array([0, 0, 0, 1, 1, 1, 1, 2])
    return add_to_reservoir(kept, batch_of(np.arange(8), tasks), jax.random.key(0))


def test_a_draw_leaves_out_the_current_task_and_repeats_nothing():
    keys = jax.random.split(jax.random.key(0), 200)
    drawn = jax.vmap(lambda key: draw(filled(), key, 3, without=1))(keys)
    assert all(len(set(row)) == 3 for row in np.asarray(drawn.y).tolist())
    np.testing.assert_array_equal(drawn.weight, 1)
    np.testing.assert_array_equal(drawn.x[:, :, 0, 0, 0], drawn.y)
    counts = np.bincount(np.asarray(drawn.y).ravel(), minlength=8)
    np.testing.assert_array_equal(np.flatnonzero(counts), [0, 1, 2, 7])
    assert stats.chisquare(counts[counts > 0]).pvalue > 1e-3


def test_a_draw_from_too_few_weighs_each_once():
    drawn = draw(filled(), jax.random.key(0), 20, without=1)
    assert drawn.weight.sum() == 4
    assert set(np.asarray(drawn.y).tolist()) == {0, 1, 2, 7}  # The filling is of the same.
    assert len(set(np.asarray(drawn.y)[np.asarray(drawn.weight) == 1].tolist())) == 4


def test_a_draw_from_nothing_has_no_weight():
    drawn = draw(empty(10), jax.random.key(0), 4)
    assert drawn.weight.sum() == 0
    assert (drawn.task >= 0).all()
