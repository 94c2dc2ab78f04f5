"""Runs end to end: their files, their resumption to the bit, and what stops them."""

import dataclasses
import json
import math
import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from train.errors import UserError
from train.launch.display import Display
from train.run import loop, metrics
from train.run import rundir as rundirs
from train.run.engine import Engine
from train.run.rundir import RunDirectory, read_result
from train.run.signals import Stopped

from .conftest import make_stream

STEPS = 7  # of each task of the tiny stream


class StopAt(Display):
    """Sends a signal to the process as soon as it has seen so many steps."""

    def __init__(self, console, after, signum=signal.SIGTERM):
        super().__init__(console, "", [STEPS] * 3)
        self.left = after
        self.signum = signum

    def step(self, task, step, loss):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.signum)


@pytest.fixture(scope="module")
def engine(tiny, tiny_stream):
    return Engine(dataclasses.replace(tiny, steps_per_call=2), tiny_stream)


def start(engine, path, console, *, seeds=(1,), display=None, every=3, overwrite=False):
    """A run as far as it goes; returns what failed."""
    directories = [
        RunDirectory(path / f"seed-{seed}", engine.config, seed, overwrite=overwrite)
        for seed in seeds
    ]
    try:
        run = loop.Run(
            engine,
            directories,
            path / "checkpoints",
            checkpoint_every=every,
            keep=2,
            display=display or Display(console, "run", [STEPS] * 3),
        )
        return run.finish()
    finally:
        for directory in directories:
            directory.close()


def read_records(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def contents(path, engine, seed=1):
    """Everything that a run leaves: records, matrices, and the last state."""
    run = path / f"seed-{seed}"
    checkpoints = loop.Checkpoints(path / "checkpoints", keep=2, fingerprint=engine.fingerprint)
    state, _, _ = checkpoints.restore(engine.init((seed,)))
    checkpoints.close()
    written = [(run / name).read_bytes() for name in ("metrics.jsonl", "matrices.json")]
    return *written, state


def assert_equal(one, other):
    assert one[:2] == other[:2]
    jax.tree.map(np.testing.assert_array_equal, one[2], other[2])


@pytest.fixture
def uninterrupted(engine, tmp_path_factory, console):
    path = tmp_path_factory.mktemp("whole")
    start(engine, path, console)
    return contents(path, engine)


def test_a_run_leaves_everything(engine, tmp_path, console):
    assert start(engine, tmp_path, console) == {}
    result = read_result(tmp_path / "seed-1")
    assert result.finished
    assert (result.config, result.seed) == (engine.config, 1)
    assert result.tasks == ["noise 0", "noise 1", "noise 2"]
    assert np.isnan(result.accuracy[np.triu_indices(3, 1)]).all()
    assert np.isfinite(result.alpha[np.tril_indices(3)]).all()
    assert np.isnan(result.alpha[np.triu_indices(3, 1)]).all()

    records = read_records(tmp_path / "seed-1")
    losses = [r for r in records if r["kind"] == "train"]
    assert [(r["task"], r["step"]) for r in losses] == [
        (t, s) for t in (1, 2, 3) for s in (3, 6, 7)
    ]
    assert [r["total_steps"] for r in losses] == [3, 6, 7, 10, 13, 14, 17, 20, 21]
    evals = [r for r in records if r["kind"] == "eval"]
    assert [r["task"] for r in evals] == [1, 2, 3]
    assert evals[-1]["accuracies"] == result.accuracy[-1].tolist()
    assert evals[-1]["forgetting"] == metrics.summary(result.accuracy).forgetting
    assert "forgetting" not in evals[0]  # There is nothing yet to forget.

    kept = sorted(int(p.name) for p in (tmp_path / "checkpoints").iterdir())
    assert kept == [20, 21]


def test_the_logged_loss_is_the_mean_of_its_steps(engine, tmp_path, console):
    start(engine, tmp_path, console)
    state, losses = engine.init((1,)), []
    for task in range(3):
        for step in range(STEPS):
            state, outcome = engine.train(state, (1,), task, range(step, step + 1))
            losses.append(float(outcome.loss[0, 0]))
    records = read_records(tmp_path / "seed-1")
    logged = [record["loss"] for record in records if record["kind"] == "train"]
    means = [
        np.mean(losses[7 * t + a : 7 * t + b])
        for t in range(3)
        for a, b in ((0, 3), (3, 6), (6, 7))
    ]
    np.testing.assert_allclose(logged, means, rtol=1e-12)


@pytest.mark.parametrize("after", [1, 2, 3, 4, 5, 8, 11])
def test_stopped_anywhere_and_resumed_is_the_same_to_the_bit(
    engine, uninterrupted, tmp_path, console, after
):
    with pytest.raises(Stopped) as stopped:
        start(engine, tmp_path, console, display=StopAt(console, after))
    assert stopped.value.signum == signal.SIGTERM
    start(engine, tmp_path, console)
    assert_equal(uninterrupted, contents(tmp_path, engine))


@pytest.mark.parametrize("method", ["ewc", "a-gem", "er", "ogd", "multitask"])
def test_every_method_resumes_with_what_it_keeps(tiny, tiny_stream, tmp_path, console, method):
    config = dataclasses.replace(
        tiny, method=method, optimizer="sgd", steps_per_call=2, directions_per_task=2
    )
    engine = Engine(config, tiny_stream)
    for name, stops in (("whole", ()), ("cut", (2, 4))):
        for after in stops:
            with pytest.raises(Stopped):
                start(engine, tmp_path / name, console, display=StopAt(console, after))
        start(engine, tmp_path / name, console)
    whole, cut = (contents(tmp_path / name, engine) for name in ("whole", "cut"))
    assert_equal(whole, cut)
    accuracy = read_result(tmp_path / "cut/seed-1").accuracy
    measured = np.tri(3, dtype=bool)
    if method == "multitask":
        measured[:2] = False  # All tasks are learned at once, and measured once.
    np.testing.assert_array_equal(np.isfinite(accuracy), measured)


def test_ctrl_c_is_a_stop_too(engine, tmp_path, console):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Stopped, match=r"task \d, step \d"):
        start(engine, tmp_path, console, display=StopAt(console, 2, signal.SIGINT))
    assert signal.getsignal(signal.SIGINT) is before


