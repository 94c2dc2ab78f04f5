"""The cost model's formulas against real states, and the reader of compiled programs."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import tag_optax
from benchmarks import cost_model, hlo
from benchmarks.cost_model import Layout

pytestmark = pytest.mark.ci


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("task_devices", "model_devices"), [(1, 1), (8, 1), (1, 8), (4, 2)])
def test_the_state_is_as_large_as_on_paper(task_devices, model_devices, dtype):
    mesh = jax.make_mesh(
        (task_devices, model_devices),
        ("tasks", "model"),
        axis_types=(AxisType.Auto, AxisType.Auto),
        devices=jax.devices()[: task_devices * model_devices],
    )
    params = {"w": jnp.zeros((3, 16), jnp.float32), "b": jnp.zeros(8, jnp.float32)}
    shardings = {"w": NamedSharding(mesh, P(None, "model")), "b": NamedSharding(mesh, P("model"))}
    tx = tag_optax.scale_by_tag_rms(5.0, 16, bank=tag_optax.full(dtype, dtype, split=True))
    placed = tag_optax.state_sharding(tx, params, shardings, task_axis="tasks")
    state = jax.jit(tx.init, out_shardings=placed)(params)
    held = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(state))

    layout = Layout(16, 56, task_devices, model_devices, moment_bytes=jnp.dtype(dtype).itemsize)
    assert cost_model.state_bytes(layout) == held
    on_one_device = layout._replace(task_devices=1, model_devices=1)
    assert cost_model.state_bytes(on_one_device) == tag_optax.state_bytes(tx, params)


def test_one_device_sends_nothing():
    layout = Layout(16, 56, leaves=2, whole_parameters=True)
    assert cost_model.step_sent(layout) == cost_model.change_sent(layout) == 0


def test_collectives_of_a_compiled_program():
    """A sum at every execution, and another one in a branch."""
    mesh = jax.make_mesh((4, 2), ("rows", "columns"), axis_types=(AxisType.Auto, AxisType.Auto))
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("rows", "columns"))

    def program(x: jax.Array, rare: jax.Array):
        always = jnp.sum(x, axis=0)  # 6 of 12 numbers on each device, summed over 4 devices
        return always, jax.lax.cond(rare, lambda: jnp.sum(x, axis=1), lambda: x[:, 0])

    out = NamedSharding(mesh, P("columns")), NamedSharding(mesh, P("rows"))
    compiled = (
        jax.jit(program, in_shardings=(split, everywhere), out_shardings=out)
        .lower(jnp.ones((8, 12), jnp.float32), jnp.bool_(True))
        .compile()
    )
    reductions = [c for c in hlo.collectives(compiled.as_text()) if c.kind == "all-reduce"]
    (always,) = [c for c in reductions if not c.inside]
    assert (always.bytes, always.group) == (6 * 4, 4)
    assert (2 * 4, 2, ("conditional",)) in [(c.bytes, c.group, c.inside) for c in reductions]


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("{{0,1,2},{3,4,5}}", 3),
        ("[2,4]<=[4,2]T(1,0)", 4),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_1'}", 4),
        ("mesh['axis_0'=2,'axis_1'=4], device_ids=([4,2]T(1,0)) {'axis_0'}", 2),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_0','axis_1'}", 8),
    ],
)
def test_group_sizes(groups, size):
    program = f"""
    ENTRY %main (a: bf16[4]) -> bf16[4] {{
      %a = bf16[4]{{0}} parameter(0)
      ROOT %sum = bf16[4]{{0}} all-reduce(%a), channel_id=1, replica_groups={groups}, to_apply=%add
    }}
    """
    assert hlo.collectives(program) == [hlo.Collective("all-reduce", 8, size, "main", ())]
