"""The compressed bank: what a code loses, and what the optimizer makes of it."""

import functools
import math
from typing import Any, NamedTuple

import chex
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import tag_optax
from benchmarks import hlo
from benchmarks.update_cost import LEAF_SETS
from tag_optax import _compressed, _rows
from tests.reference import NumpyTag
from tests.streams import ORDER, SCALE_BY, related, run

FLOAT_MAX = float(np.finfo(np.float32).max)

# Codes of second moments.

LEAVES = [(1,), (7,), (64,), (1031,), (3, 5, 7, 11), (2, 3, 4, 64), (13, 1), (16, 130), (6, 97)]


def group_size(shape, split):
    """The largest size of up to 64 that divides the leaf, or its last axis."""
    length = shape[-1] if split else math.prod(shape)
    return max(size for size in range(1, 65) if length % size == 0)


@functools.cache
def coder(split):
    @jax.jit
    def both(v):
        roots = _compressed.encode_roots(v, split)
        return roots, _compressed.decode_roots(roots)

    return both


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("shape", LEAVES)
@hypothesis.settings(max_examples=15)
@hypothesis.given(
    seed=st.integers(0, 2**32 - 1),
    low=st.integers(-30, 30),
    width=st.integers(0, 60),
    zeros=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
)
def test_codes_are_rounded_up_by_less_than_a_unit(shape, split, seed, low, width, zeros):
    rng = np.random.default_rng(seed)
    exponents = rng.uniform(low, min(low + width, 30), shape)
    v = np.where(rng.random(shape) < zeros, 0, 10.0**exponents).astype(np.float32)
    roots, decoded = coder(split)(v)
    assert roots.codes.dtype == jnp.uint8
    assert roots.units.dtype == jnp.uint16
    assert roots.codes.shape == v.shape
    size = group_size(shape, split)
    assert roots.units.size * size == v.size

    exact, found = v.astype(np.float64), np.asarray(decoded, np.float64)
    assert np.isfinite(found).all()
    assert (found >= exact * (1 - 1e-6)).all()
    groups = np.sqrt(exact).reshape(-1, size)
    unit = groups.max(axis=1, keepdims=True) / 255 * (1 + 2**-7)  # bfloat16 has eight bits.
    assert (np.sqrt(found).reshape(-1, size) <= (groups + unit) * (1 + 1e-6)).all()
    assert (found[exact.reshape(found.shape) == 0] == 0).all()


@pytest.mark.parametrize("split", [False, True])
def test_the_largest_numbers_stay_finite(split):
    v = np.full((4, 64), FLOAT_MAX, np.float32)
    v[1:] *= np.float32(0.98)
    v[2, ::2] = 1.0
    _, decoded = coder(split)(v)
    assert np.isfinite(decoded).all()
    assert (np.asarray(decoded[1:], np.float64) >= v[1:].astype(np.float64) * (1 - 1e-6)).all()
    assert (np.asarray(decoded[0]) >= 0.98 * (1 - 1e-6) * FLOAT_MAX).all()


def test_coding_again_and_again_comes_to_rest():
    """A task that comes back, does nothing and goes again does not swell by a unit each time."""
    v = np.random.default_rng(0).gamma(0.3, size=4096).astype(np.float32)
    decoded, rounds = v, []
    for _ in range(20):
        _, decoded = coder(False)(decoded)
        rounds.append(np.asarray(decoded))
    np.testing.assert_array_equal(rounds[-1], rounds[-5])
    unit = np.sqrt(v.reshape(-1, 64).max(axis=1, keepdims=True)) / 255 * (1 + 2**-7)
    swollen = np.sqrt(rounds[-1]).reshape(-1, 64) - np.sqrt(v).reshape(-1, 64)
    assert (swollen <= 8 * unit).all()
    assert swollen.mean() < unit.mean()


# Sketches of directions.


def signs(places):
    """A second implementation of the signs: Python integers, one by one."""
    found = []
    for x in map(int, places):
        x = (x ^ (x >> 16)) * 0x7FEB352D & 0xFFFFFFFF
        x = (x ^ (x >> 15)) * 0x846CA68B & 0xFFFFFFFF
        x ^= x >> 16
        found.append(-1.0 if x >> 31 else 1.0)
    return np.array(found)


