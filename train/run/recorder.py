"""metrics.jsonl, and TensorBoard where asked for."""

import json
import math
import pathlib
from typing import Any

from train import files
from train.errors import UserError


class Recorder:
    """Appends records to a file of JSON lines.

    Nothing in a record depends on the clock or on how often the run was stopped: an interrupted and
    resumed run leaves the same file, byte for byte.
    """

    def __init__(self, path: pathlib.Path, records: list[dict[str, Any]], *, tensorboard: bool):
        # What was written after the checkpoint will be written again.
        files.write_whole(path, "".join(_line(record) for record in records))
        self._file = files.Appended(path)
        self._board = _board(path.parent / "tensorboard", records) if tensorboard else None

    def write(self, record: dict[str, Any]) -> None:
        self._file.write(_line(record))
        if self._board is not None:
            for name, value in _scalars(record).items():
                self._board.add_scalar(name, value, record["total_steps"])

    def close(self) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()


class NoRecorder:
    """Writes nothing, where another process does."""

    def write(self, record: dict[str, Any]) -> None:
        del record

    def close(self) -> None:
        pass


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, allow_nan=False) + "\n"


def _scalars(record: dict[str, Any]) -> dict[str, float]:
    """
    >>> _scalars({"kind": "train", "task": 1, "total_steps": 9, "loss": 0.5})
    {'train/loss': 0.5}
    """
    kind = record["kind"]
    places = ("task", "step", "total_steps")
    scalars = {
        f"{kind}/{k}": v for k, v in record.items() if isinstance(v, float) and k not in places
    }
    for task, accuracy in enumerate(record.get("accuracies", [])):
        scalars[f"{kind}/task {task + 1}"] = accuracy
    return {name: value for name, value in scalars.items() if math.isfinite(value)}


def _board(path: pathlib.Path, records: list[dict[str, Any]]) -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise UserError(
            "--tensorboard needs tensorboardX: pip install 'tag_optax[train]'."
        ) from None
    done = records[-1]["total_steps"] if records else 0
    return SummaryWriter(logdir=str(path), purge_step=done + 1)
