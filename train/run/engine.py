"""The compiled functions of a run: for one seed, or for several side by side."""

import collections
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tag_optax
from train.errors import UserError
from train.methods import Batch, TrainState, problem
from train.run import batches, step
from train.run.checkpoint import fingerprints
from train.run.config import Config
from train.run.devices import Layout
from train.run.step import Learner, Outcome
from train.streams import Examples, Stream

ONE_DEVICE = Layout()


class Engine:
    """Makes states, steps them through a stream and evaluates them.

    One engine serves any number of runs that differ in their seeds alone, and compiles once for all
    of them. With `num_seeds` above 1, that many runs go side by side: their states are stacked and
    every function is vmapped. The layout says which devices hold and compute what.
    """

    def __init__(
        self, config: Config, stream: Stream, num_seeds: int = 1, layout: Layout = ONE_DEVICE
    ):
        run = config.run
        stream.check(run.evaluate_on)
        self.config = config = config.resolved(stream.target_dtype)
        self.stream = stream
        self.num_seeds = num_seeds
        self.layout = layout
        self.method = config.method.value
        self._learner = Learner(config, stream, layout, self.steps())
        self._learner.check()
        self.problem, tx = self._learner.problem, self._learner.tx
        params, _ = self._learner.weights
        convolves = any(leaf.ndim > 3 for leaf in jax.tree.leaves(params))
        on_cpu = jax.default_backend() == "cpu"
        # On a CPU, XLA runs convolutions inside a loop several times slower than outside, while a
        # small perceptron's step is mostly dispatch (`benchmarks/stream_throughput.py`). On
        # accelerators fewer calls leave the host more time.
        steps_on_cpu = 1 if convolves else 50
        self.steps_per_call = run.steps_per_call or (steps_on_cpu if on_cpu else 25)
        # An evaluation fills a device, and 224x224 images fit. On a CPU, convolutions are a quarter
        # faster while their maps stay in its caches.
        pixels = math.prod(stream.input_shape[:2]) or 1
        fitting = (2**16 if on_cpu and convolves else 2**18) // pixels
        longest = max(len(self._judged(task)) for task in range(len(stream.tasks)))
        self._evaluated = layout.rounded_up(min(longest, max(16, min(fitting, 500))), "data")
        # One count and one task for all seeds; everything else has a seed axis.
        self._axes: Any = TrainState(*[0] * len(TrainState._fields))._replace(  # type: ignore[arg-type]
            step=None, opt_state=tag_optax.vmap_axes(tx, params)
        )
        self.traced: collections.Counter[str] = collections.Counter()
        """How often each function was traced, and so compiled: once for a whole stream."""
        # A seed's state alone is as on every mesh, so that it can be saved and go on on another.
        self._one_seed = jax.eval_shape(_for_any_mesh, self._learner.state)
        self._place_one = layout.state(self._one_seed)
        axis = layout.bank_axis
        placed = jax.tree.leaves(self._place_one.opt_state) if self._place_one else []
        if axis is not None and not any(axis in tuple(place.spec) for place in placed):
            raise UserError(
                f"--bank-axis {axis} needs an optimizer that keeps moments of every task, such as "
                f"tag-rmsprop; with {config.optimizer.name} it would change nothing."
            )
        shardings = layout.state(self._learner.state)
        if num_seeds > 1 and shardings is not None:
            shardings = self._for_seeds(lambda s: layout.sharding(None, *s.spec), shardings)
        everywhere = layout.sharding()
        self.has_alpha = self._learner.has_alpha
        """Whether TAG weighs the tasks."""
        self.scores_are_shares = self.problem.score is problem.accuracy
        """Whether scores are accuracies, shown in percent."""
        self._init = jax.jit(
            lambda *start: _for_any_mesh(self._learner.init_state(*start)),
            out_shardings=self._place_one,
        )
        self._join = jax.jit(
            lambda *states: self._for_seeds(
                lambda *x: jnp.stack(x), *map(self._for_this_mesh, states)
            ),
            out_shardings=shardings,
        )
        self._split = jax.jit(
            lambda state, index: _for_any_mesh(self._for_seeds(lambda x: x[index], state)),
            out_shardings=self._place_one,
        )
        self._train = jax.jit(
            self._train_call, donate_argnums=0, out_shardings=(shardings, everywhere)
        )
        self._revisit = jax.jit(self._revisit_call, donate_argnums=0, out_shardings=shardings)
        self._total_score = jax.jit(self._evaluate_call, out_shardings=everywhere)
        self._fingerprints = jax.jit(fingerprints, out_shardings=everywhere)
        self._finite = jax.jit(self._finite_call, out_shardings=everywhere)

    def steps(self) -> list[int]:
        """The steps of each task; a joint method learns all tasks as one."""
        size = self.config.run.batch_size
        tasks = range(1 if self.method.joint else len(self.stream.tasks))
        examples = [sum(map(len, self._parts(task).values())) for task in tasks]
        return [self.config.run.epochs * math.ceil(n / size) for n in examples]

    def learned_after(self, task: int) -> range:
        """The tasks that have been learned when one ends."""
        return range(len(self.stream.tasks) if self.method.joint else task + 1)

    def _parts(self, task: int) -> dict[int, Examples]:
        """The examples that are learned, by the task they belong to."""
        learned = self.learned_after(task) if self.method.joint else [task]
        return {each: self.stream.tasks[each].train for each in learned}

    def init(self, seeds: Sequence[int]) -> TrainState:
        """The state before the first step."""
        return self.join([self.init_one(seed) for seed in seeds])

    def init_one(self, seed: int) -> TrainState:
        """The state of one seed before the first step."""
        # From the host: each device takes its part, and several processes start from the same.
        weights = self._learner.model.init(jax.random.key(seed))
        start = jax.device_get((step.random_key(seed), *weights))
        with self.layout.active():
            return self._init(*start)

    def join(self, states: Sequence[TrainState]) -> TrainState:
        """The states of several seeds side by side."""
        with self.layout.active():
            if self.num_seeds == 1:
                return self._for_this_mesh(states[0])
            return self._join(*states)

    def split(self, state: TrainState, index: int) -> TrainState:
        """The state of one seed."""
        with self.layout.active():
            if self.num_seeds == 1:
                return _for_any_mesh(state)
            return self._split(state, np.int32(index))

    def _for_this_mesh(self, state: TrainState) -> TrainState:
        like = self._learner.state.opt_state
        return state._replace(opt_state=tag_optax.rearrange(state.opt_state, like))

    def shapes(self) -> TrainState:
        """The shapes of one seed's state and where its arrays lie, without allocating any."""
        places = self._place_one
        if places is None:
            device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
            places = jax.tree.map(lambda _: device, self._one_seed)
        return jax.tree.map(
            lambda shape, place: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=place),
            self._one_seed,
            places,
        )

    def resizable(self) -> frozenset[str]:
        """The arrays of a state that a longer stream, or more capacity, makes larger."""
        longer = Learner(self.config, self.stream, self.layout, self.steps(), more=1)
        larger = jax.eval_shape(_for_any_mesh, longer.state)
        leaves, _ = jax.tree.flatten_with_path(self._one_seed)
        return frozenset(
            jax.tree_util.keystr(path)
            for (path, leaf), other in zip(leaves, jax.tree.leaves(larger), strict=True)
            if leaf.shape != other.shape
        )

    def resized(self, saved: TrainState, seed: int) -> TrainState:
        """A state for fewer or more tasks, in these shapes; what is new is as at the start."""
        if jax.tree.map(jnp.shape, saved) == jax.tree.map(jnp.shape, self._one_seed):
            return saved

        def fit(fresh: jax.Array, old: jax.Array) -> jax.Array:
            if fresh.shape == old.shape:
                return old
            both = tuple(slice(min(pair)) for pair in zip(fresh.shape, old.shape, strict=True))
            return fresh.at[both].set(old[both])

        resize = jax.jit(
            lambda fresh, old: jax.tree.map(fit, fresh, old), out_shardings=self._place_one
        )
        with self.layout.active():
            return resize(self.init_one(seed), saved)

    def train(
        self, state: TrainState, seeds: tuple[int, ...], task: int, steps: range
    ) -> tuple[TrainState, Outcome]:
        """Up to `steps_per_call` steps of a task; donates the state. Outcomes: [step, seed]."""
        # The shapes of a call never change: batches beyond the steps asked for are not used.
        taken = range(steps.start, steps.start + self.steps_per_call)
        parts, size = self._parts(task), self.config.run.batch_size
        make = functools.partial(
            batches.take, parts, seeds, task, taken, batch_size=size, in_turn=self.method.in_turn
        )
        with self.layout.active():
            batch = self.layout.batch(lambda part: make(of_batch=part), size, axis=2)
            numbers = np.int32(task), np.int32(steps.start), np.int32(len(steps))
            state, outcomes = self._train(state, batch, *numbers)
            return state, jax.tree.map(lambda x: x[: len(steps)], outcomes)

    def end_task(self, state: TrainState, seeds: tuple[int, ...], task: int) -> TrainState:
        """What the method keeps of the tasks just learned; donates the state."""
        for each, examples in self._parts(task).items():
            count = self.method.num_revisited(len(examples))
            at_once = self.method.revisited_at_once(count, self.config.run.batch_size)
            size = max(1, min(count, at_once))
            for start in range(0, count, size):
                make = functools.partial(
                    batches.revisited, examples, seeds, each, count, start, batch_size=size
                )
                with self.layout.active():
                    batch = self.layout.batch(lambda part: make(of_batch=part), size, axis=1)  # noqa: B023
                    state = self._revisit(state, batch, np.int32(each))
        return state

    def scores(self, state: TrainState, tasks: range) -> np.ndarray:
        """float64[seed, task]: the mean score over each task's examples."""
        size, params = self._evaluated, evaluated_params(state)

        def total(task: int, start: int) -> jax.Array:
            batch = self.layout.batch(
                lambda part: batches.block(self._judged(task), task, start, size, part),
                size,
                axis=0,
            )
            return self._total_score(params, state.stats, batch)

        sizes = [len(self._judged(task)) for task in tasks]
        with self.layout.active():
            totals = [
                [total(task, start) for start in range(0, examples, size)]
                for task, examples in zip(tasks, sizes, strict=True)
            ]
        added = [np.sum(blocks, axis=0, dtype=np.float64) for blocks in jax.device_get(totals)]
        return np.stack(added, axis=1) / np.array([sizes])

    def fingerprint(self, state: TrainState) -> dict[str, int]:
        """A number for each array of one seed's state, by its name."""
        with self.layout.active():
            return {k: int(v) for k, v in jax.device_get(self._fingerprints(state)).items()}

    def finite(self, state: TrainState) -> np.ndarray:
        """bool[seed]: whether all numbers of a seed's state are finite."""
        with self.layout.active():
            return np.asarray(self._finite(state))

    def _judged(self, task: int) -> Examples:
        return getattr(self.stream.tasks[task], self.config.run.evaluate_on)

    def _for_seeds(self, function: Callable[..., Any], *states: Any) -> Any:
        """The function of what each seed has of its own; what they share is as in the first."""

        def apply(axis: int | None, *parts: Any) -> Any:
            return parts[0] if axis is None else jax.tree.map(function, *parts)

        return jax.tree.map(apply, self._axes, *states, is_leaf=lambda axis: axis is None)

    def _train_call(
        self, state: TrainState, batch: Batch, task: jax.Array, first: jax.Array, count: jax.Array
    ) -> tuple[TrainState, Outcome]:
        self.traced["train"] += 1

        def one_step(state: TrainState, batch: Batch, number: jax.Array) -> Any:
            return self._learner.step(state, batch, task, number)

        if self.num_seeds == 1:
            batch = jax.tree.map(lambda x: jnp.squeeze(x, axis=1), batch)
        else:
            one_step = jax.vmap(one_step, (self._axes, 0, None), (self._axes, 0))
        if self.steps_per_call == 1:
            state, outcomes = one_step(state, jax.tree.map(lambda x: x[0], batch), first)
        else:
            state, outcomes = step.several_steps(one_step, state, batch, first, count)
        shape = (self.steps_per_call, self.num_seeds)
        return state, jax.tree.map(lambda x: x.reshape(shape), outcomes)

    def _revisit_call(self, state: TrainState, batch: Batch, task: jax.Array) -> TrainState:
        self.traced["revisit"] += 1
        revisit = functools.partial(self.method.revisit, self.problem)
        if self.num_seeds == 1:
            return revisit(state, jax.tree.map(lambda x: x[0], batch), task)
        return jax.vmap(revisit, (self._axes, 0, None), self._axes)(state, batch, task)

    def _evaluate_call(self, params: Any, stats: Any, batch: Batch) -> jax.Array:
        self.traced["evaluate"] += 1
        total = functools.partial(problem.total_score, self.problem)
        if self.num_seeds == 1:
            return total(params, stats, batch)[None]
        return jax.vmap(total, (0, 0, None))(params, stats, batch)

    def _finite_call(self, state: TrainState) -> jax.Array:
        if self.num_seeds == 1:
            return step.all_finite(state)[None]
        return jax.vmap(step.all_finite, (self._axes,))(state)


def _for_any_mesh(state: TrainState) -> TrainState:
    return state._replace(opt_state=tag_optax.rearrange(state.opt_state))


def evaluated_params(state: TrainState) -> Any:
    """The parameters that are evaluated: their average, where there is one."""
    return state.average if jax.tree.leaves(state.average) else state.params
