import os
import tempfile

# Before JAX starts: tests of sharding need several devices, and what one test compiled need not be
# compiled again by another, in another process or in a command that it starts.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _compiled = tempfile.TemporaryDirectory()  # Removed at exit by the process that made it.
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _compiled.name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"

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
