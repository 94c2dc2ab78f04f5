"""The presets against the paper's appendix, against what was measured on digits, and as paths."""

import itertools
import json
import pathlib
import re
import sys

import numpy as np
import pytest

from train.errors import UserError
from train.optimizers import OPTIMIZERS
from train.paper import grids
from train.paper.presets import experiment, foreign, preset, usual, variant
from train.run.config import Config, Record, read_record
from train.streams import STREAMS

APPENDIX = pathlib.Path(__file__).parents[3] / "shared" / "paper" / "tag.tex"
DIGITS = pathlib.Path(__file__).parents[2] / "benchmarks" / "results" / "digits_rates.json"

# Transcribed by stream from the appendix, where the settings stand by method.
PAPER = {
    "split-cifar100": dict(
        batch_size=10,
        b=5,
        rates=dict(
            sgd=0.1,
            adagrad=0.005,
            rmsprop=0.005,
            adam=0.005,
            stable_sgd=0.1,
            tag_rmsprop=0.00025,
            tag_adagrad=0.005,
            tag_adam=0.0005,
        ),
        stable=(0.9, 0.1),
    ),
    "split-mini-imagenet": dict(
        batch_size=10,
        b=5,
        rates=dict(
            sgd=0.05,
            adagrad=0.005,
            rmsprop=0.001,
            adam=0.001,
            stable_sgd=0.1,
            tag_rmsprop=0.0001,
            tag_adagrad=0.001,
            tag_adam=0.00025,
        ),
        stable=(0.9, 0.0),
    ),
    "split-cub": dict(
        batch_size=10,
        b=5,
        rates=dict(
            sgd=0.01,
            adagrad=0.0005,
            rmsprop=0.0001,
            adam=0.0001,
            stable_sgd=0.05,
            tag_rmsprop=0.000025,
            tag_adagrad=0.0005,
            tag_adam=0.0001,
        ),
        stable=(0.9, 0.0),
    ),
    "five-datasets": dict(
        batch_size=64,
        b=7,
        rates=dict(
            sgd=0.1,
            adagrad=0.005,
            rmsprop=0.001,
            adam=0.001,
            stable_sgd=0.1,
            tag_rmsprop=0.0005,
            tag_adagrad=0.005,
            tag_adam=0.001,
        ),
        stable=(0.7, 0.0),
    ),
    "rotated-mnist": dict(batch_size=10, b=5, rates=dict(sgd=0.1, tag_rmsprop=0.00025)),
}


@pytest.mark.parametrize(
    ("stream", "optimizer"),
    [(s, o.replace("_", "-")) for s, paper in PAPER.items() for o in paper["rates"]],
)
def test_the_papers_settings(stream, optimizer):
    paper, found = PAPER[stream], preset(stream, optimizer)
    assert found["learning_rate"] == paper["rates"][optimizer.replace("-", "_")]
    assert (found["batch_size"], found["epochs"]) == (paper["batch_size"], 1)
    moments = dict(b=paper["b"], b1=0.9, b2=0.999 if optimizer.endswith("adam") else 0.99)
    flat = found.flat()
    assert {name: flat.get(name, value) for name, value in moments.items()} == moments
    if optimizer == "stable-sgd":
        assert (found["decay"], found["dropout"]) == paper["stable"]
        assert found["momentum"] == 0.8  # Not in the paper; see presets.py.
    else:
        assert found["dropout"] == 0.0


@pytest.mark.skipif(not APPENDIX.exists(), reason="the paper's source is not here")
@pytest.mark.parametrize("title", ["Naive SGD", "Naive RMSProp", "TAG-RMSProp", "TAG-Adam"])
def test_the_transcription_against_the_papers_source(title):
    names = {
        "split-cifar100": "Split-CIFAR100",
        "split-mini-imagenet": "Split-miniImageNet",
        "split-cub": "Split-CUB",
        "five-datasets": "5-dataset",
    }
    text = APPENDIX.read_text().partition("Hyper-parameter details")[2]
    grid = re.search(
        rf"\\item \\textit{{{title}}}\s*\\begin{{itemize}}\s*\\item Learning rate: \[(.*)\]", text
    )
    assert grid is not None
    optimizer = title.lower().replace("naive ", "").replace("-", "_")
    for stream, name in names.items():
        (rate,) = [
            float(number)
            for number, marks in re.findall(r"([\d.]+)\s*\(([^)]*)\)", grid[1])
            if f"{{{name}}}" in marks
        ]
        assert rate == PAPER[stream]["rates"][optimizer]


