"""What a TAG step costs each device as a mesh grows: measured on 1 to 8 devices, beyond on paper.

    python -m benchmarks.scaling [--quick] [--hbm-gbps 1600] [--link-gbps 100]

Weak scaling: each device's part of the bank stays the same, 8 rows of 1 M numbers. The families:

* tasks: whole parameters, and 8 n tasks spread over n devices;
* parameters: 8 tasks, and parameters n times as many split over n devices, the bank with them;
* both: 8 Dt tasks, and parameters Dm times as many, on Dt x Dm devices;
* moments: whole parameters and 8 n tasks, and the state split along the parameters;
* capacity: a mesh of 2 x 2 with other numbers of rows, since the model is a line in them.

The devices are forced on one host, so no time is measured; what each of them holds, touches (reads
and writes) and sends is read from the compiled step. It stands beside ``benchmarks.cost_model``,
which then goes on to sizes that no host can force. What only a change of task does is told apart.

What is held and sent is as on paper. More is touched: XLA for CPU copies a live row to another
layout here and there, 6 rows in all and 8 where W is a sum over devices, whatever the capacity.
Where whole gradients meet a split state, they count whole three times though only a part is read,
and updates gathered by columns are copied once more.
"""

import argparse
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import tag_optax
from benchmarks import cost_model, hlo, measure
from benchmarks.cost_model import Layout

DEVICES = (1, 2, 4, 8)
ROWS = 8  # of the bank, on each device


class Leaf(NamedTuple):
    shape: tuple[int, ...]
    spec: P


class Point(NamedTuple):
    family: str
    task_devices: int = 1
    model_devices: int = 1
    capacity: int = ROWS
    widths: int = 1  # The block's width in units of the narrowest one's.
    whole_parameters: bool = False


def block(width: int, units: int) -> dict[str, Leaf]:
    """A transformer block of ``units`` times ``width`` hidden units, split where it grows."""
    inner = width * units
    return {
        "attention": Leaf((width, 3 * inner), P(None, "model")),
        "attention_bias": Leaf((3 * inner,), P("model")),
        "project": Leaf((inner, width), P("model", None)),
        "scale": Leaf((inner,), P("model")),
        "up": Leaf((width, 4 * inner), P(None, "model")),
        "up_bias": Leaf((4 * inner,), P("model")),
        "down": Leaf((4 * inner, width), P("model", None)),
    }


def points() -> list[Point]:
    """Families of meshes that grow, and one mesh whose capacity grows."""
    tasks = [Point("tasks", n, 1, ROWS * n) for n in DEVICES]
    parameters = [Point("parameters", 1, n, ROWS, n) for n in DEVICES]
    both = [Point("both", t, m, ROWS * t, m) for t, m in ((2, 2), (4, 2), (2, 4))]
    moments = [Point("moments", 1, n, ROWS * n, whole_parameters=True) for n in DEVICES[1:]]
    capacity = [Point("capacity", 2, 2, 2 * rows, 2) for rows in (2, 32)]
    return [*tasks, *parameters, *both, *moments, *capacity]


def run(point: Point, width: int) -> dict[str, Any]:
    """One step's cost on one device, measured and on paper."""
    count = point.task_devices * point.model_devices
    mesh = jax.make_mesh(
        (point.task_devices, point.model_devices),
        ("tasks", "model"),
        axis_types=(AxisType.Auto, AxisType.Auto),
        devices=jax.devices()[:count],
    )
    leaves = block(width, point.widths)
    layout = Layout(
        point.capacity,
        sum(math.prod(leaf.shape) for leaf in leaves.values()),
        point.task_devices,
        point.model_devices,
        len(leaves),
        whole_parameters=point.whole_parameters,
    )
    compiled, held = compile_and_step(point, leaves, mesh)
    memory: Any = compiled.memory_analysis()
    program = compiled.as_text()
    by_occasion = hlo.bytes_accessed(program)
    found = hlo.collectives(program)

    def sent(every_step: bool) -> float:
        return sum(
            cost_model.SENT[c.kind](c.bytes, c.group) for c in found if every_step == (not c.inside)
        )

    measured = {
        "state": held,
        "step_touched": by_occasion[()],
        "change_touched": sum(by_occasion.values()) - by_occasion[()],
        "step_sent": sent(every_step=True),
        "change_sent": sent(every_step=False),
    }
    on_paper = {
        "state": cost_model.state_bytes(layout),
        "step_touched": cost_model.step_touched(layout),
        "change_touched": cost_model.change_touched(layout),
        "step_sent": cost_model.step_sent(layout),
        "change_sent": cost_model.change_sent(layout),
    }
    cost = compiled.cost_analysis()
    return {
        "family": point.family,
        "devices": count,
        "layout": layout._asdict(),
        "bytes_per_device": measured,
        "on_paper": on_paper,
        "paper_over_measured": {
            name: round(on_paper[name] / value, 6) if value else None
            for name, value in measured.items()
        },
        "xla": {
            "argument_bytes": memory.argument_size_in_bytes,
            "temporary_bytes": memory.temp_size_in_bytes,
            "aliased_bytes": memory.alias_size_in_bytes,
            "bytes_accessed": cost["bytes accessed"],
            "flops": cost["flops"],
        },
        "collectives": [
            c._asdict() | {"when": "task changes" if c.inside else "every step"} for c in found
        ],
    }


