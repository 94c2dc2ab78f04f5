"""One training step, one evaluation step: pure, the task id traced, compiled once for a stream."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

import tag_optax
from train.batches import Batch
from train.models import apply_model
from train.streams.types import Stream

# Below every real logit, and still finite: an infinity would make 0 * inf of masked gradients.
_NEVER = -1e9
# Named, so that a user's jax_default_prng_impl changes nothing in a resumed run.
_RANDOM = "threefry2x32"


class TrainState(NamedTuple):
    """Everything that a step reads and writes. With several seeds, leaves have a seed axis."""

    step: jax.Array  # int32[]: steps since the stream began
    rng: jax.Array  # uint32[2]: the key's data; a step folds its number in
    params: Any
    batch_stats: Any
    opt_state: optax.OptState
    alpha_sum: jax.Array  # float32[T, T]: alpha(t, s) added up over the steps of task t


class Problem(NamedTuple):
    """What is fixed along a stream."""

    graphdef: Any
    tx: optax.GradientTransformationExtraArgs
    scale: float
    offset: float
    num_outputs: int
    first_class: tuple[int, ...]
    end_class: tuple[int, ...]


def make_problem(
    graphdef: Any, tx: optax.GradientTransformationExtraArgs, stream: Stream
) -> Problem:
    return Problem(
        graphdef=graphdef,
        tx=tx,
        scale=stream.scale,
        offset=stream.offset,
        num_outputs=stream.num_outputs,
        first_class=tuple(task.classes.start for task in stream.tasks),
        end_class=tuple(task.classes.stop for task in stream.tasks),
    )


def random_key(seed: int) -> jax.Array:
    """A key as plain numbers, which any checkpoint can hold."""
    return jax.random.key_data(jax.random.key(seed, impl=_RANDOM))


def init_state(problem: Problem, rng: jax.Array, params: Any, batch_stats: Any) -> TrainState:
    num_tasks = len(problem.first_class)
    return TrainState(
        step=jnp.int32(0),
        rng=rng,
        params=params,
        batch_stats=batch_stats,
        opt_state=problem.tx.init(params),
        alpha_sum=jnp.zeros((num_tasks, num_tasks), jnp.float32),
    )


def masked_logits(problem: Problem, logits: jax.Array, task: jax.Array) -> jax.Array:
    """The logits, with those of other tasks' classes put out of reach."""
    unit = jnp.arange(problem.num_outputs)
    first, end = jnp.array(problem.first_class)[task], jnp.array(problem.end_class)[task]
    own = (first <= unit) & (unit < end)
    return jnp.where(own[None, :], logits, jnp.asarray(_NEVER, logits.dtype))


def _inputs(problem: Problem, image: ArrayLike) -> jax.Array:
    return jnp.asarray(image, jnp.float32) * problem.scale + problem.offset


def _weights(opt_state: optax.OptState) -> jax.Array:
    """alpha(t, .), averaged over the tensors where each has its own."""
    per_tensor = jax.tree.leaves(tag_optax.task_weights(opt_state))
    return jnp.mean(jnp.stack(per_tensor), axis=0)


def mean_loss(
    problem: Problem,
    params: Any,
    batch_stats: Any,
    batch: Batch,
    task: jax.Array,
    dropout_key: jax.Array,
) -> tuple[jax.Array, Any]:
    """The batch's mean cross-entropy among the task's own classes, and the new batch statistics."""
    logits, batch_stats = apply_model(
        problem.graphdef,
        params,
        batch_stats,
        _inputs(problem, batch.image),
        train=True,
        dropout_key=dropout_key,
    )
    losses = optax.softmax_cross_entropy_with_integer_labels(
        masked_logits(problem, logits, task), batch.label
    )
    return jnp.sum(losses * batch.weight) / jnp.sum(batch.weight), batch_stats


def train_step(
    problem: Problem, state: TrainState, batch: Batch, task: jax.Array, *, has_alpha: bool
) -> tuple[TrainState, jax.Array]:
    """One step on one batch of one task; returns the new state and the batch's mean loss."""
    key = jax.random.fold_in(jax.random.wrap_key_data(state.rng, impl=_RANDOM), state.step)

    def loss_of(params: Any) -> tuple[jax.Array, Any]:
        return mean_loss(problem, params, state.batch_stats, batch, task, key)

    (loss, batch_stats), grads = jax.value_and_grad(loss_of, has_aux=True)(state.params)
    updates, opt_state = problem.tx.update(grads, state.opt_state, state.params, task_id=task)
    alpha_sum = state.alpha_sum
    if has_alpha:
        alpha_sum = alpha_sum.at[task].add(_weights(opt_state))
    state = TrainState(
        step=state.step + 1,
        rng=state.rng,
        params=optax.apply_updates(state.params, updates),
        batch_stats=batch_stats,
        opt_state=opt_state,
        alpha_sum=alpha_sum,
    )
    return state, loss


def count_correct(
    problem: Problem, params: Any, batch_stats: Any, batch: Batch, task: jax.Array
) -> jax.Array:
    """How many examples of a batch are classified right, among the task's own classes."""
    logits, _ = apply_model(
        problem.graphdef, params, batch_stats, _inputs(problem, batch.image), train=False
    )
    right = jnp.argmax(masked_logits(problem, logits, task), axis=-1) == batch.label
    return jnp.sum(right * batch.weight)


def several_steps(
    one_step: Callable[[TrainState, Batch, jax.Array], tuple[TrainState, jax.Array]],
    state: TrainState,
    batches: Batch,
    task: jax.Array,
    count: jax.Array,
) -> tuple[TrainState, jax.Array]:
    """The first `count` of the batches, in a loop on the device.

    The count is traced, so that a call with fewer steps (before a checkpoint, at a task's end)
    compiles nothing anew. Losses behind the count are zeros.
    """

    def body(i: jax.Array, carry: tuple[TrainState, jax.Array]) -> tuple[TrainState, jax.Array]:
        state, losses = carry
        batch = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False), batches)
        state, loss = one_step(state, batch, task)
        return state, losses.at[i].set(loss)

    losses = jnp.zeros(batches.label.shape[:-1], jnp.float32)
    return jax.lax.fori_loop(0, count, body, (state, losses))
