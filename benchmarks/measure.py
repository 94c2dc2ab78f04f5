"""Timing on shared, noisy machines, and a record of what was measured where."""

import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax

RESULTS = pathlib.Path(__file__).parent / "results"


def in_turns(
    functions: Mapping[str, Callable[[], Any]], rounds: int, block: int = 5
) -> dict[str, list[float]]:
    """Milliseconds of every call, the functions by turns so that noise falls on each alike.

    A turn is a block of calls after one that is not counted: the caches are then in the state that
    a loop over one function leaves them in. ``block=0`` times only that first call, which finds the
    caches filled by the other functions.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}

    def call(function: Callable[[], Any]) -> float:
        start = time.perf_counter()
        jax.block_until_ready(function())
        return 1e3 * (time.perf_counter() - start)

    for function in functions.values():
        call(function)
    for _ in range(rounds):
        for name, function in functions.items():
            first = call(function)
            times[name] += [call(function) for _ in range(block)] or [first]
    return times


def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in times.items()}


def environment(module: str) -> dict[str, Any]:
    """What a reader needs to judge and repeat a measurement."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(RESULTS.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    changed = git("status", "--porcelain", "--", "tag_optax", "train", "benchmarks/*.py")
    return {
        "command": " ".join(["python -m", module, *sys.argv[1:]]),
        "commit": git("rev-parse", "--short", "HEAD") + ("+changes" if changed else ""),
        "cores": os.cpu_count(),
        "device": jax.devices()[0].platform,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "optax": optax.__version__,
    }


def write(name: str, record: Any) -> pathlib.Path:
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path