def test_a_sketch_by_hand():
    rng = np.random.default_rng(0)
    tree = {"a": rng.normal(size=(5, 7)), "b": rng.normal(size=()), "c": rng.normal(size=26)}
    expected, start = np.zeros(13), 0
    for name in sorted(tree):
        flat = tree[name].ravel()
        places = start + np.arange(flat.size)
        np.add.at(expected, places % 13, signs(places) * flat)
        start += flat.size
    np.testing.assert_allclose(_compressed.sketch(tree, 13).sums, expected, rtol=1e-12)


def test_a_sketch_is_the_same_of_joined_leaves(monkeypatch):
    """So that a run goes on on another mesh, where no leaf may be joined."""
    monkeypatch.setattr(_rows, "_JOINED", 30)
    rng = np.random.default_rng(0)
    sizes = {"a": 7, "b": 100, "c": 29, "d": 50, "e": 3}
    tree = {name: jnp.asarray(rng.normal(size=size)) for name, size in sizes.items()}
    joined = _rows.join(tree)
    assert joined.vector.size == 39
    found = _compressed.sketch(joined, 13).sums
    np.testing.assert_allclose(found, _compressed.sketch(tree, 13).sums, rtol=1e-12)


def test_signs_are_even_and_independent_of_their_neighbours():
    s = signs(np.arange(20_000))
    bound = 5 / np.sqrt(len(s))
    assert abs(s.mean()) < bound
    for lag in (1, 2, 64, 101, 1024):
        assert abs(np.mean(s[lag:] * s[:-lag])) < bound


@functools.partial(jax.jit, static_argnums=1)
def sketches(many, size):
    return jax.vmap(lambda x: _compressed.sketch(x, size).sums)(many)


def cosines(x, y):
    return np.sum(x * y, 1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)


@pytest.mark.parametrize("kind", ["normal", "related", "heavy", "sparse", "constant sign"])
def test_cosines_are_known_to_a_standard_deviation(kind):
    size, rng = 251, np.random.default_rng(0)
    x, y = rng.normal(size=(2, 200, 60, 64))
    if kind == "related":
        y = 0.7 * x + 0.7 * y
    if kind == "heavy":
        x, y = x**3, y**3
    if kind == "sparse":
        x, y = x * (rng.random((60, 64)) < 0.1), y * (rng.random((60, 64)) < 0.1)
    if kind == "constant sign":
        x, y = np.abs(x), np.abs(y)
    exact = cosines(x.reshape(200, -1), y.reshape(200, -1))
    error = cosines(np.array(sketches(x, size)), np.array(sketches(y, size))) - exact
    # Of a sketched cosine c: (1 - c^2) / sqrt(size).
    expected = np.mean(1 - exact**2) / np.sqrt(size)
    assert 0.7 * expected < np.sqrt(np.mean(error**2)) < 1.4 * expected
    assert np.abs(error).max() < 5 / np.sqrt(size)


def test_a_sketch_is_linear():
    x, y = np.random.default_rng(0).normal(size=(2, 3, 31, 17))
    of = functools.partial(_compressed.sketch, size=101)
    np.testing.assert_allclose(
        of({"w": 3 * x - 0.5 * y}).sums, 3 * of({"w": x}).sums - 0.5 * of({"w": y}).sums, atol=1e-12
    )


@pytest.mark.parametrize("column", [0, 17, 255])
def test_a_dominating_column_of_a_wide_matrix(column):
    """Of 256 columns one matters. With 256 sums all of it would fall into one of them."""
    rng = np.random.default_rng(column)
    x, y = 1e-3 * rng.normal(size=(2, 50, 512, 256))
    x[:, :, column], y[:, :, column] = rng.normal(size=(2, 50, 512))
    exact = cosines(x.reshape(50, -1), y.reshape(50, -1))

    def error(size):
        found = cosines(np.array(sketches(x, size)), np.array(sketches(y, size)))
        return np.sqrt(np.mean((found - exact) ** 2))

    assert error(251) < 1.5 / np.sqrt(251)
    assert error(256) > 0.5  # Or this test could not fail.


