"""One training step, or several: pure, the task id traced, compiled once for a stream."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import tag_optax
from train.methods.base import Method
from train.run.batches import Batch
from train.run.problem import Problem
from train.run.state import TrainState, key_of_step


def _weights(opt_state: optax.OptState) -> jax.Array:
    """alpha(t, .), averaged over the tensors where each has its own."""
    per_tensor = jax.tree.leaves(tag_optax.task_weights(opt_state))
    return jnp.mean(jnp.stack(per_tensor), axis=0)


class Outcome(NamedTuple):
    """What the host learns of a step."""

    loss: jax.Array  # float32[]: the batch's mean loss
    finite: jax.Array  # bool[]: whether the step was taken


def train_step(
    problem: Problem,
    method: Method,
    tx: optax.GradientTransformationExtraArgs,
    state: TrainState,
    batch: Batch,
    task: jax.Array,
    *,
    has_alpha: bool,
) -> tuple[TrainState, Outcome]:
    """One step on one batch of one task.

    Where a number is not finite in what the step would change, it changes nothing but the count of
    steps and the method's examples, so that no state, and no checkpoint of it, ever holds one.
    """
    found = method.gradient(problem, state, batch, task, key_of_step(state))
    sound = jnp.isfinite(found.loss) & all_finite(found.batch_stats)
    # TAG leaves its moments alone where a gradient is not finite, and says so in its update.
    grads = jax.tree.map(lambda g: jnp.where(sound, g, jnp.nan), found.grads)
    updates, opt_state = tx.update(
        grads, state.opt_state, state.params, task_id=task, **found.extra_args
    )
    params = optax.apply_updates(state.params, updates)
    finite = sound & all_finite(params)

    def if_finite(new: Any, old: Any) -> Any:
        return jax.tree.map(lambda x, y: jnp.where(finite, x, y), new, old)

    alpha_sum = state.alpha_sum
    if has_alpha:
        # A bank on a mesh may have rows behind the last task.
        alpha = _weights(opt_state)[: alpha_sum.shape[1]]
        alpha_sum = alpha_sum.at[task].add(jnp.where(finite, alpha, 0))
    state = TrainState(
        step=state.step + 1,
        rng=state.rng,
        params=if_finite(params, state.params),
        batch_stats=if_finite(found.batch_stats, state.batch_stats),
        opt_state=_guarded(opt_state, state.opt_state, if_finite),
        memory=found.memory,
        alpha_sum=alpha_sum,
    )
    return state, Outcome(found.loss, finite)


def all_finite(tree: Any) -> jax.Array:
    """Whether no number is infinite or NaN.

    >>> bool(all_finite({"a": jnp.ones(2)})), bool(all_finite({"a": jnp.array([1, jnp.inf])}))
    (True, False)
    """
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)], bool))


def _guarded(new: Any, old: Any, if_finite: Callable[[Any, Any], Any]) -> Any:
    """The optimizer's state, or the old one; TAG's as it is, since choosing would copy its bank."""

    def is_tag(node: Any) -> bool:
        return isinstance(node, tag_optax.ScaleByTagState)

    return jax.tree.map(lambda x, y: x if is_tag(x) else if_finite(x, y), new, old, is_leaf=is_tag)


def several_steps(
    one_step: Callable[[TrainState, Batch, jax.Array], tuple[TrainState, Outcome]],
    state: TrainState,
    batches: Batch,
    task: jax.Array,
    count: jax.Array,
) -> tuple[TrainState, Outcome]:
    """The first `count` of the batches, in a loop on the device.

    The count is traced, so that a call with fewer steps (before a checkpoint, at a task's end)
    compiles nothing anew. Outcomes behind the count are zeros.
    """

    def body(i: jax.Array, carry: tuple[TrainState, Outcome]) -> tuple[TrainState, Outcome]:
        state, outcomes = carry
        batch = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False), batches)
        state, outcome = one_step(state, batch, task)
        return state, jax.tree.map(lambda all_, one: all_.at[i].set(one), outcomes, outcome)

    shape = batches.label.shape[:-1]
    nothing = Outcome(jnp.zeros(shape, jnp.float32), jnp.zeros(shape, bool))
    return jax.lax.fori_loop(0, count, body, (state, nothing))
