"""What a method is: learning as it comes, and the places where a method does something else."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from train import settings
from train.errors import UserError
from train.methods.problem import Array, Batch, Problem, mean_loss

Transformation: TypeAlias = optax.GradientTransformationExtraArgs


class TrainState(NamedTuple):
    """Everything that a step reads and writes. With several seeds, leaves have a seed axis."""

    # int32[]: steps since the stream began. It may wrap to negative numbers, because only keys are
    # made of it, and `fold_in` takes its bits: 2^32 steps have a key of their own. Were it to stand
    # still at its end, every later step would drop the same units and draw the same examples.
    step: jax.Array
    rng: jax.Array  # uint32[2]: the key's data; a step folds its number in
    params: Any
    stats: Any  # what the network keeps besides, such as running statistics
    opt_state: optax.OptState
    memory: Any  # what the method keeps besides, of fixed shapes
    average: Any  # an average of the parameters over the steps, or ()
    alpha_sum: Any  # float32[capacity]: alpha(t, s) added up over the steps of the task t, or ()


class Gradient(NamedTuple):
    """What a method makes of a batch."""

    loss: jax.Array  # of the batch alone
    grads: Any
    stats: Any
    memory: Any  # what the method keeps for the next step
    extra_args: Mapping[str, Any] = MappingProxyType({})  # for the transformation that it chains


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """The naive method: it learns each batch as it comes. Others override what they change.

    Its fields are its settings. Everything that a step calls is pure and has fixed shapes: it runs
    under `jit`, with the task traced, and under `vmap` over seeds.
    """

    joint: ClassVar[bool] = False  # All tasks are learned at once, and not one after another.
    needs_earlier_tasks: ClassVar[bool] = False  # With one task alone there would be nothing to do.
    in_turn: ClassVar[bool] = False  # A joint one: an epoch goes through the tasks in turn.

    def __post_init__(self) -> None:
        settings.check_numbers(self)

    def check(self, stream: Any, stats: Any) -> None:
        """Raises UserError where the stream or the network lacks what the method needs."""
        if self.needs_earlier_tasks and len(stream.tasks) < 2:
            raise UserError(
                f"The method {type(self).__name__} protects earlier tasks, and {stream.name} has "
                "only one task: give it two or more (--num-tasks 2)."
            )

    def chain(self, tx: Transformation, problem: Problem) -> Transformation:
        """The optimizer, after what the method does to a gradient."""
        return tx

    def init_memory(self, problem: Problem, params: Any) -> Any:
        """What the method keeps besides the optimizer's state, before the first step."""
        return ()

    def gradient(
        self, problem: Problem, state: TrainState, batch: Batch, task: jax.Array, key: jax.Array
    ) -> Gradient:
        """The gradient of a batch, and what a step does to the memory."""
        (loss, stats), grads = loss_and_gradient(problem, state.params, state.stats, batch, key)
        return Gradient(loss, grads, stats, state.memory)

    def num_revisited(self, examples: int) -> int:
        """How many of a task's examples the method looks at again when the task ends."""
        return 0

    def revisited_at_once(self, count: int, batch_size: int) -> int:
        """How many of these it is given in one call, at most."""
        return batch_size

    def revisit(self, problem: Problem, state: TrainState, batch: Batch, task: Array) -> TrainState:
        """What the method keeps of a finished task, a few of its examples at a time: weights add up
        to 1 over all examples revisited, and those without weight are filling."""
        raise NotImplementedError(f"{type(self).__name__} revisits nothing")


# ((Mean loss, new statistics), gradient) of a batch.
loss_and_gradient = jax.value_and_grad(mean_loss, argnums=1, has_aux=True)


def stats_if_any(drawn: Batch, after: Any, before: Any) -> Any:
    """Statistics after a drawn batch, if anything was drawn."""
    some = jnp.any(jnp.asarray(drawn.weight) > 0)
    return jax.tree.map(lambda a, b: jnp.where(some, a, b), after, before)