def test_records_behind_the_checkpoint_are_not_doubled(engine, uninterrupted, tmp_path, console):
    """As after SIGKILL: the file goes on behind the newest checkpoint, and ends in half a line."""
    with pytest.raises(Stopped):
        start(engine, tmp_path, console, display=StopAt(console, 5))
    with (tmp_path / "seed-1/metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "task": 9, "lo')
    start(engine, tmp_path, console)
    assert_equal(uninterrupted, contents(tmp_path, engine))


def test_a_finished_run_is_left_alone(engine, tmp_path, console):
    start(engine, tmp_path, console)
    before = contents(tmp_path, engine)
    start(engine, tmp_path, console)
    assert_equal(before, contents(tmp_path, engine))


def test_seeds_side_by_side_resume_too(tiny, tiny_stream, tmp_path, console):
    engine = Engine(dataclasses.replace(tiny, steps_per_call=2), tiny_stream, num_seeds=2)
    start(engine, tmp_path / "whole", console, seeds=(1, 2))
    with pytest.raises(Stopped):
        start(engine, tmp_path / "cut", console, seeds=(1, 2), display=StopAt(console, 6))
    start(engine, tmp_path / "cut", console, seeds=(1, 2))
    for seed in (1, 2):
        whole, cut = (tmp_path / name / f"seed-{seed}" for name in ("whole", "cut"))
        assert (whole / "metrics.jsonl").read_bytes() == (cut / "metrics.jsonl").read_bytes()
        np.testing.assert_array_equal(read_result(whole).accuracy, read_result(cut).accuracy)
    assert (cut / "metrics.jsonl").read_bytes() != (
        whole.parent / "seed-1/metrics.jsonl"
    ).read_bytes()


def test_a_changed_config_is_refused_and_nothing_lost(engine, tmp_path, console):
    start(engine, tmp_path, console)
    before = contents(tmp_path, engine)
    changed = dataclasses.replace(engine.config, b=7.0, epochs=2)
    with pytest.raises(UserError, match=r"b: 5\.0, not 7\.0; epochs: 1, not 2") as error:
        RunDirectory(tmp_path / "seed-1", changed, 1)
    assert "--overwrite" in str(error.value)
    RunDirectory(tmp_path / "seed-1", engine.config, 1).close()  # Nothing stays locked.
    assert_equal(before, contents(tmp_path, engine))


def test_overwrite_starts_anew(engine, tmp_path, console):
    path = tmp_path / "seed-1"
    RunDirectory(path, engine.config, 1).close()
    (path / "metrics.jsonl").write_text("old")
    changed = dataclasses.replace(engine.config, b=7.0)
    RunDirectory(path, changed, 1, overwrite=True).close()
    assert not (path / "metrics.jsonl").exists()
    assert json.loads((path / "config.json").read_text())["b"] == 7.0


def test_two_processes_cannot_share_a_directory(engine, tmp_path):
    first = RunDirectory(tmp_path, engine.config, 1)
    with pytest.raises(UserError, match="Another process is at work"):
        RunDirectory(tmp_path, engine.config, 1)
    first.close()
    RunDirectory(tmp_path, engine.config, 1).close()


def test_a_directory_that_cannot_be_made(engine, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"Cannot write .*Not a directory"):
        RunDirectory(tmp_path / "file" / "run", engine.config, 1)


def poisoned(engine, bad, *, only_gradient=False):
    """The engine with NaN in some steps, counted from the first: in the loss, or behind it."""
    method = engine.method
    honest = method.gradient

    def gradient(problem, state, batch, task, key):
        found = honest(problem, state, batch, task, key)
        hit = jnp.isin(state.step, jnp.array(bad))
        grads = jax.tree.map(lambda g: jnp.where(hit, jnp.nan, g), found.grads)
        loss = found.loss if only_gradient else jnp.where(hit, jnp.inf, found.loss)
        return found._replace(loss=loss, grads=grads)

    method.gradient = gradient
    return engine


@pytest.mark.parametrize("optimizer", ["sgd", "tag-rmsprop"])
@pytest.mark.parametrize(
    ("only_gradient", "what"), [(False, "loss became inf"), (True, "gradient is not finite")]
)
def test_a_step_that_is_not_finite_stops_and_keeps_the_last_good_state(
    tiny, tiny_stream, tmp_path, console, optimizer, only_gradient, what
):
    config = dataclasses.replace(tiny, optimizer=optimizer, steps_per_call=1)
    engine = poisoned(Engine(config, tiny_stream), [STEPS + 2], only_gradient=only_gradient)
    failed = start(engine, tmp_path, console, every=3)
    assert failed.keys() == {1}
    assert f"The {what} at task 2, step 3." in failed[1]
    assert f"The state at step {STEPS} is kept." in failed[1]
    assert "--learning-rate" in failed[1]
    assert "--on-nonfinite skip" in failed[1]
    assert all(math.isfinite(record["loss"]) for record in read_records(tmp_path / "seed-1")[:-1])
    checkpoints = loop.Checkpoints(tmp_path / "checkpoints", keep=2, fingerprint=engine.fingerprint)
    state, history, _ = checkpoints.restore(engine.init((1,)))
    checkpoints.close()
    assert (history.task, history.step) == (1, 0)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state))


