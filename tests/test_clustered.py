"""The clustered bank: against a dumb second implementation, and against the banks at its ends."""

import collections
import dataclasses
import functools

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
from tests.streams import ORDER, SCALE_BY, gradients, related, run

LESS = [name if name == "rms" else pytest.param(name, marks=pytest.mark.ci) for name in SCALE_BY]


# As many rows as tasks: the full bank.


@pytest.mark.parametrize(
    "relatedness", ["cosine", pytest.param("first_gradients", marks=pytest.mark.ci)]
)
@pytest.mark.parametrize("scope", ["global", pytest.param("leaf", marks=pytest.mark.ci)])
@pytest.mark.parametrize("optimizer", LESS)
def test_as_many_rows_as_tasks_are_the_full_bank(optimizer, scope, relatedness):
    stream = gradients()
    make = functools.partial(SCALE_BY[optimizer], 2.0, 5, relatedness=related(relatedness, scope))
    (expected, full), (found, state) = (
        run(make(bank=bank), stream) for bank in ("full", tag_optax.clustered(5))
    )
    chex.assert_trees_all_close(found, expected, rtol=1e-12, atol=1e-12)
    for name in ("steps", "visited", "alpha", "live", "past"):
        chex.assert_trees_all_close(
            getattr(state, name), getattr(full, name), rtol=1e-12, atol=1e-12
        )
    assert sorted(state.bank.sizes.tolist()) == [0, 1, 1, 1, 1]
    for task, row in enumerate(state.bank.row_of.tolist()):
        if row >= 0 and task != ORDER[-1]:
            chex.assert_trees_all_close(
                jax.tree.map(lambda x, i=row: x[i], state.bank.rows),
                jax.tree.map(lambda x, i=task: x[i], full.bank),
                rtol=1e-12,
                atol=1e-12,
            )


# One row: the running sum, but for alpha.


@dataclasses.dataclass(frozen=True)
class ComparesInVain(tag_optax.Relatedness):
    """Keeps directions, so that tasks can be joined, and weighs as `own` does."""

    def past(self, similarity, distance, b):
        del distance, b
        return jnp.ones_like(similarity)


@pytest.mark.ci
@pytest.mark.parametrize("optimizer", LESS)
def test_one_row_is_a_running_sum(optimizer):
    """But a task that comes back while it is alone in the row takes it up again: not here."""
    order = (0, 0, 1, 1, 2, 0, 0, 3, 1, 3)
    stream = gradients(order)
    make = functools.partial(SCALE_BY[optimizer], 2.0, 4)
    expected, summed = run(make(relatedness="own", bank="running_sum"), stream, order)
    one = make(relatedness=ComparesInVain(), bank=tag_optax.clustered(1))
    found, state = run(one, stream, order)
    chex.assert_trees_all_close(found, expected, rtol=1e-12, atol=1e-12)
    chex.assert_trees_all_close(state.past, summed.past, rtol=1e-12)
    assert state.steps.tolist() == summed.steps.tolist()


# A second implementation: plain numpy, one Python loop a row.

DECAY = {"rms": 0.99, "adagrad": None, "adam": 0.999}


