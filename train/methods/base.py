"""What a method is: learning as it comes, and the places where a method does something else."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from train.errors import UserError
from train.run.batches import Batch
from train.run.config import Config
from train.run.problem import Problem, mean_loss
from train.run.state import TrainState
from train.streams.types import Stream


class Gradient(NamedTuple):
    """What a method makes of a batch."""

    loss: jax.Array  # of the batch alone
    grads: Any
    batch_stats: Any
    memory: Any  # what the method keeps for the next step
    extra_args: Mapping[str, Any] = MappingProxyType(
        {}
    )  # for the transformation that the method chains


class Method:
    """The naive method: it learns each batch as it comes. Others override what they change.

    Everything that a step calls is pure and has fixed shapes: it runs under `jit`, with the task
    traced, and under `vmap` over seeds.
    """

    joint: bool = False
    """All tasks are learned at once, and not one after another."""
    needs_earlier_tasks: bool = False
    """With one task alone there would be nothing to do."""

    def __init__(self, config: Config, stream: Stream):
        """Raises UserError where the stream lacks what the method needs."""
        if self.needs_earlier_tasks and len(stream.tasks) < 2:
            raise UserError(
                f"--method {config.method} protects earlier tasks, and there is only one task: "
                "give --num-tasks 2 or more."
            )
        self.config = config

    def chain(
        self, tx: optax.GradientTransformationExtraArgs
    ) -> optax.GradientTransformationExtraArgs:
        """The optimizer, behind what the method does to a gradient."""
        return tx

    def init_memory(self) -> Any:
        """What the method keeps besides the optimizer's state, before the first step."""
        return ()

    def gradient(
        self, problem: Problem, state: TrainState, batch: Batch, task: jax.Array, key: jax.Array
    ) -> Gradient:
        """The gradient of a batch, and what a step does to the memory."""
        del task
        (loss, batch_stats), grads = loss_and_gradient(
            problem, state.params, state.batch_stats, batch, key
        )
        return Gradient(loss, grads, batch_stats, state.memory)

    def num_revisited(self, examples: int) -> int:
        """How many of a task's examples the method looks at again when the task ends."""
        del examples
        return 0

    def revisited_at_once(self, count: int) -> int:
        """How many of these it is given in one call, at most."""
        del count
        return self.config.batch_size

    def revisit(
        self, problem: Problem, state: TrainState, batch: Batch, task: jax.Array
    ) -> TrainState:
        """What the method keeps of a finished task, a few of its examples at a time.

        Weights add up to 1 over all examples revisited; those without weight are filling.
        """
        raise NotImplementedError(f"{type(self).__name__} revisits nothing")


def loss_and_gradient(
    problem: Problem, params: Any, batch_stats: Any, batch: Batch, key: jax.Array
) -> tuple[tuple[jax.Array, Any], Any]:
    """((mean loss, new batch statistics), gradient) of a batch."""

    def loss_of(params: Any) -> tuple[jax.Array, Any]:
        return mean_loss(problem, params, batch_stats, batch, key)

    return jax.value_and_grad(loss_of, has_aux=True)(params)


def stats_if_any(drawn: Batch, after: Any, before: Any) -> Any:
    """Batch statistics after a drawn batch, if anything was drawn."""
    some = jnp.any(jnp.asarray(drawn.weight) > 0)
    return jax.tree.map(lambda a, b: jnp.where(some, a, b), after, before)
