"""One step against a plain optax loop, and the same whatever the calls it is packed into."""

import dataclasses
import typing

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tag_optax
from train import optimizers
from train.run import batches
from train.run.config import Config, OptimizerName, preset
from train.run.engine import Engine
from train.run.state import key_of_step

from .conftest import make_stream


def learn(engine, seeds=(1,), calls=None):
    """A whole stream, without records; returns the state and every loss."""
    state, losses = engine.init(seeds), []
    for task, end in enumerate(engine.steps()):
        for start in range(0, end, calls or engine.steps_per_call):
            steps = range(start, min(start + (calls or engine.steps_per_call), end))
            state, found = engine.train(state, seeds, task, steps)
            losses.append(np.asarray(found.loss))
        state = engine.end_stage(state, seeds, task)
    return state, np.concatenate(losses)


def plain_mlp(params, image):
    x = image.reshape(len(image), -1)
    for name in sorted(params["hidden"]):
        x = jnp.maximum(x @ params["hidden"][name]["kernel"] + params["hidden"][name]["bias"], 0)
    return x @ params["output"]["kernel"] + params["output"]["bias"]


@pytest.mark.parametrize("optimizer", ["sgd", "rmsprop", "tag-rmsprop", "tag-adam"])
def test_a_stream_equals_a_plain_loop(tiny, tiny_stream, optimizer):
    """No engine, no masks: each task's own logits are sliced out, and optax does the rest."""
    config = dataclasses.replace(tiny, optimizer=optimizer)
    engine = Engine(config, tiny_stream)
    state, losses = learn(engine)

    tx = {
        "sgd": optax.sgd(1e-3),
        "rmsprop": optax.rmsprop(1e-3, decay=0.99, eps=1e-8, eps_in_sqrt=True),
        "tag-rmsprop": tag_optax.tag_rmsprop(5.0, 3, 1e-3),
        "tag-adam": tag_optax.tag_adam(5.0, 3, 1e-3, b2=0.99),
    }[optimizer]
    tx = optax.with_extra_args_support(tx)
    params = engine.init((1,)).params
    opt_state, expected = tx.init(params), []
    for number, task in enumerate(tiny_stream.tasks):

        def loss_of(params, images, labels, task=task):
            logits = plain_mlp(params, images)[:, task.classes.start : task.classes.stop]
            picked = jax.nn.log_softmax(logits)[np.arange(len(labels)), labels - task.classes.start]
            return -jnp.mean(picked)

        for step in range(7):  # 26 examples in batches of 4: the last one has 2.
            rows, weight = batches.positions(1, number, step, sizes=(26,), batch_size=4)
            images, labels = task.train.take(rows[weight == 1])
            loss, grads = jax.value_and_grad(loss_of)(params, images / 255, labels)
            updates, opt_state = tx.update(grads, opt_state, params, task_id=number)
            params = optax.apply_updates(params, updates)
            expected.append(float(loss))
    np.testing.assert_allclose(losses[:, 0], expected, rtol=2e-4)
    chex.assert_trees_all_close(state.params, params, rtol=2e-3, atol=2e-5)


def test_packing_steps_into_calls_changes_nothing_but_rounding(tiny, tiny_stream):
    results = [
        learn(Engine(dataclasses.replace(tiny, steps_per_call=count), tiny_stream))
        for count in (1, 3, 50)
    ]
    for state, losses in results[1:]:
        np.testing.assert_allclose(losses, results[0][1], rtol=1e-5)
        chex.assert_trees_all_close(state.params, results[0][0].params, rtol=1e-4, atol=1e-6)


def test_shorter_calls_of_one_program_are_equal_to_the_bit(tiny, tiny_stream):
    """A stop or a checkpoint may come at any step."""
    engine = Engine(dataclasses.replace(tiny, steps_per_call=4), tiny_stream)
    whole, losses = learn(engine)
    single, single_losses = learn(engine, calls=1)
    np.testing.assert_array_equal(losses, single_losses)
    chex.assert_trees_all_equal(whole, single)