@dataclasses.dataclass
class Row:
    m: np.ndarray
    v: np.ndarray
    size: int = 1
    tasks: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class NumpyClusters:
    """TAG-RMSProp, or TAG-Adagrad, with the cosine over a flat vector and R rows."""

    optimizer: str
    count: int
    b: float
    eps: float = 1e-8
    rows: dict[int, Row] = dataclasses.field(default_factory=dict)
    task: int | None = None
    m: np.ndarray | None = None
    v: np.ndarray | None = None
    steps: collections.Counter = dataclasses.field(default_factory=collections.Counter)

    def update(self, g, task):
        if task != self.task:
            if self.task is not None:
                self._put()
            self._take(task, g)
        self.steps[task] += 1
        self.m = 0.9 * self.m + 0.1 * g
        self.v = self.v + g**2 if self.optimizer == "adagrad" else 0.99 * self.v + 0.01 * g**2
        others = [row for row in self.rows.values() if not (row.tasks == [task] and row.size == 1)]
        w = self.v * (np.exp(-self.b) if others else 1.0)
        for row in others:
            w = w + np.exp(-self.b * cosine(self.m, row.m)) * row.v
        return g / np.sqrt(w + self.eps)

    def _put(self):
        """The row of the task that ends: to its own, a free one, or one that merging frees."""
        mine = Row(self.m, self.v, 1, [self.task])
        own = self._row_of(self.task)
        free = [index for index in range(self.count) if index not in self.rows]
        if own is not None or free:
            self.rows[own if own is not None else free[0]] = mine
            return
        every = {**self.rows, self.count: mine}
        pairs = [(i, j) for i in every for j in every if i < j]
        first, second = max(
            sorted(pairs), key=lambda pair: cosine(every[pair[0]].m, every[pair[1]].m)
        )
        one, other = every[first], every[second]
        size = one.size + other.size
        mean = (one.size * one.m + other.size * other.m) / size
        self.rows[first] = Row(mean, one.v + other.v, size, one.tasks + other.tasks)
        if second != self.count:
            self.rows[second] = mine

    def _take(self, task, g):
        own = self._row_of(task)
        self.task, self.m, self.v = task, np.zeros_like(g), np.zeros_like(g)
        if own is not None and self.rows[own].size == 1:
            self.m, self.v = self.rows[own].m, self.rows[own].v
            return
        if own is not None:
            self.rows[own].tasks.remove(task)
        self.steps[task] = 0

    def _row_of(self, task):
        return next((i for i, row in self.rows.items() if task in row.tasks), None)

    def row_of(self, capacity):
        found = [self._row_of(task) for task in range(capacity)]
        return [-1 if row is None else row for row in found]

    def sizes(self):
        return [self.rows[i].size if i in self.rows else 0 for i in range(self.count)]


def cosine(x, y):
    lengths = np.linalg.norm(x) * np.linalg.norm(y)
    return x @ y / lengths if lengths else 0.0


TASKS, WIDTH = 8, 6


@functools.cache  # Compiled once.
def clustered_rms(optimizer, count):
    tx = SCALE_BY[optimizer](2.0, TASKS, bank=tag_optax.clustered(count))
    return tx, jax.jit(lambda g, s, t: tx.update(g, s, task_id=t))


def flat_stream(order, seed, near=0.3):
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(TASKS, WIDTH))
    return [means[task] + near * rng.normal(size=WIDTH) for task in order]


orders = st.lists(st.integers(0, TASKS - 1), min_size=1, max_size=30)


@pytest.mark.parametrize("optimizer", ["rms", "adagrad"])
@pytest.mark.parametrize("count", [1, 2, 3])
@hypothesis.given(order=orders, seed=st.integers(0, 999))
def test_a_dumb_implementation_agrees(optimizer, count, order, seed):
    tx, update = clustered_rms(optimizer, count)
    dumb = NumpyClusters(optimizer, count, 2.0)
    state = tx.init(jnp.zeros(WIDTH))
    for step, (g, task) in enumerate(zip(flat_stream(order, seed), order, strict=True)):
        found, state = update(g, state, jnp.int32(task))
        expected = dumb.update(g, task)
        assert state.bank.row_of.tolist() == dumb.row_of(TASKS), step
        assert state.bank.sizes.tolist() == dumb.sizes(), step
        np.testing.assert_allclose(found, expected, rtol=1e-9, err_msg=f"{step}")
        assert state.steps.tolist() == [dumb.steps[t] for t in range(TASKS)], step
    for index, row in dumb.rows.items():
        np.testing.assert_allclose(state.bank.rows["nu"][index], row.v, rtol=1e-9)
        np.testing.assert_allclose(
            state.bank.rows["direction"][index], row.m, rtol=1e-9, atol=1e-12
        )
        np.testing.assert_allclose(
            state.bank.rows["length"][index], np.linalg.norm(row.m), rtol=1e-9
        )


