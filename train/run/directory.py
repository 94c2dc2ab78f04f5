"""The directory of a run: what was asked, on which data, and how to find both again."""

import dataclasses
import fcntl
import importlib.metadata
import json
import math
import os
import pathlib
import platform
import shutil
import subprocess
import sys
from typing import Any, NamedTuple

import jax
import numpy as np

import tag_optax
from train import files, settings
from train.errors import UserError
from train.run.config import Config, Record
from train.run.records import read_config
from train.streams import Stream

_PACKAGES = ("jax", "jaxlib", "optax", "flax", "orbax-checkpoint", "numpy")
_LOCK = "lock"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Keeping:
    """What is kept of a run, and how often."""

    checkpoint_every: int = 1000
    """Steps of a task between two checkpoints; the end of a task always makes one."""
    keep: int = 2
    """How many checkpoints to keep."""
    tensorboard: bool = False
    """Write TensorBoard scalars too."""
    overwrite: bool = False
    """Throw away what a run directory holds, instead of resuming it."""
    stop_after: int | None = None
    """Learn only so many tasks now; the same command without it goes on."""

    def __post_init__(self) -> None:
        settings.check_counts(self, "checkpoint_every", "keep", "stop_after")


class RunDirectory:
    """One seed's files. Opening it checks that it is free, and that it holds the same run."""

    def __init__(
        self,
        path: pathlib.Path,
        config: Config,
        seed: int,
        stream: Stream | None = None,
        *,
        overwrite: bool = False,
    ):
        self.path = path
        self.seed = seed
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"
        facts = None if stream is None else describe(stream)
        if not overwrite:
            # Before anything is written: what is refused is left as it was.
            check(path, config, seed, facts)
        self._lock = lock(path)
        try:
            for found in path.iterdir() if overwrite else ():
                if found.name != _LOCK:
                    shutil.rmtree(found) if found.is_dir() else found.unlink()
            # Another process may have been here in between.
            check(path, config, seed, facts)
            wanted = {"config.json": config.flat() | {"seed": seed}, "stream.json": facts}
            for name, content in wanted.items():
                # Compared as JSON has it, where a tuple is a list.
                content = json.loads(json.dumps(content))
                there = (path / name).exists()
                if content and not (there and files.read_json(path / name) == content):
                    files.write_json(path / name, content)
        except BaseException:
            self.close()
            raise

    def write_environment(self, layout: str) -> None:
        """What a reader needs to judge and repeat the run."""
        packages = {name: importlib.metadata.version(name) for name in _PACKAGES}
        environment = {
            "command": " ".join(["python -m train", *sys.argv[1:]]),
            "commit": _commit(),
            "python": platform.python_version(),
            "platform": platform.platform(),
            "cores": os.cpu_count(),
            "devices": [str(device) for device in jax.devices()],
            "layout": layout,
            "packages": {"tag_optax": tag_optax.__version__} | packages,
        }
        files.write_json(self.path / "environment.json", environment)

    def close(self) -> None:
        os.close(self._lock)


def check(path: pathlib.Path, config: Config, seed: int, facts: Any | None) -> None:
    """Refuses a directory that is not this run's: another one's, or somebody else's files.

    `facts` are what `describe` says of the stream, where it is open.
    """
    advice = "Choose another --out, or --overwrite what is there."
    recorded, tasks = path / "config.json", path / "stream.json"
    if recorded.exists():
        record, found = read_config(recorded)
        if different := differences(record, config):
            raise UserError(
                f"{path} holds a run with other settings: {'; '.join(different)}. {advice}"
            )
        if found != seed:
            raise UserError(f"{path} holds the run of seed {found}. {advice}")
        if facts is not None and tasks.exists():
            _check_tasks(path, config, read_description(tasks), facts, advice)
    elif path.is_dir():
        # A process that was killed at its very beginning leaves these.
        others = {found.name for found in path.iterdir()} - {_LOCK, "config.partial"}
        if others:
            raise UserError(
                f"{path} holds {min(others)} and no config.json, so it is no run's. {advice}"
            )


