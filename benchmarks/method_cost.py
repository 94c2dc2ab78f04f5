"""What one step of each method costs beside a step of the naive one, and what a task's end costs.

    python -m benchmarks.method_cost [--quick]

The reduced ResNet18 on batches of 10 images like Split-CIFAR100's, in the last of 20 tasks: all
memories are filled, and everything that earlier tasks leave is there. The methods step by turns in
one process; a step is a call of the engine, batch gathered and state donated.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax

from benchmarks import measure
from benchmarks.stream_throughput import random_stream
from train.methods import METHODS
from train.paper.presets import preset
from train.run.config import Config
from train.run.engine import Engine

TASKS = 20
EXAMPLES = 100  # of the last task


def last_task(settings: Config) -> tuple[Engine, Any]:
    """An engine, and its state when the last task begins."""
    stream = random_stream(TASKS, (32, 32, 3), [10] * (TASKS - 1) + [EXAMPLES])
    engine = Engine(settings, stream)
    state = engine.init((0,))
    for task in range(len(engine.steps()) - 1):
        state, _ = engine.train(state, (0,), task, range(1))
        state = engine.end_task(state, (0,), task)
    return engine, state


def stepper(engine: Engine, state: Any) -> Callable[[], Any]:
    """A function that takes one step at each call."""
    last = len(engine.steps()) - 1
    current, steps = state, 0

    def step() -> Any:
        nonlocal current, steps
        begin = steps % engine.steps()[last]
        current, outcome = engine.train(current, (0,), last, range(begin, begin + 1))
        steps += 1
        return outcome

    return step


def milliseconds_per_example(engine: Engine, state: Any) -> float:
    """What the end of the last task takes, for each of its examples; after one to compile."""
    last = len(engine.steps()) - 1
    times = []
    for _ in range(4):
        start = time.perf_counter()
        state = jax.block_until_ready(engine.end_task(state, (0,), last))
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times[1:]) / EXAMPLES


def costs(optimizer: str, rounds: int) -> list[dict[str, Any]]:
    presets = {name: preset("split-cifar100", optimizer, name) for name in METHODS}
    ready = {name: last_task(settings) for name, settings in presets.items()}
    steps = {name: stepper(*pair) for name, pair in ready.items()}
    times = measure.medians(measure.in_turns(steps, rounds))
    ending, state = last_task(presets["ewc"])
    end = milliseconds_per_example(ending, state)
    return [
        {"method": name, "optimizer": optimizer, "step_ms": ms, "ratio": ms / times["naive"]}
        | ({"end_of_task_ms_per_example": end} if name == "ewc" else {})
        for name, ms in times.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a trial; the record is kept apart")
    arguments = parser.parse_args()
    record = measure.environment("benchmarks.method_cost") | {"rows": []}
    for optimizer in ("sgd", "tag-rmsprop"):
        for row in costs(optimizer, rounds=2 if arguments.quick else 20):
            record["rows"].append(row)
            extra = row.get("end_of_task_ms_per_example")
            shown = "" if extra is None else f"   end of a task {extra:.1f} ms an example"
            print(
                f"{row['method']:10} {optimizer:12} {row['step_ms']:7.1f} ms   "
                f"{row['ratio']:.2f} x naive{shown}",
                flush=True,
            )
    print("written to", measure.write("method_cost" + "_quick" * arguments.quick, record))


if __name__ == "__main__":
    main()
