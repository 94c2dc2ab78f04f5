"""Training is tested as a user runs it: single precision, promotion as JAX has it by default."""

import dataclasses
import functools
import io
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
import rich.console

from train import report
from train.paper.presets import preset
from train.report.drawings import drawings
from train.run.config import Config, find
from train.run.engine import Engine
from train.streams import Examples, Stream, Task

from .tiny_data import write


@pytest.fixture(autouse=True)
def strict_numerics() -> Iterator[None]:
    """In place of the library's stricter settings."""
    with (
        jax.enable_x64(False),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        yield


_WRITING = sys.modules[report.write.__module__]  # The package has the function of that name.


@pytest.fixture(scope="module")
def nothing_is_drawn() -> Iterator[None]:
    """Plots take seconds; all else of a report is real."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_WRITING, "drawings", lambda *arguments: iter(()))
        yield


@pytest.fixture
def draw(monkeypatch) -> Callable[[], None]:
    """From when it is called, plots are drawn after all."""
    return lambda: monkeypatch.setattr(_WRITING, "drawings", drawings)


@pytest.fixture
def console() -> rich.console.Console:
    """Without a terminal, its text in `console.file`."""
    return rich.console.Console(file=io.StringIO(), width=100)


@pytest.fixture(scope="session")
def tiny() -> Config:
    """A config that learns `tiny_stream` in a second."""
    small = dict(learning_rate=1e-3, hidden=(8,), num_tasks=3, batch_size=4, log_every=3)
    return preset("rotated-digits", "tag-rmsprop").changed(small)


def make_stream(num_tasks: int = 3, train: int = 26, test: int = 9, seed: int = 0) -> Stream:
    """Noise in three tasks of two classes; bright images are of the second class."""
    rng = np.random.default_rng(seed)

    def part(task: int, size: int) -> Examples:
        images = rng.integers(0, 128, (size, 4, 4, 1), np.uint8)
        kind = rng.integers(0, 2, size)
        images[kind == 1] += 100
        return Examples(images, np.arange(size), (2 * task + kind).astype(np.int32))

    tasks = []
    for t in range(num_tasks):
        learned, held, judged = part(t, train), part(t, 0), part(t, test)
        tasks.append(Task(f"noise {t}", learned, judged, held, range(2 * t, 2 * t + 2)))
    return Stream("noise", tasks, scale=1 / 255, sources=["noise"])


@pytest.fixture(scope="session")
def tiny_stream() -> Stream:
    return make_stream()


def with_parts(
    config: Config, *, optimizer: str = "tag-rmsprop", method: str = "naive", **settings: Any
) -> Config:
    """The config with another optimizer and method, which have their own defaults."""
    parts = dict(optimizer=find("optimizer", optimizer), method=find("method", method))
    return dataclasses.replace(config, **parts).changed(settings)


@pytest.fixture(scope="session")
def engines(tiny_stream) -> Callable[..., Engine]:
    """Engines for `tiny_stream`, each made and compiled once: for (config, number of seeds)."""
    return functools.cache(
        lambda config, seeds=1: Engine(config.resolved(np.int32), tiny_stream, seeds)
    )


@pytest.fixture
def mnist(tmp_path) -> dict[str, object]:
    """A small copy of MNIST, and an empty cache: arguments of `load_stream`."""
    write(tmp_path / "data", "mnist")
    return dict(data_dirs=[tmp_path / "data"], cache_dir=tmp_path / "cache")
