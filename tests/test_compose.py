"""TAG inside everything that optax and JAX offer."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tag_optax
from tests.streams import ORDER, RELATEDNESS, gradients, run

pytestmark = pytest.mark.ci


@pytest.fixture(autouse=True)
def standard_promotion():
    with jax.numpy_dtype_promotion("standard"):  # optax's own parts need it.
        yield


@pytest.fixture(scope="module")
def stream():
    return gradients()


def tag(**arguments):
    return tag_optax.tag_rmsprop(2.0, 5, 0.1, **arguments)


def test_chain_clips_before_tag(stream):
    chained, _ = run(optax.chain(optax.clip_by_global_norm(0.5), tag()), stream)
    clip = optax.clip_by_global_norm(0.5)
    clipped = [clip.update(g, clip.init(g))[0] for g in stream]
    expected, _ = run(tag(), clipped)
    chex.assert_trees_all_close(chained, expected, rtol=1e-12)


def test_masked_sees_only_its_leaves(stream):
    mask = {"matrix": True, "vector": False, "scalar": True, "head": False}
    updates, state = run(optax.masked(tag(), mask), stream)
    seen = [{k: g[k] for k in ("matrix", "scalar")} for g in stream]
    expected, _ = run(tag(), seen)
    for update, exp, g in zip(updates, expected, stream, strict=True):
        chex.assert_trees_all_close({k: update[k] for k in exp}, exp, rtol=1e-12)
        np.testing.assert_array_equal(update["head"], g["head"])
    assert tag_optax.task_weights(state).shape == (5,)


def test_partition_as_for_adapters(stream):
    """The LoRA way: the backbone frozen, the adapters under TAG, each group with its own cosine."""
    labels = {"matrix": "tag", "vector": "tag", "scalar": "frozen", "head": "sgd"}
    tx = optax.partition(
        {"tag": tag(), "frozen": optax.set_to_zero(), "sgd": optax.sgd(0.5)}, labels
    )
    updates, state = run(tx, stream)
    expected, _ = run(tag(), [{k: g[k] for k in ("matrix", "vector")} for g in stream])
    for update, exp, g in zip(updates, expected, stream, strict=True):
        chex.assert_trees_all_close({k: update[k] for k in exp}, exp, rtol=1e-12)
        chex.assert_trees_all_close(update["head"], -0.5 * g["head"], rtol=1e-12)
        assert update["scalar"] == 0
    grown = tag_optax.grow(state, 8)
    assert tag_optax.task_weights(grown).shape == (8,)


def test_two_tags_side_by_side_have_two_weights(stream):
    labels = {"matrix": "a", "vector": "a", "scalar": "b", "head": "b"}
    tx = optax.partition({"a": tag(), "b": tag(relatedness=tag_optax.cosine(scope="leaf"))}, labels)
    _, state = run(tx, stream)
    first, second = tag_optax.task_weights(state)
    assert first.shape == (5,)
    assert second["head"].shape == (5,)


def test_apply_if_finite_keeps_nan_out(stream):
    tx = optax.apply_if_finite(tag(), max_consecutive_errors=3)
    bad = [*stream[:4], jax.tree.map(lambda x: x * np.nan, stream[4]), *stream[5:]]
    updates, state = run(tx, bad)
    without = [*stream[:4], *stream[5:]]
    expected, expected_state = run(tag(), without, [*ORDER[:4], *ORDER[5:]])
    chex.assert_trees_all_close([*updates[:4], *updates[5:]], expected, rtol=1e-12)
    chex.assert_trees_all_close(state.inner_state, expected_state, rtol=1e-12)


def test_tree_get_and_map_params(stream):
    tx = tag()
    _, state = run(tx, stream)
    assert optax.tree.get(state, "live_task") == ORDER[-1]
    doubled = optax.tree.map_params(tx, lambda x: 2 * x, state)
    for tree, twice in ((state[0].live, doubled[0].live), (state[0].bank, doubled[0].bank)):
        chex.assert_trees_all_close(twice["nu"], jax.tree.map(lambda x: 2 * x, tree["nu"]))
    chex.assert_trees_all_equal(
        (doubled[0].steps, doubled[0].alpha, doubled[0].live["length"]),
        (state[0].steps, state[0].alpha, state[0].live["length"]),
    )


@pytest.mark.parametrize("relatedness", RELATEDNESS)
def test_scan_over_a_stream(stream, relatedness):
    tx = tag(relatedness=relatedness)
    expected, expected_state = run(tx, stream)
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *stream)

    @jax.jit
    def scan(state):
        def step(state, inputs):
            g, task = inputs
            updates, state = tx.update(g, state, task_id=task)
            return state, updates

        return jax.lax.scan(step, state, (stacked, jnp.array(ORDER, jnp.int32)))

    state, updates = scan(tx.init(stream[0]))
    chex.assert_trees_all_close(
        updates, jax.tree.map(lambda *x: jnp.stack(x), *expected), rtol=1e-12
    )
    chex.assert_trees_all_close(state, expected_state, rtol=1e-12)


@pytest.mark.parametrize("relatedness", RELATEDNESS)
def test_vmap_over_seeds_that_share_a_task(relatedness):
    tx = tag(relatedness=relatedness)
    streams = [gradients(seed=seed) for seed in range(3)]
    expected = [run(tx, s)[0] for s in streams]
    batches = [jax.tree.map(lambda *x: jnp.stack(x), *step) for step in zip(*streams, strict=True)]
    axes = tag_optax.vmap_axes(tx, streams[0][0])
    state = jax.vmap(tx.init, out_axes=axes)(batches[0])
    update = jax.jit(
        jax.vmap(lambda g, s, t: tx.update(g, s, task_id=t), (0, axes, None), (0, axes))
    )
    for step, (batch, task) in enumerate(zip(batches, ORDER, strict=True)):
        updates, state = update(batch, state, jnp.int32(task))
        one = jax.tree.map(lambda *x: jnp.stack(x), *[member[step] for member in expected])
        chex.assert_trees_all_close(updates, one, rtol=1e-11)
    weights = jax.vmap(tag_optax.task_weights, in_axes=(axes,))(state)
    assert weights.shape == (3, 5)


def test_vmap_over_different_tasks():
    """Each member with a task of its own: slower, and as right."""
    tx = tag()
    orders = [ORDER, ORDER[::-1]]
    streams = [gradients(order) for order in orders]
    expected = [run(tx, s, o)[0] for s, o in zip(streams, orders, strict=True)]
    update = jax.jit(jax.vmap(lambda g, s, t: tx.update(g, s, task_id=t)))
    batches = [jax.tree.map(lambda *x: jnp.stack(x), *step) for step in zip(*streams, strict=True)]
    state = jax.vmap(tx.init)(batches[0])
    for step, batch in enumerate(batches):
        updates, state = update(batch, state, jnp.array([o[step] for o in orders], jnp.int32))
        one = jax.tree.map(lambda *x: jnp.stack(x), *[member[step] for member in expected])
        chex.assert_trees_all_close(updates, one, rtol=1e-11)


def test_jit_of_init_and_eval_shape(stream):
    tx = tag(relatedness=tag_optax.cosine(scope="leaf"))
    state = tx.init(stream[0])
    chex.assert_trees_all_equal(jax.jit(tx.init)(stream[0]), state)
    shapes = jax.eval_shape(tx.init, stream[0])
    chex.assert_trees_all_equal_shapes_and_dtypes(shapes, state)


def test_eager_equals_jitted(stream):
    tx = tag()
    jitted, _ = run(tx, stream)
    state = tx.init(stream[0])
    for g, task, expected in zip(stream, ORDER, jitted, strict=True):
        updates, state = tx.update(g, state, task_id=task)
        chex.assert_trees_all_close(updates, expected, rtol=1e-12)


def test_one_compilation_serves_a_stream_of_20_tasks():
    tx = tag_optax.tag_rmsprop(5.0, 20)
    traces = []

    @jax.jit
    def step(params, state, task):
        traces.append(task)
        updates, state = tx.update(params, state, params, task_id=task)
        return optax.apply_updates(params, updates), state

    params = jnp.ones(3)
    state = tx.init(params)
    for task in range(20):
        for _ in range(2):
            params, state = step(params, state, task)
    assert len(traces) == 1
    assert (np.asarray(optax.tree.get(state, "steps")) == 2).all()


def test_built_inside_jit_from_traced_numbers(stream):
    """A search over settings: one compilation for all of them."""
    expected, _ = run(tag_optax.tag_rmsprop(2.0, 5, 0.1, b1=0.8), stream)

    @jax.jit
    def learn(b, rate, b1):
        tx = tag_optax.tag_rmsprop(b, 5, rate, b1=b1)
        state, all_updates = tx.init(stream[0]), []
        for g, task in zip(stream[:6], ORDER, strict=False):
            updates, state = tx.update(g, state, task_id=task)
            all_updates.append(updates)
        return all_updates

    found = learn(2.0, 0.1, 0.8)
    chex.assert_trees_all_close(found, expected[:6], rtol=1e-12)


EVERYTHING = {
    "tag_rmsprop": tag_optax.tag_rmsprop(5.0, 3),
    "tag_adagrad": tag_optax.tag_adagrad(5.0, 3, relatedness="age"),
    "tag_adam": tag_optax.tag_adam(5.0, 3, relatedness="first_gradients"),
    "running_sum": tag_optax.tag_adam(5.0, 3, relatedness="own", bank="running_sum"),
    "stateful_task_id": tag_optax.stateful_task_id(tag_optax.tag_rmsprop(5.0, 3)),
    "companions": optax.chain(
        tag_optax.add_ewc_penalty(1.0),
        tag_optax.project_agem(),
        tag_optax.project_orthogonal(1, 3),
        tag_optax.tag_rmsprop(5.0, 3),
    ),
}


@pytest.mark.parametrize("name", EVERYTHING)
def test_donated_steps_from_an_eager_state(name, stream):
    """Runs, not only compiles: no buffer may stand twice in a state."""
    tx = EVERYTHING[name]
    params = jax.tree.map(jnp.zeros_like, stream[0])
    state = tx.init(params)
    step = jax.jit(
        lambda g, s, p, t: tx.update(g, s, p, task_id=t, memory_grad=g), donate_argnums=(1,)
    )
    for g, task in zip(stream, (0, 0, 2, 1), strict=False):
        before = jax.tree.leaves(state)
        updates, state = step(g, state, params, jnp.int32(task))
        chex.assert_tree_all_finite(updates)
    assert all(leaf.is_deleted() for leaf in before if leaf.ndim > 1)


def test_a_leaf_without_a_gradient(stream):
    """As optax: None in, None out. It counts as a zero gradient."""
    tx = tag()
    some = [{**g, "head": None} for g in stream]
    zero = [{**g, "head": np.zeros_like(g["head"])} for g in stream]
    expected, expected_state = run(tx, zero)
    state = tx.init(stream[0])
    for g, task, exp in zip(some, ORDER, expected, strict=True):
        updates, state = tx.update(g, state, task_id=task)
        assert updates["head"] is None
        chex.assert_trees_all_close(updates["matrix"], exp["matrix"], rtol=1e-12)
    chex.assert_trees_all_close(state, expected_state, rtol=1e-12)


def test_what_inject_hyperparams_would_call_is_refused():
    """optax takes every callable for a schedule: a mask function. A relatedness and a bank pass."""
    make = optax.inject_hyperparams(tag_optax.tag_rmsprop, static_args=("task_capacity",))
    params = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}
    mask = lambda p: jax.tree.map(lambda x: x.ndim > 1, p)  # noqa: E731
    with pytest.raises(ValueError, match=r"mask must be a tree.*static_args"):
        make(5.0, task_capacity=2, weight_decay=0.5, mask=mask).init(params)
    make = optax.inject_hyperparams(tag_optax.tag_rmsprop, static_args=("task_capacity", "mask"))
    values = dict(relatedness=tag_optax.cosine(scope="leaf"), bank=tag_optax.full(jnp.bfloat16))
    tx = make(5.0, 2, 1.0, weight_decay=0.5, mask=mask, **values)
    zeros = jax.tree.map(jnp.zeros_like, params)
    updates, _ = tx.update(zeros, tx.init(params), params, task_id=0)
    chex.assert_trees_all_close(updates, {"w": -0.5 * jnp.ones((2, 2)), "b": jnp.zeros(2)})
