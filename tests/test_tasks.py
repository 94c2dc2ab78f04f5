"""Tasks in any order: rows that come back, rows that are never used, ids that are wrong."""

import re
import warnings

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tag_optax
from tests.streams import OPTIMIZERS, ORDER, RELATEDNESS, SCALE_BY, gradients, related, run


def tag_state(opt_state):
    return jax.tree.leaves(opt_state, is_leaf=lambda x: isinstance(x, tag_optax.ScaleByTagState))[0]


def test_a_fresh_state_has_seen_nothing():
    tx = tag_optax.scale_by_tag_rms(5.0, 3)
    state = tx.init(jnp.zeros(2))
    assert not state.steps.any()
    assert not np.asarray(tag_optax.task_weights(state)).any()
    _, state = tx.update(jnp.ones(2), state, task_id=2)
    np.testing.assert_array_equal(state.steps, [0, 0, 1])
    np.testing.assert_array_equal(tag_optax.task_weights(state), [0, 0, 1])


@pytest.mark.parametrize("relatedness", RELATEDNESS)
def test_finished_tasks_never_change(relatedness):
    tx = tag_optax.scale_by_tag_adam(5.0, 3, relatedness=relatedness)
    order = (0, 0, 1, 1, 2, 2, 2)
    stream = gradients(order)
    _, before = run(tx, stream[:5], order[:5])
    _, after = run(tx, stream, order)
    rows = [jax.tree.map(lambda x: x[:2], state.bank) for state in (before, after)]
    chex.assert_trees_all_equal(*rows)


def test_a_returning_task_takes_up_its_row():
    tx = tag_optax.scale_by_tag_adam(5.0, 3)
    order = (1, 1, 0, 1)
    _, state = run(tx, stream := gradients(order), order)
    mu = nu = jax.tree.map(np.zeros_like, stream[0])
    for g in (stream[0], stream[1], stream[3]):
        mu = jax.tree.map(lambda m, x: 0.9 * m + 0.1 * x, mu, g)
        nu = jax.tree.map(lambda v, x: 0.999 * v + 0.001 * x**2, nu, g)
    chex.assert_trees_all_close((state.live["mu"], state.live["nu"]), (mu, nu), rtol=1e-12)
    np.testing.assert_array_equal(state.steps, [1, 3, 0])


@pytest.mark.parametrize("optimizer", SCALE_BY)
@pytest.mark.parametrize("relatedness", RELATEDNESS)
def test_capacity_beyond_the_tasks_changes_nothing(optimizer, relatedness):
    stream = gradients()
    small, _ = run(SCALE_BY[optimizer](2.0, 4, relatedness=relatedness), stream)
    large, _ = run(SCALE_BY[optimizer](2.0, 9, relatedness=relatedness), stream)
    chex.assert_trees_all_close(small, large, rtol=1e-12)


@pytest.mark.parametrize("kind", [*RELATEDNESS, "running_sum"])
@pytest.mark.parametrize("scope", ["global", "leaf"])
def test_grow_keeps_everything(kind, scope):
    arguments = dict(relatedness="own", bank="running_sum")
    if kind != "running_sum":
        arguments = dict(relatedness=related(kind, scope))
    stream, middle = gradients(), 7
    whole, _ = run(tag_optax.tag_adam(2.0, 9, **arguments), stream)
    tx = tag_optax.tag_adam(2.0, 4, **arguments)
    first, state = run(tx, stream[:middle], ORDER[:middle])
    grown = tag_optax.grow(state, 9)
    chex.assert_trees_all_equal_shapes_and_dtypes(
        grown, tag_optax.tag_adam(2.0, 9, **arguments).init(stream[0])
    )
    second, _ = run(tx, stream[middle:], ORDER[middle:], grown)
    chex.assert_trees_all_close(first + second, whole, rtol=1e-12)


def test_grow_refuses_to_shrink_and_finds_nothing_to_grow():
    tx = tag_optax.tag_rmsprop(5.0, 4)
    state = tx.init(jnp.zeros(2))
    chex.assert_trees_all_equal(tag_optax.grow(state, 4), state)
    with pytest.raises(ValueError, match=r"task_capacity=3 is below the present 4.*at least 4"):
        tag_optax.grow(state, 3)
    with pytest.raises(ValueError, match="holds no ScaleByTagState"):
        tag_optax.grow(optax.sgd(0.1).init(jnp.zeros(2)), 3)


@pytest.mark.parametrize("bad", [-1, 3, np.int64(7), jnp.int32(-2)])
def test_concrete_ids_out_of_range(bad):
    tx = tag_optax.tag_rmsprop(5.0, 3)
    state = tx.init(jnp.zeros(2))
    with pytest.raises(ValueError, match=f"task_id={int(bad)} "):
        tx.update(jnp.ones(2), state, task_id=bad)
    with pytest.raises(ValueError, match=f"task_id={int(bad)} "):  # A constant under jit.
        jax.jit(lambda g, s: tx.update(g, s, task_id=int(bad)))(jnp.ones(2), state)


