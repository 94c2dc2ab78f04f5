"""Every method beside every optimizer, and each method against the plainest way to write it."""

import dataclasses
import itertools
import pathlib
import re
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import tag_optax
from train.errors import UserError
from train.methods import ER, EWC, METHODS, OGD, Batch, memory
from train.methods.ewc import batch_fisher, example_fisher
from train.optimizers import OPTIMIZERS
from train.paper.presets import preset
from train.run import batches
from train.run.engine import Engine
from train.run.step import key_of_step
from train.settings import Part

from .conftest import make_stream, with_parts
from .test_step import learn, plain_loss, plain_mlp

pytestmark = pytest.mark.ci

GUIDE = pathlib.Path(__file__).parents[2] / "train/methods/README.md"


def with_method(tiny, method, optimizer="sgd", **settings):
    rate = 0.05 if optimizer.endswith("sgd") else 0.005
    few = dict(directions_per_task=2) if method == "ogd" else {}
    settings = dict(learning_rate=rate, steps_per_call=1) | few | settings
    return with_parts(tiny, method=method, optimizer=optimizer, **settings)


# Every method, and every kind of state that an optimizer keeps. The rest when everything is tested:
# compiling all of them takes minutes.
USUAL = {
    ("ewc", "adagrad"),
    ("ewc", "tag-adam"),
    ("a-gem", "stable-sgd"),
    ("er", "rmsprop"),
    ("ogd", "tag-g"),
    ("multitask", "tag-self"),
}


@pytest.mark.parametrize(
    ("method", "optimizer"),
    [
        pytest.param(*pair, marks=() if pair in USUAL else pytest.mark.slow)
        for pair in itertools.product(METHODS, OPTIMIZERS)
    ],
)
def test_every_method_with_every_optimizer(tiny, tiny_stream, method, optimizer):
    engine = Engine(with_method(tiny, method, optimizer), tiny_stream)
    state, losses = learn(engine)
    assert np.isfinite(losses).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))
    assert engine.scores(state, range(3)).shape == (1, 3)
    assert engine.has_alpha == (optimizer.startswith("tag") and method != "multitask")


@pytest.mark.parametrize(
    "method",
    [
        "ewc",
        "er",
        "ogd",
        *(pytest.param(m, marks=pytest.mark.slow) for m in ("a-gem", "multitask")),
    ],
)
def test_seeds_side_by_side_equal_seeds_alone(tiny, engines, method):
    config = with_method(tiny, method)
    both, losses = learn(engines(config, 2), seeds=(1, 2))
    alone, alone_losses = learn(engines(config), seeds=(2,))
    np.testing.assert_allclose(losses[:, 1], alone_losses[:, 0], rtol=1e-3)
    mine = jax.tree.map(lambda x: x[1], both.params)
    chex.assert_trees_all_close(mine, alone.params, rtol=1e-2, atol=1e-4)
    if method in ("er", "a-gem"):
        np.testing.assert_array_equal(both.memory.y[1], alone.memory.y)


def state_in(engine, task, steps=3):
    """A state after some tasks, and a few steps into the next; and its next batch."""
    state = engine.init((1,))
    for each in range(task + 1):
        for n in range(7 if each < task else steps):
            state, _ = engine.train(state, (1,), each, range(n, n + 1))
        if each < task:
            state = engine.end_task(state, (1,), each)
    return state, next_batch(engine, task, steps)


def next_batch(engine, task, step):
    examples = engine.stream.tasks[task].train
    taken = batches.take({task: examples}, (1,), task, range(step, step + 1), batch_size=4)
    return Batch(*(jnp.asarray(x[0, 0]) for x in taken))


plain_gradient = jax.jit(jax.grad(plain_loss))
plain_loss_and_gradient = jax.jit(jax.value_and_grad(plain_loss))


# EWC


def whole_task(stream, task):
    batch = batches.revisited(stream.tasks[task].train, (1,), task, 26, 0, batch_size=26)
    return Batch(*(jnp.asarray(x[0]) for x in batch))


def brute_force_fisher(params, batch):
    total = jax.tree.map(jnp.zeros_like, params)
    for i in range(len(batch.y)):
        one = jax.tree.map(lambda x, i=i: x[i : i + 1], batch)._replace(weight=jnp.ones(1))
        gradient = plain_gradient(params, one)
        total = jax.tree.map(lambda t, g, i=i: t + batch.weight[i] * g**2, total, gradient)
    return total