@pytest.mark.parametrize(
    "optimizer", ["adam", "tag-rmsprop", pytest.param("tag-adam", marks=pytest.mark.slow)]
)
def test_skipped_steps_are_counted_and_leave_nothing(
    tiny, tiny_stream, tmp_path, console, optimizer
):
    """Also across a stop; the means of losses and weights are those of the steps taken."""
    config = dataclasses.replace(
        tiny, optimizer=optimizer, steps_per_call=2, on_nonfinite="skip", log_every=2
    )
    bad = [0, 1, STEPS + 3]  # The first line of losses has no step to it.
    engine = poisoned(Engine(config, tiny_stream), bad)
    assert start(engine, tmp_path / "whole", console) == {}
    with pytest.raises(Stopped):
        start(engine, tmp_path / "cut", console, display=StopAt(console, 6))
    assert start(engine, tmp_path / "cut", console) == {}
    assert_equal(contents(tmp_path / "whole", engine), contents(tmp_path / "cut", engine))

    records = [r for r in read_records(tmp_path / "whole/seed-1") if r["kind"] == "train"]
    assert [r["skipped"] for r in records] == [2] * 5 + [3] * 7
    assert ["loss" in r for r in records] == [False] + [True] * 11
    *_, state = contents(tmp_path / "whole", engine)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state))
    assert state.step == 3 * STEPS
    result = read_result(tmp_path / "whole/seed-1")
    if engine.has_alpha:
        taken = optax.tree.get(state.opt_state, "steps")
        np.testing.assert_array_equal(taken, [STEPS - 2, STEPS - 1, STEPS])
        np.testing.assert_allclose(result.alpha[0, 0], 1)  # While there is no other task.


