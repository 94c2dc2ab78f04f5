"""A bank on a mesh: where its leaves lie, and that the numbers stay the same."""

import contextlib

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import tag_optax
from benchmarks import hlo
from tests.streams import related

pytestmark = pytest.mark.ci

CAPACITY = 8
ORDER = (5, 5, 0, 3, 0, 5, 7)
AXIS_TYPES = [
    (AxisType.Auto, AxisType.Auto),
    (AxisType.Explicit, AxisType.Explicit),
    (AxisType.Auto, AxisType.Explicit),
]
AUTO = AXIS_TYPES[0]
SPECS = {"matrix": P("model", None), "tall": P(None, "model"), "vector": P(), "scalar": P()}
SHAPES = {"matrix": (4, 3), "tall": (3, 8), "vector": (5,), "scalar": ()}


def mesh_of(axis_types: tuple[AxisType, AxisType]) -> jax.sharding.Mesh:
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=axis_types)


def make_stream():
    rng = np.random.default_rng(0)
    return [{k: rng.normal(size=s) for k, s in SHAPES.items()} for _ in ORDER]


def follow(tx, stream, params_sharding=None, state_shardings=None):
    """Parameters and state after the stream, one jitted and donated step each."""
    params = jax.tree.map(jnp.zeros_like, stream[0])
    if params_sharding is not None:
        params = jax.device_put(params, params_sharding)
    state = jax.jit(tx.init, out_shardings=state_shardings)(params)

    def step(params, state, g, task):
        updates, state = tx.update(g, state, params, task_id=task)
        return optax.apply_updates(params, updates), state

    step = jax.jit(step, donate_argnums=(0, 1))
    for g, task in zip(stream, ORDER, strict=True):
        if params_sharding is not None:
            g = jax.device_put(g, params_sharding)
        params, state = step(params, state, g, jnp.int32(task))
    return params, state


