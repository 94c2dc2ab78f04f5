import os

# Before JAX starts: tests of sharding need several devices.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

from collections.abc import Iterator

import hypothesis
import jax
import pytest

from tests.faults.table import pytest_terminal_summary  # noqa: F401  (a hook, found by its name)

hypothesis.settings.register_profile("tests", deadline=None, max_examples=30, derandomize=True)
hypothesis.settings.load_profile("tests")


@pytest.fixture(autouse=True)
def strict_numerics() -> Iterator[None]:
    """Nothing is promoted or broadcast by accident, and float64 is what it says."""
    with (
        jax.enable_x64(True),
        jax.numpy_dtype_promotion("strict"),
        jax.numpy_rank_promotion("raise"),
    ):
        yield
