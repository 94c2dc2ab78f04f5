"""Directories of runs that nobody trained, as a sweep would leave them."""

import json
import pathlib

import numpy as np

from train.paper.presets import experiment
from train.run.config import Config, Record
from train.run.records import FILE, Matrices, write_matrices
from train.streams import STREAMS
from train.streams.data_sets import DATA_SETS, record


def write_run(
    out: pathlib.Path,
    config: Config | Record,
    seed: int,
    *,
    final: float = 0.6,
    change: np.ndarray | None = None,
    alpha: np.ndarray | None = None,
    sources: list[str] | None = None,
    finished: bool = True,
) -> None:
    """A run whose tasks all end at one accuracy; they were learned at 0.1 more.

    Args:
      config: a record for what nothing built-in can be asked about; its run lies in `out` itself.
      change: added to the accuracies after each task of the stream.
      alpha: the weights, where the optimizer has any; all the same by default.
    """
    if isinstance(config, Config):
        fields = config.resolved(np.int32).record
        directory = experiment(out, fields) / f"seed-{seed}"
    else:
        fields, directory = config, out / f"seed-{seed}"
    tasks = fields["num_tasks"]
    measured = np.tri(tasks, dtype=bool)
    a = np.where(measured, final, np.nan)
    a[np.arange(tasks - 1), np.arange(tasks - 1)] += 0.1
    if change is not None:
        a += change[:, None]
    if fields["method"] == "multitask":
        a[:-1] = np.nan
    if not finished:
        a[-1] = np.nan
    if sources is None:
        names = STREAMS[fields["stream"]].data_sets
        sources = [record(DATA_SETS[name], "1.0.0", *DATA_SETS[name].full_size) for name in names]
    if alpha is not None or fields["optimizer"].startswith("tag-"):
        alpha = np.where(measured, 0.5 if alpha is None else alpha, np.nan)
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps({**fields, "seed": seed}))
    tasks_named = [f"<{t}>" for t in range(tasks)]
    write_matrices(directory / FILE, Matrices(a, alpha, tasks_named, sources))
    environment = {"command": "python -m train run && echo <i>", "commit": "abc1234", "cores": 2}
    (directory / "environment.json").write_text(json.dumps(environment))