@pytest.mark.parametrize("scale", [1e-15, 1.0, 1e15])
def test_codes_of_a_sketch(scale):
    sums = np.random.default_rng(0).normal(size=1021).astype(np.float32) * np.float32(scale)
    codes = _compressed.encode_sketch(_compressed.Sketch(sums))
    assert codes.codes.dtype == jnp.int8
    found = _compressed.decode_sketch(codes).sums
    assert np.abs(found - sums).max() <= np.abs(sums).max() / 127 / 2 * (1 + 1e-5)
    cosine = sums @ found / np.linalg.norm(sums) / np.linalg.norm(found)
    assert cosine > 1 - 1e-3
    zero = _compressed.encode_sketch(_compressed.Sketch(np.zeros(5, np.float32)))
    np.testing.assert_array_equal(_compressed.decode_sketch(zero).sums, 0)


# Bytes.


def bytes_per_parameter(shapes, **arguments):
    params = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    small, large = (
        tag_optax.state_bytes(
            tag_optax.tag_rmsprop(5.0, tasks, bank=tag_optax.compressed(**arguments)), params
        )
        for tasks in (10, 110)
    )
    return (large - small) / 100 / sum(math.prod(shape) for shape in shapes)


@pytest.mark.parametrize("split", [False, True])
def test_an_eighth_of_the_bytes(split):
    assert bytes_per_parameter([(1000, 1000)], split=split) <= 1.1


def test_an_eighth_of_the_bytes_on_the_papers_network():
    assert bytes_per_parameter(LEAF_SETS["497 k"]) <= 1.1


# The optimizer. One leaf is coded, and one is not.

SHAPES = {"matrix": (40, 30), "vector": (5,)}
# The others' programs are as good as the same, and to compile them takes seconds.
ALL = ["rms", *(pytest.param(name, marks=pytest.mark.ci) for name in ("adagrad", "adam"))]
ONCE = (3, 3, 0, 0, 0, 2, 2, 1, 1, 1)


