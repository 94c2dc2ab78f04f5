"""Faults are met as a user meets them: single precision, promotion as JAX has it by default."""

import pathlib
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.faults.harness import Command, run_directory, what_it_left
from tests.faults.table import FAULT
from tests.train.conftest import draw, nothing_is_drawn, strict_numerics  # noqa: F401  (fixtures)


@pytest.fixture
def note(record_property) -> Callable[[str, int, str], None]:
    """Notes a fault for the table: its name, how often it was tried, the outcome."""
    return lambda fault, times, outcome: record_property(FAULT, (fault, times, outcome))


@pytest.fixture(scope="session")
def short() -> Command:
    """Four tasks of 18 steps."""
    return Command(("--num-tasks", "4", "--batch-size", "80"))


@pytest.fixture(scope="session")
def undisturbed(short, tmp_path_factory) -> tuple[pathlib.Path, dict[str, object]]:
    """A whole run of `short` and what it left."""
    out = tmp_path_factory.mktemp("undisturbed")
    ended = short.run(out)
    assert ended.code == 0, ended.said
    return out, what_it_left(run_directory(out))


@pytest.fixture
def same(undisturbed) -> Callable[[pathlib.Path], None]:
    """Asserts that a run left the same as one that nothing happened to."""

    def compare(run: pathlib.Path) -> None:
        found, expected = what_it_left(run), undisturbed[1]
        for name in expected:
            assert found[name] == expected[name], f"{name} differs in {run}"

    return compare


@pytest.fixture
def small_disk(tmp_path) -> Iterator[pathlib.Path]:
    """A file system of 16 MB of its own."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(path)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"mounting a small disk needs root: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", str(path)], check=True)
