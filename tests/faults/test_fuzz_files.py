"""Any content of any file that a command reads: one sentence or a result, no other file changed."""

import json
import math
import pathlib

import hypothesis
import hypothesis.strategies as st
import pytest
from hypothesis import given

from train import files
from train.launch import sweep
from train.paper.presets import preset

from .commands import call, elsewhere, nothing_trains, snapshot, write_finished

pytestmark = [pytest.mark.usefixtures(nothing_trains.__name__, "nothing_is_drawn"), pytest.mark.ci]
SIZE = hypothesis.settings().max_examples

CONFIG = preset("rotated-digits", "tag-rmsprop")
DIGITS = ["--stream", "rotated-digits"]
SWEEP = ["sweep", "--streams", "rotated-digits", "--optimizers", "tag-rmsprop"]
GRID = ["grid", *DIGITS, "--vary", "b=1,3"]
RUN = pathlib.Path("runs/rotated-digits/naive/tag-rmsprop/seed-1")


def furnish(here: pathlib.Path) -> None:
    """A finished run, which is a sweep's too, and the records of a grid."""
    write_finished(here / "runs", CONFIG, 1)
    (here / RUN / "metrics.jsonl").write_text('{"kind": "train", "task": 1}\n')
    files.write_json(here / "runs" / "sweep.json", sweep.record({CONFIG: (1,)}))
    directory = here / RUN.parent / "grid"
    directory.mkdir(parents=True)
    base = CONFIG.changed({"evaluate_on": "validation"}).flat()
    searched = {"base": base, "axes": {"b": (1.0, 3.0)}, "seeds": [1]}
    files.write_json(directory / "grid.json", searched)
    files.write_json(directory / "diverged.json", {"b=1 seed 1": "The loss became nan."})
    files.write_json(directory / "best.json", CONFIG.flat())


CONTENTS = {
    "empty": b"",
    "not UTF-8": b"\xff\xfe",
    "deep": b"[" * 100_000,
    "deep and whole": b'{"hidden": ' + b"[" * 900 + b"]" * 900 + b"}",
    "long number": b'{"b": ' + b"9" * 5000 + b"}",
    "twice": b'{"b": 1.0, "b": 2.0}',
    "marked": b"\xef\xbb\xbf{}",
    "list": b"[1, [2], {}]",
    "null": b"null",
}
READERS = {
    # Each file, and the commands that read it.
    RUN / "config.json": ("report", "run", "sweep", "config"),
    RUN / "matrices.json": ("report", "run", "sweep"),
    RUN / "stream.json": ("run",),
    RUN / "environment.json": ("report",),
    RUN / "metrics.jsonl": ("report", "run"),
    pathlib.Path("runs/sweep.json"): ("sweep",),
    RUN.parent / "grid/grid.json": ("grid",),
    RUN.parent / "grid/diverged.json": ("grid",),
    RUN.parent / "grid/best.json": ("best",),
}
COMMANDS = {
    "report": ["report", "runs", "--out", "written"],
    "run": ["run", *DIGITS, "--out", "runs"],
    "sweep": [*SWEEP, "--out", "runs", "--dry-run"],
    "grid": [*GRID, "--out", "runs", "--dry-run"],
    "config": ["run", "--config", str(RUN / "config.json"), "--out", "again"],
    "best": ["run", "--config", str(RUN.parent / "grid/best.json"), "--out", "again"],
}
CASES = [(path, command) for path, commands in READERS.items() for command in commands]
KINDS = [*CONTENTS, "gone", "directory", "dangling", "loop", "forbidden"]

json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.sampled_from([10**30, 10**400, -1, 0, 1, 2, "", "sgd", "\ud800", "\0", "$x^$"]),
        st.floats(),
        st.text(st.characters(exclude_categories=()), max_size=5),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def mutated(draw: st.DrawFn, found: object) -> object:
    """A JSON value with another one somewhere in it, or less."""
    if not isinstance(found, (dict, list)) or not found or draw(st.integers(0, 4)) == 0:
        return draw(json_values)
    changed = found.copy()
    key = draw(st.sampled_from(list(changed) if isinstance(changed, dict) else range(len(changed))))
    if draw(st.integers(0, 4)) == 0:
        del changed[key]
    elif isinstance(changed, dict) and draw(st.integers(0, 9)) == 0:
        changed[draw(st.text(max_size=5))] = draw(json_values)
    else:
        changed[key] = draw(mutated(changed[key]))
    return changed


@st.composite
def harmed(draw: st.DrawFn, content: bytes, is_json: bool = True) -> bytes:
    """A file's content cut short, with other bytes in it, or with something else behind it."""
    match draw(st.sampled_from(["cut", "flip", "append", "other", *["json"] * (2 * is_json)])):
        case "cut":
            return content[: draw(st.integers(0, len(content)))]
        case "flip":
            position = draw(st.integers(0, len(content) - 1))
            return content[:position] + bytes([draw(st.integers(0, 255))]) + content[position + 1 :]
        case "append":
            return content + draw(st.binary(min_size=1, max_size=4))
        case "other":
            return draw(
                st.one_of(
                    st.binary(max_size=20),
                    st.sampled_from(list(CONTENTS.values())),
                )
            )
    return json.dumps(draw(mutated(json.loads(content)))).encode()


