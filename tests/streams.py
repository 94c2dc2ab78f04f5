"""Gradients of made-up task streams, and ways to run them."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import tag_optax

SCALE_BY = {
    "rms": tag_optax.scale_by_tag_rms,
    "adagrad": tag_optax.scale_by_tag_adagrad,
    "adam": tag_optax.scale_by_tag_adam,
}
OPTIMIZERS = {
    "rms": tag_optax.tag_rmsprop,
    "adagrad": tag_optax.tag_adagrad,
    "adam": tag_optax.tag_adam,
}
RELATEDNESS = ("cosine", "first_gradients", "uniform", "age", "own")


def related(name: str, scope: str = "global", count: int = 1) -> tag_optax.Relatedness:
    """A relatedness by name, with what can be chosen for it."""
    if name == "cosine":
        return tag_optax.cosine(scope=scope)
    if name == "first_gradients":
        return tag_optax.first_gradients(count, scope=scope)
    return getattr(tag_optax, name)()


# Four tasks of five, out of order, each of them coming back.
ORDER = (3, 3, 0, 0, 0, 2, 3, 1, 1, 0, 2, 2, 3, 1)
SHAPES = {"matrix": (3, 2), "vector": (4,), "scalar": (), "head": (2, 3)}


def gradients(
    order: Sequence[int] = ORDER, dtype: Any = np.float64, seed: int = 0
) -> list[dict[str, np.ndarray]]:
    """One gradient a step. Tasks have directions of their own; task 0 does not use the head."""
    rng = np.random.default_rng(seed)
    means = {
        task: {k: rng.normal(size=s) for k, s in SHAPES.items()} for task in sorted(set(order))
    }
    stream = []
    for task in order:
        g = {k: np.asarray(means[task][k] + 0.5 * rng.normal(size=s)) for k, s in SHAPES.items()}
        if task == 0:
            g["head"] = np.zeros(SHAPES["head"])
        stream.append({k: x.astype(dtype) for k, x in g.items()})
    return stream


def run(
    tx: optax.GradientTransformation,
    stream: Sequence[Any],
    order: Sequence[int] = ORDER,
    state: Any = None,
) -> tuple[list[Any], Any]:
    """All updates of a stream, by one jitted function with a traced id, and the last state."""
    tx = optax.with_extra_args_support(tx)
    params = jax.tree.map(jnp.zeros_like, stream[0])
    state = tx.init(params) if state is None else state
    update = jax.jit(lambda g, s, t: tx.update(g, s, params, task_id=t))
    updates = []
    for g, task in zip(stream, order, strict=True):
        u, state = update(g, state, jnp.int32(task))
        updates.append(u)
    return updates, state