@pytest.mark.parametrize("count", [1, 3])
@hypothesis.given(order=orders, seed=st.integers(0, 999))
def test_no_second_moment_is_lost(count, order, seed):
    """Under Adagrad, rows and the live one add up to all squares, whatever is merged."""
    tx, update = clustered_rms("adagrad", count)
    state, total = tx.init(jnp.zeros(WIDTH)), np.zeros(WIDTH)
    for g, task in zip(flat_stream(order, seed), order, strict=True):
        _, state = update(g, state, jnp.int32(task))
        total += g**2
        rows, at = np.array(state.bank.rows["nu"]), int(state.bank.row_of[task])
        if at >= 0:
            rows[at] = 0  # There lies what the task at hand has taken up.
        np.testing.assert_allclose(rows.sum(0) + state.live["nu"], total, rtol=1e-12)
        # Every other task that was there has its place.
        assert ((state.bank.row_of >= 0) == state.visited)[np.arange(TASKS) != task].all()


# Which tasks are joined.


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4, 5), (0, 2, 4, 1, 3, 5), (5, 0, 3, 1, 4, 2)])
def test_pairs_of_near_parallel_tasks_share_rows(order):
    """Tasks 2 n and 2 n + 1 have nearly one direction; the last one is put away by a stranger."""
    rng = np.random.default_rng(0)
    axes = np.repeat(np.eye(4)[:3], 2, axis=0)
    visits = [task for task in order for _ in range(3)] + [6]
    stream = [
        (axes[task] if task < 6 else np.eye(4)[3]) + 0.02 * rng.normal(size=4) for task in visits
    ]
    tx = tag_optax.scale_by_tag_rms(2.0, 7, bank=tag_optax.clustered(3))
    _, state = run(tx, [jnp.array(g) for g in stream], visits)
    rows = state.bank.row_of.tolist()
    assert rows[0] == rows[1]
    assert rows[2] == rows[3]
    assert rows[4] == rows[5]
    assert sorted(rows[::2][:3]) == [0, 1, 2]
    assert state.bank.sizes.tolist() == [2, 2, 2]
    # Their directions are the means, and one weight holds for both.
    for pair in range(3):
        mean = np.array(state.bank.rows["direction"][rows[2 * pair]])
        assert cosine(mean, axes[2 * pair]) > 0.99
        assert state.alpha[2 * pair] == state.alpha[2 * pair + 1]


# Many tasks.


def test_bytes_do_not_follow_the_tasks():
    params = jax.ShapeDtypeStruct((256, 128), jnp.float32)
    few, many = (
        tag_optax.state_bytes(
            tag_optax.tag_rmsprop(5.0, tasks, bank=tag_optax.clustered(16)), params
        )
        for tasks in (16, 1016)
    )
    # visited, steps, alpha, row_of
    assert many - few == 1000 * (1 + 4 + 4 + 4)
    row = 4 * 256 * 128
    assert few - (2 * 17 + 1) * row < 1000  # Moments of 16 rows and the live one, and the past.


def test_a_thousand_tasks_in_sixteen_rows():
    rng = np.random.default_rng(0)
    order = jnp.array(np.r_[np.arange(1000), rng.integers(0, 1000, 200)], jnp.int32)
    kinds = rng.normal(size=(10, 20))
    stream = jnp.array(kinds[np.array(order) % 10] + 0.1 * rng.normal(size=(1200, 20)))
    tx = tag_optax.scale_by_tag_adagrad(2.0, 1000, bank=tag_optax.clustered(16))

    @jax.jit
    def learn(state):
        def step(state, now):
            g, task = now
            update, state = tx.update(g, state, task_id=task)
            return state, update

        return jax.lax.scan(step, state, (stream, order))

    state, updates = learn(tx.init(jnp.zeros(20)))
    assert np.isfinite(updates).all()
    assert (state.bank.sizes > 0).all()
    # Nothing is lost of what was put away, nor of the task at hand.
    np.testing.assert_allclose(
        state.bank.rows["nu"].sum(0) + state.live["nu"], (stream**2).sum(0), rtol=1e-9
    )
    visits = 1 + np.sum(np.diff(np.array(order)) != 0)
    assert int(state.bank.sizes.sum()) <= visits - 1
    # Tasks of a kind are together: a row has tasks of one kind alone.
    rows = np.array(state.bank.row_of)
    for row in range(16):
        assert len(set(np.flatnonzero(rows == row) % 10)) == 1


