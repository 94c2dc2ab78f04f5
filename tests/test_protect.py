"""TAG around any optimizer: its own steps where it must be, and nothing lost of the optimizer."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tag_optax
from tests.streams import ORDER, gradients, run

pytestmark = pytest.mark.ci

ALONE = [0] * 6
IN_TURN = [0, 0, 1, 1, 1, 2, 2]


@pytest.fixture(autouse=True)
def _promotion_as_optax_needs():
    with jax.numpy_dtype_promotion("standard"):  # Its Adam counts steps in int32.
        yield


def afresh(inner):
    """An optimizer that forgets its state when the task changes: its V is then the task's own."""
    inner = optax.with_extra_args_support(inner)

    def init(params):
        return jnp.full((), -1, jnp.int32), inner.init(params)

    def update(updates, state, params=None, *, task_id, **extra_args):
        last, inner_state = state
        fresh = inner.init(params)
        changed = task_id != last
        inner_state = jax.tree.map(
            lambda new, old: jnp.where(changed, new, old), fresh, inner_state
        )
        updates, inner_state = inner.update(updates, inner_state, params)
        return updates, (jnp.asarray(task_id, jnp.int32), inner_state)

    return optax.GradientTransformationExtraArgs(init, update)


@pytest.mark.parametrize(
    ("inner", "tag", "b2"),
    [
        (
            optax.scale_by_rms(0.99, eps=1e-8, eps_in_sqrt=True),
            tag_optax.scale_by_tag_rms(3.0, 3),
            0.99,
        ),
        (
            optax.scale_by_adam(0.9, 0.999, eps=0.0, eps_root=1e-30),
            tag_optax.scale_by_tag_adam(3.0, 3, eps=1e-30),
            0.999,
        ),
    ],
    ids=["rms", "adam"],
)
def test_around_its_own_second_moments_it_takes_tags_steps(inner, tag, b2):
    stream = gradients(IN_TURN)
    eps = 1e-8 if b2 == 0.99 else 1e-30
    tx = tag_optax.protect(afresh(inner), 3.0, 3, b2=b2, eps=eps)
    updates, _ = run(tx, stream, IN_TURN)
    expected, _ = run(tag, stream, IN_TURN)
    chex.assert_trees_all_close(updates, expected, rtol=1e-10)


@pytest.mark.parametrize("relatedness", ["cosine", "uniform", "own"])
@pytest.mark.parametrize(
    "inner",
    [optax.sgd(0.1, 0.9), optax.lion(0.01), optax.adamw(0.01), optax.adafactor(0.01)],
    ids=["sgd", "lion", "adamw", "adafactor"],
)
def test_one_task_alone_takes_the_optimizers_own_steps(inner, relatedness):
    stream = gradients(ALONE, np.float32)
    updates, _ = run(tag_optax.protect(inner, 5.0, 3, relatedness=relatedness), stream, ALONE)
    expected, _ = run(inner, stream, ALONE)
    chex.assert_trees_all_close(updates, expected, rtol=1e-6)


def test_what_earlier_tasks_use_moves_less():
    tx = tag_optax.protect(optax.sgd(1.0), 5.0, 2, relatedness="own", bank="running_sum")
    used, unused = jnp.array([1.0, 0.0]), jnp.array([1.0, 1.0])
    (_, last), _ = run(tx, [used, unused], [0, 1])
    # W = exp(-5) V + the past's V, which is V's equal for the first and 0 for the second number.
    np.testing.assert_allclose(last[0], -1 / np.sqrt(np.exp(-5.0) + 1), rtol=1e-5)
    np.testing.assert_allclose(last[1], -np.exp(2.5), rtol=1e-4)


def test_it_passes_on_what_the_optimizer_asks_for():
    tx = tag_optax.protect(optax.contrib.reduce_on_plateau(), 5.0, 2)
    params = jnp.zeros(2)
    state = tx.init(params)
    updates, state = tx.update(jnp.ones(2), state, params, task_id=0, value=jnp.float32(1.0))
    np.testing.assert_allclose(updates, 1)
    assert tag_optax.grow(state, 4).tag_state.steps.shape == (4,)
    assert tag_optax.task_weights(state).shape == (2,)


def test_a_gradient_that_is_not_finite_gives_nan_and_keeps_the_moments():
    tx = tag_optax.protect(optax.sgd(1.0), 5.0, 2)
    params = jnp.zeros(2)
    _, state = tx.update(jnp.ones(2), tx.init(params), params, task_id=0)
    updates, after = tx.update(jnp.array([1.0, jnp.inf]), state, params, task_id=0)
    assert jnp.all(jnp.isnan(updates))
    chex.assert_trees_all_equal(after.tag_state.live, state.tag_state.live)


def test_in_a_chain_and_a_scan():
    stream = gradients()
    tx = optax.chain(tag_optax.protect(optax.adam(0.1), 2.0, 5), optax.scale(0.5))
    expected, _ = run(tx, stream)
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *stream)
    params = jax.tree.map(jnp.zeros_like, stream[0])

    @jax.jit
    def scan(state):
        def step(state, inputs):
            g, task = inputs
            updates, state = tx.update(g, state, params, task_id=task)
            return state, updates

        return jax.lax.scan(step, state, (stacked, jnp.array(ORDER, jnp.int32)))

    _, updates = scan(tx.init(params))
    chex.assert_trees_all_close(
        updates, jax.tree.map(lambda *x: jnp.stack(x), *expected), rtol=1e-10
    )
