"""Cases whose answer is known: one task is plain optax; special directions have a closed form."""

import math

import chex
import hypothesis
import hypothesis.extra.numpy
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tag_optax
from tests.streams import ORDER, RELATEDNESS, SCALE_BY, gradients, run

ONE_TASK = (2,) * 12


def trajectory(tx: optax.GradientTransformation, stream, order):
    updates, _ = run(tx, stream, order)
    return updates


@pytest.mark.parametrize("relatedness", RELATEDNESS)
@pytest.mark.parametrize(
    ("tag", "plain"),
    [
        (
            lambda **kw: tag_optax.tag_rmsprop(5.0, 4, 1e-2, b2=0.95, eps=1e-3, **kw),
            optax.rmsprop(1e-2, decay=0.95, eps=1e-3),
        ),
        (
            lambda **kw: tag_optax.tag_rmsprop(5.0, 4, 1e-2, eps=1e-3, eps_in_sqrt=False, **kw),
            optax.rmsprop(1e-2, decay=0.99, eps=1e-3, eps_in_sqrt=False),
        ),
        (
            lambda **kw: tag_optax.tag_adagrad(5.0, 4, 1e-2, eps=1e-3, **kw),
            optax.adagrad(1e-2, initial_accumulator_value=0.0, eps=1e-3),
        ),
        (
            lambda **kw: tag_optax.tag_adam(
                5.0, 4, 1e-2, b1=0.8, eps=1e-3, eps_in_sqrt=False, **kw
            ),
            optax.adam(1e-2, b1=0.8, eps=1e-3),
        ),
        (
            lambda **kw: tag_optax.tag_rmsprop(5.0, 4, 1e-2, weight_decay=0.1, **kw),
            optax.chain(
                optax.scale_by_rms(decay=0.99),
                optax.add_decayed_weights(0.1),
                optax.scale_by_learning_rate(1e-2),
            ),
        ),
    ],
    ids=["rmsprop", "rmsprop-eps-outside", "adagrad", "adam-eps-outside", "weight-decay"],
)
def test_one_task_is_optax(tag, plain, relatedness):
    stream = gradients(ONE_TASK)
    with jax.numpy_dtype_promotion("standard"):  # optax.adam raises floats to integers.
        expected = trajectory(plain, stream, ONE_TASK)
    chex.assert_trees_all_close(
        trajectory(tag(relatedness=relatedness), stream, ONE_TASK), expected, rtol=1e-12
    )


def test_b_zero_sums_the_second_moments():
    stream = gradients()
    cosine = trajectory(tag_optax.scale_by_tag_rms(0.0, 5), stream, ORDER)
    uniform = trajectory(tag_optax.scale_by_tag_rms(7.0, 5, relatedness="uniform"), stream, ORDER)
    chex.assert_trees_all_close(cosine, uniform, rtol=1e-12)


@pytest.mark.parametrize(
    ("second", "cosine"), [((2.0, 0.0), 1.0), ((-0.5, 0.0), -1.0), ((0.0, 3.0), 0.0)]
)
@pytest.mark.parametrize("relatedness", ["cosine", "first_gradients"])
def test_parallel_opposed_and_orthogonal_tasks(second, cosine, relatedness):
    tx = tag_optax.scale_by_tag_rms(1.5, 2, relatedness=relatedness)
    state = tx.init(jnp.zeros(2))
    _, state = tx.update(jnp.array([1.0, 0.0]), state, task_id=0)
    _, state = tx.update(jnp.array(second), state, task_id=1)
    expected = [math.exp(-1.5 * cosine), math.exp(-1.5)]
    np.testing.assert_allclose(tag_optax.task_weights(state), expected, rtol=1e-12)


def test_weights_by_age():
    tx = tag_optax.scale_by_tag_rms(5.0, 6, relatedness="age")
    state = tx.init(jnp.zeros(2))
    for task in (0, 1, 5, 3):
        _, state = tx.update(jnp.ones(2), state, task_id=task)
    np.testing.assert_array_equal(tag_optax.task_weights(state), [4, 3, 0, 1, 0, 3])


def test_weight_decay_obeys_its_mask_and_the_learning_rate():
    params = {"w": jnp.ones(2), "bias": jnp.ones(2)}
    mask = {"w": True, "bias": False}
    tx = tag_optax.tag_adam(5.0, 2, 0.5, weight_decay=0.1, mask=mask)
    zeros = jax.tree.map(jnp.zeros_like, params)
    updates, _ = tx.update(zeros, tx.init(params), params, task_id=1)
    chex.assert_trees_all_close(updates, {"w": -0.05 * jnp.ones(2), "bias": jnp.zeros(2)})