def test_fisher_equals_a_loop_over_examples(tiny, engines, tiny_stream):
    engine = engines(with_method(tiny, "ewc"))
    state, _ = state_in(engine, 0)
    batch = whole_task(tiny_stream, 0)
    expected = brute_force_fisher(state.params, batch)
    found = example_fisher(engine.problem, state.params, state.stats, batch)
    chex.assert_trees_all_close(found, expected, rtol=1e-3, atol=1e-8)
    # The authors' kind is another quantity.
    squared = jax.tree.map(jnp.square, plain_gradient(state.params, batch))
    authors = batch_fisher(engine.problem, state.params, state.stats, batch)
    chex.assert_trees_all_close(authors, squared, rtol=1e-3, atol=1e-8)
    assert optax.tree.sum(found) > 1.5 * optax.tree.sum(authors)


@pytest.mark.parametrize(("fisher", "samples"), [("examples", None), ("examples", 5), ("batch", 9)])
def test_ewc_pulls_towards_every_finished_task(tiny, engines, tiny_stream, fisher, samples):
    """The penalty's gradient is lambda sum_s F_s (theta - theta_s), F_s as a loop finds it."""
    config = with_method(
        tiny, "ewc", fisher=fisher, fisher_samples=samples, ewc_lambda=2.0, learning_rate=0.3
    )
    engine = engines(config)
    penalty, state = optax.tree.zeros_like(engine.init((1,)).params), engine.init((1,))
    ends = []
    for task in (0, 1):
        for n in range(7):
            state, _ = engine.train(state, (1,), task, range(n, n + 1))
        count = samples or 26
        batch = batches.revisited(
            tiny_stream.tasks[task].train, (1,), task, count, 0, batch_size=count
        )
        batch = Batch(*(jnp.asarray(x[0]) for x in batch))
        if fisher == "examples":
            found = brute_force_fisher(state.params, batch)
        else:
            mean = plain_gradient(state.params, batch._replace(weight=jnp.ones(count)))
            found = jax.tree.map(jnp.square, mean)
        ends.append((found, jax.tree.map(jnp.copy, state.params)))
        state = engine.end_task(state, (1,), task)
    state, _ = engine.train(state, (1,), 2, range(1))
    for found, end in ends:
        penalty = jax.tree.map(
            lambda p, f, theta, e: p + 2.0 * f * (theta - e), penalty, found, state.params, end
        )
    tx = tag_optax.add_ewc_penalty(2.0)
    added, _ = tx.update(optax.tree.zeros_like(state.params), state.opt_state[0], state.params)
    chex.assert_trees_all_close(added, penalty, rtol=2e-2, atol=1e-6)
    assert optax.tree.norm(penalty) > 1e-4


def test_ewc_keeps_two_copies_whatever_the_number_of_tasks(tiny):
    for tasks in (2, 5):
        state = Engine(with_method(tiny, "ewc"), make_stream(tasks)).shapes()
        carried = sum(leaf.size for leaf in jax.tree.leaves((state.opt_state, state.memory)))
        assert carried == 2 * sum(leaf.size for leaf in jax.tree.leaves(state.params))


# A-GEM and ER


def drawn_in(engine, state, task):
    """What a step draws from its memory."""
    key = jax.random.fold_in(key_of_step(state), 0)
    everything = isinstance(engine.method, ER) and engine.method.replay_current_task
    left_out = memory.NOBODY if everything else task
    return memory.draw(state.memory, key, engine.problem.batch_size, without=left_out)


def gradient_in(engine, state, batch, task):
    return engine.method.gradient(engine.problem, state, batch, jnp.int32(task), key_of_step(state))


