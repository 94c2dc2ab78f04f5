"""ER (Chaudhry et al., 2019): every step also learns a batch from a memory of earlier tasks.

The two mean gradients are added, as in the code that the paper builds on (Aljundi et al., 2019).
"""

from typing import Any

import jax

from train.methods import memory
from train.methods.base import Gradient, Method, stats_if_any
from train.run.batches import Batch
from train.run.config import Config
from train.run.problem import Problem, mean_loss
from train.run.state import TrainState
from train.streams.types import Stream


class ER(Method):
    """Experience replay from a reservoir."""

    needs_earlier_tasks = True

    def __init__(self, config: Config, stream: Stream):
        super().__init__(config, stream)
        self._slots = config.memory_per_class * memory.rings_of(stream).number
        self._image_shape = stream.image_shape
        self._drawn = config.memory_batch_size or config.batch_size

    def init_memory(self) -> memory.Memory:
        return memory.empty(self._slots, self._image_shape)

    def gradient(
        self, problem: Problem, state: TrainState, batch: Batch, task: jax.Array, key: jax.Array
    ) -> Gradient:
        draw_key, replay_key, keep_key = (jax.random.fold_in(key, i) for i in range(3))
        left_out = memory.NOBODY if self.config.replay_current_task else task
        remembered = memory.draw(state.memory, draw_key, self._drawn, without=left_out)

        def loss_of(params: Any) -> tuple[jax.Array, Any]:
            loss, batch_stats = mean_loss(problem, params, state.batch_stats, batch, key)
            replayed, replayed_stats = mean_loss(
                problem, params, batch_stats, remembered, replay_key
            )
            stats = stats_if_any(remembered, replayed_stats, batch_stats)
            return loss + replayed, (loss, stats)

        (_, (loss, batch_stats)), grads = jax.value_and_grad(loss_of, has_aux=True)(state.params)
        kept = memory.add_to_reservoir(state.memory, batch, keep_key)
        return Gradient(loss, grads, batch_stats, kept)
