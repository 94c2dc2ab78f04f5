"""ER (Chaudhry et al., 2019): every step also learns a batch from a memory of earlier tasks.

The two mean gradients are added, as in the code that the paper builds on (Aljundi et al., 2019).
"""

import dataclasses
from typing import Any, ClassVar

import jax

from train import settings
from train.methods import memory
from train.methods.base import Gradient, Method, TrainState, stats_if_any
from train.methods.problem import Batch, Problem, mean_loss


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replay(Method):
    """What keeps examples of earlier tasks."""

    needs_earlier_tasks: ClassVar[bool] = True

    memory_per_class: int = 1
    """Examples kept for each class of each task."""
    memory_batch_size: int | None = None
    """Examples drawn from the memory in a step; None: as many as in the batch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        settings.check_counts(self, "memory_per_class", "memory_batch_size")

    def drawn(self, problem: Problem) -> int:
        return self.memory_batch_size or problem.batch_size


@dataclasses.dataclass(frozen=True, kw_only=True)
class ER(Replay):
    """Experience replay from a reservoir."""

    replay_current_task: bool = False
    """Draw examples of the current task too, as the authors' code does."""

    def init_memory(self, problem: Problem, params: Any) -> memory.Memory:
        return memory.empty(problem, self.memory_per_class * memory.num_rings(problem))

    def gradient(
        self, problem: Problem, state: TrainState, batch: Batch, task: jax.Array, key: jax.Array
    ) -> Gradient:
        draw_key, replay_key, keep_key = (jax.random.fold_in(key, i) for i in range(3))
        left_out = memory.NOBODY if self.replay_current_task else task
        remembered = memory.draw(state.memory, draw_key, self.drawn(problem), without=left_out)

        def loss_of(params: Any) -> tuple[jax.Array, Any]:
            loss, stats = mean_loss(problem, params, state.stats, batch, key)
            replayed, replayed_stats = mean_loss(problem, params, stats, remembered, replay_key)
            stats = stats_if_any(remembered, replayed_stats, stats)
            return loss + replayed, (loss, stats)

        (_, (loss, stats)), grads = jax.value_and_grad(loss_of, has_aux=True)(state.params)
        return Gradient(loss, grads, stats, memory.add_to_reservoir(state.memory, batch, keep_key))
