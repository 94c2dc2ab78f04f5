"""The directory of a run: what was asked, what was measured, and how to find both again."""

import dataclasses
import fcntl
import importlib.metadata
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
from typing import Any

import numpy as np

import tag_optax
from train import files
from train.errors import UserError
from train.run import config as configs
from train.run import matrices
from train.run.config import Config
from train.run.matrices import Matrices
from train.run.recorder import NoRecorder, Recorder

_PACKAGES = ("jax", "jaxlib", "optax", "flax", "orbax-checkpoint", "numpy")


class RunDirectory:
    """One seed's files. Opening it checks that it is free, and that it holds the same config."""

    def __init__(self, path: pathlib.Path, config: Config, seed: int, *, overwrite: bool = False):
        self.path = path
        self.seed = seed
        self.config = config
        if not overwrite:
            self._check()  # Before anything is written: what is refused is left as it was.
        make(path)
        self._lock = lock(path)
        try:
            if overwrite:
                self._clear()
            self._check()  # Another process may have been here in between.
            if not self._config.exists():
                write_json(self._config, configs.to_json(config) | {"seed": seed})
        except BaseException:
            self.close()
            raise

    @property
    def checkpoints(self) -> pathlib.Path:
        return self.path / "checkpoints"

    @property
    def metrics(self) -> pathlib.Path:
        return self.path / "metrics.jsonl"

    def recorder(self, records: list[dict[str, Any]], *, tensorboard: bool) -> Recorder:
        """Goes on behind these records."""
        return Recorder(self.metrics, records, tensorboard=tensorboard)

    def check_no_records(self, checkpoints: pathlib.Path) -> None:
        """Refuses to begin a run where there are records of one: it would write over them."""
        if self.metrics.exists() and self.metrics.stat().st_size:
            raise UserError(
                f"{self.path} has records of a run, and {checkpoints} no checkpoint to go on from. "
                "Put the checkpoints back, or give the --seeds and --parallel that the run was "
                "started with; --overwrite throws it away and starts it anew."
            )

    def write_environment(self, devices: list[str], layout: str) -> None:
        write_json(self.path / "environment.json", environment(devices, layout))

    def write_matrices(
        self, accuracy: np.ndarray, alpha: np.ndarray | None, tasks: list[str], sources: list[str]
    ) -> None:
        """a[t, s] and alpha(t, s), float64[T, T], NaN where there is nothing."""
        matrices.write(self.path / matrices.FILE, Matrices(accuracy, alpha, tasks, sources))

    def close(self) -> None:
        os.close(self._lock)

    def _clear(self) -> None:
        for found in self.path.iterdir():
            if found.name != _LOCK:
                shutil.rmtree(found) if found.is_dir() else found.unlink()

    @property
    def _config(self) -> pathlib.Path:
        return self.path / "config.json"

    def _check(self) -> None:
        """Refuses what is not this run: another one, or somebody else's files."""
        advice = "Choose another --out, or --overwrite what is there."
        if self._config.exists():
            differences = configs.read(self._config).differences(self.config)
            if differences:
                raise UserError(
                    f"{self.path} holds a run with other settings: {'; '.join(differences)}. "
                    f"{advice}"
                )
            seed = files.read_json(self._config).get("seed")
            if seed != self.seed:
                raise UserError(f"{self.path} holds the run of seed {seed}. {advice}")
        elif self.path.is_dir():
            # A process that was killed at its very beginning leaves these.
            others = {found.name for found in self.path.iterdir()} - {_LOCK, "config.partial"}
            if others:
                raise UserError(
                    f"{self.path} holds {min(others)} and no config.json, so it is no run's. "
                    f"{advice}"
                )


class Bystander:
    """One seed's files, for a process that leaves them to the first process of the run."""

    def __init__(self, seed: int):
        self.seed = seed

    def recorder(self, records: list[dict[str, Any]], *, tensorboard: bool) -> NoRecorder:
        del records, tensorboard
        return NoRecorder()

    def check_no_records(self, checkpoints: pathlib.Path) -> None:
        del checkpoints

    def write_matrices(
        self, accuracy: np.ndarray, alpha: np.ndarray | None, tasks: list[str], sources: list[str]
    ) -> None:
        del accuracy, alpha, tasks, sources


_LOCK = "lock"


def make(path: pathlib.Path) -> None:
    with files.saying_why(path):
        path.mkdir(parents=True, exist_ok=True)


def lock(path: pathlib.Path) -> int:
    """Held as long as the process lives; the kernel frees it even after SIGKILL."""
    with files.saying_why(path / _LOCK):
        descriptor = os.open(path / _LOCK, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UserError(f"Another process is at work in {path}. Wait for it, or stop it.") from None
    return descriptor


def write_json(path: pathlib.Path, content: Any) -> None:
    files.write_whole(path, json.dumps(content, indent=1) + "\n")


def environment(devices: list[str], layout: str) -> dict[str, Any]:
    """What a reader needs to judge and repeat a run."""
    return {
        "command": " ".join(["python -m train", *sys.argv[1:]]),
        "commit": _commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "devices": devices,
        "layout": layout,
        "packages": {"tag_optax": tag_optax.__version__}
        | {name: importlib.metadata.version(name) for name in _PACKAGES},
    }


def _commit() -> str | None:
    """The commit of the checkout that runs, if it is one."""
    root = pathlib.Path(__file__).parents[2]
    if not (root / ".git").exists() or shutil.which("git") is None:
        return None

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "--short", "HEAD") + ("+changes" if changed else "")
    except subprocess.CalledProcessError:  # No commit yet, or a repository of another user.
        return None


@dataclasses.dataclass(frozen=True)
class RunResult:
    """What a run directory says about a run."""

    path: pathlib.Path
    config: Config
    seed: int
    accuracy: np.ndarray
    alpha: np.ndarray | None
    tasks: list[str]
    sources: list[str]

    @property
    def finished(self) -> bool:
        return bool(np.isfinite(self.accuracy[-1]).all())


def read_result(path: pathlib.Path) -> RunResult:
    """Reads a run that has finished at least one task."""
    config = configs.read(path / "config.json")
    seed = files.read_json(path / "config.json").get("seed")
    if type(seed) is not int or seed < 0:
        raise UserError(f"{path / 'config.json'} names no seed: it is not a run's.")
    try:
        measured = matrices.read(path / matrices.FILE)
    except FileNotFoundError:
        raise UserError(f"{path} has finished no task yet.") from None
    if len(measured.tasks) != config.num_tasks:
        raise UserError(
            f"{path} holds {len(measured.tasks)} tasks, and its config.json has {config.num_tasks}."
        )
    return RunResult(
        path=path,
        config=config,
        seed=seed,
        accuracy=measured.accuracy,
        alpha=measured.alpha,
        tasks=measured.tasks,
        sources=measured.sources,
    )


def find_runs(roots: list[pathlib.Path]) -> list[pathlib.Path]:
    """Every run directory below these, in order, with something measured in it."""
    found = {path.parent for root in roots for path in root.rglob(matrices.FILE)}
    return sorted(path for path in found if (path / "config.json").exists())
