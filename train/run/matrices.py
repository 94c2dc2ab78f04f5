"""The matrices of a run as text: exact to the last bit, a line for each task learned."""

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np

from train import files
from train.errors import UserError

FILE = "matrices.json"


@dataclasses.dataclass(frozen=True)
class Matrices:
    """What a run measured, and on what."""

    accuracy: np.ndarray
    """a[t, s], float64[T, T]; NaN where nothing was measured."""
    alpha: np.ndarray | None
    """alpha(t, s), the same; None where the optimizer has none."""
    tasks: list[str]
    sources: list[str]


def write(path: pathlib.Path, matrices: Matrices) -> None:
    """Writes the file whole or not at all.

    >>> import tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / FILE
    >>> accuracy = np.array([[0.1 + 0.2, np.nan], [0.5, 0.7]])
    >>> write(path, Matrices(accuracy, None, ["one", "two"], ["noise"]))
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
    >>> read(path).tasks
    ['one', 'two']
    """
    parts = [
        f' "tasks": {json.dumps(matrices.tasks)}',
        f' "sources": {json.dumps(matrices.sources)}',
        f' "accuracy": {_rows(matrices.accuracy)}',
        f' "alpha": {_rows(matrices.alpha)}',
    ]
    files.write_whole(path, "{\n" + ",\n".join(parts) + "\n}\n")


def read(path: pathlib.Path) -> Matrices:
    """Reads what `write` wrote; raises FileNotFoundError where there is nothing yet."""
    try:
        found = files.read_json(path)
        matrices = Matrices(
            accuracy=from_nested(found["accuracy"]),
            alpha=None if found["alpha"] is None else from_nested(found["alpha"]),
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
    """Nested lists for JSON, which has no NaN: it becomes null.

    >>> to_nested(np.array([[0.5, np.nan]]))
    [[0.5, None]]
    """
    values = array.astype(object)
    values[np.isnan(array)] = None
    return values.tolist()


def from_nested(values: list[Any]) -> np.ndarray:
    """Nested lists as float64, their nulls as NaN.

    >>> from_nested([[0.5, None]])
    array([[0.5, nan]])
    """
    return np.array(values, dtype=np.float64)


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