def make_stream(order, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    means = [{k: rng.normal(size=s) for k, s in SHAPES.items()} for _ in range(5)]
    return [
        {k: (means[task][k] + 0.5 * rng.normal(size=s)).astype(dtype) for k, s in SHAPES.items()}
        for task in order
    ]


def rounded_up(v):
    """The most that a leaf's second moments can be after coding."""
    if v.size < 1024:
        return v
    groups = np.sqrt(v).reshape(-1, group_size(v.shape, split=False))
    unit = groups.max(axis=1, keepdims=True) / 255 * (1 + 2**-7)
    return np.square(groups + unit).reshape(v.shape)


@pytest.mark.parametrize(
    "relatedness", ["own", *(pytest.param(x, marks=pytest.mark.ci) for x in ("uniform", "age"))]
)
@pytest.mark.parametrize("optimizer", ALL)
def test_steps_are_at_most_the_exact_ones(optimizer, relatedness):
    b2 = {"adam": 0.999, "rms": 0.99, "adagrad": 0.0}[optimizer]
    exact = NumpyTag(optimizer, b=2.0, b2=b2, relatedness=relatedness)
    tx = SCALE_BY[optimizer](2.0, 5, relatedness=relatedness, bank="compressed")
    stream = make_stream(ONCE)
    updates, state = run(tx, stream, ONCE)
    below = 0
    for g, task, update in zip(stream, ONCE, updates, strict=True):
        expected = exact.update(g, task)
        for name in g:
            size, most = np.abs(update[name]), np.abs(expected[name])
            assert (size <= most * (1 + 1e-6)).all()
            others = {s: a for s, a in exact.alpha.items() if s != task}
            own = exact.alpha[task] * exact.tasks[task].v[name]
            w = own + sum(a * exact.tasks[s].v[name] for s, a in others.items())
            most_w = own + sum(a * rounded_up(exact.tasks[s].v[name]) for s, a in others.items())
            least = most * np.sqrt((w + exact.eps) / (most_w + exact.eps))
            assert (size >= least * (1 - 1e-6)).all()
            assert np.sign(update[name]).tolist() == np.sign(expected[name]).tolist()
            below += np.sum(size < most * (1 - 1e-6))
    assert below > 0  # Or the bank is not compressed at all.
    weights = [exact.alpha.get(task, 0.0) for task in range(5)]
    np.testing.assert_allclose(tag_optax.task_weights(state), weights, rtol=1e-12)


@pytest.mark.parametrize(
    "relatedness", ["own", *(pytest.param(x, marks=pytest.mark.ci) for x in ("uniform", "age"))]
)
@pytest.mark.parametrize("optimizer", ALL[:2])
def test_steps_are_at_most_the_exact_ones_when_tasks_come_back(optimizer, relatedness):
    exact = NumpyTag(optimizer, b=2.0, relatedness=relatedness)
    tx = SCALE_BY[optimizer](2.0, 5, relatedness=relatedness, bank="compressed")
    stream = make_stream(ORDER)
    updates, state = run(tx, stream)
    for g, task, update in zip(stream, ORDER, updates, strict=True):
        expected = exact.update(g, task)
        for name in g:
            assert (np.abs(update[name]) <= np.abs(expected[name]) * (1 + 1e-6)).all()
            # A unit a visit on either side; most roots are some 40 units.
            np.testing.assert_allclose(update[name], expected[name], rtol=0.25, atol=0.02)
    assert state.steps.tolist() == [ORDER.count(task) for task in range(5)]


@pytest.mark.parametrize(
    "relatedness", ["cosine", pytest.param("first_gradients", marks=pytest.mark.ci)]
)
@pytest.mark.parametrize("optimizer", ALL)
def test_directions_of_few_numbers_are_exact(optimizer, relatedness):
    stream = make_stream(ONCE)
    (_, full), (_, small) = (
        run(SCALE_BY[optimizer](2.0, 5, relatedness=related(relatedness, count=2), bank=bank), x, o)
        for bank, x, o in (("full", stream, ONCE), ("compressed", stream, ONCE))
    )
    np.testing.assert_allclose(full.alpha, small.alpha, rtol=1e-12)


@pytest.mark.parametrize(
    "relatedness", ["cosine", pytest.param("first_gradients", marks=pytest.mark.ci)]
)
@pytest.mark.parametrize("optimizer", ALL)
def test_sketched_weights_are_near_the_exact_ones(optimizer, relatedness):
    """Five standard deviations of the cosine, and the sketch's own 8 bits."""
    stream = make_stream(ONCE)
    bank = tag_optax.compressed(sketch_size=1021)
    make = functools.partial(SCALE_BY[optimizer], 2.0, 5, relatedness=related(relatedness))
    (_, full), (_, small) = (run(make(bank=given), stream, ONCE) for given in ("full", bank))
    logs = np.log(np.array(full.alpha)[:4]) - np.log(np.array(small.alpha)[:4])
    assert np.abs(logs).max() < 2.0 * (5 / np.sqrt(1021) + 0.01)
    assert np.abs(logs).max() > 1e-6  # Or nothing was sketched.
    assert small.live["direction"].sums.shape == (1021,)


@pytest.mark.ci
def test_a_task_has_cosine_one_with_itself():
    """The same gradients under another id: alpha is exp(-b) but for the 8 bits of the sketch."""
    (g,) = make_stream((0,))
    tx = tag_optax.scale_by_tag_rms(2.0, 3, bank=tag_optax.compressed(sketch_size=251))
    _, state = run(tx, [g, g], [0, 2])
    np.testing.assert_allclose(state.alpha, [np.exp(-2), 0, np.exp(-2)], rtol=2e-3)


@pytest.mark.parametrize("optimizer", ALL)
def test_a_task_takes_up_its_row(optimizer):
    g, other, again = make_stream((0, 1, 0))
    tx = SCALE_BY[optimizer](2.0, 3, bank=tag_optax.compressed(251))
    _, first = run(tx, [g], [0])
    _, between = run(tx, [other], [1], state=first)
    zero = jax.tree.map(jnp.zeros_like, g)
    _, state = run(tx, [zero], [0], state=between)
    decay = {"rms": 0.99, "adagrad": 1.0, "adam": 0.999}[optimizer]
    for name in g:
        kept, old = np.array(state.live["nu"][name]), np.array(first.live["nu"][name])
        assert (kept >= decay * old * (1 - 1e-6)).all()
        assert (kept <= decay * rounded_up(old) * (1 + 1e-6)).all()
    assert state.steps.tolist() == [2, 1, 0]
    seen, before = state.live["direction"].sums, first.live["direction"].sums
    np.testing.assert_allclose(seen, 0.9 * before, atol=0.9 * np.abs(before).max() / 250)
    if optimizer == "adam":
        _, state = run(tx, [again], [0], state=between)
        chex.assert_trees_all_close(
            state.live["mu"], jax.tree.map(lambda x: 0.1 * x, again), rtol=1e-12
        )


def test_leaf_scope_is_refused():
    with pytest.raises(ValueError, match=r"bank='compressed'.*scope='leaf'.*choose scope='global'"):
        tag_optax.tag_rmsprop(5.0, 2, relatedness=tag_optax.cosine("leaf"), bank="compressed")


@pytest.mark.parametrize("size", [0, -1, 2.5, True])
def test_a_sketch_has_a_size(size):
    with pytest.raises(ValueError, match=r"sketch_size=.* must be an integer of at least 1"):
        tag_optax.compressed(sketch_size=size)


# Transformations of the step.


@functools.cache
def usual():
    """A transformation, gradients and what the jitted loop makes of them."""
    tx = tag_optax.scale_by_tag_rms(2.0, 5, bank=tag_optax.compressed(251))
    stream = make_stream(ORDER)
    return tx, stream, *run(tx, stream)


def close(found, expected):
    """But for codes at the edge of the next one, which rounding may push over."""
    chex.assert_trees_all_close(found, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.ci
def test_scan_equals_a_loop():
    tx, stream, updates, last = usual()

    @jax.jit
    def scanned(state, stream, order):
        def step(state, now):
            g, task = now
            update, state = tx.update(g, state, task_id=task)
            return state, update

        return jax.lax.scan(step, state, (stream, order))

    stacked = jax.tree.map(lambda *x: jnp.stack(x), *stream)
    state = tx.init(jax.tree.map(jnp.zeros_like, stream[0]))
    state, found = scanned(state, stacked, jnp.array(ORDER, jnp.int32))
    close(found, jax.tree.map(lambda *x: jnp.stack(x), *updates))
    close(state, last)


@pytest.mark.ci
def test_eager_equals_jitted():
    tx, stream, updates, _ = usual()
    state = tx.init(jax.tree.map(jnp.zeros_like, stream[0]))
    for g, task, expected in zip(stream[:7], ORDER, updates, strict=False):
        update, state = tx.update(jax.tree.map(jnp.asarray, g), state, task_id=task)
        close(update, expected)


@pytest.mark.ci
def test_vmap_equals_one_by_one():
    tx, stream, updates, _ = usual()
    other = make_stream(ORDER, seed=1)
    others, _ = run(tx, other)
    axes = tag_optax.vmap_axes(tx, stream[0])
    both = [jax.tree.map(lambda x, y: np.stack([x, y]), *pair) for pair in zip(stream, other)]  # noqa: B905
    state = jax.vmap(tx.init, out_axes=axes)(jax.tree.map(jnp.zeros_like, both[0]))
    update = jax.jit(
        jax.vmap(lambda g, s, t: tx.update(g, s, task_id=t), (0, axes, None), (0, axes))
    )
    for g, task, *expected in zip(both, ORDER, updates, others, strict=True):
        found, state = update(g, state, jnp.int32(task))
        for index in (0, 1):
            close(jax.tree.map(lambda x, i=index: x[i], found), expected[index])


@pytest.mark.ci
def test_grow_keeps_everything():
    tx, stream, updates, last = usual()
    narrow = tag_optax.scale_by_tag_rms(2.0, 4, bank=tag_optax.compressed(251))
    before, state = run(narrow, stream[:9], ORDER[:9])
    state = tag_optax.grow(state, 5)
    after, state = run(narrow, stream[9:], ORDER[9:], state=state)
    close([*before, *after], updates)
    close(state, last)
    fresh = jax.eval_shape(tx.init, stream[0])
    assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, fresh)


@pytest.mark.ci
def test_injected_hyperparameters_and_a_round_trip_through_numpy():
    _, stream, updates, last = usual()
    tx = optax.inject_hyperparams(
        tag_optax.scale_by_tag_rms, static_args=("task_capacity",), hyperparam_dtype=jnp.float64
    )(2.0, task_capacity=5, bank=tag_optax.compressed(251))
    first, state = run(tx, stream[:8], ORDER[:8])
    leaves, structure = jax.tree.flatten(jax.device_get(state))
    bytes_ = [(x.tobytes(), x.dtype, x.shape) for x in leaves]
    state = jax.tree.unflatten(
        structure, [jnp.asarray(np.frombuffer(b, t).reshape(s)) for b, t, s in bytes_]
    )
    second, state = run(tx, stream[8:], ORDER[8:], state=state)
    close([*first, *second], updates)
    close(state.inner_state, last)
    assert "b" in state.hyperparams


@pytest.mark.parametrize("optimizer", SCALE_BY)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_types_are_stable(optimizer, dtype):
    params = {"w": jax.ShapeDtypeStruct((32, 40), dtype), "b": jax.ShapeDtypeStruct((3,), dtype)}
    tx = SCALE_BY[optimizer](2.0, 3, bank=tag_optax.compressed(101))
    state = jax.eval_shape(tx.init, params)
    task = jax.ShapeDtypeStruct((), jnp.int32)
    updates, after = jax.eval_shape(lambda g, s, t: tx.update(g, s, task_id=t), params, state, task)
    assert after == state
    assert jax.tree.map(lambda x: x.dtype, updates) == jax.tree.map(lambda x: x.dtype, params)


# Numbers that are not finite.


@functools.cache
def small(optimizer):
    return SCALE_BY[optimizer](5.0, 4, b1=0.0, bank=tag_optax.compressed(101))


def assert_finite(tree):
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        assert np.isfinite(np.asarray(leaf, np.float64)).all(), jax.tree_util.keystr(path)


@pytest.mark.ci
@pytest.mark.parametrize("optimizer", SCALE_BY)
@hypothesis.given(data=st.data())
def test_the_bank_is_finite_after_anything(optimizer, data):
    tx = small(optimizer)
    numbers = st.floats(width=32, allow_nan=True, allow_infinity=True)
    numbers |= st.sampled_from([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e19, 5e17, 1e-45, 0.0, 1.0])
    # A pattern, repeated over the leaves with or without the sketch's own signs.
    some = st.tuples(st.integers(0, 3), st.lists(numbers, min_size=1, max_size=3))
    state = tx.init({"w": jnp.zeros(1100, jnp.float32), "c": jnp.zeros(1, jnp.float32)})
    for task, pattern in data.draw(st.lists(some, max_size=6), "steps"):
        g = {
            "w": jnp.asarray(np.resize(np.array(pattern, np.float32), 1100)),
            "c": jnp.asarray(np.array(pattern[:1], np.float32)),
        }
        updates, state = tx.update(g, state, task_id=jnp.int32(task))
        assert_finite(state)
        parts = [np.asarray(x) for x in jax.tree.leaves(updates)]
        assert all(np.isfinite(x).all() for x in parts) or all(np.isnan(x).all() for x in parts)


@pytest.mark.parametrize("b1", [0.0, 0.9])
def test_a_sketch_longer_than_its_gradient(b1):
    """Along the sketch's signs a gradient of finite length has a sketch of infinite length."""
    s = signs(np.arange(1100))
    tx = tag_optax.scale_by_tag_rms(5.0, 4, b1=b1, bank=tag_optax.compressed(7))
    state = tx.init(jnp.zeros(1100, jnp.float32))
    for task in (0, 1, 0):
        g = jnp.asarray(5e17 * s, jnp.float32)
        assert np.isfinite(jnp.sum(g**2))
        updates, state = tx.update(g, state, task_id=task)
        assert_finite((updates, state))


# Memory.

CAPACITY = 100
ROW = 256 * 128 * 4


@pytest.mark.ci
@pytest.mark.parametrize("relatedness", ["cosine", "own"])
@pytest.mark.parametrize("optimizer", SCALE_BY)
@pytest.mark.parametrize("split", [False, True])
def test_no_temporary_of_a_banks_size(optimizer, relatedness, split):
    tx = SCALE_BY[optimizer](
        5.0, CAPACITY, relatedness=relatedness, bank=tag_optax.compressed(1021, split)
    )
    params = jax.ShapeDtypeStruct((256, 128), jnp.float32)
    state = jax.eval_shape(tx.init, params)
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state.bank))
    step = jax.jit(lambda g, s, t: tx.update(g, s, task_id=t), donate_argnums=(0, 1))
    compiled = step.lower(params, state, jax.ShapeDtypeStruct((), jnp.int32)).compile()
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes >= size
    # The bank itself is 26 rows of float32, and 100 if it were decoded.
    assert memory.temp_size_in_bytes <= 6 * ROW


