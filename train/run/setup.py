"""What is fixed along a run: its network, the problem that it learns, and its optimizer."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from train import optimizers
from train.methods import Batch, Problem, TrainState, problem
from train.models import as_model, with_compute_dtype
from train.run import step
from train.run.config import Config
from train.run.devices import Layout
from train.run.step import Update
from train.streams import Stream


class Setup:
    """Network, problem and optimizer for a stream, or for one with `more` tasks of a class each."""

    def __init__(
        self, config: Config, stream: Stream, layout: Layout, capacity: int, *, more: int = 0
    ):
        self._config = config
        self._layout = layout
        self._capacity = capacity
        tasks, outputs = len(stream.tasks), stream.num_outputs
        inputs = jax.ShapeDtypeStruct(stream.input_shape, stream.fed_dtype)
        model = as_model(config.model.value, inputs, outputs + more)
        dtype = config.run.compute_dtype
        self.model = model if dtype == "float32" else with_compute_dtype(model, dtype)
        self.shapes: Any = jax.eval_shape(self.model.init, jax.random.key(0))
        mask = None
        if any(task.classes is not None for task in stream.tasks):
            mask = np.zeros((tasks + more, outputs + more), bool)
            for row, task in zip(mask, stream.tasks, strict=False):
                row[list(range(outputs) if task.classes is None else task.classes)] = True
            mask[tasks:, outputs:] = True
        self.problem = Problem(
            apply=self.model.apply,
            loss=config.loss.value,
            score=config.score.value,
            tasks=tasks + more,
            mask=mask,
            inputs=jax.ShapeDtypeStruct(stream.input_shape, stream.input_dtype),
            targets=jax.ShapeDtypeStruct(stream.target_shape, stream.target_dtype),
            scale=stream.scale,
            offset=stream.offset,
            batch_size=config.run.batch_size,
            over_devices=layout.over_data(),
        )

    def check(self) -> None:
        """Asks network, loss and score for a batch: what does not fit fails before any work."""
        size, given = self.problem.batch_size, self.problem
        one: Any = (given.inputs, given.targets, np.zeros((), np.int32), np.zeros((), np.float32))
        batch = Batch(*jax.tree.map(lambda x: jax.ShapeDtypeStruct((size, *x.shape), x.dtype), one))

        def ask(params: Any, stats: Any, batch: Batch, key: jax.Array) -> Any:
            loss, _ = problem.mean_loss(given, params, stats, batch, key)
            return loss, problem.total_score(given, params, stats, batch)

        jax.eval_shape(ask, *self.shapes, batch, jax.random.key(0))

    def update(self, steps: Sequence[int]) -> Update:
        config, method = self._config, self._config.method.value
        splits = self._layout.splits_bank
        tx = optimizers.make(config.optimizer.value, self._capacity, splits_bank=splits)
        if config.run.clip is not None:
            tx = optax.chain(optax.clip_by_global_norm(config.run.clip), tx)
        tx = method.chain(tx, self.problem)
        kept = jax.eval_shape(tx.init, self.shapes[0])
        return Update(
            tx,
            step.rate_factor(config.run, steps),
            config.run.average,
            # Learning everything at once, there is one task, and no other to be related to.
            optimizers.keeps_tasks(kept) and not method.joint,
        )

    def init_state(self, update: Update, rng: Any, params: Any, stats: Any) -> TrainState:
        return TrainState(
            step=jnp.int32(0),
            rng=rng,
            params=params,
            stats=stats,
            opt_state=update.tx.init(params),
            memory=self._config.method.value.init_memory(self.problem, params),
            # A copy, because a step donates both.
            average=jax.tree.map(jnp.copy, params) if update.average else (),
            alpha_sum=jnp.zeros((self._capacity,), jnp.float32) if update.has_alpha else (),
        )

    def state_shapes(self, update: Update) -> TrainState:
        rng = jax.eval_shape(lambda: step.random_key(0))
        return jax.eval_shape(functools.partial(self.init_state, update), rng, *self.shapes)
