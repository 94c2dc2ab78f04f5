"""What a run has measured, on the disk and in memory: metrics.jsonl and matrices.json."""

import dataclasses
import hashlib
import json
import math
import pathlib
from typing import Any

import numpy as np

from train import files
from train.errors import UserError
from train.run.config import Record, read_fields, read_record

FILE = "matrices.json"


@dataclasses.dataclass
class Position:
    """Where one seed stands. Saved with its state, so that a resumed run records the same."""

    task: int = 0
    """The task at hand."""
    step: int = 0
    """Steps taken on it."""
    losses: list[float] = dataclasses.field(default_factory=list)
    """Those that no record holds yet."""
    skipped: list[int] = dataclasses.field(default_factory=list)
    """The steps of each task so far that were not taken, because they were not finite."""
    failed: str | None = None
    """Why the seed had to stop."""

    def skip(self) -> int:
        """Counts a step of the task at hand; returns how many of it were skipped."""
        self.skipped += [0] * (self.task + 1 - len(self.skipped))
        self.skipped[self.task] += 1
        return self.skipped[self.task]

    def skipped_of_task(self) -> int:
        return self.skipped[self.task] if self.task < len(self.skipped) else 0


class Recorder:
    """Appends records to a file of JSON lines, and to TensorBoard where asked for.

    Without a path it writes nothing: another process does, or nobody asked for it.

    Nothing in a record depends on the clock or on how often the run was stopped: an interrupted and
    resumed run leaves the same file, byte for byte. A checkpoint holds the `mark` of what was
    written before it.
    """

    def __init__(
        self,
        path: pathlib.Path | None,
        mark: dict[str, Any] | None = None,
        *,
        tensorboard: bool = False,
        total_steps: int = 0,
    ):
        content = b"" if path is None or mark is None else _marked(path, mark)
        self.records: list[dict[str, Any]] = [json.loads(line) for line in content.splitlines()]
        """What was written before the mark; what came after it will be written again."""
        self._checksum = hashlib.sha256(content)
        self._file = None if path is None else files.Appended(path, len(content))
        self._board = None
        if tensorboard and path is not None:
            try:
                from tensorboardX import SummaryWriter
            except ImportError:
                message = "--tensorboard needs tensorboardX: pip install tensorboardX."
                raise UserError(message) from None
            board = str(path.parent / "tensorboard")
            self._board = SummaryWriter(logdir=board, purge_step=total_steps + 1)

    def write(self, record: dict[str, Any]) -> None:
        if self._file is None:
            return
        line = (json.dumps(record, allow_nan=False) + "\n").encode()
        self._file.write(line)
        self._checksum.update(line)
        if self._board is not None:
            scalars = {name: value for name, value in record.items() if isinstance(value, float)}
            for task, accuracy in enumerate(record.get("accuracies", []), start=1):
                scalars[f"task {task}"] = accuracy
            for name, value in scalars.items():
                if math.isfinite(value):
                    self._board.add_scalar(f"{record['kind']}/{name}", value, record["total_steps"])

    def mark(self) -> dict[str, Any] | None:
        """How far the file goes, and a checksum of it; it is on the disk then."""
        if self._file is None:
            return None
        self._file.sync()
        return {"bytes": self._file.size, "sha256": self._checksum.hexdigest()}

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._board is not None:
            self._board.close()


def _marked(path: pathlib.Path, mark: dict[str, Any]) -> bytes:
    """What a file held when it was marked."""
    try:
        with path.open("rb") as file:
            content = file.read(mark["bytes"])
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}), and a checkpoint goes on from it: put it "
            "back, or throw the run away with --overwrite."
        ) from error
    if hashlib.sha256(content).hexdigest() != mark["sha256"]:
        raise UserError(
            f"{path} is not what the run wrote before its checkpoint: put it back as it was, or "
            "throw the run away with --overwrite."
        )
    return content


@dataclasses.dataclass(frozen=True)
class Matrices:
    """What a run measured, and on what."""

    accuracy: np.ndarray
    """a[t, s], float64[T, T]; NaN where nothing was measured."""
    alpha: np.ndarray | None
    """alpha(t, s), the same; None where the optimizer has none."""
    tasks: list[str]
    sources: list[str]

    @property
    def finished(self) -> bool:
        """Whether every task is learned."""
        return bool(np.isfinite(self.accuracy[-1]).all())

    @classmethod
    def empty(cls, tasks: list[str], sources: list[str], *, has_alpha: bool) -> "Matrices":
        nothing = np.full((len(tasks), len(tasks)), np.nan)
        return cls(nothing, nothing.copy() if has_alpha else None, tasks, sources)

    def take(self, record: dict[str, Any], row: int) -> None:
        """Enters what an evaluation recorded."""
        accuracies = record["accuracies"]
        self.accuracy[row, : len(accuracies)] = accuracies
        if self.alpha is not None and "alpha" in record:
            self.alpha[row, : len(record["alpha"])] = np.array(record["alpha"], np.float64)


