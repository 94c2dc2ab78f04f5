"""Runs end to end: their files, their resumption to the bit, and what stops them."""

import contextlib
import dataclasses
import json
import math
import os
import signal
from typing import ClassVar

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from train.errors import UserError
from train.launch.jobs import Job, Places, Streams
from train.launch.seeds import run_seeds
from train.methods import EWC, Method
from train.run import metrics
from train.run.checkpoint import Checkpoints
from train.run.directory import Bystander, Keeping, RunDirectory
from train.run.engine import Engine
from train.run.loop import Run, SeedRun
from train.run.progress import Progress, RunProgress
from train.run.records import find_runs, read_measured
from train.run.signals import Stopped
from train.settings import Part

from .conftest import make_stream, with_parts
from .test_methods import with_method

STEPS = 7  # of each task of the tiny stream
KEEPING = Keeping(checkpoint_every=3)


class StopAt(RunProgress):
    """Sends a signal to the process as soon as it has seen so many calls."""

    def __init__(self, after, signum=signal.SIGTERM):
        super().__init__(lambda line: None, "", [STEPS] * 3)
        self.left = after
        self.signum = signum

    def step(self, task, step, loss):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.signum)


@pytest.fixture(scope="module")
def engine(tiny, engines):
    return engines(tiny.changed({"steps_per_call": 2}))


def start(engine, path, *, seeds=(1,), stop=None, keeping=KEEPING, say=lambda line: None):
    """A run as far as it goes; returns what failed."""
    with contextlib.ExitStack() as stack:
        runs = []
        for seed in seeds:
            directory = RunDirectory(path / f"seed-{seed}", engine.config, seed, engine.stream)
            stack.callback(directory.close)
            runs.append(SeedRun(engine, directory, keeping))
            stack.callback(runs[-1].close)
        return Run(engine, runs, keeping, stop or RunProgress(say, "run", engine.steps())).finish()


