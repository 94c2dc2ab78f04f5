"""SIGKILL at random moments along a stream, then finished: the same to the bit."""

import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy as np

from train.rundir import read_result

ROOT = pathlib.Path(__file__).parents[2]
KILLS = 10


def command(out):
    # Ten tasks of 18 steps, a checkpoint every second step: there is always one being written.
    return [
        *(sys.executable, "-m", "train", "run", "--stream", "rotated-digits"),
        *("--optimizer", "tag-rmsprop", "--batch-size", "80", "--out", str(out)),
        *("--checkpoint-every", "2", "--steps-per-call", "2", "--log-every", "5"),
    ]


def start(out):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command(out), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def progress(run):
    """Changes as soon as a new process has come as far as its first record or checkpoint."""
    return [
        (path.name, path.stat().st_mtime_ns)
        for path in (run / "metrics.jsonl", run / "checkpoints")
        if path.exists()
    ]


def test_killed_ten_times_and_finished(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    process = start(whole)
    assert process.wait() == 0, process.stderr.read()
    process.stderr.close()

    delays = random.Random(0)
    (expected,) = whole.rglob("seed-1")
    run = cut / expected.relative_to(whole)
    for kill in range(KILLS):
        before = progress(run)
        process = start(cut)
        while progress(run) == before:
            assert process.poll() is None, f"ended by itself before kill {kill}"
            time.sleep(0.002)
        time.sleep(delays.uniform(0, 0.25))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, f"had finished before kill {kill}"
        process.stderr.close()
    process = start(cut)
    assert process.wait() == 0, process.stderr.read()
    process.stderr.close()

    assert (run / "metrics.jsonl").read_bytes() == (expected / "metrics.jsonl").read_bytes()
    ours, theirs = read_result(run), read_result(expected)
    np.testing.assert_array_equal(ours.accuracy, theirs.accuracy)
    np.testing.assert_array_equal(ours.alpha, theirs.alpha)
    assert final_state(run) == final_state(expected)


def final_state(run):
    """The bytes of every array of the newest checkpoint."""
    import jax

    from train.checkpoint import Checkpoints
    from train.config import read
    from train.engine import Engine
    from train.places import Places
    from train.seeds import open_stream

    config = read(run / "config.json")
    engine = Engine(config, open_stream(config, Places()))
    checkpoints = Checkpoints(run / "checkpoints", keep=2)
    state, _ = checkpoints.restore(engine.init((1,)))
    checkpoints.close()
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)]
