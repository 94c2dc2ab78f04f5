"""What optax asks of every optimizer that it ships (our own version of its shared checks)."""

import chex
import jax
import jax.numpy as jnp
import optax
import pytest

import tag_optax
from tests.streams import OPTIMIZERS

pytestmark = pytest.mark.ci

RATES = {"rms": 1e-2, "adagrad": 1.0, "adam": 1e-1}


@pytest.fixture(params=OPTIMIZERS)
def name(request):
    return request.param


@pytest.fixture
def tx(name):
    return OPTIMIZERS[name](1.0, 3, RATES[name])


@pytest.fixture(autouse=True)
def standard_promotion():
    with jax.numpy_dtype_promotion("standard"):  # optax's own parts need it.
        yield


def test_unknown_extra_arguments_and_no_second_compilation(tx):
    traces = []

    @jax.jit
    def step(params, state, task):
        traces.append(1)
        updates, state = tx.update(params, state, params, task_id=task, unknown=1)
        return optax.apply_updates(params, updates), state

    params = {"w": jnp.ones((2, 3))}
    state = tx.init(params)
    for task in (0, 1, 0):
        params, state = step(params, state, jnp.int32(task))
    assert len(traces) == 1


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_converges_inside_a_scan(name, dtype):
    """Two tasks with one solution, by turns: TAG must find it, slow as its last steps are."""
    target = (jnp.array([1.0, -1.0, 2.0], dtype), jnp.array([[1.0, 0.0], [-1.0, 1.0]], dtype))
    tx = OPTIMIZERS[name](1.0, 3, optax.exponential_decay(RATES[name], 500, 0.5), weight_decay=0.0)

    def loss(params, task):
        weight = 1.0 + task.astype(dtype)
        errors = jax.tree.map(lambda p, t: jnp.sum((p - t) ** 2), params, target)
        return weight * sum(errors)

    def step(carry, task):
        params, state = carry
        updates, state = tx.update(jax.grad(loss)(params, task), state, params, task_id=task)
        return (optax.apply_updates(params, updates), state), None

    params = jax.tree.map(jnp.zeros_like, target)
    state = optax.tree.map_params(tx, lambda v: v, tx.init(params))
    tasks = jnp.arange(5000, dtype=jnp.int32) // 500 % 2
    (params, _), _ = jax.jit(lambda carry: jax.lax.scan(step, carry, tasks))((params, state))
    chex.assert_trees_all_close(params, target, rtol=3e-2, atol=3e-2)


def test_inject_hyperparams(name):
    factory = optax.inject_hyperparams(OPTIMIZERS[name], static_args=("task_capacity",))
    plain, injected = OPTIMIZERS[name](2.0, task_capacity=3), factory(2.0, task_capacity=3)
    params = [-jnp.ones((2, 3)), jnp.ones((2, 5, 2))]
    gradients = [jnp.ones((2, 3)), -jnp.ones((2, 5, 2))]
    state, injected_state = jax.jit(plain.init)(params), jax.jit(injected.init)(params)
    for task in (0, 2, 0):
        updates, state = jax.jit(plain.update)(gradients, state, params, task_id=task)
        injected_updates, injected_state = jax.jit(injected.update)(
            gradients, injected_state, params, task_id=task
        )
    chex.assert_trees_all_close(injected_updates, updates, rtol=1e-12)
    chex.assert_trees_all_close(injected_state.inner_state, state, rtol=1e-12)


def test_injected_hyperparameters_can_be_changed():
    factory = optax.inject_hyperparams(tag_optax.tag_rmsprop, static_args=("task_capacity",))
    tx = factory(b=2.0, task_capacity=2)
    state = tx.init(jnp.zeros(2))
    _, state = tx.update(jnp.array([1.0, 0.0]), state, jnp.zeros(2), task_id=0)
    state.hyperparams["b"] = jnp.asarray(3.0)
    _, state = tx.update(jnp.array([1.0, 0.0]), state, jnp.zeros(2), task_id=1)
    chex.assert_trees_all_close(tag_optax.task_weights(state), jnp.exp(-jnp.array([3.0, 3.0])))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64])
def test_updates_have_the_parameters_dtype(tx, dtype):
    params = jnp.array([1.0, 2.0], dtype)
    updates, _ = jax.jit(tx.update)(params, jax.jit(tx.init)(params), params, task_id=1)
    assert updates.dtype == dtype


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_gradient_accumulation(tx, dtype):
    """MultiSteps: nothing for three micro-steps, then the update of their mean."""
    multi = optax.MultiSteps(tx, every_k_schedule=4)
    params = jnp.array([1.0, 2.0], dtype)
    state = jax.jit(multi.init)(params)
    update = jax.jit(multi.update)
    for step in range(4):
        updates, state = update(params, state, params, task_id=2)
        if step < 3:
            chex.assert_trees_all_equal(updates, jnp.zeros_like(params))
    expected, _ = tx.update(params, tx.init(params), params, task_id=2)
    chex.assert_trees_all_close(updates, expected, rtol=1e-2 if dtype == jnp.bfloat16 else 1e-6)


def test_gradient_accumulation_across_tasks():
    """Windows that end with their task give each task its own mean gradient."""
    tx = tag_optax.scale_by_tag_rms(2.0, 3)
    multi = optax.MultiSteps(tx, every_k_schedule=2)
    g = [
        jnp.array([1.0, 0.0]),
        jnp.array([3.0, 2.0]),
        jnp.array([-1.0, 1.0]),
        jnp.array([1.0, 1.0]),
    ]
    state, expected_state = multi.init(g[0]), tx.init(g[0])
    for window, task in ((g[:2], 0), (g[2:], 2), (g[:2], 0)):
        for micro in window:
            updates, state = multi.update(micro, state, g[0], task_id=task)
        mean = (window[0] + window[1]) / 2
        expected, expected_state = tx.update(mean, expected_state, task_id=task)
        chex.assert_trees_all_close(updates, expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64])
@pytest.mark.parametrize("storage", [None, "bfloat16", "float32"])
def test_state_is_stable_under_cond(name, dtype, storage):
    tx = OPTIMIZERS[name](1.0, 3, bank=tag_optax.full(storage, storage))
    params = {"w": jnp.ones((2, 2), dtype), "s": jnp.ones((), dtype)}

    @jax.jit
    def step(params, state, flag):
        return jax.lax.cond(
            flag,
            lambda: tx.update(params, state, params, task_id=1),
            lambda: (params, state),
        )

    state = tx.init(params)
    for flag in (True, False, True):
        updates, new_state = step(params, state, flag)
        chex.assert_trees_all_equal_shapes_and_dtypes(new_state, state)
        chex.assert_trees_all_equal_shapes_and_dtypes(updates, params)
        state = new_state


def test_schedules_are_accepted(name):
    tx = OPTIMIZERS[name](1.0, 3, learning_rate=optax.constant_schedule(0.25))
    constant = OPTIMIZERS[name](1.0, 3, learning_rate=0.25)
    params = jnp.ones(2)
    updates, _ = tx.update(params, tx.init(params), params, task_id=0)
    expected, _ = constant.update(params, constant.init(params), params, task_id=0)
    chex.assert_trees_all_close(updates, expected)
