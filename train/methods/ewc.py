"""EWC (Kirkpatrick et al., 2017): parameters that earlier tasks need are held back.

The penalty on task t is lambda/2 sum_{s<t} F_s (theta - theta*_s)^2, where F_s is the diagonal of
the Fisher information: the mean over the task's examples of the squared gradient of each one's own
loss. The authors of TAG take the square of one batch's mean gradient for it. Two copies of the
parameters hold the sum over all tasks.
"""

import dataclasses
import functools
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import optax

import tag_optax
from train import settings
from train.methods.base import Method, TrainState, Transformation
from train.methods.problem import Array, Batch, Problem, frozen_loss, one_by_one


@dataclasses.dataclass(frozen=True, kw_only=True)
class EWC(Method):
    """Elastic weight consolidation."""

    needs_earlier_tasks: ClassVar[bool] = True

    ewc_lambda: float = 1.0
    """How strongly earlier tasks hold their parameters."""
    fisher: Literal["examples", "batch"] = "examples"
    """The mean of the examples' squared gradients, or the square of one batch's mean gradient as in
    the authors' code (some 30 times smaller: the paper's lambdas of 1 and 100 go with it)."""
    fisher_samples: int | None = 200
    """The Fisher information is taken from at most so many examples of a task; None: all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        settings.check(self.ewc_lambda >= 0, "ewc_lambda", "must not be negative", self.ewc_lambda)
        settings.check_counts(self, "fisher_samples")

    def chain(self, tx: Transformation, problem: Problem) -> Transformation:
        return optax.chain(tag_optax.add_ewc_penalty(self.ewc_lambda), tx)

    def num_revisited(self, examples: int) -> int:
        return min(self.fisher_samples or examples, examples)

    def revisited_at_once(self, count: int, batch_size: int) -> int:
        # The square of a mean needs all that the mean is taken over.
        return count if self.fisher == "batch" else batch_size

    def revisit(self, problem: Problem, state: TrainState, batch: Batch, task: Array) -> TrainState:
        kind = example_fisher if self.fisher == "examples" else batch_fisher
        fisher = kind(problem, state.params, state.stats, batch)
        # A quadratic with the same minimum can be added bit by bit: the sum is the task's.
        opt_state = tag_optax.consolidate_ewc(state.opt_state, state.params, fisher)
        return state._replace(opt_state=opt_state)


def example_fisher(problem: Problem, params: Any, stats: Any, batch: Batch) -> Any:
    """sum_i w_i (grad log p(y_i | x_i))^2, like the parameters."""
    one_each = one_by_one(batch)._replace(weight=jnp.ones((len(batch.weight), 1)))
    gradient = functools.partial(jax.grad(frozen_loss, argnums=1), problem, params, stats)
    grads = jax.vmap(gradient)(one_each)
    return jax.tree.map(lambda g: jnp.tensordot(batch.weight, g**2, axes=1), grads)


def batch_fisher(problem: Problem, params: Any, stats: Any, batch: Batch) -> Any:
    """(sum_i w_i grad log p(y_i | x_i))^2, like the parameters."""
    grads = jax.grad(frozen_loss, argnums=1)(problem, params, stats, batch)
    return jax.tree.map(jnp.square, grads)
