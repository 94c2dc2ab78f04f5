"""Any argument list: an exit code that scripts can use, no traceback, and no trace if refused."""

import dataclasses
import errno
import inspect
import itertools
import pathlib
import re
import types
import typing

import hypothesis
import hypothesis.strategies as st
import pytest
import tyro
from hypothesis import given

from train import settings
from train.cli import arguments as command_line
from train.cli import commands
from train.cli import main as ends
from train.errors import DIVERGED, DONE, FAILED, LOST, REFUSED, UserError
from train.launch.hosts import Hosts
from train.launch.jobs import Places
from train.paper.presets import experiment, preset, variant
from train.run.config import KINDS
from train.run.devices import Devices
from train.run.directory import Keeping

from ..train.fake_runs import write_run
from .commands import CODES, call, elsewhere, nothing_trains, snapshot

pytestmark = [pytest.mark.usefixtures(nothing_trains.__name__), pytest.mark.ci]
SIZE = hypothesis.settings().max_examples

# Without its data, a stream is refused before most other mistakes.
DIGITS = ["--stream", "rotated-digits"]
SWEEP = ["--streams", "rotated-digits", "--optimizers", "sgd", "tag-g"]
USUAL = {
    "run": [DIGITS, [*DIGITS, "--optimizer", "sgd"], []],
    "grid": [DIGITS, [*DIGITS, "--dry-run"]],
    "sweep": [SWEEP, [*SWEEP, "--dry-run"], ["--dry-run", "sweep.toml"]],
    "prepare": [["five-datasets"], ["rotated-digits"], ["split-mini-imagenet"]],
    "report": [["runs"], []],
}

COMMANDS = {
    "run": (Places, Keeping, Devices, Hosts, command_line.RunCommand),
    "grid": (Places, Keeping, command_line.GridCommand),
    "sweep": (Places, Keeping, command_line.SweepCommand),
    "demo": (command_line.DemoCommand,),
    "data": (command_line.DataCommand,),
    "prepare": (command_line.PrepareCommand,),
    "report": (command_line.ReportCommand,),
}
NONSENSE = [
    *("", " ", "-", "--", "-1", "0", "1", "nan", "inf", "-inf", "1e400", "1e-400", "None", "True"),
    *("9" * 30, "9" * 5000, "-" + "9" * 30, "1_0", "{}", "{0}", "%s", "a=b", "=", ",", "b=nan"),
    *("[bold]", "[/x]", "ä", "é" * 300, "\x1b[31m", "\x07", "\t", "a\nb", "\udcff", "\u202e"),
    *(
        "x" * 300,
        "x/" * 3000,
        "..",
        "/",
        ".",
        "~",
        "~no-such-user/x",
        "/dev/null",
        "/dev/full",
        "/dev/zero",
    ),
    *("file", "file/x", "directory", "loop", "bytes", "data=99999999999999999999", "localhost:1"),
    *(":", "a:b", "math:", ":pi", "math:pi", "..:x", "os:getcwd", "json:dumps", "train.cli.main:x"),
]
"""Values that are none, whatever the option; the last ones are in the working directory."""
nonsense = st.one_of(
    st.sampled_from(NONSENSE),
    st.text(st.characters(exclude_characters="\0", exclude_categories=()), max_size=8),
    st.integers().map(str),
    st.floats().map(str),
)


def options(command: str) -> list[tuple[str, typing.Any]]:
    """Every option of a command and the type of its value, from where the parser takes them."""
    found: list[tuple[str, typing.Any]] = []
    if command in ("run", "grid"):
        config = preset("rotated-digits", "tag-rmsprop")
        found += [(f"--{kind}", typing.Literal[tuple(KINDS[kind][0])]) for kind in KINDS]
        found += [(settings.flag(n), config.hint(n)) for n in config.flat() if n not in KINDS]
    for kind in COMMANDS[command]:
        hints = typing.get_type_hints(kind, include_extras=True)
        for field in dataclasses.fields(kind):
            hint = hints[field.name]
            if field.name == "base":
                found.append(("--config", pathlib.Path))
            elif field.name == "config":
                continue  # It has the options above.
            elif not dataclasses.is_dataclass(_plain(hint)) and not _is_positional(hint):
                found.append(("--" + field.name.replace("_", "-"), _plain(hint)))
    return found


