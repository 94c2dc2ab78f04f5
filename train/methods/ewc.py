"""EWC (Kirkpatrick et al., 2017): parameters that earlier tasks need are held back.

The penalty on task t is lambda/2 sum_{s<t} F_s (theta - theta*_s)^2, where F_s is the diagonal of
the Fisher information: the mean over the task's examples of the squared gradient of each one's own
loss. The authors of TAG take the square of one batch's mean gradient for it. Two copies of the
parameters hold the sum over all tasks.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

import tag_optax
from train.methods.base import Method
from train.run.batches import Batch
from train.run.problem import Problem, frozen_logits, one_by_one
from train.run.state import TrainState


class EWC(Method):
    """Elastic weight consolidation."""

    needs_earlier_tasks = True

    def chain(
        self, tx: optax.GradientTransformationExtraArgs
    ) -> optax.GradientTransformationExtraArgs:
        return optax.chain(tag_optax.add_ewc_penalty(self.config.ewc_lambda), tx)

    def num_revisited(self, examples: int) -> int:
        return min(self.config.fisher_samples or examples, examples)

    def revisited_at_once(self, count: int) -> int:
        # The square of a mean needs all that the mean is taken over.
        return count if self.config.fisher == "batch" else self.config.batch_size

    def revisit(
        self, problem: Problem, state: TrainState, batch: Batch, task: jax.Array
    ) -> TrainState:
        del task
        kind = example_fisher if self.config.fisher == "examples" else batch_fisher
        fisher = kind(problem, state.params, state.batch_stats, batch)
        # A quadratic with the same minimum can be added bit by bit: the sum is the task's.
        opt_state = tag_optax.consolidate_ewc(state.opt_state, state.params, fisher)
        return state._replace(opt_state=opt_state)


def example_fisher(problem: Problem, params: Any, batch_stats: Any, batch: Batch) -> Any:
    """sum_i w_i (grad log p(label_i | image_i))^2, like the parameters."""

    def gradient(example: Batch) -> Any:
        return jax.grad(_total_loss, argnums=1)(problem, params, batch_stats, example)

    one_each = one_by_one(batch)._replace(weight=jnp.ones((len(batch.label), 1)))
    grads = jax.vmap(gradient)(one_each)
    return jax.tree.map(lambda g: jnp.tensordot(batch.weight, g**2, axes=1), grads)


def batch_fisher(problem: Problem, params: Any, batch_stats: Any, batch: Batch) -> Any:
    """(sum_i w_i grad log p(label_i | image_i))^2, like the parameters."""
    grads = jax.grad(_total_loss, argnums=1)(problem, params, batch_stats, batch)
    return jax.tree.map(jnp.square, grads)


def _total_loss(problem: Problem, params: Any, batch_stats: Any, batch: Batch) -> jax.Array:
    logits = frozen_logits(problem, params, batch_stats, batch)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.label)
    return jnp.sum(batch.weight * losses)
