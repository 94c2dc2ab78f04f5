"""Runs of the real command line that something happens to, beside one that nothing happens to."""

import dataclasses
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable

ROOT = pathlib.Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a process ended, and what it said."""

    code: int
    said: str

    @property
    def sentence(self) -> str:
        """The one line of an error."""
        lines = [line for line in self.said.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, self.said
        return lines[0]


@dataclasses.dataclass(frozen=True)
class Command:
    """`python -m train run` on the embedded stream, a checkpoint every second step: there is always
    one being written."""

    options: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()

    def start(self, out: pathlib.Path, *more: str, **popen: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "train", "run", "--stream", "rotated-digits"]
        command += ["--optimizer", "tag-rmsprop", "--steps-per-call", "2", "--log-every", "5"]
        command += [*self.options, "--out", str(out)]
        if "--checkpoint-every" not in self.options:
            command += ["--checkpoint-every", "2"]
        # One core and one device: what a run computes depends on neither of them by chance.
        environment = {name: text for name, text in os.environ.items() if name != "XLA_FLAGS"}
        paths = [text for name, text in self.environment if name == "PYTHONPATH"]
        environment |= dict(self.environment)
        environment["PYTHONPATH"] = os.pathsep.join([*paths, str(ROOT)])
        return subprocess.Popen(
            [*command, *more],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **popen,  # type: ignore[arg-type]
        )

    def run(self, out: pathlib.Path, *more: str, **popen: object) -> Ended:
        return wait(self.start(out, *more, **popen))


def wait(process: subprocess.Popen[str]) -> Ended:
    said, _ = process.communicate()
    ended = Ended(process.returncode, said)
    assert "Traceback" not in ended.said, ended.said
    return ended


def run_directory(out: pathlib.Path) -> pathlib.Path:
    (found,) = out.rglob("seed-1")
    return found


def checkpoints(run: pathlib.Path) -> list[pathlib.Path]:
    """The finished ones, oldest first."""
    found = [path for path in (run / "checkpoints").iterdir() if path.name.isdigit()]
    return sorted(found, key=lambda path: int(path.name))


def unfinished(run: pathlib.Path) -> list[pathlib.Path]:
    """Checkpoints that are being written, or were when their process ended."""
    return list((run / "checkpoints").glob("*tmp*"))


def progress(run: pathlib.Path) -> list[tuple[str, int]]:
    """Changes as soon as a new process has come as far as its first record or checkpoint."""
    return [
        (path.name, path.stat().st_mtime_ns)
        for path in (run / "metrics.jsonl", run / "checkpoints")
        if path.exists()
    ]


def until(happened: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Waits for something that a process does; it must not end before."""
    while not happened():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.001)


def newest(run: pathlib.Path) -> int:
    """The step of the newest checkpoint."""
    found = checkpoints(run) if (run / "checkpoints").exists() else []
    return int(found[-1].name) if found else 0


def strike(
    command: Command,
    out: pathlib.Path,
    run: pathlib.Path,
    signum: int,
    *,
    delay: float = 0.0,
    in_checkpoint: bool = False,
) -> Ended | None:
    """Starts or resumes a run and sends it a signal after it has got somewhere: to its first step
    for a signal that it can answer.

    Returns None where it had written its checkpoint before the signal came.
    """
    before, step = progress(run), newest(run)
    process = command.start(out)
    if signum == signal.SIGKILL:
        until(lambda: progress(run) != before, process)
    else:
        until(lambda: newest(run) > step, process)
    time.sleep(delay)
    if in_checkpoint:
        until(lambda: unfinished(run) or process.poll() is not None, process)
    process.send_signal(signum)
    ended = wait(process)
    return None if in_checkpoint and not unfinished(run) else ended


def what_it_left(run: pathlib.Path) -> dict[str, object]:
    """All that must be the same: records and matrices byte for byte, and the last state."""
    last = checkpoints(run)[-1]
    record = json.loads((last / "record" / "metadata").read_text())
    for line in (run / "metrics.jsonl").read_text().splitlines():
        json.loads(line)
    return {
        "metrics": (run / "metrics.jsonl").read_bytes(),
        "matrices": (run / "matrices.json").read_bytes(),
        "step": last.name,
        "fingerprint": record["fingerprint"],
        "notes": record["notes"],
    }


def contents(root: pathlib.Path) -> dict[str, bytes]:
    """Every file below, to see that nothing was touched. The lock and the environment aside: they
    say who looked."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name not in ("lock", "environment.json")
    }


def some_file(checkpoint: pathlib.Path, dice: random.Random) -> pathlib.Path:
    """One of its files that hold anything, the large ones as likely as the small ones."""
    found = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.stat().st_size)
    return dice.choice(found)


def flip(path: pathlib.Path, position: int, mask: int) -> None:
    content = bytearray(path.read_bytes())
    content[position % len(content)] ^= mask
    path.write_bytes(content)