def _check_tasks(path: pathlib.Path, config: Config, found: Any, facts: Any, advice: str) -> None:
    """A run may be extended by further tasks; those that it has must be the same."""
    old, new = ([(t["name"], t["fingerprint"]) for t in each["tasks"]] for each in (found, facts))
    for before, now in zip(old, new, strict=False):
        if before != now:
            raise UserError(
                f"{path} holds a run on other data: its task {before[0]!r} is not the task "
                f"{now[0]!r} of this one. {advice}"
            )
    if len(new) < len(old):
        raise UserError(
            f"{path} holds a run of {len(old)} tasks, and this one has {len(new)}: give all of "
            f"them, or fewer to learn now with --stop-after. {advice}"
        )
    run = config.run
    fixed = config.method.value.joint or (
        run.schedule_over == "stream" and (run.schedule != "constant" or run.warmup)
    )
    if len(new) > len(old) and fixed:
        raise UserError(
            f"{path} holds a run of {len(old)} tasks. It cannot be extended, because all its tasks "
            "are learned at once, or its schedule goes over all of them (--schedule-over task does "
            f"not). {advice}"
        )


def extending(config: Config) -> tuple[str, ...]:
    """Settings by which a run is extended, and does not become another one."""
    return ("capacity", *getattr(config.stream.value, "extends", ()))


def differences(record: Record, config: Config) -> list[str]:
    """What makes another run of a recorded one, as lines for an error."""
    more = extending(config)
    found = record.differences(config.record)
    return [each for each in found if each.split(":")[0] not in more]


def describe(stream: Stream) -> dict[str, Any]:
    """What a reader of a run, or of its network, must know of the stream."""
    return {
        "name": stream.name,
        "num_outputs": stream.num_outputs,
        "input_shape": list(stream.input_shape),
        "input_dtype": str(stream.input_dtype),
        "target_dtype": str(stream.target_dtype),
        "scale": stream.scale,
        "offset": stream.offset,
        "class_names": list(stream.class_names),
        "tasks": [
            {
                "name": task.name,
                "classes": None if task.classes is None else list(task.classes),
                "train": len(task.train),
                "test": len(task.test),
                "fingerprint": fingerprint,
            }
            for task, fingerprint in zip(stream.tasks, stream.fingerprints(), strict=True)
        ],
    }


def read_description(path: pathlib.Path) -> dict[str, Any]:
    """What `describe` said; raises FileNotFoundError where there is nothing."""
    found = files.read_json(path)
    try:
        well = _is_description(found)
    except (KeyError, TypeError, ValueError, SyntaxError):  # The last from numpy, of a dtype.
        well = False
    if not well:
        raise UserError(f"{path} does not describe a stream of tasks.")
    return found


def _is_description(found: Any) -> bool:
    tasks, outputs = found["tasks"], found["num_outputs"]
    units = [unit for task in tasks for unit in task["classes"] or ()]
    dtypes = [np.dtype(found[name]) for name in ("input_dtype", "target_dtype")]
    texts = [found["name"], found["input_dtype"], found["target_dtype"], *found["class_names"]]
    texts += [task[name] for task in tasks for name in ("name", "fingerprint")]
    numbers = [found["offset"], 1.0 if found["scale"] is None else found["scale"]]
    return (
        bool(tasks)
        and all(isinstance(each, str) and each.replace("\n", " ").isprintable() for each in texts)
        and all(dtype.kind in "biufV" for dtype in dtypes)  # V: as bfloat16 has it.
        and all(isinstance(number, int | float) and math.isfinite(number) for number in numbers)
        and all(type(n) is int and 0 < n <= settings.MOST for n in (outputs, *found["input_shape"]))
        and all(type(unit) is int and 0 <= unit < outputs for unit in units)
        and len(found["class_names"]) in (0, outputs)
    )


class Bystander(NamedTuple):
    """One seed's files, for a process that leaves them to the first one, or a run without any."""

    seed: int
    checkpoints: pathlib.Path | None = None
    path: None = None
    metrics: None = None


def lock(path: pathlib.Path) -> int:
    """Makes a directory, and keeps others out as long as the process lives, even to SIGKILL."""
    with files.saying_why(path):
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path / _LOCK, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UserError(f"Another process is at work in {path}. Wait for it, or stop it.") from None
    return descriptor


def _commit() -> str | None:
    """The commit of the checkout that runs, if it is one."""
    root = pathlib.Path(__file__).parents[2]
    if not (root / ".git").exists() or shutil.which("git") is None:
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--exclude=*", "--dirty=+changes"]
    found = subprocess.run(command, capture_output=True, text=True)
    # Nothing where there is no commit yet, or the repository is another user's.
    return found.stdout.strip() or None
