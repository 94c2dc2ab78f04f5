"""OGD (Farajtabar et al., 2020): steps orthogonal to what changes the answers of earlier tasks.

Of each finished task it keeps the gradients of the right answer's logit on a few examples.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

import tag_optax
from train import settings
from train.errors import UserError
from train.methods.base import Method, TrainState, Transformation
from train.methods.problem import Array, Batch, Problem, frozen_outputs, one_by_one


@dataclasses.dataclass(frozen=True, kw_only=True)
class OGD(Method):
    """Orthogonal gradient descent, in the form that keeps ground-truth logits (OGD-GTL)."""

    needs_earlier_tasks: ClassVar[bool] = True

    directions_per_task: int = 10
    """Gradients kept of each task. Each costs one copy of the parameters."""

    def __post_init__(self) -> None:
        super().__post_init__()
        settings.check_counts(self, "directions_per_task")

    def check(self, stream: Any, stats: Any) -> None:
        super().check(stream, stats)
        if any(task.classes is None for task in stream.tasks):
            raise UserError(
                f"The method OGD keeps gradients of classes, and the targets of {stream.name} are "
                "none: choose another method."
            )
        smallest = min(stream.tasks, key=lambda task: len(task.train))
        if self.directions_per_task > len(smallest.train):
            raise UserError(
                f"--directions-per-task {self.directions_per_task} with --method ogd: task "
                f"{smallest.name!r} of {stream.name} has only {len(smallest.train)} to take them "
                "from. Choose no more than that."
            )

    def chain(self, tx: Transformation, problem: Problem) -> Transformation:
        stored = tag_optax.project_orthogonal(self.directions_per_task, problem.tasks)
        return optax.chain(stored, tx)

    def num_revisited(self, examples: int) -> int:
        return self.directions_per_task

    def revisit(self, problem: Problem, state: TrainState, batch: Batch, task: Array) -> TrainState:
        def logit(params: Any, example: Batch) -> jax.Array:
            return frozen_outputs(problem, params, state.stats, example)[0, example.y[0]]

        directions = jax.vmap(jax.grad(logit), (None, 0))(state.params, one_by_one(batch))

        def store(i: jax.Array, opt_state: optax.OptState) -> optax.OptState:
            # Filling becomes a zero direction, which is not stored.
            some = (jnp.asarray(batch.weight)[i] > 0).astype(jnp.float32)
            direction = jax.tree.map(lambda d: some * d[i], directions)
            return tag_optax.store_direction(opt_state, direction, task_id=task)

        opt_state = jax.lax.fori_loop(0, len(batch.weight), store, state.opt_state)
        return state._replace(opt_state=opt_state)