@pytest.mark.parametrize("current", [False, True])
def test_er_adds_the_gradient_of_what_it_replays(tiny, engines, current):
    engine = engines(with_method(tiny, "er", memory_per_class=4, replay_current_task=current))
    state, batch = state_in(engine, 1)
    remembered = drawn_in(engine, state, 1)
    found = gradient_in(engine, state, batch, 1)
    expected = jax.tree.map(
        jnp.add,
        plain_gradient(state.params, batch),
        plain_gradient(state.params, remembered),
    )
    chex.assert_trees_all_close(found.grads, expected, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(found.loss, plain_loss(state.params, batch), rtol=1e-5)
    tasks = {
        int(t)
        for seed in range(20)
        for t in drawn_in(engine, state._replace(step=jnp.int32(seed)), 1).task
    }
    assert tasks == ({0, 1} if current else {0})


@pytest.mark.parametrize("method", ["er", "a-gem"])
def test_the_first_task_is_learned_as_without_a_memory(tiny, engines, method):
    engine = engines(with_method(tiny, method))
    state, batch = state_in(engine, 0)
    assert (state.memory.task == 0).any()
    found = gradient_in(engine, state, batch, 0)
    plain = plain_gradient(state.params, batch)
    chex.assert_trees_all_close(found.grads, plain, rtol=1e-3, atol=1e-6)


def test_a_gem_never_steps_against_its_memory(tiny, engines):
    engine = engines(with_method(tiny, "a-gem", memory_per_class=2, learning_rate=0.3))
    tx, against = tag_optax.project_agem(), 0
    gradient = jax.jit(lambda *given: gradient_in(engine, *given))
    state, _ = state_in(engine, 0, 7)
    for task in (1, 2):
        state = engine.end_task(state, (1,), task - 1)
        for n in range(7):
            found = gradient(state, next_batch(engine, task, n), task)
            reference = plain_gradient(state.params, drawn_in(engine, state, task))
            chex.assert_trees_all_close(
                found.extra_args["memory_grad"], reference, rtol=1e-3, atol=1e-6
            )
            projected, _ = tx.update(found.grads, tx.init(state.params), **found.extra_args)
            against += optax.tree.vdot(found.grads, reference) < 0
            scale = optax.tree.norm(found.grads) * optax.tree.norm(reference)
            assert optax.tree.vdot(projected, reference) >= -1e-5 * scale
            before = jax.tree.map(jnp.copy, state.params)
            state, _ = engine.train(state, (1,), task, range(n, n + 1))
            step = optax.tree.sub(state.params, before)
            expected = optax.tree.scale(-0.3, projected)
            chex.assert_trees_all_close(step, expected, rtol=1e-2, atol=1e-6)
    assert against > 0  # Else nothing was tested.


class Normalised(nnx.Module):
    """The least network that keeps running statistics."""

    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(16, momentum=0.9, rngs=rngs)
        self.output = nnx.Linear(16, 6, rngs=rngs)

    def __call__(self, images):
        return self.output(self.norm(images.reshape(-1, 16)))


@pytest.mark.parametrize("twice", [False, True])
def test_what_moves_the_running_statistics_of_a_gem(tiny, engines, twice):
    config = with_method(tiny, "a-gem", memory_per_class=2, statistics_twice=twice)
    engine = engines(dataclasses.replace(config, model=Part("given", Normalised)))
    state, batch = state_in(engine, 1)
    expected = np.asarray(state.stats["norm"]["mean"])
    found = gradient_in(engine, state, batch, 1)
    for seen in [batch, drawn_in(engine, state, 1), batch][: 2 + twice]:
        mean = (np.asarray(seen.x, float) / 255).reshape(-1, 16).mean(axis=0)
        expected = 0.9 * expected + 0.1 * mean
    np.testing.assert_allclose(found.stats["norm"]["mean"], expected, rtol=1e-4)


def test_statistics_that_are_not_there_cannot_be_moved_twice(tiny, tiny_stream):
    with pytest.raises(UserError, match="--statistics-twice needs a network with running stat"):
        Engine(with_method(tiny, "a-gem", statistics_twice=True), tiny_stream)


@pytest.mark.parametrize(("method", "per_class"), [("er", 1), ("er", 4), ("a-gem", 1)])
def test_memories_have_room_for_every_class(tiny, engines, method, per_class):
    state, _ = learn(engines(with_method(tiny, method, memory_per_class=per_class)))
    assert state.memory.y.shape == (6 * per_class,)
    counts = np.bincount(state.memory.y[state.memory.task >= 0], minlength=6)
    if method == "a-gem":
        np.testing.assert_array_equal(counts, per_class)
    else:
        assert counts.sum() == 6 * per_class
        assert state.memory.offered == 3 * 26  # The filling of a last batch is not offered.


# OGD


def test_ogd_leaves_earlier_answers_alone_to_first_order(tiny, engines, tiny_stream):
    engine = engines(with_method(tiny, "ogd"))
    state, _ = state_in(engine, 0, steps=7)
    revisited = batches.revisited(tiny_stream.tasks[0].train, (1,), 0, 2, 0, batch_size=2)

    def logits(params):
        found = plain_mlp(params, revisited.x[0] / 255)
        return found[np.arange(2), revisited.y[0]]

    directions = jax.jacobian(logits)(state.params)
    before = jax.tree.map(jnp.copy, state.params)
    state = engine.end_task(state, (1,), 0)
    assert int(state.opt_state[0].stored[0]) == 2
    state, _ = engine.train(state, (1,), 1, range(1))
    step = optax.tree.sub(state.params, before)
    assert optax.tree.norm(step) > 1e-3
    for i in range(2):
        direction = jax.tree.map(lambda d, i=i: d[i], directions)
        scale = optax.tree.norm(direction) * optax.tree.norm(step)
        assert abs(optax.tree.vdot(direction, step)) < 1e-4 * scale


# Multitask


@pytest.mark.parametrize("order", ["shuffled", "in-turn"])
def test_multitask_equals_a_plain_loop_over_all_data(tiny, engines, tiny_stream, order):
    engine = engines(with_method(tiny, "multitask", multitask_order=order))
    assert engine.steps() == [20]  # 78 examples in batches of 4.
    state, losses = learn(engine)
    params = engine.init((1,)).params
    parts = {number: task.train for number, task in enumerate(tiny_stream.tasks)}
    for n in range(20):
        taken = batches.take(
            parts, (1,), 0, range(n, n + 1), batch_size=4, in_turn=order == "in-turn"
        )
        batch = Batch(*(jnp.asarray(x[0, 0]) for x in taken))
        loss, gradient = plain_loss_and_gradient(params, batch)
        np.testing.assert_allclose(losses[n, 0], loss, rtol=1e-3)
        params = jax.tree.map(lambda p, g: p - 0.05 * g, params, gradient)
    chex.assert_trees_all_close(state.params, params, rtol=1e-2, atol=1e-4)
    assert engine.learned_after(0) == range(3)


# What cannot work


@pytest.mark.parametrize("method", [name for name in METHODS if METHODS[name].needs_earlier_tasks])
def test_one_task_gives_nothing_to_protect(tiny, method):
    kind = type(METHODS[method]).__name__
    with pytest.raises(UserError, match=f"The method {kind} protects earlier tasks, and noise has"):
        Engine(with_method(tiny, method), make_stream(1))


def test_more_directions_than_a_task_has_examples(tiny, tiny_stream):
    with pytest.raises(UserError, match="task 'noise 0' of noise has only 26"):
        Engine(with_method(tiny, "ogd", directions_per_task=27), tiny_stream)


@pytest.mark.parametrize("size", [0, -1])
@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (ER, "memory_per_class"),
        (ER, "memory_batch_size"),
        (EWC, "fisher_samples"),
        (OGD, "directions_per_task"),
    ],
)
def test_sizes_below_one(kind, field, size):
    flag = "--" + field.replace("_", "-")
    with pytest.raises(UserError, match=f"{flag} must be at least 1, and is {size}"):
        kind(**{field: size})


def test_the_papers_settings():
    def of(method, optimizer, stream="split-cifar100"):
        return preset(stream, optimizer, method)

    assert of("a-gem", "sgd", "split-mini-imagenet")["learning_rate"] == 0.1
    assert of("er", "sgd", "split-mini-imagenet")["learning_rate"] == 0.05
    assert of("er", "tag-rmsprop")["learning_rate"] == 5e-4
    assert of("er", "tag-rmsprop", "split-cub")["learning_rate"] == 1e-4
    assert of("a-gem", "tag-rmsprop")["learning_rate"] == 2.5e-4
    assert of("ewc", "rmsprop")["learning_rate"] == 5e-3
    assert of("er", "sgd")["memory_per_class"] == 1


def test_the_example_of_the_guide_is_a_method(tiny, engines, tmp_path, monkeypatch):
    """In a module of its own, outside the package, and named as on the command line."""
    (block,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL)
    (tmp_path / "noisy.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    runs = [learn(engines(with_method(tiny, name)))[0].params for name in ("noisy:Noisy", "naive")]
    monkeypatch.delitem(sys.modules, "noisy")
    distance = optax.tree.norm(optax.tree.sub(*runs))
    assert 1e-6 < distance < 0.1
