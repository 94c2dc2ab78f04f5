"""What a run leaves in a user's hands: its measures, and a network that answers."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib.figure import Figure

from train import files, plots, settings
from train.errors import UserError
from train.methods import Batch, Problem, TrainState, problem
from train.models import Model, as_model, named_weights, with_compute_dtype
from train.run import metrics
from train.run.checkpoint import restore_weights
from train.run.config import Record, find
from train.run.directory import read_description
from train.run.engine import evaluated_params
from train.run.records import Matrices, read_measured

_AT_ONCE = 256  # Examples in a call of the network.


class Prediction(NamedTuple):
    """What a network answers for some inputs, where its targets are classes."""

    labels: np.ndarray  # int[n]: the most likely class, as a unit of the output layer
    probabilities: np.ndarray  # float32[n, outputs]: 0 for classes that were not in question
    names: list[str]  # of the labels


@dataclasses.dataclass(frozen=True)
class Trained:
    """One seed: what it measured, and where its weights come from."""

    seed: int
    matrices: Matrices
    weights: Callable[[], tuple[Any, Any]]
    """Parameters and stats; read only when they are asked for."""


@dataclasses.dataclass(eq=False, repr=False)
class RunResult:
    """What `train.fit` returns and `train.load` reads: one seed, or several.

    Measures are means over the seeds. The network is that of the first seed; `result[seed]` is
    the result of one seed alone.
    """

    config: Record
    """All settings, by their names."""
    stream: Mapping[str, Any]
    """Names, classes and sizes of the tasks."""
    model: Any
    """What was trained, if that is known."""
    runs: Sequence[Trained]
    """One for each seed."""
    failed: Mapping[int, str] = dataclasses.field(default_factory=dict)
    """Seeds that could not go on, and why."""

    def __getitem__(self, seed: int) -> "RunResult":
        chosen = [run for run in self.runs if run.seed == seed]
        if not chosen:
            raise KeyError(f"There is no seed {seed}: the seeds are {self.seeds}.")
        return RunResult(self.config, self.stream, self.model, chosen)

    def __repr__(self) -> str:
        return (
            f"RunResult({self.stream['name']}, {self.config.label}, seeds {self.seeds}: "
            f"{self.config['score']} {self.accuracy:.4g}, forgetting {self.forgetting:.4g} after "
            f"{self.tasks_finished} of {len(self.tasks)} tasks)"
        )

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.seed for run in self.runs)

    @property
    def tasks(self) -> list[str]:
        """The names of the tasks."""
        return [task["name"] for task in self.stream["tasks"]]

    @property
    def class_names(self) -> list[str]:
        """One for each output; numbers where the stream names none."""
        return self.stream["class_names"] or list(map(str, range(self.stream["num_outputs"])))

    @property
    def matrices(self) -> np.ndarray:
        """a[seed, t, s]: the score on task s after learning task t; NaN where not measured."""
        return np.stack([run.matrices.accuracy for run in self.runs])

    @property
    def matrix(self) -> np.ndarray:
        """a[t, s], the mean over the seeds."""
        return self.matrices.mean(axis=0)

    @property
    def alpha(self) -> np.ndarray | None:
        """TAG's weights alpha[t, s], the mean over seeds and steps; None for other optimizers."""
        found = [run.matrices.alpha for run in self.runs if run.matrices.alpha is not None]
        return np.mean(found, axis=0) if found else None

    def summary(self) -> list[metrics.Summary]:
        """All metrics of each seed."""
        return [metrics.summary(run.matrices.accuracy) for run in self.runs]

    def _mean(self, name: str) -> float:
        return float(np.mean([getattr(each, name) for each in self.summary()]))

    @property
    def accuracy(self) -> float:
        """The mean score over the tasks learned, at the end."""
        return self._mean("accuracy")

    @property
    def forgetting(self) -> float:
        """How far earlier tasks have fallen from their best, on average."""
        return self._mean("forgetting")

    @property
    def learning_accuracy(self) -> float:
        """The mean score on each task just after it was learned."""
        return self._mean("learning_accuracy")

    @property
    def backward_transfer(self) -> float:
        """What later tasks added to the earlier ones, on average."""
        return self._mean("backward_transfer")

    @property
    def tasks_finished(self) -> int:
        return min(each.tasks_finished for each in self.summary())

    @property
    def params(self) -> Any:
        """The parameters that are evaluated: nested dicts of arrays."""
        return self._weights[0]

    @property
    def stats(self) -> Any:
        """What the network keeps besides its parameters, such as running statistics."""
        return self._weights[1]

    @functools.cached_property
    def _weights(self) -> tuple[Any, Any]:
        if "num_outputs" not in self.stream:
            raise UserError("This run holds what was measured, and no network.")
        return self.runs[0].weights()

    def outputs(self, x: Any, task: int | str | None = None) -> np.ndarray:
        """What the network answers, for a batch of inputs like the stream's.

        Where targets are classes, those that are not in question are put out of reach: with a task
        (by number or name) the classes of all others, without one those of tasks not yet learned.
        """
        weights = self._weights
        x = np.asarray(x)
        expected = tuple(self.stream["input_shape"])
        if x.ndim == 0 or x.shape[1:] != expected or not len(x):
            raise UserError(
                f"The inputs must be a batch [n, {', '.join(map(str, expected))}], as in training, "
                f"and have the shape {list(x.shape)}."
            )
        row = len(self.tasks) if task is None else self._number(task)
        tasks, nothing = np.full(min(_AT_ONCE, len(x)), row, np.int32), np.zeros(0)
        found = []
        for start in range(0, len(x), _AT_ONCE):
            block = x[start : start + _AT_ONCE]
            # Filled up, so that the last block compiles nothing anew.
            batch = Batch(block[np.arange(len(tasks)) % len(block)], nothing, tasks, nothing)
            found.append(np.asarray(self._network(*weights, batch))[: len(block)])
        return np.concatenate(found)

    def predict(self, x: Any, task: int | str | None = None) -> Prediction:
        """The most likely class of each input, and the probabilities of all.

        Without a task, all classes of the tasks learned so far compete.
        """
        _ = self._weights  # Or says that there are none.
        if self._mask() is None:
            raise UserError(
                f"The targets of {self.stream['name']} are no classes: use outputs(x) instead."
            )
        outputs = self.outputs(x, task)
        labels, names = outputs.argmax(axis=-1), self.class_names
        probabilities = np.asarray(jax.nn.softmax(outputs.astype(np.float32)))
        return Prediction(labels, probabilities, [names[label] for label in labels.ravel()])

    def save(self, path: str | pathlib.Path) -> None:
        """Writes the weights to a .safetensors file, under dotted names."""
        try:
            import safetensors.numpy
        except ModuleNotFoundError as error:
            raise UserError("Writing weights needs: pip install safetensors.") from error
        path = pathlib.Path(path)
        if path.suffix != ".safetensors":
            raise UserError(f"Weights are written to a .safetensors file, and {path} is none.")
        with files.saying_why(path):
            safetensors.numpy.save_file(named_weights(*self._weights), path)

    def plot(self) -> Figure:
        """The accuracy on each task after each task, as a figure of matplotlib."""
        title = f"{self.stream['name']}, {self.config.label}: accuracy on each task"
        return plots.accuracy_matrix(self.matrices, self.tasks, title=title)

    def _number(self, task: int | str) -> int:
        tasks = self.tasks
        if isinstance(task, str) and task in tasks:
            return tasks.index(task)
        if isinstance(task, int | np.integer) and 0 <= task < len(tasks):
            return int(task)
        raise UserError(
            f"There is no task {task!r}: give a number from 0 to {len(tasks) - 1}, or one of "
            f"{', '.join(tasks)}."
        )

    def _mask(self) -> np.ndarray | None:
        """bool[tasks + 1, outputs]: the classes of each task, and of all that are learned."""
        classes = [task["classes"] for task in self.stream["tasks"]]
        if all(each is None for each in classes):
            return None
        mask = np.zeros((len(classes) + 1, self.stream["num_outputs"]), bool)
        for row, units in zip(mask, classes, strict=False):
            row[slice(None) if units is None else units] = True
        mask[-1] = mask[: max(self.tasks_finished, 1)].any(axis=0)
        return mask

    @functools.cached_property
    def _network(self) -> Callable[..., Any]:
        """(params, stats, batch) -> what the network answers."""
        inputs, model = _made(self.model, self.stream)
        if self.config["compute_dtype"] != "float32":
            model = with_compute_dtype(model, self.config["compute_dtype"])
        asked = Problem(
            apply=model.apply,
            loss=problem.cross_entropy,
            score=problem.accuracy,
            tasks=len(self.tasks),
            mask=self._mask(),
            inputs=inputs,
            targets=jax.ShapeDtypeStruct((), np.int32),
            scale=self.stream["scale"],
            offset=self.stream["offset"],
            batch_size=_AT_ONCE,
        )
        return jax.jit(functools.partial(problem.frozen_outputs, asked))


