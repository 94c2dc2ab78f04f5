"""Training is tested as a user runs it: single precision, promotion as JAX has it by default."""

import io
from collections.abc import Iterator

import jax
import numpy as np
import pytest
import rich.console

from train.run.config import Config
from train.streams.types import Examples, Stream, Task

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


@pytest.fixture
def console() -> rich.console.Console:
    """Without a terminal, its text in `console.file`."""
    return rich.console.Console(file=io.StringIO(), width=100)


@pytest.fixture(scope="session")
def tiny() -> Config:
    """A config that learns `tiny_stream` in a second."""
    return Config(
        stream="rotated-digits",
        optimizer="tag-rmsprop",
        model="mlp",
        learning_rate=1e-3,
        hidden=(8,),
        num_tasks=3,
        batch_size=4,
        log_every=3,
    )


def make_stream(num_tasks: int = 3, train: int = 26, test: int = 9, seed: int = 0) -> Stream:
    """Noise in three tasks of two classes; bright images are of the second class."""
    rng = np.random.default_rng(seed)

    def part(task: int, size: int) -> Examples:
        images = rng.integers(0, 128, (size, 4, 4, 1), np.uint8)
        kind = rng.integers(0, 2, size)
        images[kind == 1] += 100
        return Examples(images, np.arange(size), (2 * task + kind).astype(np.int32))

    tasks = [
        Task(f"noise {t}", range(2 * t, 2 * t + 2), part(t, train), part(t, 0), part(t, test))
        for t in range(num_tasks)
    ]
    return Stream("noise", tasks, 2 * num_tasks, (4, 4, 1), 1 / 255, 0.0, ["noise"])


@pytest.fixture(scope="session")
def tiny_stream() -> Stream:
    return make_stream()


@pytest.fixture
def mnist(tmp_path) -> dict[str, object]:
    """A small copy of MNIST, and an empty cache: arguments of `load_stream`."""
    write(tmp_path / "data", "mnist")
    return dict(data_dirs=[tmp_path / "data"], cache_dir=tmp_path / "cache")
