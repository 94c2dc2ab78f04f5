"""Exactness: against a plain numpy transcription, and against the authors' own trajectories."""

import pathlib

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tag_optax
from tests.reference import NumpyTag
from tests.streams import ORDER, RELATEDNESS, SCALE_BY, gradients, related, run

FIXTURES = pathlib.Path(__file__).parents[2] / "shared" / "fixtures"


@pytest.mark.parametrize("relatedness", RELATEDNESS)
@pytest.mark.parametrize("eps_in_sqrt", [True, False])
@pytest.mark.parametrize("scope", ["global", "leaf"])
@pytest.mark.parametrize("optimizer", SCALE_BY)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-5)])
def test_equals_numpy(optimizer, scope, eps_in_sqrt, relatedness, dtype, tolerance):
    arguments = dict(
        eps=1e-4,  # Large enough that its place matters.
        eps_in_sqrt=eps_in_sqrt,
    )
    b2 = {"adam": 0.999, "rms": 0.99, "adagrad": 0.0}[optimizer]
    reference = NumpyTag(
        optimizer, b=2.0, b2=b2, scope=scope, relatedness=relatedness, count=2, **arguments
    )
    arguments["relatedness"] = related(relatedness, scope, 2)
    stream = gradients(dtype=dtype)
    updates, state = run(SCALE_BY[optimizer](2.0, 5, **arguments), stream)
    for step, (g, task, update) in enumerate(zip(stream, ORDER, updates, strict=True)):
        expected = reference.update(g, task)
        for name in g:
            assert update[name].dtype == dtype
            np.testing.assert_allclose(
                update[name],
                expected[name],
                rtol=tolerance,
                atol=tolerance,
                err_msg=f"{step} {name}",
            )
    weights = tag_optax.task_weights(state)
    weights = weights["head"] if isinstance(weights, dict) else weights
    expected = [reference.alpha.get(task, 0.0) for task in range(5)]
    np.testing.assert_allclose(weights, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("count", [1, 3, 100])
def test_first_gradients_of_any_number(count):
    reference = NumpyTag("rms", b=3.0, relatedness="first_gradients", count=count)
    stream = gradients()
    tx = tag_optax.scale_by_tag_rms(3.0, 5, relatedness=tag_optax.first_gradients(count))
    updates, _ = run(tx, stream)
    expected = [reference.update(g, task) for g, task in zip(stream, ORDER, strict=True)]
    chex.assert_trees_all_close(updates, expected, rtol=1e-12)


@pytest.mark.parametrize("capacity", [4, 5, 40])
@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("scope", ["global", "leaf"])
def test_both_ways_to_read_the_bank(capacity, split, scope):
    """Capacity 40 only ever loops over rows; 4 mostly multiplies; all must agree."""
    stream = gradients()
    reference = NumpyTag("rms", b=2.0, scope=scope)
    tx = tag_optax.scale_by_tag_rms(
        2.0, capacity, relatedness=tag_optax.cosine(scope), bank=tag_optax.full(split=split)
    )
    updates, _ = run(tx, stream)
    expected = [reference.update(g, task) for g, task in zip(stream, ORDER, strict=True)]
    chex.assert_trees_all_close(updates, expected, rtol=1e-12)


@pytest.mark.parametrize("optimizer", SCALE_BY)
def test_authors_trajectories(optimizer):
    path = FIXTURES / f"fixture_{optimizer}.npz"
    if not path.exists():
        pytest.skip("the authors' trajectories are not beside the checkout")
    with np.load(path) as fixture:
        arrays = dict(fixture)
    names = ("a", "b", "c")
    params = {name: jnp.asarray(arrays[f"init_{name}"]) for name in names}
    arguments = dict(b1=float(arrays["beta1"]), eps=float(arrays["eps"]))
    if optimizer != "adagrad":
        arguments["b2"] = float(arrays["beta2"])
    rescale = SCALE_BY[optimizer](
        float(arrays["b"]),
        int(arrays["n_tasks"]),
        relatedness=tag_optax.cosine(scope="leaf"),
        eps_in_sqrt=False,
        **arguments,
    )
    tx = optax.chain(rescale, optax.scale_by_learning_rate(float(arrays["lr"])))
    state = tx.init(params)
    update = jax.jit(tx.update)
    for task in range(int(arrays["n_tasks"])):
        for step in range(int(arrays["n_steps"])):
            g = {name: jnp.asarray(arrays[f"grads_{name}"][task, step]) for name in names}
            updates, state = update(g, state, params, task_id=task)
            params = optax.apply_updates(params, updates)
            weights = tag_optax.task_weights(state)
            for name in names:
                expected = arrays[f"params_{name}"][task, step]
                np.testing.assert_allclose(params[name], expected, rtol=1e-5, atol=1e-6)
                alpha = np.nan_to_num(arrays[f"alpha_{name}"][task, step])[: task + 1]
                np.testing.assert_allclose(weights[name][: task + 1], alpha, rtol=1e-5)


@pytest.mark.parametrize("scope", ["tensor", "global"])
@pytest.mark.parametrize("place", ["inside", "outside"])
@pytest.mark.parametrize("optimizer", SCALE_BY)
def test_float64_trajectories(optimizer, scope, place):
    path = FIXTURES / f"fixture_{optimizer}.npz"
    if not path.exists():
        pytest.skip("the authors' trajectories are not beside the checkout")
    with np.load(path) as fixture:
        arrays = dict(fixture)
    names = ("a", "b", "c")
    as64 = {k: jnp.asarray(x, jnp.float64) for k, x in arrays.items() if x.dtype == np.float32}
    params = {name: as64[f"init_{name}"] for name in names}
    tx = optax.chain(
        SCALE_BY[optimizer](
            5.0,
            3,
            relatedness=tag_optax.cosine("leaf" if scope == "tensor" else "global"),
            eps_in_sqrt=place == "inside",
        ),
        optax.scale_by_learning_rate(float(arrays["lr"])),
    )
    state = tx.init(params)
    update = jax.jit(tx.update)
    for task in range(3):
        for step in range(int(arrays["n_steps"])):
            g = {name: as64[f"grads_{name}"][task, step] for name in names}
            updates, state = update(g, state, params, task_id=task)
            params = optax.apply_updates(params, updates)
            for name in names:
                expected = arrays[f"ref64_{scope}_{place}_{name}"][task, step]
                np.testing.assert_allclose(params[name], expected, rtol=1e-12, atol=1e-12)