# A mesh.

MESH_ORDER = (5, 5, 0, 3, 0, 5, 7)
MESH_SHAPES = {"matrix": (64, 32), "tensor": (4, 3, 8, 16), "vector": (5,)}
AXIS_TYPES = [AxisType.Auto, AxisType.Explicit]


def mesh_stream():
    rng = np.random.default_rng(0)
    return [{k: rng.normal(size=s) for k, s in MESH_SHAPES.items()} for _ in MESH_ORDER]


def follow(tx, stream, params_sharding=None, state_shardings=None):
    """Updates and state after the stream, one jitted and donated step each."""
    params = jax.tree.map(jnp.zeros_like, stream[0])
    if params_sharding is not None:
        params = jax.device_put(params, params_sharding)
    state = jax.jit(tx.init, out_shardings=state_shardings)(params)
    step = jax.jit(lambda g, s, t: tx.update(g, s, task_id=t), donate_argnums=1)
    updates = []
    for g, task in zip(stream, MESH_ORDER, strict=True):
        if params_sharding is not None:
            g = jax.device_put(g, params_sharding)
        update, state = step(g, state, jnp.int32(task))
        updates.append(jax.device_get(update))
    return updates, state


@pytest.mark.ci
@pytest.mark.parametrize("axis_type", AXIS_TYPES)
@pytest.mark.parametrize("task_axis", ["data", None])
@pytest.mark.parametrize("relatedness", ["cosine", "own"])
def test_a_mesh_changes_nothing(axis_type, task_axis, relatedness):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(axis_type,))
    whole = dict.fromkeys(MESH_SHAPES, NamedSharding(mesh, P()))
    stream = mesh_stream()
    tx = tag_optax.scale_by_tag_adam(
        2.0, 8, relatedness=relatedness, bank=tag_optax.compressed(251, split=True)
    )
    expected, last = follow(tx, stream)
    placed = tag_optax.state_sharding(tx, stream[0], whole, task_axis=task_axis)
    with jax.set_mesh(mesh):
        found, state = follow(tx, stream, whole, placed)
    chex.assert_trees_all_close(found, expected, rtol=1e-6, atol=1e-9)
    chex.assert_trees_all_close(jax.device_get(state), jax.device_get(last), rtol=1e-6, atol=1e-9)
    codes = state.bank["nu"]["matrix"].codes
    rows = 8 if task_axis is None else 1
    assert codes.addressable_shards[0].data.shape == (rows, 64, 32)


