"""OGD (Farajtabar et al., 2020): steps orthogonal to what changes the answers of earlier tasks.

Of each finished task it keeps the gradients of the right answer's logit on a few examples.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

import tag_optax
from train.errors import UserError
from train.methods.base import Method
from train.run.batches import Batch
from train.run.config import Config
from train.run.problem import Problem, frozen_logits, one_by_one
from train.run.state import TrainState
from train.streams.types import Stream


class OGD(Method):
    """Orthogonal gradient descent, in the form that keeps ground-truth logits (OGD-GTL)."""

    needs_earlier_tasks = True

    def __init__(self, config: Config, stream: Stream):
        super().__init__(config, stream)
        smallest = min(stream.tasks, key=lambda task: len(task.train))
        if config.directions_per_task > len(smallest.train):
            raise UserError(
                f"--directions-per-task {config.directions_per_task} with --method ogd: task "
                f"{smallest.name!r} of {stream.name} has only {len(smallest.train)} to take them "
                "from. Choose no more than that."
            )
        self._tasks = len(stream.tasks)

    def chain(
        self, tx: optax.GradientTransformationExtraArgs
    ) -> optax.GradientTransformationExtraArgs:
        directions = self.config.directions_per_task
        return optax.chain(tag_optax.project_orthogonal(directions, self._tasks), tx)

    def num_revisited(self, examples: int) -> int:
        del examples
        return self.config.directions_per_task

    def revisit(
        self, problem: Problem, state: TrainState, batch: Batch, task: jax.Array
    ) -> TrainState:
        directions = logit_gradients(problem, state.params, state.batch_stats, batch)

        def store(i: jax.Array, opt_state: optax.OptState) -> optax.OptState:
            # Filling becomes a zero direction, which is not stored.
            some = (jnp.asarray(batch.weight)[i] > 0).astype(jnp.float32)
            direction = jax.tree.map(lambda d: some * d[i], directions)
            return tag_optax.store_direction(opt_state, direction, task_id=task)

        opt_state = jax.lax.fori_loop(0, len(batch.label), store, state.opt_state)
        return state._replace(opt_state=opt_state)


def logit_gradients(problem: Problem, params: Any, batch_stats: Any, batch: Batch) -> Any:
    """The gradient of each example's right logit, with a leading axis."""

    def gradient(example: Batch) -> Any:
        def logit(params: Any) -> jax.Array:
            return frozen_logits(problem, params, batch_stats, example)[0, example.label[0]]

        return jax.grad(logit)(params)

    return jax.vmap(gradient)(one_by_one(batch))
