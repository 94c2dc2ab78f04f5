"""Long streams: banks that grow to a thousand tasks, counts at their end, weights at theirs."""

import contextlib
import functools
import gc

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tag_optax
from tag_optax import _relatedness
from tests.streams import ORDER, RELATEDNESS, SCALE_BY, gradients, related

pytestmark = pytest.mark.ci

LAST_COUNT = np.iinfo(np.int32).max


class Stepper:
    """A donated step with a traced task id, which counts how often it is traced."""

    def __init__(self, tx, params):
        self.tx, self.params, self.state = tx, params, tx.init(params)
        self.traced = 0
        self._step = jax.jit(self._call, donate_argnums=1)

    def _call(self, g, state, task):
        self.traced += 1
        return self.tx.update(g, state, task_id=task)

    def step(self, g, task):
        updates, self.state = self._step(g, self.state, np.int32(task))
        return updates


@contextlib.contextmanager
def compilations():
    """The durations of what XLA compiles inside the context."""
    found = []

    def listen(event, seconds, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def live_bytes():
    gc.collect()
    return sum(x.nbytes for x in jax.live_arrays())


def stream_of_tasks(tasks):
    """Two steps a task, in order; every tenth time an earlier task comes back for one."""
    rng = np.random.default_rng(0)
    for task in range(tasks):
        back = [int(rng.integers(task))] if task % 10 == 9 else []
        for number in [task, task, *back]:
            g = {"w": rng.normal(size=(4, 3)), "b": rng.normal(size=3)}
            yield number, {name: x.astype(np.float32) for name, x in g.items()}


@pytest.mark.parametrize(
    ("tasks", "capacity", "optimizer", "relatedness"),
    [
        (100, 50, "rms", "cosine"),
        pytest.param(1000, 8, "rms", "cosine", marks=pytest.mark.slow),
        pytest.param(1000, 8, "adam", "first_gradients", marks=pytest.mark.slow),
    ],
)
def test_a_bank_that_grows_as_tasks_come(tasks, capacity, optimizer, relatedness):
    make = functools.partial(SCALE_BY[optimizer], 5.0, relatedness=relatedness)
    params = {"w": jnp.zeros((4, 3), jnp.float32), "b": jnp.zeros(3, jnp.float32)}
    whole = Stepper(make(tasks), params)
    before = live_bytes()
    growing = Stepper(make(capacity), params)
    moments = ("mu" if optimizer == "adam" else "direction", "nu")
    rows = np.zeros((tasks, 2, 15), np.float32)  # M and V of every task when it was last left.
    left, capacities = None, [capacity]

    def live_row():
        return np.array([_flat(growing.state.live[name]) for name in moments])

    def check_bytes():
        """The state is as large as `state_bytes` says, and nothing else has stayed."""
        size = tag_optax.state_bytes(make(capacities[-1]), params)
        assert sum(x.nbytes for x in jax.tree.leaves(growing.state)) == size
        assert live_bytes() - before == size

    for task, g in stream_of_tasks(tasks):
        if left is not None and task != left:
            rows[left] = live_row()
        if task == capacities[-1]:
            check_bytes()
            capacities.append(2 * capacities[-1])
            growing.state = tag_optax.grow(growing.state, capacities[-1])
        first = growing.traced < len(capacities)
        expected = whole.step(g, task)
        with compilations() as compiled:
            updates = growing.step(g, task)
        # Compiled at each capacity's first step, and never else.
        assert (len(compiled), growing.traced) == (int(first), len(capacities))
        chex.assert_trees_all_close(updates, expected, rtol=1e-4)
        del updates, expected
        if first:
            check_bytes()
        left = task
    check_bytes()
    rows[left] = live_row()

    state = growing.state
    seen = state.steps > 0
    assert capacities[-1] >= tasks > capacities[-1] // 2
    assert seen.sum() == tasks
    assert int(state.steps.sum()) == 2 * tasks + tasks // 10
    # No row has changed by a bit since its task was left, through all growth.
    bank = np.stack([_flat(state.bank[name], 1) for name in moments], axis=1)
    others = np.arange(tasks) != left
    np.testing.assert_array_equal(bank[:tasks][others], rows[others])
    assert not bank[tasks:].any()
    alpha = np.asarray(tag_optax.task_weights(state))
    assert np.isfinite(alpha).all()
    assert (alpha[:tasks] > 0).all()
    assert not alpha[tasks:].any()


def _flat(tree, axes=0):
    leaves = [np.asarray(x) for x in jax.tree.leaves(tree)]
    return np.concatenate([x.reshape(*x.shape[:axes], -1) for x in leaves], axis=-1)


@pytest.mark.parametrize("optimizer", ["rms", "adam"])
@pytest.mark.parametrize("relatedness", ["cosine", "first_gradients", "own"])
def test_counts_stay_at_their_end(optimizer, relatedness):
    """All tasks have taken as many steps as can be counted, and learn on as after a million."""
    tx = SCALE_BY[optimizer](2.0, 3, relatedness=relatedness)
    update = jax.jit(tx.update)
    stream = gradients((0, 1, 2, 1, 2), dtype=np.float32)

    def learn(state, tasks, stream):
        updates = []
        for task, g in zip(tasks, stream, strict=True):
            u, state = update(g, state, task_id=task)
            updates.append(u)
        return updates, state

    _, state = learn(tx.init(stream[0]), (0, 1, 2), stream[:3])
    counted = [state._replace(steps=jnp.full_like(state.steps, n)) for n in (LAST_COUNT, 10**6)]
    (last, after), (expected, _) = (learn(state, (1, 2), stream[3:]) for state in counted)
    np.testing.assert_array_equal(after.steps, [LAST_COUNT] * 3)
    chex.assert_tree_all_finite(last)
    chex.assert_trees_all_close(last, expected, rtol=1e-6)


def found_by_b(make, stream, order):
    """Updates and states of a stream as a function of ``b``, compiled once for all."""
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *stream)

    @jax.jit
    def found(b):
        tx = make(b)

        def step(state, now):
            g, task = now
            updates, state = tx.update(g, state, task_id=task)
            return state, (updates, tag_optax.task_weights(state))

        return jax.lax.scan(step, tx.init(stream[0]), (stacked, jnp.array(order, jnp.int32)))

    return found


