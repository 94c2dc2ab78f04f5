"""What is learned: the batches of a stream, the loss of one, the score of its answers."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from train.errors import UserError

Array = np.ndarray | jax.Array
PerExample = Callable[[jax.Array, jax.Array], jax.Array]

# Below every real output, and still finite: an infinity would make 0 * inf of masked gradients.
_NEVER = -1e9


class Batch(NamedTuple):
    """Examples of one step, or of several behind a leading axis."""

    x: Array  # [..., batch, *example]
    y: Array  # [..., batch, *target]
    task: Array  # int32[..., batch]: among whose classes an example is to be told
    weight: Array  # float32[..., batch]: 0 for the filling of a last, partial batch


class Problem(NamedTuple):
    """What is fixed along a stream."""

    apply: Callable[..., tuple[jax.Array, Any]]
    """The network: (params, stats, x, train=, key=) -> (outputs, stats)."""
    loss: PerExample
    score: PerExample
    tasks: int
    mask: np.ndarray | None
    """bool[tasks, outputs]: the classes of each task; None where targets are no classes."""
    inputs: jax.ShapeDtypeStruct
    targets: jax.ShapeDtypeStruct  # Of one example, as the stream keeps it.
    scale: float | None
    offset: float  # A network is fed scale * x + offset, or x as it is.
    batch_size: int
    over_devices: jax.sharding.NamedSharding | None = None  # Of the examples of a batch.


def cross_entropy(outputs: jax.Array, targets: jax.Array) -> jax.Array:
    """The cross-entropy of the right class; its mean where an example has several targets."""
    return _over_targets(optax.softmax_cross_entropy_with_integer_labels(outputs, targets))


def squared_error(outputs: jax.Array, targets: jax.Array) -> jax.Array:
    if outputs.shape != targets.shape:
        raise UserError(
            f"The network gives outputs of shape {list(outputs.shape)} for targets of shape "
            f"{list(targets.shape)}: make both the same, as squared errors need."
        )
    return _over_targets((outputs - targets) ** 2)


def accuracy(outputs: jax.Array, targets: jax.Array) -> jax.Array:
    """1 where the largest output is the right class; the share of right ones of several."""
    return _over_targets(jnp.argmax(outputs, axis=-1) == targets)


def negative_error(outputs: jax.Array, targets: jax.Array) -> jax.Array:
    return -squared_error(outputs, targets)


def _over_targets(values: jax.Array) -> jax.Array:
    return values if values.ndim == 1 else jnp.mean(values, axis=tuple(range(1, values.ndim)))


LOSSES = {"auto": None, "cross-entropy": cross_entropy, "squared-error": squared_error}
SCORES = {"auto": None, "accuracy": accuracy, "negative-error": negative_error}
USUAL = {"loss": ("cross-entropy", "squared-error"), "score": ("accuracy", "negative-error")}
"""What `auto` stands for: where targets are classes, and where they are numbers."""


def usual_names(target_dtype: Any) -> tuple[str, str]:
    """The loss and the score for targets of this type."""
    kind = int(np.issubdtype(target_dtype, np.floating))
    return USUAL["loss"][kind], USUAL["score"][kind]


def masked(problem: Problem, outputs: jax.Array, task: Array) -> jax.Array:
    """The outputs for each example, with those of classes outside its task put out of reach."""
    if problem.mask is None:
        return outputs
    if outputs.shape[-1] != problem.mask.shape[1]:
        raise UserError(
            f"The network has {outputs.shape[-1]} outputs, and the stream needs "
            f"{problem.mask.shape[1]}: one for each class of its tasks."
        )
    reachable = jnp.asarray(problem.mask)[task]
    return jnp.where(reachable, outputs, jnp.asarray(_NEVER, outputs.dtype))


def fed(problem: Problem, x: Array) -> jax.Array:
    """What the network is given for examples of the stream."""
    taken = jnp.asarray(x)
    over = problem.over_devices
    # A batch drawn from a memory lies on every device, and each would compute all of it.
    if over is not None and len(taken) % over.mesh.shape["data"] == 0:
        taken = jax.lax.with_sharding_constraint(taken, over)
    if problem.scale is None:
        return taken
    return taken.astype(jnp.float32) * problem.scale + problem.offset


def mean_loss(
    problem: Problem, params: Any, stats: Any, batch: Batch, key: jax.Array
) -> tuple[jax.Array, Any]:
    """The batch's mean loss among each task's own classes, and the new statistics.

    A batch without any weight has no loss.
    """
    outputs, stats = problem.apply(params, stats, fed(problem, batch.x), train=True, key=key)
    losses = _each("loss", problem.loss, masked(problem, outputs, batch.task), batch)
    return jnp.sum(losses * batch.weight) / jnp.maximum(jnp.sum(batch.weight), 1), stats


def frozen_outputs(problem: Problem, params: Any, stats: Any, batch: Batch) -> jax.Array:
    """What a network answers when it does not learn: running statistics, no dropout."""
    outputs, _ = problem.apply(params, stats, fed(problem, batch.x), train=False, key=None)
    return masked(problem, outputs, batch.task)


def frozen_loss(problem: Problem, params: Any, stats: Any, batch: Batch) -> jax.Array:
    """The losses of a batch added up by their weights, when the network does not learn."""
    outputs = frozen_outputs(problem, params, stats, batch)
    return jnp.sum(batch.weight * _each("loss", problem.loss, outputs, batch))


def total_score(problem: Problem, params: Any, stats: Any, batch: Batch) -> jax.Array:
    """The scores of a batch added up by their weights."""
    outputs = frozen_outputs(problem, params, stats, batch)
    return jnp.sum(_each("score", problem.score, outputs, batch) * batch.weight)


def _each(what: str, function: PerExample, outputs: jax.Array, batch: Batch) -> jax.Array:
    """The losses or the scores of the examples, one for each."""
    values = function(outputs, jnp.asarray(batch.y))
    if values.shape != batch.weight.shape:
        raise UserError(
            f"The {what} must return one number for each example, an array of shape "
            f"{list(batch.weight.shape)}, and returned {list(values.shape)}."
        )
    return values


def one_by_one(batch: Batch) -> Batch:
    """The examples as batches of one, behind a leading axis: for `vmap`."""
    return jax.tree.map(lambda x: jnp.expand_dims(x, 1), batch)
