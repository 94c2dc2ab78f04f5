"""The compiled functions of a run: for one seed, or for several side by side."""

import collections
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import tag_optax
from train import methods, optimizers
from train.models import build_model
from train.models.pretrained import import_weights
from train.run import batches, problem, step
from train.run.batches import Batch
from train.run.config import Config
from train.run.fingerprint import fingerprints
from train.run.layout import Layout
from train.run.state import TrainState, init_state, random_key
from train.run.step import Outcome
from train.streams.types import Examples, Stream, check

ONE_DEVICE = Layout()


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


def default_evaluated(model: str, platform: str, pixels: int) -> int:
    """How many images of so many pixels an evaluation call should hold.

    Enough to fill a device, few enough for 224x224 images. On a CPU, convolutions are a quarter
    faster while their maps stay in its caches.

    >>> default_evaluated("resnet18-reduced", "cpu", 32 * 32)
    64
    """
    at_once = 2**16 if platform == "cpu" and model != "mlp" else 2**18
    return int(np.clip(at_once // pixels, 16, 500))


class Engine:
    """Makes states, steps them through a stream and evaluates them.

    One engine serves any number of runs that differ in their seeds alone, and compiles once for all
    of them. With `num_seeds` above 1, that many runs go side by side: their states are stacked and
    every function is vmapped. The layout says which devices hold and compute what.
    """

    def __init__(
        self,
        config: Config,
        stream: Stream,
        num_seeds: int = 1,
        layout: Layout = ONE_DEVICE,
    ):
        check(stream, config.evaluate_on)
        self.config = config
        self.stream = stream
        self.num_seeds = num_seeds
        self.layout = layout
        self.steps_per_call = config.steps_per_call or default_steps_per_call(
            config.model, jax.default_backend()
        )
        height, width, _ = stream.image_shape
        longest = max(len(self._judged(task)) for task in range(len(stream.tasks)))
        fitting = default_evaluated(config.model, jax.default_backend(), height * width)
        self._evaluated = layout.rounded_up(min(longest, fitting))
        self.method = methods.make(config, stream)
        self._tx = self._optimizer(layout.capacity(config.num_tasks))
        graphdef, params, batch_stats = self._fresh_model(seed=0)
        if config.pretrained is not None:
            # Weights that do not fit must fail here, before there is a run to resume.
            import_weights(config.pretrained, params, batch_stats)
        self.problem = problem.make_problem(graphdef, stream, layout.over_data())
        # Learning everything at once, there is one task, and no other to be related to.
        self.has_alpha = config.optimizer.startswith("tag-") and not self.method.joint
        # One count and one task for all seeds; everything else has a seed axis.
        self._axes: Any = TrainState(
            step=None,  # type: ignore[arg-type]
            rng=0,  # type: ignore[arg-type]
            params=0,
            batch_stats=0,
            opt_state=tag_optax.vmap_axes(self._tx, params),
            memory=0,
            alpha_sum=0,  # type: ignore[arg-type]
        )
        self.traced: collections.Counter[str] = collections.Counter()
        """How often each function was traced, and so compiled: once for a whole stream."""
        self._start_shapes = jax.eval_shape(lambda: (random_key(0), params, batch_stats))
        one_seed = jax.eval_shape(
            functools.partial(self._init_state, self._tx), *self._start_shapes
        )
        shardings = layout.state(self._tx, one_seed, self._axes if num_seeds > 1 else None)
        self._shardings = shardings
        everywhere = layout.everywhere()
        self._init = jax.jit(functools.partial(self._init_call, self._tx), out_shardings=shardings)
        self._train = jax.jit(
            self._train_call, donate_argnums=0, out_shardings=(shardings, everywhere)
        )
        self._revisit = jax.jit(self._revisit_call, donate_argnums=0, out_shardings=shardings)
        self._count_correct = jax.jit(self._evaluate_call, out_shardings=everywhere)
        self._fingerprints = jax.jit(fingerprints, out_shardings=everywhere)
        self._finite = jax.jit(self._finite_call, out_shardings=everywhere)

    def steps(self) -> list[int]:
        """The steps of each stage of a run: a task, or all tasks at once."""
        size = self.config.batch_size
        examples = [sum(map(len, self._parts(stage).values())) for stage in self._stages()]
        return [self.config.epochs * batches.steps_per_epoch(n, size) for n in examples]

    def learned_after(self, stage: int) -> range:
        """The tasks that have been learned when a stage ends."""
        return range(self._tasks_of(stage).stop)

    def _optimizer(self, capacity: int) -> optax.GradientTransformationExtraArgs:
        skip_unseen = not self.layout.splits_bank
        return self.method.chain(
            optimizers.make(self.config, capacity=capacity, skip_unseen=skip_unseen)
        )

    def _stages(self) -> range:
        return range(1 if self.method.joint else len(self.stream.tasks))

    def _tasks_of(self, stage: int) -> range:
        """The tasks whose data a stage learns."""
        return range(len(self.stream.tasks)) if self.method.joint else range(stage, stage + 1)

    def _parts(self, stage: int) -> dict[int, Examples]:
        return {task: self.stream.tasks[task].train for task in self._tasks_of(stage)}

    def init(self, seeds: tuple[int, ...]) -> TrainState:
        """The state before the first step."""
        # From the host: each device takes its part, and several processes start from the same.
        starts = jax.device_get([self._start(seed) for seed in seeds])
        with self.layout.active():
            return self._init(jax.tree.map(lambda *leaves: np.stack(leaves), *starts))

    def shapes(self) -> TrainState:
        """The shapes of a state and where its arrays lie, without allocating any."""
        shapes = self._shapes_of(self._tx)
        places = self._shardings
        if places is None:
            device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
            places = jax.tree.map(lambda _: device, shapes)
        return jax.tree.map(
            lambda shape, place: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=place),
            shapes,
            places,
        )

    def resizable(self) -> frozenset[str]:
        """The arrays of a state with a row for each task that there is room for."""
        leaves, _ = jax.tree.flatten_with_path(self._shapes_of(self._tx))
        roomier = self._optimizer(self.layout.capacity(self.config.num_tasks) + 1)
        more_leaves = jax.tree.leaves(self._shapes_of(roomier))
        return frozenset(
            jax.tree_util.keystr(path)
            for (path, leaf), more in zip(leaves, more_leaves, strict=True)
            if leaf.shape != more.shape
        )

    def _shapes_of(self, tx: optax.GradientTransformationExtraArgs) -> TrainState:
        def stacked(shape: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((self.num_seeds, *shape.shape), shape.dtype)

        starts = jax.tree.map(stacked, self._start_shapes)
        return jax.eval_shape(functools.partial(self._init_call, tx), starts)

    def train(
        self, state: TrainState, seeds: tuple[int, ...], stage: int, steps: range
    ) -> tuple[TrainState, Outcome]:
        """Up to `steps_per_call` steps of a stage; donates the state. Outcomes: [step, seed]."""
        # The shapes of a call never change: batches behind the steps asked for are not used.
        taken = range(steps.start, steps.start + self.steps_per_call)
        parts, size = self._parts(stage), self.config.batch_size
        in_turn = self.config.multitask_order == "in-turn"

        def make(part: slice) -> Batch:
            return batches.take(
                parts, seeds, stage, taken, batch_size=size, in_turn=in_turn, of_batch=part
            )

        with self.layout.active():
            batch = self.layout.batch(make, size, axis=2)
            state, outcomes = self._train(state, batch, np.int32(stage), np.int32(len(steps)))
            return state, jax.tree.map(lambda x: x[: len(steps)], outcomes)

    def end_stage(self, state: TrainState, seeds: tuple[int, ...], stage: int) -> TrainState:
        """What the method keeps of the tasks just learned; donates the state."""
        for task, examples in self._parts(stage).items():
            count = self.method.num_revisited(len(examples))
            size = max(1, min(count, self.method.revisited_at_once(count)))
            for start in range(0, count, size):
                state = self._revisit_some(state, seeds, task, examples, count, start, size)
        return state

    def _revisit_some(
        self,
        state: TrainState,
        seeds: tuple[int, ...],
        task: int,
        examples: Examples,
        count: int,
        start: int,
        size: int,
    ) -> TrainState:
        def make(part: slice) -> Batch:
            return batches.revisited(
                examples, seeds, task, count, start, batch_size=size, of_batch=part
            )

        with self.layout.active():
            return self._revisit(state, self.layout.batch(make, size, axis=1), np.int32(task))

    def accuracies(self, state: TrainState, tasks: range) -> np.ndarray:
        """float64[seed, task]: the share of each task's examples classified right."""
        counts = [self._right(state, task, self._judged(task)) for task in tasks]
        right = [np.sum(blocks, axis=0, dtype=np.float64) for blocks in jax.device_get(counts)]
        sizes = [len(self._judged(task)) for task in tasks]
        return np.stack(right, axis=1) / np.array([sizes])

    def fingerprint(self, state: TrainState) -> dict[str, int]:
        """A number for each array, by its name."""
        with self.layout.active():
            return {k: int(v) for k, v in jax.device_get(self._fingerprints(state)).items()}

    def finite(self, state: TrainState) -> np.ndarray:
        """bool[seed]: whether all numbers of a seed's state are finite."""
        with self.layout.active():
            return np.asarray(self._finite(state))

    def _judged(self, task: int) -> Examples:
        part = self.stream.tasks[task]
        return part.test if self.config.evaluate_on == "test" else part.validation

    def _right(self, state: TrainState, task: int, examples: Examples) -> list[jax.Array]:
        """How many examples are classified right, block by block."""
        size = self._evaluated

        def count(start: int) -> jax.Array:
            batch = self.layout.batch(
                lambda part: batches.block(examples, task, start, size, part), size, axis=0
            )
            return self._count_correct(state.params, state.batch_stats, batch)

        with self.layout.active():
            return [count(start) for start in range(0, len(examples), size)]

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
        return random_key(seed), params, batch_stats

    def _init_state(
        self,
        tx: optax.GradientTransformationExtraArgs,
        rng: jax.Array,
        params: Any,
        batch_stats: Any,
    ) -> TrainState:
        tasks, memory = len(self.stream.tasks), self.method.init_memory()
        return init_state(tx, tasks, memory, rng, params, batch_stats)

    def _init_call(
        self, tx: optax.GradientTransformationExtraArgs, starts: tuple[jax.Array, Any, Any]
    ) -> TrainState:
        init = functools.partial(self._init_state, tx)
        if self.num_seeds == 1:
            return init(*jax.tree.map(lambda x: x[0], starts))
        return jax.vmap(init, out_axes=self._axes)(*starts)

    def _train_call(
        self, state: TrainState, batch: Batch, task: jax.Array, count: jax.Array
    ) -> tuple[TrainState, Outcome]:
        self.traced["train"] += 1

        def one_step(state: TrainState, batch: Batch, task: jax.Array) -> Any:
            return step.train_step(
                self.problem,
                self.method,
                self._tx,
                state,
                batch,
                task,
                has_alpha=self.has_alpha,
            )

        if self.num_seeds == 1:
            batch = jax.tree.map(lambda x: jnp.squeeze(x, axis=1), batch)
        else:
            one_step = jax.vmap(one_step, (self._axes, 0, None), (self._axes, 0))
        if self.steps_per_call == 1:
            state, outcomes = one_step(state, jax.tree.map(lambda x: x[0], batch), task)
        else:
            state, outcomes = step.several_steps(one_step, state, batch, task, count)
        shape = (self.steps_per_call, self.num_seeds)
        return state, jax.tree.map(lambda x: x.reshape(shape), outcomes)

    def _revisit_call(self, state: TrainState, batch: Batch, task: jax.Array) -> TrainState:
        self.traced["revisit"] += 1

        def revisit(state: TrainState, batch: Batch, task: jax.Array) -> TrainState:
            return self.method.revisit(self.problem, state, batch, task)

        if self.num_seeds == 1:
            return revisit(state, jax.tree.map(lambda x: x[0], batch), task)
        return jax.vmap(revisit, (self._axes, 0, None), self._axes)(state, batch, task)

    def _evaluate_call(self, params: Any, batch_stats: Any, batch: Batch) -> jax.Array:
        self.traced["evaluate"] += 1

        def count(params: Any, batch_stats: Any) -> jax.Array:
            return problem.count_correct(self.problem, params, batch_stats, batch)

        if self.num_seeds == 1:
            return count(params, batch_stats)[None]
        return jax.vmap(count)(params, batch_stats)

    def _finite_call(self, state: TrainState) -> jax.Array:
        if self.num_seeds == 1:
            return step.all_finite(state)[None]
        return jax.vmap(step.all_finite, (self._axes,))(state)
