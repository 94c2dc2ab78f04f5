"""Every Python block of the README runs as it stands, in order."""

import json
import pathlib
import re

import jax
import pytest

ROOT = pathlib.Path(__file__).parents[1]
README = ROOT / "README.md"
DEVICES = ROOT / "docs/devices.md"


@pytest.fixture(autouse=True)
def as_a_user():
    with (
        jax.enable_x64(False),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        yield


def test_python_blocks(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(blocks) == 5
    assert len([line for line in blocks[0].splitlines() if line.strip()]) <= 15
    names: dict = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed[:3]] == ["0", "1", "0"]
    assert float(printed[3].split()[0]) > 0.8  # The accuracy that `train.fit` reaches.


def test_the_memory_table_is_right():
    import tag_optax

    def size(copies_of, capacity, millions, **arguments):
        params = [jax.ShapeDtypeStruct((1000, 1000), "float32")] * millions
        return tag_optax.state_bytes(copies_of(5.0, capacity, **arguments), params)

    rows = [cells[2:] for cells in table(README, "| copies")]
    kinds = [
        {},
        dict(bank=tag_optax.full("bfloat16", "bfloat16")),
        dict(relatedness="own"),
        dict(relatedness="own", bank="running_sum"),
        dict(relatedness="own", bank="running_sum", anchor=10.0),
        dict(bank="compressed"),
        dict(bank=tag_optax.clustered(16)),
    ]
    columns = [(20, 1), (20, 100), (20, 1000), (100, 100), (1000, 100)]
    assert len(rows) == len(kinds)
    for row, arguments in zip(rows, kinds, strict=True):
        for cell, (capacity, millions) in zip(row, columns, strict=True):
            number, unit = cell.split()
            written = float(number) * {"MB": 1e6, "GB": 1e9}[unit]
            actual = size(tag_optax.tag_rmsprop, capacity, millions, **arguments)
            assert abs(written / actual - 1) < 0.01, (cell, actual)


def test_the_cost_table_is_what_was_measured():
    results = json.loads((README.parent / "benchmarks/results/update_cost.json").read_text())
    measured = {
        (r["parameters"], str(r["capacity"]), str(r["past"])): r
        for r in results["rows"]
        if not r["arguments"] and r["seeds"] == 1
    }
    rows = re.findall(r"^\| (\d+ [kM] \| \d+ \| .*) \|$", README.read_text(), flags=re.MULTILINE)
    assert len(rows) >= 10
    for row in rows:
        parameters, capacity, past, rmsprop, _, tag, _ = (cell.strip() for cell in row.split("|"))
        found = measured[parameters, capacity, past]
        for written, name in ((rmsprop, "rmsprop_ms"), (tag, "tag_ms")):
            decimals = len(written.partition(".")[2])
            assert abs(float(written) - found[name]) <= 0.51 * 10.0**-decimals


def test_the_cost_of_the_loop_is_what_was_measured():
    results = README.parent / "benchmarks/results/stream_throughput.json"
    measured = json.loads(results.read_text())["against_the_gradient"]["ratio"]
    (written,) = re.findall(r"takes ([\d.]+) x the bare gradient", README.read_text())
    assert float(written) == round(measured, 2)


def test_the_cost_of_the_methods_is_what_was_measured():
    results = json.loads((README.parent / "benchmarks/results/method_cost.json").read_text())
    measured = {row["method"]: row for row in results["rows"] if row["optimizer"] == "sgd"}
    rows = re.findall(
        r"^\| `([\w-]+)` \| .* \| ([\d.]+) \| .*\|$", README.read_text(), flags=re.MULTILINE
    )
    assert [name for name, _ in rows] == list(measured)
    for name, ratio in rows:
        assert float(ratio) == round(measured[name]["ratio"], 2)
    (end,) = re.findall(r"examples again, at ([\d.]+) ms each", README.read_text())
    assert float(end) == round(measured["ewc"]["end_of_task_ms_per_example"], 1)


def table(page, first_cell):
    """The rows of the table whose header begins with a cell, as lists of cells."""
    lines = page.read_text().split(f"\n| {first_cell} |")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]


