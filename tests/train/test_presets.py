"""The presets against the paper's appendix, and against what was measured on digits."""

import dataclasses
import itertools
import json
import pathlib
import re
import typing

import pytest

from train.models import MODELS
from train.run import config, usage
from train.run.config import Config, preset
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
    assert found.learning_rate == paper["rates"][optimizer.replace("-", "_")]
    assert (found.batch_size, found.epochs, found.b) == (paper["batch_size"], 1, paper["b"])
    assert (found.b1, found.b2) == (0.9, 0.999 if optimizer.endswith("adam") else 0.99)
    if optimizer == "stable-sgd":
        assert (found.decay, found.dropout) == paper["stable"]
        assert found.momentum == 0.8  # Not in the paper; see train/presets.py.
    else:
        assert (found.decay, found.dropout) == (1.0, 0.0)


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
    assert {row["optimizer"] for row in rows} == set(typing.get_args(config.OptimizerName))
    for row in rows:
        best = max(row["accuracy"], key=lambda rate: row["accuracy"][rate])
        assert preset("rotated-digits", row["optimizer"]).learning_rate == float(best)


def test_every_pair_has_a_valid_preset():
    pairs = itertools.product(
        typing.get_args(config.StreamName), typing.get_args(config.OptimizerName)
    )
    for stream, optimizer in pairs:
        found = preset(stream, optimizer)
        assert (found.stream, found.optimizer) == (stream, optimizer)
        assert found.num_tasks == STREAMS[stream].default_tasks


def test_names_are_those_of_the_registries():
    assert typing.get_args(config.StreamName) == tuple(STREAMS)
    assert typing.get_args(config.ModelName) == tuple(MODELS)


def test_the_models_are_the_papers():
    assert preset("split-cub", "sgd").model == "resnet18"
    for stream in ("split-cifar100", "split-mini-imagenet", "five-datasets"):
        assert preset(stream, "sgd").model == "resnet18-reduced"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(stream="split-cifar10"), "Did you mean split-cifar100"),
        (dict(optimizer="tagrmsprop"), "Did you mean tag-rmsprop"),
        (dict(model="resnet"), "Did you mean resnet18"),
        (dict(learning_rate=0.0), "--learning-rate must be above 0"),
        (dict(learning_rate=float("nan")), "--learning-rate must be above 0"),
        (dict(batch_size=0), "--batch-size must be at least 1"),
        (dict(epochs=-1), "--epochs must be at least 1"),
        (dict(b=-1.0), "--b must not be negative"),
        (dict(b2=1.0), r"--b2 must lie in \[0, 1\)"),
        (dict(dropout=1.5), r"--dropout must lie in \[0, 1\)"),
        (dict(hidden=(0,)), "--hidden must be sizes above 0"),
        (dict(steps_per_call=0), "--steps-per-call must be at least 1"),
        (dict(max_examples=0), "--max-examples must be at least 1"),
    ],
)
def test_contradictions_fail_at_once(settings, message):
    with pytest.raises(config.UserError, match=message):
        Config(**settings)


@pytest.mark.parametrize(
    ("optimizer", "settings", "message"),
    [
        ("sgd", dict(b=3.0), "--b needs a TAG optimizer"),
        ("sgd", dict(eps=1e-3), "--eps needs an adaptive optimizer"),
        ("sgd", dict(decay=0.5), "--decay needs --optimizer stable-sgd"),
        (
            "adagrad",
            dict(eps_in_sqrt=False),
            "--eps-in-sqrt needs RMSProp, Adam or a TAG optimizer",
        ),
        ("tag-adagrad", dict(b2=0.9), "--b2 needs an optimizer with decaying moments"),
        ("rmsprop", dict(b1=0.5), "--b1 needs Adam or a TAG optimizer"),
        ("adam", dict(alpha_scope="leaf"), "--alpha-scope needs a TAG optimizer"),
        ("tag-rmsprop", dict(num_gradients=3), "--num-gradients needs --optimizer tag-g"),
        ("sgd", dict(multitask_order="in-turn"), "--multitask-order needs --method multitask"),
        ("sgd", dict(statistics_twice=True), "--statistics-twice needs --method a-gem and a"),
        ("tag-rmsprop", dict(hidden=(5,)), "--hidden needs --model mlp"),
        ("tag-rmsprop", dict(pretrained="a.npz"), "--pretrained needs --model resnet18"),
    ],
)
def test_settings_without_effect_are_refused(optimizer, settings, message):
    usual = preset("split-cifar100", optimizer)
    usage.check_used(usual)
    with pytest.raises(config.UserError, match=message):
        usage.check_used(dataclasses.replace(usual, **settings))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no readable JSON file"),
        ("[]", "must hold one JSON object"),
        ('{"epoch": 1}', "Did you mean epochs"),
        ('{"epochs": "two"}', 'epochs must be int, and is "two"'),
        ('{"epochs": 1.5}', "epochs must be int, and is 1.5"),
        ('{"shared_head": 1}', "shared_head must be bool"),
        ('{"hidden": [1, "a"]}', "hidden must be tuple"),
        ('{"order_seed": "a"}', "order_seed must be int | None"),
        ('{"stream": "mnist"}', "Unknown stream"),
    ],
)
def test_bad_config_files(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(config.UserError, match=message):
        config.read(path)


def test_a_config_survives_its_file(tmp_path):
    path = tmp_path / "config.json"
    written = preset("rotated-digits", "tag-adam")
    path.write_text(json.dumps(config.to_json(written) | {"seed": 3}))
    assert config.read(path) == written