def write_matrices(path: pathlib.Path, matrices: Matrices) -> None:
    """Writes the file whole or not at all: exact to the last bit, a line for each task learned.

    >>> import tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / FILE
    >>> accuracy = np.array([[0.1 + 0.2, np.nan], [0.5, 0.7]])
    >>> write_matrices(path, Matrices(accuracy, None, ["one", "two"], ["noise"]))
    >>> print(path.read_text())
    {
     "tasks": ["one", "two"],
     "sources": ["noise"],
     "accuracy": [
      [0.30000000000000004, null],
      [0.5, 0.7]
     ],
     "alpha": null
    }
    <BLANKLINE>
    >>> read_matrices(path).tasks
    ['one', 'two']
    """
    parts = [
        f' "tasks": {json.dumps(matrices.tasks)}',
        f' "sources": {json.dumps(matrices.sources)}',
        f' "accuracy": {_rows(matrices.accuracy)}',
        f' "alpha": {_rows(matrices.alpha)}',
    ]
    files.write_whole(path, "{\n" + ",\n".join(parts) + "\n}\n")


def read_matrices(path: pathlib.Path) -> Matrices:
    """Reads what `write_matrices` wrote; FileNotFoundError where there is nothing yet."""
    try:
        found = files.read_json(path)
        matrices = Matrices(
            accuracy=np.array(found["accuracy"], np.float64),
            alpha=None if found["alpha"] is None else np.array(found["alpha"], np.float64),
            tasks=_names(found["tasks"]),
            sources=_names(found["sources"]),
        )
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise UserError(f"{path} cannot be read ({error}).") from error
    tasks = len(matrices.tasks)
    shapes = {m.shape for m in (matrices.accuracy, matrices.alpha) if m is not None}
    if not tasks or shapes != {(tasks, tasks)}:
        raise UserError(f"{path} holds no matrix of its {tasks} tasks.")
    if np.isinf(matrices.accuracy).any():
        raise UserError(f"{path} holds an infinite accuracy.")
    return matrices


def to_nested(array: np.ndarray) -> list[Any]:
    """Nested lists for JSON, which has no NaN: it becomes null, which numpy reads as NaN."""
    values = array.astype(object)
    values[np.isnan(array)] = None
    return values.tolist()


def _rows(matrix: np.ndarray | None) -> str:
    if matrix is None:
        return "null"
    return "[\n" + ",\n".join(f"  {json.dumps(row)}" for row in to_nested(matrix)) + "\n ]"


def _names(values: Any) -> list[str]:
    if not isinstance(values, list) or not all(
        isinstance(value, str) and value.replace("\n", " ").isprintable() for value in values
    ):
        raise ValueError("names of tasks and sources must be lists of strings that can be printed")
    return values


@dataclasses.dataclass(frozen=True)
class Measured(Matrices):
    """What a run directory says about a run."""

    path: pathlib.Path
    config: Record
    seed: int


def read_measured(path: pathlib.Path) -> Measured:
    """Reads a run that has finished at least one task."""
    config, seed = read_config(path / "config.json")
    try:
        found = read_matrices(path / FILE)
    except FileNotFoundError:
        raise UserError(f"{path} has finished no task yet.") from None
    tasks = config.get("num_tasks", len(found.tasks))
    if len(found.tasks) != tasks:
        raise UserError(f"{path} holds {len(found.tasks)} tasks, and its config.json has {tasks}.")
    return Measured(**vars(found), path=path, config=config, seed=seed)


def read_config(path: pathlib.Path) -> tuple[Record, int]:
    """The settings and the seed of a run."""
    fields = read_fields(path)
    seed = fields.pop("seed", None)
    if type(seed) is not int or seed < 0:
        raise UserError(f"{path} names no seed: it is not a run's.")
    return read_record(fields, path), seed


def find_runs(roots: list[pathlib.Path]) -> list[pathlib.Path]:
    """Every run directory below these, in order, with something measured in it."""
    found = {path.parent for root in roots for path in root.rglob(FILE)}
    return sorted(path for path in found if (path / "config.json").exists())
