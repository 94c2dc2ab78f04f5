"""The files of what a run measured: nothing is lost, and what is wrong with one is said."""

import json

import numpy as np
import pytest

from train.errors import UserError
from train.run.records import Matrices, Position, Recorder, read_matrices, write_matrices


def test_every_bit_comes_back(tmp_path):
    rng = np.random.default_rng(0)
    accuracy = np.where(np.tri(4, dtype=bool), rng.random((4, 4)), np.nan)
    # Neighbours that differ in the last bit, and what a huge b makes of a weight.
    alpha = np.full((4, 4), 0.1)
    alpha[0, :4] = np.nextafter(0.1, 1), 5e-324, np.inf, np.nan
    names = ["one", 'two "quoted"', "drei µ", "\n"]
    write_matrices(tmp_path / "m.json", Matrices(accuracy, alpha, names, ["noise"]))
    found = read_matrices(tmp_path / "m.json")
    assert found.accuracy.dtype == found.alpha.dtype == np.float64
    np.testing.assert_array_equal(found.accuracy, accuracy, strict=True)
    np.testing.assert_array_equal(found.alpha, alpha, strict=True)
    assert (found.tasks, found.sources) == (names, ["noise"])
    assert [path.name for path in tmp_path.iterdir()] == ["m.json"]


def test_a_line_for_each_task_and_no_nan(tmp_path):
    accuracy = np.where(np.tri(3, dtype=bool), 0.5, np.nan)
    write_matrices(tmp_path / "m.json", Matrices(accuracy, None, ["a", "b", "c"], []))
    text = (tmp_path / "m.json").read_text()
    assert "  [0.5, 0.5, null],\n" in text
    assert "NaN" not in text
    assert json.loads(text)["alpha"] is None
    assert read_matrices(tmp_path / "m.json").alpha is None


def test_nothing_measured_yet(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_matrices(tmp_path / "m.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(accuracy=[[0.5, None], [0.5]]), "cannot be read"),
        (dict(accuracy=[["high", None], [0.5, 0.5]]), "cannot be read"),
        (dict(accuracy=None), "no matrix of its 2 tasks"),
        (dict(accuracy=[[0.5]]), "no matrix of its 2 tasks"),
        (dict(alpha=[[0.5, 0.5]]), "no matrix of its 2 tasks"),
        (dict(alpha={}), "cannot be read"),
        (dict(tasks=[]), "no matrix of its 0 tasks"),
        (dict(tasks="ab"), "lists of strings"),
        (dict(sources=[1]), "lists of strings"),
    ],
)
def test_a_file_that_is_not_one(tmp_path, change, message):
    written = dict(accuracy=[[0.5, None], [0.5, 0.5]], alpha=None, tasks=["a", "b"], sources=["c"])
    path = tmp_path / "m.json"
    path.write_text(json.dumps(written))
    read_matrices(path)
    path.write_text(json.dumps(written | change))
    with pytest.raises(UserError, match=rf"m\.json .*{message}"):
        read_matrices(path)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "null"])
def test_what_is_no_object_of_matrices(tmp_path, content):
    (tmp_path / "m.json").write_text(content)
    with pytest.raises(UserError, match=r"m\.json cannot be read \("):
        read_matrices(tmp_path / "m.json")


# metrics.jsonl

ONE = {"kind": "train", "task": 1, "step": 3, "total_steps": 3, "loss": 0.1 + 0.2}
TWO = {"kind": "eval", "task": 1, "step": 7, "total_steps": 7, "accuracies": [0.5]}


@pytest.fixture
def marked(tmp_path):
    """A file of two records, and the mark between them."""
    path = tmp_path / "metrics.jsonl"
    recorder = Recorder(path)
    recorder.write(ONE)
    mark = recorder.mark()
    recorder.write(TWO)
    recorder.close()
    return path, mark


def test_records_behind_a_mark_are_written_again(marked):
    path, mark = marked
    whole = path.read_bytes()
    with path.open("a") as file:
        file.write('{"kind": "train", "lo')  # As after SIGKILL.
    recorder = Recorder(path, json.loads(json.dumps(mark)))
    assert recorder.records == [ONE]
    assert path.read_bytes() == whole.splitlines(keepends=True)[0]
    recorder.write(TWO)
    end = recorder.mark()
    recorder.close()
    assert path.read_bytes() == whole
    assert end["bytes"] == len(whole)
    again = Recorder(path, end)
    again.close()
    assert again.records == [ONE, TWO]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.unlink(), "cannot be read .*put it back, or throw"),
        (lambda path: path.write_bytes(path.read_bytes()[:20]), "not what the run wrote"),
        (lambda path: path.write_text(path.read_text().replace("0.3", "0.4")), "not what"),
    ],
)
def test_records_that_were_changed_are_refused_and_left_alone(marked, spoil, message):
    path, mark = marked
    spoil(path)
    left = path.read_bytes() if path.exists() else None
    with pytest.raises(UserError, match=rf"metrics\.jsonl .*{message}.*--overwrite"):
        Recorder(path, mark)
    assert (path.read_bytes() if path.exists() else None) == left


def test_a_mark_does_not_grow_with_the_records(marked):
    """A checkpoint holds it, whatever the number of tasks."""
    _, mark = marked
    assert mark.keys() == {"bytes", "sha256"}


def test_skipped_steps_are_counted_for_each_task():
    progress = Position()
    assert progress.skipped_of_task() == 0
    progress.skip()
    progress.task = 2
    assert progress.skip() == 1
    assert progress.skip() == 2
    assert (progress.skipped, progress.skipped_of_task()) == ([1, 0, 2], 2)
