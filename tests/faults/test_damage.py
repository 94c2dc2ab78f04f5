"""Checkpoints that are damaged, deleted, shared or dated wrongly."""

import os
import random
import shutil
import time

import pytest

from tests.faults.harness import checkpoints, contents, flip, run_directory, some_file, wait

RESUMED = "says so, goes on from the one before it; the end is the same to the bit"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def half_way(short, tmp_path_factory):
    """A run of which two tasks are learned."""
    out = tmp_path_factory.mktemp("half-way")
    assert short.run(out, "--stop-after", "2").code == 0
    return out


@pytest.fixture
def half(half_way, tmp_path):
    """A copy of it, to be spoilt."""
    out = tmp_path / "half"
    shutil.copytree(half_way, out)
    return out


def truncate(path, dice):
    os.truncate(path, dice.randrange(path.stat().st_size))


def flip_one(path, dice):
    flip(path, dice.randrange(path.stat().st_size), 1 << dice.randrange(8))


def largest(checkpoint):
    files = [path for path in checkpoint.rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("spoil", [truncate, flip_one])
@pytest.mark.parametrize("which", ["largest", "any"])
def test_the_newest_checkpoint_is_damaged(short, same, half, note, spoil, seed, which):
    dice = random.Random(f"{spoil.__name__} {which} {seed}")
    run = run_directory(half)
    newest = checkpoints(run)[-1]
    path = largest(newest) if which == "largest" else some_file(newest, dice)
    name = path.relative_to(newest)
    spoil(path, dice)
    ended = short.run(half)
    assert ended.code == 0, f"{name}: {ended.said}"
    same(run)
    noticed = "is damaged" in ended.said
    # What the arrays are read from must be noticed; some of orbax's files say nothing about them.
    assert noticed or which == "any", ended.said
    assert noticed == (run / "checkpoints-damaged" / newest.name).exists()
    fault = "newest checkpoint truncated" if spoil is truncate else "a byte flipped in the newest"
    note(fault, 1, RESUMED if noticed else f"in {name}, which is not read; the same to the bit")


def test_all_checkpoints_are_damaged(short, half, note):
    run = run_directory(half)
    for each in checkpoints(run):
        flip(largest(each), 1000, 4)
    before = contents(half)
    ended = short.run(half)
    assert ended.code == 2, ended.said
    assert "No checkpoint in" in ended.sentence
    assert "--overwrite" in ended.sentence
    assert contents(half) == before
    note("every checkpoint damaged", 1, "one sentence, exit code 2; nothing is touched")


def test_the_newest_checkpoint_is_deleted(short, same, half, note):
    run = run_directory(half)
    shutil.rmtree(checkpoints(run)[-1])
    assert short.run(half).code == 0
    same(run)
    note("newest checkpoint deleted", 1, "goes on from the one before; the same to the bit")


def test_all_checkpoints_are_deleted(short, half, note):
    run = run_directory(half)
    shutil.rmtree(run / "checkpoints")
    before = contents(half)
    ended = short.run(half)
    assert ended.code == 2, ended.said
    assert "has records of a run" in ended.sentence
    assert contents(half) == before
    again = short.run(half, "--overwrite")
    assert again.code == 0, again.said
    note("every checkpoint deleted", 1, "one sentence, exit code 2; nothing is touched")


@pytest.mark.parametrize("fault", ["deleted", "a byte flipped"])
def test_the_records_are_damaged(short, half, note, fault):
    path = run_directory(half) / "metrics.jsonl"
    if fault == "deleted":
        path.unlink()
    else:
        flip(path, 100, 4)
    before = contents(half)
    ended = short.run(half)
    assert ended.code == 2, ended.said
    assert "metrics.jsonl" in ended.sentence
    assert "--overwrite" in ended.sentence
    assert contents(half) == before
    note(f"metrics.jsonl {fault}", 1, "one sentence, exit code 2; nothing is touched")


def test_two_processes_on_one_directory(short, same, half, note):
    for _ in range(3):
        shutil.rmtree(half.parent / "two", ignore_errors=True)
        shutil.copytree(half, half.parent / "two")
        both = [wait(each) for each in [short.start(half.parent / "two") for _ in range(2)]]
        codes = sorted(ended.code for ended in both)
        if codes == [0, 0]:  # The second came when the first was done, and found a finished run.
            assert any("learned" not in ended.said for ended in both)
        else:
            assert codes == [0, 2]
            (refused,) = [ended for ended in both if ended.code == 2]
            assert "Another process is at work" in refused.sentence
        same(run_directory(half.parent / "two"))
    note("two processes on one directory", 3, "one runs, the other says so; the same to the bit")


JUMPING = """
import random, time
_dice, _time = random.Random(0), time.time
time.time = lambda: _time() + {offset} + _dice.uniform(-1, 1) * {jump}
time.time_ns = lambda: int(time.time() * 1e9)
"""
YEARS, MINUTES = 10**8, 250


@pytest.mark.parametrize(
    ("fault", "offset", "jump"),
    [
        ("a clock that is years behind", -YEARS, 0),
        ("a clock that is years ahead", YEARS, 0),
        ("a clock that jumps by minutes at every look", 0, MINUTES),
        ("a clock that jumps by years at every look", 0, YEARS),
    ],
)
def test_clocks(short, same, half, tmp_path, note, fault, offset, jump):
    """And files from that time."""
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock" / "sitecustomize.py").write_text(JUMPING.format(offset=offset, jump=jump))
    then = time.time() + offset
    for path in half.rglob("*"):
        os.utime(path, (then, then))
    jumping = type(short)(short.options, (("PYTHONPATH", str(tmp_path / "clock")),))
    ended = jumping.run(half)
    outcome = "the end is the same to the bit"
    if jump:  # Orbax waits by the clock on the wall.
        assert ended.code in (0, 2), ended.said
        if ended.code == 2:
            assert "orbax gave up, as where a clock is set" in ended.sentence
            ended = short.run(half)
            outcome = "one sentence, exit code 2; resumed, the same to the bit"
    assert ended.code == 0, ended.said
    same(run_directory(half))
    note(fault, 1, outcome)
