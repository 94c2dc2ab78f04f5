"""Two processes over loopback: as one with two devices; stopped, killed and refused together."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from train.cli.main import main
from train.errors import LOST, UserError
from train.launch import hosts as launched
from train.run import hosts

pytestmark = pytest.mark.ci

ROOT = pathlib.Path(__file__).parents[2]
# Ten tasks of 36 steps, a checkpoint every fourth.
COMMAND = [
    *("run", "--stream", "rotated-digits", "--optimizer", "tag-rmsprop", "--batch-size", "40"),
    *("--steps-per-call", "2", "--checkpoint-every", "4", "--log-every", "6", "--hidden", "8"),
]
SHORT = [*COMMAND, "--num-tasks", "3", "--max-examples", "120"]
TWO_TASKS = [*SHORT, "--stop-after", "2"]  # Without an end there is no report to draw.


def start(out, *more, command=COMMAND):
    flags = "--xla_force_host_platform_device_count=1"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": flags}
    return subprocess.Popen(
        [sys.executable, "-m", "train", *command, "--out", str(out), *more],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start_two(out, *more, command=COMMAND, second=()):
    """`second`: what only the second process is told."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    two = ["--coordinator", address, "--num-processes", "2", *more]
    return [
        start(out, *two, *(second if i else ()), "--process-id", str(i), command=command)
        for i in (0, 1)
    ]


def finish(processes, timeout=240):
    """Exit codes, and what each said. None is left running, whatever happens."""
    try:
        said = [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], said


def records(out):
    (path,) = out.rglob("metrics.jsonl")
    return path.read_bytes()


def child_of(process):
    (child,) = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(child)


def wait_for_checkpoints(out, count=2):
    deadline = time.monotonic() + 120
    while sum(path.name.isdigit() for path in out.rglob("checkpoints/*")) < count:
        assert time.monotonic() < deadline, "no checkpoint in two minutes"
        time.sleep(0.05)
    time.sleep(0.5)


def test_two_processes_are_as_one_with_two_devices(tmp_path):
    two = start_two(tmp_path / "two", "--bank-axis", "data", command=TWO_TASKS)
    codes, said = finish(two)
    assert codes == [0, 0], said
    assert "mesh data=2, tasks over data, 2 of 2 devices" in said[0][0]
    assert "task 2/3 learned" in said[0][0]
    assert "rotated-digits" not in said[1][0]  # One speaks for all.
    mesh = ["--mesh", "data=2", "--bank-axis", "data"]
    assert main([*TWO_TASKS, *mesh, "--out", str(tmp_path / "one")]) == 0
    assert records(tmp_path / "two") == records(tmp_path / "one")
    (environment,) = (tmp_path / "two").rglob("environment.json")
    assert len(json.loads(environment.read_text())["devices"]) == 2


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The records of a run that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole")
    codes, said = finish(start_two(out))
    assert codes == [0, 0], said
    return records(out)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_one_of_two_is_killed(tmp_path, whole, victim):
    processes = start_two(tmp_path)
    wait_for_checkpoints(tmp_path)
    os.kill(child_of(processes[victim]), signal.SIGKILL)
    killed = time.monotonic()
    codes, said = finish(processes)
    assert time.monotonic() - killed < 90
    assert codes[victim] == 128 + signal.SIGKILL
    assert codes[1 - victim] == LOST
    last = said[1 - victim][1].strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert "gone" in last
    assert "start" in last.lower()
    codes, said = finish(start_two(tmp_path))
    assert codes == [0, 0], said
    assert records(tmp_path) == whole


@pytest.mark.slow
@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_one_stops_both_after_the_same_step(tmp_path, whole, asked):
    processes = start_two(tmp_path)
    wait_for_checkpoints(tmp_path)
    processes[1].send_signal(asked)
    codes, said = finish(processes)
    assert codes == [128 + signal.SIGTERM] * 2, said
    assert "everything is saved. To go on:" in said[0][0]
    codes, said = finish(start_two(tmp_path))
    assert codes == [0, 0], said
    assert records(tmp_path) == whole


