"""A-GEM (Chaudhry et al., 2019): no step against the gradient on a memory of earlier tasks."""

import dataclasses
from typing import Any

import jax
import optax

import tag_optax
from train.errors import UserError
from train.methods import memory
from train.methods.base import Gradient, TrainState, Transformation, loss_and_gradient, stats_if_any
from train.methods.er import Replay
from train.methods.problem import Batch, Problem, mean_loss


@dataclasses.dataclass(frozen=True, kw_only=True)
class AGEM(Replay):
    """Averaged gradient episodic memory, with a ring of the latest examples for each class."""

    statistics_twice: bool = False
    """Pass a batch through the network before the memory and once more after it, as the authors'
    code does: it then moves the running statistics of the normalisation twice."""

    def check(self, stream: Any, stats: Any) -> None:
        super().check(stream, stats)
        if self.statistics_twice and not jax.tree.leaves(stats):
            raise UserError(
                "--statistics-twice needs a network with running statistics; this one has none, "
                "and it would change nothing."
            )

    def chain(self, tx: Transformation, problem: Problem) -> Transformation:
        return optax.chain(tag_optax.project_agem(), tx)

    def init_memory(self, problem: Problem, params: Any) -> memory.Memory:
        rings = memory.num_rings(problem)
        return memory.empty(problem, self.memory_per_class * rings, rings=rings)

    def gradient(
        self, problem: Problem, state: TrainState, batch: Batch, task: jax.Array, key: jax.Array
    ) -> Gradient:
        draw_key, replay_key = (jax.random.fold_in(key, i) for i in range(2))
        remembered = memory.draw(state.memory, draw_key, self.drawn(problem), without=task)
        (loss, stats), grads = loss_and_gradient(problem, state.params, state.stats, batch, key)
        # Without an earlier task the loss has no weight, and the gradient is zero.
        (_, replayed_stats), memory_grad = loss_and_gradient(
            problem, state.params, stats, remembered, replay_key
        )
        stats = stats_if_any(remembered, replayed_stats, stats)
        if self.statistics_twice:
            _, stats = mean_loss(problem, state.params, stats, batch, key)
        kept = memory.add_to_rings(state.memory, batch, memory.ring_of(problem, batch))
        return Gradient(loss, grads, stats, kept, {"memory_grad": memory_grad})