def _plain(hint: typing.Any) -> typing.Any:
    return typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint


def _is_positional(hint: typing.Any) -> bool:
    return tyro.conf.Positional in getattr(hint, "__metadata__", ())


def valid(hint: typing.Any) -> st.SearchStrategy[list[str]]:
    """The words behind an option of this type, most of them such as it takes."""
    if isinstance(hint, types.UnionType):
        return st.one_of(*map(valid, typing.get_args(hint)))
    match typing.get_origin(hint):
        case typing.Literal:
            return st.sampled_from(typing.get_args(hint)).map(lambda name: [name])
        case origin if origin is tuple:
            part = valid(typing.get_args(hint)[0])
            return st.lists(part, max_size=3).map(lambda words: [*itertools.chain(*words)])
    if hint is bool:
        return st.just([])
    numbers = {
        int: st.one_of(st.integers(0, 20), st.sampled_from([2**31 - 1, 2**31, 2**64])).map(str),
        float: st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1e-300, 1e300, 5.0])).map(str),
        types.NoneType: st.just("None"),
        pathlib.Path: st.sampled_from(["out", "directory", "run", "config.json", "sweep.toml"]),
    }
    changes = ["learning_rate=0.1", "b=1,3", "epochs=2", "hidden=8x8", "b1=x", "x"]
    return numbers.get(hint, st.sampled_from(changes)).map(lambda word: [word])


@st.composite
def arguments(draw: st.DrawFn, command: str) -> list[str]:
    """A command with some of its options, and mostly something wrong with one of them."""
    words = [command, *draw(st.sampled_from(USUAL.get(command, [[]])))]
    for flag, hint in draw(st.lists(st.sampled_from(options(command)), max_size=2)):
        words += [flag, *draw(valid(hint))]
    match draw(st.sampled_from(["value", "value", "value", "word", "positions", "nothing"])):
        case "value":
            flag, _ = draw(st.sampled_from(options(command)))
            words += [flag, *draw(st.lists(nonsense, min_size=1, max_size=2))]
        case "word":
            flags = st.sampled_from([flag for flag, _ in options(command)])
            words.insert(draw(st.integers(0, len(words))), draw(st.one_of(nonsense, flags)))
        case "positions":
            words += draw(st.lists(nonsense, min_size=1, max_size=2))
    return words


def furnish(here: pathlib.Path) -> None:
    """Things that a path may lead to."""
    (here / "file").write_text("something")
    (here / "directory").mkdir()
    (here / "directory" / "other").write_text("something else")
    (here / "loop").symlink_to("loop")
    (here / "config.json").write_text('{"stream": "rotated-digits", "optimizer": "sgd"}')
    (here / "sweep.toml").write_text('streams = ["rotated-digits"]\noptimizers = ["sgd"]\n')
    (here / "bytes").write_bytes(b"\xff\xfe")


def check(words: list[str]) -> None:
    with elsewhere() as here:
        furnish(here)
        before = snapshot(here.parent)
        ended = call(*words)
        assert ended.code in CODES, ended
        assert "Traceback" not in ended.out + ended.err
        if ended.code == 2:
            assert ended.err.strip() or ended.out.strip()
            assert snapshot(here.parent) == before


@pytest.mark.ci
@pytest.mark.parametrize("command", ["run", "grid", "sweep"])
@hypothesis.settings(max_examples=SIZE)
@given(data=st.data())
def test_any_arguments(command, data):
    check(data.draw(arguments(command)))