@pytest.mark.slow
def test_a_finished_run_is_finished_for_all(tmp_path):
    assert finish(start_two(tmp_path, command=SHORT))[0] == [0, 0]
    before = records(tmp_path)
    codes, said = finish(start_two(tmp_path, command=SHORT))
    assert codes == [0, 0], said
    assert "learned" not in said[0][0].partition("optimizer")[0]
    assert records(tmp_path) == before


@pytest.mark.slow
def test_what_one_cannot_do_ends_both(tmp_path):
    """The lock of the run is held by another process: both say so at once, none waits."""
    alone = start(tmp_path, command=COMMAND)
    wait_for_checkpoints(tmp_path, 1)
    began = time.monotonic()
    codes, said = finish(start_two(tmp_path))
    assert codes == [2, 2]
    assert "Another process is at work" in said[0][1]
    assert "Process 0 cannot start: see what it says." in said[1][1]
    assert time.monotonic() - began < 60
    alone.kill()
    alone.communicate()


@pytest.mark.slow
def test_processes_with_other_settings_are_refused(tmp_path):
    began = time.monotonic()
    codes, said = finish(start_two(tmp_path, command=SHORT, second=("--b", "3")))
    assert codes == [2, 2], said
    for _, error in said:
        assert "b is 5.0 in process 0 and 3.0 in process 1" in error
    assert time.monotonic() - began < 30
    assert list(tmp_path.iterdir()) == []


def test_processes_must_agree(monkeypatch):
    """As above, with the other process's settings made up."""
    other = json.dumps(dict(b=3.0, seeds=[1]), sort_keys=True).encode()

    def gather(mine):
        theirs = len(other) if mine.ndim == 0 else np.frombuffer(other.ljust(len(mine)), np.uint8)
        return np.stack([mine, theirs])

    monkeypatch.setattr(hosts, "are_several", lambda: True)
    monkeypatch.setattr(hosts.multihost_utils, "process_allgather", gather)
    hosts.check_agreed(dict(b=3.0, seeds=(1,)))
    with pytest.raises(UserError, match=r"b is 5\.0 in process 0 and 3\.0 in process 1\. Start"):
        hosts.check_agreed(dict(b=5.0, seeds=(1,)))
    with pytest.raises(UserError, match="clip is 1 in process 0 and None in process 1"):
        hosts.check_agreed(dict(b=3.0, seeds=(1,), clip=1))


@pytest.mark.parametrize(
    ("ends", "code", "said"),
    [
        ("os.abort()", LOST, "cannot be reached or is gone. Check --coordinator"),
        ("os.kill(os.getpid(), 9)", 137, "killed by SIGKILL"),
        ("sys.exit(3)", 3, ""),
    ],
)
def test_the_parent_says_how_its_child_ended(monkeypatch, capfd, ends, code, said):
    real = subprocess.Popen

    def stand_in(command, **options):
        assert command[1:] == ["-m", "train", "run"]
        return real([sys.executable, "-c", f"import os, sys; {ends}"], **options)

    monkeypatch.setattr(launched.subprocess, "Popen", stand_in)
    assert launched.run_guarded(["run"]) == code
    assert said in capfd.readouterr().err


def test_alone_everything_is_as_without_others():
    assert hosts.together(lambda: 5) == 5
    assert hosts.as_first(lambda: [True, False], 2) == [True, False]
    with pytest.raises(UserError, match="no"), hosts.noticing():
        hosts.together(lambda: (_ for _ in ()).throw(UserError("no")))
    with pytest.raises(ValueError, match="Gloo"), hosts.noticing():
        raise ValueError("Gloo all-reduce failed: Connection reset by peer")


def test_a_lost_process_is_told_from_other_errors(monkeypatch):
    monkeypatch.setattr(hosts.jax, "process_count", lambda: 2)
    with pytest.raises(hosts.Lost, match="Gloo"), hosts.noticing():
        raise ValueError("UNKNOWN: Gloo all-reduce failed: Connection reset by peer\nand more")
    with pytest.raises(ValueError, match="shapes"), hosts.noticing():
        raise ValueError("shapes do not match")