def read_records(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def restored(path, engine, seed=1):
    """The last state, and the notes with it."""
    checkpoints = Checkpoints(
        path / f"seed-{seed}/checkpoints", keep=2, fingerprint=engine.fingerprint
    )
    state, notes, _ = checkpoints.restore(engine.shapes())
    checkpoints.close()
    return state, notes


def contents(path, engine, seed=1):
    """Everything that a run leaves: records, matrices, and the last state."""
    run = path / f"seed-{seed}"
    written = [(run / name).read_bytes() for name in ("metrics.jsonl", "matrices.json")]
    return *written, restored(path, engine, seed)[0]


def assert_equal(one, other):
    assert one[:2] == other[:2]
    chex.assert_trees_all_equal(one[2], other[2])


@pytest.fixture(scope="module")
def whole_run(engine, tmp_path_factory):
    """A directory with a run that nothing disturbed, not to be changed."""
    path = tmp_path_factory.mktemp("whole")
    assert start(engine, path) == {}
    return path


@pytest.fixture(scope="module")
def uninterrupted(engine, whole_run):
    return contents(whole_run, engine)


def test_a_run_leaves_everything(engine, whole_run):
    result = read_measured(whole_run / "seed-1")
    assert result.finished
    assert (result.config, result.seed) == (engine.config.record, 1)
    assert result.tasks == ["noise 0", "noise 1", "noise 2"]
    assert np.isnan(result.accuracy[np.triu_indices(3, 1)]).all()
    assert np.isfinite(result.alpha[np.tril_indices(3)]).all()
    assert np.isnan(result.alpha[np.triu_indices(3, 1)]).all()

    records = read_records(whole_run / "seed-1")
    losses = [r for r in records if r["kind"] == "train"]
    assert [(r["task"], r["step"]) for r in losses] == [
        (t, s) for t in (1, 2, 3) for s in (3, 6, 7)
    ]
    assert [r["total_steps"] for r in losses] == [3, 6, 7, 10, 13, 14, 17, 20, 21]
    evals = [r for r in records if r["kind"] == "eval"]
    assert [r["task"] for r in evals] == [1, 2, 3]
    assert evals[-1]["accuracies"] == result.accuracy[-1].tolist()
    assert evals[-1]["alpha"] == result.alpha[-1].tolist()
    assert evals[-1]["forgetting"] == metrics.summary(result.accuracy).forgetting
    assert "forgetting" not in evals[0]  # There is nothing yet to forget.

    kept = sorted(int(p.name) for p in (whole_run / "seed-1/checkpoints").iterdir())
    assert kept == [20, 21]
    assert find_runs([whole_run.parent]).count(whole_run / "seed-1") == 1


def test_the_logged_loss_is_the_mean_of_its_steps(engine, whole_run):
    state, losses = engine.init((1,)), []
    for task in range(3):
        for step in range(STEPS):
            state, outcome = engine.train(state, (1,), task, range(step, step + 1))
            losses.append(float(outcome.loss[0, 0]))
    records = read_records(whole_run / "seed-1")
    logged = [record["loss"] for record in records if record["kind"] == "train"]
    means = [
        np.mean(losses[7 * t + a : 7 * t + b])
        for t in range(3)
        for a, b in ((0, 3), (3, 6), (6, 7))
    ]
    np.testing.assert_allclose(logged, means, rtol=1e-12)


@pytest.mark.parametrize("after", [1, 3])
def test_stopped_anywhere_and_resumed_is_the_same_to_the_bit(
    engine, uninterrupted, tmp_path, after
):
    """Again and again after so many calls, until it is done."""
    places = []
    while len(places) < 20:
        try:
            start(engine, tmp_path, stop=StopAt(after))
            break
        except Stopped as stopped:
            places.append((str(stopped), stopped.signum))
    assert {signum for _, signum in places} == {signal.SIGTERM}
    assert len(set(places)) == len(places) >= 2
    assert_equal(uninterrupted, contents(tmp_path, engine))


@pytest.mark.ci
@pytest.mark.parametrize(
    "method", ["ewc", "er", "ogd", "multitask", pytest.param("a-gem", marks=pytest.mark.slow)]
)
def test_every_method_resumes_with_what_it_keeps(tiny, engines, tmp_path, method):
    engine = engines(with_method(tiny, method))
    start(engine, tmp_path / "whole")
    for after in (3, 10):
        with pytest.raises(Stopped):
            start(engine, tmp_path / "cut", stop=StopAt(after))
    start(engine, tmp_path / "cut")
    assert_equal(*(contents(tmp_path / name, engine) for name in ("whole", "cut")))
    accuracy = read_measured(tmp_path / "cut/seed-1").accuracy
    measured = np.tri(3, dtype=bool)
    if method == "multitask":
        measured[:2] = False  # All tasks are learned at once, and measured once.
    np.testing.assert_array_equal(np.isfinite(accuracy), measured)


def test_ctrl_c_is_a_stop_too(engine, tmp_path):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Stopped, match=r"task \d, step \d"):
        start(engine, tmp_path, stop=StopAt(2, signal.SIGINT))
    assert signal.getsignal(signal.SIGINT) is before