@pytest.mark.parametrize("command", ["demo", "data", "prepare", "report"])
@hypothesis.settings(max_examples=SIZE // 3)
@given(data=st.data())
def test_any_arguments_of_commands_with_few(command, data):
    check(data.draw(arguments(command)))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["report", "x/" * 3000], "File name too long"),
        (["run", *DIGITS, "--out", "é" * 300], "File name too long"),
        (["prepare", "\udcff"], "\\udcff"),
        (["data", "--data-dir", "~no-such-user/x"], "~no-such-user/x"),
        (["run", "--config", "/dev/zero"], "it is a device"),
        (["sweep", "/dev/zero"], "it is a device"),
        (["run", *DIGITS, "--learning-rate", "inf"], "--learning-rate must be finite"),
        (["run", *DIGITS, "--b", "1e400"], "--b must be finite"),
        (["run", *DIGITS, "--hidden", "9" * 30], "--hidden must be at most 2147483647"),
        (["run", *DIGITS, "--epochs", "9" * 30], "--epochs must be at most 2147483647"),
        (["run", "--stream", "permuted-mnist", "--num-tasks", "10001"], "--num-tasks must be at"),
        (["grid", *DIGITS, "--num-tasks", "9" * 9, "--budget", "0.5"], "--num-tasks must be at"),
        (["run", *DIGITS, "--mesh", "data=3", "--batch-size", str(2**31 - 1)], "cannot split"),
    ],
)
def test_found_by_fuzzing(words, message):
    with elsewhere() as here:
        furnish(here)
        before = snapshot(here)
        ended = call(*words)
        assert ended.code == 2
        assert message in ended.err.replace("\n", " ")
        assert snapshot(here) == before


def test_a_file_name_of_many_letters():
    """A directory is named after a setting, and a file system counts bytes."""
    named = {"pretrained": "\N{CJK UNIFIED IDEOGRAPH-65E5}" * 150 + ".npz"}
    record = preset("split-cub", "sgd").changed(named).record
    with elsewhere() as here:
        experiment(here, record).mkdir(parents=True)
    assert variant(record).startswith("pretrained=\N{CJK UNIFIED IDEOGRAPH-65E5}")


@pytest.mark.usefixtures("nothing_is_drawn")
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_with_few_letters(encoding):
    """The table has a ±, a Δ and a –, and the path is no text at all."""
    with elsewhere() as here:
        for seed in (1, 2):
            write_run(here / "\udcff", preset("split-cub", "sgd"), seed)
        ended = call("report", "\udcff", encoding=encoding)
        assert ended.code == 0
        assert "Written to report" in ended.out
        assert "\\udcff" in (here / "report" / "results.csv").read_text("utf-8")


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "a"), 2, "No space left on device: a"),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "No space left on device"),
        (OSError("odd"), 2, "odd"),
        (MemoryError("Unable to allocate 7 TiB"), 2, "Not enough memory. Unable to allocate 7 TiB"),
        (UserError("one\n  two"), 2, "one two"),
        (KeyboardInterrupt(), 130, None),
    ],
)
def test_what_a_command_may_raise(raised, code, message, monkeypatch):
    def fail(*arguments):
        raise raised

    monkeypatch.setattr(commands, "_report", fail)
    ended = call("report")
    assert ended.code == code
    assert ended.err == (f"error: {message}\n" if message else "")


def test_an_error_of_ours_shows_its_traceback(monkeypatch):
    def fail(*arguments):
        raise ValueError("ours")

    monkeypatch.setattr(commands, "_report", fail)
    with pytest.raises(ValueError, match="ours"):
        call("report")


def test_the_codes_are_those_that_are_documented():
    text = inspect.getdoc(ends.main) or ""  # Python 3.13 has taken the indentation already.
    documented = re.findall(r"^(\d) ", text, flags=re.MULTILINE)
    assert [int(code) for code in documented] == [DONE, FAILED, REFUSED, DIVERGED, LOST]
    assert {DONE, FAILED, REFUSED} == CODES
