"""Dtypes and the edges of floating point."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tag_optax
from tests.reference import NumpyTag
from tests.streams import ORDER, RELATEDNESS, SCALE_BY, gradients, related, run

pytestmark = pytest.mark.ci

LOW = [jnp.float16, jnp.bfloat16]


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64])
def test_moments_accumulate_in_float32_or_float64(dtype):
    tx = tag_optax.scale_by_tag_adam(5.0, 3, relatedness="first_gradients")
    state = tx.init({"w": jnp.zeros(2, dtype)})
    expected = jnp.float64 if dtype == jnp.float64 else jnp.float32
    assert state.live.keys() == state.bank.keys() == {"mu", "nu", "direction"}
    for leaf in jax.tree.leaves((state.live, state.past, state.bank, state.alpha)):
        assert leaf.dtype == expected


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("optimizer", SCALE_BY)
def test_low_precision_parameters_lose_no_more_than_rounding(optimizer, dtype):
    """Not the moments: the updates are the float64 ones of the same gradients, rounded once."""
    stream = gradients(dtype=dtype)
    exact = [jax.tree.map(lambda x: np.asarray(x, np.float64), g) for g in stream]
    low, _ = run(SCALE_BY[optimizer](2.0, 5), stream)
    high, _ = run(SCALE_BY[optimizer](2.0, 5), exact)
    for one, two in zip(low, high, strict=True):
        assert all(x.dtype == dtype for x in jax.tree.leaves(one))
        chex.assert_trees_all_close(
            jax.tree.map(lambda x: x.astype(jnp.float64), one),
            two,
            rtol=float(jnp.finfo(dtype).eps),
        )


@pytest.mark.parametrize("dtype", [*LOW, jnp.float32])
@pytest.mark.parametrize("optimizer", SCALE_BY)
@pytest.mark.parametrize("relatedness", RELATEDNESS)
@pytest.mark.parametrize("eps", [1e-8, 0.0])
def test_zeros_never_make_nan(optimizer, dtype, relatedness, eps):
    """A zero gradient, a task of nothing else, and a head that only task 1 uses."""
    tx = SCALE_BY[optimizer](5.0, 4, relatedness=related(relatedness, "leaf"), eps=eps)
    zero = {"body": jnp.zeros(3, dtype), "head": jnp.zeros(2, dtype)}
    used = {"body": jnp.ones(3, dtype), "head": jnp.ones(2, dtype)}
    unused = {"body": -jnp.ones(3, dtype), "head": jnp.zeros(2, dtype)}
    updates, state = run(tx, [zero, zero, used, unused, zero, used], [0, 0, 1, 2, 3, 1])
    chex.assert_tree_all_finite((updates, state))
    assert not np.asarray(updates[3]["head"]).any()


@pytest.mark.parametrize("storage", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("relatedness", ["cosine", "first_gradients"])
@pytest.mark.parametrize("capacity", [5, 40])
def test_storage_dtypes(storage, relatedness, capacity):
    """Live rows and banks are stored as told, and the update is close to the exact one."""
    arguments = dict(relatedness=relatedness, bank=tag_optax.full(storage, storage))
    tx = tag_optax.scale_by_tag_adam(2.0, capacity, **arguments)
    stream = gradients(dtype=np.float32)
    updates, state = run(tx, stream)
    for name in ("mu", "nu"):
        for leaf in jax.tree.leaves((state.live[name], state.bank[name])):
            assert leaf.dtype == jnp.dtype(storage)
    reference = NumpyTag("adam", b=2.0, b2=0.999, relatedness=relatedness)
    expected = [reference.update(g, task) for g, task in zip(stream, ORDER, strict=True)]
    tolerance = {"bfloat16": 0.1, "float16": 0.05, "float64": 1e-5}[storage]
    for one, two in zip(updates, expected, strict=True):
        for name in one:
            scale = np.abs(two[name]).max() + 1e-6
            got = np.asarray(one[name], np.float64)
            np.testing.assert_allclose(got / scale, two[name] / scale, atol=tolerance)


def test_float64_moments_of_float32_gradients():
    """The wider of gradient and moment decides the arithmetic."""
    stream = gradients(dtype=np.float32)
    tx = tag_optax.scale_by_tag_rms(2.0, 5)
    wide, narrow = jax.tree.map(np.float64, stream[0]), stream[0]
    _, state = run(tx, stream, state=tx.init(wide))
    _, exact = run(tx, [jax.tree.map(np.float64, g) for g in stream])
    chex.assert_trees_all_close(state, exact, rtol=1e-12)
    chex.assert_trees_all_equal_shapes_and_dtypes(state, tx.init(wide))
    assert tx.init(narrow).live["nu"]["head"].dtype == jnp.float32


def test_a_running_sum_of_many_tasks_is_exact():
    tx = tag_optax.scale_by_tag_adagrad(1.0, 600, relatedness="own", bank="running_sum")
    update = jax.jit(tx.update)
    state = tx.init(jnp.zeros(2, jnp.float32))
    for task in range(600):
        _, state = update(jnp.ones(2, jnp.float32), state, task_id=task)
    np.testing.assert_array_equal(state.past, [599, 599])


@pytest.mark.parametrize("name", ["mu_dtype", "nu_dtype"])
def test_one_float64_moment_is_enough_for_float64_arithmetic(name):
    stream = gradients(dtype=np.float32)
    _, state = run(
        tag_optax.scale_by_tag_rms(2.0, 5, bank=tag_optax.full(**{name: "float64"})), stream
    )
    _, exact = run(
        tag_optax.scale_by_tag_rms(2.0, 5), [jax.tree.map(np.float64, g) for g in stream]
    )
    moment = "direction" if name == "mu_dtype" else "nu"
    chex.assert_trees_all_close(state.live[moment], exact.live[moment], rtol=1e-12)


def test_parameters_of_mixed_dtypes():
    tx = tag_optax.scale_by_tag_rms(5.0, 3)
    params = {"a": jnp.ones(2, jnp.bfloat16), "b": jnp.ones(2, jnp.float32), "c": jnp.ones(())}
    updates, state = run(tx, [params, params], [0, 1])
    chex.assert_trees_all_equal_dtypes(updates[-1], params)
    assert state.alpha.dtype == jnp.float64
    np.testing.assert_allclose(tag_optax.task_weights(state)[:2], np.exp([-5.0, -5.0]), rtol=1e-6)


@pytest.mark.parametrize("scope", ["global", "leaf"])
@pytest.mark.parametrize(
    "params", [{}, (), {"a": jnp.ones(()), "b": None}, jnp.ones(()), [jnp.zeros((0, 3))]]
)
def test_trees_that_optax_accepts(params, scope):
    tx = tag_optax.tag_adam(5.0, 3, relatedness=tag_optax.first_gradients(scope=scope))
    state = tx.init(params)
    for task in (0, 2, 0):
        updates, state = tx.update(params, state, params, task_id=task)
    chex.assert_trees_all_equal_shapes(updates, params)
    chex.assert_tree_all_finite(updates)
    tag_optax.task_weights(tag_optax.grow(state, 4))


@pytest.mark.parametrize("b2", [0.0, 0.999, 0.99999])
def test_bias_correction_is_exact_in_float32(b2):
    """The first step of Adam is the sign of the gradient, whatever the decay rates."""
    tx = tag_optax.scale_by_tag_adam(5.0, 2, b1=0.0 if b2 == 0 else 0.9, b2=b2, eps=0.0)
    g = jnp.array([0.5, -2.0], jnp.float32)
    updates, _ = tx.update(g, tx.init(g), task_id=0)
    np.testing.assert_allclose(updates, [1, -1], rtol=3e-7)
