"""One training step, or several: pure, the task id traced, compiled once for a stream."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

import tag_optax
from train.batches import Batch
from train.methods.base import Method
from train.problem import Problem
from train.state import TrainState, key_of_step


def _weights(opt_state: optax.OptState) -> jax.Array:
    """alpha(t, .), averaged over the tensors where each has its own."""
    per_tensor = jax.tree.leaves(tag_optax.task_weights(opt_state))
    return jnp.mean(jnp.stack(per_tensor), axis=0)


def train_step(
    problem: Problem,
    method: Method,
    tx: optax.GradientTransformationExtraArgs,
    state: TrainState,
    batch: Batch,
    task: jax.Array,
    *,
    has_alpha: bool,
) -> tuple[TrainState, jax.Array]:
    """One step on one batch of one task; returns the new state and the batch's mean loss."""
    found = method.gradient(problem, state, batch, task, key_of_step(state))
    updates, opt_state = tx.update(
        found.grads, state.opt_state, state.params, task_id=task, **found.extra_args
    )
    alpha_sum = state.alpha_sum
    if has_alpha:
        # A bank on a mesh may have rows behind the last task.
        alpha_sum = alpha_sum.at[task].add(_weights(opt_state)[: alpha_sum.shape[1]])
    state = TrainState(
        step=state.step + 1,
        rng=state.rng,
        params=optax.apply_updates(state.params, updates),
        batch_stats=found.batch_stats,
        opt_state=opt_state,
        memory=found.memory,
        alpha_sum=alpha_sum,
    )
    return state, found.loss


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
