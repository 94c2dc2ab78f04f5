"""What `tag_optax.protect` does for optimizers that are no TAG.

    python -m benchmarks.protection [--quick]

Digits turned by 30 degrees a task, and permuted in every task, in 250 batches of 10 a task. Every
optimizer is taken alone and protected, each side at the best of the same rates: by its accuracy on
a tenth of the training data over three seeds. Then it is judged on the test data, five other seeds.

On the first five tasks of Split-CIFAR100 `python -m train` does the same with `five_tasks` and
`either`: `grid` finds each side's rate on held-out data, `sweep` judges it on the test data.

    python -m train grid --stream benchmarks.protection:five_tasks --model resnet18-reduced \\
        --optimizer benchmarks.protection:either --inner sgd \\
        --vary learning_rate=0.03,0.1,0.3 --vary protected=False,True
"""

import argparse
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

import tag_optax
from benchmarks import detection, measure
from benchmarks.detection import BATCH, Task
from train.run import metrics
from train.streams import STREAMS as NAMED
from train.streams import Stream

STEPS = 250
RATES = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3)
CHOOSING, JUDGING = (1, 2, 3), (11, 12, 13, 14, 15)
STREAMS = ("rotated digits", "permuted digits")
# At a rate of 1: every one of them multiplies its step by the rate at last.
OPTIMIZERS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "sgd": lambda: optax.sgd(1.0),
    "sgd, momentum 0.9": lambda: optax.sgd(1.0, 0.9),
    "rmsprop": lambda: optax.rmsprop(1.0, 0.99),
    "adamw": lambda: optax.adamw(1.0),
    "lion": lambda: optax.lion(1.0),
    "adafactor": lambda: optax.adafactor(1.0, multiply_by_parameter_scale=False),
    "muon": lambda: optax.contrib.muon(1.0),
}
SIDES: dict[str, Callable[[optax.GradientTransformation, int], Any]] = {
    "alone": lambda tx, tasks: tx,
    "protected": lambda tx, tasks: tag_optax.protect(
        tx, 5.0, tasks, relatedness="own", bank="running_sum"
    ),
}


def validation(task: Task) -> Task:
    """The same task with a tenth of its training data in place of its test data."""
    n = len(task.x) // 10
    return Task(task.x[n:], task.y[n:], task.x[:n], task.y[:n])


def learner(tx: optax.GradientTransformation) -> Callable[..., Any]:
    tx = optax.with_extra_args_support(tx)

    @jax.jit
    def learn(params: Any, state: Any, x: jax.Array, y: jax.Array, task: Any, rate: Any) -> Any:
        def step(carry: Any, batch: Any) -> Any:
            params, state = carry
            grads = jax.grad(detection.mean_loss)(params, *batch)
            updates, state = tx.update(grads, state, params, task_id=task)
            updates = jax.tree.map(lambda u: rate * u, updates)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(step, (params, state), (x, y))[0]

    def run(tasks: list[Task], seed: int, rate: float) -> metrics.Summary:
        rng = np.random.default_rng(seed)
        params: Any = detection.network(jax.random.key(seed), 10)
        state = jax.jit(tx.init)(params)
        accuracy = np.full((len(tasks), len(tasks)), np.nan)
        for at, task in enumerate(tasks):
            epochs = -(-STEPS * BATCH // len(task.x))
            rows = np.concatenate([rng.permutation(len(task.x)) for _ in range(epochs)])
            rows = rows[: STEPS * BATCH].reshape(STEPS, BATCH)
            x, y = task.x[rows], task.y[rows]
            params, state = learn(params, state, x, y, np.int32(at), np.float32(rate))
            for s, seen in enumerate(tasks[: at + 1]):
                hits = np.argmax(detection.logits(params, seen.x_test), -1) == seen.y_test
                accuracy[at, s] = hits.mean()
        return metrics.summary(accuracy)

    return run


def best_rate(run: Callable[..., metrics.Summary], tasks: Callable[[int], list[Task]]) -> float:
    def score(rate: float) -> float:
        held_out = ([validation(task) for task in tasks(seed)] for seed in CHOOSING)
        found = [run(t, seed, rate).accuracy for t, seed in zip(held_out, CHOOSING, strict=True)]
        return float(np.nan_to_num(np.mean(found)))

    return max(RATES, key=score)


def five_tasks() -> Stream:
    stream = NAMED["split-cifar100"].open()
    return dataclasses.replace(stream, name="split-cifar100-5", tasks=stream.tasks[:5])


def either(
    tasks: int, *, inner: str = "sgd", learning_rate: float = 0.1, protected: bool = False
) -> optax.GradientTransformation:
    tx = optax.chain(OPTIMIZERS[inner](), optax.scale(learning_rate))
    return SIDES["protected" if protected else "alone"](tx, tasks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="SGD on one stream")
    quick = parser.parse_args().quick
    record: dict[str, Any] = measure.environment("benchmarks.protection")
    record |= {"rates": RATES, "chosen on seeds": CHOOSING, "seeds": JUDGING, "rows": []}
    for stream in STREAMS[: 1 if quick else None]:
        make = detection.STREAMS[stream]
        tasks = functools.cache(lambda seed, make=make: make(np.random.default_rng(seed)))
        for name in list(OPTIMIZERS)[: 1 if quick else None]:
            for side, wrap in SIDES.items():
                run = learner(wrap(OPTIMIZERS[name](), len(tasks(1))))
                rate = best_rate(run, tasks)
                found = [run(tasks(seed), seed, rate) for seed in JUDGING]
                row: dict[str, Any] = {"stream": stream, "optimizer": name, "side": side}
                row["rate"] = rate
                for field in ("accuracy", "forgetting"):
                    values = [getattr(summary, field) for summary in found]
                    row[field] = [round(float(np.mean(values)), 4), round(float(np.std(values)), 4)]
                record["rows"].append(row)
                (a, da), (f, df) = row["accuracy"], row["forgetting"]
                print(
                    f"{stream:16} {name:18} {side:10} rate {rate:<7g} accuracy {100 * a:.1f} ± "
                    f"{100 * da:.1f} %   forgetting {f:.3f} ± {df:.3f}",
                    flush=True,
                )
    name = "protection_quick" if quick else "protection"
    print("written to", measure.write(name, record).name)


if __name__ == "__main__":
    main()
