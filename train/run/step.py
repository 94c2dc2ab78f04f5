"""One training step, or several: pure, the task id traced, compiled once for a stream."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import tag_optax
from train.methods import Batch, Method, Problem, TrainState
from train.run.config import RunSettings

# Named, so that a user's jax_default_prng_impl changes nothing in a resumed run.
_RANDOM = "threefry2x32"


def random_key(seed: int) -> jax.Array:
    """A key as plain numbers, which any checkpoint can hold."""
    return jax.random.key_data(jax.random.key(seed, impl=_RANDOM))


def key_of_step(state: TrainState) -> jax.Array:
    """The key of the step that the state is about to take."""
    return jax.random.fold_in(jax.random.wrap_key_data(state.rng, impl=_RANDOM), state.step)


class Update(NamedTuple):
    """What happens to a gradient, all of it fixed along a stream."""

    tx: optax.GradientTransformationExtraArgs
    rate_factor: Callable[[jax.Array, jax.Array], jax.Array] | None
    """(task, step of the task) -> what the schedule multiplies an update by."""
    average: float
    """Decay of the average of the parameters; 0: there is none."""
    has_alpha: bool
    """Whether TAG weighs the tasks."""


def rate_factor(
    run: RunSettings, steps: Sequence[int]
) -> Callable[[jax.Array, jax.Array], jax.Array] | None:
    """What a schedule multiplies every update by, for so many steps of each task.

    >>> factor = rate_factor(RunSettings(schedule="linear", schedule_over="task"), [4, 4])
    >>> [float(factor(jnp.int32(1), jnp.int32(step))) for step in range(4)]
    [1.0, 0.75, 0.5, 0.25]
    """
    if run.schedule == "constant" and not run.warmup:
        return None
    anew = run.schedule_over == "task"
    before = np.zeros(len(steps)) if anew else np.cumsum([0, *steps[:-1]])
    lengths = np.array(steps) if anew else np.full(len(steps), sum(steps))

    def factor(task: jax.Array, step: jax.Array) -> jax.Array:
        done = jnp.asarray(before, jnp.float32)[task] + step
        length = jnp.asarray(lengths, jnp.float32)[task]
        rising = run.warmup * length
        progress = jnp.clip((done - rising) / jnp.maximum(length - rising, 1), 0, 1)
        falling = {
            "constant": jnp.ones_like(progress),
            "linear": 1 - progress,
            "cosine": (1 + jnp.cos(jnp.pi * progress)) / 2,
        }[run.schedule]
        return jnp.where(done < rising, (done + 1) / jnp.maximum(rising, 1), falling)

    return factor


class Outcome(NamedTuple):
    """What the host learns of a step."""

    loss: jax.Array  # float32[]: the batch's mean loss
    finite: jax.Array  # bool[]: whether the step was taken


def train_step(
    problem: Problem,
    method: Method,
    update: Update,
    state: TrainState,
    batch: Batch,
    task: jax.Array,
    step: jax.Array,
) -> tuple[TrainState, Outcome]:
    """The given step of a task, on one batch.

    Where a number is not finite in what the step would change, it changes nothing but the count of
    steps and the method's examples, so that no state, and no checkpoint of it, ever holds one.
    """
    found = method.gradient(problem, state, batch, task, key_of_step(state))
    sound = jnp.isfinite(found.loss) & all_finite(found.stats)
    # TAG leaves its moments alone where a gradient is not finite, and says so in its update.
    grads = jax.tree.map(lambda g: jnp.where(sound, g, jnp.nan), found.grads)
    updates, opt_state = update.tx.update(
        grads, state.opt_state, state.params, task_id=task, value=found.loss, **found.extra_args
    )
    if update.rate_factor is not None:
        updates = optax.tree.scale(update.rate_factor(task, step), updates)
    params = optax.apply_updates(state.params, updates)
    finite = sound & all_finite(params)

    def if_finite(new: Any, old: Any) -> Any:
        return jax.tree.map(lambda x, y: jnp.where(finite, x, y), new, old)

    def guarded(new: Any, old: Any) -> Any:
        # TAG's state as it is, since choosing would copy its bank.
        return new if is_tag(new) else if_finite(new, old)

    def is_tag(node: Any) -> bool:
        return isinstance(node, tag_optax.ScaleByTagState)

    params = if_finite(params, state.params)
    alpha_sum = state.alpha_sum
    if update.has_alpha:
        # alpha(t, .), averaged over the tensors where each has its own.
        per_tensor = jnp.stack(jax.tree.leaves(tag_optax.task_weights(opt_state)))
        alpha = jnp.where(finite, jnp.mean(per_tensor, axis=0), 0)
        alpha_sum = jnp.where(step == 0, 0, alpha_sum) + alpha
    state = TrainState(
        step=state.step + 1,
        rng=state.rng,
        params=params,
        stats=if_finite(found.stats, state.stats),
        opt_state=jax.tree.map(guarded, opt_state, state.opt_state, is_leaf=is_tag),
        memory=found.memory,
        average=optax.incremental_update(params, state.average, 1 - update.average)
        if update.average
        else (),
        alpha_sum=alpha_sum,
    )
    return state, Outcome(found.loss, finite)


def all_finite(tree: Any) -> jax.Array:
    """Whether no number is infinite or NaN.

    >>> bool(all_finite({"a": jnp.ones(2)})), bool(all_finite({"a": jnp.array([1, jnp.inf])}))
    (True, False)
    """
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)], bool))


def several_steps(
    one_step: Callable[[TrainState, Batch, jax.Array], tuple[TrainState, Outcome]],
    state: TrainState,
    batches: Batch,
    first: jax.Array,
    count: jax.Array,
) -> tuple[TrainState, Outcome]:
    """The first `count` of the batches, the first of them being the step `first` of a task.

    The count is traced, so that a call with fewer steps (before a checkpoint, at a task's end)
    compiles nothing anew. Outcomes beyond the count are zeros.
    """

    def body(i: jax.Array, carry: tuple[TrainState, Outcome]) -> tuple[TrainState, Outcome]:
        state, outcomes = carry
        batch = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False), batches)
        state, outcome = one_step(state, batch, first + i)
        return state, jax.tree.map(lambda all_, one: all_.at[i].set(one), outcomes, outcome)

    shape = batches.weight.shape[:-1]
    nothing = Outcome(jnp.zeros(shape, jnp.float32), jnp.zeros(shape, bool))
    return jax.lax.fori_loop(0, count, body, (state, nothing))
