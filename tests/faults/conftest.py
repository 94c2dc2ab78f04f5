"""Faults are met as a user meets them: single precision, promotion as JAX has it by default."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def strict_numerics() -> Iterator[None]:
    """In place of the library's stricter settings."""
    with (
        jax.enable_x64(False),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        yield