def test_records_behind_the_checkpoint_are_not_doubled(engine, uninterrupted, tmp_path):
    """As after SIGKILL: the file goes on behind the newest checkpoint, and ends in half a line."""
    with pytest.raises(Stopped):
        start(engine, tmp_path, stop=StopAt(5))
    with (tmp_path / "seed-1/metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "task": 9, "lo')
    start(engine, tmp_path)
    assert_equal(uninterrupted, contents(tmp_path, engine))


def test_changed_records_are_refused(engine, uninterrupted, tmp_path):
    with pytest.raises(Stopped):
        start(engine, tmp_path, stop=StopAt(9))
    path = tmp_path / "seed-1/metrics.jsonl"
    as_it_was = path.read_bytes()
    path.write_bytes(as_it_was.replace(b"loss", b"lost", 1))
    with pytest.raises(UserError, match="is not what the run wrote before its checkpoint"):
        start(engine, tmp_path)
    path.write_bytes(as_it_was)
    start(engine, tmp_path)
    assert_equal(uninterrupted, contents(tmp_path, engine))


def test_records_without_a_checkpoint_are_not_written_over(engine, tmp_path):
    RunDirectory(tmp_path / "seed-1", engine.config, 1, engine.stream).close()
    (tmp_path / "seed-1/metrics.jsonl").write_text("of value\n")
    with pytest.raises(UserError, match=r"has records of a run, and .* no checkpoint"):
        start(engine, tmp_path)
    assert (tmp_path / "seed-1/metrics.jsonl").read_text() == "of value\n"


def test_a_finished_run_is_left_alone(engine, whole_run, uninterrupted):
    start(engine, whole_run)
    assert_equal(uninterrupted, contents(whole_run, engine))


def test_without_a_directory_nothing_is_written(engine, uninterrupted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = SeedRun(engine, Bystander(1), KEEPING)
    Run(engine, [run], KEEPING, RunProgress(lambda line: None, "", engine.steps())).finish()
    chex.assert_trees_all_equal(run.state, uninterrupted[2])
    assert list(tmp_path.iterdir()) == []


# Several seeds


@pytest.fixture(scope="module")
def both(tiny, engines):
    """An engine for two seeds side by side."""
    return engines(tiny.changed({"steps_per_call": 2}), 2)


@pytest.mark.ci
def test_seeds_side_by_side_resume_too(both, tmp_path):
    start(both, tmp_path / "whole", seeds=(1, 2))
    with pytest.raises(Stopped):
        start(both, tmp_path / "cut", seeds=(1, 2), stop=StopAt(6))
    start(both, tmp_path / "cut", seeds=(1, 2))
    for seed in (1, 2):
        assert_equal(*(contents(tmp_path / name, both, seed) for name in ("whole", "cut")))
    first, second = (contents(tmp_path / "cut", both, seed) for seed in (1, 2))
    assert first[0] != second[0]


def test_seeds_go_on_alone_and_side_by_side(engine, both, uninterrupted, tmp_path):
    """Checkpoints are one seed's, however the run was begun: the same but for rounding."""
    one_task = dataclasses.replace(KEEPING, stop_after=1)
    start(both, tmp_path, seeds=(1, 2), keeping=one_task)
    for seed in (1, 2):
        start(engine, tmp_path, seeds=(seed,), keeping=dataclasses.replace(one_task, stop_after=2))
    start(both, tmp_path, seeds=(1, 2))
    found = contents(tmp_path, engine)
    chex.assert_trees_all_close(found[2].params, uninterrupted[2].params, rtol=1e-3, atol=1e-5)
    places = [
        [(r["task"], r["step"]) for r in map(json.loads, each[0].splitlines())]
        for each in (found, uninterrupted)
    ]
    assert places[0] == places[1]
    assert read_measured(tmp_path / "seed-2").finished


@dataclasses.dataclass(frozen=True, kw_only=True)
class Poisoned(Method):
    """NaN in some steps, counted from the first: in the loss, or behind it."""

    antidote: ClassVar[bool] = False

    bad: tuple[int, ...] = ()
    only_gradient: bool = False
    bad_seed: int = 1

    def gradient(self, problem, state, batch, task, key):
        found = super().gradient(problem, state, batch, task, key)
        if self.antidote:
            return found
        hit = jnp.isin(state.step, jnp.array(self.bad)) & (state.rng[-1] == self.bad_seed)
        grads = jax.tree.map(lambda g: jnp.where(hit, jnp.nan, g), found.grads)
        loss = found.loss if self.only_gradient else jnp.where(hit, jnp.inf, found.loss)
        return found._replace(loss=loss, grads=grads)


def poisoned(config, bad, **how):
    """The config with NaN in some steps of seed 1."""
    method = Part("tests.train.test_loop:Poisoned", Poisoned(bad=tuple(bad), **how))
    return dataclasses.replace(config, method=method)


def as_jobs(config, stream, path, seeds=(1, 2), **keeping):
    config = dataclasses.replace(config, stream=Part("noise", stream))
    keeping = Keeping(checkpoint_every=3, **keeping)
    return [
        Job(
            name=f"seed {seed}",
            config=config,
            seed=seed,
            tasks=3,
            directory=path / f"seed-{seed}",
            keeping=keeping,
        )
        for seed in seeds
    ]


@pytest.mark.ci
def test_one_seed_that_fails_can_be_tried_again(tiny, tiny_stream, tmp_path, monkeypatch):
    """It does not stop the others; the same command goes on from its own checkpoint."""
    config = with_parts(tiny, optimizer="sgd", learning_rate=0.05, steps_per_call=2)
    streams = Streams(Places())

    def run(name, config):
        jobs = as_jobs(config, tiny_stream, tmp_path / name)
        return run_seeds(jobs, streams, Progress(), "vmap")

    bad = poisoned(config, [STEPS + 2], bad_seed=2)
    failed = run("again", bad).failed
    assert failed.keys() == {2}
    assert "loss became inf at task 2, step 3" in failed[2]
    assert read_measured(tmp_path / "again/seed-1").finished
    assert not read_measured(tmp_path / "again/seed-2").finished
    first = (tmp_path / "again/seed-1/metrics.jsonl").read_bytes()

    monkeypatch.setattr(Poisoned, "antidote", True)
    done = run("again", bad)
    assert done.failed == {}
    assert done.trained.keys() == {2}  # The other one was finished.
    assert (tmp_path / "again/seed-1/metrics.jsonl").read_bytes() == first
    healthy = run("healthy", bad).trained[2]
    np.testing.assert_allclose(
        done.trained[2].matrices.accuracy, healthy.matrices.accuracy, rtol=1e-6
    )
    params = [each.weights()[0] for each in (done.trained[2], healthy)]
    chex.assert_trees_all_close(*params, rtol=1e-3, atol=1e-5)


def test_seeds_that_stand_at_different_steps(tiny, tiny_stream, tmp_path):
    config = with_parts(tiny, optimizer="sgd", learning_rate=0.05, steps_per_call=2)
    streams = Streams(Places())
    run_seeds(as_jobs(config, tiny_stream, tmp_path, (1,), stop_after=2), streams, Progress())
    done = run_seeds(as_jobs(config, tiny_stream, tmp_path), streams, Progress(), "vmap")
    assert done.trained.keys() == {1, 2}
    for seed in (1, 2):
        assert read_measured(tmp_path / f"seed-{seed}").finished


# More tasks


def test_a_run_is_extended_to_the_bit(tiny, tmp_path):
    """Where room was made at the start, as if all tasks had been there from the beginning."""
    config = tiny.changed({"steps_per_call": 2, "capacity": 3})
    whole = make_stream()
    first = Engine(
        config.changed({"num_tasks": 2}), dataclasses.replace(whole, tasks=whole.tasks[:2])
    )
    engine = Engine(config, whole)
    start(first, tmp_path / "extended")
    with pytest.raises(Stopped):
        start(engine, tmp_path / "extended", stop=StopAt(2))
    start(engine, tmp_path / "extended")
    start(engine, tmp_path / "whole")
    assert_equal(*(contents(tmp_path / name, engine) for name in ("whole", "extended")))
    assert read_measured(tmp_path / "extended/seed-1").config["num_tasks"] == 3


@pytest.mark.ci
def test_what_depends_on_the_number_of_tasks_grows(engine, tiny, uninterrupted, tmp_path):
    """Heads and rows of the bank are added; the tasks learned before keep theirs."""
    config = tiny.changed({"steps_per_call": 2, "num_tasks": 2})
    start(Engine(config, make_stream(2)), tmp_path)
    before = read_measured(tmp_path / "seed-1")
    start(engine, tmp_path)
    after = read_measured(tmp_path / "seed-1")
    assert after.finished
    np.testing.assert_array_equal(after.accuracy[:2, :2], before.accuracy)
    np.testing.assert_array_equal(after.alpha[:2, :2], before.alpha)
    *_, state = contents(tmp_path, engine)
    chex.assert_trees_all_equal_shapes(state, uninterrupted[2])
    np.testing.assert_array_equal(optax.tree.get(state.opt_state, "steps"), [STEPS] * 3)


@pytest.mark.parametrize("method", ["naive", "ewc", "a-gem", "er", "ogd"])
def test_arrays_of_every_method_grow(tiny, method):
    config = with_method(tiny, method, "tag-rmsprop" if method == "naive" else "sgd")
    smaller = Engine(config.changed({"num_tasks": 2}), make_stream(2))
    larger = Engine(config, make_stream(3))
    saved = jax.tree.map(lambda x: jnp.full_like(x, 7), smaller.init_one(1))
    fresh = larger.init_one(1)

    def check(path, old, new, grown):
        inside = tuple(map(slice, old.shape))
        np.testing.assert_array_equal(grown[inside], old)
        outside = np.ones(new.shape, bool)
        outside[inside] = False
        np.testing.assert_array_equal(np.asarray(grown)[outside], np.asarray(new)[outside])
        assert (old.shape == new.shape) == (jax.tree_util.keystr(path) not in larger.resizable())

    jax.tree.map_with_path(check, saved, fresh, larger.resized(saved, 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tasks: tasks[:2], r"holds a run of 3 tasks, and this one has 2: .*--stop-after"),
        (lambda tasks: [tasks[0], tasks[2], tasks[1]], "its task 'noise 1' is not the task 'noise"),
    ],
)
def test_other_tasks_are_refused(engine, tiny_stream, whole_run, uninterrupted, change, message):
    other = dataclasses.replace(tiny_stream, tasks=change(tiny_stream.tasks))
    with pytest.raises(UserError, match=message):
        RunDirectory(whole_run / "seed-1", engine.config, 1, other)
    assert_equal(uninterrupted, contents(whole_run, engine))


def test_other_data_of_the_same_tasks_are_refused(engine, whole_run):
    with pytest.raises(UserError, match="on other data: its task 'noise 0'"):
        RunDirectory(whole_run / "seed-1", engine.config, 1, make_stream(seed=1))


@pytest.mark.parametrize("changes", [dict(method="multitask"), dict(schedule="linear")])
def test_what_knows_all_tasks_at_once_is_not_extended(tiny, tmp_path, changes):
    config = with_parts(tiny, learning_rate=0.01, **changes)
    RunDirectory(tmp_path, config.changed({"num_tasks": 2}), 1, make_stream(2)).close()
    with pytest.raises(UserError, match="It cannot be extended"):
        RunDirectory(tmp_path, config, 1, make_stream(3))


# A directory holds one run


def test_a_changed_config_is_refused_and_nothing_lost(engine, whole_run, uninterrupted):
    changed = engine.config.changed({"b": 7.0, "epochs": 2})
    with pytest.raises(UserError, match=r"b: 5\.0, not 7\.0; epochs: 1, not 2") as error:
        RunDirectory(whole_run / "seed-1", changed, 1)
    assert "--overwrite" in str(error.value)
    with pytest.raises(UserError, match="holds the run of seed 1"):
        RunDirectory(whole_run / "seed-1", engine.config, 2)
    RunDirectory(whole_run / "seed-1", engine.config, 1).close()  # Nothing stays locked.
    assert_equal(uninterrupted, contents(whole_run, engine))


def test_overwrite_starts_anew(tiny, tmp_path):
    path = tmp_path / "seed-1"
    RunDirectory(path, tiny, 1).close()
    (path / "metrics.jsonl").write_text("old")
    RunDirectory(path, tiny.changed({"b": 7.0}), 1, overwrite=True).close()
    assert not (path / "metrics.jsonl").exists()
    assert json.loads((path / "config.json").read_text())["b"] == 7.0


def test_two_processes_cannot_share_a_directory(tiny, tmp_path):
    first = RunDirectory(tmp_path, tiny, 1)
    with pytest.raises(UserError, match="Another process is at work"):
        RunDirectory(tmp_path, tiny, 1)
    first.close()
    RunDirectory(tmp_path, tiny, 1).close()


def test_a_directory_that_cannot_be_made(tiny, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"Cannot write .*Not a directory"):
        RunDirectory(tmp_path / "file" / "run", tiny, 1)


def test_a_checkpoint_of_another_network_is_refused_by_name(tiny, whole_run):
    other = Engine(tiny.changed({"hidden": (4,)}), make_stream())
    checkpoints = Checkpoints(
        whole_run / "seed-1/checkpoints", keep=2, fingerprint=other.fingerprint
    )
    with pytest.raises(UserError, match=r"as float32\[.*8.*\], and this run has float32\[.*4.*\]"):
        checkpoints.restore(other.shapes(), resizable=other.resizable())
    checkpoints.close()


# What is not finite


@pytest.mark.parametrize(
    ("optimizer", "only_gradient", "what"),
    [
        ("sgd", True, "gradient is not finite"),
        ("tag-rmsprop", False, "loss became inf"),
        pytest.param("sgd", False, "loss became inf", marks=pytest.mark.slow),
        pytest.param("tag-rmsprop", True, "gradient is not finite", marks=pytest.mark.slow),
    ],
)
def test_a_step_that_is_not_finite_stops_and_keeps_the_last_good_state(
    tiny, engines, tmp_path, optimizer, only_gradient, what
):
    config = with_parts(tiny, optimizer=optimizer, steps_per_call=1)
    engine = engines(poisoned(config, [STEPS + 2], only_gradient=only_gradient))
    failed = start(engine, tmp_path)
    assert failed.keys() == {1}
    assert f"The {what} at task 2, step 3." in failed[1]
    assert f"The state at step {STEPS} is kept." in failed[1]
    assert "--learning-rate" in failed[1]
    assert "--on-nonfinite skip" in failed[1]
    assert all(math.isfinite(record["loss"]) for record in read_records(tmp_path / "seed-1")[:-1])
    state, notes = restored(tmp_path, engine)
    assert (notes["task"], notes["step"]) == (1, 0)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state))