def compile_and_step(point: Point, leaves: dict[str, Leaf], mesh: Mesh) -> tuple[Any, int]:
    """The compiled step, and the bytes of the state that the first device holds after it."""
    split = {name: NamedSharding(mesh, leaf.spec) for name, leaf in leaves.items()}
    everywhere = NamedSharding(mesh, P())
    placed = dict.fromkeys(leaves, everywhere) if point.whole_parameters else split
    params = {
        name: jnp.ones(leaf.shape, jnp.float32, device=placed[name])
        for name, leaf in leaves.items()
    }
    tx = tag_optax.scale_by_tag_rms(5.0, point.capacity, bank=tag_optax.full(split=True))
    task_axis = "tasks" if point.task_devices > 1 else None
    shardings = tag_optax.state_sharding(tx, params, split, task_axis=task_axis)
    state = jax.jit(tx.init, out_shardings=shardings)(params)

    @functools.partial(jax.jit, donate_argnums=1, out_shardings=(placed, shardings))
    def step(gradients: Any, state: Any, task: jax.Array) -> Any:
        return tx.update(gradients, state, task_id=task)

    task = jax.device_put(jnp.int32(0), everywhere)
    compiled = step.lower(params, state, task).compile()
    _, state = compiled(params, state, task)
    first = jax.devices()[0]
    held = sum(
        shard.data.nbytes
        for leaf in jax.tree.leaves(state)
        for shard in leaf.addressable_shards
        if shard.device == first
    )
    return compiled, held