# Refusals, growth, numbers that are not finite.


@pytest.mark.parametrize("name", ["own", "uniform", "age"])
def test_what_compares_nothing_is_refused(name):
    message = r"clustered\(4\).*compares none: choose relatedness='cosine', or bank='full' or"
    with pytest.raises(ValueError, match=message):
        tag_optax.tag_rmsprop(5.0, 9, relatedness=name, bank=tag_optax.clustered(4))


@pytest.mark.parametrize("rows", [0, -3, 1.5, True])
def test_rows_must_be_a_number(rows):
    with pytest.raises(ValueError, match=r"rows=.* must be an integer of at least 1"):
        tag_optax.clustered(rows)


def test_grow_keeps_everything_and_goes_on():
    order, cut = (3, 3, 0, 1, 2, 3, 0, 1, 5, 6, 5, 2, 7, 0), 8
    stream = [jnp.array(g) for g in flat_stream(order, 0)]
    make = functools.partial(tag_optax.scale_by_tag_rms, 2.0, bank=tag_optax.clustered(2))
    expected, last = run(make(8), stream, order)
    narrow = make(4)
    before, state = run(narrow, stream[:cut], order[:cut])
    grown = tag_optax.grow(state, 8)
    assert grown.bank.row_of.tolist() == [*state.bank.row_of.tolist(), -1, -1, -1, -1]
    chex.assert_trees_all_equal(grown.bank.rows, state.bank.rows)
    chex.assert_trees_all_equal(grown.bank.sizes, state.bank.sizes)
    chex.assert_trees_all_equal(grown.live, state.live)
    after, state = run(narrow, stream[cut:], order[cut:], state=grown)
    chex.assert_trees_all_close([*before, *after], expected, rtol=1e-12)
    chex.assert_trees_all_close(state, last, rtol=1e-12)


def assert_finite(tree):
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        assert np.isfinite(np.asarray(leaf, np.float64)).all(), jax.tree_util.keystr(path)


@functools.cache
def small(optimizer, kind, scope):
    bank = tag_optax.clustered(2)
    tx = SCALE_BY[optimizer](5.0, 5, b1=0.0, relatedness=related(kind, scope), bank=bank)
    return tx, jax.jit(lambda g, s, t: tx.update(g, s, task_id=t))


@pytest.mark.parametrize(
    ("optimizer", "kind", "scope"),
    [
        ("rms", "cosine", "global"),
        pytest.param("adagrad", "cosine", "leaf", marks=pytest.mark.ci),
        pytest.param("adam", "first_gradients", "global", marks=pytest.mark.ci),
    ],
)
@hypothesis.given(data=st.data())
def test_the_bank_is_finite_after_anything(optimizer, kind, scope, data):
    tx, update = small(optimizer, kind, scope)
    numbers = st.floats(width=32, allow_nan=True, allow_infinity=True)
    numbers |= st.sampled_from([np.nan, np.inf, -np.inf, 3e38, -3e38, 1.8e19, -1.8e19, 1e-45, 0.0])
    one = st.tuples(st.integers(0, 4), st.lists(numbers, min_size=3, max_size=3))
    state = tx.init({"w": jnp.zeros(2, jnp.float32), "c": jnp.zeros(1, jnp.float32)})
    for task, values in data.draw(st.lists(one, max_size=12), "steps"):
        g = {"w": jnp.array(values[:2], jnp.float32), "c": jnp.array(values[2:], jnp.float32)}
        updates, state = update(g, state, jnp.int32(task))
        assert_finite(state)
        parts = np.concatenate([np.asarray(x) for x in jax.tree.leaves(updates)])
        assert np.isfinite(parts).all() or np.isnan(parts).all()


@pytest.mark.parametrize(
    "bank", ["full", tag_optax.full(split=True), "compressed", tag_optax.clustered(2)], ids=str
)
def test_huge_and_opposed(bank):
    """The weight of an opposed task is exp(b): its second moment times that is too large."""
    tx = tag_optax.scale_by_tag_rms(5.0, 2, bank=bank)
    state = tx.init(jnp.zeros(1, jnp.float32))
    for task, number in enumerate((-1.8e19, 1.8e19)):
        updates, state = tx.update(jnp.full(1, number, jnp.float32), state, task_id=task)
        assert_finite((updates, state))