def test_seeds_side_by_side_equal_seeds_alone(tiny, tiny_stream):
    both, losses = learn(Engine(tiny, tiny_stream, num_seeds=2), seeds=(1, 2))
    engine = Engine(tiny, tiny_stream)
    for position, seed in enumerate((1, 2)):
        alone, alone_losses = learn(engine, seeds=(seed,))
        np.testing.assert_allclose(losses[:, position], alone_losses[:, 0], rtol=1e-4)
        mine = jax.tree.map(lambda x, i=position: x[i], both.params)
        chex.assert_trees_all_close(mine, alone.params, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(both.alpha_sum[position], alone.alpha_sum, rtol=1e-3)


@pytest.mark.parametrize("num_seeds", [1, 2])
def test_one_compilation_for_a_stream(tiny, tiny_stream, num_seeds):
    engine = Engine(tiny, tiny_stream, num_seeds)
    state, _ = learn(engine, seeds=tuple(range(num_seeds)))
    engine.accuracies(state, range(3))
    assert engine.traced == {"train": 1, "evaluate": 1}


def test_the_state_is_donated(tiny, tiny_stream):
    engine = Engine(tiny, tiny_stream)
    before = engine.init((1,))
    engine.train(before, (1,), 0, range(1))
    donated = [leaf.is_deleted() for leaf in jax.tree.leaves(before.opt_state)]
    assert all(donated)


def test_other_heads_do_not_move(tiny, tiny_stream):
    engine = Engine(dataclasses.replace(tiny, optimizer="sgd", learning_rate=0.1), tiny_stream)
    before = engine.init((1,)).params["output"]["kernel"]
    state, _ = engine.train(engine.init((1,)), (1,), 1, range(7))
    moved = np.abs(np.asarray(state.params["output"]["kernel"] - before)).max(axis=0) > 0
    assert moved.tolist() == [False, False, True, True, False, False]


def test_accuracies_are_counted_right(tiny, tiny_stream):
    engine = Engine(tiny, tiny_stream)
    state, _ = learn(engine)
    found = engine.accuracies(state, range(3))
    for number, task in enumerate(tiny_stream.tasks):
        images, labels = task.test.take(np.arange(9))
        logits = plain_mlp(state.params, images / 255)[:, task.classes.start : task.classes.stop]
        right = np.argmax(logits, axis=1) + task.classes.start == labels
        assert found[0, number] == right.mean()


def test_alpha_is_averaged_over_steps(tiny, tiny_stream):
    engine = Engine(dataclasses.replace(tiny, steps_per_call=1), tiny_stream)
    state, total = engine.init((1,)), np.zeros((3, 3))
    for task in range(3):
        for step in range(7):
            state, _ = engine.train(state, (1,), task, range(step, step + 1))
            total[task] += np.asarray(tag_optax.task_weights(state.opt_state))
    np.testing.assert_allclose(state.alpha_sum, total, rtol=1e-6)
    assert (total[np.tril_indices(3)] > 0).all()
    assert (total[np.triu_indices(3, 1)] == 0).all()


def test_leaf_scope_gives_mean_weights(tiny, tiny_stream):
    config = dataclasses.replace(tiny, alpha_scope="leaf", steps_per_call=1)
    engine = Engine(config, tiny_stream)
    state, _ = engine.train(engine.init((1,)), (1,), 0, range(1))
    state, _ = engine.train(state, (1,), 1, range(1))
    leaves = jax.tree.leaves(tag_optax.task_weights(state.opt_state))
    np.testing.assert_allclose(state.alpha_sum[1], np.mean(leaves, axis=0), rtol=1e-6)


@pytest.mark.parametrize("optimizer", typing.get_args(OptimizerName))
def test_every_optimizer_learns(tiny, tiny_stream, optimizer):
    rate = 0.05 if optimizer.endswith("sgd") else 0.01
    config = dataclasses.replace(tiny, optimizer=optimizer, learning_rate=rate, epochs=4)
    engine = Engine(config, tiny_stream)
    state, losses = learn(engine)
    assert losses[21:28].mean() < losses[:7].mean()  # The last pass over task 1, and the first.
    assert (np.asarray(state.alpha_sum[2]) > 0).all() == engine.has_alpha


def test_dropout_differs_between_steps_and_seeds(tiny):
    stream = make_stream(train=4)
    config = dataclasses.replace(tiny, dropout=0.5, optimizer="sgd", steps_per_call=1)
    engine = Engine(config, stream)
    first = engine.init((1,))
    again = engine.train(engine.init((1,)), (1,), 0, range(1))[1].loss
    assert engine.train(first, (1,), 0, range(1))[1].loss == again
    later = engine.init((1,))._replace(step=jnp.int32(5))
    assert engine.train(later, (1,), 0, range(1))[1].loss != again


def test_stable_sgd_decays_by_task_to_its_floor():
    config = dataclasses.replace(preset("split-cifar100", "stable-sgd"), learning_rate=0.1)
    tx = optimizers.make(config)
    steps = [
        -float(tx.update(jnp.ones(()), tx.init(jnp.ones(())), task_id=jnp.int32(t))[0])
        for t in (0, 1, 100)
    ]
    np.testing.assert_allclose(steps, [0.1 * 0.9, 0.1 * 0.9**2, 5e-5], rtol=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "stable-sgd"])
def test_momentum_keeps_a_share_of_the_last_step(optimizer):
    config = Config(optimizer=optimizer, learning_rate=0.1, momentum=0.8, decay=1.0)
    tx = optimizers.make(config)
    state = tx.init(jnp.zeros(()))
    for expected in (-0.1, -0.18, -0.244):
        step, state = tx.update(jnp.ones(()), state, task_id=0)
        np.testing.assert_allclose(step, expected, rtol=1e-6)


@pytest.mark.parametrize("eps_in_sqrt", [True, False])
def test_adam_places_eps_as_told(eps_in_sqrt):
    config = Config(optimizer="adam", learning_rate=1.0, eps=0.5, eps_in_sqrt=eps_in_sqrt)
    tx = optimizers.make(config)
    gradient = jnp.float32(3.0)
    update, _ = tx.update(gradient, tx.init(gradient), task_id=0)
    root = np.sqrt(9 + 0.5) if eps_in_sqrt else 3 + 0.5
    np.testing.assert_allclose(update, -3 / root, rtol=1e-5)


def test_a_count_that_wraps_still_gives_new_keys(tiny, tiny_stream):
    engine = Engine(dataclasses.replace(tiny, dropout=0.5), tiny_stream)
    state = engine.init((1,))._replace(step=jnp.int32(np.iinfo(np.int32).max - 1))
    keys = []
    for step in range(4):
        keys.append(tuple(np.asarray(jax.random.key_data(key_of_step(state)))))
        state, losses = engine.train(state, (1,), 0, range(step, step + 1))
        assert np.isfinite(losses).all()
    assert len(set(keys)) == 4
