"""Tasks found by jumps of the loss, against the same rule written with Python's floats."""

import math

import chex
import flax.linen as nn
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

import tag_optax


@pytest.fixture(autouse=True)
def standard_promotion():
    with jax.numpy_dtype_promotion("standard"):  # optax's own parts need it.
        yield


def losses(tasks=3, steps=200, seed=0):
    """A loss that falls in every task and is as noisy as that of small batches."""
    rng = np.random.default_rng(seed)
    falling = 2 * np.exp(-np.arange(steps) / 20) + 0.1
    return np.tile(falling, tasks) * rng.gamma(2.0, 0.5, tasks * steps)


def detect(values, capacity=20, **settings):
    """The id of every step, and the last state."""
    tx = tag_optax.detect_tasks(optax.identity(), capacity, **settings)

    @jax.jit
    def watch(state, values):
        def step(state, value):
            _, state = tx.update(jnp.zeros(1), state, value=value)
            return state, state.task_id

        return jax.lax.scan(step, state, values)

    state, ids = watch(tx.init(jnp.zeros(1)), jnp.asarray(values))
    return np.asarray(ids), state


def detect_by_hand(values, capacity=20, threshold=16.0, min_steps=50):
    ids, task, n, mean, spread, evidence = [], 0, 0, 0.0, 0.0, 0.0
    for value in map(float, values):
        if math.isfinite(value):
            usual = max(spread, 0.1 * abs(mean), 1e-38)
            deviation = value - mean
            if n >= min_steps:
                deviation = min(deviation, 3 * usual)
                evidence = max(0.0, evidence + deviation / usual - 0.5)
            if evidence > threshold:
                task, n, evidence = min(task + 1, capacity - 1), 0, 0.0
            if n == 0:
                mean, spread = value, 0.0
            else:
                mean += 10 / (n + 10) * deviation
                spread += 3 / (n + 3) * (abs(deviation) - spread)
            n += 1
        ids.append(task)
    return ids, dict(steps_since_change=n, mean=mean, spread=spread, evidence=evidence)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "settings",
    [{}, dict(threshold=5.0, min_steps=20), dict(capacity=2), dict(threshold=3.0, min_steps=1)],
)
def test_second_implementation(seed, settings):
    values = losses(seed=seed)
    values[[3, 120, 250]] = np.nan, np.inf, -np.inf
    ids, state = detect(values, **settings)
    expected, numbers = detect_by_hand(values, **settings)
    np.testing.assert_array_equal(ids, expected)
    for name, number in numbers.items():
        np.testing.assert_allclose(getattr(state, name), number, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_every_change_is_found_and_no_other(seed):
    ids, _ = detect(losses(tasks=4, seed=seed))
    changes = np.flatnonzero(np.diff(ids)) + 1
    assert len(changes) == 3
    delays = changes - [200, 400, 600]
    assert (delays >= 0).all()
    assert (delays < 20).all()


@hypothesis.given(st.floats(1e-6, 1e6))
def test_the_unit_of_the_loss_makes_no_difference(scale):
    values = losses()
    ids, state = detect(values)
    scaled_ids, scaled = detect(scale * values)
    np.testing.assert_array_equal(scaled_ids, ids)
    numbers = [state.mean * scale, state.spread * scale, state.evidence]
    np.testing.assert_allclose(
        [scaled.mean, scaled.spread, scaled.evidence], numbers, rtol=1e-3, atol=1e-3 * scale
    )


@pytest.mark.parametrize("power", [-60, -1, 7, 60])
def test_powers_of_two_to_the_bit(power):
    """As nothing is rounded, noise about a mean of 0 and all."""
    values = losses() - 0.3
    ids, state = detect(values)
    scaled_ids, scaled = detect(values * 2.0**power)
    np.testing.assert_array_equal(scaled_ids, ids)
    assert scaled.evidence == state.evidence
    assert scaled.mean == state.mean * 2.0**power


def test_what_is_not_finite_is_passed_over():
    values = losses()
    spoilt = np.insert(values, [10, 100, 203, 204, 205, 300], [np.nan, np.inf, -np.inf] * 2)
    good = np.isfinite(spoilt)
    ids, state = detect(values)
    found, last = detect(spoilt)
    np.testing.assert_array_equal(found[good], ids)
    chex.assert_trees_all_equal(last, state)


def test_one_hard_batch_is_no_change_and_a_new_level_is():
    values = np.full(100, 0.5)
    values[80] = 1e6
    assert detect(values)[0][-1] == 0
    np.testing.assert_array_equal(detect([0.0] * 60 + [1.0] * 7)[0], [0] * 66 + [1])
    np.testing.assert_array_equal(detect([0.5] * 60 + [1.0] * 7)[0], [0] * 66 + [1])


def test_without_noise_the_loss_may_still_move_a_little():
    assert detect([1.0] * 60 + [1.03] * 200)[0][-1] == 0


def test_no_change_right_after_a_change():
    values = [1.0] * 60 + [10.0] * 30 + [100.0] * 40
    assert detect(values)[0][-1] == 1
    assert detect(values, min_steps=20)[0][-1] == 2


NUMBERS = st.floats(width=32) | st.sampled_from([0.0, 1e-45, 1.0, 3.4e38, -3.4e38, np.nan, np.inf])


@hypothesis.given(st.lists(NUMBERS, min_size=1, max_size=10), st.integers(1, 3))
def test_anything_goes_in_and_no_bad_id_comes_out(levels, capacity):
    values = np.concatenate([np.repeat(levels, 5), np.zeros(50 - 5 * len(levels))])
    ids, state = detect(values, capacity, threshold=2.0, min_steps=2)
    assert (ids >= 0).all()
    assert (ids < capacity).all()
    assert (np.diff(ids) >= 0).all()
    chex.assert_tree_all_finite(state)


def problem(steps=600):
    """Gradients and losses of three tasks."""
    rng = np.random.default_rng(1)
    directions = np.repeat(rng.normal(size=(3, 4)), steps // 3, axis=0)
    return directions + rng.normal(size=(steps, 4)), losses()


def test_the_same_as_tag_told_the_ids():
    gradients, values = problem()
    plain = tag_optax.tag_rmsprop(2.0, 5, 0.1)
    ids, _ = detect(values, 5)
    assert ids[-1] == 2

    def learn(tx, ids):
        def step(state, inputs):
            g, value, task = inputs
            updates, state = tx.update(g, state, value=value, task_id=task)
            return state, updates

        return jax.lax.scan(step, tx.init(gradients[0]), (gradients, values, ids))

    expected_state, expected = learn(plain, ids)
    for tx in (
        tag_optax.detect_tasks(plain, 5),
        optax.chain(tag_optax.detect_tasks(plain, 5), optax.identity()),
        tag_optax.detect_tasks(optax.chain(optax.identity(), plain), 5),
    ):
        state, updates = learn(tx, jnp.full(600, 4, jnp.int32))  # What is told is not looked at.
        chex.assert_trees_all_close(updates, expected, rtol=1e-12)
        assert optax.tree.get(state, "task_id") == 2
        np.testing.assert_array_equal(
            optax.tree.get(state, "steps"), optax.tree.get(expected_state, "steps")
        )


def test_eager_and_jitted_and_saved_in_between():
    gradients, values = problem(60)
    tx = tag_optax.detect_tasks(tag_optax.tag_rmsprop(2.0, 3, 0.1), 3, threshold=4.0, min_steps=10)
    values = np.concatenate([values[:30], values[:30]])
    jitted = jax.jit(lambda g, s, v: tx.update(g, s, value=v))
    state = eager_state = tx.init(gradients[0])
    for g, value in zip(gradients, values, strict=True):
        updates, new_state = jitted(g, state, value)
        eager_updates, eager_state = tx.update(g, eager_state, value=value)
        chex.assert_trees_all_equal_shapes_and_dtypes(new_state, state)
        chex.assert_trees_all_close((updates, new_state), (eager_updates, eager_state), rtol=1e-6)
        leaves, structure = jax.tree.flatten(new_state)
        state = jax.tree.unflatten(structure, [np.array(leaf) for leaf in leaves])
    assert state.task_id == 1


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.float64, jnp.int32])
def test_dtypes_of_the_loss(dtype):
    tx = tag_optax.detect_tasks(optax.identity(), 2)
    state = tx.init(jnp.zeros(1))
    _, after = jax.jit(tx.update)(jnp.zeros(1), state, value=jnp.ones((), dtype))
    chex.assert_trees_all_equal_shapes_and_dtypes(after, state)
    assert after.mean == 1


