"""What a run has done so far, seed by seed: kept on the host, and inside every checkpoint."""

import dataclasses
from typing import Any

import numpy as np

from train.run.matrices import from_nested, to_nested


@dataclasses.dataclass
class History:
    """Where the run stands and what it has measured.

    Because it is saved with the state, a resumed run writes the same records as one that was never
    stopped.
    """

    task: int
    """The task at hand."""
    step: int
    """Steps taken on it."""
    records: list[list[dict[str, Any]]]
    """For each seed, the lines of metrics.jsonl."""
    losses: list[list[float]]
    """For each seed, the losses that no line holds yet."""
    skipped: list[list[int]]
    """For each seed, the steps of each task that were not taken, because they were not finite."""
    accuracy: np.ndarray
    """float64[seeds, T, T]: a[t, s], NaN where not measured."""
    failed: dict[int, str]
    """Seeds (by position) that had to stop, and why."""

    @classmethod
    def start(cls, num_seeds: int, num_tasks: int) -> "History":
        return cls(
            task=0,
            step=0,
            records=[[] for _ in range(num_seeds)],
            losses=[[] for _ in range(num_seeds)],
            skipped=[[0] * num_tasks for _ in range(num_seeds)],
            accuracy=np.full((num_seeds, num_tasks, num_tasks), np.nan),
            failed={},
        )

    def to_json(self) -> dict[str, Any]:
        """JSON has no NaN: it becomes null.

        >>> history = History.start(num_seeds=1, num_tasks=2)
        >>> history.accuracy[0, 0, 0] = 0.5
        >>> History.from_json(history.to_json()).accuracy.tolist()
        [[[0.5, nan], [nan, nan]]]
        """
        return dataclasses.asdict(self) | {
            "accuracy": to_nested(self.accuracy),
            "failed": {str(seed): why for seed, why in self.failed.items()},
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "History":
        return cls(
            **fields
            | {
                "accuracy": from_nested(fields["accuracy"]),
                "failed": {int(seed): why for seed, why in fields["failed"].items()},
            }
        )