@pytest.mark.ci
@pytest.mark.parametrize("axis_type", AXIS_TYPES)
@pytest.mark.parametrize("axis", ["inner", "last"])
def test_split_parameters_change_nothing(axis_type, axis):
    mesh = jax.make_mesh((8,), ("model",), axis_types=(axis_type,))
    specs = {"matrix": P("model", None), "tensor": P(None, None, "model", None), "vector": P()}
    if axis == "last":
        specs = {"matrix": P(None, "model"), "tensor": P(None, None, None, "model"), "vector": P()}
    shardings = {name: NamedSharding(mesh, spec) for name, spec in specs.items()}
    stream = mesh_stream()
    tx = tag_optax.scale_by_tag_rms(2.0, 8, bank=tag_optax.compressed(251, split=True))
    expected, _ = follow(tx, stream)
    placed = tag_optax.state_sharding(tx, stream[0], shardings)
    with jax.set_mesh(mesh):
        found, state = follow(tx, stream, shardings, placed)
    chex.assert_trees_all_close(found, expected, rtol=1e-6, atol=1e-9)
    codes = state.bank["nu"]["matrix"].codes
    part = (8, 8, 32) if axis == "inner" else (8, 64, 4)
    assert codes.addressable_shards[0].data.shape == part


class Net(NamedTuple):
    matrix: Any
    vector: Any