@pytest.mark.ci
def test_a_bad_step_is_as_if_it_had_not_been():
    order = [0, 1, 2, 3, 1, 0, 2]
    stream = [jnp.array(g) for g in flat_stream(order, 0)]
    tx = tag_optax.scale_by_tag_rms(2.0, 5, bank=tag_optax.clustered(2))
    expected, last = run(tx, stream, order)
    for at in (5, 3):  # In the middle of a visit.
        stream.insert(at, stream[at - 1].at[1].set(jnp.nan))
        order.insert(at, order[at - 1])
    found, state = run(tx, stream, order)
    for at in (6, 3):
        assert np.isnan(found.pop(at)).all()
    chex.assert_trees_all_equal(found, expected)
    chex.assert_trees_all_equal(state, last)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_types_are_stable(dtype):
    params = {"w": jax.ShapeDtypeStruct((3, 4), dtype), "b": jax.ShapeDtypeStruct((), dtype)}
    tx = tag_optax.tag_adam(2.0, 5, bank=tag_optax.clustered(2))
    state = jax.eval_shape(tx.init, params)
    task = jax.ShapeDtypeStruct((), jnp.int32)
    update = lambda g, s, t: tx.update(g, s, g, task_id=t)  # noqa: E731
    _, after = jax.eval_shape(update, params, state, task)
    assert after == state


# Seeds side by side.


@pytest.mark.ci
def test_vmap_equals_one_by_one():
    """Each seed joins its own tasks."""
    order = (0, 1, 2, 3, 3, 1, 4, 0, 2)
    tx = tag_optax.scale_by_tag_rms(2.0, 5, bank=tag_optax.clustered(2))
    streams = [[jnp.array(g) for g in flat_stream(order, seed)] for seed in range(4)]
    alone = [run(tx, stream, order) for stream in streams]
    axes = tag_optax.vmap_axes(tx, streams[0][0])
    state = jax.vmap(tx.init, out_axes=axes)(jnp.zeros((4, WIDTH)))
    update = jax.jit(
        jax.vmap(lambda g, s, t: tx.update(g, s, task_id=t), (0, axes, None), (0, axes))
    )
    for step, task in enumerate(order):
        found, state = update(jnp.stack([s[step] for s in streams]), state, jnp.int32(task))
        expected = jnp.stack([updates[step] for updates, _ in alone])
        np.testing.assert_allclose(found, expected, rtol=1e-9)
    np.testing.assert_array_equal(
        state.bank.row_of, jnp.stack([last.bank.row_of for _, last in alone])
    )
    assert len({tuple(rows) for rows in state.bank.row_of.tolist()}) > 1  # They do differ.


# A mesh.

SPECS = {"matrix": P("model", None), "tall": P(None, "model"), "vector": P(), "scalar": P()}
SHAPES = {"matrix": (4, 3), "tall": (3, 8), "vector": (5,), "scalar": ()}
MESH_ORDER = (5, 5, 0, 3, 0, 5, 7, 2, 3)


