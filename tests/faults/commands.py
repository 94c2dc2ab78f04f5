"""Commands called in process, with nothing behind them that trains, and what they leave on disk."""

import contextlib
import io
import os
import pathlib
import tempfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest

from train.cli.main import main
from train.errors import DONE, FAILED, REFUSED
from train.launch import hosts, processes, seeds
from train.launch.jobs import Job
from train.launch.processes import Failure
from train.launch.seeds import SeedResults
from train.paper.presets import experiment
from train.run.config import Config
from train.run.directory import RunDirectory
from train.streams import as_stream, preparation

from ..train.fake_runs import write_run

CODES = {DONE, FAILED, REFUSED}
"""What a command that neither loses a process nor gets a signal may return."""


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def nothing_trains() -> Iterator[None]:
    """The one seam: all before a first step and all files are real, and every run fails at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seeds, "Engine", lambda *arguments: None)
        patch.setattr(seeds, "_run", _unlucky)
        patch.setattr(processes, "num_processes", lambda asked: asked or 1)
        patch.setattr(
            processes, "run_jobs", lambda jobs, *others, **more: dict.fromkeys(jobs, Failure("no"))
        )
        patch.setattr(hosts, "run_guarded", lambda arguments: 0)
        patch.setattr(preparation, "_builder", _unreachable)
        yield


def _unlucky(jobs: Sequence[Job], *others: object) -> SeedResults:
    return SeedResults({job.seed: "unlucky" for job in jobs})


def _unreachable(*arguments: object) -> None:
    raise OSError("no network")


def write_finished(out: pathlib.Path, config: Config, seed: int) -> pathlib.Path:
    """A run as if it had been trained; returns its directory."""
    write_run(out, config, seed)
    stream = as_stream(config.stream.value)
    config = config.resolved(stream.target_dtype)
    path = experiment(out, config.record) / f"seed-{seed}"
    RunDirectory(path, config, seed, stream).close()
    return path


@contextlib.contextmanager
def elsewhere() -> Iterator[pathlib.Path]:
    """A new working directory, with nothing of the machine's own data or settings."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        path = pathlib.Path(name) / "here"
        path.mkdir()
        patch.chdir(path)
        for variable in ("TFDS_DATA_DIR", "TAG_OPTAX_CACHE", "HOME"):
            patch.setenv(variable, str(path / variable))
        yield path


def call(*arguments: str, encoding: str = "utf-8") -> Ended:
    """What `python -m train` does; any exception but SystemExit is a fault of ours."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(list(arguments))
        except SystemExit as ended:  # How tyro ends after --help and after its own errors.
            code = ended.code
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode(encoding))
    assert isinstance(code, int), code
    return Ended(code, *texts)


def snapshot(path: pathlib.Path) -> dict[str, object]:
    """All that is below a path: directories, where links lead, and what files hold."""
    found: dict[str, object] = {}
    for each in sorted(path.rglob("*")):
        name = os.fspath(each.relative_to(path))
        if each.is_symlink():
            found[name] = os.readlink(each)
        else:
            found[name] = each.read_bytes() if each.is_file() else None
    return found
