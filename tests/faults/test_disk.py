"""Disks that are full, limited or not to be written to."""

import os
import resource
import subprocess
import time

import pytest

from tests.faults.harness import contents, run_directory, until, wait

pytestmark = pytest.mark.slow


def fill(disk):
    """Takes all the room there is."""
    with (disk / "ballast").open("ab", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                while file.write(b"\0" * size) == size:
                    pass
            except OSError:
                pass
            size //= 2


def test_a_disk_that_becomes_full(short, undisturbed, same, small_disk, note):
    """In the middle of a run, five times over; it goes on when there is room."""
    out = small_disk / "runs"
    run = out / run_directory(undisturbed[0]).relative_to(undisturbed[0])
    for times in range(5):
        process = short.start(out)
        reached = 10 * (times + 1)

        def far(reached=reached):
            found = (run / "checkpoints").glob("[0-9]*") if run.exists() else ()
            return any(path.name.isdigit() and int(path.name) >= reached for path in found)

        until(far, process)
        while process.poll() is None:  # An old checkpoint that it deletes is room for a new one.
            fill(small_disk)
            time.sleep(0.001)
        ended = wait(process)
        assert ended.code == 2, ended.said
        assert "No space left on device" in ended.sentence
        for line in (run / "metrics.jsonl").read_text().splitlines():
            assert line.endswith("}"), line
        (small_disk / "ballast").unlink()
    assert short.run(out).code == 0
    same(run)
    note("the disk becomes full", 5, "one sentence, exit code 2; resumed, the same to the bit")


def test_a_disk_that_is_full(short, small_disk, note):
    fill(small_disk)
    before = contents(small_disk)
    ended = short.run(small_disk / "runs")
    assert ended.code == 2, ended.said
    assert "No space left on device" in ended.sentence
    assert contents(small_disk) == before
    note("the disk is full from the start", 1, "one sentence, exit code 2")


def test_a_quota(short, tmp_path, undisturbed, same, note):
    """Files of at most 64 KB: the first checkpoint does not fit."""
    process = short.start(tmp_path)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
    ended = wait(process)
    assert ended.code == 2, ended.said
    assert "File too large" in ended.sentence
    assert short.run(tmp_path).code == 0
    same(run_directory(tmp_path))
    note("a quota on the size of files", 1, "one sentence, exit code 2; the same to the bit after")


def test_a_directory_that_is_read_only(short, small_disk, undisturbed, same, note):
    out = small_disk / "runs"
    assert short.run(out, "--stop-after", "1").code == 0
    before = contents(out)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for place in (out, small_disk / "new"):  # A run to resume, and one to begin.
        ended = short.run(place)
        assert ended.code == 2, ended.said
        assert "Read-only file system" in ended.sentence
    assert contents(out) == before
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert short.run(out).code == 0
    same(run_directory(out))
    note("a read-only directory", 2, "one sentence, exit code 2; nothing is touched")


def test_a_directory_without_permission(short, tmp_path, note):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(0o500)
    ended = short.run(tmp_path / "runs")
    assert ended.code == 2, ended.said
    assert "Permission denied" in ended.sentence
    note("no permission to write", 1, "one sentence, exit code 2")
