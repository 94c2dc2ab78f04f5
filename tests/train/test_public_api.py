"""A user's streams, networks, methods and optimizers: from Python and from the command line, and no
file of the package is edited."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import optax
import pytest

import tag_optax
import train
from train.cli.main import main
from train.errors import DONE, REFUSED, UserError

from . import user_parts

ROOT = pathlib.Path(__file__).parents[2]
PARTS = "tests.train.user_parts"


def tag(tasks):
    return tag_optax.tag_rmsprop(5.0, tasks, 0.01)


# Stream, model and what goes with them; the same by name below.
KINDS = {
    "nnx": (user_parts.points, user_parts.Net, {}),
    "linen": (user_parts.points, user_parts.perceptron, {}),
    "equinox": (user_parts.points, user_parts.layers, {}),
    "regression": (user_parts.waves, user_parts.layers, {}),
    "own-loss": (
        user_parts.waves,
        user_parts.layers,
        dict(loss=user_parts.absolute_error, score=user_parts.closeness),
    ),
    "tokens": (user_parts.sentences, user_parts.Transformer, {}),
}
NAMES = {
    "nnx": ("points", "Net", []),
    "linen": ("points", "perceptron", []),
    "equinox": ("points", "layers", ["--width", "6"]),
    "regression": ("waves", "layers", ["--num-tasks", "3"]),
    "own-loss": (
        "waves",
        "layers",
        ["--loss", f"{PARTS}:absolute_error", "--score", f"{PARTS}:closeness"],
    ),
    "tokens": ("sentences", "Transformer", ["--width", "4"]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_python_and_the_command_line_train_the_same(kind, tmp_path, monkeypatch, capsys):
    stream, model, more = KINDS[kind]
    name, attribute, options = NAMES[kind]
    settings = {"width": 6} if "--width" in options else {}
    settings = {"width": 4} if options == ["--width", "4"] else settings
    if "--num-tasks" in options:
        settings["num_tasks"] = 3
    from_python = train.fit(
        stream,
        model,
        user_parts.signs,
        user_parts.Noisy(noise=0.01),
        batch_size=8,
        out=tmp_path / "python",
        log_every=2,
        **more,
        **settings,
    )
    monkeypatch.chdir(tmp_path)
    words = ["run", "--stream", f"{PARTS}:{name}", "--model", f"{PARTS}:{attribute}"]
    words += ["--optimizer", f"{PARTS}:signs", "--method", f"{PARTS}:Noisy", "--noise", "0.01"]
    words += ["--batch-size", "8", "--log-every", "2", "--parallel", "serial", *options]
    assert main(words) == DONE, capsys.readouterr()
    (found,) = pathlib.Path("runs").rglob("metrics.jsonl")
    ours = (tmp_path / "python" / "seed-1" / "metrics.jsonl").read_text()
    assert found.read_text() == ours
    assert from_python.tasks_finished == len(from_python.tasks)

    again = train.load(found.parent)  # By the names in its config.json.
    x = np.asarray(stream_of(stream).tasks[0].test.x[:5])
    np.testing.assert_array_equal(again.outputs(x, task=0), from_python.outputs(x, task=0))
    assert again.matrix.tolist() == from_python.matrix.tolist() or kind != ""


def stream_of(function):
    found = function()
    return found if isinstance(found, train.Stream) else train.Stream("x", found)


def test_a_network_that_was_trained_answers_as_it_was_evaluated(tmp_path):
    stream = user_parts.points()
    result = train.fit(stream, user_parts.Net, tag, epochs=3, out=tmp_path, average=0.5)
    loaded = train.load(tmp_path)
    for task, data in enumerate(stream.tasks):
        found = loaded.predict(data.test.x, task=task)
        assert np.mean(found.labels == data.test.y) == pytest.approx(result.matrix[-1, task])
        assert set(found.names) <= {"left", "right"}
        np.testing.assert_allclose(found.probabilities.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(
        loaded.outputs(data.test.x, "task 1"), result.outputs(data.test.x, 1)
    )
    result.save(tmp_path / "weights.safetensors")
    assert (tmp_path / "weights.safetensors").stat().st_size > 100
    assert result.plot().axes
    assert result.alpha.shape == (2, 2)
    with pytest.raises(UserError, match="no task 'third'"):
        result.predict(data.test.x, task="third")
    with pytest.raises(UserError, match=r"batch \[n, 2\]"):
        result.predict(data.test.x[0])


def test_a_published_run_is_loaded_without_its_network():
    published = ROOT / "benchmarks/results/rotated_mnist/rotated-mnist/naive/tag-rmsprop"
    result = train.load(published)
    assert result.seeds == (1, 2, 3, 4, 5)
    assert result.accuracy == pytest.approx(0.891, abs=1e-3)
    with pytest.raises(UserError, match="no network"):
        result.predict(np.zeros((1, 28, 28, 1)))


def test_without_a_directory_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = []
    result = train.fit(
        user_parts.points(), user_parts.Net, optax.sgd(0.1), seeds=(1, 2), progress=lines.append
    )
    assert not list(tmp_path.iterdir())
    assert result.seeds == (1, 2)
    assert result[2].accuracy == result.summary()[1].accuracy
    assert any("task 2/2 learned" in line for line in lines)
    auto = train.fit(
        user_parts.points(), user_parts.Net, optax.sgd(0.1), seeds=(1, 2), parallel="auto"
    )
    np.testing.assert_array_equal(auto.matrices, result.matrices)


@pytest.mark.ci
@pytest.mark.parametrize("method", ["naive", "er", "a-gem", "ewc"])
def test_a_finished_run_goes_on_with_more_tasks(method, tmp_path):
    out = dict(out=tmp_path, batch_size=8, capacity=4)
    first = train.fit(user_parts.points(2), user_parts.Net, tag, method, **out)
    more = train.fit(user_parts.points(4), user_parts.Net, tag, method, **out)
    np.testing.assert_array_equal(more.matrix[:2, :2], first.matrix)
    assert np.isfinite(np.diagonal(more.matrix)).all()
    # As a run that knew of four tasks from the start, where no memory depends on how many.
    whole = train.fit(user_parts.points(4), user_parts.Net, tag, method, **out | {"out": None})
    if method in ("naive", "ewc"):
        np.testing.assert_array_equal(more.matrix, whole.matrix)
    with pytest.raises(UserError, match="holds a run of 4 tasks, and this one has 2"):
        train.fit(user_parts.points(2), user_parts.Net, tag, method, **out)


@pytest.mark.ci
def test_a_run_that_is_extended_has_a_larger_output_layer(tmp_path):
    """Heads of their own: the network, its moments and the bank grow; what was learned stays."""
    settings = dict(hidden=(8,), epochs=1, out=tmp_path, max_examples=100)
    first = train.fit("rotated-digits", "mlp", "tag-adam", num_tasks=2, **settings)
    more = train.fit("rotated-digits", "mlp", "tag-adam", num_tasks=3, **settings)
    assert first.params["output"]["kernel"].shape == (8, 20)
    assert more.params["output"]["kernel"].shape == (8, 30)
    np.testing.assert_array_equal(more.matrix[:2, :2], first.matrix)


@pytest.mark.ci
def test_a_run_begun_vmapped_goes_on_serially_and_the_other_way_round(tmp_path):
    stream, tasks = user_parts.points(3), dict(seeds=(1, 2), batch_size=8)
    for first, second in (("vmap", "serial"), ("serial", "vmap")):
        out = tmp_path / first
        train.fit(stream, user_parts.Net, tag, parallel=first, stop_after=1, out=out, **tasks)
        result = train.fit(stream, user_parts.Net, tag, parallel=second, out=out, **tasks)
        assert result.tasks_finished == 3
    one = train.load(tmp_path / "vmap").matrices
    np.testing.assert_allclose(one, train.load(tmp_path / "serial").matrices, atol=0.1)


def test_another_run_in_the_same_directory_is_refused_by_what_differs(tmp_path):
    stream = user_parts.points()
    train.fit(stream, user_parts.Net, optax.sgd(0.1), out=tmp_path, batch_size=8, name="mine")
    with pytest.raises(UserError, match="batch_size: 8, not 4"):
        train.fit(stream, user_parts.Net, optax.sgd(0.1), out=tmp_path, batch_size=4, name="mine")
    with pytest.raises(UserError, match="optimizer: mine, not other"):
        train.fit(stream, user_parts.Net, optax.sgd(0.1), out=tmp_path, batch_size=8, name="other")
    task = stream.tasks[1]
    changed = train.Task(task.name, (task.train.x + 1, task.train.y), task.test)
    other = train.Stream("points", [stream.tasks[0], changed], class_names=stream.class_names)
    with pytest.raises(UserError, match="other data: its task 'task 1'"):
        train.fit(other, user_parts.Net, optax.sgd(0.1), out=tmp_path, batch_size=8, name="mine")


def test_a_task_id_reaches_the_optimizer_and_the_loss_does():
    seen = []

    def update(updates, state, params=None, *, task_id, value):
        jax.debug.callback(lambda t, v: seen.append((int(t), float(v))), task_id, value)
        return jax.tree.map(lambda g: -0.1 * g, updates), state

    watching = optax.GradientTransformationExtraArgs(lambda params: (), update)
    train.fit(user_parts.points(), user_parts.Net, watching, batch_size=20)
    jax.effects_barrier()
    assert [task for task, _ in seen] == [0, 0, 1, 1]
    assert all(0 < loss < 5 for _, loss in seen)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--stream", f"{PARTS}:no_stream"], "A stream must be a train.Stream"),
        (["--stream", f"{PARTS}:nothing"], "has no attribute nothing"),
        (["--stream", "no.such:thing"], "there is no module no"),
        (["--stream", "pointz"], "Unknown stream 'pointz'"),
        (["--optimizer", f"{PARTS}:no_optimizer"], "An optimizer must be an optax transformation"),
        (["--optimizer", f"{PARTS}:no_stream"], "An optimizer must be an optax transformation"),
        (["--model", f"{PARTS}:no_optimizer"], "A model must be"),
        (["--method", f"{PARTS}:no_stream"], "must be a train.Method, or a class of one"),
        (["--loss", f"{PARTS}:no_loss"], "one number for each example"),
    ],
)
def test_what_an_attribute_must_be_is_said(options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["--stream", f"{PARTS}:waves", "--model", f"{PARTS}:layers", "--optimizer", "sgd"]
    for name, value in zip(options[::2], options[1::2], strict=True):
        if name in words:
            words[words.index(name) + 1] = value
        else:
            words += [name, value]
    assert main(["run", *words, "--parallel", "serial"]) == REFUSED
    assert message in capsys.readouterr().err
    assert not list(tmp_path.rglob("metrics.jsonl"))


def test_settings_from_outside_are_in_the_help_and_no_others(capsys):
    words = ["run", "--stream", f"{PARTS}:points", "--method", f"{PARTS}:Noisy"]
    words += ["--optimizer", f"{PARTS}:signs", "--model", f"{PARTS}:Net", "--help"]
    with pytest.raises(SystemExit):
        main(words)
    shown = capsys.readouterr().out
    for flag in ("--noise", "--kind", "--learning-rate", "--warm", "--width", "--size", "--epochs"):
        assert flag in shown
    for flag in ("--b ", "--ewc-lambda", "--hidden", "--order-seed", "--relatedness"):
        assert flag not in shown


@pytest.mark.ci
def test_a_sweep_and_a_grid_take_names_from_outside(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "own.toml").write_text(
        f'streams = ["{PARTS}:points"]\noptimizers = ["{PARTS}:signs", "sgd"]\n'
        f'models = ["{PARTS}:Net"]\nsettings = {{ batch_size = 8, learning_rate = 0.02 }}\n'
    )
    assert main(["sweep", "own.toml"]) == DONE, capsys.readouterr()
    assert "signs" in (tmp_path / "sweep" / "report" / "report.md").read_text()
    grid = ["grid", "--stream", f"{PARTS}:points", "--model", f"{PARTS}:Net", "--optimizer"]
    grid += [f"{PARTS}:signs", "--vary", "learning_rate=0.01,0.1", "--batch-size", "8"]
    assert main(grid) == DONE, capsys.readouterr()
    (best,) = tmp_path.glob("grids/**/best.json")
    assert json.loads(best.read_text())["learning_rate"] in (0.01, 0.1)
    assert main(["run", "--config", str(best), "--parallel", "serial"]) == DONE


def test_a_config_file_that_names_some_fields_is_filled_up(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    fields = {"stream": "rotated-digits", "optimizer": "sgd", "num_tasks": 2, "max_examples": 50}
    (tmp_path / "mine.json").write_text(json.dumps(fields))
    assert main(["run", "--config", "mine.json", "--parallel", "serial", "--epochs", "2"]) == DONE
    (found,) = tmp_path.rglob("seed-1/config.json")
    config = json.loads(found.read_text())
    assert (config["learning_rate"], config["epochs"], config["num_tasks"]) == (0.1, 2, 2)
    (tmp_path / "mine.json").write_text(json.dumps(fields | {"b": 3.0}))
    capsys.readouterr()
    assert main(["run", "--config", "mine.json"]) == REFUSED
    assert (
        "mine.json: b is no setting of rotated-digits, naive, sgd, mlp." in capsys.readouterr().err
    )


@pytest.mark.ci
def test_seeds_run_in_processes_from_python(tmp_path, monkeypatch):
    """Functions of no importable module too: workers are given them by value."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    width = 5

    def net(rngs):
        return user_parts.Net(2, width, rngs=rngs)

    result = train.fit(
        user_parts.points(), net, tag, seeds=(1, 2), parallel="processes", out=tmp_path
    )
    assert result.seeds == (1, 2)
    assert not result.failed
    alone = train.fit(user_parts.points(), net, tag, seeds=2)
    np.testing.assert_allclose(result[2].matrix, alone.matrix, atol=0.05)
    with pytest.raises(UserError, match="pass it again"):
        train.load(tmp_path)
    assert train.load(tmp_path, net).predict(np.zeros((3, 2), np.float32)).labels.shape == (3,)


@pytest.mark.ci
def test_a_run_that_is_killed_resumes_to_the_bit(tmp_path):
    words = [sys.executable, "-m", "train", "run", "--stream", f"{PARTS}:points", "--size", "4000"]
    words += ["--num-tasks", "2", "--model", f"{PARTS}:Net", "--optimizer", f"{PARTS}:signs"]
    words += ["--method", f"{PARTS}:Noisy", "--batch-size", "1", "--checkpoint-every", "100"]
    words += ["--parallel", "serial", "--steps-per-call", "5", "--log-every", "100", "--out"]

    def metrics(name):
        return next((tmp_path / name).rglob("metrics.jsonl"), None)

    killed = subprocess.Popen([*words, tmp_path / "killed"], cwd=ROOT)
    while True:
        assert killed.poll() is None, "it ended before it could be killed"
        found = metrics("killed")
        if found is not None and len(found.read_text().splitlines()) >= 5:
            break
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    for name in ("killed", "whole"):
        subprocess.run([*words, tmp_path / name], cwd=ROOT, check=True, env=os.environ)
    assert metrics("killed").read_bytes() == metrics("whole").read_bytes()