@pytest.mark.parametrize("bank", ["full", "compressed"])
def test_parameters_that_are_attributes_have_their_sharding(bank):
    """As in a NamedTuple or an Equinox module: a field is not one of the bank's own arrays."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    params = Net(jnp.zeros((64, 32)), jnp.zeros(32))
    shardings = Net(NamedSharding(mesh, P("model")), NamedSharding(mesh, P("model")))
    made = {"full": tag_optax.full(split=True), "compressed": tag_optax.compressed(251, split=True)}
    tx = tag_optax.scale_by_tag_adam(2.0, 8, bank=made[bank])
    placed = tag_optax.state_sharding(tx, params, shardings, task_axis="data")
    for moment in (placed.live["nu"], placed.live["mu"], placed.past):
        assert (moment.matrix.spec, moment.vector.spec) == (P("model"), P("model"))
    rows = placed.bank["nu"].matrix
    rows = rows.codes if bank == "compressed" else rows
    assert rows.spec == P("data", "model", None)
    assert placed.bank["nu"].vector.spec == P("data", "model")


def test_one_array_of_parameters_has_a_sharding():
    """Codes, units and sketches are not shaped like the one parameter."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    params = jnp.zeros((64, 32), jnp.float32)
    tx = tag_optax.scale_by_tag_rms(2.0, 8, bank=tag_optax.compressed(251, split=True))
    placed = tag_optax.state_sharding(tx, params, NamedSharding(mesh, P()), task_axis="data")
    state = jax.jit(tx.init, out_shardings=placed)(params)
    assert state.bank["nu"].codes.addressable_shards[0].data.shape == (1, 64, 32)