def test_each_member_of_a_vmap_detects_by_itself():
    tx = tag_optax.detect_tasks(tag_optax.tag_rmsprop(2.0, 3), 3)
    axes = tag_optax.vmap_axes(tx, jnp.zeros(2))
    assert set(jax.tree.leaves(axes)) == {0}
    values = np.stack([losses(), np.roll(losses(), 100), losses(seed=1)], axis=1)

    @jax.jit
    def learn(state):
        def step(state, value):
            update = jax.vmap(lambda g, s, v: tx.update(g, s, value=v), (0, axes, 0), (0, axes))
            _, state = update(jnp.ones((3, 2)), state, value)
            return state, state.task_id

        return jax.lax.scan(step, state, values)[1]

    ids = learn(jax.vmap(tx.init, out_axes=axes)(jnp.ones((3, 2))))
    for member in range(3):
        np.testing.assert_array_equal(ids[:, member], detect(values[:, member], 3)[0])


def test_what_inner_is_given():
    seen = {}

    def look(updates, state, params=None, **extra_args):
        seen.update(extra_args)
        return updates, state

    inner = optax.GradientTransformationExtraArgs(optax.identity().init, look)
    tx = tag_optax.detect_tasks(inner, 2)
    tx.update(jnp.ones(2), tx.init(jnp.ones(2)), value=0.5, memory_grad=1)
    assert seen == dict(task_id=0, value=0.5, memory_grad=1)


