"""The compiled functions of a run: for one seed, or for several side by side."""

import collections
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tag_optax
from train import batches, optimizers, step
from train.batches import Batch
from train.config import Config
from train.models import build_model
from train.models.pretrained import import_weights
from train.step import TrainState
from train.streams.types import Examples, Stream

# Pixels of one evaluation call: enough to fill a device, few enough for 224x224 images.
_EVALUATED_PIXELS = 2**18


def default_steps_per_call(model: str, platform: str) -> int:
    """How many steps a compiled call should hold.

    On a CPU, XLA runs convolutions inside a loop several times slower than outside, while a small
    perceptron's step is mostly dispatch (`benchmarks/stream_throughput.py`). On accelerators
    fewer calls leave the host more time.

    >>> default_steps_per_call("resnet18", "cpu")
    1
    """
    if platform != "cpu":
        return 25
    return 50 if model == "mlp" else 1


class Engine:
    """Makes states, steps them through a stream and evaluates them.

    One engine serves any number of runs that differ in their seeds alone, and compiles once for all
    of them. With `num_seeds` above 1, that many runs go side by side: their states are stacked and
    every function is vmapped.
    """

    def __init__(self, config: Config, stream: Stream, num_seeds: int = 1):
        self.config = config
        self.stream = stream
        self.num_seeds = num_seeds
        self.steps_per_call = config.steps_per_call or default_steps_per_call(
            config.model, jax.default_backend()
        )
        height, width, _ = stream.image_shape
        longest = max(len(self._judged(task)) for task in range(len(stream.tasks)))
        fitting = int(np.clip(_EVALUATED_PIXELS // (height * width), 16, 500))
        self._evaluated = min(longest, fitting)
        tx = optimizers.make(config)
        graphdef, params, batch_stats = self._fresh_model(seed=0)
        if config.pretrained is not None:
            # Weights that do not fit must fail here, before there is a run to resume.
            import_weights(config.pretrained, params, batch_stats)
        self.problem = step.make_problem(graphdef, tx, stream)
        self.has_alpha = config.optimizer.startswith("tag-")
        # One count and one task for all seeds; everything else has a seed axis.
        self._axes: Any = TrainState(
            step=None,  # type: ignore[arg-type]
            rng=0,  # type: ignore[arg-type]
            params=0,
            batch_stats=0,
            opt_state=tag_optax.vmap_axes(tx, params),
            alpha_sum=0,  # type: ignore[arg-type]
        )
        self.traced: collections.Counter[str] = collections.Counter()
        """How often each function was traced, and so compiled: once for a whole stream."""
        self._train = jax.jit(self._train_call, donate_argnums=0)
        self._count_correct = jax.jit(self._evaluate_call)

    def steps_of_task(self, task: int) -> int:
        examples = len(self.stream.tasks[task].train)
        return self.config.epochs * batches.steps_per_epoch(examples, self.config.batch_size)

    def init(self, seeds: tuple[int, ...]) -> TrainState:
        """The state before the first step."""
        starts = [self._start(seed) for seed in seeds]
        if self.num_seeds == 1:
            return self._init_state(*starts[0])
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *starts)
        return jax.vmap(self._init_state, out_axes=self._axes)(*stacked)

    def train(
        self, state: TrainState, seeds: tuple[int, ...], task: int, steps: range
    ) -> tuple[TrainState, jax.Array]:
        """Up to `steps_per_call` steps of a task; donates the state. Losses have [step, seed]."""
        # The shapes of a call never change: batches behind the steps asked for are not used.
        taken = range(steps.start, steps.start + self.steps_per_call)
        examples = self.stream.tasks[task].train
        batch = batches.take(examples, seeds, task, taken, batch_size=self.config.batch_size)
        state, losses = self._train(state, batch, np.int32(task), np.int32(len(steps)))
        return state, losses[: len(steps)]

    def accuracies(self, state: TrainState, tasks: range) -> np.ndarray:
        """float64[seed, task]: the share of each task's examples classified right."""
        right = [self._right(state, task, self._judged(task)) for task in tasks]
        sizes = [len(self._judged(task)) for task in tasks]
        return np.stack([np.asarray(r, np.float64) for r in right], axis=1) / np.array([sizes])

    def _judged(self, task: int) -> Examples:
        part = self.stream.tasks[task]
        return part.test if self.config.evaluate_on == "test" else part.validation

    def _right(self, state: TrainState, task: int, examples: Examples) -> jax.Array:
        blocks = range(0, len(examples), self._evaluated)
        counts = [
            self._count_correct(
                state.params,
                state.batch_stats,
                batches.block(examples, start, self._evaluated),
                np.int32(task),
            )
            for start in blocks
        ]
        return jnp.sum(jnp.stack(counts), axis=0)

    def _fresh_model(self, seed: int) -> tuple[Any, Any, Any]:
        return build_model(
            self.config.model,
            image_shape=self.stream.image_shape,
            num_outputs=self.stream.num_outputs,
            seed=seed,
            dropout=self.config.dropout,
            hidden=self.config.hidden,
        )

    def _start(self, seed: int) -> tuple[jax.Array, Any, Any]:
        """Where a seed begins: its random key, parameters and batch statistics."""
        _, params, batch_stats = self._fresh_model(seed)
        if self.config.pretrained is not None:
            params, batch_stats = import_weights(self.config.pretrained, params, batch_stats)
        return step.random_key(seed), params, batch_stats

    def _init_state(self, rng: jax.Array, params: Any, batch_stats: Any) -> TrainState:
        return step.init_state(self.problem, rng, params, batch_stats)

    def _train_call(
        self, state: TrainState, batch: Batch, task: jax.Array, count: jax.Array
    ) -> tuple[TrainState, jax.Array]:
        self.traced["train"] += 1

        def one_step(state: TrainState, batch: Batch, task: jax.Array) -> Any:
            return step.train_step(self.problem, state, batch, task, has_alpha=self.has_alpha)

        if self.num_seeds == 1:
            batch = jax.tree.map(lambda x: jnp.squeeze(x, axis=1), batch)
        else:
            one_step = jax.vmap(one_step, (self._axes, 0, None), (self._axes, 0))
        if self.steps_per_call == 1:
            state, losses = one_step(state, jax.tree.map(lambda x: x[0], batch), task)
        else:
            state, losses = step.several_steps(one_step, state, batch, task, count)
        return state, losses.reshape(self.steps_per_call, self.num_seeds)

    def _evaluate_call(
        self, params: Any, batch_stats: Any, batch: Batch, task: jax.Array
    ) -> jax.Array:
        self.traced["evaluate"] += 1

        def count(params: Any, batch_stats: Any) -> jax.Array:
            return step.count_correct(self.problem, params, batch_stats, batch, task)

        if self.num_seeds == 1:
            return count(params, batch_stats)[None]
        return jax.vmap(count)(params, batch_stats)