@pytest.mark.parametrize(
    "axis_types", [*AXIS_TYPES[:2], pytest.param(AXIS_TYPES[2], marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("task_axis", [None, "data"])
@pytest.mark.parametrize(
    ("relatedness", "dtype", "scope"),
    [
        ("cosine", None, "global"),
        ("cosine", None, "leaf"),
        ("own", None, "global"),
        ("cosine", "bfloat16", "global"),
        pytest.param("cosine", "bfloat16", "leaf", marks=pytest.mark.slow),
    ],
)
def test_a_mesh_changes_nothing(axis_types, task_axis, scope, relatedness, dtype):
    mesh = mesh_of(axis_types)
    shardings = {k: NamedSharding(mesh, spec) for k, spec in SPECS.items()}
    stream = make_stream()

    def tag(split):
        bank = tag_optax.full(nu_dtype=dtype, split=split)
        return tag_optax.tag_adam(
            2.0, CAPACITY, 0.1, relatedness=related(relatedness, scope), bank=bank
        )

    expected, _ = follow(tag(split=False), stream)
    tx = tag(split=True)
    placed = tag_optax.state_sharding(tx, stream[0], shardings, task_axis=task_axis)
    with jax.set_mesh(mesh):
        params, state = follow(tx, stream, shardings, placed)
    chex.assert_trees_all_close(
        jax.device_get(params), jax.device_get(expected), rtol=1e-9 if dtype is None else 1e-5
    )
    bank = state[0].bank["nu"]["matrix"]
    rows = CAPACITY if task_axis is None else CAPACITY // 4
    assert bank.addressable_shards[0].data.shape == (rows, 2, 3)
    assert state[0].live["nu"]["matrix"].addressable_shards[0].data.shape == (2, 3)


@pytest.mark.parametrize("axis_types", AXIS_TYPES[1:])
def test_an_explicit_mesh_needs_no_flag(axis_types):
    """Explicit types tell by themselves that the tasks are spread."""
    mesh = mesh_of(axis_types)
    shardings = {k: NamedSharding(mesh, spec) for k, spec in SPECS.items()}
    tx, stream = tag_optax.tag_adam(2.0, CAPACITY, 0.1), make_stream()
    expected, _ = follow(tx, stream)
    placed = tag_optax.state_sharding(tx, stream[0], shardings, task_axis="data")
    with jax.set_mesh(mesh):
        params, _ = follow(tx, stream, shardings, placed)
    chex.assert_trees_all_close(jax.device_get(params), jax.device_get(expected), rtol=1e-9)


def test_whole_parameters_and_a_split_state():
    """As ZeRO does it: the moments lie along parameters that are whole themselves."""
    mesh = mesh_of(AUTO)
    split = {k: NamedSharding(mesh, spec) for k, spec in SPECS.items()}
    whole = dict.fromkeys(SPECS, NamedSharding(mesh, P()))
    stream = make_stream()
    expected, _ = follow(tag_optax.tag_adam(2.0, CAPACITY, 0.1), stream)
    tx = tag_optax.tag_adam(2.0, CAPACITY, 0.1, bank=tag_optax.full(split=True))
    placed = tag_optax.state_sharding(tx, stream[0], split)
    with jax.set_mesh(mesh):
        params, state = follow(tx, stream, whole, placed)
    chex.assert_trees_all_close(jax.device_get(params), jax.device_get(expected), rtol=1e-9)
    assert state[0].bank["nu"]["matrix"].addressable_shards[0].data.shape == (CAPACITY, 2, 3)


@pytest.mark.parametrize("axis_types", AXIS_TYPES)
def test_types_are_stable_eager_and_jitted(axis_types):
    mesh = mesh_of(axis_types)
    with jax.set_mesh(mesh):
        params = jax.device_put(jnp.ones((4, 3)), NamedSharding(mesh, P("model")))
        tx = tag_optax.tag_rmsprop(5.0, 4)
        state = tx.init(params)
        for update in (tx.update, jax.jit(tx.update)):
            updates, after = update(params, state, params, task_id=1)
            assert jax.typeof(updates) == jax.typeof(params)
            assert jax.tree.map(jax.typeof, after) == jax.tree.map(jax.typeof, state)


def test_where_every_leaf_lies():
    mesh = mesh_of(AUTO)
    params = {"w": jnp.zeros((4, 6)), "b": jnp.zeros(6)}
    shardings = {"w": NamedSharding(mesh, P(None, "model")), "b": NamedSharding(mesh, P("model"))}
    tx = optax.chain(
        optax.trace(0.9),
        tag_optax.project_orthogonal(3, 2),
        optax.masked(
            optax.inject_hyperparams(tag_optax.tag_rmsprop, static_args="task_capacity")(
                5.0, task_capacity=8
            ),
            {"w": True, "b": False},
        ),
    )
    for source in (tx, tx.init(params), jax.eval_shape(tx.init, params)):
        placed = tag_optax.state_sharding(source, params, shardings, task_axis="data")
        assert placed[0].trace["b"].spec == P("model")
        assert placed[1].basis["w"].spec == P(None, None, "model")
        assert placed[1].stored.spec == P()
        tag = jax.tree.leaves(placed, is_leaf=lambda x: isinstance(x, tag_optax.ScaleByTagState))
        (tag,) = [x for x in tag if isinstance(x, tag_optax.ScaleByTagState)]
        assert tag.live["nu"]["w"].spec == P(None, "model")
        assert tag.bank["direction"]["w"].spec == P("data", None, "model")
        assert tag.steps.spec == tag.alpha.spec == tag.bank["length"].spec == P()
    state = jax.jit(tx.init, out_shardings=placed)(params)
    bank = optax.tree.get(state, "bank")["nu"]["w"]
    assert bank.addressable_shards[0].data.shape == (2, 4, 3)


def test_specs_with_a_mesh_and_one_sharding_for_all():
    mesh = mesh_of(AUTO)
    params = {"w": jnp.zeros((4, 6)), "b": jnp.zeros(6)}
    tx = tag_optax.tag_rmsprop(5.0, 8, bank=tag_optax.full(split=True))
    placed = tag_optax.state_sharding(tx, params, P(), mesh=mesh, task_axis="model")
    assert placed[0].bank["nu"]["w"].spec == P("model", None, None)
    assert placed[0].live["nu"]["b"].spec == P()


def test_a_bank_that_is_not_split_is_refused_for_parameters_that_are():
    mesh = mesh_of(AUTO)
    params = {"w": jnp.zeros((4, 6)), "b": jnp.zeros(6)}
    specs = {"w": P("model"), "b": P()}
    with pytest.raises(ValueError, match=r"\['w'\] is split .* bank=tag_optax.full\(split=True\)"):
        tag_optax.state_sharding(tag_optax.tag_rmsprop(5.0, 8), params, specs, mesh=mesh)


def test_mesh_errors():
    mesh = mesh_of(AUTO)
    params = jnp.zeros((4, 6))
    tx = tag_optax.tag_rmsprop(5.0, 10)
    everywhere = NamedSharding(mesh, P())
    with pytest.raises(ValueError, match=r"task_capacity=10 .* 4 devices .*use task_capacity=12"):
        tag_optax.state_sharding(tx, params, everywhere, task_axis="data")
    with pytest.raises(ValueError, match=r"task_axis='tasks' is no axis.*data, model"):
        tag_optax.state_sharding(tx, params, everywhere, task_axis="tasks")
    with pytest.raises(ValueError, match="task_axis='model' already splits the parameter"):
        tag_optax.state_sharding(tx, params, NamedSharding(mesh, P("model")), task_axis="model")
    with pytest.raises(ValueError, match="pass mesh="):
        tag_optax.state_sharding(tx, params, P())


def compile_step(mesh, task_axis, *, split, scope="global", with_mesh=True):
    """The compiled step of 64 tasks, donated, and its state."""
    params = {"w": jnp.zeros((64, 32)), "b": jnp.zeros((32,)), "v": jnp.zeros((32, 16))}
    specs = {"w": P(None, "model"), "b": P("model"), "v": P("model", None)}
    if not split:
        specs = dict.fromkeys(params, P())
    shardings = {name: NamedSharding(mesh, spec) for name, spec in specs.items()}
    tx = tag_optax.tag_rmsprop(
        5.0, 64, relatedness=tag_optax.cosine(scope), bank=tag_optax.full(split=True)
    )
    placed = tag_optax.state_sharding(tx, params, shardings, task_axis=task_axis)
    step = jax.jit(
        lambda g, s, t: tx.update(g, s, task_id=t),
        out_shardings=(shardings, placed),
        donate_argnums=1,
    )
    with jax.set_mesh(mesh) if with_mesh else contextlib.nullcontext():
        params = jax.device_put(params, shardings)
        state = jax.jit(tx.init, out_shardings=placed)(params)
        task = jax.device_put(jnp.int32(0), NamedSharding(mesh, P()))
        return params, state, step.lower(params, state, task).compile()


@pytest.mark.parametrize("axis_types", [AUTO, (AxisType.Explicit, AxisType.Explicit)])
@pytest.mark.parametrize("scope", ["global", pytest.param("leaf", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("task_axis", "split"), [(None, False), ("data", False), (None, True), ("data", True)]
)
def test_only_sums_travel(axis_types, scope, task_axis, split):
    """A meeting for the gradient's length, one for the weights, one for W where tasks are spread,
    and none of a bank's size."""
    mesh = mesh_of(axis_types)  # 4 x 2
    params, _, compiled = compile_step(mesh, task_axis, split=split, scope=scope)
    leaves, width = len(params), 8  # The tests' float64 weights.
    row = sum(p.nbytes for p in params.values()) // (2 if split else 1)
    groups = leaves if scope == "leaf" else 1
    rows = 64 // 4 if task_axis else 64

    expected = []
    if split:  # Each device's products and norm, leaf by leaf, over the two that share a row.
        expected += [("all-reduce", leaves * width, 2)]
        expected += [("all-reduce", leaves * (rows + 1) * width, 2)]
    if task_axis:  # All products over the four that share the tasks, and W.
        expected += [("all-gather", groups * 64 * width, 4), ("all-reduce", row, 4)]
    found = hlo.collectives(compiled.as_text())
    assert [(c.kind, c.bytes, c.group) for c in found if not c.inside] == expected
    # The two rows of the task taken up.
    changing = [(c.kind, c.bytes, c.group) for c in found if c.inside]
    assert changing == ([("all-reduce", 2 * row, 4)] if task_axis else [])


def test_without_a_mesh_in_context_no_bank_travels_either():
    mesh = mesh_of(AUTO)
    params, _, compiled = compile_step(mesh, "data", split=True, with_mesh=False)
    row = sum(p.nbytes for p in params.values()) // 2
    found = hlo.collectives(compiled.as_text())
    assert max(c.bytes for c in found if not c.inside) == row
    assert max(c.bytes for c in found) == 2 * row


def test_each_device_holds_its_part():
    """64 tasks on 8 devices: an eighth of the bank on each, and a few rows besides in a step."""
    mesh = jax.make_mesh((8, 1), ("data", "model"), axis_types=AUTO)
    params, state, compiled = compile_step(mesh, "data", split=False)
    row = sum(p.nbytes for p in params.values())
    held = np.zeros(8, int)
    for leaf in jax.tree.leaves((state[0].bank["direction"], state[0].bank["nu"])):
        held += [shard.data.nbytes for shard in leaf.addressable_shards]
    np.testing.assert_array_equal(held, [2 * 64 * row // 8] * 8)
    memory = compiled.memory_analysis()
    # The bank's part, two live rows, the gradient, and numbers for each task.
    assert 0 <= memory.argument_size_in_bytes - (2 * 8 + 3) * row < 2_500
    assert memory.temp_size_in_bytes < 5 * row < held[0]


def test_the_bank_is_made_where_it_belongs():
    mesh = jax.make_mesh((8, 1), ("data", "model"), axis_types=AUTO)
    params = jnp.zeros((64, 32))
    tx = tag_optax.tag_rmsprop(5.0, 64, bank=tag_optax.full(split=True))
    placed = tag_optax.state_sharding(tx, params, P(), mesh=mesh, task_axis="data")
    memory = jax.jit(tx.init, out_shardings=placed).lower(params).compile().memory_analysis()
    assert memory.output_size_in_bytes < (2 * 8 + 3) * params.nbytes + 2_500
    assert memory.temp_size_in_bytes < 2 * params.nbytes