def load(directory: str | pathlib.Path, model: Any = None) -> RunResult:
    """The result of a run that `train.fit` or the command line has made.

    Args:
      directory: a seed's directory, or the one above it for all its seeds.
      model: what was trained, where the run does not know its name: a run names the built-in
        networks, and functions and classes of importable modules.
    """
    directory = pathlib.Path(directory)
    alone = (directory / "config.json").exists()
    paths = [directory] if alone else [p.parent for p in directory.glob("seed-*/config.json")]
    if not paths:
        raise UserError(f"{directory} is no run's directory: there is no config.json in it.")
    found = sorted(map(read_measured, sorted(paths)), key=lambda measured: measured.seed)
    record, first = found[0].config, found[0].path
    for each in found:
        if each.config != record:
            raise UserError(f"{each.path} has other settings than {first}: load one of them.")
    try:
        stream = read_description(first / "stream.json")
    except FileNotFoundError:  # A run that is published: what it measured, and no network.
        stream = {"name": record["stream"], "tasks": [{"name": name} for name in found[0].tasks]}
    else:
        model = _model_by_name(record, first) if model is None else model

    def weights(path: pathlib.Path) -> tuple[Any, Any]:
        params, stats = jax.eval_shape(_made(model, stream)[1].init, jax.random.key(0))
        state: TrainState = restore_weights(path / "checkpoints", params, stats)
        return evaluated_params(state), state.stats

    runs = [Trained(each.seed, each, functools.partial(weights, each.path)) for each in found]
    return RunResult(record, stream, model, runs)


def _made(model: Any, stream: Mapping[str, Any]) -> tuple[jax.ShapeDtypeStruct, Model]:
    """What the network is fed, and the network."""
    dtype = np.dtype(stream["input_dtype"] if stream["scale"] is None else np.float32)
    inputs = jax.ShapeDtypeStruct(tuple(stream["input_shape"]), dtype)
    return inputs, as_model(model, inputs, stream["num_outputs"])


def _model_by_name(record: Record, path: pathlib.Path) -> Any:
    if record["model"] == "given":
        raise UserError(
            f"The network of {path} was given as an object that has no name to import it by: pass "
            "it again, as in train.load(directory, model=...)."
        )
    model = find("model", record["model"]).value
    # The weights are the run's, whatever they began with.
    mine = {n: record[n] for n in settings.hints(model) if n in record and n != "pretrained"}
    return dataclasses.replace(model, **mine) if mine else model
