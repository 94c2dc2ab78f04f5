"""One step against a plain optax loop, and the same whatever the calls it is packed into."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tag_optax
from train import optimizers
from train.methods import Batch
from train.optimizers import OPTIMIZERS
from train.run import batches
from train.run.engine import Engine
from train.run.step import key_of_step

from .conftest import make_stream, with_parts

pytestmark = pytest.mark.ci


def learn(engine, seeds=(1,), calls=None):
    """A whole stream, without records; returns the state and every loss."""
    state, losses = engine.init(seeds), []
    for task, end in enumerate(engine.steps()):
        for start in range(0, end, calls or engine.steps_per_call):
            steps = range(start, min(start + (calls or engine.steps_per_call), end))
            state, found = engine.train(state, seeds, task, steps)
            losses.append(np.asarray(found.loss))
        state = engine.end_task(state, seeds, task)
    assert engine.traced["train"] == 1
    return state, np.concatenate(losses)


def plain_mlp(params, image):
    x = image.reshape(len(image), -1)
    for name in sorted(params["hidden"]):
        x = jnp.maximum(x @ params["hidden"][name]["kernel"] + params["hidden"][name]["bias"], 0)
    return x @ params["output"]["kernel"] + params["output"]["bias"]


def plain_loss(params, batch):
    """No masks: each example's own logits are sliced out, one example at a time."""

    def loss_of(image, label, task):
        logits = jax.lax.dynamic_slice_in_dim(plain_mlp(params, image[None] / 255)[0], 2 * task, 2)
        return -jax.nn.log_softmax(logits)[label - 2 * task]

    losses = jax.vmap(loss_of)(batch.x, batch.y, batch.task)
    return jnp.sum(losses * batch.weight) / jnp.maximum(jnp.sum(batch.weight), 1)


def plain_loop(stream, params, tx):
    """A training script: jit, grad and optax, and nothing of the engine but which rows it takes."""
    tx = optax.with_extra_args_support(tx)

    @jax.jit
    def step(params, opt_state, batch, task):
        loss, grads = jax.value_and_grad(plain_loss)(params, batch)
        updates, opt_state = tx.update(grads, opt_state, params, task_id=task)
        return optax.apply_updates(params, updates), opt_state, loss

    opt_state, losses = tx.init(params), []
    for number, task in enumerate(stream.tasks):
        for n in range(7):  # 26 examples in batches of 4: the last one has 2.
            rows, weight = batches.positions(1, number, n, sizes=(26,), batch_size=4)
            batch = Batch(*task.train.take(rows), np.full(4, number), weight)
            params, opt_state, loss = step(params, opt_state, batch, np.int32(number))
            losses.append(float(loss))
    return params, losses


TAG = functools.partial(tag_optax.tag_rmsprop, 5.0, 3)
BY_HAND = {
    "sgd": optax.sgd,
    "adagrad": functools.partial(optax.adagrad, initial_accumulator_value=0.0, eps=1e-8),
    "rmsprop": functools.partial(optax.rmsprop, decay=0.99, eps=1e-8, eps_in_sqrt=True),
    "adam": functools.partial(optax.adam, eps=0.0, eps_root=1e-8),
    "stable-sgd": optax.sgd,  # With a decay of 1.
    "tag-rmsprop": TAG,
    "tag-adagrad": functools.partial(tag_optax.tag_adagrad, 5.0, 3),
    "tag-adam": functools.partial(tag_optax.tag_adam, 5.0, 3),
    "tag-uniform": functools.partial(TAG, relatedness="uniform"),
    "tag-age": functools.partial(TAG, relatedness="age"),
    "tag-g": functools.partial(TAG, relatedness="first_gradients"),
    "tag-self": functools.partial(TAG, relatedness="own"),
    "tag-anchored": functools.partial(
        tag_optax.tag_rmsprop, 7.0, 3, relatedness="own", bank="running_sum", anchor=10.0
    ),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_name_is_the_optimizer_that_it_says(optimizer):
    """Step by step what optax, or the library, does under that name."""
    ours = optimizers.make(OPTIMIZERS[optimizer], 3)
    theirs = optax.with_extra_args_support(BY_HAND[optimizer](OPTIMIZERS[optimizer].learning_rate))
    params = jnp.ones(3)
    states = [tx.init(params) for tx in (ours, theirs)]
    for task, gradient in enumerate(([1.0, -2.0, 0.5], [0.5, 1.0, 0.0])):
        found = []
        for i, tx in enumerate((ours, theirs)):
            update, states[i] = tx.update(jnp.array(gradient), states[i], params, task_id=task)
            found.append(update)
        np.testing.assert_allclose(*found, rtol=1e-6)
    assert optimizers.keeps_tasks(states[0]) == optimizer.startswith("tag")


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(name, marks=() if name in ("sgd", "adam", "tag-rmsprop") else pytest.mark.slow)
        for name in OPTIMIZERS
    ],
)
def test_every_optimizer_learns_as_in_a_plain_loop(tiny, engines, tiny_stream, optimizer):
    rate = 0.05 if optimizer.endswith("sgd") else 0.005
    engine = engines(with_parts(tiny, optimizer=optimizer, learning_rate=rate, steps_per_call=1))
    state, losses = learn(engine)
    params, expected = plain_loop(
        tiny_stream, engine.init((1,)).params, BY_HAND[optimizer](learning_rate=rate)
    )
    np.testing.assert_allclose(losses[:, 0], expected, rtol=2e-4)
    # But for rounding: the engine's step also looks whether it is finite, and so is compiled to
    # other sums of the same numbers.
    chex.assert_trees_all_close(state.params, params, rtol=1e-4, atol=1e-5)
    assert losses[4:7].mean() < losses[:3].mean()
    assert engine.has_alpha == optimizer.startswith("tag")
    if engine.has_alpha:
        assert (np.asarray(state.alpha_sum) > 0).all()


