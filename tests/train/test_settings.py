"""Settings as text, and the small functions that tables, plots and files share."""

import jax.numpy as jnp
import numpy as np
import pytest

from train import files, plots
from train.errors import UserError
from train.methods.problem import usual_names
from train.models import named_weights
from train.models.pretrained import torch_name
from train.plot_style import wrap
from train.settings import assignments, brief, describe, typed


@pytest.mark.parametrize(
    ("value", "text"),
    [(5.0, "5"), (0.00025, "0.00025"), ((100, 100), "100x100"), (None, "none"), (True, "true")],
)
def test_a_value_in_brief(value, text):
    assert brief(value) == text
    assert describe({"it": value}, ["it"]) == f"it={text}"


def test_assignments_are_read():
    found = assignments(["epochs=2", "max-examples=none"], "--set")
    assert found == {"epochs": "2", "max_examples": "none"}
    for wrong in ("epochs", "=2", "epochs= "):
        with pytest.raises(UserError, match="write it as FIELD=VALUE"):
            assignments([wrong], "--set")


def test_a_value_of_a_file_takes_its_type():
    assert typed("hidden", [8, 8], tuple[int, ...], "a.toml") == (8, 8)
    assert isinstance(typed("b", 3, float, "a.toml"), float)
    with pytest.raises(UserError, match=r'a\.toml: epochs must be int, and is "three"\.'):
        typed("epochs", "three", int, "a.toml")


def test_a_name_that_stands_twice_in_a_file_is_refused(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"b": 1, "b": 2}')
    with pytest.raises(UserError, match=r"a\.json cannot be read .*b stands there twice"):
        files.read_json(path)


def test_what_is_written_whole_stands_alone(tmp_path):
    files.write_whole(tmp_path / "a.json", "1")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_the_usual_loss_and_score():
    assert usual_names(np.int32) == ("cross-entropy", "accuracy")
    assert usual_names(np.float32) == ("squared-error", "negative-error")


def test_names_of_weights():
    assert list(named_weights({"output": {"bias": jnp.zeros(2)}}, {})) == ["params.output.bias"]
    path = ("blocks", "stage2_block1", "shortcut_bn", "mean")
    assert torch_name(path) == "layer2.0.downsample.1.running_mean"


def test_limits_are_round_for_percents():
    assert plots.round_limits([np.array([0.52, 0.61])]) == (50, 70)
    assert plots.round_limits([np.array([-3.0, 2.5])], "error") == (-3.0, 2.5)


def test_long_names_break_behind_underscores():
    assert wrap("er (memory_per_class 5)", 13) == "er (memory_\nper_class 5)"
