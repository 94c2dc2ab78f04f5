"""One training step, or several: pure, the task id traced, compiled once for a stream."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import tag_optax
from train import optimizers
from train.errors import UserError
from train.methods import Batch, Problem, TrainState, problem
from train.models import as_model, with_compute_dtype
from train.run.config import Config, RunSettings
from train.run.devices import Layout
from train.streams import Stream

# Named, so that a user's jax_default_prng_impl changes nothing in a resumed run.
_RANDOM = "threefry2x32"


def random_key(seed: int) -> jax.Array:
    """A key as plain numbers, which any checkpoint can hold."""
    return jax.random.key_data(jax.random.key(seed, impl=_RANDOM))


def key_of_step(state: TrainState) -> jax.Array:
    """The key of the step that the state is about to take."""
    return jax.random.fold_in(jax.random.wrap_key_data(state.rng, impl=_RANDOM), state.step)


def rate_factor(
    run: RunSettings, steps: Sequence[int]
) -> Callable[[jax.Array, jax.Array], jax.Array] | None:
    """(task, step of the task) -> what the schedule multiplies an update by; None: by nothing.

    `steps` are those of each task.
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


class Learner:
    """What is fixed along a run, and the step that it takes: a network, what it learns, a method
    and an optimizer; for a stream with so many `steps` of each task.

    `more` tasks, of a class each, show what of a state grows with the stream.
    """

    def __init__(
        self, config: Config, stream: Stream, layout: Layout, steps: Sequence[int], more: int = 0
    ):
        run, self.method = config.run, config.method.value
        tasks, outputs = len(stream.tasks), stream.num_outputs
        if run.capacity is not None and run.capacity < tasks:
            raise UserError(
                f"--capacity {run.capacity} is less than the {tasks} tasks of {stream.name}."
            )
        capacity = layout.rounded_up(max(run.capacity or 0, tasks), layout.bank_axis) + more
        self._average, self._capacity = run.average, capacity
        inputs = jax.ShapeDtypeStruct(stream.input_shape, stream.fed_dtype)
        self.model = as_model(config.model.value, inputs, outputs + more)
        if run.compute_dtype != "float32":
            self.model = with_compute_dtype(self.model, run.compute_dtype)
        self.weights: Any = jax.eval_shape(self.model.init, jax.random.key(0))
        """Shapes of the parameters and the statistics."""
        params, stats = self.weights
        self.method.check(stream, stats)
        mask = None
        if any(task.classes is not None for task in stream.tasks):
            mask = np.zeros((tasks + more, outputs + more), bool)
            for row, task in zip(mask, stream.tasks, strict=False):
                row[list(range(outputs) if task.classes is None else task.classes)] = True
            mask[tasks:, outputs:] = True
        self.problem = Problem(
            apply=self.model.apply,
            loss=config.loss.value,
            score=config.score.value,
            tasks=tasks + more,
            mask=mask,
            inputs=jax.ShapeDtypeStruct(stream.input_shape, stream.input_dtype),
            targets=jax.ShapeDtypeStruct(stream.target_shape, stream.target_dtype),
            scale=stream.scale,
            offset=stream.offset,
            batch_size=run.batch_size,
            over_devices=layout.over_data(),
        )
        tx = optimizers.make(config.optimizer.value, capacity, splits_bank=layout.splits_bank)
        if run.clip is not None:
            tx = optax.chain(optax.clip_by_global_norm(run.clip), tx)
        self.tx = self.method.chain(tx, self.problem)
        self._rate_factor = rate_factor(run, steps)
        kept = jax.eval_shape(self.tx.init, params)
        # Learning everything at once, there is one task, and no other to be related to.
        self.has_alpha = optimizers.keeps_tasks(kept) and not self.method.joint
        rng = jax.eval_shape(lambda: random_key(0))
        self.state: TrainState = jax.eval_shape(self.init_state, rng, params, stats)
        """The shapes of a state."""

    def check(self) -> None:
        """Asks network, loss and score for a batch: what does not fit fails before any work."""
        size, given = self.problem.batch_size, self.problem
        one: Any = (given.inputs, given.targets, np.zeros((), np.int32), np.zeros((), np.float32))
        batch = Batch(*jax.tree.map(lambda x: jax.ShapeDtypeStruct((size, *x.shape), x.dtype), one))

        def ask(params: Any, stats: Any, batch: Batch, key: jax.Array) -> Any:
            loss, _ = problem.mean_loss(given, params, stats, batch, key)
            return loss, problem.total_score(given, params, stats, batch)

        jax.eval_shape(ask, *self.weights, batch, jax.random.key(0))

    def init_state(self, rng: Any, params: Any, stats: Any) -> TrainState:
        return TrainState(
            step=jnp.int32(0),
            rng=rng,
            params=params,
            stats=stats,
            opt_state=self.tx.init(params),
            memory=self.method.init_memory(self.problem, params),
            # A copy, because a step donates both.
            average=jax.tree.map(jnp.copy, params) if self._average else (),
            alpha_sum=jnp.zeros((self._capacity,), jnp.float32) if self.has_alpha else (),
        )

    def step(
        self, state: TrainState, batch: Batch, task: jax.Array, step: jax.Array
    ) -> tuple[TrainState, Outcome]:
        """The given step of a task, on one batch.

        Where a number is not finite in what the step would change, it changes nothing but the count
        of steps and the method's examples, so that no state, and no checkpoint of it, holds one.
        """
        found = self.method.gradient(self.problem, state, batch, task, key_of_step(state))
        sound = jnp.isfinite(found.loss) & all_finite(found.stats)
        # TAG leaves its moments alone where a gradient is not finite, and says so in its update.
        grads = jax.tree.map(lambda g: jnp.where(sound, g, jnp.nan), found.grads)
        updates, opt_state = self.tx.update(
            grads, state.opt_state, state.params, task_id=task, value=found.loss, **found.extra_args
        )
        if self._rate_factor is not None:
            updates = optax.tree.scale(self._rate_factor(task, step), updates)
        params = optax.apply_updates(state.params, updates)
        finite = sound & all_finite(params)

        def is_tag(node: Any) -> bool:
            return isinstance(node, tag_optax.ScaleByTagState)

        def if_finite(new: Any, old: Any) -> Any:
            # TAG's state as it is, since choosing would copy its bank.
            return new if is_tag(new) else jnp.where(finite, new, old)

        params = jax.tree.map(if_finite, params, state.params)
        alpha_sum, average = state.alpha_sum, state.average
        if self.has_alpha:
            # alpha(t, .), averaged over the tensors where each has its own.
            per_tensor = jnp.stack(jax.tree.leaves(tag_optax.task_weights(opt_state)))
            alpha = jnp.where(finite, jnp.mean(per_tensor, axis=0), 0)
            alpha_sum = jnp.where(step == 0, 0, alpha_sum) + alpha
        if self._average:
            average = optax.incremental_update(params, average, 1 - self._average)
        state = TrainState(
            step=state.step + 1,
            rng=state.rng,
            params=params,
            stats=jax.tree.map(if_finite, found.stats, state.stats),
            opt_state=jax.tree.map(if_finite, opt_state, state.opt_state, is_leaf=is_tag),
            memory=found.memory,
            average=average,
            alpha_sum=alpha_sum,
        )
        return state, Outcome(found.loss, finite)


def all_finite(tree: Any) -> jax.Array:
    """Whether no number is infinite or NaN."""
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
