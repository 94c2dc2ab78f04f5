"""A-GEM (Chaudhry et al., 2019): no step against the gradient on a memory of earlier tasks."""

import jax
import optax

import tag_optax
from train.methods import memory
from train.methods.base import Gradient, Method, loss_and_gradient, stats_if_any
from train.run.batches import Batch
from train.run.config import Config
from train.run.problem import Problem, mean_loss
from train.run.state import TrainState
from train.streams.types import Stream


class AGEM(Method):
    """Averaged gradient episodic memory, with a ring of the latest examples for each class."""

    needs_earlier_tasks = True

    def __init__(self, config: Config, stream: Stream):
        super().__init__(config, stream)
        self._rings = memory.rings_of(stream)
        self._image_shape = stream.image_shape
        self._drawn = config.memory_batch_size or config.batch_size

    def chain(
        self, tx: optax.GradientTransformationExtraArgs
    ) -> optax.GradientTransformationExtraArgs:
        return optax.chain(tag_optax.project_agem(), tx)

    def init_memory(self) -> memory.Memory:
        slots = self.config.memory_per_class * self._rings.number
        return memory.empty(slots, self._image_shape, rings=self._rings.number)

    def gradient(
        self, problem: Problem, state: TrainState, batch: Batch, task: jax.Array, key: jax.Array
    ) -> Gradient:
        draw_key, replay_key = (jax.random.fold_in(key, i) for i in range(2))
        remembered = memory.draw(state.memory, draw_key, self._drawn, without=task)
        (loss, batch_stats), grads = loss_and_gradient(
            problem, state.params, state.batch_stats, batch, key
        )
        # Without an earlier task the loss has no weight, and the gradient is zero.
        (_, replayed_stats), memory_grad = loss_and_gradient(
            problem, state.params, batch_stats, remembered, replay_key
        )
        batch_stats = stats_if_any(remembered, replayed_stats, batch_stats)
        if self.config.statistics_twice:
            _, batch_stats = mean_loss(problem, state.params, batch_stats, batch, key)
        return Gradient(
            loss,
            grads,
            batch_stats,
            memory.add_to_rings(state.memory, batch, self._rings),
            {"memory_grad": memory_grad},
        )