def check(harm, command: str, path: pathlib.Path) -> None:
    """Harms a file and calls a command: it is refused in a sentence and writes nothing, or works
    and leaves everything that was there."""
    with elsewhere() as here:
        furnish(here)
        harm(here / path)
        before = snapshot(here)
        ended = call(*COMMANDS[command])
        after = snapshot(here)
        assert {name: after.get(name) for name in before} == before
        if ended.code == 2:
            assert ended.err.startswith("error: ")
            assert len(ended.err.strip().splitlines()) == 1, ended.err
            assert after == before
        else:  # Finished, or not begun because nothing trains here.
            assert ended.code in (0, 1), ended
            assert not ended.err, ended.err


@pytest.mark.parametrize(("path", "command"), CASES, ids=lambda each: str(each).rpartition("/")[2])
@hypothesis.settings(max_examples=SIZE // 5)
@given(data=st.data())
def test_any_content(path, command, data):
    with elsewhere() as here:
        furnish(here)
        content = (here / path).read_bytes()
    if path.name == "metrics.jsonl":
        content = b"{}"
    changed = data.draw(harmed(content))
    check(lambda file: file.write_bytes(changed), command, path)


@pytest.mark.parametrize("path", READERS, ids=lambda path: path.name)
@pytest.mark.parametrize("kind", KINDS)
def test_something_else_in_its_place(path, kind):
    """Each of the commands that read a file meets some of the kinds."""
    command = READERS[path][KINDS.index(kind) % len(READERS[path])]

    def harm(file: pathlib.Path) -> None:
        file.unlink()
        match kind:
            case "directory":
                file.mkdir()
            case "dangling":
                file.symlink_to("nowhere")
            case "loop":
                file.symlink_to(file.name)
            case "forbidden":
                file.touch(0o000)
            case _ if kind in CONTENTS:
                file.write_bytes(CONTENTS[kind])

    check(harm, command, path)


def write(path: pathlib.Path, content: object) -> None:
    path.write_text(content if isinstance(content, str) else json.dumps(content))


WRONG = {
    "another length": ("matrices.json", {"tasks": ["a"], "accuracy": [[0.5]], "alpha": [[0.5]]}),
    "infinite": ("matrices.json", {"accuracy": [[math.inf] * 10] * 10}),
    "no text": ("matrices.json", {"tasks": ["\ud800"] * 10}),
    "control": ("matrices.json", {"sources": ["\x01"]}),
    "huge number": ("config.json", {"b": 10**400}),
    "not a number": ("config.json", {"eps": math.nan}),
    "half a pair": ("config.json", {"pretrained": "\ud800.npz", "model": "resnet18"}),
    "seed of truth": ("config.json", {"seed": True}),
    "seed below": ("config.json", {"seed": -1}),
    "too many": ("config.json", {"num_tasks": 10**9}),
}


@pytest.mark.parametrize("kind", WRONG)
def test_valid_json_that_no_run_writes(kind):
    """Each is refused; a report would fail half way, or run out of memory."""
    name, fields = WRONG[kind]
    with elsewhere() as here:
        furnish(here)
        write(here / RUN / name, json.loads((here / RUN / name).read_text()) | fields)
        before = snapshot(here)
        ended = call(*COMMANDS["report"])
        assert ended.code == 2
        assert "config.json" in ended.err or name in ended.err
        assert snapshot(here) == before


# Sweep files.

TOML = b"""streams = ["rotated-digits"]
optimizers = ["sgd"]
seeds = [1, 2]
settings = { epochs = 2, learning_rate = 0.1 }
[[runs]]
methods = ["er"]
settings = { memory_per_class = 5, hidden = [8, 8] }
"""


def check_toml(content: bytes) -> None:
    with elsewhere() as here:
        (here / "sweep.toml").write_bytes(content)
        before = snapshot(here)
        ended = call("sweep", "--dry-run", "sweep.toml")
        assert snapshot(here) == before
        assert ended.code in (0, 2)
        if ended.code:
            assert ended.err.startswith("error: ")
            assert len(ended.err.strip().splitlines()) == 1, ended.err


toml_values = st.sampled_from(
    [
        *("nan", "inf", "1e400", "9" * 400, "9" * 5000, "1979-05-27", "true", '"x"', "[]", "{}"),
        *("-1", "[[]]", '"\\u0000"', "[1, 1]", "0x10", "[" * 500 + "]" * 500, "07:32:00"),
    ]
)


@hypothesis.settings(max_examples=2 * SIZE)
@given(st.data())
def test_any_sweep_file(data):
    if data.draw(st.booleans()):
        check_toml(data.draw(st.one_of(harmed(TOML, is_json=False), st.binary(max_size=20))))
    else:
        lines = TOML.decode().splitlines()
        position = data.draw(st.integers(0, len(lines) - 1))
        key, equals, _ = lines[position].partition(" = ")
        value = data.draw(toml_values)
        lines[position] = f"{key} = {value}" if equals else lines[position]
        if data.draw(st.booleans()):
            field = data.draw(st.sampled_from(list(CONFIG.flat())))
            lines.append(f"settings.{field} = {value}")
            lines = [line for line in lines if not line.startswith("settings = ")]
        check_toml("\n".join(lines).encode())


@pytest.mark.parametrize("kind", CONTENTS)
def test_no_sweep_file(kind):
    check_toml(CONTENTS[kind])