def test_learning_rate_schedules_count_all_steps():
    schedule = optax.linear_schedule(1.0, 0.0, len(ORDER))
    stream = gradients()
    plain = trajectory(tag_optax.scale_by_tag_rms(5.0, 5), stream, ORDER)
    with jax.numpy_dtype_promotion("standard"):  # So does the schedule.
        scheduled = trajectory(tag_optax.tag_rmsprop(5.0, 5, schedule), stream, ORDER)
    rates = [1 - step / len(ORDER) for step in range(len(ORDER))]
    expected = [
        jax.tree.map(lambda x, r=rate: -r * x, u) for rate, u in zip(rates, plain, strict=True)
    ]
    chex.assert_trees_all_close(scheduled, expected, rtol=1e-6)  # The schedule is in float32.


vectors = hypothesis.extra.numpy.arrays(
    np.float64, (4, 3), elements=st.floats(-10, 10, allow_subnormal=False)
)
tags = {
    name: jax.jit(tag_optax.scale_by_tag_rms(3.0, 6, relatedness=name).update)
    for name in ("cosine", "first_gradients", "uniform", "own")
}


def last_update(gradients_by_task, ids, relatedness="cosine"):
    """The update of the last task after one step of each, and the weights by position."""
    state = tag_optax.scale_by_tag_rms(3.0, 6, relatedness=relatedness).init(jnp.zeros(3))
    for g, task in zip(gradients_by_task, ids, strict=True):
        update, state = tags[relatedness](jnp.asarray(g), state, task_id=jnp.int32(task))
    return np.asarray(update), np.asarray(tag_optax.task_weights(state))[np.array(ids)]


@pytest.mark.parametrize("relatedness", tags)
@hypothesis.given(vectors, st.permutations(range(3)), st.permutations(range(6)))
def test_past_tasks_may_be_permuted_and_renamed(relatedness, g, order, ids):
    plain, _ = last_update(g, range(4), relatedness)
    permuted, _ = last_update(g[[*order, 3]], ids[:4], relatedness)
    np.testing.assert_allclose(permuted, plain, rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("relatedness", ["cosine", "first_gradients"])
@hypothesis.given(vectors)
def test_alpha_stays_in_its_bounds(relatedness, g):
    _, alpha = last_update(g, range(4), relatedness)
    assert np.all(alpha >= math.exp(-3.0) * (1 - 1e-12))
    assert np.all(alpha <= math.exp(3.0) * (1 + 1e-12))


@pytest.mark.parametrize("relatedness", ["cosine", "first_gradients"])
@hypothesis.given(
    hypothesis.extra.numpy.arrays(np.float64, (4, 3), elements=st.floats(0.1, 10)),
    st.sampled_from([-1.0, 1.0]),
    st.floats(1e-6, 1e6),
)
def test_rescaling_a_past_task_leaves_alpha(relatedness, g, sign, scale):
    g = g * np.array([1.0, sign, 1.0])
    _, alpha = last_update(g, range(4), relatedness)
    _, rescaled = last_update(g * np.array([[1.0], [scale], [1.0], [1.0]]), range(4), relatedness)
    np.testing.assert_allclose(rescaled, alpha, rtol=1e-9)


@pytest.mark.parametrize("optimizer", SCALE_BY)
@pytest.mark.parametrize("relatedness", ["uniform", "own"])
def test_a_running_sum_agrees_where_nothing_comes_back(optimizer, relatedness):
    order = (3, 3, 0, 0, 0, 2, 1, 1, 4)
    stream = gradients(order)
    bank = SCALE_BY[optimizer](2.0, 5, relatedness=relatedness)
    running_sum = SCALE_BY[optimizer](2.0, 5, relatedness=relatedness, bank="running_sum")
    chex.assert_trees_all_close(
        trajectory(running_sum, stream, order), trajectory(bank, stream, order), rtol=1e-12
    )


@pytest.mark.parametrize("optimizer", SCALE_BY)
def test_a_running_sum_starts_a_returning_task_afresh(optimizer):
    """Its old share stays in the sum: the return looks like one more task."""
    order, renamed = (0, 0, 1, 0, 0), (0, 0, 1, 2, 2)
    stream = gradients(order)
    tx = SCALE_BY[optimizer](2.0, 3, relatedness="own", bank="running_sum")
    chex.assert_trees_all_close(
        trajectory(tx, stream, order), trajectory(tx, stream, renamed), rtol=1e-12
    )