@pytest.mark.parametrize(
    "dtype", [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)
@pytest.mark.parametrize("wrap", [lambda tx: tx, tag_optax.stateful_task_id])
def test_ids_of_any_integer_dtype(dtype, wrap):
    """A capacity beyond int8 and a negative sentinel must not trouble narrow or unsigned ids."""
    tx = wrap(tag_optax.tag_rmsprop(5.0, 300))
    update = jax.jit(lambda g, s, t: tx.update(g, s, task_id=t))
    g, task = jnp.ones(2), jnp.asarray(3, dtype)
    for step in (update, lambda g, s, t: tx.update(g, s, task_id=t)):
        _, state = step(g, tx.init(g), task)
        assert optax.tree.get(state, "steps")[3] == 1
    if dtype in ("uint32", "uint64"):
        updates, _ = update(g, tx.init(g), jnp.asarray(jnp.iinfo(dtype).max, dtype))
        assert np.isnan(updates).all()


@pytest.mark.parametrize("bad", [1.0, True, jnp.array([1]), jnp.float32(1)])
def test_ids_that_are_no_integer_scalars(bad):
    tx = tag_optax.tag_rmsprop(5.0, 3)
    with pytest.raises(ValueError, match=r"task_id=.* must be an integer scalar"):
        tx.update(jnp.ones(2), tx.init(jnp.zeros(2)), task_id=bad)


def test_a_forgotten_id_is_named():
    tx = tag_optax.tag_rmsprop(5.0, 3)
    with pytest.raises(TypeError, match="task_id"):
        tx.update(jnp.ones(2), tx.init(jnp.zeros(2)))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    "arguments", [{}, dict(relatedness="own", bank="running_sum")], ids=["full", "running_sum"]
)
def test_a_traced_id_out_of_range_is_loud_and_harmless(optimizer, arguments):
    tx = OPTIMIZERS[optimizer](5.0, 5, **arguments)
    stream = gradients()
    _, state = run(tx, stream)
    update = jax.jit(lambda g, s, t: tx.update(g, s, task_id=t))
    for start in (state, tx.init(stream[0])):
        for bad in (-1, 5, 2**31 - 1, -(2**31), 2**32 + 1, -(2**32) + 2):
            updates, after = update(stream[0], start, jnp.int64(bad))
            assert all(np.isnan(u).all() for u in jax.tree.leaves(updates)), bad
            chex.assert_trees_all_equal(tag_state(after), tag_state(start))


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values())
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(task_capacity=0), "task_capacity=0 must be an integer of at least 1"),
        (dict(task_capacity=-3), "task_capacity=-3 "),
        (dict(task_capacity=2.0), "task_capacity=2.0 must be an integer"),
        (dict(task_capacity=True), "task_capacity=True must be an integer"),
        (dict(b=float("nan")), "b=nan must be finite"),
        (dict(b=jnp.array(jnp.inf)), "b=inf must be finite"),
        (dict(relatedness="cos"), "relatedness='cos' is unknown: choose one of cosine, first"),
        (dict(relatedness=None), "relatedness=None is unknown"),
        (dict(relatedness="self"), 'relatedness="self" is called "own" now'),
        (dict(bank="ring"), "bank='ring' is unknown: choose one of full, running_sum"),
        (dict(bank=3), "bank=3 is unknown"),
        (dict(bank="running_sum"), "weighs each of them by itself.*'uniform' or 'own'"),
        (dict(bank="running_sum", relatedness="age"), "weighs each of them by itself"),
    ],
)
def test_bad_arguments(optimizer, arguments, message):
    with pytest.raises(ValueError, match=message):
        optimizer(**{"b": 5.0, "task_capacity": 3, **arguments})


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS.values(), *SCALE_BY.values()])
@pytest.mark.parametrize(
    ("name", "successor"),
    [
        ("alpha_scope", 'relatedness=tag_optax.cosine(scope="leaf")'),
        ("num_gradients", "relatedness=tag_optax.first_gradients(n)"),
        ("constant_memory", 'bank="running_sum"'),
        ("skip_unseen", "bank=tag_optax.full(split=True)"),
        ("mu_dtype", "bank=tag_optax.full(mu_dtype=...)"),
        ("nu_dtype", "bank=tag_optax.full(nu_dtype=...)"),
    ],
)
def test_arguments_of_the_first_edition_name_their_successors(optimizer, name, successor):
    with pytest.raises(
        TypeError, match=f"{name} is no argument any more: give {re.escape(successor)}"
    ):
        optimizer(5.0, 3, **{name: 1})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: tag_optax.cosine("tensor"),
            "scope='tensor' is unknown: choose one of global",
        ),
        (lambda: tag_optax.first_gradients(0), "n=0 must be an integer of at least 1"),
        (lambda: tag_optax.full("int8"), "mu_dtype='int8' must be a floating dtype"),
        (lambda: tag_optax.full(nu_dtype=3.5), "nu_dtype=3.5 must be a floating dtype"),
    ],
)
def test_bad_values(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_rate_in_the_place_of_b_warns_where_it_was_written():
    with pytest.warns(UserWarning, match="b=0.001 .*comes before the rate") as caught:
        tag_optax.tag_adam(1e-3, 5)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for b in (0.0, 0.05, 5.0, -1.0):
            tag_optax.tag_adam(b, 5)


def test_a_traced_capacity_says_how_to_make_it_static():
    tx = optax.inject_hyperparams(tag_optax.tag_rmsprop)(5.0, task_capacity=3)
    with pytest.raises(ValueError, match=r"static_args=\('task_capacity',\)"):
        jax.jit(tx.init)(jnp.zeros(2))


def test_complex_parameters_are_refused_by_name():
    with pytest.raises(ValueError, match=r"\['z'\] is complex.*split_real_and_imaginary"):
        tag_optax.tag_rmsprop(5.0, 3).init({"z": jnp.zeros(2, jnp.complex64)})