def test_digits_have_the_best_rate_measured():
    rows = json.loads(DIGITS.read_text())["rows"]
    assert {row["optimizer"] for row in rows} == set(OPTIMIZERS)
    for row in rows:
        best = max(row["accuracy"], key=lambda rate: row["accuracy"][rate])
        assert preset("rotated-digits", row["optimizer"])["learning_rate"] == float(best)


def test_every_pair_has_a_valid_preset():
    tasks = dict(zip(STREAMS, (20, 20, 20, 5, 10, 10, 10), strict=True))
    for stream, optimizer in itertools.product(STREAMS, OPTIMIZERS):
        found = preset(stream, optimizer).record
        assert (found["stream"], found["optimizer"]) == (stream, optimizer)
        assert found["num_tasks"] == tasks[stream]
        assert usual(found) == found
        assert variant(found) == ""


def test_the_models_are_the_papers():
    assert preset("split-cub", "sgd")["model"] == "resnet18"
    for stream in ("split-cifar100", "split-mini-imagenet", "five-datasets"):
        assert preset(stream, "sgd")["model"] == "resnet18-reduced"
    assert preset("rotated-mnist", "sgd")["hidden"] == (256, 256)


def test_another_model_keeps_what_the_preset_says_of_it():
    found = preset("split-cifar100", "stable-sgd", model="mlp").changed({"hidden": (8,)}).record
    assert (found["dropout"], found["hidden"]) == (0.1, (8,))
    assert usual(found)["hidden"] == (100, 100)
    assert variant(found) == "model=mlp,hidden=8"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("split-cifar10", "sgd"), "Did you mean split-cifar100"),
        (("split-cub", "tagrmsprop"), "Did you mean tag-rmsprop"),
        (("split-cub", "sgd", "ewk"), "Did you mean ewc"),
        (("split-cub", "sgd", "ewc", "resnet"), "Did you mean resnet18"),
    ],
)
def test_unknown_names(names, message):
    with pytest.raises(UserError, match=message):
        preset(*names)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(learning_rate=0.0), "--learning-rate must be above 0"),
        (dict(learning_rate=float("nan")), "--learning-rate must be"),
        (dict(batch_size=0), "--batch-size must be at least 1"),
        (dict(epochs=-1), "--epochs must be at least 1"),
        (dict(b=-1.0), "--b must not be negative"),
        (dict(b2=1.0), r"--b2 must lie in \[0, 1\)"),
        (dict(dropout=1.5), r"--dropout must lie in \[0, 1\)"),
        (dict(hidden=(0,)), "--hidden must be"),
        (dict(steps_per_call=0), "--steps-per-call must be at least 1"),
        (dict(max_examples=0), "--max-examples must be at least 1"),
    ],
)
def test_contradictions_fail_at_once(settings, message):
    with pytest.raises(UserError, match=message):
        preset("rotated-digits", "tag-rmsprop").changed(settings)


@pytest.mark.parametrize(
    ("optimizer", "name"),
    [
        *(("sgd", name) for name in ("b", "eps", "decay", "multitask_order", "statistics_twice")),
        *(("adagrad", "eps_in_sqrt"), ("tag-adagrad", "b2"), ("rmsprop", "b1")),
        *(("adam", "alpha_scope"), ("tag-rmsprop", "hidden"), ("tag-rmsprop", "pretrained")),
    ],
)
def test_a_setting_without_effect_is_no_setting(optimizer, name):
    with pytest.raises(UserError, match=f"{name} is no setting of split-cifar100"):
        preset("split-cifar100", optimizer).changed({name: 0})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([], "must hold one JSON object"),
        ({"epoch": 1}, "Did you mean epochs"),
        ({"epochs": "two"}, 'epochs must be int, and is "two"'),
        ({"epochs": 1.5}, "epochs must be int, and is 1.5"),
        ({"shared_head": 1}, "shared_head must be bool"),
        ({"hidden": [1, "a"]}, "hidden must be tuple"),
        ({"order_seed": "a"}, "order_seed must be int | None"),
        ({"stream": 3}, "names no stream"),
    ],
)
def test_bad_config_files(fields, message):
    whole = preset("rotated-digits", "tag-adam").resolved(np.int32).flat()
    with pytest.raises(UserError, match=message):
        read_record(whole | fields if isinstance(fields, dict) else fields, "config.json")


