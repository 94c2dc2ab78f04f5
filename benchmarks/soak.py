"""Resident memory along long runs: many steps of the training loop, and many tasks through `grow`.

    python -m benchmarks.soak [--steps 200000] [--tasks 1000] [--quick]

The loop is the one that `python -m train run` runs, on `rotated-digits` with TAG-RMSProp for as
many epochs as the steps need: one step a call, records written, a checkpoint every 1,000 steps; and
once more with checkpoints at the ends of tasks alone, and malloc made to give back what it does not
use, so that steps are seen by themselves. What may grow is measured apart: a record, which a run
that goes on reads again, and what saving leaves behind.

The tasks go through one donated step whose bank doubles when it is full. Each part has a process to
itself, whose resident memory is read from /proc (Linux).
"""

import argparse
import concurrent.futures
import ctypes
import functools
import gc
import json
import math
import multiprocessing
import pathlib
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorstore

import tag_optax
from benchmarks import measure
from train.launch.jobs import Places, Streams
from train.paper.presets import preset
from train.run.checkpoint import Checkpoints
from train.run.directory import Keeping, RunDirectory
from train.run.engine import Engine
from train.run.loop import Run, SeedRun
from train.run.progress import RunProgress
from train.run.records import Recorder

POINTS = 100  # along the loop, at which memory is read
LOG_EVERY = 500


def resident_bytes() -> int:
    """What the process has in memory now."""
    (line,) = [
        line
        for line in pathlib.Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmRSS:")
    ]
    return 1024 * int(line.split()[1])


