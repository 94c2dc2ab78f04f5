"""What the whole training loop costs beside the bare gradient of the same model.

    python -m benchmarks.stream_throughput

Both run in one process, by turns, on the shapes of Split-CIFAR100: the paper's network, batches of
10, 20 tasks, the last of which is timed, so that 19 past tasks are in the bank. The loop is the one
that `python -m train run` runs, with its records written and a checkpoint every 100 steps (ten
times as often as by default). Then: how many steps a compiled call should hold.
"""

import argparse
import pathlib
import statistics
import tempfile
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import measure
from train.methods import Batch
from train.methods.problem import mean_loss
from train.paper.presets import preset
from train.run import batches
from train.run.directory import Keeping, RunDirectory
from train.run.engine import Engine
from train.run.loop import Run, SeedRun
from train.run.progress import RunProgress
from train.streams import Examples, Stream, Task


def random_stream(num_tasks: int, shape: tuple[int, int, int], examples: list[int]) -> Stream:
    """Noise in the shape of images: what it shows does not matter to the clock."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (max(examples), *shape), np.uint8)

    def part(task: int, size: int) -> Examples:
        labels = rng.integers(5 * task, 5 * task + 5, size, np.int32)
        return Examples(images, np.arange(size), labels)

    tasks = [
        Task(f"task {t}", part(t, size), part(t, 10), classes=range(5 * t, 5 * t + 5))
        for t, size in enumerate(examples)
    ]
    return Stream("noise", tasks, scale=1 / 255, sources=["noise"])


class Clock(RunProgress):
    """Notes when each step of the last task was seen to be done."""

    def __init__(self, steps: list[int]):
        super().__init__(lambda line: None, "", steps)
        self.times: list[float] = []

    def step(self, task: int, step: int, loss: float) -> None:
        if task == len(self._steps) - 1:
            self.times.append(time.perf_counter())


def loop_ms(engine: Engine) -> float:
    """Milliseconds of a step on the last task, everything on."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = RunDirectory(pathlib.Path(scratch) / "run", engine.config, 0)
        clock, keeping = Clock(engine.steps()), Keeping(checkpoint_every=100)
        Run(engine, [SeedRun(engine, directory, keeping)], keeping, clock).finish()
        directory.close()
    between_calls = len(clock.times) - 1
    return 1e3 * (clock.times[-1] - clock.times[0]) / (between_calls * engine.steps_per_call)


def bare_gradient(engine: Engine) -> Any:
    """The jitted gradient of the engine's own loss, on a batch that is on the device already."""
    state = engine.init((0,))
    size = engine.config.run.batch_size
    last = len(engine.stream.tasks) - 1
    examples = engine.stream.tasks[last].train
    batch = batches.take({last: examples}, (0,), 0, range(1), batch_size=size)
    batch = Batch(*(jnp.asarray(x[0, 0]) for x in batch))

    def loss(params: Any) -> Any:
        return mean_loss(engine.problem, params, state.stats, batch, jax.random.key(0))

    gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))
    return lambda: gradient(state.params)


def against_the_gradient(rounds: int, steps: int) -> dict[str, Any]:
    settings = preset("split-cifar100", "tag-rmsprop")
    # One step for each of the first 19 tasks, so that all of them are in the bank.
    stream = random_stream(20, (32, 32, 3), [10] * 19 + [10 * steps])
    engine = Engine(settings, stream)
    gradient = bare_gradient(engine)
    loop_ms(engine)  # Compiles.
    loop, bare = [], []
    for _ in range(rounds):
        bare.append(statistics.fmean(measure.in_turns({"g": gradient}, 1, steps // 2)["g"]))
        loop.append(loop_ms(engine))
    ratios = [mine / theirs for mine, theirs in zip(loop, bare, strict=True)]
    return {
        "steps_per_round": steps,
        "rounds": rounds,
        "bare_gradient_ms": statistics.median(bare),
        "whole_step_ms": statistics.median(loop),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "steps_per_second": 1e3 / statistics.median(loop),
    }


def steps_in_a_call(rounds: int) -> list[dict[str, Any]]:
    """Milliseconds of a step for several numbers of steps inside one compiled call."""
    rows = []
    cases: list[tuple[str, tuple[int, int, int], tuple[int, ...], int]] = [
        ("mlp", (16, 16, 1), (1, 10, 50), 500),
        ("resnet18-reduced", (32, 32, 3), (1, 10), 40),
    ]
    for model, shape, choices, timed in cases:
        engines = {}
        for choice in choices:
            settings = preset("rotated-digits", "tag-rmsprop", model=model).changed(
                {"num_tasks": 2, "steps_per_call": choice}
            )
            engines[choice] = Engine(settings, random_stream(2, shape, [10, 10 * timed]))
            loop_ms(engines[choice])
        times: dict[int, list[float]] = {choice: [] for choice in choices}
        for _ in range(rounds):
            for choice, engine in engines.items():
                times[choice].append(loop_ms(engine))
        rows += [
            {"model": model, "steps_per_call": choice, "step_ms": statistics.median(values)}
            for choice, values in times.items()
        ]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--quick", action="store_true", help="a trial; the record is kept apart")
    arguments = parser.parse_args()
    rounds, steps = (1, 20) if arguments.quick else (arguments.rounds, arguments.steps)
    record = measure.environment("benchmarks.stream_throughput")
    record["against_the_gradient"] = found = against_the_gradient(rounds, steps)
    print(
        "bare gradient {bare_gradient_ms:.1f} ms, whole step {whole_step_ms:.1f} ms".format(**found)
    )
    print("ratio {ratio:.2f}".format(**found))
    record["steps_in_a_call"] = steps_in_a_call(rounds)
    for row in record["steps_in_a_call"]:
        print("{model}, {steps_per_call} steps a call: {step_ms:.2f} ms a step".format(**row))
    print("written to", measure.write("stream_throughput" + "_quick" * arguments.quick, record))


if __name__ == "__main__":
    main()