@pytest.mark.ci
@pytest.mark.parametrize(
    "optimizer",
    ["tag-rmsprop", *(pytest.param(o, marks=pytest.mark.slow) for o in ("adam", "tag-adam"))],
)
def test_skipped_steps_are_counted_and_leave_nothing(tiny, engines, tmp_path, optimizer):
    """Also across a stop; the means of losses and weights are those of the steps taken."""
    config = with_parts(
        tiny, optimizer=optimizer, steps_per_call=2, on_nonfinite="skip", log_every=2
    )
    bad = [0, 1, STEPS + 3]  # The first line of losses has no step to it.
    engine = engines(poisoned(config, bad))
    assert start(engine, tmp_path / "whole") == {}
    with pytest.raises(Stopped):
        start(engine, tmp_path / "cut", stop=StopAt(6))
    assert start(engine, tmp_path / "cut") == {}
    whole, cut = (contents(tmp_path / name, engine) for name in ("whole", "cut"))
    assert_equal(whole, cut)

    records = [r for r in read_records(tmp_path / "whole/seed-1") if r["kind"] == "train"]
    assert [r["skipped"] for r in records] == [2] * 5 + [3] * 7
    assert ["loss" in r for r in records] == [False] + [True] * 11
    *_, state = whole
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state))
    assert state.step == 3 * STEPS
    result = read_measured(tmp_path / "whole/seed-1")
    if engine.has_alpha:
        taken = optax.tree.get(state.opt_state, "steps")
        np.testing.assert_array_equal(taken, [STEPS - 2, STEPS - 1, STEPS])
        np.testing.assert_allclose(result.alpha[0, 0], 1)  # While there is no other task.