@pytest.mark.ci
def test_no_bank_travels():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    params = {"w": jnp.zeros((64, 32), jnp.float32), "b": jnp.zeros((32,), jnp.float32)}
    row = sum(p.nbytes for p in params.values())
    tx = tag_optax.scale_by_tag_rms(5.0, 64, bank=tag_optax.compressed(251, split=True))
    placed = tag_optax.state_sharding(tx, params, NamedSharding(mesh, P()), task_axis="data")
    with jax.set_mesh(mesh):
        params = jax.device_put(params, NamedSharding(mesh, P()))
        state = jax.jit(tx.init, out_shardings=placed)(params)
        held = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(state.bank))
        step = jax.jit(
            lambda g, s, t: tx.update(g, s, task_id=t),
            out_shardings=(None, placed),
            donate_argnums=1,
        )
        compiled = step.lower(params, state, jnp.int32(0)).compile()
    assert held <= 8 * 1.2 * row / 4 + 8 * 300
    found = hlo.collectives(compiled.as_text())
    assert found  # W at least is summed over the devices.
    assert max(c.bytes for c in found if not c.inside) <= row
    assert max(c.bytes for c in found) <= 2 * row
    # What a device holds of the bank is decoded to read it: eight rows of float32.
    assert compiled.memory_analysis().temp_size_in_bytes <= 14 * row