def test_bad_arguments():
    for settings in (dict(threshold=0.0), dict(threshold=np.nan), dict(min_steps=0)):
        with pytest.raises(ValueError, match="must be above 0"):
            tag_optax.detect_tasks(optax.identity(), 2, **settings)
    with pytest.raises(ValueError, match="task_capacity=0"):
        tag_optax.detect_tasks(optax.identity(), 0)
    tx = tag_optax.detect_tasks(optax.identity(), 2)
    with pytest.raises(TypeError, match="pass value=loss to update"):
        tx.update(jnp.ones(2), tx.init(jnp.ones(2)))
    with pytest.raises(ValueError, match=r"value must be a scalar.*\(2,\)"):
        tx.update(jnp.ones(2), tx.init(jnp.ones(2)), value=jnp.ones(2))


def test_a_search_over_thresholds():
    """Numbers may be traced, and may be injected."""
    make = optax.inject_hyperparams(tag_optax.detect_tasks, static_args=("task_capacity",))
    values = [1.0] * 30 + [4.0] * 6

    @jax.jit
    def last_id(threshold):
        tx = make(optax.identity(), 3, threshold=threshold, min_steps=20)
        step = lambda state, value: (tx.update(jnp.ones(1), state, value=value)[1], None)  # noqa: E731
        state, _ = jax.lax.scan(step, tx.init(jnp.ones(1)), jnp.array(values))
        return state.inner_state.task_id

    assert [int(last_id(h)) for h in (8.0, 16.0)] == [1, 0]


def test_the_last_task_stays_until_the_state_grows():
    tx = tag_optax.detect_tasks(tag_optax.tag_rmsprop(2.0, 2), 2, min_steps=20)
    update = jax.jit(lambda s, v: tx.update(jnp.ones(2), s, value=v)[1])
    state = tx.init(jnp.ones(2))
    found = []
    for level in range(4):
        for _ in range(30):
            state = update(state, 10.0**level)
        found.append(int(state.task_id))
    assert found == [0, 1, 1, 1]
    state = tag_optax.grow(state, 3)
    assert tag_optax.task_weights(state).shape == (3,)
    for _ in range(30):
        state = update(state, 1e4)
    assert state.task_id == 2
    np.testing.assert_array_equal(optax.tree.get(state, "steps"), [36, 90, 24])


def test_numbers_are_replicated():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    tx = tag_optax.detect_tasks(tag_optax.tag_rmsprop(5.0, 2), 2)
    params = {"w": jnp.zeros(4)}
    found = tag_optax.state_sharding(tx, params, PartitionSpec("data"), mesh=mesh)
    assert found.mean.spec == PartitionSpec()
    assert optax.tree.get(found, "past")["w"].spec == PartitionSpec("data")


@pytest.mark.ci
def test_train_state_that_forwards_the_loss():
    """Stock ``apply_gradients`` takes no extra arguments; six lines do."""

    class Watching(TrainState):
        def apply_gradients(self, *, grads, value):
            updates, opt_state = self.tx.update(grads, self.opt_state, self.params, value=value)
            params = optax.apply_updates(self.params, updates)
            return self.replace(step=self.step + 1, params=params, opt_state=opt_state)

    tx = tag_optax.detect_tasks(tag_optax.tag_rmsprop(5.0, 4, 0.01), 4)
    model = nn.Dense(1)
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(3, 5, 1)).astype(np.float32) * 3

    @jax.jit
    def step(state, x, y):
        loss = lambda params: jnp.mean((state.apply_fn(params, x) - y) ** 2)  # noqa: E731
        value, grads = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=grads, value=value)

    with jax.numpy_rank_promotion("allow"):
        params = model.init(jax.random.key(0), jnp.ones((1, 5)))
        state = Watching.create(apply_fn=model.apply, params=params, tx=tx)
        delays = []
        for task in range(3):
            found = []
            for _ in range(300):
                x = rng.normal(size=(10, 5)).astype(np.float32)
                state = step(state, x, x @ weights[task])
                found.append(int(optax.tree.get(state.opt_state, "task_id")))
            assert found[-1] == task
            delays.append(found.index(task))
    assert max(delays) < 50
    with pytest.raises(TypeError, match="pass value=loss"):
        TrainState.apply_gradients(state, grads=params)
