"""States between meshes: small leaves joined, or each by itself."""

import chex
import jax
import jax.numpy as jnp
import optax
import pytest

import tag_optax
from tests.streams import ORDER, SHAPES, gradients

pytestmark = pytest.mark.ci

BANKS = {
    "full": (tag_optax.full(), tag_optax.full(split=True)),
    "compressed": (tag_optax.compressed(7), tag_optax.compressed(7, split=True)),
    "clustered": (tag_optax.clustered(2), tag_optax.clustered(2, split=True)),
}
IN_TURN = (3, 3, 0, 0, 2, 2, 1, 1)


def learn(tx, state, stream, order):
    found = []
    for g, task in zip(stream, order, strict=True):
        updates, state = jax.jit(tx.update)(g, state, g, task_id=task)
        found.append(updates)
    return found, state


@pytest.mark.parametrize("bank", BANKS)
@pytest.mark.parametrize("make", [tag_optax.tag_rmsprop, tag_optax.tag_adam])
def test_a_stream_goes_on_under_the_other_layout(make, bank):
    first, second = (optax.chain(optax.identity(), make(2.0, 5, bank=b)) for b in BANKS[bank])
    stream = gradients(IN_TURN)
    params = jax.tree.map(jnp.zeros_like, stream[0])
    expected, last = learn(first, first.init(params), stream, IN_TURN)
    _, halfway = learn(first, first.init(params), stream[:4], IN_TURN[:4])
    like = jax.eval_shape(second.init, params)
    moved = tag_optax.rearrange(halfway, like=like)
    chex.assert_trees_all_equal_shapes_and_dtypes(moved, like)
    chex.assert_trees_all_equal(tag_optax.rearrange(halfway), moved)
    found, end = learn(second, moved, stream[4:], IN_TURN[4:])
    chex.assert_trees_all_close(found, expected[4:], rtol=1e-9)
    back = tag_optax.rearrange(end, like=jax.eval_shape(first.init, params))
    chex.assert_trees_all_equal_shapes_and_dtypes(back, last)
    chex.assert_trees_all_close(back[1][0].bank, last[1][0].bank, rtol=1e-9)


def test_there_and_back_changes_no_bit():
    tx = tag_optax.tag_rmsprop(2.0, 5)
    params = jax.tree.map(jnp.zeros_like, gradients(ORDER)[0])
    assert set(params) == set(SHAPES)
    _, state = learn(tx, tx.init(params), gradients(ORDER), ORDER)
    chex.assert_trees_all_equal(tag_optax.rearrange(tag_optax.rearrange(state), like=state), state)


def test_other_states_stay_as_they_are():
    state = optax.adam(1e-3).init(jnp.zeros(3))
    chex.assert_trees_all_equal(tag_optax.rearrange(state, like=state), state)
