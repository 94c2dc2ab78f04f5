"""TAG-RMSProp against RMSProp on a stream of ten small tasks, in half a minute on a CPU.

    python -m benchmarks.toy_stream

Every task is to tell the same eight clusters of points apart, but with the coordinates permuted. A
network of two hidden layers and one head a task learns the tasks one after the other, in a single
pass. Both optimizers get the rate, out of the same eight, that is best for them on validation
points; the table shows other points, over five seeds.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import tag_optax

TASKS, CLASSES, DIMENSIONS, HIDDEN = 10, 8, 32, 32
STEPS, BATCH, POINTS = 150, 10, 500
NOISE = 1.5
SEEDS = 5
RATES = [1.6e-2 * 2.0**-i for i in range(8)]

Params = dict[str, jax.Array]


class Clusters(NamedTuple):
    """The centres of every task's classes, ``[TASKS, CLASSES, DIMENSIONS]``."""

    centres: jax.Array

    def sample(self, key: jax.Array, task: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
        label_key, noise_key = jax.random.split(key)
        labels = jax.random.randint(label_key, (count,), 0, CLASSES)
        noise = NOISE * jax.random.normal(noise_key, (count, DIMENSIONS))
        return self.centres[task, labels] + noise, labels


def make_clusters(key: jax.Array) -> Clusters:
    centre_key, *keys = jax.random.split(key, TASKS + 1)
    centres = jax.random.normal(centre_key, (CLASSES, DIMENSIONS))
    permuted = [centres[:, jax.random.permutation(k, DIMENSIONS)] for k in keys]
    return Clusters(jnp.stack(permuted))


def make_params(key: jax.Array) -> Params:
    widths = {
        "first": (DIMENSIONS, HIDDEN),
        "second": (HIDDEN, HIDDEN),
        "heads": (HIDDEN, TASKS, CLASSES),
    }
    keys = jax.random.split(key, len(widths))
    return {
        name: jax.random.normal(k, shape) / jnp.sqrt(shape[0])
        for k, (name, shape) in zip(keys, widths.items(), strict=True)
    }


def logits(params: Params, points: jax.Array, task: jax.Array) -> jax.Array:
    hidden = jax.nn.relu(points @ params["first"])
    hidden = jax.nn.relu(hidden @ params["second"])
    return hidden @ params["heads"][:, task]


def accuracy(params: Params, clusters: Clusters, key: jax.Array, task: jax.Array) -> jax.Array:
    points, labels = clusters.sample(jax.random.fold_in(key, task), task, POINTS)
    return jnp.mean(jnp.argmax(logits(params, points, task), axis=-1) == labels)


def learn_stream(tx: optax.GradientTransformationExtraArgs, key: jax.Array) -> jax.Array:
    """The accuracy on every task after each, ``[validation and test, TASKS, TASKS]``."""
    cluster_key, init_key, data_key, *held_out = jax.random.split(key, 5)
    clusters, params = make_clusters(cluster_key), make_params(init_key)

    def loss(params: Params, points: jax.Array, labels: jax.Array, task: jax.Array) -> jax.Array:
        values = logits(params, points, task)
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(values, labels))

    def step(carry: Any, inputs: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
        (params, state), (key, task) = carry, inputs
        points, labels = clusters.sample(key, task, BATCH)
        gradients = jax.grad(loss)(params, points, labels, task)
        updates, state = tx.update(gradients, state, params, task_id=task)
        return (optax.apply_updates(params, updates), state), None

    def learn(carry: Any, task: jax.Array) -> tuple[Any, jax.Array]:
        keys = jax.random.split(jax.random.fold_in(data_key, task), STEPS)
        carry, _ = jax.lax.scan(step, carry, (keys, jnp.full(STEPS, task)))
        tests = [
            jax.vmap(functools.partial(accuracy, carry[0], clusters, key))(jnp.arange(TASKS))
            for key in held_out
        ]
        return carry, jnp.stack(tests)

    _, matrices = jax.lax.scan(learn, (params, tx.init(params)), jnp.arange(TASKS))
    return jnp.swapaxes(matrices, 0, 1)


def summarise(matrix: np.ndarray) -> tuple[float, float, float]:
    """Final accuracy (percent), forgetting and learning accuracy (percent) of the paper."""
    drops = np.max(matrix[:-1, :-1], axis=0) - matrix[-1, :-1]
    return 100 * matrix[-1].mean(), float(drops.mean()), 100 * np.diag(matrix).mean()


OPTIMIZERS: dict[str, Callable[[jax.Array], optax.GradientTransformationExtraArgs]] = {
    "RMSProp": lambda rate: optax.with_extra_args_support(optax.rmsprop(rate, decay=0.99)),
    "TAG-RMSProp": lambda rate: tag_optax.tag_rmsprop(5.0, TASKS, rate),
}


def main() -> None:
    print(
        f"{'optimizer':<14}{'best rate':>10}{'accuracy %':>16}{'forgetting':>16}{'learned %':>16}"
    )
    for name, optimizer in OPTIMIZERS.items():
        learn = jax.jit(lambda key, rate, make=optimizer: learn_stream(make(rate), key))

        def summaries(rate: float, learn: Any = learn) -> np.ndarray:
            matrices = [np.asarray(learn(jax.random.key(seed), rate)) for seed in range(SEEDS)]
            return np.array([[summarise(matrix) for matrix in pair] for pair in matrices])

        tried = {rate: summaries(rate) for rate in RATES}  # [seed, validation or test, metric]
        best = max(tried, key=lambda rate, tried=tried: tried[rate][:, 0, 0].mean())
        test = tried[best][:, 1]
        columns = zip(test.mean(axis=0), test.std(axis=0), (1, 3, 1), strict=True)
        cells = [f"{f'{mean:.{d}f} +- {std:.{d}f}':>16}" for mean, std, d in columns]
        print(f"{name:<14}{best:>10.2g}{''.join(cells)}", flush=True)
    print(f"\n{TASKS} tasks, {STEPS} steps of {BATCH} each, {SEEDS} seeds; mean +- deviation.")


if __name__ == "__main__":
    main()
