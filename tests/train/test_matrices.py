"""The file of a run's matrices: nothing is lost in it, and what is wrong with one is said."""

import json

import numpy as np
import pytest

from train.errors import UserError
from train.run import matrices
from train.run.matrices import Matrices


def test_every_bit_comes_back(tmp_path):
    rng = np.random.default_rng(0)
    accuracy = np.where(np.tri(4, dtype=bool), rng.random((4, 4)), np.nan)
    # Neighbours that differ in the last bit, and what a huge b makes of a weight.
    alpha = np.full((4, 4), 0.1)
    alpha[0, :4] = np.nextafter(0.1, 1), 5e-324, np.inf, np.nan
    names = ["one", 'two "quoted"', "drei µ", "\n"]
    matrices.write(tmp_path / "m.json", Matrices(accuracy, alpha, names, ["noise"]))
    found = matrices.read(tmp_path / "m.json")
    assert found.accuracy.dtype == found.alpha.dtype == np.float64
    np.testing.assert_array_equal(found.accuracy, accuracy, strict=True)
    np.testing.assert_array_equal(found.alpha, alpha, strict=True)
    assert (found.tasks, found.sources) == (names, ["noise"])
    assert [path.name for path in tmp_path.iterdir()] == ["m.json"]


def test_a_line_for_each_task_and_no_nan(tmp_path):
    accuracy = np.where(np.tri(3, dtype=bool), 0.5, np.nan)
    matrices.write(tmp_path / "m.json", Matrices(accuracy, None, ["a", "b", "c"], []))
    text = (tmp_path / "m.json").read_text()
    assert "  [0.5, 0.5, null],\n" in text
    assert "NaN" not in text
    assert json.loads(text)["alpha"] is None
    assert matrices.read(tmp_path / "m.json").alpha is None


def test_nothing_measured_yet(tmp_path):
    with pytest.raises(FileNotFoundError):
        matrices.read(tmp_path / "m.json")


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
    matrices.read(path)
    path.write_text(json.dumps(written | change))
    with pytest.raises(UserError, match=rf"m\.json .*{message}"):
        matrices.read(path)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "null"])
def test_what_is_no_object_of_matrices(tmp_path, content):
    (tmp_path / "m.json").write_text(content)
    with pytest.raises(UserError, match=r"m\.json cannot be read \("):
        matrices.read(tmp_path / "m.json")