def test_a_task_without_one_finite_step_stops(tiny, tiny_stream, tmp_path, console):
    config = dataclasses.replace(tiny, steps_per_call=2, on_nonfinite="skip")
    engine = poisoned(Engine(config, tiny_stream), range(STEPS, 2 * STEPS))
    failed = start(engine, tmp_path, console)
    assert "Not one of the 7 steps of task 2 was finite." in failed[1]


def test_what_a_method_keeps_must_be_finite(tiny, tiny_stream, tmp_path, console):
    """No checkpoint is made of what EWC cannot use."""
    engine = Engine(dataclasses.replace(tiny, method="ewc", optimizer="sgd"), tiny_stream)
    honest = engine.method.revisit

    def spoilt(problem, state, batch, task):
        found = honest(problem, state, batch, task)
        factor = jnp.where(task == 1, jnp.inf, 1.0)
        return found._replace(opt_state=jax.tree.map(lambda x: factor * x, found.opt_state))

    engine.method.revisit = spoilt
    failed = start(engine, tmp_path, console)
    assert "What the method keeps of task 2 is not finite." in failed[1]
    kept = max(int(path.name) for path in (tmp_path / "checkpoints").iterdir())
    assert kept < 2 * STEPS


def test_one_seed_that_fails_does_not_stop_the_others(tiny, tiny_stream, tmp_path, console):
    engine = Engine(dataclasses.replace(tiny, steps_per_call=2), tiny_stream, num_seeds=2)
    healthy = engine.init

    def with_a_bad_start(seeds):
        state = healthy(seeds)
        bias = state.params["output"]["bias"].at[1].set(np.nan)
        state.params["output"]["bias"] = bias
        return state

    engine.init = with_a_bad_start
    failed = start(engine, tmp_path, console, seeds=(1, 2))
    assert failed.keys() == {2}
    assert read_result(tmp_path / "seed-1").finished
    assert (tmp_path / "seed-2/metrics.jsonl").read_text() == ""


def test_another_capacity_is_refused_by_name(engine, tmp_path, console):
    start(engine, tmp_path, console)
    larger = Engine(dataclasses.replace(engine.config, num_tasks=4), make_stream(4))
    checkpoints = loop.Checkpoints(tmp_path / "checkpoints", keep=2, fingerprint=larger.fingerprint)
    with pytest.raises(
        UserError, match=r"alpha_sum as float32\[3, 3\], and this run has float32\[4, 4\]"
    ):
        checkpoints.restore(larger.init((1,)))
    checkpoints.close()


def test_tensorboard(engine, tmp_path, console):
    directory = RunDirectory(tmp_path / "seed-1", engine.config, 1)
    display = Display(console, "run", [STEPS] * 3)
    run = loop.Run(
        engine,
        [directory],
        tmp_path / "checkpoints",
        checkpoint_every=3,
        keep=1,
        tensorboard=True,
        display=display,
    )
    run.finish()
    directory.close()
    (events,) = (tmp_path / "seed-1/tensorboard").iterdir()
    written = events.read_bytes()
    for name in (b"train/loss", b"eval/accuracy", b"eval/task_3"):
        assert name in written


def test_plain_lines_without_a_terminal(engine, tmp_path, console):
    start(engine, tmp_path, console)
    said = console.file.getvalue().splitlines()
    assert [line.split("  ")[1] for line in said] == [f"task {t}/3 learned" for t in (1, 2, 3)]
    assert all("accuracy" in line and "%" in line for line in said)


def test_a_damaged_matrix_is_named(engine, tmp_path, console):
    start(engine, tmp_path, console)
    (tmp_path / "seed-1/matrices.json").write_bytes(b"{")
    with pytest.raises(UserError, match=r"matrices\.json cannot be read"):
        read_result(tmp_path / "seed-1")


def test_find_runs(engine, tmp_path, console):
    start(engine, tmp_path / "a", console)
    (tmp_path / "b").mkdir()
    assert rundirs.find_runs([tmp_path]) == [tmp_path / "a/seed-1"]