def check(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How far the paper is from the measured points, and XLA's sums from the reader's."""

    def spread(name: str) -> tuple[float, float]:
        ratios = [row["paper_over_measured"][name] for row in rows]
        known = [ratio for ratio in ratios if ratio is not None]
        return min(known), max(known)

    def row_bytes(row: dict[str, Any]) -> float:
        return Layout(**row["layout"]).row * cost_model.FLOAT32

    def growth(figure: str) -> tuple[float, float]:
        """Over that of one device: 1 if XLA counts what each device does, and not all of them."""
        figures = [row["xla"][figure] for row in rows if row["family"] == "parameters"]
        return min(figures) / figures[0], max(figures) / figures[0]

    read = [
        sum(row["bytes_per_device"][name] for name in ("step_touched", "change_touched"))
        / row["xla"]["bytes_accessed"]
        for row in rows
    ]
    copies = [
        (row["bytes_per_device"]["step_touched"] - row["on_paper"]["step_touched"]) / row_bytes(row)
        for row in rows
        if not row["layout"]["whole_parameters"]
    ]
    ranges = {f"paper / measured, {name}": spread(name) for name in rows[0]["paper_over_measured"]}
    ranges |= {
        "bytes accessed, reader / XLA": (min(read), max(read)),
        "XLA's bytes accessed, parameters x n on n devices / on 1": growth("bytes_accessed"),
        "XLA's flops, parameters x n on n devices / on 1": growth("flops"),
        "rows of a device that every step touches beyond paper": (min(copies), max(copies)),
    }
    return [
        {"what": what, "least": round(least, 6), "most": round(most, 6)}
        for what, (least, most) in ranges.items()
    ]


def beyond(hbm_gbps: float, link_gbps: float) -> list[dict[str, Any]]:
    """The model at sizes beyond one host; as many leaves as a transformer of 24 blocks has.

    Where tasks are spread, the capacity is the next multiple of the devices that share them.
    """
    million, billion = 10**6, 10**9
    at = functools.partial(Layout, leaves=300)
    layouts = [
        at(20, 10 * million),
        at(104, 100 * million, task_devices=8),
        at(100, 100 * million, model_devices=8),
        at(100, 100 * million, model_devices=8, whole_parameters=True),
        at(1024, 100 * million, task_devices=64),
        at(1000, 100 * million, task_devices=8, model_devices=8),
        at(1000, 100 * million, model_devices=64),
        at(1000, 100 * million, model_devices=64, whole_parameters=True),
        at(104, billion, task_devices=8, model_devices=8),
        at(100, billion, model_devices=64),
        at(1024, billion, task_devices=256),
        at(1000, billion, task_devices=8, model_devices=32),
        at(1000, billion, model_devices=256),
        at(1000, billion, model_devices=256, whole_parameters=True),
        at(1000, billion, model_devices=256, moment_bytes=2),
    ]
    return [
        {
            "layout": layout._asdict(),
            "devices": layout.task_devices * layout.model_devices,
            "state_gb": cost_model.state_bytes(layout) / 1e9,
            "step_touched_gb": cost_model.step_touched(layout) / 1e9,
            "step_sent_gb": cost_model.step_sent(layout) / 1e9,
            "change_sent_gb": cost_model.change_sent(layout) / 1e9,
            "touch_ms": cost_model.step_touched(layout) / 1e6 / hbm_gbps,
            "send_ms": cost_model.step_sent(layout) / 1e6 / link_gbps,
        }
        for layout in layouts
    ]


def print_measured(rows: list[dict[str, Any]]) -> None:
    print("MB on each device; in brackets paper / measured. Mflop: a step's with a change of task")
    print(
        f"{'family':>10} {'Dt x Dm':>7}{'K':>4}{'P (M)':>7}{'state':>15}{'temps':>7}{'Mflop':>7}",
        end="",
    )
    print(f"{'step touches':>15}{'step sends':>17}{'change touches':>16}{'change sends':>15}")
    for row in rows:
        layout = Layout(**row["layout"])

        def cell(name: str, digits: int, row: dict[str, Any] = row) -> str:
            ratio = row["paper_over_measured"][name]
            value = f"{row['bytes_per_device'][name] / 1e6:.{digits}f}"
            return value if ratio is None else f"{value} ({ratio:.3f})"

        mesh = f"{layout.task_devices} x {layout.model_devices}"
        print(
            f"{row['family']:>10} {mesh:>7}{layout.capacity:>4}{layout.parameters / 1e6:>7.2f}"
            f"{cell('state', 2):>15}{row['xla']['temporary_bytes'] / 1e6:>7.2f}"
            f"{row['xla']['flops'] / 1e6:>7.1f}"
            f"{cell('step_touched', 1):>15}{cell('step_sent', 6):>17}"
            f"{cell('change_touched', 1):>16}{cell('change_sent', 2):>15}"
        )


def print_collectives(rows: list[dict[str, Any]]) -> None:
    print("\ncollectives of a step on the largest mesh of each family, bytes of their results:")
    largest = {row["family"]: row for row in rows}
    for family, row in largest.items():
        layout = Layout(**row["layout"])
        for c in row["collectives"]:
            mesh = f"{layout.task_devices} x {layout.model_devices}"
            print(
                f"{family:>10} {mesh:>7}  {c['when']:12}  {c['kind']:10} {c['bytes']:>10,}", end=""
            )
            print(f" over {c['group']} devices")


def print_beyond(rows: list[dict[str, Any]], hbm_gbps: float, link_gbps: float) -> None:
    print(f"\non paper, each device; memory at {hbm_gbps:g} GB/s, links at {link_gbps:g} GB/s")
    print(
        f"{'P':>7}{'K':>6}{'devices':>8}{'Dt x Dm':>9}{'state GB':>10}{'step touches GB':>17}",
        end="",
    )
    print(f"{'ms':>7}{'step sends GB':>15}{'ms':>8}{'change sends GB':>17}")
    for row in rows:
        layout = Layout(**row["layout"])
        notes = ["whole parameters"] * layout.whole_parameters
        notes += ["bfloat16 moments"] * (layout.moment_bytes == 2)
        mesh = f"{layout.task_devices} x {layout.model_devices}"
        print(
            f"{layout.parameters // 10**6:>5} M{layout.capacity:>6}{row['devices']:>8}{mesh:>9}"
            f"{row['state_gb']:>10.2f}{row['step_touched_gb']:>17.2f}{row['touch_ms']:>7.2f}"
            f"{row['step_sent_gb']:>15.5f}{row['send_ms']:>8.3f}{row['change_sent_gb']:>17.3f}"
            f"  {', '.join(notes)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a block of 20 k numbers, not 1 M")
    parser.add_argument(
        "--hbm-gbps", type=float, default=1600, help="assumed memory speed, gigabytes a second"
    )
    parser.add_argument(
        "--link-gbps", type=float, default=100, help="assumed link speed, gigabytes a second"
    )
    arguments = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", max(DEVICES))

    record: dict[str, Any] = measure.environment("benchmarks.scaling")
    rows = [run(point, width=40 if arguments.quick else 288) for point in points()]
    print_measured(rows)
    print_collectives(rows)
    checks = check(rows)
    print()
    for result in checks:
        print(f"{result['what']}: {result['least']} to {result['most']}")
    speeds = (arguments.hbm_gbps, arguments.link_gbps)
    table = beyond(*speeds)
    print_beyond(table, *speeds)
    record |= {
        "rows": rows,
        "checks": checks,
        "assumed": {"hbm_gb_per_s": speeds[0], "link_gb_per_s": speeds[1]},
        "on_paper": table,
    }
    print("written to", measure.write("scaling" + "_quick" * arguments.quick, record).name)


if __name__ == "__main__":
    main()
