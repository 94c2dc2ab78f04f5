"""EWC, A-GEM and OGD as gradient transformations."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tag_optax
from tests.streams import gradients

pytestmark = pytest.mark.ci


def flat(tree) -> np.ndarray:
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])


def test_ewc_is_the_gradient_of_the_sum_of_all_penalties():
    points, fishers = gradients(range(4)), gradients(range(4), seed=1)
    fishers = [jax.tree.map(np.square, f) for f in fishers]
    fishers[0] = jax.tree.map(np.zeros_like, fishers[0])  # A task that found nothing important.
    tx = tag_optax.add_ewc_penalty(3.0)
    state = tx.init(points[0])
    for point, fisher in zip(points[:3], fishers, strict=False):
        state = tag_optax.consolidate_ewc(state, point, fisher)

    def penalty(params):
        total = jnp.zeros(())
        for point, fisher in zip(points[:3], fishers, strict=False):
            terms = jax.tree.map(lambda f, p, q: jnp.sum(f * (p - q) ** 2), fisher, params, point)
            total += 1.5 * sum(jax.tree.leaves(terms))
        return total

    params, gradient = jax.tree.map(jnp.asarray, (points[3], gradients(range(1), seed=2)[0]))
    updates, _ = jax.jit(tx.update)(gradient, state, params)
    expected = jax.tree.map(jnp.add, gradient, jax.grad(penalty)(params))
    chex.assert_trees_all_close(updates, expected, rtol=1e-12)


def test_ewc_costs_two_copies_whatever_the_tasks():
    params = jnp.zeros(1000, jnp.float32)
    assert tag_optax.state_bytes(tag_optax.add_ewc_penalty(1.0), params) == 2 * params.nbytes


def test_ewc_in_a_masked_chain():
    params = {"w": jnp.ones(2), "frozen": jnp.ones(3)}
    mask = {"w": True, "frozen": False}
    tx = optax.masked(optax.chain(tag_optax.add_ewc_penalty(2.0), optax.scale(1.0)), mask)
    state = tag_optax.consolidate_ewc(tx.init(params), params, params)
    moved = jax.tree.map(lambda p: p + 1, params)
    zeros = jax.tree.map(jnp.zeros_like, params)
    updates, _ = tx.update(zeros, state, moved)
    chex.assert_trees_all_close(updates, {"w": 2 * jnp.ones(2), "frozen": jnp.zeros(3)})
    with pytest.raises(ValueError, match=r"lacks the leaves \['w'\]"):
        tag_optax.consolidate_ewc(state, {"frozen": params["frozen"]}, params)


def test_ewc_errors():
    tx = tag_optax.add_ewc_penalty(1.0)
    with pytest.raises(ValueError, match="pass params to update"):
        tx.update(jnp.ones(2), tx.init(jnp.ones(2)))
    with pytest.raises(ValueError, match="holds no AddEwcPenaltyState"):
        tag_optax.consolidate_ewc(optax.EmptyState(), jnp.ones(2), jnp.ones(2))


@pytest.mark.parametrize("seed", range(20))
def test_agem_never_points_against_the_memory(seed):
    g, memory = gradients((1, 2), seed=seed)
    tx = tag_optax.project_agem()
    updates, _ = jax.jit(tx.update)(g, tx.init(g), memory_grad=memory)
    before, after = flat(g) @ flat(memory), flat(updates) @ flat(memory)
    if before >= 0:
        chex.assert_trees_all_equal(updates, g)
    else:
        np.testing.assert_allclose(after, 0, atol=1e-12)
        expected = flat(g) - before / (flat(memory) @ flat(memory)) * flat(memory)
        np.testing.assert_allclose(flat(updates), expected, rtol=1e-12)


def test_agem_without_a_memory():
    g = gradients((1,))[0]
    tx = tag_optax.project_agem()
    for memory in (None, jax.tree.map(np.zeros_like, g)):
        updates, _ = tx.update(g, tx.init(g), memory_grad=memory)
        chex.assert_trees_all_equal(updates, g)
    with pytest.raises(TypeError, match="memory_grad"):
        tx.update(g, tx.init(g))


def test_ogd_is_orthogonal_to_everything_stored():
    directions = gradients(range(6))
    tx = tag_optax.project_orthogonal(2, task_capacity=3)
    state = tx.init(directions[0])
    store = jax.jit(lambda s, d, t: tag_optax.store_direction(s, d, task_id=t))
    for i, direction in enumerate(directions):
        state = store(state, direction, jnp.int32(i // 2))
    np.testing.assert_array_equal(state.stored, [2, 2, 2])
    g = gradients((0,), seed=9)[0]
    updates, _ = jax.jit(tx.update)(g, state)
    basis = np.stack([flat(d) for d in directions])
    np.testing.assert_allclose(basis @ flat(updates), 0, atol=1e-12)
    least_squares = flat(g) - basis.T @ np.linalg.lstsq(basis.T, flat(g), rcond=None)[0]
    np.testing.assert_allclose(flat(updates), least_squares, atol=1e-12)


def test_ogd_stays_orthonormal_in_float32():
    """200 nearly parallel directions, the case where plain Gram-Schmidt fails."""
    rng = np.random.default_rng(0)
    common = rng.normal(size=500)
    tx = tag_optax.project_orthogonal(200, task_capacity=1)
    state = tx.init(jnp.zeros(500, jnp.float32))
    store = jax.jit(lambda s, d: tag_optax.store_direction(s, d, task_id=0), donate_argnums=0)
    for _ in range(200):
        direction = jnp.asarray(common + 1e-3 * rng.normal(size=500), jnp.float32)
        state = store(state, direction)
    rows = np.asarray(state.basis, np.float64)
    assert state.stored[0] == 200
    np.testing.assert_allclose(rows @ rows.T, np.eye(200), atol=2e-5)


def test_ogd_refuses_what_it_cannot_use():
    tx = tag_optax.project_orthogonal(1, task_capacity=2)
    one, other = jnp.array([1.0, 0.0, 0.0]), jnp.array([0.0, 1.0, 0.0])
    state = tag_optax.store_direction(tx.init(one), one, task_id=0)
    for direction, task in ((other, 0), (2 * one, 1), (0 * one, 1)):  # Full, known, nothing.
        after = tag_optax.store_direction(state, direction, task_id=task)
        chex.assert_trees_all_equal(after, state)
    store = jax.jit(lambda s, t: tag_optax.store_direction(s, other, task_id=t))
    for bad in (-1, 2):
        chex.assert_trees_all_equal(store(state, jnp.int32(bad)), state)
        with pytest.raises(ValueError, match=f"task_id={bad}"):
            tag_optax.store_direction(state, other, task_id=bad)
    with pytest.raises(ValueError, match="directions_per_task=0 must be"):
        tag_optax.project_orthogonal(0, task_capacity=2)
    with pytest.raises(ValueError, match="holds no ProjectOrthogonalState"):
        tag_optax.store_direction(optax.EmptyState(), one, task_id=0)


def test_ogd_grows():
    directions = gradients(range(4))
    small, large = (tag_optax.project_orthogonal(1, capacity) for capacity in (2, 4))
    state, expected = small.init(directions[0]), large.init(directions[0])
    for task in (0, 1):
        state = tag_optax.store_direction(state, directions[task], task_id=task)
        expected = tag_optax.store_direction(expected, directions[task], task_id=task)
    with pytest.raises(ValueError, match=r"task_id=3 .*grow\(opt_state, 4\)"):
        tag_optax.store_direction(state, directions[3], task_id=3)
    state = tag_optax.grow(state, 4)
    state = tag_optax.store_direction(state, directions[3], task_id=3)
    expected = tag_optax.store_direction(expected, directions[3], task_id=3)
    chex.assert_trees_all_close(state, expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_companions_keep_dtypes(dtype):
    params = {"w": jnp.ones((2, 2), dtype), "s": jnp.ones((), dtype)}
    tx = optax.chain(
        tag_optax.add_ewc_penalty(1.0),
        tag_optax.project_agem(),
        tag_optax.project_orthogonal(1, 2),
        tag_optax.tag_rmsprop(5.0, 2),
    )
    state = tx.init(params)
    state = tag_optax.consolidate_ewc(state, params, params)
    state = tag_optax.store_direction(state, params, task_id=0)
    updates, after = tx.update(params, state, params, task_id=0, memory_grad=params)
    chex.assert_trees_all_equal_dtypes(updates, params)
    chex.assert_trees_all_equal_shapes_and_dtypes(after, state)
