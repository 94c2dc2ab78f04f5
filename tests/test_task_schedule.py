"""A schedule for every task, against counts kept in Python."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

import tag_optax
from tests.streams import ORDER, gradients, run

HALVING = optax.exponential_decay(0.8, transition_steps=1, decay_rate=0.5)


@pytest.fixture(autouse=True)
def standard_promotion():
    with jax.numpy_dtype_promotion("standard"):  # optax's own parts need it.
        yield


@pytest.fixture(scope="module")
def stream():
    return gradients()


def scaled_by_hand(stream, order):
    counts, updates = {}, []
    for g, task in zip(stream, order, strict=True):
        n = counts.get(task, 0)
        updates.append({name: 0.8 * 0.5**n * x for name, x in g.items()})
        counts[task] = n + 1
    return updates


def test_every_task_has_its_own_count(stream):
    updates, state = run(tag_optax.scale_by_task_schedule(HALVING, 5), stream)
    chex.assert_trees_all_close(updates, scaled_by_hand(stream, ORDER), rtol=1e-6)
    np.testing.assert_array_equal(state.counts, np.bincount(ORDER, minlength=5))


def test_one_task_is_scale_by_schedule(stream):
    order = [2] * len(stream)
    found, _ = run(tag_optax.scale_by_task_schedule(HALVING, 3), stream, order)
    expected, _ = run(optax.scale_by_schedule(HALVING), stream, order)
    chex.assert_trees_all_equal(found, expected)


def test_chained_after_tag(stream):
    chained = optax.chain(
        tag_optax.scale_by_tag_rms(2.0, 5),
        tag_optax.scale_by_task_schedule(HALVING, 5),
        optax.scale(-1),
    )
    directions, _ = run(tag_optax.scale_by_tag_rms(2.0, 5), stream)
    expected = jax.tree.map(np.negative, scaled_by_hand(directions, ORDER))
    chex.assert_trees_all_close(run(chained, stream)[0], expected, rtol=1e-6)


@pytest.mark.parametrize("bad", [-1, 5, 2**31 - 1])
def test_an_id_out_of_range(bad, stream):
    tx = tag_optax.scale_by_task_schedule(HALVING, 5)
    _, state = run(tx, stream)
    updates, after = jax.jit(lambda g, s, t: tx.update(g, s, task_id=t))(stream[0], state, bad)
    assert all(np.isnan(x).all() for x in jax.tree.leaves(updates))
    chex.assert_trees_all_equal(after, state)
    with pytest.raises(ValueError, match="task_id"):
        tx.update(stream[0], state, task_id=bad)


def test_bad_arguments(stream):
    with pytest.raises(ValueError, match="task_capacity=0"):
        tag_optax.scale_by_task_schedule(HALVING, 0)
    tx = tag_optax.scale_by_task_schedule(HALVING, 2)
    with pytest.raises(TypeError, match="task_id"):
        tx.update(stream[0], tx.init(stream[0]))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32, jnp.float64])
def test_dtypes_are_kept(dtype):
    tx = tag_optax.scale_by_task_schedule(HALVING, 2)
    state = tx.init(None)
    g = {"w": jnp.ones(2, dtype), "none": None}
    updates, after = tx.update(g, state, task_id=1)
    chex.assert_trees_all_equal_shapes_and_dtypes((updates, after), (g, state))


@pytest.mark.parametrize("schedule", [lambda n: 0.5, lambda n: np.float32(0.5)])
def test_schedules_that_return_plain_numbers(schedule):
    tx = tag_optax.scale_by_task_schedule(schedule, 2)
    updates, _ = tx.update(jnp.ones(2), tx.init(None), task_id=0)
    np.testing.assert_array_equal(updates, [0.5, 0.5])


def test_scan(stream):
    tx = tag_optax.scale_by_task_schedule(HALVING, 5)
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *stream)

    def step(state, inputs):
        updates, state = tx.update(inputs[0], state, task_id=inputs[1])
        return state, updates

    state, updates = jax.lax.scan(step, tx.init(None), (stacked, jnp.array(ORDER, jnp.int32)))
    expected, last = run(tx, stream)
    chex.assert_trees_all_equal(updates, jax.tree.map(lambda *x: jnp.stack(x), *expected))
    chex.assert_trees_all_equal(state, last)


def test_counts_grow(stream):
    tx = optax.chain(tag_optax.tag_rmsprop(2.0, 5), tag_optax.scale_by_task_schedule(HALVING, 5))
    expected, whole = run(tx, stream)
    _, state = run(tx, stream[:4], ORDER[:4])
    grown = tag_optax.grow(state, 8)
    assert grown[1].counts.shape == tag_optax.task_weights(grown).shape == (8,)
    updates, grown = run(tx, stream[4:], ORDER[4:], grown)
    chex.assert_trees_all_close(updates, expected[4:], rtol=1e-12)
    np.testing.assert_array_equal(grown[1].counts, [*whole[1].counts, 0, 0, 0])
    alone = tag_optax.grow(tag_optax.scale_by_task_schedule(HALVING, 2).init(None), 3)
    assert alone.counts.shape == (3,)
    with pytest.raises(ValueError, match="below the present 3"):
        tag_optax.grow(alone, 2)


def test_members_of_a_vmap_share_the_counts(stream):
    tx = optax.chain(
        tag_optax.scale_by_task_schedule(HALVING, 5), tag_optax.scale_by_tag_rms(2.0, 5)
    )
    axes = tag_optax.vmap_axes(tx, stream[0])
    pair = jax.tree.map(lambda x: np.stack([x, 2 * x]), stream[0])
    state = jax.vmap(tx.init, out_axes=axes)(pair)
    update = jax.vmap(lambda g, s, t: tx.update(g, s, task_id=t), (0, axes, None), (0, axes))
    _, state = update(pair, state, 3)
    np.testing.assert_array_equal(state[0].counts, [0, 0, 0, 1, 0])


def test_counts_are_replicated():
    """Also where a parameter has as many numbers as there are tasks."""
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    tx = tag_optax.scale_by_task_schedule(HALVING, 4)
    shardings = tag_optax.state_sharding(tx, jnp.zeros(4), PartitionSpec("data"), mesh=mesh)
    assert shardings.counts.spec == PartitionSpec()
