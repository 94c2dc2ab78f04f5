"""Every Python block of the README runs as it stands, in order."""

import json
import pathlib
import re

import jax
import pytest

README = pathlib.Path(__file__).parents[1] / "README.md"


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
    assert len(blocks) == 4
    assert len([line for line in blocks[0].splitlines() if line.strip()]) <= 15
    names: dict = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed] == ["0", "1", "0"]


def test_the_memory_table_is_right():
    import tag_optax

    def size(copies_of, capacity, millions, **arguments):
        params = jax.ShapeDtypeStruct((millions * 10**6,), "float32")
        return tag_optax.state_bytes(copies_of(5.0, capacity, **arguments), params)

    rows = re.findall(
        r"^\| (?:the same|`).*?\|.*?\| (.*) \|$", README.read_text(), flags=re.MULTILINE
    )
    rows = [[cell.strip() for cell in row.split("|")] for row in rows if "GB" in row]
    kinds = [
        {},
        dict(mu_dtype="bfloat16", nu_dtype="bfloat16"),
        dict(relatedness="self"),
        dict(relatedness="self", constant_memory=True),
    ]
    columns = [(20, 1), (20, 100), (100, 1), (100, 100), (1000, 100)]
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