def test_packing_steps_into_calls_changes_nothing_but_rounding(tiny, engines):
    results = [learn(engines(tiny.changed({"steps_per_call": n}))) for n in (1, 2)]
    (one, losses), (two, packed) = results
    np.testing.assert_allclose(losses, packed, rtol=1e-5)
    chex.assert_trees_all_close(one.params, two.params, rtol=1e-4, atol=1e-6)


def test_shorter_calls_of_one_program_are_equal_to_the_bit(tiny, engines):
    """A stop or a checkpoint may come at any step."""
    engine = engines(tiny.changed({"steps_per_call": 2}))
    whole, losses = learn(engine)
    single, single_losses = learn(engine, calls=1)
    np.testing.assert_array_equal(losses, single_losses)
    chex.assert_trees_all_equal(whole, single)


def test_seeds_side_by_side_equal_seeds_alone(tiny, engines):
    config = tiny.changed({"steps_per_call": 2})
    both, losses = learn(engines(config, 2), seeds=(1, 2))
    for position, seed in enumerate((1, 2)):
        alone, alone_losses = learn(engines(config), seeds=(seed,))
        np.testing.assert_allclose(losses[:, position], alone_losses[:, 0], rtol=1e-4)
        mine = engines(config, 2).split(both, position)
        chex.assert_trees_all_close(mine.params, alone.params, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(mine.alpha_sum, alone.alpha_sum, rtol=1e-3)


def test_states_are_split_and_joined_to_the_bit(tiny, engines):
    engine = engines(tiny.changed({"steps_per_call": 2}), 2)
    state, _ = learn(engine, seeds=(1, 2))
    parts = [engine.split(state, index) for index in (0, 1)]
    assert jax.tree.map(jnp.shape, parts[0]) == jax.tree.map(jnp.shape, engine.shapes())
    chex.assert_trees_all_equal(engine.join(parts), state)


@pytest.mark.parametrize("num_seeds", [1, 2])
def test_one_compilation_for_a_stream(tiny, engines, num_seeds):
    engine = engines(tiny.changed({"steps_per_call": 2}), num_seeds)
    state, _ = learn(engine, seeds=tuple(range(num_seeds)))
    engine.scores(state, range(3))
    assert engine.traced == {"train": 1, "evaluate": 1}


def test_the_state_is_donated(tiny, engines):
    engine = engines(tiny.changed({"steps_per_call": 1}))
    before = engine.init((1,))
    engine.train(before, (1,), 0, range(1))
    donated = [leaf.is_deleted() for leaf in jax.tree.leaves(before.opt_state)]
    assert all(donated)


def test_other_heads_do_not_move(tiny, engines):
    engine = engines(with_parts(tiny, optimizer="sgd", learning_rate=0.05, steps_per_call=1))
    state = engine.init((1,))
    before = np.asarray(state.params["output"]["kernel"])
    for n in range(7):
        state, _ = engine.train(state, (1,), 1, range(n, n + 1))
    moved = np.abs(np.asarray(state.params["output"]["kernel"] - before)).max(axis=0) > 0
    assert moved.tolist() == [False, False, True, True, False, False]


def test_accuracies_are_counted_right(tiny, engines, tiny_stream):
    engine = engines(tiny.changed({"steps_per_call": 2}))
    state, _ = learn(engine)
    found = engine.scores(state, range(3))
    for number, task in enumerate(tiny_stream.tasks):
        images, labels = task.test.take(np.arange(9))
        logits = plain_mlp(state.params, images / 255)[:, task.classes.start : task.classes.stop]
        right = np.argmax(logits, axis=1) + task.classes.start == labels
        assert found[0, number] == right.mean()


def test_weights_are_added_up_anew_for_each_task(tiny, engines):
    engine = engines(tiny.changed({"steps_per_call": 1}))
    state = engine.init((1,))
    for task in range(3):
        total = np.zeros(3)
        for step in range(7):
            state, _ = engine.train(state, (1,), task, range(step, step + 1))
            total += np.asarray(tag_optax.task_weights(state.opt_state))
        np.testing.assert_allclose(state.alpha_sum, total, rtol=1e-6)
        assert (total > 0).tolist() == [s <= task for s in range(3)]


def test_leaf_scope_gives_mean_weights(tiny, engines):
    engine = engines(tiny.changed({"alpha_scope": "leaf", "steps_per_call": 1}))
    state, _ = engine.train(engine.init((1,)), (1,), 0, range(1))
    state, _ = engine.train(state, (1,), 1, range(1))
    leaves = jax.tree.leaves(tag_optax.task_weights(state.opt_state))
    np.testing.assert_allclose(state.alpha_sum, np.mean(leaves, axis=0), rtol=1e-6)


@pytest.fixture(scope="module")
def dropping(tiny):
    """With dropout, and so few examples that all batches of a task have the same."""
    config = with_parts(tiny, optimizer="sgd", dropout=0.5, steps_per_call=1)
    return Engine(config, make_stream(train=4))


def test_dropout_differs_between_steps(dropping):
    def loss_at(step):
        state = dropping.init((1,))._replace(step=jnp.int32(step))
        return dropping.train(state, (1,), 0, range(1))[1].loss

    assert loss_at(0) == loss_at(0)
    assert loss_at(5) != loss_at(0)


def test_a_count_that_wraps_still_gives_new_keys(dropping):
    state = dropping.init((1,))._replace(step=jnp.int32(np.iinfo(np.int32).max - 1))
    keys = []
    for step in range(4):
        keys.append(tuple(np.asarray(jax.random.key_data(key_of_step(state)))))
        state, losses = dropping.train(state, (1,), 0, range(step, step + 1))
        assert np.isfinite(losses).all()
    assert len(set(keys)) == 4


# Optimizers by themselves.


def test_stable_sgd_decays_by_task_to_its_floor():
    tx = optimizers.StableSGD(learning_rate=0.1, decay=0.9)(101)
    steps = [
        -float(tx.update(jnp.ones(()), tx.init(jnp.ones(())), task_id=jnp.int32(t))[0])
        for t in (0, 1, 100)
    ]
    np.testing.assert_allclose(steps, [0.1 * 0.9, 0.1 * 0.9**2, 5e-5], rtol=1e-6)


@pytest.mark.parametrize("kind", [optimizers.SGD, optimizers.StableSGD])
def test_momentum_keeps_a_share_of_the_last_step(kind):
    tx = optimizers.make(kind(learning_rate=0.1, momentum=0.8), 1)
    state = tx.init(jnp.zeros(()))
    for expected in (-0.1, -0.18, -0.244):
        step, state = tx.update(jnp.ones(()), state, task_id=0)
        np.testing.assert_allclose(step, expected, rtol=1e-6)


@pytest.mark.parametrize("eps_in_sqrt", [True, False])
def test_adam_places_eps_as_told(eps_in_sqrt):
    tx = optimizers.Adam(learning_rate=1.0, eps=0.5, eps_in_sqrt=eps_in_sqrt)(1)
    gradient = jnp.float32(3.0)
    update, _ = tx.update(gradient, tx.init(gradient))
    root = np.sqrt(9 + 0.5) if eps_in_sqrt else 3 + 0.5
    np.testing.assert_allclose(update, -3 / root, rtol=1e-5)
