"""What is learned: the loss of a batch, the loss of an example, the answers that are right."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from train.models import apply_model
from train.run.batches import Batch
from train.streams.types import Stream

# Below every real logit, and still finite: an infinity would make 0 * inf of masked gradients.
_NEVER = -1e9


class Problem(NamedTuple):
    """What is fixed along a stream."""

    graphdef: Any
    scale: float
    offset: float
    num_outputs: int
    first_class: tuple[int, ...]
    end_class: tuple[int, ...]
    over_devices: jax.sharding.NamedSharding | None = None  # of the examples of a batch


def make_problem(
    graphdef: Any, stream: Stream, over_devices: jax.sharding.NamedSharding | None = None
) -> Problem:
    return Problem(
        graphdef=graphdef,
        scale=stream.scale,
        offset=stream.offset,
        num_outputs=stream.num_outputs,
        first_class=tuple(task.classes.start for task in stream.tasks),
        end_class=tuple(task.classes.stop for task in stream.tasks),
        over_devices=over_devices,
    )


def masked_logits(problem: Problem, logits: jax.Array, task: ArrayLike) -> jax.Array:
    """The logits of each example, with those of classes outside its task put out of reach."""
    unit = jnp.arange(problem.num_outputs)
    first = jnp.array(problem.first_class)[task][:, None]
    end = jnp.array(problem.end_class)[task][:, None]
    return jnp.where((first <= unit) & (unit < end), logits, jnp.asarray(_NEVER, logits.dtype))


def _inputs(problem: Problem, image: ArrayLike) -> jax.Array:
    images = jnp.asarray(image)
    over = problem.over_devices
    # A batch drawn from a memory lies on every device, and each would compute all of it.
    if over is not None and len(images) % over.mesh.shape["data"] == 0:
        images = jax.lax.with_sharding_constraint(images, over)
    return images.astype(jnp.float32) * problem.scale + problem.offset


def mean_loss(
    problem: Problem, params: Any, batch_stats: Any, batch: Batch, dropout_key: jax.Array
) -> tuple[jax.Array, Any]:
    """The batch's mean cross-entropy among each task's own classes, and the new batch statistics.

    A batch without any weight has no loss.
    """
    logits, batch_stats = apply_model(
        problem.graphdef,
        params,
        batch_stats,
        _inputs(problem, batch.image),
        train=True,
        dropout_key=dropout_key,
    )
    losses = optax.softmax_cross_entropy_with_integer_labels(
        masked_logits(problem, logits, batch.task), batch.label
    )
    return jnp.sum(losses * batch.weight) / jnp.maximum(jnp.sum(batch.weight), 1), batch_stats


def frozen_logits(problem: Problem, params: Any, batch_stats: Any, batch: Batch) -> jax.Array:
    """What a model answers when it does not learn: running statistics, no dropout."""
    logits, _ = apply_model(
        problem.graphdef, params, batch_stats, _inputs(problem, batch.image), train=False
    )
    return masked_logits(problem, logits, batch.task)


def count_correct(problem: Problem, params: Any, batch_stats: Any, batch: Batch) -> jax.Array:
    """How many examples of a batch are classified right, among their tasks' own classes."""
    logits = frozen_logits(problem, params, batch_stats, batch)
    return jnp.sum((jnp.argmax(logits, axis=-1) == batch.label) * batch.weight)


def one_by_one(batch: Batch) -> Batch:
    """The examples as batches of one, behind a leading axis: for `vmap`."""
    return jax.tree.map(lambda x: jnp.expand_dims(x, 1), batch)
