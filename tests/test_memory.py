"""A donated step rewrites no bank: read from what XLA says of the compiled program."""

import functools

import jax
import jax.numpy as jnp
import pytest

import tag_optax
from tests.streams import OPTIMIZERS, RELATEDNESS

pytestmark = pytest.mark.ci

CAPACITY = 20
SHAPE = (256, 128)
ROW = 256 * 128 * 4


def compiled_step(tx, params, batch=None):
    update = lambda g, s, t: tx.update(g, s, task_id=t)  # noqa: E731
    init = tx.init
    if batch is not None:
        axes = tag_optax.vmap_axes(tx, params)
        update = jax.vmap(update, (0, axes, None), (0, axes))
        init = jax.vmap(tx.init, out_axes=axes)
        params = jax.ShapeDtypeStruct((batch, *params.shape), params.dtype)
    state = jax.eval_shape(init, params)
    step = jax.jit(update, donate_argnums=(0, 1))
    compiled = step.lower(params, state, jax.ShapeDtypeStruct((), jnp.int32)).compile()
    return compiled.memory_analysis(), state


def total(state) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize("relatedness", RELATEDNESS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_temporaries_and_aliasing(optimizer, relatedness, dtype):
    tx = OPTIMIZERS[optimizer](
        5.0, CAPACITY, relatedness=relatedness, bank=tag_optax.full(dtype, dtype)
    )
    memory, state = compiled_step(tx, jax.ShapeDtypeStruct(SHAPE, jnp.float32))
    # Narrow moments are worked on as float32 copies of the live rows.
    assert memory.temp_size_in_bytes <= (3 if dtype is None else 6) * ROW
    assert memory.alias_size_in_bytes >= total(state)


def test_vmapped_seeds_share_the_gain():
    tx = tag_optax.tag_rmsprop(5.0, CAPACITY)
    memory, state = compiled_step(tx, jax.ShapeDtypeStruct(SHAPE, jnp.float32), batch=5)
    assert memory.temp_size_in_bytes <= 3 * 5 * ROW
    assert memory.alias_size_in_bytes >= total(state)


def test_scan_copies_no_bank():
    tx = tag_optax.tag_rmsprop(5.0, CAPACITY)

    @functools.partial(jax.jit, donate_argnums=0)
    def steps(state, g, tasks):
        def step(state, task):
            updates, state = tx.update(g, state, task_id=task)
            return state, jnp.sum(updates)

        return jax.lax.scan(step, state, tasks)  # unroll=2 would copy banks.

    g = jax.ShapeDtypeStruct(SHAPE, jnp.float32)
    state = jax.eval_shape(tx.init, g)
    tasks = jax.ShapeDtypeStruct((10,), jnp.int32)
    memory = steps.lower(state, g, tasks).compile().memory_analysis()
    assert memory.temp_size_in_bytes <= 8 * ROW


@pytest.mark.parametrize("relatedness", RELATEDNESS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_state_holds_only_what_is_read(optimizer, relatedness):
    params = jax.ShapeDtypeStruct(SHAPE, jnp.float32)
    tx = OPTIMIZERS[optimizer](5.0, CAPACITY, relatedness=relatedness)
    rows = 1  # nu
    rows += optimizer == "adam"  # mu
    own_direction = relatedness == "first_gradients" or (
        relatedness == "cosine" and optimizer != "adam"
    )
    rows += own_direction
    # visited, steps, alpha, length; live_task, a schedule's count
    small = (1 + 4 * 3) * CAPACITY + 12
    size = tag_optax.state_bytes(tx, params)
    assert 0 <= size - (rows * (CAPACITY + 1) + 1) * ROW <= small  # And the sum of the past.
    state = jax.eval_shape(tx.init, params)[0]
    assert state.live.keys() == state.bank.keys()
    assert ("mu" in state.live) == (optimizer == "adam")
    assert ("direction" in state.live) == own_direction
    assert ("length" in state.live) == (relatedness == "cosine")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("relatedness", ["uniform", "own"])
def test_a_running_sum_is_constant(optimizer, relatedness):
    params = jax.ShapeDtypeStruct(SHAPE, jnp.float32)
    arguments = dict(relatedness=relatedness, bank="running_sum")
    rows = 3 if optimizer == "adam" else 2
    for capacity in (1, 1000):
        size = tag_optax.state_bytes(OPTIMIZERS[optimizer](5.0, capacity, **arguments), params)
        assert 0 <= size - rows * ROW <= 9 * capacity + 8


def test_bfloat16_halves_the_bank():
    params = jax.ShapeDtypeStruct(SHAPE, jnp.float32)
    whole = tag_optax.state_bytes(tag_optax.tag_rmsprop(5.0, CAPACITY), params)
    half = tag_optax.state_bytes(
        tag_optax.tag_rmsprop(5.0, CAPACITY, bank=tag_optax.full("bfloat16", "bfloat16")), params
    )
    assert 0.49 < half / whole < 0.52