@pytest.mark.ci
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("scope", ["global", "leaf"])
def test_split_parameters_change_nothing(axis_type, scope):
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(axis_type,) * 2)
    shardings = {name: NamedSharding(mesh, spec) for name, spec in SPECS.items()}
    rng = np.random.default_rng(0)
    stream = [{k: rng.normal(size=s) for k, s in SHAPES.items()} for _ in MESH_ORDER]

    def tag(split):
        bank = tag_optax.clustered(3, split=split)
        return tag_optax.scale_by_tag_adam(2.0, 8, relatedness=tag_optax.cosine(scope), bank=bank)

    expected, last = run(tag(split=False), stream, MESH_ORDER)
    tx = tag(split=True)
    placed = tag_optax.state_sharding(tx, stream[0], shardings)
    whole = tag_optax.state_sharding(
        tag_optax.scale_by_tag_adam(
            2.0, 3, relatedness=tag_optax.cosine(scope), bank=tag_optax.full(split=True)
        ),
        stream[0],
        shardings,
    )
    for moment in ("nu", "mu"):
        assert placed.bank.rows[moment] == whole.bank[moment]
    assert placed.bank.row_of.spec == placed.bank.sizes.spec == P()
    with jax.set_mesh(mesh):
        params = jax.device_put(jax.tree.map(jnp.zeros_like, stream[0]), shardings)
        state = jax.jit(tx.init, out_shardings=placed)(params)
        step = jax.jit(
            lambda g, s, t: tx.update(g, s, task_id=t),
            donate_argnums=1,
            out_shardings=(shardings, placed),
        )
        for g, task, update in zip(stream, MESH_ORDER, expected, strict=True):
            found, state = step(jax.device_put(g, shardings), state, jnp.int32(task))
            chex.assert_trees_all_close(
                jax.device_get(found), jax.device_get(update), rtol=1e-9, atol=1e-12
            )
    assert state.bank.row_of.tolist() == last.bank.row_of.tolist()
    rows = state.bank.rows["nu"]["matrix"]
    assert rows.addressable_shards[0].data.shape == (3, 2, 3)


def test_one_array_of_parameters_has_a_sharding():
    """`row_of` and `sizes` are not the one parameter's rows."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    params = jnp.zeros((4, 6))
    tx = tag_optax.scale_by_tag_rms(5.0, 8, bank=tag_optax.clustered(4, split=True))
    placed = tag_optax.state_sharding(tx, params, NamedSharding(mesh, P("model")))
    assert placed.bank.rows["nu"].spec == P(None, "model", None)
    assert placed.bank.row_of.spec == placed.bank.sizes.spec == P()
    jax.jit(tx.init, out_shardings=placed)(params)


@pytest.mark.parametrize("rows", [3, 4])
def test_its_rows_cannot_be_spread(rows):
    """A row is not a task, and rows are merged: they lie whole on every device."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    params = {"w": jnp.zeros((4, 6)), "b": jnp.zeros(6)}
    tx = optax.chain(tag_optax.tag_rmsprop(5.0, 8, bank=tag_optax.clustered(rows, split=True)))
    with pytest.raises(ValueError, match=r"clustered bank.*leave task_axis out"):
        tag_optax.state_sharding(tx, params, NamedSharding(mesh, P()), task_axis="data")


# Memory.

ROW = 256 * 128 * 4


def compiled_step(tx, seeds=None):
    """What XLA says of a donated step, and the bytes of its state."""
    params = jax.ShapeDtypeStruct((256, 128), jnp.float32)
    init, update = tx.init, lambda g, s, t: tx.update(g, s, task_id=t)
    if seeds:
        axes = tag_optax.vmap_axes(tx, params)
        init = jax.vmap(init, out_axes=axes)
        update = jax.vmap(update, (0, axes, None), (0, axes))
        params = jax.ShapeDtypeStruct((seeds, *params.shape), params.dtype)
    state = jax.eval_shape(init, params)
    step = jax.jit(update, donate_argnums=(0, 1))
    compiled = step.lower(params, state, jax.ShapeDtypeStruct((), jnp.int32)).compile()
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    return compiled.memory_analysis(), size


@pytest.mark.ci
@pytest.mark.parametrize("relatedness", ["cosine", "first_gradients"])
@pytest.mark.parametrize("optimizer", SCALE_BY)
def test_no_temporary_of_a_banks_size(optimizer, relatedness):
    bank = tag_optax.clustered(16)
    memory, size = compiled_step(SCALE_BY[optimizer](5.0, 100, relatedness=relatedness, bank=bank))
    assert memory.alias_size_in_bytes >= size
    assert memory.temp_size_in_bytes <= 8 * ROW  # The bank is 32 rows, or 48.


@pytest.mark.ci
def test_seeds_that_join_other_tasks_copy_no_bank():
    memory, size = compiled_step(
        tag_optax.scale_by_tag_rms(5.0, 100, bank=tag_optax.clustered(16)), seeds=4
    )
    assert memory.alias_size_in_bytes >= size
    assert memory.temp_size_in_bytes <= 4 * 8 * ROW
