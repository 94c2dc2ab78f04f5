"""Gradients that are not finite, or huge: the bank stays finite, and good steps are as ever."""

import functools

import chex
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tag_optax
from tests.streams import ORDER, RELATEDNESS, SCALE_BY, gradients, related, run

pytestmark = pytest.mark.ci

BAD = [np.nan, np.inf, -np.inf]
KINDS = [*RELATEDNESS, "running_sum"]
STORAGE = [None, "bfloat16", "float16"]


@functools.cache  # Compiled once.
def make(optimizer, kind, scope="global", storage=None):
    if kind == "running_sum":
        return SCALE_BY[optimizer](5.0, 4, relatedness="own", bank="running_sum")
    bank = tag_optax.full(storage, storage)
    return SCALE_BY[optimizer](5.0, 4, relatedness=related(kind, scope), bank=bank)


def assert_finite(tree):
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        assert np.isfinite(np.asarray(leaf, np.float64)).all(), jax.tree_util.keystr(path)


def is_nan(tree):
    return all(np.isnan(np.asarray(x, np.float64)).all() for x in jax.tree.leaves(tree))


def steps(tx, stream, order):
    """As `run`, eager: what is compiled is the transformation's own step, once."""
    state, updates = tx.init(jax.tree.map(jnp.zeros_like, stream[0])), []
    for g, task in zip(stream, order, strict=True):
        update, state = tx.update(g, state, task_id=jnp.int32(task))
        updates.append(update)
    return updates, state


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", SCALE_BY)
def test_a_bad_step_is_as_if_it_had_not_been(optimizer, kind):
    """One number is enough: the update is NaN, and all later steps are those without it."""
    tx = make(optimizer, kind)
    stream, order = gradients(), list(ORDER)
    expected, last = steps(tx, stream, order)
    for at, bad in (
        (7, np.nan),
        (5, np.inf),
        (0, -np.inf),
    ):  # In a task, its first step, the first.
        spoilt = jax.tree.map(np.copy, stream[at])
        spoilt["matrix"][1, 0] = bad
        stream.insert(at, spoilt)
        order.insert(at, order[at])
    found, state = steps(tx, stream, order)
    for at in (0, 5, 7):
        assert is_nan(found.pop(at))
    chex.assert_trees_all_equal(found, expected)
    chex.assert_trees_all_equal(state, last)


def test_seeds_side_by_side_skip_each_its_own():
    tx = make("rms", "cosine")
    stream = [jax.tree.map(lambda x: np.stack([x, 2 * x]), g) for g in gradients()]
    alone, _ = run(tx, gradients())
    stream[5]["vector"][1, 0] = np.nan
    axes = tag_optax.vmap_axes(tx, gradients()[0])
    state = jax.vmap(tx.init, out_axes=axes)(jax.tree.map(jnp.zeros_like, stream[0]))
    update = jax.jit(
        jax.vmap(lambda g, s, t: tx.update(g, s, task_id=t), (0, axes, None), (0, axes))
    )
    for at, (g, task) in enumerate(zip(stream, ORDER, strict=True)):
        updates, state = update(g, state, jnp.int32(task))
        first, second = (jax.tree.map(lambda x, i=i: x[i], updates) for i in (0, 1))
        chex.assert_trees_all_close(first, alone[at], rtol=1e-9)
        assert is_nan(second) == (at == 5)
    np.testing.assert_array_equal(state.steps[0] - state.steps[1], [0, 0, 1, 0])
    assert_finite(state)


@pytest.mark.parametrize(
    ("optimizer", "kind", "scope", "storage"),
    [
        *(("rms", kind, "global", None) for kind in KINDS),
        *(("adam", kind, "leaf", None) for kind in ("cosine", "first_gradients", "running_sum")),
        ("adagrad", "cosine", "leaf", None),
        ("adagrad", "own", "global", "bfloat16"),
        ("adam", "cosine", "global", "float16"),
    ],
)
@hypothesis.given(data=st.data())
def test_the_bank_is_finite_after_anything(optimizer, kind, scope, storage, data):
    tx = make(optimizer, kind, scope, storage)
    numbers = st.floats(width=32, allow_nan=True, allow_infinity=True)
    numbers |= st.sampled_from([*BAD, 3e38, -3e38, 1e19, -2e19, 1e-45, 0.0, 1.0])
    steps = st.lists(st.tuples(st.integers(0, 3), st.lists(numbers, min_size=3, max_size=3)))
    state = tx.init({"w": jnp.zeros(2, jnp.float32), "c": jnp.zeros(1, jnp.float32)})
    for task, values in data.draw(steps, "steps"):
        g = {"w": jnp.array(values[:2], jnp.float32), "c": jnp.array(values[2:], jnp.float32)}
        updates, state = tx.update(g, state, task_id=jnp.int32(task))
        assert_finite(state)
        if is_nan(updates):
            with np.errstate(over="ignore", invalid="ignore"):
                squares = np.square(np.array(values, np.float32))
            assert not np.isfinite(np.sum(squares, dtype=np.float32)), values
        else:
            assert_finite(updates)


def test_a_huge_gradient_is_a_step():
    """Its square is too large for the moment, which then holds the largest number there is."""
    tx = tag_optax.scale_by_tag_rms(5.0, 2, bank=tag_optax.full(nu_dtype="float16"))
    state = tx.init(jnp.zeros(1, jnp.float32))
    updates, state = tx.update(jnp.full(1, 1e6, jnp.float32), state, task_id=0)
    assert_finite(updates)
    assert state.steps[0] == 1
    assert state.live["nu"] == np.finfo(np.float16).max


def test_zero_nans_makes_a_bad_step_none():
    tx = optax.chain(tag_optax.tag_rmsprop(5.0, 2, 0.1), optax.zero_nans())
    state = tx.init(jnp.zeros(2))
    _, state = tx.update(jnp.ones(2), state, task_id=0)
    updates, after = tx.update(jnp.array([1.0, np.nan]), state, task_id=0)
    np.testing.assert_array_equal(updates, 0)
    chex.assert_trees_all_equal(after[0], state[0])


def test_a_task_without_any_gradient():
    """Zeros all along: no step, no relation to any other task, and nothing but zeros in its row."""
    tx = tag_optax.scale_by_tag_rms(5.0, 3)
    g, zero = jnp.array([1.0, -2.0]), jnp.zeros(2)
    updates, state = run(tx, [g, zero, zero, g], [0, 1, 1, 2])
    np.testing.assert_array_equal(updates[1], 0)
    np.testing.assert_array_equal(updates[2], 0)
    np.testing.assert_array_equal(state.bank["nu"][1], 0)
    assert tag_optax.task_weights(state)[1] == 1.0  # exp(-b 0)
    assert_finite((updates, state))