def held_bytes() -> int:
    """The same without what was freed, but is kept by malloc for later."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return resident_bytes()


class Compilations:
    """Counts what XLA compiles from now on."""

    def __init__(self) -> None:
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, event: str, duration_secs: float, **kwargs: Any) -> None:
        del duration_secs, kwargs
        self.count += event == "/jax/core/compile/backend_compile_duration"


class Gauge(RunProgress):
    """Reads the memory at regular steps of a run."""

    def __init__(self, steps: list[int], compilations: Compilations, read: Callable[[], int]):
        super().__init__(lambda line: None, "", steps)
        self._compilations = compilations
        self._read = read
        self._every = max(1, sum(steps) // POINTS)
        self.points: list[dict[str, int]] = []

    def step(self, task: int, step: int, loss: float) -> None:
        super().step(task, step, loss)
        done = sum(self._steps[:task]) + step
        if done % self._every == 0:
            self.points.append(
                {
                    "step": done,
                    "bytes": self._read(),
                    "compilations": self._compilations.count,
                }
            )
            if len(self.points) % 10 == 0:
                print(f"step {done}: {self.points[-1]['bytes'] / 1e6:.1f} MB", flush=True)


def quarters(points: list[dict[str, int]]) -> dict[str, Any]:
    """The median memory of each quarter after the first task, and the slope between the outer ones.

    >>> points = [{"step": n, "bytes": 7 + 2 * n, "compilations": 3} for n in range(100)]
    >>> quarters(points)["bytes_per_step"]
    2.0
    """
    warm = points[len(points) // 10 :]
    parts = np.array_split(np.arange(len(warm)), 4)
    size, step = (
        [statistics.median(warm[i][name] for i in part) for part in parts]
        for name in ("bytes", "step")
    )
    return {
        "bytes_by_quarter": size,
        "bytes_per_step": (size[-1] - size[0]) / (step[-1] - step[0]),
        "compilations_after_warm_up": warm[-1]["compilations"] - warm[0]["compilations"],
    }


def training_loop(
    steps: int, checkpoint_every: int, read: Callable[[], int] = resident_bytes
) -> dict[str, Any]:
    compilations = Compilations()
    settings = preset("rotated-digits", "tag-rmsprop")
    stream = Streams(Places()).open(settings)
    per_epoch = sum(Engine(settings, stream).steps())
    settings = settings.changed(
        dict(epochs=math.ceil(steps / per_epoch), steps_per_call=1, log_every=LOG_EVERY)
    )
    engine = Engine(settings, stream)
    gauge = Gauge(engine.steps(), compilations, read)
    with tempfile.TemporaryDirectory() as scratch:
        directory = RunDirectory(pathlib.Path(scratch) / "run", settings, 0)
        keeping = Keeping(checkpoint_every=checkpoint_every)
        run = Run(engine, [SeedRun(engine, directory, keeping)], keeping, gauge)
        start = time.perf_counter()
        failed = run.finish()
        seconds = time.perf_counter() - start
        records = len(directory.metrics.read_text().splitlines())
        directory.close()
    assert not failed, failed
    return {
        "steps": sum(engine.steps()),
        "epochs": settings.run.epochs,
        "checkpoint_every": checkpoint_every,
        "log_every": LOG_EVERY,
        "records": records,
        "seconds": seconds,
        "held_bytes_at_the_end": held_bytes(),
        "state_bytes": sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(engine.shapes())),
        "traced": dict(engine.traced),
        "read": read.__name__,
        **quarters(gauge.points),
        "points": gauge.points,
    }


def cost_of_a_record(count: int = 20_000) -> dict[str, Any]:
    """What a line of losses costs when it is written, when it is read again, and when saved."""
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch) / "metrics.jsonl"
        recorder = Recorder(path)
        tracemalloc.start()
        for n in range(count):
            place = {"kind": "train", "task": 1, "step": 1000 + n, "total_steps": 9000 + n}
            recorder.write(place | {"loss": 1 / (n + 3)})
        written, _ = tracemalloc.get_traced_memory()
        mark = recorder.mark()
        recorder.close()
        start = time.perf_counter()
        again = Recorder(path, mark)
        seconds = time.perf_counter() - start
        both, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        again.close()
    return {
        "records": count,
        "bytes_in_memory": written / count,
        "bytes_in_memory_of_a_resumed_run": (both - written) / count,
        "bytes_of_all_in_a_checkpoint": len(json.dumps(mark)),
        "seconds_to_resume": seconds,
    }


def cost_of_a_checkpoint(count: int) -> dict[str, Any]:
    """What saving one state again and again leaves in the process."""
    settings = preset("rotated-digits", "tag-rmsprop")
    engine = Engine(settings, Streams(Places()).open(settings))
    state = engine.init((0,))
    warm_up = count // 5
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch) / "checkpoints"
        checkpoints = Checkpoints(path, keep=2, fingerprint=engine.fingerprint)
        before = 0
        for n in range(count):
            if n == warm_up:
                before = held_bytes()
            checkpoints.save(n, state, {"step": n})
        left = held_bytes() - before
        checkpoints.close()
    return {
        "arrays": len(jax.tree.leaves(state)),
        "state_bytes": sum(x.nbytes for x in jax.tree.leaves(state)),
        "checkpoints": count - warm_up,
        "bytes_left": left / (count - warm_up),
        "bytes_left_by_a_spec": bytes_left_by_a_spec(),
    }


def bytes_left_by_a_spec(calls: int = 20_000) -> float:
    """What tensorstore does not give back when it turns a spec into JSON, as orbax asks it to."""
    spec = tensorstore.KvStore.Spec({"driver": "file", "path": "somewhere/"})
    spec.to_json()
    before = held_bytes()
    for _ in range(calls):
        spec.to_json()
    return (held_bytes() - before) / calls


def growing_bank(tasks: int, parameters: int = 10_000, steps: int = 4) -> dict[str, Any]:
    """What the state should take at each capacity, and what the process does take."""
    compilations = Compilations()
    params = jnp.zeros(parameters, jnp.float32)
    make = functools.partial(tag_optax.tag_rmsprop, 5.0)
    capacity, tx = 8, make(8)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Any, state: Any, task: Any, n: Any) -> Any:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), task), n)
        updates, state = tx.update(jax.random.normal(key, params.shape), state, task_id=task)
        return params + updates, state

    start = held_bytes()
    state = tx.init(params)
    rows: list[dict[str, Any]] = []
    for task in range(tasks):
        if task == capacity:
            capacity *= 2
            state = tag_optax.grow(state, capacity)
        before = compilations.count
        for n in range(steps):
            params, state = jax.block_until_ready(step(params, state, np.int32(task), np.int32(n)))
        compiled, held = compilations.count - before, held_bytes()
        if not rows or rows[-1]["capacity"] != capacity:
            rows.append(
                {
                    "capacity": capacity,
                    "state_bytes": tag_optax.state_bytes(make(capacity), params),
                    "live_bytes": sum(x.nbytes for x in jax.tree.leaves(state)),
                    "held_bytes_at_first_task": held,
                    "compilations_of_the_step": 0,
                }
            )
        alpha = np.asarray(tag_optax.task_weights(state))
        rows[-1]["held_bytes_at_last_task"] = held
        rows[-1]["compilations_of_the_step"] += compiled
        rows[-1]["alpha_is_finite"] = bool(np.isfinite(alpha).all())
    # JAX keeps the program of every capacity, some 10 MB each, until told to forget it.
    jax.clear_caches()
    return {
        "parameters": parameters,
        "steps_of_a_task": steps,
        "held_bytes_before": start,
        "rows": rows,
        "held_bytes_without_programs": held_bytes(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--quick", action="store_true", help="a trial; the record is kept apart")
    arguments = parser.parse_args()
    steps, tasks = (3000, 40) if arguments.quick else (arguments.steps, arguments.tasks)
    record = measure.environment("benchmarks.soak")
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, spawn, max_tasks_per_child=1) as pool:
        parts = {
            "training_loop": pool.submit(training_loop, steps, 1000),
            "training_loop_with_few_checkpoints": pool.submit(
                training_loop, steps, steps, held_bytes
            ),
            "growing_bank": pool.submit(growing_bank, tasks),
            "cost_of_a_checkpoint": pool.submit(cost_of_a_checkpoint, tasks),
            "cost_of_a_record": pool.submit(cost_of_a_record),
        }
        record |= {name: part.result() for name, part in parts.items()}
    for name in ("training_loop", "training_loop_with_few_checkpoints"):
        print(
            "{steps} steps, saved every {checkpoint_every}: {bytes_per_step:.2f} bytes a step, "
            "quarters {bytes_by_quarter}, {compilations_after_warm_up} "
            "compilations after warm-up".format(**record[name])
        )
    for row in record["growing_bank"]["rows"]:
        print(
            "capacity {capacity}: state {state_bytes:,}, process {held_bytes_at_first_task:,} to "
            "{held_bytes_at_last_task:,}, compiled {compilations_of_the_step}".format(**row)
        )
    for name in ("cost_of_a_checkpoint", "cost_of_a_record"):
        print(name, record[name])
    print("written to", measure.write("soak" + "_quick" * arguments.quick, record))


if __name__ == "__main__":
    main()