def test_a_config_survives_its_file():
    written = preset("rotated-digits", "tag-adam")
    assert read_record(json.loads(json.dumps(written.flat())), "a file") == written.record


# Directories.


def test_more_tasks_are_no_other_run_where_they_extend_it():
    digits = preset("rotated-digits", "sgd").changed({"num_tasks": 3, "capacity": 12})
    assert variant(digits.record) == ""
    cifar = preset("split-cifar100", "sgd").changed({"num_tasks": 10})
    assert variant(cifar.record) == "num_tasks=10"


def test_a_resolved_loss_is_no_other_run():
    config = preset("rotated-digits", "sgd")
    assert variant(config.resolved(np.int32).record) == variant(config.record) == ""
    assert variant(config.resolved(np.float32).record) == ""


def test_a_long_variant_fits_into_a_name():
    config = preset("split-cub", "sgd").changed({"pretrained": "ä/" * 200})
    name = variant(config.record)
    assert name.startswith("pretrained=ä_ä_")
    assert len(name.encode()) <= 200
    assert name != variant(config.changed({"pretrained": "ä/" * 201}).record)


OUTSIDE = """
import dataclasses
import optax

@dataclasses.dataclass(frozen=True, kw_only=True)
class Lion:
    learning_rate: float = 1e-4
    b1: float = 0.5

    def __call__(self, tasks):
        return optax.lion(self.learning_rate, self.b1)

def waves(num_waves=3, height=1.0):
    raise AssertionError("nothing opens it")

waves.extends = ("num_waves",)
"""


@pytest.fixture
def outside(tmp_path, monkeypatch) -> Config:
    """A stream and an optimizer with settings, in a module of their own."""
    (tmp_path / "of_mine.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(tmp_path)
    yield preset("of_mine:waves", "of_mine:Lion", "ewc")
    sys.modules.pop("of_mine")


def test_parts_from_outside_have_their_own_defaults(outside):
    flat = outside.flat()
    assert (flat["learning_rate"], flat["b1"], flat["num_waves"]) == (1e-4, 0.5, 3)
    assert (flat["model"], flat["hidden"], flat["ewc_lambda"]) == ("mlp", (100, 100), 1.0)
    paper = preset("five-datasets", "of_mine:Lion").flat()
    assert (paper["batch_size"], paper["learning_rate"]) == (64, 1e-4)


def test_a_directory_for_each_config_from_outside(outside):
    def directory(**changes):
        return experiment(pathlib.Path("runs"), outside.changed(changes).record).as_posix()

    start = "runs/of_mine.waves/ewc/of_mine.Lion"
    assert directory() == start
    assert directory(learning_rate=0.1, height=2.0) == f"{start}/learning_rate=0.1,height=2.0"
    assert directory(epochs=2) == f"{start}/epochs=2"


def test_a_record_from_outside_imports_nothing():
    fields = preset("rotated-digits", "sgd").flat() | {"optimizer": "not.there:Lion", "pull": 3}
    record = Record(fields)
    assert foreign(record) == ["learning_rate", "weight_decay", "momentum", "pull"]
    assert usual(Record({**record, "epochs": 5, "pull": 4})) == Record({**record, "pull": 4})


# Grids.


def test_a_grid_varies_what_there_is(outside):
    assert grids.axes(outside.record) == {"ewc_lambda": (0.003, 0.03, 0.3)}
    stable = preset("rotated-digits", "stable-sgd").record
    assert list(grids.axes(stable)) == ["learning_rate", "decay", "dropout"]
    without = Record({name: value for name, value in stable.items() if name != "dropout"})
    assert list(grids.axes(without)) == ["learning_rate", "decay"]