def test_a_task_without_one_finite_step_stops(tiny, engines, tmp_path):
    config = with_parts(tiny, optimizer="sgd", steps_per_call=2, on_nonfinite="skip")
    engine = engines(poisoned(config, range(STEPS, 2 * STEPS)))
    failed = start(engine, tmp_path)
    assert "Not one of the 7 steps of task 2 was finite." in failed[1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spoilt(EWC):
    """Keeps of the second task what cannot be used."""

    def revisit(self, problem, state, batch, task):
        found = super().revisit(problem, state, batch, task)
        factor = jnp.where(task == 1, jnp.inf, 1.0)
        return found._replace(opt_state=jax.tree.map(lambda x: factor * x, found.opt_state))


def test_what_a_method_keeps_must_be_finite(tiny, engines, tmp_path):
    """No checkpoint is made of what EWC cannot use."""
    config = with_parts(tiny, optimizer="sgd", steps_per_call=1)
    method = Part("tests.train.test_loop:Spoilt", Spoilt(fisher_samples=5))
    failed = start(engines(dataclasses.replace(config, method=method)), tmp_path)
    assert "What the method keeps of task 2 is not finite." in failed[1]
    kept = max(int(path.name) for path in (tmp_path / "seed-1/checkpoints").iterdir())
    assert kept < 2 * STEPS


# What is shown


def test_tensorboard(engine, tmp_path):
    start(engine, tmp_path, keeping=Keeping(checkpoint_every=3, keep=1, tensorboard=True))
    (events,) = (tmp_path / "seed-1/tensorboard").iterdir()
    written = events.read_bytes()
    for name in (b"train/loss", b"eval/accuracy", b"eval/task_3"):
        assert name in written


def test_plain_lines_without_a_terminal(engine, tmp_path):
    said = []
    start(engine, tmp_path, say=said.append)
    assert [line.split("  ")[1] for line in said] == [f"task {t}/3 learned" for t in (1, 2, 3)]
    assert all("accuracy" in line and "%" in line for line in said)