@pytest.mark.parametrize(
    ("optimizer", "relatedness", "scope"),
    [("rms", relatedness, scope) for relatedness in RELATEDNESS for scope in ("global", "leaf")]
    + [("adam", "cosine", "global"), ("adagrad", "cosine", "leaf")],
)
def test_any_b_stays_finite(optimizer, relatedness, scope):
    """Tasks that want the same, the opposite, and nothing of an unused parameter."""
    one = {
        "body": jnp.full(3, 1e4, jnp.float32),
        "head": jnp.full(2, 1e-4, jnp.float32),
        "unused": jnp.zeros(2, jnp.float32),
    }
    order = (0, 0, 1, 1, 2, 2, 3, 0, 1)
    stream = [jax.tree.map(lambda x, t=t: x if t % 2 == 0 else -x, one) for t in order]
    make = functools.partial(
        SCALE_BY[optimizer], task_capacity=4, relatedness=related(relatedness, scope)
    )
    found = found_by_b(make, stream, order)
    for b in (100.0, 1e4, -100.0):
        state, (updates, alpha) = found(jnp.float32(b))
        chex.assert_tree_all_finite((state, updates, alpha))
        # Small as a step may be, it is one: W has not overflowed either.
        for name in one:
            assert ((np.asarray(updates[name]) != 0) == (name != "unused")).all()
        for weights in jax.tree.leaves(alpha):
            assert (weights[-1] > 0).all()
            # Added up over the steps of a very long task, as a training loop does.
            assert np.isfinite(np.float32(1e9) * np.asarray(weights)).all()


@pytest.mark.parametrize("relatedness", ["cosine", "first_gradients", "own"])
def test_the_bound_of_alpha_changes_no_usual_b(monkeypatch, relatedness):
    stream = gradients(dtype=np.float32)
    make = functools.partial(
        tag_optax.scale_by_tag_rms, task_capacity=5, relatedness=related(relatedness, "leaf")
    )
    strengths = [jnp.float32(b) for b in (0.5, 5.0, 7.0, 44.0)]
    found = found_by_b(make, stream, ORDER)
    bounded = [found(b) for b in strengths]
    monkeypatch.setattr(_relatedness, "bounded_exp", jnp.exp)
    found = found_by_b(make, stream, ORDER)
    chex.assert_trees_all_equal(bounded, [found(b) for b in strengths])


@pytest.mark.parametrize(("dtype", "rtol"), [(jnp.float32, 1e-5), (jnp.float64, 1e-12)])
def test_the_bound_of_alpha_leaves_as_much_room_again(dtype, rtol):
    exponent = jnp.array([-jnp.inf, -1e4, -5.0, 0.0, 5.0, 1e4, jnp.inf], dtype)
    largest = float(np.sqrt(np.finfo(dtype).max))
    expected = [1 / largest, 1 / largest, *np.exp([-5.0, 0.0, 5.0]), largest, largest]
    np.testing.assert_allclose(_relatedness.bounded_exp(exponent), expected, rtol=rtol)
