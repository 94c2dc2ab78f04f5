"""The frameworks that users bring: flax in both flavours, Equinox, orbax."""

import chex
import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from flax.training.train_state import TrainState

import tag_optax
from tests.streams import ORDER, gradients, run

pytestmark = pytest.mark.ci


def loss(prediction, task):
    return jnp.mean((prediction - task.astype(prediction.dtype)) ** 2)


INPUTS = np.linspace(-1, 1, 12).reshape(4, 3).astype(np.float32)
TASKS = (0, 0, 2, 1, 0)


def test_adapter_equals_passing_the_id():
    stream = gradients()
    expected, expected_state = run(tag_optax.tag_adam(2.0, 5), stream)
    tx = tag_optax.stateful_task_id(tag_optax.tag_adam(2.0, 5))
    state = tx.init(stream[0])
    update = jax.jit(tx.update)
    for g, task, exp in zip(stream, ORDER, expected, strict=True):
        state = optax.tree.set(state, task_id=jnp.int32(task))
        updates, state = update(g, state)
        chex.assert_trees_all_close(updates, exp, rtol=1e-12)
    chex.assert_trees_all_close(state.inner_state, expected_state, rtol=1e-12)


def test_adapter_takes_a_first_id_and_an_explicit_one():
    tx = tag_optax.stateful_task_id(tag_optax.tag_rmsprop(5.0, 4), task_id=3)
    _, state = tx.update(jnp.ones(2), tx.init(jnp.ones(2)))
    _, state = tx.update(jnp.ones(2), state, task_id=1)
    _, state = tx.update(jnp.ones(2), state)
    np.testing.assert_array_equal(optax.tree.get(state, "steps"), [0, 2, 0, 1])
    assert state.task_id == 1


def test_adapter_around_a_plain_optimizer():
    tx = tag_optax.stateful_task_id(optax.sgd(0.5))
    updates, _ = tx.update(jnp.ones(2), tx.init(jnp.ones(2)))
    np.testing.assert_array_equal(updates, [-0.5, -0.5])


def test_untouched_train_state_through_the_adapter():
    model = nn.Dense(2)
    traces = []

    @jax.jit
    def step(state, task):
        traces.append(1)
        state = state.replace(opt_state=optax.tree.set(state.opt_state, task_id=task))
        grads = jax.grad(lambda p: loss(state.apply_fn(p, INPUTS), task))(state.params)
        return state.apply_gradients(grads=grads)

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        params = model.init(jax.random.key(0), INPUTS)
        tx = tag_optax.tag_rmsprop(5.0, 4, 0.01)
        state = TrainState.create(
            apply_fn=model.apply, params=params, tx=tag_optax.stateful_task_id(tx)
        )
        expected, opt_state = params, tx.init(params)
        for task in TASKS:
            state = step(state, jnp.int32(task))
            grads = jax.grad(lambda p, t=task: loss(model.apply(p, INPUTS), jnp.int32(t)))(expected)
            updates, opt_state = tx.update(grads, opt_state, expected, task_id=task)
            expected = optax.apply_updates(expected, updates)
    assert len(traces) == 1
    chex.assert_trees_all_close(state.params, expected, rtol=1e-5)


def test_nnx_optimizer():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
        tx = tag_optax.tag_rmsprop(5.0, 4, 0.01)
        optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
        start = nnx.to_pure_dict(nnx.state(model, nnx.Param))
        start = jax.tree.map(jnp.array, start)

        @nnx.jit
        def step(model, optimizer, task):
            grads = nnx.grad(lambda m: loss(m(INPUTS), task))(model)
            optimizer.update(model, grads, task_id=task)

        expected, opt_state = start, tx.init(start)
        for task in TASKS:
            step(model, optimizer, jnp.int32(task))
            grads = jax.grad(
                lambda p, t=task: loss(INPUTS @ p["kernel"] + p["bias"], jnp.int32(t))
            )(expected)
            updates, opt_state = tx.update(grads, opt_state, expected, task_id=task)
            expected = optax.apply_updates(expected, updates)
    end = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    chex.assert_trees_all_close(end, expected, rtol=1e-5)


def test_nnx_optimizer_grows():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, tag_optax.tag_rmsprop(5.0, 2, 0.01), wrt=nnx.Param)
        grads = nnx.grad(lambda m: jnp.mean(m(INPUTS) ** 2))(model)
        optimizer.update(model, grads, task_id=1)
        optimizer.opt_state = tag_optax.grow(optimizer.opt_state, 4)
        optimizer.update(model, grads, task_id=3)
    expected = [0, np.exp(-5), 0, np.exp(-5)]
    np.testing.assert_allclose(tag_optax.task_weights(optimizer.opt_state), expected, rtol=1e-5)


def test_equinox_partition():
    model = eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(0), dtype=jnp.float32)
    tx = tag_optax.tag_adam(5.0, 4, 0.01)
    state = tx.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def step(model, state, task):
        with jax.numpy_dtype_promotion("standard"):
            grads = eqx.filter_grad(lambda m: loss(jax.vmap(m)(INPUTS), task))(model)
        updates, state = tx.update(grads, state, eqx.filter(model, eqx.is_array), task_id=task)
        return eqx.apply_updates(model, updates), state

    for task in TASKS:
        model, state = step(model, state, jnp.int32(task))
    np.testing.assert_array_equal(optax.tree.get(state, "steps"), [3, 1, 1, 0])
    chex.assert_tree_all_finite(eqx.filter(model, eqx.is_array))


def test_orbax_resumes_a_stream_to_the_bit(tmp_path):
    tx = tag_optax.tag_adam(2.0, 5, relatedness="first_gradients")
    stream, middle = gradients(dtype=np.float32), 6
    whole, end = run(tx, stream)
    _, state = run(tx, stream[:middle], ORDER[:middle])
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "state", jax.eval_shape(tx.init, stream[0]))
    chex.assert_trees_all_equal(restored, state)
    rest, resumed = run(tx, stream[middle:], ORDER[middle:], restored)
    chex.assert_trees_all_equal(rest, whole[middle:])
    chex.assert_trees_all_equal(resumed, end)
