"""TAG-RMSProp against RMSProp on a stream of ten small tasks, in half a minute on a CPU.

    python -m benchmarks.toy_stream

Each task sorts 20-dimensional points into four classes by a linear rule; from task to task the rule
turns by 30 degrees in a few planes. A network with one hidden layer and one head a task learns them
one after the other, in a single pass. Both optimizers get the rate, out of the same ten, that is
best for them on validation points; the table shows other points, over five seeds.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import tag_optax

TASKS, CLASSES, DIMENSIONS, HIDDEN = 10, 4, 20, 64
STEPS, BATCH, POINTS = 100, 10, 500
SEEDS = 5
RATES = [1e-2 * 2.0**-i for i in range(10)]

Params = dict[str, jax.Array]


class Rules(NamedTuple):
    """The linear rule of every task, ``[TASKS, DIMENSIONS, CLASSES]``."""

    weights: jax.Array

    def sample(self, key: jax.Array, task: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
        points = jax.random.normal(key, (count, DIMENSIONS))
        return points, jnp.argmax(points @ self.weights[task], axis=-1)


def make_rules(key: jax.Array) -> Rules:
    basis_key, rule_key = jax.random.split(key)
    basis, _ = jnp.linalg.qr(jax.random.normal(basis_key, (DIMENSIONS, DIMENSIONS)))
    rule = jax.random.normal(rule_key, (DIMENSIONS, CLASSES))
    angles = jnp.deg2rad(30.0) * jnp.arange(TASKS)

    def turned(angle: jax.Array) -> jax.Array:
        turn = jnp.array([[jnp.cos(angle), -jnp.sin(angle)], [jnp.sin(angle), jnp.cos(angle)]])
        planes = jnp.kron(jnp.eye(DIMENSIONS // 2), turn)
        return basis @ planes @ basis.T @ rule

    return Rules(jax.vmap(turned)(angles))


def make_params(key: jax.Array) -> Params:
    first, second = jax.random.split(key)
    return {
        "hidden": jax.random.normal(first, (DIMENSIONS, HIDDEN)) / jnp.sqrt(DIMENSIONS),
        "bias": jnp.zeros(HIDDEN),
        "heads": jax.random.normal(second, (HIDDEN, TASKS, CLASSES)) / jnp.sqrt(HIDDEN),
    }


def logits(params: Params, points: jax.Array, task: jax.Array) -> jax.Array:
    hidden = jax.nn.relu(points @ params["hidden"] + params["bias"])
    return hidden @ params["heads"][:, task]


def accuracy(params: Params, rules: Rules, key: jax.Array, task: jax.Array) -> jax.Array:
    points, labels = rules.sample(jax.random.fold_in(key, task), task, POINTS)
    return jnp.mean(jnp.argmax(logits(params, points, task), axis=-1) == labels)


def learn_stream(
    tx: optax.GradientTransformationExtraArgs, key: jax.Array, evaluation: int
) -> jax.Array:
    """The accuracy on every task after each task, ``[TASKS, TASKS]``."""
    rule_key, init_key, data_key, *held_out = jax.random.split(key, 5)
    rules, params = make_rules(rule_key), make_params(init_key)

    def loss(params: Params, points: jax.Array, labels: jax.Array, task: jax.Array) -> jax.Array:
        values = logits(params, points, task)
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(values, labels))

    def step(carry: Any, inputs: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
        (params, state), (key, task) = carry, inputs
        points, labels = rules.sample(key, task, BATCH)
        gradients = jax.grad(loss)(params, points, labels, task)
        updates, state = tx.update(gradients, state, params, task_id=task)
        return (optax.apply_updates(params, updates), state), None

    def learn(carry: Any, task: jax.Array) -> tuple[Any, jax.Array]:
        keys = jax.random.split(jax.random.fold_in(data_key, task), STEPS)
        carry, _ = jax.lax.scan(step, carry, (keys, jnp.full(STEPS, task)))
        test = functools.partial(accuracy, carry[0], rules, held_out[evaluation])
        return carry, jax.vmap(test)(jnp.arange(TASKS))

    _, matrix = jax.lax.scan(learn, (params, tx.init(params)), jnp.arange(TASKS))
    return matrix


def summarise(matrix: np.ndarray) -> tuple[float, float, float]:
    """Final accuracy (percent), forgetting and learning accuracy (percent) of the paper."""
    drops = np.max(matrix[:-1, :-1], axis=0) - matrix[-1, :-1]
    return 100 * matrix[-1].mean(), float(drops.mean()), 100 * np.diag(matrix).mean()


def results(name: str, rate: float, evaluation: int) -> np.ndarray:
    """Final accuracy, forgetting and learning accuracy of each seed."""
    optimizers: dict[str, Any] = {
        "RMSProp": lambda: optax.with_extra_args_support(optax.rmsprop(rate, decay=0.99)),
        "TAG-RMSProp": lambda: tag_optax.tag_rmsprop(5.0, TASKS, rate),
    }
    learn = jax.jit(functools.partial(learn_stream, optimizers[name](), evaluation=evaluation))
    return np.array([summarise(np.asarray(learn(jax.random.key(seed)))) for seed in range(SEEDS)])


def main() -> None:
    validation, test = 0, 1
    print(
        f"{'optimizer':<14}{'best rate':>10}{'accuracy %':>16}{'forgetting':>16}{'learned %':>16}"
    )
    for name in ("RMSProp", "TAG-RMSProp"):
        best = max(RATES, key=lambda rate, n=name: results(n, rate, validation)[:, 0].mean())
        found = results(name, best, test)
        columns = zip(found.mean(axis=0), found.std(axis=0), (1, 3, 1), strict=True)
        cells = [f"{f'{mean:.{d}f} +- {std:.{d}f}':>16}" for mean, std, d in columns]
        print(f"{name:<14}{best:>10.2g}{''.join(cells)}", flush=True)
    print(f"\n{TASKS} tasks, {STEPS} steps of {BATCH} each, {SEEDS} seeds; mean +- deviation.")


if __name__ == "__main__":
    main()
