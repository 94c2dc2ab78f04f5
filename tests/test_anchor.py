"""The pull back to where the last task ended: against numpy, and wherever TAG itself runs."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import tag_optax
from tests.reference import NumpyTag
from tests.streams import OPTIMIZERS, ORDER, SCALE_BY, SHAPES, gradients

pytestmark = pytest.mark.ci

IN_TURN = (3, 3, 0, 0, 0, 2, 2, 1, 1, 1)
RATE = 0.1
BANKS = {  # Of so few numbers the compressed bank keeps every one as it is.
    "full": ("cosine", "full", ORDER),
    "per leaf": ("cosine", "full", ORDER),
    "age": ("age", "full", ORDER),
    "compressed": ("cosine", "compressed", IN_TURN),
    "running sum": ("own", "running_sum", IN_TURN),
    "clustered": ("cosine", tag_optax.clustered(4), IN_TURN),
}


def start():
    rng = np.random.default_rng(7)
    return {name: jnp.asarray(rng.normal(size=shape)) for name, shape in SHAPES.items()}


def walk(tx, order, stream=None, params=None):
    """The parameters after every step, and the last state."""
    params = start() if params is None else params
    stream = gradients(order) if stream is None else stream
    state, path = tx.init(params), []

    @jax.jit
    def step(params, state, g, task):
        updates, state = tx.update(g, state, params, task_id=task)
        return optax.apply_updates(params, updates), state

    for g, task in zip(stream, order, strict=True):
        params, state = step(params, state, g, jnp.int32(task))
        path.append(params)
    return path, state


@pytest.mark.parametrize("eps_in_sqrt", [True, False])
@pytest.mark.parametrize("kind", BANKS)
@pytest.mark.parametrize("optimizer", SCALE_BY)
def test_equals_numpy(optimizer, kind, eps_in_sqrt):
    relatedness, bank, order = BANKS[kind]
    scope = "leaf" if kind == "per leaf" else "global"
    b2 = {"adam": 0.999, "rms": 0.99, "adagrad": 0.0}[optimizer]
    arguments = dict(b=2.0, eps=1e-4, eps_in_sqrt=eps_in_sqrt, anchor=0.3)
    reference = NumpyTag(optimizer, b2=b2, relatedness=relatedness, scope=scope, **arguments)
    given = tag_optax.cosine(scope) if relatedness == "cosine" else relatedness
    rescale = SCALE_BY[optimizer](task_capacity=5, relatedness=given, bank=bank, **arguments)
    path, _ = walk(optax.chain(rescale, optax.scale(-RATE)), order)
    expected = {name: np.asarray(x) for name, x in start().items()}
    for g, task, found in zip(gradients(order), order, path, strict=True):
        updates = reference.update(g, task, expected)
        expected = {name: expected[name] - RATE * updates[name] for name in expected}
        chex.assert_trees_all_close(found, expected, rtol=1e-11)


def test_it_is_the_gradient_of_a_penalty():
    """On the second task, of lambda / 2 sum_i P_i (theta_i - theta*_i)^2, with P = V of the first.

    Where the gradients of the second task are zero, W = P and nothing else moves.
    """
    tx = tag_optax.scale_by_tag_rms(2.0, 2, eps=1e-4, anchor=0.7)
    ended, away = jnp.array([1.0, -2.0]), jnp.array([1.5, -2.5])
    state = tx.init(ended)
    _, state = tx.update(jnp.array([3.0, 0.1]), state, ended, task_id=0)
    p = state.live["nu"]
    _, state = tx.update(jnp.zeros(2), state, ended, task_id=1)
    updates, state = tx.update(jnp.zeros(2), state, away, task_id=1)
    penalty = jax.grad(lambda theta: 0.35 * jnp.sum(p * (theta - ended) ** 2))(away)
    np.testing.assert_allclose(updates, penalty / jnp.sqrt(p + 1e-4), rtol=1e-12)
    np.testing.assert_array_equal(state.anchor, ended)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_none_leaves_everything_as_it_was(optimizer):
    path, state = walk(OPTIMIZERS[optimizer](2.0, 5, RATE, anchor=0), ORDER)
    expected, _ = walk(OPTIMIZERS[optimizer](2.0, 5, RATE), ORDER)
    chex.assert_trees_all_equal(path, expected)
    assert state[0].anchor == ()


def test_injected_without_one_there_is_none():
    tx = optax.inject_hyperparams(tag_optax.tag_rmsprop, static_args=("task_capacity",))
    path, state = walk(tx(2.0, task_capacity=5, learning_rate=RATE), ORDER)
    expected, _ = walk(tag_optax.tag_rmsprop(2.0, 5, RATE), ORDER)
    chex.assert_trees_all_close(path, expected, rtol=1e-12)
    assert state.inner_state[0].anchor == ()


def test_a_pull_of_nothing_that_is_not_known_to_be_none():
    """A strength that is an array may be 0: it keeps the copy, and pulls nowhere."""
    path, state = walk(tag_optax.tag_rmsprop(2.0, 5, RATE, anchor=jnp.zeros(())), ORDER)
    expected, _ = walk(tag_optax.tag_rmsprop(2.0, 5, RATE), ORDER)
    chex.assert_trees_all_close(path, expected, rtol=1e-12)
    assert state[0].anchor != ()


def test_its_strength_may_follow_a_schedule():
    tx = optax.inject_hyperparams(tag_optax.tag_rmsprop, static_args=("task_capacity",))
    constant, _ = walk(tag_optax.tag_rmsprop(2.0, 5, RATE, anchor=0.5), ORDER)
    scheduled, _ = walk(
        tx(2.0, task_capacity=5, learning_rate=RATE, anchor=lambda step: jnp.float64(0.5)), ORDER
    )
    chex.assert_trees_all_close(scheduled, constant, rtol=1e-12)


def test_a_task_that_comes_back_is_held_to_where_the_last_one_ended():
    path, state = walk(tag_optax.tag_rmsprop(2.0, 2, RATE, anchor=1.0), (0, 0, 1, 1, 0))
    chex.assert_trees_all_equal(state[0].anchor, path[3])


def test_the_first_task_is_not_pulled():
    order = (2, 2, 2)
    path, _ = walk(tag_optax.tag_rmsprop(2.0, 3, RATE, anchor=100.0), order)
    expected, _ = walk(tag_optax.tag_rmsprop(2.0, 3, RATE), order)
    chex.assert_trees_all_close(path, expected, rtol=1e-13)


def test_a_stronger_pull_stays_nearer():
    rng = np.random.default_rng(0)
    order = (0,) * 20 + (1,) * 20
    stream = [{"w": jnp.asarray(rng.normal(size=50))} for _ in order]
    zeros = {"w": jnp.zeros(50)}
    moved = []
    for strength in (0.0, 1.0, 10.0):
        tx = tag_optax.tag_rmsprop(5.0, 2, 0.01, anchor=strength)
        path, _ = walk(tx, order, stream, zeros)
        moved.append(float(jnp.linalg.norm(path[-1]["w"] - path[19]["w"])))
    assert moved[0] > moved[1] > moved[2] > 0


def test_scan_equals_a_loop():
    tx = tag_optax.tag_rmsprop(2.0, 5, RATE, relatedness="own", bank="running_sum", anchor=0.5)
    stream = gradients()
    path, _ = walk(tx, ORDER)
    params = start()

    def body(carry, batch):
        params, state = carry
        g, task = batch
        updates, state = tx.update(g, state, params, task_id=task)
        params = optax.apply_updates(params, updates)
        return (params, state), params

    batches = jax.tree.map(lambda *xs: jnp.stack(xs), *stream), jnp.array(ORDER)
    _, scanned = jax.lax.scan(body, (params, tx.init(params)), batches)
    chex.assert_trees_all_close(jax.tree.map(lambda x: x[-1], scanned), path[-1], rtol=1e-12)


def test_vmap_equals_one_by_one():
    tx = tag_optax.tag_rmsprop(2.0, 5, RATE, anchor=0.5)
    starts = [start(), jax.tree.map(lambda x: 2 * x, start())]
    alone = [walk(tx, ORDER, params=params)[0][-1] for params in starts]
    axes = tag_optax.vmap_axes(tx, starts[0])
    params = jax.tree.map(lambda *xs: jnp.stack(xs), *starts)
    state = jax.vmap(tx.init, out_axes=axes)(params)

    def step(params, state, g, task):
        updates, state = tx.update(g, state, params, task_id=task)
        return optax.apply_updates(params, updates), state

    several = jax.jit(jax.vmap(step, (0, axes, None, None), (0, axes)))
    for g, task in zip(gradients(), ORDER, strict=True):
        params, state = several(params, state, g, jnp.int32(task))
    for index, expected in enumerate(alone):
        chex.assert_trees_all_close(
            jax.tree.map(lambda x, i=index: x[i], params), expected, rtol=1e-12
        )


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_split_parameters_change_nothing(axis_type):
    mesh = jax.make_mesh((4,), ("model",), axis_types=(axis_type,))
    split = NamedSharding(mesh, PartitionSpec("model"))
    rng = np.random.default_rng(3)
    order = (0, 0, 1, 1, 2)
    stream = [jnp.asarray(rng.normal(size=(8, 2))) for _ in order]
    params = jnp.asarray(rng.normal(size=(8, 2)))
    tx = tag_optax.tag_rmsprop(2.0, 3, RATE, anchor=0.5)
    expected, _ = walk(tx, order, stream, params)
    shardings = tag_optax.state_sharding(tx, params, split)
    assert shardings[0].anchor.spec == split.spec
    with jax.set_mesh(mesh):
        params = jax.device_put(params, split)
        state = jax.jit(tx.init, out_shardings=shardings)(params)
        step = jax.jit(lambda p, s, g, t: tx.update(g, s, p, task_id=t))
        for g, task in zip(stream, order, strict=True):
            updates, state = step(params, state, jax.device_put(g, split), jnp.int32(task))
            params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(params, expected[-1], rtol=1e-12)
    assert state[0].anchor.sharding.is_equivalent_to(split, 2)


def test_it_costs_one_copy():
    params = jax.ShapeDtypeStruct((1000, 100), jnp.float32)
    arguments = dict(relatedness="own", bank="running_sum")
    without, with_ = (
        tag_optax.state_bytes(tag_optax.tag_rmsprop(5.0, 20, anchor=a, **arguments), params)
        for a in (0.0, 5.0)
    )
    assert with_ - without == 4 * 100_000


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_step_is_as_if_it_had_not_been(bad):
    """Be it the first of a task, whose anchor is then taken all the same."""
    tx = tag_optax.tag_rmsprop(2.0, 2, RATE, anchor=0.5)
    params = jnp.array([1.0, 2.0])

    def after(*stream):
        theta, state = params, tx.init(params)
        for task, g in stream:
            updates, state = tx.update(g, state, theta, task_id=task)
            if jnp.all(jnp.isfinite(g)):
                theta = optax.apply_updates(theta, updates)
            else:
                assert jnp.all(jnp.isnan(updates))
        return theta, state[0].anchor

    good = [(0, jnp.array([1.0, -1.0])), (1, jnp.array([0.5, 2.0])), (1, jnp.array([0.1, 1.0]))]
    broken = [good[0], (1, jnp.array([bad, 1.0])), *good[1:]]
    chex.assert_trees_all_equal(after(*good), after(*broken))


def test_it_stays_finite_far_away():
    """P times a distance may overflow; P / sqrt(W) times it does not."""
    tx = tag_optax.scale_by_tag_rms(1.0, 2, anchor=1.0)
    near = jnp.zeros(2, jnp.float32)
    state = tx.init(near)
    _, state = tx.update(jnp.full(2, 1e15, jnp.float32), state, near, task_id=0)
    _, state = tx.update(jnp.ones(2, jnp.float32), state, near, task_id=1)
    far = jnp.full(2, 1e20, jnp.float32)
    updates, _ = tx.update(jnp.ones(2, jnp.float32), state, far, task_id=1)
    assert jnp.all(jnp.isfinite(updates))
    assert jnp.all(updates > 0)


def test_the_dtype_of_parameters_is_the_anchors():
    params = {"half": jnp.ones(3, jnp.bfloat16), "single": jnp.ones(3, jnp.float32)}
    tx = tag_optax.tag_rmsprop(2.0, 2, RATE, anchor=0.5)
    state = tx.init(params)
    update = jax.jit(lambda g, s, p, t: tx.update(g, s, p, task_id=t))
    for task in (0, 1, 1):
        updates, state = update(params, state, params, jnp.int32(task))
    chex.assert_trees_all_equal_dtypes(state[0].anchor, params)
    chex.assert_trees_all_equal_dtypes(updates, params)


def test_what_is_masked_is_not_pulled():
    params = {"a": jnp.ones(2), "b": jnp.ones(2)}
    tx = optax.masked(tag_optax.tag_rmsprop(2.0, 2, RATE, anchor=0.5), {"a": True, "b": False})
    state = tx.init(params)
    for task in (0, 1):
        updates, state = tx.update(params, state, params, task_id=task)
    np.testing.assert_array_equal(updates["b"], params["b"])


def test_it_needs_the_parameters():
    tx = tag_optax.tag_rmsprop(2.0, 2, anchor=0.5)
    params = jnp.ones(2)
    with pytest.raises(ValueError, match=r"anchor= needs the parameters"):
        tx.update(params, tx.init(params), task_id=0)


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
def test_what_cannot_be_a_strength(value):
    with pytest.raises(ValueError, match=r"anchor=.* must not be negative, nor infinite, nor NaN"):
        tag_optax.tag_rmsprop(2.0, 2, anchor=value)


def test_grow_keeps_it():
    tx = tag_optax.tag_rmsprop(2.0, 2, RATE, anchor=0.5)
    params = start()
    path, _ = walk(tx, (0, 0, 1, 1))
    state, ended = tx.init(params), params
    stream = gradients((0, 0, 1, 1))
    for g, task in list(zip(stream, (0, 0, 1, 1), strict=True))[:3]:
        updates, state = tx.update(g, state, ended, task_id=task)
        ended = optax.apply_updates(ended, updates)
    state = tag_optax.grow(state, 7)
    updates, _ = tx.update(stream[3], state, ended, task_id=1)
    chex.assert_trees_all_close(optax.apply_updates(ended, updates), path[-1], rtol=1e-12)
