"""Signals at any moment: the run goes on where it was, and ends the same to the bit."""

import random
import signal

import pytest

from tests.faults.harness import (
    Command,
    checkpoints,
    newest,
    run_directory,
    strike,
    until,
    what_it_left,
)

pytestmark = pytest.mark.ci

OUTCOME = "resumed; the end is the same to the bit"


def struck(command, undisturbed, cut, times, dice, longest=0.25):
    """A run that is killed so many times, the first and every second time while it writes a
    checkpoint, at most `longest` seconds after it has got somewhere; returns how often that was."""
    run = cut / run_directory(undisturbed).relative_to(undisturbed)
    within = 0
    for kill in range(times):
        ended = strike(
            command,
            cut,
            run,
            signal.SIGKILL,
            delay=dice.uniform(0, longest),
            in_checkpoint=kill % 2 == 0,
        )
        assert ended is None or ended.code == -signal.SIGKILL, f"had finished before kill {kill}"
        within += kill % 2 == 0 and ended is not None
        for line in what_is_readable(run):
            assert line.endswith("}"), line
    ended = command.run(cut)
    assert ended.code == 0, ended.said
    assert what_it_left(run) == what_it_left(run_directory(undisturbed))
    return within


def what_is_readable(run):
    """The lines of records; only a kill in the middle of a write could leave half a one."""
    path = run / "metrics.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def test_killed_and_finished(tmp_path, note):
    # Two tasks of three: at the end of the stream there would be plots, which take longer.
    options = ("--num-tasks", "3", "--stop-after", "2", "--batch-size", "160", "--hidden", "8")
    shorter = Command(options)
    ended = shorter.run(tmp_path / "whole")
    assert ended.code == 0, ended.said
    dice = random.Random(0)
    within = struck(shorter, tmp_path / "whole", tmp_path / "cut", 1, dice, longest=0.05)
    note("SIGKILL inside a checkpoint write", within, OUTCOME)


@pytest.mark.slow
def test_killed_forty_times_over_one_stream(tmp_path, note):
    # Ten tasks of 72 steps, 360 checkpoints.
    long = Command(("--batch-size", "20"))
    ended = long.run(tmp_path / "whole")
    assert ended.code == 0, ended.said
    within = struck(long, tmp_path / "whole", tmp_path / "cut", 40, random.Random(1))
    note("SIGKILL at a random moment", 40 - within, OUTCOME)
    note("SIGKILL inside a checkpoint write", within, OUTCOME)
    assert within >= 10


@pytest.mark.slow
@pytest.mark.parametrize(("name", "times"), [("SIGTERM", 5), ("SIGINT", 5)])
def test_stopped_and_finished(short, undisturbed, same, tmp_path, note, name, times):
    dice = random.Random(name)
    run = tmp_path / run_directory(undisturbed[0]).relative_to(undisturbed[0])
    signum = getattr(signal, name)
    for _ in range(times):
        ended = strike(short, tmp_path, run, signum, delay=dice.uniform(0, 0.02))
        assert ended.code == 128 + signum, ended.said
        assert "everything is saved. To go on: python -m train run" in ended.said
    assert short.run(tmp_path).code == 0
    same(run)
    called = {"SIGTERM": "SIGTERM", "SIGINT": "Ctrl-C"}[name]
    note(called, times, "saved, says how to go on; " + OUTCOME)


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once(short, undisturbed, same, tmp_path, note):
    run = tmp_path / run_directory(undisturbed[0]).relative_to(undisturbed[0])
    process = short.start(tmp_path)
    until(lambda: newest(run) > 0, process)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode in (-signal.SIGTERM, 128 + signal.SIGTERM)
    assert short.run(tmp_path).code == 0
    same(run)
    assert len(checkpoints(run)) == 2
    note("two signals at once", 1, OUTCOME)