def test_the_protected_optimizers_are_as_measured():
    found = json.loads((ROOT / "benchmarks/results/protection.json").read_text())["rows"]
    measured = {(row["optimizer"], row["stream"], row["side"]): row for row in found}
    streams = [
        (stream, side) for stream in ("rotated", "permuted") for side in ("alone", "protected")
    ]
    rows = table(README, "accuracy % / forgetting")
    assert len(rows) * len(streams) == len(measured)
    lower = 0
    for name, *cells in rows:
        for cell, (stream, side) in zip(cells, streams, strict=True):
            row = measured[name, f"{stream} digits", side]
            assert cell == f"{100 * row['accuracy'][0]:.1f} / {row['forgetting'][0]:.2f}"
        for stream in ("rotated digits", "permuted digits"):
            protected, alone = (measured[name, stream, side] for side in ("protected", "alone"))
            assert protected["accuracy"][0] > alone["accuracy"][0]
            lower += protected["forgetting"][0] < alone["forgetting"][0]
    words = {8: "eight", 9: "nine", 10: "ten"}
    text = " ".join(README.read_text().split())
    assert f"forgetting falls in {words[lower]} of the fourteen" in text


def test_the_protected_optimizers_on_images_are_as_measured():
    found = json.loads((ROOT / "benchmarks/results/protection_cifar100.json").read_text())["rows"]
    measured = {(row["optimizer"], row["side"]): row for row in found}
    rows = table(README, "accuracy % / forgetting on images")
    assert len(rows) * 2 == len(measured)
    for name, *cells in rows:
        for cell, side in zip(cells, ("alone", "protected"), strict=True):
            row = measured[name, side]
            mean, deviation = (100 * x for x in row["accuracy"])
            assert cell == f"{mean:.1f} ± {deviation:.1f} / {row['forgetting'][0]:.2f}"


def test_the_devices_page_runs():
    (block,) = re.findall(r"```python\n(.*?)```", DEVICES.read_text(), flags=re.DOTALL)
    names: dict = {}
    exec(compile(block, str(DEVICES), "exec"), names)
    bank = names["state"][0].bank["nu"]["w"]
    assert bank.addressable_shards[0].data.shape == (8, 512, 256)


def test_the_devices_page_says_what_was_measured():
    found = json.loads((ROOT / "benchmarks/results/scaling.json").read_text())
    spread = [row for row in found["rows"] if row["family"] == "tasks"]
    for cells, row in zip(table(DEVICES, "devices"), spread, strict=True):
        held = row["bytes_per_device"]
        measured = [held["state"], row["xla"]["temporary_bytes"], held["step_touched"]]
        measured += [held["step_sent"], held["change_sent"]]
        assert cells[:2] == [str(row["devices"]), str(row["layout"]["capacity"])]
        for cell, value in zip(cells[2:], measured, strict=True):
            assert abs(float(cell) - value / 1e6) <= 0.05, (cell, value)
    on_paper = {
        (row["layout"]["parameters"], row["layout"]["capacity"], row["layout"]["task_devices"]): row
        for row in found["on_paper"]
        if not row["layout"]["whole_parameters"] and row["layout"]["moment_bytes"] == 4
    }
    rows = table(DEVICES, "parameters")
    assert len(rows) == 9
    for parameters, tasks, devices, mesh, held, touched, touch_ms, sent, send_ms in rows:
        number, unit = parameters.split()
        size = int(number) * {"M": 10**6, "B": 10**9}[unit]
        row = on_paper[size, int(tasks.replace(",", "")), int(mesh.split(" x ")[0])]
        assert (int(devices), row["layout"]["model_devices"]) == (
            row["devices"],
            int(mesh.split(" x ")[1]),
        )
        assert abs(float(held) - row["state_gb"]) <= 0.0051
        assert abs(float(touched) - row["step_touched_gb"]) <= 0.0051
        assert abs(float(touch_ms) - row["touch_ms"]) <= 0.0051
        assert abs(float(sent) - row["step_sent_gb"]) <= 0.001
        assert abs(float(send_ms) - row["send_ms"]) <= 0.01
    assert found["assumed"] == {"hbm_gb_per_s": 1600, "link_gb_per_s": 100}
